"""Memory that a worker process fills and its parent reads, without a name that could be left behind."""

import errno
import mmap
import os
from pathlib import Path
import tempfile
from typing import List, Sequence, Tuple

from mxkit.data.collate import Spec
from mxkit.errors import DataError
import numpy as np

SHARED_FOLDER = Path("/dev/shm")  # noqa: S108
_ALIGNED = 64  # what MXNet and NumPy's loops like best

# Where an array lies: offset, shape, type as text.
Place = Tuple[int, Tuple[int, ...], str]


def anonymous_file(size: int) -> int:
    """Open memory of `size` bytes, all of it reserved, as a file descriptor.

    It is gone when nobody holds it any more, however the processes end. Where Python offers memfd_create the memory
    is not counted to /dev/shm, which containers mostly limit to 64 MB.

    Raises:
        DataError: There is not as much.
    """
    descriptor = _memory_file()
    try:
        os.posix_fallocate(descriptor, 0, size)  # without it, memory that is missing is a SIGBUS later
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
        f"DatasetLoader: a worker process needs {size:,} bytes for a batch in {where}. Take smaller batches, fewer "
        "worker processes, a smaller prefetch, or workers='thread:2', which share memory as they are; in a "
        "container, give it more: docker run --shm-size=1g"
    )


def plan(specs: Sequence[Spec]) -> Tuple[int, List[Place]]:
    """Lay arrays one after the other: the bytes they take, at least 1, and the place of each.

    >>> plan([((3,), np.dtype("uint8")), ((2, 2), np.dtype("float32"))])
    (80, [(0, (3,), '|u1'), (64, (2, 2), '<f4')])
    """
    end, places = 0, []
    for shape, dtype in specs:
        offset = -(-end // _ALIGNED) * _ALIGNED
        places.append((offset, tuple(shape), dtype.str))
        end = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return max(1, end), places


def views(memory: "mmap.mmap", places: Sequence[Place]) -> List["np.ndarray"]:
    """The arrays that lie at these places."""
    return [
        np.frombuffer(memory, dtype, int(np.prod(shape, dtype=np.int64)), offset).reshape(shape)
        if 0 not in shape
        else np.empty(shape, dtype)
        for offset, shape, dtype in places
    ]
