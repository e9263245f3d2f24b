"""Batches cut from arrays in memory, without a Python call for each sample."""

from typing import Any, Dict, Iterator, Optional, Tuple

from mxkit.errors import DataError, EmptyDataError
from mxkit.seeding import permutation
from mxkit.specs import whole_number
import mxnet as mx
import numpy as np


class ArrayLoader:
    """Batches `(x, y)` from two arrays, as often as they are asked for.

    Whole batches are sliced at once: gluon's DataLoader calls Python for every sample, which takes a
    quarter of an epoch of LeNet (T65). The last batch holds what is left. The order of an epoch depends
    on `(seed, epoch)` and on nothing else.

    Args:
        x: Inputs, NumPy or NDArray of shape (N, ...). uint8 stays uint8 in memory; each batch is cast to
            float32 and divided by 255, as gluon's `ToTensor` does. float64 becomes float32.
        y: Labels of shape (N, ...), or None for batches of `x` alone. int64 becomes int32, float64
            float32.
        batch_size: Samples a batch, at least 1.
        shuffle: Draw a new order each epoch.
        seed: Whole number that decides the orders. None draws one, which `seed` then tells.
        scale: Factor for each batch of uint8; 1.0 keeps the values 0 to 255.

    Attributes:
        x: The inputs, NumPy of shape (N, ...).
        y: The labels, NumPy of shape (N, ...), or None.
        batch_size: Samples a batch.
        epoch: Number of the epoch that the next `iter` gives, from 0; it grows by one each time, and
            `fit` sets it.
        seed: What decides the orders.

    Raises:
        EmptyDataError: There is no sample.
        DataError: `x` and `y` differ in length, or int32 cannot hold a whole number of theirs.
        ValueError: `batch_size` is below 1.

    >>> loader = ArrayLoader(np.zeros((10, 3)), np.arange(10), batch_size=4)
    >>> [(x.shape, y.shape) for x, y in loader]
    [((4, 3), (4,)), ((4, 3), (4,)), ((2, 3), (2,))]
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: Optional[int] = None,
        scale: float = 1 / 255,
    ) -> None:
        self.x = _in_memory(x)
        self.y = None if y is None else _in_memory(y)
        self.batch_size = whole_number(batch_size, "ArrayLoader: batch_size")
        if len(self.x) == 0:
            raise EmptyDataError(f"ArrayLoader: x has no sample, its shape is {self.x.shape}")
        if self.y is not None and len(self.y) != len(self.x):
            raise DataError(f"ArrayLoader: x has {len(self.x)} samples, y has {len(self.y)}; they must be equal")
        self.shuffle = shuffle
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else int(seed)
        self.scale = scale
        self.epoch = 0

    def __len__(self) -> int:
        """Number of batches, the last short one included."""
        return -(-len(self.x) // self.batch_size)

    def order(self, epoch: int) -> "np.ndarray":
        """Sample numbers in the order of this epoch, int64 of shape (N,)."""
        if not self.shuffle:
            return np.arange(len(self.x))
        return permutation(len(self.x), (self.seed % 2**32, epoch))

    def __iter__(self) -> Iterator[Any]:
        order = self.order(self.epoch)
        self.epoch += 1
        return (self._batch(order[start : start + self.batch_size]) for start in range(0, len(order), self.batch_size))

    def _batch(self, chosen: "np.ndarray") -> Any:
        x = np.take(self.x, chosen, axis=0)
        if x.dtype == np.uint8:
            x = np.multiply(x, self.scale, dtype=np.float32)
        inputs = mx.nd.array(x, dtype=x.dtype)
        if self.y is None:
            return (inputs,)
        y = np.take(self.y, chosen, axis=0)
        return inputs, mx.nd.array(y, dtype=y.dtype)

    def state_dict(self) -> Dict[str, Any]:
        """What decides the orders, as plain JSON values, for a run that goes on in another process."""
        return {"seed": self.seed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.seed = int(state["seed"])

    def __repr__(self) -> str:
        shapes: Tuple[Any, ...] = (self.x.shape, None if self.y is None else self.y.shape)
        return (
            f"ArrayLoader(x {shapes[0]} {self.x.dtype}, y {shapes[1]}, batch_size={self.batch_size}, "
            f"{len(self)} batches, shuffle={self.shuffle}, seed={self.seed})"
        )


def _in_memory(array: Any) -> "np.ndarray":
    host: np.ndarray = array.asnumpy() if isinstance(array, mx.nd.NDArray) else np.asarray(array)
    smaller = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32, np.dtype(np.bool_): np.float32}
    if host.dtype == np.int64 and host.size and max(host.max(), -host.min()) > np.iinfo(np.int32).max:
        widest = max(host.max(), host.min(), key=abs)
        raise DataError(f"ArrayLoader: int64 becomes int32, which cannot hold {widest}; number the values from 0")
    return host.astype(smaller[host.dtype]) if host.dtype in smaller else host
