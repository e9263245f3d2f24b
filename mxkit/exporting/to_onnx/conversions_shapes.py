"""Conversions of operators that move elements: reshape, slice, join, repeat, and constants of a shape."""

from typing import Any, List

from mxkit.exporting.to_onnx.onnx_writer import END, Batch, Operator, Writer, converts, count, integers, like
import numpy as np


@converts("Reshape", "_np_reshape", "_npx_reshape", "reshape_like")
@converts("Flatten", "expand_dims")
def reshape(operator: Operator, writer: Writer) -> str:
    sizes = [[count(tensor.dims, batch) for tensor in (operator.inputs[0], operator.outputs[0])] for batch in (2, 3)]
    operator.refuse(
        (any(old != new for old, new in sizes), "the new shape fits one batch size only; use 0 or -1 for it")
    )
    return writer.reshape(operator.inputs[0], operator.outputs[0].dims)


@converts("squeeze", "_np_squeeze")
def squeeze(operator: Operator, writer: Writer) -> str:
    unclear = operator.get("axis") is None and any(isinstance(size, Batch) for size in operator.inputs[0].dims)
    operator.refuse((unclear, "without axis it removes the batch's axis too at batch size 1; give it an axis"))
    return writer.reshape(operator.inputs[0], operator.outputs[0].dims)


@converts("transpose", "_np_transpose")
def transpose(operator: Operator, writer: Writer) -> str:
    ndim = operator.rank
    axes = operator.get("axes") or range(ndim - 1, -1, -1)
    return writer.transpose(operator.inputs[0], *(axis % ndim for axis in axes))


@converts("SwapAxis")
def swap_axis(operator: Operator, writer: Writer) -> str:
    ndim = operator.rank
    first, second = (int(operator.get(name, 0)) % ndim for name in ("dim1", "dim2"))
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return writer.transpose(operator.inputs[0], *order)


@converts("slice")
def slice_(operator: Operator, writer: Writer) -> str:
    begins, ends = _listed(operator.get("begin")), _listed(operator.get("end"))
    steps = _listed(operator.get("step", ())) or [None] * len(begins)
    starts, stops, strides = [], [], []
    for begin, end, step in zip(begins, ends, steps):
        back = (step or 1) < 0
        starts.append((END if back else 0) if begin is None else begin)
        stops.append((-END if back else END) if end is None else end)
        strides.append(step or 1)
    return writer.slice(operator.inputs[0], starts, stops, list(range(len(begins))), strides)


def _listed(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


@converts("slice_axis")
def slice_axis(operator: Operator, writer: Writer) -> str:
    end = operator.get("end")
    return writer.slice(
        operator.inputs[0], operator.integer("begin"), END if end is None else int(end), operator.integer("axis")
    )


@converts("slice_like")
def slice_like(operator: Operator, writer: Writer) -> str:
    data, output = operator.inputs[0], operator.outputs[0]
    axes = [axis for axis, (old, new) in enumerate(zip(data.dims, output.dims)) if old != new]
    if not axes:
        return data.name
    ends = writer.shape(tuple(output.dims[axis] for axis in axes))
    return writer.op("Slice", data, integers(*[0] * len(axes)), ends, integers(*axes))


@converts("Crop")
def crop(operator: Operator, writer: Writer) -> str:
    data, output = operator.inputs[0], operator.outputs[0]
    sizes = [output.size(axis) for axis in (2, 3)]
    starts = [int(place) for place in operator.sizes("offset", 2, 0)]
    if operator.flag("center_crop"):
        starts = [(data.size(axis) - size) // 2 for axis, size in zip((2, 3), sizes)]
    return writer.slice(data, starts, [start + size for start, size in zip(starts, sizes)], [2, 3])


@converts("SliceChannel", "_split_v2")
def split(operator: Operator, writer: Writer) -> List[str]:
    data = operator.inputs[0]
    axis = operator.axis(1)
    squeezed = operator.flag("squeeze_axis")
    count = len(operator.outputs)
    sizes = [1] * count if squeezed else [output.dims[axis] for output in operator.outputs]
    if count == 1:
        made = [data.name]
    elif all(isinstance(size, int) for size in sizes):
        made = writer.ops("Split", count, data, np.array(sizes, np.int64), axis=axis)
    else:
        made = writer.ops("Split", count, data, axis=axis)
    if not squeezed:
        return made
    return [writer.reshape(part, output.dims) for part, output in zip(made, operator.outputs)]


@converts("Concat", "_rnn_param_concat", "_npi_concatenate")
def concat(operator: Operator, writer: Writer) -> str:
    axis = operator.get("axis", 0) if operator.operator == "_npi_concatenate" else operator.get("dim", 1)
    operator.refuse((axis is None, "axis=None joins across the batch"))
    return writer.op("Concat", *operator.inputs, axis=int(axis))


@converts("stack", "_npi_stack")
def stack(operator: Operator, writer: Writer) -> str:
    ndim = len(operator.outputs[0].dims)
    axis = operator.integer("axis", 0) % ndim
    parts = [writer.reshape(tensor, (*tensor.dims[:axis], 1, *tensor.dims[axis:])) for tensor in operator.inputs]
    return writer.op("Concat", *parts, axis=axis)


@converts("broadcast_to", "broadcast_like", "broadcast_axis", "_npi_broadcast_to")
def broadcast(operator: Operator, writer: Writer) -> str:
    return writer.op("Expand", operator.inputs[0], writer.shape(operator.outputs[0].dims))


@converts("tile")
def tile(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    repeats = _listed(operator.get("reps", 1))
    ndim = max(len(repeats), len(data.dims))
    made: Any = data
    if ndim > len(data.dims):
        made = writer.reshape(data, (*[1] * (ndim - len(data.dims)), *data.dims))
    return writer.op("Tile", made, integers(*[1] * (ndim - len(repeats)), *repeats))


@converts("repeat")
def repeat(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    axis, count = operator.get("axis"), operator.integer("repeats", 1)
    if axis is None:
        made: Any = writer.op("Tile", writer.op("Reshape", data, integers(-1, 1)), integers(1, count))
        return writer.op("Reshape", made, integers(-1))
    axis %= len(data.dims)
    made = writer.reshape(data, (*data.dims[: axis + 1], 1, *data.dims[axis + 1 :]))
    repeats = [1] * (len(data.dims) + 1)
    repeats[axis + 1] = count
    return writer.reshape(writer.op("Tile", made, integers(*repeats)), operator.outputs[0].dims)


@converts("reverse", "_npi_flip")
def reverse(operator: Operator, writer: Writer) -> str:
    axes = _listed(operator.get("axis"))
    return writer.slice(operator.inputs[0], [-1] * len(axes), [-END] * len(axes), axes, [-1] * len(axes))


@converts("_zeros", "_ones", "_full", "zeros_like", "ones_like", "_npi_zeros", "_npi_ones")
@converts("_npi_full_like", "_zeros_without_dtype")
def filled(operator: Operator, writer: Writer) -> str:
    from onnx import numpy_helper

    output = operator.outputs[0]
    number = 1.0 if "ones" in operator.operator else 0.0
    if "full" in operator.operator:
        number = operator.real("value" if "value" in operator.attrs else "fill_value", 0)
    value = numpy_helper.from_array(np.array([number]).astype(output.dtype))
    return writer.op("ConstantOfShape", writer.shape(output.dims), value=value)


@converts("_arange", "_npi_arange", "_contrib_arange_like", "_linspace", "_eye")
@converts("_npi_eye", "_npi_identity")
def of_shape_only(operator: Operator, writer: Writer) -> str:
    """Write what MXNet computes from constants and shapes as a constant."""
    output = operator.outputs[0]
    sizes = [output.size(axis) for axis in range(len(output.dims))]
    if "eye" in operator.operator or "identity" in operator.operator:
        return writer.constant(np.eye(sizes[0], sizes[1], operator.integer("k", 0), output.dtype))
    alone = "arange" in operator.operator and "like" not in operator.operator and operator.get("stop") is None
    start = 0.0 if alone else operator.real("start", 0)  # arange(20) ends at 20
    repeat = operator.integer("repeat", 1)
    places = np.arange(int(np.prod(sizes)), dtype=np.float64) // repeat
    if "linspace" in operator.operator:
        step = (operator.real("stop", 1) - start) / max(len(places) - operator.flag("endpoint", True), 1)
    else:
        step = operator.real("step", 1)
    return writer.constant((start + places * step).reshape(sizes).astype(output.dtype))


@converts("shape_array", "size_array")
def shape_array(operator: Operator, writer: Writer) -> str:
    made = writer.op("Shape", operator.inputs[0])
    return made if operator.operator == "shape_array" else writer.op("ReduceProd", made, axes=[0], keepdims=1)


@converts("diag")
def diag(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    square = len(data.dims) == 2 and data.dims[0] == data.dims[1]
    operator.refuse((not square or operator.get("k", 0), "only the main diagonal of a square matrix is converted"))
    eye = np.eye(data.size(0), dtype=data.dtype)
    return writer.op("ReduceSum", writer.op("Mul", data, like(data, 1) * eye), integers(1), keepdims=0)
