"""BatchNorm's running statistics, computed from data."""

from contextlib import contextmanager
from functools import partial
from typing import Any, Dict, Iterator, List, Tuple

from mxkit.core.blocks import layer_settings
from mxkit.core.graphs import opened
from mxkit.core.statistics import batch_norms, kept_statistics
from mxkit.data.source import Data
from mxkit.training.checks import warn_of_single_samples
from mxkit.training.passes import run_over
import mxnet as mx
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
    warned = False
    with kept_statistics(net), _watched(net, layers) as moments, run_over(
        net, data, train_mode=True, packed=False, once=False
    ) as run:
        for shards in run:
            if any(shard.samples == 1 for shard in shards) and not warned:
                warn_of_single_samples([path or "BatchNorm" for path in layers])
                warned = True
            run.wait([net(*shard.inputs) for shard in shards])
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
