"""Boxes, masks and points that move with their image, and the steps of an Augment for detection and segmentation.

Each step scales and shifts both axes, as its `place` says: what was at x is then at `scale * x + shift`.
gluoncv's transforms draw from the generators of the process, so their numbers cannot be a function of the sample.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, List, NamedTuple, Sequence, Tuple

from mxkit.data.augment_steps import (
    COLOUR,
    INTERPOLATION,
    PROBABILITY,
    RANGE,
    SIZE,
    Checks,
    Crop,
    Fill,
    Place,
    Range,
    Rng,
    Size,
    Step,
    colour,
    pair,
    resized_within,
)
import numpy as np


class Placed(NamedTuple):
    """Where an image lies in what steps made of it.

    Attributes:
        place: The move of all steps together.
        size: Height and width of the image.
        shape: Height and width of the result.
    """

    place: Place
    size: Tuple[int, int]
    shape: Tuple[int, int]

    def back(self, points: "np.ndarray") -> "np.ndarray":
        """Places in the image, of places (..., 2) in the result."""
        place = self.place
        moved: np.ndarray = (points - [place.shift_x, place.shift_y]) / [place.scale_x, place.scale_y]
        return moved

    def mask_back(self, mask: "np.ndarray", shape: Tuple[int, ...]) -> "np.ndarray":
        """The mask of the image, of a mask (rows, columns) of the result, at any resolution; -1 outside."""
        factor_x, factor_y = shape[1] / self.shape[1], shape[0] / self.shape[0]
        place, moved = self.place, Moved(mask, "mask")
        moved.follow(Place(1 / factor_x, 0.0, 1 / factor_y, 0.0), self.shape)
        across, down = -place.shift_x / place.scale_x, -place.shift_y / place.scale_y
        moved.follow(Place(1 / place.scale_x, across, 1 / place.scale_y, down), self.size)
        return moved.label(self.size)


def padded(boxes: "np.ndarray", rows: int) -> "np.ndarray":
    """Boxes (M, 6) with rows of -1 up to a number of rows."""
    table: np.ndarray = np.full((rows, 6), -1, np.float32)
    table[: len(boxes)] = boxes
    return table


class Moved:
    """A label that follows its image through the steps.

    Args:
        label: As `AnnotatedImages` gives it.
        moves: "boxes", "mask" or "points".
        pairs: As for `AnnotatedImages`.
    """

    def __init__(self, label: "np.ndarray", moves: str, pairs: Sequence[Tuple[int, int]] = ()) -> None:
        self._label, self._moves, self._pairs = label, moves, pairs
        self._scale, self._shift = np.ones(2), np.zeros(2)
        self.boxes: np.ndarray = label[label[:, 4] >= 0] if moves == "boxes" else np.zeros((0, 6), np.float32)

    def follow(self, place: Place, shape: Tuple[int, int]) -> None:
        """Move the label by one step, to an image of this height and width."""
        scale, shift = np.array([place.scale_x, place.scale_y]), np.array([place.shift_x, place.shift_y])
        self._scale, self._shift = scale * self._scale, scale * self._shift + shift
        if len(self.boxes):
            self.boxes = moved_boxes(self.boxes, scale, shift, shape)

    @property
    def place(self) -> Place:
        """The move of all steps together."""
        return Place(*(float(one) for pair in zip(self._scale, self._shift) for one in pair))

    def label(self, shape: Tuple[int, int]) -> "np.ndarray":
        """The label for the last image, of this height and width."""
        if self._moves == "boxes":
            return padded(self.boxes, len(self._label))
        if self._moves == "mask":
            return moved_mask(self._label, self._scale, self._shift, shape)
        return moved_points(self._label, self._scale, self._shift, shape, self._pairs)


def moved_boxes(boxes: "np.ndarray", scale: "np.ndarray", shift: "np.ndarray", shape: Tuple[int, int]) -> "np.ndarray":
    """Boxes (M, 6) in an image of this height and width, cut at its borders, without those whose centre is outside."""
    corners = boxes[:, :4].reshape(-1, 2, 2) * scale + shift
    low, high, size = corners.min(axis=1), corners.max(axis=1), np.array(shape[::-1])
    centre = (low + high) / 2
    inside = ((centre >= 0) & (centre < size)).all(axis=1)  # as gluoncv: an object is where its centre is
    sides = np.concatenate([low.clip(0, size), high.clip(0, size)], axis=1)
    kept = inside & (sides[:, 2:] > sides[:, :2]).all(axis=1)
    moved: np.ndarray = np.concatenate([sides, boxes[:, 4:]], axis=1)[kept].astype(np.float32)
    return moved


def moved_mask(mask: "np.ndarray", scale: "np.ndarray", shift: "np.ndarray", shape: Tuple[int, int]) -> "np.ndarray":
    """For each pixel of an image of this height and width that of the mask under its centre; -1 outside."""
    axes = []
    for axis, length in ((1, shape[0]), (0, shape[1])):
        source = np.floor((np.arange(length) + 0.5 - shift[axis]) / scale[axis]).astype(np.int64)
        axes.append((source, (source >= 0) & (source < mask.shape[1 - axis])))
    (rows, in_rows), (columns, in_columns) = axes
    moved: np.ndarray = np.full(shape, -1, np.int32)
    moved[np.ix_(in_rows, in_columns)] = mask[np.ix_(rows[in_rows], columns[in_columns])]
    return moved


def moved_points(
    label: "np.ndarray",
    scale: "np.ndarray",
    shift: "np.ndarray",
    shape: Tuple[int, int],
    pairs: Sequence[Tuple[int, int]],
) -> "np.ndarray":
    """Points (K, 3) in an image of this height and width; left and right swap if it is mirrored."""
    points: np.ndarray = label.astype(np.float32)
    if scale[0] < 0:
        for left, right in pairs:
            points[[left, right]] = points[[right, left]]
    places = (points[:, :2] + 0.5) * scale + shift - 0.5
    inside = ((places >= -0.5) & (places < np.array(shape[::-1]) - 0.5)).all(axis=1)
    points[:, :2] = places
    points[:, 2] *= inside
    points[points[:, 2] == 0] = 0
    return points


@dataclass(frozen=True)
class Expand(Step):
    """Put the image at a random place of a canvas up to `ratio` times as wide and high: gluoncv's `random_expand`."""

    ratio: float = 4.0
    p: float = 0.5
    fill: Fill = (0.485, 0.456, 0.406)

    checks: ClassVar[Checks] = {
        "ratio": ("a number of at least 1", lambda value: value >= 1),
        "p": PROBABILITY,
        "fill": COLOUR,
    }

    def draw(self, rng: Rng, image: "np.ndarray") -> Tuple[int, int, int, int]:
        rows, columns = image.shape[:2]
        chosen, ratio = rng.random() < self.p, rng.uniform(1, self.ratio)
        height, width = (int(rows * ratio), int(columns * ratio)) if chosen else (rows, columns)
        return int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1)), height, width

    def apply(self, image: "np.ndarray", drawn: Tuple[int, int, int, int], white: float) -> "np.ndarray":
        return _framed(image, *drawn, self.fill, white)

    def place(self, drawn: Tuple[int, int, int, int], shape: Tuple[int, ...]) -> Place:
        return Place(shift_x=drawn[1], shift_y=drawn[0])


@dataclass(frozen=True)
class BoxCrop(Step):
    """Cut out a part that overlaps the boxes as SSD's crops do: gluoncv's `random_crop_with_constraints`.

    One of six rules is drawn: the least overlap with a box is 0.1, 0.3, 0.5, 0.7 or 0.9, or any; or the whole image is
    taken. An image without boxes stays whole.
    """

    area: Range = (0.09, 1.0)
    ratio: Range = (0.5, 2.0)

    checks: ClassVar[Checks] = {"area": RANGE, "ratio": RANGE}

    def draw_for(self, rng: Rng, image: "np.ndarray", boxes: "np.ndarray") -> Tuple[int, int, int, int]:
        rows, columns = image.shape[:2]
        whole = (0, 0, rows, columns)
        least = (0.1, 0.3, 0.5, 0.7, 0.9, 0.0, None)[rng.integers(7)]
        boxes = boxes[:, :4]
        if least is None or not len(boxes):
            return whole
        for _ in range(50):
            area, ratio = rng.uniform(*self.area), np.exp(rng.uniform(*np.log(self.ratio)))
            width, height = (int(side) for side in (columns * np.sqrt(area * ratio), rows * np.sqrt(area / ratio)))
            if not (0 < width <= columns and 0 < height <= rows):
                continue
            top, left = int(rng.integers(rows - height + 1)), int(rng.integers(columns - width + 1))
            part = np.array([left, top, left + width, top + height])
            both = (np.minimum(boxes[:, 2:], part[2:]) - np.maximum(boxes[:, :2], part[:2])).clip(0).prod(axis=1)
            union = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + width * height - both
            centres = (boxes[:, :2] + boxes[:, 2:]) / 2
            inside = ((centres >= part[:2]) & (centres < part[2:])).all(axis=1)
            if inside.any() and (both / union).min() >= least:
                return top, left, height, width
        return whole

    def draw(self, rng: Rng, image: "np.ndarray") -> Any:
        raise TypeError("Augment: box_crop needs boxes: DatasetLoader(part, transform=Augment([...])) passes them")

    def apply(self, image: "np.ndarray", drawn: Tuple[int, int, int, int], white: float) -> "np.ndarray":
        top, left, height, width = drawn
        return image[top : top + height, left : left + width]

    def place(self, drawn: Tuple[int, int, int, int], shape: Tuple[int, ...]) -> Place:
        return Place(shift_x=-drawn[1], shift_y=-drawn[0])


@dataclass(frozen=True)
class Letterbox(Step):
    """Resize the image to fit into `size` and keep its ratio; the rest around it has the colour `fill`."""

    size: Size
    fill: Fill = 0.5
    interpolation: str = "bilinear"
    draws: ClassVar[bool] = False

    checks: ClassVar[Checks] = {"size": SIZE, "fill": COLOUR, "interpolation": INTERPOLATION}

    def _inner(self, shape: Sequence[int]) -> Tuple[int, int, int, int]:
        """Width and height of the image in the result, and its left and top."""
        width, height = pair(self.size)
        scale = min(width / shape[1], height / shape[0])
        inner = max(1, round(shape[1] * scale)), max(1, round(shape[0] * scale))
        return (*inner, (width - inner[0]) // 2, (height - inner[1]) // 2)

    def apply(self, image: "np.ndarray", drawn: None, white: float) -> "np.ndarray":
        width, height, left, top = self._inner(image.shape)
        inner = resized_within(image, (width, height), self.interpolation, white)
        return _framed(inner, top, left, *pair(self.size)[::-1], self.fill, white)

    def place(self, drawn: None, shape: Tuple[int, ...]) -> Place:
        width, height, left, top = self._inner(shape)
        return Place(width / shape[1], left, height / shape[0], top)


@dataclass(frozen=True)
class ScaledCrop(Step):
    """Resize the image so that its shorter side is `size` times a random factor, and cut `size` out of it.

    A smaller image is put on a canvas of colour `fill`, whose mask is -1: gluoncv's `_sync_transform` of segmentation.
    """

    size: Size
    scale: Range = (0.5, 2.0)
    fill: Fill = 0.0
    interpolation: str = "bilinear"

    checks: ClassVar[Checks] = {"size": SIZE, "scale": RANGE, "fill": COLOUR, "interpolation": INTERPOLATION}

    def draw(self, rng: Rng, image: "np.ndarray") -> List[int]:
        width, height = pair(self.size)
        factor = max(1, round(min(width, height) * rng.uniform(*self.scale))) / min(image.shape[:2])
        rows, columns = (max(1, round(side * factor)) for side in image.shape[:2])
        top, left = (int(rng.integers(abs(have - want) + 1)) for have, want in ((rows, height), (columns, width)))
        return [rows, columns, top if rows >= height else -top, left if columns >= width else -left]

    def apply(self, image: "np.ndarray", drawn: List[int], white: float) -> "np.ndarray":
        rows, columns, top, left = drawn
        resized = resized_within(image, (columns, rows), self.interpolation, white)
        return Crop(self.size, fill=self.fill).apply(resized, (top, left), white)

    def place(self, drawn: List[int], shape: Tuple[int, ...]) -> Place:
        rows, columns, top, left = drawn
        return Place(columns / shape[1], -left, rows / shape[0], -top)


def _framed(
    image: "np.ndarray", top: int, left: int, height: int, width: int, fill: Fill, white: float
) -> "np.ndarray":
    if image.shape[:2] == (height, width):
        return image
    canvas = np.empty((height, width, image.shape[2]), image.dtype)
    canvas[:] = colour(fill, image, white)
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    return canvas
