"""A recipe through the real command: train, look at the folder, evaluate, predict."""

import csv
import json

import mxkit
from mxkit.cli import main
from mxkit.data import digits
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import load_run
from mxkit.recipe.scores import describe_scores
from mxkit.training.callbacks.progress import describe_row
import mxnet as mx
import numpy as np
from PIL import Image
import pytest

# the real thing, only shorter: two epochs instead of twenty
SHORT = ["--set", "epochs=2", "--set", "optimizer.learning_rate=3e-3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, forks):
    """A run made by the real command in its own process, and what it printed."""
    output = tmp_path_factory.mktemp("runs")
    done = forks.run("mxkit.cli:main", ["train", "digits_lenet", "--output", str(output), *SHORT])
    assert done.returncode == 0, done.stderr
    (folder,) = output.iterdir()
    return folder, done.stdout, done.stderr


def command(capsys, *arguments):
    """Run the command in this process: exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    code = caught.value.code
    told = capsys.readouterr()
    return (0 if code is None else code), told.out, told.err


def test_the_folder_holds_what_it_promises(trained):
    folder, _, _ = trained
    names = {path.name for path in folder.iterdir()}
    pictures_and_numbers = {"history.csv", "history.json", "curves.png", "scores.json", "environment.json"}
    assert names == pictures_and_numbers | {"recipe.yaml", "net.json", "state.json", "log.txt", "checkpoints"}
    recipe = load_recipe(folder / "recipe.yaml")
    assert recipe == load_recipe("digits_lenet", [text for text in SHORT if text != "--set"])
    rows = list(csv.DictReader((folder / "history.csv").read_text().splitlines()))
    history = json.loads((folder / "history.json").read_text())["epochs"]
    assert [int(row["epoch"]) for row in rows] == [1, 2]
    assert [float(row["train_loss"]) for row in rows] == [row["train_loss"] for row in history]
    assert history[-1]["updates"] == 2 * 22
    with Image.open(folder / "curves.png") as picture:
        assert picture.size[0] > 800
    log = (folder / "log.txt").read_text()
    assert "MXNet 1.9.1" in log
    assert "epoch 2/2" in log


def test_lines_where_the_output_is_no_terminal(trained):
    _, out, err = trained
    assert out.splitlines()[-1].startswith("test accuracy 0.")
    lines = [line for line in err.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/2", "2/2"]
    assert all(word in lines[0] for word in ("train_loss", "valid_accuracy", "samples/s"))
    assert "\r" not in err


def test_evaluate_repeats_the_score_of_training(trained, capsys):
    folder, out, _ = trained
    code, told, err = command(capsys, "evaluate", folder)
    assert code == 0
    assert err == f"test: {len(digits(28).test.y)} samples\n"
    assert told.splitlines() == out.splitlines()[-2:]
    assert json.loads((folder / "scores.json").read_text())["test"]["accuracy"] == pytest.approx(
        float(told.split()[-1]), abs=5e-5
    )


def test_predict_reads_images_as_the_net_was_trained(trained, capsys, tmp_path):
    folder, _, _ = trained
    x = digits(28).test.x[:5]
    _, net = load_run(folder)
    expected = mxkit.predict(net, x).asnumpy().argmax(axis=1)
    files = []
    for i, image in enumerate(x):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray((image[0] * 255).round().astype(np.uint8)).save(files[-1])
    code, told, err = command(capsys, "predict", folder, *files)
    assert code == 0
    assert err == ""
    rows = [line.split("\t") for line in told.splitlines()]
    assert [row[0] for row in rows] == [str(file) for file in files]
    assert [int(row[1]) for row in rows] == expected.tolist()
    assert all(0.1 < float(row[2]) <= 1 for row in rows)


def test_predict_warns_of_black_ink_on_white(trained, capsys, tmp_path):
    folder, _, _ = trained
    image = digits(28).test.x[0, 0]
    paper = tmp_path / "paper.png"
    Image.fromarray(255 - (image * 255).astype(np.uint8)).convert("RGB").resize((60, 60)).save(paper)
    code, told, err = command(capsys, "predict", folder, paper)
    assert code == 0
    assert "its border is bright, that of the training images dark; --invert swaps them" in err
    code, inverted, err = command(capsys, "predict", folder, "--invert", paper)
    assert code == 0
    assert err == ""
    assert inverted != told


def test_predict_refuses_what_is_no_image(trained, capsys, tmp_path):
    folder, _, _ = trained
    text = tmp_path / "a.png"
    text.write_text("not an image")
    code, _, err = command(capsys, "predict", folder, text)
    assert code == 1
    assert err.startswith(f"error: {text}: it is no image that OpenCV knows; it begins with b'not an i'")


def test_features_draws_a_picture_a_layer(trained, capsys, tmp_path):
    folder, _, _ = trained
    image = tmp_path / "digit.png"
    Image.fromarray((digits(28).test.x[0, 0] * 255).round().astype(np.uint8)).save(image)
    out = tmp_path / "pictures"
    code, told, err = command(capsys, "features", folder, image, "--layers", "[01]", "--layers", "-1", "--out", out)
    assert (code, err) == (0, "")
    _, net = load_run(folder)
    found = mxkit.Features(net, ["[01]", "-1"])(mx.nd.array(digits(28).test.x[:1]))
    assert told.splitlines() == [f"{name}\t{array.shape}" for name, array in found.items()] + [f"pictures in {out}"]
    assert sorted(path.name for path in out.iterdir()) == sorted(f"{name}.png" for name in found)
    for path in out.iterdir():
        with Image.open(path) as picture:
            assert min(picture.size) > 200


def test_layers_prints_the_table(trained, capsys):
    code, told, err = command(capsys, "layers", trained[0])
    assert (code, err) == (0, "")
    _, net = load_run(trained[0])
    assert told == f"{mxkit.layers(net, (1, 1, 28, 28))}\n"
    assert "Conv2D 5x5" in told
    code, told, _ = command(capsys, "layers", trained[0], "--depth", 0)
    assert sum(" " * 2 in line for line in told.splitlines()) == 2


def test_features_names_the_nearest_layers(trained, capsys, tmp_path):
    folder, _, _ = trained
    image = tmp_path / "digit.png"
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(image)
    code, _, err = command(capsys, "features", folder, image, "--layers", "1.act0", "--out", tmp_path / "none")
    assert code == 2
    assert "error: no block stands at '1.act0'" in err
    assert not (tmp_path / "none").exists()


def test_a_damaged_checkpoint_is_refused(trained, capsys, tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(str(trained[0]), str(folder))
    damaged = list(folder.glob("checkpoints/step-*/net.params"))
    for parameters in damaged:
        content = bytearray(parameters.read_bytes())
        content[-1] ^= 1
        parameters.write_bytes(bytes(content))
    code, out, err = command(capsys, "evaluate", folder)
    assert code == 1
    assert out == ""
    assert "is damaged" in err
    assert "no whole checkpoint in" in err


def test_bad_recipes_exit_with_2_and_no_traceback(capsys, tmp_path):
    code, out, err = command(capsys, "train", "digits_lenet", "--set", "epoch=1", "--output", tmp_path)
    assert (code, out) == (2, "")
    assert "epoch: unknown key; received 1" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    code, _, err = command(capsys, "evaluate", tmp_path)
    assert code == 2
    assert "is no folder of a run" in err


def test_show_prints_the_resolved_recipe(capsys, tmp_path):
    code, told, _ = command(capsys, "show", "digits_lenet", "--set", "accumulate=2")
    assert code == 0
    written = tmp_path / "shown.yaml"
    written.write_text(told)
    assert load_recipe(written) == load_recipe("digits_lenet", ["accumulate=2"])


def test_version(capsys):
    code, told, _ = command(capsys, "--version")
    assert (code, told) == (0, f"mxkit {mxkit.__version__}\n")


def test_the_same_seed_gives_the_same_run(tmp_path):
    settings = ["epochs=1", "model.name=mlp", "model.dropout=0.5", "data.size=8"]
    runs = [mxkit.run_recipe("digits_lenet", overrides=settings, output=tmp_path, progress=False) for _ in range(2)]
    assert runs[0].folder != runs[1].folder
    assert runs[0].history[-1]["train_loss"] == runs[1].history[-1]["train_loss"]
    assert runs[0].scores == runs[1].scores
    other = mxkit.run_recipe("digits_lenet", overrides=[*settings, "seed=1"], output=tmp_path, progress=False)
    assert other.history[-1]["train_loss"] != runs[0].history[-1]["train_loss"]


def test_a_run_that_fails_leaves_its_history_and_the_reason(tmp_path):
    with pytest.raises(mxkit.errors.NonFiniteError, match="update "):
        mxkit.run_recipe(
            "digits_lenet",
            overrides=["model.name=mlp", "optimizer={name: sgd, learning_rate: 1e30}", "data.size=8"],
            output=tmp_path,
            progress=False,
        )
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("failed-digits_lenet-")
    log = (folder / "log.txt").read_text()
    assert "NonFiniteError" in log
    assert "Traceback" in log


def test_a_run_that_fails_stands_in_no_glob_s_way(tmp_path, capsys):
    settings = ["--set", "model=mlp", "--set", "data.size=8", "--quiet", "--output", str(tmp_path)]
    failing = ["--set", "optimizer={name: sgd, learning_rate: 1e30}"]
    for _ in range(2):  # in one second, perhaps
        code, _, err = command(capsys, "train", "digits_lenet", *settings, *failing)
        assert code == 1
        assert f"the files of the run are in {tmp_path}/failed-digits_lenet-" in err
    assert command(capsys, "train", "digits_lenet", "--set", "epochs=1", *settings)[0] == 0
    assert len(list(tmp_path.glob("digits_lenet-*"))) == 1
    listed = json.loads(command(capsys, "runs", tmp_path, "--json")[1])
    assert sorted(one["state"] for one in listed) == ["failed", "failed", "finished"]


def test_a_run_that_fails_after_a_checkpoint_keeps_its_place(tmp_path):
    def fail(*_):
        raise OSError("the disk is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mxkit.training.history.History.plot", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            mxkit.run_recipe("softmax_regression", overrides=["epochs=1"], output=tmp_path, progress=False)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("softmax_regression-")


def test_several_devices_and_accumulation_from_a_recipe(tmp_path):
    settings = ["epochs=2", "model.name=softmax_regression", "data.size=8", "optimizer={name: sgd, learning_rate: 0.5}"]
    losses = [
        mxkit.run_recipe("digits_lenet", overrides=[*settings, *extra], output=tmp_path, progress=False).history[-1][
            "train_loss"
        ]
        for extra in (["devices=cpu"], ["devices=cpu:3"], ["data.batch_size=32", "accumulate=2"])
    ]
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


def test_metrics_that_are_no_single_number(tmp_path, capsys):
    settings = ["epochs=1", "data.size=8", "model=softmax_regression", "metrics=[{name: top_k, k: 3}, f1, confusion]"]
    run = mxkit.run_recipe("digits_lenet", overrides=settings, output=tmp_path)
    code, told, _ = command(capsys, "evaluate", run.folder)
    assert code == 0
    lines = told.splitlines()
    assert [line.split()[:2] for line in lines] == [["test", "loss"], ["test", "top_3_accuracy"], ["test", "f1"]] + [
        ["test", "confusion"]
    ] * 10
    assert sum(int(count) for line in lines[3:] for count in line.split()[2:]) == 296
    assert (
        run.history[0]["valid_confusion"]
        == json.loads((run.folder / "history.json").read_text())["epochs"][0]["valid_confusion"]
    )
    with pytest.raises(SystemExit):
        main(["train", "digits_lenet", "--set", "metrics=[{name: top_k, top: 3}]"])
    assert "metrics.0.top: top_k takes no such argument; received 3; accepted: " in capsys.readouterr().err


def test_an_error_after_the_training_is_in_the_log(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr("mxkit.recipe.run.write_atomically", refuse)
    with pytest.raises(OSError, match="no space left"):
        mxkit.run_recipe("softmax_regression", overrides=["epochs=1"], output=tmp_path, progress=False)
    (folder,) = tmp_path.iterdir()
    assert "OSError: no space left" in (folder / "log.txt").read_text()


def test_scores_of_minus_0_are_printed_as_0():
    assert describe_scores("test", {"loss": -0.0, "other": -0.00001, "gain": -0.5}) == [
        "test loss 0.0000",
        "test other 0.0000",
        "test gain -0.5000",
    ]
    row = {"train_loss": -0.0, "samples_per_second": 1.0, "seconds": 1.0}
    assert describe_row(row).startswith("train_loss 0.0000 ")
