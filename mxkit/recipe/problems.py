"""What is wrong with a recipe, in its own words."""

import copy
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.errors import RecipeError, nearest
from mxkit.recipe.schema import Recipe, fields_at
from pydantic import ValidationError

# Stands in a recipe with mistakes for what is missing.
STAND_IN = "(missing)"
_MOST_PASSES = 100
_DESCRIBED = {
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
    """One thing wrong with a recipe.

    Attributes:
        path: Dotted, from the recipe on.
        what: The rest of the sentence.
        known: What is accepted, if it can be listed.
        name: What was received in place of one of them.
    """

    path: str
    what: str
    known: Tuple[str, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        hint = nearest(self.name, self.known) if self.name else ""
        accepted = f"; accepted: {', '.join(self.known)}" if self.known else ""
        return f"{self.path}: {self.what}{accepted}{'; ' + hint if hint else ''}"


def refuse(
    origin: str,
    problems: Sequence[Problem],
    origins: Mapping[str, str] = {},
    *,
    cause: Optional[BaseException] = None,
) -> None:
    """Raise one error that lists every problem, each with its file where several have a part in the recipe.

    Raises:
        RecipeError: There is a problem.
    """
    if not problems:
        return
    several = len(set(origins.values())) > 1
    lines = []
    for problem in problems:
        source = origin_of(origins, problem.path) if several else ""
        lines.append(f"{problem}{f' (said in {source})' if source else ''}")
    raise RecipeError(f"recipe {origin}:\n  " + "\n  ".join(lines)) from cause


def structural(detail: Mapping[str, Any], content: Mapping[str, Any]) -> Problem:
    """A finding of pydantic in the words of a recipe."""
    location = tuple(detail["loc"])
    path = ".".join(map(str, location)) or "(the whole recipe)"
    kind, received = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        return unknown_key(path, received, fields_at(location[:-1]))
    if kind == "missing":
        return _missing(location, path, content)
    what = f"{detail['msg'][:1].lower()}{detail['msg'][1:]}; received {received!r}"
    if kind == "value_error":
        what = f"{detail['ctx']['error']}; received {received!r}"
    known: Tuple[str, ...] = ()
    if kind == "literal_error":
        known = tuple(re.findall(r"'([^']*)'", detail["ctx"]["expected"]))
    if location == ("devices",) and kind == "string_pattern_mismatch":
        what, known = f"expected devices; received {received!r}", _DEVICES
    return Problem(path, what, known, received if known and isinstance(received, str) else "")


def unknown_key(path: str, received: Any, known: Sequence[str]) -> Problem:
    """A key that is none of a section's."""
    return Problem(path, f"unknown key; received {received!r}", tuple(known), path.rsplit(".", 1)[-1])


def _missing(location: Sequence[Any], path: str, content: Mapping[str, Any]) -> Problem:
    """A key that is not there, perhaps because it is misspelt."""
    place: Any = content
    for key in location[:-1]:
        if not (isinstance(place, dict) and isinstance(key, int)):  # one step may stand for a list of it
            place = place[key] if isinstance(place, list) else place.get(key) if isinstance(place, dict) else None
    if isinstance(place, dict) and location[-1] == "name":
        above = list(location[:-1])
        found = [key for key in place if nearest(key, ["name"])]
        if found:
            return unknown_key(".".join(map(str, [*above, found[0]])), place[found[0]], fields_at(above))
    return Problem(path, "is missing")


def located(path: str, error: BaseException, arguments: Iterable[str]) -> Problem:
    """What a builder raised, under the argument that its text names, if that is one of those given."""
    named = [key for key in arguments if re.search(rf"(?<![\w.]){re.escape(key)}\b", str(error))]
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    where = f"{path}.{named[0]}" if len(named) == 1 else path
    text = re.sub(rf"^{re.escape(where.split('.')[-1])}: ", "", str(error))  # told by the path already
    return Problem(where, f"{kind}{text}")


def origin_of(origins: Mapping[str, str], path: str) -> str:
    """The file that said what stands at a path, or at the nearest one above it.

    >>> origin_of({"data": "a.yaml", "data.size": "b.yaml"}, "data.size.0")
    'b.yaml'
    """
    keys = path.split(".")
    above = (".".join(keys[:count]) for count in range(len(keys), 0, -1))
    return next((origins[one] for one in above if one in origins), "")


def mended(content: Mapping[str, Any], error: ValidationError) -> Tuple[Optional[Recipe], List[Problem]]:
    """A recipe without its structural mistakes, so that the rest of it can be checked, and these mistakes.

    The recipe is None where it cannot be mended.

    Args:
        content: What the recipe says.
        error: What pydantic says of it.
    """
    fixed: Dict[str, Any] = copy.deepcopy(dict(content))
    problems = [structural(detail, content) for detail in error.errors()]
    seen: List[Tuple[Sequence[Any], bool]] = []
    for _ in range(_MOST_PASSES):
        for detail in reversed(error.errors()):
            location, is_missing = detail["loc"], detail["type"] == "missing"
            while (location, is_missing) in seen and len(location) > 1:  # what was put there is wrong too
                location, is_missing = location[:-1], False
            seen.append((location, is_missing))
            _mend(fixed, location, is_missing)
        try:
            return Recipe.model_validate(fixed), problems
        except ValidationError as other:
            error = other
    return None, problems


def _mend(content: Dict[str, Any], location: Sequence[Any], is_missing: bool) -> None:
    """Take a value out, or put one in place of what is missing, or of an element of a list, which keeps its number."""
    way: List[Tuple[Any, Any]] = []
    place: Any = content
    for key in location:
        if isinstance(place, dict) and isinstance(key, int):
            continue  # one step may stand for a list of it
        if not (key in place if isinstance(place, dict) else isinstance(place, list) and len(place) > key):
            break
        way.append((place, key))
        place = place[key]
    if is_missing and isinstance(place, dict):
        place[location[-1]] = 1 if location[-1] == "classes" else STAND_IN
        return
    if not way:
        return
    place, key = way[-1]
    if isinstance(place, dict):
        place.pop(key)
    else:
        place[key] = STAND_IN


def refused_arguments(
    path: str,
    name: str,
    error: ValidationError,
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    own: List[str],
) -> List[Problem]:
    """What pydantic says of a component's arguments, one problem for each.

    Args:
        path: Of the component.
        name: Of the component.
        error: Of its arguments' adapter.
        arguments: As the recipe says them.
        schema: JSON schemas of what it takes, by name.
        own: Keys beside the arguments.
    """
    known = (*own, *sorted(schema), "name")
    kinds: Dict[Any, str] = {}
    for detail in error.errors():
        kinds.setdefault(detail["loc"][0], detail["type"] if len(detail["loc"]) == 1 else "")
    problems = []
    for key, kind in kinds.items():
        value, where = arguments.get(key), f"{path}.{key}"
        if kind == "extra_forbidden":
            problems.append(Problem(where, f"{name} takes no such argument; received {value!r}", known, key))
        elif kind == "missing":
            problems.append(Problem(where, "is missing"))
        else:
            choices = tuple(map(str, schema[key].get("enum", ())))
            meant = value if choices and isinstance(value, str) else ""
            problems.append(Problem(where, f"expected {described(schema[key])}; received {value!r}", choices, meant))
    return problems


def described(schema: Mapping[str, Any]) -> str:
    """What the type of a JSON schema is called in messages.

    >>> described({"anyOf": [{"type": "number"}, {"type": "null"}]})
    'a number or null'
    """
    if "anyOf" in schema:
        words = [described(one) for one in schema["anyOf"]]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if "enum" in schema or "const" in schema:
        return f"one of {', '.join(map(str, schema.get('enum') or [schema['const']]))}"
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])}: {', '.join(described(one) for one in schema['prefixItems'])}"
    if schema.get("type") == "array" and schema["items"]:
        return f"a list, of each element {described(schema['items'])}"
    return _DESCRIBED.get(str(schema.get("type")), "anything")
