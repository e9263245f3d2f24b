"""How much of an update's wall time is spent in kernels, and what the rest is.

`mxkit.fit` trains with accuracy and its checks for NaN on batches that lie in memory; windows of updates take turns: as
it runs; under MXNet's profiler; and, in a process of its own, with oneDNN's verbose log.

- operators: time in which the engine ran at least one operator (the union of the trace's intervals: operators of
  several threads overlap, so a sum would count twice), of the wall time of the same, profiled window. The aggregate
  statistics are on, which turns bulking off: with bulking the trace holds whole segments of the graph, gaps included,
  which looks better than it is. An operator's time holds its preparation in C++ too.
- oneDNN's kernels: the times that its log tells, of the wall time of that window: a floor, because writing the log
  takes time, and what is not oneDNN's (SGD's update, sums, softmax's loss, the metric) is missing.
- the rest, in which no operator ran: gaps of under 0.1 ms, in which the engine goes from one operator to the next, and
  longer ones, in which it has nothing to do: Python prepares updates, and a call of `fit` begins and ends.

Bars, for the operators: at least 95% on ResNet-18 and 88% on LeNet. Profiling has its price, told as a ratio of the
wall times.
"""

import ctypes
from functools import lru_cache
import os
import statistics
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import mxkit  # before mxnet
from mxkit.profiling.operator_times import Operators, Run
import mxnet as mx
import numpy as np

from benchmarks.harness import Child, Row, Taken, rows_of

TITLE = "The kernels' share of an update"
CASES = {
    "ResNet-18, 32 px, batch 32": ("resnet18", (32, 3, 32, 32), 12, 95),
    "LeNet, batch 64": ("lenet", (64, 1, 28, 28), 120, 88),
}
PLAIN, PROFILED, LOGGED = "as it runs", "under the profiler", "with oneDNN's log"
ROUNDS = 9


def run(quick: bool) -> Iterator[Row]:
    with Child() as child, Child({"DNNL_VERBOSE": "1", "MKLDNN_VERBOSE": "1"}) as verbose:
        for case, (net, shape, updates, bar) in CASES.items():
            given = {"net": net, "shape": shape, "updates": max(2, updates // 10) if quick else updates}
            taken = {way: Taken([], []) for way in (PLAIN, PROFILED, LOGGED)}
            shares: Dict[str, List[float]] = {}
            for _ in range(2 if quick else ROUNDS):
                wall = child.ask("benchmarks.kernel_share:plain", **given)
                traced, busy, short = child.ask("benchmarks.kernel_share:profiled", **given)
                logged, executed = verbose.ask("benchmarks.kernel_share:logged", **given)
                for way, value in zip(taken, (wall, traced, logged)):
                    taken[way].wall.append(value)
                    taken[way].cpu.append(float("nan"))
                found = {
                    "operators": busy / traced,
                    "oneDNN's kernels": executed / logged,
                    "rest: gaps under 0.1 ms": short / traced,
                    "rest: longer gaps": 1 - (busy + short) / traced,
                }
                for way, value in found.items():
                    shares.setdefault(way, []).append(100 * value)
            rows = rows_of(case, taken, against=PLAIN, scale=1e3 / given["updates"], unit="ms/update")
            yield from (row._replace(cpu=None) for row in rows)
            for way, values in shares.items():
                middle = statistics.median(values)
                yield Row(
                    case, way, middle, "%", low=min(values), high=max(values), bar=bar if way == "operators" else None
                )  # fmt: skip


@lru_cache(maxsize=None)
def built(net: str, shape: Tuple[int, ...]) -> Tuple[Any, Any, Any]:
    """A net, its Trainer and batches; trained a little."""
    mxkit.seed_all(0)
    made = mxkit.models.get_model(net)
    mxkit.initialize(made, "xavier", devices="cpu")
    made.hybridize(static_alloc=True, static_shape=True)
    rng = np.random.RandomState(0)
    batches = [
        (mx.nd.array(rng.rand(*shape)), mx.nd.array(rng.randint(0, 10, shape[0]), dtype="int32")) for _ in range(8)
    ]
    parts = made, mx.gluon.Trainer(made.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9}), batches
    train(parts, 8)
    return parts


def train(parts: Tuple[Any, Any, Any], updates: int) -> float:
    """Seconds of so many updates."""
    net, trainer, batches = parts
    begun = time.perf_counter()
    mxkit.fit(
        net, batches, loss="softmax_ce", trainer=trainer, epochs=f"{updates} updates",
        metrics=["accuracy"], progress=False,  # fmt: skip
    )  # fmt: skip
    mx.nd.waitall()
    return time.perf_counter() - begun


def plain(net: str, shape: List[int], updates: int) -> float:
    return train(built(net, tuple(shape)), updates)


def profiled(net: str, shape: List[int], updates: int) -> Tuple[float, float, float]:
    """Seconds of the window, those in which an operator ran, and those of the short gaps between them."""
    parts, operators = built(net, tuple(shape)), Operators()
    with operators.recorded():
        wall = train(parts, updates)
    return wall, operators.busy(), short_gaps(operators.runs)


def short_gaps(runs: Sequence[Run], limit: float = 1e-4) -> float:
    """Seconds in which nothing ran, of those stretches that are shorter than the limit.

    >>> round(short_gaps([Run("a", 0, 0, 0.0, 1.0), Run("b", 0, 1, 0.5, 2.0), Run("c", 0, 0, 2.00003, 3.0)]), 6)
    3e-05
    """
    total, reached = 0.0, float("inf")
    for run in sorted(runs, key=lambda one: one.begin):
        gap = run.begin - reached
        total += gap if 0 < gap < limit else 0.0
        reached = run.end if reached == float("inf") else max(reached, run.end)
    return total


def logged(net: str, shape: List[int], updates: int) -> Tuple[float, float]:
    """Seconds of the window, and those that oneDNN's log tells of it."""
    parts = built(net, tuple(shape))
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    own = os.dup(1)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 1)
        try:
            wall = train(parts, updates)
            libc.fflush(None)
        finally:
            os.dup2(own, 1)
            os.close(own)
        log.seek(0)
        return wall, executed(log.read().decode())


def executed(log: str) -> float:
    """Seconds that primitives ran, of oneDNN's verbose log.

    >>> executed("dnnl_verbose,info,cpu\\ndnnl_verbose,exec,cpu,reorder,jit:uni,undef,,,,8x8,0.5\\n")
    0.0005
    """
    lines = [line.split(",") for line in log.splitlines() if line.startswith(("dnnl_verbose,", "mkldnn_verbose,"))]
    milliseconds = [float(line[-1]) for line in lines if line[1] == "exec"]
    if not milliseconds:
        raise RuntimeError("oneDNN's log is empty: is this MXNet built with oneDNN?")
    return sum(milliseconds) / 1e3
