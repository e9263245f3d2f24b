"""Which names a recipe may use for what, and which arguments each takes."""

import inspect
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from mxkit.data import datasets
from mxkit.data.files import tables
from mxkit.errors import UnknownNameError
from mxkit.initializers import initializer_names
from mxkit.losses import LOSSES
from mxkit.metrics import METRICS
from mxkit.models.registry import MODELS, model_names
from mxkit.optimizers import optimizer_names
import mxnet as mx

DATASETS: Dict[str, Callable[..., Any]] = {
    "digits": datasets.digits,
    "mnist": datasets.mnist,
    "fashion_mnist": datasets.fashion_mnist,
    "cifar10": datasets.cifar10,
    "cifar100": datasets.cifar100,
    "csv": tables.csv,
}

# Gluon's Trainer sets these itself; a scheduler is an object, which YAML cannot hold.
_NOT_FOR_RECIPES = {"self", "param_idx2name", "sym", "param_dict", "begin_num_update", "lr_scheduler", "rescale_grad"}


class Kind(NamedTuple):
    """One kind of component.

    Attributes:
        names: Every known name.
        callable_of: What a name is built with, for its signature; None where that is not known.
    """

    names: Callable[[], Iterable[str]]
    callable_of: Callable[[str], Optional[Callable[..., Any]]]


def _all_models() -> List[str]:
    return model_names() + [f"zoo:{name}" for name in model_names("zoo")]


def _registered(base: type) -> Dict[str, Any]:
    return dict(mx.registry.get_registry(base))


KINDS: Dict[str, Kind] = {
    "data": Kind(lambda: DATASETS, lambda name: DATASETS.get(name)),
    "model": Kind(_all_models, lambda name: MODELS.get(name)),
    "initializer": Kind(initializer_names, lambda name: _registered(mx.init.Initializer).get(name.lower())),
    "loss": Kind(lambda: LOSSES, lambda name: LOSSES.get(name)),
    "optimizer": Kind(optimizer_names, lambda name: mx.optimizer.Optimizer.opt_registry.get(name.lower())),
    "metrics": Kind(
        lambda: set(METRICS) | set(_registered(mx.metric.EvalMetric)),
        lambda name: METRICS.get(name) or _registered(mx.metric.EvalMetric).get(name.lower()),
    ),
}


def is_known(kind: str, name: str) -> bool:
    """Whether a component of this kind has this name; `gluoncv:` names ask gluoncv."""
    if kind == "model" and name.startswith("gluoncv:"):
        return name[len("gluoncv:") :] in model_names("gluoncv")
    if kind in ("initializer", "optimizer", "metrics"):
        name = name.lower()
    return name in set(KINDS[kind].names())


def accepted_arguments(kind: str, name: str) -> Optional[Set[str]]:
    """Names of the arguments a component takes, or None where only building it can tell.

    Raises:
        UnknownNameError: There is no such component.
    """
    if not is_known(kind, name):
        raise UnknownNameError(f"unknown {kind} {name!r}")
    target = KINDS[kind].callable_of(name)
    if target is None:
        return None
    accepted, open_ended = _named(target)
    if kind == "optimizer":  # every optimizer hands the rest to its base
        return (accepted | _named(mx.optimizer.Optimizer)[0]) - _NOT_FOR_RECIPES
    if kind == "loss":  # HybridBlock's own two
        return accepted - {"prefix", "params"}
    return None if open_ended else accepted


def _named(target: Callable[..., Any]) -> Tuple[Set[str], bool]:
    parameters = inspect.signature(target).parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)
