"""Reads what a Linux library needs from its headers: without a tool, and a few kilobytes of a file of any size."""

from contextlib import contextmanager
import ctypes
import mmap
from pathlib import Path
import struct
from typing import Iterator, NamedTuple, Tuple

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _STRINGS_SIZE, _RPATH, _RUNPATH = 1, 5, 10, 15, 29
_SMALLEST = 64


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
    with _image(path) as image:
        origin = str(path.resolve().parent)
        entries = ":".join([*image.texts(_RPATH), *image.texts(_RUNPATH)]).split(":")
        folders = (entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for entry in entries if entry)
        return Needs(tuple(image.texts(_NEEDED)), tuple(map(Path, folders)))


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
    with _image(path) as image:
        return tuple(image.strings().decode("ascii", "replace").split("\0"))


def opens(soname: str, mode: int = ctypes.DEFAULT_MODE) -> bool:
    """Whether the dynamic linker loads a library; with `os.RTLD_NOLOAD`, whether it is loaded already."""
    try:
        ctypes.CDLL(soname, mode=mode)
    except OSError:
        return False
    return True


@contextmanager
def _image(path: Path) -> Iterator["_Image"]:
    with path.open("rb") as file:
        if path.stat().st_size < _SMALLEST:
            raise ValueError(f"{path} is no library: it has {path.stat().st_size} bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:6] != b"\x7fELF\x02\x01":
                raise ValueError(f"{path} is no 64-bit little-endian ELF file: it begins with {data[:6]!r}")
            try:
                yield _Image(data)
            except (struct.error, IndexError, UnicodeDecodeError) as error:
                raise ValueError(f"{path} is cut off or damaged: {error}") from error


class _Image:
    """The dynamic section of a mapped file; its values are addresses, which segments map to places in the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        (first,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        headers = [struct.unpack_from("<IIQQQQQQ", data, first + i * size) for i in range(count)]
        # (address, offset, size in the file) of each loaded segment
        self._segments = [(header[3], header[2], header[5]) for header in headers if header[0] == _LOAD]
        end = max((offset + length for _, offset, length in self._segments), default=0)
        if end > len(data):  # the linker would map it all the same, and the process would end with SIGBUS
            raise IndexError(f"it has {len(data)} bytes of {end}")
        dynamic = next((data[header[2] : header[2] + header[5]] for header in headers if header[0] == _DYNAMIC), b"")
        self._entries = list(struct.iter_unpack("<QQ", dynamic))

    def strings(self) -> bytes:
        sizes = self._values(_STRINGS_SIZE)
        return self._data[self._strings() : self._strings() + sizes[0]] if sizes else b""

    def texts(self, tag: int) -> Iterator[str]:
        for value in self._values(tag):
            start = self._strings() + value
            yield self._data[start : self._data.find(b"\0", start)].decode("ascii")

    def _strings(self) -> int:
        address = self._values(_STRINGS)[0]
        for first, offset, size in self._segments:
            if first <= address < first + size:
                return int(offset + address - first)
        raise IndexError(f"no segment holds the address {address:#x}")

    def _values(self, tag: int) -> Tuple[int, ...]:
        return tuple(value for entry, value in self._entries if entry == tag)
