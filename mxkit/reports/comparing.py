"""Compares runs: the differences of their recipes, and their scores with the best ones marked."""

import math
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from mxkit.recipe.reading import as_yaml
from mxkit.recipe.schema import flattened
from mxkit.recipe.scores import is_number
from mxkit.reports.run_files import RunFiles

# Metrics of mxkit and MXNet. For others it is unknown whether high or low is better, so no value is marked.
_HIGHER = {"accuracy", "subset_accuracy", "f1", "precision", "recall", "mcc", "pearsonr", "r2"}
_HIGHER |= {"pair_accuracy", "triplet_accuracy"}
_LOWER = {"loss", "mae", "mse", "rmse", "perplexity", "cross-entropy", "nll-loss"}
# Keys of `data` that do not change the evaluated samples.
_OF_TRAINING = {"batch_size", "eval_batch_size", "workers", "drop_last", "augment"}


class Compared(NamedTuple):
    """One line of a table of runs.

    Attributes:
        name: A key of recipes or a score.
        values: One value per run; None for a run without it.
        best: Indices of the runs with the best value; empty if it is unknown whether high or low is better, if all
            values are equal, or if the runs were measured differently.
    """

    name: str
    values: List[Any]
    best: List[int]


def recipe_differences(runs: Sequence[RunFiles]) -> List[Compared]:
    """Dotted paths of the resolved recipes whose values differ between the runs, with the values as text."""
    flat = [flattened(run.recipe) for run in runs]
    lines = []
    for path in dict.fromkeys(path for one in flat for path in one):
        values = [_as_yaml(one[path]) if path in one else "(not said)" for one in flat]
        if len(set(values)) > 1:
            lines.append(Compared(path, values, []))
    return lines


def _as_yaml(value: Any) -> str:
    """A value as YAML.

    >>> _as_yaml(True), _as_yaml("adam"), _as_yaml([]), _as_yaml(None)
    ('true', 'adam', '[]', 'null')
    """
    return as_yaml(value, default_flow_style=True, width=1000).replace("\n...", "").strip()


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
    """`min` or `max`, whichever is better, for known metrics and for the metric of a recipe's `keep_best`; else None.

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
    """The recipe's `keep_best`: a column of the history, and "min" or "max"."""
    checkpoints = run.recipe.get("checkpoints")
    pair = checkpoints.get("keep_best") if isinstance(checkpoints, dict) else None
    fits = isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
    return pair if fits else None


def _comparable(name: str, values: Sequence[Any], runs: Sequence[RunFiles]) -> bool:
    """Whether the runs that have a score were measured on the same data and, for a loss, with the same loss."""
    recipes = [run.recipe for run, value in zip(runs, values) if value is not None]
    keys = ["data", "loss"] if name.endswith("loss") else ["data"]
    measured = [{key: flattened(recipe.get(key)) for key in keys} for recipe in recipes]
    for one in measured:
        one["data"] = {path: value for path, value in one["data"].items() if path.split(".")[0] not in _OF_TRAINING}
    return all(one == measured[0] for one in measured)


def _best(values: Sequence[Any], choose: Optional[Callable[[Sequence[float]], float]]) -> List[int]:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if choose is None or len(finite) < 2 or len(set(finite)) == 1:
        return []
    best = choose(finite)
    return [number for number, value in enumerate(values) if value == best]
