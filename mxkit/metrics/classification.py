"""Metrics of classes: one of several classes, one output for two classes, or several labels per sample."""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.loss_meanings import BINARY, CLASSES, LABELS, Asked, Task, meaning_of
from mxkit.errors import DataError, LabelError
from mxkit.metrics.metric import Metric, graph_of
from mxkit.metrics.tasks import check_labels
import mxnet as mx
import numpy as np


class ClassMetric(Metric):
    """Base of metrics that read classes from outputs.

    The loss decides how: under softmax cross-entropy the class is the largest output; under "sigmoid_bce", "logistic"
    and the hinge losses an output above the threshold is class 1, and several such outputs are several labels of a
    sample. Without a known loss, several outputs against one class number per sample are classes; anything else is
    refused, with the argument to pass.

    Labels are class numbers of shape (B,) or (B, 1), or (B, ...) if outputs have more axes, as for tokens
    (B, T, classes) and pixels (B, classes, H, W), each of which then counts; 0 and 1, or -1 and 1, for one output;
    (B, labels) for several labels; of the outputs' shape for dense labels, of which the largest is the class.

    Args:
        threshold: Outputs above it are class 1, for nets of one output and of several labels. None takes it from the
            loss: 0 for scores, 0.5 for probabilities.
        axis: Axis of the classes. None takes it from the loss, or from the labels' shape.
        ignore_label: A label that does not count, as for padding; the other labels of the sample count.
        output: As for `Metric`.
        label: As for `Metric`.
        name: As for `Metric`.
    """

    def __init__(
        self,
        *,
        threshold: Optional[float] = None,
        axis: Optional[int] = None,
        ignore_label: Optional[int] = None,
        output: int = 0,
        label: Optional[int] = None,
        name: Optional[str] = None,
    ) -> None:
        self._threshold, self._axis, self.ignore_label = threshold, axis, ignore_label
        self._task: Optional[Task] = None
        self._shapes: Any = None
        super().__init__(output=output, label=label, name=name)

    def state(self) -> Tuple[Any, Dict[str, Any]]:
        numbers, arrays = super().state()
        return {**numbers, "task": None if self._task is None else self._task._asdict()}, arrays

    def load_state(self, numbers: Any, arrays: Mapping[str, Any], devices: Sequence["mx.Context"]) -> None:
        super().load_state(numbers, arrays, devices)
        # a run may resume after the last batch of an epoch, before the figure is computed
        self._task = Task(**numbers["task"]) if numbers.get("task") else None

    def read(self, labels: Sequence[Any], output: Any) -> Tuple[Task, Any, Any]:
        """The task of a batch, and its labels and predictions as flat class numbers, or as 0 and 1."""
        task, label, scores = self._read(labels, output)
        return (task, *_classes(mx.nd, label, scores, task))

    def _read(self, labels: Sequence[Any], output: Any) -> Tuple[Task, Any, Any]:
        """The task, the label and the scores of a batch; the task is determined again if the shapes change."""
        label, scores = self._labelled(labels, output)
        shapes = (label.shape[1:], scores.shape[1:])
        if self._task is None or shapes != self._shapes or label.shape[:1] != scores.shape[:1]:
            self._task, self._shapes = self._task_of(label, scores), shapes
        return self._task, label, scores

    def _flat(self, labels: Sequence[Any], output: Any) -> Tuple[Task, Any, Any, Any, Any]:
        """The task and the scores of a batch; flat labels, flat predictions, and 1 for each label that counts."""
        task, label, scores = self._read(labels, output)
        truth, guess = _classes(mx.nd, label, scores, task)
        if task.dense or self.ignore_label is None:
            return task, scores, truth, guess, mx.nd.ones_like(truth)
        return task, scores, truth, guess, label.reshape((-1,)).astype("float32") != self.ignore_label

    def _task_of(self, label: Any, scores: Any, **decided: Any) -> Task:
        """What outputs and labels are, by the loss, the shapes and what the user `decided`."""
        shapes = tuple(scores.shape), tuple(label.shape)
        asked = Asked(self.name, *shapes, **{"threshold": self._threshold, "axis": self._axis, **decided})
        task = meaning_of(self.loss).task(asked)
        check_labels(self.name, task, scores.shape, label, self.ignore_label)
        return task

    @property
    def _kind(self) -> Optional[str]:
        return None if self._task is None else self._task.kind


class Accuracy(ClassMetric):
    """Share of correct labels: of samples, or of tokens, pixels and labels if a sample has several.

    With several labels per sample each label counts; `SubsetAccuracy` counts samples with all labels correct.
    Arguments are those of `ClassMetric`.
    """

    name = "accuracy"
    counts = True

    def update(self, labels: Sequence[Any], output: Any) -> None:
        _, label, scores = self._read(labels, output)
        self.add_total(self._total(label, scores), self.size_of(label) if self.ignore_label is None else 1)

    def size_of(self, label: Any) -> int:
        """Number of labels of a batch, after the first batch."""
        size: int = label.size
        return size // label.shape[self._task.axis] if self._task is not None and self._task.dense else size

    def _total(self, labels: Any, scores: Any) -> Any:
        if self._task is None:
            self._task = self._task_of(labels, scores)
        return graph_of(_right, self._task, self.ignore_label)(labels, scores)

    def total_of(self, operators: Any, labels: Any, scores: Any) -> Any:
        """Number of correct labels, shape (1,), after the first batch; `operators` is `mx.nd` or `mx.sym`."""
        return _right(operators, labels, scores, self._task)


def _classes(F: Any, labels: Any, scores: Any, task: Any) -> Tuple[Any, Any]:  # noqa: N803
    """Labels and predictions as flat class numbers, or as 0 and 1, float32; `F` is `mx.nd` or `mx.sym`."""
    if task.kind == CLASSES:
        truth = F.argmax(labels, axis=task.axis) if task.dense else labels
        guess = F.argmax(scores, axis=task.axis)
    else:  # labels of -1 and 1 as well as of 0 and 1; soft ones are rounded
        truth, guess = labels > 0.5, scores > task.threshold
    return F.cast(F.reshape(truth, (-1,)), "float32"), F.cast(F.reshape(guess, (-1,)), "float32")


def _right(F: Any, labels: Any, scores: Any, task: Any, ignored: Optional[int] = None) -> Any:  # noqa: N803
    """Number of correct labels; and the number of labels that count if there is a label to ignore."""
    truth, guess = _classes(F, labels, scores, task)
    right = F.broadcast_equal(guess, truth)
    if ignored is None:
        return right.sum()
    counted = F.cast(F.reshape(labels, (-1,)), "float32") != ignored
    return F.concat((right * counted).sum(), counted.sum(), dim=0)


class SubsetAccuracy(ClassMetric):
    """Share of samples with all labels correct; with one label per sample it is the accuracy."""

    name = "subset_accuracy"
    counts = True

    def update(self, labels: Sequence[Any], output: Any) -> None:
        _, scores, truth, guess, counted = self._flat(labels, output)
        samples = scores.shape[0]
        right = 1 - ((truth != guess) * counted).reshape((samples, -1)).max(axis=1)
        labelled = counted.reshape((samples, -1)).max(axis=1)
        self.add_total(mx.nd.concat((right * labelled).sum(), labelled.sum(), dim=0), samples)


class TopK(ClassMetric):
    """Share of samples whose label is among the `k` largest outputs; labels and outputs as for `Accuracy`.

    Args:
        k: At least 1.
        axis: As for `ClassMetric`.
        output: As for `Metric`.
        label: As for `Metric`.
        name: In place of `top_5_accuracy` for a `k` of 5.
    """

    counts = True

    def __init__(
        self,
        k: int = 5,
        *,
        axis: Optional[int] = None,
        output: int = 0,
        label: Optional[int] = None,
        name: Optional[str] = None,
    ) -> None:
        self.k = whole_number(k, "TopK: k")
        super().__init__(axis=axis, output=output, label=label, name=name or f"top_{self.k}_accuracy")

    def update(self, labels: Sequence[Any], output: Any) -> None:
        task, label, scores = self._read(labels, output)
        if task.kind != CLASSES:
            raise DataError(f"metric {self.name!r} needs a score for each of several classes; use 'accuracy'")
        if scores.shape[task.axis] < self.k:
            raise DataError(f"{self.name}: expected at least {self.k} outputs per sample; received {scores.shape}")
        truth = label.argmax(axis=task.axis) if task.dense else label
        rows = mx.nd.moveaxis(scores, task.axis, scores.ndim - 1).reshape((-1, scores.shape[task.axis]))
        truth = truth.astype("float32", copy=False).reshape((-1, 1))
        self.add(mx.nd.broadcast_equal(rows.topk(k=self.k, axis=1), truth).sum(axis=1))


class ConfusionMatrix(ClassMetric):
    """Counts of samples by their label (row) and by the predicted class (column).

    `get` returns the matrix as lists of whole numbers, for a History and for JSON: (classes, classes), for one output
    (2, 2), for several labels (labels, 2, 2), as in scikit-learn.
    """

    name = "confusion"

    def update(self, labels: Sequence[Any], output: Any) -> None:
        task, scores, truth, guess, counted = self._flat(labels, output)
        if task.kind == LABELS:
            truth, guess, counted = _each_label(scores, truth, guess, counted)
            cells = [(1 - truth) * (1 - guess), (1 - truth) * guess, truth * (1 - guess), truth * guess]
            counts = mx.nd.stack(*[(cell * counted).sum(axis=1) for cell in cells], axis=1)
        else:
            classes = _class_count(task, scores)
            truths = truth.one_hot(classes) * counted.reshape((-1, 1))
            counts = mx.nd.dot(truths, guess.one_hot(classes), transpose_a=True)
        self.add_total(mx.nd.concat(counts.reshape((-1,)), counted.sum(), dim=0), truth.size)

    def matrix(self) -> "np.ndarray":
        """The counts, int64 of shape (classes, classes); (0, 0) before the first sample. Waits for the device.

        Raises:
            LabelError: Labels of a batch after the first were out of range, and are in no cell.
        """
        if not self._samples:
            return np.zeros((0, 0), np.int64)
        counts = self.total().astype(np.int64)
        if self._kind == LABELS:
            return counts[:-1].reshape((-1, 2, 2))
        _refuse_lost(self.name, float(counts[:-1].sum()), float(counts[-1]))
        return counts[:-1].reshape((round(len(counts) ** 0.5), -1))

    def get(self) -> Any:
        return self.matrix().tolist()


def _class_count(task: Task, scores: Any) -> int:
    return int(scores.shape[task.axis]) if task.kind == CLASSES else 2


def _each_label(scores: Any, *flat: Any) -> List[Any]:
    """Flat arrays as (K, n) with a row for each of K labels, which are axis 1 of the outputs."""
    samples, labels = scores.shape[:2]
    return [mx.nd.swapaxes(array.reshape((samples, labels, -1)), 0, 1).reshape((labels, -1)) for array in flat]


def _refuse_lost(name: str, counted: float, samples: float) -> None:
    if counted != samples:
        raise LabelError(
            f"metric {name!r}: {samples - counted:g} of {samples:g} labels are no class that the net has an output "
            "for; number the classes from 0"
        )


class _Counted(ClassMetric):
    """A figure from three counts for each class: correct predictions, predictions, and labels."""

    def update(self, labels: Sequence[Any], output: Any) -> None:
        task, scores, truth, guess, counted = self._flat(labels, output)
        if task.kind == LABELS:
            truths, guesses, rows = _each_label(scores, truth, guess, counted)
            sums = [(counts * rows).sum(axis=1) for counts in (truths * guesses, guesses, truths)]
        else:
            classes, rows = _class_count(task, scores), counted.reshape((-1, 1))
            guesses, truths = guess.one_hot(classes) * rows, truth.one_hot(classes) * rows
            sums = [counts.sum(axis=0) for counts in (guesses * truths, guesses, truths)]
        self.add_total(mx.nd.concat(*sums, counted.sum(), dim=0), truth.size)

    def figure(self, total: "np.ndarray") -> Any:
        counts = total[:-1].reshape((3, -1))
        if self._kind not in (LABELS, None):
            _refuse_lost(self.name, counts[2].sum(), total[-1])
        return self.score(*(counts if total[-1] else counts * np.nan))

    def score(self, right: "np.ndarray", guessed: "np.ndarray", occur: "np.ndarray") -> Any:
        """The figure. The arrays count a class's correct predictions, predictions and labels: float64, (classes,).

        All counts are NaN if no label counts, and so is the figure.
        """
        raise NotImplementedError


class F1(_Counted):
    """Harmonic mean of precision and recall.

    Args:
        positive: Class number of the only class that counts. None uses `average`.
        average: "macro": the mean over the classes that occur or are predicted, with equal weights; over all labels if
            a sample has several. "weighted": weighted by how often a class occurs. "micro": from the summed counts of
            all classes. "binary": of class 1. "none": a list with a number for each class. None is "binary" for one
            output, else "macro".
        **kwargs: `threshold`, `axis`, `ignore_label`, `output`, `label` and `name`, as for `ClassMetric`.
    """

    name = "f1"

    def __init__(self, positive: Optional[int] = None, *, average: Optional[str] = None, **kwargs: Any) -> None:
        known = ("binary", "macro", "micro", "weighted", "none")
        if average is not None and average not in known:
            raise ValueError(f"{type(self).__name__}: average: expected {', '.join(known)}; received {average!r}")
        if positive is not None and average not in (None, "binary"):
            raise ValueError(f"{type(self).__name__}: pass positive or average={average!r}, not both")
        self.positive, self.average = positive, average
        super().__init__(**kwargs)

    def _task_of(self, label: Any, scores: Any, **decided: Any) -> Task:
        task = super()._task_of(label, scores, **decided)
        classes = scores.shape[1] if task.kind == LABELS else _class_count(task, scores)
        if self.average == "binary" and (task.kind == LABELS or classes != 2):
            raise DataError(f"metric {self.name!r}: average='binary' needs two classes; the net has {classes}")
        if self.positive is not None and not 0 <= self.positive < classes:
            raise DataError(f"metric {self.name!r}: positive={self.positive}: expected a class from 0 to {classes - 1}")
        return task

    def score(self, right: "np.ndarray", guessed: "np.ndarray", occur: "np.ndarray") -> Any:
        average = self.average or ("binary" if self._kind == BINARY else "macro")
        scores = self.ratio(right, guessed, occur)
        if self.positive is not None or average == "binary":
            return float(scores[1 if self.positive is None else self.positive])
        if average == "micro":
            return float(self.ratio(*(counts.sum(keepdims=True) for counts in (right, guessed, occur)))[0])
        if average == "none":
            return scores.tolist()
        if average == "weighted":
            return float((scores * occur).sum() / occur.sum()) if occur.any() else 0.0
        return float(scores[(guessed + occur != 0) | (self._kind == LABELS)].mean())

    def ratio(self, right: "np.ndarray", guessed: "np.ndarray", occur: "np.ndarray") -> "np.ndarray":
        """The score of each class; 0 for 0 / 0, as in scikit-learn."""
        return _divided(2.0 * right, guessed + occur)


class Precision(F1):
    """Share of the predictions of a class that are correct; arguments as for `F1`."""

    name = "precision"

    def ratio(self, right: "np.ndarray", guessed: "np.ndarray", occur: "np.ndarray") -> "np.ndarray":
        return _divided(right, guessed)


class Recall(F1):
    """Share of the samples of a class that are predicted as that class; arguments as for `F1`."""

    name = "recall"

    def ratio(self, right: "np.ndarray", guessed: "np.ndarray", occur: "np.ndarray") -> "np.ndarray":
        return _divided(right, occur)


def _divided(numerator: "np.ndarray", denominator: "np.ndarray") -> "np.ndarray":
    shares = np.zeros(len(numerator))
    np.divide(numerator, denominator, out=shares, where=denominator != 0)
    return shares


class MCC(_Counted):
    """Matthews correlation coefficient, for two classes or more (Gorodkin 2004), from -1 to 1.

    0.0 if all samples are of one class, or predicted as one, as in scikit-learn.
    """

    name = "mcc"

    def _task_of(self, label: Any, scores: Any, **decided: Any) -> Task:
        task = super()._task_of(label, scores, **decided)
        if task.kind == LABELS:
            raise DataError(f"metric {self.name!r} needs one class per sample; for several labels use 'f1'")
        return task

    def score(self, right: "np.ndarray", guessed: "np.ndarray", occur: "np.ndarray") -> float:
        samples = occur.sum()
        spreads: List[float] = [samples**2 - (counts * counts).sum() for counts in (guessed, occur)]
        if not all(spreads):
            return 0.0
        return float((right.sum() * samples - (guessed * occur).sum()) / (spreads[0] * spreads[1]) ** 0.5)
