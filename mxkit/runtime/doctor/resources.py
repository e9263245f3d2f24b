"""What there is to compute with, and whether MXNet takes it: processors, threads, memory, shared memory."""

import math
import os
from pathlib import Path
import platform
from typing import List, Mapping, Optional, Sequence, Tuple

from mxkit.runtime.doctor.findings import Line
from mxkit.runtime.doctor.machine import Memory, Processors, read_memory, read_processors

_GIB = 2**30
_SHARED = Path("/dev/shm")  # noqa: S108


def resource_lines(openmp: Sequence[str]) -> Tuple[Line, ...]:
    """Lines about this machine; `openmp` lists the OpenMP libraries that MXNet's process has loaded."""
    processors = read_processors()
    found = [_processors(processors), thread_line(processors, os.environ), *openmp_lines(openmp)]
    memory = read_memory()
    return (*found, *([memory_line(memory)] if memory else []), *_shared_memory())


def taken_threads(processors: Processors, environment: Mapping[str, str]) -> Optional[int]:
    """How many threads MXNet 1.9.1 takes (src/engine/openmp.cc); None for a setting that it cannot read.

    It halves the processors on x86, because it presumes two threads a core (T96).
    """
    named = environment.get("MXNET_OMP_MAX_THREADS") or environment.get("OMP_NUM_THREADS")
    if not named:
        intel = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
        return max(1, processors.usable // 2 if intel else processors.usable)
    try:
        number = int(named)
    except ValueError:
        return None
    return number if number > 0 else processors.usable  # OpenMP ignores it


def thread_line(processors: Processors, environment: Mapping[str, str]) -> Line:
    """Compare what MXNet takes with what can compute at the same time.

    >>> thread_line(Processors(2, 2, None, ""), {"OMP_NUM_THREADS": "2"}).value
    'MXNet takes 2, with OMP_NUM_THREADS=2; 2 can compute at the same time'
    >>> thread_line(Processors(64, 32, 2.0, ""), {"OMP_NUM_THREADS": "32"}).fix
    'export OMP_NUM_THREADS=2    before Python starts: threads without a core of their own wait for each other'
    """
    best, taken = processors.threads, taken_threads(processors, environment)
    names = [name for name in ("MXNET_OMP_MAX_THREADS", "OMP_NUM_THREADS") if environment.get(name)]
    data = {"taken": taken, "sensible": best}
    fix = f"export OMP_NUM_THREADS={best}    before Python starts"
    if taken is None:
        return Line("threads", f"{names[0]}={environment[names[0]]!r} is no number", "problem", fix, data)
    why = f"with {names[0]}={environment[names[0]]}" if names else "its own choice"
    said = f"MXNet takes {taken}, {why}; {best} can compute at the same time"
    if taken > _most(processors, bool(names)):
        return Line("threads", said, "warning", f"{fix}: threads without a core of their own wait for each other", data)
    if taken < best and not names:
        return Line("threads", said, "warning", f"{fix}: MXNet takes half of the processors it sees (T96)", data)
    return Line("threads", said, data=data)


def _most(processors: Processors, chosen: bool) -> int:
    if not chosen:
        return processors.threads
    # Two threads a core can be meant; more than the quota gives cannot.
    return min(processors.usable, math.ceil(processors.quota or processors.usable))


def openmp_lines(paths: Sequence[str]) -> Tuple[Line, ...]:
    """Say which OpenMP runtimes a process has loaded; two kinds do not know of each other's threads.

    >>> openmp_lines(["/usr/lib/libgomp.so.1.0.0", "/opt/conda/lib/libiomp5.so"])[0].status
    'warning'
    """
    if not paths:
        return ()
    kinds = sorted({os.path.basename(path).split(".")[0].split("-")[0] for path in paths})  # noqa: PTH119
    said = "\n".join(paths)
    if len(kinds) == 1:
        return (Line("OpenMP", said, data={"libraries": list(paths)}),)
    fix = (
        f"{' and '.join(kinds)} each keep threads that wait spinning. Remove the package whose folder brings the one "
        "that is not libgomp (in conda: `conda install nomkl`), or export OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0"
    )
    return (Line("OpenMP", said, "warning", fix, {"libraries": list(paths)}),)


def memory_line(memory: Memory) -> Line:
    """Say how much memory there is; less than 2 GiB is a warning."""
    whose = "that its control group allows" if memory.limited else "of this machine"
    said = f"{memory.available / _GIB:.1f} GiB available of {memory.total / _GIB:.1f} GiB {whose}"
    data = {"total": memory.total, "available": memory.available}
    if memory.available >= 2 * _GIB:
        return Line("memory", said, data=data)
    fix = "take smaller batches with accumulate=N, or give the container more: docker run --memory=8g"
    return Line("memory", said, "warning", fix, data)


def _processors(processors: Processors) -> Line:
    said: List[str] = [f"{processors.usable} usable of {os.cpu_count()}, {processors.cores} cores"]
    if processors.quota:
        said.append(f"a quota of {processors.quota:g}")
    return Line(
        "processors", f"{', '.join(said)}, {processors.model}",
        data={"usable": processors.usable, "cores": processors.cores, "quota": processors.quota},
    )  # fmt: skip


def _shared_memory() -> Tuple[Line, ...]:
    if not _SHARED.is_dir():
        return ()
    state = os.statvfs(_SHARED)
    return (shared_memory_line(state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize),)


def shared_memory_line(total: int, free: int) -> Line:
    """Judge /dev/shm, in bytes: Gluon's DataLoader puts the batches of worker processes there.

    Where they do not fit, it says nothing but "TimeoutError" after two minutes (FAULTS 5).

    >>> shared_memory_line(64 * 2**20, 64 * 2**20).status
    'warning'
    """
    said = f"{free / _GIB:.2f} GiB free of {total / _GIB:.2f} GiB"
    data = {"total": total, "free": free}
    if free >= _GIB // 2:
        return Line("/dev/shm", said, data=data)
    full = "" if total < _GIB // 2 else "remove what ended programs left in it: ls -l /dev/shm; "
    fix = (
        f"{full}docker run --shm-size=2g; or thread_pool=True in Gluon's DataLoader. mxkit's loaders need it on "
        "Python 3.8's systems without memfd_create only"
    )
    return Line("/dev/shm", said, "warning", fix, data)
