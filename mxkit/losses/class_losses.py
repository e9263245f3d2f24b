"""Losses for classes that Gluon does not have. Each gives one value per sample and checks shapes."""

from typing import Any, Optional, Tuple

from mxkit.core.arrays import arrays_in
from mxkit.core.loss_kinds import CLASSES, TAUGHT, LossKind
from mxkit.errors import DataError
from mxkit.losses.per_sample import (
    ClassWeight,
    ClassWeights,
    PerSampleLoss,
    check_shape,
    check_weight,
    number,
    weighted,
)
from mxkit.losses.shapes import apply_steps, check_classes, weight_axes, weight_error
import mxnet as mx
from mxnet import gluon


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
        axis, target = self._shape_of_losses(output)
        if weight is not None:
            (weight,) = apply_steps([weight_axes(weight, target, axis) or ()], output, [weight])  # type: ignore[arg-type]
        if self._class_weight is not None:
            of_classes = self._class_weight.array(output.shape[axis], output).take(labels[0]).reshape(target)
            weight = of_classes if weight is None else mx.nd.broadcast_mul(of_classes, weight)
        return (label, None, weight)

    def _shape_of_losses(self, pred: Any) -> Tuple[int, Tuple[int, ...]]:
        """Axis of the classes, and shape of the losses before their mean over a sample."""
        axis = self._axis % pred.ndim
        return axis, (*pred.shape[:axis], 1, *pred.shape[axis + 1 :])

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
        check_classes(self, tuple(pred.shape), tuple(label.shape))
        axis, target = self._shape_of_losses(pred)
        if sample_weight is not None and weight_axes(sample_weight, target, axis) is None:
            raise weight_error(self, sample_weight, target, axis)
        if self._class_weight is not None:
            self._class_weight.among(pred.shape[axis])


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

    loss_kind = LossKind(CLASSES, TAUGHT)

    def __init__(
        self, temperature: float = 4.0, hard_weight: float = 0.5, *, weight: Optional[float] = None, **kwargs: Any
    ) -> None:
        super().__init__(weight, 0, **kwargs)
        self._temperature = number("KnowledgeDistillation: temperature", temperature, 1e-3)
        self._hard_weight = number("KnowledgeDistillation: hard_weight", hard_weight, 0, 1)

    def weight_place(self, output: Any) -> int:
        return 2

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
