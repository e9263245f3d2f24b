"""Tables of the command as JSON, the cache, and new projects."""

from json import loads
import os
from pathlib import Path

from mxkit.data.download import CacheEntry
from mxkit.nets.layer_table import Layer
from mxkit.reports.run_files import ListedRun
from mxkit.storage.directory import Listed, Pruned
import pytest
from sharing import command, image_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return image_run(tmp_path_factory.mktemp("json"))


def answer(*arguments):
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    return loads(out)


def test_tables_have_the_fields_of_the_objects(run, monkeypatch, tmp_path):
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    (tmp_path / "datasets" / "own").mkdir(parents=True)
    assert set(answer("cache")[0]) == set(CacheEntry._fields)
    assert answer("cache", "clean") == []
    assert set(answer("runs", run.parent)[0]) == set(ListedRun._fields)
    listed = answer("checkpoints", run)
    assert set(listed[0]) == set(Listed._fields)
    assert answer("checkpoints", "verify", run) == listed
    assert set(answer("checkpoints", "prune", run)) == set(Pruned._fields)

    table = answer("layers", run)
    assert set(table["layers"][0]) == set(Layer._fields)
    assert sum(row["own_parameters"] for row in table["layers"]) == table["parameters"]
    assert table["layers"][0]["outputs"] == [[1, 2]]


def test_scores_and_shapes(run, tmp_path):
    scores = answer("evaluate", run)
    assert scores == loads((run / "scores.json").read_text(encoding="utf-8"))
    image = next(Path(run.parents[1] / "photos").rglob("*.png"))
    shapes = answer("features", run, image, "--layers", "0", "--out", tmp_path)
    assert [shape[:2] for shape in shapes.values()] == [[1, 20]]


def test_an_export_with_its_rows(run, tmp_path):
    exported = answer("export", run, tmp_path / "net")
    assert Path(exported["files"]["symbol"]).is_file()
    assert {"name", "relative"} <= set(exported["proof"]["rows"][0])


def test_recorded_scores_where_the_data_is_missing(run):
    (run.parents[1] / "photos").rename(run.parents[1] / "gone")
    try:
        code, out, _ = command("evaluate", run, "--json")
    finally:
        (run.parents[1] / "gone").rename(run.parents[1] / "photos")
    assert (code, set(loads(out))) == (1, {"test"})


def test_a_profile(tmp_path):
    profile = answer("profile", "mlp", "--set", "data.name=digits", "--updates", 2, "--out", tmp_path)
    assert profile == loads((tmp_path / "profile.json").read_text(encoding="utf-8"))


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("MXNET_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    (folder / "datasets" / "own").mkdir(parents=True)
    (folder / "datasets" / "own" / "a.bin").write_bytes(b"x" * 2_000_000)
    (folder / "models").mkdir()
    leftover = folder / "models" / ".net.params.part"
    leftover.write_bytes(b"y" * 10)
    os.utime(str(leftover), (1e9, 1e9))  # one that was written to just now may still be running
    return folder


def test_lists_and_cleans(home):
    code, out, err = command("cache")
    assert (code, err) == (0, "")
    assert [word in out for word in ("own", "2.0 MB", "unknown", "partial")] == [True] * 4
    assert out.splitlines()[-1].endswith(f"new files go to {home}")

    code, out, _ = command("cache", "clean", "--dry-run")
    assert code == 0
    assert "would delete" in out
    assert (home / "models" / ".net.params.part").exists()
    code, out, _ = command("cache", "clean")
    assert code == 0
    assert ".net.params.part" in out
    assert not (home / "models" / ".net.params.part").exists()
    assert (home / "datasets" / "own" / "a.bin").exists()


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
    done = forks.run("pytest:main", ["-p", "no:cacheprovider"], folder=project)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
