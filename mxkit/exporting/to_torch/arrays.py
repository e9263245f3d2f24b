"""Operators that move, join, select, make or resize arrays, and those of sequences, attention and detection.

A row an operator: a pattern as `Node.filled` takes it, or a function. Several call a function of `emitted.py`.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from mxkit.exporting.to_torch.expressions import (
    Conversion,
    Node,
    atom,
    axes_text,
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
    rank, reverse = node.rank, node.flag("reverse")
    at, dims, rest = 0, [], list(codes[::-1] if reverse else codes)

    def have(number: int) -> str:
        return f"{node.a}.shape[{-1 - number if reverse else number}]"

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
        return node.x
    return f"{node.a}.reshape({listed(dims[::-1] if reverse else dims)})"


def _reshape(node: Node) -> str:
    codes, rank = node.ints("shape"), node.rank
    if not codes:  # of MXNet before 1.0, whose 0 is inferred
        codes = tuple(part or -1 for part in node.ints("target_shape"))
        if node.flag("keep_highest"):
            raise node.refused("keep_highest=True; state shape=(0, ...)")
    merged = _merged(codes, rank) if not node.flag("reverse") else None
    if merged is None:
        return _resized(node, [_CODES.get(code, code) for code in codes])
    first, last = merged
    if last == rank - 1:
        return f"{node.a}.flatten({first or ''})"
    return f"{node.a}.flatten({first}, {last})"


def _merged(codes: Sequence[int], rank: int) -> Optional[Tuple[int, int]]:
    """Return the first and last dimension that codes like (0, -1) or (0, -3, 0) merge, if that is all they do."""
    kept = next((place for place, code in enumerate(codes) if code != 0), len(codes))
    rest = list(codes[kept:])
    if rest == [-1] and kept < rank:
        return kept, rank - 1
    if rest and rest[0] == -3 and rank >= kept + 2 and (rest[1:] == [-2] or rest[1:] == [0] * (rank - kept - 2)):
        return kept, kept + 1
    return None


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
    return f"{node.a}.squeeze({'' if axes is None else axes_text(axes)})"


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


def _join(function: str, name: str = "axis") -> Conversion:
    """Return a conversion that joins arrays along the axis `name`; along None, they are flattened."""

    def convert(node: Node) -> str:
        axis = node.get(name, 0)
        inputs = [f"{atom(x)}.flatten()" for x in node.inputs] if axis is None else node.inputs
        is_one = len(inputs) == 1 and name == "dim"
        return inputs[0] if is_one else f"torch.{function}([{listed(inputs)}], dim={axis or 0})"

    return convert


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


def _flip(node: Node) -> str:
    return f"{node.a}.flip({literal(node.ints('axis') or tuple(range(node.rank)))})"


def _broadcast_to(same: int) -> Conversion:
    """Return a conversion that enlarges axes; `same` stands for the size that the axis has."""

    def convert(node: Node) -> str:
        shape = node.ints("shape")
        have = [None] * (len(shape) - node.rank) + [*node.shapes[0]]
        return f"{node.a}.expand({listed(-1 if wanted in (same, own) else wanted for wanted, own in zip(shape, have))})"

    return convert


def _broadcast_axis(node: Node) -> str:
    sizes = dict(zip(node.ints("axis"), node.ints("size")))
    return f"{node.a}.expand({listed(sizes.get(axis, -1) for axis in range(node.rank))})"


def _broadcast_like(node: Node) -> str:
    own, other, like = node.optional_ints("lhs_axes"), node.optional_ints("rhs_axes"), atom(node.y)
    if own is None or other is None:
        return f"{node.a}.expand_as({like})"
    sizes = {axis: f"{like}.shape[{source}]" for axis, source in zip(own, other)}
    return f"{node.a}.expand({listed(sizes.get(axis, -1) for axis in range(node.rank))})"


def _filled(function: str, unknown: int) -> Conversion:
    """Return the conversion of an operator without inputs; the size that MXNet does not know is the batch's."""

    def convert(node: Node) -> str:
        sizes = ["batch_size" if part == unknown else str(part) for part in node.ints("shape")]
        is_full = function == "full"
        value = f", {literal(node.number('value'))}" if is_full else ""
        # torch.full derives its type from the value
        extra = "" if node.dtype == "torch.float32" and not is_full else f", dtype={node.dtype}"
        return f"torch.{function}(({listed(sizes)}{',' * (len(sizes) == 1)}){value}{extra}, device=device)"

    return convert


def _arange(node: Node) -> str:
    start, stop, step = (node.number(name) for name in ("start", "stop", "step"))
    if not node.text("stop"):
        start, stop = 0, start
    count = node.integer("repeat")
    parts = [stop] if (start, step) == (0, 1) else [start, stop, step]
    values = f"torch.arange({listed(map(literal, parts))}, dtype={node.dtype}, device=device)"
    return values if count == 1 else f"{values}.repeat_interleave({count})"


def _arange_like(node: Node) -> str:
    axis, count = node.integer("axis"), node.integer("repeat") or 1
    start, step = node.number("start"), node.number("step")
    total = f"{node.a}.numel()" if axis is None else f"{node.a}.shape[{axis}]"
    values = f"torch.arange({total}, device={node.a}.device){f' // {count}' if count != 1 else ''}"
    values = cast(values, node.dtypes[0] if node.dtypes else "float32")
    if step != 1:
        values = binary(values, "*", literal(step))
    if start:
        values = binary(values, "+", literal(start))
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


def _slice_axis(node: Node) -> str:
    return _indexed(node, node.axis(0), _span(node.integer("begin", 0), node.integer("end")))


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


def _crop(node: Node) -> str:
    like = atom(node.y)
    sizes = [f"{like}.shape[{axis}]" for axis in (2, 3)] if len(node.inputs) > 1 else [*map(str, node.ints("h_w"))]
    if node.flag("center_crop"):
        return f"centred({node.x}, {listed(sizes)})"
    parts = []
    for start, wanted in zip(node.ints("offset") or (0, 0), sizes):
        end = str(start + int(wanted)) if wanted.isdigit() else f"{start} + {wanted}" if start else wanted
        parts.append(f"{start or ''}:{end}" if wanted.isdigit() else f"{start or ''} : {end}".lstrip())
    return f"{node.a}[:, :, {listed(parts)}]"


def _one_hot(node: Node) -> str:
    on, off, dtype = node.number("on_value"), node.number("off_value"), node.text("dtype")
    # F.one_hot refuses an index outside of the range, for which MXNet returns a row of zeros
    numbers = f"torch.arange({node.integer('depth')}, device={node.a}.device)"
    found = cast(f"{node.long(0)}.unsqueeze(-1) == {numbers}", dtype)
    if (on, off) == (1, 0):
        return found
    return binary(binary(found, "*", literal(on - off)), "+" if off >= 0 else "-", literal(abs(off)))


def _up_sampling(node: Node) -> str:
    scale, kind = node.integer("scale"), node.text("sample_type")
    if kind == "bilinear":
        kernel, shape = 2 * scale - scale % 2, node.shapes[1]
        if tuple(shape[2:]) != (kernel, kernel):
            raise node.refused(f"sample_type=bilinear with a weight of shape {shape}; expected a kernel of {kernel}")
        extra = options(stride=(scale, None), padding=(-(-(scale - 1) // 2), 0), groups=(node.shapes[0][1], 1))
        return f"F.conv_transpose2d({node.x}, {node.y}{extra})"
    scaled = [f'F.interpolate({node.x}, scale_factor={scale}, mode="nearest")']
    sizes = listed(binary(f"{node.a}.shape[{axis}]", "*", str(scale)) for axis in (2, 3))
    scaled += [f'F.interpolate({data}, size=({sizes}), mode="nearest")' for data in node.inputs[1:]]
    if len(scaled) == 1 or node.text("multi_input_mode") == "sum":
        return " + ".join(scaled)
    return f"torch.cat([{listed(scaled)}], dim=1)"


# The output's size by `mode`; "{n}" is the input's, "{s}" the scale
_RESIZED = {
    "size": "int({n} * {s})",
    "odd_scale": "int({n} * {s}) if {n} % 2 == 0 else int(({n} - 1) * {s}) + 1",
    "to_even_down": "{n} // 2 * 2",
    "to_even_up": "({n} + 1) // 2 * 2",
    "to_odd_down": "({n} - 1) // 2 * 2 + 1",
    "to_odd_up": "{n} // 2 * 2 + 1",
}


def _bilinear_resize(node: Node) -> str:
    mode, scales = node.text("mode"), [node.number(f"scale_{side}") for side in ("height", "width")]
    if mode == "like":
        target = f"{atom(node.y)}.shape[2:]"
    elif mode == "size" and not any(scales):
        target = literal((node.integer("height"), node.integer("width")))
    elif mode in _RESIZED:
        sizes = [(f"{node.a}.shape[{axis}]", literal(scale)) for axis, scale in enumerate(scales, start=2)]
        target = f"({listed(_RESIZED[mode].format(n=own, s=scale) for own, scale in sizes)})"
    else:
        raise node.refused(f"mode={mode} is unknown; expected like or one of {listed(_RESIZED)}")
    corners = node.flag("align_corners")
    return f'F.interpolate({node.x}, size={target}, mode="bilinear", align_corners={corners})'


def _sequence(function: str, without: Conversion) -> Conversion:
    """Return a conversion to a function of sequences with lengths; `without` converts what has none."""

    def convert(node: Node) -> str:
        if not node.flag("use_sequence_length"):
            return without(node)
        extra = options(value=(node.number("value"), 0), dim=(node.integer("axis", 0), 0))
        return f"{function}({node.x}, {node.y}{extra})"

    return convert


def _last_step(node: Node) -> str:
    return f"{node.a}[{':, -1' if node.integer('axis', 0) else '-1'}]"


def _box_nms(node: Node) -> str:
    formats = [node.text(name, "corner") for name in ("in_format", "out_format")]
    if formats != ["corner", "corner"]:
        raise node.refused(f"in_format={formats[0]} and out_format={formats[1]}; expected corner")
    extra = options(
        overlap=(node.number("overlap_thresh"), 0.5),
        threshold=(node.number("valid_thresh"), 0),
        topk=(node.integer("topk"), -1),
        coordinates=(node.integer("coord_start"), 2),
        score=(node.integer("score_index"), 1),
        label=(node.integer("id_index"), -1),
        background=(node.integer("background_id"), -1),
        across_labels=(node.flag("force_suppress"), False),
    )
    return f"box_nms({node.x}{extra})"


def _four(name: str, values: Sequence[Any], default: Sequence[Any]) -> str:
    """Write an argument that is a tuple, also of equal numbers, unless it has its default."""
    return "" if tuple(values) == tuple(default) else f", {name}={literal(tuple(values))}"


def _box_decode(node: Node) -> str:
    scales = _four("scales", [node.number(f"std{part}", 1) for part in range(4)], (1, 1, 1, 1))
    extra = options(limit=(max(node.number("clip"), 0), 0), corners=(node.text("format") == "corner", False))
    return f"decode_boxes({node.x}, {node.y}{scales}{extra})"


def _prior_boxes(node: Node) -> str:
    steps, offsets = node.numbers("steps", (-1, -1)), node.numbers("offsets", (0.5, 0.5))
    extra = _four("steps", steps if min(steps) > 0 else (), ()) + _four("offsets", offsets, (0.5, 0.5))
    extra += options(clip=(node.flag("clip"), False))
    return (
        f"prior_boxes({node.x}, {literal(node.numbers('sizes', (1,)))}, {literal(node.numbers('ratios', (1,)))}{extra})"
    )


def _detection(node: Node) -> str:
    overlap, standard = node.number("nms_threshold"), (0.1, 0.1, 0.2, 0.2)
    if not 0 < overlap <= 1 or node.integer("background_id"):
        raise node.refused("a background_id other than 0, or nms_threshold outside of 0 to 1")
    first = options(threshold=(node.number("threshold"), 0.01), overlap=(overlap, 0.5))
    rest = options(
        clip=(node.flag("clip"), True),
        topk=(node.integer("nms_topk"), -1),
        across_labels=(node.flag("force_suppress"), False),
    )
    variances = _four("variances", node.numbers("variances", standard), standard)
    return f"detect_boxes({listed(node.inputs)}{first}{variances}{rest})"


def _roi_align(node: Node) -> str:
    ratio = node.integer("sample_ratio")
    if node.flag("position_sensitive"):
        raise node.refused("position_sensitive=True")
    if ratio < 1:
        raise node.refused("sample_ratio=-1, whose number of samples differs from box to box; state a positive one")
    pooled, scale = literal(node.ints("pooled_size")), literal(node.number("spatial_scale", 1))
    return f"roi_align({node.x}, {node.y}, {pooled}, {scale}, {ratio}{options(aligned=(node.flag('aligned'), False))})"


def _sampled(data: str, grid: str) -> str:
    return f"F.grid_sample({data}, {grid}, align_corners=True)"


def _affine_grid(matrix: str, sizes: List[Any]) -> str:
    return f"F.affine_grid({atom(matrix)}.reshape(-1, 2, 3), ({listed(sizes)}), align_corners=True)"


def _grid_generator(node: Node) -> str:
    if node.text("transform_type") != "affine":
        raise node.refused(f"transform_type={node.text('transform_type')}; expected affine")
    grid = _affine_grid(node.x, [f"{node.a}.shape[0]", 1, *node.ints("target_shape")])
    return f"{grid}.permute(0, 3, 1, 2)"


def _spatial_transformer(node: Node) -> str:
    sizes = [wanted or own for wanted, own in zip(node.ints("target_shape") or (0, 0), node.shapes[0][2:])]
    return _sampled(node.x, _affine_grid(node.y, [f"*{node.a}.shape[:2]", *sizes]))


ARRAYS: Dict[str, Union[str, Conversion]] = {
    **dict.fromkeys(["_copy", "_np_copy", "make_loss", "MakeLoss"], "{x}"),
    "BlockGrad": "{a}.detach()",
    "Reshape": _reshape,
    "_np_reshape": _reshape_of_numpy,
    "_npx_reshape": lambda node: _resized(node, node.ints("newshape")),
    "reshape_like": _reshape_like,
    "Flatten": "{a}.flatten(1)",
    "transpose": _transpose,
    "_np_transpose": _transpose,
    "SwapAxis": "{a}.transpose({dim1}, {dim2})",
    "_np_moveaxis": lambda node: (
        f"{node.a}.movedim({literal(node.ints('source'))}, {literal(node.ints('destination'))})"
    ),
    "expand_dims": "{a}.unsqueeze({axis})",
    "squeeze": _squeeze,
    "_np_squeeze": _squeeze,
    "SliceChannel": _split,
    "_split_v2": _split,
    "Concat": _join("cat", "dim"),
    "_rnn_param_concat": _join("cat", "dim"),
    "_npi_concatenate": _join("cat"),
    "stack": _join("stack"),
    "_npi_stack": _join("stack"),
    "_npi_vstack": lambda node: f"torch.vstack([{listed(node.inputs)}])",
    "tile": lambda node: f"{node.a}.tile({literal(node.ints('reps'))})",
    "repeat": _repeat,
    "Pad": _pad,
    "_np_roll": _roll,
    "reverse": _flip,
    "_npi_flip": _flip,
    "broadcast_to": _broadcast_to(0),
    "_npi_broadcast_to": _broadcast_to(-2),
    "broadcast_axis": _broadcast_axis,
    "broadcast_like": _broadcast_like,
    "depth_to_space": "depth_to_space({x}, {block_size})",
    "space_to_depth": "space_to_depth({x}, {block_size})",
    "_zeros": _filled("zeros", 0),
    "_npi_zeros": _filled("zeros", -1),
    "zeros_like": "torch.zeros_like({x})",
    "_ones": _filled("ones", 0),
    "_npi_ones": _filled("ones", -1),
    "ones_like": "torch.ones_like({x})",
    "_full": _filled("full", 0),
    "_npi_full_like": "torch.full_like({x}, {fill_value})",
    "_arange": _arange,
    "_npi_arange": _arange,
    "_contrib_arange_like": _arange_like,
    "shape_array": "torch.tensor({a}.shape, device={a}.device)",
    "size_array": "torch.tensor([{a}.numel()], device={a}.device)",
    "slice": _slice,
    "slice_axis": _slice_axis,
    "slice_like": _slice_like,
    "take": _take,
    "pick": _pick,
    "batch_take": lambda node: f"{node.a}.gather(1, {_limited(node, 1)}.unsqueeze(1)).squeeze(1)",
    "gather_nd": lambda node: f"{node.a}[tuple({node.long(1)})]",
    "where": _where,
    **dict.fromkeys(["_npi_where", "_npi_where_lscalar", "_npi_where_rscalar", "_npi_where_scalar2"], _where),
    "diag": _diag,
    "_npi_tril": "{a}.tril({k})",
    "Crop": _crop,
    "one_hot": _one_hot,
    "UpSampling": _up_sampling,
    "_contrib_BilinearResize2D": _bilinear_resize,
    "SequenceMask": _sequence("mask_after", lambda node: node.x),
    "SequenceLast": _sequence("last_steps", _last_step),
    "SequenceReverse": _sequence("reverse_steps", lambda node: f"{node.a}.flip(0)"),
    "_contrib_interleaved_matmul_selfatt_qk": (
        "attention_scores(part_of_heads({x}, {heads}, 3, 0), part_of_heads({x}, {heads}, 3, 1))"
    ),
    "_contrib_interleaved_matmul_encdec_qk": (
        "attention_scores(part_of_heads({x}, {heads}), part_of_heads({y}, {heads}, 2, 0))"
    ),
    "_contrib_interleaved_matmul_selfatt_valatt": "attention_values({y}, part_of_heads({x}, {heads}, 3, 2), {heads})",
    "_contrib_interleaved_matmul_encdec_valatt": "attention_values({y}, part_of_heads({x}, {heads}, 2, 1), {heads})",
    "_contrib_box_nms": _box_nms,
    "_contrib_box_decode": _box_decode,
    "_contrib_MultiBoxPrior": _prior_boxes,
    "_contrib_ROIAlign": _roi_align,
    "_contrib_MultiBoxDetection": _detection,
    "BilinearSampler": lambda node: _sampled(node.x, f"{atom(node.y)}.permute(0, 2, 3, 1)"),
    "GridGenerator": _grid_generator,
    "SpatialTransformer": _spatial_transformer,
}
