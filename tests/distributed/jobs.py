"""Jobs of `mxkit launch` whose processes tests find and kill."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import time
import uuid

from joint_runs import assert_equal, results_of
import numpy as np

HERE = Path(__file__).parent
MARK = "MXKIT_TEST_MARK"
# What the output must say of each kind. Before a worker has joined the others only the launcher knows of its end.
CAUSES = {
    "worker 0": r"worker 0 on \S+ \(process {}\) is lost|worker 0 was ended by SIGKILL",
    "worker 1": r"worker 1 on \S+ \(process {}\) is lost|worker 1 was ended by SIGKILL",
    "server 0": r"server 0 on \S+ \(process {}\) is lost|server 0 was ended by SIGKILL",
    "the scheduler": r"the scheduler's process .* was killed|the scheduler was ended by SIGKILL",
    "the launcher": r"mxkit launch (\(process {}\) )?is lost",
}


class Job:
    """A launcher, and all that it has started, found by a variable that they inherit."""

    def __init__(self, command, *, workers=2, options=(), output=None, **variables):
        self.mark = uuid.uuid4().hex
        self.output = Path(output)
        paths = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, MARK: self.mark, **variables}
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mxkit", "launch", "-n", str(workers), *options, "--", *map(str, command)],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                # under nohup it would be ignored, by the launcher too
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )

    def processes(self):
        """Number and name of each process that is there."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                if not folder.name.isdigit() or self.mark.encode() not in (folder / "environ").read_bytes():
                    continue
                variables = dict(line.split(b"=", 1) for line in (folder / "environ").read_bytes().split(b"\0") if line)
                words = [word.decode() for word in (folder / "cmdline").read_bytes().split(b"\0")[:-1]]
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):  # it has ended
                continue
            if words:
                found[int(folder.name)] = self._name(int(folder.name), parent, variables, words)
        return found

    def _name(self, number, parent, variables, words):
        if number == self.process.pid:
            return "the launcher"
        if "mxkit.distributed.side_processes" in words:
            role, rank = words[3:5]
            return "the scheduler" if role == "scheduler" else f"server {rank}"
        if any(word.endswith("keeper.py") for word in words):
            return "a keeper"
        try:
            above = Path(f"/proc/{parent}/cmdline").read_bytes()
        except OSError:
            above = b""
        return f"worker {variables[b'MXKIT_RANK'].decode()}" if b"keeper.py" in above else "a child"

    def until(self, look, what, seconds=90):
        """Wait until `look` returns something while the launcher runs, and return it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            found = look()
            if found:
                return found
            time.sleep(0.02)  # another process makes it
        raise LookupError(f"no {what}: {self.processes()}; {self.text()[-3000:]}")

    def find(self, name):
        """The number of a process, which may start later."""
        return self.until(lambda: [number for number, other in self.processes().items() if other == name], name, 30)[0]

    def text(self):
        return self.output.read_text(errors="replace")

    def wait(self, text):
        """Wait until the output has a text."""
        self.until(lambda: text in self.text(), repr(text))

    def wait_for_checkpoint(self, folder):
        """Wait until the training in a folder has its first checkpoint."""
        self.until(lambda: list((folder / "checkpoints").glob("step-*")), "checkpoint")

    def gone(self, numbers, seconds=60):
        """Wait until processes are gone; return the seconds that it took, or None."""
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            if not any(number in self.processes() for number in numbers):
                return time.monotonic() - begun
            time.sleep(0.02)
        return None

    def ended(self, seconds=120):
        """The launcher's exit status, with all processes gone."""
        status = self.process.wait(seconds)
        left = self.processes()
        self.end()
        if left:
            raise RuntimeError(f"left: {left}; {self.text()[-3000:]}")
        return status

    def end(self):
        for number in self.processes():
            os.kill(number, signal.SIGKILL)
        self.process.wait()


def start(folder, pause, output):
    folder.mkdir(exist_ok=True)
    return Job([sys.executable, HERE / "killed_training.py", folder, pause], options=["--restarts", "1"], output=output)


def assert_same(folder, sound):
    """All workers have the bits of a worker that nobody disturbed.

    The losses of the history may differ in the last bit of float32, also in jobs that nobody disturbed.
    """
    for found in results_of(folder):
        wanted = results_of(sound)[0]
        losses = [[row.pop("train_loss") for row in one["rows"]] for one in (found, wanted)]
        np.testing.assert_allclose(*losses, rtol=3e-7)  # a last bit is up to 1.2e-7
        assert_equal(found, wanted)
