"""`try_hybridize`: graphs that are equal, graphs that cannot be, and graphs that lie."""

import random

import as_on_a_gpu
import mxkit
from mxkit.errors import ForwardError
from mxkit.nets.hybridizing import try_hybridize
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import numpy as np
import pytest

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


def wrapped(block):
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=3), block)
    mxkit.initialize(net, devices="cpu")
    return net


def active(net):
    return [block for block in [net, *net._children.values()] if getattr(block, "_active", False)]


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}])
def test_row134_a_net_that_can_be_is_hybridized(flags):
    net = wrapped(nn.BatchNorm())
    expected = net(X).asnumpy()
    result = try_hybridize(net, X, **flags)
    assert result
    assert result.hybridized
    assert result.compared == ("predict", "training")
    assert result.difference < 1e-5
    assert result.reason == result.place == ""
    assert net._active
    assert net._cached_op is not None
    assert dict(net._flags).items() >= flags.items()
    np.testing.assert_allclose(net(X).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    assert str(result).startswith("hybridized: equal in predict and training to ")


def test_t126_statistics_that_move_in_the_forward_pass_are_put_back():
    net = wrapped(as_on_a_gpu.BatchNorm())
    net(X)
    before = [array.asnumpy() for array in (net[1].running_mean.data(), net[1].running_var.data())]
    result = try_hybridize(net, X)
    assert result, result
    assert result.compared == ("predict", "training")
    for array, value in zip((net[1].running_mean.data(), net[1].running_var.data()), before):
        np.testing.assert_array_equal(array.asnumpy(), value)


def test_dropout_is_compared_in_predict_mode_only():
    result = try_hybridize(wrapped(nn.Dropout(0.5)), X)
    assert result
    assert result.compared == ("predict",)


@pytest.mark.parametrize(
    ("block", "source", "reason"),
    [
        (Shaped, "return x * x.shape[0]", "'1' (Shaped) cannot be hybridized"),
        (Branching, "if x.sum() > 0:", "'1' (Branching) cannot be hybridized"),
    ],
)
def test_row134_the_line_that_cannot_be_traced_is_named(block, source, reason):
    net = wrapped(block())
    expected = net(X).asnumpy()
    result = try_hybridize(net, X)
    assert not result
    assert reason in result.reason
    assert result.place.startswith(f"{__file__}:")
    assert result.place.endswith(source)
    assert str(result).endswith(result.place)
    assert not active(net)
    np.testing.assert_array_equal(net(X).asnumpy(), expected)


@pytest.mark.parametrize("block", [Counting, Drawing])
def test_row134_outputs_that_python_changes_from_call_to_call(block):
    net = wrapped(block())
    result = try_hybridize(net, X)
    assert not result
    assert "change from call to call" in result.reason
    assert not active(net)


@pytest.mark.parametrize(("block", "mode"), [(Deciding, "training"), (Named, "predict")])
def test_a_graph_that_computes_something_else(block, mode):
    net = wrapped(block())
    expected = net(X).asnumpy()
    result = try_hybridize(net, X)
    assert not result
    assert f"in {mode} mode the graph's outputs differ from those of the code by" in result.reason
    assert result.difference > 0.01
    assert not active(net)
    np.testing.assert_array_equal(net(X).asnumpy(), expected)


def test_an_operator_that_broadcasts_without_a_graph_only():
    net = wrapped(Adding())
    result = try_hybridize(net, X)
    assert not result
    assert "raises only because it is hybridized: operator" in result.reason
    assert "broadcast_add" in result.reason
    assert not active(net)


def test_a_net_that_was_hybridized_before():
    net = wrapped(nn.Dense(2))
    net.hybridize()
    net(X)
    assert try_hybridize(net, X)


def test_row135_blocks_without_a_graph_are_listed():
    class Plain(nn.Block):
        def forward(self, x):
            return x * 2

    net = nn.Sequential()
    net.add(nn.Dense(3, in_units=3), Plain(), nn.Dense(2, in_units=3))
    mxkit.initialize(net, devices="cpu")
    result = try_hybridize(net, X)
    assert result
    assert result.python == ("1",)
    assert "without a graph: 1" in str(result)


def test_several_inputs_and_outputs():
    class Two(nn.HybridBlock):
        def hybrid_forward(self, F, a, b):
            return a + b, [a - b]

    net = Two()
    assert try_hybridize(net, X, X * 2)


def test_a_net_that_does_not_run_at_all():
    net = wrapped(nn.Dense(2, in_units=7))
    with pytest.raises(ForwardError, match="'1'"):
        try_hybridize(net, X)
    with pytest.raises(ValueError, match="pass typical inputs of the net"):
        try_hybridize(net)
