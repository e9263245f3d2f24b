"""What every benchmark shares: ways that take turns, medians with their spread, fresh processes, rows of a table.

Only the standard library is imported here, so that the peers' environment can use it too.
"""

import contextlib
from importlib import import_module
import json
import os
from pathlib import Path
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

ROOT = Path(__file__).resolve().parent.parent
ANSWER = "benchmark's answer: "


class Row(NamedTuple):
    """One line of a question's table.

    Attributes:
        case: What is done, with its size: "LeNet, batch 64".
        way: How, or by whom: "mxkit.fit".
        value: Median, in `unit`.
        unit: "us/update", "MB", ...; smaller is better, but for those that end in "/s".
        low: Smallest of the rounds.
        high: Largest of the rounds.
        cpu: Median of the processor time of the process in the unit of `value`, where it was taken.
        against: The way that `ratio` divides by, round by round; none for a plain figure.
        ratio: Median of the ratios.
        ratio_low: Smallest of them.
        ratio_high: Largest of them.
        bar: What the ratio should not pass, where one is set; of a row without one, the least `value` should be.
    """

    case: str
    way: str
    value: float
    unit: str
    low: Optional[float] = None
    high: Optional[float] = None
    cpu: Optional[float] = None
    against: Optional[str] = None
    ratio: Optional[float] = None
    ratio_low: Optional[float] = None
    ratio_high: Optional[float] = None
    bar: Optional[float] = None


class Taken(NamedTuple):
    """What the rounds of one way took, in seconds; processor time may be left empty."""

    wall: List[float]
    cpu: List[float]


def take_turns(
    ways: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    wait: Callable[[], object] = lambda: None,
    warm_up: int = 1,
) -> Dict[str, Taken]:
    """Run the ways in turns, so that what else the machine does meets all alike; who begins changes each round.

    Args:
        ways: Functions by name. One that returns a float has measured itself (in seconds), others are timed.
        rounds: How often each is measured.
        wait: Called inside the measure, for what is computed later: `mx.nd.waitall`.
        warm_up: Rounds that are not counted.
    """
    taken = {name: Taken([], []) for name in ways}
    names = list(ways)
    for number in range(-warm_up, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begun, cpu = time.perf_counter(), time.process_time()
            own = ways[name]()
            wait()
            wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
            if number >= 0:
                taken[name].wall.append(own if isinstance(own, float) else wall)
                taken[name].cpu.append(cpu)
    return taken


def rows_of(
    case: str,
    taken: Mapping[str, Taken],
    *,
    against: str,
    scale: float,
    unit: str,
    bars: Optional[Mapping[str, float]] = None,
) -> List[Row]:
    """Rows of ways that took turns, each with its ratio to one of them.

    Args:
        case: What was done.
        taken: Of `take_turns`.
        against: The way to compare with.
        scale: Seconds times this are `unit`: `1e6 / updates` for "us/update"; for a unit that ends in "/s" what one
            round does, the samples, and ratios are those of the rates.
        unit: Of the values.
        bars: What the ratio of a way should not pass.
    """
    rows = []
    for way, (wall, cpu) in taken.items():
        rate = unit.endswith("/s")
        values = [scale / one if rate else scale * one for one in wall]
        pairs = zip(wall, taken[against].wall)
        ratios = [other / one if rate else one / other for one, other in pairs]
        rows.append(
            Row(
                case, way, statistics.median(values), unit,
                low=min(values), high=max(values), cpu=scale * statistics.median(cpu) if cpu and not rate else None,
                against=against, ratio=statistics.median(ratios), ratio_low=min(ratios), ratio_high=max(ratios),
                bar=(bars or {}).get(way),
            )
        )  # fmt: skip
    return rows


def mxnet_threads(number: Optional[int]) -> Dict[str, Optional[str]]:
    """Variables of a process whose MXNet takes so many threads; None: as many as mxkit chooses, one a core."""
    unset = dict.fromkeys(("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS", "MXNET_CPU_WORKER_NTHREADS"))
    return unset if number is None else {**unset, "MXNET_OMP_MAX_THREADS": str(number)}


def in_child(
    function: str,
    arguments: Optional[Mapping[str, Any]] = None,
    *,
    environment: Optional[Mapping[str, Optional[str]]] = None,
    python: str = sys.executable,
) -> Any:
    """What a function of a module returns in a fresh interpreter, as JSON brings it here.

    Args:
        function: "benchmarks.growth:memory".
        arguments: Its keyword arguments, plain JSON values.
        environment: Variables to set, or to take away where the value is None.
        python: The interpreter.

    Raises:
        RuntimeError: It failed; the end of what it said is told.
    """
    command = [python, "-m", "benchmarks.harness", function, json.dumps(arguments or {})]
    done = subprocess.run(command, env=_variables(environment), cwd=str(ROOT), capture_output=True)
    output = done.stdout.decode(errors="replace")
    _, found, answer = output.rpartition(ANSWER)
    if done.returncode or not found:
        raise RuntimeError(f"{function} ended with {done.returncode}: {output[-1000:]}{done.stderr.decode()[-2000:]}")
    return json.loads(answer)


class Child:
    """A fresh interpreter that lasts: what its modules keep (a net that is built and warm) is there at the next `ask`.

    So several environments, or peers, can take turns in rounds of a second. A context manager.

    Args:
        environment: As for `in_child`.
        python: As for `in_child`.
    """

    def __init__(
        self, environment: Optional[Mapping[str, Optional[str]]] = None, *, python: str = sys.executable
    ) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 it lasts as long as the child
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.harness"], env=_variables(environment), cwd=str(ROOT), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._said,
        )  # fmt: skip

    def ask(self, function: str, **arguments: Any) -> Any:
        """What a function returns in it, as `in_child`.

        Raises:
            RuntimeError: It failed, and has ended; the end of what it said is told.
        """
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        if pipe_in is None or pipe_out is None:
            raise RuntimeError("the child has no pipes")
        with contextlib.suppress(BrokenPipeError):
            pipe_in.write(json.dumps([function, arguments]).encode() + b"\n")
            pipe_in.flush()
        for line in pipe_out:
            _, found, answer = line.decode(errors="replace").rpartition(ANSWER)
            if found:
                return json.loads(answer)
        code = self._process.wait()
        self._said.seek(0)
        raise RuntimeError(f"{function} ended with {code}: {self._said.read().decode(errors='replace')[-2000:]}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()
        self._said.close()


def peak_memory() -> float:
    """Largest resident size of this process so far, in MB. `getrusage` begins with the parent's."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("/proc/self/status has no VmHWM: this benchmark needs Linux")
    return int(found.group(1)) / 1e3


def resident_memory() -> float:
    """Resident size of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _variables(environment: Optional[Mapping[str, Optional[str]]]) -> Dict[str, str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name, value in (environment or {}).items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    return variables


def _answer(function: str, arguments: Mapping[str, Any]) -> None:
    module, _, name = function.partition(":")
    result = getattr(import_module(module), name)(**arguments)
    print(ANSWER + json.dumps(result), flush=True)


def _serve() -> None:
    for line in sys.stdin:
        function, arguments = json.loads(line)
        _answer(function, arguments)


if __name__ == "__main__":
    if sys.argv[1:]:
        _answer(sys.argv[1], json.loads(sys.argv[2]))
    else:
        _serve()
