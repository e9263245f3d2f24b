"""How fast batches come: mxkit's loaders, gluon's, and a bare NumPy loop; and whether memory stays flat.

Every way reads whole epochs, one after the other.

- Arrays: 60,000 images of 28x28 in uint8 as `gluon.data.vision.MNIST` holds them, shuffled, cast to float32 and scaled,
  with labels. The NumPy loop is `np.take(x, rows, 0).astype("float32") * scale` to an NDArray, for images and labels.
- JPEG: a folder of 400 of 256x256, decoded, randomly cropped to 224, flipped, to float32 CHW, two workers beside the
  reader; with gluon's transforms and with `Augment`; the same from a `.rec` file, and by MXNet's reader in C++; and how
  many images all cores decode if they do nothing else, which no loader can pass.
- Large JPEG: photos of 1024x768, resized to 256 and cropped to 224; decoded whole, and with `reduce_to=256`.
- Memory: resident size after the second and the 21st epoch, with an operator on each batch, in a process of its own.
"""

from concurrent.futures import ThreadPoolExecutor
import contextlib
import os
from pathlib import Path
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Tuple
import warnings

import mxkit  # before mxnet
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.image_bytes import decode
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
    large = sizes["files"] // 4
    with large_ways(large) as ways:
        taken = take_turns(ways, rounds=sizes["rounds"], wait=mx.nd.waitall)
    case = f"{large} JPEGs of 1024x768, batch 8"
    yield from rows_of(case, taken, against=against, scale=large, unit="images/s")
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
        "ArrayLoader": exhaust(array_loader(x, y, batch_size, shuffle=True, scale=SCALE)),
        "ArrayLoader, prefetch=2": exhaust(array_loader(x, y, batch_size, shuffle=True, scale=SCALE, prefetch=2)),
    }


def write_images(folder: str, count: int, size: Tuple[int, int] = (256, 256)) -> None:
    rng = np.random.RandomState(0)
    for number in range(count):
        coarse = Image.fromarray(rng.randint(0, 256, (16, 16, 3)).astype(np.uint8)).resize(size)
        noise = rng.randint(-12, 13, (size[1], size[0], 3))
        pixels = np.clip(np.asarray(coarse, np.int16) + noise, 0, 255).astype(np.uint8)
        path = Path(folder) / f"class{number % 4}" / f"{number:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def write_records(folder: str) -> Dict[str, str]:
    names = {"path_imgrec": f"{folder}.rec", "path_imgidx": f"{folder}.idx"}
    writer = mx.recordio.MXIndexedRecordIO(names["path_imgidx"], names["path_imgrec"], "w")
    for number, path in enumerate(sorted(Path(folder).glob("*/*.jpg"))):
        header = mx.recordio.IRHeader(0, float(number % 4), number, 0)
        writer.write_idx(number, mx.recordio.pack(header, path.read_bytes()))
    writer.close()
    return names


def started_each_epoch(loader: DatasetLoader) -> Callable[[], object]:
    def read() -> None:
        exhaust(loader)()
        loader.close()

    return read


def decoding(folder: str) -> Callable[[], object]:
    """Decode all files on all cores, and keep nothing."""
    contents, cores = [path.read_bytes() for path in Path(folder).glob("*/*.jpg")], len(os.sched_getaffinity(0))
    executor = ThreadPoolExecutor(cores)
    return lambda: [None for _ in executor.map(lambda content: decode(content, "")[0, 0, 0], contents)]


def by_mxnet(names: Dict[str, str], batch: int) -> Callable[[], object]:
    area = {"random_resized_crop": True, "min_random_area": 0.08, "max_random_area": 1.0}
    ratio = {"min_aspect_ratio": 3 / 4, "max_aspect_ratio": 4 / 3, "rand_mirror": True, "scale": 1 / 255}
    shape = {"data_shape": (3, 224, 224), "batch_size": batch, "shuffle": True, "preprocess_threads": 2}
    iterator = mx.io.ImageRecordIter(verbose=False, **names, **area, **ratio, **shape)

    def read() -> None:
        iterator.reset()
        exhaust(iterator)()

    return read


@contextlib.contextmanager
def jpeg_ways(files: int) -> Iterator[Ways]:
    with tempfile.TemporaryDirectory() as parent, warnings.catch_warnings():
        warnings.simplefilter("ignore", mxkit.errors.TrapWarning)
        folder = f"{parent}/images"
        Path(folder).mkdir()
        write_images(folder, files)
        names = write_records(folder)
        steps = [transforms.RandomResizedCrop(224), transforms.RandomFlipLeftRight(), transforms.ToTensor()]
        composed = transforms.Compose(steps)
        images = gluon.data.vision.ImageFolderDataset(folder).transform_first(composed)
        images[0]  # Gluon's blocks make their graphs at the first call, which two threads must not do at once
        ours = mxkit.data.image_folder(folder, valid=0, test=0).train
        records = mxkit.data.image_records(names["path_imgrec"], valid=0, test=0).train
        augment = mxkit.data.Augment([("resized_crop", {"size": 224}), "flip", "to_tensor"])
        # ImageRecordIter refuses a batch that holds all images.
        same = {"batch_size": min(32, files - 1), "shuffle": True}
        threads = gluon.data.DataLoader(images, num_workers=2, thread_pool=True, **same)
        ways = {
            "gluon, num_workers=2": exhaust(gluon.data.DataLoader(images, num_workers=2, **same)),
            "gluon, thread_pool=True": exhaust(threads),
            "gluon, 0 workers": exhaust(gluon.data.DataLoader(images, **same)),
        }
        for workers in ("process:2", "thread:2", 0):
            options = {"workers": workers, **same}
            ways[f"{workers}, gluon's transforms"] = exhaust(DatasetLoader(images, **options))
            ways[f"{workers}, image_folder, Augment"] = exhaust(DatasetLoader(ours, transform=augment, **options))
            of_records = DatasetLoader(records.transform_first(composed), **options)
            ways[f"{workers}, .rec, gluon's transforms"] = exhaust(of_records)
        restarted = DatasetLoader(images, workers="process:2", **same)
        ways["process:2 started each epoch, gluon's transforms"] = started_each_epoch(restarted)
        ways[".rec, ImageRecordIter, 2 threads"] = by_mxnet(names, same["batch_size"])
        ways["decoding alone, all cores"] = decoding(folder)
        yield ways


@contextlib.contextmanager
def large_ways(files: int) -> Iterator[Ways]:
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder, files, (1024, 768))
        cut = [transforms.Resize(256, keep_ratio=True), transforms.CenterCrop(224), transforms.ToTensor()]
        composed, same = transforms.Compose(cut), {"batch_size": 8}
        images = gluon.data.vision.ImageFolderDataset(folder).transform_first(composed)
        ways = {"gluon, num_workers=2": exhaust(gluon.data.DataLoader(images, num_workers=2, **same))}
        for reduce_to in (None, 256):
            part = mxkit.data.image_folder(folder, valid=0, test=0, reduce_to=reduce_to).train
            loader = DatasetLoader(part.transform_first(composed), workers="process:2", **same)
            ways[f"process:2, image_folder, reduce_to={reduce_to}"] = exhaust(loader)
        ways["decoding alone, all cores"] = decoding(folder)
        yield ways


def memory_loader(name: str, samples: int) -> Any:
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (samples, 28, 28)).astype(np.uint8), rng.randint(0, 10, samples)
    if name in ARRAY_LOADERS:
        return mxkit.data.ArrayLoader(x, y, 64, shuffle=True, scale=SCALE, prefetch=ARRAY_LOADERS[name])
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
