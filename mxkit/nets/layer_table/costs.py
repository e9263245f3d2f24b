"""Multiply-adds of one operator of a graph."""

from math import prod
from typing import Callable, Dict, Optional, Sequence, Tuple

from mxkit.core.graph import Attributes
from mxkit.core.operators import known

Shape = Tuple[int, ...]

# Gates of a recurrent cell.
_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}


def multiply_adds(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Optional[int]:
    """Count the multiply-adds of one operator in a forward pass without training, for a whole batch.

    They are those of products: convolutions, dense layers, recurrent layers, attention, `dot`. Papers and torchvision's
    tables call them "FLOPs" or "GFLOPS" of a net. Adding a bias does not count.

    Args:
        node: The operator.
        inputs: Shapes of the inputs; parameters are inputs too.
        outputs: Shapes of the outputs.

    Returns:
        The number; None for an operator of which it is not known.

    >>> from mxkit.core.graph import Graph
    >>> dense = Graph.of(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3)).nodes[-1]
    >>> multiply_adds(dense, [(2, 5), (3, 5), (3,)], [(2, 3)])
    30
    >>> tanh, topk = (Graph.of(operator(mx.sym.var("x"))).nodes[-1] for operator in (mx.sym.tanh, mx.sym.topk))
    >>> multiply_adds(tanh, [(2, 5)], [(2, 5)]), multiply_adds(topk, [(2, 5)], [(2, 1)])
    (0, None)
    """
    row = known(node.operator)
    if row.kind in _RULES:
        return _RULES[row.kind](node, inputs, outputs)
    return None if row.work is None and row.facts.isdisjoint(("sum", "free")) else 0


def _filters(side: str) -> Callable[..., int]:
    """Of an operator that applies a weight at each position of its input or of its output."""

    def macs(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        weight = inputs[-2] if len(inputs[-1]) == 1 else inputs[-1]  # a bias is the last input, and has one axis
        # in every layout the first axis of the weight is the number of filters
        return prod(inputs[0] if side == "input" else outputs[0]) * prod(weight[1:])

    return macs


def _rnn(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    steps, batch, width = inputs[0]
    hidden = node.integer("state_size")
    projected = node.integer("projection_size")
    directions, macs = 2 if node.flag("bidirectional") else 1, 0
    for _ in range(node.integer("num_layers")):
        gates = _GATES[node.text("mode")] * hidden * (width + (projected or hidden))
        macs += directions * (gates + hidden * (projected or 0))
        width = directions * (projected or hidden)
    return steps * batch * macs


def _product(transposed_axis: int) -> Callable[..., int]:
    """Of a matrix product; it sums over the last axis of its first input, or `transposed_axis` if transposed."""

    def macs(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        total: int = prod(outputs[0]) * inputs[0][transposed_axis if node.flag("transpose_a") else -1]
        return total

    return macs


def _tensordot(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    axes: Sequence[int] = node.ints("a_axes_summed") or range(-node.integer("axes", 2), 0)
    return prod(outputs[0]) * prod(inputs[0][axis] for axis in axes)


def _einsum(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Optional[int]:
    """Of a product of two arrays with a letter for each axis; other sums are not counted."""
    terms = node.text("subscripts").replace(" ", "").split("->")[0].split(",")
    if len(terms) != 2 or any(len(term) != len(shape) for term, shape in zip(terms, inputs)) or "." in "".join(terms):
        return None
    return prod({letter: size for term, shape in zip(terms, inputs) for letter, size in zip(term, shape)}.values())


def _attention(parts: int, scores: str) -> Callable[..., int]:
    """Of attention. Its first input interleaves `parts` vectors per head; the scores are its input or output."""

    def macs(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        pairs = prod(inputs[1] if scores == "input" else outputs[0])
        return int(pairs * (inputs[0][-1] // (parts * node.integer("heads"))))

    return macs


_RULES: Dict[str, Callable[..., Optional[int]]] = {
    **dict.fromkeys(
        ["fullyconnected", "convolution", "deformableconvolution", "modulateddeformableconvolution"], _filters("output")
    ),
    "deconvolution": _filters("input"),
    **dict.fromkeys(["pooling", "add_n"], lambda node, inputs, outputs: 0),
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
