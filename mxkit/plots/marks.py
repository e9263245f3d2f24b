"""Boxes, masks and points drawn on their images."""

from typing import Any, List, Optional, Sequence, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.core.seeding import generators_kept
from mxkit.data.augment import Augment
from mxkit.errors import DataError
from mxkit.plots.data_plots import show_images
from mxkit.plots.plotting import PathLike
import numpy as np

# Colours of classes: those of matplotlib's map tab20, which differ for 20 of them.
_COLOURS = 20
_LEAST_SIDE = 192


def draw_marks(
    image: "np.ndarray",
    label: Any,
    *,
    moves: str,
    classes: Sequence[str] = (),
    scores: Optional[Sequence[float]] = None,
) -> "np.ndarray":
    """Draw boxes, a mask or points on an image.

    Args:
        image: uint8 (height, width, 3).
        label: As `mxkit.data.AnnotatedImages` gives it: boxes (M, 6), of which rows of class -1 are left out; a mask
            (height, width); or points (K, 3), of which unknown ones are left out.
        moves: "boxes", "mask" or "points".
        classes: Names of the classes, or of the points.
        scores: Score of each box, which is written beside its class.

    Returns:
        A new picture, uint8; small images are enlarged.

    Raises:
        DataError: The image has another form.
    """
    import cv2

    image = np.ascontiguousarray(to_host(image))
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise DataError(f"draw_marks: expected uint8 (height, width, 3); received {image.dtype} {image.shape}")
    scale = max(1, -(-_LEAST_SIDE // max(image.shape[:2])))
    size = (image.shape[1] * scale, image.shape[0] * scale)
    picture = cv2.resize(image, size, interpolation=cv2.INTER_NEAREST)
    if moves == "mask":
        mask = cv2.resize(np.asarray(label, np.float32), size, interpolation=cv2.INTER_NEAREST).astype(np.int64)
        palette = np.array([_colour(number) for number in range(_COLOURS)], np.float32)
        painted = picture * np.float32(0.5) + palette[mask % _COLOURS] * np.float32(0.5)
        shown = (mask > 0)[:, :, None]  # class 0 is the ground, -1 does not count
        return np.asarray(np.where(shown, painted, picture), np.uint8)
    return (_boxes if moves == "boxes" else _points)(picture, np.asarray(label), scale, list(classes), scores)


def _boxes(
    picture: "np.ndarray", boxes: "np.ndarray", scale: int, classes: List[str], scores: Optional[Sequence[float]]
) -> "np.ndarray":
    from gluoncv.utils.viz import cv_plot_bbox

    known = boxes[:, 4] >= 0
    numbers = boxes[known, 4].astype(int)
    shown = np.asarray(scores, np.float32)[known] if scores is not None else None
    colours = {int(number): [one / 255 for one in _colour(number)] for number in numbers}  # gluoncv's are 0 to 1
    names = classes or [str(number) for number in range(int(numbers.max(initial=-1)) + 1)]
    corners = boxes[known, :4].astype(np.float32) * scale
    drawn: np.ndarray = cv_plot_bbox(picture, corners, shown, numbers, 0.0, names, colours, linewidth=2)
    return drawn


def _points(picture: "np.ndarray", points: "np.ndarray", scale: int, classes: List[str], _: Any) -> "np.ndarray":
    import cv2

    for number, (x, y, known) in enumerate(points.tolist()):
        if known > 0:
            centre = int((x + 0.5) * scale), int((y + 0.5) * scale)
            cv2.circle(picture, centre, max(3, picture.shape[0] // 60), _colour(number), -1)
            if number < len(classes):
                place = centre[0] + 4, centre[1] - 4
                cv2.putText(picture, classes[number], place, cv2.FONT_HERSHEY_SIMPLEX, 0.4, (255, 255, 255), 1)
    return picture


def _colour(number: int) -> Tuple[int, int, int]:
    import matplotlib

    red, green, blue, _ = matplotlib.colormaps["tab20"](int(number) % _COLOURS)
    return int(red * 255), int(green * 255), int(blue * 255)


def show_annotated(
    part: Any, *, count: int = 9, augment: Optional[Augment] = None, seed: int = 0, path: Optional[PathLike] = None
) -> Any:
    """Draw samples of a part with their boxes, masks or points, before or after an augmentation.

    Args:
        part: A `mxkit.data.AnnotatedImages`.
        count: Number of samples, spread over the part.
        augment: Applied before; without "to_tensor", because pixels are drawn.
        seed: Seed of its random numbers.
        path: Where to save the picture, or None.

    Returns:
        The matplotlib Figure.

    Raises:
        DataError: The part has no boxes, masks or points.
    """
    moves = getattr(part, "moves", None)
    if moves is None:
        raise DataError(f"show_annotated: expected a part with boxes, masks or points; received {type(part).__name__}")
    if augment is not None and augment.tensor:
        raise DataError("show_annotated: leave 'to_tensor' and 'normalize' out: pixels are drawn")
    numbers = np.linspace(0, len(part) - 1, min(whole_number(count, "show_annotated: count"), len(part))).astype(int)
    pictures = []
    with generators_kept():
        for number in numbers.tolist():
            image, label = part[number]
            if augment is not None:
                rng = np.random.default_rng([seed, number])
                image, label = augment.with_label(image, label, rng, moves=moves, pairs=part.pairs)
            pictures.append(draw_marks(image, label, moves=moves, classes=part.classes))
    return show_images(pictures, [str(number) for number in numbers], path=path)
