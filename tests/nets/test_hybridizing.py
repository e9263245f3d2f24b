"""`try_hybridize`: graphs that are equal, graphs that cannot be, and graphs that lie."""

import itertools
import random

import as_on_a_gpu
from built_nets import plain_net, ready, stack
from mxkit.core.arrays import call
from mxkit.errors import ForwardError
from mxkit.nets.own_layers import try_hybridize
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import Kind

X = mx.nd.array(np.random.RandomState(0).rand(4, 3))


def wrapped(block):
    return ready(nn.Dense(3, in_units=3), block, devices="cpu")


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}])
def test_a_net_that_can_be_is_hybridized(flags, kind):
    net = kind.net(lambda: wrapped(nn.BatchNorm()))
    expected = call(net, [kind.of(X)]).asnumpy()
    net.hybridize()
    result = try_hybridize(net, X, **flags)
    assert result
    assert result.hybridized
    assert result.compared == ("predict", "training")
    assert result.difference < 1e-5
    assert result.reason == result.place == ""
    assert net._active
    assert net._cached_op is not None
    assert dict(net._flags).items() >= flags.items()
    np.testing.assert_allclose(call(net, [kind.of(X)]).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    assert str(result).startswith("hybridized: equal in predict and training to ")
    assert try_hybridize(wrapped(nn.HybridLambda(lambda F, a: (a + 1, [a - 1]))), X)
    assert try_hybridize(wrapped(nn.Dropout(0.5)), X).compared == ("predict",)


CALLS = itertools.count(1)
NO_GRAPH = "'1' (HybridLambda) cannot be hybridized"
CHANGING = "change from call to call"
OTHER = "mode the graph's outputs differ from those of the code by"


@pytest.mark.parametrize(
    ("numpy", "forward", "reason"),
    [
        (False, lambda F, x: x * x.shape[0], NO_GRAPH),
        (False, lambda F, x: x if x.sum() > 0 else -x, NO_GRAPH),
        (False, lambda F, x, calls=CALLS: x * next(calls), CHANGING),
        (False, lambda F, x: x * random.random(), CHANGING),
        # Python code that looks at the mode: the graph of one mode serves both
        (False, lambda F, x: x * 2 if autograd.is_training() else x, f"in training {OTHER}"),
        (False, lambda F, x: x + (1 if F is mx.nd else 2), f"in predict {OTHER}"),
        (False, lambda F, x: x + F.mean(x, axis=1, keepdims=True), "raises only because it is hybridized: operator"),
        (True, lambda F, x: x.reshape(x.shape[0], -1), "has no attribute 'shape'"),
        (True, lambda F, x: x * x.sum().item(), "has no attribute 'item'"),
        (True, lambda F, x: x * float(x.sum().asnumpy()), "asnumpy is not implemented for Symbol"),
        (True, lambda F, x: x[x > 0], "IndexError: Only integer, slice, or tuple of these types are supported"),
        (True, lambda F, x: x + mx.np.ones(3), "not supported"),
        (True, lambda F, x: x * mx.np.random.uniform(size=(1,)), CHANGING),
    ],
)
def test_a_net_without_an_equal_graph_is_left_with_the_reason(numpy, forward, reason):
    with Kind(numpy).switches():
        net = wrapped(nn.HybridLambda(forward))
        x = Kind(numpy).of(X)
        expected = net(x).asnumpy()
        result = try_hybridize(net, X)
        assert not result
        assert reason in result.reason
        placed = not any(word in reason for word in (CHANGING, OTHER, "raises only"))
        assert result.place.startswith(f"{__file__}:" if placed else "")
        assert ("lambda F, x" in result.place) == placed
        assert str(result).endswith(result.place or result.reason)
        assert not any(block._active for block in [net, *net])
        if OTHER in reason:
            assert result.difference > 0.01
        if reason != CHANGING:
            np.testing.assert_array_equal(net(x).asnumpy(), expected)


def test_a_hybrid_block_with_a_forward_of_its_own_is_listed():
    class Own(nn.HybridBlock):
        def forward(self, x):
            return self.layer(x) * float(x.sum().item())

    with Kind(True).switches():
        net = Own()
        net.layer = wrapped(nn.Dense(2, in_units=3))
        result, inside = try_hybridize(net, X), try_hybridize(stack(net), X)
    assert result.python == ("",)
    assert inside.reason.startswith("'0' (Own) cannot be hybridized")
    assert str(result).endswith("without a graph: the net")


def test_statistics_that_move_in_the_forward_pass_are_put_back():
    """T126."""
    net = wrapped(as_on_a_gpu.BatchNorm())
    net(X)
    before = [array.asnumpy() for array in (net[1].running_mean.data(), net[1].running_var.data())]
    result = try_hybridize(net, X)
    assert result, result
    assert result.compared == ("predict", "training")
    for array, value in zip((net[1].running_mean.data(), net[1].running_var.data()), before):
        np.testing.assert_array_equal(array.asnumpy(), value)


def test_blocks_without_a_graph_are_listed():
    plain = plain_net(lambda net, x: x * 2)

    net = ready(stack(nn.Dense(3, in_units=3), plain, nn.Dense(2, in_units=3), kind=nn.Sequential), devices="cpu")
    result = try_hybridize(net, X)
    assert result
    assert result.python == ("1",)
    assert "without a graph: 1" in str(result)


def test_a_net_that_does_not_run_at_all():
    net = wrapped(nn.Dense(2, in_units=7))
    with pytest.raises(ForwardError, match="'1'"):
        try_hybridize(net, X)
    with pytest.raises(ValueError, match="pass typical inputs of the net"):
        try_hybridize(net)
