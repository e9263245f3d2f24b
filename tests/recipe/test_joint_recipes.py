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

MXKIT = [sys.executable, "-m", "mxkit"]
EPOCHS = 4  # a second after the first checkpoint, when a worker is killed


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


def test_a_killed_worker_is_started_again_and_the_run_ends_with_the_same_bits(tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    whole, broken = start(undisturbed), start(killed, "--restarts", "1")
    until = time.monotonic() + 120
    while not list(killed.glob("*/checkpoints/step-*/run.json")):
        assert time.monotonic() < until
        assert broken.poll() is None
        time.sleep(0.02)
    os.kill(worker_of(broken, 1), signal.SIGKILL)
    text, whole_text = broken.communicate(timeout=240)[0], whole.communicate(timeout=240)[0]
    assert (broken.returncode, whole.returncode) == (0, 0), text + whole_text
    assert "worker 1 was ended by SIGKILL" in text
    assert "restart 1 of 1" in text
    assert whole_text.count("test accuracy") == text.count("test accuracy") == 1  # the first worker alone prints
    (first,), (second,) = undisturbed.iterdir(), killed.iterdir()  # one folder each
    assert weights_of(first) == weights_of(second)
    histories = [json.loads((folder / "history.json").read_text()) for folder in (first, second)]
    for history in histories:
        for row in history["epochs"]:
            row.pop("seconds"), row.pop("samples_per_second")
    assert histories[0] == histories[1]
    assert "resumes after update" in (second / "log.txt").read_text()
    environment = json.loads((second / "environment.json").read_text())[-1]
    assert environment["workers"] == 2
    assert "MXKIT_SECRET" not in environment["variables"]
    workers = json.loads((second / "workers.json").read_text())
    assert [[part["samples"] for part in epoch["workers"]] for epoch in workers] == [[677, 677]] * EPOCHS
    page = mxkit.reports.write_report([second]).read_text()
    assert "<h2>Workers</h2>" in page
    assert f"<td>{677 * EPOCHS:,}</td>" in page
    _, net = mxkit.recipe.load_run(second)
    assert net(mx.nd.zeros((1, 1, 28, 28))).shape == (1, 10)
