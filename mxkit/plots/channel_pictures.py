"""Pictures of a layer's channels."""

import base64
from math import ceil
from pathlib import Path
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from mxkit.core.arrays import to_host
from mxkit.plots import grids
from mxkit.plots.grids import Channels
from mxkit.plots.plotting import BLUE, GREY, PathLike, finite_range, new_figure
import numpy as np


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
        ValueError: A feature cannot be drawn, a sample or a channel does not exist, or an argument is wrong.
            Nothing is written.

    Side effects:
        Writes files to `path`, and replaces existing ones. Copies one sample of each feature to the host.

    >>> list(plot_features({"conv": mx.nd.ones((2, 3, 4, 4)), "dense": mx.nd.ones((2, 5))}))
    ['conv', 'dense']
    """
    arrays = grids.arrays_of("plot_features", features)
    if order not in ("index", "strength"):
        raise ValueError(f"plot_features: order: expected 'index' or 'strength'; received {order!r}")
    for name, array in arrays.items():
        _check_drawable(name, array, sample, channels)
    picture = None if image is None else _input_picture(image, sample)
    files = _files(list(arrays), path)
    figures = Pictures()
    for name, array in arrays.items():
        figures[name] = _draw(_read(name, array, sample, channels, order), array.ndim, picture)
        if name in files:
            files[name].parent.mkdir(parents=True, exist_ok=True)
            figures[name].savefig(str(files[name]))
    return figures


def _check_drawable(name: str, array: Any, sample: int, channels: Any) -> None:
    if not 2 <= array.ndim <= 5:
        raise ValueError(
            f"plot_features: {name!r}: expected (N, C), (N, T, C), (N, C, H, W) or (N, C, D, H, W); "
            f"received the shape {array.shape}. Reshape it, or leave it out"
        )
    grids.check_index(f"plot_features: {name!r}: sample", sample, array.shape[0])
    grids.check_channels(f"plot_features: {name!r}: channels", channels, array.shape[grids.unit_axis(array.ndim)])


def _read(name: str, array: Any, sample: int, channels: Any, order: str) -> Channels:
    """Copy one sample to the host and select its channels."""
    values = array[sample].asnumpy().astype("float64")
    if array.ndim == 3:
        values = values.T
    flat = values.reshape(len(values), -1)
    strength = None
    if order == "strength":
        finite = np.isfinite(flat)
        strength = np.where(finite, np.abs(flat), 0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    chosen = grids.choose(channels, len(values), strength)
    empty = ~flat[chosen].any(axis=1)
    things = "units" if array.ndim == 2 else "channels"
    notes = [grids.how_many(len(chosen), len(values), things) + (", strongest first" if order == "strength" else "")]
    notes.append(f"sample {sample} of {array.shape[0]}")
    if array.ndim == 5:
        middle = values.shape[1] // 2
        notes.append(f"middle slice {middle} of {values.shape[1]}")
        values = values[:, middle]
    values = values[chosen]
    return Channels(f"{name}  {array.shape}", notes + grids.faults(empty, values), values, chosen, empty)


def _draw(layer: Channels, ndim: int, picture: Any) -> Any:
    if ndim > 3:
        return grids.draw_grid(layer, picture)
    width = min(max(0.13 * len(layer.indices) + 1, 5.0), 14.0)
    figure, axes = grids.framed(layer, width - 1, 2.8, picture)
    if ndim == 2:
        axes.bar(range(len(layer.values)), np.where(np.isfinite(layer.values), layer.values, 0), color=BLUE)
        axes.plot(np.flatnonzero(layer.empty), np.zeros(layer.empty.sum()), "x", color=GREY, markersize=4)
        axes.set_ylabel("value", fontsize=8)
        axes.set_xlim(-0.6, len(layer.values) - 0.4)
    else:
        shown = axes.imshow(layer.values.T, aspect="auto", **grids.colour_scale(layer.values))
        figure.colorbar(shown, ax=axes).ax.tick_params(labelsize=7)
        axes.set_ylabel("step (axis 1)", fontsize=8)
    every = ceil(0.13 * len(layer.indices) / (width - 1.2))
    axes.set_xticks(range(0, len(layer.indices), every))
    axes.set_xticklabels([str(index) for index in layer.indices[::every]], rotation=90)
    axes.set_xlabel(f"{'unit' if ndim == 2 else 'channel'} (axis {grids.unit_axis(ndim)})", fontsize=8)
    axes.tick_params(labelsize=6.5)
    for label, empty in zip(axes.get_xticklabels(), layer.empty[::every]):
        label.set_color(GREY if empty else "black")
    return figure


def _input_picture(image: Any, sample: int) -> Any:
    """The net's input as (H, W) or (H, W, 3) from 0 to 1."""
    shape = np.shape(image)
    colours_first = len(shape) > 2 and shape[-3] in (1, 3)
    if len(shape) not in (3, 4) or not (colours_first or shape[-1] in (1, 3)):
        raise ValueError(
            "plot_features: image: expected (N, C, H, W), (C, H, W) or (H, W, C) with 1 or 3 colours; "
            f"received the shape {shape}"
        )
    if len(shape) == 4:
        grids.check_index("plot_features: image: sample", sample, shape[0])
        image = image[sample]
    values = to_host(image).astype("float64")
    if colours_first:
        values = np.moveaxis(values, 0, -1)
    low, high = finite_range(values)
    values = np.nan_to_num((values - low) / ((high - low) or 1.0)).clip(0, 1)
    return values[..., 0] if values.shape[-1] == 1 else values


def _files(names: List[str], path: Optional[PathLike]) -> Dict[str, Path]:
    """Path of each layer's picture: one file, or files with different names in a folder."""
    if path is None:
        return {}
    is_file = Path(path).suffix.lower()[1:] in new_figure().canvas.get_supported_filetypes()
    if is_file and not Path(path).is_dir():
        if len(names) > 1:
            raise ValueError(
                f"plot_features: path: expected a folder, for {len(names)} layers make {len(names)} files; "
                f"received {str(path)!r}"
            )
        return {names[0]: Path(path)}
    files: Dict[str, Path] = {}
    used = set()
    for name in names:
        base = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[-120:] or "net"
        # compared in lower case, because some file systems ignore case
        stem, number = base, 1
        while stem.lower() in used:
            number += 1
            stem = f"{base}-{number}"
        used.add(stem.lower())
        files[name] = Path(path) / f"{stem}.png"
    return files
