"""A recipe with mistakes raises one error that lists all of them, before anything is made."""

import gc
from pathlib import Path
import re
import sys
import textwrap

import mxkit
from mxkit.data import Split, Splits
from mxkit.errors import RecipeError, TrapWarning
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.net_facts import facts_of, read_facts
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import load_run, run_recipe
from mxkit.recipe.vocabulary import CALLBACKS, DATASETS, MODELS, STEPS
import numpy as np
import pytest
from recipe_parts import SMALL, prepared, refusal
from sharing import command, text_of

RECIPE = {key: value for key, value in SMALL.items() if key != "updates"}
RECIPE["epochs"] = 1


def problems(recipe, *overrides):
    """Path and rest of each line of the refusal."""
    lines = refusal(recipe, *overrides, check=prepared).splitlines()[1:]
    return dict(line.strip().split(": ", 1) for line in lines)


def test_five_mistakes_of_five_kinds_are_one_error(tmp_path):
    recipe = {**RECIPE, "data": {"name": "digits", "siz": 8}, "model": "lennet", "loss": "softmax_c"}
    recipe.update(accumulate=0, metrics=["acuracy"])
    text = text_of(RecipeError, mxkit.run_recipe, recipe, output=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    found = problems(recipe)
    assert list(found) == ["data.siz", "model.name", "loss.name", "accumulate", "metrics.0.name"]
    assert found.pop("accumulate").startswith(
        "expected a length like '4 batches' or '256 samples', or a number of batches"
    )
    for path in found:
        assert "did you mean" in found[path], path
        assert f"{path}: {found[path]}" in text


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
    data = {"name": "own", "cuont": 3, "augment": [{"name": "own", "amount": 1}]}
    found = problems({**RECIPE, "data": data, "callbacks": ["own"]})
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
            sys.settrace(None)
            entered.add("fit")
        entered.add(path)

    command(*words)  # imports everything
    gc.collect()
    gc.disable()  # what other tests left is not taken down here: generators would be entered
    sys.settrace(look)  # faster than a profile, which is told of C functions too
    try:
        command(*words)
    finally:
        sys.settrace(None)
        gc.enable()
    assert "fit" in entered
    own = {path for path in entered if path.split("/")[0] not in CALLED} - OF_THE_DATA - {"fit"}
    assert all(path.split("/")[0] in ("cli", "recipe") for path in own), own
    assert len(own) <= 8, sorted(own)


def test_numbers_of_the_optimizer_and_lengths_are_read_as_fit_reads_them():
    text = refusal({**RECIPE, "optimizer": {"name": "sgd", "learning_rate": -1}, "check_finite": "halt"})
    assert "\n  optimizer: optimizer 'sgd': learning_rate: expected a finite number" in text
    assert "\n  check_finite: input should be a valid boolean or 'stop'; received 'halt'" in text
    read = load_recipe({**RECIPE, "epochs": "7 updates", "accumulate": "48 samples", "check_finite": "stop"})
    assert (read.epochs, read.updates, read.accumulate, read.check_finite) == ("7 updates", None, "48 samples", "stop")
    assert load_recipe({**RECIPE, "epochs": "3 epochs"}).epochs == "3 epochs"
    with pytest.raises(RecipeError, match="epochs: "):
        load_recipe({**RECIPE, "epochs": "three"})


X = np.random.RandomState(0).rand(40, 5).astype(np.float32)
Y = (X @ np.arange(5, dtype=np.float32))[:, None]
WAY = r"return mxkit.data.Splits\(train=mxkit.data.Split\(x, y\), valid=None, test=mxkit.data.Split\(x, y\)\)"


class Rows:
    """A Dataset of vectors."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


class Pictures(Rows):
    """A Dataset of images as files hold them."""

    def __getitem__(self, index):
        return np.zeros((9 + index, 8, 3), np.uint8), 0


@pytest.fixture
def recipe():
    """A function that gives the recipe of a data function's result."""

    def make(result, **data):
        def own():
            return result

        mxkit.register("data", "own_data")(own)
        model = {"name": "mlp", "classes": 1, "hidden": [4]}
        return {
            "data": {"name": "own_data", **data}, "model": model, "loss": "l2", "optimizer": "adam", "epochs": 1
        }  # fmt: skip

    yield make
    DATASETS.pop("own_data", None)


def loader(size=8):
    return mxkit.data.ArrayLoader(X, Y, size)


@pytest.mark.parametrize(
    ("code", "settings", "expected"),
    [
        ("import sys; sys.exit()", {}, r"imports\.0: the module 'own_leaving_0' calls sys\.exit\(\) when"),
        (
            "import mxkit\n@mxkit.register('data')\ndef own_leaving_data(): raise SystemExit(3)",
            {"data": "own_leaving_data"},
            "data: SystemExit: 3",
        ),
    ],
)  # fmt: skip
def test_own_code_that_calls_exit_is_named(code, settings, expected, tmp_path):
    name = f"own_leaving_{len(settings)}"
    (tmp_path / f"{name}.py").write_text(code)
    recipe = {"imports": [name], "import_path": str(tmp_path), "data": "digits", "model": "mlp"}
    recipe.update(loss="softmax_ce", optimizer="sgd", epochs=1, **settings)
    with pytest.raises(RecipeError, match=expected):
        run_recipe(recipe, output=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    assert str(tmp_path) not in sys.path  # where modules are searched is as before


def test_vectors_need_no_augmentation_and_quantities_no_classes(recipe, tmp_path, capsys):
    run = run_recipe(recipe(Splits(Rows(), None, Rows())), output=tmp_path, progress=False)
    told = command("predict", run.folder, "1.png")[2]
    assert "error: images need a net trained on images; data 'own_data' has none" in told
    (lines,) = re.findall(r":\n((?:  .*\n){3})", told)
    exec(textwrap.dedent(lines).replace("RUN", str(run.folder)), {"x": X[:2]})  # what it says can be run
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert sorted(run.scores) == ["loss"]
    assert load_run(run.folder)[0].data.name == "own_data"
    with pytest.raises(RecipeError, match="data.eval_augment: is missing: images of own_data are files of any size"):
        run_recipe(recipe(Splits(Pictures(), None, Pictures())), output=tmp_path, progress=False)


S = Split(X, Y)
PIXELS = (X * 255).astype("uint8")[:, :, None, None]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (((X, Y), (X, Y)), f"data: own_data returned a tuple; expected mxkit.data.Splits: {WAY}"),
        (None, "data: own_data returned a NoneType; expected mxkit.data.Splits"),
        (S, "data: own_data returned a Split; expected mxkit.data.Splits"),
        (Splits((X, Y), None, S), f"own_data gives train as a tuple; expected a Split of .*{WAY}"),
        (Splits(S, X, S), "own_data gives valid as a ndarray; expected a Split"),
        (Splits(None, None, S), "own_data gives train as a NoneType; expected a Split"),
        (Splits(S, None, 3), "own_data gives test as a int; expected a Split"),
        (Splits(Split(X, Y[:-1]), None, S), r"train as a Split of ndarray \(40, 5\), ndarray \(39, 1\); exp"),
        (Splits(Split(X.tolist(), Y), None, S), r"train as a Split of list, ndarray \(40, 1\); expected"),
        (Splits(Split(PIXELS, Y), None, Split(X[:, :, None, None], Y)), "x of train as uint8 and x of test as float32"),
        (Splits(S, None, None), "evaluate.split: this part of the data has no sample; received 'test'"),
    ],
)
def test_what_is_no_data_is_refused_with_the_way_out(recipe, tmp_path, result, expected):
    with pytest.raises(RecipeError, match=expected) as caught:
        run_recipe(recipe(result), output=tmp_path / "runs", progress=False)
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "runs").exists()


def test_parts_that_lack_a_class_and_outputs_without_one_are_told(recipe):
    labels = np.arange(40) % 2
    content = recipe(Splits(Split(X, labels), Split(X[:9], labels[:9]), Split(X[::8], labels[::8]), ["a", "b"]))
    mxkit.register("model", "own_net")(lambda: mxkit.models.mlp(7))
    for model, path, outputs in [
        ({"name": "mlp", "classes": 5}, "model.classes", 5),
        ("mlp", "model.classes", 10),  # by default
        ("own_net", "model", 7),  # without such an argument
        ({"name": "mlp", "finetune": {"classes": 3, "head": "2"}}, "model.finetune.classes", 3),
    ]:
        with pytest.warns(TrapWarning) as caught:
            prepared({**content, "loss": "label_smoothing", "model": model})
        told = sorted(str(warning.message) for warning in caught)
        assert len(told) == 2
        text = "data own_data: test has 5 samples, and none of b: scores over such a part say little. Cut the parts"
        assert told[0].startswith(text)
        assert f": {path}: the net has {outputs} outputs, the data 2 classes, a, b; {outputs - 2} outputs" in told[1]
        assert told[1].endswith(f"Expected 2: --set {path}=2" if path != "model" else "Expected 2")
    del MODELS["own_net"]


@pytest.mark.parametrize(
    ("data", "overrides"),
    [
        ({"batch_size": 32}, []),
        ({}, ["data.batch_size=64"]),
        ({}, ["data.eval_batch_size=7"]),
        ({"drop_last": True}, []),
        ({"workers": "thread:2"}, []),
        ({"eval_augment": ["to_tensor"]}, []),
    ],
)
def test_keys_that_loaders_of_their_own_make_no_use_of_are_refused(recipe, tmp_path, data, overrides):
    key = overrides[0].split("=")[0] if overrides else f"data.{next(iter(data))}"
    way = "batch_size" if key == "data.batch_size" else "such an argument"
    with pytest.raises(RecipeError, match=rf"{key}: has no effect: own_data returns loaders .*function take {way}"):
        run_recipe(
            recipe(Splits(loader(), None, loader()), **data), overrides=overrides, output=tmp_path, progress=False
        )
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_takes_batch_size_is_given_it(recipe, tmp_path):
    sizes, content = [], recipe(None)

    def own(batch_size: int = 8):
        sizes.append(batch_size)
        return Splits(loader(batch_size), None, Split(X, Y))

    DATASETS["own_data"] = own
    run = run_recipe(content, overrides=["data.batch_size=20"], output=tmp_path, progress=False)
    assert sizes == [20]
    assert run.history[-1]["updates"] == 2


def test_a_look_at_the_data_changes_nothing_of_it(recipe):
    """The shapes for net.json are read before training begins."""
    shuffled = mxkit.data.ArrayLoader(X, Y, 8, shuffle=True, seed=3)
    loaded = load_recipe({**recipe(Splits(shuffled, None, shuffled))})
    facts = facts_of(loaded, load_data(loaded))
    assert facts.inputs == [((1, 5), "float32")]
    fresh = mxkit.data.ArrayLoader(X, Y, 8, shuffle=True, seed=3)
    for (a, _), (b, _) in zip(shuffled, fresh):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


def test_what_can_be_read_once_is_not_read_for_its_shapes(recipe, tmp_path):
    def once():
        yield from loader()

    run = run_recipe(recipe(Splits(loader(), None, once())), output=tmp_path, progress=False)
    whole = mxkit.evaluate(run.net, loader(), loss="l2")
    assert run.scores["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    with pytest.raises(RecipeError, match="the shapes of the net's inputs are not known"):
        read_facts(run.folder).sample()


def test_splits_are_told_whatever_their_parts_are():
    assert repr(Splits(Split(X, Y), None, loader())) == (
        "Splits(train 40, valid no, test loader of unknown samples of shape (5,) float32)"
    )
    assert repr(Splits(Rows(), Rows(), None, ["a", "b"])) == "Splits(train 40, valid 40, test no samples, 2 classes)"
    assert Splits(Split(X, Y), None, Split(X, Y)).classes == []
