"""`run.json` of a checkpoint: its format, and the verification of the checkpoint's files."""

import hashlib
import json
from pathlib import Path
import platform
import re
from typing import Any, Dict, Mapping, NamedTuple, Optional

from mxkit.core.system import file_digest
from mxkit.errors import CheckpointError
from mxkit.version import __version__
import mxnet as mx
import numpy as np

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
    folder = STEP.fullmatch(path.name)
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
            return f"it lacks the size of {name}"
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
        CheckpointError: A file is missing, damaged or of another format.
    """
    found = read_manifest(path)
    for name, expected in found.manifest["files"].items():
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file} {'leads elsewhere' if file.is_symlink() else 'is missing'}")
        try:
            size = file.stat().st_size
            received = {"size": size} if size != expected["size"] else fingerprint(file)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        if received != expected:
            raise CheckpointError(f"{file} is damaged: expected {expected}, received {received}")
    return found


def fingerprint(path: Path) -> Dict[str, Any]:
    """Size and SHA-256 of a file."""
    return {"size": path.stat().st_size, "sha256": file_digest(path)}
