"""`mxkit runs`: a line a run, sorted by any column, also where folders are broken."""

import json
import os
import shutil

from mxkit.reports import list_runs
import pytest
from sharing import command


@pytest.fixture(scope="module")
def several(adam, sgd, regression, failed, tmp_path_factory):
    """A folder of runs: two that can be compared, a regression, one that failed, and two that are none."""
    folder = tmp_path_factory.mktemp("several")
    for name, run in (("a", adam), ("b", sgd), ("c[bold]", regression), ("d", failed)):
        shutil.copytree(str(run), str(folder / name))
    (folder / "e").mkdir()
    (folder / "f").mkdir()
    (folder / "f" / "recipe.yaml").write_text("name: [")
    (folder / ".hidden").mkdir()
    (folder / "notes.txt").write_text("no run")
    return folder


def test_a_run_as_its_files_say(several, adam, sgd):
    run = next(one for one in list_runs(several) if one.name == "b")
    scores = json.loads((sgd / "scores.json").read_text())["test"]
    rows = json.loads((sgd / "history.json").read_text())["epochs"]
    assert (run.state, run.reason, run.epochs, run.scores) == ("finished", "", 2, scores)
    assert run.started == json.loads((sgd / "state.json").read_text())["started"]
    assert run.seconds == sum(row["seconds"] for row in rows)
    best = max(row["valid_accuracy"] for row in rows)
    epoch = next(row["epoch"] for row in rows if row["valid_accuracy"] == best)
    assert run.best == {"column": "valid_accuracy", "value": best, "epoch": epoch}
    assert run.last["train_loss"] == rows[-1]["train_loss"]
    rows = json.loads((adam / "history.json").read_text())["epochs"]
    other = next(one for one in list_runs(several) if one.name == "a")  # without keep_best
    assert (other.best["column"], other.best["value"]) == ("valid_loss", min(row["valid_loss"] for row in rows))
    assert run.size == sum(path.stat().st_size for path in (several / "b").rglob("*") if path.is_file())


def test_scores_over_different_parts_have_columns_of_their_own(sgd, tmp_path):
    for part in ("test", "train"):
        shutil.copytree(str(sgd), str(tmp_path / part))
        (tmp_path / part / "scores.json").write_text(json.dumps({part: {"accuracy": 0.5}}))
    found = {one.name: one.scores for one in list_runs(tmp_path)}
    assert found == {"test": {"accuracy": 0.5}, "train": {"train:accuracy": 0.5}}
    _, told, _ = command("runs", tmp_path, "--sort", "-train:accuracy")
    assert told.splitlines()[1].startswith("train ")


def test_broken_folders_are_lines(several):
    code, told, err = command("runs", several)
    assert (code, err) == (0, "")
    lines = told.splitlines()
    assert len(lines) >= 7
    (line,) = [line for line in lines if line.startswith("e ")]
    assert line.split()[1:6] == ["broken:", "recipe.yaml", "is", "missing", "0"]
    for run in list_runs(several):  # a pipe has no width
        assert run.reason in told
    for text in ("recipe.yaml is damaged", "failed: mxkit.errors.NonFiniteError", "c[bold]"):
        assert text in told
    assert not {".hidden", "notes.txt"} & set(told.split())


def test_sorted_by_any_column(several):
    def names(sort):
        return [one.name for one in list_runs(several, sort=sort)]

    accuracy = {one.name: one.scores["accuracy"] for one in list_runs(several) if "accuracy" in one.scores}
    upward = sorted(accuracy, key=accuracy.get)
    assert names("accuracy")[:2] == upward
    assert names("-accuracy")[:2] == upward[::-1]
    assert names("name") == ["a", "b", "c[bold]", "d", "e", "f"]
    assert names("-name") == ["f", "e", "d", "c[bold]", "b", "a"]
    loss = {one.name: one.last["valid_loss"] for one in list_runs(several) if one.last}
    assert names("-valid_loss")[:3] == sorted(loss, key=loss.get, reverse=True)
    sizes = [one.size for one in list_runs(several, sort="-size")]
    assert sizes == sorted(sizes, reverse=True)


def test_brackets_in_paths_are_no_markup(adam, tmp_path):
    """rich would leave out `[old]`, and end the command with an error at `[/x]`."""
    folder = tmp_path / "[old]" / "["
    shutil.copytree(str(adam), str(folder / "x]"))
    for file in (folder / "x]").glob("checkpoints/*/net.params"):
        file.unlink()
    code, told, err = command("checkpoints", folder / "x]")
    assert (code, err) == (0, "")
    assert f"{tmp_path}/[old]/[/x]/checkpoints" in told
    assert command("runs", folder)[1].splitlines()[1].startswith("x]  ")
    assert command("report", folder / "x]")[1] == f"page {tmp_path}/[old]/[/x]/report.html\n"


def test_an_unknown_column_is_answered(several):
    code, told, err = command("runs", several, "--sort", "-acuracy")
    assert (code, told) == (2, "")
    for text in ("unknown column to sort runs by 'acuracy': did you mean 'accuracy'?", "valid_loss", "seconds"):
        assert text in err


def test_nan_is_null_and_comes_last(several, tmp_path):
    for name, value in (("x", "null"), ("y", "0.5"), ("z", "Infinity")):  # before it was null, NaN was NaN
        shutil.copytree(str(several / "a"), str(tmp_path / name))
        (tmp_path / name / "scores.json").write_text(f'{{"test": {{"loss": {value}}}}}')
    assert [one.name for one in list_runs(tmp_path, sort="loss")] == ["y", "z", "x"]
    assert [one.name for one in list_runs(tmp_path, sort="-loss")] == ["z", "y", "x"]
    found = json.loads(command("runs", tmp_path, "--json", "--sort", "loss")[1])
    assert [one["name"] for one in found] == ["y", "z", "x"]
    assert [one["scores"]["loss"] for one in found] == [0.5, None, None]


def test_one_run_no_run_and_no_folder(several, tmp_path):
    assert [one.name for one in list_runs(several / "a")] == ["a"]
    assert command("runs", tmp_path)[:2] == (0, f"no run in {tmp_path}\n")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_a_line(several, tmp_path):
    shutil.copytree(str(several / "a"), str(tmp_path / "a"))
    (tmp_path / "a" / "recipe.yaml").chmod(0)
    assert "cannot be read" in list_runs(tmp_path)[0].reason
