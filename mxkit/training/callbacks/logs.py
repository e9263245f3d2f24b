"""Writes the rows of the history to a CSV file."""

import csv
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from mxkit.errors import DataError
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import History, Row
from mxkit.training.state import FitState


class CSVLog(Callback):
    """Write the history to a CSV file after each epoch, atomically: other programs never see half a file.

    Args:
        path: The file. `fit` makes its directory. A column that appears later leaves the rows before it empty.
        append: Keep the rows of an existing file and write below them, like a second run's after a first's. False
            replaces an existing file after the first epoch. A resumed run continues its own rows in both cases.

    Raises:
        DataError: When `fit` begins: with `append`, the file is not a CSV file with a line of names.
        OSError: The file cannot be written.

    >>> log = CSVLog("runs/lenet.csv")
    """

    writes = True

    def __init__(self, path: Union[str, Path], *, append: bool = False) -> None:
        self.path = Path(path)
        self.append = append
        self._earlier: List[Dict[str, str]] = []
        self._resumed: Optional[int] = None

    def on_fit_begin(self, state: FitState) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir():
            raise IsADirectoryError(f"CSVLog: expected the path of a file; {self.path} is a directory")
        self._earlier = self._read() if self.append and self.path.exists() else []
        if self._resumed is not None:
            del self._earlier[self._resumed :]  # the resumed run's own rows, which its history holds
        self._resumed = None

    def _read(self) -> List[Dict[str, str]]:
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file, strict=True)
                rows = list(reader)
                names = list(reader.fieldnames or [])
            # DictReader stores cells without a name under the key None, and None for missing cells
            if any(None in row or None in row.values() for row in rows) or len(set(names)) != len(names):
                raise ValueError("the number of cells differs, or two columns share a name")
        except (csv.Error, ValueError) as error:  # a UnicodeDecodeError is a ValueError
            raise DataError(
                f"CSVLog: nothing can be appended to {self.path}: expected a CSV file with a line of names and as many "
                f"cells in each row; {error}. Write to another path"
            ) from error
        return rows

    def on_epoch(self, state: FitState, row: Row) -> None:
        History([*self._earlier, *state.history]).to_csv(self.path)

    def state_dict(self) -> Dict[str, Any]:
        return {"earlier_rows": len(self._earlier)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._resumed = state["earlier_rows"]
