"""Reads MXNet's parameter files into NumPy arrays: neither MXNet nor its library is needed."""

import math
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple, Union

from mxkit.errors import CheckpointError
from mxkit.storage.params_format import DTYPES, StoredArray, Walk, open_file, read_bytes
import numpy as np

_DENSE_BYTES = 2**24  # memory for dense copies of sparse arrays, beyond twice the file's size
BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # as MXNet gives it: NumPy has no bfloat16


def read_numpy(path: Union[str, Path], unnamed: bool = False) -> Dict[str, "np.ndarray"]:
    """Read a parameter file into NumPy arrays, without MXNet.

    Sparse arrays become dense. bfloat16 has the dtype that MXNet gives it, `BFLOAT16`; `widened` makes float32 of it.
    Memory: the arrays, and for the largest sparse array its stored values once more.

    Args:
        path: As for `describe_file`.
        unnamed: Read a list without names too; its arrays are named "0", "1" ... .

    Returns:
        Arrays by name, in the order of the file.

    Raises:
        CheckpointError: As for `describe_file`; or dense copies of sparse arrays would need far more memory than the
            file has bytes, or the indices of a sparse array are outside of its shape.
        OSError: The file does not exist or cannot be read.

    >>> path = getfixture("tmp_path") / "a.params"
    >>> mx.nd.save(str(path), {"x": mx.nd.arange(3)})
    >>> read_numpy(path)["x"].tolist()
    [0.0, 1.0, 2.0]
    """
    return {name: values for name, _, values in each_array(path, unnamed)}


def each_array(path: Union[str, Path], unnamed: bool = False) -> Iterator[Tuple[str, StoredArray, "np.ndarray"]]:
    """Yield name, headers and values of each array, as `read_numpy`; only one array is in memory at a time."""
    path = Path(path)
    with open_file(path) as file:
        arrays = Walk(file, path, unnamed).arrays()
        _check_dense_sizes(path, arrays)
        for name, array in arrays.items():
            yield name, array, _values(path, name, array, read_bytes(file, path, name, array))


def widened(array: "np.ndarray") -> "np.ndarray":
    """Return bfloat16 as float32, which is exact; other arrays as they are."""
    if array.dtype != BFLOAT16:
        return array
    return np.asarray(np.left_shift(array["bfloat16"].astype(np.uint32), np.uint32(16))).view(np.float32)


def _check_dense_sizes(path: Path, arrays: Dict[str, StoredArray]) -> None:
    """Refuse sparse arrays whose dense copies need much memory: their shapes are numbers that no bytes stand for."""
    widths = dict(DTYPES.values())
    sizes = {name: math.prod(array.shape) * widths[array.dtype] for name, array in arrays.items() if array.sparse}
    most = 2 * sum(array.size for array in arrays.values()) + _DENSE_BYTES
    if sum(sizes.values()) > most:
        name = max(sizes, key=lambda name: sizes[name])
        raise CheckpointError(
            f"{path}: its sparse arrays are not read: expected dense copies of at most {most} bytes, received "
            f"{sum(sizes.values())}, of which {name!r} of shape {arrays[name].shape} needs {sizes[name]}. "
            "Read them with MXNet (mx.nd.load), and save the rows that you need"
        )


def _values(path: Path, name: str, array: StoredArray, content: "np.ndarray") -> "np.ndarray":
    """Make the dense array of its stored bytes."""
    parts, start = [], 0
    for dtype, shape in array.parts:
        stored = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<")
        end = start + math.prod(shape) * stored.itemsize
        part = content[start:end]
        # a byte other than 0 and 1 is no bool of NumPy
        part = part != 0 if dtype == "bool" else part.view(stored).astype(stored.newbyteorder("="), copy=False)
        try:
            parts.append(part.reshape(shape))
        except ValueError as error:  # an array without elements whose other sizes are too large for NumPy
            raise CheckpointError(f"{path}: array {name!r} of shape {shape} is too large for NumPy: {error}") from error
        start = end
    if not array.sparse:
        return parts[0]
    try:
        places = _row_places(array.shape, parts[1]) if len(parts) == 2 else _csr_places(array.shape, *parts[1:])
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged: array {name!r}: expected ascending indices inside of shape {array.shape}, "
            f"received others ({error})"
        ) from error
    dense = np.zeros(array.shape, parts[0].dtype)
    dense[places] = parts[0]
    return dense


def _row_places(shape: Tuple[int, ...], rows: "np.ndarray") -> Any:
    _check_ascending(rows, shape[0], "rows")
    return rows


def _csr_places(shape: Tuple[int, ...], ends: "np.ndarray", columns: "np.ndarray") -> Any:
    """Rows and columns of the stored values of a csr array."""
    counts = np.diff(ends)
    if ends[0] != 0 or ends[-1] != len(columns) or (counts < 0).any():
        raise ValueError(f"rows that end at {ends[0]} to {ends[-1]} of {len(columns)} values")
    if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
        raise ValueError(f"columns from {columns.min()} to {columns.max()}")
    rows = np.repeat(np.arange(shape[0]), counts)
    _check_ascending(rows * shape[1] + columns, math.prod(shape), "places")
    return rows, columns


def _check_ascending(indices: "np.ndarray", size: int, what: str) -> None:
    if len(indices) and not (indices[0] >= 0 and indices[-1] < size and (np.diff(indices) > 0).all()):
        raise ValueError(f"{what} from {indices.min()} to {indices.max()}, or not ascending")
