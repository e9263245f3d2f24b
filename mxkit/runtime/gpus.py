"""Decides from MXNet's library and the driver which GPUs can run its kernels, and why MXNet sees none."""

from typing import Any, Dict, Sequence

from mxkit.runtime.architectures import CU112, Architectures, runs_on
from mxkit.runtime.driver import Driver
from mxkit.runtime.wheels import CONTAINER


def is_gpu(device: Any) -> bool:
    """Whether an `mx.Context` is a GPU."""
    return bool(device.device_type == "gpu")


def unusable_gpus(count: int, architectures: Architectures, driver: Driver) -> Dict[int, str]:
    """Find the GPUs that would fail at their first kernel.

    Args:
        count: Number of GPUs that MXNet sees.
        architectures: Of MXNet's library. If they could not be read, or the library has no kernels, no GPU is refused.
        driver: The driver, whose GPUs have MXNet's numbers.

    Returns:
        By the number of each GPU that cannot be used, the reason and the way out.

    >>> from mxkit.runtime.driver import Gpu
    >>> h200 = Driver((12, 4), (Gpu(0, "NVIDIA H200", (9, 0), 139 * 2**30, ""),))
    >>> print(unusable_gpus(1, CU112, h200)[0])
    NVIDIA H200 (sm_90, 139 GiB) cannot run this MXNet's kernels, which are compiled for sm_50, sm_60, sm_70, sm_80,
    sm_86. Use the CPU, a GPU of compute capability 5.0 to 8.x, NVIDIA's container nvcr.io/nvidia/mxnet:24.06-py3
    (docs/containers.md), or an MXNet built from source for sm_90
    >>> unusable_gpus(1, CU112._replace(ptx=((8, 0),)), h200)
    {}
    """
    if architectures.problem or not any(architectures[:3]):
        return {}
    return {
        gpu.index: f"{gpu} cannot run this MXNet's kernels, which are compiled for {architectures}. Use the CPU, "
        f"a GPU of compute capability {_range(architectures)}, NVIDIA's container {CONTAINER} (docs/containers.md), or "
        f"an MXNet built from source for sm_{gpu.capability[0]}{gpu.capability[1]}"
        for gpu in driver.gpus[:count]
        if not runs_on(architectures, gpu.capability)
    }


def why_no_gpu(with_cuda: bool, driver: Driver, *, wheels: Sequence[object] = (), failure: str = "") -> str:
    """Explain why MXNet sees no GPU, and the way out.

    Args:
        with_cuda: Whether MXNet was built for CUDA.
        driver: The NVIDIA driver.
        wheels: The installed distributions of MXNet.
        failure: The error that MXNet raised when it counted the GPUs, if any.

    >>> print(why_no_gpu(True, Driver((10, 2), (), "the NVIDIA driver is too old. Update it")))
    the NVIDIA driver is too old. Update it
    >>> print(why_no_gpu(False, Driver(problem="no NVIDIA driver"), wheels=["mxnet 1.9.1"]))
    this MXNet (mxnet 1.9.1) is built for the CPU alone (`mxkit install --cuda` installs the wheel for GPUs), and no
    NVIDIA driver
    """
    gpus = ", ".join(map(str, driver.gpus))
    if with_cuda:
        return driver.problem or failure or f"the driver has {gpus}, but MXNet sees none: run `mxkit doctor`"
    named = f" ({', '.join(map(str, wheels))})" if wheels else ""
    text = f"this MXNet{named} is built for the CPU alone"
    install = "`mxkit install --cuda` installs the wheel for GPUs"
    if driver.problem:
        return f"{text} ({install}), and {driver.problem}"
    runnable = [gpu for gpu in driver.gpus if runs_on(CU112, gpu.capability)]
    if runnable:
        return f"{text}; {install}, which has kernels for {runnable[0]}"
    return f"{text}; the wheel for GPUs would not help: it is compiled for {CU112}, and here is {gpus}"


def _range(architectures: Architectures) -> str:
    every = [*architectures.machine_code, *architectures.ptx, *architectures.exact]
    major, minor = min(every)
    return f"{major}.{minor} or higher" if architectures.ptx else f"{major}.{minor} to {max(every)[0]}.x"
