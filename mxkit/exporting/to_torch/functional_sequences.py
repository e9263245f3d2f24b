"""Operators of sequences, of attention and of detection; most of them call a helper of `emitted_helpers`."""

from typing import Dict

from mxkit.exporting.to_torch.expression_parts import atom, listed, literal, options, unless
from mxkit.exporting.to_torch.functional_arithmetic import template
from mxkit.exporting.to_torch.node import Conversion, Node


def _sequence_mask(node: Node) -> str:
    if not node.flag("use_sequence_length"):
        return node.inputs[0]
    data, lengths = node.inputs
    extra = options(value=unless(node.number("value", 0), 0), dim=unless(node.integer("axis", 0), 0))
    return f"mask_after({data}, {lengths}{extra})"


def _sequence_last(node: Node) -> str:
    axis = node.integer("axis", 0)
    if not node.flag("use_sequence_length"):
        return f"{atom(node.inputs[0])}[{'-1' if axis == 0 else ':, -1'}]"
    return f"last_steps({node.inputs[0]}, {node.inputs[1]}{options(dim=unless(axis, 0))})"


def _sequence_reverse(node: Node) -> str:
    if not node.flag("use_sequence_length"):
        return f"{atom(node.inputs[0])}.flip(0)"
    return f"reverse_steps({node.inputs[0]}, {node.inputs[1]})"


def _box_nms(node: Node) -> str:
    formats = [node.text(name, "corner") for name in ("in_format", "out_format")]
    if formats != ["corner", "corner"]:
        raise node.refused(f"in_format={formats[0]} and out_format={formats[1]}; expected corner")
    extra = options(
        overlap=unless(node.number("overlap_thresh", 0.5), 0.5),
        threshold=unless(node.number("valid_thresh", 0), 0),
        topk=unless(node.integer("topk", -1), -1),
        coordinates=unless(node.integer("coord_start", 2), 2),
        score=unless(node.integer("score_index", 1), 1),
        label=unless(node.integer("id_index", -1), -1),
        background=unless(node.integer("background_id", -1), -1),
        across_labels="True" if node.flag("force_suppress") else None,
    )
    return f"box_nms({node.inputs[0]}{extra})"


def _box_decode(node: Node) -> str:
    scales = tuple(node.number(f"std{part}", 1) for part in range(4))
    limit = node.number("clip", -1)
    extra = options(
        scales=unless(scales, (1,) * 4) and literal(scales),
        limit=literal(limit) if limit > 0 else None,
        corners="True" if node.text("format", "center") == "corner" else None,
    )
    return f"decode_boxes({node.inputs[0]}, {node.inputs[1]}{extra})"


def _prior_boxes(node: Node) -> str:
    steps = node.numbers("steps", (-1, -1))
    extra = options(
        steps=literal(steps) if min(steps) > 0 else None,
        offsets=unless(node.numbers("offsets", (0.5, 0.5)), (0.5, 0.5)) and literal(node.numbers("offsets", ())),
        clip="True" if node.flag("clip") else None,
    )
    sizes, ratios = node.numbers("sizes", (1,)), node.numbers("ratios", (1,))
    return f"prior_boxes({node.inputs[0]}, {literal(sizes)}, {literal(ratios)}{extra})"


def _detection(node: Node) -> str:
    overlap, scales = node.number("nms_threshold", 0.5), node.numbers("variances", (0.1, 0.1, 0.2, 0.2))
    if not 0 < overlap <= 1 or node.integer("background_id", 0):
        raise node.refused("a background_id other than 0, or nms_threshold outside of 0 to 1")
    extra = options(
        threshold=unless(node.number("threshold", 0.01), 0.01),
        overlap=unless(overlap, 0.5),
        variances=literal(scales) if scales != (0.1, 0.1, 0.2, 0.2) else None,
        clip=None if node.flag("clip", True) else "False",
        topk=unless(node.integer("nms_topk", -1), -1),
        across_labels="True" if node.flag("force_suppress") else None,
    )
    return f"detect_boxes({listed(node.inputs)}{extra})"


def _sampled(data: str, grid: str) -> str:
    return f"F.grid_sample({data}, {grid}, align_corners=True)"


def _affine_grid(matrix: str, sizes: str) -> str:
    return f"F.affine_grid({atom(matrix)}.reshape(-1, 2, 3), {sizes}, align_corners=True)"


def _bilinear_sampler(node: Node) -> str:
    return _sampled(node.inputs[0], f"{atom(node.inputs[1])}.permute(0, 2, 3, 1)")


def _grid_generator(node: Node) -> str:
    if node.text("transform_type", "affine") != "affine":
        raise node.refused(f"transform_type={node.text('transform_type')}; expected affine")
    height, width = node.ints("target_shape")
    sizes = f"({atom(node.inputs[0])}.shape[0], 1, {height}, {width})"
    return f"{_affine_grid(node.inputs[0], sizes)}.permute(0, 3, 1, 2)"


def _spatial_transformer(node: Node) -> str:
    data, matrix = node.inputs
    height, width = node.ints("target_shape") or node.shapes[0][2:]
    sizes = f"(*{atom(data)}.shape[:2], {height or node.shapes[0][2]}, {width or node.shapes[0][3]})"
    return _sampled(data, _affine_grid(matrix, sizes))


def _roi_align(node: Node) -> str:
    if node.flag("position_sensitive"):
        raise node.refused("position_sensitive=True")
    ratio = node.integer("sample_ratio", -1) or -1
    if ratio < 1:
        raise node.refused("sample_ratio=-1, whose number of samples differs from box to box; state a positive one")
    extra = options(aligned="True" if node.flag("aligned") else None)
    pooled = literal(node.ints("pooled_size"))
    scale = literal(node.number("spatial_scale", 1))
    return f"roi_align({node.inputs[0]}, {node.inputs[1]}, {pooled}, {scale}, {ratio}{extra})"


SEQUENCES: Dict[str, Conversion] = {
    "SequenceMask": _sequence_mask,
    "SequenceLast": _sequence_last,
    "SequenceReverse": _sequence_reverse,
    "_contrib_interleaved_matmul_selfatt_qk": template(
        "attention_scores(part_of_heads({x}, {heads}, 3, 0), part_of_heads({x}, {heads}, 3, 1))", heads=0
    ),
    "_contrib_interleaved_matmul_encdec_qk": template(
        "attention_scores(part_of_heads({x}, {heads}), part_of_heads({y}, {heads}, 2, 0))", heads=0
    ),
    "_contrib_interleaved_matmul_selfatt_valatt": template(
        "attention_values({y}, part_of_heads({x}, {heads}, 3, 2), {heads})", heads=0
    ),
    "_contrib_interleaved_matmul_encdec_valatt": template(
        "attention_values({y}, part_of_heads({x}, {heads}, 2, 1), {heads})", heads=0
    ),
    "_contrib_box_nms": _box_nms,
    "_contrib_box_decode": _box_decode,
    "_contrib_MultiBoxPrior": _prior_boxes,
    "_contrib_ROIAlign": _roi_align,
    "_contrib_MultiBoxDetection": _detection,
    "BilinearSampler": _bilinear_sampler,
    "GridGenerator": _grid_generator,
    "SpatialTransformer": _spatial_transformer,
}
