"""The base classes of loaders: the order of samples in each epoch, and which batches of an epoch are read."""

from typing import Any, Dict, Optional, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.seeding import permutation
from mxkit.data.balancing import balanced_order, class_codes, digest_of
from mxkit.errors import DataError, EmptyDataError
import numpy as np


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
        self,
        size: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: Optional[int],
        drop_last: bool,
        balance: Any = None,
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
            raise EmptyDataError(
                f"{name}: drop_last leaves no batch: there are {size} samples, a batch has {self.batch_size}"
            )

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
            raise DataError(
                f"{type(self).__name__}.skip: an epoch has {len(self)} batches, of which {skipped} cannot be left "
                "out: resume a run with the same data and batch_size"
            )

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
