"""A worker process: it reads the samples of a batch into memory that it shares with its parent."""

import errno
import mmap
from multiprocessing import connection as channels
from multiprocessing import parent_process, reduction
import os
from pathlib import Path
import pickle
import signal
import sys
import tempfile
import threading
import traceback
from typing import Any, Dict, List, Sequence, Tuple

from mxkit.data.batching import Spec
from mxkit.data.reader_threads import Switches
from mxkit.data.samples import Samples, error_text
from mxkit.errors import DataError
from mxnet.base import _LIB
from mxnet.util import set_np
import numpy as np

SHARED_FOLDER = Path("/dev/shm")  # noqa: S108
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
    descriptor = _memory_file()
    try:
        os.posix_fallocate(descriptor, 0, size)  # without it, missing memory is a SIGBUS later
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise DataError(_too_little(size, error)) from error
    return descriptor


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mxkit-batch", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(dir=SHARED_FOLDER if SHARED_FOLDER.is_dir() else None) as file:
        return os.dup(file.fileno())


def _too_little(size: int, error: OSError) -> str:
    if hasattr(os, "memfd_create"):
        where = f"shared memory ({os.strerror(error.errno or 0)})"
    else:
        state = os.statvfs(SHARED_FOLDER)
        free, whole = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
        where = f"{SHARED_FOLDER}, which has {free:,} of {whole:,} bytes free"
    return (
        f"DatasetLoader: a worker process needs {size:,} bytes for a batch in {where}. Use smaller batches, fewer "
        "worker processes, a smaller prefetch, or workers='thread:2', which need no shared memory; in a "
        "container, give it more: docker run --shm-size=1g"
    )


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
_LONGEST_TEXT = 20_000


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


def _answer(
    samples: Samples, slots: "_Slots", switches: Switches, batch: int, slot: int, epoch: int, rows: "np.ndarray"
) -> Any:
    try:
        set_np(*switches)  # for each batch: the one before may have changed them
        structure = samples.batch(epoch, rows, lambda specs: slots.allocate(slot, specs))
        return (BATCH, batch, slots.places, structure)
    except BaseException as error:  # the parent must learn of a SystemExit too
        return _failure(error, batch)


def _failure(error: BaseException, batch: Any) -> Tuple[Any, ...]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT // 2]}\n...\n{text[-_LONGEST_TEXT // 2 :]}"
    message = str(error) if isinstance(error, ValueError) and error.__cause__ else error_text(error)
    try:
        packed = pickle.dumps(error.__cause__ or error)
    except Exception:  # a user's error may hold objects that cannot be pickled; its text is sent in any case
        packed = b""
    return (FAILED, batch, message[:_LONGEST_TEXT], text, packed if len(packed) <= _LONGEST_TEXT else b"")


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
