"""A net and its Trainer, copied at one moment; written from there, and put back."""

from contextlib import contextmanager
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import parameters_by_path, wait_before_reading
from mxkit.core.device import DeviceSpec
from mxkit.core.held_weights import HeldWeights
from mxkit.core.replicas import is_differentiable, values_of
from mxkit.core.trainers import finish_kvstore, has_kvstore
from mxkit.errors import CheckpointError, NotInitializedError
from mxkit.storage.directory import checkpoint_paths, find_checkpoint, write_checkpoint
from mxkit.storage.loading import match_arrays, put_arrays
from mxkit.storage.manifest import OPTIMIZER, PARAMETERS, STATE, Checkpoint, is_checkpoint, verify
from mxkit.storage.optimizer_state import load_optimizer_state, optimizer_state
from mxkit.storage.parameter_file import dtype_name, read_arrays
import mxnet as mx
import numpy as np

_REPLICA = "replica"


class Snapshot(NamedTuple):
    """Copies on the CPU of what a checkpoint holds; training may go on while they are written.

    Attributes:
        step: Updates done.
        files: Arrays by name for each file.
        content: What `run.json` says beside them.
    """

    step: int
    files: Dict[str, Dict[str, Any]]
    content: Dict[str, Any]

    def wait(self) -> None:
        """Wait for the copies.

        MXNet tells an error once, and gives zeros to the next who reads (T43): the thread that trains is to hear of it
        before another one writes.
        """
        for arrays in self.files.values():
            for array in arrays.values():
                array.wait_to_read()

    def write(self, directory: Union[str, Path]) -> Path:
        """Write it, as `write_checkpoint` does."""
        self.wait()  # an error of the engine is no error of the disk
        return write_checkpoint(directory, self.step, self.files, self.content)


def take_snapshot(
    net: Any,
    trainer: Any = None,
    *,
    step: int,
    content: Optional[Mapping[str, Any]] = None,
    arrays: Optional[Mapping[str, Any]] = None,
) -> Snapshot:
    """Queue copies of everything, and wait for nothing: the engine keeps queued copies apart from what changes weights.

    Args:
        net: Its parameters. Of several devices the first one's values are taken, because Gluon's own mean over
            replicas rounds (T59); of what is not trained by gradients, as BatchNorm's statistics, those of every
            device (T71).
        trainer: Its optimizer's state; None leaves that out.
        step: Updates done, at least 0.
        content: More for `run.json`: plain JSON values.
        arrays: More arrays, by name.

    Raises:
        NotInitializedError: A parameter has no value yet.
        ValueError: `step` is no whole number, or `content` is not plain JSON.
    """
    step = whole_number(step, "step", least=0)
    parameters = parameters_by_path(net)
    files: Dict[str, Dict[str, Any]] = {PARAMETERS: {}, OPTIMIZER: {}, STATE: dict(arrays or {})}
    for path, parameter in parameters.items():
        if values_of(parameter) is None:
            raise NotInitializedError(
                f"save_checkpoint: parameter {path!r} has no value yet. Initialize the net and run it once on a batch"
            )
        first, *others = parameter.list_data()
        files[PARAMETERS][path] = first.copyto(mx.cpu())
        if not is_differentiable(parameter):
            for number, replica in enumerate(others, 1):
                files[STATE][f"{_REPLICA}:{path}@{number}"] = replica.copyto(mx.cpu())
    told: Dict[str, Any] = {"paths": len(parameters), **(content or {})}
    if trainer is not None:
        files[OPTIMIZER], told["optimizer"] = optimizer_state(net, trainer)
    try:
        # a copy too: whoever gave the values may change them while the snapshot is written
        told = json.loads(json.dumps(told, default=_plain))
    except (TypeError, ValueError) as error:
        raise ValueError(f"save_checkpoint: state must be plain JSON values: {error}") from error
    return Snapshot(step, files, told)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r:.100} is none")


def save_checkpoint(
    directory: Union[str, Path],
    net: Any,
    trainer: Any = None,
    *,
    step: int,
    state: Optional[Mapping[str, Any]] = None,
) -> Path:
    """Write `directory/step-00001204/`, whole or not at all.

    It holds `net.params` (a plain Gluon file, which `net.load_parameters` reads), `optimizer.params` (the
    optimizer's arrays by parameter path and slot) and `run.json` (versions, counters, the optimizer's numbers,
    `state`, size and SHA-256 of the files). Nothing is pickled.

    Args:
        directory: Holds the checkpoints of one run; it is created with its parents.
        net: A net whose parameters have values.
        trainer: Its Trainer, or None for the parameters alone.
        step: Updates done, at least 0.
        state: What else belongs to the run: plain JSON values.

    Returns:
        The checkpoint's path. One of the same step is replaced.

    Raises:
        NotInitializedError: A parameter has no value yet.
        ValueError: `state` is not plain JSON.
        OSError: The disk is full or may not be written; earlier checkpoints are untouched.

    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net); _ = net(mx.nd.ones((1, 3)))
    >>> runs = getfixture("tmp_path")
    >>> save_checkpoint(runs, net, step=12, state={"epoch": 3}).name
    'step-00000012'
    >>> load_checkpoint(runs, net).manifest["state"]
    {'epoch': 3}
    """
    wait_before_reading()
    return take_snapshot(net, trainer, step=step, content={"state": dict(state or {})}).write(directory)


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
    """Put the values of a verified checkpoint into `net`, and into `trainer`.

    Args:
        directory: A checkpoint (`.../step-00001204`), or the directory that holds a run's checkpoints.
        net: A block with the same parameters by path, shape and dtype; it may be uninitialized.
        trainer: Gets the optimizer's state; None leaves that aside. It may have stepped before.
        which: "last" or "best", as for `find_checkpoint`.
        step: The checkpoint that was written after so many updates, in place of `which`.
        strict: As for `load_parameters`.
        rename: As for `load_parameters`.
        only: As for `load_parameters`.
        devices: Where an uninitialized net goes; None is the CPU. An initialized one stays where it is.

    Returns:
        The checkpoint that was read. It prints as step, epoch, scores and path; `manifest` is all of its `run.json`.

    Raises:
        ValueError: `which` is neither, or `step` was given beside `which="best"` or beside one checkpoint.
        CheckpointError: There is no whole checkpoint, none of this step, or it does not fit. All names, shapes and
            dtypes are compared first: the net is loaded whole or left as it was (T51).

    Side effects:
        The net's parameters on all its devices, and the Trainer's optimizer. Nothing is unpickled (T50).
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
        beside = f"which={which!r}" if which != "last" else f"the path of one checkpoint, {directory}"
        raise ValueError(f"load_checkpoint: step={step} names a checkpoint, and so does {beside}. Pass one of them")
    paths = {int(path.name.rpartition("-")[2]): path for path in checkpoint_paths(directory)}
    if step not in paths:
        near = sorted(paths, key=lambda one: (abs(one - step), one))[:8]
        there = f"there are {', '.join(map(str, sorted(near)))}" if near else "there is none at all"
        there += f" and {len(paths) - len(near)} more" if len(paths) > len(near) else ""
        raise CheckpointError(f"no checkpoint of step {step} in {directory}: {there}")
    return verify(paths[step])


def put_back(
    found: Checkpoint, net: Any, trainer: Any, matched: Mapping[str, Any], *, devices: Optional[DeviceSpec] = None
) -> Dict[str, Any]:
    """Give a net and a Trainer what a checkpoint holds.

    Args:
        found: The checkpoint.
        net: The block that `matched` was matched with.
        trainer: Or None.
        matched: Arrays by path.
        devices: As for `load_checkpoint`.

    Returns:
        The arrays that belong to neither, by name.

    Raises:
        CheckpointError: The checkpoint has no optimizer's state, or it does not fit; nothing was changed.
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
        if number < len(parameters[path].list_data()):  # else this net lives on fewer devices
            array.copyto(parameters[path].list_data()[number])
    return rest


def _replicas(found: Checkpoint, rest: Dict[str, Any], matched: Mapping[str, Any]) -> List[Tuple[str, int, Any]]:
    """Take the values of further devices out of `rest`: path, number of the device, array."""
    replicas = []
    for name in [name for name in rest if name.startswith(f"{_REPLICA}:")]:
        path, _, number = name[len(_REPLICA) + 1 :].rpartition("@")
        array, first = rest.pop(name), matched.get(path)
        if first is None:
            continue
        if not number.isdigit() or (array.shape, array.dtype, array.stype) != (first.shape, first.dtype, first.stype):
            raise CheckpointError(
                f"checkpoint {found.path} does not fit itself: {name!r} is {array.shape} {dtype_name(array.dtype)}, "
                f"{path!r} {first.shape} {dtype_name(first.dtype)}"
            )
        replicas.append((path, int(number), array))
    return replicas


@contextmanager
def _undone_on_error(net: Any, trainer: Any) -> Iterator[None]:
    """Put the weights and the optimizer's state back if the block raises."""
    parameters = parameters_by_path(net)
    blank = [(one, dict(vars(one))) for one in parameters.values() if values_of(one) is None]
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
            finish_kvstore(trainer)  # a new one gives every replica the first one's values (T98)
            weights.put_back()
        raise


def _load_optimizer(found: Checkpoint, net: Any, trainer: Any) -> None:
    if "optimizer" not in found.manifest:
        raise CheckpointError(
            f"checkpoint {found.path} holds no optimizer's state: it was saved without a Trainer. "
            "Load it without one, and train on with a fresh optimizer"
        )
    arrays = read_arrays(found.path / OPTIMIZER) if OPTIMIZER in found.manifest["files"] else {}
    load_optimizer_state(net, trainer, arrays, found.manifest["optimizer"])
