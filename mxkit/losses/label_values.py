"""Rules for the values of labels, per loss: Gluon computes with any values."""

from typing import Any, Callable, Dict, Iterator, NamedTuple, Sequence

from mxkit.core import loss_kinds as kinds
from mxkit.core.loss_kinds import class_axis, is_plain, kind_of, labels_of
from mxkit.errors import LabelError
import mxnet as mx
import numpy as np

Check = Callable[["np.ndarray"], "np.ndarray"]
# Allowed deviation from 1 of a sum of probabilities, which float16 and bfloat16 round.
ROUNDED = 1e-2
_SIGNS = "Number the classes -1 and 1: 2 * y - 1"


class Rule(NamedTuple):
    """A condition on the values of labels.

    Attributes:
        expected: Text of the message after "labels must be".
        fits: Returns for each value of an array whether it fits, or for each row.
        way: The way out, as a sentence.
        place: Index of the label array that is checked.
    """

    expected: str
    fits: Check
    way: str
    place: int = 0


def label_rules(loss: Any, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
    """Rules for the labels of a batch; none for a custom loss.

    Args:
        loss: Any loss.
        output: The net's output.
        labels: The arguments of the loss after the output.
    """
    kind, wanted = kind_of(loss), labels_of(loss)
    if kind is None or wanted is None:
        return
    if kind.labels == kinds.CLASS_NUMBERS:
        if isinstance(output, mx.nd.NDArray):  # of several outputs, the one that the loss reads is unknown
            yield from _of_classes(loss, output)
    elif is_plain(loss):
        yield from _RULES[wanted](loss, output, labels)


def _of_classes(loss: Any, output: Any) -> Iterator[Rule]:
    axis = class_axis(loss) % output.ndim
    if labels_of(loss) == kinds.CLASS_NUMBERS:
        way = (
            "SoftmaxCrossEntropyLoss would clip them without an error; number the classes from 0, or give the net more "
            "outputs. Padding may have any label if its weight is 0"
        )
        yield _class_rule(output.shape[axis], way)
    elif is_plain(loss):
        way = "Divide each row by its sum; to give a sample less weight, use sample weights (T121)"
        yield Rule("distributions, at least 0 with the sum 1", _distributions([axis]), way)


def _of_signs(loss: Any, output: Any, labels: Any) -> Iterator[Rule]:
    name, kind = type(loss).__name__, kind_of(loss)
    if kind is not None and kind.outputs == kinds.MARGINS:
        yield Rule(kinds.SIGNS, _is_sign, f"{name} trains nothing for a label of 0. {_SIGNS} (T121)")
    else:
        way = f"{name} takes 0 for half of a class. {_SIGNS}, or pass label_format='binary' (T121)"
        yield Rule(kinds.SIGNS, _is_sign, way)


def _of_taught(loss: Any, output: Any, labels: Any) -> Iterator[Rule]:
    yield Rule("finite teacher's scores", np.isfinite, "Check the teacher's predictions")
    yield _class_rule(output.shape[-1], "Number the classes from 0; a batch is (x, (teacher's scores, y)) (T10)", 1)


def _of_sequences(loss: Any, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
    """CTC: class numbers below the blank, the last class, then -1; each row must be short enough for the steps."""
    steps, classes = output.shape[1 if loss._layout == "NTC" else 0], output.shape[2]
    yield symbol_rule(classes)
    if len(labels) > 1:  # lengths are checked in each batch
        return
    yield Rule(
        "followed only by padding, -1, and at least one per row",
        lambda values: (values[:, 0] >= 0) & ((values[:, 1:] < 0) | (values[:, :-1] >= 0)).all(axis=1),
        "MXNet drops labels after the first -1, and computes a meaningless loss for an empty row (T121)",
    )
    yield Rule(
        f"short enough for {steps} steps: one for each label, and one between two equal labels",
        lambda values: needed_steps(values) <= steps,
        "MXNet gives such a row the loss 0, and trains nothing. Give the net more steps, or leave the row out (T121)",
    )


def _always(expected: str, fits: Check, way: str, place: int = 0) -> Callable[..., Iterator[Rule]]:
    """A rule that depends neither on the loss's arguments nor on the outputs; `{name}` in `way` is the loss."""

    def rules(loss: Any, output: Any, labels: Any) -> Iterator[Rule]:
        yield Rule(expected, fits, way.format(name=type(loss).__name__), place)

    return rules


def _of_distributions(loss: Any, output: Any, labels: Any) -> Iterator[Rule]:
    way = f"{type(loss).__name__} takes a probability for each output; class numbers need 'softmax_ce' (T121)"
    yield Rule("distributions, at least 0 with the sum 1", _distributions(range(output.ndim - 1, 0, -1)), way)


def _of_triples(loss: Any, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
    for place in range(len(labels)):
        yield Rule("finite embeddings", np.isfinite, "Check how they are computed", place)


def _of_mined(loss: Any, output: Any, labels: Any) -> Iterator[Rule]:
    if not isinstance(output, (list, tuple)):
        yield Rule("class numbers, which are whole", _is_whole, f"{type(loss).__name__} compares them (T121)")


def _is_whole(values: "np.ndarray") -> Any:
    return np.isfinite(values) & (values == np.floor(values))


def _is_sign(values: "np.ndarray") -> Any:
    return (values == 1) | (values == -1)


_RULES: Dict[str, Callable[..., Iterator[Rule]]] = {
    kinds.SIGNS: _of_signs,
    kinds.SHARES: _always(
        kinds.SHARES,
        lambda values: (values >= 0) & (values <= 1),
        "{name} has no minimum for others. Class numbers need the loss 'softmax_ce', or a column of 0 and 1 for "
        "each class; divide bytes by 255, and replace labels -1 and 1 by (y + 1) / 2 (T121)",
    ),
    kinds.FINITE: _always(
        "finite numbers", np.isfinite, "Leave such samples out, or give them the weight 0 and a finite label"
    ),
    kinds.COUNTS: _always(
        "finite numbers of at least 0",
        lambda values: np.isfinite(values) & (values >= 0),
        "{name} is for counts; for other numbers take 'l2' or 'huber' (T121)",
    ),
    kinds.DISTRIBUTIONS: _of_distributions,
    kinds.SYMBOLS: _of_sequences,
    kinds.PAIRED: _always(
        kinds.SIGNS,
        _is_sign,
        "{name} takes 1 for a pair of one class and -1 for others; a label of 0 trains nothing (T121)",
        place=1,
    ),
    kinds.TRIPLES: _of_triples,
    kinds.TAUGHT: _of_taught,
    kinds.SAME: _always(
        "1 for a pair of one class, and 0 or -1 for others",
        lambda values: _is_sign(values) | (values == 0),
        "{name} takes a number above 0 for a pair of one class; class numbers become pairs in PairLoader (T121)",
    ),
    kinds.MINED: _of_mined,
}


def _class_rule(classes: int, way: str, place: int = 0) -> Rule:
    expected = f"whole numbers from 0 to {classes - 1}, because the net has {classes} outputs"
    return Rule(expected, lambda values: _is_whole(values) & (values >= 0) & (values < classes), way, place)


def symbol_rule(classes: int) -> Rule:
    """The rule for class numbers under CTC."""
    return Rule(
        f"whole numbers from 0 to {classes - 2}, or -1 for padding, because class {classes - 1} is the blank",
        lambda values: _is_whole(values) & (values >= -1) & (values < classes - 1),
        "Number the symbols from 0, or give the net more outputs (T121)",
    )


def needed_steps(labels: "np.ndarray") -> "np.ndarray":
    """Number of steps that each row of labels needs; -1 is padding.

    >>> needed_steps(np.array([[0, 1, -1], [2, 2, -1]]))
    array([2, 3])
    """
    repeated = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] >= 0)
    return np.asarray((labels >= 0).sum(axis=1) + repeated.sum(axis=1))


def refuse_labels(values: "np.ndarray", rule: Rule) -> None:
    """Refuse labels with wrong values.

    Raises:
        LabelError: There is such a label; the text shows some of them.
    """
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns if NaN is compared
        fits = rule.fits(values)
    if fits.all():
        return
    wrong, per_row = values[~fits], fits.ndim < values.ndim
    received = f"a row of {', '.join(map(str, wrong.reshape(len(wrong), -1)[0][:5].tolist()))}"
    of = f"{(~fits).sum()} of {fits.size} {'rows' if per_row else 'labels'}"
    text = received if per_row else some_values(wrong)
    raise LabelError(f"labels must be {rule.expected}; received {text} in {of}. {rule.way}")


def some_values(values: "np.ndarray") -> str:
    """Up to five different values, for a message."""
    return ", ".join(map(str, sorted(set(values.ravel().tolist()))[:5]))


def _distributions(axes: Sequence[int]) -> Check:
    """Check whether each row is a distribution, along the axis with the most distributions."""

    def fits(values: "np.ndarray") -> "np.ndarray":
        by_axis = [
            ((values >= 0).all(axis=axis) & (abs(values.sum(axis=axis, dtype="float64") - 1) <= ROUNDED))
            for axis in axes
            if axis < values.ndim
        ]
        return np.asarray(max(by_axis, key=lambda rows: rows.mean()))

    return fits
