"""Reads samples by number, with all their randomness a function of (seed, epoch, number).

Python's, NumPy's and MXNet's generators can be seeded for each sample, at a cost: MXNet's takes 1.1 ms (T67), and
Python's and NumPy's belong to the whole process, so threads must read one sample at a time. Gluon's image datasets and
transforms need none of them: `pixels` computes them with generators of the sample.
"""

from contextlib import contextmanager
from functools import partial
import os
import random
import threading
from typing import Any, Callable, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.blocks import chosen, of_first, transformed
from mxkit.core.seeding import generators_kept
from mxkit.data import pixels
from mxkit.data.batching import Allocate, Structure, place, stack
from mxkit.errors import DataError, error_text
import mxnet as mx
from mxnet.gluon.data.vision import transforms
import numpy as np

Read = Callable[[int, Any], Any]

_CHANGE_SIZE = (transforms.Resize, transforms.CenterCrop, transforms.RandomResizedCrop)

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
        draws: The generators that reading may draw from: some of "python", "numpy" and "mxnet"; None looks at
            `dataset` and `transform`.

    Attributes:
        draws: The generators that are seeded for each sample, and `pixels.FILE` if samples share a file position.

    Raises:
        ValueError: `draws` has another name.
    """

    def __init__(
        self, dataset: Any, transform: Any, batchify: Optional[Any], seed: int, draws: Optional[Iterable[str]]
    ) -> None:
        self.dataset, self.transform, self.batchify = dataset, transform, batchify
        self.seed, self.draws = seed % 2**32, _checked_draws(_plan(dataset, transform), draws)
        self._read: Optional[Read] = None

    @property
    def one_at_a_time(self) -> bool:
        """Whether threads must not read two samples at once."""
        return bool(self.draws & {pixels.PYTHON, pixels.NUMPY, pixels.FILE})

    def held(self) -> List[Any]:
        """The objects that a worker process has a copy of: if one is replaced, the process reads old samples."""
        layers: List[Any] = [self.transform]
        inner: Any = (self.dataset,)
        while inner:
            layers.append(inner[0])
            inner = transformed(inner[0]) or chosen(inner[0])
        parts = [part for layer in layers for part in (layer, *getattr(layer, "__dict__", {}).values())]
        return [*parts, self.batchify, self.seed, self.draws]

    def batch(
        self, epoch: int, rows: Iterable[int], allocate: Allocate, unwanted: Callable[[], bool] = lambda: False
    ) -> Structure:
        """Read the samples of these numbers, modulo the length, and write them as a batch into `allocate`'s arrays.

        Raises:
            DataError: A sample could not be read, or samples have different shapes; the text names them.
        """
        draws, size = [int(row) for row in rows], len(self.dataset)
        rows, samples = [draw % size for draw in draws], []
        for draw, row in zip(draws, rows):
            if unwanted():
                raise DataError("the reading of this batch was cancelled")
            samples.append(self._sample(epoch, row, draw))
        name = type(self.dataset).__name__
        if self.batchify is None:
            try:
                return stack(samples, rows, allocate)
            except DataError as error:
                raise DataError(f"DatasetLoader: {name}: {error}") from error.__cause__
        try:
            return place(pixels.call_user(self.batchify, samples), allocate)
        except Exception as error:  # a user's function, or an array of theirs
            text = f"batchify could not join the samples {abbreviated(rows)} of {name}: {error_text(error)}"
            raise DataError(f"DatasetLoader: {text}") from error

    @contextmanager
    def in_process(self) -> Iterator[None]:
        """Restore Python's and NumPy's generators at the end, and let no other thread use them meanwhile."""
        if not self.one_at_a_time:
            yield
            return
        with _LOCK, generators_kept():
            yield

    def _sample(self, epoch: int, row: int, draw: int) -> Any:
        key = [self.seed, epoch, draw]
        try:
            if self.draws - {pixels.FILE}:
                _seed(pixels.seeds_of(key), self.draws)
            if self._read is not None:
                return self._read(row, key)
            with _LOCK:
                read = _reader(_plan(self.dataset, self.transform), self.batchify is not None)
                sample = read(row, key)
            self._read = read
            return sample
        except Exception as error:  # a user's code may raise anything
            text = f"sample {row} of {type(self.dataset).__name__} could not be read in epoch {epoch + 1}"
            raise DataError(f"DatasetLoader: {text}: {error_text(error)}") from error

    def __getstate__(self) -> Any:
        return {**vars(self), "_read": None}


def abbreviated(rows: Sequence[int]) -> str:
    """Sample numbers for a message.

    >>> abbreviated([4]), abbreviated(range(9))
    ('4', '0, 1, 2, ... 8 (9 samples)')
    """
    if len(rows) <= 4:
        return ", ".join(map(str, rows))
    return f"{', '.join(map(str, rows[:3]))}, ... {rows[-1]} ({len(rows)} samples)"


def _seed(numbers: Sequence[int], draws: FrozenSet[str]) -> None:
    if pixels.PYTHON in draws:
        random.seed(numbers[0])
    if pixels.NUMPY in draws:
        np.random.seed(numbers[1])
    if pixels.MXNET in draws:
        # Only the generator of this thread: each thread has its own (T68). A forked worker has no CUDA.
        mx.random.seed(numbers[2], ctx=mx.cpu())


# A function of a sample, or of its first element if True, and what computes it in its place, if `pixels` does.
_Step = Tuple[Any, bool, Optional[pixels.Change]]


class _Plan(NamedTuple):
    """How to read a sample.

    Attributes:
        dataset: The dataset inside of gluon's lazy ones.
        rows: Lists of the numbers of chosen samples, the outermost first.
        source: Reads images of `dataset` as NumPy; None calls the dataset.
        changes: Steps that `pixels` computes, in order.
        steps: The steps after them.
    """

    dataset: Any
    rows: List[Any]
    source: Optional[pixels.Source]
    changes: List[pixels.Change]
    steps: List[_Step]


def resized_tensor(dataset: Any, transform: Any) -> str:
    """Name of a transform after ToTensor that takes (C, H, W) for (H, W, C) without an error; "" if there is none."""
    _, _, functions = layers_of(dataset, transform)
    steps = [type(step) for function, _ in functions for step in pixels.parts_of(getattr(function, "fn", function))]
    late = steps[steps.index(transforms.ToTensor) :] if transforms.ToTensor in steps else []
    return next((step.__name__ for step in late if step in _CHANGE_SIZE), "")


def layers_of(dataset: Any, transform: Any) -> Tuple[Any, List[Any], List[Tuple[Any, bool]]]:
    """The dataset inside of gluon's lazy ones, chosen rows, and the functions of samples in the order of their calls.

    With each function: whether it takes the first element of a sample alone.
    """
    rows, functions = [], [] if transform is None else [(transform, True)]
    while True:
        lazy, part = transformed(dataset), chosen(dataset)
        if lazy:
            first = of_first(lazy[1])
            functions.append((lazy[1] if first is None else first, first is not None))
            dataset = lazy[0]
        elif part:
            rows.append(part[1])
            dataset = part[0]
        else:
            break
    return dataset, rows, functions[::-1]


def _plan(dataset: Any, transform: Any) -> _Plan:
    dataset, rows, functions = layers_of(dataset, transform)
    functions = [_moving(function, first, dataset) for function, first in functions]
    source = pixels.source_of(dataset)
    steps: List[_Step] = []
    for function, first in functions:
        parts = pixels.changes(function) if source and first else [(function, None)]
        steps += [(part, first, change) for part, change in parts]
    count = _computed(steps)
    return _Plan(dataset, rows, source, [change for _, _, change in steps[:count] if change], steps[count:])


def _moving(function: Any, first: bool, dataset: Any) -> Tuple[Any, bool]:
    """A function of images, or if their boxes, masks or points move with them, one of images and labels.

    Raises:
        DataError: It is no Augment, so the label would stay where it was.
    """
    moves = getattr(dataset, "moves", None)
    if moves is None or not first:
        return function, first
    with_label = getattr(function, "with_label", None)  # of Augment, whose module imports this one
    if with_label is None:
        raise DataError(
            f"DatasetLoader: the transform {function!r:.80} gets the image alone, so its {moves} would not move. "
            "Pass mxkit.data.Augment([...]), or dataset.transform(function) with a function of (image, label)"
        )
    return partial(with_label, moves=moves, pairs=dataset.pairs), False


def _computed(steps: Sequence[_Step]) -> int:
    """How many of the first steps `pixels` computes."""
    count, of_tensor = 0, False
    for function, _, change in steps:
        if change is None or isinstance(function, transforms.Normalize) != of_tensor:
            break
        of_tensor = of_tensor or isinstance(function, transforms.ToTensor)
        count += 1
    # a generator that a later function draws from must have gone as far as today
    while _drawn(steps[:count]) & _drawn(steps[count:]):
        count -= 1
    return count


def _drawn(steps: Iterable[_Step]) -> FrozenSet[str]:
    return frozenset().union(*(pixels.drawn_by_transform(function) for function, _, _ in steps))


def _checked_draws(plan: _Plan, draws: Optional[Iterable[str]]) -> FrozenSet[str]:
    source = pixels.drawn_by_dataset(plan.dataset)
    if draws is None:
        return source | _drawn(plan.steps)
    names = [draws] if isinstance(draws, str) else list(draws)
    if not set(names) <= pixels.ANYTHING:
        raise ValueError(f"draws: expected some of {sorted(pixels.ANYTHING)}, or () for nothing; received {draws!r}")
    return frozenset(names) | (source & {pixels.FILE})


def _reader(plan: _Plan, batchify: bool) -> Read:
    """A function that reads a sample, and passes `rng` to the functions that take it.

    Args:
        plan: How to read it.
        batchify: Whether a user's function joins the samples.
    """
    calls = [_call(step) for step in plan.steps]
    # users' functions get what gluon would give them
    to_mxnet = bool(calls or batchify) and (plan.changes or not hasattr(plan.dataset, "gives_pixels"))

    def read(row: int, key: Any) -> Any:
        for numbers in plan.rows:
            row = numbers[row]
        if plan.source is None:
            item = plan.dataset[row]
        else:
            image, *rest = plan.source(row)
            draws = pixels.Draws(key)
            for change in plan.changes:
                image = change(image, draws)
            item = (pixels.as_mxnet(image) if to_mxnet else image, *rest)
        for call in calls:
            item = call(item, key)
        return item

    return read


def _call(step: _Step) -> Callable[[Any, Any], Any]:
    function, first, _ = step
    with_rng = pixels.takes_rng(function)

    def call(item: Any, key: Any) -> Any:
        items = item if isinstance(item, tuple) else (item,)
        extra = {"rng": np.random.Generator(np.random.PCG64(key))} if with_rng else {}
        if not first:
            return pixels.call_user(function, *items, **extra)
        changed = pixels.call_user(function, items[0], **extra)
        return (changed, *items[1:]) if len(items) > 1 else changed

    return call
