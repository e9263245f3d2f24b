"""What a run's net says of the part of the data that its scores are of: a confusion matrix, and its worst mistakes."""

import base64
from heapq import nsmallest
import io
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.device import as_ndarray, unpack
from mxkit.core.loss_kinds import CLASSES, PROBABILITIES, QUANTITIES, outputs_of
from mxkit.data.source import read_epoch
from mxkit.data.splits import Splits
from mxkit.errors import DataError
from mxkit.losses.by_name import get_loss
from mxkit.metrics import ConfusionMatrix
from mxkit.metrics.tasks import BINARY, Task
from mxkit.plots.data_plots import show_images
from mxkit.recipe.building import augment_of, batches
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
        classes: Name of each class or label, its number where the data has no names.
        matrix: int64 of shape (classes, classes): counts of samples by true class (row) and prediction. For several
            labels a sample (labels, 2, 2).
        mistakes: The most confident ones, the surest first; None where a sample has several labels, or the loss trains
            no probabilities.
    """

    split: str
    classes: List[str]
    matrix: "np.ndarray"
    mistakes: Optional[List[Mistake]]


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
    counts = ConfusionMatrix()
    counts.loss = get_loss(recipe.loss.spec)
    if outputs_of(counts.loss) == QUANTITIES:
        raise DataError("the net gives quantities, of which none is a class")
    mistakes: List[Mistake] = []
    seen, ranked = 0, True
    for batch in read_epoch(batches(recipe, data, split), name=split, keep_count=True):
        inputs, labels = unpack(batch)
        scores = predict(net, [batch])
        task, truth, guess = _class_numbers(counts, scores, labels)
        ranked = task.kind == CLASSES or (task.kind == BINARY and task.outputs is not None)
        if ranked:
            sure = _sureness(task, scores.asnumpy())
            for row in np.flatnonzero(truth != guess).tolist():
                image = as_ndarray(inputs[0])[row].asnumpy()
                probability = float(sure[row, guess[row]])
                mistakes.append(Mistake(seen + row, int(truth[row]), int(guess[row]), probability, image))
            mistakes = nsmallest(worst, mistakes, key=lambda one: (-one.probability, one.number))
        seen += scores.shape[0]
    matrix = counts.matrix()
    classes = list(map(str, data.classes)) if len(data.classes) == len(matrix) else list(map(str, range(len(matrix))))
    return Predictions(split, classes, matrix, mistakes if ranked else None)


def _class_numbers(counts: ConfusionMatrix, scores: Any, labels: Sequence[Any]) -> Tuple[Task, Any, Any]:
    """The task, and labels and guesses of a batch as int64 of shape (B,), after counting them."""
    if isinstance(scores, tuple) or len(labels) != 1 or scores.ndim > 2:
        several = scores if isinstance(scores, tuple) else (scores,)
        shapes = ", ".join(str(one.shape[1:]) for one in several)
        raise DataError(f"the net gives {shapes} a sample, which is no score for each of several classes")
    if not np.isfinite(scores.asnumpy()).all():
        raise DataError("the net's outputs hold NaN or infinity, which is no class")
    given = [as_ndarray(labels[0]).as_in_context(scores.context)]
    counts.update(given, scores)
    task, truth, guess = counts.read(given, scores)
    return task, truth.asnumpy().astype(np.int64), guess.asnumpy().astype(np.int64)


def _sureness(task: Task, scores: "np.ndarray") -> "np.ndarray":
    """Probability of each class, float64 of shape (B, classes)."""
    wide = scores.astype(np.float64)
    if task.kind == BINARY:
        first = wide.reshape((-1, 1))
        ones = first if task.outputs == PROBABILITIES else 1 / (1 + np.exp(-np.clip(first, -700, 700)))
        return np.concatenate([1 - ones, ones], axis=1)
    if task.outputs == PROBABILITIES or (task.outputs is None and _are_shares(wide)):
        return wide
    powers: np.ndarray = np.exp(wide - wide.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _are_shares(rows: "np.ndarray") -> bool:
    return bool((rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-3))


def pictures(recipe: Recipe, mistakes: Optional[Sequence[Mistake]]) -> Tuple[List[str], str]:
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
