"""What a net's outputs stand for: classes, two classes in one output, several labels a sample, or quantities."""

from typing import Any, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import squeezed
from mxkit.errors import DataError, LabelError
from mxnet import gluon
import numpy as np

# Losses whose outputs are one score for each class; mxkit's own derive from the first or have these two attributes.
_SOFTMAX = (gluon.loss.SoftmaxCrossEntropyLoss, gluon.loss.KLDivLoss)
# Losses whose outputs are one score for each question of yes or no; the hinges train no probabilities.
_HINGES = (gluon.loss.HingeLoss, gluon.loss.SquaredHingeLoss)
_YES_OR_NO = (gluon.loss.SigmoidBinaryCrossEntropyLoss, gluon.loss.LogisticLoss, *_HINGES)
QUANTITIES = (gluon.loss.L1Loss, gluon.loss.L2Loss, gluon.loss.HuberLoss, gluon.loss.PoissonNLLLoss)
_SEQUENCES = (gluon.loss.CTCLoss,)
_EMBEDDINGS = (gluon.loss.TripletLoss, gluon.loss.CosineEmbeddingLoss)

CLASSES, BINARY, LABELS = "classes", "binary", "labels"
SCORES, PROBABILITIES, LOGS = "scores", "probabilities", "log_probabilities"
FOR_CLASSES = "accuracy, f1, precision, recall, mcc, confusion or cross-entropy"
FORQUANTITIES = "mae, mse, rmse, r2 or pearsonr"


class Task(NamedTuple):
    """What a metric of classes reads in the outputs.

    Attributes:
        kind: CLASSES: the largest of several scores is the class. BINARY: one output tells class 0 from class 1.
            LABELS: each of several outputs is a label that a sample has or has not.
        axis: Of the classes.
        dense: Labels of CLASSES have a value for each class; else they are class numbers.
        threshold: Outputs of BINARY and LABELS above it are class 1.
        outputs: SCORES, PROBABILITIES or LOGS; None where that is not known.
    """

    kind: str
    axis: int = 1
    dense: bool = False
    threshold: float = 0.0
    outputs: Optional[str] = None


def refuse_quantities(name: str, loss: Any) -> None:
    """Refuse a metric of classes for a net whose loss is for quantities, sequences or embeddings.

    Raises:
        DataError: It is; the text names the metrics that fit.
    """
    kind = type(loss).__name__
    if isinstance(loss, QUANTITIES):
        raise DataError(
            f"metric {name!r} is for classes, but {kind} is a loss for quantities, of which none equals its label. "
            f"Use {FORQUANTITIES}"
        )
    if isinstance(loss, _SEQUENCES + _EMBEDDINGS):
        what = "sequences to align" if isinstance(loss, _SEQUENCES) else "embeddings"
        raise DataError(
            f"metric {name!r} is for classes, but under {kind} the net gives {what}. Write a metric of your own: "
            "mxkit.metrics.Mean(function)"
        )


def refuse_classes(name: str, loss: Any) -> None:
    """Refuse a metric of quantities for a net whose loss is for classes: its outputs are scores.

    Raises:
        DataError: It is; the text names the metrics that fit.
    """
    if isinstance(loss, _SOFTMAX + _YES_OR_NO + _SEQUENCES) or hasattr(loss, "_sparse_label"):
        raise DataError(
            f"metric {name!r} is for quantities, but under {type(loss).__name__} the net gives scores of classes, "
            f"whose distance to a label means nothing. Use {FOR_CLASSES}"
        )


def task_of(
    name: str,
    loss: Any,
    output: Any,
    label: Any,
    *,
    threshold: Optional[float] = None,
    axis: Optional[int] = None,
    outputs: Optional[str] = None,
    ignore_label: Optional[float] = None,
) -> Task:
    """Say what outputs and labels mean, from the loss and their shapes.

    Args:
        name: Of the metric, for messages.
        loss: The loss that the net is trained with, or None.
        output: The net's, shape (B, ...).
        label: Of the batch.
        threshold: Stated by the user: outputs above it are class 1.
        axis: Of the classes, stated by the user.
        outputs: SCORES, PROBABILITIES or LOGS, stated by the user.
        ignore_label: A class number that does not count.

    Raises:
        DataError: The shapes do not fit, or mean several things; the text says what to pass.
        LabelError: A label has no such class.
    """
    refuse_quantities(name, loss)
    output_shape, label_shape = tuple(output.shape), tuple(label.shape)
    if isinstance(loss, _YES_OR_NO) or (threshold is not None and not _is_softmax(loss)):
        task = _yes_or_no(name, loss, output_shape, label_shape, threshold, outputs)
    elif _is_softmax(loss):
        task = _of_softmax(name, loss, output_shape, label_shape, threshold, axis, outputs)
    else:
        task = _by_shape(name, output_shape, label_shape, axis, outputs)
    _check_labels(name, task, output_shape, label, ignore_label)
    return task


def _is_softmax(loss: Any) -> bool:
    return isinstance(loss, _SOFTMAX) or hasattr(loss, "_sparse_label")


def _yes_or_no(
    name: str,
    loss: Any,
    output: Tuple[int, ...],
    label: Tuple[int, ...],
    threshold: Optional[float],
    outputs: Optional[str],
) -> Task:
    if squeezed(output) != squeezed(label):
        raise DataError(
            f"metric {name!r}: expected a label for each output, shape {output}; received {label}. One output a sample "
            "takes labels of shape (B,) or (B, 1); several labels a sample need as many outputs"
        )
    if outputs is None and loss is not None:
        given = getattr(loss, "_from_sigmoid", False)
        outputs = None if isinstance(loss, _HINGES) else PROBABILITIES if given else SCORES
    if threshold is None:
        threshold = 0.5 if outputs == PROBABILITIES else 0.0
    single = len(output) == 1 or output[1] == 1 or (len(output) > 2 and output[-1] == 1)
    return Task(BINARY if single else LABELS, threshold=threshold, outputs=outputs)


def _of_softmax(
    name: str,
    loss: Any,
    output: Tuple[int, ...],
    label: Tuple[int, ...],
    threshold: Optional[float],
    axis: Optional[int],
    outputs: Optional[str],
) -> Task:
    kind = type(loss).__name__
    if threshold is not None:
        raise DataError(f"metric {name!r}: under {kind} the class is the largest output; leave threshold out")
    axis = (loss._axis if axis is None else axis) % len(output) if len(output) > 1 else 0
    if not axis:
        raise DataError(f"metric {name!r}: under {kind} expected outputs of shape (B, classes); received {output}")
    dense = not getattr(loss, "_sparse_label", False)
    positions = output[:axis] + output[axis + 1 :]
    if output != label if dense else squeezed(positions) != squeezed(label):
        expected = f"a value for each class, shape {output}" if dense else f"one label a sample, shape {positions}"
        raise DataError(f"metric {name!r}: expected {expected}; received {label}")
    if outputs is None:
        outputs = LOGS if loss._from_logits else SCORES
    return Task(CLASSES, axis, dense, outputs=outputs)


def _by_shape(
    name: str, output: Tuple[int, ...], label: Tuple[int, ...], axis: Optional[int], outputs: Optional[str]
) -> Task:
    """A task without a known loss: several scores against one class number, or it must be said."""
    if all(n == 1 for n in output[1:]):
        raise DataError(
            f"metric {name!r}: the net gives one output a sample, shape {output}, which may be a score or a "
            f"probability: pass loss='sigmoid_bce' (to evaluate too), or say where class 1 begins, ({name!r}, "
            "{'threshold': 0.0}) for scores, 0.5 for probabilities. "
            f"If it is a quantity, use {FORQUANTITIES}"
        )
    axes = sorted({1, len(output) - 1}) if axis is None else [axis % len(output)]
    fitting = [one for one in axes if output[one] > 1 and squeezed(output[:one] + output[one + 1 :]) == squeezed(label)]
    if len(fitting) == 1:
        return Task(CLASSES, fitting[0], outputs=outputs)
    if fitting:
        raise DataError(
            f"metric {name!r}: outputs of shape {output} may have their classes on axis {fitting[0]} or {fitting[1]}: "
            f"pass ({name!r}, {{'axis': {fitting[1]}}})"
        )
    several = ""
    if squeezed(output) == squeezed(label):
        several = (
            ". For several labels a sample pass loss='sigmoid_bce', or "
            f"({name!r}, {{'threshold': 0.0}}) for scores, 0.5 for probabilities; for one-hot labels pass "
            "loss=('softmax_ce', {'sparse_label': False})"
        )
    elif sum(n != 1 for n in label[1:]) == sum(n != 1 for n in output[1:]) and len(output) == 2:
        several = f". For quantities use {FORQUANTITIES}"
    raise DataError(
        f"metric {name!r}: expected one label a sample, shape ({output[0]},); received {label} for outputs of shape "
        f"{output}{several}"
    )


def _check_labels(name: str, task: Task, output: Tuple[int, ...], label: Any, ignore_label: Optional[float]) -> None:
    """Look at the values of a first batch's labels: those of no class would count as wrong, or not at all."""
    found = label.asnumpy()
    found = found.astype(np.float64) if found.dtype.kind != "f" else found
    if ignore_label is not None:
        found = found[found != ignore_label]
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns of comparing NaN
        if task.kind == CLASSES and not task.dense:
            classes = output[task.axis]
            right = (found >= 0) & (found < classes) & (found == np.floor(found))
            expected = f"whole numbers from 0 to {classes - 1}, because the net has {classes} outputs"
        elif task.kind == CLASSES:
            right, expected = found >= 0, "a value of at least 0 for each class"
        elif bool((found < 0).any()):
            right, expected = np.abs(found) == 1, "-1 and 1, or 0 and 1"
        else:
            right, expected = (found >= 0) & (found <= 1), "from 0 to 1, or -1 and 1"
    if not right.all():
        values = ", ".join(f"{value:g}" for value in sorted(set(found[~right].ravel().tolist()))[:5])
        raise LabelError(f"metric {name!r}: labels must be {expected}; received {values}")


def check_form(name: str, output: Any, label: Any) -> None:
    """Refuse labels of quantities that are no value for each output: reshaping them would compare others.

    Raises:
        DataError: The shapes differ by more than axes of length 1.
    """
    shapes: Sequence[Tuple[int, ...]] = (tuple(label.shape), tuple(output.shape))
    if squeezed(shapes[0]) != squeezed(shapes[1]):
        what = "one size" if label.size != output.size else "one shape"
        raise DataError(f"metric {name!r}: expected labels and outputs of {what}; received {shapes[0]} and {shapes[1]}")
