"""The operators of a graph with shapes and dtypes of all tensors, for any batch size."""

from collections import Counter
import itertools
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import legacy, switches
from mxkit.core.graph import Entry, Graph
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import NetGraph
from mxkit.exporting.to_onnx.onnx_writer import UNKNOWN, Batch, Dims, Operator, Size, Tensor
import mxnet as mx
import numpy as np

# Three batch sizes show whether a shape is a multiple of the batch size plus a number
_BATCHES = (7, 11, 13)


class Operators(NamedTuple):
    """Operators and tensors of an ONNX file.

    Attributes:
        operators: In the order of the computation. A tensor whose shape depends on values has the shape UNKNOWN.
        inputs: Of the net, in their order.
        batch_axes: Of the inputs.
        variables: All variables of the graph, by name.
        outputs: Names of the tensors that are the net's outputs, in their order.
        output_names: Names of the net's outputs in the file.
    """

    operators: List[Operator]
    inputs: List[Tensor]
    batch_axes: List[int]
    variables: Dict[str, Tensor]
    outputs: List[Tensor]
    output_names: List[str]


def operators_of(
    graph: NetGraph, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any], axes: Sequence[int] = ()
) -> Operators:
    """Infer shapes and dtypes of a graph, and name its tensors.

    Args:
        graph: Result of `graph_of`.
        shapes: Of the inputs, in their order.
        dtypes: Of the inputs.
        axes: The axes of the samples; () finds them.

    Raises:
        ExportError: The graph fits no other batch size than that of `shapes`.
    """
    internals = legacy(graph.symbol).get_internals()
    view = Graph.of(graph.symbol, internals=True)
    with switches(graph.numpy):
        axes, dims = _dims(graph, internals, view, shapes, axes)
        types = _types(graph, internals, dtypes)
    names = _names(graph, view)
    tensors = {
        source: Tensor(names[source], UNKNOWN if dim is None else dim, dtype)
        for source, dim, dtype in zip(view.heads, dims, types)
    }
    operators = [
        Operator(
            node.name,
            node.operator,
            node.attrs,
            [tensors[source] for source in node.inputs],
            [tensor for source, tensor in tensors.items() if source.node == node.index],
        )
        for node in view.nodes
        if not node.is_variable
    ]
    variables = {name: tensors[Entry(node.index)] for name, node in view.variables.items()}
    outputs = [tensors[source] for source in _outputs(graph, view)]
    inputs = [variables[name]._replace(name=name) for name in graph.inputs]
    return Operators(operators, inputs, axes, variables, outputs, _output_names(graph, len(outputs)))


def tensor_names(graph: NetGraph) -> Dict[Entry, str]:
    """Return the name of every output of every operator in the ONNX file, by the operator's number and the output."""
    return _names(graph, Graph.of(graph.symbol, internals=True))


def _names(graph: NetGraph, view: Graph) -> Dict[Entry, str]:
    """Name tensors after MXNet's operators; the net's inputs and outputs come first, repeated names get a number."""
    outputs = _outputs(graph, view)
    own_names = _output_names(graph, len(outputs))
    taken = {*graph.inputs, *own_names, ""}
    names: Dict[Entry, str] = {}
    for source, name in zip(outputs, own_names):
        if not view.nodes[source.node].is_variable:
            names.setdefault(source, name)
    counts = Counter(source.node for source in view.heads)
    for source in view.heads:
        node = view.nodes[source.node]
        if source in names or (node.is_variable and node.name in graph.inputs):
            names.setdefault(source, node.name)
            continue
        wanted = node.name if counts[source.node] == 1 else f"{node.name}_output{source.output}"
        names[source] = _free(wanted, taken)
        taken.add(names[source])
    return names


def _outputs(graph: NetGraph, view: Graph) -> List[Entry]:
    """Return the net's outputs, numbered as in the graph of all internal outputs, which MXNet may order otherwise."""
    symbol = legacy(graph.symbol)
    both = Graph.of([symbol, symbol.get_internals()]).heads
    count = len(symbol.list_outputs())
    numbers = dict(zip(both[count:], view.heads))
    return [numbers[source] for source in both[:count]]


def _output_names(graph: NetGraph, count: int) -> List[str]:
    """Return the names of the outputs in the file; an input may be called "output"."""
    names = ["output"] if count == 1 else [f"output{number}" for number in range(count)]
    return [_free(name, graph.inputs) for name in names]


def _free(wanted: str, taken: Collection[str]) -> str:
    """Return a name, with a number if it is taken."""
    names = itertools.chain([wanted], (f"{wanted}_{count}" for count in itertools.count(2)))
    return next(name for name in names if name not in taken)


def _recurrent(view: Graph) -> List[Entry]:
    """Return the inputs that have time first: of the fused RNN, and of interleaved attention."""
    attention = "_contrib_interleaved_matmul_"
    counts = {"RNN": 1, f"{attention}encdec_qk": 2, f"{attention}selfatt_qk": 1}
    return [source for node in view.nodes for source in node.inputs[: counts.get(node.operator, 0)]]


def _dims(
    graph: NetGraph,
    internals: Any,
    view: Graph,
    shapes: Sequence[Sequence[int]],
    known: Sequence[int],
) -> Tuple[List[int], List[Optional[Dims]]]:
    """Find the inputs' batch axes, and all shapes as functions of the batch size."""
    possible = [[0, 1] if len(shape) > 1 else [0] for shape in shapes]
    candidates = [tuple(known)] if known else list(itertools.product(*possible))
    for axes in sorted(candidates[:64], key=sum):
        inferred = []
        for batch in _BATCHES:
            given = [_with(shape, axis, batch) for shape, axis in zip(shapes, axes)]
            found = _infer(graph, internals, dict(zip(graph.inputs, given)))
            if found is None:
                break
            inferred.append(found)
        if len(inferred) < len(_BATCHES):
            continue
        dims = [_of_batch(many) for many in zip(*inferred)]
        times = [dims[view.heads.index(source)] for source in _recurrent(view)]
        # a batch axis there would be a variable length of the sequence
        if all(dim is not None and isinstance(dim[0], int) for dim in times):
            return list(axes), dims
    raise ExportError(
        f"export: the net computes no other batch size than that of input_shape, {[tuple(shape) for shape in shapes]}; "
        "an ONNX file takes any. Where its code reshapes to a fixed batch size, write 0 or -1 for it"
    )


def _infer(graph: NetGraph, internals: Any, inputs: Mapping[str, Tuple[int, ...]]) -> Optional[List[Any]]:
    known = {name.partition(":")[2]: array.shape for name, array in graph.arrays.items()}
    names = set(internals.list_inputs())
    given = {name: shape for name, shape in {**known, **inputs}.items() if name in names}
    try:
        _, outputs, _ = internals.infer_shape_partial(**given)
    except mx.MXNetError:
        return None
    unknown = -1 if graph.numpy else 0
    return [
        None if shape is None or unknown in shape or (not shape and not graph.numpy) else shape for shape in outputs
    ]


def _of_batch(shapes: Sequence[Any]) -> Optional[Dims]:
    """Return a shape as a function of the batch size, from the shapes at three batch sizes."""
    if any(shape is None for shape in shapes) or len({len(shape) for shape in shapes}) != 1:
        return None
    dims: List[Size] = []
    for sizes in zip(*shapes):
        factor, rest = divmod(sizes[1] - sizes[0], _BATCHES[1] - _BATCHES[0])
        offset = sizes[0] - factor * _BATCHES[0]
        if rest or factor < 0 or sizes[2] != factor * _BATCHES[2] + offset:
            return None
        dims.append(Batch(factor, offset) if factor else int(sizes[0]))
    return tuple(dims)


def _types(graph: NetGraph, internals: Any, dtypes: Sequence[Any]) -> List[Any]:
    names = set(internals.list_inputs())
    known = {name.partition(":")[2]: array.dtype for name, array in graph.arrays.items()}
    known.update((name, np.dtype(dtype)) for name, dtype in zip(graph.inputs, dtypes))
    _, types, _ = internals.infer_type(**{name: dtype for name, dtype in known.items() if name in names})
    return [np.dtype(dtype) for dtype in types]


def _with(shape: Sequence[int], axis: int, batch: int) -> Tuple[int, ...]:
    return (*shape[:axis], batch, *shape[axis + 1 :])
