"""Files that are either whole or as they were before."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file aside, flush it to disk, and rename it into place.

    Args:
        path: The file; its directory must exist.
        content: All of it.

    Raises:
        OSError: The disk is full, or the place may not be written; the file is as it was.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
