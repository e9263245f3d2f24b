"""RecordIO files of images: datasets that read each record on access."""

from functools import cached_property
import operator
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.data.image_bytes import (
    decode,
    end_of,
    file_size,
    is_faces_header,
    read_index,
    read_record,
    record_offsets,
    unpack,
)
from mxkit.data.pixels import ImageDataset
from mxkit.data.splits import Splits, three_parts, warn_of_missing_classes
from mxkit.errors import DataError
import numpy as np

_PARTS = (("train", "train"), ("valid", "val"), ("valid", "valid"), ("valid", "validation"), ("test", "test"))


class ImageRecords(ImageDataset):
    """Images and labels of a `.rec` file, read on access: `part[i]` is `(image, label)`, as of `ImageFiles`.

    Of a file with insightface's header, which names ranges of ids, only images are records; the label is the person.
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
        self._size = file_size(self.path)
        offsets, self._faces = _faces(self.path, self._size, _offsets(self.path, self._size))
        self._offsets = offsets if rows is None else offsets[rows]
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
        # opened for each record: threads and forked processes would share the position of one open file
        with self.path.open("rb") as file:
            label, content, where = self._read(file, operator.index(index))
        return decode(content, where, self.channels, self.reduce_to), label

    @cached_property
    def labels(self) -> "np.ndarray":
        with self.path.open("rb") as file:
            return np.array([self._read(file, index)[0] for index in range(len(self))])

    @cached_property
    def classes(self) -> List[str]:
        whole = len(self) and self.labels.dtype == np.int32 and self.labels.ndim == 1
        count = int(self.labels.max()) + 1 if whole else 0
        # a damaged label may be any number: names of a billion classes would fill the memory
        return [str(number) for number in range(count)] if count <= 2**20 + len(self) else []

    def _read(self, file: BinaryIO, index: int) -> Tuple[Any, bytes, str]:
        """Label and content of a record, and its name for messages."""
        where = f"{self.path}, record {index}"
        try:
            record = unpack(read_record(file, int(self._offsets[index]), self._size, self.path)[0])
        except ValueError as error:
            raise DataError(f"{where}: it is damaged: {error}") from error
        label: Any = record.labels[:1] if self._faces else record.labels  # the person, before what else is known
        if label.size == 1:
            number = label.reshape(())[()]
            label = np.int32(number) if float(number).is_integer() and abs(number) < 2**31 else number
        return label, record.content, where

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


def _offsets(path: Path, size: int) -> "np.ndarray":
    """Byte at which each record begins, int64 of shape (N,), checked against the file."""
    index = path.with_suffix(".idx")
    if not index.is_file():
        return record_offsets(path)
    indexed = read_index(index, size)
    with path.open("rb") as file:
        # checks only the first and the last record, so that a file of millions of records opens at once
        end_of(file, int(indexed.min()), size, path)
        if end_of(file, int(indexed.max()), size, path) != size:
            raise DataError(
                f"{path}: it does not end where the last record of {index.name} ends: one of them is of another file, "
                "or was cut off. Remove the index, and the records are found without it"
            )
    return indexed


def _faces(path: Path, size: int, offsets: "np.ndarray") -> Tuple["np.ndarray", bool]:
    """Places of the images, and whether insightface's header says which they are: the ids before the first range."""
    for at in {0, len(offsets) - 1}:
        try:
            with path.open("rb") as file:
                record = unpack(read_record(file, int(offsets[at]), size, path)[0])
        except (DataError, ValueError):
            continue  # told where it is read
        if is_faces_header(record) and 1 < record.labels[0] <= len(offsets):
            return np.delete(offsets, at)[: int(record.labels[0]) - 1], True
    return offsets, False
