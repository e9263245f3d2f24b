"""Writing beside the training: one snapshot at a time, in a thread, with errors raised in the thread that trains."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Callable, Optional


class BackgroundWriter:
    """Runs one job at a time in a thread; an error waits until the owner looks."""

    def __init__(self) -> None:
        self._job: Optional[Future[None]] = None

    def start(self, job: Callable[[], None]) -> None:
        """Run `job` in a thread; call `wait` before."""
        thread = ThreadPoolExecutor(1, "mxkit-checkpoint")  # a new one: a thread does not survive a fork
        self._job = thread.submit(job)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the job, and raise what it raised, once."""
        if self._job is not None:
            wait([self._job])
            job, self._job = self._job, None  # only now: a Ctrl-C may end the wait
            job.result()

    def check(self) -> None:
        """Raise what the job raised, once, if it is done."""
        if not self.busy:
            self.wait()

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return self._job is not None and not self._job.done()
