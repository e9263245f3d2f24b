"""Losses by name. Every loss gives one value per sample; the loop divides by the true number of samples."""

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import Plugged, make, split_spec
from mxkit.errors import LossShapeError, unknown_name
from mxkit.losses import either_kind
from mxkit.losses.class_losses import FocalLoss, KnowledgeDistillation, LabelSmoothing, WeightedSoftmaxCELoss
from mxkit.losses.corrected import (
    CosineEmbeddingLoss,
    LogisticLoss,
    PoissonNLLLoss,
    SigmoidBCELoss,
    WeightedSigmoidBCELoss,
)
from mxkit.losses.distances import ContrastiveLoss, TripletLoss
from mxkit.losses.per_sample import ClassWeight
from mxnet import gluon

Loss = Callable[..., Any]
LossSpec = Union[str, Tuple[str, Mapping[str, Any]], Loss]


def softmax_ce(
    axis: int = -1,
    sparse_label: bool = True,
    from_logits: bool = False,
    weight: Optional[float] = None,
    batch_axis: int = 0,
    class_weight: Optional[ClassWeight] = None,
) -> "gluon.loss.SoftmaxCrossEntropyLoss":
    """Gluon's softmax cross-entropy, or with `class_weight` mxkit's `WeightedSoftmaxCELoss`."""
    arguments = {"axis": axis, "sparse_label": sparse_label, "from_logits": from_logits, "weight": weight}
    if class_weight is None:
        return either_kind.SoftmaxCrossEntropyLoss(batch_axis=batch_axis, **arguments)
    return WeightedSoftmaxCELoss(class_weight, batch_axis=batch_axis, **arguments)


def sigmoid_bce(
    from_sigmoid: bool = False,
    weight: Optional[float] = None,
    batch_axis: int = 0,
    class_weight: Optional[ClassWeight] = None,
    pos_weight: Union[None, float, Sequence[float]] = None,
) -> SigmoidBCELoss:
    """`SigmoidBCELoss`, or with weights for classes `WeightedSigmoidBCELoss`."""
    if class_weight is None and pos_weight is None:
        return SigmoidBCELoss(from_sigmoid, weight, batch_axis)
    arguments = {"from_sigmoid": from_sigmoid, "weight": weight, "batch_axis": batch_axis}
    return WeightedSigmoidBCELoss(pos_weight, class_weight, **arguments)


LOSSES: Dict[str, Callable[..., Loss]] = {
    "batch_hard_triplet": TripletLoss,
    "contrastive": ContrastiveLoss,
    "cosine_embedding": CosineEmbeddingLoss,
    "ctc": either_kind.CTCLoss,
    "distillation": KnowledgeDistillation,
    "focal": FocalLoss,
    "hinge": either_kind.HingeLoss,
    "huber": either_kind.HuberLoss,
    "kl_div": either_kind.KLDivLoss,
    "l1": either_kind.L1Loss,
    "l2": either_kind.L2Loss,
    "label_smoothing": LabelSmoothing,
    "logistic": LogisticLoss,
    "poisson_nll": PoissonNLLLoss,
    "sigmoid_bce": sigmoid_bce,
    "softmax_ce": softmax_ce,
    "squared_hinge": either_kind.SquaredHingeLoss,
    "triplet": either_kind.TripletLoss,
}
LOSSES = Plugged("mxkit.losses", LOSSES)


def get_loss(spec: LossSpec) -> Loss:
    """Return the loss of a name, or a loss unchanged.

    A loss by name takes arrays and symbols of `mx.nd` and of `mx.np`, and returns the kind of the net's output.

    Args:
        spec: A name of `LOSSES`, a pair of a name and its arguments, or any callable
            `loss(output, *labels)` that gives shape (B,), which is returned unchanged.

    Raises:
        UnknownNameError: No loss has this name; the message lists all names and the closest ones.
        TypeError: `spec` has another form, is a class, has an argument that the loss does not take, or a `weight` that
            is no number.
        LossShapeError: The loss is Gluon's `PoissonNLLLoss`, which gives one mean per batch.
        ValueError: The sample axis of the loss is not 0.

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
            "PoissonNLLLoss gives one number per batch. It is a mean or a sum already, but a loss must give one value "
            "per sample: take loss='poisson_nll', which has the same arguments (T120)"
        )
    if loss._batch_axis != 0:
        argument = "label_layout='NT'" if isinstance(loss, gluon.loss.CTCLoss) else "batch_axis=0"
        raise ValueError(
            f"{type(loss).__name__}: axis 0 of every array of a batch is the sample axis, but the loss takes axis "
            f"{loss._batch_axis}. Make it with {argument}"
        )
