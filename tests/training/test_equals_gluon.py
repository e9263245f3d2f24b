"""`fit` and `updates` against a hand-written Gluon loop over the same batches: the same bits."""

import mxkit
import mxnet as mx
import numpy as np
from oracle import OPTIMIZER_IDS, OPTIMIZERS, SOFTMAX, fit, make_batches, make_net, train_by_hand, weights
import pytest


def ragged():
    return make_batches([8, 8, 3])  # the hand-written loop steps by 3 at the end (T2)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("hybridize", [False, True], ids=["imperative", "hybridized"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_IDS)
def test_each_update_of_fit_is_bit_equal_to_that_of_a_gluon_loop(optimizer, hybridize):
    expected, net = make_net(hybridize=hybridize), make_net(hybridize=hybridize)
    before, trainer, steps = weights(net), None, []

    def compare(state, update):
        nonlocal trainer
        batch = ragged()[len(steps) % 3]
        trainer = train_by_hand(expected, [batch], optimizer, trainer=trainer)
        np.testing.assert_array_equal(weights(net), weights(expected))
        assert update.samples == batch[0].shape[0]
        steps.append(update.step)

    callback = mxkit.callbacks.LambdaCallback(on_update=compare)
    history = fit(net, ragged(), trainer=optimizer, epochs=3, callbacks=[callback])
    assert np.abs(weights(net) - before).max() > 0.01
    assert (steps, [row["updates"] for row in history]) == ([*range(1, 10)], [3, 6, 9])


def test_measuring_validating_and_watching_do_not_change_a_bit():
    plain, watched = make_net(), make_net()
    fit(plain, ragged(), trainer=OPTIMIZERS[2], epochs=2, check_finite=False)
    watching = {"valid": ragged()[:1], "metrics": ["accuracy"], "clip_norm": float("inf")}
    fit(watched, ragged(), trainer=OPTIMIZERS[2], epochs=2, **watching)
    np.testing.assert_array_equal(weights(watched), weights(plain))


@pytest.mark.usefixtures("switched")
def test_dropout_draws_as_in_a_gluon_loop_and_validation_draws_nothing():
    expected, net = make_net(dropout=0.5), make_net(dropout=0.5)
    mx.random.seed(11)
    train_by_hand(expected, ragged(), OPTIMIZERS[0], epochs=2)
    mx.random.seed(11)
    fit(net, ragged(), trainer=OPTIMIZERS[0], epochs=2, valid=ragged()[:])
    np.testing.assert_array_equal(weights(net), weights(expected))


@pytest.mark.usefixtures("switched")
def test_a_trainer_of_ones_own_goes_on_over_calls():
    expected, net = make_net(), make_net()
    train_by_hand(expected, ragged(), OPTIMIZERS[1], epochs=2)
    trainer = mx.gluon.Trainer(net.collect_params(), *OPTIMIZERS[1])
    for epoch in range(2):
        first = epoch * len(ragged()) + 1
        stream = mxkit.updates(net, ragged(), loss=SOFTMAX, trainer=trainer, epoch=epoch, first_step=first)
        assert [update.step for update in stream] == [first, first + 1, first + 2]
    np.testing.assert_array_equal(weights(net), weights(expected))


def test_a_parameter_used_twice_and_a_float64_net_train_as_in_gluon():
    def shared():
        mxkit.seed_all(4)
        net = mx.gluon.nn.HybridSequential()
        first = mx.gluon.nn.Dense(5, in_units=5, activation="tanh")
        net.add(first, mx.gluon.nn.Dense(5, in_units=5, params=first.params), mx.gluon.nn.Dense(3, in_units=5))
        net.cast("float64")
        mxkit.initialize(net, devices="cpu")
        return net

    batches = make_batches([8, 5], dtype="float64")
    expected, net = shared(), shared()
    train_by_hand(expected, batches, OPTIMIZERS[0], epochs=2)
    fit(net, batches, trainer=OPTIMIZERS[0], epochs=2)
    np.testing.assert_array_equal(weights(net), weights(expected))
