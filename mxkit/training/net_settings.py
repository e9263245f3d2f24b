"""Settings of a net that a training depends on and its parameters' values do not hold; a resumed run compares them."""

import hashlib
import json
from numbers import Real
from typing import Any, Dict, Iterator, List, Mapping

from mxkit.core.blocks import child_blocks, distinct, distinct_blocks, layer_settings, parameters_by_path
from mxkit.core.graphs import block_operators
from mxkit.core.replicas import is_trainable
from mxkit.nets.architecture.arguments import plain
from mxkit.nets.architecture.description import IGNORED

Settings = Dict[str, Dict[str, Any]]

# Stands for a value that the run itself changed, like a `grad_req` by the callback Freeze: it is not compared.
_CHANGED = "changed by the run"
# The parameters' shapes and dtypes are compared where their values are loaded.
_SIZES = {"channels", "num_filter", "units", "input_dim", "output_dim", "dtype"}
_USUAL = {"lr_mult": 1.0, "wd_mult": 1.0, "grad_req": "write"}
_GRAPH = "digest of the graph"
_MOST_LINES, _MOST_ITEMS, _MOST_LETTERS, _LARGEST = 3, 16, 100, 1e9


def net_settings(net: Any) -> Dict[str, Settings]:
    """Read the settings of a net's layers and parameters.

    Args:
        net: Any block, also one that cannot be described: of users' layers, attributes that are numbers, texts and
            short tuples are read.

    Returns:
        "layers" has the settings by path; a layer without children also has its "class", and a SymbolBlock a digest of
        its graph. "parameters" has, by path, multipliers and `grad_req` that are not the usual ones.
    """
    layers = {path: _of_layer(block) for path, block in distinct_blocks(net).items()}
    parameters = {path: _of_parameter(one) for path, one in distinct(parameters_by_path(net)).items()}
    return {
        "layers": {path: settings for path, settings in layers.items() if settings},
        "parameters": {path: settings for path, settings in parameters.items() if settings},
    }


def _of_layer(block: Any) -> Dict[str, Any]:
    settings: Dict[str, Any] = {} if child_blocks(block) else {"class": type(block).__name__}
    own = {name: value for name, value in vars(block).items() if name not in IGNORED}
    for name, value in {**own, **layer_settings(block)}.items():
        name = name.lstrip("_")
        named = isinstance(value, str) and block.name and block.name in value  # Gluon counts names in a process (T37)
        if _is_short(value) and not named and name not in _SIZES and not name.endswith("_initializer"):
            settings[name] = plain(value)
    operators = [[one.operator, one.arguments] for one in block_operators(block)]
    if operators:
        settings[_GRAPH] = hashlib.sha256(json.dumps(operators, sort_keys=True).encode()).hexdigest()[:16]
    return settings


def _is_short(value: Any) -> bool:
    """Whether a value may be a setting: no long table, address or time. The last two differ between processes."""
    if isinstance(value, str):
        return len(value) <= _MOST_LETTERS
    if isinstance(value, (list, tuple)):
        return len(value) <= _MOST_ITEMS and all(map(_is_short, value))
    return value is None or (isinstance(value, Real) and abs(float(value)) <= _LARGEST)


def _of_parameter(parameter: Any) -> Dict[str, Any]:
    if not is_trainable(parameter):
        return {}
    settings = {
        "lr_mult": float(parameter.lr_mult),
        "wd_mult": float(parameter.wd_mult),
        # inside an Accumulator, "write" is "add"
        "grad_req": "null" if parameter.grad_req == "null" else "write",
    }
    return {name: value for name, value in settings.items() if value != _USUAL[name]}


def without_changes(begun: Mapping[str, Settings], now: Mapping[str, Settings]) -> Dict[str, Settings]:
    """Return the settings with which a run began, and mark those that are others now: the run changes them itself.

    Marks in either of the two remain.
    """
    return {part: _marked(begun[part], now[part]) for part in begun}


def _marked(begun: Settings, now: Settings) -> Settings:
    marked: Settings = {}
    for path in {**begun, **now}:
        one, other = begun.get(path, {}), now.get(path, {})
        marked[path] = {
            name: one[name] if name in one and name in other and one[name] == other[name] else _CHANGED
            for name in {**one, **other}
        }
    return marked


def with_marks(now: Mapping[str, Settings], stored: Mapping[str, Settings]) -> Dict[str, Settings]:
    """Return settings with the marks of an earlier part of the run, which a checkpoint holds."""
    marked = {}
    for part, settings in now.items():
        marks = {
            path: {name: value for name, value in one.items() if value == _CHANGED}
            for path, one in stored[part].items()
        }
        paths = {**settings, **{path: one for path, one in marks.items() if one}}
        marked[part] = {path: {**settings.get(path, {}), **marks.get(path, {})} for path in paths}
    return marked


def to_json(settings: Mapping[str, Settings]) -> Dict[str, List[Any]]:
    """Return settings as JSON values in which layers with equal settings share one line: deep nets have few kinds."""
    stored = {}
    for part, by_path in settings.items():
        groups: Dict[str, List[Any]] = {}
        for path, one in by_path.items():
            groups.setdefault(json.dumps(one, sort_keys=True), [one, []])[1].append(path)
        stored[part] = list(groups.values())
    return stored


def from_json(stored: Mapping[str, List[Any]]) -> Dict[str, Settings]:
    """Return the settings that `to_json` wrote."""
    return {part: {path: one for one, paths in stored[part] for path in paths} for part in ("layers", "parameters")}


def differences_of(stored: Mapping[str, Settings], now: Mapping[str, Settings]) -> List[str]:
    """Name settings that differ and that the run does not change itself: the first layers, and how many more."""
    lines = [
        *_differences_of_layers(stored["layers"], now["layers"]),
        *_differences_of_parameters(stored["parameters"], now["parameters"]),
    ]
    more = [f"and {len(lines) - _MOST_LINES} more such differences of the net"] if len(lines) > _MOST_LINES else []
    return [*lines[:_MOST_LINES], *more]


def _differences_of_layers(stored: Settings, now: Settings) -> Iterator[str]:
    for path in {**stored, **now}:
        one, other, place = stored.get(path, {}), now.get(path, {}), path or "the net"
        kinds = [settings.get("class") for settings in (one, other)]
        if _CHANGED in kinds:
            continue
        if not other and kinds[0]:
            yield f"{place} was {kinds[0]}, is no longer in the net"
        elif not one and kinds[1]:
            yield f"{place} is {kinds[1]}, which the net did not have"
        elif kinds[0] != kinds[1] and None not in kinds:
            yield f"{place} was {kinds[0]}, is {kinds[1]}"
        else:
            shown = f"{place}: {kinds[1]}" if kinds[1] else f"{place}:"
            # a layer may set an attribute in its first call: without it in one of the two, nothing is known
            for name in [name for name in one if name in other and _CHANGED not in (one[name], other[name])]:
                if one[name] != other[name]:
                    yield f"{shown} {name} was {one[name]!r}, is {other[name]!r}"


def _differences_of_parameters(stored: Settings, now: Settings) -> Iterator[str]:
    for path in {**stored, **now}:
        for name, usual in _USUAL.items():
            one, other = (settings.get(path, {}).get(name, usual) for settings in (stored, now))
            if one != other and _CHANGED not in (one, other):
                yield f"{path}: {name} was {one!r}, is {other!r}"
