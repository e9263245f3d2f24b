"""From keys and values to a checked Recipe, or one error that lists every problem."""

import importlib
import importlib.util
from pathlib import Path
import sys
from typing import Any, Dict, List, Mapping, Tuple

from mxkit.errors import nearest
from mxkit.recipe.arguments import Argument, fits, told
from mxkit.recipe.building import buildable
from mxkit.recipe.problems import Problem, refuse, structural, unknown_key
from mxkit.recipe.registry import COMPOSED, KINDS, accepted_arguments, is_known
from mxkit.recipe.run_code import note_imports, same_code
from mxkit.recipe.schema import Component, Recipe
from pydantic import ValidationError

Found = Tuple[str, str, Component]


def check(content: Mapping[str, Any], origin: str, origins: Mapping[str, str]) -> Recipe:
    """Check a recipe as far as it can be without its data.

    Args:
        content: What it says, bases and variables worked in.
        origin: What the messages call it.
        origins: The file of each key.

    Raises:
        RecipeError: It says something that cannot be run.
        Exception: What a module of `imports` raises.

    Side effects:
        Imports the modules of `imports`.
    """
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        refuse(origin, [structural(detail, content) for detail in error.errors()], origins)
        raise
    refuse(origin, import_modules(recipe), origins)
    problems = [problem for found in components(recipe) for problem in by_registry(*found)]
    refuse(origin, problems or [*_rules(recipe), *buildable(recipe)], origins)
    return recipe


def import_modules(recipe: Recipe) -> List[Problem]:
    """Import what the recipe names, from its folder or Python's path."""
    folder = str(Path(recipe.import_path)) if recipe.import_path else str(Path.cwd())
    problems = []
    sys.path.insert(0, folder)
    try:
        for number, name in enumerate(recipe.imports):
            problem = _import(name, folder)
            if problem:
                problems.append(Problem(f"imports.{number}", problem))
    finally:
        sys.path.remove(folder)
    return problems


def _import(name: str, folder: str) -> str:
    """Import a module; what is wrong is returned, what its own code raises is raised."""
    loaded = sys.modules.get(name)
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(name) if loaded is None else importlib.machinery.PathFinder.find_spec(name)
    except ModuleNotFoundError:  # the package of a dotted name
        spec = None
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
        if spec is None or not spec.origin or not origin or Path(spec.origin).resolve() == Path(origin).resolve():
            return ""
        if same_code(name, spec.origin):
            return ""
        return f"a module {name!r} was imported before from {origin}; rename this one, {spec.origin}"
    if spec is None:
        hint = nearest(name, [path.stem for path in Path(folder).glob("*.py")])
        return f"there is no module {name!r} in {folder} or on Python's path{'; ' + hint if hint else ''}"
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except SyntaxError as error:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    note_imports(set(sys.modules) - before)
    return ""


def components(recipe: Recipe) -> List[Found]:
    """Everything chosen by name: its path, its kind and itself."""
    found: List[Found] = [
        ("data", "data", recipe.data),
        ("model", "model", recipe.model),
        ("initializer", "initializer", recipe.initializer),
        ("loss", "loss", recipe.loss),
        ("optimizer", "optimizer", recipe.optimizer),
    ]
    if recipe.schedule is not None:
        found.append(("schedule", "schedule", recipe.schedule))
    if recipe.model.finetune is not None:
        found.append(("model.finetune.initializer", "initializer", recipe.model.finetune.initializer))
    lists = {
        "data.augment": ("augment", recipe.data.augment),
        "data.eval_augment": ("augment", recipe.data.eval_augment),
        "callbacks": ("callback", recipe.callbacks),
        "metrics": ("metric", recipe.metrics),
        "evaluate.metrics": ("metric", recipe.evaluate.metrics),
    }
    for path, (kind, several) in lists.items():
        found += [(f"{path}.{number}", kind, one) for number, one in enumerate(several or [])]
    return found


def by_registry(path: str, kind: str, component: Component) -> List[Problem]:
    """Problems of a component's name, and of the names and types of its arguments."""
    if not is_known(kind, component.name):
        known = tuple(sorted(KINDS[kind].names()))
        return [Problem(f"{path}.name", f"unknown; received {component.name!r}", known, component.name)]
    accepted = accepted_arguments(kind, component.name)
    if accepted is None:
        return []
    if kind == "model" and component.name in COMPOSED:
        return _parts(path, component, accepted)
    own = list(type(component).model_fields)
    known = (*(key for key in own if key != "name"), *sorted(accepted), "name")
    problems = [
        Problem(f"{path}.{key}", f"{component.name} takes no such argument; received {value!r}", known, key)
        for key, value in component.arguments.items()
        if key not in accepted
    ]
    problems += [
        Problem(f"{path}.{key}", "is missing")
        for key, one in accepted.items()
        if one.required and key not in component.arguments and key not in own
    ]
    return problems + [
        _wrong_type(f"{path}.{key}", value, accepted[key])
        for key, value in component.arguments.items()
        if key in accepted and not fits(value, accepted[key].schema)
    ]


def _wrong_type(path: str, value: Any, argument: Argument) -> Problem:
    choices = tuple(map(str, argument.schema.get("enum", ())))
    return Problem(
        path,
        f"expected {told(argument.schema)}; received {value!r}",
        choices,
        value if choices and isinstance(value, str) else "",
    )


def _parts(path: str, component: Component, accepted: Dict[str, Argument]) -> List[Problem]:
    """Problems of a net that is made of other nets."""
    problems = []
    for key in accepted:
        value = component.arguments.get(key)
        try:
            part = Component.model_validate(value)
        except ValidationError:
            near = {one: value[one] for one in value if nearest(one, ["name"])} if isinstance(value, dict) else {}
            problems += [unknown_key(f"{path}.{key}.{one}", received, ["name"]) for one, received in near.items()]
            problems.append(Problem(f"{path}.{key}", f"expected a model, mlp or {{name: mlp}}; received {value!r}"))
        else:
            problems += by_registry(f"{path}.{key}", "model", part)
    return problems + [
        Problem(f"{path}.{key}", f"{component.name} takes no such argument; received {value!r}", tuple(accepted), key)
        for key, value in component.arguments.items()
        if key not in accepted
    ]


def _rules(recipe: Recipe) -> List[Problem]:
    """What must fit together."""
    problems = []
    if (recipe.epochs is None) == (recipe.updates is None):
        both = "both are given" if recipe.epochs is not None else "is missing"
        problems.append(Problem("epochs", f"{both}; expected epochs or updates"))
    if recipe.accumulate_samples is not None and recipe.accumulate != 1:
        problems.append(Problem("accumulate_samples", "stands in place of accumulate; leave one of them out"))
    if recipe.model.weights is not None and recipe.model.arguments.get("pretrained"):
        problems.append(Problem("model.weights", "stands in place of pretrained: true; leave one of them out"))
    if recipe.evaluate.which == "best" and recipe.checkpoints.keep_best is None:
        problems.append(
            Problem("evaluate.which", "'best' needs checkpoints.keep_best, like [valid_loss, min]; received null")
        )
    if recipe.data.pairs is not None and (recipe.data.augment or recipe.data.eval_augment):
        problems.append(Problem("data.pairs", "pairs of augmented images are not made; leave augment or pairs out"))
    if recipe.data.pairs is not None and recipe.model.finetune is not None:
        problems.append(Problem("model.finetune", "a siamese net has no last layer of classes; leave it or pairs out"))
    return problems
