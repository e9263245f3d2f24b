"""Gluon's datasets and transforms: the generators that they draw from, and images by OpenCV, with the same pixels.

Gluon's draw from three libraries (T61). The generators of known datasets and transforms are listed here; unknown ones
may draw from all three.

MXNet's operators take several times as long for one image: 1.9 ms to decode a JPEG of 256x256 (OpenCV 0.4), 1.1 ms for
RandomResizedCrop (0.1), 0.8 ms for ToTensor (0.1), 1.1 ms to seed their generator (0.02). Only what was found equal to
the last bit is computed here; bicubic interpolation, for one, is not. The rest runs as before.
"""

from functools import cached_property, partial
import inspect
from pathlib import Path
import random
import threading
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

from mxkit.core.arrays import legacy, of_kind, switches
from mxkit.core.blocks import (
    child_blocks,
    chosen,
    for_first,
    held_arrays,
    of_first,
    own_flag,
    own_transform,
    transform_options,
    transformed,
)
from mxkit.data.augment_steps import resized, scaled_down, with_short_side
from mxkit.data.batching import to_batch
from mxkit.data.image_bytes import decode
from mxkit.errors import DataError
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data import vision
from mxnet.gluon.data.vision import transforms
from mxnet.util import is_np_array
import numpy as np

PYTHON, NUMPY, MXNET = "python", "numpy", "mxnet"
#: Not a generator, but another reason why threads must read one sample at a time: they share one file position.
FILE = "file"

NOTHING: FrozenSet[str] = frozenset()
ANYTHING = frozenset([PYTHON, NUMPY, MXNET])

_TRANSFORMS: Dict[type, FrozenSet[str]] = {
    **dict.fromkeys((transforms.Cast, transforms.ToTensor, transforms.Normalize, transforms.Rotate), NOTHING),
    **dict.fromkeys((transforms.CropResize, transforms.CenterCrop, transforms.Resize), NOTHING),
    transforms.RandomRotation: frozenset([NUMPY, PYTHON]),
    transforms.RandomResizedCrop: frozenset([PYTHON]),
    **{
        kind: frozenset([MXNET])
        for kind in (
            *(transforms.RandomFlipLeftRight, transforms.RandomFlipTopBottom, transforms.RandomBrightness),
            *(transforms.RandomContrast, transforms.RandomSaturation, transforms.RandomHue),
            *(transforms.RandomColorJitter, transforms.RandomLighting),
        )
    },
}
# Blocks that call their children, and the generators of their own.
_CONTAINERS: Dict[type, FrozenSet[str]] = {
    **dict.fromkeys((transforms.Compose, gluon.nn.Sequential, gluon.nn.HybridSequential), NOTHING),
    transforms.RandomApply: frozenset([PYTHON]),
}
_ARRAYS = (list, tuple, range, np.ndarray, np.memmap, mx.nd.NDArray, mx.np.ndarray)
_WITH_TRANSFORM = (vision.MNIST, vision.FashionMNIST, vision.CIFAR10, vision.CIFAR100, vision.ImageFolderDataset)


# Modules whose functions are written for `mx.nd` alone.
_LEGACY = ("mxnet.image.", "gluoncv.")


def call_user(function: Any, *arguments: Any, **named: Any) -> Any:
    """Call a user's function; those of gluoncv and augmenters of MXNet get NDArrays for arrays of `mx.np`."""
    if not str(getattr(function, "__module__", "")).startswith(_LEGACY):
        return function(*arguments, **named)
    with switches(False):
        result = function(*legacy(arguments), **named)
    return of_kind(result, is_np_array())


def takes_rng(function: Any) -> bool:
    """Whether a callable has a parameter named `rng`: it then receives a generator, and must use no other."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False


def drawn_by_transform(function: Any) -> FrozenSet[str]:
    """Names of the generators that a call of a transform may draw from.

    >>> sorted(drawn_by_transform(transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])))
    ['python']
    >>> sorted(drawn_by_transform(lambda image: image)), sorted(drawn_by_transform(lambda image, rng: image))
    (['mxnet', 'numpy', 'python'], [])
    """
    if function is None:
        return NOTHING
    if of_first(function) is not None:
        return drawn_by_transform(of_first(function))
    if hasattr(function, "draws"):
        return frozenset(function.draws)
    if takes_rng(function):
        return NOTHING
    if type(function) in _CONTAINERS:
        children = [drawn_by_transform(child) for child in child_blocks(function).values()]
        inner = drawn_by_transform(function.transforms) if hasattr(function, "transforms") else NOTHING
        return _CONTAINERS[type(function)].union(inner, *children)
    if isinstance(function, mx.image.Augmenter) and type(function).__module__.startswith("mxnet."):
        return frozenset([PYTHON, NUMPY])
    return _TRANSFORMS.get(type(function), ANYTHING)


def drawn_by_dataset(dataset: Any) -> FrozenSet[str]:
    """Names of the generators that `dataset[index]` may draw from, and `FILE`.

    A dataset can declare them in an attribute `draws`: some of "python", "numpy", "mxnet".

    >>> sorted(drawn_by_dataset(gluon.data.SimpleDataset([1, 2]).transform(transforms.RandomFlipLeftRight())))
    ['mxnet']
    """
    kind = type(dataset)
    if hasattr(dataset, "draws"):
        return frozenset(dataset.draws)
    if kind in _ARRAYS:
        return NOTHING
    lazy, part = transformed(dataset), chosen(dataset)
    if lazy:
        return drawn_by_dataset(lazy[0]) | drawn_by_transform(lazy[1])
    if part:
        return drawn_by_dataset(part[0])
    if kind in (gluon.data.SimpleDataset, gluon.data.ArrayDataset):
        return NOTHING.union(*map(drawn_by_dataset, held_arrays(dataset)))
    if kind is gluon.data.RecordFileDataset:
        return frozenset([FILE])
    if kind is vision.ImageRecordDataset:
        return drawn_by_transform(own_transform(dataset)) | {FILE}
    return drawn_by_transform(own_transform(dataset)) if kind in _WITH_TRANSFORM else ANYTHING


# OpenCV's codes of interpolations that give the same pixels in both libraries.
_SAME_PIXELS = (0, 1, 3, 4)


class ImageDataset(gluon.data.Dataset):  # type: ignore[misc]
    """Base of datasets with NumPy images, so that a worker reads one without MXNet."""

    draws = ()  # generators of random numbers that reading a sample draws from

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Any:
        """As gluon's; `fn` gets the image as an array of MXNet, or as NumPy if it takes `rng`."""
        return super().transform(for_images(fn), lazy)


def for_images(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A transform for NumPy images: `fn` itself if it takes `rng`, else `fn` called with MXNet's arrays as by gluon."""
    first = of_first(fn)
    if takes_rng(fn if first is None else first):
        return fn
    return WithNDArray(fn) if first is None else for_first(WithNDArray(first))


class WithNDArray:
    """A function of samples that gets an NDArray, or an array of `mx.np`, for a NumPy image; workers can unpickle it.

    Attributes:
        draws: The generators that it may draw from.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.draws = drawn_by_transform(fn)

    def __call__(self, image: Any, *rest: Any) -> Any:
        return call_user(self.fn, as_mxnet(image), *rest)


def as_mxnet(image: Any) -> Any:
    """An array of MXNet, of the kind that this thread's switches say, with the numbers of `image`."""
    if isinstance(image, mx.nd.NDArray):
        return image
    return of_kind(to_batch(image), is_np_array())


_thread = threading.local()


class Draws:
    """The random numbers of one sample, equal to those of Python's and MXNet's generators after `seed_all` of it."""

    def __init__(self, key: Sequence[int]) -> None:
        self._key = key

    @cached_property
    def _seeds(self) -> List[int]:
        return seeds_of(self._key)

    @cached_property
    def python(self) -> random.Random:
        return random.Random(self._seeds[0])

    @cached_property
    def _words(self) -> "np.random.RandomState":
        if not hasattr(_thread, "twister"):  # making one takes 0.2 ms, seeding it 0.005
            _thread.twister = np.random.RandomState()
        _thread.twister.seed(self._seeds[2])
        return _thread.twister  # type: ignore[no-any-return]

    def flips(self) -> bool:
        """MXNet's coin: a double of two words of a Mersenne Twister that is at least 0.5."""
        return self._words.bytes(8)[7] >= 128


def seeds_of(key: Sequence[int]) -> List[int]:
    """Seeds for Python's, NumPy's and MXNet's generators."""
    seeds: List[int] = np.random.SeedSequence(key).generate_state(3).tolist()
    return seeds


# A transform of gluon, computed here: of an image, uint8 (height, width, 1 or 3), or after ToTensor of float32
# (channels, height, width), with the sample's random numbers.
Change = Callable[["np.ndarray", Draws], "np.ndarray"]


def parts_of(transform: Any) -> List[Any]:
    """The transforms in MXNet's containers that call them in turn, at every depth, in the order of their calls."""
    if type(transform) is mx.image.SequentialAug:
        inner = transform.ts
    elif type(transform) in (transforms.Compose, gluon.nn.Sequential, gluon.nn.HybridSequential):
        inner = child_blocks(transform).values()
    else:
        return [transform]
    return [part for child in inner for part in parts_of(child)]


def changes(transform: Any) -> List[Tuple[Any, Optional[Change]]]:
    """The transforms in a transform, in the order of their calls, each with what computes it here, or None."""
    if isinstance(transform, WithNDArray):
        return [(function if change else WithNDArray(function), change) for function, change in changes(transform.fn)]
    kind = type(transform)
    if kind not in (transforms.Compose, gluon.nn.Sequential, gluon.nn.HybridSequential):
        return [(transform, _change(kind, transform))]
    parts = [part for child in child_blocks(transform).values() for part in changes(child)]
    # a hybridized group runs as one graph, or here
    together = kind is gluon.nn.HybridSequential and not all(change for _, change in parts)
    return [(transform, None)] if together else parts


def _change(kind: type, transform: Any) -> Optional[Change]:
    import cv2

    if kind is transforms.ToTensor:
        return lambda image, draws: np.divide(image.transpose(2, 0, 1), np.float32(255), dtype=np.float32, order="C")
    if kind is transforms.Normalize:
        mean, std = transform_options(transform)
        return lambda tensor, draws: _normalized(tensor, mean, std)
    if kind in _FLIPS:
        return lambda image, draws: (
            cv2.flip(image, _FLIPS[kind]).reshape(image.shape) if draws.flips() else image  # MXNet's are wrong (T189)
        )
    if kind not in (transforms.RandomResizedCrop, transforms.CenterCrop, transforms.Resize):
        return None
    size, *options, interpolation = transform_options(transform)
    if interpolation not in _SAME_PIXELS:
        return None
    if kind is transforms.CenterCrop:
        return lambda image, draws: _center_crop(image, size, interpolation)
    if kind is transforms.Resize:
        return lambda image, draws: _resize(image, size, options[0], interpolation)
    area, ratio = options
    bounds = (area, 1.0) if np.isscalar(area) else area
    return lambda image, draws: _random_crop(image, size, bounds, ratio, interpolation, draws.python)


# Gluon's flips, and OpenCV's codes of their axes.
_FLIPS = {transforms.RandomFlipLeftRight: 1, transforms.RandomFlipTopBottom: 0}


def _normalized(tensor: "np.ndarray", mean: Any, std: Any) -> "np.ndarray":
    mean, std = (np.asarray(part, np.float32).reshape(-1, 1, 1) for part in (mean, std))
    if {len(mean), len(std)} - {1, len(tensor)}:
        raise DataError(f"Normalize has {max(len(mean), len(std))} numbers, the image {len(tensor)} channels")
    tensor -= mean
    tensor /= std
    return tensor


def _random_crop(
    image: "np.ndarray", size: Any, area: Any, ratio: Any, interpolation: int, rng: random.Random
) -> "np.ndarray":
    """What `mx.image.random_size_crop` does, with the same calls of the generator."""
    rows, columns = image.shape[:2]
    for _ in range(10):
        target = rng.uniform(area[0], area[1]) * (rows * columns)
        new_ratio = np.exp(rng.uniform(np.log(ratio[0]), np.log(ratio[1])))
        width, height = int(round(np.sqrt(target * new_ratio))), int(round(np.sqrt(target / new_ratio)))
        if width <= columns and height <= rows:
            left = rng.randint(0, columns - width)
            top = rng.randint(0, rows - height)
            return resized(image[top : top + height, left : left + width], size, interpolation)
    return _center_crop(image, size, interpolation)


def _center_crop(image: "np.ndarray", size: Any, interpolation: int) -> "np.ndarray":
    rows, columns = image.shape[:2]
    width, height = scaled_down((columns, rows), size)
    left, top = int((columns - width) / 2), int((rows - height) / 2)
    return resized(image[top : top + height, left : left + width], size, interpolation)


def _resize(image: "np.ndarray", size: Any, keep_ratio: bool, interpolation: int) -> "np.ndarray":
    if not isinstance(size, (tuple, list)):
        size = with_short_side(image.shape, int(size)) if keep_ratio else (int(size), int(size))
    return resized(image, size, interpolation)


Source = Callable[[int], Tuple[Any, ...]]


def source_of(dataset: Any) -> Optional[Source]:
    """A function that reads `(image, label)` of a dataset of images, or None for another dataset.

    The image is NumPy, uint8 of shape (height, width, channels).
    """
    encoded = type(dataset) in (vision.ImageFolderDataset, vision.ImageRecordDataset)
    encoded = encoded and own_transform(dataset) is None and own_flag(dataset) in (0, 1)
    if not encoded and "gives_pixels" not in vars(type(dataset)):
        return None
    import cv2  # noqa: F401  once here, and not in each worker: it takes 0.2 s

    return partial(_decoded, dataset) if encoded else dataset.__getitem__


def _decoded(dataset: Any, row: int) -> Tuple[Any, ...]:
    try:
        if type(dataset) is vision.ImageFolderDataset:
            path, label = dataset.items[row]
            packed = Path(path).read_bytes()
        else:
            header, packed = mx.recordio.unpack(gluon.data.RecordFileDataset.__getitem__(dataset, row))
            label = header.label
        return decode(packed, "", 3 if own_flag(dataset) else 1), label
    except (DataError, OSError):  # what MXNet makes of a damaged file, which may be an error too
        image, label = dataset[row]
        return image.asnumpy(), label
