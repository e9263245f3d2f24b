"""Losses by name. Every loss gives one value per sample: the loop divides by their true number."""

import math
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import make, split_spec
from mxkit.errors import DataError, LossShapeError, unknown_name
from mxkit.losses.classification import (
    ClassWeight,
    ClassWeights,
    FocalLoss,
    KnowledgeDistillation,
    LabelSmoothing,
    WeightedSoftmaxCELoss,
    number,
)
from mxkit.losses.distances import ContrastiveLoss, TripletLoss
import mxnet as mx
from mxnet import gluon

Loss = Callable[..., Any]
LossSpec = Union[str, Tuple[str, Mapping[str, Any]], Loss]


class SigmoidBCELoss(gluon.loss.SigmoidBCELoss):  # type: ignore[misc]
    """Gluon's loss, arguments and values, with its gradient mended at a score of exactly 0 (T105).

    There Gluon's is `-label`, where `0.5 - label` is right: a last layer that starts at 0 would learn of no sample of
    class 0, and twice as much of those of class 1.

    >>> scores = mx.nd.zeros((1, 1)); scores.attach_grad()
    >>> with mx.autograd.record():
    ...     loss = SigmoidBCELoss()(scores, mx.nd.zeros((1, 1)))
    >>> loss.backward(); scores.grad.asnumpy().tolist()
    [[0.5]]
    """

    def hybrid_forward(
        self,
        F: Any,  # noqa: N803
        pred: Any,
        label: Any,
        sample_weight: Any = None,
        pos_weight: Any = None,
    ) -> Any:
        pred = pred if self._from_sigmoid else _off_zero(pred)
        return super().hybrid_forward(F, pred, label, sample_weight, pos_weight)


class LogisticLoss(gluon.loss.LogisticLoss):  # type: ignore[misc]
    """Gluon's loss, arguments and values, with its gradient mended at a score of exactly 0: see `SigmoidBCELoss`."""

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        return super().hybrid_forward(F, _off_zero(pred), label, sample_weight)


class WeightedSigmoidBCELoss(SigmoidBCELoss):
    """`SigmoidBCELoss` with weights of the two classes, or of label 1 for each output.

    As in Keras, and unlike PyTorch's `weight`, losses are divided by the number of samples, not by the sum of weights.

    Args:
        pos_weight: Multiplies the part of the loss that label 1 has: a number, or one for each output.
        class_weight: Weights of labels 0 and 1: `[1, 5]` or `{0: 1, 1: 5}`. A label between them, as smoothing gives
            it, has a weight between.
        arguments: As for Gluon's loss.

    Raises:
        ValueError: A weight is below 0, or `class_weight` is of other classes than 0 and 1.
        DataError: On a call: `pos_weight` has another length than the net has outputs.

    >>> loss = WeightedSigmoidBCELoss(class_weight={1: 3})(mx.nd.zeros((2, 1)), mx.nd.array([0, 1]))
    >>> [round(value, 4) for value in loss.asnumpy().tolist()]
    [0.6931, 2.0794]
    """

    def __init__(
        self,
        pos_weight: Union[None, float, Sequence[float]] = None,
        class_weight: Optional[ClassWeight] = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._positive = self._by_output = self._classes = None
        if isinstance(pos_weight, (list, tuple)):
            self._by_output = ClassWeights("SigmoidBCELoss: pos_weight", pos_weight)
        elif pos_weight is not None:
            self._positive = number("SigmoidBCELoss: pos_weight", pos_weight, 0)
        if class_weight is not None:
            try:
                self._classes = ClassWeights("SigmoidBCELoss: class_weight", class_weight).among(2)
            except DataError:
                raise ValueError(
                    f"SigmoidBCELoss: class_weight: expected weights of the labels 0 and 1, [1, 5]; received "
                    f"{class_weight!r:.100}. For a weight per output pass pos_weight=[...]"
                ) from None

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute the loss of arrays."""
        if not isinstance(pred, mx.nd.NDArray):
            raise ValueError("SigmoidBCELoss: class_weight, pos_weight: call the loss with arrays, not inside a graph")
        label, positive = label.reshape(pred.shape).astype(pred.dtype, copy=False), None
        if self._by_output is not None:
            positive = self._by_output.array(pred.shape[-1], pred)
        elif self._positive is not None:
            positive = mx.nd.full((1,), self._positive, ctx=pred.context, dtype=pred.dtype)
        if self._classes is not None:
            own = self._classes[0] + (self._classes[1] - self._classes[0]) * label
            sample_weight = own if sample_weight is None else mx.nd.broadcast_mul(own, sample_weight)
        return super().forward(pred, label, sample_weight, positive)


class PoissonNLLLoss(gluon.loss.PoissonNLLLoss):  # type: ignore[misc]
    """Gluon's loss and arguments, with one value per sample, and finite where a target is 0.

    Gluon's is one mean over the batch, which no loop can divide by the true number of samples, and NaN under
    `compute_full=True` where a target is 0 (T120).

    >>> loss = PoissonNLLLoss(compute_full=True)(mx.nd.zeros((2, 1)), mx.nd.array([0, 2]))
    >>> [round(value, 4) for value in loss.asnumpy().tolist()]
    [1.0, 1.6518]
    """

    def hybrid_forward(self, F: Any, pred: Any, target: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        target = F.reshape_like(target, pred)
        loss = F.exp(pred) - target * pred if self._from_logits else pred - target * F.log(pred + 1e-8)
        if self._compute_full:  # Stirling's formula for log(target!)
            above = F.maximum(target, 1)
            loss = loss + (target > 1) * (target * F.log(above) - target + 0.5 * F.log(2 * math.pi * above))
        loss = loss if sample_weight is None else F.broadcast_mul(loss, sample_weight)
        loss = loss if self._weight is None else loss * self._weight
        return F.mean(loss, axis=self._batch_axis, exclude=True)


class CosineEmbeddingLoss(gluon.loss.CosineEmbeddingLoss):  # type: ignore[misc]
    """Gluon's loss, arguments and values, with a finite gradient where an embedding is all zeros.

    There Gluon's is NaN, while the loss looks fine (T106); here it points to the other embedding, or away from it.
    Gluon's also takes its constants from the current device, in float32.
    """

    def hybrid_forward(self, F: Any, input1: Any, input2: Any, label: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        cosine = self._cosine_similarity(F, F.reshape_like(input1, input2), input2)
        label = F.reshape(label, (-1, 1))
        apart = F.where(label == -1, F.relu(cosine - self._margin), F.zeros_like(cosine))
        loss = F.where(label == 1, 1 - cosine, apart)
        loss = loss if sample_weight is None else F.broadcast_mul(loss, sample_weight)
        return loss if self._weight is None else loss * self._weight

    def _cosine_similarity(self, F: Any, x: Any, y: Any, axis: int = -1) -> Any:  # noqa: N803
        lengths = [F.sqrt(squares + (squares == 0)) for squares in (F.sum(F.square(one), axis) for one in (x, y))]
        return F.reshape(F.sum(x * y, axis) / (lengths[0] * lengths[1]), (-1, 1))


def _off_zero(scores: Any) -> Any:
    # MXNet's relu and abs have a slope of 0 at 0, so that those of a loss made of both do not add up
    return scores + (scores == 0) * 1e-7


def softmax_ce(
    axis: int = -1,
    sparse_label: bool = True,
    from_logits: bool = False,
    weight: Optional[float] = None,
    batch_axis: int = 0,
    class_weight: Optional[ClassWeight] = None,
) -> "gluon.loss.SoftmaxCrossEntropyLoss":
    """Gluon's softmax cross-entropy; with `class_weight`, a weight for each class, mxkit's `WeightedSoftmaxCELoss`."""
    given = {"axis": axis, "sparse_label": sparse_label, "from_logits": from_logits, "weight": weight}
    if class_weight is None:
        return gluon.loss.SoftmaxCrossEntropyLoss(batch_axis=batch_axis, **given)
    return WeightedSoftmaxCELoss(class_weight, batch_axis=batch_axis, **given)


def sigmoid_bce(
    from_sigmoid: bool = False,
    weight: Optional[float] = None,
    batch_axis: int = 0,
    class_weight: Optional[ClassWeight] = None,
    pos_weight: Union[None, float, Sequence[float]] = None,
) -> SigmoidBCELoss:
    """Sigmoid cross-entropy; with weights of classes `WeightedSigmoidBCELoss`."""
    if class_weight is None and pos_weight is None:
        return SigmoidBCELoss(from_sigmoid, weight, batch_axis)
    given = {"from_sigmoid": from_sigmoid, "weight": weight, "batch_axis": batch_axis}
    return WeightedSigmoidBCELoss(pos_weight, class_weight, **given)


LOSSES: Dict[str, Callable[..., Loss]] = {
    "batch_hard_triplet": TripletLoss,
    "contrastive": ContrastiveLoss,
    "cosine_embedding": CosineEmbeddingLoss,
    "ctc": gluon.loss.CTCLoss,
    "distillation": KnowledgeDistillation,
    "focal": FocalLoss,
    "hinge": gluon.loss.HingeLoss,
    "huber": gluon.loss.HuberLoss,
    "kl_div": gluon.loss.KLDivLoss,
    "l1": gluon.loss.L1Loss,
    "l2": gluon.loss.L2Loss,
    "label_smoothing": LabelSmoothing,
    "logistic": LogisticLoss,
    "poisson_nll": PoissonNLLLoss,
    "sigmoid_bce": sigmoid_bce,
    "softmax_ce": softmax_ce,
    "squared_hinge": gluon.loss.SquaredHingeLoss,
    "triplet": gluon.loss.TripletLoss,
}


def get_loss(spec: LossSpec) -> Loss:
    """Return the loss that `spec` means.

    Args:
        spec: A name of `LOSSES`, a pair of a name and its arguments, or any callable
            `loss(output, *labels)` that gives shape (B,), which is returned as it is.

    Raises:
        UnknownNameError: No loss has this name; the known ones and the nearest are listed.
        TypeError: `spec` has another form, is a class, has an argument that the loss does not take, or a `weight` that
            is no number.
        LossShapeError: It is Gluon's `PoissonNLLLoss`, which gives one mean for a batch.
        ValueError: The loss takes another axis than 0 for the samples.

    >>> get_loss(("huber", {"rho": 2.0}))
    HuberLoss(batch_axis=0, w=None)
    """
    spec, arguments = split_spec(spec)
    if isinstance(spec, str):
        if spec not in LOSSES:
            raise unknown_name("loss", spec, LOSSES)
        if isinstance(arguments.get("weight"), (list, tuple, dict)):
            raise TypeError(
                f"loss {spec!r}: weight is one number for all samples; received {arguments['weight']!r:.100}. A weight "
                "for each class is class_weight, which softmax_ce, focal, label_smoothing and sigmoid_bce take"
            )
        spec = make("loss", spec, LOSSES[spec], arguments)
    if isinstance(spec, type):
        raise TypeError(f"loss: expected an object; received the class {spec.__name__}: write {spec.__name__}()")
    if isinstance(spec, gluon.loss.Loss):
        _refuse_means(spec)
    if callable(spec):
        return spec
    raise TypeError(f"loss: expected a name, (name, arguments) or a callable; received {spec!r}")


def _refuse_means(loss: Any) -> None:
    if type(loss) is gluon.loss.PoissonNLLLoss:
        raise LossShapeError(
            "PoissonNLLLoss gives one number for a batch. It is a mean or a sum already, and a loss gives one value "
            "per sample: take loss='poisson_nll', which has the same arguments (T120)"
        )
    if loss._batch_axis != 0:
        argument = "label_layout='NT'" if isinstance(loss, gluon.loss.CTCLoss) else "batch_axis=0"
        raise ValueError(
            f"{type(loss).__name__}: axis 0 of every array of a batch is the sample axis, the loss takes axis "
            f"{loss._batch_axis}. Make it with {argument}"
        )
