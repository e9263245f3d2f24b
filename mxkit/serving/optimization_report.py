"""The comparison of an optimized net with the float32 net: outputs, layers, time."""

from collections import Counter
import json
from statistics import median
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arrays import arrays_in, legacy, switches
from mxkit.core.graph import Graph
from mxkit.exporting.net_graph import NetGraph, computed, graph_function
from mxkit.nets.architecture.graph_blocks import OptimizedNet
from mxkit.nets.prediction_graphs import fused_parts
from mxkit.nets.prediction_report import LayerRow, Measured
from mxkit.storage.params_format import dtype_name
import mxnet as mx
import numpy as np

_ROUNDS = 5
_SECONDS = 0.1  # of one net in one round, at least


def loss_of(expected: Sequence[Any], actual: Sequence[Any], classes: bool) -> float:
    """Share of samples whose class changed; or, for other outputs, the largest mean difference, relative."""
    agreement = _agreement(expected, actual) if classes else None
    return difference_of(expected, actual) if agreement is None else 1 - agreement


def difference_of(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """The largest mean absolute difference of two outputs, divided by the mean magnitude."""
    return max(map(_relative, expected, actual))


def measured(base: Any, net: OptimizedNet, sample: Sequence[Any], classes: bool) -> Measured:
    """Compare the outputs of two nets on a sample, and their times in turn."""
    expected, actual = arrays_in(base(*sample)), arrays_in(net(*sample))
    taken: Dict[Any, List[float]] = {base: [], net: []}
    calls = {one: max(1, round(_SECONDS / max(_seconds(one, sample, 1), 1e-6))) for one in taken}
    for _ in range(_ROUNDS):
        for one, times in taken.items():
            times.append(_seconds(one, sample, calls[one]))
    largest = max(float(np.abs(_host(one) - _host(other)).max(initial=0)) for one, other in zip(expected, actual))
    seconds = median(taken[net])
    return Measured(
        len(sample[0]),
        _agreement(expected, actual) if classes else None,
        largest,
        difference_of(expected, actual),
        seconds,
        median(taken[base]) / seconds,
    )


def layer_rows(graph: NetGraph, net: OptimizedNet, sample: Sequence[Any], paths: Dict[str, str]) -> List[LayerRow]:
    """Compare the outputs of the layers in `paths`, which has them by the names of their operators.

    Layers that are called more than once are left out: their operators have one name.
    """
    inputs = {name: legacy(one).asnumpy() for name, one in zip(graph.inputs, sample)}
    made = net.prediction_graph()
    names = Counter(node.name for node in Graph.of(graph.symbol).nodes)
    nodes = {node.name: node.attrs for node in Graph.of(made.symbol).nodes}
    joined = {**{name: [name] for name in paths if name in nodes}, **fused_parts(made.symbol)}
    # the last operator that is joined with a layer: in which node, and the layer's path
    shown = {
        made.folded.get(inner[-1], inner[-1]): (node, paths[name])
        for node, inner in joined.items()
        for name in inner
        if name in paths and all(names[one] == 1 for one in inner)
    }
    if not shown:
        return []
    values = _values(graph, made, {node: nodes[node] for node, _ in shown.values()}, inputs)
    rows = []
    for value in computed(graph, inputs):
        if value.name in shown and not value.entry.output:
            node, path = shown[value.name]
            array, kind = values[node]
            rows.append(LayerRow(path, kind, _relative(value.array, array)))
    return rows


def _values(
    graph: NetGraph, made: Any, nodes: Mapping[str, Mapping[str, str]], inputs: Mapping[str, Any]
) -> Dict[str, Tuple[Any, str]]:
    """Values of nodes in float32, and in which precision they are computed."""
    internals = made.symbol.get_internals()
    described = json.loads(internals.tojson(remove_amp_cast=False))
    found = [  # an array in int8 has its range as two more outputs
        (described["nodes"][node]["name"], internals[place])
        for place, (node, *_) in enumerate(described["heads"])
        if described["nodes"][node]["name"] in nodes
    ]
    compute = graph_function(mx.sym.Group([part for _, part in found]), made.arrays, graph.numpy)
    with switches(graph.numpy):
        given = {name: mx.nd.array(one, dtype=one.dtype) for name, one in inputs.items()}
    by_node: Dict[str, List[Any]] = {}
    for (name, _), array in zip(found, compute(given)):
        by_node.setdefault(name, []).append(array)
    return {name: _in_float(parts, nodes[name]) for name, parts in by_node.items()}


def _in_float(parts: Sequence[Any], attributes: Mapping[str, str]) -> Tuple[Any, str]:
    kind = dtype_name(parts[0].dtype)
    if kind == "bfloat16":
        return mx.nd.amp_cast(parts[0], dtype="float32").asnumpy(), kind
    array, whole = parts[0].asnumpy(), attributes.get("quantized", "").lower() == "true"
    if kind in ("int8", "uint8"):
        end = max(abs(float(part.asnumpy().ravel()[0])) for part in parts[1:])
        array = array.astype(np.float32) * (end / (127 if kind == "int8" else 255))
    return array, "int8" if whole else kind


def _seconds(net: Any, sample: Sequence[Any], calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        for array in arrays_in(net(*sample)):
            array.wait_to_read()
    return (time.perf_counter() - begun) / calls


def _agreement(expected: Sequence[Any], actual: Sequence[Any]) -> Optional[float]:
    first = expected[0]
    if len(expected) != 1 or first.ndim != 2 or first.shape[1] < 2:
        return None
    return float(np.mean(_host(first).argmax(1) == _host(actual[0]).argmax(1)))


def _relative(expected: Any, actual: Any) -> float:
    one, other = _host(expected), _host(actual)
    magnitude = float(np.abs(one).mean()) if one.size else 0.0
    difference = float(np.abs(one - other).mean()) if one.size else 0.0
    return difference / magnitude if magnitude else float("inf") if difference else 0.0


def _host(array: Any) -> Any:
    return (array if isinstance(array, np.ndarray) else array.asnumpy()).astype(np.float64)
