"""A folder of image files through `predict_files`, as `mxkit predict RUN FOLDER` calls it, against the bare net.

- bare net: `net(x)` on batches that are ready in memory, of the same size, one after the other without a wait between.
- predict_files: files are read, decoded and prepared by threads while the net computes; classes and probabilities.
- file by file: read, decoded and prepared in turn with the net, 32 files at a time, as `mxkit predict` did at first.

The images are drawn: JPEGs of 64 and 28 px that only become tensors, and photos of 320x256 that are resized to 256 and
cropped to 224. The bare net may compute 1.25 times as many images of ResNet-18 a second. LeNet has no bar: it
computes an image in three times the time of decoding it, and both need the same cores. At the end 20 broken files are
added: how many are named.
"""

from functools import partial
from pathlib import Path
import tempfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple
import warnings

import mxkit  # before mxnet
from mxkit.data.image_files import find_images
from mxkit.recipe.net_facts import image_reader, read_facts
from mxkit.recipe.predictions import predict_files
from mxkit.recipe.run import load_run
import mxnet as mx
import numpy as np

from benchmarks.harness import Row, rows_of, take_turns
from benchmarks.loaders import write_images

TITLE = "A folder of images: files through the net"
BATCH = 32
BROKEN = 20
BAR = 1.25


class Case(NamedTuple):
    title: str
    model: str
    size: Tuple[int, int]  # of the files
    steps: List[Any]
    files: int
    rounds: int
    bar: Any


NORMALIZE = {"name": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SMALL = ["to_tensor", NORMALIZE]
LARGE = [{"name": "resize", "size": 256}, {"name": "center_crop", "size": 224}, *SMALL]
CASES = [
    Case("ResNet-18, 64 px", "resnet18", (64, 64), SMALL, 5000, 3, BAR),
    Case("ResNet-18, 224 px", "resnet18", (320, 256), LARGE, 512, 3, BAR),
    Case("LeNet, 28 px", "lenet", (28, 28), SMALL, 5000, 3, None),
]
QUICK_FILES = 64


def run(quick: bool) -> Iterator[Row]:
    for case in CASES:
        files = min(QUICK_FILES, case.files) if quick else case.files
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent, "images")
            folder.mkdir()
            write_images(str(folder), files, case.size)
            trained = train(case, parent)
            ways = ways_of(trained, folder)
            taken = take_turns(ways, rounds=1 if quick else case.rounds, warm_up=0)
            title = f"{case.title}, {files:,} files"
            bars = {} if case.bar is None else {"bare net": case.bar}
            yield from rows_of(title, taken, against="predict_files", scale=files, unit="images/s", bars=bars)
            yield Row(title, "of 20 broken files named", named(trained, folder), "files", bar=BROKEN)


def train(case: Case, parent: str) -> Path:
    """The folder of a run of one update; with few files, a part of the data lacks a class."""
    data = {"name": "image_folder", "root": f"{parent}/images", "batch_size": 4, "eval_augment": case.steps}
    recipe = {"name": "folder", "data": data, "model": {"name": case.model, "classes": 4}, "loss": "softmax_ce"}
    more = {"optimizer": "sgd", "updates": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mxkit.errors.TrapWarning)
        return mxkit.run_recipe({**recipe, **more}, output=f"{parent}/runs", progress=False).folder


def ways_of(trained: Path, folder: Path) -> Dict[str, Any]:
    recipe, net = load_run(trained)
    form, files = read_facts(trained).images, find_images([folder])
    reader = image_reader(recipe, form)
    ready = [mx.nd.array(np.stack([*map(reader, files[:BATCH])]))] * (len(files) // BATCH)
    rest = len(files) % BATCH
    ready += [ready[0][:rest]] if rest else []

    def bare() -> None:
        outputs = [net(x) for x in ready]
        outputs[-1].asnumpy()

    def one_by_one() -> None:
        for start in range(0, len(files), BATCH):
            pixels = np.stack([reader(file) for file in files[start : start + BATCH]])
            mxkit.predict(net, pixels).softmax(axis=1).asnumpy()

    return {
        "bare net": bare,
        "predict_files": lambda: [None for _ in predict_files(trained, folder)],
        "file by file": one_by_one,
        "decoding alone, one core": partial(decode_all, reader, files),
    }


def decode_all(reader: Callable[[str], Any], files: List[str]) -> None:
    for file in files:
        reader(file)


def named(trained: Path, folder: Path) -> int:
    """How many of 20 files that are cut, empty or text `predict_files` names, and predicts all others."""
    whole = find_images([folder])
    content = Path(whole[0]).read_bytes()
    parts = (content[: len(content) // 2], b"", b"no image", content[:1])
    broken = [folder / f"broken{number:02}.jpg" for number in range(BROKEN)]
    for number, path in enumerate(broken):
        path.write_bytes(parts[number % len(parts)])
    predictions = list(predict_files(trained, folder))
    answered = [one.path for one in predictions if one.answer]
    return len({one.path for one in predictions if one.error} & set(map(str, broken))) if answered == whole else 0
