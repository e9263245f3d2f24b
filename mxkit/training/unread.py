"""Updates whose numbers nobody has read yet, and batches: how many there may be, and which of them broke."""

from collections import deque
import math
import time
from typing import Any, Deque, Optional, Sequence

from mxkit.core.device import Shards
from mxkit.core.queued import QUEUED_BYTES, bytes_of
from mxkit.errors import NonFiniteError
from mxkit.training.accumulator import Accumulator
from mxkit.training.place import numbers
from mxkit.training.record import Update, settle

# Updates whose numbers are read together, in one wait; as many as half of them stay queued meanwhile, so
# that the device never runs dry. Where the device takes less than 4 ms for an update they are read four times as
# rarely: on two cores a thread that has waited finds itself on the core of the engine's, and both lose some 10 ms until
# the system parts them.
SETTLE_EVERY = 64
SETTLE_SECONDS = 0.25


class Unread:
    """Updates whose numbers were not read: bounds how far Python runs ahead, and finds the update that broke.

    Args:
        accumulator: Which makes them.
        check_finite: Whether numbers that are not finite are an error.
        epoch: From 0, or None where nobody counts them.
        before: That of the epoch before, which knows how quick updates are.
    """

    def __init__(
        self, accumulator: Accumulator, check_finite: bool, epoch: Optional[int], before: Optional["Unread"]
    ) -> None:
        self._open: Deque[Update] = deque()
        self._accumulator = accumulator
        self._check_finite = check_finite
        self._epoch = epoch
        self._every, self._most = SETTLE_EVERY, 4 * SETTLE_EVERY
        self._quick: bool = before is not None and before._quick
        self._unwatched = 0

    def measure(self, shards: Shards) -> None:
        """Set the bound from the size of the first batch."""
        size = sum(bytes_of(shard.inputs) for shard in shards)
        samples = self._accumulator.every_samples
        batches = self._accumulator.every if samples is None else -(-samples // shards.samples)
        room = QUEUED_BYTES // (max(1, size) * batches)
        self._every = max(2, min(self._every, room))
        self._most = max(self._every, min(self._most, room // 4))

    def add(self, update: Optional[Update]) -> Optional[Update]:
        if update is None:
            return None
        self._open.append(update)
        self._unwatched += 1
        if self._unwatched == SETTLE_EVERY:
            self._watch()
        count = self._most if self._quick else self._every
        if len(self._open) >= count + count // 2:
            begun = time.monotonic()
            self._settle(count)
            self._quick = time.monotonic() - begun < SETTLE_SECONDS * count / SETTLE_EVERY
        return update

    def drain(self) -> None:
        if self._unwatched:
            self._watch()
        self._settle(len(self._open))

    def _watch(self) -> None:
        if self._check_finite:
            watch_weights(self._open[-1], self._accumulator.trainer)
        self._unwatched = 0

    def _settle(self, count: int) -> None:
        oldest = [self._open.popleft() for _ in range(count)]
        settle(oldest)
        if self._check_finite:
            refuse_broken(oldest, self._epoch, self._accumulator.updates)


def watch_weights(update: Update, trainer: Any) -> None:
    """Let `update` tell whether the weights after it are finite; replicas are equal, so one is looked at."""
    update.watch([parameter.list_data()[0] for parameter in trainer._params if parameter.grad_req != "null"])


def refuse_broken(done: Sequence[Update], epoch: Optional[int], newest: int) -> None:
    """Raise `NonFiniteError` for the first update among `done` whose numbers are not finite.

    Args:
        done: Updates in their order.
        epoch: From 0, or None where nobody counts them.
        newest: Number of the last update so far.
    """
    broken = next((update for update in done if not update.finite), None)
    if broken is None:
        return
    if not math.isfinite(broken.loss):
        what = f"the loss is {broken.loss}"
    elif broken.grad_norm is not None and not math.isfinite(broken.grad_norm):
        what = f"the gradient's norm is {broken.grad_norm}"
    else:
        what = f"a weight is not finite, since one of the last {SETTLE_EVERY} updates, though the loss looks fine"
    raise NonFiniteError(
        f"{numbers(epoch, broken.step)}: {what} (noticed after update {newest}). The weights are spoilt from there "
        "on. Lower the learning rate, set clip_norm, or look for NaN in the data; check_finite=False goes on regardless"
    )
