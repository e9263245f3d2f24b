"""The whole loop in one call."""

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
import signal
from typing import Any, Callable, List, Optional, Sequence, Sized, Union
import warnings

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import net_devices
from mxkit.core.device import DeviceSpec
from mxkit.core.device import devices as resolve_devices
from mxkit.core.forward_errors import out_of_memory
from mxkit.core.seeding import seed_all, seed_of_generators
from mxkit.core.trainers import TrainerSpec, get_trainer
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.source import Data, check_rereadable, is_one_shot, keeps_its_own_order, whole_part
from mxkit.errors import CheckpointError, CheckpointWarning, NonFiniteError, TrainingError, TrapWarning
from mxkit.losses.by_name import ForwardLoss, LossSpec, forward_function
from mxkit.metrics import MetricSpec, get_metrics
from mxkit.storage.directory import Checkpoint, checkpoint_paths, find_checkpoint
from mxkit.training.callbacks.callback import Callback, FitState, check_callbacks
from mxkit.training.callbacks.learning_rate import warn_of_rate_0
from mxkit.training.callbacks.progress import CheckpointNews, get_progress
from mxkit.training.checkpoints import Checkpoints, get_checkpoints, refuse_mixed_runs
from mxkit.training.deferred import finish_initialization
from mxkit.training.epoch import RunningEpoch
from mxkit.training.evaluation import evaluate
from mxkit.training.history import History, Row
from mxkit.training.loss_checks import without_warnings
from mxkit.training.place import numbers
from mxkit.training.precision import get_precision
from mxkit.training.resume import check_run, restore, settings_of
from mxkit.training.signals import Terminated, deliver
from mxkit.training.unread import refuse_broken, watch_weights
from mxkit.training.update import Count, Training
import mxnet as mx


def fit(
    net: Any,
    train: Data,
    *,
    loss: Optional[LossSpec] = None,
    trainer: TrainerSpec,
    epochs: Optional[int] = None,
    updates: Optional[int] = None,
    forward_loss: Optional[ForwardLoss] = None,
    valid: Optional[Data] = None,
    metrics: Sequence[MetricSpec] = (),
    accumulate: int = 1,
    accumulate_samples: Optional[int] = None,
    clip_norm: Optional[float] = None,
    clip_value: Optional[float] = None,
    count: Optional[Count] = None,
    amp: Optional[str] = None,
    limit_batches: Optional[int] = None,
    validate_every: int = 1,
    callbacks: Sequence[Callback] = (),
    seed: Optional[int] = None,
    checkpoint: Union[None, str, Path, Checkpoints] = None,
    resume: Union[bool, str] = False,
    devices: Optional[DeviceSpec] = None,
    check_finite: bool = True,
    progress: Union[bool, str] = True,
) -> History:
    """Train `net` and return what happened.

    ```
    on_fit_begin of the callbacks
    one batch of valid, so that what is wrong with it shows before an epoch is trained
    for each epoch:
        for each update of updates(net, train, ...): on_update of the callbacks
        evaluate(net, valid, ...), inside around_validation of the callbacks
        add a row to the history; on_epoch of the callbacks
    on_fit_end of the callbacks, also after an error
    ```

    Args:
        net: An initialized block; `mxkit.initialize` does it. Hybridize it first where it can be.
        train: Batches, as for `updates`; read anew in each epoch.
        loss: As for `updates`.
        trainer: A `gluon.Trainer`, or an optimizer like `("sgd", {"learning_rate": 0.1})`, of which one
            Trainer over all parameters of the net is made. One that does not know a layer added later is refused
            (T19), as for `updates`.
        epochs: Times that `train` is read, at least 1.
        updates: In its place: optimizer updates to do, at least 1; `train` is read as often as that takes, once
            where it never ends. The last epoch's row holds what was done of it.
        forward_loss: In place of `loss`, as for `updates`; also computes the validation loss.
        valid: Batches to evaluate after each epoch, or samples to cut into batches, as for `evaluate`.
        metrics: Names like "accuracy", `Metric` or `mx.metric` objects (copied, never changed), computed
            over the training batches as the weights move, and over `valid`.
        accumulate: Batches per update, at least 1; the result equals one big batch.
        accumulate_samples: In place of `accumulate`: samples per update, at least, for batches of any size.
        clip_norm: Largest L2 norm of the averaged gradient.
        clip_value: Largest absolute value of its elements.
        count: As for `updates`; also for the validation loss.
        amp: "bfloat16" (on CPUs) or "float16", as for `updates`; validation runs in the same precision. With float16
            the history has the columns `skipped_updates` (of the epoch, gradients overflowed) and `loss_scale`.
        limit_batches: Batches of `train` and of `valid` that an epoch reads, for a dry run. None reads all.
        validate_every: Epochs between two evaluations of `valid`; the last epoch is always evaluated.
        callbacks: Called in their order.
        seed: Makes all randomness of the training a function of (seed, epoch, update): dropout, augmentation,
            shuffles by NumPy or Python. It is given to `seed_all` first, and to `updates`. The net's first values do
            not follow from it, but from `seed_all` before: those that wait for the first batch's shape are drawn
            before anything is seeded. None leaves the generators alone, unless checkpoints are written: then a seed
            is derived from the generators and kept in them. After `seed_all`, two such runs are equal. They equal a
            run without `checkpoint` where nothing draws numbers while training (dropout, augmentation, a gluon
            DataLoader that shuffles); where something does, it draws others, because MXNet's generator can be
            seeded and not be stored.
        checkpoint: A directory for this run's checkpoints, one after each epoch and the newest three kept, or
            `Checkpoints(directory, every="50 updates" | "1 epoch" | "5 minutes", ...)`. Where something draws random
            numbers, those inside an epoch wait for its next update that 16 divides.
        resume: True goes on from the newest whole checkpoint, of which there must be one; "auto" if there is one. The
            net, the Trainer and the callbacks are made as for the first run; what the checkpoint holds is put
            into them, the optimizer's learning rate too: a warning says which settings of the new Trainer are not
            used. The run ends bit for bit as one that was never stopped; where it cannot, a warning tells why. One
            that had ended returns its history. Inside an epoch the data must be the same, cut into the same batches.
        devices: An error tells if the net lives elsewhere. None accepts any.
        check_finite: As for `updates`: stop where a loss or a weight is NaN or infinite.
        progress: A bar on a terminal or in a notebook, a line an epoch elsewhere (see `Progress`), on standard error.
            "verbose" also tells devices, parameters, data and each checkpoint. False shows nothing.

    Returns:
        The `History`: one row an epoch. After Ctrl-C it holds the epochs done and says so in `stopped`.

    Raises:
        ValueError: Neither `epochs` nor `updates` is given, or both are; one of them, `validate_every` or
            `limit_batches` is below 1; `progress` is another word.
        TypeError: `callbacks` holds something that is no `Callback`, like a class of them.
        UnknownNameError: A callback has a method like `on_epoch_end`, which `fit` never calls; or it watches a column
            that the history will not have.
        DataError: `train` or `valid` can be read only once but `epochs` is above 1; `train` is samples that are not
            cut into batches; a pass over `valid` leaves samples out.
        CheckpointError: `resume` is True and there is no whole checkpoint, or it does not fit the net, the Trainer,
            the data or the metrics; or it is False and the directory holds checkpoints.
        MxkitError: All that `updates` and `evaluate` raise, as they say.

    Side effects:
        The net's parameters and the Trainer's state change. `grad_req` is restored, also on an error. With
        `checkpoint`, SIGINT and SIGTERM are handled meanwhile (see `Checkpoints`), and their handlers put back.

    >>> net = mxkit.models.mlp(hidden=[8]); mxkit.initialize(net)
    >>> train = mxkit.data.ArrayLoader(np.random.rand(20, 4), np.arange(20) % 3, batch_size=8)
    >>> history = fit(net, train, loss="softmax_ce", trainer="adam", epochs=2, metrics=["accuracy"], progress=False)
    >>> [(row["epoch"], row["updates"], row["samples"]) for row in history]
    [(1, 3, 20), (2, 6, 20)]
    """
    if (epochs is None) == (updates is None):
        raise ValueError(f"fit: pass either epochs or updates; received epochs={epochs!r} and updates={updates!r}")
    callbacks = check_callbacks(callbacks)
    epochs = None if epochs is None else whole_number(epochs, "epochs")
    updates = None if updates is None else whole_number(updates, "updates")
    validate_every = whole_number(validate_every, "validate_every")
    check_rereadable(train, epochs or 1, "train")
    if valid is not None:
        valid = whole_part(valid, "valid")
        check_rereadable(valid, epochs or 2, "valid")
        if valid is train:
            text = "valid is the training data: its numbers say nothing of new samples"
            warnings.warn(text, TrapWarning, stacklevel=2)
    where = net_devices(net, None if devices is None else resolve_devices(devices))
    precision = get_precision(amp, where)
    known, _ = forward_function(loss, forward_loss)
    trainer = get_trainer(net, trainer)
    writer = get_checkpoints(checkpoint)
    shown = get_progress(progress)
    found = None if writer is None else _checkpoint_to_resume(writer.directory, resume)
    if writer is None and resume:
        raise ValueError(f"fit: resume={resume!r} needs checkpoint=..., the directory to resume from")
    if found is not None:
        # another one than the stopped run's is told by `restore`
        seed = found.manifest["run"]["seed"] if seed is None else seed
    elif seed is not None or writer is not None or isinstance(train, DatasetLoader):
        train = finish_initialization(net, train, forward_loss, trainer)
    if seed is None and writer is not None:
        seed = seed_of_generators()
    if writer is not None and keeps_its_own_order(train):
        text = (
            f"train is a {type(train).__name__}, whose order follows from all epochs before: a run resumed from "
            "these checkpoints cannot be bit-equal. Use mxkit.data.ArrayLoader, or gluon's DataLoader (T99)"
        )
        warnings.warn(text, CheckpointWarning, stacklevel=2)
    if seed is not None:
        seed_all(seed)
    state = FitState(
        net, trainer, epochs, _updates_per_epoch(train, accumulate, accumulate_samples, limit_batches), updates
    )
    state.metrics = get_metrics(metrics, loss=known)
    state.precision = precision
    state.seed = seed
    state.check_finite = check_finite
    state.columns = _columns(state, valid is not None)
    state.callbacks, state.data = callbacks, train
    state.settings = {
        "seed": seed,
        "accumulate": accumulate,
        "accumulate_samples": accumulate_samples,
        "clip_norm": clip_norm,
        "clip_value": clip_value,
        "amp": amp,
        "limit_batches": limit_batches,
        "updates an epoch": state.updates_per_epoch,
    }
    if not trainer.optimizer.num_update:
        state.made_with = settings_of(trainer)
    if found is not None:
        _refuse_shorter(found, epochs, updates)
        restore(state, found)
    hooks = [*callbacks, *shown, *([writer] if writer else [])]
    if writer is not None and progress == "verbose":
        hooks.append(CheckpointNews(writer.directory))
    training = Training(
        net,
        loss=loss,
        forward_loss=forward_loss,
        trainer=trainer,
        accumulate=accumulate,
        accumulate_samples=accumulate_samples,
        clip_norm=clip_norm,
        clip_value=clip_value,
        count=count,
        amp=state.precision,
        limit_batches=limit_batches,
        metrics=state.metrics,
        check_finite=check_finite,
        seed=seed,
    )
    stream = partial(training.epoch, train)
    validation = partial(
        evaluate,
        net,
        [] if valid is None else valid,
        loss=loss,
        forward_loss=forward_loss,
        metrics=metrics,
        count=count,
        name="valid",
    )
    validation = without_warnings()(validation)  # of the net's outputs, which training does once
    error: Optional[BaseException] = None
    try:
        with ExitStack() as held:
            if state.precision is not None:
                held.enter_context(state.precision.applied(net))
            if writer is not None:
                held.enter_context(writer.signals)
            for data in (train, valid):
                if isinstance(data, DatasetLoader):  # its processes stay for all epochs
                    held.enter_context(data)
            for hook in hooks:
                hook.on_fit_begin(state)
            if not state.done:
                warn_of_rate_0(trainer, resumed=found is not None)
            if valid is not None and not is_one_shot(valid) and not isinstance(valid, mx.io.MXDataIter):
                validation(limit_batches=1)
            while not state.done or state.running.updates:
                row = dict.fromkeys(state.columns)  # None where an epoch is not evaluated
                row.update(_train_epoch(state, stream, hooks))
                if valid is not None and (state.last_epoch or state.epoch % validate_every == 0):
                    with ExitStack() as around:
                        for hook in hooks:
                            around.enter_context(hook.around_validation(state))
                        scores = validation(limit_batches=limit_batches, progress=bool(progress))
                    row.update({f"valid_{name}": value for name, value in scores.items()})
                state.history.append(row)
                for hook in hooks:
                    hook.on_epoch(state, row)
                state.epoch += 1
                state.running = RunningEpoch()
    except Terminated as caught:
        error = caught
        state.stop(f"SIGTERM in epoch {state.epoch}, after update {state.updates}", for_now=True)
    except KeyboardInterrupt as caught:
        error = caught
        state.stop(f"KeyboardInterrupt in epoch {state.epoch}, after update {state.updates}")
    except NonFiniteError as caught:
        error = caught
        if not state.stop_at_nonfinite:
            raise
        state.stop(str(caught))
    except (mx.MXNetError, MemoryError) as caught:  # a callback read an array whose computation had failed
        error = caught
        memory = out_of_memory(net, caught)
        if memory:
            error = TrainingError(f"{numbers(state.epoch - 1, state.updates)}: {memory}")
            raise error from caught
        raise
    except BaseException as caught:
        error = caught
        raise
    finally:
        state.history.stopped = state.stop_reason
        with ExitStack() as ends:  # each is called, also where another one raises
            for hook in reversed(hooks):
                ends.callback(hook.on_fit_end, state, error)
    if isinstance(error, Terminated):
        deliver(signal.SIGTERM)
    return state.history


def _checkpoint_to_resume(directory: Path, resume: Union[bool, str]) -> Optional[Checkpoint]:
    if resume is not True and resume is not False and resume != "auto":
        raise ValueError(f"fit: resume is True, False or 'auto'; received {resume!r:.100}")
    if not resume:
        refuse_mixed_runs(directory)
        return None
    if resume == "auto" and not checkpoint_paths(directory):
        return None
    found = find_checkpoint(directory)
    check_run(found)
    return found


def _refuse_shorter(found: Checkpoint, epochs: Optional[int], updates: Optional[int]) -> None:
    run = found.manifest["run"]
    begun = run["epoch"] - (0 if run["running"]["updates"] else 1)
    for name, asked, done in (("epochs", epochs, begun), ("updates", updates, found.step)):
        if asked is not None and done > asked:
            raise CheckpointError(
                f"checkpoint {found.path} lies in epoch {begun}, after update {found.step}: {name}={asked} is over. "
                f"Pass at least {done}, or resume from an earlier checkpoint"
            )


def _columns(state: FitState, validated: bool) -> List[str]:
    names = ["loss", *(metric.name for metric in state.metrics)]
    columns = ["epoch", "updates", "samples", "seconds", "samples_per_second", "learning_rate"]
    if state.precision is not None and state.precision.dtype == "float16":
        columns += ["skipped_updates", "loss_scale"]
    return [*columns, *(f"train_{name}" for name in names), *(f"valid_{name}" for name in names if validated)]


def _train_epoch(state: FitState, training: Callable[..., Any], hooks: Sequence[Callback]) -> Row:
    running = state.running
    if not running.updates:  # else a resumed epoch
        for metric in state.metrics:
            metric.reset()
    running.start()
    position = {"skip": running.position, "first_step": state.updates + 1}
    if not state.finished:
        # closed here also where a hook raises: left to the garbage collector, grad_req would be restored at some
        # later moment, in whatever thread
        with closing(training(epoch=state.epoch - 1, **position)) as stream:
            for update in stream:
                state.updates = update.step
                running.add(update)
                for hook in hooks:
                    hook.on_update(state, update)
                if state.finished:
                    running.whole = running.updates == state.updates_per_epoch
                    break
            else:
                running.whole = True
    if state.check_finite and state.finished and running.last is not None:  # `updates` was kept from looking
        watch_weights(running.last, state.trainer)
    unread = running.settle()
    if state.check_finite:
        refuse_broken(unread, state.epoch - 1, state.updates)
    row: Row = {"epoch": state.epoch, "updates": state.updates, **running.row()}
    row["learning_rate"] = float(state.trainer.learning_rate)
    if state.precision is not None and state.precision.dtype == "float16":
        row.update(skipped_updates=running.skipped, loss_scale=state.precision.scale)
    row.update({f"train_{metric.name}": metric.get() for metric in state.metrics})
    return row


def _updates_per_epoch(
    train: Data, accumulate: int, accumulate_samples: Optional[int], limit: Optional[int]
) -> Optional[int]:
    source: Any = train
    if not isinstance(source, Sized) or accumulate_samples is not None:
        return None  # mx.io.DataIter and generators have no length
    return -(-min(len(source), limit or len(source)) // accumulate)
