"""Published graphs, and graphs whose parameters belong to no layer or to several, as ONNX and PyTorch."""

from built_nets import hybrid_net, ready
import mxkit
from mxkit.errors import ExportError
from mxkit.exporting.exported_files import load_exported
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from public_graphs import GRAPHS, PublicGraph, conv, outputs, pixels, pooled, var, write
import pytest

# Of parameters that no layer reads, whose types are set later
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type")
FORMATS = [pytest.param("torch", marks=pytest.mark.torch), "onnx"]
ENDINGS = {"onnx": ".onnx", "torch": ".py"}
S = mx.sym


def exported(graph, folder, format, **named):
    """The result of an export, after its outputs were compared with an executor's."""
    pytest.importorskip("onnxruntime" if format == "onnx" else format)
    x = pixels(graph)
    written = mxkit.export(write(graph, folder), folder / "new", format=format, inputs=x, outputs=graph.cut, **named)
    found = load_exported(folder / f"new{ENDINGS[format]}")(*map(mx.nd.array, x.values()))
    found, expected = found if isinstance(found, tuple) else (found,), outputs(graph, x)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one.asnumpy(), other, rtol=1e-4, atol=1e-5 * max(1, np.abs(other).max()))
    return written


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_published_graph_leaves(name, format, tmp_path):
    graph = GRAPHS[name]()
    if name == "ssd":
        with pytest.raises(ExportError, match="_contrib_MultiBoxDetection"):
            exported(graph, tmp_path, format)
        graph = graph._replace(cut="cls_prob_output")
    exported(graph, tmp_path, format)


# -- parameters of no layer, and of several ---------------------------------------------------------------------


def scaled():
    """A parameter that multiplies, one that is a matrix, and one that passes an operator without data."""
    net = S.broadcast_mul(S.dot(var("data"), var("matrix")), var("scale"))
    weights = {"matrix": (3, 4), "scale": (1, 4), "logits": (1, 4)}
    return PublicGraph(S.broadcast_add(net, S.softmax(var("logits"))), {"data": (2, 3)}, weights=weights)


def siamese():
    weights = [var("weight"), var("bias")]
    one, other = (S.FullyConnected(var(name), *weights, num_hidden=4) for name in ("left", "right"))
    return PublicGraph(S.sum(S.square(one - other), axis=1), {"left": (2, 3), "right": (2, 3)})


def tied():
    """A decoder with the encoder's weight, and a bias of its own."""
    weight = var("weight")
    hidden = S.tanh(S.FullyConnected(var("data"), weight, no_bias=True, num_hidden=4) * 0.01)
    decoded = S.FullyConnected(hidden, S.transpose(weight), var("decoder_bias"), num_hidden=3)
    return PublicGraph(decoded, {"data": (2, 3)}, weights={"weight": (4, 3)})


def levels():
    """A head over two levels of a pyramid."""
    weights, first = [var("head_weight"), var("head_bias")], conv(var("data"), "first", 4)
    heads = [S.Convolution(level, *weights, num_filter=2, kernel=(3, 3)) for level in (first, pooled(first, "pool"))]
    return PublicGraph(S.Group(heads), {"data": (2, 3, 12, 12)})


def normalized_twice():
    """Running statistics of two layers."""
    parts = [var(name) for name in ("gamma", "beta", "moving_mean", "moving_var")]
    net = S.relu(S.BatchNorm(var("data"), *parts, fix_gamma=False))
    return PublicGraph(S.BatchNorm(net, *parts, fix_gamma=False), {"data": (2, 3, 4, 4)})


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("make", [scaled, siamese, tied, levels, normalized_twice])
def test_a_parameter_of_no_layer_or_of_several_is_one_parameter(make, format, tmp_path):
    graph = make()
    exported(graph, tmp_path, format, train=format == "torch")
    if format == "torch":
        from safetensors.numpy import load_file

        names = {*graph.symbol.list_inputs()} - {*graph.shapes}
        stored = load_file(tmp_path / "new.safetensors")
        assert len({name for name in stored if not name.endswith("num_batches_tracked")}) == len(names)


@pytest.mark.torch
def test_a_graph_that_gluon_read_leaves_with_its_parameters_shapes(tmp_path):
    graph = scaled()
    write(graph, tmp_path)
    files = [str(tmp_path / name) for name in graph.files]
    block = gluon.SymbolBlock.imports(files[0], ["data"], files[1])  # it sets no shapes
    written = mxkit.export(block, tmp_path / "new", format="torch", input_shape=(1, 3))
    assert written.proof.worst.relative < 1e-4


class Scaled(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.scale = self.params.get("scale", shape=(1, 3), init="ones")

    def hybrid_forward(self, F, x, scale):
        return F.broadcast_mul(x, scale)


@pytest.mark.torch
def test_a_frozen_parameter_of_no_layer_stays_frozen(tmp_path):
    net = ready(Scaled())
    mxkit.freeze(net)
    mxkit.export(net, tmp_path / "net", format="torch", input_shape=(1, 3))
    assert 'frozen = ["scale"]' in (tmp_path / "net.py").read_text()


# -- operators that draw random numbers -------------------------------------------------------------------------

DRAWN = {
    "_sample_normal": lambda F, x: F.sample_normal(x, F.exp(x)),
    "_random_normal": lambda F, x: F.broadcast_add(x, F.random_normal(shape=(1, 4))),
    "_random_uniform_like": lambda F, x: x * F.random.uniform_like(x),
    "_sample_multinomial": lambda F, x: F.sample_multinomial(F.softmax(x)),
    "_shuffle": lambda F, x: F.shuffle(x),
    "Dropout": lambda F, x: F.Dropout(x, mode="always"),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_an_operator_that_draws_is_named_and_takes_the_formats_of_mxnet(kind, tmp_path):
    net = ready(nn.Dense(4), nn.HybridLambda(DRAWN[kind], prefix="noise_"))
    for format in ("symbol", "safetensors"):
        written = mxkit.export(net, tmp_path / "net", format=format, input_shape=(2, 3))
        assert f"these operators draw random numbers: {kind} (noise_" in written.notes[-1]
        assert len(written.proof.rows) == 2  # the parameters
    for format in ("onnx", "torch"):
        pytest.importorskip("onnxruntime" if format == "onnx" else format)
        with pytest.raises(ExportError, match=rf"(?s){kind}.* draws random numbers"):
            mxkit.export(net, tmp_path / "other", format=format, input_shape=(2, 3))


def test_an_operator_of_a_similar_name_is_compared(tmp_path):
    net = nn.HybridLambda(lambda F, x: F.L2Normalization(F.gammaln(x + 3)))
    assert mxkit.export(net, tmp_path / "net", input_shape=(2, 3)).proof.rows


# -- nets that call the block of an exported graph more than once -----------------------------------------------

X = np.random.RandomState(0).uniform(-1, 1, (3, 5)).astype("f")
Y = np.random.RandomState(1).uniform(-1, 1, (3, 5)).astype("f")


@pytest.fixture
def twice(tmp_path):
    inner = ready(gluon.nn.Dense(4), gluon.nn.BatchNorm(), gluon.nn.Dense(3))
    mxkit.export(inner, tmp_path / "inner", input_shape=(1, 5))
    blocks = {"inner": mxkit.load_exported(tmp_path / "inner"), "last": nn.Dense(2, in_units=3)}
    net = hybrid_net(lambda net, F, x, y: net.last(net.inner(x) - net.inner(y)), **blocks)
    mxkit.initialize(net.last, "xavier")
    return net


@pytest.mark.parametrize("format", ["symbol", "onnx", "torch"])
def test_a_symbol_block_called_twice_is_exported(twice, tmp_path, format):
    if format == "torch":
        pytest.importorskip("torch", reason="mxkit[torch] is not installed")
    if format == "onnx":
        pytest.importorskip("onnxruntime", reason="mxkit[onnx] is not installed")
    expected = twice(mx.nd.array(X), mx.nd.array(Y)).asnumpy()
    exported = mxkit.export(twice, tmp_path / "twice", format=format, input_shape=[(1, 5), (1, 5)])
    assert not exported.proof.failures
    ending = {"symbol": "", "onnx": ".onnx", "torch": ".py"}[format]
    read = mxkit.load_exported(f"{tmp_path / 'twice'}{ending}")
    np.testing.assert_allclose(read(mx.nd.array(X), mx.nd.array(Y)).asnumpy(), expected, rtol=1e-4, atol=1e-5)
