"""Reads a recipe from a file, a name or a mapping: YAML 1.2, bases, variables, checks; and writes it back as YAML.

Importing this module does not import MXNet, so that a command can read the number of threads before (T187).
"""

import copy
import json
from pathlib import Path
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxkit.errors import RecipeError, nearest
from mxkit.runtime.engine_settings import devices_on_cpu, threads
import yaml

if TYPE_CHECKING:
    from mxkit.recipe.schema import Problem, Recipe

_PACKAGE = Path(__file__).resolve().parents[1]
# Recipes are inside the package in a wheel, and beside the package in a checkout.
RECIPE_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parent / "recipes")
# ValueError: also a date like 2020-13-01, and bytes that are not UTF-8. RecursionError: thousands of brackets.
_YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)
_ALTERNATIVES = {"epochs": "updates", "updates": "epochs"}
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")


def load_recipe(recipe: Union[str, Path, Mapping[str, Any], "Recipe"], overrides: Sequence[str] = ()) -> "Recipe":
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
    from mxkit.recipe.schema import Recipe, resolve

    if isinstance(recipe, (Recipe, Mapping)):
        origin = recipe.name if isinstance(recipe, Recipe) else "recipe"
        content = recipe.model_dump() if isinstance(recipe, Recipe) else copy.deepcopy(dict(recipe))
        layers = changed(lay_over_bases(content, Path.cwd(), origin), overrides)
    else:
        origin, layers = read_layers(recipe, overrides)
    content, problems = replace_variables(layers.content, layers.variables)
    return resolve(content, origin, problems)


def dump_recipe(recipe: "Recipe") -> str:
    """The resolved recipe as YAML; `load_recipe` reads an equal recipe from it."""
    return as_yaml(recipe.model_dump())


def as_yaml(content: Any, **options: Any) -> str:
    """Plain values as YAML of 1.1 and 1.2; the options are PyYAML's."""
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)
    return text


def set_threads(recipe: Union[str, Path], settings: Sequence[str] = (), run: Optional[Path] = None) -> None:
    """Set the `threads` of a recipe; a run that is resumed takes its earlier number, on which its bits depend (T67).

    Without a number, several devices of the CPU share the cores.

    Args:
        recipe: A YAML file, or the name of a recipe that ships with mxkit.
        settings: Changes of the recipe.
        run: Folder of the run that is resumed.
    """
    try:
        _, layers = read_layers(recipe, settings)
        variables = layers.content.get("variables") or {}
        number, spec = (
            substitute(layers.content.get(key), key, lambda name, _: variables.get(name))
            for key in ("threads", "devices")
        )
        number, devices = number or _earlier(run), devices_on_cpu(spec)
        if number is not None or devices > 1:
            threads(number, devices=devices)
    except (ValueError, RuntimeError, AttributeError):
        return  # the command reads the recipe again, and tells all its mistakes


def _earlier(run: Optional[Path]) -> Optional[int]:
    try:
        environments = json.loads((run / "environment.json").read_text(encoding="utf-8")) if run else []
        return int(environments[-1]["threads"]) if environments else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a folder without it, or a damaged file: one thread per core, and the resume compares


class Layers(NamedTuple):
    """A recipe merged with its bases.

    Attributes:
        content: Keys and values.
        variables: Names of the variables that the recipe or a base uses.
    """

    content: Dict[str, Any]
    variables: Set[str]


def read_layers(recipe: Union[str, Path], overrides: Sequence[str] = ()) -> Tuple[str, Layers]:
    """Read a file or a shipped recipe, merge it with its bases, and change it.

    Args:
        recipe: A YAML file, or the name of a recipe that ships with mxkit.
        overrides: Changes `a.b=c` of the recipe and its bases, in this order; each value is read as YAML.

    Returns:
        The path of the file, and the merged content.

    Raises:
        RecipeError: A file does not exist or is not YAML, or an override has another form.
    """
    path = find_recipe(recipe, Path())
    content = read_file(path)
    content.setdefault("name", path.stem)
    return str(path), changed(lay_over_bases(content, path.parent, str(path), (path.resolve(),)), overrides)


def changed(layers: Layers, overrides: Sequence[str]) -> Layers:
    """The layers after all overrides."""
    for setting in overrides:
        override(layers, setting)
    return layers


def recipe_names() -> List[str]:
    """Names of the recipes that ship with mxkit."""
    return sorted({path.stem for folder in RECIPE_FOLDERS for path in folder.glob("*.yaml")})


def find_recipe(recipe: Union[str, Path], folder: Path, what: str = "recipe") -> Path:
    """The file of a recipe: a path relative to `folder`, or the name of a shipped recipe.

    Raises:
        RecipeError: There is no such file and no such name.
    """
    path = folder / Path(recipe).expanduser()
    if path.is_file():
        return path
    for shipped in RECIPE_FOLDERS:
        if Path(recipe).name == str(recipe) and (shipped / f"{recipe}.yaml").is_file():
            return shipped / f"{recipe}.yaml"
    names = recipe_names()
    hint = nearest(path.stem, names)
    known = f"{', '.join(names)}{'; ' + hint if hint else ''}"
    raise RecipeError(f"{what} {str(recipe)!r} is neither a file nor a recipe of mxkit; known: {known}")


def lay_over_bases(content: Dict[str, Any], folder: Path, origin: str, above: Tuple[Path, ...] = ()) -> Layers:
    """Merge a recipe with its `base`, the base's own base, and so on.

    Mappings are merged key by key. A list is replaced as a whole, and so is a component whose name changes.

    Args:
        content: Keys and values of the recipe; they are changed.
        folder: Folder of the recipe's file, to which bases and imports are relative.
        origin: Name of the recipe in messages.
        above: Files that have this recipe as their base.

    Raises:
        RecipeError: A base does not exist, is no recipe, or is its own base.
    """
    if content.get("imports"):
        content["import_path"] = str((folder / str(content.get("import_path") or "")).resolve())
    own = Layers(content, variables_of(content))
    base = content.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise RecipeError(f"recipe {origin}:\n  base: expected a file or the name of a recipe; received {base!r}")
    path = find_recipe(base, folder, f"recipe {origin}:\n  base:")
    if path.resolve() in above:
        way = " -> ".join(one.name for one in (*above, path))
        raise RecipeError(f"recipe {origin}:\n  base: a recipe cannot be its own base; received {way}")
    inner = read_file(path)
    inner.pop("name", None)
    below = lay_over_bases(inner, path.parent, str(path), (*above, path.resolve()))
    for key, other in _ALTERNATIVES.items():
        if content.get(key) is not None and other not in content:
            below.content.pop(other, None)
    return Layers(_merged(below.content, content, top=True), below.variables | own.variables)


def _merged(below: Any, above: Any, top: bool = False) -> Any:
    if isinstance(above, dict) and isinstance(below, str):
        below = {"name": below}  # `loss: l2` is short for `loss: {name: l2}`
    if isinstance(above, str) and isinstance(below, dict) and "name" in below:
        above = {"name": above}
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if not top and "name" in above and "name" in below and above["name"] != below["name"]:
        return above
    return {**below, **{key: _merged(below[key], value) if key in below else value for key, value in above.items()}}


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2 by its core schema, and refuses duplicate keys and the merge keys of YAML 1.1."""

    # by YAML 1.1, which is PyYAML's, 010 is 8, 12:30 is 750, `no` is false, and 1e-3 is a text (T26)
    yaml_implicit_resolvers: Dict[Any, Any] = {}

    def flatten_mapping(self, node: Any) -> None:
        """Leave `<<` as it is; the loader then refuses it. Nested merges would multiply the keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Dict[Any, Any]:
        construct: Any = self.construct_object  # only some releases of the stubs have its type
        keys = [construct(key_node, deep=True) for key_node, _ in node.value]
        for number, key in enumerate(keys):
            if not isinstance(key, str) or key in keys[:number]:
                way = "appears twice" if isinstance(key, str) else f"is no text: write it in quotes, '{key}'"
                problem = f"the key {key!r} {way}"
                raise yaml.constructor.ConstructorError(None, None, problem, node.value[number][0].start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that YAML 1.1 or 1.2 reads as another value."""


# https://yaml.org/spec/1.2.2/#1032-tag-resolution
_CORE = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": "<<",  # of YAML 1.1: the loader refuses it
}
for _kind, _pattern in _CORE.items():
    for _either in (_Loader, _Dumper):
        _add_resolver: Any = _either.add_implicit_resolver  # only some releases of the stubs have its type
        _add_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})\\Z"), None)


def _whole_number(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def parse_yaml(text: str) -> Any:
    """Parse YAML 1.2."""
    return yaml.load(text, Loader=_Loader)


def read_file(path: Path) -> Dict[str, Any]:
    """Keys and values of a recipe file, without its bases.

    Raises:
        RecipeError: The file cannot be read, or holds something else.
    """
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (*_YAML_ERRORS, OSError) as error:
        raise RecipeError(f"recipe {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"recipe {path}: expected keys and values, like `epochs: 20`; received {content!r}")
    return content


def override(layers: Layers, setting: str) -> None:
    """Change one value: `a.b=c`, where c is YAML.

    Raises:
        RecipeError: The setting has another form, or its path leads through a value without keys.
    """
    path, separator, text = setting.partition("=")
    path = path.strip()
    keys = path.split(".")
    if not separator or not all(keys):
        raise RecipeError(f"--set {setting!r}: expected a.b=value, like optimizer.learning_rate=0.01")
    try:
        value = parse_yaml(text)
    except _YAML_ERRORS as error:
        raise RecipeError(f"--set {setting!r}: the value is not YAML: {error}") from error
    if keys[0] == "base":
        raise RecipeError(f"--set {setting!r}: the base is read before; name the other recipe itself")
    section: Any = layers.content
    for number, name in enumerate(keys):
        key: Any = int(name) if isinstance(section, list) and name.isdecimal() else name
        if isinstance(section, list) and key not in range(len(section)):
            raise RecipeError(
                f"--set {setting!r}: {'.'.join(keys[:number])} is a list of {len(section)}; expected a number "
                "below that, or set the whole list"
            )
        if number == len(keys) - 1:
            section[key] = value
            break
        inner = section[key] if isinstance(section, list) else section.get(key)
        inner = {"name": inner} if isinstance(inner, str) else {} if inner is None else inner
        if not isinstance(inner, (dict, list)):
            raise RecipeError(f"--set {setting!r}: {'.'.join(keys[: number + 1])} is {inner!r}, which has no keys")
        section[key] = section = inner
    if path in _ALTERNATIVES and value is not None:
        layers.content.pop(_ALTERNATIVES[path], None)


def variables_of(content: Any) -> Set[str]:
    """Names of the variables that a recipe uses."""
    names: Set[str] = set()
    substitute(content, "", lambda name, _: names.add(name))
    return names


def substitute(value: Any, path: str, look_up: Callable[[str, str], Any]) -> Any:
    """Replace each `${name}` in texts by `look_up(name, path)`."""
    if isinstance(value, dict):
        return {key: substitute(one, f"{path}.{key}" if path else key, look_up) for key, one in value.items()}
    if isinstance(value, list):
        return [substitute(one, f"{path}.{number}", look_up) for number, one in enumerate(value)]
    if not isinstance(value, str):
        return value
    whole = _VARIABLE.fullmatch(value)
    if whole:
        return look_up(whole[1].strip(), path)
    return _VARIABLE.sub(lambda match: str(look_up(match[1].strip(), path)), value)


def replace_variables(content: Mapping[str, Any], used: Set[str]) -> Tuple[Dict[str, Any], List["Problem"]]:
    """Replace each `${width}` by the value in `variables: {width: 64}`.

    A value that consists of one variable has the variable's type.

    Args:
        content: Keys and values of the recipe merged with its bases.
        used: Names of the variables that the recipe or a base uses, also in a value that another file replaces.

    Returns:
        The content without `variables`; and a problem for each variable that is unknown, unused or not a plain value.
    """
    from mxkit.recipe.schema import Problem

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
        if isinstance(value, dict) or (isinstance(value, str) and _VARIABLE.search(value)):
            problems.append(Problem(f"variables.{name}", f"expected a number, a text or a list; received {value!r}"))
        elif name not in used:  # a misspelt name would silently leave the base's value
            problems.append(Problem(f"variables.{name}", f"nothing uses it; received {value!r}", accepted, name))
    return replaced, problems
