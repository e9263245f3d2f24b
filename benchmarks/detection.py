"""Boxes and masks: the loader of annotated images beside gluoncv's, and `fit` beside a plain Gluon loop.

- Loader: JPEGs of 500x375 with boxes, decoded, with SSD's steps (colour, expand, crop, resize to 300, flip, normalize),
  two processes: gluon's DataLoader with gluoncv's `SSDDefaultTrainTransform`, and `DatasetLoader` with `Augment`.
- Epochs of the small nets on batches in memory, hybridized, Adam; the plain loop has gluoncv's targets and losses.
  `fit` and the loop take turns, epoch by epoch, in one process.

The loader should give at least as many images a second as gluoncv's, and `fit` should take at most the loop's time.
"""

from pathlib import Path
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import mxkit  # before mxnet
from mxkit.data.annotated import ImagePaths
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

from benchmarks.harness import Row, Taken, rows_of, take_turns
from benchmarks.loaders import exhaust, write_images

TITLE = "Boxes and masks"
FULL, QUICK = {"rounds": 7, "files": 128, "images": 64}, {"rounds": 1, "files": 16, "images": 8}
THEIRS, OURS, LOOP, FIT = "gluoncv, num_workers=2", "DatasetLoader, process:2", "plain loop", "mxkit.fit"
STEPS = [
    ("colour_jitter", {"brightness": 0.125, "contrast": 0.5, "saturation": 0.5, "hue": 0.1}), "expand", "box_crop",
    ("resize", {"size": (300, 300)}), "flip", "to_tensor",
    ("normalize", {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}),
]  # fmt: skip
SIDE, BATCH = 96, 8


def run(quick: bool) -> Iterator[Row]:
    sizes = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        taken = take_turns(loaders(folder, sizes["files"]), rounds=sizes["rounds"], wait=mx.nd.waitall)
    case = f"{sizes['files']} JPEGs of 500x375 with boxes, batch 16"
    yield from rows_of(case, taken, against=THEIRS, scale=sizes["files"], unit="images/s")
    for name in ("small_ssd", "small_fcn"):
        taken, case = epochs(name, sizes["images"], sizes["rounds"]), f"{name}, {SIDE} px, batch {BATCH}"
        yield from rows_of(case, taken, against=LOOP, scale=1e3, unit="ms/epoch", bars={FIT: 1.0})


def boxes(images: int, size: Tuple[int, int]) -> List["np.ndarray"]:
    rng, tables = np.random.default_rng(0), []
    for count in rng.integers(1, 5, images):
        corner, sides = rng.uniform(0, 0.5, (count, 2)) * size, rng.uniform(0.2, 0.5, (count, 2)) * size
        columns = [corner, corner + sides, rng.integers(3, size=(count, 1)), np.zeros((count, 1))]
        tables.append(np.concatenate(columns, axis=1).astype(np.float32))
    return tables


def loaders(folder: str, files: int) -> Dict[str, Callable[[], object]]:
    from gluoncv.data.batchify import Pad, Stack
    from gluoncv.data.batchify import Tuple as Parts
    from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform

    write_images(folder, files, (500, 375))
    paths, labels = sorted(Path(folder).glob("*/*.jpg")), boxes(files, (500, 375))
    names = list(map(str, paths))
    read = gluon.data.SimpleDataset(list(zip(names, labels))).transform(lambda path, box: (mx.image.imread(path), box))
    options: Any = {"batchify_fn": Parts(Stack(), Pad(pad_val=-1)), "num_workers": 2, "shuffle": True}
    theirs = gluon.data.DataLoader(read.transform(SSDDefaultTrainTransform(300, 300)), 16, **options)
    part = mxkit.data.AnnotatedImages(ImagePaths(paths), labels, ["a", "b", "c"], names, moves="boxes")
    augment = mxkit.data.Augment(STEPS)
    ours = mxkit.data.DatasetLoader(part, 16, workers="process:2", shuffle=True, transform=augment)
    return {THEIRS: exhaust(theirs), OURS: exhaust(ours)}


def plain_loss(name: str) -> Callable[[Any, Any], Any]:
    """gluoncv's loss of a net's outputs and labels."""
    from gluoncv.loss import MixSoftmaxCrossEntropyLoss, SSDMultiBoxLoss
    from gluoncv.model_zoo.ssd.target import SSDTargetGenerator

    targets, ssd, pixels = SSDTargetGenerator(negative_mining_ratio=-1), SSDMultiBoxLoss(), MixSoftmaxCrossEntropyLoss()

    def of_boxes(outputs: Any, labels: Any) -> Any:
        with autograd.pause():
            classes, offsets, _ = targets(outputs[2], None, labels[:, :, :4], labels[:, :, 4:5])
        return ssd([outputs[0]], [outputs[1]], [classes], [offsets])[0]

    return of_boxes if name == "small_ssd" else lambda outputs, labels: pixels(*outputs, labels)


def epochs(name: str, images: int, rounds: int) -> Dict[str, Taken]:
    """Seconds of epochs of the plain loop and of `fit`, in turns; the first ones are not counted."""
    from gluoncv.data.batchify import Pad

    rng = np.random.default_rng(0)
    x = rng.uniform(size=(images, 3, SIDE, SIDE)).astype(np.float32)
    y: Any = rng.integers(0, 4, (images, SIDE, SIDE)).astype(np.int32)
    if name == "small_ssd":
        y = Pad(pad_val=-1)(boxes(images, (SIDE, SIDE))).asnumpy()
    data = [(mx.nd.array(x[at : at + BATCH]), mx.nd.array(y[at : at + BATCH])) for at in range(0, images, BATCH)]
    nets = [mxkit.models.get_model(name, classes=4, size=SIDE) for _ in range(2)]
    for net in nets:
        mxkit.initialize(net, sample=data[0][0])
        mxkit.nets.hybridize(net)
    trainer, loss, taken = gluon.Trainer(nets[0].collect_params(), "adam"), plain_loss(name), []  # type: Any, Any, Any

    def plain(*_: Any) -> None:
        begun = time.perf_counter()
        for inputs, labels in data:
            with autograd.record():
                losses = loss(nets[0](inputs), labels)
            autograd.backward(losses)
            trainer.step(1)
        mx.nd.waitall()
        taken.append(time.perf_counter() - begun)

    turns = [mxkit.callbacks.LambdaCallback(on_epoch=plain)]
    named: Any = {"loss": "ssd" if name == "small_ssd" else "pixel_ce", "trainer": "adam"}
    history = mxkit.fit(nets[1], data, epochs=rounds + 1, callbacks=turns, progress=False, **named)
    return {LOOP: Taken(taken[1:], []), FIT: Taken([row["seconds"] for row in history][1:], [])}
