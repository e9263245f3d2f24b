"""The whole training loop in one call: epochs of updates, validation, callbacks, and why the training ended."""

from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
import signal
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union
import warnings

from mxkit.core.arguments import Length, length, whole_number
from mxkit.core.blocks import net_devices
from mxkit.core.forward_errors import out_of_memory
from mxkit.core.seeding import seed_all, seed_of_generators
from mxkit.core.trainers import TrainerSpec, get_trainer, trainer_parameters
from mxkit.data.source import Data, Source, source_of, whole_source
from mxkit.errors import CheckpointError, CheckpointWarning, NonFiniteError, TrainingError, TrapWarning
from mxkit.losses.named_losses import BatchLossSpec
from mxkit.metrics import MetricSpec, get_metrics
from mxkit.storage.directory import Checkpoint, checkpoint_paths, find_checkpoint, only_writer, refuse_mixed_runs
from mxkit.training.callbacks.callback import Callback, check_callbacks
from mxkit.training.callbacks.learning_rate import warn_of_rate_0
from mxkit.training.callbacks.progress import get_progress
from mxkit.training.checkpoints import Checkpoints, get_checkpoints
from mxkit.training.evaluation import scores_of
from mxkit.training.history import History, Row
from mxkit.training.ledger import Ledger, numbers
from mxkit.training.loss_checks import without_warnings
from mxkit.training.net_settings import net_settings
from mxkit.training.resume import check_run, restore, settings_of
from mxkit.training.signals import Terminated, deliver
from mxkit.training.state import FitState, Options
from mxkit.training.update import Training, finish_initialization
from mxkit.training.workers import Workers, get_workers
import mxnet as mx


class Validation(NamedTuple):
    """The validation data, a `Source` or None, and the arguments of its evaluation."""

    state: FitState
    data: Any
    metrics: Sequence[MetricSpec]
    every: int
    progress: Union[bool, str]

    def check(self) -> None:
        """Evaluate one batch, so that an error in the data is raised before an epoch is trained."""
        if self.data is not None and not self.data.is_one_shot and not self.data.reads_ahead:
            self._evaluate(limit_batches=1)

    def row(self, hooks: Sequence[Callback]) -> Dict[str, Any]:
        """The columns that the evaluation adds to the epoch's row; none in an epoch without evaluation."""
        state = self.state
        if self.data is None or not (state.last_epoch or state.epoch % self.every == 0):
            return {}
        with ExitStack() as around:
            for hook in hooks:
                around.enter_context(hook.around_validation(state))
            scores = self._evaluate(limit_batches=state.options.limit_batches, progress=bool(self.progress))
        return {f"valid_{name}": value for name, value in scores.items()}

    @without_warnings()  # about the net's outputs: training gives them once
    def _evaluate(self, **how: Any) -> Dict[str, Any]:
        net, workers, loss = self.state.net, self.state.workers, self.state.options.batch_loss
        return scores_of(net, self.data, workers, loss=loss, metrics=self.metrics, **how)


def run_epochs(hooks: Sequence[Callback], validation: Validation, writer: Optional[Checkpoints]) -> History:
    """Call the hooks around the epochs, and note in the history why the training ended."""
    state, error = validation.state, None
    training = Training(state.net, state.trainer, state.options, state.workers)
    try:
        with _opened(state, validation, writer):
            for hook in hooks:
                hook.on_fit_begin(state)
            state.workers.agree("the beginning of fit")
            state.hear()
            if not state.done:
                warn_of_rate_0(state.trainer, resumed=state.updates > 0)
            validation.check()
            _train(hooks, training, validation)
    except BaseException as caught:
        error = caught
        raised = _raised_for(state, caught)
        if raised is caught:
            raise
        if raised is not None:
            error = raised
            raise raised from caught
    finally:
        state.history.stopped = state.stop_reason
        with ExitStack() as ends:  # calls every hook, also if another one raises
            for hook in reversed(hooks):
                ends.callback(setattr, hook, "resumed", False)  # the next `fit` with this object is another run
                ends.callback(hook.on_fit_end, state, error)
    if writer is not None:
        state.workers.agree("the end of fit")  # the last checkpoint is written
    if isinstance(error, Terminated):
        deliver(error.args[0])
    return state.history


@contextmanager
def _opened(state: FitState, validation: Validation, writer: Optional[Checkpoints]) -> Iterator[None]:
    """The net in the precision of `amp`, the handlers of signals, and the processes of loaders, until the end."""
    with ExitStack() as held:
        if state.precision is not None:
            held.enter_context(state.precision.applied(state.net))
        if writer is not None:
            held.enter_context(writer.signals)
        for source in (state.source, validation.data):
            if source is not None:
                held.enter_context(source.open())
        yield


def _raised_for(state: FitState, error: BaseException) -> Optional[BaseException]:
    """The error that `fit` raises; None if the error only stops the training, with the reason in `state`."""
    if isinstance(error, (Terminated, KeyboardInterrupt)):
        terminated = isinstance(error, Terminated)
        name = signal.Signals(error.args[0]).name if terminated else "KeyboardInterrupt"
        state.end(f"{name} in epoch {state.epoch}, after update {state.updates}", terminated)
        return None
    if isinstance(error, NonFiniteError) and state.options.stop_at_nonfinite:
        state.end(str(error))
        return None
    if isinstance(error, (mx.MXNetError, MemoryError)):  # a callback read an array and its computation failed
        memory = out_of_memory(state.net, error)
        if memory:
            return TrainingError(f"{numbers(state.epoch - 1, state.updates)}: {memory}")
    return error


def _train(hooks: Sequence[Callback], training: Training, validation: Validation) -> None:
    state = validation.state
    while not state.done or state.running.updates:
        row = dict.fromkeys(state.columns)  # None in an epoch without evaluation
        row.update(_train_epoch(state, training, hooks))
        row.update(validation.row(hooks))
        state.history.append(row)
        state.workers.end_epoch(state.epoch)  # signals, and the clock of the checkpoints
        for hook in hooks:
            hook.on_epoch(state, row)
        state.workers.agree(f"the callbacks of epoch {state.epoch}")
        state.hear()
        state.epoch += 1
        state.running = Ledger(state.running)
    state.workers.same_parameters(trainer_parameters(state.trainer), "at the end of fit")


def _train_epoch(state: FitState, training: Training, hooks: Sequence[Callback]) -> Row:
    running, rate = state.running, float(state.trainer.learning_rate)
    if not running.updates:  # not a resumed epoch
        for metric in state.metrics:
            metric.reset()
    if not state.finished:
        # `closing` restores grad_req also if a hook raises; the garbage collector would do so later, in any thread
        epoch, first_step = state.epoch - 1, state.updates + 1
        stream = training.epoch(state.source, running, epoch=epoch, first_step=first_step, skip=running.position)
        with closing(stream):
            for update in islice(stream, None if state.max_updates is None else state.max_updates - state.updates):
                state.updates, rate = update.step, update.learning_rate
                if state.workers.asked("stop"):
                    state.hear()
                for hook in hooks:
                    hook.on_update(state, update)
                if state.stop_reason is not None:
                    break
        running.whole = not state.finished or running.updates == state.updates_per_epoch
    running.settle(weights=True)  # `epoch` does it too, unless the loop ended early
    state.workers.join_metrics(state.metrics, f"of epoch {state.epoch}")
    row: Row = {"epoch": state.epoch, "updates": state.updates, **running.row()}
    row["learning_rate"] = rate  # of its last update; a schedule has set the next one's
    if state.precision is not None and state.precision.dtype == "float16":
        row.update(skipped_updates=running.skipped, loss_scale=state.precision.scale)
    row.update({f"train_{metric.name}": metric.get() for metric in state.metrics})
    return row


def fit(
    net: Any,
    train: Data,
    *,
    loss: BatchLossSpec,
    trainer: TrainerSpec,
    epochs: Union[int, str, Length],
    valid: Optional[Data] = None,
    metrics: Sequence[MetricSpec] = (),
    accumulate: Union[int, str, Length] = 1,
    clip_norm: Optional[float] = None,
    clip_value: Optional[float] = None,
    amp: Optional[str] = None,
    limit_batches: Optional[int] = None,
    validate_every: int = 1,
    callbacks: Sequence[Callback] = (),
    seed: Optional[int] = None,
    checkpoint: Union[None, str, Path, Checkpoints] = None,
    resume: Union[bool, str] = False,
    check_finite: Union[bool, str] = True,
    progress: Union[bool, str] = True,
) -> History:
    """Train `net` and return the history of its losses and metrics.

    ```
    on_fit_begin of the callbacks
    evaluate one batch of valid, so that an error in it is raised before an epoch is trained
    for each epoch:
        for each update of updates(net, train, ...): on_update of the callbacks
        evaluate(net, valid, ...), inside around_validation of the callbacks
        add a row to the history; on_epoch of the callbacks
    on_fit_end of the callbacks, also after an error
    ```

    After `mxkit.distributed.initialize()` all workers call it alike and train together: each update is one over the
    samples of all. mxkit's loaders over samples read a share of each joint batch, `batch_size` for each worker; of
    other data, the same on all, each worker takes a batch in turn. An error or `state.stop` of one stops all.
    `mxkit.distributed.set_kvstore` chooses how they add their gradients up.

    Args:
        net: An initialized block; `mxkit.initialize` initializes it. Hybridize it before if possible.
        train: Batches, as for `updates`; each epoch reads them again.
        loss: As for `updates`; a `mxkit.losses.BatchLoss` also computes and counts the validation loss.
        trainer: A `gluon.Trainer`, or an optimizer like `("sgd", {"learning_rate": 0.1})`: `fit` then makes a Trainer
            over all parameters of the net. A Trainer that lacks a layer added later is refused (T19), as for
            `updates`.
        epochs: Number of passes over `train`, at least 1. "500 updates" counts optimizer updates: `train` is read as
            often as needed, once if it never ends, and the last epoch may be incomplete.
        valid: Batches to evaluate after each epoch, or samples to cut into batches, as for `evaluate`; arrays of uint8
            are scaled as in `train`, if that is an ArrayLoader.
        metrics: Names like "accuracy", `Metric` or `mx.metric` objects (copied, never changed), computed
            over the training batches while the weights change, and over `valid`.
        accumulate: Batches per update, at least 1; or samples, "256 samples", for batches of any size. The result
            equals one big batch.
        clip_norm: Largest L2 norm of the averaged gradient.
        clip_value: Largest absolute value of its elements.
        amp: "bfloat16" (on CPUs) or "float16", as for `updates`; validation runs in the same precision. With float16
            the history has the columns `skipped_updates` (because of overflowing gradients) and `loss_scale`.
        limit_batches: Batches of `train` and of `valid` that an epoch reads, for a dry run. None reads all.
        validate_every: Epochs between two evaluations of `valid`; the last epoch is always evaluated.
        callbacks: `Callback` objects, called in this order.
        seed: Makes all randomness of the training a function of (seed, epoch, update): dropout, augmentation,
            shuffles by NumPy or Python. `fit` passes it to `seed_all`, then to `updates`. It does not decide
            the net's initial values, which follow from an earlier `seed_all`: deferred parameters are
            initialized before `fit` seeds. None leaves the generators alone, unless checkpoints are written: then a
            seed is derived from the generators. After `seed_all`, two such runs are equal. They equal a
            run without `checkpoint` if the training draws no random numbers (dropout, augmentation, a gluon
            DataLoader that shuffles). Otherwise the random numbers differ, because MXNet's generator can be
            seeded, but its state cannot be stored.
        checkpoint: A directory for this run's checkpoints: one after each epoch, of which the newest three remain. Or
            `Checkpoints(directory, every="50 updates" | "1 epoch" | "5 minutes", ...)`. If the training draws random
            numbers, checkpoints inside an epoch wait for its next update with a number divisible by 16.
        resume: True resumes from the newest valid checkpoint, and needs one; "auto" resumes if there is one. Make the
            net, the Trainer and the callbacks as for the first run: the checkpoint restores their state and the
            optimizer's learning rate; a warning names settings of the new Trainer that are not used. The resumed run
            ends bit for bit like one that was never stopped, or a warning says why not. A finished run returns its
            history. Inside an epoch the data and its batches must be the same.
        check_finite: As for `updates`: raise an error if a loss or a weight is NaN or infinite. "stop" ends the
            training there like Ctrl-C, with the reason in the history's `stopped`.
        progress: A bar on a terminal or in a notebook, one line per epoch elsewhere (see `Progress`), on standard
            error. "verbose" also prints devices, parameters and data. False shows nothing.

    Returns:
        The `History`, with one row per epoch. After Ctrl-C it holds the finished epochs, and `stopped` has the reason.

    Raises:
        ValueError: `epochs` or `accumulate` is no such length; `validate_every` or `limit_batches` is below 1;
            `progress` or `check_finite` has another value.
        TypeError: `callbacks` holds an object that is no `Callback`, like a class.
        UnknownNameError: A callback has a method like `on_epoch_end`, which `fit` never calls; or it watches a column
            that the history will not have.
        DataError: `train` or `valid` can be read only once but `epochs` is above 1; `train` is samples that are not
            cut into batches; a pass over `valid` leaves samples out.
        CheckpointError: `resume` is True and there is no valid checkpoint, or it does not fit the net, the Trainer,
            the data or the metrics; or `resume` is False and the directory holds checkpoints.
        MxkitError: All errors of `updates` and `evaluate`.

    Side effects:
        The net's parameters and the Trainer's state change. `grad_req` is restored, also on an error. With
        `checkpoint`, `fit` handles SIGINT, SIGTERM and SIGHUP (see `Checkpoints`), and restores their handlers.

    >>> net = mxkit.models.mlp(hidden=[8]); mxkit.initialize(net)
    >>> train = mxkit.data.ArrayLoader(np.random.rand(20, 4), np.arange(20) % 3, batch_size=8)
    >>> history = fit(net, train, loss="softmax_ce", trainer="adam", epochs=2, metrics=["accuracy"], progress=False)
    >>> [(row["epoch"], row["updates"], row["samples"]) for row in history]
    [(1, 3, 20), (2, 6, 20)]
    """
    options = Options(
        loss=loss, accumulate=accumulate, clip_norm=clip_norm, clip_value=clip_value, amp=amp,
        limit_batches=limit_batches, check_finite=check_finite, seed=seed,
    )  # fmt: skip
    number, unit = length(epochs, "fit: epochs", ("epochs", "updates"), "epochs")
    max_epochs, max_updates = (int(number), None) if unit == "epochs" else (None, int(number))
    state = FitState(
        net, trainer, options, epochs=max_epochs, max_updates=max_updates, source=source_of(train),
        callbacks=check_callbacks(callbacks), workers=get_workers(),
    )  # fmt: skip
    every = whole_number(validate_every, "validate_every")
    validation = Validation(state, _checked_data(state, valid), metrics, every, progress)
    if options.precision is not None:
        options.precision.check_devices(net_devices(net))
    state.trainer = get_trainer(net, trainer)
    writer, shown = get_checkpoints(checkpoint), get_progress(progress)
    # before the first forward pass, in which a layer may set attributes: a resumed run has none here
    state.net_settings = None if writer is None else net_settings(net)
    with ExitStack() as held:
        if writer is not None and state.workers.first:
            held.enter_context(only_writer(writer.directory))
        resumed = _checkpoint_to_resume(writer, resume)
        options.validated = get_metrics(metrics, loss=options.batch_loss.loss)
        options.metrics = [metric for metric in options.validated if metric.in_training]
        same = _same_settings(validation, [number, unit], writer, resumed)
        state.workers.begin(same, state.trainer, state.source, validation.data, options.metrics)
        _seed(state, writer, resumed)
        held.enter_context(state.workers.shared(state.source))
        state.updates_per_epoch = updates_per_epoch(state.source, options, state.workers)
        state.columns = _columns(state, valid is not None)
        _set_or_restore(state, resumed)
        return run_epochs(_hooks(state, shown, writer), validation, writer)


def _same_settings(validation: Validation, epochs: List[Any], writer: Any, resumed: Any) -> Dict[str, Any]:
    """Arguments of `fit` that must be the same on all workers, by name."""
    options, callbacks = validation.state.options, validation.state.callbacks
    return {
        **options.settings(),
        "epochs": epochs,
        "validate_every": validation.every,
        "check_finite": "stop" if options.stop_at_nonfinite else options.check_finite,
        "the checkpoint (is its folder on a disk that all workers share?)": resumed and resumed.path.name,
        "checkpoint": None if writer is None else list(writer.every),
        "callbacks without writes = True": [type(callback).__name__ for callback in callbacks if not callback.writes],
    }


def _set_or_restore(state: FitState, resumed: Optional[Checkpoint]) -> None:
    """Note the settings of a new Trainer, or load the checkpoint."""
    if not state.trainer.optimizer.num_update:
        state.made_with = settings_of(state.trainer)
    if resumed is None:
        return
    _refuse_shorter(resumed, state)
    restore(state, resumed)
    if state.workers.chosen.threshold is not None:
        text = "compression: what the workers had not sent of their gradients yet is lost, which MXNet keeps"
        warnings.warn(f"{text}: the resumed run does not end bit for bit", CheckpointWarning, stacklevel=3)


def _hooks(state: FitState, shown: Sequence[Callback], writer: Optional[Checkpoints]) -> List[Callback]:
    """All callbacks in their order: the user's, the progress, the checkpoints. Worker 0 alone has those that write.

    Side effects:
        Workers take the parameters of worker 0.
    """
    hooks: List[Callback] = [*state.callbacks, *shown, *([] if writer is None else [writer])]
    state.workers.take_parameters(state.net)
    return [hook for hook in hooks if state.workers.first or not hook.writes]


def _checked_data(state: FitState, valid: Optional[Data]) -> Optional[Source]:
    """Refuse data that cannot be read in each epoch; return `valid` in batches."""
    state.source.check_rereadable(state.epochs or 1, "train")
    if valid is None:
        return None
    checked = whole_source(valid, "valid", scale=state.source.scale)
    checked.check_rereadable(state.epochs or 2, "valid")
    if valid is state.data:
        warnings.warn("valid is the training data: its numbers say nothing of new samples", TrapWarning, stacklevel=3)
    return checked


def _seed(state: FitState, writer: Optional[Checkpoints], resumed: Optional[Checkpoint]) -> None:
    """Seed the generators after deferred parameters are initialized; the data then begins anew."""
    options, train, workers = state.options, state.source, state.workers
    if resumed is not None:
        # `restore` warns if this seed differs from the stopped run's
        options.seed = resumed.manifest["run"]["seed"] if options.seed is None else options.seed
    elif options.seed is not None or writer is not None or train.reseeds or workers.size > 1:
        state.source = finish_initialization(state.net, train, options.batch_loss)
    if options.seed is None and (writer is not None or workers.size > 1):
        options.seed = workers.gather("the seed of fit", seed_of_generators())[0]
    if writer is not None and train.keeps_its_own_order:
        text = f"train is a {train.name}, whose order follows from all epochs before: no resumed run is bit-equal (T99)"
        warnings.warn(text, CheckpointWarning, stacklevel=3)
    if options.seed is not None:
        seed_all(options.seed)


def _checkpoint_to_resume(writer: Optional[Checkpoints], resume: Union[bool, str]) -> Optional[Checkpoint]:
    if resume is not True and resume is not False and resume != "auto":
        raise ValueError(f"fit: resume is True, False or 'auto'; received {resume!r:.100}")
    if writer is None and resume:
        raise ValueError(f"fit: resume={resume!r} needs checkpoint=..., the directory to resume from")
    if writer is None or (resume == "auto" and not checkpoint_paths(writer.directory)):
        return None
    if not resume:
        refuse_mixed_runs(writer.directory)
        return None
    checkpoint = find_checkpoint(writer.directory)
    check_run(checkpoint)
    return checkpoint


def _refuse_shorter(checkpoint: Checkpoint, state: FitState) -> None:
    run, step = checkpoint.manifest["run"], checkpoint.step
    begun = run["epoch"] - (0 if run["running"]["updates"] else 1)
    for name, limit, done in (("epochs", state.epochs, begun), ("updates", state.max_updates, step)):
        if limit is not None and done > limit:
            place = f"checkpoint {checkpoint.path} lies in epoch {begun}, after update {step}"
            raise CheckpointError(f"{place}: {limit} {name} are over. Pass at least {done} {name}")


def _columns(state: FitState, validated: bool) -> List[str]:
    trained = ["loss", *(metric.name for metric in state.metrics)]
    has_loss = not state.options.batch_loss.only_in_training
    scores = [*(["loss"] if has_loss else []), *(metric.name for metric in state.options.validated)]
    columns = ["epoch", "updates", "samples", "seconds", "samples_per_second", "learning_rate"]
    if state.precision is not None and state.precision.dtype == "float16":
        columns += ["skipped_updates", "loss_scale"]
    return [*columns, *(f"train_{name}" for name in trained), *(f"valid_{name}" for name in scores if validated)]


def updates_per_epoch(train: Source, options: Options, workers: Workers) -> Optional[int]:
    """Number of updates in an epoch of a `fit` with these options; None if the length of the data is unknown."""
    samples = train.batch_samples if options.accumulate.unit == "samples" else 1
    if train.batches is None or samples is None:
        return None  # mx.io.DataIter and generators, or batches of unknown sizes
    batches = -(-train.batches // workers.turns(train))
    return -(-min(batches, options.limit_batches or batches) // options.batches_of_update(samples))
