"""The folder of a run: its files, its state, and its log."""

from contextlib import suppress
import datetime
import itertools
import json
from pathlib import Path
import platform
import shutil
import traceback
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Union

from mxkit.core.system import write_atomically
from mxkit.core.trainers import trainer_devices
from mxkit.errors import RecipeError
from mxkit.recipe.environment import record_environment, record_workers
from mxkit.recipe.net_facts import read_facts
from mxkit.recipe.reading import dump_recipe, load_recipe, read_file
from mxkit.recipe.run_code import CODE, check_code, has_originals, no_bytecode, warn_of_changes
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

STATE = "state.json"
# In the folder of a sweep, which has the folders of its trials.
SWEEP = "sweep.db"
State = Literal["running", "finished", "stopped", "failed"]


class RunState(NamedTuple):
    """The state of a run, as `state.json` holds it.

    Attributes:
        state: "running", "finished", "stopped" or "failed".
        reason: What stopped the run, or the error of a failed run; otherwise empty.
        epoch: Number of complete epochs.
        updates: Number of complete updates.
        started: When the folder was made, like "2026-01-31 23:59:59"; empty if unknown.
        changed: When this state was written.
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
        ValueError: The text is not a state.
    """
    return TypeAdapter(RunState).validate_json(text, strict=True)


def write_state(folder: Path, state: State, reason: str = "", **reached: Any) -> None:
    """Write the state of a run to `state.json`.

    Args:
        folder: Folder of the run.
        state: As in `RunState`.
        reason: As in `RunState`.
        **reached: `epoch` and `updates`; a number that is not passed stays as it was.
    """
    now, file = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S"), folder / STATE
    try:
        before = parse_state(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        before = RunState("running", started=now)
    except (OSError, ValueError):  # the file is damaged
        before = RunState("running")
    after = before._replace(state=state, reason=reason, changed=now, **reached)
    content = json.dumps(after._asdict(), indent=1, ensure_ascii=False).encode("utf-8")
    try:
        write_atomically(file, content)
    except OSError:  # on a full disk the block of the old content can still be written
        with file.open("r+b") as old:
            old.write(content)
            old.truncate()


class RunFolder:
    """The folder of a run.

    It holds `recipe.yaml`, `net.json`, `environment.json`, `history.csv` and `.json`, `curves.png`, `scores.json`,
    `log.txt`, `state.json`, `checkpoints/`, `workers.json` if there were several, and `code/` if the recipe imports
    modules of its own.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Union[str, Path]) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @classmethod
    def create(cls, recipe: Recipe, output: Union[str, Path], name: Optional[str] = None) -> "RunFolder":
        """Make a run's folder with the resolved recipe in it.

        Args:
            recipe: The recipe.
            output: The folder in which it is made.
            name: Its name; it may exist without a recipe. None makes `<recipe>-<time>`, which is never reused.
        """
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        first = Path(output) / (name or f"{recipe.name}-{stamp}")
        for path in _numbered(first) if name is None else [first]:
            with suppress(FileExistsError):
                path.mkdir(parents=True)
                break
        folder = cls(path)
        try:
            folder.write_recipe(recipe)
            folder.log(
                f"mxkit {__version__}, MXNet {mx.__version__}, NumPy {np.__version__}, "
                f"Python {platform.python_version()}, {platform.platform()}"
            )
            write_state(path, "stopped", "the training had not begun")  # until it begins
        except BaseException:  # also Ctrl-C
            if name is None:
                shutil.rmtree(str(path))
            raise
        return folder

    def move_failed(self) -> None:
        """Rename the folder of a run that cannot be resumed, so that the pattern `NAME-*` does not match it.

        Side effects:
            `path` becomes `failed-NAME-TIME` beside it, unless the run has a checkpoint or a complete epoch, or the
            folder cannot be renamed.
        """
        if checkpoint_paths(self.checkpoints) or (self.path / "history.json").exists():
            return
        new = next(path for path in _numbered(self.path.with_name(f"failed-{self.path.name}")) if not path.exists())
        with suppress(OSError):  # the caller raises the error of the run
            self.path.rename(new)
            self.path = new

    def write_recipe(self, recipe: Recipe, notes: Sequence[str] = ()) -> None:
        """Write the resolved recipe, below the comments that the file has and the new notes."""
        file = self.path / "recipe.yaml"
        before = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        comments = [line for line in before if line.startswith("#")] + [f"# {note}" for note in notes]
        write_atomically(file, "\n".join([*comments, dump_recipe(recipe)]).encode())

    def recipe(self, overrides: Sequence[str] = (), *, to_train: bool = False) -> Recipe:
        """Load the resolved recipe and import its own modules.

        Args:
            overrides: As for `load_recipe`.
            to_train: True imports the original modules if all of them still exist. Otherwise the copies in the folder
                are imported, with which the net was trained.

        Raises:
            RecipeError: This is not the folder of a run, or the copy of a module was changed.

        Side effects:
            Imports the modules of `imports`, which runs their code: use only folders whose author you trust.

        Warns:
            UserWarning: A module was changed after the training.
        """
        file = self.path / "recipe.yaml"
        if not file.is_file():
            raise RecipeError(f"{self.path} is no folder of a run: expected a file recipe.yaml in it")
        facts = read_facts(self.path)
        if facts is None or not facts.code.imports:
            return load_recipe(file, overrides)
        where = read_file(file).get("import_path")
        # without copies all modules are installed packages
        if not facts.code.files or (to_train and has_originals(facts.code, where)):
            recipe = load_recipe(file, overrides)
            warn_of_changes(facts.code, where, "the resumed run uses the changed file")
            return recipe
        check_code(self.path, facts.code)
        with no_bytecode():
            recipe = load_recipe(file, [*overrides, f"import_path={json.dumps(str((self.path / CODE).resolve()))}"])
        warn_of_changes(facts.code, where, "the copy in the run's folder is used")
        return recipe.model_copy(update={"import_path": where})

    def log(self, text: str) -> None:
        """Add lines to `log.txt`, each with the time."""
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{now}  {line}\n" for line in text.splitlines())

    def mark_stopped(self, reason: str) -> None:
        """Write the state "stopped" if it is "running"."""
        if self.is_running:
            write_state(self.path, "stopped", reason)

    @property
    def is_running(self) -> bool:
        """Whether the state is "running"."""
        with suppress(OSError, ValueError):
            return parse_state((self.path / STATE).read_text(encoding="utf-8")).state == "running"
        return False

    def log_error(self, error: BaseException) -> None:
        """Add an error's traceback to `log.txt`, and write the state "failed"."""
        with suppress(OSError):  # of a full disk
            self.log("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        lines = "".join(traceback.format_exception_only(type(error), error)).splitlines()
        write_state(self.path, "failed", next(line for line in lines if line.strip() and not line.startswith(" ")))


def _numbered(path: Path) -> Iterator[Path]:
    """A path, and then the path with -2, -3, ..."""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))


class Recorder(Callback):
    """Writes history, log and state after each epoch, so that a run that ends early has them.

    Args:
        folder: Folder of the run.
        at_begin: Called with the state when training begins; never if `fit` refuses to resume the run.
    """

    writes = True

    def __init__(self, folder: RunFolder, at_begin: Callable[[FitState], None]) -> None:
        self._folder, self._at_begin = folder, at_begin

    def on_fit_begin(self, state: FitState) -> None:
        self._at_begin(state)
        record_environment(self._folder.path, trainer_devices(state.trainer))
        start = f"resumes after update {state.updates}" if state.updates else "starts"
        self._folder.log(f"training {start}: {state.length} on {trainer_devices(state.trainer)}")
        write_state(self._folder.path, "running", epoch=len(state.history), updates=state.updates)

    def on_epoch(self, state: FitState, row: Row) -> None:
        state.history.to_csv(self._folder.path / "history.csv")
        state.history.to_json(self._folder.path / "history.json")
        if state.workers.shares:
            record_workers(self._folder.path, row["epoch"], row["seconds"], state.workers.shares)
        self._folder.log(f"{state.label(row['epoch'])}  {describe_row(row)}")
        write_state(self._folder.path, "running", epoch=row["epoch"], updates=row["updates"])

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        write_state(self._folder.path, "running", updates=state.updates)
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            write_state(self._folder.path, "stopped", str(state.stop_reason))
            self._folder.log(f"stopped by {state.stop_reason}")
        elif error is not None:
            self._folder.log_error(error)
        if len(state.history):
            state.history.to_json(self._folder.path / "history.json")
            state.history.plot(self._folder.path / "curves.png")
