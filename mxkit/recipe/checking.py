"""Checks of a recipe that need neither its data nor its net; one error lists all mistakes."""

from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from mxkit.core.trainers import check_optimizer
from mxkit.data.augmentation.augment import STEPS
from mxkit.data.augmentation.presets import PRESETS
from mxkit.errors import nearest
from mxkit.losses.named_losses import get_batch_loss
from mxkit.metrics import get_metric, get_metrics
from mxkit.nets.initializers import get_initializer
from mxkit.recipe.building import augment_of, callback_call, value_of
from mxkit.recipe.problems import Problem, located, refuse, refused_arguments, unknown_key, without_mistakes
from mxkit.recipe.run_code import import_modules
from mxkit.recipe.schema import KIND_AT, Component, Recipe, under_switches
from mxkit.recipe.vocabulary import COMPOSED, KINDS, Argument, accepted_arguments, adapter_of, is_known
from mxkit.storage.hub import check_hub_address, is_hub_address
from mxkit.training.callbacks.callback import check_callbacks
from mxkit.training.checkpoints import Checkpoints
from mxkit.training.schedules import get_schedule
from pydantic import ValidationError


class Place(NamedTuple):
    """A component of a recipe.

    Attributes:
        path: Dotted path of the component.
        kind: Its kind, a key of `KINDS`.
        component: Its name and arguments.
    """

    path: str
    kind: str
    component: Component


class Problems(List[Problem]):
    """Problems of a recipe, without those that follow from an earlier problem."""

    def touch(self, *paths: str) -> bool:
        """Whether there is a problem at one of these paths, above it or below it."""
        return any(
            f"{one.path}.".startswith(f"{path}.") or f"{path}.".startswith(f"{one.path}.")
            for one in self
            for path in paths
        )

    def add(self, problems: Iterable[Problem]) -> None:
        """Add the problems of one check, except at paths where earlier checks found a problem."""
        self += [one for one in list(problems) if not self.touch(one.path)]


def check(
    content: Mapping[str, Any], origin: str, origins: Mapping[str, str], earlier: Sequence[Problem] = ()
) -> Recipe:
    """Check a recipe without its data.

    Args:
        content: Keys and values, merged with the bases, without variables.
        origin: Name of the recipe in messages.
        origins: The file that sets each dotted path.
        earlier: Problems of earlier checks.

    Raises:
        RecipeError: The recipe has mistakes; all are listed, each with its dotted path.
        Exception: A module of `imports` raised it.

    Side effects:
        Imports the modules of `imports`.
    """
    problems = Problems(earlier)
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        repaired, structural = without_mistakes(content, error)
        problems.add(structural)
        if repaired is None:
            refuse(origin, problems, origins)
            raise
        recipe = repaired
    if recipe.imports:
        problems.add(import_modules(recipe))
    places = components(recipe)
    problems.add([problem for place in places for problem in _arguments(place, not problems.touch("imports"))])
    problems.add([problem for keys, problem in _rules(recipe) if not problems.touch(*keys)])
    problems.add(_trials(recipe, places, problems))
    problems.add(_combinations(recipe, problems))
    if problems:
        refuse(origin, [one for one in problems if one.text], origins)
    return recipe


def components(recipe: Recipe) -> List[Place]:
    """All components of a recipe."""
    places = []
    for path, kind in KIND_AT.items():
        value: Any = recipe
        for key in path.split("."):
            value = getattr(value, key, None)
        if isinstance(value, list):
            places += [Place(f"{path}.{number}", kind, one) for number, one in enumerate(value)]
        elif value is not None:
            places.append(Place(path, kind, value))
    return places


def _arguments(place: Place, all_names_known: bool) -> List[Problem]:
    """Problems of a component's name, and of the names and types of its arguments."""
    path, kind, component = place
    if not is_known(kind, component.name):
        known = tuple(sorted(KINDS[kind].names()))
        # a module of `imports` that is missing may register the name
        text = f"unknown; received {component.name!r}" if all_names_known else ""
        return [Problem(f"{path}.name", text, known, component.name)]
    accepted = accepted_arguments(kind, component.name)
    if accepted is None:
        return []
    if kind == "model" and component.name in COMPOSED:
        return _parts(place, accepted)
    own = [key for key in type(component).model_fields if key != "name"]
    adapter = adapter_of({key: one for key, one in accepted.items() if key not in own})
    try:
        adapter.validate_python(component.arguments)
    except ValidationError as error:
        schema = adapter.json_schema()["properties"] if accepted else {}
        return refused_arguments(path, component.name, error, component.arguments, schema, own)
    return []


def _parts(place: Place, accepted: Mapping[str, Argument]) -> List[Problem]:
    """Problems of a net that consists of other nets."""
    path, component, problems = place.path, place.component, []
    for key in accepted:
        value = component.arguments.get(key)
        try:
            part = Component.model_validate(value)
        except ValidationError:
            near = {one: value[one] for one in value if nearest(one, ["name"])} if isinstance(value, dict) else {}
            problems += [unknown_key(f"{path}.{key}.{one}", received, ["name"]) for one, received in near.items()]
            problems.append(Problem(f"{path}.{key}", f"expected a model, mlp or {{name: mlp}}; received {value!r}"))
        else:
            problems += _arguments(Place(f"{path}.{key}", "model", part), True)
    return problems + [
        Problem(f"{path}.{key}", f"{component.name} takes no such argument; received {value!r}", tuple(accepted), key)
        for key, value in component.arguments.items()
        if key not in accepted
    ]


def _rules(recipe: Recipe) -> Iterable[Tuple[Sequence[str], Problem]]:
    """Keys that exclude or need each other: the keys, and the problem."""
    model, data = recipe.model, recipe.data
    if (recipe.epochs is None) == (recipe.updates is None):
        both = "both are given" if recipe.epochs is not None else "is missing"
        yield ("epochs", "updates"), Problem("epochs", f"{both}; expected epochs or updates")
    if recipe.accumulate_samples is not None and recipe.accumulate != 1:
        text = "replaces accumulate; leave one of them out"
        yield ("accumulate", "accumulate_samples"), Problem("accumulate_samples", text)
    for key, value in (("kvstore", "horovod"), ("amp", "float16")):
        if recipe.compression is not None and getattr(recipe, key) == value:
            text = f"does not go with {key}: {value}; leave one of them out"
            yield ("compression", key), Problem("compression", text)
    if model.weights is not None and model.arguments.get("pretrained"):
        yield ("model",), Problem("model.weights", "replaces pretrained: true; leave one of them out")
    if is_hub_address(model.weights):
        try:
            check_hub_address(str(model.weights))
        except ValueError as error:
            yield ("model",), Problem("model.weights", str(error), cause=error)
    if recipe.evaluate.which == "best" and recipe.checkpoints.keep_best is None:
        text = "'best' needs checkpoints.keep_best, like [valid_loss, min]; received null"
        yield ("evaluate", "checkpoints"), Problem("evaluate.which", text)
    if recipe.schedule is not None and any(one.name == "plateau" for one in recipe.callbacks):
        text = "a schedule sets the rate of each update, so the callback plateau has no effect; leave one of them out"
        yield ("schedule", "callbacks"), Problem("schedule", text)
    if data.pairs is not None and (data.augment or data.eval_augment):
        text = "pairs cannot be augmented; leave augment or pairs out"
        yield ("data.pairs",), Problem("data.pairs", text)
    if data.pairs is not None and model.finetune is not None:
        text = "a siamese net has no last layer of classes; leave it or pairs out"
        yield ("data.pairs", "model.finetune"), Problem("model.finetune", text)


@under_switches
def _trials(recipe: Recipe, places: Iterable[Place], problems: Problems) -> List[Problem]:
    """Make each component once, because only its function can check some values."""
    makers: Dict[str, Callable[[Component], Any]] = {
        "loss": lambda one: get_batch_loss(one.spec),
        "initializer": lambda one: get_initializer(one.spec),
        "optimizer": lambda one: check_optimizer(one.name, one.arguments),
        "schedule": lambda one: get_schedule(one.spec),
        "metric": lambda one: get_metric(one.spec),
        "augment": _step,
        "callback": lambda one: check_callbacks([value_of(callback_call(one), {"folder": Path(recipe.name)})]),
    }
    checkpoints = recipe.checkpoints.model_dump()
    trials: List[Tuple[str, Mapping[str, Any], Callable[[], Any]]] = [
        (path, one.arguments, partial(makers[kind], one)) for path, kind, one in places if kind in makers
    ]
    trials.append(("checkpoints", checkpoints, lambda: Checkpoints(recipe.name, **checkpoints)))
    return [problem for trial in trials if not problems.touch(trial[0]) for problem in _tried(*trial)]


def _step(component: Component) -> Any:
    return augment_of([component]) if component.name in PRESETS else STEPS[component.name](**component.arguments)


def _tried(path: str, arguments: Mapping[str, Any], make: Callable[[], Any]) -> List[Problem]:
    try:
        make()
    except Exception as error:  # functions of MXNet and of users raise any error
        return [located(path, error, arguments)]
    return []


@under_switches
def _combinations(recipe: Recipe, problems: Problems) -> List[Problem]:
    """Problems of components that are right alone and wrong together."""
    makers: Dict[str, Callable[[], Any]] = {
        "data.augment": lambda: augment_of(recipe.data.augment),
        "data.eval_augment": lambda: augment_of(recipe.data.eval_augment),
        "metrics": lambda: _columns(recipe),
        "evaluate.metrics": lambda: get_metrics([one.spec for one in recipe.evaluate.metrics or []]),
    }
    tried = {path: _tried(path, {}, make) for path, make in makers.items() if not problems.touch(path)}
    wrong = [problem for listed in tried.values() for problem in listed]
    right = {path for path, listed in tried.items() if not listed}
    if "metrics" in right:
        wrong += _unknown_columns(recipe)
    if {"data.augment", "data.eval_augment"} <= right:
        wrong += _normalization(recipe)
    return wrong


def _columns(recipe: Recipe) -> Tuple[str, ...]:
    """Columns of the run's history that a callback can monitor."""
    names = ["loss", *(metric.name for metric in get_metrics([one.spec for one in recipe.metrics]))]
    return (*(f"valid_{name}" for name in names), *(f"train_{name}" for name in names))


def _unknown_columns(recipe: Recipe) -> List[Problem]:
    """Monitored columns that the history will not have."""
    known = _columns(recipe)
    monitored = {
        f"callbacks.{number}.monitor": one.arguments.get("monitor")
        for number, one in enumerate(recipe.callbacks)
        if one.name in ("early_stopping", "plateau")
    }
    if recipe.checkpoints.keep_best is not None:
        monitored["checkpoints.keep_best.0"] = recipe.checkpoints.keep_best[0]
    return [
        Problem(path, f"the history has no such column; received {column!r}", known, str(column))
        for path, column in monitored.items()
        if column not in known
    ]


def _normalization(recipe: Recipe) -> List[Problem]:
    """Training and evaluation must normalize images in the same way."""
    train, valid = (augment_of(one) for one in (recipe.data.augment, recipe.data.eval_augment))
    if train is None or (None if valid is None else valid.normalize) == train.normalize:
        return []
    return [
        Problem(
            "data.eval_augment",
            f"training normalizes by {train.normalize}, evaluation by {valid and valid.normalize}; expected the same: "
            "end both with to_tensor and the same normalize",
        )
    ]
