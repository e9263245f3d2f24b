"""A recipe through the real command: train, look at the folder, evaluate, predict; and runs that fail."""

import csv
import json

import mxkit
from mxkit.data import digits
from mxkit.errors import RecipeError
from mxkit.recipe.reading import load_recipe
import mxnet as mx
import numpy as np
from PIL import Image
import pytest
from sharing import command

# the real thing, only shorter: two epochs instead of twenty
SHORT = ["--set", "epochs=2", "--set", "optimizer.learning_rate=3e-3"]
CHECKPOINT = "last checkpoint step-00000044, epoch 2\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, forks):
    """A run made by the real command in its own process, and what it printed."""
    output = tmp_path_factory.mktemp("runs")
    done = forks.run("mxkit.cli:main", ["train", "digits_lenet", "--output", str(output), *SHORT])
    assert done.returncode == 0, done.stderr
    (folder,) = output.iterdir()
    return folder, done.stdout, done.stderr


def save(path, image, invert=False):
    pixels = (image[0] * 255).round().astype(np.uint8)
    Image.fromarray(255 - pixels if invert else pixels).save(path)
    return path


def test_the_folder_holds_what_it_promises(trained):
    folder, out, err = trained
    files = {"history.csv", "history.json", "curves.png", "scores.json", "environment.json", "recipe.yaml", "net.json"}
    assert {path.name for path in folder.iterdir()} == files | {"state.json", "log.txt", "checkpoints"}
    recipe = load_recipe(folder / "recipe.yaml")
    assert recipe == load_recipe("digits_lenet", [text for text in SHORT if text != "--set"])
    rows = list(csv.DictReader((folder / "history.csv").read_text().splitlines()))
    history = json.loads((folder / "history.json").read_text())["epochs"]
    assert [float(row["train_loss"]) for row in rows] == [row["train_loss"] for row in history]
    assert [(row["epoch"], row["updates"]) for row in history] == [(1, 22), (2, 44)]
    with Image.open(folder / "curves.png") as picture:
        assert picture.size[0] > 800
    log = (folder / "log.txt").read_text()
    assert "MXNet 1.9.1" in log
    assert "epoch 2/2" in log
    # lines where the output is no terminal
    assert out.splitlines()[-1].startswith("test accuracy 0.")
    lines = [line for line in err.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/2", "2/2"]
    assert all(word in lines[0] for word in ("train_loss", "valid_accuracy", "samples/s"))
    assert "\r" not in err


def test_evaluate_repeats_the_score_of_training(trained):
    folder, out, _ = trained
    assert command("evaluate", folder) == (
        0,
        "".join(f"{line}\n" for line in out.splitlines()[-2:]),
        f"{CHECKPOINT}test: {len(digits(28).test.y)} samples\n",
    )
    recorded = json.loads((folder / "scores.json").read_text())["test"]["accuracy"]
    assert recorded == pytest.approx(float(out.split()[-1]), abs=5e-5)


def test_predict_reads_images_as_the_net_was_trained(trained, tmp_path):
    folder, _, _ = trained
    x = digits(28).test.x[:5]
    expected = mxkit.predict(mxkit.recipe.load_run(folder)[1], x).asnumpy().argmax(axis=1)
    files = [save(tmp_path / f"{i}.png", image) for i, image in enumerate(x)]
    code, out, err = command("predict", folder, *files)
    assert (code, err) == (0, CHECKPOINT)
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == [str(file) for file in files]
    assert [int(row[1]) for row in rows] == expected.tolist()
    assert all(0.1 < float(row[2]) <= 1 for row in rows)
    paper = tmp_path / "paper.png"
    Image.open(save(paper, x[0], invert=True)).convert("RGB").resize((60, 60)).save(paper)
    code, out, err = command("predict", folder, paper)
    assert code == 0
    assert "its border is bright, that of the training images dark; --invert swaps them" in err
    code, inverted, err = command("predict", folder, "--invert", paper)
    assert (code, err) == (0, CHECKPOINT)
    assert inverted != out


def test_features_draws_a_picture_a_layer(trained, tmp_path):
    folder, _, _ = trained
    image = save(tmp_path / "digit.png", digits(28).test.x[0])
    out = tmp_path / "pictures"
    code, printed, err = command("features", folder, image, "--layers", "[01]", "--layers", "-1", "--out", out)
    assert (code, err) == (0, CHECKPOINT)
    outputs = mxkit.Features(mxkit.recipe.load_run(folder)[1], ["[01]", "-1"])(mx.nd.array(digits(28).test.x[:1]))
    lines = [f"{name}\t{array.shape}" for name, array in outputs.items()]
    assert printed.splitlines() == [*lines, f"pictures in {out}"]
    assert sorted(path.name for path in out.iterdir()) == sorted(f"{name}.png" for name in outputs)
    code, _, err = command("features", folder, image, "--layers", "1.act0", "--out", tmp_path / "none")
    assert code == 2
    assert "error: no block stands at '1.act0'" in err
    assert not (tmp_path / "none").exists()


def test_layers_to_a_depth_and_by_the_recipe_s_name(trained):
    code, out, _ = command("layers", trained[0], "--depth", 0)
    assert code == 0
    begins = [line.split()[:2] for line in out.splitlines()[:3]]
    assert begins == [["lenet", "for"], ["path", "type"], ["(net)", "lenet"]]
    assert sum("  " in line for line in out.splitlines()) == 2
    _, net = mxkit.recipe.load_run(trained[0])
    assert repr(net).startswith("lenet(")
    assert mxkit.nets.describe(net)["net"]["class"] == "SizedNet"  # what `build` makes


def test_the_seed_decides_a_run(tmp_path):
    settings = ["updates=2", "model.name=mlp", "model.dropout=0.5", "data.size=8"]
    first, again, other = (
        mxkit.run_recipe("digits_lenet", overrides=[*settings, seed], output=tmp_path, progress=False).scores
        for seed in ("seed=0", "seed=0", "seed=1")
    )
    assert (first == again, first == other) == (True, False)


def test_a_run_that_fails_stands_in_no_glob_s_way(tmp_path):
    settings = ["--set", "model=mlp", "--set", "data.size=8", "--quiet", "--output", tmp_path]
    for _ in range(2):  # in one second, perhaps
        code, _, err = command(
            "train", "digits_lenet", *settings, "--set", "optimizer={name: sgd, learning_rate: 1e30}"
        )
        assert code == 1
        assert f"the files of the run are in {tmp_path}/failed-digits_lenet-" in err
    log = (next(tmp_path.iterdir()) / "log.txt").read_text()
    assert "NonFiniteError" in log
    assert "Traceback" in log
    assert command("train", "digits_lenet", "--set", "epochs=1", *settings)[0] == 0
    assert len(list(tmp_path.glob("digits_lenet-*"))) == 1
    listed = json.loads(command("runs", tmp_path, "--json")[1])
    assert sorted(one["state"] for one in listed) == ["failed", "failed", "finished"]


@pytest.mark.parametrize("broken", ["mxkit.training.history.History.plot", "mxkit.recipe.run.write_json"])
def test_a_run_that_fails_after_a_checkpoint_keeps_its_place_and_the_reason(tmp_path, monkeypatch, broken):
    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(broken, fail)
    with pytest.raises(OSError, match="the disk is gone"):
        mxkit.run_recipe("softmax_regression", overrides=["epochs=1"], output=tmp_path, progress=False)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("softmax_regression-")
    if "recipe" in broken:  # after the training
        assert "OSError: the disk is gone" in (folder / "log.txt").read_text()


def test_metrics_that_are_no_single_number(tmp_path):
    settings = ["epochs=1", "data.size=8", "model=softmax_regression", "metrics=[{name: top_k, k: 3}, f1, confusion]"]
    run = mxkit.run_recipe("digits_lenet", overrides=settings, output=tmp_path, progress=False)
    code, out, _ = command("evaluate", run.folder)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert [line[1] for line in lines] == ["loss", "top_3_accuracy", "f1", *["confusion"] * 10]
    assert sum(int(count) for line in lines[3:] for count in line[2:]) == 296
    history = json.loads((run.folder / "history.json").read_text())["epochs"]
    assert run.history[0]["valid_confusion"] == history[0]["valid_confusion"]


@pytest.mark.filterwarnings("ignore::mxkit.errors.TrapWarning")
def test_scores_that_are_not_finite_are_null_and_end_the_command_with_1(tmp_path):
    settings = ["optimizer.learning_rate=1e+30", "check_finite=stop", "epochs=1"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    code, out, err = command("train", "linear_regression", *arguments, "--quiet", "--output", tmp_path)
    assert code == 1
    assert "test loss nan" in out  # the run is there, and its scores are shown
    assert "error: the scores are not finite. epoch 1, update 2: the loss is inf" in err
    (folder,) = tmp_path.iterdir()

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    scores = json.loads((folder / "scores.json").read_text(), parse_constant=refuse)
    assert set(scores["test"].values()) == {None}
    (run,) = json.loads(command("runs", tmp_path, "--json")[1])
    assert run["scores"] == scores["test"]
    assert " nan " in command("runs", tmp_path)[1]


def test_a_number_of_threads_that_cannot_be_set_any_more_is_a_mistake_of_the_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr("mxkit.runtime.engine_settings.in_force", lambda: 2)
    with pytest.raises(RecipeError, match=r"(?s)threads: .*MXNet is loaded and takes 2; 1 cannot be set any more"):
        mxkit.run_recipe("linear_regression", overrides=["threads=1"], output=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())
