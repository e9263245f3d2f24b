"""A table of runs, sorted by any of its columns."""

from contextlib import suppress
import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

from mxkit.core.system import score_name
from mxkit.errors import RecipeError, unknown_name
from mxkit.recipe.folder import SWEEP
from mxkit.recipe.scores import best_row, is_number, null_for_nan
from mxkit.reports.comparing import best_column
from mxkit.reports.run_files import RunFiles, read_run
from mxkit.training.history import fixed

_OWN = ("name", "started", "state", "epochs", "seconds", "size")


class ListedRun(NamedTuple):
    """One run of a folder of runs.

    Attributes:
        name: Name of the folder; of a sweep's trial with the sweep's, `sweep-digits/trial-0003`.
        started: When the folder was made, or an empty string.
        state: "finished", "stopped", "failed", "running?", "unknown" or "broken".
        reason: Reason of the state, or an empty string.
        epochs: Number of complete epochs.
        seconds: Seconds of training, without validation.
        size: Bytes of all files.
        best: Column, value and epoch of the best validation by the recipe's `keep_best`, else by the validation loss;
            None without a validation.
        scores: Final scores that are numbers, by name; over another part than the test part by "train:loss".
        last: Losses and metrics of the last epoch that are numbers, by column.
    """

    name: str
    started: str
    state: str
    reason: str
    epochs: int
    seconds: float
    size: int
    best: Optional[Dict[str, Any]]
    scores: Dict[str, float]
    last: Dict[str, float]


def list_runs(directory: Union[str, Path] = "runs", *, sort: str = "started") -> List[ListedRun]:
    """List the runs in a folder, broken ones and the trials of sweeps included.

    Args:
        directory: A folder with the folders of runs, or the folder of one run.
        sort: "name", "started", "state", "epochs", "seconds", "size", a final score like "accuracy", or a column of
            the history's last epoch like "valid_loss". "-accuracy" puts the highest first. Runs without a number in
            this column come last.

    Returns:
        One entry per run.

    Raises:
        RecipeError: There is no such folder.
        UnknownNameError: No run has such a column.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise RecipeError(f"{directory} is no folder; expected one that holds runs, as `mxkit train` makes them")
    folders = [directory] if (directory / "recipe.yaml").is_file() else _folders(directory)
    return _sorted([_listed(read_run(path), directory) for path in folders], sort)


def _folders(directory: Path) -> List[Path]:
    """Folders of runs; in the place of a sweep's folder those of its trials."""
    folders = [path for path in sorted(directory.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    nested = [_folders(path) if (path / SWEEP).is_file() else [path] for path in folders]
    return [path for paths in nested for path in paths]


def _listed(run: RunFiles, directory: Path) -> ListedRun:
    state, last = run.state, run.rows[-1] if run.rows else {}
    return ListedRun(
        name=run.name if run.path == directory else run.path.relative_to(directory).as_posix(),
        started=run.started,
        state=state.word,
        reason=state.reason,
        epochs=len(run.rows),
        seconds=run.seconds,
        size=_size(run.path),
        best=_best(run),
        scores={
            score_name(part, name): one
            for part, scores in run.scores.items()
            for name, one in scores.items()
            if is_number(one)
        },
        last={name: one for name, one in last.items() if name.startswith(("train_", "valid_")) and is_number(one)},
    )


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # the training may delete the file now
            total += path.stat().st_size if path.is_file() else 0
    return total


def _best(run: RunFiles) -> Optional[Dict[str, Any]]:
    column, mode = best_column(run) or ("valid_loss", "min")
    row = best_row(run.rows, column, mode)
    return None if row is None else {"column": column, "value": row[column], "epoch": row["epoch"]}


def _sorted(runs: Sequence[ListedRun], sort: str) -> List[ListedRun]:
    column, downward = sort.lstrip("-"), sort.startswith("-")
    known = dict.fromkeys([*_OWN, *(name for run in runs for name in (*run.scores, *run.last))])
    if column not in known:
        raise unknown_name("column to sort runs by", column, known)

    def value(run: ListedRun) -> Any:
        return getattr(run, column) if column in _OWN else run.scores.get(column, run.last.get(column))

    comparable = [run for run in runs if value(run) is not None and value(run) == value(run)]  # NaN is not itself
    others = [run for run in runs if run not in comparable]
    return [*sorted(comparable, key=value, reverse=downward), *others]


def to_json(runs: Sequence[ListedRun]) -> str:
    """The runs as JSON: a list of mappings with the attributes of `ListedRun`; NaN and infinity are null."""
    return json.dumps([null_for_nan(run._asdict()) for run in runs], indent=1)


def table_of_runs(runs: Sequence[ListedRun]) -> List[List[str]]:
    """The runs as rows of cells, after a row of column names; each final score has a column."""
    names = list(dict.fromkeys(name for run in runs for name in run.scores))
    lines = [["name", "started", "state", "epochs", *names, "best valid", "time", "size"]]
    for run in runs:
        state = f"{run.state}: {run.reason}" if run.reason else run.state
        best = "" if run.best is None else f"{run.best['column']} {run.best['value']:.4g} in {run.best['epoch']}"
        scores = [fixed(run.scores[name]) if name in run.scores else "" for name in names]
        cells = [run.name, run.started, state, str(run.epochs), *scores, best]
        lines.append([*cells, duration(run.seconds), f"{run.size / 1e6:,.1f} MB"])
    return lines


def duration(seconds: float) -> str:
    """Write a time with its two largest units.

    >>> duration(0.25), duration(75), duration(7260)
    ('0.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
