"""Conversions of operators that are one node of ONNX, with its attributes by MXNet's names and defaults."""

from typing import Any, Dict, Tuple

from mxkit.exporting.to_onnx.onnx_writer import Operator, Writer, converts

_NODES: Dict[str, Tuple[str, Dict[str, Tuple[str, Any]]]] = {
    **dict.fromkeys(("_copy", "BlockGrad", "MakeLoss", "make_loss", "_np_copy"), ("Identity", {})),
    "add_n": ("Sum", {}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)}),
    "InstanceNorm": ("InstanceNormalization", {"epsilon": ("eps", 1e-3)}),
    "LRN": (
        "LRN",
        {"alpha": ("alpha", 1e-4), "beta": ("beta", 0.75), "bias": ("knorm", 2.0), "size": ("nsize", None)},
    ),
    "depth_to_space": ("DepthToSpace", {"blocksize": ("block_size", None)}),
    "space_to_depth": ("SpaceToDepth", {"blocksize": ("block_size", None)}),
    "ROIPooling": ("MaxRoiPool", {"pooled_shape": ("pooled_size", None), "spatial_scale": ("spatial_scale", 1.0)}),
}


@converts(*_NODES)
def renamed(operator: Operator, writer: Writer) -> str:
    kind, names = _NODES[operator.operator]
    values = {name: operator.get(own, default) for name, (own, default) in names.items()}
    # ONNX tells 1 from 1.0: a number is of the type of its default
    typed = {name: float(value) if isinstance(names[name][1], float) else value for name, value in values.items()}
    return writer.op(kind, *operator.inputs, **typed)
