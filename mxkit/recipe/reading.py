"""From a file, a name or a mapping to a checked Recipe, and back to YAML."""

import copy
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Union

from mxkit.recipe.checking import check
from mxkit.recipe.files import RECIPE_FOLDERS as RECIPE_FOLDERS
from mxkit.recipe.files import find_recipe, lay_over_bases, override, read_layers
from mxkit.recipe.files import recipe_names as recipe_names
from mxkit.recipe.schema import Recipe
from mxkit.recipe.variables import put_variables_in
import yaml


def load_recipe(recipe: Union[str, Path, Mapping[str, Any], Recipe], overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        recipe: A YAML file, the name of a recipe that ships with mxkit, a mapping, or a Recipe.
        overrides: `a.b=c`, applied in order to what the recipe and its bases say; values are read as YAML.

    Returns:
        The recipe, with every default filled in, and bases and variables worked in.

    Raises:
        RecipeError: The file is not there or no YAML, an override has another form, or the recipe says
            something that cannot be run: each problem with its dotted path, what was received and what is
            accepted.

    Side effects:
        Imports the modules of `imports`.
    """
    if isinstance(recipe, Recipe):
        origin, layers = recipe.name, lay_over_bases(recipe.model_dump(), Path.cwd(), recipe.name)
    elif isinstance(recipe, Mapping):
        origin, layers = "recipe", lay_over_bases(copy.deepcopy(dict(recipe)), Path.cwd(), "recipe")
    else:
        path = find_recipe(recipe, Path())
        origin, layers = str(path), read_layers(path)
    for setting in overrides:
        override(layers, setting)
    content = put_variables_in(layers.content, layers.used, origin, layers.origins)
    return check(content, origin, layers.origins)


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML, which `load_recipe` reads back to an equal one."""
    text: str = yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)
    return text


def differences(one: Recipe, other: Recipe) -> List[str]:
    """What two resolved recipes say differently: `path: one -> other`, a line each.

    >>> from mxkit.recipe.reading import load_recipe
    >>> first = load_recipe("digits_lenet")
    >>> differences(first, load_recipe(first, ["epochs=3", "optimizer=sgd"]))
    ['optimizer.name: adam -> sgd', 'optimizer.learning_rate: 0.001 -> (not said)', 'epochs: 20 -> 3']
    """
    left, right = flattened(one.model_dump()), flattened(other.model_dump())
    missing = "(not said)"
    return [
        f"{path}: {left.get(path, missing)} -> {right.get(path, missing)}"
        for path in dict.fromkeys([*left, *right])
        if left.get(path, missing) != right.get(path, missing)
    ]


def flattened(value: Any, path: str = "") -> Dict[str, Any]:
    """Values by dotted path; lists of plain values count as values, and so do empty mappings.

    >>> flattened({"loss": {"name": "l2"}, "freeze": [], "metrics": [{"name": "mse"}]})
    {'loss.name': 'l2', 'freeze': [], 'metrics.0.name': 'mse'}
    """
    nested = isinstance(value, (list, tuple)) and any(isinstance(one, (dict, list, tuple)) for one in value)
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if nested else ()
    found: Dict[str, Any] = {}
    for key, one in inner:
        found.update(flattened(one, f"{path}.{key}" if path else str(key)))
    return found or {path: value}
