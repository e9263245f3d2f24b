"""Metrics of the probabilities that a net gives to the labels."""

import math
from typing import Any, Optional, Sequence

from mxkit.core.loss_meanings import BINARY, CLASSES, LABELS, LOGS, PROBABILITIES, SCORES, Task
from mxkit.errors import DataError
from mxkit.metrics.classification import ClassMetric
import mxnet as mx
import numpy as np

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

    name = "cross-entropy"

    def __init__(self, *, outputs: Optional[str] = None, **kwargs: Any) -> None:
        if outputs not in (None, SCORES, PROBABILITIES, LOGS):
            raise ValueError(
                f"{type(self).__name__}: outputs: expected {SCORES!r}, {PROBABILITIES!r} or {LOGS!r}; received "
                f"{outputs!r}"
            )
        if "threshold" in kwargs:
            raise TypeError(f"{type(self).__name__} takes no threshold: it reads probabilities, not classes")
        self._outputs = outputs
        super().__init__(**kwargs)

    def _task_of(self, label: Any, scores: Any, **decided: Any) -> Task:
        single = all(length == 1 for length in scores.shape[1:])
        if self.loss is None and single and self._outputs is None:
            raise DataError(
                f"metric {self.name!r}: the net gives one output per sample, shape {scores.shape}, which may be a "
                f"score or a probability: pass loss=, or ({self.name!r}, {{'outputs': 'scores'}}) or 'probabilities'"
            )
        elementwise = self._outputs is not None and (single or scores.shape == label.shape)
        threshold = 0.0 if self.loss is None and elementwise else None
        task = super()._task_of(label, scores, threshold=threshold, outputs=self._outputs)
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
            what = str(task.outputs).replace("_", "-")
            where = "" if self.loss is None else f" under {type(self.loss).__name__}"
            raise DataError(
                f"metric {self.name!r}: the net's outputs{where} are no {what}: they range from "
                f"{scores.min().asscalar():.4g} to {scores.max().asscalar():.4g}. For scores before a softmax or a "
                f"sigmoid pass the loss too, or ({self.name!r}, {{'outputs': 'scores'}})"
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
