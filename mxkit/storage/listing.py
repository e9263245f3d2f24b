"""Lists, prunes and removes the checkpoints of a run."""

from contextlib import suppress
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.errors import CheckpointError
from mxkit.storage.directory import checkpoint_paths, interval, kept, prune, remove, sole_writer
from mxkit.storage.manifest import verify
import yaml


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
    found = []
    with sole_writer(Path(directory)):
        for path in checkpoint_paths(directory):
            with suppress(CheckpointError):
                found.append(verify(path))
        stays = kept(found, keep_last=keep_last, keep_best=True, keep_every=_keep_every(Path(directory)))
        names = {checkpoint.step: checkpoint.path.name for checkpoint in found}
        removed = prune(directory, set(stays), max(names, default=0))
    left = {names[step]: reason for step, reason in sorted(stays.items(), reverse=True)}
    return Pruned([names[step] for step in removed if step in names], left)


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
            raise CheckpointError(
                f"{directory} has no checkpoint {name!r}; nothing was removed. There are: {', '.join(paths) or 'none'}"
            )
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
        recipe = yaml.safe_load(file.read_text(encoding="utf-8"))
        text = (recipe.get("checkpoints") or {}).get("keep_every")
        return None if text is None else interval(text, "keep_every", ("epoch", "update"))
    except (yaml.YAMLError, ValueError, OSError, AttributeError) as error:
        raise CheckpointError(
            f"{file} cannot be read, so that its keep_every is unknown; nothing was removed. Remove checkpoints by "
            f"name. {' '.join(str(error).split())}"
        ) from error
