"""The folder of a run: its files, its state, its environment and its scores."""

from contextlib import suppress
import datetime
from importlib.metadata import distributions
import itertools
import json
import math
import os
from pathlib import Path
import platform
import shutil
import subprocess
import traceback
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

from mxkit.core.device import is_gpu
from mxkit.core.system import write_atomically, write_json
from mxkit.core.trainers import trainer_devices
from mxkit.distributed.group import size
from mxkit.distributed.schedulers import LAUNCHED, SECRET
from mxkit.errors import CheckpointError, RecipeError
from mxkit.recipe.net_facts import FACTS, read_facts
from mxkit.recipe.reading import dump_recipe, load_recipe, read_file
from mxkit.recipe.run_code import CODE, check_code, has_originals, no_bytecode, warn_of_changes
from mxkit.recipe.schema import Recipe, flattened
from mxkit.runtime.engine_settings import in_force, kernels, switches, warn_if_late
from mxkit.runtime.gpus import gpu_facts, read_driver
from mxkit.runtime.machine import processor_model, read_memory, read_processors
from mxkit.storage.directory import checkpoint_paths, find_checkpoint
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.logs import RecipeRun
from mxkit.training.callbacks.progress import describe_row
from mxkit.training.history import Row, fixed
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
        facts = read_facts(self.path) if (self.path / FACTS).is_file() else None  # the run had not begun to train
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


FILE = "environment.json"
WORKERS = "workers.json"
_PACKAGES = ("gluoncv", "opencv-python", "scikit-learn", "pillow")
_VARIABLES = ("MXNET_", "MXKIT_", "OMP_", "KMP_", "DNNL_", "CUDA_", "NCCL_", "NVIDIA_TF32_", "CUBLAS_", "CUDNN_")
_PRIVATE = (SECRET, LAUNCHED)
# Without untracked files: a folder of data may hold millions. Without a lock, and without a daemon for file system
# events.
_GIT = ("git", "-c", "core.fsmonitor=false", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno")
_GIT_SECONDS = 3.0


def record_environment(folder: Path, devices: Sequence[Any]) -> None:
    """Add the present environment to a run's `environment.json`, unless it equals the last one in the file.

    Args:
        folder: Folder of the run.
        devices: Contexts of the net.

    Side effects:
        The file holds a list with one entry per environment of the run, in the order of time.
    """
    warn_if_late(os.environ)
    file, now = folder / FILE, describe_environment(devices)
    earlier = _entries(file)
    if earlier and {**earlier[-1], "since": now["since"]} == now:
        return
    write_json(file, [*earlier, now])


def record_workers(folder: Path, epoch: int, seconds: float, shares: Sequence[Dict[str, Any]]) -> None:
    """Write what each of several workers did in an epoch to a run's `workers.json`.

    Args:
        folder: Folder of the run.
        epoch: Number of the epoch, from 1. A resumed run replaces the entries of this epoch and of later ones.
        seconds: Duration of the epoch.
        shares: As `Workers.shares`.
    """
    file = folder / WORKERS
    rows = [row for row in _entries(file) if row["epoch"] < epoch]
    rows.append({"epoch": epoch, "seconds": seconds, "workers": shares})
    write_json(file, rows)


def _entries(file: Path) -> List[Dict[str, Any]]:
    entries: List[Dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return entries


def describe_environment(devices: Sequence[Any]) -> Dict[str, Any]:
    """Versions, machine, devices, threads, variables and MXNet's features, as plain JSON values.

    Args:
        devices: Contexts of the net.

    Returns:
        `arrays` is "np" under `npx.set_np()`, else "nd"; `memory` is in bytes; `threads` is the number of threads of
        one MXNet operator in this process; `workers` is the number of processes that train together. `gpus` is empty
        unless `devices` has a GPU. `bits` holds the settings that decide the bits of results, as they were when MXNet
        was loaded. `distributions` has all installed distributions; `git` is as `git_state`.

    >>> describe_environment([mx.cpu()])["devices"]
    ['cpu(0)']
    """
    memory = read_memory()
    gpus = [device.device_id for device in devices if is_gpu(device)]
    installed = _installed_distributions()
    variables = sorted(name for name in os.environ if name.startswith(_VARIABLES) and name not in _PRIVATE)
    return {
        "since": datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        "versions": {
            "mxkit": __version__,
            "MXNet": mx.__version__,
            "NumPy": np.__version__,
            "Python": platform.python_version(),
            **{name.lower(): version for name, version in installed.items() if name.lower() in _PACKAGES},
        },
        "git": git_state(Path.cwd()),
        "arrays": "np" if mx.util.is_np_array() else "nd",
        "platform": platform.platform(),
        "processor": processor_model(),
        "cores": read_processors().cores,
        "threads": in_force(),
        "kernels of OpenBLAS": kernels(),
        "memory": None if memory is None else memory.total,
        "devices": [str(one) for one in devices],
        "gpus": [str(gpu) for gpu in read_driver().gpus] if gpus else [],
        "bits": gpu_facts(gpus) if gpus else switches(),
        "workers": size(),
        "variables": {name: os.environ[name] for name in variables},
        "features": sorted(name for name, feature in mx.runtime.Features().items() if feature.enabled),
        "distributions": installed,
    }


def git_state(folder: Path) -> Optional[Dict[str, Any]]:
    """The git commit of a working folder, and whether a tracked file differs from it (`dirty`).

    Returns:
        None without git, a repository or a commit, or if git takes more than 3 seconds.
    """
    try:
        done = subprocess.run(
            _GIT, cwd=str(folder), stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if done.returncode or not commits or commits == ["(initial)"]:
        return None
    return {"commit": commits[0], "dirty": any(not line.startswith("#") for line in lines)}


def _installed_distributions() -> Dict[str, str]:
    """Version of each installed distribution; of two with one name, that of the first on the path is imported."""
    versions: Dict[str, str] = {}
    for distribution in distributions():
        with suppress(OSError, ValueError):  # a broken record of pip
            metadata = distribution.metadata  # read from the file at each access
            if metadata["Name"] and metadata["Version"]:
                versions.setdefault(metadata["Name"], metadata["Version"])
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))


# With the checkpoint they are a folder that `load_run` reads.
_FILES = (
    "recipe.yaml", "net.json", "environment.json", "workers.json", "history.csv", "history.json", "curves.png",
    "scores.json", "state.json", "log.txt", "report.html",
)  # fmt: skip
_NO_SETTINGS = ("format", "description", "import_path")


def recipe_run(recipe: Recipe, folder: RunFolder) -> RecipeRun:
    """The data of a recipe's run for logs."""
    return RecipeRun(folder.path, settings_of_recipe(recipe), lambda: _files(recipe, folder))


def settings_of_recipe(recipe: Recipe) -> Dict[str, Any]:
    """Values of a recipe by dotted path, without null and empty values; lists are JSON texts."""
    values = flattened(recipe.model_dump(exclude=set(_NO_SETTINGS)))
    return {
        key: json.dumps(one) if isinstance(one, (list, tuple)) else one
        for key, one in values.items()
        if one not in (None, [], {}, "")
    }


def _files(recipe: Recipe, folder: RunFolder) -> List[Path]:
    """The files of a run's folder that exist, and those of the best checkpoint, or of the last one."""
    paths = [folder.path / name for name in _FILES]
    paths += sorted((folder.path / CODE).rglob("*.py"))
    with suppress(CheckpointError):  # none was written, or the best one was removed
        checkpoint = find_checkpoint(folder.checkpoints, "best" if recipe.checkpoints.keep_best else "last")
        paths += sorted(checkpoint.path.iterdir())
    return [path for path in paths if path.is_file()]


def is_number(value: Any) -> bool:
    """Whether a value of a history is a number, and not a confusion matrix or None."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def best_row(rows: Sequence[Mapping[str, Any]], column: str, mode: str) -> Optional[Mapping[str, Any]]:
    """The row of a history with the best finite number in a column; None if there is none.

    >>> best_row([{"epoch": 1, "valid_loss": 0.5}, {"epoch": 2, "valid_loss": None}], "valid_loss", "min")["epoch"]
    1
    """
    finite = [row for row in rows if is_number(row.get(column)) and math.isfinite(row[column])]
    return (max if mode == "max" else min)(finite, key=lambda row: row[column], default=None)


def describe_scores(split: str, scores: Mapping[str, Any]) -> List[str]:
    """One line per number; one line per row of a matrix.

    >>> describe_scores("test", {"loss": -0.00001, "gain": -0.5, "confusion": [[3, 1], [0, 2]]})[:2]
    ['test loss 0.0000', 'test gain -0.5000']
    """
    return [f"{split} {name} {row}" for name, value in scores.items() for row in _rows(value)]


def _rows(value: Any) -> List[str]:
    if not isinstance(value, list):
        return [fixed(value)]
    if any(isinstance(one, list) for one in value):
        return [row for one in value for row in _rows(one)]
    return [" ".join(f"{one:4}" if isinstance(one, int) else fixed(one) for one in value)]
