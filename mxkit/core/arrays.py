"""Helpers for arrays of NumPy and MXNet."""

from typing import Any, List, Tuple

from mxkit.errors import DataError
import mxnet as mx
import numpy as np

Shape = Tuple[int, ...]


def to_host(array: Any) -> "np.ndarray":
    """Convert an array to NumPy; an NDArray is copied after a wait for the device.

    Raises:
        DataError: It is a masked array, and has masked values.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise DataError(
            f"an array of shape {array.shape} has masked values, which an NDArray cannot hold: fill them, "
            "array.filled(0), or leave their samples out"
        )
    return np.asarray(array.asnumpy() if isinstance(array, mx.nd.NDArray) else array)


def arrays_in(values: Any) -> List[Any]:
    """List the NDArrays inside nested lists and tuples."""
    if isinstance(values, (list, tuple)):
        return [array for value in values for array in arrays_in(value)]
    return [values] if isinstance(values, mx.nd.NDArray) else []


def outputs_of(output: Any, who: str) -> List[Any]:
    """List the outputs of a net.

    Raises:
        TypeError: The net returned something else than an NDArray, or a list or tuple of them.
    """
    outputs = list(output) if isinstance(output, (list, tuple)) else [output]
    for part in outputs:
        if not isinstance(part, mx.nd.NDArray):
            raise TypeError(
                f"{who}: expected a net that returns an NDArray, or a tuple of NDArrays; received a "
                f"{type(part).__name__}{' in a tuple' if part is not output else ''}. Wrap the net in a Block that "
                "returns a tuple; to train with another form, compute the losses in BatchLoss(forward=...)"
            )
    return outputs


def squeezed(shape: Shape) -> Shape:
    """Remove axes of length 1 after the first axis.

    >>> squeezed((4, 1, 3)), squeezed((1, 3)), squeezed((5,))
    ((4, 3), (1, 3), (5,))
    """
    return (*shape[:1], *(length for length in shape[1:] if length != 1))


def item_size(dtype: str) -> int:
    """Bytes of one number of a dtype, also of bfloat16, which NumPy lacks."""
    return 2 if dtype == "bfloat16" else int(np.dtype(dtype).itemsize)
