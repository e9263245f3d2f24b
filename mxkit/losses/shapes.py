"""Converts labels and sample weights to the shape and dtype that a loss of Gluon needs, and refuses wrong shapes."""

from functools import lru_cache
import inspect
from typing import Any, List, Optional, Sequence, Tuple

from mxkit.core import loss_kinds as kinds
from mxkit.core.arrays import squeezed
from mxkit.core.loss_kinds import LossKind, Shape, class_axis, has_class_numbers, is_plain, kind_of
from mxkit.errors import DataError, LabelError
from mxkit.losses.label_values import needed_steps, refuse_labels, symbol_rule
import mxnet as mx
from mxnet import gluon
import numpy as np

# A conversion of one array: ("cast", dtype), ("reshape", shape), ("expand", axis), or ("like", None), a reshape to the
# shape of the net's output.
Step = Tuple[str, Any]
Steps = Tuple[Tuple[Step, ...], ...]


def weight_place(loss: Any, output: Any) -> Optional[int]:
    """Index of the sample weights among the labels, or None for a loss that takes none."""
    if not isinstance(loss, gluon.loss.Loss):
        return None
    if hasattr(loss, "check_shapes"):  # mxkit's own
        return int(loss.weight_place(output))
    _, names = _arguments(loss.__class__)
    return names.index("sample_weight") if "sample_weight" in names else None


@lru_cache(maxsize=None)
def _arguments(kind: Any) -> Tuple[int, List[str]]:
    """Number of arrays that a class of losses needs after the net's output, and names of all that it takes."""
    parameters = list(inspect.signature(kind.forward).parameters.values())[2:]  # a subclass may take other arrays
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        parameters = list(inspect.signature(kind.hybrid_forward).parameters.values())[3:]
    return sum(p.default is p.empty for p in parameters), [p.name for p in parameters]


def label_steps(loss: Any, output: Any, labels: Sequence[Any]) -> Steps:
    """Steps that prepare the labels of a batch for a loss of Gluon; () for none.

    Gluon reshapes labels to the outputs' shape, which may pair the wrong elements, and multiplies losses of shape
    (B, 1) by weights of shape (B,), which gives (B, B) (T118, T119).

    Args:
        loss: Any loss. For a custom loss only sample weights are reshaped.
        output: The net's output.
        labels: The arguments of the loss after the output.

    Raises:
        DataError: The loss cannot use a shape, or the output is no array. The text names the expected and the
            received shape.
    """
    kind = kind_of(loss)
    if is_plain(loss) and not isinstance(output, (mx.nd.NDArray, mx.sym.Symbol, list, tuple)):
        keys = f" with the keys {', '.join(map(repr, output))}" if isinstance(output, dict) else ""
        raise _no_array(loss, f"a {type(output).__name__}{keys}")
    if kind is None or hasattr(loss, "check_shapes"):
        return ()
    if is_plain(loss):
        least, names = _arguments(loss.__class__)
        if not least <= len(labels) <= len(names):
            received = f"{len(labels)} arrays" if labels else "none: batches are (x, y)"
            taken = ", ".join(names)
            raise DataError(f"{type(loss).__name__} takes {taken} after the net's output; received {received}")
    if not isinstance(output, mx.nd.NDArray):
        if is_plain(loss) and isinstance(output, (list, tuple)):
            raise _no_array(loss, f"{len(output)} outputs")
        return ()
    steps: List[List[Step]] = [[] for _ in labels]
    place = weight_place(loss, output)
    targets = labels if place is None else labels[:place]
    if is_plain(loss):
        _check_targets(loss, kind, output, targets)
        for number, label in enumerate(targets):
            if label.dtype != output.dtype and (not has_class_numbers(loss) or label.dtype == np.bool_):
                steps[number].append(("cast", np.dtype(output.dtype).name))
    if place is not None and len(labels) > place:
        steps[place] = _weight_steps(loss, kind.labels, output, labels[place])
    return tuple(map(tuple, steps)) if any(steps) else ()


def _no_array(loss: Any, received: str) -> DataError:
    return DataError(
        f"{type(loss).__name__}: the net returns {received}, and this loss takes one array. Choose it in "
        "loss=mxkit.losses.BatchLoss(forward=lambda net, inputs, labels: ...)"
    )


def apply_steps(steps: Steps, output: Any, labels: Sequence[Any]) -> Sequence[Any]:
    """Apply the steps of `label_steps` to labels, which are arrays or symbols."""
    if not steps:
        return labels
    return [_applied(steps_of_label, output, label) for steps_of_label, label in zip(steps, labels)]


def _applied(steps: Sequence[Step], output: Any, label: Any) -> Any:
    for kind, value in steps:
        if kind == "cast":
            label = label.astype(value)
        elif kind == "reshape":
            label = label.reshape(value)
        elif kind == "expand":
            label = label.expand_dims(value)
        else:
            operators = mx.nd if isinstance(label, mx.nd.NDArray) else mx.sym
            label = operators.reshape_like(label, output)
    return label


def weight_axes(weight: Any, target: Shape, axis: Optional[int] = None) -> Optional[List[Step]]:
    """Steps that convert weights to the axes of losses of shape `target`; None for a shape that does not fit.

    Args:
        weight: One weight per sample; or one per loss, where an axis may have length 1; or an array of the labels'
            shape, which equals the shape of the losses up to axes of length 1.
        target: Shape of the losses before their mean over a sample.
        axis: Axis of the classes, which has length 1 in `target`.
    """
    shape = tuple(weight.shape)
    if shape[0] == target[0] and weight.size == target[0]:
        per_sample = (-1,) + (1,) * (len(target) - 1)
        return [] if len(shape) == len(target) else [("reshape", per_sample)]
    if len(shape) == len(target) and all(length in (1, full) for length, full in zip(shape, target)):
        return []
    if axis is not None and shape == target[:axis] + target[axis + 1 :]:
        return [("expand", axis)]
    if axis is None and squeezed(shape) == squeezed(target):
        return [("like", None)]
    return None


def _weight_steps(loss: Any, labels: str, output: Any, weight: Any) -> List[Step]:
    samples, axis = output.shape[0], None
    if labels == kinds.SYMBOLS:
        target: Shape = (weight.shape[0],)  # axis 0 of the outputs may be the steps
    elif labels == kinds.PAIRED:
        target = (samples, 1)
    elif labels == kinds.CLASS_NUMBERS:
        axis = class_axis(loss) % output.ndim
        target = (*output.shape[:axis], 1, *output.shape[axis + 1 :])
    else:
        target = tuple(output.shape)
    steps = weight_axes(weight, target, axis)
    if steps is None:
        raise weight_error(loss, weight, target, axis)
    dtype = np.dtype(output.dtype).name
    return steps if weight.dtype == output.dtype else [("cast", dtype), *steps]


def weight_error(loss: Any, weight: Any, target: Shape, axis: Optional[int]) -> DataError:
    """The error for sample weights whose shape does not fit."""
    forms = [f"({target[0]},)", f"({target[0]}, 1)"]
    positions = target if axis is None else target[:axis] + target[axis + 1 :]
    if squeezed(positions) != target[:1]:
        forms.append(f"{positions} for a weight per position")
    return DataError(
        f"{type(loss).__name__}: sample_weight: expected shape {' or '.join(forms)}; received {tuple(weight.shape)}. "
        "Reshape the weights (T118)"
    )


def _check_targets(loss: Any, kind: LossKind, output: Any, labels: Sequence[Any]) -> None:
    """Refuse labels that the loss would reshape or broadcast to pairs of wrong elements."""
    name, scores = type(loss).__name__, tuple(output.shape)
    shape = tuple(labels[0].shape)
    if kind.labels == kinds.CLASS_NUMBERS:
        check_classes(loss, scores, shape)
    elif kind.labels == kinds.SYMBOLS:
        _check_sequences(loss, scores, labels)
    elif kind.labels == kinds.DISTRIBUTIONS and shape != scores:
        raise _mismatch(name, scores, shape, "Labels are a probability for each output")
    elif kind.labels == kinds.PAIRED:
        _check_pair(name, scores, [tuple(label.shape) for label in labels])
    elif kind.labels == kinds.TRIPLES:
        for label in labels:
            if not _same(tuple(label.shape), scores):
                raise _mismatch(name, scores, tuple(label.shape), "Positives and negatives are like the net's outputs")
    elif kind.is_elementwise and not _same(shape, scores):
        raise _mismatch(name, scores, shape, _way_out(scores, shape))


def _same(shape: Shape, scores: Shape) -> bool:
    """Whether shapes are equal up to axes of length 1, or one of them is the other one flattened."""
    labels, outputs = squeezed(shape), squeezed(scores)
    flat = min(len(labels), len(outputs)) == 2 and labels[0] == outputs[0] and np.prod(labels) == np.prod(outputs)
    return labels == outputs or bool(flat)


def _mismatch(name: str, scores: Shape, shape: Shape, way: str) -> DataError:
    return DataError(
        f"{name}: labels: expected shape {scores}, which the net's outputs have; received {shape}. {way} (T119)"
    )


def _way_out(scores: Shape, shape: Shape) -> str:
    if np.prod(scores) == np.prod(shape):
        return "The number of elements is the same, the axes differ: transpose one of them; a reshape pairs wrong ones"
    if len(shape) == 1 or squeezed(shape) == shape[:1]:
        return (
            "One label per sample needs a net with one output, Dense(1); class numbers need the loss 'softmax_ce', or "
            "a column of 0 and 1 for each class"
        )
    if len(scores) == 2 and len(shape) == 2:
        return f"For {shape[1]} targets per sample give the net {shape[1]} outputs, Dense({shape[1]})"
    return "Give the net outputs of the labels' shape"


def check_classes(loss: Any, scores: Shape, shape: Shape) -> None:
    """Refuse outputs without classes, and labels without one class number, or one value per class, for each position.

    Args:
        loss: A softmax cross-entropy.
        scores: Shape of the net's outputs.
        shape: Shape of the labels.

    Raises:
        DataError: The shapes do not fit.
    """
    name, axis, is_sparse = type(loss).__name__, class_axis(loss) % max(1, len(scores)), has_class_numbers(loss)
    if len(scores) < 2 or axis == 0:
        raise DataError(
            f"{name}: scores: expected shape (B, ...) with the classes on axis {class_axis(loss)}; received {scores}"
        )
    if scores[axis] == 1:
        raise DataError(
            f"{name}: the net has one output, whose softmax is always 1: the loss is 0 and nothing is trained. For "
            "two classes take the loss 'sigmoid_bce', or a net of 2 outputs (T121)"
        )
    positions = scores[:axis] + scores[axis + 1 :]
    is_number = shape in (positions, (*scores[:axis], 1, *scores[axis + 1 :]))
    if is_sparse:
        _check_class_axis(loss, scores, shape)
    if is_sparse and not is_number:
        way = "Reshape the labels"
        if shape == scores:
            way = "Labels with a column for each class need ('softmax_ce', {'sparse_label': False})"
        raise DataError(
            f"{name}: labels: expected class numbers of shape {positions} for outputs of shape {scores}; received "
            f"{shape}. {way}"
        )
    if not is_sparse and shape != scores:
        way = "Class numbers need sparse_label=True, the default" if is_number else _way_out(scores, shape)
        raise _mismatch(name, scores, shape, way)


def _check_class_axis(loss: Any, scores: Shape, shape: Shape) -> None:
    """Refuse class numbers that fit classes on axis 1, if the loss reads the last axis by default (T124)."""
    if class_axis(loss) != -1 or len(scores) < 3 or shape != (scores[0], *scores[2:]):
        return
    name, last = type(loss).__name__, len(scores) - 1
    if shape != scores[:-1]:
        raise DataError(
            f"{name}: labels: expected class numbers of shape {scores[:-1]} for outputs of shape {scores}; received "
            f"{shape}. Classes on axis 1 need the argument axis=1, like ('softmax_ce', {{'axis': 1}}) (T124)"
        )
    if last > 2:
        raise DataError(
            f"{name}: outputs of shape {scores} may have their classes on axis 1, like those of a convolution, or on "
            f"axis {last}, the default: pass the argument axis=1 or axis={last}, like ('softmax_ce', {{'axis': 1}}) "
            "(T124)"
        )


def _check_pair(name: str, scores: Shape, shapes: Sequence[Shape]) -> None:
    other, label = shapes[0], shapes[1] if len(shapes) > 1 else None
    if len(scores) != 2 or other != scores:
        raise _mismatch(name, scores, other, "Both embeddings have shape (B, D)")
    if label not in ((scores[0],), (scores[0], 1)):
        raise DataError(
            f"{name}: labels: expected (embeddings, same) with same of shape ({scores[0]},), 1 or -1 for each pair; "
            f"received {'nothing' if label is None else label} after the embeddings"
        )


def _check_sequences(loss: Any, scores: Shape, labels: Sequence[Any]) -> None:
    """CTC: outputs (B, T, C), labels (B, L), L at most T; lengths (B,)."""
    name, shape = type(loss).__name__, tuple(labels[0].shape)
    if len(scores) != 3:
        raise DataError(
            f"{name}: scores: expected shape {'(B, T, C)' if loss._layout == 'NTC' else '(T, B, C)'}; received {scores}"
        )
    samples, steps = scores[:2] if loss._layout == "NTC" else scores[1::-1]
    if len(shape) != 2 or shape[0] != samples or shape[1] > steps:
        way = ""
        if shape[:1] == (steps,) and steps != samples:
            way = f". Outputs of shape {scores} are read as layout={loss._layout!r}"
        raise DataError(
            f"{name}: labels: expected shape ({samples}, L) with L at most the {steps} steps of the outputs; received "
            f"{shape}{way}"
        )
    # checked in every batch: if values are too large, MXNet reads past its arrays, and crashes or hangs
    symbols = labels[0].asnumpy()
    refuse_labels(symbols, symbol_rule(scores[2]))
    lengths: List[Any] = []
    for which, array, most in zip(("pred_lengths", "label_lengths"), labels[1:], (steps, shape[1])):
        if tuple(array.shape) != (samples,):
            raise DataError(f"{name}: {which}: expected shape ({samples},); received {tuple(array.shape)}")
        values = array.asnumpy()
        if not ((values >= 1) & (values <= most)).all():
            raise DataError(
                f"{name}: {which}: expected lengths from 1 to {most}; received {values.min()} to {values.max()}. A "
                "batch is (x, (y, lengths of x, lengths of y)) (T121)"
            )
        lengths.append(values)
    if len(lengths) == 2:
        symbols = np.where(np.arange(shape[1]) < lengths[1][:, None], symbols, -1)
    short = needed_steps(symbols) > lengths[0] if lengths else np.zeros(0)
    if short.any():
        raise LabelError(
            f"labels of {short.sum()} of {samples} rows need more steps than pred_lengths: one for each label, and "
            "one between two equal labels. MXNet gives such rows the loss 0, and trains nothing. Leave them out"
        )
