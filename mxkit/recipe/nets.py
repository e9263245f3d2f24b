"""A recipe's net: built, given its first values, and frozen where it says so."""

from contextlib import contextmanager
from typing import Any, Iterator, Optional, Tuple

from mxkit.core.device import devices as resolve_devices
from mxkit.errors import MxkitError, RecipeError
from mxkit.models.registry import get_model
from mxkit.models.weights import load_weights
from mxkit.nets.finetuning import finetune
from mxkit.nets.initializers import initialize
from mxkit.nets.moving import to
from mxkit.nets.settings import freeze, no_weight_decay, set_multipliers
from mxkit.recipe.problems import located, refuse
from mxkit.recipe.registry import COMPOSED
from mxkit.recipe.schema import Component, ModelComponent, Recipe
from mxkit.training.callbacks.freezing import trained_later
from mxnet import gluon


def build_net(recipe: Recipe) -> Any:
    """The recipe's net before it is initialized, and without the head of `finetune`.

    Raises:
        RecipeError: The net refuses an argument.
    """
    with _refused(recipe, "model", recipe.model.arguments):
        net = build_model(recipe.model)
    if recipe.hybridize and isinstance(net, gluon.HybridBlock):
        net.hybridize(static_alloc=True)
    return net


def build_model(model: Component) -> Any:
    """A net by its name and arguments; one that is made of other nets, of those."""
    if model.name in COMPOSED:
        return COMPOSED[model.name](
            **{key: build_model(Component.model_validate(part)) for key, part in model.arguments.items()}
        )
    return get_model(model.name, **model.arguments)


def is_pretrained(model: ModelComponent) -> bool:
    """Whether a zoo gives the net its values."""
    return ":" in model.name and bool(model.arguments.get("pretrained"))


def ready_net(recipe: Recipe, sample: Optional[Tuple[Any, ...]]) -> Any:
    """The recipe's net with its first values, on its devices, ready for `fit`.

    Args:
        recipe: A recipe.
        sample: Inputs of one sample, which `finetune` needs to know all sizes.

    Raises:
        RecipeError: A value cannot be used, `weights` do not fit the net, or a glob fits no parameter.

    Side effects:
        Draws from MXNet's generator.
    """
    net = build_net(recipe)
    _give_values(recipe, net, sample)
    if recipe.model.finetune is not None:
        net = _with_head(recipe, net)
    for number, glob in enumerate(recipe.freeze):
        with _refused(recipe, f"freeze.{number}"):
            freeze(net, glob)
    if recipe.optimizer.no_weight_decay:
        no_weight_decay(net)
    for glob, one in recipe.optimizer.multipliers.items():
        with _refused(recipe, f"optimizer.multipliers.{glob}"):
            set_multipliers(net, {glob: one.model_dump(exclude_none=True)})
    for number, callback in enumerate(recipe.callbacks):
        if callback.name == "freeze":  # refused here, before the run has its folder
            with _refused(recipe, f"callbacks.{number}.patterns"):
                trained_later(net, callback.arguments.get("patterns"))
    return net


def empty_net(recipe: Recipe, sample: Optional[Tuple[Any, ...]]) -> Any:
    """A net of the same form, into which a checkpoint can be loaded; nothing is read or fetched for it."""
    model = recipe.model.model_copy(update={"weights": None})
    if is_pretrained(recipe.model):
        model = ModelComponent.model_validate({**model.model_dump(), "pretrained": False})
    recipe = recipe.model_copy(update={"model": model, "initializer": Component(name="zeros")})
    net = build_net(recipe)
    if recipe.model.finetune is None:
        return net
    _give_values(recipe, net, sample)
    return _with_head(recipe, net)


def _give_values(recipe: Recipe, net: Any, sample: Optional[Tuple[Any, ...]]) -> None:
    with _refused(recipe, "devices"):
        where = resolve_devices(recipe.devices)
    model = recipe.model
    if model.weights is not None:
        with _refused(recipe, "model.weights"):
            load_weights(net, model.name, model.weights, root=model.arguments.get("root"))
    if model.weights is not None or is_pretrained(model):
        to(net, where)
    else:
        initialize(net, recipe.initializer.spec, devices=where, sample=sample)


def _with_head(recipe: Recipe, net: Any) -> Any:
    head = recipe.model.finetune.model_dump() if recipe.model.finetune else {}
    initializer = Component.model_validate(head.pop("initializer"))
    with _refused(recipe, "model.finetune", head):
        return finetune(net, **head, initializer=initializer.spec, copy=False)


@contextmanager
def _refused(recipe: Recipe, path: str, arguments: Any = ()) -> Iterator[None]:
    """Tell what a builder raises with the place in the recipe."""
    try:
        yield
    except (TypeError, ValueError, OSError, MxkitError) as error:
        if isinstance(error, (RecipeError, ConnectionError)):
            raise
        refuse(recipe.name, [located(path, error, dict.fromkeys(arguments))])
