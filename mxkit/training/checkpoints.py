"""Writes checkpoints during `fit`, and removes old ones."""

from contextlib import contextmanager
from pathlib import Path
import signal
import time
from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple, Type, Union
import warnings

from mxkit.core.arguments import whole_number
from mxkit.core.system import LOG
from mxkit.errors import CheckpointWarning, NonFiniteError
from mxkit.storage.directory import BackgroundWriter, interval, is_checkpoint, kept, manifests, prepare, prune
from mxkit.storage.snapshot import Snapshot
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Monitor, Row
from mxkit.training.ledger import Update
from mxkit.training.resume import capture
from mxkit.training.signals import PoliteSignals, deliver
from mxkit.training.state import FitState
from mxkit.training.workers import Workers
from mxnet.base import MXNetError

# Age of the copy in memory after which a new one is made; it is written if an error ends the run.
HOLD_SECONDS = 60.0


class Checkpoints(Callback):
    """Write checkpoints of a `fit`, which can resume exactly from each: `fit(..., checkpoint=Checkpoints(...))`.

    A thread writes a checkpoint during the training, from copies made after an update; the last one is complete
    before `fit` returns. Inside an epoch they fall on updates from which a run can resume bit for bit: on every one if
    nothing draws random numbers, else on every 16th of the epoch (T67).

    Checkpoints are also written when `fit` ends, and before it stops on Ctrl-C (a second one stops at once), SIGTERM or
    SIGHUP. If the net, the data or a callback raises an error, the copy of the run in memory is written: at most a
    minute older. NaN is never written.

    Args:
        directory: Holds the checkpoints of this run alone.
        every: "1 epoch", "50 updates" or "5 minutes". If something draws random numbers (dropout, augmentation), a
            checkpoint waits for the next update of the epoch that 16 divides: "5 updates" is every 16th.
        keep_last: Number of newest ones to keep, at least 1.
        keep_best: `("valid_accuracy", "max")`, or the column alone, whose metric then says whether "min" or "max" is
            better: also keep the checkpoint after the epoch with the best value; it is written for any `every`. None
            keeps none for its value.
        keep_every: "10 epochs" or "1000 updates": also keep the first checkpoint of each such interval.

    Raises:
        ValueError: An argument has another form.

    >>> Checkpoints("runs/x", every="50 updates", keep_last=3, keep_best=("valid_accuracy", "max")).every
    (50, 'update')
    """

    def __init__(
        self,
        directory: Union[str, Path],
        *,
        every: str = "1 epoch",
        keep_last: int = 3,
        keep_best: Union[None, str, Tuple[str, str]] = None,
        keep_every: Optional[str] = None,
    ) -> None:
        self.directory = Path(directory)
        if is_checkpoint(self.directory):
            raise ValueError(f"Checkpoints: directory: received one checkpoint, {directory}. Pass its parent")
        self.every = interval(every, "every", ("epoch", "update", "minute"))
        self.keep_last = whole_number(keep_last, "keep_last")
        self.keep_every = None if keep_every is None else interval(keep_every, "keep_every", ("epoch", "update"))
        column, mode = keep_best if isinstance(keep_best, (tuple, list)) else (keep_best, None)
        self._best = None if column is None else Monitor(column, mode)
        self._writer = BackgroundWriter()
        self._copy: Optional[Snapshot] = None
        self._written = self._epoch_written = 0
        self._due_at = self._copy_at = 0.0
        self._ended_inside = False
        self.signals = PoliteSignals()
        self._workers = Workers()

    def _is_due(self) -> Optional[bool]:
        """Ask for a checkpoint, by the clock of the first worker."""
        return True if self._workers.first and self.every[1] == "minute" and time.monotonic() >= self._due_at else None

    def _copy_is_due(self) -> Optional[bool]:
        """Ask for a copy in memory, by the clock of the first worker."""
        return True if self._workers.first and time.monotonic() >= self._copy_at and not self._writer.busy else None

    def on_fit_begin(self, state: FitState) -> None:
        if self._best is not None:
            state.check_monitor(self._best)
        self._workers = state.workers
        wishes: Any = {"signal": lambda: self.signals.caught, "due": self._is_due, "copy": self._copy_is_due}
        self._workers.wishes.update(wishes)
        if self._workers.first:
            prepare(self.directory)
        if self._best is not None:
            self._best.reset()
            for row in state.history:
                if self._best.column in row:  # the stopped run may have lacked this metric
                    self._best.update(row)
        self._written = state.updates
        self._epoch_written = state.epoch - 1
        self._copy, self._ended_inside = None, False
        self._schedule()

    def on_update(self, state: FitState, update: Update) -> None:
        self._check_writer()
        self._ended_inside = state.finished
        count, unit = self.every
        due = unit == "update" and update.step // count > self._written // count
        if not update.exact:
            return
        asked = self._workers.asked
        if due or asked("due") or state.finished or asked("signal") is not None:
            state.running.settle(weights=True)
            self._save(state)
            self._raise_signal()
        elif asked("copy"):
            state.running.settle(weights=True)
            self._copy = None  # so that memory holds one copy
            self._copy, self._copy_at = self._captured(state), time.monotonic() + HOLD_SECONDS

    def on_epoch(self, state: FitState, row: Row) -> None:
        self._check_writer()
        best = self._best is not None and self._best.update(row)
        cut = state.finished and self._written == state.updates  # the checkpoint inside the epoch is the end
        count, unit = self.every
        asked = self._workers.asked
        due = unit == "epoch" and state.epoch - self._epoch_written >= count
        due = due or bool(asked("due")) or best or state.last_epoch or asked("signal") is not None
        # a resumed run repeats an epoch that was ended for now
        if due and not cut and not (state.stop_is_for_now and self._ended_inside):
            self._epoch_written = state.epoch
            self._save(state, after_epoch=True, row=row)
        elif cut and best:  # the same checkpoint, now with the score of the validation
            self._save(state, row=row)
        self._raise_signal()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        with _disk_errors_warn():
            self._writer.wait()
        snapshot, self._copy = self._copy, None
        wanted = state.stop_is_for_now if error is None else not isinstance(error, NonFiniteError)
        if snapshot is not None and snapshot.step > self._written and wanted:
            with _disk_errors_warn((OSError, MXNetError)):  # `fit` raises the error that ended the run
                self._write(snapshot)
        if error is None and self.signals.caught not in (None, signal.SIGINT):  # received after the last update
            deliver(self.signals.caught)

    def _save(self, state: FitState, *, after_epoch: bool = False, row: Optional[Row] = None) -> None:
        with _disk_errors_warn():
            self._writer.wait()  # one at a time, so that memory holds one copy
        self._copy = None
        snapshot = self._captured(state, after_epoch=after_epoch, score=self._score(row))
        self._written = state.updates
        self._schedule()
        if snapshot is not None:
            self._writer.start(lambda: self._write(snapshot))

    def _captured(self, state: FitState, *, after_epoch: bool = False, score: Any = None) -> Optional[Snapshot]:
        """A snapshot, on the first worker; inside an epoch it takes the metrics' sums of all workers."""
        others: Sequence[Any] = ()
        if not after_epoch and score is None:
            others = self._workers.states_of_metrics(state.metrics, f"after update {state.updates}")
        return capture(state, after_epoch=after_epoch, score=score, others=others) if self._workers.first else None

    def _raise_signal(self) -> None:
        signal_of_one = self._workers.asked("signal")
        if signal_of_one is not None:
            self.signals.caught = signal_of_one
            self.signals.raise_caught()

    def _write(self, snapshot: Snapshot) -> None:
        snapshot.write(self.directory)
        LOG.info("checkpoint of step %d written to %s", snapshot.step, self.directory)
        # later ones are broken, else the run would have resumed from them
        present = [one for one in manifests(self.directory) if one.step <= snapshot.step]
        keep = kept(present, keep_last=self.keep_last, keep_best=self._best is not None, keep_every=self.keep_every)
        prune(present, keep)

    def _score(self, row: Optional[Row]) -> Optional[Mapping[str, Any]]:
        if self._best is None or row is None or row.get(self._best.column) is None:
            return None
        return {"column": self._best.column, "mode": self._best.mode, "value": float(row[self._best.column])}

    def _schedule(self) -> None:
        now = time.monotonic()
        self._copy_at = now + HOLD_SECONDS
        if self.every[1] == "minute":
            self._due_at = now + 60 * self.every[0]

    def _check_writer(self) -> None:
        """Raise an error of the writing thread here; an error of the disk is only a warning."""
        if not self._writer.busy:
            with _disk_errors_warn():
                self._writer.wait()


def get_checkpoints(spec: Any) -> Optional[Checkpoints]:
    """Return the `Checkpoints` for a directory, a `Checkpoints` or None."""
    return spec if spec is None or isinstance(spec, Checkpoints) else Checkpoints(spec)


@contextmanager
def _disk_errors_warn(errors: Tuple[Type[Exception], ...] = (OSError,)) -> Iterator[None]:
    try:
        yield
    except errors as error:
        text = f"a checkpoint could not be written, the run goes on and earlier ones are whole: {error}"
        warnings.warn(text, CheckpointWarning, stacklevel=3)
