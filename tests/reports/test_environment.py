"""What a run ran on is kept in its folder, by the run itself."""

import json
import os
import platform
import subprocess

from mxkit.recipe.folder import describe_environment, git_state, record_environment
from mxkit.recipe.run import resume_run
from mxkit.reports.page import write_report
from mxkit.reports.run_files import read_run
from mxkit.runtime.engine_settings import in_force
import mxnet as mx
import numpy as np
import pytest


def test_a_run_keeps_what_it_ran_on(adam):
    (found,) = json.loads((adam / "environment.json").read_text())
    assert found["versions"]["MXNet"] == mx.__version__
    assert found["versions"]["Python"] == platform.python_version()
    assert found["platform"] == platform.platform()
    assert found["devices"] == ["cpu(0)"]
    assert found["gpus"] == []
    features = mx.runtime.Features()
    assert set(found["features"]) == {name for name in features if features.is_enabled(name)}
    assert found["memory"] > 2**28
    assert found["cores"] >= 1
    assert found["distributions"]["numpy"] == np.__version__
    assert found["distributions"]["pytest"] == pytest.__version__


def test_threads_and_variables_are_those_of_the_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # MXNet read it when it was loaded
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    monkeypatch.setenv("SECRET_TOKEN", "never written")
    found = describe_environment([mx.cpu(1)])
    assert found["threads"] == in_force() != 7
    assert found["variables"]["MXNET_ENGINE_TYPE"] == "NaiveEngine"
    assert "SECRET_TOKEN" not in found["variables"]
    assert all(os.environ[name] == value for name, value in found["variables"].items())


def test_another_environment_is_added_and_the_same_is_not(tmp_path, monkeypatch):
    record_environment(tmp_path, [mx.cpu()])
    before = (tmp_path / "environment.json").read_text()
    record_environment(tmp_path, [mx.cpu()])
    assert (tmp_path / "environment.json").read_text() == before
    record_environment(tmp_path, [mx.cpu(0), mx.cpu(1)])
    found = json.loads((tmp_path / "environment.json").read_text())
    assert [one["devices"] for one in found] == [["cpu(0)"], ["cpu(0)", "cpu(1)"]]


def test_a_run_gone_on_with_elsewhere_shows_both(adam, copied, tmp_path, read_page):
    folder = copied(adam)
    file = folder / "environment.json"
    (first,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**first, "platform": "another machine"}]))
    started = read_run(folder).started
    resume_run(folder, overrides=["epochs=3"], progress=False)
    run = read_run(folder)
    assert (str(run.state), run.started) == ("finished", started)
    assert (run.recorded.epoch, run.recorded.updates) == (3, run.rows[-1]["updates"])
    found = json.loads(file.read_text())
    assert [one["platform"] for one in found] == ["another machine", platform.platform()]
    page = read_page(write_report([folder], tmp_path / "page.html"))
    assert "another machine" in page.text
    assert [one for one in page.headings if one.startswith(("At first, since", "Gone on with, since"))]


def test_the_commit_of_the_working_folder_and_whether_it_was_changed(tmp_path, monkeypatch):
    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=str(tmp_path), check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert git_state(tmp_path) is None
    git("init")
    assert git_state(tmp_path) is None
    (tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "runs.log").write_text("not tracked")
    assert describe_environment([mx.cpu()])["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "train.py").write_text("2")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": True}
    # git that is missing, or hangs, stops no training
    monkeypatch.setattr("mxkit.recipe.folder._GIT", ("sleep", "9"))
    monkeypatch.setattr("mxkit.recipe.folder._GIT_SECONDS", 0.05)
    assert git_state(tmp_path) is None
    monkeypatch.setattr("mxkit.recipe.folder._GIT", ("no-such-git",))
    assert git_state(tmp_path) is None
