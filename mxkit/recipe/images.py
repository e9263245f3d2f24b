"""Image files as a net was trained on them."""

from pathlib import Path
from typing import Sequence, Union
import warnings

from mxkit.data.files.decoding import decode
from mxkit.data.splits import Split, Splits
from mxkit.errors import DataError
from mxkit.recipe.building import augment_of
from mxkit.recipe.schema import Recipe
import numpy as np


def net_inputs(
    recipe: Recipe, data: Splits, paths: Sequence[Union[str, Path]], *, invert: bool = False
) -> "np.ndarray":
    """Read image files as the recipe's net gets those that it is evaluated on.

    Args:
        recipe: Of a run.
        data: Of the recipe.
        paths: Image files.
        invert: Swap dark and bright.

    Returns:
        float32 of shape (len(paths), C, H, W), with `data.eval_augment` done.

    Raises:
        DataError: A file is no image, or the net was not trained on images.
    """
    augment = augment_of(recipe.data.eval_augment)
    if isinstance(data.train, Split):
        found = read_images(paths, data.train.x, invert=invert)
        return found if augment is None else np.asarray(augment.batch(found)[0])
    channels = getattr(data.train, "channels", 0)
    if not channels or augment is None:
        raise DataError(f"images need a net trained on images; data {recipe.data.name!r} has none, or no eval_augment")
    images = []
    for path in paths:
        try:
            image = decode(Path(path).read_bytes(), str(path), channels)
        except OSError as error:
            raise DataError(f"{path} cannot be read as an image: {error}") from error
        images.append(augment(255 - image if invert else image))
    return np.stack(images)


def read_images(paths: Sequence[Union[str, Path]], like: "np.ndarray", *, invert: bool = False) -> "np.ndarray":
    """Read image files of any size and mode in the form of `like`.

    Args:
        paths: Files that Pillow reads.
        like: Training inputs of shape (N, C, H, W) with 1 or 3 channels: float32 in 0 to 1, or uint8.
        invert: Swap dark and bright.

    Returns:
        float32 of shape (len(paths), C, H, W): converted to grey or RGB, resized to H x W, divided by 255.

    Raises:
        DataError: A file is no image, or the net was not trained on images.

    Warns:
        UserWarning: An image's border is bright where the training images' is dark, or the other way.
    """
    from PIL import Image, UnidentifiedImageError

    if like.ndim != 4 or like.shape[1] not in (1, 3):
        raise DataError(f"images need a net trained on shape (N, 1 or 3, H, W); this one's data has {like.shape}")
    channels, height, width = like.shape[1:]
    usual = _border(like[:256]).mean() / (255 if like.dtype == np.uint8 else 1)
    images = []
    for path in paths:
        try:
            with Image.open(path) as image:
                resized = image.convert("L" if channels == 1 else "RGB").resize(
                    (width, height), Image.Resampling.BILINEAR
                )
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"{path} cannot be read as an image: {error}") from error
        pixels = np.asarray(resized, dtype=np.float32).reshape(height, width, channels).transpose(2, 0, 1) / 255
        pixels = 1 - pixels if invert else pixels
        if abs(_border(pixels[None]).mean() - usual) > 0.5:
            warnings.warn(
                f"{path}: its border is {'bright' if usual < 0.5 else 'dark'}, that of the training images "
                f"{'dark' if usual < 0.5 else 'bright'}; --invert swaps them",
                stacklevel=2,
            )
        images.append(pixels)
    return np.stack(images)


def _border(images: "np.ndarray") -> "np.ndarray":
    edges = [images[:, :, 0], images[:, :, -1], images[:, :, :, 0], images[:, :, :, -1]]
    return np.concatenate([edge.reshape(len(images), -1) for edge in edges], axis=1)
