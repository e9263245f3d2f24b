"""BatchNorm's statistics taken anew from data, and predictions with dropout left on."""

from contextlib import contextmanager
from functools import partial
import os
from typing import Any, Dict, Iterator, List, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import arrays_in
from mxkit.core.blocks import blocks_by_path, layer_settings, net_devices
from mxkit.core.device import split_batch, unpack
from mxkit.core.forward_errors import explained
from mxkit.core.graphs import graph_json, opened
from mxkit.core.statistics import batch_norms, kept_statistics, running_statistics
from mxkit.data.source import Data, read_epoch, shuffles, whole_part
from mxkit.errors import DataError
from mxkit.training.checks import warn_of_single_samples
from mxkit.training.unread import Queued, wait
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np


def recalibrate_batch_norm(net: Any, data: Data) -> List[str]:
    """Set BatchNorm's running mean and variance to those of its inputs over all of `data`.

    Forward passes alone do not: running statistics move towards the last batches, by the momentum, and on a CPU in the
    backward pass only (T18; on a GPU in the forward pass, T126). Here each sample (and pixel) counts once, however
    batches are cut, and mean and variance are those that NumPy would give for the whole of a layer's inputs; earlier
    layers normalize by the batch, as in training. Use it after averaging weights, changing the data, or training on
    small batches.

    Args:
        net: An initialized block, hybridized or not. Batches are split over its devices.
        data: Batches `(x, y)` or `x`, as for `mxkit.updates`; labels are not read. Batches of the size that was
            trained with.

    Returns:
        Paths of the layers that got new statistics, the same on every device. A layer with use_global_stats, or one
        that `data` does not come through, keeps its own.

    Raises:
        ValueError: The net has no BatchNorm that takes statistics from batches, or it is in the graph of a
            SymbolBlock.
        EmptyDataError: `data` gave no batch.
        ForwardError: A block of the net raised; the text names it, and the cause is chained. Nothing was changed.

    Side effects:
        Dropout drops, as in training: numbers are drawn from MXNet's generator. Momentum, hybridization, hooks and
        everything else stay as they are.

    >>> net = mx.gluon.nn.BatchNorm(in_channels=1); mxkit.initialize(net, devices="cpu")
    >>> recalibrate_batch_norm(net, [np.array([[1.0], [2.0], [3.0]]), np.array([[6.0], [8.0]])])
    ['']
    >>> [round(float(one.data().asscalar()), 4) for one in (net.running_mean, net.running_var)]
    [4.0, 6.8]
    """
    layers = batch_norms(net)
    if not layers:
        raise ValueError("recalibrate_batch_norm: the net has no BatchNorm that takes its statistics from batches")
    warned, queued, where, batch = False, Queued(), net_devices(net), None
    with kept_statistics(net), _watched(net, layers) as moments, autograd.pause(train_mode=True), explained(
        net, lambda: [net(*shard.inputs) for shard in shards], lambda: batch
    ):
        for batch in read_epoch(data, keep_count=True):
            shards = split_batch((unpack(batch)[0],), where)
            if any(shard.samples == 1 for shard in shards) and not warned:
                warn_of_single_samples([path or "BatchNorm" for path in layers])
                warned = True
            outputs = arrays_in([net(*shard.inputs) for shard in shards])
            wait(queued.add(shards, outputs, outputs))
        reached = {path: _joined(list(found.values())) for path, found in moments.items() if found}
    for path, (mean, variance) in reached.items():
        layers[path].running_mean.set_data(mx.nd.array(mean, dtype="float32"))
        layers[path].running_var.set_data(mx.nd.array(variance, dtype="float32"))
    return list(reached)


class _Moments:
    """Count, mean and sum of squared deviations of what one layer saw on one device, kept there in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, x: Any, axis: int) -> None:
        x = x.astype("float32") if x.dtype == np.float16 else x
        axis %= x.ndim
        others = tuple(one for one in range(x.ndim) if one != axis)
        count = x.size // x.shape[axis]
        mean, variance = (one.astype("float64") for one in mx.nd.moments(x, axes=others))
        total = self.count + count
        apart = mean - self.mean
        self.mean = self.mean + apart * (count / total)
        self.squares = self.squares + variance * count + apart * apart * (self.count * count / total)
        self.count = total


def _joined(parts: List[_Moments]) -> Tuple["np.ndarray", "np.ndarray"]:
    counts = np.array([float(part.count) for part in parts])[:, None]
    means = np.stack([part.mean.asnumpy() for part in parts])
    squares = np.stack([part.squares.asnumpy() for part in parts])
    mean = (means * counts).sum(0) / counts.sum()
    return mean, (squares + counts * (means - mean) ** 2).sum(0) / counts.sum()


@contextmanager
def _watched(net: Any, layers: Dict[str, Any]) -> Iterator[Dict[str, Dict[Any, _Moments]]]:
    """Gather what layers see, by path and device; above them no graph runs, in which hooks never fire (T35)."""
    moments: Dict[str, Dict[Any, _Moments]] = {path: {} for path in layers}

    def see(found: Dict[Any, _Moments], layer: Any, inputs: Any) -> None:
        if isinstance(inputs[0], mx.nd.NDArray):
            found.setdefault(inputs[0].context, _Moments()).add(inputs[0], layer_settings(layer)["axis"])

    with opened(net, list(layers)):
        handles = [layer.register_forward_pre_hook(partial(see, moments[path])) for path, layer in layers.items()]
        try:
            yield moments
        finally:
            for handle in handles:
                handle.detach()


def predict_mc_dropout(net: Any, data: Any, draws: int = 20) -> Any:
    """Run `net` several times with dropout left on, while everything else predicts: Monte-Carlo dropout.

    Gal and Ghahramani 2015, arXiv:1506.02142. The spread over draws tells how unsure the net is. In
    `autograd.train_mode()` BatchNorm would take its statistics from the batch, so that samples of a batch
    change each other's outputs; here it uses its running ones.

    Args:
        net: An initialized block with dropout, hybridized or not. Batches are split over its devices.
        data: An array of shape (N, ...), which is cut into batches of 256; or batches `x` or `(x, y)`, of which `y`
            is ignored.
        draws: How often each sample is predicted, at least 1.

    Returns:
        NDArray of shape (draws, N, ...) on the CPU: `.mean(0)` is the prediction.

    Raises:
        ValueError: The net has no dropout, so that all draws would be equal; or it has several outputs, or BatchNorm
            in the graph of a SymbolBlock.
        EmptyDataError: `data` gave no batch.
        DataError: `data` is a loader that shuffles.
        ForwardError: A block of the net raised; the text names it, and the cause is chained.

    Side effects:
        Draws from MXNet's generator: call `mxkit.seed_all` first for the same draws every time.

    >>> net = mxkit.models.mlp(3, hidden=[8], dropout=0.5); mxkit.initialize(net, devices="cpu")
    >>> predict_mc_dropout(net, np.ones((5, 4)), draws=6).shape
    (6, 5, 3)
    """
    whole_number(draws, "predict_mc_dropout: draws")
    _refuse_certain(net)
    if shuffles(data):
        raise DataError(
            "predict_mc_dropout: the loader shuffles, so outputs would not be in the data's order. Pass shuffle=False"
        )
    data = whole_part(data, "predict_mc_dropout", labels=False)
    parts: List[Any] = []
    where, batch = net_devices(net), None
    with running_statistics(net), autograd.pause(train_mode=True), explained(
        net, lambda: [net(*shard.inputs) for shard in shards], lambda: batch
    ):
        for batch in read_epoch(data, keep_count=True):
            shards = split_batch((unpack(batch)[0],), where)
            for shard in shards:
                outputs = [_one_output(net(*shard.inputs)) for _ in range(draws)]
                parts.append(mx.nd.stack(*outputs, axis=0).as_in_context(mx.cpu()))
            wait([parts[-len(shards) :]])  # `draws` passes over a batch are enough to queue
    return mx.nd.concat(*parts, dim=1)


def _one_output(output: Any) -> Any:
    if isinstance(output, (list, tuple)):
        raise ValueError(f"predict_mc_dropout: the net gives {len(output)} outputs: wrap it in a block that gives one")
    return output


def _refuse_certain(net: Any) -> None:
    # oneDNN's recurrent layers ignore their dropout in silence, in training too
    recurrent = os.environ.get("MXNET_USE_MKLDNN_RNN") == "0" or net_devices(net)[0].device_type != "cpu"
    for _, block in blocks_by_path(net):
        if isinstance(block, gluon.SymbolBlock):
            random = '"op": "Dropout"' in graph_json(block)
        elif isinstance(block, gluon.rnn.rnn_layer._RNNLayer):
            random = recurrent and block._dropout > 0 and block._num_layers > 1
        else:
            random = getattr(block, "_rate", 0) > 0
        if random:
            return
    raise ValueError(
        "predict_mc_dropout: the net has no dropout, so all draws would be equal; that of gluon.rnn's layers does "
        "nothing on the CPU unless MXNET_USE_MKLDNN_RNN=0 is set before the program starts. Use mxkit.predict"
    )
