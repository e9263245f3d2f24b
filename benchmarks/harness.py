"""What every benchmark shares: ways that take turns, medians with their spread, fresh processes, rows of a table.

Only the standard library is imported here, so that the peers' environment can use it too.
"""

from importlib import import_module
import json
import os
from pathlib import Path
import re
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

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
        bar: What the ratio should not pass, where one is set.
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
    """What the rounds of one way took, in seconds."""

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
        scale: Seconds times this are `unit`: `1e6 / updates` for "us/update".
        unit: Of the values.
        bars: What the ratio of a way should not pass.
    """
    rows = []
    for way, (wall, cpu) in taken.items():
        ratios = [one / other for one, other in zip(wall, taken[against].wall)]
        rows.append(
            Row(
                case, way, scale * statistics.median(wall), unit,
                low=scale * min(wall), high=scale * max(wall), cpu=scale * statistics.median(cpu),
                against=against, ratio=statistics.median(ratios), ratio_low=min(ratios), ratio_high=max(ratios),
                bar=(bars or {}).get(way),
            )
        )  # fmt: skip
    return rows


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
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name, value in (environment or {}).items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    command = [python, "-m", "benchmarks.harness", function, json.dumps(arguments or {})]
    done = subprocess.run(command, env=variables, cwd=str(ROOT), capture_output=True)
    output = done.stdout.decode(errors="replace")
    _, found, answer = output.rpartition(ANSWER)
    if done.returncode or not found:
        raise RuntimeError(f"{function} ended with {done.returncode}: {output[-1000:]}{done.stderr.decode()[-2000:]}")
    return json.loads(answer)


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


def _answer(arguments: Sequence[str]) -> None:
    module, _, name = arguments[0].partition(":")
    result = getattr(import_module(module), name)(**json.loads(arguments[1]))
    print(ANSWER + json.dumps(result), flush=True)


if __name__ == "__main__":
    _answer(sys.argv[1:])
