"""The comparison of an exported file with MXNet: one row for each output of each layer or operator."""

import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.operators import operators_that
from mxkit.core.system import aligned, write_atomically
from mxkit.errors import ExportError
import numpy as np

# They are compared with MXNet's own inputs: the last bits of a score would otherwise put two boxes in another order.
JUMPING = operators_that("jumps")


class Row(NamedTuple):
    """One array, computed by MXNet and by the exported file.

    Attributes:
        name: Path of the layer, or name of the operator in the graph.
        operator: MXNet's operator, or the layer's class.
        shape: Of the array.
        batch: Batch size of the inputs.
        largest: The largest magnitude in MXNet's array.
        absolute: The largest absolute difference; infinity if shapes differ or a NaN or infinity stands elsewhere.
        relative: `absolute` divided by `largest`; where a sum cancels, by a hundredth of what was summed.
    """

    name: str
    operator: str
    shape: Tuple[int, ...]
    batch: int
    largest: float
    absolute: float
    relative: float


class Proof(NamedTuple):
    """All rows of a comparison.

    Attributes:
        rows: In the order of the computation.
        tolerance: Largest relative difference that passes.
        versions: Of the programs that computed, by name.
        inputs: What was computed with, in words.
        not_compared: Operators that the exported file computes as a part of others.
    """

    rows: List[Row]
    tolerance: float
    versions: Dict[str, str]
    inputs: str = ""
    not_compared: Sequence[str] = ()

    @property
    def failures(self) -> List[Row]:
        """Rows above the tolerance, in the order of the computation."""
        return [row for row in self.rows if not row.relative <= self.tolerance]

    @property
    def worst(self) -> Optional[Row]:
        """The row with the largest relative difference; None for a net without parameters whose shapes are unknown."""
        return max(self.rows, key=lambda row: row.relative, default=None)

    def __str__(self) -> str:
        head = ["layer", "operator", "shape", "batch", "largest value", "difference", "relative"]
        cells = [
            [row.name, row.operator, str(row.shape), str(row.batch)]
            + [f"{number:.3g}" for number in (row.largest, row.absolute, row.relative)]
            for row in self.rows
        ]
        return "\n".join([*aligned([head, *cells], left=(0, 1, 2)), self.summary()])

    def summary(self) -> str:
        """One sentence."""
        if self.worst is None:
            return "nothing was compared: the net has no parameters, and is random or takes inputs of unknown shapes"
        state = f"{len(self.failures)} above" if self.failures else "all within"
        return (
            f"{len(self.rows)} arrays compared, {state} {self.tolerance:g}; largest relative difference "
            f"{self.worst.relative:.2g} at {self.worst.name}"
        )

    def check(self, what: str) -> None:
        """Raise ExportError if a row is above the tolerance; the text names the first ones."""
        if not self.failures:
            return
        first = "\n".join(
            f"  {row.name} ({row.operator}, shape {row.shape}, batch {row.batch}): relative difference "
            f"{row.relative:.3g}, absolute {row.absolute:.3g}"
            for row in self.failures[:8]
        )
        raise ExportError(
            f"export: {what} computes other numbers than MXNet, and was not written. Expected relative differences "
            f"up to {self.tolerance:g}; received at {len(self.failures)} of {len(self.rows)} arrays, the first ones:\n"
            f"{first}\nThe first line is where it begins. If this difference is acceptable, pass tolerance="
        )

    def write(self, path: Path) -> Path:
        """Write the table as JSON."""
        stored = {
            **{name: value for name, value in self._asdict().items() if name != "rows"},
            "largest_relative_difference": self.worst.relative if self.worst else None,
            "rows": [row._asdict() for row in self.rows],
        }
        write_atomically(path, json.dumps(stored, indent=1).encode())
        return path


def compare(name: str, operator: str, batch: int, expected: Any, actual: Any) -> Row:
    """Compare an array of the exported file with MXNet's.

    Args:
        name: Of the row.
        operator: Of the row.
        batch: Of the row.
        expected: MXNet's array, as NumPy's.
        actual: The other program's.

    >>> compare("fc", "FullyConnected", 1, np.array([1.0, 2.0]), np.array([1.0, 2.5])).relative
    0.25
    """
    shape = tuple(expected.shape)
    with np.errstate(all="ignore"):
        wide, other = np.asarray(expected, np.float64), np.asarray(actual, np.float64)
        finite = np.isfinite(wide)
        largest = float(np.abs(wide[finite]).max()) if finite.any() else 0.0
        # np.array_equal has `equal_nan` since NumPy 1.19
        same = tuple(other.shape) == shape and bool(
            ((wide == other) | (np.isnan(wide) & np.isnan(other)) | (finite & np.isfinite(other))).all()
        )
        if not same:
            return Row(name, operator, shape, batch, largest, float("inf"), float("inf"))
        absolute = float(np.abs(wide[finite] - other[finite]).max()) if finite.any() else 0.0
    relative = 0.0 if not absolute else absolute / largest if largest else float("inf")
    return Row(name, operator, shape, batch, largest, absolute, relative)


def above(smallest: float, row: Row) -> Row:
    """Compare numbers that are zero up to rounding with `smallest` instead of with themselves."""
    return row._replace(relative=row.absolute / smallest) if row.largest < smallest else row
