"""Drawn pictures with boxes, masks or points, which need no download: shapes on a blurred ground, and stick figures."""

from typing import Any, Dict, Literal, Tuple

import mxkit
import numpy as np

CLASSES = ("square", "circle", "triangle")
POINTS = ("head", "neck", "hip", "left hand", "right hand", "left foot", "right foot")
PAIRS = ((3, 4), (5, 6))


class Drawn:
    """Pictures of one part, each drawn when it is read from (seed, part, number); it can be pickled."""

    def __init__(self, part: int, images: int, size: int, kind: str) -> None:
        self.part, self.images, self.size, self.kind = part, images, size, kind
        self._labels: Dict[int, Any] = {}

    def __call__(self, number: int) -> np.ndarray:
        return self.draw(number)[0]

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, number: int) -> np.ndarray:
        if number >= self.images:
            raise IndexError(number)
        if number not in self._labels:
            self._labels[number] = self.draw(number)[1]
        return self._labels[number]

    def draw(self, number: int) -> Tuple[np.ndarray, np.ndarray]:
        """A picture and its label."""
        import cv2

        rng = np.random.default_rng([self.part, number])
        size = self.size
        ground = rng.integers(0, 70, (size // 8, size // 8, 3)).astype(np.uint8)
        image = cv2.resize(ground, (size, size), interpolation=cv2.INTER_LINEAR)
        label = self._figure(image, rng) if self.kind == "points" else self._shapes(image, rng)
        noisy = image.astype(int) + rng.integers(-12, 13, image.shape)
        return np.clip(noisy, 0, 255).astype(np.uint8), label

    def _shapes(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        import cv2

        size, boxes = self.size, []  # type: int, List[List[float]]
        mask = np.zeros((size, size), np.uint8)
        for _ in range(rng.integers(0 if rng.random() < 0.05 else 1, 4)):
            for _ in range(20):  # a place that covers no other shape
                side = int(rng.integers(size // 6, size // 2))
                x, y = (int(place) for place in rng.integers(0, size - side, 2))
                if all(x + side < one[0] or one[2] < x or y + side < one[1] or one[3] < y for one in boxes):
                    break
            else:
                continue
            number, colour = int(rng.integers(3)), tuple(int(one) for one in rng.integers(110, 256, 3))
            for canvas, value in ((image, colour), (mask, number + 1)):
                if number == 0:
                    cv2.rectangle(canvas, (x, y), (x + side - 1, y + side - 1), value, -1)
                elif number == 1:
                    cv2.circle(canvas, (x + side // 2, y + side // 2), side // 2 - 1, value, -1)
                else:
                    corners = [[x + side // 2, y], [x, y + side - 1], [x + side - 1, y + side - 1]]
                    cv2.fillPoly(canvas, [np.array(corners)], value)
            boxes.append([x, y, x + side, y + side, number, 0])
        return mask.astype(np.int32) if self.kind == "mask" else np.array(boxes, np.float32).reshape(-1, 6)

    def _figure(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        import cv2

        size = self.size
        neck = rng.uniform(0.35, 0.65, 2) * size * [1, 0.7]
        lean, length = rng.uniform(-0.3, 0.3), size * rng.uniform(0.22, 0.3)
        hip = neck + length * np.array([np.sin(lean), np.cos(lean)])
        head = neck - 0.35 * length * np.array([np.sin(lean), np.cos(lean)])
        limbs = []
        for start, side in ((neck, -1), (neck, 1), (hip, -1), (hip, 1)):
            angle = side * rng.uniform(0.15, 1.2)
            limbs.append(start + 0.9 * length * np.array([np.sin(angle), np.cos(angle)]))
        points = np.clip(np.array([head, neck, hip, *limbs]), 2, size - 3)
        arms, legs = (240, 160, 90), (90, 200, 240)  # of left and right alike: a mirrored picture swaps them
        colours = {3: arms, 4: arms, 5: legs, 6: legs}
        for first, last in ((1, 2), (1, 3), (1, 4), (2, 5), (2, 6)):
            begin, end = (tuple(int(round(one)) for one in points[place]) for place in (first, last))
            cv2.line(image, begin, end, colours.get(last, (230, 230, 230)), 3)
        cv2.circle(image, tuple(int(round(one)) for one in points[0]), max(3, size // 16), (230, 230, 230), -1)
        return np.column_stack([points, np.ones(len(points))]).astype(np.float32)


@mxkit.register("data")
def made_shapes(
    kind: Literal["boxes", "mask", "points"] = "boxes", images: int = 800, size: int = 96
) -> mxkit.data.Splits:
    """Squares, circles and triangles with their boxes or their mask, or stick figures with seven points.

    Args:
        kind: What is marked.
        images: How many for training; a fifth as many each for validation and testing.
        size: Height and width.
    """
    classes = {"boxes": CLASSES, "mask": ("ground", *CLASSES), "points": POINTS}[kind]
    parts = []
    for part, count in enumerate((images, images // 5, images // 5)):
        drawn = Drawn(part, count, size, kind)
        names = [f"picture {number}" for number in range(count)]
        pairs = PAIRS if kind == "points" else ()
        parts.append(mxkit.data.AnnotatedImages(drawn, drawn, classes, names, moves=kind, pairs=pairs))
    return mxkit.data.Splits(*parts, list(classes))


@mxkit.register("data")
def made_masks(images: int = 800, size: int = 96) -> mxkit.data.Splits:
    """As `made_shapes`, with masks."""
    return made_shapes("mask", images, size)
