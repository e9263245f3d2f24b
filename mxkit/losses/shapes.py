"""Labels and sample weights in the shape and dtype that a loss of Gluon's needs; what does not fit is refused."""

import inspect
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mxkit.core.arrays import squeezed
from mxkit.errors import DataError, LabelError
import mxnet as mx
from mxnet import gluon
import numpy as np

Shape = Tuple[int, ...]
# What is done to one array: ("cast", dtype), ("reshape", shape), ("expand", axis), or ("like", None): reshaped to the
# shape of the net's output.
Step = Tuple[str, Any]
Steps = Tuple[Tuple[Step, ...], ...]

# Losses whose labels have the shape of the net's outputs.
ELEMENTWISE = (
    gluon.loss.L1Loss,
    gluon.loss.L2Loss,
    gluon.loss.HuberLoss,
    gluon.loss.HingeLoss,
    gluon.loss.SquaredHingeLoss,
    gluon.loss.LogisticLoss,
    gluon.loss.SigmoidBCELoss,
    gluon.loss.PoissonNLLLoss,
)
_KINDS = (
    *ELEMENTWISE,
    gluon.loss.SoftmaxCrossEntropyLoss,
    gluon.loss.KLDivLoss,
    gluon.loss.CTCLoss,
    gluon.loss.CosineEmbeddingLoss,
    gluon.loss.TripletLoss,
)


def is_plain(loss: Any) -> bool:
    """Whether a loss computes what the class of Gluon's or mxkit's that it is of computes, and nothing of a user's."""
    owners = [kind for kind in type(loss).__mro__ if "hybrid_forward" in vars(kind) or "forward" in vars(kind)]
    return isinstance(loss, gluon.loss.Loss) and owners[0].__module__.startswith(("mxnet.gluon.", "mxkit."))


def weight_place(loss: Any, output: Any) -> Optional[int]:
    """Place of the sample weights among the labels, or None for a loss that takes none."""
    if not isinstance(loss, gluon.loss.Loss):
        return None
    if hasattr(loss, "check_shapes"):  # mxkit's own
        return int(loss.weight_place(output))
    places = _WEIGHTS.get(type(loss), -1)
    if places == -1:
        names = list(inspect.signature(type(loss).hybrid_forward).parameters)[2:]
        places = _WEIGHTS[type(loss)] = names.index("sample_weight") - 1 if "sample_weight" in names else None
    return places


_WEIGHTS: Dict[type, Optional[int]] = {}


def label_steps(loss: Any, output: Any, labels: Sequence[Any]) -> Steps:
    """Tell what must be done to the labels of a batch before a loss of Gluon's gets them; () for nothing.

    Gluon reshapes labels to the outputs' shape and pairs elements that do not belong together, and multiplies losses
    of shape (B, 1) by weights of shape (B,), which gives (B, B) (T118, T119).

    Args:
        loss: Any loss. One with code of a user's own only gets its sample weights reshaped.
        output: What the net returned.
        labels: What the loss gets after it.

    Raises:
        DataError: A shape has no meaning for this loss. The text names the expected and the received shape.
    """
    if not isinstance(loss, _KINDS) or hasattr(loss, "check_shapes"):
        return ()
    if is_plain(loss):
        _check_count(loss, labels)
    if not isinstance(output, mx.nd.NDArray):
        if is_plain(loss) and isinstance(output, (list, tuple)):
            raise DataError(
                f"{type(loss).__name__}: the net returns {len(output)} outputs, and this loss takes one. Pass "
                "forward_loss=lambda net, inputs, labels: ..., which chooses"
            )
        return ()
    steps: List[List[Step]] = [[] for _ in labels]
    place = weight_place(loss, output)
    targets = labels if place is None else labels[:place]
    if is_plain(loss):
        _check_targets(loss, output, targets)
        if not getattr(loss, "_sparse_label", False):
            for number, label in enumerate(targets):
                if label.dtype != output.dtype:
                    steps[number].append(("cast", np.dtype(output.dtype).name))
    if place is not None and len(labels) > place:
        steps[place] = _weight_steps(loss, output, labels[place])
    return tuple(map(tuple, steps)) if any(steps) else ()


def apply_steps(steps: Steps, output: Any, labels: Sequence[Any]) -> Sequence[Any]:
    """Labels after the steps of `label_steps`; arrays and symbols alike."""
    if not steps:
        return labels
    return [_applied(own, output, label) for own, label in zip(steps, labels)]


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
    """Steps that bring weights to the axes of losses of shape `target`; None where the shape has no meaning.

    Args:
        weight: One for each sample; or of the losses' axes, each of their length or 1; or of the losses' shape but
            for axes of length 1, as the labels have it.
        target: Shape of the losses before their mean over a sample.
        axis: Of the classes, which the losses have with length 1.
    """
    shape = tuple(weight.shape)
    if shape[0] == target[0] and weight.size == target[0]:
        wanted = (-1,) + (1,) * (len(target) - 1)
        return [] if len(shape) == len(target) else [("reshape", wanted)]
    if len(shape) == len(target) and all(own in (1, other) for own, other in zip(shape, target)):
        return []
    if axis is not None and shape == target[:axis] + target[axis + 1 :]:
        return [("expand", axis)]
    if axis is None and squeezed(shape) == squeezed(target):
        return [("like", None)]
    return None


def _weight_steps(loss: Any, output: Any, weight: Any) -> List[Step]:
    samples, axis = output.shape[0], None
    if isinstance(loss, gluon.loss.CTCLoss):
        target: Shape = (weight.shape[0],)  # the outputs may begin with another axis
    elif isinstance(loss, gluon.loss.CosineEmbeddingLoss):
        target = (samples, 1)
    elif isinstance(loss, gluon.loss.SoftmaxCrossEntropyLoss):
        axis = loss._axis % output.ndim
        target = (*output.shape[:axis], 1, *output.shape[axis + 1 :])
    else:
        target = tuple(output.shape)
    steps = weight_axes(weight, target, axis)
    if steps is None:
        raise weight_error(loss, weight, target, axis)
    dtype = np.dtype(output.dtype).name
    return steps if weight.dtype == output.dtype else [("cast", dtype), *steps]


def weight_error(loss: Any, weight: Any, target: Shape, axis: Optional[int]) -> DataError:
    """The error for sample weights whose shape has no meaning."""
    forms = [f"({target[0]},)", f"({target[0]}, 1)"]
    positions = target if axis is None else target[:axis] + target[axis + 1 :]
    if squeezed(positions) != target[:1]:
        forms.append(f"{positions} for a weight per position")
    return DataError(
        f"{type(loss).__name__}: sample_weight: expected shape {' or '.join(forms)}; received {tuple(weight.shape)}. "
        "Reshape the weights (T118)"
    )


def _check_count(loss: Any, labels: Sequence[Any]) -> None:
    if type(loss) not in _COUNTS:
        taken = list(inspect.signature(type(loss).hybrid_forward).parameters.values())[3:]
        _COUNTS[type(loss)] = (sum(one.default is one.empty for one in taken), [one.name for one in taken])
    least, names = _COUNTS[type(loss)]
    if not least <= len(labels) <= len(names):
        received = f"{len(labels)} arrays" if labels else "none: batches are (x, y)"
        raise DataError(f"{type(loss).__name__} takes {', '.join(names)} after the net's output; received {received}")


_COUNTS: Dict[type, Tuple[int, List[str]]] = {}


def _check_targets(loss: Any, output: Any, labels: Sequence[Any]) -> None:
    """Refuse shapes of labels that the loss would reshape or broadcast into something else."""
    name, scores = type(loss).__name__, tuple(output.shape)
    shape = tuple(labels[0].shape)
    if isinstance(loss, gluon.loss.SoftmaxCrossEntropyLoss):
        _check_classes(loss, scores, shape)
    elif isinstance(loss, gluon.loss.CTCLoss):
        _check_sequences(loss, scores, labels)
    elif isinstance(loss, gluon.loss.KLDivLoss):
        if shape != scores:
            raise _mismatch(name, scores, shape, "Labels are a probability for each output")
    elif isinstance(loss, gluon.loss.CosineEmbeddingLoss):
        _check_pair(name, scores, [tuple(label.shape) for label in labels])
    elif isinstance(loss, gluon.loss.TripletLoss):
        for label in labels:
            if not _same(tuple(label.shape), scores):
                raise _mismatch(name, scores, tuple(label.shape), "Positives and negatives are like the net's outputs")
    elif not _same(shape, scores):
        raise _mismatch(name, scores, shape, _way_out(scores, shape))


def _same(shape: Shape, scores: Shape) -> bool:
    """Whether elements pair up: shapes are equal but for axes of length 1, or one is flat where the other is not."""
    own, other = squeezed(shape), squeezed(scores)
    flat = min(len(own), len(other)) == 2 and own[0] == other[0] and np.prod(own) == np.prod(other)
    return own == other or bool(flat)


def _mismatch(name: str, scores: Shape, shape: Shape, way: str) -> DataError:
    return DataError(
        f"{name}: labels: expected shape {scores}, which the net's outputs have; received {shape}. {way} (T119)"
    )


def _way_out(scores: Shape, shape: Shape) -> str:
    if np.prod(scores) == np.prod(shape):
        return "The same number of elements in other places: transpose one of them, a reshape pairs the wrong ones"
    if len(shape) == 1 or squeezed(shape) == shape[:1]:
        return (
            "One label a sample needs a net with one output, Dense(1); class numbers need the loss 'softmax_ce', or "
            "a column of 0 and 1 for each class"
        )
    if len(scores) == 2 and len(shape) == 2:
        return f"For {shape[1]} targets a sample give the net {shape[1]} outputs, Dense({shape[1]})"
    return "Give the net outputs of the labels' shape"


def _check_classes(loss: Any, scores: Shape, shape: Shape) -> None:
    name, axis = type(loss).__name__, loss._axis % max(1, len(scores))
    if len(scores) < 2 or axis == 0:
        raise DataError(
            f"{name}: scores: expected shape (B, ...) with the classes on axis {loss._axis}; received {scores}"
        )
    without, kept = scores[:axis] + scores[axis + 1 :], (*scores[:axis], 1, *scores[axis + 1 :])
    if scores[axis] == 1:
        raise one_class(loss)
    check_class_axis(loss, scores, shape)
    if loss._sparse_label and shape not in (without, kept):
        way = "Reshape the labels"
        if shape == scores:
            way = "Labels of a column for each class need ('softmax_ce', {'sparse_label': False})"
        raise DataError(
            f"{name}: labels: expected class numbers of shape {without} for outputs of shape {scores}; received "
            f"{shape}. {way}"
        )
    if not loss._sparse_label and shape != scores:
        way = (
            "Class numbers need sparse_label=True, the default" if shape in (without, kept) else _way_out(scores, shape)
        )
        raise _mismatch(name, scores, shape, way)


def check_class_axis(loss: Any, scores: Shape, shape: Shape) -> None:
    """Refuse class numbers that fit classes on axis 1, where the loss reads them on the last axis by default (T124).

    Raises:
        DataError: They do.
    """
    if not loss._sparse_label or loss._axis != -1 or len(scores) < 3 or shape != (scores[0], *scores[2:]):
        return
    name, last = type(loss).__name__, len(scores) - 1
    if shape == scores[:-1] and last > 2:
        raise DataError(
            f"{name}: outputs of shape {scores} may have their classes on axis 1, as convolutions give them, or on "
            f"axis {last}, the default: pass the argument axis=1 or axis={last}, like ('softmax_ce', {{'axis': 1}}) "
            "(T124)"
        )
    if shape != scores[:-1]:
        raise DataError(
            f"{name}: labels: expected class numbers of shape {scores[:-1]} for outputs of shape {scores}; received "
            f"{shape}. Classes on axis 1 need the argument axis=1, like ('softmax_ce', {{'axis': 1}}) (T124)"
        )


def one_class(loss: Any) -> DataError:
    """The error for a softmax over one output."""
    return DataError(
        f"{type(loss).__name__}: the net has one output, whose softmax is always 1: the loss is 0 and nothing is "
        "trained. For two classes take the loss 'sigmoid_bce', or a net of 2 outputs (T121)"
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
    # values of every batch: MXNet reads past its arrays where they are too large, which ends the process or hangs it
    found = labels[0].asnumpy()
    refuse_labels(found, *sequence_range(scores[2]))
    limits = []
    for which, lengths, most in zip(("pred_lengths", "label_lengths"), labels[1:], (steps, shape[1])):
        if tuple(lengths.shape) != (samples,):
            raise DataError(f"{name}: {which}: expected shape ({samples},); received {tuple(lengths.shape)}")
        limits.append(lengths.asnumpy())
        if not ((limits[-1] >= 1) & (limits[-1] <= most)).all():
            raise DataError(
                f"{name}: {which}: expected lengths from 1 to {most}; received {limits[-1].min()} to "
                f"{limits[-1].max()}. A batch is (x, (y, lengths of x, lengths of y)) (T121)"
            )
    if limits:
        counted = found if len(limits) == 1 else np.where(np.arange(shape[1]) < limits[1][:, None], found, -1)
        short = needed_steps(counted) > limits[0]
        if short.any():
            raise LabelError(
                f"labels of {short.sum()} of {samples} rows need more steps than pred_lengths: one for each label, and "
                "one between two equal labels. MXNet gives such rows the loss 0, and trains nothing. Leave them out"
            )


def needed_steps(labels: "np.ndarray") -> "np.ndarray":
    """Steps that each row of labels needs at least; -1 is padding.

    >>> needed_steps(np.array([[0, 1, -1], [2, 2, -1]]))
    array([2, 3])
    """
    repeated = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] >= 0)
    needed: np.ndarray = (labels >= 0).sum(axis=1) + repeated.sum(axis=1)
    return needed


def sequence_range(classes: int) -> Tuple[str, Callable[["np.ndarray"], "np.ndarray"], str]:
    """What labels of CTC must be, for `refuse_labels`."""

    def right(found: "np.ndarray") -> "np.ndarray":
        ranged: np.ndarray = np.isfinite(found) & (found == np.floor(found)) & (found >= -1) & (found < classes - 1)
        return ranged

    return (
        f"whole numbers from 0 to {classes - 2}, or -1 for padding, because class {classes - 1} is the blank",
        right,
        "Number the symbols from 0, or give the net more outputs (T121)",
    )


def refuse_labels(found: "np.ndarray", expected: str, right: Callable[["np.ndarray"], "np.ndarray"], way: str) -> None:
    """Refuse labels with wrong values.

    Args:
        found: The labels.
        expected: For the message, after "labels must be".
        right: Tells of each value whether it is; of each row, where it returns fewer.
        way: What to do, a sentence.

    Raises:
        LabelError: There is a wrong one; the text shows some of them.
    """
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns of comparing NaN
        fine = right(found)
    if fine.all():
        return
    wrong, whole = found[~fine], fine.ndim == found.ndim
    some = ", ".join(str(value) for value in sorted(set(wrong.ravel().tolist()))[:5])
    if not whole:
        some = f"a row of {', '.join(str(value) for value in wrong.reshape(len(wrong), -1)[0][:5].tolist())}"
    of = f"{(~fine).sum()} of {fine.size} {'labels' if whole else 'rows'}"
    raise LabelError(f"labels must be {expected}; received {some} in {of}. {way}")
