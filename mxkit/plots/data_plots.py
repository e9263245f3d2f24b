"""Pictures of data: images with labels, a batch of a loader, parts of a dataset, results of an augmentation."""

from math import ceil, sqrt
import textwrap
from typing import Any, List, NamedTuple, Optional, Sequence, Union

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.core.device import unpack
from mxkit.core.seeding import generators_kept
from mxkit.data.augment import Augment
from mxkit.data.describing import DataDescription, class_name
from mxkit.data.source import Data, source_of
from mxkit.errors import DataError
from mxkit.plots.plotting import CHARACTER, PathLike, finite_range, new_figure, saved
import mxnet as mx
import numpy as np

Colour = Union[float, Sequence[float]]
_RIGHT, _WRONG = "#2E7D32", "#C62828"
_POINTS = 7.5
# Inches between images, and height of a line of a title.
_GAP, _LINE = 0.09, 0.125


class _Cell(NamedTuple):
    """An image of a grid, (H, W) or (H, W, 3) from 0 to 1, and its title."""

    pixels: Any
    title: str
    colour: str = "black"
    framed: bool = False


def show_images(
    images: Any,
    labels: Any = None,
    *,
    predicted: Any = None,
    classes: Optional[Sequence[str]] = None,
    columns: Optional[int] = None,
    mean: Optional[Colour] = None,
    std: Optional[Colour] = None,
    path: Optional[PathLike] = None,
) -> Any:
    """Draw images side by side, with their labels.

    Args:
        images: (N, 1 or 3, H, W) or (N, H, W, 1 or 3) or (N, H, W), NumPy or NDArray; or a list of single images of
            any sizes. uint8 is 0 to 255, floats are 0 to 1, or to 255 if one is above 1; other floats need `mean` and
            `std`. Pixels that are not finite are green.
        labels: For each image its class number, a text, or a soft label of shape (classes,), whose two largest classes
            are written.
        predicted: For each image the net's prediction, in the same form. If it differs from the label, the title has
            both, in red.
        classes: Names of the class numbers.
        columns: Columns of the grid; by default the picture is about square.
        mean: Mean that was subtracted from the images, for each channel or for all, where white is 1.
        std: Standard deviation that they were then divided by.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure.

    Raises:
        DataError: An array is not an image or has another range, or the numbers of labels and images differ.

    >>> figure = show_images(np.zeros((3, 1, 8, 8)), [0, 1, 1], classes=["cat", "dog"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['cat', 'dog', 'dog']
    """
    pixels = _pixels(images, mean, std)
    truths = _texts(labels, len(pixels), classes, "labels")
    guesses = _texts(predicted, len(pixels), classes, "predicted")
    return saved(_grid([_cell(*parts) for parts in zip(pixels, truths, guesses)], columns), path)


def show_batch(
    data: Data,
    *,
    count: int = 16,
    classes: Optional[Sequence[str]] = None,
    columns: Optional[int] = None,
    mean: Optional[Colour] = None,
    std: Optional[Colour] = None,
    path: Optional[PathLike] = None,
) -> Any:
    """Draw the first images of a loader's next batch, as the net will get them.

    Args:
        data: Anything that `fit` reads. The state of a loader does not change; an iterator is refused.
        count: Largest number of images.
        classes: As for `show_images`.
        columns: As for `show_images`.
        mean: As for `show_images`.
        std: As for `show_images`.
        path: As for `show_images`.

    Returns:
        The matplotlib Figure, with a row for each input of the net.

    Raises:
        DataError: The batch holds no images; or `data` is an iterator, which would lose its first batch.
    """
    source = source_of(data)
    if source.is_one_shot:
        raise DataError(
            f"show_batch: a {type(data).__name__} can be read only once, and this would use up its first batch; "
            "pass a function that creates it, or a list of batches"
        )
    whole_number(count, "show_batch: count")
    with generators_kept():
        inputs, labels = unpack(next(source.read(keep_count=True)))
        source.reset()
    images = [image for array in inputs for image in _pixels(array[:count], mean, std)]
    shown = len(images) // len(inputs)
    titles = _texts(labels[0][:count] if labels else None, shown, classes, "labels")
    cells = [_Cell(image, titles[number % shown]) for number, image in enumerate(images)]
    return saved(_grid(cells, columns or (shown if len(inputs) > 1 else None)), path)


def show_data(
    description: DataDescription, *, mean: Any = None, std: Any = None, path: Optional[PathLike] = None
) -> Any:
    """Draw the first images of each part of the data with their labels, as `show_images` does.

    Args:
        description: Result of `mxkit.data.describe`.
        mean: Mean that was subtracted from the images. Without it and `std`, images with values below 0 are scaled from
            their minimum to their maximum.
        std: Standard deviation that they were then divided by.
        path: Where to save the picture, or None.

    Returns:
        The matplotlib Figure.

    Raises:
        DataError: The samples are not images.
    """
    images: List[Any] = []
    names: List[str] = []
    for part in description.parts.values():
        summary = part.inputs[0]
        if not summary.is_image:
            raise DataError(f"show_data: samples of {part.name} have shape {summary.shape}; expected images")
        low, high = summary.low or 0.0, summary.high or 0.0
        if mean is None and std is None:  # parts may differ in unit
            black, white = (low, high) if low < 0 else (0.0, 255.0 if high > 1.01 else 1.0)
            images += [(image - black) / ((white - black) or 1) for image in part.images]
        else:
            images += part.images
        before = f"{part.name}: " if len(description.parts) > 1 else ""
        labels = part.names or [np.empty(0)] * len(part.images)
        names += [before + class_name(label, description.classes) for label in labels]
    return show_images(images, names, mean=mean, std=std, columns=8, path=path)


def show_augment(
    image: Any, augment: Any, rows: int = 3, columns: int = 3, *, seed: int = 0, path: Optional[PathLike] = None
) -> Any:
    """Draw an image, and results of an augmentation of it.

    Args:
        image: (H, W, 1 or 3), NumPy or NDArray, uint8 or float, as `Augment` takes it.
        augment: An `Augment`, or its steps: a list, a name, or a transform of MXNet or gluoncv.
        rows: Rows of the grid.
        columns: Columns of the grid.
        seed: Result i uses a generator of `(seed, i)`, so the picture is the same each time.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure of `rows` x `columns` images. "normalize" is undone.

    Raises:
        DataError: The image has another shape or range, or is too small.
    """
    count = whole_number(rows, "show_augment: rows") * whole_number(columns, "show_augment: columns") - 1
    if not isinstance(augment, Augment):
        augment = Augment(augment if isinstance(augment, list) else [augment])
    mean, std = (None, None) if augment.normalize is None else (augment.normalize.mean, augment.normalize.std)
    results = [augment(image, np.random.Generator(np.random.PCG64([seed, number]))) for number in range(count)]
    white = 1.0 if augment.tensor else augment.white
    pixels = _pixels([image], white=augment.white)
    pixels += [one for result in results for one in _pixels([result], mean, std, white)]
    titles = [f"{name}: {one.shape[1]}x{one.shape[0]}" for name, one in zip(["original", *range(count)], pixels)]
    first, *others = map(_Cell, pixels, titles)
    return saved(_grid([first._replace(framed=True), *others], columns), path)


def _pixels(images: Any, mean: Any = None, std: Any = None, white: Optional[float] = None) -> List[Any]:
    """Images as (H, W) or (H, W, 3), floats from 0 to 1; NaN for pixels that are not finite."""
    if not isinstance(images, (list, tuple)):
        images = to_host(images)
        if images.ndim == 2 or (images.ndim == 3 and (3 in images.shape[::2] or images.shape[-1] == 1)):
            raise DataError(f"show_images: received one image of shape {images.shape}: put it into a list, [image]")
    planes = [channels_last(to_host(image)) for image in images]
    if not planes:
        raise DataError("show_images: there is no image")
    floats = [image.astype(np.float64) for image in planes]
    if mean is not None or std is not None:
        scale, shift = np.asarray(1 if std is None else std), np.asarray(0 if mean is None else mean)
        if {scale.size, shift.size} - {1} - {image.shape[2] for image in floats}:
            raise DataError(f"show_images: mean {mean} and std {std} for images of {floats[0].shape[2]} channels")
        floats = [image * scale + shift for image in floats]
    else:
        white = 255 if all(image.dtype == np.uint8 for image in planes) else white or _white(floats)
        floats = [image / white for image in floats]
    finite = [np.isfinite(image).all(axis=-1, keepdims=True) for image in floats]
    clipped = [np.where(right, image.clip(0, 1), np.nan) for right, image in zip(finite, floats)]
    return [image[..., 0] if image.shape[-1] == 1 else image for image in clipped]


def _white(images: Sequence[Any]) -> float:
    """The value of white in float images, by their range."""
    low, high = finite_range(np.concatenate([image.ravel() for image in images]))
    if low < -1e-3 or high > 256:
        raise DataError(
            f"show_images: the pixels go from {low:.3g} to {high:.3g}; expected 0 to 1, or 0 to 255. Images that were "
            "normalized are shown with mean=... and std=..."
        )
    return 1.0 if high <= 1.01 else 255.0


def channels_last(image: "np.ndarray") -> "np.ndarray":
    """An image (H, W, 1 or 3), from one of the shapes (H, W), (H, W, 1 or 3) and (1 or 3, H, W)."""
    if image.ndim == 2:
        return image[..., None]
    axis = next((axis for axis in (2, 0) if image.ndim == 3 and image.shape[axis] in (1, 3)), None)
    if axis is None:
        raise DataError(f"expected an image with 1 or 3 channels, first or last; received shape {image.shape}")
    return np.moveaxis(image, axis, -1)


def _texts(labels: Any, count: int, classes: Optional[Sequence[str]], name: str) -> List[str]:
    """The text for each image; empty texts without labels."""
    if labels is None:
        return [""] * count
    values = labels.asnumpy() if isinstance(labels, mx.nd.NDArray) else labels
    if len(values) != count:
        raise DataError(f"show_images: there are {count} images and {len(values)} {name}")
    return [_name(label, classes) for label in values]


def _name(label: Any, classes: Optional[Sequence[str]]) -> str:
    if isinstance(label, str):
        return label
    values = np.asarray(label).ravel()
    if values.size > 1:  # a soft label
        largest = np.argsort(-values, kind="stable")[:2]
        return ", ".join(f"{_name(place, classes)} {values[place]:.0%}" for place in largest if values[place] > 0.005)
    return class_name(label, classes)


def _cell(pixels: Any, truth: str, guess: str) -> _Cell:
    if not (truth and guess):
        return _Cell(pixels, truth or guess)
    if truth == guess:
        return _Cell(pixels, truth, _RIGHT)
    return _Cell(pixels, f"{truth}\nread as {guess}", _WRONG, framed=True)


def _grid(cells: Sequence[_Cell], columns: Optional[int]) -> Any:
    """Draw images in rows in a coordinate system of inches, so that no title overlaps another image."""
    from matplotlib.patches import Rectangle

    columns = min(whole_number(columns, "columns"), len(cells)) if columns else ceil(sqrt(len(cells)))
    width = min(max(11.0 / columns, 0.75), 1.9)
    figure = new_figure()
    axes = figure.add_subplot()
    bottom = 0.0
    for first in range(0, len(cells), columns):
        row = cells[first : first + columns]
        titles = [_wrapped(cell.title, width - _GAP) for cell in row]
        top = bottom + max(title.count("\n") + 1 if title else 0 for title in titles) * _LINE + _GAP
        tall = max(min(cell.pixels.shape[0] / cell.pixels.shape[1], 1.5) for cell in row) * (width - _GAP)
        for position, (cell, title) in enumerate(zip(row, titles)):
            left, (high, wide) = position * width + _GAP, cell.pixels.shape[:2]
            scale = min((width - _GAP) / wide, tall / high)
            axes.imshow(_drawable(cell.pixels), extent=(left, left + wide * scale, top + high * scale, top))
            style = {"fontsize": _POINTS, "color": cell.colour, "va": "bottom", "linespacing": 1.1, "clip_on": True}
            # clipped, because wide letters need more than CHARACTER
            limits = Rectangle((left, bottom), width - _GAP, top - bottom, transform=axes.transData)
            axes.text(left, top - 0.03, title, **style).set_clip_path(limits)
            if cell.framed:
                box = Rectangle((left, top), wide * scale, high * scale, fill=False, edgecolor=cell.colour, linewidth=2)
                axes.add_patch(box)
        bottom = top + tall
    total = (columns * width + _GAP, bottom + _GAP)
    figure.set_size_inches(*total)
    axes.set(xlim=(0, total[0]), ylim=(total[1], 0))
    axes.set_axis_off()
    return figure


def _drawable(pixels: Any) -> Any:
    """Colours of pixels; green for those that are not finite."""
    colours = np.repeat(pixels[..., None], 3, axis=-1) if pixels.ndim == 2 else pixels
    return np.where(np.isfinite(colours).all(axis=-1, keepdims=True), colours, (0.0, 1.0, 0.0))


def _wrapped(title: str, inches: float) -> str:
    """Wrap each line to at most two lines of `inches`, and cut off the rest."""
    limit = max(int(inches / (_POINTS * CHARACTER)), 6)
    style: Any = {"max_lines": 2, "placeholder": "\u2026", "break_on_hyphens": False}
    lines = [part for line in title.split("\n") for part in textwrap.wrap(line, limit, **style)]
    return "\n".join(lines).replace("$", r"\$")  # matplotlib reads text between dollars as mathematics
