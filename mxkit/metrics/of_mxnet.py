"""Wraps metrics of MXNet and users' subclasses of them, and reports results that depend on the batches."""

import copy
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence
import warnings

from mxkit.core.arrays import is_numpy, of_kind, switches, to_host
from mxkit.errors import DataError, TrapWarning
from mxkit.metrics.metric import Metric
import mxnet as mx
import numpy as np

_CLASSES, _PROBABILITIES = "classes", "probabilities"
_SUMS = {"sum_metric", "num_inst"}


class _Stock(NamedTuple):
    """What is known of a metric of MXNet.

    Attributes:
        better: As for `Metric`.
        reads: _CLASSES or _PROBABILITIES, if outputs must be these.
        exact: mxkit's metric, if the figure depends on how samples are cut into batches.
        adds: Whether the sums of several workers can be added up.
    """

    better: Optional[str] = None
    reads: str = ""
    exact: str = ""
    adds: bool = True

    @property
    def way(self) -> str:
        """The metric to use instead."""
        return f"Use {self.exact}, which is exact" if self.exact else "Write it as mxkit.metrics.Mean(function)"


_STOCK: Dict[str, _Stock] = {
    "Accuracy": _Stock("max", _CLASSES),
    "TopKAccuracy": _Stock("max", _CLASSES),
    "F1": _Stock("max", _CLASSES, "('f1', {'positive': 1})", adds=False),
    "MCC": _Stock("max", _CLASSES, "'mcc'", adds=False),
    "PCC": _Stock("max", _CLASSES, adds=False),
    "MAE": _Stock("min", exact="'mae'"),
    "MSE": _Stock("min", exact="'mse'"),
    "RMSE": _Stock("min", exact="'rmse'", adds=False),
    "PearsonCorrelation": _Stock("max", exact="'pearsonr'", adds=False),
    "CrossEntropy": _Stock("min", _PROBABILITIES, "'cross-entropy'"),
    "NegativeLogLikelihood": _Stock("min", _PROBABILITIES, "'cross-entropy'"),
    "Perplexity": _Stock("min", _PROBABILITIES, "'perplexity'"),
}


class MXNetMetric(Metric):
    """Any `mx.metric.EvalMetric`. It waits for the device in every batch, as MXNet's metrics do (T17).

    Args:
        metric: The metric. It is updated, not copied.
        place: Index of the value to use, if `get` returns several.
    """

    def __init__(self, metric: "mx.metric.EvalMetric", place: Optional[int] = None) -> None:
        self.metric = metric
        self._place, self._stock = place, _STOCK.get(_kind(metric), _Stock())
        self.better = self._stock.better
        self._checked = self._numpy = False
        names = metric.get()[0]
        super().__init__(name=str(names if place is None else names[place]))

    def reset(self) -> None:
        self.metric.reset()

    def update(self, labels: Sequence[Any], output: Any) -> None:
        # MXNet's own metrics have no code for arrays of mx.np
        self._numpy = numpy = is_numpy(output) and type(self.metric).update.__module__ != mx.metric.__name__
        outputs = of_kind(list(output) if isinstance(output, (list, tuple)) else [output], numpy)
        labels = of_kind(list(labels), numpy)
        if self._stock.reads == _CLASSES and len(labels) == 1 and labels[0].shape == (outputs[0].shape[0], 1):
            labels = [labels[0].reshape((-1,))]  # F1 and MCC broadcast (B, 1) against the classes (B,) to (B, B) (T256)
        if not self._checked and self._stock.reads == _CLASSES:
            _refuse_one_output(self.metric, labels, outputs)
        with switches(numpy):
            self.metric.update(labels, outputs)
            # a batch of three samples is the smallest that has two unequal parts
            if not self._checked and outputs[0].shape[0] > 2:
                self._checked = True
                self._warn_of_scores(outputs)
                self._warn_of_cuts(labels, outputs)

    def _warn_of_scores(self, outputs: List[Any]) -> None:
        if self._stock.reads == _PROBABILITIES and outputs[0].ndim > 1:
            host = outputs[0].asnumpy()
            if (host < 0).any() or not np.allclose(host.sum(axis=-1), 1, atol=1e-2):
                warnings.warn(
                    f"mx.metric.{_kind(self.metric)} takes probabilities, and the net's outputs are none: its number "
                    f"means nothing. Use the metric by its name, {self._stock.exact}: the loss tells it what "
                    "the outputs are",
                    TrapWarning,
                    stacklevel=4,
                )

    def _warn_of_cuts(self, labels: Sequence[Any], outputs: List[Any]) -> None:
        """Warn if a batch and its two parts give different figures, as a mean of batches' figures does (T128)."""
        samples, values, differ = outputs[0].shape[0], [], ""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                for bounds in ([0, samples], [0, max(1, samples // 3), samples]):
                    metric = copy.deepcopy(self.metric)
                    metric.reset()
                    for begin, end in zip(bounds, bounds[1:]):
                        metric.update([one[begin:end] for one in labels], [one[begin:end] for one in outputs])
                    values.append(_value(metric, self._place))
            except Exception as error:  # of any kind, because the metric may be a user's
                differ = f"it raises {type(error).__name__} for {end - begin} of {samples} samples: {error}"
        if not differ and not np.isclose(values[0], values[1], rtol=1e-6, atol=1e-9, equal_nan=True):
            differ = f"{values[0]:.6g} for a batch of {samples}, {values[1]:.6g} for the same samples as two"
        if differ:
            warnings.warn(
                f"metric {self.name!r} depends on how samples are cut into batches: {differ}. {self._stock.way} (T128)",
                TrapWarning,
                stacklevel=4,
            )

    def get(self) -> float:
        with switches(self._numpy):
            return _value(self.metric, self._place)

    def state(self) -> Any:
        return _numbers(self.metric), {}

    def load_state(self, numbers: Any, arrays: Mapping[str, Any], devices: Sequence["mx.Context"]) -> None:
        _set_numbers(self.metric, numbers)

    def part(self) -> Any:
        numbers = _numbers(self.metric)
        if not self._stock.adds or not set(numbers) >= _SUMS:
            raise DataError(
                f"metric {self.name!r} is no mean over samples, so the values of several workers cannot be added up. "
                f"{self._stock.way}"
            )
        return {name: value for name, value in numbers.items() if name.replace("global_", "") in _SUMS}

    def take(self, parts: Sequence[Any]) -> None:
        self.reset()
        if parts:
            _set_numbers(self.metric, {name: sum(part[name] for part in parts) for name in parts[0]})


def wrapped(metric: "mx.metric.EvalMetric") -> List[Metric]:
    """Copies of an MXNet metric, one for each of its values; a CompositeEvalMetric gives those of all its metrics."""
    if isinstance(metric, mx.metric.CompositeEvalMetric):
        return [part for member in metric.metrics for part in wrapped(member)]
    names = metric.get()[0]
    places: List[Optional[int]] = list(range(len(names))) if isinstance(names, (list, tuple)) else [None]
    metrics: List[Metric] = [MXNetMetric(copy.deepcopy(metric), place) for place in places]
    for copied in metrics:
        copied.reset()
    return metrics


def _kind(metric: Any) -> str:
    """Name of MXNet's class, also for a user's subclass; empty for other metrics."""
    return next((base.__name__ for base in type(metric).__mro__ if base.__module__ == mx.metric.__name__), "")


def _value(metric: Any, place: Optional[int]) -> float:
    value = metric.get()[1]
    return float(to_host(value if place is None else value[place]).item())


def _refuse_one_output(metric: Any, labels: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Refuse MXNet's metrics of classes for one output per sample: they always read class 0 (T129).

    Raises:
        DataError: The outputs are no class numbers.
    """
    output = outputs[0]
    like_labels = bool(labels) and output.shape == labels[0].shape
    if not labels or (output.size != output.shape[0] and not like_labels):
        return
    host = output.asnumpy()
    if like_labels and (host == np.floor(host)).all():
        return
    raise DataError(
        f"mx.metric.{_kind(metric)} needs scores of two classes or more, or class numbers; it reads the net's outputs, "
        f"shape {output.shape}, as class 0. Use the metric by its name, which takes a threshold from the loss: "
        "'accuracy', 'f1', 'mcc' (T129)"
    )


def _numbers(owner: Any) -> Dict[str, Any]:
    """Attributes of an MXNet metric that are numbers, arrays or metrics, its counts among them, as JSON."""
    numbers: Dict[str, Any] = {}
    for name, value in vars(owner).items():
        if isinstance(value, (int, float, np.number)):
            numbers[name] = value.item() if isinstance(value, np.number) else value
        elif isinstance(value, np.ndarray):
            numbers[name] = {"dtype": value.dtype.name, "values": value.tolist()}
        elif isinstance(value, mx.nd.NDArray) and value.size == 1:
            numbers[name] = value.asnumpy().item()
        elif isinstance(value, list) and all(hasattr(member, "__dict__") for member in value):
            numbers[name] = [_numbers(member) for member in value]
        elif type(value).__module__ == mx.metric.__name__:
            numbers[name] = _numbers(value)
    return numbers


def _set_numbers(owner: Any, numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        present = getattr(owner, name)
        if isinstance(value, list):
            for member, stored in zip(present, value):
                _set_numbers(member, stored)
        elif isinstance(present, np.ndarray):
            setattr(owner, name, np.array(value["values"], dtype=value["dtype"]))
        elif isinstance(value, dict):
            _set_numbers(present, value)
        else:
            setattr(owner, name, value)
