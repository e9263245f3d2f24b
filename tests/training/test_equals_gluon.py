"""`fit` and `updates` against a hand-written Gluon loop over the same batches: the same bits."""

import mxkit
import mxnet as mx
import numpy as np
from oracle import OPTIMIZER_IDS, OPTIMIZERS, SOFTMAX, make_batches, make_net, train_by_hand, weights
import pytest


def ragged():
    return make_batches([8, 8, 3])  # the hand-written loop steps by 3 at the end (T2)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("hybridize", [False, True], ids=["imperative", "hybridized"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_IDS)
def test_fit_ends_bit_equal_to_a_gluon_loop(optimizer, hybridize):
    expected, net = make_net(hybridize=hybridize), make_net(hybridize=hybridize)
    before = weights(net)
    train_by_hand(expected, ragged(), optimizer, epochs=3)
    history = mxkit.fit(net, ragged(), loss="softmax_ce", trainer=optimizer, epochs=3, progress=False)
    np.testing.assert_array_equal(weights(net), weights(expected))
    assert np.abs(weights(net) - before).max() > 0.01
    assert [row["updates"] for row in history] == [3, 6, 9]


@pytest.mark.parametrize("hybridize", [False, True], ids=["imperative", "hybridized"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_IDS)
def test_updates_bit_equal_to_a_gluon_loop_after_each_update(optimizer, hybridize):
    expected, net = make_net(hybridize=hybridize), make_net(hybridize=hybridize)
    trainer = None
    stream = mxkit.updates(net, ragged(), loss=SOFTMAX, trainer=optimizer)
    for batch, update in zip(ragged(), stream):
        trainer = train_by_hand(expected, [batch], optimizer, trainer=trainer)
        np.testing.assert_array_equal(weights(net), weights(expected))
        assert update.samples == batch[0].shape[0]


def test_measuring_validating_and_watching_do_not_change_a_bit():
    plain, watched = make_net(), make_net()
    arguments = {"loss": "softmax_ce", "trainer": ("adam", {"learning_rate": 0.02}), "epochs": 2, "progress": False}
    mxkit.fit(plain, ragged(), check_finite=False, **arguments)
    mxkit.fit(watched, ragged(), valid=ragged()[:1], metrics=["accuracy"], clip_norm=float("inf"), **arguments)
    np.testing.assert_array_equal(weights(watched), weights(plain))


@pytest.mark.usefixtures("switched")
def test_dropout_draws_as_in_a_gluon_loop_and_validation_draws_nothing():
    expected, net = make_net(dropout=0.5), make_net(dropout=0.5)
    mx.random.seed(11)
    train_by_hand(expected, ragged(), OPTIMIZERS[0], epochs=2)
    mx.random.seed(11)
    mxkit.fit(net, ragged(), loss="softmax_ce", trainer=OPTIMIZERS[0], epochs=2, valid=ragged()[:], progress=False)
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
    mxkit.fit(net, batches, loss="softmax_ce", trainer=OPTIMIZERS[0], epochs=2, progress=False)
    np.testing.assert_array_equal(weights(net), weights(expected))
