"""Text files as datasets: tables with columns, and lines that a function reads."""

import csv as csv_format
import gzip
from pathlib import Path
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, TextIO, Tuple, Union
import warnings
import zlib

from mxkit.data.splits import Split, Splits, channel_statistics, three_parts
from mxkit.data.text_lines import Paths, TextLines
from mxkit.errors import DataError, TrapWarning, UnknownNameError, unknown_name
import numpy as np

# From here on float32 cannot tell whole numbers apart (T14)
_EXACT = 2**24


class _Table(NamedTuple):
    """Cells of a file by columns, and the line each row ends on."""

    columns: List[str]
    cells: List[List[str]]
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
) -> Splits:
    """A table of numbers, and of words that are named as such.

    Nothing is guessed: a cell that is no number, in a column that is not among `categories`, is an error that names
    the line and the column, and so is a cell that is missing, or NaN.

    Args:
        path: The file; gzipped if it ends with `.gz`.
        target: Column of the labels, by name or by number from 0. Among `categories` it is a class, else a quantity.
        columns: Columns of x, in this order; by default all others.
        categories: Columns whose cells are names of things. They become whole numbers from 0, in the order of the
            names (of the numbers, where all are whole numbers), also in x: an `Embedding` or `one_hot` reads them.
        header: True: the first line has the names. False: the names are `"0"`, `"1"`, ... A list: these are the names.
        delimiter: What stands between cells; they may be quoted.
        valid: Share or number of the rows for validation, at random but always the same ones, of each class its share.
        test: The same for testing.
        standardise: Subtract the mean of each column of x and divide by its standard deviation, both computed from
            the training part alone; not those of categories, and constant columns are only centred.
        seed: Another whole number is another split.
        encoding: Of the file.

    Returns:
        x is float32 of shape (N, number of columns), y int32 of classes or float32 of quantities, of shape (N,).
        `columns`, `categories`, `mean` and `std` tell the rest; the two last are those before standardisation.

    Raises:
        TypeError: `columns` or `categories` is one column instead of a list.
        UnknownNameError: There is no such column.
        DataError: A cell or a line cannot be read, or the first line has numbers where names are expected; the text
            names it.
        ValueError: The parts leave nothing to learn from.

    Warns:
        TrapWarning: A column has whole numbers so large that float32 takes several for one.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size,kind\\n1,big\\n2,small\\n3,big\\n4,small\\n")
    >>> data = csv(path, target="kind", categories=["kind"], valid=0, test=2)
    >>> data.classes, data.train.x.shape, sorted(data.test.y.tolist())
    (['big', 'small'], (2, 1), [0, 1])
    """
    path = Path(path).expanduser()
    for name, wanted in (("columns", columns), ("categories", categories), ("header", header)):
        if isinstance(wanted, (str, int)) and not isinstance(wanted, bool):
            text = repr(wanted)[:100]
            raise TypeError(f"csv: {name}: expected a list of columns; received {text}: write [{text}]")
    table = _read_table(path, header, delimiter, encoding)
    label = _column(table, target, path)
    inputs = [_column(table, one, path) for one in columns] if columns is not None else list(range(len(table.columns)))
    inputs = [column for column in inputs if column != label]
    coded = {_column(table, one, path) for one in categories}
    names: Dict[str, List[str]] = {}
    y = _numbers(table, label, label in coded, names, path)
    x = np.stack([_numbers(table, column, column in coded, names, path) for column in inputs], axis=1)
    classes = names.pop(table.columns[label], [])
    train, validated, tested = _parts(
        x.astype(np.float32), y.astype(np.int32 if classes else np.float32), valid, test, seed
    )
    mean, std = channel_statistics(train.x)
    if standardise:
        plain = [column in coded for column in inputs]
        shift = np.where(plain, 0, mean).astype(np.float32)
        scale = np.where(plain | (np.array(std) == 0), 1, std).astype(np.float32)
        train, validated, tested = (Split((part.x - shift) / scale, part.y) for part in (train, validated, tested))
    return Splits(
        train, validated, tested, classes, mean, std, tuple(table.columns[column] for column in inputs), names
    )


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
    """Text files with a sample on each line, read into memory. For files of any length take `from_lines`.

    Args:
        paths: A file, a pattern, or a list of them, as for `from_lines`; gzipped if they end with `.gz`.
        parse: Called with each line that is not blank, without its end; returns `(x, y)`, numbers or arrays of one
            shape, or None for a line that is no sample.
        valid: Share or number of the lines for validation, at random but always the same ones; where the labels are
            whole numbers, of each its share.
        test: The same for testing.
        classes: Name of each label.
        seed: Another whole number is another split.
        encoding: Of the file.

    Returns:
        x of shape (N, ...) and y, float64 as float32 and int64 as int32.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: `parse` raised, or returned something else, or shapes differ; the text names file and line.
    """
    samples: List[Tuple[np.ndarray, np.ndarray]] = []
    first = ""
    read = TextLines(paths, parse, encoding=encoding, bad="raise", shuffle=False)
    for place, sample in read(np.random.default_rng(0)):
        samples.append(_pair(sample, place))
        first = first or place
        for what, one, now in zip(("x", "y"), samples[0], samples[-1]):
            if one.shape != now.shape:
                raise DataError(
                    f"{what} has shape {one.shape} in {first} and {now.shape} in {place}; expected one shape"
                )
    if not samples:
        raise DataError(f"lines: there is no sample in {paths}")
    x, y = (_small(np.stack(column)) for column in zip(*samples))
    train, validated, tested = _parts(x, y, valid, test, seed)
    return Splits(train, validated, tested, list(classes))


def _parts(
    x: "np.ndarray", y: "np.ndarray", valid: Union[int, float], test: Union[int, float], seed: int
) -> Tuple[Split, Split, Split]:
    by = y if y.ndim == 1 and y.dtype == np.int32 else None
    train, validated, tested = three_parts(by, len(y), valid, test, seed)
    return Split(x[train], y[train]), Split(x[validated], y[validated]), Split(x[tested], y[tested])


def _open(path: Path, encoding: str) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(str(path), "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _pair(sample: Any, place: str) -> Tuple["np.ndarray", "np.ndarray"]:
    if not isinstance(sample, tuple) or len(sample) != 2:
        raise DataError(f"{place}: parse must return (x, y) or None; it returned {sample!r}")
    arrays = np.asarray(sample[0]), np.asarray(sample[1])
    if any(array.dtype.kind not in "biuf" for array in arrays):
        raise DataError(f"{place}: parse must return numbers; it returned {sample!r}")
    return arrays


def _small(array: "np.ndarray") -> "np.ndarray":
    smaller = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32, np.dtype(np.bool_): np.float32}
    return array.astype(smaller.get(array.dtype, array.dtype))


def _read_table(path: Path, header: Union[bool, Sequence[str]], delimiter: str, encoding: str) -> _Table:
    cells: List[List[str]] = []
    numbers: List[int] = []
    columns: Optional[List[str]] = None if isinstance(header, bool) else list(header)
    try:
        with _open(path, encoding) as file:
            reader = csv_format.reader(file, delimiter=delimiter, strict=True)
            for row in reader:
                if not row:
                    continue
                if not cells and len(row) == 1:
                    _refuse_delimiter(path, reader.line_num, row[0])
                if columns is None:
                    columns = [name.strip() for name in row] if header else [str(one) for one in range(len(row))]
                    if header:
                        _refuse_numbers(path, columns)
                        continue
                if len(row) != len(columns):
                    raise DataError(
                        f"{path}, line {reader.line_num}: expected {len(columns)} cells, as columns are "
                        f"{columns[:8]}; received {len(row)}"
                    )
                cells.append(row)
                numbers.append(reader.line_num)
    except (csv_format.Error, EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: it cannot be read after line {numbers[-1] if numbers else 0}: {error}") from error
    if not cells or columns is None:
        raise DataError(f"{path}: there is no row in the table")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise DataError(f"{path}: several columns are named {twice}; pass header= with names of your own")
    return _Table(columns, cells, numbers)


def _refuse_delimiter(path: Path, line: int, cell: str) -> None:
    """Refuse a line of one cell that holds what other files have between their cells."""
    for other in (";", "\t", "|", ","):
        if other in cell:
            raise DataError(
                f"{path}, line {line}: expected several cells; received one, {cell!r:.60}. Pass delimiter={other!r}"
            )


def _refuse_numbers(path: Path, columns: Sequence[str]) -> None:
    """Refuse a first row of numbers that would be taken for names; 0, 1, 2, ... number the columns."""
    if not all(map(_is_number, columns)):
        return
    numbers = [float(name) for name in columns]
    if any(later - earlier != 1 for earlier, later in zip(numbers, numbers[1:])):
        raise DataError(
            f"{path}, line 1: expected the columns' names; received the numbers {', '.join(columns)[:60]}. If the line "
            "is a row, pass header=False, or header=[...] with the names"
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _column(table: _Table, wanted: Union[str, int], path: Path) -> int:
    if isinstance(wanted, int) and 0 <= wanted < len(table.columns):
        return wanted
    if wanted not in table.columns:
        error = unknown_name(f"column of {path.name}", wanted, table.columns)
        if any(_is_number(name) and name != str(number) for number, name in enumerate(table.columns)):
            way = "If the first line of the file is no line of names, pass header=False, or header=[...] with the names"
            raise UnknownNameError(f"{error}. {way}")
        raise error
    return table.columns.index(str(wanted))


def _numbers(table: _Table, column: int, coded: bool, names: Dict[str, List[str]], path: Path) -> "np.ndarray":
    """A column as float64; the names behind the codes of a category are added to `names`."""
    name = table.columns[column]
    cells = [row[column].strip() for row in table.cells]
    for cell, line in zip(cells, table.lines):
        if not cell:
            raise DataError(f"{path}, line {line}, column {name!r}: the value is missing. Fill it, or drop the line")
    if coded:
        try:
            ordered = sorted(set(cells), key=int)
        except ValueError:
            ordered = sorted(set(cells))
        names[name] = ordered
        codes = {cell: code for code, cell in enumerate(ordered)}
        return np.array([codes[cell] for cell in cells], dtype=np.float64)
    found = np.array([_number(cell, f"{path}, line {line}, column {name!r}") for cell, line in zip(cells, table.lines)])
    if (found == np.floor(found)).all() and abs(found).max() > _EXACT:
        warnings.warn(
            f"{path}, column {name!r}: whole numbers up to {abs(found).max():.0f}, but float32 takes several beyond "
            f"{_EXACT} for one; leave the column out, or name it in categories",
            TrapWarning,
            stacklevel=3,
        )
    return found


def _number(cell: str, where: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        if re.fullmatch(r"[-+]?[\d.]*,\d+", cell):
            raise DataError(
                f"{where}: expected a number; received {cell!r}. Write a point for the decimal comma, as "
                "pandas.read_csv(path, decimal=',') and to_csv do"
            ) from None
        raise DataError(
            f"{where}: expected a number; received {cell!r}. Name the column in categories if it holds names"
            + ("; pass header=True if the line holds the columns' names" if ", line 1," in where else "")
        ) from None
    if not np.isfinite(number):
        raise DataError(f"{where}: expected a finite number; received {cell!r}. Fill it, or drop the line")
    return number
