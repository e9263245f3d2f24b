"""What a recipe names, built: as objects, or only to see whether it can be."""

from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from mxkit.data.augmentation.augment import STEPS, Augment
from mxkit.data.augmentation.presets import PRESETS
from mxkit.losses.by_name import get_loss
from mxkit.metrics import get_metric, get_metrics
from mxkit.nets.initializers import get_initializer
from mxkit.recipe.problems import Problem, located
from mxkit.recipe.registry import CALLBACKS
from mxkit.recipe.schema import Component, Recipe
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.learning_rate import LearningRate
from mxkit.training.checkpoints import Checkpoints
from mxkit.training.schedules import get_schedule
import mxnet as mx

# Where it stands, its arguments, and what builds it.
Plan = Tuple[str, Dict[str, Any], Callable[[], Any]]
# Callbacks' files lie in the run's folder.
PATHS = {"csv": "path", "tensorboard": "folder"}


def augment_of(steps: Optional[List[Component]]) -> Optional[Augment]:
    """The augmentation that a list of steps means: a preset where that is its one element."""
    if steps is None:
        return None
    if len(steps) == 1 and steps[0].name in PRESETS:
        return Augment.preset(steps[0].name, **steps[0].arguments)
    return Augment([one.spec for one in steps])


def callbacks_of(recipe: Recipe, folder: Path) -> List[Callback]:
    """The callbacks of a recipe, that of its schedule first; paths of theirs are taken from `folder` on."""
    found: List[Callback] = [] if recipe.schedule is None else [LearningRate(recipe.schedule.spec)]
    return found + [CALLBACKS[one.name](**callback_arguments(one, folder)) for one in recipe.callbacks]


def callback_arguments(component: Component, folder: Path) -> Dict[str, Any]:
    """Arguments of a callback, with the path of its file."""
    arguments = component.arguments
    key = PATHS.get(component.name)
    return {**arguments, key: folder / arguments[key]} if key else arguments


def columns_of(recipe: Recipe) -> Tuple[str, ...]:
    """What the history of the recipe's run will have, as far as it can be watched."""
    names = ["loss", *(metric.name for metric in get_metrics([one.spec for one in recipe.metrics]))]
    return (*(f"valid_{name}" for name in names), *(f"train_{name}" for name in names))


def buildable(recipe: Recipe) -> List[Problem]:
    """Build once what is built by name, because some values only their builder can judge."""
    data, folder, checkpoints = recipe.data, Path(recipe.name), recipe.checkpoints.model_dump()
    plans: List[Plan] = [
        ("loss", recipe.loss.arguments, lambda: get_loss(recipe.loss.spec)),
        ("initializer", recipe.initializer.arguments, lambda: get_initializer(recipe.initializer.spec)),
        ("optimizer", recipe.optimizer.arguments, lambda: _optimizer(recipe)),
        *_each("data.augment", data.augment, _step),
        *_each("data.eval_augment", data.eval_augment, _step),
        *_each("metrics", recipe.metrics, lambda one: get_metric(one.spec)),
        *_each("evaluate.metrics", recipe.evaluate.metrics, lambda one: get_metric(one.spec)),
        *_each("callbacks", recipe.callbacks, lambda one: CALLBACKS[one.name](**callback_arguments(one, folder))),
        ("checkpoints", checkpoints, lambda: Checkpoints(recipe.name, **checkpoints)),
    ]
    if recipe.schedule is not None:
        spec = recipe.schedule.spec
        plans.append(("schedule", spec[1], lambda: get_schedule(spec)))
    if recipe.model.finetune is not None:
        head = recipe.model.finetune.initializer
        plans.append(("model.finetune.initializer", head.arguments, lambda: get_initializer(head.spec)))
    wholes: List[Plan] = [
        ("data.augment", {}, lambda: augment_of(data.augment)),
        ("data.eval_augment", {}, lambda: augment_of(data.eval_augment)),
        ("metrics", {}, lambda: columns_of(recipe)),
        ("evaluate.metrics", {}, lambda: get_metrics([one.spec for one in recipe.evaluate.metrics or []])),
    ]
    problems = [problem for plan in plans for problem in _tried(*plan)]
    problems = problems or [problem for plan in wholes for problem in _tried(*plan)]
    return problems or [*_columns(recipe), *_normalization(recipe)]


def _each(path: str, several: Optional[List[Component]], build: Callable[[Component], Any]) -> List[Plan]:
    return [(f"{path}.{number}", one.arguments, partial(build, one)) for number, one in enumerate(several or [])]


def _step(component: Component) -> Any:
    return augment_of([component]) if component.name in PRESETS else STEPS[component.name](**component.arguments)


def _optimizer(recipe: Recipe) -> Any:
    return mx.optimizer.create(recipe.optimizer.name, **recipe.optimizer.arguments)


def _tried(path: str, arguments: Dict[str, Any], build: Callable[[], Any]) -> List[Problem]:
    try:
        build()
    except Exception as error:  # builders are MXNet's and the users': anything may come
        return [located(path, error, arguments)]
    return []


def _columns(recipe: Recipe) -> List[Problem]:
    """Columns that are watched, and that the history will not have."""
    known = columns_of(recipe)
    watched = {
        f"callbacks.{number}.monitor": one.arguments.get("monitor")
        for number, one in enumerate(recipe.callbacks)
        if one.name in ("early_stopping", "plateau")
    }
    if recipe.checkpoints.keep_best is not None:
        watched["checkpoints.keep_best.0"] = recipe.checkpoints.keep_best[0]
    return [
        Problem(path, f"the history has no such column; received {column!r}", known, str(column))
        for path, column in watched.items()
        if column not in known
    ]


def _normalization(recipe: Recipe) -> List[Problem]:
    """Images that are normalized in training must be so in evaluation, and the other way."""
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
