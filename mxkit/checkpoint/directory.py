"""A checkpoint is a directory that is either whole and verified, or not there."""

import hashlib
import json
import os
from pathlib import Path
import platform
import re
import shutil
import tempfile
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple, Union
import warnings

from mxkit.checkpoint.parameter_file import describe_file
from mxkit.errors import CheckpointError, CheckpointWarning
from mxkit.files import flush_directory
from mxkit.version import __version__
import mxnet as mx
import numpy as np

FORMAT = 1
MANIFEST = "run.json"
PARAMETERS, OPTIMIZER, STATE = "net.params", "optimizer.params", "state.params"
FILES = (PARAMETERS, OPTIMIZER, STATE)
WHICH = ("last", "best")

_STEP = re.compile(r"step-(\d{8,})")
_WRITING, _REPLACED, _PRUNED = ".writing-", ".replaced-", ".pruned-"
# run.json begins with the digest of all that follows, so that nothing of it is believed before it is checked.
_HEAD = '{{"sha256": "{}",\n'
_HEAD_PATTERN = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n')


class Checkpoint(NamedTuple):
    """A checkpoint whose manifest was verified.

    Attributes:
        path: Its directory.
        step: Updates done when it was written.
        manifest: Contents of its `run.json`.
    """

    path: Path
    step: int
    manifest: Dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of its files, without `run.json`."""
        return sum(file["size"] for file in self.manifest["files"].values())

    @property
    def score(self) -> Optional[Mapping[str, Any]]:
        """`{"column", "mode", "value"}` of the epoch that it ended, where a best one is kept; else None."""
        found: Optional[Mapping[str, Any]] = self.manifest.get("score")
        return found


def write_checkpoint(
    directory: Union[str, Path], step: int, files: Mapping[str, Mapping[str, Any]], content: Mapping[str, Any]
) -> Path:
    """Write `directory/step-00001204/`, whole or not at all.

    ```
    .writing-xxxx/        net.params, optimizer.params, state.params: written, flushed, walked, hashed
    .writing-xxxx/        run.json with their sizes and hashes: written, flushed
    step-00001204/        by a rename; the directory is flushed
    ```

    Args:
        directory: Holds the checkpoints of one run; it is created with its parents.
        step: Updates done, at least 0.
        files: Arrays by name for each of `FILES`; a file without arrays is not written.
        content: The rest of `run.json`: plain JSON values.

    Returns:
        The checkpoint's path. One of the same step is replaced.

    Raises:
        OSError: The disk is full or may not be written; earlier checkpoints are untouched.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=_WRITING, dir=str(directory)))
    try:
        fingerprints = {}
        for name, arrays in files.items():
            if arrays:
                _write_arrays(aside / name, arrays)
                fingerprints[name] = _fingerprint(aside / name)
        manifest = {"format": FORMAT, "step": step, "versions": versions(), **content, "files": fingerprints}
        rest = json.dumps(manifest, indent=1)[1:]
        _write(aside / MANIFEST, (_HEAD.format(hashlib.sha256(rest.encode()).hexdigest()) + rest).encode())
        flush_directory(aside)
        place = directory / f"step-{step:08d}"
        if place.exists():
            # `checkpoint_paths` finds it under this name, should the process end between the two renames
            replaced = directory / f"{_REPLACED}{place.name}"
            _remove(replaced)
            place.rename(replaced)
            aside.rename(place)
            flush_directory(directory)
            _remove(replaced)
        else:
            aside.rename(place)
            flush_directory(directory)
    finally:
        _remove(aside)
    return place


def versions() -> Dict[str, str]:
    """What wrote a checkpoint."""
    return {
        "mxkit": __version__,
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def find_checkpoint(directory: Union[str, Path], which: str = "last") -> Checkpoint:
    """Find a checkpoint that verifies; a broken one is skipped with a warning.

    Args:
        directory: A checkpoint (`.../step-00001204`), or the directory that holds a run's checkpoints.
        which: "last" for the newest, "best" for the one with the best score (see `Checkpoints(keep_best=...)`).

    Raises:
        CheckpointError: There is none.
        ValueError: `which` is neither.
    """
    if which not in WHICH:
        raise ValueError(f"which: expected one of {', '.join(map(repr, WHICH))}; received {which!r}")
    directory = Path(directory)
    if _STEP.fullmatch(directory.name):
        return verify(directory)
    paths = checkpoint_paths(directory)
    if which == "best":
        paths = [found.path for found in ranked(manifests(directory))]
    for path in paths:
        try:
            return verify(path)
        except CheckpointError as error:
            warnings.warn(f"skipped a broken checkpoint: {error}", CheckpointWarning, stacklevel=2)
    scored = " with a score, which those have that Checkpoints(keep_best=...) wrote" if which == "best" else ""
    raise CheckpointError(f"no whole checkpoint in {directory}: expected folders named step-00000000{scored}")


def ranked(checkpoints: Iterable[Checkpoint]) -> List[Checkpoint]:
    """Those that have a score, the best first; of equal ones the earlier."""

    def key(found: Checkpoint) -> Tuple[float, int]:
        score = found.score or {}
        return (score["value"] if score["mode"] == "min" else -score["value"]), found.step

    return sorted((found for found in checkpoints if found.score), key=key)


def checkpoint_paths(directory: Union[str, Path]) -> List[Path]:
    """Folders of a run's checkpoints, the newest first, unverified."""
    directory = Path(directory)
    found = {}
    for prefix in (_REPLACED, ""):  # a replaced one counts only where its successor never came
        for path in directory.glob(f"{prefix}step-*"):
            match = _STEP.fullmatch(path.name[len(prefix) :])
            if match:
                found[int(match[1])] = path
    return [found[step] for step in sorted(found, reverse=True)]


def manifests(directory: Union[str, Path]) -> List[Checkpoint]:
    """Checkpoints whose `run.json` verifies, the newest first; their other files are not looked at."""
    found = []
    for path in checkpoint_paths(directory):
        try:
            found.append(read_manifest(path))
        except CheckpointError:
            continue
    return found


def read_manifest(path: Path) -> Checkpoint:
    """Read and verify `run.json`.

    Raises:
        CheckpointError: It is missing, damaged, or of another format.
    """
    file = path / MANIFEST
    if path.is_symlink() or file.is_symlink():
        raise CheckpointError(f"{file} leads elsewhere: symbolic links are not followed")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    head = _HEAD_PATTERN.match(content)
    if not head:
        raise CheckpointError(f"{file} is no manifest of a checkpoint: it does not begin with its digest")
    if hashlib.sha256(content[head.end() :]).hexdigest().encode() != head[1]:
        raise CheckpointError(f"{file} is damaged: it does not match its digest")
    try:
        manifest = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {manifest.get('format')!r}; this mxkit {__version__} reads {FORMAT}. Use a newer mxkit"
        )
    problem = _form_problem(manifest)
    if problem:
        raise CheckpointError(f"{file} is no manifest of a checkpoint: {problem}")
    return Checkpoint(path, manifest["step"], manifest)


def _form_problem(manifest: Mapping[str, Any]) -> str:
    step, files, score = manifest.get("step"), manifest.get("files"), manifest.get("score")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return f"its step is {step!r}"
    if not isinstance(files, dict) or not set(files) <= set(FILES) or PARAMETERS not in files:
        return f"it names other files than {', '.join(FILES)}: {list(files) if isinstance(files, dict) else files!r}"
    for name, file in files.items():
        if not isinstance(file, dict) or not isinstance(file.get("size"), int):
            return f"it does not tell the size of {name}"
    if score is not None and not (
        isinstance(score, dict) and score.get("mode") in ("min", "max") and isinstance(score.get("value"), (int, float))
    ):
        return f"its score is {score!r}"
    return ""


def verify(path: Path) -> Checkpoint:
    """Check sizes and hashes before MXNet reads a byte: one wrong byte can cost it 12 GB (T58).

    Raises:
        CheckpointError: Something is missing, damaged or of another format.
    """
    found = read_manifest(path)
    for name, expected in found.manifest["files"].items():
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file} {'leads elsewhere' if file.is_symlink() else 'is missing'}")
        size = file.stat().st_size
        received = {"size": size} if size != expected["size"] else _fingerprint(file)
        if received != expected:
            raise CheckpointError(f"{file} is damaged: expected {expected}, received {received}")
    return found


def prune(directory: Union[str, Path], keep: Set[int]) -> List[int]:
    """Remove the checkpoints of all other steps; broken ones are left, because nobody knows what they hold.

    Args:
        directory: Holds the checkpoints of one run.
        keep: Steps that stay. The newest one stays in any case.

    Returns:
        Steps that were removed.
    """
    found = manifests(directory)
    removed = []
    for old in found[1:]:
        if old.step not in keep:
            pruned = old.path.with_name(f"{_PRUNED}{old.path.name}")
            _remove(pruned)
            old.path.rename(pruned)  # at once, so that no half of one is ever found
            _remove(pruned)
            removed.append(old.step)
    return removed


def sweep(directory: Union[str, Path]) -> None:
    """Remove what killed processes left of writing and pruning. Call it only where nobody else is writing."""
    for prefix in (_WRITING, _PRUNED):
        for path in Path(directory).glob(f"{prefix}*"):
            _remove(path)
    for path in Path(directory).glob(f"{_REPLACED}step-*"):
        if path.with_name(path.name[len(_REPLACED) :]).exists():
            _remove(path)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays and flush them to disk; the file is walked to its end.

    `nd.save` flushes nothing and says nothing when the disk is full for the last 4 KiB (T59).
    """
    try:
        mx.nd.save(str(file), dict(arrays))
        with file.open("rb") as written:
            os.fsync(written.fileno())
        names = set(describe_file(file))
    except (mx.MXNetError, CheckpointError) as error:
        raise OSError(f"{file} could not be written whole; is the disk full? {error}") from error
    if names != set(arrays):
        raise OSError(
            f"{file} could not be written whole: expected {len(arrays)} arrays, {len(names)} can be read back"
        )


def _write(file: Path, content: bytes) -> None:
    with file.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def _fingerprint(path: Path) -> Dict[str, Any]:
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
            size += len(block)
    return {"size": size, "sha256": digest.hexdigest()}
