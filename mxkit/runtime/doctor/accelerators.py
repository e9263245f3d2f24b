"""The NVIDIA driver, its GPUs, the kernels that MXNet's library has for them, and the CUDA libraries it uses."""

import os
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Tuple

from mxkit.runtime.architectures import CU112, Architectures, kernel_architectures, runs_on
from mxkit.runtime.cuda_libraries import REQUIREMENTS
from mxkit.runtime.doctor.findings import Line
from mxkit.runtime.driver import Driver, Gpu
from mxkit.runtime.exact import WORD
from mxkit.runtime.gpus import unusable_gpus
from mxkit.runtime.wheels import package_spec

_CPU = "mxkit install --cpu    the smaller wheel, for machines that stay without a GPU"
_NO_FUSION = "export MXNET_USE_FUSION=0    operators are not fused then"
_FROM_THE_SYSTEM = {"libz.so.1": "apt-get install zlib1g    or: yum install zlib"}


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
        *fusion_lines(driver, kernels or Architectures(), mxnet.get("nvrtc", {})),
        *_seen(driver, mxnet, with_cuda),
        *exactness_lines(driver, with_cuda),
        *library_lines(mxnet.get("cuda_libraries", [])),
        *part_lines(mxnet.get("cudnn_lacks", {}), bool(driver.gpus)),
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


def exactness_lines(driver: Driver, with_cuda: bool) -> Tuple[Line, ...]:
    """Say whether a GPU gives the same bits each time; nothing where MXNet uses none.

    >>> h200 = Driver((12, 4), (Gpu(0, "NVIDIA H200", (9, 0), 140 * 2**30, ""),))
    >>> print(exactness_lines(h200, True)[0].value)
    off: bits differ from run to run, float32 products have 10 bits of digits on sm_80 and newer (MXKIT_EXACT=1)
    """
    if not (with_cuda and driver.gpus):
        return ()
    on = os.environ.get(WORD) == "1"
    off = "bits differ from run to run, float32 products have 10 bits of digits on sm_80 and newer"
    return (Line("exact", f"on, by {WORD}=1" if on else f"off: {off} ({WORD}=1)", data={"on": on}),)


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


def part_lines(lacks: Mapping[str, Sequence[str]], has_gpus: bool) -> Tuple[Line, ...]:
    """A line for each part of cuDNN that will not load at the first convolution, with the libraries that it lacks.

    >>> (line,) = part_lines({"libcudnn_cnn_infer.so.8": ["libz.so.1"]}, True)
    >>> line.status, line.fix
    ('problem', 'apt-get install zlib1g    or: yum install zlib')
    """
    status = "problem" if has_gpus else "warning"
    return tuple(
        Line(
            part,
            f"needs {' and '.join(sonames)}, not found: the first convolution on a GPU ends the process",
            status,
            "\n".join(_FROM_THE_SYSTEM.get(one, f"install the system's package that has {one}") for one in sonames),
            {"lacks": list(sonames)},
        )
        for part, sonames in lacks.items()
    )


def fusion_lines(driver: Driver, kernels: Architectures, nvrtc: Mapping[str, Any]) -> Tuple[Line, ...]:
    """Say whether what MXNet fuses in hybridized nets can be compiled for the GPUs, and run by the driver.

    MXNet asks for PTX of exactly the GPU's architecture. A driver reads no PTX of a newer CUDA than its own:
    https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#dynamic-code-generation

    >>> l4 = Driver((12, 4), (Gpu(0, "NVIDIA L4", (8, 9), 24 * 2**30, ""),))
    >>> (line,) = fusion_lines(l4, CU112, {"version": [11, 2], "architectures": [80, 86]})
    >>> line.value
    'NVRTC 11.2 cannot compile fused operators for NVIDIA L4 (sm_89, 24 GiB)'
    """
    if not nvrtc:
        return ()
    version, known = tuple(nvrtc["version"]), nvrtc["architectures"]
    data = {"version": list(version), "architectures": [f"compute_{one}" for one in known]}
    if os.environ.get("MXNET_USE_FUSION", "").lower() in ("0", "false"):
        return (Line("fusion", "off, by MXNET_USE_FUSION", data=data),)
    usable = [gpu for gpu in driver.gpus if runs_on(kernels, gpu.capability)]
    unknown = [gpu for gpu in usable if 10 * gpu.capability[0] + gpu.capability[1] not in known]
    named, problem, instead = f"NVRTC {_dotted(version)}", "", ""
    if unknown:
        problem = f"cannot compile fused operators for {unknown[0]}"
        instead = f"or: pip install --force-reinstall --no-deps {REQUIREMENTS['libnvrtc.so.11.2']}"
    elif usable and driver.version and driver.version < version:
        problem = f"compiles fused operators to PTX that a driver for CUDA {_dotted(driver.version)} does not read"
        instead = f"or a driver for CUDA {_dotted(version)} or newer"
    if problem:
        return (Line("fusion", f"{named} {problem}", "warning", f"{_NO_FUSION}\n{instead}", data),)
    return (Line("fusion", f"{named} compiles fused operators", data=data),)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
