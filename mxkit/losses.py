"""Losses by name. Every loss gives one value per sample: the loop divides by their true number."""

from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

from mxkit.contrastive import ContrastiveLoss, TripletLoss
from mxkit.errors import unknown_name
from mxkit.more_losses import FocalLoss, KnowledgeDistillation, LabelSmoothing
from mxkit.specs import split_spec
from mxnet import gluon

Loss = Callable[..., Any]
LossSpec = Union[str, Tuple[str, Mapping[str, Any]], Loss]
ForwardLoss = Callable[[Any, Tuple[Any, ...], Tuple[Any, ...]], Any]
Forward = Callable[[Any, Tuple[Any, ...], Tuple[Any, ...]], Tuple[Any, Any]]


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

    def hybrid_forward(self, F: Any, pred: Any, label: Any, *weights: Any, **named: Any) -> Any:  # noqa: N803
        return super().hybrid_forward(F, pred if self._from_sigmoid else _off_zero(pred), label, *weights, **named)


class LogisticLoss(gluon.loss.LogisticLoss):  # type: ignore[misc]
    """Gluon's loss, arguments and values, with its gradient mended at a score of exactly 0: see `SigmoidBCELoss`."""

    def hybrid_forward(self, F: Any, pred: Any, label: Any, *weights: Any, **named: Any) -> Any:  # noqa: N803
        return super().hybrid_forward(F, _off_zero(pred), label, *weights, **named)


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
    "sigmoid_bce": SigmoidBCELoss,
    "softmax_ce": gluon.loss.SoftmaxCrossEntropyLoss,
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
        TypeError: `spec` has another form.

    >>> get_loss(("huber", {"rho": 2.0}))
    HuberLoss(batch_axis=0, w=None)
    """
    spec, arguments = split_spec(spec)
    if isinstance(spec, str):
        if spec not in LOSSES:
            raise unknown_name("loss", spec, LOSSES)
        return LOSSES[spec](**arguments)
    if callable(spec):
        return spec
    raise TypeError(f"loss: expected a name, (name, arguments) or a callable; received {spec!r}")


def forward_function(loss: Optional[LossSpec], forward_loss: Optional[ForwardLoss]) -> Tuple[Optional[Loss], Forward]:
    """Return the loss, if there is one, and how a net's output and losses are computed.

    Args:
        loss: As for `get_loss`: called as `loss(net(*inputs), *labels)`.
        forward_loss: In its place, for nets that are called in another way or have several losses:
            `forward_loss(net, inputs, labels)` gives the losses of shape (B,), or a pair of them and the
            output that metrics see.

    Raises:
        ValueError: Both are given, or neither.
    """
    if loss is not None and forward_loss is not None:
        raise ValueError("pass loss=... or forward_loss=..., not both")
    if forward_loss is not None:
        own = forward_loss

        def forward_by_user(net: Any, inputs: Tuple[Any, ...], labels: Tuple[Any, ...]) -> Tuple[Any, Any]:
            found = own(net, inputs, labels)
            losses, output = found if isinstance(found, (tuple, list)) and len(found) == 2 else (found, None)
            return output, losses

        return None, forward_by_user
    if loss is None:
        raise ValueError("pass loss=..., or forward_loss=... for a net that is called in its own way")
    known = get_loss(loss)

    def forward(net: Any, inputs: Tuple[Any, ...], labels: Tuple[Any, ...]) -> Tuple[Any, Any]:
        output = net(*inputs)
        return output, known(output, *labels)

    return known, forward
