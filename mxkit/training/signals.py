"""Handles SIGINT, SIGTERM and SIGHUP so that a run ends where it can be resumed exactly."""

from contextlib import contextmanager, suppress
import os
import signal
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Dict, Iterator, Optional


class Terminated(BaseException):
    """The signal `args[0]`, SIGTERM or SIGHUP, came, and the run can be resumed exactly from here."""


@contextmanager
def ctrl_c_in_imports() -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C during the import of C code, of which pybind11 makes an ImportError."""
    try:
        yield
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


class PoliteSignals:
    """Delays the first SIGINT, SIGTERM or SIGHUP until `raise_caught`, inside `with`; a second SIGINT interrupts.

    Outside of Python's main thread, which alone can set handlers, it does nothing.

    Attributes:
        caught: The signal, or None.
    """

    def __init__(self) -> None:
        self.caught: Optional[int] = None
        self._before: Dict[int, Any] = {}
        self._process = 0

    def __enter__(self) -> "PoliteSignals":
        self.caught, self._process = None, os.getpid()
        if current_thread() is main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                before = signal.getsignal(number)
                if before is not None and before is not signal.SIG_IGN:  # None: set by C code, cannot be restored
                    self._before[number] = before
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        if os.getpid() != self._process:  # a forked worker keeps the former handler
            signal.signal(number, self._before[number])
            deliver(number)
            return
        if self.caught is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = number
        again = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
        # os.write, because the signal may interrupt a print
        with suppress(OSError):  # the terminal may be closed
            os.write(2, f"\nmxkit: stopping at the next checkpoint{again}\n".encode())

    def raise_caught(self) -> None:
        """Raise KeyboardInterrupt for SIGINT, or `Terminated` for the others."""
        if self.caught is not None:
            raise KeyboardInterrupt if self.caught == signal.SIGINT else Terminated(self.caught)


def deliver(number: int) -> None:
    """Send a signal to this process, for its current handler; by default SIGTERM ends the process."""
    os.kill(os.getpid(), number)
