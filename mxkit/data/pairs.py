"""Pairs and triplets of samples, for nets that learn which samples have the same class."""

from typing import Any, Iterator, Optional
import warnings

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.data.balancing import rounds
from mxkit.data.batching import handed_over, to_batch
from mxkit.data.loader import ArrayLoader
from mxkit.data.order import EpochOrder
from mxkit.errors import DataError, TrapWarning
import numpy as np


class PairLoader(EpochOrder):
    """Batches of pairs `((a, b), same)`, or of triplets `((anchor, positive, negative),)`, from labelled arrays.

    Each epoch draws new ones, as a function of `(seed, epoch)`. No sample is paired with itself.

    Args:
        x: Inputs, NumPy, NDArray or `mx.np` of shape (N, ...). uint8 stays uint8 in memory; each batch is cast to
            float32, and images are divided by 255, as by `ArrayLoader`.
        y: Class of each sample, shape (N,): numbers, or names.
        batch_size: Pairs or triplets per batch, at least 1.
        kind: "pairs": `same` is float32 of shape (B,), 1 if a and b have the same class, else 0. "triplets": the
            positive has the anchor's class, the negative another one.
        same: Share of pairs with the same class, 0 to 1; exact in each epoch, to the nearest pair.
        balanced: False: each sample is the anchor (a) equally often, to within one, and all samples of other classes
            are equally likely as negatives. True: each class has equally many anchors, and all other classes are
            equally likely as negatives.
        length: Pairs or triplets per epoch. None: the number of samples.
        shuffle: False repeats those of epoch 0 in each epoch: for validation.
        seed: Integer that determines all draws. None draws one, which the attribute `seed` holds.
        scale: Factor for each batch of uint8, as for `ArrayLoader`.
        drop_last: Leave out a last batch that is smaller than `batch_size`.

    Attributes:
        x: The inputs, NumPy of shape (N, ...).
        batch_size: Pairs or triplets per batch.
        epoch: Number of the epoch that the next `iter` reads, from 0; each `iter` increases it by one, and `fit`
            sets it.
        seed: Determines the draws.

    Raises:
        EmptyDataError: There is no sample, or `drop_last` leaves no batch.
        DataError: The arrays have different lengths, no class has two samples, or there is only one class.
        ValueError: An argument is invalid.

    Warns:
        TrapWarning: A class has a single sample, which cannot be an anchor, because it has no positive.

    >>> loader = PairLoader(np.arange(6.0), [0, 0, 0, 1, 1, 1], batch_size=4, same=0.5, seed=1)
    >>> [(a.shape, b.shape, int(same.sum().asscalar())) for (a, b), same in loader]
    [((4,), (4,), 2), ((2,), (2,), 1)]
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        batch_size: int,
        *,
        kind: str = "pairs",
        same: float = 0.5,
        balanced: bool = False,
        length: Optional[int] = None,
        shuffle: bool = True,
        seed: Optional[int] = None,
        scale: Optional[float] = None,
        drop_last: bool = False,
    ) -> None:
        if kind not in ("pairs", "triplets"):
            raise ValueError(f"PairLoader: kind: expected 'pairs' or 'triplets'; received {kind!r}")
        if not 0 <= same <= 1:
            raise ValueError(f"PairLoader: same: expected a share from 0 to 1; received {same!r}")
        if isinstance(x, tuple):
            raise DataError("PairLoader: x: expected one array of shape (N, ...); received a tuple")
        self._array = ArrayLoader(x, None, 1, scale=scale)
        self.x = self._array.x
        self.kind, self.same, self.balanced = kind, float(same), balanced
        self._classes = _Classes(y, len(self.x))
        size = len(self.x) if length is None else whole_number(length, "PairLoader: length")
        super().__init__(size, batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self._check_classes()

    def order(self, epoch: int) -> "np.ndarray":
        """Sample numbers of each pair or triplet of an epoch, int64 of shape (length, 2 or 3)."""
        rng = self._generator(epoch if self.shuffle else 0)
        classes, size = self._classes, self._size
        anchors = classes.anchors(rng, size, self.balanced, alone=not self._needs_partners)
        if self.kind == "triplets":
            others = classes.others(rng, anchors, self.balanced)
            return np.stack([anchors, classes.partners(rng, anchors), others], axis=1)
        alike = rng.random(size).argsort(kind="stable") < round(self.same * size)
        second = np.empty_like(anchors)
        second[alike] = classes.partners(rng, anchors[alike])
        second[~alike] = classes.others(rng, anchors[~alike], self.balanced)
        return np.stack([anchors, second], axis=1)

    def __iter__(self) -> Iterator[Any]:
        epoch, numbers = self._begin()
        order = self.order(epoch)
        return handed_over(self._batch(self._rows(order, number)) for number in numbers)

    def _batch(self, rows: "np.ndarray") -> Any:
        inputs = tuple(self._array._cut(self.x, column, cast=True) for column in rows.T)
        if self.kind == "triplets":
            return (inputs,)
        codes = self._classes.codes[rows]
        return inputs, to_batch((codes[:, 0] == codes[:, 1]).astype(np.float32))

    @property
    def _needs_partners(self) -> bool:
        return self.kind == "triplets" or self.same > 0

    def _check_classes(self) -> None:
        sizes = self._classes.sizes
        if self._needs_partners and sizes.max() < 2:
            raise DataError(
                f"PairLoader: each of the {len(sizes)} classes has one sample only, so that no two are alike. "
                "Are these the labels?"
            )
        if len(sizes) < 2 and (self.kind == "triplets" or self.same < 1):
            raise DataError(f"PairLoader: all {sizes[0]} samples are of one class, so that no two are unlike")
        alone = int((sizes == 1).sum())
        if alone and self._needs_partners:
            warnings.warn(
                f"PairLoader: {alone} of {len(sizes)} classes have a single sample: it is never an anchor, but drawn "
                "as the one that is unlike",
                TrapWarning,
                stacklevel=3,
            )

    def __repr__(self) -> str:
        sizes = self._classes.sizes
        alone = f", {(sizes == 1).sum()} of them with one sample" if (sizes == 1).any() else ""
        return (
            f"PairLoader({self._size} {self.kind} an epoch, of {len(self.x)} samples {self.x.shape[1:]} "
            f"{self.x.dtype} in {len(sizes)} classes{alone}, batch_size={self.batch_size}, {len(self)} batches, "
            f"seed={self.seed})"
        )


class _Classes:
    """Samples sorted by class, so that partners are drawn for all anchors at once."""

    def __init__(self, y: Any, size: int) -> None:
        labels = to_host(y)
        if labels.shape != (size,):
            raise DataError(
                f"PairLoader: x has {size} samples, so y must have the shape ({size},), a class for each; it has "
                f"{labels.shape}"
            )
        _, self.codes = np.unique(labels, return_inverse=True)
        self._sorted = self.codes.argsort(kind="stable")
        self.sizes = np.bincount(self.codes)
        self._starts = self.sizes.cumsum() - self.sizes
        self._places = np.empty(size, np.int64)
        self._places[self._sorted] = np.arange(size)

    def anchors(self, rng: "np.random.Generator", count: int, balanced: bool, alone: bool) -> "np.ndarray":
        """Draw `count` anchors, of classes with one sample only if `alone`; each sample, or class, equally often."""
        usable = np.flatnonzero(self.sizes >= (1 if alone else 2))
        if not balanced:
            return rounds(rng, self._sorted[np.isin(self.codes[self._sorted], usable)], count)
        return self._members(rng, rounds(rng, usable, count))

    def partners(self, rng: "np.random.Generator", anchors: "np.ndarray") -> "np.ndarray":
        """Draw another sample of the same class for each anchor."""
        start, size = self._starts[self.codes[anchors]], self.sizes[self.codes[anchors]]
        step = 1 + _below(rng, size - 1)
        return self._sample(start + (self._places[anchors] - start + step) % size)

    def others(self, rng: "np.random.Generator", anchors: "np.ndarray", balanced: bool) -> "np.ndarray":
        """Draw a sample of another class for each anchor."""
        codes = self.codes[anchors]
        if balanced:
            other = (codes + 1 + _below(rng, np.full(len(anchors), len(self.sizes) - 1))) % len(self.sizes)
            return self._members(rng, other)
        place = _below(rng, len(self.codes) - self.sizes[codes])
        return self._sample(np.where(place < self._starts[codes], place, place + self.sizes[codes]))

    def _members(self, rng: "np.random.Generator", classes: "np.ndarray") -> "np.ndarray":
        return self._sample(self._starts[classes] + _below(rng, self.sizes[classes]))

    def _sample(self, places: "np.ndarray") -> "np.ndarray":
        """Sample numbers at these places of the order by class."""
        return np.asarray(self._sorted[places])


def _below(rng: "np.random.Generator", limits: "np.ndarray") -> "np.ndarray":
    """Integers from 0 to below each limit, from `random()`, whose bits are the same in all versions of NumPy."""
    return np.asarray((rng.random(len(limits)) * limits).astype(np.int64))
