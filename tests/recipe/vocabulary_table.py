"""Tables of docs/recipes.md, made from the schema; `python tests/made_tables.py recipes` writes them."""

import inspect
import re

from mxkit.recipe import schema
from mxkit.recipe.building import public_name
from mxkit.recipe.reading import as_yaml
from mxkit.recipe.vocabulary import COMPOSED, KINDS, accepted_arguments
from pydantic import BaseModel


def sections(section, prefix=""):
    """The sections of a recipe that have keys of their own, each with the prefix of its keys."""
    yield prefix, section
    for name, field in section.model_fields.items():
        for inner in re.findall(r"\w+(?:Section|Component)\b", str(field.annotation)):
            kind = getattr(schema, inner)
            own = kind.model_fields.keys() - {"name"}
            several = "Dict[" in str(field.annotation)
            if own and "List[" not in str(field.annotation):
                yield from sections(kind, f"{prefix}{name}.{'GLOB.' if several else ''}")


SECTIONS = list(sections(schema.Recipe))


def meanings(section):
    """What a section's docstring says of each attribute."""
    text = inspect.getdoc(section).split("Attributes:")[-1]
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", meaning) for name, meaning in found}


def default(field):
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, schema.Component):
        return f"`{value.name}`"
    if isinstance(value, BaseModel) or value in ({}, ""):
        return ""
    return f"`{as_yaml(value, default_flow_style=True).splitlines()[0]}`"


def keys():
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for prefix, section in SECTIONS:
        told = meanings(section)
        for name, field in section.model_fields.items():
            if name != "name" or not issubclass(section, schema.Component):
                lines.append(f"| `{prefix}{name}` | {default(field)} | {told[name]} |")
    return lines


CALLS = {
    "data": "the dataset itself",
    "augment": "`mxkit.data.Augment`, or `Augment.preset` for `cifar_*` and `imagenet_*`",
    "model": "`mxkit.models.get_model`",
    "initializer": "`mxkit.initialize`",
    "loss": "`loss=` of `mxkit.fit`",
    "optimizer": "`trainer=` of `mxkit.fit`",
    "schedule": "`mxkit.callbacks.LearningRate`",
    "callback": "the callback itself",
    "metric": "`metrics=` of `mxkit.fit`",
}


def names():
    lines = []
    for kind, table in KINDS.items():
        lines += ["", f"### {kind}: {CALLS[kind]}", ""]
        every = sorted(table.names())
        if kind in ("metric", "optimizer", "initializer"):
            own = " and mxkit's own" if kind == "metric" else ""
            lines.append(f"MXNet's{own}: {', '.join(f'`{name}`' for name in every if name != 'test')}.")
            continue
        lines += ["| name | arguments |", "|---|---|"]
        for name in every:
            if name.startswith("zoo:"):
                continue
            accepted = accepted_arguments(kind, name) or {}
            told = ", ".join(f"`{key}`" if not one.required else f"**`{key}`**" for key, one in accepted.items())
            shown = f" `{public_name(table.builder(name))}`" if kind in ("data", "callback") or name in COMPOSED else ""
            lines.append(f"| `{name}`{shown} | {told} |")
    return lines


TABLES = {"keys": keys, "names": names}
