"""A libcuda.so.1 for machines without an NVIDIA driver, so that the CUDA wheel of MXNet runs there on the CPU.

MXNet's library names functions of the driver, and the dynamic linker needs all of them before any code runs (T82).
In the stand-in each of them returns 100, CUDA_ERROR_NO_DEVICE, which is true. It is a library of a few kilobytes,
written byte by byte: it needs no compiler and leaves no file behind. On a machine with a driver it is not used.
"""

import ctypes
import os
from pathlib import Path
import platform
import re
import struct
import tempfile
from typing import List, Optional, Sequence, Tuple

from mxkit.errors import MXNetImportError
from mxkit.runtime.elf import symbol_names
from mxkit.runtime.wheels import cpu_command, described

SONAME = "libcuda.so.1"

# Folders of drivers that the dynamic linker may not search: Windows' Linux, NixOS, Kubernetes.
DRIVER_FOLDERS = ("/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/local/nvidia/lib64")

# Functions that CUDA's runtime and other libraries look up by name, besides those that MXNet's library lists.
_ALWAYS = ("cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuDeviceGetCount", "cuGetErrorName", "cuGetErrorString")
_ERROR_NAMES = ("cuGetErrorName", "cuGetErrorString")

# x86-64. `mov eax, 100; ret`, and for errors' names `lea rax, [rip + distance]; mov [rsi], rax; xor eax, eax; ret`.
_NO_DEVICE = b"\xb8\x64\0\0\0\xc3"
_DESCRIBE = (b"\x48\x8d\x05", b"\x48\x89\x06\x31\xc0\xc3")
_TEXT = b"no NVIDIA driver on this machine: mxkit's stand-in for libcuda.so.1 answers\0"

# Overlapping: a linker stores two names of which one ends with the other as one string.
_FUNCTION = re.compile(r"(?=(cu[A-Z]\w*)$)")
_PAGE = 0x1000
_stand_in: Optional[ctypes.CDLL] = None


def in_use() -> bool:
    """Whether this process runs with the stand-in instead of a driver."""
    return _stand_in is not None


def provide_driver(library: Path) -> Optional[ctypes.CDLL]:
    """Load the NVIDIA driver's libcuda.so.1, or the stand-in if there is none.

    Args:
        library: MXNet's library, which names the functions that it needs.

    Returns:
        The driver, or None for the stand-in.

    Raises:
        MXNetImportError: There is a driver that does not load, or there is none and no place for a stand-in.

    Side effects:
        The loaded library stays loaded as long as the process lives. A temporary file exists for a moment.
    """
    global _stand_in
    if in_use():
        return None
    driver, problem = open_driver()
    if problem:
        raise MXNetImportError(
            f"{SONAME}, the library of the NVIDIA driver, is there but does not load: {problem}. "
            "Install the driver again: `nvidia-smi` must list the GPUs",
            name="mxnet",
        )
    if driver is None:
        if platform.machine() != "x86_64":
            reason = f"mxkit has no stand-in for it on {platform.machine()}"
            raise MXNetImportError(_no_driver(reason, library), name="mxnet")
        functions = {match[1] for name in symbol_names(library) for match in _FUNCTION.finditer(name)}
        _stand_in = _load(shared_object(SONAME, sorted({*_ALWAYS, *functions})), library)
    return driver


def open_driver() -> Tuple[Optional[ctypes.CDLL], str]:
    """Load the driver's library, searched for in the linker's folders first.

    Returns:
        The library, or None; and the error of the linker if there is a library that does not load.
    """
    problem = ""
    for name in (SONAME, *(f"{folder}/{SONAME}" for folder in DRIVER_FOLDERS)):
        try:
            return ctypes.CDLL(name), ""
        except OSError as error:
            # The linker names a file that it did not find as it was asked for, and one that it refused by its path.
            if not (str(error).startswith(f"{name}: ") and "No such file" in str(error)):
                problem = problem or str(error)
    return None, problem


def _load(stand_in: bytes, library: Path) -> ctypes.CDLL:
    refused: List[str] = []
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix="mxkit-libcuda-", suffix=".so") as file:
                file.write(stand_in)
                file.flush()
                return ctypes.CDLL(file.name)
        except OSError as error:  # read-only, full, or mounted noexec
            refused.append(f"{folder}: {error}")
    reason = "no folder takes a stand-in for it:\n    " + "\n    ".join(refused)
    raise MXNetImportError(_no_driver(reason, library), name="mxnet")


def _folders() -> Tuple[Path, ...]:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - raises without a home
    others = (Path(cache) / "mxkit", Path("/dev/shm"))
    try:
        return Path(tempfile.gettempdir()), *others
    except OSError:  # no temporary folder can be written to
        return others


def _no_driver(reason: str, library: Path) -> str:
    return (
        f"{described(library)} is built for NVIDIA GPUs and needs {SONAME} of the NVIDIA driver. There is no driver "
        f"here, and {reason}\nInstall a driver or, to compute on the CPU, MXNet for the CPU:\n"
        f"    {cpu_command(library)}"
    )


def shared_object(soname: str, functions: Sequence[str]) -> bytes:
    """Write a library for x86-64 Linux whose functions return 100; those that name errors give a sentence.

    Args:
        soname: The name that other libraries know it by.
        functions: The names of its functions.

    Returns:
        The bytes of the file: one page or more that is read and run, one that the linker writes to.
    """
    names, places = b"\0", []
    for name in (soname, *functions):
        places.append(len(names))
        names += name.encode("ascii") + b"\0"
    names += bytes(-len(names) % 8)
    code = 64 + 4 * 56
    describe = code + 8
    text = describe + 16
    symbols = text + len(_TEXT) + -len(_TEXT) % 8
    entries = bytes(24)
    for name, place in zip(functions, places[1:]):
        address = describe if name in _ERROR_NAMES else code
        entries += struct.pack("<IBBHQQ", place, 0x12, 0, 1, address, 8)  # a global function, defined here
    # A hash table of one bucket, in which each symbol leads to the next one.
    count = len(functions)
    table = struct.pack(f"<{4 + count}I", 1, count + 1, 1, 0, *range(2, count + 1), 0)
    tables = symbols + len(entries)
    strings = tables + len(table)
    end = strings + len(names)
    writable = end + -end % _PAGE
    # soname, hash, strings, symbols, the strings' size, a symbol's size, end
    dynamic = struct.pack("<14Q", 14, places[0], 4, tables, 5, strings, 6, symbols, 10, len(names), 11, 24, 0, 0)
    distance = struct.pack("<i", text - describe - 7)
    body = _NO_DEVICE.ljust(8, b"\0") + (_DESCRIBE[0] + distance + _DESCRIBE[1]).ljust(16, b"\0")
    body += _TEXT.ljust(symbols - text, b"\0") + entries + table + names
    return (_headers(end, writable, len(dynamic)) + body).ljust(writable, b"\0") + dynamic


def _headers(end: int, writable: int, dynamic: int) -> bytes:
    # ELF, 64 bits, little-endian; a shared object for x86-64
    file = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    file += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0)
    segments = (
        (1, 5, 0, end, _PAGE),
        (1, 6, writable, dynamic, _PAGE),
        (2, 6, writable, dynamic, 8),
        (0x6474E551, 6, 0, 0, 16),  # without it the linker would ask for a stack that can be executed
    )
    return file + b"".join(
        struct.pack("<IIQQQQQQ", kind, access, place, place, place, size, size, align)
        for kind, access, place, size, align in segments
    )
