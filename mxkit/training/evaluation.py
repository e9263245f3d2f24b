"""Computes scores, predictions and features of a net over data."""

from functools import partial
from itertools import chain
import math
import os
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union
import warnings

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import call, legacy, of_kind, outputs_of, switches
from mxkit.core.blocks import blocks_by_path, net_devices
from mxkit.core.device import Shard, unpack
from mxkit.core.graphs import block_operators
from mxkit.core.statistics import running_statistics
from mxkit.data.source import Data, Source, whole_source
from mxkit.errors import DataError, TrapWarning
from mxkit.losses.named_losses import BatchLoss, BatchLossSpec, get_batch_loss
from mxkit.metrics import Metric, MetricSpec, get_metrics
from mxkit.nets.features import Features, Names
from mxkit.training.checks import check_modes, check_recurrent_settings
from mxkit.training.loss_checks import check_first_batch, check_loss_shape, check_moved_labels
from mxkit.training.passes import run_over, samples_in_order, without_rows
from mxkit.training.workers import Workers
import mxnet as mx
from mxnet import gluon
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

    With several workers it runs on this one alone, over all of `data`, also if only one of them calls it.

    Args:
        net: An initialized block. Batches are split over its devices.
        data: Batches `(x, y)`, as for `updates`; or samples, which are cut into batches of 256: a `Split`, a pair
            `(x, y)` of arrays, or a dataset. Arrays of images of uint8 are divided by 255, as by `ArrayLoader`:
            `ArrayLoader(x, y, 256, scale=1.0)` keeps their values; a dataset's samples stay as they are.
        loss: As for `updates`, or None for metrics alone; a `mxkit.losses.BatchLoss` is allowed.
        metrics: As for `fit`.
        limit_batches: Most batches to read. None reads all.
        name: Name of the data in messages.
        progress: Show a bar on a terminal or in a notebook if it takes more than a second.

    Returns:
        `{"loss": mean per sample, metric's name: value, ...}`. Every sample counts once, so the numbers do
        not depend on how samples are cut into batches.

    Raises:
        ValueError: There is neither a loss nor a metric.
        EmptyDataError: `data` has no batch.
        DataError: `data` leaves samples out, or carries some over to its next pass.
        LossShapeError: `loss` does not return one value per sample.
        LabelError: A label has no meaning for the loss, like a class number out of range.
        DataError: The loss does not accept the shape of labels or weights; or the count of all batches is 0.
        ForwardError: A block of the net raised; the text names it, and the cause is chained.

    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net, "zeros")
    >>> scores = evaluate(net, [(np.zeros((3, 4)), np.array([0, 0, 1]))], loss="softmax_ce", metrics=["accuracy"])
    >>> {name: round(value, 4) for name, value in scores.items()}
    {'loss': 0.6931, 'accuracy': 0.6667}
    """
    if loss is None and not metrics:
        raise ValueError("evaluate: nothing to compute; pass loss=..., metrics=[...] or both")
    check_recurrent_settings(net)
    scores = scores_of(
        net, data, Workers(), loss=loss, metrics=metrics, limit_batches=limit_batches, name=name, progress=progress
    )
    check_modes(net, training=False)
    return scores


def scores_of(
    net: Any,
    data: Union[Data, Source],
    workers: Workers,
    *,
    loss: Optional[BatchLossSpec],
    metrics: Sequence[MetricSpec],
    limit_batches: Optional[int] = None,
    name: str = "valid",
    progress: bool = False,
) -> Dict[str, Any]:
    """What `evaluate` returns; with several workers of all their samples, of which each reads its share.

    Args:
        workers: All workers, which make this call at the same place.
    """
    source = whole_source(data, name)
    batch_loss = _loss_of(loss, metrics, source, name)
    loss_alone: Any = None if batch_loss is None else batch_loss.loss
    forward: Any = (lambda net, *arrays: (call(net, arrays[0]), None)) if batch_loss is None else batch_loss.forward
    own_counts = batch_loss is not None and batch_loss.counts
    mean, measured = Metric(), get_metrics(metrics, loss=loss_alone)
    inputs, checked = _Finite(), batch_loss is None
    with workers.shared(source), run_over(
        net,
        source,
        name=name,
        forward=lambda shard: forward(net, shard.inputs, shard.labels),
        labels=True,
        packed=not own_counts,
        limit_batches=None if limit_batches is None else limit_batches * workers.turns(source),
        bar=name if progress else None,
        own=partial(workers.in_turn, data=source, where=name),
    ) as run:
        for shards in run:
            stated = batch_loss.count(*unpack(run.batch)) if batch_loss is not None and own_counts else None
            results = []
            for shard in shards:
                inputs.add(shard.inputs)
                output, losses = forward(net, shard.inputs, shard.labels)
                if batch_loss is None:  # the sum shows whether the outputs are finite
                    losses = legacy(outputs_of(output[:1] if isinstance(output, (list, tuple)) else output, name)[0])
                else:
                    check_loss_shape(losses, shard.samples)
                if not checked:
                    check_first_batch(net, shard, output, loss_alone, source)
                    checked = True
                mean.add(losses, stated)
                stated = None if stated is None else 0.0  # the count is that of the whole batch
                for metric in measured:
                    metric.input_shape = shard.inputs[0].shape
                    with switches(shard.numpy):
                        metric.update(shard.labels, output)
                results.append(losses)
            run.wait(results)
        workers.join_metrics([mean, *measured], f"of {name}")
        if not mean.state()[0]["samples"]:
            raise DataError(f"the count of all batches of {name} is 0: none of the samples counts. Pass other weights")
        value = mean.get()
        values = {metric.name: metric.get() for metric in measured}
    if math.isfinite(value):
        inputs.warn(name)
    else:
        _warn_of_results(f"net's outputs for {name}" if batch_loss is None else f"losses of {name}", bool(measured))
    return values if batch_loss is None else {"loss": value, **values}


def _loss_of(
    loss: Optional[BatchLossSpec], metrics: Sequence[MetricSpec], source: Source, name: str
) -> Optional[BatchLoss]:
    """The loss, or None without one, and for nets that have none in predict mode."""
    batch_loss = None if loss is None else get_batch_loss(loss)
    if batch_loss is not None:
        check_moved_labels(batch_loss, source, name)
    if batch_loss is None or not batch_loss.only_in_training:
        return batch_loss
    if not metrics:
        raise ValueError(f"{name}: the net has this loss in training alone; pass metrics=[...]")
    return None


def _warn_of_results(what: str, measured: bool) -> None:
    read = ", which metrics count as numbers: accuracy as class 0" if measured else ""
    warnings.warn(f"the {what} hold NaN or infinity{read} (T26)", TrapWarning, stacklevel=3)


def predict(net: Any, data: Union[Data, Any], *, progress: bool = False) -> Any:
    """Run `net` over every sample, in predict mode.

    With several workers it runs on this one alone, over all of `data`, also if only one of them calls it. If all parts
    are of one size, which an output has in another axis too, the net is called once more, on one sample less: states of
    shape (layers, samples, units) would else look like rows.

    Args:
        net: An initialized block. Batches are split over its devices.
        data: An array of shape (N, ...), a DataFrame, a `Split` or a dataset, which are cut into batches of 256; or
            batches `x` or `(x, y)` from anything that `updates` reads; `y` is ignored. Arrays of images of uint8 are
            divided by 255, as by `ArrayLoader`: `ArrayLoader(x, None, 256, scale=1.0)` keeps their values; a dataset's
            samples stay as they are. A net of two inputs takes `ArrayLoader((x1, x2), None, batch_size=256)`.
        progress: As for `evaluate`.

    Returns:
        Outputs joined in order, an NDArray of shape (N, ...) on the CPU; a tuple if the net returns several.

    Raises:
        EmptyDataError: `data` has no batch.
        DataError: `data` is a loader that shuffles, or sorts by length: outputs would not be in the order of the
            samples. Or it leaves samples out, or carries some over to its next pass, or is a tuple of arrays. Or an
            output does not have one row per sample, and there are several batches, or parts on several devices.
        TypeError: The net returns a dict or nested outputs.
        ForwardError: A block of the net raised; the text names it, and the cause is chained.

    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net)
    >>> predict(net, np.zeros((5, 4))).shape
    (5, 2)
    """
    check_recurrent_settings(net)
    data = samples_in_order(data, "predict", labels=False)
    parts: List[Sequence[Any]] = []
    others: List[Tuple[int, ...]] = []
    inputs, several = _Finite(), False
    sizes: Set[int] = set()
    with run_over(net, data, bar="predict" if progress else None) as run:
        for shards in run:
            for shard in shards:
                inputs.add(shard.inputs)
                output = call(net, shard.inputs)
                several = isinstance(output, (list, tuple))
                outputs = legacy(outputs_of(output, "predict"))
                others += [array.shape for array in outputs if array.shape[:1] != (shard.samples,)]
                parts.append([array.as_in_context(mx.cpu()) for array in outputs])
                sizes.add(shard.samples)
                if others and len(parts) > 1:
                    raise _not_joined("predict", str(others[0]))
            run.wait(parts[-len(shards) :])
        if len(parts) > 1 and len(sizes) == 1:
            other = without_rows(net, lambda *inputs: call(net, inputs), shard, [array.shape for array in parts[-1]])
            if other:
                raise _not_joined("predict", other)
        joined = [of_kind(_joined(column, dim=0), run.numpy) for column in zip(*parts)]
    inputs.warn("predict")
    check_modes(net, training=False)
    return tuple(joined) if several else joined[0]


def _not_joined(caller: str, shape: str) -> DataError:
    text = f"an output of the net has the shape {shape}, not one row per sample: batches cannot be joined"
    return DataError(f"{caller}: {text}. Call the net on each, or let it return the samples in the first axis")


def predict_mc_dropout(net: Any, data: Any, draws: int = 20) -> Any:
    """Run `net` several times with dropout on and all other layers in predict mode: Monte-Carlo dropout.

    Gal and Ghahramani 2015, arXiv:1506.02142. The spread over draws measures the net's uncertainty. In
    `autograd.train_mode()` BatchNorm would take its statistics from the batch, so that samples of a batch
    change each other's outputs; here it uses its running statistics.

    Args:
        net: An initialized block with dropout, hybridized or not. Batches are split over its devices.
        data: As for `predict`.
        draws: Number of predictions per sample, at least 1.

    Returns:
        NDArray of shape (draws, N, ...) on the CPU: `.mean(0)` is the prediction.

    Raises:
        ValueError: The net has no dropout, so that all draws would be equal; or it has several outputs, or BatchNorm
            in the graph of a SymbolBlock.
        EmptyDataError: `data` has no batch.
        DataError: `data` is a loader that shuffles, or an output does not have one row per sample.
        ForwardError: A block of the net raised; the text names it, and the cause is chained.

    Side effects:
        Draws from MXNet's generator: call `mxkit.seed_all` first for the same draws every time.

    >>> net = mxkit.models.mlp(3, hidden=[8], dropout=0.5); mxkit.initialize(net, devices="cpu")
    >>> predict_mc_dropout(net, np.ones((5, 4)), draws=6).shape
    (6, 5, 3)
    """
    whole_number(draws, "predict_mc_dropout: draws")
    _refuse_without_dropout(net)
    data = samples_in_order(data, "predict_mc_dropout", labels=False)
    parts: List[Any] = []
    # one batch has `draws` passes to queue
    with running_statistics(net), run_over(net, data, train_mode=True, most_queued=1) as run:
        for shards in run:
            for shard in shards:
                outputs = legacy([call(net, shard.inputs) for _ in range(draws)])
                if isinstance(outputs[0], (list, tuple)):
                    raise ValueError("predict_mc_dropout: the net returns several outputs: wrap it in a block with one")
                if outputs[0].shape[:1] != (shard.samples,):
                    raise _not_joined("predict_mc_dropout", str(outputs[0].shape))
                parts.append(mx.nd.stack(*outputs, axis=0).as_in_context(mx.cpu()))
            run.wait(parts[-len(shards) :])
        if len(parts) > 1 and len({part.shape[1] for part in parts}) == 1:
            other = without_rows(net, lambda *inputs: call(net, inputs), shards[-1], [parts[-1].shape[1:]])
            if other:
                raise _not_joined("predict_mc_dropout", other)
        return of_kind(_joined(parts, dim=1), run.numpy)


def _joined(arrays: Sequence[Any], dim: int) -> Any:
    joined = mx.nd.concat(*arrays, dim=dim)
    joined.wait_to_read()  # MXNet raises an error only at the first read (T43), which must be here
    return joined


def _refuse_without_dropout(net: Any) -> None:
    # on the CPU, oneDNN's recurrent layers ignore their dropout silently, in training too
    recurrent = os.environ.get("MXNET_USE_MKLDNN_RNN") == "0" or net_devices(net)[0].device_type != "cpu"

    def draws(block: Any) -> bool:
        if isinstance(block, gluon.rnn.rnn_layer._RNNLayer):
            return bool(recurrent and block._dropout > 0 and block._num_layers > 1)
        return getattr(block, "_rate", 0) > 0 or any(one.operator == "Dropout" for one in block_operators(block))

    if not any(draws(block) for _, block in blocks_by_path(net)):
        text = "the net has no dropout, so all draws would be equal (layers of gluon.rnn have none on the CPU, unless"
        raise ValueError(f"predict_mc_dropout: {text} the program needs MXNET_USE_MKLDNN_RNN=0). Use mxkit.predict")


class _Finite:
    """Finds NaN and infinity in inputs, which ReLU and max pooling hide (T25)."""

    def __init__(self) -> None:
        self._sums = Metric()
        self._any = False

    def add(self, arrays: Sequence[Any]) -> None:
        for array in arrays:
            if np.dtype(array.dtype).kind == "f":
                self._sums.add_total(legacy(array).astype("float32", copy=False).sum(), 1)
                self._any = True

    def warn(self, what: str) -> None:
        """Warn of inputs that are not finite; waits for the device."""
        if self._any and not math.isfinite(self._sums.get()):
            text = f"the inputs of {what} hold NaN or infinity, which ReLU and max pooling turn into numbers (T25)"
            warnings.warn(text, TrapWarning, stacklevel=3)


def extract(
    net: Any,
    names: Names,
    data: Union[Data, Any],
    *,
    labels: Optional[str] = None,
    limit_batches: Optional[int] = None,
    progress: bool = True,
) -> Dict[str, "np.ndarray"]:
    """Compute features of every sample, in predict mode, for example to train a small net on them.

    Args:
        net: An initialized block. Batches are split over its devices.
        names: As for `Features`.
        data: An array of shape (N, ...), which is cut into batches of 256, images of uint8 divided by 255; or batches
            `x` or `(x, y)` from anything that `updates` reads.
        labels: Name for the batches' `y`, to return them too; then `data` may shuffle. None returns no labels.
        limit_batches: Most batches to read. None reads all.
        progress: Show a bar on a terminal.

    Returns:
        Arrays of shape (N, ...) by name, samples in the order of `data`; float32 stays float32.

    Raises:
        EmptyDataError: `data` has no batch.
        DataError: `data` shuffles, and `labels` is None; or a layer's output does not have one row per sample.
        ValueError: A feature has the name of the labels; or rows of batches differ in shape.

    >>> net = mxkit.models.mlp(hidden=[8]); mxkit.initialize(net)
    >>> x, y = np.zeros((5, 4), "float32"), np.arange(5)
    >>> found = extract(net, {"hidden": "1"}, mxkit.data.ArrayLoader(x, y, 2), labels="label")
    >>> {name: array.shape for name, array in found.items()}
    {'hidden': (5, 8), 'label': (5,)}
    """
    features = Features(net, names)
    if labels is None:
        data = samples_in_order(data, "extract", ", or labels='label' to get them in the same order", labels=False)
    else:
        data = whole_source(data, "extract", labels=isinstance(data, tuple))
    parts: Dict[str, List[Any]] = {}

    def add(batches: Sequence[Any]) -> None:
        for name, array in chain.from_iterable(chain.from_iterable(batches)):
            parts.setdefault(name, []).append(_host(array))

    with run_over(
        net,
        data,
        forward=lambda shard: features(*shard.inputs),
        labels=labels is not None,
        limit_batches=limit_batches,
        bar="extract" if progress else None,
    ) as run:
        for shards in run:
            add(run.queue([_rows(features, shard, labels) for shard in shards]))
        add(run.rest())
        if len({len(array) for arrays in parts.values() for array in arrays}) == 1:
            shapes = [arrays[-1].shape for arrays in parts.values()]
            other = without_rows(net, lambda *inputs: list(_flat(features(*inputs)).values()), shards[-1], shapes)
            if other:
                text = f"an output has the shape {other}, not a row per sample"
                raise DataError(f"extract: {text}. Take a layer whose first axis is the batch")
    return {name: np.concatenate(parts.pop(name)) for name in list(parts)}


def _rows(features: Features, shard: Shard, labels: Optional[str]) -> List[Tuple[str, Any]]:
    """Features of a shard by name, still on its device."""
    rows = _flat(features(*shard.inputs))
    if labels is not None:
        if not shard.labels:
            raise DataError("extract: labels: expected batches (x, y); received x alone")
        named = _flat({labels: shard.labels[0] if len(shard.labels) == 1 else shard.labels})
        twice = sorted(set(named) & set(rows))
        if twice:
            raise ValueError(f"extract: a feature is called {twice[0]!r} too; pass another name for the labels")
        rows.update(named)
    for name, array in rows.items():
        if array.shape[:1] != (shard.samples,):
            wanted = f"extract: {name!r}: expected a row per sample, ({shard.samples}, ...)"
            raise DataError(f"{wanted}; received shape {array.shape}. Take a layer whose first axis is the batch")
    return list(rows.items())


def _flat(values: Dict[str, Any]) -> Dict[str, Any]:
    """Several outputs of one layer as `name[0]`, `name[1]`."""
    flat: Dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            flat.update(_flat({f"{name}[{number}]": part for number, part in enumerate(value) if part is not None}))
        else:
            flat[name] = value
    return flat


def _host(array: Any) -> "np.ndarray":
    host: np.ndarray = array.asnumpy()
    # NumPy has no bfloat16
    return host if host.dtype.kind in "fiub" else host.astype(np.float32)
