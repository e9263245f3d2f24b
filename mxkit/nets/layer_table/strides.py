"""Cumulative strides: how many positions of a net's input lie between two neighbours of an output."""

from fractions import Fraction
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.nets.layer_table.costs import Shape, attribute, operator_kind

# One number per spatial axis, or one number for all of them.
Stride = Tuple[Fraction, ...]

_CONVOLUTIONS = ("convolution", "deformableconvolution", "modulateddeformableconvolution", "pooling")
# Their outputs have no spatial axes.
_ENDS = ("flatten", "batch_flatten", "adaptiveavgpooling2d", "reshape_like")
# Their outputs have the spatial axes of the input if the sizes are equal.
_MAY_END = ("reshape", "sum", "mean", "max", "min", "amax", "amin", "prod", "norm", "argmax", "argmin")


def first_stride(shape: Shape) -> Optional[Stride]:
    """Return the stride of a net's input: 1 if it has spatial axes, beyond batch and channels.

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
    """Return the cumulative stride of an operator's output.

    Convolution, pooling and `slice` multiply the largest stride of the inputs, transposed convolution and resizing
    divide it. Global pooling, flattening and dense layers join all positions, so their outputs have no stride.

    Args:
        name: As for `operator_cost`.
        attributes: As for `operator_cost`.
        inputs: As for `operator_cost`.
        outputs: As for `operator_cost`.
        strides: Strides of the inputs; None for parameters and for arrays without spatial axes.

    Returns:
        The stride; None if the output has no spatial axes.

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
        return _times(largest, [Fraction(1, step) for step in _steps(attributes, "stride")])
    if kind == "upsampling":
        return _times(largest, [Fraction(1, attribute(attributes, "scale", 1))])
    if kind == "bilinearresize2d":
        return _times(largest, [Fraction(old, new) for old, new in zip(before, after)])
    if kind in ("depth_to_space", "space_to_depth"):
        block = Fraction(attribute(attributes, "block_size", 1))
        return _times(largest, [1 / block if kind == "depth_to_space" else block])
    if kind == "slice":
        return _times(largest, [abs(step or 1) for step in (attribute(attributes, "step", None) or ())[2:]] or [1])
    return largest


def stride_text(stride: Optional[Stride]) -> str:
    """Return a stride as text, with one number per axis if they differ.

    >>> stride_text((Fraction(8), Fraction(8))), stride_text((Fraction(1, 2), Fraction(4))), stride_text(None)
    ('8', '1/2x4', '-')
    """
    if stride is None:
        return "-"
    return str(stride[0]) if len(set(stride)) == 1 else "x".join(map(str, stride))


def _steps(attributes: Mapping[str, str], name: str) -> Sequence[int]:
    steps = attribute(attributes, name, ())
    return [steps] if isinstance(steps, int) else steps or [1]


def _largest(strides: List[Stride]) -> Optional[Stride]:
    if not strides:
        return None
    axes = max(map(len, strides))
    return tuple(max(along) for along in zip(*(_spread(stride, axes) for stride in strides)))


def _times(stride: Stride, factors: Sequence[Union[int, Fraction]]) -> Stride:
    axes = max(len(stride), len(factors))
    return tuple(one * factor for one, factor in zip(_spread(stride, axes), _spread(factors, axes)))


def _spread(numbers: Sequence[Any], axes: int) -> Sequence[Any]:
    return numbers if len(numbers) == axes else [numbers[0]] * axes
