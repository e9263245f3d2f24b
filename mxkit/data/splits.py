"""A dataset in three parts, and the choice of the samples of each part."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.arrays import holds_pixels, to_host
from mxkit.errors import TrapWarning
import numpy as np

# A number of samples, or a fraction of all.
Share = Union[int, float]


class Split(NamedTuple):
    """Samples and their labels.

    Attributes:
        x: NumPy, shape (N, ...).
        y: NumPy, shape (N, ...): class numbers of shape (N,), or quantities.
    """

    x: "np.ndarray"
    y: "np.ndarray"


class Splits(NamedTuple):
    """A dataset in three parts that share no sample, and the names of its classes.

    Attributes:
        train: The samples for training: a `Split`, or a Dataset that reads each sample on demand.
        valid: The samples for validation.
        test: The samples for the final test.
        classes: Name of each label; empty, as by default, if labels are quantities.
        mean: Mean of each channel or column of the training part, in the unit of batches: pixels are 0 to 1. None if
            computing it would read all files.
        std: Standard deviation of each channel or column.
        columns: Names of the columns of x, if the data is a table.
        categories: Names of the integers in each column of categories, if the data is a table.
    """

    train: Any
    valid: Any
    test: Any
    classes: List[str] = []
    mean: Optional[Tuple[float, ...]] = None
    std: Optional[Tuple[float, ...]] = None
    columns: Tuple[str, ...] = ()
    categories: Dict[str, List[str]] = {}

    def __repr__(self) -> str:
        sizes = [_size(part) for part in self[:3]]
        shape = f" of shape {self.train.x.shape[1:]} {self.train.x.dtype}" if isinstance(self.train, Split) else ""
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"Splits(train {sizes[0]}, valid {sizes[1]}, test {sizes[2]} samples{shape}{classes})"


def _size(part: Any) -> str:
    """Number of samples of a part for a message."""
    part = part.y if isinstance(part, Split) else part
    part = part[0] if type(part) is tuple else part
    return "no" if part is None else str(len(part)) if hasattr(part, "__getitem__") else "loader of unknown"


def channel_statistics(x: Any) -> Tuple[Tuple[float, ...], Tuple[float, ...]]:
    """Mean and standard deviation of each channel, in float64.

    Args:
        x: NumPy, NDArray or `mx.np` of shape (N, C, ...). Images of uint8 are scaled to 0 to 1, as in batches.

    >>> mean, std = channel_statistics(np.array([[[[0, 255]]], [[[255, 255]]]], np.uint8))
    >>> round(mean[0], 4), round(std[0], 4)
    (0.75, 0.433)
    """
    x = to_host(x)
    mean, std = [], []
    for channel in np.moveaxis(x, 1, 0):
        if holds_pixels(x):
            share, values = np.bincount(channel.ravel(), minlength=256) / channel.size, np.arange(256) / 255
            mean.append(float(share @ values))
            std.append(float(np.sqrt(share @ (values - mean[-1]) ** 2)))
        else:
            # a constant's mean may be rounded, and would give a tiny deviation, by which users divide
            constant = channel.min() == channel.max()
            mean.append(float(channel.min() if constant else channel.mean(dtype=np.float64)))
            std.append(0.0 if constant else float(channel.std(dtype=np.float64)))
    return tuple(mean), tuple(std)


_STREAM = 0x6D786B69


def chosen_part(y: Optional["np.ndarray"], total: int, part: Share, name: str, seed: int = 0) -> "np.ndarray":
    """Choose the samples of a part: at random, but always the same ones, and from each class its share.

    Each sample has a random number of NumPy's `RandomState`, whose streams never change; of each class, the samples
    with the smallest numbers are chosen. The seed includes a second number: without it, data that were made by
    `RandomState(seed)` would be chosen by their values.

    Args:
        y: Labels whose shares are kept, or None.
        total: Number of samples.
        part: Number of samples to choose, or a fraction below 1.
        name: Name of `part` for error messages.
        seed: Determines the choice.

    Returns:
        bool of shape (total,).

    Raises:
        ValueError: `part` is negative, or would leave no sample.
    """
    whole = isinstance(part, (int, np.integer)) and not isinstance(part, bool)
    count = int(part) if whole else round(float(part) * total)
    if not 0 <= count < max(total, 1) or (not whole and not 0 <= part < 1):
        raise ValueError(f"{name}: expected a number below {total}, or a fraction below 1; received {part!r:.100}")
    draws = np.random.RandomState([seed, _STREAM]).random_sample(total)
    groups = np.zeros(total, np.int64) if y is None else np.unique(y, return_inverse=True)[1].reshape(-1)
    chosen = np.zeros(total, dtype=bool)
    for group, share in enumerate(_shares(np.bincount(groups), count)):
        rows = np.flatnonzero(groups == group)
        chosen[rows[np.argsort(draws[rows], kind="stable")[:share]]] = True
    return chosen


def three_parts(
    y: Optional["np.ndarray"], total: int, valid: Share, test: Share, seed: int = 0
) -> Tuple["np.ndarray", "np.ndarray", "np.ndarray"]:
    """Rows for training, validation and testing, each in increasing order; shares are of all rows.

    Raises:
        ValueError: As for `chosen_part`.
    """
    tested = chosen_part(y, total, test, "test", seed)
    left = np.flatnonzero(~tested)
    count = valid if isinstance(valid, int) else round(valid * total)
    chosen = chosen_part(None if y is None else y[left], len(left), count, "valid", seed + 1)
    return left[~chosen], left[chosen], np.flatnonzero(tested)


def warn_of_missing_classes(
    where: str, labels: Sequence[Optional[Sequence[int]]], classes: Sequence[str], way: str
) -> None:
    """Warn if the validation or test part lacks a class of the training part: its scores leave that class out.

    Args:
        where: Name of the data for the message.
        labels: Class numbers of training, validation and testing; None or empty for a missing part.
        classes: Name of each number.
        way: Sentence that says how to get a part with all classes.

    Warns:
        TrapWarning: A part has samples, but lacks a class of the training part.
    """
    counts = [_class_counts(part, len(classes)) for part in labels]
    lacking = []
    for name, count in zip(("valid", "test"), counts[1:]):
        missing = [str(classes[number]) for number in np.flatnonzero((counts[0] > 0) & (count == 0)).tolist()]
        if missing and count.any():
            names = ", ".join(missing[:5]) + ", ..." * (len(missing) > 5)
            lacking.append(f"{name} has {count.sum()} samples, and none of {names}")
    if lacking:
        text = f"{where}: {'; '.join(lacking)}: scores over such a part say little. {way}"
        warnings.warn(text, TrapWarning, stacklevel=4)


def _class_counts(labels: Optional[Sequence[int]], classes: int) -> "np.ndarray":
    numbers = np.asarray([] if labels is None else labels, np.int64)
    return np.bincount(numbers[(numbers >= 0) & (numbers < classes)], minlength=classes)


def _shares(sizes: "np.ndarray", count: int) -> "np.ndarray":
    """Divide `count` in proportion to sizes, by largest remainders."""
    exact = sizes * count / max(sizes.sum(), 1)
    shares: np.ndarray = np.floor(exact).astype(np.int64)
    shares[np.argsort(shares - exact, kind="stable")[: count - shares.sum()]] += 1
    return shares
