"""`mxkit launch -n 2 -- mxkit train`: one folder of one run, and a run that goes on after a worker was killed."""

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import mxkit
import mxnet as mx
import pytest
from sharing import LONG

MXKIT = [sys.executable, "-m", "mxkit"]
EPOCHS = 4 if LONG else 1  # a second after the first checkpoint, when a worker is killed


def start(output, *options):
    train = [*MXKIT, "train", "digits_lenet", "--output", str(output), "--set", f"epochs={EPOCHS}"]
    command = [*MXKIT, "launch", "-n", "2", *options, "--", *train]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=output
    )


def parent_of(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def worker_of(launcher, rank):
    """The process of a worker, by its environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            keeper = parent_of(folder.name)
            launcher_of_it = parent_of(keeper)
        except OSError:
            continue
        if (
            launcher_of_it == launcher.pid
            and f"MXKIT_RANK={rank}".encode() in variables
            and b"MXKIT_RESTARTS=0" in variables
        ):
            return int(folder.name)
    return None


def weights_of(folder):
    newest = max((folder / "checkpoints").glob("step-*"))
    return {name: array.asnumpy().tobytes() for name, array in mx.nd.load(str(newest / "net.params")).items()}


def epochs_of(folder):
    rows = json.loads((folder / "history.json").read_text())["epochs"]
    return [{name: row[name] for name in row if name not in ("seconds", "samples_per_second")} for row in rows]


def samples_of(folder):
    epochs = json.loads((folder / "workers.json").read_text())
    return [[part["samples"] for part in epoch["workers"]] for epoch in epochs]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a job that nobody disturbs."""
    home = tmp_path_factory.mktemp("undisturbed")
    job = start(home)
    text = job.communicate(timeout=240)[0]
    assert job.returncode == 0, text
    assert text.count("test accuracy") == 1  # the first worker alone prints
    (folder,) = home.iterdir()
    return folder


def test_two_workers_have_one_folder_and_one_report(undisturbed):
    environment = json.loads((undisturbed / "environment.json").read_text())[-1]
    assert environment["workers"] == 2
    assert "MXKIT_SECRET" not in environment["variables"]
    assert samples_of(undisturbed) == [[677, 677]] * EPOCHS
    page = mxkit.reports.write_report([undisturbed]).read_text()
    assert "<h2>Workers</h2>" in page
    assert f"<td>{677 * EPOCHS:,}</td>" in page
    _, net = mxkit.recipe.load_run(undisturbed)
    assert net(mx.nd.zeros((1, 1, 28, 28))).shape == (1, 10)


@pytest.mark.long
def test_a_killed_worker_is_started_again_and_the_run_ends_with_the_same_bits(undisturbed, tmp_path):
    broken = start(tmp_path, "--restarts", "1")
    until = time.monotonic() + 120
    while not list(tmp_path.glob("*/checkpoints/step-*/run.json")):
        assert time.monotonic() < until
        assert broken.poll() is None
        time.sleep(0.02)
    os.kill(worker_of(broken, 1), signal.SIGKILL)
    text = broken.communicate(timeout=240)[0]
    assert broken.returncode == 0, text
    assert "worker 1 was ended by SIGKILL" in text
    assert "restart 1 of 1" in text
    assert text.count("test accuracy") == 1
    (folder,) = tmp_path.iterdir()
    assert weights_of(folder) == weights_of(undisturbed)
    assert epochs_of(folder) == epochs_of(undisturbed)
    assert "resumes after update" in (folder / "log.txt").read_text()
    assert samples_of(folder) == [[677, 677]] * EPOCHS
