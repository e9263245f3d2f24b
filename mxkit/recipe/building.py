"""A recipe as a plan: the calls that `mxkit train` executes and `mxkit show --as-script` prints."""

from dataclasses import dataclass, field, replace
from functools import reduce
import inspect
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from mxkit.core.device import unpack
from mxkit.core.seeding import seed_all
import mxkit.data as data_room
from mxkit.data.augment import PRESETS, Augment
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.loader import ArrayLoader, PairLoader
from mxkit.data.source import source_of
from mxkit.data.splits import Split, Splits
from mxkit.distributed.kvstores import set_kvstore
from mxkit.errors import CheckpointError, DeviceError, MxkitError, RecipeError, unknown_name
from mxkit.losses.own_losses import pair_accuracy, triplet_accuracy
from mxkit.models import networks
from mxkit.models.registry import MODELS, get_model
from mxkit.nets.finetuning import finetune
from mxkit.nets.hybridizing import hybridize
from mxkit.nets.initializers import initialize, to
from mxkit.nets.settings import freeze, no_weight_decay, set_multipliers
from mxkit.recipe.schema import (
    FIT_KEYS,
    CallbackComponent,
    Component,
    ModelComponent,
    NetComponent,
    Problem,
    Recipe,
    augment_of,
    refuse,
    under_switches,
)
from mxkit.recipe.vocabulary import CALLBACKS, COMPOSED, DATASETS, PATHS, accepted_arguments
from mxkit.storage.directory import checkpoints_of
from mxkit.storage.hub import is_hub_address
from mxkit.storage.loading import load_parameters
from mxkit.storage.snapshot import load_checkpoint
from mxkit.training.callbacks.learning_rate import LearningRate
from mxkit.training.checkpoints import Checkpoints
from mxkit.training.evaluation import evaluate, predict
from mxkit.training.loop import fit
from mxnet import gluon
import numpy as np

SPLITS = ("train", "valid", "test")


class Name(str):
    """Name of an earlier call's result, or of an attribute of it, like `data.train.x`."""

    __repr__ = str.__str__


class InFolder(str):
    """A path relative to the run's folder."""

    def __repr__(self) -> str:
        return f"folder / {super().__repr__()}"


@dataclass(frozen=True)
class Call:
    """One call of a plan; its `repr` is its code in a script, like that of `Name`, `InFolder` and components.

    Attributes:
        function: A function, a class, or a `Name`.
        positional: Positional arguments; a `Name`, an `InFolder`, a `Call` or a component is replaced by its value,
            also in a list.
        named: Keyword arguments, with the same replacements.
        result: Name of the result for later calls; several names, as "a, b", unpack it.
        at: Dotted path of the recipe's key that causes the call; "" if no key does.
        text: The expression in a script, if the function is not public.
        gives: Type of the result; another type is refused.
        made: The result, if it was made when the recipe was checked; the plan then only prints the call.
    """

    function: Any
    positional: Tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    at: str = ""
    text: str = ""
    gives: type = object
    made: Any = None

    def __repr__(self) -> str:
        return written(self)


def execute(calls: Iterable[Call], results: Dict[str, Any], origin: str) -> Dict[str, Any]:
    """Make the calls of a plan in their order, and return `results`.

    Args:
        calls: Calls of the plan.
        results: Results of earlier calls, by name; the new results are added.
        origin: Name of the recipe in messages.

    Raises:
        RecipeError: As `attempt` found.
        Exception: As for `attempt`.
    """
    problems = attempt(calls, results)
    if problems:
        refuse(origin, problems)
    return results


def attempt(calls: Iterable[Call], results: Dict[str, Any]) -> List[Problem]:
    """Make the calls of a plan in their order, up to the first call that fails and whose result is needed.

    Args:
        calls: Calls of the plan.
        results: Results of earlier calls, by name; the new results are added.

    Returns:
        The values of the recipe that calls refuse.

    Raises:
        Exception: A call without a key of the recipe (`at`) raised it, or a download failed.
    """
    problems = []
    for call in calls:
        try:
            result: Any = value_of(call, results)
            names = call.result.split(", ")
            named = dict(zip(names, result)) if len(names) > 1 else {call.result: result}
            if not isinstance(result, call.gives):
                raise TypeError(f"expected a {call.gives.__name__}; received a {type(result).__name__}")
        except (TypeError, ValueError, OSError, MxkitError, SystemExit) as error:  # SystemExit: of the user's code
            if not call.at or isinstance(error, (RecipeError, ConnectionError)):
                raise
            problems.append(_refused(call, error))
            if call.result:
                break
            continue
        results.update(named)
    return problems


def _refused(call: Call, error: BaseException) -> Problem:
    if isinstance(error, DeviceError):
        return Problem.of("devices", error)
    of_weights = "weights" in call.named and isinstance(error, (CheckpointError, OSError))
    return Problem.of(f"{call.at}.weights" if of_weights else call.at, error)


def value_of(argument: Any, results: Mapping[str, Any]) -> Any:
    """The value of an argument of a plan; a `Call` is made.

    >>> value_of(Call(max, (Name("data.real"), 3)), {"data": 2})
    3
    """
    if isinstance(argument, Component) or (isinstance(argument, Call) and argument.made is not None):
        return argument.made
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
    """The call that loads the data; a function with a parameter `batch_size` gets the recipe's."""
    data = recipe.data
    size = {"batch_size": data.batch_size} if "batch_size" in (accepted_arguments("data", data.name) or {}) else {}
    return Call(DATASETS[data.name], (), {**data.arguments, **size}, result="data", at="data")


def loader_calls(recipe: Recipe, data: Splits) -> List[Call]:
    """The calls that make the batches of each part of the data that the run reads."""
    calls = [*augment_calls(recipe), loader_call(recipe, data, "train", "train", training=True)]
    if has_samples(data.valid):
        calls.append(loader_call(recipe, data, "valid", "valid"))
    if recipe.evaluate.split != "valid":
        calls.append(loader_call(recipe, data, recipe.evaluate.split, scored_name(recipe)))
    return calls


def scored_name(recipe: Recipe) -> str:
    """Name of the batches that the final scores are computed over."""
    return "scored" if recipe.evaluate.split == "train" else recipe.evaluate.split


def is_loader(part: Any) -> bool:
    """Whether a part of the data is a loader, which makes its batches itself."""
    return not isinstance(part, Split) and not hasattr(part, "__getitem__")


def has_samples(part: Any) -> bool:
    """Whether a part of the data has a sample; a loader is assumed to have one."""
    return part is not None and (is_loader(part) or bool(count_samples(part)))


def count_samples(part: Any) -> Optional[int]:
    """Number of samples of a part of the data; None for a loader, which does not know it."""
    if isinstance(part, Split):
        return len(part.x[0] if isinstance(part.x, tuple) else part.x)
    return None if is_loader(part) else len(part)


@under_switches
def batches(recipe: Recipe, data: Splits, split: str, *, training: bool = False) -> Any:
    """Batches of one part of the data; for training they are shuffled and augmented.

    Raises:
        UnknownNameError: `split` is no part of the data.
    """
    calls = [*augment_calls(recipe), loader_call(recipe, data, split, "batches", training=training)]
    return execute(calls, {"data": data}, recipe.name)["batches"]


def augment_calls(recipe: Recipe) -> List[Call]:
    """The calls that make the augmentations; `loader_call` refers to their results."""
    calls = []
    for name, steps in (("augment", recipe.data.augment), ("eval_augment", recipe.data.eval_augment)):
        if steps is None:
            continue
        call = Call(Augment, (list(steps),), result=name, made=augment_of(steps))
        if len(steps) == 1 and steps[0].name in PRESETS:
            call = replace(call, function=Augment.preset, positional=(steps[0].name,), named=steps[0].arguments)
        calls.append(call)
    return calls


def loader_call(recipe: Recipe, data: Splits, split: str, result: str, training: bool = False) -> Call:
    """The call that makes the batches of a part; the recipe's seed shuffles the training part."""
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
    # training without its own steps uses those of evaluation
    augment = "augment" if training and config.augment is not None else "eval_augment"
    if getattr(config, augment) is not None:
        arguments["transform"] = Name(augment if loader is DatasetLoader else f"{augment}.batch")
    parts = (Name(f"{own}.x"), Name(f"{own}.y")) if isinstance(part, Split) else (own,)
    return Call(loader, parts, arguments, result, "data.pairs" if config.pairs is not None else "data")


def first_inputs(recipe: Recipe, data: Splits) -> Tuple[Any, ...]:
    """The net's inputs for the first sample of the part that the final scores are computed over."""
    part = getattr(data, recipe.evaluate.split)
    if not is_loader(part) and not isinstance(part, Split) and recipe.data.pairs is None:
        # decode one file, not 256
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"eval_batch_size": 1, "workers": 0})})
    inputs, _ = unpack(next(source_of(batches(recipe, data, recipe.evaluate.split)).read(keep_count=True)))
    return tuple(one[:1] for one in inputs)


def net_calls(recipe: Recipe) -> List[Call]:
    """The calls that make the net with its first values, on its devices, with its frozen parameters."""
    calls = [Call(seed_all, (recipe.seed,)), *model_calls(recipe), *value_calls(recipe), *_setting_calls(recipe)]
    if recipe.model.finetune is None:
        return calls
    text = f"next(iter({scored_name(recipe)}))[0][:1]"
    # before `seed_all`, because the loader may draw random numbers
    return [Call(first_inputs, (recipe, Name("data")), result="sample", text=text), *calls]


def model_calls(recipe: Recipe) -> List[Call]:
    """The calls that make the net, with the values of `model.weights` if given, and without the head of `finetune`."""
    model, net = recipe.model, Name("net")
    calls = [_model_call(model, model.weights)]
    if model.weights is not None and model.name in COMPOSED:  # their class takes no weights, unlike `get_model`
        path = Path(model.weights).expanduser()
        function: Any = load_parameters
        positional: Tuple[Any, ...] = (net, model.weights if is_hub_address(model.weights) else str(path))
        if path.is_dir():
            function, positional = load_checkpoint, (str(checkpoints_of(path)), net)
        calls.append(Call(function, positional, at="model.weights"))
    if recipe.hybridize:
        builder = MODELS.get(model.name)
        own = builder is not None and builder.__module__ == networks.__name__
        known = own or model.name.startswith("zoo:") or model.name in COMPOSED
        fast = {"fast": True} if recipe.hybridize == "fast" else {}
        text = "net.hybridize(static_alloc=True)" if known and not fast else ""
        calls.append(Call(hybridize, (net,), {**fast, "static_alloc": True}, text=text))
    return calls


def _model_call(model: Component, weights: Optional[str] = None, result: str = "net") -> Call:
    function: Any = get_model
    positional: Tuple[str, ...] = (model.name,)
    named = model.arguments
    if model.name in COMPOSED:
        function, positional = COMPOSED[model.name], ()
        named = {key: _model_call(NetComponent.model_validate(one), None, "") for key, one in named.items()}
    elif weights is not None:
        named["weights"] = weights
    return Call(function, positional, named, result, "model", gives=gluon.Block)


def is_pretrained(model: ModelComponent) -> bool:
    """Whether the net has the values that a zoo published."""
    return ":" in model.name and bool(model.arguments.get("pretrained"))


def value_calls(recipe: Recipe) -> List[Call]:
    """The calls that give the net its first values on its devices, and the head of `finetune`."""
    model = recipe.model
    if model.weights is not None or is_pretrained(model):
        calls = [Call(to, (Name("net"), recipe.devices), at="devices")]
    else:
        where = {} if recipe.devices == "auto" else {"devices": recipe.devices}
        sample = {} if model.finetune is None else {"sample": Name("sample")}
        calls = [Call(initialize, (Name("net"), recipe.initializer), {**where, **sample}, at="initializer")]
    if model.finetune is not None:
        head = {**model.finetune.model_dump(exclude_defaults=True), "copy": False}
        if "initializer" in head:
            head["initializer"] = model.finetune.initializer
        calls.append(Call(finetune, (Name("net"),), head, "net", "model.finetune"))
    return calls


def _setting_calls(recipe: Recipe) -> List[Call]:
    net = Name("net")
    calls = [Call(freeze, (net, glob), at=f"freeze.{number}") for number, glob in enumerate(recipe.freeze)]
    if recipe.optimizer.no_weight_decay:
        calls.append(Call(no_weight_decay, (net,)))
    for glob, multipliers in recipe.optimizer.multipliers.items():
        values = {glob: multipliers.model_dump(exclude_none=True)}
        calls.append(Call(set_multipliers, (net, values), at=f"optimizer.multipliers.{glob}"))
    return calls


def kvstore_call(recipe: Recipe) -> Call:
    """The call that chooses how several workers add their gradients up."""
    compression = {} if recipe.compression is None else {"compression": recipe.compression.model_dump()}
    return Call(set_kvstore, (recipe.kvstore,), compression)


def fit_call(recipe: Recipe, data: Splits) -> Call:
    """The call of `fit`."""
    schedule = [] if recipe.schedule is None else [Call(LearningRate, (recipe.schedule,))]
    kept = recipe.checkpoints.model_dump(exclude_defaults=True)
    arguments: Dict[str, Any] = {
        "loss": recipe.loss,
        "trainer": recipe.optimizer,
        "valid": Name("valid") if has_samples(data.valid) else None,
        "metrics": list(recipe.metrics),
        **fit_arguments(recipe),
        "callbacks": [*schedule, *map(callback_call, recipe.callbacks)],
        "checkpoint": Call(Checkpoints, (InFolder("checkpoints"),), kept),
        "resume": "auto",
    }
    named = {name: value for name, value in arguments.items() if value not in (None, [])}
    return Call(fit, (Name("net"), Name("train")), named, result="history")


def fit_arguments(recipe: Recipe) -> Dict[str, Any]:
    """Keywords of `fit` that are keys of the recipe: the length, the seed, and all that differ from their default."""
    changed = [name for name in FIT_KEYS if getattr(recipe, name) != Recipe.model_fields[name].default]
    arguments = {"epochs": recipe.epochs, "seed": recipe.seed, **{name: getattr(recipe, name) for name in changed}}
    for key, own, unit in (("updates", "epochs", "updates"), ("accumulate_samples", "accumulate", "samples")):
        if key in arguments:
            arguments[own] = f"{arguments.pop(key)} {unit}"
    return arguments


def callback_call(component: CallbackComponent) -> Call:
    """The call that makes a callback; its file is in the run's folder."""
    key, arguments = PATHS.get(component.name), component.arguments
    if key is None:
        return Call(CALLBACKS[component.name], (), arguments, made=component.made)
    inside = {key: InFolder(arguments[key])} if key in arguments else {}
    return Call(CALLBACKS[component.name], (), {**arguments, **inside})


@under_switches
def evaluate_split(recipe: Recipe, net: Any, data: Splits, split: str) -> Dict[str, Any]:
    """Loss and metrics of a recipe over one part of the data; for pairs also the accuracy of their distances."""
    calls = [*augment_calls(recipe), loader_call(recipe, data, split, "scored")]
    if recipe.data.pairs is not None and split != "valid" and has_samples(data.valid):
        calls.append(loader_call(recipe, data, "valid", "valid"))
    calls += _score_calls(recipe, data, split, "scored")
    scores: Dict[str, Any] = execute(calls, {"net": net, "data": data}, recipe.name)["scores"]
    return scores


def score_calls(recipe: Recipe, data: Splits) -> List[Call]:
    """The calls that compute the final scores after the training."""
    best = Call(load_checkpoint, (InFolder("checkpoints"), Name("net")), {"which": "best"})
    calls = _score_calls(recipe, data, recipe.evaluate.split, scored_name(recipe))
    return [best, *calls] if recipe.evaluate.which == "best" else calls


def _score_calls(recipe: Recipe, data: Splits, split: str, loader: str) -> List[Call]:
    named: Dict[str, Any] = {"loss": recipe.loss}
    if recipe.scored_metrics:
        named["metrics"] = list(recipe.scored_metrics)
    calls = [Call(evaluate, (Name("net"), Name(loader)), named, result="scores")]
    if recipe.data.pairs is None:
        return calls
    if recipe.data.pairs.kind == "triplets":
        three = "anchor, positive, negative"
        calls.append(Call(predict, (Name("net"), Name(loader)), result=three))
        accuracy: Any = Call(triplet_accuracy, tuple(map(Name, three.split(", "))))
    else:
        threshold = {}
        if split != "valid" and has_samples(data.valid):  # the best threshold for the pairs of the validation part
            calls += _pair_calls("valid", "best", {})
            threshold = {"threshold": Name("best.threshold")}
        calls += _pair_calls(loader, "found", threshold)
        accuracy = Name("found.accuracy")
    return [*calls, Call(Name("scores.update"), (), {f"{recipe.data.pairs.kind.rstrip('s')}_accuracy": accuracy})]


def _pair_calls(loader: str, result: str, threshold: Mapping[str, Any]) -> List[Call]:
    same = f"np.concatenate([same.asnumpy() for _, same in {loader}])"
    return [
        Call(predict, (Name("net"), Name(loader)), result="a, b"),
        Call(_labels, (Name(loader),), result="same", text=same),
        Call(pair_accuracy, (Name("a"), Name("b"), Name("same")), threshold, result),
    ]


def _labels(pairs: Any) -> Any:
    return np.concatenate([same.asnumpy() for _, same in pairs])


_WIDTH = 110
# Functions of a plan that are public at the root of the package.
_AT_ROOT = {"Checkpoints", "evaluate", "finetune", "fit", "freeze", "initialize", "load_checkpoint", "load_parameters"}
_AT_ROOT |= {"predict", "seed_all", "to"}


def written(call: Call) -> str:
    """A call of a plan as Python code, with one argument per line if it is long.

    >>> print(written(Call(Name("f"), (Name("x"),), {"a": "b"}, "y")))
    y = f(x, a='b')
    """
    target = f"{call.result} = " if call.result else ""
    if call.text:
        return f"{target}{call.text}"
    values = [*(("", one) for one in call.positional), *((f"{name}=", one) for name, one in call.named.items())]
    arguments = [f"{name}{value!r}" for name, value in values]
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
    return f"{name}[\n" + "".join(f"        {one!r},\n" for one in elements) + "    ]"


def public_name(function: Any) -> str:
    """Name of a function in a script: `mxkit.data.digits`; a user's function with its module.

    >>> from mxkit.recipe.data_checks import load_data
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
