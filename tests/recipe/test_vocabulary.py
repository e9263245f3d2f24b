"""Each thing that a recipe can say, trained on the digits."""

import csv
import hashlib
import json

import mxkit
from mxkit.recipe.building import batches, fit_call
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import load_run, run_recipe
from mxnet.gluon.model_zoo import model_store, vision
import numpy as np
from PIL import Image
import pytest
from recipe_parts import SMALL, prepared
from recipe_parts import refusal as refused
from sharing import command


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Train SMALL with changes."""
    output = tmp_path_factory.mktemp("runs")
    return lambda *overrides, **sections: run_recipe(
        {**SMALL, **sections}, overrides=overrides, output=output, progress=False
    )


@pytest.fixture(scope="module")
def plain(train):
    """SMALL, trained as it is."""
    return train()


def refusal(*overrides, **sections):
    return refused({**SMALL, **sections}, *overrides, check=prepared)


def values(net):
    return {path: one.data().asnumpy() for path, one in net._collect_params_with_prefix().items()}


def begun(*overrides, **sections):
    """First values of the net, as the first batch brings them out."""
    recipe = load_recipe({**SMALL, **sections}, overrides)
    data, net = prepared(recipe)
    mxkit.seed_all(recipe.seed)
    mxkit.predict(net, data.test.x[:1])
    return values(net)


def test_what_is_frozen_or_multiplied_by_0_stays(train):
    settings = ["freeze=['1.*']", "optimizer.multipliers={'2.weight': {lr: 0}}", "optimizer.no_weight_decay=true"]
    before, run = begun(*settings), train(*settings)
    after = values(run.net)
    assert {path for path in before if (before[path] == after[path]).all()} == {"1.weight", "1.bias", "2.weight"}
    assert [one.wd_mult for one in run.net[2].collect_params().values()] == [1, 0]


def test_fit_gets_what_the_recipe_says():
    said = {"clip_value": 2.0, "clip_norm": 1.0, "amp": "bfloat16", "limit_batches": 3, "validate_every": 2, "seed": 7}
    said["check_finite"] = "stop"
    schedule = {"name": "step", "every": "1 update", "factor": 0.5}
    recipe = load_recipe({**SMALL, **said, "accumulate_samples": 64, "schedule": schedule})
    data = load_data(recipe)
    named = fit_call(recipe, data).named
    assert {key: named[key] for key in said} == said
    assert (named["epochs"], named["accumulate"]) == ("4 updates", "64 samples")
    (rate,) = named["callbacks"]
    step = mxkit.training.schedule("step", every="1 update", factor=0.5)
    assert (rate.function, [one.made for one in rate.positional]) == (mxkit.callbacks.LearningRate, [step])
    named = fit_call(load_recipe(SMALL, ["updates=null", "epochs=5", "accumulate=2"]), data).named
    assert (named["epochs"], named["accumulate"], named["loss"].short) == (5, 2, "softmax_ce")


def test_callbacks_by_name_and_their_files_in_the_runs_folder(train):
    pytest.importorskip("tensorboardX")
    callbacks = [
        {"name": "early_stopping", "monitor": "valid_loss", "mode": "min", "patience": 1, "min_delta": 100},
        {"name": "ema", "decay": 0.9},
        {"name": "plateau", "monitor": "valid_loss", "mode": "min", "patience": 1, "min_delta": 100},
        {"name": "time_limit", "limit": "1000 seconds"},
        {"name": "csv", "path": "rows.csv"},
        {"name": "tensorboard", "folder": "board"},
    ]
    run = train("updates=null", "epochs=5", callbacks=callbacks)
    assert "has not become better" in run.history.stopped
    assert len(run.history) == 2
    assert run.history[-1]["learning_rate"] == pytest.approx(0.1)  # it stopped before the reduction was used
    rows = list(csv.DictReader((run.folder / "rows.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert list((run.folder / "board").iterdir())


def test_what_is_reported_on(train):
    run = train(
        "updates=null",
        "epochs=3",
        "evaluate={split: valid, which: best, metrics: [{name: top_k, k: 3}]}",
        "checkpoints.keep_best=[valid_loss, min]",
        "optimizer.learning_rate=2",
    )
    best, epoch, update = min((row["valid_loss"], row["epoch"], row["updates"]) for row in run.history)
    assert run.split == "valid"
    assert set(run.scores) == {"loss", "top_3_accuracy"}
    assert run.scores["loss"] == best
    assert json.loads((run.folder / "scores.json").read_text()) == {"valid": run.scores}
    assert run.history[-1]["valid_loss"] > best
    image = run.folder / "zero.png"
    Image.new("L", (8, 8)).save(image)
    for words in (["evaluate", run.folder], ["predict", run.folder, image]):
        code, out, err = command(*words)  # all commands take the checkpoint of the scores
        assert (code, err.splitlines()[0]) == (0, f"best checkpoint step-{update:08}, epoch {epoch}")
        assert (code, out) == command(*words, "--which", "best")[:2]
        assert command(*words, "--which", "last")[2].splitlines()[0].startswith("last checkpoint step-")
    assert f"valid loss {best:.4f}" in command("evaluate", run.folder)[1]
    exported = mxkit.export(run.folder, run.folder / "net", format="symbol")
    assert f"the weights are those of step-{update:08}, epoch {epoch}" in exported.notes


def test_weights_of_another_run(plain):
    """As `get_model(weights=...)` takes them, on every device."""
    (checkpoint,) = (plain.folder / "checkpoints").iterdir()
    expected = values(plain.net)
    for place in (plain.folder, checkpoint / "net.params", checkpoint, checkpoint.parent):
        found = values(mxkit.models.get_model("mlp", hidden=[16], weights=place))
        assert all((found[path] == value).all() for path, value in expected.items())
    _, net = prepared({**SMALL, "model": {**SMALL["model"], "weights": str(plain.folder)}}, ["devices=cpu:2"])
    for path, value in expected.items():
        arrays = net._collect_params_with_prefix()[path].list_data()
        assert [array.context for array in arrays] == mxkit.devices("cpu:2")
        assert all((array.asnumpy() == value).all() for array in arrays)


@pytest.mark.filterwarnings("ignore:.*outputs have no sample to learn from")
def test_weights_of_a_run_that_do_not_fit(plain, tmp_path):
    text = refusal(model={**SMALL["model"], "weights": str(plain.folder), "classes": 12})
    assert "model.weights: CheckpointError: model 'mlp': " in text
    assert "in a recipe model.classes and model.finetune.classes" in text
    (tmp_path / "empty").mkdir()
    text = refusal(f"model.weights={tmp_path / 'empty'}")
    assert f"model 'mlp': no whole checkpoint in {tmp_path / 'empty'}" in text


ZOO = {
    "data": {"name": "digits", "size": 32, "channels": 3, "batch_size": 16},
    "model": {"name": "zoo:mobilenet0.25", "classes": 10, "weights": "pretrained"},
}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A net of the zoo, whose file the cache will have under the name and the checksum that the zoo lists."""
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("MXKIT_OFFLINE", "1")
    mxkit.seed_all(3)
    net = vision.get_model("mobilenet0.25", classes=10)
    mxkit.initialize(net, sample=(1, 3, 32, 32), devices="cpu")
    net.save_parameters(str(tmp_path / "own.params"))
    content = (tmp_path / "own.params").read_bytes()
    sha1 = hashlib.sha1(content).hexdigest()
    monkeypatch.setitem(model_store._model_sha1, "mobilenet0.25", sha1)
    file = tmp_path / "cache" / "models" / f"mobilenet0.25-{sha1[:8]}.params"
    file.parent.mkdir(parents=True)
    return net, file, content


def test_published_weights(published, train):
    """tests/models has what is right and wrong about the file."""
    net, file, content = published
    with pytest.raises(mxkit.errors.DownloadError, match="MXKIT_OFFLINE"):
        prepared({**SMALL, **ZOO})
    file.write_bytes(content[:-1])
    assert "model.weights: CheckpointError: weights of 'zoo:mobilenet0.25': " in refusal(**ZOO)
    assert "no weights of it were published" in refusal("model.weights=pretrained")
    both = {**ZOO["model"], "pretrained": True}
    assert "model.weights: does not go with pretrained: true" in refusal(data=ZOO["data"], model=both)
    file.write_bytes(content)
    _, found = prepared({**SMALL, **ZOO})
    for path, value in values(net).items():
        np.testing.assert_array_equal(values(found)[path], value)
    run = train("limit_batches=2", "updates=2", **ZOO)
    file.unlink()  # a run's folder has its own
    assert values(load_run(run.folder)[1]).keys() == values(net).keys()


@pytest.mark.filterwarnings("ignore:.*outputs have no sample to learn from")
def test_finetuning_begins_with_the_other_runs_features_and_trains_them_from_an_epoch_on(train, plain):
    head = {"classes": 12, "head": "2", "freeze": "1.*", "head_multiplier": 5}
    model = {**SMALL["model"], "weights": str(plain.folder), "finetune": head}
    late = {"name": "freeze", "until": "1 epoch", "lr": 0.1}
    _, net = prepared({**SMALL, "model": model})
    assert (net[2].weight.shape, net[2].weight.lr_mult, net[1].weight.grad_req) == ((12, 16), 5, "null")
    weights = {0: values(net)["1.weight"]}
    for epochs in (1, 2):
        run = train("updates=null", f"epochs={epochs}", "limit_batches=2", model=model, callbacks=[late])
        weights[epochs] = values(run.net)["1.weight"]
    for still in (0, 1):
        np.testing.assert_array_equal(weights[still], values(plain.net)["1.weight"])
    assert (weights[1] != weights[2]).any()
    assert run.net[1].weight.lr_mult == 0.1


def test_augmentation_changes_training_images_alone():
    images = {"augment": [{"name": "crop", "size": 8, "padding": 2}, "flip"]}
    recipe = load_recipe({**SMALL, "data": {**SMALL["data"], **images}})
    data = load_data(recipe)
    (x, _), (again, _) = (next(iter(batches(recipe, data, "train", training=True))) for _ in range(2))
    np.testing.assert_array_equal(x.asnumpy(), again.asnumpy())  # a function of the seed
    (still, _) = next(iter(batches(recipe, data, "test")))
    np.testing.assert_array_equal(still.asnumpy(), data.test.x[:256])
    plain = load_recipe(SMALL)
    (before, _) = next(iter(batches(plain, data, "train", training=True)))
    assert (before.asnumpy() != x.asnumpy()).any()


def test_normalization_holds_for_training_too_where_it_has_no_steps_of_its_own():
    steps = ["to_tensor", {"name": "normalize", "mean": 0.5, "std": 0.5}]
    recipe = load_recipe({**SMALL, "data": {**SMALL["data"], "eval_augment": steps}})
    data = load_data(recipe)
    for part, training in (("train", True), ("test", False)):
        x, _ = next(iter(batches(recipe, data, part, training=training)))
        assert x.min().asscalar() == -1
    text = refusal("data.augment=[flip]", data={**SMALL["data"], "eval_augment": steps})
    assert "data.eval_augment: training normalizes by None, evaluation by Normalize(" in text


def test_siamese_nets(train):
    run = train(
        data={**SMALL["data"], "pairs": {"kind": "triplets", "length": 256}},
        model={"name": "siamese", "branch": {"name": "mlp", "hidden": [16], "classes": 8}},
        loss="batch_hard_triplet",
        metrics=[],
        optimizer={"name": "adam", "learning_rate": 0.01},
        updates=16,
    )
    score = run.scores["triplet_accuracy"]
    assert 0.6 < score <= 1
    assert f"test triplet_accuracy {score:.4f}" in command("evaluate", run.folder)[1]


REFUSED = {
    # the words after the path
    "freeze=['1.wieght']": "freeze.0: no parameter fits '1.wieght' ... 1.weight",
    "optimizer.multipliers={'3.*': {lr: 1}}": "optimizer.multipliers.3.*: no parameter fits",
    "callbacks=[{name: freeze, until: one}]": "callbacks.0: Freeze: until: expected a length",
    "callbacks=[{name: freeze, until: 1 epoch, lr: -1}]": "callbacks.0: Freeze: lr: expected a",
    "model.weights=nowhere.params": "model.weights:  ... nowhere.params",
    "model.finetune={classes: 10, head: '7'}": "model.finetune: head: no block stands at '7'",
    "devices=gpu:77": "devices: gpu(77) does not exist",
    "evaluate.which=best": "evaluate.which: 'best' needs checkpoints.keep_best",
    "accumulate=2 & accumulate_samples=4": "accumulate_samples: does not go with accumulate",
    "data.pairs={} & data.augment=[flip]": "data.pairs: does not go with an augmentation",
    "data.name=made_linear & data.samples=100 & data.test=0": "evaluate.split: this part of the data has no",
    "schedule={name: cosine, warmup: 5 epcohs}": "schedule: warmup: expected a length like",
    "schedule=step": "schedule.every: is missing",
    "data.augment=[to_tensor, flip]": "data.augment: ",
    "data.augment=[{name: crop}]": "data.augment.0.size: is missing",
    "data.workers=4": "data.workers: input should be 0 or a valid string; received 4",
    "optimizer.multipliers={'*': {l: 1}}": "optimizer.multipliers.*.l: unknown key; received 1; accepted: lr",
    "model=siamese": "model.branch: is missing",
    "model.classes=true": "model.classes: input should be a valid integer; received True",
    "epoch=3": "epoch: unknown key; received 3; accepted: format, name, ... did you mean 'epochs'",
    "epochs=0": "epochs: expected a length like '2 epochs' or '500 updates', or a number of epochs; received 0",
    "format=2": "format: input should be 1; received 2",
    "name=../escape": "name: string should match pattern ... ; received '../escape'",
    "loss=bce": "loss.name: unknown; received 'bce'; accepted:  ... ; did you mean 'sigmoid_bce'",
    "loss=3": "loss: expected a name, or keys and values; received 3",
    "optimizer.learning_rate=fast": "optimizer.learning_rate: input should be a valid number ... ; received 'fast'",
    "optimizer.lr_scheduler=poly": "optimizer.lr_scheduler: sgd takes no such argument; received 'poly'",
    "data.batchsize=3": "data.batchsize: digits takes no ... accepted: batch_size,  ... did you mean 'batch_size'",
    "data.size=9 & model.dropout=2": "data: size: expected 8, or  ... \n  model: mlp: dropout ... received 2",
    "metrics=[{name: top_k, k: 0}]": "metrics.0: TopK: k: expected a whole number, at least 1",
    "metrics=[accuracy, accuracy]": "\n  metrics: names must differ",
    "nonsense": "--set 'nonsense': expected a.b=value",
    "a..b=1": "--set 'a..b=1': expected a.b=value",
    "updates.x=1": "--set 'updates.x=1': updates is 4, which has no keys",
    "metrics.7=f1": "--set 'metrics.7=f1': metrics is a list of 1",
    "epochs=[": "--set 'epochs=[': the value is not YAML",
    "base=x": "the base is read before",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_cannot_be_is_told_with_its_place(overrides):
    text = refusal(*overrides.split(" & "))
    assert all(part in text for part in REFUSED[overrides].split(" ... ")), text
