"""What a shell completes: recipes, runs, metrics, and the keys behind `--set`.

A shell waits for this at each Tab, so nothing here imports MXNet: names are read from mxkit's source.
"""

import ast
import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Set

import typer

# The columns of `mxkit runs` that every run has.
COLUMNS = ("name", "started", "state", "epochs", "seconds", "size")
_PACKAGE = Path(__file__).parents[1]
_RECIPES = (_PACKAGE / "recipes", _PACKAGE.parent / "recipes")
# Keys of a recipe that take a name of a table, with the file of the table.
_TABLES = {
    "loss": "losses/named_losses.py",
    "loss.name": "losses/named_losses.py",
    "metrics": "metrics/named_metrics.py",
}


def recipes(incomplete: str) -> List[str]:
    """Names of shipped recipes, and YAML files of this folder; the shell completes files of other folders itself."""
    shipped = [path.stem for folder in _RECIPES for path in folder.glob("*.yaml")]
    return _fitting([*shipped, *map(str, Path().glob("*.yaml"))], incomplete)


def run_folders(incomplete: str) -> List[str]:
    """Folders of runs: those in `runs`, and those in the folder that is typed already."""
    folders = (Path("runs"), Path(incomplete.rpartition("/")[0] or "."))
    return _fitting([str(file.parent) for folder in folders for file in folder.glob("*/recipe.yaml")], incomplete)


def run_columns(context: typer.Context, incomplete: str) -> List[str]:
    """Columns of `mxkit runs`: its own, and the metrics of the runs in the folder."""
    names = set(COLUMNS)
    for folder in Path(str(context.params.get("directory") or "runs")).glob("*"):
        for scores in _content(folder / "scores.json").values():
            names.update(scores)
        for row in _content(folder / "history.json").get("epochs", [])[-1:]:
            names.update(name for name in row if name.startswith(("train_", "valid_")))
    return _fitting(names, incomplete)


def settings(context: typer.Context, incomplete: str) -> List[str]:
    """Keys behind `--set`: of all recipes, and those that RECIPE has; behind `loss=` and `metrics=` the names."""
    key, equals, _ = incomplete.partition("=")
    if equals:
        return _fitting([f"{key}={name}" for name in _names_for(key)], incomplete)
    # the parser stops at a last `--set` without a value, and leaves RECIPE among the words that it did not read
    recipe = context.params.get("recipe") or "".join(context.args[:1])
    return _fitting(_keys_of_format() | _keys_of_recipe(recipe), incomplete)


def complete_value() -> bool:
    """Print names for a value behind `--set KEY=` in bash, which splits words at `=` so that typer cannot."""
    words = os.environ["COMP_WORDS"].split()[: int(os.environ["COMP_CWORD"]) + 1]
    *before, key, _, value = [*words, ""] if words[-1] == "=" else ["", "", *words]
    if before[-1:] != ["--set"] or words[-2 if value else -1] != "=":
        return False
    typer.echo("\n".join(_fitting(_names_for(key), value)))
    return True


def _fitting(names: Iterable[str], incomplete: str) -> List[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _content(file: Path) -> Dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no run, or a damaged one
        return {}
    return content if isinstance(content, dict) else {}


def _names_for(key: str) -> List[str]:
    """Names that a key takes, of its table `NAME: Dict[...] = {...}`; in a list where the key takes one."""
    if key not in _TABLES:
        return []
    tree = ast.parse((_PACKAGE / _TABLES[key]).read_text(encoding="utf-8"))
    tables = [node.value for node in tree.body if isinstance(node, ast.AnnAssign)]
    found = (part for table in tables if table for part in ast.walk(table) if isinstance(part, ast.Dict))
    names = [str(one.value) for part in found for one in part.keys if isinstance(one, ast.Constant)]
    return [f"[{name}]" if key == "metrics" else name for name in names]


def _keys_of_format() -> Set[str]:
    """Dotted keys of the classes in `recipe/schema.py`; those of its lists are left out, which have a number."""
    tree = ast.parse((_PACKAGE / "recipe" / "schema.py").read_text(encoding="utf-8"))
    classes = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}

    def keys(name: str, prefix: str) -> Set[str]:
        found: Set[str] = set()
        for field in classes[name]:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                inner = [one.id for one in ast.walk(field.annotation) if isinstance(one, ast.Name)]
                key = prefix + field.target.id
                found.add(key)
                if "List" not in inner and "Dict" not in inner:
                    found.update(*(keys(one, f"{key}.") for one in inner if one in classes))
                    found.update(f"{key}.name" for one in inner if one.endswith("Component"))
        return found - {f"{prefix}model_config"}

    return keys("Recipe", "")


def _keys_of_recipe(recipe: str) -> Set[str]:
    """Dotted keys of a recipe and its bases, such as arguments of its model; none if a file cannot be read."""
    import yaml

    found: Set[str] = set()
    for _ in range(9):  # a base may name itself
        shipped = (folder / f"{recipe}.yaml" for folder in _RECIPES)
        file = next((one for one in (Path(recipe), *shipped) if recipe and one.is_file()), None)
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8")) if file else None
        except (OSError, ValueError, yaml.YAMLError):
            break
        if not file or not isinstance(content, dict):
            break
        found |= _dotted(content, "")
        base = str(content.get("base") or "")
        recipe = str(file.parent / base) if (file.parent / base).is_file() else base
    return found - {"base"}


def _dotted(content: Dict[str, Any], prefix: str) -> Set[str]:
    keys = {prefix + str(key) for key in content}
    inner = (_dotted(value, f"{prefix}{key}.") for key, value in content.items() if isinstance(value, dict))
    return keys.union(*inner)
