"""Arithmetic of one operator of a graph."""

from math import prod
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.graph import Attributes
from mxkit.core.operators import known

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


# Gates of a recurrent cell, and operations per element of its state: two biases, a sum and a function for each gate
# (for `gru` one more product), then the new state.
_CELLS = {"lstm": (4, 4 * 4 + 5), "gru": (3, 3 * 4 + 5), "rnn_relu": (1, 4), "rnn_tanh": (1, 4)}


def operator_cost(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Optional[Cost]:
    """Count the arithmetic of one operator for a whole batch.

    Args:
        node: The operator.
        inputs: Shapes of the inputs; parameters are inputs too.
        outputs: Shapes of the outputs.

    Returns:
        The cost; None for an operator whose cost is not known.

    >>> from mxkit.core.graph import Graph
    >>> dense = Graph.of(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3)).nodes[-1]
    >>> operator_cost(dense, [(2, 5), (3, 5), (3,)], [(2, 3)])
    Cost(macs=30, others=6)
    >>> tanh, topk = (Graph.of(operator(mx.sym.var("x"))).nodes[-1] for operator in (mx.sym.tanh, mx.sym.topk))
    >>> operator_cost(tanh, [(2, 5)], [(2, 5)]), operator_cost(topk, [(2, 5)], [(2, 1)])
    (Cost(macs=0, others=10), None)
    """
    row = known(node.operator)
    if row.kind in _RULES:
        return _RULES[row.kind](node, inputs, outputs)
    if row.work is not None:
        # a norm as a reduction reads more elements than it writes, resizing may write more
        return Cost(others=row.work * max(prod(inputs[0]), prod(outputs[0])))
    if "sum" in row.facts:
        return Cost(others=prod(inputs[0]))
    return Cost() if "free" in row.facts else None


def _filters(side: str) -> Callable[..., Cost]:
    """Cost of an operator that applies a weight at each position of its input or of its output."""

    def cost(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
        biased = len(inputs[-1]) == 1  # a bias is the last input, and has one axis
        weight = inputs[-2] if biased else inputs[-1]
        positions = prod(inputs[0] if side == "input" else outputs[0])
        # in every layout the first axis of the weight is the number of filters
        return Cost(positions * prod(weight[1:]), prod(outputs[0]) * biased)

    return cost


def _pooling(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    if node.flag("global_pool"):
        return Cost(others=prod(inputs[0]))
    return Cost(others=prod(outputs[0]) * prod(node.ints("kernel")))


def _rnn(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    steps, batch, features = inputs[0]
    hidden = node.integer("state_size")
    projected = node.integer("projection_size")
    directions = 2 if node.flag("bidirectional") else 1
    gates, others = _CELLS[node.text("mode")]
    layers, width, macs = node.integer("num_layers"), features, 0
    for _ in range(layers):
        macs += directions * (gates * hidden * (width + (projected or hidden)) + hidden * (projected or 0))
        width = directions * (projected or hidden)
    return Cost(steps * batch * macs, steps * batch * directions * layers * hidden * others)


def _product(transposed_axis: int) -> Callable[..., Cost]:
    """Cost of a matrix product; it sums over the last axis of its first input, or `transposed_axis` if transposed."""

    def cost(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
        axis = transposed_axis if node.flag("transpose_a") else -1
        return Cost(prod(outputs[0]) * inputs[0][axis])

    return cost


def _tensordot(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
    axes: Sequence[int] = node.ints("a_axes_summed") or range(-node.integer("axes", 2), 0)
    return Cost(prod(outputs[0]) * prod(inputs[0][axis] for axis in axes))


def _einsum(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Optional[Cost]:
    """Cost of a product of two arrays with a letter for each axis; other sums are not counted."""
    terms = node.text("subscripts").replace(" ", "").split("->")[0].split(",")
    if len(terms) != 2 or any(len(term) != len(shape) for term, shape in zip(terms, inputs)) or "." in "".join(terms):
        return None
    sizes = {letter: size for term, shape in zip(terms, inputs) for letter, size in zip(term, shape)}
    return Cost(prod(sizes.values()))


def _attention(parts: int, scores: str) -> Callable[..., Cost]:
    """Cost of attention. Its first input interleaves `parts` vectors per head; the scores are its input or output."""

    def cost(node: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Cost:
        pairs = prod(inputs[1] if scores == "input" else outputs[0])
        return Cost(pairs * (inputs[0][-1] // (parts * node.integer("heads"))))

    return cost


_RULES: Dict[str, Callable[..., Optional[Cost]]] = {
    **dict.fromkeys(
        ["fullyconnected", "convolution", "deformableconvolution", "modulateddeformableconvolution"], _filters("output")
    ),
    "deconvolution": _filters("input"),
    "pooling": _pooling,
    "add_n": lambda node, inputs, outputs: Cost(others=(len(inputs) - 1) * prod(outputs[0])),
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
