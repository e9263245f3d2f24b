"""Arrays of NumPy and of MXNet alike: what they hold, and their shapes."""

from typing import Any, List, Tuple

import mxnet as mx
import numpy as np

Shape = Tuple[int, ...]


def to_host(array: Any) -> "np.ndarray":
    """The array as NumPy's; of an NDArray a copy, for which the device is waited for."""
    host: np.ndarray = array.asnumpy() if isinstance(array, mx.nd.NDArray) else np.asarray(array)
    return host


def arrays_in(values: Any) -> List[Any]:
    """NDArrays inside nested lists and tuples, in their order."""
    if isinstance(values, (list, tuple)):
        return [array for value in values for array in arrays_in(value)]
    return [values] if isinstance(values, mx.nd.NDArray) else []


def squeezed(shape: Shape) -> Shape:
    """A shape without its axes of length 1 after the first.

    >>> squeezed((4, 1, 3)), squeezed((1, 3)), squeezed((5,))
    ((4, 3), (1, 3), (5,))
    """
    return (*shape[:1], *(length for length in shape[1:] if length != 1))


def item_size(dtype: str) -> int:
    """Bytes of one number of a dtype, also of bfloat16, which NumPy does not know."""
    return 2 if dtype == "bfloat16" else int(np.dtype(dtype).itemsize)
