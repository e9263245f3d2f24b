"""A thread that answers the requests of other threads in batches."""

import atexit
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
import os
import threading
from time import perf_counter
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple, Union
import weakref

from mxkit.errors import BusyError
import numpy as np


class Submitted:
    """A sample whose answer a future gets."""

    __slots__ = ("begun", "future", "sample")

    def __init__(self, sample: Any) -> None:
        self.sample, self.future, self.begun = sample, Future(), perf_counter()  # type: ignore[var-annotated]

    @property
    def dropped(self) -> bool:
        """Whether its owner gave up before it was started."""
        return self.future.cancelled()

    def start(self) -> bool:
        """Whether an answer is still wanted."""
        with suppress(InvalidStateError, RuntimeError):  # its owner gave it a result of his own
            return self.future.set_running_or_notify_cancel()
        return False

    def end(self, result: Any) -> None:
        """Give the answer, or an error."""
        with suppress(InvalidStateError):
            (self.future.set_exception if isinstance(result, BaseException) else self.future.set_result)(result)


class Called:
    """A sample whose thread waits for the answer at one lock, which is cheaper than a future."""

    __slots__ = ("answered", "begun", "dropped", "result", "sample")

    def __init__(self, sample: Any) -> None:
        self.sample, self.dropped, self.begun = sample, False, perf_counter()
        self.result: Any = None
        self.answered = threading.Lock()
        self.answered.acquire()

    def start(self) -> bool:
        """Whether an answer is still wanted."""
        return not self.dropped

    def end(self, result: Any) -> None:
        """Give the answer, or an error; the first one counts."""
        if self.result is None:
            self.result = (result,)
            self.answered.release()

    def wait(self, timeout: Optional[float]) -> Any:
        """Return the answer, or raise it; a TimeoutError if there is none within `timeout` seconds."""
        try:
            if not self.answered.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
                raise TimeoutError(f"Predictor: no answer within {timeout} s; stats() has the queue")
        except BaseException:  # Ctrl-C
            self.dropped = True
            raise
        (result,) = self.result
        if isinstance(result, BaseException):
            try:
                raise result
            finally:
                del result, self  # the error's traceback has this frame, and would keep itself alive
        return result


# Starts to compute samples together; what it returns waits for them, and gives a result for each.
Compute = Callable[[Sequence[Any]], Callable[[], Sequence[Any]]]
# Latencies of which the percentiles are taken.
_LATENCIES = 4096
_COUNTS = ("requests", "batches", "samples", "refused", "failed")

_started: "weakref.WeakSet[Dispatcher]" = weakref.WeakSet()


_Request = Union[Submitted, Called]


class Dispatcher:
    """Collects samples of many threads and computes them in batches, in a thread of its own.

    A batch begins when as many samples wait as the last one had, or when the oldest has waited `max_wait` seconds: a
    single client never waits for others, and many clients that wait for their answers come back together. If enough
    wait when a batch is computed, the next one is started before the threads get their answers: they would take turns
    with this thread in Python while MXNet has nothing to do.

    Args:
        sizes: Of batches, ascending: others are padded to the next size. If more than a quarter would be padding, a
            batch takes as many samples as fill a smaller size, and the next one the others, without a wait.
        max_wait: Seconds.
        max_queue: Most samples that wait.
    """

    def __init__(self, sizes: Sequence[int], max_wait: float, max_queue: int) -> None:
        self._sizes, self._max_wait, self._max_queue = sizes, max_wait, max_queue
        # re-entrant: the garbage collector may run inside, and close what nobody refers to any more
        self._changed = threading.Condition(threading.RLock())
        self._waiting: Deque[_Request] = deque()
        self._batch: List[_Request] = []  # being computed
        self._computed: List[Tuple[_Request, Any]] = []  # with results that their threads do not have yet
        self._usual, self._left = 1, False
        self._closed = False
        self._fault: Optional[BaseException] = None
        self._latencies: Deque[float] = deque(maxlen=_LATENCIES)
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._process = os.getpid()
        self.computing = threading.RLock()  # held while MXNet computes
        self._thread: Optional[threading.Thread] = None
        self._starting = threading.Lock()

    def start(self, prepare: Callable[[], Tuple[Compute, bool]]) -> None:
        """Start the thread, once.

        Args:
            prepare: Called first in the thread; returns the function that computes samples, and whether it starts
                them only, and does not wait. Its error is raised here, and the next call starts again.

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
        request = Submitted(sample)
        self._accept(request)
        return request.future

    def ask(self, sample: Any, timeout: Optional[float]) -> Any:
        """Wait for the result of a sample.

        Raises:
            TimeoutError: There is none within `timeout` seconds.
            BusyError, RuntimeError: As for `submit`; and the sample's own error.
        """
        request = Called(sample)
        self._accept(request)
        return request.wait(timeout)

    def _accept(self, request: _Request) -> None:
        self._check_process()
        with self._changed:
            if self._closed:
                raise self._ended()
            if len(self._waiting) >= self._max_queue:
                self._waiting = deque(one for one in self._waiting if not one.dropped)
            if len(self._waiting) >= self._max_queue:
                self._counts["refused"] += 1
                raise BusyError(len(self._waiting), self._max_queue)
            self._waiting.append(request)
            self._counts["requests"] += 1
            if len(self._waiting) in (1, self._usual):  # others need not wake the thread
                self._changed.notify()

    def is_current(self) -> bool:
        """Whether the caller runs in the thread, as callbacks of futures do."""
        return threading.current_thread() is self._thread

    def stats(self) -> Dict[str, Any]:
        """As for `Predictor.stats`."""
        self._check_process()
        with self._changed:
            counts, latencies = dict(self._counts), list(self._latencies)
            queue = sum(not one.dropped for one in self._waiting)
        samples = counts.pop("samples")
        p50, p99 = (np.percentile(latencies, [50, 99]) * 1e3).tolist() if latencies else (None, None)
        return {
            **counts,
            "samples_per_batch": samples / counts["batches"] if counts["batches"] else None,
            "queue": queue,
            "p50_ms": p50,
            "p99_ms": p99,
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

    def _run(self, prepare: Callable[[], Tuple[Compute, bool]], ready: "Future[None]") -> None:
        try:
            with self._engine():
                self._compute, self._overlaps = prepare()
            ready.set_result(None)
        except BaseException as error:
            ready.set_exception(error)
            return
        try:
            while self._collect():
                self._compute_batch()
        except BaseException as error:  # the net's SystemExit, for example; `submit` raises it from now on
            self._fault = error
        finally:
            self._answer()
            with self._changed:
                self._closed = True
                rest, self._waiting = [*self._batch, *self._waiting], deque()
            for request in rest:  # those that have their answer keep it
                request.end(self._ended())

    def _collect(self) -> bool:
        """Wait for the next batch; False if nothing waits and nothing will."""
        with self._changed:
            due = self._is_due()
        if not due:
            self._answer()
        with self._changed:
            while not self._is_due():
                if self._closed:
                    return False
                left = self._waiting[0].begun + self._max_wait - perf_counter() if self._waiting else None
                self._changed.wait(left)
            taken = [self._waiting.popleft() for _ in range(self._portion(len(self._waiting)))]
            self._batch = [request for request in taken if request.start()]
            self._usual, self._left = max(1, len(self._batch)), bool(self._waiting)
        return True

    def _is_due(self) -> bool:
        """Whether a batch can begin now."""
        return bool(self._waiting) and (
            self._closed
            or self._left
            or len(self._waiting) >= self._usual
            or perf_counter() >= self._waiting[0].begun + self._max_wait
        )

    def _portion(self, waiting: int) -> int:
        size = next((size for size in self._sizes if size >= waiting), self._sizes[-1])
        if 4 * waiting < 3 * size:
            return max(smaller for smaller in self._sizes if smaller <= waiting)
        return min(waiting, size)

    def _compute_batch(self) -> None:
        """Compute the batch. No local variable holds requests: an error's traceback holds this frame, a cycle."""
        if self._batch:
            with self._engine():
                finish = self._begin([request.sample for request in self._batch])
                self._answer()
                self._computed = list(zip(self._batch, finish()))
            del finish
            self._batch = []
        # a future's callbacks may take long, or fork
        if not self._overlaps or any(isinstance(request, Submitted) for request, _ in self._computed):
            self._answer()

    def _begin(self, samples: List[Any]) -> Callable[[], Sequence[Any]]:
        """Start to compute samples; if they fail together, each is computed alone."""
        try:
            finish = self._compute(samples)
        except Exception as error:
            return partial(self._alone, samples, error)

        def results() -> Sequence[Any]:
            try:
                return finish()
            except Exception as error:
                return self._alone(samples, error)

        return results

    def _alone(self, samples: List[Any], error: Exception) -> Sequence[Any]:
        """A result or an error for each sample."""
        return [error] if len(samples) == 1 else [self._begin([one])()[0] for one in samples]

    def _answer(self) -> None:
        """Give the last batch its answers."""
        computed, self._computed = self._computed, []
        if not computed:
            return
        now = perf_counter()
        with self._changed:
            self._counts["batches"] += 1
            self._counts["samples"] += len(computed)
            self._counts["failed"] += sum(isinstance(result, Exception) for _, result in computed)
            self._latencies.extend(now - request.begun for request, _ in computed)
        for request, result in computed:
            request.end(result)

    @contextmanager
    def _engine(self) -> Iterator[None]:
        """Hold MXNet's engine, unless a fork waits for it, which goes first."""
        with _forking:
            self.computing.acquire()
        try:
            yield
        finally:
            self.computing.release()


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
