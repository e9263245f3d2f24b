"""Optimizer updates, the sums of the running epoch, and one wait for the numbers of many updates."""

from collections import deque
from itertools import groupby
import math
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence

from mxkit.core.arrays import sum_of_squares
from mxkit.core.device import QUEUED_BYTES, Shards, bytes_of
from mxkit.core.replicas import first_value
from mxkit.errors import NonFiniteError
from mxkit.training.history import Row
from mxkit.training.randomness import RESEED_EVERY, Position
import mxnet as mx
import numpy as np

# Number of updates that are read in one wait. Half as many stay queued meanwhile, which keeps the device busy. If an
# update takes less than 4 ms, four times as many are read in one wait: on two cores, a thread that waited shares a
# core with the engine's thread, which costs both about 10 ms.
SETTLE_EVERY = 64
SETTLE_SECONDS = 0.25


class Update:
    """One optimizer update: its number, its samples and its loss.

    Attributes:
        step: Number of the update, from 1.
        samples: Number of samples in the update.
        count: Divisor of losses and gradients: `samples`, unless the loss states another count.
        batches: Batches of the epoch that were read before the update, from 1; 0 outside of `updates`.
        exact: Whether a run can be resumed exactly after this update: no random numbers were drawn since a seeding.
        skipped: Whether the update was skipped, because float16 gradients overflowed.
        learning_rate: The Trainer's, with which it was made.
    """

    def __init__(
        self,
        step: int,
        samples: int,
        losses: Sequence[Any],
        norm: Optional[Any] = None,
        *,
        count: Optional[float] = None,
        skipped: bool = False,
    ) -> None:
        self.step = step
        self.samples = samples
        self.count = samples if count is None else count
        self.skipped = skipped
        self.learning_rate = math.nan
        self.batches = 0
        self.exact = False
        self._losses, self._measured = len(losses), norm is not None
        self._arrays = [*losses, *([norm] if self._measured else [])]
        self._values: List[float] = []

    @property
    def loss(self) -> float:
        """Sum of the losses divided by `count`, in the loss's unit. The first read waits for the device."""
        return sum(self._read()[: self._losses]) / self.count

    @property
    def grad_norm(self) -> Optional[float]:
        """L2 norm of the averaged gradient before clipping; None without `clip_norm` or if skipped. Waits too."""
        return self._read()[self._losses] if self._measured else None

    @property
    def finite(self) -> bool:
        """Whether the loss, the gradient norm and the weights, if measured, are finite. Waits like `loss`."""
        return all(map(math.isfinite, self._read()))

    def watch(self, weights: Sequence[Any]) -> None:
        """Queue the sum of the weights' squares, because NaN can hide behind a finite loss (T25).

        `multi_all_finite` costs 30 times as much on the CPU and aborts the process for more than 200 arrays (T29).
        """
        self._arrays.append(sum_of_squares(weights))

    @property
    def settled(self) -> bool:
        """Whether the numbers are on the host, so that reading them does not wait."""
        return not self._arrays

    def _read(self) -> List[float]:
        if self._arrays:
            settle([self])
        return self._values

    def __repr__(self) -> str:
        loss = f", loss={self.loss:.6g}" if self.settled else ""
        return f"Update(step={self.step}, samples={self.samples}{loss})"


class Ledger:
    """The sums of the running epoch, and its pending updates: those on the device.

    It limits how far Python runs ahead of the device, and finds the first update with NaN or infinity. Losses are added
    in the order of their updates, whenever they are read: the sum is the same to the last bit with and without a
    progress bar, and after a resume.

    Attributes:
        batches: Batches that were read.
        updates: Updates in this epoch.
        samples: Samples of these updates.
        count: Divisor of the sum of the losses: `samples`, unless the loss states another count.
        skipped: Updates that were skipped, because float16 gradients overflowed.
        loss_sum: Sum of the losses that were read.
        read_count: Divisor of `loss_sum`: `count` of the updates that were read.
        whole: Whether the data was read to its end.
        broken: The first update with NaN or infinity among those that were read; with other workers the error waits
            until all raise it.
    """

    def __init__(self, before: Optional["Ledger"] = None) -> None:
        self.batches = self.updates = self.samples = self.skipped = 0
        self.count = self.loss_sum = self.read_count = self._seconds = 0.0
        self.whole = False
        self._seeded: List[int] = []
        self._begun = 0.0
        self._pending: Deque[Update] = deque()
        self._every, self._most = SETTLE_EVERY, 4 * SETTLE_EVERY
        self._quick: bool = before is not None and before._quick
        self._unwatched = 0
        self._parameters: Sequence[Any] = ()
        self._check_finite = True
        self._epoch: Optional[int] = None
        self._newest: Optional[Update] = None
        self._joint = False
        self._describe: Callable[[Update], str] = lambda update: ""
        self._optimizer: Any = None
        self.broken: Optional[Update] = None

    def start(
        self,
        parameters: Sequence[Any],
        check_finite: bool,
        epoch: Optional[int],
        *,
        joint: bool = False,
        describe: Callable[[Update], str] = lambda update: "",
        optimizer: Any = None,
    ) -> None:
        """Begin or continue the epoch.

        Args:
            parameters: The Trainer's parameters.
            check_finite: Whether NaN and infinity raise an error.
            epoch: Number of the epoch from 0, or None if epochs are not counted.
            joint: Whether there are other workers, which read the numbers of the same updates at other times: NaN and
                infinity then raise an error only in `settle(weights=True)`, which all call at the same place.
            describe: Returns where the batches of an update hold NaN or infinity, or ''; called for the error's text.
            optimizer: The Trainer's, for the error's text.
        """
        self._joint, self._describe, self._optimizer = joint, describe, optimizer
        self._parameters, self._check_finite, self._epoch = parameters, check_finite, epoch
        self._begun = time.perf_counter()

    def bound(self, shards: Shards, batches: int) -> None:
        """Limit the number of pending updates by the size of the first batch and the batches per update."""
        size = sum(bytes_of(shard.inputs) for shard in shards)
        room = QUEUED_BYTES // (max(1, size) * batches)
        self._every = max(2, min(self._every, room))
        self._most = max(self._every, min(self._most, room // 4))

    def add(self, update: Update) -> None:
        """Add an update to the sums. If too many updates are pending, wait for the oldest ones.

        Raises:
            NonFiniteError: The numbers of an update that was read are NaN or infinite.
        """
        self._newest = update
        count = self._most if self._quick else self._every
        if len(self._pending) + 1 >= count + count // 2:
            begun = time.monotonic()
            self._read(count)
            self._quick = time.monotonic() - begun < SETTLE_SECONDS * count / SETTLE_EVERY
        self.batches = update.batches
        self.updates += 1
        self.samples += update.samples
        self.count += update.count
        self.skipped += update.skipped
        if self.updates % RESEED_EVERY == 0:
            self._seeded.append(update.batches)
        self._pending.append(update)
        self._unwatched += 1
        if self._unwatched == SETTLE_EVERY:
            self._watch()

    def settle(self, *, but: int = 0, weights: bool = False) -> None:
        """Wait for the numbers of all updates so far.

        Args:
            but: Number of newest updates to leave pending.
            weights: Check the weights too.

        Raises:
            NonFiniteError: One of the numbers is NaN or infinite.
        """
        if weights and self._unwatched:
            self._watch()
        self._read(max(0, len(self._pending) - but))
        if weights and self._joint and self.broken is not None:
            raise NonFiniteError(self._text(self.broken))

    def _watch(self) -> None:
        if self._check_finite and self._pending:
            # one replica is enough: all are equal
            trained = [parameter for parameter in self._parameters if parameter.grad_req != "null"]
            self._pending[-1].watch([first_value(parameter) for parameter in trained])
        self._unwatched = 0

    def _read(self, count: int) -> None:
        if not count:
            return
        oldest = [self._pending.popleft() for _ in range(count)]
        settle(oldest)
        for update in oldest:
            self.loss_sum += update.loss * update.count
            self.read_count += update.count
        if not self._check_finite or self.broken is not None:
            return
        self.broken = next((update for update in oldest if not update.finite), None)
        if self.broken is not None and not self._joint:
            raise NonFiniteError(self._text(self.broken))

    def _text(self, broken: Update) -> str:
        if not math.isfinite(broken.loss):
            what = f"the loss is {broken.loss}"
        elif broken.grad_norm is not None and not math.isfinite(broken.grad_norm):
            what = f"the gradient's norm is {broken.grad_norm}"
        else:
            what = f"a weight is not finite, since one of the last {SETTLE_EVERY} updates, though the loss looks fine"
        newest = broken.step if self._newest is None else self._newest.step
        way = "" if self._joint else self._describe(broken)
        return (
            f"{numbers(self._epoch, broken.step)}: {what} (noticed after update {newest}). The weights are wrong from "
            f"there on. {way or _advice(self._optimizer)}; check_finite=False trains on regardless"
        )

    @property
    def position(self) -> Position:
        """Position in the epoch, for a resumed run."""
        return Position(self.batches, self.updates, self._seeded, self.samples)

    @property
    def seconds(self) -> float:
        """Seconds of training in this epoch, with those before a resume."""
        return self._seconds + (time.perf_counter() - self._begun if self._begun else 0.0)

    def row(self) -> Row:
        """The columns of the epoch's row; call `settle` first."""
        seconds = self.seconds
        return {
            "samples": self.samples,
            "seconds": seconds,
            "samples_per_second": self.samples / seconds,
            "train_loss": self.loss_sum / self.count,
        }

    def state_dict(self) -> Dict[str, Any]:
        """The state that a resumed run restores, as plain JSON values; call `settle` first."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {**counts, "loss_sum": self.loss_sum, "seconds": self.seconds, "seeded": list(self._seeded)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore a state of `state_dict`; the clock continues at `start`."""
        for name in _COUNTS:
            setattr(self, name, state[name])
        self._seeded = list(state.get("seeded", ()))
        self.loss_sum, self._seconds, self.read_count = state["loss_sum"], state["seconds"], state["count"]


def _advice(optimizer: Any) -> str:
    """What helps against NaN and infinity that are not in the data."""
    text = "lower the learning rate, set clip_norm, or search the data for NaN"
    if not isinstance(optimizer, mx.optimizer.Adamax):
        return f"L{text[1:]}"
    why = "The optimizer Adamax divides 0 by 0 where a weight's gradients were all 0, as in rows of an Embedding whose"
    return f"{why} tokens have not come yet, or behind a ReLU that gives 0 (T299): use 'adam'. Otherwise {text}"


def numbers(epoch: Optional[int], step: int) -> str:
    """Epoch and update for messages, which count epochs from 1.

    >>> numbers(0, 7), numbers(None, 7)
    ('epoch 1, update 7', 'update 7')
    """
    return f"update {step}" if epoch is None else f"epoch {epoch + 1}, update {step}"


_COUNTS = ("batches", "updates", "samples", "skipped", "count")


def settle(updates: Sequence[Update]) -> None:
    """Copy the numbers of all `updates` to the host in a single wait, and release their arrays."""
    arrays = [array for update in updates for array in update._arrays]
    if not arrays:
        return
    sums = iter(_sums(arrays))
    for update in updates:
        update._values += [next(sums) for _ in update._arrays]
        update._arrays = []


def _sums(arrays: Sequence[Any]) -> List[float]:
    """Sums in float64 of arrays of shape (n,), which may be on several devices, after a single wait."""
    by_device: Dict[Any, List[int]] = {}
    for position, array in enumerate(arrays):
        by_device.setdefault(array.ctx, []).append(position)
    joined = [mx.nd.concat(*[arrays[i] for i in group], dim=0).as_in_context(mx.cpu()) for group in by_device.values()]
    values = (joined[0] if len(joined) == 1 else mx.nd.concat(*joined, dim=0)).asnumpy()
    order = [position for group in by_device.values() for position in group]
    sizes = [arrays[position].shape[0] for position in order]
    sums = dict(zip(order, _sums_of_parts(values.astype(np.float64), sizes)))
    return [sums[position] for position in range(len(arrays))]


def _sums_of_parts(values: "np.ndarray", sizes: Sequence[int]) -> List[float]:
    """Sums of consecutive parts; the bits of a sum do not depend on the other parts."""
    sums: List[float] = []
    end = 0
    for size, parts in groupby(sizes):  # mostly one size
        begin, end = end, end + size * len(list(parts))
        sums += values[begin:end].reshape((-1, size)).sum(axis=1).tolist()
    return sums
