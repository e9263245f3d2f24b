"""Copies between NumPy and MXNet take one thread, so that Python's threads keep no threads of OpenMP (T245).

A thread that begins a parallel region of OpenMP keeps the region's threads. If there are then more of them than
processors, libgomp lets all idle threads of the process sleep after 100 spins, also those of MXNet's worker, and every
operator has to wake them. MXNet begins a region in the thread that calls it to copy 200,000 numbers or more
(src/common/utils.h, `ParallelCopy`) and to reorder an array that is in oneDNN's layout, such as a convolution's weight.
"""

import ctypes
from functools import wraps
from typing import Any, Callable

# What MXNet's C interface computes in the caller's thread
_COPIES = ("MXNDArraySyncCopyFromCPU", "MXNDArraySyncCopyToCPU", "MXNDArraySave", "MXNDArraySaveRawBytes")


def copy_with_one_thread(library: Any) -> None:
    """Wrap the copying functions of MXNet's library, a `ctypes.CDLL`, if it has OpenMP's interface."""
    if hasattr(library, "omp_get_max_threads") and hasattr(library, "omp_set_num_threads"):
        for name in _COPIES:
            setattr(library, name, _alone(getattr(library, name), library))


def _alone(function: Callable[..., int], library: Any) -> Callable[..., int]:
    # they keep Python's lock: in a server with many threads it takes milliseconds to get it back
    openmp = ctypes.PyDLL(library._name, handle=library._handle)
    read, change = openmp.omp_get_max_threads, openmp.omp_set_num_threads

    @wraps(function)
    def copy(*arguments: Any) -> int:
        number = read()  # OpenMP keeps one for each thread
        if number == 1:
            return function(*arguments)
        change(1)
        try:
            return function(*arguments)
        finally:
            change(number)

    return copy
