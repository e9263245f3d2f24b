"""The Python of a recipe ends with the recipe's scores, bit for bit, in a process of its own."""

import json
import re

import mxkit
from mxkit.recipe.reading import load_recipe, recipe_names
from mxkit.recipe.run import as_script, run_recipe
import numpy as np
from PIL import Image
import pytest
from recipe_parts import RICH
from sharing import command

PAIRS = {
    "name": "pairs",
    "data": {"name": "digits", "pairs": {"same": 0.4, "length": 128}},
    "model": {"name": "siamese", "branch": {"name": "mlp", "hidden": [16], "classes": 4}},
    "loss": "contrastive",
    "optimizer": "adam",
    "kvstore": "horovod",
    "updates": 4,
}


def images(root):
    rng = np.random.RandomState(0)
    for part in ("train", "test"):
        for name in "ab":
            (root / part / name).mkdir(parents=True)
            for i in range(6):
                Image.fromarray(rng.randint(0, 255, (30, 30, 3)).astype(np.uint8)).save(root / part / name / f"{i}.png")
    return {
        "name": "folders",
        "data": {
            "name": "image_folder", "root": str(root), "valid": 0.3, "batch_size": 4, "workers": "thread:2",
            "augment": [{"name": "resized_crop", "size": 32}, "to_tensor"],
            "eval_augment": [{"name": "resize", "size": [32, 32]}, "to_tensor"],
        },
        "model": {"name": "zoo:mobilenet0.25", "finetune": {"classes": 2, "freeze": "features.0.*"}},
        "loss": "softmax_ce",
        "optimizer": "adam",
        "epochs": 1,
    }  # fmt: skip


def run_script(forks, text, folder):
    """What a script prints, as scores."""
    (folder / "same.py").write_text(text, encoding="utf-8")
    done = forks.run(folder / "same.py", folder=folder, strict=True)
    assert done.returncode == 0, done.stderr
    return {line.split(" ", 2)[1]: json.loads(line.split(" ", 2)[2]) for line in done.stdout.splitlines()}


def tuned(folder):
    """A recipe that begins with another run's weights, and trains all of them from the second epoch on."""
    first = {**RICH, "devices": "cpu", "freeze": [], "callbacks": []}
    run = run_recipe(first, overrides=["updates=4"], output=folder, progress=False)
    head = {"classes": 10, "head": "6", "freeze": "[0-3].*"}
    return {
        **RICH,
        "name": "tuned",
        "model": {**RICH["model"], "weights": str(run.folder), "finetune": head},
        "freeze": [],
        "callbacks": [{"name": "freeze", "until": "1 epoch", "patterns": "[2-3].*", "lr": 0.2}],
    }


def tuned_pairs(folder):
    """A net of nets that begins with another run's weights."""
    run = run_recipe(PAIRS, output=folder, progress=False)
    return {**PAIRS, "model": {**PAIRS["model"], "weights": str(run.folder)}, "devices": "cpu:2"}


BEFORE = {"folders": images, "tuned": tuned, "tuned_pairs": tuned_pairs}


@pytest.mark.parametrize("which", ["rich", "pairs", *BEFORE])
def test_a_script_ends_with_the_recipes_scores(which, tmp_path, forks, monkeypatch):
    monkeypatch.setenv("MXNET_CPU_TEMP_COPY", "64")  # the process of the script has loaded MXNet (T292)
    recipe = {"rich": RICH, "pairs": PAIRS}.get(which)
    recipe = recipe or BEFORE[which](tmp_path / "before")
    run = run_recipe(recipe, output=tmp_path / "runs", progress=False)
    assert run_script(forks, as_script(load_recipe(recipe)), tmp_path) == run.scores


def test_show_prints_the_recipe_and_its_script(tmp_path):
    (tmp_path / "shown.yaml").write_text(command("show", "digits_lenet", "--set", "accumulate=2")[1])
    assert load_recipe(tmp_path / "shown.yaml") == load_recipe("digits_lenet", ["accumulate=2"])
    settings = ["epochs=1", "limit_batches=4"]
    shown = command("show", "--as-script", "digits_lenet", *(f"--set={one}" for one in settings))[1]
    assert shown == as_script(load_recipe("digits_lenet", settings))
    for threads, call in (("null", "devices=2"), ("1", "1, devices=2")):
        script = as_script(load_recipe("two_devices", [f"threads={threads}"]))
        assert f"import mxkit\n\nmxkit.threads({call})  # before MXNet is imported\n" in script


@pytest.mark.parametrize("name", recipe_names())
def test_scripts_of_the_shipped_recipes_call_public_names_alone(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    try:
        text = as_script(load_recipe(name))
    except mxkit.errors.DownloadError:
        pytest.skip("its data is not here")
    compile(text, name, "exec")
    assert max(map(len, text.splitlines())) <= 160
    for called in set(re.findall(r"mxkit(?:\.\w+)+", text.split('"""', 2)[2])):
        found = mxkit
        for part in called.split(".")[1:]:
            found = getattr(found, part)
        first = called.split(".")[1]
        assert first in mxkit.__all__, called


def test_diff_prints_what_differs():
    out = command("show", "--diff", "digits_lenet", "digits_lenet", "--set", "epochs=2", "--set", "loss=l2")[1]
    assert out.splitlines() == ["loss.name: l2 -> softmax_ce", "epochs: 2 -> 20"]
