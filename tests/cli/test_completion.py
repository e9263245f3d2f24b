"""What shells complete, by the real shells where they are installed, and by what these call."""

import os
from pathlib import Path
import shutil
import subprocess
import sys

from mxkit.cli import completion
from mxkit.recipe import schema
from mxkit.recipe.reading import recipe_names
from mxkit.reports import run_files
import pytest

ROOT = Path(completion.__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a recipe of its own, a run, and a command `mxkit`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("base: digits_lenet\nmodel: {name: mlp, hidden: [9]}\n", encoding="utf-8")
    run = tmp_path / "runs" / "own-1"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text("{}", encoding="utf-8")
    (run / "scores.json").write_text('{"test": {"loss": 1.0, "sharpness": 0.5}}', encoding="utf-8")
    (run / "history.json").write_text('{"epochs": [{"epoch": 1, "valid_loss": 2.0}]}', encoding="utf-8")
    program = tmp_path / "bin" / "mxkit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mxkit "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    return tmp_path


def in_shell(name, script):
    """The lines that a script prints in a real shell."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([name, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def in_bash(*lines):
    """What bash proposes at the end of each command line, whose words are separated by spaces."""
    script = 'eval "$(mxkit --show-completion bash)"\n'
    for line in lines:
        script += f"COMP_WORDS=({line or ''}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()\n"
        script += '_mxkit_completion mxkit; echo "${COMPREPLY[*]}"\n'
    return [answer.split() for answer in in_shell("bash", script)]


@pytest.mark.usefixtures("folder")
def test_bash_completes_recipes_runs_columns_and_keys():
    typed = "mxkit tr", "mxkit train o", "mxkit layers ''", "mxkit runs --sort s", "mxkit train own.yaml --set model."
    commands, recipes, runs, columns, keys = in_bash(*typed)
    assert commands == ["train"]
    assert {"own.yaml", "optimizer_adam"} <= set(recipes)
    assert runs == ["runs/own-1"]
    assert columns == ["seconds", "sharpness", "size", "started", "state"]
    assert {"model.hidden", "model.classes", "model.weights", "model.finetune.head"} <= set(keys)


def test_names_read_from_the_source_are_those_of_mxkit(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert completion.COLUMNS == run_files._OWN
    assert completion.recipes("") == recipe_names()
    keys = completion._keys_of_format()
    sections = {
        "": schema.Recipe,
        "data": schema.DataComponent,
        "model": schema.ModelComponent,
        "model.finetune": schema.FinetuneSection,
        "optimizer": schema.OptimizerComponent,
        "checkpoints": schema.CheckpointSection,
        "evaluate": schema.EvaluateSection,
    }
    for section, kind in sections.items():
        known = set(kind.model_fields)
        below = {key[len(section) :].lstrip(".") for key in keys if key.startswith(section)}
        assert {key for key in below if key and "." not in key} == known


@pytest.mark.usefixtures("folder")
def test_completion_loads_no_mxnet():
    code = "import sys; from mxkit.cli import main\ntry: main()\nfinally: print({'mxnet', 'numpy'} & {*sys.modules})"
    for line in ("mxkit train own.yaml --set mod", "mxkit runs --sort s", "mxkit layers "):
        words = {**os.environ, "_MXKIT_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=words, timeout=60)
        assert "_arguments" in done.stdout, done.stderr
        assert done.stdout.splitlines()[-1] == "set()"
