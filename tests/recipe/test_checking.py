"""Recipes are refused in one place: every mistake in one error, each with its dotted path, before anything is made."""

import gc
from pathlib import Path
import sys

import mxkit
from mxkit.data import Split, Splits
from mxkit.errors import RecipeError
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.vocabulary import CALLBACKS, DATASETS, MODELS, STEPS
import numpy as np
import pytest
from recipe_parts import SMALL, prepared, refusal
from sharing import command

RECIPE = {key: value for key, value in SMALL.items() if key != "updates"}
RECIPE["epochs"] = 1


def problems(recipe, *overrides):
    """Path and rest of each line of the refusal."""
    lines = refusal(recipe, *overrides, check=prepared).splitlines()[1:]
    return dict(line.strip().split(": ", 1) for line in lines)


def test_five_mistakes_of_five_kinds_are_one_error(tmp_path):
    recipe = {
        **RECIPE,
        "data": {"name": "digits", "siz": 8},
        "model": "lennet",
        "loss": "softmax_c",
        "accumulate": 0,
        "metrics": ["acuracy"],
    }
    with pytest.raises(RecipeError) as caught:
        mxkit.run_recipe(recipe, output=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    found = problems(recipe)
    assert list(found) == ["data.siz", "model.name", "loss.name", "accumulate", "metrics.0.name"]
    assert found.pop("accumulate").startswith(
        "expected a length like '4 batches' or '256 samples', or a number of batches"
    )
    for path in found:
        assert "did you mean" in found[path], path
        assert f"{path}: {found[path]}" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # a value that only its maker can judge, beside one of a wrong type
        ({"schedule": {"name": "cosine", "warmup": "5 epcohs"}, "seed": "x"}, ["seed", "schedule"]),
        # nothing is said of what follows from a mistake: no metric stands at 0, no number of epochs is missing
        ({"metrics": [3, "acuracy"], "epochs": 0}, ["epochs", "metrics.0", "metrics.1.name"]),
        ({"checkpoints": {"keep_best": ["loss", "least"]}, "evaluate": {"which": "best"}}, ["checkpoints.keep_best.1"]),
        ({"freeze": [3], "imports": ["../own"], "loss": "own_loss"}, ["imports.0", "freeze.0"]),
        ({"model": {"name": "mlp", "hidden": ["${width}"], "clases": 3}}, ["model.hidden.0", "model.clases"]),
        ({"loss": 3, "optimizer": None}, ["loss", "optimizer"]),
        ({"schedule": "cosine", "callbacks": [{"name": "plateau", "monitor": "train_loss", "mode": "min"}]},
         ["schedule"]),
        ({"model": {"name": "mlp", "finetune": {"classes": "x", "freze": 1}}},
         ["model.finetune.classes", "model.finetune.freze"]),
        ({"callbacks": ["ema", {"name": "early_stopping", "mode": "min"}], "amp": "float8"},
         ["amp", "callbacks.1.monitor", "callbacks.1.patience"]),
    ],
)  # fmt: skip
def test_what_is_right_is_checked_beside_what_is_wrong(changes, expected):
    assert sorted(problems({**RECIPE, **changes})) == sorted(expected)


@pytest.fixture
def own():
    """Own names of each kind, forgotten afterwards."""
    tables = {"data": DATASETS, "callback": CALLBACKS, "augment": STEPS, "model": MODELS}
    made = []

    def register(kind, function):
        mxkit.register(kind, "own")(function)
        made.append(tables[kind])

    yield register
    for table in made:
        del table["own"]


def test_own_parts_that_are_used_wrongly_are_refused_together(own):
    def data(path: str, count: int = 3):
        raise AssertionError("it is not called")

    own("data", data)
    own("callback", lambda: print)
    own("augment", lambda amount: None)
    recipe = {
        **RECIPE,
        "data": {"name": "own", "cuont": 3, "augment": [{"name": "own", "amount": 1}]},
        "callbacks": ["own"],
    }
    found = problems(recipe)
    assert set(found) == {"data.cuont", "data.path", "data.augment.0", "callbacks.0"}
    assert "did you mean 'count'?" in found["data.cuont"]
    assert found["data.path"] == "is missing"
    assert "expected a function of (image, rng); received None" in found["data.augment.0"]
    assert "expected objects of mxkit.Callback, not classes; received <built-in function print>" in found["callbacks.0"]


def test_what_only_the_data_can_tell_is_told_together(own):
    x, y = np.zeros((4, 3, 1, 1), "float32"), np.arange(4)
    own("data", lambda: Splits(Split(x, y), Split(x.astype("uint8"), y), None, ["a", "b", "c"]))
    text = refusal({**RECIPE, "data": "own", "model": {"name": "mlp", "classes": 2}, "freeze": ["9.*"]}, check=prepared)
    assert "freeze.0: no parameter fits '9.*'" in text  # what the net refuses is in the same error
    assert "evaluate.split: this part of the data has no sample; received 'test'; accepted: train, valid" in text
    assert "model.classes: the data has 3 classes, a, b, c; received 2; expected 3" in text
    assert "data: own gives x of train as float32 and x of valid as uint8" in text
    assert "data: own names 3 classes, a, b, c; the labels of train go up to 3" in text


def test_what_only_the_net_can_tell_is_told_together(own):
    found = problems(RECIPE, "freeze=['1.wieght', '9.*']", "optimizer.multipliers={'3.*': {lr: 1}}")
    assert list(found) == ["freeze.0", "freeze.1", "optimizer.multipliers.3.*"]
    own("model", lambda: 3)
    assert problems({**RECIPE, "model": "own"}) == {"model": "TypeError: expected a Block; received a int"}


def test_an_alias_stands_for_its_value(tmp_path):
    text = "base: digits_lenet\nmetrics: &m [accuracy]\nevaluate: {metrics: *m}\n"
    (tmp_path / "a.yaml").write_text(text)
    assert load_recipe(tmp_path / "a.yaml").evaluate.metrics[0].name == "accuracy"


# Rooms whose files a recipe's plan enters as a user's script does that makes the same calls.
CALLED = {"core", "data", "distributed", "losses", "metrics", "models", "nets", "runtime", "storage", "training"}
# It looks at what the data gave, and at parameters of the net.
OF_THE_DATA = {"recipe/data_checks.py"}


def test_a_recipe_passes_few_files_from_the_command_to_fit(tmp_path):
    root = Path(mxkit.__file__).parent
    settings = ["--set", "data.size=8", "--set", "model=softmax_regression", "--set", "epochs=1", "--quiet"]
    words = ["train", "digits_lenet", *settings, "--output", str(tmp_path)]
    entered = set()

    def look(frame, event, _):
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or not code.co_filename.startswith(f"{root}/"):
            return
        path = code.co_filename[len(f"{root}/") :]
        if (path, code.co_name) == ("training/loop.py", "fit"):
            sys.setprofile(None)
            entered.add("fit")
        entered.add(path)

    command(*words)  # imports everything
    gc.collect()
    gc.disable()  # what other tests left is not taken down here: generators would be entered
    sys.setprofile(look)
    try:
        command(*words)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert "fit" in entered
    own = {path for path in entered if path.split("/")[0] not in CALLED} - OF_THE_DATA - {"fit"}
    assert all(path.split("/")[0] in ("cli", "recipe") for path in own), own
    assert len(own) <= 8, sorted(own)


def test_numbers_of_the_optimizer_and_lengths_are_read_as_fit_reads_them():
    text = refusal({**RECIPE, "optimizer": {"name": "sgd", "learning_rate": -1}, "check_finite": "halt"})
    assert "\n  optimizer: optimizer 'sgd': learning_rate: expected a finite number" in text
    assert "\n  check_finite: expected true, false or stop; received 'halt'" in text
    read = load_recipe({**RECIPE, "epochs": "7 updates", "accumulate": "48 samples", "check_finite": "stop"})
    assert (read.epochs, read.updates, read.accumulate, read.check_finite) == ("7 updates", None, "48 samples", "stop")
    assert load_recipe({**RECIPE, "epochs": "3 epochs"}).epochs == "3 epochs"
    with pytest.raises(RecipeError, match="epochs: "):
        load_recipe({**RECIPE, "epochs": "three"})
