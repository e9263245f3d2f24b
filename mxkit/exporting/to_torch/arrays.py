"""Operators that compute with numbers, or move, join, select, make or resize arrays; those of sequences and detection.

A word of the book `core/operators.py`, or a row: a pattern as `Node.filled` takes it, or a function. Several call a
function of `emitted.py`.
"""

from functools import partial
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from mxkit.core.operators import Operator, book, known
from mxkit.exporting.to_torch.expressions import (
    DRAWS,
    RANDOM,
    Conversion,
    Node,
    atom,
    axes_of,
    binary,
    cast,
    listed,
    literal,
    options,
)

# MXNet's codes of Reshape as those of npx.reshape
_CODES = {0: -2, -2: -4, -3: -5, -4: -6}


def _resized(node: Node, codes: Sequence[int]) -> str:
    """Write a reshape by npx's codes: -2 copies a size, -3 drops one of 1, -4 copies the rest, -5 merges, -6 splits."""
    step = -1 if node.flag("reverse") else 1
    if step < 0 and -6 in codes:
        raise node.refused("reverse=True with a split axis")
    have = [f"{node.a}.shape[{number}]" for number in range(node.rank)][::step]
    at, dims, rest = 0, [], list(codes)[::step]
    while rest:
        code = rest.pop(0)
        if code == -2:
            dims.append(have[at])
        elif code == -4:
            dims += have[at:]
            at = node.rank - 1
        elif code == -5:
            dims.append(" * ".join(have[at : at + 2][::step]))
            at += 1
        elif code == -6:
            parts = [rest.pop(0), rest.pop(0)]
            dims += [str(p) if p != -1 else f"{have[at]} // {parts[1 - i]}" for i, p in enumerate(parts)]
        elif code != -3:
            dims.append(str(code))
        at += 1
    return node.x if dims == have else f"{node.a}.reshape({listed(dims[::step])})"


def _reshape(node: Node) -> str:
    codes = node.ints("shape")
    if not codes:  # of MXNet before 1.0, whose 0 is inferred
        codes = tuple(part or -1 for part in node.ints("target_shape"))
        if node.flag("keep_highest"):
            raise node.refused("keep_highest=True; state shape=(0, ...)")
    return _resized(node, [_CODES.get(code, code) for code in codes])


def _reshape_of_numpy(node: Node) -> str:
    if node.text("order") != "C":
        raise node.refused(f"order={node.text('order')}; expected C")
    return f"{node.a}.reshape({literal(node.ints('newshape'))})"


def _reshape_like(node: Node) -> str:
    like = atom(node.y)
    begin, end, first, last = (node.integer(f"{side}_{place}") for side in ("lhs", "rhs") for place in ("begin", "end"))
    if (begin, end, first, last) == (None, None, None, None):
        return f"{node.a}.reshape({like}.shape)"
    head = f"*{node.a}.shape[:{begin}], " if begin else ""
    tail = f", *{node.a}.shape[{end}:]" if end is not None else ""
    return f"{node.a}.reshape({head}*{like}.shape[{_span(first, last)}]{tail})"


def _transpose(node: Node) -> str:
    axes = node.ints("axes") or tuple(range(node.rank))[::-1]
    moved = [axis for axis in range(node.rank) if axes[axis] != axis]
    return f"{node.a}.transpose({listed(moved)})" if len(moved) == 2 else f"{node.a}.permute({listed(axes)})"


def _squeeze(node: Node) -> str:
    axes = node.optional_ints("axis")
    return f"{node.a}.squeeze({'' if axes is None else axes_of(axes)})"


def _split(node: Node) -> str:
    is_old = node.operator == "SliceChannel"
    axis, parts = node.integer("axis"), node.integer("num_outputs" if is_old else "sections", 0)
    indices = node.ints("indices")
    starts = indices[1:] if indices[:1] == (0,) else indices
    if node.flag("squeeze_axis") and (is_old or len(node.outputs) > 1):
        return f"{node.a}.unbind({axis})" if len(node.outputs) > 1 else f"{node.a}.squeeze({axis})"
    if parts:
        return node.x if parts == 1 else f"{node.a}.{'chunk' if is_old else 'tensor_split'}({parts}, dim={axis})"
    return f"{node.a}.tensor_split({literal(starts)}, dim={axis})" if starts else node.x


def _join(function: str, name: str, node: Node) -> str:
    """Join arrays along the axis `name`; along None, they are flattened."""
    axis = node.get(name, 0)
    inputs = [f"{atom(x)}.flatten()" for x in node.inputs] if axis is None else node.inputs
    is_one = len(inputs) == 1 and name == "dim"
    return inputs[0] if is_one else f"torch.{function}([{listed(inputs)}], dim={axis or 0})"


def _repeat(node: Node) -> str:
    axis = node.integer("axis")
    return f"{node.a}.repeat_interleave({node.integer('repeats')}{'' if axis is None else f', dim={axis}'})"


def _pad(node: Node) -> str:
    widths, mode = node.ints("pad_width"), node.text("mode")
    value = node.number("constant_value") if mode == "constant" else 0
    pairs = [widths[at : at + 2] for at in range(0, len(widths), 2)]
    while pairs and not any(pairs[0]):
        pairs.pop(0)
    turned = literal(tuple(width for pair in reversed(pairs) for width in pair))
    torchs = {"constant": "constant", "edge": "replicate"}.get(mode, "reflect")
    return f"F.pad({node.x}, {turned}{options(mode=(torchs, 'constant'), value=(value, 0))})"


def _roll(node: Node) -> str:
    axes = node.optional_ints("axis")
    return f"{node.a}.roll({literal(node.ints('shift'))}{'' if axes is None else f', {literal(axes)}'})"


def _broadcast_to(same: int, node: Node) -> str:
    """Enlarge axes; `same` stands for the size that the axis has."""
    shape = node.ints("shape")
    have = [None] * (len(shape) - node.rank) + [*node.shapes[0]]
    return f"{node.a}.expand({listed(-1 if wanted in (same, own) else wanted for wanted, own in zip(shape, have))})"


def _broadcast_axis(node: Node) -> str:
    sizes = dict(zip(node.ints("axis"), node.ints("size")))
    return f"{node.a}.expand({listed(sizes.get(axis, -1) for axis in range(node.rank))})"


def _broadcast_like(node: Node) -> str:
    own, other, like = node.optional_ints("lhs_axes"), node.optional_ints("rhs_axes"), atom(node.y)
    if own is None or other is None:
        return f"{node.a}.expand_as({like})"
    sizes = {axis: f"{like}.shape[{source}]" for axis, source in zip(own, other)}
    return f"{node.a}.expand({listed(sizes.get(axis, -1) for axis in range(node.rank))})"


def _filled(function: str, unknown: int, node: Node) -> str:
    """Write an operator without inputs; the size that MXNet does not know is the batch's."""
    sizes = ["batch_size" if part == unknown else str(part) for part in node.ints("shape")]
    is_full = function == "full"
    value = f", {literal(node.number('value'))}" if is_full else ""
    # torch.full derives its type from the value
    extra = "" if node.dtype == "torch.float32" and not is_full else f", dtype={node.dtype}"
    return f"torch.{function}(({listed(sizes)}{',' * (len(sizes) == 1)}){value}{extra}, device=device)"


def _arange(node: Node) -> str:
    start, stop, step = (node.number(name) for name in ("start", "stop", "step"))
    if not node.text("stop"):
        start, stop = 0, start
    count = node.integer("repeat")
    parts = [stop] if (start, step) == (0, 1) else [start, stop, step]
    values = f"torch.arange({listed(map(literal, parts))}, dtype={node.dtype}, device=device)"
    return values if count == 1 else f"{values}.repeat_interleave({count})"


def _arange_like(node: Node) -> str:
    axis = node.integer("axis")
    if node.integer("repeat", 1) != 1:
        raise node.refused("repeat")
    start, step = node.number("start"), node.number("step")
    total = f"{node.a}.numel()" if axis is None else f"{node.a}.shape[{axis}]"
    values = f"torch.arange({total}, device={node.a}.device)"
    values = cast(values, node.dtypes[0] if node.dtypes else "float32")
    values = values if (start, step) == (0, 1) else f"{values} * {literal(step)} + {literal(start)}"
    return values if axis is not None or node.rank == 1 else f"{atom(values)}.reshape({node.a}.shape)"


def _indexed(node: Node, axis: int, index: str) -> str:
    """Write an index on one axis: `x[:, 1:3]`, `x[..., 1:3]` for the last of several."""
    before = ["..."] if axis == node.rank - 1 and axis > 1 else [":"] * axis
    return f"{node.a}[{listed([*before, index])}]"


def _span(begin: Any, end: Any, step: Any = None) -> str:
    """Write a slice: `1:3`, `::2`."""
    return f"{begin or ''}:{'' if end is None else end}" + (f":{step}" if step not in (None, 1) else "")


def _slice(node: Node) -> str:
    begin, end = node.optional_ints("begin") or (), node.optional_ints("end") or ()
    steps, flipped, parts = node.optional_ints("step") or (), [], []
    for axis, (first, last, by) in enumerate(zip(begin, end, (*steps, *[None] * len(begin)))):
        if by is not None and by < 0:  # torch has no negative steps: the axis is turned first
            flipped.append(axis)
            first, last = (None if place is None else -1 - place for place in (first, last))
            by = -by
        parts.append(_span(first, last, by))
    while parts and parts[-1] == ":":
        parts.pop()
    turned = f"{node.a}.flip({listed(flipped)})" if flipped else node.a
    return f"{turned}[{listed(parts)}]" if parts else turned


def _slice_like(node: Node) -> str:
    axes = [axis % node.rank for axis in node.ints("axes") or range(node.rank)]
    parts = [f": {atom(node.y)}.shape[{axis}]" if axis in axes else ":" for axis in range(max(axes) + 1)]
    return f"{node.a}[{listed(parts)}]"


def _limited(node: Node, axis: int) -> str:
    """Write the second input as an index that is limited to an axis, as MXNet's mode says."""
    # the number of rows of a parameter is a literal
    count = str(node.shapes[0][axis]) if node.values[0] is not None else f"{node.a}.shape[{axis}]"
    if node.text("mode", "clip") == "wrap":
        return f"{node.long(1)} % {count}"
    return f"{node.long(1)}.clamp(0, {binary(count, '-', '1') if not count.isdigit() else int(count) - 1})"


def _take(node: Node) -> str:
    axis = node.axis(0)
    return _indexed(node, axis, node.long(1) if node.text("mode", "clip") == "raise" else _limited(node, axis))


def _pick(node: Node) -> str:
    axis = node.get("axis")
    if axis is None:
        raise node.refused("axis=None; state the axis")
    index = _limited(node, axis % node.rank)
    if len(node.shapes[1]) < node.rank:
        index = f"{atom(index)}.unsqueeze({axis})"
    return f"{node.a}.gather({axis}, {index})" + ("" if node.flag("keepdims") else f".squeeze({axis})")


def _where(node: Node) -> str:
    condition, *values = node.inputs
    if node.operator == "_npi_where_scalar2":
        values = [literal(float(node.number(name))) for name in "xy"]  # ints would make an array of ints
    elif node.operator == "_npi_where_lscalar":
        values = [literal(node.number("scalar")), *values]
    elif node.operator == "_npi_where_rscalar":
        values = [*values, literal(node.number("scalar"))]
    elif not node.is_numpy and node.rank < len(node.shapes[1]):
        condition = f"{atom(condition)}.reshape({listed([-1, *[1] * (len(node.shapes[1]) - 1)])})"
    is_bool = node.is_numpy and node.dtypes[0] == "bool"
    return f"torch.where({condition if is_bool else binary(condition, '!=', '0')}, {listed(values)})"


def _diag(node: Node) -> str:
    k = node.integer("k")
    if node.rank == 1:
        return f"{node.a}.diag({k or ''})"
    return f"{node.a}.diagonal({k}, {node.integer('axis1', 0)}, {node.integer('axis2', 1)})"


def _one_hot(node: Node) -> str:
    on, off, dtype = node.number("on_value"), node.number("off_value"), node.text("dtype")
    # F.one_hot refuses an index outside of the range, for which MXNet returns a row of zeros
    numbers = f"torch.arange({node.integer('depth')}, device={node.a}.device)"
    found = cast(f"{node.long(0)}.unsqueeze(-1) == {numbers}", dtype)
    if (on, off) == (1, 0):
        return found
    return binary(binary(found, "*", literal(on - off)), "+" if off >= 0 else "-", literal(abs(off)))


def _up_sampling(node: Node) -> str:
    if node.text("sample_type") != "nearest" or len(node.inputs) > 1:
        raise node.refused("sample_type=bilinear, or several inputs; use BilinearResize2D")
    return f'F.interpolate({node.x}, scale_factor={node.integer("scale")}, mode="nearest")'


def _bilinear_resize(node: Node) -> str:
    mode, scales = node.text("mode"), [node.number(f"scale_{side}") for side in ("height", "width")]
    if mode == "like":
        target = f"{atom(node.y)}.shape[2:]"
    elif mode == "size":
        target = literal((node.integer("height"), node.integer("width")))
        if any(scales):
            sizes = (f"int({node.a}.shape[{axis}] * {literal(scale)})" for axis, scale in enumerate(scales, start=2))
            target = f"({listed(sizes)})"
    else:
        raise node.refused(f"mode={mode}; expected size or like")
    return f'F.interpolate({node.x}, size={target}, mode="bilinear", align_corners={node.flag("align_corners")})'


def _sequence(function: str, without: str, node: Node) -> str:
    """Call a function of sequences with lengths; `without` is the pattern of what has none."""
    if not node.flag("use_sequence_length"):
        return node.filled(without)
    extra = options(value=(node.number("value"), 0), dim=(node.integer("axis", 0), 0))
    return f"{function}({node.x}, {node.y}{extra})"


def _box_nms(node: Node) -> str:
    formats = [node.text(name, "corner") for name in ("in_format", "out_format")]
    if formats != ["corner", "corner"]:
        raise node.refused(f"in_format={formats[0]} and out_format={formats[1]}; expected corner")
    names = {"overlap": ("overlap_thresh", 0.5), "threshold": ("valid_thresh", 0), "topk": ("topk", -1)}
    names.update(coordinates=("coord_start", 2), score=("score_index", 1), label=("id_index", -1))
    names["background"] = "background_id", -1
    given = {name: (node.number(own), default) for name, (own, default) in names.items()}
    extra = options(**given, across_labels=(node.flag("force_suppress"), False))
    return f"box_nms({node.x}{extra})"


def _box_decode(node: Node) -> str:
    four = tuple(node.number(f"std{part}", 1) for part in range(4))
    scales = "" if four == (1, 1, 1, 1) else f", scales={literal(four)}"
    extra = options(limit=(max(node.number("clip"), 0), 0), corners=(node.text("format") == "corner", False))
    return f"decode_boxes({node.x}, {node.y}{scales}{extra})"


def _box_iou(node: Node) -> str:
    if node.text("format", "corner") != "corner" or {*map(len, node.shapes)} != {2}:
        raise node.refused(f"format={node.text('format')} of shapes {node.shapes}; expected corners of two tables")
    return f"box_overlaps({node.x}, {node.y})"


def _uniform(node: Node) -> str:
    """Write the draws of a training, whose proof hands them over; no others."""
    if not node.name.endswith(DRAWS):
        raise node.refused(RANDOM)
    return _filled("rand", 0, node)


def _roi_align(node: Node) -> str:
    flags = {"aligned": "aligned", "by_position": "position_sensitive"}
    more = {name: (node.flag(own), False) for name, own in flags.items()}
    extra = options(samples=(node.integer("sample_ratio"), -1), **more)
    pooled, scale = literal(node.ints("pooled_size")), literal(node.number("spatial_scale"))
    return f"roi_align({node.x}, {node.y}, {pooled}, {scale}{extra})"


def _between(sign: str, reverse: bool, node: Node) -> str:
    if len(node.inputs) == 1:
        return _with_scalar(node, sign, reverse)
    if sign == "/" and node.is_whole and not node.is_numpy:
        return f'torch.div({node.x}, {node.y}, rounding_mode="trunc")'
    return binary(node.x, sign, node.y)


def _with_scalar(node: Node, sign: str, reverse: bool) -> str:
    value = _scalar(node)
    if node.is_whole and not node.is_numpy:
        if sign == "/" and reverse:
            raise node.refused(f"a division of {value} by an array of {node.dtypes[0]}")
        value = int(value)  # MXNet computes in the array's type
        if sign == "/":
            return f'torch.div({node.x}, {value}, rounding_mode="trunc")'
    if value < 0 and sign == "+":
        return binary(node.x, "-", literal(-value))
    if value == -1 and sign == "*" and isinstance(value, int):
        return f"-{node.a}"
    return binary(literal(value), sign, node.x) if reverse else binary(node.x, sign, literal(value))


def _scalar(node: Node) -> Any:
    """Return the attribute `scalar`; a float without decimals makes an array of floats in `mx.np`."""
    value = node.number("scalar")
    is_int = node.flag("is_int", isinstance(value, int)) or node.dtypes[0].startswith("float")
    return value if is_int or not node.is_numpy else float(value)


def _compared(sign: str, node: Node) -> str:
    right = literal(_scalar(node)) if len(node.inputs) == 1 else node.y
    return node.as_first(binary(node.x, sign, right))


def _logical(node: Node) -> str:
    name = known(node.operator).onnx.lower()
    if len(node.inputs) == 2:
        return node.as_first(f"torch.logical_{name}({node.x}, {node.y})")
    value, is_true = node.number("scalar") != 0, node.as_first(binary(node.x, "!=", "0"))
    if name == "xor":
        return node.as_first(binary(node.x, "==", "0")) if value else is_true
    fixed = f"torch.{'zeros' if name == 'and' else 'ones'}_like({node.x})"
    return is_true if value == (name == "and") else fixed


def _clip(node: Node) -> str:
    low, high = node.number("a_min"), node.number("a_max")
    return f"F.relu6({node.x})" if (low, high) == (0, 6) else f"{node.a}.clamp({literal(low)}, {literal(high)})"


def _smooth_l1(node: Node) -> str:
    beta = 1 / float(node.number("scalar", 1)) ** 2
    return f'F.smooth_l1_loss({node.x}, torch.zeros_like({node.x}), reduction="none", beta={beta!r})'


def reduced_axes(node: Node) -> Optional[Tuple[int, ...]]:
    """Return the axes that a reduction removes; None for all."""
    axes, rank = node.optional_ints("axis"), node.rank
    if axes is None or axes == ():
        return None
    counted = tuple(sorted((axis or 0) % rank for axis in axes))
    if node.flag("exclude"):
        counted = tuple(axis for axis in range(rank) if axis not in counted)
    return None if len(counted) == rank else counted


def _reduction(method: str, extra: str, node: Node) -> str:
    """Write a reduction as a method with its axes: `x.mean(dim=(2, 3), keepdim=True)`."""
    if node.text("initial"):
        raise node.refused("initial")
    if method == "mean" and node.is_whole:
        raise node.refused(f"the mean of {node.dtypes[0]}; cast it to float32 before")
    x, axes, more = node.a, reduced_axes(node), node.filled(extra)
    if axes is None and not node.keepdim:
        x = _one_number(node, f"{x}.{method}({more})")
    else:
        axes = tuple(range(node.rank)) if axes is None else axes
        for part in reversed(axes) if method == "prod" else [axes_of(axes)]:
            x = f"{x}.{method}(dim={part}{node.keepdim}{', ' if more else ''}{more})"
    dtype = node.text("dtype")
    return cast(x, dtype) if dtype not in ("", node.dtypes[0]) else x


def _one_number(node: Node, result: str) -> str:
    """Give the result over all axes the shape (1,), as `mx.nd` has it; in `mx.np` it has no axes."""
    return f"{result}.reshape(1)" if len(node.outputs[0]) == 1 else result


def _norm(node: Node) -> str:
    axes = reduced_axes(node)
    # the flag is 1 for Frobenius' norm, 0 for the spectral and 2 for the nuclear one
    if node.is_numpy and len(node.ints("axis")) > 1 and node.integer("flag") != 1:
        raise node.refused("the spectral or nuclear norm of matrices; torch.linalg.matrix_norm computes them")
    if node.is_whole:
        raise node.refused(f"the norm of {node.dtypes[0]}; cast it to float32 before")
    if node.text("out_dtype", node.dtypes[0]) != node.dtypes[0]:
        raise node.refused("out_dtype, which MXNet's CPU does not compute")
    dims = "" if axes is None else f", dim={axes_of(axes)}"
    result = f"torch.linalg.vector_norm({node.x}, {literal(node.number('ord', 2))}{dims}{node.keepdim})"
    return _one_number(node, result) if axes is None and not node.keepdim else result


def _moments(node: Node) -> str:
    axes = literal(node.optional_ints("axes") or tuple(range(node.rank)))
    return f"({node.a}.mean(dim={axes}{node.keepdim}), {node.a}.var(dim={axes}, correction=0{node.keepdim}))"


def _extreme(method: str, node: Node) -> str:
    """Write argmax or argmin; its indices are floats in `mx.nd`."""
    axis = node.integer("axis")
    if axis is not None:
        return node.as_first(f"{node.a}.{method}(dim={axis}{node.keepdim})")
    found = f"{node.a}.{method}()"
    shaped = f"{found}.reshape({literal((1,) * node.rank)})" if node.keepdim else _one_number(node, found)
    return node.as_first(shaped)


def _in_order(node: Node) -> str:
    """Write topk, sort and argsort, which keep the order of equals in rows of up to 16; torch's topk does not."""
    x, axis, dtype = node.a, node.get("axis"), node.text("dtype")
    if axis is None:
        x, axis = f"{x}.flatten()", 0
    ascending = node.flag("is_ascend", node.operator != "topk")
    arguments = f"(dim={axis}{'' if ascending else ', descending=True'}, stable=True)"
    count, kind = node.integer("k"), node.text("ret_typ") if node.operator == "topk" else node.operator
    cut = f".narrow({axis}, 0, {count})" if node.operator == "topk" and count > 0 else ""
    order, values = f"{x}.argsort{arguments}{cut}", f"{x}.sort{arguments}.values{cut}"
    if kind == "mask":
        raise node.refused("ret_typ=mask")
    if kind == "both":
        return f"({values}, {cast(order, dtype)})"
    return values if kind in ("value", "sort") else cast(order, dtype)


def _cumsum(node: Node) -> str:
    axis = node.integer("axis")
    return f"{node.a}.flatten().cumsum(0)" if axis is None else f"{node.a}.cumsum({axis})"


def _turned(value: str, is_turned: bool) -> str:
    return f"{atom(value)}.mT" if is_turned else value


def _dot(node: Node) -> str:
    (left, right), ranks = node.inputs, [len(shape) for shape in node.shapes]
    first, second = node.flag("transpose_a"), node.flag("transpose_b")
    if node.is_numpy:
        if 0 in ranks:
            return binary(left, "*", right)
        if max(ranks) <= 2 or ranks[1] == 1:
            return binary(left, "@", right)
        return f"torch.tensordot({left}, {right}, dims=([-1], [{ranks[1] - 2}]))"
    if ranks == [1, 1]:
        return _one_number(node, f"torch.dot({left}, {right})")
    if max(ranks) > 2:
        if first or second:
            raise node.refused(f"a transposed array of {max(ranks)} dimensions")
        return f"torch.tensordot({left}, {right}, dims=1)"
    return binary(_turned(left, first and ranks[0] == 2), "@", _turned(right, second and ranks[1] == 2))


def _batch_dot(node: Node) -> str:
    left, right = node.inputs[:2]
    return binary(_turned(left, node.flag("transpose_a")), "@", _turned(right, node.flag("transpose_b")))


def _times(factor: Any, value: str) -> str:
    return value if factor == 1 else binary(literal(factor), "*", value)


def _gemm(node: Node) -> str:
    if node.integer("axis") != -2:
        raise node.refused(f"axis={node.text('axis')}; expected -2")
    product = _times(node.number("alpha"), _batch_dot(node))
    return product if len(node.inputs) == 2 else binary(product, "+", _times(node.number("beta"), node.y))


def _tensordot(node: Node) -> str:
    sides = tuple(list(node.ints(f"{side}_axes_summed")) for side in "ab")
    dims = node.integer("axes") if node.operator.endswith("int_axes") else sides
    return f"torch.tensordot({node.x}, {node.y}, dims={dims})"


def _from_the_book(row: Operator) -> Any:
    """Return the conversion of an operator for which the book has PyTorch's word."""
    if row.facts & {"binary", "swapped"} and "{" not in row.torch:
        return partial(_between, row.torch or "-", "swapped" in row.facts)
    if "compared" in row.facts:
        return partial(_compared, row.torch)
    if "onto" in row.facts and row.torch:
        return partial(_reduction, row.kind if row.torch == "." else row.torch, "")
    if "logical" in row.facts:
        return _logical
    return f"{{a}}.{row.kind}()" if row.torch == "." else row.torch


def each(names: str, value: Any) -> Dict[str, Any]:
    """Rows of a table that differ in their names alone."""
    return dict.fromkeys(names.split(), value)


ARRAYS: Dict[str, Union[str, Conversion]] = {
    **{name: word for name, word in ((name, _from_the_book(row)) for name, row in book().items()) if word},
    "_npi_matmul": lambda node: binary(node.x, "@", node.y),
    "logical_not": lambda node: node.as_first(binary(node.x, "==", "0")),
    "_npi_logical_not": "torch.logical_not({x})",
    "_maximum_scalar": "{a}.clamp(min={scalar})",
    "_minimum_scalar": "{a}.clamp(max={scalar})",
    "_hypot_scalar": "torch.hypot({x}, torch.full_like({x}, {scalar}))",
    "add_n": lambda node: " + ".join(map(atom, node.inputs)),
    **each("Cast amp_cast", lambda node: cast(node.x, node.dtype.partition(".")[2])),
    "clip": _clip,
    "smooth_l1": _smooth_l1,
    "_npi_std": partial(_reduction, "std", "correction={ddof}"),
    "_npi_var": partial(_reduction, "var", "correction={ddof}"),
    **each("norm _npi_norm", _norm),
    "moments": _moments,
    **each("argmax _npi_argmax", partial(_extreme, "argmax")),
    **each("argmin _npi_argmin", partial(_extreme, "argmin")),
    **each("topk sort argsort", _in_order),
    "_np_cumsum": _cumsum,
    **each("dot _np_dot", _dot),
    "batch_dot": _batch_dot,
    **each("_linalg_gemm _linalg_gemm2", _gemm),
    **each("_npi_tensordot _npi_tensordot_int_axes", _tensordot),
    "_npi_einsum": lambda node: f'torch.einsum("{node.text("subscripts")}", {listed(node.inputs)})',
    "Reshape": _reshape,
    "_np_reshape": _reshape_of_numpy,
    "_npx_reshape": lambda node: _resized(node, node.ints("newshape")),
    "reshape_like": _reshape_like,
    **each("transpose _np_transpose", _transpose),
    "_np_moveaxis": lambda node: (
        f"{node.a}.movedim({literal(node.ints('source'))}, {literal(node.ints('destination'))})"
    ),
    **each("squeeze _np_squeeze", _squeeze),
    **each("SliceChannel _split_v2", _split),
    **each("Concat _rnn_param_concat", partial(_join, "cat", "dim")),
    "_npi_concatenate": partial(_join, "cat", "axis"),
    **each("stack _npi_stack", partial(_join, "stack", "axis")),
    "_npi_vstack": lambda node: f"torch.vstack([{listed(node.inputs)}])",
    "tile": lambda node: f"{node.a}.tile({literal(node.ints('reps'))})",
    "repeat": _repeat,
    "Pad": _pad,
    "_np_roll": _roll,
    **each("reverse _npi_flip", lambda node: f"{node.a}.flip({literal(node.ints('axis') or tuple(range(node.rank)))})"),
    "broadcast_to": partial(_broadcast_to, 0),
    "_npi_broadcast_to": partial(_broadcast_to, -2),
    "broadcast_axis": _broadcast_axis,
    "broadcast_like": _broadcast_like,
    **{f"_{name}": partial(_filled, name, 0) for name in ("zeros", "ones")},
    **{f"_npi_{name}": partial(_filled, name, -1) for name in ("zeros", "ones")},
    "_full": partial(_filled, "full", 0),
    **each("_arange _npi_arange", _arange),
    "_contrib_arange_like": _arange_like,
    "slice": _slice,
    "slice_axis": lambda node: _indexed(node, node.axis(0), _span(node.integer("begin", 0), node.integer("end"))),
    "slice_like": _slice_like,
    "take": _take,
    "pick": _pick,
    "gather_nd": lambda node: f"{node.a}[tuple({node.long(1)})]",
    **each("where _npi_where _npi_where_lscalar _npi_where_rscalar _npi_where_scalar2", _where),
    "diag": _diag,
    "one_hot": _one_hot,
    "UpSampling": _up_sampling,
    "_contrib_BilinearResize2D": _bilinear_resize,
    "SequenceMask": partial(_sequence, "mask_after", "{x}"),
    "SequenceReverse": partial(_sequence, "reverse_steps", "{a}.flip(0)"),
    "_contrib_box_nms": _box_nms,
    "_contrib_box_decode": _box_decode,
    "_contrib_box_iou": _box_iou,
    "_contrib_ROIAlign": _roi_align,
    "_random_uniform": _uniform,
}
