"""Files that are either whole or as they were before."""

import os
from pathlib import Path


def name_aside(path: Path) -> Path:
    """A hidden name beside a file, for its content until that is whole; each call gets another one."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file aside, flush it to disk, and rename it into place.

    Args:
        path: The file; its directory must exist.
        content: All of it.

    Raises:
        OSError: The disk is full, or the place may not be written; the file is as it was.
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
    """Make renames inside a directory last through a power cut (POSIX; elsewhere nothing can be done)."""
    if os.name == "posix":
        handle = os.open(str(directory), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
