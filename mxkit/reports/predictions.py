"""Loads the net and the data of a run for its page: confusion matrix, worst mistakes, and what cannot be loaded."""

import base64
from heapq import nsmallest
import io
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import legacy
from mxkit.core.device import as_ndarray, unpack
from mxkit.core.loss_meanings import Quantities, meaning_of
from mxkit.data.source import source_of
from mxkit.data.splits import Splits
from mxkit.errors import DataError, MxkitError
from mxkit.metrics import ConfusionMatrix
from mxkit.nets.layer_table.printing import columns_of
from mxkit.plots.data_plots import show_images
from mxkit.recipe.building import batches
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.folder import RunFolder
from mxkit.recipe.net_facts import layer_table, read_facts, warn_of_other_data
from mxkit.recipe.run import load_run
from mxkit.recipe.schema import Recipe, augment_of, under_switches
from mxkit.reports.marks import MarkedPart, marked_part
from mxkit.reports.run_files import RunFiles
from mxkit.training.evaluation import predict
import numpy as np

# Pixels of the longer side of a picture in a page; smaller pictures are not enlarged.
_LARGEST = 192


class Mistake(NamedTuple):
    """A sample for which the net predicts a wrong class.

    Attributes:
        number: Index of the sample in its part of the data.
        truth: True class number.
        guess: Predicted class number.
        probability: Probability of the predicted class.
        inputs: Input of the net, without the axis of samples.
    """

    number: int
    truth: int
    guess: int
    probability: float
    inputs: "np.ndarray"


class Predictions(NamedTuple):
    """Predictions for a part of the data.

    Attributes:
        split: The part.
        classes: Name of each class or label; its number if the data has no names.
        matrix: int64 of shape (classes, classes): counts of samples by true class (row) and prediction. For several
            labels per sample (labels, 2, 2).
        mistakes: Mistakes with the highest probabilities, in descending order; None if a sample has several labels, or
            the loss trains no probabilities.
    """

    split: str
    classes: List[str]
    matrix: "np.ndarray"
    mistakes: Optional[List[Mistake]]


@under_switches
def predict_part(recipe: Recipe, net: Any, data: Splits, *, worst: int = 24) -> Predictions:
    """Classify the part of the data that the final scores are of.

    Args:
        recipe: Recipe of the run.
        net: The trained net.
        data: Data of the recipe.
        worst: Largest number of mistakes to keep.

    Raises:
        DataError: The net does not classify; the text says what it does.
    """
    split = recipe.evaluate.split
    if recipe.data.pairs is not None:
        raise DataError("the net compares samples, and gives none a class")
    counts = ConfusionMatrix()
    counts.loss = recipe.loss.made.loss
    if isinstance(meaning_of(counts.loss), Quantities):
        raise DataError("the net gives quantities, of which none is a class")
    mistakes: List[Mistake] = []
    seen, ranked = 0, True
    for batch in source_of(batches(recipe, data, split)).read(name=split, keep_count=True):
        inputs, labels = unpack(batch)
        scores = legacy(predict(net, [batch]))
        truth, guess = _class_numbers(counts, scores, labels)
        host = scores.asnumpy().astype(np.float64)
        names = list(map(str, range(max(2, host[0].size))))
        answers = meaning_of(counts.loss).answers(host, names, str(recipe.loss.name))
        ranked = "probability" in answers[0]
        for row in np.flatnonzero(truth != guess).tolist() if ranked else ():
            image = as_ndarray(inputs[0])[row].asnumpy()
            mistakes.append(Mistake(seen + row, int(truth[row]), int(guess[row]), answers[row]["probability"], image))
        mistakes = nsmallest(worst, mistakes, key=lambda one: (-one.probability, one.number))
        seen += scores.shape[0]
    matrix = counts.matrix()
    classes = list(map(str, data.classes)) if len(data.classes) == len(matrix) else list(map(str, range(len(matrix))))
    return Predictions(split, classes, matrix, mistakes if ranked else None)


def _class_numbers(counts: ConfusionMatrix, scores: Any, labels: Sequence[Any]) -> Tuple[Any, Any]:
    """Count a batch; return its labels and predictions as int64 of shape (B,)."""
    if isinstance(scores, tuple) or len(labels) != 1 or scores.ndim > 2:
        several = scores if isinstance(scores, tuple) else (scores,)
        shapes = ", ".join(str(one.shape[1:]) for one in several)
        raise DataError(f"the net gives {shapes} per sample, which is not a score for each of several classes")
    if not np.isfinite(scores.asnumpy()).all():
        raise DataError("the net's outputs hold NaN or infinity, which is no class")
    arrays = [as_ndarray(labels[0]).as_in_context(scores.ctx)]
    counts.update(arrays, scores)
    _, truth, guess = counts.read(arrays, scores)
    return truth.asnumpy().astype(np.int64), guess.asnumpy().astype(np.int64)


def pictures(recipe: Recipe, mistakes: Optional[Sequence[Mistake]]) -> Tuple[List[str], str]:
    """Images of mistakes as `data:` addresses, without the normalization of `data.eval_augment`.

    Returns:
        The addresses, or an empty list and the reason.
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
    return [address(image.get_array()) for image in figure.axes[0].images], ""


def address(colours: Any) -> str:
    """An image of colours from 0 to 1 as the `data:` address of a PNG."""
    from PIL import Image

    content = io.BytesIO()
    image = Image.fromarray((np.asarray(colours) * 255).round().astype(np.uint8))
    image.thumbnail((_LARGEST, _LARGEST))
    image.save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


class Inspection(NamedTuple):
    """Parts of a page that need the net or the data.

    Attributes:
        layers: Rows of the table of layers, the first one with the names of the columns, which may be empty.
        predictions: Confusion matrix and mistakes; or what a detector, segmentation or pose net finds; or None.
        pictures: Pictures of the mistakes as `data:` addresses, of marks truth and answer in turn; may be empty.
        missing: Reasons why "layers", "predictions" or "pictures" are missing.
    """

    layers: Sequence[Sequence[str]]
    predictions: Union[Predictions, MarkedPart, None]
    pictures: List[str]
    missing: Dict[str, str]


def inspect_run(run: RunFiles) -> Inspection:
    """Build a run's net, load the checkpoint of its final scores, and predict the part of the data they are of.

    Errors of the folder, the data or the user's own modules are not raised; `missing` has their texts.

    Side effects:
        Imports the modules of the recipe's `imports`. If the run's devices do not exist here, the CPU is used.
    """
    table, no_table = _tried(lambda: layer_table(RunFolder(run.path).recipe(), read_facts(run.path)))
    columns = [] if table is None else columns_of(table)
    rows = [[name for name, _ in columns], *zip(*(texts for _, texts in columns))]
    found, no_predictions = _tried(lambda: _predicted(run.path))
    predictions, (images, no_pictures) = found or (None, ([], ""))
    missing = {"layers": no_table, "predictions": no_predictions, "pictures": no_pictures}
    return Inspection(rows, predictions, images, missing)


def _predicted(path: Path) -> Tuple[Union[Predictions, MarkedPart], Tuple[List[str], str]]:
    """The predictions, and the pictures of the mistakes or the reason why there are none."""
    recipe = RunFolder(path).recipe()
    try:
        data = load_data(recipe)
    except Exception as error:
        raise DataError(f"the data cannot be read: {_text(error)}") from error
    recipe, net = load_run(path)
    warn_of_other_data(path, data, recipe.evaluate.split)
    if recipe.loss.made.moves is not None:
        marked = marked_part(recipe, net, data)
        return marked, ([address(image / 255) for one in marked.worst for image in (one.truth, one.answer)], "")
    predictions = predict_part(recipe, net, data)
    return predictions, pictures(recipe, predictions.mistakes)


def _tried(function: Callable[[], Any]) -> Tuple[Any, str]:
    """The result of a function, or the text of its error: data and nets of users raise any error."""
    try:
        return function(), ""
    except Exception as error:
        return None, _text(error)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, MxkitError) else f"{type(error).__name__}: {error}"
