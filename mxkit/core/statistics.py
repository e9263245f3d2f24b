"""Running statistics, which training moves beside the gradients: BatchNorm's, and those of layers of one's own."""

from contextlib import contextmanager, nullcontext
from typing import Any, Dict, Iterator, List

from mxkit.core.blocks import blocks_by_path, distinct, layer_settings, own_parameters
from mxkit.core.graphs import graphs_left_aside, traced_graph
from mxkit.core.replicas import is_differentiable, values_of
from mxnet import gluon
from mxnet.gluon.nn.basic_layers import _BatchNorm


def batch_norms(net: Any) -> Dict[str, Any]:
    """BatchNorm layers by path that take statistics from each batch in training; a shared one under its first path.

    Raises:
        ValueError: There are such layers in the graph of a SymbolBlock, which nobody can reach.
    """
    blocks = distinct(dict(blocks_by_path(net)))
    for path, block in blocks.items():
        if isinstance(block, gluon.SymbolBlock) and '"op": "BatchNorm' in traced_graph(block)[1].tojson():
            raise ValueError(
                f"{repr(path) if path else 'the net'} is a SymbolBlock with BatchNorm in its graph, which cannot be "
                "changed. Build the net from its code, and load the parameters with mxkit.load_parameters"
            )
    return {path: block for path, block in blocks.items() if takes_statistics(block)}


def takes_statistics(block: Any) -> bool:
    """Whether a layer is a BatchNorm that takes statistics from each batch in training."""
    return isinstance(block, _BatchNorm) and not layer_settings(block)["use_global_stats"]


@contextmanager
def kept_statistics(net: Any) -> Iterator[None]:
    """Put back, after `with`, what a forward pass in training mode moves on a GPU: running statistics (T126).

    On a CPU they move in the backward pass. Parameters without values are left alone.
    """
    kept = [(one, [array.copy() for array in one.list_data()]) for one in _statistics(net) if values_of(one)]
    try:
        yield
    finally:
        for parameter, copies in kept:
            for array, copy in zip(parameter.list_data(), copies):
                array[:] = copy


def _statistics(net: Any) -> List[Any]:
    """Parameters that a layer's forward pass writes, of stock layers and of the user's."""
    found: Dict[int, Any] = {}
    for _, block in blocks_by_path(net):
        states = traced_graph(block)[1].list_auxiliary_states() if isinstance(block, gluon.SymbolBlock) else ()
        for parameter in own_parameters(block).values():
            if parameter.name in states or not is_differentiable(parameter):
                found[id(parameter)] = parameter
    return list(found.values())


@contextmanager
def running_statistics(net: Any) -> Iterator[List[str]]:
    """Let BatchNorm use its running statistics in training too, inside `with`: in train mode only dropout is left.

    Args:
        net: Any block; graphs that it has cached are kept for afterwards.

    Yields:
        Paths of the layers that this concerns.

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
