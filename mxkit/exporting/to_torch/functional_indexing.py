"""Operators that select elements."""

from typing import Dict, Optional

from mxkit.exporting.to_torch.expression_parts import atom, binary, listed, literal, long_index
from mxkit.exporting.to_torch.node import Conversion, Node


def indexed(x: str, axis: int, rank: int, index: str) -> str:
    """Write an index on one axis: `x[:, 1:3]`, `x[..., 1:3]` for the last of several."""
    before = ["..."] if axis == rank - 1 and axis > 1 else [":"] * axis
    return f"{atom(x)}[{listed([*before, index])}]"


def span(begin: Optional[int], end: Optional[int], step: Optional[int] = None) -> str:
    """Write a slice: `1:3`, `::2`."""
    return f"{'' if begin in (None, 0) else begin}:{'' if end is None else end}" + (
        f":{step}" if step not in (None, 1) else ""
    )


def _slice(node: Node) -> str:
    begin, end = node.optional_ints("begin") or (), node.optional_ints("end") or ()
    step = node.optional_ints("step") or (None,) * len(begin)
    x, flipped, parts = atom(node.inputs[0]), [], []
    for axis, (first, last, by) in enumerate(zip(begin, end, (*step, *[None] * len(begin)))):
        if by is not None and by < 0:  # torch has no negative steps: the axis is turned first
            flipped.append(axis)
            first, last = (None if place is None else -1 - place for place in (first, last))
            by = -by
        parts.append(span(first, last, by))
    while parts and parts[-1] == ":":
        parts.pop()
    turned = f"{x}.flip({listed(map(str, flipped))})" if flipped else x
    return f"{turned}[{listed(parts)}]" if parts else turned


def _slice_axis(node: Node) -> str:
    axis = node.axis(0)
    end = node.integer("end")
    return indexed(node.inputs[0], axis, node.rank, span(node.integer("begin", 0), end))


def _slice_like(node: Node) -> str:
    x, like = (atom(value) for value in node.inputs)
    rank = node.rank
    axes = [axis % rank for axis in node.ints("axes") or tuple(range(rank))]
    parts = [f": {like}.shape[{axis}]" if axis in axes else ":" for axis in range(max(axes) + 1)]
    return f"{x}[{listed(parts)}]"


def _index_size(node: Node, axis: int) -> str:
    """Write the number of rows that an index may name; a literal for a parameter."""
    return str(node.shapes[0][axis]) if node.values[0] is not None else f"{atom(node.inputs[0])}.shape[{axis}]"


def _limited(node: Node, which: int, axis: int) -> str:
    """Write an index that is limited to its axis, as MXNet's mode says."""
    mode, index, count = node.text("mode", "clip"), long_index(node, which), _index_size(node, axis)
    if mode == "wrap":
        return f"{index} % {count}"
    return f"{index}.clamp(0, {binary(count, '-', '1') if not count.isdigit() else int(count) - 1})"


def _take(node: Node) -> str:
    axis = node.axis(0)
    index = long_index(node, 1) if node.text("mode", "clip") == "raise" else _limited(node, 1, axis)
    return indexed(node.inputs[0], axis, node.rank, index)


def _pick(node: Node) -> str:
    x, rank = atom(node.inputs[0]), node.rank
    axis = node.get("axis", -1)
    if axis is None:
        raise node.refused("axis=None; state the axis")
    index = _limited(node, 1, axis % rank)
    if len(node.shapes[1]) < rank:
        index = f"{atom(index)}.unsqueeze({axis})"
    picked = f"{x}.gather({axis}, {index})"
    return picked if node.flag("keepdims") else f"{picked}.squeeze({axis})"


def _batch_take(node: Node) -> str:
    return f"{atom(node.inputs[0])}.gather(1, {_limited(node, 1, 1)}.unsqueeze(1)).squeeze(1)"


def _gather_nd(node: Node) -> str:
    return f"{atom(node.inputs[0])}[tuple({long_index(node, 1)})]"


def _where(node: Node) -> str:
    condition, x, y = node.inputs
    if node.rank < len(node.shapes[1]):
        ones = listed(["-1", *["1"] * (len(node.shapes[1]) - 1)])
        condition = f"{atom(condition)}.reshape({ones})"
    return f"torch.where({binary(condition, '!=', '0')}, {x}, {y})"


def flip(node: Node) -> str:
    """Write the reversal of axes; without an attribute, of all."""
    return f"{atom(node.inputs[0])}.flip({literal(node.ints('axis') or tuple(range(node.rank)))})"


def _diag(node: Node) -> str:
    k, x = node.integer("k", 0), atom(node.inputs[0])
    if node.rank == 1:
        return f"{x}.diag({k or ''})"
    first, second = node.integer("axis1", 0), node.integer("axis2", 1)
    return f"{x}.diagonal({k}, {first}, {second})"


def _crop(node: Node) -> str:
    x, like = atom(node.inputs[0]), [atom(value) for value in node.inputs[1:]]
    sizes = [f"{like[0]}.shape[{axis}]" for axis in (2, 3)] if like else [str(one) for one in node.ints("h_w")]
    if node.flag("center_crop"):
        return f"centred({node.inputs[0]}, {listed(sizes)})"
    parts = []
    for start, wanted in zip(node.ints("offset") or (0, 0), sizes):
        end = str(start + int(wanted)) if wanted.isdigit() else f"{start} + {wanted}" if start else wanted
        parts.append(f"{start or ''}:{end}" if wanted.isdigit() else f"{start or ''} : {end}".lstrip())
    return f"{x}[:, :, {listed(parts)}]"


INDEXING: Dict[str, Conversion] = {
    "slice": _slice,
    "slice_axis": _slice_axis,
    "slice_like": _slice_like,
    "take": _take,
    "pick": _pick,
    "batch_take": _batch_take,
    "gather_nd": _gather_nd,
    "where": _where,
    "reverse": flip,
    "diag": _diag,
    "Crop": _crop,
}
