"""Samples from the lines of text files of any length."""

import codecs
import glob
import gzip
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, Set, TextIO, Tuple, Union
import warnings
import zlib

from mxkit.core.arguments import whole_number
from mxkit.data.samples import error_text
from mxkit.data.stream import NamedSample, StreamLoader
from mxkit.errors import DataError, TrapWarning
import numpy as np

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
        DataError: A path is a folder or a pipe.
        ValueError: `bad` is another text.
        LookupError: Python has no such encoding.
    """

    def __init__(self, paths: Paths, parse: Parse, *, encoding: str, bad: str, shuffle: bool) -> None:
        if bad not in ("raise", "skip"):
            raise ValueError(f"from_lines: bad: expected 'raise' or 'skip'; received {bad!r}")
        codecs.lookup(encoding)
        self.paths = _files(paths)
        self._sizes = [path.stat().st_size for path in self.paths]
        self._parse, self._encoding, self._skip, self._shuffle = parse, encoding, bad == "skip", shuffle
        self._changed: Set[Path] = set()
        self._skipped = 0

    def __call__(self, rng: "np.random.Generator") -> Iterator[NamedSample]:
        total, skipped, first = 0, 0, ""
        for index in rng.permutation(len(self.paths)).tolist() if self._shuffle else range(len(self.paths)):
            path = self.paths[index]
            for number, line in self._lines(path, self._sizes[index]):
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
        if skipped != self._skipped:  # warn once, and again only if the number changes
            self._skipped = skipped
            warnings.warn(f"from_lines: {skipped} of {total} lines were left out. {first}", TrapWarning, stacklevel=2)

    def _sample(self, line: str, name: str) -> Any:
        if not line.isascii():
            try:
                line.encode()
            except UnicodeEncodeError as error:  # surrogateescape decodes an invalid byte as a lone surrogate
                raise DataError(
                    f"{name}: byte 0x{ord(line[error.start]) - 0xDC00:02x} in column {error.start + 1} is not of "
                    f"the encoding {self._encoding}; pass the right one: encoding='latin-1' takes any byte"
                ) from None
        try:
            return self._parse(line)
        except Exception as error:  # a user's code may raise anything
            raise DataError(f"{name}: parse raised {error_text(error)}; the line is {line[:200]!r}") from error

    def _lines(self, path: Path, size: int) -> Iterator[Tuple[int, str]]:
        """Numbers and texts of the lines of a file that are not blank."""
        number = 0
        try:
            with _open(path, self._encoding) as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, line.rstrip("\r\n")
                self._warn_of_growth(path, size)
        except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeError) as error:
            raise DataError(f"{path}: it is damaged after line {number}: {error_text(error)}") from error
        except FileNotFoundError as error:
            raise DataError(f"{path} existed when the loader was made, and does not exist any more") from error

    def _warn_of_growth(self, path: Path, size: int) -> None:
        now = path.stat().st_size
        if now != size and path not in self._changed:
            self._changed.add(path)
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
        DataError: A path is a folder, or a pipe, which could be read only once. While reading: a line is bad, a file
            is damaged or has disappeared; the text names file and line.
        ValueError: An argument is invalid.
        LookupError: Python has no such encoding.

    Warns:
        TrapWarning: Lines were left out. A file has changed since the loader was made.

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
        if path.is_dir():
            raise DataError(f"from_lines: {path} is a folder; name files of it: {str(path / '*.log')!r}")
        matching = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207
        for file in matching:
            if file.exists() and not (file.is_file() or file.is_dir()):
                raise DataError(f"from_lines: {file} is no regular file and can be read only once; save it first")
        regular = [file for file in matching if file.is_file()]
        if not regular:
            raise FileNotFoundError(f"from_lines: no file {path} exists; the current folder is {Path.cwd()}")
        files += regular
    if not files:
        raise FileNotFoundError("from_lines: paths names no file")
    return files
