"""Reads the files of runs' folders, also if a run ended early or a file is damaged, and lists runs in a table."""

from contextlib import suppress
import json
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

from mxkit.core.system import nan_for_null, null_for_nan, score_name
from mxkit.errors import RecipeError, unknown_name
from mxkit.recipe.folder import FILE as ENVIRONMENT
from mxkit.recipe.folder import STATE, SWEEP, WORKERS, RunState, best_row, is_number, parse_state
from mxkit.recipe.reading import parse_yaml
from mxkit.training.history import Row, fixed
from pydantic import ConfigDict, StrictFloat, StrictInt, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict
import yaml


class State(NamedTuple):
    """The state of a run.

    Attributes:
        word: "finished", "stopped", "failed", "broken", "unknown" without state.json, or "running?" for a run that is
            training or was killed.
        reason: The reason, or an empty string; for "running?" the last epoch and update.
    """

    word: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}" if self.reason else self.word


class RunFiles(NamedTuple):
    """The content of a run's files.

    Attributes:
        path: The folder.
        recipe: Keys and values of recipe.yaml; empty if it cannot be read.
        recipe_text: The text of recipe.yaml; empty if it cannot be read.
        rows: Rows of history.json, one per epoch.
        scores: Names and values by part of the data, from scores.json. A score that is null in the file was NaN or
            infinite, and is NaN here.
        recorded: Content of state.json, or None.
        log: Lines of log.txt.
        environments: Content of environment.json, which earlier versions of mxkit did not write.
        workers: Content of workers.json, of a run with several workers.
        problems: Files that cannot be read, with the reason.
    """

    path: Path
    recipe: Dict[str, Any]
    recipe_text: str
    rows: List[Row]
    scores: Dict[str, Dict[str, Any]]
    recorded: Optional[RunState]
    log: List[str]
    environments: List[Dict[str, Any]]
    workers: List[Dict[str, Any]]
    problems: List[str]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def started(self) -> str:
        """When the run began, or an empty string."""
        return self.recorded.started if self.recorded else ""

    @property
    def final(self) -> Dict[str, Any]:
        """Final scores by part of the data and name, like "test accuracy"."""
        return {f"{split} {name}": value for split, scores in self.scores.items() for name, value in scores.items()}

    @property
    def seconds(self) -> float:
        """Seconds of training, without validation."""
        return sum(float(row["seconds"]) for row in self.rows if is_number(row.get("seconds")))

    @property
    def state(self) -> State:
        """The state of the run."""
        if not self.recipe:
            return State("broken", "; ".join(self.problems))
        if self.recorded is None:
            return State("unknown", "it has no state.json")
        if self.recorded.state == "running":  # a killed run leaves this state too
            reached = f"epoch {self.recorded.epoch}, update {self.recorded.updates}"
            return State("running?", f"{reached} at {self.recorded.changed}")
        return State(self.recorded.state, self.recorded.reason)


_Number = Union[StrictInt, StrictFloat]
_Scores = Dict[str, Dict[str, Union[_Number, List[Any]]]]


class _Row(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    epoch: _Number


class _History(TypedDict):
    epochs: List[_Row]
    stopped: NotRequired[Optional[str]]


def read_run(path: Union[str, Path]) -> RunFiles:
    """Read the files of a run; `problems` lists those that are missing or damaged.

    Raises:
        RecipeError: There is no such folder.
    """
    path = Path(path)
    if not path.is_dir():
        raise RecipeError(f"{path} is no folder of a run: expected a folder with a file recipe.yaml")
    problems: List[str] = []

    def content(name: str, kind: Any, empty: Any, parse: Callable[[str], Any] = json.loads) -> Any:
        try:
            return TypeAdapter(kind).validate_python(parse((path / name).read_text(encoding="utf-8")))
        except ValidationError:
            problems.append(f"{name} holds something else than mxkit writes there")
        except FileNotFoundError:  # a run that ended early does not have all files
            if name == "recipe.yaml":
                problems.append(f"{name} is missing")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error}")
        except (ValueError, yaml.YAMLError) as error:
            problems.append(f"{name} is damaged: {' '.join(str(error).split())}")
        return empty

    recipe = content("recipe.yaml", Dict[str, Any], {}, parse_yaml)
    return RunFiles(
        path=path,
        recipe=recipe,
        recipe_text=content("recipe.yaml", str, "", str) if recipe else "",
        rows=content("history.json", _History, {"epochs": []})["epochs"],
        scores=content("scores.json", _Scores, {}, lambda text: nan_for_null(json.loads(text))),
        recorded=content(STATE, RunState, None, parse_state),
        log=content("log.txt", str, "", str).splitlines(),
        environments=content(ENVIRONMENT, List[Dict[str, Any]], []),
        workers=content(WORKERS, List[Dict[str, Any]], []),
        problems=problems,
    )


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


def best_column(run: RunFiles) -> Optional[Sequence[str]]:
    """The recipe's `keep_best`: a column of the history, and "min" or "max"."""
    checkpoints = run.recipe.get("checkpoints")
    pair = checkpoints.get("keep_best") if isinstance(checkpoints, dict) else None
    fits = isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
    return pair if fits else None


def _sorted(runs: Sequence[ListedRun], sort: str) -> List[ListedRun]:
    column, downward = sort.lstrip("-"), sort.startswith("-")
    known = dict.fromkeys([*_OWN, *(name for run in runs for name in (*run.scores, *run.last))])
    if column not in known:
        raise unknown_name("column to sort runs by", column, known)

    def value(run: ListedRun) -> Any:
        return getattr(run, column) if column in _OWN else run.scores.get(column, run.last.get(column))

    comparable = [run for run in runs if value(run) is not None and value(run) == value(run)]  # NaN is not itself
    return [*sorted(comparable, key=value, reverse=downward), *[run for run in runs if run not in comparable]]


def to_json(runs: Sequence[ListedRun]) -> str:
    """The runs as JSON: a list of mappings with the attributes of `ListedRun`; NaN and infinity are null."""
    return json.dumps(null_for_nan(runs), indent=1)


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
