"""A net from its description: every name is looked up in a list, every value is checked before MXNet sees it."""

from typing import Any, Dict, Iterable, Iterator, Mapping, NamedTuple, Tuple, Type

from mxkit.architecture.stock import OPTIONAL, SUPPORTED, Stock
from mxkit.architecture.values import (
    DTYPE,
    GRAD_REQ,
    INITIALIZER,
    NUMBER,
    SHAPE,
    argument,
    initializer,
    kind_of,
)
from mxkit.blocks import blocks_by_path, parameters_by_path
from mxkit.errors import ArchitectureError, nearest
import mxnet as mx
from mxnet import gluon

FORMAT = 1
_DEPTH = 100
_BLOCKS = 100_000
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, mx.MXNetError)
# What a parameter may say that its block's arguments do not.
STATES = {
    "shape": SHAPE,
    "dtype": DTYPE,
    "grad_req": GRAD_REQ,
    "lr_mult": NUMBER,
    "wd_mult": NUMBER,
    "initializer": INITIALIZER,
}


def build(description: Mapping[str, Any], *, classes: Iterable[Type[Any]] = ()) -> Any:
    """Build the net that `describe` described.

    Nothing of a description is executed or imported: classes are looked up among MXNet's own and in `classes`, and
    arguments are checked before a constructor sees them, so that a description from a stranger is an error at worst.

    Args:
        description: What `describe` returned, also after a way through JSON. Arguments that are left out have
            their defaults.
        classes: Your own blocks, which have a method `describe_arguments`.

    Returns:
        An uninitialized net with the same parameters by path, and the same forward pass. Sizes are those that were
        known. Names and prefixes are new, and it is not hybridized.

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
    net = _Builder(_named(classes)).block(fields["net"], "", 0)
    parameters = parameters_by_path(net)
    for path, twin in _mapping(fields.get("shared_parameters", {}), "shared_parameters").items():
        _share(net, parameters, path, twin)
    parameters = parameters_by_path(net)
    for path, states in _mapping(fields.get("parameters", {}), "parameters").items():
        _set_states(_lookup(parameters, path), path, states)
    return net


def _named(classes: Iterable[Type[Any]]) -> Dict[str, Type[Any]]:
    found: Dict[str, Type[Any]] = {}
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, gluon.Block) and hasattr(kind, "describe_arguments")):
            raise ArchitectureError(
                f"classes: expected subclasses of gluon.Block with a method describe_arguments, received {kind!r}"
            )
        if kind.__name__ in SUPPORTED or found.setdefault(kind.__name__, kind) is not kind:
            raise ArchitectureError(f"classes: two blocks have the name {kind.__name__!r}; rename yours")
    return found


class _Made(NamedTuple):
    """A finished block, and the number of blocks that a walk over it meets."""

    block: Any
    size: int


class _Builder:
    """One pass over a description, which remembers the finished blocks by path."""

    def __init__(self, classes: Mapping[str, Type[Any]]) -> None:
        self._classes = classes
        self._made: Dict[str, _Made] = {}
        self._count = 0

    def block(self, node: Any, path: str, depth: int) -> Any:
        """Build one block with all below it."""
        where = f"block {path!r}" if path else "the net"
        if depth > _DEPTH:
            raise ArchitectureError(f"{where}: blocks are nested deeper than {_DEPTH} levels")
        if isinstance(node, dict) and "shared" in node:
            shared = _fields(node, where, ("shared",), ("name",))["shared"]
            if not isinstance(shared, str) or shared not in self._made:
                raise ArchitectureError(f"{where}: expected the path of a block before it, received {shared!r:.100}")
            made = self._made[shared]
            self._count_blocks(made.size, where)
        else:
            before = self._count
            self._count_blocks(1, where)
            block = self._new(node, path, where, depth)
            made = _Made(block, self._count - before)
        self._made[path] = made
        return made.block

    def _count_blocks(self, more: int, where: str) -> None:
        self._count += more
        if self._count > _BLOCKS:
            raise ArchitectureError(f"{where}: the description has more than {_BLOCKS} blocks, shared ones included")

    def _new(self, node: Any, path: str, where: str, depth: int) -> Any:
        fields = _fields(node, where, ("class",), ("name", "arguments", "children"))
        name = fields["class"]
        arguments = _mapping(fields.get("arguments", {}), f"{where}: arguments")
        children = dict(_children(fields.get("children", []), where))
        if isinstance(name, str) and name in self._classes:
            if children:
                raise ArchitectureError(f"{where}: {name} makes its children by itself, so it cannot be given any")
            return _call(self._classes[name], arguments, where)
        if not isinstance(name, str) or name not in SUPPORTED:
            known = [*SUPPORTED, *self._classes]
            hint = nearest(name, known) if isinstance(name, str) else ""
            raise ArchitectureError(
                f"{where}: unknown class {name!r:.100}{': ' * bool(hint)}{hint}. Blocks of your own are given as "
                "build(description, classes=[...])"
            )
        kind, stock = SUPPORTED[name]
        checked = _checked(arguments, name, stock, where)
        _check_names(children, kind, stock, where)
        parts = {part: self.block(children.pop(part), f"{path}.{part}".lstrip("."), depth + 1) for part in stock.parts}
        block = _assemble(kind, stock, checked, where) if stock.assembled else _call(kind, {**checked, **parts}, where)
        with block.name_scope():
            for child, below in children.items():
                made = self.block(below, f"{path}.{child}".lstrip("."), depth + 1)
                _attach(block, child, made, where)
        return block


def _fields(node: Any, where: str, needed: Tuple[str, ...], allowed: Tuple[str, ...]) -> Mapping[str, Any]:
    fields = _mapping(node, where)
    missing = [name for name in needed if name not in fields]
    unknown = [name for name in fields if name not in needed + allowed]
    if missing or unknown:
        raise ArchitectureError(
            f"{where}: expected {', '.join(needed)} and perhaps {', '.join(allowed)}; "
            f"received {', '.join(map(repr, fields))!s:.200}"
        )
    return fields


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ArchitectureError(f"{where}: expected a dict with text for keys, received {value!r:.100}")
    return value


def _children(nodes: Any, where: str) -> Iterator[Tuple[str, Any]]:
    """Names and nodes of children; one without a name has its number."""
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


def _call(kind: Type[Any], arguments: Mapping[str, Any], where: str) -> Any:
    try:
        return kind(**arguments)
    except _REFUSALS as error:
        raise ArchitectureError(f"{where}: {kind.__name__} refuses {dict(arguments)!r:.300}: {error}") from error


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
    """Register a child as the net had it: under an attribute, unless that would hide one of the class."""
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
    """Let a block use another one's parameter, as `params=` of its constructor does."""
    old, new = _lookup(parameters, path), _lookup(parameters, twin)
    fits = old.shape is not None and new.shape is not None and len(old.shape) == len(new.shape)
    if not fits or any(a != b and a > 0 and b > 0 for a, b in zip(old.shape, new.shape)):
        raise ArchitectureError(f"{path!r} {old.shape} cannot be {twin!r} {new.shape}: their shapes differ")
    for _, block in blocks_by_path(net):
        for name in [name for name, parameter in block._reg_params.items() if parameter is old]:
            block._reg_params[name] = new
            vars(block)[name] = new
            block._params._params.pop(old.name, None)
            block._params._params[new.name] = new


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
            else:
                setattr(parameter, name, tuple(value) if name == "shape" else value)
        except _REFUSALS as error:
            raise ArchitectureError(f"parameter {path!r} refuses {name} {value!r:.100}: {error}") from error
