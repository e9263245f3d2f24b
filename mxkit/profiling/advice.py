"""Sentences that follow from the figures of a profile."""

from itertools import chain
import os
from typing import Any, List, Sequence

from mxkit.core.blocks import parameters_by_path
from mxkit.core.graphs import is_hybridized
from mxkit.profiling.result import Profile, short_name
from mxkit.runtime.doctor.resources import thread_line
from mxkit.runtime.machine import read_processors
from mxnet import gluon
import numpy as np

# What is told: shares of an update below which nothing is worth a sentence.
_NOTABLE = 0.1
_IDLE = 0.2


def advice(found: Profile, net: Any) -> List[str]:
    """What would make the training faster, with the figures that say so; at least one sentence.

    Args:
        found: The figures.
        net: What was trained.
    """
    rules = (_data(found), _reads(found), _overhead(found, net), _threads(found), _double(net))
    lines = list(chain(*rules, _not_onednn(found), _paddings(found)))
    return lines or [_nothing(found)]


def _data(found: Profile) -> List[str]:
    data = found.phase("data").python_ms
    if data < _IDLE * found.ms or found.busy > 1 - _IDLE:
        return []
    return [
        f"the data takes {data:.3g} of {found.ms:.3g} ms an update, and the engine idles {1 - found.busy:.0%} of the "
        "time: read it beside the training (DatasetLoader's and DataLoader's workers), or do less for a sample"
    ]


def _reads(found: Profile) -> List[str]:
    return [
        f"{one.place} waits for the engine {one.calls:.3g} times an update, {one.ms:.3g} of {found.ms:.3g} ms: "
        "keep arrays, and read them once in many updates"
        for one in found.reads
        if one.calls > 0.5 and not one.place.startswith("mxkit/")
    ]


def _overhead(found: Profile, net: Any) -> List[str]:
    lines = []
    python = sum(found.phase(name).python_ms for name in ("forward", "backward", "metrics", "update", "other"))
    if python > 0.5 * found.ms:
        share = python / found.ms
        lines.append(
            f"Python prepares work for {python:.3g} of {found.ms:.3g} ms an update ({share:.0%}), whatever the batch "
            f"holds: larger batches cost little more than these {found.samples:g} samples"
        )
    if isinstance(net, gluon.HybridBlock) and not is_hybridized(net):
        passes = sum(found.phase(name).python_ms for name in ("forward", "backward"))
        lines.append(
            f"the net is not hybridized: Python calls each layer, {passes:.3g} ms an update for forward and backward. "
            "net.hybridize(static_alloc=True) makes it one call"
        )
    return lines


def _threads(found: Profile) -> List[str]:
    if not any(device.startswith("cpu") for device in found.devices):
        return []
    line = thread_line(read_processors(), os.environ)
    return [f"{line.value}: {' '.join(line.fix.split())}"] if line.fix else []


def _double(net: Any) -> List[str]:
    doubles = [path for path, one in parameters_by_path(net).items() if np.dtype(one.dtype) == np.float64]
    if not doubles:
        return []
    return [
        f"{len(doubles)} parameters are float64, {doubles[0]!r} among them: oneDNN computes none of it, and each "
        "number is twice as large. net.cast('float32')"
    ]


def _not_onednn(found: Profile) -> List[str]:
    slow = [one for one in found.operators if one.onednn is False and one.ms >= _NOTABLE * found.ms]
    if not slow:
        return []
    named = ", ".join(f"{short_name(one.name, 40)} {one.share:.0%}" for one in slow)
    hint = {"relu", "sigmoid", "tanh"} & {one.name.replace("_backward_", "") for one in slow}
    way = f": nn.Activation({min(hint)!r}) is" if hint else ""
    return [f"not computed by oneDNN, with their share of the operators' time: {named}{way}"]


def _paddings(found: Profile) -> List[str]:
    gains = [one for one in found.paddings if one.padded_ms < (1 - _NOTABLE) * one.ms]
    if not gains:
        return []
    saved = sum(one.ms - one.padded_ms for one in gains)
    named = ", ".join(f"{one.path} {one.channels[0]}-{one.channels[1]}" for one in gains)
    return [
        f"channels that are multiples of {gains[0].width} would compute more in less time, {saved:.3g} ms a batch "
        f"less: {named} (see the table)"
    ]


def _nothing(found: Profile) -> str:
    top: Sequence[Any] = found.operators[:1]
    named = f": {short_name(top[0].name, 40)} alone takes {top[0].share:.0%}" if top else ""
    return f"the engine computes {found.busy:.0%} of the time; only less computing would be faster{named}"
