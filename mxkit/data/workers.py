"""Threads and processes that read ahead, under the switches of MXNet that the thread had which began the epoch.

If a process dies, the epoch ends at once with the reason (T69). Processes write batches into memory that they share.

MXNet never frees the memory of a thread that ran an operator: 4.9 MB, measured over 100 threads. Finished threads
therefore wait for the next epoch of any loader.
"""

from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from itertools import islice
import mmap
import multiprocessing
from multiprocessing import connection as channels
from multiprocessing import parent_process, reduction
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import switches_here
from mxkit.data.batching import Spec, build, to_batch
from mxkit.data.samples import Samples, abbreviated
from mxkit.errors import DataError, error_text
from mxkit.runtime.engine_settings import one_thread_in_children
from mxnet.base import _LIB
from mxnet.util import set_np
import numpy as np

# Reads a batch: receives its number, and a function that returns True once the batch is no longer needed.
Task = Callable[[int, Callable[[], bool]], Any]
# MXNet's switches of shapes and of arrays, in the order of `set_np`.
Switches = Tuple[bool, bool]

# Executors by their number of threads, for the next epoch of any loader, and those at work.
_idle: Dict[int, List[ThreadPoolExecutor]] = defaultdict(list)
_busy: List[ThreadPoolExecutor] = []
os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork
os.register_at_fork(after_in_child=_busy.clear)
_NAME = "mxkit-data"


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
    switches, process, stopped = switches_here(), os.getpid(), threading.Event()

    def run(number: int) -> Any:
        set_np(*switches)  # for each task: the one before may have changed them
        return task(number, stopped.is_set)

    pool = _idle[threads].pop() if _idle[threads] else ThreadPoolExecutor(threads, _NAME)
    _busy.append(pool)
    rest = iter(numbers)
    futures = deque(pool.submit(run, number) for number in islice(rest, ahead))
    try:
        while futures:
            result = futures[0].result()  # it stays in the list, to be waited for after a Ctrl-C
            futures.popleft()
            futures.extend(pool.submit(run, number) for number in islice(rest, 1))
            yield result
            del result
    finally:
        stopped.set()
        if os.getpid() == process:
            running = [future for future in futures if not future.cancel()]
            # the garbage collector may run this in one of the threads, which would wait for itself
            if not threading.current_thread().name.startswith(_NAME):
                wait(running)
            futures.clear()  # an error's traceback refers to this frame
            del task  # which the thread would free a moment later
            _busy.remove(pool)
            _idle[threads].append(pool)


_ALIGNMENT = 64  # a cache line, which suits MXNet's and NumPy's loops

# Position of an array in the memory: offset, shape, dtype as text.
ArrayPlace = Tuple[int, Tuple[int, ...], str]


def anonymous_file(size: int) -> int:
    """Open a file of `size` bytes in memory, with all bytes reserved; return its descriptor.

    The system frees the memory once no process has it open, however the processes end. If Python has memfd_create, the
    memory does not count against /dev/shm, which containers usually limit to 64 MB.

    Raises:
        DataError: There is not enough memory.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("mxkit-batch", os.MFD_CLOEXEC)
    else:  # Python was built for an old system
        with tempfile.TemporaryFile(dir="/dev/shm") as file:  # noqa: S108
            descriptor = os.dup(file.fileno())
    try:
        os.posix_fallocate(descriptor, 0, size)  # without it, missing memory is a SIGBUS later
    except OSError as error:
        os.close(descriptor)
        way = "pass a smaller batch or prefetch, fewer workers or 'thread:2'; in a container, docker run --shm-size=1g"
        raise DataError(f"DatasetLoader: a batch needs {size:,} bytes of shared memory: {error}; {way}") from error
    return descriptor


def plan(specs: Sequence[Spec]) -> Tuple[int, List[ArrayPlace]]:
    """Lay out arrays one after the other; return the bytes they need, at least 1, and the place of each.

    >>> plan([((3,), np.dtype("uint8")), ((2, 2), np.dtype("float32"))])
    (80, [(0, (3,), '|u1'), (64, (2, 2), '<f4')])
    """
    end, places = 0, []
    for shape, dtype in specs:
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        places.append((offset, tuple(shape), dtype.str))
        end = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return max(1, end), places


def views(memory: "mmap.mmap", places: Sequence[ArrayPlace]) -> List["np.ndarray"]:
    """The arrays at these places, without a copy."""
    return [
        np.ndarray(shape, dtype, memory, offset) if 0 not in shape else np.empty(shape, dtype)
        for offset, shape, dtype in places
    ]


# Kinds of messages to the parent: the first element of each message.
READY, MEMORY, BATCH, FAILED = "ready", "memory", "batch", "failed"

_PARENT_CHECK_SECONDS = 1.0


def serve(connection: Any, work: Any, switches: Switches) -> None:
    """Answer the parent's tasks until it sends None or ends.

    Args:
        connection: A connection to the parent. A task is `(switches, batch, slot, epoch, rows)`.
        work: A `Samples`, or the bytes of a pickled one.
        switches: MXNet's switches in the parent, as for `set_np`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent()
    _LIB.MXSetNumOMPThreads(1)  # one thread per worker: the parallelism comes from the processes
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"  # if OpenCV is imported later
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)  # 1 would wait for OpenCV's threads of the parent
    try:
        if isinstance(work, bytes):  # not forked
            set_np(*switches)
            work = pickle.loads(work)
    except BaseException as error:
        _send(connection, _failure_message(error, None))
        return
    slots = _Slots(connection)
    if not _send(connection, (READY,)):
        return
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        if task is None or not _send(connection, _answer(work, slots, *task)):
            return


def _answer(
    samples: Samples, slots: "_Slots", switches: Switches, batch: int, slot: int, epoch: int, rows: "np.ndarray"
) -> Any:
    try:
        set_np(*switches)  # for each batch: the one before may have changed them
        structure = samples.batch(epoch, rows, lambda specs: slots.allocate(slot, specs))
        return (BATCH, batch, slots.places, structure)
    except BaseException as error:  # the parent must learn of a SystemExit too
        return _failure_message(error, batch)


def _failure_message(error: BaseException, batch: Any) -> Tuple[Any, ...]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = str(error) if isinstance(error, ValueError) and error.__cause__ else error_text(error)
    try:
        packed = pickle.dumps(error.__cause__ or error)
    except Exception:  # a user's error may hold objects that cannot be pickled; its text is sent in any case
        packed = b""
    return (FAILED, batch, message, text, packed)


def _send(connection: Any, message: Any) -> bool:
    try:
        connection.send(message)
    except (BrokenPipeError, ConnectionResetError):  # the parent has closed the connection
        return False
    return True


def _end_with_parent() -> None:
    """End this process soon after its parent, even if a sample never returns; nothing else would end it."""
    parent, pid = parent_process(), os.getppid()

    def watch() -> None:
        # a process that was forked later may hold the other end of the sentinel, so the pid is compared too
        while os.getppid() == pid and not channels.wait([parent.sentinel] if parent else [], _PARENT_CHECK_SECONDS):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="mxkit-parent-watch", daemon=True).start()


class _Slots:
    """Shared memory by number; each grows to the size of its largest batch."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._memory: Dict[int, mmap.mmap] = {}
        self.places: List[ArrayPlace] = []

    def allocate(self, slot: int, specs: Sequence[Spec]) -> Sequence["np.ndarray"]:
        size, self.places = plan(specs)
        if slot not in self._memory or len(self._memory[slot]) < size:
            self._memory.pop(slot, None)
            descriptor = anonymous_file(size)
            try:
                self._memory[slot] = mmap.mmap(descriptor, size)
                self._connection.send((MEMORY, slot, size))
                reduction.send_handle(self._connection, descriptor, os.getppid())
            finally:
                os.close(descriptor)
        return views(self._memory[slot], self.places)


# Seconds that a worker has to end by itself, and then to obey a SIGTERM.
_GRACE_SECONDS = 1.0

Rows = Callable[[int], "np.ndarray"]


def default_start_method() -> str:
    """ "fork" if the system has it, as in gluon, else "spawn".

    MXNet stops its engine during a fork: in 180 forks with work queued, or with another thread computing, every worker
    could read. A child that runs MXNet's operators itself can hang if another thread ran one at the moment of the fork
    (6 of 120 tries); the loader's timeout ends that wait, and start_method="forkserver" avoids it. A forked process
    starts in 0.03 s; spawn takes seconds to import MXNet again.
    """
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


class WorkerPool:
    """Processes that read the batches of one loader; they end at `close`, on an error, and with this process.

    Args:
        samples: Reads the samples; pickled once, unless the processes are forked.
        count: Number of processes.
        method: "fork", "spawn" or "forkserver".
        prefetch: Number of batches that each process may read ahead.
        timeout: Seconds to wait for a message from any process; None waits for ever.

    Raises:
        DataError: The samples cannot be pickled, or a process does not start.
    """

    def __init__(self, samples: Samples, count: int, method: str, prefetch: int, timeout: Optional[float]) -> None:
        self._name, self._held = type(samples.dataset).__name__, samples.held()
        self._method, self._timeout = method, timeout
        self._process = os.getpid()
        self._workers: List[_Worker] = []
        work: Any = samples if method == "fork" else self._pickled(samples)
        if method == "forkserver":  # without it each process would import MXNet
            multiprocessing.set_forkserver_preload(["__main__", serve.__module__])
        try:
            for _ in range(count):
                self._workers.append(_Worker(multiprocessing.get_context(method), work, prefetch))
        except BaseException as error:
            self.close(at_once=True)
            if isinstance(error, BrokenPipeError):  # the process died while the dataset was sent to it
                raise DataError(f"DatasetLoader: a worker process did not start. {_GUARD}") from error
            raise

    def can_read(self, samples: Samples) -> bool:
        """Whether the processes hold these samples, and are alive and of this process (T188)."""
        held = samples.held()
        same = len(held) == len(self._held) and all(map(_same, held, self._held))
        return same and os.getpid() == self._process and all(worker.process.is_alive() for worker in self._workers)

    def batches(self, epoch: int, numbers: range, rows: Rows) -> Iterator[Any]:
        """Yield the batches of these numbers, in their order, read under the switches of MXNet that this thread has."""
        waiting, switches = deque(numbers), switches_here()
        ready: Dict[int, Tuple[_Worker, Any, Any]] = {}
        for number in numbers:
            self._hand_out(waiting, switches, epoch, rows)
            while number not in ready:
                ready.update(self._receive())
            worker, places, structure = ready.pop(number)
            arrays = worker.take(number, places)
            self._hand_out(waiting, switches, epoch, rows)
            yield build(structure, iter(arrays))

    def _hand_out(self, waiting: Deque[int], switches: Switches, epoch: int, rows: Rows) -> None:
        while waiting:
            worker = max(self._workers, key=lambda worker: len(worker.free))
            if not worker.free:
                return
            number = waiting.popleft()
            try:
                worker.give(number, switches, epoch, rows(number))
            except OSError:
                raise self._died(worker) from None

    def _receive(self) -> Dict[int, Tuple["_Worker", Any, Any]]:
        """Wait for a message of any worker; return the batches that are ready, and raise a worker's error."""
        connections = [worker.connection for worker in self._workers]
        changed = channels.wait([*connections, *(worker.process.sentinel for worker in self._workers)], self._timeout)
        if not changed:
            raise self._timed_out()
        ready = {}
        for worker in self._workers:
            if worker.connection in changed:
                try:
                    message = worker.receive()
                except (EOFError, OSError, pickle.UnpicklingError):  # it died while it wrote
                    raise self._died(worker) from None
                if message[0] == FAILED:
                    raise _failure(worker, *message[2:])
                if message[0] == BATCH:
                    ready[message[1]] = (worker, *message[2:])
            elif worker.process.sentinel in changed:
                raise self._died(worker)
        return ready

    def close(self, at_once: bool = False) -> None:
        """End the processes and wait until they have ended.

        Args:
            at_once: Terminate them while they read.
        """
        workers, self._workers = self._workers, []
        if os.getpid() != self._process:  # this process is a fork, and the workers are not its children
            return
        with ExitStack() as stack:  # a Ctrl-C in between leaves no process behind
            for worker in workers:
                stack.callback(worker.end)
            for worker in workers:
                worker.dismiss(at_once)

    def _pickled(self, samples: Samples) -> bytes:
        try:
            return pickle.dumps(samples, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # a user's objects may raise anything
            how = f"start_method={self._method!r} sends the dataset {self._name} to each worker by pickle, which fails"
            way = "pass workers='thread:2', start_method='fork', or functions and classes at the top level of a module"
            raise DataError(f"DatasetLoader: {how}: {error}: {way}") from error

    def _died(self, worker: "_Worker") -> DataError:
        worker.process.join(_GRACE_SECONDS)  # the connection breaks a moment before the process ends
        code, way = worker.process.exitcode, _OTHER_REASON
        if code == -signal.SIGKILL:
            way = _OUT_OF_MEMORY
        elif not worker.ready and self._method != "fork":
            way = _GUARD
        how = "broke its connection" if code is None else f"ended with exit code {code}"
        if code in _SIGNALS:
            how = f"was killed by {_SIGNALS[code]} (signal {-code})"
        what = f"{how} while it read {worker.reads() or 'nothing'} of {self._name}"
        return DataError(f"DatasetLoader: worker process {worker.process.pid} {what}. {way}")

    def _timed_out(self) -> DataError:
        reading = "; ".join(one.reads() for one in self._workers if one.reading)
        text = f"no batch of {self._name} came for {self._timeout:g} seconds. The workers are reading {reading}"
        return DataError(f"DatasetLoader: {text}. Pass a larger timeout, or None to wait for ever")


class _Worker:
    """One process, the connection to it, and the memory that it fills."""

    def __init__(self, context: Any, work: Any, prefetch: int) -> None:
        self.connection, theirs = context.Pipe()
        self.ready = False
        self.free = list(range(prefetch))
        self.reading: Dict[int, List[int]] = {}
        self._slots: Dict[int, int] = {}
        self._memory: Dict[int, mmap.mmap] = {}
        try:
            task = (theirs, work, switches_here())
            self.process = context.Process(target=serve, args=task, name="mxkit-data", daemon=True)
            with warnings.catch_warnings(), one_thread_in_children():
                # Python 3.12 warns of forks in a process with threads; MXNet stops its own threads during a fork
                warnings.simplefilter("ignore", DeprecationWarning)
                self.process.start()
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()  # so that the connection breaks when the process dies

    def give(self, number: int, switches: Switches, epoch: int, rows: "np.ndarray") -> None:
        self._slots[number] = self.free.pop()
        self.reading[number] = rows.tolist()
        self.connection.send((switches, number, self._slots[number], epoch, rows))

    def receive(self) -> Tuple[Any, ...]:
        message: Tuple[Any, ...] = self.connection.recv()
        self.ready = True
        if message[0] == MEMORY:
            descriptor = reduction.recv_handle(self.connection)
            try:
                self._memory[message[1]] = mmap.mmap(descriptor, message[2])
            finally:
                os.close(descriptor)
        elif message[0] == BATCH:
            self.reading.pop(message[1])
        return message

    def take(self, number: int, places: Any) -> List[Any]:
        slot = self._slots.pop(number)
        arrays = [to_batch(array) for array in views(self._memory[slot], places)] if places else []
        self.free.append(slot)
        return arrays

    def reads(self) -> str:
        batches = (f"batch {number + 1}, samples {abbreviated(rows)}" for number, rows in self.reading.items())
        return "; then ".join(batches)

    def dismiss(self, at_once: bool) -> None:
        if at_once:
            self.process.terminate()
        else:
            with suppress(OSError):
                self.connection.send(None)

    def end(self) -> None:
        self.process.join(_GRACE_SECONDS)
        for stop in (self.process.terminate, self.process.kill):
            if self.process.exitcode is None:
                stop()
                self.process.join(_GRACE_SECONDS)
        self.process.join()
        self.process.close()
        self.connection.close()
        self._memory.clear()


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, (int, float, str, frozenset)) and one == other)


def _failure(worker: _Worker, message: str, text: str, packed: bytes) -> DataError:
    begin = "" if message.startswith("DatasetLoader") else "DatasetLoader: a worker process failed: "
    error = DataError(f"{begin}{message}\n\nIn worker process {worker.process.pid}:\n{text}")
    with suppress(Exception):  # some errors cannot be rebuilt from their pickle; the text has them in any case
        error.__cause__ = pickle.loads(packed)
    return error


_SIGNALS: Dict[Optional[int], str] = {-one: one.name for one in signal.Signals}
_GUARD = "With spawn and forkserver, the code that trains must be under `if __name__ == '__main__':`"
_OTHER_REASON = "Something in the dataset or a transform ended it: look for sys.exit, os._exit and crashes in C code"
_OUT_OF_MEMORY = "Usually memory ran out (`dmesg` shows it): use fewer workers, smaller batches, or workers='thread:2'"
