"""Runs a net over data outside of training, for `evaluate`, `predict`, `extract` and others."""

from contextlib import contextmanager
from itertools import islice
from typing import Any, Callable, Iterator, List, Optional, Union

from mxkit.core.arrays import arrays_in, call, worth_packing
from mxkit.core.blocks import is_numpy_net, net_devices
from mxkit.core.device import QUEUED_BATCHES, QueuedBatches, Shard, bytes_of, describe_batch, split_batch, unpack
from mxkit.core.forward_errors import explained
from mxkit.core.statistics import first_statistics
from mxkit.data.source import Data, Source, source_of, whole_source
from mxkit.errors import DataError, ForwardError
from mxkit.training.callbacks.progress import batches_bar
from mxnet import autograd


class Run:
    """A run of a net over data, made by `run_over`: iterating over it gives the shards of each batch.

    Attributes:
        devices: The devices of the net.
        numpy: Whether the net computes on arrays of `mx.np`.
        batch: The newest batch, unchanged; None before the first one.
    """

    def __init__(self, batches: Iterator[Any], net: Any, labels: bool, most_queued: int) -> None:
        self.devices = net_devices(net)
        self.numpy = is_numpy_net(net)
        self.batch: Any = None
        self._batches, self._labels = batches, labels
        self._queued = QueuedBatches(most_queued)
        self._shards: List[Shard] = []
        self._bar: Any = None

    def __iter__(self) -> Iterator[List[Shard]]:
        for batch in self._batches:
            self.batch = batch
            arrays = batch if self._labels else (unpack(batch)[0],)
            self._shards = [shard.unpacked() for shard in split_batch(arrays, self.devices, self.numpy)]
            yield self._shards
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
        due = self.queue(results)
        for array in arrays_in(due[-1:]):  # the batches before it are finished by then, or soon
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
    run = Run(batches if own is None else own(batches), net, labels, most_queued)
    forward = forward or (lambda shard: call(net, shard.inputs))
    with first_statistics(net), autograd.pause(train_mode=train_mode), _named(name, run), explained(
        net, lambda: run.repeat(forward), lambda: run.batch
    ), batches_bar(bar or "", source.batches, limit_batches, bar is not None) as run._bar:
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
    if source.shuffles:
        raise DataError(
            f"{caller}: the loader shuffles, so results would not be in the data's order. Pass shuffle=False{way}"
        )
    if source.sorts:
        raise DataError(
            f"{caller}: BucketLoader sorts sequences by length, so results would not be in the data's order. Make it "
            "with buckets=1, or pass list(loader), and bring the results into the data's order: "
            f"outputs[loader.order(loader.epoch - 1).argsort()]{way}"
        )
    return source
