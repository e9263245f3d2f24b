"""Optimizers and Trainers by name; what they do is MXNet's own."""

import inspect
import math
from numbers import Real
import os
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple, Union

from mxkit.core.arguments import check_number, split_spec
from mxkit.core.blocks import net_devices
from mxkit.core.replicas import values_of
from mxkit.errors import DeviceError, nearest, unknown_name
import mxnet as mx
from mxnet import gluon

TrainerSpec = Union[str, Tuple[str, Mapping[str, Any]], "mx.optimizer.Optimizer", "gluon.Trainer"]

# Nadam and LARS keep numbers that every replica advances, LBSGD sums that it shares; SGLD draws other noise for each.
DRIFTING = (mx.optimizer.Nadam, mx.optimizer.SGLD, mx.optimizer.LARS, mx.optimizer.LBSGD)

# Gluon's Trainer sets them itself.
_OF_THE_TRAINER = ("param_idx2name", "sym", "param_dict", "begin_num_update", "rescale_grad")

# What other frameworks call them.
_ALIASES = {
    "weight_decay": "did you mean 'wd'?",
    "lr": "did you mean 'learning_rate'?",
    "eps": "did you mean 'epsilon'?",
    "betas": "did you mean 'beta1' and 'beta2'?",
    "rho": "did you mean 'gamma1'?",
    "alpha": "did you mean 'gamma1'?",
}


def optimizer_names() -> List[str]:
    """Names that MXNet's optimizer registry knows."""
    return sorted(mx.optimizer.Optimizer.opt_registry)


def get_trainer(net: Any, spec: TrainerSpec) -> "gluon.Trainer":
    """Return the Trainer that `spec` means, over all parameters of `net`.

    Args:
        net: An initialized block.
        spec: A Trainer, which is returned as it is; an optimizer's name; a pair of a name and the
            optimizer's arguments, like `("sgd", {"learning_rate": 0.1})`; or an MXNet optimizer.

    Raises:
        UnknownNameError: MXNet has no optimizer of this name.
        TypeError: `spec` has another form, or the optimizer refuses an argument.
        ValueError: A learning rate, `wd` or `momentum` is negative, or one of the optimizer's numbers is a text, NaN or
            infinite, also in a Trainer or an optimizer that exists.
        NotInitializedError: The net is not initialized.
        DeviceError: The Trainer was made for other devices than the net now lives on.
    """
    where = net_devices(net)
    if isinstance(spec, gluon.Trainer):
        if trainer_devices(spec) not in ([], where):
            raise DeviceError(
                f"the Trainer was made for {trainer_devices(spec)}, the net now lives on {where}: "
                "make the Trainer after the net is where it stays"
            )
        optimizer = spec.optimizer
        _check_numbers(f"the Trainer's {type(optimizer).__name__}", type(optimizer), vars(optimizer))
        return spec
    spec, arguments = split_spec(spec)
    if isinstance(spec, str):
        if spec.lower() not in mx.optimizer.Optimizer.opt_registry:
            raise unknown_name("optimizer", spec, optimizer_names())
    elif not isinstance(spec, mx.optimizer.Optimizer):
        raise TypeError(
            f"trainer: expected a Trainer, a name, (name, arguments) or an optimizer; received {spec!r:.100}"
        )
    # Updates on the devices let gradients be clipped after the one reduction. Where that lets the replicas
    # drift apart, the kvstore steps once for all of them (T24).
    kind = mx.optimizer.Optimizer.opt_registry[spec.lower()] if isinstance(spec, str) else type(spec)
    if isinstance(spec, str):
        _check_numbers(f"optimizer {spec!r}", kind, arguments)
    else:
        _check_numbers(kind.__name__, kind, vars(spec))
    on_kvstore = issubclass(kind, DRIFTING) and len(where) > 1
    try:
        return gluon.Trainer(net.collect_params(), spec, arguments, update_on_kvstore=on_kvstore)
    except TypeError as error:
        told = f"optimizer {spec!r} refuses its arguments {arguments}: {error}; {_hints(kind, arguments)}"
        raise TypeError(told) from error


def check_optimizer(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of an optimizer that MXNet knows by `name`.

    Raises:
        TypeError: The optimizer does not take an argument.
        ValueError: A number is negative, a text, NaN or infinite, as for `get_trainer`.
    """
    mx.optimizer.create(name, **arguments)
    _check_numbers(f"optimizer {name!r}", mx.optimizer.Optimizer.opt_registry[name.lower()], arguments)


def _check_numbers(where: str, kind: Any, values: Mapping[str, Any]) -> None:
    """Refuse a text or NaN in place of a number, and a negative learning rate, which trains uphill (T26).

    Args:
        where: What the message names.
        kind: The optimizer's class, whose defaults tell which arguments are numbers.
        values: Arguments of the class, or attributes of an optimizer, where `lr` is the learning rate.
    """
    never_negative = {"lr": "learning_rate", "learning_rate": "learning_rate", "wd": "wd", "momentum": "momentum"}
    for name, shown in never_negative.items():
        if name in values and (name in ("wd", "momentum") or values[name] is not None):
            check_number(f"{where}: {shown}", values[name])
    rate = getattr(values.get("lr_scheduler"), "base_lr", 0)
    check_number(f"{where}: base_lr of its lr_scheduler", rate)
    for name, default in optimizer_defaults(kind).items():
        value = values.get(name)
        number = isinstance(default, Real) and not isinstance(default, bool)
        if number and (isinstance(value, str) or (isinstance(value, Real) and not math.isfinite(value))):
            raise ValueError(f"{where}: {name}: expected a finite number; received {value!r}")


def optimizer_defaults(kind: Any) -> Dict[str, Any]:
    """Arguments of an optimizer's class and its bases, with their defaults."""
    found: Dict[str, Any] = {}
    for one in kind.__mro__[:-1]:
        for name, parameter in inspect.signature(one.__init__).parameters.items():
            found.setdefault(name, parameter.default)
    return found


def _hints(kind: Any, arguments: Mapping[str, Any]) -> str:
    """Name the arguments that an optimizer takes, and the nearest to each that it refuses."""
    known = sorted(set(optimizer_defaults(kind)) - {"self", "kwargs", *_OF_THE_TRAINER})
    guesses = {name: _ALIASES.get(name) or nearest(name, known) for name in arguments if name not in known}
    told = [f"{name}: {guess}" for name, guess in guesses.items() if guess]
    return "; ".join([f"accepted: {', '.join(known)}", *told])


def trainer_parameters(trainer: "gluon.Trainer") -> List[Any]:
    """Parameters that a Trainer was made over, in the order of its optimizer's indices."""
    return list(trainer._params)


def trainer_devices(trainer: "gluon.Trainer") -> List["mx.Context"]:
    """Devices on which the parameters lived when the Trainer was made; none for a Trainer over nothing."""
    return list(trainer._contexts or ())


def gradient_scale(trainer: "gluon.Trainer") -> float:
    """What the optimizer multiplies gradients by beside the number of samples."""
    return float(trainer._scale)


def kvstore_settings(trainer: "gluon.Trainer") -> Dict[str, Any]:
    """What the Trainer was made with: `kvstore` and `update_on_kvstore`."""
    return dict(trainer._kvstore_params)


def trainer_like(trainer: "gluon.Trainer", optimizer: "mx.optimizer.Optimizer") -> "gluon.Trainer":
    """Make a Trainer over the same parameters, with the same kvstore and another optimizer."""
    parameters, compression = trainer_parameters(trainer), trainer._compression_params
    return gluon.Trainer(parameters, optimizer, compression_params=compression, **kvstore_settings(trainer))


def has_kvstore(trainer: "gluon.Trainer") -> bool:
    """Whether the Trainer has decided about its kvstore, as its first step does."""
    return bool(trainer._kv_initialized)


def begin_kvstore(trainer: "gluon.Trainer") -> None:
    """Make the Trainer's kvstore, as its first step would."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()


def steps_on_kvstore(trainer: "gluon.Trainer") -> bool:
    """Whether the optimizer steps inside the kvstore, which was made."""
    return bool(trainer._kvstore and trainer._update_on_kvstore)


def shall_step_on_kvstore(trainer: "gluon.Trainer") -> bool:
    """Whether a Trainer on several devices is to step inside its kvstore, before it has made one."""
    asked = kvstore_settings(trainer)["update_on_kvstore"]
    return os.environ.get("MXNET_UPDATE_ON_KVSTORE", "1") != "0" if asked is None else bool(asked)


def refuse_remote(trainer: "gluon.Trainer") -> None:
    """Refuse a Trainer whose optimizer steps on servers: they got a copy, which no change reaches.

    Raises:
        ValueError: The kvstore is distributed and updates there.
    """
    kvstore = kvstore_settings(trainer)["kvstore"]
    kind = getattr(kvstore, "type", kvstore)
    if has_kvstore(trainer):
        remote = trainer._distributed and trainer._update_on_kvstore
    else:
        remote = shall_step_on_kvstore(trainer) and "dist" in str(kind)
    if remote:
        raise ValueError(
            f"the optimizer steps on the servers of kvstore {kind!r}, which got a copy of it without multipliers: no "
            "later change would reach them. Make the Trainer with update_on_kvstore=False"
        )


def updaters_of(trainer: "gluon.Trainer") -> List[Any]:
    """What holds the optimizer's states: the kvstore's one updater, or one for each device."""
    return [trainer._kvstore._updater] if steps_on_kvstore(trainer) else list(trainer._updaters)


def forget_states(trainer: "gluon.Trainer") -> None:
    """Let the optimizer make the states of all parameters anew at the next update."""
    for updater in _all_updaters(trainer):
        updater.states.clear()
        updater.states_synced.clear()


def lacks_states(trainer: "gluon.Trainer") -> bool:
    """Whether the optimizer keeps no state for a parameter that it has updated, like a momentum that was 0."""
    return any(state is None for updater in _all_updaters(trainer) for state in updater.states.values())


def _all_updaters(trainer: "gluon.Trainer") -> List[Any]:
    return [one for one in (*trainer._updaters, getattr(trainer._kvstore, "_updater", None)) if one is not None]


def set_update_counts(optimizer: Any, counts: Mapping[int, Mapping[int, int]]) -> None:
    """Let an optimizer have made so many updates of each parameter, by its index, on each device, by its number."""
    optimizer._all_index_update_counts = {device: dict(of_device) for device, of_device in counts.items()}
    optimizer._set_current_context(min(counts))


def update_counts(optimizer: Any, device: Optional[int] = None) -> Dict[int, int]:
    """Updates of each parameter, by its index, on the device of this number; None: on the one that stepped last."""
    every: Dict[int, Dict[int, int]] = optimizer._all_index_update_counts
    return optimizer._index_update_count if device is None else every.get(device, {})


def push_values(trainer: "gluon.Trainer", changed: Collection[int]) -> None:
    """Give the kvstore that steps here the values of parameters as they are now.

    It keeps weights of its own, and the next update would bring those back.

    Args:
        trainer: Whose kvstore it is.
        changed: Ids of the parameters.
    """
    store = trainer._kvstore
    if not steps_on_kvstore(trainer) or "dist" in store.type:
        return
    updater = store._updater
    store._set_updater(lambda key, pushed, stored: pushed.copyto(stored))  # assign in place of updating
    try:
        waiting = {id(parameter) for parameter in trainer._params_to_init}
        for number, parameter in enumerate(trainer_parameters(trainer)):
            if values_of(parameter) and id(parameter) in changed and id(parameter) not in waiting:
                store.push(number, parameter.list_data()[0])
    finally:
        store._set_updater(updater)


def finish_kvstore(trainer: "gluon.Trainer") -> None:
    """Give the kvstore its parameters, as the first step would: each replica gets the first one's values (T98)."""
    if trainer._params_to_init:
        trainer._init_params()
