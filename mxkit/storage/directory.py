"""Directories of checkpoints: each is either complete and verified, or does not exist.

`run.json`, the manifest of a checkpoint, has the format, the counters, and size and SHA-256 of every other file. One
process writes into a directory at a time, and one thread of it.
"""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
import fcntl
import hashlib
import json
import math
import os
from pathlib import Path
import platform
import re
import shutil
import socket
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union
from uuid import uuid4
import warnings

from mxkit.core.arguments import length
from mxkit.core.system import file_digest, flush_directory, write_atomically
from mxkit.errors import CheckpointError, CheckpointWarning
from mxkit.storage.parameter_file import save_arrays
from mxkit.storage.params_format import describe_file
from mxkit.version import __version__
import mxnet as mx
import numpy as np
import yaml

FORMAT = 1
MANIFEST = "run.json"
PARAMETERS, OPTIMIZER, STATE = "net.params", "optimizer.params", "state.params"
FILES = (PARAMETERS, OPTIMIZER, STATE)
STEP = re.compile(r"step-(\d{8,})")
# run.json begins with the digest of its rest, so that it is checked before it is parsed.
_HEAD = '{{"sha256": "{}",\n'
_HEAD_PATTERN = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n')


class Checkpoint(NamedTuple):
    """A checkpoint with a verified manifest.

    Attributes:
        path: Its directory.
        step: Updates done when it was written.
        manifest: Contents of its `run.json`.
    """

    path: Path
    step: int
    manifest: Dict[str, Any]

    @property
    def score(self) -> Mapping[str, Any]:
        """`{"column", "mode", "value"}` of the epoch that it ended; empty without `keep_best`."""
        return dict(self.manifest.get("score") or {})

    @property
    def run(self) -> Mapping[str, Any]:
        """State of the `fit` that wrote it; empty if `fit` did not."""
        return dict(self.manifest.get("run") or {})

    @property
    def epoch(self) -> Optional[int]:
        """The epoch in which or after which `fit` wrote it, from 1; None if `fit` did not."""
        number = self.run.get("epoch")
        return number - (not (self.run.get("running") or {}).get("updates")) if isinstance(number, int) else None

    @property
    def scores(self) -> Dict[str, float]:
        """Losses and metrics of these weights: those of the epoch that it ended, else its score or nothing."""
        last = (self.run.get("history") or [{}])[-1]
        if last.get("updates") != self.step:  # the row is of an earlier epoch
            return {self.score["column"]: self.score["value"]} if self.score else {}
        names = [name for name in last if name.startswith(("train_", "valid_"))]
        return {name: last[name] for name in names if isinstance(last[name], float)}

    def __repr__(self) -> str:
        """Step, epoch, scores and path: the manifest holds the whole history of a run."""
        epoch = [] if self.epoch is None else [f"epoch={self.epoch}"]
        scores = [f"{name}={value:.6g}" for name, value in self.scores.items()]
        return f"Checkpoint({', '.join([f'step={self.step}', *epoch, *scores, f'path={str(self.path)!r}'])})"


def versions() -> Dict[str, str]:
    """Versions of mxkit, MXNet, NumPy and Python, for a checkpoint."""
    libraries = {"mxkit": __version__, "mxnet": mx.__version__, "numpy": np.__version__}
    return {**libraries, "python": platform.python_version()}


def is_checkpoint(path: Path) -> bool:
    """Whether a path has the name of one checkpoint, not of a run's directory."""
    return STEP.fullmatch(path.name) is not None


def sealed_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Content of `run.json`; it begins with the digest of its rest."""
    rest = json.dumps(manifest, indent=1)[1:]
    return (_HEAD.format(hashlib.sha256(rest.encode()).hexdigest()) + rest).encode()


def read_manifest(path: Path) -> Checkpoint:
    """Read and verify `run.json`.

    Raises:
        CheckpointError: The file is missing, damaged, or of another format.
    """
    file = path / MANIFEST
    _refuse_links(path, file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    head = _HEAD_PATTERN.match(content)
    if not head or hashlib.sha256(content[head.end() :]).hexdigest().encode() != head[1]:
        raise CheckpointError(f"{file} is damaged: it does not begin with the digest of its rest")
    try:
        manifest = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {manifest.get('format')!r}, not {FORMAT}: use a newer mxkit")
    told = {name: manifest.get(name) for name in ("step", "files", "score", "run", "optimizer")}
    step, files, score, *others = told.values()
    folder = STEP.fullmatch(path.name)
    sound = type(step) is int and step == (int(folder[1]) if folder else abs(step))
    sound = sound and isinstance(files, dict) and {PARAMETERS} <= files.keys() <= set(FILES)
    sound = sound and all(isinstance(one, (dict, type(None))) for one in (score, *others))
    if score and sound:
        sound = score.get("mode") in ("min", "max") and isinstance(score.get("value"), (int, float))
    if not sound:
        raise CheckpointError(f"{file} is no manifest of this checkpoint: received {told!s:.400}")
    return Checkpoint(path, manifest["step"], manifest)


def _refuse_links(*paths: Path) -> None:
    for path in paths:
        if path.is_symlink() or not path.exists():
            raise CheckpointError(f"{path} is missing, or a symbolic link, which is not followed")


def verify(path: Path) -> Checkpoint:
    """Check sizes and hashes before MXNet reads a byte: one wrong byte can cost it 12 GB (T58).

    Raises:
        CheckpointError: A file is missing, damaged or of another format.
    """
    found = read_manifest(path)
    for name, expected in found.manifest["files"].items():
        file = path / name
        _refuse_links(file)
        try:
            received = fingerprint(file)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        if received != expected:
            raise CheckpointError(f"{file} is damaged: expected {expected!s:.200}, received {received}")
    return found


def fingerprint(path: Path) -> Dict[str, Any]:
    """Size and SHA-256 of a file."""
    return {"size": path.stat().st_size, "sha256": file_digest(path)}


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
        raise CheckpointError(f"{directory} has no whole checkpoint with a score, as Checkpoints(keep_best=...) writes")
    problem = _better_epoch(readable[0], scored)
    try:
        if not problem:
            return verify(scored[0].path)
    except CheckpointError as error:
        problem = f"the best checkpoint is broken: {error}"
    lines = [f"{found.path.name} ({found.score['column']} {found.score['value']:.6g})" for found in scored]
    raise CheckpointError(f"{directory}: {problem}. Pass which='last', or a path: there are {', '.join(lines)}")


def _better_epoch(newest: Checkpoint, scored: Sequence[Checkpoint]) -> str:
    """If an epoch in the newest checkpoint's history was better than every scored checkpoint, name it."""
    best = scored[0].score
    column, sign = best["column"], 1 if best["mode"] == "min" else -1
    history = newest.run.get("history") or []
    rows = [row for row in history if isinstance(row, dict) and isinstance(row.get(column), (int, float))]
    values = {row.get("updates"): row[column] for row in rows}
    better = [row for row in rows if sign * row[column] < sign * best["value"]]
    # a callback may have changed the compared values
    if not better or any(values.get(found.step, found.score["value"]) != found.score["value"] for found in scored):
        return ""
    row = min(better, key=lambda row: sign * row[column])
    place = f"epoch {row.get('epoch')}, update {row.get('updates')}"
    return f"the best checkpoint is gone: {column} was {row[column]:.6g} after {place}"


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


def ranked(checkpoints: Sequence[Checkpoint]) -> List[Checkpoint]:
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


def refuse_mixed_runs(directory: Path) -> None:
    """Refuse to write a new run's checkpoints beside those of an earlier one.

    Raises:
        CheckpointError: There are some.
    """
    paths = checkpoint_paths(directory)
    if paths:
        held = f"{directory} holds checkpoints of an earlier run, the newest {paths[0].name}"
        raise CheckpointError(f"{held}. Continue it with resume=True, or write into another directory")


def manifests(directory: Union[str, Path], read: Callable[[Path], Checkpoint] = read_manifest) -> List[Checkpoint]:
    """Checkpoints with a valid `run.json`, the newest first; with `read=verify` those whose files are all valid."""
    found = []
    for path in checkpoint_paths(directory):
        with suppress(CheckpointError):
            found.append(read(path))
    return found


def prune(found: Sequence[Checkpoint], keep: Mapping[int, str]) -> List[int]:
    """Remove checkpoints whose step is not in `keep`, and return their steps.

    Args:
        found: The list from which `keep` was chosen. A checkpoint that was saved since then is not in it, and stays.
        keep: Steps that stay, as `kept` returns them.
    """
    old = [checkpoint for checkpoint in found if checkpoint.step not in keep]
    for checkpoint in old:
        remove(checkpoint.path)
    return [checkpoint.step for checkpoint in old]


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
    """Make a directory, and remove leftovers of killed processes; no other process may write into it meanwhile.

    Raises:
        OSError: The directory cannot be made or written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for prefix in (_WRITING, _PRUNED):
        for path in directory.glob(f"{prefix}*"):
            _remove(path)
    for path in directory.glob(f"{_REPLACED}step-*"):
        if path.with_name(path.name[len(_REPLACED) :]).exists():
            _remove(path)


@contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder, which is made; also those of other machines that share it.

    The lock is the kernel's, which releases it when the process ends, also after SIGKILL.

    Raises:
        CheckpointError: Another process writes into the folder.
        OSError: The folder cannot be made or written.
    """
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    folder = os.open(str(directory), os.O_RDONLY)  # stays the same folder if it is renamed meanwhile
    try:
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


@contextmanager
def sole_writer(directory: Path) -> Iterator[None]:
    """`only_writer`, unless this process keeps others out already, as `fit` and `run_recipe` do."""
    own = False
    with suppress(FileNotFoundError):
        lock = (directory / _WRITER).stat()
        own = any(os.path.samestat(lock, os.fstat(one)) for one in _LOCKS)
    with nullcontext() if own else only_writer(directory):
        yield


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
            text = "two processes would destroy each other's files. Wait for its end, or use another folder"
            raise CheckpointError(f"{writer} writes into {directory}, and {text}") from None
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
        raise OSError(f"{file} could not be written whole: {len(names)} of {len(arrays)} arrays can be read back")


class Listed(NamedTuple):
    """One checkpoint of a directory.

    Attributes:
        name: Name of its folder.
        step: Updates done; None if it cannot be read.
        epoch: The epoch in which or after which `fit` wrote it, from 1; None if `fit` did not.
        scores: Losses and metrics of its weights; empty if it was written inside an epoch, before they were computed.
        size: Bytes of its files.
        problem: Error text of a broken checkpoint, or an empty string.
    """

    name: str
    step: Optional[int]
    epoch: Optional[int]
    scores: Dict[str, float]
    size: int
    problem: str


def checkpoints_of(run: Union[str, Path]) -> Path:
    """Return the directory of checkpoints inside a run's folder, or the folder itself.

    Raises:
        CheckpointError: The folder does not exist.
    """
    run = Path(run)
    directory = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    if not directory.is_dir():
        raise CheckpointError(f"{run} is no folder of a run, and no directory of checkpoints")
    return directory


def list_checkpoints(directory: Union[str, Path]) -> List[Listed]:
    """List the checkpoints of a directory, the newest first, after a check of every file's hash."""
    listed = []
    for path in checkpoint_paths(directory):
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        try:
            found = verify(path)
            listed.append(Listed(path.name, found.step, found.epoch, found.scores, size, ""))
        except CheckpointError as error:
            listed.append(Listed(path.name, None, None, {}, size, str(error)))
    return listed


class Pruned(NamedTuple):
    """Result of `prune_to`.

    Attributes:
        removed: Names of the removed checkpoints, the newest first.
        kept: Reason why each other complete one stayed, by name: "newest", "best" or "keep_every".
    """

    removed: List[str]
    kept: Dict[str, str]


def prune_to(directory: Union[str, Path], keep_last: int) -> Pruned:
    """Remove all checkpoints except the newest complete ones, the best one, and those of `keep_every`.

    `Checkpoints(keep_best=...)` recorded the scores that decide the best one. `keep_every` is read from the recipe in
    the run's folder. Broken checkpoints are neither counted nor removed.

    Args:
        directory: Holds the checkpoints of one run.
        keep_last: Number of the newest complete ones that stay.

    Raises:
        CheckpointError: Another process writes into the directory; or the run's recipe.yaml cannot be read, so that
            `keep_every` is unknown.
    """
    with sole_writer(Path(directory)):
        found = manifests(directory, verify)
        stays = kept(found, keep_last=keep_last, keep_best=True, keep_every=_keep_every(Path(directory)))
        removed = prune(found, stays)
    names = {checkpoint.step: checkpoint.path.name for checkpoint in found}
    left = {names[step]: reason for step, reason in sorted(stays.items(), reverse=True)}
    return Pruned([names[step] for step in removed], left)


def remove_checkpoints(directory: Union[str, Path], names: Sequence[str]) -> List[str]:
    """Remove checkpoints by name, also the newest and the best.

    Args:
        directory: Holds the checkpoints of one run.
        names: Names like "step-00000120".

    Returns:
        The names of the removed checkpoints.

    Raises:
        CheckpointError: No checkpoint has this name, or another process writes into the directory; nothing was
            removed.
    """
    paths = {path.name: path for path in checkpoint_paths(directory)}
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in paths:
            raise CheckpointError(f"{directory} has no checkpoint {name!r}; there are {', '.join(paths) or 'none'}")
    with sole_writer(Path(directory)):
        for name in names:
            remove(paths[name])
    return names


def _keep_every(directory: Path) -> Optional[Tuple[float, str]]:
    """Read `keep_every` from the recipe of the run that owns a directory of checkpoints."""
    file = directory.resolve().parent / "recipe.yaml"
    if directory.resolve().name != "checkpoints" or not file.is_file():
        return None
    try:
        text = (yaml.safe_load(file.read_text(encoding="utf-8")).get("checkpoints") or {}).get("keep_every")
        return None if text is None else interval(text, "keep_every", ("epoch", "update"))
    except (yaml.YAMLError, ValueError, OSError, AttributeError) as error:
        text = f"{file} cannot be read, so that its keep_every is unknown; nothing was removed"
        raise CheckpointError(f"{text}: {' '.join(str(error).split())}") from error


class BackgroundWriter:
    """Runs one job at a time in a thread; `wait` raises the job's error."""

    def __init__(self) -> None:
        self._job: Optional[Future[None]] = None

    def start(self, job: Callable[[], None]) -> None:
        """Run `job` in a thread; call `wait` first."""
        thread = ThreadPoolExecutor(1, "mxkit-checkpoint")  # a new pool, because threads do not survive a fork
        self._job = thread.submit(job)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the job, and raise its error once."""
        if self._job is not None:
            wait([self._job])
            job, self._job = self._job, None  # after the wait, which Ctrl-C may end
            job.result()

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._job is not None and not self._job.done()
