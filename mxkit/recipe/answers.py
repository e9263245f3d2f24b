"""What a run's net says of each sample, as values and as text; the loss decides what the net's outputs mean."""

from typing import Any, Dict, List, Sequence

from mxkit.core.arrays import legacy
from mxkit.core.loss_meanings import meaning_of
from mxkit.errors import DataError
from mxkit.recipe.schema import Recipe
import mxnet as mx
import numpy as np


def answers(recipe: Recipe, classes: Sequence[str], scores: Any) -> List[List[str]]:
    """Text for each row of a net's outputs.

    Args:
        recipe: As for `predictions`.
        classes: As for `predictions`.
        scores: As for `predictions`.

    Returns:
        For each sample the class and its probability; for several labels each label with its probability; for a
        regression or an embedding the values; for a hinge loss, which has no probabilities, the class and the score.

    Raises:
        DataError: As for `predictions`.
    """
    return [describe_prediction(found) for found in predictions(recipe, classes, scores)]


def predictions(recipe: Recipe, classes: Sequence[str], scores: Any) -> List[Dict[str, Any]]:
    """What a net's outputs say of each sample, as plain values for JSON.

    Args:
        recipe: The net's recipe; its loss decides what the outputs mean.
        classes: Names of the classes; empty if the data has none.
        scores: The net's outputs of shape (N, K) or (N,), as an NDArray or NumPy's.

    Returns:
        For each sample `{"class": name, "probability": p}`, or `{"class": name, "score": s}` for a hinge loss; for
        several labels `{"probabilities": {name: p}}` or `{"scores": {name: s}}`; for a regression or an embedding
        `{"values": [...]}`.

    Raises:
        DataError: The net compares samples, returns several arrays, or outputs that do not fit the loss.
    """
    refuse_pairs(recipe)
    if isinstance(scores, (tuple, list)):
        shapes = ", ".join(str(tuple(one.shape[1:])) for one in scores)
        raise DataError(f"the net gives {len(scores)} outputs, {shapes} per sample; expected one. Use mxkit.predict")
    host = legacy(scores).astype("float64").asnumpy() if isinstance(scores, mx.nd.NDArray) else scores
    meaning = meaning_of(recipe.loss.made.loss)
    return meaning.answers(np.asarray(host, np.float64), classes, str(recipe.loss.name))


def describe_prediction(found: Dict[str, Any]) -> List[str]:
    """The text of one of `predictions`, in cells."""
    if "values" in found:
        return [f"{value:.6g}" for value in found["values"]]
    if "class" in found:
        score = f"score {found['score']:.4f}" if "score" in found else f"{found['probability']:.4f}"
        return [found["class"], score]
    word = "score " if "scores" in found else ""
    return [f"{name} {word}{value:.4f}" for name, value in next(iter(found.values())).items()]


def refuse_pairs(recipe: Recipe) -> None:
    """Refuse a net that compares samples.

    Raises:
        DataError: The recipe's net compares samples.
    """
    if recipe.data.pairs is not None:
        raise DataError(
            "the net compares samples, and says nothing of one alone: call it with two batches, net(a, b) after "
            "`recipe, net = mxkit.recipe.load_run(RUN)`"
        )
