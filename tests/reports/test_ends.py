"""Runs that ended early, or lack something: the page says so, and the rest is there."""

import json
import shutil

import mxkit
from mxkit.errors import TrapWarning
from mxkit.recipe.folder import write_state
from mxkit.recipe.run import run_recipe
from mxkit.reports.page import write_report
from mxkit.reports.run_files import read_run
import pytest

SECTIONS = ["Recipe", "Curves", "Epochs", "Predictions", "Layers", "Environment", "Checkpoints", "Log"]


@pytest.fixture
def shown(tmp_path, read_page):
    """A function that writes a run's page, and sees that every section is there."""

    def show(folder):
        page = read_page(write_report([folder], tmp_path / "page.html"))
        assert [one for one in page.headings if one in SECTIONS] == SECTIONS
        return page

    return show


def test_a_run_that_failed(failed, shown):
    assert read_run(failed).state.word == "failed"
    assert read_run(failed).state.reason.startswith("mxkit.errors.NonFiniteError: epoch 1, update 2: the loss is nan")
    page = shown(failed)
    assert "the loss is nan" in page.text
    assert "No epoch was ended." in page.text
    assert "There is no scores.json with numbers" in page.text
    assert "No confusion matrix and no mistakes: no whole checkpoint in" in page.text
    assert "The run has no checkpoint" in page.text
    assert page.tables["layers"][1][0] == "(net)"
    assert page.attributes("svg") == []
    assert page.tables["environment"]


@pytest.mark.parametrize(
    ("recipe", "changes", "reason"),
    [
        ("linear_regression", ["data.samples=100"], "the net gives quantities, of which none is a class"),
        ("siamese_digits", ["limit_batches=2"], "the net compares samples"),
    ],
)
def test_nets_that_do_not_classify(make_run, shown, recipe, changes, reason):
    run = make_run(recipe, "epochs=1", *changes)
    page = shown(run)
    assert f"No confusion matrix and no mistakes: {reason}" in page.text
    assert len(page.tables["epochs"]) == 2
    assert len(page.tables["layers"]) > 1
    scores = [one for one in json.loads((run / "scores.json").read_text())["test"].values() if isinstance(one, float)]
    assert [float(one) for one in page.values[: len(scores)]] == scores


def test_losses_that_are_nan(tmp_path, shown):
    settings = ["data.size=8", "model=mlp", "epochs=2", "optimizer={name: sgd, learning_rate: 1e30}"]
    settings.append("check_finite=false")
    with pytest.warns(TrapWarning, match="the losses of (valid|data) hold NaN or infinity"):
        run = run_recipe("digits_lenet", overrides=settings, output=tmp_path / "runs", progress=False)
    page = shown(run.folder)
    assert "nan" in page.values
    assert "No value is finite." in page.text
    assert "No confusion matrix and no mistakes: the net's outputs hold NaN or infinity" in page.text
    assert read_run(run.folder).state.word == "finished"


MODULE = """
import mxkit
from mxkit.data.splits import Splits

@mxkit.register("data")
def no_valid_part():
    found = mxkit.data.digits(8)
    return Splits(found.train, None, found.test, [])
"""


@pytest.fixture(scope="module")
def own(own_recipe, tmp_path_factory):
    """A recipe with a module of its own."""
    return own_recipe(tmp_path_factory.mktemp("own"), "report_parts", MODULE, data={"name": "no_valid_part"})


def test_data_without_validation_or_names_and_data_that_is_gone(own, tmp_path, shown):
    """As where a table was moved after the run; the recipe then names a file that is not there."""
    folder = run_recipe(own, output=tmp_path / "runs", progress=False).folder
    page = shown(folder)
    assert not [name for name in page.tables["epochs"][0] if name.startswith("valid")]
    assert page.tables["confusion"][0][1:-1] == list("0123456789")
    text = (folder / "recipe.yaml").read_text()
    assert "name: no_valid_part" in text
    gone = f"name: csv\n  path: {tmp_path / 'gone.csv'}\n  target: y"
    (folder / "recipe.yaml").write_text(text.replace("name: no_valid_part", gone))
    page = shown(folder)
    assert "No confusion matrix and no mistakes: the data cannot be read:" in page.text
    assert "gone.csv" in page.text
    assert page.tables["layers"][0][:3] == ["path", "type", "output"]
    assert len(page.attributes("svg")) == 4
    (folder / "net.json").unlink()
    assert "net.json is missing" in shown(folder).text


def test_a_recipe_of_names_that_nobody_knows_any_more(adam, copied, shown):
    folder = copied(adam)
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("name: softmax_ce", "name: forgotten") + "more: 1\n")
    page = shown(folder)
    assert "This mxkit does not know such a recipe" in page.text
    assert "more: unknown key" in page.text
    assert len(page.tables["epochs"]) == 3


def test_a_state_that_is_damaged_or_missing_is_told(adam, copied):
    folder = copied(adam)
    for content in ("{", "[]", '{"state": "asleep"}', '{"state": "running", "epoch": "1"}'):
        (folder / "state.json").write_text(content)
        run = read_run(folder)
        assert (run.state.word, len(run.problems)) == ("unknown", 1)
        assert run.problems[0].startswith("state.json ")
    (folder / "state.json").unlink()
    assert str(read_run(folder).state) == "unknown: it has no state.json"


def test_a_run_that_is_training_or_was_killed_without_checkpoint_and_environment(adam, copied, shown):
    folder = copied(adam)
    shutil.rmtree(str(folder / "checkpoints"))
    (folder / "environment.json").unlink()
    (folder / "scores.json").unlink()
    write_state(folder, "running", epoch=1, updates=11)
    recorded = json.loads((folder / "state.json").read_text())
    assert str(read_run(folder).state) == f"running?: epoch 1, update 11 at {recorded['changed']}"
    page = shown(folder)
    assert "epoch 1, update 11 at " in page.text
    assert "The folder has no environment.json" in page.text
    assert "Its log begins with: 20" in page.text
    assert "The run has no checkpoint" in page.text
    assert "no whole checkpoint in" in page.text
    assert len(page.tables["layers"]) > 3


def test_damaged_files_are_told(adam, copied, shown):
    folder = copied(adam)
    for content in ("{", "3", '{"epochs": [1], "stopped": null}', "\udcff"):
        for name in ("history.json", "scores.json", "environment.json"):
            (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))
        assert len(read_run(folder).problems) == 3
    page = shown(folder)
    assert page.text.count("history.json") >= 1
    assert page.tables["confusion"]


def test_a_damaged_checkpoint_is_told(adam, copied, shown):
    folder = copied(adam)
    for file in folder.glob("checkpoints/*/net.params"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(bytes(content))
    with pytest.warns(mxkit.errors.CheckpointWarning):
        page = shown(folder)
    assert "is damaged" in page.tables["checkpoints"][1][3]
    assert "No confusion matrix and no mistakes: no whole checkpoint" in page.text


def test_two_classes_by_one_output_and_several_labels(make_run, shown):
    page = shown(make_run("two_classes", "epochs=1"))
    rows = page.tables["confusion"]
    assert [row[0] for row in rows] == ["", "malignant", "benign", "precision"]
    assert sum(int(count) for row in rows[1:3] for count in row[1:3]) == 114
    assert "No pictures: the net's inputs have the shape (30,) and are no images" in page.text
    assert page.attributes("img") == []
    assert [one for one in page.items if "→" in one]
    page = shown(make_run("several_labels", "epochs=1"))
    rows = page.tables["label-counts"]
    assert [row[0] for row in rows[1:]] == ["even", "above 4", "prime", "has a loop"]
    assert {sum(map(int, row[1:5])) for row in rows[1:]} == {296}
