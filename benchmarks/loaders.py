"""How fast batches come: mxkit's loaders, gluon's, and a bare NumPy loop; and whether memory stays flat.

Every way reads whole epochs, one after the other.

- Arrays: 60,000 images of 28x28 in uint8 as `gluon.data.vision.MNIST` holds them, shuffled, cast to float32 and scaled,
  with labels. The NumPy loop is `np.take(x, rows, 0).astype("float32") * scale` to an NDArray, for images and labels.
- JPEG: a folder of 400 of 256x256, decoded, randomly cropped to 224, flipped, to float32 CHW, two workers; with gluon's
  transforms, whose random numbers follow from nothing under threads (T68), and with a transform that is handed its own.
- Memory: resident size after the second and the 21st epoch, with an operator on each batch, in a process of its own.
"""

import contextlib
from pathlib import Path
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Tuple
import warnings

import mxkit  # before mxnet
from mxkit.data.dataset_loader import DatasetLoader
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data.vision import transforms
import numpy as np
from PIL import Image

from benchmarks.harness import Row, in_child, resident_memory, rows_of, take_turns

TITLE = "Loaders: batches from arrays and from JPEG files"
SCALE = np.float32(1 / 255)
FULL = {"rounds": 5, "images": 60_000, "files": 400, "samples": 4000, "epochs": 21}
QUICK = {"rounds": 1, "images": 3000, "files": 64, "samples": 640, "epochs": 3}
Ways = Dict[str, Callable[[], object]]


def run(quick: bool) -> Iterator[Row]:
    sizes = QUICK if quick else FULL
    for batch_size in (64, 256):
        taken = take_turns(array_ways(sizes["images"], batch_size), rounds=sizes["rounds"], wait=mx.nd.waitall)
        case = f"{sizes['images']:,} arrays of 28x28, batch {batch_size}"
        yield from rows_of(case, taken, against="NumPy loop", scale=sizes["images"], unit="images/s")
    with jpeg_ways(sizes["files"]) as ways:
        taken = take_turns(ways, rounds=sizes["rounds"], wait=mx.nd.waitall)
    case, against = f"{sizes['files']} JPEGs, batch 32", "gluon, num_workers=2"
    yield from rows_of(case, taken, against=against, scale=sizes["files"], unit="images/s")
    for loader in MEMORY:
        asked = {"loader": loader, "samples": sizes["samples"], "epochs": sizes["epochs"]}
        after = in_child("benchmarks.loaders:memory", asked)
        yield Row("memory after epoch 2", loader, after[1], "MB")
        yield Row(f"memory after epoch {sizes['epochs']}", loader, after[-1], "MB")


def exhaust(loader: Any) -> Callable[[], object]:
    return lambda: [None for _ in loader]


def array_ways(samples: int, batch_size: int) -> Ways:
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (samples, 28, 28)).astype(np.uint8), rng.randint(0, 10, samples).astype(np.int32)
    dataset = gluon.data.ArrayDataset(mx.nd.array(x[..., None], dtype="uint8"), y)
    as_gluon = dataset.transform_first(transforms.ToTensor())

    def bare(labels: bool = True) -> None:
        order = np.random.permutation(samples)
        for start in range(0, samples, batch_size):
            rows = order[start : start + batch_size]
            mx.nd.array(np.take(x, rows, 0).astype("float32") * SCALE)
            if labels:
                mx.nd.array(np.take(y, rows, 0), dtype="int32")

    array_loader = mxkit.data.ArrayLoader
    return {
        "gluon, 0 workers": exhaust(gluon.data.DataLoader(as_gluon, batch_size, shuffle=True)),
        "NumPy loop": bare,
        "NumPy loop, without labels": lambda: bare(labels=False),
        "ArrayLoader": exhaust(array_loader(x, y, batch_size, shuffle=True)),
        "ArrayLoader, prefetch=2": exhaust(array_loader(x, y, batch_size, shuffle=True, prefetch=2)),
    }


def write_images(folder: str, count: int, size: int = 256) -> None:
    rng = np.random.RandomState(0)
    for number in range(count):
        coarse = Image.fromarray(rng.randint(0, 256, (16, 16, 3)).astype(np.uint8)).resize((size, size))
        noise = rng.randint(-12, 13, (size, size, 3))
        pixels = np.clip(np.asarray(coarse, np.int16) + noise, 0, 255).astype(np.uint8)
        path = Path(folder) / f"class{number % 4}" / f"{number:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def crop_and_flip(image: Any, rng: np.random.Generator) -> Any:
    """What gluon's two transforms do, with random numbers of its own."""
    area, (height, width) = rng.uniform(0.08, 1) * image.shape[0] * image.shape[1], image.shape[:2]
    side = int(min(height, width, np.sqrt(area)))
    top, left = int(rng.integers(0, height - side + 1)), int(rng.integers(0, width - side + 1))
    image = mx.image.fixed_crop(image, left, top, side, side, (224, 224))
    return mx.nd.image.to_tensor(mx.nd.image.flip_left_right(image) if rng.random() < 0.5 else image)


@contextlib.contextmanager
def jpeg_ways(files: int) -> Iterator[Ways]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", mxkit.errors.TrapWarning)
        write_images(folder, files)
        images = gluon.data.vision.ImageFolderDataset(folder)
        steps = [transforms.RandomResizedCrop(224), transforms.RandomFlipLeftRight(), transforms.ToTensor()]
        random_images = images.transform_first(transforms.Compose(steps))
        same = {"batch_size": 32, "shuffle": True}
        threads = gluon.data.DataLoader(random_images, num_workers=2, thread_pool=True, **same)
        ways = {
            "gluon, num_workers=2": exhaust(gluon.data.DataLoader(random_images, num_workers=2, **same)),
            "gluon, thread_pool=True": exhaust(threads),
            "gluon, 0 workers": exhaust(gluon.data.DataLoader(random_images, **same)),
        }
        for workers in ("process:2", "thread:2", 0):
            its = DatasetLoader(random_images, workers=workers, **same)
            own = DatasetLoader(images, workers=workers, transform=crop_and_flip, **same)
            ways[f"{workers}, gluon's transforms"] = exhaust(its)
            ways[f"{workers}, transform with rng"] = exhaust(own)
        with DatasetLoader(images, workers="process:2", transform=crop_and_flip, **same) as kept:
            ways["process:2 kept, transform with rng"] = exhaust(kept)
            yield ways


def memory_loader(name: str, samples: int) -> Any:
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (samples, 28, 28)).astype(np.uint8), rng.randint(0, 10, samples)
    if name in ARRAY_LOADERS:
        return mxkit.data.ArrayLoader(x, y, 64, shuffle=True, prefetch=ARRAY_LOADERS[name])
    return DatasetLoader(gluon.data.SimpleDataset(list(zip(x, y))), 64, workers=DATASET_LOADERS[name])


ARRAY_LOADERS: Dict[str, int] = {"ArrayLoader": 0, "ArrayLoader, prefetch=2": 2}
DATASET_LOADERS: Dict[str, Any] = {f"DatasetLoader, {way}": way for way in (0, "thread:2", "process:2")}
MEMORY: Tuple[str, ...] = (*ARRAY_LOADERS, *DATASET_LOADERS)


def memory(loader: str, samples: int, epochs: int) -> List[float]:
    """Resident size in MB after each epoch, in a child."""
    made, sizes = memory_loader(loader, samples), []
    for _ in range(epochs):
        for batch in made:
            batch[0] * 2  # an operator, as a training has
        mx.nd.waitall()
        sizes.append(resident_memory())
    return sizes
