"""Measures what each operator of a graph adds up, also where the sum itself is zero up to rounding."""

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from mxkit.core.arrays import legacy, of_kind, switches
from mxkit.core.graph import Entry, Graph, Node, symbol_of
from mxkit.exporting.net_graph import graph_function
from mxkit.exporting.proof import JUMPING, Row, above
import mxnet as mx
import numpy as np

# Relative change of every number: about two roundings of float32
_STEP = 2e-7
_DRAWS = 4
# A size is this many of the movements: with a tolerance of 1e-4, fifty movements are rounding
_MOVEMENTS = 5e5
# Relative differences up to the first are near; from the second on, more draws do not help
_NEAR, _FAR = 1e-5, 1e-2

Draw = Callable[[], Mapping[Any, float]]


def beside_summands(rows: Sequence[Tuple[Any, Row]], prepare: Callable[[], Draw]) -> List[Row]:
    """Judge rows by what their operators add up, where the sum is far smaller: a difference is rounding then.

    Args:
        rows: Of a comparison, each with the key of its array.
        prepare: Begins to measure by the keys, as `summands` does; called if a row differs.
    """
    judged = [row for _, row in rows]
    if all(row.relative <= _NEAR for row in judged):
        return judged
    draw = prepare()
    for _ in range(_DRAWS):
        moved = draw()
        sizes = [_MOVEMENTS * moved.get(key, 0.0) for key, _ in rows]
        judged = [above(size, row) for size, (_, row) in zip(sizes, rows)]
        wrong = [(row, size) for row, size in zip(judged, sizes) if not row.relative <= _NEAR]
        if not wrong or (wrong[0][1] and not wrong[0][0].relative <= _FAR):
            break
    return judged


def summands(internals: Any, arrays: Mapping[str, Any], numpy: bool, train: bool = False) -> Draw:
    """Measure how far rounding moves every array of a graph.

    All numbers but whole ones change a little at random, and so does every result: an array moves by as much as what
    is added up in it, whether the sum cancels or not.

    Args:
        internals: All arrays of a graph as the outputs of a legacy Symbol.
        arrays: NDArrays by the names of its variables; training mode changes running statistics in them.
        numpy: Whether it is a graph of `mx.np`.
        train: Whether to compute in training mode.

    Returns:
        A function that draws once more, and returns the largest movements so far by the numbers of an operator and of
        its output, in the order of the outputs.
    """
    graph = Graph.of(of_kind(internals, numpy))
    nodes, keys = graph.nodes, graph.heads
    outputs: Dict[int, List[Entry]] = {}
    for key in keys:
        outputs.setdefault(key.node, []).append(key)
    # zeros and the like have no inputs, and a jump has no size
    steps = [one for one in outputs if nodes[one].inputs and nodes[one].operator not in JUMPING]
    functions = {one: graph_function(legacy(_alone(graph, nodes[one], outputs[one])), {}, numpy) for one in steps}
    random, largest = np.random.RandomState(0), dict.fromkeys(keys, 0.0)
    mode = mx.autograd.train_mode if train else mx.autograd.predict_mode
    with mode():
        plain = dict(zip(keys, graph_function(internals, arrays, numpy)({})))

    def draw() -> Dict[Entry, float]:
        moved: Dict[Entry, Any] = {}
        with switches(numpy), mode():
            for number, own in outputs.items():
                made = [plain[key] for key in own]
                if number in functions:
                    inputs = [moved[source] for source in nodes[number].inputs]
                    made = functions[number]({f"input{place}": one for place, one in enumerate(inputs)})
                for key, array in zip(own, made):
                    if number in functions:
                        largest[key] = max(largest[key], _distance(array.asnumpy(), plain[key].asnumpy()))
                    moved[key] = _moved(array, random)
        return largest

    return draw


def _alone(graph: Graph, node: Node, outputs: Sequence[Entry]) -> Any:
    """Return one operator of a graph as a graph of its own, with the variables `input0`, `input1` and so on."""
    count = len(node.inputs)
    variables = [{"op": "null", "name": f"input{place}", "inputs": []} for place in range(count)]
    own = {**node.content, "inputs": [[place, 0, 0] for place in range(count)]}
    return symbol_of([*variables, own], [(count, one.output, 0) for one in outputs], graph)


def _distance(one: Any, other: Any) -> float:
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(np.float64) - other)
    return float(apart[np.isfinite(apart)].max(initial=0))


def _moved(array: Any, random: Any) -> Any:
    """Change the numbers of an array; whole ones may be indices, and float32 holds them exactly."""
    values = array.asnumpy()
    if values.dtype.kind != "f":
        return array
    drawn = random.uniform(-_STEP, _STEP, min(values.size, 1009))  # repeated: weights are many
    change = np.resize(drawn, values.shape).astype(values.dtype)
    change += np.sign(values) * values.dtype.type(random.uniform(-_STEP, _STEP))
    change[values == np.rint(values)] = 0
    return mx.nd.array(values + values * change, dtype=values.dtype)
