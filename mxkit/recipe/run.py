"""Runs a recipe: makes the calls of its plan, and keeps the results in a folder."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
import re
import shlex
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.blocks import net_devices
from mxkit.core.device import devices
from mxkit.core.system import write_atomically, write_json
from mxkit.data.splits import Splits
from mxkit.distributed.group import current, rank
from mxkit.distributed.kvstores import kvstore_kept
from mxkit.errors import CheckpointWarning, DeviceError, RecipeError
from mxkit.recipe.building import (
    Call,
    attempt,
    data_call,
    execute,
    fit_call,
    kvstore_call,
    loader_calls,
    net_calls,
    score_calls,
    value_of,
    written,
)
from mxkit.recipe.data_checks import load_data, read_data, warn_of_outputs
from mxkit.recipe.folder import Recorder, RunFolder, describe_scores, recipe_run, write_state
from mxkit.recipe.net_facts import empty_net, read_facts, record_facts
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.schema import Problem, Recipe, differences, refuse, under_switches
from mxkit.runtime.engine_settings import devices_on_cpu, threads_of_recipe
from mxkit.storage.directory import Checkpoint, checkpoint_paths, only_writer
from mxkit.storage.hub import find_hub_file, is_hub_address
from mxkit.storage.snapshot import load_checkpoint
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.logs import RunLog, closed_logs
from mxkit.training.history import History
from mxkit.training.precision import get_precision
from mxkit.training.signals import ctrl_c_in_imports
from mxkit.training.state import FitState

# Keys that do not decide the weights of a run that goes on, or that `fit` itself compares.
_NOT_OF_TRAINING = ("name", "description", "epochs", "updates", "evaluate", "checkpoints", "callbacks", "metrics")


class Run(NamedTuple):
    """Results of a recipe.

    Attributes:
        folder: The folder with the run's files.
        net: The trained net.
        history: One row per epoch.
        scores: Loss and metrics over the part of the data in `split`; of several workers the first one has them.
        split: The part, "test" unless the recipe has `evaluate.split`.
        had_ended: True if a resumed run was complete already, so that nothing was trained.
    """

    folder: Path
    net: Any
    history: History
    scores: Dict[str, Any]
    split: str = "test"
    had_ended: bool = False


class PreparedRun(NamedTuple):
    """A run whose data and net are ready for the training.

    Attributes:
        recipe: The resolved recipe.
        folder: The folder for the run's files.
        results: Results of all calls before the training, by name: data, loaders, net.
        is_new: True if the folder was made for this run, False if the run is resumed.
        before: The recipe in the folder, if it is another one; else None.
    """

    recipe: Recipe
    folder: RunFolder
    results: Dict[str, Any]
    is_new: bool
    before: Optional[Recipe] = None

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
    """Train a recipe, evaluate the net on the test part, and keep everything in a folder.

    Args:
        recipe: A YAML file, the name of a shipped recipe, a mapping, or a Recipe.
        overrides: Changes like `optimizer.learning_rate=0.01`.
        output: The folder in which `<recipe>-<time>/` is made.
        progress: As for `fit`.

    Returns:
        The run. Its folder holds the resolved recipe, `history.csv` and `.json`, `curves.png`, `net.json`,
        `scores.json`, `log.txt` and `checkpoints`. `mxkit.recipe.resume_run` resumes a run that was stopped.

    Raises:
        RecipeError: The recipe has mistakes; no folder was made.
        MxkitError: As for `fit`; the folder holds all files up to the error, and `log.txt` the traceback. Without a
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
    name: Optional[str] = None,
) -> PreparedRun:
    """The first half of `run_recipe`: everything before the training; `name` is as for `RunFolder.create`."""
    recipe = pin_weights(load_recipe(recipe, overrides))
    results = _prepared(recipe, overrides)
    group = current()
    if group is None:
        folder = RunFolder.create(recipe, output, name)
    else:  # of all workers only the first one writes there
        made = str(RunFolder.create(recipe, output, name).path.absolute()) if group.rank == 0 else None
        folder = RunFolder(group.gather("the folder of the run", made)[0])
    return PreparedRun(recipe, folder, results, is_new=True)


def as_script(recipe: Recipe) -> str:
    """Write a Python script that gives the same numbers as the recipe.

    The recipe's data is loaded, because arrays and files need different loaders.

    Args:
        recipe: The checked recipe.

    Returns:
        The script. It writes its checkpoints to `scripts/<name>`, and resumes from them when it is run again.

    Raises:
        MxkitError: The data cannot be loaded.
    """
    data = load_data(recipe)
    head = f"{recipe.description or recipe.name}\n\nWritten by `mxkit show --as-script {recipe.name}`.\n"
    head = head.replace("\\", "\\\\").replace('"""', "'''")
    kvstore = [kvstore_call(recipe)] if recipe.kvstore != "dist_sync" or recipe.compression else []
    blocks = [
        [data_call(recipe), *loader_calls(recipe, data)],
        net_calls(recipe),
        [*kvstore, fit_call(recipe, data)],
        score_calls(recipe, data),
    ]
    body = "\n\n".join("\n".join(map(written, block)) for block in blocks)
    body += f"\nfor name, value in scores.items():\n    print({recipe.evaluate.split!r}, name, value)\n"
    imports = ["from pathlib import Path"]
    if recipe.imports:
        imports += ["import sys", "", f"sys.path.insert(0, {recipe.import_path!r})"]
    imports += ["", "import mxkit"]
    number, count = recipe.threads, devices_on_cpu(recipe.devices)
    if number or count > 1:
        given = ", ".join([str(number)] * bool(number) + [f"devices={count}"] * (count > 1))
        imports += ["", f"mxkit.threads({given})  # before MXNet is imported", ""]
    if recipe.arrays == "np" or re.search(r"\bmx\.", body):
        imports.append("import mxnet as mx")
    if re.search(r"\bnp\.", body):
        imports.append("import numpy as np")
    if recipe.arrays == "np":  # before the recipe's modules, which may make arrays
        imports += ["", "mx.npx.set_np()", ""]
    imports += [f"import {name}" for name in recipe.imports]
    folder = f"folder = Path({f'scripts/{recipe.name}'!r})"
    return "\n\n".join([f'"""{head}"""', "\n".join(imports).rstrip(), folder, body])


def resume_run(run: Union[str, Path], *, overrides: Sequence[str] = (), progress: Union[bool, str] = True) -> Run:
    """Resume a run that was stopped from its newest whole checkpoint; it ends bit for bit like an uninterrupted run.

    Args:
        run: Folder of the run. A complete run is only evaluated again, unless `overrides` make it longer.
        overrides: Changes like `epochs=20`; they are written into the folder's recipe.
        progress: As for `fit`.

    Returns:
        The run, as from `run_recipe`.

    Raises:
        RecipeError: This is not the folder of a run, or the changed recipe has mistakes.
        CheckpointError: As for `fit`. A run that was stopped before its first checkpoint starts again.
    """
    return train_run(stopped_run(run, overrides=overrides), progress=progress)


def stopped_run(run: Union[str, Path], *, overrides: Sequence[str] = ()) -> PreparedRun:
    """The first half of `resume_run`: everything before the training."""
    folder = RunFolder(run)
    recipe = folder.recipe(overrides, to_train=True)
    before = folder.recipe(to_train=True) if overrides else None
    if before is not None:
        _refuse_other_settings(folder, before, recipe)
    recipe = pin_weights(recipe)
    return PreparedRun(recipe, folder, _prepared(recipe, overrides), is_new=False, before=before)


def pin_weights(recipe: Recipe) -> Recipe:
    """A recipe whose weights on the Hugging Face hub are named by their commit, so that a resume takes the same ones.

    Raises:
        RecipeError: The repository has no safetensors file, or several.
        DownloadError: There are no such weights, or the hub cannot be reached.
    """
    if not is_hub_address(recipe.model.weights):
        return recipe
    try:
        address = find_hub_file(str(recipe.model.weights)).address
    except ValueError as error:
        refuse(recipe.name, [Problem.of("model.weights", error)])
        raise
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": address})})


def _refuse_other_settings(folder: RunFolder, earlier: Recipe, recipe: Recipe) -> None:
    """Refuse another kind of arrays, and settings of the optimizer that the checkpoint's would replace."""
    before, now = earlier.optimizer, recipe.optimizer
    kept: Dict[str, Any] = {"arrays": (earlier.arrays, recipe.arrays)}
    if before.name == now.name and checkpoint_paths(folder.checkpoints):
        names = (*before.arguments, *now.arguments)
        kept.update({f"optimizer.{name}": (before.arguments.get(name), now.arguments.get(name)) for name in names})
    for key, (old, new) in kept.items():
        if old != new:
            raise RecipeError(
                f"{folder.path}: {key} was {old!r}, is {new!r}: a resumed run keeps it. Leave this out, or train "
                f"a new run from these weights: mxkit train {folder.path / 'recipe.yaml'} --set {key}={new} "
                f"--set model.weights={folder.path}"
            )


def _changes_of_training(folder: RunFolder, before: Recipe, recipe: Recipe, state: FitState) -> List[str]:
    """Changed values that train the rest of a resumed run, with the epoch from which they hold.

    Warns:
        CheckpointWarning: There are some.
    """
    lines = differences(before, recipe) if state.updates else []
    changed = [" ".join(line.split()) for line in lines if not line.startswith(_NOT_OF_TRAINING)]
    notes = [f"from epoch {state.epoch}, after update {state.updates}: {line}" for line in changed]
    if notes:
        warnings.warn(
            f"{folder.path}: {'; '.join(notes)}. The run does not equal one with these values in all epochs; comments "
            "in its recipe.yaml say so",
            CheckpointWarning,
            stacklevel=2,
        )
    return notes


def _refuse_changes_of_training(folder: RunFolder, before: Recipe, recipe: Recipe, stopped: Optional[str]) -> None:
    """Refuse changes of a run that has ended: its recipe would describe a training that never was."""
    changed = [key for key in Recipe.model_fields if getattr(before, key) != getattr(recipe, key) and key != "evaluate"]
    if changed:
        raise RecipeError(
            f"{folder.path}: this run had ended, so nothing would be trained with the changed {', '.join(changed)}. "
            f"{way_to_train_on(folder.path, recipe, stopped)}"
        )


def way_to_train_on(folder: Path, recipe: Recipe, stopped: Optional[str]) -> str:
    """What trains a run that has ended further; `stopped` is the reason why it ended before its last epoch, if so."""
    if stopped:  # by EarlyStopping or another callback
        new = f"mxkit train {shlex.quote(str(folder / 'recipe.yaml'))} --set model.weights={shlex.quote(str(folder))}"
        return f"{stopped}. Train a new run from these weights: {new}"
    name = "epochs" if recipe.epochs is not None else "updates"
    return f"To train on, add --set {name}=N with N above {getattr(recipe, name)}"


def prepare(recipe: Recipe, overrides: Sequence[str] = ()) -> Tuple[Splits, Any]:
    """The data and the net of a recipe, ready for `fit`.

    Args:
        recipe: The checked recipe.
        overrides: Changes that it was loaded with; one without effect on the data is refused.

    Raises:
        RecipeError: A value of the recipe does not fit the data or the net.
        DeviceError: The recipe's devices do not exist here, or do not compute in the precision of `amp`.

    Side effects:
        Reseeds the generators, as `run_recipe` does.
    """
    results = _prepared(recipe, overrides)
    return results["data"], results["net"]


@under_switches
def _prepared(recipe: Recipe, overrides: Sequence[str]) -> Dict[str, Any]:
    """Results of all calls before the training, by name; mistakes that data and net show are one error."""
    data, problems = read_data(recipe, overrides)
    if recipe.threads is not None:
        try:
            threads_of_recipe(recipe.threads)
        except (ValueError, RuntimeError) as error:
            problems.append(Problem.of("threads", error))
    results: Dict[str, Any] = {"data": data}
    if not problems:
        problems = attempt(loader_calls(recipe, data), results)
    if not problems or recipe.model.finetune is None:  # `finetune` needs a sample of the data
        try:
            problems += attempt(net_calls(recipe), results)
        except Exception:
            refuse(recipe.name, problems)
            raise
    refuse(recipe.name, problems)
    warn_of_outputs(recipe, results["net"], data)
    get_precision(recipe.amp, net_devices(results["net"]))  # `fit` would refuse it only after the folder is made
    return results


def train_run(
    prepared: PreparedRun,
    *,
    progress: Union[bool, str] = True,
    report: Optional[Callable[[Sequence[Path]], Any]] = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """The second half of `run_recipe` and `resume_run`: train, and evaluate.

    Args:
        prepared: The run.
        progress: As for `fit`.
        report: Writes the report into the folders of runs; called only for callbacks that attach it.
        callbacks: They come after the recipe's.
    """
    with ExitStack() as held:
        if not rank():
            held.enter_context(only_writer(prepared.folder.path))
        logs = held.enter_context(closed_logs())
        run = _train_run(prepared, progress, logs, callbacks)
        if logs and not rank():
            if report is not None:
                report([run.folder])
            for log in logs:
                log.write_scores({f"{run.split}_{name}": score for name, score in run.scores.items()})
    return run


def _train_run(
    prepared: PreparedRun, progress: Union[bool, str], logs: List[RunLog], callbacks: Sequence[Callback]
) -> Run:
    recipe, folder, results, is_new, earlier_recipe = prepared
    results["folder"] = folder.path
    earlier, trained = checkpoint_paths(folder.checkpoints), False
    files = [folder.path / name for name in ("recipe.yaml", "state.json")]
    before = {path: path.read_bytes() for path in files if earlier_recipe and path.is_file()}
    scores: Dict[str, Any] = {}
    try:
        with ctrl_c_in_imports():
            history = _fit(recipe, prepared, progress, logs, callbacks)
        if rank() or (history.stopped or "").startswith("KeyboardInterrupt"):
            return Run(folder.path, results["net"], history, scores, recipe.evaluate.split)
        _refuse_missing_end(folder, history)
        trained = True
        scores = _final_scores(recipe, folder, results)
    except Exception as error:
        if rank() == 0:
            if folder.is_running:  # the Recorder has not seen the error
                folder.log_error(error)
            if is_new and not trained:
                folder.move_failed()
            _put_back(before, folder, earlier)
        raise
    except BaseException:
        if rank() == 0:
            folder.mark_stopped("KeyboardInterrupt before the final scores")
        raise
    had_ended = bool(earlier and history and history[-1]["updates"] <= int(earlier[0].name.split("-")[-1]))
    write_state(folder.path, "stopped" if history.stopped else "finished", history.stopped or "")
    return Run(folder.path, results["net"], history, scores, recipe.evaluate.split, had_ended)


def _refuse_missing_end(folder: RunFolder, history: History) -> None:
    """Refuse to score a net that no checkpoint holds, because the disk was full."""
    newest = max((int(path.name.split("-")[-1]) for path in checkpoint_paths(folder.checkpoints)), default=-1)
    if not history.stopped and history and newest < history[-1]["updates"]:
        raise OSError(
            f"the last checkpoint of {folder.path} could not be written. Free some space, and resume the run: "
            f"mxkit train --resume {shlex.quote(str(folder.path))}"
        )


def _put_back(files: Dict[Path, bytes], folder: RunFolder, earlier: Sequence[Path]) -> None:
    """Write the recipe and the state from before a failed resume, unless it wrote checkpoints by the changed recipe."""
    for path, content in files.items() if checkpoint_paths(folder.checkpoints) == list(earlier) else ():
        write_atomically(path, content)


@under_switches
def _fit(
    recipe: Recipe, prepared: PreparedRun, progress: Union[bool, str], logs: List[RunLog], more: Sequence[Callback]
) -> History:
    _, folder, results, _, before = prepared

    def at_begin(state: FitState) -> None:  # only now: `fit` may refuse to resume with these changes
        if before is not None:
            if state.done:
                _refuse_changes_of_training(folder, before, recipe, state.stop_reason)
            folder.write_recipe(recipe, _changes_of_training(folder, before, recipe, state))
        record_facts(folder.path, recipe, prepared.data)

    planned = fit_call(recipe, prepared.data)
    made = value_of(planned.named.get("callbacks", []), results)
    logs += [one for one in made if isinstance(one, RunLog)]
    for log in logs:
        log.recipe_run = recipe_run(recipe, folder)
    named = {**planned.named, "callbacks": [*made, *more, Call(Recorder, (folder, at_begin))], "progress": progress}
    with kvstore_kept():
        calls = [kvstore_call(recipe), replace(planned, named=named)]
        history: History = execute(calls, results, recipe.name)["history"]
    return history


@under_switches
def _final_scores(recipe: Recipe, folder: RunFolder, results: Dict[str, Any]) -> Dict[str, Any]:
    split = recipe.evaluate.split
    scores: Dict[str, Any] = execute(score_calls(recipe, results["data"]), results, recipe.name)["scores"]
    write_json(folder.path / "scores.json", {split: scores})
    for line in describe_scores(split, scores):
        folder.log(line)
    if recipe.evaluate.which == "last" and any(one.arguments.get("restore_best") for one in recipe.callbacks):
        text = (
            "these scores are of the weights that restore_best put back, and no checkpoint holds them: mxkit evaluate, "
            "predict and export load the last weights. For one net set checkpoints.keep_best and evaluate.which=best"
        )
        folder.log(text)
        warnings.warn(text, CheckpointWarning, stacklevel=2)
    return scores


def load_run(run: Union[str, Path], which: Optional[str] = None) -> Tuple[Recipe, Any]:
    """Build the net of a run and load a checkpoint of the run into it.

    The folder is enough, wherever it is, and it is not changed.

    Args:
        run: Folder of the run.
        which: "last" for the newest whole checkpoint, or "best". None takes that of the run's final scores,
            `evaluate.which` of the recipe.

    Returns:
        The resolved recipe, and the net on the recipe's devices; on the CPU if these do not exist here.

    Raises:
        RecipeError: `run` is not the folder of a run.
        CheckpointError: The run has no whole checkpoint, the best one is missing, or it does not fit the net.

    Side effects:
        Imports the copies of the recipe's own modules in the folder, which runs their code: use only folders whose
        author you trust.

    Warns:
        UserWarning: The recipe's devices do not exist here, or a module was changed after the training.
    """
    return open_run(run, which)[:2]


def open_run(run: Union[str, Path], which: Optional[str] = None) -> Tuple[Recipe, Any, Checkpoint]:
    """The recipe and the net of `load_run`, and the checkpoint that was loaded."""
    folder = RunFolder(run)
    recipe = folder.recipe()
    try:
        devices(recipe.devices)
    except DeviceError as error:
        warnings.warn(f"the net is loaded on the CPU: {error}", stacklevel=3)
        recipe = recipe.model_copy(update={"devices": "cpu"})
    net = empty_net(recipe, None if recipe.model.finetune is None else read_facts(run).sample())
    with recipe.switches():
        which = which or recipe.evaluate.which
        return recipe, net, load_checkpoint(folder.checkpoints, net, which=which, devices=recipe.devices)
