"""Pictures of layers: channels and distributions of their outputs, and kernels of convolutions."""

import base64
from math import ceil, sqrt
from pathlib import Path
import re
import textwrap
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.core.blocks import blocks_by_path, layer_settings, operator_name, wait_before_reading
from mxkit.errors import unknown_name
from mxkit.plots.data_plots import channels_last
from mxkit.plots.plotting import BLUE, CHARACTER, GREY, PathLike, finite_range, new_figure, saved, shorten
import mxnet as mx
from mxnet.gluon.nn.conv_layers import _Conv
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
    arrays: Dict[str, Any] = {}
    for name, value in features.items() if isinstance(features, Mapping) else ():
        is_list = isinstance(value, (list, tuple))
        for position, array in enumerate(value if is_list else [value]):
            if not isinstance(array, mx.nd.NDArray) or not array.size:
                received = f"one of shape {array.shape}" if hasattr(array, "shape") else type(array).__name__
                raise ValueError(f"{where}: {name!r}: expected an NDArray or a list of them; received {received}")
            arrays[f"{name}[{position}]" if is_list else str(name)] = array
    if not arrays:
        received = "an empty one" if isinstance(features, Mapping) else type(features).__name__
        raise ValueError(
            f"{where}: expected a dict of arrays by path, like mxkit.Features(net, names)(x); received {received}"
        )
    return arrays


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
    most = None if np.ndim(channels) else whole_number(channels, "channels")
    indices = np.arange(count) if most else np.arange(count)[list(channels)]
    if strength is not None:
        indices = indices[np.argsort(-strength[indices], kind="stable")]
    return indices[:most]


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
        axes.imshow(values, extent=(left, left + 1, top + tall, top), alpha=0.4 if empty else None, **scale)
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


class Pictures(Dict[str, Any]):
    """Figures by layer path, in order; a notebook shows all of them."""

    def _repr_html_(self) -> str:
        pictures = (base64.b64encode(figure._repr_png_()).decode("ascii") for figure in self.values())
        return "".join(f'<img src="data:image/png;base64,{picture}"><br>' for picture in pictures)


def plot_features(
    features: Mapping[str, Any],
    *,
    sample: int = 0,
    channels: Union[int, Sequence[int]] = 64,
    order: str = "index",
    image: Any = None,
    path: Optional[PathLike] = None,
) -> Pictures:
    """Draw the channels of each feature of one sample: a picture for each layer, with one colour scale each.

    (N, C, H, W) is drawn as a grid of channels, (N, C, D, H, W) as a grid of middle slices, (N, C) as bars, and
    (N, T, C) as a map of steps by channels; swap the axes of a Conv1D's (N, C, T) first. The scale is centred at 0 if
    values have both signs. Channels that are 0 everywhere are pale, with grey labels; values that are not finite are
    green.

    Args:
        features: Arrays by path, as from `Features(net, names)(x)`; a list is drawn as `path[0]`, `path[1]`.
        sample: Index of the sample in the batch.
        channels: Largest number of channels per layer, or their indices.
        order: "index", or "strength": by mean |value| of this sample, the largest first.
        image: The net's input, drawn first, scaled from its minimum to its maximum: (N, C, H, W), (C, H, W) or
            (H, W, C) with 1 or 3 colours.
        path: Folder for a PNG of each layer, or a file (`layer.png`, `layer.pdf`) for a single layer.

    Returns:
        Figures by path, in the order of `features`; a dict that notebooks show.

    Raises:
        ValueError: A feature cannot be drawn, or an argument is wrong. Nothing is written.
        IndexError: A sample or a channel does not exist. Nothing is written.

    Side effects:
        Writes files to `path`, and replaces existing ones. Copies one sample of each feature to the host.

    >>> list(plot_features({"conv": mx.nd.ones((2, 3, 4, 4)), "dense": mx.nd.ones((2, 5))}))
    ['conv', 'dense']
    """
    arrays = arrays_of("plot_features", features)
    if order not in ("index", "strength"):
        raise ValueError(f"plot_features: order: expected 'index' or 'strength'; received {order!r}")
    picture = None if image is None else _input_picture(image, sample)
    files = _files(list(arrays), path) if path is not None else {}
    read = {name: _read(name, array, sample, channels, order) for name, array in arrays.items()}
    figures = Pictures({name: _draw(*layer, picture) for name, layer in read.items()})
    for name, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        figures[name].savefig(str(file))
    return figures


def _read(name: str, array: Any, sample: int, channels: Any, order: str) -> Tuple[Channels, int]:
    """Copy one sample to the host and select its channels; and the number of axes with that of the batch."""
    if not 2 <= array.ndim <= 5:
        raise ValueError(
            f"plot_features: {name!r}: expected (N, C), (N, T, C), (N, C, H, W) or (N, C, D, H, W); "
            f"received the shape {array.shape}. Reshape it, or leave it out"
        )
    values = array[sample].asnumpy().astype("float64")
    if array.ndim == 3:
        values = values.T
    flat = values.reshape(len(values), -1)
    strength = None
    if order == "strength":
        finite = np.isfinite(flat)
        strength = np.where(finite, np.abs(flat), 0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    chosen = choose(channels, len(values), strength)
    empty = ~flat[chosen].any(axis=1)
    things = "units" if array.ndim == 2 else "channels"
    notes = [how_many(len(chosen), len(values), things) + (", strongest first" if order == "strength" else "")]
    notes.append(f"sample {sample} of {array.shape[0]}")
    if array.ndim == 5:
        middle = values.shape[1] // 2
        notes.append(f"middle slice {middle} of {values.shape[1]}")
        values = values[:, middle]
    values = values[chosen]
    return Channels(f"{name}  {array.shape}", notes + faults(empty, values), values, chosen, empty), array.ndim


def _draw(layer: Channels, ndim: int, picture: Any) -> Any:
    if ndim > 3:
        return draw_grid(layer, picture)
    width = min(max(0.13 * len(layer.indices) + 1, 5.0), 14.0)
    figure, axes = framed(layer, width - 1, 2.8, picture)
    if ndim == 2:
        axes.bar(range(len(layer.values)), np.where(np.isfinite(layer.values), layer.values, 0), color=BLUE)
        axes.plot(np.flatnonzero(layer.empty), np.zeros(layer.empty.sum()), "x", color=GREY, markersize=4)
        axes.set_ylabel("value", fontsize=8)
        axes.set_xlim(-0.6, len(layer.values) - 0.4)
    else:
        shown = axes.imshow(layer.values.T, aspect="auto", **colour_scale(layer.values))
        figure.colorbar(shown, ax=axes).ax.tick_params(labelsize=7)
        axes.set_ylabel("step (axis 1)", fontsize=8)
    every = ceil(0.13 * len(layer.indices) / (width - 1.2))
    axes.set_xticks(range(0, len(layer.indices), every))
    axes.set_xticklabels([str(index) for index in layer.indices[::every]], rotation=90)
    axes.set_xlabel(f"{'unit' if ndim == 2 else 'channel'} (axis {unit_axis(ndim)})", fontsize=8)
    axes.tick_params(labelsize=6.5)
    for label, empty in zip(axes.get_xticklabels(), layer.empty[::every]):
        label.set_color(GREY if empty else "black")
    return figure


def _input_picture(image: Any, sample: int) -> Any:
    """The net's input as (H, W) or (H, W, 3) from 0 to 1."""
    values = channels_last(to_host(image[sample] if len(image.shape) == 4 else image)).astype("float64")
    low, high = finite_range(values)
    values = np.nan_to_num((values - low) / ((high - low) or 1.0)).clip(0, 1)
    return values[..., 0] if values.shape[-1] == 1 else values


def _files(names: List[str], path: PathLike) -> Dict[str, Path]:
    """Path of each layer's picture: one file, or files with different names in a folder."""
    if Path(path).suffix.lower()[1:] in new_figure().canvas.get_supported_filetypes() and not Path(path).is_dir():
        if len(names) > 1:
            raise ValueError(f"plot_features: path: expected a folder for {len(names)} layers; received {str(path)!r}")
        return {names[0]: Path(path)}
    stems = [re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[-120:] or "net" for name in names]
    if len({stem.lower() for stem in stems}) < len(stems):  # some file systems ignore case
        stems = [f"{number}-{stem}" for number, stem in enumerate(stems)]
    return {name: Path(path) / f"{stem}.png" for name, stem in zip(names, stems)}


def plot_activations(features: Mapping[str, Any], *, bins: int = 60, path: Optional[PathLike] = None) -> Any:
    """Draw a histogram of each feature over the whole batch: a panel for each layer, in one figure.

    The title of a panel has mean and standard deviation, the share of exact zeros, the number of dead units (constant
    over all samples and positions), and the number of values that are not finite, which are left out of the rest.
    If one panel needs a logarithmic axis for counts, all have one. Units are on axis 1, for (N, T, C) on axis 2.

    Args:
        features: Arrays by path, as from `Features(net, names)(x)`, or lists of arrays.
        bins: Number of bars of a histogram, at least 1.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure; its height depends on the number of layers.

    Raises:
        ValueError: There is no feature, one is not an array or is empty, or `bins` is below 1.

    Side effects:
        Copies each feature to the host, one at a time.
    """
    arrays = arrays_of("plot_activations", features)
    whole_number(bins, "plot_activations: bins")
    columns = min(len(arrays), 4)
    rows = ceil(len(arrays) / columns)
    figure = new_figure()
    figure.set_size_inches(max(3.1 * columns, 4), 2.5 * rows + 0.4)
    panels = []
    for position, (name, array) in enumerate(arrays.items()):
        axes = figure.add_subplot(rows, columns, position + 1)
        lines, counts, edges = _distribution(array.asnumpy(), bins)
        axes.set_title("\n".join([shorten(name, 3.0, 7.5), str(array.shape), *lines]), fontsize=7.5, loc="left")
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="x", nbins=5)
        panels.append((axes, counts, edges))
    needs_log = any(counts.max() > 50 * np.median(counts[counts > 0]) for _, counts, _ in panels if counts.any())
    for axes, counts, edges in panels:
        # a logarithmic axis begins at 0.5, so that a bin with one value is visible
        axes.stairs(counts, edges, fill=True, color=BLUE, baseline=0.5 if needs_log else 0)
        if not counts.any():
            axes.set(xticks=[], yticks=[])
        elif needs_log:
            axes.set_yscale("log")
            axes.set_ylim(0.5, 2 * counts.max())
    figure.supxlabel("value", fontsize=9)
    figure.supylabel(f"values in a bin{' (log)' if needs_log else ''}", fontsize=9)
    return saved(figure, path)


def _distribution(values: Any, bins: int) -> Tuple[List[str], Any, Any]:
    """Lines of a panel's title, and the counts and edges of its histogram."""
    values = values.reshape(-1, 1) if values.ndim < 2 else values
    units = np.moveaxis(values, unit_axis(values.ndim), 0).reshape(values.shape[unit_axis(values.ndim)], -1)
    # with a single value per unit only 0 counts as dead
    dead = (units == (units[:, :1] if units.shape[1] > 1 else 0)).all(axis=1)
    finite = values[np.isfinite(values)].astype("float64")
    broken = values.size - finite.size
    last = f"{dead.sum()} of {len(units)} units dead" + (f", {broken} not finite" if broken else "")
    if not finite.size:
        return ["no finite value", last], np.zeros(1), np.array([0.0, 1.0])
    low, high = finite.min(), finite.max()
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # too narrow for bins
        low, high = low - (abs(low) / 100 or 1), high + (abs(high) / 100 or 1)
    counts, edges = np.histogram(finite, bins=bins, range=(low, high))
    zeros = np.count_nonzero(finite == 0) / finite.size
    return [f"mean {finite.mean():.3g}, std {finite.std():.3g}, zeros {zeros:.1%}", last], counts, edges


def plot_filters(
    net: Any, layer: str, *, channels: Union[int, Sequence[int]] = 64, path: Optional[PathLike] = None
) -> Any:
    """Draw the kernels of a convolution on one scale, in colour if it has three input channels.

    Other kernels are drawn as their mean over the inputs. For a 3D convolution the middle slice is drawn, for a 1D
    convolution a picture of inputs (down) by taps (across).

    Args:
        net: Any block, initialized.
        layer: Path of the convolution, like `features.0`, or of its weight, `features.0.weight`.
        channels: Largest number of kernels, or their indices; each kernel computes one output channel.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure.

    Raises:
        UnknownNameError: The net has no convolution at this path; the text names the nearest.
        RuntimeError: The weight has no value yet, in MXNet's words.
        IndexError: A channel does not exist.
    """
    title, kernels = _kernels(net, layer)
    outputs, inputs = kernels.shape[:2]
    chosen = choose(channels, outputs)
    notes = [how_many(len(chosen), outputs, "kernels")]
    if kernels.ndim == 5:
        notes.append(f"middle slice {kernels.shape[2] // 2} of {kernels.shape[2]}")
        kernels = kernels[:, :, kernels.shape[2] // 2]
    shown = kernels[chosen]
    if inputs == 3 and kernels.ndim == 4:
        bound = float(np.abs(shown[np.isfinite(shown)]).max(initial=0)) or 1.0
        notes += [f"red, green, blue from {-bound:.3g} to {bound:.3g}", "one scale for all, 0 is grey"]
        planes = np.moveaxis(shown, 1, -1) / bound / 2 + 0.5
        planes[~np.isfinite(planes).all(axis=-1)] = (0, 1, 0)
    elif kernels.ndim == 3:
        notes.append("down: inputs, across: taps")
        planes = shown
    else:
        notes.append("one input" if inputs == 1 else f"mean over {inputs} inputs")
        planes = shown.mean(axis=1)
    empty = ~shown.reshape(len(shown), -1).any(axis=1)
    notes += faults(empty, shown)
    return saved(draw_grid(Channels(title, notes, planes, chosen, empty)), path)


def _kernels(net: Any, layer: str) -> Tuple[str, Any]:
    """Title and weights (outputs, inputs, *taps) of the convolution at a path."""
    blocks = {path: block for path, block in blocks_by_path(net) if isinstance(block, _Conv)}
    owner = layer if layer in blocks else re.sub(r"\.?weight$", "", layer)
    if owner not in blocks:
        raise unknown_name("convolution", layer, blocks)
    block = blocks[owner]
    wait_before_reading()
    values = block.weight.data(block.weight.list_ctx()[0]).asnumpy().astype("float64")
    if layer_settings(block)["layout"].endswith("C"):
        values = np.moveaxis(values, -1, 1)
    if operator_name(block) == "Deconvolution":  # its weight is (inputs, outputs of a group, *taps)
        split = values.reshape(layer_settings(block)["num_group"], -1, *values.shape[1:]).swapaxes(1, 2)
        values = split.reshape(-1, *split.shape[2:])
    return f"{layer or type(block).__name__}  {block.weight.shape}", values
