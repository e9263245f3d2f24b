"""What can be asked of any Gluon block: its parameters by path, and the devices it lives on."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from mxkit.errors import DeviceError, NotInitializedError
import mxnet as mx
from mxnet import gluon


def check_net(net: Any) -> None:
    """Refuse what is no net, above all arguments in another order.

    Raises:
        TypeError: `net` is no `gluon.Block`.

    >>> check_net([1, 2])
    Traceback (most recent call last):
    TypeError: expected a net, a gluon.Block; received list. The net comes first: fit(net, loader, ...)
    """
    if isinstance(net, gluon.Block):
        return
    if isinstance(net, type) and issubclass(net, gluon.Block):
        raise TypeError(f"expected a net; received the class {net.__name__}: write {net.__name__}()")
    received = type(net).__name__
    raise TypeError(f"expected a net, a gluon.Block; received {received}. The net comes first: fit(net, loader, ...)")


def parameters_by_path(net: Any) -> Dict[str, Any]:
    """Map structural paths (`features.0.weight`) to Parameters, in the order of the blocks.

    Paths do not carry Gluon's process-wide counters, which differ between two instances of one net
    (T37). A parameter shared by two blocks stands under both paths.

    Raises:
        TypeError: `net` is no `gluon.Block`.
    """
    check_net(net)
    return dict(net._collect_params_with_prefix())


def blocks_by_path(net: Any, path: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield every block with its path, the net itself as ''; a shared one under each of its paths."""
    check_net(net)
    yield path, net
    for name, child in net._children.items():
        yield from blocks_by_path(child, f"{path}.{name}" if path else name)


def paths_of(parameters: Sequence[Any], net: Any) -> List[str]:
    """Paths of parameters inside `net`, in the net's order; then the Gluon names of those that are not part of it."""
    wanted = {id(parameter): str(parameter.name) for parameter in parameters}
    inside = [path for path, parameter in parameters_by_path(net).items() if wanted.pop(id(parameter), None)]
    return [*inside, *wanted.values()]


def wait_before_reading() -> None:
    """Wait for all that is queued, before values of parameters go to the host (T116).

    `asnumpy` waits for an array and then reads it without holding it. A convolution in prediction reorders its weight
    in place, by an operation that it queues only while it runs: where that comes between the two, the numbers are
    read in a mixed order. Copies and operators (`copyto`, `copy`, `astype`) are queued themselves, so that MXNet's
    engine keeps them apart from the reordering: what is copied at each update needs no wait.
    """
    mx.nd.waitall()


def net_devices(net: Any, expected: Optional[Sequence["mx.Context"]] = None) -> List["mx.Context"]:
    """Devices that the net's parameters live on, in the net's own order.

    Args:
        net: Any block. One without parameters lives on the CPU.
        expected: The devices the caller asked for; None accepts any.

    Raises:
        TypeError: `net` is no `gluon.Block`.
        NotInitializedError: A parameter has neither a value nor a device.
        DeviceError: Parameters lie on different devices, or not on the expected ones.
    """
    found: Optional[List[mx.Context]] = None
    first = ""
    for path, parameter in parameters_by_path(net).items():
        if parameter._data is None and not parameter._deferred_init:
            raise NotInitializedError(
                f"the net is not initialized: parameter {path!r} has no value. "
                "Call mxkit.initialize(net, 'xavier') or net.initialize() first"
            )
        here = parameter.list_ctx()
        if found is None:
            found, first = here, path
        elif found != here:
            raise DeviceError(
                f"the net is spread over devices: parameter {first!r} lives on {found}, {path!r} on {here}. "
                f"Move it as a whole: mxkit.to(net, {found})"
            )
    found = found or [mx.cpu()]
    if expected is not None and list(expected) != found:
        raise DeviceError(
            f"the net lives on {found}; asked for were {list(expected)}. "
            f"Move it with mxkit.to(net, {list(expected)}) before the Trainer is made, "
            f"or ask for {found}"
        )
    return found
