"""Sum of squares of many arrays, exact for large arrays too."""

from typing import Any, List, Sequence

import mxnet as mx

# Largest array for `multi_sum_sq`, which adds in one float32 number: its error is 1e-6 for this size, 2e-3 for two
# million elements, and 3e-2 for 16 million (T100).
_SMALL = 16_384
# Length of the pieces of larger arrays: BLAS adds in several numbers, with an error of 2e-6 for this length.
_PIECE = 262_144


def sum_of_squares(arrays: Sequence[Any]) -> Any:
    """Sum the squares of all elements of all arrays.

    Args:
        arrays: Dense NDArrays of any shapes and float types on one device; at least one.

    Returns:
        float32 of shape (1,) on this device, within about 1e-5 of the exact sum. It does not wait for the device.
    """
    single = [array.astype("float32", copy=False) for array in arrays]
    # a reshape takes 20 us, ten times the rest of a small array; the operator refuses arrays without axes
    small = [array if array.shape else array.reshape(-1) for array in single if array.size <= _SMALL]
    parts: List[Any] = [mx.nd.multi_sum_sq(*small, num_arrays=len(small))] if small else []
    for array in single:
        if array.size > _SMALL:
            flat = array.reshape(-1)
            pieces = [flat[start : start + _PIECE] for start in range(0, array.size, _PIECE)]
            parts += [mx.nd.dot(piece, piece).reshape(1) for piece in pieces]
    return mx.nd.concat(*parts, dim=0).sum()
