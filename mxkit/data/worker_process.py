"""What runs in a worker process: read the samples of a batch, put them into shared memory, say where they are."""

import mmap
from multiprocessing import connection as channels
from multiprocessing import parent_process, reduction
import os
import pickle
import signal
import threading
import traceback
from typing import Any, Dict, List, Sequence, Tuple

from mxkit.data.collate import Spec
from mxkit.data.samples import Samples, told
from mxkit.data.worker_memory import Place, anonymous_file, plan, views
from mxkit.runtime.threads import take_one_thread
import mxnet as mx
from mxnet.base import _LIB
import numpy as np

# Kinds of messages to the parent; each is a tuple that begins with one.
READY, MEMORY, BATCH, FAILED = "ready", "memory", "batch", "failed"

_LOOK_EVERY = 1.0
_LONGEST_TEXT = 20_000


def serve(connection: Any, work: Any) -> None:
    """Answer the parent's tasks until it sends None or is gone.

    Args:
        connection: To the parent. A task is `(batch, slot, epoch, rows)`.
        work: A `Samples`, or the bytes of a pickled one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent()
    _LIB.MXSetNumOMPThreads(1)  # the processes are what runs at once
    try:
        if isinstance(work, bytes):  # not forked
            take_one_thread()
        samples: Samples = pickle.loads(work) if isinstance(work, bytes) else work
    except BaseException as error:
        _send(connection, _failure(error, None))
        return
    slots = _Slots(connection)
    if not _send(connection, (READY,)):
        return
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        if task is None or not _send(connection, _answer(samples, slots, *task)):
            return


def _answer(samples: Samples, slots: "_Slots", batch: int, slot: int, epoch: int, rows: "np.ndarray") -> Any:
    try:
        structure = samples.batch(epoch, rows, lambda specs: slots.allocate(slot, specs))
        return (BATCH, batch, slots.places, structure)
    except BaseException as error:  # SystemExit too: the parent is to hear of it
        return _failure(error, batch)


def _failure(error: BaseException, batch: Any) -> Tuple[Any, ...]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT // 2]}\n...\n{text[-_LONGEST_TEXT // 2 :]}"
    message = str(error) if isinstance(error, ValueError) and error.__cause__ else told(error)
    return (FAILED, batch, message[:_LONGEST_TEXT], text, _pickled(error.__cause__ or error))


def _pickled(error: BaseException) -> Any:
    """The error for the parent to chain, if it can be sent: its text is sent anyway."""
    try:
        packed = pickle.dumps(error)
    except Exception:  # a user's error may hold anything
        return None
    return packed if len(packed) <= _LONGEST_TEXT else None


def _send(connection: Any, message: Any) -> bool:
    try:
        connection.send(message)
    except (BrokenPipeError, ConnectionResetError):  # the parent does not wait any more
        return False
    return True


def _end_with_parent() -> None:
    """End this process soon after its parent, even if a sample takes for ever: nobody would ever end it else."""
    parent, pid = parent_process(), os.getppid()

    def watch() -> None:
        # a process that was forked later may hold the other end, so the number is looked at too
        while os.getppid() == pid and not channels.wait([parent.sentinel] if parent else [], _LOOK_EVERY):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="mxkit-parent-watch", daemon=True).start()


class _Slots:
    """Shared memory by number; each grows to the largest batch that it held."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._memory: Dict[int, mmap.mmap] = {}
        self.places: List[Place] = []

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


def copied(memory: "mmap.mmap", places: Sequence[Place], copy: Any) -> List["mx.nd.NDArray"]:
    """Copy a batch out of shared memory, in the parent."""
    return [copy(array) for array in views(memory, places)]
