"""Grids of channels with one colour scale, and helpers for all pictures of features."""

from math import ceil, sqrt
import textwrap
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from mxkit.core.arguments import whole_number
from mxkit.plots.plotting import CHARACTER, GREY, finite_range, new_figure
import mxnet as mx
import numpy as np


class Channels(NamedTuple):
    """Channels of a layer to draw.

    Attributes:
        title: Title of the picture.
        notes: Remarks under the title.
        values: Values of each channel, on the host.
        indices: Index of each channel in the layer.
        empty: Whether each channel is 0 everywhere.
    """

    title: str
    notes: List[str]
    values: Any
    indices: Any
    empty: Any


def arrays_of(where: str, features: Any) -> Dict[str, Any]:
    """Features as one array per name, in order; a list becomes `name[0]`, `name[1]`, ..."""
    if not isinstance(features, Mapping) or not features:
        raise ValueError(
            f"{where}: expected a dict of arrays by path, like mxkit.Features(net, names)(x); "
            f"received {'an empty one' if isinstance(features, Mapping) else type(features).__name__}"
        )
    arrays: Dict[str, Any] = {}
    for name, value in features.items():
        is_list = isinstance(value, (list, tuple))
        for position, array in enumerate(value if is_list else [value]):
            if not isinstance(array, mx.nd.NDArray):
                raise ValueError(
                    f"{where}: {name!r}: expected an NDArray or a list of them; received {type(array).__name__}"
                )
            if not array.size:
                raise ValueError(f"{where}: {name!r} holds no value: its shape is {array.shape}")
            arrays[f"{name}[{position}]" if is_list else str(name)] = array
    return arrays


def check_index(what: str, index: Any, size: int) -> None:
    if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not 0 <= index < size:
        raise ValueError(f"{what}: expected a whole number from 0 to {size - 1}; received {index!r}")


def check_channels(what: str, channels: Any, size: int) -> None:
    if isinstance(channels, (int, np.integer)):
        whole_number(channels, what)
    elif not isinstance(channels, (Sequence, np.ndarray)) or isinstance(channels, str) or not len(channels):
        raise ValueError(f"{what}: expected a number, or a list of indices; received {channels!r}")
    else:
        for index in channels:
            check_index(what, index, size)


def unit_axis(ndim: int) -> int:
    """The axis of channels or units: the last one of a sequence."""
    return 2 if ndim == 3 else 1


def choose(channels: Any, count: int, strength: Any = None) -> Any:
    """Indices of the channels to draw, sorted by strength if it is given.

    Args:
        channels: Indices of the channels, or their largest number.
        count: Number of channels of the layer.
        strength: Strength of each channel, or None.
    """
    is_number = isinstance(channels, (int, np.integer))
    indices = np.arange(count) if is_number else np.asarray(channels)
    if strength is not None:
        indices = indices[np.argsort(-strength[indices], kind="stable")]
    return indices[:channels] if is_number else indices


def how_many(shown: int, count: int, things: str) -> str:
    if count == 1:
        return f"1 {things[:-1]}"
    return f"all {count} {things}" if shown == count else f"{shown} of {count} {things}"


def faults(empty: Any, values: Any) -> List[str]:
    """Notes on channels that are 0 everywhere, and on values that are not finite."""
    broken = "not finite (green)" if values.ndim > 1 else "not finite"
    counts = [(int(empty.sum()), "all 0 (grey)"), (int((~np.isfinite(values)).sum()), broken)]
    return [f"{count} {text}" for count, text in counts if count]


def draw_grid(layer: Channels, picture: Any = None) -> Any:
    """Draw planes (n, H, W) or colour images (n, H, W, 3) side by side on one scale, with their indices if they fit."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.patches import Rectangle

    count, height, width = layer.values.shape[:3]
    tall = min(max(height / width, 0.125), 8.0)
    columns = min(max(round(sqrt(count * tall)), 1), count)
    size = min(max(7 / columns, 0.3 / max(sqrt(tall), 1)), 1.3)  # inches
    labelled = size >= 0.085 * len(str(max(layer.indices))) + 0.08
    gap = 0.14 / size if labelled else 0.06
    rows = ceil(count / columns)
    figure, axes = framed(layer, columns * 1.06 * size, rows * (tall + gap) * size, picture)
    scale = {} if layer.values.ndim == 4 else colour_scale(layer.values)
    for position, (values, channel, empty) in enumerate(zip(layer.values, layer.indices, layer.empty)):
        left, top = position % columns * 1.06, position // columns * (tall + gap) + gap
        extent = (left, left + 1, top + tall, top)
        axes.imshow(values, extent=extent, alpha=0.4 if empty else None, **scale)
        if empty:
            axes.add_patch(Rectangle((left, top), 1, tall, fill=False, edgecolor=GREY, linestyle=":"))
        if labelled:
            axes.text(left, top - 0.02, str(channel), fontsize=6, va="bottom", color=GREY if empty else "black")
    axes.set(xlim=(-0.02, columns * 1.06 - 0.04), ylim=(rows * (tall + gap) + 0.02, 0))
    axes.set_axis_off()
    axes.set_anchor("N")
    if scale:
        bar = figure.colorbar(ScalarMappable(**scale), ax=axes, fraction=0.04, pad=0.01, aspect=40)
        bar.ax.tick_params(labelsize=7)
    return figure


def framed(layer: Channels, width: float, height: float, picture: Any) -> Tuple[Any, Any]:
    """Make a figure with title, notes, and the input to the left of axes of `width` x `height` inches."""
    beside = 0.0 if picture is None else 2.2
    total = max(width + beside + 1.0, 4.6)
    # no-break spaces, so that lines break between notes
    whole = " \u00b7 ".join(note.replace(" ", "\u00a0") for note in layer.notes)
    lines = textwrap.wrap(whole, max(int(total / (8.5 * CHARACTER)), 20), break_on_hyphens=False)
    figure = new_figure()
    figure.set_size_inches(total, max(height, beside) + 0.75 + 0.15 * len(lines))
    figure.suptitle("\n".join([shorten(layer.title, total, 10), *lines]).replace("\u00a0", " "), fontsize=8.5)
    if picture is None:
        return figure, figure.add_subplot()
    first, axes = figure.subplots(1, 2, gridspec_kw={"width_ratios": [beside, total - beside]})
    first.imshow(picture, cmap="gray", vmin=0, vmax=1)
    first.set_title("input", fontsize=8)
    first.set_anchor("N")
    first.set_axis_off()
    return figure, axes


def colour_scale(values: Any) -> Dict[str, Any]:
    """Colour map and norm for values: diverging around 0 if both signs occur, else sequential."""
    import matplotlib
    from matplotlib.colors import Normalize

    low, high = finite_range(values)
    name = "viridis"
    if low < 0 < high:
        name, high = "RdBu_r", max(-low, high)
        low = -high
    norm = Normalize(low, high if high > low else low + 1)
    return {"cmap": matplotlib.colormaps[name].with_extremes(bad="lime"), "norm": norm}


def shorten(text: str, inches: float, points: float) -> str:
    """Cut the middle out of a text that is wider than `inches` at a font size of `points`."""
    limit = max(int(inches / (points * CHARACTER)), 8)
    if len(text) > limit:
        text = f"{text[: limit // 2 - 1]}\u2026{text[-((limit + 1) // 2) :]}"
    return text.replace("$", r"\$")  # matplotlib reads text between dollars as mathematics
