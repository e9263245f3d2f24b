"""A NumPy file whose number of rows is known when it is done."""

import os
from pathlib import Path
import struct
from typing import Optional

from mxkit.core.files import name_aside
from mxkit.errors import DataError
import numpy as np

# The header is written twice, first with no rows, so it has a fixed size that any number of rows fits into.
_HEADER = 256


class GrowingArray:
    """Appends rows to a `.npy` file of format 1.0, under another name until it is whole.

    Args:
        path: Of the file. It is replaced by `publish`, and never half written.

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
            DataError: They have another shape or dtype than those before.
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
        """Write how many rows there are, and flush all of it to disk."""
        self._file.seek(0)
        self._file.write(self._header())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def publish(self) -> None:
        """Give the sealed file its name."""
        self._aside.replace(self._path)

    def close(self) -> None:
        """Remove what was not published."""
        self._file.close()
        if self._aside.exists():
            self._aside.unlink()

    def _header(self) -> bytes:
        like = self._like if self._like is not None else np.zeros(0, np.float32)
        shape = (self._rows, *like.shape[1:])
        text = repr({"descr": like.dtype.str, "fortran_order": False, "shape": tuple(int(size) for size in shape)})
        size = _HEADER - 10
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", size) + text.ljust(size - 1).encode("latin1") + b"\n"
