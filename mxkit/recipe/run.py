"""A recipe, run: every line of it becomes an argument of a public call."""

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union

from mxkit.checkpoint.snapshot import load_checkpoint
from mxkit.data import ArrayLoader, Splits
from mxkit.device import devices
from mxkit.errors import MxkitError, RecipeError, unknown_name
from mxkit.files import write_atomically
from mxkit.initializers import get_initializer, initialize
from mxkit.losses import get_loss
from mxkit.metrics import get_metrics
from mxkit.models import get_model
from mxkit.recipe.folder import Recorder, RunFolder
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.registry import DATASETS
from mxkit.recipe.schema import Component, Recipe
from mxkit.seeding import seed_all
from mxkit.training.checkpoints import Checkpoints
from mxkit.training.evaluation import evaluate
from mxkit.training.history import History
from mxkit.training.loop import fit
import mxnet as mx
from mxnet import gluon

SPLITS = ("train", "valid", "test")


class Run(NamedTuple):
    """What a recipe left.

    Attributes:
        folder: Where its files are.
        net: The trained net.
        history: One row an epoch.
        scores: Loss and metrics over the test part.
    """

    folder: Path
    net: Any
    history: History
    scores: Dict[str, Any]


def run_recipe(
    recipe: Union[str, Path, Mapping[str, Any], Recipe],
    *,
    overrides: Sequence[str] = (),
    output: Union[str, Path] = "runs",
    progress: bool = True,
) -> Run:
    """Train as a recipe says, evaluate on the test part, and keep everything in a folder.

    Args:
        recipe: As for `load_recipe`: a YAML file, the name of a shipped recipe, a mapping, or a Recipe.
        overrides: Changes like `optimizer.learning_rate=0.01`.
        output: Where the folder `<recipe>-<time>/` is made.
        progress: As for `fit`.

    Returns:
        The run. Its folder holds the resolved recipe, `history.csv` and `.json`, `curves.png`,
        `scores.json`, `log.txt` and `checkpoints`, from which `resume_run` goes on after whatever stops it.

    Raises:
        RecipeError: The recipe cannot be run as written; nothing was made.
        MxkitError: As `fit` says; the folder holds what was reached, and `log.txt` the traceback.

    Side effects:
        Reseeds Python's, NumPy's and MXNet's generators with the recipe's seed.
    """
    recipe = load_recipe(recipe, overrides)
    data, net = _prepare(recipe)
    return _train(recipe, RunFolder.create(recipe, output), data, net, progress)


def resume_run(run: Union[str, Path], *, overrides: Sequence[str] = (), progress: bool = True) -> Run:
    """Go on with a run that was stopped, from its newest whole checkpoint, to the same end bit for bit.

    Args:
        run: Its folder. One that had ended is only evaluated again, unless `overrides` make it longer.
        overrides: Changes like `epochs=20`, which are kept in the folder's recipe.
        progress: As for `fit`.

    Raises:
        RecipeError: This is no folder of a run, or the changes cannot be run.
        CheckpointError: As for `fit`. A run that was stopped before its first checkpoint begins anew.
    """
    folder = RunFolder(run)
    recipe = folder.recipe(overrides)
    data, net = _prepare(recipe)
    if overrides:
        folder.write_recipe(recipe)
    return _train(recipe, folder, data, net, progress)


def _prepare(recipe: Recipe) -> Tuple[Splits, Any]:
    data = load_data(recipe)
    check_buildable(recipe)
    seed_all(recipe.seed)
    where = devices(recipe.devices)
    net = build_net(recipe)
    initialize(net, spec_of(recipe.initializer), devices=where)
    return data, net


def _train(recipe: Recipe, folder: RunFolder, data: Splits, net: Any, progress: bool) -> Run:
    history = fit(
        net,
        loader(recipe, data, "train"),
        loss=spec_of(recipe.loss),
        trainer=spec_of(recipe.optimizer),
        epochs=recipe.epochs,
        valid=loader(recipe, data, "valid"),
        metrics=[spec_of(metric) for metric in recipe.metrics],
        accumulate=recipe.accumulate,
        clip_norm=recipe.clip_norm,
        callbacks=[Recorder(folder)],
        seed=recipe.seed,
        checkpoint=Checkpoints(folder.checkpoints, **dict(recipe.checkpoints)),
        resume="auto",
        progress=progress,
    )
    scores = evaluate_split(recipe, net, data, "test")
    write_atomically(folder.path / "scores.json", json.dumps({"test": scores}, indent=1).encode())
    for line in describe_scores("test", scores):
        folder.log(line)
    return Run(folder.path, net, history, scores)


def check_buildable(recipe: Recipe) -> None:
    """Build once what is built by name, because some values only their builder can judge.

    Raises:
        RecipeError: A builder refuses its arguments.
    """
    builders: Dict[str, Callable[[Any], Any]] = {
        "loss": get_loss,
        "initializer": get_initializer,
        "optimizer": lambda spec: mx.optimizer.create(spec[0], **spec[1]),
        "metrics": get_metrics,
    }
    try:
        Checkpoints(recipe.name, **dict(recipe.checkpoints))
    except ValueError as error:
        raise RecipeError(f"recipe {recipe.name}: checkpoints: {error}") from error
    for section, build in builders.items():
        part = getattr(recipe, section)
        try:
            build([spec_of(one) for one in part] if isinstance(part, list) else spec_of(part))
        except (TypeError, ValueError, AssertionError) as error:
            raise RecipeError(f"recipe {recipe.name}: {section}: {type(error).__name__}: {error}") from error


def load_run(run: Union[str, Path], which: str = "last") -> Tuple[Recipe, Any]:
    """Rebuild the net of a run's folder and load its newest whole checkpoint, or the best one.

    Returns:
        The resolved recipe, and the net on the recipe's devices.

    Raises:
        RecipeError: `run` is no folder of a run.
        CheckpointError: It has no whole checkpoint, or one that does not fit the net.
    """
    folder = RunFolder(run)
    recipe = folder.recipe()
    net = build_net(recipe)
    load_checkpoint(folder.checkpoints, net, which=which, devices=recipe.devices)
    return recipe, net


def build_net(recipe: Recipe) -> Any:
    """The recipe's net, not initialized."""
    try:
        net = get_model(recipe.model.name, **recipe.model.arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, MxkitError):
            raise
        raise RecipeError(f"recipe {recipe.name}: model: {error}") from error
    if recipe.hybridize and isinstance(net, gluon.HybridBlock):
        net.hybridize(static_alloc=True)
    return net


def load_data(recipe: Recipe) -> Splits:
    """The recipe's dataset.

    Raises:
        RecipeError: The dataset refuses an argument's value.
    """
    try:
        data: Splits = DATASETS[recipe.data.name](**recipe.data.arguments)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"recipe {recipe.name}: data: {error}") from error
    return data


def loader(recipe: Recipe, data: Splits, split: str) -> ArrayLoader:
    """Batches of one part of the data; the training part is shuffled by the recipe's seed.

    Raises:
        UnknownNameError: `split` is no part of the data.
    """
    if split not in SPLITS:
        raise unknown_name("part of the data", split, SPLITS)
    part = getattr(data, split)
    if split == "train":
        return ArrayLoader(part.x, part.y, recipe.data.batch_size, shuffle=True, seed=recipe.seed)
    return ArrayLoader(part.x, part.y, recipe.data.eval_batch_size)


def evaluate_split(recipe: Recipe, net: Any, data: Splits, split: str) -> Dict[str, Any]:
    """Loss and metrics of the recipe over one part of the data."""
    return evaluate(
        net,
        loader(recipe, data, split),
        loss=spec_of(recipe.loss),
        metrics=[spec_of(metric) for metric in recipe.metrics],
    )


def describe_scores(split: str, scores: Mapping[str, Any]) -> List[str]:
    """One line a number, like `test accuracy 0.9899`; one a row of a matrix."""
    lines = []
    for name, value in scores.items():
        if isinstance(value, float):
            lines.append(f"{split} {name} {value:.4f}")
        else:
            lines += [f"{split} {name} {' '.join(f'{count:4}' for count in row)}" for row in value]
    return lines


def spec_of(component: Component) -> Any:
    """A component as the public calls take it: a name, and its arguments."""
    return component.name, component.arguments
