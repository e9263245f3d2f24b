"""What a builder takes: the types of its arguments as JSON Schema, and whether a value of a recipe fits."""

import collections.abc as abc
import inspect
import math
from pathlib import PurePath
import types
import typing
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple, Union

from typing_extensions import Literal

Schema = Dict[str, Any]
ANYTHING: Schema = {}
NOTHING: Schema = {"not": {}}
NUMBER: Schema = {"type": "number"}

_PLAIN: Dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: NUMBER,
    str: {"type": "string"},
    type(None): {"type": "null"},
}
_TOLD = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "null": "null",
    "array": "a list",
    "object": "keys and values",
}
_UNIONS = {Union, getattr(types, "UnionType", Union)}


class Argument(NamedTuple):
    """One argument of a builder.

    Attributes:
        schema: What a recipe may say, of this module's small part of JSON Schema.
        required: It has no default.
        default: The default, or None.
    """

    schema: Schema
    required: bool
    default: Any = None


def arguments_of(target: Callable[..., Any]) -> Tuple[Dict[str, Argument], bool]:
    """Read the signature of a function or a class.

    Args:
        target: Its annotations are used, and where there are none the types of the defaults.

    Returns:
        Arguments by name, without those that YAML cannot hold, as functions; and whether it takes others too.

    >>> arguments_of(lambda size=8, *, deep=False: None)[0]["deep"].schema
    {'type': 'boolean'}
    """
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        hints = {}
    found: Dict[str, Argument] = {}
    open_ended = False
    for name, parameter in inspect.signature(target).parameters.items():
        open_ended = open_ended or parameter.kind is parameter.VAR_KEYWORD
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "self":
            required = parameter.default is parameter.empty
            default = None if required else parameter.default
            schema = schema_of(hints[name]) if name in hints else _of_default(default)
            if schema != NOTHING:
                found[name] = Argument(schema, required, default)
    return found, open_ended


def _of_default(default: Any) -> Schema:
    if isinstance(default, bool) or default is None:
        return ANYTHING if default is None else _PLAIN[bool]
    if isinstance(default, (int, float)):
        return NUMBER  # an undocumented 1 may well be meant as 1.0
    return _PLAIN[str] if isinstance(default, str) else ANYTHING


def schema_of(annotation: Any) -> Schema:
    """Translate a type into JSON Schema; what YAML cannot hold becomes `{"not": {}}`.

    >>> schema_of(typing.Optional[typing.Sequence[int]])
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (Any, object, inspect.Parameter.empty) or isinstance(annotation, typing.TypeVar):
        return ANYTHING
    if origin in _UNIONS:
        return _one_of([schema_of(one) for one in inner])
    if origin is Literal or origin is typing.__dict__.get("Literal"):
        return {"enum": list(inner)}
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    container = origin or annotation
    if not isinstance(container, type):
        return ANYTHING
    if issubclass(container, PurePath):
        return _PLAIN[str]
    if issubclass(container, tuple) and inner and inner[-1] is not Ellipsis:
        return {
            "type": "array",
            "prefixItems": [schema_of(one) for one in inner],
            "minItems": len(inner),
            "items": False,
        }
    if issubclass(container, abc.Mapping):
        return {"type": "object", **({"additionalProperties": schema_of(inner[1])} if inner else {})}
    if issubclass(container, abc.Iterable) or container is abc.Iterable:
        return {"type": "array", "items": schema_of(inner[0])} if inner else NOTHING
    return NOTHING


def _one_of(schemas: List[Schema]) -> Schema:
    if ANYTHING in schemas:
        return ANYTHING
    flat = [inner for one in schemas for inner in one.get("anyOf", [one]) if one != NOTHING]
    distinct = [one for number, one in enumerate(flat) if one not in flat[:number]]
    if not distinct:
        return NOTHING
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value of a recipe is of a type; numbers must be finite, and true is no number.

    >>> fits(3, {"type": "number"}), fits("3", {"type": "number"}), fits(True, {"type": "integer"})
    (True, False, False)
    """
    if "not" in schema:
        return False
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return isinstance(value, (list, tuple)) and _items_fit(value, schema)
    if kind == "object":
        inner = schema.get("additionalProperties", ANYTHING)
        return isinstance(value, dict) and all(fits(one, inner) for one in value.values())
    if kind in ("integer", "number"):
        number = isinstance(value, (int, float) if kind == "number" else int) and not isinstance(value, bool)
        return number and (isinstance(value, int) or math.isfinite(value))
    known = {"boolean": bool, "string": str, "null": type(None)}
    return kind is None or isinstance(value, known[kind])


def _items_fit(values: Any, schema: Mapping[str, Any]) -> bool:
    if "prefixItems" in schema:
        each = schema["prefixItems"]
        return len(values) == len(each) and all(fits(value, one) for value, one in zip(values, each))
    return all(fits(value, schema["items"]) for value in values)


def told(schema: Mapping[str, Any]) -> str:
    """What a type is called in messages.

    >>> told({"anyOf": [{"type": "number"}, {"type": "null"}]})
    'a number or null'
    """
    if "anyOf" in schema:
        words = [told(one) for one in schema["anyOf"]]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])}: {', '.join(told(one) for one in schema['prefixItems'])}"
    if schema.get("type") == "array" and schema["items"]:
        return f"a list, of each element {told(schema['items'])}"
    return _TOLD.get(str(schema.get("type")), "anything")
