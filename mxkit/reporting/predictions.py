"""What a run's net says of the part of the data that its scores are of: a confusion matrix, and its worst mistakes."""

import base64
from heapq import nsmallest
import io
from typing import Any, List, NamedTuple, Sequence, Tuple

from mxkit.data.source import read_epoch
from mxkit.data.splits import Splits
from mxkit.data_plots import show_images
from mxkit.device import as_ndarray, unpack
from mxkit.errors import DataError
from mxkit.metrics import ConfusionMatrix
from mxkit.recipe.batches import batches
from mxkit.recipe.building import augment_of
from mxkit.recipe.schema import Recipe
from mxkit.training.evaluation import predict
import numpy as np

# Pixels of the longer side of a picture in a page; smaller ones stay as they are.
_LARGEST = 192


class Mistake(NamedTuple):
    """A sample whose class the net got wrong.

    Attributes:
        number: Of the sample in its part of the data, from 0.
        truth: Its class number.
        guess: What the net said.
        probability: How sure it was of that.
        inputs: What the net got, without the axis of samples.
    """

    number: int
    truth: int
    guess: int
    probability: float
    inputs: "np.ndarray"


class Predictions(NamedTuple):
    """Of a part of the data.

    Attributes:
        split: That part.
        classes: Name of each class, its number where the data has no names.
        matrix: int64 of shape (classes, classes): counts of samples by true class (row) and prediction.
        mistakes: The most confident ones, the surest first.
    """

    split: str
    classes: List[str]
    matrix: "np.ndarray"
    mistakes: List[Mistake]


def look_at_predictions(recipe: Recipe, net: Any, data: Splits, *, worst: int = 24) -> Predictions:
    """Let a net classify the part of the data that its recipe reports on.

    Args:
        recipe: Of the run.
        net: Trained.
        data: Of the recipe.
        worst: How many mistakes are kept, at most.

    Raises:
        DataError: The recipe's job is no classification; the text says what it is.
    """
    split = recipe.evaluate.split
    if recipe.data.pairs is not None:
        raise DataError("the net compares samples, and gives none a class")
    counts, mistakes, seen = ConfusionMatrix(), [], 0
    for batch in read_epoch(batches(recipe, data, split), name=split, keep_count=True):
        inputs, labels = unpack(batch)
        scores = predict(net, [batch])
        truth = _class_numbers(scores, labels)
        counts.update([as_ndarray(truth)], scores)
        host = scores.asnumpy()
        if not np.isfinite(host).all():
            raise DataError("the net's outputs hold NaN or infinity, which is no class")
        guess, sure = scores.argmax(axis=1).asnumpy().astype(np.int64), _probabilities(host)
        for row in np.flatnonzero(truth != guess).tolist():
            image = as_ndarray(inputs[0])[row].asnumpy()
            mistakes.append(Mistake(seen + row, int(truth[row]), int(guess[row]), float(sure[row, guess[row]]), image))
        mistakes = nsmallest(worst, mistakes, key=lambda one: (-one.probability, one.number))
        seen += len(truth)
    matrix = counts.matrix()
    classes = list(map(str, data.classes)) if len(data.classes) == len(matrix) else list(map(str, range(len(matrix))))
    return Predictions(split, classes, matrix, mistakes)


def _class_numbers(scores: Any, labels: Sequence[Any]) -> "np.ndarray":
    """Labels as int64 of shape (B,), where they and the net's outputs are those of a classification."""
    if isinstance(scores, tuple) or scores.ndim != 2 or scores.shape[1] < 2 or len(labels) != 1:
        several = scores if isinstance(scores, tuple) else (scores,)
        shapes = ", ".join(str(one.shape[1:]) for one in several)
        raise DataError(f"the net gives {shapes} a sample, which is no score for each of several classes")
    found = as_ndarray(labels[0]).asnumpy()
    if found.size != len(scores) or (found != np.floor(found)).any() or found.min() < 0 or found.max() >= len(scores.T):
        raise DataError("the labels are no class numbers")
    numbers: np.ndarray = found.reshape(-1).astype(np.int64)
    return numbers


def _probabilities(scores: "np.ndarray") -> "np.ndarray":
    """Softmax of each row, float64; a row that is a distribution already stays."""
    wide = scores.astype(np.float64)
    if (wide >= 0).all() and np.allclose(wide.sum(axis=1), 1, atol=1e-3):
        return wide
    powers: np.ndarray = np.exp(wide - wide.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def pictures(recipe: Recipe, mistakes: Sequence[Mistake]) -> Tuple[List[str], str]:
    """Images of mistakes as `data:` addresses, with what `data.eval_augment` normalized by undone.

    Returns:
        The addresses; or none, and why there are none.
    """
    if not mistakes:
        return [], ""
    augment = augment_of(recipe.data.eval_augment)
    normal = None if augment is None else augment.normalize
    mean, std = (None, None) if normal is None else (normal.mean, normal.std)
    if mistakes[0].inputs.ndim != 3:
        return [], f"the net's inputs have the shape {mistakes[0].inputs.shape} and are no images"
    try:
        figure = show_images(np.stack([one.inputs for one in mistakes]), mean=mean, std=std)
    except DataError as error:
        return [], str(error)
    return [_address(image.get_array()) for image in figure.axes[0].images], ""


def _address(colours: Any) -> str:
    from PIL import Image

    content = io.BytesIO()
    image = Image.fromarray((np.asarray(colours) * 255).round().astype(np.uint8))
    image.thumbnail((_LARGEST, _LARGEST))
    image.save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
