"""Losses over distances of embeddings in pairs and triplets, and the accuracy of these distances."""

from typing import Any, NamedTuple, Optional, Tuple

from mxkit.core.arrays import to_host
from mxkit.core.loss_kinds import EMBEDDINGS, MINED, SAME, LossKind
from mxkit.errors import DataError
from mxkit.losses.per_sample import PerSampleLoss, check_shape, check_weight, number, weighted
import numpy as np

# Added to a squared distance before its root: the root's gradient at 0 is infinite, and times 0 it is NaN (T34).
_EPSILON = 1e-12


class _DistanceLoss(PerSampleLoss):
    """A loss over distances of embeddings, with a margin."""

    def __init__(self, margin: float = 1.0, *, weight: Optional[float] = None, **kwargs: Any) -> None:
        super().__init__(weight, 0, **kwargs)
        self._margin = number(f"{type(self).__name__}: margin", margin, 0)

    def _check_embeddings(self, embeddings: Any, count: int, form: str) -> int:
        """Check a group of arrays of one shape (B, D); return B."""
        group = embeddings if isinstance(embeddings, (list, tuple)) else [embeddings]
        shapes = [tuple(array.shape) for array in group]
        if len(group) != count or len(set(shapes)) != 1 or len(shapes[0]) != 2:
            raise DataError(f"{type(self).__name__}: expected {form}, each of shape (B, D); received shapes {shapes}")
        return int(shapes[0][0])


class ContrastiveLoss(_DistanceLoss):
    """Pulls pairs of one class together and pushes other pairs apart, up to a margin.

    Hadsell, Chopra and LeCun 2006, without their factor 1/2: `d**2` for a pair of one class, else
    `max(margin - d, 0)**2`, with d the Euclidean distance. `loss([a, b], same, sample_weight=None)` takes the two
    outputs of `Siamese`, of shape (B, D), and `same` of shape (B,) or (B, 1) and any dtype, above 0 for a
    pair of one class. It gives shape (B,). The gradient is finite if a and b are equal.

    Args:
        margin: At least 0, in the unit of the embeddings.
        weight: Scales all losses.

    Raises:
        ValueError: `margin` is below 0 or not finite.
        DataError: In a call, a shape is wrong; nothing is computed.

    >>> a, b = mx.nd.array([[0, 0], [0, 0]]), mx.nd.array([[0.6, 0.8], [0, 0.5]])
    >>> [round(one, 4) for one in ContrastiveLoss()([a, b], mx.nd.array([1, 0])).asnumpy().tolist()]
    [1.0, 0.25]
    """

    loss_kind = LossKind(EMBEDDINGS, SAME)

    def check_shapes(self, pair: Any, same: Any, sample_weight: Any = None) -> None:
        samples = self._check_embeddings(pair, 2, "a pair [a, b]")
        check_shape(self, "same", same, (samples,), (samples, 1))
        check_weight(self, sample_weight, samples)

    def hybrid_forward(self, F: Any, pair: Any, same: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        squared = _squared_distance(F, *pair)
        short = F.relu(self._margin - F.sqrt(squared + _EPSILON))
        same = F.reshape(same, (-1,)) > 0
        loss = same * squared + (1 - same) * F.square(short)
        return weighted(F, loss, self._weight, sample_weight)


class TripletLoss(_DistanceLoss):
    """Brings an anchor closer to its positive than to its negative, by a margin.

    `max(d(anchor, positive) - d(anchor, negative) + margin, 0)`, with d the Euclidean distance; Gluon's loss of
    this name takes squared distances. There are two ways to call it:

    `loss([anchor, positive, negative], sample_weight=None)` takes triplets, the outputs of `Siamese`, each (B, D).

    `loss(embeddings, label, sample_weight=None)` with embeddings of shape (B, D) and classes of shape (B,) or (B, 1)
    mines the batch: each sample is an anchor, with the farthest sample of its class and the nearest of another class
    (batch hard, Hermans et al. 2017, arXiv:1703.07737). An anchor without either has a loss of 0. A sample's loss
    depends on the rest of the batch, so accumulated micro-batches do not equal one big batch. If the loss stays at
    the margin, all embeddings are equal; a lower learning rate helps.

    Both give shape (B,). Gradients are finite if embeddings are equal.

    Args:
        margin: At least 0, in the unit of the embeddings.
        weight: Scales all losses.

    Raises:
        ValueError: `margin` is below 0 or not finite.
        DataError: In a call, a shape is wrong; nothing is computed.

    >>> embeddings = mx.nd.array([[0.0], [1.0], [3.0], [3.5]])
    >>> TripletLoss()(embeddings, mx.nd.array([0, 0, 1, 1])).asnumpy().tolist()
    [0.0, 0.0, 0.0, 0.0]
    >>> TripletLoss()(embeddings, mx.nd.array([0, 1, 1, 0])).asnumpy().tolist()
    [3.5, 2.0, 2.5, 4.0]
    """

    loss_kind = LossKind(EMBEDDINGS, MINED)

    def check_shapes(self, embeddings: Any, *labels: Any) -> None:
        if isinstance(embeddings, (list, tuple)):
            samples = self._check_embeddings(embeddings, 3, "a triplet [anchor, positive, negative]")
            check_weight(self, _first(labels), samples)
        elif not labels:
            raise DataError("TripletLoss: expected a triplet [anchor, positive, negative], or embeddings and labels")
        else:
            samples = self._check_embeddings(embeddings, 1, "embeddings")
            check_shape(self, "label", labels[0], (samples,), (samples, 1))
            check_weight(self, _first(labels[1:]), samples)

    def weight_place(self, output: Any) -> int:
        return 0 if isinstance(output, (list, tuple)) else 1

    def cast_labels(self, output: Any, labels: Tuple[Any, ...]) -> Tuple[Any, ...]:
        place = self.weight_place(output)  # float32 would round class numbers above 2**24 (T14)
        return (*labels[:place], *super().cast_labels(output, labels[place:]))

    def hybrid_forward(self, F: Any, embeddings: Any, *labels: Any) -> Any:  # noqa: N803
        if isinstance(embeddings, (list, tuple)):
            return weighted(F, self._loss(F, *embeddings), self._weight, _first(labels))
        positive, negative, usable = _mined(F, embeddings, F.reshape(labels[0], (-1,)))
        loss = self._loss(F, embeddings, F.take(embeddings, positive), F.take(embeddings, negative)) * usable
        return weighted(F, loss, self._weight, _first(labels[1:]))

    def _loss(self, F: Any, anchor: Any, positive: Any, negative: Any) -> Any:  # noqa: N803
        near, far = (F.sqrt(_squared_distance(F, anchor, other) + _EPSILON) for other in (positive, negative))
        return F.relu(near - far + self._margin)


def _first(values: Tuple[Any, ...]) -> Any:
    return values[0] if values else None


def _squared_distance(F: Any, a: Any, b: Any) -> Any:  # noqa: N803
    return F.sum(F.square(a - b), axis=1)


def _mined(F: Any, embeddings: Any, label: Any) -> Tuple[Any, Any, Any]:  # noqa: N803
    """Row of each anchor's farthest sample of its class, and nearest of another class; 1 if both exist, else 0."""
    fixed = F.BlockGrad(embeddings)
    # |a|**2 + |b|**2 - 2ab needs only B * B memory, and is most exact if the mean is 0
    fixed = F.broadcast_minus(fixed, F.mean(fixed, axis=0, keepdims=True))
    squares = F.sum(F.square(fixed), axis=1, keepdims=True)
    sums = F.broadcast_add(squares, F.transpose(squares))
    squared = F.relu(sums - 2 * F.dot(fixed, fixed, transpose_b=True))
    same = F.broadcast_equal(F.expand_dims(label, 1), F.expand_dims(label, 0))
    same = F.where(same, F.ones_like(squared), F.zeros_like(squared))
    # excludes samples of the same class; a constant could be smaller than distances, or make them lose digits
    excluded = F.broadcast_mul(same, 1 + 2 * F.max(squared))
    usable = (F.sum(same, axis=1) > 1.5) * (F.sum(1 - same, axis=1) > 0.5)
    return F.argmax(squared * same, axis=1), F.argmin(squared + excluded, axis=1), usable


class Agreement(NamedTuple):
    """Accuracy of distances as a classifier of pairs.

    Attributes:
        accuracy: Share of pairs that are classified correctly.
        threshold: Pairs with a smaller distance count as one class.
    """

    accuracy: float
    threshold: float


def pair_accuracy(a: Any, b: Any, same: Any, *, threshold: Optional[float] = None) -> Agreement:
    """Share of pairs that a threshold on their distance classifies correctly, as of one class or not.

    Search the threshold on training or validation pairs and pass it for the test: a threshold that is searched on the
    test pairs gives too high an accuracy.

    Args:
        a: Embeddings, NDArray or NumPy of shape (N, D), like an output of `Siamese` from `mxkit.predict`.
        b: Embeddings of the other samples of the pairs, of the same shape.
        same: Shape (N,) or (N, 1), above 0 for a pair of one class.
        threshold: Pairs with a smaller distance count as one class. None searches the threshold with the highest
            accuracy: halfway between two neighbouring distances, and the lowest one if several are equally good.

    Returns:
        The accuracy, from 0 to 1, and the threshold.

    Raises:
        DataError: Shapes do not match, or an embedding is NaN or infinite.

    >>> pair_accuracy(np.array([[0.0], [0.0], [0.0]]), np.array([[1.0], [2.0], [4.0]]), np.array([1, 1, 0]))
    Agreement(accuracy=1.0, threshold=3.0)
    """
    distances = _distances("pair_accuracy", a, b)
    positive = to_host(same).reshape(-1) > 0
    if positive.shape != distances.shape:
        raise DataError(
            f"pair_accuracy: same: expected one value for each of {len(distances)} pairs; received shape "
            f"{to_host(same).shape}"
        )
    if threshold is None:
        threshold = _best_threshold(distances, positive)
    return Agreement(float(np.mean((distances < threshold) == positive)), float(threshold))


def triplet_accuracy(anchor: Any, positive: Any, negative: Any) -> float:
    """Share of triplets with an anchor closer to its positive than to its negative; a tie counts as wrong.

    Args:
        anchor: Embeddings, NDArray or NumPy of shape (N, D).
        positive: Embeddings of samples of the anchors' classes, of the same shape.
        negative: Embeddings of samples of other classes, of the same shape.

    Returns:
        The share, from 0 to 1.

    Raises:
        DataError: Shapes do not match, or an embedding is NaN or infinite.

    >>> triplet_accuracy(np.zeros((2, 1)), np.array([[1.0], [3.0]]), np.array([[2.0], [2.0]]))
    0.5
    """
    near = _distances("triplet_accuracy", anchor, positive)
    return float(np.mean(near < _distances("triplet_accuracy", anchor, negative)))


def _best_threshold(distances: "np.ndarray", positive: "np.ndarray") -> float:
    """Threshold with the most correct pairs: smaller distances count as one class."""
    values, group = np.unique(distances, return_inverse=True)
    gain = np.bincount(group, weights=np.where(positive, 1.0, -1.0), minlength=len(values))
    best = int(np.argmax(np.concatenate([[0.0], np.cumsum(gain)])))
    edges = np.concatenate([[values[0] - 1], values, [values[-1] + 1]])
    return float((edges[best] + edges[best + 1]) / 2)


def _distances(name: str, a: Any, b: Any) -> "np.ndarray":
    first, second = (to_host(array).astype(np.float64) for array in (a, b))
    if first.shape != second.shape or first.ndim != 2 or not len(first):
        raise DataError(f"{name}: expected embeddings of one shape (N, D); received {first.shape} and {second.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise DataError(f"{name}: embeddings hold NaN or infinity, so their distances mean nothing (T26)")
    return np.asarray(np.sqrt(np.sum(np.square(first - second), axis=1)))
