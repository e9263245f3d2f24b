"""Initial values of parameters with deferred shapes, drawn before a training seeds the generators."""

from typing import Any, Iterator, Optional, Tuple
import warnings

from mxkit.core.blocks import net_devices, parameters_by_path
from mxkit.core.device import split_batch
from mxkit.core.replicas import is_deferred as parameter_is_deferred
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.source import Data, is_one_shot, read_epoch
from mxkit.errors import TrapWarning
from mxkit.losses.batch_loss import Forward
from mxkit.training.accumulator import Accumulator
from mxkit.training.checks import check_first_inputs
from mxkit.training.place import Place
import mxnet as mx
from mxnet import autograd


def is_deferred(net: Any) -> bool:
    """Whether a parameter of `net` gets its value in the first forward pass."""
    return any(parameter_is_deferred(parameter) for parameter in parameters_by_path(net).values())


def finish_initialization(net: Any, data: Data, forward_loss: Optional[Forward], trainer: Any) -> Data:
    """Draw the values of deferred parameters by one forward pass over the first batch, in predict mode.

    They follow from the generators as they are, so that `seed_all` before a training decides them.

    Args:
        net: An initialized block.
        data: What is trained on. A DataIter is asked for its shapes and not read; a loader's count of epochs stays.
        forward_loss: How the net is called, where that is not `net(*inputs)`.
        trainer: Of the training, for messages.

    Returns:
        The data, to be read from its beginning; what can be read only once begins with the batch that was taken.

    Raises:
        TrainingError: The net raised, as in the first update.
    """
    if not is_deferred(net):
        return data
    # a loader that seeds MXNet's generator for each sample must not decide the values
    kept = _drawn() if isinstance(data, DatasetLoader) else None
    batch, data = _first_batch(data)
    if kept is not None:
        mx.random.seed(kept)
    if batch is None:  # the training tells that there is none
        return data

    place = Place(net, Accumulator(trainer), 0, lambda batch: forward_once(net, batch, forward_loss))
    place.batch = batch
    with place, autograd.pause(train_mode=False):
        forward_once(net, batch, forward_loss)
    return data


def forward_once(net: Any, batch: Any, forward_loss: Optional[Forward] = None) -> None:
    """Run the net on the first device's part of a batch, which gives deferred parameters their values everywhere."""
    shard = split_batch(batch, net_devices(net))[0].unpacked()
    with warnings.catch_warnings():  # the first update repeats them
        warnings.simplefilter("ignore", TrapWarning)
        check_first_inputs(net, shard)
    if forward_loss is not None:
        forward_loss(net, shard.inputs, shard.labels)
    else:
        net(*shard.inputs)


def _drawn() -> int:
    return int(mx.nd.random.randint(0, 2**31 - 1, shape=1).asscalar())


def _first_batch(data: Data) -> Tuple[Any, Data]:
    source: Any = data
    shapes = getattr(source, "provide_data", None)
    if isinstance(source, mx.io.DataIter) and shapes:
        groups = (shapes, getattr(source, "provide_label", None) or ())
        return tuple(tuple(_zeros(one) for one in group) for group in groups if group), data
    if is_one_shot(source):
        iterator: Iterator[Any] = iter(source)
        batch = next(iterator, None)
        return batch, data if batch is None else _Begun(source, _continued(batch, iterator))
    return next(read_epoch(data, name="train", keep_count=True)), data


def _continued(batch: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    while batch is not None:  # never `iter`, which may begin again
        yield batch
        batch = next(iterator, None)


class _Begun:
    """A source of which a batch was taken: its first pass begins with that batch."""

    def __init__(self, source: Any, first: Iterator[Any]) -> None:
        self._source = source
        self._first: Optional[Iterator[Any]] = first

    def __iter__(self) -> Iterator[Any]:
        first, self._first = self._first, None
        return iter(self._source) if first is None else first


def _zeros(description: Any) -> Any:
    return mx.nd.zeros(description[1], dtype=getattr(description, "dtype", "float32"))
