"""Operators of layers as functions of torch: convolutions, normalization, activations, dropout, embeddings, heads."""

from typing import Dict, Sequence

from mxkit.exporting.to_torch.expression_parts import (
    as_first_input,
    atom,
    axes_text,
    binary,
    listed,
    literal,
    long_index,
    options,
    size,
    unless,
)
from mxkit.exporting.to_torch.node import Conversion, Node


def check_layout(node: Node) -> int:
    """Return the number of spatial dimensions of a convolution; other layouts than channels first are refused."""
    rank = len(node.ints("kernel"))
    layout = node.text("layout")
    if layout and not layout.startswith("NC"):
        raise node.refused(f"layout={layout}, which MXNet's CPU does not compute; expected channels after the batch")
    return rank


def convolution_options(node: Node) -> Dict[str, object]:
    """Return the arguments of a convolution that differ from torch's defaults, by torch's names."""
    rank = check_layout(node)
    ones, zeros = (1,) * rank, (0,) * rank
    return {
        "stride": unless(node.ints("stride") or ones, ones),
        "padding": unless(node.ints("pad") or zeros, zeros),
        "dilation": unless(node.ints("dilate") or ones, ones),
        "groups": unless(node.integer("num_group", 1), 1),
    }


def bias_of(node: Node, default: bool = False) -> str:
    """Write the bias as the third argument; nothing with no_bias."""
    return "" if node.flag("no_bias", default) else f", {node.inputs[2]}"


def _convolution(node: Node) -> str:
    data, weight = node.inputs[:2]
    extra = options(**convolution_options(node))
    return f"F.conv{check_layout(node)}d({data}, {weight}{bias_of(node)}{extra})"


def deconvolution_options(node: Node) -> Dict[str, object]:
    """Return the arguments of a transposed convolution that differ from torch's defaults.

    With target_shape, MXNet derives the padding from the input's size; torch's has none then, and `cut_to` follows.
    """
    both = convolution_options(node)
    zeros = (0,) * check_layout(node)
    extra = zeros if any(node.ints("target_shape")) else node.ints("adj") or zeros
    strides = [max(s, d) for s, d in zip(*(node.ints(name) or (1,) * len(zeros) for name in ("stride", "dilate")))]
    if any(more >= step for more, step in zip(extra, strides)):
        raise node.refused(f"an output padding of {extra} with strides and dilations of {tuple(strides)}")
    return {
        "stride": both["stride"],
        "padding": None if any(node.ints("target_shape")) else both["padding"],
        "output_padding": unless(extra, zeros),
        "groups": both["groups"],
        "dilation": both["dilation"],
    }


def cut(node: Node, result: str) -> str:
    """Write a transposed convolution's result, cut to target_shape if that is stated."""
    target = node.ints("target_shape")
    return f"cut_to({result}, {literal(target)})" if any(target) else result


def _deconvolution(node: Node) -> str:
    data, weight = node.inputs[:2]
    extra = options(**deconvolution_options(node))
    result = f"F.conv_transpose{check_layout(node)}d({data}, {weight}{bias_of(node, default=True)}{extra})"
    return cut(node, result)


def is_flattened(node: Node) -> bool:
    """Tell whether FullyConnected flattens its input."""
    return node.flag("flatten", True) and node.rank != 2


def _fully_connected(node: Node) -> str:
    data = f"{atom(node.inputs[0])}.flatten(1)" if is_flattened(node) else node.inputs[0]
    return f"F.linear({data}, {node.inputs[1]}{bias_of(node)})"


def _around(node: Node, axis: int, pattern: str, place: int = 1) -> str:
    """Write an expression that works on the axis `place` for another axis; `{x}` in the pattern is the input."""
    data = node.inputs[0]
    if axis == place % node.rank:
        return pattern.format(x=data)
    return f"{pattern.format(x=f'{atom(data)}.movedim({axis}, {place})')}.movedim({place}, {axis})"


def check_one_output(node: Node) -> None:
    """Refuse a normalization that returns mean and deviation too."""
    if node.flag("output_mean_var"):
        raise node.refused("output_mean_var=True; torch returns only the normalized array")


def _batch_norm(node: Node) -> str:
    check_one_output(node)
    _, gamma, beta, mean, variance = node.inputs[:5]
    weight = f"torch.ones_like({gamma})" if node.flag("fix_gamma", True) else gamma
    training = "" if node.flag("use_global_stats") else ", self.training"
    momentum = f", momentum={literal(round(1 - node.number('momentum', 0.9), 12))}" if training else ""
    eps = f", eps={literal(node.number('eps', 1e-3))}"
    call = f"F.batch_norm({{x}}, {mean}, {variance}, {weight}, {beta}{training}{momentum}{eps})"
    if node.operator == "_contrib_BatchNormWithReLU":
        call = f"F.relu({call})"
    return _around(node, node.axis(1), call)


def _layer_norm(node: Node) -> str:
    check_one_output(node)
    _, gamma, beta = node.inputs
    axis = node.axis()
    extra = options(eps=unless(node.number("eps", 1e-5), 1e-5))
    return _around(node, axis, f"F.layer_norm({{x}}, ({node.shapes[0][axis]},), {gamma}, {beta}{extra})", place=-1)


def _group_norm(node: Node) -> str:
    check_one_output(node)
    data, gamma, beta = node.inputs
    groups = node.integer("num_groups", 1) or 1
    each = node.shapes[0][1] // groups  # MXNet has one gamma and one beta for each group
    extra = options(eps=unless(node.number("eps", 1e-5), 1e-5))
    weight, bias = (f"{atom(x)}.repeat_interleave({each})" for x in (gamma, beta))
    return f"F.group_norm({data}, {groups}, {weight}, {bias}{extra})"


def _instance_norm(node: Node) -> str:
    data, gamma, beta = node.inputs
    extra = options(eps=unless(node.number("eps", 1e-3), 1e-5))
    return f"F.instance_norm({data}, weight={gamma}, bias={beta}{extra})"


def _l2_normalization(node: Node) -> str:
    data, rank = atom(node.inputs[0]), node.rank
    mode = node.text("mode", "instance")
    dims = {"instance": tuple(range(1, rank)), "channel": (1,), "spatial": tuple(range(2, rank))}[mode]
    eps = literal(node.number("eps", 1e-10))
    dim = axes_text(dims)
    return f"{data} / ({data}.square().sum(dim={dim}, keepdim=True) + {eps}).sqrt()"


def _lrn(node: Node) -> str:
    alpha, beta, k = node.number("alpha", 1e-4), node.number("beta", 0.75), node.number("knorm", 2)
    extra = options(alpha=unless(alpha, 1e-4), beta=unless(beta, 0.75), k=unless(k, 1))
    return f"F.local_response_norm({node.inputs[0]}, {node.integer('nsize')}{extra})"


_ACTIVATIONS = {
    "relu": "F.relu",
    "sigmoid": "torch.sigmoid",
    "tanh": "torch.tanh",
    "softrelu": "F.softplus",
    "softsign": "F.softsign",
}


def _activation(node: Node) -> str:
    kind = node.text("act_type")
    if kind not in _ACTIVATIONS:
        raise node.refused(f"act_type={kind} is unknown; expected one of {', '.join(_ACTIVATIONS)}")
    return f"{_ACTIVATIONS[kind]}({node.inputs[0]})"


def _leaky_relu(node: Node) -> str:
    data, kind = node.inputs[0], node.text("act_type", "leaky")
    slope = literal(node.number("slope", 0.25))
    if kind == "leaky":
        return f"F.leaky_relu({data}, {slope})"
    if kind == "elu":
        return f"F.elu({data}, {slope})"
    if kind == "prelu":
        flat = node.inputs[1] if len(node.shapes[1]) == 1 else f"{atom(node.inputs[1])}.flatten()"
        return f"F.prelu({data}, {flat})"
    if kind == "rrelu":
        raise node.refused("act_type=rrelu draws its slopes; torch's F.rrelu draws others")
    if kind in ("selu", "gelu"):
        return f"F.{kind}({data})"
    raise node.refused(f"act_type={kind} is unknown")


def _softmax(function: str) -> Conversion:
    def convert(node: Node) -> str:
        data, axis = node.inputs[0], node.integer("axis", -1)
        temperature = node.number("temperature", 1)
        if function == "softmin":
            data = f"-{atom(data)}"
        if temperature != 1:
            data = binary(data, "/", literal(temperature))
        dtype = node.text("dtype")
        extra = f", dtype=torch.{dtype}" if dtype and dtype != node.dtypes[0] else ""
        if node.flag("use_length"):
            if function != "softmax":
                raise node.refused("use_length=True")
            return f"softmax_to_length({data}, {node.inputs[1]}, dim={axis})"
        name = "log_softmax" if function == "log_softmax" else "softmax"
        return f"F.{name}({data}, dim={axis}{extra})"

    return convert


def _over_all(node: Node) -> str:
    """Write a softmax over all dimensions but the first."""
    data = node.inputs[0]
    if node.rank <= 2:
        return f"F.softmax({data}, dim=-1)"
    return f"F.softmax({atom(data)}.flatten(1), dim=1).reshape({atom(data)}.shape)"


def _softmax_activation(node: Node) -> str:
    return f"F.softmax({node.inputs[0]}, dim=1)" if node.text("mode") == "channel" else _over_all(node)


def _softmax_output(node: Node) -> str:
    if node.flag("multi_output"):
        return f"F.softmax({node.inputs[0]}, dim=1)"
    return f"F.softmax({node.inputs[0]}, dim=-1)" if node.flag("preserve_shape") else _over_all(node)


def _dropout(node: Node) -> str:
    data, rate, axes = node.inputs[0], node.number("p", 0.5), node.ints("axes")
    if node.text("mode", "training") == "always":
        return f"F.dropout({data}, {literal(rate)}, True)" if not axes else _shared_dropout(data, rate, axes, "True")
    if axes and rate:
        return _shared_dropout(data, rate, axes, "self.training")
    return f"F.dropout({data}, {literal(rate)}, self.training)" if rate else data


def _shared_dropout(data: str, rate: float, axes: Sequence[int], training: str) -> str:
    """Write a dropout whose mask is the same along some axes."""
    parts = listed(":1" if axis in axes else ":" for axis in range(max(axes) + 1))
    return f"{atom(data)} * F.dropout(torch.ones_like({atom(data)}[{parts}]), {literal(rate)}, {training})"


def _embedding(node: Node) -> str:
    return f"F.embedding({long_index(node, 0)}, {node.inputs[1]})"


def _one_hot(node: Node) -> str:
    depth, on, off = node.integer("depth"), node.number("on_value", 1), node.number("off_value", 0)
    indices = long_index(node, 0)
    # F.one_hot refuses an index outside of the range, for which MXNet returns a row of zeros
    found = f"{indices}.unsqueeze(-1) == torch.arange({depth}, device={atom(node.inputs[0])}.device)"
    dtype = node.text("dtype", "float32")
    if (on, off) == (1, 0):
        return as_first_input(node._replace(dtypes=[dtype]), found)
    scaled = binary(as_first_input(node._replace(dtypes=[dtype]), found), "*", literal(on - off))
    return binary(scaled, "+", literal(off)) if off >= 0 else binary(scaled, "-", literal(-off))


def _patches(node: Node) -> str:
    rank = len(node.ints("kernel"))
    if rank != 2:
        raise node.refused(f"{rank} spatial dimensions; expected 2")
    arguments = {key: value for key, value in convolution_options(node).items() if key != "groups"}
    kernel = size(node.ints("kernel"))
    if node.operator == "im2col":
        return f"F.unfold({node.inputs[0]}, {kernel}{options(**arguments)})"
    return f"F.fold({node.inputs[0]}, {literal(node.ints('output_size'))}, {kernel}{options(**arguments)})"


LAYERS: Dict[str, Conversion] = {
    "im2col": _patches,
    "col2im": _patches,
    "Convolution": _convolution,
    "Convolution_v1": _convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": _fully_connected,
    "BatchNorm": _batch_norm,
    "_contrib_SyncBatchNorm": _batch_norm,
    "_contrib_BatchNormWithReLU": _batch_norm,
    "LayerNorm": _layer_norm,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "L2Normalization": _l2_normalization,
    "LRN": _lrn,
    "Activation": _activation,
    "LeakyReLU": _leaky_relu,
    "softmax": _softmax("softmax"),
    "softmin": _softmax("softmin"),
    "log_softmax": _softmax("log_softmax"),
    "SoftmaxActivation": _softmax_activation,
    "SoftmaxOutput": _softmax_output,
    "Dropout": _dropout,
    "Embedding": _embedding,
    "one_hot": _one_hot,
}
