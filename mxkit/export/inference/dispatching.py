"""A thread that answers the requests of other threads in batches."""

import atexit
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
import os
import threading
from time import perf_counter
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence
import weakref

from mxkit.errors import BusyError
import numpy as np

# Computes samples together: a result for each.
Compute = Callable[[Sequence[Any]], Sequence[Any]]
# Latencies of which the percentiles are taken.
_LATENCIES = 4096
_COUNTS = ("requests", "batches", "samples", "refused", "failed")

_started: "weakref.WeakSet[Dispatcher]" = weakref.WeakSet()


class _Request:
    __slots__ = ("begun", "future", "sample")

    def __init__(self, sample: Any) -> None:
        self.sample, self.future, self.begun = sample, Future(), perf_counter()  # type: ignore[var-annotated]

    def start(self) -> bool:
        """Whether an answer is still wanted."""
        with suppress(InvalidStateError, RuntimeError):  # its owner gave it a result of his own
            return self.future.set_running_or_notify_cancel()
        return False

    def end(self, result: Any) -> None:
        with suppress(InvalidStateError):
            (self.future.set_exception if isinstance(result, BaseException) else self.future.set_result)(result)


class Dispatcher:
    """Collects samples of many threads and computes them in batches, in a thread of its own.

    A batch begins when as many samples wait as the last one had, or when the oldest has waited `max_wait` seconds: a
    single client never waits for others, and many clients that wait for their answers come back together.

    Args:
        max_batch: Most samples of a batch.
        max_wait: Seconds.
        max_queue: Most samples that wait.
    """

    def __init__(self, max_batch: int, max_wait: float, max_queue: int) -> None:
        self._max_batch, self._max_wait, self._max_queue = max_batch, max_wait, max_queue
        # re-entrant: the garbage collector may run inside, and close what nobody refers to any more
        self._changed = threading.Condition(threading.RLock())
        self._waiting: Deque[_Request] = deque()
        self._batch: List[_Request] = []
        self._usual = 1
        self._closed = False
        self._fault: Optional[BaseException] = None
        self._latencies: Deque[float] = deque(maxlen=_LATENCIES)
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._process = os.getpid()
        self.computing = threading.RLock()  # held while MXNet computes
        self._thread: Optional[threading.Thread] = None
        self._starting = threading.Lock()

    def start(self, prepare: Callable[[], Compute]) -> None:
        """Start the thread, once.

        Args:
            prepare: Called first in the thread; returns the function that computes samples. Its error is raised here,
                and the next call starts again.

        Raises:
            RuntimeError: It is closed, or in a forked process.
        """
        self._check_process()
        with self._starting:
            if self._thread is not None:
                return
            if self._closed:
                raise self._ended()
            ready: Future[None] = Future()
            # a daemon, because Python waits for all others before it calls what `atexit` knows
            thread = threading.Thread(target=self._run, args=(prepare, ready), name="mxkit-predictor", daemon=True)
            _started.add(self)
            thread.start()
            try:
                ready.result()
            except BaseException:
                self._closed = not ready.done()  # Ctrl-C: the thread ends once it is ready
                raise
            self._thread = thread
        atexit.register(self.close)  # MXNet has registered its own before, which stops its engine, and runs later

    def submit(self, sample: Any) -> "Future[Any]":
        """Accept a sample.

        Raises:
            BusyError: As many samples wait as are allowed.
            RuntimeError: It is closed; or its thread has ended, or is in another process, or is the caller.
        """
        self._check_process()
        request = _Request(sample)
        with self._changed:
            if self._closed:
                raise self._ended()
            if len(self._waiting) >= self._max_queue:
                self._waiting = deque(one for one in self._waiting if not one.future.cancelled())
            if len(self._waiting) >= self._max_queue:
                self._counts["refused"] += 1
                raise BusyError(len(self._waiting), self._max_queue)
            self._waiting.append(request)
            self._counts["requests"] += 1
            if len(self._waiting) in (1, self._usual):  # others need not wake the thread
                self._changed.notify()
        return request.future

    def is_current(self) -> bool:
        """Whether the caller runs in the thread, as callbacks of futures do."""
        return threading.current_thread() is self._thread

    def stats(self) -> Dict[str, Any]:
        """As for `Predictor.stats`."""
        self._check_process()
        with self._changed:
            counts, latencies = dict(self._counts), list(self._latencies)
            queue = sum(not one.future.cancelled() for one in self._waiting)
        samples = counts.pop("samples")
        p50, p99 = np.percentile(latencies, [50, 99]) * 1e3 if latencies else (None, None)
        return {
            **counts,
            "samples_per_batch": samples / counts["batches"] if counts["batches"] else None,
            "queue": queue,
            "p50_ms": None if p50 is None else float(p50),
            "p99_ms": None if p99 is None else float(p99),
        }

    def close(self) -> None:
        """Answer what waits, and end the thread. Does nothing the second time, and in a forked process."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed = True
            self._changed.notify()
        with self._starting:  # not while a first batch is computed
            thread = self._thread
        if thread is not None and not self.is_current():
            thread.join()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"Predictor: it was made in process {self._process}, and its thread does not exist in this one "
                f"({os.getpid()}), which was forked: make a Predictor in each process, after the fork"
            )

    def _ended(self) -> RuntimeError:
        if self._fault is None:
            return RuntimeError("Predictor: it is closed, and takes no more requests")
        error = RuntimeError(
            f"Predictor: its thread was ended by {type(self._fault).__name__}: {self._fault}. Make a new Predictor"
        )
        error.__cause__ = self._fault
        return error

    def _run(self, prepare: Callable[[], Compute], ready: "Future[None]") -> None:
        try:
            with self.computing:
                self._compute = prepare()
            ready.set_result(None)
        except BaseException as error:
            ready.set_exception(error)
            return
        try:
            while self._step():
                pass
        except BaseException as error:  # the net's SystemExit, for example; `submit` raises it from now on
            self._fault = error
        finally:
            with self._changed:
                self._closed = True
                rest, self._waiting = [*self._batch, *self._waiting], deque()
            for request in rest:  # those of the batch that have their answer keep it
                request.end(self._ended())

    def _step(self) -> bool:
        """Answer one batch; False if nothing waits and nothing will."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting:
                return False
            due = self._waiting[0].begun + self._max_wait
            while len(self._waiting) < self._usual and not self._closed:
                left = due - perf_counter()
                if left <= 0 or not self._changed.wait(left):
                    break
            while self._waiting and len(self._batch) < self._max_batch:
                self._batch.append(self._waiting.popleft())
            self._batch = [request for request in self._batch if request.start()]
            self._usual = max(1, len(self._batch))
        if self._batch:
            self._answer(self._batch)
            self._batch = []
        return True

    def _answer(self, batch: List[_Request]) -> None:
        with self.computing:
            results = self._results([request.sample for request in batch])
        now = perf_counter()
        with self._changed:
            self._counts["batches"] += 1
            self._counts["samples"] += len(batch)
            self._counts["failed"] += sum(isinstance(result, Exception) for result in results)
            self._latencies.extend(now - request.begun for request in batch)
        for request, result in zip(batch, results):
            request.end(result)

    def _results(self, samples: List[Any]) -> Sequence[Any]:
        """A result or an error for each sample; if they fail together, each is computed alone."""
        try:
            return self._compute(samples)
        except Exception as error:
            return [error] if len(samples) == 1 else [self._results([one])[0] for one in samples]


_forking = threading.RLock()
_resting: List[Dispatcher] = []


def _rest() -> None:
    """Let no thread wait for MXNet's engine, which every fork stops: it would wait for ever (T202)."""
    _forking.acquire()
    _resting[:] = _started
    for dispatcher in _resting:
        dispatcher.computing.acquire()


def _go_on() -> None:
    while _resting:
        _resting.pop().computing.release()
    _forking.release()


os.register_at_fork(before=_rest, after_in_parent=_go_on, after_in_child=_go_on)
