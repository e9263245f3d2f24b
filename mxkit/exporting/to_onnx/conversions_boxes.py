"""Conversions of detectors' boxes: anchors, decoding, and non-maximum suppression step by step."""

from typing import Any, List, Tuple

from mxkit.exporting.to_onnx.onnx_writer import Operator, Writer, converts, integers, like
import mxnet as mx
import numpy as np


@converts("_contrib_MultiBoxPrior")
def anchors(operator: Operator, writer: Writer) -> str:
    """Write the anchors as a constant: they depend on the map's height and width only."""
    data = operator.inputs[0]
    given = {name: operator.get(name) for name in ("sizes", "ratios", "clip", "steps", "offsets")}
    known = {name: value for name, value in given.items() if value is not None}
    size = mx.nd.zeros((1, 1, data.size(2), data.size(3)))
    return writer.constant(mx.nd.contrib.MultiBoxPrior(size, **known).asnumpy())


@converts("_contrib_box_decode")
def box_decode(operator: Operator, writer: Writer) -> str:
    data, anchors = operator.inputs
    boxes: List[Any] = writer.ops("Split", 4, anchors, axis=2)
    if operator.get("format", "center") == "corner":
        boxes = _to_center(boxes, like(data, 0.5), writer)
    moves = writer.ops("Split", 4, data, axis=2)
    moves = [writer.op("Mul", move, like(data, operator.real(f"std{n}", 1))) for n, move in enumerate(moves)]
    limit = operator.real("clip", -1)
    sizes = [writer.op("Min", move, like(data, limit)) if limit > 0 else move for move in moves[2:]]
    halves = [
        writer.op("Mul", writer.op("Mul", writer.op("Exp", size), box), like(data, 0.5))
        for size, box in zip(sizes, boxes[2:])
    ]
    centers = [
        writer.op("Add", writer.op("Mul", move, box), center)
        for move, box, center in zip(moves[:2], boxes[2:], boxes[:2])
    ]
    low = [writer.op("Sub", center, half) for center, half in zip(centers, halves)]
    high = [writer.op("Add", center, half) for center, half in zip(centers, halves)]
    return writer.op("Concat", *low, *high, axis=2)


def _to_center(corners: List[Any], half: Any, writer: Writer) -> List[Any]:
    sizes = [writer.op("Sub", corners[axis + 2], corners[axis]) for axis in (0, 1)]
    centers = [writer.op("Add", corners[axis], writer.op("Mul", sizes[axis], half)) for axis in (0, 1)]
    return [*centers, *sizes]


@converts("_contrib_box_nms")
def box_nms(operator: Operator, writer: Writer) -> str:
    """Write MXNet's suppression: sort by score, then a loop over the boxes, each of which removes later ones."""
    data = operator.inputs[0]
    formats = operator.get("in_format", "corner"), operator.get("out_format", "corner")
    operator.refuse((formats != ("corner", "corner"), "boxes in the format center"))
    operator.refuse((len(data.dims) != 3, "boxes of other than three axes"))
    place, start = operator.integer("score_index", 1), operator.integer("coord_start", 2)
    scores = _column(data, place, writer)
    usable = writer.op("Greater", scores, like(data, operator.real("valid_thresh", 0)))
    kind, background = operator.integer("id_index", -1), operator.integer("background_id", -1)
    if kind >= 0 and background >= 0:
        other = writer.op("Not", writer.op("Equal", _column(data, kind, writer), like(data, background)))
        usable = writer.op("And", usable, other)
    total = data.size(1)
    count = min(operator.integer("topk", -1), total) if operator.integer("topk", -1) > 0 else total
    key = writer.op("Where", usable, scores, like(data, -np.inf))
    best, order = writer.ops("TopK", 2, key, integers(count), axis=1)
    rows = _rows(data, order, count, writer)
    corners = writer.slice(rows, start, start + 4, 2)
    near = writer.op("Greater", _overlaps(corners, data, writer), like(data, operator.real("overlap_thresh", 0.5)))
    if kind >= 0 and not operator.flag("force_suppress"):
        ids = writer.slice(rows, kind, kind + 1, 2)
        near = writer.op("And", near, writer.op("Equal", ids, writer.transpose(ids, 0, 2, 1)))
    usable = writer.op("Greater", best, like(data, -np.inf))
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
    zero = like(data, 0)
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
    return writer.op("Where", none, zero, writer.op("Div", common, writer.op("Where", none, like(data, 1), union)))


def _survivors(near: str, usable: str, writer: Writer) -> str:
    """Write which boxes stay: a Scan over the boxes in order, whose state is the boxes not yet removed."""
    from onnx import TensorProto, helper

    def info(name: str, *dims: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.BOOL, dims)

    place = writer.prefix
    body = helper.make_graph(
        [
            helper.make_node("And", [f"{place}/place", f"{place}/left"], [f"{place}/here"]),
            helper.make_node("Cast", [f"{place}/here"], [f"{place}/number"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMax", [f"{place}/number"], [f"{place}/most"], axes=[1], keepdims=1),
            helper.make_node("Cast", [f"{place}/most"], [f"{place}/stays"], to=TensorProto.BOOL),
            helper.make_node("And", [f"{place}/stays", f"{place}/row"], [f"{place}/removed"]),
            helper.make_node("Not", [f"{place}/removed"], [f"{place}/others"]),
            helper.make_node("And", [f"{place}/left", f"{place}/others"], [f"{place}/next"]),
        ],
        "suppression",
        [info(f"{place}/left", None, None), info(f"{place}/row", None, None), info(f"{place}/place", None)],
        [info(f"{place}/next", None, None)],
    )
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
    made = writer.op("Where", kept, _rows(data._replace(name=rows), order, count, writer), like(data, -1))
    if count == data.size(1):
        return made
    return writer.op("Pad", made, integers(0, 0, 0, 0, data.size(1) - count, 0), like(data, -1))
