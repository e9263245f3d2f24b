"""Repairs of graphs before MXNet compiles or binds them (T139, T250 to T252, T275), and graphs that record predictions.

The user's own graph stays as it is. A rule replaces one operator by others, which compute the same. Shapes are not
known here, only attributes. `mxkit.runtime.repairs` lists the repairs.
"""

from contextlib import contextmanager
import functools
from itertools import accumulate
import json
import re
import threading
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.runtime.gpus import is_gpu
from mxkit.runtime.operators import (
    CHANNEL_AXES,
    SELU_ALPHA,
    SELU_SCALE,
    Function,
    around,
    bounds,
    cuts_a_block,
    mxnet_module,
    records_prediction,
    replace,
)

Node = Dict[str, Any]
# The number of channels of each input, as far as attributes tell.
Channels = Sequence[Optional[int]]

# Stand for the inputs of the replaced operator: all, the first, the others; _EACH and below, one by one.
_GIVEN, _FIRST, _REST, _EACH = -1, -2, -3, -4
# Operators whose outputs have as many channels as their first input.
_KEEPS_CHANNELS = {
    "Activation",
    "BatchNorm",
    "Dropout",
    "LeakyReLU",
    "Pooling",
    "relu",
    "sigmoid",
    "_copy",
    "clip",
    "amp_cast",
}
# Operators that read the blocks of a convolution's output as if they were the usual layout.
_BLIND = ("softmax", "log_softmax", "softmin", "reshape_like", "_np_reshape", "_npx_reshape")
# Attribute of the node that joins a recurrent layer's parameters: its units, which divide the size of each of them.
_ROWS = "__rows__"
_ADDS = ("elemwise_add", "elemwise_sub", "elemwise_mul", "add_n")


class Part(NamedTuple):
    """One of the operators that replace another.

    Attributes:
        operator: MXNet's name.
        attributes: Its attributes as text.
        inputs: Numbers of earlier parts, `_GIVEN`, `_FIRST`, `_REST`, or `_EACH - n` for input n.
    """

    operator: str
    attributes: Dict[str, str]
    inputs: Sequence[int] = (_GIVEN,)


Rules = Dict[str, Callable[[Dict[str, str], Channels], List[Part]]]


def repaired_graph(graph: Any) -> Any:
    """A Symbol with the same arguments and outputs that is safe to run; itself if there is nothing to repair."""
    return _with_rules(graph, _RULES)


def faster_graph(graph: Any) -> Any:
    """A Symbol that computes the same to rounding, in less time on a CPU (T291); itself if nothing is faster."""
    return _with_rules(graph, _FASTER)


def _with_rules(graph: Any, rules: Rules) -> Any:
    text = graph.tojson(remove_amp_cast=False)
    if not any(f'"{name}"' in text for name in rules):
        return graph
    content = json.loads(text)
    if not _repair(content, rules):
        return graph
    symbol = mxnet_module("symbol")
    repaired = symbol.load_json(json.dumps(content))
    return repaired.as_np_ndarray() if isinstance(graph, symbol.numpy._Symbol) else repaired


def bound(bind: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """`Symbol.bind` or `Symbol.simple_bind`, of a repaired graph."""
    executor = bind(repaired_graph(self), *args, **kwargs)
    executor._symbol = self  # `output_dict` has its names
    return executor


def _repair(content: Dict[str, Any], rules: Rules) -> bool:
    """Change the JSON of a Symbol, bodies of loops included; return whether anything changed."""
    nodes: List[Node] = []
    places: List[int] = []  # of the old nodes in `nodes`
    channels: List[Optional[int]] = []
    changed = False
    for node in content["nodes"]:
        if node["op"] == "RNN":
            content["nodes"][node["inputs"][1][0]].setdefault("attrs", {})[_ROWS] = node["attrs"]["state_size"]
    for node in content["nodes"]:
        for body in node.get("subgraphs", ()):
            changed |= _repair(body, rules)
        before = [channels[source[0]] for source in node["inputs"]]
        channels.append(_channels(node, before))
        node["inputs"] = [[places[source[0]], *source[1:]] for source in node["inputs"]]
        rule = rules.get(node["op"])
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
    given = {_GIVEN: node["inputs"], _FIRST: node["inputs"][:1], _REST: node["inputs"][1:]}
    given.update({_EACH - number: [source] for number, source in enumerate(node["inputs"])})
    nodes = []
    for number, part in enumerate(parts):
        sources = [given[one] if one < 0 else [[first + one, 0, 0]] for one in part.inputs]
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
    *points, channels = accumulate(count or 0 for count in before)
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
    new = {"newshape": str(newshape), "reverse": attributes.get("reverse", "False")}
    return _of_usual_layout("_npx_reshape", new, before)


def _of_usual_layout(operator: str, attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T275: an operator that takes oneDNN's blocks for the usual layout, after a Reshape that changes nothing else."""
    return [Part("Reshape", {"shape": "(-2,)"}, (_FIRST,)), Part(operator, attributes, (0, _REST))]


def _leaky_relu(attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T139: SELU as `operators.differentiable_selu` computes it. T287: PReLU whose slopes have the right gradient."""
    if attributes.get("act_type") == "prelu":
        swapped = {"dim1": "1", "dim2": "-1"}  # slopes lie along axis 1
        return [
            Part("SwapAxis", swapped, (_FIRST,)),
            Part("broadcast_mul", {}, (0, _REST)),
            Part("SwapAxis", swapped, (1,)),
            Part("_greater_scalar", {"scalar": "0"}, (_FIRST,)),
            Part("where", {}, (3, _FIRST, 2)),
        ]
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


def _recurrent_parameters(attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T290: concatenated as rows, which are copied at once. MXNet copies vectors number by number."""
    if _ROWS not in attributes:
        return []
    rows, count = {"shape": f"(-1, {attributes[_ROWS]})"}, len(before)
    return [
        *(Part("Reshape", rows, (_EACH - number,)) for number in range(count)),
        Part("Concat", {"dim": "0", "num_args": str(count)}, range(count)),
        Part("Reshape", {"shape": "(-1,)"}, (count,)),
    ]


def _numbers(text: Optional[str]) -> List[Optional[int]]:
    words = (word.strip() for word in (text or "").strip("()[]").split(","))
    return [None if word == "None" else int(word) for word in words if word]


def _by_onednn(activation: str, attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T291: 0.5 ns a number, where `tanh` takes 20 and `sigmoid` 4.5."""
    return [Part("Activation", {"act_type": activation})]


def _mean(attributes: Dict[str, str], before: Channels) -> List[Part]:
    """T291: the sum over axis 1 as a matrix product, 1 ns a number in place of 8 to 15."""
    plain = all(attributes.get(name) in (None, "False", "0") for name in ("keepdims", "exclude"))
    if _numbers(attributes.get("axis")) != [1] or not plain:
        return []
    first = {"begin": "0", "end": "1"}
    return [
        Part("Reshape", {"shape": "(0, 0, -1)"}),
        Part("slice_axis", {"axis": "2", **first}, (0,)),
        Part("ones_like", {}, (1,)),
        Part("batch_dot", {"transpose_a": "True"}, (0, 2)),
        Part("batch_dot", {"transpose_a": "True"}, (2, 2)),
        Part("broadcast_div", {}, (3, 4)),
        Part("slice_axis", {"axis": "1", **first}),
        Part("reshape_like", {}, (5, 6)),
        Part("Reshape", {"shape": "(-3, -2)"}, (7,)),
    ]


def _sequence_last(attributes: Dict[str, str], channels: Channels) -> List[Part]:
    """T294: a slice; the gradient of SequenceLast without lengths reads an array that is not there."""
    if _has_lengths(attributes):
        return _lengths_inside("SequenceLast", 1, attributes, channels)
    axis = attributes.get("axis", "0")
    return [Part("slice_axis", {"axis": axis, "begin": "-1", "end": "None"}), Part("squeeze", {"axis": axis}, (0,))]


def _has_lengths(attributes: Dict[str, str]) -> bool:
    return attributes.get("use_sequence_length", attributes.get("use_length", "False")) in ("True", "1")


def _lengths_inside(operator: str, least: int, attributes: Dict[str, str], _: Channels) -> List[Part]:
    """T295: by lengths from `least` to the number of steps; at others, memory outside of the arrays is used."""
    if not _has_lengths(attributes):
        return []
    axis = int(attributes.get("axis", "-1" if operator == "softmax" else "0"))
    return [
        Part("shape_array", {}, (_FIRST,)),
        Part("slice_axis", {"axis": "0", "begin": str(axis), "end": str(axis + 1 or None)}, (0,)),
        Part("Cast", {"dtype": "int32"}, (1,)),
        Part("Cast", {"dtype": "float32"}, (_EACH - 1,)),
        Part("clip", {"a_min": "-1", "a_max": "1e9"}, (3,)),
        Part("Cast", {"dtype": "int32"}, (4,)),  # NaN is the least whole number then
        Part("clip", {"a_min": str(least), "a_max": "1e9"}, (5,)),
        Part("broadcast_minimum", {}, (6, 2)),
        Part("Reshape", {"shape": "(-2,)"}, (_FIRST,)),  # T275
        Part(operator, attributes, (8, 7)),
    ]


def _softmax(attributes: Dict[str, str], channels: Channels) -> List[Part]:
    if _has_lengths(attributes):
        return _lengths_inside("softmax", 0, attributes, channels)
    return _of_usual_layout("softmax", attributes, channels)


_RULES: Rules = {
    "SequenceLast": _sequence_last,
    "SequenceMask": functools.partial(_lengths_inside, "SequenceMask", 0),
    "SequenceReverse": functools.partial(_lengths_inside, "SequenceReverse", 0),
    "Concat": _concat,
    "slice": _slice,
    "Reshape": _reshape,
    "LeakyReLU": _leaky_relu,
    "_rnn_param_concat": _recurrent_parameters,
    **{name: functools.partial(_of_usual_layout, name) for name in _BLIND},
    "softmax": _softmax,
}
_FASTER: Rules = {
    "tanh": functools.partial(_by_onednn, "tanh"),
    "_npi_tanh": functools.partial(_by_onednn, "tanh"),
    "sigmoid": functools.partial(_by_onednn, "sigmoid"),
    "_npx_sigmoid": functools.partial(_by_onednn, "sigmoid"),
    "mean": _mean,
}


def bound_graphs(module: ModuleType) -> None:
    """T139, T250 to T252, T275, T287, T290, T294 in bound graphs. Upstream: `symbol/symbol.py` lines 1666, 1968."""
    replace(module.Symbol, bind=around(bound), simple_bind=around(bound))


def compiled_graphs(module: ModuleType) -> None:
    """T130, T137, T139, T250 to T252, T275, T287, T290, T294, compiled. Upstream: `_ctypes/ndarray.py` line 104."""
    replace(module, CachedOp=predicting_graphs)


def predicting_graphs(cached_op: Any) -> Any:
    """A subclass of MXNet's compiled graphs that runs a graph of `predicting_graph` while it records predictions.

    Threads call a graph in turn (T200).

    Args:
        cached_op: MXNet's class.
    """

    class CachedOp(cached_op):  # type: ignore[misc]
        __slots__ = ("_arguments", "_hook", "_predicting", "_turn")
        __wrapped__ = cached_op
        # pickle then names MXNet's class in its errors
        __module__, __qualname__ = cached_op.__module__, cached_op.__qualname__

        def __init__(self, sym: Any, flags: Any = ()) -> None:
            sym = repaired_graph(sym)
            super().__init__(sym, flags)
            self._arguments = sym, flags
            self._hook: Any = None
            self._predicting: Dict[bool, Any] = {}
            self._turn = threading.RLock()

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with self._turn:  # T200: `CheckDynamicShapeExists` infers new shapes in the shared graph, without a lock
                return self._call(*args, **kwargs)

        def __getstate__(self) -> Any:
            return self.handle  # which pickle and copy.deepcopy refuse, as without mxkit

        def _call(self, *args: Any, **kwargs: Any) -> Any:
            if not args or not records_prediction():
                return super().__call__(*args, **kwargs)
            on_gpu = is_gpu(args[0].ctx)
            if on_gpu not in self._predicting:
                symbol, flags = self._arguments
                graph, in_training_mode = predicting_graph(symbol, on_gpu)
                self._predicting[on_gpu] = None if graph is None else cached_op(graph, flags), in_training_mode
            graph, in_training_mode = self._predicting[on_gpu]
            if graph is None:
                return super().__call__(*args, **kwargs)
            if self._hook is not None:
                graph._register_op_hook(*self._hook)
            if not in_training_mode:
                return graph(*args, **kwargs)
            with mxnet_module("autograd").train_mode():
                return graph(*args, **kwargs)

        def _register_op_hook(self, callback: Any, monitor_all: bool = False) -> None:
            super()._register_op_hook(callback, monitor_all)
            self._hook = callback, monitor_all

    return CachedOp


def predicting_graph(graph: Any, on_gpu: bool) -> Tuple[Any, bool]:
    """Build a graph that predicts and has the gradient of its predictions.

    Args:
        graph: A Symbol.
        on_gpu: Whether the graph runs on a GPU.

    Returns:
        The new graph, or None if `graph` is right; and whether it must run in training mode, because only there an
        operator keeps what its gradient reads. The arguments of other operators then make them predict.

    Raises:
        NotImplementedError: It must run in training mode and holds a Custom operator, which would see that mode.
    """
    content = json.loads(graph.tojson(remove_amp_cast=False))
    operators: List[Tuple[str, Dict[str, str]]] = list(operators_in(content))
    needs = sorted({name for name, attributes in operators if _needs_training_mode(name, attributes, on_gpu)})
    if needs and any(name == "Custom" for name, _ in operators):
        raise NotImplementedError(
            f"in predict mode MXNet's gradient of {', '.join(needs)} is wrong, and mxkit cannot repair it in a graph "
            "with a custom operator: leave the net without a graph for it, net.hybridize(False) (docs/traps.md)"
        )
    changed = [_predict_in_every_mode(name, attributes) for name, attributes in operators]
    if not needs and not any(changed):
        return None, False
    from mxnet import symbol

    predicting = symbol.load_json(json.dumps(content))
    return predicting.as_np_ndarray() if isinstance(graph, symbol.numpy._Symbol) else predicting, bool(needs)


def operators_in(graph: Any) -> Iterator[Tuple[str, Dict[str, str]]]:
    """Iterate over names and attributes of a graph's operators, those in bodies of loops included.

    Args:
        graph: The decoded JSON of a Symbol. A change of the attributes changes it.
    """
    for node in graph["nodes"]:
        if node["op"] != "null":
            yield node["op"], node.setdefault("attrs", {})
        for body in node.get("subgraphs", ()):
            yield from operators_in(body)


def _needs_training_mode(name: str, attributes: Dict[str, str], on_gpu: bool) -> bool:
    if name == "RNN":  # on a CPU too: a static graph that changes the mode ends in an IndexError of C++
        return True
    if on_gpu:
        return False
    return name == "_contrib_BatchNormWithReLU" or (name == "Pooling" and attributes.get("pool_type", "max") == "max")


def _predict_in_every_mode(name: str, attributes: Dict[str, str]) -> bool:
    """Change attributes so that the operator predicts in training mode too; return whether any changed."""
    before = dict(attributes)
    if "BatchNorm" in name:
        attributes["use_global_stats"] = "True"
    elif name in ("Dropout", "RNN") and attributes.get("mode") != "always":
        attributes["p"] = "0"
    elif name == "LeakyReLU" and attributes.get("act_type") == "rrelu":
        bounds = float(attributes.get("lower_bound", 0.125)), float(attributes.get("upper_bound", 0.334))
        attributes.update(act_type="leaky", slope=repr(sum(bounds) / 2))
    return attributes != before


def copied_symbols(module: ModuleType) -> None:
    """T164: a copy of a symbol shares its operators, so that composing the copy changes the original.

    Upstream: `symbol/numpy/_symbol.py` line 243.
    """

    def with_own_operators(upstream: Any, symbol: Any, memo: Any) -> Any:
        return module.Symbol.__deepcopy__(symbol, None).as_np_ndarray()

    replace(module._Symbol, __deepcopy__=around(with_own_operators))


def eigenvectors(module: ModuleType) -> None:
    """T239: `np.linalg.eigh` writes no eigenvectors where a graph leaves the eigenvalues out.

    Upstream: `symbol/numpy/linalg.py` line 892.
    """

    def with_both(eigh: Function, *args: Any, **kwargs: Any) -> Any:
        values, vectors = eigh(*args, **kwargs)
        symbol = mxnet_module("symbol")
        column = symbol.expand_dims(values.as_nd_ndarray(), axis=-1)
        both = symbol.concat(vectors.as_nd_ndarray(), column, dim=-1)
        return [values, symbol.slice_axis(both, axis=-1, begin=0, end=-1).as_np_ndarray()]

    replace(module, eigh=around(with_both))


def cond_that_writes_gradients(module: ModuleType) -> None:
    """T258: the gradient of `contrib.cond` in a graph is not written for what the branch that is not taken reads.

    Both branches read the same inputs here. MXNet knows one that a graph cuts off by two names, and so takes it twice;
    what one branch alone reads is subtracted as a zero from the other's first output, which changes no bit. Upstream:
    `symbol/contrib.py` line 671, `src/operator/control_flow.cc`, `CondGradComputeExCPU`.
    """
    upstream, cut = module.cond, module._cut_subgraph

    class Input(mxnet_module("symbol.symbol").Symbol):  # type: ignore[misc]
        __slots__ = ()
        name = property(lambda self: self.list_outputs()[0])

    @contextmanager
    def one_name_each() -> Iterator[None]:
        def named(graph: Any) -> List[Any]:
            found = cut(graph)
            for one in found:
                one.__class__ = Input
            return found  # type: ignore[no-any-return]

        module._cut_subgraph = named  # type: ignore[attr-defined]
        try:
            yield
        finally:
            module._cut_subgraph = cut  # type: ignore[attr-defined]

    @functools.wraps(upstream)
    def cond(pred: Any, then_func: Callable[[], Any], else_func: Callable[[], Any], name: str = "cond") -> Any:
        symbol = mxnet_module("symbol")
        pred = symbol.BlockGrad(pred)
        with one_name_each():
            outputs = upstream(pred, then_func, else_func, name)
            node = outputs[0] if isinstance(outputs, list) else outputs
            then, other = (set(re.findall(r"\d+", node.attr(f"{branch}_input_locs"))) for branch in ("then", "else"))
            if then == other:
                return outputs
            inputs = node.get_children()

            def reading(branch: Callable[[], Any], places: Iterable[str]) -> Any:
                outputs = branch()
                first, rest = (outputs[0], list(outputs[1:])) if isinstance(outputs, (list, tuple)) else (outputs, None)
                for place in sorted(places):
                    first = symbol.broadcast_sub(first, symbol.sum(symbol.zeros_like(inputs[int(place)])))
                return first if rest is None else [first, *rest]

            return upstream(
                pred, lambda: reading(then_func, other - then), lambda: reading(else_func, then - other), name
            )

    replace(module, cond=lambda _: cond)
