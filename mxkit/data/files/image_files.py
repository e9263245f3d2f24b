"""Folders of images: parts that read each image when it is asked for."""

import hashlib
import operator
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.gluon_data import for_first, of_first
from mxkit.data.files.decoding import decode
from mxkit.data.samples import drawn_by_transform, takes_rng
from mxkit.data.splits import Splits, warn_of_missing_classes
from mxkit.errors import DataError, TrapWarning, nearest
import mxnet as mx
import numpy as np

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
# What systems and archivers leave in folders
_RUBBISH = {"__macosx", "thumbs.db", "desktop.ini", "@eadir"}
_PARTS = {"train": {"train", "training"}, "valid": {"val", "valid", "validation"}, "test": {"test", "testing"}}


class ImageFolder(NamedTuple):
    """Images found below folders of classes, by paths from `root` on."""

    root: Path
    names: List[str]
    labels: List[int]
    classes: List[str]


class ImageDataset(mx.gluon.data.Dataset):  # type: ignore[misc]
    """Base of datasets whose images are NumPy, so that a worker needs no part of MXNet to read one."""

    draws = ()  # reading a sample draws no random number

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Any:
        """As gluon's; `fn` gets the image as an NDArray, or NumPy's if it takes `rng`."""
        return super().transform(for_images(fn), lazy)


class ImageFiles(ImageDataset):
    """Image files and their labels, read when they are asked for: `part[i]` is `(image, label)`.

    The image is uint8 RGB, NumPy of shape (height, width, channels), so that a worker needs no part of MXNet;
    `mxkit.data.Augment` takes it as it is. Functions given to gluon's `transform` and `transform_first` get it as
    an NDArray, which gluon's transforms need. Any number of threads and processes may read at once.

    Args:
        root: Folder that the names begin from.
        names: Paths of the files from `root` on.
        labels: A whole number for each file.
        classes: Name of each label.
        channels: 3 for RGB, 1 for grey.

    Attributes:
        labels: int32 of shape (N,): what is needed to balance classes, without reading an image.
        classes: Name of each label.

    Raises:
        DataError: There are not as many labels as names, or one is none of the classes.
    """

    def __init__(
        self, root: Path, names: Sequence[str], labels: Sequence[int], classes: Sequence[str], *, channels: int = 3
    ) -> None:
        self.root = Path(root)
        # one block of bytes: a list of a million strings would be copied page by page into forked workers
        self._names = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)
        self.labels: np.ndarray = np.array(labels, dtype=np.int32).reshape(-1)
        self.classes = list(classes)
        self.channels = channels
        if len(self.labels) != len(self._names):
            raise DataError(f"{root}: {len(self._names)} images and {len(self.labels)} labels; they must be equal")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise DataError(f"{root}: labels {self.labels.min()} to {self.labels.max()} of {len(self.classes)} classes")

    def __len__(self) -> int:
        """Number of images."""
        return len(self._names)

    def path(self, index: int) -> Path:
        """Where an image is."""
        return self.root / os.fsdecode(bytes(self._names[index]))

    def __getitem__(self, index: int) -> Tuple["np.ndarray", "np.int32"]:
        """`(image, label)` of one sample.

        Raises:
            DataError: The file cannot be read as an image; the text names it and says why.
        """
        index = operator.index(index)
        path = self.path(index)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{path}: the image cannot be read: {error.strerror}. Remove it, or let it be read"
            ) from error
        return decode(content, str(path), self.channels), self.labels[index]

    def __repr__(self) -> str:
        return f"ImageFiles({len(self)} images, {len(self.classes)} classes, {str(self.root)!r})"


def for_images(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What a lazy dataset calls with NumPy images for a transform that expects gluon's NDArrays; with `rng`, itself."""
    first = of_first(fn)
    if takes_rng(fn if first is None else first):
        return fn
    return WithNDArray(fn) if first is None else for_first(WithNDArray(first))


class WithNDArray:
    """A function of samples, called with NDArrays in place of NumPy's; it can be sent to workers.

    Attributes:
        draws: The generators that it may draw from.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.draws = drawn_by_transform(fn)

    def __call__(self, image: "np.ndarray", *rest: Any) -> Any:
        return self.fn(mx.nd.array(image, dtype=image.dtype), *rest)


def image_folder(
    root: Union[str, Path], *, valid: float = 0.1, test: float = 0.1, channels: int = 3, seed: int = 0
) -> Splits:
    """Images in one folder for each class, with or without parts of their own.

    `root/train/cat/1.jpg`, with `val` (or `valid`, `validation`) and `test` beside `train`: these are the parts. A
    missing validation part is cut off the training part; a missing test part is empty. `root/cat/1.jpg`: all three
    parts are cut. Where a file goes is decided by a hash of its path below the classes' folder and by nothing else,
    so new files do not move the others. Classes are numbered in the order of their names; hidden files are ignored.

    Args:
        root: The folder.
        valid: Share of the files that are cut off for validation, where they have no folder.
        test: The same for testing, where no part has a folder.
        channels: 3 for RGB, 1 for grey.
        seed: Another whole number is another cut.

    Returns:
        Parts of type `ImageFiles`. Mean and std are None; `channel_statistics` of some images tells them.

    Raises:
        ValueError: The shares leave nothing to learn from.
        DataError: A file is empty, a class has no image, a part has a class that the training part has not, or there
            is no image at all.

    Warns:
        TrapWarning: Some files are no images, or a test folder has no folders of classes; or a part has no image of
            a class of the training part.
    """
    root = Path(root).expanduser()
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ValueError(f"image_folder: expected shares for valid and test below 1 together; received {valid}, {test}")
    found = _part_folders(root)
    if "train" not in found:
        whole = scan(root)
        share = _hashed(whole.names, seed)
        masks = [share >= valid + test, (share >= test) & (share < valid + test), share < test]
        return _as_splits([_only(whole, mask) for mask in masks], whole.classes, root, channels)
    train = scan(found["train"])
    share = _hashed(train.names, seed)
    cut = share < (0 if "valid" in found else valid)
    parts = [_only(train, ~cut), _only(train, cut), _only(train, share < 0)]
    for position, name in ((1, "valid"), (2, "test")):
        if name in found and (name == "valid" or _has_classes(found[name])):
            parts[position] = scan(found[name], train.classes)
    return _as_splits(parts, train.classes, root, channels)


def scan(root: Path, classes: Optional[Sequence[str]] = None, *, check_sizes: bool = True) -> ImageFolder:
    """List the images below the classes' folders, in the order of their names.

    Args:
        root: The folder of classes.
        classes: Names that are known, in the order of their labels; others are refused. None takes all folders.
        check_sizes: Look for empty files, which asks the system about every one.

    Raises:
        DataError: As for `image_folder`.
    """
    folders = _visible_folders(root)
    known = list(classes) if classes is not None else [folder.name for folder in folders]
    new = sorted({folder.name for folder in folders} - set(known))
    if new:
        hint = nearest(new[0], known)
        raise DataError(
            f"{root}: expected one folder for each class of the training part; it has {new[:5]} too"
            + (f"; {hint}" if hint else "")
        )
    if not folders:
        raise DataError(
            f"{root}: expected one folder for each class; it has none. If it is a class, pass the folder above it"
        )
    names: List[str] = []
    labels: List[int] = []
    rest: List[str] = []
    numbers = {name: number for number, name in enumerate(known)}
    for folder in folders:
        images = _images(folder, rest, check_sizes)
        if not images:
            raise DataError(f"{folder}: this folder is a class without an image; fill it or remove it")
        names += [f"{folder.name}/{name}" for name in images]
        labels += [numbers[folder.name]] * len(images)
    if rest:
        warnings.warn(
            f"{root}: left out {len(rest)} files that are no images by their names, like {rest[0]}; "
            f"images end with {', '.join(sorted(SUFFIXES))}",
            TrapWarning,
            stacklevel=3,
        )
    return ImageFolder(root, names, labels, known)


def _images(folder: Path, rest: List[str], check_sizes: bool) -> List[str]:
    """Paths of images from a folder on, sorted; other files are appended to `rest`."""
    names, empty = [], []
    top = str(folder)
    for place, inner, files in os.walk(top):
        inner[:] = sorted(name for name in inner if _is_visible(name))
        # strings, not Paths: ImageNet has 1.3 million files
        prefix = place[len(top) + 1 :].replace(os.sep, "/")
        for name in sorted(filter(_is_visible, files)):
            if f".{name.rpartition('.')[2].lower()}" not in SUFFIXES:
                rest.append(f"{place}/{name}")
            elif check_sizes and Path(place, name).stat().st_size == 0:
                empty.append(f"{place}/{name}")
            else:
                names.append(f"{prefix}/{name}" if prefix else name)
    if empty:
        raise DataError(f"{len(empty)} image files are empty; fetch them again or remove them: {', '.join(empty[:5])}")
    return names


def _part_folders(root: Path) -> Dict[str, Path]:
    """Folders that are parts; a folder `train` among classes of vehicles is none."""
    if not root.is_dir():
        raise DataError(f"image_folder: there is no folder {root.absolute()}")
    folders = _visible_folders(root)
    found = {part: folder for folder in folders for part, names in _PARTS.items() if folder.name.lower() in names}
    are_parts = "train" in found and len(found) == len(folders) and bool(_visible_folders(found["train"]))
    return found if are_parts else {}


def _has_classes(test: Path) -> bool:
    if _visible_folders(test):
        return True
    warnings.warn(
        f"{test}: it has no folders of classes, so its images have no labels; the test part is left empty",
        TrapWarning,
        stacklevel=4,
    )
    return False


def _visible_folders(root: Path) -> List[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and _is_visible(path.name))


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in _RUBBISH


def _hashed(names: Sequence[str], seed: int) -> "np.ndarray":
    """A number from 0 to 1 for each name, float64, that depends on nothing but the name and `seed`."""
    digests = (hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest() for name in names)
    return np.array([int.from_bytes(digest[:6], "big") / 2**48 for digest in digests], dtype=np.float64)


def _only(folder: ImageFolder, mask: "np.ndarray") -> ImageFolder:
    chosen = np.flatnonzero(mask).tolist()
    return folder._replace(names=[folder.names[row] for row in chosen], labels=[folder.labels[row] for row in chosen])


def _as_splits(parts: Sequence[ImageFolder], classes: List[str], root: Path, channels: int) -> Splits:
    lost = sorted(set(range(len(classes))) - set(parts[0].labels))
    if lost:
        raise DataError(
            f"{root}: the training part has no image of {[classes[label] for label in lost][:5]}; "
            "more images, smaller shares for valid and test, or another seed, leave it some"
        )
    warn_of_missing_classes(
        str(root),
        [part.labels for part in parts],
        classes,
        "Larger shares for valid and test, more images, another seed, or folders train, val and test give it some",
    )
    train, valid, test = (ImageFiles(part.root, part.names, part.labels, classes, channels=channels) for part in parts)
    return Splits(train, valid, test, classes)
