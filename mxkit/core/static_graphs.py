"""Graphs of fixed memory, which go on writing into gradients that are no longer there (T109)."""

from typing import Any

from mxkit.core.blocks import blocks_by_path
import mxnet as mx
from mxnet import gluon


def forget_static_graphs(net: Any) -> None:
    """Have graphs that were hybridized with `static_shape` made anew at their next call.

    Such a graph keeps the gradients that its first backward pass wrote. Where a parameter gets others (frozen and
    unfrozen, `grad_req` set to "add" and back, initialized anew, moved), it goes on writing into the old ones: the new
    stay 0, in silence (T109).

    Side effects:
        Waits for the device where there is such a graph; the memory that it held is freed.
    """
    static = [block for _, block in blocks_by_path(net) if _holds_gradients(block)]
    if static:
        mx.nd.waitall()
    for block in static:
        block._cached_op = None  # made anew from the block's own graph, which stays


def _holds_gradients(block: Any) -> bool:
    made = isinstance(block, gluon.HybridBlock) and block._cached_op is not None
    return made and bool(dict(block._flags).get("static_shape"))
