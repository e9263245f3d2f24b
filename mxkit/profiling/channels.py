"""Times convolutions whose channels are not multiples of a vector, as they are and with padded channels."""

from pathlib import Path
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from mxkit.core.blocks import blocks_by_path, layer_settings, operator_name
from mxkit.nets.layer_table.table import layers
import mxnet as mx
from mxnet import autograd
from mxnet.gluon.nn.conv_layers import _Conv

MEASURED = 6  # number of convolutions, the most expensive ones
ROUNDS = 15
# oneDNN has special kernels for images of 1 to 4 channels.
_IMAGE = 4


class Padding(NamedTuple):
    """Times of a convolution with its own channels and with padded ones.

    Attributes:
        path: Its path in the net.
        channels: Input and output channels.
        ms: Milliseconds of forward and backward, for the batch of one device.
        padded: Input and output channels as multiples of `width`.
        padded_ms: Milliseconds of forward and backward with padded channels.
        width: Numbers that one instruction of this machine computes.
    """

    path: str
    channels: Tuple[int, int]
    ms: float
    padded: Tuple[int, int]
    padded_ms: float
    width: int


def vector_width(flags: str) -> int:
    """Channels that oneDNN's kernels compute at once: 16 with AVX-512, else 8 (T97).

    >>> vector_width("sse4_2 avx2 avx512f"), vector_width("sse4_2 avx2")
    (16, 8)
    """
    return 16 if "avx512f" in flags.split() else 8


def measure_paddings(net: Any, inputs: Sequence[Tuple[int, ...]]) -> List[Padding]:
    """Time the most expensive convolutions whose channels are not multiples, as they are and with more channels.

    Args:
        net: An initialized float32 net on the CPU.
        inputs: Shapes of its inputs, with the batch axis.

    Raises:
        MxkitError: As `layers`, if the net is not called with these inputs.
    """
    processor = Path("/proc/cpuinfo")
    width = vector_width(processor.read_text(encoding="utf-8") if processor.is_file() else "")
    blocks = dict(blocks_by_path(net))
    rows = [row for row in layers(net, *inputs) if row.outputs and _is_slow(blocks[row.path], width)]
    rows.sort(key=lambda row: -(row.macs or 0))
    return [_measure(row.path, blocks[row.path], row.outputs[0], width) for row in rows[:MEASURED]]


def _is_slow(block: Any, width: int) -> bool:
    if not isinstance(block, _Conv) or operator_name(block) != "Convolution":
        return False
    settings = layer_settings(block)
    out, into = block.weight.shape[:2]
    plain = settings["num_group"] == 1 and settings["layout"].startswith("NC")
    return bool(plain and (out % width or (into > _IMAGE and into % width)))


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
            if number:  # the first round creates the kernels
                best[position] = min(best[position], time.perf_counter() - begin)
    return Padding(path, (into, out), best[0] * 1e3, padded, best[1] * 1e3, width)


def _call(block: Any, output: Tuple[int, ...], into: int, out: int) -> Callable[[], None]:
    """A function that runs forward and backward of the convolution with other channels and the same output size."""
    settings: Dict[str, Any] = {**layer_settings(block), "num_filter": out, "no_bias": True}
    sides = tuple(
        (size - 1) * stride + dilate * (kernel - 1) + 1 - 2 * pad
        for size, stride, dilate, kernel, pad in zip(
            output[2:], settings["stride"], settings["dilate"], settings["kernel"], settings["pad"]
        )
    )
    x = mx.nd.ones((output[0], into, *sides))
    weight = mx.nd.ones((out, into, *settings["kernel"]))
    weight.attach_grad()
    if into > _IMAGE:  # training needs no gradient of images
        x.attach_grad()
    head = mx.nd.ones((output[0], out, *output[2:]))

    def call() -> None:
        with autograd.record():
            y = mx.nd.Convolution(x, weight, **settings)
        y.backward(head)

    return call
