"""Kills processes of a job at random instants: `python tests/distributed/torture_workers.py --kills 10 --seed 0`.

For a worker, a server, the scheduler and the launcher: all others end within 30 s, the cause is named, no process is
left, and the job that starts again ends with the bits of one that nobody disturbed. Exit code 1 if not.
"""

import argparse
import os
from pathlib import Path
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

import numpy as np

HERE = Path(__file__).parent
MARK = "MXKIT_TEST_MARK"
MOST_SECONDS = 30
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


def whole(folder, pause=0.0):
    """Run a job that nobody disturbs; return its seconds."""
    begun = time.monotonic()
    job = start(folder, pause, folder.with_suffix(".txt"))
    if job.ended():
        raise RuntimeError(job.text())
    return time.monotonic() - begun


class TooLateError(Exception):
    """The training had ended before the kill. A machine is not equally fast all the time."""


def kill(name, after, folder, sound, pause):
    """Kill a process after some seconds; return the seconds until all others had ended, and what is wrong."""
    output = folder.with_suffix(".txt")
    job = start(folder, pause, output)
    try:
        time.sleep(after)
        try:
            victim = job.find(name)
        except LookupError:
            if any(folder.glob("result-*.npz")) and job.ended() == 0:
                raise TooLateError from None
            raise
        there = job.processes()
        os.kill(victim, signal.SIGKILL)  # one that has ended since is there until the launcher has seen it
        late = any(folder.glob("result-*.npz"))
        if name == "the launcher":
            job.process.wait()
        seconds = job.gone(there.keys() - {job.process.pid})
        if seconds is None:
            return 60.0, [f"left: {job.processes()}: {job.text()[-3000:]}"]
        if late:
            raise TooLateError
        wrong = [] if seconds < MOST_SECONDS else [f"the others ended after {seconds:.1f} s"]
        first = job.text()
        if "worker 0" in there.values() and not re.search(CAUSES[name].format(victim), first):
            wrong.append(f"the cause is not named: {first[-3000:]}")
        if name == "the launcher":
            job = start(folder, pause, output)
        if job.ended():
            wrong.append(f"the job that started again failed: {job.text()[-3000:]}")
        else:
            wrong += [f"the job that started again differs: {text}" for text in differences(folder, sound)]
        return seconds, wrong
    finally:
        job.end()


def differences(folder, sound):
    """Arrays of any worker that are not those of the first worker that nobody disturbed, to the bit.

    The losses of the history may differ in the last bit of float32, also in jobs that nobody disturbed.
    """
    with np.load(str(sound / "result-0.npz")) as file:
        wanted = {name: file[name] for name in file.files}
    losses = wanted.pop("losses")
    found = []
    for rank in range(2):
        with np.load(str(folder / f"result-{rank}.npz")) as file:
            if not np.allclose(file["losses"], losses, rtol=3e-7, atol=0):  # a last bit is up to 1.2e-7
                found.append(f"worker {rank}, losses: {file['losses']}, not {losses}")
            names = [name for name in wanted if file[name].tobytes() != wanted[name].tobytes()]
            found += [f"worker {rank}, {name}: {file[name].tolist()}, not {wanted[name].tolist()}" for name in names]
    return found


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each update")
    parser.add_argument("--only", choices=CAUSES)
    asked = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as work:
        sound = Path(work) / "sound"
        longest = whole(sound, asked.pause)
        for name in [asked.only] if asked.only else CAUSES:
            random_ = random.Random(f"{asked.seed} {name}")
            taken, late = [], 0
            while len(taken) < asked.kills and late <= asked.kills:
                folder = Path(work) / f"killed-{len(taken)}-{late}"
                after = random_.uniform(0, longest * 0.9)
                try:
                    seconds, wrong = kill(name, after, folder, sound, asked.pause)
                    taken.append(seconds)
                    failed += [f"FAILED {name}, after {after:.2f} s: {text}" for text in wrong]
                except TooLateError:
                    late += 1
                shutil.rmtree(str(folder))
                folder.with_suffix(".txt").unlink()
            failed += [f"FAILED {name}: {late} jobs ended before the kill"] if late > asked.kills else []
            figures = ", ".join(f"{function(taken or [0]):.2f}" for function in (min, statistics.median, max))
            say(
                f"{name}: {len(taken)} kills in jobs of {longest:.1f} s, and {late} too late; seconds until all others "
                f"had ended: min, median, max {figures}"
            )
    for text in failed:  # at the end, where readers of a long log look
        say(text)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
