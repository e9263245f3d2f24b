"""What a Linux library says it needs, read from its own headers: no tool, and a few kilobytes of any size of file."""

from contextlib import contextmanager
import ctypes
import mmap
from pathlib import Path
import struct
from typing import Iterator, List, NamedTuple, Tuple

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _HASH, _STRINGS, _SYMBOLS, _RPATH, _RUNPATH, _GNU_HASH = 1, 4, 5, 6, 15, 29, 0x6FFFFEF5
_SYMBOL_SIZE = 24
_SMALLEST = 64


class Needs(NamedTuple):
    """What the dynamic linker is asked for when a library is loaded.

    Attributes:
        libraries: Their sonames, in the order of the file.
        folders: Where the library itself says to look for them (RPATH and RUNPATH), `$ORIGIN` filled in.
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
        ValueError: It is no such library, or it is cut off.
    """
    with _image(path) as image:
        return Needs(image.texts(_NEEDED), _filled_in(image.texts(_RPATH) + image.texts(_RUNPATH), path))


def undefined_symbols(path: Path) -> Tuple[str, ...]:
    """Read the names of functions and variables that a library leaves to others.

    Args:
        path: The library.

    Returns:
        The names, in the order of the file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no 64-bit little-endian ELF library, or it is cut off.
    """
    with _image(path) as image:
        return image.undefined_symbols()


def opens(soname: str, mode: int = ctypes.DEFAULT_MODE) -> bool:
    """Whether the dynamic linker loads a library; with `os.RTLD_NOLOAD`, whether it is loaded."""
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


def _filled_in(folders: Tuple[str, ...], path: Path) -> Tuple[Path, ...]:
    entries = [entry for folder in folders for entry in folder.split(":") if entry]
    origin = str(path.resolve().parent)
    return tuple(Path(entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)) for entry in entries)


class _Image:
    """The dynamic section of a mapped file, which holds addresses, and the way from them to places in the file."""

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
        self._entries: List[Tuple[int, int]] = []
        for header in headers:
            if header[0] == _DYNAMIC:
                self._entries = list(struct.iter_unpack("<QQ", data[header[2] : header[2] + header[5]]))

    def texts(self, tag: int) -> Tuple[str, ...]:
        return tuple(self._text(value) for found, value in self._entries if found == tag)

    def undefined_symbols(self) -> Tuple[str, ...]:
        if not self._has(_SYMBOLS):
            return ()
        start = self._offset(self._value(_SYMBOLS))
        table = self._data[start : start + self._unresolved() * _SYMBOL_SIZE]
        symbols = struct.iter_unpack("<IBBHQQ", table)
        return tuple(self._text(name) for name, _, _, section, _, _ in symbols if section == 0 and name)

    def _unresolved(self) -> int:
        """Count the first symbols, among which are all undefined ones: those that the GNU hash leaves out."""
        if self._has(_GNU_HASH):
            return self._word(_GNU_HASH, 1)
        return self._word(_HASH, 1) if self._has(_HASH) else 0

    def _has(self, tag: int) -> bool:
        return any(found == tag for found, _ in self._entries)

    def _value(self, tag: int) -> int:
        return next(value for found, value in self._entries if found == tag)

    def _word(self, tag: int, index: int) -> int:
        (word,) = struct.unpack_from("<I", self._data, self._offset(self._value(tag)) + 4 * index)
        return int(word)

    def _text(self, index: int) -> str:
        start = self._offset(self._value(_STRINGS)) + index
        end = self._data.find(b"\0", start)
        return self._data[start:end].decode("ascii")

    def _offset(self, address: int) -> int:
        for first, offset, size in self._segments:
            if first <= address < first + size:
                return int(offset + address - first)
        raise IndexError(f"no segment holds the address {address:#x}")
