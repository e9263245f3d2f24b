"""Computes BatchNorm's running statistics from data."""

from contextlib import contextmanager
from functools import partial
from typing import Any, Dict, Iterator, List, Tuple

from mxkit.core.arrays import call, legacy
from mxkit.core.blocks import layer_settings
from mxkit.core.graphs import opened
from mxkit.core.replicas import values_of
from mxkit.core.statistics import batch_norms, kept_statistics
from mxkit.data.source import Data
from mxkit.training.checks import warn_of_single_samples
from mxkit.training.passes import run_over
import mxnet as mx
import numpy as np


def recalibrate_batch_norm(net: Any, data: Data) -> List[str]:
    """Set BatchNorm's running mean and variance to those of its inputs over all of `data`.

    Forward passes alone do not: running statistics move towards the last batches, by the momentum, and on a CPU only in
    the backward pass (T18; on a GPU in the forward pass, T126). Here each sample (and pixel) counts once, for any
    batches, and mean and variance are NumPy's for all inputs of a layer; earlier layers normalize by the batch, as in
    training. Use it after averaging weights, changing the data, or training on small batches.

    Args:
        net: An initialized block, hybridized or not. Batches are split over its devices.
        data: Batches `(x, y)` or `x`, as for `mxkit.updates`, of the size in training; labels are not read.

    Returns:
        Paths of the layers that got new statistics, the same on every device. A layer with use_global_stats, or a
        layer that `data` does not reach, keeps its own.

    Raises:
        ValueError: The net has no BatchNorm that takes statistics from batches, or it is in the graph of a
            SymbolBlock.
        EmptyDataError: `data` has no batch.
        ForwardError: A block of the net raised; the text names it, and the cause is chained. Nothing was changed.

    Side effects:
        Dropout is on, as in training, and draws from MXNet's generator. Momentum, hybridization, hooks and everything
        else do not change.

    >>> net = mx.gluon.nn.BatchNorm(in_channels=1); mxkit.initialize(net, devices="cpu")
    >>> recalibrate_batch_norm(net, [np.array([[1.0], [2.0], [3.0]]), np.array([[6.0], [8.0]])])
    ['']
    >>> [round(float(one.data().asscalar()), 4) for one in (net.running_mean, net.running_var)]
    [4.0, 6.8]
    """
    layers = batch_norms(net)
    if not layers:
        raise ValueError("recalibrate_batch_norm: the net has no BatchNorm that takes its statistics from batches")
    warned = False
    with kept_statistics(net), _observed(net, layers) as moments, run_over(
        net, data, train_mode=True, packed=False, once=False
    ) as run:
        for shards in run:
            if any(shard.samples == 1 for shard in shards) and not warned:
                warn_of_single_samples([path or "BatchNorm" for path in layers])
                warned = True
            run.wait([call(net, shard.inputs) for shard in shards])
        reached = {path: _pooled(list(by_device.values())) for path, by_device in moments.items() if by_device}
    for path, (mean, variance) in reached.items():
        for statistic, value in ((layers[path].running_mean, mean), (layers[path].running_var, variance)):
            for array in values_of(statistic) or ():
                array[:] = value
    return list(reached)


class _Moments:
    """Count, mean and sum of squared deviations of a layer's inputs on one device, in float64 on that device."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, x: Any, axis: int) -> None:
        x = x.astype("float32") if x.dtype == np.float16 else x
        axis %= x.ndim
        others = tuple(i for i in range(x.ndim) if i != axis)
        count = x.size // x.shape[axis]
        mean, variance = (moment.astype("float64") for moment in mx.nd.moments(x, axes=others))
        total = self.count + count
        shift = mean - self.mean
        self.mean = self.mean + shift * (count / total)
        self.squares = self.squares + variance * count + shift * shift * (self.count * count / total)
        self.count = total


def _pooled(parts: List[_Moments]) -> Tuple["np.ndarray", "np.ndarray"]:
    counts = np.array([float(part.count) for part in parts])[:, None]
    means = np.stack([part.mean.asnumpy() for part in parts])
    squares = np.stack([part.squares.asnumpy() for part in parts])
    mean = (means * counts).sum(0) / counts.sum()
    return mean, (squares + counts * (means - mean) ** 2).sum(0) / counts.sum()


@contextmanager
def _observed(net: Any, layers: Dict[str, Any]) -> Iterator[Dict[str, Dict[Any, _Moments]]]:
    """Moments of layers' inputs, by path and device. No graph runs above the layers: hooks never fire in it (T35)."""
    moments: Dict[str, Dict[Any, _Moments]] = {path: {} for path in layers}

    def add(by_device: Dict[Any, _Moments], layer: Any, inputs: Any) -> None:
        if isinstance(inputs[0], mx.nd.NDArray):
            by_device.setdefault(inputs[0].ctx, _Moments()).add(legacy(inputs[0]), layer_settings(layer)["axis"])

    with opened(net, list(layers)):
        handles = [layer.register_forward_pre_hook(partial(add, moments[path])) for path, layer in layers.items()]
        try:
            yield moments
        finally:
            for handle in handles:
                handle.detach()
