"""A checkpoint is a directory that is either whole and verified, or not there."""

import math
import os
from pathlib import Path
import re
import shutil
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union
from uuid import uuid4
import warnings

from mxkit.core.files import flush_directory
from mxkit.core.lengths import length
from mxkit.errors import CheckpointError, CheckpointWarning
from mxkit.storage.manifest import FORMAT, MANIFEST, STEP, fingerprint, read_manifest, sealed_manifest, verify
from mxkit.storage.manifest import PARAMETERS as PARAMETERS
from mxkit.storage.manifest import Checkpoint as Checkpoint
from mxkit.storage.manifest import is_checkpoint as is_checkpoint
from mxkit.storage.manifest import versions as versions
from mxkit.storage.parameter_file import describe_file
import mxnet as mx

WHICH = ("last", "best")

_STEP = re.compile(r"step-(\d{8,})")
_WRITING, _REPLACED, _PRUNED = ".writing-", ".replaced-", ".pruned-"


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
                fingerprints[name] = fingerprint(aside / name)
        manifest = {"format": FORMAT, "step": step, "versions": versions(), **content, "files": fingerprints}
        _write(aside / MANIFEST, sealed_manifest(manifest))
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


def find_checkpoint(directory: Union[str, Path], which: str = "last") -> Checkpoint:
    """Find a checkpoint that verifies; a broken one is skipped with a warning.

    Args:
        directory: A checkpoint (`.../step-00001204`), or the directory that holds a run's checkpoints.
        which: "last" for the newest, "best" for the one with the best score (see `Checkpoints(keep_best=...)`).

    Raises:
        CheckpointError: There is none; or the best one is broken, or was removed: no other stands for it.
        ValueError: `which` is neither.
    """
    if which not in WHICH:
        raise ValueError(f"which: expected one of {', '.join(map(repr, WHICH))}; received {which!r}")
    directory = Path(directory)
    if is_checkpoint(directory):
        return verify(directory)
    if which == "best":
        return _find_best(directory)
    problem = "expected folders named step-00000000"
    for path in checkpoint_paths(directory):
        try:
            return verify(path)
        except CheckpointError as error:
            problem = str(error)
            warnings.warn(f"skipped a broken checkpoint: {error}", CheckpointWarning, stacklevel=2)
    raise CheckpointError(f"no whole checkpoint in {directory}: {problem}")


def _find_best(directory: Path) -> Checkpoint:
    found = manifests(directory)
    scored = ranked(found)
    if not scored:
        raise CheckpointError(
            f"no whole checkpoint in {directory}: expected folders named step-00000000 with a score, which those have "
            "that Checkpoints(keep_best=...) wrote"
        )
    gone = _best_that_is_gone(found, scored)
    try:
        if not gone:
            return verify(scored[0].path)
    except CheckpointError as error:
        gone = f"the best checkpoint is broken: {error}"
    lines = [f"{one.path.name} ({(one.score or {})['column']} {(one.score or {})['value']:.6g})" for one in scored]
    raise CheckpointError(
        f"{directory}: {gone}. With a score there are {', '.join(lines)}. Take the newest by which='last', or one of "
        "these by its own path"
    )


def _best_that_is_gone(found: Sequence[Checkpoint], scored: Sequence[Checkpoint]) -> str:
    """Tell of an epoch whose score was better than those of all checkpoints that are left, by the newest's history."""
    score: Mapping[str, Any] = scored[0].score or {}
    column, sign = score.get("column"), 1 if score["mode"] == "min" else -1
    history = found[0].run.get("history") or []
    rows = [row for row in history if isinstance(row, dict) and isinstance(row.get(column), (int, float))]
    values = {row.get("updates"): row[column] for row in rows}
    if any(values.get(one.step, (one.score or {})["value"]) != (one.score or {})["value"] for one in scored):
        return ""  # a callback changed the values that are compared
    better = [row for row in rows if sign * row[column] < sign * score["value"]]
    if not better:
        return ""
    row = min(better, key=lambda row: sign * row[column])
    return (
        f"the best checkpoint is gone: {column} was {row[column]:.6g} after epoch {row.get('epoch')}, update "
        f"{row.get('updates')}, of which no checkpoint is left"
    )


def kept(
    found: Sequence[Checkpoint], *, keep_last: int, keep_best: bool, keep_every: Optional[Tuple[float, str]] = None
) -> Dict[int, str]:
    """Steps of the checkpoints that stay, and why: "newest", "best" or "keep_every".

    Args:
        found: Checkpoints, the newest first.
        keep_last: How many of the newest stay.
        keep_best: The one with the best score stays.
        keep_every: `(10.0, "epoch")` or `(1000.0, "update")`: the first one of each such stretch stays.
    """
    keep: Dict[int, str] = {}
    if keep_every is not None:
        count, unit = keep_every
        stretches: Dict[int, int] = {}
        for one in found:  # the newest first, so that the oldest of a stretch stays
            done = one.step if unit == "update" else one.run.get("epoch", 1) - 1
            stretches[int(done // count)] = one.step
        keep.update({step: "keep_every" for stretch, step in stretches.items() if stretch})
    keep.update({one.step: "newest" for one in found[:keep_last]})
    if keep_best:
        keep.update({one.step: "best" for one in ranked(found)[:1]})
    return keep


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
            match = STEP.fullmatch(path.name[len(prefix) :])
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
            remove(old.path)
            removed.append(old.step)
    return removed


def remove(path: Path) -> None:
    """Remove one checkpoint, at once: no half of it is ever found."""
    pruned = path.with_name(f"{_PRUNED}{path.name}")
    _remove(pruned)
    path.rename(pruned)
    _remove(pruned)


def interval(text: Any, name: str, units: Sequence[str]) -> Tuple[float, str]:
    """Read "10 epochs", "50 updates" or "5 minutes".

    Raises:
        ValueError: It has another form.

    >>> interval("50 updates", "every", ("epoch", "update"))
    (50, 'update')
    """
    number, unit = length(text, f"Checkpoints: {name}", [f"{one}s" for one in units])
    return number, unit[:-1]


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
