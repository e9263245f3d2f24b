"""The running epoch: what its row of the history is made of."""

from collections import deque
import time
from typing import Any, Deque, Dict, List

from mxkit.training.history import Row
from mxkit.training.randomness import RESEED_EVERY, Position
from mxkit.training.record import Update, settle


class RunningEpoch:
    """Sums over the updates of one epoch.

    Losses are added up in the order of their updates, whenever they happen to be read: the sum is the same to
    the last bit with and without a progress bar, and after a resume.

    Attributes:
        batches: Batches read.
        updates: Updates done in this epoch.
        samples: Samples seen.
        count: What the sum of losses is divided by: `samples`, where no other count was stated.
        skipped: Updates that float16 gradients overflowed in.
        whole: Whether the data came to its end.
    """

    def __init__(self) -> None:
        self.batches = self.updates = self.samples = self.skipped = 0
        self.count = self._loss_sum = self._seconds = 0.0
        self.whole = False
        self._seeded: List[int] = []
        self._begun = 0.0
        self._unread: Deque[Update] = deque()

    def start(self) -> None:
        """Start the clock."""
        self._begun = time.perf_counter()

    def add(self, update: Update) -> None:
        """Count an update; its loss is read when it is there."""
        self.batches = update.batches
        self.updates += 1
        self.samples += update.samples
        self.count += update.count
        self.skipped += update.skipped
        if self.updates % RESEED_EVERY == 0:
            self._seeded.append(update.batches)
        self._unread.append(update)
        while self._unread and self._unread[0].settled:
            self._take()

    def settle(self) -> List[Update]:
        """Wait for the losses of all updates so far; return those that were not read before."""
        waiting = list(self._unread)
        settle(waiting)
        while self._unread:
            self._take()
        return waiting

    def _take(self) -> None:
        update = self._unread.popleft()
        self._loss_sum += update.loss * update.count

    @property
    def position(self) -> Position:
        """Where the epoch stands."""
        return Position(self.batches, self.updates, self._seeded, self.samples)

    @property
    def last(self) -> Any:
        """The newest update, if its loss is not read yet."""
        return self._unread[-1] if self._unread else None

    @property
    def seconds(self) -> float:
        """Seconds of training in this epoch, also those before a resume."""
        return self._seconds + (time.perf_counter() - self._begun if self._begun else 0.0)

    def row(self) -> Row:
        """The epoch's share of its row; call `settle` first."""
        seconds = self.seconds
        return {
            "samples": self.samples,
            "seconds": seconds,
            "samples_per_second": self.samples / seconds,
            "train_loss": self._loss_sum / self.count,
        }

    def state_dict(self) -> Dict[str, Any]:
        """What a resumed run must restore, as plain JSON values; call `settle` first."""
        names = ("batches", "updates", "samples", "skipped", "count")
        numbers = {name: getattr(self, name) for name in names}
        return {**numbers, "loss_sum": self._loss_sum, "seconds": self.seconds, "seeded": list(self._seeded)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take over what `state_dict` gave; the clock goes on from there at `start`."""
        for name in ("batches", "updates", "samples", "skipped", "count"):
            setattr(self, name, state[name])
        self._seeded = list(state.get("seeded", ()))
        self._loss_sum, self._seconds = state["loss_sum"], state["seconds"]
