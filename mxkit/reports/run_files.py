"""What the files of a run's folder say, also where it ended early or a file is damaged."""

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Union

from mxkit.errors import RecipeError
from mxkit.recipe.environment import FILE as ENVIRONMENT
from mxkit.recipe.scores import describe_scores
from mxkit.training.history import Row
import yaml

# Width of the time and the two spaces that begin each line of log.txt.
_TIME, _TEXT = 19, 21
_BEGINS = ("training starts", "training goes on")


class State(NamedTuple):
    """How a run ended.

    Attributes:
        word: "finished", "stopped", "failed", "running?" where neither an end nor a reason is written, or "broken".
        reason: Why, or an empty string.
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
    log: List[str]
    environments: List[Dict[str, Any]]
    problems: List[str]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def started(self) -> str:
        """Time of the log's first line, or an empty string."""
        return self.log[0][:_TIME] if self.log else ""

    @property
    def seconds(self) -> float:
        """Spent in training, without validation."""
        return sum(float(row["seconds"]) for row in self.rows if is_number(row.get("seconds")))

    @property
    def state(self) -> State:
        """How the run ended, by its newest sitting."""
        if not self.recipe:
            return State("broken", "; ".join(self.problems))
        lines = [line[_TEXT:] for line in self.log]
        begins = [number for number, line in enumerate(lines) if line.startswith(_BEGINS)]
        sitting = lines[begins[-1] + 1 :] if begins else []
        traces = [number for number, line in enumerate(sitting) if line.startswith("Traceback (most recent call last)")]
        if traces:
            told = (line for line in sitting[traces[-1] + 1 :] if line and not line.startswith(" "))
            return State("failed", next(told, ""))
        stops = [line[len("stopped by ") :] for line in sitting if line.startswith("stopped by ")]
        ended = [line for split, scores in self.scores.items() for line in describe_scores(split, scores)]
        if stops:
            return State("stopped", stops[-1])
        # a log of before wrote -0.0000
        if any(line.replace(" -0.0000", " 0.0000") in ended for line in sitting) or (self.scores and not self.log):
            return State("stopped", self.stopped) if self.stopped else State("finished")
        return State("running?", f"last line of {self.log[-1][:_TIME]}" if self.log else "it has no log")


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

    def content(name: str, fits: Callable[[Any], bool], empty: Any) -> Any:
        # a run that has not come so far has none of these
        found = _text(path / name, problems) if (path / name).exists() else ""
        return _parsed(path / name, found, json.loads, fits, problems) or empty

    history = content("history.json", _is_history, {"epochs": [], "stopped": None})
    scores = content("scores.json", _is_scores, {})
    environments = content(ENVIRONMENT, _is_list_of_mappings, [])
    log = _text(path / "log.txt", problems) if (path / "log.txt").exists() else ""
    return RunFiles(
        path=path,
        recipe=recipe or {},
        recipe_text=text,
        rows=history["epochs"],
        stopped=history["stopped"],
        scores=scores,
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
