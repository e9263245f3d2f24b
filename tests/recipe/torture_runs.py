"""Ends recipe runs at random instants, and resumes them: `python tests/recipe/torture_runs.py --each 20 --seed 0`.

A run ends by a signal, by a closed pipe, or by a full disk (`--disk DIR`, an empty folder of a small file system of
its own), between its first line and a little after its last. Exit code 1 unless `runs` names each folder rightly and
each resume ends with the bits, rows and scores of the run that nobody disturbed. `--family ssd yolo3 fcn pose` does it
to a small net of each of these, trained on drawn pictures.
"""

import argparse
from collections import Counter
import json
import os
from pathlib import Path
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

from mxkit.cli import main
from mxkit.reports.run_files import list_runs
from recipe_parts import RESUMED, rows, values

sys.path.insert(0, str(Path(__file__).parents[1]))
import contextlib

from forked import Forks  # noqa: E402

# The shipped recipe of a family, and the arguments that make its net small.
FAMILIES = {
    "ssd": ("ssd_shapes", "size: 64, channels: [4, 6, 8]"),
    "yolo3": ("yolo3_shapes", "size: 64, channels: [4, 6, 8]"),
    "fcn": ("fcn_shapes", "size: 64, channels: [4, 6, 8]"),
    "pose": ("pose_stick", "channels: [4, 6, 8, 8, 8]"),
}
OF_A_FAMILY = """
base: {}
name: small
seed: 3
data:
  images: 24
  size: 64
  batch_size: 2
  augment: [{{name: resize, size: [64, 64]}}, flip, {{name: colour_jitter, hue: 0.05}}, to_tensor]
  eval_augment: [to_tensor]
model: {{{}}}
epochs: 4
checkpoints: {{every: 16 updates, keep_last: 2}}
"""
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP, "SIGINT": signal.SIGINT}


def note_time(path):
    Path(f"{path}.aside").write_text(str(time.time()))
    Path(f"{path}.aside").replace(path)


def timed(path, *words):
    """A job: run the command, and note when its first line of code and its end were."""
    note_time(path)
    try:
        main(list(words))
    finally:
        note_time(f"{path}.end")


def piped(path, seconds, *words):
    """A job: run the command with its output in a pipe that is closed after a while."""
    there, here = os.pipe()
    for stream in (1, 2):
        os.dup2(here, stream)
    os.close(here)

    def read():
        until = time.monotonic() + seconds
        os.set_blocking(there, False)
        while time.monotonic() < until:
            try:
                os.read(there, 65536)
            except BlockingIOError:
                time.sleep(0.002)
        os.close(there)

    threading.Thread(target=read, daemon=True).start()
    timed(path, *words)


def result(run):
    """Weights, rows without times, and scores of a finished run."""
    return values(run).tobytes(), rows(run), json.loads((run / "scores.json").read_text())


class Torture:
    def __init__(self, folder, disk, family=None):
        self.forks, self.folder, self.disk = Forks(), folder, disk
        folder.mkdir()
        (folder / "small.yaml").write_text(OF_A_FAMILY.format(*FAMILIES[family]) if family else RESUMED)
        words = ("train", folder / "small.yaml", "--quiet", "--output")
        done = self.run("timed", folder / "clock", *words, folder / "whole")
        assert done.returncode == 0, done.stderr
        (run,) = (folder / "whole").iterdir()
        self.whole = result(run)
        self.seconds = self.clock(".end") - self.clock("")

    def clock(self, ending):
        return float((self.folder / f"clock{ending}").read_text())

    def run(self, name, *words, **more):
        (self.folder / "clock").unlink(missing_ok=True)
        return self.forks.run(f"torture_runs:{name}", *[str(word) for word in words], **more)

    def wait(self, seconds):
        while not (self.folder / "clock").exists():
            time.sleep(0.001)
        time.sleep(max(0, self.clock("") + seconds - time.time()))

    def ended(self, kind, seconds):
        """End a run and resume it; return what happened, and what is wrong with it."""
        place = (self.disk if kind == "disk" else self.folder) / "runs"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        words = ("train", self.folder / "small.yaml", "--output", place)
        filler = place.parent / "filler"

        def fill():
            self.wait(seconds)
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass

        if kind == "pipe":
            done = self.run("piped", self.folder / "clock", seconds, *words)
        elif kind == "disk":
            thread = threading.Thread(target=fill)
            done = self.run("timed", self.folder / "clock", *words, meanwhile=lambda process: thread.start())
            thread.join()
            filler.unlink()
        else:

            def kill(process):
                self.wait(seconds)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, SIGNALS[kind])

            done = self.run("timed", self.folder / "clock", *words, meanwhile=kill)
        return self.judged(kind, place, done)

    def judged(self, kind, place, done):
        states = list_runs(place)
        folders = list(place.iterdir())
        wrong = []
        if "Traceback" in done.stderr:
            wrong.append(f"a traceback: {done.stderr[-600:]}")
        if len(states) != len(folders):
            wrong.append(f"runs names {states} of {folders}")
        if not states:
            return f"no folder, code {done.returncode}", wrong
        (state,) = states
        allowed = {"pipe": ["finished"], "disk": ["failed", "finished"], "SIGKILL": ["running?", "stopped", "finished"]}
        if state.state not in allowed.get(kind, ["stopped", "finished"]):
            wrong.append(f"runs says {state.state} ({state.reason}), code {done.returncode}: {done.stderr[-400:]}")
        (run,) = folders
        resumed = self.forks.run("mxkit.cli:main", ["train", "--resume", str(run), "--quiet"])
        how = "resumed"
        if resumed.returncode:
            how = f"refused: {re.sub(r'[^ ]*/', '', resumed.stderr.strip())[:110]}"
            if "error: " not in resumed.stderr or "Traceback" in resumed.stderr or list(run.glob("checkpoints/step-*")):
                wrong.append(f"not resumed: {resumed.stderr[-600:]}")
        elif result(run) != self.whole:
            wrong.append("another end than that of the undisturbed run")
        return f"{state.state}, {how}", wrong


def torture():
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--disk", type=Path)
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--family", nargs="*", choices=FAMILIES, default=[None])
    options = parser.parse_args()
    draws, failed = random.Random(options.seed), 0
    kinds = options.kinds or [*SIGNALS, "pipe", *(["disk"] if options.disk else [])]
    with tempfile.TemporaryDirectory() as folder:
        for family in options.family:
            failed += of_family(family, kinds, options, draws, Path(folder) / str(family))
    return 1 if failed else 0


def of_family(family, kinds, options, draws, folder):
    """End runs in each way and say how they went on; return how many mistakes there were."""
    tortured, failed = Torture(folder, options.disk, family), 0
    for kind in kinds:
        seen = Counter()
        for _ in range(options.each):
            seconds = draws.uniform(0, 1.05 * tortured.seconds)
            what, wrong = tortured.ended(kind, seconds)
            seen[what] += 1
            for text in wrong:
                failed += 1
                print(f"{kind} after {seconds:.3f} of {tortured.seconds:.3f} s: {text}")  # noqa: T201
        name = f"{family}, {kind}" if family else kind
        print(f"{name}: {', '.join(f'{count} x {what}' for what, count in seen.most_common())}", flush=True)  # noqa: T201
    return failed


if __name__ == "__main__":
    sys.exit(torture())
