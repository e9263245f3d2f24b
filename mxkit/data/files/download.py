"""Files from the network: each one from whichever mirror has it, whole or not at all."""

import hashlib
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from mxkit.core.files import flush_directory
from mxkit.data.files.cache import dataset_folder, locked
from mxkit.errors import DownloadError, MxkitError
from tqdm import tqdm

_CHUNK = 1 << 18


class Mirror(NamedTuple):
    """A place that has a file.

    Attributes:
        url: With http or https.
        digest: `"sha256:..."`, `"sha1:..."` or `"md5:..."` of what this place gives.
        size: In bytes, or None where it is not known.
    """

    url: str
    digest: str
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

    Each mirror is tried `rounds` times. Processes that want the same files take turns, so each is read once.

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
                        _fetch_one(file, folder, progress, timeout, rounds)
        except _NothingWorked as failed:
            rest = [file for file in missing if not is_right(folder / file.name, file)]
            raise _by_hand(rest, folder, failed.args[0]) from None
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
    found = hashlib.new(algorithm)
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            found.update(chunk)
    return f"{algorithm}:{found.hexdigest()}"


class _NothingWorked(MxkitError):
    """What each mirror said."""


class _WrongAnswer(MxkitError):
    """A mirror that gives something else than the file."""


def _fetch_one(file: RemoteFile, folder: Path, progress: bool, timeout: float, rounds: int) -> None:
    said: Dict[str, str] = {}
    for _ in range(rounds):
        for mirror in file.mirrors:
            part = folder / f".{file.name}.{mirror.digest.partition(':')[2][:8]}.part"
            try:
                _go_on(mirror, part, file.name, progress, timeout)
                _check(mirror, part)
            except _network_errors() + (_WrongAnswer,) as error:
                said[mirror.url] = str(error)
                continue
            with part.open("rb") as whole:
                os.fsync(whole.fileno())
            part.replace(folder / file.name)
            flush_directory(folder)
            for other in folder.glob(f".{file.name}.*.part"):
                other.unlink()
            return
    raise _NothingWorked([f"{url}: {text}" for url, text in said.items()])


def _go_on(mirror: Mirror, part: Path, name: str, progress: bool, timeout: float) -> None:
    """Read what a part does not have yet, in as many requests as bring something."""
    while True:
        have = part.stat().st_size if part.exists() else 0
        if have and have == mirror.size:
            return
        try:
            _read(mirror, part, have, name, progress, timeout)
        except _network_errors():
            # a connection that broke off but brought something is taken up where it broke
            if not (part.exists() and part.stat().st_size > have):
                raise
            continue
        now = part.stat().st_size
        if mirror.size is None or now >= mirror.size or now <= have:
            return


def _read(mirror: Mirror, part: Path, have: int, name: str, progress: bool, timeout: float) -> None:
    import requests  # 0.1 s that only a download needs

    # no compression on the way: sizes and ranges count the bytes of the file itself
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with requests.get(mirror.url, headers=headers, stream=True, timeout=timeout) as answer:
        if answer.status_code == 416:
            if digest_of(part, mirror.digest) == mirror.digest:
                return
            part.unlink()
            raise _WrongAnswer(f"has no more than {have} bytes, which are not the whole file")
        answer.raise_for_status()
        start = _start(answer, have)
        length = answer.headers.get("Content-Length", "")
        if mirror.size is not None and length.isdigit() and start + int(length) != mirror.size:
            raise _WrongAnswer(f"offers {start + int(length)} bytes{_kind(answer)}, expected {mirror.size}")
        total = mirror.size or (start + int(length) if length.isdigit() else None)
        with part.open("ab") as file, tqdm(
            total=total, initial=start, desc=name, unit="B", unit_scale=True, disable=None if progress else True
        ) as bar:
            file.seek(file.truncate(start))
            # undecoded: servers say of .gz files that they are a page in gzip, and requests would unpack them
            for chunk in answer.raw.stream(_CHUNK, decode_content=False):
                if mirror.size is not None and file.tell() + len(chunk) > mirror.size:
                    file.truncate(0)
                    raise _WrongAnswer(f"gives more than the expected {mirror.size} bytes{_kind(answer)}")
                file.write(chunk)
                bar.update(len(chunk))


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


def _check(mirror: Mirror, part: Path) -> None:
    size = part.stat().st_size
    if mirror.size is not None and size < mirror.size:
        raise _WrongAnswer(f"broke off after {size} of {mirror.size} bytes")
    found = digest_of(part, mirror.digest)
    if found != mirror.digest:
        part.unlink()
        raise _WrongAnswer(f"gave {size} bytes with the wrong content: expected {mirror.digest}, received {found}")


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
