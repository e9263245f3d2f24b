"""Decodes image files, and reads and writes RecordIO files (`.rec` with `.idx`) without MXNet.

The format, little-endian, as `im2rec` and `mx.recordio` write it:

    record   one part, or several if the content holds the magic number, which the parts then leave out
    part     uint32 0xCED7230A, uint32 (kind in the upper 3 bits, length in the others), content, zeros up to a
             multiple of 4 bytes; kinds: 0 a whole record, 1 its first part, 2 a middle part, 3 its last part
    content  uint32 number of labels (0: only the next one), float32 label, uint64 id, uint64 upper half of the id,
             float32 for each label, the image as a JPEG or PNG file
    index    lines of a key, a tab and the byte at which its record begins
"""

from io import BytesIO
from pathlib import Path
import struct
from typing import Any, BinaryIO, Iterator, NamedTuple, Optional, Sequence, Tuple

from mxkit.errors import DataError
import numpy as np

MAGIC = struct.pack("<I", 0xCED7230A)
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class Record(NamedTuple):
    """A record of `im2rec`.

    Attributes:
        labels: float32 of shape (N,).
        id: Number of the record, chosen by its writer.
        content: The bytes of an image file, or no bytes.
    """

    labels: "np.ndarray"
    id: int
    content: bytes

    @property
    def is_faces_header(self) -> bool:
        """Whether it is insightface's first one: the first identity's id, that after the last one, and no image."""
        return self.id == 0 and not self.content and len(self.labels) == 2


def record_offsets(path: Path, size: int) -> "np.ndarray":
    """Byte at which each record begins, int64 of shape (N,): of the index, checked against the file, or of the file.

    Args:
        path: The `.rec` file; its `.idx` file is read if it is in the same folder.
        size: Bytes of the file.

    Raises:
        DataError: The file is damaged or not RecordIO, or the index is damaged or of another file.
    """
    index = path.with_suffix(".idx")
    with path.open("rb") as file:
        if not index.is_file():
            offsets, offset = [], 0
            while offset < size:
                offsets.append(offset)
                offset = end_of(file, offset, size, path)
            return np.array(offsets, dtype=np.int64)
        indexed = read_index(index, size)
        # checks only the first and the last record, so that a file of millions of records opens at once
        end_of(file, int(indexed.min()), size, path)
        if end_of(file, int(indexed.max()), size, path) != size:
            text = f"it does not end where the last record of {index.name} ends"
            raise DataError(f"{path}: {text}: remove the index, and the records are found without it")
    return indexed


def file_size(path: Path) -> int:
    """Bytes of a `.rec` file, at least 1.

    Raises:
        DataError: The path is a folder or a device, or the file is empty.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
        raise DataError(f"{path} is not a file: expected a .rec file, received a folder or a device")
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"{path}: the file is empty")
    return size


def read_index(index: Path, size: int) -> "np.ndarray":
    """Read an `.idx` file.

    Args:
        index: The file.
        size: Bytes of the `.rec` file.

    Returns:
        The byte at which each key's record begins, int64, in the order of the index.

    Raises:
        DataError: The file is no index, or it belongs to another `.rec` file.
    """
    try:
        with index.open(encoding="ascii") as lines:
            offsets = np.array([int(line.split("\t")[1]) for line in lines if line.strip()], dtype=np.int64)
    except (ValueError, IndexError, OverflowError) as error:
        raise DataError(f"{index}: expected lines of a key, a tab and a place in the file ({error!s:.200})") from error
    if not len(offsets) or offsets.min() < 0 or offsets.max() >= size:
        most = offsets.max() if len(offsets) else 0
        raise DataError(f"{index}: it has records up to byte {most}; the .rec file has {size} bytes. One was cut off")
    if len(np.unique(offsets)) < len(offsets):
        raise DataError(f"{index}: it names a record twice. Remove it, and the records are found without it")
    return offsets


def end_of(file: BinaryIO, offset: int, size: int, path: Path) -> int:
    """Byte after the record that begins at `offset`."""
    return max(end for _, _, end in _parts(file, offset, size, path))


def read_record(file: BinaryIO, offset: int, size: int, path: Path) -> Tuple[bytes, int]:
    """Content of the record that begins at `offset`, and the byte after it."""
    contents = []
    for start, length, following in _parts(file, offset, size, path):
        offset = following
        file.seek(start)
        contents.append(file.read(length))
        if len(contents[-1]) != length:
            raise DataError(f"{path} is being changed by another process: byte {start} has no {length} bytes")
    return MAGIC.join(contents), offset


def _parts(file: BinaryIO, offset: int, size: int, path: Path) -> Iterator[Tuple[int, int, int]]:
    """Start and length of the content of each part of a record, and the byte after the part; checks the sizes."""
    what, allowed = "record", (_WHOLE, _FIRST)
    while True:
        file.seek(offset)
        head = file.read(8)
        magic, length = head[:4], int.from_bytes(head[4:], "little")
        kind, length = length >> 29, length & (1 << 29) - 1
        if len(head) < 8 or magic != MAGIC or kind not in allowed:
            raise DataError(f"{path}: no {what} begins at byte {offset}: it was cut off, or is no RecordIO file")
        start = offset + 8
        offset = start + ((length + 3) & ~3)
        if offset > size:
            raise DataError(f"{path}: a record ends at byte {offset}, but the file has {size} bytes: it was cut off")
        yield start, length, offset
        if kind in (_WHOLE, _LAST):
            return
        what, allowed = "further part of a record", (_MIDDLE, _LAST)


def unpack(content: bytes) -> Record:
    """Split the content of a record into labels, id and image.

    Raises:
        ValueError: It is shorter than its header says.
    """
    if len(content) < 24:
        raise ValueError(f"expected a header of 24 bytes, received {len(content)} bytes")
    count, label, low, high = struct.unpack("<IfQQ", content[:24])
    if count * 4 > len(content) - 24:
        raise ValueError(f"expected {count} labels of 4 bytes, received {len(content) - 24} bytes")
    labels = np.frombuffer(content, "<f4", count, 24) if count else np.array([label], "<f4")
    return Record(labels.astype(np.float32), low | high << 64, content[24 + 4 * count :])


def pack(labels: Sequence[float], number: int, content: bytes) -> bytes:
    """Build the content of a record for `unpack`; the header holds a single label, as `im2rec` writes it."""
    several = b"" if len(labels) == 1 else np.asarray(labels, "<f4").tobytes()
    count, label = (0, labels[0]) if len(labels) == 1 else (len(labels), 0.0)
    return struct.pack("<IfQQ", count, label, number % 2**64, number >> 64) + several + content


def write_record(file: BinaryIO, content: bytes) -> None:
    """Append a record; it is cut into parts where the magic number begins at a multiple of 4 bytes.

    Raises:
        ValueError: A part is longer than the format allows.
    """
    cuts, at = [], content.find(MAGIC)
    while at >= 0:
        cuts += [at] * (at % 4 == 0)
        at = content.find(MAGIC, at + (1 if at % 4 else 4))
    starts, ends = [0, *(cut + 4 for cut in cuts)], [*cuts, len(content)]
    for number, (start, end) in enumerate(zip(starts, ends)):
        length = end - start
        if length >= 1 << 29:
            raise ValueError(f"a record holds at most 512 MiB, received {length:,} bytes")
        kind = (_WHOLE if number == len(cuts) else _FIRST) if number == 0 else _LAST if end == len(content) else _MIDDLE
        file.write(MAGIC + struct.pack("<I", kind << 29 | length) + content[start:end] + bytes(-length % 4))


def decode(content: bytes, where: str, channels: int = 3, reduce_to: Optional[int] = None) -> "np.ndarray":
    """Decode an image file with OpenCV, which MXNet uses too: the pixels are the same.

    MXNet's own decoder accepts a truncated JPEG and fills the rest with grey silently; it runs on the single thread of
    MXNet's engine, and raises its errors at a later read (T40). As in MXNet, the camera's orientation is ignored.

    Args:
        content: Content of the file.
        where: Name of the file, for messages.
        channels: 3 for RGB, 1 for grey.
        reduce_to: Decode a JPEG at 1/2, 1/4 or 1/8 of its size, as long as the shorter side keeps this many pixels.
            The pixels differ from those of the whole image after a resize.

    Returns:
        uint8 of shape (height, width, channels).

    Raises:
        DataError: The file is not an image, or is truncated.
    """
    import cv2  # installed with gluoncv; takes 0.2 s to import, and only images need it

    # OpenCV swaps no channels then, which would take a third of the time again
    flag = (cv2.IMREAD_COLOR_RGB if channels == 3 else cv2.IMREAD_GRAYSCALE) | cv2.IMREAD_IGNORE_ORIENTATION
    fault = _truncation(content) if content else "the file is empty"
    if fault:
        raise DataError(f"{where}: {fault}. Fetch it again or remove it")
    if reduce_to is not None and content[:2] == b"\xff\xd8":
        side = min(one or 0 for one in sides_of(content))
        flag |= next((code for code, factor in _REDUCED if -(-side // factor) >= reduce_to), 0)
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), flag)
    except cv2.error as error:
        raise DataError(f"{where}: OpenCV cannot decode it: {error}. Remove it") from error
    if image is None:
        raise DataError(f"{where}: it is no image that OpenCV knows; it begins with {content[:8]!r}. Remove it")
    return image if channels == 3 else image[:, :, None]


# OpenCV's flags (IMREAD_REDUCED_GRAYSCALE_8, ...) and the factor by which each divides the sides.
_REDUCED = ((64, 8), (32, 4), (16, 2))


def sides_of(content: bytes) -> Tuple[Optional[int], Optional[int]]:
    """Height and width in the header of an image file; None for a format that Pillow does not read."""
    from PIL import Image

    try:
        with Image.open(BytesIO(content)) as image:
            return image.height, image.width
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError):  # Pillow's, of damaged files
        return None, None


def is_turned(image: Any) -> bool:
    """Whether EXIF turns or mirrors an opened image of Pillow where it is shown; pixels are read as stored (T283)."""
    try:
        return "exif" in image.info and image.getexif().get(0x0112, 1) not in (0, 1)
    except (OSError, SyntaxError, ValueError, struct.error):  # Pillow's, of damaged EXIF
        return False


def _truncation(content: bytes) -> Optional[str]:
    """The sign that a JPEG or a PNG is truncated: the end marker is missing; compressed data cannot contain it."""
    if content[:2] == b"\xff\xd8" and content.rfind(b"\xff\xd9") <= content.rfind(b"\xff\xda"):
        return "the JPEG ends before its end"
    if content[:4] == b"\x89PNG" and b"IEND" not in content[-4096:]:
        return "the PNG ends before its end"
    return None
