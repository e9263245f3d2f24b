"""Repairs of the DataLoaders of Gluon and GluonCV: workers import mxkit first, and a pool does not wait for dead ones.

A worker started by spawn or forkserver is a new interpreter, and first imports what it unpickles first. MXNet's own
initializer makes it import MXNet, which fails without mxkit, and the pool then starts new workers for ever (T91).
The initializers here are pickled by reference, so the worker imports mxkit first.

`multiprocessing.Pool.terminate` takes the lock with which its workers read tasks. If a worker is killed while it holds
that lock, the program and the other workers hang for ever. And MXNet's loader waits 120 s for the result of a killed
worker (T234).
"""

from functools import partial
import importlib
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
from mxkit.runtime.arrays import NUMPY
from mxkit.runtime.engine_settings import one_thread_in_children
from mxkit.runtime.old_names import Overlay
from mxkit.runtime.operators import around, replace
import numpy

#: The attribute of a repaired module that holds its original initializer.
UPSTREAM = "_mxkit_upstream_worker_initializer"


def replace_initializer(module: ModuleType) -> None:
    """Let a module's workers import mxkit before they call its `_worker_initializer`."""
    if UPSTREAM not in vars(module):
        setattr(module, UPSTREAM, module._worker_initializer)
        module._worker_initializer = partial(_call_upstream, module.__name__)  # type: ignore[attr-defined]


def _call_upstream(module_name: str, *args: Any) -> None:
    getattr(importlib.import_module(module_name), UPSTREAM)(*args)


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


def replace_pools(module: ModuleType) -> None:
    """Replace the pool that a module gets from `multiprocessing.Pool` by `WorkerPool`."""
    module.multiprocessing = Overlay("multiprocessing", Pool=WorkerPool)  # type: ignore[attr-defined]


def named_deaths(upstream: Any, self: Any) -> Any:
    """An iterator's `__next__` that names the dead worker whose shared memory held the batch."""
    try:
        return upstream(self)
    except _LOST as error:
        died = getattr(self._worker_pool, "died", None)
        if died is None:
            raise
        raise died from error


def loader_workers(module: ModuleType) -> None:
    """T91, every NumPy: a worker started by spawn or forkserver must import mxkit before MXNet.

    If MXNet imports without mxkit, the worker would still lack the repairs. Upstream: `gluon/data/dataloader.py`
    line 414, which line 667 passes to the pool.

    T234, every Python: a killed worker made the loader wait for 120 s, or for ever. Upstream: lines 472 and 665.
    """
    replace_initializer(module)
    replace_pools(module)
    replace(vars(module)["_MultiWorkerIter"], __next__=around(named_deaths))


def gluoncv_loader_workers(module: ModuleType) -> None:
    """T91, T234: as `loader_workers`. Upstream: gluoncv's `data/dataloader.py` lines 140 and 275.

    T233, NumPy 1.24: arrays of several shapes, boxes of images above all, are no array of objects any more but a
    ValueError (a warning since 1.19). Upstream: lines 20 and 37, which read the arrays one by one.
    """
    replace_initializer(module)
    replace_pools(module)
    if NUMPY >= (1, 19):
        module.np = Overlay("numpy", asarray=_maybe_ragged)  # type: ignore[attr-defined]


def _maybe_ragged(data: Any) -> Any:
    """`numpy.asarray` that makes arrays of several shapes an array of objects."""
    if len({numpy.shape(value) for value in data}) < 2:
        return numpy.asarray(data)
    ragged = numpy.empty(len(data), dtype=object)
    for place, value in enumerate(data):
        ragged[place] = value
    return ragged
