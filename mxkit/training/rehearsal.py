"""A training that is undone: for the search of a learning rate, and for a profile."""

from contextlib import ExitStack, closing, contextmanager
import copy
import itertools
from typing import Any, Iterator

from mxkit.core.arguments import split_spec
from mxkit.core.arrays import copy_into, copy_to_cpu
from mxkit.core.blocks import parameters_by_path
from mxkit.core.replicas import gradients_of, is_fresh, set_fresh, set_grad_req, set_trainer, trainer_of, values_of
from mxkit.core.seeding import generators_kept
from mxkit.core.trainers import HeldWeights, TrainerSpec, get_trainer, gradient_scale, set_update_counts, trainer_like
from mxkit.data.source import Data, source_of
from mxkit.training.deferred import forward_once, is_deferred
import mxnet as mx
from mxnet import autograd, gluon


@contextmanager
def rehearsal(net: Any, data: Data) -> Iterator[Iterator[Any]]:
    """Yield batches for a training that is undone at the end of `with`, also after an error.

    Values, `grad_req` and accumulated gradients of every replica, Python's and NumPy's generators and a loader's count
    of epochs are restored. MXNet's generator is not: its state cannot be read (T67).

    Args:
        net: An initialized block. Deferred parameters stay initialized.
        data: Read again and again from its beginning, unless it can be read only once.
    """
    source = source_of(data)
    with source.count_kept(), generators_kept(), source.open(), ExitStack() as held:
        batches: Iterator[Any] = held.enter_context(closing(source.endless()))  # no thread reads on
        if is_deferred(net):  # values are needed to restore them
            first = next(batches)
            with autograd.pause(train_mode=False):
                forward_once(net, first)
            batches = itertools.chain([first], batches)
        held.enter_context(_undone(net))
        yield batches


@contextmanager
def _undone(net: Any) -> Iterator[None]:
    """Restore a net after a training: values, accumulated gradients, and `grad_req`."""
    before = [
        (
            parameter,
            parameter.grad_req,
            trainer_of(parameter),
            [is_fresh(data) for data in values_of(parameter) or ()],
            list(map(copy_to_cpu, gradients_of(parameter) or ())) if parameter.grad_req == "add" else (),
        )
        for parameter in dict.fromkeys(parameters_by_path(net).values())
        if values_of(parameter)
    ]
    with HeldWeights(parameters_by_path(net)):
        try:
            yield
        finally:
            for parameter, grad_req, trainer, fresh, gradients in before:
                set_grad_req(parameter, grad_req)
                set_trainer(parameter, trainer)
                for data, was_fresh in zip(values_of(parameter) or (), fresh):
                    if grad_req != "null":
                        set_fresh([data], was_fresh)
                for gradient, value in zip(gradients_of(parameter) or (), gradients):
                    copy_into(value, gradient)


def copied_trainer(net: Any, spec: TrainerSpec) -> "gluon.Trainer":
    """Return a copy of a Trainer: it has the same parameters, and shares only their multipliers."""
    if isinstance(spec, gluon.Trainer):
        trainer = get_trainer(net, spec)  # checks its devices
        optimizer = _unused(trainer.optimizer)
        optimizer.rescale_grad = gradient_scale(trainer)  # the last step divided it by the size of its batch
        return trainer_like(trainer, optimizer)
    name, arguments = split_spec(spec)
    arguments.pop("lr_scheduler", None)  # it would decide the rates, and change its state
    if isinstance(name, mx.optimizer.Optimizer):
        name = _unused(name)
    return get_trainer(net, (name, arguments) if arguments else name)


def _unused(optimizer: Any) -> Any:
    """A copy of an optimizer with the state before its first update, without a scheduler."""
    unused = copy.deepcopy(optimizer)
    unused.lr_scheduler = None
    unused.num_update = unused.begin_num_update
    set_update_counts(unused, {0: {}})
    if hasattr(unused, "m_schedule"):  # Nadam's, which each parameter changes
        unused.m_schedule = 1.0
    return unused
