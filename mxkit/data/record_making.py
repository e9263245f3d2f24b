"""Makes `.rec` files of images, as MXNet's removed tool `im2rec` did, without MXNet."""

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import random
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple, Union

from mxkit.core.system import name_aside
from mxkit.data.image_bytes import pack, write_record
from mxkit.errors import DataError
import numpy as np

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
        raise DataError(
            f"{folder}: expected one folder of images per class ({', '.join(_IMAGES)}), received "
            f"{len(classes)} folders without one. For another layout write a list: index, labels and path, with tabs"
        )
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
            raise DataError(
                f"{path}, line {number}: expected an index, one or more labels and a path, separated by tabs, received "
                f"{line[:80]!r}"
            )
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
        for made in aside:
            if made.exists():
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
    from mxkit.data.image_bytes import decode

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
