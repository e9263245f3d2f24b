"""Parameter files, checked before MXNet reads a byte of them.

One wrong byte in a file of 1.5 KB can cost `mx.nd.load` 12 GB and 20 seconds, or end the process (T58). This module
reads the file's headers first, compares every size with the rest of the file, and refuses what MXNet does not write.
It cannot see damage inside the numbers; a hash can, like the one in a checkpoint's `run.json`.

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
import tempfile
from typing import Any, BinaryIO, Dict, List, Mapping, NamedTuple, Tuple, Union

from mxkit.core.array_kind import legacy
from mxkit.errors import CheckpointError
import mxnet as mx
import numpy as np

_LIST_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_MAX_NDIM = 32
_MAX_ELEMENTS = 2**31 - 1  # MXNet's wheels are built without INT64_TENSOR_SIZE
_MAX_NAME = 1024
_BUFFER_LIMIT = 2**32  # load_frombuffer cuts the buffer's length to 32 bits without an error
_CPU = struct.pack("<ii", 1, 0)
_INDICES = {0: 0, 1: 1, 2: 2}  # number of index arrays of a storage type: dense, row_sparse, csr


def dtype_name(dtype: Any) -> str:
    """Name of a dtype as MXNet writes it; NumPy has no name for MXNet's bfloat16.

    >>> dtype_name(np.float32), dtype_name("bfloat16"), dtype_name(np.dtype([("bfloat16", np.uint16)]))
    ('float32', 'bfloat16', 'bfloat16')
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        return dtype
    numpy_dtype = np.dtype(dtype)
    return "bfloat16" if numpy_dtype.names == ("bfloat16",) else str(numpy_dtype.name)


_DTYPES = {
    number: (dtype_name(dtype), np.dtype(dtype).itemsize)
    for number, dtype in mx.nd.ndarray._DTYPE_MX_TO_NP.items()
    if dtype is not None
}


class _Array(NamedTuple):
    """The headers of one array.

    Attributes:
        version: Its magic number, or 0 if ndim stands in its place.
        header: Its bytes, with the CPU as device: this machine may not have the GPU of the machine that saved it.
        offset: Where its values begin.
        size: Bytes of its values and indices.
    """

    shape: Tuple[int, ...]
    dtype: str
    version: int
    sparse: bool
    header: bytes
    offset: int
    size: int


def read_arrays(path: Union[str, Path]) -> Dict[str, Any]:
    """Read a file of `net.save_parameters`, `net.export`, `mx.nd.save` or `npx.save`, safely, under either switch.

    MXNet gets only bytes that were checked, also if the file changes meanwhile. The peak of memory is the size of the
    arrays plus three times the largest one. A file with an array of 4 GiB or more is read by `mx.nd.load` after the
    check.

    Args:
        path: The file. It holds a dict of arrays; old formats are read too.

    Returns:
        NDArrays on the CPU by name, in the order of the file.

    Raises:
        CheckpointError: The file is damaged, cut off, not a parameter file, or a list without names.
        OSError: It does not exist or cannot be read.

    >>> path = getfixture("tmp_path") / "a.params"
    >>> mx.nd.save(str(path), {"x": mx.nd.ones((2, 3))})
    >>> read_arrays(path)["x"].shape
    (2, 3)
    """
    path = Path(path)
    with _open(path) as file:
        arrays = _Walk(file, path).arrays()
        numpy_shapes = any(array.version == _V3 for array in arrays.values())
        with mx.util.np_array(False), mx.util.np_shape(numpy_shapes):
            if any(array.size + _MAX_NAME >= _BUFFER_LIMIT for array in arrays.values()):
                return {name: array.as_in_context(mx.cpu()) for name, array in mx.nd.load(str(path)).items()}
            return {name: _load(file, path, name, array) for name, array in arrays.items()}


def describe_file(path: Union[str, Path]) -> Dict[str, Tuple[Tuple[int, ...], str]]:
    """Read shapes and dtypes of a parameter file from its headers, without the numbers.

    Args:
        path: As for `read_arrays`.

    Returns:
        `{name: (shape, dtype)}`, in the order of the file.

    Raises:
        CheckpointError, OSError: As for `read_arrays`.

    >>> path = getfixture("tmp_path") / "a.params"
    >>> mx.nd.save(str(path), {"x": mx.nd.ones((2, 3))})
    >>> describe_file(path)
    {'x': ((2, 3), 'float32')}
    """
    path = Path(path)
    with _open(path) as file:
        return {name: (array.shape, array.dtype) for name, array in _Walk(file, path).arrays().items()}


def _open(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
        raise CheckpointError(f"{path} is no file: expected a parameter file, received a folder or a device")
    return path.open("rb")


def _load(file: BinaryIO, path: Path, name: str, array: _Array) -> Any:
    """Let MXNet read one array from a list of one: its checked header and its bytes."""
    file.seek(array.offset)
    values = file.read(array.size)
    if len(values) != array.size:
        raise CheckpointError(
            f"{path} is being changed by another process: expected {array.size} bytes of {name!r}, "
            f"received {len(values)}. Read it again"
        )
    buffer = b"".join([struct.pack("<3Q", _LIST_MAGIC, 0, 1), array.header, values, struct.pack("<Q", 0)])
    del values
    loaded = mx.nd.load_frombuffer(buffer)[0]
    if array.sparse:
        try:
            loaded.check_format(full_check=True)  # an index outside the shape writes outside the memory
        except mx.MXNetError as error:
            raise CheckpointError(
                f"{path} is damaged: array {name!r}: expected ascending indices inside of shape {array.shape}, "
                f"received others ({str(error).strip().splitlines()[-1]})"
            ) from error
    return loaded


class _Walk:
    """Reads the headers of a file in one pass, skips the values, and checks every size."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = os.fstat(file.fileno()).st_size
        self._where = "its first bytes"

    def arrays(self) -> Dict[str, _Array]:
        """Return all arrays by name, after a check of the whole file."""
        start = self._file.read(24)
        if start[:8] != struct.pack("<Q", _LIST_MAGIC):
            raise self._error("0x112 in its first 8 bytes, as mx.nd.save writes", start, "no parameter file")
        self._file.seek(8)
        reserved, count = self._take("<2Q")
        if reserved:
            raise self._error("0 in bytes 8 to 15", reserved)
        arrays: List[_Array] = []
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

    def _array(self) -> _Array:
        start = self._file.tell()
        (magic,) = self._take("<I")
        storage = 0
        if magic in (_V2, _V3):
            (storage,) = self._take("<i")
            allowed = _INDICES if magic == _V2 else {0: 0}
            if storage not in allowed:
                raise self._error(f"a storage type of {sorted(allowed)}", storage)
        elif magic != _V1 and not 1 <= magic <= _MAX_NDIM:
            raise self._error(f"the magic number of an array, like {_V2:#x}", hex(magic))
        stored = self._shape(_V3) if storage else ()
        shape = self._shape(magic)
        device = self._file.tell() - start
        self._device()
        dtype, width = self._dtype()
        indices = [(*self._dtype("int32", "int64"), self._shape(_V3)) for _ in range(_INDICES[storage])]
        stored = self._stored_shape(storage, stored, shape, [length for _, _, length in indices]) if storage else shape
        size = math.prod(stored) * width
        size += sum(math.prod(length) * index_width for _, index_width, length in indices)
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
        return _Array(shape, dtype, version, storage != 0, header, offset, size)

    def _shape(self, magic: int) -> Tuple[int, ...]:
        """Read a shape. Only NumPy shapes and shapes of stored values and indices may be empty or hold 0."""
        least = 0 if magic == _V3 else 1
        if magic <= _MAX_NDIM:
            sizes = self._take(f"<{magic}I")
        else:
            (ndim,) = self._take("<i")
            if not least <= ndim <= _MAX_NDIM:
                raise self._error(f"{least} to {_MAX_NDIM} axes", ndim)
            sizes = self._take(f"<{ndim}q")
        if any(not least <= size <= _MAX_ELEMENTS for size in sizes):
            raise self._error(f"sizes of {least} to {_MAX_ELEMENTS}", sizes)
        if math.prod(sizes) > _MAX_ELEMENTS:
            raise self._error(f"at most {_MAX_ELEMENTS} elements in an array", f"shape {sizes}")
        return sizes

    def _device(self) -> None:
        kind, number = self._take("<2i")
        if kind not in mx.Context.devtype2str or number < 0:
            raise self._error(f"a device: one of {mx.Context.devtype2str} and a number from 0", (kind, number))

    def _dtype(self, *allowed: str) -> Tuple[str, int]:
        (number,) = self._take("<i")
        dtypes = {key: value for key, value in _DTYPES.items() if not allowed or value[0] in allowed}
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
        if count and not named:
            raise self._error(f"{count} names, as from nd.save or npx.save of a dict", "none", "a list without names")
        if named != count:
            raise self._error(f"{count} names, one for each array", named)
        names: Dict[str, None] = {}
        for number in range(named):
            self._where = f"name {number + 1} of {named}"
            (length,) = self._take("<Q")
            if length > _MAX_NAME:
                raise self._error(f"at most {_MAX_NAME} bytes", length)
            self._need(length, "a name")
            name = self._text(self._file.read(length))
            if name in names:
                raise self._error("every name once", f"{name!r} twice")
            names[name] = None
        return list(names)

    def _text(self, name: bytes) -> str:
        try:
            if b"\0" not in name:
                return name.decode("utf-8")
        except UnicodeDecodeError:
            pass
        raise self._error("UTF-8 without zero bytes", name)

    def _take(self, form: str) -> Tuple[Any, ...]:
        length = struct.calcsize(form)
        self._need(length, "its header")
        return struct.unpack(form, self._file.read(length))

    def _need(self, size: int, what: str) -> None:
        left = self._size - self._file.tell()
        if size > left:
            raise self._error(f"{size} bytes for {what}", f"{left} up to the end", "cut off or damaged")

    def _error(self, expected: str, received: Any, state: str = "damaged") -> CheckpointError:
        return CheckpointError(
            f"{self._path} is {state}: expected {expected}, received {received!s:.200} ({self._where})"
        )


def save_arrays(file: Path, arrays: Mapping[str, Any], numpy_shapes: bool = False) -> None:
    """Write a parameter file with `mx.nd.save`, of arrays of either kind, in a format that MXNet's switches do not set.

    Under `npx.set_np()` MXNet writes the format of NumPy shapes, which it reads only there (T156).

    Args:
        file: The file.
        arrays: By name.
        numpy_shapes: Write the format of NumPy shapes. Arrays without axes or of size 0 always have it.
    """
    numpy_shapes = numpy_shapes or any(array.ndim == 0 or array.size == 0 for array in arrays.values())
    with mx.util.np_array(False), mx.util.np_shape(numpy_shapes):
        mx.nd.save(str(file), {name: legacy(array) for name, array in arrays.items()})


def parameter_bytes(arrays: Mapping[str, Any], numpy_shapes: bool = False) -> bytes:
    """Content of a parameter file of `save_arrays`, checked: MXNet does not report a full disk (T59)."""
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        file = Path(folder) / "net.params"
        save_arrays(file, arrays, numpy_shapes)
        describe_file(file)
        return file.read_bytes()
