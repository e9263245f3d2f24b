"""Processors and memory that this process may use, within its affinity mask and control groups."""

import os
from pathlib import Path
import platform
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

ROOT = Path("/")


class Processors(NamedTuple):
    """Processors that a process may use.

    Attributes:
        usable: Number of logical processors in its affinity mask.
        cores: Number of physical cores to which these belong.
        quota: Limit of its control group, in processors; None without a limit.
    """

    usable: int
    cores: int
    quota: Optional[float]

    @property
    def threads(self) -> int:
        """How many threads can compute at the same time: one per core, within the quota."""
        return max(1, min(self.cores, int(self.quota) if self.quota else self.cores))


def read_processors(root: Path = ROOT) -> Processors:
    """Count processors, physical cores and the quota."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return Processors(len(usable), count_cores(usable, root), cpu_quota(root))


def count_cores(usable: Set[int], root: Path = ROOT) -> int:
    """Number of physical cores of these logical processors; one for each whose core the system does not report."""
    siblings = (root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list" for number in usable)
    return len({read_text(path) or path for path in siblings})


def cpu_quota(root: Path = ROOT) -> Optional[float]:
    """The smallest limit of the control groups (version 1 or 2), in processors; None without a limit.

    `docker run --cpus=1.5` gives 1.5.
    """
    limits: List[float] = []
    for folder in control_groups("cpu", root):
        words = read_text(folder / "cpu.max").split() or [
            read_text(folder / "cpu.cfs_quota_us"),
            read_text(folder / "cpu.cfs_period_us"),
        ]
        if all(word.isdigit() and int(word) for word in words):  # no limit is "max" or -1
            limits.append(int(words[0]) / int(words[1]))
    return min(limits, default=None)


class Memory(NamedTuple):
    """Memory that a process may use, in bytes: of the machine, or of its control group if that is less.

    Attributes:
        total: All memory.
        available: Memory that is free or can be freed.
        limited: Whether a control group limits it.
    """

    total: int
    available: int
    limited: bool


def read_memory(root: Path = ROOT) -> Optional[Memory]:
    """Total and available memory; None if the system does not report it."""
    fields = _fields(root / "proc/meminfo")
    if not fields:
        return None
    machine = 1024 * fields["MemTotal:"]
    memory = Memory(machine, 1024 * fields.get("MemAvailable:", fields["MemFree:"]), False)
    for folder in control_groups("memory", root):
        limit = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
        if not limit.isdigit() or int(limit) >= machine:  # "max", or a number near 2^63
            continue
        used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
        statistics = _fields(folder / "memory.stat")
        cached = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
        free = max(0, int(limit) - int(used or 0) + cached)
        memory = Memory(min(memory.total, int(limit)), min(memory.available, free), True)
    return memory


def control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, of both versions, the innermost first."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        folder = top / path.lstrip("/")  # in a container it can be a path of the host, which does not exist
        yield from (group for group in (folder, *folder.parents) if group == top or top in group.parents)


def processor_model(root: Path = ROOT) -> str:
    """The system's name of the processor."""
    return _of_processor("model name", root) or platform.processor() or platform.machine()


def processor_flags(root: Path = ROOT) -> Set[str]:
    """The system's names of what an x86 processor can, like "avx512_vnni"; empty for others."""
    return set(_of_processor("flags", root).split())


def _of_processor(name: str, root: Path) -> str:
    lines = read_text(root / "proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def read_text(path: Path) -> str:
    """The text of a small file, stripped; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def _fields(path: Path) -> Dict[str, int]:
    rows = (line.split() for line in read_text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
