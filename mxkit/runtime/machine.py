"""Processors and memory as this process may use them: affinity and control groups count."""

import os
from pathlib import Path
import platform
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

ROOT = Path("/")


class Processors(NamedTuple):
    """What a process may compute with.

    Attributes:
        usable: Logical processors of its affinity mask.
        cores: Physical cores that these belong to.
        quota: Processors' worth of time that its control group gets; None without a limit.
    """

    usable: int
    cores: int
    quota: Optional[float]

    @property
    def threads(self) -> int:
        """How many threads can compute at the same time: one a core, within the quota."""
        return max(1, min(self.cores, int(self.quota) if self.quota else self.cores))


def read_processors(root: Path = ROOT) -> Processors:
    """Count processors, physical cores and the quota."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return Processors(len(usable), count_cores(usable, root), cpu_quota(root))


def count_cores(usable: Set[int], root: Path = ROOT) -> int:
    """Physical cores of these logical processors; each is one where the system does not tell."""
    siblings = (root / f"sys/devices/system/cpu/cpu{one}/topology/thread_siblings_list" for one in usable)
    return len({read_text(path) or path for path in siblings})


def cpu_quota(root: Path = ROOT) -> Optional[float]:
    """Processors' worth of time that control groups (version 1 or 2) leave; None without a limit.

    `docker run --cpus=1.5` gives 1.5.
    """
    found: List[float] = []
    for folder in control_groups("cpu", root):
        words = read_text(folder / "cpu.max").split() or [
            read_text(folder / "cpu.cfs_quota_us"),
            read_text(folder / "cpu.cfs_period_us"),
        ]
        if all(word.isdigit() and int(word) for word in words):  # no limit is "max" or -1
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


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


def control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of the control groups that this process is in, the innermost first, of both versions."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        folder = top / path.lstrip("/")  # in a container it can be a path of the host, which is not there
        yield from (one for one in (folder, *folder.parents) if one == top or top in one.parents)


def processor_model(root: Path = ROOT) -> str:
    """The processor as the system names it."""
    for line in read_text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_text(path: Path) -> str:
    """A small file without the white space around it; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def _fields(path: Path) -> Dict[str, int]:
    rows = (line.split() for line in read_text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
