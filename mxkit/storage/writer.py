"""Writing beside the training: one snapshot at a time, in a thread, with errors told to the thread that trains."""

from threading import Thread
from typing import Callable, Optional


class BackgroundWriter:
    """Runs one job at a time in a thread; an error waits until the owner looks."""

    def __init__(self) -> None:
        self._thread: Optional[Thread] = None
        self._error: Optional[BaseException] = None

    def start(self, job: Callable[[], None]) -> None:
        """Run `job` in a thread; call `wait` before."""
        self._thread = Thread(target=self._run, args=(job,), name="mxkit-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the job, and raise what it raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what the job raised, once."""
        if self._error is not None and not self.busy:
            error, self._error = self._error, None
            raise error

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # told by `check`, in the thread that trains
            self._error = error
