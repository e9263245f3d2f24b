"""A run moved elsewhere, without its data and its own code: what works from the folder alone, and what cannot."""

import hashlib
from importlib.util import find_spec
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys

import mxkit
from mxkit.core.loss_meanings import meaning_of
from mxkit.recipe.building import batches
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.net_facts import read_facts
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import load_run, resume_run, run_recipe
import mxnet as mx
import numpy as np
from PIL import Image
import pytest
from recipe_parts import answers
from sharing import command, needs_onnx

MODULE = """
import mxkit
from mxnet.gluon import nn
from travel_helpers.layers import body

@mxkit.register("model")
def travelling_net(width: int = 4):
    net = body(width)
    net.add(nn.Dense(5))
    return net
"""
HELPERS = """
from mxnet.gluon import nn

def body(width):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(width, 3, activation="relu"), nn.BatchNorm(), nn.GlobalAvgPool2D(), nn.Flatten())
    return net
"""
# Runs commands in one process; prints what each of them printed, and which packages were imported after the first.
CHILD = """
import json, sys
from sharing import command
done = []
for arguments in json.loads(sys.argv[1]):
    done.append([*command(*arguments), [one for one in ("sklearn", "gluoncv", "matplotlib") if sys.modules.get(one)]])
print(json.dumps(done))
"""


def draw(path, brightness, seed):
    pixels = np.random.RandomState(seed).randint(0, 60, (20 + seed % 5, 24, 3)) + brightness
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def state_of(folder):
    """Names, times and bytes of all files in a folder."""
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A run on a folder of images, with a net of its own code and another head; and where the originals were."""
    home = tmp_path_factory.mktemp("home")
    for number in range(24):
        draw(home / "photos" / ("day" if number % 2 else "night") / f"{number}.png", 150 * (number % 2), number)
    (home / "travel_parts.py").write_text(MODULE)
    (home / "travel_helpers").mkdir()
    (home / "travel_helpers" / "__init__.py").write_text("")
    (home / "travel_helpers" / "layers.py").write_text(HELPERS)
    (home / "unused.py").write_text("")
    recipe = {
        "name": "photos",
        "imports": ["travel_parts"],
        "import_path": str(home),
        "data": {
            "name": "image_folder",
            "root": str(home / "photos"),
            "valid": 0.2,
            "test": 0.2,
            "batch_size": 6,
            "eval_augment": [{"name": "resize", "size": 18}, {"name": "center_crop", "size": 16}, "to_tensor"],
        },
        "model": {"name": "travelling_net", "finetune": {"classes": 2, "head": "4", "freeze": None}},
        "loss": "softmax_ce",
        "optimizer": {"name": "adam", "learning_rate": 0.02},
        "epochs": 3,
        "metrics": ["accuracy"],
        "checkpoints": {"keep_best": ["valid_loss", "min"], "keep_last": 1},
    }
    run = run_recipe(recipe, output=home / "runs", progress=False)
    return home, run


@pytest.fixture(scope="module")
def moved(photos, tmp_path_factory):
    """The same folder, read-only, where nothing else is; and what commands say there, in a process of their own."""
    home, run = photos
    place = tmp_path_factory.mktemp("elsewhere")
    folder = place / "taken along"
    shutil.copytree(str(run.folder), str(folder))
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace(str(home), "/nowhere"))
    for number in range(4):
        draw(place / f"{number}.png", 150 * (number % 2), 90 + number)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    before = state_of(folder)
    name = folder.name
    commands = {
        "predict": ["predict", name, *(f"{number}.png" for number in range(4))],
        "best": ["predict", name, "--which", "best", "0.png"],
        "layers": ["layers", name],
        "export": ["export", name, "out/net"],
        **({"onnx": ["export", name, "out/net", "--format", "onnx", "--table"]} if find_spec("onnxruntime") else {}),
        "checkpoints": ["checkpoints", "verify", name],
        "features": ["features", name, "1.png", "--layers", "0", "--out", "pictures"],
        "evaluate": ["evaluate", name],
        "evaluate valid": ["evaluate", name, "--split", "valid"],
        "report": ["report", name, "--out", "page.html"],
    }
    paths = [Path(mxkit.__file__).parents[1], Path(__file__).parents[1]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(list(commands.values()))],
        cwd=str(place),
        env=environment,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    said = dict(zip(commands, json.loads(done.stdout.decode().splitlines()[-1])))
    yield place, folder, before, said
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)


def newest(folder):
    return max(path.name for path in folder.glob("checkpoints/step-*"))


def test_the_same_answers_without_data_and_code(photos, moved, monkeypatch):
    place, folder, before, said = moved
    assert state_of(folder) == before
    monkeypatch.chdir(place)
    *answer, loaded = said["predict"]
    assert answer == [*command("predict", photos[1].folder, *(f"{number}.png" for number in range(4)))]
    assert (answer[0], answer[2]) == (0, f"last checkpoint {newest(folder)}, epoch 3\n")
    assert [line.split("\t")[0] for line in answer[1].splitlines()] == [f"{number}.png" for number in range(4)]
    assert loaded == []  # a second or two each, before the first answer


def test_layers_features_export_and_checkpoints_need_the_folder_alone(photos, moved):
    place, folder, _, said = moved
    for name in ("layers", "features", "export", "checkpoints", "best"):
        shown = {"features": f"last checkpoint {newest(folder)}, epoch 3\n"}.get(name, "")
        assert (said[name][0], said[name][2].partition("best checkpoint ")[0]) == (0, shown), (name, said[name])
    assert said["layers"][1] == f"{mxkit.layers(photos[1].net, (1, 3, 16, 16))}\n"
    assert said["export"][1].splitlines()[3] == "input data (N, 3, 16, 16) float32"
    x = mx.nd.random.uniform(shape=(3, 3, 16, 16))
    same = mxkit.load_exported(place / "out" / "net")(x)
    np.testing.assert_allclose(same.asnumpy(), photos[1].net(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert (place / "pictures" / "0.png").stat().st_size > 1000


@needs_onnx
def test_onnx_needs_the_folder_alone(photos, moved):
    place, _, _, said = moved
    assert (said["onnx"][0], said["onnx"][2]) == (0, "")
    assert said["onnx"][1].startswith("layer ")
    x = mx.nd.random.uniform(shape=(3, 3, 16, 16))
    assert "compared on random inputs, because the run's data cannot be read:" in said["onnx"][1]
    other = mxkit.predict(mxkit.load_exported(place / "out" / "net.onnx"), x)
    np.testing.assert_allclose(other.asnumpy(), photos[1].net(x).asnumpy(), rtol=1e-5, atol=1e-6)


@needs_onnx
def test_a_run_with_its_data_is_exported_with_what_it_knows(photos, tmp_path):
    run = photos[1]
    exported = mxkit.export(run.folder, tmp_path / "net.onnx", format="onnx", which="best")
    assert exported.notes[-1] == "compared on the first samples of the run's test data"
    metadata = {one.key: one.value for one in pytest.importorskip("onnx").load(exported.files["onnx"]).metadata_props}
    recipe, best = load_run(run.folder, "best")
    data = load_data(recipe)
    assert json.loads(metadata["classes"]) == data.classes
    assert json.loads(metadata["preprocessing"])["images"]["channels"] == 3
    loader = batches(recipe, data, "test")
    scores = mxkit.evaluate(mxkit.load_exported(exported.files["onnx"]), loader, metrics=["accuracy"])
    assert scores == mxkit.evaluate(best, loader, metrics=["accuracy"])


def test_evaluate_and_report_say_what_they_lack_and_do_the_rest(photos, moved):
    place, folder, _, said = moved
    code, out, err, _ = said["evaluate"]
    assert code == 1
    assert "error: nothing was evaluated, because the data of taken along cannot be read:" in err
    assert "Traceback" not in err
    scores = json.loads((folder / "scores.json").read_text())["test"]
    assert out.splitlines() == [f"recorded test {name} {value:.4f}" for name, value in scores.items()]
    code, out, err, _ = said["evaluate valid"]
    assert (code, out) == (1, "")
    assert "has no scores of valid" in err
    assert said["report"][0] == 0
    page = (place / "page.html").read_text(encoding="utf-8")
    assert "No confusion matrix and no mistakes: the data cannot be read:" in page
    assert "The sizes of its inputs are not known" not in page
    assert "Conv2D 3x3" in page


def test_the_folder_keeps_the_code_that_is_needed_and_no_more(photos):
    home, run = photos
    facts = read_facts(run.folder)
    assert sorted(facts.code.files) == ["travel_helpers/__init__.py", "travel_helpers/layers.py", "travel_parts.py"]
    for name in facts.code.files:
        assert (run.folder / "code" / name).read_bytes() == (home / name).read_bytes()
    assert facts.inputs[0].shape == (1, 3, 16, 16)
    assert facts.classes == ["day", "night"]
    assert facts.images == (3, None, None)


@pytest.fixture
def copied(photos, tmp_path):
    return Path(shutil.copytree(str(photos[1].folder), str(tmp_path / "copy")))


def claim(folder, name, content):
    """Let net.json say that a file of the code has this content."""
    facts = json.loads((folder / "net.json").read_text())
    facts["code"]["files"][name] = hashlib.sha256(content.encode()).hexdigest()
    (folder / "net.json").write_text(json.dumps(facts))


LAYERS = "travel_helpers/layers.py"
HARMFUL = "open('ran', 'w')\n" + HELPERS
OTHER = HELPERS.replace("3, activation", "5, activation")
NOT_READ = {
    "changed code": (lambda run: (run / "code" / LAYERS).write_text(HARMFUL), "layers.py was changed .*Nothing of"),
    "missing code": (lambda run: (run / "code" / LAYERS).unlink(), "layers.py is missing: .* Copy the whole folder"),
    "code above": (lambda run: claim(run, "../outside.py", ""), "expected paths inside of code"),
    "code elsewhere": (lambda run: claim(run, "/outside.py", ""), "expected paths inside of code"),
    "another module of this name": (
        lambda run: ((run / "code" / LAYERS).write_text(OTHER), claim(run, LAYERS, OTHER)),
        "Python has loaded another module 'travel_helpers.layers'",
    ),
    "a list": (lambda run: (run / "net.json").write_text("[]"), "cannot be read"),
    "a newer format": (lambda run: (run / "net.json").write_text('{"format": 9}'), "format 9; this mxkit"),
    "no format": (lambda run: (run / "net.json").write_text("{}"), "KeyError"),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_a_damaged_folder_is_not_run(name, copied, monkeypatch, tmp_path):
    change, words = NOT_READ[name]
    change(copied)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mxkit.errors.RecipeError, match=words):
        load_run(copied)
    assert not (tmp_path / "ran").exists()


def test_originals_that_were_changed_are_told(photos, copied):
    original = photos[0] / "travel_helpers" / "layers.py"
    try:
        original.write_text(HELPERS + "\n# better\n")
        with pytest.warns(UserWarning, match=r"layers.py was changed since .*; the copy in the run's folder is used"):
            load_run(copied)
        with pytest.warns(UserWarning, match=r"layers.py was changed since .*; the resumed run uses the changed file"):
            resume_run(copied, progress=False)
    finally:
        original.write_text(HELPERS)
    load_run(copied)  # warns of nothing


def test_a_run_goes_on_with_the_copies_where_the_originals_are_gone(photos, copied):
    text = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(text.replace(f"import_path: {photos[0]}\n", "import_path: /nowhere\n"))
    run = resume_run(copied, overrides=["epochs=4"], progress=False)
    assert (run.history[-1]["epoch"], run.had_ended) == (4, False)
    assert load_run(copied)[0].import_path == "/nowhere"


def test_devices_that_are_not_here(copied):
    text = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(text.replace("devices: auto", "devices: gpu:7"))
    with pytest.warns(UserWarning, match=r"the net is loaded on the CPU: devices: gpu\(7\)"):
        recipe, net = load_run(copied)
    assert recipe.devices == "cpu"
    assert net[0].weight.list_ctx() == [mx.cpu()]


def test_without_net_json_nothing_is_guessed(copied, tmp_path):
    (copied / "net.json").unlink()
    draw(tmp_path / "a.png", 150, 95)
    code, _, err = command("predict", copied, tmp_path / "a.png")
    assert code == 2
    assert "net.json is missing: the run had not begun to train, or the file was not copied with it" in err


# What an output is, by the loss


def recipe_of(loss, **more):
    content = {"data": "digits", "model": "mlp", "loss": loss, "optimizer": "adam", "epochs": 1, **more}
    return load_recipe(content)


NO_YES = [[2.0], [-1.0], [0.0]]
PROBABILITY = {"name": "sigmoid_bce", "from_sigmoid": True}
ANSWERS = [
    ("sigmoid_bce", ["no", "yes"], NO_YES, [["yes", "0.8808"], ["no", "0.7311"], ["no", "0.5000"]]),
    ("logistic", ["no", "yes"], NO_YES, [["yes", "0.8808"], ["no", "0.7311"], ["no", "0.5000"]]),
    ("sigmoid_bce", [], [2.0], [["1", "0.8808"]]),
    (PROBABILITY, [], [[0.9], [0.2]], [["1", "0.9000"], ["0", "0.8000"]]),
    ("hinge", ["no", "yes"], NO_YES[:2], [["yes", "score 2.0000"], ["no", "score -1.0000"]]),
    ("sigmoid_bce", ["cat", "dog"], [[2.0, -2.0]], [["cat 0.8808", "dog 0.1192"]]),
    ("l1", [], [[1.5, 1234567.0]], [["1.5", "1.23457e+06"]]),
    ("huber", [], [[1.5, 1234567.0]], [["1.5", "1.23457e+06"]]),
    ("softmax_ce", ["a", "b"], [[0.0, 1.0]], [["b", "0.7311"]]),
    ("softmax_ce", ["a", "b"], [[0.0, 9.0, 0.0], [0.0, 0.0, 9.0]], [["b", "0.9998"], ["2", "0.9998"]]),
    ("softmax_ce", ["a", "b", "c", "d"], [[0.0, 9.0, 0.0]], [["1", "0.9998"]]),
]


@pytest.mark.parametrize(("loss", "classes", "scores", "expected"), ANSWERS)
def test_the_loss_decides_what_an_output_is(loss, classes, scores, expected):
    assert answers(recipe_of(loss), classes, mx.nd.array(scores)) == expected


def test_outputs_of_a_users_loss_that_are_probabilities_stay_as_they_are():
    answer, other = meaning_of(object()).answers(np.array([[0.9, 0.1], [0.0, 1.0]]), ["a", "b"], "own")
    assert (answer, other) == ({"class": "a", "probability": pytest.approx(0.9)}, {"class": "b", "probability": 1.0})


def test_what_is_no_answer_is_refused():
    for scores, expected in [
        (mx.nd.ones((2, 1)), "one output under softmax_ce, whose softmax is 1 for every sample"),
        (mx.nd.ones((2, 3, 4)), r"gives \(3, 4\) per sample under softmax_ce"),
        ((mx.nd.ones((2, 3)), mx.nd.ones((2, 4))), r"gives 2 outputs, \(3,\), \(4,\) per sample"),
    ]:
        with pytest.raises(mxkit.errors.DataError, match=expected):
            answers(recipe_of("softmax_ce"), [], scores)
    pairs = {"data": {"name": "digits", "pairs": {}}, "model": {"name": "siamese", "branch": "mlp"}}
    with pytest.raises(mxkit.errors.DataError, match="compares samples"):
        answers(recipe_of("contrastive", **pairs), [], mx.nd.ones((2, 3)))
