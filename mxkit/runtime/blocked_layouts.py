"""Concatenation and slicing of channels that oneDNN cannot cut out of its blocked layout (T250, T251).

oneDNN keeps the output and the gradient of a convolution in blocks of 16 channels, or of 8. The gradient of Concat and
the operator `slice` take parts of such an array without a copy (`mkldnn_concat.cc`, `mkldnn_slice.cc`), which fails
where a part begins or ends inside a block: the process ends with a floating point exception, or an MXNetError says
"could not construct a sub-memory". `slice_axis` and the Concat of `mx.np` read the usual layout, and compute the same.
"""

from typing import Any, List, Optional, Sequence, Tuple

from mxkit.runtime.operators import Operator, is_recording, mxnet_module

CHANNEL_AXES = (1, -3)  # of batches of images
_LARGEST_BLOCK = 16


def cuts_a_block(channels: Optional[int], points: Sequence[int]) -> bool:
    """Whether a part of an array begins or ends inside a block of oneDNN's.

    Args:
        channels: Of the whole array; None if they are unknown.
        points: Where parts begin and end, in channels, without 0 and the end.

    >>> [cuts_a_block(16, [8]), cuts_a_block(24, [8]), cuts_a_block(20, [10]), cuts_a_block(None, [16, 32])]
    [True, False, False, False]
    """
    if channels is not None and channels % 8:
        return False  # it has no blocks
    block = _LARGEST_BLOCK if channels is None or channels % _LARGEST_BLOCK == 0 else 8
    return any(point % block for point in points)


def joining(concat: Operator) -> Operator:
    """Concat whose gradient is not computed from a blocked layout (T250)."""

    def run(*arrays: Any, dim: int = 1, **options: Any) -> Any:
        if is_recording() and dim in CHANNEL_AXES and arrays[0].ndim == 4 and options.get("out") is None:
            *points, channels = sums([array.shape[1] for array in arrays])
            if cuts_a_block(channels, points):
                internal = mxnet_module("ndarray.numpy._internal")
                return internal.concatenate(*(array.as_np_ndarray() for array in arrays), axis=1).as_nd_ndarray()
        return concat(*arrays, dim=dim, **options)

    return run


def slicing(kind: str) -> Any:
    """`slice` that takes channels by `slice_axis` where it would cut a block (T251).

    Args:
        kind: "nd" or "np".
    """

    def wrapper(operator: Operator) -> Operator:
        def run(*arguments: Any, **named: Any) -> Any:
            data, begin, end, step = _of_slice(*arguments, **named)
            if named.get("out") is not None or data.ndim != 4 or not _cuts_channels(begin, end, step):
                return operator(*arguments, **named)
            channels = data.shape[1]
            first, last = bounds(begin[1], end[1], channels)
            if first >= last or not cuts_a_block(channels, [first, *([] if last == channels else [last])]):
                return operator(*arguments, **named)
            part = mxnet_module("ndarray").slice_axis(data.as_nd_ndarray(), axis=1, begin=first, end=last)
            part = part.as_np_ndarray() if kind == "np" else part
            return operator(part, (begin[0], None, *begin[2:]), (end[0], None, *end[2:]))

        return run

    return wrapper


def _of_slice(data: Any, begin: Any = None, end: Any = None, step: Any = None, **_: Any) -> Tuple[Any, Any, Any, Any]:
    return data, begin, end, step


def _cuts_channels(begin: Any, end: Any, step: Any) -> bool:
    if not all(isinstance(one, (tuple, list)) and len(one) > 1 for one in (begin, end)):
        return False  # one number is the first axis
    return all(one in (None, 1) for one in (step if isinstance(step, (tuple, list)) else [step]))


def sums(numbers: Sequence[int]) -> List[int]:
    """Sums of the first number, of the first two, and so on."""
    return [sum(numbers[: count + 1]) for count in range(len(numbers))]


def bounds(begin: Optional[int], end: Optional[int], size: int) -> Tuple[int, int]:
    """Begin and end of a slice as numbers from 0 to `size`."""
    first, last, _ = slice(begin, end).indices(size)
    return first, last
