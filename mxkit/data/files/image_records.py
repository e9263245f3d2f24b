"""RecordIO files of images: datasets that read each record on access."""

from functools import cached_property
import operator
from pathlib import Path
import struct
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.data.files.decoding import decode
from mxkit.data.pixels import ImageDataset
from mxkit.data.splits import Splits, three_parts, warn_of_missing_classes
from mxkit.errors import DataError
import mxnet as mx
import numpy as np

_MAGIC = 0xCED7230A
_PARTS = (("train", "train"), ("valid", "val"), ("valid", "valid"), ("valid", "validation"), ("test", "test"))


class _Identity(Dict[int, int]):
    def __missing__(self, key: int) -> int:
        return key


class _Reader(mx.recordio.MXRecordIO):  # type: ignore[misc]
    """MXNet's indexed reader without an index: `seek` takes the byte at which a record begins."""

    idx = _Identity()
    seek = mx.recordio.MXIndexedRecordIO.seek


class ImageRecords(ImageDataset):
    """Images and labels of a `.rec` file, read on access: `part[i]` is `(image, label)`, as of `ImageFiles`.

    Threads may read at the same time; gluon's `ImageRecordDataset` has one reading position for all of them.

    Args:
        path: The `.rec` file. Its `.idx` file is used if it is in the same folder; else the file is scanned.
        classes: Name of each label; by default the numbers.
        channels: 3 for RGB, 1 for grey.
        rows: Indices of the records to use; by default all.
        reduce_to: Decode JPEGs at 1/2, 1/4 or 1/8 of their size, as long as the shorter side keeps this many pixels.

    Attributes:
        labels: Label of each record, read once without decoding an image.
        classes: Name of each label.

    Raises:
        DataError: The file is not RecordIO or is truncated, or the index is of another file.
    """

    gives_pixels = True  # a subclass may give something else

    def __init__(
        self,
        path: Union[str, Path],
        *,
        classes: Optional[Sequence[str]] = None,
        channels: int = 3,
        rows: Optional["np.ndarray"] = None,
        reduce_to: Optional[int] = None,
    ) -> None:
        self.path = Path(path).expanduser()
        self.channels = channels
        self.reduce_to = None if reduce_to is None else whole_number(reduce_to, "reduce_to")
        offsets = _offsets(self.path)
        self._offsets = offsets if rows is None else offsets[rows]
        self._local = threading.local()
        if classes is not None:
            self.classes = list(classes)

    def __len__(self) -> int:
        """Number of records."""
        return len(self._offsets)

    def __getitem__(self, index: int) -> Tuple["np.ndarray", Any]:
        """`(image, label)`: the label is int32 if it is a single whole number, else float32 or an array of float32.

        Raises:
            DataError: The record is damaged; the text has its index.
        """
        label, content, where = self._read(operator.index(index))
        return decode(content, where, self.channels, self.reduce_to), label

    @cached_property
    def labels(self) -> "np.ndarray":
        return np.array([self._read(index)[0] for index in range(len(self))])

    @cached_property
    def classes(self) -> List[str]:
        whole = len(self) and self.labels.dtype == np.int32 and self.labels.ndim == 1
        return [str(number) for number in range(int(self.labels.max()) + 1)] if whole else []

    def _read(self, index: int) -> Tuple[Any, bytes, str]:
        """Label and content of a record, and its name for messages."""
        where = f"{self.path}, record {index}"
        # each thread has its own reader, because a reader has one position; `seek` reopens it in a forked process
        if not hasattr(self._local, "reader"):
            self._local.reader = _Reader(str(self.path), "r")
        try:
            self._local.reader.seek(int(self._offsets[index]))
            header, content = mx.recordio.unpack(self._local.reader.read())
        except (mx.MXNetError, struct.error, TypeError, ValueError) as error:
            raise DataError(f"{where}: it is damaged: {str(error).splitlines()[-1]}") from error
        label: Any = np.asarray(header.label, dtype=np.float32)
        if label.size == 1:
            number = label.reshape(())[()]
            label = np.int32(number) if float(number).is_integer() else number
        return label, content, where

    def __getstate__(self) -> Dict[str, Any]:
        """Everything but the open files, for workers that are spawned."""
        return {key: value for key, value in vars(self).items() if key != "_local"}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state, _local=threading.local())

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
    reduce_to: Optional[int] = None,
) -> Splits:
    """Read images from RecordIO files, as MXNet's `im2rec` writes them.

    Args:
        root: A `.rec` file, which is split into all three parts; or a folder with `train.rec` and optionally `val.rec`
            (or `valid.rec`) and `test.rec`. As for `image_folder`, a missing validation part is split off the training
            part, and a missing test part is empty.
        classes: Name of each label; by default the numbers.
        valid: Fraction or number of the records for validation, in proportion from each class.
        test: Fraction or number of the records for testing, likewise.
        channels: 3 for RGB, 1 for grey.
        seed: Seed of the random split.
        reduce_to: As for `image_folder`.

    Returns:
        Parts of type `ImageRecords`.

    Raises:
        DataError: A file is missing or damaged.
    """
    root = Path(root).expanduser()
    options: Dict[str, Any] = {"channels": channels, "reduce_to": reduce_to}
    if root.is_file():
        return _split(root, classes, valid, test, seed, options)
    files = {part: root / f"{name}.rec" for part, name in _PARTS if (root / f"{name}.rec").is_file()}
    if "train" not in files:
        raise DataError(f"image_records: expected a .rec file, or a folder with train.rec; received {root}")
    splits = _split(files.pop("train"), classes, 0 if "valid" in files else valid, 0, seed, options)
    known = splits.classes or None
    return splits._replace(**{part: ImageRecords(path, classes=known, **options) for part, path in files.items()})


def _split(
    path: Path, classes: Optional[Sequence[str]], valid: float, test: float, seed: int, options: Dict[str, Any]
) -> Splits:
    whole = ImageRecords(path, classes=classes, **options)
    by = whole.labels if (valid or test) and whole.labels.ndim == 1 and whole.labels.dtype == np.int32 else None
    parts = three_parts(by, len(whole), valid, test, seed)
    if by is not None:
        way = "Raise valid and test, or add images"
        warn_of_missing_classes(str(path), [by[rows] for rows in parts], whole.classes, way)
    train, validated, tested = (ImageRecords(path, classes=whole.classes, rows=rows, **options) for rows in parts)
    return Splits(train, validated, tested, whole.classes)


def _offsets(path: Path) -> "np.ndarray":
    """Byte at which each record begins, int64 of shape (N,), checked against the file."""
    index = path.with_suffix(".idx")
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"{path}: the file is empty")
    with path.open("rb") as file:
        if not index.is_file():
            offsets, offset = [], 0
            while offset < size:
                offsets.append(offset)
                offset = _end_of(file, offset, size, path)
            return np.array(offsets, dtype=np.int64)
        indexed = _read_index(index, size)
        # checks only the first and the last record, so that a file of millions of records opens at once
        _end_of(file, int(indexed.min()), size, path)
        if _end_of(file, int(indexed.max()), size, path) != size:
            raise DataError(
                f"{path}: it does not end where the last record of {index.name} ends: one of them is of another file, "
                "or was cut off. Remove the index, and the records are found without it"
            )
        return indexed


def _read_index(index: Path, size: int) -> "np.ndarray":
    try:
        lines = index.read_text(encoding="ascii").split("\n")
        offsets = np.array([int(line.split("\t")[1]) for line in lines if line.strip()], dtype=np.int64)
    except (ValueError, IndexError) as error:
        raise DataError(f"{index}: expected lines of a key, a tab and a place in the file ({error})") from error
    if not len(offsets) or offsets.min() < 0 or offsets.max() >= size:
        raise DataError(
            f"{index}: it names records up to byte {offsets.max() if len(offsets) else 0}; the .rec file has {size} "
            "bytes. One of them was cut off, or is of another file"
        )
    return offsets


def _end_of(file: Any, offset: int, size: int, path: Path) -> int:
    """Byte after a record, which has several parts if its content contains the magic number."""
    more = True
    while more:
        file.seek(offset)
        head = file.read(8)
        magic, length = struct.unpack("<II", head) if len(head) == 8 else (0, 0)
        if magic != _MAGIC:
            raise DataError(
                f"{path}: no record begins at byte {offset}; the file is not a RecordIO file, or it was cut off"
            )
        more = length >> 29 in (1, 2)
        offset += 8 + (((length & (1 << 29) - 1) + 3) & ~3)
        if offset > size:
            raise DataError(f"{path}: a record ends at byte {offset}, but the file has {size} bytes: it was cut off")
    return offset
