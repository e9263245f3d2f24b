"""Reads the file formats of published datasets: IDX, and CIFAR's binary and python versions."""

import gzip
import io
import math
from pathlib import Path
import pickle
import pickletools
import tarfile
from typing import Any, BinaryIO, Dict, Iterable, List, NamedTuple, Tuple
import zlib

from mxkit.errors import DataError
import numpy as np

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# Deflate compresses at most 1032-fold.
_MOST_EXPANSION = 1032
_PIXELS = 3 * 32 * 32
_LARGEST_MEMBER = 1 << 28


class CifarFiles(NamedTuple):
    """Files of CIFAR-10 or CIFAR-100; each pair is of the binary version and of the python version.

    Attributes:
        archives: Names of the archives.
        folders: Folders that the archives unpack to.
        train: Names of the training files.
        test: Names of the test files.
        labels: Keys of the labels in a python file, in the order of a binary record's first bytes.
        classes: Number of classes of each kind of label.
    """

    archives: Tuple[str, str]
    folders: Tuple[str, str]
    train: Tuple[List[str], List[str]]
    test: Tuple[List[str], List[str]]
    labels: List[str]
    classes: List[int]


CIFAR10_FILES = CifarFiles(
    ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
    ("cifar-10-batches-bin", "cifar-10-batches-py"),
    ([f"data_batch_{number}.bin" for number in range(1, 6)], [f"data_batch_{number}" for number in range(1, 6)]),
    (["test_batch.bin"], ["test_batch"]),
    ["labels"],
    [10],
)
CIFAR100_FILES = CifarFiles(
    ("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"),
    ("cifar-100-binary", "cifar-100-python"),
    (["train.bin"], ["train"]),
    (["test.bin"], ["test"]),
    ["coarse_labels", "fine_labels"],
    [20, 100],
)


def read_idx(path: Path) -> "np.ndarray":
    """Read a file of MNIST's format, IDX, plain or gzipped.

    Args:
        path: The file; its first bytes decide whether it is gzipped.

    Returns:
        An array of the header's dtype and shape, in the machine's byte order.

    Raises:
        DataError: The header is not IDX, or the file is longer or shorter than the header says.

    Source:
        http://yann.lecun.com/exdb/mnist
    """
    limit = path.stat().st_size
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        if not zipped:
            return _idx_from(plain, path, limit)
        try:
            with gzip.GzipFile(fileobj=plain) as unpacked:
                return _idx_from(unpacked, path, limit * _MOST_EXPANSION)
        except (EOFError, zlib.error, OSError) as error:
            raise DataError(f"{path}: the gzip file is damaged or was cut off ({error}). Fetch it again") from error


def _idx_from(file: Any, path: Path, limit: int) -> "np.ndarray":
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES or not head[3]:
        raise DataError(
            f"{path}: expected an IDX file, which begins with 00 00, a type and a number of dimensions; "
            f"received {head.hex(' ') if head else 'an empty file'}"
        )
    dtype = np.dtype(_IDX_TYPES[head[2]])
    shape = tuple(np.frombuffer(_exactly(file, 4 * head[3], path), ">u4").tolist())
    size = math.prod(shape) * dtype.itemsize
    if size > limit:
        raise DataError(f"{path}: the header says {shape} of {dtype.name}, {size} bytes; the file is smaller")
    content = _exactly(file, size, path)
    if file.read(1):
        raise DataError(f"{path}: the file is longer than the {size} bytes of {shape} in its header")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _exactly(file: BinaryIO, size: int, path: Path) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise DataError(f"{path}: the file ends early: expected {size} more bytes, received {len(content)}")
    return content


def read_cifar(place: Path, names: Iterable[str], files: CifarFiles) -> Tuple["np.ndarray", "np.ndarray"]:
    """Read files of CIFAR-10 or CIFAR-100, of the binary or the python version.

    Nothing is unpacked to the disk. Only lists, numbers, bytes and arrays of uint8 are unpickled; a pickle that needs
    anything else is refused before it gets it.

    Args:
        place: A folder with the files, or their archive (`.tar.gz`).
        names: Names of the files, in order; binary files end with `.bin`.
        files: `CIFAR10_FILES` or `CIFAR100_FILES`.

    Returns:
        Images, uint8 of shape (N, 3, 32, 32), and labels, int32 of shape (N, kinds of labels).

    Raises:
        DataError: A file is missing, damaged, or not of this dataset.
    """
    names = list(names)
    contents = _members(place, names)
    missing = [name for name in names if name not in contents]
    if missing:
        raise DataError(f"{place}: it does not have the file(s) {', '.join(missing)}")
    parts = [
        (_binary_batch if name.endswith(".bin") else _python_batch)(contents[name], files, f"{place}: {name}")
        for name in names
    ]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _members(place: Path, names: List[str]) -> Dict[str, bytes]:
    """Content of files by name; the folders inside an archive are ignored."""
    if place.is_dir():
        return {name: (place / name).read_bytes() for name in names if (place / name).is_file()}
    contents: Dict[str, bytes] = {}
    try:
        with tarfile.open(str(place), "r:*") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name not in names or not member.isfile():
                    continue
                if name in contents or member.size > _LARGEST_MEMBER:
                    raise DataError(f"{place}: {member.name} is there twice, or too large ({member.size} bytes)")
                content = archive.extractfile(member)
                contents[name] = content.read() if content else b""
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{place}: the archive is damaged or was cut off ({error}). Fetch it again") from error
    return contents


def _binary_batch(content: bytes, files: CifarFiles, where: str) -> Tuple["np.ndarray", "np.ndarray"]:
    kinds = len(files.labels)
    count, rest = divmod(len(content), kinds + _PIXELS)
    if rest or not count:
        raise DataError(f"{where}: expected records of {kinds + _PIXELS} bytes; received {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(count, kinds + _PIXELS)
    return _checked(records[:, kinds:], records[:, :kinds], files, where)


def _python_batch(content: bytes, files: CifarFiles, where: str) -> Tuple["np.ndarray", "np.ndarray"]:
    try:
        _check_memo(content)
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a crafted pickle can make the unpickler raise anything
        raise DataError(f"{where}: it is no pickle of lists, numbers and arrays of uint8 ({error})") from error
    if not isinstance(batch, dict):
        raise DataError(f"{where}: expected a dictionary; received {type(batch).__name__}")
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    data = batch.get("data")
    columns: List[Any] = [batch.get(key) for key in files.labels]
    whole = all(isinstance(one, list) and all(type(label) is int for label in one) for one in columns)
    if not isinstance(data, _Pickled) or not whole:
        raise DataError(
            f"{where}: expected data and lists of numbers {files.labels}; received {sorted(map(str, batch))}"
        )
    pixels = _uint8_bytes(data, where)
    lengths = {len(column) for column in columns} | {len(pixels) // _PIXELS}
    if len(lengths) != 1 or len(pixels) % _PIXELS:
        raise DataError(f"{where}: expected as many labels as images of {_PIXELS} bytes; received {sorted(lengths)}")
    x = np.frombuffer(pixels, np.uint8).reshape(-1, _PIXELS)
    return _checked(x, np.array(columns, dtype=np.int64).T, files, where)


def _checked(x: "np.ndarray", y: "np.ndarray", files: CifarFiles, where: str) -> Tuple["np.ndarray", "np.ndarray"]:
    for key, classes, column in zip(files.labels, files.classes, y.T):
        if len(column) and not 0 <= column.min() <= column.max() < classes:
            raise DataError(
                f"{where}: {key} from {column.min()} to {column.max()}; expected 0 to {classes - 1}. "
                "Is it the other CIFAR, or a damaged file?"
            )
    return np.ascontiguousarray(x).reshape(-1, 3, 32, 32), y.astype(np.int32)


def _check_memo(content: bytes) -> None:
    """Refuse memo numbers above any real pickle's: Python would allocate memory up to the number, in GB."""
    for count, (operation, argument, place) in enumerate(pickletools.genops(content)):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= count:
            raise pickle.UnpicklingError(f"it remembers an object as number {argument} at byte {place}")


class _Pickled:
    """Stand-in for a pickled array or dtype: stores what the pickle says of it, and runs none of NumPy's code."""

    state: Any = None

    def __init__(self, arguments: Tuple[Any, ...]) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _uint8_bytes(array: _Pickled, where: str) -> bytes:
    if not (isinstance(array.state, tuple) and len(array.state) == 5):
        raise DataError(f"{where}: its array has no content")
    _, shape, dtype, by_column, raw = array.state
    uint8 = isinstance(dtype, _Pickled) and dtype.arguments[:1] in (("u1",), (b"u1",))
    if not uint8 or by_column or not isinstance(raw, bytes) or math.prod(shape) != len(raw):
        raise DataError(f"{where}: expected an array of uint8 in C order; received shape {shape}")
    return raw


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles only what an array of uint8 needs, by stand-ins."""

    def find_class(self, module: str, name: str) -> Any:
        """Create each stand-in at its call, so that a pickle cannot change one that other pickles use."""

        def stand_in(*arguments: Any) -> _Pickled:
            return _Pickled(arguments)

        known = {
            ("numpy.core.multiarray", "_reconstruct"): stand_in,
            ("numpy._core.multiarray", "_reconstruct"): stand_in,
            ("numpy", "ndarray"): object(),
            ("numpy", "dtype"): stand_in,
            ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which an array of uint8 does not need")
        return known[module, name]
