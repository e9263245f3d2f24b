"""Rows as a table: aligned text, or a DataFrame."""

from typing import Any, List, Optional, Sequence


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> List[str]:
    """Lines of text with a column's cells below one another, to the right but for the columns `left`.

    >>> aligned([["path", "count"], ["0.weight", "9"]])
    ['path      count', '0.weight      9']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


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
