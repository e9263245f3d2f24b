"""Conversions of reductions, sorting and selection along an axis."""

from typing import Any, List

from mxkit.exporting.to_onnx.onnx_writer import Operator, Unsupported, Writer, axes_of, converts, integers, like
import numpy as np

_REDUCED = {
    "nansum": "ReduceSum",
    **{kind: f"Reduce{kind.capitalize()}" for kind in ("sum", "mean", "max", "min", "prod")},
}


@converts(*_REDUCED, "_np_sum", "_np_max", "_np_min", "_np_prod", "_npi_mean")
def reduction(operator: Operator, writer: Writer) -> str:
    data, output = operator.inputs[0], operator.outputs[0]
    kind = operator.operator.replace("_npi_", "").replace("_np_", "")
    axes = axes_of(operator)
    made: Any = data if data.dtype == output.dtype else writer.cast(data, output.dtype)
    if kind == "nansum":
        made = writer.op("Where", writer.op("IsNaN", made), like(data, 0), made)
    if _REDUCED[kind] == "ReduceSum":
        made = writer.op("ReduceSum", made, integers(*axes), keepdims=0)
    else:
        made = writer.op(_REDUCED[kind], made, axes=axes, keepdims=0)
    # without np shape, MXNet's reduction of all axes has the shape (1,)
    kept = len(output.dims) == len(data.dims) - len(axes)
    return made if kept else writer.reshape(made, output.dims)


@converts("argmax", "argmin", "_npi_argmax", "_npi_argmin")
def argmax(operator: Operator, writer: Writer) -> str:
    output = operator.outputs[0]
    data: Any = operator.inputs[0]
    axis = operator.get("axis")
    if axis is None:
        data, axis = writer.op("Reshape", data, integers(-1)), 0
    made = writer.op("ArgMin" if "argmin" in operator.operator else "ArgMax", data, axis=int(axis), keepdims=0)
    return writer.reshape(writer.cast(made, output.dtype), output.dims)


@converts("topk")
def topk(operator: Operator, writer: Writer) -> List[str]:
    kind = operator.get("ret_typ", "indices")
    operator.refuse((kind == "mask", "ret_typ='mask'"))
    values, places = _sorted(operator, writer, operator.integer("k", 1))
    if kind == "both":
        return [values, writer.cast(places, operator.outputs[1].dtype)]
    return [values if kind == "value" else writer.cast(places, operator.outputs[0].dtype)]


@converts("sort", "argsort")
def sort(operator: Operator, writer: Writer) -> str:
    values, places = _sorted(operator, writer, 0, ascending=True)
    return writer.cast(places, operator.outputs[0].dtype) if "argsort" in operator.operator else values


def _sorted(operator: Operator, writer: Writer, count: int, ascending: bool = False) -> List[str]:
    tensor = operator.inputs[0]
    data: Any = tensor
    axis = operator.get("axis", -1)
    if axis is None:
        data, axis = writer.op("Reshape", tensor, integers(-1)), 0
        if not all(isinstance(size, int) for size in tensor.dims):
            raise Unsupported("axis=None sorts across the batch")
        size = int(np.prod(tensor.dims))
    else:
        size = tensor.size(int(axis))
    largest = not operator.flag("is_ascend", ascending)
    return writer.ops("TopK", 2, data, integers(count or size), axis=int(axis), largest=int(largest), sorted=1)


@converts("_np_cumsum")
def cumsum(operator: Operator, writer: Writer) -> str:
    axis = operator.get("axis")
    operator.refuse((axis is None, "axis=None sums across the batch"))
    data: Any = operator.inputs[0]
    dtype = operator.outputs[0].dtype
    return writer.op("CumSum", data if data.dtype == dtype else writer.cast(data, dtype), np.int64(axis))


@converts("moments")
def moments(operator: Operator, writer: Writer) -> List[str]:
    data = operator.inputs[0]
    axes = axes_of(operator, "axes")
    mean = writer.op("ReduceMean", data, axes=axes, keepdims=1)
    apart = writer.op("Sub", data, mean)
    variance = writer.op("ReduceMean", writer.op("Mul", apart, apart), axes=axes, keepdims=1)
    return [writer.reshape(made, output.dims) for made, output in zip((mean, variance), operator.outputs)]
