"""Operators that move, join, repeat or create elements."""

from typing import Dict, Optional, Sequence, Tuple

from mxkit.core.graph import Number
from mxkit.exporting.to_torch.expression_parts import atom, axes_text, binary, cast, dtype_of, listed, literal
from mxkit.exporting.to_torch.functional_arithmetic import template
from mxkit.exporting.to_torch.node import Conversion, Node

# MXNet's codes of Reshape as those of npx.reshape
_CODES = {0: -2, -2: -4, -3: -5, -4: -6}


def resized(node: Node, codes: Sequence[int]) -> str:
    """Write a reshape by npx's codes: -2 copies a size, -3 drops one of 1, -4 copies the rest, -5 merges, -6 splits."""
    x, rank, reverse = atom(node.inputs[0]), node.rank, node.flag("reverse")
    at, dims, rest = 0, [], list(codes[::-1] if reverse else codes)

    def have(number: int) -> str:
        return f"{x}.shape[{-1 - number if reverse else number}]"

    while rest:
        code = rest.pop(0)
        if code == -2:
            dims.append(have(at))
        elif code == -4:
            dims += [have(number) for number in range(at, rank)]
            at = rank - 1
        elif code == -5:
            dims.append(f"{have(at)} * {have(at + 1)}")
            at += 1
        elif code == -6:
            parts = [rest.pop(0), rest.pop(0)]
            dims += [str(p) if p != -1 else f"{have(at)} // {parts[1 - i]}" for i, p in enumerate(parts)]
        elif code != -3:
            dims.append(str(code))
        at += 1
    if not reverse and dims == [have(axis) for axis in range(rank)]:
        return node.inputs[0]
    return f"{x}.reshape({listed(dims[::-1] if reverse else dims)})"


def _reshape(node: Node) -> str:
    codes, x, rank = node.ints("shape"), atom(node.inputs[0]), node.rank
    if not codes:  # of MXNet before 1.0, whose 0 is inferred
        codes = tuple(part or -1 for part in node.ints("target_shape"))
        if node.flag("keep_highest"):
            raise node.refused("keep_highest=True; state shape=(0, ...)")
    merged = _merged(codes, rank) if not node.flag("reverse") else None
    if merged is not None:
        first, last = merged
        if (first, last) == (0, rank - 1):
            return f"{x}.flatten()"
        return f"{x}.flatten({first})" if last == rank - 1 else f"{x}.flatten({first}, {last})"
    return resized(node, [_CODES.get(code, code) for code in codes])


def _merged(codes: Sequence[int], rank: int) -> Optional[Tuple[int, int]]:
    """Return the first and last dimension that codes like (0, -1) or (0, -3, 0) merge, if that is all they do."""
    kept = 0
    while kept < len(codes) and codes[kept] == 0:
        kept += 1
    rest = list(codes[kept:])
    if rest == [-1] and kept < rank:
        return kept, rank - 1
    if rest and rest[0] == -3 and rank >= kept + 2 and (rest[1:] == [-2] or rest[1:] == [0] * (rank - kept - 2)):
        return kept, kept + 1
    return None


def _reshape_like(node: Node) -> str:
    x, like = (atom(value) for value in node.inputs)
    begin, end = node.integer("lhs_begin"), node.integer("lhs_end")
    first, last = node.integer("rhs_begin"), node.integer("rhs_end")
    if (begin, end, first, last) == (None, None, None, None):
        return f"{x}.reshape({like}.shape)"
    head = f"*{x}.shape[:{begin}], " if begin else ""
    tail = f", *{x}.shape[{end}:]" if end is not None else ""
    return f"{x}.reshape({head}*{like}.shape[{first or ''}:{'' if last is None else last}]{tail})"


def transpose(node: Node) -> str:
    """Write another order of the axes."""
    rank = node.rank
    axes = node.ints("axes") or tuple(range(rank))[::-1]
    moved = [axis for axis in range(rank) if axes[axis] != axis]
    if len(moved) == 2:
        return f"{atom(node.inputs[0])}.transpose({moved[0]}, {moved[1]})"
    return f"{atom(node.inputs[0])}.permute({listed(map(str, axes))})"


def squeeze(node: Node) -> str:
    """Write the removal of axes of size 1."""
    axes = node.optional_ints("axis")
    return f"{atom(node.inputs[0])}.squeeze({'' if axes is None else axes_text(axes)})"


def _slice_channel(node: Node) -> str:
    parts, axis = node.integer("num_outputs"), node.integer("axis", 1)
    x, squeezed = atom(node.inputs[0]), node.flag("squeeze_axis")
    if parts == 1:
        return f"{x}.squeeze({axis})" if squeezed else node.inputs[0]
    return f"{x}.unbind({axis})" if squeezed else f"{x}.chunk({parts}, dim={axis})"


def _split(node: Node) -> str:
    axis, sections = node.integer("axis", 1), node.integer("sections", 0)
    x, squeezed = atom(node.inputs[0]), node.flag("squeeze_axis")
    indices = node.ints("indices")
    if squeezed and len(node.outputs) > 1:
        return f"{x}.unbind({axis})"
    if sections:
        return f"{x}.tensor_split({sections}, dim={axis})" if sections > 1 else node.inputs[0]
    starts = [*indices[1:]] if indices[:1] == (0,) else list(indices)
    return f"{x}.tensor_split({literal(tuple(starts))}, dim={axis})" if starts else node.inputs[0]


def join(function: str, name: str = "axis", default: int = 0) -> Conversion:
    """Return a conversion that joins arrays along the axis `name`; along None, they are flattened."""

    def convert(node: Node) -> str:
        axis = node.get(name, default)
        inputs = [f"{atom(x)}.flatten()" for x in node.inputs] if axis is None else node.inputs
        return f"torch.{function}([{listed(inputs)}], dim={axis or 0})"

    return convert


def _concat(node: Node) -> str:
    return node.inputs[0] if len(node.inputs) == 1 else join("cat", "dim", 1)(node)


def _tile(node: Node) -> str:
    return f"{atom(node.inputs[0])}.tile({literal(node.ints('reps'))})"


def _repeat(node: Node) -> str:
    axis = node.integer("axis")
    return f"{atom(node.inputs[0])}.repeat_interleave({node.integer('repeats')}" + (
        ")" if axis is None else f", dim={axis})"
    )


def _pad(node: Node) -> str:
    widths, mode = node.ints("pad_width"), node.text("mode")
    pairs = [widths[at : at + 2] for at in range(0, len(widths), 2)]
    while pairs and not any(pairs[0]):
        pairs.pop(0)
    turned = literal(tuple(width for pair in reversed(pairs) for width in pair))
    if mode == "constant":
        value = node.number("constant_value", 0)
        return f"F.pad({node.inputs[0]}, {turned}" + (f", value={literal(value)})" if value else ")")
    return f'F.pad({node.inputs[0]}, {turned}, mode="{"replicate" if mode == "edge" else "reflect"}")'


def broadcast_to(same: int) -> Conversion:
    """Return a conversion that enlarges axes; `same` stands for the size that the axis has."""

    def convert(node: Node) -> str:
        shape = node.ints("shape")
        have = [None] * (len(shape) - node.rank) + [*node.shapes[0]]
        sizes = [-1 if wanted in (same, own) else wanted for wanted, own in zip(shape, have)]
        return f"{atom(node.inputs[0])}.expand({listed(map(str, sizes))})"

    return convert


def _broadcast_axis(node: Node) -> str:
    sizes = [-1] * node.rank
    for axis, wanted in zip(node.ints("axis"), node.ints("size")):
        sizes[axis] = wanted
    return f"{atom(node.inputs[0])}.expand({listed(map(str, sizes))})"


def _broadcast_like(node: Node) -> str:
    x, like = (atom(value) for value in node.inputs)
    own, other = node.optional_ints("lhs_axes"), node.optional_ints("rhs_axes")
    if own is None or other is None:
        return f"{x}.expand_as({like})"
    sizes = ["-1"] * node.rank
    for axis, source in zip(own, other):
        sizes[axis or 0] = f"{like}.shape[{source}]"
    return f"{x}.expand({listed(sizes)})"


def filled(function: str, unknown: int) -> Conversion:
    """Return the conversion of an operator without inputs; the size that MXNet does not know is the batch's."""

    def convert(node: Node) -> str:
        sizes = ["batch_size" if part == unknown else str(part) for part in node.ints("shape")]
        dtype = dtype_of(node)
        extra = "" if dtype == "torch.float32" else f", dtype={dtype}"
        shape = f"{sizes[0]}," if len(sizes) == 1 else listed(sizes)
        value = f", {literal(node.number('value'))}" if function == "full" else ""
        if function == "full" and dtype == "torch.float32":
            extra = ", dtype=torch.float32"  # else torch.full derives it from the value
        return f"torch.{function}(({shape}){value}{extra}, device=device)"

    return convert


def _arange(node: Node) -> str:
    start, stop, step = node.number("start", 0), node.text("stop"), node.number("step", 1)
    count = node.integer("repeat", 1)
    last = float(stop) if stop else None
    if last is None:
        start, last = 0, float(start)
    end = int(last) if last.is_integer() else last
    return arange(node, start, end, step) + (f".repeat_interleave({count})" if count != 1 else "")


def arange(node: Node, start: Number, end: Number, step: Number) -> str:
    """Write torch.arange without the arguments that are torch's defaults."""
    parts = [literal(end)] if (start, step) == (0, 1) else [literal(part) for part in (start, end, step)]
    return f"torch.arange({listed(parts)}, dtype={dtype_of(node)}, device=device)"


def _arange_like(node: Node) -> str:
    x, axis = atom(node.inputs[0]), node.integer("axis")
    start, step, count = node.number("start", 0), node.number("step", 1), node.integer("repeat", 1) or 1
    total = f"{x}.numel()" if axis is None else f"{x}.shape[{axis}]"
    values = f"torch.arange({total}, device={x}.device)"
    if count != 1:
        values = f"{values} // {count}"
    values = cast(values, node.dtypes[0] if node.dtypes else "float32")
    if step != 1:
        values = binary(values, "*", literal(step))
    if start:
        values = binary(values, "+", literal(start))
    return values if axis is not None or node.rank == 1 else f"{atom(values)}.reshape({x}.shape)"


SHAPES: Dict[str, Conversion] = {
    "Reshape": _reshape,
    "reshape_like": _reshape_like,
    "Flatten": template("{a}.flatten(1)"),
    "transpose": transpose,
    "SwapAxis": template("{a}.transpose({dim1}, {dim2})", dim1=0, dim2=0),
    "expand_dims": template("{a}.unsqueeze({axis})", axis=0),
    "squeeze": squeeze,
    "SliceChannel": _slice_channel,
    "_split_v2": _split,
    "Concat": _concat,
    "_rnn_param_concat": _concat,
    "stack": join("stack"),
    "tile": _tile,
    "repeat": _repeat,
    "Pad": _pad,
    "broadcast_to": broadcast_to(0),
    "broadcast_axis": _broadcast_axis,
    "broadcast_like": _broadcast_like,
    "depth_to_space": template("depth_to_space({x}, {block_size})", block_size=0),
    "space_to_depth": template("space_to_depth({x}, {block_size})", block_size=0),
    "_zeros": filled("zeros", 0),
    "_ones": filled("ones", 0),
    "_full": filled("full", 0),
    "_arange": _arange,
    "_contrib_arange_like": _arange_like,
    "shape_array": template("torch.tensor({a}.shape, device={a}.device)"),
    "size_array": template("torch.tensor([{a}.numel()], device={a}.device)"),
}
