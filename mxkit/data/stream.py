"""Batches from what can only be read in one direction: iterables and text files of any length."""

from functools import partial
from itertools import islice
import sys
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Union
import warnings
import weakref

from mxkit.core.arguments import whole_number
from mxkit.data.batching import narrow, new_batch, place, stack, to_batch
from mxkit.data.order import Epochs
from mxkit.data.samples import takes_rng, told
from mxkit.data.source import is_one_shot
from mxkit.data.threads import read_ahead
from mxkit.errors import DataError, EmptyDataError, MxkitError, TrapWarning
import mxnet as mx
import numpy as np

Factory = Union[Callable[..., Iterable[Any]], Iterable[Any]]

_DRAWN_AT_ONCE = 1024


class Placed(NamedTuple):
    """A sample of an iterable that also tells what messages are to call it."""

    place: str
    sample: Any


class _Item(NamedTuple):
    """A sample, its number in the stream, and what messages call it."""

    number: int
    name: str
    sample: Any


class StreamLoader(Epochs):
    """Batches from a function that returns an iterable of samples, which may be longer than memory.

    The order of an epoch depends on `(seed, epoch)`, and what `transform` draws on `(seed, epoch, number of the
    sample)`, provided that the function gives the same samples each time: it may draw from its own `rng` alone.

    Args:
        factory: Called at the start of each epoch; returns an iterable of samples, each an array, a number, or a tuple
            of them, of one shape. With a parameter `rng` it is given a `numpy.random.Generator` of `(seed, epoch)`,
            to order its shards by, for example. An iterable that starts anew by itself will do too, as a list.
        batch_size: Samples a batch, at least 1. None: the iterable gives batches `(x, y)` ready to be used.
        shuffle_buffer: Samples held in memory to draw the next one from: each moves at most so many places to the
            front, and as far as chance takes it to the end. 0 keeps the order. A stream that is sorted by class
            needs a buffer longer than a class.
        seed: Whole number that decides all randomness. None draws one, which `seed` then tells.
        drop_last: Leave out a last batch that is short.
        length: How many samples (batches, where `batch_size` is None) an epoch has, if that is known; without it there
            is no `len()`.
        transform: Called with the first element of each sample, and with `rng` if it has a parameter of that name.
        batchify: Called with the list of a batch's samples in place of stacking them, as gluoncv's
            `data.batchify.Tuple(Pad(), Stack())`.
        prefetch: Batches read ahead in a thread, in which the function then runs. MXNet computes while Python reads
            anyway, so a thread gains nothing but where reading takes most of the time (a third there); 0 reads in
            the calling thread.

    Attributes:
        batch_size: Samples a batch, or None.
        epoch: Number of the epoch that the next `iter` gives, from 0; it grows by one each time, and
            `fit` sets it.
        seed: What decides orders and transforms.

    Raises:
        DataError: `factory` is a generator, which is empty in the second epoch (T62). While reading: the stream or
            the transform fails, or samples do not fit together.
        EmptyDataError: While reading: an epoch has no batch.
        ValueError: An argument has another form.

    Warns:
        TrapWarning: An epoch has another length than `length`.

    Side effects:
        float64 becomes float32, int64 int32; uint8 stays.

    >>> def squares():
    ...     for number in range(5):
    ...         yield np.full(3, number), number**2
    >>> [(x.shape, y.asnumpy().tolist()) for x, y in StreamLoader(squares, batch_size=2)]
    [((2, 3), [0, 1]), ((2, 3), [4, 9]), ((1, 3), [16])]
    """

    def __new__(cls, *arguments: Any, length: Optional[int] = None, **named: Any) -> "StreamLoader":
        # `fit`, progress bars and `bool()` go by whether there is a `__len__`, not by what it raises
        return super().__new__(_SizedStreamLoader if cls is StreamLoader and length is not None else cls)

    def __init__(
        self,
        factory: Factory,
        batch_size: Optional[int],
        *,
        shuffle_buffer: int = 0,
        seed: Optional[int] = None,
        drop_last: bool = False,
        length: Optional[int] = None,
        transform: Optional[Callable[..., Any]] = None,
        batchify: Optional[Callable[[List[Any]], Any]] = None,
        prefetch: int = 0,
    ) -> None:
        super().__init__(seed)
        _check_factory(factory)
        if batch_size is None and (drop_last or transform or batchify):
            raise ValueError("StreamLoader: drop_last, transform and batchify need a batch_size, not ready batches")
        self.factory = factory
        self.batch_size = None if batch_size is None else whole_number(batch_size, "StreamLoader: batch_size")
        self.shuffle_buffer = whole_number(shuffle_buffer, "StreamLoader: shuffle_buffer", least=0)
        self.drop_last = drop_last
        self.length = None if length is None else whole_number(length, "StreamLoader: length")
        self.transform, self.batchify = transform, batchify
        self.prefetch = whole_number(prefetch, "StreamLoader: prefetch", least=0)
        self._length_told = False
        self._last: Callable[[], Any] = lambda: None
        if drop_last and (self.length or batch_size or 0) < (batch_size or 0):
            raise EmptyDataError(
                f"StreamLoader: drop_last leaves no batch: length is {length}, a batch has {batch_size} samples"
            )

    @property
    def shuffle(self) -> bool:
        """Whether the order is another one in each epoch."""
        return self.shuffle_buffer > 1

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches(*self._next_epoch())
        return _ahead(batches, self.prefetch) if self.prefetch else batches

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next iteration, and of that one only.

        Their samples are read, because a stream can do nothing else, but neither transformed nor stacked.

        Args:
            batches: At least 0. If the epoch has fewer, reading it raises `DataError`.
        """
        self._skip = whole_number(batches, "StreamLoader.skip", least=0)

    def _batches(self, epoch: int, skipped: int) -> Iterator[Any]:
        items, size = self._shuffled(epoch), self.batch_size or 1
        count = 0
        while True:
            taken = list(islice(items, size))
            if not taken or (self.drop_last and len(taken) < size):
                break
            count += 1
            if count > skipped:
                yield self._batch(taken, epoch)
        if count < skipped:
            raise DataError(
                f"{self._name}: epoch {epoch + 1} has {count} batches, of which {skipped} cannot be left out: "
                "resume a run with the same data and batch_size"
            )
        if not count:
            few = f"{len(taken)} samples, and drop_last leaves them out" if taken else "no sample"
            raise EmptyDataError(f"{self._name}: epoch {epoch + 1} has {few}")

    def _shuffled(self, epoch: int) -> Iterator[_Item]:
        """The samples of an epoch, each drawn from `shuffle_buffer` of them."""
        items = self._items(epoch)
        if not self.shuffle:
            yield from items
            return
        # of `random()` alone, whose bits are the same in all versions of NumPy
        rng = self._rng(epoch, 0, 1)
        drawn: List[int] = []
        held = list(islice(items, self.shuffle_buffer))
        for item in items:
            if not drawn:
                drawn = (rng.random(_DRAWN_AT_ONCE) * len(held)).astype(int).tolist()
            number = drawn.pop()
            yield held[number]
            held[number] = item
        for number in rng.random(len(held)).argsort(kind="stable").tolist():
            yield held[number]

    def _items(self, epoch: int) -> Iterator[_Item]:
        """The samples of an epoch as they come."""
        iterator: Optional[Iterator[Any]] = None
        count = 0
        while True:
            try:
                iterator = self._open(epoch) if iterator is None else iterator
                sample = next(iterator)
            except StopIteration:
                break
            except MxkitError:
                raise
            except Exception as error:  # a user's code may fail in any way
                raise DataError(
                    f"{self._name}: it failed in epoch {epoch + 1} after {count} samples: {told(error)}"
                ) from error
            count += 1
            if count - 1 == self.length:
                self._tell_length(epoch, f"more than {self.length}")
            if type(sample) is Placed:
                yield _Item(count - 1, sample.place, sample.sample)
            else:
                yield _Item(count - 1, str(count - 1), sample)
        if count < (self.length or 0):
            self._tell_length(epoch, str(count))

    def _open(self, epoch: int) -> Iterator[Any]:
        source: Any = self.factory
        if callable(source) and not hasattr(source, "__iter__"):
            source = source(rng=self._rng(epoch, 0, 2)) if takes_rng(source) else source()
        try:
            iterator: Iterator[Any] = iter(source)
        except TypeError:
            raise DataError(
                f"{self._name}: the function must return an iterable of samples; it returned {type(source).__name__}"
            ) from None
        if iterator is source:
            if self._last() is source:
                raise DataError(
                    f"{self._name}: the function returned the same {type(source).__name__} as for the epoch before, "
                    "which can be read only once: let it make a new one each time"
                )
            self._last = _reference(source)
        return iterator

    def _rng(self, epoch: int, *key: int) -> "np.random.Generator":
        # [seed, epoch, number] is the key of a sample, and zeros at its end count for nothing
        return np.random.Generator(np.random.PCG64([self.seed % 2**32, epoch, *key]))

    def _batch(self, items: Sequence[_Item], epoch: int) -> Any:
        if self.batch_size is None:
            ready = _ready(items[0].sample, f"{self._name}: batch {items[0].name}")
            return ready if isinstance(ready, tuple) else (ready,)
        samples = [self._transformed(item, epoch) for item in items]
        names: List[Any] = [item.name for item in items]
        try:
            if self.batchify is None:
                return new_batch(partial(stack, samples, names))
            return new_batch(partial(place, self.batchify(samples)))
        except DataError as error:
            raise DataError(f"{self._name}: {error}") from error.__cause__
        except Exception as error:  # a user's batchify, or an array of theirs
            raise DataError(
                f"{self._name}: the samples {names[0]} to {names[-1]} give no batch: {told(error)}"
            ) from error

    def _transformed(self, item: _Item, epoch: int) -> Any:
        if self.transform is None:
            return item.sample
        parts = item.sample if isinstance(item.sample, tuple) else (item.sample,)
        extra = {"rng": self._rng(epoch, item.number)} if takes_rng(self.transform) else {}
        try:
            first = self.transform(parts[0], **extra)
        except Exception as error:  # a user's code may fail in any way
            raise DataError(f"{self._name}: transform failed on sample {item.name}: {told(error)}") from error
        return (first, *parts[1:]) if isinstance(item.sample, tuple) else first

    def _tell_length(self, epoch: int, found: str) -> None:
        if not self._length_told:
            self._length_told = True
            warnings.warn(
                f"{self._name}: length is {self.length}, but epoch {epoch + 1} has {found}: progress and schedules "
                "that count by it are off. Give the true number, or leave length out",
                TrapWarning,
                stacklevel=2,
            )

    @property
    def _name(self) -> str:
        """What messages call it."""
        return f"StreamLoader({getattr(self.factory, '__name__', type(self.factory).__name__)})"

    def __repr__(self) -> str:
        return (
            f"{self._name[:-1]}, batch_size={self.batch_size}, shuffle_buffer={self.shuffle_buffer}, seed={self.seed})"
        )


class _SizedStreamLoader(StreamLoader):
    """A `StreamLoader` whose `length` was given."""

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        size, samples = self.batch_size or 1, self.length or 0
        return samples // size if self.drop_last else -(-samples // size)


def _check_factory(factory: Any) -> None:
    if is_one_shot(factory):
        raise DataError(
            f"StreamLoader: a {type(factory).__name__} can be read only once and is empty in the second epoch (T62). "
            "Pass the function that makes it: StreamLoader(samples, ...) in place of StreamLoader(samples(), ...)"
        )
    if not callable(factory) and not hasattr(factory, "__iter__"):
        raise DataError(
            f"StreamLoader: expected a function that returns an iterable of samples; received {type(factory).__name__}"
        )


def _ahead(batches: Iterator[Any], count: int) -> Iterator[Any]:
    def read(number: int, unwanted: Callable[[], bool]) -> Any:
        return next(batches, None)

    for batch in read_ahead(read, range(sys.maxsize), threads=1, ahead=count):
        if batch is None:
            return
        yield batch


def _reference(iterator: Any) -> Callable[[], Any]:
    """Tell it apart from others without keeping a generator, and its open files, alive."""
    try:
        return weakref.ref(iterator)
    except TypeError:  # map, zip
        return lambda: iterator


def _ready(batch: Any, where: str) -> Any:
    """NumPy arrays of a batch as NDArrays; those that are NDArrays already as they are."""
    group = isinstance(batch, tuple) or (isinstance(batch, list) and all(hasattr(part, "shape") for part in batch))
    if group:
        return tuple(_ready(part, where) for part in batch)
    return batch if isinstance(batch, mx.nd.NDArray) else to_batch(narrow(np.asarray(batch), where))
