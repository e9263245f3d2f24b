"""Prints the plan of a recipe as a Python script."""

import inspect
import json
import re
from typing import Any, List, Mapping

import mxkit.data as data_room
from mxkit.recipe.building import Call, InFolder, Name, data_call, fit_call, kvstore_call, loader_calls, net_calls
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.schema import Component, Recipe
from mxkit.recipe.scores import score_calls

_WIDTH = 110
# Functions of a plan that are public at the root of the package.
_AT_ROOT = {"Checkpoints", "evaluate", "finetune", "fit", "freeze", "initialize", "load_checkpoint", "load_parameters"}
_AT_ROOT |= {"predict", "seed_all", "to"}


def as_script(recipe: Recipe) -> str:
    """Write a Python script that gives the same numbers as the recipe.

    The recipe's data is loaded, because arrays and files need different loaders.

    Args:
        recipe: The checked recipe.

    Returns:
        The script. It writes its checkpoints to `scripts/<name>`, and resumes from them when it is run again.

    Raises:
        MxkitError: The data cannot be loaded.
    """
    data = load_data(recipe)
    head = f"{recipe.description or recipe.name}\n\nWritten by `mxkit show --as-script {recipe.name}`.\n"
    head = head.replace("\\", "\\\\").replace('"""', "'''")
    blocks = [
        map(written, [data_call(recipe), *loader_calls(recipe, data)]),
        map(written, net_calls(recipe)),
        [
            *([written(kvstore_call(recipe))] if recipe.kvstore != "dist_sync" or recipe.compression else []),
            written(fit_call(recipe, data)),
        ],
        [
            *map(written, score_calls(recipe, data)),
            "for name, value in scores.items():",
            f"    print({literal(recipe.evaluate.split)}, name, value)",
        ],
    ]
    body = "\n\n".join("\n".join(block) for block in blocks)
    imports = ["from pathlib import Path"]
    if recipe.imports:
        imports += ["import sys", "", f"sys.path.insert(0, {literal(recipe.import_path)})"]
    numpy = recipe.arrays == "np"
    imports += ["", "import mxkit"]
    imports += ["", f"mxkit.threads({recipe.threads})  # before MXNet is imported", ""] if recipe.threads else []
    imports += ["import mxnet as mx"] if numpy or re.search(r"\bmx\.", body) else []
    imports += ["import numpy as np"] if re.search(r"\bnp\.", body) else []
    own = [f"import {name}" for name in recipe.imports]
    # before the recipe's modules, which may make arrays
    imports += ["", "mx.npx.set_np()", *([""] if own else []), *own] if numpy else own
    folder = f"folder = Path({literal(f'scripts/{recipe.name}')})"
    return "\n\n".join([f'"""{head}"""', "\n".join(imports), folder, body]) + "\n"


def literal(value: Any) -> str:
    """An argument of a plan as Python code.

    >>> print(literal({"a": [1, None], "b": Name("x"), "c": Call(max, (Name("x"), 2))}))
    {"a": [1, None], "b": x, "c": builtins.max(x, 2)}
    """
    if isinstance(value, Call):
        return written(value)
    if isinstance(value, Component):
        return literal(value.short)
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, InFolder):
        return f"folder / {literal(str(value))}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(key)}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(literal, value))
        return f"({inner})" if isinstance(value, tuple) and len(value) > 1 else f"[{inner}]"
    return repr(value)


def written(call: Call) -> str:
    """A call of a plan as Python code, with one argument per line if it is long.

    >>> print(written(Call(Name("f"), (Name("x"),), {"a": "b"}, "y")))
    y = f(x, a="b")
    """
    target = f"{call.result} = " if call.result else ""
    if call.text:
        return f"{target}{call.text}"
    values = [*(("", one) for one in call.positional), *((f"{name}=", one) for name, one in call.named.items())]
    arguments = [f"{name}{literal(value)}" for name, value in values]
    begin = f"{target}{public_name(call.function)}"
    line = f"{begin}({', '.join(arguments)})"
    if len(line) <= _WIDTH:
        return line
    broken = [
        one if len(one) <= _WIDTH or not isinstance(value, list) else _one_per_line(name, value)
        for one, (name, value) in zip(arguments, values)
    ]
    return f"{begin}(\n" + "".join(f"    {one},\n" for one in broken) + ")"


def _one_per_line(name: str, elements: List[Any]) -> str:
    return f"{name}[\n" + "".join(f"        {literal(one)},\n" for one in elements) + "    ]"


def public_name(function: Any) -> str:
    """Name of a function in a script: `mxkit.data.digits`; a user's function with its module.

    >>> public_name(load_data), public_name(data_room.digits), public_name(data_room.Augment.preset)
    ('mxkit.recipe.load_data', 'mxkit.data.digits', 'mxkit.data.Augment.preset')
    """
    if isinstance(function, Name):
        return str(function)
    function = inspect.unwrap(function)
    module, name = str(function.__module__), str(getattr(function, "__qualname__", function))
    if not module.startswith("mxkit."):
        return f"{module}.{name}"
    if name in _AT_ROOT:
        return f"mxkit.{name}"
    if module.startswith("mxkit.data") and not hasattr(data_room, name.split(".")[0]):
        return f"{module}.{name}"
    room = "callbacks" if module.startswith("mxkit.training.callbacks.") else module.split(".")[1]
    return f"mxkit.{room}.{name}"
