"""The record of one optimizer update, whose numbers are read only when somebody asks."""

from itertools import groupby
import math
from typing import Any, Dict, List, Optional, Sequence

import mxnet as mx
import numpy as np


class Update:
    """What one optimizer update did.

    Attributes:
        step: Number of the update, from 1.
        samples: Samples that it saw.
        count: What losses and gradients were divided by: `samples`, where no other count was stated.
        batches: Batches of the epoch that had been read when it was done, from 1; 0 outside of `updates`.
        exact: Whether a run can go on from here bit for bit: nothing drew random numbers since a seeding.
        skipped: Whether nothing was changed, because float16 gradients overflowed.
    """

    __slots__ = (
        "_arrays",
        "_losses",
        "_measured",
        "_values",
        "batches",
        "count",
        "exact",
        "samples",
        "skipped",
        "step",
    )

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
        self.batches = 0
        self.exact = False
        self._losses = len(losses)
        self._measured = norm is not None
        self._arrays = [*losses, *([norm] if self._measured else [])]
        self._values: List[float] = []

    @property
    def loss(self) -> float:
        """Mean loss per sample (of `count`), in the loss's unit. Waits for the device on the first read."""
        return sum(self._read()[: self._losses]) / self.count

    @property
    def grad_norm(self) -> Optional[float]:
        """L2 norm of the averaged gradient before clipping; None without `clip_norm`, or if skipped. Waits too."""
        return self._read()[self._losses] if self._measured else None

    @property
    def finite(self) -> bool:
        """Whether loss, gradient norm and weights, where they were looked at, are finite. Waits like `loss`."""
        return all(map(math.isfinite, self._read()))

    def watch(self, weights: Sequence[Any]) -> None:
        """Queue a look at the weights as they are now, because NaN can hide behind a finite loss (T25).

        One number tells: the sum of their squares. `multi_all_finite`, made for this, costs 30 times as much
        on the CPU and aborts the process for more than 200 arrays (T29).
        """
        flat = [weight.reshape((-1,)).astype("float32", copy=False) for weight in weights]
        self._arrays.append(mx.nd.concat(*[mx.nd.dot(one, one) for one in flat], dim=0).sum())

    @property
    def settled(self) -> bool:
        """Whether the numbers are on the host, so that reading them waits for nothing."""
        return not self._arrays

    def _read(self) -> List[float]:
        if self._arrays:
            settle([self])
        return self._values

    def __repr__(self) -> str:
        told = f", loss={self.loss:.6g}" if self.settled else ""
        return f"Update(step={self.step}, samples={self.samples}{told})"


def settle(updates: Sequence[Update]) -> None:
    """Bring the numbers of all `updates` to the host in a single wait, and let their arrays go."""
    arrays = [array for update in updates for array in update._arrays]
    if not arrays:
        return
    sums = iter(_sums(arrays))
    for update in updates:
        update._values += [next(sums) for _ in update._arrays]
        update._arrays = []


def _sums(arrays: Sequence[Any]) -> List[float]:
    """Sums of arrays of shape (n,) on any devices, in float64, after a single wait."""
    by_device: Dict[Any, List[int]] = {}
    for position, array in enumerate(arrays):
        by_device.setdefault(array.context, []).append(position)
    joined = [mx.nd.concat(*[arrays[i] for i in group], dim=0).as_in_context(mx.cpu()) for group in by_device.values()]
    values = (joined[0] if len(joined) == 1 else mx.nd.concat(*joined, dim=0)).asnumpy()
    order = [position for group in by_device.values() for position in group]
    sizes = [arrays[position].shape[0] for position in order]
    sums = dict(zip(order, _sums_of_parts(values.astype(np.float64), sizes)))
    return [sums[position] for position in range(len(arrays))]


def _sums_of_parts(values: "np.ndarray", sizes: Sequence[int]) -> List[float]:
    """Sums of consecutive parts; each is the same to the last bit, whatever stands beside it."""
    found: List[float] = []
    end = 0
    for size, parts in groupby(sizes):  # mostly all of one size
        begin, end = end, end + size * len(list(parts))
        found += values[begin:end].reshape((-1, size)).sum(axis=1).tolist()
    return found
