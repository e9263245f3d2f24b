"""Run as graphs what gives the same operators in training and in predict mode; norms from faster operators by name."""

from contextlib import contextmanager
from functools import partial
from typing import Any, Iterator, Tuple

from mxkit.core.blocks import blocks_by_path, child_blocks
from mxkit.runtime.gluon_layers import FASTER
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.util import is_np_array

# What code asks that gives other operators in training: its graph would keep those of the first call (T39).
_MODE = {"is_training", "is_recording"}


def hybridize(net: Any, *, fast: bool = False, **kwargs: Any) -> None:
    """Hybridize a net, but not blocks whose code asks whether it trains: gluoncv's SSD, YOLOV3 and others (T39).

    A hybridized SSD keeps the outputs of its first call: called first in predict mode it trains on detections, and
    called first in training it detects nothing. Here such a block stays Python, and its children become graphs.

    Args:
        net: A block. One that is no HybridBlock stays as it is; its children are hybridized.
        fast: Let gluon's LayerNorm (over the last axis), InstanceNorm (of axis 1) and GroupNorm compute their sums by
            matrix products. MXNet's own operators add number by number: on a CPU a training step of these layers takes
            two to four times as long (T289). In graphs, `tanh`, `sigmoid` and the mean over axis 1 are computed by
            faster operators too (T291). The last bits differ, and predictions of LayerNorm become slower. Norms of
            `mx.np` stay as they are. On a CPU, fast norms and means need float32 or float64. The faster tanh and
            sigmoid have no second derivatives; under `amp`, tanh, sigmoid and mean stay as they are.
        **kwargs: As for `HybridBlock.hybridize`, like `static_alloc=True`.

    Side effects:
        With `fast`, the layers compute so from now on, hybridized or not. `save_net` writes them as gluon's.

    >>> net = mxkit.models.get_model("mlp"); hybridize(net)
    >>> net._active
    True
    """
    for _, block in blocks_by_path(net) if fast else ():
        _speed_up(block)
    if isinstance(net, gluon.HybridBlock) and not any(_asks_for_mode(block) for _, block in blocks_by_path(net)):
        net.hybridize(**kwargs)
        return
    for child in child_blocks(net).values():
        hybridize(child, **kwargs)


def _asks_for_mode(block: Any) -> bool:
    code = getattr(getattr(type(block), "hybrid_forward", None), "__code__", None)
    return code is not None and bool(_MODE & set(code.co_names))


def _speed_up(block: Any) -> None:
    """Give a norm the `hybrid_forward` from matrix products, and graphs of other blocks faster operators."""
    setattr(block, FASTER, True)
    if type(block) is nn.LayerNorm and block._axis == -1:
        block.hybrid_forward = partial(fast_norm, block, (-1, 1, 0))
    elif type(block) is nn.InstanceNorm and block._axis == 1:
        block.hybrid_forward = partial(fast_norm, block, (0, 0, -1))
    elif type(block) is nn.GroupNorm:
        block.hybrid_forward = partial(fast_norm, block, (0, block._num_groups, -1))


@contextmanager
def usual_layers(net: Any) -> Iterator[None]:
    """Let fast norms compute by MXNet's operators inside `with`: what leaves MXNet then has a LayerNorm."""
    own = [(block, vars(block).get("hybrid_forward")) for _, block in blocks_by_path(net)]
    fast = [(block, one) for block, one in own if getattr(one, "func", None) is fast_norm]
    for block, _ in fast:
        del block.hybrid_forward
    try:
        yield
    finally:
        for block, one in fast:
            block.hybrid_forward = one


def fast_norm(
    block: Any,
    shape: Tuple[int, int, int],
    F: Any,  # noqa: N803
    x: Any,
    gamma: Any,
    beta: Any,
) -> Any:
    """A norm over the last axis of `x` in this shape, in the words of `reshape`; axis 1 counts groups of channels.

    Sums, and the gradients of spread numbers, which are sums, are matrix products.
    """
    if is_np_array():
        return type(block).hybrid_forward(block, F, x, gamma, beta)
    by_group = shape[-1] == -1
    parts = F.reshape(x, shape=shape, reverse=not by_group)
    # sums with zeros tell MXNet the shapes of parameters that wait for a first batch
    zeros = F.zeros_like(F.slice(parts, begin=(0, 0, 0), end=(1, None, 1) if by_group else (1, 1, None)).reshape((-1,)))
    scale, shift = ((one + zeros).reshape((1, -1)) for one in (gamma, beta))
    one = F.slice_axis(F.ones_like(scale), axis=1, begin=0, end=1)  # of the parameters' dtype: float32 under amp
    rows = parts.reshape((-3, 0))
    ones = F.broadcast_mul(one, F.ones_like(F.slice_axis(rows, axis=0, begin=0, end=1)))
    size = F.dot(ones, ones, transpose_b=True)
    mean = F.broadcast_div(F.dot(rows, ones, transpose_b=True), size)
    # The variance's gradient through the mean is 0; `moved`, which is 0, has the outputs' gradient through it.
    held = F.BlockGrad(mean)
    centred = rows - F.dot(held, ones)
    variance = F.broadcast_div(F.dot(F.square(centred), ones, transpose_b=True), size)
    root = F.rsqrt(variance + block._epsilon)
    moved = (held - mean) * root
    if not by_group:
        both = F.concat(scale, shift, dim=0)
        scaled, shifted = F.dot(root, scale), F.dot(F.concat(moved, F.ones_like(root), dim=1), both)
    else:
        samples = F.ones_like(F.slice(parts, begin=(None, 0, 0), end=(None, 1, 1)).reshape((-1, 1)))
        scale, shift = (F.dot(F.broadcast_mul(one, samples), each).reshape((-1, 1)) for each in (scale, shift))
        scaled, shifted = F.dot(root * scale, ones), F.dot(moved * scale + shift, ones)
    return F.reshape_like(centred * scaled + shifted, x)
