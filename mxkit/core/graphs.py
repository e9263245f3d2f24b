"""Graphs of hybridized blocks: read, drop, replace and restore them; and hooks, which do not fire inside a graph."""

from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Tuple

from mxkit.core.blocks import blocks_by_path, distinct
import mxnet as mx
from mxnet import gluon

# What HybridBlock._clear_cached_op takes away.
_CACHED = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")
# An attribute of the block itself, where `graph_replaced` holds.
_REPLACED = "_get_graph"


def is_hybridized(block: Any) -> bool:
    """Whether calls of a block run its graph. A plain Block has none."""
    return bool(getattr(block, "_active", False))


def hybridize_flags(block: Any) -> Dict[str, Any]:
    """What `hybridize` was called with, like static_alloc."""
    return dict(block._flags)


def hybridize_like(block: Any, other: Any) -> None:
    """Hybridize a block as another one is, if that is."""
    if is_hybridized(other):
        block.hybridize(**hybridize_flags(other))


def traced_graph(block: Any) -> Tuple[Any, ...]:
    """Inputs and output of a block's graph as symbols; () where it was not traced, or has none."""
    found: Tuple[Any, ...] = getattr(block, "_cached_graph", ())
    return found


def graph_json(block: Any) -> str:
    """The graph of a SymbolBlock as MXNet writes it; '' for any other block."""
    return str(traced_graph(block)[1].tojson()) if isinstance(block, gluon.SymbolBlock) else ""


def nesting(block: Any) -> Tuple[Any, Any]:
    """How inputs and outputs of a traced block are nested: 0 is one, a number above it a symbol with that many."""
    return block._in_format, block._out_format


def graph_parameters(block: Any) -> Dict[str, Any]:
    """Parameters that a traced block's graph reads, by Gluon's names."""
    return {own.name: own for is_data, own in block._cached_op_args if not is_data}


def only_its_graph_runs(block: Any) -> bool:
    """Whether a call of a block does nothing beside running its graph, as MXNet traced it, for one plain output."""
    own = vars(block)
    return bool(
        is_hybridized(block)
        and traced_graph(block)
        and not (block._forward_hooks or block._forward_pre_hooks or block._callback)
        and "forward" not in own
        and _REPLACED not in own  # mixed precision
    )


def has_one_plain_output(block: Any) -> bool:
    """Whether a traced block gives one array, of mx.nd, by a graph that no other backend took parts of."""
    return bool(block._out_format == 0 and type(traced_graph(block)[1]) is mx.sym.Symbol and not block._backend)


def drop_graph(block: Any) -> None:
    """Drop the graph of a block, which traces a new one at its next call; a plain Block has none."""
    if isinstance(block, gluon.HybridBlock):
        block._clear_cached_op()


def drop_static_graphs(net: Any) -> None:
    """Drop the operators of graphs hybridized with `static_shape`; the next call makes new ones.

    Such a graph keeps the gradients that its first backward pass wrote. A parameter gets new gradients when it is
    frozen and unfrozen, moved or initialized again, or when `grad_req` becomes "add". The graph still writes into the
    old ones, and the new ones stay 0 without an error (T109).

    Side effects:
        Waits for the device where there is such a graph; the memory that it held is freed.
    """
    static = [block for _, block in blocks_by_path(net) if _has_operator(block, "static_shape")]
    if static:
        mx.nd.waitall()
    for block in static:
        block._cached_op = None  # the next call makes it from the block's own graph, which stays


def free_static_memory(net: Any) -> None:
    """Free the memory of a batch that a net hybridized with `static_alloc` holds; its next call takes it again."""
    if hybridize_flags(net).get("static_alloc"):
        net._cached_op = None
        mx.nd.waitall()


def _has_operator(block: Any, flag: str) -> bool:
    made = isinstance(block, gluon.HybridBlock) and block._cached_op is not None
    return made and bool(hybridize_flags(block).get(flag))


@contextmanager
def attributes_restored(things: Iterable[Any]) -> Iterator[None]:
    """Give blocks and parameters, after `with`, the attributes that they had before, and no others."""
    before = [(one, dict(vars(one))) for one in {id(one): one for one in things}.values()]
    try:
        yield
    finally:
        for one, attributes in before:
            vars(one).clear()
            vars(one).update(attributes)


@contextmanager
def graphs_left_aside(net: Any) -> Iterator[None]:
    """Inside `with`, blocks trace new graphs; at the end they get their earlier graphs back."""
    blocks = [block for _, block in blocks_by_path(net) if isinstance(block, gluon.HybridBlock)]
    kept = [(block, {name: vars(block)[name] for name in _CACHED if name in vars(block)}) for block in blocks]
    try:
        for block in blocks:
            drop_graph(block)
        yield
    finally:
        for block, attributes in kept:
            vars(block).update(attributes)


@contextmanager
def graph_replaced(net: Any, convert: Callable[[Any, Any], Tuple[Any, Any]]) -> Iterator[None]:
    """Inside `with`, a HybridBlock runs another graph than its own: what `convert(inputs, output)` makes of it.

    Side effects:
        The net is hybridized inside `with`. At the end it is as before, and its next call traces a new graph.
    """
    if _REPLACED in vars(net):  # `fit` holds it for all epochs, `updates` asks again for each
        yield
        return
    active, graph, own = net._active, net._cached_graph, net._get_graph
    converted: List[Any] = []

    def get_graph(*inputs: Any) -> Any:
        if not converted:
            converted.append(convert(*own(*inputs)))
            net._cached_graph = converted[0]
        return converted[0]

    net._clear_cached_op()
    object.__setattr__(net, _REPLACED, get_graph)
    net._active = True
    try:
        yield
    finally:
        object.__delattr__(net, _REPLACED)
        net._clear_cached_op()
        net._active, net._cached_graph = active, graph


@contextmanager
def run_as_code(blocks: Iterable[Any]) -> Iterator[None]:
    """Inside `with`, calls of these blocks run Python, so that hooks inside them fire (T35)."""
    active = [block for block in {id(block): block for block in blocks}.values() if is_hybridized(block)]
    for block in active:
        block._active = False
    try:
        yield
    finally:
        for block in active:
            block._active = True


def opened(net: Any, paths: Collection[str]) -> Any:
    """Inside `with`, blocks above those at `paths` run as plain ones, so that calls of these can be recorded (T35)."""
    blocks = dict(blocks_by_path(net))
    sought = {id(block) for path, block in blocks.items() if path in paths}
    # a shared block may be called from above each of its paths
    places = [path for path, block in blocks.items() if path and id(block) in sought]
    return run_as_code(
        block
        for path, block in blocks.items()
        if any(place.startswith(f"{path}." if path else path) for place in places)
    )


@contextmanager
def hooks_replaced(net: Any, hooks: Callable[[str, Any], Tuple[Any, Any]] = lambda path, block: (None, None)) -> Any:
    """Inside `with`, blocks have no hooks but those that `hooks(path, block)` gives: for before, for after, or None.

    The user's hooks may not know what to do with symbols (T35), and would tell their owner of a forward pass that was
    none of the training's.
    """
    blocks = distinct(dict(blocks_by_path(net)))
    own = [(block, block._forward_pre_hooks, block._forward_hooks) for block in blocks.values()]
    try:
        for path, block in blocks.items():
            before, after = (OrderedDict({0: hook} if hook else {}) for hook in hooks(path, block))
            block._forward_pre_hooks, block._forward_hooks = before, after
        yield
    finally:
        for block, before, after in own:
            block._forward_pre_hooks, block._forward_hooks = before, after


@contextmanager
def copyable(net: Any) -> Iterator[None]:
    """Inside `with`, a net can be copied by `copy.deepcopy`: its blocks hold no graphs (T54) and no hooks.

    A trace leaves on a block the scope of the net that it was made in, whose graph cannot be copied either.
    """
    blocks = list(distinct(dict(blocks_by_path(net))).values())
    scopes = [(block._scope, block._scope._old_scope) for block in blocks]
    try:
        with attributes_restored(blocks), hooks_replaced(net):
            for block in blocks:
                block._scope._old_scope = None
                drop_graph(block)
            yield
    finally:
        for scope, outer in scopes:
            scope._old_scope = outer
