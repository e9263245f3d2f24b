"""Files of parameters on the Hugging Face hub: `hf://owner/name[@revision][/file.safetensors]`."""

from importlib import import_module
from pathlib import Path
import re
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote

from mxkit.core.arguments import require
from mxkit.core.system import is_offline
from mxkit.errors import DownloadError

_PREFIX = "hf://"
_FORM = "hf://owner/name[@revision][/file.safetensors]"
# The syntax of huggingface_hub's own HfFileSystem: a `/` of a revision is written %2F, except in refs/pr/1.
_ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/@]+))?(?:/(.+))?")
_ENDING = ".safetensors"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHOWN = 20


class HubFile(NamedTuple):
    """A file of the hub in the cache of huggingface_hub.

    Attributes:
        path: The file.
        address: Its address with the hash of its commit, which always means the same file.
    """

    path: Path
    address: str


class _Parts(NamedTuple):
    repository: str
    revision: Optional[str]
    file: Optional[str]


def is_hub_address(weights: Any) -> bool:
    """Whether a text is meant as an address on the hub.

    >>> is_hub_address("hf://owner/name"), is_hub_address("net.params")
    (True, False)
    """
    return isinstance(weights, str) and weights.startswith(_PREFIX)


def check_hub_address(address: str) -> None:
    """Check the form of an address, without the network.

    Raises:
        ValueError: It has another form, or names a file that is not safetensors.
    """
    _parts(address)


def find_hub_file(address: str) -> HubFile:
    """Find a file of the hub in the cache, or download it with huggingface_hub.

    Args:
        address: `hf://owner/name`, `hf://owner/name@revision` (a branch, a tag or a commit), or either followed by
            `/folder/file.safetensors`, which a repository with several such files needs.

    Raises:
        ValueError: The address has another form, or the repository has no safetensors file, or several.
        FileNotFoundError: There is no such repository, revision or file.
        PermissionError: The repository is gated.
        DownloadError: The hub cannot be reached; or the network is forbidden and the cache lacks the file.
        ImportError: huggingface_hub is not installed.

    Side effects:
        Downloads into huggingface_hub's cache, with its token. Its variables hold: HF_TOKEN, HF_HOME, HF_ENDPOINT,
        HF_HUB_OFFLINE; so does MXKIT_OFFLINE. A commit whose file is in the cache asks no server.
    """
    repository, revision, file = _parts(address)
    hub = require("huggingface_hub", "hub")
    errors, constants = import_module("huggingface_hub.errors"), import_module("huggingface_hub.constants")
    offline = is_offline() or bool(constants.HF_HUB_OFFLINE)
    # httpx's errors are no OSError, those of requests are; the base of both is the parent of the hub's error
    unreachable = (OSError, errors.HfHubHTTPError.__bases__[0])
    try:
        if file is None or not (offline or _COMMIT.fullmatch(revision or "")):
            files = (
                _cached(hub, constants.HF_HUB_CACHE, repository, revision)
                if offline
                else _listed(hub, repository, revision)
            )
            file = _choose(address, file, files)
        found = Path(hub.hf_hub_download(repository, file, revision=revision, local_files_only=offline))
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{address}: the repository is gated: ask for access on its page, and set HF_TOKEN to a token of yours"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{address}: {constants.ENDPOINT} has no repository {repository!r}, or it is private: check the name, "
            "and set HF_TOKEN to a token that may read it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"{address}: the repository has no branch, tag or commit {revision!r}; expected one that its page lists"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _unavailable(address, offline, error, constants) from error
    except errors.EntryNotFoundError as error:
        raise FileNotFoundError(f"{address}: the repository has no file {file!r} in this revision") from error
    except (DownloadError, FileNotFoundError):
        raise
    except unreachable as error:
        raise _unavailable(address, offline, error, constants) from error
    commit = found.parents[str(file).count("/")].name  # .../snapshots/COMMIT/FILE
    return HubFile(found, f"{_PREFIX}{repository}@{commit}/{file}")


def _parts(address: str) -> _Parts:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"expected {_FORM}; received {address!r:.200}")
    repository, revision, file = match.groups()
    if file is not None and not file.endswith(_ENDING):
        raise ValueError(
            f"{address}: expected a file *{_ENDING}, the only kind that is read from the hub, because pickled files "
            f"may run code; received {file!r}"
        )
    return _Parts(repository, unquote(revision) if revision else None, file)


def _listed(hub: Any, repository: str, revision: Optional[str]) -> Sequence[str]:
    """Names of a repository's files on the hub."""
    return [one.rfilename for one in hub.HfApi().model_info(repository, revision=revision).siblings or ()]


def _cached(hub: Any, cache: str, repository: str, revision: Optional[str]) -> Sequence[str]:
    """Names of those files of a repository that the cache has."""
    try:
        repositories = hub.scan_cache_dir().repos
    except hub.CacheNotFound:
        repositories = ()
    wanted: Tuple[str, str] = ("model", repository)
    for one in (one for one in repositories if (one.repo_type, one.repo_id) == wanted):
        for commit in one.revisions:
            if (revision or "main") in (commit.commit_hash, *commit.refs):
                return [file.file_path.relative_to(commit.snapshot_path).as_posix() for file in commit.files]
    raise DownloadError(
        f"{_PREFIX}{repository}: the network is forbidden (HF_HUB_OFFLINE or MXKIT_OFFLINE), and the cache "
        f"{cache} has no revision {revision or 'main'!r} of it: load it once with the network"
    )


def _choose(address: str, file: Optional[str], files: Sequence[str]) -> str:
    usable = sorted(one for one in files if one.endswith(_ENDING))
    if file in usable:
        return str(file)
    if file is not None:
        raise FileNotFoundError(f"{address}: no such file; expected one of {_list(usable)}")
    if not usable:
        raise ValueError(
            f"{address}: expected a file *{_ENDING}, the only kind that is read from the hub, because pickled files "
            f"may run code; received {_list(sorted(files))}"
        )
    if len(usable) > 1:
        raise ValueError(f"{address}: has several files; choose one with {address}/FILE: {_list(usable)}")
    return usable[0]


def _list(names: List[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "no file") + more


def _unavailable(address: str, offline: bool, error: BaseException, constants: Any) -> DownloadError:
    if offline:
        return DownloadError(
            f"{address}: the network is forbidden (HF_HUB_OFFLINE or MXKIT_OFFLINE), and the cache "
            f"{constants.HF_HUB_CACHE} has no such file: load it once with the network"
        )
    return DownloadError(
        f"{address}: cannot be downloaded from {constants.ENDPOINT}: {type(error).__name__}: {str(error)[:300]}. "
        "Try again; HF_HUB_OFFLINE=1 takes what the cache has, HF_ENDPOINT another server"
    )
