"""Tables of text with aligned columns, and the console for coloured text; both are rich's."""

from io import StringIO
import shutil
import sys
from typing import Any, Collection, List, Optional, Sequence

# rich wants a width; files and pipes have none.
_UNLIMITED = 1_000_000
# Characters that are left of a column that is cut.
_LEAST = 12


def aligned(
    rows: Sequence[Sequence[str]],
    left: Collection[int] = (0,),
    *,
    shrinkable: Collection[int] = (),
    width: Optional[int] = None,
) -> List[str]:
    """Lines of text with a column's cells below one another.

    Args:
        rows: Cells; the first row holds the names of the columns.
        left: Numbers of columns of words, which begin at the left; numbers end at the right.
        shrinkable: Numbers of columns that are cut where the table is wider than `width`.
        width: The most characters of a line. None for no limit.

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
        table.add_column(width=2)  # the gap; rich counted its own padding in other ways before 14.3
        least += (min(natural, _LEAST) if cut else natural) + 2
    for row in rows:
        texts = (Text(cell, no_wrap=True, overflow="ellipsis") for cell in row)
        table.add_row(*(part for text in texts for part in (text, "")))
    output = StringIO()
    room = _UNLIMITED if width is None else max(width, least)  # in less room rich drops whole columns
    Console(file=output, width=room, color_system=None, force_jupyter=False).print(table, crop=False)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def show_table(
    rows: Sequence[Sequence[str]], left: Collection[int] = (0,), *, shrinkable: Collection[int] = ()
) -> None:
    """Print a table that fits the terminal; whole where standard output is a file or a pipe."""
    names, *lines = aligned(rows, left, shrinkable=shrinkable, width=terminal_width())
    console().print(names, style="bold")
    for line in lines:
        console().print(line)


def terminal_width() -> Optional[int]:
    """Characters in a line of the terminal that standard output is; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def console() -> Any:
    """Standard output for coloured text; a path in brackets is no markup here, and no line is cut."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, soft_wrap=True)


def dataframe(who: str, rows: Any, index: str, columns: Optional[Sequence[str]] = None) -> Any:
    """Rows as a pandas DataFrame.

    Args:
        who: What the user called, for the message.
        rows: Dicts, or tuples of the values of `columns`.
        index: Name of the column that becomes the index.
        columns: Names of the columns, in their order; None takes those of the dicts.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(f"{who}.to_dataframe needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows, columns=columns).set_index(index)
