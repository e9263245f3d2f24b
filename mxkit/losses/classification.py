"""Losses for classes that Gluon lacks: each gives one value per sample, and checks shapes before it computes."""

from collections.abc import Mapping as AnyMapping
import math
from numbers import Real
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import arrays_in
from mxkit.errors import DataError
from mxkit.losses.shapes import apply_steps, check_class_axis, one_class, weight_axes, weight_error
import mxnet as mx
from mxnet import gluon
import numpy as np

# A weight for each class, in order, or by its number; a class that a mapping leaves out has 1.
ClassWeight = Union[Sequence[float], Mapping[Any, float]]


class PerSampleLoss(gluon.loss.Loss):  # type: ignore[misc]
    """Base of mxkit's losses: shapes are checked on every call, hybridized or not, and 16 bits computed in 32.

    Subclasses write `hybrid_forward` as any loss of Gluon's does, and `check_shapes`.
    """

    def forward(self, output: Any, *labels: Any) -> Any:
        """Check the arrays and compute the loss; symbols have no shapes and pass as they are."""
        if arrays_in([output]):
            self.check_shapes(output, *labels)
            output = _widened(output)
            labels = self.cast_labels(output, labels)
        return super().forward(output, *labels)

    def cast_labels(self, output: Any, labels: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """Give labels and weights the output's dtype: operators refuse two of them (T14)."""
        dtype = arrays_in([output])[0].dtype
        return tuple(one.astype(dtype, copy=False) if isinstance(one, mx.nd.NDArray) else one for one in labels)

    def check_shapes(self, output: Any, *labels: Any) -> None:
        """Raise a DataError where the shapes would give another number of values than samples."""
        raise NotImplementedError

    def weight_place(self, output: Any) -> int:
        """Place of the sample weights among the labels."""
        return 1


def check_shape(loss: Any, name: str, array: Any, *allowed: Tuple[int, ...]) -> None:
    """Refuse an array that Gluon would broadcast into something else (T11).

    Raises:
        DataError: Its shape is none of those allowed.
    """
    if tuple(array.shape) not in allowed:
        expected = " or ".join(map(str, dict.fromkeys(allowed)))
        raise DataError(
            f"{type(loss).__name__}: {name}: expected shape {expected}; received {tuple(array.shape)}, which would be "
            "broadcast to other losses in silence (T11). Reshape it"
        )


def check_weight(loss: Any, sample_weight: Any, samples: int) -> None:
    """Refuse sample weights of another shape than (B,) and (B, 1)."""
    if sample_weight is not None:
        check_shape(loss, "sample_weight", sample_weight, (samples,), (samples, 1))


def weighted(F: Any, loss: Any, weight: Optional[float], sample_weight: Any) -> Any:  # noqa: N803
    """Scale losses of shape (B,): by the loss's own weight, and by each sample's, of shape (B,) or (B, 1)."""
    if sample_weight is not None:
        loss = loss * F.reshape(sample_weight, (-1,))
    return loss if weight is None else loss * weight


def number(name: str, value: Any, least: float, most: float = float("inf")) -> float:
    """Check an argument that is a finite number from `least` to `most`.

    Raises:
        ValueError: It is not.
    """
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not least <= value <= most:
        span = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of at least {least:g}"
        raise ValueError(f"{name}: expected a finite number {span}; received {value!r}")
    return float(value)


class ClassWeights:
    """Weights of classes, as arrays on the devices where they are used.

    Args:
        name: What messages call the argument.
        values: As `ClassWeight`.

    Raises:
        ValueError: A weight is no number of at least 0, a key no class number, or there is none.
    """

    def __init__(self, name: str, values: ClassWeight) -> None:
        form = f"{name}: expected a weight for each class, [1, 5] or {{0: 1, 1: 5}}; received {values!r:.100}"
        try:
            pairs = values.items() if isinstance(values, AnyMapping) else enumerate(values)
            by_class = {int(key): float(value) for key, value in pairs}
        except (TypeError, ValueError):
            raise ValueError(form) from None
        if not by_class or min(by_class) < 0 or isinstance(values, str):
            raise ValueError(form)
        self._by_class = {key: number(f"{name}: class {key}", value, 0) for key, value in by_class.items()}
        self._name = name
        self._length = None if isinstance(values, AnyMapping) else len(self._by_class)
        self._arrays: Dict[Any, Any] = {}

    def among(self, classes: int) -> List[float]:
        """The weights of so many classes.

        Raises:
            DataError: The net has another number of outputs.
        """
        highest = max(self._by_class)
        if (self._length or classes) != classes or highest >= classes:
            received = f"{self._length} weights" if self._length else f"a weight for class {highest}"
            raise DataError(f"{self._name}: the net has {classes} outputs; received {received}")
        return [self._by_class.get(one, 1.0) for one in range(classes)]

    def array(self, classes: int, like: Any) -> Any:
        """The weights as an array of shape (classes,), with the device and dtype of `like`."""
        key = (classes, like.context, like.dtype)
        if key not in self._arrays:
            self._arrays[key] = mx.nd.array(self.among(classes), ctx=like.context, dtype=like.dtype)
        return self._arrays[key]


def _widened(output: Any) -> Any:
    """Squares and exponentials leave the range of float16."""
    if isinstance(output, (list, tuple)):
        return [_widened(one) for one in output]
    half = isinstance(output, mx.nd.NDArray) and output.dtype == np.float16
    return output.astype("float32") if half else output


class _ClassLoss(PerSampleLoss, gluon.loss.SoftmaxCrossEntropyLoss):  # type: ignore[misc]
    """Scores against class numbers. As a softmax cross-entropy, the range of its labels is checked (T10).

    `hybrid_forward(F, pred, label, sample_weight, position_weight)` gets weights of shape (B,), and in their place
    weights with the axes of the losses before their mean over a sample.
    """

    def __init__(self, *, class_weight: Optional[ClassWeight] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        name = f"{type(self).__name__}: class_weight"
        self._class_weight = None if class_weight is None else ClassWeights(name, class_weight)
        if class_weight is not None and not self._sparse_label:
            raise ValueError(f"{name}: expected labels that are class numbers, sparse_label=True")

    def forward(self, output: Any, *labels: Any) -> Any:
        """Check the arrays, look up the weights of their classes, and compute the loss."""
        if self._class_weight is not None and not arrays_in([output]):
            raise ValueError(f"{type(self).__name__}: class_weight: call the loss with arrays, not inside a graph")
        return super().forward(output, *labels)

    def cast_labels(self, output: Any, labels: Tuple[Any, ...]) -> Tuple[Any, ...]:
        label, *given = super().cast_labels(output, labels)
        weight = given[0] if given and given[0] is not None else None
        if self._class_weight is None and (weight is None or weight.size == output.shape[0]):
            return (label,) if weight is None else (label, weight)
        axis, target = self._losses_of(output)
        if weight is not None:
            (weight,) = apply_steps([weight_axes(weight, target, axis) or ()], output, [weight])  # type: ignore[arg-type]
        if self._class_weight is not None:
            own = self._class_weight.array(output.shape[axis], output).take(labels[0]).reshape(target)
            weight = own if weight is None else mx.nd.broadcast_mul(own, weight)
        return (label, None, weight)

    def _losses_of(self, pred: Any) -> Tuple[int, Tuple[int, ...]]:
        """Axis of the classes, and shape of the losses before their mean over a sample."""
        axis = self._axis % pred.ndim
        return axis, (*pred.shape[:axis], 1, *pred.shape[axis + 1 :])

    def _mean(self, F: Any, loss: Any, sample_weight: Any, position_weight: Any) -> Any:  # noqa: N803
        if position_weight is not None:
            loss = F.broadcast_mul(loss, position_weight)
        return weighted(F, F.mean(loss, axis=0, exclude=True), self._weight, sample_weight)

    def check_shapes(self, pred: Any, label: Any, sample_weight: Any = None) -> None:
        axis = self._axis % max(1, pred.ndim)
        if pred.ndim < 2 or axis == 0:
            raise DataError(
                f"{type(self).__name__}: scores: expected shape (B, ...) with the classes on axis {self._axis}; "
                f"received {tuple(pred.shape)}"
            )
        if pred.shape[axis] == 1:
            raise one_class(self)
        check_class_axis(self, tuple(pred.shape), tuple(label.shape))
        if self._sparse_label:
            without = tuple(pred.shape[:axis]) + tuple(pred.shape[axis + 1 :])
            kept = tuple(pred.shape[:axis]) + (1,) + tuple(pred.shape[axis + 1 :])
            check_shape(self, "label", label, without, kept)
        else:
            check_shape(self, "label", label, tuple(pred.shape))
        axis, target = self._losses_of(pred)
        if sample_weight is not None and weight_axes(sample_weight, target, axis) is None:
            raise weight_error(self, sample_weight, target, axis)
        if self._class_weight is not None:
            self._class_weight.among(pred.shape[axis])


class WeightedSoftmaxCELoss(_ClassLoss):
    """Softmax cross-entropy whose loss of a position is multiplied by the weight of its class.

    The arguments of Gluon's `SoftmaxCrossEntropyLoss`, and `class_weight`, as `("softmax_ce", {"class_weight": ...})`
    passes it. As in Keras, and unlike PyTorch, losses are divided by the number of samples, not by the sum of weights.

    >>> loss = WeightedSoftmaxCELoss([1, 3])(mx.nd.zeros((2, 2)), mx.nd.array([0, 1]))
    >>> [round(value, 4) for value in loss.asnumpy().tolist()]
    [0.6931, 2.0794]
    """

    def __init__(self, class_weight: ClassWeight, **kwargs: Any) -> None:
        super().__init__(class_weight=class_weight, **kwargs)

    def hybrid_forward(
        self,
        F: Any,  # noqa: N803
        pred: Any,
        label: Any,
        sample_weight: Any = None,
        position_weight: Any = None,
    ) -> Any:
        logs = pred if self._from_logits else F.log_softmax(pred, self._axis)
        loss = -F.pick(logs, label, axis=self._axis, keepdims=True)
        return self._mean(F, loss, sample_weight, position_weight)


class FocalLoss(_ClassLoss):
    """Cross-entropy that counts well-classified samples less: `-(1 - p[y])**gamma * log(p[y])`.

    Lin et al. 2017, arXiv:1708.02002, for any number of classes. `loss(scores, label, sample_weight=None)` takes
    scores before the softmax, of shape (B, C), and class numbers of shape (B,) or (B, 1); with more axes, as for
    segmentation, the loss of a sample is the mean over them. It gives shape (B,). `sample_weight` has shape (B,), or
    the labels' shape for a weight per position.

    Gradients are finite for any gamma, also where a probability rounds to 1: there the formula gives 0 * inf.

    Args:
        gamma: At least 0; 0 is cross-entropy. 2 is the paper's.
        axis: Of the classes.
        class_weight: The paper's alpha: a weight for each class, `[1, 5]` or `{0: 1, 1: 5}`.
        weight: Scales all losses.

    Raises:
        ValueError: `gamma` is no such number, or a weight is below 0.
        DataError: On a call, before anything is computed: a shape is another one.

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

    def hybrid_forward(
        self,
        F: Any,  # noqa: N803
        pred: Any,
        label: Any,
        sample_weight: Any = None,
        position_weight: Any = None,
    ) -> Any:
        chosen = F.pick(F.log_softmax(pred, self._axis), label, axis=self._axis, keepdims=True)
        # the derivative of a power below 1 is inf at 0; expm1 keeps the digits of a small 1 - p
        missing = F.maximum(-F.expm1(chosen), 1e-12)
        loss = -(missing**self._gamma) * chosen
        return self._mean(F, loss, sample_weight, position_weight)


class LabelSmoothing(_ClassLoss):
    """Cross-entropy against labels of which a part is shared out over all classes.

    Szegedy et al. 2015, arXiv:1512.00567: the target is `(1 - epsilon) * label + epsilon / C`, as
    `mxkit.data.smooth_labels` makes it, with no array of them. `loss(scores, label, sample_weight=None)` takes scores
    before the softmax of shape (B, C), and class numbers of shape (B,) or (B, 1); further axes are averaged. It
    gives shape (B,). `sample_weight` has shape (B,), or the labels' shape for a weight per position.

    Args:
        epsilon: The part, from 0 to 1.
        sparse_label: False: labels are soft already, of the scores' shape, as mixup gives them: the soft
            cross-entropy, smoothed further unless epsilon is 0.
        axis: Of the classes.
        class_weight: A weight for each class, `[1, 5]` or `{0: 1, 1: 5}`, which multiplies the loss of its samples.
        weight: Scales all losses.

    Raises:
        ValueError: `epsilon` is out of range, or a weight is below 0.
        DataError: On a call, before anything is computed: a shape is another one.

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

    def hybrid_forward(
        self,
        F: Any,  # noqa: N803
        pred: Any,
        label: Any,
        sample_weight: Any = None,
        position_weight: Any = None,
    ) -> Any:
        logs = F.log_softmax(pred, self._axis)
        if self._sparse_label:
            hard = F.pick(logs, label, axis=self._axis, keepdims=True)
        else:
            hard = F.sum(logs * label, axis=self._axis, keepdims=True)
        loss = (self._epsilon - 1) * hard - self._epsilon * F.mean(logs, axis=self._axis, keepdims=True)
        return self._mean(F, loss, sample_weight, position_weight)


class KnowledgeDistillation(PerSampleLoss):
    """What a student net loses against a teacher's scores, and against the labels.

    Hinton et al. 2015, arXiv:1503.02531:
    `(1 - hard_weight) * T**2 * KL(softmax(teacher / T) || softmax(scores / T)) + hard_weight * cross-entropy`.
    `loss(scores, teacher, label, sample_weight=None)` takes scores before the softmax of both nets, (B, C), and class
    numbers of shape (B,) or (B, 1); it gives shape (B,). The teacher gets no gradient. With `mxkit.fit` a batch is
    `(x, (teacher's scores, y))`: `mxkit.predict(teacher, x)` computes them once.

    Args:
        temperature: T, above 0. A higher one tells more of the classes that the teacher thinks unlikely.
        hard_weight: Of the labels, from 0 to 1.
        weight: Scales all losses.

    Raises:
        ValueError: An argument is out of range.
        DataError: On a call, before anything is computed: a shape is another one.

    >>> scores = mx.nd.array([[1, 2, 3]])
    >>> abs(float(KnowledgeDistillation(hard_weight=0)(scores, scores, mx.nd.array([0])).asscalar())) < 1e-6
    True
    """

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
        wanted = F.log_softmax(F.BlockGrad(teacher) / self._temperature)
        apart = F.sum(F.exp(wanted) * (wanted - soft), axis=-1)
        hard = F.pick(F.log_softmax(pred), F.reshape(label, (-1,)), axis=-1)
        loss = (1 - self._hard_weight) * self._temperature**2 * apart - self._hard_weight * hard
        return weighted(F, loss, self._weight, sample_weight)
