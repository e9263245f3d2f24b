"""Pictures of what a net computes and learns: channels, kernels, distributions, gradients."""

import base64
from collections import Counter
from math import ceil, sqrt
from pathlib import Path
import re
import textwrap
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.blocks import blocks_by_path, net_devices, parameters_by_path
from mxkit.errors import NotInitializedError, unknown_name
from mxkit.plotting import new_figure
import mxnet as mx
from mxnet.gluon.nn.conv_layers import _Conv
import numpy as np

PathLike = Union[str, Path]
_BLUE, _ORANGE, _GREY = "#4C72B0", "#DD8452", "0.55"
# Inches that one character needs at a font size of one point, for most names; DejaVu Sans, matplotlib's own.
_CHARACTER = 0.0092
# More rows than these make a picture of gradients that nobody scrolls through: then a row is a block.
_ROWS = 200


class Pictures(Dict[str, Any]):
    """Figures by path of the layer, in order; a notebook shows them one below the other."""

    def _repr_html_(self) -> str:
        pictures = (base64.b64encode(figure._repr_png_()).decode("ascii") for figure in self.values())
        return "".join(f'<img src="data:image/png;base64,{picture}"><br>' for picture in pictures)


class _Layer(NamedTuple):
    """One sample of a feature, on the host."""

    title: str
    notes: List[str]
    values: Any  # channels shown first, then what is drawn of each
    channels: Any  # their indices
    empty: Any  # which of them are 0 everywhere


def plot_features(
    features: Mapping[str, Any],
    *,
    sample: int = 0,
    channels: Union[int, Sequence[int]] = 64,
    order: str = "index",
    columns: Optional[int] = None,
    image: Any = None,
    path: Optional[PathLike] = None,
) -> Pictures:
    """Draw the channels of each feature of one sample: one picture a layer, one colour scale a picture.

    (N, C, H, W) is a grid of channels, (N, C, D, H, W) one of middle slices, (N, C) bars, and (N, T, C) a map of
    steps by channels; of the (N, C, T) of a Conv1D swap the axes first. The scale is centred at 0 where values
    have both signs. Channels that are 0 everywhere have grey frames and labels; green pixels are not finite.

    Args:
        features: Arrays by path, as `Features(net, names)(x)` gives them; a list is drawn as `path[0]`, `path[1]`.
        sample: Which of the batch.
        channels: At most so many a layer, or the indices of those to draw.
        order: "index" as they come, or "strength": by mean |value| of this sample, the strongest first.
        columns: Of a grid; by default the picture is about square.
        image: What went into the net, drawn first, stretched from its minimum to its maximum:
            (N, C, H, W), (C, H, W) or (H, W, C) with 1 or 3 colours.
        path: The folder to save a PNG of each layer in, or the file (`layer.png`, `layer.pdf`) of a single one.

    Returns:
        Figures by path, in the order of `features`: a dict that a notebook shows.

    Raises:
        ValueError: A feature cannot be drawn, a sample or a channel does not exist, or an argument is wrong.
            Nothing is written then.

    Side effects:
        Writes files where `path` is given: existing ones are replaced. Copies one sample of each feature to the host.

    >>> list(plot_features({"conv": mx.nd.ones((2, 3, 4, 4)), "dense": mx.nd.ones((2, 5))}))
    ['conv', 'dense']
    """
    arrays = _arrays("plot_features", features)
    if order not in ("index", "strength"):
        raise ValueError(f"plot_features: order: expected 'index' or 'strength'; received {order!r}")
    if columns is not None:
        _check_count("plot_features: columns", columns)
    for name, array in arrays.items():
        _check_drawable(name, array, sample, channels)
    picture = None if image is None else _input_picture(image, sample)
    files = _files(list(arrays), path)
    figures = Pictures()
    for name, array in arrays.items():
        figures[name] = _draw(_read(name, array, sample, channels, order), array.ndim, columns, picture)
        if name in files:
            files[name].parent.mkdir(parents=True, exist_ok=True)
            figures[name].savefig(str(files[name]))
    return figures


def plot_filters(
    net: Any,
    layer: str,
    *,
    channels: Union[int, Sequence[int]] = 64,
    plane: Optional[int] = None,
    path: Optional[PathLike] = None,
) -> Any:
    """Draw the kernels of a convolution, all on one scale: in colour where it reads three channels.

    Other kernels are drawn as their mean over the inputs. Of a 3D convolution it is the middle slice, of a 1D one
    each picture holds inputs (down) by taps (across).

    Args:
        net: Any block, initialized.
        layer: Path of the convolution, like `features.0`, or of its weight, `features.0.weight`.
        channels: At most so many kernels, or the indices of those to draw; a kernel gives one output channel.
        plane: The input whose plane to draw alone, in place of colours or the mean.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure.

    Raises:
        UnknownNameError: The net has no such path; the text names the nearest.
        NotInitializedError: The weight has no value yet.
        ValueError: It is no convolution; a channel or the plane does not exist.
    """
    title, kernels = _kernels(net, layer)
    outputs, inputs = kernels.shape[:2]
    _check_channels(f"plot_filters: {title!r}: channels", channels, outputs)
    if plane is not None:
        _check_index(f"plot_filters: {title!r}: plane", plane, inputs)
    chosen = _choose(channels, outputs)
    notes = [_how_many(len(chosen), outputs, "kernels")]
    if kernels.ndim == 5:
        notes.append(f"middle slice {kernels.shape[2] // 2} of {kernels.shape[2]}")
        kernels = kernels[:, :, kernels.shape[2] // 2]
    shown = kernels[chosen]
    if plane is None and inputs == 3 and kernels.ndim == 4:
        bound = float(np.abs(shown[np.isfinite(shown)]).max(initial=0)) or 1.0
        notes.append(f"colours: red, green, blue from {-bound:.3g} to {bound:.3g}, the same for all, 0 is grey")
        planes = np.nan_to_num(np.moveaxis(shown, 1, -1) / bound / 2 + 0.5).clip(0, 1)
    elif kernels.ndim == 3:
        notes.append("down: inputs, across: taps")
        planes = shown if plane is None else shown[:, plane : plane + 1]
    else:
        notes.append(f"mean over {inputs} inputs" if plane is None else f"plane of input {plane} of {inputs}")
        planes = shown.mean(axis=1) if plane is None else shown[:, plane]
    empty = ~shown.reshape(len(shown), -1).any(axis=1)
    if empty.any():
        notes.append(f"{empty.sum()} all 0 (grey)")
    figure = _draw_grid(_Layer(title, notes, planes, chosen, empty), None, None)
    if path is not None:
        figure.savefig(str(path))
    return figure


def plot_activations(features: Mapping[str, Any], *, bins: int = 60, path: Optional[PathLike] = None) -> Any:
    """Draw how the values of each feature are distributed over the whole batch: one panel a layer, in one figure.

    Above each panel stand mean and standard deviation, the share of exact zeros, the units that are dead (0, or one
    and the same number, for every sample and position), and how many values are not finite: these are left out of
    all the rest. Counts are on a logarithmic axis in all panels where one needs it. Units are along axis 1,
    of (N, T, C) along axis 2.

    Args:
        features: Arrays by path, as `Features(net, names)(x)` gives them, or lists of arrays.
        bins: Bars of a histogram, at least 1.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure, as high as its layers need.

    Raises:
        ValueError: There is no feature, one is no array or holds no value, or `bins` is below 1.

    Side effects:
        Copies each feature to the host, one at a time.
    """
    arrays = _arrays("plot_activations", features)
    _check_count("plot_activations: bins", bins)
    columns = min(len(arrays), 4)
    rows = ceil(len(arrays) / columns)
    figure = new_figure()
    figure.set_size_inches(max(3.1 * columns, 4), 2.5 * rows + 0.4)
    panels = []
    for position, (name, array) in enumerate(arrays.items()):
        axes = figure.add_subplot(rows, columns, position + 1)
        lines, counts, edges = _distribution(array.asnumpy(), bins)
        heading = [_shorten(name, 3.0, 7.5), str(array.shape), *lines]
        axes.set_title("\n".join(heading), fontsize=7.5, loc="left")
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="x", nbins=5)
        panels.append((axes, counts, edges))
    needs_log = any(counts.max() > 50 * np.median(counts[counts > 0]) for _, counts, _ in panels if counts.any())
    for axes, counts, edges in panels:
        # half a value is the floor of a logarithmic axis: a bin of one value stands above it
        axes.stairs(counts, edges, fill=True, color=_BLUE, baseline=0.5 if needs_log else 0)
        if not counts.any():
            axes.set(xticks=[], yticks=[])
        elif needs_log:
            axes.set_yscale("log")
            axes.set_ylim(0.5, 2 * counts.max())
    figure.supxlabel("value", fontsize=9)
    figure.supylabel(f"values in a bin{' (log)' if needs_log else ''}", fontsize=9)
    if path is not None:
        figure.savefig(str(path))
    return figure


def _arrays(where: str, features: Any) -> Dict[str, Any]:
    """Features as one array a name, in order."""
    if not isinstance(features, Mapping) or not features:
        raise ValueError(
            f"{where}: expected a dict of arrays by path, like mxkit.Features(net, names)(x); "
            f"received {'an empty one' if isinstance(features, Mapping) else type(features).__name__}"
        )
    arrays: Dict[str, Any] = {}
    for name, value in features.items():
        many = isinstance(value, (list, tuple))
        for position, array in enumerate(value if many else [value]):
            if not isinstance(array, mx.nd.NDArray):
                raise ValueError(
                    f"{where}: {name!r}: expected an NDArray or a list of them; received {type(array).__name__}"
                )
            if not array.size:
                raise ValueError(f"{where}: {name!r} holds no value: its shape is {array.shape}")
            arrays[f"{name}[{position}]" if many else str(name)] = array
    return arrays


def _check_count(what: str, count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ValueError(f"{what}: expected a whole number above 0; received {count!r}")


def _check_index(what: str, index: Any, size: int) -> None:
    if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not 0 <= index < size:
        raise ValueError(f"{what}: expected a whole number from 0 to {size - 1}; received {index!r}")


def _check_channels(what: str, channels: Any, size: int) -> None:
    if isinstance(channels, (int, np.integer)):
        _check_count(what, channels)
    elif not isinstance(channels, (Sequence, np.ndarray)) or isinstance(channels, str) or not len(channels):
        raise ValueError(f"{what}: expected a number, or a list of indices; received {channels!r}")
    else:
        for index in channels:
            _check_index(what, index, size)


def _check_drawable(name: str, array: Any, sample: int, channels: Any) -> None:
    if not 2 <= array.ndim <= 5:
        raise ValueError(
            f"plot_features: {name!r}: expected (N, C), (N, T, C), (N, C, H, W) or (N, C, D, H, W); "
            f"received the shape {array.shape}. Reshape it, or leave it out"
        )
    _check_index(f"plot_features: {name!r}: sample", sample, array.shape[0])
    _check_channels(f"plot_features: {name!r}: channels", channels, array.shape[_unit_axis(array.ndim)])


def _unit_axis(ndim: int) -> int:
    """The axis of channels or units: the last one of a sequence."""
    return 2 if ndim == 3 else min(1, ndim - 1)


def _choose(channels: Any, count: int, strength: Any = None) -> Any:
    """Indices of the channels to draw: the given ones or the first so many, ranked where there is a strength."""
    limited = isinstance(channels, (int, np.integer))
    indices = np.arange(count) if limited else np.asarray(channels)
    if strength is not None:
        indices = indices[np.argsort(-strength[indices], kind="stable")]
    return indices[:channels] if limited else indices


def _how_many(shown: int, count: int, things: str) -> str:
    return f"all {count} {things}" if shown == count else f"{shown} of {count} {things}"


def _read(name: str, array: Any, sample: int, channels: Any, order: str) -> _Layer:
    """Copy one sample to the host and pick its channels."""
    values = array[sample].asnumpy().astype("float64")
    if array.ndim == 3:
        values = values.T
    flat = values.reshape(len(values), -1)
    finite = np.isfinite(flat)
    strength = None
    if order == "strength":
        strength = np.where(finite, np.abs(flat), 0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    chosen = _choose(channels, len(values), strength)
    empty = ~flat[chosen].any(axis=1)
    things = "units" if array.ndim == 2 else "channels"
    notes = [_how_many(len(chosen), len(values), things) + (", strongest first" if order == "strength" else "")]
    notes.append(f"sample {sample} of {array.shape[0]}")
    if array.ndim == 5:
        middle = values.shape[1] // 2
        notes.append(f"middle slice {middle} of {values.shape[1]}")
        values = values[:, middle]
    if empty.any():
        notes.append(f"{empty.sum()} all 0 (grey)")
    values = values[chosen]
    if not np.isfinite(values).all():
        notes.append(f"{(~np.isfinite(values)).sum()} values not finite{'' if array.ndim == 2 else ' (green)'}")
    return _Layer(f"{name}  {array.shape}", notes, values, chosen, empty)


def _draw(layer: _Layer, ndim: int, columns: Optional[int], picture: Any) -> Any:
    if ndim > 3:
        return _draw_grid(layer, columns, picture)
    width = min(max(0.13 * len(layer.channels) + 1, 5.0), 14.0)
    figure, axes = _framed(layer, width - 1, 2.8, picture)
    if ndim == 2:
        axes.bar(range(len(layer.values)), np.where(np.isfinite(layer.values), layer.values, 0), color=_BLUE)
        axes.plot(np.flatnonzero(layer.empty), np.zeros(layer.empty.sum()), "x", color=_GREY, markersize=4)
        axes.set_ylabel("value", fontsize=8)
        axes.set_xlim(-0.6, len(layer.values) - 0.4)
    else:
        shown = axes.imshow(layer.values.T, aspect="auto", **_scale(layer.values))
        figure.colorbar(shown, ax=axes).ax.tick_params(labelsize=7)
        axes.set_ylabel("step (axis 1)", fontsize=8)
    every = ceil(0.13 * len(layer.channels) / (width - 1.2))
    axes.set_xticks(range(0, len(layer.channels), every))
    axes.set_xticklabels([str(channel) for channel in layer.channels[::every]], rotation=90)
    axes.set_xlabel(f"{'unit' if ndim == 2 else 'channel'} (axis {_unit_axis(ndim)})", fontsize=8)
    axes.tick_params(labelsize=6.5)
    for label, empty in zip(axes.get_xticklabels(), layer.empty[::every]):
        label.set_color(_GREY if empty else "black")
    return figure


def _draw_grid(layer: _Layer, columns: Optional[int], picture: Any) -> Any:
    """Planes (n, H, W), or pictures (n, H, W, 3), side by side on one scale, with their indices where these fit."""
    from matplotlib.patches import Rectangle

    count, height, width = layer.values.shape[:3]
    tall = min(max(height / width, 0.125), 8.0)
    columns = min(columns or max(round(sqrt(count * tall)), 1), count)
    size = min(max(7 / columns, 0.3), 1.3)  # inches
    labelled = size >= 0.085 * len(str(max(layer.channels))) + 0.08
    gap = 0.14 / size if labelled else 0.06
    rows = ceil(count / columns)
    figure, axes = _framed(layer, columns * 1.06 * size, rows * (tall + gap) * size, picture)
    scale = {} if layer.values.ndim == 4 else _scale(layer.values)
    for position, (values, channel, empty) in enumerate(zip(layer.values, layer.channels, layer.empty)):
        left, top = position % columns * 1.06, position // columns * (tall + gap) + gap
        shown = axes.imshow(values, extent=(left, left + 1, top + tall, top), **scale)
        if empty:
            axes.add_patch(Rectangle((left, top), 1, tall, fill=False, edgecolor=_GREY, linestyle=":"))
        if labelled:
            axes.text(left, top - 0.02, str(channel), fontsize=6, va="bottom", color=_GREY if empty else "black")
    axes.set(xlim=(-0.02, columns * 1.06 - 0.04), ylim=(rows * (tall + gap) + 0.02, 0))
    axes.set_axis_off()
    if scale:
        figure.colorbar(shown, ax=axes, fraction=0.04, pad=0.01, aspect=40).ax.tick_params(labelsize=7)
    return figure


def _framed(layer: _Layer, width: float, height: float, picture: Any) -> Tuple[Any, Any]:
    """Make a figure: title and notes above, the input to the left of axes of `width` x `height` inches."""
    beside = 0.0 if picture is None else 2.2
    total = max(width + beside + 1.0, 4.6)
    lines = textwrap.wrap(" \u00b7 ".join(layer.notes), max(int(total / (8.5 * _CHARACTER)), 20))
    figure = new_figure()
    figure.set_size_inches(total, max(height, beside) + 0.75 + 0.15 * len(lines))
    figure.suptitle("\n".join([_shorten(layer.title, total, 10), *lines]), fontsize=8.5)
    if picture is None:
        return figure, figure.add_subplot()
    first, axes = figure.subplots(1, 2, gridspec_kw={"width_ratios": [beside, total - beside]})
    first.imshow(picture, cmap="gray", vmin=0, vmax=1)
    first.set_title("input", fontsize=8)
    first.set_anchor("N")
    first.set_axis_off()
    return figure, axes


def _scale(values: Any) -> Dict[str, Any]:
    """Colours for values: diverging around 0 where both signs occur, sequential where not."""
    import matplotlib

    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    name = "RdBu_r" if low < 0 < high else "viridis"
    if low < 0 < high:
        high = max(-low, high)
        low = -high
    return {
        "cmap": matplotlib.colormaps[name].with_extremes(bad="lime"),
        "vmin": low,
        "vmax": high if high > low else low + 1,
    }


def _input_picture(image: Any, sample: int) -> Any:
    """The net's input as (H, W) or (H, W, 3) from 0 to 1."""
    if not isinstance(image, mx.nd.NDArray):
        image = np.asarray(image)
    shape = image.shape
    if len(shape) == 4:
        _check_index("plot_features: image: sample", sample, shape[0])
        image = image[sample]
    colours_first = len(shape) > 2 and shape[-3] in (1, 3)
    if len(shape) not in (3, 4) or not (colours_first or shape[-1] in (1, 3)):
        raise ValueError(
            "plot_features: image: expected (N, C, H, W), (C, H, W) or (H, W, C) with 1 or 3 colours; "
            f"received the shape {shape}"
        )
    values = (image.asnumpy() if isinstance(image, mx.nd.NDArray) else image).astype("float64")
    if colours_first:
        values = np.moveaxis(values, 0, -1)
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    values = np.nan_to_num((values - low) / ((high - low) or 1.0)).clip(0, 1)
    return values[..., 0] if values.shape[-1] == 1 else values


def _kernels(net: Any, layer: str) -> Tuple[str, Any]:
    """Title and weights (outputs, inputs, *taps) of the convolution that a path names."""
    blocks, parameters = dict(blocks_by_path(net)), parameters_by_path(net)
    known = [path for path, block in blocks.items() if isinstance(block, _Conv)]
    owner = layer if layer in blocks else layer.rpartition(".")[0] if layer in parameters else None
    if owner is None:
        raise unknown_name("convolution", layer, known)
    block = blocks[owner]
    if owner not in known or (layer in parameters and parameters[layer] is not block.weight):
        found = type(block).__name__ if layer in blocks else f"a parameter of {type(block).__name__}"
        raise ValueError(
            f"plot_filters: {layer!r}: expected a convolution, or the weight of one; received {found}. "
            f"Convolutions of the net: {', '.join(map(repr, known)) or 'none'}"
        )
    if block.weight._data is None:
        raise NotInitializedError(
            f"plot_filters: the weight of {layer!r} has no value yet: its shape is {block.weight.shape}. "
            "Initialize the net and run one batch through it first"
        )
    values = block.weight.data(block.weight.list_ctx()[0]).asnumpy().astype("float64")
    if block._kwargs["layout"].endswith("C"):
        values = np.moveaxis(values, -1, 1)
    if block._op_name == "Deconvolution":  # its weight is (inputs, outputs of a group, *taps)
        groups = block._kwargs["num_group"]
        split = values.reshape(groups, -1, *values.shape[1:]).swapaxes(1, 2)
        values = split.reshape(-1, *split.shape[2:])
    return f"{layer or type(block).__name__}  {block.weight.shape}", values


def _distribution(values: Any, bins: int) -> Tuple[List[str], Any, Any]:
    """What stands above a panel, and its counts and edges."""
    units = np.moveaxis(values, _unit_axis(values.ndim), 0).reshape(values.shape[_unit_axis(values.ndim)], -1)
    # one value says nothing about being constant
    dead = (units == (units[:, :1] if units.shape[1] > 1 else 0)).all(axis=1)
    finite = values[np.isfinite(values)].astype("float64")
    lost = values.size - finite.size
    last = f"{dead.sum()} of {len(units)} units dead" + (f", {lost} values not finite" if lost else "")
    if not finite.size:
        return ["no finite value", last], np.zeros(1), np.array([0.0, 1.0])
    low, high = finite.min(), finite.max()
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # too narrow to be cut into bins
        low, high = low - (abs(low) / 100 or 1), high + (abs(high) / 100 or 1)
    counts, edges = np.histogram(finite, bins=bins, range=(low, high))
    zeros = np.count_nonzero(finite == 0) / finite.size
    return [f"mean {finite.mean():.3g}, std {finite.std():.3g}, zeros {zeros:.1%}", last], counts, edges


def _shorten(text: str, inches: float, points: float) -> str:
    """Cut the middle out of a text that is wider than `inches` at a font size of `points`."""
    limit = max(int(inches / (points * _CHARACTER)), 8)
    return text if len(text) <= limit else f"{text[: limit // 2 - 1]}\u2026{text[-((limit + 1) // 2) :]}"


def _files(names: List[str], path: Optional[PathLike]) -> Dict[str, Path]:
    """Where each layer's picture goes: one file, or files in a folder, no two the same."""
    if path is None:
        return {}
    if Path(path).suffix.lower()[1:] in new_figure().canvas.get_supported_filetypes() and not Path(path).is_dir():
        if len(names) > 1:
            raise ValueError(
                f"plot_features: path: expected a folder, for {len(names)} layers make {len(names)} files; "
                f"received {str(path)!r}"
            )
        return {names[0]: Path(path)}
    files: Dict[str, Path] = {}
    taken = set()
    for name in names:
        stem = base = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[-120:] or "net"
        number = 1
        # file systems that ignore case would make one file of `Conv` and `conv`
        while stem.lower() in taken:
            number += 1
            stem = f"{base}-{number}"
        taken.add(stem.lower())
        files[name] = Path(path) / f"{stem}.png"
    return files


def plot_gradients(net: Any, *, path: Optional[PathLike] = None) -> Any:
    """Draw the norms of the last gradients and of the weights, one row a parameter, in the order of the net.

    Bars are L2 norms on a logarithmic axis; beside them stands gradient over weight. Frozen parameters (`grad_req`
    "null") and gradients of 0 are marked; running statistics, which no gradient trains, are left out. The
    gradients are what the net holds: after Gluon's `backward` sums over samples. With several devices the bar is
    the first one's own, dots are the others'. Of more than 200 parameters a row is a block, over its trainable ones.

    Args:
        net: Any block, after a backward pass.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure, as high as its rows need.

    Raises:
        NotInitializedError: A parameter has no value yet.
        ValueError: Everything is frozen, or there is no gradient: no backward yet, or it was zeroed since.

    Side effects:
        Norms are computed on the devices, and copied to the host once a device.
    """
    devices = net_devices(net)
    parameters = _trainable(net)
    norms = _norms(parameters, devices)
    if not norms[1:].any() and not any(data._fresh_grad for p in parameters.values() if p._grad for data in p._data):
        raise ValueError(
            "plot_gradients: every gradient of the net is 0 and no backward pass wrote it: call it after "
            "loss.backward(), before the gradients are zeroed (an Accumulator and fit(accumulate=...) zero them "
            "after each update)"
        )
    frozen = np.array([p.grad_req == "null" for p in parameters.values()])
    names, count = list(parameters), len(parameters)
    if count > _ROWS:
        names, norms, frozen = _by_block(names, norms, frozen)
    title = f"{type(net).__name__}: gradients of {count} parameters" + (
        f" in {len(names)} blocks" if count > _ROWS else ""
    )
    figure = _draw_gradients(title, names, norms, frozen, devices)
    if path is not None:
        figure.savefig(str(path))
    return figure


def _trainable(net: Any) -> Dict[str, Any]:
    """Parameters with values by path, without running statistics; a shared one under its first path."""
    found: Dict[int, Tuple[str, Any]] = {}
    for path, parameter in parameters_by_path(net).items():
        if parameter._data is None:
            raise NotInitializedError(
                f"plot_gradients: parameter {path!r} has no value yet: its shape is {parameter.shape}. "
                "Run one batch forward and backward first"
            )
        if parameter._differentiable:
            found.setdefault(id(parameter), (path, parameter))
    if all(parameter.grad_req == "null" for _, parameter in found.values()):
        raise ValueError(
            f"plot_gradients: none of the net's {len(found)} parameters has a gradient: all are frozen "
            "(grad_req 'null'). mxkit.unfreeze(net, '*') trains them again"
        )
    return dict(found.values())


def _norms(parameters: Dict[str, Any], devices: Sequence[Any]) -> Any:
    """L2 norms of the weights on the first device, then of the gradients on each: (1 + devices, parameters)."""
    columns = []
    for position, device in enumerate(devices):
        arrays = [p._data[position] for p in parameters.values()] if not position else []
        zero = mx.nd.zeros((1,), ctx=device)
        arrays += [zero if p._grad is None else p._grad[position] for p in parameters.values()]
        # float16 squares overflow at 256, and norms are joined, so of one dtype
        wide = [a if a.dtype == np.float64 else a.astype("float32", copy=False) for a in arrays]
        columns.append(mx.nd.concat(*[a.norm().astype("float64") for a in wide], dim=0).asnumpy())
    return np.concatenate(columns).reshape(1 + len(devices), len(parameters))


def _by_block(names: List[str], norms: Any, frozen: Any) -> Tuple[List[str], Any, Any]:
    """Rows of parameters as rows of the blocks that own them; a block is frozen where all of it is."""
    owners = [name.rpartition(".")[0] for name in names]
    blocks = list(dict.fromkeys(owners))
    member = np.array([[owner == block for owner in owners] for block in blocks])
    whole = ~(member & ~frozen).any(axis=1)
    counted = member & (~frozen | whole[:, None])
    with np.errstate(invalid="ignore", over="ignore"):
        joined = np.array([[np.linalg.norm(row[columns]) for columns in counted] for row in norms])
    return blocks, joined, whole


def _draw_gradients(title: str, names: List[str], norms: Any, frozen: Any, devices: Sequence[Any]) -> Any:
    rows, weight, gradient = np.arange(len(names)), norms[0], norms[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = gradient / weight
    figure = new_figure()
    figure.set_size_inches(9.5, 0.17 * len(names) + 1.9)
    left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [3, 2]})
    _log_bars(left, rows, gradient, f"gradient on {devices[0]}", "L2 norm", norms)
    _log_bars(right, rows, ratio, "gradient / weight", "gradient / weight", ratio)
    for device, own in zip(devices[1:], norms[2:]):
        left.plot(own[own > 0], rows[own > 0], "o", markersize=2.5, label=f"gradient on {device}")
    left.plot(weight[weight > 0], rows[weight > 0], "D", markersize=3, color=_ORANGE, label="weight")
    left.set_yticks(rows)
    left.set_yticklabels([_shorten(name, 2.6, 7) for name in names], fontsize=7)
    left.set_ylim(len(names) - 0.4, -0.6)
    handles, labels = left.get_legend_handles_labels()
    handles, labels = handles[-1:] + handles[:-1], labels[-1:] + labels[:-1]  # bars come last in it
    left.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncol=4, fontsize=7.5, frameon=False)
    marks = [_mark(*row) for row in zip(frozen, np.isfinite(norms).all(axis=0), norms[1:].max(axis=0), weight)]
    for row, mark in enumerate(marks):
        right.text(0.01, row, mark, transform=right.get_yaxis_transform(), va="center", fontsize=6.5, color="0.35")
    told = [f"{mark}: {count}" for mark, count in Counter(marks).items() if mark]
    figure.suptitle("\n".join([title, *([", ".join(told)] if told else [])]), fontsize=10)
    return figure


def _mark(frozen: bool, finite: bool, gradient: float, weight: float) -> str:
    """What a row without a whole bar says in its place."""
    if frozen:
        return "frozen"
    if not finite:
        return "not finite"
    if not gradient:
        return "gradient 0"
    return "" if weight else "weight 0"


def _log_bars(axes: Any, rows: Any, values: Any, label: str, xlabel: str, all_values: Any) -> None:
    """Horizontal bars where there is a value above 0, from whole decade to whole decade."""
    drawn = np.isfinite(values) & (values > 0)
    axes.barh(rows[drawn], values[drawn], height=0.7, color=_BLUE, label=label)
    within = all_values[np.isfinite(all_values) & (all_values > 0)]
    decades = np.log10(within) if within.size else np.zeros(1)
    axes.set_xscale("log")
    axes.set_xlim(10 ** (np.floor(decades.min()) - 0.3), 10 ** (np.ceil(decades.max()) + 0.3))
    axes.set_xlabel(xlabel, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
