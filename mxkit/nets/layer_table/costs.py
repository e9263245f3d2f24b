"""Arithmetic cost of one operator of an MXNet graph."""

from ast import literal_eval
from math import prod
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

Shape = Tuple[int, ...]


class Cost(NamedTuple):
    """Arithmetic of one operator in a forward pass without training.

    Attributes:
        macs: Multiply-adds of products: convolutions, dense layers, recurrent layers, attention, `dot`. Papers and
            torchvision's tables call them "FLOPs" or "GFLOPS" of a net. Adding a bias does not count.
        others: All other operations, one for each addition, comparison or function of an element.
    """

    macs: int = 0
    others: int = 0

    @property
    def flops(self) -> int:
        """Operations: two for each multiply-add, and the others."""
        return 2 * self.macs + self.others


def _words(text: str) -> List[str]:
    return text.split()


# Names as `operator_kind` returns them.
_FREE = _words(
    "identity copy np_copy flatten batch_flatten reshape reshape_like transpose swapaxis swapaxes moveaxis expand_dims "
    "squeeze concat concatenate stack vstack hstack split split_v2 slicechannel slice slice_axis slice_like crop pad "
    "tile repeat flip reverse roll broadcast_to axis axes like to cast amp_cast amp_multicast blockgrad stop_gradient "
    "makeloss make_loss dropout embedding sparseembedding take pick gather_nd one_hot zeros ones zeros_like ones_like "
    "zeros_without_dtype full full_like eye arange arange_like linspace shape_array size_array sequencemask "
    "sequence_mask sequencelast sequencereverse rnn_param_concat depth_to_space space_to_depth where diag "
    "identity_with_attr_like_rhs upsampling index_array ndarray atleast_1d atleast_2d atleast_3d hsplit dsplit dstack "
    "column_stack rot90 diagonal tril indices where_lscalar where_rscalar where_scalar2 uniform normal boolean_mask"
)
_ELEMENTWISE = _words(
    "activation leakyrelu leaky_relu relu sigmoid hard_sigmoid softsign tanh erf erfinv gamma gammaln abs sign round "
    "rint ceil floor fix trunc clip smooth_l1 square sqrt rsqrt cbrt rcbrt reciprocal negative exp expm1 log log2 "
    "log10 log1p sin cos tan arcsin arccos arctan sinh cosh arcsinh arccosh arctanh logical_not add plus sub minus "
    "subtract rminus rsubtract mul multiply div divide true_divide rdiv rtrue_divide mod rmod power rpower hypot "
    "maximum minimum equal not_equal greater greater_equal lesser lesser_equal less less_equal logical_and logical_or "
    "logical_xor arctan2 div_sqrt_dim logistic isnan isinf isfinite absolute around degrees radians copysign "
    "rcopysign ldexp rldexp rarctan2 nan_to_num isposinf isneginf bitwise_and bitwise_or bitwise_xor bitwise_not"
)
_REDUCTIONS = _words(
    "sum mean max min amax amin prod argmax argmin nansum nanprod cumsum adaptiveavgpooling2d all any average trace"
)
# Operations per element: BatchNorm scales and shifts by running statistics; the other norms compute the mean (1),
# subtract it (1), square and sum (2), divide (1), scale and shift (2), a variance the first four of these; softmax
# takes the maximum, subtracts, exponentiates, sums, divides; bilinear resizing weighs four neighbours.
_PER_ELEMENT = {
    **dict.fromkeys(_ELEMENTWISE, 1),
    **dict.fromkeys(["batchnorm", "batch_norm", "syncbatchnorm", "norm"], 2),
    **dict.fromkeys(["batchnormwithrelu", "l2normalization"], 3),
    **dict.fromkeys(["std", "var"], 4),
    **dict.fromkeys(["softmax", "log_softmax", "softmin", "softmaxoutput", "softmaxactivation"], 5),
    **dict.fromkeys(["layernorm", "layer_norm", "instancenorm", "groupnorm", "bilinearresize2d"], 7),
}

# Gates of a recurrent cell, and operations per element of its state: two biases, a sum and a function for each gate
# (for `gru` one more product), then the new state.
_CELLS = {"lstm": (4, 4 * 4 + 5), "gru": (3, 3 * 4 + 5), "rnn_relu": (1, 4), "rnn_tanh": (1, 4)}


def operator_cost(
    name: str, attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> Optional[Cost]:
    """Count the arithmetic of one operator for a whole batch.

    Args:
        name: MXNet's name, like "Convolution".
        attributes: Names and values as text, as in the JSON of a graph.
        inputs: Shapes of the inputs; parameters are inputs too.
        outputs: Shapes of the outputs.

    Returns:
        The cost; None for an operator that this module does not know.

    >>> operator_cost("FullyConnected", {}, [(2, 5), (3, 5), (3,)], [(2, 3)])
    Cost(macs=30, others=6)
    >>> operator_cost("Activation", {}, [(2, 5)], [(2, 5)]), operator_cost("topk", {}, [(2, 5)], [(2, 1)])
    (Cost(macs=0, others=10), None)
    """
    kind = operator_kind(name)
    if kind in _PRODUCTS:
        return _PRODUCTS[kind](attributes, inputs, outputs)
    if kind in _PER_ELEMENT:
        # a norm as a reduction reads more elements than it writes, resizing may write more
        return Cost(others=_PER_ELEMENT[kind] * max(prod(inputs[0]), prod(outputs[0])))
    if kind in _REDUCTIONS:
        return Cost(others=prod(inputs[0]))
    if kind in ("add_n", "elementwisesum"):
        return Cost(others=(len(inputs) - 1) * prod(outputs[0]))
    free = kind in _FREE or kind.startswith(("random_", "sample_"))
    return Cost() if free else None


def operator_kind(name: str) -> str:
    """Return the name in lower case, without the prefixes and suffixes of NumPy's, sparse and broadcasting variants.

    >>> [operator_kind(name) for name in ("_npi_multiply_scalar", "broadcast_mul", "_contrib_BilinearResize2D")]
    ['multiply', 'mul', 'bilinearresize2d']
    """
    kind = name.lower().lstrip("_")
    for prefix in ("npi_", "npx_", "np_", "sparse_", "contrib_", "broadcast_", "elemwise_"):
        if kind.startswith(prefix):
            kind = kind[len(prefix) :].lstrip("_")
    return kind[: -len("_scalar")] if kind.endswith("_scalar") else kind


def attribute(attributes: Mapping[str, str], name: str, default: Any) -> Any:
    """Return the value of an operator's attribute; MXNet leaves out attributes with their default value.

    >>> attribute({"stride": "(2, 2)"}, "stride", ()), attribute({"act_type": "relu"}, "act_type", None)
    ((2, 2), 'relu')
    """
    try:
        return literal_eval(attributes[name]) if name in attributes else default
    except (ValueError, SyntaxError):
        return attributes[name]


def _filters(side: str) -> Callable[..., Cost]:
    """Cost of an operator that applies a weight at each position of its input or of its output."""

    def cost(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
        biased = len(inputs[-1]) == 1  # a bias is the last input, and has one axis
        weight = inputs[-2] if biased else inputs[-1]
        positions = prod(inputs[0] if side == "input" else outputs[0])
        # in every layout the first axis of the weight is the number of filters
        return Cost(positions * prod(weight[1:]), prod(outputs[0]) * biased)

    return cost


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
    layers, width, macs = attribute(attributes, "num_layers", 1), features, 0
    for _ in range(layers):
        macs += directions * (gates * hidden * (width + (projected or hidden)) + hidden * (projected or 0))
        width = directions * (projected or hidden)
    return Cost(steps * batch * macs, steps * batch * directions * layers * hidden * others)


def _product(transposed_axis: int) -> Callable[..., Cost]:
    """Cost of a matrix product; it sums over the last axis of its first input, or `transposed_axis` if transposed."""

    def cost(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
        axis = transposed_axis if attribute(attributes, "transpose_a", False) else -1
        return Cost(prod(outputs[0]) * inputs[0][axis])

    return cost


def _tensordot(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    axes = attribute(attributes, "a_axes_summed", None)
    if axes is None:
        axes = range(-attribute(attributes, "axes", 2), 0)
    return Cost(prod(outputs[0]) * prod(inputs[0][axis] for axis in axes))


def _einsum(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Optional[Cost]:
    """Cost of a product of two arrays with a letter for each axis; other sums are not counted."""
    terms = attributes.get("subscripts", "").replace(" ", "").split("->")[0].split(",")
    if len(terms) != 2 or any(len(term) != len(shape) for term, shape in zip(terms, inputs)) or "." in "".join(terms):
        return None
    sizes = {letter: size for term, shape in zip(terms, inputs) for letter, size in zip(term, shape)}
    return Cost(prod(sizes.values()))


def _attention(parts: int, scores: str) -> Callable[..., Cost]:
    """Cost of attention. Its first input interleaves `parts` vectors per head; the scores are its input or output."""

    def cost(attributes: Mapping[str, str], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
        pairs = prod(inputs[1] if scores == "input" else outputs[0])
        return Cost(pairs * (inputs[0][-1] // (parts * attribute(attributes, "heads", 1))))

    return cost


_PRODUCTS: Dict[str, Callable[..., Optional[Cost]]] = {
    **dict.fromkeys(["convolution", "deformableconvolution", "modulateddeformableconvolution"], _filters("output")),
    **dict.fromkeys(["fullyconnected", "fully_connected"], _filters("output")),
    "deconvolution": _filters("input"),
    "pooling": _pooling,
    "rnn": _rnn,
    "dot": _product(0),
    **dict.fromkeys(["tensordot", "tensordot_int_axes"], _tensordot),
    "einsum": _einsum,
    **dict.fromkeys(["batch_dot", "matmul", "linalg_gemm", "linalg_gemm2"], _product(-2)),
    "interleaved_matmul_selfatt_qk": _attention(3, "output"),
    "interleaved_matmul_selfatt_valatt": _attention(3, "input"),
    "interleaved_matmul_encdec_qk": _attention(1, "output"),
    "interleaved_matmul_encdec_valatt": _attention(2, "input"),
}
