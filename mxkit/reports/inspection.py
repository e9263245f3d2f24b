"""Loads the net and the data of a run for its page, and explains what cannot be loaded."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from mxkit.core.device import devices
from mxkit.errors import DeviceError, MxkitError
from mxkit.nets.layer_table import layers
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.folder import RunFolder
from mxkit.recipe.net_facts import empty_net, facts_of, read_facts, warn_of_other_data
from mxkit.recipe.schema import Recipe, under_switches
from mxkit.reports.predictions import Predictions, pictures, predict_part
from mxkit.reports.run_files import RunFiles
from mxkit.storage.snapshot import load_checkpoint


class Inspection(NamedTuple):
    """Parts of a page that need the net or the data.

    Attributes:
        layers: The table of layers as HTML, or an empty string.
        predictions: Confusion matrix and mistakes, or None.
        pictures: Pictures of the mistakes as `data:` addresses; may be empty.
        missing: Reasons why "layers", "predictions" or "pictures" are missing.
    """

    layers: str
    predictions: Optional[Predictions]
    pictures: List[str]
    missing: Dict[str, str]


def inspect_run(run: RunFiles) -> Inspection:
    """Build a run's net, load the checkpoint of its final scores, and predict the part of the data they are of.

    Errors of the folder, the data or the user's own modules are not raised; `missing` has their texts.

    Side effects:
        Imports the modules of the recipe's `imports`. If the run's devices do not exist here, the CPU is used.
    """
    recipe, why = _tried(lambda: _recipe(run))
    if recipe is None:
        return Inspection("", None, [], {"layers": why, "predictions": why})
    return _inspect(recipe, run)


@under_switches
def _inspect(recipe: Recipe, run: RunFiles) -> Inspection:
    data, no_data = _tried(lambda: load_data(recipe))
    facts, no_facts = _tried(lambda: read_facts(run.path))
    if facts is None and not no_facts:  # the run of an earlier mxkit
        facts, no_facts = _tried(lambda: facts_of(recipe, data)) if data is not None else (None, no_data)
    sample, no_sample = _tried(facts.sample) if facts is not None else (None, no_facts)
    missing = {"layers": f"The sizes of its inputs are not known, because the data cannot be read: {no_sample}"}
    net, why = _tried(lambda: _net(recipe, sample, no_sample))
    if net is None:
        return Inspection("", None, [], {"layers": why, "predictions": why})
    _, no_values = _tried(lambda: _load(run, recipe, net))
    shapes = () if sample is None else tuple(one.shape for one in sample)
    table, why = _tried(lambda: layers(net, *shapes))
    missing = {"layers": why or (missing["layers"] if sample is None else "")}
    predictions, no_pictures = None, ""
    images: List[str] = []
    why = f"the data cannot be read: {no_data}" if data is None else no_values
    if not why:
        _tried(lambda: warn_of_other_data(run.path, data, recipe.evaluate.split))
        predictions, why = _tried(lambda: predict_part(recipe, net, data))
    if predictions is not None:
        images, no_pictures = pictures(recipe, predictions.mistakes)
    missing.update(predictions=why, pictures=no_pictures)
    return Inspection("" if table is None else table._repr_html_(), predictions, images, missing)


def _recipe(run: RunFiles) -> Recipe:
    recipe = RunFolder(run.path).recipe()
    try:
        devices(recipe.devices)
    except DeviceError:
        return recipe.model_copy(update={"devices": "cpu"})
    return recipe


def _net(recipe: Recipe, sample: Optional[Tuple[Any, ...]], no_sample: str) -> Any:
    if recipe.model.finetune is not None and sample is None:
        raise MxkitError(f"the net's sizes follow from the data, which cannot be read: {no_sample}")
    return empty_net(recipe, sample)


def _load(run: RunFiles, recipe: Recipe, net: Any) -> None:
    folder = RunFolder(run.path)
    load_checkpoint(folder.checkpoints, net, which=recipe.evaluate.which, devices=recipe.devices)


def _tried(function: Callable[[], Any]) -> Tuple[Any, str]:
    """The result of a function, or the text of its error: data and nets of users raise any error."""
    try:
        return function(), ""
    except Exception as error:
        return None, str(error) if isinstance(error, MxkitError) else f"{type(error).__name__}: {error}"
