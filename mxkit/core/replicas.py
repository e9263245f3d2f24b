"""The arrays of a Gluon Parameter, one for each device, and what Gluon notes about them.

With `core.blocks`, `core.graphs` and `core.trainers` the only place that reads Gluon's private attributes.
"""

from copy import copy
from typing import Any, Iterable, List, Optional, Sequence

from mxnet import autograd, gluon


def values_of(parameter: Any) -> Optional[List[Any]]:
    """Values by device, dense or sparse; None where there are none yet. `list_data` raises, and refuses sparse ones."""
    found: Optional[List[Any]] = parameter._data
    return found


def first_value(parameter: Any) -> Any:
    """The values on the first device, of a parameter that has some."""
    return parameter._data[0]


def gradients_of(parameter: Any) -> Optional[List[Any]]:
    """Gradients by device, None where there are none. Gluon makes a new list with the arrays."""
    found: Optional[List[Any]] = parameter._grad
    return found


def is_deferred(parameter: Any) -> bool:
    """Whether the parameter is initialized and waits for its shape, which the first batch tells."""
    return bool(parameter._deferred_init)


def is_initialized(parameter: Any) -> bool:
    """Whether the parameter has values, or gets them with the first batch."""
    return values_of(parameter) is not None or is_deferred(parameter)


def is_differentiable(parameter: Any) -> bool:
    """Whether backward passes reach the parameter: they do not reach running statistics."""
    return bool(parameter._differentiable)


def set_differentiable(parameter: Any, differentiable: bool) -> None:
    """Decide whether backward passes reach the parameter."""
    parameter._differentiable = differentiable


def is_trainable(parameter: Any) -> bool:
    """Whether the parameter can be trained, as far as it says itself: running statistics and constants cannot."""
    return is_differentiable(parameter) and not isinstance(parameter, gluon.Constant)


def is_sparse(parameter: Any) -> bool:
    """Whether the values are row-sparse."""
    return bool(parameter._stype != "default")


def has_sparse_gradient(parameter: Any) -> bool:
    """Whether the gradients are row-sparse, as those of an Embedding may be."""
    return bool(parameter._grad_stype != "default")


def finish_initialization(parameter: Any, shape: Sequence[int]) -> None:
    """Give a parameter its shape and, where it waited for that, its values."""
    parameter.shape = tuple(shape)
    if is_deferred(parameter):
        parameter._finish_deferred_init()


def set_values(parameter: Any, array: Any, devices: Sequence[Any]) -> None:
    """Give a parameter these values on these devices, in place of any others, with gradients of 0."""
    with autograd.pause():
        parameter._init_impl(array, list(devices))


def load_values(parameter: Any, array: Any, devices: Any) -> None:
    """Give a parameter the values of a file, of its dtype and its shape, which they complete, on these devices."""
    parameter._load_init(array, devices)


def lend_values(parameter: Any, replicas: List[Any]) -> None:
    """Put other arrays in the place of a parameter's values by device; its gradients stay as they are."""
    parameter._data = replicas


def copy_parameter(parameter: Any) -> Any:
    """Copy a Parameter with its values on every device, without its Trainer; gradients are 0."""
    new = copy(parameter)
    new._trainer = new._var = new._grad = None
    if values_of(parameter) is not None:
        new._data = None
        devices = parameter.list_ctx()
        set_values(new, parameter._reduce() if is_sparse(parameter) else parameter.data(devices[0]), devices)
        if not is_sparse(parameter):
            for device in devices:  # BatchNorm's statistics differ (T71)
                parameter.data(device).copyto(new.data(device))
    return new


def trainer_of(parameter: Any) -> Optional["gluon.Trainer"]:
    """The Trainer that was last made over the parameter, or None."""
    found: Optional[gluon.Trainer] = parameter._trainer
    return found


def set_trainer(parameter: Any, trainer: Optional["gluon.Trainer"]) -> None:
    """Let a parameter belong to a Trainer, or to none."""
    parameter._trainer = trainer


def request_gradient(parameter: Any, request: str) -> None:
    """Set `grad_req` of a parameter that is trained, and leave its gradients where they are.

    Gluon would make new ones, which a static graph does not write to (T109).
    """
    parameter._grad_req = request
    if gradients_of(parameter) is not None:
        autograd.mark_variables(parameter.list_data(), parameter.list_grad(), request)


def is_fresh(replica: Any) -> bool:
    """Whether the gradient of this array of values was computed since the last update."""
    return bool(replica._fresh_grad)


def set_fresh(replicas: Iterable[Any], fresh: bool) -> None:
    """Note of arrays of values that their gradients are, or are not, new since the last update."""
    for replica in replicas:
        replica._fresh_grad = fresh


class GradientWatch:
    """Notices that parameters have other gradients than before.

    Args:
        parameters: Those that are trained, and others.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._seen: List[Any] = []

    def moved(self) -> bool:
        """Whether one has other arrays than at the last call; true for the first."""
        now = [gradients_of(parameter) for parameter in self._parameters]
        same = len(now) == len(self._seen) and all(one is seen for one, seen in zip(now, self._seen))
        self._seen = now
        return not same
