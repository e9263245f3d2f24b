"""Which random generators the reading of a sample may draw from.

Three libraries draw in gluon's datasets and transforms (T61), and a generator can be seeded for each sample, but
at a price: MXNet's takes 1.1 ms (T67), and Python's and NumPy's belong to the whole process, so that threads must
read one sample at a time. What is known draws what it is known to draw; what is not may draw from all three.
"""

import inspect
from typing import Any, Dict, FrozenSet, Iterable, Optional

from mxkit.core.blocks import child_blocks
from mxkit.core.gluon_data import chosen, held_arrays, of_first, own_transform, transformed
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data import vision
from mxnet.gluon.data.vision import transforms
import numpy as np

PYTHON, NUMPY, MXNET = "python", "numpy", "mxnet"
#: Not a generator, but also a reason to read one sample at a time in threads: one file position for all of them.
FILE = "file"

NOTHING: FrozenSet[str] = frozenset()
ANYTHING = frozenset([PYTHON, NUMPY, MXNET])

_DRAWN: Dict[type, FrozenSet[str]] = {
    **dict.fromkeys((transforms.Cast, transforms.ToTensor, transforms.Normalize, transforms.Rotate), NOTHING),
    **dict.fromkeys((transforms.CropResize, transforms.CenterCrop, transforms.Resize), NOTHING),
    transforms.RandomRotation: frozenset([NUMPY, PYTHON]),
    transforms.RandomResizedCrop: frozenset([PYTHON]),
    **{
        kind: frozenset([MXNET])
        for kind in (
            transforms.RandomFlipLeftRight,
            transforms.RandomFlipTopBottom,
            transforms.RandomBrightness,
            transforms.RandomContrast,
            transforms.RandomSaturation,
            transforms.RandomHue,
            transforms.RandomColorJitter,
            transforms.RandomLighting,
        )
    },
}
# What only calls its children.
_CONTAINERS: Dict[type, FrozenSet[str]] = {
    **dict.fromkeys((transforms.Compose, gluon.nn.Sequential, gluon.nn.HybridSequential), NOTHING),
    transforms.RandomApply: frozenset([PYTHON]),
}
_ARRAYS = (list, tuple, range, np.ndarray, np.memmap, mx.nd.NDArray)
_DOWNLOADED = (vision.MNIST, vision.FashionMNIST, vision.CIFAR10, vision.CIFAR100)


def takes_rng(function: Any) -> bool:
    """Whether a callable has a parameter named `rng`: it is then given one, and is to draw from nothing else."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False


def drawn_by_transform(function: Any) -> FrozenSet[str]:
    """Generators that a call of a transform may draw from.

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
        inside = [drawn_by_transform(child) for child in child_blocks(function).values()]
        inner = drawn_by_transform(function.transforms) if hasattr(function, "transforms") else NOTHING
        return _CONTAINERS[type(function)].union(inner, *inside)
    if isinstance(function, mx.image.Augmenter) and type(function).__module__.startswith("mxnet."):
        return frozenset([PYTHON, NUMPY])
    return _DRAWN.get(type(function), ANYTHING)


def drawn_by_dataset(dataset: Any) -> FrozenSet[str]:
    """Generators that `dataset[index]` may draw from, and `FILE`.

    A dataset can say it itself, in an attribute `draws`: some of "python", "numpy", "mxnet".

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
    if kind in (*_DOWNLOADED, vision.ImageFolderDataset):
        return drawn_by_transform(own_transform(dataset))
    return ANYTHING


def drawn(dataset: Any, transform: Any, told: Optional[Iterable[str]]) -> FrozenSet[str]:
    """Generators that reading a sample may draw from.

    Args:
        dataset: Read by number.
        transform: Called with what it gave, or None.
        told: What the user says, or None to find out.

    Raises:
        ValueError: `told` has another name than "python", "numpy" and "mxnet".
    """
    if told is None:
        return drawn_by_dataset(dataset) | drawn_by_transform(transform)
    names = [told] if isinstance(told, str) else list(told)
    if not set(names) <= ANYTHING:
        raise ValueError(f"draws: expected some of {sorted(ANYTHING)}, or () for nothing; received {told!r}")
    return frozenset(names) | (drawn_by_dataset(dataset) & {FILE})
