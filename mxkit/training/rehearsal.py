"""A training that leaves nothing behind: what a search or a profile trains is put back."""

import copy
import itertools
from typing import Any, Iterator

from mxkit.core.arguments import split_spec
from mxkit.core.blocks import net_devices, parameters_by_path
from mxkit.core.device import split_batch
from mxkit.core.replicas import gradients_of, is_fresh, set_fresh, set_trainer, trainer_of, values_of
from mxkit.core.trainers import TrainerSpec, get_trainer, gradient_scale, set_update_counts, trainer_like
from mxkit.data.source import Data, read_epoch
import mxnet as mx
from mxnet import autograd, gluon


def endless_batches(data: Data) -> Iterator[Any]:
    """Batches without end, or as many as a source that can be read only once has."""
    for epoch in itertools.count():
        yield from read_epoch(data, epoch, name="data")
        if not callable(data) and not isinstance(data, mx.io.DataIter) and iter(data) is data:
            return


def with_known_shapes(net: Any, batches: Iterator[Any]) -> Any:
    """Let the first batch give shapes that are deferred, so that there are values to keep."""
    where = net_devices(net)
    if all(values_of(parameter) for parameter in parameters_by_path(net).values()):
        return batches
    first = next(batches)
    with autograd.pause(train_mode=False):
        for shard in split_batch(first, where):
            net(*shard.inputs)

    def all_of_them() -> Iterator[Any]:
        yield first
        yield from batches

    return all_of_them()


def copied_trainer(net: Any, spec: TrainerSpec) -> "gluon.Trainer":
    """A Trainer like the one meant, over the same parameters, that shares nothing but their multipliers."""
    if isinstance(spec, gluon.Trainer):
        trainer = get_trainer(net, spec)  # looks at its devices
        optimizer = _fresh(trainer.optimizer)
        optimizer.rescale_grad = gradient_scale(trainer)  # the last step left it divided by its batch
        return trainer_like(trainer, optimizer)
    name, arguments = split_spec(spec)
    arguments.pop("lr_scheduler", None)  # it would decide the rates, and be moved on
    if isinstance(name, mx.optimizer.Optimizer):
        name = _fresh(name)
    return get_trainer(net, (name, arguments) if arguments else name)


def _fresh(optimizer: Any) -> Any:
    """A copy of an optimizer before its first update, without a scheduler."""
    fresh = copy.deepcopy(optimizer)
    fresh.lr_scheduler = None
    fresh.num_update = fresh.begin_num_update
    set_update_counts(fresh, {0: {}})
    if hasattr(fresh, "m_schedule"):  # Nadam's, which moves with each parameter
        fresh.m_schedule = 1.0
    return fresh


class Kept:
    """Keeps what training changes on a net, and puts it back."""

    def __init__(self, net: Any) -> None:
        distinct = {id(parameter): parameter for parameter in parameters_by_path(net).values()}
        self._parameters = [parameter for parameter in distinct.values() if values_of(parameter)]

    def __enter__(self) -> None:
        self._kept = [
            (
                parameter,
                [data.copy() for data in values_of(parameter) or ()],
                [is_fresh(data) for data in values_of(parameter) or ()],
                [one.copy() for one in gradients_of(parameter) or ()] if parameter.grad_req == "add" else None,
                parameter.grad_req,
                trainer_of(parameter),
            )
            for parameter in self._parameters
        ]

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        for parameter, values, fresh, gradients, grad_req, trainer in self._kept:
            parameter.grad_req = grad_req
            set_trainer(parameter, trainer)
            for data, value, was_fresh in zip(values_of(parameter) or (), values, fresh):
                value.copyto(data)
                if grad_req != "null":
                    set_fresh([data], was_fresh)
            for gradient, value in zip(gradients_of(parameter) or (), gradients or ()):
                value.copyto(gradient)
        self._kept = []
