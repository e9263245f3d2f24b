"""`mxkit init`: what it writes trains, and passes its own test."""

import os
from pathlib import Path
import subprocess
import sys

import mxkit
import pytest
from sharing import command


def test_a_new_project_trains_and_passes_its_test(tmp_path, monkeypatch, forks):
    project = tmp_path / "spirals"
    project.mkdir()
    monkeypatch.chdir(project)
    code, out, err = command("init", ".")
    assert code == 0, err
    names = {"README.md", "own_data.py", "own_model.py", "recipe.yaml", "test_project.py"}
    assert {Path(line).name for line in out.splitlines()} == {path.name for path in project.iterdir()} == names
    trained = forks.run("mxkit.cli:main", ["train", "recipe.yaml", "--quiet"], folder=project)
    assert trained.returncode == 0, trained.stderr
    (line,) = [line for line in trained.stdout.splitlines() if line.startswith("test accuracy")]
    assert float(line.split()[-1]) > 0.9
    assert len(list((project / "runs").glob("spirals-*"))) == 1
    environment = {**os.environ, "PYTHONPATH": str(Path(mxkit.__file__).parents[1])}
    options = {"cwd": str(project), "env": environment, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], **options)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["two words", "full"])
def test_a_folder_with_files_and_a_bad_name_are_refused(name, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept.txt").write_text("mine", encoding="utf-8")
    code, out, err = command("init", tmp_path / name)
    assert (code, out) == (2, "")
    assert "expected a name" in err or "not an empty folder" in err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["kept.txt"]
