"""Makes Trainers from the names of MXNet's optimizers, reads and writes their state, and restores weights."""

import inspect
import math
from numbers import Real
import os
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Tuple, Union
import warnings

from mxkit.core.arguments import check_number, split_spec
from mxkit.core.arrays import copied, copy_into, copy_to_cpu
from mxkit.core.blocks import distinct, net_devices
from mxkit.core.replicas import first_value, trainer_of, values_of
from mxkit.errors import DeviceError, TrapWarning, nearest, unknown_name
import mxnet as mx
from mxnet import gluon

TrainerSpec = Union[str, Tuple[str, Mapping[str, Any]], "mx.optimizer.Optimizer", "gluon.Trainer"]

# Nadam and LARS keep numbers that every replica advances; LBSGD's replicas share sums; SGLD draws noise per replica.
DRIFTING = (mx.optimizer.Nadam, mx.optimizer.SGLD, mx.optimizer.LARS, mx.optimizer.LBSGD)

# Gluon's Trainer sets these itself.
_OF_THE_TRAINER = ("param_idx2name", "sym", "param_dict", "begin_num_update", "rescale_grad")


def optimizer_names() -> List[str]:
    """Names in MXNet's registry of optimizers."""
    return sorted(mx.optimizer.Optimizer.opt_registry)


def get_trainer(net: Any, spec: TrainerSpec) -> "gluon.Trainer":
    """Return the Trainer that `spec` describes, with all parameters of `net`.

    Args:
        net: An initialized block.
        spec: A Trainer, which is returned as it is; the name of an optimizer; a name with arguments, like
            `("sgd", {"learning_rate": 0.1})`; or an MXNet optimizer.

    Raises:
        UnknownNameError: MXNet has no optimizer of this name.
        TypeError: `spec` has another form, or the optimizer refuses an argument.
        ValueError: The net has no parameters. Or a learning rate, `wd` or `momentum` is negative, or a number of the
            optimizer is a text, NaN or infinite, also in an existing Trainer or optimizer.
        NotInitializedError: The net is not initialized.
        DeviceError: The Trainer was made for other devices than those of the net.

    Warns:
        TrapWarning: An MXNet optimizer was used by another Trainer (T244).
    """
    devices = net_devices(net)
    if isinstance(spec, gluon.Trainer):
        if trainer_devices(spec) not in ([], devices):
            raise DeviceError(
                f"the Trainer was made for {trainer_devices(spec)}, the net now lives on {devices}: "
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
            f"trainer: expected one Trainer, a name, (name, arguments) or an optimizer; received {spec!r:.100}"
        )
    kind = mx.optimizer.Optimizer.opt_registry[spec.lower()] if isinstance(spec, str) else type(spec)
    if isinstance(spec, str):
        _check_numbers(f"optimizer {spec!r}", kind, arguments)
    else:
        _check_numbers(kind.__name__, kind, vars(spec))
        _warn_of_used_optimizer(spec)
    # Gradients can be clipped after the reduction only if the optimizer steps on the devices. An optimizer whose
    # replicas would drift apart steps in the kvstore, once for all of them (T24).
    on_kvstore = issubclass(kind, DRIFTING) and len(devices) > 1
    parameters = net.collect_params()
    if not parameters.keys():
        raise ValueError(
            f"the net, a {type(net).__name__}, has no parameters to train: net.collect_params() is empty. Layers must "
            "be attributes of the block, not items of a list, and own parameters come from self.params.get(...)"
        )
    try:
        return gluon.Trainer(parameters, spec, arguments, update_on_kvstore=on_kvstore)
    except TypeError as error:
        problem = f"optimizer {spec!r} refuses its arguments {arguments}: {error}"
        raise TypeError(f"{problem}; {_hints(kind, arguments)}") from error


def _warn_of_used_optimizer(optimizer: Any) -> None:
    if optimizer.num_update > optimizer.begin_num_update:
        kind = type(optimizer).__name__
        warnings.warn(
            f"the optimizer {kind} has made {optimizer.num_update} updates with another Trainer, and continues its "
            f"count: schedules and Adam's correction of its means follow the count, but the means start at 0. Make a "
            f"new one for each training, like ({kind.lower()!r}, {{...}}), or pass the Trainer (T244)",
            TrapWarning,
            stacklevel=4,
        )


def check_optimizer(name: str, arguments: Mapping[str, Any]) -> None:
    """Check arguments of the MXNet optimizer `name`.

    Raises:
        TypeError: The optimizer does not take an argument.
        ValueError: A number is negative, a text, NaN or infinite, as for `get_trainer`.
    """
    mx.optimizer.create(name, **arguments)
    _check_numbers(f"optimizer {name!r}", mx.optimizer.Optimizer.opt_registry[name.lower()], arguments)


def _check_numbers(where: str, kind: Any, values: Mapping[str, Any]) -> None:
    """Refuse a text or NaN in place of a number, and a negative learning rate, which increases the loss (T26).

    Args:
        where: Beginning of the message.
        kind: The optimizer's class; its defaults decide which arguments are numbers.
        values: Arguments of the class, or attributes of an optimizer, which call the learning rate `lr`.
    """
    never_negative = {"lr": "learning_rate", "learning_rate": "learning_rate", "wd": "wd", "momentum": "momentum"}
    for name, shown in never_negative.items():
        if name in values and (name in ("wd", "momentum") or values[name] is not None):
            check_number(f"{where}: {shown}", values[name])
    check_number(f"{where}: base_lr of its lr_scheduler", getattr(values.get("lr_scheduler"), "base_lr", 0))
    for name, default in optimizer_defaults(kind).items():
        value = values.get(name)
        number = isinstance(default, Real) and not isinstance(default, bool)
        if number and name in values and value is None:  # for MXNet another number than the default
            raise ValueError(f"{where}: {name}: expected a number; received None. Leave it out for {default!r}")
        if number and (isinstance(value, str) or (isinstance(value, Real) and not math.isfinite(value))):
            raise ValueError(f"{where}: {name}: expected a finite number; received {value!r}")


def optimizer_defaults(kind: Any) -> Dict[str, Any]:
    """Arguments of an optimizer's class and its bases, with their defaults."""
    defaults: Dict[str, Any] = {}
    for base in kind.__mro__[:-1]:
        for name, parameter in inspect.signature(base.__init__).parameters.items():
            defaults.setdefault(name, parameter.default)
    return defaults


def _hints(kind: Any, arguments: Mapping[str, Any]) -> str:
    """List the arguments of an optimizer, and the nearest one for each unknown argument."""
    known = sorted(set(optimizer_defaults(kind)) - {"self", "kwargs", *_OF_THE_TRAINER})
    guesses = {name: nearest(name, known) for name in arguments if name not in known}
    hints = [f"{name}: {guess}" for name, guess in guesses.items() if guess]
    return "; ".join([f"accepted: {', '.join(known)}", *hints])


def trainer_parameters(trainer: "gluon.Trainer") -> List[Any]:
    """Parameters of a Trainer, in the order of its optimizer's indices."""
    return list(trainer._params)


def trainer_devices(trainer: "gluon.Trainer") -> List["mx.Context"]:
    """Devices of the parameters when the Trainer was made; none for a Trainer without parameters."""
    return list(trainer._contexts or ())


def gradient_scale(trainer: "gluon.Trainer") -> float:
    """Factor of the gradients beside 1 / number of samples."""
    return float(trainer._scale)


def kvstore_settings(trainer: "gluon.Trainer") -> Dict[str, Any]:
    """The Trainer's arguments `kvstore` and `update_on_kvstore`."""
    return dict(trainer._kvstore_params)


def trainer_like(trainer: "gluon.Trainer", optimizer: "mx.optimizer.Optimizer") -> "gluon.Trainer":
    """Make a Trainer with the same parameters, the same kvstore and another optimizer."""
    parameters, compression = trainer_parameters(trainer), trainer._compression_params
    return gluon.Trainer(parameters, optimizer, compression_params=compression, **kvstore_settings(trainer))


def compression_of(trainer: "gluon.Trainer") -> Any:
    """The Trainer's argument `compression_params`; None without."""
    return trainer._compression_params


def has_kvstore(trainer: "gluon.Trainer") -> bool:
    """Whether the Trainer has made its kvstore, as its first step does."""
    return bool(trainer._kv_initialized)


def begin_kvstore(trainer: "gluon.Trainer") -> None:
    """Make the Trainer's kvstore, as its first step would."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()


def steps_on_kvstore(trainer: "gluon.Trainer") -> bool:
    """Whether the optimizer steps inside the Trainer's kvstore; requires that the kvstore was made."""
    return bool(trainer._kvstore and trainer._update_on_kvstore)


def shall_step_on_kvstore(trainer: "gluon.Trainer") -> bool:
    """Whether a Trainer on several devices will step inside its kvstore, before the kvstore was made."""
    setting = kvstore_settings(trainer)["update_on_kvstore"]
    return os.environ.get("MXNET_UPDATE_ON_KVSTORE", "1") != "0" if setting is None else bool(setting)


def refuse_remote(trainer: "gluon.Trainer") -> None:
    """Refuse a Trainer whose optimizer steps on servers: changes do not reach the servers' copy.

    Raises:
        ValueError: The kvstore is distributed and applies the updates.
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
    """Holders of the optimizer's states: the kvstore's updater, or one for each device."""
    return [trainer._kvstore._updater] if steps_on_kvstore(trainer) else list(trainer._updaters)


def forget_states(trainer: "gluon.Trainer") -> None:
    """Drop the states of all parameters; the optimizer makes new ones at the next update."""
    for updater in _all_updaters(trainer):
        updater.states.clear()
        updater.states_synced.clear()


def lacks_states(trainer: "gluon.Trainer") -> bool:
    """Whether an updated parameter has no state in the optimizer, for example because the momentum was 0."""
    return any(state is None for updater in _all_updaters(trainer) for state in updater.states.values())


def _all_updaters(trainer: "gluon.Trainer") -> List[Any]:
    updaters = (*trainer._updaters, getattr(trainer._kvstore, "_updater", None))
    return [updater for updater in updaters if updater is not None]


def set_update_counts(optimizer: Any, counts: Mapping[int, Mapping[int, int]]) -> None:
    """Set an optimizer's numbers of updates: by number of the device, then by index of the parameter."""
    optimizer._all_index_update_counts = {device: dict(of_device) for device, of_device in counts.items()}
    optimizer._set_current_context(min(counts))


def update_counts(optimizer: Any, device: Optional[int] = None) -> Dict[int, int]:
    """Updates of each parameter, by its index, on the device of this number; None is the device of the last step."""
    every: Dict[int, Dict[int, int]] = optimizer._all_index_update_counts
    return optimizer._index_update_count if device is None else every.get(device, {})


def push_values(trainer: "gluon.Trainer", changed: Collection[int]) -> None:
    """Copy the current values of parameters to a local kvstore that steps.

    The kvstore has its own copy of the weights, and the next update would restore that copy.

    Args:
        trainer: The owner of the kvstore.
        changed: Ids of the changed parameters.
    """
    store = trainer._kvstore
    if not steps_on_kvstore(trainer) or "dist" in store.type:
        return
    updater = store._updater
    store._set_updater(lambda key, pushed, stored: pushed.copyto(stored))  # assigns instead of an update
    try:
        waiting = {id(parameter) for parameter in trainer._params_to_init}
        for number, parameter in enumerate(trainer_parameters(trainer)):
            if values_of(parameter) and id(parameter) in changed and id(parameter) not in waiting:
                store.push(number, first_value(parameter))
    finally:
        store._set_updater(updater)


def watch_gradients(trainer: "gluon.Trainer", seen: Callable[[Any, Any], None]) -> None:
    """Call `seen(parameter, gradient)` before each update, with averages of the first device, NumPy, after clipping.

    Side effects:
        The Trainer keeps the call. The optimizer does not step inside its kvstore, where nothing is seen.
    """
    step = trainer._update

    def update(ignore_stale_grad: bool = False) -> None:
        for parameter in trainer._params:
            if parameter.grad_req != "null":
                seen(parameter, parameter.list_grad()[0].asnumpy() * trainer._optimizer.rescale_grad)
        step(ignore_stale_grad)

    trainer._update = update


def finish_kvstore(trainer: "gluon.Trainer") -> None:
    """Pass the parameters to the kvstore, as the first step would: each replica gets the first one's values (T98)."""
    if trainer._params_to_init:
        trainer._init_params()


class HeldWeights:
    """Copies of parameters' values on every device; `put_back` or the end of a `with` block restores them.

    Args:
        parameters: Parameters by path. Parameters without values are ignored; a shared one is copied once.
        arrays: Earlier copies by path. None copies the current values, without a wait.
        on_host: Copy to the CPU. False copies on each device.

    Attributes:
        arrays: The copies by path, one for each device.
    """

    def __init__(
        self, parameters: Mapping[str, Any], arrays: Optional[Mapping[str, List[Any]]] = None, *, on_host: bool = False
    ) -> None:
        if arrays is not None:
            chosen = {path: parameter for path, parameter in parameters.items() if path in arrays}
        else:
            chosen = distinct(parameters)
        self._parameters = {path: parameter for path, parameter in chosen.items() if values_of(parameter) is not None}
        if arrays is None:
            copy = copy_to_cpu if on_host else copied
            arrays = {path: list(map(copy, values_of(parameter) or ())) for path, parameter in self._parameters.items()}
        self.arrays: Dict[str, List[Any]] = dict(arrays)

    def put_back(self, trainer: Any = None) -> None:
        """Restore the values in the parameters and in the kvstores of the parameters' Trainers.

        Args:
            trainer: Another Trainer with a kvstore to restore.
        """
        for path, parameter in self._parameters.items():
            for array, copy in zip(values_of(parameter) or (), self.arrays[path]):
                copy_into(copy, array)
        trainers = {id(one): one for one in [trainer, *(trainer_of(one) for one in self._parameters.values())] if one}
        for one in trainers.values():
            push_values(one, {id(parameter) for parameter in self._parameters.values()})

    def __enter__(self) -> "HeldWeights":
        return self

    def __exit__(self, *error: Any) -> None:
        self.put_back()
