"""The training loop as a generator: one record for each optimizer update."""

from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any, Callable, Generator, Iterator, Optional, Sequence, Tuple, Union

from mxkit.core.blocks import net_devices
from mxkit.core.device import Shards, split_batch, unpack
from mxkit.core.lengths import Length
from mxkit.core.packed import worth_packing
from mxkit.core.trainers import TrainerSpec, get_trainer, trainer_parameters
from mxkit.data.order import EpochOrder
from mxkit.data.source import Data, can_skip, read_epoch
from mxkit.errors import DataError
from mxkit.gradients.custom import check_backward
from mxkit.losses.batch_loss import BatchLossSpec
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
from mxkit.training.ledger import Ledger, Update
from mxkit.training.loss_checks import check_first_batch, check_loss_shape, warn_of_two_losses
from mxkit.training.one_graph import OneGraph
from mxkit.training.options import Options
from mxkit.training.place import Place
from mxkit.training.precision import MixedPrecision
from mxkit.training.randomness import RESEED_EVERY, Grid, Position, draws_random_numbers, reads_user_code
import mxnet as mx
from mxnet import autograd, gluon


def updates(
    net: Any,
    data: Data,
    *,
    loss: BatchLossSpec,
    trainer: TrainerSpec,
    accumulate: Union[int, str, Length] = 1,
    clip_norm: Optional[float] = None,
    clip_value: Optional[float] = None,
    amp: Union[None, str, MixedPrecision] = None,
    limit_batches: Optional[int] = None,
    metrics: Sequence[Metric] = (),
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
            sample weights, `(x, (y, w))`: of shape (B,), or of the labels' shape for a weight per position. A
            `mxkit.losses.BatchLoss` calls the net in another way, or counts something else than samples.
        trainer: A `gluon.Trainer` over the net's parameters, or an optimizer as for `get_trainer`. One over the last
            layers only is taken with a warning, unless the others are frozen.
        accumulate: Batches per update, at least 1; or "256 samples": an update when the window holds this many or more.
        clip_norm: Largest L2 norm of the averaged gradient; `float("inf")` only measures it.
        clip_value: Largest absolute value of each element of the averaged gradient, after `clip_norm`.
        amp: "bfloat16" (on CPUs) or "float16": compute the net in 16 bits, its parameters stay float32. With float16
            the loss is scaled, an update whose gradients overflow is skipped, and each update waits for its gradients.
        limit_batches: Read no more batches than this, for a dry run. None reads all.
        metrics: `Metric` objects, updated with every training batch as the weights move; one that knows no loss gets
            this one.
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
        DeviceError: The net lives on a GPU, which has no bfloat16.
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
    if check_finite not in (True, False):
        raise ValueError(f"updates: check_finite is True or False; received {check_finite!r:.100}")
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        way = "like [mxkit.metrics.get_metric('accuracy')]"
        raise TypeError(f"updates: metrics: expected a list of metrics, {way}; received {metrics!r:.100}")
    options = Options(
        loss=loss,
        accumulate=accumulate,
        clip_norm=clip_norm,
        clip_value=clip_value,
        amp=amp,
        limit_batches=limit_batches,
        check_finite=check_finite,
        seed=seed,
    )
    options.metrics = metrics
    training = Training(net, get_trainer(net, trainer), options)
    return training.epoch(data, Ledger(), epoch=epoch, first_step=first_step, skip=skip)


class Training:
    """The state that `updates` keeps between epochs: the compiled graph, and what the first batch showed.

    Args:
        net: As for `updates`.
        trainer: A `gluon.Trainer`.
        options: The arguments of `updates`.
    """

    def __init__(self, net: Any, trainer: "gluon.Trainer", options: Options) -> None:
        self._net, self._trainer, self._options = net, trainer, options
        for metric in options.metrics:
            metric.loss = options.batch_loss.loss if metric.loss is None else metric.loss
        self._window()  # refuses what no window can do, before anything is read
        self._graph: Optional[OneGraph] = None
        self._shapes: Optional[ShapeWatch] = None

    def _window(self) -> Accumulator:
        options = self._options
        return Accumulator(
            self._trainer,
            options.accumulate,
            clip_norm=options.clip_norm,
            clip_value=options.clip_value,
            precision=options.precision,
        )

    def epoch(
        self,
        data: Data,
        ledger: Ledger,
        *,
        epoch: Optional[int] = None,
        first_step: int = 1,
        skip: Tuple[Any, ...] = (0, 0),
    ) -> Generator[Update, None, None]:
        """One epoch, as `updates` describes it; each update is added to `ledger` before it is yielded."""
        net, options, first = self._net, self._options, first_step == 1
        trainer = get_trainer(net, self._trainer)  # refuses a net that was moved since the Trainer was made
        where = net_devices(net)
        accumulator = self._window()
        accumulator.updates = first_step - 1
        check_trainer(net, trainer, warn=first)
        if first and options.several:  # once a training, not once an epoch
            check_accumulation(net)
        check_frozen_dense(net, where)
        if self._graph is None or self._graph.devices != where:
            fresh = isinstance(data, EpochOrder) and not reads_user_code(data)
            self._graph = OneGraph(net, options.batch_loss, trainer_parameters(trainer), options.metrics, where, fresh)
        if self._shapes is None:
            self._shapes = ShapeWatch(net, where)
        packed = worth_packing(where) or (self._graph.likely and accumulator.precision is None)
        reader = _Reader(data, options, epoch, skip, packed and not options.batch_loss.counts)
        if options.seed is not None and first:
            forward = options.batch_loss.user_forward
            reader.prepare = partial(finish_initialization, net, forward_loss=forward, trainer=trainer)
        work = _Batches(net, options, accumulator, self._graph, self._shapes, where, data if first else None)
        place = Place(net, accumulator, epoch, work.forward_again)
        ledger.start(trainer_parameters(trainer), options.check_finite, epoch)
        return _run(reader, work, ledger, place, partial(self._look_inside, data, where, first))

    def _look_inside(self, data: Data, where: Sequence["mx.Context"], first: bool, inputs: int) -> bool:
        """Return whether the training may draw random numbers. Before the first update, warn of inexact operators."""
        if first and self._options.seed is not None:
            warn_of_inexact(self._net, inputs, where)
        return draws_random_numbers(self._net, self._options.batch_loss.loss, data, inputs)


def _run(
    reader: "_Reader", work: "_Batches", ledger: Ledger, place: Place, look_inside: Callable[[int], bool]
) -> Generator[Update, None, None]:
    begun = False

    def add(update: Optional[Update]) -> Optional[Update]:
        if update is not None:
            ledger.add(reader.mark(update))
        return update

    reader.begin()
    with work:
        for batch in reader:
            place.batch = batch
            try:
                shards = work.backward(batch)
                if not begun:
                    ledger.bound(shards, work.options.batches_of_update(shards.samples))
                    reader.grid.draws = look_inside(len(shards[0].inputs))
                    begun = True
                update = add(work.accumulator.step())
            except Exception as error:
                place.explain(error)
                raise
            if update is not None:
                yield update
                reader.reseed()
        with place:
            update = add(work.accumulator.flush())
        if update is not None:
            yield update
        with place:
            ledger.settle(weights=True)


class _Reader:
    """The batches of one epoch, from where a stopped run was."""

    def __init__(self, data: Data, options: Options, epoch: Optional[int], skip: Tuple[Any, ...], packed: bool) -> None:
        self._data, self._limit, self._epoch, self._packed = data, options.limit_batches, epoch, packed
        self._skip, self.updates, seeded, self._samples = Position(*skip)
        self._seeded = {batches: number * RESEED_EVERY for number, batches in enumerate(seeded, 1)}
        self.batches = 0
        self.grid = Grid(options.seed, epoch or 0)
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
        """Note where in the epoch an update was done, and whether a run can be resumed exactly from there."""
        self.updates += 1
        update.batches = self.batches
        update.exact = not self.grid.draws or (self.grid.seeds and self.updates % RESEED_EVERY == 0)
        return update

    def reseed(self) -> None:
        """Seed the generators where it is due, before the next batch is read."""
        if self.updates % RESEED_EVERY == 0:
            self.grid.reseed(self.updates)


class _Batches:
    """Forward and backward of one batch after the other, on all devices; the first one is checked."""

    def __init__(
        self,
        net: Any,
        options: Options,
        accumulator: Accumulator,
        graph: OneGraph,
        shapes: ShapeWatch,
        devices: Sequence["mx.Context"],
        first: Optional[Data],
    ) -> None:
        self.accumulator, self.options = accumulator, options
        self._net, self._loss = net, options.batch_loss
        self._graph, self._shapes, self._devices, self._first = graph, shapes, devices, first
        self._norms = [] if first is None else batch_norms(net)  # reported once a training
        self._around = ExitStack()

    def __enter__(self) -> None:
        if self.options.precision is not None:
            self._around.enter_context(self.options.precision.applied(self._net))
        self._around.enter_context(self.accumulator)

    def __exit__(self, *error: Any) -> None:
        self._around.__exit__(*error)

    def backward(self, batch: Any) -> Shards:
        shards = split_batch(batch, self._devices)
        if self._shapes.watches:
            self._shapes.look(shards)
        data, self._first = self._first, None
        if data is not None:  # what is wrong with the data shows in the first batch of all
            check_first_inputs(self._net, shards[0].unpacked())
            check_backward(self._net)
            if isinstance(self._loss.loss, gluon.Block):
                check_backward(self._loss.loss)
        if self._norms and any(shard.samples == 1 for shard in shards):
            warn_of_single_samples(self._norms)
            self._norms = []
        self._graph.check_gradients()
        with autograd.record():
            computed = [self._graph.compute(shard) for shard in shards]
        for shard, found in zip(shards, computed):
            if found.totals is None:
                check_loss_shape(found.losses, shard.samples)
            if data is not None:
                check_first_batch(self._net, shard, found.output, self._loss.loss, data)
                if self._loss.loss is None and not self._graph.metrics:
                    warn_of_two_losses(found.output, found.losses)
        self.accumulator.backward_of(
            [found.losses for found in computed],
            count=self._loss.count(*unpack(batch)) if self._loss.counts else None,
            ones=[found.ones for found in computed],
            others=[pair for found in computed for pair in found.others],
        )
        for shard, found in zip(shards, computed):
            self._graph.measure(shard, found)
        return shards

    def forward_again(self, batch: Any) -> None:
        for shard in split_batch(batch, self._devices):
            self._loss.forward(self._net, shard.unpacked().inputs, shard.labels)
