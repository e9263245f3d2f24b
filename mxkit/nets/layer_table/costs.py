"""What one operator of MXNet's graph costs."""

from ast import literal_eval
from math import prod
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

Shape = Tuple[int, ...]


class Cost(NamedTuple):
    """Arithmetic of one operator in a forward pass without training.

    Attributes:
        macs: Multiply-adds of products: convolutions, dense layers, recurrent layers, attention, `dot`. This is
            what papers and torchvision's tables call "FLOPs" or "GFLOPS" of a net. A bias is none.
        others: Everything else, one for each addition, comparison or function of an element.
    """

    macs: int = 0
    others: int = 0

    @property
    def flops(self) -> int:
        """Operations: two for each multiply-add, one for each other."""
        return 2 * self.macs + self.others


def _words(text: str) -> List[str]:
    return text.split()


# Names without MXNet's prefixes and `_scalar`, in lower case: see `operator_kind`.
_FREE = _words(
    "identity copy np_copy flatten batch_flatten reshape reshape_like transpose swapaxis swapaxes moveaxis expand_dims "
    "squeeze concat concatenate stack vstack hstack split split_v2 slicechannel slice slice_axis slice_like crop pad "
    "tile repeat flip reverse roll broadcast_to axis axes like to cast amp_cast amp_multicast blockgrad stop_gradient "
    "makeloss make_loss dropout embedding sparseembedding take pick gather_nd one_hot zeros ones zeros_like ones_like "
    "zeros_without_dtype full full_like eye arange arange_like linspace shape_array size_array sequencemask "
    "sequence_mask sequencelast sequencereverse rnn_param_concat depth_to_space space_to_depth where diag "
    "identity_with_attr_like_rhs upsampling index_array ndarray"
)
_ELEMENTWISE = _words(
    "activation leakyrelu leaky_relu relu sigmoid hard_sigmoid softsign tanh erf erfinv gamma gammaln abs sign round "
    "rint ceil floor fix trunc clip smooth_l1 square sqrt rsqrt cbrt rcbrt reciprocal negative exp expm1 log log2 "
    "log10 log1p sin cos tan arcsin arccos arctan sinh cosh arcsinh arccosh arctanh logical_not add plus sub minus "
    "subtract rminus rsubtract mul multiply div divide true_divide rdiv rtrue_divide mod rmod power rpower hypot "
    "maximum minimum equal not_equal greater greater_equal lesser lesser_equal less less_equal logical_and logical_or "
    "logical_xor arctan2 div_sqrt_dim logistic isnan isinf isfinite"
)
_REDUCTIONS = _words("sum mean max min amax amin prod argmax argmin nansum nanprod cumsum adaptiveavgpooling2d")
# Operations an element: BatchNorm scales and shifts by running statistics; the other norms find the mean (1), centre
# (1), square and sum (2), divide (1), scale and shift (2); softmax finds the largest, subtracts, exponentiates, sums,
# divides; bilinear resizing weighs four neighbours.
_AN_ELEMENT = {"batchnorm": 2, "batch_norm": 2, "syncbatchnorm": 2, "batchnormwithrelu": 3, "bilinearresize2d": 7}
_AN_ELEMENT.update(dict.fromkeys(["layernorm", "layer_norm", "instancenorm", "groupnorm"], 7))
_AN_ELEMENT.update(dict.fromkeys(["softmax", "log_softmax", "softmin", "softmaxoutput", "softmaxactivation"], 5))
_AN_ELEMENT.update({"l2normalization": 3, "norm": 2, **dict.fromkeys(_ELEMENTWISE, 1)})

# Gates of a recurrent cell, and operations an element of its state: two biases, a sum and a function for each gate
# (of `gru`, one more product), then the new state.
_CELLS = {"lstm": (4, 4 * 4 + 5), "gru": (3, 3 * 4 + 5), "rnn_relu": (1, 4), "rnn_tanh": (1, 4)}


def operator_cost(
    name: str, attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> Optional[Cost]:
    """Count the arithmetic of one operator, the batch included.

    Args:
        name: MXNet's, like "Convolution".
        attributes: As text, as in the JSON of a graph.
        inputs, outputs: Shapes, of parameters too.

    Returns:
        None for an operator that is not known here.

    >>> operator_cost("FullyConnected", {}, [(2, 5), (3, 5), (3,)], [(2, 3)])
    Cost(macs=30, others=6)
    >>> operator_cost("Activation", {}, [(2, 5)], [(2, 5)]), operator_cost("topk", {}, [(2, 5)], [(2, 1)])
    (Cost(macs=0, others=10), None)
    """
    kind = operator_kind(name)
    if kind in _PRODUCTS:
        return _PRODUCTS[kind](attributes, inputs, outputs)
    if kind in _AN_ELEMENT:
        # the larger of both: a norm as a reduction reads more than it writes, resizing writes more
        return Cost(others=_AN_ELEMENT[kind] * max(prod(inputs[0]), prod(outputs[0])))
    if kind in _REDUCTIONS:
        return Cost(others=prod(inputs[0]))
    if kind in ("add_n", "elementwisesum"):
        return Cost(others=(len(inputs) - 1) * prod(outputs[0]))
    free = kind in _FREE or kind.startswith(("random_", "sample_"))
    return Cost() if free else None


def operator_kind(name: str) -> str:
    """The name without what tells NumPy's, sparse and broadcasting variants apart.

    >>> [operator_kind(name) for name in ("_npi_multiply_scalar", "broadcast_mul", "_contrib_BilinearResize2D")]
    ['multiply', 'mul', 'bilinearresize2d']
    """
    kind = name.lower().lstrip("_")
    for prefix in ("npi_", "npx_", "np_", "sparse_", "contrib_", "broadcast_", "elemwise_"):
        if kind.startswith(prefix):
            kind = kind[len(prefix) :].lstrip("_")
    return kind[: -len("_scalar")] if kind.endswith("_scalar") else kind


def attribute(attributes: Mapping[str, str], name: str, default: Any) -> Any:
    """Value of an operator's attribute; MXNet leaves out those at their default.

    >>> attribute({"stride": "(2, 2)"}, "stride", ()), attribute({"act_type": "relu"}, "act_type", None)
    ((2, 2), 'relu')
    """
    try:
        return literal_eval(attributes[name]) if name in attributes else default
    except (ValueError, SyntaxError):
        return attributes[name]


def _weight(inputs: Sequence[Shape]) -> Tuple[Shape, bool]:
    """Shape of the weight, and whether there is a bias, which is always the last input and has one axis."""
    biased = len(inputs[-1]) == 1
    return inputs[-2] if biased else inputs[-1], biased


def _convolution(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    weight, biased = _weight(inputs)
    # holds for every layout: the weight's first axis is the number of filters
    return Cost(prod(outputs[0]) * prod(weight[1:]), prod(outputs[0]) * biased)


def _deconvolution(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    weight, biased = _weight(inputs)
    return Cost(prod(inputs[0]) * prod(weight[1:]), prod(outputs[0]) * biased)


def _pooling(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    if attribute(attributes, "global_pool", False):
        return Cost(others=prod(inputs[0]))
    return Cost(others=prod(outputs[0]) * prod(attribute(attributes, "kernel", ())))


def _rnn(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    steps, batch, features = inputs[0]
    hidden = attribute(attributes, "state_size", 0)
    projected = attribute(attributes, "projection_size", None)
    directions = 2 if attribute(attributes, "bidirectional", False) else 1
    gates, others = _CELLS[attributes["mode"]]
    seen, macs = features, 0
    for _ in range(attribute(attributes, "num_layers", 1)):
        macs += directions * (gates * hidden * (seen + (projected or hidden)) + hidden * (projected or 0))
        seen = directions * (projected or hidden)
    layers = directions * attribute(attributes, "num_layers", 1)
    return Cost(steps * batch * macs, steps * batch * layers * hidden * others)


def _dot(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    summed = inputs[0][0 if attribute(attributes, "transpose_a", False) else -1]
    return Cost(prod(outputs[0]) * summed)


def _batch_dot(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    summed = inputs[0][-2 if attribute(attributes, "transpose_a", False) else -1]
    return Cost(prod(outputs[0]) * summed)


def _query_key(parts: int) -> Callable[..., Cost]:
    """Of attention over interleaved heads, in whose first input a head has `parts` vectors a position."""

    def cost(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
        return Cost(prod(outputs[0]) * (inputs[0][-1] // (parts * attribute(attributes, "heads", 1))))

    return cost


def _attended(parts: int) -> Callable[..., Cost]:
    def cost(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
        return Cost(prod(inputs[1]) * (inputs[0][-1] // (parts * attribute(attributes, "heads", 1))))

    return cost


_PRODUCTS: Dict[str, Callable[..., Cost]] = {
    **dict.fromkeys(["convolution", "deformableconvolution", "modulateddeformableconvolution"], _convolution),
    "deconvolution": _deconvolution,
    **dict.fromkeys(["fullyconnected", "fully_connected"], _convolution),
    "pooling": _pooling,
    "rnn": _rnn,
    "dot": _dot,
    **dict.fromkeys(["batch_dot", "matmul", "linalg_gemm", "linalg_gemm2"], _batch_dot),
    "interleaved_matmul_selfatt_qk": _query_key(3),
    "interleaved_matmul_selfatt_valatt": _attended(3),
    "interleaved_matmul_encdec_qk": _query_key(1),
    "interleaved_matmul_encdec_valatt": _attended(2),
}
