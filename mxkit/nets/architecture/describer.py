"""A net's architecture read from its blocks, and compared with what would be built from it."""

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


def describe(net: Any) -> Dict[str, Any]:
    """Describe a net's architecture as plain JSON values, without its numbers.

    Classes and arguments come from the blocks' attributes, not from their repr, which loses many (T55). What the
    description says is built once and compared with the net, so that what would be lost is an error here.

    Args:
        net: A net of MXNet's own blocks: gluon.nn, gluon.rnn, gluon.contrib.nn, gluon.contrib.rnn, SymbolBlocks and
            the model zoo, nested to any depth, with shared blocks and shared parameters. A net of gluoncv's must
            come from `mxkit.models.get_model`, and a block of your own from a class with `@register_block`; it
            makes its children by itself. The net may be uninitialized, hybridized, in training, on any devices.

    Returns:
        `{"format": 1, "net": {...}}`: each block with "class", "arguments" and "children", a shared one as
        `{"shared": path}`, a net of gluoncv's as `{"model": name, "arguments": {...}}`. Under "parameters" stands
        what differs from fresh blocks by path (frozen, cast, multipliers), under "shared_parameters" paths that are
        one parameter. Names, hooks and hybridization are not kept.

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
        twin = build(description)
        shared = shared_parameters(net, twin)
        if shared:
            description["shared_parameters"] = shared
            twin = build(description)
    problems = losses(net, twin)
    if problems:
        raise _refusal(problems)
    told = {path: state for path, state in states(net, twin, problems) if state}
    if problems:
        raise _refusal(problems)
    if told:
        description["parameters"] = told
    return description


def _refusal(problems: List[str]) -> ArchitectureError:
    shown = problems[:_LINES] + ([f"and {len(problems) - _LINES} more"] if len(problems) > _LINES else [])
    return ArchitectureError("the net cannot be described:\n  " + "\n  ".join(shown))


class _Reading:
    """One walk over a net; problems are gathered, so that all are told at once."""

    def __init__(self) -> None:
        self.problems: List[str] = []
        self._seen: Dict[int, str] = {}

    def node(self, block: Any, path: str, above: Tuple[int, ...]) -> Dict[str, Any]:
        """Describe one block with all below it."""
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
        """What a registered block was made with, and the blocks among that."""
        used: List[str] = []
        arguments = self._encoded(getattr(block, CALL), block, path, used)
        below = [(name, child) for name, child in child_blocks(block).items() if name in used]
        return {"arguments": arguments, "children": list(self._nodes(below, path, above))}

    def _encoded(self, arguments: Dict[str, Any], block: Any, path: str, used: List[str]) -> Dict[str, Any]:
        def child(one: Any) -> str:
            found = [name for name, child in child_blocks(block).items() if child is one]
            if not found:
                raise TypeError(f"the {type(one).__name__} that it was made with is not, or no longer, its child")
            used.append(found[0])
            return str(found[0])

        told = {}
        for name, value in arguments.items():
            try:
                told[name] = encode(value, child)
            except TypeError as error:
                self.problems.append(f"{where(path, block)}: {name}: {error}")
        return told

    def _arguments(self, block: Any, path: str) -> Dict[str, Any]:
        told = {}
        for name, reader in SUPPORTED[type(block).__name__][1].arguments.items():
            try:
                told[name] = plain(reader(block))
            except (TypeError, AttributeError, LookupError) as error:
                self.problems.append(f"{where(path, block)}: {name}: {error}. {_REPLACE}")
                continue
            if not kind_of(name).fits(told[name]):
                expected = kind_of(name).expected
                self.problems.append(f"{where(path, block)}: {name}: expected {expected}, received {told[name]!r:.100}")
        return told

    def _described_children(self, block: Any, path: str, above: Tuple[int, ...]) -> Iterator[Dict[str, Any]]:
        stock = SUPPORTED[type(block).__name__][1]
        below = []
        for name, child in child_blocks(block).items():
            if name == "act" and "activation" in stock.arguments and type(child) is gluon.nn.Activation:
                continue  # the argument says it
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
        return "it was made before its class was registered, or copied without its arguments; make it anew"
    if kind.__module__.startswith("gluoncv."):
        return (
            "it is gluoncv's, whose nets are known by name only: make the whole net with "
            "mxkit.models.get_model('gluoncv:...'), or its blocks after mxkit.nets.register_block(their class)"
        )
    return (
        "it is no block of MXNet's, so its forward pass cannot be known. Decorate its class with "
        "@mxkit.nets.register_block, which remembers the arguments of its constructor, and make the net anew"
    )
