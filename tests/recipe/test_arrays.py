"""Recipes with `arrays: np`: all of a run in code of mx.np, and the switches of MXNet stay as they were."""

import json
import sys

import mxkit
from mxkit.core.arrays import switches
from mxkit.core.blocks import is_numpy_net
from mxkit.errors import RecipeError
from mxkit.losses.named_losses import LOSSES
from mxkit.metrics import METRICS
from mxkit.models.registry import MODELS
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import as_script, load_run, resume_run, run_recipe
from mxkit.recipe.vocabulary import DATASETS
from mxnet.util import is_np_array, is_np_shape
import numpy as np
import pytest
from recipe_parts import SMALL, answers, prepared, refusal
from sharing import command
from test_script import run_script

OWN = {
    "name": "own",
    "arrays": "np",
    "imports": ["np_parts"],
    "data": {"name": "np_blobs", "batch_size": 16},
    "model": {"name": "np_net", "outputs": 3},
    "loss": "np_cross_entropy",
    "optimizer": {"name": "adam", "learning_rate": 0.01},
    "epochs": 2,
    "metrics": ["accuracy", "np_sureness"],
}
PARTS = """
import mxkit
from mxnet import gluon, np, npx
from mxnet.gluon import nn
import numpy as onp

npx.set_np()
SHIFT = np.zeros(())  # a shape that only mx.np has


@mxkit.register("model", "np_net")
class Net(nn.HybridBlock):
    def __init__(self, outputs=3):
        super().__init__()
        if outputs < 1:
            raise ValueError("outputs: expected 1 or more")
        self.inner, self.outer = nn.Dense(16, in_units=4), nn.Dense(outputs, in_units=16)

    def hybrid_forward(self, F, x):
        return self.outer(F.npx.relu(F.np.concatenate([self.inner(x)], axis=1)))


@mxkit.register("loss", "np_cross_entropy")
class Loss(gluon.loss.Loss):
    def __init__(self):
        super().__init__(weight=None, batch_axis=0)

    def hybrid_forward(self, F, scores, labels):
        return -F.npx.pick(F.npx.log_softmax(scores, axis=-1), labels)


@mxkit.register("metric", "np_sureness")
class Sureness(mxkit.Metric):
    name = "sureness"

    def per_sample(self, labels, output):
        return np.max(npx.softmax(output), axis=1)


@mxkit.register("data", "np_blobs")
def blobs():
    random = onp.random.RandomState(0)
    x = np.array(random.rand(80, 4), dtype="float32") + SHIFT
    y = np.array(onp.arange(80) % 3, dtype="int32")
    x[:, 0] += y
    part = mxkit.data.Split(x, y)
    return mxkit.data.Splits(part, None, part, ["a", "b", "c"])
"""


def switched():
    return is_np_array(), is_np_shape()


@pytest.fixture(autouse=True)
def _switches_stay():
    """Every test of this file leaves the switches of its thread as they were."""
    yield
    assert switched() == (False, False)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A recipe whose module is in code of mx.np; its names are gone afterwards."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "np_parts.py").write_text(PARTS, encoding="utf-8")
    yield {**OWN, "import_path": str(folder)}
    sys.modules.pop("np_parts", None)
    for table in (DATASETS, LOSSES, METRICS, MODELS):
        for name in [name for name in table if name.startswith("np_")]:
            del table[name]


@pytest.fixture(scope="module")
def run(own, tmp_path_factory):
    return run_recipe(own, output=tmp_path_factory.mktemp("runs"), progress=False)


def test_both_kinds_score_alike(tmp_path):
    runs = {
        arrays: run_recipe(SMALL, overrides=[f"arrays={arrays}"], output=tmp_path, progress=False)
        for arrays in ("nd", "np")
    }
    assert runs["np"].scores == runs["nd"].scores
    assert is_numpy_net(runs["np"].net)
    with switches(True):
        run = run_recipe(SMALL, output=tmp_path, progress=False)  # the recipe decides, not the thread
        assert switched() == (True, True)
    assert run.scores == runs["nd"].scores
    assert not is_numpy_net(run.net)
    x = np.random.RandomState(0).rand(4, 1, 8, 8).astype(np.float32)
    recipe = load_recipe(SMALL)
    assert answers(recipe, [], mxkit.predict(runs["np"].net, x)) == answers(recipe, [], mxkit.predict(run.net, x))
    for arrays, one in runs.items():
        assert json.loads((one.folder / "environment.json").read_text(encoding="utf-8"))[0]["arrays"] == arrays


def test_own_parts_in_code_of_np_train_and_travel(own, run, tmp_path, forks):
    assert run.scores["accuracy"] > 0.4
    assert run_script(forks, as_script(load_recipe(own)), tmp_path) == run.scores
    _, net = load_run(run.folder)
    assert is_numpy_net(net)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(mxkit.predict(net, x).asnumpy(), mxkit.predict(run.net, x).asnumpy())
    for words, text in [
        (["evaluate", run.folder], f"test accuracy {run.scores['accuracy']:.4f}"),
        (["layers", run.folder], "131 parameters"),
        (["export", run.folder, tmp_path / "net"], "input data (N, 4) float32"),
        (["report", run.folder], "report.html"),
    ]:
        code, out, err = command(*words)
        assert (code, text in out) == (0, True), (words, out, err)
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "arrays: np" in page
    assert "Confusion" in page
    assert resume_run(run.folder, overrides=["epochs=3"], progress=False).history[-1]["updates"] == 15


def test_a_resume_keeps_its_kind_of_arrays(run):
    with pytest.raises(RecipeError, match=r"arrays was 'np', is 'nd': a resumed run keeps it.*--set arrays=nd"):
        resume_run(run.folder, overrides=["arrays=nd"], progress=False)


def test_mistakes_are_refused_at_once(tmp_path):
    text = refusal({**SMALL, "arrays": "numpy", "seed": -0.5})
    assert "arrays: input should be 'nd' or 'np'; received 'numpy'; accepted: nd, np" in text
    assert "seed: " in text
    (tmp_path / "np_switch.py").write_text("from mxnet import npx\nnpx.set_np()\n", encoding="utf-8")
    content = {**SMALL, "imports": ["np_switch"], "import_path": str(tmp_path), "metrics": ["accurcy"]}
    for _ in range(2):  # the second time Python has loaded the module
        text = refusal(content)
        assert "arrays: the module 'np_switch' calls npx.set_np(), its code is of mx.np; received 'nd'" in text
        assert "did you mean 'accuracy'" in text
        assert switched() == (False, False)


def test_an_error_restores_the_switches(own):
    with switches(True):
        assert "model: outputs: expected 1 or more" in refusal(
            {**own, "model": {"name": "np_net", "outputs": -1}}, check=prepared
        )
        assert switched() == (True, True)
