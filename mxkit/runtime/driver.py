"""Asks the NVIDIA driver for its version and its GPUs, without a CUDA context and without MXNet.

It asks in this process, not in a child: only then are the numbers those of `mx.gpu(i)` if CUDA_VISIBLE_DEVICES was
changed at run time. The cost is a rule of CUDA: a process that initialized CUDA must not use it in forked children.
MXNet's `num_gpus()`, which every script for GPUs calls, initializes CUDA too.
"""

import ctypes
from dataclasses import dataclass
import os
from typing import Any, Dict, NamedTuple, Optional, Tuple
import uuid

from mxkit.runtime.driver_stand_in import in_use, open_driver

# Driver 450.80.02 and newer run programs built with any CUDA 11 ("minor version compatibility" in NVIDIA's CUDA
# Compatibility guide), and so MXNet's wheels for CUDA 11.2 and 11.7.
OLDEST_CUDA = (11, 0)

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

_NO_DEVICE = 100
_ERRORS: Dict[int, Tuple[str, str]] = {
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "free memory on this machine"),
    34: (
        "CUDA_ERROR_STUB_LIBRARY",
        "the libcuda.so.1 that is found is the CUDA toolkit's stub: take its folder, .../stubs, out of LD_LIBRARY_PATH",
    ),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", "another process holds the GPU for itself: see `nvidia-smi`"),
    _NO_DEVICE: (
        "CUDA_ERROR_NO_DEVICE",
        "it sees no GPU: see that `nvidia-smi -L` lists one; a container needs to be started with its GPUs "
        "(`docker run --gpus all`)",
    ),
    304: ("CUDA_ERROR_OPERATING_SYSTEM", "see that this user may read and write /dev/nvidia*, and `nvidia-smi` runs"),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "start what its GPUs wait for: `systemctl start nvidia-fabricmanager`"),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the kernel still runs the driver from before an update: restart the machine; in a container, take a "
        "libcuda.so.1 that is not the host's out of LD_LIBRARY_PATH",
    ),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "this GPU does not run with the libcuda.so.1 of a cuda-compat package: take its folder out of LD_LIBRARY_PATH "
        "or remove the package",
    ),
    999: (
        "CUDA_ERROR_UNKNOWN",
        "mostly its module nvidia_uvm is not loaded, or was lost when the machine slept: `sudo modprobe -r nvidia_uvm; "
        "sudo modprobe nvidia_uvm`, or restart the machine",
    ),
}


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use; `mx.gpu(index)`.

    Attributes:
        index: Number from 0, among the GPUs that CUDA_VISIBLE_DEVICES leaves.
        name: NVIDIA's name.
        capability: Compute capability, like (9, 0) for sm_90.
        memory: In bytes.
        uuid: As `nvidia-smi -L` prints it; empty if the driver is older than CUDA 9.2.
    """

    index: int
    name: str
    capability: Tuple[int, int]
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
        library = _load()
        number = _number(library, "cuDriverGetVersion")
        version = (number // 1000, number % 1000 // 10)
        _call(library, "cuInit", ctypes.c_uint(0))
        count = _number(library, "cuDeviceGetCount")
        if not count:
            raise OSError(_explain(library, "cuDeviceGetCount", _NO_DEVICE))
        gpus = tuple(_gpu(library, index) for index in range(count))
    except OSError as error:
        return Driver(version, problem=str(error))
    return Driver(version, gpus, _too_old(version))


def _load() -> Any:
    library, problem = (None, "") if in_use() else open_driver()  # a loaded stand-in has the driver's name
    if problem:
        raise OSError(
            f"the NVIDIA driver's libcuda.so.1 cannot be loaded: {problem}. Install the driver again; in a "
            "container, start it with its GPUs (`docker run --gpus all`)"
        )
    if library is None:
        raise OSError(
            "no NVIDIA driver: libcuda.so.1 was not found. Install the driver, 450.80.02 or newer, not the CUDA "
            "toolkit; in a container, start it with its GPUs (`docker run --gpus all`)"
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
    has_uuid = hasattr(library, "cuDeviceGetUuid")  # since CUDA 9.2
    if has_uuid:
        _call(library, "cuDeviceGetUuid", identity, device)
    printed = f"GPU-{uuid.UUID(bytes=identity.raw)}" if has_uuid else ""
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
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU from this process ({_ERRORS[code][0]}): unset it, or "
            "name GPUs of `nvidia-smi -L` in it"
        )
    name, way_out = _ERRORS.get(code, ("", "see that `nvidia-smi` lists the GPUs"))
    if not name:
        pointer = ctypes.c_char_p()
        if hasattr(library, "cuGetErrorName"):
            library.cuGetErrorName(code, ctypes.byref(pointer))
        name = (pointer.value or b"an error without a name").decode(errors="replace")
    return f"the NVIDIA driver fails in {function}: {name} ({code}): {way_out}"


def _too_old(version: Tuple[int, int]) -> str:
    if version >= OLDEST_CUDA:
        return ""
    return (
        f"the NVIDIA driver is too old: it knows CUDA {version[0]}.{version[1]}, MXNet's wheels need CUDA "
        f"{OLDEST_CUDA[0]}.{OLDEST_CUDA[1]}, which is driver 450.80.02 or newer (`nvidia-smi` shows yours). Update it"
    )
