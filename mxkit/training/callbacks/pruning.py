"""A callback that reports a trial to Optuna, and stops it if it is worse than earlier trials."""

from typing import Any, Optional, Set

from mxkit.core.arguments import require
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.monitor import Monitor
from mxkit.training.history import Row
from mxkit.training.state import FitState


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
        self._reported: Set[int] = set()

    def on_fit_begin(self, state: FitState) -> None:
        state.check_monitor(Monitor(self.monitor, "min"), self)  # "min" or "max" makes no difference here
        self.pruned = ""
        study = getattr(self.trial, "study", None)  # optuna.trial.FixedTrial has none
        if study is not None:  # a resumed run repeats the epochs after its checkpoint
            self._reported = set(study.get_trials(deepcopy=False)[self.trial.number].intermediate_values)

    def on_epoch(self, state: FitState, row: Row) -> None:
        value, epoch = row.get(self.monitor), row["epoch"]
        if value is None:
            return
        if epoch not in self._reported:
            self.trial.report(value, epoch)
        if state.stop_reason is None and self.trial.should_prune():
            self.pruned = f"pruned in epoch {epoch}: {self.monitor} {value:.6g} is worse than that of earlier trials"
            state.stop(self.pruned)

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        if self.pruned and error is None:
            raise require("optuna", "sweep").TrialPruned(self.pruned)
