"""Soft labels of whole batches: mixup, cutmix and label smoothing.

Each function is called as by `ArrayLoader(..., transform=...)`, `mix(x, y, rng)`, and returns `(x, soft y)`. They can
be chained: `lambda x, y, rng: mixup(*augment.batch(x, y, rng), rng, classes=10)`. Soft labels, of shape (N, classes),
sum to 1. Their loss is `SoftmaxCrossEntropyLoss(sparse_label=False)`, in mxkit
`loss=("softmax_ce", {"sparse_label": False})`. Accuracy cannot compare them with classes: compute it in validation.
"""

from typing import Any, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.data.batching import each, like
from mxkit.errors import DataError, LabelError
import numpy as np

Rng = np.random.Generator


def smooth_labels(x: Any, y: Any, rng: Any = None, *, classes: int, epsilon: float = 0.1) -> Tuple[Any, Any]:
    """Spread a part of each label evenly over all classes.

    Args:
        x: Returned as it is.
        y: Class numbers of shape (N,), or soft labels of shape (N, classes); NumPy, NDArray or `mx.np`,
            as the result is.
        rng: Unused; it gives all functions of this module the same call.
        classes: Number of classes.
        epsilon: The part, at least 0 and below 1; 0.1 in arXiv:1512.00567.

    Returns:
        `x`, and float32 of shape (N, classes): `(1 - epsilon) * label + epsilon / classes`.

    Raises:
        LabelError: A class number is out of range (T10).
        ValueError: `epsilon` is out of range.

    >>> _, soft = smooth_labels(None, np.array([1]), classes=4, epsilon=0.2)
    >>> [round(float(share), 2) for share in soft[0]]
    [0.05, 0.85, 0.05, 0.05]
    """
    if not 0 <= epsilon < 1:
        raise ValueError(f"smooth_labels: epsilon: expected a number from 0 up to 1; received {epsilon!r}")
    soft = _soft(y, classes, "smooth_labels")
    return x, like(y, soft * np.float32(1 - epsilon) + np.float32(epsilon / classes))


def mixup(x: Any, y: Any, rng: Rng, *, classes: int, alpha: float = 0.2) -> Tuple[Any, Any]:
    """Mix each sample with another one of the batch, and their labels with the same weight.

    Args:
        x: Inputs of shape (N, ...), or a tuple of them; NumPy, or MXNet's arrays, whose results are on the CPU.
        y: Class numbers of shape (N,), or soft labels of shape (N, classes).
        rng: Generator of the weight and the partners.
        classes: Number of classes.
        alpha: The weight of the batch is drawn from Beta(alpha, alpha); arXiv:1710.09412 has 0.2 for ImageNet and 1 for
            CIFAR-10.

    Returns:
        `weight * x + (1 - weight) * partner`, float32, and labels of the same mix, float32 of shape (N, classes).

    Raises:
        LabelError: A class number is out of range (T10).
        ValueError: `alpha` is not above 0.
    """
    weight = _weight(rng, alpha, "mixup")
    soft = _soft(y, classes, "mixup")
    order = rng.permutation(len(soft))

    def mixed(array: Any) -> Any:
        host = _host(array, len(soft), "mixup").astype(np.float32, copy=False)
        return like(array, _mean(host, host[order], weight))

    return each(mixed, x), like(y, _mean(soft, soft[order], weight))


def cutmix(x: Any, y: Any, rng: Rng, *, classes: int, alpha: float = 1.0) -> Tuple[Any, Any]:
    """Replace a rectangle of each image by that of another image of the batch, and its share of the label.

    Args:
        x: Images of shape (N, channels, height, width), NumPy, NDArray or `mx.np`, of any dtype.
        y: Class numbers of shape (N,), or soft labels of shape (N, classes).
        rng: Generator of the partners and of the rectangle, which all images of the batch share.
        classes: Number of classes.
        alpha: The remaining share of the area is drawn from Beta(alpha, alpha), before the rectangle is clipped at the
            borders; 1 in arXiv:1905.04899.

    Returns:
        New images, and labels float32 of shape (N, classes), weighted by the number of pixels of each image.

    Raises:
        DataError: `x` has another shape.
        LabelError: A class number is out of range (T10).
        ValueError: `alpha` is not above 0.
    """
    soft = _soft(y, classes, "cutmix")
    images = _host(x, len(soft), "cutmix")
    if images.ndim != 4:
        raise DataError(f"cutmix: expected images of shape (N, channels, height, width); received {images.shape}")
    height, width = images.shape[2:]
    side = np.sqrt(1 - _weight(rng, alpha, "cutmix"))
    order = rng.permutation(len(soft))
    top, bottom = _span(rng, height, side)
    left, right = _span(rng, width, side)
    images = images.copy()
    images[:, :, top:bottom, left:right] = images[order, :, top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return like(x, images), like(y, _mean(soft, soft[order], share))


def _span(rng: Rng, length: int, share: float) -> Tuple[int, int]:
    """Start and end of an interval around a random pixel, clipped at the borders."""
    centre, half = int(rng.integers(length)), int(length * share) // 2
    return max(centre - half, 0), min(centre + half, length)


def _weight(rng: Rng, alpha: float, name: str) -> float:
    if not alpha > 0:
        raise ValueError(f"{name}: alpha: expected a number above 0; received {alpha!r}")
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"{name}: rng: expected a numpy.random.Generator; received {type(rng).__name__}")
    return float(rng.beta(alpha, alpha))


def _mean(first: "np.ndarray", second: "np.ndarray", weight: float) -> "np.ndarray":
    return np.asarray(first * np.float32(weight) + second * np.float32(1 - weight))


def _soft(y: Any, classes: int, name: str) -> "np.ndarray":
    """Labels as shares of the classes, float32 of shape (N, classes)."""
    classes = whole_number(classes, f"{name}: classes", least=2)
    labels = to_host(y)
    if labels.ndim == 2 and labels.shape[1] == classes and labels.dtype.kind == "f":
        return labels.astype(np.float32)
    if labels.ndim != 1:
        raise LabelError(
            f"{name}: expected class numbers of shape (N,) or soft labels of shape (N, {classes}); "
            f"received {labels.shape} of {labels.dtype}"
        )
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns of comparing NaN
        wrong = labels[~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))]
    if wrong.size:
        raise LabelError(f"{name}: expected class numbers from 0 to {classes - 1}; received {wrong[:5].tolist()}")
    soft = np.zeros((len(labels), classes), np.float32)
    soft[np.arange(len(labels)), labels.astype(np.int64)] = 1
    return soft


def _host(array: Any, samples: int, name: str) -> "np.ndarray":
    host = to_host(array)
    if not host.shape or len(host) != samples:
        raise DataError(f"{name}: {samples} labels and inputs of shape {host.shape}; axis 0 must be equal")
    return host
