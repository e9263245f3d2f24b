"""The NVIDIA driver and its GPUs, and which of them can run the kernels of MXNet's library.

The driver is asked without a CUDA context and without MXNet, in this process, not in a child: only then are the numbers
those of `mx.gpu(i)` if CUDA_VISIBLE_DEVICES was changed at run time. The cost is a rule of CUDA: a process that
initialized CUDA must not use it in forked children. MXNet's `num_gpus()`, which every script for GPUs calls,
initializes CUDA too.
"""

import ctypes
from dataclasses import dataclass
import os
from pathlib import Path
import re
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple
import uuid

from mxkit.runtime.cuda_libraries import cudnn_version, in_use, open_driver
from mxkit.runtime.engine_settings import switches
from mxkit.runtime.wheels import CONTAINER, described

# Driver 450.80.02 and newer run programs built with any CUDA 11 ("minor version compatibility" in NVIDIA's CUDA
# Compatibility guide), and so MXNet's wheels for CUDA 11.2 and 11.7.
OLDEST_CUDA = (11, 0)

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

_NO_DEVICE = 100
_WAYS_OUT = {
    34: "it is the CUDA toolkit's stub: take its folder, .../stubs, out of LD_LIBRARY_PATH",
    _NO_DEVICE: "it sees no GPU: see that `nvidia-smi -L` lists one; a container needs to be started with its GPUs "
    "(`docker run --gpus all`)",
    304: "see that this user may read and write /dev/nvidia*, and `nvidia-smi` runs",
    802: "start what its GPUs wait for: `systemctl start nvidia-fabricmanager`",
    803: "the kernel still runs the driver from before an update: restart the machine; in a container, take a "
    "libcuda.so.1 that is not the host's out of LD_LIBRARY_PATH",
    804: "this GPU does not run with the libcuda.so.1 of a cuda-compat package: remove the package",
    999: "mostly its module nvidia_uvm is not loaded, or was lost when the machine slept: `sudo modprobe -r "
    "nvidia_uvm; sudo modprobe nvidia_uvm`, or restart the machine",
}


Capability = Tuple[int, int]


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use; `mx.gpu(index)`.

    Attributes:
        index: Number from 0, among the GPUs that CUDA_VISIBLE_DEVICES leaves.
        name: NVIDIA's name.
        capability: Compute capability, like (9, 0) for sm_90.
        memory: In bytes.
        uuid: As `nvidia-smi -L` prints it.
    """

    index: int
    name: str
    capability: Capability
    memory: int
    uuid: str

    def __str__(self) -> str:
        """The name in messages.

        >>> print(Gpu(0, "NVIDIA H200", (9, 0), 149 * 2**30, ""))
        NVIDIA H200 (sm_90, 149 GiB)
        """
        return f"{self.name} (sm_{self.capability[0]}{self.capability[1]}, {self.memory / 2**30:.0f} GiB)"


class Driver(NamedTuple):
    """The NVIDIA driver and its GPUs.

    Attributes:
        version: The newest CUDA that it supports, like (12, 4); None without a driver.
        gpus: Those that this process may use.
        problem: Why MXNet cannot use the driver, and the way out; empty if nothing is wrong.
    """

    version: Optional[Tuple[int, int]] = None
    gpus: Tuple[Gpu, ...] = ()
    problem: str = ""


def read_driver() -> Driver:
    """Ask the driver for its version and its GPUs.

    Returns:
        The answers; an error is described in `problem`. CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER count as for MXNet.

    Side effects:
        Initializes CUDA in this process if there is a driver; see the module. Takes no context and no GPU memory.
    """
    version = None
    try:
        library = _load_driver()
        number = _number(library, "cuDriverGetVersion")
        version = (number // 1000, number % 1000 // 10)
        if version < OLDEST_CUDA:
            raise OSError(
                f"the NVIDIA driver is too old: it knows CUDA {version[0]}.{version[1]}, MXNet's wheels need CUDA "
                f"{OLDEST_CUDA[0]}.{OLDEST_CUDA[1]}, which is driver 450.80.02 or newer (`nvidia-smi` shows yours). "
                "Update it"
            )
        _call(library, "cuInit", ctypes.c_uint(0))
        count = _number(library, "cuDeviceGetCount")
        if not count:
            raise OSError(_explain(library, "cuDeviceGetCount", _NO_DEVICE))
        return Driver(version, tuple(_gpu(library, index) for index in range(count)))
    except OSError as error:
        return Driver(version, problem=str(error))


def _load_driver() -> Any:
    library, problem = (None, "") if in_use() else open_driver()  # a loaded stand-in has the driver's name
    if library is None:
        raise OSError(
            f"no NVIDIA driver: libcuda.so.1 {f'cannot be loaded: {problem}' if problem else 'was not found'}. Install "
            "the driver, 450.80.02 or newer, not the CUDA toolkit; in a container, start it with its GPUs (`docker run "
            "--gpus all`)"
        )
    return library


def _gpu(library: Any, index: int) -> Gpu:
    device = ctypes.c_int()
    _call(library, "cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    _call(library, "cuDeviceGetName", name, len(name), device)
    memory = ctypes.c_size_t()
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    capability = (
        _number(library, "cuDeviceGetAttribute", _MAJOR, device),
        _number(library, "cuDeviceGetAttribute", _MINOR, device),
    )
    identity = ctypes.create_string_buffer(16)
    _call(library, "cuDeviceGetUuid", identity, device)
    printed = f"GPU-{uuid.UUID(bytes=identity.raw)}"
    return Gpu(index, name.value.decode(errors="replace"), capability, memory.value, printed)


def _number(library: Any, function: str, *arguments: Any) -> int:
    result = ctypes.c_int()
    _call(library, function, ctypes.byref(result), *arguments)
    return result.value


def _call(library: Any, function: str, *arguments: Any) -> None:
    try:
        code = int(getattr(library, function)(*arguments))
    except AttributeError:
        raise OSError(f"libcuda.so.1 is not NVIDIA's driver: it lacks {function}") from None
    if code:
        raise OSError(_explain(library, function, code))


def _explain(library: Any, function: str, code: int) -> str:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if code == _NO_DEVICE and hidden is not None:
        return (
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU from this process: unset it, or name GPUs of "
            "`nvidia-smi -L` in it"
        )
    name = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    said = (name.value or b"an error without a name").decode(errors="replace")
    way_out = _WAYS_OUT.get(code, "see that `nvidia-smi` lists the GPUs")
    return f"the NVIDIA driver fails in {function}: {said} ({code}): {way_out}"


# Kernels of the wheels mxnet-cu112 and mxnet-cu117, which hold no PTX that a driver could compile for newer GPUs (T83).
CU112 = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
#: The same as text.
ARCHITECTURES = ", ".join(f"sm_{major}{minor}" for major, minor in CU112)


def has_known_kernels(library: Path) -> bool:
    """Whether the kernels of MXNet's library are those of `CU112`: of Apache's wheels for GPUs, as their name says.

    Args:
        library: The path of libmxnet.so.
    """
    return described(library).startswith("mxnet-cu")


def runs_on(capability: Capability) -> bool:
    """Whether a GPU of this compute capability can run the kernels of `CU112`.

    NVIDIA's CUDA C++ Programming Guide, section "Application Compatibility": machine code runs within its major
    number from its minor one on.

    >>> [runs_on(capability) for capability in [(6, 1), (8, 9), (9, 0), (3, 7)]]
    [True, True, False, False]
    """
    return any(major == capability[0] and minor <= capability[1] for major, minor in CU112)


def is_gpu(device: Any) -> bool:
    """Whether an `mx.Context` is a GPU."""
    return bool(device.device_type == "gpu")


def unusable_gpus(count: int, driver: Driver) -> Dict[int, str]:
    """Find the GPUs on which the kernels of `CU112` would fail at once.

    Args:
        count: Number of GPUs that MXNet sees.
        driver: The driver, whose GPUs have MXNet's numbers.

    Returns:
        By the number of each GPU that cannot be used, the reason and the way out.

    >>> h200 = Driver((12, 4), (Gpu(0, "NVIDIA H200", (9, 0), 139 * 2**30, ""),))
    >>> print(unusable_gpus(1, h200)[0])
    NVIDIA H200 (sm_90, 139 GiB) cannot run MXNet's kernels, which are compiled for sm_50, sm_60, sm_70, sm_80, sm_86.
    Use the CPU, a GPU of compute capability 5.0 to 8.x, NVIDIA's container nvcr.io/nvidia/mxnet:24.06-py3
    (docs/containers.md), or an MXNet built from source for sm_90
    """
    return {
        gpu.index: f"{gpu} cannot run MXNet's kernels, which are compiled for {ARCHITECTURES}. Use the CPU, a GPU of "
        f"compute capability 5.0 to 8.x, NVIDIA's container {CONTAINER} "
        f"(docs/containers.md), or an MXNet built from source for sm_{gpu.capability[0]}{gpu.capability[1]}"
        for gpu in driver.gpus[:count]
        if not runs_on(gpu.capability)
    }


def why_no_gpu(with_cuda: bool, driver: Driver, failure: str = "") -> str:
    """Explain why MXNet sees no GPU, and the way out.

    Args:
        with_cuda: Whether MXNet was built for CUDA.
        driver: The NVIDIA driver.
        failure: The error that MXNet raised when it counted the GPUs, if any.

    >>> print(why_no_gpu(True, Driver((10, 2), (), "the NVIDIA driver is too old. Update it")))
    the NVIDIA driver is too old. Update it
    """
    if not with_cuda:
        return "this MXNet is built for the CPU alone; `mxkit install` says which wheel fits this machine, and why"
    gpus = ", ".join(map(str, driver.gpus))
    return driver.problem or failure or f"the driver has {gpus}, but MXNet sees none: run `mxkit doctor`"


_MODULE = Path("/proc/driver/nvidia/version")


def gpu_facts(numbers: Sequence[int]) -> Dict[str, str]:
    """The facts, as text, that a resumed run must share to compute the same bits.

    Args:
        numbers: Numbers of the GPUs that compute, as in `mx.gpu(0)`.
    """
    gpus = {gpu.index: gpu.name for gpu in read_driver().gpus}
    return {
        "GPUs": ", ".join(gpus.get(number, "unknown") for number in numbers),
        "NVIDIA driver": driver_release() or "unknown",
        "cuDNN": cudnn_version() or "unknown",
        **switches(),
    }


def driver_release() -> str:
    """Release of NVIDIA's driver, like "535.129.03"; empty if Linux does not report it."""
    text = _MODULE.read_text(encoding="utf-8", errors="replace") if _MODULE.is_file() else ""
    release = re.search(r"\s(\d+\.\d[\d.]*)\s", text)
    return release[1] if release else ""
