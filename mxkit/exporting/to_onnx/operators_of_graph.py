"""The operators of a graph with shapes and dtypes of all tensors, for any batch size."""

import itertools
import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import legacy, switches
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import Graph
from mxkit.exporting.to_onnx.onnx_writer import UNKNOWN, Batch, Dims, Operator, Size, Tensor
import mxnet as mx
import numpy as np

# Three batch sizes show whether a shape is a multiple of the batch size plus a number
_BATCHES = (7, 11, 13)
Source = Tuple[int, int]


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
    graph: Graph, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any], axes: Sequence[int] = ()
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
    described = json.loads(internals.tojson())
    nodes = described["nodes"]
    with switches(graph.numpy):
        axes, dims = _dims(graph, internals, shapes, _recurrent(nodes), axes)
        types = _types(graph, internals, dtypes)
    heads = [(number, output) for number, output, *_ in described["heads"]]
    names = _names(graph, nodes, heads)
    tensors = {
        source: Tensor(names[source], UNKNOWN if dim is None else dim, dtype)
        for source, dim, dtype in zip(heads, dims, types)
    }
    operators = [
        Operator(
            node["name"],
            node["op"],
            node.get("attrs", {}),
            [tensors[source, output] for source, output, *_ in node["inputs"]],
            [tensor for (source, _), tensor in tensors.items() if source == number],
        )
        for number, node in enumerate(nodes)
        if node["op"] != "null"
    ]
    variables = {
        nodes[number]["name"]: tensor for (number, _), tensor in tensors.items() if nodes[number]["op"] == "null"
    }
    outputs = [tensors[source] for source in _outputs(graph, heads)]
    inputs = [variables[name]._replace(name=name) for name in graph.inputs]
    return Operators(operators, inputs, axes, variables, outputs, _output_names(len(outputs)))


def tensor_names(graph: Graph) -> Dict[Source, str]:
    """Return the name of every output of every operator in the ONNX file, by the operator's number and the output."""
    described = json.loads(legacy(graph.symbol).get_internals().tojson())
    return _names(graph, described["nodes"], [(number, output) for number, output, *_ in described["heads"]])


def _names(graph: Graph, nodes: Sequence[Any], heads: Sequence[Source]) -> Dict[Source, str]:
    """Name tensors after MXNet's operators; the net's inputs and outputs come first, repeated names get a number."""
    outputs = _outputs(graph, heads)
    taken = {*graph.inputs, *_output_names(len(outputs)), ""}
    names: Dict[Source, str] = {}
    for source, name in zip(outputs, _output_names(len(outputs))):
        if nodes[source[0]]["op"] != "null":
            names.setdefault(source, name)
    counts = {number: len(list(group)) for number, group in itertools.groupby(heads, lambda source: source[0])}
    for number, output in heads:
        own = nodes[number]["name"]
        if (number, output) in names or own in graph.inputs and nodes[number]["op"] == "null":
            names.setdefault((number, output), own)
            continue
        name = wanted = own if counts[number] == 1 else f"{own}_output{output}"
        for count in itertools.count(2):
            if name not in taken:
                break
            name = f"{wanted}_{count}"
        taken.add(name)
        names[number, output] = name
    return names


def _outputs(graph: Graph, heads: Sequence[Source]) -> List[Source]:
    """Return the net's outputs, numbered as in the graph of all internal outputs, which MXNet may order otherwise."""
    symbol = legacy(graph.symbol)
    both = json.loads(mx.sym.Group([symbol, symbol.get_internals()]).tojson())["heads"]
    sources = [(number, output) for number, output, *_ in both]
    count = len(symbol.list_outputs())
    numbers = dict(zip(sources[count:], heads))
    return [numbers[source] for source in sources[:count]]


def _output_names(count: int) -> List[str]:
    return ["output"] if count == 1 else [f"output{number}" for number in range(count)]


def _recurrent(nodes: Sequence[Any]) -> List[Source]:
    """Return the inputs that have time first: of the fused RNN, and of interleaved attention."""
    attention = "_contrib_interleaved_matmul_"
    counts = {"RNN": 1, f"{attention}encdec_qk": 2, f"{attention}selfatt_qk": 1}
    return [tuple(source[:2]) for node in nodes for source in node["inputs"][: counts.get(node["op"], 0)]]


def _dims(
    graph: Graph,
    internals: Any,
    shapes: Sequence[Sequence[int]],
    recurrent: Sequence[Source],
    known: Sequence[int],
) -> Tuple[List[int], List[Optional[Dims]]]:
    """Find the inputs' batch axes, and all shapes as functions of the batch size."""
    heads = [(number, output) for number, output, *_ in json.loads(internals.tojson())["heads"]]
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
        times = [dims[heads.index(source)] for source in recurrent]
        # a batch axis there would be a variable length of the sequence
        if all(dim is not None and isinstance(dim[0], int) for dim in times):
            return list(axes), dims
    raise ExportError(
        f"export: the net computes no other batch size than that of input_shape, {[tuple(shape) for shape in shapes]}; "
        "an ONNX file takes any. Where its code reshapes to a fixed batch size, write 0 or -1 for it"
    )


def _infer(graph: Graph, internals: Any, inputs: Mapping[str, Tuple[int, ...]]) -> Optional[List[Any]]:
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


def _types(graph: Graph, internals: Any, dtypes: Sequence[Any]) -> List[Any]:
    names = set(internals.list_inputs())
    known = {name.partition(":")[2]: array.dtype for name, array in graph.arrays.items()}
    known.update((name, np.dtype(dtype)) for name, dtype in zip(graph.inputs, dtypes))
    _, types, _ = internals.infer_type(**{name: dtype for name, dtype in known.items() if name in names})
    return [np.dtype(dtype) for dtype in types]


def _with(shape: Sequence[int], axis: int, batch: int) -> Tuple[int, ...]:
    return (*shape[:axis], batch, *shape[axis + 1 :])
