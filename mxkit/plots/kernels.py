"""Pictures of a convolution's kernels."""

from typing import Any, Optional, Sequence, Tuple, Union

from mxkit.core.blocks import blocks_by_path, layer_settings, operator_name, parameters_by_path, wait_before_reading
from mxkit.core.replicas import values_of
from mxkit.errors import NotInitializedError, unknown_name
from mxkit.plots.grids import Channels, check_channels, choose, draw_grid, faults, how_many
from mxkit.plots.plotting import PathLike, saved
from mxnet.gluon.nn.conv_layers import _Conv
import numpy as np


def plot_filters(
    net: Any,
    layer: str,
    *,
    channels: Union[int, Sequence[int]] = 64,
    path: Optional[PathLike] = None,
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
        UnknownNameError: The net has no such path; the text names the nearest.
        NotInitializedError: The weight has no value yet.
        ValueError: The block is not a convolution, or a channel does not exist.
    """
    title, kernels = _kernels(net, layer)
    outputs, inputs = kernels.shape[:2]
    check_channels(f"plot_filters: {title!r}: channels", channels, outputs)
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
    blocks, parameters = dict(blocks_by_path(net)), parameters_by_path(net)
    known = [path for path, block in blocks.items() if isinstance(block, _Conv)]
    owner = layer if layer in blocks else layer.rpartition(".")[0] if layer in parameters else None
    if owner is None:
        raise unknown_name("convolution", layer, known)
    block = blocks[owner]
    if owner not in known or (layer in parameters and parameters[layer] is not block.weight):
        received = type(block).__name__ if layer in blocks else f"a parameter of {type(block).__name__}"
        raise ValueError(
            f"plot_filters: {layer!r}: expected a convolution, or the weight of one; received {received}. "
            f"Convolutions of the net: {', '.join(map(repr, known)) or 'none'}"
        )
    if values_of(block.weight) is None:
        raise NotInitializedError(
            f"plot_filters: the weight of {layer!r} has no value yet: its shape is {block.weight.shape}. "
            "Initialize the net and run one batch through it first"
        )
    wait_before_reading()
    values = block.weight.data(block.weight.list_ctx()[0]).asnumpy().astype("float64")
    if layer_settings(block)["layout"].endswith("C"):
        values = np.moveaxis(values, -1, 1)
    if operator_name(block) == "Deconvolution":  # its weight is (inputs, outputs of a group, *taps)
        groups = layer_settings(block)["num_group"]
        split = values.reshape(groups, -1, *values.shape[1:]).swapaxes(1, 2)
        values = split.reshape(-1, *split.shape[2:])
    return f"{layer or type(block).__name__}  {block.weight.shape}", values
