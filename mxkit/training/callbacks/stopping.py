"""Callbacks that end a run."""

import time
from typing import Any, Callable, Dict, List, Literal, Mapping, Optional, Union

from mxkit.core.arguments import SECONDS, length, require, whole_number
from mxkit.core.arrays import legacy
from mxkit.core.blocks import parameters_by_path
from mxkit.core.trainers import HeldWeights
from mxkit.errors import CheckpointError
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Monitor, Row
from mxkit.training.ledger import Update
from mxkit.training.state import FitState


class EarlyStopping(Callback):
    """Stop when a column of the history has not become better for `patience` epochs.

    Args:
        monitor: The column, like "valid_loss".
        mode: "min" if smaller is better, "max" if larger is. None asks the column's metric, in `fit`; a loss is "min".
        patience: Number of epochs in a row without a better value after which `fit` stops, at least 1. Epochs without
            a value of the column do not count.
        min_delta: A value must be better by more than this to count.
        restore_best: When `fit` ends, also by an error or Ctrl-C, restore the parameters of the best epoch, with
            BatchNorm's running statistics, on every device, bit for bit. The copies stay in host memory. The Trainer's
            state (momenta) does not change. Next to `EMA` these are the trained weights, not the averages.

    Raises:
        ValueError: `mode`, `patience` or `min_delta` is out of range.
        UnknownNameError: When `fit` begins: the history will have no such column.
        ValueError: When `fit` begins: `mode` is needed, because a metric of your own has no `better`.
        TypeError: After the first epoch: the column holds lists, like a confusion matrix.

    >>> stopper = EarlyStopping("valid_loss", "min", patience=3, restore_best=True)
    """

    def __init__(
        self,
        monitor: str,
        mode: Optional[Literal["min", "max"]] = None,
        *,
        patience: int,
        min_delta: float = 0.0,
        restore_best: bool = False,
    ) -> None:
        self.monitor = Monitor(monitor, mode, min_delta)
        self.patience = whole_number(patience, "patience")
        self.restore_best = restore_best
        self._best_values: Dict[str, List[Any]] = {}

    def on_fit_begin(self, state: FitState) -> None:
        state.check_monitor(self.monitor, self)
        if not self.resumed:
            self.monitor.reset()
            self._best_values = {}
        if self.restore_best and self.monitor.best is not None and not self._best_values:
            best = f"epoch {self.monitor.best_epoch}, the best, but its checkpoint holds no parameters of that epoch"
            raise CheckpointError(f"EarlyStopping: the resumed run had {best}. Resume with restore_best=False")

    def on_epoch(self, state: FitState, row: Row) -> None:
        monitor = self.monitor
        if monitor.update(row) and self.restore_best:
            self._best_values = HeldWeights(parameters_by_path(state.net), on_host=True).arrays
        if monitor.epochs_since >= self.patience and state.stop_reason is None:
            best = "no value was a number"
            if monitor.best is not None:
                best = f"best was {monitor.best:.6g} in epoch {monitor.best_epoch}"
            text = f"{monitor.column} ({monitor.mode}) has not become better for {monitor.epochs_since} epochs"
            state.stop(f"{text}: {best}")

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        values, self._best_values = self._best_values, {}
        if values:
            HeldWeights(parameters_by_path(state.net), values).put_back(state.trainer)

    def state_dict(self) -> Dict[str, Any]:
        return self.monitor.state_dict()

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.monitor.load_state_dict(state)

    def state_arrays(self) -> Dict[str, Any]:
        """Arrays on the CPU that a resumed run must restore, by replica and path (`0/features.0.weight`)."""
        values = self._best_values.items()
        return {f"{i}/{path}": array for path, replicas in values for i, array in enumerate(replicas)}

    def load_state_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Restore the result of `state_arrays`."""
        self._best_values = {}
        for name in sorted(arrays, key=lambda name: int(name.split("/")[0])):
            self._best_values.setdefault(name.split("/", 1)[1], []).append(legacy(arrays[name]))


class TimeLimit(Callback):
    """Stop after the update that passes a time limit; validation and the row of the epoch still follow.

    The time runs from the start of `fit` and includes validation; the device may be up to 96 updates behind. A
    resumed run adds the time of the run before.

    Args:
        limit: "30 seconds", "5 minutes", "8 hours", or a number of seconds.
        clock: Returns seconds, from any start.

    Raises:
        ValueError: `limit` has another form.

    >>> TimeLimit("8 hours").seconds
    28800
    """

    def __init__(self, limit: Union[str, float], *, clock: Callable[[], float] = time.monotonic) -> None:
        number, unit = length(limit, "TimeLimit: limit", tuple(SECONDS), "seconds")
        self.seconds = number * SECONDS[unit]
        self._clock = clock
        self._began_at: Optional[float] = None
        self._earlier = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds used up so far."""
        return self._earlier + (0.0 if self._began_at is None else self._clock() - self._began_at)

    def on_fit_begin(self, state: FitState) -> None:
        if not self.resumed:
            self._earlier = 0.0
        self._began_at = self._clock()

    def on_update(self, state: FitState, update: Update) -> None:
        self._check(state)

    def on_epoch(self, state: FitState, row: Row) -> None:
        self._check(state)  # validation may have passed the limit

    def _check(self, state: FitState) -> None:
        elapsed = self.elapsed
        if elapsed >= self.seconds and state.stop_reason is None:
            place = f"in epoch {state.epoch}, after update {state.updates}"
            state.stop(f"time limit of {self.seconds:g} s passed after {elapsed:.1f} s, {place}", for_now=True)

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._earlier, self._began_at = self.elapsed, None

    def state_dict(self) -> Dict[str, Any]:
        return {"seconds": self.elapsed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._earlier = state["seconds"]


class OptunaPruning(Callback):
    """Report a column of the history to an Optuna trial after each epoch, and stop if Optuna's pruner decides so.

    It needs the package optuna. Epochs without a value in the column are not reported.

    Args:
        trial: The argument of an Optuna objective.
        monitor: The column, like "valid_loss"; whether lower is better is the study's `direction`.

    Attributes:
        pruned: Why the trial was stopped, or an empty string.

    Raises:
        optuna.TrialPruned: When `fit` ends, after the other callbacks, if the trial was pruned, for `study.optimize`.
        UnknownNameError: When `fit` begins: the history will have no such column.

    >>> def objective(trial):
    ...     pruning = mxkit.callbacks.OptunaPruning(trial, "valid_loss")
    ...     return mxkit.fit(net, train, loss="l2", epochs=9, valid=valid, callbacks=[pruning])[-1]["valid_loss"]
    """

    def __init__(self, trial: Any, monitor: str) -> None:
        self.trial, self.monitor = trial, monitor
        self.pruned = ""

    def on_fit_begin(self, state: FitState) -> None:
        state.check_monitor(Monitor(self.monitor, "min"), self)  # Optuna decides which way is better
        self.pruned = ""

    def on_epoch(self, state: FitState, row: Row) -> None:
        value, epoch = row.get(self.monitor), row["epoch"]
        if value is None:
            return
        self.trial.report(value, epoch)  # Optuna ignores an epoch that a resumed run repeats
        if state.stop_reason is None and self.trial.should_prune():
            self.pruned = f"pruned in epoch {epoch}: {self.monitor} {value:.6g} is worse than that of earlier trials"
            state.stop(self.pruned)

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        if self.pruned and error is None:
            raise require("optuna", "sweep").TrialPruned(self.pruned)
