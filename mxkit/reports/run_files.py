"""What the files of a run's folder say, also where it ended early or a file is damaged."""

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Union

from mxkit.errors import RecipeError
from mxkit.recipe.environment import FILE as ENVIRONMENT
from mxkit.recipe.folder import STATE, RunState, parse_state
from mxkit.recipe.scores import describe_scores
from mxkit.training.history import Row
import yaml

# Width of the time and the two spaces that begin each line of log.txt.
_TIME, _TEXT = 19, 21
_BEGINS = ("training starts", "training goes on")


class State(NamedTuple):
    """What a run does, or how it ended.

    Attributes:
        word: "finished", "stopped", "failed", "running?" where no end is written, or "broken".
        reason: Why, or an empty string. Of a run that may be running, how far it has come.
    """

    word: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}" if self.reason else self.word


class RunFiles(NamedTuple):
    """A run's folder, read.

    Attributes:
        path: The folder.
        recipe: Keys and values of recipe.yaml; empty where it cannot be read.
        recipe_text: The file as it is.
        rows: Of history.json, one an epoch.
        stopped: Why training ended before its last epoch, as history.json has it.
        scores: Of scores.json: names and values by part of the data.
        recorded: Of state.json; None for a run of an mxkit that did not write it.
        log: Lines of log.txt.
        environments: Of environment.json; empty for a run of an mxkit that did not write it.
        problems: What could not be read, a line each.
    """

    path: Path
    recipe: Dict[str, Any]
    recipe_text: str
    rows: List[Row]
    stopped: Optional[str]
    scores: Dict[str, Dict[str, Any]]
    recorded: Optional[RunState]
    log: List[str]
    environments: List[Dict[str, Any]]
    problems: List[str]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def started(self) -> str:
        """Time at which the run began, or an empty string."""
        recorded = self.recorded.started if self.recorded else ""
        return recorded or (self.log[0][:_TIME] if self.log else "")

    @property
    def seconds(self) -> float:
        """Spent in training, without validation."""
        return sum(float(row["seconds"]) for row in self.rows if is_number(row.get("seconds")))

    @property
    def state(self) -> State:
        """What the run does, or how it ended."""
        if not self.recipe:
            return State("broken", "; ".join(self.problems))
        if self.recorded is None:
            return state_of_log(self)
        if self.recorded.state == "running":  # or killed, which it could not write
            reached = f"epoch {self.recorded.epoch}, update {self.recorded.updates}"
            return State("running?", f"{reached} at {self.recorded.changed}")
        return State(self.recorded.state, self.recorded.reason)


def state_of_log(run: RunFiles) -> State:
    """How a run ended by the newest sitting in its log, for a run of an mxkit that wrote no state.json."""
    lines = [line[_TEXT:] for line in run.log]
    begins = [number for number, line in enumerate(lines) if line.startswith(_BEGINS)]
    sitting = lines[begins[-1] + 1 :] if begins else []
    traces = [number for number, line in enumerate(sitting) if line.startswith("Traceback (most recent call last)")]
    if traces:
        told = (line for line in sitting[traces[-1] + 1 :] if line and not line.startswith(" "))
        return State("failed", next(told, ""))
    stops = [line[len("stopped by ") :] for line in sitting if line.startswith("stopped by ")]
    if stops:
        return State("stopped", stops[-1])
    ended = [line for split, scores in run.scores.items() for line in describe_scores(split, scores)]
    # a log of before wrote -0.0000
    if any(line.replace(" -0.0000", " 0.0000") in ended for line in sitting) or (run.scores and not run.log):
        return State("stopped", run.stopped) if run.stopped else State("finished")
    return State("running?", f"last line of {run.log[-1][:_TIME]}" if run.log else "it has no log")


def read_run(path: Union[str, Path]) -> RunFiles:
    """Read the files of a run; one that is missing or damaged is among `problems`.

    Raises:
        RecipeError: There is no such folder.
    """
    path = Path(path)
    if not path.is_dir():
        raise RecipeError(f"{path} is no folder of a run: expected a folder with a file recipe.yaml")
    problems: List[str] = []
    text = _text(path / "recipe.yaml", problems)
    recipe = _parsed(path / "recipe.yaml", text, yaml.safe_load, lambda found: isinstance(found, dict), problems)

    def content(name: str, fits: Callable[[Any], bool], empty: Any, parse: Callable[[str], Any] = json.loads) -> Any:
        # a run that has not come so far has none of these
        found = _text(path / name, problems) if (path / name).exists() else ""
        return _parsed(path / name, found, parse, fits, problems) or empty

    history = content("history.json", _is_history, {"epochs": [], "stopped": None})
    scores = content("scores.json", _is_scores, {})
    environments = content(ENVIRONMENT, _is_list_of_mappings, [])
    recorded = content(STATE, lambda found: True, None, parse_state)
    log = _text(path / "log.txt", problems) if (path / "log.txt").exists() else ""
    return RunFiles(
        path=path,
        recipe=recipe or {},
        recipe_text=text,
        rows=history["epochs"],
        stopped=history["stopped"],
        scores=scores,
        recorded=recorded,
        log=log.splitlines(),
        environments=environments,
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
        found = parse(text)
    except (ValueError, yaml.YAMLError) as error:
        problems.append(f"{path.name} is damaged: {' '.join(str(error).split())}")
        return None
    if fits(found):
        return found
    problems.append(f"{path.name} holds something else than mxkit writes there")
    return None


def _is_list_of_mappings(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, dict) for one in found)


def _is_history(found: Any) -> bool:
    if not isinstance(found, dict) or not _is_list_of_mappings(found.get("epochs")):
        return False
    reason = found.get("stopped")
    return (reason is None or isinstance(reason, str)) and all(is_number(row.get("epoch")) for row in found["epochs"])


def _is_scores(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    return all(
        isinstance(scores, dict) and all(is_number(value) or isinstance(value, list) for value in scores.values())
        for scores in found.values()
    )


def is_number(value: Any) -> bool:
    """Whether a value of a history is one number, and no confusion matrix or None."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
