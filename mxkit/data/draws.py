"""The generators of random numbers that datasets and transforms draw from.

Gluon's draw from three libraries (T61). The generators of known datasets and transforms are listed here; unknown ones
may draw from all three.
"""

import inspect
from typing import Any, Dict, FrozenSet

from mxkit.core.arrays import legacy, of_kind, switches
from mxkit.core.blocks import child_blocks, chosen, held_arrays, of_first, own_transform, transformed
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
