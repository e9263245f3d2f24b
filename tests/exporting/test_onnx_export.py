"""Nets as ONNX: what the file states, what is refused, and wrong conversions, which the comparison finds."""

import json
import re

from built_nets import ready, stack
import cancelling_nets
import mxkit
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import GraphInput, example_batches, graph_of
from mxkit.exporting.to_onnx import layers
from mxkit.exporting.to_onnx.onnx_model import onnx_model
from mxkit.exporting.to_onnx.onnx_proof import compare_onnx
from mxkit.exporting.to_onnx.onnx_writer import CONVERTERS
from mxkit.models import get_model
import mxnet as mx
from mxnet.gluon import nn, rnn
import numpy as np
import pytest
from sharing import text_of

onnxruntime = pytest.importorskip("onnxruntime", reason="mxkit[onnx] is not installed")

TOLERANCE = 1e-4


def layer(function):
    return nn.HybridLambda(function)


def compared(net, shapes, axes=None):
    """The rows of a net's comparison; axes are those of the batch."""
    graph = graph_of(net, shapes)
    model = onnx_model(graph, shapes, ["float32"] * len(shapes), {}).SerializeToString()
    forms = [GraphInput(*one) for one in zip(graph.inputs, shapes, ["float32"] * 2, axes or [0] * len(shapes))]
    return compare_onnx(graph, model, example_batches(graph, forms, ()))


def all_within(made):
    assert made.not_compared == []
    assert [row for row in made.rows if not row.relative <= TOLERANCE] == []
    return made.rows


@pytest.fixture(scope="module")
def net():
    """Layers of many kinds."""
    mxkit.seed_all(0)
    net = stack(nn.Conv2D(4, 3, strides=2, padding=1, in_channels=3), nn.BatchNorm(scale=False), nn.LeakyReLU(0.1))
    net.add(nn.AvgPool2D(3, 2, 1), layer(lambda F, x: F.L2Normalization(x)), nn.Flatten(), nn.Dense(16), nn.LayerNorm())
    net.add(layer(lambda F, x: F.softmax(F.Reshape(x, shape=(0, 4, 4)), axis=1)))
    net.initialize(mx.init.Xavier())
    net(mx.nd.ones((1, 3, 8, 8)))
    net[0].bias.set_data(mx.nd.array([0.1, 0.2, 0.3, 0.4]))
    net[1].gamma.set_data(mx.nd.array([2, 2, 2, 2]))
    return net


@pytest.fixture(scope="module")
def lstm():
    mxkit.seed_all(0)
    return ready(rnn.LSTM(6, num_layers=2, bidirectional=True), initializer=mx.init.Xavier())


def test_a_net_of_the_zoo():
    mxkit.seed_all(0)
    net = ready(get_model("zoo:mobilenetv2_0.25", classes=5), initializer=mx.init.Xavier(magnitude=3))
    rows = all_within(compared(net, [(2, 3, 32, 32)]))
    assert {row.batch for row in rows} == {1, 4}
    operators = json.loads(graph_of(net).symbol.tojson())["nodes"]
    assert {row.name for row in rows} >= {node["name"] for node in operators if node["op"] != "null"}


def test_the_net_of_layers(net):
    all_within(compared(net, [(2, 3, 8, 8)]))


def test_recurrent_layers_with_states(lstm):
    all_within(compared(lstm, [(5, 2, 3)], axes=[1]))
    plain = ready(rnn.GRU(4, num_layers=2, layout="NTC"))
    all_within(compared(plain, [(2, 5, 3)]))


def test_two_inputs():
    net = ready(mxkit.models.Siamese(mxkit.models.mlp(3, hidden=[4])))
    all_within(compared(net, [(2, 5), (2, 5)]))


def test_what_the_file_states(net):
    graph = graph_of(net, [(2, 3, 8, 8)])
    model = onnx_model(graph, [(2, 3, 8, 8)], ["float32"], {"classes": "a, b"})
    described = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [(value.name, value.shape) for value in described.get_inputs()] == [("data", ["N", 3, 8, 8])]
    assert [(value.name, value.shape) for value in described.get_outputs()] == [("output", ["N", 4, 4])]
    meta = described.get_modelmeta()
    assert meta.producer_name == "mxkit"
    (output,) = graph.symbol.list_outputs()
    assert meta.custom_metadata_map == {"classes": "a, b", "mxnet": mx.__version__, "mxnet.outputs": output}


def test_every_array_in_the_file_is_read(net):
    model = onnx_model(graph_of(net, [(2, 3, 8, 8)]), [(2, 3, 8, 8)], ["float32"], {})
    read = {name for node in model.graph.node for name in node.input}
    assert net[1].gamma.name not in read  # scale=False
    assert {one.name for one in model.graph.initializer} <= read


class Twice(mx.gluon.HybridBlock):
    """Operators of one name, an output that is used again, one that is returned twice, and the input itself."""

    def hybrid_forward(self, F, x):
        first = F.relu(x, name="same")
        second = F.sigmoid(first, name="same")
        return first, second, second, x


def test_repeated_names_and_outputs():
    made = compared(Twice(), [(2, 3)])
    all_within(made)
    # both operators at two batch sizes, and the three outputs that an operator computes, under optimization
    assert [row.name.rpartition("_")[2] for row in made.rows][:4] == ["same", "output0", "same", "output1"]


def test_all_refusals_come_at_once():
    net = stack(layer(lambda F, x: F.contrib.count_sketch(x, F.ones((1, 4)), F.ones((1, 4)), out_dim=3, name="sketch")))
    net.add(layer(lambda F, x: F.Dropout(x, mode="always", name="drop")))
    net.add(layer(lambda F, x: F.squeeze(F.expand_dims(x, axis=1), name="tight")))
    text = text_of(ExportError, onnx_model, graph_of(net, [(2, 4)]), [(2, 4)], ["float32"], {})
    assert "3 operators cannot be converted to ONNX; nothing was written" in text
    assert re.search(r"_contrib_count_sketch \(\w*sketch\): mxkit has no conversion of this operator", text)
    assert re.search(r"Dropout \(\w*drop\): mode='always' draws random numbers", text)
    assert re.search(r"squeeze \(\w*tight\): without axis it removes the batch's axis", text)
    assert "What cannot leave" in text


def time_first(F, x):
    """A GRU of one sample that reads the first axis as time: the file would take any length of it."""
    sizes = {"mode": "gru", "num_layers": 1, "state_size": 3}
    return F.RNN(x.expand_dims(1), F.ones((81,)), F.zeros((1, 1, 3)), **sizes)


def masked(F, x):
    return F.contrib.boolean_mask(x, F.slice_axis(x, axis=1, begin=0, end=1).reshape((-1,)))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda F, x: F.LeakyReLU(x, act_type="rrelu"), r"LeakyReLU \(\w*\): act_type='rrelu' draws its slopes"),
        (masked, "_contrib_boolean_mask"),
        (lambda F, x: F.Reshape(x, shape=(2, 2, 2)), "the new shape fits one batch size only"),
        (time_first, "computes no other batch size"),
    ],
)
def test_what_no_batch_size_or_no_other_program_fits_is_refused(function, text):
    with pytest.raises(ExportError, match=text):
        onnx_model(graph_of(layer(function), [(2, 4)]), [(2, 4)], ["float32"], {})


def changed(kind, **attributes):
    """A conversion that reads other attributes than the operator's."""
    own = CONVERTERS[kind]
    return kind, lambda operator, writer: own(operator._replace(attrs={**operator.attrs, **attributes}), writer)


def without_bias(kind):
    own = CONVERTERS[kind]
    return kind, lambda operator, writer: own(operator._replace(inputs=operator.inputs[:2]), writer)


def turned_weight(operator, writer):
    data, weight, bias = operator.inputs
    return writer.op("Gemm", data, weight, bias, transB=0)


def scaled(kind):
    own = CONVERTERS[kind]
    return kind, lambda operator, writer: writer.op("Mul", own(operator, writer), np.float32(1.01))


def swapped(operator, writer):
    first, second = operator.inputs
    return writer.op("Sub", second, first)


def negated(kind):
    own = CONVERTERS[kind]
    return kind, lambda operator, writer: writer.op("Neg", own(operator, writer))


def first_wrong(made):
    return next(row for row in made.rows if not row.relative <= TOLERANCE)


# What is broken, in which net whose sum cancels, and how
WRONG = {
    "pads": ("", changed("Convolution", pad="(1, 2)", dilate="(1, 2)")),
    "bias": ("", without_bias("Convolution")),
    "fix_gamma": ("", changed("BatchNorm", fix_gamma="False")),
    "eps": ("", changed("BatchNorm", eps="0.001")),
    "slope": ("", changed("LeakyReLU", slope="0.11")),
    "border": ("", changed("Pooling", count_include_pad="False")),
    "axes": ("", changed("L2Normalization", mode="channel")),
    "weight": ("", ("FullyConnected", turned_weight)),
    "layer_norm_eps": ("", changed("LayerNorm", eps="0.01")),
    "softmax_axis": ("", changed("softmax", axis="2")),
    "a swapped difference": ("branches", ("elemwise_sub", swapped)),
    "a sign": ("variance", negated("square")),
    "a difference that is a sum": ("centred", ("broadcast_sub", lambda one, writer: writer.op("Add", *one.inputs))),
    "the axis of a sum": ("centred", changed("sum", axis="2")),
    "the axis of a softmax": ("chances", changed("softmax", axis="3")),
    "a number": ("chances", changed("_minus_scalar", scalar="1.00005")),
    "a bias": ("shifted", without_bias("FullyConnected")),
    "epsilon before a sum": ("instance", changed("InstanceNorm", eps="0.01")),
    "epsilon of numbers around 0": ("layer_norm", changed("LayerNorm", eps="0.01")),
    "a mean that is a sum": ("shifted", ("mean", lambda one, to: CONVERTERS["sum"](one._replace(operator="sum"), to))),
    "a scale": ("shifted", scaled("mean")),
    "a curve through another place": ("instance", changed("Activation", act_type="sigmoid")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_conversion_is_found_where_it_is(wrong, net, monkeypatch):
    name, (kind, converter) = WRONG[wrong]
    monkeypatch.setitem(CONVERTERS, kind, converter)
    cancelling = name and compared(cancelling_nets.NETS[name](), [cancelling_nets.SHAPE])
    assert first_wrong(cancelling or compared(net, [(2, 3, 8, 8)])).operator == kind


def test_a_wrong_order_of_gates_is_found(lstm, monkeypatch):
    monkeypatch.setitem(layers._GATES, "lstm", [0, 1, 2, 3])
    assert first_wrong(compared(lstm, [(5, 2, 3)], axes=[1])).operator == "RNN"


def test_a_wrong_shape_is_found_where_it_is(net, monkeypatch):
    monkeypatch.setitem(CONVERTERS, *changed("Convolution", pad="(0, 2)"))
    with pytest.raises(ExportError, match="onnxruntime cannot compute the file, and it was not written"):
        compared(net, [(2, 3, 8, 8)])


@pytest.mark.parametrize("name", cancelling_nets.NETS)
def test_a_sum_that_cancels_is_judged_by_its_summands(name):
    all_within(compared(cancelling_nets.NETS[name](), [cancelling_nets.SHAPE]))
