"""What an optimizer carries from update to update, as named arrays and plain JSON; nothing is pickled (T50)."""

import copy
from numbers import Integral, Real
from reprlib import repr as brief
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from mxkit.core.blocks import first_paths, parameters_by_path
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

# How an optimizer works is the script's matter; rescale_grad is set by the Trainer at every step.
_SCRIPTS = {"aggregate_num", "allow_np_array", "bias_correction", "centered", "lazy_update", "momentum_correction"}
_SCRIPTS |= {"lr_scheduler", "multi_precision", "rescale_grad"}
# What MXNet's schedulers only read stays the script's too: a run may go on with a longer schedule.
_SCRIPTS_CURVE = {"base_lr_orig", "factor", "final_lr", "max_steps", "max_update", "power", "step", "stop_factor_lr"}
_SCRIPTS_CURVE |= {"warmup_begin_lr", "warmup_final_lr", "warmup_steps"}
_SUM = "cumulated"


def optimizer_state(net: Any, trainer: "gluon.Trainer") -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Copy what `trainer`'s optimizer needs to go on, bit for bit, in another process (T60b).

    Multipliers of parameters, and what a subclass keeps outside its states in dicts, lists or arrays of its
    own, are not part of it. LBSGD with a `batch_scale` above 1 cannot go on exactly from after its very first
    update: MXNet then counts the second gradient twice, a resumed run once.

    Args:
        net: The block whose structural paths name the arrays; Gluon's own order of parameters swaps layers
            (T60a). The Trainer may cover a part of it. A shared parameter goes by its first path, one that is
            not in the net by "trainer." and its Gluon name.
        trainer: Wherever it steps: on the devices, or on a local kvstore.

    Returns:
        Arrays and JSON values. Arrays are new ones on the CPU, named `path:slot`; a slot is the place in what
        the optimizer keeps for a parameter, "0" or "1.0". States of the second device and later ones are
        there only where their bits differ from the first's, as `path:slot@1`. A parameter without a state
        has none.

    Raises:
        CheckpointError: States live on the servers of a distributed kvstore, or hold other things than arrays.

    Side effects:
        Copies are queued. It waits for the device only to compare replicas: several devices, no kvstore.

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
    for device, (updater, ids) in enumerate(zip(updaters, _device_ids(trainer))):
        layouts = {}
        for index, kept in updater.states.items():
            path, leaves = paths[index], {}  # type: str, Dict[str, Any]
            layout = _layout(kept, f"{type(optimizer).__name__} keeps for {path!r}", leaves)
            if layout is not None:
                layouts[path] = layout
            for slot, array in leaves.items():
                first = arrays.get(_name(path, slot))
                if first is None or first.asnumpy().tobytes() != array.asnumpy().tobytes():
                    # copyto, because as_in_context gives the array itself where it is on the CPU already
                    arrays[_name(path, slot, device)] = array.copyto(mx.cpu())
        replicas.append({"updates": _counts(optimizer, paths, ids), "slots": layouts})
    scheduler = optimizer.lr_scheduler
    curve = scheduler and {"name": type(scheduler).__name__, "numbers": _numbers(scheduler, _SCRIPTS_CURVE)}
    state = {
        "optimizer": type(optimizer).__name__,
        "numbers": _numbers(optimizer, _SCRIPTS),
        "scheduler": curve,
        "replicas": replicas,
        _SUM: _cumulated(trainer, paths, arrays),
    }
    return arrays, state


def load_optimizer_state(
    net: Any, trainer: "gluon.Trainer", arrays: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Let `trainer` go on where the one stood that `optimizer_state` was asked about.

    Load the net's weights before: Gluon throws the states of a kvstore away when weights are set after a step.

    Args:
        net: A block with the same structural paths.
        trainer: New or used, with an optimizer of the same class. The optimizer stays the same object (T50):
            its numbers (learning rate, weight decay, momentum, counters ...) become those of the stopped run.
            What a number cannot say stays, and so does the length of MXNet's schedulers. On another number of
            devices each gets the states of the first, if the stored replicas were equal.
        arrays: By name, as `mx.nd.load` gives them.
        state: As `json.loads` gives it.

    Raises:
        NotInitializedError: A parameter has no value yet.
        CheckpointError: Lists all names, shapes, dtypes and settings that do not fit. The optimizer and its
            states are left as they were.

    Side effects:
        Makes the Trainer's kvstore, as its first step would. States that are not stored are removed, so that
        they begin as in the stopped run.
    """
    _check_form(state)
    optimizer, paths = trainer.optimizer, _paths(net, trainer)
    without = [path for path, parameter in zip(paths, trainer_parameters(trainer)) if values_of(parameter) is None]
    if without:
        raise NotInitializedError(
            f"load_optimizer_state: parameter {without[0]!r} has no value yet. Initialize the net and run it once on a "
            "batch, or load its weights first"
        )
    file = _File(arrays, _setting_problems(optimizer, state))
    updaters = local_updaters(trainer, begin=True)
    replicas = file.replicas(state, paths, len(updaters))
    trial = copy.copy(optimizer)
    trial.param_dict = optimizer.param_dict
    vars(trial).update(state["numbers"])
    states = [file.states(trial, trainer, paths, replica["slots"], device) for device, replica in enumerate(replicas)]
    cumulated = file.cumulated(trial, trainer, paths, state[_SUM])
    file.refuse_the_rest()
    vars(optimizer).update(state["numbers"])
    if state["scheduler"]:
        vars(optimizer.lr_scheduler).update(state["scheduler"]["numbers"])
    if isinstance(optimizer, mx.optimizer.LBSGD):
        optimizer.cumgrads = cumulated
    counts = {}
    for updater, made, replica, ids in zip(updaters, states, replicas, _device_ids(trainer)):
        updater.states = made
        # False: brought to the device of the weight at the next update, which only the kvstore knows.
        updater.states_synced = dict.fromkeys(made, False)
        updates = replica["updates"]
        counts.update(dict.fromkeys(ids, {i: updates[path] for i, path in enumerate(paths) if path in updates}))
    set_update_counts(optimizer, counts)


class _File:
    """The stored arrays, which of them were asked for, and all that does not fit."""

    def __init__(self, arrays: Mapping[str, Any], problems: List[str]) -> None:
        # `nd.load` answers with an empty list where an empty dict was saved.
        if not isinstance(arrays, Mapping) and not (isinstance(arrays, list) and not arrays):
            raise CheckpointError(f"the optimizer's arrays: expected NDArrays by name; received {brief(arrays)}")
        self.arrays, self.problems = dict(arrays), problems
        self.asked: Set[str] = set()

    def refuse(self) -> None:
        if self.problems:
            raise CheckpointError(
                "the optimizer's state does not fit the trainer, whose optimizer is left as it was:\n  "
                + "\n  ".join(self.problems)
            )

    def refuse_the_rest(self) -> None:
        for name in self.arrays:
            if name not in self.asked:
                self.problems.append(f"not a state of the trainer: {name} {nearest(name, self.asked)}".rstrip())
        self.refuse()

    def replicas(self, state: Mapping[str, Any], paths: Sequence[str], number: int) -> List[Mapping[str, Any]]:
        """One record for each of the trainer's updaters, whose paths are all known."""
        found: List[Mapping[str, Any]] = state["replicas"]
        named = [path for replica in found for part in ("updates", "slots") for path in replica[part]]
        for path in dict.fromkeys([*named, *state[_SUM]]):
            if path not in paths:
                self.problems.append(f"not a parameter of the trainer: {path} {nearest(path, paths)}".rstrip())
        differ = [name for name in self.arrays if "@" in name.rpartition(":")[2]]
        if len(found) != number and (differ or any(replica != found[0] for replica in found)):
            self.problems.append(
                f"the states of {len(found)} devices differ in the checkpoint, and the trainer keeps {number}: resume "
                f"on {len(found)} devices with update_on_kvstore=False"
            )
        self.refuse()
        return found if len(found) == number else [found[0]] * number

    def states(
        self, trial: Any, trainer: "gluon.Trainer", paths: Sequence[str], layouts: Mapping[str, Any], device: int
    ) -> Dict[int, Any]:
        """States by index for one updater, made by the optimizer itself and then filled."""
        made: Dict[int, Any] = {}
        for index, path in enumerate(paths):
            if path not in layouts:
                continue
            weight = _weight(trainer, index, device)
            empty = trial.create_state_multi_precision(index, weight)
            layout = _layout(empty, f"{type(trial).__name__} keeps for {path!r}", {})
            if _fits(layout, layouts[path]):
                made[index] = self._filled(empty, layouts[path], path, device, _blank(trial, weight))
            else:
                self.problems.append(
                    f"another layout: {path} has {brief(layouts[path])} in the checkpoint, {brief(layout)} with the "
                    f"trainer's {type(trial).__name__}"
                )
        return made

    def _filled(self, empty: Any, layout: Any, path: str, device: int, blank: Any) -> Any:
        if isinstance(layout, list):
            parts = [self._filled(part, inner, path, device, blank) for part, inner in zip(empty, layout)]
            return parts if isinstance(empty, list) else tuple(parts)
        if layout is None:
            return None
        # Momentum that was taken to 0 in the run leaves a state where the optimizer would make none.
        return self._fill(blank.copy() if empty is None else empty, path, layout, device)

    def _fill(self, like: Any, path: str, slot: str, device: int = 0) -> Any:
        first, name = _name(path, slot), _name(path, slot, device)
        name = name if name in self.arrays else first
        self.asked.update([first, name])
        if name not in self.arrays:
            self.problems.append(f"missing in the checkpoint: {name} {like.shape}")
        elif _looks(self.arrays[name]) != _looks(like):
            self.problems.append(f"not alike: {name} is {_looks(self.arrays[name])}, expected {_looks(like)}")
        else:
            self.arrays[name].copyto(like)
        return like

    def cumulated(
        self, trial: Any, trainer: "gluon.Trainer", paths: Sequence[str], stored: Mapping[str, Any]
    ) -> Dict[int, Any]:
        """LBSGD's sums of gradients by index, each on the device where it was."""
        sums: Dict[int, Any] = {}
        for index, path in enumerate(paths):
            if path in stored:
                number, place = stored[path]
                total = 0
                if place is not None:
                    weight = _weight(trainer, index, place if place < len(trainer_devices(trainer)) else 0)
                    total = self._fill(_blank(trial, weight), path, _SUM)
                sums[index] = {"cum_grad": total, "num_cums": number}
        return sums


def _paths(net: Any, trainer: "gluon.Trainer") -> List[str]:
    first = first_paths(parameters_by_path(net))
    return [first.get(id(parameter), f"trainer.{parameter.name}") for parameter in trainer_parameters(trainer)]


def local_updaters(trainer: "gluon.Trainer", begin: bool = False) -> List[Any]:
    """What holds the states: the kvstore's one updater, or one for each device.

    Raises:
        CheckpointError: They live on the servers of a distributed kvstore.
    """
    try:
        refuse_remote(trainer)
    except ValueError as error:
        raise CheckpointError(f"the optimizer's state is out of reach: {error}") from error
    if begin:
        begin_kvstore(trainer)
    return updaters_of(trainer)


def _device_ids(trainer: "gluon.Trainer") -> List[List[int]]:
    """Under which device numbers each updater's counts may stand: a kvstore spreads its keys over the devices."""
    each = [context.device_id for context in trainer_devices(trainer)]
    return [sorted({0, *each})] if steps_on_kvstore(trainer) else [[number] for number in each]


def _counts(optimizer: Any, paths: Sequence[str], ids: Sequence[int]) -> Dict[str, int]:
    counts = [update_counts(optimizer, number) for number in ids]
    found = {path: max(count.get(index, -1) for count in counts) for index, path in enumerate(paths)}
    return {path: number for path, number in found.items() if number >= 0}


def _cumulated(trainer: "gluon.Trainer", paths: Sequence[str], arrays: Dict[str, Any]) -> Dict[str, List[Any]]:
    """LBSGD's count of gradients by path, and the place of the device that has their sum, or None for a sum of 0."""
    if not isinstance(trainer.optimizer, mx.optimizer.LBSGD):
        return {}
    found: Dict[str, List[Any]] = {}
    for index, kept in trainer.optimizer.cumgrads.items():
        total, place = kept["cum_grad"], None
        if isinstance(total, mx.nd.NDArray):
            devices = trainer_devices(trainer)
            place = devices.index(total.context) if total.context in devices else 0
            arrays[_name(paths[index], _SUM)] = total.copyto(mx.cpu())
        found[paths[index]] = [kept["num_cums"], place]
    return found


def _weight(trainer: "gluon.Trainer", index: int, device: int) -> Any:
    return (values_of(trainer_parameters(trainer)[index]) or [])[device]  # data() refuses sparse weights


def _blank(optimizer: Any, weight: Any) -> Any:
    """An array as momentum or a sum of gradients would have it."""
    half = optimizer.multi_precision and weight.dtype == np.float16
    return mx.nd.zeros(weight.shape, weight.context, "float32" if half else weight.dtype)


def _name(path: str, slot: str, device: int = 0) -> str:
    return f"{path}:{slot}@{device}" if device else f"{path}:{slot}"


def _layout(state: Any, what: str, leaves: Dict[str, Any], slot: str = "") -> Any:
    """The form of a state as JSON (an array is its slot, a tuple a list, None null); its arrays go into `leaves`."""
    if state is None:
        return None
    if isinstance(state, mx.nd.NDArray):
        leaves[slot or "0"] = state
        return slot or "0"
    if isinstance(state, (tuple, list)):
        return [_layout(part, what, leaves, f"{slot}.{i}".lstrip(".")) for i, part in enumerate(state)]
    raise CheckpointError(
        f"{what} {brief(state)}: expected NDArrays, None, or tuples and lists of them. Let create_state give these; "
        "a number can be an attribute of the optimizer"
    )


def _fits(made: Any, stored: Any) -> bool:
    if isinstance(made, list) and isinstance(stored, list) and len(made) == len(stored):
        return all(_fits(one, other) for one, other in zip(made, stored))
    return bool(made == stored or (made is None and isinstance(stored, str)))


def _looks(array: Any) -> Any:
    known = isinstance(array, mx.nd.NDArray)
    return (array.shape, getattr(array.dtype, "__name__", array.dtype), array.stype) if known else brief(array)


def optimizer_numbers(optimizer: Any) -> Dict[str, Any]:
    """Numbers of an optimizer that `load_optimizer_state` replaces: learning rate `lr`, weight decay, momentum ..."""
    return _numbers(optimizer, _SCRIPTS)


def _numbers(owner: Any, scripts: Set[str]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        if name not in scripts and (value is None or isinstance(value, (bool, int, float))):
            found[name] = value
        elif name not in scripts and isinstance(value, Real):  # NumPy's, which json refuses
            found[name] = int(value) if isinstance(value, Integral) else float(value)
    return found


def _setting_problems(optimizer: Any, state: Mapping[str, Any]) -> List[str]:
    ours, theirs = type(optimizer).__name__, state["optimizer"]
    if ours != theirs:
        return [f"another optimizer: {theirs} in the checkpoint, {ours} in the trainer. Make the Trainer with {theirs}"]
    scheduler, stored = optimizer.lr_scheduler, state["scheduler"]
    ours, theirs = scheduler and type(scheduler).__name__, stored and stored["name"]
    if ours != theirs:
        return [f"another lr_scheduler: {theirs} in the checkpoint, {ours} in the trainer's optimizer"]
    problems = _number_problems(optimizer, state["numbers"], _SCRIPTS)
    if stored:
        problems += _number_problems(scheduler, stored["numbers"], _SCRIPTS_CURVE)
    if state[_SUM] and not isinstance(optimizer, mx.optimizer.LBSGD):
        problems.append(f"only LBSGD has sums of gradients, not {type(optimizer).__name__}: {brief(state[_SUM])}")
    return problems


def _number_problems(owner: Any, numbers: Mapping[str, Any], scripts: Set[str]) -> List[str]:
    problems = []
    for name, value in numbers.items():
        # An attribute that a subclass makes later in a run is not there yet; a method's name is no number.
        current = getattr(owner, "__dict__", {}).get(name, getattr(type(owner), name, None))
        if current is None:
            fits = True
        elif value is None:
            fits = name.startswith("clip")
        else:
            fits = isinstance(current, Real) and isinstance(current, bool) == isinstance(value, bool)
        if name in scripts or not fits or (name.endswith("num_update") and not isinstance(value, int)):
            problems.append(f"{type(owner).__name__} has {name}={brief(current)}, the checkpoint {value!r}")
    return problems


def _check_form(state: Any) -> None:
    """Refuse JSON of another form than `optimizer_state` gives; layouts are compared with real states later."""
    try:
        curve, replicas, sums = state["scheduler"], state["replicas"], list(state[_SUM].values())
        numbers = [*state["numbers"].values(), *(curve["numbers"].values() if curve else ())]
        counts = [number for replica in replicas for number in replica["updates"].values()]
        counts += [part for number, place in sums for part in (number, 0 if place is None else place)]
        right = bool(replicas) and all(isinstance(one["slots"], dict) for one in replicas)
        right = right and all(type(number) is int and number >= 0 for number in counts)
        right = right and all(number is None or isinstance(number, (bool, int, float)) for number in numbers)
        if not right or "optimizer" not in state:
            raise ValueError("a part has another type")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the optimizer's state is not of the form that optimizer_state gives: {brief(state)} ({error!r})"
        ) from error
