"""MXNet's operators as expressions of torch, or as modules of torch.nn: the layers, and the table of all.

What has no equivalent is refused by its name.
"""

import ast
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.blocks import place_of
from mxkit.core.operators import draws
from mxkit.errors import ExportError
from mxkit.exporting.to_torch.arrays import ARRAYS, each
from mxkit.exporting.to_torch.expressions import (
    RANDOM,
    Conversion,
    Layer,
    Node,
    atom,
    listed,
    literal,
    module,
    options,
    size,
)
import numpy as np

_Pairs = Dict[str, Tuple[Any, Any]]
_Module = Callable[[Node], Optional[Layer]]


def _of_parameters(convert: Callable[[Node, List[Any]], Optional[Layer]]) -> _Module:
    """Call a conversion with the values of the inputs after the first.

    There is no module if one of them is no parameter, or if the operator returns means and variances, too.
    """

    def converted(node: Node) -> Optional[Layer]:
        data, *values = node.values
        absent = data is not None or any(value is None for value in values)
        return None if absent or node.flag("output_mean_var") else convert(node, values)

    return converted


def _plain(function: str, *values: Tuple[str, Any], **named: Tuple[Any, Any]) -> Layer:
    """Return a module without parameters."""
    return Layer(module(function, *values, **named), {})


def _weighted(function: str, *values: Tuple[str, Any], state: Sequence[Any], **named: Tuple[Any, Any]) -> Layer:
    """Return a module with a weight, and perhaps a bias."""
    return Layer(module(function, *values, **named), dict(zip(("weight", "bias"), state)))


def _spatial_rank(node: Node) -> int:
    layout = node.text("layout")
    if layout and not layout.startswith("NC"):
        raise node.refused(f"layout={layout}, which MXNet's CPU does not compute; expected channels after the batch")
    return len(node.ints("kernel"))


def _convolution_options(node: Node) -> _Pairs:
    """Return the arguments of a convolution with torch's defaults, by torch's names.

    With target_shape, MXNet derives the padding from the input's size; torch's has none then, and `cut_to` follows.
    """
    rank = _spatial_rank(node)
    ones, zeros, is_cut = (1,) * rank, (0,) * rank, any(node.ints("target_shape"))
    stride, dilation = (node.ints(name) or ones for name in ("stride", "dilate"))
    found: _Pairs = {"stride": (stride, ones), "padding": (zeros if is_cut else node.ints("pad") or zeros, zeros)}
    if node.operator == "Deconvolution":
        extra = zeros if is_cut else node.ints("adj") or zeros
        strides = tuple(map(max, zip(stride, dilation)))
        if any(more >= step for more, step in zip(extra, strides)):
            raise node.refused(f"an output padding of {extra} with strides and dilations of {strides}")
        found["output_padding"] = extra, zeros
    return {**found, "dilation": (dilation, ones), "groups": (node.integer("num_group", 1), 1)}


def _cut(node: Node, result: str) -> str:
    target = node.ints("target_shape")
    return f"cut_to({result}, {literal(target)})" if any(target) else result


def _bias(node: Node) -> str:
    """Write the bias as the third argument; nothing with no_bias."""
    return "" if node.flag("no_bias") else f", {node.inputs[2]}"


def _convolution(node: Node) -> str:
    name = "conv_transpose" if node.operator == "Deconvolution" else "conv"
    rank, extra = _spatial_rank(node), options(**_convolution_options(node))
    return _cut(node, f"F.{name}{rank}d({node.x}, {node.inputs[1]}{_bias(node)}{extra})")


@_of_parameters
def _convolution_module(node: Node, values: List[Any]) -> Layer:
    kernel = node.ints("kernel")
    named = {"kernel_size": (kernel, None), **_convolution_options(node), "bias": (len(values) > 1, True)}
    channels = ("in_channels", node.shapes[0][1]), ("channels", node.integer("num_filter"))
    name = "ConvTranspose" if node.operator == "Deconvolution" else "Conv"
    made = _weighted(f"nn.{name}{len(kernel)}d", *channels, state=values, **named)
    return made._replace(call=_cut(node, "{layer}({0})")) if any(node.ints("target_shape")) else made


@_of_parameters
def _fully_connected_module(node: Node, values: List[Any]) -> Layer:
    features = ("in_features", values[0].shape[1]), ("out_features", node.integer("num_hidden"))
    return _weighted("nn.Linear", *features, state=values, bias=(len(values) > 1, True))


def _on_axis(node: Node, axis: int, pattern: str, place: int = 1) -> str:
    """Write an expression that works on the axis `place` for another axis; `{x}` in the pattern is the input."""
    if axis == place % node.rank:
        return pattern.format(x=node.x)
    return f"{pattern.format(x=f'{node.a}.movedim({axis}, {place})')}.movedim({place}, {axis})"


def _eps(node: Node) -> Tuple[Any, Any]:
    return node.number("eps"), 1e-5


def _check_one_output(node: Node) -> None:
    if node.flag("output_mean_var"):
        raise node.refused("output_mean_var=True; torch returns only the normalized array")


def _momentum(node: Node) -> float:
    """Return the share of the new batch, which torch calls momentum."""
    return round(1 - node.number("momentum"), 12)


def _batch_norm(node: Node) -> str:
    _check_one_output(node)
    _, gamma, beta, mean, variance = node.inputs[:5]
    weight = f"torch.ones_like({gamma})" if node.flag("fix_gamma") else gamma
    training = "" if node.flag("use_global_stats") else f", self.training, momentum={literal(_momentum(node))}"
    eps = literal(node.number("eps"))
    call = f"F.batch_norm({{x}}, {mean}, {variance}, {weight}, {beta}{training}, eps={eps})"
    return _on_axis(node, node.axis(1), f"F.relu({call})" if node.operator.endswith("ReLU") else call)


@_of_parameters
def _batch_norm_module(node: Node, values: List[Any]) -> Optional[Layer]:
    if node.flag("use_global_stats") or not 2 <= node.rank <= 5 or node.axis(1) != 1:
        return None
    state = dict(zip(("weight", "bias", "running_mean", "running_var"), values))
    is_fixed = node.flag("fix_gamma")
    if is_fixed:
        state["weight"] = np.ones_like(values[0])
    named = {"eps": _eps(node), "momentum": (_momentum(node), 0.1)}
    constructor = module(f"nn.BatchNorm{max(node.rank - 2, 1)}d", ("channels", len(values[0])), **named)
    return Layer(constructor, state, frozen=("weight",) if is_fixed else ())


def _layer_norm(node: Node) -> str:
    _check_one_output(node)
    _, gamma, beta = node.inputs
    shape = f"({node.shapes[0][node.axis()]},)"
    pattern = f"F.layer_norm({{x}}, {shape}, {gamma}, {beta}{options(eps=_eps(node))})"
    return _on_axis(node, node.axis(), pattern, place=-1)


@_of_parameters
def _layer_norm_module(node: Node, values: List[Any]) -> Optional[Layer]:
    if node.axis() != node.rank - 1:
        return None
    return _weighted("nn.LayerNorm", ("size", node.shapes[0][-1]), state=values, eps=_eps(node))


def _group_norm(node: Node) -> str:
    _check_one_output(node)
    groups = node.integer("num_groups")
    each = node.shapes[0][1] // groups  # MXNet has one gamma and one beta for each group
    weight, bias = (f"{atom(x)}.repeat_interleave({each})" for x in node.inputs[1:])
    return f"F.group_norm({node.x}, {groups}, {weight}, {bias}{options(eps=_eps(node))})"


@_of_parameters
def _group_norm_module(node: Node, values: List[Any]) -> Optional[Layer]:
    groups, channels = node.integer("num_groups"), node.shapes[0][1]
    if groups != channels:  # torch's layer has a gamma for each channel, which would train on its own
        return None
    return _weighted("nn.GroupNorm", ("num_groups", groups), ("channels", channels), state=values, eps=_eps(node))


def _instance_norm(node: Node) -> str:
    _, gamma, beta = node.inputs
    return f"F.instance_norm({node.x}, weight={gamma}, bias={beta}{options(eps=_eps(node))})"


@_of_parameters
def _instance_norm_module(node: Node, values: List[Any]) -> Optional[Layer]:
    if not 3 <= node.rank <= 5:
        return None
    named = {"eps": _eps(node), "affine": (True, False)}
    return _weighted(f"nn.InstanceNorm{node.rank - 2}d", ("channels", node.shapes[0][1]), state=values, **named)


def _l2_normalization(node: Node) -> str:
    first = {"instance": 1, "channel": 1, "spatial": 2}
    mode = node.text("mode")
    dims = literal((1,) if mode == "channel" else tuple(range(first[mode], node.rank)))
    eps = literal(node.number("eps"))
    return f"{node.a} / ({node.a}.square().sum(dim={dims}, keepdim=True) + {eps}).sqrt()"


def _lrn(node: Node) -> str:
    named = {"alpha": (node.number("alpha"), 1e-4), "beta": (node.number("beta"), 0.75)}
    return f"F.local_response_norm({node.x}, {node.integer('nsize')}{options(**named, k=(node.number('knorm', 2), 1))})"


_ACTIVATIONS = {
    "relu": ("F.relu({x})", "nn.ReLU"),
    "sigmoid": ("torch.sigmoid({x})", "nn.Sigmoid"),
    "tanh": ("torch.tanh({x})", "nn.Tanh"),
    "softrelu": ("F.softplus({x})", "nn.Softplus"),
    "softsign": ("F.softsign({x})", "nn.Softsign"),
    "leaky": ("F.leaky_relu({x}, {slope})", "nn.LeakyReLU"),
    "elu": ("F.elu({x}, {slope})", "nn.ELU"),
    "selu": ("F.selu({x})", "nn.SELU"),
    "gelu": ("F.gelu({x})", "nn.GELU"),
}


def _activation(node: Node) -> str:
    kind = node.text("act_type")
    if kind == "prelu":
        return f"F.prelu({node.x}, {node.y if len(node.shapes[1]) == 1 else f'{atom(node.y)}.flatten()'})"
    if kind == "rrelu":
        raise node.refused("act_type=rrelu draws its slopes; torch's F.rrelu draws others")
    return node.filled(_ACTIVATIONS[kind][0])


def _activation_module(node: Node) -> Optional[Layer]:
    kind = node.text("act_type", node.operator)
    if kind not in _ACTIVATIONS:
        return _prelu_module(node) if kind == "prelu" else None
    text, name = _ACTIVATIONS[kind]
    return _plain(name, *[("slope", node.number("slope"))] * ("slope" in text))


@_of_parameters
def _prelu_module(node: Node, values: List[Any]) -> Layer:
    slopes = values[0].reshape(-1)
    return _weighted("nn.PReLU", *[("channels", len(slopes))] * (len(slopes) > 1), state=[slopes])


def _softmax(node: Node) -> str:
    name = "log_softmax" if node.operator == "log_softmax" else "softmax"
    data, axis, dtype = node.x, node.integer("axis"), node.text("dtype")
    if node.operator == "softmin":
        data = f"-{node.a}"
    if node.number("temperature", 1) != 1:
        data = f"{atom(data)} / {literal(node.number('temperature'))}"
    if node.flag("use_length"):
        if node.operator != "softmax":
            raise node.refused("use_length=True")
        return f"softmax_to_length({data}, {node.inputs[1]}, dim={axis})"
    return f"F.{name}({data}, dim={axis}" + (f", dtype=torch.{dtype})" if dtype not in ("", node.dtypes[0]) else ")")


def _softmax_module(node: Node) -> Optional[Layer]:
    plain = node.number("temperature", 1) == 1 and not node.flag("use_length") and not node.text("dtype")
    name = "LogSoftmax" if node.operator == "log_softmax" else "Softmax"
    return _plain(f"nn.{name}", dim=(node.integer("axis"), None)) if plain else None


def _dropout(node: Node) -> str:
    rate, axes = node.number("p"), node.ints("axes")
    is_always = node.text("mode") == "always"
    if not rate and not is_always:
        return node.x
    rest = f"{literal(rate)}, {'True' if is_always else 'self.training'})"
    if not axes:
        return f"F.dropout({node.x}, {rest}"
    parts = listed(":1" if axis in axes else ":" for axis in range(max(axes) + 1))  # one mask along these axes
    return f"{node.a} * F.dropout(torch.ones_like({node.a}[{parts}]), {rest}"


def _dropout_module(node: Node) -> Optional[Layer]:
    special = node.ints("axes") or node.text("mode") != "training"
    return None if special else _plain("nn.Dropout", ("dropout", node.number("p")))


@_of_parameters
def _embedding_module(node: Node, values: List[Any]) -> Layer:
    rows, columns = values[0].shape
    made = _weighted("nn.Embedding", ("num_embeddings", rows), ("size", columns), state=values)
    return made._replace(call="{layer}({0}.long())")


def _window(node: Node) -> Tuple[str, Tuple[int, ...], _Pairs]:
    """Return kind, kernel and the other arguments of a Pooling operator in torch's terms; none for the whole input.

    What torch has no window for is refused.
    """
    convention, kind, whole = node.text("pooling_convention"), node.text("pool_type"), node.flag("global_pool")
    rank, kernel = node.rank - 2, node.shapes[0][2:] if whole else node.ints("kernel")
    _spatial_rank(node)
    if convention == "same" or kind not in ("max", "avg"):
        raise node.refused(f"pooling_convention={convention}, pool_type={kind}; expected valid or full, max or avg")
    if whole:
        return kind, kernel, {}
    stride, padding = node.ints("stride") or (1,) * rank, node.ints("pad") or (0,) * rank
    # "full" asks for more windows only where some do not divide the input
    ceil = convention == "full" and max(stride) > 1
    if ceil and any(step + pad > wide for step, pad, wide in zip(stride, padding, kernel)):
        raise node.refused("pooling_convention=full with a stride and padding above the kernel: torch drops windows")
    counts = kind != "avg" or not any(padding) or node.flag("count_include_pad", True)
    named: _Pairs = {"stride": (stride, kernel), "padding": (padding, (0,) * rank)}
    return kind, kernel, {**named, "ceil_mode": (ceil, False), "count_include_pad": (counts, True)}


def _is_wide(kernel: Sequence[int], named: _Pairs) -> bool:
    """Whether the padding is above half of the kernel, which torch refuses."""
    return any(2 * padding > wide for padding, wide in zip(named["padding"][0], kernel))


def _pooling(node: Node) -> str:
    (kind, kernel, named), x = _window(node), node.x
    if not named:
        return f"F.adaptive_{kind}_pool{len(kernel)}d({x}, 1)"
    if _is_wide(kernel, named):
        if named["count_include_pad"][0] is False:
            raise node.refused("count_include_pad=False with a padding above half of the kernel")
        widths = literal(tuple(width for padding in reversed(named.pop("padding")[0]) for width in (padding, padding)))
        value = ', value=float("-inf")' if kind == "max" else ""
        x = f"F.pad({x}, {widths}{value})"
    return f"F.{kind}_pool{len(kernel)}d({x}, {size(kernel)}{options(**named)})"


def _pooling_module(node: Node) -> Optional[Layer]:
    kind, kernel, named = _window(node)
    name = f"{kind.title()}Pool{len(kernel)}d"
    if not named:
        return _plain(f"nn.Adaptive{name}", ("size", 1))
    return None if _is_wide(kernel, named) else _plain(f"nn.{name}", ("kernel_size", kernel), **named)


def _adaptive_size(node: Node) -> Tuple[int, ...]:
    sizes = node.ints("output_size") or (1,)
    return sizes if len(sizes) == 2 else sizes * 2


def _up_sampling_module(node: Node) -> Optional[Layer]:
    is_plain = node.text("sample_type") == "nearest" and len(node.inputs) == 1
    return _plain("nn.Upsample", scale_factor=(node.integer("scale"), None)) if is_plain else None


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _check_recurrent(node: Node) -> None:
    """Refuse what torch's recurrent modules do not compute."""
    if node.integer("projection_size"):
        raise node.refused("projection_size; MXNet computes it on a GPU alone")
    if node.flag("use_sequence_length"):
        raise node.refused("use_sequence_length=True; pack the sequences with torch.nn.utils.rnn")
    if any(node.text(f"lstm_state_clip_{end}") for end in ("min", "max")):
        raise node.refused("lstm_state_clip_min and lstm_state_clip_max; torch does not clip states")


def _recurrent_module(node: Node) -> Optional[Layer]:
    """Write a fused RNN, whose parameters are one flat vector, as a module.

    Time is the first dimension, as in MXNet. torch returns `y, (h, c)` of an LSTM and `y, h` of the others, and takes
    `(h, c)` or `h` as the second argument; without it, the first states are zeros.
    """
    _check_recurrent(node)
    if node.values[1] is None:
        return None
    mode, columns, both = node.text("mode"), node.shapes[0][2], node.flag("bidirectional")
    width, layers = node.integer("state_size"), node.integer("num_layers")
    named: _Pairs = {
        "num_layers": (layers, 1),
        "nonlinearity": ("relu" if mode == "rnn_relu" else "tanh", "tanh"),
        "dropout": (node.number("p") if layers > 1 else 0, 0),
        "bidirectional": (both, False),
    }
    name = {"lstm": "LSTM", "gru": "GRU"}.get(mode, "RNN")
    constructor = module(f"nn.{name}", ("input_size", columns), ("hidden_size", width), **named)
    flat = np.asarray(node.values[1]).reshape(-1)
    return Layer(constructor, unpacked(flat, _GATES[mode], columns, width, layers, 2 if both else 1))


def unpacked(flat: Any, gates: int, columns: int, width: int, layers: int, directions: int) -> Dict[str, Any]:
    """Cut the flat vector of a fused RNN into torch's parameters.

    Weights of all layers stand first, then the biases; in each layer the forward direction before the backward one,
    and the input's part before the state's. The gates' order is torch's.
    """
    endings = [f"l{level}{end}" for level in range(layers) for end in ("", "_reverse")[:directions]]
    shapes: Dict[str, Tuple[int, ...]] = {}
    for ending in endings:
        inside = columns if ending.startswith("l0") else width * directions
        shapes[f"weight_ih_{ending}"], shapes[f"weight_hh_{ending}"] = (gates * width, inside), (gates * width, width)
    for ending in endings:
        shapes[f"bias_ih_{ending}"] = shapes[f"bias_hh_{ending}"] = (gates * width,)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    if ends[-1] != len(flat):
        raise ValueError(f"a fused RNN of {ends[-1]} parameters, received {len(flat)}")
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), np.split(flat, ends[:-1]))}


EXPRESSIONS: Dict[str, Union[str, Conversion]] = {
    **ARRAYS,
    **each("Convolution Deconvolution", _convolution),
    # its flattening is an operator of its own
    "FullyConnected": lambda node: f"F.linear({node.x}, {node.inputs[1]}{_bias(node)})",
    **each("BatchNorm _contrib_SyncBatchNorm _contrib_BatchNormWithReLU", _batch_norm),
    "LayerNorm": _layer_norm,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "L2Normalization": _l2_normalization,
    "LRN": _lrn,
    **each("Activation LeakyReLU", _activation),
    **each("softmax softmin log_softmax", _softmax),
    # MXNet documents a softmax over all axes but the first, and computes one over the last axis
    "SoftmaxActivation": lambda node: f"F.softmax({node.x}, dim={1 if node.text('mode') == 'channel' else -1})",
    "Dropout": _dropout,
    "Embedding": lambda node: f"F.embedding({node.long(0)}, {node.inputs[1]})",
    "Pooling": _pooling,
    "_contrib_AdaptiveAvgPooling2D": lambda node: f"F.adaptive_avg_pool2d({node.x}, {size(_adaptive_size(node))})",
}

MODULES: Dict[str, _Module] = {
    **each("Convolution Deconvolution", _convolution_module),
    "FullyConnected": _fully_connected_module,
    **each("BatchNorm _contrib_SyncBatchNorm", _batch_norm_module),
    "LayerNorm": _layer_norm_module,
    "GroupNorm": _group_norm_module,
    "InstanceNorm": _instance_norm_module,
    "Embedding": _embedding_module,
    "RNN": _recurrent_module,
    **each("Activation LeakyReLU relu sigmoid tanh", _activation_module),
    "Pooling": _pooling_module,
    "_contrib_AdaptiveAvgPooling2D": lambda node: _plain("nn.AdaptiveAvgPool2d", ("size", _adaptive_size(node))),
    "Flatten": lambda node: _plain("nn.Flatten"),
    "Dropout": _dropout_module,
    **each("softmax log_softmax", _softmax_module),
    "clip": lambda node: _plain("nn.ReLU6") if (node.number("a_min"), node.number("a_max")) == (0, 6) else None,
    "UpSampling": _up_sampling_module,
}

# Names that an expression may use and `forward` must then define: `batch_size = x.shape[0]`, `device = x.device`.
FREE_NAMES = ("batch_size", "device")

# Operators over subgraphs; MXNet may be unable to infer their shapes
SUBGRAPHS = {
    **dict.fromkeys(["_foreach", "_while_loop"], "a loop over a subgraph; write it as a loop in forward"),
    "_cond": "a condition over subgraphs; write it as an if in forward",
}
_REASONS = {
    "Custom": "a custom operator is Python code of its author; write it as a function of torch",
    "RNN": "its parameters must be the net's own; nn.LSTM, nn.GRU and nn.RNN hold them",
    **SUBGRAPHS,
}

_EMITTED = Path(__file__).with_name("emitted.py").read_text(encoding="utf-8")
_FUNCTIONS = [node for node in ast.parse(_EMITTED).body if isinstance(node, ast.FunctionDef)]
#: Source text of the functions of `emitted.py`, by name.
HELPERS = {node.name: "\n".join(_EMITTED.splitlines()[node.lineno - 1 : node.end_lineno]) for node in _FUNCTIONS}


def expression(node: Node) -> str:
    """Write an operator as an expression of torch over its inputs.

    Args:
        node: The operator.

    Returns:
        The expression; a tuple for several outputs. It uses `torch`, `F` (torch.nn.functional), `self.training`, the
        functions of `helpers_used` and the names of `names_used`. It may name an input twice.

    Raises:
        ExportError: There is no equivalent; the text names the operator and the reason.
    """
    convert = EXPRESSIONS.get(node.operator)
    if convert is not None:
        return node.filled(convert) if isinstance(convert, str) else convert(node)
    if node.operator == "RNN":
        _check_recurrent(node)
    if draws(node):
        raise node.refused(RANDOM)
    raise node.refused(_REASONS.get(node.operator, "mxkit knows no equivalent"))


def layer(node: Node) -> Optional[Layer]:
    """Write an operator as a module of torch.nn.

    Args:
        node: The operator. A parameter that `values` does not hold is computed in the net.

    Returns:
        The module with the values of its parameters; None if there is none, and `expression` applies.

    Raises:
        ExportError: As for `expression`.
    """
    convert = MODULES.get(node.operator)
    return None if convert is None else convert(node)


def helpers_used(code: str) -> List[str]:
    """List the helpers that an expression needs, by their name in HELPERS; one that calls another stands after it."""
    calls = (node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    needed = {name for name in HELPERS if name in names and f"def {name}(" not in code}
    for name in list(needed):
        needed.update(helpers_used(HELPERS[name]))
    return [name for name in HELPERS if name in needed]


def names_used(code: str) -> List[str]:
    """List which of FREE_NAMES an expression reads."""
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return [name for name in FREE_NAMES if name in names]


class Problem(NamedTuple):
    """An operator that cannot be converted, the path and block that use it, and the reason.

    `marked` says that the code calls `not_written` in its place.
    """

    path: str
    block: Any
    operator: str
    reason: str
    marked: bool = False


def refuse(problems: Sequence[Problem]) -> None:
    """Raise one ExportError for all problems, each once."""
    problems = list({(one.path, one.operator, one.reason): one for one in problems}.values())
    if not problems:
        return
    lines = "\n".join(f"  {place_of(one.path, one.block)}: {one.operator}: {one.reason}" for one in problems)
    raise ExportError(
        f"export: the net has {len(problems)} operators without an equivalent in PyTorch; nothing was written:\n{lines}"
    )
