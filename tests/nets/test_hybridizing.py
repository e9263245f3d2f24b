"""`try_hybridize`: graphs that are equal, graphs that cannot be, and graphs that lie."""

import random

import as_on_a_gpu
from built_nets import stack
import mxkit
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


class Shaped(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x * x.shape[0]


class Branching(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        if x.sum() > 0:
            return x
        return -x


class Counting(nn.HybridBlock):
    calls = 0

    def hybrid_forward(self, F, x):
        self.calls += 1
        return x * self.calls


class Drawing(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x * random.random()


class Deciding(nn.HybridBlock):
    """Python code that looks at the mode: the graph of one mode serves both."""

    def hybrid_forward(self, F, x):
        return x * 2 if autograd.is_training() else x


class Named(nn.HybridBlock):
    """Other things for symbols than for arrays."""

    def hybrid_forward(self, F, x):
        return x + (1 if F is mx.nd else 2)


class Adding(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x + F.mean(x, axis=1, keepdims=True)


class Two(nn.HybridBlock):
    def hybrid_forward(self, F, a):
        return a + 1, [a - 1]


def wrapped(block):
    net = stack(nn.Dense(3, in_units=3), block)
    mxkit.initialize(net, devices="cpu")
    return net


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}])
def test_row134_a_net_that_can_be_is_hybridized(flags, kind):
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
    assert try_hybridize(wrapped(Two()), X)
    assert try_hybridize(wrapped(nn.Dropout(0.5)), X).compared == ("predict",)


@pytest.mark.parametrize(
    ("block", "reason", "place"),
    [
        (Shaped, "'1' (Shaped) cannot be hybridized", "return x * x.shape[0]"),
        (Branching, "'1' (Branching) cannot be hybridized", "if x.sum() > 0:"),
        (Counting, "change from call to call", ""),
        (Drawing, "change from call to call", ""),
        (Deciding, "in training mode the graph's outputs differ from those of the code by", ""),
        (Named, "in predict mode the graph's outputs differ from those of the code by", ""),
        (Adding, "raises only because it is hybridized: operator", ""),
    ],
)
def test_row134_a_net_without_an_equal_graph_is_left_with_the_reason(block, reason, place):
    net = wrapped(block())
    expected = net(X).asnumpy()
    result = try_hybridize(net, X)
    assert not result
    assert reason in result.reason
    assert result.place.startswith(f"{__file__}:" if place else "")
    assert result.place.endswith(place)
    assert str(result).endswith(result.place or result.reason)
    assert not any(block._active for block in [net, *net])
    if block in (Deciding, Named):
        assert result.difference > 0.01
    if "change" not in reason:
        np.testing.assert_array_equal(net(X).asnumpy(), expected)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda F, x: x.reshape(x.shape[0], -1), "has no attribute 'shape'"),
        (lambda F, x: x * x.sum().item(), "has no attribute 'item'"),
        (lambda F, x: x * float(x.sum().asnumpy()), "asnumpy is not implemented for Symbol"),
        (lambda F, x: x[x > 0], "IndexError: Only integer, slice, or tuple of these types are supported"),
        (lambda F, x: x + mx.np.ones(3), "not supported"),
        (lambda F, x: x * mx.np.random.uniform(size=(1,)), "change from call to call"),
    ],
)
def test_code_of_mx_np_that_has_no_graph_is_left_with_the_reason(forward, reason):
    with Kind(True).switches():
        net = wrapped(nn.HybridLambda(forward))
    result = try_hybridize(net, X)
    assert not result
    assert reason in result.reason
    assert result.place.startswith(f"{__file__}:" if "change" not in reason else "")


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


def test_t126_statistics_that_move_in_the_forward_pass_are_put_back():
    net = wrapped(as_on_a_gpu.BatchNorm())
    net(X)
    before = [array.asnumpy() for array in (net[1].running_mean.data(), net[1].running_var.data())]
    result = try_hybridize(net, X)
    assert result, result
    assert result.compared == ("predict", "training")
    for array, value in zip((net[1].running_mean.data(), net[1].running_var.data()), before):
        np.testing.assert_array_equal(array.asnumpy(), value)


def test_row135_blocks_without_a_graph_are_listed():
    class Plain(nn.Block):
        def forward(self, x):
            return x * 2

    net = stack(nn.Dense(3, in_units=3), Plain(), nn.Dense(2, in_units=3), kind=nn.Sequential)
    mxkit.initialize(net, devices="cpu")
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
