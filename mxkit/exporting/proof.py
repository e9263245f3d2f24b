"""The comparison of an exported file with MXNet: a row for each output of each layer or operator, and how it is judged.

A traced graph is compared with the net itself, too; and where a sum cancels, a difference with what was added up.
"""

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from mxkit.core.arrays import legacy, of_kind, outputs_of, switches, to_host
from mxkit.core.blocks import net_devices
from mxkit.core.graph import Entry, Graph, Node, symbol_of
from mxkit.core.operators import operators_that
from mxkit.core.system import aligned, write_atomically
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import NetGraph, graph_function, graph_outputs
import mxnet as mx
from mxnet import autograd
import numpy as np

# They are compared with MXNet's own inputs: the last bits of a score would otherwise put two boxes in another order.
JUMPING = operators_that("jumps")
# Relative change of every number: about two roundings of float32
_STEP = 2e-7
_DRAWS = 4
# A size is this many of the movements: with a tolerance of 1e-4, fifty movements are rounding
_MOVEMENTS = 5e5
# Relative differences up to the first are near; from the second on, more draws do not help
_NEAR, _FAR = 1e-5, 1e-2

Draw = Callable[[], Mapping[Any, float]]


class Row(NamedTuple):
    """One array, computed by MXNet and by the exported file.

    Attributes:
        name: Path of the layer, or name of the operator in the graph.
        operator: MXNet's operator, or the layer's class.
        shape: Of the array.
        batch: Batch size of the inputs.
        largest: The largest magnitude in MXNet's array.
        absolute: The largest absolute difference; infinity if shapes differ or a NaN or infinity stands elsewhere.
        relative: `absolute` divided by `largest`; where a sum cancels, by a hundredth of what was summed.
    """

    name: str
    operator: str
    shape: Tuple[int, ...]
    batch: int
    largest: float
    absolute: float
    relative: float


class Proof(NamedTuple):
    """All rows of a comparison.

    Attributes:
        rows: In the order of the computation.
        tolerance: Largest relative difference that passes.
        versions: Of the programs that computed, by name.
        inputs: What was computed with, in words.
        not_compared: Operators that the exported file computes as a part of others.
    """

    rows: List[Row]
    tolerance: float
    versions: Dict[str, str]
    inputs: str = ""
    not_compared: Sequence[str] = ()

    @property
    def failures(self) -> List[Row]:
        """Rows above the tolerance, in the order of the computation."""
        return [row for row in self.rows if not row.relative <= self.tolerance]

    @property
    def worst(self) -> Optional[Row]:
        """The row with the largest relative difference; None for a net without parameters whose shapes are unknown."""
        return max(self.rows, key=lambda row: row.relative, default=None)

    def __str__(self) -> str:
        head = ["layer", "operator", "shape", "batch", "largest value", "difference", "relative"]
        numbers = ([f"{number:.3g}" for number in row[-3:]] for row in self.rows)
        cells = [[*map(str, row[:4]), *own] for row, own in zip(self.rows, numbers)]
        return "\n".join([*aligned([head, *cells], left=(0, 1, 2)), self.summary()])

    def summary(self) -> str:
        """One sentence."""
        if self.worst is None:
            return "nothing was compared: the net has no parameters, and is random or takes inputs of unknown shapes"
        state = f"{len(self.failures)} above" if self.failures else "all within"
        return (
            f"{len(self.rows)} arrays compared, {state} {self.tolerance:g}; largest relative difference "
            f"{self.worst.relative:.2g} at {self.worst.name}"
        )

    def check(self, what: str, way: str = "If this difference is acceptable, pass tolerance=") -> None:
        """Raise ExportError if a row is above the tolerance; the text names the first ones, and a way out."""
        if not self.failures:
            return
        first = "\n".join(
            f"  {row.name} ({row.operator}, shape {row.shape}, batch {row.batch}): relative difference "
            f"{row.relative:.3g}, absolute {row.absolute:.3g}"
            for row in self.failures[:8]
        )
        raise ExportError(
            f"export: {what} computes other numbers than MXNet, and was not written. Expected relative differences "
            f"up to {self.tolerance:g}; received at {len(self.failures)} of {len(self.rows)} arrays, the first ones:\n"
            f"{first}\nThe first line is where it begins. {way}"
        )

    def write(self, path: Path) -> Path:
        """Write the table as JSON."""
        stored = {
            **{name: value for name, value in self._asdict().items() if name != "rows"},
            "largest_relative_difference": self.worst.relative if self.worst else None,
            "rows": [row._asdict() for row in self.rows],
        }
        write_atomically(path, json.dumps(stored, indent=1).encode())
        return path


def compare(name: str, operator: str, batch: int, expected: Any, actual: Any) -> Row:
    """Compare an array of the exported file with MXNet's.

    Args:
        name: Of the row.
        operator: Of the row.
        batch: Of the row.
        expected: MXNet's array, as NumPy's.
        actual: The other program's.

    >>> compare("fc", "FullyConnected", 1, np.array([1.0, 2.0]), np.array([1.0, 2.5])).relative
    0.25
    """
    shape = tuple(expected.shape)
    with np.errstate(all="ignore"):
        wide, other = np.asarray(expected, np.float64), np.asarray(actual, np.float64)
        finite = np.isfinite(wide)
        largest = float(np.abs(wide[finite]).max()) if finite.any() else 0.0
        # np.array_equal has `equal_nan` since NumPy 1.19
        same = tuple(other.shape) == shape and bool(
            ((wide == other) | (np.isnan(wide) & np.isnan(other)) | (finite & np.isfinite(other))).all()
        )
        if not same:
            return Row(name, operator, shape, batch, largest, float("inf"), float("inf"))
        absolute = float(np.abs(wide[finite] - other[finite]).max()) if finite.any() else 0.0
    relative = 0.0 if not absolute else absolute / largest if largest else float("inf")
    return Row(name, operator, shape, batch, largest, absolute, relative)


def at_places(operator: str, attrs: Mapping[str, str], output: int, data: Any, places: Any) -> Any:
    """Return the numbers of `data` at the places that an output of topk holds: equal ones have no order in MXNet.

    Args:
        operator: Name of any operator; other outputs than places are returned as they are.
        attrs: Its attributes as text.
        output: Number of its output.
        data: Its first input; None if it is a variable.
        places: The output.
    """
    chosen = {"indices": 0, "both": 1}.get(attrs.get("ret_typ", "indices"))
    if operator != "topk" or output != chosen or data is None or attrs.get("axis") == "None":
        return places
    axis = int(attrs.get("axis", -1))
    return np.take_along_axis(data, np.clip(np.asarray(places), 0, data.shape[axis] - 1).astype(np.int64), axis)


def above(smallest: float, row: Row) -> Row:
    """Compare numbers that are zero up to rounding with `smallest` instead of with themselves."""
    return row._replace(relative=row.absolute / smallest) if row.largest < smallest else row


def compare_net(net: Any, graph: NetGraph, batches: Sequence[Mapping[str, Any]], axis: int, numbers: bool) -> List[Row]:
    """Compare the outputs of the graph with those of a call of the net, in predict mode.

    Args:
        net: The net.
        graph: Its graph.
        batches: NumPy arrays by the inputs' names.
        axis: The axis of the samples in the first input.
        numbers: Refuse an output without a finite number. Where the file's parameters are compared, too, it may be.

    Raises:
        ExportError: The net's code computes something else with symbols, or an output holds no finite number.
    """
    rows = []
    for batch in batches:
        size = next(iter(batch.values())).shape[axis]
        outputs = net_outputs(net, list(batch.values()), graph.numpy)
        for number, (expected, traced) in enumerate(zip(outputs, graph_outputs(graph, batch))):
            if numbers and expected.size and not np.isfinite(expected).any():
                raise ExportError(
                    f"export: output {number} of the net holds NaN or infinity only, for a batch of {size}: nothing "
                    "can be compared. Look for NaN in the weights (mxkit.parameters(net)), or pass other inputs="
                )
            rows.append(compare(f"output {number}", "the net itself", size, expected, traced))
    wrong = [row for row in rows if not row.relative <= 1e-5]
    if wrong:
        row = wrong[0]
        raise ExportError(
            f"export: {row.name} of the traced graph differs from the net's own, for a batch of {row.batch}: relative "
            f"difference {row.relative:.2g}. The net's code computes something else with symbols than with arrays, or "
            "an attribute of it changed after hybridize: write its forward without conditions on the type or shape of "
            "its inputs, and call net.hybridize() again"
        )
    return rows


def net_outputs(net: Any, inputs: Sequence[Any], numpy: bool) -> List[Any]:
    """Call a net in predict mode, on its first device.

    Args:
        net: The net.
        inputs: NumPy arrays, None, or nested lists of them.
        numpy: Whether it is a net of `mx.np`.

    Returns:
        NumPy arrays: the outputs, flattened, without None.
    """
    with autograd.pause(train_mode=False), switches(numpy):
        return _flat(net(*net_inputs(net, inputs, numpy)))


def net_inputs(net: Any, inputs: Any, numpy: bool) -> Any:
    """Copy NumPy arrays, None, and nested lists of them to a net's first device, as arrays of its kind."""
    device = net_devices(net)[0]

    def array(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [array(part) for part in value]
        return None if value is None else mx.nd.array(value, ctx=device, dtype=np.asarray(value).dtype)

    return of_kind(array(inputs), numpy)


def _flat(outputs: Any) -> List[Any]:
    if isinstance(outputs, (list, tuple)):
        return [array for part in outputs for array in _flat(part)]
    return [] if outputs is None else [to_host(array) for array in outputs_of(outputs, "export")]


def fixed_gammas(graph: NetGraph) -> Set[int]:
    """Ids of the parameters that MXNet reads as ones: gammas of BatchNorms with `fix_gamma`, Gluon's `scale=False`."""
    view = Graph.of(graph.symbol)
    norms = (node for node in view.nodes if "BatchNorm" in node.operator and node.flag("fix_gamma"))
    names = [view.sources(node)[1].name for node in norms]
    return {id(graph.parameters[name]) for name in names if name in graph.parameters}


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
