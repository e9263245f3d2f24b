"""Losses of Gluon for arrays of both kinds, corrected where they have wrong values or gradients.

Most of them have no code for `mx.np`, and the others ignore `batch_axis` there.
"""

import math
from typing import Any, Optional, Sequence, Union

from mxkit.errors import DataError
from mxkit.losses.per_sample import ClassWeight, ClassWeights, EitherKind, number
import mxnet as mx
from mxnet import gluon


class SigmoidBCELoss(EitherKind, gluon.loss.SigmoidBCELoss):  # type: ignore[misc]
    """Gluon's loss with the right gradient at a score of exactly 0; arguments and values are the same (T105).

    Gluon's gradient at 0 is `-label` instead of `0.5 - label`: a last layer that starts at 0 learns nothing from
    samples of class 0, and twice too much from samples of class 1.

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


class LogisticLoss(EitherKind, gluon.loss.LogisticLoss):  # type: ignore[misc]
    """Gluon's loss with the right gradient at a score of exactly 0: see `SigmoidBCELoss`."""

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        return super().hybrid_forward(F, _off_zero(pred), label, sample_weight)


class WeightedSigmoidBCELoss(SigmoidBCELoss):
    """`SigmoidBCELoss` with weights for the two classes, or for label 1 of each output.

    Losses are divided by the number of samples, as in Keras, and not by the sum of the weights, as in PyTorch.

    Args:
        pos_weight: Multiplies the loss of label 1: one number, or one for each output.
        class_weight: Weights of labels 0 and 1: `[1, 5]` or `{0: 1, 1: 5}`. A label between 0 and 1, as from label
            smoothing, gets an interpolated weight.
        arguments: As for Gluon's loss.

    Raises:
        ValueError: A weight is below 0, or `class_weight` has another class than 0 and 1.
        DataError: In a call, `pos_weight` does not have one number per output.

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
            positive = mx.nd.full((1,), self._positive, ctx=pred.ctx, dtype=pred.dtype)
        if self._classes is not None:
            weight = self._classes[0] + (self._classes[1] - self._classes[0]) * label
            sample_weight = weight if sample_weight is None else mx.nd.broadcast_mul(weight, sample_weight)
        return super().forward(pred, label, sample_weight, positive)


class PoissonNLLLoss(EitherKind, gluon.loss.PoissonNLLLoss):  # type: ignore[misc]
    """Gluon's loss with one value per sample, and finite values for a target of 0; the arguments are the same.

    Gluon's loss is one mean over the batch, which cannot be divided by the true number of samples. With
    `compute_full=True` it is NaN for a target of 0 (T120).

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


class CosineEmbeddingLoss(EitherKind, gluon.loss.CosineEmbeddingLoss):  # type: ignore[misc]
    """Gluon's loss with a finite gradient for an embedding of zeros; arguments and values are the same.

    Gluon's gradient is NaN there, while the loss is finite (T106); this one points to the other embedding, or away from
    it. Gluon's loss also creates its constants on the current device and in float32.
    """

    def hybrid_forward(self, F: Any, input1: Any, input2: Any, label: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        cosine = self._cosine_similarity(F, F.reshape_like(input1, input2), input2)
        label = F.reshape(label, (-1, 1))
        different = F.where(label == -1, F.relu(cosine - self._margin), F.zeros_like(cosine))
        loss = F.where(label == 1, 1 - cosine, different)
        loss = loss if sample_weight is None else F.broadcast_mul(loss, sample_weight)
        return loss if self._weight is None else loss * self._weight

    def _cosine_similarity(self, F: Any, x: Any, y: Any, axis: int = -1) -> Any:  # noqa: N803
        squares = [F.sum(F.square(embedding), axis) for embedding in (x, y)]
        lengths = [F.sqrt(square + (square == 0)) for square in squares]
        return F.reshape(F.sum(x * y, axis) / (lengths[0] * lengths[1]), (-1, 1))


def _off_zero(scores: Any) -> Any:
    # MXNet's relu and abs have the gradient 0 at 0, which is wrong for their sum
    return scores + (scores == 0) * 1e-7


def _for_both_kinds(loss: Any) -> Any:
    return type(loss.__name__, (EitherKind, loss), {"__doc__": loss.__doc__, "__module__": __name__})


CTCLoss = _for_both_kinds(gluon.loss.CTCLoss)
HingeLoss = _for_both_kinds(gluon.loss.HingeLoss)
HuberLoss = _for_both_kinds(gluon.loss.HuberLoss)
KLDivLoss = _for_both_kinds(gluon.loss.KLDivLoss)
L1Loss = _for_both_kinds(gluon.loss.L1Loss)
L2Loss = _for_both_kinds(gluon.loss.L2Loss)
SoftmaxCrossEntropyLoss = _for_both_kinds(gluon.loss.SoftmaxCrossEntropyLoss)
SquaredHingeLoss = _for_both_kinds(gluon.loss.SquaredHingeLoss)
TripletLoss = _for_both_kinds(gluon.loss.TripletLoss)
