"""Small images as the bytes of files, and `.rec` files that MXNet writes of them."""

import io

import mxnet as mx
import numpy as np
from PIL import Image


def picture(seed, kind="JPEG", mode="RGB", size=(40, 30), **settings):
    """An image file as bytes; smooth, so that JPEG keeps it."""
    small = np.random.RandomState(seed).randint(0, 256, (5, 6, 3), dtype="u1")
    file = io.BytesIO()
    Image.fromarray(small).resize(size, Image.BICUBIC).convert(mode).save(file, kind, **settings)
    return file.getvalue()


def write_records(path, contents):
    """Write `(labels, id, content)`, as MXNet's im2rec does; the keys of the index are the ids."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for labels, number, content in contents:
        writer.write_idx(number % 2**64, mx.recordio.pack((0, labels, number % 2**64, number >> 64), content))
    writer.close()
    return path
