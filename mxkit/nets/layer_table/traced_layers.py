"""Shapes, dtypes, strides and arithmetic of layers, read from a traced graph; nothing is computed."""

from collections import Counter, defaultdict
from contextlib import redirect_stdout
from dataclasses import dataclass, field
import io
from math import prod
from typing import Any, DefaultDict, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple
from typing import Counter as Counts
import warnings

from mxkit.core.arrays import is_numpy, item_size, of_kind
from mxkit.core.blocks import join_path, place_of
from mxkit.core.forward_errors import layer_fault
from mxkit.core.graph import Entry, Graph, Node
from mxkit.core.tracing import CALL, Trace, infer_shapes
from mxkit.errors import ForwardError
from mxkit.nets.layer_table.costs import Shape, Stride, operator_cost, operator_stride
from mxkit.storage.params_format import dtype_name
import mxnet as mx


class Output(NamedTuple):
    """An array between layers; its dtype is '' if MXNet cannot infer it."""

    shape: Shape
    dtype: str
    stride: Optional[Stride]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * item_size(self.dtype or "float32")


@dataclass
class Measures:
    """Measurements of a forward pass.

    Attributes:
        outputs: Outputs of each call of each block, by the block's path.
        macs: Multiply-adds as `operator_cost` counts them, by the path of the innermost block.
        others: Other operations, likewise.
        unknown: Operators that `operator_cost` does not know, with their number.
        shapes: Shapes of parameters, by the parameters' ids.
        bytes: Size of the distinct arrays that blocks returned.
    """

    outputs: DefaultDict[str, List[List[Output]]] = field(default_factory=lambda: defaultdict(list))
    macs: Counts[str] = field(default_factory=Counter)
    others: Counts[str] = field(default_factory=Counter)
    unknown: Counts[str] = field(default_factory=Counter)
    shapes: Dict[int, Shape] = field(default_factory=dict)
    bytes: int = 0

    def add(self, inner: "Measures", path: str) -> None:
        """Add the measurements of the block at `path`, which was measured as a net of its own."""
        for below, outputs in inner.outputs.items():
            self.outputs[join_path(path, below)].extend(outputs)
        for sums, added in ((self.macs, inner.macs), (self.others, inner.others)):
            sums.update({join_path(path, below): number for below, number in added.items()})
        self.unknown.update(inner.unknown)
        self.bytes += inner.bytes


def measure_graph(traced: Trace, inputs: Sequence[Output]) -> Measures:
    """Measure every call of a trace.

    Args:
        traced: The result of `trace`.
        inputs: Shapes and dtypes of `traced.inputs`.

    Raises:
        mx.MXNetError: Shapes do not fit each other; `find_fault` finds the layer.
        ValueError: The shapes of the inputs do not determine all shapes.
    """
    graph = _Graph(traced, inputs)
    measures = Measures(shapes={id(traced.parameters[name]): shape for name, shape in graph.parameters.items()})
    returned: Set[Entry] = set()
    for call, entries in zip(traced.calls, graph.calls):
        measures.outputs[call.path].append([graph.output(entry) for entry in entries])
        returned.update(entry for entry in entries if not graph.nodes[entry.node].is_variable)
    measures.bytes = sum(graph.output(entry).bytes for entry in returned)
    for node in graph.nodes:
        if not node.is_variable:
            path = traced.calls[graph.owner(node)].path
            before, after = graph.around(node)
            cost = operator_cost(node, before, after)
            if cost is None:
                measures.unknown[node.operator] += 1
            else:
                measures.macs[path] += cost.macs
                measures.others[path] += cost.others
    return measures


class _Graph:
    """Nodes of a traced graph, with shapes, dtypes and strides of the arrays between them."""

    def __init__(self, traced: Trace, inputs: Sequence[Output]) -> None:
        self._inputs = {variable.name: one for variable, one in zip(traced.inputs, inputs)}
        results = [[one for one in call.outputs if one is not None] for call in traced.calls]
        flat = [one for outputs in results for one in outputs]
        internals = mx.sym.Group([*traced.outputs, *flat]).get_internals()
        shapes, self.parameters = _inferred(traced, [internals, *flat], [one.shape for one in inputs])
        # its heads are the outputs of all nodes, then those of the calls
        graph = mx.sym.Group([internals, *flat])
        view = Graph.of(graph)
        self.nodes, heads = view.nodes, view.heads
        self._shapes = dict(zip(heads, shapes))
        self._dtypes = dict(zip(heads, _dtypes(graph, traced, inputs)))
        rest = iter(heads[len(internals.list_outputs()) :])
        self.calls = [[next(rest) for one in outputs for _ in one.list_outputs()] for outputs in results]
        self._owners = self._untagged()
        self._strides: Dict[int, Optional[Stride]] = {}
        for node in self.nodes:
            self._strides[node.index] = self._stride(node)

    def output(self, entry: Entry) -> Output:
        return Output(self._shapes[entry], self._dtypes.get(entry, ""), self._strides[entry.node])

    def around(self, node: Node) -> Tuple[List[Shape], List[Shape]]:
        """Return the shapes of a node's inputs and of its outputs."""
        outputs: List[Shape] = []
        while (node.index, len(outputs)) in self._shapes:
            outputs.append(self._shapes[Entry(node.index, len(outputs))])
        return [self._shapes[source] for source in node.inputs], outputs

    def owner(self, node: Node) -> int:
        """Return the index of the innermost call that made a node."""
        return self._owners.get(node.index, int(node.attrs.get(CALL, 0)))

    def _untagged(self) -> Dict[int, int]:
        """Return the calls of nodes that a SymbolBlock's graph had before the trace."""
        owners: Dict[int, int] = {}
        for index in reversed(range(len(self.calls))):
            below = [entry.node for entry in self.calls[index]]
            while below:
                node = self.nodes[below.pop()]
                if not node.is_variable and CALL not in node.attrs and node.index not in owners:
                    owners[node.index] = index
                    below.extend(source.node for source in node.inputs)
        return owners

    def _stride(self, node: Node) -> Optional[Stride]:
        if node.is_variable:
            return self._inputs[node.name].stride if node.name in self._inputs else None
        strides = [self._strides[source.node] for source in node.inputs]
        return operator_stride(node, *self.around(node), strides)


def _inferred(traced: Trace, symbols: Sequence[Any], shapes: Sequence[Shape]) -> Tuple[List[Shape], Dict[str, Shape]]:
    # MXNet prints the arguments if shapes do not fit
    with redirect_stdout(io.StringIO()):
        return infer_shapes(traced, symbols, shapes)


def _known(traced: Trace, symbol: Any, shapes: Sequence[Shape]) -> List[Shape]:
    """Return the shapes of a symbol; none if they cannot be inferred, like those of states before their first use."""
    try:
        return _inferred(traced, [symbol], shapes)[0]
    except ValueError:
        return []


def _dtypes(graph: Any, traced: Trace, inputs: Sequence[Output]) -> List[str]:
    """Return the dtypes of a graph's outputs; none if MXNet cannot infer them."""
    known = {variable.name: one.dtype for variable, one in zip(traced.inputs, inputs)}
    known.update({name: dtype_name(one.dtype) for name, one in traced.parameters.items() if one.dtype is not None})
    names = set(graph.list_inputs())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dtypes = graph.infer_type(**{name: dtype for name, dtype in known.items() if dtype and name in names})[1]
    except mx.MXNetError:
        return []
    return [dtype_name(dtype) for dtype in dtypes or []]


def find_fault(traced: Trace, inputs: Sequence[Output]) -> Optional[ForwardError]:
    """Return the error for the innermost call whose inputs have shapes and whose outputs have none (T38)."""
    shapes = [one.shape for one in inputs]
    for call in reversed(traced.calls):
        try:
            got = [shape for one in call.inputs if one is not None for shape in _known(traced, one, shapes)]
        except mx.MXNetError:
            continue
        try:
            _known(traced, mx.sym.Group([one for one in call.outputs if one is not None]), shapes)
        except mx.MXNetError as cause:
            empty = tuple(mx.nd.empty(shape) for shape in got)
            reason = layer_fault(call.block, of_kind(empty, is_numpy(traced.inputs)))
            if not reason:
                text = str(cause).splitlines()[0].rpartition("Check failed: ")[2]
                reason = f" got {', '.join(map(str, got)) or 'nothing'}: {text}"
            fault = ForwardError(f"{place_of(call.path, call.block)}{reason}", call.path, call.block)
            fault.__cause__ = cause
            return fault
    return None
