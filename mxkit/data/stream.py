"""Batches from data that can only be read in order: iterables and text files of any length."""

from contextlib import suppress
from functools import partial
import glob
import gzip
from itertools import islice
from pathlib import Path
import sys
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, TextIO, Tuple, Union
import warnings
import weakref
import zlib

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import legacy
from mxkit.data.batching import handed_over, narrow, new_batch, place, stack, to_batch
from mxkit.data.order import Epochs
from mxkit.data.pixels import call_user, takes_rng
from mxkit.data.source import source_of
from mxkit.data.workers import read_ahead
from mxkit.errors import DataError, EmptyDataError, MxkitError, TrapWarning, error_text
import mxnet as mx
import numpy as np

Factory = Union[Callable[..., Iterable[Any]], Iterable[Any]]

_RANDOM_NUMBERS = 1024


class NamedSample(NamedTuple):
    """A sample with its name for error messages, such as a file and a line number."""

    name: str
    sample: Any


# A sample with its number in the stream, and its name for error messages.
_Item = Tuple[int, str, Any]


class StreamLoader(Epochs):
    """Batches from a function that returns an iterable of samples, which may be larger than memory.

    The order of an epoch depends on `(seed, epoch)` only, and the random numbers of `transform` depend on
    `(seed, epoch, number of the sample)`, provided that the function returns the same samples each time. The function
    must take random numbers from its own `rng` only.

    Args:
        factory: Called at the start of each epoch; returns an iterable of samples. A sample is an array, a number, or
            a tuple of them, and all samples have one shape. If the function has a parameter `rng`, it receives a
            `numpy.random.Generator` of `(seed, epoch)`, for example to order its shards. A list, or another iterable
            that can be read repeatedly, works too.
        batch_size: Samples per batch, at least 1. None: the iterable gives finished batches `(x, y)`.
        shuffle_buffer: Number of samples in memory from which the next one is drawn. A sample moves forward by less
            than this number of places; backward, there is no limit. 0 keeps the order. If the stream is sorted by
            class, the buffer must be longer than a class.
        seed: Integer that determines all randomness. None draws one, which the attribute `seed` holds.
        drop_last: Leave out a last batch that is smaller than `batch_size`.
        length: Number of samples of an epoch (of batches if `batch_size` is None), if it is known; without it the
            loader has no `len()`.
        transform: Called with the first element of each sample, and with `rng` if it has a parameter of that name.
        batchify: Called with the list of a batch's samples instead of stacking them, as gluoncv's
            `data.batchify.Tuple(Pad(), Stack())`.
        prefetch: Batches read ahead in a thread, in which the function then runs. MXNet computes while Python reads
            in any case, so a thread helps only if reading takes most of the time (then by a third). 0 reads in the
            calling thread. The thread has MXNet's switches (`npx.set_np()`) of the calling one.

    Attributes:
        batch_size: Samples per batch, or None.
        epoch: Number of the epoch that the next `iter` reads, from 0; each `iter` increases it by one, and `fit`
            sets it.
        seed: Determines orders and transforms.

    Raises:
        DataError: `factory` is a generator, which is empty in the second epoch (T62). While reading: the stream or
            the transform fails, or the samples of a batch have different shapes.
        EmptyDataError: While reading: an epoch has no batch.
        ValueError: An argument is invalid.

    Warns:
        TrapWarning: The length of an epoch is not `length`.

    Side effects:
        float64 becomes float32, int64 becomes int32; uint8 is not converted.

    >>> def squares():
    ...     for number in range(5):
    ...         yield np.full(3, number), number**2
    >>> [(x.shape, y.asnumpy().tolist()) for x, y in StreamLoader(squares, batch_size=2)]
    [((2, 3), [0, 1]), ((2, 3), [4, 9]), ((1, 3), [16])]
    """

    def __new__(cls, *arguments: Any, length: Optional[int] = None, **named: Any) -> "StreamLoader":
        # `fit`, progress bars and `bool()` check whether `__len__` exists, not whether it raises
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
        self._last_iterator: Callable[[], Any] = lambda: None
        if drop_last and (self.length or batch_size or 0) < (batch_size or 0):
            raise EmptyDataError(f"StreamLoader: drop_last leaves no batch: length is {length}, not {batch_size}")

    @property
    def shuffle(self) -> bool:
        """Whether the order differs between epochs."""
        return self.shuffle_buffer > 1

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches(*self._next_epoch())
        return handed_over(_ahead(batches, self.prefetch) if self.prefetch else batches)

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next iteration, and of that iteration only.

        Their samples are read, because a stream has no other way to reach the next ones; they are neither transformed
        nor stacked.

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
            text = f"epoch {epoch + 1} has {count} batches, of which {skipped} cannot be left out"
            raise DataError(f"{self._name}: {text}: resume with the same data and batch_size")
        if not count:
            few = f"{len(taken)} samples, and drop_last leaves them out" if taken else "no sample"
            raise EmptyDataError(f"{self._name}: epoch {epoch + 1} has {few}")

    def _shuffled(self, epoch: int) -> Iterator[_Item]:
        items = self._items(epoch)
        if not self.shuffle:
            yield from items
            return
        # uses `random()` alone, whose bits are the same in all versions of NumPy
        rng = self._generator(epoch, 0, 1)
        places: List[int] = []
        buffer = list(islice(items, self.shuffle_buffer))
        for item in items:
            if not places:
                places = (rng.random(_RANDOM_NUMBERS) * len(buffer)).astype(int).tolist()
            number = places.pop()
            yield buffer[number]
            buffer[number] = item
        for number in rng.random(len(buffer)).argsort(kind="stable").tolist():
            yield buffer[number]

    def _items(self, epoch: int) -> Iterator[_Item]:
        """The samples of an epoch in the order of the stream."""
        count = 0
        try:
            for sample in self._open(epoch):
                if count == self.length:
                    self._warn_of_length(f"more than {self.length}")
                yield (count, *(sample if type(sample) is NamedSample else (str(count), sample)))
                count += 1
        except (MxkitError, TrapWarning):
            raise
        except Exception as error:  # a user's code may raise anything
            text = f"it failed in epoch {epoch + 1} after {count} samples: {error_text(error)}"
            raise DataError(f"{self._name}: {text}") from error
        if count < (self.length or 0):
            self._warn_of_length(str(count))

    def _open(self, epoch: int) -> Iterator[Any]:
        source: Any = self.factory
        if callable(source) and not hasattr(source, "__iter__"):
            source = source(rng=self._generator(epoch, 0, 2)) if takes_rng(source) else source()
        try:
            iterator: Iterator[Any] = iter(source)
        except TypeError:
            text = f"expected an iterable of samples; the function returned {type(source).__name__}"
            raise DataError(f"{self._name}: {text}") from None
        if iterator is source:
            if self._last_iterator() is source:
                text = f"the function returned the same {type(source).__name__} as for the epoch before"
                raise DataError(f"{self._name}: {text}: let it make a new one each time")
            with suppress(TypeError):  # map and zip have no weak references; this keeps no file open
                self._last_iterator = weakref.ref(source)
        return iterator

    def _batch(self, items: Sequence[_Item], epoch: int) -> Any:
        if self.batch_size is None:
            ready = _ready(items[0][2], f"{self._name}: batch {items[0][1]}")
            return ready if isinstance(ready, tuple) else (ready,)
        samples = [self._transformed(epoch, *item) for item in items]
        names: List[Any] = [name for _, name, _ in items]
        try:
            if self.batchify is None:
                return new_batch(partial(stack, samples, names))
            return new_batch(partial(place, call_user(self.batchify, samples)))
        except DataError as error:
            raise DataError(f"{self._name}: {error}") from error.__cause__
        except Exception as error:  # a user's batchify, or an array of theirs
            text = f"the samples {names[0]} to {names[-1]} give no batch: {error_text(error)}"
            raise DataError(f"{self._name}: {text}") from error

    def _transformed(self, epoch: int, number: int, name: str, sample: Any) -> Any:
        if self.transform is None:
            return sample
        parts = sample if isinstance(sample, tuple) else (sample,)
        extra = {"rng": self._generator(epoch, number)} if takes_rng(self.transform) else {}
        try:
            first = call_user(self.transform, parts[0], **extra)
        except Exception as error:  # a user's code may raise anything
            raise DataError(f"{self._name}: transform failed on sample {name}: {error_text(error)}") from error
        return (first, *parts[1:]) if isinstance(sample, tuple) else first

    def _warn_of_length(self, count: str) -> None:
        text = f"length is {self.length}, but an epoch has {count}: schedules that use it are wrong"
        warnings.warn(f"{self._name}: {text}. Pass the true number, or none", TrapWarning, stacklevel=2)

    @property
    def _name(self) -> str:
        return f"StreamLoader({getattr(self.factory, '__name__', type(self.factory).__name__)})"

    def __repr__(self) -> str:
        sizes = f"batch_size={self.batch_size}, shuffle_buffer={self.shuffle_buffer}"
        return f"{self._name[:-1]}, {sizes}, seed={self.seed})"


class _SizedStreamLoader(StreamLoader):
    """A `StreamLoader` with a `length`."""

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        size, samples = self.batch_size or 1, self.length or 0
        return samples // size if self.drop_last else -(-samples // size)


def _check_factory(factory: Any) -> None:
    if source_of(factory).is_one_shot:
        way = "pass the function that makes it: StreamLoader(samples, ...), not StreamLoader(samples(), ...)"
        raise DataError(f"StreamLoader: a {type(factory).__name__} can be read only once (T62): {way}")


def _ahead(batches: Iterator[Any], count: int) -> Iterator[Any]:
    for batch in read_ahead(lambda number, unwanted: next(batches, None), range(sys.maxsize), threads=1, ahead=count):
        if batch is None:
            return
        yield batch


def _ready(batch: Any, where: str) -> Any:
    """Arrays of a batch as NDArrays; those of MXNet are not copied."""
    if isinstance(batch, tuple) or (isinstance(batch, list) and all(hasattr(part, "shape") for part in batch)):
        return tuple(_ready(part, where) for part in batch)
    return legacy(batch) if isinstance(batch, mx.nd.NDArray) else to_batch(narrow(np.asarray(batch), where))


Paths = Union[str, Path, Iterable[Union[str, Path]]]
Parse = Callable[[str], Any]


class TextLines:
    """A function that returns the samples of files, line by line; `from_lines` passes it to a `StreamLoader`.

    Args:
        paths: A file, a pattern, or a list of them.
        parse: Called with each line; returns a sample, or None to leave the line out.
        encoding: Encoding of the files.
        bad: "raise" or "skip".
        shuffle: Read the files in an order drawn from `rng`.

    Raises:
        FileNotFoundError: No file has this name, or matches this pattern.
        ValueError: `bad` is another text.
    """

    def __init__(self, paths: Paths, parse: Parse, *, encoding: str, bad: str, shuffle: bool) -> None:
        if bad not in ("raise", "skip"):
            raise ValueError(f"from_lines: bad: expected 'raise' or 'skip'; received {bad!r}")
        self.paths = _files(paths)
        self._parse, self._encoding, self._skip, self._shuffle = parse, encoding, bad == "skip", shuffle

    def __call__(self, rng: "np.random.Generator") -> Iterator[NamedSample]:
        total, skipped, first = 0, 0, ""
        for path in [self.paths[one] for one in rng.permutation(len(self.paths))] if self._shuffle else self.paths:
            for number, line in self._lines(path):
                total += 1
                name = f"{path}, line {number}"
                try:
                    sample = self._sample(line, name)
                except DataError as error:
                    if not self._skip:
                        raise
                    skipped, first = skipped + 1, first or str(error)
                    continue
                if sample is not None:
                    yield NamedSample(name, sample)
        if skipped:
            warnings.warn(f"from_lines: {skipped} of {total} lines were left out. {first}", TrapWarning, stacklevel=2)

    def _sample(self, line: str, name: str) -> Any:
        if not line.isascii():
            try:
                line.encode()
            except UnicodeEncodeError:  # surrogateescape decodes an invalid byte as a lone surrogate
                text = f"a byte is not {self._encoding}; encoding='latin-1' takes any byte"
                raise DataError(f"{name}: {text}") from None
        try:
            return self._parse(line)
        except Exception as error:  # a user's code may raise anything
            raise DataError(f"{name}: parse raised {error_text(error)}; the line is {line[:200]!r}") from error

    def _lines(self, path: Path) -> Iterator[Tuple[int, str]]:
        """Numbers and texts of the lines of a file that are not blank."""
        number = 0
        try:
            with _open(path, self._encoding) as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, line.rstrip("\r\n")
        except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeError) as error:
            raise DataError(f"{path}: it is damaged after line {number}: {error_text(error)}") from error

    @property
    def __name__(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.paths[0]}{more}"


def from_lines(
    paths: Paths,
    parse: Parse,
    batch_size: int,
    *,
    shuffle_buffer: int = 0,
    encoding: str = "utf-8-sig",
    bad: str = "raise",
    **options: Any,
) -> StreamLoader:
    """Batches from text files with one sample per line, such as log files, which may be larger than memory.

    A line ends with a line feed, as in `sed -n 17p`. Blank lines are left out.

    Args:
        paths: A file, a pattern such as `"logs/*.log.gz"`, or a list of them. Files whose names end in `.gz` are
            unzipped while they are read. The files of a pattern are read in the order of their names.
        parse: Called with each line without its end; returns a sample, `(x, y)` or `x`, or None to leave the line
            out, for example a comment.
        batch_size: Samples per batch, at least 1.
        shuffle_buffer: As for `StreamLoader`; above 1 the order of the files is drawn for each epoch too.
        encoding: Encoding of the files. The default also removes a byte order mark.
        bad: What to do with a line that is not valid in this encoding, or on which `parse` raises. "raise" ends the
            epoch with an error; "skip" leaves the line out, and a warning at the end of the epoch counts such lines.
        **options: `seed`, `drop_last`, `length`, `transform`, `batchify` and `prefetch`, as for `StreamLoader`.

    Returns:
        A `StreamLoader`.

    Raises:
        FileNotFoundError: No file has this name, or matches this pattern.
        DataError: While reading: a line is bad, or a file is damaged; the text names file and line.
        ValueError: An argument is invalid.

    Warns:
        TrapWarning: Lines were left out.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp()) / "a.log"
    >>> _ = path.write_text("# height age\\n1.5 10\\n1.8 30\\n")
    >>> loader = from_lines(path, lambda line: None if line[0] == "#" else [float(text) for text in line.split()], 2)
    >>> [x.asnumpy().tolist() for (x,) in loader]
    [[[1.5, 10.0], [1.7999999523162842, 30.0]]]
    """
    lines = TextLines(paths, parse, encoding=encoding, bad=bad, shuffle=shuffle_buffer > 1)
    whole_number(batch_size, "from_lines: batch_size")
    return StreamLoader(lines, batch_size, shuffle_buffer=shuffle_buffer, **options)


def _open(path: Path, encoding: str) -> TextIO:
    # only "\n" ends a line, as in sed and editors: a progress bar in a log is full of "\r"
    opened: Any = gzip.open if path.suffix == ".gz" else open
    text: TextIO = opened(str(path), "rt", encoding=encoding, errors="surrogateescape", newline="\n")
    return text


def _files(paths: Paths) -> List[Path]:
    files: List[Path] = []
    for name in [paths] if isinstance(paths, (str, Path)) else paths:
        path = Path(name).expanduser()
        matching = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207
        regular = [file for file in matching if file.is_file()]
        if not regular:
            raise FileNotFoundError(f"from_lines: {path} is no file; the current folder is {Path.cwd()}")
        files += regular
    if not files:
        raise FileNotFoundError("from_lines: paths names no file")
    return files
