"""What can be asked of any Gluon block: its parts and parameters by path, and the devices it lives on."""

from fnmatch import fnmatchcase
import inspect
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

from mxkit.core.replicas import is_initialized, is_trainable
from mxkit.errors import DeviceError, NotInitializedError, UnknownNameError, nearest
import mxnet as mx
from mxnet import gluon

_Thing = TypeVar("_Thing")


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
    for name, child in child_blocks(net).items():
        yield from blocks_by_path(child, f"{path}.{name}" if path else name)


def child_blocks(block: Any) -> Dict[str, Any]:
    """Blocks that a block holds itself, by name: Gluon's own dict, so that a change of it changes the block."""
    held: Dict[str, Any] = block._children
    return held


def own_parameters(block: Any) -> Dict[str, Any]:
    """Parameters that a block holds itself, by attribute: Gluon's own dict. A plain Block has none here."""
    held: Dict[str, Any] = getattr(block, "_reg_params", {})
    return held


def unfit_inputs(block: Any, inputs: Sequence[Any]) -> Optional[List[inspect.Parameter]]:
    """The inputs that a block's forward pass takes, if these are too many or too few; None where their number fits."""
    kind, leading, own = type(block), 0, {}
    if kind.__call__ not in (gluon.Block.__call__, gluon.HybridBlock.__call__):
        called = block.__call__
    elif isinstance(block, gluon.HybridBlock) and kind.forward is gluon.HybridBlock.forward:
        called, leading, own = block.hybrid_forward, 1, own_parameters(block)
    else:
        called = block.forward
    signature = inspect.signature(called)
    try:
        signature.bind(*[mx.nd] * leading, *inputs, **own)
    except TypeError:
        return [one for name, one in list(signature.parameters.items())[leading:] if name not in own]
    return None


def replace_parameter(block: Any, name: str, new: Any) -> None:
    """Let a block use another parameter in place of its own, as `params=` of its constructor does."""
    old = own_parameters(block)[name]
    own_parameters(block)[name] = new
    vars(block)[name] = new
    block._params._params.pop(old.name, None)
    block._params._params[new.name] = new


def layer_settings(block: Any) -> Dict[str, Any]:
    """Arguments of the operator that a stock layer calls, like "kernel" of a convolution: its own dict, or none."""
    settings = getattr(block, "_kwargs", None)
    return settings if isinstance(settings, dict) else {}


def operator_name(layer: Any) -> str:
    """The operator that a convolution calls, like "Deconvolution"."""
    return str(layer._op_name)


def distinct(named: Mapping[str, _Thing]) -> Dict[str, _Thing]:
    """Things by path, each under the first of its paths only."""
    first = {id(thing): path for path, thing in reversed(list(named.items()))}
    return {path: thing for path, thing in named.items() if first[id(thing)] == path}


def first_paths(named: Mapping[str, Any]) -> Dict[int, str]:
    """The first path of each thing, by its id."""
    return {id(thing): path for path, thing in distinct(named).items()}


def join_path(path: str, name: str) -> str:
    """Path of what `name` means below `path`; either may be '', the net itself."""
    return f"{path}.{name}" if path and name else path or name


def place_of(path: str, block: Any) -> str:
    """How errors name a block.

    >>> place_of("0.body", gluon.nn.Dense(2)), place_of("", gluon.nn.Dense(2))
    ("'0.body' (Dense)", 'the net (Dense)')
    """
    return f"{repr(path) if path else 'the net'} ({getattr(block, 'mxkit_name', '') or type(block).__name__})"


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
        if not is_initialized(parameter):
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


class UnknownPathError(UnknownNameError, KeyError):
    """A path that a net does not have; the text has the nearest."""

    __str__ = Exception.__str__  # KeyError's shows the text as Python would write it, in quotes


def unknown_path(told: str, near: str, paths: Iterable[str]) -> UnknownPathError:
    """Build the error for a path: what was looked for, the nearest one, and what there is.

    >>> print(unknown_path("no block stands at '1'", "", ["0", "0.act"]))
    no block stands at '1': Paths of the net: 0, 0.act
    """
    some = list(paths)
    more = f" and {len(some) - 8} more" if len(some) > 8 else ""
    return UnknownPathError(f"{told}: {near + ' ' if near else ''}Paths of the net: {', '.join(some[:8])}{more}")


def match_parameters(net: Any, glob: str) -> Dict[str, Any]:
    """Parameters whose structural path fits a glob.

    Args:
        net: Any block.
        glob: A path like "features.0.weight", where `*` stands for any text, dots too, and `?` for a sign.

    Raises:
        UnknownNameError: No path fits.

    >>> list(match_parameters(mxkit.models.mlp(hidden=[8]), "*.bias"))
    ['1.bias', '2.bias']
    """
    everything = parameters_by_path(net)
    found = {path: parameter for path, parameter in everything.items() if fnmatchcase(path, glob)}
    if not found:
        blocks = {path.rsplit(".", count)[0] for path in everything for count in range(1, path.count(".") + 1)}
        near = nearest(glob, [*everything, *(f"{block}.*" for block in sorted(blocks))])
        raise unknown_path(f"no parameter fits {glob!r}", near, everything)
    return found


def never_trained(net: Any) -> Set[int]:
    """Ids of parameters that have no gradient by design."""
    never = {id(parameter) for parameter in parameters_by_path(net).values() if not is_trainable(parameter)}
    for _, block in blocks_by_path(net):
        # LayerNorm, InstanceNorm and GroupNorm say so in their arguments only, not on the parameter
        for switch, name in (("scale", "gamma"), ("center", "beta")):
            if layer_settings(block).get(switch) is False and name in own_parameters(block):
                never.add(id(own_parameters(block)[name]))
    return never
