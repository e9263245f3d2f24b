"""Graphs of hybridized blocks (read, dropped, replaced, restored), and hooks, which do not fire inside a graph."""

from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from mxkit.core.arrays import legacy
from mxkit.core.blocks import blocks_by_path, distinct_blocks
from mxkit.core.graph import Graph, Node
import mxnet as mx
from mxnet import gluon

# Attributes that HybridBlock._clear_cached_op resets
_CACHED = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")
# The attribute that `graph_replaced` sets on the block itself
_REPLACED = "_get_graph"


def is_hybridized(block: Any) -> bool:
    """Whether calls of a block run its graph. A plain Block has none."""
    return bool(getattr(block, "_active", False))


def hybridize_flags(block: Any) -> Dict[str, Any]:
    """Arguments of the last `hybridize`, like static_alloc."""
    return dict(block._flags)


def hybridize_like(block: Any, other: Any) -> None:
    """Hybridize a block like another one, if the other is hybridized."""
    if is_hybridized(other):
        block.hybridize(**hybridize_flags(other))


def traced_graph(block: Any) -> Tuple[Any, ...]:
    """Inputs and output of a block's graph as symbols; () if the block was not traced."""
    return tuple(getattr(block, "_cached_graph", ()))


def block_operators(block: Any) -> Iterator[Node]:
    """Operators in the graph of a SymbolBlock; none for any other block."""
    return Graph.of(traced_graph(block)[1]).operators() if isinstance(block, gluon.SymbolBlock) else iter(())


def argument_order(symbol: Any, inputs: Iterable[Any], values: Mapping[str, Any]) -> List[Any]:
    """For each argument of a graph the number of the input with its name, or else its value."""
    numbers = {variable.name: number for number, variable in enumerate(inputs)}
    return [numbers.get(name, values.get(name)) for name in symbol.list_inputs()]


def cached_operator(symbol: Any, order: Sequence[Any], **flags: Any) -> Any:
    """A `CachedOp` of a graph whose arguments are in an `argument_order`.

    Inputs are numbers in that order, and all other arguments stay the same arrays: with `static_shape`, MXNet then
    prepares each operator once. Without this flag it prepares every operator that reads a parameter in each call.
    """
    for index, argument in enumerate(order):
        flags.setdefault("data_indices" if isinstance(argument, int) else "param_indices", []).append(index)
    return mx.nd.CachedOp(symbol, list(flags.items()))


def nesting(block: Any) -> Tuple[Any, Any]:
    """Nesting of a traced block's inputs and outputs: 0 is one symbol, n above 0 is a symbol with n outputs."""
    return block._in_format, block._out_format


def graph_parameters(block: Any) -> Dict[str, Any]:
    """Parameters that a traced block's graph reads, by Gluon's names."""
    return {parameter.name: parameter for is_data, parameter in block._cached_op_args if not is_data}


def only_its_graph_runs(block: Any) -> bool:
    """Whether a call of a block only runs its graph, as MXNet traced it."""
    if not (is_hybridized(block) and traced_graph(block)):
        return False
    hooks = block._forward_hooks or block._forward_pre_hooks or block._callback
    return not hooks and not {"forward", _REPLACED}.intersection(vars(block))  # of mixed precision, for example


def has_one_plain_output(block: Any) -> bool:
    """Whether a traced block returns one NDArray, and its graph has no parts of another backend."""
    return bool(block._out_format == 0 and type(legacy(traced_graph(block)[1])) is mx.sym.Symbol and not block._backend)


def drop_graph(block: Any) -> None:
    """Drop the graph of a block; its next call traces a new one. A plain Block has no graph."""
    if isinstance(block, gluon.HybridBlock):
        block._clear_cached_op()


def drop_static_graphs(net: Any) -> None:
    """Drop the operators of graphs hybridized with `static_shape`; the next call makes new ones.

    Such a graph keeps the gradient arrays of its first backward pass. A parameter gets new gradient arrays if it is
    frozen and unfrozen, moved or initialized again, or if `grad_req` becomes "add". The graph still writes to the old
    arrays, and the new ones stay 0 without an error (T109).

    Side effects:
        If there is such a graph, waits for the device and frees the graph's memory.
    """
    hybrid = [block for _, block in blocks_by_path(net) if isinstance(block, gluon.HybridBlock)]
    static = [block for block in hybrid if block._cached_op is not None and hybridize_flags(block).get("static_shape")]
    if static:
        mx.nd.waitall()
    for block in static:
        block._cached_op = None  # the next call makes the operator from the block's graph, which stays


def free_static_memory(net: Any) -> None:
    """Free the memory that a net hybridized with `static_alloc` holds for a batch; its next call allocates it again."""
    if hybridize_flags(net).get("static_alloc"):
        net._cached_op = None
        mx.nd.waitall()


@contextmanager
def attributes_restored(things: Iterable[Any]) -> Iterator[None]:
    """Restore the attributes of blocks and parameters after `with`, and remove new ones."""
    before = [(thing, dict(vars(thing))) for thing in {id(thing): thing for thing in things}.values()]
    try:
        yield
    finally:
        for thing, attributes in before:
            vars(thing).update(attributes)  # other threads that call the net miss none meanwhile
            for name in vars(thing).keys() - attributes.keys():
                del vars(thing)[name]


@contextmanager
def graphs_left_aside(net: Any) -> Iterator[None]:
    """Let blocks trace new graphs inside `with`, and restore their earlier graphs after it."""
    blocks = [block for _, block in blocks_by_path(net) if isinstance(block, gluon.HybridBlock)]
    graphs = [(block, {name: vars(block)[name] for name in _CACHED if name in vars(block)}) for block in blocks]
    try:
        for block in blocks:
            drop_graph(block)
        yield
    finally:
        for block, attributes in graphs:
            vars(block).update(attributes)


@contextmanager
def graph_replaced(net: Any, convert: Callable[[Any, Any, Sequence[Any]], Tuple[Any, Any]]) -> Iterator[None]:
    """Let a HybridBlock run the result of `convert(inputs, output, arrays)` inside `with`, instead of its own graph.

    `arrays` are what the net is called with first.

    Side effects:
        The net is hybridized inside `with`. After it, the net is as before, and its next call traces a new graph.
    """
    if _REPLACED in vars(net):  # `fit` replaces the graph for all epochs, `updates` for each
        yield
        return
    active, graph, own = net._active, net._cached_graph, net._get_graph
    converted: List[Any] = []

    def get_graph(*inputs: Any) -> Any:
        if not converted:
            names, output = own(*inputs)
            converted.append(convert(names, output, inputs))
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
    """Run these blocks as Python code inside `with`, so that hooks inside them fire (T35)."""
    active = [block for block in {id(block): block for block in blocks}.values() if is_hybridized(block)]
    for block in active:
        block._active = False
    try:
        yield
    finally:
        for block in active:
            block._active = True


def opened(net: Any, paths: Collection[str]) -> Any:
    """Run the parents of the blocks at `paths` as Python code inside `with`, so that the blocks' hooks fire (T35)."""
    blocks = dict(blocks_by_path(net))
    ids = {id(blocks[path]) for path in paths if path in blocks}
    # a shared block may be called by the parents of each of its paths
    every_path = [path for path, block in blocks.items() if path and id(block) in ids]
    above = (path for path in blocks if any(inner.startswith(f"{path}." if path else path) for inner in every_path))
    return run_as_code(blocks[path] for path in above)


@contextmanager
def hooks_replaced(net: Any, hooks: Callable[[str, Any], Tuple[Any, Any]] = lambda path, block: (None, None)) -> Any:
    """Replace the hooks of all blocks inside `with` by `hooks(path, block)`: a pre-hook and a hook, or None.

    The user's hooks may fail on symbols (T35), and would report a forward pass that is not part of the training.
    Pre-hooks of mxkit's with the attribute `stays` stay.
    """
    blocks = distinct_blocks(net)
    own = [(block, block._forward_pre_hooks, block._forward_hooks) for block in blocks.values()]
    try:
        for path, block in blocks.items():
            before, after = (OrderedDict({0: hook} if hook else {}) for hook in hooks(path, block))
            before.update((id(one), one) for one in block._forward_pre_hooks.values() if hasattr(one, "stays"))
            block._forward_pre_hooks, block._forward_hooks = before, after
        yield
    finally:
        for block, before, after in own:
            block._forward_pre_hooks, block._forward_hooks = before, after


@contextmanager
def copyable(net: Any) -> Iterator[None]:
    """Make a net copyable by `copy.deepcopy` inside `with`: its blocks have no graphs (T54) and no hooks.

    A traced block also refers to the scope of its parent, whose graph cannot be copied either.
    """
    blocks = list(distinct_blocks(net).values())
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
