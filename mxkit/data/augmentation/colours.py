"""Steps of an Augment that change colours: each multiplies the colours of every pixel by one matrix.

They follow `mx.image`. gluon's RandomSaturation, and so its RandomColorJitter, computes a pixel's brightness from blue
alone (T104): the brightness of (10, 20, 100) is 11.4 there, and 26.1 here.
"""

from dataclasses import dataclass
from typing import ClassVar, List, Sequence, Tuple

from mxkit.data.augmentation.steps import AT_LEAST_0, PROBABILITY, Checks, Rng, Step, clipped
import numpy as np

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
class Hue(Step):
    """Rotate the hue of all colours by a random angle of up to `hue` half turns: `mx.image.HueJitterAug`."""

    hue: float = 0.1

    checks: ClassVar[Checks] = {"hue": AT_LEAST_0}

    def draw(self, rng: Rng, image: "np.ndarray") -> float:
        return float(rng.uniform(-self.hue, self.hue))

    def apply(self, image: "np.ndarray", drawn: float, white: float) -> "np.ndarray":
        return _jittered(image, [("hue", drawn)], white)


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
class Gray(Step):
    """Remove the colours, with probability `p`: `mx.image.RandomGrayAug`. The image keeps three channels."""

    p: float = 0.1

    checks: ClassVar[Checks] = {"p": PROBABILITY}

    def draw(self, rng: Rng, image: "np.ndarray") -> bool:
        return bool(rng.random() < self.p)

    def apply(self, image: "np.ndarray", drawn: bool, white: float) -> "np.ndarray":
        if not drawn or image.shape[2] != 3:
            return image
        return _recoloured(image, np.tile(_GRAY, (3, 1)), np.zeros(3), white)


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
