"""Replaces a block of a net."""

from typing import Any, Dict, Iterator, List, Tuple
import warnings

from mxkit.core.blocks import blocks_by_path, check_net, child_blocks, join_path, parameters_by_path, unknown_path
from mxkit.core.graphs import drop_graph, hybridize_like
from mxkit.core.replicas import trainer_of
from mxkit.core.trainers import trainer_parameters
from mxkit.errors import TrapWarning, nearest
from mxnet import gluon

# A path, the block above, the child's name there, and all blocks on the way down to it.
_Place = Tuple[str, Any, str, Tuple[Any, ...]]


def replace(net: Any, path: str, block: Any) -> Any:
    """Replace a block of a net; the next call of the net computes with the new block.

    In Gluon, `net.output = block` refuses a block of another type, and after `register_child` a hybridized net still
    computes with the old block, without an error (T36).

    Args:
        net: The outermost block, because the cached graphs of all blocks around `path` are dropped.
        path: Names as `print(net)` nests them: "output", "features.3.body.0". A block that stands under several paths
            is replaced under all of them.
        block: The new block; its values are not changed. Initialize it with `mxkit.initialize(block, devices=...)`
            on the devices of the net. It may contain the old block, as a wrapper does.

    Returns:
        The old block, with its parameters.

    Raises:
        UnknownPathError: No block stands at `path`; the text names the nearest path.
        TypeError: `block` is not a Block.
        ValueError: `path` is the net itself; `block` is not a HybridBlock and the block above is; it contains a block
            that it would be part of; its parameters have the names of other parameters of the net; or the
            block above holds the old block in a list, tuple or dict. Nothing has changed then.

    Warns:
        TrapWarning: A Trainer exists over parameters of the net. It would not train those of `block` (T19), and still
            expects gradients for the removed ones.

    Side effects:
        Graphs cached above `path` are dropped, and the next call traces the net again. `block` is hybridized if the
        old block was.

    >>> net = mxkit.models.mlp(hidden=[8]); mxkit.initialize(net); net.hybridize()
    >>> new = mx.gluon.nn.Dense(3); mxkit.initialize(new)
    >>> old = replace(net, "2", new); net(mx.nd.ones((1, 4))).shape
    (1, 3)
    """
    check_net(net)
    if not isinstance(block, gluon.Block):
        raise TypeError(f"replace: {path!r}: expected a gluon Block; received {block!r:.100}")
    places = _find(net, path)
    old = child_blocks(places[0][1])[places[0][2]]
    _refuse_kinds(places, block)
    _refuse_cycle(places, block)
    _refuse_containers(places, old)
    _refuse_names(net, old, block)
    _warn_of_trainers(net, old, block)
    hybridize_like(block, old)
    for _, parent, name, above in places:
        child_blocks(parent)[name] = block
        for attribute, value in list(vars(parent).items()):
            if value is old:
                object.__setattr__(parent, attribute, block)  # Block's own refuses another type
        for one in above:
            drop_graph(one)  # Gluon clears the nearest only (T36)
    return old


def _walk(block: Any, path: str = "", above: Tuple[Any, ...] = ()) -> Iterator[_Place]:
    above = (*above, block)
    for name, child in child_blocks(block).items():
        inner = join_path(path, name)
        yield inner, block, name, above
        yield from _walk(child, inner, above)


def _find(net: Any, path: str) -> List[_Place]:
    """Return every place of the block that stands at `path`."""
    if path == "":
        raise ValueError("replace: '' is the net itself, with nothing above it to hold another. Use the other one")
    places = list(_walk(net))
    for known, parent, name, _ in places:
        if known == path:
            old = child_blocks(parent)[name]
            return [place for place in places if child_blocks(place[1])[place[2]] is old]
    paths = [place[0] for place in places]
    near = nearest(path, paths) if isinstance(path, str) else ""
    if path in parameters_by_path(net):
        near = "this is a parameter; its block stands one name above."
    raise unknown_path(f"replace: no block stands at {path!r}", near, paths)


def _refuse_kinds(places: List[_Place], block: Any) -> None:
    for path, parent, _, _ in places:
        if isinstance(parent, gluon.HybridBlock) and not isinstance(block, gluon.HybridBlock):
            raise ValueError(
                f"replace: {path!r} is part of a {type(parent).__name__}, which takes HybridBlocks only; received a "
                f"{type(block).__name__}. Use HybridSequential in place of Sequential, or write hybrid_forward in "
                "place of forward. Nothing was changed"
            )


def _refuse_cycle(places: List[_Place], block: Any) -> None:
    inside = {id(one): path for path, one in blocks_by_path(block)}
    for path, _, _, above in places:
        for one in above:
            if id(one) in inside:
                where = f"at {inside[id(one)]!r}" if inside[id(one)] else "itself"
                raise ValueError(
                    f"replace: the new block holds, {where}, a {type(one).__name__} that {path!r} is part of: the net "
                    "would never end. Make a new block. Nothing was changed"
                )


def _refuse_containers(places: List[_Place], old: Any) -> None:
    """Refuse a parent with a container that holds the old block, because its forward may read it from there."""
    for path, parent, _, _ in places:
        for attribute, value in vars(parent).items():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
            if attribute != "_children" and any(one is old for one in held):
                raise ValueError(
                    f"replace: the {type(parent).__name__} above {path!r} keeps it in its {type(value).__name__} "
                    f"{attribute!r} too, which its forward may read. Change both there, then call net.hybridize() to "
                    "drop cached graphs. Nothing was changed"
                )


def _refuse_names(net: Any, old: Any, block: Any) -> None:
    """Refuse two parameters of one Gluon name, with which collect_params and calls of a hybridized net fail."""
    names: Dict[str, Any] = {}
    for one in _after(net, old, block):
        for name, parameter in one.params.items():
            if names.setdefault(name, parameter) is not parameter:
                raise ValueError(
                    f"replace: two parameters of the net would have the Gluon name {name!r}: collect_params, "
                    "initialize and hybridized nets fail then. Make the new block with another prefix: "
                    f"{type(block).__name__}(..., prefix='new_'). Nothing was changed"
                )


def _after(block: Any, old: Any, new: Any) -> Iterator[Any]:
    """Yield the blocks of the net after the replacement; the new block may contain the old one."""
    if block is old:
        yield from (one for _, one in blocks_by_path(new))
        return
    yield block
    for child in child_blocks(block).values():
        yield from _after(child, old, new)


def _warn_of_trainers(net: Any, old: Any, block: Any) -> None:
    trainers = {id(one): one for one in map(trainer_of, parameters_by_path(net).values()) if one}
    known = {id(parameter) for trainer in trainers.values() for parameter in trainer_parameters(trainer)}
    new = parameters_by_path(block)
    untrained = [path for path, one in new.items() if one.grad_req != "null" and id(one) not in known]
    gone = known - {id(parameter) for parameter in new.values()}
    stale = [path for path, one in parameters_by_path(old).items() if one.grad_req != "null" and id(one) in gone]
    if trainers and (untrained or stale):
        reasons = [f"it does not train {', '.join(map(repr, untrained))} of the new block"] * bool(untrained)
        reasons += [f"it still holds {', '.join(map(repr, stale))} of the old one"] * bool(stale)
        warnings.warn(
            f"replace: a Trainer exists over parameters of the net: {'; '.join(reasons)} (T19). Make a new Trainer "
            "over net.collect_params() before the next step",
            TrapWarning,
            stacklevel=3,
        )
