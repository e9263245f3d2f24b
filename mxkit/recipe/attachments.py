"""Data of a recipe's run for logs: the recipe's values, the final scores, and the files of the run's folder."""

from contextlib import suppress
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

from mxkit.errors import CheckpointError
from mxkit.recipe.folder import RunFolder
from mxkit.recipe.run_code import CODE
from mxkit.recipe.schema import Recipe
from mxkit.storage.directory import find_checkpoint
from mxkit.training.callbacks.run_log import RecipeRun

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
    return dict(_flat(recipe.model_dump(exclude=set(_NO_SETTINGS))))


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[Any]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        elif value not in (None, [], ""):
            yield f"{path}{key}", json.dumps(value) if isinstance(value, (list, tuple)) else value


def _files(recipe: Recipe, folder: RunFolder) -> List[Path]:
    """The files of a run's folder that exist, and those of the best checkpoint, or of the last one."""
    paths = [folder.path / name for name in _FILES]
    paths += sorted((folder.path / CODE).rglob("*.py"))
    with suppress(CheckpointError):  # none was written, or the best one was removed
        checkpoint = find_checkpoint(folder.checkpoints, "best" if recipe.checkpoints.keep_best else "last")
        paths += sorted(checkpoint.path.iterdir())
    return [path for path in paths if path.is_file()]
