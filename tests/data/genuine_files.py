"""Small datasets in the genuine formats, as bytes."""

import gzip
import io
import struct
import tarfile

import numpy as np


def write(path, content):
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
    """An array as an IDX file."""
    head = bytes([0, 0, IDX_CODES[array.dtype.str[1:]], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def cifar_arrays(count, classes, seed=0):
    random = np.random.RandomState(seed)
    x = random.randint(0, 256, (count, 3072), dtype="u1")
    return x, np.stack([random.randint(0, one, count) for one in classes], axis=1).astype("u1")


def binary_bytes(x, y):
    return np.concatenate([y, x], axis=1).tobytes()


def tar_bytes(files):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def mnist_files(train=60, test=40, classes=10):
    """The four files of MNIST by name; each class is there equally often."""
    random = np.random.RandomState(0)
    files = {}
    for part, count in (("train", train), ("t10k", test)):
        x = random.randint(0, 256, (count, 28, 28), dtype="u1")
        y = random.permutation(count).astype("u1") % classes
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx_bytes(x))
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(y))
    return files
