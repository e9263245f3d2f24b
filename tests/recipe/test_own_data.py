"""Data functions of a user's own: what they may return, and the way out where they return something else."""

import re
import textwrap

import mxkit
from mxkit.data import Split, Splits
from mxkit.errors import RecipeError, TrapWarning
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.net_facts import facts_of, read_facts
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import load_run, run_recipe
from mxkit.recipe.vocabulary import DATASETS
import numpy as np
import pytest
from sharing import command

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


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (((X, Y), (X, Y)), rf"data: own_data returned a tuple of 2; expected mxkit.data.Splits: {WAY}"),
        (None, "data: own_data returned a NoneType; expected mxkit.data.Splits"),
        (Split(X, Y), "data: own_data returned a Split of 2; expected mxkit.data.Splits"),
        (Splits((X, Y), None, (X, Y)), rf"own_data gives train as a tuple; expected mxkit.data.Split.*{WAY}"),
        (Splits(Split(X, Y), X, Split(X, Y)), "own_data gives valid as a ndarray; expected mxkit.data.Split"),
        (Splits(None, None, Split(X, Y)), "own_data gives train as a NoneType; expected mxkit.data.Split"),
        (Splits(Split(X, Y), None, 3), "own_data gives test as a int; expected mxkit.data.Split"),
        (Splits(Split(X, Y[:-1]), None, Split(X, Y)), r"train as a Split of ndarray \(40, 5\), ndarray \(39, 1\); exp"),
        (Splits(Split(X.tolist(), Y), None, Split(X, Y)), r"train as a Split of list, ndarray \(40, 1\); expected"),
        (
            Splits(Split((X * 255).astype("uint8")[:, :, None, None], Y), None, Split(X[:, :, None, None], Y)),
            "data: own_data gives x of train as uint8 and x of test as float32; batches divide images of uint8 by 255",
        ),
        (
            Splits(Split(X, np.arange(40) % 2), None, Split(X, np.arange(40) % 2), ["a"]),
            "own_data names 1 classes, a; the labels of train go up to 1; expected labels from 0 to 0: name every",
        ),
        (
            Splits(Split(X, np.arange(40) % 2), None, Split(X, np.arange(40) % 3), ["a", "b"]),
            "own_data names 2 classes, a, b; the labels of test go up to 2",
        ),
        (Splits(Split(X, Y), None, None), "evaluate.split: this part of the data has no sample; received 'test'"),
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
    content.update(loss="softmax_ce", model={"name": "mlp", "classes": 5})
    with pytest.warns(TrapWarning) as caught:
        load_data(load_recipe(content))
    told = [str(warning.message) for warning in caught]
    assert len(told) == 2
    assert "model.classes: the net has 5 outputs, the data 2 classes, a, b; 3 outputs have no sample" in told[0]
    assert told[0].endswith("--set model.classes=2")
    text = "data own_data: test has 5 samples, and none of b: scores over such a part say little. Cut the parts"
    assert told[1].startswith(text)


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


def test_lines_that_a_user_may_get_wrong_end_without_a_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file")
    short = ["--set", "data.size=8", "--set", "model=mlp", "--set", "epochs=1", "--quiet"]
    lines = [
        (["train", "digits_lenet", *short, "--output", place], 1, "Not a directory"),
        (["train", "digits_lenet", *short, "--set", "loss=l2", "--output", str(tmp_path)], 1, "error: "),
        (["report", str(tmp_path / "nowhere")], 2, "is no folder of a run"),
        (["predict", place, place], 2, "is no folder of a run"),
        (["evaluate", str(tmp_path), "--which", "newest"], 2, "expected last or best; received 'newest'"),
        (["cache", "clean", "--name", "nothing of that name"], 2, "there is no"),
        (["checkpoints", place], 1, "is no folder of a run, and no directory of checkpoints"),
    ]
    for arguments, code, expected in lines:
        found, _, err = command(*arguments)
        assert (found, expected in err, "Traceback" in err) == (code, True, False), (arguments, err)
