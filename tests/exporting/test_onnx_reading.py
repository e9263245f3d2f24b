"""Files that claim to be ONNX: what is refused, with which text, before onnxruntime reads them."""

import contextlib
import random

from mxkit.errors import CheckpointError
from mxkit.exporting.net_graph import graph_of
from mxkit.exporting.to_onnx.onnx_model import onnx_model
from mxkit.exporting.to_onnx.onnx_reading import read_onnx
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import long

onnxruntime = pytest.importorskip("onnxruntime", reason="mxkit[onnx] is not installed")
onnx = pytest.importorskip("onnx")
TensorProto, helper = onnx.TensorProto, onnx.helper


@pytest.fixture(scope="module")
def model():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(2, 3, in_channels=3), nn.BatchNorm(), nn.AvgPool2D(3, 2), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return onnx_model(graph_of(net, [(1, 3, 8, 8)]), [(1, 3, 8, 8)], ["float32"], {})


def external(model):
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def huge(model):
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2**40


def foreign(model):
    model.graph.node[0].domain = "com.microsoft"


def short(model):
    model.graph.initializer[0].dims[0] = 5


def nested(model):
    graph = helper.make_graph([], "leaf", [], [])
    for _ in range(12):
        graph = helper.make_graph([helper.make_node("If", ["c"], ["o"], then_branch=graph)], "g", [], [])
    model.graph.node.append(graph.node[0])


def tiled(model):
    """A graph of a few bytes whose output has 10**9 elements."""
    model.graph.node.append(helper.make_node("Tile", ["output", "repeats"], ["many"]))
    model.graph.initializer.append(helper.make_tensor("repeats", TensorProto.INT64, [2], [10**5, 10**4]))
    model.graph.output.append(helper.make_tensor_value_info("many", TensorProto.FLOAT, [None, None]))


REFUSED = {
    "tiled": (tiled, "'many' would have 3000000000 elements for one sample"),
    "external": (external, "stands in another file"),
    "huge": (huge, "elements, more than 2147483648"),
    "foreign": (foreign, "operator Conv of 'com.microsoft'"),
    "short": (short, "bytes; its shape needs"),
    "nested": (nested, "more than 8 graphs inside each other"),
    "opset": (
        lambda model: model.opset_import[0].__setattr__("version", 99),
        "operator set \\[99\\]; expected 7 to 23",
    ),
    "other_set": (
        lambda model: model.opset_import.add(domain="ai.onnx.ml", version=1),
        "operators of \\['ai.onnx.ml'\\]",
    ),
    "format": (lambda model: model.__setattr__("ir_version", 99), "version 99 of the format"),
    "unconnected": (lambda model: model.graph.node.pop(0) and None, "onnx's checker refuses it"),
    "operator": (lambda model: model.graph.node[0].__setattr__("op_type", "Nonsense"), "onnx's checker refuses it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused(name, model, tmp_path):
    change, text = REFUSED[name]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    change(changed)
    (tmp_path / "x.onnx").write_bytes(changed.SerializeToString())
    with pytest.raises(CheckpointError, match=text) as error:
        read_onnx(tmp_path / "x.onnx")
    assert "export it again" in str(error.value)


def test_its_own_file_is_read(model, tmp_path):
    (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
    assert read_onnx(tmp_path / "x.onnx") == model.SerializeToString()


def test_no_file_and_an_empty_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_onnx(tmp_path / "x.onnx")
    (tmp_path / "x.onnx").write_bytes(b"")
    with pytest.raises(CheckpointError, match="received 0 bytes"):
        read_onnx(tmp_path / "x.onnx")


@pytest.mark.parametrize("count", [150, long(2000)])
def test_damaged_bytes_are_refused_or_harmless(model, tmp_path, count):
    content = model.SerializeToString()
    draw = random.Random(0)
    refused = 0
    for _ in range(count):
        damaged = bytearray(content)
        for _ in range(draw.choice([1, 3, 9])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "x.onnx").write_bytes(damaged[: draw.choice([len(content), draw.randrange(len(content))])])
        try:
            checked = read_onnx(tmp_path / "x.onnx")
        except CheckpointError:
            refused += 1
            continue
        with contextlib.suppress(Exception):  # onnxruntime's errors have no common class
            session = onnxruntime.InferenceSession(checked, providers=["CPUExecutionProvider"])
            session.run(None, {"data": np.zeros((1, 3, 8, 8), "float32")})
    assert refused > count // 3
