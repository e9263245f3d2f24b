"""What detectors, segmentation nets and pose nets say of image files, in pixels of the files."""

from typing import Any, Dict, List, Sequence, Tuple

from mxkit.data.augment_labels import Placed
from mxkit.errors import DataError
from mxkit.metrics.detection import detections, points_of
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
    height, width = place.size
    corners = place.back(rows[:, :4].reshape(-1, 2, 2)).reshape(-1, 4)
    sides = np.sort(corners.reshape(-1, 2, 2), axis=1).reshape(-1, 4).clip(0, [width, height, width, height])
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
