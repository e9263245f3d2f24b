"""Pools of processes for Gluon's DataLoader that end without waiting for dead processes (T234).

`multiprocessing.Pool.terminate` takes the lock with which its workers read tasks. If a worker is killed while it holds
that lock, the program and the other workers hang for ever. And MXNet's loader waits 120 s for the result of a killed
worker.
"""

from functools import partial
import multiprocessing
import multiprocessing.pool
import os
import signal
import sys
import threading
import time
from types import ModuleType
from typing import Any, List, Optional, Sequence
import warnings

from mxkit.errors import DataError
from mxkit.runtime.engine_threads import one_thread_in_children

_GRACE = 1.0  # most seconds for each step of the end, which usually takes milliseconds
_LOOKS = 0.1  # seconds between two checks of the workers
_LOST = (ConnectionError, EOFError, FileNotFoundError)  # errors of memory that a dead worker has shared
# T235: Python 3.12 and newer warn at each fork. MXNet ends its threads before a fork and restarts them after it.
_FORK_WARNING = r"This process \(pid=\d+\) is multi-threaded, use of fork"


class WorkerPool(multiprocessing.pool.Pool):
    """A pool that ends within seconds whatever its workers do, and raises an error if a worker dies during a wait."""

    def __init__(self, processes: Optional[int] = None, initializer: Any = None, initargs: Sequence[Any] = ()) -> None:
        with warnings.catch_warnings(), one_thread_in_children():
            warnings.filterwarnings("ignore", _FORK_WARNING, DeprecationWarning)
            super().__init__(processes, initializer, initargs, context=multiprocessing.get_context())
        self._started: List[Any] = list(self._pool)  # type: ignore[attr-defined]
        self.died: Optional[DataError] = None

    def terminate(self) -> None:
        """End the workers; `died` then names a worker that had ended before."""
        if isinstance(sys.exc_info()[1], _LOST):
            time.sleep(_LOOKS)  # a process closes its connections shortly before its exit code is known
        self.died = self.died or self._look()
        super().terminate()

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        result: Any = super().apply_async(*args, **kwargs)
        result.wait = partial(self._wait, result._event)
        return result

    def _wait(self, arrived: threading.Event, timeout: Optional[float] = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while not arrived.wait(_LOOKS if end is None else max(0.0, min(_LOOKS, end - time.monotonic()))):
            died = self._look()
            if died:
                raise died
            if end is not None and time.monotonic() >= end:
                return

    def _look(self) -> Optional[DataError]:
        return next((_error(worker) for worker in self._started if worker.exitcode is not None), None)

    @classmethod
    def _terminate_pool(cls, _: Any, inqueue: Any, outqueue: Any, pool: Any, change_notifier: Any, *rest: Any) -> None:
        """End the threads and processes, as `multiprocessing.pool.Pool` does, without its locks."""
        worker_handler, task_handler, result_handler, _ = rest
        worker_handler._state = multiprocessing.pool.TERMINATE
        change_notifier.put(None)
        _join(worker_handler)  # it starts no more workers, and lets the thread of the tasks end
        task_handler._state = multiprocessing.pool.TERMINATE
        outqueue._wlock.acquire(True, _GRACE)  # so that no worker is killed in the middle of a result
        for worker in pool:
            if worker.exitcode is None:
                worker.kill()
        for worker in pool:
            worker.join(_GRACE)
        outqueue._wlock.release()  # also if a dead worker holds it
        end = time.monotonic() + _GRACE
        while task_handler is not threading.current_thread() and task_handler.is_alive() and time.monotonic() < end:
            if inqueue._reader.poll(0.001):  # it may wait for space in the pipe, which no process reads any more
                os.read(inqueue._reader.fileno(), 2**16)
        _join(task_handler)
        result_handler._state = multiprocessing.pool.TERMINATE
        if result_handler.is_alive():
            outqueue.put(None)  # behind the messages of the workers and of the thread of the tasks
        _join(result_handler)


def _join(thread: threading.Thread) -> None:
    if thread is not threading.current_thread():  # a loader may be collected in any thread
        thread.join(_GRACE)


def _error(worker: Any) -> DataError:
    code = worker.exitcode
    how = f"was killed by {signal.Signals(-code).name} (signal {-code})" if code < 0 else f"ended with exit code {code}"
    return DataError(
        f"DataLoader: worker process {worker.pid} {how}, and its batch is lost. SIGKILL usually means that memory ran "
        "out (`dmesg` shows it): use fewer workers or smaller batches. Else look for sys.exit, os._exit or a crash in "
        "C in the dataset, its transforms or batchify_fn; thread_pool=True needs no processes"
    )


class _Multiprocessing(ModuleType):
    """`multiprocessing` with `WorkerPool` as its `Pool`."""

    def __init__(self) -> None:
        super().__init__(multiprocessing.__name__)
        self.__dict__["__getattr__"] = partial(getattr, multiprocessing)
        self.Pool = WorkerPool


def replace_pools(module: ModuleType) -> None:
    """Replace the pool that a module gets from `multiprocessing.Pool` by `WorkerPool`."""
    module.multiprocessing = _Multiprocessing()  # type: ignore[attr-defined]


def named_deaths(upstream: Any) -> Any:
    """An iterator's `__next__` that names the dead worker whose shared memory held the batch."""

    def __next__(self: Any) -> Any:  # noqa: N807
        try:
            return upstream(self)
        except _LOST as error:
            died = getattr(self._worker_pool, "died", None)
            if died is None:
                raise
            raise died from error

    return __next__
