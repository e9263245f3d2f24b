"""Writes a server's log, if there is none, and reads the numbers in its lines."""

from pathlib import Path
import re
from typing import List, Optional, Tuple

import mxkit
from mxkit.core.system import write_atomically
from mxkit.data.download import dataset_folder
import numpy as np

ANSWER = re.compile(r"GET /\S* (?P<size>[\d.]+) MB, load (?P<load>[\d.]+), (?P<how>cached|read), (?P<time>[\d.]+) ms$")


@mxkit.register("data")
def made_log(path: Optional[str] = None, lines: int = 3000, noise: float = 0.5, seed: int = 0) -> mxkit.data.Splits:
    """Response times, in milliseconds, from a log's lines.

    Args:
        path: The log; it is written if it is not there. None is a file in the cache.
        lines: How many a log that is written gets, one in ten of which tells no time.
        noise: Standard deviation of its times, in milliseconds.
        seed: Another whole number is another log.

    Returns:
        x float32 of shape (N, 3): megabytes, load, and 1 for what was cached; y float32 of shape (N,).
    """
    name = f"answers-{lines}-{noise}-{seed}.log"
    log = dataset_folder("made_log") / name if path is None else Path(path).expanduser()
    if not log.exists():
        log.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(log, "".join(_written(lines, noise, np.random.RandomState(seed))).encode())
    return mxkit.data.lines(log, parse, valid=0.1, test=0.1)


def parse(line: str) -> Optional[Tuple[List[float], float]]:
    """The sample in a line, or None for a line without a time."""
    found = ANSWER.search(line)
    if found is None:
        return None
    return [float(found["size"]), float(found["load"]), float(found["how"] == "cached")], float(found["time"])


def _written(lines: int, noise: float, draws: "np.random.RandomState") -> List[str]:
    written = []
    for second in range(lines):
        clock = f"2026-01-01 {second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
        if second % 10 == 9:
            written.append(f"{clock} INFO still alive\n")
            continue
        size, load, cached = draws.uniform(0, 2), draws.uniform(0, 1), draws.randint(2)
        time = 10 + 6 * size + 8 * load - 4 * cached + noise * draws.standard_normal()
        how = "cached" if cached else "read"
        written.append(f"{clock} INFO GET /{second}.bin {size:.3f} MB, load {load:.3f}, {how}, {time:.2f} ms\n")
    return written
