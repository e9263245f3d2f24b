"""What layers inside a net give out, by their paths."""

from contextlib import suppress
import difflib
from fnmatch import fnmatchcase
import json
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxkit.core.blocks import blocks_by_path, child_blocks, first_paths, net_devices
from mxkit.core.forward_errors import explained
from mxkit.core.graphs import opened
from mxkit.core.replicas import finish_initialization
from mxkit.core.tracing import Call, Trace, infer_shapes, recorded_calls, regroup, trace, unknown_variables
from mxkit.errors import DeviceError, UnknownNameError
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _flatten

Names = Union[str, Mapping[str, str], Sequence[Union[str, Mapping[str, str]]]]


class Features:
    """Computes the outputs of layers inside a net, and nothing past the last of them.

    A HybridBlock is traced once for each mode (training or not), and the part of its graph that the layers need runs
    as Gluon runs a hybridized net. It holds the net's own parameters: what training changes shows in the next call,
    and gradients reach them under `autograd.record()`. A plain Block, and a HybridBlock whose forward pass does not
    take symbols, runs as it is and stops after the last call that is asked for; which that is, the first batch of
    each shape tells. Neither depends on names and prefixes, or on whether the net is hybridized, before or later
    (T35, T37). As with `hybridize`, a graph does not notice when settings of layers, like a rate of dropout, change
    (T39): make new Features then.

    Args:
        net: Any block. It need not be initialized until the first call.
        names: One or a list of
            - paths, as `mxkit.layers` shows them: "features.4.0.body.2". A negative number counts from the end:
              "features.-1". "" is the net itself;
            - globs over paths, where `*` stands for any text, dots too, `?` for a sign: "features.*", "*.body.2",
              "features.[0-3]";
            - "path#1": the second call of a block that is called several times; its path alone means all;
            - `{"alias": path}`: under a name of your own.

    Attributes:
        paths: Paths of the blocks that are asked for, in the order of the results.

    Raises:
        UnknownNameError: No block has such a path; the text has the nearest.
        ValueError: Two results would have the same name.

    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.Flatten(), mx.gluon.nn.Dense(2)); net.initialize()
    >>> found = Features(net, ["0", {"scores": "-1"}])(mx.nd.ones((1, 3, 8, 8)))
    >>> {name: array.shape for name, array in found.items()}
    {'0': (1, 4, 6, 6), 'scores': (1, 2)}
    """

    def __init__(self, net: Any, names: Names) -> None:
        self._net = net
        self._names = [names] if isinstance(names, (str, Mapping)) else list(names)
        self._wanted = _wanted(net, self._names)
        self._blocks = list(blocks_by_path(net))
        self._graphs: Dict[Tuple[Any, ...], Optional[_Graph]] = {}
        self._needed: Dict[Tuple[Any, ...], Set[Tuple[str, int]]] = {}
        self._reason = ""

    @property
    def paths(self) -> List[str]:
        return [one.path for one in self._wanted]

    def __call__(self, *inputs: Any) -> Dict[str, Any]:
        """Compute the features of one batch.

        Args:
            inputs: As for the net, on any of its devices.

        Returns:
            Name to NDArray, in the order of the names, those of a glob in the order of the net; a list of them where a
            layer returns several. Results of a block that is called several times have names like "path#0".

        Raises:
            ValueError: A layer that is asked for by its path is not called, or returns something else than arrays.
            DeviceError, NotInitializedError: The net is not on the device of `inputs`.
            ForwardError: A layer does not fit its input; the text names it.

        Side effects:
            The first call finishes the initialization of the parameters that it needs, if it was deferred.
        """
        blocks = list(blocks_by_path(self._net))
        if blocks != self._blocks:
            self._wanted, self._blocks = _wanted(self._net, self._names), blocks
            self._graphs, self._needed = {}, {}
        mode = (autograd.is_training(), _kind(inputs))
        if mode not in self._graphs:
            self._graphs[mode] = self._traced(inputs)
        graph = self._graphs[mode]
        if graph is None:
            return self._run(inputs)
        try:
            return graph(self._net, inputs)
        except mx.MXNetError:
            # the graph knows operators; the net itself tells which layer refuses
            with explained(self._net), recorded_calls(self._net), autograd.pause(autograd.is_training()):
                self._net(*inputs)
            raise

    def __repr__(self) -> str:
        how = f", run as it is: {self._reason}" if self._reason else ""
        return f"Features({type(self._net).__name__}, {[one.name for one in self._wanted]}{how})"

    def _traced(self, inputs: Sequence[Any]) -> Optional["_Graph"]:
        """The pruned graph, or None where the net has none."""
        if not isinstance(self._net, gluon.HybridBlock):
            self._reason = "it is a plain Block"
            return None
        try:
            traced = trace(self._net, inputs)
        except Exception as error:  # of any kind: the net's own code met a symbol. With arrays it may run
            self._reason = f"its forward pass does not take symbols ({type(error).__name__}: {error})"
            return None
        selected = _select(self._net, self._wanted, traced.calls)
        if unknown_variables(traced, [symbol for _, call in selected for symbol in call.outputs if symbol is not None]):
            self._reason = "layers that are asked for stand in the body of a loop or a branch of the graph"
            return None
        try:
            return _Graph(traced, selected)
        except mx.MXNetError as error:  # seen in NASNet: "control dep not found", of the gradient
            self._reason = f"MXNet cannot build this graph ({str(error).strip().splitlines()[-1]})"
            return None

    def _run(self, inputs: Sequence[Any]) -> Dict[str, Any]:
        """Run the net as it is, until the calls have ended that the first run told to be needed."""
        mode = (autograd.is_training(), _kind(inputs, shapes=True))
        ended: List[Call] = []
        missing = set(self._needed.get(mode, ()))

        def end(call: Call) -> None:
            ended.append(call)
            if missing:
                missing.discard((call.path, call.number))
                if not missing:
                    raise _Enough

        with recorded_calls(self._net, end), opened(self._net, self.paths), suppress(_Enough), explained(self._net):
            self._net(*inputs)
        selected = _select(self._net, self._wanted, ended)
        needed = {(call.path, call.number) for _, call in selected}
        whole = {one.path for one in self._wanted if one.number is None}
        if not any(number and path in whole for path, number in needed):
            # a block with several calls may have more of them the next time: then the net runs to its end
            self._needed[mode] = needed
        return {name: regroup(call, call.outputs) for name, call in selected}


class _Enough(BaseException):
    """Ends a forward pass of which everything that is wanted is known; no `except Exception` of a net stops it."""


class _Wanted(NamedTuple):
    """One block of which outputs are asked for: under which name, all of its calls or one; by a glob or by its path."""

    name: str
    path: str
    number: Optional[int]
    by_glob: bool


class _Graph:
    """The part of a net's graph that some of its calls need."""

    def __init__(self, traced: Trace, selected: Sequence[Tuple[str, Call]]) -> None:
        self._traced = traced
        symbols = [one for _, call in selected for symbol in call.outputs for one in _single(symbol)]
        heads = [tuple(head) for head in json.loads(mx.sym.Group(symbols).tojson())["heads"]]
        # an output that stands twice in a graph can end its gradient's construction
        unique: Dict[Tuple[int, ...], Any] = {}
        for head, symbol in zip(heads, symbols):
            unique.setdefault(head, symbol)
        self._symbols = list(unique.values())
        places = {head: place for place, head in enumerate(unique)}
        rest = iter(places[head] for head in heads)
        self._selected = [
            (name, call, [None if one is None else [next(rest) for _ in _single(one)] for one in call.outputs])
            for name, call in selected
        ]
        is_np = isinstance(symbols[0], mx.sym.np._Symbol)
        graph = mx.sym.Group(self._symbols, mx.sym.np._Symbol if is_np else mx.sym.Symbol)
        inputs = {variable.name: place for place, variable in enumerate(traced.inputs)}
        self._arguments: List[Any] = [inputs.get(name, traced.parameters.get(name)) for name in graph.list_inputs()]
        kinds = [isinstance(argument, int) for argument in self._arguments]
        flags: Dict[str, Any] = {"inline_limit": 2}  # as Gluon's hybridize has them
        flags["data_indices"] = [place for place, kind in enumerate(kinds) if kind]
        flags["param_indices"] = [place for place, kind in enumerate(kinds) if not kind]
        self._run = mx.nd.CachedOp(graph, list(flags.items()))

    def __call__(self, net: Any, inputs: Sequence[Any]) -> Dict[str, Any]:
        arrays = [array for array in _flatten(list(inputs), "input")[0] if array is not None]
        outputs = self._run(*self._values(net, arrays))
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        found = {}
        for name, call, places in self._selected:
            flat: List[Any] = []
            for several in places:
                flat += [None] if several is None else [outputs[place] for place in several]
            found[name] = regroup(call, flat)
        return found

    def _values(self, net: Any, arrays: Sequence[Any]) -> List[Any]:
        context = arrays[0].ctx
        try:
            return [arrays[one] if isinstance(one, int) else one.data(context) for one in self._arguments]
        except gluon.parameter.DeferredInitializationError:
            self._finish_initialization(arrays)
            return self._values(net, arrays)
        except RuntimeError as error:
            where = net_devices(net)
            raise DeviceError(
                f"the batch lies on {context}, the net on {where}: batch.as_in_context(...) moves the batch, "
                "mxkit.to(net, ...) the net"
            ) from error

    def _finish_initialization(self, arrays: Sequence[Any]) -> None:
        _, shapes = infer_shapes(self._traced, self._symbols, [array.shape for array in arrays])
        for name, shape in shapes.items():
            finish_initialization(self._traced.parameters[name], shape)


def _single(symbol: Any) -> List[Any]:
    """Outputs of a symbol, one by one; none of None."""
    if symbol is None:
        return []
    count = len(symbol.list_outputs())
    return [symbol] if count == 1 else [symbol[number] for number in range(count)]


def _kind(value: Any, shapes: bool = False) -> Any:
    """What a forward pass depends on beside the values of arrays: nesting, types and, if asked for, shapes."""
    if isinstance(value, mx.nd.NDArray):
        return type(value), value.shape if shapes else None
    if isinstance(value, (list, tuple)):
        return tuple(_kind(one, shapes) for one in value)
    if isinstance(value, Mapping):
        return tuple((key, _kind(one, shapes)) for key, one in value.items())
    return repr(value)


def _wanted(net: Any, names: Sequence[Union[str, Mapping[str, str]]]) -> List[_Wanted]:
    """What `names` ask for; paths of blocks are their first ones."""
    blocks = dict(blocks_by_path(net))
    first = first_paths(blocks)
    found: Dict[str, _Wanted] = {}
    for alias, text in _pairs(names):
        path, number = _numbered(text)
        if any(sign in path for sign in "*?["):
            if alias is not None:
                raise ValueError(f"{alias!r}: an alias belongs to one path; received the glob {text!r}")
            fitting: Dict[str, str] = {}
            for place, block in blocks.items():
                if place and fnmatchcase(place, path):
                    fitting.setdefault(first[id(block)], place)
            if not fitting:
                raise UnknownNameError(f"no block fits {text!r}{_hint(path, blocks)}")
            several = [_Wanted(place, start, number, True) for start, place in fitting.items()]
        else:
            several = [_Wanted(text if alias is None else alias, first[id(_block(net, path, blocks))], number, False)]
        for one in several:
            other = found.get(one.name, one)
            if (other.path, other.number) != (one.path, one.number):
                raise ValueError(f"two features would have the name {one.name!r}: give one of them an alias")
            found[one.name] = one._replace(by_glob=one.by_glob and other.by_glob)
    if not found:
        raise ValueError("no name of a layer was given; expected a path, a glob, or a list of them")
    return list(found.values())


def _pairs(names: Sequence[Union[str, Mapping[str, str]]]) -> Iterator[Tuple[Optional[str], str]]:
    """Alias, or None, and text of each name."""
    for entry in names:
        pairs = entry.items() if isinstance(entry, Mapping) else [(None, entry)]
        for alias, text in pairs:
            if not isinstance(text, str) or not isinstance(alias, (str, type(None))):
                raise TypeError(f"names of layers are text, or {{alias: path}}; received {entry!r}")
            yield alias, text


def _numbered(text: str) -> Tuple[str, Optional[int]]:
    path, sign, number = text.partition("#")
    if sign and not number.isdigit():
        raise ValueError(f"{text!r}: expected the number of a call behind '#', from 0, like 'encoder#1'")
    return path, int(number) if sign else None


def _block(net: Any, path: str, blocks: Mapping[str, Any]) -> Any:
    """The block at `path`, whose steps may be negative numbers."""
    block, walked = net, ""
    for step in path.split(".") if path else []:
        children = child_blocks(block)
        if step.startswith("-") and step[1:].isdigit() and 0 < int(step[1:]) <= len(children):
            step = list(children)[int(step)]
        if step not in children:
            below = f"{walked!r} has {', '.join(children) or 'no blocks inside'}" if walked else ""
            raise UnknownNameError(f"no block {path!r}{_hint(path, blocks)}{'. ' * bool(below)}{below}")
        block, walked = children[step], f"{walked}.{step}".lstrip(".")
    return block


def _hint(path: str, blocks: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(path, [one for one in blocks if one], n=3)
    if near:
        return f"; the nearest: {', '.join(map(repr, near))}"
    top = [one for one in blocks if one and "." not in one]
    return f"; at the top are {', '.join(map(repr, top[:10]))}" if top else "; the net has no blocks inside"


def _select(net: Any, wanted: Sequence[_Wanted], calls: Sequence[Call]) -> List[Tuple[str, Call]]:
    """Names and calls of what is wanted.

    Raises:
        ValueError: What is asked for by its path is not there.
    """
    selected: Dict[str, Call] = {}
    for one in wanted:
        of_block = [call for call in calls if call.path == one.path]
        fitting = [call for call in of_block if one.number in (None, call.number)]
        fitting = [call for call in fitting if any(output is not None for output in call.outputs)]
        if not fitting and not one.by_glob:
            raise ValueError(_missing(net, one, of_block))
        for call in fitting:
            name = one.name
            if len(of_block) > 1 and "#" not in name:
                name = f"{name}#{call.number}" if one.number is None or one.by_glob else name
            if selected.setdefault(name, call) is not call:
                raise ValueError(f"two features would have the name {name!r}: give one of them an alias")
    if not selected:
        raise ValueError("none of the layers that fit is called in the forward pass, or returns arrays")
    return list(selected.items())


def _missing(net: Any, wanted: _Wanted, calls: Sequence[Call]) -> str:
    block = dict(blocks_by_path(net))[wanted.path]
    what = f"{wanted.path!r} ({type(block).__name__})"
    mode = "in training" if autograd.is_training() else "outside of training"
    if not calls:
        return (
            f"{what} is not called in the net's forward pass {mode}. Ask for one that is, or call it as block(x): "
            "block.forward(x) cannot be seen"
        )
    if wanted.number is not None and wanted.number >= len(calls):
        return (
            f"{what} is called {len(calls)} times {mode}, so its calls are #0 to #{len(calls) - 1}: no #{wanted.number}"
        )
    return f"{what} returns something else than arrays and lists of them. Ask for the blocks inside it"
