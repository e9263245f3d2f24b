"""A dataset in parts, and how a part is cut off."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.errors import TrapWarning
import numpy as np


class Split(NamedTuple):
    """Samples and their labels.

    Attributes:
        x: NumPy, shape (N, ...).
        y: NumPy, shape (N, ...): class numbers of shape (N,), or quantities.
    """

    x: "np.ndarray"
    y: "np.ndarray"


class Splits(NamedTuple):
    """A dataset in three parts without a common sample, and the names of its classes.

    Attributes:
        train: What to learn from: a `Split`, or a Dataset that reads each sample when it is asked for.
        valid: What to choose by.
        test: What to report on, once.
        classes: Name of each label; empty, as by default, where labels are quantities.
        mean: Of each channel or column of the training part, in the unit of batches: pixels are 0 to 1. None where
            that would mean to read all files.
        std: The same of the standard deviation.
        columns: Of a table: names of the columns of x.
        categories: Of a table: the names behind the whole numbers of a column.
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
    """Samples of a part: a word where they are not known."""
    if part is None:
        return "no"
    if isinstance(part, Split):
        return str(len(part.y[0] if isinstance(part.y, tuple) else part.y))
    return str(len(part)) if hasattr(part, "__getitem__") else "loader of unknown"


def channel_statistics(x: "np.ndarray") -> Tuple[Tuple[float, ...], Tuple[float, ...]]:
    """Mean and standard deviation of each channel, in float64.

    Args:
        x: Shape (N, C, ...). uint8 counts as 0 to 1, as batches have it.

    >>> mean, std = channel_statistics(np.array([[[0, 255]], [[255, 255]]], np.uint8))
    >>> round(mean[0], 4), round(std[0], 4)
    (0.75, 0.433)
    """
    mean, std = [], []
    for channel in np.moveaxis(x, 1, 0):
        if x.dtype == np.uint8:
            share, values = np.bincount(channel.ravel(), minlength=256) / channel.size, np.arange(256) / 255
            mean.append(float(share @ values))
            std.append(float(np.sqrt(share @ (values - mean[-1]) ** 2)))
        else:
            mean.append(float(channel.mean(dtype=np.float64)))
            # a rounded mean would give constants a deviation, by which others divide
            std.append(0.0 if channel.min() == channel.max() else float(channel.std(dtype=np.float64)))
    return tuple(mean), tuple(std)


_OWN_STREAM = 0x6D786B69


def chosen_part(
    y: Optional["np.ndarray"], total: int, part: Union[int, float], name: str, seed: int = 0
) -> "np.ndarray":
    """Which samples to cut off: at random but always the same ones, of each class its share.

    Each sample draws a number from NumPy's `RandomState`, whose streams never change, seeded by `seed` and a number
    of its own: data that were made by `RandomState(seed)` would be cut by their values; of each class the
    samples with the smallest numbers are taken.

    Args:
        y: Labels by which to share out, or None.
        total: Number of samples.
        part: How many, or a fraction of all, below 1.
        name: What the messages call `part`.
        seed: Decides the draws.

    Returns:
        bool of shape (total,).

    Raises:
        ValueError: `part` is negative or would leave nothing.
    """
    whole = isinstance(part, (int, np.integer)) and not isinstance(part, bool)
    count = int(part) if whole else round(float(part) * total)
    if not 0 <= count < max(total, 1) or (not whole and not 0 <= part < 1):
        raise ValueError(
            f"{name}: expected a number of samples below {total}, or a fraction below 1; received {part!r:.100}"
        )
    draws = np.random.RandomState([seed, _OWN_STREAM]).random_sample(total)
    groups = np.zeros(total, np.int64) if y is None else np.unique(y, return_inverse=True)[1].reshape(-1)
    chosen = np.zeros(total, dtype=bool)
    for group, wanted in enumerate(_shares(np.bincount(groups), count)):
        rows = np.flatnonzero(groups == group)
        chosen[rows[np.argsort(draws[rows], kind="stable")[:wanted]]] = True
    return chosen


def three_parts(
    y: Optional["np.ndarray"], total: int, valid: Union[int, float], test: Union[int, float], seed: int = 0
) -> Tuple["np.ndarray", "np.ndarray", "np.ndarray"]:
    """Rows for training, validation and testing, in the order they had; shares are of all rows.

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
    """Warn where validation or testing lacks a class that is trained: their scores leave it out.

    Args:
        where: What the data is, for the message.
        labels: Class numbers of training, validation and testing; None or empty for a part that is not there.
        classes: Name of each number.
        way: How to get a part with all classes.

    Warns:
        TrapWarning: A part has samples, but none of a class of the training part.
    """
    size = len(classes)
    counts = [_class_counts(part, size) for part in labels]
    lacking = {}
    for name, count in zip(("valid", "test"), counts[1:]):
        missing = np.flatnonzero((counts[0] > 0) & (count == 0)).tolist()
        if missing and count.sum():
            lacking[name] = f"{name} has {_counted(int(count.sum()))}, and none of {_listed(missing, classes)}"
    if not lacking:
        return
    told = (
        ""
        if size > 5
        else "; ".join(
            f"{name}: " + ", ".join(f"{label}={number}" for number, label in zip(count, classes))
            for name, count in zip(("train", "valid", "test"), counts)
            if count.sum()
        )
    )
    warnings.warn(
        f"{where}: {'; '.join(lacking.values())}: scores over such a part say little"
        f"{f' ({told})' if told else ''}. {way}",
        TrapWarning,
        stacklevel=4,
    )


def _class_counts(labels: Optional[Sequence[int]], classes: int) -> "np.ndarray":
    found = np.asarray([] if labels is None else labels, np.int64)
    return np.bincount(found[(found >= 0) & (found < classes)], minlength=classes)


def _counted(count: int) -> str:
    return f"{count} sample" + "s" * (count != 1)


def _listed(numbers: Sequence[int], names: Sequence[str]) -> str:
    more = f" and {len(numbers) - 5} more classes" if len(numbers) > 5 else ""
    return ", ".join(str(names[number]) for number in numbers[:5]) + more


def _shares(sizes: "np.ndarray", count: int) -> "np.ndarray":
    """`count` shared out in proportion to sizes, by largest remainders."""
    exact = sizes * count / max(sizes.sum(), 1)
    shares: np.ndarray = np.floor(exact).astype(np.int64)
    shares[np.argsort(shares - exact, kind="stable")[: count - shares.sum()]] += 1
    return shares
