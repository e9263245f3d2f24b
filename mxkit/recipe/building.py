"""A recipe as a plan: the calls that `mxkit train` executes and `mxkit show --as-script` prints."""

from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from mxkit.core.device import unpack
from mxkit.core.seeding import seed_all
from mxkit.data.augmentation.augment import Augment
from mxkit.data.augmentation.presets import PRESETS
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.loader import ArrayLoader
from mxkit.data.pairs import PairLoader
from mxkit.data.source import read_epoch
from mxkit.data.splits import Split, Splits
from mxkit.errors import CheckpointError, DeviceError, MxkitError, RecipeError, unknown_name
from mxkit.models.registry import MODELS, get_model
from mxkit.nets.finetuning import finetune
from mxkit.nets.initializers import initialize
from mxkit.nets.moving import to
from mxkit.nets.settings import freeze, no_weight_decay, set_multipliers
from mxkit.recipe.problems import Problem, located, refuse
from mxkit.recipe.schema import FIT_KEYS, Component, DataComponent, ModelComponent, Recipe
from mxkit.recipe.vocabulary import CALLBACKS, COMPOSED, DATASETS, accepted_arguments
from mxkit.storage.listing import checkpoints_of
from mxkit.storage.loading import load_parameters
from mxkit.storage.snapshot import load_checkpoint
from mxkit.training.callbacks.learning_rate import LearningRate
from mxkit.training.checkpoints import Checkpoints
from mxkit.training.loop import fit
from mxnet import gluon

SPLITS = ("train", "valid", "test")
# Callbacks' files lie in the run's folder.
_PATHS = {"csv": "path", "tensorboard": "folder"}


class Name(str):
    """The result of an earlier call, or an attribute of it, like `data.train.x`."""


class InFolder(str):
    """A path inside of the run's folder."""


@dataclass(frozen=True)
class Call:
    """One call of a plan.

    Attributes:
        function: What is called: a function, a class, or a `Name`.
        positional: Arguments; a `Name`, an `InFolder` and a `Call` stand for their values, also in a list.
        named: The same by keyword.
        result: What later calls name the result; several names, as "a, b", take it apart.
        at: Dotted path of the recipe's key that asks for it; "" for what a recipe has no part in.
        text: What a script says in place of the call, where this is no public one.
        gives: What the result must be.
    """

    function: Any
    positional: Tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    at: str = ""
    text: str = ""
    gives: type = object


def execute(calls: Iterable[Call], results: Dict[str, Any], origin: str) -> Dict[str, Any]:
    """Make calls in their order, and return `results`.

    Args:
        calls: Of a plan.
        results: Of earlier calls, by name; those of `calls` are added.
        origin: What the messages call the recipe.

    Raises:
        RecipeError: Calls refuse what the recipe says: all that can be tried are listed, with their place in it.
        Exception: What a call raises that the recipe has no part in.
    """
    problems, cause = [], None
    for one in calls:
        try:
            result = value_of(one, results)
            if not isinstance(result, one.gives):
                raise TypeError(f"expected a {one.gives.__name__}; received a {type(result).__name__}")
        except (TypeError, ValueError, OSError, MxkitError) as error:
            if not one.at or isinstance(error, (RecipeError, ConnectionError)):  # a failed download is no mistake
                raise
            problems.append(_refused(one, error))
            cause = error
            if one.result:  # which later calls need
                break
            continue
        results.update(_named(one.result, result))
    if problems:
        refuse(origin, problems, cause=cause)
    return results


def _named(names: str, result: Any) -> Dict[str, Any]:
    several = names.split(", ")
    return dict(zip(several, result)) if len(several) > 1 else {names: result}


def _refused(call: Call, error: BaseException) -> Problem:
    if isinstance(error, DeviceError):
        return located("devices", error, ())
    if "weights" in call.named and isinstance(error, (CheckpointError, OSError)):
        return located(f"{call.at}.weights", error, ())
    return located(call.at, error, call.named)


def value_of(argument: Any, results: Mapping[str, Any]) -> Any:
    """What an argument of a plan stands for; a call is made.

    >>> value_of(Call(max, (Name("data.real"), 3)), {"data": 2})
    3
    """
    if isinstance(argument, Call):
        positional = [value_of(one, results) for one in argument.positional]
        named = {key: value_of(one, results) for key, one in argument.named.items()}
        return value_of(argument.function, results)(*positional, **named)
    if isinstance(argument, Name):
        first, *attributes = argument.split(".")
        return reduce(getattr, attributes, results[first])
    if isinstance(argument, InFolder):
        return results["folder"] / argument
    return [value_of(one, results) for one in argument] if isinstance(argument, list) else argument


def data_call(recipe: Recipe) -> Call:
    """The call that loads the data; a function that makes batches itself gets their size."""
    data: DataComponent = recipe.data
    accepted = accepted_arguments("data", data.name) or {}
    size = {"batch_size": data.batch_size} if "batch_size" in accepted else {}
    return Call(DATASETS[data.name], (), {**data.arguments, **size}, result="data", at="data")


def loader_calls(recipe: Recipe, data: Splits) -> List[Call]:
    """The batches of each part that is read; loaders of arrays and of files differ."""
    calls = [*augment_calls(recipe), loader_call(recipe, data, "train", "train", training=True)]
    if has_samples(data.valid):
        calls.append(loader_call(recipe, data, "valid", "valid"))
    if recipe.evaluate.split != "valid":
        calls.append(loader_call(recipe, data, recipe.evaluate.split, scored_name(recipe)))
    return calls


def scored_name(recipe: Recipe) -> str:
    """The batches that are reported on."""
    return "scored" if recipe.evaluate.split == "train" else recipe.evaluate.split


def is_loader(part: Any) -> bool:
    """Whether a part of the data gives batches by itself."""
    return not isinstance(part, Split) and not hasattr(part, "__getitem__")


def has_samples(part: Any) -> bool:
    """Whether there is anything in a part of the data; of a loader that is taken for granted."""
    return part is not None and (is_loader(part) or bool(count_samples(part)))


def count_samples(part: Any) -> Optional[int]:
    """Samples of a part of the data; None where a loader makes the batches, which does not say."""
    if isinstance(part, Split):
        return len(part.x[0] if isinstance(part.x, tuple) else part.x)
    return None if is_loader(part) else len(part)


def batches(recipe: Recipe, data: Splits, split: str, *, training: bool = False) -> Any:
    """Batches of one part of the data; for training shuffled and augmented as such.

    Raises:
        UnknownNameError: `split` is no part of the data.
    """
    calls = [*augment_calls(recipe), loader_call(recipe, data, split, "batches", training=training)]
    return execute(calls, {"data": data}, recipe.name)["batches"]


def augment_call(steps: List[Component], result: str = "") -> Call:
    """The augmentation that a list of steps means: a preset where that is its one element."""
    if len(steps) == 1 and steps[0].name in PRESETS:
        return Call(Augment.preset, (steps[0].name,), steps[0].arguments, result, f"data.{result}")
    return Call(Augment, ([short(one) for one in steps],), {}, result, f"data.{result}")


def augment_of(steps: Optional[List[Component]]) -> Optional[Augment]:
    """The augmentation of a list of steps, or None."""
    made: Optional[Augment] = None if steps is None else value_of(augment_call(steps), {})
    return made


def augment_calls(recipe: Recipe) -> List[Call]:
    """The augmentations that loaders name."""
    steps = {name: getattr(recipe.data, name) for name in ("augment", "eval_augment")}
    return [augment_call(some, name) for name, some in steps.items() if some is not None]


def loader_call(recipe: Recipe, data: Splits, split: str, result: str, training: bool = False) -> Call:
    """What makes the batches of a part; the training part is shuffled by the recipe's seed."""
    if split not in SPLITS:
        raise unknown_name("part of the data", split, SPLITS)
    part, own = getattr(data, split), Name(f"data.{split}")
    if is_loader(part):
        return Call(getattr, (Name("data"), split), result=result, text=own)
    config = recipe.data
    arguments: Dict[str, Any] = {"batch_size": config.batch_size if training else config.eval_batch_size}
    if training and config.drop_last:
        arguments["drop_last"] = True
    loader: Any = ArrayLoader if isinstance(part, Split) else DatasetLoader
    if config.pairs is not None:
        loader = PairLoader
        pairs = config.pairs.model_dump(exclude_defaults=True, exclude=None if training else {"length"})
        arguments.update(pairs, seed=recipe.seed, shuffle=training)
    elif training:
        arguments.update(shuffle=True, seed=recipe.seed)
    if loader is DatasetLoader and config.workers:
        arguments["workers"] = config.workers
    # without steps of its own training takes those of evaluation
    augment = "augment" if training and config.augment is not None else "eval_augment"
    if getattr(config, augment) is not None:
        arguments["transform"] = Name(augment if loader is DatasetLoader else f"{augment}.batch")
    parts = (Name(f"{own}.x"), Name(f"{own}.y")) if isinstance(part, Split) else (own,)
    return Call(loader, parts, arguments, result, "data.pairs" if config.pairs is not None else "data")


def first_inputs(recipe: Recipe, data: Splits) -> Tuple[Any, ...]:
    """Inputs of one evaluated sample, as the net gets them."""
    part = getattr(data, recipe.evaluate.split)
    if not is_loader(part) and not isinstance(part, Split) and recipe.data.pairs is None:  # files: decode one, not 256
        one = recipe.data.model_copy(update={"eval_batch_size": 1, "workers": 0})
        recipe = recipe.model_copy(update={"data": one})
    source = batches(recipe, data, recipe.evaluate.split)
    inputs, _ = unpack(next(read_epoch(source, keep_count=True)))
    return tuple(one[:1] for one in inputs)


def net_calls(recipe: Recipe) -> List[Call]:
    """The net with its first values, on its devices, and frozen where the recipe says so."""
    calls = [Call(seed_all, (recipe.seed,)), *model_calls(recipe), *value_calls(recipe), *_setting_calls(recipe)]
    if recipe.model.finetune is None:
        return calls
    text = f"next(iter({scored_name(recipe)}))[0][:1]"
    return [Call(first_inputs, (recipe, Name("data")), result="sample", text=text), *calls]  # a loader may draw


def model_calls(recipe: Recipe) -> List[Call]:
    """The net before it has values, or with those of a file, and without the head of `finetune`."""
    model = recipe.model
    calls = [_model_call(model, model.weights)]
    if model.weights is not None and model.name in COMPOSED:  # `get_model` makes no net of nets
        path = Path(model.weights).expanduser()
        call = Call(load_parameters, (Name("net"), str(path)), at="model.weights")
        if path.is_dir():
            call = Call(load_checkpoint, (str(checkpoints_of(path)), Name("net")), at="model.weights")
        calls.append(call)
    if recipe.hybridize:
        builder = MODELS.get(model.name)
        own = builder is not None and builder.__module__.startswith("mxkit.")
        known = own or model.name.startswith("zoo:") or model.name in COMPOSED
        only = "" if known else "if isinstance(net, mx.gluon.HybridBlock):\n    "
        calls.append(Call(_hybridize, (Name("net"),), text=f"{only}net.hybridize(static_alloc=True)"))
    return calls


def _model_call(model: Component, weights: Optional[str] = None, result: str = "net") -> Call:
    if model.name in COMPOSED:
        parts = {key: _model_call(Component.model_validate(one), None, "") for key, one in model.arguments.items()}
        return Call(COMPOSED[model.name], (), parts, result, "model", gives=gluon.Block)
    named = {**model.arguments, **({} if weights is None else {"weights": weights})}
    return Call(get_model, (model.name,), named, result, "model", gives=gluon.Block)


def _hybridize(net: Any) -> None:
    if isinstance(net, gluon.HybridBlock):
        net.hybridize(static_alloc=True)


def is_pretrained(model: ModelComponent) -> bool:
    """Whether a zoo gives the net its values."""
    return ":" in model.name and bool(model.arguments.get("pretrained"))


def value_calls(recipe: Recipe) -> List[Call]:
    """First values of the net on its devices, and the head of `finetune`."""
    model = recipe.model
    if model.weights is not None or is_pretrained(model):
        calls = [Call(to, (Name("net"), recipe.devices), at="devices")]
    else:
        where = {} if recipe.devices == "auto" else {"devices": recipe.devices}
        sample = {} if model.finetune is None else {"sample": Name("sample")}
        calls = [Call(initialize, (Name("net"), short(recipe.initializer)), {**where, **sample}, at="initializer")]
    if model.finetune is not None:
        head = {**model.finetune.model_dump(exclude_defaults=True), "copy": False}
        if "initializer" in head:
            head["initializer"] = short(model.finetune.initializer)
        calls.append(Call(finetune, (Name("net"),), head, "net", "model.finetune"))
    return calls


def _setting_calls(recipe: Recipe) -> List[Call]:
    calls = [Call(freeze, (Name("net"), glob), at=f"freeze.{number}") for number, glob in enumerate(recipe.freeze)]
    if recipe.optimizer.no_weight_decay:
        calls.append(Call(no_weight_decay, (Name("net"),)))
    for glob, one in recipe.optimizer.multipliers.items():
        values = {glob: one.model_dump(exclude_none=True)}
        calls.append(Call(set_multipliers, (Name("net"), values), at=f"optimizer.multipliers.{glob}"))
    return calls


def fit_call(recipe: Recipe, data: Splits) -> Call:
    """The training."""
    schedule = [] if recipe.schedule is None else [Call(LearningRate, (short(recipe.schedule),))]
    arguments: Dict[str, Any] = {
        "loss": short(recipe.loss),
        "trainer": short(recipe.optimizer),
        "valid": Name("valid") if has_samples(data.valid) else None,
        "metrics": [short(one) for one in recipe.metrics],
        **fit_arguments(recipe),
        "callbacks": [*schedule, *map(callback_call, recipe.callbacks)],
        "checkpoint": Call(
            Checkpoints, (InFolder("checkpoints"),), recipe.checkpoints.model_dump(exclude_defaults=True)
        ),
        "resume": "auto",
    }
    named = {name: value for name, value in arguments.items() if value not in (None, [])}
    return Call(fit, (Name("net"), Name("train")), named, result="history")


def fit_arguments(recipe: Recipe) -> Dict[str, Any]:
    """Keys of the recipe that are keywords of `fit`: the seed, and what is not the default."""
    changed = [name for name in FIT_KEYS if getattr(recipe, name) != Recipe.model_fields[name].default]
    arguments = {"epochs": recipe.epochs, "seed": recipe.seed, **{name: getattr(recipe, name) for name in changed}}
    for key, own, unit in (("updates", "epochs", "updates"), ("accumulate_samples", "accumulate", "samples")):
        if key in arguments:
            arguments[own] = f"{arguments.pop(key)} {unit}"
    return arguments


def callback_call(component: Component) -> Call:
    """What makes a callback; a file of its lies in the run's folder."""
    key = _PATHS.get(component.name)
    arguments = {name: InFolder(one) if name == key else one for name, one in component.arguments.items()}
    return Call(CALLBACKS[component.name], (), arguments)


def short(component: Component) -> Any:
    """A component as the public calls take it: its name, with its arguments where it has some."""
    return component.spec if component.arguments else component.name
