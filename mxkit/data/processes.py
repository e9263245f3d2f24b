"""Worker processes of a DatasetLoader, watched: one that dies ends the epoch at once, with the reason (T69)."""

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

from mxkit.data.batching import build, to_batch
from mxkit.data.samples import Samples, abbreviated
from mxkit.data.worker_process import BATCH, FAILED, MEMORY, serve, views
from mxkit.errors import DataError
import numpy as np

# How long a worker may take to end by itself, and then to obey a SIGTERM.
_GRACE = 1.0

Rows = Callable[[int], "np.ndarray"]


def default_start_method() -> str:
    """ "fork" where there is one, as gluon has it, and else "spawn".

    MXNet stops its engine around a fork: 180 forks with work queued, or with another thread computing, all gave
    workers that read. A child that itself runs MXNet's operators can hang if another thread did at the moment of the
    fork (6 of 120 tries); the loader's timeout ends that wait, and start_method="forkserver" avoids it. Forked
    processes are there in 0.03 s, where spawn takes seconds to import MXNet again.
    """
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


class WorkerPool:
    """Processes that read the batches of one loader; they end at `close`, on an error, and with this process.

    Args:
        samples: How samples are read; pickled once, unless the processes are forked.
        count: How many processes.
        method: "fork", "spawn" or "forkserver".
        prefetch: Batches that each process may have read that were not asked for yet.
        timeout: Seconds without a word from any process after which waiting for a batch is given up; None never.

    Raises:
        DataError: The samples cannot be pickled, or a process does not start.
    """

    def __init__(self, samples: Samples, count: int, method: str, prefetch: int, timeout: Optional[float]) -> None:
        self._name = type(samples.dataset).__name__
        self._method, self._timeout = method, timeout
        self._process = os.getpid()
        self._workers: List[_Worker] = []
        work: Any = samples if method == "fork" else self._pickled(samples)
        if method == "forkserver":  # each process would import MXNet else
            multiprocessing.set_forkserver_preload(["__main__", serve.__module__])
        try:
            for _ in range(count):
                self._workers.append(_Worker(multiprocessing.get_context(method), work, prefetch))
        except BaseException as error:
            self.close(at_once=True)
            if getattr(multiprocessing.current_process(), "_inheriting", False):  # the script is imported anew
                raise DataError(
                    f"DatasetLoader: a process that is being started cannot start worker processes. {self._guard()}"
                ) from error
            if isinstance(error, BrokenPipeError):  # it died while the dataset was sent to it
                raise DataError(f"DatasetLoader: a worker process did not start. {self._guard()}") from error
            raise

    def batches(self, epoch: int, numbers: range, rows: Rows) -> Iterator[Any]:
        """Yield the batches of these numbers, in their order."""
        waiting = deque(numbers)
        ready: Dict[int, Tuple[_Worker, Any, Any]] = {}
        for number in numbers:
            self._hand_out(waiting, epoch, rows)
            while number not in ready:
                ready.update(self._receive())
            worker, places, structure = ready.pop(number)
            arrays = worker.take(number, places)
            self._hand_out(waiting, epoch, rows)
            yield build(structure, iter(arrays))

    def _hand_out(self, waiting: Deque[int], epoch: int, rows: Rows) -> None:
        while waiting:
            worker = max(self._workers, key=lambda one: len(one.free))
            if not worker.free:
                return
            number = waiting.popleft()
            try:
                worker.give(number, epoch, rows(number))
            except OSError:
                raise self._died(worker) from None

    def _receive(self) -> Dict[int, Tuple["_Worker", Any, Any]]:
        """Wait for what any worker says; a batch is returned, an error raised."""
        everything = [one.connection for one in self._workers] + [one.process.sentinel for one in self._workers]
        spoken = channels.wait(everything, self._timeout)
        if not spoken:
            raise self._silent()
        found = {}
        for worker in self._workers:
            if worker.connection in spoken:
                try:
                    message = worker.receive()
                except (EOFError, OSError, pickle.UnpicklingError):  # it died while it wrote
                    raise self._died(worker) from None
                if message[0] == FAILED:
                    raise _failure(worker, *message[2:])
                if message[0] == BATCH:
                    found[message[1]] = (worker, *message[2:])
            elif worker.process.sentinel in spoken:
                raise self._died(worker)
        return found

    def close(self, at_once: bool = False) -> None:
        """End the processes, and wait until they are gone.

        Args:
            at_once: Do not let them finish what they read.
        """
        workers, self._workers = self._workers, []
        if os.getpid() != self._process:  # a fork of this process, to which they do not belong
            return
        with ExitStack() as last:  # a Ctrl-C in between leaves nothing behind
            for worker in workers:
                last.callback(worker.end)
            for worker in workers:
                worker.dismiss(at_once)

    def _pickled(self, samples: Samples) -> bytes:
        try:
            return pickle.dumps(samples, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # a user's objects may fail in any way
            raise DataError(
                f"DatasetLoader: start_method={self._method!r} sends the dataset {self._name} to each worker process "
                f"by pickle, which fails: {error}. Use workers='thread:2', start_method='fork', or functions and "
                "classes at the top level of a module in place of lambdas and inner ones"
            ) from error

    def _died(self, worker: "_Worker") -> DataError:
        worker.process.join(_GRACE)  # the connection breaks a moment before the process is gone
        code = worker.process.exitcode
        if not worker.ready and self._method != "fork":
            return DataError(
                f"DatasetLoader: worker process {worker.process.pid} {_ending(code)} before it read a sample. "
                f"{self._guard()}"
            )
        reading = [f"batch {number + 1}, samples {abbreviated(rows)}" for number, rows in worker.reading.items()]
        return DataError(
            f"DatasetLoader: worker process {worker.process.pid} {_ending(code)} while it read "
            f"{'; then '.join(reading) or 'nothing'} of {self._name}. {_REASONS.get(code or 0, _OTHER_REASON)}"
        )

    def _guard(self) -> str:
        return (
            f"With start_method={self._method!r} each worker imports the script anew: what begins the training must "
            "stand under `if __name__ == '__main__':`. workers='thread:2' and start_method='fork' need no such guard"
        )

    def _silent(self) -> DataError:
        told = [
            f"process {one.process.pid}: batch {number + 1}, samples {abbreviated(rows)}"
            for one in self._workers
            for number, rows in list(one.reading.items())[:1]
        ]
        return DataError(
            f"DatasetLoader: no batch of {self._name} came for {self._timeout:g} seconds. In work are "
            f"{'; '.join(told)}. Give a larger timeout if a batch may take as long, or None to wait for ever"
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
            self.process = context.Process(target=serve, args=(theirs, work), name="mxkit-data", daemon=True)
            with warnings.catch_warnings():
                # Python 3.12 warns of forks where there are threads; MXNet stops its own for the moment
                warnings.simplefilter("ignore", DeprecationWarning)
                self.process.start()
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()  # so that the connection breaks when the process dies

    def give(self, number: int, epoch: int, rows: "np.ndarray") -> None:
        slot = self.free.pop()
        self._slots[number] = slot
        self.reading[number] = rows.tolist()
        self.connection.send((number, slot, epoch, rows))

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
        self.process.join(_GRACE)
        for stop in (self.process.terminate, self.process.kill):
            if self.process.exitcode is None:
                stop()
                self.process.join(_GRACE)
        self.process.join()
        self.process.close()
        self.connection.close()
        self._memory.clear()


def _failure(worker: _Worker, message: str, text: str, packed: Optional[bytes]) -> DataError:
    where = f"\n\nIn worker process {worker.process.pid}:\n{text}"
    begin = "" if message.startswith("DatasetLoader") else "DatasetLoader: a worker process failed: "
    error = DataError(f"{begin}{message}{where}")
    with suppress(Exception):  # some errors cannot be built from their own text, which stands above
        error.__cause__ = None if packed is None else pickle.loads(packed)
    return error


_OTHER_REASON = "Something in the dataset or a transform ended it: look for sys.exit, os._exit and crashes in C code"
_REASONS = {
    -signal.SIGKILL: "Mostly the system kills because memory ran out (`dmesg` tells): take fewer workers, smaller "
    "batches, or workers='thread:2'",
    255: "MXNet's own handler of a segmentation fault ends a process like this",
}


def _ending(code: Optional[int]) -> str:
    if code is None:
        return "broke its connection"
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    return f"ended with exit code {code}"
