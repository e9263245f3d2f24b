"""The training loop as a generator: one record per optimizer update, and each error with its place."""

from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import chain, islice
from typing import Any, Callable, Generator, Iterator, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.arguments import Length
from mxkit.core.arrays import switches, worth_packing
from mxkit.core.blocks import is_numpy_net, net_devices, parameters_by_path, paths_of
from mxkit.core.device import Shards, describe_batch, split_batch, unpack
from mxkit.core.forward_errors import explain_forward_error
from mxkit.core.replicas import is_deferred
from mxkit.core.trainers import TrainerSpec, get_trainer, trainer_parameters
from mxkit.data.source import Data, Source, source_of
from mxkit.errors import DataError, MxkitError, TrainingError, TrapWarning, UnusedParameterError, error_text
from mxkit.gradients.custom import callback_error, check_backward
from mxkit.gradients.functions import CUTS, UNREACHED
from mxkit.losses.named_losses import BatchLoss, BatchLossSpec
from mxkit.metrics import Metric
from mxkit.training import checks
from mxkit.training.accumulator import Accumulator
from mxkit.training.ledger import Ledger, Update, numbers
from mxkit.training.loss_checks import check_first_batch, check_loss_shape, check_moved_labels, warn_of_two_losses
from mxkit.training.one_graph import OneGraph
from mxkit.training.precision import MixedPrecision
from mxkit.training.randomness import RESEED_EVERY, Grid, Position, draws_random_numbers, warn_of_inexact
from mxkit.training.state import Options
from mxkit.training.time_axes import time_axes_checked
from mxkit.training.workers import Workers, copied_batch, get_workers
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

    The gradient of an update is the mean over every sample it saw. The result equals one big batch,
    also if batches differ in size or are split over devices. A last window shorter than `accumulate`
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
            `mxkit.losses.BatchLoss` calls the net in another way, or divides by another number than the samples.
        trainer: A `gluon.Trainer` over the net's parameters, or an optimizer as for `get_trainer`. A Trainer over only
            the last layers causes a warning, unless the other layers are frozen.
        accumulate: Batches per update, at least 1; or "256 samples": an update follows when the window holds at least
            this many samples.
        clip_norm: Largest L2 norm of the averaged gradient; `float("inf")` only measures it.
        clip_value: Largest absolute value of each element of the averaged gradient, after `clip_norm`.
        amp: "bfloat16" (on CPUs) or "float16": compute the net in 16 bits; its parameters stay float32. With float16
            the loss is scaled, an update with overflowing gradients is skipped, and each update waits for its
            gradients.
        limit_batches: Largest number of batches to read, for a dry run. None reads all.
        metrics: `Metric` objects, updated with every training batch while the weights change. A metric without a loss
            gets this loss.
        check_finite: Raise an error if a loss, a gradient norm or a weight is NaN or infinite. Losses and norms are
            checked for every update, weights (NaN in them can hide behind a finite loss) every 64
            updates and at the end. The error comes when the numbers are read: at most 96 updates later, or 384 if
            an update takes less than 4 ms. It names the first update with NaN or infinity.
        epoch: Number of the epoch from 0, which decides the order of a shuffling mxkit loader. With None the
            loader counts the epochs itself.
        first_step: Number of the first update. The checks of the first batch and of the net run only if this is 1.
        seed: Makes all randomness a function of (seed, epoch, update): Python's, NumPy's and MXNet's generators
            are seeded at the start and, if the training draws random numbers, every 16 updates (T67). Deferred
            parameters, which need the first batch's shape, are initialized before. None leaves the generators alone.
        skip: `(batches, updates)` of this epoch that a stopped run had done, or a `Position`. A loader with `skip`
            skips these batches; batches of other data are read and dropped.

    Yields:
        `Update(step, samples, loss, grad_norm)`. Reading `loss` or `grad_norm` waits for the device. Otherwise
        the loop waits only once every 64 updates (256 if an update takes less than 4 ms), more often if batches
        are large, for the numbers of earlier updates.

    Raises:
        TypeError: `metrics` holds something that is no `Metric`.
        NotInitializedError: The net is not initialized.
        DeviceError: amp is "bfloat16", and the net lives on a GPU or the processor has no AVX-512.
        EmptyDataError: `data` gave no batch.
        LossShapeError: `loss` did not give one value per sample.
        LabelError: The loss cannot use the value of a label, like a class number out of range.
        DataError: The loss cannot use the shape of labels or weights.
        UnusedParameterError: A trainable parameter got no gradient.
        NonFiniteError: A loss or a gradient is NaN or infinite.
        TrainingError: The net, the loss or the engine raised; the cause is chained.
        UnknownNameError: No loss or optimizer has this name.
        ValueError: The Trainer lacks parameters that were added to the net after the Trainer was made (T19).
        TypeError: `amp` needs a HybridBlock, and the net is a plain Block.

    Side effects:
        `grad_req` is "add" while iterating, if `accumulate` is above 1, and is restored on exit, break or
        error.

    >>> net = mxkit.models.softmax_regression(); mxkit.initialize(net)
    >>> data = [(np.zeros((n, 5)), np.zeros(n)) for n in (4, 4, 2)]
    >>> steps = updates(net, data, loss="softmax_ce", trainer="sgd", accumulate=2)
    >>> [(update.step, update.samples) for update in steps]
    [(1, 8), (2, 2)]
    """
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
    """The state that `updates` keeps between epochs: the compiled graph.

    Args:
        net: As for `updates`.
        trainer: A `gluon.Trainer`.
        options: The arguments of `updates`.
        workers: All workers, if `fit` knows them already.
    """

    def __init__(self, net: Any, trainer: "gluon.Trainer", options: Options, workers: Optional[Workers] = None) -> None:
        self._net, self._trainer, self.options = net, trainer, options
        self.workers = workers or get_workers()
        for metric in options.metrics:
            metric.loss = options.batch_loss.loss if metric.loss is None else metric.loss
        limits: Any = {"clip_norm": options.clip_norm, "clip_value": options.clip_value, "precision": options.precision}
        self._window = partial(Accumulator, trainer, options.accumulate, **limits)
        # of the first epoch; made here, because it raises its errors before any data is read
        self._first_window: Optional[Accumulator] = self._window()
        self._graph: Any = None  # the OneGraph
        self._tokens = checks.TokenWatch(net)
        self._unchecked: Optional[Source] = None  # the data until its first batch is checked

    def epoch(
        self,
        data: Union[Data, Source],
        ledger: Ledger,
        *,
        epoch: Optional[int] = None,
        first_step: int = 1,
        skip: Tuple[Any, ...] = (0, 0),
    ) -> Generator[Update, None, None]:
        """Train one epoch, as `updates` describes it; add each update to `ledger` before yielding it."""
        net, options, first, source = self._net, self.options, first_step == 1, source_of(data)
        trainer = get_trainer(net, self._trainer)  # refuses a net that was moved since the Trainer was made
        devices, self._numpy = net_devices(net), is_numpy_net(net)
        accumulator, self._first_window = self._first_window or self._window(), None
        accumulator.updates, accumulator.workers = first_step - 1, self.workers
        accumulator.least_count = self.options.batch_loss.least_count
        self.workers.watch(net)
        check_moved_labels(options.batch_loss, source, "train")
        checks.check_trainer(net, trainer, warn=first)
        if first:
            checks.check_lazy(net, trainer.optimizer)
        if first and options.several:  # one warning per training, not per epoch
            checks.check_accumulation(net)
        checks.check_frozen_dense(net, devices)
        checks.check_recurrent_layers(net, devices)
        parameters = trainer_parameters(trainer)
        if self._graph is None or self._graph.devices != devices:
            self._graph = OneGraph(net, options.batch_loss, parameters, options.metrics, devices)
        packed = worth_packing(devices) or (self._graph.likely and accumulator.precision is None)
        reader = _Reader(self, source, epoch, skip, packed and not options.batch_loss.counts)
        place = Place(net, lambda: accumulator.updates + 1, epoch, self._forward)
        joint, describe = self.workers.size > 1, reader.describe_not_finite
        ledger.start(
            parameters, options.check_finite, epoch, joint=joint, describe=describe, optimizer=trainer.optimizer
        )
        self._unchecked = source if first else None
        self._norms = checks.batch_norms(net) if first else []
        return self._run(reader, accumulator, ledger, place)

    def _run(
        self, reader: "_Reader", accumulator: Accumulator, ledger: Ledger, place: "Place"
    ) -> Generator[Update, None, None]:
        first, options, workers = True, self.options, self.workers
        seeds_first = self._unchecked is not None and options.seed is not None

        def add(update: Optional[Update]) -> Optional[Update]:
            if update is not None:
                reader.grid.draws = workers.asked("draws")
                ledger.add(reader.mark(update))
                workers.wishes["broken"] = ledger.broken is not None or None
                if workers.asked("broken"):  # all raise the error that one has read
                    ledger.settle(weights=True)
            return update

        if seeds_first:  # the generators are seeded after deferred parameters are initialized
            reader.data = finish_initialization(self._net, reader.data, options.batch_loss)
            self._unchecked = reader.data
        with ExitStack() as around:
            if options.precision is not None:
                around.enter_context(options.precision.applied(self._net))
            around.enter_context(accumulator)
            around.enter_context(workers.shared(reader.data))
            for batch in reader:
                place.batch = batch
                try:
                    shards = self._backward(batch, accumulator)
                    if first:
                        reader.window = options.batches_of_update(shards.samples)
                        ledger.bound(shards, reader.window)
                        inputs = len(shards[0].inputs)
                        if seeds_first:
                            warn_of_inexact(self._net, inputs, self._graph.devices)
                        draws = draws_random_numbers(self._net, options.batch_loss.loss, reader.data, inputs)
                        workers.wishes["draws"] = draws
                        first = False
                    update = add(accumulator.step())
                except Exception as error:
                    place.explain(error)
                    raise
                if update is not None:
                    yield update
                    reader.reseed()
            while True:
                with place:
                    update = add(accumulator.join())  # with the rest of this worker's samples, then without a sample
                if update is None:
                    break
                yield update
                reader.reseed()
            with place:
                ledger.settle(weights=True)

    def _backward(self, batch: Any, accumulator: Accumulator) -> Shards:
        """Compute the losses and the gradients of a batch, and update the metrics; check the first batch."""
        net, loss, graph = self._net, self.options.batch_loss, self._graph
        shards = split_batch(batch, graph.devices, self._numpy)
        data, self._unchecked = self._unchecked, None
        if data is not None:
            if not data.inputs_checked:
                checks.check_first_inputs(net, shards[0].unpacked())
            check_backward(net)
            if isinstance(loss.loss, gluon.Block):
                check_backward(loss.loss)
        if self._norms and any(shard.samples == 1 for shard in shards):
            checks.warn_of_single_samples(net, self._norms, shards[-1].unpacked())
            self._norms = []
        watched = self._tokens.watched(shards[0], unpack(batch)[0]) if self._tokens.watches else nullcontext()
        with watched, nullcontext() if data is None else time_axes_checked(net, shards[0], batch, data):
            computed = graph.compute(shards)
        if data is not None:
            checks.check_branches(net)
            checks.check_modes(net, training=True)
        for shard, result in zip(shards, computed):
            if result.totals is None:
                check_loss_shape(result.losses, shard.samples)
            if data is not None:
                check_first_batch(net, shard, result.output, loss.loss, data)
                if loss.loss is None and not graph.metrics:
                    warn_of_two_losses(result.output, result.losses)
        accumulator.backward_of(
            [result.losses for result in computed],
            count=loss.count(*unpack(batch)) if loss.counts else None,
            backward=computed[0].backward,
        )
        for shard, result in zip(shards, computed):
            graph.measure(shard, result)
        return shards

    def _forward(self, batch: Any) -> None:
        """Repeat the forward pass of a batch, to locate an asynchronous error of MXNet."""
        for shard in split_batch(batch, self._graph.devices, self._numpy):
            self.options.batch_loss.forward(self._net, shard.unpacked().inputs, shard.labels)


class _Reader:
    """Reads the batches of one epoch, from the position of a stopped run on."""

    def __init__(self, training: Training, data: Source, epoch: Optional[int], skip: Any, packed: bool) -> None:
        self.data, self._epoch, self._packed, self._workers = data, epoch, packed, training.workers
        self._limit = training.options.limit_batches
        self._skip, self.updates, seeded, self._samples = Position(*skip)
        self._seeded = {batches: number * RESEED_EVERY for number, batches in enumerate(seeded, 1)}
        self.batches, self.window = 0, 1
        self._batch: Any = None
        self._turns = self._workers.turns(data)
        self.grid = Grid(training.options.seed, epoch or 0, self._workers.rank)

    def __iter__(self) -> Iterator[Any]:
        where = f"epoch {(self._epoch or 0) + 1}"
        self._workers.share_order(self.data, where, count=self._epoch is None)
        self.grid.reseed(0)
        if self._skip and self.data.can_skip:
            self.batches = self._skip
            self.grid.reseed(self.updates)
        limit = None if self._limit is None else max(0, self._limit * self._turns - self.batches)
        rest = self.data.read(self._epoch, name="train", skip=self.batches, packed=self._packed)
        batches: Iterator[Any] = islice(rest, limit)
        batches = self._workers.compared(batches, self.data, f"train in {where}")
        dropped = 0
        for batch in batches:
            self.batches += 1
            if self.batches > self._skip:
                self._batch = batch
                if self._turns == 1:
                    yield batch
                else:
                    yield from self._own_of(batch, batches)
                continue
            dropped += unpack(batch)[0][0].shape[0]
            if self.batches == self._skip:
                self._refuse_other_batches(dropped)
                self.grid.reseed(self.updates)
            elif self.batches in self._seeded:
                self.grid.reseed(self._seeded[self.batches])
        if self.batches < self._skip:
            text = f"train gave {self.batches} batches in {where}, but the stopped run had read {self._skip}"
            raise DataError(f"{text}: resume with the same data")

    def _own_of(self, first: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """This worker's batch of the round that begins with `first`: all workers stand at the same batch after it."""
        own = None
        for number, batch in enumerate(chain((first,), islice(batches, self._turns - 1))):
            self.batches += number > 0
            if number == self._workers.rank:
                own = (copied_batch(batch) if self.data.resets else batch,)
        yield from own or ()

    def _refuse_other_batches(self, samples: int) -> None:
        if self._samples not in (None, samples):
            where = f"the first {self._skip} batches of train in epoch {(self._epoch or 0) + 1}"
            text = f"{where} hold {samples} samples, those of the stopped run held {self._samples}"
            raise DataError(f"{text}: some would be lost or trained twice. Resume with the same data and batch_size")

    def mark(self, update: Update) -> Update:
        """Note the update's position in the epoch, and whether a run can be resumed exactly from there."""
        self.updates += 1
        update.batches = self.batches
        update.exact = not self.grid.draws or (self.grid.seeds and self.updates % RESEED_EVERY == 0)
        return update

    def describe_not_finite(self, update: Update) -> str:
        """Where the batches of an update hold NaN or infinity, as far as they are at hand or can be read again."""
        first = max(update.batches - self.window, 0)
        if self.data.readable_again(self._epoch):
            again = islice(self.data.read(self._epoch, "train", keep_count=True), first, update.batches)
            return checks.describe_not_finite(again, first + 1)
        return checks.describe_not_finite([self._batch], self.batches) if update.batches == self.batches else ""

    def reseed(self) -> None:
        """Seed the generators if this update is on the grid, before the next batch is read."""
        if self.updates % RESEED_EVERY == 0:
            self.grid.reseed(self.updates)


class Place:
    """Adds its place to an error: epoch, update, the batch's shapes and dtypes, and the block of the net.

    Args:
        net: The net that is trained.
        step: Returns the number of the update.
        epoch: Number of the epoch from 0, or None if epochs are not counted.
        rerun: Repeats the forward pass of a batch, to locate an asynchronous error of MXNet.

    Attributes:
        batch: The current batch.
    """

    def __init__(self, net: Any, step: Callable[[], int], epoch: Optional[int], rerun: Callable[[Any], object]) -> None:
        self._net, self._step, self._epoch, self._rerun = net, step, epoch, rerun
        self.batch: Any = ()
        callback_error()  # discards an error from before this training

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Optional[BaseException], traceback: Any) -> None:
        if isinstance(error, Exception):
            self.explain(error)

    def explain(self, error: Exception) -> None:
        """Raise an error of the net, the loss or the engine with its place; the caller raises mxkit's own errors."""
        where = numbers(self._epoch, self._step())
        if isinstance(error, UnusedParameterError):
            raise UnusedParameterError(paths_of(error.parameters, self._net), error.parameters, f"{where}: ") from error
        if not isinstance(error, MxkitError):
            text = self._text(error)
            cause = callback_error() if isinstance(error, mx.MXNetError) else None
            if cause is not None:  # MXNet's error does not name an exception in a Python callback
                text = f"{type(cause).__name__}: {cause} (in a custom gradient, of this update or one shortly before)"
            raise TrainingError(f"{where}, batch {describe_batch(self.batch)}: {text}") from (cause or error)

    def _text(self, error: Exception) -> str:
        with autograd.train_mode():
            located = explain_forward_error(self._net, error, partial(self._rerun, self.batch))
        if located:
            return str(located)
        kind, text = type(error).__name__, str(error)
        if UNREACHED[0] in text or "no inputs in computation graph" in text:  # the second for arrays recorded before
            if not any(one.grad_req != "null" for one in self._net.collect_params().values()):
                return "all parameters of the net are frozen: nothing can be trained. Call mxkit.unfreeze(net)"
            return f"the loss does not depend on the net's parameters by recorded operators. {CUTS}. {kind}: {text}"
        return text if text.startswith(f"{kind}:") else error_text(error)


def finish_initialization(net: Any, data: Source, batch_loss: Optional[BatchLoss] = None) -> Source:
    """Initialize deferred parameters by one forward pass over the first batch, in predict mode.

    The values follow from the current state of the generators, so `seed_all` before a training decides them.

    Args:
        net: An initialized block.
        data: The training data. Of a DataIter only the shapes are used; a loader's count of epochs does not change.
        batch_loss: The loss, whose own `forward` is called; None calls the net.

    Returns:
        The data, from its beginning, which notes that the batch's inputs were checked. An iterator that can be read
        only once is replaced.

    Raises:
        TrainingError: The net raised, as in the first update.
    """
    if not any(map(is_deferred, parameters_by_path(net).values())):
        return data
    seed = None
    if data.reseeds:  # MXNet's generator for each sample, which must not decide the values
        seed = int(mx.nd.random.randint(0, 2**31 - 1, shape=1).asscalar())
    batch, data = data.first()
    if seed is not None:
        mx.random.seed(seed)
    if batch is None:  # the training raises the error
        return data
    data.inputs_checked = not data.resets  # of a DataIter these are zeros

    def forward(batch: Any) -> None:
        shard = split_batch(batch, net_devices(net), is_numpy_net(net))[0].unpacked()
        with warnings.catch_warnings():
            if data.resets:  # the first update gives these warnings
                warnings.simplefilter("ignore", TrapWarning)
            checks.check_first_inputs(net, shard)
        with switches(shard.numpy):
            if batch_loss is None or batch_loss.user_forward is None or batch_loss.only_in_training:
                net(*shard.inputs)
            else:
                batch_loss.user_forward(net, shard.inputs, shard.labels)

    place = Place(net, lambda: 1, 0, forward)
    place.batch = batch
    with place, autograd.pause(train_mode=False):
        forward(batch)
    return data
