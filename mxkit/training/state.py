"""What callbacks see of a running `fit`."""

from typing import Any, Mapping, Optional, Sequence

from mxkit.metrics import Metric
from mxkit.metrics.classification import ConfusionMatrix
from mxkit.training.callbacks.monitor import Monitor
from mxkit.training.history import History
from mxkit.training.ledger import Ledger
from mxkit.training.options import Options
from mxkit.training.precision import MixedPrecision


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
        stop_reason: Given by `stop`, or None.
        stop_is_for_now: Whether a resumed run goes on nevertheless.
        callbacks: As given to `fit`.
        data: As given to `fit` for training.
        options: What `fit` was asked for.
        made_with: Numbers that the optimizer of a new Trainer was made with, or None.
        running: The `Ledger` of the running epoch.
    """

    def __init__(
        self,
        net: Any,
        trainer: Any,
        options: Options,
        *,
        epochs: Optional[int] = None,
        max_updates: Optional[int] = None,
        updates_per_epoch: Optional[int] = None,
        data: Any = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self.net = net
        self.trainer = trainer
        self.options = options
        self.history = History()
        self.epoch = 1
        self.epochs = epochs
        self.updates = 0
        self.max_updates = max_updates
        self.updates_per_epoch = updates_per_epoch
        self.columns: Sequence[str] = ()
        self.stop_reason: Optional[str] = None
        self.stop_is_for_now = False
        self.callbacks = callbacks
        self.data = data
        self.made_with: Optional[Mapping[str, Any]] = None
        self.running = Ledger()

    @property
    def metrics(self) -> Sequence[Metric]:
        """Training metrics of the running epoch; reading one waits for the device."""
        return self.options.metrics

    @property
    def precision(self) -> Optional[MixedPrecision]:
        """The `MixedPrecision` of `amp`, or None."""
        return self.options.precision

    @property
    def seed(self) -> Optional[int]:
        """The seed of the training, or None."""
        return self.options.seed

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

    def may_have(self, column: str, watcher: Any) -> bool:
        """Whether rows may hold a column when `watcher` sees them: callbacks of the user's before it may add some."""
        before = self.callbacks[: self.callbacks.index(watcher)] if watcher in self.callbacks else []
        return not self.columns or column in self.columns or any(_writes_rows(one) for one in before)

    def check_monitor(self, monitor: Monitor, watcher: Optional[Any] = None) -> None:
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


def _writes_rows(callback: Any) -> bool:
    """Whether code of the user's is called with the row of an epoch."""
    function = getattr(callback.on_epoch, "__func__", callback.on_epoch)
    return not str(getattr(function, "__module__", "")).startswith("mxkit.")
