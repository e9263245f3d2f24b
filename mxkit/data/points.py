"""Points of bodies in COCO's format: one sample is one person, cut out of the image."""

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arguments import is_finite_number
from mxkit.data.annotated import PARTS, AnnotatedImages, ImagePaths, Mistakes, PathLike
from mxkit.data.augment_steps import Crop
from mxkit.data.boxes import coco_content, coco_folder
from mxkit.data.splits import Splits
from mxkit.errors import DataError
import numpy as np


class Persons:
    """Pixels around one person each, by number; it can be pickled.

    Args:
        images: Pixels of image files by number.
        places: For each person the number of the image, and left, top, width and height in whole pixels.
    """

    def __init__(self, images: ImagePaths, places: Sequence[Tuple[int, Tuple[int, int, int, int]]]) -> None:
        self._images, self._places = images, list(places)

    def __call__(self, index: int) -> "np.ndarray":
        number, (left, top, width, height) = self._places[index]
        return Crop((width, height)).apply(self._images(number), (top, left), 255).copy()


def coco_points(
    root: PathLike,
    *,
    train: str = "person_keypoints_train2017",
    valid: Optional[str] = "person_keypoints_val2017",
    test: Optional[str] = None,
    images: Optional[str] = None,
    ratio: float = 0.75,
    margin: float = 1.25,
) -> Splits:
    """Read points of COCO's JSON files in `annotations/`: `keypoints` of each object with a box.

    A sample is one object, cut out of its image: its box, made `margin` times as large and widened to `ratio`, as
    gluoncv's `SimplePoseDefaultTrainTransform` does. Objects without a known point are left out. Points whose names
    differ in "left" and "right" swap when an image is mirrored.

    Args:
        root: As for `coco_boxes`.
        train: As for `coco_boxes`.
        valid: As for `coco_boxes`.
        test: As for `coco_boxes`.
        images: As for `coco_boxes`.
        ratio: Width of a sample divided by its height.
        margin: Size of a sample in sizes of the box.

    Returns:
        Parts of type `AnnotatedImages` with points.

    Raises:
        DataError: As for `coco_boxes`.
    """
    root, mistakes = Path(root).expanduser(), Mistakes("coco_points")
    if not (ratio > 0 and margin >= 1):
        raise ValueError(f"coco_points: ratio, margin: expected above 0 and at least 1; received {ratio!r}, {margin!r}")
    names: List[str] = []
    made: Dict[str, Any] = {part: ([], [], [], []) for part in PARTS}
    for part, name in zip(PARTS, (train, valid, test)):
        if name is not None:
            path = root / "annotations" / f"{name}.json"
            content, _ = coco_content(path, mistakes)
            own: List[Any] = [one["keypoints"] for one in content["categories"] if one.get("keypoints")]
            if len(own) != 1 or not all(isinstance(one, str) for one in own[0]) or names not in ([], own[0]):
                raise DataError(f"coco_points: {path}: categories: expected one with the same keypoints in all parts")
            names = own[0]
            made[part] = _persons(path, content, coco_folder(root, name, images), len(names), (ratio, margin), mistakes)
    mistakes.check()
    if not made["train"][1]:
        raise DataError(f"coco_points: {root}: the training part has no object with a known point")
    pairs = [
        (names.index(name), names.index(name.replace("left", "right")))
        for name in names
        if "left" in name and name.replace("left", "right") in names
    ]
    parts = [
        AnnotatedImages(Persons(ImagePaths(paths), places), labels, names, texts, moves="points", pairs=pairs)
        for paths, places, labels, texts in made.values()
    ]
    return Splits(parts[0], parts[1], parts[2], list(names))


def _persons(
    path: Path, content: Mapping[str, Any], folder: Path, count: int, shape: Tuple[float, float], mistakes: Mistakes
) -> Tuple[List[Path], List[Any], List["np.ndarray"], List[str]]:
    """Paths of the images, places of the persons, their points, and their names."""
    numbers = {one.get("id"): number for number, one in enumerate(content["images"])}
    paths = [folder / str(one.get("file_name")) for one in content["images"]]
    sizes: Dict[int, Any] = {}
    places, labels, texts = [], [], []
    for place, one in enumerate(content["annotations"]):
        where, flat, box = f"{path}, annotations[{place}]", one.get("keypoints"), one.get("bbox")
        if one.get("image_id") not in numbers:
            mistakes.add(where, f"image_id: there is no image {one.get('image_id')!r:.40}")
            continue
        if not isinstance(flat, list) or len(flat) != 3 * count or not all(map(is_finite_number, flat)):
            mistakes.add(where, f"keypoints: expected {3 * count} numbers, x, y and visibility; received {flat!r:.60}")
            continue
        points = np.array(flat, np.float32).reshape(-1, 3)
        if not (points[:, 2] > 0).any() or one.get("iscrowd"):
            continue
        if not isinstance(box, list) or len(box) != 4 or not all(map(is_finite_number, box)) or min(box[2:]) <= 0:
            mistakes.add(where, f"bbox: expected [x, y, width, height] with an area; received {box!r:.60}")
            continue
        number = numbers[one["image_id"]]
        if number not in sizes:
            sizes[number] = mistakes.size(paths[number])
        if sizes[number] is None:
            continue
        outside = (points[:, 2] > 0) & ((points[:, :2] < -1) | (points[:, :2] > np.array(sizes[number]))).any(axis=1)
        if outside.any():
            point = int(np.flatnonzero(outside)[0])
            mistakes.add(where, f"keypoints: point {point} leaves its image: {points[point, :2].tolist()}")
            continue
        left, top, width, height = _around(box, *shape)
        points[:, :2] -= (left, top)
        points[:, 2] = points[:, 2] > 0
        points[points[:, 2] == 0] = 0
        places.append((number, (left, top, width, height)))
        labels.append(points)
        texts.append(f"{paths[number]}, object {one.get('id', place)}")
    return paths, places, labels, texts


def _around(box: Sequence[float], ratio: float, margin: float) -> Tuple[int, int, int, int]:
    """Left, top, width and height in whole pixels."""
    x, y, width, height = box
    middle, centre = x + width / 2, y + height / 2
    width, height = max(width, height * ratio) * margin, max(height, width / ratio) * margin
    return round(middle - width / 2), round(centre - height / 2), max(1, round(width)), max(1, round(height))
