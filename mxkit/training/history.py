"""The record of a run: one row of numbers per epoch."""

import csv
import io
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

from mxkit.core.system import aligned, dataframe, write_atomically
from mxkit.errors import unknown_name
import numpy as np

Row = Dict[str, Any]

# Longest list that a line of text shows.
_LONGEST_LIST = 4


class History(Sequence[Row]):
    """One dict per epoch, in order.

    Each row holds `epoch` (from 1), `updates` (all so far), `samples` (trained in this epoch), `seconds`
    (training, without validation), `samples_per_second`, `learning_rate` (after the epoch), `train_loss`
    (mean over the samples, while the weights change) and, under `train_` and `valid_`, each metric and the
    validation loss.

    Args:
        rows: The first rows; they are copied.

    Attributes:
        stopped: Reason why `fit` ended before its last epoch, or None.
    """

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._rows: List[Row] = [dict(row) for row in rows]
        self.stopped: Optional[str] = None

    def append(self, row: Row) -> None:
        """Add the row of an epoch."""
        self._rows.append(dict(row))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @property
    def columns(self) -> List[str]:
        """Names of all columns, in the order of their first appearance."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def column(self, name: str) -> List[Any]:
        """Values of one column, one per epoch; None if a row has none.

        Raises:
            UnknownNameError: No row has this column.
        """
        if name not in self.columns:
            raise unknown_name("column of the history", name, self.columns)
        return [row.get(name) for row in self._rows]

    def to_csv(self, path: Union[str, Path]) -> None:
        """Write a line of column names and one line per epoch, with all digits, atomically."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_atomically(Path(path), text.getvalue().encode())

    def to_json(self, path: Union[str, Path]) -> None:
        """Write `{"stopped": ..., "epochs": [...]}` with all digits, atomically; `from_json` reads it."""
        content = json.dumps({"stopped": self.stopped, "epochs": self._rows}, indent=1)
        write_atomically(Path(path), content.encode())

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame, the epoch as its index.

        Raises:
            ImportError: pandas is not installed.
        """
        return dataframe("History", self._rows, "epoch", self.columns)

    def table(self) -> str:
        """The losses, metrics and rates as aligned text, one line per epoch.

        >>> print(History([{"epoch": 1, "train_loss": 0.5}, {"epoch": 10, "train_loss": 0.25}]).table())
        epoch  train_loss
            1         0.5
           10        0.25
        """
        shown = [name for name in self.columns if name == "epoch" or name.startswith(("train_", "valid_", "learning"))]
        return "\n".join(aligned([shown, *([_cell(row.get(name)) for name in shown] for row in self._rows)], left=()))

    @classmethod
    def from_json(cls, path: Union[str, Path]) -> "History":
        """Read a file of `to_json`."""
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        history = cls(content["epochs"])
        history.stopped = content["stopped"]
        return history

    def plot(self, path: Union[str, Path, None] = None) -> Any:
        """Draw losses and metrics over epochs.

        Args:
            path: Where to save the picture, or None to save nothing.

        Returns:
            The matplotlib Figure.
        """
        from mxkit.plots.plotting import plot_history

        return plot_history(self._rows, path)

    def __repr__(self) -> str:
        row = self[-1] if self else {}
        cells = [f"{name}={_cell(value, 4) or None}" for name, value in row.items() if "_" in name]
        return f"History({len(self)} epochs; last: {', '.join(cells) if self else 'empty'})"


def fixed(value: float) -> str:
    """Write a number with four digits after the point; 0 has no sign, unlike the loss -0.0 of a perfect prediction.

    >>> fixed(-0.0), fixed(-0.00001), fixed(-0.5)
    ('0.0000', '0.0000', '-0.5000')
    """
    return f"{round(value, 4) + 0.0:.4f}"


def _cell(value: Any, digits: int = 5) -> str:
    """A value of a row as text; of a matrix or a long list its shape."""
    if value is None:
        return ""
    if isinstance(value, list):
        if any(isinstance(item, list) for item in value) or len(value) > _LONGEST_LIST:
            return f"({', '.join(map(str, np.shape(value)))})"
        return f"[{', '.join(_cell(item, digits) for item in value)}]"
    return f"{value + 0.0:.{digits}g}" if isinstance(value, float) else str(value)
