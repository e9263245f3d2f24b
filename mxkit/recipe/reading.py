"""From YAML and --set to a checked Recipe, or one error that lists every problem."""

import copy
from pathlib import Path
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple, Union

from mxkit.errors import RecipeError, nearest
from mxkit.recipe.registry import KINDS, accepted_arguments, is_known
from mxkit.recipe.schema import Component, DataComponent, Recipe
from pydantic import BaseModel, ValidationError
import yaml

_PACKAGE = Path(__file__).resolve().parents[1]
# Inside the wheel recipes lie in the package; in a checkout, beside it.
RECIPE_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parent / "recipes")


class Problem(NamedTuple):
    """One thing wrong with a recipe."""

    path: str
    what: str
    known: Tuple[str, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        hint = nearest(self.name, self.known) if self.name else ""
        accepted = f"; accepted: {', '.join(self.known)}" if self.known else ""
        return f"{self.path}: {self.what}{accepted}{'; ' + hint if hint else ''}"


def recipe_names() -> List[str]:
    """Names of the recipes that ship with mxkit."""
    return sorted({path.stem for folder in RECIPE_FOLDERS for path in folder.glob("*.yaml")})


def load_recipe(recipe: Union[str, Path, Mapping[str, Any], Recipe], overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        recipe: A YAML file, the name of a recipe that ships with mxkit, a mapping, or a Recipe.
        overrides: `a.b=c`, applied in order; values are read as YAML.

    Returns:
        The recipe, with every default filled in.

    Raises:
        RecipeError: The file is not there or no YAML, an override has another form, or the recipe says
            something that cannot be run: each problem with its dotted path, what was received and what is
            accepted.
    """
    if isinstance(recipe, Recipe):
        content, origin = recipe.model_dump(), recipe.name
    elif isinstance(recipe, Mapping):
        content, origin = copy.deepcopy(dict(recipe)), "recipe"
    else:
        path = _find(recipe)
        content, origin = _read(path), str(path)
        content.setdefault("name", path.stem)
    for override in overrides:
        _override(content, override)
    return _check(content, origin)


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML, which `load_recipe` reads back to an equal one."""
    text: str = yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)
    return text


def _find(recipe: Union[str, Path]) -> Path:
    path = Path(recipe)
    if path.is_file():
        return path
    for folder in RECIPE_FOLDERS:
        shipped = folder / f"{recipe}.yaml"
        if path.name == str(recipe) and shipped.is_file():
            return shipped
    names = recipe_names()
    hint = nearest(path.stem, names)
    raise RecipeError(
        f"recipe {str(recipe)!r} is neither a file nor a recipe of mxkit; known: {', '.join(names)}"
        + (f"; {hint}" if hint else "")
    )


class _Loader(yaml.SafeLoader):
    """YAML 1.2's floats, and no key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Dict[Any, Any]:
        seen = set()
        construct: Any = self.construct_object  # typed in some releases of its stubs, not in others
        for key_node, _ in node.value:
            key = construct(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is no text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-3 as text, and MXNet takes a text for a learning rate without a word (T26).
_add_implicit_resolver: Any = _Loader.add_implicit_resolver
_add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _read(path: Path) -> Dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise RecipeError(f"recipe {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"recipe {path}: expected keys and values, like `epochs: 20`; received {content!r}")
    return content


def _override(content: Dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise RecipeError(f"--set {override!r}: expected a.b=value, like optimizer.learning_rate=0.01")
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {override!r}: the value is no YAML: {error}") from error
    place: Any = content
    for i, key in enumerate(keys[:-1]):
        inner = place.setdefault(key, {})
        if isinstance(inner, str):  # `loss: l2` is short for `loss: {name: l2}`
            inner = place[key] = {"name": inner}
        if not isinstance(inner, dict):
            raise RecipeError(f"--set {override!r}: {'.'.join(keys[: i + 1])} is {inner!r}, which has no keys")
        place = inner
    place[keys[-1]] = value


def _check(content: Mapping[str, Any], origin: str) -> Recipe:
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        problems = [_structural(detail, content) for detail in error.errors()]
    else:
        problems = [problem for path, kind, one in _components(recipe) for problem in _by_registry(path, kind, one)]
        if not problems:
            return recipe
    raise RecipeError(f"recipe {origin}:\n  " + "\n  ".join(map(str, problems)))


def _structural(detail: Mapping[str, Any], content: Mapping[str, Any]) -> Problem:
    """A finding of pydantic in the words of a recipe."""
    location = tuple(detail["loc"])
    path = ".".join(map(str, location)) or "(the whole recipe)"
    if detail["type"] == "extra_forbidden":
        return Problem(
            path, f"unknown key; received {detail['input']!r}", tuple(_fields(location[:-1])), str(location[-1])
        )
    if detail["type"] == "missing":
        return Problem(path, "is missing")
    return Problem(path, f"{detail['msg'][:1].lower()}{detail['msg'][1:]}; received {detail['input']!r}")


def _fields(location: Sequence[Any]) -> Iterable[str]:
    model: Any = Recipe
    for key in location:
        model = model.model_fields[key].annotation
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _components(recipe: Recipe) -> List[Tuple[str, str, Component]]:
    found: List[Tuple[str, str, Component]] = []
    for kind in KINDS:
        value = getattr(recipe, kind)
        if isinstance(value, list):
            found += [(f"{kind}.{i}", kind, one) for i, one in enumerate(value)]
        else:
            found.append((kind, kind, value))
    return found


def _by_registry(path: str, kind: str, component: Component) -> List[Problem]:
    if not is_known(kind, component.name):
        known = tuple(sorted(KINDS[kind].names()))
        return [Problem(f"{path}.name", f"unknown; received {component.name!r}", known, component.name)]
    accepted = accepted_arguments(kind, component.name)
    if accepted is None:
        return []
    wrong = [
        # MXNet takes text for a number without a word (T26), and some hyper-parameters are objects
        Problem(f"{path}.{key}", f"expected a number, true, false or null; received {value!r}")
        for key, value in component.arguments.items()
        if kind == "optimizer" and key in accepted and not (value is None or isinstance(value, (int, float)))
    ]
    own = set(DataComponent.model_fields) - {"name"} if kind == "data" else set()
    known = tuple(sorted(accepted | own))
    return wrong + [
        Problem(
            f"{path}.{key}", f"{component.name} takes no such argument; received {value!r}", known or ("none",), key
        )
        for key, value in component.arguments.items()
        if key not in accepted
    ]
