"""Removes the loss heads of Module, and their labels, from graphs."""

import json
import re
from typing import AbstractSet, Any, Dict, Iterator, List, Sequence, Tuple

from mxkit.core.graph import Graph, Node, symbol_of
from mxkit.core.operators import PLAIN_HEADS, known

# Default names of parameters
_PARAMETER_NAME = re.compile(r"(^|_)(weight|bias|gamma|beta|parameters)$")


def without_labels(symbol: Any, *, scores: bool = False) -> Any:
    """Replace Module's loss heads by plain operators, so that the graph needs no labels (T117).

    A loss head also ignores the gradient of its output: the layers before it would learn the head's loss, not the one
    of the training. A plain operator has its own gradient. A label that another operator reads stays.

    Args:
        symbol: Any Symbol.
        scores: Leave out the softmax or sigmoid of the heads, which mxkit's losses apply themselves.

    Returns:
        A Symbol with the same outputs at inference, with the same names; `symbol` itself if it has no loss head.

    Raises:
        ValueError: `scores` is True, and the graph has no loss head.

    >>> head = mx.sym.SoftmaxOutput(mx.sym.var("data"), mx.sym.var("label"), name="softmax")
    >>> without_labels(head).list_inputs(), without_labels(head).list_outputs()
    (['data'], ['softmax_output'])
    """
    graph = Graph.of(symbol)
    if not any(node.operator in PLAIN_HEADS for node in graph.nodes):
        if scores:
            raise ValueError(
                f"scores=True leaves out the softmax or sigmoid of a loss head: expected one of "
                f"{', '.join(sorted(PLAIN_HEADS))}; the graph has none"
            )
        return symbol
    nodes: List[Dict[str, Any]] = []
    new_numbers: List[int] = []
    for node in graph.nodes:
        inputs = [[new_numbers[one.node], one.output, 0] for one in node.inputs]
        nodes.extend(_plain_head(node, inputs, len(nodes), scores))
        new_numbers.append(len(nodes) - 1)
    return symbol_of(nodes, [[new_numbers[one.node], one.output, 0] for one in graph.heads], graph)


def _plain_head(node: Node, inputs: List[Any], first: int, scores: bool) -> Iterator[Dict[str, Any]]:
    """Yield the nodes that replace a node. The first has the number `first`, the last has the node's name."""
    if node.operator not in PLAIN_HEADS:
        yield {**node.content, "inputs": inputs}
        return
    data, name = inputs[:1], node.name
    plain = {"op": PLAIN_HEADS[node.operator], "name": name, "inputs": data}
    if scores:
        yield {**plain, "op": "_copy"}
    elif node.operator != "SoftmaxOutput":
        yield plain
    elif node.flag("multi_output") or node.flag("preserve_shape"):
        yield {**plain, "attrs": {"axis": "1" if node.flag("multi_output") else "-1"}}
    else:  # over all numbers of a sample
        yield {"op": "Flatten", "name": f"{name}_flat", "inputs": data}
        yield {**plain, "name": f"{name}_plain", "attrs": {"axis": "-1"}, "inputs": [[first, 0, 0]]}
        yield {"op": "reshape_like", "name": name, "inputs": [[first + 1, 0, 0], *data]}


def replaced_heads(text: str) -> List[Tuple[str, str, str]]:
    """Name, operator and plain operator of each loss head in a graph's JSON that was checked before."""
    nodes = json.loads(text)["nodes"]
    return [(node["name"], node["op"], PLAIN_HEADS[node["op"]]) for node in nodes if node["op"] in PLAIN_HEADS]


def outputs_without(symbol: Any, names: Sequence[str]) -> List[str]:
    """Names of a graph's outputs that need none of some variables, then of such inner outputs, the last one first."""
    free = [one for one in symbol.get_internals() if not set(names).intersection(one.list_inputs())]
    found = [one.list_outputs()[0] for one in reversed(free) if one.list_inputs() != one.list_outputs()]
    return sorted(found, key=lambda name: name not in symbol.list_outputs())


def parameters_without_array(symbol: Any, arrays: AbstractSet[str]) -> List[str]:
    """Names of variables that are weights of a layer and have no array, so that they are not inputs of the net."""
    graph = Graph.of(symbol)
    return [
        one.name
        for node in graph.nodes
        if "owns" in known(node.operator).facts
        for one in graph.sources(node)[1:]
        if one.is_variable and one.name not in arrays and _PARAMETER_NAME.search(one.name)
    ]
