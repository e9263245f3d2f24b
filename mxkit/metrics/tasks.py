"""Infers what a net's outputs are: classes, one output for two classes, several labels, or quantities."""

from typing import Any, NamedTuple, Optional

from mxkit.core import loss_kinds as kinds
from mxkit.core.arrays import Shape, squeezed
from mxkit.core.loss_kinds import class_axis, has_class_numbers, outputs_of, unit_of
from mxkit.errors import DataError, LabelError
import numpy as np

BINARY, LABELS = "binary", "labels"
_FOR_CLASSES = "accuracy, f1, precision, recall, mcc, confusion or cross-entropy"
_FOR_QUANTITIES = "mae, mse, rmse, r2 or pearsonr"


class Task(NamedTuple):
    """How a metric of classes reads the outputs.

    Attributes:
        kind: CLASSES: the largest of several scores is the class. BINARY: one output separates class 0 from class 1.
            LABELS: each of several outputs is a label that a sample has or does not have.
        axis: Axis of the classes.
        dense: Labels of CLASSES have a value for each class; else they are class numbers.
        threshold: Outputs of BINARY and LABELS above it are class 1.
        outputs: SCORES, PROBABILITIES or LOGS; None if it is unknown.
    """

    kind: str
    axis: int = 1
    dense: bool = False
    threshold: float = 0.0
    outputs: Optional[str] = None


def refuse_quantities(name: str, loss: Any) -> None:
    """Refuse a metric of classes for a net whose loss is for quantities, sequences or embeddings.

    Raises:
        DataError: The loss is one of these; the text names the metrics that fit.
    """
    kind, outputs = type(loss).__name__, outputs_of(loss)
    if outputs == kinds.QUANTITIES:
        raise DataError(
            f"metric {name!r} is for classes, but {kind} is a loss for quantities, which never equal their labels. "
            f"Use {_FOR_QUANTITIES}"
        )
    if outputs in (kinds.SEQUENCES, kinds.EMBEDDINGS):
        what = "sequences to align" if outputs == kinds.SEQUENCES else "embeddings"
        raise DataError(
            f"metric {name!r} is for classes, but under {kind} the net gives {what}. Write a metric of your own: "
            "mxkit.metrics.Mean(function)"
        )


def refuse_classes(name: str, loss: Any) -> None:
    """Refuse a metric of quantities for a net whose loss is for classes: its outputs are scores.

    Raises:
        DataError: The loss is for classes; the text names the metrics that fit.
    """
    if outputs_of(loss) in (kinds.CLASSES, kinds.YES_OR_NO, kinds.MARGINS, kinds.SEQUENCES):
        raise DataError(
            f"metric {name!r} is for quantities, but under {type(loss).__name__} the net gives scores of classes: "
            f"their distance to a label means nothing. Use {_FOR_CLASSES}"
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
    """Infer from the loss and the shapes what outputs and labels are.

    Args:
        name: Name of the metric, for messages.
        loss: The loss that the net is trained with, or None.
        output: The net's output, shape (B, ...).
        label: The labels of the batch.
        threshold: Set by the user: outputs above it are class 1.
        axis: Axis of the classes, set by the user.
        outputs: SCORES, PROBABILITIES or LOGS, set by the user.
        ignore_label: A class number that does not count.

    Raises:
        DataError: The shapes do not fit, or are ambiguous; the text says what to pass.
        LabelError: A label is no class.
    """
    refuse_quantities(name, loss)
    shapes, kind = (tuple(output.shape), tuple(label.shape)), outputs_of(loss)
    if kind == kinds.CLASSES:
        task = _of_softmax(name, loss, *shapes, threshold, axis, outputs)
    elif kind in (kinds.YES_OR_NO, kinds.MARGINS) or threshold is not None:
        task = _of_sigmoid(name, loss, *shapes, threshold, outputs)
    else:
        task = _by_shape(name, *shapes, axis, outputs)
    _check_labels(name, task, shapes[0], label, ignore_label)
    return task


def _of_sigmoid(
    name: str, loss: Any, output: Shape, label: Shape, threshold: Optional[float], outputs: Optional[str]
) -> Task:
    if squeezed(output) != squeezed(label):
        raise DataError(
            f"metric {name!r}: expected a label for each output, shape {output}; received {label}. One output per "
            "sample takes labels of shape (B,) or (B, 1); several labels per sample need as many outputs"
        )
    outputs = outputs or unit_of(loss)
    if threshold is None:
        threshold = 0.5 if outputs == kinds.PROBABILITIES else 0.0
    single = len(output) == 1 or output[1] == 1 or (len(output) > 2 and output[-1] == 1)
    return Task(BINARY if single else LABELS, threshold=threshold, outputs=outputs)


def _of_softmax(
    name: str,
    loss: Any,
    output: Shape,
    label: Shape,
    threshold: Optional[float],
    axis: Optional[int],
    outputs: Optional[str],
) -> Task:
    kind = type(loss).__name__
    if threshold is not None:
        raise DataError(f"metric {name!r}: under {kind} the class is the largest output; leave threshold out")
    axis = (class_axis(loss) if axis is None else axis) % len(output) if len(output) > 1 else 0
    if not axis:
        raise DataError(f"metric {name!r}: under {kind} expected outputs of shape (B, classes); received {output}")
    dense = not has_class_numbers(loss)
    positions = output[:axis] + output[axis + 1 :]
    if output != label if dense else squeezed(positions) != squeezed(label):
        expected = f"a value for each class, shape {output}" if dense else f"one label per sample, shape {positions}"
        raise DataError(f"metric {name!r}: expected {expected}; received {label}")
    return Task(kinds.CLASSES, axis, dense, outputs=outputs or unit_of(loss))


def _by_shape(name: str, output: Shape, label: Shape, axis: Optional[int], outputs: Optional[str]) -> Task:
    """The task without a known loss: several scores and one class number, or the user must set it."""
    if all(n == 1 for n in output[1:]):
        raise DataError(
            f"metric {name!r}: the net gives one output per sample, shape {output}, which may be a score or a "
            f"probability: pass loss='sigmoid_bce' (to evaluate too), or a threshold for class 1, ({name!r}, "
            "{'threshold': 0.0}) for scores, 0.5 for probabilities. "
            f"If it is a quantity, use {_FOR_QUANTITIES}"
        )
    axes = sorted({1, len(output) - 1}) if axis is None else [axis % len(output)]
    fitting = [i for i in axes if output[i] > 1 and squeezed(output[:i] + output[i + 1 :]) == squeezed(label)]
    if len(fitting) == 1:
        return Task(kinds.CLASSES, fitting[0], outputs=outputs)
    if fitting:
        raise DataError(
            f"metric {name!r}: outputs of shape {output} may have their classes on axis {fitting[0]} or {fitting[1]}: "
            f"pass ({name!r}, {{'axis': {fitting[1]}}})"
        )
    way = ""
    if squeezed(output) == squeezed(label):
        way = (
            ". For several labels per sample pass loss='sigmoid_bce', or "
            f"({name!r}, {{'threshold': 0.0}}) for scores, 0.5 for probabilities; for one-hot labels pass "
            "loss=('softmax_ce', {'sparse_label': False})"
        )
    elif sum(n != 1 for n in label[1:]) == sum(n != 1 for n in output[1:]) and len(output) == 2:
        way = f". For quantities use {_FOR_QUANTITIES}"
    raise DataError(
        f"metric {name!r}: expected one label per sample, shape ({output[0]},); received {label} for outputs of shape "
        f"{output}{way}"
    )


def _check_labels(name: str, task: Task, output: Shape, label: Any, ignore_label: Optional[float]) -> None:
    """Refuse labels of a first batch that are no class: they would count as wrong, or would not count."""
    host = label.asnumpy()
    host = host.astype(np.float64) if host.dtype.kind != "f" else host
    if ignore_label is not None:
        host = host[host != ignore_label]
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns of comparing NaN
        if task.kind == kinds.CLASSES and not task.dense:
            classes = output[task.axis]
            right = (host >= 0) & (host < classes) & (host == np.floor(host))
            expected = f"whole numbers from 0 to {classes - 1}, because the net has {classes} outputs"
        elif task.kind == kinds.CLASSES:
            right, expected = host >= 0, "a value of at least 0 for each class"
        elif bool((host < 0).any()):
            right, expected = np.abs(host) == 1, "-1 and 1, or 0 and 1"
        else:
            right, expected = (host >= 0) & (host <= 1), "from 0 to 1, or -1 and 1"
    if not right.all():
        values = ", ".join(f"{value:g}" for value in sorted(set(host[~right].ravel().tolist()))[:5])
        raise LabelError(f"metric {name!r}: labels must be {expected}; received {values}")


def check_form(name: str, output: Any, label: Any) -> None:
    """Refuse labels of quantities that are not one value for each output: a reshape would pair the wrong values.

    Raises:
        DataError: The shapes differ by more than axes of length 1.
    """
    if squeezed(label.shape) != squeezed(output.shape):
        what = "one size" if label.size != output.size else "one shape"
        raise DataError(
            f"metric {name!r}: expected labels and outputs of {what}; received {label.shape} and {output.shape}"
        )
