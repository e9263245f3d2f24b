"""Conversions of pooling, with MXNet's conventions about borders."""

import math
from typing import Any, List

from mxkit.exporting.to_onnx.conversions_elementwise import cube_root
from mxkit.exporting.to_onnx.conversions_layers import check_layout
from mxkit.exporting.to_onnx.onnx_writer import Operator, Unsupported, Writer, converts, like
import numpy as np


@converts("Pooling")
def pooling(operator: Operator, writer: Writer) -> str:
    check_layout(operator)
    data = operator.inputs[0]
    kind = operator.get("pool_type", "max")
    operator.refuse(
        (operator.get("pooling_convention") == "same", "pooling_convention='same', which MXNet computes for no input")
    )
    if operator.flag("global_pool"):
        return _of_all(operator, kind, writer)
    if kind == "max":
        return _windows("MaxPool", data, operator, writer)
    if kind == "avg":
        return _average(operator, writer)
    if kind == "sum":
        return _summed(data, operator, writer)
    order = operator.integer("p_value", 2)
    return _root(_summed(_power(data, order, writer), operator, writer), order, operator, writer)


def _of_all(operator: Operator, kind: str, writer: Writer) -> str:
    data = operator.inputs[0]
    if kind in ("max", "avg"):
        return writer.op("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", data)
    order = operator.integer("p_value", 2) if kind == "lp" else 1
    axes = np.arange(2, len(data.dims))
    total = writer.op("ReduceSum", _power(data, order, writer), axes, keepdims=1)
    return _root(total, order, operator, writer)


def _power(data: Any, order: int, writer: Writer) -> Any:
    made = data
    for _ in range(order - 1):
        made = writer.op("Mul", made, data)
    return made


def _root(total: str, order: int, operator: Operator, writer: Writer) -> str:
    if order == 1:
        return total
    return writer.op("Sqrt", total) if order == 2 else cube_root(total, operator.inputs[0], writer)


def _average(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    with_border = operator.flag("count_include_pad", True)
    kernel, _, pads = _geometry(operator)
    count = len(kernel)
    if pads[:count] == pads[count:] and all(size > pad for size, pad in zip(kernel, pads)):
        return _windows("AveragePool", data, operator, writer, count_include_pad=int(with_border))
    # A window beyond the border is divided by the part of it that MXNet counts
    total = _summed(data, operator, writer)
    return writer.op("Div", total, _counts(operator, with_border).astype(data.dtype))


def _summed(data: Any, operator: Operator, writer: Writer) -> str:
    kernel, _, _ = _geometry(operator)
    mean = _windows("AveragePool", data, operator, writer, count_include_pad=1)
    return writer.op("Mul", mean, like(operator.inputs[0], math.prod(kernel)))


def _windows(kind: str, data: Any, operator: Operator, writer: Writer, **attributes: Any) -> str:
    kernel, stride, pads = _geometry(operator)
    if any(pad >= size for pad, size in zip(pads, kernel * 2)):  # ONNX pools only with less padding than a window
        value = like(operator.inputs[0], float(np.finfo(np.float32).min) if kind == "MaxPool" else 0)
        begin, end = pads[: len(kernel)], pads[len(kernel) :]
        data = writer.op("Pad", data, np.array([0, 0, *begin, 0, 0, *end], np.int64), value)
        pads = [0] * len(pads)
    return writer.op(kind, data, kernel_shape=kernel, strides=stride, pads=pads, **attributes)


def _geometry(operator: Operator) -> Any:
    """Return kernel, stride and pads: `full` and `same` become padding at the end, to reach MXNet's output shape."""
    data, output = operator.inputs[0], operator.outputs[0]
    count = len(data.dims) - 2
    kernel = operator.sizes("kernel", count, 1)
    stride, pad = operator.sizes("stride", count, 1), operator.sizes("pad", count, 0)
    ends: List[int] = []
    for axis in range(count):
        size, made = data.size(axis + 2), output.size(axis + 2)
        ends.append(max(pad[axis], (made - 1) * stride[axis] + kernel[axis] - size - pad[axis]))
    return kernel, stride, [*pad, *ends]


def _counts(operator: Operator, with_border: bool) -> np.ndarray:
    """Return how many positions MXNet counts in each window: of the input, or with the stated padding too."""
    data, output = operator.inputs[0], operator.outputs[0]
    kernel, stride, pads = _geometry(operator)
    made = np.ones(())
    for axis, (size, step) in enumerate(zip(kernel, stride)):
        length, pad = data.size(axis + 2), pads[axis]
        begin = np.arange(output.size(axis + 2)) * step - pad
        end = np.minimum(begin + size, length + pad)
        if not with_border:
            begin, end = np.maximum(begin, 0), np.minimum(end, length)
        made = np.multiply.outer(made, end - begin)
    return made


@converts("_contrib_AdaptiveAvgPooling2D")
def adaptive_average(operator: Operator, writer: Writer) -> str:
    data, output = operator.inputs[0], operator.outputs[0]
    if output.dims[2:] == (1, 1):
        return writer.op("GlobalAveragePool", data)
    rows = _means(data.size(2), output.size(2)).astype(data.dtype)
    columns = _means(data.size(3), output.size(3)).astype(data.dtype)
    return writer.op("MatMul", rows, writer.op("MatMul", data, columns.T))


def _means(size: int, parts: int) -> np.ndarray:
    """Return the matrix that averages an axis over `parts` windows, which overlap where they do not divide it."""
    matrix = np.zeros((parts, size))
    for part in range(parts):
        begin, end = part * size // parts, -(-(part + 1) * size // parts)
        matrix[part, begin:end] = 1 / (end - begin)
    return matrix


@converts("_contrib_ROIAlign")
def roi_align(operator: Operator, writer: Writer) -> str:
    if operator.flag("position_sensitive"):
        raise Unsupported("position_sensitive=True")
    data, rois = operator.inputs
    height, width = operator.get("pooled_size")
    number = writer.slice(rois, 0, 1, 1)
    return writer.op(
        "RoiAlign",
        data,
        writer.slice(rois, 1, 5, 1),
        writer.reshape(writer.cast(number, np.int64), rois.dims[:1]),
        output_height=height,
        output_width=width,
        sampling_ratio=max(operator.integer("sample_ratio", -1), 0),
        spatial_scale=operator.real("spatial_scale", 1),
        coordinate_transformation_mode="half_pixel" if operator.flag("aligned") else "output_half_pixel",
    )
