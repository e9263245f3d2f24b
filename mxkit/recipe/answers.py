"""What a net says of each sample, for programs and as the text of `mxkit predict`; the loss decides what it means."""

from typing import Any, Dict, List, Sequence

from mxkit.core import loss_kinds as kinds
from mxkit.core.array_kind import legacy
from mxkit.core.loss_kinds import outputs_of, unit_of
from mxkit.errors import DataError
from mxkit.losses.by_name import get_loss
from mxkit.recipe.schema import Recipe
import numpy as np

Answer = Dict[str, Any]


def answers(recipe: Recipe, classes: Sequence[str], scores: Any) -> List[List[str]]:
    """Text for each row of a net's outputs; arguments and errors as for `answer_values`.

    Returns:
        For each sample the class and its probability; for several labels each label with its probability; for a
        regression or an embedding the values; for a hinge loss, which has no probabilities, the class and the score.
    """
    return [describe_answer(one) for one in answer_values(recipe, classes, scores)]


def describe_answer(answer: Answer) -> List[str]:
    """The text of one of `answer_values`, in pieces.

    >>> describe_answer({"class": "cat", "probability": 0.75}), describe_answer({"labels": {"cat": 0.5}})
    (['cat', '0.7500'], ['cat 0.5000'])
    """
    if "probability" in answer:
        return [answer["class"], f"{answer['probability']:.4f}"]
    if "class" in answer:
        return [answer["class"], f"score {answer['score']:.4f}"]
    if "values" in answer:
        return [f"{value:.6g}" for value in answer["values"]]
    word = "" if "labels" in answer else "score "
    return [f"{name} {word}{value:.4f}" for one in answer.values() for name, value in one.items()]


def answer_values(recipe: Recipe, classes: Sequence[str], scores: Any) -> List[Answer]:
    """What each row of a net's outputs means.

    Args:
        recipe: The net's recipe; its loss decides what the outputs mean.
        classes: Names of the classes; empty if the data has none.
        scores: The net's outputs, NDArray of shape (N, K) or (N,).

    Returns:
        A dict for each sample: `{"class": "cat", "probability": 0.9}`; under a hinge loss `{"class": ..., "score":
        ...}`; for several labels `{"labels": {"cat": 0.9, "dog": 0.2}}`, under a hinge loss `{"scores": ...}`; for a
        regression or an embedding `{"values": [...]}`.

    Raises:
        DataError: The net compares samples, returns several arrays, or outputs that do not fit the loss.
    """
    refuse_pairs(recipe)
    if isinstance(scores, (tuple, list)):
        shapes = ", ".join(str(tuple(one.shape[1:])) for one in scores)
        raise DataError(f"the net gives {len(scores)} outputs, {shapes} per sample; expected one. Use mxkit.predict")
    scores = legacy(scores).astype("float64")
    loss = get_loss(recipe.loss.spec)
    kind = outputs_of(loss)
    if kind in (kinds.QUANTITIES, kinds.EMBEDDINGS):
        return _values(scores)
    scores = scores.expand_dims(1) if scores.ndim == 1 else scores
    if scores.ndim != 2:
        raise DataError(
            f"the net gives {scores.shape[1:]} per sample under {recipe.loss.name}; expected one value per class. Use "
            "mxkit.predict"
        )
    if kind not in (kinds.CLASSES, kinds.YES_OR_NO, kinds.MARGINS) and (
        scores.shape[1] < 2 or len(classes) != scores.shape[1]
    ):
        return _values(scores)
    if kind == kinds.YES_OR_NO:
        return _labels((scores if unit_of(loss) == kinds.PROBABILITIES else scores.sigmoid()).asnumpy(), classes)
    if kind == kinds.MARGINS:
        return _margins(scores.asnumpy(), classes)
    if scores.shape[1] == 1:
        raise DataError(
            f"the net gives one output under {recipe.loss.name}, whose softmax is 1 for every sample. One output for "
            "two classes is trained with sigmoid_bce, a quantity with l2"
        )
    names = _names(classes, scores.shape[1])
    rows = scores.softmax(axis=1).asnumpy()
    return [{"class": names[int(row.argmax())], "probability": float(row.max())} for row in rows]


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


def _values(scores: Any) -> List[Answer]:
    return [{"values": row} for row in scores.reshape((len(scores), -1)).asnumpy().tolist()]


def _labels(probabilities: "np.ndarray", classes: Sequence[str]) -> List[Answer]:
    if probabilities.shape[1] == 1:
        names = _names(classes, 2)
        return [{"class": names[int(p > 0.5)], "probability": max(p, 1 - p)} for p in probabilities[:, 0].tolist()]
    names = _names(classes, probabilities.shape[1])
    return [{"labels": dict(zip(names, row))} for row in probabilities.tolist()]


def _margins(scores: "np.ndarray", classes: Sequence[str]) -> List[Answer]:
    if scores.shape[1] == 1:
        names = _names(classes, 2)
        return [{"class": names[int(score > 0)], "score": score} for score in scores[:, 0].tolist()]
    names = _names(classes, scores.shape[1])
    return [{"scores": dict(zip(names, row))} for row in scores.tolist()]


def _names(classes: Sequence[str], count: int) -> List[str]:
    """Name of each output, or its number; all are numbers if there are more names than outputs."""
    known = list(classes) if len(classes) <= count else []
    return [*known, *map(str, range(len(known), count))]
