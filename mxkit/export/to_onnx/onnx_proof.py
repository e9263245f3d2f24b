"""Compares an ONNX file with MXNet, operator by operator, in onnxruntime."""

import functools
import json
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set

from mxkit.core.array_kind import legacy
from mxkit.errors import ExportError
from mxkit.export.net_graph import Graph, Value, computed
from mxkit.export.proof import Row, compare
from mxkit.export.to_onnx.operators_of_graph import Source, tensor_names
import numpy as np

# Operators whose result jumps where two numbers are nearly equal. They are compared with MXNet's own inputs: the
# last bits of a score would otherwise put two boxes in another order.
_JUMPING = """
topk argsort sort argmax argmin argmax_channel _npx_topk _npi_argmax _npi_argmin _npi_argsort _npi_sort
_contrib_box_nms _greater_scalar _lesser_scalar _equal_scalar _greater_equal_scalar _lesser_equal_scalar
_not_equal_scalar broadcast_equal broadcast_not_equal broadcast_greater broadcast_lesser broadcast_greater_equal
broadcast_lesser_equal _equal _not_equal _greater _lesser _greater_equal _lesser_equal floor ceil round rint fix trunc
sign Cast broadcast_mod _mod _mod_scalar take gather_nd pick ROIPooling _npi_floor _npi_ceil _npi_mod
"""
JUMPING = frozenset(_JUMPING.split())


class Compared(NamedTuple):
    """Rows of a comparison.

    Attributes:
        rows: Of all operators, for each batch, and of the file's outputs under onnxruntime's optimizations.
        not_compared: Operators' outputs that no tensor of the file holds.
    """

    rows: List[Row]
    not_compared: List[str]


def compare_onnx(graph: Graph, model: bytes, batches: Sequence[Mapping[str, Any]]) -> Compared:
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
    rows: List[Row] = []
    missing: List[str] = []
    for batch in batches:
        size = len(next(iter(batch.values())))
        given = {name: np.asarray(array) for name, array in batch.items()}
        given.update(exposed.fed_arrays(graph, names, batch))
        actual = exposed.outputs(given, functools.partial(computed, graph, batch))
        of_file = dict(zip(exposed.of_file, exposed.run_file(given)))
        for value in computed(graph, batch):
            name = names[value.node, value.output]
            described = value.name if not value.output else f"{value.name}[{value.output}]"
            if name not in exposed.made:
                missing.append(f"{value.operator} ({described})")
                continue
            rows.append(compare(described, value.operator, size, value.array, actual(name)))
            if name in of_file:
                rows.append(compare(name, "optimized file", size, value.array, of_file[name]))
    return Compared(rows, sorted(set(missing)))


class _Exposed:
    """The model with all tensors as outputs, and with MXNet's tensors as inputs of the jumping operators."""

    def __init__(self, content: bytes, graph: Graph, names: Mapping[Source, str]) -> None:
        import onnx

        model = onnx.load_model_from_string(content)
        self.fed = _feed(model, _jumping(graph, names), set(names.values()))
        self.of_file = [output.name for output in model.graph.output]
        self._inputs = {tensor.name for tensor in model.graph.input}
        self._file = _session(model.SerializeToString(), optimized=True)
        self.made = [name for node in model.graph.node for name in node.output]
        wanted = [name for name in dict.fromkeys(names.values()) if name in set(self.made)]
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
        self._session = _session(model.SerializeToString(), optimized=False)
        self._wanted, self._names, self._model = wanted, names, model

    def fed_arrays(self, graph: Graph, names: Mapping[Source, str], batch: Mapping[str, Any]) -> Dict[str, Any]:
        """Compute the tensors that are MXNet's."""
        if not self.fed:
            return {}
        values = ((names[value.node, value.output], value.array) for value in computed(graph, batch))
        return {self.fed[name]: array for name, array in values if name in self.fed}

    def run_file(self, given: Mapping[str, Any]) -> List[Any]:
        """Compute the file's own outputs."""
        return list(self._file.run(None, {name: given[name] for name in self._inputs}))

    def outputs(self, given: Mapping[str, Any], values: Callable[[], Iterable[Value]]) -> Any:
        """Compute all tensors, and return a function that gives each by name.

        Args:
            given: Of the model's inputs.
            values: MXNet's, to find the wrong operator if onnxruntime fails.
        """
        feed = {name: given[name] for name in self._inputs}
        try:
            made = dict(zip(self._wanted, self._session.run(self._wanted, feed)))
        except Exception as error:  # onnxruntime's errors have no common class
            raise ExportError(
                f"export: onnxruntime cannot compute the file, and it was not written. {self._other_shape(values())}"
                f"onnxruntime, which names nodes after MXNet's operators: {' '.join(str(error).split())[:500]}"
            ) from error
        return made.pop

    def _other_shape(self, values: Iterable[Value]) -> str:
        """Name the first operator whose shape in the file is another one than in MXNet."""
        from onnx import shape_inference

        inferred = shape_inference.infer_shapes(self._model).graph
        stated = {value.name: value.type.tensor_type.shape.dim for value in [*inferred.value_info, *inferred.output]}
        for value in values:
            sizes = [size.dim_value or None for size in stated.get(self._names[value.node, value.output], ())]
            wanted = value.array.shape
            if any(size not in (None, other) for size, other in zip(sizes, wanted)):
                return f"The shape differs first at {value.name} ({value.operator}): expected {wanted}, got {sizes}. "
        return ""


def _jumping(graph: Graph, names: Mapping[Source, str]) -> Set[str]:
    """Return the names of the jumping operators' first outputs, under which the file has their nodes."""
    nodes = json.loads(legacy(graph.symbol).get_internals().tojson())["nodes"]
    return {name for (number, output), name in names.items() if not output and nodes[number]["op"] in JUMPING}


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
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
