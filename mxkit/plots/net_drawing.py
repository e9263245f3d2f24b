"""Draws a net as boxes and arrows from top to bottom, with matplotlib alone."""

from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import of_kind, switches
from mxkit.core.blocks import depth_of, is_numpy_net
from mxkit.core.graph import Graph
from mxkit.core.tracing import CALL, Trace, trace
from mxkit.nets.layer_table import layers
from mxkit.plots.plotting import BLUE, CHARACTER, GREY, ORANGE, PathLike, new_figure, saved
import mxnet as mx
import numpy as np

# Inches of a row, of the gap between two boxes of a row, and of the lane of an arrow beside boxes; size of letters.
_ROW, _GAP, _LANE, _FONT = 0.62, 0.3, 0.25, 8.0
_COLOURS = {"Conv": BLUE, "Dense": ORANGE}


class Box(NamedTuple):
    """One box: the first line is bold; `kind` decides its colour."""

    lines: Tuple[str, ...]
    kind: str


def graph(net: Any, *inputs: Any, depth: Optional[int] = None, path: Optional[PathLike] = None) -> Any:
    """Draw a net: a box with the output's shape for each block, and an arrow for each array between two blocks.

    Args:
        net: A net of HybridBlocks, initialized or not.
        inputs: Arrays, or shapes as tuples of whole numbers; as for `mxkit.layers`.
        depth: Each block at this depth is one box, with all blocks in it: 1 shows the net's children. None shows all.
        path: Where to save the picture, or None. Its suffix decides the format: `.svg`, `.png`, `.pdf`.

    Returns:
        The matplotlib Figure.

    Raises:
        ForwardError: The inputs do not fit a block.
        ValueError: There is no input, or the net has no graph.
    """
    depth = None if depth is None else whole_number(depth, "depth", least=0)
    if not inputs:
        raise ValueError(
            "graph: expected an array or a shape for each input, like mxkit.plots.graph(net, (1, 3, 9, 9))"
        )
    table = layers(net, *inputs)
    numpy = is_numpy_net(net)
    arrays = [of_kind(one if isinstance(one, mx.nd.NDArray) else mx.nd.zeros((1,)), numpy) for one in inputs]
    try:
        with switches(numpy):
            traced = trace(net, arrays)
    except Exception as error:  # of any kind: the net's own code got a symbol
        raise ValueError(f"graph: expected HybridBlocks; {type(net).__name__} has no graph: {error}") from error
    boxes, arrows = _boxes(traced, table, depth)
    return saved(_drawn(boxes, arrows, _rows(boxes, arrows)), path)


def _boxes(traced: Trace, table: Any, depth: Optional[int]) -> Tuple[Dict[Any, Box], Set[Tuple[Any, Any]]]:
    """Boxes by keys in the order of computation, and arrows between keys."""
    parents = {call.parent for call in traced.calls}
    shapes = dict(zip((one.name for one in traced.inputs), table.inputs))
    boxes: Dict[Any, Box] = {}
    arrows: Set[Tuple[Any, Any]] = set()
    sources: List[Set[Any]] = []
    for number, node in enumerate(Graph.of(traced.outputs).nodes):
        before = {key for source in node.inputs for key in sources[source.node]}
        if node.is_variable:
            if node.name in shapes:
                boxes[node.name] = Box((node.name, str(shapes[node.name])), "input")
            sources.append({node.name} & set(boxes))
            continue
        call = int(node.attrs.get(CALL, 0))
        while _is_inside(traced, call, depth):
            call = traced.calls[call].parent
        block, place = traced.calls[call].block, traced.calls[call].path
        whole = call not in parents or depth_of(place) == depth or _is_layer(block)
        key: Any = call if whole else ("operator", number)
        if key == call:
            row = table[place]
            shown = ", ".join(map(str, row.outputs[:2]))
            boxes[key] = Box((row.path or "net", f"{row.kind} {row.arguments}".strip(), shown), row.kind)
        else:
            boxes[key] = Box((node.operator.lower().replace("elemwise_", "").lstrip("_"),), "operator")
        arrows.update((source, key) for source in before if source != key)
        sources.append({key})
    return boxes, arrows


def _is_inside(traced: Trace, call: int, depth: Optional[int]) -> bool:
    """Whether a call is drawn inside the box of its parent call."""
    parent = traced.calls[call].parent
    below = depth is not None and depth_of(traced.calls[call].path) > depth
    return below or (parent >= 0 and _is_layer(traced.calls[parent].block))


def _is_layer(block: Any) -> bool:
    """Whether a block is one of Gluon's layers: a convolution and its activation are one box."""
    return type(block).__module__.startswith("mxnet.gluon.nn.") and not isinstance(block, mx.gluon.nn.HybridSequential)


def _rows(boxes: Dict[Any, Box], arrows: Set[Tuple[Any, Any]]) -> Dict[Any, int]:
    """The row of each box: one row below the lowest box that leads to it."""
    rows = dict.fromkeys(boxes, 0)
    for _ in boxes:
        for before, after in arrows:
            rows[after] = max(rows[after], rows[before] + 1)
    return rows


def _places(
    boxes: Dict[Any, Box], arrows: Set[Tuple[Any, Any]], rows: Dict[Any, int]
) -> Tuple[Dict[Any, float], List[List[Any]]]:
    """Horizontal centres of boxes and of the lanes of long arrows; and the keys of the path of each arrow."""
    levels: List[List[Any]] = [[] for _ in range(max(rows.values()) + 1)]
    for key in boxes:
        levels[rows[key]].append(key)
    chains = []
    for before, after in sorted(arrows, key=str):
        lanes = [("lane", before, after, row) for row in range(rows[before] + 1, rows[after])]
        for lane in lanes:
            levels[lane[3]].append(lane)
        chains.append([before, *lanes, after])
    beside: Dict[Any, List[Any]] = {key: [] for level in levels for key in level}
    for chain in chains:
        for one, other in zip(chain, chain[1:]):
            beside[one].append(other)
            beside[other].append(one)
    places = {key: float(number) for level in levels for number, key in enumerate(level)}
    for sweep in range(24):
        for level in levels if sweep % 2 == 0 else levels[::-1]:
            # boxes are centred below boxes, regardless of lanes
            near = {key: [one for one in beside[key] if key in boxes and one in boxes] or beside[key] for key in level}
            wanted = {key: float(np.mean([places[one] for one in near[key] or [key]])) for key in level}
            # early sweeps decide the order of a row, later sweeps only its positions
            order = sorted(level, key=(wanted if sweep < 12 else places).__getitem__)
            widths = np.array([_width(boxes.get(key)) + _GAP for key in order])
            lefts = np.cumsum(widths) - widths / 2
            weights = [1000.0 if key in boxes else 1.0 for key in order]
            shift = np.average([wanted[key] for key in order] - lefts, weights=weights)
            places.update(zip(order, (lefts + shift).tolist()))
    return places, chains


def _width(box: Optional[Box]) -> float:
    return _LANE if box is None else max(map(len, box.lines)) * CHARACTER * _FONT + 0.16


def _drawn(boxes: Dict[Any, Box], arrows: Set[Tuple[Any, Any]], rows: Dict[Any, int]) -> Any:
    from matplotlib.patches import FancyBboxPatch

    places, chains = _places(boxes, arrows, rows)
    sizes = {key: (_width(box), 0.12 + 0.14 * len(box.lines)) for key, box in boxes.items()}
    left = min(place - _width(boxes.get(key)) / 2 for key, place in places.items()) - 0.1
    right = max(place + _width(boxes.get(key)) / 2 for key, place in places.items()) + 0.1
    height = (max(rows.values()) + 1) * (_ROW + 0.2)
    figure = new_figure(layout=None)
    figure.set_size_inches(right - left, height)
    axes = figure.add_axes([0, 0, 1, 1], xlim=(left, right), ylim=(0, height))
    axes.axis("off")

    def middle(key: Any) -> float:
        return height - ((rows[key] if key in boxes else key[3]) + 0.5) * (_ROW + 0.2)

    for chain in chains:
        # vertical beside the boxes of a row, diagonal only between rows
        ends = {key: (0.0,) if key in boxes else (0.3, -0.3) for key in chain}
        points = [(places[key], middle(key) + end) for key in chain for end in ends[key]]
        points[0] = (points[0][0], points[0][1] - sizes[chain[0]][1] / 2)
        points[-1] = (points[-1][0], points[-1][1] + sizes[chain[-1]][1] / 2)
        axes.plot(*zip(*points[:-1]), color=GREY, linewidth=0.9, solid_capstyle="round")
        style = {"arrowstyle": "-|>", "color": GREY, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", points[-1], points[-2], arrowprops=style)
    for key, box in boxes.items():
        (width, tall), x, y = sizes[key], places[key], middle(key)
        colour = next((one for word, one in _COLOURS.items() if word in box.kind), GREY)
        corner = x - width / 2, y - tall / 2
        outline = FancyBboxPatch(corner, width, tall, boxstyle="round,pad=0,rounding_size=0.05", zorder=2)
        outline.set(facecolor="white", edgecolor=colour, linewidth=1.2)
        axes.add_patch(outline)
        for number, line in enumerate(box.lines):
            weight = "bold" if number == 0 and len(box.lines) > 1 else "normal"
            place = y + (len(box.lines) / 2 - number - 0.5) * 0.14
            axes.text(x, place, line, ha="center", va="center", fontsize=_FONT, weight=weight, zorder=3)
    return figure
