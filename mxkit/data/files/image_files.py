"""Folders of images: datasets that read each image on access."""

import hashlib
import operator
import os
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.arguments import whole_number
from mxkit.data.image_bytes import decode
from mxkit.data.pixels import ImageDataset
from mxkit.data.splits import Splits, warn_of_missing_classes
from mxkit.errors import DataError, TrapWarning, nearest
import numpy as np

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
# Names that operating systems and archivers leave in folders.
_RUBBISH = {"__macosx", "thumbs.db", "desktop.ini", "@eadir"}
_PARTS = {"train": {"train", "training"}, "valid": {"val", "valid", "validation"}, "test": {"test", "testing"}}


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
        path = self.path(index)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{path}: the image cannot be read: {error.strerror}. Remove it, or permit reading"
            ) from error
        return decode(content, str(path), self.channels, self.reduce_to), self.labels[index]

    def __repr__(self) -> str:
        return f"ImageFiles({len(self)} images, {len(self.classes)} classes, {str(self.root)!r})"


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
        DataError: The folder has no image, a file is empty or a link to nothing, a class has no image, or a part has a
            class that the training part lacks.

    Warns:
        TrapWarning: Some files are not images; a test folder has no class folders; or a part lacks a class of the
            training part.
    """
    root = Path(root).expanduser()
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ValueError(f"image_folder: valid, test: expected shares, below 1 together; received {valid}, {test}")
    folders = _part_folders(root)
    images = scan(folders.get("train", root))
    share = _hashes(images.names, seed)
    if "train" not in folders:
        masks = [share >= valid + test, (share >= test) & (share < valid + test), share < test]
    else:
        in_valid = share < (0 if "valid" in folders else valid)
        masks = [~in_valid, in_valid, share < 0]
    parts = [_only(images, mask) for mask in masks]
    for position, name in ((1, "valid"), (2, "test")):
        if name in folders and (name == "valid" or _has_classes(folders[name])):
            parts[position] = scan(folders[name], images.classes)
    return _as_splits(parts, images.classes, root, channels, reduce_to)


def scan(root: Path, classes: Optional[Sequence[str]] = None, *, check_sizes: bool = True) -> ImageFolder:
    """List the images below the class folders, in the order of their names.

    Args:
        root: Folder of the class folders.
        classes: Names of the allowed classes, in the order of their labels. None allows all folders.
        check_sizes: Whether to look for empty files, which costs a system call for each file.

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
    others: List[str] = []
    for folder in folders:
        images = _images(folder, others, check_sizes)
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
        names = _images(Path(path), others, check_sizes=False)
        if not names:
            raise DataError(f"{path}: this folder has no image; images end with {', '.join(sorted(SUFFIXES))}")
        _warn_of_others(Path(path), others)
        found += [f"{Path(path)}/{name}" for name in names]
    return found


def _warn_of_others(root: Path, others: Sequence[str]) -> None:
    if others:
        warnings.warn(
            f"{root}: left out {len(others)} files that are no images by their names, like {others[0]}; "
            f"images end with {', '.join(sorted(SUFFIXES))}",
            TrapWarning,
            stacklevel=4,
        )


def _images(folder: Path, others: List[str], check_sizes: bool) -> List[str]:
    """Sorted paths of the images below a folder; paths of other files are appended to `others`."""
    names, empty = [], []
    top = str(folder)
    for place, inner, files in os.walk(top):
        inner[:] = sorted(name for name in inner if _is_visible(name))
        # strings, not Paths: ImageNet has 1.3 million files
        prefix = place[len(top) + 1 :].replace(os.sep, "/")
        for name in sorted(filter(_is_visible, files)):
            if f".{name.rpartition('.')[2].lower()}" not in SUFFIXES:
                others.append(f"{place}/{name}")
            elif check_sizes and not _bytes_of(Path(place, name)):
                empty.append(f"{place}/{name}")
            else:
                names.append(f"{prefix}/{name}" if prefix else name)
    if empty:
        raise DataError(f"{len(empty)} image files are empty, or links to nothing; remove them: {', '.join(empty[:5])}")
    return names


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a link to nothing, or to itself
        return 0


def _part_folders(root: Path) -> Dict[str, Path]:
    """Folders of parts by the part's name; empty if `train` is a class among others."""
    if not root.is_dir():
        raise DataError(f"image_folder: there is no folder {root.absolute()}")
    folders = _visible_folders(root)
    parts = {part: folder for folder in folders for part, names in _PARTS.items() if folder.name.lower() in names}
    are_parts = "train" in parts and len(parts) == len(folders) and bool(_visible_folders(parts["train"]))
    return parts if are_parts else {}


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


def _hashes(names: Sequence[str], seed: int) -> "np.ndarray":
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
        raise DataError(
            f"{root}: the training part has no image of {[classes[label] for label in lost][:5]}; "
            "add images, lower valid and test, or change the seed"
        )
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
