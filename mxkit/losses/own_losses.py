"""Losses that Gluon does not have, of classes and of distances; each gives one value per sample and checks shapes."""

from typing import Any, NamedTuple, Optional, Tuple

from mxkit.core.arrays import arrays_in, to_host
from mxkit.core.loss_meanings import Mined, Pairs, Taught, meaning_of
from mxkit.errors import DataError
from mxkit.losses.per_sample import (
    ClassWeight,
    ClassWeights,
    PerSampleLoss,
    apply_steps,
    check_shape,
    check_weight,
    number,
    weight_steps,
    weighted,
)
import mxnet as mx
from mxnet import gluon
import numpy as np

# Added to a squared distance before its root: the root's gradient at 0 is infinite, and times 0 it is NaN (T34).
_EPSILON = 1e-12


class _ClassLoss(PerSampleLoss, gluon.loss.SoftmaxCrossEntropyLoss):  # type: ignore[misc]
    """Base of losses of scores and class numbers. The range of labels is checked as for softmax cross-entropy (T10).

    Subclasses implement `_losses(F, pred, label)`, the losses before they are averaged over a sample.
    """

    def __init__(self, *, class_weight: Optional[ClassWeight] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        name = f"{type(self).__name__}: class_weight"
        self._class_weight = None if class_weight is None else ClassWeights(name, class_weight)
        if class_weight is not None and not self._sparse_label:
            raise ValueError(f"{name}: expected labels that are class numbers, sparse_label=True")

    def forward(self, output: Any, *labels: Any) -> Any:
        """Check the arrays, look up the weights of the classes, and compute the loss."""
        if self._class_weight is not None and not arrays_in([output]):
            raise ValueError(f"{type(self).__name__}: class_weight: call the loss with arrays, not inside a graph")
        return super().forward(output, *labels)

    def cast_labels(self, output: Any, labels: Tuple[Any, ...]) -> Tuple[Any, ...]:
        label, weight = (*super().cast_labels(output, labels), None)[:2]
        if self._class_weight is None and (weight is None or weight.size == output.shape[0]):
            return (label,) if weight is None else (label, weight)
        target, axis = meaning_of(self).losses_shape(output, weight)
        if weight is not None:
            (weight,) = apply_steps((weight_steps(self, output, weight),), output, [weight])
        if self._class_weight is not None:
            of_classes = self._class_weight.array(output.shape[axis], output).take(labels[0]).reshape(target)
            weight = of_classes if weight is None else mx.nd.broadcast_mul(of_classes, weight)
        return (label, None, weight)

    def hybrid_forward(
        self,
        F: Any,  # noqa: N803
        pred: Any,
        label: Any,
        sample_weight: Any = None,
        position_weight: Any = None,
    ) -> Any:
        """Compute the losses; `cast_labels` passes `sample_weight`, shape (B,), or `position_weight` of their axes."""
        loss = self._losses(F, pred, label)
        if position_weight is not None:
            loss = F.broadcast_mul(loss, position_weight)
        return weighted(F, F.mean(loss, axis=0, exclude=True), self._weight, sample_weight)

    def check_shapes(self, pred: Any, label: Any, sample_weight: Any = None) -> None:
        meaning_of(self).check_shapes(tuple(pred.shape), [label])
        if sample_weight is not None:
            weight_steps(self, pred, sample_weight)
        if self._class_weight is not None:
            self._class_weight.among(pred.shape[self._axis])


class WeightedSoftmaxCELoss(_ClassLoss):
    """Softmax cross-entropy with a weight for each class, which multiplies the losses of that class.

    It takes the arguments of Gluon's `SoftmaxCrossEntropyLoss` and `class_weight`;
    `("softmax_ce", {"class_weight": ...})` makes it. Losses are divided by the number of samples, as in Keras, and not
    by the sum of the weights, as in PyTorch.

    >>> loss = WeightedSoftmaxCELoss([1, 3])(mx.nd.zeros((2, 2)), mx.nd.array([0, 1]))
    >>> [round(value, 4) for value in loss.asnumpy().tolist()]
    [0.6931, 2.0794]
    """

    def __init__(self, class_weight: ClassWeight, **kwargs: Any) -> None:
        super().__init__(class_weight=class_weight, **kwargs)

    def _losses(self, F: Any, pred: Any, label: Any) -> Any:  # noqa: N803
        logs = pred if self._from_logits else F.log_softmax(pred, self._axis)
        return -F.pick(logs, label, axis=self._axis, keepdims=True)


class FocalLoss(_ClassLoss):
    """Cross-entropy that gives well-classified samples less weight: `-(1 - p[y])**gamma * log(p[y])`.

    Lin et al. 2017, arXiv:1708.02002, for any number of classes. `loss(scores, label, sample_weight=None)` takes
    scores before the softmax, of shape (B, C), and class numbers of shape (B,) or (B, 1). With more axes, as in
    segmentation, the loss of a sample is the mean over them. It gives shape (B,). `sample_weight` has shape (B,), or
    the labels' shape for a weight per position.

    Gradients are finite for any gamma, even if a probability rounds to 1: the plain formula would give 0 * inf.

    Args:
        gamma: At least 0; 0 is cross-entropy, 2 is the paper's value.
        axis: Axis of the classes.
        class_weight: The paper's alpha: a weight for each class, `[1, 5]` or `{0: 1, 1: 5}`.
        weight: Scales all losses.

    Raises:
        ValueError: `gamma` or a weight is below 0.
        DataError: In a call, a shape is wrong; nothing is computed.

    >>> loss = FocalLoss()(mx.nd.array([[0, 0], [4, 0]]), mx.nd.array([0, 0]))
    >>> [round(value, 4) for value in loss.asnumpy().tolist()]
    [0.1733, 0.0]
    """

    def __init__(
        self,
        gamma: float = 2.0,
        *,
        axis: int = -1,
        class_weight: Optional[ClassWeight] = None,
        weight: Optional[float] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(axis=axis, class_weight=class_weight, weight=weight, **kwargs)
        self._gamma = number("FocalLoss: gamma", gamma, 0)

    def _losses(self, F: Any, pred: Any, label: Any) -> Any:  # noqa: N803
        chosen = F.pick(F.log_softmax(pred, self._axis), label, axis=self._axis, keepdims=True)
        # the derivative of a power below 1 is inf at 0; expm1 keeps the digits of a small 1 - p
        missing = F.maximum(-F.expm1(chosen), 1e-12)
        return -(missing**self._gamma) * chosen


class LabelSmoothing(_ClassLoss):
    """Cross-entropy with label smoothing.

    Szegedy et al. 2015, arXiv:1512.00567: the target is `(1 - epsilon) * label + epsilon / C`, as from
    `mxkit.data.smooth_labels`, without an array of targets. `loss(scores, label, sample_weight=None)` takes scores
    before the softmax, of shape (B, C), and class numbers of shape (B,) or (B, 1); further axes are averaged. It
    gives shape (B,). `sample_weight` has shape (B,), or the labels' shape for a weight per position.

    Args:
        epsilon: Share of the target that is distributed over all classes, from 0 to 1.
        sparse_label: False if labels are soft, with the scores' shape, as after mixup. They are smoothed too,
            unless epsilon is 0.
        axis: Axis of the classes.
        class_weight: A weight for each class, `[1, 5]` or `{0: 1, 1: 5}`, which multiplies the loss of its samples.
        weight: Scales all losses.

    Raises:
        ValueError: `epsilon` is out of range, or a weight is below 0.
        DataError: In a call, a shape is wrong; nothing is computed.

    >>> loss = LabelSmoothing(0.1)(mx.nd.array([[2, 0, 0, 0]]), mx.nd.array([0]))
    >>> round(float(loss.asscalar()), 4)
    0.4908
    """

    def __init__(
        self,
        epsilon: float = 0.1,
        *,
        sparse_label: bool = True,
        axis: int = -1,
        class_weight: Optional[ClassWeight] = None,
        weight: Optional[float] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(axis=axis, sparse_label=sparse_label, class_weight=class_weight, weight=weight, **kwargs)
        self._epsilon = number("LabelSmoothing: epsilon", epsilon, 0, 1)

    def _losses(self, F: Any, pred: Any, label: Any) -> Any:  # noqa: N803
        logs = F.log_softmax(pred, self._axis)
        if self._sparse_label:
            hard = F.pick(logs, label, axis=self._axis, keepdims=True)
        else:
            hard = F.sum(logs * label, axis=self._axis, keepdims=True)
        return (self._epsilon - 1) * hard - self._epsilon * F.mean(logs, axis=self._axis, keepdims=True)


class KnowledgeDistillation(PerSampleLoss):
    """Loss of a student net: distance to a teacher's scores, and cross-entropy with the labels.

    Hinton et al. 2015, arXiv:1503.02531:
    `(1 - hard_weight) * T**2 * KL(softmax(teacher / T) || softmax(scores / T)) + hard_weight * cross-entropy`.
    `loss(scores, teacher, label, sample_weight=None)` takes scores of both nets before the softmax, (B, C), and class
    numbers of shape (B,) or (B, 1). It gives shape (B,). The teacher gets no gradient. For `mxkit.fit` a batch is
    `(x, (teacher's scores, y))`: `mxkit.predict(teacher, x)` computes the scores once.

    Args:
        temperature: T, above 0. A higher one gives more weight to the classes that the teacher finds unlikely.
        hard_weight: Weight of the cross-entropy with the labels, from 0 to 1.
        weight: Scales all losses.

    Raises:
        ValueError: An argument is out of range.
        DataError: In a call, a shape is wrong; nothing is computed.

    >>> scores = mx.nd.array([[1, 2, 3]])
    >>> abs(float(KnowledgeDistillation(hard_weight=0)(scores, scores, mx.nd.array([0])).asscalar())) < 1e-6
    True
    """

    meaning = Taught

    def __init__(
        self, temperature: float = 4.0, hard_weight: float = 0.5, *, weight: Optional[float] = None, **kwargs: Any
    ) -> None:
        super().__init__(weight, 0, **kwargs)
        self._temperature = number("KnowledgeDistillation: temperature", temperature, 1e-3)
        self._hard_weight = number("KnowledgeDistillation: hard_weight", hard_weight, 0, 1)

    def check_shapes(self, pred: Any, teacher: Any, label: Any, sample_weight: Any = None) -> None:
        if pred.ndim != 2:
            raise DataError(f"KnowledgeDistillation: scores: expected shape (B, C); received {tuple(pred.shape)}")
        check_shape(self, "teacher's scores", teacher, tuple(pred.shape))
        check_shape(self, "label", label, (pred.shape[0],), (pred.shape[0], 1))
        check_weight(self, sample_weight, pred.shape[0])

    def hybrid_forward(self, F: Any, pred: Any, teacher: Any, label: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        soft = F.log_softmax(pred / self._temperature)
        target = F.log_softmax(F.BlockGrad(teacher) / self._temperature)
        divergence = F.sum(F.exp(target) * (target - soft), axis=-1)
        hard = F.pick(F.log_softmax(pred), F.reshape(label, (-1,)), axis=-1)
        loss = (1 - self._hard_weight) * self._temperature**2 * divergence - self._hard_weight * hard
        return weighted(F, loss, self._weight, sample_weight)


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

    meaning = Pairs

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

    meaning = Mined

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
