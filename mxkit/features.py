"""What layers inside a net give out, by their paths."""

from contextlib import contextmanager, suppress
import difflib
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxkit.blocks import blocks_by_path, net_devices
from mxkit.errors import DeviceError, UnknownNameError
from mxkit.tracing import Call, Trace, infer_shapes, recorded_calls, regroup, trace
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _flatten

Names = Union[str, Mapping[str, str], Sequence[Union[str, Mapping[str, str]]]]


class Features:
    """Computes the outputs of layers inside a net, and nothing past the last of them.

    A HybridBlock is traced once for each mode (training or not), and the part of its graph that the layers need runs
    as Gluon runs a hybridized net. It holds the net's own parameters: what training changes shows in the next call,
    and gradients reach them under `autograd.record()`. A plain Block, and a HybridBlock whose forward pass does not
    take symbols, runs as it is and stops after the last call that is asked for. Neither depends on names and
    prefixes, or on whether the net is hybridized, before or later (T37, T38).

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

        Side effects:
            The first call finishes the initialization of the parameters that it needs, if it was deferred.
        """
        blocks = list(blocks_by_path(self._net))
        if blocks != self._blocks:
            self._wanted, self._blocks = _wanted(self._net, self._names), blocks
            self._graphs, self._needed = {}, {}
        mode = (autograd.is_training(), *_kinds(inputs))
        if mode not in self._graphs:
            self._graphs[mode] = self._traced(inputs)
        graph = self._graphs[mode]
        return self._run(inputs, mode) if graph is None else graph(self._net, inputs)

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
        return _Graph(traced, _select(self._net, self._wanted, traced.calls))

    def _run(self, inputs: Sequence[Any], mode: Tuple[Any, ...]) -> Dict[str, Any]:
        """Run the net as it is, until the calls have ended that the first run told to be needed."""
        ended: List[Call] = []
        missing = set(self._needed.get(mode, ()))

        def end(call: Call) -> None:
            ended.append(call)
            if missing:
                missing.discard((call.path, call.number))
                if not missing:
                    raise _Enough

        paths = {one.path for one in self._wanted}
        with recorded_calls(self._net, end), _opened(self._net, paths), suppress(_Enough):
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
        self._selected = selected
        self._symbols = [symbol for _, call in selected for symbol in call.outputs if symbol is not None]
        graph = mx.sym.Group(self._symbols)
        if isinstance(self._symbols[0], mx.sym.np._Symbol):
            graph = graph.as_np_ndarray()
        places = {variable.name: place for place, variable in enumerate(traced.inputs)}
        self._arguments: List[Any] = [places.get(name, traced.parameters.get(name)) for name in graph.list_inputs()]
        kinds = [isinstance(argument, int) for argument in self._arguments]
        flags: Dict[str, Any] = {"inline_limit": 2}  # as Gluon's hybridize has them
        flags["data_indices"] = [place for place, kind in enumerate(kinds) if kind]
        flags["param_indices"] = [place for place, kind in enumerate(kinds) if not kind]
        self._run = mx.nd.CachedOp(graph, list(flags.items()))

    def __call__(self, net: Any, inputs: Sequence[Any]) -> Dict[str, Any]:
        arrays = [array for array in _flatten(list(inputs), "input")[0] if array is not None]
        outputs = self._run(*self._values(net, arrays))
        rest = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        found = {}
        for name, call in self._selected:
            count = sum(0 if symbol is None else len(symbol) for symbol in call.outputs)
            found[name], rest = _arranged(call, rest[:count]), rest[count:]
        return found

    def _values(self, net: Any, arrays: Sequence[Any]) -> List[Any]:
        context = arrays[0].context
        try:
            return [arrays[one] if isinstance(one, int) else one.data(context) for one in self._arguments]
        except gluon.parameter.DeferredInitializationError:
            self._finish_initialization(arrays)
            return self._values(net, arrays)
        except RuntimeError as error:
            where = net_devices(net)
            raise DeviceError(
                f"the batch lies on {context}, the net on {where}: batch.as_in_context(...) moves the batch, "
                "net.collect_params().reset_ctx(...) the net"
            ) from error

    def _finish_initialization(self, arrays: Sequence[Any]) -> None:
        _, shapes = infer_shapes(self._traced, self._symbols, [array.shape for array in arrays])
        for name, shape in shapes.items():
            self._traced.parameters[name].shape = shape
            self._traced.parameters[name]._finish_deferred_init()


def _kinds(inputs: Sequence[Any]) -> Tuple[str, bool]:
    """What a graph depends on beside the mode: how the inputs are nested, and whether they are NumPy-like."""
    arrays, structure = _flatten(list(inputs), "input")
    return repr(structure), any(isinstance(array, mx.np.ndarray) for array in arrays)


def _arranged(call: Call, arrays: Sequence[Any]) -> Any:
    """Arrays of a call as its block returns them, None where it returns None."""
    rest = iter(arrays)
    flat: List[Any] = []
    for symbol in call.outputs:
        flat += [None] if symbol is None else [next(rest) for _ in range(len(symbol))]
    return regroup(call, flat)


@contextmanager
def _opened(net: Any, paths: Set[str]) -> Iterator[None]:
    """Run blocks above `paths` as plain ones inside `with`: calls inside a hybridized block cannot be seen (T38)."""
    above = [
        block
        for path, block in blocks_by_path(net)
        if getattr(block, "_active", False) and any(_is_above(path, one) for one in paths)
    ]
    for block in above:
        block._active = False
    try:
        yield
    finally:
        for block in above:
            block._active = True


def _is_above(path: str, other: str) -> bool:
    return path != other and (not path or other.startswith(f"{path}."))


def _wanted(net: Any, names: Sequence[Union[str, Mapping[str, str]]]) -> List[_Wanted]:
    """What `names` ask for; paths of blocks are their first ones."""
    blocks = dict(blocks_by_path(net))
    first: Dict[int, str] = {}
    for path, block in blocks.items():
        first.setdefault(id(block), path)
    found: Dict[str, _Wanted] = {}
    for alias, text in _pairs(names):
        path, number = _numbered(text)
        if any(sign in path for sign in "*?["):
            if alias is not None:
                raise ValueError(f"{alias!r}: an alias belongs to one path; received the glob {text!r}")
            fitting = [one for one in dict.fromkeys(first.values()) if one and fnmatchcase(one, path)]
            if not fitting:
                raise UnknownNameError(f"no block fits {text!r}{_hint(path, blocks)}")
            several = [_Wanted(one, one, number, True) for one in fitting]
        else:
            several = [_Wanted(text if alias is None else alias, first[id(_block(net, path, blocks))], number, False)]
        for one in several:
            other = found.setdefault(one.name, one)
            if (other.path, other.number) != (one.path, one.number):
                raise ValueError(f"two features would have the name {one.name!r}: give one of them an alias")
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
        children = block._children
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
    selected = []
    for one in wanted:
        of_block = [call for call in calls if call.path == one.path]
        fitting = [call for call in of_block if one.number in (None, call.number) and call.structure is not None]
        if not fitting and not one.by_glob:
            raise ValueError(_missing(net, one, of_block))
        for call in fitting:
            name = one.name
            if len(of_block) > 1 and "#" not in name:
                name = f"{name}#{call.number}" if one.number is None or one.by_glob else name
            selected.append((name, call))
    if not selected:
        raise ValueError("none of the layers that fit is called in the forward pass, or returns arrays")
    return selected


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
