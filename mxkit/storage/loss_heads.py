"""Graphs without the loss heads of Module and the labels that belong to them."""

import json
import re
from typing import AbstractSet, Any, Dict, Iterator, List, Mapping

import mxnet as mx

# What a loss head of Module computes over its first input, once nothing is trained. Its label only makes a gradient.
_PLAIN_HEADS = {
    "LinearRegressionOutput": "_copy",
    "MAERegressionOutput": "_copy",
    "SVMOutput": "_copy",
    "LogisticRegressionOutput": "sigmoid",
    "SoftmaxOutput": "softmax",
}
# Operators whose further inputs are parameters, and how those are named by default.
_OWNERS = frozenset(
    ["Convolution", "Deconvolution", "FullyConnected", "Embedding", "BatchNorm", "LayerNorm", "GroupNorm"]
    + ["InstanceNorm", "LeakyReLU", "RNN"]
)
_PARAMETER_NAME = re.compile(r"(^|_)(weight|bias|gamma|beta|parameters)$")


def without_labels(symbol: Any, *, scores: bool = False) -> Any:
    """The graph with plain operators in place of Module's loss heads, so that their labels are no inputs of it (T117).

    A loss head also ignores the gradient that comes from above: what is trained behind it learns its own loss, whatever
    loss was given. A plain operator has the gradient of what it computes. A label that something else reads stays.

    Args:
        symbol: Any Symbol.
        scores: Leave out the softmax or sigmoid of the heads, which mxkit's losses apply themselves.

    Returns:
        A Symbol with the same outputs at inference, under the same names; `symbol` itself where it has no such head.

    >>> head = mx.sym.SoftmaxOutput(mx.sym.var("data"), mx.sym.var("label"), name="softmax")
    >>> without_labels(head).list_inputs(), without_labels(head).list_outputs()
    (['data'], ['softmax_output'])
    """
    graph = json.loads(symbol.tojson())
    if not any(node["op"] in _PLAIN_HEADS for node in graph["nodes"]):
        if scores:
            raise ValueError(
                f"scores=True leaves out the softmax or sigmoid of a loss head: expected one of "
                f"{', '.join(sorted(_PLAIN_HEADS))}; the graph has none"
            )
        return symbol
    nodes: List[Dict[str, Any]] = []
    moved: List[int] = []  # the new number of each node
    for node in graph["nodes"]:
        inputs = [[moved[number], *output] for number, *output in node["inputs"]]
        nodes.extend(_plain_head({**node, "inputs": inputs}, len(nodes), scores))
        moved.append(len(nodes) - 1)
    graph["nodes"] = nodes
    graph["heads"] = [[moved[number], *output] for number, *output in graph["heads"]]
    graph["arg_nodes"] = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    del graph["node_row_ptr"]
    return mx.sym.load_json(json.dumps(graph))


def _plain_head(node: Dict[str, Any], first: int, scores: bool) -> Iterator[Dict[str, Any]]:
    """The nodes that take a node's place, the last one under its name; the first one has the number `first`."""
    if node["op"] not in _PLAIN_HEADS:
        yield node
        return
    attrs, data, name = node.get("attrs", {}), node["inputs"][:1], node["name"]
    plain = {"op": _PLAIN_HEADS[node["op"]], "name": name, "inputs": data}
    if scores:
        yield {**plain, "op": "_copy"}
    elif node["op"] != "SoftmaxOutput":
        yield plain
    elif _is_true(attrs, "multi_output") or _is_true(attrs, "preserve_shape"):
        yield {**plain, "attrs": {"axis": "1" if _is_true(attrs, "multi_output") else "-1"}}
    else:  # over all numbers of a sample
        yield {"op": "Flatten", "name": f"{name}_flat", "inputs": data}
        yield {**plain, "name": f"{name}_plain", "attrs": {"axis": "-1"}, "inputs": [[first, 0, 0]]}
        yield {"op": "reshape_like", "name": name, "inputs": [[first + 1, 0, 0], *data]}


def parameters_without_array(symbol: Any, arrays: AbstractSet[str]) -> List[str]:
    """Variables that a layer takes for its weights, and that no array belongs to: no inputs of a net."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return [
        nodes[number]["name"]
        for node in nodes
        if node["op"] in _OWNERS
        for number, *_ in node["inputs"][1:]
        if nodes[number]["op"] == "null"
        and nodes[number]["name"] not in arrays
        and _PARAMETER_NAME.search(nodes[number]["name"])
    ]


def _is_true(attrs: Mapping[str, str], key: str) -> bool:
    return attrs.get(key, "0").lower() in ("1", "true")
