"""How fast batches come: mxkit's loaders, gluon's, and a bare NumPy loop; and whether memory stays flat.

Every way reads whole epochs, interleaved, so that what else the machine does meets all alike; medians, and the spread
of the ratios. `python -m benchmarks.loaders [ROUNDS] [arrays|jpeg|memory ...]`.

- arrays: 60,000 images of 28x28 in uint8, shuffled, cast to float32 and scaled, with labels.
- jpeg: a folder of 400 JPEGs of 256x256, decoded, randomly cropped to 224, flipped, to float32 CHW, two workers.
- memory: resident size after each of 20 epochs.
"""

import pathlib
import statistics
import sys
import tempfile
import time
import warnings

import mxkit  # before mxnet
from mxkit.data.dataset_loader import DatasetLoader
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data.vision import transforms
import numpy as np
from PIL import Image

SCALE = np.float32(1 / 255)


def compare(title, ways, rounds, samples, to):
    """Print a table of ways (name -> function that reads an epoch), as ratios to the way `to`."""
    taken = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, read in ways.items():
            begun = time.perf_counter()
            read()
            mx.nd.waitall()
            if number:  # the first round starts threads and fills caches
                taken[name].append(time.perf_counter() - begun)
    print(f"{title}, {rounds} rounds")
    for name, seconds in taken.items():
        ratios = [other / one for one, other in zip(seconds, taken[to])]
        print(
            f"  {name:34} {samples / statistics.median(seconds):10,.0f} samples/s  "
            f"{statistics.median(ratios):7.2f} x {to} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def exhaust(loader):
    return lambda: [None for _ in loader]


def arrays(rounds):
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (60_000, 28, 28)).astype(np.uint8), rng.randint(0, 10, 60_000).astype(np.int32)
    # as gluon.data.vision.MNIST holds it
    dataset = gluon.data.ArrayDataset(mx.nd.array(x[..., None], dtype="uint8"), y)
    as_gluon = dataset.transform_first(transforms.ToTensor())
    for batch_size in (64, 256):

        def bare(batch_size=batch_size, labels=True):
            order = np.random.permutation(len(x))
            for start in range(0, len(x), batch_size):
                rows = order[start : start + batch_size]
                mx.nd.array(np.take(x, rows, 0).astype("float32") * SCALE)
                if labels:
                    mx.nd.array(np.take(y, rows, 0), dtype="int32")

        array_loader = mxkit.data.ArrayLoader
        ways = {
            "gluon, 0 workers": exhaust(gluon.data.DataLoader(as_gluon, batch_size, shuffle=True)),
            "NumPy loop": bare,
            "NumPy loop, without labels": lambda: bare(labels=False),
            "ArrayLoader": exhaust(array_loader(x, y, batch_size, shuffle=True)),
            "ArrayLoader, prefetch=2": exhaust(array_loader(x, y, batch_size, shuffle=True, prefetch=2)),
        }
        compare(f"60,000 x 28x28 uint8, batch {batch_size}", ways, rounds, len(x), "NumPy loop")
        fast = {name: ways[name] for name in ("gluon, 0 workers", "ArrayLoader")}
        compare("  against gluon", fast, rounds, len(x), "gluon, 0 workers")


def write_images(folder, count=400, size=256):
    rng = np.random.RandomState(0)
    for number in range(count):
        coarse = Image.fromarray(rng.randint(0, 256, (16, 16, 3)).astype(np.uint8)).resize((size, size))
        noise = rng.randint(-12, 13, (size, size, 3))
        pixels = np.clip(np.asarray(coarse, np.int16) + noise, 0, 255).astype(np.uint8)
        path = pathlib.Path(folder) / f"class{number % 4}" / f"{number:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def crop_and_flip(image, rng):
    """What gluon's two transforms do, with random numbers of its own."""
    area, (height, width) = rng.uniform(0.08, 1) * image.shape[0] * image.shape[1], image.shape[:2]
    side = int(min(height, width, np.sqrt(area)))
    top, left = int(rng.integers(0, height - side + 1)), int(rng.integers(0, width - side + 1))
    image = mx.image.fixed_crop(image, left, top, side, side, (224, 224))
    return mx.nd.image.to_tensor(mx.nd.image.flip_left_right(image) if rng.random() < 0.5 else image)


def jpeg(rounds):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", mxkit.errors.TrapWarning)
        write_images(folder)
        images = gluon.data.vision.ImageFolderDataset(folder)
        steps = [transforms.RandomResizedCrop(224), transforms.RandomFlipLeftRight(), transforms.ToTensor()]
        random_images = images.transform_first(transforms.Compose(steps))
        gluon_loader = gluon.data.DataLoader
        ways = {
            "gluon, num_workers=2": exhaust(gluon_loader(random_images, 32, shuffle=True, num_workers=2)),
            "gluon, thread_pool=True": exhaust(
                gluon_loader(random_images, 32, shuffle=True, num_workers=2, thread_pool=True)
            ),
            "gluon, 0 workers": exhaust(gluon_loader(random_images, 32, shuffle=True)),
        }
        for workers in ("process:2", "thread:2", 0):
            same = DatasetLoader(random_images, 32, shuffle=True, workers=workers)
            own = DatasetLoader(images, 32, shuffle=True, workers=workers, transform=crop_and_flip)
            ways[f"{workers}, gluon's transforms"] = exhaust(same)
            ways[f"{workers}, transform with rng"] = exhaust(own)
        kept = DatasetLoader(images, 32, shuffle=True, workers="process:2", transform=crop_and_flip)
        with kept:
            ways["process:2 kept, transform with rng"] = exhaust(kept)
            compare("400 JPEGs, crop and flip, batch 32", ways, rounds, len(images), "gluon, num_workers=2")


def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def memory(_):
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (20_000, 28, 28)).astype(np.uint8), rng.randint(0, 10, 20_000)
    samples = gluon.data.SimpleDataset([(row, label) for row, label in zip(x[:4000], y)])
    loaders = {
        "ArrayLoader": mxkit.data.ArrayLoader(x, y, 64, shuffle=True),
        "ArrayLoader, prefetch=2": mxkit.data.ArrayLoader(x, y, 64, shuffle=True, prefetch=2),
        **{f"DatasetLoader, {way}": DatasetLoader(samples, 64, workers=way) for way in (0, "thread:2", "process:2")},
    }
    for name, loader in loaders.items():
        sizes = []
        for _ in range(21):
            for batch in loader:
                batch[0] * 2  # an operator, as a training has
            mx.nd.waitall()
            sizes.append(resident())
        descriptors = len(list(pathlib.Path("/proc/self/fd").iterdir()))
        print(f"{name:28} {sizes[1]:7.1f} MB after epoch 2, {sizes[-1]:7.1f} after 21; {descriptors} descriptors")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for part in sys.argv[2:] or ["arrays", "jpeg", "memory"]:
        {"arrays": arrays, "jpeg": jpeg, "memory": memory}[part](rounds)


if __name__ == "__main__":
    main()
