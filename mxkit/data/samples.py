"""Reads samples by number, with all their randomness a function of (seed, epoch, number).

Gluon's datasets and transforms draw from three libraries (T61). Their generators can be seeded for each sample, at a
cost: MXNet's takes 1.1 ms (T67), and Python's and NumPy's belong to the whole process, so threads must read one sample
at a time. The generators of known datasets and transforms are listed here; unknown ones may draw from all three.
"""

from contextlib import contextmanager
import inspect
import os
import random
import threading
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional, Sequence

from mxkit.core.array_kind import legacy, of_kind, switches
from mxkit.core.blocks import child_blocks
from mxkit.core.gluon_data import chosen, held_arrays, of_first, own_transform, transformed
from mxkit.core.seeding import generators_kept
from mxkit.data.batching import Allocate, Structure, place, stack
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


def checked_draws(dataset: Any, transform: Any, draws: Optional[Iterable[str]]) -> FrozenSet[str]:
    """Names of the generators that reading a sample may draw from, and `FILE`.

    Args:
        dataset: A dataset that is read by number.
        transform: Called with the first element of a sample, or None.
        draws: The user's argument, or None to look at `dataset` and `transform`.

    Raises:
        ValueError: `draws` has a name other than "python", "numpy" and "mxnet".
    """
    if draws is None:
        return drawn_by_dataset(dataset) | drawn_by_transform(transform)
    names = [draws] if isinstance(draws, str) else list(draws)
    if not set(names) <= ANYTHING:
        raise ValueError(f"draws: expected some of {sorted(ANYTHING)}, or () for nothing; received {draws!r}")
    return frozenset(names) | (drawn_by_dataset(dataset) & {FILE})


Read = Callable[[int, Any], Any]

# All threads share Python's and NumPy's global generators; and Gluon's Blocks fail if two threads trace one.
_LOCK = threading.RLock()


def _replace_lock() -> None:
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)  # the thread that holds it does not exist in the child


class Samples:
    """Reads the samples of one loader; worker processes receive this object.

    Args:
        dataset: Anything with `[number]`.
        transform: Called with the first element of a sample, or None.
        batchify: Called with the samples of a batch instead of stacking them, or None.
        seed: Seed of the loader.
        draws: The generators that reading may draw from, as `checked_draws` returns them.
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
        """Read the samples of these numbers, and write them as a batch into the arrays that `allocate` returns.

        Raises:
            DataError: A sample could not be read, or samples have different shapes; the text names them.
        """
        rows = [int(row) for row in rows]
        samples: List[Any] = []
        for row in rows:
            if unwanted():
                raise DataError("the reading of this batch was cancelled")
            samples.append(self._sample(epoch, row))
        name = type(self.dataset).__name__
        if self.batchify is None:
            try:
                return stack(samples, rows, allocate)
            except DataError as error:
                raise DataError(f"DatasetLoader: {name}: {error}") from error.__cause__
        try:
            return place(call_user(self.batchify, samples), allocate)
        except Exception as error:  # a user's function, or an array of theirs
            raise DataError(
                f"DatasetLoader: batchify could not join the samples {abbreviated(rows)} of {name}: {error_text(error)}"
            ) from error

    @contextmanager
    def in_process(self) -> Iterator[None]:
        """Restore Python's and NumPy's generators at the end, and let no other thread use them meanwhile."""
        if not self.one_at_a_time:
            yield
            return
        with _LOCK, generators_kept():
            yield

    def _sample(self, epoch: int, row: int) -> Any:
        key = [self.seed, epoch, row]
        try:
            if self.draws - {FILE}:
                _seed(np.random.SeedSequence(key).generate_state(3).tolist(), self.draws)
            if self._read is not None:
                return self._read(row, key)
            with _LOCK:
                read = _reader(self.dataset)
                read = read if self.transform is None else _then(read, self.transform, first=True)
                sample = read(row, key)
            self._read = read
            return sample
        except Exception as error:  # a user's code may raise anything
            raise DataError(
                f"DatasetLoader: sample {row} of {type(self.dataset).__name__} could not be read in epoch "
                f"{epoch + 1}: {error_text(error)}"
            ) from error

    def __getstate__(self) -> Any:
        return {**vars(self), "_read": None}


def error_text(error: BaseException) -> str:
    """Type and message of an error."""
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
        # Only the generator of this thread: each thread has its own (T68). A forked worker has no CUDA.
        mx.random.seed(numbers[2], ctx=mx.cpu())


def _reader(dataset: Any) -> Read:
    """A function that reads a sample, and passes `rng` to the functions of gluon's lazy datasets that take it."""
    lazy, part = transformed(dataset), chosen(dataset)
    if lazy:
        first = of_first(lazy[1])
        return _then(_reader(lazy[0]), lazy[1] if first is None else first, first is not None)
    if part:
        inner, indices = _reader(part[0]), part[1]
        return lambda row, key: inner(indices[row], key)
    return lambda row, key: dataset[row]


def _then(read: Read, function: Any, first: bool) -> Read:
    with_rng = takes_rng(function)

    def call(row: int, key: Any) -> Any:
        item = read(row, key)
        items = item if isinstance(item, tuple) else (item,)
        extra = {"rng": np.random.Generator(np.random.PCG64(key))} if with_rng else {}
        if not first:
            return call_user(function, *items, **extra)
        changed = call_user(function, items[0], **extra)
        return (changed, *items[1:]) if len(items) > 1 else changed

    return call
