"""Reads image files in the form that a net was trained on."""

from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.data.files.decoding import decode
from mxkit.data.splits import Split, Splits
from mxkit.errors import DataError
from mxkit.recipe.building import augment_of
from mxkit.recipe.schema import Recipe
import numpy as np


class ImageForm(NamedTuple):
    """The images that a net was trained on.

    Attributes:
        channels: 1 for grey, 3 for RGB.
        size: Height and width of images in arrays; None for files, because `data.eval_augment` resizes them.
        border: Mean brightness of the training images' borders, from 0 to 1; None for files.
    """

    channels: int
    size: Optional[Tuple[int, int]] = None
    border: Optional[float] = None

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "ImageForm":
        """Read the content of `_asdict` from JSON."""
        size, border = found["size"], found["border"]
        return cls(
            int(found["channels"]),
            None if size is None else (int(size[0]), int(size[1])),
            None if border is None else float(border),
        )


def image_form(data: Splits) -> Optional[ImageForm]:
    """How image files become inputs of a net that is trained on `data`; None if the data has no images."""
    if not isinstance(data.train, Split):
        channels = getattr(data.train, "channels", 0)
        return ImageForm(int(channels)) if channels in (1, 3) else None
    x = data.train.x
    if getattr(x, "ndim", 0) != 4 or x.shape[1] not in (1, 3):
        return None
    channels, height, width = map(int, x.shape[1:])
    few = np.asarray(x[:256])
    return ImageForm(channels, (height, width), float(_border(few).mean() / (255 if few.dtype == np.uint8 else 1)))


def net_inputs(
    recipe: Recipe, form: Optional[ImageForm], paths: Sequence[Union[str, Path]], *, invert: bool = False
) -> "np.ndarray":
    """Read image files and prepare them like the evaluated images of a run.

    Args:
        recipe: Recipe of the run.
        form: Form of the training images; None if the net was not trained on images.
        paths: Image files.
        invert: Swap dark and bright.

    Returns:
        float32 of shape (len(paths), C, H, W), after `data.eval_augment`.

    Raises:
        DataError: A file is no image, or the net was not trained on images.

    Warns:
        UserWarning: The border of a picture is bright and that of the training images dark, or the reverse.
    """
    reader = ImageReader(recipe, form, invert=invert)
    pictures = []
    for path in paths:
        pixels, note = reader(path)
        pictures.append(pixels)
        if note:
            warnings.warn(note, stacklevel=2)
    return np.stack(pictures)


class ImageReader:
    """Reads one image file at a time like the evaluated images of a run; threads may share it.

    Args:
        recipe: As for `net_inputs`.
        form: As for `net_inputs`.
        invert: As for `net_inputs`.

    Attributes:
        draws: Whether a step of `data.eval_augment` uses the process's generators, so that one thread must read.

    Raises:
        DataError: The net was not trained on images.
    """

    def __init__(self, recipe: Recipe, form: Optional[ImageForm], *, invert: bool = False) -> None:
        augment = augment_of(recipe.data.eval_augment)
        if form is None or (form.size is None and augment is None):
            raise DataError(
                f"images need a net trained on images; data {recipe.data.name!r} has none, or no eval_augment. Ask a "
                "net of other inputs from Python, with x as a batch of training has it:\n"
                "  import mxkit\n"
                '  recipe, net = mxkit.recipe.load_run("RUN")\n'
                "  print(mxkit.predict(net, x))"
            )
        self._form, self._augment, self._invert = form, augment, invert
        self.draws = augment is not None and bool(augment.draws)

    def __call__(self, path: Union[str, Path]) -> Tuple["np.ndarray", str]:
        """Read a file; arguments and result as for `prepare`.

        Raises:
            DataError: The file cannot be read, or is no image.
        """
        try:
            return self.prepare(Path(path).read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read as an image: {error}") from error

    def prepare(self, content: bytes, where: str) -> Tuple["np.ndarray", str]:
        """Decode the content of a file, and prepare the picture.

        Args:
            content: Content of an image file.
            where: Name of the file, for messages.

        Returns:
            float32 of shape (C, H, W), and a warning if the border is bright and that of the training images dark, or
            the reverse; else an empty text.

        Raises:
            DataError: The content is no image.
        """
        picture = decode(content, where, self._form.channels)
        if self._form.size is None:
            return np.asarray(self._augment(255 - picture if self._invert else picture)), ""  # type: ignore[misc]
        pixels, note = _fitted(where, picture, self._form, self._invert)
        return pixels if self._augment is None else np.asarray(self._augment.batch(pixels[None])[0][0]), note


def _fitted(where: str, picture: "np.ndarray", form: ImageForm, invert: bool) -> Tuple["np.ndarray", str]:
    """A picture in the form of training images that were arrays, float32 (C, H, W) divided by 255, and a warning."""
    from PIL import Image  # it averages all pixels when it shrinks an image; OpenCV's bilinear resize skips most

    (height, width), usual = form.size or (0, 0), form.border or 0.0
    whole = Image.fromarray(picture if form.channels == 3 else picture[:, :, 0])
    resized = np.asarray(whole.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)
    pixels = resized.reshape(height, width, form.channels).transpose(2, 0, 1) / 255
    pixels = 1 - pixels if invert else pixels
    if abs(_border(pixels[None]).mean() - usual) <= 0.5:
        return pixels, ""
    return pixels, (
        f"{where}: its border is {'bright' if usual < 0.5 else 'dark'}, that of the training images "
        f"{'dark' if usual < 0.5 else 'bright'}; --invert swaps them"
    )


def _border(images: "np.ndarray") -> "np.ndarray":
    edges = [images[:, :, 0], images[:, :, -1], images[:, :, :, 0], images[:, :, :, -1]]
    return np.concatenate([edge.reshape(len(images), -1) for edge in edges], axis=1)
