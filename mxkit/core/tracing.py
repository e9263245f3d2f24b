"""Traces the forward pass of a net as a graph, with the block that made each operator."""

from contextlib import contextmanager
import copy
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import is_numpy, legacy, switches
from mxkit.core.blocks import blocks_by_path, parameters_by_path
from mxkit.core.graph import Graph, with_merged_variables
from mxkit.core.graphs import hooks_replaced, nesting, traced_graph
from mxkit.core.replicas import shape_of
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import SymbolBlock
from mxnet.gluon.block import _flatten, _gather_type_ctx_info, _regroup

# Attribute of operators with the number of the call that made them; MXNet ignores names with two underscores.
CALL = "__mxkit_call__"


class BlockCall(NamedTuple):
    """One call of a block.

    Attributes:
        path: First path of the block.
        number: Number of the call among the block's calls, from 0.
        block: The block.
        inputs, outputs: Arrays or symbols, flattened, with None; empty if another type is among them.
        structure: Nesting of the outputs, for `regroup(call, arrays)`.
        nesting: Nesting of the inputs.
        parent: Index of the call inside which it was called; -1 for the net's own.
    """

    path: str
    number: int
    block: Any
    inputs: List[Any]
    outputs: List[Any]
    structure: Any
    nesting: Any = None
    parent: int = -1


class Trace(NamedTuple):
    """A forward pass as a graph.

    Attributes:
        inputs: Variables instead of the arrays, without None.
        outputs: Outputs of the net, flattened.
        calls: Calls of every block with a path, in the order of their start; the net's own call is the first.
        parameters: Parameters by the names of their variables. The names are paths, because prefixes may repeat and
            another net may use the same ones (T37).
    """

    inputs: List["mx.sym.Symbol"]
    outputs: List["mx.sym.Symbol"]
    calls: List[BlockCall]
    parameters: Dict[str, Any]


def trace(net: Any, inputs: Sequence[Any]) -> Trace:
    """Run `net` once with variables instead of arrays; nothing is computed.

    The attribute `CALL` of each operator is the number of the innermost call that made it, an index into
    `Trace.calls`. Operators in the graph of a SymbolBlock do not have this attribute.

    Args:
        net: A HybridBlock, initialized or not, hybridized or not.
        inputs: Arguments of the forward pass: arrays, None, and lists of them. Only their nesting and types are used.
            Arrays of `mx.np` give a graph of `mx.np`, whatever the switches of the thread are.

    Raises:
        ValueError: The net uses parameters of a block without a path.
        Exception: An error of the forward pass with symbols: the net cannot be hybridized.

    Side effects:
        None after the call: hooks and variables of parameters are replaced and restored, and symbols that the forward
        pass stores on blocks are removed.
    """
    flat, structure = _flatten(list(inputs), "input")
    arguments = [None if value is None else _variable(f"data{number}", value) for number, value in enumerate(flat)]
    variables = [variable for variable in arguments if variable is not None]
    parameters = _parameters(net, [variable.name for variable in variables])
    kept = _no_symbols_left(net)
    with switches(is_numpy(variables)), _variables(net, parameters), kept, recorded_calls(net) as calls:
        outputs = net(*_regroup(arguments, structure))
    symbols = [symbol for symbol in _flatten(outputs, "output")[0] if symbol is not None]
    traced = _with_one_variable_each(net, Trace(variables, symbols, calls, parameters))
    unknown = unknown_variables(traced, symbols)
    if unknown:
        raise ValueError(f"it uses {', '.join(unknown[:3])} of blocks that have no path")
    return traced


def _with_one_variable_each(net: Any, traced: Trace) -> Trace:
    """Merge the variables that several calls of a SymbolBlock made for one parameter."""
    if not any(isinstance(block, SymbolBlock) for _, block in blocks_by_path(net)):
        return traced
    parts = [traced.inputs, traced.outputs, *(part for call in traced.calls for part in (call.inputs, call.outputs))]
    symbols = [symbol for part in parts for symbol in part if symbol is not None]
    merged = iter(with_merged_variables(symbols, traced.parameters))
    inputs, outputs, *rest = ([None if one is None else next(merged) for one in part] for part in parts)
    pairs = zip(traced.calls, rest[::2], rest[1::2])
    return Trace(inputs, outputs, [call._replace(inputs=a, outputs=b) for call, a, b in pairs], traced.parameters)


def unknown_variables(traced: Trace, symbols: Sequence["mx.sym.Symbol"]) -> List[str]:
    """Names of variables of a graph that are not part of the trace, as in the body of `F.contrib.foreach`."""
    known = {variable.name for variable in traced.inputs}.union(traced.parameters)
    return [name for name in mx.sym.Group(list(symbols)).list_inputs() if name not in known]


def infer_shapes(
    traced: Trace, symbols: Sequence["mx.sym.Symbol"], shapes: Sequence[Tuple[int, ...]]
) -> Tuple[List[Tuple[int, ...]], Dict[str, Tuple[int, ...]]]:
    """Infer the shapes of a graph's outputs and parameters from the inputs' shapes; nothing is computed.

    Args:
        traced: Result of `trace`.
        symbols: Symbols of its graph.
        shapes: Shapes of `traced.inputs`, in their order.

    Returns:
        Shapes of the symbols' outputs, flattened, and of parameters by their names in `traced.parameters`.

    Raises:
        mx.MXNetError: The shapes do not fit each other.
        ValueError: The shapes of the inputs do not determine all shapes.
    """
    graph = mx.sym.Group(list(symbols))
    names = set(graph.list_inputs())
    known = {variable.name: tuple(shape) for variable, shape in zip(traced.inputs, shapes)}
    # an unknown size is -1 for mx.np and 0 for mx.nd
    with switches(is_numpy(traced.inputs)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # layers with one tensor for all weights, like LSTM, need the sizes that are known before the first batch
        shapes_of = {name: shape_of(one) for name, one in traced.parameters.items()}
        known.update({name: shape for name, shape in shapes_of.items() if shape})
        arguments, outputs, states = graph.infer_shape(**{name: known[name] for name in known if name in names})
    if outputs is None:
        reason = caught[0].message if caught else ""
        raise ValueError(f"the shapes of the inputs do not tell all shapes of the net: {reason}")
    inferred = dict(zip(graph.list_arguments(), arguments))
    inferred.update(zip(graph.list_auxiliary_states(), states))
    return list(outputs), {name: inferred[name] for name in traced.parameters if name in inferred}


def graph_in_mode(block: Any, *, training: bool) -> Any:
    """The `structure` of the graph that the code of a traced block gives in a mode."""
    inputs, kinds = iter(traced_graph(block)[0]), nesting(block)[0]

    def argument(kind: Any) -> Any:
        return list(map(argument, kind)) if isinstance(kind, list) else None if kind == -1 else next(inputs)

    arguments = list(map(argument, kinds))
    with autograd.record() if training else autograd.pause():
        return structure(mx.sym.Group(legacy(trace(block, arguments).outputs)))


def structure(graph: Any) -> Any:
    """Operators of a graph with their arguments and inputs, without names: equal for equal computations."""

    def of(view: Graph) -> Any:
        return [(one.operator, one.arguments, one.inputs, list(map(of, one.bodies))) for one in view.nodes], view.heads

    return of(Graph.of(graph))


def regroup(call: BlockCall, arrays: Sequence[Any]) -> Any:
    """Nest `arrays` like the outputs of the block of `call`."""
    return _regroup(list(arrays), call.structure)


def regroup_inputs(call: BlockCall, arrays: Sequence[Any]) -> Any:
    """Nest `arrays` like the inputs of the block of `call`."""
    return _regroup(list(arrays), call.nesting)


@contextmanager
def recorded_calls(net: Any, ended: Callable[[BlockCall], None] = lambda call: None) -> Iterator[List[BlockCall]]:
    """Record the calls of every block of `net` inside `with`, in the order of their start.

    Calls inside a hybridized block run in its graph and are not recorded. A call that an exception ended has no
    outputs. The net's own hooks are suspended, as `hooks_replaced` explains.

    Args:
        net: Any block.
        ended: Called after each call; its exceptions leave the forward pass.
    """
    recorder = _Recorder(ended)
    with hooks_replaced(net, lambda path, block: (recorder.begin(path), recorder.end)):
        try:
            yield recorder.calls
        finally:
            recorder.unwind(0)


class _Recorder:
    """The hooks of one forward pass, and the calls that they record."""

    def __init__(self, ended: Callable[[BlockCall], None]) -> None:
        self.calls: List[BlockCall] = []
        self._ended = ended
        self._symbolic: Optional[bool] = None  # the net's own call sets it
        self._numbers: Dict[str, int] = {}
        self._open: List[Tuple[int, Any, mx.AttrScope]] = []

    def begin(self, path: str) -> Callable[[Any, Any], None]:
        """Return the pre-hook of the block at `path`."""

        def hook(block: Any, arguments: Any) -> None:
            has_symbol = _gather_type_ctx_info(arguments)[0]
            self._symbolic = has_symbol if self._symbolic is None else self._symbolic
            if has_symbol and not self._symbolic:
                return  # Gluon traces a hybridized block or infers shapes; this is not a call with arrays (T35)
            number = self._numbers.get(path, 0)
            self._numbers[path] = number + 1
            scope = mx.AttrScope(**({CALL: str(len(self.calls))} if has_symbol else {}))
            scope.__enter__()
            parent = self._open[-1][0] if self._open else -1
            self._open.append((len(self.calls), block, scope))
            arrays, nesting = _arrays(arguments)
            self.calls.append(BlockCall(path, number, block, arrays, [], None, nesting, parent))

        return hook

    def end(self, block: Any, arguments: Any, outputs: Any) -> None:
        """Complete the record of a call; this is the hook after a call."""
        depths = [depth for depth, (_, open_block, _) in enumerate(self._open) if open_block is block]
        if not depths:
            return
        index = self._open[depths[-1]][0]
        self.unwind(depths[-1])  # exceptions that the net itself caught ended the calls in between
        arrays, structure = _arrays(outputs)
        self.calls[index] = self.calls[index]._replace(outputs=arrays, structure=structure)
        self._ended(self.calls[index])

    def unwind(self, depth: int) -> None:
        """Close the innermost calls until `depth` calls are open."""
        while len(self._open) > depth:
            self._open.pop()[2].__exit__(None, None, None)


def _arrays(values: Any) -> Tuple[List[Any], Any]:
    """Flatten a nested list of arrays or symbols, and return its structure; empty if another type is among them."""
    try:
        arrays, structure = _flatten(values, "output")
    except ValueError:
        return [], None
    return arrays, structure


def _variable(name: str, like: Any = None) -> "mx.sym.Symbol":
    variable = mx.sym.var(name)
    is_np = isinstance(like, mx.np.ndarray) if like is not None else mx.util.is_np_array()
    return variable.as_np_ndarray() if is_np else variable


def _parameters(net: Any, taken: Collection[str]) -> Dict[str, Any]:
    """Name parameters by their first path, or by Gluon's name if they have no path; never by a name in `taken`."""
    named: Dict[str, Any] = {}
    seen = set()
    candidates = list(parameters_by_path(net).items())
    candidates += [(own.name, own) for _, block in blocks_by_path(net) for own in block.params.values()]
    for name, parameter in candidates:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            while name in named or name in taken:
                name += "_"
            named[name] = parameter
    return named


@contextmanager
def _variables(net: Any, parameters: Mapping[str, Any]) -> Iterator[None]:
    """Give parameters variables with these names inside `with`, also in the graphs of SymbolBlocks."""
    variables = {id(parameter): _variable(name) for name, parameter in parameters.items()}
    own = [(parameter, parameter._var) for parameter in parameters.values()]
    graphs = {block: traced_graph(block) for _, block in blocks_by_path(net) if isinstance(block, SymbolBlock)}
    try:
        for parameter in parameters.values():
            parameter._var = variables[id(parameter)]
        for block, (inputs, graph) in graphs.items():
            composed = copy.copy(graph)
            composed._compose(**{parameter.name: parameter._var for parameter in block.params.values()})
            block._cached_graph = inputs, composed
        yield
    finally:
        for parameter, variable in own:
            parameter._var = variable
        for block, cached in graphs.items():
            block._cached_graph = cached


@contextmanager
def _no_symbols_left(net: Any) -> Iterator[None]:
    """Restore attributes in which blocks store symbols inside `with`, like masks of dropout."""
    attributes = {block: dict(vars(block)) for _, block in blocks_by_path(net)}
    try:
        yield
    finally:
        for block, before in attributes.items():
            for name, value in list(vars(block).items()):
                if value is not before.get(name) and _gather_type_ctx_info(value)[0]:
                    vars(block).pop(name)
                    vars(block).update({name: before[name]} if name in before else {})
