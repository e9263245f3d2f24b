"""Reads ahead in threads, which are reused; MXNet's switches, which are local to a thread, are the caller's.

MXNet never frees the memory of a thread that ran an operator: 4.9 MB, measured over 100 threads. A finished thread
therefore waits for the next epoch of any loader; it is a daemon, so that the process can exit.
"""

import atexit
import os
from queue import SimpleQueue
import threading
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple
import weakref

from mxkit.core.arrays import switches_here
from mxnet.util import set_np

# Reads a batch: receives its number, and a function that returns True once the batch is no longer needed.
Task = Callable[[int, Callable[[], bool]], Any]
# MXNet's switches of shapes and of arrays, in the order of `set_np`.
Switches = Tuple[bool, bool]

_EXIT_SECONDS = 5.0

_idle: List["_Thread"] = []
_open: "weakref.WeakSet[_Window]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


class _Thread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="mxkit-data", daemon=True)
        self.windows: SimpleQueue[_Window] = SimpleQueue()

    def run(self) -> None:
        while True:
            self.windows.get().work(self)


def read_ahead(task: Task, numbers: range, *, threads: int, ahead: int) -> Iterator[Any]:
    """Yield `task(number, unwanted)` for each of `numbers`, in their order, computed by threads.

    The threads begin with the first `next`, and run each task under the switches of MXNet of the thread that calls it.
    When the iterator ends, is closed, freed or raises, no thread runs the task any more.

    Args:
        task: Called in the threads. An error of it is raised here with its traceback, in the order of the results.
            It should end soon once `unwanted()` is true.
        numbers: A range with a step of 1.
        threads: Number of tasks that run at once.
        ahead: Largest number of results that are computed, or being computed, before they are read.
    """
    window = _Window(task, numbers, ahead)
    try:
        window.start(min(threads, len(numbers)))
        for number in numbers:
            yield window.get(number)
    finally:
        window.stop()


class _Window:
    """Results by number, and the threads that compute them; it has no reference to the iterator."""

    def __init__(self, task: Task, numbers: range, ahead: int) -> None:
        self._task, self._ahead = task, ahead
        self._next = self._wanted = numbers.start
        self._end = numbers.stop
        self._results: Dict[int, Tuple[Any, Any]] = {}
        self._running: Set[_Thread] = set()
        self._stopped = False
        self._process = os.getpid()
        self._switches = switches_here()
        self._changed = threading.Condition()

    def start(self, threads: int) -> None:
        _open.add(self)
        for _ in range(threads):
            try:
                thread = _idle.pop()
            except IndexError:
                thread = _Thread()
                thread.start()
            self._running.add(thread)
            thread.windows.put(self)

    def work(self, thread: _Thread) -> None:
        while True:
            with self._changed:
                while not self._stopped and self._next < self._end and self._next - self._wanted >= self._ahead:
                    self._changed.wait()
                if self._stopped or self._next >= self._end:
                    self._running.discard(thread)
                    _idle.append(thread)  # before the notification, or the next epoch would start one more thread
                    self._changed.notify_all()
                    return
                number = self._next
                self._next += 1
            try:
                set_np(*self._switches)  # for each task: the one before may have changed them
                outcome: Tuple[Any, Any] = (self._task(number, self._unwanted), None)
            except BaseException as error:
                outcome = (None, error)
            with self._changed:
                self._results[number] = outcome
                self._changed.notify_all()
            del outcome

    def _unwanted(self) -> bool:
        return self._stopped

    def get(self, number: int) -> Any:
        with self._changed:
            while number not in self._results:
                self._changed.wait()
            result, error = self._results.pop(number)
            self._wanted = number + 1
            self._changed.notify_all()
        if error is not None:
            try:
                raise error
            finally:
                del error  # the traceback refers to this frame
        return result

    def stop(self, seconds: float = threading.TIMEOUT_MAX) -> None:
        if os.getpid() != self._process:
            return
        with self._changed:
            self._stopped = True
            self._results.clear()
            self._changed.notify_all()
            if threading.current_thread() not in self._running:  # false if the garbage collector runs in one of them
                self._changed.wait_for(lambda: not self._running, seconds)


@atexit.register
def _stop_all() -> None:
    """Stop all threads, so that none is inside MXNet while the interpreter shuts down."""
    for window in list(_open):
        window.stop(_EXIT_SECONDS)
