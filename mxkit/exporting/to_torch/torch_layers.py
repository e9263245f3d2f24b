"""Operators of MXNet as modules of torch.nn, with the values of their parameters."""

from typing import Any, Callable, Dict, List, Optional

from mxkit.exporting.to_torch.expression_parts import literal, options, size, unless
from mxkit.exporting.to_torch.functional_layers import (
    convolution_options,
    cut,
    deconvolution_options,
    is_flattened,
)
from mxkit.exporting.to_torch.functional_pooling import is_last, is_torch_ceil, pooling_options, window_of
from mxkit.exporting.to_torch.node import Layer, Node
from mxkit.exporting.to_torch.recurrent import recurrent
import numpy as np


def layer(node: Node) -> Optional[Layer]:
    """Write an operator as a module of torch.nn.

    Args:
        node: The operator. A parameter that `values` does not hold is computed in the net.

    Returns:
        The module with the values of its parameters; None if there is none, and `expression` applies.

    Raises:
        ExportError: As for `expression`.
    """
    convert = _TABLE.get(node.operator)
    return None if convert is None else convert(node)


def _of_parameters(convert: Callable[[Node, List[Any]], Optional[Layer]]) -> Callable[[Node], Optional[Layer]]:
    """Call a conversion with the values of the inputs after the first; there is no module if one is no parameter."""

    def converted(node: Node) -> Optional[Layer]:
        data, *values = node.values
        absent = data is not None or any(value is None for value in values)
        return None if absent else convert(node, values)

    return converted


def _weight_and_bias(values: List[Any]) -> Dict[str, Any]:
    return dict(zip(("weight", "bias"), values))


def _without_bias(values: List[Any]) -> Optional[str]:
    return "False" if len(values) == 1 else None


@_of_parameters
def _convolution(node: Node, values: List[Any]) -> Layer:
    extra = options(**convolution_options(node), bias=_without_bias(values))
    return Layer(f"nn.Conv{_sizes(node)}{extra})", _weight_and_bias(values))


@_of_parameters
def _deconvolution(node: Node, values: List[Any]) -> Layer:
    extra = options(**deconvolution_options(node), bias=_without_bias(values))
    call = cut(node, "{layer}({0})") if any(node.ints("target_shape")) else None
    return Layer(f"nn.ConvTranspose{_sizes(node)}{extra})", _weight_and_bias(values), call=call)


def _sizes(node: Node) -> str:
    kernel = node.ints("kernel")
    return f"{len(kernel)}d({node.shapes[0][1]}, {node.integer('num_filter')}, kernel_size={size(kernel)}"


@_of_parameters
def _fully_connected(node: Node, values: List[Any]) -> Layer:
    arguments = f"{values[0].shape[1]}, {node.integer('num_hidden')}{options(bias=_without_bias(values))}"
    made = Layer(f"nn.Linear({arguments})", _weight_and_bias(values))
    return made._replace(call="{layer}({0}.flatten(1))", before="nn.Flatten()") if is_flattened(node) else made


@_of_parameters
def _batch_norm(node: Node, values: List[Any]) -> Optional[Layer]:
    special = node.flag("use_global_stats") or node.flag("output_mean_var")
    if special or not 2 <= node.rank <= 5 or node.axis(1) != 1:
        return None
    fixed = node.flag("fix_gamma", True)
    momentum = round(1 - node.number("momentum", 0.9), 12)
    extra = options(eps=unless(node.number("eps", 1e-3), 1e-5), momentum=unless(momentum, 0.1))
    state = dict(zip(("weight", "bias", "running_mean", "running_var"), values))
    if fixed:
        state["weight"] = np.ones_like(values[0])
    constructor = f"nn.BatchNorm{max(node.rank - 2, 1)}d({len(values[0])}{extra})"
    return Layer(constructor, state, frozen=("weight",) if fixed else ())


@_of_parameters
def _layer_norm(node: Node, values: List[Any]) -> Optional[Layer]:
    if node.axis() != node.rank - 1 or node.flag("output_mean_var"):
        return None
    extra = options(eps=unless(node.number("eps", 1e-5), 1e-5))
    return Layer(f"nn.LayerNorm({node.shapes[0][-1]}{extra})", _weight_and_bias(values))


@_of_parameters
def _group_norm(node: Node, values: List[Any]) -> Optional[Layer]:
    if node.flag("output_mean_var"):
        return None
    groups, channels = node.integer("num_groups", 1), node.shapes[0][1]
    extra = options(eps=unless(node.number("eps", 1e-5), 1e-5))
    repeated = [np.repeat(value, channels // groups) for value in values]  # MXNet has one of them for each group
    return Layer(f"nn.GroupNorm({groups}, {channels}{extra})", _weight_and_bias(repeated))


@_of_parameters
def _instance_norm(node: Node, values: List[Any]) -> Optional[Layer]:
    if not 3 <= node.rank <= 5:
        return None
    extra = options(eps=unless(node.number("eps", 1e-3), 1e-5))
    constructor = f"nn.InstanceNorm{node.rank - 2}d({node.shapes[0][1]}{extra}, affine=True)"
    return Layer(constructor, _weight_and_bias(values))


@_of_parameters
def _embedding(node: Node, values: List[Any]) -> Layer:
    rows, columns = values[0].shape
    return Layer(f"nn.Embedding({rows}, {columns})", {"weight": values[0]}, call="{layer}({0}.long())")


_ACTIVATIONS = {
    "relu": "nn.ReLU()",
    "sigmoid": "nn.Sigmoid()",
    "tanh": "nn.Tanh()",
    "softrelu": "nn.Softplus()",
    "softsign": "nn.Softsign()",
}


def _activation(node: Node) -> Optional[Layer]:
    constructor = _ACTIVATIONS.get(node.text("act_type"))
    return None if constructor is None else Layer(constructor, {})


def _leaky_relu(node: Node) -> Optional[Layer]:
    kind, slope = node.text("act_type", "leaky"), literal(node.number("slope", 0.25))
    if kind == "prelu":
        return _prelu(node)
    constructors = {
        "leaky": f"nn.LeakyReLU({slope})",
        "elu": f"nn.ELU({slope})",
        "selu": "nn.SELU()",
        "gelu": "nn.GELU()",
    }
    return Layer(constructors[kind], {}) if kind in constructors else None


@_of_parameters
def _prelu(node: Node, values: List[Any]) -> Layer:
    slopes = values[0].reshape(-1)
    return Layer(f"nn.PReLU({len(slopes) if len(slopes) > 1 else ''})", {"weight": slopes})


def _pooling(node: Node) -> Optional[Layer]:
    if is_last(node):
        return None
    window = window_of(node)
    if window.kind not in ("avg", "max"):
        return None
    if window.whole:
        return Layer(f"nn.Adaptive{window.kind.title()}Pool{window.rank}d(1)", {})
    if window.ceil and not is_torch_ceil(window):
        return None
    if any(2 * padding > kernel for padding, kernel in zip(window.padding, window.kernel)):
        return None
    arguments = f"{size(window.kernel)}{options(**pooling_options(window))}"
    return Layer(f"nn.{window.kind.title()}Pool{window.rank}d({arguments})", {})


def _adaptive(node: Node) -> Optional[Layer]:
    sizes = node.ints("output_size") or (1,)
    return Layer(f"nn.AdaptiveAvgPool2d({size(sizes if len(sizes) == 2 else sizes * 2)})", {})


def _dropout(node: Node) -> Optional[Layer]:
    if node.ints("axes") or node.text("mode", "training") != "training":
        return None
    return Layer(f"nn.Dropout({literal(node.number('p', 0.5))})", {})


def _softmax(node: Node) -> Optional[Layer]:
    plain = node.number("temperature", 1) == 1 and not node.flag("use_length") and not node.text("dtype")
    name = "LogSoftmax" if node.operator == "log_softmax" else "Softmax"
    return Layer(f"nn.{name}(dim={node.integer('axis', -1)})", {}) if plain else None


def _clip(node: Node) -> Optional[Layer]:
    return Layer("nn.ReLU6()", {}) if (node.number("a_min"), node.number("a_max")) == (0, 6) else None


def _up_sampling(node: Node) -> Optional[Layer]:
    if node.text("sample_type") != "nearest" or len(node.inputs) > 1:
        return None
    return Layer(f"nn.Upsample(scale_factor={node.integer('scale')})", {})


_TABLE: Dict[str, Callable[[Node], Optional[Layer]]] = {
    "Convolution": _convolution,
    "Convolution_v1": _convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": _fully_connected,
    "BatchNorm": _batch_norm,
    "_contrib_SyncBatchNorm": _batch_norm,
    "LayerNorm": _layer_norm,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "Embedding": _embedding,
    "RNN": recurrent,
    "Activation": _activation,
    "LeakyReLU": _leaky_relu,
    **{kind: lambda node: Layer(_ACTIVATIONS[node.operator], {}) for kind in ("relu", "sigmoid", "tanh")},
    "Pooling": _pooling,
    "Pooling_v1": _pooling,
    "_contrib_AdaptiveAvgPooling2D": _adaptive,
    "Flatten": lambda node: Layer("nn.Flatten()", {}),
    "Dropout": _dropout,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "clip": _clip,
    "UpSampling": _up_sampling,
}
