"""A recipe, run: its plan of public calls is executed, and a folder keeps what comes of it."""

from dataclasses import replace
import json
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.blocks import net_devices
from mxkit.core.device import devices
from mxkit.core.files import write_atomically
from mxkit.data.splits import Splits
from mxkit.errors import DeviceError, MxkitError, RecipeError
from mxkit.recipe.building import Call, execute, fit_call, loader_calls, net_calls
from mxkit.recipe.data_checks import check_net, load_data
from mxkit.recipe.folder import Recorder, RunFolder, write_state
from mxkit.recipe.net_facts import NetFacts, empty_net, facts_of, read_facts, record_facts
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.schema import Recipe
from mxkit.recipe.scores import describe_scores, score_calls
from mxkit.storage.directory import checkpoint_paths
from mxkit.storage.snapshot import load_checkpoint
from mxkit.training.history import History
from mxkit.training.precision import get_precision


class Run(NamedTuple):
    """What a recipe left.

    Attributes:
        folder: Where its files are.
        net: The trained net.
        history: One row an epoch.
        scores: Loss and metrics over the part of the data that is reported on.
        split: That part, "test" unless the recipe says otherwise.
        had_ended: The run had ended before it was resumed, so that nothing was trained.
    """

    folder: Path
    net: Any
    history: History
    scores: Dict[str, Any]
    split: str = "test"
    had_ended: bool = False


class PreparedRun(NamedTuple):
    """A run that is ready to be trained.

    Attributes:
        recipe: Resolved.
        folder: Where its files go.
        results: Of the calls up to the training, by name: data, loaders, net.
        is_new: Its folder was made for it.
        is_changed: The recipe is not the one in the folder.
    """

    recipe: Recipe
    folder: RunFolder
    results: Dict[str, Any]
    is_new: bool
    is_changed: bool

    @property
    def data(self) -> Splits:
        """The data of the recipe."""
        data: Splits = self.results["data"]
        return data


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
        `net.json`, `scores.json`, `log.txt` and `checkpoints`, from which `resume_run` goes on after whatever stops it.

    Raises:
        RecipeError: The recipe cannot be run as written; nothing was made.
        MxkitError: As `fit` says; the folder holds what was reached, and `log.txt` the traceback. Without a
            checkpoint it is renamed to `failed-<recipe>-<time>/`.

    Side effects:
        Imports the modules of `imports`. Reseeds Python's, NumPy's and MXNet's generators with the recipe's seed.
    """
    return train_run(new_run(recipe, overrides=overrides, output=output), progress=progress)


def new_run(
    recipe: Union[str, Path, Mapping[str, Any], Recipe],
    *,
    overrides: Sequence[str] = (),
    output: Union[str, Path] = "runs",
) -> PreparedRun:
    """The first half of `run_recipe`: everything up to the training."""
    recipe = load_recipe(recipe, overrides)
    results = _prepared(recipe, overrides)
    return PreparedRun(recipe, RunFolder.create(recipe, output), results, is_new=True, is_changed=False)


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
    return train_run(stopped_run(run, overrides=overrides), progress=progress)


def stopped_run(run: Union[str, Path], *, overrides: Sequence[str] = ()) -> PreparedRun:
    """The first half of `resume_run`: everything up to the training."""
    folder = RunFolder(run)
    recipe = folder.recipe(overrides, to_train=True)
    results = _prepared(recipe, overrides)
    return PreparedRun(recipe, folder, results, is_new=False, is_changed=bool(overrides))


def prepare(recipe: Recipe, overrides: Sequence[str] = ()) -> Tuple[Splits, Any]:
    """The data and the net of a recipe, ready for `fit`; what only they can judge is judged here.

    Args:
        recipe: Checked.
        overrides: Changes that it was loaded with, of which none may be without effect on the data.

    Raises:
        RecipeError: The recipe cannot be run as written.
        DeviceError: Its devices are not here, or do not compute in the precision of `amp`.

    Side effects:
        Reseeds the generators, as `run_recipe` says.
    """
    results = _prepared(recipe, overrides)
    return results["data"], results["net"]


def _prepared(recipe: Recipe, overrides: Sequence[str]) -> Dict[str, Any]:
    """Everything that the training needs, by its name in the plan."""
    data = load_data(recipe, overrides)
    results = execute([*loader_calls(recipe, data), *net_calls(recipe)], {"data": data}, recipe.name)
    check_net(recipe, results["net"])
    get_precision(recipe.amp, net_devices(results["net"]))  # `fit` would refuse it too, and leave a folder
    return results


def train_run(prepared: PreparedRun, *, progress: Union[bool, str] = True) -> Run:
    """The second half of `run_recipe` and `resume_run`: train, and evaluate."""
    recipe, folder, results, is_new, _ = prepared
    results["folder"] = folder.path
    before = _newest_step(folder)
    try:
        history = _fit(prepared, progress)
    except Exception:
        if is_new:
            folder.move_failed()
        raise
    try:
        scores = _final_scores(recipe, folder, results)
    except Exception as error:
        folder.log_error(error)
        raise
    had_ended = before is not None and len(history) > 0 and history[-1]["updates"] <= before
    write_state(folder.path, "stopped" if history.stopped else "finished", history.stopped or "")
    return Run(folder.path, results["net"], history, scores, recipe.evaluate.split, had_ended)


def _newest_step(folder: RunFolder) -> Optional[int]:
    paths = checkpoint_paths(folder.checkpoints)
    return int(paths[0].name.split("-")[-1]) if paths else None


def _fit(prepared: PreparedRun, progress: Union[bool, str]) -> History:
    recipe, folder, results, _, is_changed = prepared
    data = results["data"]

    def at_begin() -> None:  # not before: changes with which a run cannot go on would make its folder useless
        if is_changed:
            folder.write_recipe(recipe)
        record_facts(folder.path, recipe, data)

    planned = fit_call(recipe, data)
    callbacks = [*planned.named.get("callbacks", []), Call(Recorder, (folder, at_begin))]
    named = {**planned.named, "callbacks": callbacks, "progress": progress}
    history: History = execute([replace(planned, named=named)], results, recipe.name)["history"]
    return history


def _final_scores(recipe: Recipe, folder: RunFolder, results: Dict[str, Any]) -> Dict[str, Any]:
    split = recipe.evaluate.split
    scores: Dict[str, Any] = execute(score_calls(recipe, results["data"]), results, recipe.name)["scores"]
    write_atomically(folder.path / "scores.json", json.dumps({split: scores}, indent=1).encode())
    for line in describe_scores(split, scores):
        folder.log(line)
    return scores


def load_run(run: Union[str, Path], which: str = "last") -> Tuple[Recipe, Any]:
    """Rebuild the net of a run's folder and load its newest whole checkpoint, or the best one.

    The folder is enough, wherever it lies; nothing in it is changed. The run's data is read only where an earlier mxkit
    wrote no `net.json`, and the net is one of `finetune`.

    Args:
        run: The folder.
        which: "last" or "best".

    Returns:
        The resolved recipe, and the net on the recipe's devices; on the CPU where these are not here.

    Raises:
        RecipeError: `run` is no folder of a run.
        CheckpointError: It has no whole checkpoint, or one that does not fit the net; or the best one is gone.

    Side effects:
        Imports the modules of the recipe's own that are copied in the folder, which runs them: only for folders whose
        origin you trust.

    Warns:
        UserWarning: The recipe's devices are not here, or a module was changed since the run was trained.
    """
    folder = RunFolder(run)
    recipe = folder.recipe()
    try:
        devices(recipe.devices)
    except DeviceError as error:
        warnings.warn(f"the net is loaded on the CPU: {error}", stacklevel=2)
        recipe = recipe.model_copy(update={"devices": "cpu"})
    sample = None if recipe.model.finetune is None else run_facts(folder, recipe).sample()
    net = empty_net(recipe, sample)
    load_checkpoint(folder.checkpoints, net, which=which, devices=recipe.devices)
    return recipe, net


def run_facts(run: Union[str, Path, RunFolder], recipe: Recipe) -> NetFacts:
    """What a run's `net.json` says of its net; of a run that has none, what its data says.

    Args:
        run: The folder.
        recipe: Of the run.

    Raises:
        RecipeError: There is no `net.json`, and the data cannot be read.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    facts = read_facts(folder.path)
    if facts is not None:
        return facts
    try:
        return facts_of(recipe, load_data(recipe))
    except (MxkitError, OSError) as error:
        raise RecipeError(
            f"{folder.path} has no net.json, because an earlier mxkit trained the run, and its data cannot be read: "
            f"{error}"
        ) from error
