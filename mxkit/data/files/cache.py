"""The cache folders of MXNet, gluoncv and mxkit: lists and deletes datasets, weights and broken downloads."""

import contextlib
import os
from pathlib import Path
import re
import shutil
import time
from typing import Dict, Iterator, List, NamedTuple, Optional

from mxkit.core.system import file_digest
from mxkit.data.files.formats import CIFAR10_FILES, CIFAR100_FILES, CifarFiles

LOCK = ".mxkit-lock"
_KINDS = {"datasets": "dataset", "models": "model", "embeddings": "embedding"}

# Names that killed downloads of mxkit, MXNet and gluoncv (`name.<uuid>`, `name.zip<uuid>`) leave behind.
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_LEFTOVER = re.compile(rf"(^\..+\.part$)|(\.[\w-]*{_UUID}$)|(\.zip{_UUID}$)")
_MODEL = re.compile(r"-([0-9a-f]{8})\.params$")


def _versions_of(files: CifarFiles) -> List[List[str]]:
    return [*([archive] for archive in files.archives), *map(list.__add__, files.train, files.test)]


_IDX = [f"{part}-{content}-ubyte" for part in ("train", "t10k") for content in ("images-idx3", "labels-idx1")]
# The files of a complete dataset, in each of its versions; a name stands for the file itself or its `.gz`.
_COMPLETE: Dict[str, List[List[str]]] = {
    "mnist": [_IDX],
    "fashion-mnist": [_IDX],
    "cifar10": _versions_of(CIFAR10_FILES),
    "cifar100": _versions_of(CIFAR100_FILES),
}


class CacheEntry(NamedTuple):
    """A dataset, a net's weights, or another file or folder in a cache folder.

    Attributes:
        kind: `"dataset"`, `"model"`, `"embedding"` or `"other"`.
        name: Name of the file or folder.
        path: Its path.
        bytes: Its size, without the targets of symbolic links.
        files: Number of files in it.
        state: `"complete"`: a dataset with all its files, or weights whose SHA-1 begins as the name says; `"partial"`:
            a dataset that lacks files, or what a broken download left; `"damaged"`: weights with another SHA-1;
            `"link"`: a symbolic link, which is not followed; `"unknown"`: anything else.
        changed: Time of the last write to one of its files, in seconds since 1970.
    """

    kind: str
    name: str
    path: Path
    bytes: int
    files: int
    state: str
    changed: float


def home() -> Path:
    """The cache folder: `$MXNET_HOME`, else `~/.mxnet` (on Windows `%APPDATA%/mxnet`), read at each call (T57)."""
    named = os.environ.get("MXNET_HOME")
    return Path(named).expanduser() if named else _default_home()


def dataset_folder(name: str) -> Path:
    """Folder of a dataset in the cache, `datasets/<name>`, which MXNet uses too."""
    return home() / "datasets" / name


def homes() -> List[Path]:
    """All cache folders that exist, `home()` first.

    gluoncv 0.10.5 reads weights from `$MXNET_HOME/models` if the variable is set, even if `root` is given, and
    datasets from `~/.mxnet` always (T57). A process with another HOME (sudo, containers) may have written to the
    account's own folder.
    """
    candidates = [home(), _default_home(), Path("~/.mxnet").expanduser()]
    # Windows has no pwd; a container's user may have no account
    with contextlib.suppress(ImportError, KeyError):
        import pwd

        candidates.append(Path(pwd.getpwuid(os.getuid()).pw_dir) / ".mxnet")
    distinct: Dict[Path, Path] = {}
    for path in filter(Path.is_dir, candidates):
        distinct.setdefault(path.resolve(), path)
    return list(distinct.values())


def list_cache() -> List[CacheEntry]:
    """List the content of every cache folder: datasets, weights, and what broken downloads left.

    The SHA-1 of each file of weights is computed, which takes about 1 s per GB.

    Returns:
        An entry for each dataset, each file of `models/` and everything else, sorted by folder and name.
    """
    return [entry for folder in homes() for entry in _entries(folder)]


def clean_cache(
    *, partial: bool = True, older_than: Optional[float] = None, name: Optional[str] = None, dry_run: bool = False
) -> List[CacheEntry]:
    """Delete what broken downloads left and, if `older_than` or `name` is given, whole entries.

    Args:
        partial: Whether to delete what broken downloads left, except of downloads that run now.
        older_than: Delete entries without a write for this many days.
        name: Delete the entries of this name. With `older_than` both conditions must hold.
        dry_run: Whether to delete nothing and only return the entries.

    Returns:
        The entries that were deleted, or would be.

    Raises:
        ValueError: The cache has no entry of that name; the text lists the names.

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
    if partial:
        chosen += [left for entry in entries if entry not in chosen for left in _leftovers(entry)]
    for entry in [] if dry_run else chosen:
        if entry.path.is_dir() and not entry.path.is_symlink():
            shutil.rmtree(str(entry.path))  # does not follow symbolic links
        else:
            entry.path.unlink()
    return chosen


@contextlib.contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Lock a folder against other processes; the system releases the lock when the process ends.

    Yields:
        Whether this process has the lock; False only if `wait` is False and another process has it.
    """
    try:
        import fcntl
    except ImportError:  # Windows: if two processes write a file at once, its digest is wrong and it is read again
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
        if path.name in _KINDS and path.is_dir() and not path.is_symlink():
            yield from (_entry(inner, _KINDS[path.name]) for inner in sorted(path.iterdir()) if inner.name != LOCK)
        elif path.name != LOCK:
            yield _entry(path, "other")


def _entry(path: Path, kind: str) -> CacheEntry:
    alone = path.is_symlink() or path.is_file()
    files = [one.lstat() for one in ([path] if alone else _walk(path)) if one.name != LOCK]
    changed = max((one.st_mtime for one in files), default=path.lstat().st_mtime)
    return CacheEntry(kind, path.name, path, sum(one.st_size for one in files), len(files), _state(path, kind), changed)


def _walk(path: Path) -> Iterator[Path]:
    """Files and symbolic links below a folder; nothing if `path` is a symbolic link."""
    if path.is_symlink():
        return
    for folder, inner, files in os.walk(str(path)):
        links = [name for name in inner if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in sorted(files + links))


def _state(path: Path, kind: str) -> str:
    if path.is_symlink():
        return "link"
    if _LEFTOVER.search(path.name):
        return "partial"
    model = _MODEL.search(path.name)
    if kind == "model" and model and path.is_file():
        return "complete" if file_digest(path, "sha1").startswith(model.group(1)) else "damaged"
    if kind != "dataset":
        return "unknown"
    present = {one.name for one in path.rglob("*")} if path.is_dir() else set()
    versions = [[bool({name, f"{name}.gz"} & present) for name in names] for names in _COMPLETE.get(path.name, [])]
    if any(map(all, versions)):
        return "complete"
    return "partial" if any(map(any, versions)) or any(map(_LEFTOVER.search, present)) else "unknown"


def _leftovers(entry: CacheEntry) -> Iterator[CacheEntry]:
    paths = [entry.path] if entry.state == "partial" and not entry.path.is_dir() else list(_walk(entry.path))
    for path in paths:
        if _LEFTOVER.search(path.name) and not path.is_symlink() and _is_idle(path):
            yield _entry(path, entry.kind)


def _is_idle(path: Path) -> bool:
    """Whether no download writes a file: mxkit's downloads hold a lock, others have written within the last hour."""
    if not (path.parent / LOCK).exists():
        return path.stat().st_mtime < time.time() - 3600
    with locked(path.parent, wait=False) as free:
        return free
