"""The training loop as a generator: one record for each optimizer update."""

from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import net_devices
from mxkit.core.device import DeviceSpec, Shards, split_batch, unpack
from mxkit.core.device import devices as resolve_devices
from mxkit.core.graphs import drop_static_graphs
from mxkit.core.packed import worth_packing
from mxkit.core.replicas import GradientWatch
from mxkit.core.trainers import TrainerSpec, get_trainer, trainer_parameters
from mxkit.data.order import EpochOrder
from mxkit.data.source import Data, can_skip, read_epoch
from mxkit.errors import DataError
from mxkit.gradients.custom import check_backward
from mxkit.losses.by_name import Forward, ForwardLoss, Loss, LossSpec, forward_function
from mxkit.metrics import Metric
from mxkit.training.accumulator import Accumulator
from mxkit.training.checks import (
    ShapeWatch,
    batch_norms,
    check_accumulation,
    check_first_inputs,
    check_frozen_dense,
    check_trainer,
    warn_of_single_samples,
)
from mxkit.training.deferred import finish_initialization
from mxkit.training.gpu_exactness import warn_of_inexact
from mxkit.training.loss_checks import check_first_batch, check_loss_shape, warn_of_two_losses
from mxkit.training.one_graph import OneGraph
from mxkit.training.place import Place
from mxkit.training.precision import MixedPrecision, get_precision
from mxkit.training.randomness import RESEED_EVERY, Grid, Position, draws_random_numbers, reads_user_code
from mxkit.training.record import Update
from mxkit.training.unread import Unread
import mxnet as mx
from mxnet import autograd, gluon

Count = Callable[[Tuple[Any, ...], Tuple[Any, ...]], float]


def updates(
    net: Any,
    data: Data,
    *,
    loss: Optional[LossSpec] = None,
    trainer: TrainerSpec,
    forward_loss: Optional[ForwardLoss] = None,
    accumulate: int = 1,
    accumulate_samples: Optional[int] = None,
    clip_norm: Optional[float] = None,
    clip_value: Optional[float] = None,
    count: Optional[Count] = None,
    amp: Union[None, str, MixedPrecision] = None,
    limit_batches: Optional[int] = None,
    metrics: Sequence[Metric] = (),
    devices: Optional[DeviceSpec] = None,
    check_finite: bool = True,
    epoch: Optional[int] = None,
    first_step: int = 1,
    seed: Optional[int] = None,
    skip: Tuple[Any, ...] = (0, 0),
) -> Iterator[Update]:
    """Train on one epoch of `data` and yield once per optimizer update.

    The gradient of an update is the mean over every sample it saw, so the result equals one big batch,
    also where batches differ in size or are split over devices. A last window shorter than `accumulate`
    is applied with its true count.

    ```
    for each batch of data:
        split it over the devices of the net
        record: losses = loss(net(x), y) on each device
        backward; add the gradients to the window
        if the window is full, or the data ends:
            reduce over devices once; clip; trainer.update(true number of samples)
            yield Update
    ```

    Args:
        net: An initialized block. Batches are split over the devices its parameters live on.
        data: Batches `(x, y)` or tuples of arrays in either place, shapes (B, ...): an iterable, a function
            that returns one, or an `mx.io.DataIter`.
        loss: A name like "softmax_ce", a pair of a name and arguments, or a callable
            `loss(net(*x), *y)`. It must give shape (B,), one value per sample. After the labels a batch may hold
            sample weights, `(x, (y, w))`: of shape (B,), or of the labels' shape for a weight per position.
        trainer: A `gluon.Trainer` over the net's parameters, or an optimizer as for `get_trainer`. One over the last
            layers only is taken with a warning, unless the others are frozen.
        forward_loss: In place of `loss`, for nets of several losses or of another way to be called (detection,
            siamese pairs): `forward_loss(net, inputs, labels)` gets tuples of arrays on one device and gives
            the losses, or `(losses, output)` where metrics are to see an output.
        accumulate: Batches per update, at least 1.
        accumulate_samples: In place of `accumulate`: an update when the window holds this many samples or more.
        clip_norm: Largest L2 norm of the averaged gradient; `float("inf")` only measures it.
        clip_value: Largest absolute value of each element of the averaged gradient, after `clip_norm`.
        count: `count(inputs, labels)` states what a batch adds to the number that losses and gradients are divided
            by, where it is not the number of samples: the sum of sample weights, or of the tokens that a mask
            leaves. It gets tuples of the batch's arrays as the data gave them; from NumPy it waits for nothing.
        amp: "bfloat16" (on CPUs) or "float16": compute the net in 16 bits, its parameters stay float32. With float16
            the loss is scaled, an update whose gradients overflow is skipped, and each update waits for its gradients.
        limit_batches: Read no more batches than this, for a dry run. None reads all.
        metrics: `Metric` objects, updated with every training batch as the weights move; one that knows no loss gets
            this one.
        devices: What `mxkit.devices` takes; an error tells if the net lives elsewhere. None accepts any.
        check_finite: Stop when a loss, a gradient norm or a weight is NaN or infinite. Losses and norms are
            looked at for every update, weights (in which NaN can hide behind a finite loss) every 64
            updates and at the end. It is noticed when the numbers are read, at most 96 updates later, or 384 where
            the device takes less than 4 ms for one; the error tells the update where it began.
        epoch: Number of the epoch from 0, which decides the order of a shuffling mxkit loader. None leaves
            it to the loader, which counts how often it was read.
        first_step: Number of the first update. The first batch is checked for what Gluon gets wrong in silence
            only where this is 1.
        seed: Makes all randomness a function of (seed, epoch, update): Python's, NumPy's and MXNet's generators
            are seeded at the start and, where something draws numbers, every 16 updates (T67). Values of the net
            that wait for the first batch's shape are drawn before. None leaves the generators alone.
        skip: `(batches, updates)` of this epoch that a stopped run had done, or a `Position`: batches of a loader with
            `skip` are left out, others are read and dropped.

    Yields:
        `Update(step, samples, loss, grad_norm)`. Reading `loss` or `grad_norm` waits for the device; else
        the loop waits once every 64 updates (256, where the device takes less than 4 ms for one), sooner where batches
        are large, for numbers that are old.

    Raises:
        TypeError: `metrics` holds something that is no `Metric`.
        NotInitializedError: The net is not initialized.
        DeviceError: The net lives on other devices than asked for; or on a GPU, which has no bfloat16.
        EmptyDataError: `data` gave no batch.
        LossShapeError: `loss` did not give one value per sample.
        LabelError: A label means nothing to the loss, as a class number out of range.
        DataError: Labels or weights have a shape that the loss has no meaning for.
        UnusedParameterError: A trainable parameter got no gradient.
        NonFiniteError: A loss or a gradient is NaN or infinite.
        TrainingError: The net, the loss or the engine raised; the cause is chained.
        UnknownNameError: No loss or optimizer has the name given.
        ValueError: The Trainer does not know parameters that were added to the net after it was made (T19).
        TypeError: `amp` is asked for a net that is no HybridBlock.

    Side effects:
        `grad_req` is "add" while iterating, if `accumulate` is above 1, and is restored on exit, break or
        error.

    >>> net = mxkit.models.softmax_regression(); mxkit.initialize(net)
    >>> data = [(np.zeros((n, 5)), np.zeros(n)) for n in (4, 4, 2)]
    >>> steps = updates(net, data, loss="softmax_ce", trainer="sgd", accumulate=2)
    >>> [(update.step, update.samples) for update in steps]
    [(1, 8), (2, 2)]
    """
    training = Training(
        net,
        loss=loss,
        trainer=trainer,
        forward_loss=forward_loss,
        accumulate=accumulate,
        accumulate_samples=accumulate_samples,
        clip_norm=clip_norm,
        clip_value=clip_value,
        count=count,
        amp=amp,
        limit_batches=limit_batches,
        metrics=metrics,
        check_finite=check_finite,
        seed=seed,
    )
    return training.epoch(data, devices=devices, epoch=epoch, first_step=first_step, skip=skip)


class Training:
    """What `updates` is told, and what lasts from one epoch to the next: the graph; its arguments are those."""

    def __init__(
        self,
        net: Any,
        *,
        loss: Optional[LossSpec],
        trainer: TrainerSpec,
        forward_loss: Optional[ForwardLoss],
        accumulate: int,
        accumulate_samples: Optional[int],
        clip_norm: Optional[float],
        clip_value: Optional[float],
        count: Optional[Count],
        amp: Union[None, str, MixedPrecision],
        limit_batches: Optional[int],
        metrics: Sequence[Metric],
        check_finite: bool,
        seed: Optional[int],
    ) -> None:
        if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
            way = "like [mxkit.metrics.get_metric('accuracy')]"
            raise TypeError(f"updates: metrics: expected a list of metrics, {way}; received {metrics!r:.100}")
        self._net, self._metrics, self._count, self._seed = net, list(metrics), count, seed
        self._known, self._forward = forward_function(loss, forward_loss)
        for metric in self._metrics:
            metric.loss = self._known if metric.loss is None else metric.loss
        self._forward_loss = forward_loss
        self._named = self._known is not loss
        self._trainer = get_trainer(net, trainer)
        self._check_finite = check_finite
        self._limit = None if limit_batches is None else whole_number(limit_batches, "limit_batches")
        self._window = partial(
            Accumulator,
            self._trainer,
            accumulate,
            every_samples=accumulate_samples,
            clip_norm=clip_norm,
            clip_value=clip_value,
            precision=get_precision(amp),
        )
        self._several = accumulate > 1 or accumulate_samples is not None
        self._graph: Optional[OneGraph] = None
        self._gradients = GradientWatch(trainer_parameters(self._trainer))
        self._unread: Optional[Unread] = None
        self._shapes: Optional[ShapeWatch] = None

    def epoch(
        self,
        data: Data,
        *,
        devices: Optional[DeviceSpec] = None,
        epoch: Optional[int] = None,
        first_step: int = 1,
        skip: Tuple[Any, ...] = (0, 0),
    ) -> Iterator[Update]:
        """One epoch, as `updates` tells."""
        net = self._net
        trainer = get_trainer(net, self._trainer)  # which asks whether the net still lives where it was made for
        where = net_devices(net, None if devices is None else resolve_devices(devices))
        accumulator = self._window()
        check_trainer(net, trainer, warn=first_step == 1)
        if first_step == 1 and self._several:  # once a training, not once an epoch
            check_accumulation(net)
        check_frozen_dense(net, where)
        accumulator.updates = first_step - 1
        first = (self._known, data) if first_step == 1 else None
        if self._graph is None or self._graph.devices != where:
            fresh = isinstance(data, EpochOrder) and not reads_user_code(data)
            self._graph = OneGraph(net, self._known, self._named, self._forward, self._metrics, where, fresh)
        if self._shapes is None:
            self._shapes = ShapeWatch(net, where)
        packed = worth_packing(where) or (self._graph.likely and accumulator.precision is None)
        reader = _Reader(data, self._limit, epoch, self._seed, skip, packed and self._count is None)
        if self._seed is not None and first_step == 1:
            reader.prepare = partial(finish_initialization, net, forward_loss=self._forward_loss, trainer=trainer)
        work = _Batches(
            net, self._forward, self._count, accumulator, self._graph, self._gradients, self._shapes, where, first
        )
        trace = partial(self._look_inside, data, where, first_step == 1)
        place = Place(net, accumulator, epoch, work.forward_again)
        self._unread = Unread(accumulator, self._check_finite, epoch, self._unread)
        return _run(reader, work, self._unread, place, trace)

    def _look_inside(self, data: Data, where: Sequence["mx.Context"], first: bool, inputs: int) -> bool:
        """Return whether the training may draw random numbers. Before the first update, warn of inexact operators."""
        if first and self._seed is not None:
            warn_of_inexact(self._net, inputs, where)
        return draws_random_numbers(self._net, self._known, data, inputs)


def _run(
    reader: "_Reader", work: "_Batches", unread: Unread, place: Place, trace: Callable[[int], bool]
) -> Iterator[Update]:
    update: Optional[Update] = None
    unmeasured = True
    reader.begin()
    with work:
        for batch in reader:
            place.batch = batch
            with place:
                shards = work.backward(batch)
                if unmeasured:
                    unread.measure(shards)
                    reader.grid.draws = trace(len(shards[0].inputs))
                    unmeasured = False
                update = unread.add(work.accumulator.step())
            if update is not None:
                yield reader.mark(update)
                reader.grid.reseed(reader.updates)
        with place:
            update = unread.add(work.accumulator.flush())
        if update is not None:
            yield reader.mark(update)
        with place:
            unread.drain()


class _Reader:
    """The batches of one epoch, from where a stopped run was."""

    def __init__(
        self,
        data: Data,
        limit: Optional[int],
        epoch: Optional[int],
        seed: Optional[int],
        skip: Tuple[Any, ...],
        packed: bool,
    ) -> None:
        self._data, self._limit, self._epoch, self._packed = data, limit, epoch, packed
        self._skip, self.updates, seeded, self._samples = Position(*skip)
        self._seeded = {batches: number * RESEED_EVERY for number, batches in enumerate(seeded, 1)}
        self.batches = 0
        self.grid = Grid(seed, epoch or 0)
        self.prepare: Optional[Callable[[Data], Data]] = None

    def begin(self) -> None:
        """Do what comes before the generators are seeded."""
        if self.prepare is not None:
            self._data = self.prepare(self._data)

    def __iter__(self) -> Iterator[Any]:
        self.grid.reseed(0)
        if self._skip and can_skip(self._data):
            self.batches = self._skip
            self.grid.reseed(self.updates)
        limit = None if self._limit is None else max(0, self._limit - self.batches)
        batches = read_epoch(self._data, self._epoch, name="train", skip=self.batches, packed=self._packed)
        dropped = 0
        for batch in islice(batches, limit):
            self.batches += 1
            if self.batches > self._skip:
                yield batch
                continue
            dropped += unpack(batch)[0][0].shape[0]
            if self.batches == self._skip:
                self._refuse_other_batches(dropped)
                self.grid.reseed(self.updates)
            elif self.batches in self._seeded:
                self.grid.reseed(self._seeded[self.batches])
        if self.batches < self._skip:
            raise DataError(
                f"train gave {self.batches} batches in epoch {(self._epoch or 0) + 1}, of which the stopped run had "
                f"read {self._skip}: it must be the same data as before"
            )

    def _refuse_other_batches(self, samples: int) -> None:
        if self._samples not in (None, samples):
            raise DataError(
                f"the first {self._skip} batches of train in epoch {(self._epoch or 0) + 1} hold {samples} samples, "
                f"those of the stopped run held {self._samples}: samples would be left out or trained twice. Resume "
                "with the same data and batch_size"
            )

    def mark(self, update: Update) -> Update:
        self.updates += 1
        update.batches, update.exact = self.batches, self.grid.holds(self.updates)
        return update


class _Batches:
    """Forward and backward of one batch after the other, on all devices; the first one is checked."""

    def __init__(
        self,
        net: Any,
        forward: Forward,
        count: Optional[Count],
        accumulator: Accumulator,
        graph: OneGraph,
        gradients: GradientWatch,
        shapes: ShapeWatch,
        devices: Sequence["mx.Context"],
        first: Optional[Tuple[Optional[Loss], Data]],
    ) -> None:
        self.accumulator = accumulator
        self._net, self._forward, self._count = net, forward, count
        self._graph, self._gradients, self._devices, self._first = graph, gradients, devices, first
        self._shapes = shapes
        self._norms = [] if first is None else batch_norms(net)  # told once a training
        self._around = ExitStack()

    def __enter__(self) -> None:
        if self.accumulator.precision is not None:
            self._around.enter_context(self.accumulator.precision.applied(self._net))
        self._around.enter_context(self.accumulator)

    def __exit__(self, *error: Any) -> None:
        self._around.__exit__(*error)

    def backward(self, batch: Any) -> Shards:
        shards = split_batch(batch, self._devices)
        self._shapes.look(shards)
        first, self._first = self._first, None
        if first is not None:  # what is wrong with the data shows in the first batch of all
            check_first_inputs(self._net, shards[0].unpacked())
            check_backward(self._net)
            if isinstance(first[0], gluon.Block):
                check_backward(first[0])
        if self._norms and any(shard.samples == 1 for shard in shards):
            warn_of_single_samples(self._norms)
            self._norms = []
        if self._gradients.moved():  # by a callback, by the user between two epochs, or before the first batch
            drop_static_graphs(self._net)
            self._graph.forget()
        with autograd.record():
            computed = [self._graph.compute(shard) for shard in shards]
        for shard, found in zip(shards, computed):
            if found.totals is None:
                check_loss_shape(found.losses, shard.samples)
            if first is not None:
                check_first_batch(self._net, shard, found.output, *first)
                if first[0] is None and not self._graph.metrics:
                    warn_of_two_losses(found.output, found.losses)
        count = None if self._count is None else self._count(*unpack(batch))
        losses, ones = [found.losses for found in computed], [found.ones for found in computed]
        silent = [pair for found in computed for pair in found.silent]
        self.accumulator.backward(losses, count=count, ones=ones, silent=silent)
        for shard, found in zip(shards, computed):
            self._graph.measure(shard, found)
        return shards

    def forward_again(self, batch: Any) -> None:
        for shard in split_batch(batch, self._devices):
            self._forward(self._net, shard.unpacked().inputs, shard.labels)
