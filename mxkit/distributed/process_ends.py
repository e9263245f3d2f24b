"""How processes of a job end: with those that they belong to, and without MXNet's wait for the others."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def forks_die_with_it() -> None:
    """Let forked processes, like those of a DataLoader, end with this one, also if it is killed.

    Only what the main thread forks: Linux ends such a process with the thread that forked it.
    """
    worker, libc, main = os.getpid(), ctypes.CDLL(None), [False]

    def before() -> None:
        main[0] = threading.get_native_id() == worker

    def child() -> None:
        if main[0] and os.getppid() == worker:  # not what the forked process forks: a daemon wants to outlive it
            libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)

    os.register_at_fork(before=before, after_in_child=child)


def end_without_destructors() -> None:
    """Let this process end after Python has, with its exit status, and without the destructors of C++.

    That of ps-lite waits for all others, and for ever for one that is lost.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc.fcloseall, None)  # runs before; what C code has printed would be lost


def end_now(status: int) -> None:
    """End this process from any thread, with the processes that `multiprocessing` has started."""
    try:
        flush = threading.Thread(target=_flush, daemon=True)  # the main thread may hold the lock of a stream
        flush.start()
        flush.join(1.0)
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
