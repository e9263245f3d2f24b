"""The operators that conversions read, with shapes for any batch size, and the writer of the ONNX nodes."""

from collections import Counter
from functools import partial
import itertools
import math
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import legacy, switches
from mxkit.core.graph import Attributes, Entry, Graph
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import NetGraph
import mxnet as mx
import numpy as np

END = 2**63 - 1  # an end of Slice beyond every axis


class Batch(NamedTuple):
    """Size of an axis that depends on the batch size N: `factor * N + offset`."""

    factor: int
    offset: int = 0


Size = Union[int, Batch]
Dims = Tuple[Size, ...]
UNKNOWN: Dims = (-1,)  # a shape that depends on values
# Three batch sizes show whether a shape is a multiple of the batch size plus a number
_BATCHES = (7, 11, 13)


class Tensor(NamedTuple):
    """An input or output of an operator.

    Attributes:
        name: In the ONNX graph.
        dims: Its shape.
        dtype: Its dtype in NumPy.
    """

    name: str
    dims: Dims
    dtype: Any

    def size(self, axis: int) -> int:
        """Return the size of an axis that must not depend on the batch size."""
        size = self.dims[axis]
        if not isinstance(size, int):
            raise Unsupported(f"axis {axis} of {self.name!r} has the size of the batch")
        return size

    def like(self, value: float) -> np.ndarray:
        """Return a number in the dtype of the tensor."""
        return np.array(value).astype(self.dtype)


Value = Union[Tensor, str, np.ndarray, np.generic]
Converter = Callable[["Operator", "Writer"], Union[str, List[str]]]
CONVERTERS: Dict[str, Converter] = {}


class Unsupported(Exception):  # noqa: N818
    """An operator, or an attribute of it, without a right conversion; the text is the reason."""


class _Fields(NamedTuple):
    """See `Operator`."""

    name: str
    operator: str
    attrs: Mapping[str, str]
    inputs: List[Tensor]
    outputs: List[Tensor]


class Operator(_Fields, Attributes):
    """An operator of MXNet's graph.

    Attributes:
        name: In MXNet's graph; names can repeat.
        kind: MXNet's name of what it computes.
        attrs: Attributes as MXNet writes them; defaults are absent.
        inputs: In MXNet's order.
        outputs: The visible ones.
    """

    @property
    def rank(self) -> int:
        """Number of axes of the first input."""
        return len(self.inputs[0].dims)

    def axes(self, name: str = "axis") -> List[int]:
        """Return an attribute with axes as a list, counted from 0; absent, None and () are all axes."""
        every = range(self.rank)
        axes = sorted(axis % self.rank for axis in self.ints(name) or every)
        return [axis for axis in every if axis not in axes] if self.flag("exclude") else axes

    def refuse(self, *conditions: Tuple[Any, str]) -> None:
        """Raise Unsupported with the reason of the first condition that is true."""
        for condition, reason in conditions:
            if condition:
                raise Unsupported(reason)


class Writer:
    """Collects ONNX nodes and constants.

    Args:
        batch: Name of an input of the graph and the axis of it that has the batch size.
    """

    def __init__(self, batch: Tuple[str, int]) -> None:
        self.nodes: List[Any] = []
        self.initializers: List[Any] = []
        self.prefix = ""
        self._batch = batch
        self._count = 0
        self._constants: Dict[Any, str] = {}

    def op(self, kind: str, *inputs: Value, **attributes: Any) -> str:
        """Write a node with one output and return the output's name. Arrays among the inputs become constants."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def filled(self, template: str, operator: Operator) -> str:
        """Write a template: an expression of ONNX's operators, of the names in `_Names`, of numbers and attributes."""
        return str(eval(template, {}, _Names(operator, self)))  # noqa: S307 - templates are mxkit's own

    def same(self, operator: Operator, tensor: Tensor) -> Value:
        """Cast an input to the dtype of the operator's first output."""
        dtype = operator.outputs[0].dtype
        return tensor if tensor.dtype == dtype else self.cast(tensor, dtype)

    def ops(self, kind: str, count: int, *inputs: Value, **attributes: Any) -> List[str]:
        """Write a node with `count` outputs and return their names."""
        from onnx import helper

        outputs = [self._new(kind) for _ in range(count)]
        names = [self.named(value) for value in inputs]
        self.nodes.append(helper.make_node(kind, names, outputs, name=outputs[0], **attributes))
        return outputs

    def named(self, value: Value) -> str:
        """Return the name of a tensor; an array becomes a constant."""
        if isinstance(value, str):
            return value
        return value.name if isinstance(value, Tensor) else self.constant(value)

    def constant(self, value: Any) -> str:
        """Write a constant, equal ones once, and return its name."""
        from onnx import numpy_helper

        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = f"constant_{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(array, name))
        return self._constants[key]

    def shape(self, dims: Dims) -> str:
        """Write a shape as a vector of integers, computed from the batch size where it depends on it."""
        if all(isinstance(size, int) for size in dims):
            return self.constant(np.array(dims, np.int64))
        parts: List[str] = []
        for size in dims:
            if isinstance(size, int):
                parts.append(self.constant(np.array([size], np.int64)))
                continue
            name, axis = self._batch
            part = self.op("Shape", name, start=axis, end=axis + 1)
            part = part if size.factor == 1 else self.op("Mul", part, integers(size.factor))
            parts.append(self.op("Add", part, integers(size.offset)) if size.offset else part)
        return self.op("Concat", *parts, axis=0)

    def reshape(self, value: Value, dims: Dims) -> str:
        """Reshape to a shape of which several axes may depend on the batch size."""
        fixed = [size if isinstance(size, int) else -1 for size in dims]
        if fixed.count(-1) > 1 or (-1 in fixed and 0 in fixed):
            return self.op("Reshape", value, self.shape(dims), allowzero=1)
        return self.op("Reshape", value, np.array(fixed, np.int64), allowzero=int(0 in fixed))

    def cast(self, value: Value, dtype: Any) -> str:
        """Cast to a dtype of NumPy."""
        from onnx import helper

        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def clipped(self, indices: Tensor, size: int) -> str:
        """Write indices as int64, clipped to an axis of `size`, as MXNet does."""
        return self.op("Clip", self.cast(indices, np.int64), np.int64(0), np.int64(size - 1))

    def transpose(self, value: Value, *axes: int) -> str:
        """Permute the axes."""
        return self.op("Transpose", value, perm=list(axes))

    def slice(self, value: Value, starts: Any, ends: Any, axes: Any, steps: Any = None) -> str:
        """Cut out a part; starts, ends, axes and steps are whole numbers or lists of them."""
        more = [] if steps is None else [_vector(steps)]
        return self.op("Slice", value, _vector(starts), _vector(ends), _vector(axes), *more)

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{self.prefix}/{kind}_{self._count}"


class _Names(Dict[str, Any]):
    """The names in a template: inputs `x`, `y` and `inputs`, `out`, methods of the Writer, Python's; ONNX's nodes."""

    def __init__(self, operator: Operator, writer: Writer) -> None:
        inputs = operator.inputs
        super().__init__(x=inputs[0], y=inputs[-1], inputs=inputs, out=operator.outputs[0])
        self.update(cast=writer.cast, shape=writer.shape, transpose=writer.transpose, clipped=writer.clipped)
        self.update(
            same=partial(writer.same, operator), bool=bool, float=float, len=len, range=range, integers=integers
        )
        self._operator, self._writer = operator, writer

    def __missing__(self, name: str) -> Any:
        return partial(self._node, name) if name[0].isupper() else self._operator.get(name)

    def _node(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        values = (self._operator.inputs[0].like(one) if isinstance(one, (int, float)) else one for one in inputs)
        return self._writer.op(kind, *values, **attributes)


def converts(*kinds: str) -> Callable[[Converter], Converter]:
    """Register a conversion for operators of MXNet."""

    def register(converter: Converter) -> Converter:
        for kind in kinds:
            CONVERTERS[kind] = converter
        return converter

    return register


def integers(*values: int) -> np.ndarray:
    """Return a vector of int64, the dtype of shapes and axes in ONNX."""
    return np.array(values, np.int64)


def count(dims: Dims, batch: int) -> int:
    """Return the number of elements at a batch size."""
    return math.prod(size if isinstance(size, int) else size.factor * batch + size.offset for size in dims)


def _vector(values: Any) -> np.ndarray:
    return np.array([values] if isinstance(values, int) else values, np.int64)


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

    @property
    def fixed(self) -> bool:
        """Whether the graph does not fit every batch size, so that shapes are those of one."""
        return all(isinstance(size, int) for one in self.inputs for size in one.dims)


def operators_of(
    graph: NetGraph, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any], axes: Sequence[int] = ()
) -> Operators:
    """Infer shapes and dtypes of a graph, for any batch size or the one that it fits, and name its tensors.

    Args:
        graph: Result of `graph_of`.
        shapes: Of the inputs, in their order.
        dtypes: Of the inputs.
        axes: The axes of the samples; () finds them.

    Raises:
        ExportError: The graph fits no batch size, or only one and reads time first.
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
    made: Dict[int, List[Tensor]] = {}
    for source, tensor in tensors.items():
        made.setdefault(source.node, []).append(tensor)
    operators = [
        Operator(node.name, node.operator, node.attrs, [tensors[one] for one in node.inputs], made[node.index])
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
    graph: NetGraph, internals: Any, view: Graph, shapes: Sequence[Sequence[int]], known: Sequence[int]
) -> Tuple[List[int], List[Optional[Dims]]]:
    """Find the inputs' batch axes, and all shapes as functions of the batch size."""
    possible = [[0, 1] if len(shape) > 1 else [0] for shape in shapes]
    candidates = [tuple(known)] if known else list(itertools.product(*possible))
    several = False
    for axes in sorted(candidates[:64], key=sum):
        inferred = []
        for batch in _BATCHES:
            given = [(*shape[:axis], batch, *shape[axis + 1 :]) for shape, axis in zip(shapes, axes)]
            found = _infer(graph, internals, dict(zip(graph.inputs, given)))
            if found is None:
                break
            inferred.append(found)
        if len(inferred) < len(_BATCHES):
            continue
        several = True
        dims = [_of_batch(many) for many in zip(*inferred)]
        times = [dims[view.heads.index(source)] for source in _recurrent(view)]
        # a batch axis there would be a variable length of the sequence
        if all(dim is not None and isinstance(dim[0], int) for dim in times):
            return list(axes), dims
    own = list(known) or [0] * len(shapes)
    ones = [(*shape[:axis], 1, *shape[axis + 1 :]) for shape, axis in zip(shapes, own)]
    for one in () if several else (shapes, ones):
        found = _infer(graph, internals, dict(zip(graph.inputs, map(tuple, one))))
        if found is not None:
            return own, found
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
