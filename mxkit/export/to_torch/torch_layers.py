"""Operators of MXNet as modules of torch.nn, with the values of their parameters."""

from typing import Any, Callable, Dict, List, Optional

from mxkit.export.to_torch.expression_parts import literal, options, size, unless
from mxkit.export.to_torch.functional_layers import (
    convolution_options,
    cut,
    deconvolution_options,
    is_flattened,
)
from mxkit.export.to_torch.functional_pooling import is_last, is_torch_ceil, pooling_options, window_of
from mxkit.export.to_torch.node import Layer, Node
from mxkit.export.to_torch.recurrent import recurrent
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


def _values(node: Node, count: int) -> Optional[List[Any]]:
    """Return the values of the inputs after the first; None if one of them is no parameter."""
    values = node.values[1:count]
    return None if any(value is None for value in values) or node.values[0] is not None else list(values)


def _weight_and_bias(values: List[Any]) -> Dict[str, Any]:
    return dict(zip(("weight", "bias"), values))


def _convolution(node: Node, name: str = "Conv", no_bias: bool = False) -> Optional[Layer]:
    without = node.flag("no_bias", no_bias)
    values = _values(node, 2 if without else 3)
    if values is None:
        return None
    kernel, filters = node.ints("kernel"), node.integer("num_filter")
    extra = convolution_options(node) if name == "Conv" else deconvolution_options(node)
    bias = "False" if without else None
    arguments = f"{node.shapes[0][1]}, {filters}, kernel_size={size(kernel)}{options(**extra, bias=bias)}"
    call = cut(node, "{layer}({0})") if name != "Conv" and any(node.ints("target_shape")) else None
    return Layer(f"nn.{name}{len(kernel)}d({arguments})", _weight_and_bias(values), call=call)


def _deconvolution(node: Node) -> Optional[Layer]:
    return _convolution(node, "ConvTranspose", no_bias=True)


def _fully_connected(node: Node) -> Optional[Layer]:
    without = node.flag("no_bias")
    values = _values(node, 2 if without else 3)
    if values is None:
        return None
    arguments = f"{values[0].shape[1]}, {node.integer('num_hidden')}{options(bias='False' if without else None)}"
    if not is_flattened(node):
        return Layer(f"nn.Linear({arguments})", _weight_and_bias(values))
    call = "{layer}({0}.flatten(1))"
    return Layer(f"nn.Linear({arguments})", _weight_and_bias(values), call=call, before="nn.Flatten()")


def _batch_norm(node: Node) -> Optional[Layer]:
    values, rank = _values(node, 5), node.rank
    special = node.flag("use_global_stats") or node.flag("output_mean_var")
    if values is None or special or not 2 <= rank <= 5 or node.axis(1) != 1:
        return None
    gamma, beta, mean, variance = values
    fixed = node.flag("fix_gamma", True)
    momentum = round(1 - node.number("momentum", 0.9), 12)
    extra = options(eps=unless(node.number("eps", 1e-3), 1e-5), momentum=unless(momentum, 0.1))
    state = {
        "weight": np.ones_like(gamma) if fixed else gamma,
        "bias": beta,
        "running_mean": mean,
        "running_var": variance,
    }
    constructor = f"nn.BatchNorm{max(rank - 2, 1)}d({gamma.shape[0]}{extra})"
    return Layer(constructor, state, frozen=("weight",) if fixed else ())


def _layer_norm(node: Node) -> Optional[Layer]:
    values, rank = _values(node, 3), node.rank
    if values is None or node.axis() != rank - 1 or node.flag("output_mean_var"):
        return None
    extra = options(eps=unless(node.number("eps", 1e-5), 1e-5))
    return Layer(f"nn.LayerNorm({node.shapes[0][-1]}{extra})", _weight_and_bias(values))


def _group_norm(node: Node) -> Optional[Layer]:
    values = _values(node, 3)
    if values is None or node.flag("output_mean_var"):
        return None
    groups, channels = node.integer("num_groups", 1) or 1, node.shapes[0][1]
    extra = options(eps=unless(node.number("eps", 1e-5), 1e-5))
    repeated = [np.repeat(value, channels // groups) for value in values]  # MXNet has one of them for each group
    return Layer(f"nn.GroupNorm({groups}, {channels}{extra})", _weight_and_bias(repeated))


def _instance_norm(node: Node) -> Optional[Layer]:
    values, rank = _values(node, 3), node.rank
    if values is None or not 3 <= rank <= 5:
        return None
    extra = options(eps=unless(node.number("eps", 1e-3), 1e-5))
    constructor = f"nn.InstanceNorm{rank - 2}d({node.shapes[0][1]}{extra}, affine=True)"
    return Layer(constructor, _weight_and_bias(values))


def _embedding(node: Node) -> Optional[Layer]:
    values = _values(node, 2)
    if values is None:
        return None
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
        values = _values(node, 2)
        if values is None:
            return None
        slopes = values[0].reshape(-1)
        return Layer(f"nn.PReLU({len(slopes) if len(slopes) > 1 else ''})", {"weight": slopes})
    constructors = {
        "leaky": f"nn.LeakyReLU({slope})",
        "elu": f"nn.ELU({slope})",
        "selu": "nn.SELU()",
        "gelu": "nn.GELU()",
    }
    return Layer(constructors[kind], {}) if kind in constructors else None


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
    "relu": lambda node: Layer("nn.ReLU()", {}),
    "sigmoid": lambda node: Layer("nn.Sigmoid()", {}),
    "tanh": lambda node: Layer("nn.Tanh()", {}),
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
