"""Completion in shells: recipes, runs, metrics, and the keys of `--set`.

A shell waits for it at each Tab, so nothing here imports MXNet: names are read from mxkit's source.
"""

import ast
import json
from pathlib import Path
from typing import Any, Dict, Iterable, List, Set

from mxkit.core.system import score_name
from mxkit.recipe.reading import RECIPE_FOLDERS, parse_yaml, recipe_names
import typer

# Columns of `mxkit runs` that every run has.
COLUMNS = ("name", "started", "state", "epochs", "seconds", "size")
_PACKAGE = Path(__file__).parents[1]


def recipes(incomplete: str) -> List[str]:
    """Names of shipped recipes, and YAML files of this folder; the shell itself completes files of other folders."""
    return _fitting([*recipe_names(), *map(str, Path().glob("*.yaml"))], incomplete)


def run_folders(incomplete: str) -> List[str]:
    """Folders of runs: those in `runs`, and those in the folder that the user has typed."""
    folders = (Path("runs"), Path(incomplete.rpartition("/")[0] or "."))
    return _fitting([str(file.parent) for folder in folders for file in folder.glob("*/recipe.yaml")], incomplete)


def run_columns(context: typer.Context, incomplete: str) -> List[str]:
    """Columns of `mxkit runs`: its own, and the metrics of the runs in the folder."""
    names = set(COLUMNS)
    for folder in Path(str(context.params.get("directory") or "runs")).glob("*"):
        for part, scores in _content(folder / "scores.json").items():
            names.update(score_name(part, name) for name in scores)
        for row in _content(folder / "history.json").get("epochs", [])[-1:]:
            names.update(name for name in row if name.startswith(("train_", "valid_")))
    return _fitting(names, incomplete)


def settings(context: typer.Context, incomplete: str) -> List[str]:
    """Keys of `--set`: those of all recipes and those in RECIPE."""
    # the parser stops at a last `--set` without a value, so RECIPE may be among the words that it did not read
    recipe = context.params.get("recipe") or "".join(context.args[:1])
    return _fitting(_keys_of_format() | _keys_of_recipe(recipe), incomplete)


def _fitting(names: Iterable[str], incomplete: str) -> List[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _content(file: Path) -> Dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no run, or a damaged one
        return {}
    return content if isinstance(content, dict) else {}


def _keys_of_format() -> Set[str]:
    """Dotted keys of the classes in `recipe/schema.py`, without keys inside lists, which contain a number."""
    tree = ast.parse((_PACKAGE / "recipe" / "schema.py").read_text(encoding="utf-8"))
    classes = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}

    def keys(name: str, prefix: str) -> Set[str]:
        dotted: Set[str] = set()
        for field in classes[name]:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                types = [part.id for part in ast.walk(field.annotation) if isinstance(part, ast.Name)]
                key = prefix + field.target.id
                dotted.add(key)
                if "List" not in types and "Dict" not in types:
                    dotted.update(*(keys(one, f"{key}.") for one in types if one in classes))
                    dotted.update(f"{key}.name" for one in types if one.endswith("Component"))
        return dotted - {f"{prefix}model_config"}

    return keys("Recipe", "")


def _keys_of_recipe(recipe: str) -> Set[str]:
    """Dotted keys of a recipe and its bases, such as arguments of its model; a file that cannot be read has none."""
    import yaml

    keys: Set[str] = set()
    for _ in range(9):  # a base may name itself
        shipped = (folder / f"{recipe}.yaml" for folder in RECIPE_FOLDERS)
        file = next((one for one in (Path(recipe), *shipped) if one.is_file()), None)
        try:
            content = parse_yaml(file.read_text(encoding="utf-8")) if file else None
        except (OSError, ValueError, yaml.YAMLError):
            break
        if not file or not isinstance(content, dict):
            break
        keys |= _dotted(content, "")
        base = str(content.get("base") or "")
        recipe = str(file.parent / base) if (file.parent / base).is_file() else base
    return keys - {"base"}


def _dotted(content: Dict[str, Any], prefix: str) -> Set[str]:
    keys = {prefix + str(key) for key in content}
    inner = (_dotted(value, f"{prefix}{key}.") for key, value in content.items() if isinstance(value, dict))
    return keys.union(*inner)
