"""Images as bytes until they are where they are computed: a quarter to write, to keep and to copy to a device."""

from typing import Any, Sequence, Tuple

from mxkit.runtime.gpus import is_gpu
import mxnet as mx
import numpy as np


def worth_packing(devices: Sequence["mx.Context"]) -> bool:
    """Whether bytes are to be cast on the devices, each batch by operators of its own: where they are copied to.

    On a CPU, outside of the net's graph, two operators take longer than NumPy's product: evaluations 1 to 42%.
    """
    return any(map(is_gpu, devices))


class Packed:
    """Stands for the float32 array `array.astype("float32") * scale`, which nobody has made yet.

    Args:
        array: NDArray of uint8, shape (B, ...).
        scale: The factor.

    Attributes:
        array: The same.
        scale: The same, as float32 has it.
        dtype: float32.
    """

    __slots__ = ("array", "scale")
    dtype = np.float32

    def __init__(self, array: Any, scale: float) -> None:
        self.array = array
        self.scale = float(np.float32(scale))

    @property
    def shape(self) -> Tuple[int, ...]:
        """(B, ...)."""
        shape: Tuple[int, ...] = self.array.shape
        return shape

    @property
    def size(self) -> int:
        """Number of elements."""
        size: int = self.array.size
        return size

    def __getitem__(self, samples: slice) -> "Packed":
        return Packed(self.array[samples], self.scale)

    def as_in_context(self, device: "mx.Context") -> "Packed":
        """The same on another device; itself where it is there."""
        moved = self.array.as_in_context(device)
        return self if moved is self.array else Packed(moved, self.scale)

    def unpacked(self) -> Any:
        """Make the array, where the bytes lie; equal to the last bit to NumPy's product.

        >>> Packed(mx.nd.array([[0, 51, 255]], dtype="uint8"), 1 / 255).unpacked().asnumpy().tolist()[0][::2]
        [0.0, 1.0]
        """
        return self.array.astype(self.dtype) * self.scale

    def symbol(self, array: "mx.sym.Symbol") -> "mx.sym.Symbol":
        """What `unpacked` does, as a graph of `array`."""
        return mx.sym.Cast(array, dtype="float32") * self.scale
