"""Reads the file formats of published datasets: IDX, and CIFAR's binary version."""

import gzip
import json
import math
from pathlib import Path
import tarfile
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple
import zlib

from mxkit.errors import DataError
import numpy as np

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PIXELS = 3 * 32 * 32


class CifarFiles(NamedTuple):
    """Files of CIFAR-10 or CIFAR-100, binary version.

    Attributes:
        archive: Name of the archive.
        folder: Folder that it unpacks to.
        train: Names of the training files.
        test: Names of the test files.
        labels: The labels in the first bytes of each record, and their numbers of classes.
    """

    archive: str
    folder: str
    train: List[str]
    test: List[str]
    labels: Dict[str, int]


# Base URLs, sizes and digests of the files of each dataset, the digests of MXNet's copies, and the names of classes.
PUBLISHED: Dict[str, Any] = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
CIFAR10_FILES, CIFAR100_FILES = (CifarFiles(**PUBLISHED["layouts"][name]) for name in ("cifar10", "cifar100"))


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
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, OSError) as error:
            raise DataError(f"{path}: the gzip file is damaged or was cut off ({error}). Fetch it again") from error
    start = 4 + 4 * content[3] if len(content) > 3 else 4
    if content[:2] != b"\0\0" or len(content) < start or start == 4 or content[2] not in _IDX_TYPES:
        begin = content[:4].hex(" ") if content else "an empty file"
        raise DataError(f"{path}: expected an IDX file, which begins with 00 00 and a type; received {begin}")
    dtype = np.dtype(_IDX_TYPES[content[2]])
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    size = start + math.prod(shape) * dtype.itemsize
    if len(content) != size:
        raise DataError(f"{path}: its header says {shape} of {dtype.name}, {size} bytes; it has {len(content)} bytes")
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def read_cifar(place: Path, names: Sequence[str], files: CifarFiles) -> Tuple["np.ndarray", "np.ndarray"]:
    """Read files of CIFAR-10 or CIFAR-100; nothing is unpacked to the disk.

    Args:
        place: A folder with the files, or their archive (`.tar.gz`).
        names: Names of the files, in order.
        files: `CIFAR10_FILES` or `CIFAR100_FILES`.

    Returns:
        Images, uint8 of shape (N, 3, 32, 32), and labels, int32 of shape (N, kinds of labels).

    Raises:
        DataError: A file is missing, damaged, or not of this dataset.
    """
    contents = _members(place, names)
    missing = [name for name in names if name not in contents]
    if missing:
        raise DataError(f"{place}: it does not have the file(s) {', '.join(missing)}")
    parts = [_batch(contents[name], files, f"{place}: {name}") for name in names]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _members(place: Path, names: Sequence[str]) -> Dict[str, bytes]:
    """Content of files by name; the folders inside an archive are ignored."""
    if place.is_dir():
        return {name: (place / name).read_bytes() for name in names if (place / name).is_file()}
    contents: Dict[str, bytes] = {}
    try:
        with tarfile.open(str(place), "r:*") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                content = archive.extractfile(member) if name in names and member.isfile() else None
                if content:
                    contents[name] = content.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{place}: the archive is damaged or was cut off ({error}). Fetch it again") from error
    return contents


def _batch(content: bytes, files: CifarFiles, where: str) -> Tuple["np.ndarray", "np.ndarray"]:
    kinds = len(files.labels)
    count, rest = divmod(len(content), kinds + _PIXELS)
    if rest or not count:
        raise DataError(f"{where}: expected records of {kinds + _PIXELS} bytes; received {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(count, kinds + _PIXELS)
    for (key, classes), column in zip(files.labels.items(), records.T):
        if column.max() >= classes:
            most = f"{key} up to {column.max()}; expected 0 to {classes - 1}"
            raise DataError(f"{where}: {most}. Is it the other CIFAR, or a damaged file?")
    x = np.ascontiguousarray(records[:, kinds:]).reshape(-1, 3, 32, 32)
    return x, records[:, :kinds].astype(np.int32)
