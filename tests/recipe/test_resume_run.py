"""`mxkit train --resume` after a real kill, and the commands around checkpoints."""

import contextlib
import errno
import json
import os
from pathlib import Path
import re
import shutil
import signal
import sys
import time

from mxkit.cli import main
from mxkit.errors import CheckpointError
from mxkit.recipe.folder import RunFolder
from mxkit.recipe.run import load_run, resume_run
from mxkit.reports.run_files import list_runs
from mxkit.storage.directory import only_writer
import numpy as np
import pytest
from recipe_parts import RESUMED as RECIPE
from recipe_parts import rows, values
from sharing import command, long, wait_until

# Trains so long that a signal in its first 0.4 s finds it at work on any machine.
LONGER = RECIPE.replace("epochs: 4", "epochs: 60")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, forks):
    """A run that nobody disturbed."""
    return undisturbed(tmp_path_factory.mktemp("whole"), RECIPE, forks)


@pytest.fixture(scope="module")
def longer(tmp_path_factory, forks):
    """A longer one."""
    return undisturbed(tmp_path_factory.mktemp("longer"), LONGER, forks)


def undisturbed(folder, recipe, forks):
    """The folder of a run, and what it printed."""
    (folder / "small.yaml").write_text(recipe)
    done = forks.run("mxkit.cli:main", ["train", "small.yaml", "--output", str(folder / "runs")], folder=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    return run, done.stdout


@pytest.fixture
def train(tmp_path):
    """A function that trains the recipe into `runs`, as the command does with more words."""
    (tmp_path / "small.yaml").write_text(RECIPE)
    return lambda *words: command("train", tmp_path / "small.yaml", "--output", tmp_path / "runs", "--quiet", *words)


STATES = {
    signal.SIGKILL: ("running?", "epoch"),
    signal.SIGTERM: ("stopped", "SIGTERM"),
    signal.SIGHUP: ("stopped", "SIGHUP"),
    signal.SIGINT: ("stopped", "KeyboardInterrupt"),
}


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, long(signal.SIGHUP), signal.SIGINT])
def test_a_killed_run_is_resumed_to_the_same_end(whole, death, tmp_path, forks):
    (tmp_path / "small.yaml").write_text(RECIPE.replace("epochs: 4", "epochs: 400"))

    def kill(process):
        wait_until(lambda: list(tmp_path.glob("runs/*/checkpoints/step-*")))
        os.kill(process, death)

    words = ["train", str(tmp_path / "small.yaml"), "--output", str(tmp_path / "runs"), "--quiet"]
    done = forks.run("mxkit.cli:main", words, meanwhile=kill)
    assert done.returncode == (130 if death == signal.SIGINT else -death)
    (run,) = (tmp_path / "runs").iterdir()
    way = f"stopped; resume it with: mxkit train --resume {run}"
    assert (way in done.stderr.splitlines()) == (death != signal.SIGKILL)
    assert "Traceback" not in done.stderr
    assert "test " not in done.stdout  # nothing is evaluated after Ctrl-C
    state = list_runs(tmp_path / "runs")[0]
    assert (state.state, state.reason.split(" ")[0]) == STATES[death]
    newest = max(path.name for path in run.glob("checkpoints/step-*"))
    if newest > "step-00000088":
        pytest.skip("this machine trained four epochs before the signal came")
    code, out, err = command("train", "--resume", run, "--set", "epochs=4", "--quiet")
    assert (code, err) == (0, "")
    np.testing.assert_array_equal(values(run), values(whole[0]))
    assert rows(run) == rows(whole[0])
    assert out.splitlines()[1:] == whole[1].splitlines()[1:]
    assert load_run(run)[0].epochs == 4


@pytest.mark.parametrize("offset", [0, *(long(0.02 * number) for number in range(1, 20))])
def test_a_second_live_process_is_refused_and_the_first_run_is_whole(offset, longer, tmp_path, forks):
    (tmp_path / "small.yaml").write_text(LONGER)
    refused = []

    def train_too(process):
        wait_until(lambda: any(one.read_text() for one in tmp_path.glob("runs/*/.writer")))
        time.sleep(offset)  # into its training
        os.kill(process, signal.SIGSTOP)
        (run,) = (tmp_path / "runs").iterdir()
        code, _, err = command("train", "--resume", run, "--quiet")
        refused.append((code, f"error: process {process} on " in err))
        # it may have been stopped between the making of this file and its lock, which fills it
        if any(one.read_text() for one in run.glob("checkpoints/.writer")):
            with pytest.raises(CheckpointError, match=f"^process {process} on "), only_writer(run / "checkpoints"):
                pass
        os.kill(process, signal.SIGCONT)

    words = ["train", str(tmp_path / "small.yaml"), "--output", str(tmp_path / "runs"), "--quiet"]
    done = forks.run("mxkit.cli:main", words, meanwhile=train_too)
    (run,) = (tmp_path / "runs").iterdir()
    assert (done.returncode, refused) == (0, [(1, True)])
    np.testing.assert_array_equal(values(run), values(longer[0]))
    assert (rows(run), done.stdout.splitlines()[1:]) == (rows(longer[0]), longer[1].splitlines()[1:])
    assert not list(run.rglob(".writer"))


@pytest.mark.parametrize(
    "full", ["history.csv", long("history.json"), long("log.txt"), "run.json", long("scores.json")]
)
def test_a_full_disk_ends_a_run_as_failed_whatever_was_written_and_a_resume_is_exact(
    full, whole, train, tmp_path, monkeypatch
):
    flush, log, met = os.fsync, RunFolder.log, []

    def refuse(name):
        met.append(name)
        raise OSError(errno.ENOSPC, "No space left on device", name)

    def fsync(handle):
        name = os.readlink(f"/proc/self/fd/{handle}")
        if f".{full}." in name or (met and ".state.json." in name):
            refuse(name)
        flush(handle)

    def log_line(self, text):
        if full == "log.txt" and (met or text.startswith("epoch 2/4")):
            refuse(full)
        log(self, text)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        patched.setattr(RunFolder, "log", log_line)
        code, _, err = train()
    (state,) = list_runs(tmp_path / "runs")
    assert (code, state.state, state.reason[:8], "\nerror: " in f"\n{err}") == (1, "failed", "OSError:", True), err
    (run,) = (tmp_path / "runs").iterdir()
    assert command("train", "--resume", run, "--quiet")[1].splitlines()[1:] == whole[1].splitlines()[1:]
    np.testing.assert_array_equal(values(run), values(whole[0]))
    assert (rows(run), list_runs(run)[0].state) == (rows(whole[0]), "finished")


def test_a_closed_pipe_does_not_end_a_training(whole, tmp_path, monkeypatch):
    (tmp_path / "small.yaml").write_text(RECIPE)
    there, here = os.pipe()
    os.close(there)
    monkeypatch.setattr(sys, "stderr", os.fdopen(here, "w", buffering=1))
    code = command_to(sys.stderr, "train", tmp_path / "small.yaml", "--output", tmp_path / "runs", "--verbose")
    monkeypatch.undo()
    (run,) = (tmp_path / "runs").iterdir()
    assert (code, rows(run), list_runs(run)[0].state) == (1, rows(whole[0]), "finished")


def command_to(stream, *words):
    with contextlib.redirect_stdout(stream), pytest.raises(SystemExit) as caught:
        main([*map(str, words)])
    return caught.value.code


@pytest.mark.parametrize(
    ("place", "states", "text"),
    [
        ("mxkit.recipe.folder.RunFolder.write_recipe", [], "stopped before the run had a folder"),
        ("mxkit.recipe.run.fit_call", ["stopped"], "stopped before the first checkpoint; the files are in "),
        ("mxkit.recipe.folder.record_environment", ["stopped"], "stopped before the first checkpoint"),
        ("mxkit.recipe.run.score_calls", ["stopped"], "stopped; resume it with: mxkit train --resume "),
        ("mxkit.training.history.History.plot", ["stopped"], "stopped; resume it with: mxkit train --resume "),
    ],
)
def test_ctrl_c_leaves_no_run_that_is_called_running_or_broken(place, states, text, train, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()

    def interrupt(*_, **__):
        if "plot" in place:  # what pybind11 makes of it while matplotlib is imported
            raise ImportError("initialization failed") from KeyboardInterrupt()
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    code, out, err = train("--set", "epochs=1")
    assert (code, [one.state for one in list_runs(tmp_path / "runs")], "\ntest " in out) == (130, states, False)
    assert text in err


@pytest.fixture
def copied(whole, tmp_path):
    return Path(shutil.copytree(str(whole[0]), str(tmp_path / "copy")))


def test_a_finished_run_is_only_evaluated_again_and_says_so(whole, copied):
    run = copied
    code, out, err = command("train", "--resume", run, "--quiet")
    assert code == 0
    assert err == "this run had ended: nothing was trained. To train on, add --set epochs=N with N above 4\n"
    assert out.splitlines()[1:] == whole[1].splitlines()[1:]
    assert rows(run) == rows(whole[0])
    kept = {name: (run / name).read_bytes() for name in ("recipe.yaml", "net.json", "state.json", "scores.json")}
    code, _, err = command("train", "--resume", run, "--quiet", "--set", "seed=9", "--set", "loss=focal")
    assert code == 2
    assert "this run had ended, so nothing would be trained with the changed seed, loss. To train on, add --set" in err
    assert {name: (run / name).read_bytes() for name in kept} == kept
    code, out, err = command("train", "--resume", run, "--quiet", "--set", "evaluate.split=train")
    assert (code, list(json.loads((run / "scores.json").read_text()))) == (0, ["train"])
    code, out, err = command("train", "--resume", run, "--quiet", "--set", "epochs=5")
    assert (code, err) == (0, "")
    assert resume_run(run, progress=False).had_ended


@pytest.mark.parametrize(
    "setting", ["epochs=1", "model.hidden=[5]", "optimizer=sgd", "loss=l2", "optimizer.learning_rate=0.5"]
)
def test_changes_with_which_a_run_cannot_go_on_leave_its_folder_as_it_is(copied, setting):
    run = copied
    kept = {name: (run / name).read_bytes() for name in ("recipe.yaml", "net.json", "state.json")}
    code, _, err = command("train", "--resume", run, "--quiet", "--set", setting)
    assert code == (2 if setting.startswith(("optimizer.", "loss")) else 1)
    assert re.search("^error: ", err, re.MULTILINE)
    assert {name: (run / name).read_bytes() for name in kept} == kept


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ("model.dropout=0.6", "model.dropout: 0.3 -> 0.6"),
        long("freeze=['1.*']", "freeze: [] -> ['1.*']"),
        long("optimizer.multipliers={'1.*': {lr: 0.5}}", "optimizer.multipliers.1.*.lr: (not said) -> 0.5"),
    ],
)
def test_a_changed_value_is_named_and_written_down_with_its_epoch(copied, setting, change):
    code, _, err = command("train", "--resume", copied, "--quiet", "--set", "epochs=5", "--set", setting)
    note = f"from epoch 5, after update 88: {change}"
    assert (code, f"warning: {copied}: from epoch 5" in err, note in err) == (0, True, True), err
    code, _, err = command("train", "--resume", copied, "--quiet", "--set", "epochs=6")
    assert (code, err) == (0, "")
    assert f"# {note}\n" in (copied / "recipe.yaml").read_text()
    assert load_run(copied)[0].epochs == 6


def test_final_scores_of_weights_that_no_command_loads_say_so(tmp_path):
    stops = {"name": "early_stopping", "monitor": "valid_loss", "mode": "max", "patience": 9, "restore_best": True}
    (tmp_path / "a.yaml").write_text(f"{RECIPE}callbacks: [{json.dumps(stops)}]\n")
    words = ["train", tmp_path / "a.yaml", "--output", tmp_path / "runs", "--quiet"]
    for settings, differ in (([], True), (["--set", "evaluate.which=best"], False)):
        code, out, err = command(*words, *settings, "--set", "checkpoints.keep_best=[valid_loss,max]")
        run = out.splitlines()[0].partition(" ")[2]
        assert (code, "no checkpoint holds them: mxkit evaluate" in err) == (0, differ)
        assert (command("evaluate", run)[1].splitlines() != out.splitlines()[1:]) == differ


def test_checkpoints_are_listed_verified_pruned_and_removed(copied):
    """tests/storage has what is kept."""
    names = sorted((path.name for path in (copied / "checkpoints").iterdir()), reverse=True)
    code, out, _ = command("checkpoints", copied)
    head, *lines = [line.split() for line in out.splitlines()]
    assert (code, head) == (0, ["checkpoint", "epoch", "scores", "size", "state"])
    assert [(line[0], line[-1]) for line in lines] == [(name, "whole") for name in names]
    assert (lines[0][1], "valid_accuracy" in lines[0]) == ("4", True)
    assert command("checkpoints", "verify", copied)[0] == 0
    code, out, err = command("checkpoints", "prune", copied, names[-1], "step-00000001")
    assert (code, out) == (1, "")
    assert f"has no checkpoint 'step-00000001'; there are {', '.join(names)}" in err
    assert command("checkpoints", "prune", copied, names[-1])[:2] == (0, f"removed {names[-1]}\n")
    broken = copied / "checkpoints" / names[0] / "net.params"
    broken.write_bytes(broken.read_bytes()[:-1])
    code, out, _ = command("checkpoints", "verify", copied)
    assert (code, "is damaged" in out) == (1, True)
    code, out, _ = command("checkpoints", "prune", copied, "--keep-last", "1")
    assert (code, out.split()[0]) == (0, "removed")


def test_other_data_than_the_trainings_is_evaluated_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = RECIPE.replace("name: digits,", "name: csv, path: a.csv, target: c, test: 0.5,").replace("10", "1")
    (tmp_path / "small.yaml").write_text(recipe.replace("softmax_ce", "l2").replace("accuracy", "mae"))
    rows = [f"{a},{a % 3},{a % 5}" for a in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,c", *rows]))
    code, out, err = command("train", "small.yaml", "--quiet")
    assert code == 0, err
    (run,) = (tmp_path / "runs").iterdir()
    again = command("evaluate", run)
    assert out.splitlines()[1:] == again[1].splitlines()
    assert "other samples" not in again[2]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,c", *rows[::-1]]))
    for words in (["evaluate", run], ["report", run]):
        assert "test holds other samples than when " in " ".join(command(*words)[2].split())
    (run / "net.json").write_text("{")
    code, _, err = command("evaluate", run)
    assert (code, "net.json cannot be read: JSONDecodeError" in err) == (2, True)


def test_a_run_that_a_callback_stopped_says_why_and_how_to_train_on(tmp_path):
    stops = "callbacks: [{name: early_stopping, monitor: valid_loss, mode: min, patience: 1, min_delta: 100}]\n"
    (tmp_path / "stops.yaml").write_text(RECIPE + stops)
    assert command("train", tmp_path / "stops.yaml", "--output", tmp_path / "runs", "--quiet")[0] == 0
    (run,) = (tmp_path / "runs").iterdir()
    code, _, err = command("train", "--resume", run, "--quiet", "--set", "epochs=9")
    reason = json.loads((run / "state.json").read_text())["reason"]
    assert reason.startswith("valid_loss (min) has not become better for 1 epochs: best was ")
    way = f"{reason}. Train a new run from these weights: mxkit train {run / 'recipe.yaml'} --set model.weights={run}\n"
    assert code == 2
    assert f"this run had ended, so nothing would be trained with the changed epochs. {way}" in err
    code, _, err = command("train", "--resume", run, "--quiet")
    assert (code, err) == (0, f"this run had ended: nothing was trained. {way}")


def test_ctrl_c_before_typer_runs_a_command_shows_no_traceback(monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mxkit.cli.commands.app", interrupt)
    assert command("show", "digits_lenet") == (130, "", "")
