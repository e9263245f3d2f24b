"""Reads the headers of MXNet's parameter files, without MXNet.

Every size is compared with the rest of the file before memory is taken, so that a damaged file is refused, and costs
no more than its own size. Damage inside the numbers cannot be seen; a hash can, like the one in a checkpoint's
`run.json`.

The format, little-endian, as `mx.nd.save` of MXNet 1.9.1 writes it:

    list     uint64 0x112, uint64 0, uint64 count, the arrays, uint64 count (0: a list without names), the names
    name     uint64 length, UTF-8
    array    uint32 magic, int32 storage type, shape of the stored values (sparse only), shape, device,
             int32 dtype, an int32 dtype and a shape for each index (sparse only), values, indices
    shape    int32 ndim, int64 each
    device   int32 kind, int32 number

The usual magic is 0xF993FAC9; 0xF993FACA is the magic of NumPy shapes (no axis, or axes of size 0). Older files have
neither storage type nor indices: their magic is 0xF993FAC8, or ndim and a uint32 for each axis stand in its place.
"""

import math
import os
from pathlib import Path
import struct
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Tuple, Union

from mxkit.errors import CheckpointError
import numpy as np

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
MAX_NAME = 1024
_MAX_NDIM = 32
_MAX_ELEMENTS = 2**31 - 1  # MXNet's wheels are built without INT64_TENSOR_SIZE
_CPU = struct.pack("<ii", 1, 0)
_INDICES = {0: 0, 1: 1, 2: 2}  # number of index arrays of a storage type: dense, row_sparse, csr
DEVICES = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared"}
_NAMES = "float32 float64 float16 uint8 int32 int8 int64 bool"
#: Name and bytes of each dtype that MXNet 1.9.1 writes, by its number.
DTYPES = {number: (name, np.dtype(name).itemsize) for number, name in enumerate(_NAMES.split())}
DTYPES[12] = "bfloat16", 2


def dtype_name(dtype: Any) -> str:
    """Name of a dtype as MXNet writes it; NumPy has no name for MXNet's bfloat16.

    >>> dtype_name(np.float32), dtype_name("bfloat16"), dtype_name(np.dtype([("bfloat16", np.uint16)]))
    ('float32', 'bfloat16', 'bfloat16')
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        return dtype
    numpy_dtype = np.dtype(dtype)
    return "bfloat16" if numpy_dtype.names == ("bfloat16",) else str(numpy_dtype.name)


class StoredArray(NamedTuple):
    """The headers of one array.

    Attributes:
        version: Its magic number, or 0 if ndim stands in its place.
        parts: dtype and shape of its values and of each index array, in the order of the file.
        header: Its bytes, with the CPU as device: this machine may not have the GPU of the machine that saved it.
        offset: Where its values begin.
        size: Bytes of its values and indices.
    """

    shape: Tuple[int, ...]
    dtype: str
    version: int
    parts: Tuple[Tuple[str, Tuple[int, ...]], ...]
    header: bytes
    offset: int
    size: int

    @property
    def sparse(self) -> bool:
        return len(self.parts) > 1


def open_file(path: Path) -> BinaryIO:
    """Open a file of parameters or of a graph for reading.

    Raises:
        CheckpointError: The path is a folder or a device.
        OSError: It does not exist or cannot be read.
    """
    if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
        raise CheckpointError(f"{path} is no file, but a folder or a device")
    return path.open("rb")


def describe_file(path: Union[str, Path]) -> Dict[str, Tuple[Tuple[int, ...], str]]:
    """Read shapes and dtypes of a parameter file from its headers, without the numbers.

    Args:
        path: A file of `net.save_parameters`, `net.export`, `mx.nd.save` or `npx.save`, of any version.

    Returns:
        `{name: (shape, dtype)}`, in the order of the file.

    Raises:
        CheckpointError: The file is damaged, cut off, not a parameter file, or a list without names.
        OSError: It does not exist or cannot be read.

    >>> path = getfixture("tmp_path") / "a.params"
    >>> mx.nd.save(str(path), {"x": mx.nd.ones((2, 3))})
    >>> describe_file(path)
    {'x': ((2, 3), 'float32')}
    """
    path = Path(path)
    with open_file(path) as file:
        return {name: (array.shape, array.dtype) for name, array in Walk(file, path).arrays().items()}


def read_bytes(file: BinaryIO, path: Path, name: str, array: StoredArray) -> "np.ndarray":
    """Read the bytes of an array's values and indices, as uint8."""
    content = np.empty(array.size, np.uint8)
    file.seek(array.offset)
    received = file.readinto(content)  # type: ignore[attr-defined]
    if received != array.size:
        raise CheckpointError(f"{path} is being changed by others: {received} of {array.size} bytes of {name!r}")
    return content


class Walk:
    """Reads the headers of a file in one pass, skips the values, and checks every size."""

    def __init__(self, file: BinaryIO, path: Path, unnamed: bool = False) -> None:
        self._file = file
        self._path = path
        self._unnamed = unnamed
        self._size = os.fstat(file.fileno()).st_size
        self._where = "its first bytes"

    def arrays(self) -> Dict[str, StoredArray]:
        """Return all arrays by name, after a check of the whole file."""
        start = self._file.read(24)
        if start[:8] != struct.pack("<Q", LIST_MAGIC):
            raise self._error("0x112 in its first 8 bytes, as mx.nd.save writes", start, "no parameter file")
        self._file.seek(8)
        reserved, count = self._take("<2Q")
        if reserved:
            raise self._error("0 in bytes 8 to 15", reserved)
        arrays: List[StoredArray] = []
        while len(arrays) < count:
            self._where = f"array {len(arrays) + 1} of {count}"
            arrays.append(self._array())
            if arrays[-1].version != arrays[0].version:
                raise self._error(f"the magic number of array 1, {arrays[0].version:#x}", hex(arrays[-1].version))
        names = self._names(count)
        end = self._file.tell()
        if end != self._size:
            raise self._error(f"its end after byte {end}", f"{self._size - end} more bytes")
        return dict(zip(names, arrays))

    def _array(self) -> StoredArray:
        start = self._file.tell()
        (magic,) = self._take("<I")
        storage = 0
        if magic in (V2, V3):
            (storage,) = self._take("<i")
            allowed = _INDICES if magic == V2 else {0: 0}
            if storage not in allowed:
                raise self._error(f"a storage type of {sorted(allowed)}", storage)
        elif magic != V1 and not 1 <= magic <= _MAX_NDIM:
            raise self._error(f"the magic number of an array, like {V2:#x}", hex(magic))
        stored = self._shape(V3) if storage else ()
        shape = self._shape(magic)
        device = self._file.tell() - start
        self._device()
        dtype, width = self._dtype()
        indices = [(*self._dtype("int32", "int64"), self._shape(V3)) for _ in range(_INDICES[storage])]
        stored = self._stored_shape(storage, stored, shape, [length for _, _, length in indices]) if storage else shape
        size = sum(math.prod(length) * width for _, width, length in [(dtype, width, stored), *indices])
        offset = self._file.tell()
        self._need(size, f"the values of a {dtype} array of shape {shape}")
        self._file.seek(start)
        header = self._file.read(offset - start)
        header = header[:device] + _CPU + header[device + len(_CPU) :]
        if storage:
            sizes = struct.pack(f"<{len(stored)}q", *stored)
            header = header[:12] + sizes + header[12 + len(sizes) :]
        self._file.seek(offset + size)
        version = magic if magic > _MAX_NDIM else 0
        parts = ((dtype, stored), *((index_dtype, length) for index_dtype, _, length in indices))
        return StoredArray(shape, dtype, version, parts, header, offset, size)

    def _shape(self, magic: int) -> Tuple[int, ...]:
        """Read a shape. Only NumPy shapes and shapes of stored values and indices may be empty or hold 0."""
        least = 0 if magic == V3 else 1
        if magic <= _MAX_NDIM:
            sizes = self._take(f"<{magic}I")
        else:
            (ndim,) = self._take("<i")
            if not least <= ndim <= _MAX_NDIM:
                raise self._error(f"{least} to {_MAX_NDIM} axes", ndim)
            sizes = self._take(f"<{ndim}q")
        if any(not least <= size <= _MAX_ELEMENTS for size in sizes):
            raise self._error(f"sizes of {least} to {_MAX_ELEMENTS}", sizes)
        if math.prod(size or 1 for size in sizes) > _MAX_ELEMENTS:  # NumPy refuses larger ones also without elements
            raise self._error(f"at most {_MAX_ELEMENTS} elements in an array", f"shape {sizes}")
        return sizes

    def _device(self) -> None:
        kind, number = self._take("<2i")
        if kind not in DEVICES or number < 0:
            raise self._error(f"a device: one of {DEVICES} and a number from 0", (kind, number))

    def _dtype(self, *allowed: str) -> Tuple[str, int]:
        (number,) = self._take("<i")
        dtypes = {key: value for key, value in DTYPES.items() if not allowed or value[0] in allowed}
        if number not in dtypes:
            raise self._error(f"a dtype of { {key: name for key, (name, _) in dtypes.items()} }", number)
        return dtypes[number]

    def _stored_shape(
        self, storage: int, stored: Tuple[int, ...], shape: Tuple[int, ...], indices: List[Tuple[int, ...]]
    ) -> Tuple[int, ...]:
        """Return the shape of a sparse array's stored values, as its indices imply it.

        `mx.nd.save` writes this shape before it waits for the array: if the array is still being computed, the file
        says 0 rows or all rows. MXNet gets the true shape, so that it allocates no more than the file holds.
        """
        rows = math.prod(indices[-1])
        if storage == 1:
            kind, true = "row_sparse", (rows, *shape[1:])
            sound = indices == [(rows,)] and rows <= shape[0]
        else:
            kind, true = "csr", (rows,)
            sound = indices == [(shape[0] + 1,), (rows,)] and len(shape) == 2
        if not sound or stored[1:] != true[1:] or stored[:1] not in {(0,), (rows,), shape[:1]}:
            raise self._error(f"stored values and indices of a {kind} array of shape {shape}", (stored, *indices))
        return true

    def _names(self, count: int) -> List[str]:
        self._where = "its names"
        (named,) = self._take("<Q")
        if self._unnamed and not named:
            return [str(number) for number in range(count)]
        if count and not named:
            raise self._error(f"{count} names, as from nd.save or npx.save of a dict", "none", "a list without names")
        if named != count:
            raise self._error(f"{count} names, one for each array", named)
        names: Dict[str, None] = {}
        for number in range(named):
            self._where = f"name {number + 1} of {named}"
            (length,) = self._take("<Q")
            if length > MAX_NAME:
                raise self._error(f"at most {MAX_NAME} bytes", length)
            self._need(length, "a name")
            name = self._file.read(length).decode("utf-8", "replace")
            if "\0" in name or "\ufffd" in name:
                raise self._error("UTF-8 without zero bytes", name)
            if name in names:
                raise self._error("every name once", f"{name!r} twice")
            names[name] = None
        return list(names)

    def _take(self, form: str) -> Tuple[Any, ...]:
        length = struct.calcsize(form)
        self._need(length, "its header")
        return struct.unpack(form, self._file.read(length))

    def _need(self, size: int, what: str) -> None:
        left = self._size - self._file.tell()
        if size > left:
            raise self._error(f"{size} bytes for {what}", f"{left} up to the end", "cut off or damaged")

    def _error(self, expected: str, received: Any, state: str = "damaged") -> CheckpointError:
        text = f"expected {expected}, received {received!s:.200} ({self._where})"
        return CheckpointError(f"{self._path} is {state}: {text}")


BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # as MXNet gives it: NumPy has no bfloat16


def read_numpy(path: Union[str, Path], unnamed: bool = False) -> Dict[str, "np.ndarray"]:
    """Read a parameter file into NumPy arrays, without MXNet.

    bfloat16 has the dtype that MXNet gives it, `BFLOAT16`; `widened` makes float32 of it.

    Args:
        path: As for `describe_file`.
        unnamed: Read a list without names too; its arrays are named "0", "1" ... .

    Returns:
        Arrays by name, in the order of the file.

    Raises:
        CheckpointError: As for `describe_file`; or an array is sparse.
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
        for name, array in Walk(file, path, unnamed).arrays().items():
            yield name, array, _values(path, name, array, read_bytes(file, path, name, array))


def widened(array: "np.ndarray") -> "np.ndarray":
    """Return bfloat16 as float32, which is exact; other arrays as they are."""
    if array.dtype != BFLOAT16:
        return array
    return np.asarray(np.left_shift(array["bfloat16"].astype(np.uint32), np.uint32(16))).view(np.float32)


def _values(path: Path, name: str, array: StoredArray, content: "np.ndarray") -> "np.ndarray":
    """Make the array of its stored bytes."""
    if array.sparse:
        raise CheckpointError(f"{path}: array {name!r} is sparse: read it with MXNet, and save tostype('default')")
    # a byte other than 0 and 1 is no bool of NumPy
    if array.dtype == "bool":
        values = content != 0
    else:
        stored = BFLOAT16 if array.dtype == "bfloat16" else np.dtype(array.dtype).newbyteorder("<")
        values = content.view(stored).astype(stored.newbyteorder("="), copy=False)
    return np.reshape(values, array.shape)
