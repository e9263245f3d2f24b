"""The scores of a recipe's net: the calls that compute them, and their lines of text."""

import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from mxkit.data.splits import Splits
from mxkit.losses.own_losses import pair_accuracy, triplet_accuracy
from mxkit.recipe.building import (
    Call,
    InFolder,
    Name,
    augment_calls,
    execute,
    has_samples,
    loader_call,
    scored_name,
)
from mxkit.recipe.schema import Recipe, under_switches
from mxkit.storage.snapshot import load_checkpoint
from mxkit.training.evaluation import evaluate, predict
from mxkit.training.history import fixed
import numpy as np


@under_switches
def evaluate_split(recipe: Recipe, net: Any, data: Splits, split: str) -> Dict[str, Any]:
    """Loss and metrics of a recipe over one part of the data; for pairs also the accuracy of their distances."""
    calls = [*augment_calls(recipe), loader_call(recipe, data, split, "scored")]
    if recipe.data.pairs is not None and split != "valid" and has_samples(data.valid):
        calls.append(loader_call(recipe, data, "valid", "valid"))
    calls += _score_calls(recipe, data, split, "scored")
    scores: Dict[str, Any] = execute(calls, {"net": net, "data": data}, recipe.name)["scores"]
    return scores


def score_calls(recipe: Recipe, data: Splits) -> List[Call]:
    """The calls that compute the final scores after the training."""
    best = Call(load_checkpoint, (InFolder("checkpoints"), Name("net")), {"which": "best"})
    calls = _score_calls(recipe, data, recipe.evaluate.split, scored_name(recipe))
    return [best, *calls] if recipe.evaluate.which == "best" else calls


def _score_calls(recipe: Recipe, data: Splits, split: str, loader: str) -> List[Call]:
    named: Dict[str, Any] = {"loss": recipe.loss}
    if recipe.scored_metrics:
        named["metrics"] = list(recipe.scored_metrics)
    calls = [Call(evaluate, (Name("net"), Name(loader)), named, result="scores")]
    if recipe.data.pairs is None:
        return calls
    update = Name("scores.update")
    if recipe.data.pairs.kind == "triplets":
        accuracy = Call(triplet_accuracy, (Name("anchor"), Name("positive"), Name("negative")))
        return [
            *calls,
            Call(predict, (Name("net"), Name(loader)), result="anchor, positive, negative"),
            Call(update, (), {"triplet_accuracy": accuracy}),
        ]
    threshold = {}
    if split != "valid" and has_samples(data.valid):  # the best threshold for the pairs of the validation part
        calls += _pair_calls("valid", "best", {})
        threshold = {"threshold": Name("best.threshold")}
    calls += _pair_calls(loader, "found", threshold)
    return [*calls, Call(update, (), {"pair_accuracy": Name("found.accuracy")})]


def _pair_calls(loader: str, result: str, threshold: Mapping[str, Any]) -> List[Call]:
    same = f"np.concatenate([same.asnumpy() for _, same in {loader}])"
    return [
        Call(predict, (Name("net"), Name(loader)), result="a, b"),
        Call(_labels, (Name(loader),), result="same", text=same),
        Call(pair_accuracy, (Name("a"), Name("b"), Name("same")), threshold, result),
    ]


def _labels(pairs: Any) -> Any:
    return np.concatenate([same.asnumpy() for _, same in pairs])


def is_number(value: Any) -> bool:
    """Whether a value of a history is a number, and not a confusion matrix or None."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def best_row(rows: Sequence[Mapping[str, Any]], column: str, mode: str) -> Optional[Mapping[str, Any]]:
    """The row of a history with the best finite number in a column; None if there is none.

    >>> best_row([{"epoch": 1, "valid_loss": 0.5}, {"epoch": 2, "valid_loss": None}], "valid_loss", "min")["epoch"]
    1
    """
    finite = [row for row in rows if is_number(row.get(column)) and math.isfinite(row[column])]
    return (max if mode == "max" else min)(finite, key=lambda row: row[column], default=None)


def describe_scores(split: str, scores: Mapping[str, Any]) -> List[str]:
    """One line per number, like `test accuracy 0.9899`; one line per row of a matrix."""
    return [f"{split} {name} {row}" for name, value in scores.items() for row in _rows(value)]


def _rows(value: Any) -> List[str]:
    if not isinstance(value, list):
        return [fixed(value)]
    if any(isinstance(one, list) for one in value):
        return [row for one in value for row in _rows(one)]
    return [" ".join(f"{one:4}" if isinstance(one, int) else fixed(one) for one in value)]


def null_for_nan(value: Any) -> Any:
    """Replace NaN and infinity by None, because JSON has neither; also in lists and mappings.

    >>> null_for_nan({"test": {"loss": float("nan"), "accuracy": 0.5}})
    {'test': {'loss': None, 'accuracy': 0.5}}
    """
    return _replaced(value, lambda one: None if isinstance(one, float) and not math.isfinite(one) else one)


def nan_for_null(value: Any) -> Any:
    """Replace None by NaN in the content of `scores.json`, where null is a score that was NaN or infinite."""
    return _replaced(value, lambda one: math.nan if one is None else one)


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(one, change) for key, one in value.items()}
    return [_replaced(one, change) for one in value] if isinstance(value, list) else change(value)
