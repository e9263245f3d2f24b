"""Every table of the command as JSON, which stands alone on standard output."""

from json import loads
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
