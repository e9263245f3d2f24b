"""Images with boxes, masks or points: the dataset, and the checks of annotations that all formats share."""

from functools import partial
import math
import operator
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.data.augment_labels import padded
from mxkit.data.image_bytes import is_turned
from mxkit.data.image_files import FOLDERS, ImageRecords, hash_shares, read_image
from mxkit.data.pixels import ImageDataset
from mxkit.data.splits import Splits, warn_of_missing_classes
from mxkit.errors import DataError, TrapWarning, nearest
import numpy as np

PathLike = Union[str, Path]
PARTS = tuple(FOLDERS)
SIDES = ("left", "top", "right", "bottom")
# Annotation tools round, and VOC counts pixels from 1: a box that leaves its image by less is cut off there.
_SLACK = 1.0
_SHOWN = 5


class AnnotatedImages(ImageDataset):
    """Images and what is marked on them, read on access: `part[i]` is `(image, label)`.

    The image is uint8 RGB, NumPy of shape (height, width, 3). The label depends on `moves`:

    - "boxes": float32 of shape (M, 6) with gluoncv's columns: left, top, right and bottom in pixels, the class number,
      and 1 for an object that is difficult or a crowd, else 0. M is the largest number of objects of an image; the rows
      of missing ones are -1, so batches stack.
    - "mask": int32 of shape (height, width), the class number of each pixel; -1 does not count.
    - "points": float32 of shape (K, 3): x, y in pixels, whose centres are whole numbers, and 1, or 0 if not known.

    `DatasetLoader(part, transform=Augment([...]))` moves boxes, masks and points with the image.

    Args:
        images: `images(i)` is image number i.
        labels: `labels[i]` is its label; boxes without rows for missing objects.
        classes: Name of each class, or of each point.
        names: Name of each image: its path, or its record.
        moves: "boxes", "mask" or "points".
        pairs: Numbers of points that swap when an image is mirrored: left and right of a body.

    Attributes:
        labels: As the argument; reading those of boxes and points reads no image.
        classes: Name of each class or point.
        names: Name of each image.
        moves: As the argument.
        pairs: As the argument.
        channels: 3.
    """

    gives_pixels = True
    channels = 3

    def __init__(
        self,
        images: Callable[[int], "np.ndarray"],
        labels: Sequence["np.ndarray"],
        classes: Sequence[str],
        names: Sequence[str],
        *,
        moves: str,
        pairs: Sequence[Tuple[int, int]] = (),
    ) -> None:
        self._images, self.labels = images, labels
        self.classes, self.names = list(classes), list(names)
        self.moves, self.pairs = moves, tuple(pairs)
        self._most = max([1, *map(len, labels)]) if moves == "boxes" else 0

    def __len__(self) -> int:
        """Number of images."""
        return len(self.names)

    def __getitem__(self, index: int) -> Tuple["np.ndarray", "np.ndarray"]:
        """`(image, label)` of one sample.

        Raises:
            DataError: The image cannot be read; the text has its path and the reason.
        """
        index = operator.index(index)
        image, label = self._images(index), self.labels[index]
        if self.moves == "mask" and label.shape != image.shape[:2]:
            sizes = f"the mask has {label.shape[1]} x {label.shape[0]} pixels, the image {image.shape[1::-1]}"
            raise DataError(f"{self.names[index]}: {sizes}; expected the same width and height")
        return image, padded(label, self._most) if self.moves == "boxes" else label.copy()

    def __repr__(self) -> str:
        count = f", {sum(map(len, self.labels))} boxes" if self.moves == "boxes" else ""
        return f"AnnotatedImages({len(self)} images{count}, {len(self.classes)} classes, moves={self.moves!r})"


class ImagePaths:
    """Pixels of image files by number; it can be pickled."""

    def __init__(self, paths: Sequence[Any]) -> None:
        self._paths = list(paths)

    def __call__(self, index: int) -> "np.ndarray":
        return read_image(self._paths[index])


def _record_pixels(records: ImageRecords, index: int) -> "np.ndarray":
    return records[index][0]


class Box(NamedTuple):
    """One object, and the place of its annotation.

    Attributes:
        sides: Left, top, right and bottom; shares of width and height if the image's `shares` is true.
        name: Name or number of its class.
        difficult: Whether it is difficult or a crowd.
        where: File, and line or field.
    """

    sides: Tuple[float, float, float, float]
    name: Any
    difficult: bool
    where: str


class Annotated(NamedTuple):
    """An image with its boxes.

    Attributes:
        path: Path of the image; None if it is a record.
        boxes: Its objects.
        shares: Whether sides are shares of width and height, not pixels.
    """

    path: Optional[Path]
    boxes: List[Box]
    shares: bool = False


class Mistakes:
    """Collects mistakes of annotations, and raises all of them as one error."""

    def __init__(self, what: str) -> None:
        self.what, self._texts, self._turned = what, [], []  # type: str, List[str], List[Path]

    def add(self, where: str, text: str) -> None:
        """Note a mistake of a file's line or field."""
        self._texts.append(f"{where}: {text}")

    def add_repeated(self, parts: Mapping[str, Sequence[Optional[Path]]]) -> None:
        """Note images that are in two parts, or twice in one."""
        seen: Dict[Path, str] = {}
        for part, paths in parts.items():
            for path in paths:
                if path is not None and seen.setdefault(path.resolve(), part) != part:
                    self.add(str(path), f"the image is in the parts {seen[path.resolve()]} and {part}")

    def check(self) -> None:
        """Raise the mistakes.

        Raises:
            DataError: There is one; the text has the first of them.

        Warns:
            TrapWarning: Images are turned by their EXIF (T283).
        """
        if self._texts:
            count, rest = len(self._texts), len(self._texts) - _SHOWN
            lines = "".join(f"\n- {text}" for text in self._texts[:_SHOWN])
            more = f"\n- and {rest} more" if rest > 0 else ""
            raise DataError(f"{self.what}: {count} mistake{'s' * (count > 1)} in the annotations:{lines}{more}")
        if self._turned:
            warnings.warn(
                f"{self.what}: {len(self._turned)} images are turned by their EXIF orientation, like "
                f"{self._turned[0]}: as in MXNet their pixels are read as stored, and boxes, masks or points that were "
                "drawn on the turned picture do not fit. Store them upright: ImageOps.exif_transpose of Pillow",
                TrapWarning,
                stacklevel=4,
            )
            self._turned = []

    def number(self, value: Any, where: str, field: str) -> Optional[float]:
        """A finite number, or None with a mistake noted."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            self.add(where, f"{field}: expected a number; received {value!r:.40}")
            return None
        return number

    def size(self, path: Path) -> Optional[Tuple[int, int]]:
        """Width and height of an image file from its header, or None with a mistake noted."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path) as opened:
                width, height = opened.size
                self._turned += [path] * is_turned(opened)
            return width, height
        except FileNotFoundError:
            self.add(str(path), "there is no such image")
        except (OSError, UnidentifiedImageError) as error:
            self.add(str(path), f"it is no image: {error}")
        return None


def voc_list(path: Path, what: str) -> str:
    """Text of a list of VOC's `ImageSets`.

    Raises:
        DataError: There is no such list.
    """
    if not path.is_file():
        have = sorted(one.stem for one in path.parent.glob("*.txt")) or "nothing"
        raise DataError(f"{what}: there is no list {path}; the folder has {have}")
    return path.read_text(encoding="utf-8")


def divided(names: Sequence[Any], valid: float, test: float, seed: int, root: Any = None) -> Dict[str, List[Any]]:
    """Divide names into parts by a hash of each, so that new images do not move others.

    Raises:
        ValueError: The shares leave nothing for training.
    """
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ValueError(f"valid, test: expected shares of at least 0, below 1 together; received {valid}, {test}")
    texts = [str(name.relative_to(root)) if root is not None else str(name) for name in names]
    parts: Dict[str, List[Any]] = {part: [] for part in PARTS}
    for name, share in zip(names, hash_shares(texts, seed)):
        parts["test" if share < test else "valid" if share < test + valid else "train"].append(name)
    return parts


def box_splits(
    root: Path,
    parts: Mapping[str, Sequence[Annotated]],
    classes: Optional[Sequence[str]],
    mistakes: Mistakes,
    records: Mapping[str, Any] = {},
) -> Splits:
    """Check all boxes against their images and classes, and make the parts.

    Args:
        root: Where the annotations are, for messages.
        parts: Images of each part.
        classes: Names in the order of their numbers; None takes those of the training part, sorted.
        mistakes: Mistakes of the reading.
        records: The `ImageRecords` of each part, if images are records.

    Raises:
        DataError: There are mistakes, or nothing to train on.
    """
    mistakes.check()
    if not parts["train"]:
        raise DataError(f"{mistakes.what}: {root}: the training part has no image")
    found = sorted({box.name for image in parts["train"] for box in image.boxes})
    names = list(found if classes is None else classes)
    if not names or not found:
        raise DataError(f"{mistakes.what}: {root}: the training part has no box")
    if len(set(names)) < len(names):
        raise DataError(f"{mistakes.what}: classes: a name is there twice: {names}")
    sides = [one.sides for images in parts.values() for image in images for one in image.boxes if not image.shares]
    if sides and max(map(max, sides)) <= 1:
        raise DataError(f"{mistakes.what}: {root}: all sides are at most 1; expected pixels, not shares of the image")
    numbers = {name: number for number, name in enumerate(names)}
    mistakes.add_repeated({part: [image.path for image in images] for part, images in parts.items()})
    made = []
    for part in PARTS:
        paths = [one.path for one in parts[part]]
        pixels: Any = partial(_record_pixels, records[part]) if part in records else ImagePaths(paths)
        texts, tables = [], []
        for number, image in enumerate(parts[part]):
            texts.append(str(image.path or f"record {number}"))
            size = mistakes.size(image.path) if image.path else pixels(number).shape[1::-1]
            tables.append(_table(image, size, numbers, mistakes))
        made.append(AnnotatedImages(pixels, tables, names, texts, moves="boxes"))
    mistakes.check()
    counts = [[int(number) for table in one.labels for number in table[:, 4]] for one in made]
    warn_of_missing_classes(str(root), counts, names, "Choose other parts, or add images")
    return Splits(made[0], made[1], made[2], [str(name) for name in names])


def _table(
    image: Annotated, size: Optional[Tuple[int, int]], numbers: Mapping[Any, int], mistakes: Mistakes
) -> "np.ndarray":
    """Boxes of one image, (M, 6) in pixels; mistakes are noted."""
    table = np.zeros((len(image.boxes), 6), np.float32)
    if size is None:
        return table
    width, height = size
    for row, box in zip(table, image.boxes):
        left, top, right, bottom = box.sides
        if image.shares:
            left, top, right, bottom = left * width, top * height, right * width, bottom * height
        sides = ", ".join(f"{name} {side:.6g}" for name, side in zip(SIDES, (left, top, right, bottom)))
        if box.name not in numbers:
            hint = nearest(str(box.name), list(map(str, numbers))) or f"expected one of {list(numbers)[:20]}"
            mistakes.add(box.where, f"unknown class {box.name!r:.40}; {hint}")
        elif right < left or bottom < top:
            mistakes.add(box.where, f"the box is turned round: {sides}")
        elif left < -_SLACK or top < -_SLACK or right > width + _SLACK or bottom > height + _SLACK:
            mistakes.add(box.where, f"the box leaves its image, {width} x {height} pixels: {sides}")
        else:
            row[:4] = max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)
            row[4:] = numbers[box.name], box.difficult
            if row[2] <= row[0] or row[3] <= row[1]:
                mistakes.add(box.where, f"the box has no area: {sides}")
    return table
