"""Metrics summed on the device over samples, so that no batch waits and no batch counts too much."""

import copy
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.errors import DataError, unknown_name
from mxkit.specs import split_spec, whole_number
import mxnet as mx
from mxnet import gluon
import numpy as np

MetricSpec = Union[str, Tuple[str, Dict[str, Any]], "Metric", "mx.metric.EvalMetric"]

# Sums of batches that wait to be added up, each an array of one number.
FOLD_EVERY = 256
# Batches that wait to be counted at once.
COUNT_EVERY = 64


class Metric:
    """A number per sample, averaged over every sample seen since `reset`.

    `update` queues work for the device and returns at once; `get` waits for it. Sums are kept in float64
    on each device, so counts stay exact beyond the 2**24 where float32 stops counting.

    Subclasses implement `per_sample`; values known already are given to `add`.

    Args:
        output: Which output is measured, where the net returns several.
        label: Which label it is measured against, where there are several.
        name: In place of the metric's own.

    Attributes:
        name: Key under which the value stands in a History or in what `evaluate` returns.
    """

    name: str = "metric"
    #: Values are 0 or 1: float32 adds a batch of them up without rounding.
    counts: bool = False

    def __init__(self, *, output: int = 0, label: int = 0, name: Optional[str] = None) -> None:
        self.name = name or type(self).name
        self._output = output
        self._label = label
        self.reset()

    def reset(self) -> None:
        """Forget every sample."""
        self._sums: Dict[Any, Any] = {}
        self._waiting: Dict[Any, List[Any]] = {}
        self._later: List[Tuple[Any, Any]] = []
        self._samples: float = 0

    def update(self, labels: Sequence[Any], output: Any) -> None:
        """Add a batch.

        Args:
            labels: The batch's labels, each an NDArray of shape (B, ...).
            output: What the net returned for it, on the same device.
        """
        self.add(self.per_sample(*self._chosen(labels, output)))

    def _chosen(self, labels: Sequence[Any], output: Any) -> Tuple[Sequence[Any], Any]:
        several = list(output) if isinstance(output, (list, tuple)) else [output]
        if self._output >= len(several) or self._label >= max(1, len(labels)):
            raise DataError(
                f"metric {self.name!r} measures output {self._output} against label {self._label}; the net returned "
                f"{len(several)} outputs, the batch has {len(labels)} labels"
            )
        return labels[self._label :], several[self._output]

    def add(self, values: Any, count: Optional[float] = None) -> None:
        """Add the values of a batch's samples.

        Args:
            values: NDArray of shape (B,) or more axes.
            count: What they count in the mean's divisor; None is B.
        """
        total = (values if self.counts else values.astype("float64")).sum()
        self.add_total(total, values.shape[0] if count is None else count)

    def add_total(self, total: Any, count: float) -> None:
        """Add the sum of a batch's values, shape (1,), of which there are `count`."""
        device = total.context
        waiting = self._waiting.setdefault(device, [])
        waiting.append(total)
        self._samples += count
        if len(waiting) == FOLD_EVERY:
            self._fold(device)

    def add_later(self, labels: Any, scores: Any, count: float) -> None:
        """Add a batch by `total_of`, together with many others: an operator costs more than what it does to a few.

        Args:
            labels: What `total_of` takes, of the same shape but for axis 0, and on the same device, as in the batches
                before, or else call `catch_up` first. Nobody may write into it later.
            scores: The same.
            count: Of samples.
        """
        self._later.append((labels, scores))
        self._samples += count
        if len(self._later) == COUNT_EVERY:
            self.catch_up()

    def catch_up(self) -> None:
        """Queue the counting of the batches that wait for it."""
        if self._later:
            labels, scores = zip(*self._later)
            self._later = []
            joined = mx.nd.concat(*labels, dim=0), mx.nd.concat(*scores, dim=0)
            self.add_total(_graph_of(type(self).total_of)(*joined), 0)  # type: ignore[attr-defined]

    def _fold(self, device: Any) -> None:
        """Queue the addition of a device's waiting sums, many in one operator: each costs as much as the kernel."""
        total = mx.nd.concat(*self._waiting.pop(device), dim=0).astype("float64").sum()
        self._sums[device] = self._sums[device] + total if device in self._sums else total

    def per_sample(self, labels: Sequence[Any], output: Any) -> Any:
        """Value of each sample, an NDArray of shape (B,)."""
        raise NotImplementedError

    def state(self) -> Tuple[Any, Dict[str, Any]]:
        """What a resumed run must restore inside an epoch: plain JSON values, and copies of arrays by name."""
        self.catch_up()
        arrays = {f"sum@{device}": total.copyto(mx.cpu()) for device, total in self._sums.items()}
        for device, waiting in self._waiting.items():  # as they are: adding them up now would round elsewhere
            arrays[f"waiting@{device}"] = mx.nd.concat(*waiting, dim=0).as_in_context(mx.cpu())
        return {"samples": self._samples}, arrays

    def load_state(self, numbers: Any, arrays: Mapping[str, Any], devices: Sequence["mx.Context"]) -> None:
        """Take over what `state` gave; sums go to their device, or to the first where it is not among `devices`."""
        self.reset()
        self._samples = numbers["samples"]
        places = {str(device): device for device in devices}
        for name, array in arrays.items():
            kind, _, place = name.partition("@")
            device = places.get(place, devices[0])
            array = array.copyto(device)
            if kind == "waiting":
                self._waiting.setdefault(device, []).extend(array[i : i + 1] for i in range(len(array)))
            else:
                self._sums[device] = self._sums[device] + array if device in self._sums else array

    def get(self) -> float:
        """Mean over the samples seen; 0.0 before the first. Waits for the device."""
        if not self._samples:
            return 0.0
        self.catch_up()
        for device in list(self._waiting):
            self._fold(device)
        return float(sum(total.asscalar() for total in self._sums.values())) / self._samples


class Accuracy(Metric):
    """Share of samples whose largest output is at their label.

    Labels are class numbers of any dtype, shape (B,) or (B, 1); outputs are scores of shape (B, classes).
    """

    name = "accuracy"
    counts = True

    def per_sample(self, labels: Sequence[Any], output: Any) -> Any:
        label = _column(labels, output, self.name)
        return output.argmax(axis=1) == label.astype("float32", copy=False)

    def update(self, labels: Sequence[Any], output: Any) -> None:
        chosen, scores = self._chosen(labels, output)
        self.add_total(_graph_of(self.total_of)(_column(chosen, scores, self.name), scores), scores.shape[0])

    @staticmethod
    def total_of(operators: Any, labels: Any, scores: Any) -> Any:
        """How many samples have their largest score at their label, shape (1,); `operators` is `mx.nd` or `mx.sym`."""
        labels = operators.cast(operators.reshape(labels, (-1,)), "float32")
        return operators.broadcast_equal(operators.argmax(scores, axis=1), labels).sum()


@lru_cache(maxsize=None)
def _graph_of(total_of: Callable[..., Any]) -> Any:
    # a graph of its own, because four operators called one by one take twice as long as one call of it
    block = gluon.nn.HybridLambda(total_of)
    block.hybridize(static_alloc=True)
    return block


class TopK(Metric):
    """Share of samples whose label is among the `k` largest outputs; labels and outputs as for `Accuracy`.

    Args:
        k: At least 1.
        output: As for `Metric`.
        label: As for `Metric`.
        name: In place of `top_5_accuracy` for a `k` of 5.
    """

    counts = True

    def __init__(self, k: int = 5, *, output: int = 0, label: int = 0, name: Optional[str] = None) -> None:
        self.k = whole_number(k, "TopK: k")
        super().__init__(output=output, label=label, name=name or f"top_{self.k}_accuracy")

    def per_sample(self, labels: Sequence[Any], output: Any) -> Any:
        if output.shape[1] < self.k:
            raise DataError(f"{self.name}: expected at least {self.k} outputs a sample; received {output.shape}")
        label = _column(labels, output, self.name).astype("float32", copy=False).reshape((-1, 1))
        return mx.nd.broadcast_equal(output.topk(k=self.k, axis=1), label).sum(axis=1)


class ConfusionMatrix(Metric):
    """Counts of samples by their label (row) and by the largest output (column).

    `get` returns the matrix as lists of whole numbers, which a History keeps and JSON holds.
    """

    name = "confusion"

    def update(self, labels: Sequence[Any], output: Any) -> None:
        chosen, scores = self._chosen(labels, output)
        classes = scores.shape[1]
        truth = _column(chosen, scores, self.name).astype("float32", copy=False).one_hot(classes)
        self._add_counts(mx.nd.dot(truth, scores.argmax(axis=1).one_hot(classes), transpose_a=True), scores.shape[0])

    def _add_counts(self, counts: Any, samples: int) -> None:
        held = self._sums.get(counts.context)
        counts = counts.astype("float64")
        self._sums[counts.context] = counts if held is None else held + counts
        self._samples += samples

    def matrix(self) -> "np.ndarray":
        """The counts, int64 of shape (classes, classes); (0, 0) before the first sample. Waits for the device."""
        if not self._samples:
            return np.zeros((0, 0), np.int64)
        counts: np.ndarray = sum(counts.asnumpy() for counts in self._sums.values()).astype(np.int64)
        return counts

    def get(self) -> Any:
        return self.matrix().tolist()


class F1(ConfusionMatrix):
    """Harmonic mean of precision and recall, averaged over the classes that occur, each with the same weight.

    Args:
        positive: Number of the one class that counts, for two classes mostly 1. None averages over all.
        output: As for `Metric`.
        label: As for `Metric`.
        name: As for `Metric`.
    """

    name = "f1"

    def __init__(
        self, positive: Optional[int] = None, *, output: int = 0, label: int = 0, name: Optional[str] = None
    ) -> None:
        self.positive = positive
        super().__init__(output=output, label=label, name=name)

    def get(self) -> float:
        """The score; 0.0 before the first sample and for classes that are never right. Waits for the device."""
        counts = self.matrix()
        right, occur = np.diag(counts), counts.sum(axis=0) + counts.sum(axis=1)
        scores = np.divide(2.0 * right, occur, out=np.zeros(len(counts)), where=occur > 0)
        if self.positive is not None:
            return float(scores[self.positive]) if len(scores) else 0.0
        return float(scores[occur > 0].mean()) if len(scores) else 0.0


class Mean(Metric):
    """Mean of a function of the batch: `function(labels, output)` gives one value a sample, shape (B,).

    >>> Mean(lambda labels, output: output.max(axis=1), name="confidence").name
    'confidence'
    """

    def __init__(self, function: Callable[[Sequence[Any], Any], Any], *, name: str = "mean", **kwargs: Any) -> None:
        self._function = function
        super().__init__(name=name, **kwargs)

    def per_sample(self, labels: Sequence[Any], output: Any) -> Any:
        return self._function(labels, output)


class _Regression(Metric):
    """Error of each sample, averaged over its values."""

    def per_sample(self, labels: Sequence[Any], output: Any) -> Any:
        label = labels[0]
        if label.size != output.size:
            raise DataError(
                f"{self.name}: expected labels and outputs of one size; received {label.shape} and {output.shape}"
            )
        # reshaped, because (n, 1) - (n,) is (n, n) without a word (T11)
        difference = output - label.reshape(output.shape).astype(output.dtype)
        return self.error(difference).reshape((output.shape[0], -1)).mean(axis=1)

    def error(self, difference: Any) -> Any:
        raise NotImplementedError


class MSE(_Regression):
    """Mean squared error; labels and outputs of one size."""

    name = "mse"

    def error(self, difference: Any) -> Any:
        return difference.square()


class MAE(_Regression):
    """Mean absolute error; labels and outputs of one size."""

    name = "mae"

    def error(self, difference: Any) -> Any:
        return difference.abs()


class MXNetMetric(Metric):
    """Any `mx.metric.EvalMetric`. It waits for the device at every batch, as MXNet's metrics do (T17)."""

    def __init__(self, metric: "mx.metric.EvalMetric") -> None:
        self.metric = metric
        super().__init__(name=metric.name)

    def reset(self) -> None:
        self.metric.reset()

    def update(self, labels: Sequence[Any], output: Any) -> None:
        outputs = list(output) if isinstance(output, (list, tuple)) else [output]
        self.metric.update(list(labels), outputs)

    def get(self) -> float:
        value = self.metric.get()[1]
        return float("nan") if isinstance(value, list) else float(value)

    def state(self) -> Tuple[Any, Dict[str, Any]]:
        return _numbers(self.metric), {}

    def load_state(self, numbers: Any, arrays: Mapping[str, Any], devices: Sequence["mx.Context"]) -> None:
        _set_numbers(self.metric, numbers)


def _numbers(owner: Any) -> Dict[str, Any]:
    """Numbers, arrays and parts of an MXNet metric, as plain JSON: what it has counted is among them."""
    found: Dict[str, Any] = {}
    for name, value in vars(owner).items():
        if isinstance(value, (int, float, np.number)):
            found[name] = value.item() if isinstance(value, np.number) else value
        elif isinstance(value, np.ndarray):
            found[name] = {"dtype": value.dtype.name, "values": value.tolist()}
        elif isinstance(value, list) and all(hasattr(one, "__dict__") for one in value):
            found[name] = [_numbers(one) for one in value]
        elif type(value).__module__ == mx.metric.__name__:
            found[name] = _numbers(value)
    return found


def _set_numbers(owner: Any, numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        held = getattr(owner, name)
        if isinstance(value, list):
            for one, its in zip(held, value):
                _set_numbers(one, its)
        elif isinstance(held, np.ndarray):
            setattr(owner, name, np.array(value["values"], dtype=value["dtype"]))
        elif isinstance(value, dict):
            _set_numbers(held, value)
        else:
            setattr(owner, name, value)


METRICS: Dict[str, Callable[..., Metric]] = {
    "accuracy": Accuracy,
    "confusion": ConfusionMatrix,
    "f1": F1,
    "mae": MAE,
    "mse": MSE,
    "top_k": TopK,
}


def get_metric(spec: MetricSpec) -> Metric:
    """Return a fresh metric that `spec` means; the caller's own object is never changed.

    Args:
        spec: A name of `METRICS`, a name of MXNet's metrics (which wait at every batch), a pair of a name
            and its arguments, a `Metric` or an `mx.metric.EvalMetric`, of which a copy is returned.

    Raises:
        UnknownNameError: No metric has this name; the known ones and the nearest are listed.
        TypeError: `spec` has another form.
    """
    spec, arguments = split_spec(spec)
    if isinstance(spec, str):
        if spec in METRICS:
            return METRICS[spec](**arguments)
        known = mx.registry.get_registry(mx.metric.EvalMetric)
        if spec.lower() in known:
            return MXNetMetric(mx.metric.create(spec, **arguments))
        raise unknown_name("metric", spec, set(METRICS) | set(known))
    if isinstance(spec, mx.metric.EvalMetric):
        fresh: Metric = MXNetMetric(copy.deepcopy(spec))
    elif isinstance(spec, Metric):
        fresh = copy.deepcopy(spec)
    else:
        raise TypeError(f"metric: expected a name, (name, arguments) or a metric; received {spec!r}")
    fresh.reset()
    return fresh


def get_metrics(specs: Sequence[MetricSpec]) -> List[Metric]:
    """Return fresh metrics, whose names must differ.

    Raises:
        ValueError: Two metrics have one name, or `specs` is a name instead of a list of them.
    """
    if isinstance(specs, str):
        raise ValueError(f"metrics: expected a list, like [{specs!r}]; received {specs!r}")
    found = [get_metric(spec) for spec in specs]
    names = [metric.name for metric in found]
    if len(set(names)) != len(names):
        raise ValueError(f"metrics: names must differ; received {names}")
    return found


def _column(labels: Sequence[Any], output: Any, name: str) -> Any:
    label, samples = labels[0], output.shape[0]
    shape = label.shape
    if shape == (samples,):
        return label
    if shape[:1] != (samples,) or label.size != samples:
        raise DataError(f"{name}: expected one label a sample, shape ({samples},); received {shape}")
    return label.reshape((-1,))
