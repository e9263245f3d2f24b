"""Compares the shape of a stock layer's input with the shape it was built for."""

from typing import Any, Callable, Optional, Sequence, Tuple

from mxkit.core.array_kind import is_numpy
import mxnet as mx
from mxnet.gluon import contrib, nn, rnn
from mxnet.gluon.nn.conv_layers import _Conv, _Pooling
from mxnet.gluon.rnn.rnn_layer import _RNNLayer
import numpy as np


def layer_fault(block: Any, inputs: Tuple[Any, ...]) -> str:
    """Say how the inputs of a layer differ from those it was built for.

    Args:
        block: Any block.
        inputs: Arguments of its call.

    Returns:
        The rest of a sentence that begins with the layer, with the solution; '' if its inputs fit, or for a block
        of another class.

    >>> layer = nn.Dense(2, in_units=3)
    >>> layer_fault(layer, (mx.nd.ones((4, 5)),))[:63]
    ' is built for 3 inputs per sample and got shape (4, 5). Give it'
    >>> layer_fault(layer, (mx.nd.ones((4, 3)),))
    ''
    """
    if not inputs or not isinstance(inputs[0], mx.nd.NDArray):
        return ""
    if is_numpy(inputs[0]) and isinstance(block, WITHOUT_NUMPY) and type(block).__module__.startswith("mxnet."):
        return (
            f" has no version for mx.np: MXNet {mx.__version__} wrote it with operators of mx.nd only. Write a block "
            "of your own in its place, with the operators of F.np and F.npx, or use a net of mx.nd"
        )
    for kind, fault in _FAULTS:
        if isinstance(block, kind):
            return fault(block, *inputs) or ""
    return ""


def _built(parameter: Any, axis: int) -> int:
    """Size of a parameter along an axis, or 0 if it is not known yet."""
    return max(0, parameter.shape[axis]) if parameter is not None and parameter.shape else 0


def _give(argument: str, got: int, built: int) -> str:
    origin = f"the number was given as {argument} or taken from the first batch"
    return f"Give it {argument}={got}, or hand it {built}: {origin}"


def _dense(layer: Any, x: Any, *rest: Any) -> Optional[str]:
    built = _built(layer.weight, 1)
    got = int(np.prod(x.shape[1:])) if layer._flatten else x.shape[-1]
    if not built or built == got:
        return None
    where = "per sample" if layer._flatten else "on the last axis"
    which = f", which is {got} per sample" if layer._flatten and len(x.shape) != 2 else ""
    if layer._flatten and x.shape[-1] == built:
        way = "flatten=False applies it to the last axis alone"
    else:
        way = _give("in_units", got, built)
        way += ", and after convolutions it depends on the size of the images" if layer._flatten else ""
    return f" is built for {built} inputs {where} and got shape {x.shape}{which}. {way}"


def _convolution(layer: Any, x: Any, *rest: Any) -> Optional[str]:
    made, got = ("mx.np" if numpy else "mx.nd" for numpy in (layer._op_name.islower(), is_numpy(x)))
    if made != got:
        return (
            f" was made for {made} and got arrays of {got}: a convolution is bound to the switches under which it was "
            "made. Call npx.set_np() (or npx.reset_np()) before the net is made"
        )
    layout, groups = layer._kwargs["layout"], layer._kwargs["num_group"]
    transposed = layer._op_name in ("Deconvolution", "deconvolution")
    axis = layout.find("C")
    built = _built(layer.weight, layout.find("N")) if transposed else _built(layer.weight, axis) * groups
    if len(x.shape) != len(layout):
        return _wrong_axes(layout, x)
    if built and built != x.shape[axis]:
        way = _give("in_channels", x.shape[axis], built)
        axes = list(range(len(layout)))
        if axis == 1 and x.shape[-1] == built:  # T13
            way = f"The channels seem to be last: x.transpose({(0, axes[-1], *axes[1:-1])})"
        elif axis == axes[-1] and x.shape[1] == built:
            way = f"The channels seem to be second: x.transpose({(0, *axes[2:], 1)})"
        return f" is built for {built} channels ({layout}) and got shape {x.shape}, which has {x.shape[axis]}. {way}"
    return None if transposed else _window(layer, x, layer._kwargs["dilate"])


def _pooling(layer: Any, x: Any, *rest: Any) -> Optional[str]:
    layout = layer._kwargs["layout"]
    if len(x.shape) != len(layout):
        return _wrong_axes(layout, x)
    return None if layer._kwargs["global_pool"] else _window(layer, x, (1,) * len(layer._kwargs["kernel"]))


def _wrong_axes(layout: str, x: Any) -> str:
    return f" reads {len(layout)} axes ({layout}) and got shape {x.shape}: reshape its input"


def _window(layer: Any, x: Any, dilation: Sequence[int]) -> Optional[str]:
    """Phrase a kernel that is larger than the padded image."""
    layout, kernel, padding = (layer._kwargs[name] for name in ("layout", "kernel", "pad"))
    sizes = [x.shape[axis] for axis, name in enumerate(layout) if name not in "NC"]
    least = [spread * (length - 1) + 1 - 2 * pad for spread, length, pad in zip(dilation, kernel, padding)]
    if all(needed <= size for needed, size in zip(least, sizes)):
        return None
    return (
        f" has a kernel of {tuple(kernel)} and a padding of {tuple(padding)}, so it needs images of at least "
        f"{' x '.join(map(str, least))}, and got shape {x.shape} ({layout}). Take larger images, a smaller kernel or "
        "more padding here, or fewer strides and pools before it"
    )


def _norm(layer: Any, x: Any, *rest: Any) -> Optional[str]:
    built, axis = _built(layer.gamma, 0), layer._axis
    if not built or axis >= len(x.shape) or x.shape[axis] == built:
        return None
    way = _give("in_channels", x.shape[axis], built)
    return f" is built for {built} channels on axis {axis} and got shape {x.shape}. {way}"


def _prelu(layer: Any, x: Any, *rest: Any) -> Optional[str]:
    built = _built(layer.alpha, 0)
    if built in (0, 1) or (len(x.shape) > 1 and x.shape[1] == built):
        return None
    return f" is built for {built} channels on axis 1 and got shape {x.shape}. Give it in_channels=1 for any number"


def _recurrent_layer(layer: Any, x: Any, states: Any = None, *rest: Any) -> Optional[str]:
    layout, built = layer._layout, _built(layer.l0_i2h_weight, 1)
    if len(x.shape) != 3:
        return _wrong_axes(layout, x)
    if built and x.shape[2] != built:
        way = _give("input_size", x.shape[2], built)
        return f" is built for {built} features on the last axis ({layout}) and got shape {x.shape}. {way}"
    return _wrong_states(layer, states, x.shape[layout.find("N")], f" for input {x.shape} ({layout})")


def _recurrent_cell(cell: Any, x: Any, states: Any = None, *rest: Any) -> Optional[str]:
    built = _built(cell.i2h_weight, 1)
    if len(x.shape) == 2 and built and x.shape[1] != built:
        way = _give("input_size", x.shape[1], built)
        return f" is built for {built} features of one step and got shape {x.shape}. {way}"
    return _wrong_states(cell, states, x.shape[0], f" for input {x.shape}")


def _wrong_states(layer: Any, states: Any, samples: int, for_what: str) -> Optional[str]:
    expected = [tuple(one["shape"]) for one in layer.state_info(samples)]
    got = [state.shape for state in states or () if isinstance(state, mx.nd.NDArray)]
    if not got or got == expected:
        return None
    texts = [", ".join(map(str, shapes)) for shapes in (expected, got)]
    return f" takes states of shape {texts[0]}{for_what} and got {texts[1]}. begin_state({samples}) makes some"


WITHOUT_NUMPY = (rnn.RecurrentCell, contrib.nn.Concurrent)
_FAULTS: Tuple[Tuple[Any, Callable[..., Optional[str]]], ...] = (
    (nn.Dense, _dense),
    (_Conv, _convolution),
    (_Pooling, _pooling),
    ((nn.LayerNorm, nn.InstanceNorm), _norm),
    (nn.PReLU, _prelu),
    (_RNNLayer, _recurrent_layer),
    ((rnn.RNNCell, rnn.LSTMCell, rnn.GRUCell), _recurrent_cell),
)
