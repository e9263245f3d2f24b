"""Runs the passes of a profile, and computes its figures."""

from collections import Counter
from pathlib import Path
from typing import Any, List, Sequence, Union

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import net_devices, parameters_by_path
from mxkit.core.trainers import TrainerSpec
from mxkit.data.source import Data, source_of
from mxkit.losses.named_losses import BatchLossSpec, get_batch_loss
from mxkit.metrics import MetricSpec
from mxkit.profiling.advice import advice
from mxkit.profiling.clock import PHASES, Clock, TimedUpdates
from mxkit.profiling.operator_times import Operators, by_onednn, write_trace
from mxkit.profiling.result import Operator, Phase, Profile, Read, Threads
from mxkit.runtime.engine_settings import environment, in_force
from mxkit.training.rehearsal import rehearsal
import numpy as np


def profile(
    net: Any,
    data: Data,
    *,
    loss: BatchLossSpec,
    trainer: TrainerSpec,
    updates: int = 50,
    metrics: Sequence[MetricSpec] = (),
    trace: Union[None, str, Path] = None,
    threads: Sequence[Threads] = (),
    **training: Any,
) -> Profile:
    """Train for some updates, measure where their time goes, and restore everything.

    The training is that of `mxkit.updates`, three times: as it runs; with a wait for the engine after each phase;
    and under MXNet's profiler. Five updates before each pass are not counted.

    Args:
        net: An initialized block. Unknown shapes are inferred from the first batch, and stay.
        data: As for `updates`; it is read again from its beginning as often as needed.
        loss: As for `updates`.
        trainer: As for `updates`. A copy of a Trainer or optimizer, without states and scheduler, trains the net.
        updates: Number of timed updates in each pass, at least 1.
        metrics: As for `fit`.
        trace: A JSON file to write for chrome://tracing or Perfetto: phases over operators.
        threads: Times of the same training with other numbers of threads, which need processes of their own (T187);
            `mxkit profile` measures them.
        **training: Other arguments of `updates`: `accumulate`, `clip_norm`, `amp`, `seed`, ...

    Returns:
        A `Profile`: `print` it; `.plot(path)`, `.to_dict()`.

    Raises:
        DataError: `data` can be read only once.
        ValueError: `updates` is below 1.
        OSError: `trace` may not be written.
        MxkitError: Any error that `updates` raises.

    Side effects:
        Those of `find_learning_rate`, such as the state of MXNet's generator. MXNet's profiler gets another
        configuration and loses its records. Metrics are copied.

    >>> net = mxkit.models.mlp(hidden=[8]); mxkit.initialize(net)
    >>> train = mxkit.data.ArrayLoader(np.random.rand(20, 4), np.arange(20) % 3, batch_size=10)
    >>> found = profile(net, train, loss="softmax_ce", trainer="sgd", updates=3)
    >>> found.samples, [one.name for one in found.phases]
    (10.0, ['data', 'forward', 'backward', 'update', 'other', 'waiting'])
    """
    updates = whole_number(updates, "updates")
    source_of(data).check_rereadable(2, "data")
    batch_loss = get_batch_loss(loss)
    devices = net_devices(net)
    path = None if trace is None else Path(trace)
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(f"trace: there is no directory {path.parent}; make it first")
    plain, alone, profiled = Clock(alone=False), Clock(alone=True), Clock(alone=False)
    operators = Operators()
    training = {"loss": batch_loss, "check_finite": False, **training}
    with rehearsal(net, data) as batches:
        work = TimedUpdates(net, batches.data, trainer, metrics, training)
        work.run(plain, updates)
        work.run(alone, updates)
        with environment({"MXNET_EXEC_BULK_EXEC_TRAIN": "0"}):  # a bound graph would be two long operators
            work.run(profiled, updates, [operators.recorded()])
    if path is not None:
        write_trace(path, operators.runs, profiled.spans)
    found = Profile(
        updates=updates,
        samples=plain.samples / updates,
        devices=[str(device) for device in devices],
        ms=plain.wall / updates * 1e3,
        busy=min(1.0, operators.busy() / profiled.wall),
        floor_ms=operators.busy() / updates * 1e3,
        phases=_phases(plain, alone),
        operators=_operators(operators, updates, devices[0], training.get("amp") or _dtype(net)),
        reads=_reads(plain, updates),
        threads=[*threads, Threads(in_force() or 1, plain.wall / updates * 1e3)] if threads else [],
        rows=[{name: seconds * 1e3 for name, seconds in row.items()} for row in alone.rows],
        trace=path,
    )
    found.advice = advice(found, net)
    return found


def _phases(plain: Clock, alone: Clock) -> List[Phase]:
    phases = []
    for name in PHASES:
        times = [row.get(name, 0.0) * 1e3 for row in alone.rows]
        seconds = sum(row.get(name, 0.0) for row in plain.rows) + (plain.tail if name == "waiting" else 0.0)
        python = seconds / len(plain.rows) * 1e3
        if name == "waiting":
            phases.append(Phase(name, python, None, None))
        elif python or any(times):
            low, middle, high = (float(np.percentile(times, at)) for at in (25, 50, 75))
            phases.append(Phase(name, python, middle, (low, high)))
    return phases


def _operators(operators: Operators, updates: int, device: Any, dtype: Any) -> List[Operator]:
    sums = operators.by_name()
    total, on_cpu = sum(seconds for _, seconds in sums.values()), device.device_type == "cpu"
    return [
        Operator(
            name, calls / updates, seconds / updates * 1e3, seconds / total, by_onednn(name, dtype) if on_cpu else None
        )
        for name, (calls, seconds) in sums.items()
    ]


def _reads(clock: Clock, updates: int) -> List[Read]:
    reads = [Read(place, calls / updates, seconds / updates * 1e3) for place, (calls, seconds) in clock.reads.items()]
    return sorted(reads, key=lambda read: -read.ms)


def _dtype(net: Any) -> str:
    dtypes = Counter(np.dtype(parameter.dtype).name for parameter in parameters_by_path(net).values())
    return max(dtypes, key=lambda name: dtypes[name], default="float32")
