"""What a run's net says of each sample, as values and as text; the loss decides what the net's outputs mean."""

from typing import Any, Dict, List, Sequence

from mxkit.core import loss_kinds as kinds
from mxkit.core.arrays import legacy
from mxkit.core.loss_kinds import outputs_of, unit_of
from mxkit.errors import DataError
from mxkit.losses.batch_loss import get_batch_loss
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
    rows = np.asarray(host, np.float64)
    loss = get_batch_loss(recipe.loss.spec).loss
    kind = outputs_of(loss)
    if kind in (kinds.QUANTITIES, kinds.EMBEDDINGS):
        return _values(rows)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2:
        raise DataError(
            f"the net gives {rows.shape[1:]} per sample under {recipe.loss.name}; expected one value per class. Use "
            "mxkit.predict"
        )
    if kind not in (kinds.CLASSES, kinds.YES_OR_NO, kinds.MARGINS) and (
        rows.shape[1] < 2 or len(classes) != rows.shape[1]
    ):
        return _values(rows)
    if kind == kinds.YES_OR_NO:
        return _labels(rows if unit_of(loss) == kinds.PROBABILITIES else _sigmoid(rows), classes)
    if kind == kinds.MARGINS:
        return _margins(rows, classes)
    if rows.shape[1] == 1:
        raise DataError(
            f"the net gives one output under {recipe.loss.name}, whose softmax is 1 for every sample. One output for "
            "two classes is trained with sigmoid_bce, a quantity with l2"
        )
    names = _names(classes, rows.shape[1])
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    return [{"class": names[int(row.argmax())], "probability": float(row.max())} for row in shares]


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


def _sigmoid(scores: "np.ndarray") -> "np.ndarray":
    return np.asarray(0.5 * (1 + np.tanh(scores / 2)))  # exp would overflow


def _values(scores: "np.ndarray") -> List[Dict[str, Any]]:
    return [{"values": row.tolist()} for row in scores.reshape(len(scores), -1)]


def _labels(probabilities: "np.ndarray", classes: Sequence[str]) -> List[Dict[str, Any]]:
    if probabilities.shape[1] == 1:
        names = _names(classes, 2)
        return [{"class": names[int(p > 0.5)], "probability": float(max(p, 1 - p))} for p in probabilities[:, 0]]
    names = _names(classes, probabilities.shape[1])
    return [{"probabilities": dict(zip(names, row.tolist()))} for row in probabilities]


def _margins(scores: "np.ndarray", classes: Sequence[str]) -> List[Dict[str, Any]]:
    if scores.shape[1] == 1:
        names = _names(classes, 2)
        return [{"class": names[int(score > 0)], "score": float(score)} for score in scores[:, 0]]
    names = _names(classes, scores.shape[1])
    return [{"scores": dict(zip(names, row.tolist()))} for row in scores]


def _names(classes: Sequence[str], count: int) -> List[str]:
    """Name of each output, or its number; all are numbers if there are more names than outputs."""
    known = list(classes) if len(classes) <= count else []
    return [*known, *map(str, range(len(known), count))]
