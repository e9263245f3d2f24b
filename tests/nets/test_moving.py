"""`to`: right in every state that a net can be in."""

from built_nets import ready, stack
import mxkit
from mxkit.errors import DeviceError, TrapWarning
from mxkit.nets.initializers import to
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import numpy as np
import pytest

X = mx.nd.array(np.random.RandomState(0).rand(4, 3))
TWO = [mx.cpu(0), mx.cpu(1)]


def make(in_units=3):
    return stack(nn.Dense(5, in_units=in_units), nn.BatchNorm(), nn.Dense(2))


def devices(net):
    return {tuple(one.list_ctx()) for one in mxkit.parameters(net).values()}


def test_before_initialization_it_initializes_as_mxkit_does():
    net, other = make(), make()
    mxkit.seed_all(1)
    assert to(net, "cpu:2") is net
    mxkit.seed_all(1)
    mxkit.initialize(other, devices="cpu:2")
    assert devices(net) == {tuple(TWO)}
    for one in (net, other):
        one(X)
    np.testing.assert_array_equal(net[0].weight.data(mx.cpu(1)).asnumpy(), other[0].weight.data(mx.cpu(1)).asnumpy())


def test_deferred_shapes_are_inferred_there():
    net = ready(make(0), devices="cpu")
    net.hybridize()
    to(net, mx.cpu(1))
    out = net(X.as_in_context(mx.cpu(1)))
    assert out.context == mx.cpu(1)
    assert devices(net) == {(mx.cpu(1),)}


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("start", ["cpu", "cpu:3"])
def test_values_go_along_to_the_bit_and_gradients_work(hybridize, start, kind):
    x = kind.of(X)
    with kind.switches():
        net = ready(make(), devices=start)
        net.hybridize(hybridize, static_alloc=hybridize)
        net(x)
        net[1].running_mean.data(mx.cpu(0))[:] = 0.1
        if start != "cpu":
            net[1].running_mean.data(mx.cpu(1))[:] = 7
        expected = net(x).asnumpy()
    net[0].weight.grad_req = "null"
    with pytest.warns(UserWarning, match="already initialized, ignoring"):  # T20
        net[2].weight.initialize(ctx=mx.cpu(2))
    to(net, [mx.cpu(1), mx.cpu(2)])
    for device in (mx.cpu(1), mx.cpu(2)):
        with autograd.record(train_mode=False), kind.switches():
            out = net(kind.of(X.as_in_context(device)))
        out.backward()
        np.testing.assert_array_equal(out.asnumpy(), expected)
        assert kind.holds(net[2].weight.grad(device))
        assert net[2].weight.grad(device).asnumpy().any()
    assert net[0].weight.grad_req == "null"
    assert net[0].weight._grad is None


def test_a_net_with_one_new_layer():
    net = ready(make(), devices="cpu")
    net(X)
    kept = net[0].weight.data().asnumpy()
    net.add(nn.Dense(3, in_units=2), nn.Dense(2, in_units=5, params=net[2].params))
    net.params.get_constant("scale", mx.nd.array([2.0]))
    with pytest.raises(DeviceError):
        to(net, "gpu:99")
    to(net, "cpu")
    np.testing.assert_array_equal(net[0].weight.data().asnumpy(), kept)
    assert net[:4](X).shape == (4, 3)
    to(net, "cpu:2")
    assert net[2].weight is net[4].weight
    assert devices(net) == {tuple(TWO)}


def test_a_trainer_is_refused_before_anything_moves():
    net = ready(make(), devices="cpu")
    mxkit.fit(net, [(X, np.array([0, 1, 0, 1]))], loss="softmax_ce", trainer="sgd", epochs=1, progress=False)
    assert to(net, "cpu") is net
    with pytest.raises(ValueError, match=r"a Trainer exists over '0.weight', on \[cpu\(0\)\].*pass drop_trainer=True"):
        to(net, "cpu:2")
    assert devices(net) == {(mx.cpu(0),)}
    net.hybridize()
    net(X)
    to(net, "cpu:2", drop_trainer=True)
    assert net._cached_op is None
    assert all(one._trainer is None for one in mxkit.parameters(net).values())
    history = mxkit.fit(net, [(X, np.array([0, 1, 0, 1]))], loss="softmax_ce", trainer="sgd", epochs=1, progress=False)
    assert np.isfinite(history[-1]["train_loss"])


def test_accumulated_gradients_are_not_thrown_away():
    net = ready(make(), devices="cpu")
    net(X)
    net[0].weight.grad_req = "add"
    with pytest.raises(ValueError, match="grad_req of '0.weight' is 'add'"):
        to(net, "cpu:2")
    assert devices(net) == {(mx.cpu(0),)}


def test_a_plain_array_stays_behind_and_is_told():
    net = make()
    net.table = mx.nd.ones(3)
    with pytest.warns(TrapWarning, match=r"the net \(HybridSequential\) keeps a plain NDArray 'table' on cpu\(0\)"):
        to(net, mx.cpu(1))
