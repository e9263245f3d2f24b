"""Static graphs and gradients that were made anew: none is lost (T109)."""

import mxkit
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import STATIC, fit, make_batches, make_net, weights
import pytest

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
SGD = ("sgd", {"learning_rate": 0.5})


def static_net(hybridize, devices="cpu:1"):
    net = make_net(devices)
    if hybridize:
        net.hybridize(**STATIC)
    return net


def backward(net, x, y):
    with autograd.record():
        losses = LOSS(net(x), y)
    losses.backward()


def test_gluon_loses_gradients_that_were_made_anew():
    """T109."""
    net = static_net(True)
    (batch,) = make_batches([6])
    net[0].weight.grad_req = "add"
    backward(net, *batch)
    assert net[0].weight.grad().asnumpy().any()
    net[0].weight.grad_req = "write"
    net[0].weight.grad_req = "add"
    backward(net, *batch)
    assert not net[0].weight.grad().asnumpy().any(), "MXNet is mended: drop_static_graphs is not needed"


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    ("devices", "accumulate", "amp"),
    [("cpu:1", 1, None), ("cpu:2", 2, None), ("cpu:2", 1, "bfloat16"), ("cpu:1", 2, "bfloat16")],
)
def test_epochs_of_accumulated_batches(devices, accumulate, amp):
    """T109."""

    def trained(flags):
        net = make_net(devices)
        net.hybridize(**flags)
        fit(net, make_batches([6] * 4), trainer=SGD, epochs=4, accumulate=accumulate, amp=amp)
        return weights(net)

    np.testing.assert_array_equal(trained(STATIC), trained({}))


def by_hand(net):
    net[0].collect_params().setattr("grad_req", "null")
    net[0].collect_params().setattr("grad_req", "write")


def by_mxkit(net):
    mxkit.freeze(net, "0.*")
    mxkit.unfreeze(net, "0.*")


def anew(net):
    values = [parameter.data().copy() for parameter in net.collect_params().values()]
    mxkit.initialize(net, "zeros", devices="cpu", force=True)
    for parameter, value in zip(net.collect_params().values(), values):
        parameter.set_data(value)


CHANGES = [by_hand, by_mxkit, anew]


@pytest.mark.parametrize(("inside", "one_graph"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_made_anew_by_a_callback(change, inside, one_graph):
    """T109."""

    class Changes(mxkit.Callback):
        def on_update(self, state, update):
            if inside and update.step == 2:
                change(state.net)

        def on_epoch(self, state, row):
            if not inside and state.epoch == 1:
                change(state.net)

    def trained(hybridize):
        net = static_net(hybridize)
        # a loss of one's own goes the ordinary way, through the net's own graph
        own = mxkit.losses.BatchLoss(forward=lambda net, x, y: LOSS(net(*x), *y))
        loss, trainer = "softmax_ce" if one_graph else own, gluon.Trainer(net.collect_params(), *SGD)
        fit(net, make_batches([6] * 3), loss=loss, trainer=trainer, epochs=3, callbacks=[Changes()])
        return weights(net)

    np.testing.assert_array_equal(trained(True), trained(False))


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_made_anew_between_two_trainings(change):
    """T109."""

    def trained(hybridize):
        net = static_net(hybridize)
        trainer = gluon.Trainer(net.collect_params(), *SGD)
        for _ in range(2):
            fit(net, make_batches([6] * 3), trainer=trainer)
            change(net)
            for _ in mxkit.updates(net, make_batches([6] * 3), loss="softmax_ce", trainer=trainer):
                pass
            change(net)
        return weights(net)

    np.testing.assert_array_equal(trained(True), trained(False))


def test_a_window_in_a_loop_of_ones_own_leaves_the_gradients_where_they_are():
    """T109."""

    def epoch(net, trainer):
        with mxkit.Accumulator(trainer, every=2) as accumulator:
            for x, y in make_batches([6] * 5):
                with autograd.record():
                    losses = LOSS(net(x), y)
                accumulator.backward(losses)
                accumulator.step()

    def trained(hybridize):
        net = static_net(hybridize)
        trainer = gluon.Trainer(net.collect_params(), *SGD)
        for _ in range(3):
            text = "last window held 1 micro-batches, 6 samples.* Call accumulator.flush"
            with pytest.raises(RuntimeError, match=text):
                epoch(net, trainer)
        for x, y in make_batches([6] * 2):  # with "write" again
            backward(net, x, y)
            trainer.step(6)
        return weights(net)

    np.testing.assert_array_equal(trained(True), trained(False))


@pytest.mark.parametrize("change", [by_mxkit, anew])
def test_unfreeze_and_initialize_mend_graphs_outside_of_a_training(change):
    """T109."""
    net = static_net(True)
    (batch,) = make_batches([6])
    backward(net, *batch)
    expected = net[0].weight.grad().asnumpy()
    change(net)
    backward(net, *batch)
    mx.nd.waitall()
    np.testing.assert_array_equal(net[0].weight.grad().asnumpy(), expected)
