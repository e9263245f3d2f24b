"""The vocabulary of recipes as JSON Schema, for editors that complete and check YAML."""

from typing import Any, Dict, List, Mapping, Optional, Type

from mxkit.recipe.schema import Component, DataComponent, ModelComponent, OptimizerComponent, Recipe
from mxkit.recipe.vocabulary import COMPOSED, KINDS, accepted_arguments, adapter_of

Schema = Dict[str, Any]

# Which of the schema's definitions are chosen by name, and which keys of theirs belong to what.
_CLASSES: Dict[str, Type[Component]] = {
    "data": DataComponent,
    "model": ModelComponent,
    "optimizer": OptimizerComponent,
}
_LISTS = {
    ("Recipe", "callbacks"): "callback",
    ("Recipe", "metrics"): "metric",
    ("EvaluateSection", "metrics"): "metric",
    ("data", "augment"): "augment",
    ("data", "eval_augment"): "augment",
}
_SINGLE = {
    ("Recipe", "initializer"): "initializer",
    ("Recipe", "loss"): "loss",
    ("Recipe", "schedule"): "schedule",
    ("Recipe", "data"): "data",
    ("Recipe", "model"): "model",
    ("Recipe", "optimizer"): "optimizer",
    ("FinetuneSection", "initializer"): "initializer",
}
_VARIABLE = {"type": "string", "pattern": r"\$\{[^{}]+\}"}


def recipe_schema() -> Schema:
    """The JSON Schema of recipe files: every key, the names of every kind, and the arguments of each.

    A file over a `base` may leave anything out, so nothing is required; `${variables}` may stand for any value. What a
    file with `imports` chooses by name is not looked at, because the names are its own.

    >>> recipe_schema()["properties"]["seed"]["anyOf"][0]["type"]
    'integer'
    """
    made = Recipe.model_json_schema()
    definitions: Schema = made.pop("$defs")
    sections = {name: one for name, one in definitions.items() if not name.endswith("Component")}
    own = {kind: definitions[made_of.__name__]["properties"] for kind, made_of in _CLASSES.items()}
    top = {"Recipe": made, **sections}
    kinds = {kind: _kind(kind, own.get(kind, {})) for kind in KINDS}
    for name, section in top.items():
        section.pop("required", None)
        section["properties"] = _properties(name, section["properties"])
    made["properties"]["base"] = {"type": "string", "description": "A recipe that this one is laid over."}
    made["properties"]["variables"] = {"type": "object", "description": "Values for ${name}."}
    chosen = {key: made["properties"][key] for section, key in [*_SINGLE, *_LISTS] if section == "Recipe"}
    chosen["evaluate"] = made["properties"]["evaluate"]
    made["properties"].update(dict.fromkeys(chosen, True))
    made.update({"if": {"required": ["imports"]}, "else": {"properties": chosen}})
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A recipe of mxkit, format 1"}
    return {**made, **head, "$defs": {**sections, **kinds, "variable": _VARIABLE}}


def _properties(section: str, properties: Mapping[str, Schema]) -> Schema:
    """Keys of a section, with components in the place of pydantic's, and variables allowed."""
    found: Schema = {}
    for key, schema in properties.items():
        schema = {name: one for name, one in schema.items() if name != "title"}
        single, listed = _SINGLE.get((section, key)), _LISTS.get((section, key))
        if single:
            schema = {"anyOf": [{"$ref": f"#/$defs/{single}"}, *([{"type": "null"}] if key == "schedule" else [])]}
        elif listed:
            item = {"$ref": f"#/$defs/{listed}"}
            schema = {"anyOf": [{"type": "array", "items": item}, item, {"type": "null"}]}
        found[key] = schema if key == "name" or not schema else {"anyOf": [schema, {"$ref": "#/$defs/variable"}]}
    return found


def _kind(kind: str, own: Mapping[str, Schema]) -> Schema:
    """A component: its name, or its name and arguments, or arguments alone where a base has the name."""
    names = sorted(KINDS[kind].names())
    keys = _properties(kind, {key: schema for key, schema in own.items() if key != "name"})
    objects: List[Schema] = []
    union: Schema = {}
    for name in names:
        arguments = _arguments(kind, name)
        if arguments is None:
            objects.append(_object({"name": {"const": name}, **keys}, open_ended=True))
            continue
        for key, schema in arguments.items():
            union[key] = schema if union.get(key, schema) == schema else {}
        objects.append(_object({"name": {"const": name}, **keys, **arguments}))
    nameless = {"type": "object", "properties": {**union, **keys}, "additionalProperties": False}
    # MXNet's registries fold case, gluoncv's nets are not looked up here
    others = {"initializer": r"[A-Z]", "optimizer": r"[A-Z]", "metric": r"[A-Z]", "model": r"^gluoncv:"}.get(kind)
    free = [{"type": "string", "pattern": others}] if others else []
    if others:
        objects.append(_object({"name": free[0]}, open_ended=True))
    return {"anyOf": [{"enum": names}, *free, *objects, nameless]}


def _object(properties: Schema, open_ended: bool = False) -> Schema:
    more = {} if open_ended else {"additionalProperties": False}
    return {"type": "object", "properties": properties, "required": ["name"], **more}


def _arguments(kind: str, name: str) -> Optional[Schema]:
    accepted = accepted_arguments(kind, name)
    if accepted is None:
        return None
    if kind == "model" and name in COMPOSED:
        return {key: {"$ref": "#/$defs/model"} for key in accepted}
    return _properties("arguments", adapter_of(accepted).json_schema().get("properties", {}))
