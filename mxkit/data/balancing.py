"""Classes of unequal sizes: weights for the loss, and orders with equally many samples of each class."""

import hashlib
from typing import Any, Dict

from mxkit.core.arrays import to_host
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
        raise DataError(
            "class_weights: labels: expected class numbers from 0; received other values. Number the classes first: "
            "np.unique(labels, return_inverse=True)[1]"
        )
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
