"""Snapshots of a net and its Trainer: copied at one moment, written as a checkpoint, and loaded."""

from contextlib import contextmanager
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import copy_into, copy_to_cpu
from mxkit.core.blocks import parameters_by_path, wait_before_reading
from mxkit.core.device import DeviceSpec
from mxkit.core.replicas import is_differentiable, values_of
from mxkit.core.trainers import HeldWeights, finish_kvstore, has_kvstore
from mxkit.errors import CheckpointError, NotInitializedError
from mxkit.storage.directory import (
    OPTIMIZER,
    PARAMETERS,
    STATE,
    Checkpoint,
    find_checkpoint,
    is_checkpoint,
    sole_writer,
    verify,
    write_checkpoint,
)
from mxkit.storage.loading import match_arrays, put_arrays
from mxkit.storage.optimizer_state import load_optimizer_state, optimizer_state
from mxkit.storage.parameter_file import read_arrays
from mxkit.storage.params_format import dtype_name
import numpy as np

_REPLICA = "replica"


class Snapshot(NamedTuple):
    """Content of a checkpoint, copied to the CPU; training may continue while it is written.

    Attributes:
        step: Updates done.
        files: Arrays by name for each file.
        content: Values for `run.json`.
    """

    step: int
    files: Dict[str, Dict[str, Any]]
    content: Dict[str, Any]

    def wait(self) -> None:
        """Wait for the copies.

        MXNet raises an asynchronous error once, and then returns zeros (T43): the training thread must get the error
        before another thread writes.
        """
        for arrays in self.files.values():
            for array in arrays.values():
                array.wait_to_read()

    def write(self, directory: Union[str, Path]) -> Path:
        """Write a checkpoint, as `write_checkpoint` does."""
        self.wait()  # so that an error of the engine is not reported as an error of the disk
        return write_checkpoint(directory, self.step, self.files, self.content)


def take_snapshot(
    net: Any,
    trainer: Any = None,
    *,
    step: int,
    content: Optional[Mapping[str, Any]] = None,
    arrays: Optional[Mapping[str, Any]] = None,
) -> Snapshot:
    """Queue copies of everything without a wait: the engine runs them before later changes of the weights.

    Args:
        net: The block. On several devices, the first one's values are copied, because Gluon's own mean over
            replicas rounds (T59). Parameters without gradients, like BatchNorm's statistics, are copied from every
            device (T71).
        trainer: The Trainer with the optimizer; None leaves its state out.
        step: Updates done, at least 0.
        content: More values for `run.json`: plain JSON.
        arrays: More arrays, by name.

    Raises:
        NotInitializedError: A parameter has no value yet.
        ValueError: `step` is not a whole number, or `content` is not plain JSON.
    """
    step = whole_number(step, "step", least=0)
    parameters = parameters_by_path(net)
    files: Dict[str, Dict[str, Any]] = {PARAMETERS: {}, OPTIMIZER: {}, STATE: dict(arrays or {})}
    for path, parameter in parameters.items():
        if values_of(parameter) is None:
            raise NotInitializedError(f"parameter {path!r} has no value yet. Initialize the net and run it once")
        first, *others = parameter.list_data()
        files[PARAMETERS][path] = copy_to_cpu(first)
        if not is_differentiable(parameter):
            for number, replica in enumerate(others, 1):
                files[STATE][f"{_REPLICA}:{path}@{number}"] = copy_to_cpu(replica)
    values: Dict[str, Any] = {"paths": len(parameters), **(content or {})}
    if trainer is not None:
        files[OPTIMIZER], values["optimizer"] = optimizer_state(net, trainer)
    try:
        # this copies too: the caller may change the values while the snapshot is written
        values = json.loads(json.dumps(values, default=_plain))
    except (TypeError, ValueError) as error:
        raise ValueError(f"save_checkpoint: state must be plain JSON values: {error}") from error
    return Snapshot(step, files, values)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"received {value!r:.100}")


def save_checkpoint(
    directory: Union[str, Path], net: Any, trainer: Any = None, *, step: int, state: Optional[Mapping[str, Any]] = None
) -> Path:
    """Write `directory/step-00001204/`, completely or not at all.

    It holds `net.params` (a plain Gluon file for `net.load_parameters`), `optimizer.params` (the optimizer's arrays
    by parameter path and slot) and `run.json` (versions, counters, the optimizer's numbers, `state`, size and SHA-256
    of the files). Nothing is pickled. The files do not depend on the net's kind of arrays: a checkpoint of a net of
    `mx.nd` is loaded into the same net of `mx.np`, bit for bit, and the reverse.

    Args:
        directory: Holds the checkpoints of one run; it is created with its parents.
        net: An initialized net. Shapes that depend on the first batch must be known.
        trainer: Its Trainer, or None for the parameters alone.
        step: Updates done, at least 0.
        state: Your own values to keep with the run: plain JSON.

    Returns:
        The checkpoint's path. A checkpoint of the same step is replaced.

    Raises:
        NotInitializedError: A parameter has no value yet.
        ValueError: `state` is not plain JSON.
        CheckpointError: Another process writes into the directory, like a run of `fit` with checkpoints.
        OSError: The disk is full or cannot be written; earlier checkpoints do not change.

    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net); _ = net(mx.nd.ones((1, 3)))
    >>> runs = getfixture("tmp_path")
    >>> save_checkpoint(runs, net, step=12, state={"epoch": 3}).name
    'step-00000012'
    >>> load_checkpoint(runs, net).manifest["state"]
    {'epoch': 3}
    """
    wait_before_reading()
    snapshot = take_snapshot(net, trainer, step=step, content={"state": dict(state or {})})
    with sole_writer(Path(directory)):
        return snapshot.write(directory)


def load_checkpoint(
    directory: Union[str, Path],
    net: Any,
    trainer: Any = None,
    *,
    which: str = "last",
    step: Optional[int] = None,
    strict: bool = True,
    rename: Optional[Mapping[str, str]] = None,
    only: Union[str, Sequence[str], None] = None,
    devices: Optional[DeviceSpec] = None,
) -> Checkpoint:
    """Verify a checkpoint and load it into `net` and `trainer`.

    Args:
        directory: A checkpoint (`.../step-00001204`), or the directory that holds a run's checkpoints.
        net: A block with the same parameters by path, shape and dtype; it may be uninitialized.
        trainer: Gets the optimizer's state; None ignores it. It may have stepped before.
        which: "last" or "best", as for `find_checkpoint`.
        step: Number of updates of the checkpoint, instead of `which`.
        strict: As for `load_parameters`.
        rename: As for `load_parameters`.
        only: As for `load_parameters`.
        devices: Devices for an uninitialized net; None is the CPU. An initialized net stays on its devices.

    Returns:
        The loaded checkpoint. It prints as step, epoch, scores and path; `manifest` is the content of its `run.json`.

    Raises:
        ValueError: `which` is something else, or `step` was passed with `which="best"` or with the path of one
            checkpoint.
        CheckpointError: No checkpoint verifies, none has this step, or it does not fit. All names, shapes and dtypes
            are compared first: the net gets all values or does not change (T51).

    Side effects:
        Sets the net's parameters on all its devices, and the Trainer's optimizer. Nothing is unpickled (T50).
    """
    found = find_checkpoint(directory, which) if step is None else _of_step(Path(directory), which, step)
    arrays = read_arrays(found.path / PARAMETERS)
    try:
        matched = match_arrays(net, arrays, strict=strict, rename=rename, only=only)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {found.path} does not fit the net. {error}") from None
    put_back(found, net, trainer, matched, devices=devices)
    return found


def _of_step(directory: Path, which: str, step: int) -> Checkpoint:
    step = whole_number(step, "step", least=0)
    if which != "last" or is_checkpoint(directory):
        raise ValueError(f"load_checkpoint: step={step} names a checkpoint; pass neither which nor the path of one")
    return verify(directory / f"step-{step:08d}")


def put_back(
    found: Checkpoint, net: Any, trainer: Any, matched: Mapping[str, Any], *, devices: Optional[DeviceSpec] = None
) -> Dict[str, Any]:
    """Load the arrays of a checkpoint into a net and a Trainer.

    Args:
        found: The checkpoint.
        net: The block of the call of `match_arrays`.
        trainer: Its Trainer, or None.
        matched: Arrays by path, from `match_arrays`.
        devices: As for `load_checkpoint`.

    Returns:
        Arrays of `state.params` that belong neither to the net nor to the Trainer, by name.

    Raises:
        CheckpointError: The checkpoint has no state of an optimizer, or it does not fit; nothing changes.
    """
    rest = read_arrays(found.path / STATE) if STATE in found.manifest["files"] else {}
    replicas = _replicas(found, rest, matched)
    if trainer is None:
        put_arrays(net, matched, devices)
    else:
        with _undone_on_error(net, trainer):
            put_arrays(net, matched, devices)  # first: Gluon throws a kvstore's states away when weights are set
            _load_optimizer(found, net, trainer)
        finish_kvstore(trainer)
    parameters = parameters_by_path(net)
    for path, number, array in replicas:
        if number < len(parameters[path].list_data()):  # this net may live on fewer devices
            copy_into(array, parameters[path].list_data()[number])
    return rest


def _replicas(found: Checkpoint, rest: Dict[str, Any], matched: Mapping[str, Any]) -> List[Tuple[str, int, Any]]:
    """Remove the values of the second and later devices from `rest`, and list path, number of the device and array."""
    replicas = []
    for name in [name for name in rest if name.startswith(f"{_REPLICA}:")]:
        path, _, number = name[len(_REPLICA) + 1 :].rpartition("@")
        array, first = rest.pop(name), matched.get(path)
        if first is None:
            continue
        if not number.isdigit() or (array.shape, array.dtype, array.stype) != (first.shape, first.dtype, first.stype):
            form, other = (f"{one.shape} {dtype_name(one.dtype)}" for one in (array, first))
            raise CheckpointError(f"checkpoint {found.path} does not fit itself: {name!r} is {form}, {path!r} {other}")
        replicas.append((path, int(number), array))
    return replicas


@contextmanager
def _undone_on_error(net: Any, trainer: Any) -> Iterator[None]:
    """Restore the weights and the optimizer's state if the block raises."""
    parameters = parameters_by_path(net)
    blank = [(parameter, dict(vars(parameter))) for parameter in parameters.values() if values_of(parameter) is None]
    weights = HeldWeights(parameters)
    stepped = optimizer_state(net, trainer) if has_kvstore(trainer) else None
    try:
        yield
    except BaseException:
        for parameter, before in blank:
            vars(parameter).update(before)
        weights.put_back()
        if stepped is not None:
            load_optimizer_state(net, trainer, *stepped)
            finish_kvstore(trainer)  # a new kvstore sets every replica to the first one's values (T98)
            weights.put_back()
        raise


def _load_optimizer(found: Checkpoint, net: Any, trainer: Any) -> None:
    if "optimizer" not in found.manifest:
        text = "it was saved without a Trainer. Load it without one"
        raise CheckpointError(f"checkpoint {found.path} holds no optimizer's state: {text}")
    arrays = read_arrays(found.path / OPTIMIZER) if OPTIMIZER in found.manifest["files"] else {}
    load_optimizer_state(net, trainer, arrays, found.manifest["optimizer"])
