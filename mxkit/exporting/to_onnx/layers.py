"""Conversions of layers: convolutions, norms, products, pooling, recurrent layers, attention, detectors' boxes."""

import math
from typing import Any, Dict, List, Sequence, Tuple

from mxkit.exporting.to_onnx.onnx_writer import Batch, Operator, Size, Tensor, Writer, converts, integers
import numpy as np


def check_layout(operator: Operator) -> None:
    """Refuse layouts with the channels last."""
    layout = operator.text("layout")
    text = f"layout {layout}: MXNet computes it on a GPU only. Transpose the input to NCHW in the net"
    operator.refuse((layout not in ("", "NCW", "NCHW", "NCDHW"), text))


@converts("Convolution", "Deconvolution")
def convolution(operator: Operator, writer: Writer) -> str:
    check_layout(operator)
    data, kernel = operator.inputs[0], operator.ints("kernel")
    count = len(kernel)
    stride, dilate = operator.sizes("stride", count, 1), operator.sizes("dilate", count, 1)
    pad, more = operator.sizes("pad", count, 0), {}
    if operator.operator == "Deconvolution":
        adjusted, target = operator.sizes("adj", count, 0), operator.sizes("target_shape", count, 0)
        if any(target):  # it replaces pad and adj
            ends = zip(map(data.size, range(2, count + 2)), kernel, stride, dilate, target)
            full = [step * (size - 1) + (wide - 1) * apart + 1 - end for size, wide, step, apart, end in ends]
            pad, adjusted = [(size + 1) // 2 for size in full], [size % 2 for size in full]
        more = {"output_padding": adjusted}
    sizes = {"kernel_shape": kernel, "pads": [*pad, *pad], "strides": stride, "dilations": dilate, **more}
    kind = "ConvTranspose" if more else "Conv"
    return writer.op(kind, *operator.inputs, group=operator.integer("num_group"), **sizes)


@converts("FullyConnected")
def fully_connected(operator: Operator, writer: Writer) -> str:
    data, weight, *bias = operator.inputs
    if operator.flag("flatten"):
        flat = data.name if len(data.dims) == 2 else writer.op("Flatten", data, axis=1)
        return writer.op("Gemm", flat, weight, *bias, transB=1)
    made = writer.op("MatMul", data, writer.transpose(weight, 1, 0))
    return writer.op("Add", made, bias[0]) if bias else made


@converts("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm")
def batch_norm(operator: Operator, writer: Writer) -> str:
    data, gamma, beta, mean, variance = operator.inputs
    operator.refuse((operator.flag("output_mean_var"), "output_mean_var=True"))
    axis = operator.axis(1)
    eps = operator.real("eps")
    scale: Any = np.ones(gamma.dims, gamma.dtype) if operator.flag("fix_gamma") else gamma
    if axis == 1:
        return writer.op("BatchNormalization", data, scale, beta, mean, variance, epsilon=eps)
    scale = writer.op("Div", scale, writer.op("Sqrt", writer.op("Add", variance, variance.like(eps))))
    shift = writer.op("Sub", beta, writer.op("Mul", mean, scale))
    shape = tuple(gamma.size(0) if place == axis else 1 for place in range(operator.rank))
    return writer.op("Add", writer.op("Mul", data, writer.reshape(scale, shape)), writer.reshape(shift, shape))


@converts("LayerNorm")
def layer_norm(operator: Operator, writer: Writer) -> str:
    data, gamma, beta = operator.inputs
    operator.refuse((operator.flag("output_mean_var"), "output_mean_var=True"))
    ndim = len(data.dims)
    axis = operator.integer("axis") % ndim
    eps = operator.real("eps")
    if axis == ndim - 1:
        return writer.op("LayerNormalization", data, gamma, beta, axis=-1, epsilon=eps)
    order = [*(index for index in range(ndim) if index != axis), axis]
    made = writer.op("LayerNormalization", writer.transpose(data, *order), gamma, beta, axis=-1, epsilon=eps)
    return writer.transpose(made, *np.argsort(order).tolist())


@converts("GroupNorm")
def group_norm(operator: Operator, writer: Writer) -> str:
    data, gamma, beta = operator.inputs
    operator.refuse((operator.flag("output_mean_var"), "output_mean_var=True"))
    groups = operator.integer("num_groups")
    operator.refuse((gamma.dims != (groups,), f"gamma has the shape {gamma.dims}, not ({groups},)"))
    # MXNet 1.9.1 scales each group by one number, as InstanceNorm does with channels
    size = math.prod(data.size(axis) for axis in range(1, len(data.dims)))
    grouped = writer.reshape(data, (data.dims[0], groups, size // groups))
    made = writer.op("InstanceNormalization", grouped, gamma, beta, epsilon=operator.real("eps"))
    return writer.reshape(made, operator.outputs[0].dims)


@converts("L2Normalization")
def l2_normalization(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    ndim = len(data.dims)
    axes = {"instance": range(1, ndim), "channel": [1], "spatial": range(2, ndim)}[operator.get("mode")]
    total = writer.op("ReduceSumSquare", data, axes=list(axes), keepdims=1)
    return writer.op("Div", data, writer.op("Sqrt", writer.op("Add", total, data.like(operator.real("eps")))))


@converts("Dropout")
def dropout(operator: Operator, writer: Writer) -> str:
    operator.refuse((operator.get("mode") != "training", "mode='always' draws random numbers"))
    return operator.inputs[0].name


@converts("softmax", "log_softmax", "softmin")
def softmax(operator: Operator, writer: Writer) -> str:
    data, axis, heat = operator.inputs[0], operator.axis(), operator.real("temperature")
    made: Any = data
    made = writer.op("Neg", made) if operator.operator == "softmin" else made
    made = writer.op("Div", made, data.like(heat)) if heat else made
    kind = "LogSoftmax" if "log" in operator.operator else "Softmax"
    if operator.flag("use_length"):
        operator.refuse((kind != "Softmax", "use_length"))
        inside = _inside(data, operator.inputs[1], axis, writer)
        made = writer.op("Softmax", writer.op("Where", inside, made, data.like(-np.inf)), axis=axis)
        made = writer.op("Where", inside, made, data.like(0))
    else:
        made = writer.op(kind, made, axis=axis)
    return made if operator.outputs[0].dtype == data.dtype else writer.cast(made, operator.outputs[0].dtype)


def _inside(data: Tensor, length: Tensor, axis: int, writer: Writer) -> str:
    """Write whether each element stands before the length of its row."""
    places = [1] * len(data.dims)
    places[axis] = data.size(axis)
    counted = np.arange(data.size(axis), dtype=np.int64).reshape(places)
    return writer.op("Less", counted, writer.op("Unsqueeze", writer.cast(length, np.int64), integers(axis)))


@converts("UpSampling")
def upsampling(operator: Operator, writer: Writer) -> str:
    several = operator.get("sample_type") != "nearest" or len(operator.inputs) > 1
    operator.refuse((several, "sample_type='bilinear', or several inputs"))
    scales = np.array([1, 1, *[operator.integer("scale")] * 2], np.float32)
    mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return writer.op("Resize", operator.inputs[0], "", scales, **mode)


@converts("norm", "_npi_norm")
def norm(operator: Operator, writer: Writer) -> str:
    order = operator.get("ord")
    operator.refuse((order not in (1, 2), f"ord={order}"))
    made = writer.op("ReduceL1" if order == 1 else "ReduceL2", operator.inputs[0], axes=operator.axes(), keepdims=0)
    return writer.reshape(made, operator.outputs[0].dims)


def _turned(tensor: Tensor, turn: bool, writer: Writer) -> Any:
    """Write a Transpose that swaps the last two axes."""
    ndim = len(tensor.dims)
    return writer.transpose(tensor, *range(ndim - 2), ndim - 1, ndim - 2) if turn else tensor


@converts("dot", "_np_dot")
def dot(operator: Operator, writer: Writer) -> str:
    ranks = [len(tensor.dims) for tensor in operator.inputs]
    turns = operator.flag("transpose_a"), operator.flag("transpose_b")
    operator.refuse(
        (ranks[1] > 2 or 0 in ranks, "a second array of more than two axes, or a number"),
        (ranks[0] > 2 and any(turns), "a transposed array of more than two axes"),
    )
    turned = [_turned(tensor, turn and len(tensor.dims) == 2, writer) for tensor, turn in zip(operator.inputs, turns)]
    made = writer.op("MatMul", *turned)
    return writer.reshape(made, operator.outputs[0].dims) if ranks == [1, 1] else made


@converts("batch_dot", "_linalg_gemm2", "_linalg_gemm", "_npi_matmul")
def batch_dot(operator: Operator, writer: Writer) -> str:
    first, second, *added = operator.inputs
    operator.refuse((operator.integer("axis", -2) != -2, "an axis other than -2"))
    turned = _turned(first, operator.flag("transpose_a"), writer), _turned(second, operator.flag("transpose_b"), writer)
    made = writer.op("MatMul", *turned)
    alpha, beta = operator.real("alpha", 1), operator.real("beta", 1)
    made = writer.op("Mul", made, first.like(alpha)) if alpha != 1 else made
    if added:
        made = writer.op("Add", made, writer.op("Mul", added[0], first.like(beta)))
    return made


@converts("Pooling")
def pooling(operator: Operator, writer: Writer) -> str:
    check_layout(operator)
    data, kind, convention = operator.inputs[0], operator.get("pool_type"), operator.get("pooling_convention")
    text = f"pool_type={kind!r}, pooling_convention={convention!r}"
    operator.refuse((kind not in ("max", "avg") or convention == "same", text))
    if operator.flag("global_pool"):
        return writer.op("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", data)
    if kind == "max":
        return _windows("MaxPool", operator, writer)
    with_border = operator.flag("count_include_pad", True)
    kernel, _, pads = _geometry(operator)
    count = len(kernel)
    if pads[:count] == pads[count:] and all(size > pad for size, pad in zip(kernel, pads)):
        return _windows("AveragePool", operator, writer, count_include_pad=int(with_border))
    # A window beyond the border is divided by the part of it that MXNet counts
    mean = _windows("AveragePool", operator, writer, count_include_pad=1)
    share = math.prod(kernel) / np.maximum(_counts(operator, with_border), 1)
    return writer.op("Mul", mean, share.astype(data.dtype))


def _windows(kind: str, operator: Operator, writer: Writer, **attributes: Any) -> str:
    kernel, stride, pads = _geometry(operator)
    data: Any = operator.inputs[0]
    if any(pad >= size for pad, size in zip(pads, kernel * 2)):  # ONNX pools only with less padding than a window
        value = data.like(float(np.finfo(np.float32).min) if kind == "MaxPool" else 0)
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


# Order of MXNet's gates by ONNX's: i, o, f, c of MXNet's i, f, c, o; z, r, n of r, z, n
_GATES = {"lstm": [0, 3, 1, 2], "gru": [1, 0, 2], "rnn_tanh": [0], "rnn_relu": [0]}


@converts("RNN")
def recurrent(operator: Operator, writer: Writer) -> List[str]:
    operator.refuse(
        (operator.get("projection_size"), "projection_size"),
        (operator.get("lstm_state_clip_min") is not None, "lstm_state_clip_min"),
        (operator.get("lstm_state_clip_max") is not None, "lstm_state_clip_max"),
    )
    data, flat, *more = operator.inputs
    mode, width, layers = operator.get("mode"), operator.integer("state_size"), operator.integer("num_layers")
    sides = 2 if operator.flag("bidirectional") else 1
    states, more = (more[:2], more[2:]) if mode == "lstm" else (more[:1], more[1:])
    lengths: Any = writer.cast(more[0], np.int32) if operator.flag("use_sequence_length") else ""
    attributes: Dict[str, Any] = {"hidden_size": width, "direction": "bidirectional" if sides == 2 else "forward"}
    if mode == "gru":
        attributes["linear_before_reset"] = 1  # MXNet applies the reset after the product
    if mode == "rnn_relu":
        attributes["activations"] = ["Relu"] * sides
    weights = _weights(flat, _GATES[mode], width, [data.size(2), *[width * sides] * (layers - 1)], sides, writer)
    made: Any = data
    last: List[List[str]] = []
    for layer in range(layers):
        initial = [writer.slice(state, layer * sides, (layer + 1) * sides, 0) for state in states]
        inputs = made, *weights[layer], lengths, *initial
        computed = writer.ops(mode.partition("_")[0].upper(), 1 + len(initial), *inputs, **attributes)
        made = writer.reshape(writer.transpose(computed[0], 0, 2, 1, 3), (*data.dims[:2], sides * width))
        last.append(computed[1:])
    joined = [writer.op("Concat", *parts, axis=0) for parts in zip(*last)]
    return [made, *joined][: len(operator.outputs)]


def _weights(
    flat: Any, gates: Sequence[int], width: int, sizes: Sequence[int], sides: int, writer: Writer
) -> List[List[str]]:
    """Write W, R and B of each layer, cut out of the vector: weights of all layers first, then all biases."""
    columns = [one for size in sizes for _ in range(sides) for one in (size, width)]
    count, start, parts = len(columns), 0, []
    for column in [*columns, *[1] * count]:
        end = start + len(gates) * width * column
        made = writer.reshape(writer.slice(flat, start, end, 0), (len(gates), width, column))
        made = writer.op("Gather", made, integers(*gates), axis=0) if len(gates) > 1 else made
        parts.append(writer.reshape(made, (1, len(gates) * width, column)))
        start = end
    pairs = (writer.op("Concat", *parts[at : at + 2], axis=1) for at in range(count, 2 * count, 2))
    biases = [writer.op("Reshape", pair, integers(1, -1)) for pair in pairs]
    layers = []
    for at in range(0, count, 2 * sides):
        of_layer = parts[at : at + 2 * sides]
        three = of_layer[::2], of_layer[1::2], biases[at // 2 : at // 2 + sides]
        layers.append([writer.op("Concat", *part, axis=0) if sides > 1 else part[0] for part in three])
    return layers


def _part(tensor: Tensor, heads: int, parts: int, number: int, writer: Writer) -> Tuple[str, int]:
    """Write one of `parts` arrays that lie side by side in each head, as (batch * heads, length, width)."""
    length, batch, size = tensor.dims
    width = tensor.size(2) // heads // parts
    made: Any = writer.reshape(tensor, (length, batch, heads, parts, width))
    made = writer.op("Squeeze", writer.slice(made, number, number + 1, 3), integers(3))
    return writer.reshape(writer.transpose(made, 1, 2, 0, 3), (_times(batch, heads), length, width)), width


def _times(batch: Size, count: int) -> Size:
    return Batch(batch.factor * count, batch.offset * count) if isinstance(batch, Batch) else batch * count


@converts("_contrib_interleaved_matmul_selfatt_qk", "_contrib_interleaved_matmul_encdec_qk")
def attention_scores(operator: Operator, writer: Writer) -> str:
    heads, data, of_one = operator.integer("heads"), operator.inputs[0], "selfatt" in operator.operator
    query, width = _part(data, heads, 3 if of_one else 1, 0, writer)
    key, _ = _part(operator.inputs[-1], heads, 3 if of_one else 2, int(of_one), writer)
    scaled = writer.op("Div", query, data.like(math.sqrt(width)))
    return writer.op("MatMul", scaled, writer.transpose(key, 0, 2, 1))


@converts("_contrib_interleaved_matmul_selfatt_valatt", "_contrib_interleaved_matmul_encdec_valatt")
def attention_values(operator: Operator, writer: Writer) -> str:
    heads = operator.integer("heads")
    parts = 3 if "selfatt" in operator.operator else 2
    data, weights = operator.inputs
    value, width = _part(data, heads, parts, parts - 1, writer)
    length, batch, _ = operator.outputs[0].dims
    made = writer.reshape(writer.op("MatMul", weights, value), (batch, heads, length, width))
    return writer.reshape(writer.transpose(made, 2, 0, 1, 3), operator.outputs[0].dims)


@converts("_contrib_ROIAlign")
def roi_align(operator: Operator, writer: Writer) -> str:
    data, boxes = operator.inputs
    height, width = operator.ints("pooled_size")
    image = writer.op("Squeeze", writer.cast(writer.slice(boxes, 0, 1, 1), np.int64), integers(1))
    made = writer.op(
        "RoiAlign",
        data,
        writer.slice(boxes, 1, 5, 1),
        image,
        output_height=height,
        output_width=width,
        sampling_ratio=max(operator.integer("sample_ratio"), 0),
        spatial_scale=operator.real("spatial_scale"),
        coordinate_transformation_mode="half_pixel" if operator.flag("aligned") else "output_half_pixel",
    )
    if operator.flag("position_sensitive"):  # each cell has channels of its own
        cells = height * width
        made = writer.op("Reshape", made, integers(0, -1, cells * cells))
        made = writer.op("Gather", made, integers(*range(0, cells * cells, cells + 1)), axis=2)
        made = writer.op("Reshape", made, integers(0, 0, height, width))
    return made


@converts("_contrib_box_decode")
def box_decode(operator: Operator, writer: Writer) -> str:
    data, anchors = operator.inputs
    center, size = writer.ops("Split", 2, anchors, axis=2)
    if operator.get("format") == "corner":
        size = writer.op("Sub", size, center)
        center = writer.op("Add", center, writer.op("Mul", size, data.like(0.5)))
    scales = np.array([operator.real(f"std{number}", 1) for number in range(4)], data.dtype)
    move, growth = writer.ops("Split", 2, writer.op("Mul", data, scales), axis=2)
    limit = operator.real("clip")
    growth = writer.op("Min", growth, data.like(limit)) if limit > 0 else growth
    half = writer.op("Mul", writer.op("Mul", writer.op("Exp", growth), size), data.like(0.5))
    middle = writer.op("Add", writer.op("Mul", move, size), center)
    return writer.op("Concat", writer.op("Sub", middle, half), writer.op("Add", middle, half), axis=2)


@converts("_contrib_box_nms")
def box_nms(operator: Operator, writer: Writer) -> str:
    """Write MXNet's suppression: sort by score, then a loop over the boxes, each of which removes later ones."""
    data = operator.inputs[0]
    formats = operator.get("in_format"), operator.get("out_format")
    operator.refuse((formats != ("corner", "corner"), "boxes in the format center"))
    operator.refuse((len(data.dims) != 3, "boxes of other than three axes"))
    place, start = operator.integer("score_index"), operator.integer("coord_start")
    scores = _column(data, place, writer)
    usable = writer.op("Greater", scores, data.like(operator.real("valid_thresh")))
    kind, background = operator.integer("id_index"), operator.integer("background_id")
    if kind >= 0 and background >= 0:
        other = writer.op("Not", writer.op("Equal", _column(data, kind, writer), data.like(background)))
        usable = writer.op("And", usable, other)
    total = data.size(1)
    count = min(operator.integer("topk"), total) if operator.integer("topk") > 0 else total
    key = writer.op("Where", usable, scores, data.like(-np.inf))
    best, order = writer.ops("TopK", 2, key, integers(count), axis=1)
    rows = _rows(data, order, count, writer)
    corners = writer.slice(rows, start, start + 4, 2)
    near = writer.op("Greater", _overlaps(corners, data, writer), data.like(operator.real("overlap_thresh")))
    if kind >= 0 and not operator.flag("force_suppress"):
        ids = writer.slice(rows, kind, kind + 1, 2)
        near = writer.op("And", near, writer.op("Equal", ids, writer.transpose(ids, 0, 2, 1)))
    usable = writer.op("Greater", best, data.like(-np.inf))
    return _compacted(operator, rows, _survivors(near, usable, writer), count, writer)


def _column(data: Any, place: int, writer: Writer) -> str:
    return writer.op("Squeeze", writer.slice(data, place, place + 1, 2), integers(2))


def _rows(data: Any, order: str, count: int, writer: Writer) -> str:
    """Write the rows of each sample in the given order."""
    width = data.size(2)
    places = writer.op("Unsqueeze", order, integers(2))
    places = writer.op("Expand", places, integers(1, count, width))
    return writer.op("GatherElements", data, places, axis=1)


def _overlaps(corners: str, data: Any, writer: Writer) -> str:
    """Write intersection over union of each box with each other one of its sample."""
    sides = writer.ops("Split", 4, corners, axis=2)
    turned = [writer.transpose(side, 0, 2, 1) for side in sides]
    zero = data.like(0)
    spans = []
    for axis in (0, 1):
        low = writer.op("Max", sides[axis], turned[axis])
        high = writer.op("Min", sides[axis + 2], turned[axis + 2])
        spans.append(writer.op("Max", writer.op("Sub", high, low), zero))
    common = writer.op("Mul", *spans)
    lengths = [writer.op("Max", writer.op("Sub", sides[axis + 2], sides[axis]), zero) for axis in (0, 1)]
    area = writer.op("Mul", *lengths)
    union = writer.op("Sub", writer.op("Add", area, writer.transpose(area, 0, 2, 1)), common)
    none = writer.op("LessOrEqual", common, zero)
    return writer.op("Where", none, zero, writer.op("Div", common, writer.op("Where", none, data.like(1), union)))


def _survivors(near: str, usable: str, writer: Writer) -> str:
    """Write which boxes stay: a Scan over the boxes in order, whose state is the boxes not yet removed."""
    from onnx import parser

    body = parser.parse_graph("""
        suppression (bool[?, ?] nms_left, bool[?, ?] nms_row, bool[?] nms_place) => (bool[?, ?] nms_next) {
            nms_here = And (nms_place, nms_left)
            nms_number = Cast <to = 1> (nms_here)
            nms_most = ReduceMax <axes = [1], keepdims = 1> (nms_number)
            nms_stays = Cast <to = 9> (nms_most)
            nms_removed = And (nms_stays, nms_row)
            nms_others = Not (nms_removed)
            nms_next = And (nms_left, nms_others)
        }""")
    scanned = _scanned(near, usable, writer)
    return writer.op("Scan", usable, *scanned, body=body, num_scan_inputs=2, scan_input_axes=[1, 0])


def _scanned(near: str, usable: str, writer: Writer) -> Tuple[str, str]:
    """Write, for each box in order, which later boxes it removes, and its own place."""
    later = writer.op("Trilu", writer.cast(near, np.int32), np.int64(1), upper=1)
    size = writer.op("Shape", usable, start=1, end=2)
    square = writer.op("Expand", np.array([[1]], np.int32), writer.op("Concat", size, size, axis=0))
    return writer.cast(later, np.bool_), writer.cast(writer.op("EyeLike", square), np.bool_)


def _compacted(operator: Operator, rows: str, stays: str, count: int, writer: Writer) -> str:
    """Write the surviving rows first, in their order, and -1 in all rows after them."""
    data = operator.inputs[0]
    rank = writer.op("Where", stays, np.arange(count, 0, -1, dtype=np.float32), np.float32(0))
    left, order = writer.ops("TopK", 2, rank, integers(count), axis=1)
    kept = writer.op("Unsqueeze", writer.op("Greater", left, np.float32(0)), integers(2))
    made = writer.op("Where", kept, _rows(data._replace(name=rows), order, count, writer), data.like(-1))
    if count == data.size(1):
        return made
    return writer.op("Pad", made, integers(0, 0, 0, 0, data.size(1) - count, 0), data.like(-1))
