"""RecordIO files of images: parts that read each record when it is asked for."""

import operator
import os
from pathlib import Path
import struct
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from mxkit.data.files.decoding import decode
from mxkit.data.files.image_files import ImageDataset
from mxkit.data.splits import Splits, three_parts, warn_of_missing_classes
from mxkit.errors import DataError
import mxnet as mx
import numpy as np

_MAGIC = 0xCED7230A
_PARTS = (("train", "train"), ("valid", "val"), ("valid", "valid"), ("valid", "validation"), ("test", "test"))


class _ByPlace(Dict[int, int]):
    """An index in which the key of a record is its place."""

    def __missing__(self, key: int) -> int:
        return key


class _Reader(mx.recordio.MXRecordIO):  # type: ignore[misc]
    """MXNet's reader at places that are known, so that threads share one index."""

    idx = _ByPlace()
    seek = mx.recordio.MXIndexedRecordIO.seek


class ImageRecords(ImageDataset):
    """Images and labels of a `.rec` file: `part[i]` is `(image, label)`, as of `ImageFiles`.

    Unlike gluon's `ImageRecordDataset`, which moves one reading position, it can be read by any number of threads.

    Args:
        path: The `.rec` file. Its `.idx` file is used where it lies beside; else the records are looked for.
        classes: Name of each label; by default the numbers.
        channels: 3 for RGB, 1 for grey.
        rows: Which records; by default all.

    Raises:
        DataError: The file is no RecordIO file, was cut off, or its index is of another file.
    """

    def __init__(
        self,
        path: Union[str, Path],
        *,
        classes: Optional[Sequence[str]] = None,
        channels: int = 3,
        rows: Optional["np.ndarray"] = None,
    ) -> None:
        self.path = Path(path).expanduser()
        self.channels = channels
        places = _places(self.path)
        self._places = places if rows is None else places[rows]
        self._labels: Optional[np.ndarray] = None
        self._classes = None if classes is None else list(classes)
        self._readers = threading.local()

    def __len__(self) -> int:
        """Number of records."""
        return len(self._places)

    def __getitem__(self, index: int) -> Tuple["np.ndarray", Any]:
        """`(image, label)`: a label is int32 where it is one whole number, else float32, or an array of such.

        Raises:
            DataError: The record is damaged; the text tells which.
        """
        index = operator.index(index)
        where = f"{self.path}, record {index}"
        header, content = self._unpacked(int(self._places[index]), where)
        return decode(content, where, self.channels), _label(header.label)

    @property
    def labels(self) -> "np.ndarray":
        """Label of each record, read once without decoding an image."""
        if self._labels is None:
            found = [
                _label(self._unpacked(int(place), f"{self.path}, record {row}")[0].label)
                for row, place in enumerate(self._places)
            ]
            self._labels = np.array(found)
        return self._labels

    @property
    def classes(self) -> List[str]:
        """Name of each label."""
        if self._classes is None:
            whole = len(self) and self.labels.dtype == np.int32 and self.labels.ndim == 1
            self._classes = [str(number) for number in range(int(self.labels.max()) + 1)] if whole else []
        return self._classes

    def _unpacked(self, place: int, where: str) -> Tuple[Any, bytes]:
        # a reader has one position, so each thread has its own; `seek` opens it anew in a forked process
        if not hasattr(self._readers, "one"):
            self._readers.one = _Reader(str(self.path), "r")
        try:
            self._readers.one.seek(place)
            header, content = mx.recordio.unpack(self._readers.one.read())
        except (mx.MXNetError, struct.error, TypeError, ValueError) as error:
            raise DataError(f"{where}: it is damaged: {str(error).splitlines()[-1]}") from error
        return header, content

    def __getstate__(self) -> Dict[str, Any]:
        """Everything but the open files, for workers that are spawned."""
        return {key: value for key, value in vars(self).items() if key != "_readers"}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state, _readers=threading.local())

    def __repr__(self) -> str:
        return f"ImageRecords({len(self)} records, {str(self.path)!r})"


def image_records(
    root: Union[str, Path],
    *,
    classes: Optional[Sequence[str]] = None,
    valid: Union[int, float] = 0.1,
    test: Union[int, float] = 0.1,
    channels: int = 3,
    seed: int = 0,
) -> Splits:
    """Images in RecordIO files, as MXNet's `im2rec` writes them.

    Args:
        root: A folder with `train.rec`, and `val.rec` (or `valid.rec`) and `test.rec` where there are such, or one
            `.rec` file, of which all three parts are cut. As for `image_folder`, a missing validation part is cut
            off the training part, and a missing test part is empty.
        classes: Name of each label; by default the numbers.
        valid: Share or number of the records that are cut off for validation, of each class its share.
        test: The same for testing.
        channels: 3 for RGB, 1 for grey.
        seed: Another whole number is another cut.

    Returns:
        Parts of type `ImageRecords`.

    Raises:
        DataError: There is no such file, or one is damaged.
    """
    root = Path(root).expanduser()
    if root.is_file():
        return _cut(root, classes, valid, test, channels, seed)
    files = {part: root / f"{name}.rec" for part, name in _PARTS if (root / f"{name}.rec").is_file()}
    if "train" not in files:
        raise DataError(f"image_records: expected a .rec file, or a folder with train.rec; received {root}")
    splits = _cut(files["train"], classes, 0 if "valid" in files else valid, 0, channels, seed)
    for part in ("valid", "test"):
        if part in files:
            read = ImageRecords(files[part], classes=splits.classes or None, channels=channels)
            splits = splits._replace(**{part: read})
    return splits


def _cut(path: Path, classes: Optional[Sequence[str]], valid: float, test: float, channels: int, seed: int) -> Splits:
    whole = ImageRecords(path, classes=classes, channels=channels)
    by = whole.labels if (valid or test) and whole.labels.ndim == 1 and whole.labels.dtype == np.int32 else None
    parts = three_parts(by, len(whole), valid, test, seed)
    if by is not None:
        way = "Larger shares for valid and test, or more images, give it some"
        warn_of_missing_classes(str(path), [by[rows] for rows in parts], whole.classes, way)
    train, validated, tested = (
        ImageRecords(path, classes=whole.classes, channels=channels, rows=rows) for rows in parts
    )
    return Splits(train, validated, tested, whole.classes)


def _label(label: Any) -> Any:
    found = np.asarray(label, dtype=np.float32)
    if found.size != 1:
        return found
    value = found.reshape(())[()]
    return np.int32(value) if float(value).is_integer() else value


def _places(path: Path) -> "np.ndarray":
    """Where each record begins, int64 of shape (N,), checked against the file."""
    index = path.with_suffix(".idx")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise DataError(f"{path}: the file is empty")
        if not index.is_file():
            return np.array(_walked(file, size, path), dtype=np.int64)
        places = _read_index(index, size)
        # only the ends are looked at: a file of millions of records opens at once
        if _end_of(file, int(places.min()), size, path) > size or _end_of(file, int(places.max()), size, path) != size:
            raise DataError(
                f"{path}: it does not end where the last record of {index.name} ends: one of both is of another "
                "file, or was cut off. Without the index the records are looked for"
            )
        return places


def _walked(file: Any, size: int, path: Path) -> List[int]:
    places, place = [], 0
    while place < size:
        places.append(place)
        place = _end_of(file, place, size, path)
    return places


def _read_index(index: Path, size: int) -> "np.ndarray":
    try:
        lines = index.read_text(encoding="ascii").split("\n")
        places = np.array([int(line.split("\t")[1]) for line in lines if line.strip()], dtype=np.int64)
    except (ValueError, IndexError) as error:
        raise DataError(f"{index}: expected lines of a key, a tab and a place in the file ({error})") from error
    if not len(places) or places.min() < 0 or places.max() >= size:
        raise DataError(
            f"{index}: it names records up to byte {places.max() if len(places) else 0}; the .rec file has {size} "
            "bytes. One of both was cut off, or is of another file"
        )
    return places


def _end_of(file: Any, place: int, size: int, path: Path) -> int:
    """Where a record ends: it has parts where its content has the magic number in it."""
    more = True
    while more:
        file.seek(place)
        head = file.read(8)
        magic, length = struct.unpack("<II", head) if len(head) == 8 else (0, 0)
        if magic != _MAGIC:
            raise DataError(f"{path}: no record begins at byte {place}; it is no RecordIO file, or was cut off")
        more = length >> 29 in (1, 2)
        place += 8 + (((length & (1 << 29) - 1) + 3) & ~3)
        if place > size:
            raise DataError(f"{path}: a record ends at byte {place}, but the file has {size} bytes: it was cut off")
    return place
