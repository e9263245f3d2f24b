"""Writes files completely or not at all, and computes their digests."""

import hashlib
import os
from pathlib import Path


def name_aside(path: Path) -> Path:
    """Return a hidden name beside a file for its incomplete content; every call returns a new name."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name, flush it to disk, and rename it.

    Args:
        path: The file; its directory must exist.
        content: The whole content.

    Raises:
        OSError: The disk is full, or the directory cannot be written; the file does not change.
    """
    aside = name_aside(path)
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        if aside.exists():
            aside.unlink()
    flush_directory(path.parent)


def flush_directory(directory: Path) -> None:
    """Flush renames inside a directory to disk (only on POSIX)."""
    if os.name == "posix":
        handle = os.open(str(directory), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Digest of a file in hexadecimal digits; the file is read in pieces."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return digest.hexdigest()
