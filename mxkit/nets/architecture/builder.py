"""Builds a net from its description: names are looked up in lists, and values are checked before MXNet gets them."""

from typing import Any, Callable, Dict, Iterator, Mapping, Tuple, Type

from mxkit.core.blocks import (
    blocks_by_path,
    child_blocks,
    join_path,
    own_parameters,
    parameters_by_path,
    replace_parameter,
)
from mxkit.core.replicas import set_differentiable
from mxkit.errors import ArchitectureError, nearest
from mxkit.nets.architecture.registered import REGISTERED, decode, registered_block
from mxkit.nets.architecture.stock import OPTIONAL, SUPPORTED, Stock
from mxkit.nets.architecture.values import (
    DTYPE,
    FLAG,
    GRAD_REQ,
    INITIALIZER,
    NUMBER,
    SHAPE,
    argument,
    initializer,
    kind_of,
)
from mxkit.nets.architecture.zoos import NUMBERS, make_model
import mxnet as mx
from mxnet import gluon

FORMAT = 1
_DEPTH = 100
_BLOCKS = 100_000
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, mx.MXNetError)
# Settings of a parameter that its block's arguments do not determine.
STATES = {
    "shape": SHAPE,
    "dtype": DTYPE,
    "grad_req": GRAD_REQ,
    "differentiable": FLAG,
    "lr_mult": NUMBER,
    "wd_mult": NUMBER,
    "initializer": INITIALIZER,
}


def build(description: Mapping[str, Any]) -> Any:
    """Build the net that `describe` described.

    No code of a description is executed or imported: classes are looked up among MXNet's own and those with
    `@register_block`, and models in the tables of the zoos. Arguments of MXNet's classes are checked first, so a
    hostile description can only raise an error. Your own constructors and gluoncv's functions get plain values and
    known blocks unchecked. No weights are loaded.

    Args:
        description: The result of `describe`, which may have been stored as JSON. Missing arguments get their
            defaults. A block may be a model of a zoo: `{"model": "zoo:resnet18_v2"}`.

    Returns:
        An uninitialized net with the same parameter paths and the same forward pass. Names and prefixes are new, and
        the net is not hybridized.

    Raises:
        ArchitectureError: The description has another format, an unknown class or argument, a value that a layer
            does not take, or more than 100,000 blocks; the text names the block by its path.

    >>> net = build({"format": 1, "net": {"class": "Dense", "arguments": {"units": 3, "activation": "relu"}}})
    >>> net.initialize(); net(mx.nd.ones((2, 5))).shape
    (2, 3)
    """
    fields = _fields(description, "the description", ("format", "net"), ("parameters", "shared_parameters"))
    if type(fields["format"]) is not int or fields["format"] != FORMAT:
        raise ArchitectureError(
            f"the description has format {fields['format']!r:.100}; this mxkit builds {FORMAT}. Use a newer mxkit"
        )
    net = _Builder().block(fields["net"], "", 0)
    for path, twin in _mapping(fields.get("shared_parameters", {}), "shared_parameters").items():
        _share(net, parameters_by_path(net), path, twin)
    parameters = parameters_by_path(net)
    for path, states in _mapping(fields.get("parameters", {}), "parameters").items():
        _set_states(_lookup(parameters, path), path, states)
    return net


class _Builder:
    """One pass over a description.

    It keeps finished blocks by path, with the number of blocks in each, because a description may refer to a block
    that stands before.
    """

    def __init__(self) -> None:
        self._finished: Dict[str, Tuple[Any, int]] = {}
        self._count = 0

    def block(self, node: Any, path: str, depth: int) -> Any:
        """Build a block with all blocks inside it."""
        where = f"block {path!r}" if path else "the net"
        if depth > _DEPTH:
            raise ArchitectureError(f"{where}: blocks are nested deeper than {_DEPTH} levels")
        if isinstance(node, dict) and "shared" in node:
            shared = _fields(node, where, ("shared",), ("name",))["shared"]
            if not isinstance(shared, str) or shared not in self._finished:
                raise ArchitectureError(f"{where}: expected the path of a block before it, received {shared!r:.100}")
            block, size = self._finished[shared]
            self._count_blocks(size, where)
        else:
            before = self._count
            self._count_blocks(1, where)
            block = self._new(node, path, where, depth)
            size = self._count - before
        self._finished[path] = block, size
        return block

    def _count_blocks(self, more: int, where: str) -> None:
        self._count += more
        if self._count > _BLOCKS:
            raise ArchitectureError(f"{where}: the description has more than {_BLOCKS} blocks, shared ones included")

    def _counted(self, block: Any, where: str) -> Any:
        """Count the blocks that a constructor made inside `block`."""
        self._count_blocks(sum(1 for _ in blocks_by_path(block)) - 1, where)
        return block

    def _new(self, node: Any, path: str, where: str, depth: int) -> Any:
        if isinstance(node, dict) and "model" in node:
            return self._counted(_model(_fields(node, where, ("model",), ("name", "arguments")), where), where)
        fields = _fields(node, where, ("class",), ("name", "arguments", "children"))
        name = fields["class"]
        arguments = _mapping(fields.get("arguments", {}), f"{where}: arguments")
        children = dict(_children(fields.get("children", []), where))
        registered = registered_block(name)
        if registered is not None:
            blocks = {child: self.block(below, join_path(path, child), depth + 1) for child, below in children.items()}
            return self._counted(_registered(registered, arguments, blocks, where), where)
        if not isinstance(name, str) or name not in SUPPORTED:
            hint = nearest(name, [*SUPPORTED, *REGISTERED]) if isinstance(name, str) else ""
            raise ArchitectureError(
                f"{where}: unknown class {name!r:.100}{': ' * bool(hint)}{hint} For a block of your own, first import "
                "its class, decorated with @mxkit.nets.register_block, or call mxkit.nets.register_block(Class)"
            )
        return self._stock(name, arguments, children, (path, where, depth))

    def _stock(
        self, name: str, arguments: Mapping[str, Any], children: Dict[str, Any], place: Tuple[str, str, int]
    ) -> Any:
        path, where, depth = place
        kind, stock = SUPPORTED[name]
        checked = _checked(arguments, name, stock, where)
        _check_names(children, kind, stock, where)
        parts = {part: self.block(children.pop(part), join_path(path, part), depth + 1) for part in stock.parts}
        if stock.assembled:
            block = _assemble(kind, stock, checked, where)
        else:
            block = _call(stock.make or kind, {**checked, **parts}, f"{where}: {name}")
        with block.name_scope():
            for child, below in children.items():
                _attach(block, child, self.block(below, join_path(path, child), depth + 1), where)
        return block


def _decoded(arguments: Any, children: Mapping[str, Any], where: str) -> Dict[str, Any]:
    try:
        return {name: decode(value, children) for name, value in arguments.items()}
    except _REFUSALS as error:
        raise ArchitectureError(f"{where}: {arguments!r:.300}: {error}") from error


def _registered(kind: Type[Any], arguments: Mapping[str, Any], children: Mapping[str, Any], where: str) -> Any:
    block = _call(kind, _decoded(arguments, children, where), f"{where}: {kind.__name__}")
    unused = [name for name, child in children.items() if child_blocks(block).get(name) is not child]
    if unused:
        raise ArchitectureError(
            f"{where}: {kind.__name__} makes its children by itself, except those among its arguments; "
            f"it does not take {', '.join(unused)!s:.200}"
        )
    return block


def _model(fields: Mapping[str, Any], where: str) -> Any:
    name = fields["model"]
    if not isinstance(name, str):
        raise ArchitectureError(f"{where}: model: expected a name like 'zoo:resnet18_v2', received {name!r:.100}")
    arguments = _decoded(_mapping(fields.get("arguments", {}), f"{where}: arguments"), {}, where)
    refused = [argument for argument in NUMBERS if argument in arguments]
    if refused:
        raise ArchitectureError(f"{where}: {name}: {', '.join(refused)}: a description makes nets without weights")
    return _call(lambda **options: make_model(name, options), arguments, f"{where}: {name}")


def _fields(node: Any, where: str, needed: Tuple[str, ...], allowed: Tuple[str, ...]) -> Mapping[str, Any]:
    fields = _mapping(node, where)
    missing = [name for name in needed if name not in fields]
    unknown = [name for name in fields if name not in needed + allowed]
    if missing or unknown:
        raise ArchitectureError(
            f"{where}: expected {', '.join(needed)} and optionally {', '.join(allowed)}; "
            f"received {', '.join(map(repr, fields))!s:.200}"
        )
    return fields


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ArchitectureError(f"{where}: expected a dict with text for keys, received {value!r:.100}")
    return value


def _children(nodes: Any, where: str) -> Iterator[Tuple[str, Any]]:
    """Yield names and nodes of children; the default name is the child's number."""
    if not isinstance(nodes, list):
        raise ArchitectureError(f"{where}: children: expected a list, received {nodes!r:.100}")
    seen = set()
    for number, node in enumerate(nodes):
        name = node.get("name", str(number)) if isinstance(node, dict) else str(number)
        if not isinstance(name, str) or not name or "." in name or len(name) > 200 or name in seen:
            raise ArchitectureError(
                f"{where}: children: expected names that differ, without dots, received {name!r:.200}"
            )
        seen.add(name)
        yield name, node


def _checked(arguments: Mapping[str, Any], name: str, stock: Stock, where: str) -> Dict[str, Any]:
    for key, value in arguments.items():
        if key not in stock.arguments:
            hint = nearest(key, stock.arguments)
            raise ArchitectureError(
                f"{where}: {name} has no argument {key!r:.100}: {hint + ' ' if hint else ''}"
                f"It has {', '.join(stock.arguments) or 'none'}"
            )
        kind = kind_of(key)
        if not kind.fits(value):
            raise ArchitectureError(f"{where}: {name}: {key}: expected {kind.expected}; received {value!r:.100}")
    return {key: argument(key, value) for key, value in arguments.items()}


def _check_names(children: Mapping[str, Any], kind: Type[Any], stock: Stock, where: str) -> None:
    if stock.children is None:
        return
    needed = set(stock.children if stock.assembled else stock.parts) - set(OPTIONAL)
    if needed - set(children) or set(children) - set(stock.children):
        raise ArchitectureError(
            f"{where}: {kind.__name__} has the children {', '.join(stock.children) or '(none)'}; "
            f"received {', '.join(children) or 'none'!s:.200}"
        )


def _call(make: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> Any:
    try:
        return make(**arguments)
    except _REFUSALS as error:
        raise ArchitectureError(f"{where} refuses {dict(arguments)!r:.300}: {error!s:.1000}") from error


def _assemble(kind: Type[Any], stock: Stock, arguments: Mapping[str, Any], where: str) -> Any:
    missing = [name for name in stock.arguments if name not in arguments]
    if missing:
        raise ArchitectureError(f"{where}: {kind.__name__} needs the argument {', '.join(missing)}")
    block = object.__new__(kind)
    gluon.HybridBlock.__init__(block)
    for name in OPTIONAL:
        if name in (stock.children or ()):
            setattr(block, name, None)
    for name, value in arguments.items():
        setattr(block, name, value)
    return block


def _attach(block: Any, name: str, child: Any, where: str) -> None:
    """Register a child and set it as an attribute, unless that would hide an attribute of the class."""
    try:
        if name == "_activation" or (name.isidentifier() and getattr(block, name, None) is None):
            setattr(block, name, child)
        else:
            block.register_child(child, name)
    except _REFUSALS as error:
        raise ArchitectureError(f"{where}: child {name!r}: {error}") from error


def _lookup(parameters: Mapping[str, Any], path: Any) -> Any:
    if not isinstance(path, str) or path not in parameters:
        hint = nearest(path, parameters) if isinstance(path, str) else ""
        raise ArchitectureError(f"the net has no parameter {path!r:.200}{': ' * bool(hint)}{hint}")
    return parameters[path]


def _share(net: Any, parameters: Mapping[str, Any], path: str, twin: Any) -> None:
    """Replace the parameter at `path` by that at `twin`, as `params=` of a constructor does."""
    old, new = _lookup(parameters, path), _lookup(parameters, twin)
    graphs = [block for _, block in blocks_by_path(net) if type(block) is gluon.SymbolBlock]
    if any(old in own_parameters(block).values() for block in graphs):
        old, new = new, old  # a graph finds its parameters by their names
    # a parameter of a graph may have no shape
    shapes = [one.shape for one in (old, new) if one.shape is not None]
    sizes = [{size for size in axis if size > 0} for axis in zip(*shapes)]
    if len({len(shape) for shape in shapes}) > 1 or any(len(axis) > 1 for axis in sizes):
        raise ArchitectureError(f"{path!r} {old.shape} cannot be {twin!r} {new.shape}: their shapes differ")
    for _, block in blocks_by_path(net):
        for name in [name for name, parameter in own_parameters(block).items() if parameter is old]:
            replace_parameter(block, name, new)


def _set_states(parameter: Any, path: str, states: Any) -> None:
    for name, value in _mapping(states, f"parameter {path!r}").items():
        kind = STATES.get(name)
        if kind is None or not kind.fits(value):
            raise ArchitectureError(
                f"parameter {path!r}: {name!r:.100}: expected {kind.expected if kind else f'one of {list(STATES)}'}; "
                f"received {value!r:.100}"
            )
        try:
            if name == "initializer":
                parameter.init = initializer(value)
            elif name == "differentiable":
                set_differentiable(parameter, value)
            else:
                setattr(parameter, name, tuple(value) if name == "shape" else value)
        except _REFUSALS as error:
            raise ArchitectureError(f"parameter {path!r} refuses {name} {value!r:.100}: {error}") from error
