"""The folder of a run: what it holds, its state, and the log that is written while it runs."""

from contextlib import suppress
import datetime
import json
from pathlib import Path
import platform
import traceback
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

from mxkit.core.files import write_atomically
from mxkit.core.trainers import trainer_devices
from mxkit.errors import RecipeError
from mxkit.recipe.environment import record_environment
from mxkit.recipe.net_facts import read_facts
from mxkit.recipe.reading import dump_recipe, load_recipe
from mxkit.recipe.run_code import FOLDER as CODE
from mxkit.recipe.run_code import check_code, has_originals, no_bytecode, warn_of_changes
from mxkit.recipe.schema import Recipe
from mxkit.storage.directory import checkpoint_paths
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.progress import describe_row
from mxkit.training.history import Row
from mxkit.training.signals import Terminated
from mxkit.training.state import FitState
from mxkit.version import __version__
import mxnet as mx
import numpy as np
from pydantic import TypeAdapter
from typing_extensions import Literal
import yaml

STATE = "state.json"
State = Literal["running", "finished", "stopped", "failed"]


class RunState(NamedTuple):
    """What a run was doing when it last wrote its state.

    Attributes:
        state: "running", "finished", "stopped" or "failed".
        reason: What stopped it, or the error that it failed with; empty otherwise.
        epoch: Number of epochs that are complete.
        updates: Number of updates that are complete.
        started: Time at which its folder was made, like "2026-01-31 23:59:59"; empty where an earlier mxkit made it.
        changed: Time at which this was written.
    """

    state: State
    reason: str = ""
    epoch: int = 0
    updates: int = 0
    started: str = ""
    changed: str = ""


def parse_state(text: str) -> RunState:
    """Read the text of a `state.json`.

    Raises:
        ValueError: It holds something else.
    """
    return TypeAdapter(RunState).validate_json(text, strict=True)


def write_state(folder: Path, state: State, reason: str = "", **reached: Any) -> None:
    """Write what a run does now.

    Args:
        folder: Of the run.
        state: As in `RunState`.
        reason: As in `RunState`.
        reached: `epoch` and `updates`; what is left out stays as it was.
    """
    now, file = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S"), folder / STATE
    try:
        before = parse_state(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        # the log of a run that an earlier mxkit began says when
        before = RunState("running", started="" if (folder / "log.txt").exists() else now)
    except (OSError, ValueError):  # somebody damaged it
        before = RunState("running")
    found = before._replace(state=state, reason=reason, changed=now, **reached)
    write_atomically(file, json.dumps(found._asdict(), indent=1, ensure_ascii=False).encode("utf-8"))


class RunFolder:
    """`recipe.yaml`, `net.json`, `environment.json`, `history.csv` `.json`, `curves.png`, `scores.json`, `log.txt`.

    Also `state.json`, `checkpoints/`, and `code/` where the recipe imports modules of its own.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Union[str, Path]) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """Holds the checkpoints."""
        return self.path / "checkpoints"

    @classmethod
    def create(cls, recipe: Recipe, output: Union[str, Path]) -> "RunFolder":
        """Make `output/<recipe>-<time>/` with the resolved recipe in it; an existing folder is never reused."""
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        number = 1
        while True:
            path = Path(output) / f"{recipe.name}-{stamp}{'' if number == 1 else f'-{number}'}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                break
        folder = cls(path)
        folder.write_recipe(recipe)
        write_state(path, "running")
        folder.log(
            f"mxkit {__version__}, MXNet {mx.__version__}, NumPy {np.__version__}, "
            f"Python {platform.python_version()}, {platform.platform()}"
        )
        return folder

    def move_failed(self) -> None:
        """Rename the folder of a run that failed with nothing to go on from, so that `NAME-*` does not stand for it.

        Side effects:
            `path` becomes `failed-NAME-TIME` beside it. Nothing where a checkpoint or an epoch was reached, or where
            the folder cannot be renamed.
        """
        if checkpoint_paths(self.checkpoints) or (self.path / "history.json").exists():
            return
        number = 1
        while True:
            new = self.path.with_name(f"failed-{self.path.name}{'' if number == 1 else f'-{number}'}")
            if not new.exists():
                break
            number += 1
        with suppress(OSError):  # the error of the run is the one to raise
            self.path.rename(new)
            self.path = new

    def write_recipe(self, recipe: Recipe) -> None:
        """Write the resolved recipe."""
        write_atomically(self.path / "recipe.yaml", dump_recipe(recipe).encode())

    def recipe(self, overrides: Sequence[str] = (), *, to_train: bool = False) -> Recipe:
        """The resolved recipe, with changes like `epochs=20`.

        Args:
            overrides: As for `load_recipe`.
            to_train: Import the recipe's own modules from where they were, if they are still there. Otherwise the
                copies in the folder are imported, which are what the net was trained with.

        Raises:
            RecipeError: This is no folder of a run, or the copy of a module was changed.

        Side effects:
            Imports the modules of `imports`, which runs them: only for folders whose origin you trust.

        Warns:
            UserWarning: A module of the recipe's own was changed since the run was trained.
        """
        file = self.path / "recipe.yaml"
        if not file.is_file():
            raise RecipeError(f"{self.path} is no folder of a run: expected a file recipe.yaml in it")
        facts = read_facts(self.path)
        if facts is None or not facts.code.imports:
            return load_recipe(file, overrides)
        where = _import_path(file)
        if not facts.code.files:  # all are installed packages
            recipe = load_recipe(file, overrides)
            warn_of_changes(facts.code, where, "")
            return recipe
        if to_train and has_originals(facts.code, where):
            recipe = load_recipe(file, overrides)
            warn_of_changes(facts.code, where, "the run goes on with what it says now")
            return recipe
        check_code(self.path, facts.code)
        with no_bytecode():
            recipe = load_recipe(file, [*overrides, f"import_path={json.dumps(str((self.path / CODE).resolve()))}"])
        warn_of_changes(facts.code, where, "the copy in the run's folder is used")
        return recipe.model_copy(update={"import_path": where})

    def log(self, text: str) -> None:
        """Add lines to `log.txt`, each with its time."""
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{now}  {line}\n" for line in text.splitlines())

    def log_error(self, error: BaseException) -> None:
        """Add an error's traceback to `log.txt`, and say in `state.json` that the run failed with it."""
        self.log("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        lines = "".join(traceback.format_exception_only(type(error), error)).splitlines()
        write_state(self.path, "failed", next(line for line in lines if line.strip() and not line.startswith(" ")))


def _import_path(file: Path) -> Optional[str]:
    """Where a resolved recipe found its modules, as far as it can be read."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, OSError):
        return None
    path = found.get("import_path") if isinstance(found, dict) else None
    return path if isinstance(path, str) else None


class Recorder(Callback):
    """Keeps the folder up to date, so that a run that ends early leaves what it had reached.

    Args:
        folder: Of the run.
        at_begin: Called when training begins, which a run that cannot be resumed as asked never does.
    """

    def __init__(self, folder: RunFolder, at_begin: Callable[[], None]) -> None:
        self._folder, self._at_begin = folder, at_begin

    def on_fit_begin(self, state: FitState) -> None:
        self._at_begin()
        record_environment(self._folder.path, trainer_devices(state.trainer))
        what = f"goes on after update {state.updates}" if state.updates else "starts"
        self._folder.log(f"training {what}: {state.length} on {trainer_devices(state.trainer)}")
        write_state(self._folder.path, "running", epoch=len(state.history), updates=state.updates)

    def on_epoch(self, state: FitState, row: Row) -> None:
        state.history.to_csv(self._folder.path / "history.csv")
        state.history.to_json(self._folder.path / "history.json")
        self._folder.log(f"{state.label(row['epoch'])}  {describe_row(row)}")
        write_state(self._folder.path, "running", epoch=row["epoch"], updates=row["updates"])

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        if len(state.history):
            state.history.to_json(self._folder.path / "history.json")
            state.history.plot(self._folder.path / "curves.png")
        write_state(self._folder.path, "running", updates=state.updates)
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            self._folder.log(f"stopped by {state.stop_reason}")
            write_state(self._folder.path, "stopped", str(state.stop_reason))
        elif error is not None:
            self._folder.log_error(error)
