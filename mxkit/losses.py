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

LOSSES: Dict[str, Callable[..., Loss]] = {
    "batch_hard_triplet": TripletLoss,
    "contrastive": ContrastiveLoss,
    "cosine_embedding": gluon.loss.CosineEmbeddingLoss,
    "ctc": gluon.loss.CTCLoss,
    "distillation": KnowledgeDistillation,
    "focal": FocalLoss,
    "hinge": gluon.loss.HingeLoss,
    "huber": gluon.loss.HuberLoss,
    "kl_div": gluon.loss.KLDivLoss,
    "l1": gluon.loss.L1Loss,
    "l2": gluon.loss.L2Loss,
    "label_smoothing": LabelSmoothing,
    "logistic": gluon.loss.LogisticLoss,
    "sigmoid_bce": gluon.loss.SigmoidBinaryCrossEntropyLoss,
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
