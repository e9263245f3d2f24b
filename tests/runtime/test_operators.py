"""Operators whose results mxkit makes right: Dropout (T125), gradients in predict mode (T130, T137), Custom operators
beside oneDNN (T138), SELU (T139), and branches in graphs (T258)."""

from concurrent.futures import ThreadPoolExecutor
import json
import sys
import threading

from built_nets import hybrid_net, ready, stack
import mxkit
from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
from mxkit.runtime.graphs import _FASTER, _RULES, faster_graph, predicting_graph, repaired_graph
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import pytest

X = np.random.RandomState(0).randn(5, 3, 4, 4).astype("float32")
HEAD = np.random.RandomState(1).randn(*X.shape).astype("float32")
MEAN, VARIANCE, GAMMA, BETA = (np.array(row, "float32") for row in ([0.5, -1, 2], [4, 0.25, 9], [1, 2, 3], [0, 1, 2]))
SLOPE = (GAMMA / np.sqrt(VARIANCE + 1e-5)).reshape((1, 3, 1, 1))
FLAGS = {"eager": None, "hybridized": {}, "static": {"static_alloc": True, "static_shape": True}}
every_graph = pytest.mark.parametrize("how", FLAGS)
every_backward = pytest.mark.parametrize("backward", [True, False], ids=["backward()", "backward(train_mode=False)"])


def hybridized(net, how):
    if FLAGS[how] is not None:
        net.hybridize(**FLAGS[how])
    return net


def passes(function, x, head=None, train=False, backward=True):
    """Outputs of a recorded call, and the gradient of its input."""
    if isinstance(x, np.ndarray):
        x = mx.nd.array(x)
    x.attach_grad()
    with autograd.record(train_mode=train):
        output = function(x)
    output.backward(None if head is None else mx.nd.array(head), train_mode=backward)
    return output.asnumpy(), x.grad.asnumpy()


class OwnDropout(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.Dropout(x, p=0.5)


def dropouts_in(graph):
    return [node["attrs"] for node in json.loads(graph.tojson())["nodes"] if node["op"] == "Dropout"]


def recorded(function, x):
    x.attach_grad()
    with autograd.record():
        return autograd.get_symbol(function(x))


def test_every_dropout_draws_from_the_generator_that_a_seed_reaches():
    """T125."""
    graphs = []
    for make in (lambda: nn.Dropout(0.5), OwnDropout, lambda: nn.Dropout(0.5, axes=(1,))):
        graphs += [make()(mx.sym.var("x")), recorded(make(), mx.nd.ones((4, 6)))]
    for cell in (
        gluon.rnn.DropoutCell(0.5),
        gluon.rnn.ZoneoutCell(gluon.rnn.RNNCell(4), 0.5, 0.5),
        gluon.contrib.rnn.VariationalDropoutCell(gluon.rnn.RNNCell(4), 0.5, 0.5, 0.5),
    ):
        graphs.append(cell.unroll(2, mx.sym.var("x"), merge_outputs=True)[0])
    graphs.append(mx.sym.npx.dropout(mx.sym.var("x").as_np_ndarray(), p=0.5))
    graphs.append(recorded(lambda x: mx.npx.dropout(x, p=0.5), mx.np.ones((4, 6))))
    for graph in graphs:
        assert {attributes["cudnn_off"] for attributes in dropouts_in(graph)} == {"True"}
    (attributes,) = dropouts_in(mx.sym.Dropout(mx.sym.var("x"), p=0.5, cudnn_off=False))
    assert attributes["cudnn_off"] == "False"


def test_the_cpus_numbers_stay():
    """T125."""
    calls = [((), {"p": 0.5, "mode": "always", **more}) for more in ({}, {"cudnn_off": False}, {"cudnn_off": True})]
    drawn = []
    for positions, arguments in [*calls, ((0.5, "always", (), False), {})]:
        mxkit.seed_all(3)
        drawn.append(mx.nd.Dropout(mx.nd.ones((50,)), *positions, **arguments).asnumpy())
    for numbers in drawn[1:]:
        np.testing.assert_array_equal(numbers, drawn[0])


def stock(how="eager"):
    net = ready(nn.BatchNorm(in_channels=3), nn.HybridLambda(lambda F, x: x * 2))
    values = {"gamma": GAMMA, "beta": BETA, "running_mean": MEAN, "running_var": VARIANCE}
    for name, parameter in net.collect_params().items():
        parameter.set_data(mx.nd.array(next(value for end, value in values.items() if name.endswith(end))))
    return hybridized(net, how)


def imported(tmp_path):
    net = stock("hybridized")
    net(mx.nd.array(X))
    mxkit.export(net, tmp_path / "net")
    return mxkit.load_exported(tmp_path / "net")


@every_backward
@pytest.mark.parametrize("kind", [*FLAGS, "imported"])
def test_the_gradient_through_batch_norm_is_that_of_what_was_predicted(kind, backward, tmp_path):
    """T130."""
    net = imported(tmp_path) if kind == "imported" else stock(kind)
    predicted = net(mx.nd.array(X)).asnumpy()
    for _ in range(2):
        output, gradient = passes(net, X, HEAD, backward=backward)
    np.testing.assert_array_equal(output, predicted)
    np.testing.assert_allclose(gradient, 2 * HEAD * SLOPE, rtol=1e-5, atol=1e-6)
    normalized = (X - MEAN.reshape((1, 3, 1, 1))) / np.sqrt(VARIANCE + 1e-5).reshape((1, 3, 1, 1))
    expected = {"gamma": 2 * (HEAD * normalized).sum((0, 2, 3)), "beta": 2 * HEAD.sum((0, 2, 3))}
    for name, parameter in net.collect_params().items():
        end = next((end for end in expected if name.endswith(end)), None)
        if end:
            np.testing.assert_allclose(parameter.grad().asnumpy(), expected[end], rtol=1e-4, atol=1e-4)
        elif name.endswith("running_mean"):
            np.testing.assert_array_equal(parameter.data().asnumpy(), MEAN)
    # training still normalizes by the batch and moves the statistics
    output, _ = passes(net, X, train=True)
    np.testing.assert_allclose(output.mean((0, 2, 3)) / 2, BETA, atol=1e-4)
    moved = next(parameter for name, parameter in net.collect_params().items() if name.endswith("running_mean"))
    np.testing.assert_allclose(moved.data().asnumpy(), 0.9 * MEAN + 0.1 * X.mean((0, 2, 3)), rtol=1e-4)


def test_through_mxkits_functions_and_other_names_of_the_operator():
    """T130."""
    for how in ("eager", "hybridized"):
        net = stock(how)
        found = mxkit.gradients.grad(lambda x, net=net: net(x))(mx.nd.array(X))
        np.testing.assert_allclose(found.asnumpy(), 2 * SLOPE * np.ones_like(X), rtol=1e-5)
        x, features = mx.nd.array(X), mxkit.Features(net, ["0"])
        x.attach_grad()
        with mxkit.gradients.mode(record=True):
            output = features(x)["0"]
        output.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), SLOPE * np.ones_like(X), rtol=1e-5)
    others = [mx.nd.array(value) for value in (GAMMA, BETA, MEAN, VARIANCE)]
    np_others = [value.as_np_ndarray() for value in others]
    for call in (
        lambda x: mx.nd.BatchNorm(x, *others, 1e-5, 0.9, False, False),
        lambda x: mx.npx.batch_norm(x.as_np_ndarray(), *np_others, eps=1e-5, fix_gamma=False),
    ):
        np.testing.assert_allclose(passes(call, X)[1], SLOPE * np.ones_like(X), rtol=1e-5)


def test_a_graph_that_predicts_right_is_not_made_twice():
    x = mx.sym.var("x")
    average = mx.sym.Pooling(mx.sym.exp(x), kernel=(2, 2), pool_type="avg")
    assert predicting_graph(average, on_gpu=False) == (None, False)
    assert predicting_graph(mx.sym.Pooling(x, kernel=(2, 2)), on_gpu=True) == (None, False)  # cuDNN's is right
    norm = mx.sym.BatchNorm(x, name="norm", use_global_stats=True)
    assert predicting_graph(norm, on_gpu=False) == (None, False)
    found, in_training_mode = predicting_graph(mx.sym.BatchNorm(x, name="norm", eps=1e-4), on_gpu=False)
    assert found.list_inputs() == norm.list_inputs()
    assert found.attr_dict()["norm"] == {"use_global_stats": "True", "eps": "0.0001"}
    assert not in_training_mode
    np_graph = mx.sym.npx.batch_norm(*[mx.sym.var(name).as_np_ndarray() for name in "abcde"])
    assert isinstance(predicting_graph(np_graph, on_gpu=True)[0], mx.sym.numpy._Symbol)


CHANGED = {
    "Concat": lambda x: mx.sym.concat(x, x, dim=1),
    "slice": lambda x: mx.sym.slice(x, begin=(None, 1), end=(None, 2)),
    "Reshape": lambda x: mx.sym.reshape(x, (-1, 3)),
    "LeakyReLU": lambda x: mx.sym.LeakyReLU(x, act_type="selu"),
    "_rnn_param_concat": lambda x: mx.sym.RNN(
        x, mx.sym._internal._rnn_param_concat(x, x, dim=0), x, mode="gru", state_size=2, num_layers=1
    ),
    "reshape_like": lambda x: mx.sym.reshape_like(x, x),
    "_np_reshape": lambda x: mx.sym.np.reshape(x.as_np_ndarray(), (-1, 3)),
    "_npx_reshape": lambda x: mx.sym.npx.reshape(x.as_np_ndarray(), (-1, 3)),
    **{name: getattr(mx.sym, name) for name in ("softmax", "log_softmax", "softmin", "tanh", "sigmoid")},
    "SequenceLast": mx.sym.SequenceLast,
    **{
        name: lambda x, name=name: getattr(mx.sym, name)(x, x, use_sequence_length=True)
        for name in ("SequenceMask", "SequenceReverse")
    },
    "mean": lambda x: mx.sym.mean(x, axis=1),
    "_npi_tanh": lambda x: mx.sym.np.tanh(x.as_np_ndarray()),
    "_npx_sigmoid": lambda x: mx.sym.npx.sigmoid(x.as_np_ndarray()),
}


def test_every_change_of_a_graph_keeps_the_casts_of_amp():
    """MXNet's `tojson` leaves them out: nets with such an operator trained in float32 under `amp`."""
    assert set(CHANGED) == {*_RULES, *_FASTER}
    for name, make in CHANGED.items():
        graph = make(mx.sym.amp_cast(mx.sym.var("x"), dtype="float16"))
        changed = (repaired_graph if name in _RULES else faster_graph)(graph)
        assert changed is not graph
        assert '"op": "amp_cast"' in legacy(changed).tojson(remove_amp_cast=False), name
    predicting, _ = predicting_graph(mx.sym.Dropout(mx.sym.amp_cast(mx.sym.var("x"), dtype="float16")), on_gpu=False)
    assert "amp_cast" in predicting.tojson(remove_amp_cast=False)


def largest_of_two_by_two(x, head):
    """Gradient of 2 x 2 max pooling, by NumPy."""
    samples, channels, height, width = x.shape
    windows = x.reshape(samples, channels, height // 2, 2, width // 2, 2).transpose(0, 1, 2, 4, 3, 5)
    flat = windows.reshape(*windows.shape[:4], 4)
    ours = (flat == flat.max(-1, keepdims=True)) * head[..., None]
    return ours.reshape(windows.shape).transpose(0, 1, 2, 4, 3, 5).reshape(x.shape)


@every_backward
@every_graph
@pytest.mark.parametrize("channels", [3, 8])
def test_the_gradient_of_max_pooling_in_predict_mode(how, channels, backward):
    """T137."""
    random = np.random.RandomState(channels)
    x, head = random.randn(4, channels, 6, 6).astype("float32"), random.randn(4, channels, 3, 3).astype("float32")
    pool = hybridized(nn.MaxPool2D(2), how)
    for batch in (x, -x):  # nothing may be left of the first one
        expected = largest_of_two_by_two(batch, head)
        np.testing.assert_array_equal(passes(pool, batch, head, backward=backward)[1], expected)


def test_max_pooling_of_npx_and_in_mxkits_functions():
    """T137."""
    x = np.random.RandomState(0).randn(4, 8, 6, 6).astype("float32")
    expected = largest_of_two_by_two(x, np.ones((4, 8, 3, 3)))
    found = mxkit.gradients.grad(nn.MaxPool2D(2))(mx.nd.array(x))
    np.testing.assert_array_equal(found.asnumpy(), expected)
    pool = lambda a: mx.npx.pooling(a, kernel=(2, 2), stride=(2, 2), pool_type="max")  # noqa: E731
    np.testing.assert_array_equal(passes(pool, mx.np.array(x))[1], expected)


@pytest.mark.parametrize("how", ["hybridized", "static"])
def test_a_graph_with_max_pooling_predicts_as_without_gradients(how):
    """T137."""
    x = mx.nd.array(np.random.RandomState(0).randn(6, 8, 6, 6))
    layers = {"norm": nn.BatchNorm(), "drop": nn.Dropout(0.5), "pool": nn.MaxPool2D(2), "dense": nn.Dense(3)}
    net = hybrid_net(lambda net, F, x: net.dense(net.pool(net.drop(net.norm(x)))), **layers)
    ready(net, initializer=mx.init.Normal(1))
    for _ in range(2):  # statistics move
        passes(net, x, train=True)
    found = []
    for flags in (None, FLAGS[how]):
        net.hybridize(flags is not None, **(flags or {}))
        predicted = net(x).asnumpy()
        output, gradient = passes(net, x)
        np.testing.assert_allclose(output, predicted, rtol=1e-5, atol=1e-5)
        found.append([gradient, net.norm.gamma.grad().asnumpy(), net.norm.running_mean.data().asnumpy()])
    for eager, graph in zip(*found):
        np.testing.assert_allclose(eager, graph, rtol=1e-4, atol=1e-4)
    step = np.random.RandomState(1).randn(*x.shape).astype("float32")
    slope = sum(net(x + sign * 1e-3 * mx.nd.array(step)).sum().asscalar() * sign for sign in (1, -1)) / 2e-3
    np.testing.assert_allclose((found[1][0] * step).sum(), slope, rtol=0.02)


def test_operators_of_a_graph_in_training_mode_predict():
    """T137."""
    x = mx.sym.LeakyReLU(mx.sym.var("x"), act_type="rrelu", lower_bound=0.2, name="leaky")[0]
    states = [mx.sym.var(name) for name in ("parameters", "state")]
    x = mx.sym.RNN(x, *states, mode="gru", state_size=2, num_layers=2, p=0.5, name="rnn")
    assert [predicting_graph(x, on_gpu)[1] for on_gpu in (False, True)] == [True, True]
    always = mx.sym.Dropout(x, p=0.5, mode="always", name="always")
    pooled = mx.sym.Pooling(mx.sym.Dropout(always, name="drop"), kernel=(2, 2), name="pool")
    found, in_training_mode = predicting_graph(pooled, on_gpu=False)
    assert in_training_mode
    given = found.attr_dict()
    assert given["leaky"]["act_type"] == "leaky"
    assert float(given["leaky"]["slope"]) == pytest.approx((0.2 + 0.334) / 2)
    assert [given[name]["p"] for name in ("rnn", "drop", "always")] == ["0", "0", "0.5"]


@every_graph
def test_batch_norm_with_relu(how):
    """T137."""
    x = mx.nd.array(np.random.RandomState(0).randn(4, 8, 3, 3))
    found = []
    for layers in ([nn.BatchNormReLU()], [nn.BatchNorm(), nn.Activation("relu")]):
        net = ready(stack(*layers))
        net(x)
        hybridized(net, how)
        found.append(mxkit.gradients.grad(lambda a, net=net: net(a) * a)(x).asnumpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@every_graph
@pytest.mark.parametrize("kind", [gluon.rnn.LSTM, gluon.rnn.GRU])
def test_recurrent_layers_drop_nothing_while_they_predict(kind, how):
    """T137."""
    # MXNet's own kernels, which compute float64 on a CPU, drop where a gradient is recorded
    x = mx.nd.array(np.random.RandomState(0).randn(3, 5, 4), dtype="float64")
    net = ready(kind(6, num_layers=2, dropout=0.9, input_size=4, dtype="float64"))
    predicted = net(x).asnumpy()
    hybridized(net, how)
    for train in (False, True, False):
        output, gradient = passes(net, x, train=train)
        assert np.isfinite(gradient).all()
        if not train:
            np.testing.assert_allclose(output, predicted, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:register_op_hook is experimental")
def test_hooks_of_operators_see_a_recorded_prediction():
    seen = []
    net = stock("hybridized")
    net(mx.nd.array(X))
    net.register_op_hook(lambda name, operator, array: seen.append(name))
    with mxkit.gradients.mode(record=True):
        net(mx.nd.array(X)).wait_to_read()
    assert b"batchnorm" in seen[0]


class Cut(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        with mx.util.np_shape(True):  # MXNet's threads have it off (T173)
            self.assign(out_data[0], req[0], in_data[0].clip(0, 6))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        with mx.util.np_shape(True):
            self.assign(in_grad[0], req[0], out_grad[0] * (in_data[0] > 0) * (in_data[0] < 6))


class CutProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Cut()


mx.operator.register("_mxkit_test_cut")(CutProp)


def custom_cut(F, x):
    return of_kind(F.Custom(legacy(x), op_type="_mxkit_test_cut"), is_numpy(x))


def test_a_custom_operator_in_the_graph_is_refused():
    """T137."""
    graph = mx.sym.Pooling(custom_cut(mx.sym, mx.sym.var("x")), kernel=(2, 2))
    with pytest.raises(NotImplementedError, match=r"MXNet's gradient of Pooling is wrong, .*net.hybridize\(False\)"):
        predicting_graph(graph, on_gpu=False)
    assert predicting_graph(graph, on_gpu=True) == (None, False)


@pytest.mark.parametrize("channels", [8, 16])
@pytest.mark.parametrize("train", [False, True])
def test_a_custom_operator_beside_convolutions(channels, train, kind):
    """T138."""
    x = kind.of(np.random.RandomState(0).rand(4, 1, 12, 12))
    cut = mxkit.gradients.custom_gradient(lambda a: a.clip(0, 6), lambda dy, a, y: dy * (a > 0) * (a < 6))
    found = []
    for function in (lambda F, a: (F.np if kind.numpy else F).clip(a, 0, 6), lambda F, a: cut(a), custom_cut):
        mxkit.seed_all(0)
        with kind.switches():
            relu, last = nn.Activation("relu"), nn.Conv2D(channels, 3)
            net = ready(nn.Conv2D(channels, 3), relu, nn.HybridLambda(function), last)
            for flags in (None, {}, {"static_alloc": True}):
                net.hybridize(flags is not None, **(flags or {}))
                found += [passes(net, x, train=True) if train else (net(x).asnumpy(),) for _ in range(4)]
    for arrays in found[1:]:
        for array, expected, rtol in zip(arrays, found[0], (1e-4, 1e-3)):
            np.testing.assert_allclose(array, expected, rtol=rtol, atol=rtol / 10)


def test_a_custom_operator_of_an_array_without_axes():
    """T138."""
    with switches(True):
        x = mx.np.array(7.0)
        cut = nn.HybridLambda(custom_cut)
        for hybridized in (False, True):
            cut.hybridize(hybridized)
            output, gradient = passes(cut, x)
            assert (output, gradient) == (6, 0)


def test_a_graph_that_begins_with_a_custom_operator():
    """T138."""
    convolution, cut = nn.Conv2D(16, 3), nn.HybridLambda(custom_cut)
    convolution.initialize()
    cut.hybridize()
    x = mx.nd.array(np.random.RandomState(0).rand(4, 1, 12, 12))
    expected = convolution(x).asnumpy().clip(0, 6)
    for _ in range(6):
        np.testing.assert_array_equal(cut(convolution(x)).asnumpy(), expected)


@pytest.mark.parametrize("train", [True, False])
@every_graph
def test_the_gradient_of_selu(how, train):
    """T139."""
    x = np.linspace(-3, 3, 20).astype("float32")
    output, gradient = passes(hybridized(nn.SELU(), how), x, train=train)
    alpha, scale = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017, arXiv:1706.02515
    np.testing.assert_allclose(output, scale * np.where(x > 0, x, alpha * np.expm1(x)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, scale * np.where(x > 0, 1, alpha * np.exp(x)), rtol=1e-5)


@pytest.mark.parametrize("shape", [(4, 16), (4, 16, 5), (2, 16, 3, 5)])
@pytest.mark.parametrize("slopes", [1, 16])
@every_graph
def test_the_gradients_of_prelu_behind_another_layer(how, slopes, shape):
    """T287."""
    random = np.random.RandomState(0)
    x, weights = random.normal(size=shape).astype("float32"), random.normal(size=shape).astype("float32")
    x[0, :3] = 0
    layer = nn.PReLU(alpha_initializer=mx.init.Uniform(0.5), in_channels=slopes)
    net = ready(stack(nn.HybridLambda(lambda F, x: x * 2), layer))
    alpha = layer.alpha.data().asnumpy().reshape(-1, *[1] * (len(shape) - 2))
    net = hybridized(net, how)
    given = mx.nd.array(x)
    given.attach_grad()
    with mx.autograd.record():
        output = net(given)
        total = (output * mx.nd.array(weights)).sum()
    total.backward()
    np.testing.assert_allclose(output.asnumpy(), 2 * x * np.where(x > 0, 1, alpha), rtol=1e-6)
    np.testing.assert_allclose(given.grad.asnumpy(), 2 * weights * np.where(x > 0, 1, alpha), rtol=1e-5)
    slope = (np.minimum(2 * x, 0) * weights).sum(axis=tuple(axis for axis in range(len(shape)) if axis != 1))
    slope = slope if slopes == 16 else slope.sum(keepdims=True)
    np.testing.assert_allclose(layer.alpha.grad().asnumpy(), slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("before", "shape", "reverse"),
    [
        *(((5, 6), shape, False) for shape in ((4, 3, 2), (4, 9), (4, -1), (0, 3), (-3, 2))),
        ((5, 6), [7, 0], True),
        # codes that leave an axis over
        *(((2, 3, 4, 6), shape, reverse) for shape in ((-3, 0), (0, -3)) for reverse in (False, True)),
    ],
)
def test_reshape_keeps_the_number_of_elements(before, shape, reverse):
    """T252."""
    x = mx.nd.ones(before)
    with pytest.raises(ValueError, match=rf"shape .* has {x.size} elements; shape=.* would have \d+, "):
        mx.nd.reshape(x, shape=shape, reverse=reverse)
    graph = mx.sym.reshape(mx.sym.var("x", dtype="float32"), shape=shape, reverse=reverse)
    with pytest.raises(mx.MXNetError, match=r"reshape|Size\(\) == "):
        graph.bind(mx.cpu(), {"x": x}).forward()[0].asnumpy()
    block = mx.gluon.SymbolBlock(graph, mx.sym.var("x", dtype="float32"))
    block.hybridize()
    with pytest.raises(mx.MXNetError, match=r"reshape|Size\(\) == "):
        block(x).asnumpy()


@pytest.mark.parametrize(
    ("shape", "reverse", "expected"),
    [
        ((0, -4, -1, 3, 0), False, (4, 2, 3, 5)),
        ((0, -1), False, (4, 30)),
        ((-2,), False, (4, 6, 5)),
        ((-3, 5), False, (24, 5)),
        ((-4, 2, -1, 0, 5), False, (2, 2, 6, 5)),
        ((0, 6, -2), False, (4, 6, 5)),
        ((-4, 2, 2, -2), False, (2, 2, 6, 5)),
        ((12, -1, -2), False, (12, 2, 5)),
        ((8, -1), False, (8, 15)),
        ((-1, 0), True, (24, 5)),
        ((2, -1, 0), True, (2, 12, 5)),
        ((10, 12), False, (10, 12)),
    ],
)
def test_all_codes_of_reshape_mean_the_same_everywhere(shape, reverse, expected):
    """T252."""
    x = mx.nd.arange(120).reshape((4, 6, 5))
    graph = mx.sym.reshape(mx.sym.var("x", dtype="float32"), shape=shape, reverse=reverse)
    block = mx.gluon.SymbolBlock(graph, mx.sym.var("x", dtype="float32"))
    block.hybridize()
    for found in (mx.nd.reshape(x, shape, reverse=reverse), block(x), graph.bind(mx.cpu(), {"x": x}).forward()[0]):
        np.testing.assert_array_equal(found.asnumpy(), x.asnumpy().reshape(expected))


@pytest.mark.long
def test_weights_are_read_in_their_turn():
    """T253."""
    # without the repair 1 of 60 reads was wrong
    weight, x = mx.nd.random.uniform(shape=(512, 256, 3, 3)), mx.nd.random.uniform(shape=(1, 256, 4, 4))
    expected = weight.asnumpy()
    for _ in range(300):
        layer = ready(mx.gluon.nn.Conv2D(512, 3, padding=1, in_channels=256, use_bias=False))
        layer.weight.set_data(weight)
        mx.nd.waitall()
        layer(x)
        for _ in range(3):
            np.testing.assert_array_equal(layer.weight.data().asnumpy(), expected)


def test_a_read_weight_is_a_copy_of_its_own_and_records_nothing():
    """T253."""
    weight = mx.nd.ones((2, 3))
    weight.attach_grad()
    with mx.autograd.record():
        y = (weight * 2).sum()
        weight.asnumpy()[:] = 7
    y.backward()
    assert weight.asnumpy().tolist() == [[1.0] * 3] * 2
    assert weight.grad.asnumpy().tolist() == [[2.0] * 3] * 2


def test_callbacks_of_functions_outlive_python():
    """T254."""
    # DGL's GATConv ends with exit code 255 without it; DGL is not installed here
    assert sys.getrefcount(mx.autograd.Function._registry.ref_holder) >= 3


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv1D, (2, 4, 9)), (nn.Conv1DTranspose, (2, 4, 9)), (nn.Conv2D, (2, 4, 9, 9)), (nn.Conv3D, (2, 4, 5, 5, 5))],
)
def test_weights_are_set_after_a_prediction(layer, shape):
    """T255."""
    block, x = layer(16, 3, in_channels=4), mx.nd.ones(shape)
    block.initialize()
    block(x).wait_to_read()
    block.weight.set_data(mx.nd.full(block.weight.shape, 0.5))
    assert (block.weight.data().asnumpy() == 0.5).all()
    assert np.allclose(block(x).asnumpy().max(), 4 * 0.5 * 3 ** (len(shape) - 2))


def test_threads_trace_a_new_block_and_plan_other_shapes_in_turn():
    """T200."""
    inputs = [mx.nd.random.normal(shape=(size, 3, 4, 4)) for size in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(25):
            net = ready(stack(*[nn.Conv2D(3, 1, in_channels=3) for _ in range(5)]))
            expected = [net(x).asnumpy() for x in inputs]
            net.hybridize()
            together = threading.Barrier(4)

            def called(turn, net=net, together=together):
                together.wait()
                return [net(x).asnumpy() for x in inputs[turn:] + inputs[:turn]]

            for turn, found in enumerate(pool.map(called, range(4))):
                for one, right in zip(found, expected[turn:] + expected[:turn]):
                    np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-6)


class Branching(gluon.HybridBlock):
    """A branch a sign: both read `h`, each has a layer of its own, and the condition is of `h` too."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.below, self.left, self.right = (nn.Dense(3, in_units=3, prefix=f"{name}_") for name in "abc")

    def hybrid_forward(self, F, x):
        h = self.below(x)
        first, second = F.contrib.cond(
            F.sum(h) > 0, lambda: [self.left(h) * 2, h], lambda: [self.right(h) * 3, F.exp(x)]
        )
        return first + second * 0.5


def test_both_branches_of_a_graph_have_their_gradients():
    """T258."""
    ends = {}
    for static in (None, False, True):
        mxkit.seed_all(0)
        net = ready(Branching(), initializer=mx.init.Uniform(0.5))
        if static is not None:
            net.hybridize(static_alloc=static)
        ends[static] = []
        for sign in (1, -1, 1, -1):
            x = mx.nd.array(sign * np.arange(1, 7).reshape(2, 3))
            x.attach_grad()
            net.collect_params().zero_grad()
            dirt = [mx.nd.full((size,), 1e9) for size in (1, 2, 3, 6, 9, 16)]
            mx.nd.waitall()
            del dirt
            with autograd.record():
                y = net(x)
            y.backward()
            grads = [parameter.grad() for parameter in net.collect_params().values()]
            ends[static] += [value.asnumpy() for value in (y, x.grad, *grads)]
    for static in (False, True):
        np.testing.assert_equal(list(ends[static]), list(ends[None]))
