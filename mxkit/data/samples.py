"""Samples read by number, with all that is random in them a function of (seed, epoch, number)."""

from contextlib import contextmanager
import os
import random
import threading
from typing import Any, Callable, FrozenSet, Iterable, Iterator, List, Optional, Sequence

from mxkit.core.gluon_data import chosen, of_first, transformed
from mxkit.data.collate import Allocate, Structure, place, stack
from mxkit.data.sample_draws import FILE, MXNET, NUMPY, PYTHON, takes_rng
from mxkit.errors import DataError
import mxnet as mx
import numpy as np

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
        draws: The generators that reading may draw from, see `mxkit.data.sample_draws`.
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
        with _ALONE:
            before = (random.getstate(), np.random.get_state())
            try:
                yield
            finally:
                random.setstate(before[0])
                np.random.set_state(before[1])

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
