"""Limits the batches that are queued on the devices."""

from collections import deque
from typing import Any, Deque, Iterable, List, Tuple

import numpy as np

# A queued batch keeps its arrays in memory (T27: 358 to 788 MB without this limit).
QUEUED_BYTES = 256 * 2**20
# Limit for small batches outside of training
QUEUED_BATCHES = 32


def bytes_of(arrays: Iterable[Any]) -> int:
    """Bytes of arrays."""
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


class QueuedBatches:
    """Queued batches: at most QUEUED_BYTES, unless a single batch is larger.

    Args:
        most: Maximum number of batches in the queue. With 1, the caller waits for each batch.
    """

    def __init__(self, most: int = QUEUED_BATCHES) -> None:
        self._most = most
        self._waiting: Deque[Tuple[int, Any]] = deque()
        self._bytes = 0

    def add(self, results: Any, size: int) -> List[Any]:
        """Add a batch.

        Args:
            results: Results of the batch, returned when it is due.
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
