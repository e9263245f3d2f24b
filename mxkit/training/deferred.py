"""Initializes deferred parameters before a training seeds the generators."""

from typing import Any, Optional
import warnings

from mxkit.core.arrays import switches
from mxkit.core.blocks import is_numpy_net, net_devices, parameters_by_path
from mxkit.core.device import split_batch
from mxkit.core.replicas import is_deferred as parameter_is_deferred
from mxkit.data.source import Source
from mxkit.errors import TrapWarning
from mxkit.losses.named_losses import Forward
from mxkit.training.accumulator import Accumulator
from mxkit.training.checks import check_first_inputs
from mxkit.training.place import Place
import mxnet as mx
from mxnet import autograd


def is_deferred(net: Any) -> bool:
    """Whether the first forward pass initializes a parameter of `net`."""
    return any(parameter_is_deferred(parameter) for parameter in parameters_by_path(net).values())


def finish_initialization(net: Any, data: Source, forward_loss: Optional[Forward], trainer: Any) -> Source:
    """Initialize deferred parameters by one forward pass over the first batch, in predict mode.

    The values follow from the current state of the generators, so `seed_all` before a training decides them.

    Args:
        net: An initialized block.
        data: The training data. Of a DataIter only the shapes are used; a loader's count of epochs does not change.
        forward_loss: The call of the net; None is `net(*inputs)`.
        trainer: The Trainer, for messages.

    Returns:
        The data, from its beginning. An iterator that can be read only once is replaced.

    Raises:
        TrainingError: The net raised, as in the first update.
    """
    if not is_deferred(net):
        return data
    seed = None
    if data.reseeds:  # MXNet's generator for each sample, which must not decide the values
        seed = int(mx.nd.random.randint(0, 2**31 - 1, shape=1).asscalar())
    batch, data = data.first()
    if seed is not None:
        mx.random.seed(seed)
    if batch is None:  # the training raises the error
        return data

    place = Place(net, Accumulator(trainer), 0, lambda batch: forward_once(net, batch, forward_loss))
    place.batch = batch
    with place, autograd.pause(train_mode=False):
        forward_once(net, batch, forward_loss)
    return data


def forward_once(net: Any, batch: Any, forward_loss: Optional[Forward] = None) -> None:
    """Run the net on the first device's part of a batch, which initializes deferred parameters on all devices."""
    shard = split_batch(batch, net_devices(net), is_numpy_net(net))[0].unpacked()
    with warnings.catch_warnings():  # the first update gives these warnings
        warnings.simplefilter("ignore", TrapWarning)
        check_first_inputs(net, shard)
    with switches(shard.numpy):
        if forward_loss is not None:
            forward_loss(net, shard.inputs, shard.labels)
        else:
            net(*shard.inputs)
