"""What a loss means: one class for each meaning of a net's outputs and labels. Losses, metrics and answers ask it.

Gluon computes with labels of any shape and value; a meaning says which of them the loss can use.
"""

from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

from mxkit.core.arrays import Shape, squeezed
from mxkit.errors import DataError, LabelError
import mxnet as mx
from mxnet import gluon
import numpy as np

Check = Callable[["np.ndarray"], "np.ndarray"]
Answers = List[Dict[str, Any]]

# Unit of outputs that express probabilities
SCORES, PROBABILITIES, LOGS = "scores", "probabilities", "log_probabilities"
# Ways to read classes from outputs
CLASSES, BINARY, LABELS = "classes", "binary", "labels"
BROADCAST = (
    "Arrays of shape (n, 1) and (n,) broadcast to (n, n) (T11): reshape the labels, labels.reshape(outputs.shape)"
)
# Allowed deviation from 1 of a sum of probabilities, which float16 and bfloat16 round.
ROUNDED = 1e-2
# A net that cannot be traced seems to end in a sigmoid if this many outputs are between 0 and 1.
_SEVERAL = 16
_SIGNS = "-1 or 1"
_NUMBER_SIGNS = "Number the classes -1 and 1: 2 * y - 1"
_FOR_CLASSES = "accuracy, f1, precision, recall, mcc, confusion or cross-entropy"
_FOR_QUANTITIES = "mae, mse, rmse, r2 or pearsonr"


class Rule(NamedTuple):
    """A condition on the values of labels.

    Attributes:
        expected: Text of the message after "labels must be".
        fits: Returns for each value of an array whether it fits, or for each row.
        way: The way out, as a sentence.
        place: Index of the label array that is checked.
        weighed: Whether a label with the weight 0 may have any value.
    """

    expected: str
    fits: Check
    way: str
    place: int = 0
    weighed: bool = False

    def refuse(self, values: "np.ndarray") -> None:
        """Refuse labels with wrong values.

        Raises:
            LabelError: There is such a label; the text shows some of them.
        """
        with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns if NaN is compared
            fits = self.fits(values)
        if fits.all():
            return
        wrong, per_row = values[~fits], fits.ndim < values.ndim
        received = f"a row of {', '.join(map(str, wrong.reshape(len(wrong), -1)[0][:5].tolist()))}"
        of = f"{(~fits).sum()} of {fits.size} {'rows' if per_row else 'labels'}"
        text = received if per_row else some_values(wrong)
        raise LabelError(f"labels must be {self.expected}; received {text} in {of}. {self.way}")


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


class Asked(NamedTuple):
    """What a metric of classes asks: its name, shapes of the outputs and labels, and what its user decided.

    Attributes:
        name: Name of the metric, for messages.
        output: Shape of the net's output.
        label: Shape of the labels.
        threshold: Outputs above it are class 1, or None.
        axis: Axis of the classes, or None.
        outputs: SCORES, PROBABILITIES or LOGS, or None.
    """

    name: str
    output: Shape
    label: Shape
    threshold: Optional[float] = None
    axis: Optional[int] = None
    outputs: Optional[str] = None


class Meaning:
    """What the outputs of a net are under a loss, and which labels the loss can use.

    A class of losses names its meaning in the attribute `meaning`; classes of Gluon are in a table.

    Attributes:
        loss: The loss.
        name: Name of its class.
        is_known: Whether the meaning is known, so that shapes are checked.
        is_plain: Whether the forward pass of the loss is code of Gluon or mxkit, not of a user.
        checks_values: Whether `check_shapes` reads values, too, so that it is due in every batch.
        has_class_numbers: Whether labels are class numbers instead of a value for each class.
        unit: SCORES, PROBABILITIES or LOGS; None if outputs express no probabilities.
    """

    is_known = True
    checks_values = False
    has_class_numbers = False
    unit: Optional[str] = None
    # The rule for labels if there is one; {name} in the way out is the class of the loss.
    rule: Optional[Rule] = None
    # Why a metric does not suit, after its name; empty if it does.
    not_for_classes = ""
    not_for_quantities = ""

    def __init__(self, loss: Any) -> None:
        self.loss, self.name = loss, type(loss).__name__
        self.is_plain = is_plain(loss)

    def check_shapes(self, scores: Shape, labels: Sequence[Any]) -> None:
        """Refuse labels that the loss would reshape or broadcast to pairs of wrong elements (T119).

        Raises:
            DataError: A shape does not fit; the text names the expected and the received one.
        """

    def losses_shape(self, output: Any, weight: Any) -> Tuple[Shape, Optional[int]]:
        """Shape of the losses before their mean over a sample, and the axis of the classes, of length 1 there."""
        return tuple(output.shape), None

    def rules(self, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
        """Rules for the values of a batch's labels."""
        if self.rule is not None:
            yield self.rule._replace(way=self.rule.way.format(name=self.name))

    def faults(self, output: Any, labels: Sequence[Any], last: Callable[[], Optional[str]]) -> Iterator[str]:
        """Texts of warnings about outputs that do not suit the loss.

        Args:
            output: The net's output, an NDArray.
            labels: The labels of the batch.
            last: Returns the name of the last operator of the net; None if it is unknown.

        Raises:
            DataError: The loss takes probabilities, or their logarithms, and the outputs are something else.
        """
        return iter(())

    def task(self, asked: Asked) -> Task:
        """How a metric of classes reads outputs.

        Raises:
            DataError: The metric does not suit the loss, or shapes do not fit or are ambiguous.
        """
        raise DataError(f"metric {asked.name!r} {self.not_for_classes.format(loss=self.name)}")

    def answers(self, rows: "np.ndarray", classes: Sequence[str], loss: str) -> Answers:
        """What outputs say of each sample, as `mxkit.recipe.predictions` returns it.

        Args:
            rows: Outputs, float64.
            classes: Names of the classes; empty if the data has none.
            loss: Name of the loss in the recipe, for messages.
        """
        return [{"values": row.tolist()} for row in rows.reshape(len(rows), -1)]

    def refuse_quantities(self, metric: str) -> None:
        """Refuse a metric of quantities for a net that gives scores: their distance to a label means nothing.

        Raises:
            DataError: The loss is for classes; the text names the metrics that fit.
        """
        if self.not_for_quantities:
            raise DataError(f"metric {metric!r} {self.not_for_quantities.format(loss=self.name)}")

    def _mismatch(self, scores: Shape, shape: Shape, way: str) -> DataError:
        return DataError(
            f"{self.name}: labels: expected shape {scores}, which the net's outputs have; received {shape}. {way} "
            "(T119)"
        )

    def _applied_twice(self, what: str = "the net's outputs") -> str:
        return (
            f"{what} are probabilities, and {self.name} applies a softmax to them again. Take the softmax out of the "
            "net (for a net of Module: load_exported(..., scores=True)); predict returns scores, and .softmax() turns "
            "them into probabilities (T12)"
        )


_NEEDS_QUANTITIES = (
    "is for quantities, but under {loss} the net gives scores of classes: their distance to a label means nothing. "
    f"Use {_FOR_CLASSES}"
)


def _no_classes_in(what: str) -> str:
    return (
        f"is for classes, but under {{loss}} the net gives {what}. Write a metric of your own: "
        "mxkit.metrics.Mean(function)"
    )


class Unknown(Meaning):
    """A user's loss: nothing is known of its labels, and shapes decide what outputs are."""

    is_known = False

    def task(self, asked: Asked) -> Task:
        if asked.threshold is not None:
            return _label_task(asked, asked.outputs)
        return _task_by_shape(asked)

    def answers(self, rows: "np.ndarray", classes: Sequence[str], loss: str) -> Answers:
        rows = _matrix(rows, loss)
        if rows.shape[1] < 2 or len(classes) != rows.shape[1]:
            return Meaning.answers(self, rows, classes, loss)
        are_shares = bool((rows >= 0).all()) and np.allclose(rows.sum(axis=1), 1, atol=1e-3)
        return _largest(np.log(np.maximum(rows, 1e-300)) if are_shares else rows, classes, loss)


class Scores(Meaning):
    """One score for each class; of a user's loss that is similar to Gluon's softmax loss, no more is known."""

    is_known = False
    not_for_quantities = _NEEDS_QUANTITIES

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        self.axis = int(getattr(loss, "_axis", -1))
        self.has_class_numbers = bool(getattr(loss, "_sparse_label", False))
        self.unit = LOGS if getattr(loss, "_from_logits", False) else SCORES

    def task(self, asked: Asked) -> Task:
        name, output, label = asked[:3]
        if asked.threshold is not None:
            raise DataError(f"metric {name!r}: under {self.name} the class is the largest output; leave threshold out")
        axis = (self.axis if asked.axis is None else asked.axis) % len(output) if len(output) > 1 else 0
        if not axis:
            raise DataError(
                f"metric {name!r}: under {self.name} expected outputs of shape (B, classes); received {output}"
            )
        dense, positions = not self.has_class_numbers, output[:axis] + output[axis + 1 :]
        if output != label if dense else squeezed(positions) != squeezed(label):
            values = f"a value for each class, shape {output}" if dense else f"one label per sample, shape {positions}"
            raise DataError(f"metric {name!r}: expected {values}; received {label}")
        return Task(CLASSES, axis, dense, outputs=asked.outputs or self.unit)

    def answers(self, rows: "np.ndarray", classes: Sequence[str], loss: str) -> Answers:
        return _largest(_matrix(rows, loss), classes, loss)


class ClassNumbers(Scores):
    """Softmax cross-entropy: labels are class numbers, or with sparse_label=False a probability for each class."""

    is_known = True

    def check_shapes(self, scores: Shape, labels: Sequence[Any]) -> None:
        shape, axis = tuple(labels[0].shape), self.axis % max(1, len(scores))
        if len(scores) < 2 or axis == 0:
            raise DataError(
                f"{self.name}: scores: expected shape (B, ...) with the classes on axis {self.axis}; received {scores}"
            )
        if scores[axis] == 1:
            raise DataError(
                f"{self.name}: the net has one output, whose softmax is always 1: the loss is 0 and nothing is "
                "trained. For two classes take the loss 'sigmoid_bce', or a net of 2 outputs (T121)"
            )
        positions = scores[:axis] + scores[axis + 1 :]
        is_number = shape in (positions, (*scores[:axis], 1, *scores[axis + 1 :]))
        if self.has_class_numbers:
            self._check_class_axis(scores, shape)
        if self.has_class_numbers and not is_number:
            way = "Reshape the labels"
            if shape == scores:
                way = "Labels with a column for each class need ('softmax_ce', {'sparse_label': False})"
            raise DataError(
                f"{self.name}: labels: expected class numbers of shape {positions} for outputs of shape {scores}; "
                f"received {shape}. {way}"
            )
        if not self.has_class_numbers and shape != scores:
            way = "Class numbers need sparse_label=True, the default" if is_number else _way_out(scores, shape)
            raise self._mismatch(scores, shape, way)

    def _check_class_axis(self, scores: Shape, shape: Shape) -> None:
        """Refuse class numbers that fit classes on axis 1, if the loss reads the last axis by default (T124)."""
        last = len(scores) - 1
        fits_only_last = shape == scores[:-1] and last == 2
        if self.axis == -1 and last > 1 and shape == (scores[0], *scores[2:]) and not fits_only_last:
            raise DataError(
                f"{self.name}: outputs of shape {scores} with labels {shape} may have their classes on axis 1, like a "
                f"convolution's, or on axis {last}, the default: pass axis=1 or axis={last}, like "
                "('softmax_ce', {'axis': 1}) (T124)"
            )

    def losses_shape(self, output: Any, weight: Any) -> Tuple[Shape, Optional[int]]:
        axis = self.axis % output.ndim
        return (*output.shape[:axis], 1, *output.shape[axis + 1 :]), axis

    def rules(self, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
        if not isinstance(output, mx.nd.NDArray):  # of several outputs, the one that the loss reads is unknown
            return
        axis = self.axis % output.ndim
        if self.has_class_numbers:
            way = (
                f"{self.name} would clip them without an error; number the classes from 0, or give the net more "
                "outputs. Padding may have any label if its weight is 0"
            )
            yield _class_rule(output.shape[axis], way)._replace(weighed=self.is_plain)
        elif self.is_plain:
            way = "Divide each row by its sum; to give a sample less weight, use sample weights (T121)"
            yield Rule("distributions, at least 0 with the sum 1", _distributions([axis]), way)

    def faults(self, output: Any, labels: Sequence[Any], last: Callable[[], Optional[str]]) -> Iterator[str]:
        axis, is_logs = self.axis % output.ndim, self.unit == LOGS
        if output.shape[axis] < 2:
            return
        least = 0.0 if is_logs else _least(output[:1])  # below 0 for most nets, which need no further wait
        if least >= 0 and not is_logs:
            least = _least(output)
        if not is_logs and least >= 0 and _is_softmax(output, axis):
            yield self._applied_twice()
        elif least > 0 and last() == "sigmoid":
            yield (
                f"the net ends in a sigmoid, and {self.name} applies a softmax to its outputs, which are then nearly "
                "equal. Take the sigmoid out of the net, or take the loss 'sigmoid_bce' for several labels "
                "(T12)"
            )
        if is_logs and not _is_log_softmax(output, axis, 1e-4):
            yield (
                f"{self.name}(from_logits=True) expects log-probabilities, and the net's outputs are none: "
                "leave from_logits out, or end the net in log_softmax (T12)"
            )


class Divergence(Scores):
    """KLDivLoss: labels are a probability for each output."""

    is_known = True

    def check_shapes(self, scores: Shape, labels: Sequence[Any]) -> None:
        shape = tuple(labels[0].shape)
        if shape != scores:
            raise self._mismatch(scores, shape, "Labels are a probability for each output")

    def rules(self, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
        way = f"{self.name} takes a probability for each output; class numbers need 'softmax_ce' (T121)"
        yield Rule("distributions, at least 0 with the sum 1", _distributions(range(output.ndim - 1, 0, -1)), way)

    def faults(self, output: Any, labels: Sequence[Any], last: Callable[[], Optional[str]]) -> Iterator[str]:
        if self.unit != LOGS:
            if _is_softmax(output, self.axis % output.ndim):
                yield self._applied_twice()
        elif not any(_is_log_softmax(output, axis, ROUNDED) for axis in range(1, output.ndim)):
            raise DataError(
                "KLDivLoss takes log-probabilities, and the net's outputs are none: the loss would have no minimum. "
                "End the net in log_softmax, or pass ('kl_div', {'from_logits': False}) (T121)"
            )


class Taught(Scores):
    """Distillation: labels are a teacher's scores, and class numbers."""

    is_known = True

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        self.has_class_numbers = True

    def rules(self, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
        if not self.is_plain:
            return
        yield Rule("finite teacher's scores", np.isfinite, "Check the teacher's predictions")
        yield _class_rule(output.shape[-1], "Number the classes from 0; a batch is (x, (teacher's scores, y)) (T10)", 1)

    def faults(self, output: Any, labels: Sequence[Any], last: Callable[[], Optional[str]]) -> Iterator[str]:
        for what, scores in (("the net's outputs", output), ("the teacher's scores", labels[0])):
            if _is_softmax(scores, 1):
                yield self._applied_twice(what)


def _is_whole(values: "np.ndarray") -> Any:
    return np.isfinite(values) & (values == np.floor(values))


def _is_sign(values: "np.ndarray") -> Any:
    return (values == 1) | (values == -1)


class _Elementwise(Meaning):
    """Labels have the shape of the net's outputs, up to axes of length 1."""

    def check_shapes(self, scores: Shape, labels: Sequence[Any]) -> None:
        shape = tuple(labels[0].shape)
        if not _same(shape, scores):
            raise self._mismatch(scores, shape, _way_out(scores, shape))


class Margins(_Elementwise):
    """One score for each label, without a probability; labels are -1 and 1."""

    not_for_quantities = _NEEDS_QUANTITIES
    rule = Rule(_SIGNS, _is_sign, f"{{name}} trains nothing for a label of 0. {_NUMBER_SIGNS} (T121)")

    def task(self, asked: Asked) -> Task:
        return _label_task(asked, asked.outputs or self.unit)

    def answers(self, rows: "np.ndarray", classes: Sequence[str], loss: str) -> Answers:
        rows = _matrix(rows, loss)
        if rows.shape[1] == 1:
            names = _names(classes, 2)
            return [{"class": names[int(score > 0)], "score": float(score)} for score in rows[:, 0]]
        names = _names(classes, rows.shape[1])
        return [{"scores": dict(zip(names, row.tolist()))} for row in rows]


class YesOrNo(Margins):
    """One score for each label, before a sigmoid; labels are from 0 to 1, or of LogisticLoss -1 and 1."""

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        self.unit = PROBABILITIES if getattr(loss, "_from_sigmoid", False) else SCORES

    def rules(self, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
        if getattr(self.loss, "_label_format", "binary") == "signed":
            way = f"{self.name} takes 0 for half of a class. {_NUMBER_SIGNS}, or pass label_format='binary' (T121)"
            yield Rule(_SIGNS, _is_sign, way)
            return
        way = (
            f"{self.name} has no minimum for others. Class numbers need the loss 'softmax_ce', or a column of 0 and 1 "
            "for each class; divide bytes by 255, and replace labels -1 and 1 by (y + 1) / 2 (T121)"
        )
        yield Rule("from 0 to 1", lambda values: (values >= 0) & (values <= 1), way)

    def faults(self, output: Any, labels: Sequence[Any], last: Callable[[], Optional[str]]) -> Iterator[str]:
        values = output.asnumpy()
        with np.errstate(invalid="ignore"):
            outside = bool(((values < 0) | (values > 1)).any())
            inside = bool(((values > 0) & (values < 1)).all())
        if self.unit == PROBABILITIES or outside or np.isnan(values).any():
            return
        operator = last()
        if operator == "sigmoid" or (operator is None and inside and values.size >= _SEVERAL):
            yield (
                f"the net's outputs are probabilities, and {self.name} applies a sigmoid to them again. Take the "
                "sigmoid out of the net; predict returns scores, and .sigmoid() turns them into probabilities (T12)"
            )

    def answers(self, rows: "np.ndarray", classes: Sequence[str], loss: str) -> Answers:
        rows = _matrix(rows, loss)
        shares = rows if self.unit == PROBABILITIES else 0.5 * (1 + np.tanh(rows / 2))  # exp would overflow
        if shares.shape[1] == 1:
            names = _names(classes, 2)
            return [{"class": names[int(p > 0.5)], "probability": float(max(p, 1 - p))} for p in shares[:, 0]]
        names = _names(classes, shares.shape[1])
        return [{"probabilities": dict(zip(names, row.tolist()))} for row in shares]


class Quantities(_Elementwise):
    """Outputs and labels are quantities."""

    not_for_classes = (
        f"is for classes, but {{loss}} is a loss for quantities, which never equal their labels. Use {_FOR_QUANTITIES}"
    )

    rule = Rule("finite numbers", np.isfinite, "Leave such samples out, or give them the weight 0 and a finite label")


class Counts(Quantities):
    """PoissonNLLLoss: labels are counts, and outputs expected counts or their logarithms."""

    rule = Rule(
        "finite numbers of at least 0",
        lambda values: np.isfinite(values) & (values >= 0),
        "{name} is for counts; for other numbers take 'l2' or 'huber' (T121)",
    )

    def faults(self, output: Any, labels: Sequence[Any], last: Callable[[], Optional[str]]) -> Iterator[str]:
        if not self.loss._from_logits and _least(output) < 0:
            raise DataError(
                f"{self.name}(from_logits=False) takes expected counts, but the net's smallest output is "
                f"{_least(output):.4g}, with the logarithm NaN. Leave from_logits out, or end the net in softrelu "
                "(T121)"
            )
        return iter(())


class Sequences(Meaning):
    """CTC: scores of each step, which the loss aligns with class numbers, then -1 for padding."""

    checks_values = True
    not_for_classes = _no_classes_in("sequences to align")
    not_for_quantities = _NEEDS_QUANTITIES

    def check_shapes(self, scores: Shape, labels: Sequence[Any]) -> None:
        """Outputs (B, T, C), labels (B, L), L at most T; lengths (B,). Values are checked too, in every batch."""
        name, shape, layout = self.name, tuple(labels[0].shape), self.loss._layout
        if len(scores) != 3:
            raise DataError(
                f"{name}: scores: expected shape {'(B, T, C)' if layout == 'NTC' else '(T, B, C)'}; received {scores}"
            )
        samples, steps = scores[:2] if layout == "NTC" else scores[1::-1]
        if len(shape) != 2 or shape[0] != samples or shape[1] > steps:
            way = ""
            if shape[:1] == (steps,) and steps != samples:
                way = f". Outputs of shape {scores} are read as layout={layout!r}"
            raise DataError(
                f"{name}: labels: expected shape ({samples}, L) with L at most the {steps} steps of the outputs; "
                f"received {shape}{way}"
            )
        # if values are too large, MXNet reads past its arrays, and crashes or hangs
        symbols = labels[0].asnumpy()
        _symbol_rule(scores[2]).refuse(symbols)
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
        short = _needed_steps(symbols) > lengths[0] if lengths else np.zeros(0)
        if short.any():
            raise LabelError(
                f"labels of {short.sum()} of {samples} rows need more steps than pred_lengths: one for each label, and "
                "one between two equal labels. MXNet gives such rows the loss 0, and trains nothing. Leave them out"
            )

    def losses_shape(self, output: Any, weight: Any) -> Tuple[Shape, Optional[int]]:
        return (weight.shape[0],), None  # axis 0 of the outputs may be the steps

    def rules(self, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
        steps, classes = output.shape[1 if self.loss._layout == "NTC" else 0], output.shape[2]
        yield _symbol_rule(classes)
        if len(labels) > 1:  # lengths are checked in each batch
            return
        yield Rule(
            "followed only by padding, -1, and at least one per row",
            lambda values: (values[:, 0] >= 0) & ((values[:, 1:] < 0) | (values[:, :-1] >= 0)).all(axis=1),
            "MXNet drops labels after the first -1, and computes a meaningless loss for an empty row (T121)",
        )
        yield Rule(
            f"short enough for {steps} steps: one for each label, and one between two equal labels",
            lambda values: _needed_steps(values) <= steps,
            "MXNet gives such a row the loss 0, and trains nothing. Give the net more steps, or leave the row out "
            "(T121)",
        )

    def faults(self, output: Any, labels: Sequence[Any], last: Callable[[], Optional[str]]) -> Iterator[str]:
        if _is_softmax(output, 2):
            yield self._applied_twice()

    answers = Unknown.answers


class _Embeddings(Meaning):
    not_for_classes = _no_classes_in("embeddings")


class CosinePairs(_Embeddings):
    """CosineEmbeddingLoss: labels are other embeddings, and -1 or 1."""

    rule = Rule(
        _SIGNS,
        _is_sign,
        "{name} takes 1 for a pair of one class and -1 for others; a label of 0 trains nothing (T121)",
        place=1,
    )

    def check_shapes(self, scores: Shape, labels: Sequence[Any]) -> None:
        other = tuple(labels[0].shape)
        label = tuple(labels[1].shape) if len(labels) > 1 else None
        if len(scores) != 2 or other != scores:
            raise self._mismatch(scores, other, "Both embeddings have shape (B, D)")
        if label not in ((scores[0],), (scores[0], 1)):
            raise DataError(
                f"{self.name}: labels: expected (embeddings, same) with same of shape ({scores[0]},), 1 or -1 for each "
                f"pair; received {'nothing' if label is None else label} after the embeddings"
            )

    def losses_shape(self, output: Any, weight: Any) -> Tuple[Shape, Optional[int]]:
        return (output.shape[0], 1), None


class Triples(_Embeddings):
    """Gluon's TripletLoss: labels are positives and negatives."""

    def check_shapes(self, scores: Shape, labels: Sequence[Any]) -> None:
        for label in labels:
            shape = tuple(label.shape)
            if not _same(shape, scores):
                raise self._mismatch(scores, shape, "Positives and negatives are like the net's outputs")

    def rules(self, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
        for place in range(len(labels)):
            yield Rule("finite embeddings", np.isfinite, "Check how they are computed", place)


class Pairs(_Embeddings):
    """Outputs are two embeddings, and labels say whether a pair is of one class."""

    rule = Rule(
        "1 for a pair of one class, and 0 or -1 for others",
        lambda values: _is_sign(values) | (values == 0),
        "{name} takes a number above 0 for a pair of one class; class numbers become pairs in PairLoader (T121)",
    )


class Mined(_Embeddings):
    """Labels are class numbers, from which the loss makes triplets."""

    def rules(self, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
        if not isinstance(output, (list, tuple)):
            yield Rule("class numbers, which are whole", _is_whole, f"{self.name} compares them (T121)")

    def faults(self, output: Any, labels: Sequence[Any], last: Callable[[], Optional[str]]) -> Iterator[str]:
        _, counts = np.unique(labels[0].asnumpy(), return_counts=True)
        if len(counts) < 2 or counts.max() < 2:
            yield (
                f"{self.name} finds no triplet in a batch of {output.shape[0]} samples of {len(counts)} classes: every "
                "loss is 0 and nothing is trained. Batches need two samples of a class, and two classes"
            )


_OF_GLUON: Dict[type, Type[Meaning]] = {
    gluon.loss.SoftmaxCrossEntropyLoss: ClassNumbers,
    gluon.loss.KLDivLoss: Divergence,
    gluon.loss.SigmoidBCELoss: YesOrNo,
    gluon.loss.LogisticLoss: YesOrNo,
    gluon.loss.HingeLoss: Margins,
    gluon.loss.SquaredHingeLoss: Margins,
    gluon.loss.L1Loss: Quantities,
    gluon.loss.L2Loss: Quantities,
    gluon.loss.HuberLoss: Quantities,
    gluon.loss.PoissonNLLLoss: Counts,
    gluon.loss.CTCLoss: Sequences,
    gluon.loss.CosineEmbeddingLoss: CosinePairs,
    gluon.loss.TripletLoss: Triples,
}


@lru_cache(maxsize=None)
def _meaning_of(kind: Any) -> Optional[Type[Meaning]]:
    for base in kind.__mro__:
        meaning = vars(base).get("meaning") or _OF_GLUON.get(base)
        if isinstance(meaning, type) and issubclass(meaning, Meaning):
            return meaning
    return None


def meaning_of(loss: Any) -> Meaning:
    """The meaning of a loss: that of its class, or of the nearest base class."""
    similar = Scores if hasattr(loss, "_sparse_label") else Unknown
    return (_meaning_of(loss.__class__) or similar)(loss)


def is_plain(loss: Any) -> bool:
    """Whether the forward pass of a loss is code of Gluon or mxkit, not of a user."""
    owners = [kind for kind in type(loss).__mro__ if "hybrid_forward" in vars(kind) or "forward" in vars(kind)]
    return isinstance(loss, gluon.loss.Loss) and owners[0].__module__.startswith(("mxnet.gluon.", "mxkit."))


def way_to_one_per_sample(one: str, several: str, shape: Shape, samples: int) -> str:
    """How to get one value per sample from values of another shape; empty if they are (T4).

    A scalar would count as one sample, and (n, n) as n means (T11).

    Args:
        one: What a value is called in the text.
        several: What the values are called.
        shape: Their shape.
        samples: Number of samples of the batch.
    """
    size = int(np.prod(shape))
    if shape[:1] == (samples,) and size == samples:
        return ""
    if size == 1:
        return f"It is a mean or a sum already: return one {one} per sample, without .mean() or .sum()"
    if shape == (samples, samples):
        return f"{BROADCAST}. If axis 1 is not the samples, average over it: {several}.mean(axis=1)"
    if shape[:1] == (samples,):
        return f"Average over the other axes: {several}.reshape((len({several}), -1)).mean(axis=1)"
    return BROADCAST


def some_values(values: "np.ndarray") -> str:
    """Up to five different values, for a message."""
    return ", ".join(map(str, sorted(set(values.ravel().tolist()))[:5]))


def _same(shape: Shape, scores: Shape) -> bool:
    """Whether shapes are equal up to axes of length 1, or one of them is the other one flattened."""
    labels, outputs = squeezed(shape), squeezed(scores)
    flat = min(len(labels), len(outputs)) == 2 and labels[0] == outputs[0] and np.prod(labels) == np.prod(outputs)
    return labels == outputs or bool(flat)


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


def _class_rule(classes: int, way: str, place: int = 0) -> Rule:
    expected = f"whole numbers from 0 to {classes - 1}, because the net has {classes} outputs"
    return Rule(expected, lambda values: _is_whole(values) & (values >= 0) & (values < classes), way, place)


def _symbol_rule(classes: int) -> Rule:
    return Rule(
        f"whole numbers from 0 to {classes - 2}, or -1 for padding, because class {classes - 1} is the blank",
        lambda values: _is_whole(values) & (values >= -1) & (values < classes - 1),
        "Number the symbols from 0, or give the net more outputs (T121)",
    )


def _needed_steps(labels: "np.ndarray") -> "np.ndarray":
    """Number of steps that CTC needs for each row of labels; -1 is padding.

    >>> _needed_steps(np.array([[0, 1, -1], [2, 2, -1]]))
    array([2, 3])
    """
    repeated = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] >= 0)
    return np.asarray((labels >= 0).sum(axis=1) + repeated.sum(axis=1))


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


def _least(array: Any) -> float:
    return float(array.min().asscalar())


def _is_softmax(output: Any, axis: int) -> bool:
    scores = output.astype("float32", copy=False)
    if scores.shape[axis] < 2:
        return False
    return bool(np.allclose(scores.sum(axis=axis).asnumpy(), 1, atol=1e-4)) and _least(scores) >= 0


def _is_log_softmax(output: Any, axis: int, tolerance: float) -> bool:
    return bool(np.allclose(output.astype("float32", copy=False).exp().sum(axis=axis).asnumpy(), 1, atol=tolerance))


def _label_task(asked: Asked, unit: Optional[str]) -> Task:
    """The task of outputs that are one label each."""
    output = asked.output
    if squeezed(output) != squeezed(asked.label):
        raise DataError(
            f"metric {asked.name!r}: expected a label for each output, shape {output}; received {asked.label}. One "
            "output per sample takes labels of shape (B,) or (B, 1); several labels per sample need as many outputs"
        )
    threshold = asked.threshold
    if threshold is None:
        threshold = 0.5 if unit == PROBABILITIES else 0.0
    single = len(output) == 1 or output[1] == 1 or (len(output) > 2 and output[-1] == 1)
    return Task(BINARY if single else LABELS, threshold=threshold, outputs=unit)


def _task_by_shape(asked: Asked) -> Task:
    """The task without a known loss: several scores and one class number, or the user must set it."""
    name, output, label = asked[:3]
    if all(n == 1 for n in output[1:]):
        raise DataError(
            f"metric {name!r}: the net gives one output per sample, shape {output}, which may be a score or a "
            f"probability: pass loss='sigmoid_bce' (to evaluate too), or a threshold for class 1, ({name!r}, "
            "{'threshold': 0.0}) for scores, 0.5 for probabilities. "
            f"If it is a quantity, use {_FOR_QUANTITIES}"
        )
    axes = sorted({1, len(output) - 1}) if asked.axis is None else [asked.axis % len(output)]
    fitting = [i for i in axes if output[i] > 1 and squeezed(output[:i] + output[i + 1 :]) == squeezed(label)]
    if len(fitting) == 1:
        return Task(CLASSES, fitting[0], outputs=asked.outputs)
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
    raise DataError(
        f"metric {name!r}: expected one label per sample, shape ({output[0]},); received {label} for outputs of shape "
        f"{output}{way}"
    )


def _matrix(rows: "np.ndarray", loss: str) -> "np.ndarray":
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2:
        raise DataError(
            f"the net gives {rows.shape[1:]} per sample under {loss}; expected one value per class. Use mxkit.predict"
        )
    return rows


def _largest(rows: "np.ndarray", classes: Sequence[str], loss: str) -> Answers:
    """The class with the largest score of each row, and its probability."""
    if rows.shape[1] == 1:
        raise DataError(
            f"the net gives one output under {loss}, whose softmax is 1 for every sample. One output for two classes "
            "is trained with sigmoid_bce, a quantity with l2"
        )
    names = _names(classes, rows.shape[1])
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    return [{"class": names[int(row.argmax())], "probability": float(row.max())} for row in shares]


def _names(classes: Sequence[str], count: int) -> List[str]:
    """Name of each output, or its number; all are numbers if there are more names than outputs."""
    known = list(classes) if len(classes) <= count else []
    return [*known, *map(str, range(len(known), count))]
