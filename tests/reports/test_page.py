"""The page of a run: whole, self-contained, escaped, and with the run's own numbers."""

import base64
import csv
import io
import json
import re

import mxkit
from mxkit.data import digits
from mxkit.recipe.run import load_run, run_recipe
from mxkit.reports.page import _predictions_view, write_report
from mxkit.reports.predictions import Predictions
import numpy as np
from PIL import Image
import pytest
from sharing import command
from sklearn.metrics import confusion_matrix

SECTIONS = ["Recipe", "Curves", "Epochs", "Predictions", "Layers", "Environment", "Checkpoints", "Log"]


@pytest.fixture(scope="module")
def page(adam, read_page, tmp_path_factory):
    return read_page(write_report([adam], tmp_path_factory.mktemp("page") / "a.html"))


def test_the_page_lies_in_the_run_or_where_it_is_asked_for(failed, tmp_path):
    assert command("report", failed)[:2] == (0, f"page {failed / 'report.html'}\n")
    assert (failed / "report.html").is_file()
    assert write_report([failed], tmp_path) == tmp_path / "report.html"
    assert write_report([failed], tmp_path / "new" / "page.html").is_file()


def test_every_section_is_there(page, adam):
    assert [one for one in page.headings if one in SECTIONS] == SECTIONS
    assert page.headings[0] == adam.name
    assert "finished" in page.text
    assert "LeNet on scikit-learn's handwritten digits" in page.text


def test_nothing_is_fetched_and_nothing_runs(page):
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    addresses = [
        one[key] for _, one in page.tags for key in ("src", "href", "xlink:href", "action", "data") if key in one
    ]
    assert addresses
    assert all(one.startswith(("data:image/png;base64,", "#")) for one in addresses)
    assert not [key for _, one in page.tags for key in one if key.startswith("on")]
    assert not re.search(r"@import|url\((?!#)", page.source)
    policy = next(one["content"] for one in page.attributes("meta") if "http-equiv" in one)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_no_two_parts_of_the_pictures_share_a_name(page):
    names = [one["id"] for _, one in page.tags if "id" in one]
    assert len(names) == len(set(names)) > 0
    assert {one["xlink:href"][1:] for _, one in page.tags if "xlink:href" in one} <= set(names)


def test_scores_and_epochs_are_the_files_to_the_last_digit(adam, page):
    scores = json.loads((adam / "scores.json").read_text())["test"]
    assert [float(one) for one in page.values[:2]] == [scores["loss"], scores["accuracy"]]
    with (adam / "history.csv").open() as file:
        rows = list(csv.reader(file))
    head, *shown = page.tables["epochs"]
    assert [name.replace(" ", "_") for name in head] == rows[0]
    assert len(shown) == 2
    values = page.values[2 : 2 + 2 * len(head)]
    assert [float(one) for one in values] == [float(one) for row in rows[1:] for one in row]


def test_the_curves_are_those_of_the_history(adam, page):
    rows = json.loads((adam / "history.json").read_text())["epochs"]
    legends = [one for one in page.items if one.startswith(("train", "valid"))]
    assert legends == [
        f"{part} {rows[-1][f'{part}_{name}']:.4f}" for name in ("loss", "accuracy") for part in ("train", "valid")
    ]
    assert len(page.attributes("svg")) == 4
    for title in ("loss", "accuracy", "learning rate, after the epoch", "samples per second, in training"):
        assert title in page.text


def oracle(folder):
    """Labels and logits of the test part, by the public calls."""
    recipe, net = load_run(folder)
    test = digits(8).test
    return test, mxkit.predict(net, test.x).asnumpy()


def test_the_confusion_matrix_is_scikit_learns(adam, page):
    test, scores = oracle(adam)
    expected = confusion_matrix(test.y, scores.argmax(axis=1))
    head, *rows = page.tables["confusion"]
    assert head[1:-1] == list("0123456789")
    assert [[int(one) for one in row[1:-1]] for row in rows[:-1]] == expected.tolist()
    assert [row[-1] for row in rows[:-1]] == [f"{one:.2f}" for one in expected.diagonal() / expected.sum(axis=1)]
    guessed = expected.sum(axis=0)
    wanted = [f"{right / total:.2f}" if total else "-" for right, total in zip(expected.diagonal(), guessed)]
    assert rows[-1][1:-1] == wanted
    accuracy = json.loads((adam / "scores.json").read_text())["test"]["accuracy"]
    assert expected.trace() / expected.sum() == pytest.approx(accuracy)
    assert f"{expected.trace()} of 296 samples of the test part are right" in page.text


def test_the_worst_mistakes_are_the_surest_ones(adam, page):
    test, scores = oracle(adam)
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    sure = powers / powers.sum(axis=1, keepdims=True)
    guess = scores.argmax(axis=1)
    wrong = [number for number in range(len(guess)) if guess[number] != test.y[number]]
    worst = sorted(wrong, key=lambda number: -sure[number, guess[number]])[:24]
    shown = [one for one in page.items if "→" in one]
    assert len(worst) == 24
    for item, number in zip(shown, worst):
        share = 100 * sure[number, guess[number]]
        assert item == f"{test.y[number]} → {guess[number]}{share:.1f} %, no. {number}"
    check_pictures(page, worst)


def check_pictures(page, numbers, tolerance=0):
    pictures = page.attributes("img")
    assert len(pictures) == len(numbers) == 24
    for picture, number in zip(pictures, numbers):
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["src"].split(",")[1]))))
        assert abs(image[..., 0] - (digits(8).test.x[number, 0] * 255).round()).max() <= tolerance


def test_pictures_of_normalized_images_are_the_images(make_run, tmp_path, read_page):
    steps = "[to_tensor, {name: normalize, mean: [0.3], std: [0.5]}]"
    settings = ["data.size=8", "model={name: mlp, hidden: [16]}", "epochs=1", f"data.eval_augment={steps}"]
    page = read_page(write_report([make_run("digits_lenet", *settings)], tmp_path / "page.html"))
    check_pictures(page, [int(one.rpartition(" ")[2]) for one in page.items if "→" in one], tolerance=1)


def test_layers_environment_checkpoints_and_log(adam, page):
    _, net = load_run(adam)
    table = mxkit.layers(net, (1, 1, 8, 8))
    assert [row[0] for row in page.tables["layers"][1:]] == [row.path or "(net)" for row in table]
    (environment,) = json.loads((adam / "environment.json").read_text())
    shown = dict(page.tables["environment"])
    assert list(shown) == [key for key in environment if key != "distributions"]  # a table of hundreds
    assert shown["platform"] == environment["platform"]
    assert f"MXNet {environment['versions']['MXNet']}" in shown["versions"]
    assert shown["features"] == ", ".join(environment["features"])
    assert [row[0] for row in page.tables["checkpoints"][1:]] == ["step-00000044", "step-00000022"]
    assert {row[3] for row in page.tables["checkpoints"][1:]} == {"whole"}
    assert (adam / "log.txt").read_text().strip() in page.text


EVIL = "<script>alert(1)</script>"
MODULE = f"""
import mxkit
from mxkit.data.splits import Splits

@mxkit.register("data")
def hostile_digits():
    found = mxkit.data.digits(8)
    return found._replace(classes=["{EVIL}" + str(number) for number in range(10)])
"""


def test_what_users_and_files_say_is_escaped(own_recipe, tmp_path, read_page):
    changes = {"description": EVIL, "data": {"name": "hostile_digits"}, "epochs": 1}
    recipe = own_recipe(tmp_path, "hostile_names", MODULE, **changes)
    folder = run_recipe(recipe, output=tmp_path / "runs", progress=False).folder
    with (folder / "log.txt").open("a") as file:
        file.write(f"2026-01-01 00:00:00  {EVIL}\n")
    environment = json.loads((folder / "environment.json").read_text())
    environment[0]["variables"]["MXNET_EVIL"] = EVIL
    (folder / "environment.json").write_text(json.dumps(environment))
    history = json.loads((folder / "history.json").read_text())
    history["epochs"][0][f"valid_{EVIL}"] = 0.5
    (folder / "history.json").write_text(json.dumps(history))
    for several in ([folder], [folder, folder]):
        page = read_page(write_report(several, tmp_path / "page.html"))
        assert "script" not in {tag for tag, _ in page.tags}
        assert page.text.count(EVIL) > 20
        assert page.tables["confusion"][0][1] == f"{EVIL}0"


def test_many_classes_are_told_as_pairs():
    matrix = np.diag(np.full(40, 5))
    matrix[3, 7], matrix[9, 1] = 4, 2
    view = _predictions_view(Predictions("test", [f"c{number}" for number in range(40)], matrix, []), [])
    assert not view["as_matrix"]
    assert view["pairs"] == [("c3", "c7", 4, 4 / 9), ("c9", "c1", 2, 2 / 7)]


@pytest.mark.parametrize(
    ("folders", "text"), [(["none"], "expected a folder with"), ([""], "recipe.yaml is missing"), ([], "at least one")]
)
def test_what_is_no_run_is_refused(tmp_path, folders, text):
    with pytest.raises(mxkit.errors.RecipeError, match=text):
        write_report([tmp_path / name for name in folders])
    assert list(tmp_path.iterdir()) == []
