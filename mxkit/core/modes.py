"""What a forward pass does in training: MXNet's one switch for all layers, taken apart."""

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

from mxkit.core.blocks import blocks_by_path
from mxnet import autograd, gluon
from mxnet.gluon.nn.basic_layers import _BatchNorm


@contextmanager
def mode(*, record: Optional[bool] = None, train: Optional[bool] = None) -> Iterator[None]:
    """Set apart what MXNet's contexts join: whether gradients are recorded, and whether layers behave as in training.

    `autograd.record()` switches both on and `pause()` both off, unless told otherwise; here nothing changes but what
    is named. Blocks may be nested; the innermost decides, and each puts back what was.

    Args:
        record: Record for gradients, or not. None leaves it.
        train: Dropout drops and BatchNorm takes its statistics from the batch, or not. None leaves it.

    Returns:
        A context manager; what was before is put back at its end, also after an error.

    >>> with mode(record=True):  # a gradient through the net as it predicts
    ...     mx.autograd.is_recording(), mx.autograd.is_training()
    (True, False)
    """
    before = autograd.is_recording(), autograd.is_training()
    try:
        if record is not None:
            autograd.set_recording(record)
        if train is not None:
            autograd.set_training(train)
        yield
    finally:
        autograd.set_recording(before[0])
        autograd.set_training(before[1])


def batch_norms(net: Any) -> Dict[str, Any]:
    """BatchNorm layers by path that take statistics from each batch in training; a shared one under its first path.

    Raises:
        ValueError: There are such layers in the graph of a SymbolBlock, which nobody can reach.
    """
    found: Dict[str, Any] = {}
    for path, block in blocks_by_path(net):
        if isinstance(block, gluon.SymbolBlock) and '"op": "BatchNorm' in block._cached_graph[1].tojson():
            raise ValueError(
                f"{repr(path) if path else 'the net'} is a SymbolBlock with BatchNorm in its graph, which cannot be "
                "changed. Build the net from its code, and load the parameters with mxkit.load_parameters"
            )
        if isinstance(block, _BatchNorm) and not block._kwargs["use_global_stats"] and block not in found.values():
            found[path] = block
    return found


@contextmanager
def kept_statistics(net: Any) -> Iterator[None]:
    """Put back, after `with`, what a forward pass in training mode moves on a GPU: running statistics (T126).

    On a CPU they move in the backward pass. Parameters without values are left alone.
    """
    kept = [(one, [array.copy() for array in one.list_data()]) for one in _statistics(net) if one._data is not None]
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
        states = block._cached_graph[1].list_auxiliary_states() if isinstance(block, gluon.SymbolBlock) else ()
        for parameter in block._reg_params.values():
            if parameter.name in states or not parameter._differentiable:
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
    blocks = [block for _, block in blocks_by_path(net) if isinstance(block, gluon.HybridBlock)]
    kept = [(block, dict(vars(block))) for block in blocks]
    try:
        if layers:
            for block in blocks:
                block._clear_cached_op()
        for layer in layers.values():
            layer._kwargs["use_global_stats"] = True
        yield list(layers)
    finally:
        for layer in layers.values():
            layer._kwargs["use_global_stats"] = False
        if layers:
            for block, attributes in kept:
                for name in _CACHED:
                    if name in attributes:
                        vars(block)[name] = attributes[name]


# What HybridBlock._clear_cached_op takes away.
_CACHED = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")
