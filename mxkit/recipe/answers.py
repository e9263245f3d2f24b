"""Writes what a net's outputs say of each sample; the loss decides what an output is."""

from typing import Any, List, Sequence

from mxkit.core import loss_kinds as kinds
from mxkit.core.loss_kinds import outputs_of, unit_of
from mxkit.errors import DataError
from mxkit.losses.by_name import get_loss
from mxkit.recipe.schema import Recipe
import numpy as np


def answers(recipe: Recipe, classes: Sequence[str], scores: Any) -> List[List[str]]:
    """Text for each row of a net's outputs.

    Args:
        recipe: The net's recipe; its loss decides what an output is.
        classes: Names of the classes; empty if the data has none.
        scores: The net's outputs, NDArray of shape (N, K) or (N,).

    Returns:
        For each sample the class and its probability; for several labels each label with its probability; for a
        regression or an embedding the values; for a hinge loss, which has no probabilities, the class and the score.

    Raises:
        DataError: The net compares samples, returns several outputs, or outputs that do not fit the loss.
    """
    refuse_pairs(recipe)
    if isinstance(scores, (tuple, list)):
        shapes = ", ".join(str(tuple(one.shape[1:])) for one in scores)
        raise DataError(f"the net gives {len(scores)} outputs, {shapes} a sample; expected one. Use mxkit.predict")
    host = scores.asnumpy().astype(np.float64)
    loss = get_loss(recipe.loss.spec)
    kind = outputs_of(loss)
    if kind in (kinds.QUANTITIES, kinds.EMBEDDINGS):
        return _values(host)
    host = host[:, None] if host.ndim == 1 else host
    if host.ndim != 2:
        raise DataError(
            f"the net gives {host.shape[1:]} a sample under {recipe.loss.name}; expected one value a class. Use "
            "mxkit.predict"
        )
    if kind not in (kinds.CLASSES, kinds.YES_OR_NO, kinds.MARGINS) and (
        host.shape[1] < 2 or len(classes) != host.shape[1]
    ):
        return _values(host)
    if kind == kinds.YES_OR_NO:
        return _labels(host if unit_of(loss) == kinds.PROBABILITIES else 0.5 * (1 + np.tanh(host / 2)), classes)
    if kind == kinds.MARGINS:
        return _margins(host, classes)
    if host.shape[1] == 1:
        raise DataError(
            f"the net gives one output under {recipe.loss.name}, whose softmax is 1 for every sample. One output for "
            "two classes is trained with sigmoid_bce, a quantity with l2"
        )
    names = _names(classes, host.shape[1])
    powers = np.exp(host - host.max(axis=1, keepdims=True))
    sure = powers / powers.sum(axis=1, keepdims=True)
    return [[names[int(row.argmax())], f"{row.max():.4f}"] for row in sure]


def refuse_pairs(recipe: Recipe) -> None:
    """Refuse a net that compares samples.

    Raises:
        DataError: The recipe's net compares samples.
    """
    if recipe.data.pairs is not None:
        raise DataError(
            "the net compares samples, and says nothing of one alone: call it with two batches, "
            "net(a, b) with `from mxkit.recipe.run import load_run` and `recipe, net = load_run(RUN)`"
        )


def _values(host: "np.ndarray") -> List[List[str]]:
    return [[f"{value:.6g}" for value in row] for row in host.reshape(len(host), -1)]


def _labels(sure: "np.ndarray", classes: Sequence[str]) -> List[List[str]]:
    if sure.shape[1] == 1:
        names = _names(classes, 2)
        return [[names[int(p > 0.5)], f"{max(p, 1 - p):.4f}"] for p in sure[:, 0]]
    names = _names(classes, sure.shape[1])
    return [[f"{name} {p:.4f}" for name, p in zip(names, row)] for row in sure]


def _margins(scores: "np.ndarray", classes: Sequence[str]) -> List[List[str]]:
    if scores.shape[1] == 1:
        names = _names(classes, 2)
        return [[names[int(score > 0)], f"score {score:.4f}"] for score in scores[:, 0]]
    names = _names(classes, scores.shape[1])
    return [[f"{name} score {score:.4f}" for name, score in zip(names, row)] for row in scores]


def _names(classes: Sequence[str], count: int) -> List[str]:
    """Name of each output, or its number; numbers for all if there are more names than outputs."""
    named = list(classes) if len(classes) <= count else []
    return [*named, *map(str, range(len(named), count))]
