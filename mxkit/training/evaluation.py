"""What a trained net is worth, and what it says."""

from itertools import chain, islice
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.blocks import net_devices
from mxkit.core.device import split_batch, unpack
from mxkit.core.forward_errors import explained
from mxkit.core.packed import worth_packing
from mxkit.data.source import Data, read_epoch, shuffles, whole_part
from mxkit.errors import DataError, TrapWarning
from mxkit.losses.batch_loss import BatchLossSpec, get_batch_loss
from mxkit.metrics import Metric, MetricSpec, get_metrics
from mxkit.training.callbacks.progress import batches_bar
from mxkit.training.loss_checks import check_first_batch, check_loss_shape
from mxkit.training.unread import Queued, wait
import mxnet as mx
from mxnet import autograd
import numpy as np


def evaluate(
    net: Any,
    data: Data,
    *,
    loss: Optional[BatchLossSpec] = None,
    metrics: Sequence[MetricSpec] = (),
    limit_batches: Optional[int] = None,
    name: str = "data",
    progress: bool = False,
) -> Dict[str, Any]:
    """Compute loss and metrics over every sample of `data`, in predict mode.

    Args:
        net: An initialized block. Batches are split over its devices.
        data: Batches `(x, y)`, as for `updates`; or samples, which are cut into batches of 256: a `Split`, a pair
            `(x, y)` of arrays, or a dataset.
        loss: As for `updates`, a `mxkit.losses.BatchLoss` too, or None for metrics alone.
        metrics: As for `fit`.
        limit_batches: Read no more batches than this. None reads all.
        name: What the messages call the data.
        progress: Show a bar where it takes more than a second, on a terminal or in a notebook.

    Returns:
        `{"loss": mean per sample, metric's name: value, ...}`. Every sample counts once, so the numbers do
        not depend on how samples are cut into batches.

    Raises:
        ValueError: Neither a loss nor a metric is asked for.
        EmptyDataError: `data` gave no batch.
        DataError: `data` leaves samples out, or carries some over to its next pass.
        LossShapeError: `loss` did not give one value per sample.
        LabelError: A label means nothing to the loss, as a class number out of range.
        DataError: Labels or weights have a shape that the loss has no meaning for.
        ForwardError: A block of the net raised; the text names it, and the cause is chained.

    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net, "zeros")
    >>> scores = evaluate(net, [(np.zeros((3, 4)), np.array([0, 0, 1]))], loss="softmax_ce", metrics=["accuracy"])
    >>> {name: round(value, 4) for name, value in scores.items()}
    {'loss': 0.6931, 'accuracy': 0.6667}
    """
    data = whole_part(data, name)
    with_loss = loss is not None
    batch_loss = get_batch_loss(loss) if with_loss else None
    known = None if batch_loss is None else batch_loss.loss
    forward = _output_only if batch_loss is None else batch_loss.forward
    measured = get_metrics(metrics, loss=known)
    if not with_loss and not measured:
        raise ValueError("evaluate: nothing to compute; pass loss=..., metrics=[...] or both")
    where = net_devices(net)
    counts = batch_loss is not None and batch_loss.counts
    packed = not counts and worth_packing(where)
    mean_loss, looked, inputs = Metric(), Metric(), _Finite()
    queued, batch = Queued(), None
    unchecked = True
    with autograd.pause(train_mode=False), explained(
        net, lambda: forward(net, shard.inputs, shard.labels), lambda: batch
    ), batches_bar(name, data, limit_batches, progress) as bar:
        for batch in islice(read_epoch(data, name=name, keep_count=True, packed=packed, once=True), limit_batches):
            stated = batch_loss.count(*unpack(batch)) if batch_loss is not None and counts else None
            shards, results = split_batch(batch, where), []
            for shard in (part.unpacked() for part in shards):
                inputs.look(shard.inputs)
                output, values = forward(net, shard.inputs, shard.labels)
                if values is not None:
                    check_loss_shape(values, shard.samples)
                    if unchecked:
                        check_first_batch(net, shard, output, known, data)
                        unchecked = False
                    mean_loss.add(values, stated)
                    stated = None if stated is None else 0.0  # the batch's count is added once
                for metric in measured:
                    metric.update(shard.labels, output)
                if values is None:
                    values = output[0] if isinstance(output, (list, tuple)) else output
                    looked.add(values)
                results.append(values)
            wait(queued.add(shards, results, results))
            bar.update()
        scores = {"loss": mean_loss.get()} if with_loss else {}
        finite = math.isfinite(scores["loss"] if with_loss else looked.get())
        scores.update({metric.name: metric.get() for metric in measured})
    if finite:
        inputs.warn(name)
    else:
        what = f"losses of {name}" if with_loss else f"net's outputs for {name}"
        text = f"the {what} hold NaN or infinity, which metrics count as numbers: accuracy as class 0"
        warnings.warn(f"{text} (T26)", TrapWarning, stacklevel=2)
    return scores


def predict(net: Any, data: Union[Data, Any], *, progress: bool = False) -> Any:
    """Run `net` over every sample, in predict mode.

    Args:
        net: An initialized block. Batches are split over its devices.
        data: An array of shape (N, ...), a `Split` or a dataset, which are cut into batches of 256; or batches `x`
            or `(x, y)` from anything that `updates` reads, of which `y` is ignored. A net of two inputs takes
            `ArrayLoader((x1, x2), None, batch_size=256)`.
        progress: As for `evaluate`.

    Returns:
        Outputs joined in order, an NDArray of shape (N, ...) on the CPU; a tuple of them where the net
        returns several.

    Raises:
        EmptyDataError: `data` gave no batch.
        DataError: `data` is a loader that shuffles: nobody could tell which output belongs to which sample. Or it
            leaves samples out, or carries some over to its next pass, or is a tuple of arrays.
        ForwardError: A block of the net raised; the text names it, and the cause is chained.

    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net)
    >>> predict(net, np.zeros((5, 4))).shape
    (5, 2)
    """
    where = net_devices(net)
    if shuffles(data):
        raise DataError("predict: the loader shuffles, so outputs would not be in the data's order. Pass shuffle=False")
    data = whole_part(data, "predict", labels=False)
    parts: List[List[Any]] = []
    queued, finite, batch = Queued(), _Finite(), None
    several = False
    with autograd.pause(train_mode=False), explained(net, lambda: net(*shard.inputs), lambda: batch), batches_bar(
        "predict", data, None, progress
    ) as bar:
        for batch in read_epoch(data, keep_count=True, packed=worth_packing(where), once=True):
            inputs, _ = unpack(batch)
            shards = split_batch((inputs,), where)
            for shard in (part.unpacked() for part in shards):
                finite.look(shard.inputs)
                output = net(*shard.inputs)
                several = isinstance(output, (list, tuple))
                outputs = list(output) if several else [output]
                parts.append([one.as_in_context(mx.cpu()) for one in outputs])
            results = parts[-len(shards) :]
            wait(queued.add(shards, [part[0] for part in results], chain(*results)))
            bar.update()
        joined = [mx.nd.concat(*column, dim=0) for column in zip(*parts)]
        for one in joined:
            one.wait_to_read()  # an error is raised once, at the first read (T43): it is to be raised here
    finite.warn("predict")
    return tuple(joined) if several else joined[0]


def _output_only(net: Any, inputs: Tuple[Any, ...], labels: Tuple[Any, ...]) -> Tuple[Any, Any]:
    return net(*inputs), None


class _Finite:
    """Whether all inputs so far are finite; asking waits for the device. ReLU and max pooling hide NaN (T25)."""

    def __init__(self) -> None:
        self._sums = Metric()

    def look(self, arrays: Sequence[Any]) -> None:
        for array in arrays:
            if np.dtype(array.dtype).kind == "f":
                self._sums.add_total(array.astype("float32", copy=False).sum(), 1)

    def warn(self, what: str) -> None:
        if not math.isfinite(self._sums.get()):
            text = f"the inputs of {what} hold NaN or infinity, of which ReLU and max pooling make numbers (T25)"
            warnings.warn(text, TrapWarning, stacklevel=3)
