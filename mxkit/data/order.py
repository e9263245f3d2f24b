"""The base classes of loaders: the order of samples in an epoch, balanced classes too, and the batches to read."""

import hashlib
from typing import Any, Dict, Optional, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.core.seeding import permutation
from mxkit.errors import DataError, EmptyDataError
import numpy as np


def class_weights(labels: Any) -> Dict[int, float]:
    """Weights that give each class the same influence: samples / (classes * samples of the class).

    Pass them to a loss: `("softmax_ce", {"class_weight": class_weights(y)})`. The mean weight of a sample is 1, so the
    learning rate needs no change. A class without a sample has no weight.

    Args:
        labels: Class number of each sample, shape (N,), NumPy, NDArray, `mx.np` or a list.

    Raises:
        EmptyDataError: There is no label.
        DataError: A label is not a whole number from 0, or the labels have another shape than (N,).

    >>> class_weights([0, 0, 0, 1])
    {0: 0.6666666666666666, 1: 2.0}
    """
    host = _labels(labels, "class_weights: labels")
    if host.dtype.kind not in "iufb" or not (np.isfinite(host) & (host == np.floor(host)) & (host >= 0)).all():
        way = "number the classes first: np.unique(labels, return_inverse=True)[1]"
        raise DataError(f"class_weights: labels: expected class numbers from 0: {way}")
    classes, counts = np.unique(host.astype(np.int64), return_counts=True)
    return {int(one): len(host) / (len(classes) * int(count)) for one, count in zip(classes, counts)}


def class_codes(labels: Any, size: int, name: str) -> "np.ndarray":
    """Number the classes of `size` samples from 0; classes may be numbers or names."""
    host = _labels(labels, f"{name}: balance")
    if len(host) != size:
        raise DataError(f"{name}: balance: expected a class for each of {size} samples; received {len(host)}")
    codes: np.ndarray = np.unique(host, return_inverse=True)[1]
    return codes


def digest_of(codes: "np.ndarray") -> str:
    """A digest of 16 hexadecimal digits."""
    return hashlib.sha256(codes.astype(np.int64).tobytes()).hexdigest()[:16]


def balanced_order(codes: "np.ndarray", rng: "np.random.Generator") -> "np.ndarray":
    """Draw N sample numbers for N samples: each class equally often, and in a class each sample equally often.

    The order consists of rounds of all classes, each round in its own random order, so that batches are balanced too.
    """
    sizes, members = np.bincount(codes), codes.argsort(kind="stable")
    drawn = rounds(rng, np.arange(len(sizes)), len(codes))
    order, places, ends = np.empty(len(codes), np.int64), drawn.argsort(kind="stable"), sizes.cumsum()
    last = np.bincount(drawn, minlength=len(sizes)).cumsum()
    for start, end, first, stop in zip(ends - sizes, ends, [0, *last[:-1]], last):
        order[places[first:stop]] = rounds(rng, members[start:end], stop - first)
    return order


def rounds(rng: "np.random.Generator", values: "np.ndarray", count: int) -> "np.ndarray":
    """The first `count` values of consecutive random orders of all values; `random()` has equal bits in every NumPy."""
    orders = rng.random((-(-count // len(values)), len(values))).argsort(axis=1, kind="stable")
    return np.asarray(values[orders.reshape(-1)[:count]])


def occurrences(order: "np.ndarray") -> "np.ndarray":
    """How often each number of an order occurs before its place.

    >>> occurrences(np.array([3, 1, 3, 3, 1])).tolist()
    [0, 0, 1, 2, 1]
    """
    by_number = order.argsort(kind="stable")
    ordered = order[by_number]
    counts = np.empty(len(order), np.int64)
    counts[by_number] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return counts


def _labels(labels: Any, name: str) -> "np.ndarray":
    host = to_host(labels)
    if host.ndim != 1:
        raise DataError(f"{name}: expected shape (N,), a class for each sample; received {host.shape}")
    if not len(host):
        raise EmptyDataError(f"{name}: there is no sample")
    if host.dtype.kind == "f" and np.isnan(host).any():
        raise DataError(f"{name}: sample {int(np.isnan(host).argmax())} has the class NaN. Leave it out")
    return host


class Epochs:
    """Base of loaders: counts epochs and batches to leave out, and holds the seed of all randomness."""

    def __init__(self, seed: Optional[int]) -> None:
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else int(seed)
        self.epoch = 0
        self._skip = 0

    def _next_epoch(self) -> Tuple[int, int]:
        """Count an epoch; return its number, and how many of its first batches to leave out."""
        epoch, skip = self.epoch, self._skip
        self.epoch, self._skip = epoch + 1, 0
        return epoch, skip

    def _generator(self, epoch: int, *key: int) -> "np.random.Generator":
        """A generator of `(seed, epoch, *key)`; zeros at the end of a key change nothing."""
        return np.random.Generator(np.random.PCG64([self.seed % 2**32, epoch, *key]))

    def state_dict(self) -> Dict[str, Any]:
        """The state that determines the orders, as plain JSON values, to resume a run in another process."""
        return {"seed": self.seed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.seed = int(state["seed"])


class EpochOrder(Epochs):
    """Base of loaders that read samples 0 to `size` - 1, in an order that depends on `(seed, epoch)` only.

    Args:
        size: Number of samples.
        batch_size: Samples per batch, at least 1.
        shuffle: Draw a new order for each epoch.
        seed: Integer that determines all randomness. None draws one.
        drop_last: Leave out a last batch that is smaller than `batch_size`.
        balance: A class for each sample; each epoch draws all classes equally often. It needs `shuffle`.

    Attributes:
        balance: Digest of the classes that are balanced, or None.
        epoch: Number of the epoch that the next `iter` reads, from 0; each `iter` increases it by one, and `fit`
            sets it.
        seed: Determines the orders.
        share: `(number, shares)`: the loader cuts batches of `batch_size * shares` samples and reads this share of
            each, for one of several workers. (0, 1) reads all.
    """

    def __init__(
        self, size: int, batch_size: int, *, shuffle: bool, seed: Optional[int], drop_last: bool, balance: Any = None
    ) -> None:
        name = type(self).__name__
        self.batch_size = whole_number(batch_size, f"{name}: batch_size")
        super().__init__(seed)
        self.shuffle, self.drop_last, self._size = shuffle, drop_last, size
        self.share = (0, 1)
        if balance is not None and not shuffle:
            raise ValueError(f"{name}: balance draws a new order for each epoch: pass shuffle=True with it")
        self._codes = None if balance is None else class_codes(balance, size, name)
        self.balance = None if self._codes is None else digest_of(self._codes)
        if not len(self):
            raise EmptyDataError(f"{name}: drop_last leaves no batch: {size} samples, a batch has {self.batch_size}")

    def __len__(self) -> int:
        """Number of batches; a smaller last batch counts unless `drop_last` leaves it out."""
        return self._size // self.whole_batch if self.drop_last else -(-self._size // self.whole_batch)

    @property
    def whole_batch(self) -> int:
        """Samples in a batch of all shares together."""
        return self.batch_size * self.share[1]

    @property
    def size(self) -> int:
        """Number of samples, including those that `drop_last` leaves out."""
        return self._size

    def order(self, epoch: int) -> "np.ndarray":
        """Sample numbers in the order of this epoch, int64 of shape (N,); with `balance` some occur repeatedly."""
        if self._codes is not None:
            return balanced_order(self._codes, self._generator(epoch, 0, 3))
        if not self.shuffle:
            return np.arange(self._size)
        return permutation(self._size, (self.seed % 2**32, epoch))

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next iteration, and of that iteration only, without reading them.

        Args:
            batches: From 0 to the number of batches of an epoch.

        Raises:
            DataError: An epoch has fewer batches.
        """
        self._skip = whole_number(batches, f"{type(self).__name__}.skip", least=0)
        if self._skip > len(self):
            skipped, self._skip = self._skip, 0
            text = f"an epoch has {len(self)} batches, of which {skipped} cannot be left out"
            raise DataError(f"{type(self).__name__}.skip: {text}: resume with the same data and batch_size")

    def _begin(self) -> Tuple[int, range]:
        """Count an epoch; return its number, and the numbers of the batches to read."""
        epoch, first = self._next_epoch()
        batches, (number, shares) = len(self), self.share
        if shares > 1 and self._size - (batches - 1) * self.whole_batch <= number:
            batches -= 1  # the last batch has fewer samples than shares
        return epoch, range(first, max(first, batches))

    def _rows(self, order: "np.ndarray", batch: int) -> "np.ndarray":
        rows = order[batch * self.whole_batch : (batch + 1) * self.whole_batch]
        number, shares = self.share
        return rows if shares == 1 else np.array_split(rows, shares)[number]
