"""What a run's folder holds of checkpoints, as a table."""

from contextlib import suppress
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.errors import CheckpointError
from mxkit.storage.directory import checkpoint_paths, interval, kept, prune, remove
from mxkit.storage.manifest import verify
import yaml


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
        found.append(Listed(path.name, one.step, one.epoch, one.scores, size, ""))
    return found


class Pruned(NamedTuple):
    """What pruning did.

    Attributes:
        removed: Names of the checkpoints that were removed, the newest first.
        kept: Why each other whole one stayed: "newest", "best" or "keep_every", by name.
    """

    removed: List[str]
    kept: Dict[str, str]


def prune_to(directory: Union[str, Path], keep_last: int) -> Pruned:
    """Remove all but the newest whole checkpoints, the best one, and those that `keep_every` keeps.

    The best one is that of the scores which `Checkpoints(keep_best=...)` recorded; `keep_every` is what the recipe of
    the run says, whose folder the directory lies in. Broken checkpoints are neither counted nor removed.

    Args:
        directory: Holds the checkpoints of one run.
        keep_last: How many of the newest whole ones stay.

    Raises:
        CheckpointError: The run's recipe.yaml cannot be read, so that nobody knows what `keep_every` keeps.
    """
    found = []
    for path in checkpoint_paths(directory):
        with suppress(CheckpointError):
            found.append(verify(path))
    stays = kept(found, keep_last=keep_last, keep_best=True, keep_every=_keep_every(Path(directory)))
    names = {one.step: one.path.name for one in found}
    removed = prune(directory, set(stays), max(names, default=0))
    left = {names[step]: why for step, why in sorted(stays.items(), reverse=True)}
    return Pruned([names[step] for step in removed if step in names], left)


def remove_checkpoints(directory: Union[str, Path], names: Sequence[str]) -> List[str]:
    """Remove checkpoints by their names, whatever keeps them.

    Args:
        directory: Holds the checkpoints of one run.
        names: Like "step-00000120".

    Raises:
        CheckpointError: There is no checkpoint of such a name; nothing was removed.
    """
    known = {path.name: path for path in checkpoint_paths(directory)}
    for name in names:
        if name not in known:
            raise CheckpointError(
                f"{directory} has no checkpoint {name!r}; nothing was removed. There are: {', '.join(known) or 'none'}"
            )
    for name in dict.fromkeys(names):
        remove(known[name])
    return list(dict.fromkeys(names))


def _keep_every(directory: Path) -> Optional[Tuple[float, str]]:
    """`keep_every` of the recipe of the run that a directory of checkpoints belongs to, or None."""
    file = directory.resolve().parent / "recipe.yaml"
    if directory.resolve().name != "checkpoints" or not file.is_file():
        return None
    try:
        recipe = yaml.safe_load(file.read_text(encoding="utf-8"))
        text = (recipe.get("checkpoints") or {}).get("keep_every")
        return None if text is None else interval(text, "keep_every", ("epoch", "update"))
    except (yaml.YAMLError, ValueError, OSError, AttributeError) as error:
        raise CheckpointError(
            f"{file} cannot be read, so that nobody knows which checkpoints keep_every keeps; nothing was removed. "
            f"Remove some by name. {' '.join(str(error).split())}"
        ) from error
