"""Convolutions whose channel counts oneDNN's fast kernels do not take, and what other counts would cost."""

from pathlib import Path
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from mxkit.core.blocks import blocks_by_path, layer_settings, operator_name
from mxkit.nets.layer_table.table import layers
import mxnet as mx
from mxnet import autograd
from mxnet.gluon.nn.conv_layers import _Conv

MEASURED = 6  # the most expensive ones
ROUNDS = 15
# Images of 1 or 3 channels have kernels of their own.
_IMAGE = 4


class Padding(NamedTuple):
    """A convolution with the channels it has, and with the next ones that fast kernels take.

    Attributes:
        path: In the net.
        channels: In and out.
        ms: Of forward and backward, the batch of one device.
        padded: In and out, multiples of `width`.
        padded_ms: Of forward and backward.
        width: Numbers that one instruction of this machine computes.
    """

    path: str
    channels: Tuple[int, int]
    ms: float
    padded: Tuple[int, int]
    padded_ms: float
    width: int


def vector_width(flags: str) -> int:
    """Channels that oneDNN's kernels take at once: 16 with AVX-512, else 8 (T97).

    >>> vector_width("sse4_2 avx2 avx512f"), vector_width("sse4_2 avx2")
    (16, 8)
    """
    return 16 if "avx512f" in flags.split() else 8


def measure_paddings(net: Any, inputs: Sequence[Tuple[int, ...]]) -> List[Padding]:
    """Time the most expensive convolutions whose channels are no multiples, as they are and with more channels.

    Args:
        net: An initialized float32 net on the CPU.
        inputs: Shapes of what it takes, the batch included.

    Raises:
        MxkitError: As `layers`, where the net is not called with these inputs.
    """
    processor = Path("/proc/cpuinfo")
    width = vector_width(processor.read_text(encoding="utf-8") if processor.is_file() else "")
    found = []
    blocks = dict(blocks_by_path(net))
    for row in layers(net, *inputs):
        block = blocks[row.path]
        if isinstance(block, _Conv) and _misfit(block, width) and row.outputs:
            found.append((row, block))
    found.sort(key=lambda one: -(one[0].macs or 0))
    return [_measure(row.path, block, row.outputs[0], width) for row, block in found[:MEASURED]]


def _misfit(block: Any, width: int) -> bool:
    given = layer_settings(block)
    if operator_name(block) != "Convolution" or given["num_group"] != 1 or not given["layout"].startswith("NC"):
        return False
    out, into = block.weight.shape[:2]
    return bool(out % width or (into > _IMAGE and into % width))


def _measure(path: str, block: Any, output: Tuple[int, ...], width: int) -> Padding:
    out, into = block.weight.shape[:2]
    padded = into if into <= _IMAGE else -(-into // width) * width, -(-out // width) * width
    calls = [_call(block, output, *channels) for channels in ((into, out), padded)]
    best = [float("inf")] * 2
    for number in range(ROUNDS + 1):
        for position, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            mx.nd.waitall()
            if number:  # the first one makes the kernels
                best[position] = min(best[position], time.perf_counter() - begin)
    return Padding(path, (into, out), best[0] * 1e3, padded, best[1] * 1e3, width)


def _call(block: Any, output: Tuple[int, ...], into: int, out: int) -> Callable[[], None]:
    """Forward and backward of the convolution with other channels, whose output has the same positions."""
    given: Dict[str, Any] = {**layer_settings(block), "num_filter": out, "no_bias": True}
    sides = tuple(
        (size - 1) * stride + dilate * (kernel - 1) + 1 - 2 * pad
        for size, stride, dilate, kernel, pad in zip(
            output[2:], given["stride"], given["dilate"], given["kernel"], given["pad"]
        )
    )
    x = mx.nd.ones((output[0], into, *sides))
    weight = mx.nd.ones((out, into, *given["kernel"]))
    weight.attach_grad()
    if into > _IMAGE:  # nobody asks for the gradient of images
        x.attach_grad()
    head = mx.nd.ones((output[0], out, *output[2:]))

    def call() -> None:
        with autograd.record():
            found = mx.nd.Convolution(x, weight, **given)
        found.backward(head)

    return call
