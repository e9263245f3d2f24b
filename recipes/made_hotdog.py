"""Drawn pictures in the layout of the tutorials' hotdog data, which cannot be downloaded everywhere."""

from pathlib import Path
from typing import Optional

import mxkit
from mxkit.data.download import dataset_folder
from mxkit.errors import DataError
import numpy as np
from PIL import Image, ImageDraw

SIDE = 80
CLASSES = ("hotdog", "not-hotdog")


@mxkit.register("data")
def made_hotdog(root: Optional[str] = None, images: int = 480) -> mxkit.data.Splits:
    """Half of the pictures show a sausage in a bun, the others balls and boxes of the same colours.

    Args:
        root: Where they are, or are written to: `train/hotdog/0.png`, `train/not-hotdog/0.png`, and `test` the same.
            None is the cache.
        images: How many for training; half as many are for testing.

    Raises:
        DataError: `root` has other folders of its own: those of somebody who wants to train on them.
    """
    folder = dataset_folder(f"made_hotdog_{images}") if root is None else Path(root).expanduser()
    _check_own(folder)
    for number, (part, count) in enumerate((("train", images), ("test", images // 2))):
        for label, name in enumerate(CLASSES):
            place = folder / part / name
            place.mkdir(parents=True, exist_ok=True)
            for i in range(count // 2):
                if not (place / f"{i}.png").exists():
                    _draw(np.random.default_rng([number, label, i]), hotdog=label == 0).save(place / f"{i}.png")
    return mxkit.data.image_folder(folder, valid=0.2)


def _check_own(folder: Path) -> None:
    """Refuse a folder with other pictures: drawn ones would become two more classes of the user's data."""
    drawn = {Path(part, *rest) for part in ("train", "test") for rest in ((), *((name,) for name in CLASSES))}
    others = sorted(path for path in [*folder.glob("*"), *folder.glob("t*/*")] if path.relative_to(folder) not in drawn)
    if others:
        raise DataError(
            f"made_hotdog draws its own pictures, and {folder} has others, like {others[0]}; to train on those: "
            f"--set data.name=image_folder --set data.root={folder}"
        )


def _draw(rng: np.random.Generator, hotdog: bool) -> Image.Image:
    image = Image.fromarray(rng.integers(90, 256, (5, 5, 3)).astype(np.uint8)).resize((SIDE, SIDE), 2)
    pen = ImageDraw.Draw(image)
    centre, size = rng.uniform(0.35, 0.65, 2) * SIDE, rng.uniform(0.2, 0.35) * SIDE
    colours = [tuple(int(one + rng.integers(-20, 21)) for one in colour) for colour in ((205, 150, 80), (150, 50, 30))]
    if hotdog:
        angle = rng.uniform(0, np.pi)
        end = size * np.array([np.cos(angle), np.sin(angle)])
        for width, colour in zip((0.9, 0.4), colours):
            pen.line([*(centre - end), *(centre + end)], fill=colour, width=int(size * width))
    else:
        shape = pen.ellipse if rng.random() < 0.5 else pen.rectangle
        for width, colour in zip((0.9, 0.4), colours):
            shape([*(centre - size * width), *(centre + size * width)], fill=colour)
    return image
