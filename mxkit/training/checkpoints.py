"""When `fit` writes checkpoints, and which it keeps."""

from pathlib import Path
import signal
import time
from typing import Any, Mapping, Optional, Tuple, Union
import warnings

from mxkit.core.arguments import whole_number
from mxkit.errors import CheckpointError, CheckpointWarning, NonFiniteError
from mxkit.storage.directory import (
    checkpoint_paths,
    interval,
    is_checkpoint,
    kept,
    manifests,
    prepare,
    prune,
)
from mxkit.storage.snapshot import Snapshot
from mxkit.storage.writer import BackgroundWriter
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.monitor import Monitor
from mxkit.training.history import Row
from mxkit.training.ledger import Update
from mxkit.training.randomness import RESEED_EVERY
from mxkit.training.resume import capture
from mxkit.training.signals import PoliteSignals, deliver
from mxkit.training.state import FitState
from mxnet.base import MXNetError

# A copy of the run in memory, not older than this, is written if an error ends it.
HOLD_SECONDS = 60.0


class Checkpoints(Callback):
    """Write checkpoints of a `fit`, from each of which it can go on exactly: `fit(..., checkpoint=Checkpoints(...))`.

    A checkpoint is written beside the training, from copies made at the end of an update; the last one is
    finished before `fit` returns. Inside an epoch they fall on updates from which a run can go on bit for bit:
    on every one where nothing draws random numbers, else on every 16th of the epoch (T67).

    They are also written when `fit` ends, and before it stops on Ctrl-C (a second one stops at once) or
    SIGTERM. An error of the net, the data or a callback writes the copy of the run that lies in memory, which
    is at most a minute older; NaN is never written.

    Args:
        directory: Holds the checkpoints of this run alone.
        every: "1 epoch", "50 updates" or "5 minutes". Where something draws random numbers (dropout, augmentation), a
            checkpoint waits for the next update of the epoch that 16 divides: "5 updates" is every 16th. A warning
            says so once.
        keep_last: Newest ones that are kept, at least 1.
        keep_best: `("valid_accuracy", "max")`: also keep the one after the epoch with the best value, which is
            written whatever `every` says. None keeps none for its value.
        keep_every: "10 epochs" or "1000 updates": also keep the first one of each such stretch.

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
        keep_best: Optional[Tuple[str, str]] = None,
        keep_every: Optional[str] = None,
    ) -> None:
        self.directory = Path(directory)
        if is_checkpoint(self.directory):
            raise ValueError(
                "Checkpoints: directory: expected the one that holds a run's checkpoints; received one of them, "
                f"{directory}. Pass its parent"
            )
        self.every = interval(every, "every", ("epoch", "update", "minute"))
        self.keep_last = whole_number(keep_last, "keep_last")
        self.keep_every = None if keep_every is None else interval(keep_every, "keep_every", ("epoch", "update"))
        self._best = None if keep_best is None else Monitor(*_pair(keep_best))
        self._writer = BackgroundWriter()
        self._held: Optional[Snapshot] = None
        self._written = self._epoch_written = 0
        self._due_at = self._hold_at = 0.0
        self._ended_inside = self._postponed = False
        self.signals = PoliteSignals()

    def on_fit_begin(self, state: FitState) -> None:
        if self._best is not None:
            state.check_monitor(self._best)
        prepare(self.directory)
        if self._best is not None:
            self._best.reset()
            for row in state.history:
                if self._best.column in row:  # else a run without this metric was resumed
                    self._best.update(row)
        self._written = state.updates
        self._epoch_written = state.epoch - 1
        self._held, self._ended_inside = None, False
        self._schedule()

    def on_update(self, state: FitState, update: Update) -> None:
        self._tell()
        self._ended_inside = state.finished
        count, unit = self.every
        due = unit == "update" and update.step // count > self._written // count
        if not update.exact:
            if due and count % RESEED_EVERY and not self._postponed:
                self._postponed = True
                _tell_postponed(int(count))
            return
        now = time.monotonic()
        due = due or (unit == "minute" and now >= self._due_at)
        if due or state.finished or self.signals.caught is not None:
            state.running.settle(weights=True)
            self._save(state)
            self.signals.raise_caught()
        elif now >= self._hold_at and not self._writer.busy:
            state.running.settle(weights=True)
            self._held = None  # so that memory holds one copy
            self._held, self._hold_at = capture(state), now + HOLD_SECONDS

    def on_epoch(self, state: FitState, row: Row) -> None:
        self._tell()
        best = self._best is not None and self._best.update(row)
        cut = state.finished and self._written == state.updates  # the checkpoint inside the epoch is the end
        count, unit = self.every
        due = unit == "epoch" and state.epoch - self._epoch_written >= count
        due = due or (unit == "minute" and time.monotonic() >= self._due_at)
        due = due or best or state.last_epoch or self.signals.caught is not None
        # an epoch that was ended for now is done again by the run that goes on
        if due and not cut and not (state.stop_is_for_now and self._ended_inside):
            self._epoch_written = state.epoch
            self._save(state, after_epoch=True, row=row)
        elif cut and best:  # the same checkpoint with the score that validation has found since
            self._save(state, row=row)
        self.signals.raise_caught()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        try:
            self._writer.wait()
        except OSError as failed:
            _warn(failed)
        held, self._held = self._held, None
        lost = state.stop_is_for_now if error is None else not isinstance(error, NonFiniteError)
        if held is not None and held.step > self._written and lost:
            try:
                self._write(held)
            except (OSError, MXNetError) as failed:  # the error that ended the run is the one to raise
                _warn(failed)
        if error is None and self.signals.caught == signal.SIGTERM:  # it came after the last update
            deliver(signal.SIGTERM)

    def _save(self, state: FitState, *, after_epoch: bool = False, row: Optional[Row] = None) -> None:
        try:
            self._writer.wait()  # one at a time, so that memory holds one copy
        except OSError as error:
            _warn(error)
        self._held = None
        snapshot = capture(state, after_epoch=after_epoch, score=self._score(row))
        self._written = state.updates
        self._schedule()
        self._writer.start(lambda: self._write(snapshot))

    def _write(self, snapshot: Snapshot) -> None:
        snapshot.write(self.directory)
        # later ones are broken, else the run would have gone on from there: they count for nothing
        found = [one for one in manifests(self.directory) if one.step <= snapshot.step]
        keep = kept(found, keep_last=self.keep_last, keep_best=self._best is not None, keep_every=self.keep_every)
        prune(self.directory, set(keep), before=snapshot.step)

    def _score(self, row: Optional[Row]) -> Optional[Mapping[str, Any]]:
        if self._best is None or row is None or row.get(self._best.column) is None:
            return None
        return {"column": self._best.column, "mode": self._best.mode, "value": float(row[self._best.column])}

    def _schedule(self) -> None:
        now = time.monotonic()
        self._hold_at = now + HOLD_SECONDS
        if self.every[1] == "minute":
            self._due_at = now + 60 * self.every[0]

    def _tell(self) -> None:
        """Raise an error of the writing thread here; a full disk is a warning, and the run goes on."""
        try:
            self._writer.check()
        except OSError as error:
            _warn(error)


def get_checkpoints(spec: Any) -> Optional[Checkpoints]:
    """Return the Checkpoints that `spec` means: a directory, a `Checkpoints`, or None."""
    return spec if spec is None or isinstance(spec, Checkpoints) else Checkpoints(spec)


def refuse_mixed_runs(directory: Path) -> None:
    """Refuse to write a new run's checkpoints beside those of an earlier one.

    Raises:
        CheckpointError: There are some.
    """
    found = checkpoint_paths(directory)
    if found:
        raise CheckpointError(
            f"{directory} holds checkpoints of an earlier run, the newest {found[0].name}. Go on with it by "
            "resume=True or resume='auto', or write into another directory"
        )


def _tell_postponed(count: int) -> None:
    warnings.warn(
        f"every='{count} updates': the training draws random numbers, or its data may draw some, so that a run can be "
        "resumed exactly only after those updates of an epoch that "
        f"{RESEED_EVERY} divides. Checkpoints are written there",
        CheckpointWarning,
        stacklevel=5,
    )


def _warn(error: BaseException) -> None:
    text = f"a checkpoint could not be written, the run goes on and earlier ones are whole: {error}"
    warnings.warn(text, CheckpointWarning, stacklevel=4)


def _pair(value: Any) -> Tuple[str, str]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"Checkpoints: keep_best: expected (column, 'min' or 'max'); received {value!r:.100}")
    return value[0], value[1]
