"""Statistics of arrays that come batch by batch, in memory that does not grow with the data."""

import hashlib
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

# More different labels than these are quantities, not classes.
MOST_CLASSES = 10_000
# Values that are looked at together, as float64.
_CHUNK = 2**20
_MOST_SHAPES = 8


class ArraySummary:
    """What was seen of one input or label.

    Attributes:
        shapes: Shapes of samples, at most 8 different ones.
        dtypes: Names of their types.
        samples: How many there were.
        low: Least finite value; None where there is none.
        high: Greatest.
        nan: Values that are NaN.
        infinite: Values that are infinite.
        whole: Whether all finite values are whole numbers.
        classes: How often each value came, where a sample is one whole number; None for anything else.
    """

    def __init__(self) -> None:
        self.shapes: Set[Tuple[int, ...]] = set()
        self.dtypes: Set[str] = set()
        self.samples = 0
        self.low: Optional[float] = None
        self.high: Optional[float] = None
        self.nan = self.infinite = 0
        self.whole = True
        self.classes: Optional[Dict[int, int]] = None
        self._channels: Optional[_Moments] = None

    def add(self, array: "np.ndarray", labels: bool = False) -> None:
        """Look at a batch, shape (B, ...)."""
        if len(self.shapes) < _MOST_SHAPES:
            self.shapes.add(array.shape[1:])
        self.dtypes.add(array.dtype.name)
        if labels:
            self._count(array)
        self.samples += len(array)
        rows = max(1, _CHUNK // max(array[:1].size, 1))
        for first in range(0, len(array) if array.size else 0, rows):
            self._look(array[first : first + rows])

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape of a sample, of one of them where they differ."""
        return min(self.shapes, default=())

    @property
    def is_image(self) -> bool:
        """Whether a sample has one or three channels, first or last."""
        return all(len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)) for shape in self.shapes)

    @property
    def mean(self) -> Tuple[float, ...]:
        """Mean over finite values, of each channel where there are channels."""
        return () if self._channels is None else tuple(self._channels.mean.tolist())

    @property
    def std(self) -> Tuple[float, ...]:
        """Standard deviation of the same."""
        return () if self._channels is None else tuple(self._channels.std.tolist())

    def _count(self, array: "np.ndarray") -> None:
        """Labels that are whole numbers, one for a sample."""
        if not self.samples:
            self.classes = {}
        if self.classes is None:
            return
        values = array.ravel()
        if values.size != len(array) or not (np.isfinite(values) & (values == np.floor(values))).all():
            self.classes = None
            return
        for value, count in zip(*np.unique(values, return_counts=True)):
            self.classes[int(value)] = self.classes.get(int(value), 0) + int(count)
        if len(self.classes) > MOST_CLASSES:
            self.classes = None

    def _look(self, array: "np.ndarray") -> None:
        values = array.astype(np.float64)
        finite = np.isfinite(values)
        lost = values.size - int(np.count_nonzero(finite))
        if lost:
            nan = int(np.count_nonzero(np.isnan(values)))
            self.nan, self.infinite = self.nan + nan, self.infinite + lost - nan
            values = np.where(finite, values, np.nan)
        if lost < values.size:
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)
            self.whole = self.whole and (array.dtype.kind in "iub" or bool((values == np.floor(values))[finite].all()))
            moments = _Moments(_by_channel(values))
            self._channels = moments if self._channels is None else self._channels.joined(moments)


def _by_channel(values: "np.ndarray") -> "np.ndarray":
    """(channels, values); one channel for everything but images."""
    if values.ndim == 4:
        axis = 1 if values.shape[1] in (1, 3) else 3 if values.shape[3] in (1, 3) else None
        if axis is not None:
            return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    return values.reshape(1, -1)


class _Moments:
    """Count, mean and sum of squared deviations of each channel; what is NaN is left out."""

    def __init__(self, values: "np.ndarray") -> None:
        there = ~np.isnan(values)
        self.count = there.sum(axis=1)
        values = np.where(there, values, 0)
        self.mean = values.sum(axis=1) / np.maximum(self.count, 1)
        self.squares = (np.where(there, values - self.mean[:, None], 0) ** 2).sum(axis=1)

    @property
    def std(self) -> "np.ndarray":
        return np.asarray(np.sqrt(self.squares / np.maximum(self.count, 1)))

    def joined(self, other: "_Moments") -> "_Moments":
        """Of both together, by Chan's formula; of all channels together where their numbers differ."""
        if len(self.mean) != len(other.mean):
            return self._pooled().joined(other._pooled())
        joined = _Moments.__new__(_Moments)
        joined.count = self.count + other.count
        total = np.maximum(joined.count, 1)
        apart = other.mean - self.mean
        joined.mean = self.mean + apart * other.count / total
        joined.squares = self.squares + other.squares + apart**2 * self.count * other.count / total
        return joined

    def _pooled(self) -> "_Moments":
        found: Optional[_Moments] = None
        for channel in range(len(self.mean)):
            one = _Moments.__new__(_Moments)
            one.count, one.mean, one.squares = (
                part[channel : channel + 1] for part in (self.count, self.mean, self.squares)
            )
            found = one if found is None else found.joined(one)
        return found or self


def sample_hashes(arrays: Sequence["np.ndarray"]) -> List[int]:
    """A number of 64 bits for each sample of a batch, equal where all bytes of all inputs are equal."""
    hosts = [np.ascontiguousarray(array) for array in arrays]
    found = []
    for row in range(len(hosts[0])):
        digest = hashlib.blake2b(digest_size=8)
        for host in hosts:
            digest.update(host[row].tobytes())
        found.append(int.from_bytes(digest.digest(), "little"))
    return found


def common(first: "np.ndarray", second: "np.ndarray") -> Tuple[int, List[Tuple[int, int]]]:
    """How many of `second` are in `first`, and where the first few stand in both.

    >>> common(np.array([5, 7, 9]), np.array([9, 1, 5, 5]))
    (3, [(2, 0), (0, 2), (0, 3)])
    """
    order = np.argsort(first, kind="stable")
    place = np.searchsorted(first, second, sorter=order) if len(first) else np.zeros(len(second), int)
    place = np.minimum(place, max(len(first) - 1, 0))
    equal = first[order[place]] == second if len(first) else np.zeros(len(second), bool)
    rows: Any = np.flatnonzero(equal)
    return len(rows), [(int(order[place[row]]), int(row)) for row in rows[:5]]
