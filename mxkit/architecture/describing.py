"""A net's architecture read from its blocks, and compared with what would be built from it."""

from typing import Any, Dict, Iterator, List, Mapping, Set, Tuple, Type

from mxkit.architecture.building import FORMAT, build
from mxkit.architecture.stock import SUPPORTED, UNSUPPORTED
from mxkit.architecture.values import kind_of, plain
from mxkit.blocks import parameters_by_path
from mxkit.errors import ArchitectureError
from mxnet import gluon

_LINES = 20
# Attributes that a forward pass leaves or does not read: names, caches, hooks, sizes that the parameters know better.
_OWN = {
    *vars(gluon.HybridBlock(prefix="")),
    *("_in_units", "_in_channels", "in_channels", "_input_size"),
    *("skip_states", "_counter", "_init_counter", "_prev_output"),
}
_DEFERRED = ("in_units", "in_channels", "input_size")


def describe(net: Any) -> Dict[str, Any]:
    """Describe a net's architecture as plain JSON values, without its numbers.

    Classes and arguments come from the blocks' attributes, not from their repr, which loses many (T55). What the
    description says is built once and compared with the net, so that what would be lost is an error here.

    Args:
        net: A net of MXNet's own blocks: gluon.nn, gluon.rnn, gluon.contrib.nn and the model zoo, nested to any
            depth, with shared blocks and shared parameters. A block of your own needs a method
            `describe_arguments(self)`, which returns its constructor's arguments as plain values; it makes its
            children by itself. The net may be uninitialized, hybridized, in training, on any devices.

    Returns:
        `{"format": 1, "net": {...}}`: each block with "class", "arguments" and "children", a shared one as
        `{"shared": path}`; under "parameters" what differs from fresh blocks by path (frozen, cast, multipliers),
        under "shared_parameters" paths that are one parameter. Names, hooks and hybridization are not kept.

    Raises:
        ArchitectureError: A block cannot be described, or would not be rebuilt as it is; all of them are listed
            with the reason and the way out.

    >>> net = gluon.nn.HybridSequential(); net.add(gluon.nn.ELU(2.0))
    >>> describe(net)["net"]
    {'class': 'HybridSequential', 'children': [{'class': 'ELU', 'arguments': {'alpha': 2.0}}]}
    """
    reading = _Reading()
    node = reading.node(net, "", ())
    if reading.problems:
        raise _refusal(reading.problems)
    description: Dict[str, Any] = {"format": FORMAT, "net": node}
    # a scope of its own: counters of names are the process's, and describing a net is to change nothing (T37)
    with gluon.nn.HybridSequential(prefix="described_").name_scope():
        twin = build(description, classes=reading.classes)
        shared = _shared_parameters(net, twin)
        if shared:
            description["shared_parameters"] = shared
            twin = build(description, classes=reading.classes)
    problems = [*_block_losses(net, twin, "", reading.classes), *_path_losses(net, twin)]
    if problems:
        raise _refusal(problems)
    states = {path: state for path, state in _states(net, twin, problems) if state}
    if problems:
        raise _refusal(problems)
    if states:
        description["parameters"] = states
    return description


def _refusal(problems: List[str]) -> ArchitectureError:
    shown = problems[:_LINES] + ([f"and {len(problems) - _LINES} more"] if len(problems) > _LINES else [])
    return ArchitectureError("the net cannot be described:\n  " + "\n  ".join(shown))


class _Reading:
    """One walk over a net; problems are gathered, so that all are told at once."""

    def __init__(self) -> None:
        self.problems: List[str] = []
        self.classes: Set[Type[Any]] = set()
        self._seen: Dict[int, str] = {}

    def node(self, block: Any, path: str, above: Tuple[int, ...]) -> Dict[str, Any]:
        """Describe one block with all below it."""
        kind, where = type(block), _where(path, block)
        if id(block) in above:
            raise ArchitectureError(f"{where}: it is its own descendant; remove it from {path.rpartition('.')[0]!r}")
        if id(block) in self._seen:
            return {"shared": self._seen[id(block)]}
        self._seen[id(block)] = path
        known = SUPPORTED.get(kind.__name__, (None, None))[0] is kind
        if not known and hasattr(block, "describe_arguments"):
            self.classes.add(kind)
            return {"class": kind.__name__, "arguments": self._own_arguments(block, where)}
        if not known:
            self.problems.append(f"{where}: {_way_out(kind)}")
            return {}
        node: Dict[str, Any] = {"class": kind.__name__}
        arguments = self._arguments(block, where)
        if arguments:
            node["arguments"] = arguments
        children = list(self._children(block, path, (*above, id(block))))
        if children:
            node["children"] = children
        return node

    def _own_arguments(self, block: Any, where: str) -> Any:
        arguments = block.describe_arguments()
        try:
            told = plain(arguments)
            if isinstance(told, dict):
                return told
        except TypeError as error:
            self.problems.append(f"{where}: describe_arguments: {error}")
            return {}
        self.problems.append(f"{where}: describe_arguments: expected a dict, received {arguments!r:.100}")
        return {}

    def _arguments(self, block: Any, where: str) -> Dict[str, Any]:
        told = {}
        for name, reader in SUPPORTED[type(block).__name__][1].arguments.items():
            try:
                told[name] = plain(reader(block))
            except (TypeError, AttributeError, LookupError) as error:
                self.problems.append(f"{where}: {name}: {error}. {_REPLACE}")
                continue
            if not kind_of(name).fits(told[name]):
                expected = kind_of(name).expected
                self.problems.append(f"{where}: {name}: expected {expected}, received {told[name]!r:.100}")
        return told

    def _children(self, block: Any, path: str, above: Tuple[int, ...]) -> Iterator[Dict[str, Any]]:
        stock = SUPPORTED[type(block).__name__][1]
        for number, (name, child) in enumerate(block._children.items()):
            if name == "act" and "activation" in stock.arguments and type(child) is gluon.nn.Activation:
                continue  # the argument says it
            below = f"{path}.{name}".lstrip(".")
            if "." in name or not name:
                self.problems.append(f"{_where(below, child)}: a child's name has dots; register it without")
            elif stock.children is not None and name not in stock.children:
                self.problems.append(
                    f"{_where(below, child)}: {type(block).__name__} does not use a child of this name. Remove it, "
                    "or write a block of your own around both"
                )
            node = self.node(child, below, above)
            yield node if name == str(number) else {"name": name, **node}


_REPLACE = "Use the name of an operator, or a block of your own with a method describe_arguments"


def _where(path: str, block: Any) -> str:
    return f"{path or 'the net'} ({type(block).__module__}.{type(block).__qualname__})"


def _way_out(kind: Type[Any]) -> str:
    if kind in UNSUPPORTED:
        return UNSUPPORTED[kind]
    return (
        "it is no block of MXNet's, so its forward pass cannot be known. Give it a method describe_arguments(self), "
        "which returns the arguments of its constructor as a dict of plain values, and build with "
        f"classes=[{kind.__name__}]"
    )


def _block_losses(block: Any, twin: Any, path: str, classes: Set[Type[Any]]) -> Iterator[str]:
    """What of a block the rebuilt one would not have."""
    where = _where(path, block)
    if type(block) is not type(twin) or list(block._children) != list(twin._children):
        yield (
            f"{where}: it would be rebuilt as {type(twin).__name__} with the children {list(twin._children)}, "
            f"where it has {list(block._children)}"
        )
        return
    for name, value in vars(block).items():
        if type(block) not in classes and name not in _OWN and not name.endswith("_initializer"):
            loss = _loss(block, twin, name, value)
            if loss:
                yield f"{where}: {loss}"
    for name, child in block._children.items():
        yield from _block_losses(child, twin._children[name], f"{path}.{name}".lstrip("."), classes)


def _loss(block: Any, twin: Any, name: str, value: Any) -> str:
    if name not in vars(twin):
        # others were set from outside, and no class of MXNet's reads them
        return f"its method {name} was replaced by {value!r:.100}" if callable(getattr(type(block), name, None)) else ""
    ours, theirs = _comparable(value), _comparable(vars(twin)[name])
    return "" if ours == theirs else f"its {name} is {ours!r:.200}, and would be {theirs!r:.200}"


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        # SyncBatchNorm's key is its name
        return {name: _comparable(one) for name, one in value.items() if name != "key"}
    try:
        return plain(value)
    except TypeError:
        return None


def _path_losses(net: Any, twin: Any) -> List[str]:
    ours, theirs = parameters_by_path(net), parameters_by_path(twin)
    lost = [f"parameter {path}: it would not be rebuilt" for path in ours if path not in theirs]
    return lost + [f"parameter {path}: it would come in addition" for path in theirs if path not in ours]


def _first_paths(parameters: Mapping[str, Any]) -> Dict[int, str]:
    first: Dict[int, str] = {}
    for path, parameter in parameters.items():
        first.setdefault(id(parameter), path)
    return first


def _shared_parameters(net: Any, twin: Any) -> Dict[str, str]:
    """Paths that are one parameter in the net, and two in what would be built."""
    ours, theirs = parameters_by_path(net), parameters_by_path(twin)
    first = _first_paths(ours)
    pairs = {path: first[id(parameter)] for path, parameter in ours.items() if first[id(parameter)] != path}
    return {
        path: twin_path
        for path, twin_path in pairs.items()
        if path in theirs and theirs.get(twin_path) is not theirs[path]
    }


def _states(net: Any, twin: Any, problems: List[str]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """What each parameter says beyond its block's arguments."""
    theirs = parameters_by_path(twin)
    first = set(_first_paths(parameters_by_path(net)).values())
    for path, parameter in parameters_by_path(net).items():
        if path not in first:
            continue
        other = theirs[path]
        ours, fresh = _state(parameter), _state(other)
        for name in ("_stype", "_grad_stype", "_differentiable"):
            if getattr(parameter, name) != getattr(other, name):
                problems.append(f"parameter {path}: its {name[1:]} {getattr(parameter, name)!r} would be lost")
        shapes = ours.pop("shape"), fresh.pop("shape")
        state = {name: value for name, value in ours.items() if value != fresh[name]}
        if shapes[0] != shapes[1] and 0 not in shapes[0]:
            state = {"shape": shapes[0], **state}
        yield path, state


def _state(parameter: Any) -> Dict[str, Any]:
    try:
        told = plain(parameter.init)
    except TypeError as error:
        raise ArchitectureError(f"the net cannot be described:\n  parameter {parameter.name}: {error}") from error
    return {
        "shape": [max(0, size) for size in parameter.shape or ()],
        "dtype": plain(parameter.dtype),
        "grad_req": parameter.grad_req,
        "lr_mult": plain(parameter.lr_mult),
        "wd_mult": plain(parameter.wd_mult),
        "initializer": told,
    }


def differences(ours: Any, theirs: Any, path: str = "") -> List[str]:
    """Where two descriptions are not the same architecture: classes, arguments and children.

    Sizes that one of them does not know yet, initializers and what parameters say are left aside.

    Args:
        ours, theirs: What `describe` returned.

    Returns:
        A line for each difference, with the path of its block.

    >>> relu, tanh = (describe(gluon.nn.Dense(2, activation=name)) for name in ("relu", "tanh"))
    >>> differences(relu, tanh)
    ["the net: activation: 'relu' here, 'tanh' there"]
    """
    if "net" in ours:
        shared = _unlike("shared_parameters", ours.get("shared_parameters"), theirs.get("shared_parameters"))
        return differences(ours["net"], theirs["net"]) + [f"the net: {line}" for line in shared]
    where = path or "the net"
    lines = [line for name in ("class", "shared") for line in _unlike(name, ours.get(name), theirs.get(name))]
    if lines:
        return [f"{where}: {line}" for line in lines]
    left, right = ours.get("arguments", {}), theirs.get("arguments", {})
    for name in {**left, **right}:
        deferred = name in _DEFERRED and 0 in (left.get(name), right.get(name))
        if not deferred and not name.endswith("_initializer"):
            lines += _unlike(name, left.get(name), right.get(name))
    mine, other = (_by_name(node.get("children", [])) for node in (ours, theirs))
    lines += _unlike("children", list(mine), list(other))
    below = [line for name in mine if name in other for line in differences(mine[name], other[name], _join(path, name))]
    return [f"{where}: {line}" for line in lines] + below


def _unlike(name: str, ours: Any, theirs: Any) -> List[str]:
    return [] if ours == theirs else [f"{name}: {ours!r:.200} here, {theirs!r:.200} there"]


def _by_name(children: List[Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    return {child.get("name", str(number)): child for number, child in enumerate(children)}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")
