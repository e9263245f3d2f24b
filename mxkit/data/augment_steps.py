"""Steps of an Augment that move or cover pixels: `draw` draws random numbers for an image, `apply` changes it.

MXNet's and gluoncv's augmenters draw from generators of the process or of a thread (T61, T68), so their numbers cannot
be a function of the sample. These steps draw from the sample's generator by the rules of those classes, and compute
the pixels with OpenCV, as MXNet does. Tests compare each step with MXNet's own operator.
"""

from dataclasses import dataclass, field
import re
from typing import Any, Callable, ClassVar, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.errors import DataError
import numpy as np

Size = Union[int, Tuple[int, int]]
Range = Tuple[float, float]
Fill = Union[float, Sequence[float]]
Rng = np.random.Generator

# Codes of OpenCV and of MXNet.
INTERPOLATIONS = {"nearest": 0, "bilinear": 1, "bicubic": 2, "area": 3, "lanczos": 4}


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_size(value: Any) -> bool:
    sides = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value,)
    return all(_is_whole(side, 1) for side in sides)


def _is_range(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and 0 < value[0] <= value[1] < np.inf


def _is_colour(value: Any) -> bool:
    channels = np.atleast_1d(np.asarray(value, float))
    return channels.shape in ((1,), (3,)) and bool(((channels >= 0) & (channels <= 1)).all())


# What an argument must be, in words and as a predicate.
Check = Tuple[str, Callable[[Any], bool]]
Checks = Mapping[str, Check]
PROBABILITY: Check = ("a probability from 0 to 1", lambda value: isinstance(value, (int, float)) and 0 <= value <= 1)
SIZE: Check = ("a whole number, or a tuple (width, height)", _is_size)
RANGE: Check = ("(least, most), above 0", _is_range)
RATIO: Check = ("a number above 0, up to 1", lambda value: 0 < value <= 1)
COLOUR: Check = ("0 for black to 1 for white, or (red, green, blue)", _is_colour)
AT_LEAST_0: Check = ("0 or more", lambda value: value >= 0)
PADDING: Check = ("a whole number, at least 0", lambda value: _is_whole(value, 0))
INTERPOLATION: Check = (f"one of {', '.join(INTERPOLATIONS)}", INTERPOLATIONS.__contains__)


class Place(NamedTuple):
    """Where a step moves pixels: x to `scale_x * x + shift_x`, y to `scale_y * y + shift_y`, of edges of pixels."""

    scale_x: float = 1.0
    shift_x: float = 0.0
    scale_y: float = 1.0
    shift_y: float = 0.0


class Step:
    """Base of all steps. Images are NumPy (height, width, 1 or 3), uint8 or float32 from 0 to `white`."""

    draws: ClassVar[bool] = True
    checks: ClassVar[Checks] = {}

    def __post_init__(self) -> None:
        for argument, (expected, is_right) in self.checks.items():
            if not is_right(getattr(self, argument)):
                text = f"{argument}: expected {expected}; received {getattr(self, argument)!r}"
                raise ValueError(f"{self.name()}: {text}")

    @classmethod
    def name(cls) -> str:
        """Name of the step in recipes and lists."""
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def draw(self, rng: Rng, image: "np.ndarray") -> Any:
        """Draw what `apply` needs for this image; nothing else may be random."""
        return None

    def draw_for(self, rng: Rng, image: "np.ndarray", boxes: "np.ndarray") -> Any:
        """Draw what `apply` needs for an image with boxes (M, 6), or none of them."""
        return self.draw(rng, image)

    def apply(self, image: "np.ndarray", drawn: Any, white: float) -> "np.ndarray":
        """Return the changed image, which may be a view of `image`; never write into `image`."""
        raise NotImplementedError

    def place(self, drawn: Any, shape: Tuple[int, ...]) -> Place:
        """Where the step moves the pixels of an image of this shape; colours do not move."""
        return Place()


@dataclass(frozen=True)
class Flip(Step):
    """Swap left and right, with probability `p`."""

    p: float = 0.5

    checks: ClassVar[Checks] = {"p": PROBABILITY}

    def draw(self, rng: Rng, image: "np.ndarray") -> bool:
        return bool(rng.random() < self.p)

    def apply(self, image: "np.ndarray", drawn: bool, white: float) -> "np.ndarray":
        return image[:, ::-1] if drawn else image

    def place(self, drawn: bool, shape: Tuple[int, ...]) -> Place:
        return Place(-1, shape[1]) if drawn else Place()


@dataclass(frozen=True)
class Crop(Step):
    """Cut out `size` at a random place, after adding `padding` pixels of colour `fill` on each side."""

    size: Size
    padding: int = 0
    fill: Fill = 0.0

    checks: ClassVar[Checks] = {"size": SIZE, "padding": PADDING, "fill": COLOUR}

    def draw(self, rng: Rng, image: "np.ndarray") -> Tuple[int, int]:
        rows, columns = _margins("crop", image, self.size, self.padding)
        return int(rng.integers(rows + 1)) - self.padding, int(rng.integers(columns + 1)) - self.padding

    def apply(self, image: "np.ndarray", drawn: Tuple[int, int], white: float) -> "np.ndarray":
        width, height = pair(self.size)
        (top, left), (rows, columns, channels) = drawn, image.shape
        first, last = max(top, 0), min(top + height, rows)
        start, end = max(left, 0), min(left + width, columns)
        canvas = np.empty((height, width, channels), image.dtype)
        canvas[:] = colour(self.fill, image, white)
        canvas[first - top : last - top, start - left : end - left] = image[first:last, start:end]
        return canvas

    def place(self, drawn: Tuple[int, int], shape: Tuple[int, ...]) -> Place:
        return Place(shift_x=-drawn[1], shift_y=-drawn[0])


@dataclass(frozen=True)
class CenterCrop(Step):
    """Cut out the middle of `size`."""

    size: Size
    draws: ClassVar[bool] = False

    checks: ClassVar[Checks] = {"size": SIZE}

    def apply(self, image: "np.ndarray", drawn: None, white: float) -> "np.ndarray":
        rows, columns = _margins("center_crop", image, self.size)
        width, height = pair(self.size)
        return image[rows // 2 : rows // 2 + height, columns // 2 : columns // 2 + width]

    def place(self, drawn: None, shape: Tuple[int, ...]) -> Place:
        width, height = pair(self.size)
        return Place(shift_x=-((shape[1] - width) // 2), shift_y=-((shape[0] - height) // 2))


@dataclass(frozen=True)
class Resize(Step):
    """Resize the shorter side to `size`, or the image to `(width, height)`."""

    size: Size
    interpolation: str = "bilinear"
    draws: ClassVar[bool] = False

    checks: ClassVar[Checks] = {"size": SIZE, "interpolation": INTERPOLATION}

    def apply(self, image: "np.ndarray", drawn: None, white: float) -> "np.ndarray":
        return resized_within(image, self._target(image.shape), self.interpolation, white)

    def place(self, drawn: None, shape: Tuple[int, ...]) -> Place:
        width, height = self._target(shape)
        return Place(scale_x=width / shape[1], scale_y=height / shape[0])

    def _target(self, shape: Tuple[int, ...]) -> Tuple[int, int]:
        return with_short_side(shape, self.size) if isinstance(self.size, int) else pair(self.size)


@dataclass(frozen=True)
class ResizedCrop(Step):
    """Cut out a part of random area and aspect ratio, and resize it to `size`: `mx.image.random_size_crop`."""

    size: Size
    area: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    checks: ClassVar[Checks] = {"size": SIZE, "area": RANGE, "ratio": RANGE, "interpolation": INTERPOLATION}

    def draw(self, rng: Rng, image: "np.ndarray") -> Tuple[int, int, int, int]:
        rows, columns = image.shape[:2]
        low, high = np.log(self.ratio)
        for _ in range(10):
            area = rng.uniform(*self.area) * rows * columns
            width, height = _sides(area, np.exp(rng.uniform(low, high)))
            if 0 < width <= columns and 0 < height <= rows:
                return int(rng.integers(rows - height + 1)), int(rng.integers(columns - width + 1)), height, width
        width, height = scaled_down((columns, rows), pair(self.size))
        return (rows - height) // 2, (columns - width) // 2, height, width

    def apply(self, image: "np.ndarray", drawn: Tuple[int, int, int, int], white: float) -> "np.ndarray":
        top, left, height, width = drawn
        part = image[top : top + height, left : left + width]
        return resized_within(part, pair(self.size), self.interpolation, white)

    def place(self, drawn: Tuple[int, int, int, int], shape: Tuple[int, ...]) -> Place:
        top, left, height, width = drawn
        scale_x, scale_y = (side / cut for side, cut in zip(pair(self.size), (width, height)))
        return Place(scale_x, -left * scale_x, scale_y, -top * scale_y)


@dataclass(frozen=True)
class Cutout(Step):
    """Fill a square around a random pixel, clipped at the borders: DeVries and Taylor, arXiv:1708.04552."""

    size: int = 16
    p: float = 1.0
    fill: Fill = 0.0

    checks: ClassVar[Checks] = {"size": SIZE, "p": PROBABILITY, "fill": COLOUR}

    def draw(self, rng: Rng, image: "np.ndarray") -> Tuple[bool, int, int]:
        rows, columns = image.shape[:2]
        return bool(rng.random() < self.p), int(rng.integers(rows)), int(rng.integers(columns))

    def apply(self, image: "np.ndarray", drawn: Tuple[bool, int, int], white: float) -> "np.ndarray":
        chosen, row, column = drawn
        width, height = pair(self.size) if chosen else (0, 0)
        return _filled(image, row - height // 2, column - width // 2, height, width, self.fill, white)


@dataclass(frozen=True)
class Erasing(Step):
    """Fill a rectangle of random area and aspect ratio, with probability `p`: gluoncv's `RandomErasing`."""

    p: float = 0.5
    area: Range = (0.02, 0.4)
    ratio: float = 0.3
    fill: Fill = (125.31 / 255, 122.96 / 255, 113.86 / 255)

    checks: ClassVar[Checks] = {"p": PROBABILITY, "area": RANGE, "ratio": RATIO, "fill": COLOUR}

    def draw(self, rng: Rng, image: "np.ndarray") -> Tuple[int, int, int, int]:
        rows, columns = image.shape[:2]
        if rng.random() >= self.p:
            return 0, 0, 0, 0
        area = rng.uniform(*self.area) * rows * columns
        width, height = _sides(area, rng.uniform(self.ratio, 1 / self.ratio))
        if height >= rows or width >= columns:
            return 0, 0, 0, 0
        return int(rng.integers(rows - height + 1)), int(rng.integers(columns - width + 1)), height, width

    def apply(self, image: "np.ndarray", drawn: Tuple[int, int, int, int], white: float) -> "np.ndarray":
        return _filled(image, *drawn, self.fill, white)


@dataclass(frozen=True)
class ToTensor(Step):
    """Convert (height, width, channels) to float32 (channels, height, width), in which white is 1."""

    draws: ClassVar[bool] = False


@dataclass(frozen=True)
class Normalize(Step):
    """Subtract `mean` and divide by `std`, of each channel or one for all, in a unit where white is 1."""

    mean: Fill
    std: Fill
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        mean, std = np.atleast_1d(np.asarray(self.mean, float)), np.atleast_1d(np.asarray(self.std, float))
        if mean.ndim > 1 or std.ndim > 1 or not (std > 0).all() or not np.isfinite(mean).all() or mean.max() > 2:
            expected = "a number for each channel, in a unit where white is 1, and std above 0"
            raise ValueError(f"normalize: expected {expected}; received mean {self.mean!r}, std {self.std!r}")


def normalized(image: "np.ndarray", white: float, normalize: Optional[Normalize]) -> "np.ndarray":
    """A copy of (..., channels, height, width) after gluon's ToTensor and Normalize."""
    tensor: np.ndarray = np.array(image, np.float32, order="C")
    if white != 1:
        tensor /= np.float32(white)
    if normalize is not None:
        mean, std = (np.array(part, np.float32).reshape(-1, 1, 1) for part in (normalize.mean, normalize.std))
        tensor -= mean
        tensor /= std
    return tensor


def clipped(image: "np.ndarray", white: float) -> "np.ndarray":
    """Clip floats to the range from black to white, in place."""
    np.clip(image, 0, np.float32(white), out=image)
    return image


def _sides(area: float, ratio: float) -> Tuple[int, int]:
    """Width and height of a rectangle."""
    return round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))


def resized(image: "np.ndarray", size: Tuple[int, int], code: int) -> "np.ndarray":
    """The image in `(width, height)`, by OpenCV's interpolation of this code."""
    import cv2

    if image.shape[1::-1] == tuple(size):
        return image
    return cv2.resize(image, tuple(size), interpolation=code).reshape(size[1], size[0], image.shape[2])


def with_short_side(shape: Sequence[int], side: int) -> Tuple[int, int]:
    """Width and height after the shorter side of an image becomes `side`, as `mx.image.resize_short` computes them."""
    rows, columns = shape[:2]
    return (side, side * rows // columns) if rows > columns else (side * columns // rows, side)


def scaled_down(image: Sequence[int], size: Sequence[int]) -> Tuple[int, int]:
    """Width and height of a crop that fits into an image and has the ratio of `size`: `mx.image.scale_down`."""
    (columns, rows), width, height = image, float(size[0]), float(size[1])
    if rows < height:
        width, height = width * rows / height, rows
    if columns < width:
        width, height = columns, height * columns / width
    return int(width), int(height)


def resized_within(image: "np.ndarray", size: Tuple[int, int], interpolation: str, white: float) -> "np.ndarray":
    changed = resized(np.ascontiguousarray(image), size, INTERPOLATIONS[interpolation])
    return changed if changed.dtype == np.uint8 else clipped(changed, white)  # bicubic exceeds black and white


def _filled(
    image: "np.ndarray", top: int, left: int, height: int, width: int, fill: Fill, white: float
) -> "np.ndarray":
    if not height:
        return image
    filled = np.array(image, order="C")
    rows, columns = slice(max(top, 0), max(top + height, 0)), slice(max(left, 0), max(left + width, 0))
    filled[rows, columns] = colour(fill, image, white)
    return filled


def colour(fill: Fill, image: "np.ndarray", white: float) -> "np.ndarray":
    """A colour in the unit, the dtype and the channels of an image."""
    colour = np.atleast_1d(np.asarray(fill, float)) * white
    colour = colour.mean(keepdims=True) if image.shape[2] == 1 else colour
    return np.asarray(np.rint(colour) if image.dtype == np.uint8 else colour, image.dtype)


def pair(size: Size) -> Tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _margins(name: str, image: "np.ndarray", size: Size, padding: int = 0) -> Tuple[int, int]:
    """Rows and columns that remain around a crop."""
    (width, height), (rows, columns) = pair(size), image.shape[:2]
    if rows + 2 * padding < height or columns + 2 * padding < width:
        text = f"an image of height {rows} and width {columns} is too small to cut {height} x {width} out of it"
        raise DataError(f"Augment: {name}: {text}; put a 'resize' before, or use 'resized_crop'")
    return rows + 2 * padding - height, columns + 2 * padding - width


# Weights of red, green and blue in the brightness: ContrastJitterAug's, and RandomGrayAug's.
_LUMA = np.array([0.299, 0.587, 0.114])
_GRAY = np.array([0.21, 0.72, 0.07])
# HueJitterAug's matrices to and from a colour space in which hue is an angle.
_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_FROM_YIQ = np.array([[1.0, 0.956, 0.621], [1.0, -0.272, -0.647], [1.0, -1.107, 1.705]])
# Principal components of ImageNet's colours from `mx.image.CreateAugmenter`, in a unit where white is 255.
_EIGENVALUES = np.array([55.46, 4.794, 1.148])
_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


@dataclass(frozen=True)
class ColourJitter(Step):
    """Multiply brightness, contrast, saturation by `1 - value` to `1 + value`, in random order; then turn the hue."""

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.0

    checks: ClassVar[Checks] = dict.fromkeys(("brightness", "contrast", "saturation", "hue"), AT_LEAST_0)

    def draw(self, rng: Rng, image: "np.ndarray") -> List[Tuple[str, float]]:
        values = [("brightness", self.brightness), ("contrast", self.contrast), ("saturation", self.saturation)]
        drawn = [(name, rng.uniform(max(0.0, 1 - value), 1 + value)) for name, value in values if value]
        drawn = [drawn[position] for position in rng.permutation(len(drawn))]
        return [*drawn, ("hue", rng.uniform(-self.hue, self.hue))] if self.hue else drawn

    def apply(self, image: "np.ndarray", drawn: List[Tuple[str, float]], white: float) -> "np.ndarray":
        return _jittered(image, drawn, white)


@dataclass(frozen=True)
class Hue(ColourJitter):
    """Rotate the hue of all colours by a random angle of up to `hue` half turns: `mx.image.HueJitterAug`."""

    brightness: float = field(default=0.0, init=False, repr=False)
    contrast: float = field(default=0.0, init=False, repr=False)
    saturation: float = field(default=0.0, init=False, repr=False)
    hue: float = 0.1


@dataclass(frozen=True)
class Lighting(Step):
    """Add colour along the principal components of ImageNet's colours: `mx.image.LightingAug`."""

    std: float = 0.1

    checks: ClassVar[Checks] = {"std": AT_LEAST_0}

    def draw(self, rng: Rng, image: "np.ndarray") -> "np.ndarray":
        return np.asarray(rng.normal(0, self.std, 3))

    def apply(self, image: "np.ndarray", drawn: "np.ndarray", white: float) -> "np.ndarray":
        if image.shape[2] != 3:
            return image
        added = (_EIGENVECTORS * drawn) @ _EIGENVALUES * (white / 255)
        return _recoloured(image, np.eye(3), added, white)


@dataclass(frozen=True)
class Gray(Flip):
    """Remove the colours, with probability `p`: `mx.image.RandomGrayAug`. The image keeps three channels."""

    p: float = 0.1

    def apply(self, image: "np.ndarray", drawn: bool, white: float) -> "np.ndarray":
        if not drawn or image.shape[2] != 3:
            return image
        return _recoloured(image, np.tile(_GRAY, (3, 1)), np.zeros(3), white)

    def place(self, drawn: bool, shape: Tuple[int, ...]) -> Place:
        return Place()


def _jittered(image: "np.ndarray", changes: Sequence[Tuple[str, float]], white: float) -> "np.ndarray":
    """Combine the changes into one matrix and offset, which is exact because each is linear in the colours."""
    import cv2

    channels = image.shape[2]
    luma = _LUMA if channels == 3 else np.ones(1)
    matrix, offset = np.eye(channels), np.zeros(channels)
    mean = np.array(cv2.mean(np.ascontiguousarray(image))[:channels])
    for name, value in changes:
        if name == "brightness":
            matrix, offset = matrix * value, offset * value
        elif name == "contrast":
            gray = luma @ (matrix @ mean + offset)
            matrix, offset = matrix * value, offset * value + (1 - value) * gray
        elif channels == 3:
            if name == "saturation":
                change = value * np.eye(3) + (1 - value) * np.tile(_LUMA, (3, 1))
            else:
                u, w = np.cos(value * np.pi), np.sin(value * np.pi)
                change = _FROM_YIQ @ np.array([[1, 0, 0], [0, u, -w], [0, w, u]]) @ _TO_YIQ
            matrix, offset = change @ matrix, change @ offset
    return _recoloured(image, matrix, offset, white)


def _recoloured(image: "np.ndarray", matrix: "np.ndarray", offset: "np.ndarray", white: float) -> "np.ndarray":
    import cv2

    pixels = np.array(image, np.float32, order="C")
    if image.shape[2] == 1:
        pixels *= np.float32(matrix[0, 0])
        pixels += np.float32(offset[0])
        return clipped(pixels, white)
    return clipped(cv2.transform(pixels, np.column_stack([matrix, offset]).astype(np.float32)), white)
