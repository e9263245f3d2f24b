"""Operators as ONNX compute what MXNet computes, at batch sizes that the net was not traced with."""

import json

from all_rows import ROWS
from mxkit.core.arrays import switches
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import NetGraph
from mxkit.exporting.to_onnx.onnx_model import onnx_model
from mxkit.exporting.to_onnx.onnx_proof import compare_onnx
from mxkit.exporting.to_onnx.onnx_writer import CONVERTERS
import mxnet as mx
import numpy as np
from onnx_rows import ONNX_ROWS
from operator_rows import S, drawn, joined, row, symbol_of
import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="mxkit[onnx] is not installed")

BATCHES = (1, 3)
REFUSED = {
    "dot 3d": "a second array of more than two axes",
    "repeat flat": "axis=None repeats across the batch",
    "topk flat": "axis=None sorts across the batch",
    "cumsum flat": "axis=None sums across the batch",
    "np concatenate flat": "axis=None joins across the batch",
}
# CuDNNBatchNorm is an operator of GPUs; the others stand only in graphs of old versions, gradients or recurrent layers
NOT_COMPARED = {"CuDNNBatchNorm", "_zeros_without_dtype", "_rnn_param_concat", "BatchNorm_v1"}


def operators_of(row):
    with switches(row.numpy):
        return {node["op"] for node in json.loads(symbol_of(row).tojson())["nodes"]} - {"null"}


def is_converted(row):
    """Whether ONNX has the row's operators, and an input has the size of the batch."""
    return (
        operators_of(row) <= set(CONVERTERS)
        and any("B" in shape for shape in row.shapes)
        and "2B" not in str(row.shapes)
    )


CONVERTED = [row for row in (*ROWS, *ONNX_ROWS) if is_converted(row)]


def model_of(row):
    """The graph of a row, whose inputs without a batch are constants, its ONNX file, and the names of its inputs."""
    symbol, values = symbol_of(row), dict(enumerate(drawn(row, 2)))
    free = {f"x{number}": shape.index("B") for number, shape in enumerate(row.shapes) if "B" in shape}
    free = {name: axis for name, axis in free.items() if name in symbol.list_inputs()}
    states = set(symbol.list_auxiliary_states())
    arrays = {
        f"{'aux' if f'x{number}' in states else 'arg'}:x{number}": mx.nd.array(value, dtype=value.dtype)
        for number, value in values.items()
        if f"x{number}" in symbol.list_inputs() and f"x{number}" not in free
    }
    given = [values[int(name[1:])] for name in free]
    graph = NetGraph(symbol, arrays, list(free), {}, row.numpy)
    shapes, dtypes = [one.shape for one in given], [one.dtype for one in given]
    return graph, onnx_model(graph, shapes, dtypes, {}, list(free.values())).SerializeToString()


@pytest.mark.parametrize(
    "row", joined(row for row in CONVERTED if row.name not in REFUSED), ids=lambda row: f"{row.name} and others"
)
def test_operators_give_what_mxnet_gives(row):
    with switches(row.numpy):
        graph, model = model_of(row)
        batches = [{name: drawn(row, batch)[int(name[1:])] for name in graph.inputs} for batch in BATCHES]
        made = compare_onnx(graph, model, batches)
    assert [name for name in made.not_compared if not name.startswith("LeakyReLU")] == []  # rrelu's random slopes
    assert len(made.rows) >= len(BATCHES)
    worst = max(made.rows, key=lambda one: one.relative)
    assert worst.relative <= 1e-5, worst


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_equivalent_is_refused_by_name(name):
    (row,) = (row for row in CONVERTED if row.name == name)
    with switches(row.numpy), pytest.raises(ExportError) as raised:
        model_of(row)
    assert REFUSED[name] in str(raised.value)


def test_every_conversion_is_compared():
    compared = set().union(*(operators_of(row) for row in CONVERTED if row.name not in REFUSED))
    assert set(CONVERTERS) - compared == NOT_COMPARED


@pytest.mark.parametrize("target", [(13, 17), (14, 18), (15, 20), (16, 19)])
def test_target_shape_of_a_deconvolution(target):
    # MXNet computes it in float64, where oneDNN takes no part
    attrs = {"kernel": (4, 4), "num_filter": 3, "stride": (2, 2), "target_shape": target}
    graph, model = model_of(row("target", lambda x, w: S.Deconvolution(x, w, **attrs), ("B", 4, 7, 9), (4, 3, 4, 4)))
    data = np.random.RandomState(0).uniform(-1, 1, (3, 4, 7, 9))
    weight = graph.arrays["arg:x1"].astype("float64")
    expected = mx.nd.Deconvolution(mx.nd.array(data, dtype="float64"), weight, **attrs)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    actual = session.run(None, {"x0": data.astype("float32")})[0]
    np.testing.assert_allclose(actual, expected.asnumpy(), rtol=1e-5, atol=1e-5)
