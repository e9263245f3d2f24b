"""Lines about processors, threads, memory and shared memory, and how much of them MXNet uses."""

import math
import os
from pathlib import Path
from typing import Any, Mapping, Sequence, Tuple

from mxkit.runtime.doctor.findings import Line, judged
from mxkit.runtime.engine_settings import Choice, choose, local_workers
from mxkit.runtime.machine import Memory, Processors, processor_model, read_memory, read_processors

_GIB = 2**30
_SHARED = Path("/dev/shm")  # noqa: S108


def resource_lines(openmp: Sequence[str]) -> Tuple[Line, ...]:
    """Lines about this machine; `openmp` is the OpenMP libraries of MXNet's process."""
    processors = read_processors()
    memory = read_memory()
    return (
        _processors(processors),
        thread_line(processors, os.environ),
        *openmp_lines(openmp),
        *([memory_line(memory)] if memory else []),
        *_shared_memory(),
    )


def thread_line(processors: Processors, environment: Mapping[str, str]) -> Line:
    """The number of threads that MXNet takes, who chose it, and how many can compute at the same time.

    >>> thread_line(Processors(2, 2, None), {"OMP_NUM_THREADS": "1"}).value
    'MXNet takes 1, with OMP_NUM_THREADS=1, yours; 2 can compute at the same time'
    >>> thread_line(Processors(64, 32, 2.0), {"OMP_NUM_THREADS": "32"}).fix
    'export OMP_NUM_THREADS=2    before Python starts: threads without a core of their own wait for each other'
    """
    choice, best = choose(processors, environment), processors.threads
    data = {"taken": choice.taken, "sensible": best, "alone": choice.alone, "setting": choice.setting}
    fix = f"export OMP_NUM_THREADS={best}    before Python starts"
    if choice.taken is None:
        said = f"{choice.setting}={environment[choice.setting]!r} is no number"
        return Line("threads", said, "problem", fix, data)
    if not choice.setting:
        return _chosen(processors, environment, choice, data)
    yours = f"with {choice.setting}={environment[choice.setting]}, yours"
    said = f"MXNet takes {choice.taken}, {yours}; {best} can compute at the same time"
    # Two threads per core can be intended; more than the quota cannot.
    fits = choice.taken <= min(processors.usable, math.ceil(processors.quota or processors.usable))
    return judged("threads", said, fits, f"{fix}: threads without a core of their own wait for each other", data)


def _chosen(processors: Processors, environment: Mapping[str, str], choice: Choice, data: Mapping[str, Any]) -> Line:
    workers = local_workers(environment)
    why = "one per core" if processors.threads == processors.cores else f"the quota is {processors.quota:g}"
    shared = f", shared by {workers} workers on this host" if workers and workers > 1 else ""
    whose = f"; mxkit chose it, MXNet alone takes {choice.alone}" if choice.by_mxkit else ""
    said = f"MXNet takes {choice.taken}: {why}{shared}{whose}"
    if workers is None:
        said += f"; {environment['DMLC_NUM_WORKER']} workers compute, here or elsewhere"
    fix = (
        "export OMP_NUM_THREADS=N    before each worker starts, N the cores of its host over the workers there. "
        "MXNet's launchers tell a worker only by DMLC_JOB_CLUSTER=local that all of them share its host"
    )
    return judged("threads", said, workers is not None, fix, data)


def openmp_lines(paths: Sequence[str]) -> Tuple[Line, ...]:
    """The OpenMP runtimes that a process has loaded; two kinds compete, each with its own threads.

    >>> openmp_lines(["/usr/lib/libgomp.so.1.0.0", "/opt/conda/lib/libiomp5.so"])[0].status
    'warning'
    """
    if not paths:
        return ()
    kinds = sorted({os.path.basename(path).split(".")[0].split("-")[0] for path in paths})  # noqa: PTH119
    said = "\n".join(paths)
    fix = (
        f"{' and '.join(kinds)} each keep threads that wait spinning. Remove the package whose folder brings the one "
        "that is not libgomp (in conda: `conda install nomkl`), or export OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0"
    )
    return (judged("OpenMP", said, len(kinds) == 1, fix, {"libraries": list(paths)}),)


def memory_line(memory: Memory) -> Line:
    """Available and total memory; less than 2 GiB is a warning."""
    whose = "that its control group allows" if memory.limited else "of this machine"
    said = f"{memory.available / _GIB:.1f} GiB available of {memory.total / _GIB:.1f} GiB {whose}"
    data = {"total": memory.total, "available": memory.available}
    fix = "take smaller batches with accumulate=N, or give the container more: docker run --memory=8g"
    return judged("memory", said, memory.available >= 2 * _GIB, fix, data)


def _processors(processors: Processors) -> Line:
    quota = f", a quota of {processors.quota:g}" if processors.quota else ""
    said = f"{processors.usable} usable of {os.cpu_count()}, {processors.cores} cores{quota}, {processor_model()}"
    return Line("processors", said, data=processors._asdict())


def _shared_memory() -> Tuple[Line, ...]:
    if not _SHARED.is_dir():
        return ()
    state = os.statvfs(_SHARED)
    return (shared_memory_line(state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize),)


def shared_memory_line(total: int, free: int) -> Line:
    """Judge the size of /dev/shm, in bytes: Gluon's DataLoader puts the batches of worker processes there.

    If they do not fit, it raises only "TimeoutError", after two minutes.

    >>> shared_memory_line(64 * 2**20, 64 * 2**20).status
    'warning'
    """
    said = f"{free / _GIB:.2f} GiB free of {total / _GIB:.2f} GiB"
    full = "" if total < _GIB // 2 else "remove what ended programs left in it: ls -l /dev/shm; "
    fix = (
        f"{full}docker run --shm-size=2g; or thread_pool=True in Gluon's DataLoader. mxkit's loaders need it on "
        "Python 3.8's systems without memfd_create only"
    )
    return judged("/dev/shm", said, free >= _GIB // 2, fix, {"total": total, "free": free})
