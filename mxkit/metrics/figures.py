"""Metrics of classes, of the probabilities that a net gives to labels, and of quantities."""

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import Shape, squeezed
from mxkit.core.loss_meanings import BINARY, CLASSES, LABELS, LOGS, PROBABILITIES, SCORES, Asked, Task, meaning_of
from mxkit.errors import DataError, LabelError
from mxkit.metrics.metric import Metric, graph_of
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
        **kwargs: `output`, `label` and `name`, as for `Metric`.
    """

    def __init__(
        self,
        *,
        threshold: Optional[float] = None,
        axis: Optional[int] = None,
        ignore_label: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        self._threshold, self._axis, self.ignore_label = threshold, axis, ignore_label
        self._task: Optional[Task] = None
        self._shapes: Any = None
        super().__init__(**kwargs)

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
            self._task, self._shapes = self.task_of(label, scores), shapes
        return self._task, label, scores

    def _flat(self, labels: Sequence[Any], output: Any) -> Tuple[Task, Any, Any, Any, Any]:
        """The task and the scores of a batch; flat labels, flat predictions, and 1 for each label that counts."""
        task, label, scores = self._read(labels, output)
        truth, guess = _classes(mx.nd, label, scores, task)
        if task.dense or self.ignore_label is None:
            return task, scores, truth, guess, mx.nd.ones_like(truth)
        return task, scores, truth, guess, label.reshape((-1,)).astype("float32") != self.ignore_label

    def task_of(self, label: Any, scores: Any, **decided: Any) -> Task:
        """What outputs and labels are, by the loss, the shapes and what the user `decided`."""
        shapes = tuple(scores.shape), tuple(label.shape)
        asked = Asked(self.name, *shapes, **{"threshold": self._threshold, "axis": self._axis, **decided})
        task = meaning_of(self.loss).task(asked)
        _check_labels(self.name, task, scores.shape, label, self.ignore_label)
        return task

    @property
    def _kind(self) -> Optional[str]:
        return None if self._task is None else self._task.kind


class Accuracy(ClassMetric):
    """Share of correct labels: of samples, or of tokens, pixels and labels if a sample has several.

    With several labels per sample each label counts; `SubsetAccuracy` counts samples with all labels correct.
    Arguments are those of `ClassMetric`.
    """

    name, better = "accuracy", "max"
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
            self._task = self.task_of(labels, scores)
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

    name, better = "subset_accuracy", "max"
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

    counts, better = True, "max"

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
    """Harmonic mean of precision and recall: of one output that of class 1, as MXNet's F1; else the classes' mean.

    Args:
        positive: Class number of the only class that counts. None uses `average`.
        average: "macro": the mean over the classes that occur or are predicted, with equal weights; over all labels if
            a sample has several. "weighted": weighted by how often a class occurs. "micro": from the summed counts of
            all classes. "binary": of class 1. "none": a list with a number for each class. None is "binary" for one
            output, else "macro".
        **kwargs: `threshold`, `axis`, `ignore_label`, `output`, `label` and `name`, as for `ClassMetric`.
    """

    name, better = "f1", "max"

    def __init__(self, positive: Optional[int] = None, *, average: Optional[str] = None, **kwargs: Any) -> None:
        known = ("binary", "macro", "micro", "weighted", "none")
        if average is not None and average not in known:
            raise ValueError(f"{type(self).__name__}: average: expected {', '.join(known)}; received {average!r}")
        if positive is not None and average not in (None, "binary"):
            raise ValueError(f"{type(self).__name__}: pass positive or average={average!r}, not both")
        self.positive, self.average = positive, average
        super().__init__(**kwargs)

    def task_of(self, label: Any, scores: Any, **decided: Any) -> Task:
        task = super().task_of(label, scores, **decided)
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

    name, better = "mcc", "max"

    def task_of(self, label: Any, scores: Any, **decided: Any) -> Task:
        task = super().task_of(label, scores, **decided)
        if task.kind == LABELS:
            raise DataError(f"metric {self.name!r} needs one class per sample; for several labels use 'f1'")
        return task

    def score(self, right: "np.ndarray", guessed: "np.ndarray", occur: "np.ndarray") -> float:
        samples = occur.sum()
        spreads: List[float] = [samples**2 - (counts * counts).sum() for counts in (guessed, occur)]
        if not all(spreads):
            return 0.0
        return float((right.sum() * samples - (guessed * occur).sum()) / (spreads[0] * spreads[1]) ** 0.5)


def _check_labels(name: str, task: Task, output: Shape, label: Any, ignore_label: Optional[float]) -> None:
    """Refuse labels of the first batch that name no class: they would count as wrong answers, or not at all."""
    host = label.asnumpy()
    host = host.astype(np.float64) if host.dtype.kind != "f" else host
    if ignore_label is not None:
        host = host[host != ignore_label]
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns of comparing NaN
        if task.kind == CLASSES and not task.dense:
            classes = output[task.axis]
            right = (host >= 0) & (host < classes) & (host == np.floor(host))
            expected = f"whole numbers from 0 to {classes - 1}, because the net has {classes} outputs"
        elif task.kind == CLASSES:
            right, expected = host >= 0, "a value of at least 0 for each class"
        else:
            right = np.abs(host) == 1 if (host < 0).any() else (host >= 0) & (host <= 1)
            expected = "from 0 to 1, or -1 and 1"
    if not right.all():
        values = ", ".join(f"{value:g}" for value in sorted(set(host[~right].ravel().tolist()))[:5])
        raise LabelError(f"metric {name!r}: labels must be {expected}; received {values}")


# Lower bound of probabilities, as MXNet and scikit-learn have one: the logarithm of 0 is infinite.
LEAST = 1e-12


class CrossEntropy(ClassMetric):
    """Mean of `-log(probability of the label)`, in nats: of samples, or of tokens, pixels and labels.

    The loss decides what the outputs are: scores before a softmax or a sigmoid, probabilities, or their logarithms.
    Without a known loss, outputs must be probabilities, or pass `outputs`.

    Args:
        outputs: "scores", "probabilities" or "log_probabilities". None takes it from the loss.
        **kwargs: `ignore_label`, `axis`, `output`, `label` and `name`, as for `ClassMetric`.
    """

    name, better = "cross-entropy", "min"

    def __init__(self, *, outputs: Optional[str] = None, **kwargs: Any) -> None:
        if outputs not in (None, SCORES, PROBABILITIES, LOGS) or "threshold" in kwargs:
            raise ValueError(
                f"{type(self).__name__}: outputs: expected {SCORES!r}, {PROBABILITIES!r} or {LOGS!r}, and no "
                f"threshold; received {outputs!r}"
            )
        self._outputs = outputs
        super().__init__(**kwargs)

    def task_of(self, label: Any, scores: Any, **decided: Any) -> Task:
        single = all(length == 1 for length in scores.shape[1:])
        if self.loss is None and single and self._outputs is None:
            raise DataError(
                f"metric {self.name!r}: the net gives one output per sample, shape {scores.shape}, which may be a "
                f"score or a probability: pass loss=, or ({self.name!r}, {{'outputs': 'scores'}}) or 'probabilities'"
            )
        elementwise = self._outputs is not None and (single or scores.shape == label.shape)
        threshold = 0.0 if self.loss is None and elementwise else None
        task = super().task_of(label, scores, threshold=threshold, outputs=self._outputs)
        if task.kind in (BINARY, LABELS) and task.outputs is None:
            raise DataError(
                f"metric {self.name!r} needs probabilities, which {type(self.loss).__name__} does not train; use "
                "'accuracy'"
            )
        return task._replace(outputs=PROBABILITIES) if task.outputs is None else task

    def update(self, labels: Sequence[Any], output: Any) -> None:
        last_task = self._task
        task, label, scores = self._read(labels, output)
        if task is not last_task:
            self._check_outputs(task, scores)
        values = scores.astype("float64")
        if task.kind == CLASSES:
            losses = _losses_of_classes(values, label, task)
        else:
            losses = _losses_of_labels(values, (label.reshape(scores.shape) > 0.5).astype("float64"), task)
        if self.ignore_label is None:
            counted = mx.nd.ones_like(losses)
        else:
            counted = label.reshape(losses.shape).astype("float64") != self.ignore_label
        self.add_total(mx.nd.concat((losses * counted).sum(), counted.sum(), dim=0), scores.shape[0])

    def _check_outputs(self, task: Task, scores: Any) -> None:
        """Refuse outputs of a first batch that are no probabilities: their logarithms would mean nothing."""
        if task.outputs == SCORES:
            return
        shares = scores.asnumpy().astype(np.float64)
        if not np.isfinite(shares).all():
            return  # `evaluate` and `fit` report it
        shares = np.exp(shares) if task.outputs == LOGS else shares
        wrong = ((shares < 0) | (shares > 1 + 1e-3)).any()
        if wrong or (task.kind == CLASSES and not np.allclose(shares.sum(axis=task.axis), 1, atol=1e-2)):
            raise DataError(
                f"metric {self.name!r}: the net's outputs are no {str(task.outputs).replace('_', '-')}: they range "
                f"from {scores.min().asscalar():.4g} to {scores.max().asscalar():.4g}. For scores before a softmax or "
                f"a sigmoid pass the loss too, or ({self.name!r}, {{'outputs': 'scores'}})"
            )


def _losses_of_classes(values: Any, label: Any, task: Task) -> Any:
    if task.outputs == SCORES:
        logs = values.log_softmax(axis=task.axis)
    else:
        logs = values if task.outputs == LOGS else mx.nd.maximum(values, LEAST).log()
    if task.dense:
        return -(logs * label.astype("float64")).sum(axis=task.axis)
    shape = logs.shape[: task.axis] + logs.shape[task.axis + 1 :]
    return -mx.nd.pick(logs, label.astype("float64").reshape(shape), axis=task.axis)


def _losses_of_labels(values: Any, truth: Any, task: Task) -> Any:
    if task.outputs == SCORES:  # log(1 + exp(-|z|)) never overflows
        return mx.nd.log1p((-values.abs()).exp()) + mx.nd.relu(values) - values * truth
    of_1, of_0 = mx.nd.maximum(values, LEAST), mx.nd.maximum(1 - values, LEAST)
    return -(truth * of_1.log() + (1 - truth) * of_0.log())


class Perplexity(CrossEntropy):
    """`exp` of the mean cross-entropy over all samples or tokens; arguments as for `CrossEntropy`."""

    name = "perplexity"

    def figure(self, total: "np.ndarray") -> float:
        mean = super().figure(total)
        return math.inf if mean >= 700 else math.exp(mean)


class _Regression(Metric):
    """A metric of labels and outputs with equal shapes, up to axes of length 1."""

    def _pair(self, labels: Sequence[Any], output: Any) -> Tuple[Any, Any]:
        """Labels in the outputs' shape, and the outputs, both float64."""
        meaning_of(self.loss).refuse_quantities(self.name)
        label, values = self._labelled(labels, output)
        if squeezed(label.shape) != squeezed(values.shape):
            what = "one size" if label.size != values.size else "one shape"
            raise DataError(
                f"metric {self.name!r}: expected labels and outputs of {what}; received {label.shape} and "
                f"{values.shape}"
            )
        # reshaped, because (n, 1) - (n,) is (n, n) without an error (T11)
        return label.astype("float64").reshape(values.shape), values.astype("float64")


class MSE(_Regression):
    """Mean squared error over all values; labels and outputs have equal shapes."""

    name, better = "mse", "min"

    def update(self, labels: Sequence[Any], output: Any) -> None:
        label, values = self._pair(labels, output)
        self.add(self.error(values - label).reshape((values.shape[0], -1)).mean(axis=1))

    def error(self, difference: Any) -> Any:
        """The error of each value."""
        return difference.square()


class MAE(MSE):
    """Mean absolute error over all values; labels and outputs have equal shapes."""

    name = "mae"

    def error(self, difference: Any) -> Any:
        return difference.abs()


class RMSE(MSE):
    """Square root of the mean squared error over all values, in the unit of the labels."""

    name = "rmse"

    def figure(self, total: "np.ndarray") -> float:
        return float(super().figure(total) ** 0.5)


class _OfMoments(_Regression):
    """Base of metrics from means and squared deviations of labels and outputs, pooled without cancellation.

    A row is (count, mean label, mean output, squares of labels, squares of outputs, products). Squares and products are
    sums of deviations from the means; all but the count have K numbers, one for each column. Rows are pooled as in
    Chan, Golub and LeVeque 1979.
    """

    def _columns(self, label: Any, values: Any) -> Tuple[Any, Any]:
        """Labels and outputs as (n, K)."""
        raise NotImplementedError

    def update(self, labels: Sequence[Any], output: Any) -> None:
        label, values = self._columns(*self._pair(labels, output))
        means = [column.mean(axis=0, keepdims=True) for column in (label, values)]
        off_label, off_output = (mx.nd.broadcast_sub(a, mean) for a, mean in zip((label, values), means))
        squares = [products.sum(axis=0) for products in (off_label**2, off_output**2, off_label * off_output)]
        count = mx.nd.full((1,), label.shape[0], ctx=label.ctx, dtype="float64")
        self.add_total(mx.nd.concat(count, *[mean.reshape((-1,)) for mean in means], *squares, dim=0), label.shape[0])

    def pooled(self, rows: Any) -> Any:
        columns = (rows.shape[1] - 1) // 5
        counts, samples = rows[:, :1], rows[:, :1].sum(axis=0)
        parts = [rows[:, 1 + i * columns : 1 + (i + 1) * columns] for i in range(5)]
        means = [(counts * part).sum(axis=0) / samples for part in parts[:2]]
        off_label, off_output = (part - mean.reshape((1, -1)) for part, mean in zip(parts[:2], means))
        pairs = ((off_label, off_label), (off_output, off_output), (off_label, off_output))
        squares = [part.sum(axis=0) + (counts * a * b).sum(axis=0) for part, (a, b) in zip(parts[2:], pairs)]
        row = [samples, *means, *squares]
        return np.concatenate(row) if isinstance(rows, np.ndarray) else mx.nd.concat(*row, dim=0)

    def figure(self, total: "np.ndarray") -> float:
        return self.score(total[0], *total[1:].reshape((5, -1)))

    def score(self, samples: float, *moments: "np.ndarray") -> float:
        """The figure of the pooled row; each moment is float64 of shape (K,)."""
        raise NotImplementedError


class R2(_OfMoments):
    """Coefficient of determination, `1 - residual squares / squares of the labels`, at most 1; the mean over columns.

    Each value of a sample is a column. If labels do not vary it is 1 for exact outputs and 0 for others, and NaN for
    one sample, as in scikit-learn's `r2_score`.
    """

    name, better = "r2", "max"

    def _columns(self, label: Any, values: Any) -> Tuple[Any, Any]:
        return label.reshape((label.shape[0], -1)), values.reshape((values.shape[0], -1))

    def score(self, samples: float, *moments: "np.ndarray") -> float:
        if samples < 2:
            return float("nan")
        label, output, label_squares, output_squares, products = moments
        residual = np.maximum(label_squares + output_squares - 2 * products + samples * (label - output) ** 2, 0)
        constant = label_squares == 0
        explained = 1 - residual / np.where(constant, 1, label_squares)
        return float(np.where(constant & np.isfinite(residual), residual == 0, explained).mean())


class PearsonR(_OfMoments):
    """Correlation coefficient of labels and outputs over all values, from -1 to 1; NaN if one of them does not vary."""

    name, better = "pearsonr", "max"

    def _columns(self, label: Any, values: Any) -> Tuple[Any, Any]:
        return label.reshape((-1, 1)), values.reshape((-1, 1))

    def score(self, samples: float, *moments: "np.ndarray") -> float:
        label_squares, output_squares, products = (float(moment[0]) for moment in moments[2:])
        spread = label_squares**0.5 * output_squares**0.5
        return products / spread if spread else float("nan")
