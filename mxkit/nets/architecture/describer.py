"""Describes a net's architecture, and compares the net with one that is built from the description."""

from itertools import count
from typing import Any, Dict, Iterator, List, Tuple, Type

from mxkit.core.blocks import child_blocks, join_path
from mxkit.errors import ArchitectureError
from mxkit.nets.architecture.builder import FORMAT, build
from mxkit.nets.architecture.rebuilt import losses, shared_parameters, states, where
from mxkit.nets.architecture.registered import CALL, REGISTERED, encode
from mxkit.nets.architecture.stock import SUPPORTED, UNSUPPORTED
from mxkit.nets.architecture.values import kind_of, plain
from mxkit.nets.architecture.zoos import MADE
from mxnet import gluon

_LINES = 20
_NUMBERS = count()


def describe(net: Any) -> Dict[str, Any]:
    """Describe a net's architecture as plain JSON values, without its weights.

    Classes and arguments are read from the blocks' attributes, because a repr loses many of them (T55). The
    description is built once and compared with the net: a difference is an error.

    Args:
        net: A net of MXNet's own blocks: gluon.nn, gluon.rnn, gluon.contrib.nn, gluon.contrib.rnn, SymbolBlocks and
            the model zoo, nested to any depth, with shared blocks and shared parameters. A net of gluoncv must come
            from `mxkit.models.get_model`. The class of a block of your own needs `@register_block`, another
            library's `register_block(Class)`; its constructor makes its children. The net may be uninitialized,
            hybridized, in training, on any devices.

    Returns:
        `{"format": 1, "net": {...}}`. A block has "class", "arguments" and "children"; a block that stands before has
        `{"shared": path}`; a net of gluoncv has `{"model": name, "arguments": {...}}`. "parameters" holds settings
        by path that differ from those of a new net (frozen, cast, multipliers), "shared_parameters" the paths that
        hold another path's parameter. Names, hooks and hybridization are not described.

    Raises:
        ArchitectureError: A block cannot be described, or the net built from its description differs; the text lists
            all such blocks, with the reason and the solution.

    >>> net = gluon.nn.HybridSequential(); net.add(gluon.nn.ELU(2.0))
    >>> describe(net)["net"]
    {'class': 'HybridSequential', 'children': [{'class': 'ELU', 'arguments': {'alpha': 2.0}}]}
    """
    walk = _Walk()
    description: Dict[str, Any] = {"format": FORMAT, "net": walk.node(net, "", ())}
    _refuse(walk.problems)
    # in a scope of its own, so that Gluon's counters of names do not move (T37); each scope has another prefix, because
    # Gluon warns of a second Constant of the same name at the same address
    with gluon.nn.HybridSequential(prefix=f"described{next(_NUMBERS)}_").name_scope():
        twin = build(description)
        shared = shared_parameters(net, twin)
        if shared:
            description["shared_parameters"] = shared
            twin = build(description)
    problems = losses(net, twin)
    _refuse(problems)
    settings = {path: differing for path, differing in states(net, twin, problems) if differing}
    _refuse(problems)
    if settings:
        description["parameters"] = settings
    return description


def _refuse(problems: List[str]) -> None:
    if problems:
        shown = problems[:_LINES] + ([f"and {len(problems) - _LINES} more"] if len(problems) > _LINES else [])
        raise ArchitectureError("the net cannot be described:\n  " + "\n  ".join(shown))


class _Walk:
    """One walk over a net; it collects all problems, so that one error can list them."""

    def __init__(self) -> None:
        self.problems: List[str] = []
        self._seen: Dict[int, str] = {}

    def node(self, block: Any, path: str, above: Tuple[int, ...]) -> Dict[str, Any]:
        """Describe a block with all blocks inside it."""
        name = type(block).__name__
        if id(block) in above:
            parent = path.rpartition(".")[0]
            raise ArchitectureError(f"{where(path, block)}: it is its own descendant; remove it from {parent!r}")
        if id(block) in self._seen:
            return {"shared": self._seen[id(block)]}
        self._seen[id(block)] = path
        if SUPPORTED.get(name, (None, None))[0] is type(block):
            node: Dict[str, Any] = {"class": name, "arguments": self._arguments(block, path)}
            node["children"] = list(self._described_children(block, path, (*above, id(block))))
        elif REGISTERED.get(name) is type(block) and hasattr(block, CALL):
            node = {"class": name, **self._call(block, path, (*above, id(block)))}
        elif hasattr(block, MADE):
            model, arguments = getattr(block, MADE)
            node = {"model": model, "arguments": self._encoded(arguments, block, path, [])}
        else:
            self.problems.append(f"{where(path, block)}: {_way_out(block)}")
            return {}
        return {key: value for key, value in node.items() if value}

    def _call(self, block: Any, path: str, above: Tuple[int, ...]) -> Dict[str, Any]:
        """Describe the arguments of a registered block's constructor, with the blocks among them."""
        used: List[str] = []
        arguments = self._encoded(getattr(block, CALL), block, path, used)
        below = [(name, child) for name, child in child_blocks(block).items() if name in used]
        return {"arguments": arguments, "children": list(self._nodes(below, path, above))}

    def _encoded(self, arguments: Dict[str, Any], block: Any, path: str, used: List[str]) -> Dict[str, Any]:
        def child(one: Any) -> str:
            for name, child in child_blocks(block).items():
                if child is one:
                    used.append(name)
                    return name
            raise TypeError(f"the {type(one).__name__} that it was made with is not, or no longer, its child")

        encoded = {}
        for name, value in arguments.items():
            try:
                encoded[name] = encode(value, child)
            except TypeError as error:
                self.problems.append(f"{where(path, block)}: {name}: {error}")
        return encoded

    def _arguments(self, block: Any, path: str) -> Dict[str, Any]:
        arguments = {}
        for name, reader in SUPPORTED[type(block).__name__][1].arguments.items():
            try:
                arguments[name] = plain(reader(block))
            except (TypeError, AttributeError, LookupError) as error:
                self.problems.append(f"{where(path, block)}: {name}: {error}. {_REPLACE}")
                continue
            kind, value = kind_of(name), arguments[name]
            if not kind.fits(value):
                self.problems.append(f"{where(path, block)}: {name}: expected {kind.expected}, received {value!r:.100}")
        return arguments

    def _described_children(self, block: Any, path: str, above: Tuple[int, ...]) -> Iterator[Dict[str, Any]]:
        stock = SUPPORTED[type(block).__name__][1]
        below = []
        for name, child in child_blocks(block).items():
            if name == "act" and "activation" in stock.arguments and type(child) is gluon.nn.Activation:
                continue  # the argument `activation` describes it
            if stock.children is not None and name not in stock.children:
                self.problems.append(
                    f"{where(join_path(path, name), child)}: {type(block).__name__} does not use a child of this name. "
                    "Remove it, or write a block of your own around both"
                )
            below.append((name, child))
        return self._nodes(below, path, above)

    def _nodes(self, below: List[Tuple[str, Any]], path: str, above: Tuple[int, ...]) -> Iterator[Dict[str, Any]]:
        for number, (name, child) in enumerate(below):
            if "." in name or not name:
                place = where(join_path(path, name), child)
                self.problems.append(f"{place}: a child's name has dots, or is empty; register it with another")
            node = self.node(child, join_path(path, name), above)
            yield node if name == str(number) else {"name": name, **node}


_REPLACE = "Use the name of an operator, or a block of your own with @mxkit.nets.register_block"


def _way_out(block: Any) -> str:
    kind: Type[Any] = type(block)
    if kind in UNSUPPORTED:
        return UNSUPPORTED[kind]
    if REGISTERED.get(kind.__name__) is kind:
        return "it was made before its class was registered, or copied without its arguments; make it again"
    if kind.__module__.startswith("gluoncv."):
        return (
            "it is a block of gluoncv, whose nets are described by their name only: make the whole net with "
            "mxkit.models.get_model('gluoncv:...'), or its blocks after mxkit.nets.register_block(their class)"
        )
    return (
        "it is not a block of MXNet, so its forward pass is not known. Call mxkit.nets.register_block("
        f"{kind.__name__}) with the class of {kind.__module__}, or write it as the decorator of your own class: it "
        "records the arguments of the constructor. Then make the net again"
    )
