"""`try_hybridize`: graphs that are equal, graphs that cannot be, and graphs that lie."""

import itertools
import json
import random

import as_on_a_gpu
from built_nets import plain_net, ready, stack
import mxkit
from mxkit.core.arrays import call
from mxkit.core.graph import Graph
from mxkit.core.graphs import traced_graph
from mxkit.errors import ForwardError, RecipeError
from mxkit.nets.own_layers import try_hybridize
from mxkit.recipe.building import net_calls
from mxkit.recipe.reading import load_recipe
from mxkit.training.precision import MixedPrecision
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import Kind, needs_bfloat16

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


# A layer, and how a batch becomes (rows of numbers that are normalized together, parameters of each number).
NORMS = {
    "LayerNorm": (lambda: nn.LayerNorm(), (3, 4, 6), lambda x: x.reshape(12, 6), lambda one: np.tile(one, (12, 1))),
    "InstanceNorm": (
        lambda: nn.InstanceNorm(scale=True),
        (2, 4, 3, 5),
        lambda x: x.reshape(8, 15),
        lambda one: np.tile(one[:, None], (2, 15)),
    ),
    "GroupNorm": (
        lambda: nn.GroupNorm(2, epsilon=0.1),
        (2, 4, 3, 5),
        lambda x: x.reshape(4, 30),
        lambda one: np.tile(one[:, None], (2, 30)),
    ),
}


def normalized(x, h, gamma, beta, epsilon, rows, spread):
    """A norm and its gradients in double precision, by the formula of the derivative."""
    flat, heads = rows(x.astype(np.float64)), rows(h.astype(np.float64))
    root = 1 / np.sqrt(flat.var(axis=1, keepdims=True) + epsilon)
    unit, inner = (flat - flat.mean(axis=1, keepdims=True)) * root, heads * spread(gamma)
    back = inner - inner.mean(axis=1, keepdims=True) - unit * (inner * unit).mean(axis=1, keepdims=True)
    numbers = spread(np.arange(len(gamma)))
    sums = [np.array([one[numbers == at].sum() for at in range(len(gamma))]) for one in (heads * unit, heads)]
    return [(unit * spread(gamma) + spread(beta)).reshape(x.shape), (root * back).reshape(x.shape), *sums]


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NORMS)
def test_fast_norms_equal_the_formula(name, dtype, active):
    make, shape, rows, spread = NORMS[name]
    random = np.random.RandomState(1)
    x, h = random.normal(50, 3, shape).astype(dtype), random.normal(0, 1, shape).astype(dtype)
    net = nn.HybridSequential()
    net.add(make())
    net.cast(dtype)
    net.initialize()
    mxkit.nets.hybridize(net, fast=True, active=active)
    inputs = mx.nd.array(x, dtype=dtype)
    net(inputs)  # the parameters wait for a first batch
    layer = net[0]
    layer.gamma.set_data(mx.nd.arange(1, 1 + layer.gamma.shape[0], dtype=dtype))
    layer.beta.set_data(mx.nd.arange(layer.beta.shape[0], dtype=dtype))
    inputs.attach_grad()
    with autograd.record():
        output = net(inputs)
    output.backward(mx.nd.array(h, dtype=dtype))
    found = [one.asnumpy() for one in (output, inputs.grad, layer.gamma.grad(), layer.beta.grad())]
    parameters = [one.data().asnumpy().astype(np.float64) for one in (layer.gamma, layer.beta)]
    expected = normalized(x, h, *parameters, layer._epsilon, rows, spread)
    for one, formula in zip(found, expected):
        np.testing.assert_allclose(one, formula, rtol=1e-10 if dtype == "float64" else 1e-4, atol=1e-4)
    assert name not in operators(layer)


def test_only_norms_over_the_usual_axis_become_fast():
    net = nn.HybridSequential()
    net.add(nn.LayerNorm(axis=1), nn.InstanceNorm(axis=2), nn.BatchNorm(), nn.LayerNorm())
    mxkit.nets.hybridize(net, fast=True)
    assert ["hybrid_forward" in vars(layer) for layer in net] == [False, False, False, True]
    assert operators(net[3]) >= {"dot", "rsqrt"}


def operators(layer):
    return {node["op"] for node in json.loads(layer(mx.sym.var("data")).tojson())["nodes"]}


def norms():
    net = ready(
        nn.Conv2D(8, 3, in_channels=3), nn.InstanceNorm(in_channels=8), nn.GroupNorm(2), nn.Dense(6), nn.LayerNorm(),
        nn.Dense(2), devices="cpu",
    )  # fmt: skip
    net(IMAGES)
    return net


IMAGES = mx.nd.array(np.random.RandomState(2).rand(4, 3, 6, 6))


def test_a_net_with_fast_norms_trains_saves_and_leaves_as_before(tmp_path):
    usual, fast, labels = norms(), norms(), mx.nd.array([0, 1, 1, 0])
    for one, other in zip(fast.collect_params().values(), usual.collect_params().values()):
        one.set_data(other.data())
    mxkit.nets.hybridize(fast, fast=True)
    options = {"loss": "softmax_ce", "trainer": "sgd", "epochs": 2, "progress": False}
    histories = [mxkit.fit(net, [(IMAGES, labels)] * 3, **options) for net in (usual, fast)]
    assert histories[1][-1]["train_loss"] == pytest.approx(histories[0][-1]["train_loss"], rel=1e-5)
    np.testing.assert_allclose(fast(IMAGES).asnumpy(), usual(IMAGES).asnumpy(), rtol=1e-4, atol=1e-5)
    mxkit.save_net(tmp_path / "net", fast)
    loaded = mxkit.load_net(tmp_path / "net")
    np.testing.assert_allclose(loaded(IMAGES).asnumpy(), fast(IMAGES).asnumpy(), rtol=1e-4, atol=1e-5)
    assert type(loaded[1]).hybrid_forward == loaded[1].hybrid_forward.__func__
    mxkit.export(fast, tmp_path / "left", input_shape=(4, 3, 6, 6))
    assert {"LayerNorm", "InstanceNorm", "GroupNorm"} <= {
        node["op"] for node in json.loads((tmp_path / "left-symbol.json").read_text())["nodes"]
    }
    assert "rsqrt" in operators(fast)


@needs_bfloat16
def test_fast_norms_in_16_bits_compute_as_the_usual_ones():
    net, found = norms(), []
    for fast in (False, True):
        mxkit.nets.hybridize(net, fast=fast)
        with MixedPrecision("bfloat16").applied(net):
            found.append(net(IMAGES).asnumpy())
            assert "amp_cast" in net._cached_graph[1].tojson(remove_amp_cast=False)
    np.testing.assert_allclose(*found, atol=0.01)


def test_a_recipe_may_ask_for_fast_norms():
    recipe = load_recipe("mlp", ["hybridize=fast"])
    calls = [call for call in net_calls(recipe) if call.function is mxkit.nets.hybridize]
    assert [call.named for call in calls] == [{"fast": True, "static_alloc": True}]
    with pytest.raises(RecipeError, match="hybridize: input should be a valid boolean or 'fast'"):
        load_recipe("mlp", ["hybridize=quick"])


FASTER = {
    "tanh": (lambda F, x: F.tanh(x), "Activation"),
    "sigmoid": (lambda F, x: x.sigmoid() * 2, "Activation"),
    "mean of two axes": (lambda F, x: F.reshape(x, (0, -1)).mean(axis=1), "batch_dot"),
    "mean of three axes": (lambda F, x: F.mean(F.reshape(x, (0, 0, -1)), axis=1), "batch_dot"),
    "mean of four axes": (lambda F, x: F.mean(x, axis=(1,)), "batch_dot"),
    "mean of another axis": (lambda F, x: F.mean(x, axis=2), "mean"),
    "mean of all other axes": (lambda F, x: F.mean(x, axis=1, exclude=True), "mean"),
    "mean that keeps the axis": (lambda F, x: F.mean(x, axis=1, keepdims=True), "mean"),
}


def passes(net, x):
    x.attach_grad()
    with autograd.record():
        output = net(x)
        (output * output).backward()
    return [one.asnumpy() for one in (output, x.grad)]


def traced_operators(net):
    return {node.operator for node in Graph.of(traced_graph(net)[1]).operators()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FASTER)
def test_graphs_of_faster_operators_equal_the_plain_ones(name, dtype):
    """T291."""
    function, operator = FASTER[name]
    x = mx.nd.array(np.random.RandomState(1).normal(0, 3, (4, 5, 2, 3)), dtype=dtype)
    net = nn.HybridSequential()
    net.add(nn.HybridLambda(function))
    net.hybridize()
    expected = passes(net, x)
    mxkit.nets.hybridize(net, fast=True)
    for found, plain in zip(passes(net, x), expected):
        np.testing.assert_allclose(found, plain, rtol=1e-12 if dtype == "float64" else 2e-6, atol=1e-6)
    assert operator in traced_operators(net)


def test_graphs_of_faster_operators_of_mx_np():
    """T291."""
    with mx.util.np_shape(), mx.util.np_array():
        x = mx.np.random.normal(0, 3, (4, 5))
        net = nn.HybridLambda(lambda F, x: F.np.tanh(x) + F.npx.sigmoid(x))
        mxkit.nets.hybridize(net, fast=True)
        found = passes(net, x)
        assert traced_operators(net) == {"Activation", "_npi_add"}
        net.hybridize(False)
        for one, plain in zip(found, passes(net, x)):
            np.testing.assert_allclose(one, plain, rtol=2e-6, atol=1e-6)


@needs_bfloat16
def test_amp_converts_the_plain_graph_of_a_fast_net():
    """T291: its lists keep a mean in float32."""
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3, flatten=False), nn.HybridLambda(lambda F, x: F.mean(x, axis=1)))
    net.initialize()
    mxkit.nets.hybridize(net, fast=True)
    x = mx.nd.ones((2, 5, 3))
    net(x)
    with MixedPrecision("bfloat16").applied(net):
        net(x)
        assert "mean" in traced_operators(net)
    net(x)
    assert "batch_dot" in traced_operators(net)
