"""The cache folders of MXNet, gluoncv and mxkit, and downloads: each mirror in turn, checked before they are kept."""

import contextlib
from contextlib import suppress
import fcntl
from functools import partial
import os
from pathlib import Path
import re
import shutil
import time
from time import sleep
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from mxkit.core.system import LOG, file_digest, flush_directory, is_offline
from mxkit.errors import DownloadError, MxkitError
from tqdm import tqdm

LOCK = ".mxkit-lock"
_KINDS = {"datasets": "dataset", "models": "model", "embeddings": "embedding"}

# Names that killed downloads of mxkit, MXNet and gluoncv (`name.<uuid>`, `name.zip<uuid>`) leave behind.
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_LEFTOVER = re.compile(rf"(^\..+\.part$)|(\.[\w-]*{_UUID}$)|(\.zip{_UUID}$)")
_MODEL = re.compile(r"-([0-9a-f]{8})\.params$")


class CacheEntry(NamedTuple):
    """A dataset, a net's weights, or another file or folder in a cache folder.

    Attributes:
        kind: `"dataset"`, `"model"`, `"embedding"` or `"other"`.
        name: Name of the file or folder.
        path: Its path.
        bytes: Its size, without the targets of symbolic links.
        files: Number of files in it.
        state: `"complete"`: weights whose SHA-1 begins as the name says; `"damaged"`: weights with another SHA-1;
            `"partial"`: what a broken download left, or a folder with it; `"link"`: a symbolic link, which is not
            followed; `"unknown"`: anything else.
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
    """The cache folder: `$MXNET_HOME`, else `~/.mxnet`, read at each call (T57)."""
    return Path(os.environ.get("MXNET_HOME") or "~/.mxnet").expanduser()


def dataset_folder(name: str) -> Path:
    """Folder of a dataset in the cache, `datasets/<name>`, which MXNet uses too."""
    return home() / "datasets" / name


def homes() -> List[Path]:
    """All cache folders that exist, `home()` first.

    gluoncv 0.10.5 reads weights from `$MXNET_HOME/models` if the variable is set, even if `root` is given, and
    datasets from `~/.mxnet` always (T57).
    """
    distinct: Dict[Path, Path] = {}
    for path in filter(Path.is_dir, (home(), Path("~/.mxnet").expanduser())):
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
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _entries(folder: Path) -> Iterator[CacheEntry]:
    for path in sorted(folder.iterdir()):
        if path.name in _KINDS and path.is_dir() and not path.is_symlink():
            yield from (_entry(inner, _KINDS[path.name]) for inner in sorted(path.iterdir()) if inner.name != LOCK)
        elif path.name != LOCK:
            yield _entry(path, "other")


def _entry(path: Path, kind: str) -> CacheEntry:
    files = [one.lstat() for one in _files(path) if one.name != LOCK]
    changed = max((one.st_mtime for one in files), default=path.lstat().st_mtime)
    return CacheEntry(kind, path.name, path, sum(one.st_size for one in files), len(files), _state(path, kind), changed)


def _files(path: Path) -> Iterator[Path]:
    """The files and symbolic links below a folder; `path` itself if it is one of these."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for inner in sorted(path.iterdir()):
        yield from _files(inner)


def _state(path: Path, kind: str) -> str:
    if path.is_symlink():
        return "link"
    if _LEFTOVER.search(path.name):
        return "partial"
    model = _MODEL.search(path.name)
    if kind == "model" and model and path.is_file():
        return "complete" if file_digest(path, "sha1").startswith(model.group(1)) else "damaged"
    return "partial" if any(_LEFTOVER.search(one.name) for one in _files(path)) else "unknown"


def _leftovers(entry: CacheEntry) -> Iterator[CacheEntry]:
    for path in _files(entry.path):
        if _LEFTOVER.search(path.name) and not path.is_symlink() and _is_idle(path):
            yield _entry(path, entry.kind)


def _is_idle(path: Path) -> bool:
    """Whether no download writes a file: mxkit's downloads hold a lock, others have written within the last hour."""
    if not (path.parent / LOCK).exists():
        return path.stat().st_mtime < time.time() - 3600
    with locked(path.parent, wait=False) as free:
        return free


_CHUNK = 1 << 18
# Statuses after which the same request may succeed later.
_BUSY = (408, 425, 429, 500, 502, 503, 504)
# Seconds before the second and the third round over the mirrors.
_PAUSES = (0.0, 2.0)
_DIGITS = {"md5": 32, "sha1": 40, "sha256": 64}


class Mirror(NamedTuple):
    """A URL of a file.

    Attributes:
        url: Address, with http or https.
        digest: `"sha256:..."`, `"sha1:..."` or `"md5:..."` of this mirror's file; "" if it is unknown.
        size: Size in bytes, or None if it is unknown.
    """

    url: str
    digest: str = ""
    size: Optional[int] = None


class RemoteFile(NamedTuple):
    """A file and its mirrors, the best first. Mirrors may differ in digest, because archives of equal content may."""

    name: str
    mirrors: Sequence[Mirror]


def fetch(
    url: Union[str, Sequence[str]],
    *,
    digest: str,
    size: Optional[int] = None,
    folder: Union[str, Path, None] = None,
    name: Optional[str] = None,
    offline: Optional[bool] = None,
    progress: bool = True,
    timeout: float = 20.0,
) -> Path:
    """Download a file, unless the folder already has it with the right digest.

    Args:
        url: URL of the file, or several URLs of the same bytes, which are tried in turn.
        digest: `"sha256:..."`, `"sha1:..."` or `"md5:..."` of the file, in hexadecimal digits.
        size: Size in bytes, if it is known: an answer of another size is refused before it is read.
        folder: Folder for the file; by default `datasets/files` in the cache.
        name: Name of the file; by default the last part of the URL.
        offline: Whether to use no network. None reads the environment variable `MXKIT_OFFLINE`.
        progress: Whether to draw a bar, on a terminal only.
        timeout: Seconds without a byte after which the next mirror is tried.

    Returns:
        The path of the file.

    Raises:
        DownloadError: Every mirror failed, or the network must not be used; the text lists what to fetch by hand.
        ValueError: `digest` has another form.

    Side effects:
        Leaves a hidden lock file in the folder. A killed download leaves a hidden `.part`, overwritten by the next.
    """
    urls = [url] if isinstance(url, str) else list(url)
    algorithm, _, digits = digest.partition(":")
    if _DIGITS.get(algorithm) != len(digits) or set(digits) - set("0123456789abcdef"):
        raise ValueError(f"digest: expected sha256:, sha1: or md5: and the digits in lower case; received {digest!r}")
    file = RemoteFile(name or urls[0].rsplit("/", 1)[-1], [Mirror(one, digest, size) for one in urls])
    target = dataset_folder("files") if folder is None else Path(folder).expanduser()
    return fetch_files([file], target, offline=offline, progress=progress, timeout=timeout)[0]


def fetch_files(
    files: Sequence[RemoteFile],
    folder: Path,
    *,
    offline: Optional[bool] = None,
    progress: bool = True,
    timeout: float = 20.0,
) -> List[Path]:
    """Download the files that are missing in a folder or have a wrong digest. Arguments as for `fetch`.

    A lock on the folder makes processes wait for each other, so that each file is downloaded once.

    Raises:
        DownloadError: A file could not be downloaded. The folder has the files before it, and no wrong one.
    """
    paths = [folder / file.name for file in files]
    missing = [file for file, path in zip(files, paths) if not is_right(path, file)]
    if missing and is_offline(offline):
        raise _by_hand(missing, folder, ["the network must not be used (offline)"])
    if missing:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                for file in missing:
                    # another process may have downloaded it while this one waited for the lock
                    if not is_right(folder / file.name, file):
                        publish = partial(_check_and_rename, folder / file.name)
                        read_file(file, folder, publish, progress=progress, timeout=timeout)
        except NothingWorked as failed:
            rest = [file for file in missing if not is_right(folder / file.name, file)]
            raise _by_hand(rest, folder, str(failed).splitlines()) from None
        except OSError as error:
            raise DownloadError(f"{folder}: {error}. Free some space, or pass root= or set MXNET_HOME") from error
    return paths


def is_right(path: Path, file: RemoteFile) -> bool:
    """Whether a path is a file with the size and the digest of one of the mirrors."""
    if not path.is_file():
        return False
    size = path.stat().st_size
    distinct = {mirror.digest: mirror for mirror in file.mirrors}.values()
    return any(mirror.size in (None, size) and _digest_like(mirror, path) == mirror.digest for mirror in distinct)


def _digest_like(mirror: Mirror, path: Path) -> str:
    """Digest of a file, by the algorithm of the mirror's digest."""
    algorithm = mirror.digest.partition(":")[0]
    return f"{algorithm}:{file_digest(path, algorithm)}"


class NothingWorked(MxkitError):
    """Every mirror failed; the text has a line for each."""


class WrongAnswer(MxkitError):
    """A mirror sent another content than the file."""


def read_file(
    file: RemoteFile,
    folder: Path,
    publish: Callable[[Path, Mirror], None],
    *,
    progress: bool = True,
    timeout: float = 20.0,
) -> None:
    """Download a file from the first mirror that works.

    There are three rounds over the mirrors, with pauses between them. A mirror is left out of later rounds if it would
    answer the same.

    Args:
        file: The file.
        folder: Folder of the hidden `.part`. The caller holds its lock.
        publish: Called with the complete part and its mirror; checks the content and moves it into place.
        progress: Whether to draw a bar.
        timeout: Seconds without a byte after which the next mirror is tried.

    Raises:
        NothingWorked: Every mirror failed.
        OSError: The part cannot be written.
    """
    failures: Dict[str, str] = {}
    mirrors, part = list(file.mirrors), folder / f".{file.name}.part"
    for pause in (*_PAUSES, None):
        again = []
        for mirror in mirrors:
            try:
                _read(mirror, part, file.name, progress, timeout)
                publish(part, mirror)
                LOG.info("%s downloaded from %s", file.name, mirror.url)
                return
            except _network_errors() + (WrongAnswer,) as error:
                failures[mirror.url] = str(error)
                LOG.info("%s failed: %s", mirror.url, error)
                response = getattr(error, "response", None)
                lasts = isinstance(error, WrongAnswer) or (response is not None and response.status_code not in _BUSY)
                again += [] if lasts else [mirror]
            finally:
                with suppress(FileNotFoundError):
                    part.unlink()
        if pause is None or not again:
            break
        sleep(pause)
        mirrors = again
    raise NothingWorked("\n".join(f"{url}: {text}" for url, text in failures.items()))


def _read(mirror: Mirror, part: Path, name: str, progress: bool, timeout: float) -> None:
    import requests  # takes 0.1 s to import, and only a download needs it

    # without compression, so that sizes count the bytes of the file itself
    with requests.get(mirror.url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=timeout) as answer:
        answer.raise_for_status()
        length = answer.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else mirror.size
        kind = " of a web page" if answer.headers.get("Content-Type", "").startswith("text/html") else ""
        if mirror.size not in (None, total):
            raise WrongAnswer(f"offers {total} bytes{kind}, expected {mirror.size}")
        with part.open("wb") as file, tqdm(
            total=total, desc=name, unit="B", unit_scale=True, disable=None if progress else True
        ) as bar:
            # not decoded: servers declare .gz files as pages in gzip, and requests would unpack them
            for chunk in answer.raw.stream(_CHUNK, decode_content=False):
                file.write(chunk)
                bar.update(len(chunk))
                if mirror.size is not None and file.tell() > mirror.size:
                    raise WrongAnswer(f"gives more than the expected {mirror.size} bytes{kind}")
            if total is not None and file.tell() < total:
                raise requests.ConnectionError(f"broke off after {file.tell()} of {total} bytes")


def _network_errors() -> Tuple[Type[Exception], ...]:
    import requests
    import urllib3

    return requests.RequestException, urllib3.exceptions.HTTPError


def _check_and_rename(path: Path, part: Path, mirror: Mirror) -> None:
    digest = _digest_like(mirror, part)
    if digest != mirror.digest:
        size = part.stat().st_size
        raise WrongAnswer(f"gave {size} bytes with the wrong content: expected {mirror.digest}, received {digest}")
    with part.open("rb") as complete:
        os.fsync(complete.fileno())
    part.replace(path)
    flush_directory(path.parent)


def _by_hand(files: Sequence[RemoteFile], folder: Path, reasons: Sequence[str]) -> DownloadError:
    lines = [
        f"{len(files)} file(s) could not be downloaded. Fetch them by hand, each from one of its URLs, and put them",
        f"into {folder.absolute()}",
    ]
    for file in files:
        wrong = " (the file there has another content)" if (folder / file.name).is_file() else ""
        lines.append(f"  {file.name}{wrong}")
        for mirror in file.mirrors:
            size = "" if mirror.size is None else f"  {mirror.size} bytes"
            lines.append(f"    {mirror.url}{size}  {mirror.digest}")
    return DownloadError("\n".join([*lines, "What went wrong:", *(f"  {reason}" for reason in reasons)]))
