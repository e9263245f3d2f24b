"""The folder of a run: what it holds, and the log that is written while it runs."""

import datetime
from pathlib import Path
import platform
import traceback
from typing import Optional, Sequence, Union

from mxkit.errors import RecipeError
from mxkit.files import write_atomically
from mxkit.recipe.environment import record_environment
from mxkit.recipe.reading import dump_recipe, load_recipe
from mxkit.recipe.schema import Recipe
from mxkit.training.callbacks import Callback, FitState
from mxkit.training.history import Row
from mxkit.training.progress import describe_row
from mxkit.training.signals import Terminated
from mxkit.version import __version__
import mxnet as mx
import numpy as np


class RunFolder:
    """`recipe.yaml`, `environment.json`, `history.csv` `.json`, `curves.png`, `scores.json`, `log.txt`, `checkpoints/`.

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
        folder.log(
            f"mxkit {__version__}, MXNet {mx.__version__}, NumPy {np.__version__}, "
            f"Python {platform.python_version()}, {platform.platform()}"
        )
        return folder

    def write_recipe(self, recipe: Recipe) -> None:
        """Write the resolved recipe."""
        write_atomically(self.path / "recipe.yaml", dump_recipe(recipe).encode())

    def recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """The resolved recipe, with changes like `epochs=20`.

        Raises:
            RecipeError: This is no folder of a run.
        """
        file = self.path / "recipe.yaml"
        if not file.is_file():
            raise RecipeError(f"{self.path} is no folder of a run: expected a file recipe.yaml in it")
        return load_recipe(file, overrides)

    def log(self, text: str) -> None:
        """Add lines to `log.txt`, each with its time."""
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{now}  {line}\n" for line in text.splitlines())

    def log_error(self, error: BaseException) -> None:
        """Add an error's traceback to `log.txt`."""
        self.log("".join(traceback.format_exception(type(error), error, error.__traceback__)))


class Recorder(Callback):
    """Keeps the folder up to date, so that a run that ends early leaves what it had reached."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_fit_begin(self, state: FitState) -> None:
        record_environment(self._folder.path, state.trainer._contexts)
        what = f"goes on after update {state.updates}" if state.updates else "starts"
        self._folder.log(f"training {what}: {state.length} on {state.trainer._contexts}")

    def on_epoch(self, state: FitState, row: Row) -> None:
        state.history.to_csv(self._folder.path / "history.csv")
        state.history.to_json(self._folder.path / "history.json")
        self._folder.log(f"{state.label(row['epoch'])}  {describe_row(row)}")

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        if len(state.history):
            state.history.to_json(self._folder.path / "history.json")
            state.history.plot(self._folder.path / "curves.png")
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            self._folder.log(f"stopped by {state.stop_reason}")
        elif error is not None:
            self._folder.log_error(error)
