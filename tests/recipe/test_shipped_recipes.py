"""Every recipe that ships can be run, and says what it reaches; `python -m benchmarks.recipes` holds it to that."""

import importlib
import math
import re
import shlex
import shutil
import sys

import mxkit
from mxkit.recipe.building import batches
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.reading import RECIPE_FOLDERS, load_recipe, recipe_names
from mxkit.recipe.run import load_run
from mxkit.recipe.vocabulary import DATASETS
import numpy as np
import pytest
from sharing import command, long

from benchmarks.recipes import Bar, stated_bar, text_of

# Accuracies on the digits.
BARS = {"softmax_regression": 0.94, "mlp": 0.97, "mlp_dropout": 0.975, "digits_lenet": 0.985, "lenet_bn": 0.985}
# Nets for CIFAR's pictures, and the smallest pictures that they take, of those that the digits can be.
SMALLEST = {"alexnet": 16, "densenet121": 8, "googlenet": 8, "nin": 16, "resnet18": 8, "vgg11": 32}
# What makes two updates of a recipe quick; each net and each optimizer is the shipped one.
QUICK = {
    # an epoch of 1,354 samples
    **{name: ["updates=null", "epochs=1", "data.batch_size=700"] for name in BARS},
    **{name: [f"data.size={size}", "data.batch_size=4"] for name, size in SMALLEST.items()},
    "finetune_image_folder": ["data.images=20", "data.batch_size=4", "variables.size=32", "variables.resize=36"],
    **{f"finetune_{one}": ["data.images=10", "data.batch_size=4", "variables.size=64"] for one in ("boxes", "masks")},
    "log_regression": ["data.lines=100"],
}
DRAWN = ("centernet_shapes", "deeplab_shapes", "fcn_shapes", "pose_stick", "ssd_shapes", "yolo3_shapes")
QUICK.update(dict.fromkeys(DRAWN, ["data.images=20", "data.batch_size=4"]), faster_rcnn_shapes=["data.images=20"])
# The warm-up of this recipe is longer than two updates.
QUICK["nin"] += ["schedule=cosine"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Made files go into a cache of the test's own, and own datasets are forgotten after it."""
    monkeypatch.setenv("MXNET_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    for name in ("breast_cancer", "digit_traits", "made_hotdog", "made_log"):
        sys.modules.pop(name, None)
        DATASETS.pop(name, None)


@pytest.fixture
def runs(tmp_path):
    """Where runs go; pytest would keep their checkpoints, of some hundred megabytes."""
    yield tmp_path / "runs"
    shutil.rmtree(tmp_path / "runs")


def two_updates(name, folder):
    return mxkit.run_recipe(name, overrides=["updates=2", *QUICK.get(name, [])], output=folder, progress=False)


# Trained by `test_the_same_update_in_pieces_ends_the_same`.
IN_PIECES = {"accumulation": (16, 4, "auto"), "two_devices": (64, 1, "cpu:2")}
# Large nets, which tests/models trains too; small ones like another; and optimizer_sgd with another of MXNet's.
SIMILAR = {
    *("alexnet", "densenet121", "googlenet", "resnet18", "vgg11"),
    *("lenet_bn", "mlp_dropout"),
    *(f"optimizer_{name}" for name in ("adagrad", "adadelta", "rmsprop")),
}


@pytest.mark.parametrize(
    "name", [long(name) if name in SIMILAR else name for name in recipe_names() if name not in IN_PIECES]
)
def test_every_recipe_trains_two_updates(name, runs):
    run = two_updates(name, runs)
    assert run.history[-1]["updates"] == 2
    assert all(math.isfinite(score) for score in run.scores.values() if isinstance(score, float))
    assert stated_bar(name).metric in run.scores
    if name in BARS:
        assert stated_bar(name) == Bar("accuracy", BARS[name])
        assert run.scores["accuracy"] > 0.15  # a net near chance has 0.1


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_states_what_it_reaches(name):
    bar, text = stated_bar(name), text_of(name)
    assert text.count("reaches:") == 1
    assert bar is not None, "a statement that is not read"
    # the figures that were seen stand in the first lines, and are within the bar
    head = " ".join(line.lstrip("# ") for line in text.split("# reaches:")[0].splitlines())
    seen = re.search(rf"test {bar.metric} (?:of )?(\d[\d.e-]*)(?: to (\d[\d.e-]*))? ", head)
    assert seen is not None, head
    assert bar.reached([float(figure) for figure in seen.groups() if figure])


@pytest.mark.parametrize("name", IN_PIECES)
def test_the_same_update_in_pieces_ends_the_same(name, runs):
    # Adam multiplies a difference of rounding wherever a gradient is near 0
    pieces, whole = (
        mxkit.run_recipe(one, overrides=["updates=2"], output=runs, progress=False) for one in (name, "digits_lenet")
    )
    assert pieces.history[-1]["train_loss"] == pytest.approx(whole.history[-1]["train_loss"], rel=1e-4)
    assert pieces.scores["loss"] == pytest.approx(whole.scores["loss"], rel=1e-3)
    assert stated_bar(name).metric in pieces.scores
    recipe = load_recipe(name)
    assert (recipe.data.batch_size, recipe.accumulate, recipe.devices) == IN_PIECES[name]


def command_on_cifar(name):
    """What a deep net's comment says of CIFAR-10, as words of a shell."""
    (line,) = [line for line in text_of(name).splitlines() if "mxkit train" in line]
    return shlex.split(line.lstrip("# "))


@pytest.fixture
def cifar(tmp_path):
    """A folder with little in CIFAR-10's binary format: for each picture its class and 3072 bytes."""
    draws = np.random.RandomState(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        rows = [draws.randint(0, 10, (6, 1)), draws.randint(0, 256, (6, 3072))]
        (tmp_path / name).write_bytes(np.concatenate(rows, axis=1).astype("u1").tobytes())
    return tmp_path


@pytest.mark.filterwarnings("ignore:data cifar10. valid has 6 samples, and none of")
def test_a_deep_net_trains_on_files_of_cifar(cifar, runs):
    little = [f"data.root={cifar}", "data.valid=0.2", "data.batch_size=4", "updates=2", "seed=1", "schedule=cosine"]
    settings = [word for one in little for word in ("--set", one)]
    code, out, _ = command(*command_on_cifar("nin")[1:], *settings, "--output", runs)
    assert (code, "test accuracy " in out) == (0, True)
    (folder,) = runs.iterdir()
    recipe, net = load_run(folder)
    data = load_data(recipe)
    assert data.classes[:2] == ["airplane", "automobile"]
    assert (len(data.train.y), len(data.valid.y), len(data.test.y)) == (24, 6, 6)
    x, y = next(iter(batches(recipe, data, "train", training=True)))
    assert (x.shape, str(x.dtype), x.min().asscalar() < 0) == ((4, 3, 32, 32), "<class 'numpy.float32'>", True)
    assert mxkit.predict(net, x).shape == (4, 10)


@pytest.mark.parametrize("name", SMALLEST)
def test_what_a_deep_net_says_of_cifar_can_be_run(name):
    """The comment's command loads; by default the recipe names its stand-in, which the run's folder keeps."""
    words = command_on_cifar(name)
    assert words[:3] == ["mxkit", "train", name]
    recipe = load_recipe(name, [text for text in words[3:] if text != "--set"])
    assert recipe.data.name == "cifar10"
    assert load_recipe(name).data.name == "digits"
    assert load_recipe(name).data.arguments == {"size": 32, "channels": 3}
    assert "digits" in text_of(name).split("# reaches:")[0]


def test_the_six_optimizers_differ_in_nothing_else():
    names = [name for name in recipe_names() if name.startswith("optimizer_")]
    recipes = [load_recipe(name).model_dump(exclude={"name", "description", "optimizer"}) for name in names]
    assert len(names) == 6
    assert all(one == recipes[0] for one in recipes)
    assert len({load_recipe(name).optimizer.model_dump_json() for name in names}) == 6


def test_colour_digits_are_the_grey_ones_three_times():
    grey, colour = mxkit.data.digits(28), mxkit.data.digits(28, channels=3)
    for one, other in zip(grey[:3], colour[:3]):
        np.testing.assert_array_equal(other.x, np.concatenate([one.x] * 3, axis=1))
        np.testing.assert_array_equal(other.y, one.y)
    with pytest.raises(ValueError, match="channels: expected a whole number, at least 1; received 0"):
        mxkit.data.digits(channels=0)


@pytest.fixture
def made_log(monkeypatch):
    monkeypatch.syspath_prepend(next(folder for folder in RECIPE_FOLDERS if folder.is_dir()))
    return importlib.import_module("made_log")


def test_the_made_log_is_read_as_it_was_written(made_log, tmp_path):
    path = tmp_path / "logs" / "a.log"
    splits = made_log.made_log(str(path), lines=200, noise=0.0)
    x, y = (np.concatenate(parts) for parts in zip(*((part.x, part.y) for part in splits[:3])))
    before = path.read_bytes()
    assert (before.count(b"\n"), len(y)) == (200, 180)  # one line in ten tells no time
    # sizes and loads are written with three digits, times with two
    np.testing.assert_allclose(y, x @ np.float32([6, 8, -4]) + 10, atol=0.02)
    assert len(made_log.made_log(str(path), lines=5).train.y) == len(splits.train.y)
    assert path.read_bytes() == before, "a log that is there is read, never written"
    for name, seed, same in (("b", 0, True), ("c", 1, False)):
        made_log.made_log(str(tmp_path / name), lines=200, noise=0.0, seed=seed)
        assert ((tmp_path / name).read_bytes() == before) == same
