"""Compares an ONNX file with MXNet, operator by operator, in onnxruntime."""

from functools import partial
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

from mxkit.core.arrays import legacy
from mxkit.core.graph import Entry, Graph
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import NetGraph, computed, variables_of
from mxkit.exporting.proof import JUMPING, Draw, Row, at_places, beside_summands, compare, summands
from mxkit.exporting.to_onnx.onnx_writer import tensor_names


class Compared(NamedTuple):
    """Rows of a comparison.

    Attributes:
        rows: Of all operators, for each batch, and of the file's outputs under onnxruntime's optimizations.
        not_compared: Operators' outputs that no tensor of the file holds.
    """

    rows: List[Row]
    not_compared: List[str]


def compare_onnx(graph: NetGraph, model: bytes, batches: Sequence[Mapping[str, Any]]) -> Compared:
    """Compute batches with MXNet and with onnxruntime, and compare every output of every operator.

    Operators whose results jump read MXNet's own inputs.

    Args:
        graph: Result of `graph_of`.
        model: The file's content.
        batches: NumPy arrays by the inputs' names.

    Raises:
        ExportError: onnxruntime cannot compute the file.
    """
    import onnx

    names, file = tensor_names(graph), onnx.load_model_from_string(model)
    nodes = Graph.of(graph.symbol, internals=True).nodes
    jumping = {name for one, name in names.items() if not one.output and nodes[one.node].operator in JUMPING}
    fed = _feed(file, jumping, set(names.values()))
    whole = _Session(file, [one.name for one in file.graph.output], optimized=True)
    made = {name for node in file.graph.node for name in node.output}
    inner = [name for name in dict.fromkeys(names.values()) if name in made]
    del file.graph.output[:]
    file.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    every = _Session(file, inner, optimized=False)
    rows: List[Row] = []
    missing: Set[str] = set()
    for batch in batches:
        size, values = len(next(iter(batch.values()))), list(computed(graph, batch))
        own = {fed[names[one.entry]]: one.array for one in values if names[one.entry] in fed}
        of_file, actual = whole.run({**batch, **own}), every.run({**batch, **own})
        found: List[Tuple[Entry, Row]] = []
        arrays = {value.entry: value.array for value in values}
        for value in values:
            key, name = value.entry, names[value.entry]
            described = value.name if not key.output else f"{value.name}[{key.output}]"
            if name not in made:
                missing.add(f"{value.operator} ({described})")
                continue
            node = nodes[key.node]
            first = arrays.get(node.inputs[0]) if node.inputs else None
            pair = (at_places(node.operator, node.attrs, key.output, first, one) for one in (value.array, actual[name]))
            found.append((key, compare(described, value.operator, size, *pair)))
            if name in of_file:
                found.append((key, compare(name, "optimized file", size, value.array, of_file[name])))
        rows += beside_summands(found, partial(_summands, graph, batch))
    return Compared(rows, sorted(missing))


def _summands(graph: NetGraph, batch: Mapping[str, Any]) -> Draw:
    return summands(legacy(graph.symbol).get_internals(), variables_of(graph, batch), graph.numpy)


class _Session:
    """A model in onnxruntime.

    Args:
        model: The model.
        names: Of its outputs.
        optimized: Whether onnxruntime may join operators.
    """

    def __init__(self, model: Any, names: List[str], optimized: bool) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # it grows by doubling
        self._names, self._inputs = names, [one.name for one in model.graph.input]
        content = model.SerializeToString()
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(self, feed: Mapping[str, Any]) -> Dict[str, Any]:
        """Compute the outputs, by name."""
        try:
            return dict(zip(self._names, self._session.run(self._names, {name: feed[name] for name in self._inputs})))
        except Exception as error:  # onnxruntime's errors have no common class
            raise ExportError(
                "export: onnxruntime cannot compute the file, and it was not written. onnxruntime, which names nodes "
                f"after MXNet's operators: {' '.join(str(error).split())[:500]}"
            ) from error


def _feed(model: Any, prefixes: Set[str], tensors: Set[str]) -> Dict[str, str]:
    """Let the nodes of some operators read new inputs instead of computed tensors; return the inputs' names."""
    from onnx import helper, shape_inference

    made = {name for node in model.graph.node for name in node.output}
    kinds = {}
    if prefixes:
        inferred = shape_inference.infer_shapes(model).graph
        kinds = {value.name: value.type.tensor_type.elem_type for value in [*inferred.value_info, *inferred.output]}
    fed: Dict[str, str] = {}
    for node in model.graph.node:
        if (node.name.rpartition("/")[0] or node.name) not in prefixes:
            continue
        for place, name in enumerate(node.input):
            if name in made and name in tensors and name in kinds:
                fed[name] = node.input[place] = f"{name}:mxnet"
    model.graph.input.extend(helper.make_tensor_value_info(other, kinds[name], None) for name, other in fed.items())
    return fed
