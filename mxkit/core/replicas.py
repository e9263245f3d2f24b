"""Reads and sets the private attributes of Gluon's Parameters: one array for each device, gradients, flags."""

from copy import copy
import ctypes
from typing import Any, Iterable, List, Optional, Sequence, Tuple

from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
from mxnet import autograd, gluon
from mxnet.base import _LIB, check_call
from mxnet.numpy import ndarray


def values_of(parameter: Any) -> Optional[List[Any]]:
    """Values by device, dense or sparse, as NDArray, or None. `list_data` would raise, and refuses sparse values."""
    values: Optional[List[Any]] = parameter._data
    return [array.as_nd_ndarray() for array in values] if values and isinstance(values[0], ndarray) else values


def first_value(parameter: Any) -> Any:
    """Values on the first device of an initialized parameter, dense or sparse, as NDArray."""
    return legacy(parameter._data[0])


def shape_of(parameter: Any) -> Tuple[int, ...]:
    """Shape of the values; without values what is known of it, or (). SymbolBlock.imports sets no `shape`."""
    return tuple((parameter.shape if parameter._data is None else parameter._data[0].shape) or ())


def gradients_of(parameter: Any) -> Optional[List[Any]]:
    """Gradients by device as NDArray, or None."""
    arrays: Optional[List[Any]] = parameter._grad
    return [array.as_nd_ndarray() for array in arrays] if arrays and isinstance(arrays[0], ndarray) else arrays


def kept_gradients(parameter: Any) -> List[Any]:
    """Gradients by device, the objects that the parameter keeps, of either kind of arrays."""
    return list(parameter._grad or ())


def holds_numpy(parameter: Any) -> Optional[bool]:
    """Whether the values are arrays of `mx.np`; None if there are no values yet."""
    values = parameter._data
    return isinstance(values[0], ndarray) if values else None  # `is_numpy` takes four times as long


def is_deferred(parameter: Any) -> bool:
    """Whether the parameter is initialized and waits for its shape from the first batch."""
    return bool(parameter._deferred_init)


def is_initialized(parameter: Any) -> bool:
    """Whether the parameter has values, or will have them after the first batch."""
    return values_of(parameter) is not None or is_deferred(parameter)


def is_differentiable(parameter: Any) -> bool:
    """Whether the parameter can have a gradient; running statistics cannot."""
    return bool(parameter._differentiable)


def set_differentiable(parameter: Any, differentiable: bool) -> None:
    """Set whether the parameter can have a gradient."""
    parameter._differentiable = differentiable


def is_trainable(parameter: Any) -> bool:
    """Whether the parameter can be trained, by its own attributes; running statistics and constants cannot."""
    return is_differentiable(parameter) and not isinstance(parameter, gluon.Constant)


def is_sparse(parameter: Any) -> bool:
    """Whether the values are row-sparse."""
    return bool(parameter._stype != "default")


def has_sparse_gradient(parameter: Any) -> bool:
    """Whether the gradients are row-sparse, as those of an Embedding may be."""
    return bool(parameter._grad_stype != "default")


def finish_initialization(parameter: Any, shape: Sequence[int]) -> None:
    """Set a parameter's shape, and initialize it if it waited for the shape."""
    parameter.shape = tuple(shape)
    if is_deferred(parameter):
        parameter._finish_deferred_init()


def set_values(parameter: Any, array: Any, devices: Sequence[Any]) -> None:
    """Replace a parameter's values and devices; its gradients become 0. Its kind of arrays stays, or is `array`'s."""
    numpy = is_numpy(array) if parameter._data is None else is_numpy(parameter._data)
    with autograd.pause(), switches(numpy):
        parameter._init_impl(of_kind(array, numpy), list(devices))


def load_values(parameter: Any, array: Any, numpy: bool, devices: Any) -> None:
    """Load a parameter on these devices from an array of the same dtype; the array completes an unknown shape.

    Args:
        parameter: The Parameter.
        array: The values, of either kind.
        numpy: Whether a parameter without values will hold arrays of `mx.np`.
        devices: Its devices.
    """
    numpy = numpy if parameter._data is None else is_numpy(parameter._data)
    if parameter.shape is None:
        parameter.shape = tuple(array.shape)
    with switches(numpy):
        if array.ndim == 0 and parameter._data is not None:  # set_data refuses arrays without axes
            for replica in parameter._data:
                replica[()] = of_kind(array, True)
        else:
            parameter._load_init(of_kind(array, numpy), devices)


def lend_values(parameter: Any, replicas: List[Any]) -> None:
    """Replace the list of a parameter's values by device without a change of its gradients."""
    parameter._data = of_kind(replicas, is_numpy(parameter._data))


def drop_values(parameter: Any) -> None:
    """Make a Parameter uninitialized again, of the same shape."""
    parameter._data = parameter._grad = None
    parameter._deferred_init = ()


def copy_parameter(parameter: Any) -> Any:
    """Copy a Parameter with its values on every device, without its Trainer; gradients are 0."""
    new = copy(parameter)
    new._trainer = new._var = new._grad = None
    if values_of(parameter) is not None:
        new._data = None
        devices = parameter.list_ctx()
        values = parameter._reduce() if is_sparse(parameter) else parameter.data(devices[0])
        set_values(new, values, devices)
        if not is_sparse(parameter):
            with switches(is_numpy(parameter._data)):
                for device in devices:  # BatchNorm's statistics differ (T71)
                    parameter.data(device).copyto(new.data(device))
    return new


def trainer_of(parameter: Any) -> Optional["gluon.Trainer"]:
    """The last Trainer that was made with the parameter, or None."""
    trainer: Optional[gluon.Trainer] = parameter._trainer
    return trainer


def set_trainer(parameter: Any, trainer: Optional["gluon.Trainer"]) -> None:
    """Set the Trainer of a parameter."""
    parameter._trainer = trainer


def request_gradient(parameter: Any, request: str) -> None:
    """Set `grad_req` of a trained parameter without a change of its gradient arrays.

    Gluon would make new arrays, to which a static graph does not write (T109).
    """
    parameter._grad_req = request
    if gradients_of(parameter) is not None:
        autograd.mark_variables(parameter.list_data(), parameter.list_grad(), request)


def set_grad_req(parameter: Any, request: str) -> None:
    """Set `grad_req`; new gradients get the kind of the values, which Gluon's setter takes from the switches (T167)."""
    with switches(is_numpy(parameter._data)):
        parameter.grad_req = request


def is_fresh(replica: Any) -> bool:
    """Whether the gradient of this array was computed after the last update."""
    fresh = ctypes.c_int()
    check_call(_LIB.MXNDArrayGetGradState(replica.handle, ctypes.byref(fresh)))
    return fresh.value != 0


def all_fresh(parameters: Iterable[Any]) -> bool:
    """Whether every replica of every parameter is fresh. Asking `is_fresh` for each one takes twice as long."""
    fresh, get = ctypes.c_int(), _LIB.MXNDArrayGetGradState
    result = ctypes.byref(fresh)
    for parameter in parameters:
        if not parameter._data:
            return False
        for replica in parameter._data:
            check_call(get(replica.handle, result))
            if not fresh.value:
                return False
    return True


def set_fresh(replicas: Iterable[Any], fresh: bool) -> None:
    """Mark the gradients of arrays as computed after the last update, or not.

    It does what `_fresh_grad = fresh` does, in half the time: a net has one flag a tensor.
    """
    state, put = ctypes.c_int(fresh), _LIB.MXNDArraySetGradState
    for replica in replicas:
        check_call(put(replica.handle, state))


class GradientWatch:
    """Notices new gradient arrays of parameters.

    Args:
        parameters: Parameters with and without gradients.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._seen: List[Any] = []

    def moved(self) -> bool:
        """Whether a parameter has other arrays than at the last call; true for the first call."""
        now, before = [parameter._grad for parameter in self._parameters], self._seen  # Gluon makes a new list
        self._seen = now
        return len(now) != len(before) or any(new is not old for new, old in zip(now, before))
