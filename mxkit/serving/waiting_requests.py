"""Requests that wait for an answer: for a future's, or for that of a thread that does nothing else meanwhile."""

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
import threading
from time import perf_counter
from typing import Any, Optional


class Submitted:
    """A sample whose answer a future gets."""

    __slots__ = ("begun", "future", "sample")

    def __init__(self, sample: Any) -> None:
        self.sample, self.future, self.begun = sample, Future(), perf_counter()  # type: ignore[var-annotated]

    @property
    def dropped(self) -> bool:
        """Whether its owner gave up before it was started."""
        return self.future.cancelled()

    def start(self) -> bool:
        """Whether an answer is still wanted."""
        with suppress(InvalidStateError, RuntimeError):  # its owner gave it a result of his own
            return self.future.set_running_or_notify_cancel()
        return False

    def end(self, result: Any) -> None:
        """Give the answer, or an error."""
        with suppress(InvalidStateError):
            (self.future.set_exception if isinstance(result, BaseException) else self.future.set_result)(result)


class Called:
    """A sample whose thread waits for the answer at one lock, which is cheaper than a future."""

    __slots__ = ("answered", "begun", "dropped", "result", "sample")

    def __init__(self, sample: Any) -> None:
        self.sample, self.dropped, self.begun = sample, False, perf_counter()
        self.result: Any = None
        self.answered = threading.Lock()
        self.answered.acquire()

    def start(self) -> bool:
        """Whether an answer is still wanted."""
        return not self.dropped

    def end(self, result: Any) -> None:
        """Give the answer, or an error; the first one counts."""
        if self.result is None:
            self.result = (result,)
            self.answered.release()

    def wait(self, timeout: Optional[float]) -> Any:
        """Return the answer, or raise it; a TimeoutError if there is none within `timeout` seconds."""
        try:
            if not self.answered.acquire(
                timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
            ):
                raise TimeoutError(f"Predictor: no answer within {timeout} s; stats() has the queue")
        except BaseException:  # Ctrl-C
            self.dropped = True
            raise
        (result,) = self.result
        if isinstance(result, BaseException):
            try:
                raise result
            finally:
                del result, self  # the error's traceback has this frame, and would keep itself alive
        return result
