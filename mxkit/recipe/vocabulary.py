"""The names that a recipe may use, their arguments, and names that users register."""

import collections.abc as abc
from functools import lru_cache
import inspect
from pathlib import PurePath
import types
import typing
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union

from mxkit.core.arguments import Plugged
from mxkit.core.trainers import check_optimizer, optimizer_names
from mxkit.data import boxes, datasets, image_files, masks, points, tables
from mxkit.data.augment import PRESETS, STEPS, Augment, as_step
from mxkit.data.augment_steps import INTERPOLATIONS
from mxkit.errors import UnknownNameError, unknown_name
from mxkit.losses.named_losses import LOSSES, get_batch_loss
from mxkit.losses.net_losses import NET_LOSSES
from mxkit.metrics.metric import Metric
from mxkit.metrics.named_metrics import METRICS, get_metric, own_metrics
from mxkit.models.networks import Siamese
from mxkit.models.registry import MODELS, model_names
from mxkit.nets.initializers import get_initializer, initializer_names
from mxkit.training.callbacks.callback import check_callbacks
from mxkit.training.callbacks.learning_rate import Plateau
from mxkit.training.callbacks.logs import CSVLog, MLflowLog, TensorBoardLog, WandbLog
from mxkit.training.callbacks.stopping import EarlyStopping, TimeLimit
from mxkit.training.callbacks.weights import EMA, Freeze
from mxkit.training.schedules import TAKES, get_schedule, schedule
import mxnet as mx
from pydantic import BeforeValidator, ConfigDict, TypeAdapter
from typing_extensions import Annotated, Literal, NotRequired, Required, TypedDict

Builder = Callable[..., Any]
Function = TypeVar("Function", bound=Builder)

_READERS: List[Builder] = [boxes.box_records, boxes.boxes_csv, boxes.coco_boxes, boxes.voc_boxes, boxes.yolo_boxes]
_READERS += [datasets.cifar10, datasets.cifar100, datasets.digits, datasets.fashion_mnist, datasets.made_linear]
_READERS += [datasets.mnist, image_files.image_folder, image_files.image_records, image_files.imagenet]
_READERS += [masks.mask_folder, masks.voc_masks, points.coco_points, tables.csv]
DATASETS = Plugged("mxkit.data", {function.__name__: function for function in _READERS})

CALLBACKS: Dict[str, Builder] = {
    "csv": CSVLog,
    "early_stopping": EarlyStopping,
    "ema": EMA,
    "freeze": Freeze,
    "mlflow": MLflowLog,
    "plateau": Plateau,
    "tensorboard": TensorBoardLog,
    "time_limit": TimeLimit,
    "wandb": WandbLog,
}
CALLBACKS = Plugged("mxkit.callbacks", CALLBACKS)

# Nets that consist of other nets: each of their arguments is a model.
COMPOSED: Dict[str, Builder] = {"siamese": Siamese}

# Arguments with few values; MXNet checks some of them only when it uses them.
_CHOICES: Dict[str, Dict[str, Any]] = {
    "initializer": {
        "rnd_type": Literal["uniform", "gaussian"],
        "factor_type": Literal["avg", "in", "out"],
        "rand_type": Literal["uniform", "normal"],
    },
    "callback": {"mode": Literal["min", "max"]},
    "augment": {"interpolation": Literal[tuple(INTERPOLATIONS)]},
}
NOTHING = object()
# The argument of each callback that is a path inside the run's folder.
PATHS = {"csv": "path", "tensorboard": "folder", "wandb": "folder"}
_UNIONS = {Union, getattr(types, "UnionType", Union)}
# YAML has only lists, and a strict tuple refuses them; a mapping from Python may have tuples.
_LIST = BeforeValidator(lambda value: list(value) if isinstance(value, tuple) else value)
_TUPLE = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
# Gluon's Trainer sets these itself; a scheduler is an object, and YAML has none.
_NOT_FOR_RECIPES = {"self", "param_idx2name", "sym", "param_dict", "begin_num_update", "lr_scheduler", "rescale_grad"}
_ZOO = {"classes": int, "pretrained": bool, "root": str}
_ZOO_MORE: Dict[str, Dict[str, Any]] = {"resnet": {"thumbnail": bool}, "densenet": {"bn_size": float, "dropout": float}}


def exact(value: Any) -> Any:
    """Let a literal 1 refuse true and 1.0, which equal it in Python."""
    return value if type(value) in (int, str) else repr(value)


class Kind(NamedTuple):
    """One kind of component.

    Attributes:
        names: Returns all known names.
        builder: Returns the function or class of a name, or None if it is unknown.
        own: The table in which `register` puts names; None if MXNet has a registry for this kind.
        make: Makes the component from its name and its arguments; None if that needs the data, the devices or the
            net's parameters.
    """

    names: Callable[[], Iterable[str]]
    builder: Callable[[str], Optional[Builder]]
    own: Optional[Dict[str, Builder]] = None
    make: Optional[Callable[[str, Dict[str, Any]], Any]] = None


class Argument(NamedTuple):
    """One argument of a builder.

    Attributes:
        kind: The type of the value, made of types that YAML has and pydantic checks.
        required: True if the argument has no default.
    """

    kind: Any
    required: bool


def _all_models() -> List[str]:
    return sorted({*model_names(), *COMPOSED}) + [f"zoo:{name}" for name in model_names("zoo")]


def _preset(*, size: Optional[int] = None, white: float = 1.0) -> None:
    """The arguments of `Augment.preset`."""


def _step(name: str, arguments: Dict[str, Any]) -> Any:
    return Augment.preset(name, **arguments) if name in PRESETS else STEPS[name](**arguments)


def _callback(name: str, arguments: Dict[str, Any]) -> Any:
    """The callback; None if its file is in the run's folder, which is made later."""
    callback = check_callbacks([CALLBACKS[name](**arguments)])[0]
    return None if name in PATHS else callback


KINDS: Dict[str, Kind] = {
    "data": Kind(lambda: DATASETS, DATASETS.get, DATASETS),
    "augment": Kind(lambda: {*STEPS, *PRESETS}, lambda name: STEPS.get(name) or _preset, STEPS, _step),  # type: ignore
    "model": Kind(_all_models, lambda name: MODELS.get(name) or COMPOSED.get(name), MODELS),
    "initializer": Kind(
        initializer_names,
        lambda name: mx.registry.get_registry(mx.init.Initializer).get(name.lower()),
        make=lambda name, arguments: get_initializer((name, arguments)),
    ),
    "loss": Kind(
        lambda: {**LOSSES, **NET_LOSSES},
        lambda name: LOSSES.get(name) or NET_LOSSES.get(name),
        LOSSES,
        lambda name, arguments: get_batch_loss((name, arguments)),
    ),
    "optimizer": Kind(
        optimizer_names, lambda name: mx.optimizer.Optimizer.opt_registry.get(name.lower()), make=check_optimizer
    ),
    "schedule": Kind(
        lambda: TAKES, lambda name: schedule, make=lambda name, arguments: get_schedule((name, arguments))
    ),
    "callback": Kind(lambda: CALLBACKS, CALLBACKS.get, CALLBACKS, _callback),
    "metric": Kind(
        lambda: {*METRICS, *own_metrics()},
        lambda name: METRICS.get(name) or own_metrics().get(name.lower()),
        METRICS,
        lambda name, arguments: get_metric((name, arguments)),
    ),
}


def register(kind: str, name: Optional[str] = None) -> Callable[[Function], Function]:
    """Let recipes use your own function or class by name; a decorator.

    A recipe lists the module in `imports: [my_module]` and then uses the name like one of mxkit's. Its arguments are
    checked against the signature, so annotate them. `mxkit.fit`, `get_model` and `Augment` also accept registered
    losses, metrics, models and steps of augmentation. Register initializers and optimizers with MXNet
    (`mx.init.register`, `mx.optimizer.Optimizer.register`); recipes accept all of them.

    Args:
        kind: "data": returns `Splits`, whose parts are a `Split`, a Dataset or a loader. "model": returns a block.
            "loss": returns what `loss=` of `fit` may be. "metric": returns a `Metric`. "callback": returns a
            `Callback`. "augment": returns a function of `(image, rng)`, as for `Augment`.
        name: The name in recipes; None takes the function's own.

    Returns:
        A decorator, which returns the function or class unchanged.

    Raises:
        UnknownNameError: `kind` is none of these.
        ValueError: Another function has the name. A function of the same module and name is replaced, as in a
            notebook's cell that runs twice.

    >>> @register("model")
    ... def two_layers(units: int = 8, classes: int = 10):
    ...     return mxkit.models.mlp(classes, hidden=[units])
    >>> mxkit.models.get_model("two_layers", units=3)[1]
    Dense(None -> 3, Activation(relu))
    >>> del mxkit.models.registry.MODELS["two_layers"]
    """
    tables_by_kind = {known: one.own for known, one in KINDS.items() if one.own is not None}
    if kind not in tables_by_kind:
        raise unknown_name("kind of component", kind, tables_by_kind)
    table = tables_by_kind[kind]

    def put(function: Function) -> Function:
        own = name or function.__name__
        other = table.get(own)
        if other is None and own in set(KINDS[kind].names()):
            raise ValueError(f"register: {kind} {own!r} is a name of mxkit; choose another")
        if other is not None and _full_name(other) != _full_name(function):
            raise ValueError(f"register: {kind} {own!r} is {_full_name(other)} already; choose another name")
        table[own] = as_step(function) if kind == "augment" else function
        return function

    return put


def _full_name(function: Builder) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def is_known(kind: str, name: str) -> bool:
    """Whether a component of this kind has this name; for `gluoncv:` names gluoncv is imported."""
    if kind == "model" and name.startswith("gluoncv:"):
        return name[len("gluoncv:") :] in model_names("gluoncv")
    if dict.__contains__(KINDS[kind].own or {}, name):
        return True  # without a look at the plug-ins
    if kind in ("initializer", "optimizer") or (kind == "metric" and name not in METRICS):
        name = name.lower()
    return name in set(KINDS[kind].names())


def accepted_arguments(kind: str, name: str) -> Optional[Dict[str, Argument]]:
    """Arguments that a component accepts, or None if they are unknown.

    Raises:
        UnknownNameError: There is no such component.
    """
    if not is_known(kind, name):
        raise UnknownNameError(f"unknown {kind} {name!r}")
    if kind == "model" and name.startswith("zoo:"):
        more = next((extra for family, extra in _ZOO_MORE.items() if name.startswith(f"zoo:{family}")), {})
        return {key: Argument(kind, False) for key, kind in {**_ZOO, **more}.items()}
    target = KINDS[kind].builder(name)
    if target is None:
        return None
    accepted, open_ended = arguments_of(target)
    for key, choices in _CHOICES.get(kind, {}).items():
        own = target.__module__.startswith(("mxkit.", "mxnet."))
        if own and key in accepted and accepted[key].kind is str:  # `mode` of W&B has choices of its own
            accepted[key] = accepted[key]._replace(kind=choices)
    if kind == "optimizer":  # every optimizer passes other arguments to its base class
        everything = {**arguments_of(mx.optimizer.Optimizer)[0], **accepted}
        # MXNet accepts a text as a number (T26), and some hyper-parameters are objects
        number = Argument(Union[float, bool, None], False)
        return {key: number for key in everything if key not in _NOT_FOR_RECIPES}
    if kind == "metric" and isinstance(target, type) and issubclass(target, Metric):
        return _of_metric(target)
    if kind == "schedule":
        taken = [*TAKES[name][0], *TAKES[name][1]]
        return {key: accepted[key]._replace(required=key in TAKES[name][0]) for key in taken}
    if kind == "loss":  # without the two arguments of HybridBlock
        return {key: one for key, one in accepted.items() if key not in ("prefix", "params")}
    if name in COMPOSED and kind == "model":
        return accepted
    return None if open_ended else accepted


def _of_metric(metric: type) -> Optional[Dict[str, Argument]]:
    """Arguments of a metric and of its base classes, to which it passes `**kwargs`."""
    arguments: Dict[str, Argument] = {}
    for kind in metric.__mro__:
        if "__init__" in vars(kind) and kind is not object:
            accepted, open_ended = arguments_of(kind)
            arguments = {**accepted, **arguments}
            if not open_ended:
                return arguments
    return None


def arguments_of(target: Builder) -> Tuple[Dict[str, Argument], bool]:
    """Read the signature of a function or a class.

    Args:
        target: The function or class. The type of an argument is its annotation, or else the type of its default.

    Returns:
        Arguments by name, without those that YAML has no type for, such as functions; and True if it has `**kwargs`.

    >>> arguments_of(lambda size=8, *, deep=False: None)[0]["deep"]
    Argument(kind=<class 'bool'>, required=False)
    """
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        hints = {}
    arguments: Dict[str, Argument] = {}
    open_ended = False
    for name, parameter in inspect.signature(target).parameters.items():
        open_ended = open_ended or parameter.kind is parameter.VAR_KEYWORD
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "self":
            required = parameter.default is parameter.empty
            kind = annotation_kind(hints[name]) if name in hints else _of_default(parameter.default)
            if kind is not NOTHING:
                arguments[name] = Argument(kind, required)
    return arguments, open_ended


def _of_default(default: Any) -> Any:
    if isinstance(default, (bool, str)):
        return type(default)
    return float if isinstance(default, (int, float)) else Any  # a default of 1 may mean 1.0


def annotation_kind(annotation: Any) -> Any:
    """The part of a type that YAML has, or `NOTHING`.

    >>> annotation_kind(Union[int, str, Callable[[], int]])
    typing.Union[int, str]
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (Any, object) or isinstance(annotation, TypeVar):
        return Any
    if origin in _UNIONS:
        kinds = [kind for kind in map(annotation_kind, inner) if kind is not NOTHING]
        return Any if Any in kinds else Union[tuple(kinds)] if kinds else NOTHING
    if origin is Literal or origin is typing.__dict__.get("Literal"):
        return Annotated[annotation, BeforeValidator(exact)]
    if annotation in (bool, int, float, str, type(None)):
        return annotation
    kinds = [annotation_kind(one) for one in inner if one is not Ellipsis]
    container = origin or annotation
    if not isinstance(container, type):
        return Any
    if issubclass(container, PurePath):
        return str
    if NOTHING in kinds:
        return NOTHING
    if issubclass(container, tuple) and inner and inner[-1] is not Ellipsis:
        return Annotated[Tuple[tuple(kinds)], _TUPLE]
    if issubclass(container, abc.Mapping):
        return Dict[str, kinds[1] if kinds else Any]  # type: ignore[misc]
    if issubclass(container, abc.Iterable) and kinds:
        return Annotated[List[kinds[0]], _LIST]  # type: ignore[valid-type]
    return NOTHING


def adapter_of(arguments: Mapping[str, Argument]) -> "TypeAdapter[Any]":
    """Pydantic's adapter, which checks values of a recipe against arguments and makes their JSON schema.

    >>> adapter_of({"size": Argument(int, True)}).json_schema()["required"]
    ['size']
    """
    return _adapter(tuple(arguments.items()))


@lru_cache(maxsize=None)  # pydantic needs milliseconds for each
def _adapter(arguments: Tuple[Tuple[str, Argument], ...]) -> "TypeAdapter[Any]":
    keys = {name: Required[one.kind] if one.required else NotRequired[one.kind] for name, one in arguments}
    make: Any = TypedDict  # mypy requires literal keys
    typed = make("Arguments", keys)
    # strict: pydantic would otherwise convert "3" to 3 and true to 1
    typed.__pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(typed)
