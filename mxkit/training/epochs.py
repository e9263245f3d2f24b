"""The epochs of `fit`: updates, validation, callbacks, and why the training ended."""

from contextlib import ExitStack, closing, contextmanager
from itertools import islice
import math
import signal
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Union

from mxkit.core.forward_errors import out_of_memory
from mxkit.core.trainers import trainer_parameters
from mxkit.errors import NonFiniteError, TrainingError
from mxkit.metrics import MetricSpec
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.learning_rate import warn_of_rate_0
from mxkit.training.checkpoints import Checkpoints
from mxkit.training.evaluation import scores_of
from mxkit.training.history import History, Row
from mxkit.training.ledger import Ledger, numbers
from mxkit.training.loss_checks import is_nan, warn_of_nan, without_warnings
from mxkit.training.options import Options
from mxkit.training.signals import Terminated, deliver
from mxkit.training.state import FitState
from mxkit.training.update import Training
from mxkit.training.workers import Workers
import mxnet as mx


class Validation(NamedTuple):
    """The validation data, a `Source` or None, and the arguments of its evaluation."""

    net: Any
    data: Any
    options: Options
    metrics: Sequence[MetricSpec]
    every: int
    progress: Union[bool, str]
    workers: Workers

    def check(self) -> None:
        """Evaluate one batch, so that an error in the data is raised before an epoch is trained."""
        if self.data is not None and not self.data.is_one_shot and not self.data.reads_ahead:
            self._evaluate(limit_batches=1)

    def row(self, state: FitState, hooks: Sequence[Callback]) -> Dict[str, Any]:
        """The columns that the evaluation adds to the epoch's row; none in an epoch without evaluation."""
        if self.data is None or not (state.last_epoch or state.epoch % self.every == 0):
            return {}
        with ExitStack() as around:
            for hook in hooks:
                around.enter_context(hook.around_validation(state))
            scores = self._evaluate(limit_batches=self.options.limit_batches, progress=bool(self.progress))
        return {f"valid_{name}": value for name, value in scores.items()}

    @without_warnings()  # about the net's outputs: training gives them once
    def _evaluate(self, **arguments: Any) -> Dict[str, Any]:
        chosen = {"limit_batches": None, "progress": False, **arguments}
        loss, metrics = self.options.batch_loss, self.metrics
        return scores_of(self.net, self.data, self.workers, loss=loss, metrics=metrics, name="valid", **chosen)


def run_epochs(
    state: FitState,
    hooks: Sequence[Callback],
    training: Training,
    validation: Validation,
    writer: Optional[Checkpoints],
    resumed: bool,
) -> History:
    """Call the hooks around the epochs, and note in the history why the training ended."""
    error: Optional[BaseException] = None
    try:
        with _opened(state, validation, writer):
            for hook in hooks:
                hook.on_fit_begin(state)
            state.workers.agree("the beginning of fit")
            state.hear()
            if not state.done:
                warn_of_rate_0(state.trainer, resumed=resumed)
            validation.check()
            _train(state, hooks, training, validation)
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


def _train(state: FitState, hooks: Sequence[Callback], training: Training, validation: Validation) -> None:
    while not state.done or state.running.updates:
        row = dict.fromkeys(state.columns)  # None in an epoch without evaluation
        row.update(_train_epoch(state, training, hooks))
        row.update(validation.row(state, hooks))
        _warn_once_of_nan(state, row)
        state.history.append(row)
        state.workers.end_epoch(state.epoch)  # signals, and the clock of the checkpoints
        for hook in hooks:
            hook.on_epoch(state, row)
        state.workers.agree(f"the callbacks of epoch {state.epoch}")
        state.hear()
        state.epoch += 1
        state.running = Ledger(state.running)
    state.workers.same_parameters(trainer_parameters(state.trainer), "at the end of fit")


def _warn_once_of_nan(state: FitState, row: Row) -> None:
    """Warn of a metric's first NaN, unless the loss of the same part is no number either."""
    finite = [part for part in ("train", "valid") if math.isfinite(row.get(f"{part}_loss") or 0)]
    metrics = {name: value for name, value in row.items() if name.partition("_")[0] in finite and is_nan(value)}
    earlier = [name for name in metrics if any(is_nan(before.get(name)) for before in state.history)]
    warn_of_nan({name: value for name, value in metrics.items() if name not in earlier}, f"epoch {state.epoch}")


def _train_epoch(state: FitState, training: Training, hooks: Sequence[Callback]) -> Row:
    running = state.running
    if not running.updates:  # not a resumed epoch
        for metric in state.metrics:
            metric.reset()
    if not state.finished:
        # `closing` restores grad_req also if a hook raises; the garbage collector would do so later, in any thread
        epoch, first_step = state.epoch - 1, state.updates + 1
        stream = training.epoch(state.source, running, epoch=epoch, first_step=first_step, skip=running.position)
        with closing(stream):
            for update in islice(stream, None if state.max_updates is None else state.max_updates - state.updates):
                state.updates = update.step
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
    row["learning_rate"] = float(state.trainer.learning_rate)
    if state.precision is not None and state.precision.dtype == "float16":
        row.update(skipped_updates=running.skipped, loss_scale=state.precision.scale)
    row.update({f"train_{metric.name}": metric.get() for metric in state.metrics})
    return row
