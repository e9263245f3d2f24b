"""The JSON Schema of recipes, for editors that complete and check YAML."""

from typing import Any, Dict, List, Mapping, Optional, Type

from mxkit.recipe.schema import KIND_AT, Component, DataComponent, ModelComponent, OptimizerComponent, Recipe
from mxkit.recipe.vocabulary import COMPOSED, KINDS, accepted_arguments, adapter_of

Schema = Dict[str, Any]

# Sections of components, by kind.
_CLASSES: Dict[str, Type[Component]] = {
    "data": DataComponent,
    "model": ModelComponent,
    "optimizer": OptimizerComponent,
}
# Names of the sections that hold components, by their paths.
_SECTIONS = {"": "Recipe", "data": "data", "evaluate": "EvaluateSection", "model.finetune": "FinetuneSection"}
# Kind of each component, by section and key.
_KINDS = {(_SECTIONS[path.rpartition(".")[0]], path.rpartition(".")[2]): kind for path, kind in KIND_AT.items()}
_LISTED = ("augment", "callback", "metric")
_VARIABLE = {"type": "string", "pattern": r"\$\{[^{}]+\}"}


def recipe_schema() -> Schema:
    """The JSON Schema of recipe files: every key, the names of every kind, and their arguments.

    No key is required, because a recipe over a `base` may omit any. `${variables}` may replace any value. The
    components of a recipe with `imports` are not checked, because its modules register names.

    >>> recipe_schema()["properties"]["seed"]["anyOf"][0]["type"]
    'integer'
    """
    recipe = Recipe.model_json_schema()
    definitions: Schema = recipe.pop("$defs")
    sections = {name: one for name, one in definitions.items() if not name.endswith("Component")}
    own = {kind: definitions[section.__name__]["properties"] for kind, section in _CLASSES.items()}
    kinds = {kind: _kind(kind, own.get(kind, {})) for kind in KINDS}
    for name, section in {"Recipe": recipe, **sections}.items():
        section.pop("required", None)
        section["properties"] = _properties(name, section["properties"])
    recipe["properties"]["base"] = {"type": "string", "description": "The recipe that this one extends."}
    recipe["properties"]["variables"] = {"type": "object", "description": "Values for ${name}."}
    chosen = {key: recipe["properties"][key] for section, key in _KINDS if section == "Recipe"}
    chosen["evaluate"] = recipe["properties"]["evaluate"]
    recipe["properties"].update(dict.fromkeys(chosen, True))
    recipe.update({"if": {"required": ["imports"]}, "else": {"properties": chosen}})
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A recipe of mxkit, format 1"}
    return {**recipe, **head, "$defs": {**sections, **kinds, "variable": _VARIABLE}}


def _properties(section: str, properties: Mapping[str, Schema]) -> Schema:
    """Keys of a section, with mxkit's schemas of components and with variables."""
    changed: Schema = {}
    for key, schema in properties.items():
        schema = {name: one for name, one in schema.items() if name != "title"}
        kind = _KINDS.get((section, key))
        if kind is not None:
            item, null = {"$ref": f"#/$defs/{kind}"}, {"type": "null"}
            schema = {"anyOf": [item, *([null] if key == "schedule" else [])]}
            if kind in _LISTED:
                schema = {"anyOf": [{"type": "array", "items": item}, item, null]}
        changed[key] = schema if key == "name" or not schema else {"anyOf": [schema, {"$ref": "#/$defs/variable"}]}
    return changed


def _kind(kind: str, own: Mapping[str, Schema]) -> Schema:
    """A component: its name, its name and arguments, or only arguments, if a base has the name."""
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
    # MXNet's registries ignore case; gluoncv is not imported for its names
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
