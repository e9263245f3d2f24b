"""`python -m mxkit.data.records FILE.rec [--to FOLDER]`: lists, checks and extracts a `.rec` file, without MXNet."""

import argparse
from array import array
from collections import Counter
import csv
from pathlib import Path
import shutil
import sys
from typing import Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from mxkit.core.system import aligned, name_aside, shown, write_lines
from mxkit.data.image_bytes import Record, file_size, is_faces_header, read_index, read_record, unpack
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
        rows: Number, byte, id, labels, size and format of the first records.
        total: Number of records.
        formats: Number of records by the suffix of their image; "" for a record without one.
        sizes: Bytes of the smallest and the largest image, and of all.
        labels: Number of records by label, of those with one label.
        several: Records with several labels and an image.
        faces: Whether it has insightface's header: record 0, without an image, names the ranges of the others.
        distinct: Whether no two images have one id.
        index_state: What was found of the `.idx` file.
    """

    rows: List[List[str]]
    total: int
    formats: "Counter[str]"
    sizes: Tuple[int, int, int]
    labels: "Counter[float]"
    several: int
    faces: bool
    distinct: bool
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
    size = file_size(path)
    offset = number = 0
    with path.open("rb") as file:
        while offset < size:
            content, end = read_record(file, offset, size, path)
            try:
                record = unpack(content)
            except ValueError as error:
                raise DataError(f"{path}: record {number} at byte {offset} is damaged: {error}") from error
            yield offset, record
            offset, number = end, number + 1


def summarize(path: Path) -> Summary:
    """Read every record of a file, and compare them with its index.

    Raises:
        DataError: As for `records`; or the index does not agree with the file.
    """
    rows: List[List[str]] = []
    formats: Counter[str] = Counter()
    labels: Counter[float] = Counter()
    ids, offsets = array("Q"), array("Q")
    several, faces, sizes = 0, False, [sys.maxsize, 0, 0]
    for offset, record in records(path):
        suffix, length = suffix_of(record.content), len(record.content)
        if len(offsets) < _ROWS:
            text = " ".join(f"{label:g}" for label in record.labels[:6]) + (" ..." if len(record.labels) > 6 else "")
            rows.append([str(len(offsets)), str(offset), str(record.id), text, str(length), suffix or "no image"])
        offsets.append(offset)
        formats[suffix] += 1
        faces = faces or is_faces_header(record)
        if record.content:
            sizes = [min(sizes[0], length), max(sizes[1], length), sizes[2] + length]
            ids.append(record.id % 2**64)
            if len(record.labels) == 1:
                labels[float(record.labels[0])] += 1
            else:
                several += 1
    distinct = len(np.unique(np.frombuffer(ids, np.uint64))) == len(ids) if ids else True
    index = _compare_index(path, np.frombuffer(offsets, np.uint64))
    least = sizes[0] if sizes[1] else 0
    total = (least, sizes[1], sizes[2])
    return Summary(rows, len(offsets), formats, total, labels, several, faces, distinct, index)


def _compare_index(path: Path, offsets: "np.ndarray") -> str:
    index = path.with_suffix(".idx")
    if not index.is_file():
        return "no .idx file"
    indexed = read_index(index, path.stat().st_size)
    strange = ~np.isin(indexed.astype(np.uint64), offsets)
    if strange.any():
        row = int(strange.argmax())
        raise DataError(
            f"{index}: entry {row + 1} is byte {indexed[row]}, where no record of {path.name} begins. "
            "It is of another file: remove it, and the records are found without it"
        )
    missing = len(offsets) - len(np.unique(indexed))
    return f"{index.name} lacks {missing} of {len(offsets)} records" if missing else f"{index.name} agrees"


def report(path: Path, found: Summary) -> List[str]:
    """Lines that describe a `.rec` file."""
    lines = aligned([["record", "byte", "id", "labels", "bytes", "image"], *found.rows], left=(3, 5))
    if found.total > len(found.rows):
        lines.append(f"... {found.total - len(found.rows)} more")
    counts = sorted(found.formats.items(), key=lambda item: (item[0] == "", -item[1]))
    formats = ", ".join(f"{count} {suffix or 'without an image'}" for suffix, count in counts)
    lines.append(f"{shown(str(path))}: {found.total} records ({formats}); {found.index_state}")
    images = found.total - found.formats[""]
    if images:
        least, largest, total = found.sizes
        lines.append(f"images: {least:,} to {largest:,} bytes, {total:,} in all")
    if found.labels:
        first, last = min(found.labels), max(found.labels)
        lines.append(f"labels: {len(found.labels)} different ones, {first:g} to {last:g}")
    if found.several:
        lines.append(f"{found.several} images have several labels, or none")
    if found.faces:
        lines.append("insightface's header: records without an image name ranges of ids")
    if not found.distinct:
        lines.append("ids are not distinct: extracted images are named by the record's number")
    return lines


def extract(path: Path, folder: Path, found: Summary) -> int:
    """Write the images of a `.rec` file to `folder/<label>/<id>.jpg`, byte for byte, and `labels.csv`.

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
        if folder.exists():
            folder.rmdir()  # empty; Windows does not replace a folder
        aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return count


def _write_images(path: Path, folder: Path, found: Summary) -> int:
    made: Set[str] = set()
    count = 0
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["file", "labels"])
        for number, (_, record) in enumerate(records(path)):
            if not record.content:
                continue
            name = _label_folder(record, found.faces)
            if name not in made:
                (folder / name).mkdir(exist_ok=True)
                made.add(name)
            file = f"{name}/{record.id if found.distinct else number}{suffix_of(record.content)}"
            (folder / file).write_bytes(record.content)
            writer.writerow([file, " ".join(f"{label:.9g}" for label in record.labels)])
            count += 1
    return count


def _label_folder(record: Record, faces: bool) -> str:
    if len(record.labels) == 1 or (faces and len(record.labels)):
        return f"{record.labels[0]:.9g}"
    return "images"


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command.

    Exit codes: 0 success; 1 the file or its index is refused; 2 a wrong command line.
    """
    parser = argparse.ArgumentParser("python -m mxkit.data.records", description=__doc__)
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


if __name__ == "__main__":
    main()
