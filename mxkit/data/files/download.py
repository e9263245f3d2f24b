"""Files from the network: each one from whichever mirror has it, whole or not at all."""

from contextlib import suppress
from functools import partial
import os
from pathlib import Path
from time import sleep
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from mxkit.core.files import file_digest, flush_directory
from mxkit.data.files.cache import dataset_folder, locked
from mxkit.errors import DownloadError, MxkitError
from tqdm import tqdm

_CHUNK = 1 << 18
# Statuses of servers that may answer later, and seconds: the unit of the pauses, and the longest one.
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


class Mirror(NamedTuple):
    """A place that has a file.

    Attributes:
        url: With http or https.
        digest: `"sha256:..."`, `"sha1:..."` or `"md5:..."` of what this place gives; "" where it is not known.
        size: In bytes, or None where it is not known.
    """

    url: str
    digest: str = ""
    size: Optional[int] = None


class RemoteFile(NamedTuple):
    """A file, and the places that have it, the best first; they may differ in digest, as archives do."""

    name: str
    mirrors: Sequence[Mirror]


def is_offline(offline: Optional[bool] = None) -> bool:
    """Whether the network must not be used: as told, else as `MXKIT_OFFLINE` in the environment says.

    >>> is_offline(True), is_offline(False)
    (True, False)
    """
    said = os.environ.get("MXKIT_OFFLINE", "").strip().lower()
    return said not in ("", "0", "false", "no") if offline is None else offline


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
    """Get one file from the network, once: a file that is there and right is not asked for again.

    Args:
        url: Where it is; several are tried in turn and must give the same bytes.
        digest: `"sha256:..."`, `"sha1:..."` or `"md5:..."` of the file, in hexadecimal digits.
        size: In bytes, where it is known: a page that says something else is not even read.
        folder: Where to put it; by default `datasets/files` in the cache.
        name: What to call it; by default as the URL does.
        offline: Do not use the network. None asks the environment variable `MXKIT_OFFLINE`.
        progress: Draw a bar, on a terminal.
        timeout: Seconds without a byte after which the next mirror is tried.

    Returns:
        The path of the file.

    Raises:
        DownloadError: No mirror gave it, or the network must not be used; the text says what to fetch by hand.
        ValueError: `digest` is not of such a form.

    Side effects:
        Beside the file a hidden lock file stays. What was read of a download that broke off stays as a hidden
        `.part`, from which the next call goes on.
    """
    urls = [url] if isinstance(url, str) else list(url)
    _check_digest(digest)
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
    rounds: int = 3,
) -> List[Path]:
    """Get files into a folder, those that are not there or not right. Arguments as for `fetch`.

    Each mirror is asked `rounds` times at most. Processes that want the same files take turns, so each is read once.

    Raises:
        DownloadError: A file could not be had. Those before it are there; nothing wrong is.
    """
    paths = [folder / file.name for file in files]
    missing = [file for file, path in zip(files, paths) if not is_right(path, file)]
    if missing and is_offline(offline):
        raise _by_hand(missing, folder, ["the network is not to be used (offline)"])
    if missing:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                for file in missing:
                    # another process may have fetched it while this one waited
                    if not is_right(folder / file.name, file):
                        publish = partial(_check_and_rename, folder / file.name)
                        read_file(file, folder, publish, progress=progress, timeout=timeout, rounds=rounds)
        except NothingWorked as failed:
            rest = [file for file in missing if not is_right(folder / file.name, file)]
            raise _by_hand(rest, folder, str(failed).splitlines()) from None
        except OSError as error:
            raise DownloadError(
                f"{folder}: {error}. Free some space, or name another folder by root= or the variable MXNET_HOME"
            ) from error
    return paths


def is_right(path: Path, file: RemoteFile) -> bool:
    """Whether a file is there with one of the digests it may have."""
    if not path.is_file():
        return False
    size = path.stat().st_size
    return any(
        mirror.size in (None, size) and digest_of(path, mirror.digest) == mirror.digest for mirror in _distinct(file)
    )


def digest_of(path: Path, like: str) -> str:
    """A file's digest by the algorithm that another digest names, in the same form."""
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{file_digest(path, algorithm)}"


class NothingWorked(MxkitError):
    """No mirror gave the file: a line for each mirror."""


class WrongAnswer(MxkitError):
    """A mirror gave something else than the file."""


def read_file(
    file: RemoteFile,
    folder: Path,
    publish: Callable[[Path, Mirror], None],
    *,
    progress: bool = True,
    timeout: float = 20.0,
    rounds: int = 3,
) -> None:
    """Read a file from the first mirror that gives it; what a broken download left is resumed.

    Every mirror is asked before any is asked again. Between the rounds there are the pauses of urllib3's `Retry`, or
    longer ones where a server sends `Retry-After`. A mirror that would answer the same again is asked only once.

    Args:
        file: Its name, and its mirrors.
        folder: Where the hidden `.part` of a download lies. The caller holds its lock.
        publish: Called with the whole part and its mirror: checks the content and gives it its place.
        progress: Draw a bar, on a terminal.
        timeout: Seconds without a byte after which the next mirror is tried.
        rounds: How often each mirror is asked at most.

    Raises:
        NothingWorked: No mirror gave the file.
        OSError: It cannot be written.
    """
    import urllib3

    retry = urllib3.Retry(total=rounds - 1, backoff_factor=_PAUSE, status_forcelist=_BUSY)
    failures: Dict[str, str] = {}
    mirrors = list(file.mirrors)
    while True:
        pauses: Dict[Mirror, float] = {}
        for mirror in mirrors:
            part = _part_of(file, folder, mirror)
            resumed = part.exists()
            try:
                _read_rest(mirror, part, file.name, progress, timeout)
                _publish_or_delete(part, mirror, publish)
            except _network_errors() + (WrongAnswer,) as error:
                failures[mirror.url] = str(error)
                pause = _pause_after(error, retry, resumed)
                pauses.update({} if pause is None else {mirror: pause})
                continue
            for each in file.mirrors:
                with suppress(FileNotFoundError):
                    _part_of(file, folder, each).unlink()
            return
        with suppress(urllib3.exceptions.MaxRetryError):
            retry = retry.increment("GET", file.name)
            if pauses:
                sleep(max(retry.get_backoff_time(), min(pauses.values())))
                mirrors = list(pauses)
                continue
        raise NothingWorked("\n".join(f"{url}: {text}" for url, text in failures.items()))


def _part_of(file: RemoteFile, folder: Path, mirror: Mirror) -> Path:
    digits = mirror.digest.partition(":")[2][:8]
    return folder / (f".{file.name}.{digits}.part" if digits else f".{file.name}.part")


def _pause_after(error: Exception, retry: Any, resumed: bool) -> Optional[float]:
    """Seconds after which a mirror that failed is asked again; None if the answer would be the same."""
    if isinstance(error, WrongAnswer):
        return 0.0 if resumed else None  # the beginning may have been of another file
    response = getattr(error, "response", None)
    if response is None:
        return 0.0
    header = response.headers.get("Retry-After")
    if not retry.is_retry("GET", response.status_code, header is not None):
        return None
    pause = 0.0
    with suppress(*_network_errors()):  # urllib3 refuses what is neither a number nor a date
        pause = float(retry.parse_retry_after(header)) if header else 0.0
    return pause if pause <= _LONGEST_PAUSE else None


def _read_rest(mirror: Mirror, part: Path, name: str, progress: bool, timeout: float) -> None:
    """Read what a part lacks; a connection that breaks is taken up where it broke, as long as each brings bytes."""
    while True:
        have = part.stat().st_size if part.exists() else 0
        if have and have == mirror.size:
            return
        try:
            _read(mirror, part, have, name, progress, timeout)
            return
        except _network_errors():
            if not (part.exists() and part.stat().st_size > have):
                raise


def _read(mirror: Mirror, part: Path, have: int, name: str, progress: bool, timeout: float) -> None:
    import requests  # 0.1 s that only a download needs

    # no compression on the way: sizes and ranges count the bytes of the file itself
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with requests.get(mirror.url, headers=headers, stream=True, timeout=timeout) as answer:
        if answer.status_code == 416:  # there is no more; the digest decides
            return
        answer.raise_for_status()
        start = _start(answer, have)
        length = answer.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else mirror.size
        if mirror.size not in (None, total):
            raise WrongAnswer(f"offers {total} bytes{_kind(answer)}, expected {mirror.size}")
        with part.open("ab") as file, tqdm(
            total=total, initial=start, desc=name, unit="B", unit_scale=True, disable=None if progress else True
        ) as bar:
            file.seek(file.truncate(start))
            # undecoded: servers say of .gz files that they are a page in gzip, and requests would unpack them
            for chunk in answer.raw.stream(_CHUNK, decode_content=False):
                if mirror.size is not None and file.tell() + len(chunk) > mirror.size:
                    file.truncate(0)
                    raise WrongAnswer(f"gives more than the expected {mirror.size} bytes{_kind(answer)}")
                file.write(chunk)
                bar.update(len(chunk))
            if total is not None and file.tell() < total:
                raise requests.ConnectionError(f"broke off after {file.tell()} of {total} bytes")


def _network_errors() -> Tuple[Type[Exception], ...]:
    import requests
    import urllib3

    return requests.RequestException, urllib3.exceptions.HTTPError


def _start(answer: Any, have: int) -> int:
    """Where in the file an answer begins: servers may ignore the wish for a range."""
    found = answer.headers.get("Content-Range", "")
    return have if answer.status_code == 206 and found.startswith(f"bytes {have}-") else 0


def _kind(answer: Any) -> str:
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    return " of a web page" if kind == "text/html" else ""


def _publish_or_delete(part: Path, mirror: Mirror, publish: Callable[[Path, Mirror], None]) -> None:
    try:
        publish(part, mirror)
    except WrongAnswer:
        part.unlink()
        raise


def _check_and_rename(path: Path, part: Path, mirror: Mirror) -> None:
    found = digest_of(part, mirror.digest)
    if found != mirror.digest:
        size = part.stat().st_size
        raise WrongAnswer(f"gave {size} bytes with the wrong content: expected {mirror.digest}, received {found}")
    with part.open("rb") as whole:
        os.fsync(whole.fileno())
    part.replace(path)
    flush_directory(path.parent)


def _distinct(file: RemoteFile) -> List[Mirror]:
    return list({mirror.digest: mirror for mirror in file.mirrors}.values())


def _check_digest(digest: str) -> None:
    algorithm, _, digits = digest.partition(":")
    lengths = {"md5": 32, "sha1": 40, "sha256": 64}
    if lengths.get(algorithm) != len(digits) or set(digits) - set("0123456789abcdef"):
        raise ValueError(f"digest: expected sha256:, sha1: or md5: and the digits in lower case; received {digest!r}")


def _by_hand(files: Sequence[RemoteFile], folder: Path, said: Sequence[str]) -> DownloadError:
    lines = [f"{len(files)} file(s) could not be had. Fetch them by hand, each from any of its places, and put them"]
    lines.append(f"into {folder.absolute()}")
    for file in files:
        path = folder / file.name
        lines.append(f"  {file.name}" + (" (the one that is there has another content)" if path.is_file() else ""))
        for mirror in file.mirrors:
            size = "" if mirror.size is None else f"  {mirror.size} bytes"
            lines.append(f"    {mirror.url}{size}  {mirror.digest}")
    lines.append("What went wrong:")
    lines.extend(f"  {line}" for line in said)
    return DownloadError("\n".join(lines))
