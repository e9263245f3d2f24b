"""Files that are whole or not there, environment variables, the terminal with its tables, and mxkit's logger.

Events of `logging.getLogger("mxkit")` are of the level INFO, which Python shows nobody until a program asks for it.
Warnings have no handler either, so that Python writes their text to stderr, unless the program has handlers of its own.
A process that must end at once writes its last words to stderr itself: a handler may hold a lock.
"""

import hashlib
from io import StringIO
import json
import logging
import math
import os
from pathlib import Path
import shutil
import sys
from typing import Any, Collection, Iterable, List, Optional, Sequence


def is_offline(offline: Optional[bool] = None) -> bool:
    """Whether the network must not be used: `offline`, or if it is None the environment variable `MXKIT_OFFLINE`.

    >>> is_offline(True), is_offline(False)
    (True, False)
    """
    variable = os.environ.get("MXKIT_OFFLINE", "").strip().lower()
    return variable not in ("", "0", "false", "no") if offline is None else offline


def name_aside(path: Path) -> Path:
    """Return a hidden name beside a file for its incomplete content; every call returns a new name."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name, flush it to disk, and rename it.

    Args:
        path: The file; its directory must exist.
        content: The whole content.

    Raises:
        OSError: The disk is full, or the directory cannot be written; the file does not change.
    """
    aside = name_aside(path)
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        if aside.exists():
            aside.unlink()
    flush_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, as `write_atomically` and `null_for_nan`."""
    write_atomically(path, json.dumps(null_for_nan(value), indent=1, ensure_ascii=False).encode("utf-8"))


def null_for_nan(value: Any) -> Any:
    """Make a value fit for JSON: NaN and infinity become None, also in lists, mappings and NamedTuples.

    >>> null_for_nan({"test": {"loss": float("nan"), "accuracy": 0.5}})
    {'test': {'loss': None, 'accuracy': 0.5}}
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): null_for_nan(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [null_for_nan(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    value = value.item() if hasattr(value, "item") else value  # a number of NumPy
    return None if isinstance(value, float) and not math.isfinite(value) else value


def nan_for_null(value: Any) -> Any:
    """Replace None by NaN in the content of `scores.json`, where null is a score that was NaN or infinite."""
    if isinstance(value, dict):
        return {key: nan_for_null(one) for key, one in value.items()}
    return [nan_for_null(one) for one in value] if isinstance(value, list) else math.nan if value is None else value


def flush_directory(directory: Path) -> None:
    """Flush renames inside a directory to disk (only on POSIX)."""
    if os.name == "posix":
        handle = os.open(str(directory), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Digest of a file in hexadecimal digits; the file is read in pieces."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return digest.hexdigest()


# rich needs a width also for files and pipes
_UNLIMITED = 1_000_000
# Minimum width of a column that is cut
_LEAST = 12


def aligned(
    rows: Sequence[Sequence[str]],
    left: Collection[int] = (0,),
    *,
    shrinkable: Collection[int] = (),
    width: Optional[int] = None,
) -> List[str]:
    """Format a table as lines of text with aligned columns.

    Args:
        rows: Cells; the first row holds the names of the columns.
        left: Numbers of the columns that are aligned to the left; the others are aligned to the right.
        shrinkable: Numbers of the columns that are cut if the table is wider than `width`.
        width: Maximum number of characters of a line. None for no limit.

    >>> aligned([["path", "count"], ["0.weight", "9"]])
    ['path      count', '0.weight      9']
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table, least = Table.grid(), 0
    for number, cells in enumerate(zip(*rows)):
        cut, natural = number in shrinkable, max(Text(cell).cell_len for cell in cells)
        table.add_column(justify="left" if number in left else "right", width=None if cut else natural)
        table.add_column(width=2)  # the gap; rich before 14.3 counts its own padding in another way
        least += (min(natural, _LEAST) if cut else natural) + 2
    for row in rows:
        texts = (Text(cell, no_wrap=True, overflow="ellipsis") for cell in row)
        table.add_row(*(part for text in texts for part in (text, "")))
    output = StringIO()
    width = _UNLIMITED if width is None else max(width, least)  # below `least`, rich drops whole columns
    Console(file=output, width=width, color_system=None, force_jupyter=False).print(table, crop=False)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def show_table(
    rows: Sequence[Sequence[str]], left: Collection[int] = (0,), *, shrinkable: Collection[int] = ()
) -> None:
    """Print a table that fits the terminal, or the whole table if standard output is a file or a pipe."""
    names, *lines = aligned(rows, left, shrinkable=shrinkable, width=terminal_width())
    console().print(names, style="bold")
    for line in lines:
        console().print(line)


def terminal_width() -> Optional[int]:
    """Width of the terminal in characters; None if standard output is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def console() -> Any:
    """Return rich's console on standard output, without markup (paths may contain brackets) and without cut lines."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, soft_wrap=True)


def dataframe(who: str, rows: Any, index: str, columns: Optional[Sequence[str]] = None) -> Any:
    """Make a pandas DataFrame.

    Args:
        who: Name of the user's object for the message.
        rows: Dicts, or tuples of the values of `columns`.
        index: Name of the column that becomes the index.
        columns: Names of the columns in their order; None takes the dicts' keys.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(f"{who}.to_dataframe needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows, columns=columns).set_index(index)


def score_name(part: str, name: str) -> str:
    """Name of a final score's column; scores over different parts of the data must not be compared.

    >>> score_name("test", "accuracy"), score_name("train", "accuracy")
    ('accuracy', 'train:accuracy')
    """
    return name if part == "test" else f"{part}:{name}"


def shown(text: str) -> str:
    """Return a text as it is if every character can be printed, else with escapes: a name in a file that nobody
    checked may hold what moves the cursor of a terminal.

    >>> shown("größe.weight"), shown("a\\x1b[2J")
    ('größe.weight', 'a\\\\x1b[2J')
    """
    return text if text.isprintable() else ascii(text)[1:-1]


def write_lines(lines: Iterable[str]) -> None:
    """Print lines; characters that standard output cannot encode become escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


LOG = logging.getLogger("mxkit")
