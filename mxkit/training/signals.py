"""Signals that let a run end at a moment from which it can go on."""

from contextlib import suppress
import os
import signal
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Dict, Optional


class Terminated(BaseException):
    """SIGTERM came, and the run has reached a moment from which it can go on."""


class PoliteSignals:
    """Keeps the first SIGINT or SIGTERM until somebody asks, inside `with`; a second SIGINT interrupts at once.

    Outside of Python's main thread, where no handler can be set, it does nothing.

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
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if before is not None and before is not signal.SIG_IGN:  # None: set by C code, cannot be put back
                    self._before[number] = before
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        if os.getpid() != self._process:  # a worker that was forked meanwhile is to end as it always did
            signal.signal(number, self._before[number])
            deliver(number)
            return
        if self.caught is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = number
        again = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
        # not print: a signal may come while somebody else prints; and the terminal may be gone
        with suppress(OSError):
            os.write(2, f"\nmxkit: stopping at the next checkpoint{again}\n".encode())

    def raise_caught(self) -> None:
        """Raise what the signal means: KeyboardInterrupt, or `Terminated`."""
        if self.caught is not None:
            raise KeyboardInterrupt if self.caught == signal.SIGINT else Terminated


def deliver(number: int) -> None:
    """Send a signal to this process, for whoever handles it now; SIGTERM mostly ends it."""
    os.kill(os.getpid(), number)
