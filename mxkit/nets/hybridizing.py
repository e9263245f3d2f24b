"""Run as graphs what gives the same operators in training and in predict mode."""

from typing import Any

from mxkit.core.blocks import blocks_by_path, child_blocks
from mxnet import gluon

# What code asks that gives other operators in training: its graph would keep those of the first call (T39).
_MODE = {"is_training", "is_recording"}


def hybridize(net: Any, **kwargs: Any) -> None:
    """Hybridize a net, but not blocks whose code asks whether it trains: gluoncv's SSD, YOLOV3 and others (T39).

    A hybridized SSD keeps the outputs of its first call: called first in predict mode it trains on detections, and
    called first in training it detects nothing. Here such a block stays Python, and its children become graphs.

    Args:
        net: A block. One that is no HybridBlock stays as it is; its children are hybridized.
        **kwargs: As for `HybridBlock.hybridize`, like `static_alloc=True`.

    >>> net = mxkit.models.get_model("mlp"); hybridize(net)
    >>> net._active
    True
    """
    if isinstance(net, gluon.HybridBlock) and not any(_asks_for_mode(block) for _, block in blocks_by_path(net)):
        net.hybridize(**kwargs)
        return
    for child in child_blocks(net).values():
        hybridize(child, **kwargs)


def _asks_for_mode(block: Any) -> bool:
    code = getattr(getattr(type(block), "hybrid_forward", None), "__code__", None)
    return code is not None and bool(_MODE & set(code.co_names))
