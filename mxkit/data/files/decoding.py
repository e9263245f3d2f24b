"""Decodes image files, and refuses damaged ones."""

from typing import Optional

from mxkit.errors import DataError
import numpy as np


def decode(content: bytes, where: str, channels: int = 3) -> "np.ndarray":
    """Decode an image file with OpenCV, which MXNet uses too: the pixels are the same.

    MXNet's own decoder accepts a truncated JPEG and fills the rest with grey silently; it runs on the single thread of
    MXNet's engine, and raises its errors at a later read (T40). As in MXNet, the camera's orientation is ignored.

    Args:
        content: Content of the file.
        where: Name of the file, for messages.
        channels: 3 for RGB, 1 for grey.

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
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), flag)
    except cv2.error as error:
        raise DataError(f"{where}: OpenCV cannot decode it: {error}. Remove it") from error
    if image is None:
        raise DataError(f"{where}: it is no image that OpenCV knows; it begins with {content[:8]!r}. Remove it")
    return image if channels == 3 else image[:, :, None]


def _truncation(content: bytes) -> Optional[str]:
    """The sign that a JPEG or a PNG is truncated: the end marker is missing; compressed data cannot contain it."""
    if content[:2] == b"\xff\xd8" and content.rfind(b"\xff\xd9") <= content.rfind(b"\xff\xda"):
        return "the JPEG ends before its end"
    if content[:4] == b"\x89PNG" and b"IEND" not in content[-4096:]:
        return "the PNG ends before its end"
    return None
