"""Dropout that a seed reaches on a GPU (T125); BatchNorm's and max pooling's gradients in predict mode (T130, T137)."""

import json

import mxkit
from mxkit.runtime.operators import predicting_graph
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import pytest

X = np.random.RandomState(0).randn(5, 3, 4, 4).astype("float32")
HEAD = np.random.RandomState(1).randn(*X.shape).astype("float32")
MEAN, VARIANCE, GAMMA, BETA = (np.array(one, "float32") for one in ([0.5, -1, 2], [4, 0.25, 9], [1, 2, 3], [0, 1, 2]))


class OwnDropout(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.Dropout(x, p=0.5)


class OwnBatchNorm(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.gamma = self.params.get("gamma", shape=(3,), init="ones")
            self.beta = self.params.get("beta", shape=(3,), init="zeros")
            self.running_mean = self.params.get("running_mean", shape=(3,), differentiable=False)
            self.running_var = self.params.get("running_var", shape=(3,), differentiable=False)

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        return F.BatchNorm(x, gamma, beta, running_mean, running_var, fix_gamma=False, eps=1e-5)


def dropouts_in(graph):
    return [node["attrs"] for node in json.loads(graph.tojson())["nodes"] if node["op"] == "Dropout"]


@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.5), OwnDropout, lambda: nn.Dropout(0.5, axes=(1,))])
def test_t125_dropout_draws_from_the_generator_that_a_seed_reaches(make):
    traced = make()(mx.sym.var("x"))
    x = mx.nd.ones((4, 6))
    x.attach_grad()
    with autograd.record():
        recorded = autograd.get_symbol(make()(x))
    for graph in (traced, recorded):
        (attributes,) = dropouts_in(graph)
        assert attributes["cudnn_off"] == "True"


def test_t125_dropout_of_cells_and_of_npx():
    cells = [
        gluon.rnn.DropoutCell(0.5),
        gluon.rnn.ZoneoutCell(gluon.rnn.RNNCell(4), 0.5, 0.5),
        gluon.contrib.rnn.VariationalDropoutCell(gluon.rnn.RNNCell(4), 0.5, 0.5, 0.5),
    ]
    graphs = [cell.unroll(2, mx.sym.var("x"), merge_outputs=True)[0] for cell in cells]
    graphs.append(mx.sym.npx.dropout(mx.sym.var("x").as_np_ndarray(), p=0.5))
    x = mx.np.ones((4, 6))
    x.attach_grad()
    with autograd.record():
        graphs.append(autograd.get_symbol(mx.npx.dropout(x, p=0.5)))
    for graph in graphs:
        assert {attributes["cudnn_off"] for attributes in dropouts_in(graph)} == {"True"}


def test_t125_cudnns_generator_is_there_by_name_and_the_cpus_numbers_stay():
    (attributes,) = dropouts_in(mx.sym.Dropout(mx.sym.var("x"), p=0.5, cudnn_off=False))
    assert attributes["cudnn_off"] == "False"
    drawn = []
    for arguments in ({}, {"cudnn_off": False}, {"cudnn_off": True}):
        mxkit.seed_all(3)
        drawn.append(mx.nd.Dropout(mx.nd.ones((50,)), p=0.5, mode="always", **arguments).asnumpy())
    mxkit.seed_all(3)
    drawn.append(mx.nd.Dropout(mx.nd.ones((50,)), 0.5, "always", (), False).asnumpy())  # by position
    for one in drawn[1:]:
        np.testing.assert_array_equal(one, drawn[0])


def stock(hybridize=None):
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=3), nn.HybridLambda(lambda F, x: x * 2))
    return filled(net, hybridize)


def filled(net, hybridize=None):
    net.initialize()
    values = {"gamma": GAMMA, "beta": BETA, "running_mean": MEAN, "running_var": VARIANCE}
    for name, parameter in net.collect_params().items():
        parameter.set_data(mx.nd.array(next(value for end, value in values.items() if name.endswith(end))))
    if hybridize is not None:
        net.hybridize(**hybridize)
    return net


def inside_a_plain_block():
    net = nn.Sequential()
    net.add(stock({}))
    return net


def imported(tmp_path):
    net = stock({})
    net(mx.nd.array(X))
    mxkit.export(net, tmp_path / "net")
    return mxkit.load_exported(tmp_path / "net")


NETS = {
    "as it is": stock,
    "hybridized": lambda: stock({}),
    "static": lambda: stock({"static_alloc": True, "static_shape": True}),
    "in a plain block": inside_a_plain_block,
    "its own F.BatchNorm": lambda: filled(OwnBatchNorm()),
    "its own, hybridized": lambda: filled(OwnBatchNorm(), {}),
}


@pytest.mark.parametrize("train_mode", [True, False], ids=["backward()", "backward(train_mode=False)"])
@pytest.mark.parametrize("kind", [*NETS, "imported"])
def test_t130_the_gradient_through_batch_norm_is_that_of_what_was_predicted(kind, train_mode, tmp_path):
    net = imported(tmp_path) if kind == "imported" else NETS[kind]()
    x, head = mx.nd.array(X), mx.nd.array(HEAD)
    predicted = net(x).asnumpy()
    x.attach_grad()
    for _ in range(2):
        with autograd.record(train_mode=False):
            output = net(x)
        output.backward(head, train_mode=train_mode)
    np.testing.assert_array_equal(output.asnumpy(), predicted)
    twice = 1 if "own" in kind else 2
    slope = (GAMMA / np.sqrt(VARIANCE + 1e-5)).reshape((1, 3, 1, 1))
    np.testing.assert_allclose(x.grad.asnumpy(), twice * HEAD * slope, rtol=1e-5, atol=1e-6)
    normalized = (X - MEAN.reshape((1, 3, 1, 1))) / np.sqrt(VARIANCE + 1e-5).reshape((1, 3, 1, 1))
    expected = {
        "gamma": twice * (HEAD * normalized).sum((0, 2, 3)),
        "beta": twice * HEAD.sum((0, 2, 3)),
    }
    for name, parameter in net.collect_params().items():
        for end, value in expected.items():
            if name.endswith(end):
                np.testing.assert_allclose(parameter.grad().asnumpy(), value, rtol=1e-4, atol=1e-4)
        if name.endswith("running_mean"):
            np.testing.assert_array_equal(parameter.data().asnumpy(), MEAN)


@pytest.mark.parametrize("kind", NETS)
def test_t130_training_still_normalizes_by_the_batch_and_moves_the_statistics(kind):
    net = NETS[kind]()
    x = mx.nd.array(X)
    with autograd.record(train_mode=False):
        net(x)
    with autograd.record():
        output = net(x)
    output.backward()
    means = output.asnumpy().mean((0, 2, 3)) / (1 if "own" in kind else 2)
    np.testing.assert_allclose(means, BETA, atol=1e-4)
    moved = next(one for name, one in net.collect_params().items() if name.endswith("running_mean"))
    np.testing.assert_allclose(moved.data().asnumpy(), 0.9 * MEAN + 0.1 * X.mean((0, 2, 3)), rtol=1e-4)


def test_t130_through_mxkits_functions_and_other_names_of_the_operator():
    slope = 2 * (GAMMA / np.sqrt(VARIANCE + 1e-5)).reshape((1, 3, 1, 1)) * np.ones_like(X)
    for net in (stock(), stock({})):
        found = mxkit.gradients.grad(lambda x, net=net: net(x))(mx.nd.array(X))
        np.testing.assert_allclose(found.asnumpy(), slope, rtol=1e-5)
        features = mxkit.Features(net, ["0"])
        x = mx.nd.array(X)
        x.attach_grad()
        with mxkit.mode(record=True):
            output = features(x)["0"]
        output.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), slope / 2, rtol=1e-5)
    arrays = [mx.nd.array(one) for one in (X, GAMMA, BETA, MEAN, VARIANCE)]
    calls = {
        "by position": lambda: mx.nd.BatchNorm(*arrays, 1e-5, 0.9, False, False),
        "npx": lambda: mx.npx.batch_norm(*[one.as_np_ndarray() for one in arrays], eps=1e-5, fix_gamma=False),
    }
    for name, call in calls.items():
        arrays[0].attach_grad()
        with autograd.record(train_mode=False):
            output = call()
        output.backward()
        np.testing.assert_allclose(arrays[0].grad.asnumpy(), slope / 2, rtol=1e-5, err_msg=name)


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


def largest_of_two_by_two(x, head):
    """Gradient of 2 x 2 max pooling, by NumPy."""
    samples, channels, height, width = x.shape
    windows = x.reshape(samples, channels, height // 2, 2, width // 2, 2).transpose(0, 1, 2, 4, 3, 5)
    flat = windows.reshape(*windows.shape[:4], 4)
    ours = (flat == flat.max(-1, keepdims=True)) * head[..., None]
    return ours.reshape(windows.shape).transpose(0, 1, 2, 4, 3, 5).reshape(x.shape)


FLAGS = {"as it is": None, "hybridized": {}, "static": {"static_alloc": True, "static_shape": True}}


@pytest.mark.parametrize("train_mode", [True, False], ids=["backward()", "backward(train_mode=False)"])
@pytest.mark.parametrize("how", FLAGS)
@pytest.mark.parametrize("channels", [3, 8])
def test_t137_the_gradient_of_max_pooling_in_predict_mode(how, channels, train_mode):
    random = np.random.RandomState(channels)
    x, head = random.randn(4, channels, 6, 6).astype("float32"), random.randn(4, channels, 3, 3).astype("float32")
    net = nn.HybridSequential()
    net.add(nn.MaxPool2D(2))
    if FLAGS[how] is not None:
        net.hybridize(**FLAGS[how])
    for sign in (1, -1):  # a second batch, so that nothing can be left of the first
        array = mx.nd.array(sign * x)
        array.attach_grad()
        with autograd.record(train_mode=False):
            output = net(array)
            assert not autograd.is_training()
        output.backward(mx.nd.array(head), train_mode=train_mode)
        np.testing.assert_array_equal(array.grad.asnumpy(), largest_of_two_by_two(sign * x, head))


def test_t137_max_pooling_of_npx_and_in_mxkits_functions():
    random = np.random.RandomState(0)
    x = random.randn(4, 8, 6, 6).astype("float32")
    expected = largest_of_two_by_two(x, np.ones((4, 8, 3, 3)))
    found = mxkit.gradients.grad(nn.MaxPool2D(2))(mx.nd.array(x))
    np.testing.assert_array_equal(found.asnumpy(), expected)
    array = mx.np.array(x)
    array.attach_grad()
    with autograd.record(train_mode=False):
        output = mx.npx.pooling(array, kernel=(2, 2), stride=(2, 2), pool_type="max")
    output.backward()
    np.testing.assert_array_equal(array.grad.asnumpy(), expected)


class Everything(gluon.HybridBlock):
    """What behaves otherwise in training, beside max pooling."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm, self.drop, self.pool = nn.BatchNorm(), nn.Dropout(0.5), nn.MaxPool2D(2)
            self.dense = nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.dense(self.pool(self.drop(self.norm(x))))


@pytest.mark.parametrize("how", ["hybridized", "static"])
def test_t137_a_graph_with_max_pooling_predicts_as_without_gradients(how):
    x = mx.nd.array(np.random.RandomState(0).randn(6, 8, 6, 6))
    net = Everything()
    net.initialize(mx.init.Normal(1))
    for _ in range(2):  # statistics move
        with autograd.record():
            loss = net(x).sum()
        loss.backward()
    found = []
    for flags in (None, FLAGS[how]):
        net.hybridize(flags is not None, **(flags or {}))
        predicted = net(x).asnumpy()
        x.attach_grad()
        with autograd.record(train_mode=False):
            output = net(x)
        output.backward()
        np.testing.assert_allclose(output.asnumpy(), predicted, rtol=1e-5, atol=1e-5)
        found.append([x.grad.asnumpy(), net.norm.gamma.grad().asnumpy(), net.norm.running_mean.data().asnumpy()])
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    step = np.random.RandomState(1).randn(*x.shape).astype("float32")
    slope = sum(net(x + sign * 1e-3 * mx.nd.array(step)).sum().asscalar() * sign for sign in (1, -1)) / 2e-3
    np.testing.assert_allclose((found[1][0] * step).sum(), slope, rtol=0.02)


def test_t137_what_a_graph_in_training_mode_must_not_do():
    x = mx.sym.LeakyReLU(mx.sym.var("x"), act_type="rrelu", lower_bound=0.2, name="leaky")[0]
    states = [mx.sym.var(name) for name in ("parameters", "state")]
    x = mx.sym.RNN(x, *states, mode="gru", state_size=2, num_layers=2, p=0.5, name="rnn")
    always = mx.sym.Dropout(x, p=0.5, mode="always", name="always")
    pooled = mx.sym.Pooling(mx.sym.Dropout(always, name="drop"), kernel=(2, 2), name="pool")
    found, in_training_mode = predicting_graph(pooled, on_gpu=False)
    assert in_training_mode
    given = found.attr_dict()
    assert given["leaky"]["act_type"] == "leaky"
    assert float(given["leaky"]["slope"]) == pytest.approx((0.2 + 0.334) / 2)
    assert [given[name]["p"] for name in ("rnn", "drop", "always")] == ["0", "0", "0.5"]


def test_t137_recurrent_layers_in_a_graph_run_in_training_mode():
    rnn = mx.sym.RNN(*[mx.sym.var(name) for name in "abc"], mode="gru", state_size=2, num_layers=2)
    for on_gpu in (False, True):
        assert predicting_graph(rnn, on_gpu)[1]


def test_t137_a_custom_operator_in_the_graph_is_refused():
    graph = mx.sym.Pooling(mx.sym.Custom(mx.sym.var("x"), op_type="_mxkit_test_any"), kernel=(2, 2))
    with pytest.raises(NotImplementedError, match=r"MXNet's gradient of Pooling is wrong, .*net.hybridize\(False\)"):
        predicting_graph(graph, on_gpu=False)
    assert predicting_graph(graph, on_gpu=True) == (None, False)


class AnyProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        raise AssertionError("not computed here")


mx.operator.register("_mxkit_test_any")(AnyProp)


@pytest.mark.parametrize("how", FLAGS)
def test_t137_batch_norm_with_relu(how):
    x = mx.nd.array(np.random.RandomState(0).randn(4, 8, 3, 3))
    found = []
    for layers in ([nn.BatchNormReLU()], [nn.BatchNorm(), nn.Activation("relu")]):
        net = nn.HybridSequential()
        net.add(*layers)
        net.initialize()
        net(x)
        if FLAGS[how] is not None:
            net.hybridize(**FLAGS[how])
        found.append(mxkit.gradients.grad(lambda a, net=net: net(a) * a)(x).asnumpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", FLAGS)
@pytest.mark.parametrize("kind", [gluon.rnn.LSTM, gluon.rnn.GRU])
def test_t137_recurrent_layers_drop_nothing_while_they_predict(kind, how):
    # MXNet's own kernels, which compute float64 on a CPU, drop where a gradient is recorded
    x = mx.nd.array(np.random.RandomState(0).randn(3, 5, 4), dtype="float64")
    net = kind(6, num_layers=2, dropout=0.9, input_size=4, dtype="float64")
    net.initialize()
    predicted = net(x).asnumpy()
    if FLAGS[how] is not None:
        net.hybridize(**FLAGS[how])
    for mode in (False, True, False):
        x.attach_grad()
        with autograd.record(train_mode=mode):
            output = net(x)
        output.backward()
        assert np.isfinite(x.grad.asnumpy()).all()
        if not mode:
            np.testing.assert_allclose(output.asnumpy(), predicted, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:register_op_hook is experimental")
def test_hooks_of_operators_see_a_recorded_prediction():
    seen = []
    net = stock({})
    net(mx.nd.array(X))
    net.register_op_hook(lambda name, operator, array: seen.append(name))
    with mxkit.mode(record=True):
        net(mx.nd.array(X)).wait_to_read()
    assert b"batchnorm" in seen[0]


class Cut(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0].clip(0, 6))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * (in_data[0] > 0) * (in_data[0] < 6))


class CutProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Cut()


mx.operator.register("_mxkit_test_cut")(CutProp)


@pytest.mark.parametrize("channels", [8, 16])
@pytest.mark.parametrize("recorded", [False, True])
def test_t138_a_custom_operator_beside_convolutions(channels, recorded):
    x = mx.nd.array(np.random.RandomState(0).rand(4, 1, 12, 12))
    cut = mxkit.gradients.custom_gradient(lambda a: a.clip(0, 6), lambda dy, a, y: dy * (a > 0) * (a < 6))
    functions = [
        lambda F, a: F.clip(a, 0, 6),
        lambda F, a: cut(a),
        lambda F, a: F.Custom(a, op_type="_mxkit_test_cut"),
    ]
    found = []
    for function in functions:
        mxkit.seed_all(0)
        net = nn.HybridSequential()
        net.add(nn.Conv2D(channels, 3), nn.Activation("relu"), nn.HybridLambda(function), nn.Conv2D(channels, 3))
        net.initialize()
        for flags in (None, {}, {"static_alloc": True}):
            net.hybridize(flags is not None, **(flags or {}))
            for _ in range(4):
                x.attach_grad()
                with mxkit.mode(record=recorded, train=recorded):
                    output = net(x)
                if recorded:
                    output.backward()
                found.append((output.asnumpy(), x.grad.asnumpy()))
    for output, gradient in found[1:]:
        np.testing.assert_allclose(output, found[0][0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gradient, found[0][1], rtol=1e-3, atol=1e-4)


def test_t138_a_graph_that_begins_with_a_custom_operator():
    convolution, cut = nn.Conv2D(16, 3), nn.HybridLambda(lambda F, a: F.Custom(a, op_type="_mxkit_test_cut"))
    for block in (convolution, cut):
        block.initialize()
    cut.hybridize()
    x = mx.nd.array(np.random.RandomState(0).rand(4, 1, 12, 12))
    expected = convolution(x).asnumpy().clip(0, 6)
    for _ in range(6):
        np.testing.assert_array_equal(cut(convolution(x)).asnumpy(), expected)


@pytest.mark.parametrize("train_mode", [True, False])
@pytest.mark.parametrize("how", FLAGS)
def test_t139_the_gradient_of_selu(how, train_mode):
    x = np.linspace(-3, 3, 20).astype("float32")
    net = nn.SELU()
    if FLAGS[how] is not None:
        net.hybridize(**FLAGS[how])
    array = mx.nd.array(x)
    array.attach_grad()
    with autograd.record(train_mode=train_mode):
        output = net(array)
    output.backward()
    alpha, scale = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017, arXiv:1706.02515
    np.testing.assert_allclose(output.asnumpy(), scale * np.where(x > 0, x, alpha * np.expm1(x)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(array.grad.asnumpy(), scale * np.where(x > 0, 1, alpha * np.exp(x)), rtol=1e-5)


def test_t139_selu_of_npx_and_other_activations_of_the_operator():
    x = mx.np.array([-2.0, -1.0, 0.5])
    x.attach_grad()
    with autograd.record():
        output = mx.npx.leaky_relu(x, act_type="selu")
    output.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [0.2379329, 0.6467687, 1.0507010], rtol=1e-5)
    assert mx.nd.LeakyReLU(mx.nd.array([-1.0, 1.0]), act_type="leaky", slope=0.5).asnumpy().tolist() == [-0.5, 1]
