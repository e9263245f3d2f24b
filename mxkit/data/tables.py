"""Reads text files as datasets: CSV tables, and lines that a function parses."""

import csv as csv_format
import gzip
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union
import warnings
import zlib

from mxkit.data.splits import Split, Splits, channel_statistics, three_parts
from mxkit.data.stream import Paths, TextLines
from mxkit.errors import DataError, TrapWarning, unknown_name
import numpy as np

_SMALLER = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32, np.dtype(np.bool_): np.float32}


class _Table(NamedTuple):
    """A CSV file: names of its columns, cells of its rows, and the line on which each row ends."""

    path: Path
    columns: List[str]
    rows: List[List[str]]
    lines: List[int]


def csv(
    path: Union[str, Path],
    *,
    target: Union[str, int],
    columns: Optional[Sequence[Union[str, int]]] = None,
    categories: Sequence[Union[str, int]] = (),
    header: Union[bool, Sequence[str]] = True,
    delimiter: str = ",",
    valid: Union[int, float] = 0.1,
    test: Union[int, float] = 0.1,
    standardise: bool = False,
    seed: int = 0,
    encoding: str = "utf-8-sig",
    like: Optional[Splits] = None,
) -> Splits:
    """Read a table of numbers and categories.

    Nothing is guessed: a cell that is missing, NaN, or not a number in a column outside `categories` raises an error
    with its line and column.

    Args:
        path: The file; gzipped if it ends with `.gz`.
        target: Column of the labels, by name or by number from 0. Its cells are classes if it is among `categories`,
            else quantities.
        columns: Columns of x, in this order; by default all others.
        categories: Columns of categories. Their cells become whole numbers from 0, in the order of the sorted names (or
            of the numbers, if all are whole numbers), also in x: for an `Embedding` or `one_hot`.
        header: True if the first line has the names; False names the columns `"0"`, `"1"`, ...; or a list of names.
        delimiter: Character between cells, which may be quoted.
        valid: Fraction or number of rows for validation, chosen at random by `seed`, in proportion from each class.
        test: Fraction or number of rows for testing, chosen likewise.
        standardise: Whether to subtract the mean of each column of x and divide by its standard deviation, both of the
            training part, in float64. Categories stay as they are, constant columns are only centred.
        seed: Seed of the random split.
        encoding: Encoding of the file.
        like: What `csv` returned for another file: x has its columns, their categories and those of the target have its
            codes, and `standardise` uses its mean and std. For a test file: the same call, with `valid=0, test=0`.

    Returns:
        x is float32 of shape (N, number of columns); y is int32 classes or float32 quantities of shape (N,). With
        `standardise`, x is `(cells - mean) / std`: categories have the mean 0 and std 1, constant columns the std 1.

    Raises:
        TypeError: `like` is no table, or stands beside `columns`.
        UnknownNameError: A column does not exist.
        DataError: A cell or a line cannot be read, `like` lacks a category, or the first line has numbers instead of
            names; the text has the line.
        ValueError: The parts leave no training data, or `standardise` is not that of `like`.

    Warns:
        TrapWarning: A column has numbers that float32 cannot tell apart.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size,kind\\n1,big\\n2,small\\n3,big\\n4,small\\n")
    >>> data = csv(path, target="kind", categories=["kind"], valid=0, test=2)
    >>> data.classes, data.train.x.shape, sorted(data.test.y.tolist())
    (['big', 'small'], (2, 1), [0, 1])
    """
    path = Path(path).expanduser()
    if like is not None:
        if columns is not None or not getattr(like, "columns", ()):
            raise TypeError(f"csv: like: expected a table that csv read, and no columns; received {like!r:.60}")
        _check_unit(like, standardise)
        columns, categories = like.columns, [*categories, *like.categories]
    table = _read_table(path, header, delimiter, encoding)
    label = _column(table, target)
    inputs = [_column(table, one) for one in (range(len(table.columns)) if columns is None else columns)]
    inputs = [column for column in inputs if column != label]
    coded = {_column(table, one) for one in categories}
    names: Dict[str, List[str]] = {}
    if like is not None:
        names = {**like.categories, **({table.columns[label]: like.classes} if label in coded and like.classes else {})}
    y = _numbers(table, label, label in coded, names, "subtract a number near their mean from all")
    way = "" if standardise else "pass standardise=True, name it in categories, or leave it out"
    x = np.stack([_numbers(table, column, column in coded, names, way) for column in inputs], axis=1)
    classes = names.pop(table.columns[label], [])
    parts = _parts(x, y.astype(np.int32 if classes else np.float32), valid, test, seed)
    mean, std = channel_statistics(parts[0].x) if like is None else (like.mean or (), like.std or ())
    if standardise:
        mean = tuple(0.0 if column in coded else value for column, value in zip(inputs, mean))
        std = tuple(1.0 if column in coded else value or 1.0 for column, value in zip(inputs, std))
        parts = [Split((part.x - mean) / std, part.y) for part in parts]
    parts = [Split(part.x.astype(np.float32), part.y) for part in parts]
    used = tuple(table.columns[column] for column in inputs)
    return Splits._make([*parts, classes, mean, std, used, names])


def lines(
    paths: Paths,
    parse: Callable[[str], Any],
    *,
    valid: Union[int, float] = 0.1,
    test: Union[int, float] = 0.1,
    classes: Sequence[str] = (),
    seed: int = 0,
    encoding: str = "utf-8-sig",
) -> Splits:
    """Read text files with a sample on each line into memory. For files of any length use `from_lines`.

    Args:
        paths: A file, a pattern, or a list of them, as for `from_lines`; gzipped if they end with `.gz`.
        parse: Called with each line that is not blank, without its end; returns `(x, y)`, numbers or arrays of one
            shape, or None to skip the line.
        valid: Fraction or number of lines for validation, chosen at random by `seed`; if labels are whole numbers, in
            proportion from each.
        test: Fraction or number of lines for testing, chosen likewise.
        classes: Name of each label.
        seed: Seed of the random split.
        encoding: Encoding of the files.

    Returns:
        x of shape (N, ...) and y, float64 as float32 and int64 as int32.

    Raises:
        FileNotFoundError: A file does not exist.
        DataError: `parse` raised an error or returned another type, or shapes differ; the text has file and line.
    """
    samples: List[Tuple[np.ndarray, np.ndarray]] = []
    first = ""
    read = TextLines(paths, parse, encoding=encoding, bad="raise", shuffle=False)
    for place, result in read(np.random.default_rng(0)):
        samples.append(_pair(result, place))
        first = first or place
        for name, array, expected in zip(("x", "y"), samples[-1], samples[0]):
            if array.shape != expected.shape:
                shapes = f"{expected.shape} in {first} and {array.shape} in {place}"
                raise DataError(f"{name} has shape {shapes}; expected one shape")
    if not samples:
        raise DataError(f"lines: there is no sample in {paths}")
    x, y = (np.stack(column) for column in zip(*samples))
    x, y = (array.astype(_SMALLER.get(array.dtype, array.dtype)) for array in (x, y))
    train, validated, tested = _parts(x, y, valid, test, seed)
    return Splits(train, validated, tested, list(classes))


def _parts(
    x: "np.ndarray", y: "np.ndarray", valid: Union[int, float], test: Union[int, float], seed: int
) -> List[Split]:
    by = y if y.ndim == 1 and y.dtype == np.int32 else None
    return [Split(x[rows], y[rows]) for rows in three_parts(by, len(y), valid, test, seed)]


def _pair(sample: Any, place: str) -> Tuple["np.ndarray", "np.ndarray"]:
    if not isinstance(sample, tuple) or len(sample) != 2:
        raise DataError(f"{place}: parse must return (x, y) or None; it returned {sample!r}")
    arrays = np.asarray(sample[0]), np.asarray(sample[1])
    if any(array.dtype.kind not in "biuf" for array in arrays):
        raise DataError(f"{place}: parse must return numbers; it returned {sample!r}")
    return arrays


def _read_table(path: Path, header: Union[bool, Sequence[str]], delimiter: str, encoding: str) -> _Table:
    rows: List[List[str]] = []
    lines: List[int] = []
    columns: Optional[List[str]] = None if isinstance(header, bool) else list(header)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding=encoding, newline="") as file:
            reader = csv_format.reader(file, delimiter=delimiter, strict=True)
            for row in filter(None, reader):
                where = f"{path}, line {reader.line_num}"
                if columns is None and header:
                    columns = [name.strip() for name in row]
                    _check_names(where, columns)
                    continue
                if columns is None:
                    columns = [str(number) for number in range(len(row))]
                if len(row) != len(columns):
                    expected = f"{len(columns)} cells, as columns are {columns[:8]}"
                    raise DataError(f"{where}: expected {expected}; received {len(row)}")
                rows.append(row)
                lines.append(reader.line_num)
    except (csv_format.Error, EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: it cannot be read after line {lines[-1] if lines else 0}: {error}") from error
    if not rows or columns is None:
        raise DataError(f"{path}: there is no row in the table")
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise DataError(f"{path}: several columns are named {repeated}; pass header= with names of your own")
    return _Table(path, columns, rows, lines)


def _check_names(where: str, columns: Sequence[str]) -> None:
    """Refuse a header of numbers, which is a row; but 0, 1, 2, ... number the columns."""
    if all(map(_is_number, columns)) and [float(name) for name in columns] != list(range(len(columns))):
        way = "if the line is a row, pass header=False, or header=[...] with the names"
        raise DataError(f"{where}: expected names of columns; received {', '.join(columns)[:60]}: {way}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _column(table: _Table, wanted: Union[str, int]) -> int:
    if isinstance(wanted, int) and 0 <= wanted < len(table.columns):
        return wanted
    if wanted in table.columns:
        return table.columns.index(str(wanted))
    raise unknown_name(f"column of {table.path.name}", wanted, table.columns)


def _numbers(table: _Table, column: int, coded: bool, names: Dict[str, List[str]], way: str) -> "np.ndarray":
    """A column as float64; if it is coded, the sorted names of its categories are added to `names`, if they lack.

    `way` ends the warning of numbers that float32 cannot tell apart; without it, the column becomes no float32.
    """
    name = table.columns[column]
    cells = [row[column].strip() for row in table.rows]
    if "" in cells:
        line = table.lines[cells.index("")]
        raise DataError(f"{table.path}, line {line}, column {name!r}: the value is missing. Fill it, or drop the line")
    if coded:
        if name not in names:
            try:
                names[name] = sorted(set(cells), key=int)
            except ValueError:
                names[name] = sorted(set(cells))
        codes = {cell: code for code, cell in enumerate(names[name])}
        for cell, line in zip(cells, table.lines):
            if cell not in codes:
                raise DataError(f"{table.path}, line {line}, column {name!r}: {cell!r} is no category of `like`")
        return np.array([codes[cell] for cell in cells], dtype=np.float64)
    values = np.array(
        [_number(cell, f"{table.path}, line {line}, column {name!r}") for cell, line in zip(cells, table.lines)]
    )
    largest = abs(values).max()
    step = 1.0 if (values == np.floor(values)).all() else (values.max() - values.min()) / 100
    if way and largest * 2.0**-24 > step > 0:  # half of float32's step there
        text = f"numbers up to {largest:.10g}, of which float32 makes some equal (T14); {way}"
        warnings.warn(f"{table.path}, column {name!r}: {text}", TrapWarning, stacklevel=3)
    return values


def _check_unit(like: Splits, standardise: bool) -> None:
    """Refuse another unit than that of x in `like`, where its mean tells that."""
    numbers = [name not in like.categories for name in like.columns]
    mean, std = (np.asarray(one)[numbers] for one in (like.mean, like.std))
    here = like.train.x.mean(axis=0, dtype=np.float64)[numbers]
    raw, unit = (abs(here - mean) <= 1e-3 * (abs(mean) + std)).all(), (abs(here) <= 1e-3).all()
    if raw != unit and unit != standardise:
        raise ValueError(f"csv: like: its x is {'' if unit else 'not '}standardised: pass standardise={bool(unit)}")


def _number(cell: str, where: str) -> float:
    try:
        number = float(cell.replace("_", "?"))  # Python takes 1_000, which may be a code
    except ValueError:
        way = "Name the column in categories if it holds names; pass header=True if line 1 holds the columns' names"
        raise DataError(f"{where}: expected a number; received {cell!r}. {way}") from None
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise DataError(f"{where}: expected a finite number; received {cell!r}. Fill it, or drop the line")
    return number
