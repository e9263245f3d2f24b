"""Weights of nets: from a file, or the published file of a zoo, which is checked by its SHA-1."""

from functools import partial
from importlib import import_module
import os
from pathlib import Path
import shutil
from typing import Any, NamedTuple, Union
import zipfile
import zlib

from mxkit.core.system import file_digest, flush_directory, is_offline, name_aside
from mxkit.data.download import Mirror, NothingWorked, RemoteFile, WrongAnswer, home, homes, locked, read_file
from mxkit.errors import CheckpointError, DownloadError
from mxkit.storage.directory import PARAMETERS, checkpoints_of, find_checkpoint
from mxkit.storage.hub import find_hub_file, is_hub_address
from mxkit.storage.loading import load_parameters

PRETRAINED = "pretrained"
# The modules in which the zoos list the SHA-1 of their files.
_STORES = {"zoo": "mxnet.gluon.model_zoo.model_store", "gluoncv": "gluoncv.model_zoo.model_store"}


class _Published(NamedTuple):
    """The file that a zoo published for a net."""

    net: str
    file: str
    sha1: str
    url: str

    def is_at(self, path: Path) -> bool:
        return path.is_file() and file_digest(path, "sha1") == self.sha1


def load_weights(
    net: Any, name: str, weights: Union[str, Path], *, root: Union[None, str, Path] = None, ctx: Any = None
) -> None:
    """Load weights into a new net: all of them, or none.

    Args:
        net: The net.
        name: As for `get_model`.
        weights: Path of any `.params` or `.safetensors` file, without a checksum; a run's folder, its directory of
            checkpoints or one of them, of which the newest complete one is used; `hf://owner/name`, as for
            `find_hub_file`; or `"pretrained"`: the file that the zoo published, as `find_weights` finds it. A file of
            that name is `"./pretrained"`.
        root: As for `find_weights`.
        ctx: Devices of the net, as for `mxkit.devices`; None is the CPU.

    Raises:
        CheckpointError: The file is damaged, or does not fit the net (the text has the shapes); a folder has no
            complete checkpoint; or the checksum of the published file differs.
        DownloadError, ValueError: As for `find_weights` and `find_hub_file`.
        OSError: The file cannot be read.
    """
    if not isinstance(weights, (str, os.PathLike)) or not str(weights):
        raise TypeError(f"model {name!r}: weights: expected a path or {PRETRAINED!r}; received {weights!r}")
    if is_hub_address(weights):
        path = find_hub_file(str(weights)).path
    else:
        path = find_weights(name, root) if str(weights) == PRETRAINED else Path(weights).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"model {name!r}: weights: there is no file {path.absolute()}. Pass the path of a .params file, or "
            f"{PRETRAINED!r} for the published ones of a zoo's net"
        )
    try:
        if path.is_dir():
            path = find_checkpoint(checkpoints_of(path)).path / PARAMETERS
        load_parameters(net, path, devices=ctx)
    except CheckpointError as error:
        raise CheckpointError(
            f"model {name!r}: {error}\nIf only the number of classes differs, load the weights into a net of their "
            "classes, and give that a new last layer: mxkit.finetune(mxkit.models.get_model(..., classes=..., "
            "weights=...), classes), in a recipe model.classes and model.finetune.classes"
        ) from error


def find_weights(name: str, root: Union[None, str, Path] = None) -> Path:
    """Find the file of weights that a zoo published for a net, in the cache or on the network.

    An existing file with the right SHA-1 is used without the network. A file with another SHA-1 is neither used nor
    replaced nor deleted; MXNet would download five times and overwrite it (T57).

    Args:
        name: `zoo:...` or `gluoncv:...`.
        root: Folder of the file; None is `models/` of every cache folder, `$MXNET_HOME` first.

    Returns:
        Path of the file. Its content has the SHA-1 that the zoo lists.

    Raises:
        ValueError: No weights of this net were published.
        CheckpointError: The file has another SHA-1; the text has its size, and says how to use it.
        DownloadError: The file is missing and cannot be downloaded; the text says what to download by hand, and where
            to put it.

    Side effects:
        Downloads a missing file, unless `MXKIT_OFFLINE` is set: into a temporary file, renamed once its SHA-1 is right.
    """
    published = _published(name)
    caches = dict.fromkeys((home(), *homes()))
    folders = [cache / "models" for cache in caches] if root is None else [Path(root).expanduser()]
    paths = [folder / published.file for folder in folders]
    for path in paths:
        if published.is_at(path):
            return path
    wrong = [path for path in paths if os.path.lexists(path)]
    if wrong:
        raise CheckpointError(_explain(published, wrong[0]))
    if is_offline():
        raise _by_hand(published, folders[0], "MXKIT_OFFLINE forbids the network")
    try:
        folders[0].mkdir(parents=True, exist_ok=True)
        with locked(folders[0]):
            if not published.is_at(paths[0]):  # another process may have downloaded it meanwhile
                archive = RemoteFile(f"{paths[0].stem}.zip", [Mirror(published.url)])
                read_file(archive, folders[0], partial(_unpack, published, paths[0]))
    except (OSError, NothingWorked) as error:
        raise _by_hand(published, folders[0], str(error)) from error
    return paths[0]


def _published(name: str) -> _Published:
    source, _, short = name.lower().rpartition(":")
    store = import_module(_STORES[source]) if source in _STORES else None
    if store is None or short not in store._model_sha1:
        others = sorted(one for one in getattr(store, "_model_sha1", ()) if one.startswith(short[:6]))
        raise ValueError(
            f"model {name!r}: no weights of it were published; pass weights=, the path of a file. There are some of "
            f"{', '.join(others[:8]) or 'no net of such a name'}"
        )
    sha1 = store._model_sha1[short]
    file = f"{short}-{sha1[:8]}"
    repository = os.environ.get("MXNET_GLUON_REPO") or store.apache_repo_url
    url = store._url_format.format(repo_url=repository.rstrip("/") + "/", file_name=file)
    return _Published(name, f"{file}.params", sha1, url)


def _unpack(published: _Published, path: Path, part: Path, mirror: Mirror) -> None:
    """Unpack the weights from a downloaded archive, if they have the listed SHA-1."""
    aside = name_aside(path)
    try:
        with zipfile.ZipFile(str(part)) as archive, archive.open(path.name) as inside, aside.open("wb") as file:
            shutil.copyfileobj(inside, file)
            file.flush()
            os.fsync(file.fileno())
        if not published.is_at(aside):
            raise WrongAnswer(f"gave {aside.stat().st_size} bytes with sha1:{file_digest(aside, 'sha1')}")
        aside.replace(path)
        flush_directory(path.parent)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise WrongAnswer(f"gave a damaged archive, or another one ({type(error).__name__}: {error})") from error
    finally:
        if aside.exists():
            aside.unlink()


def _explain(published: _Published, path: Path) -> str:
    found = "it is a folder, or a broken link"
    if path.is_file():
        sha1 = file_digest(path, "sha1")
        found = f"expected SHA-1 {published.sha1[:8]}..., found {sha1[:8]}... of {path.stat().st_size} bytes"
    return (
        f"weights of {published.net!r}: {path} is not the published file, and was left as it is\n  {found}\n  "
        f"to use it anyway: get_model({published.net!r}, weights={str(path)!r})\n  "
        f"to get the published file: move this one away and call again, or unpack {published.url} there"
    )


def _by_hand(published: _Published, folder: Path, why: str) -> DownloadError:
    return DownloadError(
        f"weights of {published.net!r} are missing and cannot be downloaded: {why}\n  "
        f"expected: {published.file} in {folder.absolute()}, SHA-1 {published.sha1}\n  "
        f"by hand: download {published.url}, unpack it, and put the file there\n  "
        "or pass a file that you have, without a checksum: weights='its path'"
    )
