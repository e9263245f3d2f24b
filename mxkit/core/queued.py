"""The limit on work that is queued on the devices and not waited for."""

from collections import deque
from typing import Any, Deque, Iterable, List, Tuple

import numpy as np

# A queued batch holds its arrays, so that large batches are waited for sooner (T27: 358 to 788 MB without a limit).
QUEUED_BYTES = 256 * 2**20
# The limit for small batches, outside of training.
QUEUED_BATCHES = 32


def bytes_of(arrays: Iterable[Any]) -> int:
    """Bytes that arrays take."""
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


class QueuedBatches:
    """Batches that nobody waited for: no more than QUEUED_BYTES, unless a single batch is larger.

    Args:
        most: Most batches in the queue. With 1 each batch is waited for.
    """

    def __init__(self, most: int = QUEUED_BATCHES) -> None:
        self._most = most
        self._waiting: Deque[Tuple[int, Any]] = deque()
        self._bytes = 0

    def add(self, results: Any, size: int) -> List[Any]:
        """Add a batch.

        Args:
            results: What the batch gives, returned when it is due.
            size: Bytes of its inputs and results.

        Returns:
            Results of the oldest batches, for the caller to wait for: none, or half of the queue.
        """
        self._waiting.append((size, results))
        self._bytes += size
        if len(self._waiting) < self._most and self._bytes < QUEUED_BYTES:
            return []
        due = []
        while len(self._waiting) > self._most // 2 or (len(self._waiting) > 1 and self._bytes > QUEUED_BYTES // 2):
            size, results = self._waiting.popleft()
            self._bytes -= size
            due.append(results)
        return due

    def rest(self) -> List[Any]:
        """Results of the batches still in the queue."""
        return [results for _, results in self._waiting]
