"""What a run's detector, segmentation or pose net finds in a part of the data: figures by class, the worst images."""

from heapq import nlargest
from typing import Any, Dict, List, NamedTuple, Tuple

from mxkit.core.arrays import to_host
from mxkit.core.device import as_ndarray, unpack
from mxkit.data.augment_labels import Placed
from mxkit.data.augment_steps import Place
from mxkit.data.source import source_of
from mxkit.data.splits import Splits
from mxkit.metrics.detection import MeanIoU, VOCMeanAP, matches
from mxkit.plots.marks import draw_marks
from mxkit.recipe.building import batches
from mxkit.recipe.marks import marks_of
from mxkit.recipe.schema import Recipe, augment_of, under_switches
from mxkit.training.evaluation import predict
import numpy as np

_SCORE = 0.5


class MarkedImage(NamedTuple):
    """An image of the part.

    Attributes:
        number: Its number in the part.
        badness: How wrong the answer is: wrong and missed boxes, the share of wrong pixels, or the mean distance of the
            points in pixels.
        text: The same in words.
        truth: The image with its label, uint8.
        answer: The image with the net's answer, uint8.
    """

    number: int
    badness: float
    text: str
    truth: "np.ndarray"
    answer: "np.ndarray"


class MarkedPart(NamedTuple):
    """Figures and images of a part of the data.

    Attributes:
        split: The part.
        moves: "boxes", "mask" or "points".
        samples: Number of images.
        columns: Names of the figures.
        rows: Name of each class and its figures, the best class first.
        worst: The images with the worst answers, in descending order.
    """

    split: str
    moves: str
    samples: int
    columns: List[str]
    rows: List[Tuple[str, List[float]]]
    worst: List[MarkedImage]


@under_switches
def marked_part(recipe: Recipe, net: Any, data: Splits, *, worst: int = 12) -> MarkedPart:
    """Look for boxes, masks or points in the part of the data that the final scores are of.

    Args:
        recipe: Recipe of the run.
        net: The trained net.
        data: Data of the recipe.
        worst: Largest number of images to keep.
    """
    split, moves = recipe.evaluate.split, recipe.loss.made.moves
    classes = list(map(str, data.classes))
    found: List[MarkedImage] = []
    metric: Any = VOCMeanAP() if moves == "boxes" else MeanIoU()
    near: Dict[int, List[float]] = {}
    seen = 0
    for batch in source_of(batches(recipe, data, split)).read(name=split, keep_count=True):
        inputs, labels = unpack(batch)
        outputs = predict(net, [batch])
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        if moves != "points":
            metric.update([as_ndarray(labels[0])], several)
        pixels, truths = to_host(inputs[0]), to_host(labels[0])
        whole = Placed(Place(), pixels.shape[2:], pixels.shape[2:])
        marks = marks_of(moves, [to_host(one) for one in several], [whole] * len(pixels), classes, _SCORE)
        for image, truth, (_, answer) in zip(_pictures(recipe, pixels), truths, marks):
            badness, text = _badness(moves, truth, answer, near)
            if len(found) < worst or badness > found[-1].badness:
                own = draw_marks(image, truth, moves=moves, classes=classes)
                scores = answer[:, 5].tolist() if moves == "boxes" else None
                drawn = draw_marks(image, answer, moves=moves, classes=classes, scores=scores)
                found.append(MarkedImage(seen, badness, text, own, drawn))
                found = nlargest(worst, found, key=lambda one: one.badness)
            seen += 1
    columns, rows = _by_class(moves, metric, near)
    named = [(classes[number] if number < len(classes) else str(number), row) for number, row in rows]
    return MarkedPart(split, moves, seen, columns, named, [one for one in found if one.badness > 0])


def _pictures(recipe: Recipe, pixels: "np.ndarray") -> "np.ndarray":
    """Inputs of the net as uint8 (B, H, W, 3), without the normalization of `data.eval_augment`."""
    augment = augment_of(recipe.data.eval_augment)
    normal = None if augment is None else augment.normalize
    if normal is not None:
        std, mean = (np.asarray(one, np.float32).reshape(-1, 1, 1) for one in (normal.std, normal.mean))
        pixels = pixels * std + mean
    return np.asarray((pixels * 255).round().clip(0, 255), np.uint8).transpose(0, 2, 3, 1)


def _badness(moves: str, truth: "np.ndarray", answer: "np.ndarray", near: Dict[int, List[float]]) -> Tuple[float, str]:
    if moves == "boxes":
        objects = truth[truth[:, 4] >= 0]
        wrong = missed = 0
        for number in {*objects[:, 4].tolist(), *answer[:, 4].tolist()}:
            own, there = answer[answer[:, 4] == number], objects[objects[:, 4] == number]
            right, count = matches(_in_image(own), _in_image(there), 0.5)
            wrong += int((right == 0).sum())
            missed += max(0, count - int((right == 1).sum()))
        return float(wrong + missed), f"{wrong} wrong, {missed} missed"
    if moves == "mask":
        counted = truth >= 0
        share = float((answer != truth)[counted].mean()) if counted.any() else 0.0
        return share, f"{share:.1%} of the pixels wrong"
    known = truth[:, 2] > 0
    away = np.hypot(*(answer[:, :2] - truth[:, :2]).T)
    for number in np.flatnonzero(known).tolist():
        near.setdefault(number, []).append(float(away[number]))
    mean = float(away[known].mean()) if known.any() else 0.0
    return mean, f"points {mean:.1f} pixels away"


def _in_image(rows: "np.ndarray") -> "np.ndarray":
    return np.column_stack([rows, np.zeros(len(rows))])


def _by_class(moves: str, metric: Any, near: Dict[int, List[float]]) -> Tuple[List[str], List[Tuple[int, List[float]]]]:
    """Columns, and the figures of each class, the best first."""
    if moves == "points":
        rows = [(number, [float(np.mean(one)), float(len(one))]) for number, one in near.items()]
        return ["mean distance in pixels", "points"], sorted(rows, key=lambda row: row[1][0])
    if moves == "mask":
        rows = [(number, [one]) for number, one in metric.by_class().items()]
        return ["intersection over union"], sorted(rows, key=lambda row: -row[1][0])
    averages = metric.by_class()
    found, truth = metric.rows()
    rows = []
    for number, average in averages.items():
        own = found[(found[:, 4] == number) & (found[:, 5] >= _SCORE)]
        own = own[np.argsort(-own[:, 5], kind="stable")]
        right, count = matches(own, truth[truth[:, 4] == number], 0.5, pixel=1.0)
        hits = int((right == 1).sum())
        rows.append((number, [average, float(count), float(hits), float(count - hits), float((right == 0).sum())]))
    return ["average precision", "objects", "found", "missed", "wrong"], sorted(rows, key=lambda row: -row[1][0])
