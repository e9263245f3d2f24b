"""Reads a recipe from a file, a name or a mapping: its files, variables, checks; and writes it back as YAML."""

import copy
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple, Union

from mxkit.core.lengths import length
from mxkit.recipe.checking import check
from mxkit.recipe.files import VARIABLE, changed, lay_over_bases, read_layers, substitute, variables_of
from mxkit.recipe.problems import Problem
from mxkit.recipe.schema import Recipe
import yaml

# The recipe's own key for each unit of a length like "500 updates".
_KEYS = {"epochs": "epochs", "updates": "updates", "batches": "accumulate", "samples": "accumulate_samples"}


def load_recipe(recipe: Union[str, Path, Mapping[str, Any], Recipe], overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        recipe: A YAML file, the name of a recipe that ships with mxkit, a mapping, or a Recipe.
        overrides: Changes `a.b=c` of the recipe and its bases, in this order; each value is read as YAML.

    Returns:
        The recipe with every default; its bases and variables are merged into it.

    Raises:
        RecipeError: The file does not exist or is not YAML, an override has another form, or the recipe has
            mistakes: the text lists each with its dotted path, what was received and what is accepted.

    Side effects:
        Imports the modules of `imports`.
    """
    if isinstance(recipe, (Recipe, Mapping)):
        origin = recipe.name if isinstance(recipe, Recipe) else "recipe"
        content = recipe.model_dump() if isinstance(recipe, Recipe) else copy.deepcopy(dict(recipe))
        layers = changed(lay_over_bases(content, Path.cwd(), origin), overrides)
    else:
        origin, layers = read_layers(recipe, overrides)
    content, problems = replace_variables(layers.content, layers.variables)
    _rename_callbacks(content)
    _split_lengths(content)
    return check(content, origin, layers.origins, problems)


def _split_lengths(content: Dict[str, Any]) -> None:
    """Replace `epochs: 500 updates` and `accumulate: 256 samples`, which `fit` takes, by the recipe's own keys."""
    for key, units in (("epochs", ("epochs", "updates")), ("accumulate", ("batches", "samples"))):
        if isinstance(content.get(key), str):
            try:
                number, unit = length(content[key], key, units)
            except ValueError:
                continue  # `check` refuses the text together with all other mistakes
            del content[key]
            content[_KEYS[unit]] = int(number)


def _rename_callbacks(content: Dict[str, Any]) -> None:
    """Replace callbacks that earlier versions of mxkit wrote into a run's recipe."""
    callbacks = content.get("callbacks")
    if not isinstance(callbacks, list):
        return
    for callback in callbacks:
        name = callback.get("name") if isinstance(callback, dict) else callback
        if name in ("freeze_until", "unfreeze_at") and isinstance(callback.get("epoch"), int):
            callback.update(name="freeze", until=f"{callback.pop('epoch') - 1} epochs")
            patterns = callback.pop("glob", "*")
            if name == "freeze_until" or patterns != "*":  # without patterns `freeze` takes all frozen parameters
                callback["patterns"] = patterns
        elif name == "terminate_on_nan":
            content["check_finite"] = "stop"
        elif name == "time_limit" and "seconds" in callback:
            callback["limit"] = callback.pop("seconds")
    content["callbacks"] = [one for one in callbacks if one not in ("terminate_on_nan", {"name": "terminate_on_nan"})]


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML; `load_recipe` reads an equal recipe from it."""
    text: str = yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)
    return text


def replace_variables(content: Mapping[str, Any], used: Set[str]) -> Tuple[Dict[str, Any], List[Problem]]:
    """Replace each `${width}` by the value in `variables: {width: 64}`.

    A value that consists of one variable has the variable's type.

    Args:
        content: Keys and values of the recipe merged with its bases.
        used: Names of the variables that the recipe or a base uses, also in a value that another file replaces.

    Returns:
        The content without `variables`; and a problem for each variable that is unknown, unused or not a plain value.
    """
    content = dict(content)
    received = content.pop("variables", None)
    problems: List[Problem] = []
    if not isinstance(received, (dict, type(None))):
        problems.append(Problem("variables", f"expected names and values; received {received!r}"))
    variables: Dict[str, Any] = received if isinstance(received, dict) else {}
    used = used | variables_of(content)

    def look_up(name: str, path: str) -> Any:
        if name not in variables:
            problems.append(Problem(path, f"unknown variable; received {name!r}", tuple(variables) or ("none",), name))
        return variables.get(name, "")

    replaced = dict(substitute(content, "", look_up))
    accepted = tuple(sorted(used)) or ("none",)
    for name, value in variables.items():
        if isinstance(value, dict) or (isinstance(value, str) and VARIABLE.search(value)):
            problems.append(Problem(f"variables.{name}", f"expected a number, a text or a list; received {value!r}"))
        elif name not in used:  # a misspelt name would silently leave the base's value
            problems.append(Problem(f"variables.{name}", f"nothing uses it; received {value!r}", accepted, name))
    return replaced, problems
