"""Batches of a pass outside of training that nobody waited for."""

from collections import deque
from typing import Any, Deque, Iterable, List, Sequence, Tuple

from mxkit.core.device import Shards
from mxkit.training.ledger import QUEUED_BYTES, bytes_of

# Batches of a pass outside of training that may be queued, where they are small.
QUEUED_BATCHES = 32


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
