"""Datasets as splits that cannot be confused."""

from typing import List, NamedTuple

import numpy as np

TEST_EVERY = 6
VALID_EVERY = 10


class Split(NamedTuple):
    """Samples and their labels.

    Attributes:
        x: NumPy, shape (N, ...).
        y: NumPy, shape (N,).
    """

    x: "np.ndarray"
    y: "np.ndarray"


class Splits(NamedTuple):
    """A dataset in three parts without a common sample, and the names of its classes."""

    train: Split
    valid: Split
    test: Split
    classes: List[str]


def digits(size: int = 8) -> Splits:
    """Real handwritten digits: scikit-learn's bundled 1,797 scans of 8x8 pixels.

    The split is fixed and stratified: of each class, in the order of the data, every 6th sample is for
    testing and every 10th of the others for validation, which gives 1,354, 147 and 296 samples.

    Args:
        size: 8 for the scans as they are, or a larger multiple of 4 from 28 on, for nets made for MNIST:
            each pixel becomes a square and a border is added on all sides (28: x3 and 2 pixels).

    Returns:
        Inputs float32 NCHW of shape (N, 1, size, size) in 0 to 1 (the scans' 0 to 16 divided by 16),
        labels int32 of shape (N,).

    Raises:
        ValueError: `size` is none of the allowed ones.

    Source:
        https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits

    >>> digits(28).test.x.shape
    (296, 1, 28, 28)
    """
    from sklearn.datasets import load_digits  # 0.5 s of imports that only this dataset needs

    bunch = load_digits()
    x = upsample((bunch.images / 16).astype(np.float32)[:, None], size)
    y = bunch.target.astype(np.int32)
    part = _stratified_parts(y)
    train, valid, test = (Split(x[part == i], y[part == i]) for i in range(3))
    return Splits(train, valid, test, [str(digit) for digit in range(10)])


def upsample(x: "np.ndarray", size: int) -> "np.ndarray":
    """Enlarge images by a whole factor and pad them evenly with zeros to `size`.

    Args:
        x: Shape (N, C, side, side).
        size: The new side; `side` itself or more, and an even number of pixels more than a multiple of it.

    Returns:
        Shape (N, C, size, size).

    Raises:
        ValueError: `size` is smaller, or the border would not be even.
    """
    side = x.shape[-1]
    factor, rest = divmod(size, side)
    if factor < 1 or rest % 2:
        raise ValueError(
            f"size: expected {side}, or a number whose rest after division by {side} is even; received {size}"
        )
    border = rest // 2
    enlarged = x.repeat(factor, axis=2).repeat(factor, axis=3)
    return np.pad(enlarged, ((0, 0), (0, 0), (border, border), (border, border)))


def _stratified_parts(y: "np.ndarray") -> "np.ndarray":
    """Part of each sample: 0 for training, 1 for validation, 2 for testing."""
    part = np.zeros(len(y), np.int8)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        test = np.arange(len(rows)) % TEST_EVERY == TEST_EVERY - 1
        part[rows[test]] = 2
        rest = rows[~test]
        part[rest[np.arange(len(rest)) % VALID_EVERY == VALID_EVERY - 1]] = 1
    return part
