"""Worker processes of a DatasetLoader. If one dies, the epoch ends at once with the reason (T69)."""

from collections import deque
from contextlib import ExitStack, suppress
import mmap
import multiprocessing
from multiprocessing import connection as channels
from multiprocessing import reduction
import os
import pickle
import signal
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple
import warnings

from mxkit.core.arrays import switches_here
from mxkit.data.batching import build, to_batch
from mxkit.data.reader_threads import Switches
from mxkit.data.samples import Samples, abbreviated
from mxkit.data.worker_process import BATCH, FAILED, MEMORY, serve, views
from mxkit.errors import DataError
from mxkit.runtime.engine_settings import one_thread_in_children
import numpy as np

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
            if getattr(multiprocessing.current_process(), "_inheriting", False):  # it is importing the script
                raise DataError(
                    f"DatasetLoader: a process that is being started cannot start worker processes. {self._guard()}"
                ) from error
            if isinstance(error, BrokenPipeError):  # the process died while the dataset was sent to it
                raise DataError(f"DatasetLoader: a worker process did not start. {self._guard()}") from error
            raise

    def can_read(self, samples: Samples) -> bool:
        """Whether the processes hold these samples, and are alive and of this process (T188)."""
        held = samples.held()
        same = len(held) == len(self._held) and all(map(_same, held, self._held))
        own = os.getpid() == self._process
        return same and own and all(worker.process.is_alive() for worker in self._workers)

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
            raise DataError(
                f"DatasetLoader: start_method={self._method!r} sends the dataset {self._name} to each worker process "
                f"by pickle, which fails: {error}. Use workers='thread:2', start_method='fork', or functions and "
                "classes at the top level of a module in place of lambdas and inner ones"
            ) from error

    def _died(self, worker: "_Worker") -> DataError:
        worker.process.join(_GRACE_SECONDS)  # the connection breaks a moment before the process ends
        code = worker.process.exitcode
        if not worker.ready and self._method != "fork":
            return DataError(
                f"DatasetLoader: worker process {worker.process.pid} {_ending(code)} before it read a sample. "
                f"{self._guard()}"
            )
        reading = "; then ".join(map(_batch_name, worker.reading.items()))
        return DataError(
            f"DatasetLoader: worker process {worker.process.pid} {_ending(code)} while it read "
            f"{reading or 'nothing'} of {self._name}. {_REASONS.get(code or 0, _OTHER_REASON)}"
        )

    def _guard(self) -> str:
        return (
            f"With start_method={self._method!r} each worker imports the script again: the code that begins the "
            "training must be under `if __name__ == '__main__':`. workers='thread:2' and start_method='fork' need no "
            "such guard"
        )

    def _timed_out(self) -> DataError:
        reading = [
            f"process {worker.process.pid}: {_batch_name(next(iter(worker.reading.items())))}"
            for worker in self._workers
            if worker.reading
        ]
        return DataError(
            f"DatasetLoader: no batch of {self._name} came for {self._timeout:g} seconds. The workers are reading "
            f"{'; '.join(reading)}. Pass a larger timeout if a batch may take as long, or None to wait for ever"
        )


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


def _batch_name(reading: Tuple[int, List[int]]) -> str:
    number, rows = reading
    return f"batch {number + 1}, samples {abbreviated(rows)}"


_OTHER_REASON = "Something in the dataset or a transform ended it: look for sys.exit, os._exit and crashes in C code"
_REASONS = {
    -signal.SIGKILL: "Usually the system kills a process because memory ran out (`dmesg` shows it): use fewer workers, "
    "smaller batches, or workers='thread:2'",
    255: "MXNet's own handler of a segmentation fault ends a process like this",
}


def _ending(code: Optional[int]) -> str:
    if code is None:
        return "broke its connection"
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    return f"ended with exit code {code}"
