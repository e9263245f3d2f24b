"""Losses by name. Every loss gives one value per sample: the loop divides by their true number."""

from typing import Any, Callable, Dict, Mapping, Tuple, Union

from mxkit.errors import unknown_name
from mxkit.specs import split_spec
from mxnet import gluon

Loss = Callable[..., Any]
LossSpec = Union[str, Tuple[str, Mapping[str, Any]], Loss]

LOSSES: Dict[str, Callable[..., Loss]] = {
    "cosine_embedding": gluon.loss.CosineEmbeddingLoss,
    "ctc": gluon.loss.CTCLoss,
    "hinge": gluon.loss.HingeLoss,
    "huber": gluon.loss.HuberLoss,
    "kl_div": gluon.loss.KLDivLoss,
    "l1": gluon.loss.L1Loss,
    "l2": gluon.loss.L2Loss,
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
