"""Runs a program in several worker processes, or in one, and collects what each of them returns."""

import fcntl
import os
from pathlib import Path
import pickle
import subprocess
import sys

import numpy as np

HERE = Path(__file__).parent


def start(program, folder, workers, *arguments, servers=1, restarts=0):
    """Start `program FOLDER WORKERS ARGUMENTS...` in workers of `mxkit launch`, or alone if `workers` is 1."""
    command = [sys.executable, str(HERE / program), str(folder), *map(str, arguments)]
    if workers > 1:
        options = ["-n", str(workers), "-s", str(servers), "--restarts", str(restarts)]
        command = [sys.executable, "-m", "mxkit", "launch", *options, "--", *command]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])}
    return subprocess.Popen(
        command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process, timeout=240):
    """Wait for a process of `start`; its exit status and its output."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"no end after {timeout} s: {output}") from None
    return process.returncode, output


def results(program, folder, workers, *arguments, servers=1, timeout=240):
    """What `write` of each worker wrote, by rank, after a run that succeeded."""
    folder.mkdir(parents=True, exist_ok=True)
    status, output = ended(start(program, folder, workers, *arguments, servers=servers), timeout)
    assert status == 0, output
    return results_of(folder, workers)


def results_of(folder, workers=2):
    """What `write` of each worker wrote."""
    return [pickle.loads((folder / f"worker-{rank}").read_bytes()) for rank in range(workers)]


def once(factory, name, make):
    """A folder that `make(folder)` fills, once for all processes of pytest."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


def assert_equal(one, other):
    """Two trainings must have equal rows, and parameters of the same bits."""
    assert one["parameters"].keys() == other["parameters"].keys()
    for path, values in one["parameters"].items():
        assert np.array_equal(values, other["parameters"][path]), path
    assert one["rows"] == other["rows"]


def write(folder, rank, result):
    """Let `results` return the result of a worker."""
    part = Path(folder) / f".part-{rank}"
    part.write_bytes(pickle.dumps(result))
    part.replace(Path(folder) / f"worker-{rank}")  # whole or not there
