"""Compares an ONNX file with MXNet, operator by operator, in onnxruntime."""

from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

from mxkit.core.arrays import legacy
from mxkit.core.graph import Entry, Graph
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import NetGraph, Value, computed, variables_of
from mxkit.exporting.proof import JUMPING, Draw, Row, beside_summands, compare, summands
from mxkit.exporting.to_onnx.onnx_writer import count, operators_of, tensor_names

_MEMORY = 2 * 10**8  # bytes of tensors that one run of onnxruntime returns


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

    Args:
        graph: Result of `graph_of`.
        model: The file's content.
        batches: NumPy arrays by the inputs' names.

    Raises:
        ExportError: onnxruntime cannot compute the file.
    """
    names = tensor_names(graph)
    exposed = _Exposed(model, graph, names)
    given = [{**batch, **exposed.fed_arrays(graph, batch)} for batch in batches]
    of_files = exposed.run_file(given, graph, batches)
    rows: List[Row] = []
    missing: List[str] = []
    for batch, feed, of_file in zip(batches, given, of_files):
        size = len(next(iter(batch.values())))
        actual = exposed.outputs(graph, batch, feed)
        found: List[Tuple[Entry, Row]] = []
        for value in computed(graph, batch):
            key = value.entry
            name = names[key]
            described = value.name if not key.output else f"{value.name}[{key.output}]"
            if name not in exposed.made:
                missing.append(f"{value.operator} ({described})")
                continue
            found.append((key, compare(described, value.operator, size, value.array, actual(name))))
            if name in of_file:
                found.append((key, compare(name, "optimized file", size, value.array, of_file[name])))
        rows += beside_summands(found, partial(_summands, graph, batch))
    return Compared(rows, sorted(set(missing)))


def _summands(graph: NetGraph, batch: Mapping[str, Any]) -> Draw:
    return summands(legacy(graph.symbol).get_internals(), variables_of(graph, batch), graph.numpy)


class _Exposed:
    """The model with all tensors as outputs, and with MXNet's tensors as inputs of the jumping operators."""

    def __init__(self, content: bytes, graph: NetGraph, names: Mapping[Entry, str]) -> None:
        import onnx

        self._model = onnx.load_model_from_string(content)
        self._names = names
        self.fed = _feed(self._model, _jumping(graph, names), set(names.values()))
        self._inputs = {tensor.name for tensor in self._model.graph.input}
        self.made = {name for node in self._model.graph.node for name in node.output}
        self._session: Tuple[Tuple[str, ...], Any] = ((), None)

    def fed_arrays(self, graph: NetGraph, batch: Mapping[str, Any]) -> Dict[str, Any]:
        """Compute MXNet's values of the inputs of jumping operators."""
        if not self.fed:
            return {}
        values = ((self._names[value.entry], value.array) for value in computed(graph, batch))
        return {self.fed[name]: array for name, array in values if name in self.fed}

    def run_file(self, given: Sequence[Any], graph: NetGraph, batches: Sequence[Any]) -> List[Dict[str, Any]]:
        """Compute the file's own outputs, with onnxruntime's optimizations."""
        names = [output.name for output in self._model.graph.output]
        session = _session(self._model.SerializeToString(), optimized=True)
        return [dict(zip(names, self._run(session, names, feed, graph, batch))) for feed, batch in zip(given, batches)]

    def outputs(self, graph: NetGraph, batch: Mapping[str, Any], feed: Mapping[str, Any]) -> Callable[[str], Any]:
        """Return a function that gives each tensor once, by name; groups of them limit the memory."""
        groups = self._groups(graph, batch)
        made: Dict[str, Any] = {}

        def actual(name: str) -> Any:
            if name not in made:
                group = groups[name]
                made.clear()
                made.update(zip(group, self._run(self._session_of(group), group, feed, graph, batch)))
            return made.pop(name)

        return actual

    def _groups(self, graph: NetGraph, batch: Mapping[str, Any]) -> Dict[str, List[str]]:
        given = [batch[name] for name in graph.inputs]
        parts = operators_of(graph, [array.shape for array in given], [array.dtype for array in given])
        groups: Dict[str, List[str]] = {}
        group: List[str] = []
        size = 0
        largest = max(given[0].shape[parts.batch_axes[0]], 1)
        for tensor in (tensor for operator in parts.operators for tensor in operator.outputs):
            size += count(tensor.dims, largest) * tensor.dtype.itemsize
            if size > _MEMORY and group:
                group, size = [], 0
            if tensor.name in self.made:
                group.append(tensor.name)
                groups[tensor.name] = group
        return groups

    def _session_of(self, names: Sequence[str]) -> Any:
        import onnx

        if self._session[0] != tuple(names):
            self._session = ((), None)  # free the last one first
            del self._model.graph.output[:]
            self._model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
            self._session = (tuple(names), _session(self._model.SerializeToString(), optimized=False))
        return self._session[1]

    def _run(
        self, session: Any, names: Sequence[str], feed: Mapping[str, Any], graph: NetGraph, batch: Any
    ) -> List[Any]:
        try:
            return list(session.run(list(names), {name: feed[name] for name in self._inputs}))
        except Exception as error:  # onnxruntime's errors have no common class
            raise ExportError(
                "export: onnxruntime cannot compute the file, and it was not written. "
                f"{self._other_shape(computed(graph, batch))}"
                f"onnxruntime, which names nodes after MXNet's operators: {' '.join(str(error).split())[:500]}"
            ) from error

    def _other_shape(self, values: Iterable[Value]) -> str:
        """Name the first operator whose shape in the file is another one than in MXNet."""
        from onnx import shape_inference

        inferred = shape_inference.infer_shapes(self._model).graph
        stated = {value.name: value.type.tensor_type.shape.dim for value in [*inferred.value_info, *inferred.output]}
        for value in values:
            sizes = [size.dim_value or None for size in stated.get(self._names[value.entry], ())]
            wanted = value.array.shape
            if any(size not in (None, other) for size, other in zip(sizes, wanted)):
                return f"The shape differs first at {value.name} ({value.operator}): expected {wanted}, got {sizes}. "
        return ""


def _jumping(graph: NetGraph, names: Mapping[Entry, str]) -> Set[str]:
    """Return the names of the jumping operators' first outputs, under which the file has their nodes."""
    nodes = Graph.of(graph.symbol, internals=True).nodes
    return {name for one, name in names.items() if not one.output and nodes[one.node].operator in JUMPING}


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


def _session(content: bytes, optimized: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # it grows by doubling
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
