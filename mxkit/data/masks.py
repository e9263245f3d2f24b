"""Masks of segmentation: VOC's layout, and folders of images and masks by number, palette or colour."""

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.data.annotated import PARTS, AnnotatedImages, ImagePaths, Mistakes, PathLike, divided, voc_list
from mxkit.data.image_files import FOLDERS, find_images
from mxkit.data.splits import Splits
from mxkit.errors import DataError
import numpy as np

Colour = Tuple[int, int, int]
Classes = Union[Sequence[str], Mapping[str, Sequence[int]]]
# Masks whose pixels are checked before the first epoch; of more, so many that are spread over the part. Reading checks
# each one.
_CHECKED = 300
_VOC = (
    "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person "
    "pottedplant sheep sofa train tvmonitor"
)
VOC_CLASSES = _VOC.split()


class MaskFiles:
    """Class numbers of the pixels of mask files by number: `masks[i]` is int32 of shape (height, width).

    Args:
        paths: The files: PNG with a palette or grey, whose values are class numbers; or RGB, with `colours`.
        classes: Number of classes.
        ignored: The value or the colour that does not count; it becomes -1.
        colours: Colour of each class, for masks in colour.
    """

    def __init__(
        self, paths: Sequence[Path], classes: int, ignored: Any, colours: Optional[Sequence[Colour]] = None
    ) -> None:
        self._paths, self._classes, self._ignored, self._colours = list(paths), classes, ignored, colours

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> "np.ndarray":
        """Class numbers of one mask.

        Raises:
            DataError: The file cannot be read, has the other kind of values, or a value that is no class.
        """
        from PIL import Image, UnidentifiedImageError

        path = self._paths[index]
        try:
            with Image.open(path) as opened:
                text = self.wrong_mode(opened.mode)
                if text:
                    raise DataError(f"{path}: {text}")
                # a palette's numbers are the classes; `convert` would give its colours
                values = np.asarray(opened if self._colours is None else opened.convert("RGB"))
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"{path}: the mask cannot be read: {error}") from error
        values = values.astype(np.int32)
        return self._numbers(path, values) if self._colours is None else self._of_colours(path, values)

    def wrong_mode(self, mode: str) -> str:
        """What is wrong with a mode of Pillow, or ""."""
        if self._colours is None and mode not in ("1", "L", "P", "I", "I;16"):
            return f"the mask is in colour ({mode}); pass classes as names with colours, {{road: [128, 64, 128]}}"
        if self._colours is not None and mode not in ("RGB", "RGBA", "P"):
            return f"the mask has numbers ({mode}); pass classes as a list of names, whose places are the numbers"
        return ""

    def _numbers(self, path: Path, values: "np.ndarray") -> "np.ndarray":
        values = np.where(values == self._ignored, -1, values)
        row, column = _first((values >= self._classes) | (values < -1))
        if row is not None:
            raise DataError(
                f"{path}: pixel x {column}, y {row}: class {values[row, column]}; expected 0 to {self._classes - 1}, "
                f"or {self._ignored} for pixels that do not count"
            )
        return values.astype(np.int32)

    def _of_colours(self, path: Path, values: "np.ndarray") -> "np.ndarray":
        weights = [65536, 256, 1]
        keys, numbers = values @ weights, np.full(values.shape[:2], -2, np.int32)
        for number, colour in [*enumerate(self._colours or ()), *[(-1, self._ignored)] * (self._ignored is not None)]:
            numbers[keys == np.dot(colour, weights)] = number
        row, column = _first(numbers == -2)
        if row is not None:
            colour = values[row, column].tolist()
            raise DataError(f"{path}: pixel x {column}, y {row}: colour {colour} is none of the classes")
        return numbers


def _first(wrong: "np.ndarray") -> Sequence[Any]:
    """Row and column of the first pixel that is wrong; None and None without one."""
    places = np.argwhere(wrong)
    return places[0] if len(places) else (None, None)


def voc_masks(
    root: PathLike,
    *,
    train: Union[str, Sequence[str]] = "train",
    valid: Union[str, Sequence[str]] = "val",
    test: Union[None, str, Sequence[str]] = None,
    classes: Optional[Sequence[str]] = None,
) -> Splits:
    """Read masks in Pascal VOC's layout: `JPEGImages`, `SegmentationClass/*.png` and `ImageSets/Segmentation/*.txt`.

    Args:
        root: The folder with `SegmentationClass`, like `VOCdevkit/VOC2012`.
        train: List in `ImageSets/Segmentation` without its ending, or several.
        valid: List for validation.
        test: List for the test part; None leaves it empty.
        classes: Names of the classes, in the order of their numbers; None takes VOC's 21. 255 does not count.

    Returns:
        Parts of type `AnnotatedImages` with masks.

    Raises:
        DataError: A list, image or mask is missing, has another size or another kind of values; all mistakes are in one
            error, each with its file.
    """
    root, mistakes = Path(root).expanduser(), Mistakes("voc_masks")
    pairs: Dict[str, List[Tuple[Path, Path]]] = {part: [] for part in PARTS}
    for part, names in zip(PARTS, (train, valid, test or ())):
        for name in [names] if isinstance(names, str) else names:
            for stem in voc_list(root / "ImageSets" / "Segmentation" / f"{name}.txt", "voc_masks").split():
                image, mask = root / "JPEGImages" / f"{stem}.jpg", root / "SegmentationClass" / f"{stem}.png"
                pairs[part].append((image, mask))
    return _mask_splits(root, pairs, VOC_CLASSES if classes is None else classes, 255, mistakes)


def mask_folder(
    root: PathLike,
    *,
    classes: Classes,
    images: str = "images",
    masks: str = "masks",
    ignored: Union[None, int, Sequence[int]] = 255,
    valid: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
) -> Splits:
    """Read images and masks of two folders, whose files have the same names up to their endings.

    Args:
        root: The folder with both: `root/images/a.jpg` and `root/masks/a.png`; or with parts inside of both,
            `images/train` and `masks/train`, or around both, `train/images` and `train/masks`.
        classes: Names of the classes, in the order of their numbers in the masks; or a table of names and colours,
            `{road: [128, 64, 128], car: [0, 0, 142]}`, for masks in colour.
        images: Name of the folder of images.
        masks: Name of the folder of masks.
        ignored: Number, or colour, of pixels that do not count; None for none.
        valid: Without folders of parts, the share for validation; a hash of the image's name decides.
        test: Share for testing.
        seed: Seed of that division.

    Returns:
        As `voc_masks`.

    Raises:
        DataError: As for `voc_masks`; or an image has no mask.
    """
    root, mistakes = Path(root).expanduser(), Mistakes("mask_folder")
    found: Dict[str, List[Tuple[Path, Path]]] = {part: [] for part in PARTS}
    for part, words in FOLDERS.items():
        for word in words:
            for place in ("{}/" + word, word + "/{}"):
                if (root / place.format(images)).is_dir():
                    found[part] += _mask_pairs(root / place.format(images), root / place.format(masks), mistakes)
    if not found["train"]:
        if not (root / images).is_dir():
            raise DataError(f"mask_folder: there is no folder {root / images}; pass images= and masks= for other names")
        everything = dict(_mask_pairs(root / images, root / masks, mistakes))
        for part, paths in divided(list(everything), valid, test, seed, root / images).items():
            found[part] = [(path, everything[path]) for path in paths]
    return _mask_splits(root, found, classes, ignored, mistakes)


def _mask_pairs(images: Path, masks: Path, mistakes: Mistakes) -> List[Tuple[Path, Path]]:
    if not masks.is_dir():
        raise DataError(f"{mistakes.what}: there is no folder {masks}")
    by_stem = {str(Path(name).relative_to(masks).with_suffix("")): Path(name) for name in find_images([masks])}
    pairs = []
    for name in find_images([images]):
        stem = str(Path(name).relative_to(images).with_suffix(""))
        if stem in by_stem:
            pairs.append((Path(name), by_stem[stem]))
        else:
            mistakes.add(name, f"it has no mask; expected {masks / stem}.png")
    return pairs


def _mask_splits(
    root: Path, pairs: Mapping[str, Sequence[Tuple[Path, Path]]], classes: Classes, ignored: Any, mistakes: Mistakes
) -> Splits:
    names = list(classes)
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(f"{mistakes.what}: classes: expected two or more different names; received {names}")
    colours: Any = None
    if isinstance(classes, Mapping):
        colours = [tuple(colour) for colour in classes.values()]
        if any(len(one) != 3 or not all(0 <= value <= 255 for value in one) for one in colours):
            raise DataError(f"{mistakes.what}: classes: expected colours [red, green, blue] of 0 to 255")
        ignored = ignored if isinstance(ignored, (list, tuple)) else None
    mistakes.add_repeated({part: [image for image, _ in own] for part, own in pairs.items()})
    parts = []
    for part in PARTS:
        images = [image for image, _ in pairs[part]]
        files: Any = MaskFiles([mask for _, mask in pairs[part]], len(names), ignored, colours)
        _check_masks(pairs[part], files, mistakes)
        parts.append(AnnotatedImages(ImagePaths(images), files, names, list(map(str, images)), moves="mask"))
    mistakes.check()
    if not len(parts[0]):
        raise DataError(f"{mistakes.what}: {root}: the training part has no image")
    return Splits(parts[0], parts[1], parts[2], [str(name) for name in names])


def _check_masks(pairs: Sequence[Tuple[Path, Path]], files: MaskFiles, mistakes: Mistakes) -> None:
    from PIL import Image, UnidentifiedImageError

    step = max(1, -(-len(pairs) // _CHECKED))
    for number, (image, mask) in enumerate(pairs):
        size = mistakes.size(image)
        try:
            with Image.open(mask) as opened:
                text = files.wrong_mode(opened.mode)
                if not text and size not in (None, opened.size):
                    text = f"the mask has {opened.size} pixels, the image {size}"
            if not text and number % step == 0:
                files[number]
        except FileNotFoundError:
            text = "there is no such mask"
        except DataError as error:
            text = str(error).partition(f"{mask}: ")[2] or str(error)
        except (OSError, UnidentifiedImageError) as error:
            text = f"it is no image: {error}"
        if text:
            mistakes.add(str(mask), text)
