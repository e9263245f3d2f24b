"""Several runs side by side: what their recipes say differently, and whose scores are best."""

import math
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from mxkit.recipe.changed_keys import flattened
from mxkit.reports.run_files import RunFiles, is_number
import yaml

# Of mxkit's and MXNet's metrics. For any other nobody but its user knows which end is good, so nothing is marked.
_HIGHER = {"accuracy", "subset_accuracy", "f1", "precision", "recall", "mcc", "pearsonr", "r2"}
_HIGHER |= {"pair_accuracy", "triplet_accuracy"}
_LOWER = {"loss", "mae", "mse", "rmse", "perplexity", "cross-entropy", "nll-loss"}
# Keys of `data` that leave what is evaluated as it is.
_OF_TRAINING = {"batch_size", "eval_batch_size", "workers", "drop_last", "augment"}


class Compared(NamedTuple):
    """One line of a table of runs.

    Attributes:
        name: What is compared.
        values: One a run; None where a run has none.
        best: Numbers of the runs with the best value; none where it is unknown which end is good, all are equal, or
            the runs were not measured alike.
    """

    name: str
    values: List[Any]
    best: List[int]


def recipe_differences(runs: Sequence[RunFiles]) -> List[Compared]:
    """Dotted paths of the resolved recipes whose values are not the same in all runs, with the values as text."""
    flat = [flattened(run.recipe) for run in runs]
    lines = []
    for path in dict.fromkeys(path for one in flat for path in one):
        values = [_said(one[path]) if path in one else "(not said)" for one in flat]
        if len(set(values)) > 1:
            lines.append(Compared(path, values, []))
    return lines


def _said(value: Any) -> str:
    """A value as YAML has it.

    >>> _said(True), _said("adam"), _said([]), _said(None)
    ('true', 'adam', '[]', 'null')
    """
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1000)
    return text.replace("\n...", "").strip()


def compared_scores(runs: Sequence[RunFiles]) -> List[Compared]:
    """Final scores by part of the data, then losses and metrics of each run's last epoch."""
    named: List[Dict[str, Any]] = []
    for run in runs:
        final = {f"{split} {name}": value for split, scores in run.scores.items() for name, value in scores.items()}
        row = run.rows[-1] if run.rows else {}
        last = {f"last epoch: {name}": one for name, one in row.items() if name.startswith(("train_", "valid_"))}
        named.append({**final, **last})
    lines = []
    for name in dict.fromkeys(name for one in named for name in one):
        values = [one.get(name) for one in named]
        if any(is_number(value) for value in values):
            numbers = [value if is_number(value) else None for value in values]
            best = _best(numbers, direction(name, runs)) if _comparable(name, numbers, runs) else []
            lines.append(Compared(name, numbers, best))
    return lines


def direction(metric: str, runs: Sequence[RunFiles] = ()) -> Optional[Callable[[Sequence[float]], float]]:
    """`min` or `max` for a metric that it is known of, or that a recipe's `keep_best` tells of; else None.

    >>> direction("test top_5_accuracy"), direction("last epoch: valid_loss"), direction("my_metric")
    (<built-in function max>, <built-in function min>, None)
    """
    name = re.sub("^(last epoch: )?(train|valid|test)[ _]", "", metric)
    if name in _HIGHER or re.fullmatch(r"top_(\d+_accuracy|k_accuracy_\d+)", name):
        return max
    if name in _LOWER:
        return min
    for run in runs:
        column, mode = best_column(run) or ("", "")
        if column.partition("_")[2] == name:
            return max if mode == "max" else min
    return None


def best_column(run: RunFiles) -> Optional[Sequence[str]]:
    """What the recipe's `keep_best` watches and whether it wants "min" or "max"."""
    checkpoints = run.recipe.get("checkpoints")
    found = checkpoints.get("keep_best") if isinstance(checkpoints, dict) else None
    fits = isinstance(found, list) and len(found) == 2 and all(isinstance(one, str) for one in found)
    return found if fits else None


def _comparable(name: str, values: Sequence[Any], runs: Sequence[RunFiles]) -> bool:
    """Whether the runs that have a score were measured on the same data and, for a loss, with the same one."""
    having = [run.recipe for run, value in zip(runs, values) if value is not None]
    keys = ["data", "loss"] if name.endswith("loss") else ["data"]
    found = [{key: flattened(recipe.get(key)) for key in keys} for recipe in having]
    for one in found:
        one["data"] = {path: value for path, value in one["data"].items() if path.split(".")[0] not in _OF_TRAINING}
    return all(one == found[0] for one in found)


def _best(values: Sequence[Any], choose: Optional[Callable[[Sequence[float]], float]]) -> List[int]:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if choose is None or len(finite) < 2 or len(set(finite)) == 1:
        return []
    best = choose(finite)
    return [number for number, value in enumerate(values) if value == best]
