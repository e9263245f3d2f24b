"""Gluon's blocks and parameters by path, the net's devices, and the parts of Gluon's datasets and loaders."""

from fnmatch import fnmatchcase
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

from mxkit.core.arrays import is_numpy
from mxkit.core.replicas import holds_numpy, is_initialized, is_trainable
from mxkit.errors import DeviceError, NotInitializedError, UnknownNameError, nearest
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data import vision
from mxnet.gluon.data.dataset import _FilteredDataset, _LazyTransformDataset, _SampledDataset, _TransformFirstClosure

_Thing = TypeVar("_Thing")


def check_net(net: Any) -> None:
    """Check that an argument is a net; arguments in a wrong order are the usual mistake.

    Raises:
        TypeError: `net` is not a `gluon.Block`.

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

    Paths do not contain Gluon's process-wide counters, which differ between two instances of a net (T37). A
    parameter that two blocks share has both paths.

    Raises:
        TypeError: `net` is not a `gluon.Block`.
    """
    check_net(net)
    return dict(net._collect_params_with_prefix())


def blocks_by_path(net: Any, path: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield every block with its path, '' for the net itself; a shared block once for each of its paths."""
    check_net(net)
    yield path, net
    for name, child in child_blocks(net).items():
        yield from blocks_by_path(child, f"{path}.{name}" if path else name)


def child_blocks(block: Any) -> Dict[str, Any]:
    """Direct children of a block by name: Gluon's own dict, so that a change of it changes the block."""
    children: Dict[str, Any] = block._children
    return children


def own_parameters(block: Any) -> Dict[str, Any]:
    """Parameters of a block without those of its children, by attribute: Gluon's own dict; empty for a plain Block."""
    parameters: Dict[str, Any] = getattr(block, "_reg_params", {})
    return parameters


def replace_parameter(block: Any, name: str, new: Any) -> None:
    """Replace a parameter of a block by another one, as `params=` of its constructor does."""
    old = own_parameters(block)[name]
    own_parameters(block)[name] = new
    vars(block)[name] = new
    block._params._params.pop(old.name, None)
    block._params._params[new.name] = new


def layer_settings(block: Any) -> Dict[str, Any]:
    """Arguments of a stock layer's operator, like "kernel" of a convolution: the layer's own dict, or an empty one."""
    settings = getattr(block, "_kwargs", None)
    return settings if isinstance(settings, dict) else {}


def operator_name(layer: Any) -> str:
    """Name of a convolution's operator, like "Deconvolution"; `mx.np` calls it "deconvolution"."""
    return str(layer._op_name).capitalize()


def distinct(named: Mapping[str, _Thing]) -> Dict[str, _Thing]:
    """Keep each value only under its first path."""
    first = {id(thing): path for path, thing in reversed(list(named.items()))}
    return {path: thing for path, thing in named.items() if first[id(thing)] == path}


def distinct_blocks(net: Any) -> Dict[str, Any]:
    """The net and all blocks inside it, each under its first path."""
    return distinct(dict(blocks_by_path(net)))


def first_paths(named: Mapping[str, Any]) -> Dict[int, str]:
    """First path of each value, by the value's id."""
    return {id(thing): path for path, thing in distinct(named).items()}


def join_path(path: str, name: str) -> str:
    """Join two paths; either may be '', the net itself."""
    return f"{path}.{name}" if path and name else path or name


def depth_of(path: str) -> int:
    """Number of blocks in a path; 0 for the net itself."""
    return path.count(".") + 1 if path else 0


def place_of(path: str, block: Any) -> str:
    """Name of a block in errors.

    >>> place_of("0.body", gluon.nn.Dense(2)), place_of("", gluon.nn.Dense(2))
    ("'0.body' (Dense)", 'the net (Dense)')
    """
    return f"{repr(path) if path else 'the net'} ({getattr(block, 'mxkit_name', '') or type(block).__name__})"


def paths_of(parameters: Sequence[Any], net: Any) -> List[str]:
    """Paths of parameters in the order of `net`, then the Gluon names of parameters that are not in the net."""
    names = {id(parameter): str(parameter.name) for parameter in parameters}
    inside = [path for path, parameter in parameters_by_path(net).items() if names.pop(id(parameter), None)]
    return [*inside, *names.values()]


def wait_before_reading() -> None:
    """Wait for MXNet's queue before parameters are read on the host (T116).

    `asnumpy` waits for an array and then reads it without a lock. A convolution in prediction reorders its weight in
    place, by an operation that it queues while it runs; between the wait and the read, it mixes the numbers' order.
    Copies and operators (`copyto`, `copy`, `astype`) need no wait: they are queued, and MXNet's engine orders them.
    """
    mx.nd.waitall()


def net_devices(net: Any, expected: Optional[Sequence["mx.Context"]] = None) -> List["mx.Context"]:
    """Devices of the net's parameters, in the net's order.

    Args:
        net: Any block. The device of a net without parameters is the CPU.
        expected: Required devices; None accepts any.

    Raises:
        TypeError: `net` is not a `gluon.Block`.
        NotInitializedError: A parameter has neither a value nor a device.
        DeviceError: Parameters are on different devices, or not on the expected ones.
    """
    devices: Optional[List[mx.Context]] = None
    first = ""
    for path, parameter in parameters_by_path(net).items():
        if not is_initialized(parameter):
            raise NotInitializedError(
                f"the net is not initialized: parameter {path!r} has no value. "
                "Call mxkit.initialize(net, 'xavier') or net.initialize() first"
            )
        own = parameter.list_ctx()
        if devices is None:
            devices, first = own, path
        elif devices != own:
            raise DeviceError(
                f"the net is spread over devices: parameter {first!r} lives on {devices}, {path!r} on {own}. "
                f"Move it as a whole: mxkit.to(net, {devices})"
            )
    devices = devices or [mx.cpu()]
    if expected is not None and list(expected) != devices:
        raise DeviceError(
            f"the net lives on {devices}; asked for were {list(expected)}. "
            f"Move it with mxkit.to(net, {list(expected)}) before the Trainer is made, or ask for {devices}"
        )
    return devices


def is_numpy_net(net: Any) -> bool:
    """Whether a net computes on arrays of `mx.np`.

    Its parameters decide, in a SymbolBlock the graph, and without values the switch of the thread.

    Raises:
        TypeError: `net` is not a `gluon.Block`.
        ValueError: Some parameters hold NDArrays, others arrays of `mx.np`.
    """
    first: Dict[bool, str] = {}
    graphs: Set[int] = set()
    for path, block in blocks_by_path(net):
        if isinstance(block, gluon.SymbolBlock):  # `imports` loads NDArrays, also for a graph of mx.np
            first.setdefault(is_numpy(block._cached_graph[1]), join_path(path, "*"))
            graphs.update(map(id, block.params.values()))
    for path, parameter in parameters_by_path(net).items():
        numpy = holds_numpy(parameter)
        if numpy is not None and id(parameter) not in graphs:
            first.setdefault(numpy, path)
    if len(first) == 2:
        raise ValueError(
            f"the net has two kinds of parameters: {first[True]!r} holds arrays of mx.np, {first[False]!r} those of "
            "mx.nd. Call npx.set_np() (or npx.reset_np()) before the whole net is initialized, not in the middle. "
            "collect_params().load always gives mx.nd: mxkit.load_parameters gives the kind of the net"
        )
    return next(iter(first), mx.util.is_np_array())


class UnknownPathError(UnknownNameError, KeyError):
    """A path that a net does not have; the text names the nearest path."""

    __str__ = Exception.__str__  # KeyError would print the text in quotes


def unknown_path(problem: str, near: str, paths: Iterable[str]) -> UnknownPathError:
    """Build the error for a path: the problem, the nearest path, and the first paths of the net.

    >>> print(unknown_path("no block stands at '1'", "", ["0", "0.act"]))
    no block stands at '1': Paths of the net: 0, 0.act
    """
    known = list(paths)
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    return UnknownPathError(f"{problem}: {near + ' ' if near else ''}Paths of the net: {', '.join(known[:8])}{more}")


def match_parameters(net: Any, glob: str) -> Dict[str, Any]:
    """Parameters with a structural path that fits a glob.

    Args:
        net: Any block.
        glob: A path like "features.0.weight"; `*` matches any text, also dots, and `?` matches one character.

    Raises:
        UnknownNameError: No path fits.
        TypeError: `glob` is no text.

    >>> list(match_parameters(mxkit.models.mlp(hidden=[8]), "*.bias"))
    ['1.bias', '2.bias']
    """
    if not isinstance(glob, str):
        raise TypeError(f"expected one path or glob as text, like 'features.*'; received {glob!r:.100}")
    parameters = parameters_by_path(net)
    matches = {path: parameter for path, parameter in parameters.items() if fnmatchcase(path, glob)}
    if not matches:
        blocks = {path.rsplit(".", count)[0] for path in parameters for count in range(1, path.count(".") + 1)}
        near = nearest(glob, [*parameters, *(f"{block}.*" for block in sorted(blocks))])
        raise unknown_path(f"no parameter fits {glob!r}", near, parameters)
    return matches


def never_trained(net: Any) -> Set[int]:
    """Ids of parameters without a gradient by design."""
    never = {id(parameter) for parameter in parameters_by_path(net).values() if not is_trainable(parameter)}
    for _, block in blocks_by_path(net):
        if isinstance(block, gluon.SymbolBlock):  # running statistics have it only in the graph
            states = set(block._cached_graph[1].list_auxiliary_states())
            never.update(id(parameter) for name, parameter in block.params.items() if name in states)
        # LayerNorm, InstanceNorm and GroupNorm have it only in their arguments, not on the parameter
        for switch, name in (("scale", "gamma"), ("center", "beta")):
            if layer_settings(block).get(switch) is False and name in own_parameters(block):
                never.add(id(own_parameters(block)[name]))
    return never


class LoaderParts(NamedTuple):
    """Arguments of a DataLoader.

    Attributes:
        dataset: Its dataset.
        sampler: Yields the numbers of the samples; None for a batch sampler of another class.
        batch_size: None if it is unknown.
        last_batch: "keep", "discard" or "rollover".
        workers: Number of its worker processes or threads.
    """

    dataset: Any
    sampler: Any
    batch_size: Optional[int]
    last_batch: str
    workers: int


def loader_parts(data: Any) -> Optional[LoaderParts]:
    """Return the arguments of a gluon DataLoader, or None for another object."""
    batches = getattr(data, "_batch_sampler", None)
    if batches is None or not hasattr(data, "_dataset"):
        return None
    size, last = getattr(batches, "_batch_size", None), getattr(batches, "_last_batch", "keep")
    return LoaderParts(data._dataset, getattr(batches, "_sampler", None), size, last, getattr(data, "_num_workers", 0))


def transformed(dataset: Any) -> Optional[Tuple[Any, Any]]:
    """Return dataset and function of `dataset.transform(function)`, or None for another object."""
    return (dataset._data, dataset._fn) if type(dataset) is _LazyTransformDataset else None


def chosen(dataset: Any) -> Optional[Tuple[Any, List[int]]]:
    """Return the dataset and the numbers of the samples of a `sample`, `take`, `shard` or `filter`, or None."""
    return (dataset._dataset, dataset._indices) if type(dataset) in (_SampledDataset, _FilteredDataset) else None


def of_first(function: Any) -> Optional[Any]:
    """Return the function of `transform_first`, or None for a function of whole samples."""
    return function._fn if isinstance(function, _TransformFirstClosure) else None


def for_first(function: Any) -> Any:
    """Make a function of whole samples that changes the first array."""
    return _TransformFirstClosure(function)


def held_arrays(dataset: Any) -> List[Any]:
    """Return the arrays of an ArrayDataset, or the data of a SimpleDataset."""
    return list(dataset._data) if isinstance(dataset, gluon.data.ArrayDataset) else [dataset._data]


def own_transform(dataset: Any) -> Any:
    """Return the argument `transform` of one of Gluon's vision datasets."""
    return dataset._transform


def own_flag(dataset: Any) -> Any:
    """Return the argument `flag` of one of Gluon's datasets of encoded images."""
    return dataset._flag


def transform_options(transform: Any) -> Tuple[Any, ...]:
    """Return the arguments of a crop of Gluon, of Resize or of Normalize, in the order of their computation."""
    if type(transform) is vision.transforms.Normalize:
        return transform._mean, transform._std
    if type(transform) is vision.transforms.Resize:
        return transform._size, transform._keep, transform._interpolation
    return tuple(transform._args)
