"""Running statistics, which training changes without gradients: of BatchNorm and of users' layers."""

from contextlib import contextmanager, nullcontext
from typing import Any, Dict, Iterator, List, Set, Tuple

from mxkit.core.arrays import copied, copy_into
from mxkit.core.blocks import blocks_by_path, distinct_blocks, layer_settings, net_devices, own_parameters
from mxkit.core.graph import Graph
from mxkit.core.graphs import block_operators, drop_graph, graphs_left_aside, traced_graph
from mxkit.core.replicas import is_differentiable, values_of
from mxnet import gluon
from mxnet.gluon.nn.basic_layers import _BatchNorm


def batch_norms(net: Any) -> Dict[str, Any]:
    """BatchNorm layers that use the statistics of the batch in training, by first path.

    Raises:
        ValueError: The graph of a SymbolBlock has such layers, which cannot be changed.
    """
    blocks = distinct_blocks(net)
    for path, block in blocks.items():
        if any(one.operator.startswith("BatchNorm") for one in block_operators(block)):
            raise ValueError(
                f"{repr(path) if path else 'the net'} is a SymbolBlock with BatchNorm in its graph, which cannot be "
                "changed. Build the net from its code, and load the parameters with mxkit.load_parameters"
            )
    return {path: block for path, block in blocks.items() if takes_statistics(block)}


def takes_statistics(block: Any) -> bool:
    """Whether a layer is a BatchNorm that uses the statistics of the batch in training."""
    return isinstance(block, _BatchNorm) and not layer_settings(block)["use_global_stats"]


def fix_statistics(net: Any, frozen: Set[int]) -> None:
    """Let BatchNorms without a trained gamma or beta use their running statistics in training too (use_global_stats).

    Where nothing before them is trained, MXNet does not move these statistics, and the layers behind would learn from
    other numbers than they get in prediction (T265).

    Args:
        net: Any block; BatchNorms in the graphs of SymbolBlocks change, too.
        frozen: Ids of parameters; only BatchNorms with one of them change.
    """
    changed = False
    for _, block in blocks_by_path(net):
        for scale, statistics, settings, true in _norms(block):
            if frozen.intersection(map(id, scale)) and all(one.grad_req == "null" for one in scale):
                settings["use_global_stats"], changed = true, True
                for one in statistics:
                    first, *others = values_of(one) or [None]
                    for other in others:  # a Trainer's first step does so too (T98); set_data would reset its kvstore
                        copy_into(first, other)
    for _, block in blocks_by_path(net) if changed else ():
        drop_graph(block)


def _norms(block: Any) -> Iterator[Tuple[List[Any], List[Any], Dict[str, Any], Any]]:
    """Yield gamma and beta, running statistics, arguments, and how True is written, of BatchNorms of a block's own."""
    if isinstance(block, _BatchNorm):
        yield [block.gamma, block.beta], [block.running_mean, block.running_var], layer_settings(block), True
    if isinstance(block, gluon.SymbolBlock):
        inputs, output = traced_graph(block)
        graph, own = Graph.of(output), dict(block.params.items())
        for node in graph.nodes:
            if "BatchNorm" in node.operator:
                four = [own.get(one.name) for one in graph.sources(node)[1:]]
                scale, statistics = ([one for one in two if one is not None] for two in (four[:2], four[2:]))
                yield scale, statistics, node.content.setdefault("attrs", {}), "True"
        block._cached_graph = inputs, graph.symbol()


@contextmanager
def kept_statistics(net: Any) -> Iterator[None]:
    """Restore running statistics after `with`: on a GPU, a forward pass in training mode changes them (T126).

    On a CPU, the backward pass changes them. Parameters without values are ignored.
    """
    before = [(one, list(map(copied, values_of(one) or ()))) for one in statistics_of(net)]
    try:
        yield
    finally:
        for parameter, copies in before:
            for array, copy in zip(values_of(parameter) or (), copies):
                copy_into(copy, array)


@contextmanager
def first_statistics(net: Any) -> Iterator[None]:
    """Give all devices the running statistics of the first one inside `with`, as files of the net hold them (T71)."""
    if len(net_devices(net)) == 1:
        yield
        return
    with kept_statistics(net):
        for parameter in statistics_of(net):
            first, *others = values_of(parameter) or [None]
            for other in others:
                copy_into(first, other)
        yield


def statistics_of(net: Any) -> List[Any]:
    """Parameters that the forward pass of a stock layer or of a user's layer writes."""
    statistics: Dict[int, Any] = {}
    for _, block in blocks_by_path(net):
        states = traced_graph(block)[1].list_auxiliary_states() if isinstance(block, gluon.SymbolBlock) else ()
        for parameter in own_parameters(block).values():
            if parameter.name in states or not is_differentiable(parameter):
                statistics[id(parameter)] = parameter
    return list(statistics.values())


@contextmanager
def running_statistics(net: Any) -> Iterator[List[str]]:
    """Let BatchNorm use its running statistics in train mode inside `with`, so that only dropout is random.

    Args:
        net: Any block; its cached graphs are restored afterwards.

    Yields:
        Paths of the BatchNorm layers.

    Raises:
        ValueError: Such layers are in the graph of a SymbolBlock.
    """
    layers = batch_norms(net)
    with graphs_left_aside(net) if layers else nullcontext():
        try:
            for layer in layers.values():
                layer_settings(layer)["use_global_stats"] = True
            yield list(layers)
        finally:
            for layer in layers.values():
                layer_settings(layer)["use_global_stats"] = False
