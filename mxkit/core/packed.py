"""Keeps images as uint8 until they reach the device: a quarter of the memory and of the copies."""

from functools import lru_cache
import math
from typing import Any, Optional, Sequence, Tuple

from mxkit.runtime.gpus import is_gpu
import mxnet as mx
import numpy as np

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
    """Upper end of the range for which `dequantize` computes every uint8 times `scale` to the last bit; None for none.

    oneDNN's operator takes a seventh of the time of a cast and a product on one thread. Its factor is this end divided
    by 255.5, in float32; MXNet without oneDNN divides by 255.
    """
    bytes_ = np.arange(256, dtype=np.uint8)
    array = mx.nd.array(bytes_, dtype="uint8")
    with np.errstate(all="ignore"):  # a scale may be NaN
        expected, nearest = bytes_.astype(np.float32) * np.float32(scale), np.float32(scale * 255.5)
    for end in (nearest, np.nextafter(nearest, np.float32(0)), np.nextafter(nearest, np.float32(np.inf))):
        ends = mx.nd.zeros((1,)), mx.nd.array([end])
        found = mx.nd.contrib.dequantize(array, *ends, out_type="float32").asnumpy()
        if found.tobytes() == expected.tobytes():
            return float(end)
    return None
