"""Downloads files: asks each mirror in turn, resumes broken downloads, and checks digests."""

from contextlib import suppress
from functools import partial
import os
from pathlib import Path
from time import sleep
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from mxkit.core.system import LOG, file_digest, flush_directory, is_offline
from mxkit.data.files.cache import dataset_folder, locked
from mxkit.errors import DownloadError, MxkitError
from tqdm import tqdm

_CHUNK = 1 << 18
# Statuses after which the same request may succeed later.
_BUSY = (408, 425, 429, 500, 502, 503, 504)
# Seconds before the second and the third round over the mirrors, and the longest pause that a server may ask for.
_PAUSES = (0.0, 2.0)
_LONGEST_PAUSE = 60.0
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
        Leaves a hidden lock file in the folder. A broken download leaves a hidden `.part`, which the next call resumes.
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
            raise DownloadError(
                f"{folder}: {error}. Free some space, or name another folder by root= or the variable MXNET_HOME"
            ) from error
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
    """Download a file from the first mirror that works, and resume a broken download.

    There are three rounds over the mirrors, with pauses between them that a server's `Retry-After` may lengthen. A
    mirror is left out of later rounds if it would answer the same.

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
    mirrors = list(file.mirrors)
    for pause in (*_PAUSES, None):
        waits: Dict[Mirror, float] = {}
        for mirror in mirrors:
            part = _part_of(file, folder, mirror)
            resumed = part.exists()
            try:
                _read_rest(mirror, part, file.name, progress, timeout)
                _publish_or_delete(part, mirror, publish)
            except _network_errors() + (WrongAnswer,) as error:
                failures[mirror.url] = str(error)
                LOG.info("%s failed: %s", mirror.url, error)
                wait = _wait_after(error, resumed)
                waits.update({} if wait is None else {mirror: wait})
                continue
            LOG.info("%s downloaded from %s", file.name, mirror.url)
            for each in file.mirrors:
                with suppress(FileNotFoundError):
                    _part_of(file, folder, each).unlink()
            return
        if pause is None or not waits:
            raise NothingWorked("\n".join(f"{url}: {text}" for url, text in failures.items()))
        sleep(max(pause, min(waits.values())))
        mirrors = list(waits)


def _part_of(file: RemoteFile, folder: Path, mirror: Mirror) -> Path:
    digits = mirror.digest.partition(":")[2][:8]
    return folder / (f".{file.name}.{digits}.part" if digits else f".{file.name}.part")


def _wait_after(error: Exception, resumed: bool) -> Optional[float]:
    """Seconds after which to ask a failed mirror again; None if it would answer the same."""
    import urllib3

    if isinstance(error, WrongAnswer):
        return 0.0 if resumed else None  # the resumed part may have been of another file
    response = getattr(error, "response", None)
    if response is None:
        return 0.0
    if response.status_code not in _BUSY:
        return None
    wait = 0.0
    with suppress(urllib3.exceptions.InvalidHeader):
        wait = float(urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", "0")))
    return wait if wait <= _LONGEST_PAUSE else None


def _read_rest(mirror: Mirror, part: Path, name: str, progress: bool, timeout: float) -> None:
    """Read what a part lacks; reconnect after a broken connection as long as each one brings bytes."""
    while True:
        size = part.stat().st_size if part.exists() else 0
        if size and size == mirror.size:
            return
        try:
            _read(mirror, part, size, name, progress, timeout)
            return
        except _network_errors():
            if not (part.exists() and part.stat().st_size > size):
                raise


def _read(mirror: Mirror, part: Path, offset: int, name: str, progress: bool, timeout: float) -> None:
    import requests  # takes 0.1 s to import, and only a download needs it

    # without compression, so that sizes and ranges count the bytes of the file itself
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={offset}-"} if offset else {})}
    with requests.get(mirror.url, headers=headers, stream=True, timeout=timeout) as answer:
        if answer.status_code == 416:  # the part already has all bytes; its digest decides
            return
        answer.raise_for_status()
        span = answer.headers.get("Content-Range", "")
        # servers may ignore the range and send the file from its beginning
        start = offset if answer.status_code == 206 and span.startswith(f"bytes {offset}-") else 0
        length = answer.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else mirror.size
        is_page = answer.headers.get("Content-Type", "").startswith("text/html")
        kind = " of a web page" if is_page else ""
        if mirror.size not in (None, total):
            raise WrongAnswer(f"offers {total} bytes{kind}, expected {mirror.size}")
        with part.open("ab") as file, tqdm(
            total=total, initial=start, desc=name, unit="B", unit_scale=True, disable=None if progress else True
        ) as bar:
            file.seek(file.truncate(start))
            # not decoded: servers declare .gz files as pages in gzip, and requests would unpack them
            for chunk in answer.raw.stream(_CHUNK, decode_content=False):
                if mirror.size is not None and file.tell() + len(chunk) > mirror.size:
                    file.truncate(0)
                    raise WrongAnswer(f"gives more than the expected {mirror.size} bytes{kind}")
                file.write(chunk)
                bar.update(len(chunk))
            if total is not None and file.tell() < total:
                raise requests.ConnectionError(f"broke off after {file.tell()} of {total} bytes")


def _network_errors() -> Tuple[Type[Exception], ...]:
    import requests
    import urllib3

    return requests.RequestException, urllib3.exceptions.HTTPError


def _publish_or_delete(part: Path, mirror: Mirror, publish: Callable[[Path, Mirror], None]) -> None:
    try:
        publish(part, mirror)
    except WrongAnswer:
        part.unlink()
        raise


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
