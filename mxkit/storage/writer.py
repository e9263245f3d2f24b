"""Writes one snapshot at a time in a background thread; errors are raised in the training thread."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Callable, Optional


class BackgroundWriter:
    """Runs one job at a time in a thread; `wait` raises the job's error."""

    def __init__(self) -> None:
        self._job: Optional[Future[None]] = None

    def start(self, job: Callable[[], None]) -> None:
        """Run `job` in a thread; call `wait` first."""
        thread = ThreadPoolExecutor(1, "mxkit-checkpoint")  # a new pool, because threads do not survive a fork
        self._job = thread.submit(job)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the job, and raise its error once."""
        if self._job is not None:
            wait([self._job])
            job, self._job = self._job, None  # after the wait, which Ctrl-C may end
            job.result()

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._job is not None and not self._job.done()

    @property
    def finished(self) -> bool:
        """Whether a job has ended since the last `wait`."""
        return self._job is not None and self._job.done()
