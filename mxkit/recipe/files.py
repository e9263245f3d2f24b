"""Recipe files: found, read as YAML 1.2, laid over their base, and their variables put in."""

from pathlib import Path
import re
from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple, Union

from mxkit.errors import RecipeError, nearest
from mxkit.recipe.variables import used_in
import yaml

_PACKAGE = Path(__file__).resolve().parents[1]
# Inside the wheel recipes lie in the package; in a checkout, beside it.
RECIPE_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parent / "recipes")
# One of each stands for the other.
_ALTERNATIVES = {"epochs": "updates", "updates": "epochs"}


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
    return Layers(_merged(below.content, content, top=True), {**below.origins, **own.origins}, below.used | own.used)


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
    except (yaml.YAMLError, ValueError, OSError) as error:  # also a date like 2020-13-01, and no UTF-8
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
    except (yaml.YAMLError, ValueError) as error:
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
