"""Images in folders and in RecordIO files: datasets that read each image on access; ImageNet in its usual layouts."""

import functools
from functools import cached_property
import hashlib
import operator
import os
from pathlib import Path
import re
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.arguments import whole_number
from mxkit.data.augment import IMAGENET_MEAN, IMAGENET_STD
from mxkit.data.download import dataset_folder
from mxkit.data.image_bytes import decode, file_size, read_record, record_offsets, unpack
from mxkit.data.pixels import ImageDataset
from mxkit.data.splits import Splits, three_parts, warn_of_missing_classes
from mxkit.errors import DataError, TrapWarning
import numpy as np

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
# Names that operating systems and archivers leave in folders.
_RUBBISH = {"__macosx", "thumbs.db", "desktop.ini", "@eadir"}
# Names of the folders of parts.
FOLDERS = {"train": ("train", "training"), "valid": ("val", "valid", "validation"), "test": ("test", "testing")}


class ImageFolder(NamedTuple):
    """Images below the folders of classes, by paths relative to `root`."""

    root: Path
    names: List[str]
    labels: List[int]
    classes: List[str]


class ImageFiles(ImageDataset):
    """Image files and their labels, read on access: `part[i]` is `(image, label)`.

    The image is uint8 RGB, NumPy of shape (height, width, channels); `mxkit.data.Augment` takes it as it is. Functions
    of gluon's `transform` and `transform_first` get an NDArray, under `npx.set_np()` an array of `mx.np`, which gluon's
    transforms need. Threads and processes may read at the same time.

    Args:
        root: Folder that `names` are relative to.
        names: Paths of the files.
        labels: A whole number for each file.
        classes: Name of each label.
        channels: 3 for RGB, 1 for grey.
        reduce_to: Decode JPEGs at 1/2, 1/4 or 1/8 of their size, as long as the shorter side keeps this many pixels.

    Attributes:
        labels: int32 of shape (N,); reading them reads no image.
        classes: Name of each label.

    Raises:
        DataError: The numbers of labels and names differ, or a label has no class.
    """

    gives_pixels = True  # a subclass may give something else

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        labels: Sequence[int],
        classes: Sequence[str],
        *,
        channels: int = 3,
        reduce_to: Optional[int] = None,
    ) -> None:
        self.root = Path(root)
        # one array of bytes: forked workers would copy a list of a million strings page by page
        self._names = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)
        self.labels: np.ndarray = np.array(labels, dtype=np.int32).reshape(-1)
        self.classes = list(classes)
        self.channels = channels
        self.reduce_to = None if reduce_to is None else whole_number(reduce_to, "reduce_to")
        if len(self.labels) != len(self._names):
            raise DataError(f"{root}: {len(self._names)} images and {len(self.labels)} labels; they must be equal")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise DataError(f"{root}: labels {self.labels.min()} to {self.labels.max()} of {len(self.classes)} classes")

    def __len__(self) -> int:
        """Number of images."""
        return len(self._names)

    def path(self, index: int) -> Path:
        """Path of an image."""
        return self.root / os.fsdecode(bytes(self._names[index]))

    def __getitem__(self, index: int) -> Tuple["np.ndarray", "np.int32"]:
        """`(image, label)` of one sample.

        Raises:
            DataError: The file cannot be read as an image; the text has its path and the reason.
        """
        index = operator.index(index)
        return read_image(self.path(index), self.channels, self.reduce_to), self.labels[index]

    def __repr__(self) -> str:
        return f"ImageFiles({len(self)} images, {len(self.classes)} classes, {str(self.root)!r})"


def read_image(path: Path, channels: int = 3, reduce_to: Optional[int] = None) -> "np.ndarray":
    """Read and decode an image file.

    Raises:
        DataError: The file cannot be read as an image; the text has its path and the reason.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the image cannot be read: {error.strerror}") from error
    return decode(content, str(path), channels, reduce_to)


def image_folder(
    root: Union[str, Path],
    *,
    valid: float = 0.1,
    test: float = 0.1,
    channels: int = 3,
    seed: int = 0,
    reduce_to: Optional[int] = None,
) -> Splits:
    """Read images from one folder per class, with or without folders of parts.

    With `root/train/cat/1.jpg`, and `val` (or `valid`, `validation`) and `test` beside `train`, the folders are the
    parts; a missing validation part is split off the training part, and a missing test part is empty. With
    `root/cat/1.jpg` all three parts are split. A hash of its path below the class folders decides the part of a file,
    so new files do not move others. Classes are numbered in the order of their names; hidden files are ignored.

    Args:
        root: The folder.
        valid: Fraction of the files for validation, if there is no folder of it; not a number of files.
        test: Fraction of the files for testing, if there are no folders of parts.
        channels: 3 for RGB, 1 for grey.
        seed: Seed of the split.
        reduce_to: Decode JPEGs at 1/2, 1/4 or 1/8 of their size, as long as the shorter side keeps this many pixels:
            256 for a centre crop of 224. Large photos are read faster, and their pixels differ. None decodes them
            whole.

    Returns:
        Parts of type `ImageFiles`. Mean and std are None; `channel_statistics` computes those of some images.

    Raises:
        ValueError: The fractions leave no training data.
        DataError: The folder has no image, a class has no image, or a part has a class that the training part lacks.

    Warns:
        TrapWarning: Some files are not images; a test folder has no class folders; or a part lacks a class of the
            training part.
    """
    root = Path(root).expanduser()
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ValueError(f"image_folder: valid, test: expected shares, below 1 together; received {valid}, {test}")
    folders = _part_folders(root)
    images = scan(folders.get("train", root))
    share = hash_shares(images.names, seed)
    if "train" in folders:
        valid, test = 0 if "valid" in folders else valid, 0
    masks = [share >= valid + test, (share >= test) & (share < valid + test), share < test]
    parts = [_only(images, mask) for mask in masks]
    for position, name in ((1, "valid"), (2, "test")):
        if name in folders and (name == "valid" or _has_classes(folders[name])):
            parts[position] = scan(folders[name], images.classes)
    return _as_splits(parts, images.classes, root, channels, reduce_to)


def scan(root: Path, classes: Optional[Sequence[str]] = None) -> ImageFolder:
    """List the images below the class folders, in the order of their names.

    Args:
        root: Folder of the class folders.
        classes: Names of the allowed classes, in the order of their labels. None allows all folders.

    Raises:
        DataError: As for `image_folder`.
    """
    folders = _visible_folders(root)
    known = list(classes) if classes is not None else [folder.name for folder in folders]
    new = sorted({folder.name for folder in folders} - set(known))
    if new:
        raise DataError(f"{root}: expected one folder for each class of the training part; it has {new[:5]} too")
    if not folders:
        raise DataError(f"{root}: expected one folder for each class; it has none. Pass the folder above a class")
    names: List[str] = []
    labels: List[int] = []
    others: List[str] = []
    for folder in folders:
        images = _images(folder, others)
        if not images:
            raise DataError(f"{folder}: this folder is a class without an image; fill it or remove it")
        names += [f"{folder.name}/{name}" for name in images]
        labels += [known.index(folder.name)] * len(images)
    _warn_of_others(root, others)
    return ImageFolder(root, names, labels, known)


def find_images(paths: Sequence[Union[str, Path]]) -> List[str]:
    """List image files: those that are named, and those below the folders that are named.

    Args:
        paths: Files, which are listed whatever they are, and folders, which are read recursively. Hidden files, and
            files without the ending of an image, are left out.

    Returns:
        Paths in the order of `paths`; those of a folder are sorted, its own files before those of its folders.

    Raises:
        DataError: A folder has no image.

    Warns:
        TrapWarning: Some files of a folder are not images by their names.
    """
    found: List[str] = []
    for path in paths:
        if not Path(path).is_dir():
            found.append(str(path))
            continue
        others: List[str] = []
        names = _images(Path(path), others)
        if not names:
            raise DataError(f"{path}: this folder has no image; images end with {', '.join(sorted(SUFFIXES))}")
        _warn_of_others(Path(path), others)
        found += [f"{Path(path)}/{name}" for name in names]
    return found


def _warn_of_others(root: Path, others: Sequence[str]) -> None:
    if others:
        text = f"{root}: left out {len(others)} files that are no images by their names, like {others[0]}"
        warnings.warn(text, TrapWarning, stacklevel=4)


def _images(folder: Path, others: List[str]) -> List[str]:
    """Sorted paths of the images below a folder; paths of other files are appended to `others`."""
    names = []
    for place, inner, files in os.walk(str(folder)):
        inner[:] = sorted(filter(_is_visible, inner))
        prefix = place[len(str(folder)) + 1 :]  # strings, not Paths: ImageNet has 1.3 million files
        for name in sorted(filter(_is_visible, files)):
            if f".{name.rpartition('.')[2].lower()}" in SUFFIXES:
                names.append(f"{prefix}/{name}" if prefix else name)
            else:
                others.append(f"{place}/{name}")
    return names


def _part_folders(root: Path) -> Dict[str, Path]:
    """Folders of parts by the part's name; empty if `train` is a class among others."""
    if not root.is_dir():
        raise DataError(f"image_folder: there is no folder {root.absolute()}")
    folders = _visible_folders(root)
    parts = {part: folder for folder in folders for part, names in FOLDERS.items() if folder.name.lower() in names}
    are_parts = "train" in parts and len(parts) == len(folders) and bool(_visible_folders(parts["train"]))
    return parts if are_parts else {}


def _has_classes(test: Path) -> bool:
    if _visible_folders(test):
        return True
    text = f"{test}: it has no folders of classes, so its images have no labels; the test part is left empty"
    warnings.warn(text, TrapWarning, stacklevel=4)
    return False


def _visible_folders(root: Path) -> List[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and _is_visible(path.name))


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in _RUBBISH


def hash_shares(names: Sequence[str], seed: int) -> "np.ndarray":
    """A number from 0 to 1 for each name, float64, that depends only on the name and `seed`."""
    digests = (hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest() for name in names)
    return np.array([int.from_bytes(digest[:6], "big") / 2**48 for digest in digests], dtype=np.float64)


def _only(folder: ImageFolder, mask: "np.ndarray") -> ImageFolder:
    rows = np.flatnonzero(mask).tolist()
    return folder._replace(names=[folder.names[row] for row in rows], labels=[folder.labels[row] for row in rows])


def _as_splits(
    parts: Sequence[ImageFolder], classes: List[str], root: Path, channels: int, reduce_to: Optional[int]
) -> Splits:
    lost = sorted(set(range(len(classes))) - set(parts[0].labels))
    if lost:
        names = [classes[label] for label in lost][:5]
        raise DataError(f"{root}: the training part has no image of {names}; lower valid and test, or add images")
    warn_of_missing_classes(
        str(root),
        [part.labels for part in parts],
        classes,
        "Raise valid and test, add images, change the seed, or make folders train, val and test",
    )
    train, valid, test = (
        ImageFiles(part.root, part.names, part.labels, classes, channels=channels, reduce_to=reduce_to)
        for part in parts
    )
    return Splits(train, valid, test, classes)


_RECORD_PARTS = (("train", "train"), ("valid", "val"), ("valid", "valid"), ("valid", "validation"), ("test", "test"))


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
        offsets, self._faces = _faces(self.path, self._size, record_offsets(self.path, self._size))
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
        return np.array(list(self.each_label()))

    def each_label(self) -> Iterator[Any]:
        """Yield the label of each record without decoding an image; records of boxes have labels of several lengths."""
        with self.path.open("rb") as file:
            for index in range(len(self)):
                yield self._read(file, index)[0]

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
    files = {part: root / f"{name}.rec" for part, name in _RECORD_PARTS if (root / f"{name}.rec").is_file()}
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


def _faces(path: Path, size: int, offsets: "np.ndarray") -> Tuple["np.ndarray", bool]:
    """Places of the images, and whether insightface's header says which they are: the ids before the first range."""
    for at in {0, len(offsets) - 1}:
        try:
            with path.open("rb") as file:
                record = unpack(read_record(file, int(offsets[at]), size, path)[0])
        except (DataError, ValueError):
            continue  # told where it is read
        if record.is_faces_header and 1 < record.labels[0] <= len(offsets):
            return np.delete(offsets, at)[: int(record.labels[0]) - 1], True
    return offsets, False


_WORDNET = re.compile(r"\bn\d{8}\b")
_IMAGE = re.compile(r"\bILSVRC\d+_val_\d+")
_LABEL_FILES = ("LOC_val_solution.csv", "val.txt")


def imagenet(root: Union[str, Path, None] = None, *, val_labels: Union[str, Path, None] = None) -> Splits:
    """Read ImageNet (ILSVRC 2012), which you must download yourself.

    Args:
        root: Folder with `train/n01440764/*.JPEG` and `val`, with or without class folders; or with
            `ILSVRC/Data/CLS-LOC` in between, as in Kaggle's archive; or with `train.rec` and `val.rec`. None is
            `datasets/imagenet` in the cache, which gluoncv reads too.
        val_labels: If `val` has no class folders: a text file with the label of each image. A line has the image's name
            and its WordNet id, or class number from 0. None looks for the files of Kaggle and Caffe.

    Returns:
        `.train`, and ImageNet's validation set as `.valid`; `.test` is empty, because its labels were never published.
        Classes are sorted WordNet ids, numbered as in all pretrained nets. A subset of the classes can be read too.
        Mean and std are the usual ones.

    Raises:
        DataError: The folder has another layout, or an image has no label.

    Source:
        https://www.image-net.org/challenges/LSVRC/2012
    """
    top = dataset_folder("imagenet") if root is None else Path(root).expanduser()
    for place in (top, top / "rec"):
        if (place / "train.rec").is_file():
            splits = image_records(place, classes=_all_ids(), valid=0)
            return splits._replace(mean=IMAGENET_MEAN, std=IMAGENET_STD)
    root = next((place for place in (top, top / "ILSVRC/Data/CLS-LOC") if (place / "train").is_dir()), None)
    if root is None:
        way = "registered users get ImageNet at https://www.image-net.org/download.php"
        raise DataError(f"imagenet: {top} has neither folders train/n01440764, ... nor train.rec; {way}")
    train = scan(root / "train")
    wrong = [name for name in train.classes if not _WORDNET.fullmatch(name)]
    if wrong:
        raise DataError(f"{root / 'train'}: expected folders like n01440764; there is {wrong[0]!r}")
    names, labels = _validation(root / "val", train.classes, [top, root, root / "val"], val_labels)
    return Splits(
        ImageFiles(root / "train", train.names, train.labels, train.classes),
        ImageFiles(root / "val", names, labels, train.classes),
        ImageFiles(root / "test", [], [], train.classes),
        train.classes,
        IMAGENET_MEAN,
        IMAGENET_STD,
    )


@functools.lru_cache(maxsize=1)
def _all_ids() -> List[str]:
    from gluoncv.data.imagenet.classification import ImageNet1kAttr  # gluoncv takes seconds to import

    return list(ImageNet1kAttr().synset)


def _validation(
    val: Path, classes: List[str], places: List[Path], val_labels: Union[str, Path, None]
) -> Tuple[List[str], List[int]]:
    """Names and labels of the validation images, in class folders or by a file of labels."""
    if not val.is_dir():
        return [], []
    if any(path.is_dir() and not path.name.startswith(".") for path in val.iterdir()):
        images = scan(val, classes)
        return images.names, images.labels
    stems = {path.stem: path.name for path in sorted(val.iterdir()) if path.suffix.lower() in SUFFIXES}
    candidates = [place / name for place in places for name in _LABEL_FILES]
    file = next(filter(Path.is_file, candidates), None) if val_labels is None else Path(val_labels).expanduser()
    if file is None:
        way = f"pass val_labels=, a text file with a WordNet id for each image; looked for {', '.join(_LABEL_FILES)}"
        raise DataError(f"{val}: it has no folders of classes, and there is no file of labels: {way}")
    ids = _labels_in(file)
    missing = [name for stem, name in stems.items() if stem not in ids]
    if missing:
        raise DataError(f"{file}: it has no label for {len(missing)} images of {val}, like {missing[0]}")
    # leaves out images of classes that the training part lacks, for training on a subset of the classes
    numbers = {name: number for number, name in enumerate(classes)}
    known = [stem for stem in stems if ids[stem] in numbers]
    return [stems[stem] for stem in known], [numbers[ids[stem]] for stem in known]


def _labels_in(file: Path) -> Dict[str, str]:
    """WordNet id of each image, by its name without the suffix."""
    found: Dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        image, wordnet = _IMAGE.search(line), _WORDNET.search(line)
        if image and not wordnet:
            label = line.split()[-1]
            if not label.isdigit() or int(label) >= 1000:
                raise DataError(f"{file}, line {number}: expected a class from 0 to 999: {line!r}")
        if image:
            found[image.group()] = wordnet.group() if wordnet else _all_ids()[int(label)]
    return found
