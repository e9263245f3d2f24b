"""A net's forward pass as a graph of MXNet's, with the blocks that made each part of it."""

from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple
import warnings

from mxkit.blocks import blocks_by_path, parameters_by_path
import mxnet as mx
from mxnet.gluon.block import _flatten, _regroup

# Operators carry the call that made them under this name; MXNet leaves names with two underscores alone.
CALL = "__mxkit_call__"


class Call(NamedTuple):
    """One call of a block.

    Attributes:
        path: Of the block; of one that stands under several paths, the first.
        number: Which of the block's calls it is, from 0.
        block: The block.
        inputs, outputs: Its arrays or symbols, flat, without None.
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
        calls: Of every block that has a path, in the order in which they ended; the net's own is the last.
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
    `Trace.calls`, as its attribute `CALL`.

    Args:
        net: A HybridBlock. Initialized or not, hybridized or not.
        inputs: What its forward pass takes: arrays, None, lists of them. Only their places and kinds are read.

    Raises:
        Exception: What the forward pass raises when it is given symbols: the net cannot be hybridized.

    Side effects:
        None that stays: hooks are suspended, variables of parameters are replaced, and put back.
    """
    flat, structure = _flatten(list(inputs), "input")
    places = [None if one is None else _variable(f"data{number}", one) for number, one in enumerate(flat)]
    parameters, variables = _variables(net)
    own = [(parameter, parameter._var) for parameter in parameters.values()]
    try:
        for parameter in parameters.values():
            parameter._var = variables[id(parameter)]
        with recorded_calls(net) as calls:
            outputs = net(*_regroup(places, structure)[0])
    finally:
        for parameter, variable in own:
            parameter._var = variable
    symbols = [one for one in _flatten(outputs, "output")[0] if one is not None]
    # a SymbolBlock brings a graph of its own, whose variables have Gluon's names
    by_name = {parameter.name: parameter for parameter in parameters.values()}
    parameters.update({name: by_name[name] for name in mx.sym.Group(symbols).list_inputs() if name in by_name})
    return Trace([one for one in places if one is not None], symbols, calls, parameters)


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
    hooks = []
    seen = set()
    for path, block in blocks_by_path(net):
        if id(block) in seen:
            continue
        seen.add(id(block))
        hooks.append((block, block._forward_pre_hooks, block._forward_hooks))
        block._forward_pre_hooks = OrderedDict([(0, recorder.begin(path))])
        block._forward_hooks = OrderedDict([(0, recorder.end)])
    try:
        yield recorder.calls
    finally:
        recorder.unwind(0)
        for block, before, after in hooks:
            block._forward_pre_hooks, block._forward_hooks = before, after


class _Recorder:
    """What the hooks of one forward pass write down."""

    def __init__(self, ended: Callable[[Call], None]) -> None:
        self.calls: List[Call] = []
        self._ended = ended
        self._numbers: Dict[str, int] = {}
        self._open: List[Tuple[int, Any, mx.AttrScope]] = []

    def begin(self, path: str) -> Callable[[Any, Any], None]:
        """A hook for before a call of the block at `path`."""

        def hook(block: Any, arguments: Any) -> None:
            number = self._numbers.get(path, 0)
            self._numbers[path] = number + 1
            scope = mx.AttrScope(**{CALL: str(len(self.calls))})
            scope.__enter__()
            self._open.append((len(self.calls), block, scope))
            self.calls.append(Call(path, number, block, _arrays(arguments)[0], [], None))

        return hook

    def end(self, block: Any, arguments: Any, outputs: Any) -> None:
        """The hook for after a call."""
        # calls between were ended by an exception that the net itself caught
        depth = max(depth for depth, (_, open_block, _) in enumerate(self._open) if open_block is block)
        index = self._open[depth][0]
        self.unwind(depth)
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


def _variables(net: Any) -> Tuple[Dict[str, Any], Dict[int, "mx.sym.Symbol"]]:
    """Parameters by their first path, those without one by Gluon's name, and a variable for each."""
    named: Dict[str, Any] = {}
    seen = set()
    everything = list(parameters_by_path(net).items())
    everything += [(p.name, p) for _, block in blocks_by_path(net) for p in block.params.values()]
    for name, parameter in everything:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            named[name] = parameter
    return named, {id(parameter): _variable(name) for name, parameter in named.items()}
