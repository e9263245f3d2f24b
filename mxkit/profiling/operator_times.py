"""Runs MXNet's profiler, which records the operators of the engine with their times."""

from contextlib import contextmanager
import json
from pathlib import Path
import re
import tempfile
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.operators import operators_that
from mxkit.core.system import write_atomically
from mxkit.profiling.clock import Span
from mxnet import profiler

# As DNNL_VERBOSE=1 shows. Not among them: mx.nd.relu, tanh and sigmoid (Activation is), LayerNorm, Dropout, and
# operators that add, multiply or sum.
ONEDNN = operators_that("onednn")
_LEADING_COMMA = '"traceEvents": [\n,'


class Run(NamedTuple):
    """One run of an operator.

    Attributes:
        name: MXNet's name, like "_backward_Convolution".
        device: MXNet's number of the device.
        worker: Number of the engine's thread.
        begin, end: In seconds since 1970.
    """

    name: str
    device: int
    worker: int
    begin: float
    end: float


class Operators:
    """The operators that ran while MXNet's profiler was on.

    Attributes:
        runs: Runs of operators, in the order in which they ended.
    """

    def __init__(self) -> None:
        self.runs: List[Run] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Run MXNet's profiler inside; the engine's queue must be empty at the end.

        Side effects:
            MXNet's profiler gets another configuration, and loses its records.
        """
        with tempfile.TemporaryDirectory(prefix="mxkit-profile-") as folder:
            file = Path(folder) / "trace.json"
            # Without aggregate_stats all operators are one "ImperativeBulk"; with continuous_dump neither this file nor
            # the next one is complete (T108).
            kinds = {"symbolic": True, "imperative": True, "all": False, "api": False, "memory": False}
            kinds = {f"profile_{kind}": recorded for kind, recorded in kinds.items()}
            profiler.set_config(**kinds, aggregate_stats=True, continuous_dump=False, filename=str(file))
            profiler.set_state("run")
            try:
                yield
            finally:
                profiler.set_state("stop")
                profiler.dumps(reset=True)  # writes the file
            self.runs = _runs(file.read_text(encoding="utf-8"))

    def busy(self) -> float:
        """Seconds in which at least one operator ran."""
        total, reached = 0.0, 0.0
        for run in sorted(self.runs, key=lambda run: run.begin):
            total += max(0.0, run.end - max(run.begin, reached))
            reached = max(reached, run.end)
        return total

    def by_name(self) -> Dict[str, Tuple[int, float]]:
        """Calls and seconds of each operator, the longest first."""
        sums: Dict[str, Tuple[int, float]] = {}
        for run in self.runs:
            calls, seconds = sums.get(run.name, (0, 0.0))
            sums[run.name] = calls + 1, seconds + run.end - run.begin
        return dict(sorted(sums.items(), key=lambda item: -item[1][1]))


def by_onednn(name: str, dtype: str) -> Optional[bool]:
    """Whether oneDNN computes an operator on the CPU; None if it is several operators in one.

    >>> by_onednn("_backward_Convolution", "float32"), by_onednn("relu", "float32"), by_onednn("Convolution", "float64")
    (True, False, False)
    """
    if "," in name:
        return None
    return dtype in ("float32", "bfloat16") and re.sub("^_backward_", "", name) in ONEDNN


def _runs(text: str) -> List[Run]:
    # From the second file of a process on, MXNet writes a comma before the first event (T108).
    events = json.loads(text.replace(_LEADING_COMMA, _LEADING_COMMA[:-1], 1))["traceEvents"]
    workers: Dict[Any, int] = {}
    begun: Dict[Any, List[Dict[str, Any]]] = {}
    runs = []
    for event in events:
        if event.get("cat") != "operator" or event["ph"] not in "BE":
            continue  # each event is there a second time, as "b" and "e"
        place = event["pid"], event["tid"]
        if event["ph"] == "B":
            begun.setdefault(place, []).append(event)
        elif begun.get(place):
            begin = begun[place].pop()
            worker = workers.setdefault(event["tid"], len(workers))
            runs.append(Run(event["name"], event["pid"], worker, begin["ts"] / 1e6, event["ts"] / 1e6))
    return runs


def write_trace(path: Union[str, Path], runs: Sequence[Run], spans: Sequence[Span]) -> None:
    """Write a file for chrome://tracing and https://ui.perfetto.dev: Python's phases over the engine's operators."""
    start = min([run.begin for run in runs] + [span.begin for span in spans])
    lanes = {(0, 0): "Python: phases", **{(1, run.worker): f"engine: worker {run.worker}" for run in runs}}
    events: List[Dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for (pid, tid), name in lanes.items()
    ]
    timed = [(span.phase, 0, 0, span.begin, span.end) for span in spans]
    timed += [(run.name, 1, run.worker, run.begin, run.end) for run in runs]
    for name, pid, tid, begin, end in timed:
        times = {"ts": round((begin - start) * 1e6, 1), "dur": round((end - begin) * 1e6, 1)}
        events.append({"ph": "X", "name": name, "pid": pid, "tid": tid, **times})
    write_atomically(Path(path), json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())
