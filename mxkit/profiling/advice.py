"""Advice that follows from the figures of a profile."""

import os
import re
from typing import Any, Iterator, List

from mxkit.core.blocks import blocks_by_path, layer_settings, operator_name, parameters_by_path
from mxkit.core.graphs import is_hybridized
from mxkit.profiling.clock import PHASES
from mxkit.profiling.result import Profile, short_name
from mxkit.runtime.doctor.hardware import thread_line
from mxkit.runtime.engine_settings import SPACES
from mxkit.runtime.machine import processor_flags, read_processors
from mxnet import gluon
from mxnet.gluon.nn.conv_layers import _Conv
import numpy as np

# Shares of an update below which a figure gives no advice.
_NOTABLE = 0.1
_IDLE = 0.2
_FAST = "mxkit.nets.hybridize(net, fast=True)"
# What computes the same as an operator, several times as fast (`python -m benchmarks operators`).
_SIBLINGS = {
    **dict.fromkeys(("LayerNorm", "InstanceNorm", "GroupNorm", "sigmoid", "tanh"), _FAST),
    "relu": "nn.Activation('relu')",
    "erf": "nn.GELU",
    "dot": "F.FullyConnected(x, weight, no_bias=True)",
}


def advice(profile: Profile, net: Any) -> List[str]:
    """Sentences that say what would make the training faster, with figures; at least one.

    Args:
        profile: The figures.
        net: The trained net.
    """
    return [*_of_phases(profile, net), *_of_operators(profile, net)] or [_nothing(profile)]


def _of_phases(profile: Profile, net: Any) -> Iterator[str]:
    times = {name: profile.phase(name).python_ms for name in PHASES}
    if times["data"] >= _IDLE * profile.ms and profile.busy <= 1 - _IDLE:
        yield (
            f"the data takes {times['data']:.3g} of {profile.ms:.3g} ms per update, and the engine idles "
            f"{1 - profile.busy:.0%} of the time: read it beside the training (DatasetLoader's and DataLoader's "
            "workers), or do less per sample"
        )
    for read in profile.reads:
        if read.calls > 0.5 and not read.place.startswith("mxkit/"):
            yield (
                f"{read.place} waits for the engine {read.calls:.3g} times per update, {read.ms:.3g} of "
                f"{profile.ms:.3g} ms: keep arrays, and read them once in many updates"
            )
    python = sum(times.values()) - times["data"] - times["waiting"]
    if python > 0.5 * profile.ms:
        yield (
            f"Python prepares work for {python:.3g} of {profile.ms:.3g} ms per update ({python / profile.ms:.0%}), "
            f"whatever the batch holds: larger batches cost little more than these {profile.samples:g} samples"
        )
    if isinstance(net, gluon.HybridBlock) and not is_hybridized(net):
        yield (
            f"the net is not hybridized: Python calls each layer, {times['forward'] + times['backward']:.3g} ms per "
            "update for forward and backward. net.hybridize(static_alloc=True) makes it one call"
        )


def _of_operators(profile: Profile, net: Any) -> Iterator[str]:
    if not any(device.startswith("cpu") for device in profile.devices):
        return
    yield from _threads(profile)
    several = len(profile.devices)
    if several > 1 and not os.environ.get(SPACES):
        yield (
            f"{several} devices of the CPU take turns: mxkit.threads(devices={several}) before `import mxnet` lets "
            "them compute at the same time (T292)"
        )
    paths = [path for path, value in parameters_by_path(net).items() if np.dtype(value.dtype) == np.float64]
    if paths:
        yield (
            f"{len(paths)} parameters are float64, {paths[0]!r} among them: oneDNN does not compute in float64, and "
            "each number is twice as large. net.cast('float32')"
        )
    slow = [one for one in profile.operators if one.ms >= _NOTABLE * profile.ms and one.onednn is False]
    if slow:
        named = ", ".join(f"{short_name(operator.name, 40)} {operator.share:.0%}" for operator in slow)
        names = {re.sub("^(_backward)?_(np[ix]?_)?", "", operator.name) for operator in slow}  # _backward_npi_tanh
        ways = "; ".join(f"{name} by {_SIBLINGS[name]}" for name in sorted(names & set(_SIBLINGS)))
        way = f". The same to rounding, in less time: {ways}" if ways else ""
        yield f"not computed by oneDNN, with their share of the operators' time: {named}{way}"
    width = 16 if "avx512f" in processor_flags() else 8
    odd = odd_convolutions(net, width)
    if odd and sum(one.share for one in profile.operators if "Convolution" in one.name) >= _NOTABLE:
        yield (
            "convolutions whose channels fill no vector, which oneDNN computes with slower kernels (T97): "
            f"{', '.join(odd)}. Multiples of {width} compute more, often in less time"
        )


def odd_convolutions(net: Any, width: int) -> List[str]:
    """Paths and channels of the convolutions whose channels are no multiples of `width`, a vector of oneDNN (T97)."""
    found = []
    for path, block in blocks_by_path(net):
        settings = layer_settings(block)
        if isinstance(block, _Conv) and operator_name(block) == "Convolution" and settings["layout"][:2] == "NC":
            out, into = block.weight.shape[:2]
            # oneDNN has special kernels for images of 1 to 4 channels
            if settings["num_group"] == 1 and (out % width or (into > 4 and into % width)):
                found.append(f"{path} {into}-{out}")
    return found


def _threads(profile: Profile) -> Iterator[str]:
    line = thread_line(read_processors(), os.environ)
    if line.fix:
        yield f"{line.value}: {' '.join(line.fix.split())}"
    times = dict(profile.threads)
    best, usual = min(times, key=lambda number: times[number], default=0), profile.threads[-1].number if times else 0
    if best != usual and times[best] < (1 - _NOTABLE) * times[usual]:
        yield (
            f"an update takes {times[best]:.3g} ms with {best} thread{'s' * (best > 1)}, {times[usual]:.3g} ms with "
            f"{usual}, as here: threads: {best} in a recipe, or mxkit.threads({best}) before `import mxnet`, sets the "
            "number"
        )


def _nothing(profile: Profile) -> str:
    top = next((f": {short_name(one.name, 40)} alone takes {one.share:.0%}" for one in profile.operators), "")
    return f"the engine computes {profile.busy:.0%} of the time; only less computing would be faster{top}"
