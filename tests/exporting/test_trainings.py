"""Trainings that go on in PyTorch: the written files beside MXNet, and mistakes that the proof must find."""

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

from leaving_runs import killed_run, prover
import mxkit
from mxkit.errors import ExportError
from mxkit.exporting.trainings import detectors, leaving, texts
from mxkit.exporting.trainings.fits import recipe_of_fit
from mxkit.exporting.trainings.missing import missing_parts, refuse
from mxkit.exporting.trainings.optimizers import RULES, optimizer_class, rule_of
from mxkit.exporting.trainings.texts import rate_text
from mxkit.losses.net_losses import NET_LOSSES
from mxkit.metrics.figures import Accuracy
from mxkit.models.registry import MODELS
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import load_run
from mxkit.training.schedules import schedule
import mxnet as mx
import numpy as np
import pytest
from sharing import command, image_run, needs, no_curves

# The run accumulates over BatchNorm (T48), so that one recipe holds both.
pytestmark = pytest.mark.filterwarnings("ignore:accumulated micro-batches")
torched = [pytest.mark.torch, needs("torch")]
# As much as a run of a small net may hold: BatchNorm, momentum under a schedule, weight decay of some, a factor
# of the rate, a frozen parameter, clipping, accumulation.
RECIPE = {
    "name": "leaves",
    "format": 1,
    "data": {"name": "digits", "size": 28, "batch_size": 64},
    "model": {"name": "lenet", "classes": 10, "batch_norm": True},
    "loss": "softmax_ce",
    "optimizer": {
        "name": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "wd": 0.01,
        "no_weight_decay": True,
        "multipliers": {"9.*": {"lr": 2.0}},
    },
    "freeze": ["4.bias"],
    "schedule": {"name": "cosine", "warmup": "8 updates"},
    "accumulate": 2,
    "clip_norm": 0.5,
    "epochs": 3,
    "metrics": ["accuracy"],
    "checkpoints": {"every": "16 updates", "keep_last": 100},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder as a process leaves it that is killed in its second epoch."""
    return killed_run(RECIPE, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "training"
    return mxkit.export(run, folder, format="torch", training=True), folder


def train(folder, *arguments):
    program = [sys.executable, "train.py", "--device", "cpu", *arguments]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize("batch_norm", [False, True])
def test_two_devices_make_one_batch_unless_batchnorm_divides_it(tmp_path, batch_norm):
    model = {**RECIPE["model"], "batch_norm": batch_norm}
    recipe = {**RECIPE, "model": model, "devices": "cpu:2", "freeze": [], "updates": 12}
    recipe["optimizer"] = {"name": "adam", "learning_rate": 0.01}
    del recipe["epochs"]
    with no_curves():
        folder = mxkit.run_recipe(recipe, output=tmp_path, progress=False).folder
    if batch_norm:
        with pytest.raises(ExportError, match="each device's share"):
            mxkit.export(folder, tmp_path / "t", training=True)
    else:
        assert mxkit.export(folder, tmp_path / "t", training=True).proof.worst.relative < 5e-5
        # a run of updates goes on by whole epochs
        assert [row.split(",")[:2] for row in history(tmp_path / "t")] == [["1", "11"], ["2", "22"]]


def shared_and_fixed(classes=10):
    """Two layers of one weight, a gamma that stays 1, and Dropout."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(24, in_units=64), mx.gluon.nn.BatchNorm(scale=False), mx.gluon.nn.Dense(24, in_units=24))
    net.add(mx.gluon.nn.Dense(24, in_units=24, params=net[2].params), mx.gluon.nn.Dropout(0.3))
    net.add(mx.gluon.nn.PReLU(), mx.gluon.nn.Dense(classes))
    return net


@pytest.mark.torch
@needs("torch")
def test_rare_layers_leave_with_their_dropout(tmp_path, monkeypatch):
    """The newest checkpoint stands at the end of an epoch, whose last batch is short."""
    monkeypatch.setitem(MODELS, "shared_and_fixed", shared_and_fixed)
    data = {"name": "digits", "size": 8, "batch_size": 64}
    recipe = {**RECIPE, "model": {"name": "shared_and_fixed"}, "data": data, "freeze": [], "accumulate": 1}
    recipe["optimizer"] = {"name": "adam", "learning_rate": 0.003}
    recipe.update(epochs=2, checkpoints={"every": "1 updates", "keep_last": 100})
    with no_curves():
        folder = mxkit.run_recipe(recipe, output=tmp_path, progress=False).folder
    for later in sorted((folder / "checkpoints").glob("step-*")):
        if int(later.name[5:]) > 22:
            shutil.rmtree(later)
    assert mxkit.export(folder, tmp_path / "t", training=True).proof.worst.relative < 5e-5
    assert "nn.Dropout(0.3)" in (tmp_path / "t" / "net.py").read_text()
    rows = [row.split(",") for row in history(tmp_path / "t")]
    assert [row[:3] for row in rows] == [["1", "22", "1354"], ["2", "44", "1354"]]


@pytest.mark.torch
@needs("torch")
def test_image_files_leave_as_the_net_reads_them(tmp_path):
    exported = mxkit.export(image_run(tmp_path), tmp_path / "t", training=True)
    assert exported.proof.worst.relative < 5e-5
    epochs = [row.split(",")[0] for row in history(tmp_path / "t", "--epochs", "4")]
    assert epochs == ["1", "2", "3", "4"]


def history(folder, *arguments):
    train(folder, *arguments)
    return (folder / "history.csv").read_text().splitlines()[1:]


class TestARun:
    pytestmark = torched

    def test_it_goes_on_where_the_run_was_killed(self, run, exported):
        result, folder = exported
        state = json.loads((folder / "state.json").read_text())
        assert (state["epoch"], state["updates"], state["batches"]) == (2, 16, 10)
        kinds = {row.operator for row in result.proof.rows}
        assert kinds == {"schedule", "data", "freeze", "loss", "gradient", "statistic", "value", "slot"}
        assert result.proof.worst.relative < 5e-5
        lines = (folder / "train.py").read_text().splitlines()
        assert len(lines) - len([line for line in lines if line.endswith("0.0),")]) <= 200  # but for a table of factors
        text = train(folder)
        rows = (folder / "history.csv").read_text().splitlines()
        assert rows[0].startswith("epoch,updates,samples,learning_rate,train_loss,train_accuracy,valid_loss")
        assert [row.split(",")[:2] for row in rows[1:]] == [["1", "11"], ["2", "22"], ["3", "33"]]
        assert "test: loss" in text
        # the trained weights come back
        net = load_run(run)[1]
        mxkit.load_parameters(net, folder / "last.safetensors")
        x = np.random.RandomState(0).uniform(size=(4, 1, 28, 28)).astype(np.float32)
        program = "import sys, torch, numpy as n; from net import load; x = torch.tensor(n.load(sys.argv[1]))"
        program += "; n.save(sys.argv[1], load('last.safetensors')(x).detach())"
        np.save(folder / "x.npy", x)
        subprocess.run([sys.executable, "-c", program, "x.npy"], cwd=folder, check=True)
        np.testing.assert_allclose(mxkit.predict(net, x).asnumpy(), np.load(folder / "x.npy"), rtol=1e-3, atol=1e-4)
        # MXNet's own end, of the run that nobody killed
        scores = json.loads((run / "scores.json").read_text())
        last = float(text.rpartition("accuracy ")[2])
        assert abs(last - scores["test"]["accuracy"]) < 0.1

    def test_a_killed_train_py_goes_on_to_the_same_end(self, exported, tmp_path):
        _, folder = exported
        for name in ("whole", "parts"):
            shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("last.*", "history.csv"))
        whole = train(tmp_path / "whole").splitlines()
        train(tmp_path / "parts", "--epochs", "2")
        assert train(tmp_path / "parts").splitlines() == whole[1:]

    def test_the_command_names_what_it_wrote(self, run, tmp_path):
        status, output, errors = command("export", run, tmp_path / "t", "--format", "torch", "--training")
        assert status == 0, errors
        assert "train.py" in output
        assert "all within 5e-05" in output
        status, _, errors = command("export", run, tmp_path / "t", "--training")
        assert status != 0
        assert "not empty" in errors


@pytest.fixture(scope="module")
def compared(run, tmp_path_factory):
    """A function that proves the files of `run` after an edit; it returns rows that are too far apart."""
    return prover(run, tmp_path_factory.mktemp("planted"), 6)  # the last one is smaller


PLANTED = {
    "the velocity is PyTorch's, without the rate": (
        [("train.py", "sub_(rate * grad)", "sub_(grad)"), ("train.py", "add_(velocity)", "add_(rate * velocity)")],
        "update 1: 0.weight",
    ),
    "the running variance is PyTorch's": ([("train.py", "(values - 1) / values", "1.0")], "running_var"),
    "weight decay is added before clipping": (
        [("train.py", "norm = torch", "torch._foreach_add_(gradients, 0.01)\n    norm = torch")],
        "update 1: 0.weight",
    ),
    "weight decay of all": ([("train.py", "WEIGHT_DECAY * wd", "WEIGHT_DECAY")], "update 1: 1.bias"),
    "a frozen part trains": (
        [("train.py", 'FROZEN: list[str] = ["4.bias"]', "FROZEN: list[str] = []")],
        "which parameters",
    ),
    "the schedule counts from 0": ([("train.py", "min(update,", "min(update - 1,")], "the rates of all updates"),
    "the mean of the batches' means": (
        [("train.py", "(loss / samples)", "(loss / len(label))")],
        "update 6: 0.weight",
    ),
    "labels in another order": ([("data.py", '{name}.y"])', '{name}.y"].flip(0))')], "the batches of two epochs"),
    "another order of the samples": ([("data.py", "self.epoch - 1", "self.epoch")], "the batches of two epochs"),
    "each parameter is clipped alone": (
        [
            ("train.py", "torch._foreach_mul_(gradients, min(0.5 / norm.item(), 1.0))", "pass"),
            (
                "train.py",
                "    optimizer.step()",
                "    [one.mul_(min(0.5 / one.norm(), 1)) for one in gradients]\n    optimizer.step()",
            ),
        ],
        "update 1: 0.weight",
    ),
    "the loss is smoothed": (
        [("train.py", 'reduction="none"', 'reduction="none", label_smoothing=0.01')],
        "update 1: loss",
    ),
}


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(compared, name):
    edits, expected = PLANTED[name]
    found = compared(*edits)
    assert found
    assert expected in " ".join(row.name for row in found)


@pytest.mark.torch
@needs("torch")
def test_without_a_mistake_nothing_is_found(compared):
    assert compared() == []


# What `RECIPE` lacks: arrays of mx.np, averages of weights, windows of samples, Nadam's product, weights of classes, a
# BatchNorm that uses its running statistics.
AVERAGED = {
    **{key: value for key, value in RECIPE.items() if key != "clip_norm"},
    "arrays": "np",
    "data": {"name": "digits", "size": 8, "batch_size": 32},
    "model": {"name": "shared_and_fixed"},
    "loss": {"name": "label_smoothing", "class_weight": [0.5] + [2.0] * 9},
    "optimizer": {"name": "nadam", "learning_rate": 0.01, "wd": 0.01, "no_weight_decay": True},
    "freeze": ["1.*"],
    "accumulate": "50 samples",
    "clip_value": 0.05,
    "callbacks": [{"name": "ema", "decay": 0.9}],
    "checkpoints": {"every": "1 updates", "keep_last": 100},
}


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, no_curves():
        patch.setitem(MODELS, "shared_and_fixed", shared_and_fixed)
        run = mxkit.run_recipe(AVERAGED, output=tmp_path_factory.mktemp("runs"), progress=False).folder
        for later in (run / "checkpoints").glob("step-*"):
            if int(later.name[5:]) > 38:
                shutil.rmtree(later)
        yield run


@pytest.mark.torch
@needs("torch")
def test_averages_nadam_and_windows_of_samples_leave(averaged, tmp_path):
    exported = mxkit.export(averaged, tmp_path / "t", training=True)
    assert exported.proof.worst.relative < 5e-5
    kinds = [row.operator for row in exported.proof.rows]
    assert kinds.count("loss") == 40
    assert {"average", "slot"} <= {*kinds}
    net = tmp_path / "t" / "net.py"
    net.write_text(net.read_text().replace("nn.Dropout(0.3)", "nn.Dropout(0.0)"))
    whole = train(tmp_path / "t").splitlines()
    for name in ("last.pt", "history.csv"):
        (tmp_path / "t" / name).unlink()
    train(tmp_path / "t", "--epochs", "2")
    assert train(tmp_path / "t").splitlines() == whole[1:]
    tools = ("ruff check --isolated --no-cache", "ruff format --check --isolated --no-cache --line-length 120")
    for tool in (*tools, "mypy --config-file= --disallow-untyped-defs --follow-imports=skip"):
        done = subprocess.run([sys.executable, "-m", *tool.split(), "."], cwd=tmp_path / "t", capture_output=True)
        assert done.returncode == 0, done.stdout.decode()


@pytest.mark.torch
@needs("torch")
def test_a_script_leaves_by_the_arguments_of_its_fit(tmp_path):
    random = np.random.RandomState(0)
    x, y = random.normal(size=(400, 6)).astype(np.float32), random.normal(size=(400, 2)).astype(np.float32)
    net = mxkit.models.mlp(2, hidden=[8])
    mxkit.initialize(net)
    train_loader = mxkit.data.ArrayLoader(x, y, batch_size=16, shuffle=True)
    ema = mxkit.callbacks.EMA(0.9, warmup=False)
    settings = {
        "train": train_loader,
        "valid": mxkit.data.ArrayLoader(x[:64], y[:64], batch_size=32),
        "loss": mx.gluon.loss.L2Loss(),
        "trainer": ("adam", {"learning_rate": 0.02, "wd": 0.01}),
        "epochs": 1,
        "checkpoint": tmp_path / "checkpoints",
        "callbacks": [mxkit.callbacks.LearningRate(("step", {"every": "10 updates", "factor": 0.7})), ema],
    }
    mxkit.fit(net, **settings, progress=False)
    before = {path: one.data().asnumpy() for path, one in net.collect_params().items()}
    averages = {path: one.asnumpy() for path, one in ema.state_arrays().items()}
    with pytest.raises(ValueError, match="pass more"):
        mxkit.export(net, tmp_path / "t", training=settings)
    exported = mxkit.export(net, tmp_path / "t", training={**settings, "epochs": 2})
    assert exported.proof.worst.relative < 5e-5
    kinds = [row.operator for row in exported.proof.rows]
    assert kinds.count("loss") == 20
    assert "average" in kinds
    assert history(tmp_path / "t")[-1].startswith("2,50,400,")
    # what the script holds is as before
    for path, one in net.collect_params().items():
        np.testing.assert_array_equal(one.data().asnumpy(), before[path])
    for path, one in ema.state_arrays().items():
        np.testing.assert_array_equal(one.asnumpy(), averages[path])
    for wrong, words in (({"los": "l2"}, "did you mean 'loss'"), ({"loss": "l2"}, "expected the arguments of fit")):
        with pytest.raises(ValueError, match=words):
            mxkit.export(net, tmp_path / "u", training=wrong)


class Heads(mx.gluon.HybridBlock):
    def __init__(self, *units):
        super().__init__()
        self.body, self.heads = mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.HybridSequential()
        self.heads.add(*map(mx.gluon.nn.Dense, units))

    def hybrid_forward(self, F, *inputs):
        shared = self.body(F.concat(*inputs, dim=1) if len(inputs) > 1 else inputs[0])
        found = tuple(head(shared) for head in self.heads)
        return found if len(found) > 1 else found[0]


@pytest.mark.torch
@needs("torch")
def test_several_inputs_and_labels_leave(tmp_path):
    """Two inputs with a weight for each sample; and two heads, whose loss is the user's."""
    random = np.random.RandomState(0)
    x, z = random.normal(size=(2, 80, 6)).astype(np.float32)
    y, weight = np.arange(80) % 3, random.uniform(0.1, 3, 80).astype(np.float32)
    softmax_ce, l2, runs = *map(mxkit.losses.get_loss, ("softmax_ce", "l2")), []

    def both(net, inputs, labels):
        digit, size = net(*inputs)
        return softmax_ce(digit, labels[0]) + l2(size, labels[1]), (digit, size)

    for place, (inputs, loss) in enumerate([((x, z), "softmax_ce"), (x, both)]):
        net = Heads(3, 1) if place else Heads(3)
        mxkit.initialize(net, sample=(x, z)[: 2 - place])
        settings = {
            "train": mxkit.data.ArrayLoader(inputs, (y, weight), batch_size=16, shuffle=True, seed=3),
            **({} if place else {"valid": mxkit.data.ArrayLoader(inputs, y[:, None], batch_size=16)}),
            "loss": mxkit.losses.BatchLoss(forward=loss) if place else loss,
            "trainer": ("adam", {"learning_rate": 0.01}),
            "epochs": 2,
        }
        folder = tmp_path / str(place)
        exported = mxkit.export(net, folder, training=settings, partial=bool(place))
        assert exported.proof.worst.relative < 5e-5
        kinds = [row.operator for row in exported.proof.rows]
        assert {"data", "loss", "gradient", "value"} <= {*kinds}
        assert kinds.count("loss") == 10
        text = (folder / "train.py").read_text()
        assert ("for *x, label, weight in window:", "for x, label, *others in window:")[place] in text
        assert len(exported.notes) == 1 + place
        runs.append((net, settings))
    assert "    # def both(net, inputs, labels):\n" in text
    row = history(tmp_path / "0")[-1].split(",")
    assert row[:3] == ["2", "10", "80"]
    whole = mxkit.fit(runs[0][0], **runs[0][1], progress=False)
    assert float(row[-1]) == pytest.approx(whole[-1]["valid_loss"], rel=1e-4)


@pytest.mark.torch
@needs("torch")
def test_a_language_model_leaves(tmp_path):
    """Outputs of several positions, and a loss of gluon's over them."""
    words = np.random.RandomState(0).randint(0, 30, (48, 13)).astype(np.int32)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(30, 8), mx.gluon.rnn.LSTM(8, layout="NTC"), mx.gluon.nn.Dense(30, flatten=False))
    mxkit.initialize(net, "xavier", sample=words[:2, :-1])
    settings = {
        "train": mxkit.data.ArrayLoader(words[:, :-1], words[:, 1:, None], batch_size=16, shuffle=True, seed=3),
        "valid": mxkit.data.ArrayLoader(words[:16, :-1], words[:16, 1:], batch_size=16),
        "loss": mx.gluon.loss.SoftmaxCrossEntropyLoss(),
        "trainer": ("adam", {"learning_rate": 0.01}),
        "epochs": 2,
        "metrics": ["accuracy", ("accuracy", {"ignore_label": 0, "name": "of_words"})],
    }
    assert mxkit.export(net, tmp_path / "t", training=settings).proof.worst.relative < 5e-5
    assert "Metrics without code here: of_words." in (tmp_path / "t" / "README.md").read_text()
    row = history(tmp_path / "t")[-1].split(",")
    whole = mxkit.fit(net, **settings, progress=False)[-1]
    names = ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy")
    assert [float(one) for one in row[4:]] == pytest.approx([whole[name] for name in names], rel=1e-4)
    refuse("positions", missing_parts(*recipe_of_fit(net, {**settings, "loss": ("softmax_ce", {"axis": 1})})[:2]))
    with pytest.raises(ExportError, match="loss softmax_ce with axis"):
        refuse("positions", missing_parts(*recipe_of_fit(net, {**settings, "loss": ("softmax_ce", {"axis": 2})})[:2]))


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize("norm", ["InstanceNorm", "LRN", "GroupNorm"])
def test_norms_leave_as_mxnet_computes_them(norm, tmp_path):
    """Two have no kernel in double precision; gluon's GroupNorm has a gamma for a group, PyTorch's for a channel."""
    nn, random = mx.gluon.nn, np.random.RandomState(0)
    net = nn.HybridSequential()
    norms = {"InstanceNorm": nn.InstanceNorm(scale=True), "GroupNorm": nn.GroupNorm(2)}
    middle = norms.get(norm, nn.HybridLambda(lambda F, x: F.LRN(x, nsize=3)))
    net.add(nn.Conv2D(6, 3, activation="relu"), middle, nn.Dense(4))
    x, y = random.uniform(size=(24, 2, 8, 8)).astype(np.float32), random.randint(0, 4, 24)
    mxkit.initialize(net, "xavier", sample=x[:2])
    net.hybridize()
    train = mxkit.data.ArrayLoader(x, y, batch_size=8, shuffle=True)
    settings = {"train": train, "loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1}), "epochs": 3}
    assert mxkit.export(net, tmp_path / "t", training=settings).proof.worst.relative < 5e-5
    scaled = {**settings, "trainer": ("sgd", {"learning_rate": 0.1, "rescale_grad": 0.5})}
    with pytest.raises(ExportError, match="optimizer sgd with rescale_grad: write the `step`"):
        refuse("a fit", missing_parts(*recipe_of_fit(net, scaled)[:2]))


@pytest.mark.parametrize(
    ("loss", "normalized", "what"), [("faster_rcnn", False, "faster_rcnn took"), ("ssd", True, "BatchNorm took")]
)
def test_a_run_on_several_devices_is_refused_where_they_count(loss, normalized, what):
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ExportError, match=f"{what} .*each device's share of a batch, .* a run on one device leaves"):
        leaving._check_net(net, SimpleNamespace(trained={}), loss, normalized)


@pytest.mark.torch
@needs("torch")
def test_sparse_gradients_are_refused_by_name(tmp_path):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(9, 4, sparse_grad=True), mx.gluon.nn.Dense(3))
    x = np.random.RandomState(0).randint(0, 9, (24, 5)).astype(np.int32)
    mxkit.initialize(net, "xavier", sample=x[:2])
    train = mxkit.data.ArrayLoader(x, x[:, 0] % 3, batch_size=8, shuffle=True)
    settings = {"train": train, "loss": "softmax_ce", "trainer": ("adam", {"learning_rate": 0.1}), "epochs": 2}
    with pytest.raises(ExportError, match=r"0\.weight: the optimizer changes the rows of a batch only"):
        mxkit.export(net, tmp_path / "t", training=settings)


def asymmetric(output, label):
    """Too much costs twice as much as too little."""
    apart = output - label
    return mx.nd.maximum(2 * apart, -apart).mean(axis=1)


class Shouts(mxkit.Callback):
    def on_epoch(self, state, row):
        state.stop("loud enough") if row["train_loss"] < 0 else None


class Cube(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] ** 3)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 3 * in_data[0] ** 2 * out_grad[0])


@mx.operator.register("cube_of_a_user")
class CubeProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Cube()


class WithCube(mx.gluon.nn.HybridSequential):
    def hybrid_forward(self, F, x):
        return F.Custom(super().hybrid_forward(F, x), op_type="cube_of_a_user")


@pytest.mark.torch
@needs("torch")
def test_what_has_no_code_is_marked_and_the_rest_is_compared(tmp_path):
    for name, size in (("x", 6), ("y", 2)):
        np.savetxt(tmp_path / name, np.random.RandomState(0).normal(size=(80, size)), delimiter=",")
    files = {"data_csv": str(tmp_path / "x"), "label_csv": str(tmp_path / "y")}
    rows = mx.io.CSVIter(**files, data_shape=(6,), label_shape=(2,), batch_size=16)
    net = mxkit.models.mlp(2, hidden=[8])
    mxkit.initialize(net)
    settings = {"train": rows, "loss": asymmetric, "trainer": ("adam", {"learning_rate": 0.01}), "epochs": 2}
    settings.update(callbacks=[Shouts()], clip_norm=0.1)
    with pytest.raises(ExportError) as refused:
        mxkit.export(net, tmp_path / "t", training=settings)
    for words in (
        "loss asymmetric: write `losses`",
        "which makes its batches itself",
        "callback Shouts",
    ):
        assert words in str(refused.value)
    exported = mxkit.export(net, tmp_path / "t", training=settings, partial=True)
    assert len(exported.notes) == 4
    kinds = [row.operator for row in exported.proof.rows]
    assert set(kinds) == {"schedule", "freeze", "loss", "gradient", "value", "slot"}
    assert kinds.count("loss") == 10
    text = (tmp_path / "t" / "train.py").read_text()
    assert "    # def asymmetric(output, label):\n" in text
    assert '    #         state.stop("loud enough")' in text
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path / "t", capture_output=True, text=True, check=False)
    assert "NotImplementedError: data train, which makes" in done.stderr


@pytest.mark.torch
@needs("torch")
def test_an_operator_and_an_optimizer_without_code_are_marked(tmp_path):
    x = np.random.RandomState(0).normal(size=(80, 6)).astype(np.float32)
    net = WithCube()
    net.add(mx.gluon.nn.Dense(2))
    mxkit.initialize(net)
    loader = mxkit.data.ArrayLoader(x, x[:, :2], batch_size=16, shuffle=True)
    settings = {"train": loader, "loss": "l2", "trainer": ("signum", {"learning_rate": 0.01}), "epochs": 2}
    with pytest.raises(ExportError, match="optimizer signum"):
        mxkit.export(net, tmp_path / "t", training=settings)
    exported = mxkit.export(net, tmp_path / "t", training=settings, partial=True)
    assert {row.operator for row in exported.proof.rows} == {"schedule", "data", "freeze"}
    assert 'not_written("cube_of_a_user", ' in (tmp_path / "t" / "net.py").read_text()
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path / "t", capture_output=True, text=True, check=False)
    assert "NotImplementedError: cube_of_a_user" in done.stderr


@pytest.mark.torch
@needs("torch")
def test_mistakes_in_averages_and_turns_are_found(averaged, tmp_path):
    rows = prover(averaged, tmp_path, 6, start=True)  # later Nadam's product is nothing
    assert rows() == []
    planted = [
        ("state.json", '"averaged": 0', '"averaged": 1', "average"),
        ("train.py", '** state["turn"]', "", "value"),
        ("train.py", ">= ACCUMULATE", "> 2 * ACCUMULATE", "data"),
        ("train.py", " * weights[label]", "", "loss"),
    ]
    for *edit, kind in planted:
        assert kind in {row.operator for row in rows(edit)}, edit


SETTINGS = {
    "sgd": [{}, {"momentum": 0.9, "wd": 0.1}, {"momentum": 0.9, "clip_gradient": 0.3, "wd": 0.1}],
    "nag": [{"momentum": 0.9, "wd": 0.1}],
    "adam": [{"wd": 0.1}, {"beta1": 0.8, "epsilon": 1e-3, "clip_gradient": 0.3, "wd": 0.1}],
    "adagrad": [{"wd": 0.1, "eps": 1e-3}],
    "adadelta": [{"wd": 0.01, "clip_gradient": 0.3}],
    "rmsprop": [{"wd": 0.1}, {"clip_gradient": 0.3, "wd": 0.1}],
    "centered rmsprop": [{"wd": 0.1, "centered": True}],
    "adamax": [{"wd": 0.1, "clip_gradient": 0.3}],
    "ftrl": [{"wd": 0.1}],
    "lamb": [{"wd": 0.1}],
    "nadam": [{"wd": 0.1}, {"schedule_decay": 0.1, "beta1": 0.8, "clip_gradient": 0.3, "wd": 0.1}],
}


def test_every_rule_has_settings():
    assert set(SETTINGS) == set(RULES)


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize(("name", "settings"), [(name, one) for name, many in SETTINGS.items() for one in many])
def test_fifty_steps_of_an_optimizer_under_a_schedule(name, settings):
    import torch

    random = np.random.RandomState(0)
    kind, arguments = name.rpartition(" ")[2], {**settings, "learning_rate": 0.1}
    if name == "adadelta":
        del arguments["learning_rate"]
    optimizer = mx.optimizer.create(kind, **arguments)
    updater = mx.optimizer.get_updater(optimizer)
    weight = mx.nd.array(random.normal(size=(4, 3)))
    names = {"torch": torch, "math": __import__("math")}
    exec(optimizer_class(optimizer), names)
    slots = {"product": 1.0, "turn": 1} if name == "nadam" else {}
    copy = torch.nn.Parameter(torch.tensor(weight.asnumpy()))
    group = {"params": [copy], "weight_decay": optimizer.wd}
    step = names[type(optimizer).__name__]([group])
    step.state[copy].update(slots)
    for number in range(1, 51):
        gradient, rate = random.normal(size=(4, 3)).astype(np.float32), 0.1 / number**0.5
        if name != "adadelta":
            optimizer.set_learning_rate(rate)
        updater(0, mx.nd.array(gradient), weight)
        copy.grad = torch.tensor(gradient)
        step.param_groups[0]["lr"] = rate
        step.step()
    np.testing.assert_allclose(copy.detach().numpy(), weight.asnumpy(), rtol=2e-5, atol=2e-6)
    held = updater.states[0]
    held = [] if held is None else held if isinstance(held, tuple) else [held]
    for slot, array in zip(rule_of(optimizer).slots, held):
        np.testing.assert_allclose(step.state[copy][slot].numpy(), array.asnumpy(), rtol=5e-5, atol=1e-6)


CLASSES, SIGNS, NUMBERS, POSITIONS = "classes", "signs", "numbers", "positions"
LOSSES = [
    ("contrastive", {"margin": 1.5}, "bits"),
    ("focal", {"gamma": 1.5, "class_weight": {"0": 0.5, "2": 3.0}}, CLASSES),
    ("focal", {"class_weight": {"0": 0.5, "2": 3.0}}, POSITIONS),
    ("hinge", {}, SIGNS),
    ("hinge", {"margin": 0.3}, SIGNS),
    ("huber", {}, NUMBERS),
    ("huber", {"rho": 0.4}, NUMBERS),
    ("l1", {}, NUMBERS),
    ("l2", {}, NUMBERS),
    ("label_smoothing", {}, CLASSES),
    ("label_smoothing", {"epsilon": 0.3, "class_weight": [0.5, 2.0, 1.0], "weight": 0.7}, CLASSES),
    ("logistic", {}, SIGNS),
    ("sigmoid_bce", {}, "bits"),
    ("sigmoid_bce", {"class_weight": [0.5, 3.0], "pos_weight": [1.0, 2.0, 0.5], "weight": 2}, "bits"),
    ("softmax_ce", {}, CLASSES),
    ("softmax_ce", {"class_weight": [0.5, 2.0, 1.0]}, CLASSES),
    ("label_smoothing", {"weight": 0.7}, POSITIONS),
    ("softmax_ce", {}, POSITIONS),
    ("softmax_ce", {"axis": 1, "class_weight": [0.5, 2.0, 1.0]}, POSITIONS),
    ("squared_hinge", {"margin": 2.0}, SIGNS),
]


def test_every_loss_with_code_is_compared():
    assert set(texts.LOSSES) == {name for name, _, _ in LOSSES} | {"pixel_ce", "pose", *DETECTORS}


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize(("name", "arguments", "kind"), LOSSES)
def test_a_loss_gives_mxnets_value_for_each_sample(name, arguments, kind):
    import torch

    random = np.random.RandomState(0)
    output = random.normal(size=(6, 3)).astype(np.float32)
    numbers = random.normal(size=(6, 3))
    label = {CLASSES: np.arange(6) % 3, SIGNS: np.sign(numbers), NUMBERS: numbers, "bits": numbers > 0}
    label = {**label, POSITIONS: np.arange(24).reshape(6, 4) % 3}[kind]
    label, weight = label.astype(np.float32), np.arange(1, 7, dtype=np.float32)
    if kind == POSITIONS:
        output = random.normal(size=(6, 3, 4) if arguments.get("axis") else (6, 4, 3)).astype(np.float32)
    output = output if name != "contrastive" else np.stack([output, output[::-1]])
    label = label if name != "contrastive" else label[:, 0]
    for more in ([], [weight]):
        names = {"torch": torch, "F": torch.nn.functional}
        signature = "def losses(output, label, weight=None):\n"
        exec(signature + texts.loss_text(name, arguments, weighted=bool(more), axes=output.ndim), names)
        pair = list(map(mx.nd.array, output)) if len(output) == 2 else mx.nd.array(output)
        expected = mxkit.losses.get_loss((name, arguments))(pair, *map(mx.nd.array, [label, *more])).asnumpy()
        wide = torch.tensor(output, dtype=torch.float64, requires_grad=True)  # as the proof computes
        found = names["losses"](wide, *map(torch.tensor, [label, *more]))
        found.sum().backward()
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize(
    ("loss", "shape", "labels"),
    [
        ("softmax_ce", (6, 3), [0, 1, 2, 0, 1, 2]),
        ("softmax_ce", (6, 2, 3), np.arange(12).reshape(6, 2, 1) % 3),
        (("softmax_ce", {"axis": 1}), (6, 3, 2), np.arange(12).reshape(6, 2) % 3),
        *[(name, (6, 1), [1, -1, 1, 1, -1, -1]) for name in ("hinge", "squared_hinge", "logistic")],
        ("logistic", (6, 3), np.where(np.arange(18).reshape(6, 3) % 2, 1, -1)),
        ("sigmoid_bce", (6, 3), np.arange(18).reshape(6, 3) % 2),
        (("sigmoid_bce", {"from_sigmoid": True}), (6, 3), np.arange(18).reshape(6, 3) % 2),
    ],
)
def test_accuracy_is_mxkits_under_every_loss(loss, shape, labels):
    import torch

    scores = np.random.RandomState(0).uniform(0, 1, shape).astype(np.float32)
    metric, labels = Accuracy(), np.array(labels, np.float32)
    scores = scores if "from_sigmoid" in str(loss) else scores * 4 - 2
    metric.loss = mxkit.losses.get_loss(loss)
    metric.update([mx.nd.array(labels)], mx.nd.array(scores))
    names = {"torch": torch}
    exec(texts.metric_text({"accuracy": texts.accuracy_text(metric._task, scores.ndim)}), names)
    found = names["accuracy"](torch.tensor(scores), torch.tensor(labels))
    assert found / 6 == pytest.approx(metric.get())


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize("name", ["pixel_ce", "pose"])
def test_a_loss_that_calls_the_net_gives_mxnets_value_for_each_image(name):
    """The first output of the masks is smaller than they are."""
    import torch

    random = np.random.RandomState(0)
    images = mx.nd.zeros((2, 3, 64, 32))
    if name == "pixel_ce":
        made, label = mxkit.losses.net_losses.PixelLoss(aux_weight=0.3), random.randint(-1, 3, (2, 16, 8))
        output = [random.normal(size=(2, 3, *size)).astype(np.float32) for size in ((8, 4), (16, 8))]
        arguments = {"weights": (1.0, 0.3)}
    else:
        made, label = mxkit.losses.net_losses.PoseLoss(), random.randint(0, 32, (2, 4, 3)) % [32, 64, 2]
        output, arguments = [random.normal(size=(2, 4, 16, 8)).astype(np.float32)], {"sigma": 1.0, "scale": 0.25}
    label = label.astype(np.float32)
    names = {"torch": torch, "F": torch.nn.functional}
    count = texts.COUNTS.get(name, "") + texts.metric_text({"pixel_accuracy": texts.PIXEL_ACCURACY})
    exec(f"def losses(output, label):\n{texts.loss_text(name, arguments)}\n{count}", names)
    arrays, tensors = [mx.nd.array(one) for one in output], tuple(map(torch.tensor, output))
    arrays, tensors = (arrays, tensors) if name == "pixel_ce" else (arrays[0], tensors[0])
    expected, _ = made.forward(lambda x: arrays, (images,), (mx.nd.array(label),))
    found = names["losses"](tensors, torch.tensor(label))
    np.testing.assert_allclose(found.numpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)
    if name == "pixel_ce":
        metric = mxkit.metrics.get_metrics([name.replace("ce", "accuracy")])[0]
        metric.update([mx.nd.array(label)], arrays)
        pixels = names["count"](torch.tensor(label))
        assert names["pixel_accuracy"](tensors, torch.tensor(label)) / pixels == pytest.approx(metric.get())
        assert pixels == made.count((), (label,))


DETECTORS = {"centernet": {"size_weight": 0.3}, "faster_rcnn": {"samples": 3}, "yolo3": {}}
DETECTORS["ssd"] = {"negatives": 2, "box_weight": 0.7}
# An image with two objects of one place and size, one without objects, and one with three, of which one is flat.
BOXES = np.full((3, 3, 6), -1, np.float32)
BOXES[0, :2] = [[10, 12, 40, 44, 0, 0], [10, 12, 40, 44, 2, 0]]
BOXES[2] = [[0, 0, 63, 60, 1, 0], [5, 50, 12, 62, 2, 0], [30, 8, 60, 10, 0, 1]]


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize("name", DETECTORS)
def test_a_detectors_loss_gives_mxnets_value_for_each_image(name, monkeypatch):
    import torch

    mxkit.seed_all(0)
    net = mxkit.models.get_model(f"small_{name}", classes=3, size=64)
    mxkit.initialize(net, sample=(1, 3, 64, 64))
    x = mx.nd.random.uniform(shape=(3, 3, 64, 64))
    arguments = {**DETECTORS[name], **detectors.arguments_of(net, (64, 64))}
    names = {"torch": torch, "F": torch.nn.functional}
    exec(f"def losses(output, label):\n{texts.loss_text(name, arguments)}", names)
    table = BOXES.copy()
    if name == "faster_rcnn":  # more objects than the anchors of an odd number of samples have
        table[0, 1, :4] = [33, 30, 63, 62]
    loss, labels, kept = NET_LOSSES[name](**DETECTORS[name]), mx.nd.array(table), {"yolo3": (0, 4, 5, 6, 7)}
    kept["faster_rcnn"] = (0, 1, 5, 6, 7, 8, 9, 10)
    monkeypatch.setattr(torch, "randperm", lambda count, device: torch.arange(count))
    found, expected = [], []
    for one in range(3):  # Faster R-CNN takes one image
        image, label = x[one : one + 1], labels[one : one + 1]
        objects = [label[:, :, :4], label[:, :, 4:5]] if name == "faster_rcnn" else []
        with detectors.with_given_draws(net), mx.autograd.record():
            expected.append(loss.forward(net, (image,), (label,)).asscalar())
        with detectors.with_given_draws(net), mx.autograd.train_mode():  # the same numbers again
            outputs = net(image, *objects)
        outputs = [torch.tensor(outputs[place].asnumpy()) for place in kept.get(name, range(len(outputs)))]
        found.append(names["losses"](outputs, torch.tensor(table[one : one + 1])))
    np.testing.assert_allclose(torch.cat(found).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert [one > 0 for one in expected] == [True, name != "ssd", True]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("constant", {"warmup": "3 updates"}),
        ("cosine", {"total": "2 epochs", "warmup": "3 updates", "final": 0.01}),
        ("poly", {"total": "20 updates", "power": 3}),
        ("step", {"every": "4 updates", "factor": 0.5, "final": 0.02}),
        ("multi_step", {"at": ["3 updates", "1 epoch"], "warmup": "2 updates"}),
        ("one_cycle", {"total": "20 updates"}),
        ("one_cycle", {"total": "20 updates", "warmup": "7 updates", "start": 0.02, "final": 0.001}),
    ],
)
def test_the_rate_is_a_function_of_the_updates_number(name, options):
    curve = schedule(name, base=0.1, **options)
    names = {"math": __import__("math")}
    exec(f"def rate(update):\n{rate_text(curve, 10)}", names)
    written = [names["rate"](number) for number in range(1, 31)]
    np.testing.assert_allclose(written, curve.rates(30, 10), rtol=1e-12, atol=1e-15)


REFUSED = {
    "signum": ({"optimizer": {"name": "signum", "learning_rate": 0.01}}, "optimizer signum: write the `step`"),
    "clip_weights": ({"optimizer": {"name": "rmsprop", "clip_weights": 1.0}}, "rmsprop with clip_weights"),
    "ctc": ({"loss": "ctc"}, "loss ctc: write `losses`"),
    "from_sigmoid": ({"loss": {"name": "sigmoid_bce", "from_sigmoid": True}}, "sigmoid_bce with from_sigmoid"),
    "ema": ({"callbacks": [{"name": "ema"}, {"name": "ema"}]}, "callback ema: write it in `after_epoch`"),
    "amp": ({"amp": "float16"}, "amp float16: train.py takes --amp bfloat16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_code_is_refused_by_name(name):
    changed, words = REFUSED[name]
    recipe = load_recipe({**RECIPE, **changed})
    with pytest.raises(ExportError, match=rf"{words}.*partial=True"):
        refuse(recipe.name, missing_parts(recipe, load_data(recipe)))


def test_only_runs_leave_as_trainings(tmp_path):
    net = mxkit.models.mlp(3, hidden=[4])
    mxkit.initialize(net)
    refusals = [
        (net, {}, "takes the folder of a run"),
        (tmp_path, {"format": "onnx"}, "takes the folder of a run"),
        (tmp_path, {"which": "best", "overwrite": True}, "takes no which, overwrite"),
        (tmp_path, {"verify": False}, "takes no verify"),
    ]
    for source, options, words in refusals:
        with pytest.raises(ValueError, match=words):
            mxkit.export(source, tmp_path / "t", training=True, **options)
    with pytest.raises(ValueError, match="partial=True writes a training"):
        mxkit.export(net, tmp_path / "t", partial=True)
