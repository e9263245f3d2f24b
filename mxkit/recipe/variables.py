"""`variables: {width: 64}`, and `${width}` where it is used."""

import re
from typing import Any, Callable, Dict, List, Mapping, Set

from mxkit.recipe.problems import Problem, refuse, unknown_key
from mxkit.recipe.schema import fields_at

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")


def used_in(content: Any) -> Set[str]:
    """Names of the variables that stand in a recipe."""
    found: Set[str] = set()
    _replaced(content, "", lambda name, _: found.add(name))
    return found


def put_variables_in(
    content: Mapping[str, Any], used: Set[str], origin: str, origins: Mapping[str, str]
) -> Dict[str, Any]:
    """Put the values of `variables` in place of `${name}`.

    A value that is nothing but one variable gets its type too.

    Args:
        content: What the recipe and its bases say.
        used: Names that stand in one of them, though it may be replaced by another.
        origin: What the messages call the recipe.
        origins: The file of each key.

    Returns:
        What the recipe says, without `variables`.

    Raises:
        RecipeError: A variable is not known, is used nowhere, or has no plain value.
    """
    content = dict(content)
    given = content.pop("variables", None)
    variables: Any = {} if given is None else given
    if not isinstance(variables, dict):
        refuse(origin, [Problem("variables", f"expected names and values; received {variables!r}")], origins)
    problems: List[Problem] = []
    used = used | used_in(content)

    def look_up(name: str, path: str) -> Any:
        if name not in variables:
            problems.append(Problem(path, f"unknown variable; received {name!r}", tuple(variables) or ("none",), name))
        return variables.get(name, "")

    found = _replaced(content, "", look_up)
    if problems:  # perhaps because `variables` itself is misspelt
        known = fields_at(())
        problems += [unknown_key(key, value, known) for key, value in content.items() if key not in known]
    refuse(origin, [*problems, *_wrong(variables, used)], origins)
    return dict(found)


def _wrong(variables: Mapping[str, Any], used: Set[str]) -> List[Problem]:
    """Values that are none for a variable, and names that nothing uses."""
    problems = []
    known = tuple(sorted(used)) or ("none",)
    for name, value in variables.items():
        if isinstance(value, dict) or (isinstance(value, str) and _VARIABLE.search(value)):
            problems.append(Problem(f"variables.{name}", f"expected a number, a text or a list; received {value!r}"))
        elif name not in used:  # else a misspelt name would leave the base's value, in silence
            problems.append(Problem(f"variables.{name}", f"nothing uses it; received {value!r}", known, name))
    return problems


def _replaced(value: Any, path: str, look_up: Callable[[str, str], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(one, f"{path}.{key}" if path else key, look_up) for key, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, f"{path}.{number}", look_up) for number, one in enumerate(value)]
    if not isinstance(value, str):
        return value
    whole = _VARIABLE.fullmatch(value)
    if whole:
        return look_up(whole[1].strip(), path)
    return _VARIABLE.sub(lambda match: str(look_up(match[1].strip(), path)), value)
