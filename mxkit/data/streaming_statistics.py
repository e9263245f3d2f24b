"""Statistics of arrays that are read batch by batch, in memory that does not grow with the data."""

from functools import reduce
import hashlib
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

# Labels with more distinct values are quantities, not classes.
MOST_CLASSES = 10_000
# Number of values that are converted to float64 at once.
_CHUNK = 2**20
_MOST_SHAPES = 8


class ArraySummary:
    """Statistics of one input or label.

    Attributes:
        shapes: Shapes of samples, at most 8 different ones.
        dtypes: Names of their dtypes.
        samples: Number of samples.
        low: Smallest finite value; None if there is none.
        high: Largest finite value.
        nan: Number of values that are NaN.
        infinite: Number of values that are infinite.
        whole: Whether all finite values are integers.
        classes: How often each label occurs, if each is one integer; None for anything else.
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
        """Add a batch, shape (B, ...)."""
        if len(self.shapes) < _MOST_SHAPES:
            self.shapes.add(array.shape[1:])
        self.dtypes.add(array.dtype.name)
        if labels:
            self._count_classes(array)
        self.samples += len(array)
        rows = max(1, _CHUNK // max(array[:1].size, 1))
        for first in range(0, len(array) if array.size else 0, rows):
            self._add_values(array[first : first + rows])

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape of a sample; the smallest if samples differ."""
        return min(self.shapes, default=())

    @property
    def is_image(self) -> bool:
        """Whether a sample has one or three channels, first or last."""
        return all(len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)) for shape in self.shapes)

    @property
    def mean(self) -> Tuple[float, ...]:
        """Mean of the finite values, of each channel if there are channels."""
        return () if self._channels is None else tuple(self._channels.mean.tolist())

    @property
    def std(self) -> Tuple[float, ...]:
        """Standard deviation of the finite values, of each channel if there are channels."""
        if self._channels is None:
            return ()
        return tuple(np.sqrt(self._channels.squares / np.maximum(self._channels.counts, 1)).tolist())

    def _count_classes(self, array: "np.ndarray") -> None:
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

    def _add_values(self, array: "np.ndarray") -> None:
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
            moments = _moments(_by_channel(values))
            self._channels = moments if self._channels is None else self._channels.joined(moments)


def _by_channel(values: "np.ndarray") -> "np.ndarray":
    """(channels, values); one channel for everything but images."""
    if values.ndim == 4:
        axis = 1 if values.shape[1] in (1, 3) else 3 if values.shape[3] in (1, 3) else None
        if axis is not None:
            return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    return values.reshape(1, -1)


class _Moments(NamedTuple):
    """Number of values, mean and sum of squared deviations of each channel."""

    counts: "np.ndarray"
    mean: "np.ndarray"
    squares: "np.ndarray"

    def joined(self, other: "_Moments") -> "_Moments":
        """Moments of both, by Chan's formula; over all channels together if their numbers differ."""
        if len(self.mean) != len(other.mean):
            return self._pooled().joined(other._pooled())
        counts = self.counts + other.counts
        total = np.maximum(counts, 1)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart**2 * self.counts * other.counts / total
        return _Moments(counts, self.mean + apart * other.counts / total, squares)

    def _pooled(self) -> "_Moments":
        channels = [_Moments(*(part[i : i + 1] for part in self)) for i in range(len(self.mean))]
        return reduce(_Moments.joined, channels)


def _moments(values: "np.ndarray") -> _Moments:
    """Moments of each row, without NaN."""
    valid = ~np.isnan(values)
    counts = valid.sum(axis=1)
    values = np.where(valid, values, 0)
    first = values[:, :1]  # subtracted, so that a constant's mean is exact and its deviation 0
    mean = first[:, 0] + np.where(valid, values - first, 0).sum(axis=1) / np.maximum(counts, 1)
    return _Moments(counts, mean, (np.where(valid, values - mean[:, None], 0) ** 2).sum(axis=1))


def sample_hashes(arrays: Sequence["np.ndarray"]) -> List[int]:
    """A 64-bit hash for each sample of a batch, over the bytes of all inputs."""
    hosts = [np.ascontiguousarray(array) for array in arrays]
    samples = (b"".join(host[row].tobytes() for host in hosts) for row in range(len(hosts[0])))
    return [int.from_bytes(hashlib.blake2b(sample, digest_size=8).digest(), "little") for sample in samples]


def common(first: "np.ndarray", second: "np.ndarray") -> Tuple[int, List[Tuple[int, int]]]:
    """Count the values of `second` that are in `first`, and return the positions of the first few in both.

    >>> common(np.array([5, 7, 9]), np.array([9, 1, 5, 5]))
    (3, [(2, 0), (0, 2), (0, 3)])
    """
    values, places = np.unique(first, return_index=True)
    rows = np.flatnonzero(np.isin(second, values)).tolist()
    return len(rows), [(int(places[np.searchsorted(values, second[row])]), row) for row in rows[:5]]
