"""Makes, lists, checks and extracts `.rec` files of images, without MXNet.

`python -m mxkit.data.records FILE.rec [--to FOLDER]` lists and extracts; `mxkit rec` makes, lists and checks, with an
index past a damaged record too. MXNet's tool `im2rec` made such files, and was removed.
"""

import argparse
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
import csv
from itertools import islice
import os
from pathlib import Path
import random
import shutil
import sys
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.system import name_aside, shown, write_lines
from mxkit.data.image_bytes import MAGIC, Record, decode, file_size, pack, read_record, sides_of, unpack, write_record
from mxkit.errors import DataError
import numpy as np

_SUFFIXES = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
    (b"\x93NUMPY", ".npy"),
)
_ROWS = 10  # records that are listed one by one


class Summary(NamedTuple):
    """What a `.rec` file holds.

    Attributes:
        total: Number of records.
        formats: Number of records by the suffix of their image; "" for a record without one.
        faces: Whether it has insightface's header: record 0, without an image, names the ranges of the others.
        index_state: What was found of the `.idx` file.
    """

    total: int
    formats: "Counter[str]"
    faces: bool
    index_state: str


def suffix_of(content: bytes) -> str:
    """Suffix of an image file by its first bytes; ".bin" if they are unknown, and "" for no content.

    >>> suffix_of(b"GIF89a"), suffix_of(b"?"), suffix_of(b"")
    ('.gif', '.bin', '')
    """
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for magic, suffix in _SUFFIXES if content.startswith(magic)), ".bin" if content else "")


def records(path: Path) -> Iterator[Tuple[int, Record]]:
    """Yield the byte at which each record begins, and the record, in the order of the file; no index is needed.

    Args:
        path: The `.rec` file.

    Raises:
        DataError: The file is damaged, cut off or not RecordIO; the text has the byte and the record's number.
    """
    for number, (offset, found) in enumerate(scan(path)):
        if isinstance(found, str):
            raise DataError(f"{path}: record {number} at byte {offset} is damaged: {found}")
        yield offset, found


def summarize(path: Path) -> Summary:
    """Read every record of a file, and compare them with its index.

    Raises:
        DataError: As for `records`.
    """
    formats: Counter[str] = Counter()
    offsets: Dict[int, int] = {}
    faces = False
    for offset, record in records(path):
        offsets[offset] = len(offsets)
        formats[suffix_of(record.content)] += 1
        faces = faces or record.is_faces_header
    index, damages = _index(path.with_suffix(".idx"))
    fits = index is not None and not damages and not _differences(index, offsets)
    state = "no .idx file" if index is None else "its .idx file " + ("fits" if fits else "does not fit")
    return Summary(len(offsets), formats, faces, state)


def report(path: Path, found: Summary) -> List[str]:
    """Lines that describe a `.rec` file."""
    lines = table_of(islice(rows(path), _ROWS))
    if found.total > _ROWS:
        lines.append(f"... {found.total - _ROWS} more")
    formats = ", ".join(f"{count} {suffix or 'without an image'}" for suffix, count in found.formats.most_common())
    lines.append(f"{shown(str(path))}: {found.total} records ({formats}); {found.index_state}")
    if found.faces:
        lines.append("insightface's header: records without an image name ranges of ids")
    return lines


def table_of(rows: Iterable["Row"]) -> List[str]:
    """Rows of records as aligned lines, with the columns' names."""
    table = [["record", "byte", "id", "labels", "bytes", "image", "size"]]
    for row in rows:
        labels = " ".join(f"{label:g}" for label in row.labels[:6]) + (" ..." if len(row.labels) > 6 else "")
        size = "" if row.height is None else f"{row.width} x {row.height}"
        numbers = [str(row.number), str(row.byte), str(row.id)]
        table.append([*numbers, labels, str(row.bytes), row.format or "no image", size])
    widths = [max(map(len, column)) for column in zip(*table)]
    form = "  ".join(f"{{:{'<' if column in (3, 5, 6) else '>'}{width}}}" for column, width in enumerate(widths))
    return [form.format(*row).rstrip() for row in table]  # rich takes 0.5 ms a line


def extract(path: Path, folder: Path, found: Summary) -> int:
    """Write the images of a `.rec` file to `folder/<label>/<id>.jpg`, byte for byte, and `labels.csv`.

    A second image with a label and an id is named `<id>-<number of the record>.jpg`.

    An image with several labels goes to `folder/images/`; in a file of insightface, to the folder of its first label,
    which is the person. `labels.csv` has the path and all labels of each image. The folder is complete or absent.

    Args:
        path: The `.rec` file.
        folder: It must not exist or be empty.
        found: Of `summarize`.

    Returns:
        Number of images.

    Raises:
        DataError: As for `records`; or the folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty: expected a new folder. Name another one, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = name_aside(folder)
    try:
        aside.mkdir()
        count = _write_images(path, aside, found)
        aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return count


def _write_images(path: Path, folder: Path, found: Summary) -> int:
    count = 0
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["file", "labels"])
        for number, (_, record) in enumerate(records(path)):
            if not record.content:
                continue
            named = len(record.labels) == 1 or (found.faces and len(record.labels))
            name = f"{record.labels[0]:.9g}" if named else "images"
            (folder / name).mkdir(exist_ok=True)
            file = f"{name}/{record.id}{suffix_of(record.content)}"
            if (folder / file).exists():
                file = f"{name}/{record.id}-{number}{suffix_of(record.content)}"
            (folder / file).write_bytes(record.content)
            writer.writerow([file, " ".join(f"{label:.9g}" for label in record.labels)])
            count += 1
    return count


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command.

    Exit codes: 0 success; 1 the file or its index is refused; 2 a wrong command line.
    """
    parser = argparse.ArgumentParser("python -m mxkit.data.records", description="Lists and extracts a `.rec` file.")
    parser.add_argument("file", type=Path, help="a .rec file, with or without its .idx file beside it")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="a new folder for the images")
    options = parser.parse_args(arguments)
    try:
        found = summarize(options.file)
        write_lines(report(options.file, found))
        if options.to:
            count = extract(options.file, options.to, found)
            write_lines([f"wrote {count} images and labels.csv into {shown(str(options.to))}"])
    except (DataError, OSError) as error:
        sys.exit(f"error: {shown(str(error))}")


_IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
_SEED = 100  # of im2rec's shuffle
_TOGETHER = 64  # images that the threads encode ahead of the file


class Entry(NamedTuple):
    """A line of a list: key, labels, and the image's path relative to the folder."""

    key: int
    labels: Tuple[float, ...]
    file: str


class Encoding(NamedTuple):
    """How images are stored; the names of `im2rec`'s options.

    Attributes:
        resize: The shorter side in pixels; 0 keeps the size.
        center_crop: Cut the longer side to the shorter one, before the resize.
        quality: Of JPEG, 1 to 100; of PNG the compression, 0 to 9.
        encoding: ".jpg" or ".png".
        pass_through: The files themselves, byte for byte.
    """

    resize: int = 0
    center_crop: bool = False
    quality: int = 95
    encoding: str = ".jpg"
    pass_through: bool = False


class Made(NamedTuple):
    """A written file.

    Attributes:
        path: The `.rec` file; the `.idx` and `.lst` files stand beside it.
        records: Number of records.
        left_out: The images that could not be read, with the reason.
    """

    path: Path
    records: int
    left_out: List[str]


def of_folder(folder: Path) -> Tuple[List[Entry], List[str]]:
    """Entries of a folder with one folder of images per class, and the classes; the labels are their numbers.

    Raises:
        DataError: It has no such folders, or no images.
    """
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    files = [
        (label, file)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in _IMAGES and not file.is_dir()  # a link to nothing is left out by name
    ]
    if not files:
        way = "for another layout write a list: index, labels and path, with tabs"
        raise DataError(f"{folder}: expected one folder of images per class ({', '.join(_IMAGES)}): {way}")
    names = (file.relative_to(folder).as_posix() for _, file in files)
    return [Entry(key, (float(label),), name) for key, ((label, _), name) in enumerate(zip(files, names))], classes


def of_list(path: Path) -> List[Entry]:
    """Entries of an `.lst` file: lines of an index, one or more labels, and a path, separated by tabs.

    Raises:
        DataError: A line is something else, or there is none.
    """
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.rstrip("\r").split("\t")
        if not line.strip():
            continue
        try:
            key, labels = int(words[0]), tuple(map(float, words[1:-1]))
        except ValueError:
            labels = ()
        if not labels or not words[-1].strip():
            expected = "an index, one or more labels and a path, with tabs between"
            raise DataError(f"{path}, line {number}: expected {expected}; received {line[:80]!r}")
        entries.append(Entry(key, labels, words[-1].strip()))
    if not entries:
        raise DataError(f"{path}: the list is empty")
    if len({entry.key for entry in entries}) < len(entries):
        raise DataError(f"{path}: an index stands twice; expected each line to have its own")
    return entries


def split(entries: Sequence[Entry], train_ratio: float, shuffle: bool) -> Dict[str, List[Entry]]:
    """Entries by the ending of their file's name: all under "", or a part under "_train" and the rest under "_val".

    Args:
        entries: They are shuffled as `im2rec` shuffles, or stay in their order.
        train_ratio: More than 0, at most 1.
        shuffle: Whether.
    """
    if not 0 < train_ratio <= 1:
        raise DataError(f"train ratio {train_ratio:g}: expected more than 0 and at most 1")
    ordered = list(entries)
    if shuffle:
        random.Random(_SEED).shuffle(ordered)
    if train_ratio == 1:
        return {"": ordered}
    first = int(len(ordered) * train_ratio)
    if not first or first == len(ordered):
        raise DataError(f"train ratio {train_ratio:g} of {len(ordered)} images leaves one of the two files empty")
    return {"_train": ordered[:first], "_val": ordered[first:]}


def make(root: Path, entries: Sequence[Entry], path: Path, encoding: Encoding) -> Made:
    """Write a `.rec` file with its `.idx` and `.lst` files; they are complete or absent.

    Args:
        root: The folder to which the entries' paths are relative.
        entries: The images, in the order of the file.
        path: The `.rec` file.
        encoding: How they are stored.

    Raises:
        DataError: No image could be read.
    """
    names = [path.with_suffix(suffix) for suffix in (".rec", ".idx", ".lst")]
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = [name_aside(name) for name in names]
    left_out: List[str] = []
    count = 0
    try:
        with aside[0].open("wb") as file, aside[1].open("w") as index, aside[2].open("w", encoding="utf-8") as table:
            for entry, content in _contents(root, entries, encoding):
                if isinstance(content, str):
                    left_out.append(f"{entry.file}: {content}")
                    continue
                index.write(f"{entry.key}\t{file.tell()}\n")
                table.write("\t".join([str(entry.key), *(f"{label:.9g}" for label in entry.labels), entry.file]) + "\n")
                write_record(file, pack(entry.labels, entry.key, content))
                count += 1
        if not count:
            raise DataError(f"none of {len(entries)} images could be read. The first: {left_out[0]}")
        for made, name in zip(aside, names):
            made.replace(name)
    finally:
        for made in filter(Path.exists, aside):
            made.unlink()
    return Made(path, count, left_out)


def _contents(root: Path, entries: Sequence[Entry], encoding: Encoding) -> Iterator[Tuple[Entry, Union[bytes, str]]]:
    """Yield each entry with its image's bytes, or the reason why there are none."""

    def content(entry: Entry) -> Union[bytes, str]:
        try:
            data = (root / entry.file).read_bytes()
        except OSError as error:
            return error.strerror or str(error)
        return data if encoding.pass_through and data else _encoded(data, encoding)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(entries), _TOGETHER):
            some = entries[start : start + _TOGETHER]
            yield from zip(some, pool.map(content, some))


def _encoded(data: bytes, encoding: Encoding) -> Union[bytes, str]:
    import cv2

    try:
        image: Any = decode(data, "its content")[:, :, ::-1]  # BGR, as OpenCV writes
    except DataError as error:
        return str(error)
    height, width = image.shape[:2]
    if encoding.center_crop:
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        image = image[top : top + side, left : left + side]
        height = width = side
    if encoding.resize:
        short = min(height, width)
        size = (encoding.resize * width // short, encoding.resize * height // short)
        image = cv2.resize(np.ascontiguousarray(image), size)
    flag = cv2.IMWRITE_PNG_COMPRESSION if encoding.encoding == ".png" else cv2.IMWRITE_JPEG_QUALITY
    written, buffer = cv2.imencode(encoding.encoding, np.ascontiguousarray(image), [flag, encoding.quality])
    return buffer.tobytes() if written else f"OpenCV cannot write {encoding.encoding} of {width} x {height} pixels"


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

    After a damaged record the index says where the next one begins; without an index, nothing is read after it.

    Raises:
        DataError: The file is empty, a folder or a device.
    """
    size = file_size(path)
    known = sorted(_index(path.with_suffix(".idx"))[0] or ())
    offset = 0
    with path.open("rb") as file:
        while offset < size:
            following = next((place for place in known[bisect_right(known, offset) :] if place < size), size)
            found: Union[Record, str]
            try:
                content, end = read_record(file, offset, size, path)
                found = unpack(content)
                swallows = end > following and _begins(file, following)  # records that the index names
                if known and (swallows or (end not in (following, size) and not _begins(file, end))):
                    raise ValueError(f"it says that it ends at byte {end}, where no other record begins")
            except (DataError, ValueError) as error:
                found, end = str(error).replace(f"{path}: ", ""), following
            yield offset, found
            offset = end


def _begins(file: BinaryIO, place: int) -> bool:
    file.seek(place)
    return file.read(4) == MAGIC


def _fault(content: bytes) -> str:
    try:
        decode(content, "its image")
    except DataError as error:
        return str(error)
    return ""


def rows(path: Path) -> Iterator[Row]:
    """Yield the sound records of a file.

    Raises:
        DataError: The file is empty, a folder or a device.
    """
    for number, (offset, record) in enumerate(scan(path)):
        if isinstance(record, Record):
            labels = [float(label) for label in record.labels]
            form = suffix_of(record.content)
            yield Row(number, offset, record.id, labels, len(record.content), form, *sides_of(record.content))


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
    read = images = 0
    for number, (offset, record) in enumerate(scan(path)):
        offsets[offset] = number
        keys = (index or {}).get(offset, [])
        if not isinstance(record, Record):
            damages.append(Damage(number, offset, keys, record))
            continue
        read += 1
        if not np.isfinite(record.labels).all():
            damages.append(Damage(number, offset, keys, "a label is no finite number"))
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


if __name__ == "__main__":
    main()
