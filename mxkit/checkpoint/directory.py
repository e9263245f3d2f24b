"""A checkpoint is a directory that is either whole and verified, or not there."""

import hashlib
import json
import os
from pathlib import Path
import platform
import re
import shutil
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Union
import warnings

from mxkit.blocks import parameters_by_path
from mxkit.device import DeviceSpec
from mxkit.device import devices as resolve_devices
from mxkit.errors import CheckpointError, NotInitializedError, nearest
from mxkit.files import flush_directory, write_atomically
from mxkit.version import __version__
import mxnet as mx
import numpy as np

FORMAT = 1
PARAMETERS = "net.params"
MANIFEST = "run.json"
_STEP = re.compile(r"step-(\d{8,})")


class Checkpoint(NamedTuple):
    """A verified checkpoint.

    Attributes:
        path: Its directory.
        step: Updates done when it was written.
        manifest: Contents of its `run.json`.
    """

    path: Path
    step: int
    manifest: Dict[str, Any]


def save_checkpoint(
    directory: Union[str, Path], net: Any, *, step: int, state: Optional[Mapping[str, Any]] = None
) -> Path:
    """Write `directory/step-00001204/`, whole or not at all.

    Args:
        directory: Holds the checkpoints of one run; it is created with its parents.
        net: Its parameters are written to `net.params`, a plain Gluon file that `net.load_parameters`
            reads. Of several devices the first one's values are taken: Gluon's own mean over replicas
            rounds (T59).
        step: Updates done, at least 0.
        state: What else belongs to the run, for `run.json`: plain JSON values.

    Returns:
        The checkpoint's path. One of the same step is replaced.

    Raises:
        NotInitializedError: A parameter has no value yet.
        OSError: The disk is full or may not be written; earlier checkpoints are untouched.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {path: _first_replica(path, parameter) for path, parameter in parameters_by_path(net).items()}
    aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=str(directory)))
    try:
        parameters = aside / PARAMETERS
        _write_arrays(parameters, arrays)
        manifest = {
            "format": FORMAT,
            "step": step,
            "versions": {
                "mxkit": __version__,
                "mxnet": mx.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "state": dict(state or {}),
            "files": {PARAMETERS: _fingerprint(parameters)},
        }
        write_atomically(aside / MANIFEST, json.dumps(manifest, indent=1).encode())
        _verify(aside)
        place = directory / f"step-{step:08d}"
        if place.exists():
            replaced = aside.with_name(f"{aside.name}-replaced")
            place.rename(replaced)
            aside.rename(place)
            shutil.rmtree(replaced)
        else:
            aside.rename(place)
        flush_directory(directory)
    finally:
        if aside.exists():
            shutil.rmtree(aside)
    return place


def load_checkpoint(directory: Union[str, Path], net: Any, *, devices: Optional[DeviceSpec] = None) -> Checkpoint:
    """Put the values of a verified checkpoint into `net`.

    Args:
        directory: A checkpoint (`.../step-00001204`), or the directory that holds a run's checkpoints, of
            which the newest whole one is taken.
        net: A block with the same parameters by path, shape and dtype; it may be uninitialized.
        devices: Where an uninitialized net goes; None is the CPU. An initialized one stays where it is.

    Returns:
        The checkpoint that was read.

    Raises:
        CheckpointError: There is no whole checkpoint, or it does not fit the net. All names and shapes are
            compared first: the net is loaded whole or left as it was (T51).

    Side effects:
        The net's parameters, on all its devices.
    """
    found = find_checkpoint(directory)
    arrays = mx.nd.load(str(found.path / PARAMETERS))
    parameters = parameters_by_path(net)
    problems = _differences(parameters, arrays)
    if problems:
        raise CheckpointError(
            f"checkpoint {found.path} does not fit the net, which is left as it was:\n  " + "\n  ".join(problems)
        )
    where = resolve_devices("cpu" if devices is None else devices)
    for path, parameter in parameters.items():
        initialized = parameter._data is not None or bool(parameter._deferred_init)
        parameter._load_init(arrays[path], parameter.list_ctx() if initialized else where)
    return found


def find_checkpoint(directory: Union[str, Path]) -> Checkpoint:
    """Find the newest checkpoint that verifies; a broken one is skipped with a warning.

    Args:
        directory: As for `load_checkpoint`.

    Raises:
        CheckpointError: There is none.
    """
    directory = Path(directory)
    if _STEP.fullmatch(directory.name):
        return _verify(directory)
    for path in checkpoint_paths(directory):
        try:
            return _verify(path)
        except CheckpointError as error:
            warnings.warn(f"skipped a broken checkpoint: {error}", stacklevel=2)
    raise CheckpointError(f"no whole checkpoint in {directory}: expected folders named step-00000000")


def checkpoint_paths(directory: Union[str, Path]) -> List[Path]:
    """Folders of a run's checkpoints, the newest first, unverified."""
    directory = Path(directory)
    found = [
        (int(match[1]), path) for path in directory.glob("step-*") for match in [_STEP.fullmatch(path.name)] if match
    ]
    return [path for _, path in sorted(found, reverse=True)]


def _write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays and flush them to disk; what was written is read back.

    `nd.save` flushes nothing and says nothing when the disk is full for the last 4 KiB (T59).
    """
    try:
        mx.nd.save(str(file), dict(arrays))
        with file.open("rb") as written:
            os.fsync(written.fileno())
        names = set(mx.nd.load(str(file)))
    except mx.MXNetError as error:
        raise OSError(f"{file} could not be written whole; is the disk full? {error}") from error
    if names != set(arrays):
        raise OSError(
            f"{file} could not be written whole: expected {len(arrays)} arrays, {len(names)} can be read back"
        )


def _first_replica(path: str, parameter: Any) -> Any:
    if parameter._data is None:
        raise NotInitializedError(
            f"save_checkpoint: parameter {path!r} has no value yet. Initialize the net and run it once on a batch"
        )
    return parameter.list_data()[0].as_in_context(mx.cpu())


def _fingerprint(path: Path) -> Dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return {"size": path.stat().st_size, "sha256": digest.hexdigest()}


def _verify(path: Path) -> Checkpoint:
    """Check format, sizes and hashes before MXNet reads a byte: one wrong byte can cost it 12 GB (T58)."""
    manifest_path = path / MANIFEST
    try:
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{manifest_path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise CheckpointError(f"{manifest_path} is no manifest of a checkpoint")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {manifest.get('format')!r}; this mxkit {__version__} reads {FORMAT}. Use a newer mxkit"
        )
    if set(manifest["files"]) != {PARAMETERS} or not isinstance(manifest.get("step"), int):
        raise CheckpointError(f"{manifest_path} names other files than {PARAMETERS}: {sorted(manifest['files'])}")
    expected, file = manifest["files"][PARAMETERS], path / PARAMETERS
    if not file.is_file():
        raise CheckpointError(f"{file} is missing")
    received = _fingerprint(file)
    if received != expected:
        raise CheckpointError(f"{file} is damaged: expected {expected}, received {received}")
    return Checkpoint(path, manifest["step"], manifest)


def _differences(parameters: Mapping[str, Any], arrays: Mapping[str, Any]) -> List[str]:
    problems = [
        f"missing in the checkpoint: {path} {parameter.shape} {nearest(path, arrays)}".rstrip()
        for path, parameter in parameters.items()
        if path not in arrays
    ]
    for path, array in arrays.items():
        if path not in parameters:
            problems.append(f"not in the net: {path} {array.shape} {nearest(path, parameters)}".rstrip())
            continue
        parameter = parameters[path]
        shape = parameter.shape or ()
        # a size of 0 or -1 stands for one that the first forward pass would tell
        fits = len(shape) == array.ndim and all(a == b or a <= 0 for a, b in zip(shape, array.shape))
        if not fits:
            problems.append(f"another shape: {path} is {array.shape} in the checkpoint, {shape} in the net")
        elif np.dtype(parameter.dtype) != array.dtype:
            problems.append(
                f"another dtype: {path} is {np.dtype(array.dtype).name} in the checkpoint, "
                f"{np.dtype(parameter.dtype).name} in the net"
            )
    return problems
