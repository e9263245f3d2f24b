"""The NVIDIA driver, its GPUs, the kernels that MXNet's library has for them, and the CUDA libraries it uses."""

import os
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Tuple

from mxkit.runtime.architectures import CU112, Architectures, kernel_architectures
from mxkit.runtime.doctor.findings import Line
from mxkit.runtime.driver import Driver, Gpu
from mxkit.runtime.gpus import unusable_gpus
from mxkit.runtime.wheels import package_spec

_CPU = "mxkit install --cpu    the smaller wheel, for machines that stay without a GPU"


def installed_kernels() -> Optional[Architectures]:
    """What MXNet's library is compiled for, read without importing it; None if there is none."""
    spec = package_spec()
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    named = os.environ.get("MXNET_LIBRARY_PATH")
    candidates = [*([Path(named)] if named else []), *(folder / "libmxnet.so" for folder in folders)]
    return next((kernel_architectures(path) for path in candidates if path.is_file()), None)


def accelerator_lines(driver: Driver, kernels: Optional[Architectures], mxnet: Mapping[str, Any]) -> Tuple[Line, ...]:
    """Lines about GPUs: what the driver has, what MXNet can use of it, and through which libraries.

    Args:
        driver: As `read_driver` gave it.
        kernels: What MXNet's library is compiled for; None where there is no MXNet.
        mxnet: What its probe answered.
    """
    with_cuda = bool(kernels and any(kernels))
    return (
        _driver(driver, with_cuda, bool(mxnet.get("stand_in"))),
        *gpu_lines(driver, kernels),
        *([] if kernels is None else [_kernels(kernels)]),
        *_seen(driver, mxnet, with_cuda),
        *library_lines(mxnet.get("cuda_libraries", [])),
    )


def gpu_lines(driver: Driver, kernels: Optional[Architectures]) -> Tuple[Line, ...]:
    """Say of each GPU whether MXNet can compute on it; `kernels` is None where no MXNet is installed.

    >>> h200 = Driver((12, 4), (Gpu(0, "NVIDIA H200", (9, 0), 140 * 2**30, ""),))
    >>> print(gpu_lines(h200, CU112)[0].value)
    NVIDIA H200 (sm_90, 140 GiB): MXNet has no kernels for it
    >>> print(gpu_lines(Driver((12, 4), (Gpu(0, "NVIDIA L4", (8, 9), 24 * 2**30, ""),)), None)[0].fix)
    mxkit install --cuda
    """
    # A library without kernels of its own is a CPU's, so what counts is whether the other wheel would serve.
    useful = kernels if kernels and any(kernels[:3]) else CU112
    reasons = unusable_gpus(len(driver.gpus), useful, driver)
    return tuple(_gpu(gpu, reasons.get(gpu.index, ""), useful is kernels, useful) for gpu in driver.gpus)


def _gpu(gpu: Gpu, reason: str, is_used: bool, kernels: Architectures) -> Line:
    data = {
        "index": gpu.index,
        "name": gpu.name,
        "capability": list(gpu.capability),
        "memory": gpu.memory,
        "uuid": gpu.uuid,
        "usable": is_used and not reason,
    }
    name = f"gpu {gpu.index}"
    if reason:
        whose = "MXNet has" if is_used else "MXNet's wheel for GPUs would have"
        instead = f"mxnet-cu112 is compiled for {kernels}: stay on the CPU, or build MXNet from source for this GPU"
        fix = reason if is_used else instead
        return Line(name, f"{gpu}: {whose} no kernels for it", "warning", fix, data)
    if is_used:
        return Line(name, f"{gpu}: MXNet has kernels for it", data=data)
    return Line(name, f"{gpu}: not used, this MXNet is built for the CPU", "warning", "mxkit install --cuda", data)


def _driver(driver: Driver, with_cuda: bool, stand_in: bool) -> Line:
    data = {"version": list(driver.version) if driver.version else None, "stand_in": stand_in}
    found = f"CUDA {driver.version[0]}.{driver.version[1]}" if driver.version else ""
    if not driver.problem:
        return Line("driver", found, data=data)
    if not driver.version:
        said = driver.problem.split(". ")[0]
        if not with_cuda:
            return Line("driver", said, data=data)
        instead = "; a stand-in without GPUs lets MXNet compute on the CPU" if stand_in else ""
        fix = f"install NVIDIA's driver, 450.80.02 or newer; in a container: docker run --gpus all\nor: {_CPU}"
        return Line("driver", said + instead, "warning", fix, data)
    said, _, fix = driver.problem.partition(": ")
    return Line("driver", f"{found}; {said}", "warning", fix or driver.problem, data)


def _kernels(kernels: Architectures) -> Line:
    named = [f"sm_{major}{minor}" for major, minor in kernels.machine_code]
    data = {"machine_code": named, "ptx": [f"compute_{major}{minor}" for major, minor in kernels.ptx]}
    if kernels.problem:
        return Line("kernels", f"cannot be read: {kernels.problem}", "warning", "mxkit install", data)
    if not any(kernels[:3]):
        return Line("kernels", "none for GPUs: this MXNet is built for the CPU", data=data)
    newer = "" if kernels.ptx else ", and no PTX, which newer GPUs could compile"
    return Line("kernels", f"{kernels}{newer}", data=data)


def _seen(driver: Driver, mxnet: Mapping[str, Any], with_cuda: bool) -> Tuple[Line, ...]:
    if "gpus_error" in mxnet:
        said = mxnet["gpus_error"].strip().splitlines()[-1]  # before it stands the place in MXNet's C++
        return (Line("mx.context", said, "warning", "see that `nvidia-smi` lists the GPUs"),)
    count = mxnet.get("gpus")
    if count is None:
        return ()
    data = {"gpus": count}
    if with_cuda and count < len(driver.gpus):
        said = f"{count} GPUs, while the driver has {len(driver.gpus)}"
        return (Line("mx.context", said, "warning", "see the CUDA libraries below", data),)
    return (Line("mx.context", f"{count} GPU{'' if count == 1 else 's'}", data=data),)


def library_lines(libraries: Sequence[Sequence[str]]) -> Tuple[Line, ...]:
    """A line for each CUDA library that MXNet's process needs: soname, path, provider, problem.

    >>> library_lines([("libnccl.so.2", "/x/libnccl.so.2", "system", ""), ("libcuda.so.1", "", "mxkit's stand-in", "")])
    ... # doctest: +ELLIPSIS
    (Line(name='libnccl.so.2', value='/x/libnccl.so.2 (system)', ...), Line(..., value="mxkit's stand-in", ...))
    """
    return tuple(_library(*one) for one in libraries)


def _library(soname: str, path: str, provider: str, problem: str) -> Line:
    data = {"path": path, "provider": provider}
    if not problem:
        return Line(soname, f"{path} ({provider})" if path else provider, data=data)
    if path:
        return Line(soname, f"{path} ({provider})", "warning", problem, data)
    return Line(soname, problem, "problem", "mxkit install --cuda", data)
