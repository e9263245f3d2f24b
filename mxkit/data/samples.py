"""Samples read by number, with all that is random in them a function of (seed, epoch, number).

Three libraries draw in gluon's datasets and transforms (T61), and a generator can be seeded for each sample, but
at a price: MXNet's takes 1.1 ms (T67), and Python's and NumPy's belong to the whole process, so that threads must
read one sample at a time. What is known draws what it is known to draw; what is not may draw from all three.
"""

from contextlib import contextmanager
import inspect
import os
import random
import threading
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional, Sequence

from mxkit.core.blocks import child_blocks
from mxkit.core.gluon_data import chosen, held_arrays, of_first, own_transform, transformed
from mxkit.core.seeding import generators_kept
from mxkit.data.batching import Allocate, Structure, place, stack
from mxkit.errors import DataError
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
        children = [drawn_by_transform(child) for child in child_blocks(function).values()]
        inner = drawn_by_transform(function.transforms) if hasattr(function, "transforms") else NOTHING
        return _CONTAINERS[type(function)].union(inner, *children)
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


Read = Callable[[int, Any], Any]

# Python's and NumPy's global generators belong to all threads; and gluon's Blocks fail when two threads trace one.
_ALONE = threading.RLock()


def _renew() -> None:
    global _ALONE
    _ALONE = threading.RLock()


os.register_at_fork(after_in_child=_renew)  # a thread that is not there would hold it for ever


class Samples:
    """How one loader reads samples; sent to worker processes as it is.

    Args:
        dataset: Anything with `[number]`.
        transform: Called with the first element of a sample, or None.
        batchify: Called with the samples of a batch in place of stacking them, or None.
        seed: Of the loader.
        draws: The generators that reading may draw from, see `mxkit.data.samples`.
    """

    def __init__(self, dataset: Any, transform: Any, batchify: Optional[Any], seed: int, draws: FrozenSet[str]) -> None:
        self.dataset, self.transform, self.batchify = dataset, transform, batchify
        self.seed, self.draws = seed % 2**32, draws
        self._read: Optional[Read] = None

    @property
    def one_at_a_time(self) -> bool:
        """Whether threads must not read two samples at once."""
        return bool(self.draws & {PYTHON, NUMPY, FILE})

    def batch(
        self, epoch: int, rows: Iterable[int], allocate: Allocate, unwanted: Callable[[], bool] = lambda: False
    ) -> Structure:
        """Read the samples of these numbers and put them as a batch where `allocate` says.

        Raises:
            DataError: A sample could not be read, or they do not fit together; the text names them.
        """
        rows = [int(row) for row in rows]
        samples: List[Any] = []
        for row in rows:
            if unwanted():
                raise DataError("nobody waits for this batch any more")
            samples.append(self._sample(epoch, row))
        name = type(self.dataset).__name__
        if self.batchify is None:
            try:
                return stack(samples, rows, allocate)
            except DataError as error:
                raise DataError(f"DatasetLoader: {name}: {error}") from error.__cause__
        try:
            return place(self.batchify(samples), allocate)
        except Exception as error:  # a user's function, or an array of theirs
            raise DataError(
                f"DatasetLoader: batchify could not join the samples {abbreviated(rows)} of {name}: {told(error)}"
            ) from error

    @contextmanager
    def in_process(self) -> Iterator[None]:
        """Leave Python's and NumPy's generators as they were, and keep other threads from them meanwhile."""
        if not self.one_at_a_time:
            yield
            return
        with _ALONE, generators_kept():
            yield

    def _sample(self, epoch: int, row: int) -> Any:
        key = [self.seed, epoch, row]
        try:
            if self.draws - {FILE}:
                _seed(np.random.SeedSequence(key).generate_state(3).tolist(), self.draws)
            if self._read is not None:
                return self._read(row, key)
            with _ALONE:
                read = _with_rng(self.dataset, self.transform)
                sample = read(row, key)
            self._read = read
            return sample
        except Exception as error:  # a user's code may fail in any way
            raise DataError(
                f"DatasetLoader: sample {row} of {type(self.dataset).__name__} could not be read in epoch "
                f"{epoch + 1}: {told(error)}"
            ) from error

    def __getstate__(self) -> Any:
        return {**vars(self), "_read": None}


def told(error: BaseException) -> str:
    """Type and text of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def abbreviated(rows: Sequence[int]) -> str:
    """Sample numbers for a message.

    >>> abbreviated([4]), abbreviated(range(9))
    ('4', '0, 1, 2, ... 8 (9 samples)')
    """
    if len(rows) <= 4:
        return ", ".join(map(str, rows))
    return f"{', '.join(map(str, rows[:3]))}, ... {rows[-1]} ({len(rows)} samples)"


def _seed(numbers: Sequence[int], draws: FrozenSet[str]) -> None:
    if PYTHON in draws:
        random.seed(numbers[0])
    if NUMPY in draws:
        np.random.seed(numbers[1])
    if MXNET in draws:
        # Of this thread alone: each has a generator of its own (T68). A forked worker has no CUDA.
        mx.random.seed(numbers[2], ctx=mx.cpu())


def _with_rng(dataset: Any, transform: Any) -> Read:
    """How to read a sample so that each function that takes `rng` gets one.

    gluon's own lazy datasets call their function without it, so what they do is done here.
    """
    read = _reading(dataset)
    return read if transform is None else _then(read, transform, first=True)


def _reading(dataset: Any) -> Read:
    lazy, part = transformed(dataset), chosen(dataset)
    if lazy:
        first = of_first(lazy[1])
        return _then(_reading(lazy[0]), lazy[1] if first is None else first, first is not None)
    if part:
        inner, indices = _reading(part[0]), part[1]
        return lambda row, key: inner(indices[row], key)
    return lambda row, key: dataset[row]


def _then(read: Read, function: Any, first: bool) -> Read:
    random_too = takes_rng(function)

    def call(row: int, key: Any) -> Any:
        item = read(row, key)
        items = item if isinstance(item, tuple) else (item,)
        extra = {"rng": np.random.Generator(np.random.PCG64(key))} if random_too else {}
        if not first:
            return function(*items, **extra)
        changed = function(items[0], **extra)
        return (changed, *items[1:]) if len(items) > 1 else changed

    return call
