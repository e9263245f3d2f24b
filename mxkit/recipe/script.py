"""A recipe as the Python that does the same, with nothing but public calls."""

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from mxkit.data.augmentation.presets import PRESETS
from mxkit.data.loader import ArrayLoader
from mxkit.data.splits import Split, Splits
from mxkit.models.registry import MODELS
from mxkit.recipe.batches import augmentation, data_arguments, has_samples, is_loader, load_data, loader_arguments
from mxkit.recipe.building import PATHS
from mxkit.recipe.nets import is_pretrained
from mxkit.recipe.registry import CALLBACKS, COMPOSED, DATASETS, public_name
from mxkit.recipe.run import fit_arguments
from mxkit.recipe.schema import Component, Recipe
from mxkit.storage.listing import checkpoints_of
from mxkit.training.callbacks.learning_rate import LearningRate

_WIDTH = 110


class Code(str):
    """Text that is Python already."""


def as_script(recipe: Recipe) -> str:
    """Write the Python that does what a recipe says, to the same numbers.

    The recipe's data is looked at, because loaders differ for arrays and for files.

    Args:
        recipe: Checked.

    Returns:
        A script; its checkpoints go to `runs/<name>-script`, from which it goes on when it is run again.

    Raises:
        MxkitError: The data cannot be loaded.
    """
    data = load_data(recipe)
    head = f"{recipe.description or recipe.name}\n\nWritten by `mxkit show --as-script {recipe.name}`.\n"
    blocks = [
        [Code('"""' + head.replace("\\", "\\\\").replace('"""', "'''") + '"""')],
        _imports(recipe),
        [Code(f"folder = Path({literal(f'runs/{recipe.name}-script')})")],
        _data(recipe, data),
        _net(recipe),
        _training(recipe, data),
        _evaluation(recipe, data),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def literal(value: Any) -> Code:
    """Write a value; what is Code stays as it is.

    >>> print(literal({"a": [1, None], "b": Code("x")}))
    {"a": [1, None], "b": x}
    """
    if isinstance(value, Code):
        return value
    if isinstance(value, str):
        return Code(json.dumps(value, ensure_ascii=False))
    if isinstance(value, Mapping):
        return Code("{" + ", ".join(f"{literal(key)}: {literal(one)}" for key, one in value.items()) + "}")
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(literal, value))
        return Code(f"({inner})" if isinstance(value, tuple) and len(value) > 1 else f"[{inner}]")
    return Code(repr(value))


def call(function: str, *positional: Any, target: str = "", **named: Any) -> Code:
    """Write a call, one argument a line where it is long.

    >>> print(call("mxkit.seed_all", 3)), print(call("f", Code("x"), target="y", a="b"))
    mxkit.seed_all(3)
    y = f(x, a="b")
    (None, None)
    """
    values = [*(("", one) for one in positional), *((f"{name}=", one) for name, one in named.items())]
    arguments = [f"{name}{literal(value)}" for name, value in values]
    begin = f"{target} = {function}" if target else function
    line = f"{begin}({', '.join(arguments)})"
    if len(line) <= _WIDTH:
        return Code(line)
    broken = [
        one if len(one) <= _WIDTH or not isinstance(value, list) else _one_a_line(name, value)
        for one, (name, value) in zip(arguments, values)
    ]
    return Code(f"{begin}(\n" + "".join(f"    {one},\n" for one in broken) + ")")


def _one_a_line(name: str, elements: List[Any]) -> str:
    return f"{name}[\n" + "".join(f"        {literal(one)},\n" for one in elements) + "    ]"


def _spec(component: Component) -> Any:
    return component.spec if component.arguments else component.name


def _imports(recipe: Recipe) -> List[Code]:
    needs_mxnet = recipe.data.pairs is not None or (recipe.hybridize and not _is_hybrid(recipe))
    lines = ["from pathlib import Path"]
    if recipe.imports:
        lines += ["import sys", "", f"sys.path.insert(0, {literal(recipe.import_path)})"]
    lines += ["", "import mxkit"] + [f"import {name}" for name in recipe.imports]
    return [Code(line) for line in [*lines, *(["import mxnet as mx"] if needs_mxnet else [])]]


def _is_hybrid(recipe: Recipe) -> bool:
    builder = MODELS.get(recipe.model.name)
    own = builder is not None and builder.__module__.startswith("mxkit.")
    return own or recipe.model.name.startswith("zoo:") or recipe.model.name in COMPOSED


def _data(recipe: Recipe, data: Splits) -> List[Code]:
    builder = DATASETS[recipe.data.name]
    lines = [call(public_name(builder), target="data", **data_arguments(recipe.data))]
    for name in ("augment", "eval_augment"):
        steps = getattr(recipe.data, name)
        if steps is not None:
            lines.append(_augment(steps, name))
    lines.append(_loader(recipe, data, "train", "train", training=True))
    if has_samples(data.valid):
        lines.append(_loader(recipe, data, "valid", "valid"))
    if recipe.evaluate.split != "valid":
        lines.append(_loader(recipe, data, recipe.evaluate.split, _scored(recipe)))
    return lines


def _scored(recipe: Recipe) -> str:
    """The variable of what is reported on."""
    return "scored" if recipe.evaluate.split == "train" else recipe.evaluate.split


def _augment(steps: List[Component], name: str) -> Code:
    if len(steps) == 1 and steps[0].name in PRESETS:
        return call("mxkit.data.Augment.preset", steps[0].name, target=name, **steps[0].arguments)
    return call("mxkit.data.Augment", [_spec(one) for one in steps], target=name)


def _loader(recipe: Recipe, data: Splits, split: str, target: str, training: bool = False) -> Code:
    part = getattr(data, split)
    if is_loader(part):
        return Code(f"{target} = data.{split}")
    loader, arguments = loader_arguments(recipe, part, training)
    if augmentation(recipe, training) is not None:
        name = "augment" if training and recipe.data.augment is not None else "eval_augment"
        arguments["transform"] = Code(f"{name}.batch" if loader is ArrayLoader else name)
    parts = [f"data.{split}.x", f"data.{split}.y"] if isinstance(part, Split) else [f"data.{split}"]
    return call(f"mxkit.data.{loader.__name__}", *map(Code, parts), target=target, **arguments)


def _net(recipe: Recipe) -> List[Code]:
    model, where = recipe.model, {} if recipe.devices == "auto" else {"devices": recipe.devices}
    lines = [call("mxkit.seed_all", recipe.seed), _model(model, "net", model.weights)]
    if model.finetune is not None:  # before the seed, because a loader may draw
        lines.insert(0, Code(f"sample = next(iter({_scored(recipe)}))[0][:1]"))
    if recipe.hybridize:
        hybridize = "net.hybridize(static_alloc=True)"
        only = "" if _is_hybrid(recipe) else "if isinstance(net, mx.gluon.HybridBlock):\n    "
        lines.append(Code(only + hybridize))
    if model.weights is not None and model.name in COMPOSED:
        lines.append(_composed_weights(model.weights))
    if model.weights is not None or is_pretrained(model):
        lines.append(call("mxkit.to", Code("net"), recipe.devices))
    else:
        sample = {} if model.finetune is None else {"sample": Code("sample")}
        lines.append(call("mxkit.initialize", Code("net"), _spec(recipe.initializer), **where, **sample))
    if model.finetune is not None:
        head = {**model.finetune.model_dump(exclude_defaults=True), "copy": False}
        if "initializer" in head:
            head["initializer"] = _spec(model.finetune.initializer)
        lines.append(call("mxkit.finetune", Code("net"), target="net", **head))
    return lines + _settings(recipe)


def _settings(recipe: Recipe) -> List[Code]:
    lines = [call("mxkit.freeze", Code("net"), glob) for glob in recipe.freeze]
    if recipe.optimizer.no_weight_decay:
        lines.append(call("mxkit.nets.no_weight_decay", Code("net")))
    multipliers = {glob: one.model_dump(exclude_none=True) for glob, one in recipe.optimizer.multipliers.items()}
    return lines + ([call("mxkit.nets.set_multipliers", Code("net"), multipliers)] if multipliers else [])


def _model(model: Component, target: str = "", weights: Optional[str] = None) -> Code:
    if model.name not in COMPOSED:
        given = {} if weights is None else {"weights": weights}
        return call("mxkit.models.get_model", model.name, target=target, **model.arguments, **given)
    parts = {key: _model(Component.model_validate(part)) for key, part in model.arguments.items()}
    return call(public_name(COMPOSED[model.name]), target=target, **parts)


def _composed_weights(weights: str) -> Code:
    """`get_model` makes no net of nets, so that it cannot give it weights."""
    path = Path(weights).expanduser()
    if path.is_dir():
        return call("mxkit.load_checkpoint", str(checkpoints_of(path)), Code("net"))
    return call("mxkit.load_parameters", Code("net"), str(path))


def _training(recipe: Recipe, data: Splits) -> List[Code]:
    stated = ("epochs", "seed")
    same = {
        name: value
        for name, value in fit_arguments(recipe).items()
        if name in stated or value != Recipe.model_fields[name].default
    }
    callbacks = [_callback(one) for one in recipe.callbacks]
    if recipe.schedule is not None:
        callbacks.insert(0, call(public_name(LearningRate), _spec(recipe.schedule)))
    checkpoints = recipe.checkpoints.model_dump(exclude_defaults=True)
    arguments: Dict[str, Any] = {
        "loss": _spec(recipe.loss),
        "trainer": _spec(recipe.optimizer),
        "valid": Code("valid") if has_samples(data.valid) else None,
        "metrics": [_spec(one) for one in recipe.metrics],
        **same,
        "callbacks": callbacks,
        "checkpoint": call("mxkit.Checkpoints", Code('folder / "checkpoints"'), **checkpoints),
        "resume": "auto",
    }
    given = {name: value for name, value in arguments.items() if value not in (None, [])}
    return [call("mxkit.fit", Code("net"), Code("train"), target="history", **given)]


def _callback(component: Component) -> Code:
    arguments = component.arguments
    key: Optional[str] = PATHS.get(component.name)
    if key:
        arguments[key] = Code(f"folder / {literal(arguments[key])}")
    return call(public_name(CALLBACKS[component.name]), **arguments)


def _evaluation(recipe: Recipe, data: Splits) -> List[Code]:
    metrics = recipe.scored_metrics
    given = {"metrics": [_spec(one) for one in metrics]} if metrics else {}
    scored = Code(_scored(recipe))
    lines = [call("mxkit.evaluate", Code("net"), scored, target="scores", loss=_spec(recipe.loss), **given)]
    if recipe.evaluate.which == "best":
        lines.insert(0, call("mxkit.load_checkpoint", Code('folder / "checkpoints"'), Code("net"), which="best"))
    if recipe.data.pairs is not None:
        lines += _pairs(recipe, has_samples(data.valid), scored)
    return [
        *lines,
        Code("for name, value in scores.items():"),
        Code(f"    print({literal(recipe.evaluate.split)}, name, value)"),
    ]


def _pairs(recipe: Recipe, validated: bool, scored: Code) -> List[Code]:
    if recipe.data.pairs is not None and recipe.data.pairs.kind == "triplets":
        return [Code(f'scores["triplet_accuracy"] = mxkit.losses.triplet_accuracy(*mxkit.predict(net, {scored}))')]
    searched = validated and recipe.evaluate.split != "valid"
    lines = []
    for name in ["valid", scored] if searched else [scored]:
        told = ", threshold=threshold" if searched and name == scored else ""
        lines.append(Code(f"same = mx.nd.concat(*[same for _, same in {name}], dim=0)"))
        target = "found" if name == scored else "threshold"
        end = "accuracy" if name == scored else "threshold"
        lines.append(Code(f"{target} = mxkit.losses.pair_accuracy(*mxkit.predict(net, {name}), same{told}).{end}"))
    return [*lines, Code('scores["pair_accuracy"] = found')]
