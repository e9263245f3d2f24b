"""Runs a net over data outside of training; one such pass computes BatchNorm's running statistics."""

from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from mxkit.core.arrays import arrays_in, call, legacy, worth_packing
from mxkit.core.blocks import blocks_by_path, is_numpy_net, layer_settings, net_devices
from mxkit.core.device import QUEUED_BATCHES, QueuedBatches, Shard, bytes_of, describe_batch, split_batch, unpack
from mxkit.core.forward_errors import explained
from mxkit.core.graphs import attributes_restored, opened
from mxkit.core.replicas import values_of
from mxkit.core.statistics import batch_norms, first_statistics, kept_statistics
from mxkit.data.source import Data, Source, source_of, whole_source
from mxkit.errors import DataError, ForwardError
from mxkit.training.callbacks.progress import batches_bar
from mxkit.training.checks import TokenWatch, warn_of_single_samples
from mxkit.training.time_axes import time_axes_checked
import mxnet as mx
from mxnet import autograd
import numpy as np


class Run:
    """A run of a net over data, made by `run_over`: iterating over it gives the shards of each batch.

    Attributes:
        devices: The devices of the net.
        numpy: Whether the net computes on arrays of `mx.np`.
        batch: The newest batch, unchanged; None before the first one.
        around: Is left after each batch: closes its checks.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        net: Any,
        source: Source,
        labels: bool,
        most_queued: int,
    ) -> None:
        self.devices = net_devices(net)
        self.numpy = is_numpy_net(net)
        self.batch: Any = None
        self.around = ExitStack()
        self._net, self._source, self._batches, self._labels = net, source, batches, labels
        self._queued = QueuedBatches(most_queued)
        self._tokens = TokenWatch(net)
        self._shards: List[Shard] = []
        self._bar: Any = None

    def __iter__(self) -> Iterator[List[Shard]]:
        for number, batch in enumerate(self._batches):
            self.batch = batch
            arrays = batch if self._labels else (unpack(batch)[0],)
            self._shards = [shard.unpacked() for shard in split_batch(arrays, self.devices, self.numpy)]
            if self._tokens.watches:
                self.around.enter_context(self._tokens.watched(self._shards[0], unpack(batch)[0]))
            if not number:
                self.around.enter_context(time_axes_checked(self._net, self._shards[0], batch, self._source))
            yield self._shards
            self.around.close()
            self._bar.update()

    def queue(self, results: Any) -> List[Any]:
        """Add the results of the batch to the queue.

        Args:
            results: Arrays, in nested lists and tuples.

        Returns:
            Results of earlier batches that leave the queue: the caller reads them, or waits for the last one.
        """
        inputs = (array for shard in self._shards for array in shard.inputs)
        return self._queued.add(results, bytes_of(inputs) + bytes_of(arrays_in(results)))

    def wait(self, results: Any) -> None:
        """Add the results of the batch to the queue, and wait for the last batch that leaves it."""
        for array in arrays_in(self.queue(results)[-1:]):  # the batches before it are finished by then, or soon
            array.wait_to_read()

    def rest(self) -> List[Any]:
        """Results of the batches that are still in the queue."""
        return self._queued.rest()

    def repeat(self, forward: Callable[[Shard], Any]) -> None:
        """Repeat the forward pass of the newest batch, to locate an asynchronous MXNet error."""
        for shard in self._shards:
            forward(shard)


@contextmanager
def run_over(
    net: Any,
    data: Union[Data, Source],
    *,
    name: str = "data",
    forward: Optional[Callable[[Shard], Any]] = None,
    train_mode: bool = False,
    labels: bool = False,
    packed: bool = True,
    once: bool = True,
    limit_batches: Optional[int] = None,
    most_queued: int = QUEUED_BATCHES,
    bar: Optional[str] = None,
    own: Optional[Callable[[Iterator[Any]], Iterator[Any]]] = None,
) -> Iterator[Run]:
    """Run a net over data without recording; an error inside `with` names the block and the batch.

    All devices compute with the running statistics of the first one, so that a sample's device does not matter (T71).

    ```
    with run_over(net, data) as run:
        for shards in run:
            run.wait([call(net, shard.inputs) for shard in shards])
    ```

    Args:
        net: An initialized block.
        data: Batches, as for `fit`. A loader's count of epochs stays as it was.
        name: What error messages call the data.
        forward: The call of the net, without side effects; None is `call(net, shard.inputs)`. It is repeated to
            locate an error.
        train_mode: Whether layers behave as in training.
        labels: Copy the labels to the devices, too.
        packed: Accept images as `Packed` if this is faster; shards hold NDArrays.
        once: Refuse data that repeats samples.
        limit_batches: Largest number of batches to read. None reads all.
        most_queued: Largest number of batches in the queue.
        bar: Title of a progress bar. None shows no bar.
        own: Chooses this worker's batches among all. None runs all.

    Raises:
        ForwardError: A block of the net raised, or memory ran out; the cause is chained.
        DeviceError, NotInitializedError: As `net_devices`.
        EmptyDataError, DataError: As `Source.read`.
    """
    source, packed = source_of(data), packed and worth_packing(net_devices(net))
    batches = islice(source.read(name=name, keep_count=True, packed=packed, once=once), limit_batches)
    forward = forward or (lambda shard: call(net, shard.inputs))
    run = Run(batches if own is None else own(batches), net, source, labels, most_queued)
    with first_statistics(net), autograd.pause(train_mode=train_mode), _named(name, run), explained(
        net, lambda: run.repeat(forward), lambda: run.batch
    ), batches_bar(bar or "", source.batches, limit_batches, bar is not None) as run._bar, run.around:
        yield run


@contextmanager
def _named(name: str, run: Run) -> Iterator[None]:
    """Let the error of a block begin with the name of the data, like "valid", and with its batch."""
    try:
        yield
    except ForwardError as error:
        if name == "data":
            raise
        batch = "" if run.batch is None else describe_batch(run.batch)
        where = name if batch in str(error) else f"{name}, batch {batch}"  # an error for lack of memory has it
        raise ForwardError(f"{where}: {error}", error.path, error.block) from error.__cause__


def without_rows(
    net: Any, forward: Callable[..., Any], shard: Shard, shapes: Iterable[Tuple[int, ...]]
) -> Optional[str]:
    """Describe an output whose first axis had the length of the batch by chance; None if all hold a row per sample.

    States of shape (layers, samples, units) look like rows if there are as many layers as samples. A call with one
    sample less shows it. It is made only where a shape holds the number of samples in another axis, too.

    Args:
        net: The net.
        forward: Returns arrays, in nested lists and tuples, for the inputs of a shard.
        shard: The newest shard.
        shapes: Of its outputs.
    """
    fewer = shard.samples - 1
    if not fewer or all(shard.samples not in shape[1:] for shape in shapes):
        return None
    # of any type: a net may be made for one size of the batch
    with suppress(Exception), attributes_restored([block for _, block in blocks_by_path(net)]):
        for array in arrays_in(forward(*(one[:fewer] for one in shard.inputs))):
            array.wait_to_read()
            if array.shape[:1] != (fewer,):
                return f"{array.shape} for {fewer} sample{'s' * (fewer > 1)}"
    return None


def samples_in_order(data: Any, caller: str, way: str = "", **options: Any) -> Source:
    """Return batches that hold each sample once, in the order of the data.

    Args:
        data: As for `whole_source`.
        caller: The function that needs it, for error messages.
        way: More advice, for data that is shuffled.
        options: As for `whole_source`.

    Raises:
        DataError: A loader shuffles or sorts, so that results cannot be assigned to samples; or as `whole_source`.
    """
    source = whole_source(data, caller, **options)
    if source.shuffles or source.sorts:
        does, pass_ = ("shuffles", "shuffle=False") if source.shuffles else ("sorts by length", "buckets=1")
        raise DataError(f"{caller}: the loader {does}, so results would not be in the data's order. Pass {pass_}{way}")
    return source


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
                warn_of_single_samples(net, list(layers), shards[-1])
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
