"""Lines about processors, threads and memory, the NVIDIA driver, its GPUs, and what of them MXNet uses."""

import math
import os
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Tuple

from mxkit.runtime.doctor.findings import Line, judged
from mxkit.runtime.engine_settings import EXACT, Choice, choose, limits, local_workers
from mxkit.runtime.gpus import ARCHITECTURES, Driver, has_known_kernels, unusable_gpus
from mxkit.runtime.machine import Memory, Processors, processor_model, read_memory, read_processors
from mxkit.runtime.wheels import package_spec

_GIB = 2**30
_SHARED = Path("/dev/shm")  # noqa: S108


def resource_lines() -> Tuple[Line, ...]:
    """Lines about this machine."""
    processors = read_processors()
    memory = read_memory()
    return (
        _processors(processors),
        thread_line(processors, os.environ),
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
    if limits(environment) and (choice.taken or 0) < processors.threads // (workers or 1):
        why = f"{limits(environment)} may allow no more (T300)"
    shared = f", shared by {workers} workers on this host" if workers and workers > 1 else ""
    whose = f"; mxkit chose it, MXNet alone takes {choice.alone}" if choice.taken != choice.alone else ""
    said = f"MXNet takes {choice.taken}: {why}{shared}{whose}"
    if workers is None:
        said += f"; {environment['DMLC_NUM_WORKER']} workers compute, here or elsewhere"
    fix = (
        "export OMP_NUM_THREADS=N    before each worker starts, N the cores of its host over the workers there. "
        "MXNet's launchers tell a worker only by DMLC_JOB_CLUSTER=local that all of them share its host"
    )
    return judged("threads", said, workers is not None, fix, data)


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
    fix = (
        "docker run --shm-size=2g, or remove what ended programs left in it (ls -l /dev/shm); or thread_pool=True in "
        "Gluon's DataLoader. mxkit's loaders need it on Python 3.8's systems without memfd_create only"
    )
    return judged("/dev/shm", said, free >= _GIB // 2, fix, {"total": total, "free": free})


def installed_kernels() -> Optional[bool]:
    """Whether the kernels of the installed MXNet are those of Apache's wheels for GPUs; None without MXNet."""
    spec = package_spec()
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    candidates = (folder / "libmxnet.so" for folder in folders)
    return next((has_known_kernels(path) for path in candidates if path.is_file()), None)


def accelerator_lines(driver: Driver, is_known: Optional[bool], mxnet: Mapping[str, Any]) -> Tuple[Line, ...]:
    """Lines about the GPUs of the driver, MXNet's kernels for them, and the libraries that it uses.

    Args:
        driver: The answers of `read_driver`.
        is_known: The answer of `installed_kernels`.
        mxnet: The answers of MXNet's probe.

    >>> h200 = Driver((12, 4), (mxkit.runtime.gpus.Gpu(0, "NVIDIA H200", (9, 0), 140 * 2**30, ""),))
    >>> print(accelerator_lines(h200, True, {})[1].value)
    NVIDIA H200 (sm_90, 140 GiB): MXNet has no kernels for it
    """
    with_cuda = bool(is_known) or "CUDA" in mxnet.get("features", ())
    return (
        _driver(driver, with_cuda, bool(mxnet.get("stand_in"))),
        *_gpus(driver, bool(is_known), with_cuda),
        *([] if is_known is None else [_kernels(is_known, with_cuda)]),
        *_seen(driver, mxnet, with_cuda),
        *(_exactness() if with_cuda and driver.gpus else []),
        *(_library(*library) for library in mxnet.get("cuda_libraries", [])),
    )


def _gpus(driver: Driver, is_known: bool, with_cuda: bool) -> Iterator[Line]:
    # Without CUDA the line says whether the wheel for GPUs would run.
    reasons = unusable_gpus(len(driver.gpus), driver) if is_known or not with_cuda else {}
    for gpu in driver.gpus:
        reason = reasons.get(gpu.index, "")
        data = {**gpu.__dict__, "capability": list(gpu.capability), "usable": with_cuda and not reason}
        if not with_cuda:
            said = (
                "MXNet's wheel for GPUs would have no kernels for it" if reason else "this MXNet is built for the CPU"
            )
        elif is_known:
            said = "MXNet has no kernels for it" if reason else "MXNet has kernels for it"
        else:
            said = "MXNet was built from source"
        fix = reason or "mxkit install --cuda"
        yield judged(f"gpu {gpu.index}", f"{gpu}: {said}", with_cuda and not reason, fix, data)


def _driver(driver: Driver, with_cuda: bool, stand_in: bool) -> Line:
    data = {"version": list(driver.version) if driver.version else None, "stand_in": stand_in}
    cuda = "CUDA {}.{}".format(*driver.version) if driver.version else ""
    if not driver.problem:
        return Line("driver", cuda, data=data)
    if driver.version:
        said, _, fix = driver.problem.partition(": ")
        return Line("driver", f"{cuda}; {said}", "warning", fix or driver.problem, data)
    said = driver.problem.split(". ")[0]
    if with_cuda and stand_in:
        said += "; a stand-in without GPUs lets MXNet compute on the CPU"
    fix = (
        "install NVIDIA's driver, 450.80.02 or newer; in a container: docker run --gpus all\n"
        "or: mxkit install --cpu    the smaller wheel, for machines that stay without a GPU"
    )
    return judged("driver", said, not with_cuda, fix, data)


def _kernels(is_known: bool, with_cuda: bool) -> Line:
    data = {"machine_code": ARCHITECTURES.split(", ") if is_known else []}
    if is_known:
        return Line("kernels", f"{ARCHITECTURES}, and no PTX, which newer GPUs could compile", data=data)
    own = "not known: this MXNet is not Apache's wheel"
    return Line("kernels", own if with_cuda else "none for GPUs: this MXNet is built for the CPU", data=data)


def _seen(driver: Driver, mxnet: Mapping[str, Any], with_cuda: bool) -> Tuple[Line, ...]:
    if "gpus_error" in mxnet:
        said = mxnet["gpus_error"].strip().splitlines()[-1]  # the lines before it are places in MXNet's C++
        return (Line("mx.context", said, "warning", "see that `nvidia-smi` lists the GPUs"),)
    count = mxnet.get("gpus")
    if count is None:
        return ()
    fewer = with_cuda and count < len(driver.gpus)
    said = f"{count} GPUs, while the driver has {len(driver.gpus)}" if fewer else f"{count} GPU{'s' * (count != 1)}"
    return (judged("mx.context", said, not fewer, "see the CUDA libraries below", {"gpus": count}),)


def _exactness() -> Tuple[Line, ...]:
    on = os.environ.get(EXACT) == "1"
    off = "bits differ from run to run, float32 products have 10 bits of digits on sm_80 and newer"
    return (Line("exact", f"on, by {EXACT}=1" if on else f"off: {off} ({EXACT}=1)", data={"on": on}),)


def _library(soname: str, path: str, provider: str, problem: str) -> Line:
    data = {"path": path, "provider": provider}
    if problem and not path:
        return Line(soname, problem, "problem", "mxkit install --cuda", data)
    return judged(soname, f"{path} ({provider})" if path else provider, not problem, problem, data)
