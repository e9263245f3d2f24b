"""Outputs of layers inside a net, by their paths."""

from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxkit.core.arrays import of_kind, switches
from mxkit.core.blocks import (
    blocks_by_path,
    child_blocks,
    distinct,
    first_paths,
    is_numpy_net,
    net_devices,
    place_of,
    unknown_path,
)
from mxkit.core.forward_errors import explained
from mxkit.core.graph import Entry, Graph
from mxkit.core.graphs import cached_operator, opened
from mxkit.core.replicas import finish_initialization
from mxkit.core.tracing import BlockCall, Trace, infer_shapes, recorded_calls, regroup, trace, unknown_variables
from mxkit.errors import DeviceError, UnknownNameError, nearest
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _flatten

Names = Union[str, Mapping[str, str], Sequence[Union[str, Mapping[str, str]]]]


class Features:
    """Computes the outputs of layers inside a net, and no layer after the last of them.

    A HybridBlock is traced once for each mode (training or not). The part of its graph that the layers need then runs
    as Gluon runs a hybridized net. The graph reads the net's own parameters: the next call uses what training changed,
    and gradients reach the parameters under `autograd.record()`. A plain Block, and a HybridBlock whose forward pass
    does not take symbols, runs as Python code. Its first run with each input shape records which calls are needed;
    later runs stop after the last of them. Names, prefixes and hybridization of the net do not matter (T35, T37). As
    with `hybridize`, the graph does not notice changed settings of layers, such as a dropout rate (T39): make a new
    Features object then.

    Args:
        net: Any block. It need not be initialized until the first call.
        names: One of these, or a list of them:
            - a path, as `mxkit.layers` shows it: "features.4.0.body.2". A negative number counts from the end:
              "features.-1". "" is the net itself;
            - a glob over paths, where `*` matches any text, dots too, and `?` one character: "features.*", "*.body.2",
              "features.[0-3]";
            - "path#1": the second call of a block that is called several times; the path alone means all calls;
            - `{"alias": path}`: a path whose result gets another name.

    Attributes:
        paths: Paths of the requested blocks, in the order of the results.

    Raises:
        UnknownNameError: No block has such a path; the text names the nearest path.
        ValueError: Two results would have the same name.

    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.Flatten(), mx.gluon.nn.Dense(2)); net.initialize()
    >>> outputs = Features(net, ["0", {"scores": "-1"}])(mx.nd.ones((1, 3, 8, 8)))
    >>> {name: array.shape for name, array in outputs.items()}
    {'0': (1, 4, 6, 6), 'scores': (1, 2)}
    """

    def __init__(self, net: Any, names: Names) -> None:
        self._net = net
        self._names = [names] if isinstance(names, (str, Mapping)) else list(names)
        self._requests = _requests(net, self._names)
        self._blocks = list(blocks_by_path(net))
        self._graphs: Dict[Tuple[Any, ...], Optional[_Graph]] = {}
        self._needed: Dict[Tuple[Any, ...], Set[Tuple[str, int]]] = {}
        self._reason = ""

    @property
    def paths(self) -> List[str]:
        return [request.path for request in self._requests]

    def __call__(self, *inputs: Any) -> Dict[str, Any]:
        """Compute the features of one batch.

        Args:
            inputs: The inputs of the net, on any of its devices. Arrays of the other kind (`mx.nd` or `mx.np`) are
                converted to the kind of the net without a copy.

        Returns:
            Name to array of the net's kind, in the order of the names; results of a glob come in the order of the net.
            A layer that returns several arrays gives a list of them. Results of a block that is called several times
            have names like "path#0".

        Raises:
            ValueError: A layer that was requested by its path is not called, or does not return arrays.
            DeviceError, NotInitializedError: The net is not on the device of `inputs`.
            ForwardError: A layer does not fit its input; the text names the layer.

        Side effects:
            The first call finishes the deferred initialization of the parameters that it needs.
        """
        blocks = list(blocks_by_path(self._net))
        if blocks != self._blocks:
            self._requests, self._blocks = _requests(self._net, self._names), blocks
            self._graphs, self._needed = {}, {}
        numpy = is_numpy_net(self._net)
        with switches(numpy):
            return self._computed(of_kind(inputs, numpy))

    def _computed(self, inputs: Sequence[Any]) -> Dict[str, Any]:
        mode = (autograd.is_training(), _structure(inputs))
        if mode not in self._graphs:
            self._graphs[mode] = self._traced(inputs)
        graph = self._graphs[mode]
        if graph is None:
            return self._run(inputs)
        try:
            return graph(self._net, inputs)
        except mx.MXNetError:
            # the graph's error names an operator; the net as Python code finds the layer
            with explained(self._net), recorded_calls(self._net), autograd.pause(autograd.is_training()):
                self._net(*inputs)
            raise

    def __repr__(self) -> str:
        as_code = f", run as it is: {self._reason}" if self._reason else ""
        return f"Features({type(self._net).__name__}, {[request.name for request in self._requests]}{as_code})"

    def _traced(self, inputs: Sequence[Any]) -> Optional["_Graph"]:
        """Return the part of the net's graph that is needed, or None if the net has no graph."""
        if not isinstance(self._net, gluon.HybridBlock):
            self._reason = "it is a plain Block"
            return None
        try:
            traced = trace(self._net, inputs)
        except Exception as error:  # of any kind: the net's own code got a symbol. With arrays it may run
            self._reason = f"its forward pass does not take symbols ({type(error).__name__}: {error})"
            return None
        paths = {request.path for request in self._requests}
        found = [symbol for call in traced.calls if call.path in paths for symbol in call.outputs]
        outputs = [symbol for symbol in found if symbol is not None]
        if outputs and unknown_variables(traced, outputs):
            self._reason = "a requested layer is in the body of a loop or a branch of the graph"
            return None
        selected = _select(self._net, self._requests, traced.calls)  # a loop's body is traced once, whatever its steps
        try:
            return _Graph(traced, selected)
        except mx.MXNetError as error:  # seen in NASNet: "control dep not found", of the gradient
            self._reason = f"MXNet cannot build this graph ({str(error).strip().splitlines()[-1]})"
            return None

    def _run(self, inputs: Sequence[Any]) -> Dict[str, Any]:
        """Run the net as Python code, and stop after the calls that the first such run found to be needed."""
        mode = (autograd.is_training(), _structure(inputs, shapes=True))
        ended: List[BlockCall] = []
        missing = set(self._needed.get(mode, ()))

        def end(call: BlockCall) -> None:
            ended.append(call)
            if missing:
                missing.discard((call.path, call.number))
                if not missing:
                    raise _Stop

        with recorded_calls(self._net, end), opened(self._net, self.paths), suppress(_Stop), explained(self._net):
            self._net(*inputs)
        selected = _select(self._net, self._requests, ended)
        needed = {(call.path, call.number) for _, call in selected}
        all_calls = {request.path for request in self._requests if request.number is None}
        if not any(number and path in all_calls for path, number in needed):
            # a block with several calls may have more of them in the next run, which then must not stop early
            self._needed[mode] = needed
        return {name: regroup(call, call.outputs) for name, call in selected}


class _Stop(BaseException):
    """Ends a forward pass early; an `except Exception` in the net does not catch it."""


class _Request(NamedTuple):
    """A block whose outputs are requested.

    Attributes:
        name: Name of the result.
        path: First path of the block.
        number: Number of the call; None requests all calls.
        by_glob: True if only a glob requests the block.
    """

    name: str
    path: str
    number: Optional[int]
    by_glob: bool


class _Graph:
    """The part of a net's graph that computes the outputs of some calls."""

    def __init__(self, traced: Trace, selected: Sequence[Tuple[str, BlockCall]]) -> None:
        self._traced = traced
        symbols = [output for _, call in selected for symbol in call.outputs for output in _outputs(symbol)]
        heads = Graph.of(symbols).heads
        # MXNet may fail to build the gradient of a graph that has one output twice
        unique: Dict[Entry, Any] = dict(zip(heads, symbols))
        self._symbols = list(unique.values())
        indices = {head: index for index, head in enumerate(unique)}
        rest = iter(indices[head] for head in heads)
        self._selected = [
            (name, call, [[next(rest) for _ in _outputs(symbol)] for symbol in call.outputs]) for name, call in selected
        ]
        is_np = isinstance(symbols[0], mx.sym.np._Symbol)
        graph = mx.sym.Group(self._symbols, mx.sym.np._Symbol if is_np else mx.sym.Symbol)
        inputs = {variable.name: index for index, variable in enumerate(traced.inputs)}
        # numbers of inputs, and parameters
        self._arguments: List[Any] = [inputs.get(name, traced.parameters.get(name)) for name in graph.list_inputs()]
        self._run = cached_operator(graph, self._arguments, inline_limit=2)  # as Gluon's hybridize

    def __call__(self, net: Any, inputs: Sequence[Any]) -> Dict[str, Any]:
        arrays = [array for array in _flatten(list(inputs), "input")[0] if array is not None]
        outputs = self._run(*self._values(net, arrays))
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        features = {}
        for name, call, indices in self._selected:
            flat: List[Any] = []
            for of_symbol in indices:
                flat += [outputs[index] for index in of_symbol] or [None]
            features[name] = regroup(call, flat)
        return features

    def _values(self, net: Any, arrays: Sequence[Any]) -> List[Any]:
        context = arrays[0].ctx
        try:
            return [arrays[one] if isinstance(one, int) else one.data(context) for one in self._arguments]
        except gluon.parameter.DeferredInitializationError:
            _, shapes = infer_shapes(self._traced, self._symbols, [array.shape for array in arrays])
            for name, shape in shapes.items():
                finish_initialization(self._traced.parameters[name], shape)
            return self._values(net, arrays)
        except RuntimeError as error:
            raise DeviceError(
                f"the batch lies on {context}, the net on {net_devices(net)}: batch.as_in_context(...) moves the "
                "batch, mxkit.to(net, ...) the net"
            ) from error


def _outputs(symbol: Any) -> List[Any]:
    """Return a symbol's outputs as symbols; an empty list for None."""
    if symbol is None:
        return []
    return [symbol] if len(symbol.list_outputs()) == 1 else list(symbol)


def _structure(value: Any, shapes: bool = False) -> Any:
    """Return nesting, types and, if asked for, shapes of inputs, but not the values of arrays."""
    if isinstance(value, mx.nd.NDArray):
        return type(value), value.shape if shapes else None
    if isinstance(value, (list, tuple)):
        return tuple(_structure(one, shapes) for one in value)
    if isinstance(value, Mapping):
        return tuple((key, _structure(one, shapes)) for key, one in value.items())
    return repr(value)


def _requests(net: Any, names: Sequence[Union[str, Mapping[str, str]]]) -> List[_Request]:
    """Read `names`; a block that has several paths is requested by the first of them."""
    blocks = dict(blocks_by_path(net))
    first = first_paths(blocks)
    requests: Dict[str, _Request] = {}
    for alias, text in _aliases(names):
        path, sign, number = text.partition("#")
        if sign and not number.isdigit():
            raise ValueError(f"{text!r}: expected the number of a call after '#', from 0, like 'encoder#1'")
        call = int(number) if sign else None
        by_glob = any(wildcard in path for wildcard in "*?[")
        if by_glob and alias is not None:
            raise ValueError(f"{alias!r}: an alias belongs to one path; received the glob {text!r}")
        if by_glob:
            matches = distinct({place: block for place, block in blocks.items() if place and fnmatchcase(place, path)})
            if not matches:
                raise _unknown(f"no block fits {text!r}", path, blocks)
            several = [_Request(place, first[id(block)], call, True) for place, block in matches.items()]
        else:
            several = [_Request(text if alias is None else alias, first[id(_block(net, path, blocks))], call, False)]
        for request in several:
            other = requests.get(request.name, request)
            if (other.path, other.number) != (request.path, request.number):
                raise ValueError(f"two features would have the name {request.name!r}: give one of them an alias")
            requests[request.name] = request._replace(by_glob=request.by_glob and other.by_glob)
    if not requests:
        raise ValueError("expected the path of a layer, a glob, or a list of them; received no name")
    return list(requests.values())


def _aliases(names: Sequence[Union[str, Mapping[str, str]]]) -> Iterator[Tuple[Optional[str], str]]:
    """Yield alias, or None, and text of each name."""
    for entry in names:
        for alias, text in entry.items() if isinstance(entry, Mapping) else [(None, entry)]:
            if not isinstance(text, str) or not isinstance(alias, (str, type(None))):
                raise TypeError(f"names of layers are text, or {{alias: path}}; received {entry!r}")
            yield alias, text


def _block(net: Any, path: str, blocks: Mapping[str, Any]) -> Any:
    """Return the block at `path`, whose steps may be negative numbers."""
    block = net
    for step in path.split(".") if path else []:
        children = child_blocks(block)
        if step.startswith("-") and step[1:].isdigit() and 0 < int(step[1:]) <= len(children):
            step = list(children)[int(step)]
        if step not in children:
            raise _unknown(f"no block stands at {path!r}", path, blocks)
        block = children[step]
    return block


def _unknown(text: str, path: str, blocks: Mapping[str, Any]) -> UnknownNameError:
    return unknown_path(text, nearest(path, blocks), [place for place in blocks if place and "." not in place])


def _select(net: Any, requests: Sequence[_Request], calls: Sequence[BlockCall]) -> List[Tuple[str, BlockCall]]:
    """Return name and call of each result.

    Raises:
        ValueError: A block that was requested by its path was not called so often, or did not return arrays.
    """
    selected: Dict[str, BlockCall] = {}
    for request in requests:
        of_block = [call for call in calls if call.path == request.path]
        fitting = [call for call in of_block if request.number in (None, call.number)]
        fitting = [call for call in fitting if any(output is not None for output in call.outputs)]
        if not fitting and not request.by_glob:
            raise ValueError(_missing(net, request, len(of_block)))
        for call in fitting:
            name = request.name
            if len(of_block) > 1 and "#" not in name and (request.number is None or request.by_glob):
                name = f"{name}#{call.number}"
            if selected.setdefault(name, call) is not call:
                raise ValueError(f"two features would have the name {name!r}: give one of them an alias")
    if not selected:
        raise ValueError("none of the layers that fit is called in the forward pass and returns arrays")
    return list(selected.items())


def _missing(net: Any, request: _Request, calls: int) -> str:
    block = place_of(request.path, dict(blocks_by_path(net))[request.path])
    mode = "in training" if autograd.is_training() else "outside of training"
    return (
        f"{block} is called {calls} times {mode}, and no call that is asked for returns arrays or lists of them. "
        "Calls count from #0; block.forward(x) is not seen"
    )
