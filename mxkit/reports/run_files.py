"""Reads the files of a run's folder, also if the run ended early or a file is damaged."""

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Union

from mxkit.errors import RecipeError
from mxkit.recipe.environment import FILE as ENVIRONMENT
from mxkit.recipe.environment import WORKERS
from mxkit.recipe.folder import STATE, RunState, parse_state
from mxkit.recipe.reading import parse_yaml
from mxkit.recipe.scores import is_number, nan_for_null
from mxkit.training.history import Row
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
        recipe_text: The text of recipe.yaml.
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


def read_run(path: Union[str, Path]) -> RunFiles:
    """Read the files of a run; `problems` lists those that are missing or damaged.

    Raises:
        RecipeError: There is no such folder.
    """
    path = Path(path)
    if not path.is_dir():
        raise RecipeError(f"{path} is no folder of a run: expected a folder with a file recipe.yaml")
    problems: List[str] = []
    text = _text(path / "recipe.yaml", problems)
    recipe = _parsed(path / "recipe.yaml", text, parse_yaml, lambda content: isinstance(content, dict), problems)

    def content(name: str, fits: Callable[[Any], bool], empty: Any, parse: Callable[[str], Any] = json.loads) -> Any:
        # a run that ended early does not have all files
        text = _text(path / name, problems) if (path / name).exists() else ""
        return _parsed(path / name, text, parse, fits, problems) or empty

    history = content("history.json", _is_history, {"epochs": [], "stopped": None})
    scores = content("scores.json", _is_scores, {}, lambda text: nan_for_null(json.loads(text)))
    environments = content(ENVIRONMENT, _is_list_of_mappings, [])
    workers = content(WORKERS, _is_list_of_mappings, [])
    recorded = content(STATE, lambda state: True, None, parse_state)
    log = _text(path / "log.txt", problems) if (path / "log.txt").exists() else ""
    return RunFiles(
        path=path,
        recipe=recipe or {},
        recipe_text=text,
        rows=history["epochs"],
        scores=scores,
        recorded=recorded,
        log=log.splitlines(),
        environments=environments,
        workers=workers,
        problems=problems,
    )


def _text(path: Path, problems: List[str]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
    return ""


def _parsed(
    path: Path, text: str, parse: Callable[[str], Any], fits: Callable[[Any], bool], problems: List[str]
) -> Any:
    if not text:
        return None
    try:
        content = parse(text)
    except (ValueError, yaml.YAMLError) as error:
        problems.append(f"{path.name} is damaged: {' '.join(str(error).split())}")
        return None
    if fits(content):
        return content
    problems.append(f"{path.name} holds something else than mxkit writes there")
    return None


def _is_list_of_mappings(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(one, dict) for one in content)


def _is_history(content: Any) -> bool:
    if not isinstance(content, dict) or not _is_list_of_mappings(content.get("epochs")):
        return False
    rows, reason = content["epochs"], content.get("stopped")
    return (reason is None or isinstance(reason, str)) and all(is_number(row.get("epoch")) for row in rows)


def _is_scores(content: Any) -> bool:
    return isinstance(content, dict) and all(
        isinstance(scores, dict) and all(is_number(value) or isinstance(value, list) for value in scores.values())
        for scores in content.values()
    )
