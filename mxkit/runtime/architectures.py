"""Reads which GPUs a library's kernels were compiled for from its fat binaries; no NVIDIA tool is needed.

nvcc puts one fat binary for each compiled file into the ELF section `.nv_fatbin`: a header, then entries of machine
code or PTX, each with a header that holds its architecture and its size. Only headers are read: MXNet's 891 MB take
5 ms, and 0.3 s from a cold disk.
"""

from pathlib import Path
import struct
from typing import Any, BinaryIO, FrozenSet, Iterator, List, NamedTuple, Sequence, Tuple

Capability = Tuple[int, int]

_MAGIC = 0xBA55ED50
_PTX, _MACHINE_CODE = 1, 2  # the driver does not load other kinds by itself (8: link-time code)
_THIS_ONE, _FAMILY = 0x100000, 0x200000  # flags of an entry: sm_90a; sm_100f

# MXNet's library holds 198 fat binaries of 5 entries each. A file with more headers than this is damaged.
_MOST_HEADERS = 100_000


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
    if _read(file, "<6s", 0)[0] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    table, entry, count, names = _read(file, "<40xQ10xHHH", 0)
    if not table or not count:
        raise ValueError("it has no section headers, which would say where its GPU code is")
    if table + count * entry > size:
        raise ValueError(f"it is cut off: {size} bytes, {table + count * entry} expected")
    headers = [_read(file, "<I20xQQ", table + i * entry) for i in range(count)]
    first = headers[names][1] if names < count else size
    for name, start, length in headers:
        if _take(file, first + name, len(wanted) + 1) == wanted + b"\0":
            if start + length > size:
                raise ValueError(f"it is cut off: {size} bytes, {start + length} expected")
            yield start, length


def _fat_binaries(file: BinaryIO, start: int, end: int) -> Iterator[FrozenSet[Tuple[str, Capability]]]:
    for _ in range(_MOST_HEADERS):
        start += _padding(file, start)
        if start >= end:
            return
        magic, header, size = _read(file, "<I2xHQ", start)
        if magic != _MAGIC or header < 16 or start + header + size > end:
            raise ValueError(f"its GPU code is damaged: no fat binary at byte {start}")
        inside = frozenset(_entries(file, start + header, start + header + size))
        if inside:
            yield inside
        start += header + size
    raise ValueError(f"its GPU code is damaged: more than {_MOST_HEADERS} fat binaries")


def _entries(file: BinaryIO, start: int, end: int) -> Iterator[Tuple[str, Capability]]:
    for _ in range(_MOST_HEADERS):
        if start >= end:
            return
        kind, header, size, architecture, flags = _read(file, "<H2xIQ12xI8xQ", start)
        if header < 64 or start + header + size > end:
            raise ValueError(f"its GPU code is damaged: no entry of a fat binary at byte {start}")
        if kind in (_PTX, _MACHINE_CODE):
            yield _reach(kind, flags), divmod(architecture, 10)
        start += header + size
    raise ValueError(f"its GPU code is damaged: more than {_MOST_HEADERS} entries in a fat binary")


def _reach(kind: int, flags: int) -> str:
    if flags & _THIS_ONE:
        return "exact"
    # PTX of a family is compiled only for the GPUs that run the family's machine code.
    return "machine_code" if kind == _MACHINE_CODE or flags & _FAMILY else "ptx"


def _padding(file: BinaryIO, start: int) -> int:
    """Number of zeros that a linker put before the next header to align it, 63 at most."""
    zeros = _take(file, start, 64)
    return len(zeros) - len(zeros.lstrip(b"\0"))


def _read(file: BinaryIO, form: str, offset: int) -> Sequence[Any]:
    data = _take(file, offset, struct.calcsize(form))
    if len(data) < struct.calcsize(form):
        raise ValueError(f"it ends at byte {offset + len(data)}, inside a header")
    return struct.unpack(form, data)


def _take(file: BinaryIO, offset: int, count: int) -> bytes:
    if offset >= 2**63:  # seek would raise
        return b""
    file.seek(offset)
    return file.read(count)
