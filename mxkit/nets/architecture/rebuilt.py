"""Differences between a net and the net built from its description, and between two descriptions."""

from typing import Any, Dict, Iterator, List, Tuple

from mxkit.core.blocks import child_blocks, distinct, first_paths, join_path, parameters_by_path
from mxkit.core.replicas import is_differentiable, values_of
from mxkit.nets.architecture.registered import CALL
from mxkit.nets.architecture.values import plain
from mxkit.nets.architecture.zoos import MADE
from mxnet import gluon
import numpy as np

# Attributes that are not compared: names, caches, hooks, and sizes, which are compared by the parameters' shapes.
_IGNORED = {
    *vars(gluon.HybridBlock(prefix="")),
    *("_in_units", "_in_channels", "in_channels", "_input_size"),
    "_op_name",  # of a convolution: its class determines it, and the switches of MXNet how it is spelled
    *("skip_states", "_counter", "_init_counter", "_prev_output", "mxkit_name"),
    *("report", "_graph", "_graphs", "_held"),  # of an OptimizedNet
    *(CALL, MADE),
}
_DEFERRED = ("in_units", "in_channels", "input_size")


def losses(net: Any, twin: Any) -> List[str]:
    """Return a line for each child, attribute and parameter of the net that its rebuilt twin does not have."""
    ours, theirs = parameters_by_path(net), parameters_by_path(twin)
    lost = [f"parameter {path}: it would not be rebuilt" for path in ours if path not in theirs]
    added = [f"parameter {path}: it would come in addition" for path in theirs if path not in ours]
    return [*_block_losses(net, twin, ""), *lost, *added]


def where(path: str, block: Any) -> str:
    """Return path and class of a block, for errors."""
    return f"{path or 'the net'} ({type(block).__module__}.{type(block).__qualname__})"


def _block_losses(block: Any, twin: Any, path: str) -> Iterator[str]:
    if type(block) is not type(twin) or list(child_blocks(block)) != list(child_blocks(twin)):
        yield (
            f"{where(path, block)}: it would be rebuilt as {type(twin).__name__} with the children "
            f"{list(child_blocks(twin))!s:.500}, where it has {list(child_blocks(block))!s:.500}"
        )
        return
    for name, value in vars(block).items():
        if name not in _IGNORED and not name.endswith("_initializer"):
            loss = _loss(block, twin, name, value)
            if loss:
                yield f"{where(path, block)}: {loss}"
    for name, child in child_blocks(block).items():
        yield from _block_losses(child, child_blocks(twin)[name], join_path(path, name))


def _loss(block: Any, twin: Any, name: str, value: Any) -> str:
    if name not in vars(twin):
        # another attribute was set by a user, and no class of MXNet reads it
        return f"its method {name} was replaced by {value!r:.100}" if callable(getattr(type(block), name, None)) else ""
    ours, theirs = _comparable(value), _comparable(vars(twin)[name])
    if ours == theirs:
        return ""
    way_out = ". Make it an argument of the constructor, or set it back" if hasattr(block, CALL) else ""
    return f"its {name} is {ours!r:.200}, and would be {theirs!r:.200}{way_out}"


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        # SyncBatchNorm's key is its name
        return {name: _comparable(one) for name, one in value.items() if name != "key"}
    try:
        return plain(value)
    except TypeError:
        return None


def shared_parameters(net: Any, twin: Any) -> Dict[str, str]:
    """Return pairs of paths that hold one parameter in the net, and two in its rebuilt twin."""
    ours, theirs = parameters_by_path(net), parameters_by_path(twin)
    first = first_paths(ours)
    pairs = {path: first[id(parameter)] for path, parameter in ours.items()}
    return {
        path: shared
        for path, shared in pairs.items()
        if path != shared and path in theirs and theirs.get(shared) is not theirs[path]
    }


def states(net: Any, twin: Any, problems: List[str]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Yield settings of each parameter that its twin does not have; settings without a form in JSON are problems."""
    theirs = parameters_by_path(twin)
    for path, parameter in distinct(parameters_by_path(net)).items():
        other = theirs[path]
        for name in ("_stype", "_grad_stype"):
            if getattr(parameter, name) != getattr(other, name):
                problems.append(f"parameter {path}: its {name[1:]} {getattr(parameter, name)!r} would be lost")
        shape, twins = ([max(0, size) for size in _shape(one)] for one in (parameter, other))
        defaults = _state(other)
        state = {name: value for name, value in _state(parameter).items() if value != defaults[name]}
        if shape != twins and 0 not in shape:
            state = {"shape": shape, **state}
        try:
            state.update(_initializer(parameter, other))
        except TypeError as error:
            problems.append(f"parameter {path}: {error}")
        yield path, state


def _shape(parameter: Any) -> Tuple[int, ...]:
    if parameter.shape is None and values_of(parameter):  # of a SymbolBlock that was read from files
        return tuple(parameter.list_data()[0].shape)
    return parameter.shape or ()


def _state(parameter: Any) -> Dict[str, Any]:
    return {
        "dtype": plain(parameter.dtype),
        "grad_req": parameter.grad_req,
        "differentiable": is_differentiable(parameter),
        "lr_mult": plain(parameter.lr_mult),
        "wd_mult": plain(parameter.wd_mult),
    }


def _initializer(parameter: Any, other: Any) -> Dict[str, Any]:
    """Return the initializer of a parameter if its twin has another one.

    Raises:
        TypeError: The initializer has no form in JSON, or a constant has another value.
    """
    if isinstance(parameter, gluon.Constant):  # the name of its initializer has an address in it
        if isinstance(other, gluon.Constant) and np.array_equal(parameter.value.asnumpy(), other.value.asnumpy()):
            return {}
        raise TypeError("its constant value would be lost")
    same = parameter.init == other.init or plain(parameter.init) == plain(other.init)
    return {} if same else {"initializer": plain(parameter.init)}


def differences(ours: Any, theirs: Any, path: str = "") -> List[str]:
    """Compare two descriptions: classes, arguments and children.

    Sizes that one of them does not know yet, initializers and settings of parameters are not compared.

    Args:
        ours: A result of `describe`.
        theirs: Another one.
        path: Path of the block that is compared; '' is the net.

    Returns:
        A line for each difference, with the path of its block.

    >>> relu, tanh = (mxkit.nets.describe(gluon.nn.Dense(2, activation=name)) for name in ("relu", "tanh"))
    >>> differences(relu, tanh)
    ["the net: activation: 'relu' here, 'tanh' there"]
    """
    if "net" in ours:
        shared = _unlike("shared_parameters", ours.get("shared_parameters"), theirs.get("shared_parameters"))
        return differences(ours["net"], theirs["net"]) + [f"the net: {line}" for line in shared]
    place = path or "the net"
    lines = [line for name in ("class", "model", "shared") for line in _unlike(name, ours.get(name), theirs.get(name))]
    if lines:
        return [f"{place}: {line}" for line in lines]
    left, right = ours.get("arguments", {}), theirs.get("arguments", {})
    for name in {**left, **right}:
        deferred = name in _DEFERRED and 0 in (left.get(name), right.get(name))
        if not deferred and not name.endswith("_initializer"):
            lines += _unlike(name, left.get(name), right.get(name))
    mine, other = (_by_name(node.get("children", [])) for node in (ours, theirs))
    lines += _unlike("children", list(mine), list(other))
    below = [
        line for name in mine if name in other for line in differences(mine[name], other[name], join_path(path, name))
    ]
    return [f"{place}: {line}" for line in lines] + below


def _unlike(name: str, ours: Any, theirs: Any) -> List[str]:
    return [] if ours == theirs else [f"{name}: {ours!r:.200} here, {theirs!r:.200} there"]


def _by_name(children: List[Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    return {child.get("name", str(number)): child for number, child in enumerate(children)}
