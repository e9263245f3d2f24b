"""A checkpoint is a directory that is either whole and verified, or not there."""

import hashlib
import json
import math
import os
from pathlib import Path
import platform
import re
import shutil
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Union
from uuid import uuid4
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

    def __repr__(self) -> str:
        """Step, epoch, scores and path: the manifest holds the whole history of a run."""
        run = self.manifest.get("run") or {}
        told = [f"step={self.step}"]
        if isinstance(run.get("epoch"), int):
            inside = bool((run.get("running") or {}).get("updates"))
            told.append(f"epoch={run['epoch'] - (not inside)}")
        last = (run.get("history") or [{}])[-1]
        scores = {name: value for name, value in last.items() if name.startswith(("train_", "valid_"))}
        told += [f"{name}={value:.6g}" for name, value in scores.items() if isinstance(value, float)]
        return f"Checkpoint({', '.join([*told, f'path={str(self.path)!r}'])})"


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
    aside = directory / f"{_WRITING}{uuid4().hex}"
    aside.mkdir()
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
        # `checkpoint_paths` finds it under this name, should the process end between the two renames
        replaced = directory / f"{_REPLACED}{place.name}"
        if place.exists():
            _remove(replaced)
            place.rename(replaced)
        aside.rename(place)
        flush_directory(directory)
        _remove(replaced)
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
    if is_checkpoint(directory):
        return verify(directory)
    paths = checkpoint_paths(directory)
    if which == "best":
        paths = [found.path for found in ranked(manifests(directory))]
    problem = "expected folders named step-00000000"
    problem += " with a score, which those have that Checkpoints(keep_best=...) wrote" if which == "best" else ""
    for path in paths:
        try:
            return verify(path)
        except CheckpointError as error:
            problem = str(error)
            warnings.warn(f"skipped a broken checkpoint: {error}", CheckpointWarning, stacklevel=2)
    raise CheckpointError(f"no whole checkpoint in {directory}: {problem}")


def is_checkpoint(path: Path) -> bool:
    """Whether a path is named like one checkpoint, not like the directory of a run."""
    return _STEP.fullmatch(path.name) is not None


def ranked(checkpoints: Iterable[Checkpoint]) -> List[Checkpoint]:
    """Those with a score of the newest one's kind, the best first; of equal ones the earlier. NaN is no score."""
    scored = [(found, found.score) for found in checkpoints if found.score and not math.isnan(found.score["value"])]
    if not scored:
        return []
    newest = max(scored, key=lambda one: one[0].step)[1]
    sign = 1 if newest["mode"] == "min" else -1
    alike = [one for one in scored if all(one[1].get(name) == newest.get(name) for name in ("column", "mode"))]
    return [found for found, score in sorted(alike, key=lambda one: (sign * one[1]["value"], one[0].step))]


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
    folder = _STEP.fullmatch(path.name)
    if not problem and folder and int(folder[1]) != manifest["step"]:
        problem = f"it is of step {manifest['step']}, and its folder was renamed"
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
    for name in ("run", "optimizer"):
        if not isinstance(manifest.get(name, {}), dict):
            return f"its {name} is {manifest[name]!r:.100}"
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
        try:
            size = file.stat().st_size
            received = {"size": size} if size != expected["size"] else _fingerprint(file)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        if received != expected:
            raise CheckpointError(f"{file} is damaged: expected {expected}, received {received}")
    return found


def prune(directory: Union[str, Path], keep: Set[int], before: int) -> List[int]:
    """Remove older checkpoints; broken ones are left, because nobody knows what they hold.

    Args:
        directory: Holds the checkpoints of one run.
        keep: Steps that stay.
        before: A step that stays too, as all later ones do.

    Returns:
        Steps that were removed.
    """
    removed = []
    for old in manifests(directory):
        if old.step < before and old.step not in keep:
            pruned = old.path.with_name(f"{_PRUNED}{old.path.name}")
            _remove(pruned)
            old.path.rename(pruned)  # at once, so that no half of one is ever found
            _remove(pruned)
            removed.append(old.step)
    return removed


def prepare(directory: Path) -> None:
    """Make a directory that can be written, and remove what killed processes left in it of writing and pruning.

    Call it only where nobody else is writing.

    Raises:
        OSError: It is not there and cannot be made, or nothing can be written into it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for prefix in (_WRITING, _PRUNED):
            for path in directory.glob(f"{prefix}*"):
                _remove(path)
        for path in directory.glob(f"{_REPLACED}step-*"):
            if path.with_name(path.name[len(_REPLACED) :]).exists():
                _remove(path)
        probe = directory / f"{_WRITING}{uuid4().hex}"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        text = f"checkpoints cannot be written into {directory}: {error}. Pass a directory that can be written"
        raise OSError(error.errno, text) from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():  # anything else is none of ours
        shutil.rmtree(str(path))


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
