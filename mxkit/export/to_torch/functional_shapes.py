"""Operators that move, join, repeat or create elements."""

from typing import Dict, List, Optional, Sequence, Tuple

from mxkit.export.to_torch.attributes import (
    Number,
    atom,
    binary,
    cast,
    dtype_of,
    flag,
    integer,
    ints,
    listed,
    literal,
    number,
    optional_ints,
    refused,
    text,
)
from mxkit.export.to_torch.functional_arithmetic import Conversion
from mxkit.export.to_torch.node import Node


def _target(node: Node, codes: Sequence[int]) -> List[str]:
    """Write the dimensions of MXNet's Reshape, whose codes 0 and -2 to -4 copy, merge and split the input's."""
    x, rank, reverse = atom(node.inputs[0]), len(node.shapes[0]), flag(node, "reverse")
    at, dims, rest = 0, [], list(codes[::-1] if reverse else codes)

    def have(number: int) -> str:
        return f"{x}.shape[{-1 - number if reverse else number}]"

    while rest:
        code = rest.pop(0)
        if code == 0:
            dims.append(have(at))
        elif code == -2:
            dims += [have(number) for number in range(at, rank)]
            at = rank - 1
        elif code == -3:
            dims.append(f"{have(at)} * {have(at + 1)}")
            at += 1
        elif code == -4:
            parts = [rest.pop(0), rest.pop(0)]
            dims += [_part(part, parts[1 - number], have(at)) for number, part in enumerate(parts)]
        else:
            dims.append(str(code))
        at += 1
    return dims[::-1] if reverse else dims


def _part(part: int, other: int, whole: str) -> str:
    return str(part) if part != -1 else f"{whole} // {other}"


def _reshape(node: Node) -> str:
    codes, x, rank = ints(node, "shape"), atom(node.inputs[0]), len(node.shapes[0])
    if not codes:  # of MXNet before 1.0, whose 0 is inferred
        codes = tuple(part or -1 for part in ints(node, "target_shape"))
        if flag(node, "keep_highest"):
            raise refused(node, "keep_highest=True; state shape=(0, ...)")
    merged = _merged(codes, rank) if not flag(node, "reverse") else None
    if merged is not None:
        first, last = merged
        if (first, last) == (0, rank - 1):
            return f"{x}.flatten()"
        return f"{x}.flatten({first})" if last == rank - 1 else f"{x}.flatten({first}, {last})"
    target = _target(node, codes)
    if target == [f"{x}.shape[{axis}]" for axis in range(rank)]:
        return node.inputs[0]
    return f"{x}.reshape({listed(target)})"


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
    begin, end = integer(node, "lhs_begin"), integer(node, "lhs_end")
    first, last = integer(node, "rhs_begin"), integer(node, "rhs_end")
    if (begin, end, first, last) == (None, None, None, None):
        return f"{x}.reshape({like}.shape)"
    head = f"*{x}.shape[:{begin}], " if begin else ""
    tail = f", *{x}.shape[{end}:]" if end is not None else ""
    return f"{x}.reshape({head}*{like}.shape[{first or ''}:{'' if last is None else last}]{tail})"


def _transpose(node: Node) -> str:
    rank = len(node.shapes[0])
    axes = ints(node, "axes") or tuple(range(rank))[::-1]
    moved = [axis for axis in range(rank) if axes[axis] != axis]
    if len(moved) == 2:
        return f"{atom(node.inputs[0])}.transpose({moved[0]}, {moved[1]})"
    return f"{atom(node.inputs[0])}.permute({listed(map(str, axes))})"


def _swap(node: Node) -> str:
    return f"{atom(node.inputs[0])}.transpose({integer(node, 'dim1', 0)}, {integer(node, 'dim2', 0)})"


def _expand(node: Node) -> str:
    return f"{atom(node.inputs[0])}.unsqueeze({integer(node, 'axis')})"


def _squeeze(node: Node) -> str:
    axes = optional_ints(node, "axis")
    return f"{atom(node.inputs[0])}.squeeze({'' if axes is None else literal(axes[0] if len(axes) == 1 else axes)})"


def _slice_channel(node: Node) -> str:
    parts, axis = integer(node, "num_outputs"), integer(node, "axis", 1)
    x, squeezed = atom(node.inputs[0]), flag(node, "squeeze_axis")
    if parts == 1:
        return f"{x}.squeeze({axis})" if squeezed else node.inputs[0]
    return f"{x}.unbind({axis})" if squeezed else f"{x}.chunk({parts}, dim={axis})"


def _split(node: Node) -> str:
    axis, sections = integer(node, "axis", 1), integer(node, "sections", 0)
    x, squeezed = atom(node.inputs[0]), flag(node, "squeeze_axis")
    indices = ints(node, "indices")
    if squeezed and len(node.outputs) > 1:
        return f"{x}.unbind({axis})"
    if sections:
        return f"{x}.tensor_split({sections}, dim={axis})" if sections > 1 else node.inputs[0]
    starts = [*indices[1:]] if indices[:1] == (0,) else list(indices)
    return f"{x}.tensor_split({literal(tuple(starts))}, dim={axis})" if starts else node.inputs[0]


def _join(function: str, name: str, default: int) -> Conversion:
    return lambda node: f"torch.{function}([{listed(node.inputs)}], dim={integer(node, name, default)})"


def _concat(node: Node) -> str:
    return node.inputs[0] if len(node.inputs) == 1 else _join("cat", "dim", 1)(node)


def _tile(node: Node) -> str:
    return f"{atom(node.inputs[0])}.tile({literal(ints(node, 'reps'))})"


def _repeat(node: Node) -> str:
    axis = integer(node, "axis")
    return f"{atom(node.inputs[0])}.repeat_interleave({integer(node, 'repeats')}" + (
        ")" if axis is None else f", dim={axis})"
    )


def _pad(node: Node) -> str:
    widths, mode = ints(node, "pad_width"), text(node, "mode")
    pairs = [widths[at : at + 2] for at in range(0, len(widths), 2)]
    while pairs and not any(pairs[0]):
        pairs.pop(0)
    turned = literal(tuple(width for pair in reversed(pairs) for width in pair))
    if mode == "constant":
        value = number(node, "constant_value", 0)
        return f"F.pad({node.inputs[0]}, {turned}" + (f", value={literal(value)})" if value else ")")
    return f'F.pad({node.inputs[0]}, {turned}, mode="{"replicate" if mode == "edge" else "reflect"}")'


def _broadcast_to(node: Node) -> str:
    sizes = [-1 if wanted in (0, have) else wanted for wanted, have in zip(ints(node, "shape"), node.shapes[0])]
    return f"{atom(node.inputs[0])}.expand({listed(map(str, sizes))})"


def _broadcast_axis(node: Node) -> str:
    sizes = [-1] * len(node.shapes[0])
    for axis, wanted in zip(ints(node, "axis"), ints(node, "size")):
        sizes[axis] = wanted
    return f"{atom(node.inputs[0])}.expand({listed(map(str, sizes))})"


def _broadcast_like(node: Node) -> str:
    x, like = (atom(value) for value in node.inputs)
    own, other = optional_ints(node, "lhs_axes"), optional_ints(node, "rhs_axes")
    if own is None or other is None:
        return f"{x}.expand_as({like})"
    sizes = ["-1"] * len(node.shapes[0])
    for axis, source in zip(own, other):
        sizes[axis or 0] = f"{like}.shape[{source}]"
    return f"{x}.expand({listed(sizes)})"


def _filled(function: str) -> Conversion:
    """Return the conversion of an operator without inputs; a size of 0 is MXNet's unknown one, the batch."""

    def convert(node: Node) -> str:
        sizes = ["batch_size" if part == 0 else str(part) for part in ints(node, "shape")]
        dtype = dtype_of(node)
        extra = "" if dtype == "torch.float32" else f", dtype={dtype}"
        shape = f"{sizes[0]}," if len(sizes) == 1 else listed(sizes)
        value = f", {literal(number(node, 'value'))}" if function == "full" else ""
        if function == "full" and dtype == "torch.float32":
            extra = ", dtype=torch.float32"  # else torch.full derives it from the value
        return f"torch.{function}(({shape}){value}{extra}, device=device)"

    return convert


def _arange(node: Node) -> str:
    start, stop, step = number(node, "start", 0), text(node, "stop"), number(node, "step", 1)
    count = integer(node, "repeat", 1)
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
    x, axis = atom(node.inputs[0]), integer(node, "axis")
    start, step, count = number(node, "start", 0), number(node, "step", 1), integer(node, "repeat", 1) or 1
    total = f"{x}.numel()" if axis is None else f"{x}.shape[{axis}]"
    values = f"torch.arange({total}, device={x}.device)"
    if count != 1:
        values = f"{values} // {count}"
    values = cast(values, node.dtypes[0] if node.dtypes else "float32")
    if step != 1:
        values = binary(values, "*", literal(step))
    if start:
        values = binary(values, "+", literal(start))
    return values if axis is not None or len(node.shapes[0]) == 1 else f"{atom(values)}.reshape({x}.shape)"


def _shape_array(node: Node) -> str:
    return f"torch.tensor({atom(node.inputs[0])}.shape, device={atom(node.inputs[0])}.device)"


SHAPES: Dict[str, Conversion] = {
    "Reshape": _reshape,
    "reshape_like": _reshape_like,
    "Flatten": lambda node: f"{atom(node.inputs[0])}.flatten(1)",
    "transpose": _transpose,
    "SwapAxis": _swap,
    "expand_dims": _expand,
    "squeeze": _squeeze,
    "SliceChannel": _slice_channel,
    "_split_v2": _split,
    "Concat": _concat,
    "_rnn_param_concat": _concat,
    "stack": _join("stack", "axis", 0),
    "tile": _tile,
    "repeat": _repeat,
    "Pad": _pad,
    "broadcast_to": _broadcast_to,
    "broadcast_axis": _broadcast_axis,
    "broadcast_like": _broadcast_like,
    "depth_to_space": lambda node: f"depth_to_space({node.inputs[0]}, {integer(node, 'block_size')})",
    "space_to_depth": lambda node: f"space_to_depth({node.inputs[0]}, {integer(node, 'block_size')})",
    "_zeros": _filled("zeros"),
    "_ones": _filled("ones"),
    "_full": _filled("full"),
    "_arange": _arange,
    "_contrib_arange_like": _arange_like,
    "shape_array": _shape_array,
    "size_array": lambda node: f"torch.tensor([{atom(node.inputs[0])}.numel()], device={atom(node.inputs[0])}.device)",
}
