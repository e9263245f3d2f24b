"""Outputs and arithmetic of a net's layers, by its graph or by running it."""

from collections import Counter, defaultdict
from contextlib import redirect_stdout
from dataclasses import dataclass, field
import io
from math import prod
from typing import Any, DefaultDict, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple
from typing import Counter as Counts
import warnings

from mxkit.core.arrays import is_numpy, item_size, legacy, of_kind, switches
from mxkit.core.blocks import distinct_blocks, is_numpy_net, join_path, net_devices, parameters_by_path, place_of
from mxkit.core.forward_errors import explained, layer_fault
from mxkit.core.graph import Entry, Graph, Node
from mxkit.core.graphs import attributes_restored, run_as_code
from mxkit.core.replicas import is_initialized
from mxkit.core.tracing import CALL, BlockCall, Trace, infer_shapes, recorded_calls, regroup_inputs, trace
from mxkit.errors import ForwardError, NotInitializedError
from mxkit.nets.layer_table.costs import Shape, multiply_adds
from mxkit.storage.params_format import dtype_name
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _flatten


class Output(NamedTuple):
    """An array between layers; its dtype is '' if MXNet cannot infer it."""

    shape: Shape
    dtype: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * item_size(self.dtype or "float32")


@dataclass
class Measures:
    """Measurements of a forward pass.

    Attributes:
        outputs: Outputs of each call of each block, by the block's path.
        macs: As `multiply_adds` counts them, by the path of the innermost block.
        unknown: Operators that `multiply_adds` does not know, with their number.
        shapes: Shapes of parameters, by the parameters' ids.
        bytes: Size of the distinct arrays that blocks returned.
    """

    outputs: DefaultDict[str, List[List[Output]]] = field(default_factory=lambda: defaultdict(list))
    macs: Counts[str] = field(default_factory=Counter)
    unknown: Counts[str] = field(default_factory=Counter)
    shapes: Dict[int, Shape] = field(default_factory=dict)
    bytes: int = 0


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
            macs = multiply_adds(node, *graph.around(node))
            measures.unknown[node.operator] += macs is None
            measures.macs[traced.calls[graph.owner(node)].path] += macs or 0
    measures.unknown = +measures.unknown
    return measures


class _Graph:
    """Nodes of a traced graph, with shapes and dtypes of the arrays between them."""

    def __init__(self, traced: Trace, inputs: Sequence[Output]) -> None:
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

    def output(self, entry: Entry) -> Output:
        return Output(self._shapes[entry], self._dtypes.get(entry, ""))

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


def measure(net: Any, inputs: Sequence[Any], shapes: Sequence[Output]) -> Measures:
    """Measure a net; a net that has a graph computes nothing.

    Args:
        net: Any block.
        inputs: The inputs of its forward pass; an `Output` stands for an array of its shape. Arrays are converted to
            the kind of the net.
        shapes: Shapes and dtypes of the inputs, flat.

    Raises:
        ForwardError: Shapes do not fit a block.
        NotInitializedError: The net must run to be measured, and has parameters without values.

    Side effects:
        The net is left as it was. If it must run, MXNet's random generator moves on: by the numbers that the net draws
        in predict mode, and by those for parameters that are initialized in this run.
    """
    numpy = is_numpy_net(net)
    with switches(numpy):
        return _measure(net, of_kind(inputs, numpy), shapes)


def _measure(net: Any, inputs: Sequence[Any], shapes: Sequence[Output]) -> Measures:
    reason: Optional[Exception] = None
    if _takes_symbols(net):
        try:
            traced = trace(net, _each(inputs, lambda one: _zeros((1,)) if isinstance(one, Output) else one))
        except Exception as error:  # of any kind: the net's own code got a symbol
            reason = error
        else:
            try:
                return measure_graph(traced, shapes)
            except mx.MXNetError as error:
                reason = find_fault(traced, shapes) or error
            except ValueError as error:
                reason = error
    missing = next((path for path, one in parameters_by_path(net).items() if not is_initialized(one)), None)
    if missing is not None and isinstance(reason, ForwardError):
        raise reason
    if missing is not None:
        why = "it has plain Blocks" if reason is None else f"{type(reason).__name__}: {str(reason).splitlines()[:1]}"
        raise NotInitializedError(
            f"layers: the net has no graph ({why}), so it can only be measured by running it, and parameter "
            f"{missing!r} is not initialized. Call mxkit.initialize(net, 'xavier') first, or ask for the table "
            "without shapes: mxkit.layers(net)"
        ) from reason
    device = net_devices(net)[0]

    def array(one: Any) -> Any:
        if isinstance(one, Output):
            return _zeros(one.shape, device, one.dtype)
        return of_kind(legacy(one).as_in_context(device), is_numpy(one))

    return _measure_run(net, _each(inputs, array))


def _takes_symbols(net: Any) -> bool:
    """Return True if all code of a net is written for symbols; other code may accept a symbol and compute nonsense."""
    return all(
        isinstance(block, gluon.HybridBlock) or type(block).forward is gluon.nn.Sequential.forward
        for block in distinct_blocks(net).values()
    )


def _measure_run(net: Any, inputs: Sequence[Any]) -> Measures:
    """Measure a net by running it as Python code; arithmetic is that of the graphs of its outermost hybrid parts."""
    measures = Measures()
    counted = set(map(id, _arrays(inputs)))
    inside: Set[int] = set()
    for index, call in enumerate(_run(net, inputs, measures.shapes)):
        arrays = _arrays(call.outputs)
        measures.outputs[call.path].append(list(map(_output, arrays)))
        new = {id(array): array for array in arrays if id(array) not in counted}
        measures.bytes += sum(_output(array).bytes for array in new.values())
        counted.update(new)
        if call.parent in inside or _add_arithmetic(measures, call):
            inside.add(index)
    return measures


def _run(net: Any, inputs: Sequence[Any], shapes: Dict[int, Shape]) -> List[BlockCall]:
    """Run a net without graphs.

    The shapes of parameters are written to `shapes`, because a deferred parameter does not keep the shape of this run.
    """
    blocks = list(distinct_blocks(net).values())
    # deferred parameters lose the shapes and values that they get here
    restored = attributes_restored([*blocks, *parameters_by_path(net).values()])
    with restored, recorded_calls(net) as calls, run_as_code(blocks), autograd.pause(train_mode=False):
        with explained(net):
            net(*inputs)
        shapes.update((id(one), tuple(one.shape)) for one in parameters_by_path(net).values() if one.shape)
    return calls


def _add_arithmetic(measures: Measures, call: BlockCall) -> bool:
    """Add the arithmetic of a call and of the blocks inside it by its graph; return whether it has one."""
    if not _takes_symbols(call.block) or not call.outputs:
        return False
    arguments = regroup_inputs(call, call.inputs)
    try:
        inner = measure_graph(trace(call.block, arguments), list(map(_output, _arrays(arguments))))
    except Exception:  # of any kind: its own code got a symbol. The blocks inside it are then measured one by one
        return False
    measures.macs.update({join_path(call.path, below): number for below, number in inner.macs.items()})
    measures.unknown.update(inner.unknown)
    return True


def _output(array: Any) -> Output:
    return Output(tuple(array.shape), dtype_name(array.dtype))


def _each(inputs: Any, function: Any) -> Any:
    """Apply `function` to each array and `Output` of nested lists; None stays."""
    if isinstance(inputs, (list, tuple)) and not isinstance(inputs, Output):
        return [_each(one, function) for one in inputs]
    return None if inputs is None else function(inputs)


def _zeros(shape: Shape, device: Any = None, dtype: str = "float32") -> Any:
    return (mx.np if mx.util.is_np_array() else mx.nd).zeros(shape, ctx=device, dtype=dtype)


def _arrays(values: Any) -> List[Any]:
    return [one for one in _flatten(list(values), "input")[0] if one is not None]
