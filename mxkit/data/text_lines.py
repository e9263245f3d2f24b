"""Samples from the lines of text files of any length."""

import codecs
import glob
import gzip
import io
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, Optional, Set, TextIO, Union
import warnings
import zlib

from mxkit.core.arguments import whole_number
from mxkit.data.samples import told
from mxkit.data.stream import Placed, StreamLoader
from mxkit.errors import DataError, TrapWarning
import numpy as np

Paths = Union[str, Path, Iterable[Union[str, Path]]]
Parse = Callable[[str], Any]


class TextLines:
    """Samples from the lines of files, as often as it is called; what `from_lines` makes a `StreamLoader` of.

    Args:
        paths: A file, a pattern, or a list of them.
        parse: Called with each line; returns a sample, or None for a line that is none.
        encoding: Of the files.
        bad: "raise" or "skip".
        shuffle: Read the files in an order drawn from `rng`.

    Raises:
        FileNotFoundError: No file has this name, or matches this pattern.
        DataError: It is a folder or a pipe.
        ValueError: `bad` is something else.
        LookupError: Python knows no such encoding.
    """

    def __init__(self, paths: Paths, parse: Parse, *, encoding: str, bad: str, shuffle: bool) -> None:
        if bad not in ("raise", "skip"):
            raise ValueError(f"from_lines: bad: expected 'raise' or 'skip'; received {bad!r}")
        codecs.lookup(encoding)
        self.paths = _files(paths)
        self._sizes = [path.stat().st_size for path in self.paths]
        self._parse, self._encoding, self._skip, self._shuffle = parse, encoding, bad == "skip", shuffle
        self._grown: Set[Path] = set()
        self._left_out = 0

    def __call__(self, rng: "np.random.Generator") -> Iterator[Placed]:
        total, failures, first = 0, 0, ""
        for number in rng.permutation(len(self.paths)).tolist() if self._shuffle else range(len(self.paths)):
            path = self.paths[number]
            for line_number, line in self._lines(path, self._sizes[number]):
                total += 1
                place = f"{path}, line {line_number}"
                try:
                    sample = self._sample(line, place)
                except DataError as error:
                    if not self._skip:
                        raise
                    failures, first = failures + 1, first or str(error)
                    continue
                if sample is not None:
                    yield Placed(place, sample)
        if failures != self._left_out:  # told once, and again if it changes
            self._left_out = failures
            warnings.warn(f"from_lines: {failures} of {total} lines were left out. {first}", TrapWarning, stacklevel=2)

    def _sample(self, line: str, place: str) -> Any:
        if not line.isascii():
            try:
                line.encode()
            except UnicodeEncodeError as error:  # what could not be decoded stands there as half a surrogate pair
                raise DataError(
                    f"{place}: byte 0x{ord(line[error.start]) - 0xDC00:02x} in column {error.start + 1} is not of the "
                    f"encoding {self._encoding}; name the right one: encoding='latin-1' takes any byte"
                ) from None
        try:
            return self._parse(line)
        except Exception as error:  # a user's code may fail in any way
            raise DataError(f"{place}: parse raised {told(error)}; the line is {line[:200]!r}") from error

    def _lines(self, path: Path, size: int) -> Iterator[Any]:
        """Numbers and texts of the lines of a file that are not blank."""
        number = 0
        try:
            with _open(path, self._encoding) as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, line.rstrip("\r\n")
                self._tell_growth(path, size)
        except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeError) as error:
            raise DataError(f"{path}: it is damaged after line {number}: {told(error)}") from error
        except FileNotFoundError as error:
            raise DataError(f"{path} was there when the loader was made, and is not any more") from error

    def _tell_growth(self, path: Path, size: int) -> None:
        now = path.stat().st_size
        if now != size and path not in self._grown:
            self._grown.add(path)
            warnings.warn(
                f"from_lines: {path} had {size} bytes when the loader was made, and has {now}: it is being written to. "
                "Epochs then differ, and a resumed run cannot equal an uninterrupted one; read a copy",
                TrapWarning,
                stacklevel=2,
            )

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
    seed: Optional[int] = None,
    drop_last: bool = False,
    length: Optional[int] = None,
    transform: Optional[Callable[..., Any]] = None,
    batchify: Optional[Callable[[List[Any]], Any]] = None,
    prefetch: int = 0,
    encoding: str = "utf-8-sig",
    bad: str = "raise",
) -> StreamLoader:
    """Batches from text files with a sample on each line, as log files, which need not fit into memory.

    A line ends with a line feed, as `sed -n 17p` counts them. Blank lines are left out.

    Args:
        paths: A file, a pattern as `"logs/*.log.gz"`, or a list of them. Files whose names end with `.gz` are
            unzipped while they are read. The files of a pattern are read in the order of their names.
        parse: Called with each line without its end; returns a sample, `(x, y)` or `x`, or None for a line that is
            none, as a comment.
        batch_size: Samples a batch, at least 1.
        shuffle_buffer: As for `StreamLoader`; above 1 the order of the files is drawn anew for each epoch too.
        seed: As for `StreamLoader`, and so are `drop_last`, `length`, `transform` and `batchify`.
        drop_last: Leave out a last batch that is short.
        length: How many samples there are, if that is known.
        transform: Called with x of each sample.
        batchify: Joins the samples of a batch in place of stacking them.
        prefetch: Batches read ahead in a thread.
        encoding: Of the files. The default also takes away a byte order mark.
        bad: What becomes of a line that is not of this encoding, or on which `parse` raises. "raise" ends the epoch
            with an error; "skip" leaves it out, and a warning at the end of the epoch counts them.

    Returns:
        A `StreamLoader`.

    Raises:
        FileNotFoundError: No file has this name, or matches this pattern.
        DataError: It is a folder, or a pipe, which could be read only once. While reading: a line is bad, a file
            is damaged or has disappeared; the text names file and line.
        ValueError: An argument has another form.
        LookupError: Python knows no such encoding.

    Warns:
        TrapWarning: Lines were left out. A file has grown since the loader was made.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp()) / "a.log"
    >>> _ = path.write_text("# height age\\n1.5 10\\n1.8 30\\n")
    >>> loader = from_lines(path, lambda line: None if line[0] == "#" else [float(one) for one in line.split()], 2)
    >>> [x.asnumpy().tolist() for (x,) in loader]
    [[[1.5, 10.0], [1.7999999523162842, 30.0]]]
    """
    lines = TextLines(paths, parse, encoding=encoding, bad=bad, shuffle=shuffle_buffer > 1)
    whole_number(batch_size, "from_lines: batch_size")
    return StreamLoader(
        lines,
        batch_size,
        shuffle_buffer=shuffle_buffer,
        seed=seed,
        drop_last=drop_last,
        length=length,
        transform=transform,
        batchify=batchify,
        prefetch=prefetch,
    )


def _open(path: Path, encoding: str) -> TextIO:
    # "\n" alone ends a line, as for sed and editors: a progress bar in a log is full of "\r"
    opened: Any = gzip.open if path.suffix == ".gz" else io.open
    text: TextIO = opened(str(path), "rt", encoding=encoding, errors="surrogateescape", newline="\n")
    return text


def _files(paths: Paths) -> List[Path]:
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    found: List[Path] = []
    for one in given:
        path = Path(one).expanduser()
        matching = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207
        if path.is_dir():
            raise DataError(f"from_lines: {path} is a folder; name files of it: {str(path / '*.log')!r}")
        for file in matching:
            if file.exists() and not (file.is_file() or file.is_dir()):
                raise DataError(f"from_lines: {file} is no regular file and can be read only once; save it first")
        files = [file for file in matching if file.is_file()]
        if not files:
            raise FileNotFoundError(f"from_lines: no file {path} is there, from {Path.cwd()}")
        found += files
    if not found:
        raise FileNotFoundError("from_lines: paths names no file")
    return found
