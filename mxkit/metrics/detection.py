"""Figures of detection, segmentation and pose, over whole sets."""

from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arrays import to_host
from mxkit.errors import DataError
from mxkit.metrics.metric import Metric
import mxnet as mx
import numpy as np


class _OfBoxes(Metric):
    """A figure over all objects of a set: rows of what was found and what is there are kept on the host.

    The batch's last label is the table of boxes, (B, M, 6), of which missing rows are -1; the net's output is
    `(classes, scores, boxes)`. In training, gluoncv's detectors give other outputs, so only validation is measured.
    """

    better = "max"
    in_training = False

    def __init__(self, *, name: Optional[str] = None) -> None:
        super().__init__(name=name)

    def reset(self) -> None:
        self._found: List[np.ndarray] = []
        self._truth: List[np.ndarray] = []
        self._samples: int = 0

    def update(self, labels: Sequence[Any], output: Any) -> None:
        if not isinstance(output, (list, tuple)) or len(output) != 3 or not labels or labels[-1].shape[-1:] != (6,):
            raise DataError(
                f"metric {self.name!r}: expected the output (classes, scores, boxes) of a detector, and boxes "
                "(B, M, 6) as the last label"
            )
        truth = to_host(labels[-1])
        for number, (rows, objects) in enumerate(zip(detections(output), truth), self._samples):
            self._found.append(_numbered(rows, number))
            self._truth.append(_numbered(objects[objects[:, 4] >= 0], number))
        self._samples += len(truth)

    def state(self) -> Tuple[Any, Dict[str, Any]]:
        rows = (("found", _joined(self._found)), ("truth", _joined(self._truth)))
        return [self._samples], {name: mx.nd.array(one) for name, one in rows if len(one)}

    def load_state(self, numbers: Any, arrays: Mapping[str, Any], devices: Sequence["mx.Context"]) -> None:
        self.reset()
        self._samples = numbers[0]
        self._found = [arrays["found"].asnumpy()] if "found" in arrays else []
        self._truth = [arrays["truth"].asnumpy()] if "truth" in arrays else []

    def part(self) -> Any:
        return [self._samples, _joined(self._found).tolist(), _joined(self._truth).tolist()]

    def take(self, parts: Sequence[Any]) -> None:
        self.reset()
        for samples, *tables in parts:
            for rows, table in zip((self._found, self._truth), tables):
                shifted = np.array(table, np.float32).reshape(-1, 7)
                shifted[:, 6] += self._samples
                rows.append(shifted)
            self._samples += samples

    def rows(self, least: float = -np.inf) -> Tuple["np.ndarray", "np.ndarray"]:
        """What was found, (N, 7): sides, class, score, image; and the objects: sides, class, difficult, image.

        Args:
            least: Least score of what was found; the largest is first.
        """
        found = _joined(self._found)
        found = found[np.argsort(-found[:, 5], kind="stable")]
        return found[found[:, 5] >= least], _joined(self._truth)

    def by_class(self) -> Dict[int, float]:
        """The figure of each class that has an object."""
        raise NotImplementedError

    def get(self) -> float:
        """Mean of the figure over the classes with an object; NaN without one."""
        found = list(self.by_class().values())
        return float(np.mean(found)) if found else float("nan")


def detections(output: Sequence[Any]) -> List["np.ndarray"]:
    """What a detector found in each image, (N, 6) with columns left, top, right, bottom, class, score.

    Args:
        output: `(classes, scores, boxes)` of shape (B, N, 1) or (B, N), and (B, N, 4); class -1 for nothing.
    """
    ids, scores, boxes = (to_host(one) for one in output)
    batch = len(boxes)
    tables = np.concatenate([boxes, ids.reshape(batch, -1, 1), scores.reshape(batch, -1, 1)], axis=2)
    return [table[table[:, 4] >= 0] for table in tables]


def _numbered(rows: "np.ndarray", image: int) -> "np.ndarray":
    return np.column_stack([rows, np.full(len(rows), image)]).astype(np.float32)


def _joined(rows: Sequence["np.ndarray"]) -> "np.ndarray":
    return np.concatenate(rows) if rows else np.zeros((0, 7), np.float32)


def overlaps(first: "np.ndarray", second: "np.ndarray") -> "np.ndarray":
    """Intersection over union of boxes (N, 4) and (M, 4), shape (N, M); right and bottom count as pixels, as in VOC."""
    low, high = np.maximum(first[:, None, :2], second[:, :2]), np.minimum(first[:, None, 2:], second[:, 2:])
    both = (high - low + 1).clip(0).prod(axis=2)
    areas = [(one[:, 2:] - one[:, :2] + 1).prod(axis=1) for one in (first, second)]
    shares: np.ndarray = both / np.maximum(areas[0][:, None] + areas[1] - both, 1e-12)
    return shares


def matches(found: "np.ndarray", truth: "np.ndarray", iou: float = 0.5) -> Tuple["np.ndarray", "np.ndarray"]:
    """Which findings are right, by the rule of VOC.

    A finding belongs to the object of its image that it overlaps most. The first one of each object, by score, is
    right; difficult objects, and what belongs to them, do not count.

    Args:
        found: Rows of `VOCMeanAP.rows`, of one class or of all.
        truth: The objects.
        iou: Least overlap.

    Returns:
        For each finding 1 if it is right, 0 if it is wrong, -1 if it does not count; and for each object the number of
        the finding that is right, or -1.
    """
    right, taken = np.zeros(len(found), np.int64), np.full(len(truth), -1)
    for number, row in enumerate(found):
        own = np.flatnonzero(truth[:, 6] == row[6])
        shares = overlaps(row[None, :4], truth[own, :4])[0]
        if shares.max(initial=0) >= iou:
            best = own[shares.argmax()]
            if truth[best, 5]:
                right[number] = -1
            elif taken[best] < 0:
                right[number], taken[best] = 1, number
    return right, taken


def confusion(found: "np.ndarray", truth: "np.ndarray", classes: int) -> "np.ndarray":
    """Objects by their class (row) and the class of the surest box that overlaps them by half, whatever that class is.

    Args:
        found: Rows of `VOCMeanAP.rows`.
        truth: The objects.
        classes: Number of classes.

    Returns:
        int64 of shape (classes + 1, classes + 1): the last column counts objects that no box finds, the last row boxes
        that find nothing, among them second boxes of an object.
    """
    table = np.zeros((classes + 1, classes + 1), np.int64)
    right, taken = matches(found, truth)
    answers = np.append(found[:, 4], classes)[taken]  # -1 is the last
    counted = truth[:, 5] == 0
    np.add.at(table, (truth[counted, 4].astype(int), answers[counted].astype(int)), 1)
    np.add.at(table, (classes, found[right == 0, 4].astype(int)), 1)
    return table


class VOCMeanAP(_OfBoxes):
    """Mean average precision of boxes: gluoncv's `VOCMApMetric`, or `VOC07MApMetric` with 11 points.

    Objects that are difficult count neither as found nor as missed. A class without an object has no average precision
    and is left out of the mean. As in VOC's own program and in gluoncv, right and bottom count as pixels of a box, so
    overlaps of small boxes are a little larger than their areas say.

    Args:
        iou: A box finds an object if their intersection is at least this share of their union.
        points: 11 for the rule of VOC 2007; None integrates precision over recall, as VOC does since 2010.
        name: As for `Metric`.
    """

    name = "voc_map"

    def __init__(self, iou: float = 0.5, points: Optional[int] = None, *, name: Optional[str] = None) -> None:
        if points not in (None, 11):
            raise ValueError(f"VOCMeanAP: points: expected 11 or None; received {points!r}")
        if not 0 < iou <= 1:
            raise ValueError(f"VOCMeanAP: iou: expected a share above 0, up to 1; received {iou!r}")
        self._iou, self._points = iou, points
        super().__init__(name=name)

    def by_matches(self, least: float = -np.inf) -> Iterator[Tuple[int, "np.ndarray", "np.ndarray", "np.ndarray"]]:
        """Each class with an object: its number, what `matches` says of its findings and objects, and its objects.

        Args:
            least: As for `rows`.
        """
        found, truth = self.rows(least)
        for number in np.unique(truth[truth[:, 5] == 0, 4]).astype(int).tolist():
            own = truth[truth[:, 4] == number]
            yield (number, *matches(found[found[:, 4] == number], own, self._iou), own)

    def curves(self) -> Dict[int, Tuple["np.ndarray", "np.ndarray"]]:
        """Precision and recall after each finding, by class; the classes are those with an object."""
        curves = {}
        for number, right, _, truth in self.by_matches():
            hits, misses = np.cumsum(right == 1), np.cumsum(right == 0)
            curves[number] = (hits / np.maximum(hits + misses, 1), hits / (truth[:, 5] == 0).sum())
        return curves

    def by_class(self) -> Dict[int, float]:
        return {number: self._average(*curve) for number, curve in self.curves().items()}

    def _average(self, precision: "np.ndarray", recall: "np.ndarray") -> float:
        if self._points:
            steps = np.arange(0.0, 1.1, 0.1)
            reached = [precision[recall >= step] for step in steps]
            return float(np.mean([one.max() if len(one) else 0.0 for one in reached]))
        precision, recall = np.concatenate([[0.0], precision, [0.0]]), np.concatenate([[0.0], recall, [1.0]])
        highest = np.maximum.accumulate(precision[::-1])[::-1]
        steps = np.flatnonzero(recall[1:] != recall[:-1])
        return float(((recall[steps + 1] - recall[steps]) * highest[steps + 1]).sum())


class COCOMeanAP(_OfBoxes):
    """COCO's average precision: the mean over overlaps from 0.5 to 0.95, by pycocotools.

    Crowds (difficult objects) count neither as found nor as missed.

    Raises:
        ImportError: pycocotools is not installed.
    """

    name = "coco_ap"

    def by_class(self) -> Dict[int, float]:
        evaluation = self._evaluated()
        if evaluation is None:
            return {}
        precision = evaluation.eval["precision"][:, :, :, 0, -1]  # overlaps, recalls, classes; all sizes, 100 findings
        means = {number: precision[:, :, place] for place, number in enumerate(evaluation.params.catIds)}
        return {number: float(one[one > -1].mean()) for number, one in means.items() if (one > -1).any()}

    def _evaluated(self) -> Any:
        try:
            from pycocotools.coco import COCO
            from pycocotools.cocoeval import COCOeval
        except ImportError as error:
            raise ImportError("metric 'coco_ap' needs pycocotools: pip install pycocotools") from error
        from contextlib import redirect_stdout
        from io import StringIO

        found, truth = self.rows()
        if not len(truth):
            return None
        ids = {"images": range(self._samples), "categories": np.union1d(truth[:, 4], found[:, 4]).astype(int).tolist()}
        common = {name: [{"id": one} for one in numbers] for name, numbers in ids.items()}
        with redirect_stdout(StringIO()):
            sets = [COCO(), COCO()]
            for coco, rows, field in zip(sets, (truth, found), ("iscrowd", "score")):
                coco.dataset = {**common, "annotations": [_coco_box(*one, field) for one in enumerate(rows, 1)]}
                coco.createIndex()
            evaluation = COCOeval(*sets, "bbox")
            evaluation.evaluate()
            evaluation.accumulate()
        return evaluation


def _coco_box(number: int, row: "np.ndarray", field: str) -> Dict[str, Any]:
    left, top, right, bottom, kind, value, image = row.tolist()
    box = {"id": number, "image_id": int(image), "category_id": int(kind), "iscrowd": 0, field: value}
    return {**box, "bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}


class MeanIoU(Metric):
    """Mean over classes of intersection / union of pixels: gluoncv's `SegmentationMetric`, over the whole set.

    Labels are class numbers (B, H, W), and -1 is ignored; the output is (B, classes, H, W), the first of several. A
    class that neither labels nor answers hold is left out; gluoncv counts it as 0 (T268).
    """

    name = "mean_iou"
    better = "max"

    def update(self, labels: Sequence[Any], output: Any) -> None:
        (label, *_), scores = self.chosen(labels, output)
        if len(scores.shape) != 4 or len(label.shape) != 3:
            raise DataError(
                f"metric {self.name!r}: expected outputs (B, classes, H, W) and masks (B, H, W); received "
                f"{tuple(scores.shape)} and {tuple(label.shape)}"
            )
        if scores.shape[2:] != label.shape[1:]:
            scores = mx.nd.contrib.BilinearResize2D(scores, height=label.shape[1], width=label.shape[2])
        label, answer = label.astype("float32"), scores.argmax(axis=1)
        ignored = -mx.nd.ones_like(answer)
        masked = mx.nd.where(label >= 0, answer, ignored)
        hit = mx.nd.where(answer == label, masked, ignored)
        # float64 is exact beyond 2**24; one class after the other needs no table of all pixels
        classes = range(scores.shape[1])
        areas = [(one == number).astype("float64").sum() for one in (hit, masked, label) for number in classes]
        self.add_total(mx.nd.concat(*areas, dim=0), label.shape[0])

    def by_class(self) -> Dict[int, float]:
        """The share of each class that labels or answers hold."""
        both, union = self._both_and_union(self.total())
        return {int(number): float(both[number] / union[number]) for number in np.flatnonzero(union)}

    def figure(self, total: "np.ndarray") -> float:
        both, union = self._both_and_union(total)
        return float((both[union > 0] / union[union > 0]).mean()) if union.any() else float("nan")

    def _both_and_union(self, total: "np.ndarray") -> Tuple["np.ndarray", "np.ndarray"]:
        both, found, truth = total.reshape(3, -1)
        return both, found + truth - both


class PixelAccuracy(MeanIoU):
    """Share of pixels with the right class, of those that are not ignored."""

    name = "pixel_accuracy"

    def figure(self, total: "np.ndarray") -> float:
        both, _, truth = total.reshape(3, -1)
        return float(both.sum() / truth.sum()) if truth.any() else float("nan")


def points_of(heat: Any) -> "np.ndarray":
    """Points of heat maps (B, K, H, W): (B, K, 3) with x, y in cells and the score, as gluoncv's `get_final_preds`.

    The point is moved a quarter of a cell towards the larger neighbour.
    """
    maps = to_host(heat)
    batch, count, rows, columns = maps.shape
    places = maps.reshape(batch, count, -1).argmax(axis=2)
    y, x = places // columns, places % columns
    image, point = np.indices((batch, count))

    def towards(rise: Any, place: Any, length: int) -> Any:
        return np.where((place > 0) & (place < length - 1), np.sign(rise) * 0.25, 0)

    def at(dy: int, dx: int) -> Any:
        return maps[image, point, (y + dy).clip(0, rows - 1), (x + dx).clip(0, columns - 1)]

    moved = [x + towards(at(0, 1) - at(0, -1), x, columns), y + towards(at(1, 0) - at(-1, 0), y, rows)]
    return np.stack([*moved, at(0, 0)], axis=2).astype(np.float32)


class PCK(Metric):
    """Percentage of correct keypoints: the share of known points that are found near enough.

    Labels are points (B, K, 3) in pixels of the image, the output heat maps (B, K, H, W). Near enough is a share of the
    longer side of the rectangle around the known points of a sample. A sample whose known points all lie at one place,
    such as a single one, has no size, and is left out.

    Args:
        share: Largest distance as a share of the size.
        scale: Pixels of the image for one cell of the map; None is the size of the net's input divided by the map's.
        name: As for `Metric`.
        **kwargs: `output` and `label`, as for `Metric`.
    """

    name = "pck"
    better = "max"

    def __init__(
        self, share: float = 0.1, scale: Optional[float] = None, *, name: Optional[str] = None, **kwargs: Any
    ) -> None:
        if not (share > 0 and (scale is None or scale > 0)):
            raise ValueError(f"PCK: share, scale: expected numbers above 0; received {share!r} and {scale!r}")
        self._share, self._scale = share, scale
        super().__init__(name=name, **kwargs)

    def update(self, labels: Sequence[Any], output: Any) -> None:
        (label, *_), heat = self.chosen(labels, output)
        if self._scale is None and len(self.input_shape) != 4:
            raise DataError(f"metric {self.name!r}: the size of the images is not known: pass scale=")
        scale: Any = self._scale or np.divide(self.input_shape[:1:-1], heat.shape[:1:-1])
        truth, found = to_host(label), points_of(heat)
        known = truth[:, :, 2] > 0
        size = self._size(*_sides(truth, known))[:, None]
        known &= size > 0
        away = np.sqrt(((found[:, :, :2] * scale - truth[:, :, :2]) ** 2).sum(axis=2))
        values = self._values(away, np.where(size > 0, size, 1.0)) * known
        sums = np.concatenate([values.sum(axis=0), known.sum(axis=0)])
        self.add_total(mx.nd.array(sums, ctx=heat.ctx, dtype="float64"), float(known.sum()))

    def by_class(self) -> Dict[int, float]:
        """The figure of each point that is known somewhere."""
        right, known = self.total().reshape(2, -1)
        return {int(number): float(right[number] / known[number]) for number in np.flatnonzero(known)}

    def figure(self, total: "np.ndarray") -> float:
        right, known = total.reshape(2, -1).sum(axis=1)
        return float(right / known) if known else float("nan")

    def _size(self, width: "np.ndarray", height: "np.ndarray") -> "np.ndarray":
        return np.asarray(np.maximum(width, height))

    def _values(self, away: "np.ndarray", size: "np.ndarray") -> "np.ndarray":
        return np.asarray(away <= self._share * size, np.float64)


class OKS(PCK):
    """Mean object keypoint similarity of known points: COCO's `exp(-d**2 / (2 * area * (2 * sigma)**2))`.

    Labels and output are those of `PCK`. The area is that of the rectangle around the known points of a sample, since
    labels have no other; COCO's is that of the object's outline. A sample whose known points lie on one row or column
    has none, and is left out.

    Args:
        sigma: COCO's constant of a point's spread, one for all points.
        scale: As for `PCK`.
        name: As for `Metric`.
        **kwargs: As for `PCK`.
    """

    name = "oks"

    def __init__(
        self, sigma: float = 0.05, scale: Optional[float] = None, *, name: Optional[str] = None, **kwargs: Any
    ) -> None:
        self._sigma = sigma
        super().__init__(scale=scale, name=name, **kwargs)

    def _size(self, width: "np.ndarray", height: "np.ndarray") -> "np.ndarray":
        return np.asarray(width * height)

    def _values(self, away: "np.ndarray", size: "np.ndarray") -> "np.ndarray":
        return np.asarray(np.exp(-(away**2) / (2 * size * (2 * self._sigma) ** 2)))


def _sides(points: "np.ndarray", known: "np.ndarray") -> "np.ndarray":
    """Width and height (2, B) of the rectangle around the known points of each sample; 0 without any."""
    if not points.size:
        return np.zeros((2, len(points)))
    low = np.where(known[:, :, None], points[:, :, :2], np.inf).min(axis=1)
    high = np.where(known[:, :, None], points[:, :, :2], -np.inf).max(axis=1)
    return np.where(known.any(axis=1), (high - low).T, 0.0)
