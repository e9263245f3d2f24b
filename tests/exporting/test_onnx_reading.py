"""Files that claim to be ONNX: what is refused, with which text, before onnxruntime reads them."""

import contextlib
import random

from mxkit.errors import CheckpointError
from mxkit.exporting.exported_files import read_onnx
from mxkit.exporting.net_graph import graph_of
from mxkit.exporting.to_onnx.onnx_model import onnx_model
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


def external(tensor):
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def inside(model):
    """A tensor of another file in a graph inside a graph."""
    leaf = helper.make_graph([], "leaf", [], [], [helper.make_tensor("x", TensorProto.FLOAT, [1], [0])])
    external(leaf.initializer[0])
    node = helper.make_node("If", ["c"], ["o"], then_branch=leaf)
    model.graph.node.append(helper.make_node("If", ["c"], ["p"], then_branch=helper.make_graph([node], "g", [], [])))


REFUSED = {
    "external": (lambda model: external(model.graph.initializer[0]), "onnx refuses it"),
    "inside": (inside, "onnx refuses it"),
    "short": (lambda model: model.graph.initializer[0].dims.__setitem__(0, 5), "onnx refuses it"),
    "unconnected": (lambda model: model.graph.node.pop(0) and None, "onnx refuses it"),
    "operator": (lambda model: model.graph.node[0].__setattr__("op_type", "Nonsense"), "onnx refuses it"),
    "nothing": (lambda model: model.Clear(), "onnx refuses it"),
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
    with pytest.raises(FileNotFoundError):
        read_onnx(tmp_path / "y.onnx")


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
