"""Directories of checkpoints; each checkpoint is either complete and verified, or does not exist."""

from contextlib import contextmanager, nullcontext, suppress
import fcntl
import math
import os
from pathlib import Path
import shutil
import socket
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union
from uuid import uuid4
import warnings

from mxkit.core.arguments import length
from mxkit.core.system import flush_directory, write_atomically
from mxkit.errors import CheckpointError, CheckpointWarning
from mxkit.storage.manifest import FORMAT, MANIFEST, STEP, fingerprint, read_manifest, sealed_manifest, verify
from mxkit.storage.manifest import PARAMETERS as PARAMETERS
from mxkit.storage.manifest import Checkpoint as Checkpoint
from mxkit.storage.manifest import is_checkpoint as is_checkpoint
from mxkit.storage.manifest import versions as versions
from mxkit.storage.parameter_file import save_arrays
from mxkit.storage.params_format import describe_file
import mxnet as mx

WHICH = ("last", "best")

_WRITING, _REPLACED, _PRUNED = ".writing-", ".replaced-", ".pruned-"
# In a folder of checkpoints or of a run while a process writes there: the name of the process.
_WRITER = ".writer"
# Open locks of this process.
_LOCKS: Set[int] = set()


def write_checkpoint(
    directory: Union[str, Path], step: int, files: Mapping[str, Mapping[str, Any]], content: Mapping[str, Any]
) -> Path:
    """Write `directory/step-00001204/`, completely or not at all.

    ```
    .writing-xxxx/        net.params, optimizer.params, state.params: written, flushed, read back, hashed
    .writing-xxxx/        run.json with their sizes and hashes: written, flushed
    step-00001204/        by a rename; the directory is flushed
    ```

    Args:
        directory: Holds the checkpoints of one run; it is created with its parents.
        step: Updates done, at least 0.
        files: Arrays by name for each of `FILES`; a file without arrays is not written.
        content: The rest of `run.json`: plain JSON values.

    Returns:
        The checkpoint's path. A checkpoint of the same step is replaced.

    Raises:
        OSError: The disk is full or cannot be written; earlier checkpoints do not change.
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
        write_atomically(aside / MANIFEST, sealed_manifest(manifest))  # flushes the directory too
        place = directory / f"step-{step:08d}"
        # `checkpoint_paths` reads this name if the process ends between the two renames
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
    """Find a checkpoint that verifies, and warn of each broken one that is skipped.

    Args:
        directory: A checkpoint (`.../step-00001204`), or the directory that holds a run's checkpoints.
        which: "last" for the newest, "best" for the one with the best score (see `Checkpoints(keep_best=...)`).

    Raises:
        CheckpointError: There is no checkpoint; or the best one is broken or was removed. Another one never
            replaces the best.
        ValueError: `which` is something else.
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
    readable = manifests(directory)
    scored = ranked(readable)
    if not scored:
        raise CheckpointError(
            f"no whole checkpoint in {directory}: expected folders named step-00000000 with a score, as "
            "Checkpoints(keep_best=...) writes them"
        )
    problem = _better_epoch(readable[0], scored)
    try:
        if not problem:
            return verify(scored[0].path)
    except CheckpointError as error:
        problem = f"the best checkpoint is broken: {error}"
    lines = [f"{found.path.name} ({found.score['column']} {found.score['value']:.6g})" for found in scored]
    raise CheckpointError(
        f"{directory}: {problem}. With a score there are {', '.join(lines)}. Take the newest by which='last', or one "
        "of these by its own path"
    )


def _better_epoch(newest: Checkpoint, scored: Sequence[Checkpoint]) -> str:
    """Name an epoch of the newest checkpoint's history that was better than all scored checkpoints, if any."""
    best = scored[0].score
    column, sign = best["column"], 1 if best["mode"] == "min" else -1
    history = newest.run.get("history") or []
    rows = [row for row in history if isinstance(row, dict) and isinstance(row.get(column), (int, float))]
    values = {row.get("updates"): row[column] for row in rows}
    if any(values.get(found.step, found.score["value"]) != found.score["value"] for found in scored):
        return ""  # a callback changed the compared values
    better = [row for row in rows if sign * row[column] < sign * best["value"]]
    if not better:
        return ""
    row = min(better, key=lambda row: sign * row[column])
    return (
        f"the best checkpoint is gone: {column} was {row[column]:.6g} after epoch {row.get('epoch')}, update "
        f"{row.get('updates')}, and no checkpoint of this epoch is left"
    )


def kept(
    found: Sequence[Checkpoint], *, keep_last: int, keep_best: bool, keep_every: Optional[Tuple[float, str]] = None
) -> Dict[int, str]:
    """Steps of the checkpoints that stay, and the reason: "newest", "best" or "keep_every".

    Args:
        found: Checkpoints, the newest first.
        keep_last: Number of the newest ones that stay.
        keep_best: Whether the one with the best score stays.
        keep_every: `(10.0, "epoch")` or `(1000.0, "update")`: the first one of each such period stays.
    """
    keep: Dict[int, str] = {}
    if keep_every is not None:
        count, unit = keep_every
        periods: Dict[int, int] = {}
        for checkpoint in found:  # the newest first, so that the oldest of a period stays
            done = checkpoint.step if unit == "update" else checkpoint.run.get("epoch", 1) - 1
            periods[int(done // count)] = checkpoint.step
        keep.update({step: "keep_every" for period, step in periods.items() if period})
    keep.update({checkpoint.step: "newest" for checkpoint in found[:keep_last]})
    if keep_best:
        keep.update({checkpoint.step: "best" for checkpoint in ranked(found)[:1]})
    return keep


def ranked(checkpoints: Iterable[Checkpoint]) -> List[Checkpoint]:
    """Sort by score, the best and then the earliest first; only scores of the newest one's column and mode, not NaN."""
    scored = [found for found in checkpoints if found.score and not math.isnan(found.score["value"])]
    if not scored:
        return []
    kind = max(scored, key=lambda found: found.step).score
    sign = 1 if kind["mode"] == "min" else -1
    alike = [found for found in scored if all(found.score.get(name) == kind.get(name) for name in ("column", "mode"))]
    return sorted(alike, key=lambda found: (sign * found.score["value"], found.step))


def checkpoint_paths(directory: Union[str, Path]) -> List[Path]:
    """Folders of a run's checkpoints, the newest first, unverified."""
    directory = Path(directory)
    paths = {}
    for prefix in (_REPLACED, ""):  # a replaced one counts only if its successor is missing
        for path in directory.glob(f"{prefix}step-*"):
            match = STEP.fullmatch(path.name[len(prefix) :])
            if match:
                paths[int(match[1])] = path
    return [paths[step] for step in sorted(paths, reverse=True)]


def manifests(directory: Union[str, Path]) -> List[Checkpoint]:
    """Checkpoints with a valid `run.json`, the newest first; their other files are not checked."""
    found = []
    for path in checkpoint_paths(directory):
        with suppress(CheckpointError):
            found.append(read_manifest(path))
    return found


def prune(directory: Union[str, Path], keep: Set[int], before: int) -> List[int]:
    """Remove older checkpoints. Broken ones stay, because their content is unknown.

    Args:
        directory: Holds the checkpoints of one run.
        keep: Steps that stay.
        before: This step and all later ones stay too.

    Returns:
        The removed steps.
    """
    old = [found for found in manifests(directory) if found.step < before and found.step not in keep]
    for found in old:
        remove(found.path)
    return [found.step for found in old]


def remove(path: Path) -> None:
    """Remove one checkpoint by a rename first, so that a part of it never counts as a checkpoint."""
    pruned = path.with_name(f"{_PRUNED}{path.name}")
    _remove(pruned)
    path.rename(pruned)
    _remove(pruned)


def interval(text: Any, name: str, units: Sequence[str]) -> Tuple[float, str]:
    """Read "10 epochs", "50 updates" or "5 minutes".

    Raises:
        ValueError: The text has another form.

    >>> interval("50 updates", "every", ("epoch", "update"))
    (50, 'update')
    """
    number, unit = length(text, f"Checkpoints: {name}", [f"{unit}s" for unit in units])
    return number, unit[:-1]


def prepare(directory: Path) -> None:
    """Make a directory, check that it can be written, and remove leftovers of killed processes.

    No other process may write into the directory meanwhile.

    Raises:
        OSError: The directory cannot be made or written.
    """
    with _unwritable_explained(directory):
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


@contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder, which is made; also those of other machines that share it.

    The lock is the kernel's, which releases it when the process ends, also after SIGKILL.

    Raises:
        CheckpointError: Another process writes into the folder.
        OSError: The folder cannot be made or written.
    """
    is_new = not directory.exists()
    with _unwritable_explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
        folder = os.open(str(directory), os.O_RDONLY)  # stays the same folder if it is renamed meanwhile
    try:
        with _unwritable_explained(directory):
            lock = _locked(folder, directory)
        _LOCKS.add(lock)
        try:
            os.ftruncate(lock, 0)
            os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
            yield
        finally:
            if lock in _LOCKS:  # not in a forked child
                _LOCKS.remove(lock)
                with suppress(OSError):  # the folder was removed
                    os.unlink(_WRITER, dir_fd=folder)
                os.close(lock)
    finally:
        os.close(folder)
        if is_new:
            with suppress(OSError):  # nothing was written
                directory.rmdir()


def sole_writer(directory: Path) -> ContextManager[None]:
    """`only_writer`, unless this process keeps others out already, as `fit` and `run_recipe` do."""
    with suppress(FileNotFoundError):
        lock = (directory / _WRITER).stat()
        if any(os.path.samestat(lock, os.fstat(own)) for own in _LOCKS):
            return nullcontext()
    return only_writer(directory)


def _locked(folder: int, directory: Path) -> int:
    """Open and lock the file `.writer` of an open folder."""
    while True:
        lock = os.open(_WRITER, os.O_RDWR | os.O_CREAT, 0o666, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(_WRITER, dir_fd=folder)):
                return lock
        except FileNotFoundError:  # the process that wrote here has just ended
            pass
        except BlockingIOError:
            writer = os.pread(lock, 300, 0).decode("utf-8", "replace") or "another process"
            os.close(lock)
            raise CheckpointError(
                f"{writer} writes into {directory}, and two processes would destroy each other's files. Wait for its "
                "end, or use another folder"
            ) from None
        except OSError as error:
            text = f"{directory} is on a file system without locks ({error}): a second process there is not refused"
            warnings.warn(text, CheckpointWarning, stacklevel=4)
            return lock
        os.close(lock)


def _release_in_child() -> None:
    """Close the locks in a forked child: a worker of a DataLoader that outlives its process must not hold them."""
    while _LOCKS:
        os.close(_LOCKS.pop())


os.register_at_fork(after_in_child=_release_in_child)


@contextmanager
def _unwritable_explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"checkpoints cannot be written into {directory}: {error}. Pass a directory that can be written"
        raise OSError(error.errno, text) from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():  # mxkit makes only plain folders
        shutil.rmtree(str(path))


def _write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays, flush them to disk, and read all headers back.

    `nd.save` does not flush, and raises no error if the disk is full for the last 4 KiB (T59).
    """
    try:
        save_arrays(file, arrays)
        with file.open("rb") as written:
            os.fsync(written.fileno())
        names = set(describe_file(file))
    except (mx.MXNetError, CheckpointError) as error:
        raise OSError(f"{file} could not be written whole; is the disk full? {error}") from error
    if names != set(arrays):
        raise OSError(
            f"{file} could not be written whole: expected {len(arrays)} arrays, {len(names)} can be read back"
        )
