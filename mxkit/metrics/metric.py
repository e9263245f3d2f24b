"""The base class of metrics: sums over samples stay on the device, so no batch waits and each sample counts once."""

from functools import lru_cache, partial
import json
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arrays import is_numpy, legacy, outputs_of, switches, to_host
from mxkit.core.loss_meanings import way_to_one_per_sample
from mxkit.errors import DataError
import mxnet as mx
from mxnet import gluon
import numpy as np

# Sums of batches that are queued before they are added up.
FOLD_EVERY = 256


class Metric:
    """A number per sample, averaged over every sample seen since `reset`.

    `update` queues work for the device and returns at once; `get` waits for it. Sums are float64 on each device, so
    counts stay exact beyond 2**24, where float32 stops counting. The figure depends neither on the batches nor on the
    number of devices.

    Subclasses implement `per_sample`, or call `add` with values. A metric that is not a mean overrides `update`, which
    asks `chosen` for the labels and the output, passes a row of sums to `add_total`, and `figure`, which computes the
    result from the summed row.

    Args:
        output: Which output is measured, if the net returns several.
        label: Which label it is compared with, if there are several. None is the first; it is required if `output` is
            not the first.
        name: Replaces the metric's name.

    Attributes:
        name: Key of the value in a History and in the result of `evaluate`.
        loss: The loss that the net is trained with, set by `fit` and `evaluate`; None if it is unknown.
        better: "max" if larger is better, "min" if smaller is. None if it is unknown: callbacks that watch the metric
            then need a mode.
    """

    name: str = "metric"
    better: Optional[str] = None
    #: False if the net gives in training what the metric cannot read, as gluoncv's detectors do.
    in_training: bool = True
    #: Values are 0 or 1: float32 then sums a batch without rounding.
    counts: bool = False
    loss: Any = None
    #: Shape of the batch's first input, set by `fit` and `evaluate` for each batch; empty if it is unknown.
    input_shape: Sequence[int] = ()

    def __init__(self, *, output: int = 0, label: Optional[int] = None, name: Optional[str] = None) -> None:
        self.name = name or type(self).name
        self._output = output
        self._label = label or 0
        self._label_is_known = label is not None or not output
        self._is_heeded = self.reads_first  # or `chosen` was asked
        self.reset()

    @property
    def reads_first(self) -> bool:
        """Whether it reads the first output and the first label."""
        return not self._output and not self._label

    def reset(self) -> None:
        """Remove all samples."""
        self._sums: Dict[Any, Any] = {}
        self._waiting: Dict[Any, List[Any]] = {}
        self._samples: float = 0

    def update(self, labels: Sequence[Any], output: Any) -> None:
        """Add a batch.

        Args:
            labels: The batch's labels, a list of NDArrays of shape (B, ...).
            output: What the net returned for it, on the same device.

        Raises:
            DataError: `per_sample` did not give one value per sample.
        """
        chosen, scores = self.chosen(labels, output)
        with switches(is_numpy(scores)):
            values = legacy(self.per_sample(chosen, scores))
        self.add(self._check_per_sample(values, scores))

    def _check_per_sample(self, values: Any, scores: Any) -> Any:
        """Refuse values that are not one per sample: a scalar would count as one sample, (n, n) as n means (T11)."""
        samples = scores.shape[0]
        if isinstance(values, np.ndarray):
            values = mx.nd.array(values, ctx=scores.ctx, dtype=values.dtype)
        shape = tuple(getattr(values, "shape", ()))
        way = way_to_one_per_sample("value", "values", shape, samples)
        if way:
            raise DataError(
                f"metric {self.name!r} must give one value per sample: expected shape ({samples},); received a "
                f"{type(values).__name__} of shape {shape}. {way}"
            )
        return values.reshape((-1,))

    def chosen(self, labels: Sequence[Any], output: Any) -> Tuple[Sequence[Any], Any]:
        """Return the labels from number `label` on, and output number `output`, for an `update` of one's own.

        Raises:
            DataError: There is no such label or output; or the batch has several labels, and `label` was not given.
        """
        self._is_heeded = True
        if output is None:
            raise DataError(
                f"metric {self.name!r} needs the net's output, and BatchLoss(forward=...) gives only losses: return "
                "(losses, output)"
            )
        outputs = outputs_of(output, f"metric {self.name!r}")
        unknown = not self._label_is_known and len(labels) > 1
        if unknown or self._output >= len(outputs) or self._label >= max(1, len(labels)):
            raise DataError(
                f"metric {self.name!r} measures output {self._output} against label {'?' if unknown else self._label}; "
                f"the net returned {len(outputs)} outputs, the batch has {len(labels)} labels: choose one of each, "
                f"({self.name!r}, {{'output': 0, 'label': 0}})"
            )
        return labels[self._label :], outputs[self._output]

    def _labelled(self, labels: Sequence[Any], output: Any) -> Tuple[Any, Any]:
        """The label and the output that are compared, the output in 32 bits or more."""
        chosen, scores = self.chosen(labels, output)
        if not chosen:
            raise DataError(f"metric {self.name!r} needs labels: expected batches (x, y); received x alone")
        chosen, scores = legacy(chosen), legacy(scores)
        half = scores.dtype != np.float32 and scores.dtype != np.float64
        # argmax of float16 gives float16, in which class numbers above 2048 are rounded
        return chosen[0], scores.astype("float32") if half else scores

    def add(self, values: Any, count: Optional[float] = None) -> None:
        """Add the values of a batch's samples.

        Args:
            values: NDArray of shape (B,) or more axes.
            count: Number by which the mean's divisor grows; None is B.
        """
        values = legacy(values)
        exact = self.counts and values.dtype in (np.float32, np.float64)  # sums of bool, int8 and float16 are not
        total = (values if exact else values.astype("float64")).sum()
        self.add_total(total, values.shape[0] if count is None else count)

    def add_total(self, total: Any, count: float) -> None:
        """Add the sums of a batch, an NDArray of shape (k,), the same k for each batch, over `count` values.

        Raises:
            DataError: `output` or `label` was given, and an `update` of a subclass does not ask `chosen`.
        """
        if not self._is_heeded:
            raise DataError(
                f"metric {self.name!r} was made with output={self._output}, label={self._label}, but its own update "
                "takes no notice of them. Begin it with: labels, output = self.chosen(labels, output)"
            )
        if is_numpy(total):  # of shape () too
            with switches(True):
                total = legacy(total.reshape((-1,)))
        device = total.ctx
        waiting = self._waiting.setdefault(device, [])
        waiting.append(total)
        self._samples += count
        if len(waiting) == FOLD_EVERY:
            self._fold(device)

    def _fold(self, device: Any) -> None:
        """Add up a device's queued sums in one operator: starting an operator costs as much as its kernel."""
        waiting = self._waiting.pop(device)
        widths = {total.size for total in waiting} | {total.size for total in self._sums.values()}
        if len(widths) > 1:
            raise DataError(
                f"metric {self.name!r}: batches give {sorted(widths)} sums: the shapes of their outputs differ"
            )
        total = self.pooled(mx.nd.concat(*waiting, dim=0).astype("float64").reshape((-1, waiting[0].size)))
        self._sums[device] = self._pooled_pair(self._sums[device], total) if device in self._sums else total

    def _pooled_pair(self, first: Any, second: Any) -> Any:
        return self.pooled(mx.nd.stack(first, second.as_in_context(first.ctx), axis=0))

    def pooled(self, rows: Any) -> Any:
        """Add up rows of sums: shape (m, k) becomes (k,). `rows` is an NDArray or NumPy, in float64."""
        return rows.sum(axis=0)

    def per_sample(self, labels: Sequence[Any], output: Any) -> Any:
        """Value of each sample, shape (B,), of NumPy or MXNet. Arrays and MXNet's switches are of the net's kind."""
        raise NotImplementedError

    def figure(self, total: "np.ndarray") -> Any:
        """Compute the result from the sums over all samples, float64 of shape (k,).

        Here it is the first sum divided by the second, or by the number of values if there is only one sum; NaN if
        that is 0.
        """
        count = total[1] if len(total) > 1 else self._samples
        return float(total[0] / count) if count else math.nan

    def state(self) -> Tuple[Any, Dict[str, Any]]:
        """Values for JSON and copies of arrays by name, which a run that resumes inside an epoch restores."""
        arrays = {f"sum@{device}": total.copyto(mx.cpu()) for device, total in self._sums.items()}
        width = 1
        for device, waiting in self._waiting.items():  # not summed: the sum would be rounded in another order
            width = waiting[0].size
            arrays[f"waiting@{device}"] = mx.nd.concat(*waiting, dim=0).as_in_context(mx.cpu())
        return {"samples": self._samples, "width": width}, arrays

    def load_state(self, numbers: Any, arrays: Mapping[str, Any], devices: Sequence["mx.Context"]) -> None:
        """Restore what `state` returned; sums go to their device, or to the first if theirs is not in `devices`."""
        self.reset()
        self._samples = numbers["samples"]
        width = numbers.get("width", 1)
        places = {str(device): device for device in devices}
        for name, array in arrays.items():
            kind, _, place = name.partition("@")
            device = places.get(place, devices[0])
            array = array.copyto(device)
            if kind == "waiting":
                self._waiting.setdefault(device, []).extend([array[i : i + width] for i in range(0, len(array), width)])
            else:
                self._sums[device] = self._pooled_pair(self._sums[device], array) if device in self._sums else array

    def part(self) -> Any:
        """The sums over this worker's samples, of JSON's types, for `take`. Waits for the device."""
        numbers, arrays = self.state()
        return {"numbers": numbers, "total": self.total().tolist() if arrays else None}

    def take(self, parts: Sequence[Any]) -> None:
        """Replace all samples by those of several parts."""
        self.reset()
        known = [part for part in parts if part["total"] is not None]
        if known:
            total = np.asarray(self.pooled(np.array([part["total"] for part in known], "float64")))
            samples = sum(part["numbers"]["samples"] for part in known)
            array = mx.nd.array(total, dtype="float64")
            self.load_state({**known[0]["numbers"], "samples": samples}, {f"sum@{mx.cpu()}": array}, [mx.cpu()])

    def total(self) -> "np.ndarray":
        """Sums over all samples, float64 of shape (k,). Waits for the device."""
        for device in list(self._waiting):
            self._fold(device)
        return np.asarray(self.pooled(np.stack([total.asnumpy().reshape(-1) for total in self._sums.values()])))

    def get(self) -> Any:
        """The figure over the samples seen; NaN before the first. Waits for the device.

        Returns:
            What `figure` returned; an array as a list.

        Raises:
            DataError: `figure` returned something that a history or a checkpoint could not hold.
        """
        return self._plain(self.figure(self.total())) if self._samples else math.nan

    def _plain(self, value: Any) -> Any:
        """A figure in types of JSON, or an error that names the metric, long before a checkpoint is written."""
        if isinstance(value, (mx.nd.NDArray, np.ndarray, np.generic)):
            value = to_host(value).tolist()
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"metric {self.name!r}: figure must return a number, an array, or a list of them; received a "
                f"{type(value).__name__}: {error}"
            ) from error
        return value


class Mean(Metric):
    """Mean of a function of the batch: `function(labels, output)` returns one value per sample, shape (B,).

    Args:
        function: `labels` is a list of the batch's labels, of shape (B, ...); `output` is the net's. Arrays and MXNet's
            switches are of the net's kind, `mx.nd` or `mx.np`; it may return either kind, or NumPy.
        name: Name of the column.
        **kwargs: `output` and `label`, as for `Metric`.

    >>> Mean(lambda labels, output: output.max(axis=1), name="confidence").name
    'confidence'
    """

    def __init__(self, function: Callable[[Sequence[Any], Any], Any], *, name: str = "mean", **kwargs: Any) -> None:
        self._function = function
        super().__init__(name=name, **kwargs)

    def per_sample(self, labels: Sequence[Any], output: Any) -> Any:
        return self._function(labels, output)


@lru_cache(maxsize=None)
def graph_of(function: Callable[..., Any], *settings: Any) -> Any:
    """A cached graph of `function(operators, *arrays, *settings)`: separate operators take twice as long."""

    def call(operators: Any, *arrays: Any) -> Any:
        return partial(function, operators)(*arrays, *settings)

    with switches(False):
        block = gluon.nn.HybridLambda(call)
        block.hybridize(static_alloc=True)

    def graph(*arrays: Any) -> Any:
        with switches(False):
            return block(*arrays)

    return graph
