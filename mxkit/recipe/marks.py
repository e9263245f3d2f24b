"""What detectors, segmentation nets and pose nets say of image files, in pixels of the files."""

import inspect
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from mxkit.data.annotated import PARTS
from mxkit.data.augment_labels import Placed
from mxkit.data.boxes import coco_boxes, coco_ids
from mxkit.data.points import coco_points
from mxkit.errors import DataError
from mxkit.metrics.detection import detections, points_of
from mxkit.recipe.schema import Recipe
import numpy as np

# Answer for tables, and label for pictures, as `mxkit.data.AnnotatedImages` gives it; boxes have their score in the
# place of "difficult".
Marks = Tuple[Dict[str, Any], "np.ndarray"]


def marks_of(
    moves: str, outputs: Sequence[Any], places: Sequence[Placed], classes: Sequence[str], least: float
) -> List[Marks]:
    """What a net's outputs say of each image.

    Args:
        moves: "boxes", "mask" or "points".
        outputs: The net's outputs, NumPy: `(classes, scores, boxes)`, or scores of pixels, or heat maps.
        places: Where each image lies in the net's input.
        classes: Names of the classes or points.
        least: Least score of a box.

    Returns:
        For each image `{"boxes": [{"class", "score", "box": [left, top, right, bottom]}]}`, sorted by score; or
        `{"areas": {class: share of the pixels}}`; or `{"points": {name: [x, y, score]}}`; and the label.

    Raises:
        DataError: The net gives other outputs.
    """
    shapes = [tuple(one.shape) for one in outputs]
    expected = {"boxes": (3, "(classes, scores, boxes)"), "mask": (1, "scores (B, classes, H, W)")}
    count, words = expected.get(moves, (1, "heat maps (B, points, H, W)"))
    if len(outputs) < count or (moves != "boxes" and outputs[0].ndim != 4):
        raise DataError(f"the net gives outputs of {shapes}; expected {words}")
    if moves == "boxes":
        return [_boxes(rows, place, classes, least) for rows, place in zip(detections(outputs), places)]
    one = _mask if moves == "mask" else _points
    return [one(scores, place, classes) for scores, place in zip(outputs[0], places)]


def _named(classes: Sequence[str], number: int) -> str:
    return str(classes[number]) if number < len(classes) else str(number)


def _boxes(rows: "np.ndarray", place: Placed, classes: Sequence[str], least: float) -> Marks:
    rows = rows[np.argsort(-rows[:, 5], kind="stable")]
    rows = rows[rows[:, 5] >= least]
    corners = np.sort(place.back(rows[:, :4].reshape(-1, 2, 2)), axis=1)
    sides = corners.clip(0, place.size[::-1]).reshape(-1, 4)
    found = [
        {"class": _named(classes, int(row[4])), "score": float(row[5]), "box": [float(side) for side in own]}
        for own, row in zip(sides, rows)
    ]
    return {"boxes": found}, np.column_stack([sides, rows[:, 4:]]).astype(np.float32).reshape(-1, 6)


def _mask(scores: "np.ndarray", place: Placed, classes: Sequence[str]) -> Marks:
    """The class of each pixel of the file; what the net did not see has class -1."""
    mask = place.mask_back(scores.argmax(axis=0).astype(np.int32), scores.shape[1:])
    counts = np.bincount(mask[mask >= 0], minlength=len(scores))
    areas = {_named(classes, number): float(count / mask.size) for number, count in enumerate(counts)}
    return {"areas": areas}, mask


def _points(heat: "np.ndarray", place: Placed, classes: Sequence[str]) -> Marks:
    found = points_of(heat[None])[0]
    scale = np.array(place.shape[::-1]) / heat.shape[:0:-1]
    points = np.concatenate([place.back(found[:, :2] * scale + 0.5) - 0.5, found[:, 2:]], axis=1).astype(np.float32)
    named = {_named(classes, number): [float(one) for one in row] for number, row in enumerate(points)}
    return {"points": named}, points


class CocoResults:
    """Rows of COCO's results file, which pycocotools' `loadRes` reads.

    Ids are those of the annotation files of the run's data, if it is `coco_boxes` or `coco_points` and an image is one
    of theirs. Else an image's id is its name, if all names are different numbers, or its place among the files, from 1;
    a category's id is its class number, from 1.

    Args:
        recipe: The run's recipe.
        files: The image files.
        classes: Names of the classes.

    Attributes:
        ids: What the ids are, in words.

    Raises:
        DataError: The net gives neither boxes nor points; an annotation file is damaged, or lacks some of the files.
    """

    def __init__(self, recipe: Recipe, files: Sequence[str], classes: Sequence[str]) -> None:
        if recipe.loss.made.moves not in ("boxes", "points"):
            raise DataError("COCO's results hold boxes or points, which this net does not give")
        # VOC's and COCO's readers subtract 1 from right and bottom, as gluoncv does
        self._more = 1.0 if recipe.data.name in ("coco_boxes", "voc_boxes") else 0.0
        known, found = _coco_ids(recipe)
        self._images = {file: known[Path(file).resolve()] for file in files if Path(file).resolve() in known}
        stems = [Path(file).stem for file in files]
        if self._images:
            lacking = next((file for file in files if file not in self._images), None)
            if lacking:
                raise DataError(f"{lacking} is no image of the annotation files of the run's data, and others are")
            self.ids, self._categories = "ids of the annotation files", {one["name"]: one["id"] for one in found}
            self._of_points = next((one["id"] for one in found if one.get("keypoints")), 1)
            return
        named = all(map(str.isdigit, stems)) and len(set(map(int, stems))) == len(stems)
        self._images = dict(zip(files, map(int, stems) if named else range(1, len(files) + 1)))
        self._categories, self._of_points = {str(name): number for number, name in enumerate(classes, 1)}, 1
        self.ids = f"an image's id is its {'name' if named else 'place from 1'}, a category's its class number plus 1"

    def rows(self, path: str, answer: Dict[str, Any]) -> List[Dict[str, Any]]:
        """The rows of one image, of its path and answer."""
        image = self._images[path]
        if "points" in answer:
            flat = [value for point in answer["points"].values() for value in point]
            score = float(np.mean(flat[2::3]))
            return [{"image_id": image, "category_id": self._of_points, "keypoints": flat, "score": score}]
        rows = []
        for one in answer["boxes"]:
            left, top, right, bottom = one["box"]
            bbox = [left, top, right - left + self._more, bottom - top + self._more]
            category = self._categories[one["class"]]
            rows.append({"image_id": image, "category_id": category, "bbox": bbox, "score": one["score"]})
        return rows


def _coco_ids(recipe: Recipe) -> Tuple[Dict[Path, int], List[Any]]:
    reader: Any = {"coco_boxes": coco_boxes, "coco_points": coco_points}.get(recipe.data.name)
    if reader is None:
        return {}, []
    bound = inspect.signature(reader).bind(**recipe.data.arguments)
    bound.apply_defaults()
    given = bound.arguments
    return coco_ids(Path(given["root"]).expanduser(), [given[part] for part in PARTS], given["images"])
