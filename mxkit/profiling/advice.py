"""Advice that follows from the figures of a profile."""

from itertools import chain
import os
import re
from typing import Any, List

from mxkit.core.blocks import parameters_by_path
from mxkit.core.graphs import is_hybridized
from mxkit.profiling.clock import PHASES
from mxkit.profiling.result import Profile, short_name
from mxkit.runtime.doctor.hardware import thread_line
from mxkit.runtime.machine import read_processors
from mxnet import gluon
import numpy as np

# Shares of an update below which a figure gives no advice.
_NOTABLE = 0.1
_IDLE = 0.2


def advice(profile: Profile, net: Any) -> List[str]:
    """Sentences that say what would make the training faster, with figures; at least one.

    Args:
        profile: The figures.
        net: The trained net.
    """
    rules = (_data(profile), _reads(profile), _overhead(profile, net), _threads(profile), _double(net))
    return list(chain(*rules, _not_onednn(profile), _paddings(profile))) or [_nothing(profile)]


def _data(profile: Profile) -> List[str]:
    data = profile.phase("data").python_ms
    if data < _IDLE * profile.ms or profile.busy > 1 - _IDLE:
        return []
    return [
        f"the data takes {data:.3g} of {profile.ms:.3g} ms per update, and the engine idles {1 - profile.busy:.0%} of "
        "the time: read it beside the training (DatasetLoader's and DataLoader's workers), or do less per sample"
    ]


def _reads(profile: Profile) -> List[str]:
    return [
        f"{read.place} waits for the engine {read.calls:.3g} times per update, {read.ms:.3g} of {profile.ms:.3g} ms: "
        "keep arrays, and read them once in many updates"
        for read in profile.reads
        if read.calls > 0.5 and not read.place.startswith("mxkit/")
    ]


def _overhead(profile: Profile, net: Any) -> List[str]:
    lines = []
    milliseconds = {name: profile.phase(name).python_ms for name in PHASES}
    python = sum(milliseconds.values()) - milliseconds["data"] - milliseconds["waiting"]
    if python > 0.5 * profile.ms:
        lines.append(
            f"Python prepares work for {python:.3g} of {profile.ms:.3g} ms per update ({python / profile.ms:.0%}), "
            f"whatever the batch holds: larger batches cost little more than these {profile.samples:g} samples"
        )
    if isinstance(net, gluon.HybridBlock) and not is_hybridized(net):
        passes = milliseconds["forward"] + milliseconds["backward"]
        lines.append(
            f"the net is not hybridized: Python calls each layer, {passes:.3g} ms per update for forward and backward. "
            "net.hybridize(static_alloc=True) makes it one call"
        )
    return lines


def _threads(profile: Profile) -> List[str]:
    if not any(device.startswith("cpu") for device in profile.devices):
        return []
    line = thread_line(read_processors(), os.environ)
    lines = [f"{line.value}: {' '.join(line.fix.split())}"] if line.fix else []
    times = dict(profile.threads)
    best, usual = min(times, key=lambda number: times[number], default=0), profile.threads[-1].number if times else 0
    if best != usual and times[best] < (1 - _NOTABLE) * times[usual]:
        lines.append(
            f"an update takes {times[best]:.3g} ms with {best} thread{'s' * (best > 1)}, {times[usual]:.3g} ms with "
            f"{usual}, as here: threads: {best} in a recipe, or mxkit.threads({best}) before `import mxnet`, sets the "
            "number"
        )
    return lines


def _double(net: Any) -> List[str]:
    paths = [path for path, value in parameters_by_path(net).items() if np.dtype(value.dtype) == np.float64]
    if not paths:
        return []
    return [
        f"{len(paths)} parameters are float64, {paths[0]!r} among them: oneDNN does not compute in float64, and each "
        "number is twice as large. net.cast('float32')"
    ]


def _not_onednn(profile: Profile) -> List[str]:
    notable = [operator for operator in profile.operators if operator.ms >= _NOTABLE * profile.ms]
    slow = [operator for operator in notable if operator.onednn is False]
    if not slow:
        return []
    named = ", ".join(f"{short_name(operator.name, 40)} {operator.share:.0%}" for operator in slow)
    names = {re.sub("^(_backward)?_(np[ix]?_)?", "", operator.name) for operator in slow}  # _backward_npi_tanh
    hint = {"relu", "sigmoid", "tanh"} & names
    way = f": nn.Activation({min(hint)!r}) is" if hint else ""
    return [f"not computed by oneDNN, with their share of the operators' time: {named}{way}"]


def _paddings(profile: Profile) -> List[str]:
    gains = [padding for padding in profile.paddings if padding.padded_ms < (1 - _NOTABLE) * padding.ms]
    if not gains:
        return []
    saved = sum(padding.ms - padding.padded_ms for padding in gains)
    named = ", ".join("{} {}-{}".format(padding.path, *padding.channels) for padding in gains)
    return [
        f"channels that are multiples of {gains[0].width} would compute more in less time, {saved:.3g} ms a batch "
        f"less: {named} (see the table)"
    ]


def _nothing(profile: Profile) -> str:
    top = next((f": {short_name(one.name, 40)} alone takes {one.share:.0%}" for one in profile.operators), "")
    return f"the engine computes {profile.busy:.0%} of the time; only less computing would be faster{top}"
