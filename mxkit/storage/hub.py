"""Files of parameters on the Hugging Face hub: `hf://owner/name[@revision][/file.safetensors]`."""

from importlib import import_module
from pathlib import Path
import re
from typing import Any, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote

from mxkit.core.arguments import require
from mxkit.core.system import is_offline
from mxkit.errors import DownloadError

# The syntax of huggingface_hub's own HfFileSystem: a `/` of a revision is written %2F, except in refs/pr/1.
_ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/@]+))?(?:/(.+))?")


class HubFile(NamedTuple):
    """A file of the hub in the cache of huggingface_hub.

    Attributes:
        path: The file.
        address: Its address with the hash of its commit, which always means the same file.
    """

    path: Path
    address: str


def is_hub_address(weights: Any) -> bool:
    """Whether a text is meant as an address on the hub.

    >>> is_hub_address("hf://owner/name"), is_hub_address("net.params")
    (True, False)
    """
    return isinstance(weights, str) and weights.startswith("hf://")


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
        DownloadError: There is no such repository, revision or file; the repository is gated; the hub cannot be
            reached; or the network is forbidden and the cache lacks the file.
        ImportError: huggingface_hub is not installed.

    Side effects:
        Downloads into huggingface_hub's cache, with its token. Its variables hold: HF_TOKEN, HF_HOME, HF_ENDPOINT,
        HF_HUB_OFFLINE; so does MXKIT_OFFLINE. A commit whose file is in the cache asks no server.
    """
    repository, revision, file = _parts(address)
    hub = require("huggingface_hub", "hub")
    errors, constants = import_module("huggingface_hub.errors"), import_module("huggingface_hub.constants")
    offline = is_offline() or bool(constants.HF_HUB_OFFLINE)
    try:
        file = file or _only_one(address, _files(hub, repository, revision, offline))
        found = Path(hub.hf_hub_download(repository, file, revision=revision, local_files_only=offline))
    # httpx's errors are no OSError, those of requests are; the base of both is the parent of the hub's error
    except (OSError, errors.HfHubHTTPError.__bases__[0]) as error:
        reason = f"cannot be downloaded from {constants.ENDPOINT}: {type(error).__name__}: {error}"
        if offline:
            reason = (
                f"the cache {constants.HF_HUB_CACHE} lacks it, and HF_HUB_OFFLINE or MXKIT_OFFLINE forbids the network"
            )
        raise DownloadError(f"{address}: {' '.join(reason.split())[:500]}") from error
    commit = found.parents[file.count("/")].name  # .../snapshots/COMMIT/FILE
    return HubFile(found, f"hf://{repository}@{commit}/{file}")


def _parts(address: str) -> Tuple[str, Optional[str], Optional[str]]:
    """Repository, revision and file of an address."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"expected hf://owner/name[@revision][/file.safetensors]; received {address!r:.200}")
    repository, revision, file = match.groups()
    if file is not None:
        _only_one(address, [file])
    return repository, unquote(revision) if revision else None, file


def _files(hub: Any, repository: str, revision: Optional[str], offline: bool) -> Sequence[str]:
    """Names of a repository's files on the hub; offline those that the cache has."""
    if not offline:
        return [one.rfilename for one in hub.HfApi().model_info(repository, revision=revision).siblings or ()]
    folder = Path(hub.snapshot_download(repository, revision=revision, local_files_only=True))
    return [one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()]


def _only_one(address: str, files: Sequence[str]) -> str:
    usable = sorted(one for one in files if one.endswith(".safetensors"))
    if not usable:
        received = ", ".join(sorted(files)[:20])
        raise ValueError(f"{address}: expected a file *.safetensors, as others may run code; received {received}")
    if len(usable) > 1:
        raise ValueError(f"{address}: has several files; choose one with {address}/FILE: {', '.join(usable)}")
    return usable[0]
