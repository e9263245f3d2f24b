"""The NVIDIA libraries of an MXNet built for CUDA: finds them, loads them before MXNet, and reports their source.

pip's CUDA wheels of MXNet hold none of them and expect CUDA 11 on the system. NVIDIA publishes the same libraries
as wheels, in folders that the dynamic linker does not search. The linker does not search for a library that is loaded
already, so this module loads them just before MXNet's own library (T81).

MXNet's library also names functions of the driver, and the linker needs all of them before any code runs (T82). Without
a driver, a stand-in for its libcuda.so.1 is loaded, so that the CUDA wheel runs on the CPU: each of its functions
returns 100, CUDA_ERROR_NO_DEVICE, which is true. It is a library of a few kilobytes, written byte by byte: it needs no
compiler and leaves no file behind.
"""

import ctypes
import mmap
import os
from pathlib import Path
import re
import struct
import sys
import tempfile
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple
import warnings

from mxkit.errors import MXNetImportError, TrapWarning
from mxkit.runtime.wheels import cpu_command, described, load_problem

# The NVIDIA wheel that holds each library, in the version that MXNet 1.9.1 was tested with (T81).
REQUIREMENTS = {
    "libcudart.so.11.0": "nvidia-cuda-runtime-cu11==11.8.89",
    "libnvToolsExt.so.1": "nvidia-nvtx-cu11==11.8.86",
    "libnvrtc.so.11.2": "nvidia-cuda-nvrtc-cu11==11.8.89",
    "libcublasLt.so.11": "nvidia-cublas-cu11==11.11.3.6",
    "libcublas.so.11": "nvidia-cublas-cu11==11.11.3.6",
    "libcufft.so.10": "nvidia-cufft-cu11==10.9.0.58",
    "libcurand.so.10": "nvidia-curand-cu11==10.3.0.86",
    "libcusparse.so.11": "nvidia-cusparse-cu11==11.7.5.86",
    "libcusolver.so.11": "nvidia-cusolver-cu11==11.4.1.48",
    "libcudnn.so.8": "nvidia-cudnn-cu11==8.9.6.50",
    "libnccl.so.2": "nvidia-nccl-cu11==2.21.5",
}

# mxnet-cu117's library needs it directly; mxnet-cu112's gets it inside cuSOLVER (T81).
_CU117_ALONE = "libcusparse.so.11"

_CUDA = re.compile(
    r"^lib(cudart|nvToolsExt|nvrtc|nvJitLink|cublas|cublasLt|cufft|curand|cusparse|cusolver|cudnn|nccl)\.so"
)
_RUNTIME = re.compile(r"^libcudart\.so\.(\d+)")
# The CUDA version in a wheel's name; since CUDA 13 in the name of its folder.
_BUILT_FOR = re.compile(r"(?:-cu|^cu)(\d\d)")
_SYSTEM_CUDA = re.compile(r"/cuda-(\d+)")


class CudaLibrary(NamedTuple):
    """A library of NVIDIA that MXNet needs.

    Attributes:
        soname: The name that MXNet asks for, like `libcudnn.so.8`.
        path: The file that was loaded; empty if there is none.
        provider: The source of the file: a wheel of NVIDIA's with its version, "system" for all others, or "mxkit's
            stand-in".
        problem: What is wrong with it; empty if nothing is.
    """

    soname: str
    path: str
    provider: str
    problem: str


_libraries: List[CudaLibrary] = []


def libraries() -> Tuple[CudaLibrary, ...]:
    """List the CUDA libraries that MXNet's library needs, as the import of MXNet, or the attempt, found them.

    Returns:
        The libraries in the order of loading, the driver last. Empty for an MXNet without CUDA, and before the import.
    """
    if not _libraries and "mxnet.libinfo" in sys.modules:  # MXNet was imported before mxkit: all of them are loaded
        path = Path(sys.modules["mxnet.libinfo"].find_lib_path()[0])
        found = _load_all(path)
        _libraries[:] = [*found, _driver(path)] if found else []
    return tuple(_libraries)


def cudnn_version() -> str:
    """Version of the cuDNN that MXNet computes with, like "8.9.6"; empty for an MXNet without CUDA."""
    path = next((library.path for library in libraries() if library.soname.startswith("libcudnn.")), "")
    if not path:
        return ""
    function = ctypes.CDLL(path).cudnnGetVersion
    function.restype = ctypes.c_size_t
    number = int(function())
    return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"


def prepare(library: Path) -> None:
    """Load the CUDA libraries that MXNet's library needs, so that it can be loaded. Without CUDA it does nothing.

    Libraries that are already loaded, LD_LIBRARY_PATH and a system's CUDA of the right version win over the wheels.

    Args:
        library: The path of libmxnet.so.

    Raises:
        MXNetImportError: Something is missing or does not load; the text says what to type.

    Side effects:
        The libraries stay loaded. Warns of a library that was built for another version of CUDA.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        sonames = needs(library).libraries
    except ValueError as error:  # loading some truncated files would end the process
        raise MXNetImportError(load_problem(error, library), name="mxnet") from error
    if not (SONAME in sonames or any(map(_CUDA.match, sonames))):
        return
    _libraries[:] = _load_all(library)
    if not all(found.path for found in _libraries):
        raise MXNetImportError(_unusable(_libraries, library), name="mxnet")
    if any(found.problem for found in _libraries):
        warnings.warn(_doubtful(_libraries, library), TrapWarning, stacklevel=2)
    _libraries.append(_driver(library))


def requirements(mxnet: str) -> Tuple[str, ...]:
    """List NVIDIA's wheels that a wheel of MXNet needs; the extras in pyproject.toml hold the same.

    Args:
        mxnet: Its name, like `mxnet-cu112`.

    >>> set(requirements("mxnet-cu117")) - set(requirements("mxnet-cu112"))
    {'nvidia-cusparse-cu11==11.7.5.86'}
    """
    needed = (wheel for soname, wheel in REQUIREMENTS.items() if soname != _CU117_ALONE or mxnet == "mxnet-cu117")
    return tuple(dict.fromkeys(needed))


def repair_command(found: Iterable[CudaLibrary]) -> str:
    """The pip command that installs NVIDIA's wheels for CUDA 11 for what is missing or wrong.

    Args:
        found: Libraries; those without a problem are left alone.

    Returns:
        The command, or "" if nothing is wrong or no wheel is known to hold it.
    """
    wrong = (REQUIREMENTS.get(library.soname, "") for library in found if library.problem)
    requirements = " ".join(dict.fromkeys(filter(None, wrong)))
    return f"pip install --force-reinstall --no-deps {requirements}" if requirements else ""


def _driver(library: Path) -> CudaLibrary:
    driver = provide_driver(library)
    return CudaLibrary(SONAME, *((_path_of(driver), "system") if driver else ("", "mxkit's stand-in")), problem="")


def _problems(found: Iterable[CudaLibrary]) -> str:
    return "\n".join(f"    {library.soname}: {library.problem}" for library in found if library.problem)


def _unusable(found: Sequence[CudaLibrary], library: Path) -> str:
    mxnet, command = described(library), repair_command(found)
    extra = "cu117" if mxnet.startswith("mxnet-cu117 ") else "cu112"
    return (
        f"{mxnet} needs libraries of NVIDIA that are not usable here:\n{_problems(found)}\nType one of\n"
        f"    pip install 'mxkit[{extra}]'    # all that it needs\n"
        + (f"    {command}    # these alone\n" if command else "")
        + f"    {cpu_command(library)}    # to compute on the CPU alone\n"
        "Libraries of the system are taken too, if LD_LIBRARY_PATH named their folder when Python was started."
    )


def _doubtful(found: Sequence[CudaLibrary], library: Path) -> str:
    return (
        f"{described(library)} gets libraries that were made for another version of CUDA:\n{_problems(found)}\n"
        f"Give MXNet an environment of its own, or type\n    {repair_command(found)}\n"
        "after which the other owner of the files (PyTorch, for instance) may not run any more."
    )


def _load_all(library: Path) -> List[CudaLibrary]:
    loader = _Loader(library)
    for soname in loader.sonames:
        loader.load(soname)
    return loader.loaded


class _Loader:
    """Loads libraries, each after those that it needs, and records where they come from."""

    def __init__(self, library: Path) -> None:
        sonames, self._folders = needs(library)
        # The runtime first: its name holds the version of CUDA, and its place decides where to look for the others.
        self.sonames = sorted(filter(_CUDA.match, sonames), key=lambda soname: not _RUNTIME.match(soname))
        runtime = next(filter(_RUNTIME.match, self.sonames), "")
        self._major = runtime.split(".")[2] if runtime else ""
        self._system_first = bool(runtime) and opens(runtime)
        self._tried: Set[str] = set()
        self.loaded: List[CudaLibrary] = []

    def load(self, soname: str) -> None:
        if soname in self._tried:
            return
        self._tried.add(soname)
        # A library of CUDA 12 may need others of CUDA 12.
        major = self._major if soname in self.sonames else ""
        problem = "not found"
        for candidate in self._candidates(soname):
            try:
                path = self._load_file(candidate)
            except (OSError, ValueError) as error:
                # The linker names a file that it did not find as it was asked for, as in driver_stand_in.
                if not str(error).startswith(f"{soname}: "):
                    problem = str(error)
                continue
            self.loaded.append(CudaLibrary(soname, path, *_source(path, major)))
            return
        # The linker may still find a library that only another library needs, in that one's own folders.
        if soname in self.sonames:
            self.loaded.append(CudaLibrary(soname, "", "", problem))

    def _load_file(self, candidate: str) -> str:
        if os.sep in candidate:
            for soname in filter(_CUDA.match, needs(Path(candidate)).libraries):
                self.load(soname)
        return _path_of(ctypes.CDLL(candidate))

    def _candidates(self, soname: str) -> List[str]:
        own = [str(folder / soname) for folder in self._folders if (folder / soname).is_file()]
        folders = [Path(entry or ".").absolute() / "nvidia" for entry in dict.fromkeys(sys.path)]
        wheels = [str(path) for folder in folders for path in sorted(folder.glob(f"*/lib/{soname}"))]
        wheels.sort(key=lambda path: bool(_source(path, self._major)[1]))
        # One name can belong to several versions of CUDA (libcurand.so.10 is in 11, 12 and 13), so the system's is
        # taken first only if the system's CUDA is known to be the right one.
        named = any((Path(folder) / soname).is_file() for folder in _library_path())
        first = self._system_first or named or opens(soname, os.RTLD_NOLOAD | os.RTLD_NOW)
        return [*own, soname, *wheels] if first else [*own, *wheels, soname]


def _library_path() -> List[str]:
    return [os.path.normpath(entry) for entry in re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", "")) if entry]


class _LinkMap(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


def _path_of(library: ctypes.CDLL) -> str:
    """Ask the linker which file a library was loaded from."""
    link_map: Any = ctypes.POINTER(_LinkMap)()
    information = ctypes.CDLL(None).dlinfo
    information.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    information(library._handle, 2, ctypes.byref(link_map))  # RTLD_DI_LINKMAP
    return os.path.normpath(os.fsdecode(link_map.contents.name))


def _source(path: str, major: str) -> Tuple[str, str]:
    """The provider of a file, and the problem if it was built for another CUDA than version `major`."""
    parts = Path(path).parts
    if len(parts) > 4 and parts[-4] == "nvidia" and parts[-2] == "lib":
        return _wheel_source(Path(path), major)
    other = _SYSTEM_CUDA.search(os.path.realpath(path))
    is_other = bool(major and other and other[1] != major)
    return "system", f"{path} is of CUDA {other[1]}, and MXNet is built for CUDA {major}" if other and is_other else ""


def _wheel_source(path: Path, major: str) -> Tuple[str, str]:
    """As `_source`, for a file of NVIDIA's wheels: those for CUDA 11 and 12 overwrite each other's files."""
    owners = list(_owners(path))
    if not owners:
        return "a folder of NVIDIA's wheels", ""
    size = path.stat().st_size
    writer = next((owner for owner, recorded in owners if recorded == size), owners[0][0])
    built_for = _BUILT_FOR.search(writer) or _BUILT_FOR.match(path.parts[-3])
    if not major or not built_for or built_for[1] == major:
        return writer, ""
    return writer, f"{path} was written by {writer}, for CUDA {built_for[1]} instead of {major}"


def _owners(path: Path) -> Iterator[Tuple[str, int]]:
    """Wheels whose RECORD lists a file, each with the size that it records."""
    site, relative = path.parents[3], "/".join(path.parts[-4:]) + ","
    for record in sorted(site.glob("nvidia_*.dist-info/RECORD")):
        for line in record.read_text(encoding="utf-8").splitlines():
            if line.startswith(relative):
                name, _, version = record.parent.stem.rpartition("-")
                yield f"{name.replace('_', '-')} {version}", int(line.rpartition(",")[2] or -1)


SONAME = "libcuda.so.1"

# Folders of drivers that the dynamic linker may not search: Windows' Linux, NixOS, Kubernetes.
DRIVER_FOLDERS = ("/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/local/nvidia/lib64")

# Functions that CUDA's runtime and other libraries look up by name, besides those that MXNet's library lists.
_ALWAYS = ("cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuDeviceGetCount", "cuGetErrorName", "cuGetErrorString")
_ERROR_NAMES = ("cuGetErrorName", "cuGetErrorString")

# x86-64. `mov eax, 100; ret`, and for errors' names `lea rax, [rip + distance]; mov [rsi], rax; xor eax, eax; ret`.
_NO_DEVICE = b"\xb8\x64\0\0\0\xc3"
_DESCRIBE = (b"\x48\x8d\x05", b"\x48\x89\x06\x31\xc0\xc3")
_STAND_IN_TEXT = b"no NVIDIA driver on this machine: mxkit's stand-in for libcuda.so.1 answers\0"

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
        functions = {match[1] for name in symbol_names(library) for match in _FUNCTION.finditer(name)}
        try:
            with tempfile.NamedTemporaryFile(prefix="mxkit-libcuda-", suffix=".so") as file:
                file.write(shared_object(SONAME, sorted({*_ALWAYS, *functions})))
                file.flush()
                _stand_in = ctypes.CDLL(file.name)
        except OSError as error:  # read-only, full, or mounted noexec
            raise MXNetImportError(
                f"{described(library)} is built for NVIDIA GPUs and needs {SONAME} of the NVIDIA driver. There is no "
                f"driver here, and the temporary folder takes no stand-in for it ({error}): name another one in TMPDIR"
                f"\nInstall a driver or, to compute on the CPU, MXNet for the CPU:\n    {cpu_command(library)}",
                name="mxnet",
            ) from error
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
    symbols = text + len(_STAND_IN_TEXT) + -len(_STAND_IN_TEXT) % 8
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
    body += _STAND_IN_TEXT.ljust(symbols - text, b"\0") + entries + table + names
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


# Of ELF, the format of libraries on Linux: its headers are read without a tool, a few kilobytes of a file of any size.
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _STRINGS_SIZE = 1, 5, 10
_FOLDERS = (15, 29)  # RPATH, RUNPATH


class Needs(NamedTuple):
    """What a library asks the dynamic linker for.

    Attributes:
        libraries: Their sonames, in the order of the file.
        folders: Where the library itself says to look for them (RPATH and RUNPATH), `$ORIGIN` replaced.
    """

    libraries: Tuple[str, ...]
    folders: Tuple[Path, ...]


def needs(path: Path) -> Needs:
    """Read which libraries a 64-bit little-endian ELF library needs.

    Args:
        path: The library.

    Returns:
        Its needs.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not such a library, or it is truncated.
    """
    names, entries = _dynamic(path)
    texts = [(kind, _text(names, value)) for kind, value in entries if kind in (_NEEDED, *_FOLDERS)]
    origin = str(path.resolve().parent)
    folders = ":".join(text for kind, text in texts if kind != _NEEDED)
    folders = folders.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
    libraries = tuple(text for kind, text in texts if kind == _NEEDED)
    return Needs(libraries, tuple(map(Path, filter(None, folders.split(":")))))


def symbol_names(path: Path) -> Tuple[str, ...]:
    """Read the strings of a library's dynamic section: names of functions and variables, sonames and folders.

    Args:
        path: The library.

    Returns:
        The strings. A name that another one ends with is not always listed: linkers store both as one string.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a 64-bit little-endian ELF library, or it is truncated.
    """
    return tuple(_dynamic(path)[0].decode("ascii", "replace").split("\0"))


def opens(soname: str, mode: int = ctypes.DEFAULT_MODE) -> bool:
    """Whether the dynamic linker loads a library; with `os.RTLD_NOLOAD`, whether it is loaded already."""
    try:
        ctypes.CDLL(soname, mode=mode)
    except OSError:
        return False
    return True


def _text(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode("ascii", "replace")


def _dynamic(path: Path) -> Tuple[bytes, List[Tuple[int, int]]]:
    """The strings of a library's dynamic section, and its entries: kinds and values."""
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read_dynamic(data)
        except (struct.error, IndexError, ValueError) as error:
            raise ValueError(f"{path} is cut off or no library: {error}") from error


def _read_dynamic(data: mmap.mmap) -> Tuple[bytes, List[Tuple[int, int]]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"no 64-bit little-endian ELF file begins with {data[:6]!r}")
    (first,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, first + i * size) for i in range(count)]
    segments = [header[2:6] for header in headers if header[0] == _LOAD]  # offset, address, -, size in the file
    end = max((offset + length for offset, _, _, length in segments), default=0)
    if end > len(data):  # the linker would map it all the same, and the process would end with SIGBUS
        raise IndexError(f"it has {len(data)} bytes of {end}")
    place, length = next(((header[2], header[5]) for header in headers if header[0] == _DYNAMIC), (0, 0))
    entries = list(struct.iter_unpack("<QQ", data[place : place + length]))
    values = dict(entries)
    address = values.get(_STRINGS, 0)
    starts = (offset + address - begin for offset, begin, _, length in segments if begin <= address < begin + length)
    start = next(starts, len(data))
    return data[start : start + values.get(_STRINGS_SIZE, 0)], entries
