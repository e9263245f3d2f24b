"""Weights from the Hugging Face hub, by the real huggingface_hub, from a server on this machine."""

import json

from hub_server import fresh_hub, running_hub
import mxkit
from mxkit.errors import CheckpointError, DownloadError, RecipeError
from mxkit.models import get_model
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import new_run, resume_run, run_recipe, stopped_run
from mxkit.storage.hub import find_hub_file
import mxnet as mx
import numpy as np
import pytest
from sharing import needs, text_of

pytestmark = needs("huggingface_hub")
SMALL = {
    "name": "small",
    "data": {"name": "digits", "batch_size": 256},
    "model": {"name": "mlp", "hidden": [4], "weights": "hf://lab/digits"},
    "loss": "softmax_ce",
    "optimizer": "adam",
    "epochs": 1,
    "devices": "cpu",
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    yield from running_hub(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Two safetensors files of one net, with other values."""
    made = []
    for seed in (0, 1):
        mxkit.seed_all(seed)
        net = mxkit.models.mlp(hidden=(4,))
        mxkit.initialize(net, sample=mx.nd.ones((1, 64)))
        path = tmp_path_factory.mktemp("net") / "model"
        mxkit.export(net, path, format="safetensors", verify=False)
        made.append(path.with_suffix(".safetensors").read_bytes())
    return made


def loaded(weights):
    net = get_model("mlp", hidden=(4,), weights=weights)
    return net[-1].weight.data().asnumpy()


def refusal(kind, address):
    return text_of(kind, find_hub_file, address)


def test_a_revision_and_a_file_are_chosen_and_the_commit_is_told(hub, contents):
    first = hub.commit("lab/digits", {"model.safetensors": contents[0], "pytorch_model.bin": b"pickle"})
    old = loaded("hf://lab/digits")
    second = hub.commit("lab/digits", {"model.safetensors": contents[1], "more/of it.safetensors": contents[0]})
    hub.commit("lab/digits", {"model.safetensors": contents[0]}, branch="refs/pr/1")
    np.testing.assert_array_equal(loaded(f"hf://lab/digits@{first}"), old)
    assert (loaded("hf://lab/digits/model.safetensors") != old).any()
    np.testing.assert_array_equal(loaded("hf://lab/digits@refs/pr/1"), old)
    found = find_hub_file("hf://lab/digits@main/more/of it.safetensors")
    assert found.address == f"hf://lab/digits@{second}/more/of it.safetensors"
    assert found.path.read_bytes() == contents[0]
    asked = len(hub.asked)
    assert find_hub_file(found.address) == found
    assert len(hub.asked) == asked  # a commit in the cache asks no server
    mxkit.load_parameters(mxkit.models.mlp(hidden=(4,)), "hf://lab/digits/model.safetensors", only="*.bias")
    assert not any(path.startswith("GET") and path.endswith(".bin") for path in hub.asked)


FORM = "expected hf://owner/name[@revision][/file.safetensors]"
REFUSED = [
    ("hf://digits", ValueError, FORM),
    ("hf://lab/digits@", ValueError, FORM),
    ("hf://lab//x.safetensors", ValueError, FORM),
    ("hf://lab/digits/pytorch_model.bin", ValueError, "may run code; received pytorch_model.bin"),
    ("hf://lab/none", DownloadError, "Repository Not Found"),
    ("hf://lab/digits", ValueError, "choose one with hf://lab/digits/FILE: a.safetensors, b.safetensors"),
    ("hf://lab/digits/c.safetensors", DownloadError, "Entry Not Found"),
    ("hf://lab/digits@v2", DownloadError, "Revision Not Found"),
    ("hf://lab/pickled", ValueError, "received README.md, pytorch_model.bin"),
    ("hf://lab/gated/a.safetensors", DownloadError, "Cannot access gated repo"),
    ("hf://lab/private/a.safetensors", DownloadError, "Repository Not Found"),
]


def test_errors_say_what_is_there(hub, contents, monkeypatch, tmp_path):
    hub.commit("lab/digits", {"b.safetensors": contents[0], "a.safetensors": contents[0]})
    hub.commit("lab/pickled", {"pytorch_model.bin": b"", "README.md": b""})
    for name, kept_from in (("lab/gated", hub.gated), ("lab/private", hub.private)):
        hub.commit(name, {"a.safetensors": contents[0]})
        kept_from.add(name)
    for address, kind, words in REFUSED:
        assert words in refusal(kind, address), address
    with pytest.raises(CheckpointError, match=r"(?s)model 'mlp': .*another shape: 1\.weight is \(4, 64\) in the file"):
        get_model("mlp", hidden=(5,), weights="hf://lab/digits/a.safetensors")
    siamese = {"name": "siamese", "branch": {"name": "mlp", "hidden": [4]}, "weights": "hf://lab/digits/a.safetensors"}
    mistyped, several = ({**SMALL["model"], "weights": f"hf://{name}"} for name in ("digits", "lab/digits"))
    refused = [(mistyped, "expected hf://owner/name"), (several, "has several files")]
    for model, words in [*refused, (siamese, "CheckpointError: .*a.safetensors")]:
        with pytest.raises(RecipeError, match=f"model.weights: .*{words}"):
            new_run({**SMALL, "model": model}, output=tmp_path)
    fresh_hub(monkeypatch, HF_TOKEN="good")
    assert find_hub_file("hf://lab/private/a.safetensors").path.is_file()
    hub.broken = 500
    assert f"cannot be downloaded from {hub.url}: HfHubHTTPError" in refusal(DownloadError, "hf://lab/digits")
    fresh_hub(monkeypatch, HF_ENDPOINT="http://127.0.0.1:9")
    assert "cannot be downloaded from http://127.0.0.1:9: Connect" in refusal(DownloadError, "hf://lab/digits")


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "MXKIT_OFFLINE"])
def test_offline_the_cache_is_used(hub, contents, monkeypatch, variable):
    sha = hub.commit("lab/digits", {"model.safetensors": contents[0], "b.safetensors": contents[0]})
    find_hub_file("hf://lab/digits/model.safetensors")
    fresh_hub(monkeypatch, **{variable: "1"})
    asked = len(hub.asked)
    for address in ("hf://lab/digits", "hf://lab/digits/model.safetensors", f"hf://lab/digits@{sha}"):
        assert find_hub_file(address).address == f"hf://lab/digits@{sha}/model.safetensors"
    for address in ("hf://lab/other", "hf://lab/digits@v2", "hf://lab/digits/b.safetensors"):
        assert "forbids the network" in refusal(DownloadError, address)
    assert len(hub.asked) == asked


def test_a_run_keeps_the_commit_of_its_weights(hub, contents, tmp_path):
    sha = hub.commit("lab/digits", {"model.safetensors": contents[0]})
    pinned = f"hf://lab/digits@{sha}/model.safetensors"
    run = run_recipe(SMALL, output=tmp_path, progress=False)
    killed = new_run(SMALL, output=tmp_path)  # before its first checkpoint
    hub.commit("lab/digits", {"model.safetensors": contents[1]})
    for folder in (run.folder, killed.folder.path):
        assert load_recipe(folder / "recipe.yaml").model.weights == pinned
    again = stopped_run(killed.folder.path)
    np.testing.assert_array_equal(again.results["net"][-1].weight.data().asnumpy(), loaded(pinned))
    assert resume_run(run.folder, progress=False).had_ended
    moved = stopped_run(run.folder, overrides=["model.weights=hf://lab/digits"])
    assert moved.recipe.model.weights == f"hf://lab/digits@{hub.branches['lab/digits', 'main']}/model.safetensors"


@pytest.mark.long
def test_trials_of_a_sweep_begin_with_one_commit(hub, contents, tmp_path):
    pytest.importorskip("optuna")
    from mxkit.recipe.sweeping import Sweep

    sha = hub.commit("lab/digits", {"model.safetensors": contents[0]})
    recipe, settings = tmp_path / "small.yaml", ["optimizer.learning_rate=log:1e-4..1e-2"]
    recipe.write_text(json.dumps(SMALL))
    with Sweep(str(recipe), settings, output=tmp_path) as sweep:
        hub.commit("lab/digits", {"model.safetensors": contents[1]})
        sweep.run(1, progress=False, notify=lambda line: None)
    trained = load_recipe(sweep.folder / "trial-0000" / "recipe.yaml")
    assert trained.model.weights == f"hf://lab/digits@{sha}/model.safetensors"
    with pytest.raises(RecipeError, match=f"model.weights: .*{sha}"):
        Sweep(str(recipe), settings, output=tmp_path)
