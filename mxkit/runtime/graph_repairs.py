"""Repairs of graphs before MXNet compiles or binds them: T139, T250, T251, T252. The user's own graph stays as it is.

A rule replaces one operator by others, which compute the same. Shapes are not known here, only attributes.
"""

import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from mxkit.runtime.blocked_layouts import CHANNEL_AXES, bounds, cuts_a_block, sums
from mxkit.runtime.operators import SELU_ALPHA, SELU_SCALE, Operator, mxnet_module

Node = Dict[str, Any]
# The number of channels of each input, as far as attributes tell.
Channels = Sequence[Optional[int]]

_GIVEN = -1  # stands for the inputs of the replaced operator
# Operators whose outputs have as many channels as their first input.
_KEEPS_CHANNELS = {"Activation", "BatchNorm", "Dropout", "LeakyReLU", "Pooling", "relu", "sigmoid", "_copy", "clip"}
_ADDS = ("elemwise_add", "elemwise_sub", "elemwise_mul", "add_n")


class Part(NamedTuple):
    """One of the operators that replace another.

    Attributes:
        operator: MXNet's name.
        attributes: Its attributes as text.
        inputs: Numbers of earlier parts, or `_GIVEN`.
    """

    operator: str
    attributes: Dict[str, str]
    inputs: Sequence[int] = (_GIVEN,)


def repaired_graph(graph: Any) -> Any:
    """A Symbol with the same arguments and outputs that is safe to run; itself if there is nothing to repair."""
    text = graph.tojson()
    if not any(f'"{name}"' in text for name in _RULES):
        return graph
    content = json.loads(text)
    if not _repair(content):
        return graph
    symbol = mxnet_module("symbol")
    repaired = symbol.load_json(json.dumps(content))
    return repaired.as_np_ndarray() if isinstance(graph, symbol.numpy._Symbol) else repaired


def bound(bind: Operator) -> Operator:
    """`Symbol.bind` or `Symbol.simple_bind`, of a repaired graph."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        executor = bind(repaired_graph(self), *args, **kwargs)
        executor._symbol = self  # `output_dict` has its names
        return executor

    return run


def _repair(content: Dict[str, Any]) -> bool:
    """Change the JSON of a Symbol, bodies of loops included; return whether anything changed."""
    nodes: List[Node] = []
    places: List[int] = []  # of the old nodes in `nodes`
    channels: List[Optional[int]] = []
    changed = False
    for node in content["nodes"]:
        for body in node.get("subgraphs", ()):
            changed |= _repair(body)
        before = [channels[source[0]] for source in node["inputs"]]
        channels.append(_channels(node, before))
        node["inputs"] = [[places[source[0]], *source[1:]] for source in node["inputs"]]
        rule = _RULES.get(node["op"])
        parts = rule(node.get("attrs", {}), before) if rule else []
        nodes += _as_nodes(node, parts, len(nodes)) if parts else [node]
        changed |= bool(parts)
        places.append(len(nodes) - 1)
    if changed:
        content["nodes"] = nodes
        content["arg_nodes"] = [places[number] for number in content["arg_nodes"]]
        content["heads"] = [[places[head[0]], *head[1:]] for head in content["heads"]]
        content.pop("node_row_ptr", None)
    return changed


def _as_nodes(node: Node, parts: Sequence[Part], first: int) -> List[Node]:
    """The nodes of parts; `first` is the number of the first one. The last keeps the name."""
    scope = {name: value for name, value in node.get("attrs", {}).items() if name.startswith("__")}
    nodes = []
    for number, part in enumerate(parts):
        sources = [node["inputs"] if one == _GIVEN else [[first + one, 0, 0]] for one in part.inputs]
        name = node["name"] if number == len(parts) - 1 else f"{node['name']}_{number}"
        inputs = [source for several in sources for source in several]
        nodes.append({"op": part.operator, "name": name, "attrs": {**scope, **part.attributes}, "inputs": inputs})
    return nodes


def _channels(node: Node, before: Channels) -> Optional[int]:
    """Channels of an operator's output, as far as attributes tell."""
    operator, attributes = node["op"], node.get("attrs", {})
    if operator == "_sg_mkldnn_conv":  # joined with what follows it
        inside = (one for body in node["subgraphs"] for one in body["nodes"])
        return next((int(one["attrs"]["num_filter"]) for one in inside if one["op"] == "Convolution"), None)
    if operator in ("Convolution", "Deconvolution"):
        return int(attributes["num_filter"])
    if operator in _KEEPS_CHANNELS:
        return before[0]
    if operator in _ADDS:
        return next((count for count in before if count is not None), None)
    if operator == "Concat" and int(attributes.get("dim", 1)) in CHANNEL_AXES and None not in before:
        return sum(count or 0 for count in before)
    return None


def _concat(attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T250: by the operator of `mx.np` where a part may end inside a block."""
    if int(attributes.get("dim", 1)) not in CHANNEL_AXES or len(before) < 2:
        return []
    *points, channels = sums([count or 0 for count in before])
    if None not in before and not cuts_a_block(channels, points):
        return []
    return [Part("_npi_concatenate", {"axis": "1", "num_args": str(len(before))})]


def _slice(attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T251: channels by `slice_axis`, the other axes as they were."""
    begin, end, step = (_numbers(attributes.get(name)) for name in ("begin", "end", "step"))
    if len(begin) < 2 or any(one not in (None, 1) for one in step):
        return []
    first, last, channels = begin[1], end[1], before[0]
    if channels is not None:
        first, last = bounds(first, last, channels)
        last = None if last == channels else last
    points = [first or 0, last or 0]
    if min(points) >= 0 and not cuts_a_block(channels, points):
        return []
    axis = {"axis": "1", "begin": str(begin[1] or 0), "end": str(end[1])}
    begin[1] = end[1] = None
    return [
        Part("slice_axis", axis),
        Part("slice", {**attributes, "begin": str(tuple(begin)), "end": str(tuple(end))}, (0,)),
    ]


def _reshape(attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T252: by the operator of `mx.npx`, which compares the numbers of elements. Its codes are other numbers."""
    shape = _numbers(attributes.get("shape"))
    *first, last = shape or [None]
    if last is None or (last in (0, -1) and not any(first)):  # like (0, -1), which keeps all elements
        return []
    if -4 in shape and shape.count(-1) > 1:  # MXNet gives the second -1 a meaning of its own: 1 at the end
        return []
    codes = {0: -2, -1: -1, -2: -4, -3: -5, -4: -6}
    newshape = tuple(size if size is None or size > 0 else codes[size] for size in shape)
    return [Part("_npx_reshape", {"newshape": str(newshape), "reverse": attributes.get("reverse", "False")})]


def _leaky_relu(attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T139: SELU as `operators.differentiable_selu` computes it."""
    if attributes.get("act_type") != "selu":
        return []
    return [
        Part("_minimum_scalar", {"scalar": "0"}),
        Part("expm1", {}, (0,)),
        Part("_mul_scalar", {"scalar": repr(SELU_ALPHA)}, (1,)),
        Part("_greater_scalar", {"scalar": "0"}),
        Part("where", {}, (3, _GIVEN, 2)),
        Part("_mul_scalar", {"scalar": repr(SELU_SCALE)}, (4,)),
    ]


def _numbers(text: Optional[str]) -> List[Optional[int]]:
    words = (word.strip() for word in (text or "").strip("()[]").split(","))
    return [None if word == "None" else int(word) for word in words if word]


_RULES: Dict[str, Callable[[Dict[str, str], Channels], List[Part]]] = {
    "Concat": _concat,
    "slice": _slice,
    "Reshape": _reshape,
    "LeakyReLU": _leaky_relu,
}
