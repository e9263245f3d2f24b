"""Memory as this process may use it: control groups count."""

from pathlib import Path
from typing import Dict, NamedTuple, Optional

from mxkit.runtime.processors import ROOT, control_groups, read_text


class Memory(NamedTuple):
    """Bytes that a process may take: of the machine, or of its control group where that is less.

    Attributes:
        total: All there is.
        available: What is free or can be freed.
        limited: Whether a control group sets it.
    """

    total: int
    available: int
    limited: bool


def read_memory(root: Path = ROOT) -> Optional[Memory]:
    """Total and available memory; None where the system does not tell."""
    fields = _fields(root / "proc/meminfo")
    if not fields:
        return None
    machine = 1024 * fields["MemTotal:"]
    found = Memory(machine, 1024 * fields.get("MemAvailable:", fields["MemFree:"]), False)
    for folder in control_groups("memory", root):
        limit = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
        if not limit.isdigit() or int(limit) >= machine:  # "max", or a number near 2^63
            continue
        used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
        statistics = _fields(folder / "memory.stat")
        cached = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
        free = max(0, int(limit) - int(used or 0) + cached)
        found = Memory(min(found.total, int(limit)), min(found.available, free), True)
    return found


def _fields(path: Path) -> Dict[str, int]:
    rows = (line.split() for line in read_text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
