"""A recipe read from a file, a name or a mapping: YAML 1.2, laid over its base, variables put in, checked; and back."""

import copy
from pathlib import Path
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple, Union

from mxkit.core.lengths import length
from mxkit.errors import RecipeError, nearest
from mxkit.recipe.checking import check
from mxkit.recipe.problems import Problem
from mxkit.recipe.schema import Recipe
import yaml

_PACKAGE = Path(__file__).resolve().parents[1]
# Inside the wheel recipes lie in the package; in a checkout, beside it.
RECIPE_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parent / "recipes")
# Values that aliases of a YAML file may add: seven levels of nine aliases stand for five million.
_MOST_BY_ALIAS = 10_000
# One of each stands for the other.
_ALTERNATIVES = {"epochs": "updates", "updates": "epochs"}
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")


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
    content, problems = put_variables_in(layers.content, layers.used)
    _rename_callbacks(content)
    _split_lengths(content)
    return check(content, origin, layers.origins, problems)


def _split_lengths(content: Dict[str, Any]) -> None:
    """Read `epochs: 500 updates` and `accumulate: 256 samples`, as `fit` takes them, as the recipe's own keys."""
    for key, units in (("epochs", {"epochs": "epochs", "updates": "updates"}), ("accumulate", _WINDOWS)):
        if isinstance(content.get(key), str):
            try:
                number, unit = length(content[key], key, list(units))
            except ValueError:
                continue  # its type is refused later, with all other mistakes
            del content[key]
            content[units[unit]] = int(number)


_WINDOWS = {"batches": "accumulate", "samples": "accumulate_samples"}


def _rename_callbacks(content: Dict[str, Any]) -> None:
    """Read the folder of a run of an earlier mxkit: its recipe names callbacks that are gone."""
    callbacks = content.get("callbacks")
    if not isinstance(callbacks, list):
        return
    for one in callbacks:
        old = one.get("name") if isinstance(one, dict) else one
        if old in ("freeze_until", "unfreeze_at") and isinstance(one.get("epoch"), int):
            one.update(name="freeze", until=f"{one.pop('epoch') - 1} epochs")
            patterns = one.pop("glob", "*")
            if old == "freeze_until" or patterns != "*":  # without patterns `freeze` takes all that is frozen
                one["patterns"] = patterns
        elif old == "terminate_on_nan":
            content["check_finite"] = "stop"
        elif old == "time_limit" and "seconds" in one:
            one["limit"] = one.pop("seconds")
    content["callbacks"] = [one for one in callbacks if one not in ("terminate_on_nan", {"name": "terminate_on_nan"})]


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML, which `load_recipe` reads back to an equal one."""
    text: str = yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)
    return text


class Layers(NamedTuple):
    """What a recipe and its bases say together.

    Attributes:
        content: Keys and values.
        origins: Dotted path of each key, and the file that said it.
        used: Names of the variables that stand in one of them.
    """

    content: Dict[str, Any]
    origins: Dict[str, str]
    used: Set[str]


def recipe_names() -> List[str]:
    """Names of the recipes that ship with mxkit."""
    return sorted({path.stem for folder in RECIPE_FOLDERS for path in folder.glob("*.yaml")})


def find_recipe(recipe: Union[str, Path], folder: Path, what: str = "recipe") -> Path:
    """The file of a recipe: a path, from `folder` on, or the name of a shipped one.

    Raises:
        RecipeError: There is neither.
    """
    path = folder / Path(recipe).expanduser()
    if path.is_file():
        return path
    for shipped in RECIPE_FOLDERS:
        if Path(recipe).name == str(recipe) and (shipped / f"{recipe}.yaml").is_file():
            return shipped / f"{recipe}.yaml"
    names = recipe_names()
    here = sorted(one.name for one in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    hint = nearest(path.stem, names) or nearest(path.name, here)
    raise RecipeError(
        f"{what} {str(recipe)!r} is neither a file nor a recipe of mxkit; known: {', '.join(names)}"
        + (f"; {hint}" if hint else "")
    )


def read_layers(path: Path) -> Layers:
    """Read a recipe file, and lay it over its bases.

    Raises:
        RecipeError: A file is not there, is no recipe, or is among its own bases.
    """
    content = _read(path)
    content.setdefault("name", path.stem)
    return lay_over_bases(content, path.parent, str(path), (path.resolve(),))


def lay_over_bases(content: Dict[str, Any], folder: Path, origin: str, above: Tuple[Path, ...] = ()) -> Layers:
    """Lay what a file says over its `base`, that over its own, and so on.

    Mappings are merged key by key. Lists are replaced, and so is a component whose name changes, as a whole.

    Args:
        content: Of the file; it is changed.
        folder: Of the file: bases and imports are looked for there.
        origin: What the messages call the file.
        above: Files that led here.

    Raises:
        RecipeError: As for `read_layers`.
    """
    if content.get("imports"):
        content["import_path"] = str((folder / str(content.get("import_path") or "")).resolve())
    own = Layers(content, dict.fromkeys(_paths(content), origin), used_in(content))
    base = content.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise RecipeError(f"recipe {origin}:\n  base: expected a file or the name of a recipe; received {base!r}")
    path = find_recipe(base, folder, f"recipe {origin}:\n  base:")
    if path.resolve() in above:
        way = " -> ".join(one.name for one in (*above, path))
        raise RecipeError(f"recipe {origin}:\n  base: a recipe cannot be its own base; received {way}")
    inner = _read(path)
    inner.pop("name", None)
    below = lay_over_bases(inner, path.parent, str(path), (*above, path.resolve()))
    for key, other in _ALTERNATIVES.items():
        if content.get(key) is not None and other not in content:
            below.content.pop(other, None)
    merged = _merged(below.content, content, top=True)
    return Layers(merged, _origins(below.origins, own.origins), below.used | own.used)


def _origins(below: Dict[str, str], above: Dict[str, str]) -> Dict[str, str]:
    """The file of each path, where one file is laid over another; what stood below a value that it replaces is gone."""
    values = set(above) - {path.rpartition(".")[0] for path in above}
    ways = {path: path.split(".") for path in below}
    gone = {path for path, keys in ways.items() if any(".".join(keys[:i]) in values for i in range(1, len(keys)))}
    return {**{path: file for path, file in below.items() if path not in gone}, **above}


def _merged(below: Any, above: Any, top: bool = False) -> Any:
    if isinstance(above, dict) and isinstance(below, str):
        below = {"name": below}  # `loss: l2` is short for `loss: {name: l2}`
    if isinstance(above, str) and isinstance(below, dict) and "name" in below:
        above = {"name": above}
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if not top and "name" in above and "name" in below and above["name"] != below["name"]:
        return above
    return {
        key: _merged(below[key], above[key])
        if key in below and key in above
        else (above if key in above else below)[key]
        for key in [*below, *(one for one in above if one not in below)]
    }


def _paths(content: Any, path: str = "") -> List[str]:
    """Dotted paths of everything in a recipe."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    found = [path] if path else []
    for key, value in inner:
        found += _paths(value, f"{path}.{key}" if path else str(key))
    return found


class _Loader(yaml.SafeLoader):
    """YAML 1.2's floats, no key twice, and no alias that stands for a great many values or for itself."""

    def compose_document(self) -> Any:
        node = super().compose_document()
        sizes: Dict[int, int] = {}
        added = _size(node, sizes) - len(sizes)
        if added > _MOST_BY_ALIAS:
            problem = f"its aliases stand for {added:,} more values than it has; expected at most {_MOST_BY_ALIAS:,}"
            raise yaml.composer.ComposerError(None, None, problem, None)
        return node

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


def _size(node: Any, sizes: Dict[int, int]) -> int:
    """Nodes at and below a node with every alias written out, though each is counted once; `sizes` remembers them."""
    known = sizes.get(id(node))
    if known is None:
        sizes[id(node)] = 0
        below = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        inner = () if isinstance(node, yaml.ScalarNode) else below
        known = sizes[id(node)] = 1 + sum(_size(one, sizes) for one in inner)
    if not known:
        raise yaml.composer.ComposerError(None, None, "an alias stands for what it is in", node.start_mark)
    return known


# YAML 1.1 reads 1e-3 as text, and MXNet takes a text for a learning rate without a word (T26).
_add_implicit_resolver: Any = _Loader.add_implicit_resolver
_add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _read(path: Path) -> Dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, ValueError, OSError, RecursionError) as error:  # also a date like 2020-13-01, and no UTF-8
        raise RecipeError(f"recipe {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"recipe {path}: expected keys and values, like `epochs: 20`; received {content!r}")
    return content


def override(layers: Layers, setting: str) -> None:
    """Change one value: `a.b=c`, where c is read as YAML.

    Raises:
        RecipeError: The setting has another form, or its path leads through a value that has no keys.
    """
    path, separator, text = setting.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise RecipeError(f"--set {setting!r}: expected a.b=value, like optimizer.learning_rate=0.01")
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"--set {setting!r}: the value is no YAML: {error}") from error
    if keys[0] == "base":
        raise RecipeError(f"--set {setting!r}: the base is read before; name the other recipe itself")
    place: Any = layers.content
    for i, key in enumerate(keys[:-1]):
        inner = (
            place[int(key)] if _is_place(place, key) else None if isinstance(place, list) else place.setdefault(key, {})
        )
        if inner is None and isinstance(place, dict):
            inner = place[key] = {}
        if isinstance(inner, str):  # `loss: l2` is short for `loss: {name: l2}`
            inner = {"name": inner}
            place[int(key) if isinstance(place, list) else key] = inner
        if not isinstance(inner, (dict, list)):
            raise RecipeError(f"--set {setting!r}: {'.'.join(keys[: i + 1])} is {inner!r}, which has no keys")
        place = inner
    _put(place, keys, value, setting)
    for replaced in [one for one in layers.origins if one.startswith(f"{path.strip()}.")]:
        del layers.origins[replaced]
    layers.origins.update(dict.fromkeys(_paths(value, path.strip()), "--set"))
    if len(keys) == 1 and value is not None and keys[0] in _ALTERNATIVES:
        layers.content.pop(_ALTERNATIVES[keys[0]], None)


def _is_place(place: Any, key: str) -> bool:
    return isinstance(place, list) and key.isdecimal() and int(key) < len(place)


def _put(place: Any, keys: Sequence[str], value: Any, setting: str) -> None:
    if isinstance(place, dict):
        place[keys[-1]] = value
    elif _is_place(place, keys[-1]):
        place[int(keys[-1])] = value
    else:
        raise RecipeError(
            f"--set {setting!r}: {'.'.join(keys[:-1])} is a list of {len(place)}; expected a number below that, or set "
            "the whole list"
        )


def used_in(content: Any) -> Set[str]:
    """Names of the variables that stand in a recipe."""
    found: Set[str] = set()
    _replaced(content, "", lambda name, _: found.add(name))
    return found


def put_variables_in(content: Mapping[str, Any], used: Set[str]) -> Tuple[Dict[str, Any], List[Problem]]:
    """Put the values of `variables: {width: 64}` in place of `${width}`.

    A value that is nothing but one variable gets its type too.

    Args:
        content: What the recipe and its bases say.
        used: Names that stand in one of them, though it may be replaced by another.

    Returns:
        What the recipe says, without `variables`; and variables that are unknown, unused or no plain value.
    """
    content = dict(content)
    received = content.pop("variables", None)
    problems: List[Problem] = []
    if not isinstance(received, (dict, type(None))):
        problems.append(Problem("variables", f"expected names and values; received {received!r}"))
    variables: Dict[str, Any] = received if isinstance(received, dict) else {}
    used = used | used_in(content)

    def look_up(name: str, path: str) -> Any:
        if name not in variables:
            problems.append(Problem(path, f"unknown variable; received {name!r}", tuple(variables) or ("none",), name))
        return variables.get(name, "")

    replaced = dict(_replaced(content, "", look_up))
    known = tuple(sorted(used)) or ("none",)
    for name, value in variables.items():
        if isinstance(value, dict) or (isinstance(value, str) and _VARIABLE.search(value)):
            problems.append(Problem(f"variables.{name}", f"expected a number, a text or a list; received {value!r}"))
        elif name not in used:  # else a misspelt name would leave the base's value, in silence
            problems.append(Problem(f"variables.{name}", f"nothing uses it; received {value!r}", known, name))
    return replaced, problems


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
