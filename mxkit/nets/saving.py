"""A whole net in one file: its architecture, its parameters, and a digest of each.

The file is a zip without compression:

    manifest.json       format, versions, the kind of arrays if it is mx.np, and size and SHA-256 of the other two
    description.json    the result of `mxkit.nets.describe`
    net.params          a plain Gluon file, which `net.load_parameters` reads

It contains neither code nor pickles, and it is checked before MXNet reads it.
"""

from contextlib import nullcontext
import errno
import hashlib
import io
import json
from pathlib import Path
import shutil
import struct
import tempfile
from typing import Any, Dict, Optional, Tuple, Union
import zipfile

from mxkit.core.arrays import copy_to_cpu, switches
from mxkit.core.blocks import distinct, is_numpy_net, parameters_by_path, wait_before_reading
from mxkit.core.device import DeviceSpec
from mxkit.core.replicas import values_of
from mxkit.core.system import file_digest, write_atomically
from mxkit.errors import CheckpointError, NotInitializedError
from mxkit.nets.architecture import build, describe, differences
from mxkit.storage.directory import versions
from mxkit.storage.loading import match_arrays, put_arrays
from mxkit.storage.parameter_file import parameter_bytes, read_arrays
import mxnet as mx

FORMAT = 1
_MANIFEST, _DESCRIPTION, _PARAMETERS = "manifest.json", "description.json", "net.params"
_MEMBERS = (_MANIFEST, _DESCRIPTION, _PARAMETERS)
_TEXT_BYTES = 2**26
_CHUNK = 2**20
# Errors of zipfile and json for damaged files.
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, EOFError, RecursionError, ValueError, OverflowError, struct.error)
# One date for all files, so that equal nets give equal files.
_DATE = (1980, 1, 1, 0, 0, 0)


def save_net(path: Union[str, Path], net: Any) -> Path:
    """Write the architecture and the parameters of a net into one file, atomically.

    Args:
        path: The file. Missing folders are made, and an existing file is replaced.
        net: A net that `describe` can describe, whose parameters all have values. It may be hybridized, in training,
            and on several devices. The values of the first device are written, because Gluon's own mean over replicas
            rounds (T59).

    Returns:
        The path.

    Raises:
        NotInitializedError: A parameter has no value yet.
        ArchitectureError: The net cannot be described.
        OSError: The file cannot be written; an existing file has not changed.

    >>> net = mxkit.models.mlp(3, hidden=[4]); mxkit.initialize(net); x = mx.nd.ones((2, 5)); y = net(x)
    >>> path = save_net(getfixture("tmp_path") / "mlp.mxk", net)
    >>> bool((load_net(path)(x) == y).asnumpy().all())
    True
    """
    path = Path(path)
    wait_before_reading()
    arrays = values_by_path(net, "save_net")
    members = {_DESCRIPTION: json.dumps(describe(net), indent=1).encode(), _PARAMETERS: parameter_bytes(arrays)}
    manifest = {
        "format": FORMAT,
        "versions": versions(),
        **({"arrays": "np"} if is_numpy_net(net) else {}),
        "files": {name: _signature(content) for name, content in members.items()},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {_MANIFEST: json.dumps(manifest, indent=1).encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, packed.getvalue())
    return path


def load_net(path: Union[str, Path], net: Any = None, *, devices: Optional[DeviceSpec] = None) -> Any:
    """Read a net that `save_net` wrote.

    Args:
        path: The file.
        net: A net of the same architecture, which gets the values. The architectures are compared, because Gluon loads
            weights into a net with another activation without an error (T56). None builds the net.
        devices: Devices of the parameters; None is the CPU. A `net` with values stays on its devices.

    Returns:
        `net`, or the new net, which is not hybridized. It is a net of `mx.np` if the saved net was one, or under
        `npx.set_np()`.

    Raises:
        CheckpointError: The file is damaged, cut off, of another format, or does not fit `net`, which has not changed.
        ArchitectureError: The description is invalid, or the class of a block of your own is not registered.
        OSError: The file does not exist or cannot be read.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        numpy, description, parameters = _read(path, Path(folder))
        arrays = read_arrays(parameters)
    unlike = [] if net is None else differences(describe(net), description)
    if unlike:
        raise CheckpointError(
            f"{path} holds another architecture than the net (here), which is left as it was:\n  "
            + "\n  ".join(unlike[:20])
        )
    with switches(numpy or mx.util.is_np_array()) if net is None else nullcontext():
        net = build(description) if net is None else net
        put_arrays(net, match_arrays(net, arrays), devices)
    return net


def values_by_path(net: Any, who: str) -> Dict[str, Any]:
    """Return the values of the first device by path, a shared parameter under its first path.

    Args:
        net: Any block.
        who: The caller, for the message.

    Raises:
        NotInitializedError: A parameter has no value.
    """
    arrays: Dict[str, Any] = {}
    for path, parameter in distinct(parameters_by_path(net)).items():
        if values_of(parameter) is None:
            raise NotInitializedError(
                f"{who}: parameter {path!r} {parameter.shape} has no value yet. "
                "Initialize the net and run it once on a batch"
            )
        arrays[path] = copy_to_cpu(parameter.list_data()[0])
    return arrays


def _signature(content: bytes) -> Dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _read(path: Path, folder: Path) -> Tuple[bool, Any, Path]:
    """Return whether the net is of `mx.np`, its description, and the path of a copy of the parameters in `folder`."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is no file: expected one that save_net wrote, received a folder or a device")
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _unpack(archive, path, folder / _PARAMETERS)
        except CheckpointError:
            raise
        except (*_DAMAGE, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of a negative offset
                raise
            raise CheckpointError(f"{path} is damaged, or no file of save_net: {str(error)[:300]}") from error


def _unpack(archive: zipfile.ZipFile, path: Path, target: Path) -> Tuple[bool, Any, Path]:
    """Check members, sizes and digests, and copy the parameters to `target`."""
    infos = archive.infolist()
    names = [info.filename for info in infos]
    # a member whose flag is 1 is encrypted
    packed = any(info.compress_type or info.compress_size != info.file_size or info.flag_bits & 1 for info in infos)
    if tuple(names) != _MEMBERS or packed:
        raise CheckpointError(
            f"{path} is no file of save_net: expected {', '.join(_MEMBERS)}, stored without compression; "
            f"received {', '.join(names)!s:.200}"
        )
    manifest = json.loads(_text(archive, _MANIFEST, path).decode("utf-8"))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: {_MANIFEST}: expected format {FORMAT}; received {manifest!r:.100}")
    description = _text(archive, _DESCRIPTION, path)
    with archive.open(_PARAMETERS) as source, target.open("wb") as copied:
        shutil.copyfileobj(source, copied, _CHUNK)
    stored = {"size": target.stat().st_size, "sha256": file_digest(target)}
    if manifest.get("files") != {_DESCRIPTION: _signature(description), _PARAMETERS: stored}:
        raise CheckpointError(
            f"{path} is damaged: its members do not have the sizes and digests that {_MANIFEST} lists"
        )
    return manifest.get("arrays") == "np", json.loads(description.decode("utf-8")), target


def _text(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    if archive.getinfo(name).file_size > _TEXT_BYTES:
        raise CheckpointError(f"{path} is damaged: expected at most {_TEXT_BYTES} bytes of {name}, received more")
    return archive.read(name)
