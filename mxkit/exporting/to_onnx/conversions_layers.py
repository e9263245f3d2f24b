"""Conversions of convolutions, normalizations and other layers."""

import math
from typing import Any, List

from mxkit.exporting.to_onnx.onnx_writer import (
    Operator,
    Tensor,
    Unsupported,
    Writer,
    axes_of,
    converts,
    integers,
    like,
    spread,
)
import numpy as np


def check_layout(operator: Operator) -> None:
    """Refuse layouts with the channels last."""
    layout = operator.text("layout")
    if layout not in ("", "NCW", "NCHW", "NCDHW"):
        raise Unsupported(f"layout {layout}: MXNet computes it on a GPU only. Transpose the input to NCHW in the net")


@converts("Convolution")
def convolution(operator: Operator, writer: Writer) -> str:
    check_layout(operator)
    kernel = operator.ints("kernel")
    pad = operator.sizes("pad", len(kernel), 0)
    return writer.op(
        "Conv",
        *operator.inputs,
        kernel_shape=kernel,
        pads=[*pad, *pad],
        strides=operator.sizes("stride", len(kernel), 1),
        dilations=operator.sizes("dilate", len(kernel), 1),
        group=operator.integer("num_group", 1),
    )


@converts("Deconvolution")
def deconvolution(operator: Operator, writer: Writer) -> str:
    check_layout(operator)
    data = operator.inputs[0]
    kernel = operator.ints("kernel")
    count = len(kernel)
    stride, dilate = operator.sizes("stride", count, 1), operator.sizes("dilate", count, 1)
    pad, adjusted = operator.sizes("pad", count, 0), operator.sizes("adj", count, 0)
    target = operator.sizes("target_shape", count, 0)
    if any(target):  # it replaces pad and adj
        full = [
            stride[axis] * (data.size(axis + 2) - 1) + (kernel[axis] - 1) * dilate[axis] + 1 - target[axis]
            for axis in range(count)
        ]
        pad, adjusted = [(size + 1) // 2 for size in full], [size % 2 for size in full]
    return writer.op(
        "ConvTranspose",
        *operator.inputs,
        kernel_shape=kernel,
        pads=[*pad, *pad],
        strides=stride,
        dilations=dilate,
        output_padding=adjusted,
        group=operator.integer("num_group", 1),
    )


@converts("FullyConnected")
def fully_connected(operator: Operator, writer: Writer) -> str:
    data, weight, *bias = operator.inputs
    if operator.flag("flatten", True):
        flat = data.name if len(data.dims) == 2 else writer.op("Flatten", data, axis=1)
        return writer.op("Gemm", flat, weight, *bias, transB=1)
    made = writer.op("MatMul", data, writer.transpose(weight, 1, 0))
    return writer.op("Add", made, bias[0]) if bias else made


@converts("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm")
def batch_norm(operator: Operator, writer: Writer) -> str:
    data, gamma, beta, mean, variance = operator.inputs
    operator.refuse((operator.flag("output_mean_var"), "output_mean_var=True"))
    axis = operator.axis(1)
    eps = operator.real("eps", 1e-3)
    scale: Any = np.ones(gamma.dims, gamma.dtype) if operator.flag("fix_gamma", True) else gamma
    if axis == 1:
        return writer.op("BatchNormalization", data, scale, beta, mean, variance, epsilon=eps)
    scale = writer.op("Div", scale, writer.op("Sqrt", writer.op("Add", variance, like(variance, eps))))
    shift = writer.op("Sub", beta, writer.op("Mul", mean, scale))
    shape = tuple(spread(gamma, axis, len(data.dims)))
    return writer.op("Add", writer.op("Mul", data, writer.reshape(scale, shape)), writer.reshape(shift, shape))


@converts("LayerNorm")
def layer_norm(operator: Operator, writer: Writer) -> str:
    data, gamma, beta = operator.inputs
    operator.refuse((operator.flag("output_mean_var"), "output_mean_var=True"))
    ndim = len(data.dims)
    axis = operator.integer("axis", -1) % ndim
    eps = operator.real("eps", 1e-5)
    if axis == ndim - 1:
        return writer.op("LayerNormalization", data, gamma, beta, axis=-1, epsilon=eps)
    order = [*(index for index in range(ndim) if index != axis), axis]
    made = writer.op("LayerNormalization", writer.transpose(data, *order), gamma, beta, axis=-1, epsilon=eps)
    return writer.transpose(made, *np.argsort(order).tolist())


@converts("GroupNorm")
def group_norm(operator: Operator, writer: Writer) -> str:
    data, gamma, beta = operator.inputs
    operator.refuse((operator.flag("output_mean_var"), "output_mean_var=True"))
    groups = operator.integer("num_groups", 1)
    operator.refuse((gamma.dims != (groups,), f"gamma has the shape {gamma.dims}, not ({groups},)"))
    # MXNet 1.9.1 scales each group by one number, as InstanceNorm does with channels
    size = math.prod(data.size(axis) for axis in range(1, len(data.dims)))
    grouped = writer.reshape(data, (data.dims[0], groups, size // groups))
    made = writer.op("InstanceNormalization", grouped, gamma, beta, epsilon=operator.real("eps", 1e-5))
    return writer.reshape(made, operator.outputs[0].dims)


@converts("L2Normalization")
def l2_normalization(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    ndim = len(data.dims)
    axes = {"instance": range(1, ndim), "channel": [1], "spatial": range(2, ndim)}[operator.get("mode", "instance")]
    total = writer.op("ReduceSumSquare", data, axes=list(axes), keepdims=1)
    root = writer.op("Sqrt", writer.op("Add", total, like(data, operator.real("eps", 1e-10))))
    return writer.op("Div", data, root)


@converts("Dropout")
def dropout(operator: Operator, writer: Writer) -> str:
    operator.refuse((operator.get("mode", "training") != "training", "mode='always' draws random numbers"))
    return operator.inputs[0].name


@converts("Embedding")
def embedding(operator: Operator, writer: Writer) -> str:
    data, weight = operator.inputs
    return writer.op("Gather", weight, clipped(data, weight.size(0), writer), axis=0)


def clipped(indices: Tensor, size: int, writer: Writer) -> str:
    """Write indices as int64, clipped to an axis of `size`, as MXNet does."""
    return writer.op("Clip", writer.cast(indices, np.int64), np.int64(0), np.int64(size - 1))


@converts("softmax", "log_softmax", "softmin")
def softmax(operator: Operator, writer: Writer) -> str:
    data, axis, heat = operator.inputs[0], operator.axis(), operator.real("temperature")
    made: Any = data
    made = writer.op("Neg", made) if operator.operator == "softmin" else made
    made = writer.op("Div", made, like(data, heat)) if heat else made
    kind = "LogSoftmax" if "log" in operator.operator else "Softmax"
    if operator.flag("use_length"):
        operator.refuse((kind != "Softmax", "use_length"))
        inside = _inside(data, operator.inputs[1], axis, writer)
        made = writer.op("Softmax", writer.op("Where", inside, made, like(data, -np.inf)), axis=axis)
        made = writer.op("Where", inside, made, like(data, 0))
    else:
        made = writer.op(kind, made, axis=axis)
    return made if operator.outputs[0].dtype == data.dtype else writer.cast(made, operator.outputs[0].dtype)


def _inside(data: Tensor, length: Tensor, axis: int, writer: Writer) -> str:
    """Write whether each element stands before the length of its row."""
    places = [1] * len(data.dims)
    places[axis] = data.size(axis)
    counted = np.arange(data.size(axis), dtype=np.int64).reshape(places)
    return writer.op("Less", counted, writer.op("Unsqueeze", writer.cast(length, np.int64), integers(axis)))


@converts("SoftmaxActivation")
def softmax_activation(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    if operator.get("mode", "instance") == "channel":
        return writer.op("Softmax", data, axis=1)
    # MXNet documents a softmax over all axes but the first, and computes one over the last axis
    return writer.op("Softmax", data, axis=-1)


@converts("UpSampling")
def upsampling(operator: Operator, writer: Writer) -> str:
    scale = operator.integer("scale")
    if operator.get("sample_type") == "bilinear":
        return writer.op(
            "ConvTranspose",
            *operator.inputs,
            strides=[scale] * 2,
            pads=[math.ceil((scale - 1) / 2)] * 4,
            group=operator.inputs[0].size(1),
        )
    height, width = (operator.outputs[0].size(axis) for axis in (2, 3))
    grown: List[str] = []
    for data in operator.inputs:
        scales = np.array([1, 1, height // data.size(2), width // data.size(3)], np.float32)
        mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        grown.append(writer.op("Resize", data, "", scales, **mode))
    if operator.get("multi_input_mode", "concat") == "sum":
        return writer.op("Sum", *grown)
    return writer.op("Concat", *grown, axis=1)


@converts("_contrib_BilinearResize2D")
def bilinear_resize(operator: Operator, writer: Writer) -> str:
    corners = operator.flag("align_corners", True)
    return writer.op(
        "Resize",
        operator.inputs[0],
        "",
        "",
        writer.shape(operator.outputs[0].dims),
        mode="linear",
        coordinate_transformation_mode="align_corners" if corners else "half_pixel",
    )


@converts("Pad")
def pad(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    widths = list(operator.get("pad_width"))
    value = like(data, operator.real("constant_value", 0))
    mode = operator.get("mode")
    return writer.op("Pad", data, integers(*widths[::2], *widths[1::2]), value, mode=mode)


@converts("norm", "_npi_norm")
def norm(operator: Operator, writer: Writer) -> str:
    order = operator.get("ord", 2)
    operator.refuse((order not in (1, 2), f"ord={order}"))
    kind = "ReduceL1" if order == 1 else "ReduceL2"
    made = writer.op(kind, operator.inputs[0], axes=axes_of(operator), keepdims=0)
    return writer.reshape(made, operator.outputs[0].dims)
