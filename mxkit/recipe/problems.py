"""What is wrong with a recipe, in its own words."""

import re
from typing import Any, Dict, Mapping, NamedTuple, Sequence, Tuple

from mxkit.errors import RecipeError, nearest
from mxkit.recipe.schema import fields_at

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


def refuse(origin: str, problems: Sequence[Problem], origins: Mapping[str, str] = {}) -> None:
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
    raise RecipeError(f"recipe {origin}:\n  " + "\n  ".join(lines))


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


def located(path: str, error: BaseException, arguments: Dict[str, Any]) -> Problem:
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
