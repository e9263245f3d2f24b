"""The NVIDIA driver and its GPUs, and which of them can run the kernels of MXNet's library.

The driver is asked without a CUDA context and without MXNet, in this process, not in a child: only then are the numbers
those of `mx.gpu(i)` if CUDA_VISIBLE_DEVICES was changed at run time. The cost is a rule of CUDA: a process that
initialized CUDA must not use it in forked children. MXNet's `num_gpus()`, which every script for GPUs calls,
initializes CUDA too.

The architectures of kernels are read from the library's fat binaries; no NVIDIA tool is needed. nvcc puts one fat
binary for each compiled file into the ELF section `.nv_fatbin`: a header, then entries of machine code or PTX, each
with a header that holds its architecture and its size. Only headers are read: MXNet's 891 MB take 5 ms, and 0.3 s from
a cold disk.
"""

import ctypes
from dataclasses import dataclass
import os
from pathlib import Path
import re
import struct
from typing import (
    Any,
    BinaryIO,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)
import uuid

from mxkit.runtime.cuda_libraries import cudnn_version, in_use, open_driver
from mxkit.runtime.engine_settings import switches
from mxkit.runtime.wheels import CONTAINER

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
        library = _load_driver()
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


def _load_driver() -> Any:
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


Capability = Tuple[int, int]

_MAGIC = 0xBA55ED50
_PTX, _MACHINE_CODE = 1, 2  # the driver does not load other kinds by itself (8: link-time code)
_THIS_ONE, _FAMILY = 0x100000, 0x200000  # flags of an entry: sm_90a; sm_100f


class Architectures(NamedTuple):
    """Compute capabilities, like (8, 6), that every fat binary of a library has code for, in rising order.

    Attributes:
        machine_code: Runs on GPUs of the same major number and at least the same minor one.
        ptx: The driver compiles it for any GPU of at least this capability.
        exact: Code that runs on this capability only (sm_90a).
        problem: Why the library could not be read to its end; empty if it was. The rest then holds what was read.
    """

    machine_code: Tuple[Capability, ...] = ()
    ptx: Tuple[Capability, ...] = ()
    exact: Tuple[Capability, ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        """The names of NVIDIA's tools.

        >>> print(Architectures(((5, 0), (8, 6)), ((8, 0),)), "|", Architectures())
        sm_50, sm_86, compute_80 | no GPU code
        """
        named = [("sm_{}{}", self.machine_code), ("sm_{}{}a", self.exact), ("compute_{}{}", self.ptx)]
        return ", ".join(form.format(*code) for form, codes in named for code in codes) or "no GPU code"


# Read from mxnet_cu112-1.9.1's library; mxnet_cu117's holds the same (T83).
CU112 = Architectures(machine_code=((5, 0), (6, 0), (7, 0), (8, 0), (8, 6)))


def kernel_architectures(library: Path) -> Architectures:
    """Read which GPUs the kernels of a shared library were compiled for.

    Args:
        library: A 64-bit little-endian ELF file, like MXNet's libmxnet.so.

    Returns:
        The architectures that all of its fat binaries share: on others some kernels would fail. Empty for a library
        without GPU code. The file never makes it raise; see `Architectures.problem`.
    """
    fat_binaries: List[FrozenSet[Tuple[str, Capability]]] = []
    problem = ""
    try:
        with library.open("rb", buffering=0) as file:
            for start, size in _sections(file, b".nv_fatbin"):
                fat_binaries += _fat_binaries(file, start, start + size)
    except (OSError, ValueError) as error:
        problem = f"{library}: {error}"
    common = frozenset.intersection(*fat_binaries) if fat_binaries else frozenset()
    by_reach = {name: tuple(sorted(code for reach, code in common if reach == name)) for name, _ in common}
    return Architectures(problem=problem, **by_reach)


def runs_on(architectures: Architectures, capability: Capability) -> bool:
    """Whether a GPU of this compute capability can run the kernels.

    The rules are those of NVIDIA's CUDA C++ Programming Guide, section "Application Compatibility": machine code runs
    within its major number from its minor one on; PTX is compiled by the driver for any later GPU.

    >>> [runs_on(CU112, capability) for capability in [(6, 1), (8, 9), (9, 0), (3, 7)]]
    [True, True, False, False]
    """
    major, minor = capability
    return (
        any(code[0] == major and code[1] <= minor for code in architectures.machine_code)
        or any(least <= capability for least in architectures.ptx)
        or capability in architectures.exact
    )


def _sections(file: BinaryIO, wanted: bytes) -> Iterator[Tuple[int, int]]:
    """Yield offset and size of the sections of this name."""
    size = file.seek(0, 2)
    if _unpacked(file, "<6s", 0)[0] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    table, entry, count, names = _unpacked(file, "<40xQ10xHHH", 0)
    if not table or not count:
        raise ValueError("it has no section headers, which would say where its GPU code is")
    if table + count * entry > size:
        raise ValueError(f"it is cut off: {size} bytes, {table + count * entry} expected")
    headers = [_unpacked(file, "<I20xQQ", table + i * entry) for i in range(count)]
    first = headers[names][1] if names < count else size
    for name, start, length in headers:
        if _take(file, first + name, len(wanted) + 1) == wanted + b"\0":
            if start + length > size:
                raise ValueError(f"it is cut off: {size} bytes, {start + length} expected")
            yield start, length


def _fat_binaries(file: BinaryIO, start: int, end: int) -> Iterator[FrozenSet[Tuple[str, Capability]]]:
    start += _padding(file, start)
    while start < end:
        magic, header, size = _unpacked(file, "<I2xHQ", start)
        if magic != _MAGIC or header < 16 or start + header + size > end:
            raise ValueError(f"its GPU code is damaged: no fat binary at byte {start}")
        inside = frozenset(_entries(file, start + header, start + header + size))
        if inside:
            yield inside
        start += header + size
        start += _padding(file, start)


def _entries(file: BinaryIO, start: int, end: int) -> Iterator[Tuple[str, Capability]]:
    while start < end:
        kind, header, size, architecture, flags = _unpacked(file, "<H2xIQ12xI8xQ", start)
        if header < 64 or start + header + size > end:
            raise ValueError(f"its GPU code is damaged: no entry of a fat binary at byte {start}")
        if kind in (_PTX, _MACHINE_CODE):
            yield _reach(kind, flags), divmod(architecture, 10)
        start += header + size


def _reach(kind: int, flags: int) -> str:
    if flags & _THIS_ONE:
        return "exact"
    # PTX of a family is compiled only for the GPUs that run the family's machine code.
    return "machine_code" if kind == _MACHINE_CODE or flags & _FAMILY else "ptx"


def _padding(file: BinaryIO, start: int) -> int:
    """Number of zeros that a linker put before the next header to align it, 63 at most."""
    zeros = _take(file, start, 64)
    return len(zeros) - len(zeros.lstrip(b"\0"))


def _unpacked(file: BinaryIO, form: str, offset: int) -> Sequence[Any]:
    data = _take(file, offset, struct.calcsize(form))
    if len(data) < struct.calcsize(form):
        raise ValueError(f"it ends at byte {offset + len(data)}, inside a header")
    return struct.unpack(form, data)


def _take(file: BinaryIO, offset: int, count: int) -> bytes:
    if offset >= 2**63:  # seek would raise
        return b""
    file.seek(offset)
    return file.read(count)


def is_gpu(device: Any) -> bool:
    """Whether an `mx.Context` is a GPU."""
    return bool(device.device_type == "gpu")


def unusable_gpus(count: int, architectures: Architectures, driver: Driver) -> Dict[int, str]:
    """Find the GPUs that would fail at their first kernel.

    Args:
        count: Number of GPUs that MXNet sees.
        architectures: GPU architectures that MXNet's library has kernels for. If they could not be read, or the
            library has no kernels, no GPU is refused.
        driver: The driver, whose GPUs have MXNet's numbers.

    Returns:
        By the number of each GPU that cannot be used, the reason and the way out.

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
