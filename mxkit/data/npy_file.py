"""A NumPy file that is written row by row."""

import os
from pathlib import Path
import struct
from typing import Optional

from mxkit.core.system import name_aside
from mxkit.errors import DataError
import numpy as np

# The header is written twice, the first time without the number of rows, so its size is fixed.
_HEADER = 256


class GrowingArray:
    """Appends rows to a `.npy` file of format 1.0, which has a temporary name until it is complete.

    Args:
        path: Path of the file. `publish` replaces it at once, so that it is never incomplete.

    Source:
        https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = name_aside(path)
        self._file = self._aside.open("wb")
        self._like: Optional[np.ndarray] = None
        self._rows = 0

    def append(self, rows: "np.ndarray") -> None:
        """Add rows of shape (n, ...).

        Raises:
            DataError: They have another shape or dtype than the rows before.
        """
        if self._like is None:
            self._like = rows[:0]
            self._file.write(self._header())
        like = self._like
        if rows.shape[1:] != like.shape[1:] or rows.dtype != like.dtype:
            raise DataError(
                f"{self._path.name}: rows have shape {rows.shape[1:]} and {rows.dtype}, those before "
                f"{like.shape[1:]} and {like.dtype}. Give all samples one size"
            )
        self._file.write(np.ascontiguousarray(rows).data)
        self._rows += len(rows)

    def seal(self) -> None:
        """Write the number of rows, and flush the file to disk."""
        self._file.seek(0)
        self._file.write(self._header())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def publish(self) -> None:
        """Rename the sealed file to its final name."""
        self._aside.replace(self._path)

    def close(self) -> None:
        """Remove the temporary file, unless it was published."""
        self._file.close()
        if self._aside.exists():
            self._aside.unlink()

    def _header(self) -> bytes:
        like = self._like if self._like is not None else np.zeros(0, np.float32)
        shape = (self._rows, *like.shape[1:])
        text = repr({"descr": like.dtype.str, "fortran_order": False, "shape": tuple(int(size) for size in shape)})
        size = _HEADER - 10
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", size) + text.ljust(size - 1).encode("latin1") + b"\n"
