"""The data of trainings that leave: `data.py` gives mxkit's batches bit for bit, and the proof finds another order."""

from importlib.util import module_from_spec, spec_from_file_location
import subprocess
import sys

from leaving_runs import killed_run, prover
import mxkit
from mxkit.core.device import unpack
from mxkit.data.annotated import AnnotatedImages
from mxkit.data.augment import STEPS, as_step
from mxkit.data.splits import Split, Splits
from mxkit.errors import ExportError
from mxkit.exporting.params import safetensors_bytes
from mxkit.exporting.trainings import data_file, leaving
from mxkit.exporting.trainings.data_file import data_of, problems_of
from mxkit.exporting.trainings.fits import recipe_of_fit
from mxkit.exporting.trainings.missing import missing_parts, refuse
from mxkit.recipe.building import batches
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.reading import load_recipe
import mxnet as mx
import numpy as np
import pytest
from sharing import draw_images, needs

torched = [pytest.mark.torch, needs("torch")]
# gray, hue and colour_jitter before to_tensor make float32 of bytes
COLOURS = [{"name": "colour_jitter", "hue": 0.1}, "lighting", {"name": "gray", "p": 0.5}, "hue"]
TENSOR = ["to_tensor", {"name": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}]
SIDES = {"size": [16, 14]}


REST = {"model": {"name": "lenet", "classes": 2}, "loss": "softmax_ce", "optimizer": "sgd", "epochs": 2, "seed": 5}


@mxkit.register("data")
def pictures(kind: str = "bytes", channels: int = 3, images: int = 11) -> Splits:
    """Random pictures: arrays of bytes or floats, or of several sizes with a mask or points."""
    random = np.random.RandomState(0)
    parts = []
    for count in (images, 5, 5):
        sizes = [(20, 24) if kind in ("bytes", "floats", "points") else (18 + i % 4, 22) for i in range(count)]
        drawn = [random.randint(0, 256, (*size, channels)).astype(np.uint8) for size in sizes]
        if kind in ("bytes", "floats"):
            x = np.stack(drawn).transpose(0, 3, 1, 2)
            parts.append(Split(x if kind == "bytes" else x / np.float32(255), np.arange(count) % 2))
            continue
        if kind in ("several", "batches"):
            x = np.zeros((count, 3, 4, 4), np.float32)
            parts.append(Split((x, x), x) if kind == "several" else mxkit.data.ArrayLoader(x, x, 4))
            continue
        if kind == "random":
            kept = mx.gluon.data.ArrayDataset(drawn, np.zeros(count))
            parts.append(kept.transform_first(lambda image: mx.nd.array(image) * np.random.random()))
            continue
        labels = [random.randint(-1, 3, size).astype(np.int32) for size in sizes]
        if kind == "points":
            labels = [(random.uniform(size=(4, 3)) * [24, 20, 2]).astype(int).astype(np.float32) for _ in sizes]
        if kind == "boxes":
            boxes = np.array([[2, 3, 9, 10, 1, 0], [1, 4, 20, 16, 0, 1], [14, 1, 19, 7, 2, 0]], np.float32)
            labels = [boxes[: number % 4] for number in range(count)]
        moved = {"moves": kind, "pairs": [(0, 1)] if kind == "points" else []}
        parts.append(AnnotatedImages(drawn.__getitem__, labels, list("abcd"), list(map(str, range(count))), **moved))
    return Splits(*parts, ["day", "night"])


def batches_of(kind, *steps, evaluation=(), **options):
    """The `data` of a recipe."""
    own = {"name": "pictures", "kind": kind, "batch_size": 4, "augment": list(steps), **options}
    return {**own, "eval_augment": list(evaluation)} if evaluation else own


CUT = [{"name": "resize", "size": 16}, {"name": "center_crop", "size": [16, 14]}]
CASES = {
    "whole": {"name": "pictures", "batch_size": 4},
    "several": {"name": "pictures", "kind": "several", "batch_size": 4},
    "pairs": {"name": "pictures", "batch_size": 4, "pairs": {"same": 0.3, "balanced": True, "length": 23}},
    "bytes": batches_of(
        "bytes",
        {"name": "crop", **SIDES, "padding": 3, "fill": 0.2},
        "flip",
        {"name": "cutout", "size": 5},
        "erasing",
        *COLOURS,
        *TENSOR,
        evaluation=[*CUT, *TENSOR],
    ),
    "floats": batches_of("floats", *CUT, "flip", {"name": "erasing", "p": 1.0}, channels=1),
    "files": batches_of(
        "files",
        {"name": "resized_crop", **SIDES, "area": [0.5, 1.0], "interpolation": "bicubic"},
        "flip",
        *COLOURS,
        *TENSOR,
        evaluation=[*CUT, *TENSOR],
        drop_last=True,
    ),
    "mask": batches_of(
        "mask",
        {"name": "expand", "ratio": 2, "p": 0.7},
        {"name": "scaled_crop", **SIDES},
        "flip",
        {"name": "cutout", "size": 5},
        "to_tensor",
        evaluation=[{"name": "letterbox", **SIDES}, "to_tensor"],
    ),
    "boxes": batches_of(
        "boxes",
        {"name": "expand", "ratio": 2, "p": 0.7},
        {"name": "box_crop", "area": [0.2, 1.0]},
        {"name": "resize", **SIDES},
        "flip",
        "to_tensor",
        evaluation=[{"name": "letterbox", **SIDES}, *TENSOR[:1]],
    ),
    "points": batches_of(
        "points", {"name": "resized_crop", **SIDES}, "flip", *TENSOR, evaluation=[{"name": "resize", **SIDES}, *TENSOR]
    ),
}


def loaded(name, home):
    """The recipe of a case, and its data."""
    data = dict(CASES[name])
    if name == "files":
        draw_images(home / "photos", 50)
        del data["kind"]
        data.update(name="image_folder", root=str(home / "photos"), test=0.3, valid=0.2)
    recipe = load_recipe({"name": name, "data": data, **REST})
    return recipe, load_data(recipe)


def written(name, home):
    recipe, data = loaded(name, home)
    own = data_of(recipe, data)
    (home / f"{name}_data.py").write_text(own.text)
    (home / "data.safetensors").write_bytes(safetensors_bytes(own.arrays, {}))
    return recipe, data, home / f"{name}_data.py"


def test_every_step_is_compared():
    steps = [one for case in CASES.values() for key in ("augment", "eval_augment") for one in case.get(key, [])]
    used = {one if isinstance(one, str) else one["name"] for one in steps}
    assert used == {name for name, one in STEPS.items() if isinstance(one, type)}


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize("name", CASES)
def test_the_batches_are_those_of_mxkits_loaders(name, tmp_path):
    recipe, data, path = written(name, tmp_path)
    assert problems_of(recipe, data) == []
    train, order, others = imported(path).loaders()
    loader = batches(recipe, data, "train", training=True)
    for epoch in (1, 2):
        order.begin(epoch, epoch - 1)
        loader.epoch = epoch - 1
        loader.skip(epoch - 1)
        assert len(train) == len(loader) - epoch + 1
        same(train, loader)
    assert set(others) == {"valid", "test"}
    for part, own in others.items():
        same(own, batches(recipe, data, part))


def imported(path):
    spec = spec_from_file_location(path.stem, str(path))
    module = sys.modules[path.stem] = module_from_spec(spec)  # for the dataclasses
    spec.loader.exec_module(module)
    return module


def same(found, expected):
    pairs = list(zip(found, expected))
    assert len(pairs) == len(found) > 0
    for ours, mxnets in pairs:
        others = [one for group in unpack(mxnets) for one in group]
        assert len(ours) == len(others)
        for one, other in zip(ours, others):
            assert one.shape == other.shape
            np.testing.assert_array_equal(one.numpy(), other.asnumpy())


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the files are for Python 3.10 and newer")
def test_linters_have_nothing_to_say(tmp_path):
    for name in CASES:
        text = written(name, tmp_path)[2].read_text()
        assert "mxkit" not in text
    for command in (
        "ruff check --isolated --no-cache --target-version=py310",
        "ruff format --isolated --no-cache --check --line-length=120",
        "mypy --config-file= --disallow-untyped-defs --ignore-missing-imports --follow-imports=skip",
    ):
        program = [sys.executable, "-m", *command.split(), *map(str, sorted(tmp_path.glob("*_data.py")))]
        done = subprocess.run(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        assert done.returncode == 0, done.stdout.decode()[:3000]


@pytest.mark.torch
@needs("torch")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_that_read_ahead_change_no_batch(tmp_path):
    recipe, data, path = written("files", tmp_path)
    module, loader = imported(path), batches(recipe, data, "train", training=True)
    module.WORKERS = 2
    train, order, _ = module.loaders()
    order.begin(3, 1)
    loader.epoch = 2
    loader.skip(1)
    same(train, loader)


REFUSED = {
    "a function": (batches_of("bytes", "dimmer", "to_tensor"), "data.augment with .*<lambda>.* by name"),
    "random evaluation": (batches_of("bytes", "flip", evaluation=["flip"]), "data.eval_augment with random steps"),
    "no tensor": (batches_of("points", "flip", evaluation=["gray", "to_tensor"]), "data.augment without to_tensor"),
    "several arrays": (batches_of("several", "flip"), "data.augment of pictures, whose samples have several"),
    "triplets": ({"name": "pictures", "kind": "bytes", "pairs": {"kind": "triplets"}}, "data.pairs of triplets"),
    "batches": (batches_of("batches"), "makes its batches itself"),
    "a random dataset": (batches_of("random", "to_tensor", evaluation=["to_tensor"]), "whose samples are random"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_without_code_is_refused_by_name(name, monkeypatch):
    data, words = REFUSED[name]
    monkeypatch.setitem(STEPS, "dimmer", as_step(lambda: lambda image, rng: image * rng.random()))
    recipe = load_recipe({"name": "refused", "data": data, **REST})
    with pytest.raises(ExportError, match=words):
        refuse(recipe.name, missing_parts(recipe, pictures(data["kind"])))


def test_data_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(data_file, "_BYTES", 10**4)
    with pytest.raises(ExportError, match="image_folder come to more than .*reduce_to="):
        data_of(*loaded("files", tmp_path))


def test_arrays_that_no_code_reads_are_refused():
    x, w = np.zeros((8, 5), np.float32), np.ones((8, 3), np.float32)
    net = mxkit.models.mlp(3, hidden=[4])
    mxkit.initialize(net, sample=x[:1])
    for train, valid, words in (
        ((w, w), w, r"weights of samples \(8, 3\) have no code: one number for each sample leaves"),
        (w, (w, w[:, 0]), "samples of valid hold x, y0, y1, those of train x, y"),
    ):
        loaders = {
            "train": mxkit.data.ArrayLoader(x, train, 4, shuffle=True),
            "valid": mxkit.data.ArrayLoader(x, valid, 4),
        }
        recipe, data, _ = recipe_of_fit(net, {**loaders, "loss": "l2", "trainer": "sgd", "epochs": 1})
        with pytest.raises(ExportError, match=words):
            data_of(recipe, data)


CROP = '    ResizedCrop(size=20, area=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), interpolation="bilinear"),\n'
FLIP = "    Flip(p=0.5),\n"
SQUARE = [{"name": "resize", "size": [32, 32]}, "flip", *COLOURS, *TENSOR]
# A run of each kind of samples; mistakes in `data.py`: what is written, and what stands there then.
RUNS = {
    "files": (
        {"data": {"augment": [{"name": "resized_crop", "size": 20}, "flip", *TENSOR], "batch_size": 2, "test": 0.2}},
        [
            (CROP + FLIP, FLIP + CROP),
            ("image.transpose(2, 0, 1)", "image[:, :, ::-1].transpose(2, 0, 1)"),
        ],
    ),
    "mask": (
        {
            "data": batches_of("mask", *SQUARE, evaluation=[SQUARE[0], *TENSOR], images=34, batch_size=2),
            "model": {"name": "small_fcn", "classes": 3, "size": 32, "channels": [4, 4, 8]},
            "loss": "pixel_ce",
            "metrics": ["mean_iou", "pixel_accuracy"],
        },
        [("Place(-1, shape[1]) if drawn else Place()", "Place()")],
    ),
    "boxes": (
        {
            "data": batches_of("boxes", "box_crop", *SQUARE, evaluation=[SQUARE[0], *TENSOR], images=34, batch_size=2),
            "model": {"name": "small_ssd", "classes": 3, "size": 32},
            "loss": "ssd",
            "metrics": ["voc_map"],
        },
        [("np.array([place.scale_x,", "np.array([abs(place.scale_x),")],
    ),
    "points": (
        {
            "data": batches_of("points", *SQUARE, evaluation=[SQUARE[0], *TENSOR], images=34, batch_size=2),
            "model": {"name": "small_pose", "points": 4, "channels": [4, 4, 4, 4, 8]},
            "loss": "pose",
        },
        [],
    ),
    "pairs": (
        {
            "data": {"name": "digits", "size": 8, "pairs": {"length": 1024}, "batch_size": 32},
            "model": {"name": "siamese", "branch": {"name": "mlp", "classes": 4, "hidden": [8]}},
            "loss": "contrastive",
        },
        [("same=0.5", "same=0.4"), ("self.x[a], self.x[b]", "self.x[b], self.x[a]")],
    ),
}


@pytest.mark.torch
@needs("torch")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_draws_leaves_and_mistakes_are_found(name, tmp_path):
    changes, mistakes = RUNS[name]
    recipe = {**REST, "name": name, **changes, "checkpoints": {"every": "16 updates", "keep_last": 9}}
    if name == "files":
        draw_images(tmp_path / "photos", 50)
        recipe["data"] = {"name": "image_folder", "root": str(tmp_path / "photos"), **recipe["data"]}
        recipe["data"]["eval_augment"] = [{"name": "resize", "size": [20, 20]}, *TENSOR]
    (tmp_path / "proof").mkdir()
    compared = prover(killed_run(recipe, tmp_path / "runs"), tmp_path / "proof", 2)
    assert compared() == []
    for before, after in mistakes:
        assert "the batches of two epochs" in [row.name for row in compared(("data.py", before, after))]


@pytest.mark.torch
@needs("torch")
def test_faster_rcnn_leaves_with_the_regions_that_it_draws_and_mistakes_are_found(tmp_path, monkeypatch):
    """MXNet and `train.py` draw otherwise; in the proof both take the same numbers."""
    monkeypatch.setattr(leaving, "UPDATES", 2)
    recipe = {
        **REST,
        "name": "regions",
        "data": batches_of("boxes", *SQUARE, evaluation=[SQUARE[0], *TENSOR], images=20, batch_size=1),
        "model": {"name": "small_faster_rcnn", "classes": 3, "size": 32, "channels": [4, 6, 8]},
        "loss": {"name": "faster_rcnn", "samples": 24},
        "metrics": ["voc_map"],
        "epochs": 1,
        "checkpoints": {"every": "16 updates", "keep_last": 9},
    }
    (tmp_path / "proof").mkdir()
    run = killed_run(recipe, tmp_path / "runs")
    compared = prover(run, tmp_path / "proof", 2)
    assert compared() == []
    for mistake in (
        ("train.py", "beta=1 / 9", "beta=1 / 8"),
        ("train.py", "most = 24 - min", "most = 22 - min"),
        ("net.py", ">= 0.5)", ">= 0.4)"),
        ("net.py", "y * 3", "y * 1"),  # positive regions
    ):
        assert "loss" in {row.operator for row in compared(mistake)}
    proof = mxkit.export(run, tmp_path / "t", training=True).proof
    assert proof.worst.relative < leaving.TOLERANCE
    # more images than one, and without the given numbers
    subprocess.run([sys.executable, "train.py", "--device", "cpu"], cwd=tmp_path / "t", check=True)


@pytest.mark.torch
@needs("torch")
def test_arrays_that_change_at_random_leave_and_learn(tmp_path, monkeypatch):
    """Digits of CIFAR's shape."""
    monkeypatch.setattr(leaving, "UPDATES", 2)
    data = {"name": "digits", "size": 32, "channels": 3, "augment": "cifar_train", "eval_augment": "cifar_eval"}
    recipe = {**REST, "name": "cifar", "data": data, "model": {"name": "lenet", "classes": 10}, "metrics": ["accuracy"]}
    recipe.update(optimizer={"name": "adam", "learning_rate": 0.003}, checkpoints={"every": "16 updates"})
    run = killed_run({**recipe, "epochs": 1}, tmp_path / "runs")
    proof = mxkit.export(run, tmp_path / "t", training=True).proof
    assert proof.worst.relative < leaving.TOLERANCE
    program = [sys.executable, "train.py", "--device", "cpu", "--epochs", "3"]
    done = subprocess.run(program, cwd=tmp_path / "t", stdout=subprocess.PIPE, check=True)
    assert float(done.stdout.decode().rpartition("accuracy ")[2]) > 0.5
