"""The cache folders of MXNet, gluoncv and mxkit: what datasets and pretrained nets lie where, and cleaning."""

import contextlib
import os
from pathlib import Path
import re
import shutil
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

from mxkit.core.files import file_digest
from mxkit.data.files.formats import CIFAR10_FILES, CIFAR100_FILES, CifarFiles

LOCK = ".mxkit-lock"
_ROOMS = ("datasets", "models", "embeddings")

# What downloads of mxkit, MXNet and gluoncv (`name.<uuid>`, `name.zip<uuid>`) leave when they are killed.
_LEFTOVER = re.compile(
    r"(^\..+\.part$)|(\.[\w-]*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$)"
    r"|(\.zip[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$)"
)
_MODEL = re.compile(r"-([0-9a-f]{8})\.params$")

_IDX = [f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]


def _forms_of(files: CifarFiles) -> List[List[str]]:
    return [*([archive] for archive in files.archives), *map(list.__add__, files.train, files.test)]


# Files that make a dataset complete, in each of its forms; a name stands for the file itself or its `.gz`.
_COMPLETE: Dict[str, List[List[str]]] = {
    "mnist": [_IDX],
    "fashion-mnist": [_IDX],
    "cifar10": _forms_of(CIFAR10_FILES),
    "cifar100": _forms_of(CIFAR100_FILES),
}


class CacheEntry(NamedTuple):
    """A dataset, a net's numbers, or something else in a cache folder.

    Attributes:
        kind: `"dataset"`, `"model"`, `"embedding"` or `"other"`.
        name: Of the file or folder.
        path: Where it is.
        bytes: Its size; what symbolic links lead to is not counted.
        files: How many files it has.
        state: `"complete"`: all files of a dataset that mxkit knows, or a net whose SHA-1 begins as its name says;
            `"partial"`: some of them, or left over by a download that was stopped; `"damaged"`: a net with another
            SHA-1; `"link"`: a symbolic link, which is not followed; `"unknown"`: anything else.
        changed: When a file in it was last written, in seconds since 1970.
    """

    kind: str
    name: str
    path: Path
    bytes: int
    files: int
    state: str
    changed: float


def home() -> Path:
    """The cache folder: `$MXNET_HOME`, else `~/.mxnet` (on Windows `%APPDATA%/mxnet`), as it is set now (T57)."""
    named = os.environ.get("MXNET_HOME")
    return Path(named).expanduser() if named else _default_home()


def dataset_folder(name: str) -> Path:
    """Where a dataset's files are kept, by MXNet too: `datasets/<name>` in the cache folder."""
    return home() / "datasets" / name


def homes() -> List[Path]:
    """Every cache folder there is, `home()` first.

    gluoncv 0.10.5 looks for its nets' numbers in `$MXNET_HOME/models` where that is set, then even if it is given a
    `root`, and for its datasets in `~/.mxnet` whatever is set (T57). A process whose HOME was changed (sudo,
    containers) has put its files into the one of the account.
    """
    found = [home(), _default_home(), Path("~/.mxnet").expanduser()]
    try:
        import pwd

        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir) / ".mxnet")
    except (ImportError, KeyError):  # Windows; a container's user without an account
        found = found[:3]
    there = {one.resolve(): one for one in reversed(found) if one.is_dir()}
    return [there[path] for path in dict.fromkeys(one.resolve() for one in found) if path in there]


def list_cache() -> List[CacheEntry]:
    """What is in every cache folder: datasets, nets' numbers, and what stopped downloads left.

    The SHA-1 of nets' numbers is computed, about 1 s for each GB.

    Returns:
        One row for each dataset, each file of `models/` and each other thing, sorted by folder and name.
    """
    return [entry for folder in homes() for entry in _entries(folder)]


def clean_cache(
    *, partial: bool = True, older_than: Optional[float] = None, name: Optional[str] = None, dry_run: bool = False
) -> List[CacheEntry]:
    """Delete what stopped downloads left and, where asked for, whole entries.

    Args:
        partial: Delete leftovers of downloads; not those of one that is running now.
        older_than: Delete entries in which nothing was written for so many days.
        name: Delete the entries of this name. With `older_than` both must hold.
        dry_run: Delete nothing, only tell.

    Returns:
        What was deleted, or would be.

    Raises:
        ValueError: No entry has that name; the text lists those there are.

    Side effects:
        Only `datasets/`, `models/` and `embeddings/` of the cache folders are touched. Symbolic links are
        removed, never followed.
    """
    entries = [entry for entry in list_cache() if entry.kind != "other"]
    if name is not None and name not in {entry.name for entry in entries}:
        known = ", ".join(sorted({entry.name for entry in entries})) or "nothing"
        raise ValueError(f"clean_cache: there is no {name!r} in the cache; there is {known}")
    chosen: List[CacheEntry] = []
    if older_than is not None or name is not None:
        before = time.time() - 86400 * (older_than or 0)
        chosen = [entry for entry in entries if name in (None, entry.name) and entry.changed <= before]
    gone = {entry.path for entry in chosen}
    if partial:
        chosen += [left for entry in entries if entry.path not in gone for left in _leftovers(entry)]
    for entry in [] if dry_run else chosen:
        _delete(entry.path)
    return chosen


@contextlib.contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Be the only process at work in a folder; the system ends the lock with the process, however it ends.

    Yields:
        Whether the lock was had; only where `wait` is False it may not be.
    """
    try:
        import fcntl
    except ImportError:  # Windows: a file that two processes wrote together fails its digest, and is read anew
        yield True
        return
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _default_home() -> Path:
    if os.name == "nt" and os.environ.get("APPDATA"):
        return Path(os.environ["APPDATA"]) / "mxnet"
    return Path("~/.mxnet").expanduser()


def _entries(folder: Path) -> Iterator[CacheEntry]:
    for path in sorted(folder.iterdir()):
        if path.name in _ROOMS and path.is_dir() and not path.is_symlink():
            for inner in sorted(path.iterdir()):
                if inner.name != LOCK:
                    yield _entry(inner, path.name[:-1], _STATES[path.name])
        elif path.name != LOCK:
            yield _entry(path, "other", lambda path: "unknown")


def _entry(path: Path, kind: str, state: Callable[[Path], str]) -> CacheEntry:
    alone = path.is_symlink() or path.is_file()
    files = [one.lstat() for one in ([path] if alone else _walk(path)) if one.name != LOCK]
    found = "link" if path.is_symlink() else "partial" if _LEFTOVER.search(path.name) else state(path)
    changed = max((one.st_mtime for one in files), default=path.lstat().st_mtime)
    return CacheEntry(kind, path.name, path, sum(one.st_size for one in files), len(files), found, changed)


def _walk(path: Path) -> Iterator[Path]:
    """Files and symbolic links below a folder, which is no link itself."""
    if path.is_symlink():
        return
    for folder, inner, files in os.walk(str(path)):
        links = [name for name in inner if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in sorted(files + links))


def _dataset_state(path: Path) -> str:
    present = {one.name for one in path.rglob("*")} if path.is_dir() else set()
    known = _COMPLETE.get(path.name, [])
    if any(all({name, f"{name}.gz"} & present for name in way) for way in known):
        return "complete"
    half = any({name, f"{name}.gz"} & present for way in known for name in way)
    return "partial" if half or any(_LEFTOVER.search(name) for name in present) else "unknown"


def _model_state(path: Path) -> str:
    named = _MODEL.search(path.name)
    if not (named and path.is_file()):
        return "unknown"
    return "complete" if file_digest(path, "sha1").startswith(named.group(1)) else "damaged"


_STATES: Dict[str, Callable[[Path], str]] = {
    "datasets": _dataset_state,
    "models": _model_state,
    "embeddings": lambda path: "unknown",
}


def _leftovers(entry: CacheEntry) -> Iterator[CacheEntry]:
    paths = [entry.path] if entry.state == "partial" and not entry.path.is_dir() else list(_walk(entry.path))
    for path in paths:
        if _LEFTOVER.search(path.name) and not path.is_symlink() and _is_idle(path):
            yield _entry(path, entry.kind, lambda path: "partial")


def _is_idle(path: Path) -> bool:
    """Whether no download is at work on a file: mxkit's hold a lock, others have written within the last hour."""
    if not (path.parent / LOCK).exists():
        return path.stat().st_mtime < time.time() - 3600
    with locked(path.parent, wait=False) as free:
        return free


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))  # it does not follow symbolic links
    else:
        path.unlink()
