"""How processes of a job end: together with their worker, and without MXNet's wait for the others."""

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

    It holds for forks by the main thread: Linux ends such a process with the thread that forked it.
    """
    worker, libc = os.getpid(), ctypes.CDLL(None)
    main = threading.main_thread()

    def child() -> None:
        # after a fork by another thread, that thread is the main one; a grandchild, like a daemon, may outlive us
        if threading.main_thread() is main and os.getppid() == worker:
            libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)

    os.register_at_fork(after_in_child=child)


def end_without_destructors() -> None:
    """Let this process end after Python has, with its exit status, and without C++'s destructors.

    ps-lite's destructor waits for all others, and for ever if one of them is lost.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc.fcloseall, None)  # runs first: it writes what C code has printed


def end_now(status: int) -> None:
    """End this process from any thread, with the processes that `multiprocessing` has started."""
    try:
        flush = threading.Thread(target=_flush, daemon=True)  # it may wait for a stream that the main thread has locked
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
