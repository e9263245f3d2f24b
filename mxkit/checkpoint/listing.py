"""What a run's folder holds of checkpoints, as a table."""

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Union

from mxkit.checkpoint.directory import checkpoint_paths, prune, verify
from mxkit.errors import CheckpointError


class Listed(NamedTuple):
    """One checkpoint of a directory.

    Attributes:
        name: Of its folder.
        step: Updates done; None where it cannot be read.
        epoch: The epoch it was written in or after, from 1; None where it was not written by `fit`.
        scores: Losses and metrics of the last epoch that was done.
        size: Bytes of its files.
        problem: Why it is broken, or an empty string.
    """

    name: str
    step: Optional[int]
    epoch: Optional[int]
    scores: Dict[str, float]
    size: int
    problem: str


def checkpoints_of(run: Union[str, Path]) -> Path:
    """The directory of a run's checkpoints: the run's own, or the one that was given.

    Raises:
        CheckpointError: There is no such directory.
    """
    run = Path(run)
    directory = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    if not directory.is_dir():
        raise CheckpointError(f"{run} is no folder of a run, and no directory of checkpoints")
    return directory


def list_checkpoints(directory: Union[str, Path]) -> List[Listed]:
    """List the checkpoints of a directory, the newest first; every file is read and its hash compared."""
    found = []
    for path in checkpoint_paths(directory):
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        try:
            one = verify(path)
        except CheckpointError as error:
            found.append(Listed(path.name, None, None, {}, size, str(error)))
            continue
        run: Dict[str, Any] = one.manifest.get("run") or {}
        inside = bool(run.get("running", {}).get("updates"))
        epoch = None if not run else run["epoch"] if inside else run["epoch"] - 1
        last = run["history"][-1] if run.get("history") else {}
        scores = {name: value for name, value in last.items() if name.startswith(("train_", "valid_"))}
        numbers = {name: value for name, value in scores.items() if isinstance(value, float)}
        found.append(Listed(path.name, one.step, epoch, numbers, size, ""))
    return found


def prune_to(directory: Union[str, Path], keep_last: int) -> List[int]:
    """Remove all but the newest whole checkpoints, and tell the steps of those that were removed.

    Broken ones are neither counted nor, where they are newer, removed.
    """
    whole = [one.step for one in list_checkpoints(directory) if one.step is not None]
    return prune(directory, set(whole[:keep_last]), max(whole, default=0))
