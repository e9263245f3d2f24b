"""Decodes image files, and refuses damaged ones."""

from typing import Optional, Tuple

from mxkit.errors import DataError
import numpy as np


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
    if reduce_to is not None:
        sides = _jpeg_sides(content) or (0,)
        flag |= next((code for code, factor in _REDUCED if -(-min(sides) // factor) >= reduce_to), 0)
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), flag)
    except cv2.error as error:
        raise DataError(f"{where}: OpenCV cannot decode it: {error}. Remove it") from error
    if image is None:
        raise DataError(f"{where}: it is no image that OpenCV knows; it begins with {content[:8]!r}. Remove it")
    return image if channels == 3 else image[:, :, None]


# OpenCV's flags (IMREAD_REDUCED_GRAYSCALE_8, ...) and the factor by which each divides the sides.
_REDUCED = ((64, 8), (32, 4), (16, 2))
_NO_FRAME = (0xC4, 0xC8, 0xCC)


def _jpeg_sides(content: bytes) -> Optional[Tuple[int, int]]:
    """Height and width in the header of a JPEG; None for another file."""
    at = 2
    while content[:2] == b"\xff\xd8" and at + 9 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            return int.from_bytes(content[at + 5 : at + 7], "big"), int.from_bytes(content[at + 7 : at + 9], "big")
        at += 1 if marker == 0xFF else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None


def _truncation(content: bytes) -> Optional[str]:
    """The sign that a JPEG or a PNG is truncated: the end marker is missing; compressed data cannot contain it."""
    if content[:2] == b"\xff\xd8" and content.rfind(b"\xff\xd9") <= content.rfind(b"\xff\xda"):
        return "the JPEG ends before its end"
    if content[:4] == b"\x89PNG" and b"IEND" not in content[-4096:]:
        return "the PNG ends before its end"
    return None
