"""One view of MXNet's graphs: operators with their attributes and inputs, read from a Symbol and written as one."""

import ast
from collections import Counter
from functools import lru_cache
import json
import re
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
import mxnet as mx
import numpy as np

Number = Union[int, float]
_DEFAULT = re.compile(r"default=(.*)", re.DOTALL)


class Entry(NamedTuple):
    """An output of a node: the node's number in the graph, and the number of the output."""

    node: int
    output: int = 0


@lru_cache(maxsize=None)
def defaults_of(operator: str) -> Mapping[str, str]:
    """The defaults of an operator's arguments as MXNet states them, as text, without those that are None or empty.

    >>> defaults_of("Pooling")["pool_type"], defaults_of("BatchNorm")["eps"], "stride" in defaults_of("Pooling")
    ('max', '0.001', False)
    """
    try:
        arguments = mx.operator.get_operator_arguments(operator)
    except mx.MXNetError:  # not an operator of this MXNet
        return {}
    found = {}
    for name, kind in zip(arguments.names, arguments.types):
        match = _DEFAULT.search(kind)
        text = match[1].strip("'\"") if match else "None"
        if text not in ("None", "[]", "()", ""):
            # MXNet writes 0.001 as 0.00100000005, with the digits of a float
            found[name] = str(np.float32(text)) if kind.startswith(("float", "double")) else text
    return found


class Attributes:
    """An operator's attributes as Python values. MXNet writes all of them as text, and may leave out its defaults.

    Each method has a last argument for an attribute without a value, and without a default in MXNet.

    Attributes:
        operator: MXNet's name of the operator.
        attrs: Texts by name.
        rank: Number of axes of the first input.
    """

    operator: Any
    attrs: Any
    rank: Any

    def _written(self, name: str) -> Optional[str]:
        text = self.attrs.get(name)
        return defaults_of(self.operator).get(name) if text is None else text

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a Python value: number, tuple, list, True, False, None or text."""
        text = self._written(name)
        if text is None:
            return default
        try:
            return ast.literal_eval(re.sub(r"(\d)L\b", r"\1", text))  # "(1L, 2L)" of Python 2
        except (ValueError, SyntaxError):
            return text

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute as text; "None" stands for the default."""
        value = self._written(name)
        return default if value in (None, "None") else str(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is true or false."""
        return self.text(name, str(default)).lower() in ("true", "1")

    def real(self, name: str, default: float = 0) -> float:
        """Return a number as a float; "inf" and "nan" are numbers."""
        return float(self.text(name, str(default)))

    def number(self, name: str, default: Number = 0) -> Number:
        """Return a number; a float without decimals becomes an int."""
        value = self.real(name, default)
        return int(value) if value.is_integer() else value

    def integer(self, name: str, default: Any = None) -> Any:
        """Return an int, or the default if there is no value."""
        value = self.text(name)
        return int(float(value)) if value else default

    def optional_ints(self, name: str) -> Optional[Tuple[Optional[int], ...]]:
        """Return a shape like "(1, None)", "[1, 2]" or "3", whose parts may be None; None if it is absent."""
        value = self.get(name)
        if value is None:
            return None
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def ints(self, name: str) -> Tuple[int, ...]:
        """Return a shape; None in it is 0, and an absent one is ()."""
        return tuple(part or 0 for part in self.optional_ints(name) or ())

    def sizes(self, name: str, count: int, default: int) -> List[int]:
        """Return a number for each of `count` axes; one number stands for all, and () for the default."""
        value = self.get(name)
        value = [value] * count if isinstance(value, int) else list(value or ())
        return [int(size) for size in value] or [default] * count

    def axis(self, default: int = -1, name: str = "axis") -> int:
        """Return an axis, counted from 0."""
        return int(self.integer(name, default) % max(self.rank, 1))


class Node(Attributes):
    """A node of a graph: an operator, or a variable.

    Attributes:
        index: Its number in the graph.
        name: Its name; several nodes may have one name.
        operator: MXNet's name of the operator; "null" for a variable.
        attrs: Its attributes as text.
        inputs: The outputs of earlier nodes that it reads.
        bodies: Graphs inside it: of a loop, or of the operators that oneDNN joined.
        content: Its JSON. A change of it is written by `Graph.text` and `Graph.symbol`.
    """

    def __init__(self, index: int, content: Dict[str, Any]) -> None:
        self.index, self.content = index, content
        self.name, self.operator, self.attrs = content["name"], content["op"], content.get("attrs", {})
        self.inputs = [Entry(one[0], one[1]) for one in content["inputs"]]

    @property
    def is_variable(self) -> bool:
        return bool(self.operator == "null")

    @property
    def arguments(self) -> Dict[str, str]:
        """Those of its attributes that MXNet's operator reads: it ignores names of two underscores or more."""
        return {name: text for name, text in self.attrs.items() if not name.startswith("__")}

    @property
    def bodies(self) -> List["Graph"]:
        return [Graph(one) for one in self.content.get("subgraphs", ())]

    def operators(self) -> Iterator["Node"]:
        """The operator itself, and those inside it."""
        if not self.is_variable:
            yield self
        for body in self.bodies:
            yield from body.operators()

    def update(self, **attributes: str) -> None:
        """Change attributes."""
        self.content["attrs"] = self.attrs = {**self.attrs, **attributes}


class Graph:
    """A graph as MXNet describes it.

    Args:
        content: Its JSON.
        numpy: Whether it is a graph of `mx.np`.

    Attributes:
        nodes: All nodes, each after those that it reads.
        heads: Its outputs.
        content, numpy: The arguments.
    """

    def __init__(self, content: Dict[str, Any], numpy: bool = False) -> None:
        self.content, self.numpy = content, numpy
        self.nodes = [Node(number, one) for number, one in enumerate(content["nodes"])]
        self.heads = [Entry(one[0], one[1]) for one in content["heads"]]

    @classmethod
    def of(cls, symbols: Any, *, internals: bool = False, casts: bool = False) -> "Graph":
        """Read the graph of a symbol, or of several ones of one kind.

        Args:
            symbols: A Symbol, or a list of them, whose outputs become the graph's.
            internals: Whether the outputs of all nodes become its outputs, in MXNet's order.
            casts: Whether AMP's casts stay, which MXNet leaves out of graphs that it writes.
        """
        numpy = is_numpy(symbols)
        symbol = legacy(symbols)
        symbol = mx.sym.Group(list(symbol)) if isinstance(symbol, (list, tuple)) else symbol
        with switches(numpy):  # MXNet writes the switch into the graph
            text = (symbol.get_internals() if internals else symbol).tojson(remove_amp_cast=not casts)
        return cls(json.loads(text), numpy)

    @property
    def variables(self) -> Dict[str, Node]:
        """Variables by name; of several with one name, the last."""
        return {node.name: node for node in self.nodes if node.is_variable}

    def operators(self) -> Iterator[Node]:
        """Operators, those inside of others included."""
        for node in self.nodes:
            yield from node.operators()

    def sources(self, node: Node) -> List[Node]:
        """The nodes that a node reads."""
        return [self.nodes[entry.node] for entry in node.inputs]

    def symbol(self) -> Any:
        """The graph as a Symbol of its kind."""
        with switches(self.numpy):
            return of_kind(mx.sym.load_json(json.dumps(self.content)), self.numpy)


def symbol_of(nodes: Sequence[Mapping[str, Any]], heads: Collection[Sequence[int]], like: Graph) -> Any:
    """Make a Symbol of nodes.

    Args:
        nodes: JSON of the nodes, each after those that it reads. Nodes that no output needs are left out.
        heads: Outputs.
        like: A graph of the same kind.
    """
    variables = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    content = {"nodes": list(nodes), "arg_nodes": variables, "heads": [[*head] for head in heads]}
    return Graph({**content, "attrs": like.content.get("attrs", {})}, like.numpy).symbol()


def with_merged_variables(symbols: Sequence[Any], names: Collection[str]) -> List[Any]:
    """Return the same symbols, but in their graph each of some variables stands once.

    Each call of a SymbolBlock copies its graph, and with it the variables of its parameters: MXNet then counts one
    parameter as several arguments of one name.

    Args:
        symbols: Symbols of one kind.
        names: Names of variables.
    """
    counts = [len(legacy(one).list_outputs()) for one in symbols]
    stated = Counter(mx.sym.Group(legacy(list(symbols))).list_inputs()) if symbols else Counter[str]()
    if all(stated[name] < 2 for name in names):
        return list(symbols)
    graph = Graph.of(list(symbols), casts=True)
    first: Dict[str, int] = {}
    kept = [
        first.setdefault(node.name, node.index) if node.is_variable and node.name in names else node.index
        for node in graph.nodes
    ]
    inputs = [[[kept[one.node], one.output, 0] for one in node.inputs] for node in graph.nodes]
    nodes = [{**node.content, "inputs": own} for node, own in zip(graph.nodes, inputs)]
    outputs = iter(legacy(symbol_of(nodes, [(kept[one.node], one.output, 0) for one in graph.heads], graph)))
    parts = [[next(outputs) for _ in range(count)] for count in counts]
    merged: List[Any] = of_kind([one[0] if len(one) == 1 else mx.sym.Group(one) for one in parts], graph.numpy)
    return merged
