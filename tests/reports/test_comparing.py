"""Runs side by side: what their recipes say differently, curves in one picture, the best marked."""

import json

from mxkit.reports.comparing import COLOURS, Compared, compared_scores, direction, panels, recipe_differences
from mxkit.reports.page import write_report
from mxkit.reports.run_files import read_run
from sharing import command


def test_the_page_of_several_runs_lies_here(adam, sgd, tmp_path, monkeypatch, read_page):
    monkeypatch.chdir(tmp_path)
    assert command("report", adam, sgd)[:2] == (0, "page report.html\n")
    page = read_page(tmp_path / "report.html")
    assert page.headings[:4] == ["2 runs compared", "Scores", "Curves", "Recipes"]
    head, *lines = page.tables["compared scores"]
    assert head[1:] == [adam.name, sgd.name]
    shown = {line[0]: line[1:] for line in lines}
    scores = [json.loads((run / "scores.json").read_text())["test"] for run in (adam, sgd)]
    assert shown["test accuracy"] == [f"{one['accuracy']:.4f}" for one in scores]
    assert [float(one) for one in page.values[:2]] == [one["loss"] for one in scores]
    best = [line[0] for line in lines if line[1:] and line[0].startswith("test")]
    marked = sum("best" in (one.get("class") or "") for one in page.attributes("td"))
    assert best == ["test loss", "test accuracy"]
    assert marked >= 2
    assert len(page.attributes("svg")) == 4
    assert page.text.count("Confusion matrix") == 2


def test_differences_are_those_of_the_two_recipes(adam, sgd):
    found = {line.name: line.values for line in recipe_differences([read_run(adam), read_run(sgd)])}
    assert found == {
        "seed": ["0", "1"],
        "optimizer.name": ["adam", "sgd"],
        "optimizer.learning_rate": ["0.001", "0.1"],
        "checkpoints.keep_best": ["null", "[valid_accuracy, max]"],
    }
    assert recipe_differences([read_run(adam), read_run(adam)]) == []


def test_three_runs_of_which_one_is_a_regression_and_one_has_failed(adam, regression, failed, tmp_path, read_page):
    runs = [adam, regression, failed]
    page = read_page(write_report(runs, tmp_path / "page.html"))
    shown = {line[0]: line[1:] for line in page.tables["compared scores"]}
    assert shown["state"] == ["finished", "finished", "failed"]
    assert shown["epochs"] == ["2", "1", "0"]
    assert shown["test accuracy"][1:] == ["", ""]
    assert shown["test mse"][0] == ""
    rows = {line[0]: line[1:] for line in page.tables["compared differences"]}
    assert rows["data.name"] == ["digits", "made_linear", "digits"]
    assert rows["data.size"] == ["8", "(not said)", "8"]


def test_each_run_has_one_colour_and_training_is_dashed(adam, sgd):
    loss = panels([read_run(adam), read_run(sgd)])[0]
    assert [(line.colour, line.dashed) for line in loss.lines] == [
        (COLOURS[0], True), (COLOURS[0], False), (COLOURS[1], True), (COLOURS[1], False),
    ]  # fmt: skip
    rows = json.loads((sgd / "history.json").read_text())["epochs"]
    assert loss.lines[3].points == [(row["epoch"], row["valid_loss"]) for row in rows]
    assert loss.lines[3].label == f"{sgd.name} valid"


def _with_scores(run, **scores):
    return run._replace(scores={"test": scores}, rows=[])


def test_the_best_is_marked_only_where_it_is_known(adam, sgd):
    one, other = read_run(adam)._replace(recipe={}), read_run(adam)._replace(recipe={})
    runs = [
        _with_scores(one, loss=0.5, accuracy=0.5, own=1.0, f1=0.1),
        _with_scores(other, loss=0.2, accuracy=0.7, own=2.0, f1=0.1),
    ]
    assert compared_scores(runs) == [
        Compared("test loss", [0.5, 0.2], [1]),
        Compared("test accuracy", [0.5, 0.7], [1]),
        Compared("test own", [1.0, 2.0], []),
        Compared("test f1", [0.1, 0.1], []),
    ]
    told = {"checkpoints": {"keep_best": ["valid_own", "min"]}}
    runs = [run._replace(recipe=told) for run in runs]
    assert compared_scores(runs)[2] == Compared("test own", [1.0, 2.0], [0])
    broken = [_with_scores(one, loss=float("nan")), _with_scores(other, loss=2.0), _with_scores(other, loss=3.0)]
    assert compared_scores(broken)[0].best == [1]


def test_what_was_measured_otherwise_is_not_ranked(adam):
    run = read_run(adam)

    def best(*recipes):
        runs = [
            _with_scores(run, loss=float(place), accuracy=place / 9)._replace(recipe=one)
            for place, one in enumerate(recipes)
        ]
        return [line.best for line in compared_scores(runs)]

    plain = run.recipe
    assert best(plain, plain) == [[0], [1]]
    training = {"batch_size": 7, "augment": [{"name": "flip"}]}
    assert best(plain, {**plain, "data": {**plain["data"], **training}}) == [[0], [1]]
    assert best(plain, {**plain, "data": {**plain["data"], "size": 28}}) == [[], []]
    assert best(plain, {**plain, "loss": {"name": "other"}}) == [[], [1]]


def test_every_number_that_a_metric_of_mxkit_gives_has_a_direction():
    from mxkit.metrics import METRICS, get_metric

    names = [get_metric(name).name for name in METRICS if name != "confusion"]
    lower = ("cross-entropy", "mae", "mse", "perplexity", "rmse")
    assert [direction(f"test {name}") for name in names] == [min if name in lower else max for name in names]
    assert direction("test loss") is min
    assert direction("last epoch: valid_top_3_accuracy") is max
