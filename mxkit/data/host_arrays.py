"""From NumPy to NDArrays with one copy in place of two."""

import ctypes
from typing import Any, Sequence, Tuple

from mxkit.core.device import narrow as narrow
from mxkit.core.device import narrow_dtype as narrow_dtype
import mxnet as mx
from mxnet.base import _LIB, check_call
import numpy as np


def empty_batch(shape: Sequence[int], dtype: Any) -> Tuple["mx.nd.NDArray", "np.ndarray"]:
    """Make an NDArray on the CPU, and a NumPy view of its memory to fill before anybody else sees it.

    Its memory is never pinned: `net(x)` refuses such arrays, and each costs a cudaHostAlloc on GPU 0 (T133).
    `mx.nd.array` asks the engine to wait for an array that nobody can have written yet, which costs more than
    the copy where batches are small: 60 us of 80 for 64 images of 28x28.

    Args:
        shape: Without a 0.
        dtype: One that MXNet has.

    Returns:
        The array and its view; the view must not outlive it, nor be written once the array is used.
    """
    array = mx.nd.empty(tuple(shape), mx.cpu(), dtype)
    return array, _memory(array)


def host_view(array: "mx.nd.NDArray") -> "np.ndarray":
    """Wait for an NDArray and read it as NumPy, without a copy where it lies on the CPU.

    Returns:
        To be read only, and only as long as the NDArray lives.
    """
    if array.stype != "default" or not array.size or array.context.device_type != "cpu":
        host: np.ndarray = array.asnumpy()
        return host
    array.wait_to_read()
    return _memory(array)


def _memory(array: "mx.nd.NDArray") -> "np.ndarray":
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    dtype = np.dtype(array.dtype)
    memory = (ctypes.c_char * (array.size * dtype.itemsize)).from_address(pointer.value or 0)
    return np.frombuffer(memory, dtype).reshape(array.shape)


def to_batch(host: "np.ndarray") -> "mx.nd.NDArray":
    """Copy an array of a type that MXNet has into a new NDArray on the CPU."""
    if not host.size or not host.shape:
        return mx.nd.array(host, mx.cpu(), host.dtype)
    array, view = empty_batch(host.shape, host.dtype)
    view[...] = host
    return array
