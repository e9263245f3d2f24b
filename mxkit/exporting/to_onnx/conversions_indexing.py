"""Conversions of operators that read or write by index."""

from typing import Any

from mxkit.exporting.to_onnx.conversions_layers import clipped
from mxkit.exporting.to_onnx.onnx_writer import Operator, Writer, converts, like
import numpy as np


@converts("take")
def take(operator: Operator, writer: Writer) -> str:
    data, indices = operator.inputs
    axis = operator.axis(0)
    return writer.op("Gather", data, _indices(operator, indices, data.size(axis), writer), axis=axis)


def _indices(operator: Operator, indices: Any, size: int, writer: Writer) -> str:
    mode = operator.get("mode", "clip")
    if mode == "clip":
        return clipped(indices, size, writer)
    whole = writer.cast(indices, np.int64)
    return writer.op("Mod", whole, np.int64(size)) if mode == "wrap" else whole


@converts("pick")
def pick(operator: Operator, writer: Writer) -> str:
    data, indices = operator.inputs
    axis = operator.axis()
    made = _indices(operator, indices, data.size(axis), writer)
    made = writer.reshape(made, (*data.dims[:axis], 1, *data.dims[axis + 1 :]))
    return writer.reshape(writer.op("GatherElements", data, made, axis=axis), operator.outputs[0].dims)


def _last(indices: Any, writer: Writer) -> str:
    """Write the indices of gather_nd with the axis of coordinates last, as ONNX has it."""
    return writer.transpose(writer.cast(indices, np.int64), *range(1, len(indices.dims)), 0)


@converts("gather_nd")
def gather_nd(operator: Operator, writer: Writer) -> str:
    data, indices = operator.inputs
    return writer.op("GatherND", data, _last(indices, writer))


@converts("scatter_nd")
def scatter_nd(operator: Operator, writer: Writer) -> str:
    from onnx import numpy_helper

    data, indices = operator.inputs
    value = numpy_helper.from_array(np.zeros(1, data.dtype))
    empty = writer.op("ConstantOfShape", writer.shape(operator.outputs[0].dims), value=value)
    return writer.op("ScatterND", empty, _last(indices, writer), data)


@converts("one_hot")
def one_hot(operator: Operator, writer: Writer) -> str:
    indices, output = operator.inputs[0], operator.outputs[0]
    depth = operator.integer("depth")
    # ONNX's OneHot counts negative indices from the end; MXNet gives them no place
    column = writer.reshape(writer.cast(indices, np.int64), (*indices.dims, 1))
    same = writer.op("Equal", column, np.arange(depth, dtype=np.int64))
    values = operator.real("on_value", 1), operator.real("off_value", 0)
    return writer.op("Where", same, *(like(output, value) for value in values))
