"""The best value of one column of a history, and how long ago it was."""

import math
from typing import Any, Dict, Iterable, Mapping, Optional

from mxkit.errors import UnknownNameError, unknown_name

# Other frameworks' names for the parts of a column's name.
_PARTS = {"val": "valid", "validation": "valid", "test": "valid", "training": "train"}
_MEASURES = {"acc": "accuracy"}


def _name_here(column: str) -> str:
    """The column for a name of another framework: `valid_accuracy` for `val_acc`."""
    part, separator, measure = str(column).lower().partition("_")
    if not separator:
        part, measure = "train", part
    return f"{_PARTS.get(part, part)}_{_MEASURES.get(measure, measure)}"


class Monitor:
    """Follow one column of the history, epoch by epoch.

    Args:
        column: As in the history: "valid_loss", "train_accuracy".
        mode: "min" if smaller is better, "max" if larger is. It is never guessed from the name (T23).
        min_delta: A value must be better than the best one by more than this to count, at least 0.

    Attributes:
        best: Best value so far, or None. NaN is never better.
        best_epoch: The epoch of the best value, or None.
        epochs_since: Epochs with a value since the best one, or since the start if there is no best.

    Raises:
        ValueError: `mode` has another value, or `min_delta` is below 0 or not finite.

    >>> monitor = Monitor("valid_loss", "min")
    >>> [monitor.update({"epoch": i + 1, "valid_loss": value}) for i, value in enumerate([0.9, 0.7, 0.8])]
    [True, True, False]
    >>> monitor.best, monitor.best_epoch, monitor.epochs_since
    (0.7, 2, 1)
    """

    def __init__(self, column: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in ("min", "max"):
            raise ValueError(
                f"mode of {column!r}: expected 'min' (smaller is better) or 'max' (larger is better); received "
                f"{mode!r}. Nothing is guessed from a column's name"
            )
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"min_delta of {column!r}: expected a number, at least 0; received {min_delta!r}")
        self.column = column
        self.mode = mode
        self.min_delta = min_delta
        self.reset()

    def reset(self) -> None:
        """Forget every value."""
        self.best: Optional[float] = None
        self.best_epoch: Optional[int] = None
        self.epochs_since = 0
        self._seen = False

    def check(self, columns: Iterable[str]) -> None:
        """Refuse a column that the history will not have.

        Raises:
            UnknownNameError: `columns` lacks it; the text lists them, with the nearest.
        """
        columns = sorted(columns)
        if self.column in columns:
            return
        meant = _name_here(self.column)
        if meant in columns:
            hint = f"did you mean {meant!r}?"
        elif meant.startswith("valid_") and not any(name.startswith("valid_") for name in columns):
            hint = "nothing is validated without fit(valid=...)."
        else:
            raise unknown_name("column of the history", self.column, columns)
        raise UnknownNameError(f"unknown column of the history {self.column!r}: {hint} Known: {', '.join(columns)}")

    def update(self, row: Mapping[str, Any]) -> bool:
        """Take the row of an epoch into account.

        Args:
            row: Holds `epoch` and the column. An epoch changes nothing if the column is None, or missing after an
                earlier row had it: it was not measured.

        Returns:
            Whether the value is the best so far.

        Raises:
            UnknownNameError: Neither this row nor an earlier one has the column.
            TypeError: The value is no number.
        """
        if not self._seen:
            self.check(row)
            self._seen = True
        value = row.get(self.column)
        if value is None:
            return False
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"epoch {row['epoch']}: column {self.column!r}: expected a number; received {value!r}. Use another"
            ) from error
        if self._is_better(number):
            self.best, self.best_epoch, self.epochs_since = number, row["epoch"], 0
            return True
        self.epochs_since += 1
        return False

    def _is_better(self, value: float) -> bool:
        if self.best is None:
            return not math.isnan(value)
        return value < self.best - self.min_delta if self.mode == "min" else value > self.best + self.min_delta

    def state_dict(self) -> Dict[str, Any]:
        """Counters as plain JSON values."""
        counters = {"best": self.best, "best_epoch": self.best_epoch, "epochs_since": self.epochs_since}
        return {**counters, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self.epochs_since, self._seen = state["epochs_since"], state["seen"]
