"""Moves a net to other devices."""

from typing import Any, List
import warnings

from mxkit.core.arrays import switches
from mxkit.core.blocks import blocks_by_path, distinct, is_numpy_net, parameters_by_path
from mxkit.core.device import DeviceSpec
from mxkit.core.device import devices as resolve_devices
from mxkit.core.graphs import drop_graph
from mxkit.core.replicas import is_deferred, is_initialized, is_sparse, set_trainer, set_values, trainer_of, values_of
from mxkit.errors import TrapWarning
from mxkit.nets.initializers import SameValues, get_initializer
from mxnet import nd
from mxnet.util import is_np_array


def to(net: Any, devices: DeviceSpec, *, drop_trainer: bool = False) -> Any:
    """Move every parameter of `net` to `devices`.

    Gluon's own calls fit one state of the net each: a second `initialize` is ignored with a warning, and `reset_ctx`
    fails before the first `initialize` and averages over devices after it (T20, T59).

    Args:
        net: Any block. A parameter keeps the values of its first device, bit for bit; a deferred parameter gets its
            values on the new devices; one that is not initialized is initialized as by `mxkit.initialize(net)`.
        devices: As for `mxkit.devices`: "cpu", "gpu:0,1", contexts.
        drop_trainer: Moves parameters that belong to a Trainer, which must not be used afterwards.

    Returns:
        `net`.

    Raises:
        DeviceError: A device does not exist.
        ValueError: A Trainer exists over parameters that would move, and its optimizer's states would not. Or
            gradients are being accumulated, and would be lost. Nothing has moved then.

    Warns:
        TrapWarning: A block has an NDArray that is not a parameter on another device; it is not moved.

    Side effects:
        Gradients are 0, in buffers on the new devices. Cached graphs are dropped. If all parameters are on `devices`
        already, nothing happens.

    >>> net = mx.gluon.nn.Dense(2, in_units=3)
    >>> to(to(net, "cpu"), "cpu:2").weight.list_ctx()
    [cpu(0), cpu(1)]
    """
    where, numpy = resolve_devices(devices), is_numpy_net(net)
    moving = [(path, one) for path, one in distinct(parameters_by_path(net)).items() if _devices(one) != where]
    if not drop_trainer:
        _refuse_trainers(moving)
    adding = [path for path, one in moving if values_of(one) and one.grad_req == "add"]
    if adding:
        raise ValueError(
            f"to: grad_req of {adding[0]!r} is 'add': gradients summed up so far would be lost. Move the net outside "
            "of an Accumulator's window. Nothing was moved"
        )
    for _, one in moving:
        if drop_trainer:
            set_trainer(one, None)
        with switches(numpy):
            _move(one, where)
    for path, block in blocks_by_path(net):
        if moving:
            drop_graph(block)  # it holds memory on the old devices
        _warn_of_arrays(path, block, where)
    return net


def _devices(parameter: Any) -> List[Any]:
    return list(parameter.list_ctx()) if is_initialized(parameter) else []


def _move(parameter: Any, where: List[Any]) -> None:
    if not is_initialized(parameter):
        xavier = get_initializer("xavier")
        parameter.initialize(ctx=where, default_init=SameValues(xavier) if is_np_array() else xavier)
    elif is_deferred(parameter) or is_sparse(parameter):
        parameter.reset_ctx(where)
    else:
        set_values(parameter, parameter.data(parameter.list_ctx()[0]), where)


def _refuse_trainers(moving: List[Any]) -> None:
    for path, parameter in moving:
        if trainer_of(parameter) is not None:
            raise ValueError(
                f"to: a Trainer exists over {path!r}, on {parameter.list_ctx()}: it would still read the gradients "
                "there. Move the net before the Trainer is made; or pass drop_trainer=True, and make a new one. "
                "Nothing was moved"
            )


def _warn_of_arrays(path: str, block: Any, where: List[Any]) -> None:
    for name, value in vars(block).items():
        if isinstance(value, nd.NDArray) and value.ctx not in where:
            warnings.warn(
                f"to: {path or 'the net'} ({type(block).__name__}) keeps a plain NDArray {name!r} on {value.ctx}, "
                "which is neither moved nor saved. Make it a constant: self.params.get_constant",
                TrapWarning,
                stacklevel=3,
            )
