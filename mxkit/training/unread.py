"""Updates whose numbers nobody has read yet, and batches: how many there may be, and which of them broke."""

from collections import deque
import math
import time
from typing import Any, Deque, Iterable, List, Optional, Sequence, Tuple

from mxkit.core.device import Shards
from mxkit.core.trainers import trainer_parameters
from mxkit.errors import NonFiniteError
from mxkit.training.accumulator import Accumulator
from mxkit.training.place import numbers
from mxkit.training.record import Update, settle
import numpy as np

# Updates whose numbers are read together, in one wait; as many as half of them stay queued meanwhile, so
# that the device never runs dry. Where the device takes less than 4 ms for an update they are read four times as
# rarely: on two cores a thread that has waited finds itself on the core of the engine's, and both lose some 10 ms until
# the system parts them.
SETTLE_EVERY = 64
SETTLE_SECONDS = 0.25
# A queued update holds its batch: large batches are waited for sooner (T27: 358 to 788 MB without a bound).
QUEUED_BYTES = 256 * 2**20
# Batches of a pass outside of training that may be queued, where they are small.
QUEUED_BATCHES = 32


def bytes_of(arrays: Iterable[Any]) -> int:
    """Bytes that arrays take."""
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


class Queued:
    """Batches of a pass outside of training that nobody waited for: as many as QUEUED_BYTES hold, at least one."""

    def __init__(self) -> None:
        self._open: Deque[Tuple[int, Any]] = deque()
        self._bytes = 0

    def add(self, shards: Shards, results: Any, arrays: Iterable[Any]) -> List[Any]:
        """Count a batch that was queued.

        Args:
            shards: The batch.
            results: What is to be waited for or read; one for the batch.
            arrays: The arrays of the results, which are counted beside the inputs.

        Returns:
            Results of the oldest batches, which the caller waits for: none, or half of those that are queued.
        """
        size = bytes_of(arrays) + sum(bytes_of(shard.inputs) for shard in shards)
        self._open.append((size, results))
        self._bytes += size
        if len(self._open) < QUEUED_BATCHES and self._bytes < QUEUED_BYTES:
            return []
        due = []
        while len(self._open) > 1 and (len(self._open) > QUEUED_BATCHES // 2 or self._bytes > QUEUED_BYTES // 2):
            size, results = self._open.popleft()
            self._bytes -= size
            due.append(results)
        return due

    def rest(self) -> List[Any]:
        """Results of all that is queued still."""
        return [results for _, results in self._open]


def wait(due: Sequence[Any]) -> None:
    """Wait for the newest of several batches' results, lists of arrays; those before it are done by then, or soon."""
    for array in due[-1] if due else ():
        array.wait_to_read()


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
    update.watch([one.list_data()[0] for one in trainer_parameters(trainer) if one.grad_req != "null"])


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
