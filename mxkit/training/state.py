"""The arguments that `fit` and `updates` share, and the state of a running `fit` for callbacks."""

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from mxkit.core.arguments import Length, length, whole_number
from mxkit.data.source import Source, source_of
from mxkit.losses.named_losses import BatchLossSpec, get_batch_loss
from mxkit.metrics import Metric
from mxkit.training.history import History, Monitor
from mxkit.training.ledger import Ledger
from mxkit.training.precision import MixedPrecision, get_precision
from mxkit.training.workers import Workers


class Options:
    """Arguments that `fit` and `updates` share; `updates` describes them.

    Attributes:
        batch_loss: The `BatchLoss`.
        accumulate: The length of a window, in batches or samples.
        precision: The `MixedPrecision` of `amp`, or None.
        check_finite: Whether NaN and infinity end the training.
        stop_at_nonfinite: Whether they stop `fit` like a callback, without an error.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has another type.
    """

    def __init__(
        self,
        *,
        loss: Optional[BatchLossSpec],
        accumulate: Union[int, str, Length] = 1,
        clip_norm: Optional[float] = None,
        clip_value: Optional[float] = None,
        amp: Union[None, str, MixedPrecision] = None,
        limit_batches: Optional[int] = None,
        check_finite: Union[bool, str] = True,
        seed: Optional[int] = None,
    ) -> None:
        self.batch_loss = get_batch_loss(loss)
        self.accumulate = length(accumulate, "accumulate", ("batches", "samples"), "batches")
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.precision = get_precision(amp)
        self.limit_batches = None if limit_batches is None else whole_number(limit_batches, "limit_batches")
        if check_finite not in (True, False, "stop"):
            raise ValueError(f"check_finite is True, False or 'stop'; received {check_finite!r:.100}")
        self.check_finite, self.stop_at_nonfinite = bool(check_finite), check_finite == "stop"
        self.seed = seed
        self.metrics: Sequence[Metric] = ()
        self.validated: Sequence[Metric] = ()  # all of them: some do not measure training

    @property
    def several(self) -> bool:
        """Whether an update may hold several batches."""
        return self.accumulate != (1, "batches")

    def batches_of_update(self, samples: int) -> int:
        """Number of batches of `samples` samples in an update."""
        number = int(self.accumulate.number)
        return number if self.accumulate.unit == "batches" else -(-number // samples)

    def settings(self) -> Dict[str, Any]:
        """The options that change the numbers of a training, with the names that checkpoints store."""
        number, unit = self.accumulate
        return {
            "seed": self.seed,
            "loss": self.batch_loss.description,
            "accumulate": number if unit == "batches" else f"{number} samples",
            "clip_norm": self.clip_norm,
            "clip_value": self.clip_value,
            "amp": None if self.precision is None else self.precision.dtype,
            "limit_batches": self.limit_batches,
        }


@dataclass(eq=False, repr=False)
class FitState:
    """The state of a running `fit`, and the way to stop it.

    Attributes:
        net: The net.
        trainer: Its `gluon.Trainer`.
        history: Rows of the finished epochs.
        epoch: The running epoch, from 1.
        epochs: Number of epochs of this `fit`; None if `epochs` is a number of updates.
        updates: Number of updates so far.
        max_updates: Number of updates of this `fit`; None if `epochs` is a number of epochs.
        updates_per_epoch: Updates per epoch; None if the length of the data is unknown.
        columns: Names of the columns that `fit` writes into every row of the history.
        stop_reason: The reason of `stop`, or None.
        stop_is_for_now: Whether a resumed run continues in spite of `stop`.
        callbacks: The argument of `fit`.
        source: The training data.
        options: The arguments of `fit`.
        made_with: Initial hyper-parameters of a new Trainer's optimizer, or None.
        net_settings: Settings of the net when `fit` began, of which a checkpoint keeps those that the run does not
            change; None without checkpoints.
        running: The `Ledger` of the running epoch.
        workers: This process alone, or several together.
    """

    net: Any
    trainer: Any
    options: Options
    epochs: Optional[int] = None
    max_updates: Optional[int] = None
    updates_per_epoch: Optional[int] = None
    source: Source = field(default_factory=lambda: source_of(None))
    callbacks: Sequence[Any] = ()
    history: History = field(default_factory=History)
    epoch: int = 1
    updates: int = 0
    columns: Sequence[str] = ()
    stop_reason: Optional[str] = None
    stop_is_for_now: bool = False
    made_with: Optional[Mapping[str, Any]] = None
    net_settings: Optional[Mapping[str, Any]] = None
    running: Ledger = field(default_factory=Ledger)
    workers: Workers = field(default_factory=Workers)

    @property
    def data(self) -> Any:
        """The argument `train` of `fit`."""
        return self.source.data

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
        """Length of this `fit`, like "10 epochs" or "500 updates"."""
        return f"{self.epochs} epochs" if self.epochs is not None else f"{self.max_updates} updates"

    def label(self, epoch: int) -> str:
        """An epoch for messages, like "epoch  3/10", or "epoch 3" if the number of epochs is unknown."""
        return f"epoch {epoch}" if self.epochs is None else f"epoch {epoch:>{len(str(self.epochs))}}/{self.epochs}"

    @property
    def finished(self) -> bool:
        """Whether the last update of the training is done."""
        return self.stop_reason is not None or self.updates == self.max_updates

    @property
    def last_epoch(self) -> bool:
        """Whether the running epoch is the last one."""
        return self.finished or self.epoch == self.epochs

    @property
    def done(self) -> bool:
        """Whether no further epoch follows."""
        return self.finished or (self.epochs is not None and self.epoch > self.epochs)

    def check_monitor(self, monitor: Monitor, watcher: Optional[Any] = None) -> None:
        """Refuse a column that the history will not have; ask its metric which way is better.

        Args:
            monitor: The monitor of the column.
            watcher: The callback of the monitor, if custom callbacks before it may add columns.

        Raises:
            UnknownNameError: There is no such column.
            ValueError: The monitor has no mode, and it is unknown which way is better.
        """
        before = self.callbacks[: self.callbacks.index(watcher)] if watcher in self.callbacks else ()
        if self.columns and not any(map(_writes_rows, before)):
            monitor.check(self.columns)
        part, _, name = monitor.column.partition("_")
        known = {"loss": "min", **{metric.name: metric.better for metric in self.options.validated}}
        monitor.decide(known.get(name) if part in ("train", "valid") else None)

    def stop(self, reason: str, *, for_now: bool = False) -> None:
        """End `fit` after this update; `History.stopped` holds the first reason.

        Args:
            reason: The text for the user.
            for_now: Whether a resumed run continues. Otherwise it is finished.
        """
        self.workers.wishes.setdefault("stop", (reason, for_now))
        self.hear()  # several workers stop after the same update: the next one

    def end(self, reason: str, for_now: bool = False) -> None:
        """Do what `stop` does, on this worker alone."""
        if self.stop_reason is None:
            self.stop_reason, self.stop_is_for_now = reason, for_now

    def hear(self) -> None:
        """Stop if a worker asked for it before the newest update."""
        stop = self.workers.asked("stop")
        if stop is not None:
            self.end(*stop)


def _writes_rows(callback: Any) -> bool:
    """Whether a callback has custom code for the row of an epoch."""
    function = getattr(callback.on_epoch, "__func__", callback.on_epoch)
    return not str(getattr(function, "__module__", "")).startswith("mxkit.")
