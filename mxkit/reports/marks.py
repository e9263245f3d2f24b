"""What a run's detector, segmentation or pose net finds in a part of the data: figures by class, the worst images."""

from heapq import nlargest
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from mxkit.core.arrays import to_host
from mxkit.core.device import as_ndarray, unpack
from mxkit.data.augment_labels import Placed
from mxkit.data.augment_steps import Place
from mxkit.data.source import source_of
from mxkit.data.splits import Splits
from mxkit.metrics.detection import PCK, MeanIoU, VOCMeanAP, confusion, matches
from mxkit.plots.marks import draw_marks
from mxkit.recipe.building import batches
from mxkit.recipe.marks import marks_of
from mxkit.recipe.schema import Recipe, augment_of, under_switches
from mxkit.reports.comparing import COLOURS, Line, Panel, draw_panel
from mxkit.training.evaluation import predict
import numpy as np

_SCORE = 0.5
# COCO's small and medium objects have fewer pixels.
_AREAS = {"small, below 32 x 32": 32**2, "medium, below 96 x 96": 96**2, "large": np.inf}


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


class Table(NamedTuple):
    """Figures of classes, points or sizes.

    Attributes:
        columns: What the rows are, and the names of the figures.
        rows: Names and figures; classes and points from the best to the worst.
    """

    columns: List[str]
    rows: List[Tuple[Any, ...]]


class MarkedPart(NamedTuple):
    """Figures and images of a part of the data.

    Attributes:
        split: The part.
        moves: "boxes", "mask" or "points".
        samples: Number of images.
        classes: Names of the classes or points.
        tables: Figures of each class or point; of boxes also those of each size.
        matrix: Boxes as `mxkit.metrics.detection.confusion` counts them, or pixels by true class and answer; of points
            None.
        curves: Precision over recall of each class, for boxes.
        worst: The images with the worst answers, in descending order.
    """

    split: str
    moves: str
    samples: int
    classes: List[str]
    tables: List[Table]
    matrix: Optional["np.ndarray"]
    curves: List[Panel]
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
    metric: Any = VOCMeanAP() if moves == "boxes" else MeanIoU() if moves == "mask" else PCK()
    near: Dict[int, List[float]] = {}
    seen, matrix = 0, None
    for batch in source_of(batches(recipe, data, split)).read(name=split, keep_count=True):
        inputs, labels = unpack(batch)
        outputs = predict(net, [batch])
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        metric.input_shape = inputs[0].shape
        metric.update([as_ndarray(labels[0])], several)
        pixels, truths = to_host(inputs[0]), to_host(labels[0])
        whole = Placed(Place(), pixels.shape[2:], pixels.shape[2:])
        marks = marks_of(moves, [to_host(one) for one in several], [whole] * len(pixels), classes, _SCORE)
        for number, (image, truth, (_, answer)) in enumerate(zip(_pictures(recipe, pixels), truths, marks), seen):
            badness, text = _badness(moves, truth, answer, near)
            if len(found) < worst or badness > found[-1].badness:
                own = draw_marks(image, truth, moves=moves, classes=classes)
                scores = answer[:, 5].tolist() if moves == "boxes" else None
                drawn = draw_marks(image, answer, moves=moves, classes=classes, scores=scores)
                found.append(MarkedImage(number, badness, text, own, drawn))
                found = nlargest(worst, found, key=lambda one: one.badness)
            if moves == "mask":
                counts = _pixels_by_class(truth, answer, several[0].shape[1])
                matrix = counts if matrix is None else matrix + counts
        seen += len(pixels)
    bad = [one for one in found if one.badness > 0]
    if moves != "boxes":
        classes += map(str, range(len(classes), len(matrix) if matrix is not None else 0))
        return MarkedPart(split, moves, seen, classes, [_by_class(metric, classes, near)], matrix, [], bad)
    answers, objects = metric.rows(_SCORE)
    classes += map(str, range(len(classes), int(max(answers[:, 4].max(initial=-1), objects[:, 4].max(initial=-1))) + 1))
    tables, matrix = _of_boxes(metric, classes), confusion(answers, objects, len(classes))
    return MarkedPart(split, moves, seen, classes, tables, matrix, _curves(metric, classes), bad)


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
            right, taken = matches(_in_image(own), _in_image(there))
            wrong += int((right == 0).sum())
            missed += int((taken[there[:, 5] == 0] < 0).sum())
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


def _pixels_by_class(truth: "np.ndarray", answer: "np.ndarray", classes: int) -> "np.ndarray":
    """Pixels by true class (row) and answer, int64 of shape (classes, classes)."""
    cells = (truth.astype(np.int64) * classes + answer)[truth >= 0]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def _by_class(metric: Any, classes: List[str], near: Dict[int, List[float]]) -> Table:
    """Figures of masks by class, or of points."""
    rows: List[Any] = []
    for number, figure in metric.by_class().items():
        distances = [float(np.mean(near[number])), len(near[number])] if near else []
        rows.append((classes[number], figure, *distances))
    columns = ["point", "PCK at 0.1", "mean distance in pixels", "points"]
    return Table(columns if near else ["class", "intersection over union"], _best_first(rows))


def _best_first(rows: List[Any]) -> List[Any]:
    return sorted(rows, key=lambda row: -row[1])


def _of_boxes(metric: VOCMeanAP, classes: List[str]) -> List[Table]:
    """Figures of each class, and of each size of objects."""
    averages = metric.by_class()
    rows, found, areas = [], [], []
    for number, right, taken, truth in metric.by_matches(_SCORE):
        counted = truth[:, 5] == 0
        hits, count, wrong = int((right == 1).sum()), int(counted.sum()), int((right == 0).sum())
        rows.append((classes[number], averages[number], count, hits, count - hits, wrong))
        found += (taken[counted] >= 0).tolist()
        areas += (truth[counted, 2:4] - truth[counted, :2]).prod(axis=1).tolist()
    sizes = np.searchsorted(list(_AREAS.values()), areas, side="right")
    groups = {name: np.array(found, bool)[sizes == size] for size, name in enumerate(_AREAS)}
    by_size = [(name, len(own), int(own.sum()), int((~own).sum())) for name, own in groups.items()]
    return [
        Table(["class", "average precision", "objects", "found", "missed", "wrong"], _best_first(rows)),
        Table(["size in pixels of the net's input", "objects", "found", "missed"], by_size),
    ]


def _curves(metric: VOCMeanAP, classes: List[str]) -> List[Panel]:
    """Precision over recall of each class, in one picture; of many classes those with the least average precision."""
    averages, curves = metric.by_class(), metric.curves()
    shown = sorted(averages, key=lambda number: averages[number])[: len(COLOURS)]
    lines = [
        Line(f"{classes[number]}, AP {averages[number]:.2f}", colour, False, list(zip(*reversed(curves[number]))))
        for number, colour in zip(sorted(shown), COLOURS)
    ]
    more = f", the {len(shown)} worst classes" if len(shown) < len(averages) else ""

    def finish(axes: Any) -> None:
        axes.set(xlim=(0, 1.02), ylim=(0, 1.05), xlabel="recall", ylabel="precision")

    return [draw_panel(f"Precision over recall{more}", lines, finish, marker="")]
