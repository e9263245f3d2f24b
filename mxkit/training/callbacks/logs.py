"""Callbacks that write the rows of the history where other programs read them."""

import csv
import io
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from mxkit.core.files import write_atomically
from mxkit.errors import DataError
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Row
from mxkit.training.state import FitState


class CSVLog(Callback):
    """Write the history to a CSV file after each epoch, atomically: at any instant it is whole.

    Args:
        path: The file; its directory is made when `fit` begins. A column that first appears later leaves
            the rows before it empty.
        append: Keep the rows that the file holds and write below them, like a second run's after a first's.
            Else an existing file is replaced after the first epoch. A resumed run continues its own rows
            either way.

    Raises:
        DataError: When `fit` begins: what shall be appended to is no CSV file with a line of names.
        OSError: The file may not be written.

    >>> log = CSVLog("runs/lenet.csv")
    """

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
            # below these lie the resumed run's own rows, which its history brings along
            del self._earlier[self._resumed :]
        self._resumed = None

    def _read(self) -> List[Dict[str, str]]:
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file, strict=True)
                rows = list(reader)
                names = list(reader.fieldnames or [])
            # DictReader puts cells without a name under the key None, and None where cells are missing
            if any(None in row or None in row.values() for row in rows) or len(set(names)) != len(names):
                raise ValueError("the number of cells differs, or two columns share a name")
        except (csv.Error, ValueError) as error:  # a UnicodeDecodeError is a ValueError
            raise DataError(
                f"CSVLog: nothing can be appended to {self.path}: expected a CSV file with a line of names and as many "
                f"cells in each row; {error}. Write to another path"
            ) from error
        return rows

    def on_epoch(self, state: FitState, row: Row) -> None:
        rows: List[Dict[str, Any]] = [*self._earlier, *state.history]
        text = io.StringIO()
        columns = list(dict.fromkeys(name for one in rows for name in one))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.path, text.getvalue().encode())

    def state_dict(self) -> Dict[str, Any]:
        return {"earlier_rows": len(self._earlier)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._resumed = state["earlier_rows"]


class TensorBoardLog(Callback):
    """Write each number of the history as a scalar for TensorBoard, over epochs.

    It takes the package tensorboardX. A resumed run goes on in the same folder; what a killed run wrote past
    its checkpoint is hidden.

    Args:
        folder: Of one run; it is made when `fit` begins.

    Raises:
        ImportError: When `fit` begins: tensorboardX is not installed.

    >>> log = TensorBoardLog("runs/lenet")
    """

    def __init__(self, folder: Union[str, Path]) -> None:
        self.folder = Path(folder)
        self._writer: Any = None

    def on_fit_begin(self, state: FitState) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoardLog needs the package tensorboardX, which cannot be imported: "
                f"{error}. Install it with: pip install tensorboardX"
            ) from error
        self._writer = SummaryWriter(logdir=str(self.folder), purge_step=state.epoch if state.epoch > 1 else None)

    def on_epoch(self, state: FitState, row: Row) -> None:
        for name, value in row.items():
            if name != "epoch" and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, row["epoch"])
        self._writer.flush()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
