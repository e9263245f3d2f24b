"""How many positions of a net's input two neighbours of an operator's output lie apart."""

from fractions import Fraction
from typing import List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.nets.layer_table.costs import Shape, attribute, operator_kind

# Along each spatial axis; one number alone holds for all of them.
Stride = Tuple[Fraction, ...]

_CONVOLUTIONS = ("convolution", "deformableconvolution", "modulateddeformableconvolution", "pooling")
# Spatial axes do not survive these.
_ENDS = ("flatten", "batch_flatten", "adaptiveavgpooling2d", "reshape_like")
# They may, if their sizes stay.
_MAY_END = ("reshape", "sum", "mean", "max", "min", "amax", "amin", "prod", "norm", "argmax", "argmin")


def first_stride(shape: Shape) -> Optional[Stride]:
    """Stride of an input of a net: 1 where it has positions, axes beyond batch and channels.

    >>> first_stride((1, 3, 8, 8)), first_stride((1, 3))
    ((Fraction(1, 1),), None)
    """
    return (Fraction(1),) if len(shape) > 2 else None


def operator_stride(
    name: str,
    attributes: Mapping[str, str],
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    strides: Sequence[Optional[Stride]],
) -> Optional[Stride]:
    """Cumulative stride of an operator's output.

    Convolution, pooling and `slice` multiply it, transposed convolution and resizing divide it; of several
    inputs the largest counts. What joins all positions ends it: global pooling, flattening, a dense layer.

    Args:
        name, attributes, inputs, outputs: As for `operator_cost`.
        strides: Of the inputs; None for parameters and for what has no positions.

    Returns:
        None where there are no positions.

    >>> operator_stride("Pooling", {"kernel": "(2, 2)", "stride": "(2, 1)"}, [(1, 3, 8, 8)], [(1, 3, 4, 7)], [(4,)])
    (8, 4)
    """
    kind = operator_kind(name)
    largest = _largest([stride for stride in strides if stride])
    if largest is None or not outputs or len(outputs[0]) < 3 or kind in _ENDS or kind.startswith(("roi", "multibox")):
        return None
    before, after = inputs[0][2:], outputs[0][2:]
    if kind in _MAY_END:
        return largest if before[-2:] == after[-2:] else None
    if kind in _CONVOLUTIONS:
        return None if attribute(attributes, "global_pool", False) else _times(largest, _steps(attributes, "stride"))
    if kind == "deconvolution":
        return _over(largest, _steps(attributes, "stride"))
    if kind == "upsampling":
        return _over(largest, [attribute(attributes, "scale", 1)])
    if kind == "bilinearresize2d":
        return _times(largest, [Fraction(old, new) for old, new in zip(before, after)])
    if kind in ("depth_to_space", "space_to_depth"):
        block: List[int] = [attribute(attributes, "block_size", 1)]
        return _over(largest, block) if kind == "depth_to_space" else _times(largest, block)
    if kind == "slice":
        return _times(largest, [abs(step or 1) for step in (attribute(attributes, "step", None) or ())[2:]] or [1])
    return largest


def stride_text(stride: Optional[Stride]) -> str:
    """Write a stride, axes only where they differ.

    >>> stride_text((Fraction(8), Fraction(8))), stride_text((Fraction(1, 2), Fraction(4))), stride_text(None)
    ('8', '1/2x4', '-')
    """
    if stride is None:
        return "-"
    return str(stride[0]) if len(set(stride)) == 1 else "x".join(map(str, stride))


def _steps(attributes: Mapping[str, str], name: str) -> Sequence[int]:
    found = attribute(attributes, name, ())
    return [found] if isinstance(found, int) else found or [1]


def _largest(strides: List[Stride]) -> Optional[Stride]:
    if not strides:
        return None
    axes = max(map(len, strides))
    wide = [stride if len(stride) == axes else stride[:1] * axes for stride in strides]
    return tuple(max(along) for along in zip(*wide))


def _times(stride: Stride, factors: Sequence[Union[int, Fraction]]) -> Stride:
    axes = max(len(stride), len(factors))
    factors = list(factors) if len(factors) == axes else list(factors[:1]) * axes
    return tuple(one * factor for one, factor in zip(stride if len(stride) == axes else stride[:1] * axes, factors))


def _over(stride: Stride, factors: Sequence[int]) -> Stride:
    return _times(stride, [Fraction(1, factor) for factor in factors])
