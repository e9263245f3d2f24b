"""Bytes of image files, decoded or refused."""

from typing import Optional

from mxkit.errors import DataError
import numpy as np


def decode(content: bytes, where: str, channels: int = 3) -> "np.ndarray":
    """Decode an image file.

    MXNet's own decoder takes a JPEG that was cut off and fills the rest with grey, in silence; it works on the one
    thread of MXNet's engine, and what it raises comes out at a later read (T40). So this is OpenCV's, the library
    that MXNet has inside: the pixels are the same. As in MXNet, pictures are not turned as their camera noted.

    Args:
        content: The file.
        where: What the messages call it.
        channels: 3 for RGB, 1 for grey.

    Returns:
        uint8 of shape (height, width, channels).

    Raises:
        DataError: It is no image, or was cut off.
    """
    import cv2  # installed with gluoncv; 0.2 s that only images need

    flag = (cv2.IMREAD_COLOR if channels == 3 else cv2.IMREAD_GRAYSCALE) | cv2.IMREAD_IGNORE_ORIENTATION
    cut = _cut_off(content)
    if cut or not content:
        raise DataError(f"{where}: {cut or 'the file is empty'}. Fetch it again or remove it")
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), flag)
    except cv2.error as error:
        raise DataError(f"{where}: OpenCV cannot decode it: {error}. Remove it") from error
    if image is None:
        raise DataError(f"{where}: it is no image that OpenCV knows; it begins with {content[:8]!r}. Remove it")
    if channels != 3:
        return image[:, :, None]
    rgb = np.empty_like(image)
    # cvtColor would start OpenCV's threads, which a forked worker does not have
    cv2.mixChannels([image], [rgb], [0, 2, 1, 1, 2, 0])
    return rgb


def _cut_off(content: bytes) -> Optional[str]:
    """What shows that a JPEG or a PNG was cut off; inside the compressed data these marks cannot stand."""
    if content[:2] == b"\xff\xd8" and content.rfind(b"\xff\xd9") <= content.rfind(b"\xff\xda"):
        return "the JPEG ends before its end"
    if content[:4] == b"\x89PNG" and b"IEND" not in content[-4096:]:
        return "the PNG ends before its end"
    return None
