"""Lists and checks the records of a `.rec` file, without MXNet: past a damaged record, the others are read."""

from collections import Counter
from io import BytesIO
from pathlib import Path
import struct
from typing import BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

from mxkit.data.image_bytes import MAGIC, Record, cuts_of, decode, file_size, read_record, unpack, write_record
from mxkit.data.records import suffix_of
from mxkit.errors import DataError
import numpy as np

_CHUNK = 2**20
_DECODED = (".jpg", ".png", ".bmp", ".webp", ".tif")


class Row(NamedTuple):
    """A record of a list.

    Attributes:
        number: Its place in the file, from 0.
        byte: Where it begins.
        id: As its writer chose it.
        labels: Its labels.
        bytes: Length of the image.
        format: Suffix of the image; "" without one.
        height: Of the image; None for a format whose header Pillow does not read.
        width: The same.
    """

    number: int
    byte: int
    id: int
    labels: List[float]
    bytes: int
    format: str
    height: Optional[int]
    width: Optional[int]


class Damage(NamedTuple):
    """What is wrong with a file.

    Attributes:
        number: Place of the record from 0, counted with the records before it; None for the index.
        byte: Where it begins, or None.
        keys: Keys of the index that name this byte.
        problem: What was found.
    """

    number: Optional[int]
    byte: Optional[int]
    keys: List[str]
    problem: str


class Check(NamedTuple):
    """The result of `check`.

    Attributes:
        path: The file.
        records: Number of records that were read.
        images: Number of images that were decoded.
        indexed: Number of entries of the `.idx` file; None without one.
        damages: What is wrong; empty for a sound file.
    """

    path: Path
    records: int
    images: int
    indexed: Optional[int]
    damages: List[Damage]


def scan(path: Path) -> Iterator[Tuple[int, Union[Record, str]]]:
    """Yield the byte at which each record begins, and the record, or what is wrong with it.

    After a damaged record the next one is searched for, so that all sound ones are read.

    Raises:
        DataError: The file is empty, a folder or a device.
    """
    size = file_size(path)
    known = set(_index(path.with_suffix(".idx"))[0] or ())
    offset = 0
    with path.open("rb") as file:
        while offset < size:
            found, end = _read(file, offset, size, path)
            if isinstance(found, Record) and not _ends_there(file, offset, end, found.content, known):
                found = f"it says that it ends at byte {end}, where no other record begins"
            yield offset, found
            offset = end if isinstance(found, Record) else _next(file, offset, size, path)


def _read(file: BinaryIO, offset: int, size: int, path: Path) -> Tuple[Union[Record, str], int]:
    """Return a record and the byte after it, or what is wrong with it."""
    try:
        content, end = read_record(file, offset, size, path)
        record = unpack(content)
    except DataError as error:
        return str(error).replace(f"{path}: ", ""), offset
    except ValueError as error:
        return str(error), offset
    again = BytesIO()
    write_record(again, content)
    if again.tell() != end - offset:  # a writer would have made parts of it
        return f"it says that it ends at byte {end}, but other records begin before", offset
    return record, end


def _ends_there(file: BinaryIO, offset: int, end: int, image: bytes, known: Set[int]) -> bool:
    """Return whether a record ends where it says; if the next one is damaged, its image or the index decides."""
    file.seek(offset + 4)
    stored = file.read(end - offset)
    following = stored[end - offset - 4 :]
    if following in (MAGIC, b""):
        return True
    if stored[: end - offset - 1].count(MAGIC) > len(cuts_of(image)):
        return False  # bytes are missing in it: the next record begins before its end
    if suffix_of(image) in _DECODED:
        return not _fault(image)
    return not known or end in known


def _fault(content: bytes) -> str:
    try:
        decode(content, "its image")
    except DataError as error:
        return str(error)
    return ""


def _next(file: BinaryIO, offset: int, size: int, path: Path) -> int:
    """Return the byte at which the next sound record begins, or the file's end."""
    start = offset + 4
    while start < size:
        file.seek(start)
        chunk = file.read(_CHUNK + 3)
        at = chunk.find(MAGIC)
        while at >= 0:
            if isinstance(_read(file, start + at, size, path)[0], Record):
                return start + at
            at = chunk.find(MAGIC, at + 1)
        start += _CHUNK
    return size


def rows(path: Path) -> Iterator[Row]:
    """Yield the sound records of a file.

    Raises:
        DataError: The file is empty, a folder or a device.
    """
    for number, (offset, record) in enumerate(scan(path)):
        if isinstance(record, Record):
            labels = [float(label) for label in record.labels]
            form = suffix_of(record.content)
            yield Row(number, offset, record.id, labels, len(record.content), form, *_sides(record.content))


def _sides(content: bytes) -> Tuple[Optional[int], Optional[int]]:
    from PIL import Image

    try:
        with Image.open(BytesIO(content)) as image:
            return image.height, image.width
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError):  # Pillow's, of damaged files
        return None, None


def check(path: Path) -> Check:
    """Read every record, decode its image and compare the index.

    Args:
        path: The `.rec` file. Its index is the `.idx` file beside it, if there is one.

    Raises:
        DataError: The file is empty, a folder or a device.
    """
    index, damages = _index(path.with_suffix(".idx"))
    offsets: Dict[int, int] = {}
    strange: List[Damage] = []
    renamed: List[Damage] = []
    previous: object = None
    read = images = 0
    for number, (offset, record) in enumerate(scan(path)):
        offsets[offset] = number
        keys = (index or {}).get(offset, [])
        if not isinstance(record, Record):
            damages.append(Damage(number, offset, keys, record))
            continue
        read += 1
        if keys and str(record.id) not in keys:
            renamed.append(Damage(number, offset, keys, f"its id is {record.id}, not its key"))
        if not np.isfinite(record.labels).all():
            damages.append(Damage(number, offset, keys, "a label is no finite number"))
        whole = (record.id, record.labels.tobytes(), record.content)
        if whole == previous and not keys and record.content:
            damages.append(Damage(number, offset, keys, f"it is record {number - 1} again"))
        previous = whole
        form = suffix_of(record.content)
        if form == ".bin":
            strange.append(Damage(number, offset, keys, f"no image begins with {record.content[:8]!r}"))
        elif form in _DECODED:
            fault = _fault(record.content)
            images += not fault
            if fault:
                damages.append(Damage(number, offset, keys, fault))
    if images:  # otherwise its records hold something other than images
        damages += strange
    if 2 * len(renamed) < read:  # otherwise the file's writer did not use the ids as keys
        damages += renamed
    if index is not None:
        damages += _differences(index, offsets)
    entries = None if index is None else sum(map(len, index.values()))
    return Check(path, read, images, entries, sorted(damages, key=lambda one: (one.byte is None, one.byte or 0)))


def _index(path: Path) -> Tuple[Optional[Dict[int, List[str]]], List[Damage]]:
    """Return the index's keys by the byte that they name, and its invalid lines."""
    if not path.is_file():
        return None, []
    index: Dict[int, List[str]] = {}
    damages = []
    with path.open(encoding="utf-8", errors="backslashreplace") as lines:
        for number, line in enumerate(lines, start=1):
            key, _, place = line.strip("\n").partition("\t")
            if place.isascii() and place.isdigit() and len(place) < 19:  # "²" is a digit, too
                index.setdefault(int(place), []).append(key)
            elif line.strip():
                damages.append(Damage(None, None, [], f"{path.name}, line {number}: expected a key, a tab and a byte"))
    return index, damages


def _differences(index: Dict[int, List[str]], offsets: Dict[int, int]) -> List[Damage]:
    damages = []
    for place in sorted(index.keys() - offsets.keys()):
        damages.append(Damage(None, place, index[place], "the index names it, but no record begins there"))
    for place in sorted(offsets.keys() - index.keys()):
        damages.append(Damage(offsets[place], place, [], "the index does not name it"))
    times = Counter(key for keys in index.values() for key in keys)
    for place in sorted(index.keys() & offsets.keys()):
        keys = index[place]
        repeated = [key for key in keys if times[key] > 1]
        if repeated or len(keys) > 1:
            problem = "the index has its key several times" if repeated else "the index has several keys for it"
            damages.append(Damage(offsets[place], place, keys, f"{problem}: MXNet reads records twice, or never"))
    return damages
