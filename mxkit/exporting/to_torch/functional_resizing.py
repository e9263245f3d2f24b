"""Operators that enlarge or shrink images."""

from typing import Dict

from mxkit.exporting.to_torch.expression_parts import atom, binary, listed, literal, options, unless
from mxkit.exporting.to_torch.node import Conversion, Node


def _up_sampling(node: Node) -> str:
    scale, kind = node.integer("scale"), node.text("sample_type")
    if kind == "bilinear":
        kernel, padding = 2 * (scale or 1) - (scale or 1) % 2, -(-((scale or 1) - 1) // 2)
        shape = node.shapes[1]
        if tuple(shape[2:]) != (kernel, kernel):
            raise node.refused(f"sample_type=bilinear with a weight of shape {shape}; expected a kernel of {kernel}")
        extra = options(stride=scale, padding=unless(padding, 0), groups=unless(node.shapes[0][1], 1))
        return f"F.conv_transpose2d({node.inputs[0]}, {node.inputs[1]}{extra})"
    if len(node.inputs) == 1:
        return f'F.interpolate({node.inputs[0]}, scale_factor={scale}, mode="nearest")'
    first = node.inputs[0]
    sizes = [binary(f"{atom(first)}.shape[{axis}]", "*", str(scale)) for axis in (2, 3)]
    scaled = [f'F.interpolate({first}, scale_factor={scale}, mode="nearest")']
    for data in node.inputs[1:]:
        scaled.append(f'F.interpolate({data}, size=({listed(sizes)}), mode="nearest")')
    if node.text("multi_input_mode", "concat") == "sum":
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
    mode, x = node.text("mode", "size"), atom(node.inputs[0])
    scales = [node.number(f"scale_{side}") for side in ("height", "width")]
    if mode == "like":
        target = f"{atom(node.inputs[1])}.shape[2:]"
    elif mode == "size" and not any(scales):
        target = literal((node.integer("height", 1), node.integer("width", 1)))
    elif mode in _RESIZED:
        parts = [
            _RESIZED[mode].format(n=f"{x}.shape[{axis}]", s=literal(scale))
            for axis, scale in enumerate(scales, start=2)
        ]
        target = f"({listed(parts)})"
    else:
        raise node.refused(f"mode={mode} is unknown; expected like or one of {listed(_RESIZED)}")
    corners = node.flag("align_corners", True)
    return f'F.interpolate({node.inputs[0]}, size={target}, mode="bilinear", align_corners={corners})'


RESIZING: Dict[str, Conversion] = {
    "UpSampling": _up_sampling,
    "_contrib_BilinearResize2D": _bilinear_resize,
}
