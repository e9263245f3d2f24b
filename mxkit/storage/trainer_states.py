"""Reads MXNet's own file of a Trainer's states, which is a pickle and can run code."""

from pathlib import Path
import pickle
from typing import Any, Tuple, Union

from mxkit.core.arrays import switches
from mxkit.core.trainers import set_update_counts, trainer_devices, trainer_parameters, update_counts
from mxkit.errors import CheckpointError
from mxkit.storage.optimizer_state import local_updaters
import mxnet as mx


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
        raise ValueError(
            f"{path} is a pickle, as all files of trainer.save_states are: reading it runs any code that its writer "
            "put there. If you know the writer, pass trusted=True, then save_checkpoint, and drop the file"
        )
    content = Path(path).read_bytes()
    try:
        numpy_shapes, (states, stored) = _unpickled(content)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no file of trainer.save_states: {error}") from error
    optimizer = trainer.optimizer
    if type(stored) is not type(optimizer) or not isinstance(states, dict):
        raise CheckpointError(
            f"{path} holds the states of {type(stored).__name__}; the Trainer's optimizer is {type(optimizer).__name__}"
        )
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
