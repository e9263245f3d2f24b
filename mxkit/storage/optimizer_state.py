"""The state of an optimizer as named arrays and plain JSON; nothing is pickled (T50)."""

import copy
from numbers import Integral, Real
from pathlib import Path
import pickle
from reprlib import repr as brief
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple, Union

from mxkit.core.arrays import copy_into, copy_to_cpu, switches
from mxkit.core.blocks import first_paths, is_numpy_net, parameters_by_path
from mxkit.core.replicas import values_of
from mxkit.core.trainers import (
    begin_kvstore,
    refuse_remote,
    set_update_counts,
    steps_on_kvstore,
    trainer_devices,
    trainer_parameters,
    update_counts,
    updaters_of,
)
from mxkit.errors import CheckpointError, NotInitializedError, nearest
import mxnet as mx
from mxnet import gluon
import numpy as np

# The script sets these: they say how the optimizer works. The Trainer sets rescale_grad at every step.
_SCRIPTS = {"aggregate_num", "allow_np_array", "bias_correction", "centered", "lazy_update", "momentum_correction"}
_SCRIPTS |= {"lr_scheduler", "multi_precision", "rescale_grad"}
# MXNet's schedulers only read these. The script sets them too: a resumed run may have a longer schedule.
_SCRIPTS_CURVE = {"base_lr_orig", "factor", "final_lr", "max_steps", "max_update", "power", "step", "stop_factor_lr"}
_SCRIPTS_CURVE |= {"warmup_begin_lr", "warmup_final_lr", "warmup_steps"}


def optimizer_state(net: Any, trainer: "gluon.Trainer") -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Copy everything that another process needs to continue `trainer`'s optimizer, bit for bit (T60b).

    The multipliers of parameters are not included. Of a subclass, the states and the attributes that are numbers
    are included; dicts, lists and arrays in other attributes are not.

    Args:
        net: The block whose structural paths name the arrays: Gluon's own order of parameters swaps layers
            (T60a). The Trainer may hold a part of its parameters. A shared parameter has the name of its first
            path; a parameter outside the net has the name "trainer." and its Gluon name.
        trainer: It may step on the devices or on a local kvstore.

    Returns:
        Arrays and JSON values. The arrays are copies on the CPU. Their names are `path:slot`; a slot is the
        position in the optimizer's state of a parameter, like "0" or "1.0". States of the second and later
        devices are included if their bits differ from the first device's, as `path:slot@1`. A parameter
        without a state has no array.

    Raises:
        CheckpointError: A distributed kvstore holds the states on its servers, a state is not made of arrays, or
            LBSGD has a `batch_scale` above 1.

    Side effects:
        The copies are queued. Only the comparison of replicas waits for the device: several devices, no kvstore.

    >>> net = mxkit.models.mlp(3, hidden=[4]); mxkit.initialize(net)
    >>> trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    >>> history = mxkit.fit(net, [(np.ones((2, 5)), np.zeros(2))], loss="softmax_ce", trainer=trainer, epochs=2,
    ...                     progress=False)
    >>> arrays, state = optimizer_state(net, trainer)
    >>> sorted(arrays)[:4], state["replicas"][0]["updates"]["1.bias"]
    (['1.bias:0', '1.bias:1', '1.weight:0', '1.weight:1'], 2)
    """
    optimizer, paths, updaters = trainer.optimizer, _paths(net, trainer), local_updaters(trainer)
    arrays: Dict[str, Any] = {}
    replicas: List[Dict[str, Any]] = []
    for device, (updater, device_ids) in enumerate(zip(updaters, _device_ids(trainer))):
        layouts = {}
        for index, held in updater.states.items():
            path, leaves = paths[index], {}  # type: str, Dict[str, Any]
            layout = _layout(held, f"{type(optimizer).__name__} keeps for {path!r}", leaves)
            if layout is not None:
                layouts[path] = layout
            for slot, array in leaves.items():
                first = arrays.get(_name(path, slot))
                if first is None or first.asnumpy().tobytes() != array.asnumpy().tobytes():
                    arrays[_name(path, slot, device)] = copy_to_cpu(array)
        counts = [update_counts(optimizer, number) for number in device_ids]
        updates = {path: max(count.get(index, -1) for count in counts) for index, path in enumerate(paths)}
        replicas.append({"updates": {path: n for path, n in updates.items() if n >= 0}, "slots": layouts})
    scheduler = optimizer.lr_scheduler
    curve = scheduler and {"name": type(scheduler).__name__, "numbers": _numbers(scheduler, _SCRIPTS_CURVE)}
    state = {
        "optimizer": type(optimizer).__name__,
        "numbers": optimizer_numbers(optimizer),
        "scheduler": curve,
        "replicas": replicas,
    }
    return arrays, state


def load_optimizer_state(
    net: Any, trainer: "gluon.Trainer", arrays: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Let `trainer` continue from a result of `optimizer_state`.

    Load the net's weights first: Gluon drops the states of a kvstore if weights are set after a step.

    Args:
        net: A block with the same structural paths.
        trainer: New or used, with an optimizer of the same class. The optimizer stays the same object (T50);
            its numbers (learning rate, weight decay, momentum, counters ...) become those of the stopped run.
            Its other attributes stay, and so does the length of MXNet's schedulers. If the number of devices
            differs and the stored replicas are equal, each device gets the states of the first.
        arrays: By name, as `mx.nd.load` returns them.
        state: As `json.loads` returns it.

    Raises:
        NotInitializedError: A parameter has no value yet.
        CheckpointError: Names, shapes, dtypes or settings do not fit; the text lists them all. The optimizer and
            its states do not change.

    Side effects:
        Makes the Trainer's kvstore, as its first step would. Removes states that are not stored, so that they
        start as in the stopped run.
    """
    _check_form(state)
    optimizer, paths = trainer.optimizer, _paths(net, trainer)
    without = [path for path, parameter in zip(paths, trainer_parameters(trainer)) if values_of(parameter) is None]
    if without:
        raise NotInitializedError(f"parameter {without[0]!r} has no value yet. Load the net's weights first")
    stored = _StoredStates(arrays, _setting_problems(optimizer, state))
    updaters = local_updaters(trainer, begin=True)
    replicas = stored.replicas(state["replicas"], paths, len(updaters))
    trial = copy.copy(optimizer)
    trial.param_dict = optimizer.param_dict
    vars(trial).update(state["numbers"])
    with switches(is_numpy_net(net)):
        states = [stored.states(trial, trainer, paths, replica["slots"], i) for i, replica in enumerate(replicas)]
    stored.refuse_unused()
    vars(optimizer).update(state["numbers"])
    if state["scheduler"]:
        vars(optimizer.lr_scheduler).update(state["scheduler"]["numbers"])
    counts = {}
    for updater, restored, replica, device_ids in zip(updaters, states, replicas, _device_ids(trainer)):
        updater.states = restored
        # False: the next update moves the states to the device of the weight, which only the kvstore knows
        updater.states_synced = dict.fromkeys(restored, False)
        updates = {index: replica["updates"][path] for index, path in enumerate(paths) if path in replica["updates"]}
        counts.update(dict.fromkeys(device_ids, updates))
    set_update_counts(optimizer, counts)
    if isinstance(optimizer, mx.optimizer.LBSGD):  # with batch_scale=1 each sum is 0 after its update
        optimizer.cumgrads = {i: {"cum_grad": 0, "num_cums": n} for each in counts.values() for i, n in each.items()}


class _StoredStates:
    """Stored arrays, the names that were used, and a line for each problem."""

    def __init__(self, arrays: Mapping[str, Any], problems: List[str]) -> None:
        # `nd.load` returns an empty list for an empty dict
        if not isinstance(arrays, Mapping) and not (isinstance(arrays, list) and not arrays):
            raise CheckpointError(f"the optimizer's arrays: expected NDArrays by name; received {brief(arrays)}")
        self.arrays, self.problems = dict(arrays), problems
        self.used: Set[str] = set()

    def refuse(self) -> None:
        if self.problems:
            text = "the optimizer's state does not fit the trainer, whose optimizer is left as it was:"
            raise CheckpointError("\n  ".join([text, *self.problems]))

    def refuse_unused(self) -> None:
        for name in self.arrays:
            if name not in self.used:
                self.problems.append(f"not a state of the trainer: {name} {nearest(name, self.used)}".rstrip())
        self.refuse()

    def replicas(self, stored: List[Mapping[str, Any]], paths: Sequence[str], number: int) -> List[Mapping[str, Any]]:
        """Return one record for each of the trainer's updaters, after a check of all paths."""
        known = (path for replica in stored for part in ("updates", "slots") for path in replica[part])
        for path in dict.fromkeys(known):
            if path not in paths:
                self.problems.append(f"not a parameter of the trainer: {path} {nearest(path, paths)}".rstrip())
        differ = [name for name in self.arrays if "@" in name.rpartition(":")[2]]
        if len(stored) != number and (differ or any(replica != stored[0] for replica in stored)):
            self.problems.append(
                f"the states of {len(stored)} devices differ in the checkpoint, and the trainer keeps {number}: resume "
                f"on {len(stored)} devices with update_on_kvstore=False"
            )
        self.refuse()
        return stored if len(stored) == number else [stored[0]] * number

    def states(
        self, trial: Any, trainer: "gluon.Trainer", paths: Sequence[str], layouts: Mapping[str, Any], device: int
    ) -> Dict[int, Any]:
        """Let the optimizer make the states of one updater, and fill them; the keys are indices of parameters."""
        states: Dict[int, Any] = {}
        for index, path in enumerate(paths):
            if path not in layouts:
                continue
            weight = (values_of(trainer_parameters(trainer)[index]) or [])[device]  # data() refuses sparse weights
            empty = trial.create_state_multi_precision(index, weight)
            layout = _layout(empty, f"{type(trial).__name__} keeps for {path!r}", {})
            if _fits(layout, layouts[path]):
                half = trial.multi_precision and weight.dtype == np.float16
                blank = mx.nd.zeros(weight.shape, weight.ctx, "float32" if half else weight.dtype)
                states[index] = self._filled(empty, layouts[path], path, device, blank)
            else:
                self.problems.append(
                    f"another layout: {path} has {brief(layouts[path])} in the checkpoint, {brief(layout)} with the "
                    f"trainer's {type(trial).__name__}"
                )
        return states

    def _filled(self, empty: Any, layout: Any, path: str, device: int, blank: Any) -> Any:
        if isinstance(layout, list):
            parts = [self._filled(part, inner, path, device, blank) for part, inner in zip(empty, layout)]
            return parts if isinstance(empty, list) else tuple(parts)
        if layout is None:
            return None
        # A run that set its momentum to 0 stored a state; the optimizer makes none now.
        target = blank.copy() if empty is None else empty
        first, name = _name(path, layout), _name(path, layout, device)
        name = name if name in self.arrays else first
        self.used.update([first, name])
        if name not in self.arrays:
            self.problems.append(f"missing in the checkpoint: {name} {target.shape}")
        elif _form(self.arrays[name]) != _form(target):
            self.problems.append(f"not alike: {name} is {_form(self.arrays[name])}, expected {_form(target)}")
        else:
            copy_into(self.arrays[name], target)
        return target


def _paths(net: Any, trainer: "gluon.Trainer") -> List[str]:
    first = first_paths(parameters_by_path(net))
    return [first.get(id(parameter), f"trainer.{parameter.name}") for parameter in trainer_parameters(trainer)]


def local_updaters(trainer: "gluon.Trainer", begin: bool = False) -> List[Any]:
    """Return the holders of the states: one updater of the kvstore, or one for each device.

    Args:
        trainer: Any.
        begin: Make the Trainer's kvstore first.

    Raises:
        CheckpointError: They are on the servers of a distributed kvstore, or the optimizer keeps sums of gradients.
    """
    try:
        refuse_remote(trainer)
    except ValueError as error:
        raise CheckpointError(f"the optimizer's state is out of reach: {error}") from error
    if isinstance(trainer.optimizer, mx.optimizer.LBSGD) and trainer.optimizer.batch_scale != 1:
        text = "LBSGD with batch_scale above 1 keeps sums of gradients, which checkpoints do not hold"
        raise CheckpointError(f"{text}: accumulate with fit(accumulate=...)")
    if begin:
        begin_kvstore(trainer)
    return updaters_of(trainer)


def _device_ids(trainer: "gluon.Trainer") -> List[List[int]]:
    """List the device numbers that hold each updater's counts: a kvstore spreads its keys over the devices."""
    each = [context.device_id for context in trainer_devices(trainer)]
    return [sorted({0, *each})] if steps_on_kvstore(trainer) else [[number] for number in each]


def _name(path: str, slot: str, device: int = 0) -> str:
    return f"{path}:{slot}@{device}" if device else f"{path}:{slot}"


def _layout(state: Any, what: str, leaves: Dict[str, Any], slot: str = "") -> Any:
    """Describe a state as JSON: an array is its slot, a tuple a list, None null. Its arrays are added to `leaves`."""
    if state is None:
        return None
    if isinstance(state, mx.nd.NDArray):
        leaves[slot or "0"] = state
        return slot or "0"
    if isinstance(state, (tuple, list)):
        return [_layout(part, what, leaves, f"{slot}.{i}".lstrip(".")) for i, part in enumerate(state)]
    raise CheckpointError(f"{what} {brief(state)}: expected NDArrays, None, or tuples and lists of them")


def _fits(own: Any, stored: Any) -> bool:
    if isinstance(own, list) and isinstance(stored, list) and len(own) == len(stored):
        return all(map(_fits, own, stored))
    return bool(own == stored or (own is None and isinstance(stored, str)))


def _form(array: Any) -> Any:
    is_array = isinstance(array, mx.nd.NDArray)
    return (array.shape, getattr(array.dtype, "__name__", array.dtype), array.stype) if is_array else brief(array)


def optimizer_numbers(optimizer: Any) -> Dict[str, Any]:
    """Numbers of an optimizer that `load_optimizer_state` replaces: learning rate `lr`, weight decay, momentum ..."""
    return _numbers(optimizer, _SCRIPTS)


def _numbers(owner: Any, scripts: Set[str]) -> Dict[str, Any]:
    numbers: Dict[str, Any] = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        if name not in scripts and (value is None or isinstance(value, (bool, int, float))):
            numbers[name] = value
        elif name not in scripts and isinstance(value, Real):  # NumPy's, which json refuses
            numbers[name] = int(value) if isinstance(value, Integral) else float(value)
    return numbers


def _setting_problems(optimizer: Any, state: Mapping[str, Any]) -> List[str]:
    ours, theirs = type(optimizer).__name__, state["optimizer"]
    if ours != theirs:
        return [f"another optimizer: {theirs} in the checkpoint, {ours} in the trainer. Make the Trainer with {theirs}"]
    scheduler, stored = optimizer.lr_scheduler, state["scheduler"]
    ours, theirs = scheduler and type(scheduler).__name__, stored and stored["name"]
    if ours != theirs:
        return [f"another lr_scheduler: {theirs} in the checkpoint, {ours} in the trainer's optimizer"]
    problems = _number_problems(optimizer, state["numbers"], _SCRIPTS)
    return problems + (_number_problems(scheduler, stored["numbers"], _SCRIPTS_CURVE) if stored else [])


def _number_problems(owner: Any, numbers: Mapping[str, Any], scripts: Set[str]) -> List[str]:
    problems = []
    for name, value in numbers.items():
        # A subclass may set an attribute only during a run. A method's name is not a number.
        current = getattr(owner, "__dict__", {}).get(name, getattr(type(owner), name, None))
        alike = isinstance(current, Real) and isinstance(current, bool) == isinstance(value, bool)
        fits = current is None or (name.startswith("clip") if value is None else alike)
        if name in scripts or not fits or (name.endswith("num_update") and not isinstance(value, int)):
            problems.append(f"{type(owner).__name__} has {name}={brief(current)}, the checkpoint {value!r}")
    return problems


def _check_form(state: Any) -> None:
    """Refuse JSON that `optimizer_state` cannot have returned; layouts are compared with real states later."""
    try:
        curve, replicas = state["scheduler"], state["replicas"]
        numbers = [*state["numbers"].values(), *(curve["numbers"].values() if curve else ())]
        counts = [number for replica in replicas for number in replica["updates"].values()]
        right = bool(replicas) and all(isinstance(replica["slots"], dict) for replica in replicas)
        right = right and all(type(number) is int and number >= 0 for number in counts)
        right = right and all(number is None or isinstance(number, (bool, int, float)) for number in numbers)
        if not right or "optimizer" not in state:
            raise ValueError("a part has another type")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the optimizer's state is not of the form of optimizer_state: {brief(state)}") from error


def load_trainer_states(trainer: Any, path: Union[str, Path], *, trusted: bool = False) -> None:
    """Read a file of `trainer.save_states` once, to continue with mxkit's checkpoints.

    The file is a pickle: reading it runs any code that its writer put there, with your rights. `save_checkpoint`
    stores the same states without pickle.

    MXNet reads a file only under the switch under which it was written, on or off (T157); this function reads both.

    Args:
        trainer: A Trainer with the same parameters in the same order as the one that wrote the file: MXNet matches
            by position, in the order of names, where dense10 comes before dense9 (T60a). Load the net's parameters
            first.
        path: The file.
        trusted: True if you trust the writer of the file.

    Raises:
        ValueError: `trusted` is not True; nothing was read.
        CheckpointError: The file is another pickle, or holds another class of optimizer; nothing changes.
        OSError: The file cannot be read.

    Side effects:
        Sets the states and the counts of updates. The optimizer stays the same object with its own learning rate and
        weight decay, which `trainer.load_states` would replace (T50).
    """
    if trusted is not True:
        text = f"{path} is a pickle: reading it runs any code that its writer put there"
        raise ValueError(f"{text}. If you know the writer, pass trusted=True, then use save_checkpoint")
    content = Path(path).read_bytes()
    try:
        numpy_shapes, (states, stored) = _unpickled(content)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no file of trainer.save_states: {error}") from error
    optimizer = trainer.optimizer
    if type(stored) is not type(optimizer) or not isinstance(states, dict):
        names = type(stored).__name__, type(optimizer).__name__
        raise CheckpointError("{} holds the states of {}; the Trainer's optimizer is {}".format(path, *names))
    count = len(trainer_parameters(trainer))
    unknown = sorted(index for index in states if index not in range(count))
    if unknown:
        raise CheckpointError(f"{path} holds states of parameters {unknown[:5]}; the Trainer has {count} parameters")
    for updater in local_updaters(trainer, begin=True):
        with switches(numpy_shapes):
            updater.set_states(pickle.dumps(states))
    optimizer.num_update, optimizer.begin_num_update = stored.num_update, stored.begin_num_update
    devices = {0, *(context.device_id for context in trainer_devices(trainer))}
    set_update_counts(optimizer, dict.fromkeys(devices, update_counts(stored, 0) or update_counts(stored)))


def _unpickled(content: bytes) -> Tuple[bool, Any]:
    """Return whether the file was written under `npx.set_np()`, and its content."""
    try:
        with switches(False):
            return False, pickle.loads(content)
    except mx.MXNetError as error:
        if "saved in np shape semantics" not in str(error):
            raise
    with switches(True):
        return True, pickle.loads(content)
