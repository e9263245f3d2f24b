"""A recipe, run: every line of it becomes an argument of a public call."""

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union

from mxkit.checkpoint.snapshot import load_checkpoint
from mxkit.data.splits import Splits
from mxkit.files import write_atomically
from mxkit.recipe.batches import batches, first_inputs, has_samples, load_data
from mxkit.recipe.building import callbacks_of
from mxkit.recipe.folder import Recorder, RunFolder
from mxkit.recipe.nets import empty_net, ready_net
from mxkit.recipe.pair_scores import pair_scores
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.schema import Recipe
from mxkit.seeding import seed_all
from mxkit.training.checkpoints import Checkpoints
from mxkit.training.evaluation import evaluate
from mxkit.training.history import History, fixed
from mxkit.training.loop import fit

# Arguments of `fit` that are keys of a recipe, under the same name.
SAME = (
    "epochs",
    "updates",
    "accumulate",
    "accumulate_samples",
    "clip_norm",
    "clip_value",
    "amp",
    "limit_batches",
    "validate_every",
    "seed",
    "check_finite",
)


class Run(NamedTuple):
    """What a recipe left.

    Attributes:
        folder: Where its files are.
        net: The trained net.
        history: One row an epoch.
        scores: Loss and metrics over the part of the data that is reported on.
        split: That part, "test" unless the recipe says otherwise.
    """

    folder: Path
    net: Any
    history: History
    scores: Dict[str, Any]
    split: str = "test"


def run_recipe(
    recipe: Union[str, Path, Mapping[str, Any], Recipe],
    *,
    overrides: Sequence[str] = (),
    output: Union[str, Path] = "runs",
    progress: Union[bool, str] = True,
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
        Imports the modules of `imports`. Reseeds Python's, NumPy's and MXNet's generators with the recipe's seed.
    """
    recipe = load_recipe(recipe, overrides)
    data, net = prepare(recipe)
    return _train(recipe, RunFolder.create(recipe, output), data, net, progress)


def resume_run(run: Union[str, Path], *, overrides: Sequence[str] = (), progress: Union[bool, str] = True) -> Run:
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
    data, net = prepare(recipe)
    if overrides:
        folder.write_recipe(recipe)
    return _train(recipe, folder, data, net, progress)


def prepare(recipe: Recipe) -> Tuple[Splits, Any]:
    """The data and the net of a recipe, ready for `fit`; what only they can judge is judged here.

    Raises:
        RecipeError: The recipe cannot be run as written.

    Side effects:
        Reseeds the generators, as `run_recipe` says.
    """
    data = load_data(recipe)
    sample = None if recipe.model.finetune is None else first_inputs(recipe, data)
    seed_all(recipe.seed)
    return data, ready_net(recipe, sample)


def _train(recipe: Recipe, folder: RunFolder, data: Splits, net: Any, progress: Union[bool, str]) -> Run:
    history = fit(
        net,
        batches(recipe, data, "train", training=True),
        loss=recipe.loss.spec,
        trainer=recipe.optimizer.spec,
        valid=batches(recipe, data, "valid") if has_samples(data.valid) else None,
        metrics=[one.spec for one in recipe.metrics],
        callbacks=[*callbacks_of(recipe, folder.path), Recorder(folder)],
        checkpoint=Checkpoints(folder.checkpoints, **recipe.checkpoints.model_dump()),
        resume="auto",
        progress=progress,
        **{name: getattr(recipe, name) for name in SAME},
    )
    try:
        scores = _final_scores(recipe, folder, data, net)
    except Exception as error:
        folder.log_error(error)
        raise
    return Run(folder.path, net, history, scores, recipe.evaluate.split)


def _final_scores(recipe: Recipe, folder: RunFolder, data: Splits, net: Any) -> Dict[str, Any]:
    split = recipe.evaluate.split
    if recipe.evaluate.which == "best":
        load_checkpoint(folder.checkpoints, net, which="best")
    scores = evaluate_split(recipe, net, data, split)
    write_atomically(folder.path / "scores.json", json.dumps({split: scores}, indent=1).encode())
    for line in describe_scores(split, scores):
        folder.log(line)
    return scores


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
    sample = None if recipe.model.finetune is None else first_inputs(recipe, load_data(recipe))
    net = empty_net(recipe, sample)
    load_checkpoint(folder.checkpoints, net, which=which, devices=recipe.devices)
    return recipe, net


def evaluate_split(recipe: Recipe, net: Any, data: Splits, split: str) -> Dict[str, Any]:
    """Loss and metrics of the recipe over one part of the data; for pairs also how often their distances are right."""
    metrics = recipe.scored_metrics
    scores = evaluate(net, batches(recipe, data, split), loss=recipe.loss.spec, metrics=[one.spec for one in metrics])
    if recipe.data.pairs is not None:
        scores.update(pair_scores(recipe, net, data, split))
    return scores


def describe_scores(split: str, scores: Mapping[str, Any]) -> List[str]:
    """One line a number, like `test accuracy 0.9899`; one a row of a matrix."""
    return [f"{split} {name} {row}" for name, value in scores.items() for row in _rows(value)]


def _rows(value: Any) -> List[str]:
    if not isinstance(value, list):
        return [fixed(value)]
    if any(isinstance(one, list) for one in value):
        return [row for one in value for row in _rows(one)]
    return [" ".join(f"{one:4}" if isinstance(one, int) else fixed(one) for one in value)]
