"""Hooks into `fit`."""

from contextlib import nullcontext
from typing import Any, ContextManager, Dict, Iterable, List, Mapping, Optional, Sequence

from mxkit.errors import UnknownNameError, nearest
from mxkit.metrics import Metric
from mxkit.metrics.classification import ConfusionMatrix
from mxkit.training.callbacks.monitor import Monitor
from mxkit.training.epoch import RunningEpoch
from mxkit.training.history import History, Row
from mxkit.training.precision import MixedPrecision
from mxkit.training.record import Update

_HOOKS = ("on_fit_begin", "on_update", "around_validation", "on_epoch", "on_fit_end")

# What other frameworks call them.
_ALIASES = {
    "on_fit_begin": ("on_train_begin", "on_train_start", "on_fit_start"),
    "on_update": ("on_batch_end", "on_train_batch_end", "on_step_end", "on_iteration_end", "on_update_end"),
    "on_epoch": ("on_epoch_end", "on_train_epoch_end", "on_validation_end", "on_validation_epoch_end"),
    "on_fit_end": ("on_train_end", "on_fit_finish"),
    "around_validation": ("on_validation_begin", "on_validation_start"),
}


class FitState:
    """What callbacks see of a running `fit`, and the way to stop it.

    Attributes:
        net: The net.
        trainer: Its `gluon.Trainer`.
        history: Rows of the epochs done.
        epoch: The running epoch, from 1.
        epochs: Epochs asked for; None where a number of updates was.
        updates: Updates done, from 0.
        max_updates: Updates asked for; None where a number of epochs was.
        updates_per_epoch: Where the data tells its length, else None.
        columns: Names of what `fit` writes into every row of the history.
        metrics: Training metrics of the running epoch; reading one waits for the device.
        stop_reason: Given by `stop`, or None.
        stop_is_for_now: Whether a resumed run goes on nevertheless.
        callbacks: As given to `fit`.
        data: As given to `fit` for training.
        settings: Arguments of `fit` that the numbers depend on.
        made_with: Numbers that the optimizer of a new Trainer was made with, or None.
        precision: The `MixedPrecision` of `amp`, or None.
        seed: As given to `fit`.
        check_finite: As given to `fit`.
        running: Sums over the updates of the running epoch.
        stop_at_nonfinite: Whether NaN and infinity end `fit` like `stop`, in place of an error.
    """

    def __init__(
        self,
        net: Any,
        trainer: Any,
        epochs: Optional[int],
        updates_per_epoch: Optional[int],
        max_updates: Optional[int] = None,
    ) -> None:
        self.net = net
        self.trainer = trainer
        self.history = History()
        self.epoch = 1
        self.epochs = epochs
        self.updates = 0
        self.max_updates = max_updates
        self.updates_per_epoch = updates_per_epoch
        self.columns: List[str] = []
        self.metrics: Sequence[Metric] = ()
        self.stop_reason: Optional[str] = None
        self.stop_is_for_now = False
        self.callbacks: Sequence[Callback] = ()
        self.data: Any = None
        self.settings: Dict[str, Any] = {}
        self.made_with: Optional[Mapping[str, Any]] = None
        self.precision: Optional[MixedPrecision] = None
        self.seed: Optional[int] = None
        self.check_finite = True
        self.running = RunningEpoch()
        self.stop_at_nonfinite = False

    @property
    def length(self) -> str:
        """What was asked for, like "10 epochs" or "500 updates"."""
        return f"{self.epochs} epochs" if self.epochs is not None else f"{self.max_updates} updates"

    def label(self, epoch: int) -> str:
        """An epoch for messages, like "epoch  3/10", or "epoch 3" where nobody knows how many there will be."""
        return f"epoch {epoch}" if self.epochs is None else f"epoch {epoch:>{len(str(self.epochs))}}/{self.epochs}"

    @property
    def finished(self) -> bool:
        """Whether no further update is to be done, of this epoch or another."""
        return self.stop_reason is not None or self.updates == self.max_updates

    @property
    def last_epoch(self) -> bool:
        """Whether none follows the running one."""
        return self.finished or self.epoch == self.epochs

    @property
    def done(self) -> bool:
        """Whether no further epoch is to be begun."""
        return self.finished or (self.epochs is not None and self.epoch > self.epochs)

    def may_have(self, column: str, watcher: "Callback") -> bool:
        """Whether rows may hold a column when `watcher` sees them: callbacks of the user's before it may add some."""
        before = self.callbacks[: self.callbacks.index(watcher)] if watcher in self.callbacks else []
        return not self.columns or column in self.columns or any(_writes_rows(one) for one in before)

    def check_monitor(self, monitor: Monitor, watcher: Optional["Callback"] = None) -> None:
        """Refuse a column that the history will not have, or that holds lists.

        Args:
            monitor: Of the column.
            watcher: The callback that asks, where callbacks before it may add columns.

        Raises:
            UnknownNameError: There is no such column.
            TypeError: The column's metric gives several numbers.
        """
        if watcher is None or not self.may_have(monitor.column, watcher):
            monitor.check(self.columns)
        for metric in self.metrics:
            several = isinstance(metric, ConfusionMatrix) or getattr(metric, "average", None) == "none"
            if several and monitor.column in (f"train_{metric.name}", f"valid_{metric.name}"):
                way = "Watch another column" if isinstance(metric, ConfusionMatrix) else "Take average='macro'"
                raise TypeError(
                    f"column {monitor.column!r} holds a list of numbers in each epoch, which is no better or worse "
                    f"than another. {way}"
                )

    def stop(self, reason: str, *, for_now: bool = False) -> None:
        """End `fit` after this update; the first reason ends up in `History.stopped`.

        Args:
            reason: What the user is told.
            for_now: A resumed run goes on; else it is as finished as after its last epoch.
        """
        if self.stop_reason is None:
            self.stop_reason, self.stop_is_for_now = reason, for_now


class Callback:
    """Base of what `fit` calls, in the order of the list it is given.

    ```
    on_fit_begin
    for each epoch:
        on_update            after each optimizer update
        around_validation    a context that validation runs in
        on_epoch             after validation, with a copy of the row that was added to the history
    on_fit_end        also after an error, which it is given
    ```

    Before training, `fit` refuses a method of another name that begins with `on_` or `around_`: nothing would call it.
    """

    def state_dict(self) -> Dict[str, Any]:
        """What a resumed run must restore, as plain JSON values."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take over what `state_dict` of the stopped run gave, before `on_fit_begin`."""

    def state_arrays(self) -> Dict[str, Any]:
        """NDArrays that a resumed run must restore, by name."""
        return {}

    def load_state_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Take over what `state_arrays` of the stopped run gave, before `on_fit_begin`."""

    def on_fit_begin(self, state: FitState) -> None:
        """Called once, before the first batch is read."""

    def on_update(self, state: FitState, update: Update) -> None:
        """Called after each update. Reading `update.loss` waits for the device."""

    def around_validation(self, state: FitState) -> ContextManager[Any]:
        """Return what validation runs in, for example with other weights; entered in list order, left in reverse."""
        return nullcontext()

    def on_epoch(self, state: FitState, row: Row) -> None:
        """Called after each epoch and its validation."""

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        """Called once at the end; `error` is what ended `fit`, or None."""


def _writes_rows(callback: Callback) -> bool:
    """Whether code of the user's is called with the row of an epoch."""
    function = getattr(callback.on_epoch, "__func__", callback.on_epoch)
    return not str(getattr(function, "__module__", "")).startswith("mxkit.")


def check_callbacks(callbacks: Any) -> List[Callback]:
    """Return the callbacks as a list, each of which `fit` can call.

    Raises:
        TypeError: `callbacks` is no list, or holds something that is no `Callback`.
        UnknownNameError: One has a method named like a hook that `fit` never calls.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise TypeError(f"fit: callbacks: expected a list; received {type(callbacks).__name__}. Pass callbacks=[...]")
    found = list(callbacks)
    for one in found:
        if isinstance(one, type):
            raise TypeError(f"fit: callbacks: received the class {one.__name__}. Pass an object: {one.__name__}(...)")
        if not isinstance(one, Callback):
            way = (
                ". Pass mxkit.callbacks.LambdaCallback(on_epoch=...)" if callable(one) else ". Derive its class from it"
            )
            raise TypeError(f"fit: callbacks: expected objects of mxkit.Callback; received {type(one).__name__}{way}")
        for name in dir(one):
            if name.startswith(("on_", "around_")) and name not in _HOOKS and callable(getattr(one, name)):
                raise _never_called(one, name)
    return found


def _never_called(callback: Callback, name: str) -> UnknownNameError:
    meant = next((f"did you mean {hook!r}?" for hook, others in _ALIASES.items() if name in others), "")
    return UnknownNameError(
        f"{type(callback).__name__} has a method {name!r}, which fit never calls: "
        f"{meant or nearest(name, _HOOKS) or 'give it another name, like _' + name + '.'} "
        f"Called are {', '.join(_HOOKS)}"
    )
