"""A net's forward pass as a graph of MXNet's, with the blocks that made each part of it."""

from contextlib import contextmanager
import copy
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple
import warnings

from mxkit.core.blocks import blocks_by_path, parameters_by_path
from mxkit.core.graphs import hooks_replaced, traced_graph
import mxnet as mx
from mxnet.gluon import SymbolBlock
from mxnet.gluon.block import _flatten, _gather_type_ctx_info, _regroup

# Operators carry the call that made them under this name; MXNet leaves names with two underscores alone.
CALL = "__mxkit_call__"


class Call(NamedTuple):
    """One call of a block.

    Attributes:
        path: Of the block; of one that stands under several paths, the first.
        number: Which of the block's calls it is, from 0.
        block: The block.
        inputs, outputs: Its arrays or symbols, flat, None among them; empty where there is something else.
        structure: Regroups `outputs` as the block returned them: `regroup(call, arrays)`.
    """

    path: str
    number: int
    block: Any
    inputs: List[Any]
    outputs: List[Any]
    structure: Any


class Trace(NamedTuple):
    """A forward pass as a graph.

    Attributes:
        inputs: Variables in place of the arrays, None left out.
        outputs: Of the net, flat.
        calls: Of every block that has a path, in the order in which they began; the net's own is the first.
        parameters: Parameters by the names of their variables. Those are paths, so that neither prefixes
            nor a second net with the same ones can mix them up (T37).
    """

    inputs: List["mx.sym.Symbol"]
    outputs: List["mx.sym.Symbol"]
    calls: List[Call]
    parameters: Dict[str, Any]


def trace(net: Any, inputs: Sequence[Any]) -> Trace:
    """Run `net` once with variables in place of arrays; nothing is computed.

    Each operator of the graph carries the number of the innermost call that made it, an index into
    `Trace.calls`, as its attribute `CALL`; those in the graph of a SymbolBlock were made before, and carry none.

    Args:
        net: A HybridBlock. Initialized or not, hybridized or not.
        inputs: What its forward pass takes: arrays, None, lists of them. Only their places and kinds are read.

    Raises:
        ValueError: It uses parameters of a block that has no path.
        Exception: What the forward pass raises when it is given symbols: the net cannot be hybridized.

    Side effects:
        None that stays: hooks are suspended, variables of parameters are replaced, and put back; symbols that the
        forward pass leaves on blocks are taken away.
    """
    flat, structure = _flatten(list(inputs), "input")
    places = [None if one is None else _variable(f"data{number}", one) for number, one in enumerate(flat)]
    given = [one for one in places if one is not None]
    parameters = _parameters(net, [one.name for one in given])
    with _variables(net, parameters), _no_symbols_left(net), recorded_calls(net) as calls:
        outputs = net(*_regroup(places, structure))
    symbols = [one for one in _flatten(outputs, "output")[0] if one is not None]
    traced = Trace(given, symbols, calls, parameters)
    unknown = unknown_variables(traced, symbols)
    if unknown:
        raise ValueError(f"it uses {', '.join(unknown[:3])} of blocks that have no path")
    return traced


def unknown_variables(traced: Trace, symbols: Sequence["mx.sym.Symbol"]) -> List[str]:
    """Names of what a graph needs and the trace does not know, as in the body of `F.contrib.foreach`."""
    known = {variable.name for variable in traced.inputs}.union(traced.parameters)
    return [name for name in mx.sym.Group(list(symbols)).list_inputs() if name not in known]


def infer_shapes(
    traced: Trace, symbols: Sequence["mx.sym.Symbol"], shapes: Sequence[Tuple[int, ...]]
) -> Tuple[List[Tuple[int, ...]], Dict[str, Tuple[int, ...]]]:
    """Shapes of a graph's outputs and of the parameters it uses, from those of the inputs; nothing is computed.

    Args:
        traced: What `trace` returned.
        symbols: Of its graph.
        shapes: Of `traced.inputs`, in that order.

    Returns:
        Shapes of the symbols' outputs, flat, and of parameters by their names in `traced.parameters`.

    Raises:
        mx.MXNetError: Shapes do not fit each other.
        ValueError: They do not tell all shapes.
    """
    graph = mx.sym.Group(list(symbols))
    names = set(graph.list_inputs())
    known = {variable.name: tuple(shape) for variable, shape in zip(traced.inputs, shapes)}
    # layers of several tensors in one, like LSTM, need the sizes that are known before the first batch
    known.update({name: tuple(parameter.shape) for name, parameter in traced.parameters.items() if parameter.shape})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        arguments, outputs, states = graph.infer_shape(**{name: known[name] for name in known if name in names})
    if outputs is None:
        raise ValueError(
            f"the shapes of the inputs do not tell all shapes of the net: {told[0].message if told else ''}"
        )
    inferred = dict(zip(graph.list_arguments(), arguments))
    inferred.update(zip(graph.list_auxiliary_states(), states))
    return list(outputs), {name: inferred[name] for name in traced.parameters if name in inferred}


def regroup(call: Call, arrays: Sequence[Any]) -> Any:
    """Give `arrays` the structure in which the block of `call` returns its outputs."""
    return _regroup(list(arrays), call.structure)


@contextmanager
def recorded_calls(net: Any, ended: Callable[[Call], None] = lambda call: None) -> Iterator[List[Call]]:
    """Record the calls of every block of `net` inside `with`, in the order in which they begin.

    Calls inside a hybridized block run in its graph and are not seen. One that an exception ended has no
    outputs. Hooks of the net's own are suspended: they may not know what to do with symbols, and would tell
    their owner of a forward pass that was none of the training's.

    Args:
        net: Any block.
        ended: Is called after each call; what it raises comes out of the forward pass.
    """
    recorder = _Recorder(ended)
    with hooks_replaced(net, lambda path, block: (recorder.begin(path), recorder.end)):
        try:
            yield recorder.calls
        finally:
            recorder.unwind(0)


class _Recorder:
    """What the hooks of one forward pass write down."""

    def __init__(self, ended: Callable[[Call], None]) -> None:
        self.calls: List[Call] = []
        self._ended = ended
        self._symbolic: Optional[bool] = None  # until the net's own call
        self._numbers: Dict[str, int] = {}
        self._open: List[Tuple[int, Any, mx.AttrScope]] = []

    def begin(self, path: str) -> Callable[[Any, Any], None]:
        """A hook for before a call of the block at `path`."""

        def hook(block: Any, arguments: Any) -> None:
            has_symbol = _gather_type_ctx_info(arguments)[0]
            self._symbolic = has_symbol if self._symbolic is None else self._symbolic
            if has_symbol and not self._symbolic:
                return  # Gluon traces a hybridized block, or infers shapes: no call with arrays (T35)
            number = self._numbers.get(path, 0)
            self._numbers[path] = number + 1
            scope = mx.AttrScope(**({CALL: str(len(self.calls))} if has_symbol else {}))
            scope.__enter__()
            self._open.append((len(self.calls), block, scope))
            self.calls.append(Call(path, number, block, _arrays(arguments)[0], [], None))

        return hook

    def end(self, block: Any, arguments: Any, outputs: Any) -> None:
        """The hook for after a call."""
        depths = [depth for depth, (_, open_block, _) in enumerate(self._open) if open_block is block]
        if not depths:
            return
        index = self._open[depths[-1]][0]
        self.unwind(depths[-1])  # calls between were ended by an exception that the net itself caught
        arrays, structure = _arrays(outputs)
        self.calls[index] = self.calls[index]._replace(outputs=arrays, structure=structure)
        self._ended(self.calls[index])

    def unwind(self, depth: int) -> None:
        """Close calls until `depth` are open."""
        while len(self._open) > depth:
            self._open.pop()[2].__exit__(None, None, None)


def _arrays(values: Any) -> Tuple[List[Any], Any]:
    """Arrays or symbols of a nested list, and its structure; nothing where there is something else among them."""
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
    """Parameters by their first path, those without one by Gluon's name; under names that differ from `taken`."""
    named: Dict[str, Any] = {}
    seen = set()
    everything = list(parameters_by_path(net).items())
    everything += [(p.name, p) for _, block in blocks_by_path(net) for p in block.params.values()]
    for name, parameter in everything:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            while name in named or name in taken:
                name += "_"
            named[name] = parameter
    return named


@contextmanager
def _variables(net: Any, parameters: Mapping[str, Any]) -> Iterator[None]:
    """Inside `with`, parameters have variables of these names, also in the graphs that SymbolBlocks bring."""
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
    """Give blocks back what they had in place of symbols, which they keep inside `with`, like masks of dropout."""
    before = {block: dict(vars(block)) for _, block in blocks_by_path(net)}
    try:
        yield
    finally:
        for block, had in before.items():
            for name, value in list(vars(block).items()):
                if value is not had.get(name) and _gather_type_ctx_info(value)[0]:
                    vars(block).pop(name)
                    vars(block).update({name: had[name]} if name in had else {})
