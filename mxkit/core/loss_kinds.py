"""Table of losses: the meaning of a net's outputs and of labels, for losses, metrics and a run's answers."""

from functools import lru_cache
from typing import Any, Dict, NamedTuple, Optional, Tuple

from mxnet import gluon

Shape = Tuple[int, ...]

# Meaning of a net's outputs
CLASSES = "classes"  # one score for each class
YES_OR_NO = "yes or no"  # one score for each label, before a sigmoid
MARGINS = "margins"  # one score for each label, without a probability
QUANTITIES = "quantities"
SEQUENCES = "sequences"  # scores of each step; the loss aligns them
EMBEDDINGS = "embeddings"

# Meaning of labels. The first four have a value for each output.
SIGNS = "-1 or 1"
SHARES = "from 0 to 1"
COUNTS = "at least 0"
FINITE = "finite"
CLASS_NUMBERS = "class numbers"
DISTRIBUTIONS = "a probability for each output"
SYMBOLS = "class numbers, then -1"
PAIRED = "other embeddings, and -1 or 1"
TRIPLES = "positives and negatives"
TAUGHT = "a teacher's scores, and class numbers"
SAME = "whether a pair is of one class"
MINED = "class numbers, from which the loss makes triplets"

# Unit of outputs that express probabilities
SCORES, PROBABILITIES, LOGS = "scores", "probabilities", "log_probabilities"


class LossKind(NamedTuple):
    """A row of the table.

    Attributes:
        outputs: Meaning of outputs: CLASSES, YES_OR_NO, MARGINS, QUANTITIES, SEQUENCES or EMBEDDINGS.
        labels: Meaning of labels: SIGNS, SHARES, ...
    """

    outputs: str
    labels: str

    @property
    def is_elementwise(self) -> bool:
        """Whether labels have the shape of the net's outputs, up to axes of length 1."""
        return self.outputs in (YES_OR_NO, MARGINS, QUANTITIES)


_OF_GLUON: Dict[type, LossKind] = {
    gluon.loss.SoftmaxCrossEntropyLoss: LossKind(CLASSES, CLASS_NUMBERS),
    gluon.loss.KLDivLoss: LossKind(CLASSES, DISTRIBUTIONS),
    gluon.loss.SigmoidBCELoss: LossKind(YES_OR_NO, SHARES),
    gluon.loss.LogisticLoss: LossKind(YES_OR_NO, SIGNS),
    gluon.loss.HingeLoss: LossKind(MARGINS, SIGNS),
    gluon.loss.SquaredHingeLoss: LossKind(MARGINS, SIGNS),
    gluon.loss.L1Loss: LossKind(QUANTITIES, FINITE),
    gluon.loss.L2Loss: LossKind(QUANTITIES, FINITE),
    gluon.loss.HuberLoss: LossKind(QUANTITIES, FINITE),
    gluon.loss.PoissonNLLLoss: LossKind(QUANTITIES, COUNTS),
    gluon.loss.CTCLoss: LossKind(SEQUENCES, SYMBOLS),
    gluon.loss.CosineEmbeddingLoss: LossKind(EMBEDDINGS, PAIRED),
    gluon.loss.TripletLoss: LossKind(EMBEDDINGS, TRIPLES),
}


@lru_cache(maxsize=None)
def _row(kind: Any) -> Optional[LossKind]:
    for base in kind.__mro__:
        row = vars(base).get("loss_kind") or _OF_GLUON.get(base)
        if isinstance(row, LossKind):
            return row
    return None


def kind_of(loss: Any) -> Optional[LossKind]:
    """Row of a loss's class or its nearest base class, or None. A class may set `loss_kind`."""
    return _row(loss.__class__)


def outputs_of(loss: Any) -> Optional[str]:
    """Meaning of the net's outputs for a loss, also for a class that is similar to Gluon's softmax loss."""
    kind = kind_of(loss)
    if kind is None:
        return CLASSES if hasattr(loss, "_sparse_label") else None
    return kind.outputs


def labels_of(loss: Any) -> Optional[str]:
    """Meaning of labels for a loss; it depends on the loss's arguments too."""
    kind = kind_of(loss)
    if kind is None:
        return None
    if kind.labels == CLASS_NUMBERS and not has_class_numbers(loss):
        return DISTRIBUTIONS
    return SHARES if getattr(loss, "_label_format", "") == "binary" else kind.labels


def has_class_numbers(loss: Any) -> bool:
    """Whether labels are class numbers instead of a value for each class."""
    kind = kind_of(loss)
    return bool(getattr(loss, "_sparse_label", kind is not None and kind.labels == TAUGHT))


def class_axis(loss: Any) -> int:
    """Axis of the classes in the net's outputs."""
    return int(getattr(loss, "_axis", -1))


def unit_of(loss: Any) -> Optional[str]:
    """SCORES, PROBABILITIES or LOGS; None if outputs express no probabilities."""
    outputs = outputs_of(loss)
    if outputs == CLASSES:
        return LOGS if getattr(loss, "_from_logits", False) else SCORES
    if outputs == YES_OR_NO:
        return PROBABILITIES if getattr(loss, "_from_sigmoid", False) else SCORES
    return None


def is_plain(loss: Any) -> bool:
    """Whether the forward pass of a loss is code of Gluon or mxkit, not of a user."""
    owners = [kind for kind in type(loss).__mro__ if "hybrid_forward" in vars(kind) or "forward" in vars(kind)]
    return isinstance(loss, gluon.loss.Loss) and owners[0].__module__.startswith(("mxnet.gluon.", "mxkit."))
