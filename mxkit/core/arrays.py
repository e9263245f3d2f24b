"""Arrays of MXNet's two kinds, `mx.nd` and `mx.np`, the switches that choose between them, and images as bytes.

A net is of the kind of its parameters. mxkit computes on legacy views, which share memory and gradients with the arrays
of `mx.np`. Nets and users' functions run with arrays and switches of the net's kind.
"""

from functools import lru_cache
import math
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from mxkit.errors import DataError
from mxkit.runtime.gpus import is_gpu
import mxnet as mx
from mxnet.util import is_np_array, is_np_shape, np_array, np_shape
import numpy as np

_NUMPY = (mx.np.ndarray, mx.sym.np._Symbol)


def is_numpy(values: Any) -> bool:
    """Whether the first array or symbol inside nested lists and tuples is one of `mx.np`."""
    while isinstance(values, (list, tuple)) and values:
        values = values[0]
    return isinstance(values, _NUMPY)


def legacy(values: Any) -> Any:
    """Replace arrays of `mx.np` inside nested lists and tuples by views as NDArray; other values stay.

    A view shares the memory and the gradient of its array, and what is computed from it is recorded.

    >>> x = mx.np.ones(2)
    >>> view = legacy((x, None))[0]
    >>> view[:] = 3
    >>> type(view).__name__, x.asnumpy().tolist()
    ('NDArray', [3.0, 3.0])
    """
    if isinstance(values, _NUMPY):
        return values.as_nd_ndarray()
    return _each(legacy, values) if isinstance(values, (list, tuple)) else values


def of_kind(values: Any, numpy: bool) -> Any:
    """Replace the arrays inside nested lists and tuples by views as `mx.np.ndarray` or as NDArray.

    Args:
        values: Arrays, in nested lists and tuples; other values stay. Sparse arrays have no view in `mx.np` and stay.
        numpy: Whether the arrays become `mx.np.ndarray`.
    """
    if not numpy:
        return legacy(values)
    if type(values) in (mx.nd.NDArray, mx.sym.Symbol):
        return values.as_np_ndarray()
    return _each(lambda value: of_kind(value, True), values) if isinstance(values, (list, tuple)) else values


def copied(array: Any, device: Optional["mx.Context"] = None) -> Any:
    """Copy an array of either kind as an NDArray, without a wait; `as_in_context` may return the array itself.

    Args:
        array: Any array of MXNet.
        device: Device of the copy; None is that of the array.
    """
    with np_shape(True):  # else MXNet takes arrays of mx.np without axes or elements for arrays of unknown shape
        return legacy(array).copyto(array.ctx if device is None else device)


def copy_to_cpu(array: Any) -> Any:
    """Copy an array of either kind to the CPU, as NDArray, without a wait."""
    return copied(array, mx.cpu())


def copy_into(array: Any, target: Any) -> None:
    """Copy the numbers of an array into another one, of either kind and on any device, without a wait."""
    with np_shape(True):
        legacy(array).copyto(legacy(target))


def handed_over(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches of NDArrays; they are views as `mx.np` arrays while the calling thread is under `npx.set_np()`."""
    for batch in batches:
        yield of_kind(batch, True) if is_np_array() else batch


def switches_here() -> Tuple[bool, bool]:
    """The switches of MXNet in this thread: `set_np(*switches_here())` sets them in another thread.

    `np_array(True)` alone counts as both switches, because `set_np` refuses it.
    """
    return is_np_shape() or is_np_array(), is_np_array()


def call(function: Any, arrays: Any) -> Any:
    """Call a net or a user's function with arrays of one kind, under the switches of this kind."""
    with switches(is_numpy(arrays)):
        return function(*arrays)


def _each(function: Any, values: Any) -> Any:
    changed = [function(value) for value in values]
    return type(values)(*changed) if hasattr(values, "_fields") else type(values)(changed)


class switches:  # noqa: N801 - a context manager that reads as a verb, like MXNet's np_shape
    """Set both switches of MXNet for one kind of arrays inside `with`, in this thread.

    Layers choose their operators by the switches at each call, and Parameters the kind of new arrays.

    Args:
        numpy: Whether they are set as by `npx.set_np()`, or as by `npx.reset_np()`.

    >>> with switches(True):
    ...     mx.util.is_np_array(), mx.util.is_np_shape()
    (True, True)
    >>> mx.util.is_np_array()
    False
    """

    __slots__ = ("_numpy", "_scopes")

    def __init__(self, numpy: bool) -> None:
        self._numpy = numpy
        self._scopes: Any = ()

    def __enter__(self) -> None:
        numpy = self._numpy
        if is_np_array() is numpy and (not numpy or is_np_shape()):  # mx.nd alone works with either shape switch
            return
        # MXNet refuses the array switch without the shape switch
        scopes = (np_shape(True), np_array(True)) if numpy else (np_array(False), np_shape(False))
        for scope in scopes:
            scope.__enter__()
        self._scopes = scopes

    def __exit__(self, *error: Any) -> None:
        for scope in reversed(self._scopes):
            scope.__exit__(*error)
        self._scopes = ()


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


# oneDNN takes no more.
_MOST_AXES = 6


def worth_packing(devices: Sequence["mx.Context"]) -> bool:
    """Whether images should be cast on the devices by separate operators, which pays on GPUs.

    On a CPU, outside the net's graph, two operators take longer than NumPy's product: evaluations 1 to 42%.
    """
    return any(map(is_gpu, devices))


def holds_pixels(array: Any) -> bool:
    """Whether an input holds images or videos of uint8, which batches divide by 255; other bytes are numbers.

    >>> [holds_pixels(np.zeros(shape, np.uint8)) for shape in [(8, 3, 2, 2), (8, 16), (8,)]]
    [True, False, False]
    """
    return bool(array.dtype == np.uint8 and array.ndim >= 4)


class Packed:
    """The float32 array `array.astype("float32") * scale`, computed by `unpacked`.

    Args:
        array: NDArray of uint8, shape (B, ...).
        scale: The factor.
        shape: Shape of the array if it is known: MXNet takes 2 us to tell it.

    Attributes:
        array: The argument.
        scale: The argument, rounded to float32.
        shape: Shape of the array, (B, ...).
        dtype: float32.
    """

    __slots__ = ("array", "scale", "shape")
    dtype = np.float32

    def __init__(self, array: Any, scale: float, shape: Optional[Tuple[int, ...]] = None) -> None:
        self.array = array
        self.shape: Tuple[int, ...] = tuple(array.shape) if shape is None else shape
        self.scale = float(np.float32(scale))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __getitem__(self, samples: slice) -> "Packed":
        return Packed(self.array[samples], self.scale)

    def as_in_context(self, device: "mx.Context") -> "Packed":
        """Copy the bytes to another device, if they are not there."""
        moved = self.array.as_in_context(device)
        return self if moved is self.array else Packed(moved, self.scale, self.shape)

    def unpacked(self) -> Any:
        """Compute the array on the bytes' device; every bit is equal to NumPy's product.

        >>> Packed(mx.nd.array([[0, 51, 255]], dtype="uint8"), 1 / 255).unpacked().asnumpy().tolist()[0][::2]
        [0.0, 1.0]
        """
        return self.array.astype(self.dtype) * self.scale

    def symbol(self, array: "mx.sym.Symbol") -> "mx.sym.Symbol":
        """Return a graph with the bits of `unpacked` for a symbol of the bytes."""
        largest = _largest_of(self.scale) if len(self.shape) <= _MOST_AXES else None
        if largest is None:
            return mx.sym.Cast(array, dtype="float32") * self.scale
        ends = mx.sym.zeros((1,)), mx.sym.full((1,), largest)
        return mx.sym.contrib.dequantize(array, *ends, out_type="float32")


@lru_cache(maxsize=64)
def _largest_of(scale: float) -> Optional[float]:
    """The range's end with which `dequantize` multiplies each uint8 by `scale`, bit for bit; None if no end does.

    oneDNN's operator takes a seventh of the time of a cast and a product on one thread. Its factor is this end divided
    by 255.5, in float32; MXNet without oneDNN divides by 255.
    """
    bytes_ = np.arange(256, dtype=np.uint8)
    array = mx.nd.array(bytes_, dtype="uint8")
    with np.errstate(all="ignore"):  # a scale may be NaN
        expected, nearest = bytes_.astype(np.float32) * np.float32(scale), np.float32(scale * 255.5)
    for end in (nearest, np.nextafter(nearest, np.float32(0)), np.nextafter(nearest, np.float32(np.inf))):
        ends = mx.nd.zeros((1,)), mx.nd.array([end])
        if mx.nd.contrib.dequantize(array, *ends, out_type="float32").asnumpy().tobytes() == expected.tobytes():
            return float(end)
    return None


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
