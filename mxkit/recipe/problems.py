"""The mistakes of a recipe: their wording, and the one error that lists them."""

import copy
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.errors import RecipeError, nearest
from mxkit.recipe.schema import Recipe, fields_at
from pydantic import ValidationError

# Replaces a missing value in a recipe with mistakes, so that the rest of it can be checked.
STAND_IN = "(missing)"
_MOST_PASSES = 100
_TYPE_WORDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "null": "null",
    "array": "a list",
    "object": "keys and values",
}
_DEVICES = ("auto", "cpu", "cpu:4", "gpu", "gpu:0,2")


class Problem(NamedTuple):
    """One mistake of a recipe.

    Attributes:
        path: Dotted path of the key.
        text: The message after the path; "" for a mistake that follows from another one and is not shown.
        accepted: Accepted names, if they can be listed.
        name: The received name, for the suggestion of the nearest accepted one.
        cause: The error that revealed the mistake, or None.
    """

    path: str
    text: str
    accepted: Tuple[str, ...] = ()
    name: str = ""
    cause: Optional[BaseException] = None

    def __str__(self) -> str:
        hint = nearest(self.name, self.accepted) if self.name else ""
        accepted = f"; accepted: {', '.join(self.accepted)}" if self.accepted else ""
        return f"{self.path}: {self.text}{accepted}{'; ' + hint if hint else ''}"


def refuse(origin: str, problems: Sequence[Problem], origins: Mapping[str, str] = {}) -> None:
    """Raise one error that lists all problems; each has its file, if the recipe comes from several files.

    Args:
        origin: Name of the recipe in messages.
        problems: Mistakes; there may be none.
        origins: The file that sets each dotted path.

    Raises:
        RecipeError: There is a problem.
    """
    if not problems:
        return
    several = len(set(origins.values())) > 1
    lines = []
    for problem in problems:
        source = origin_of(origins, problem.path) if several else ""
        lines.append(f"{problem}{f' (from {source})' if source else ''}")
    raise RecipeError(f"recipe {origin}:\n  " + "\n  ".join(lines)) from next(
        (one.cause for one in reversed(problems) if one.cause), None
    )


def origin_of(origins: Mapping[str, str], path: str) -> str:
    """The file that sets the value at a path, or at the nearest path above it.

    >>> origin_of({"data": "a.yaml", "data.size": "b.yaml"}, "data.size.0")
    'b.yaml'
    """
    keys = path.split(".")
    above = (".".join(keys[:count]) for count in range(len(keys), 0, -1))
    return next((origins[one] for one in above if one in origins), "")


def unknown_key(path: str, received: Any, accepted: Sequence[str]) -> Problem:
    """A section has no such key."""
    return Problem(path, f"unknown key; received {received!r}", tuple(accepted), path.rsplit(".", 1)[-1])


def located(path: str, error: BaseException, arguments: Iterable[str]) -> Problem:
    """The error of a component's function, under the path of the argument that the error's text names."""
    named = [key for key in arguments if re.search(rf"(?<![\w.]){re.escape(key)}\b", str(error))]
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    where = f"{path}.{named[0]}" if len(named) == 1 else path
    text = re.sub(rf"^{re.escape(where.split('.')[-1])}: ", "", str(error))  # the path ends with it already
    return Problem(where, f"{kind}{text}", cause=error)


def without_mistakes(content: Mapping[str, Any], error: ValidationError) -> Tuple[Optional[Recipe], List[Problem]]:
    """Remove the structural mistakes of a recipe, so that the rest of it can be checked.

    Args:
        content: Keys and values of the recipe.
        error: Pydantic's error for them.

    Returns:
        The recipe, or None if it cannot be repaired; and the mistakes.
    """
    repaired: Dict[str, Any] = copy.deepcopy(dict(content))
    problems = [_structural(detail, content) for detail in error.errors()]
    tried: List[Tuple[Sequence[Any], bool]] = []
    for _ in range(_MOST_PASSES):
        for detail in reversed(error.errors()):
            location, is_missing = detail["loc"], detail["type"] == "missing"
            while (location, is_missing) in tried and len(location) > 1:  # the stand-in is refused too
                location, is_missing = location[:-1], False
            tried.append((location, is_missing))
            _repair(repaired, location, is_missing)
        try:
            return Recipe.model_validate(repaired), problems
        except ValidationError as other:
            error = other
    return None, problems


def _structural(detail: Mapping[str, Any], content: Mapping[str, Any]) -> Problem:
    """One of pydantic's errors in the words of a recipe."""
    location = tuple(detail["loc"])
    path = ".".join(map(str, location)) or "(the whole recipe)"
    kind, received = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        return unknown_key(path, received, fields_at(location[:-1]))
    if kind == "missing":
        return _missing(location, path, content)
    text = f"{detail['msg'][:1].lower()}{detail['msg'][1:]}; received {received!r}"
    if kind == "value_error":
        text = f"{detail['ctx']['error']}; received {received!r}"
    accepted: Tuple[str, ...] = ()
    if kind == "literal_error":
        accepted = tuple(re.findall(r"'([^']*)'", detail["ctx"]["expected"]))
    if location == ("devices",) and kind == "string_pattern_mismatch":
        text, accepted = f"expected devices; received {received!r}", _DEVICES
    return Problem(path, text, accepted, received if accepted and isinstance(received, str) else "")


def _missing(location: Sequence[Any], path: str, content: Mapping[str, Any]) -> Problem:
    """A missing key; a key that looks like a misspelt `name` is reported instead."""
    section = _steps(content, location[:-1])[-1][1]
    if isinstance(section, dict) and location[-1] == "name":
        above = list(location[:-1])
        misspelt = [key for key in section if nearest(key, ["name"])]
        if misspelt:
            where = ".".join(map(str, [*above, misspelt[0]]))
            return unknown_key(where, section[misspelt[0]], fields_at(above))
    return Problem(path, "is missing")


def _steps(content: Any, location: Sequence[Any]) -> List[Tuple[Any, Any]]:
    """Keys and values on the way to a location, as far as it exists; the first step is the whole recipe."""
    steps: List[Tuple[Any, Any]] = [(None, content)]
    for key in location:
        section = steps[-1][1]
        if isinstance(section, dict) and isinstance(key, int):
            continue  # a mapping may replace a list of one step
        if not (key in section if isinstance(section, dict) else isinstance(section, list) and len(section) > key):
            break
        steps.append((key, section[key]))
    return steps


def _repair(content: Dict[str, Any], location: Sequence[Any], is_missing: bool) -> None:
    """Remove the value at a location; a missing value, or an element of a list, gets the stand-in."""
    steps = _steps(content, location)
    key, value = steps[-1]
    if is_missing and isinstance(value, dict):
        value[location[-1]] = 1 if location[-1] == "classes" else STAND_IN
    elif len(steps) > 1:
        section = steps[-2][1]
        if isinstance(section, dict):
            section.pop(key)
        else:
            section[key] = STAND_IN


def refused_arguments(
    path: str,
    name: str,
    error: ValidationError,
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    own: List[str],
) -> List[Problem]:
    """One problem for each argument of a component that pydantic refuses.

    Args:
        path: Dotted path of the component.
        name: Name of the component.
        error: Pydantic's error.
        arguments: Arguments in the recipe.
        schema: JSON schemas of the accepted arguments, by name.
        own: Keys of the component's section, beside the arguments.
    """
    accepted = (*own, *sorted(schema), "name")
    kinds: Dict[Any, str] = {}
    for detail in error.errors():
        kinds.setdefault(detail["loc"][0], detail["type"] if len(detail["loc"]) == 1 else "")
    problems = []
    for key, kind in kinds.items():
        value, where = arguments.get(key), f"{path}.{key}"
        if kind == "extra_forbidden":
            problems.append(Problem(where, f"{name} takes no such argument; received {value!r}", accepted, key))
        elif kind == "missing":
            problems.append(Problem(where, "is missing"))
        else:
            choices = tuple(map(str, schema[key].get("enum", ())))
            meant = value if choices and isinstance(value, str) else ""
            problems.append(Problem(where, f"expected {type_words(schema[key])}; received {value!r}", choices, meant))
    return problems


def type_words(schema: Mapping[str, Any]) -> str:
    """The type of a JSON schema in words, for messages.

    >>> type_words({"anyOf": [{"type": "number"}, {"type": "null"}]})
    'a number or null'
    """
    if "anyOf" in schema:
        words = [type_words(one) for one in schema["anyOf"]]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if "enum" in schema or "const" in schema:
        return f"one of {', '.join(map(str, schema.get('enum') or [schema['const']]))}"
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])}: {', '.join(map(type_words, schema['prefixItems']))}"
    if schema.get("type") == "array" and schema["items"]:
        return f"a list, of each element {type_words(schema['items'])}"
    return _TYPE_WORDS.get(str(schema.get("type")), "anything")
