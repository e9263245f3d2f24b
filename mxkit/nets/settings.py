"""Changes of existing optimizers and parameters: hyper-parameters, multipliers, freezing."""

from numbers import Real
from typing import Any, List, Mapping, Optional, Set, Tuple

from mxkit.core.arguments import check_number
from mxkit.core.blocks import match_parameters, never_trained, parameters_by_path
from mxkit.core.graphs import drop_static_graphs
from mxkit.core.replicas import is_trainable, set_grad_req, trainer_of
from mxkit.core.statistics import fix_statistics
from mxkit.core.trainers import forget_states, lacks_states, optimizer_defaults, refuse_remote, trainer_parameters
from mxkit.errors import unknown_name
import mxnet as mx
from mxnet import gluon

# Arguments of optimizers that are not hyper-parameters, or that every update sets.
_FIXED = {"begin_num_update", "learning_rate", "lr", "multi_precision", "rescale_grad"}
_FIXED |= {"batch_scale", "num_epochs", "updates_per_epoch", "warmup_epochs"}  # LBSGD reads them once
# With a rate of 0, FTML and Ftrl give NaN weights without an error, and SGLD an error of the engine.
NEEDS_RATE = (mx.optimizer.FTML, mx.optimizer.Ftrl, mx.optimizer.SGLD)
_MULTIPLIERS = ("lr", "wd")
_UNCHANGED = ". Nothing was changed"


def set_hyperparameters(
    trainer: "gluon.Trainer",
    *,
    learning_rate: Optional[float] = None,
    wd: Optional[float] = None,
    momentum: Optional[float] = None,
    **others: Optional[float],
) -> None:
    """Change hyper-parameters of an optimizer from the next update on; if one value is wrong, none changes.

    Args:
        trainer: A Trainer over the net, which steps on the devices or on a local kvstore.
        learning_rate: At least 0; None does not change it.
        wd: Weight decay, at least 0; None does not change it.
        momentum: At least 0; None does not change it. If it was 0, the velocity starts at 0.
        others: Any other number among the optimizer's arguments, like `beta1`; None removes a `clip_gradient`.

    Raises:
        UnknownNameError: The optimizer has no such hyper-parameter.
        ValueError: A value is not a finite number; the optimizer has its own scheduler, ignores learning rates, or
            steps on the servers of a distributed kvstore.

    >>> net = mxkit.models.softmax_regression(); mxkit.initialize(net)
    >>> trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    >>> set_hyperparameters(trainer, learning_rate=0.01, wd=1e-4, beta1=0.8)
    >>> trainer.learning_rate, trainer.optimizer.wd, trainer.optimizer.beta1
    (0.01, 0.0001, 0.8)
    """
    optimizer = trainer.optimizer
    named = {"wd": wd, "momentum": momentum}
    changes = {**{name: value for name, value in named.items() if value is not None}, **others}
    known = _hyperparameters(optimizer)
    for name, value in changes.items():
        if name not in known:
            raise unknown_name(f"hyper-parameter of {type(optimizer).__name__}", name, [*known, "learning_rate"])
        if value is not None or not name.startswith("clip"):
            check_number(name, value, name in ("wd", "momentum"), _UNCHANGED)
    if learning_rate is not None:
        check_number("learning_rate", learning_rate, after=_UNCHANGED)
        refuse_fixed_rate(trainer)
        if not learning_rate and isinstance(optimizer, NEEDS_RATE):
            raise ValueError(
                f"learning_rate: {type(optimizer).__name__} divides by it, or draws noise of its size: expected a "
                f"number above 0; received {learning_rate!r}. Nothing was changed"
            )
    elif changes:
        refuse_remote(trainer)
    if changes.get("momentum") and (not optimizer.momentum or lacks_states(trainer)):
        _begin_momentum(trainer)
    for name, value in changes.items():
        setattr(optimizer, name, value)
    if learning_rate is not None:
        trainer.set_learning_rate(learning_rate)


def _hyperparameters(optimizer: "mx.optimizer.Optimizer") -> Set[str]:
    """Return the arguments of the optimizer's class and bases that are numbers in an attribute of the same name."""
    names: Set[str] = set()
    for name in optimizer_defaults(type(optimizer)):
        value = getattr(optimizer, name, "")
        number = isinstance(value, Real) and not isinstance(value, bool)
        if number or (value is None and name.startswith("clip")):
            names.add(name)
    return names - _FIXED


def _begin_momentum(trainer: "gluon.Trainer") -> None:
    """Drop states that hold no velocity, or an old one; the next update makes new states.

    MXNet makes no velocity while momentum is 0. If momentum is set later, the update fails; on a kvstore MXNet only
    prints the error, and the weights no longer change.
    """
    half = any(str(parameter.dtype).endswith("float16") for parameter in trainer_parameters(trainer))
    if trainer.optimizer.multi_precision and half:
        raise ValueError(
            "momentum: states of float16 weights hold their float32 copies, which a momentum that begins at 0 cannot "
            "keep. Make a new Trainer with the momentum. Nothing was changed"
        )
    forget_states(trainer)


def refuse_fixed_rate(trainer: "gluon.Trainer") -> None:
    """Refuse a Trainer whose learning rate cannot be set, or has no effect.

    Raises:
        ValueError: The optimizer has its own scheduler, ignores learning rates, or steps on servers.
    """
    optimizer = trainer.optimizer
    if optimizer.lr_scheduler is not None:
        raise ValueError(
            f"the optimizer has a {type(optimizer.lr_scheduler).__name__} of its own, which decides the learning rate "
            "(T21). Make it without lr_scheduler, or leave the rate to it"
        )
    if isinstance(optimizer, mx.optimizer.AdaDelta):
        raise ValueError("AdaDelta ignores the learning rate (T21): setting it would change nothing")
    refuse_remote(trainer)


def set_multipliers(net: Any, multipliers: Mapping[str, Mapping[str, float]]) -> None:
    """Multiply learning rate and weight decay of some parameters, for every Trainer over them.

    Args:
        net: Any block.
        multipliers: `{"features.*": {"lr": 0.1, "wd": 0}}`: globs over structural paths; if several globs fit a
            path, the last one decides.

    Raises:
        UnknownNameError: No path fits a glob, or a multiplier is neither "lr" nor "wd".
        ValueError: A multiplier is not a number of at least 0, or the optimizer steps on servers, which get no
            multipliers. Nothing is changed then.

    >>> net = mxkit.models.mlp(hidden=[8]); set_multipliers(net, {"*": {"lr": 0.1}, "2.*": {"lr": 1}})
    >>> [(path, parameter.lr_mult) for path, parameter in match_parameters(net, "*.weight").items()]
    [('1.weight', 0.1), ('2.weight', 1.0)]
    """
    planned: List[Tuple[Any, str, float]] = []
    for glob, values in multipliers.items():
        parameters = match_parameters(net, glob)
        for name, value in values.items():
            if name not in _MULTIPLIERS:
                raise unknown_name("multiplier", name, _MULTIPLIERS)
            check_number(f"{glob!r}: {name}", value)
            planned.extend((parameter, f"{name}_mult", float(value)) for parameter in parameters.values())
    for parameter, _, _ in planned:
        trainer = trainer_of(parameter)
        if isinstance(trainer, gluon.Trainer):
            refuse_remote(trainer)
    for parameter, name, value in planned:
        setattr(parameter, name, value)


def no_weight_decay(net: Any) -> List[str]:
    """Set the weight decay's multiplier to 0 for biases and for scales and shifts of norms (T21).

    These are the trainable parameters with one axis, and those named `...bias`, `...gamma` or `...beta`. The number
    of axes is known before the sizes are, so the shapes of the net may be deferred.

    Args:
        net: Any block.

    Returns:
        Paths of these parameters.

    Side effects:
        Their `wd_mult` is 0.

    >>> no_weight_decay(mxkit.models.mlp(hidden=[8]))
    ['1.bias', '2.bias']
    """
    paths = []
    for path, parameter in parameters_by_path(net).items():
        flat = parameter.shape is not None and len(parameter.shape) == 1
        if is_trainable(parameter) and (flat or path.endswith(("bias", "gamma", "beta"))):
            parameter.wd_mult = 0.0
            paths.append(path)
    return paths


def freeze(net: Any, glob: str = "*") -> List[str]:
    """Stop the training of parameters: no gradient, no update, no weight decay.

    A Dense layer's bias must be frozen with its weight: `updates` and `fit` refuse the net otherwise (T46).

    Args:
        net: Any block; Trainers over it may exist.
        glob: Over structural paths, as for `match_parameters`. A parameter that two blocks share is frozen
            for both.

    Returns:
        Paths of the parameters that were not frozen before.

    Raises:
        UnknownNameError: No path fits.

    Side effects:
        A BatchNorm whose gamma and beta are frozen uses its running statistics in training too (use_global_stats, in
        the graph of a SymbolBlock as well), those of the first device. Otherwise what stands behind it would learn from
        other numbers than it gets in prediction (T265). The setting remains when the BatchNorm is unfrozen.

    >>> freeze(mxkit.models.mlp(hidden=[8]), "1.*")
    ['1.weight', '1.bias']
    """
    return freeze_all(net, match_parameters(net, glob))


def freeze_all(net: Any, parameters: Mapping[str, Any]) -> List[str]:
    """Freeze parameters by path, as `freeze` does."""
    changed = [path for path, parameter in parameters.items() if parameter.grad_req != "null"]
    for path in changed:
        set_grad_req(parameters[path], "null")
    fix_statistics(net, set(map(id, parameters.values())))  # also of a BatchNorm that has nothing to train
    return changed


def unfreeze(net: Any, glob: str = "*") -> List[str]:
    """Resume the training of frozen parameters.

    Running statistics, constants, and gammas and betas of norms made with `scale=False` or `center=False` have no
    gradients and stay as they are. A BatchNorm that was frozen keeps its running statistics fixed, and trains gamma and
    beta alone: the weights before it were trained for these statistics. The callback `Freeze` does the same.

    Args:
        net: Any block. A Trainer trains only parameters that it was made over (T19); one over
            `net.collect_params()` includes frozen parameters.
        glob: Over structural paths, as for `match_parameters`.

    Returns:
        Paths of the parameters that were frozen before.

    Raises:
        UnknownNameError: No path fits.
        ValueError: No fitting parameter can be trained, or gradients are being accumulated.
    """
    never = never_trained(net)
    fitting = {path: one for path, one in match_parameters(net, glob).items() if id(one) not in never}
    if not fitting:
        raise ValueError(
            f"nothing that fits {glob!r} can be trained: running statistics, constants and switched-off scales and "
            "shifts have no gradient"
        )
    adding = [path for path, parameter in parameters_by_path(net).items() if parameter.grad_req == "add"]
    if adding:
        raise ValueError(
            f"grad_req of {adding[0]!r} is 'add': an unfrozen parameter would miss the micro-batches of this window. "
            "Unfreeze between epochs (on_epoch), not inside an Accumulator"
        )
    return unfreeze_all(net, fitting)


def unfreeze_all(net: Any, parameters: Mapping[str, Any]) -> List[str]:
    """Unfreeze parameters by path, as `unfreeze` does: running statistics of a BatchNorm stay fixed."""
    changed = [path for path, parameter in parameters.items() if parameter.grad_req == "null"]
    for path in changed:
        set_grad_req(parameters[path], "write")
    if changed:
        drop_static_graphs(net)
    return changed
