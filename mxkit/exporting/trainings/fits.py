"""The arguments of a `fit` as a recipe, so that the training of a script leaves as that of a run."""

import inspect
from typing import Any, Dict, List, Mapping, Optional, Tuple

from mxkit.core.arguments import split_spec
from mxkit.core.blocks import is_numpy_net
from mxkit.data.loader import ArrayLoader
from mxkit.data.splits import Split, Splits
from mxkit.errors import unknown_name
from mxkit.exporting.trainings.texts import LOSSES
from mxkit.losses.named_losses import get_batch_loss
from mxkit.recipe import schema
from mxkit.recipe.vocabulary import CALLBACKS
from mxkit.storage.directory import Checkpoint, checkpoint_paths, find_checkpoint
from mxkit.training.callbacks.learning_rate import LearningRate
from mxkit.training.callbacks.weights import EMA
from mxkit.training.checkpoints import get_checkpoints
from mxkit.training.loop import fit


def recipe_of_fit(net: Any, arguments: Mapping[str, Any]) -> Tuple[schema.Recipe, Splits, Optional[Checkpoint]]:
    """A recipe that calls `fit` as a script does, its data, and the newest checkpoint, if there is one.

    Args:
        net: The net.
        arguments: Those of `fit` after the net, by name.

    Raises:
        UnknownNameError: `fit` has no such argument.
        ValueError: `fit` needs another one, or the optimizer has no name.
    """
    parameters = dict(list(inspect.signature(fit).parameters.items())[1:])
    for name in arguments:
        if name not in parameters:
            raise unknown_name("argument of fit", name, tuple(parameters))
    lacking = [name for name, one in parameters.items() if one.default is one.empty and name not in arguments]
    optimizer, settings = split_spec(arguments.get("trainer"))
    if lacking or not isinstance(optimizer, str) or "lr_scheduler" in settings:
        raise ValueError(
            "export: training: expected the arguments of fit, the optimizer like ('sgd', {'learning_rate': 0.1}), its "
            f"schedule as LearningRate in callbacks; received {', '.join(arguments)}, and the optimizer {optimizer!r}"
        )
    writer = get_checkpoints(arguments.get("checkpoint"))
    checkpoint = find_checkpoint(writer.directory) if writer and checkpoint_paths(writer.directory) else None
    train, valid = arguments["train"], arguments.get("valid")
    state = None if checkpoint is None else checkpoint.manifest["run"]["data"]
    callbacks: List[Any] = list(arguments.get("callbacks", ()))
    schedules = [_made(schema.ScheduleComponent, one.schedule) for one in callbacks if isinstance(one, LearningRate)]
    recipe = schema.Recipe.model_construct(
        **{
            **{key: arguments[key] for key in schema.FIT_KEYS if key in arguments},
            "name": "fit",
            "seed": (state or {}).get("seed", getattr(train, "seed", 0)),
            "arrays": "np" if is_numpy_net(net) else "nd",
            "data": schema.DataComponent.model_construct(
                name="train",
                batch_size=getattr(train, "batch_size", 0),
                eval_batch_size=getattr(valid, "batch_size", 256),
                drop_last=getattr(train, "drop_last", False),
            ),
            "model": schema.ModelComponent.model_construct(name=type(net).__name__),
            "loss": _loss(arguments["loss"]),
            "optimizer": schema.OptimizerComponent.model_construct(name=optimizer.lower(), **settings),
            "schedule": schedules[0] if schedules else None,
            "callbacks": [_callback(one) for one in callbacks if not isinstance(one, LearningRate)],
            "metrics": [_made(schema.MetricComponent, one) for one in arguments.get("metrics", ())],
        }
    )
    return recipe, Splits(_part(train, shuffle=True), None if valid is None else _part(valid), None), checkpoint


def _part(data: Any, shuffle: bool = False) -> Any:
    """The arrays of a plain loader; else the data, as a loader whose batches are its own."""
    odd = ("transform", "balance", "scale")
    plain = type(data) is ArrayLoader and all(getattr(data, one) is None for one in odd)
    if plain and data.shuffle == shuffle and data.y is not None:
        return Split(data.x, data.y)
    return (lambda: data) if hasattr(data, "__getitem__") and not isinstance(data, Split) else data


def _made(kind: Any, made: Any, name: str = "", **arguments: Any) -> Any:
    component = kind.model_construct(name=name or getattr(made, "name", type(made).__name__), **arguments)
    component._made = made
    return component


def _loss(spec: Any) -> Any:
    name, arguments = split_spec(spec)
    if isinstance(name, str):
        return _made(schema.LossComponent, spec, name, **arguments)
    form: Dict[str, str] = {get_batch_loss(one).description: one for one in LOSSES}
    known = form.get(get_batch_loss(spec).description)
    return _made(schema.LossComponent, spec, known or str(getattr(spec, "__name__", type(spec).__name__)))


def _callback(one: Any) -> Any:
    names = {kind: name for name, kind in CALLBACKS.items()}
    made = EMA(one.decay, one.warmup) if type(one) is EMA else one  # the user's keeps its averages
    return _made(schema.CallbackComponent, made, names.get(type(one), type(one).__name__))
