"""The graph of a net as a Symbol with its arrays, the values of its operators in MXNet, and inputs for them."""

from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import copy_to_cpu, legacy, of_kind, switches
from mxkit.core.blocks import check_net, is_numpy_net, wait_before_reading
from mxkit.core.graph import Entry, Graph, with_merged_variables
from mxkit.core.graphs import hooks_replaced, traced_graph
from mxkit.core.replicas import finish_initialization, is_deferred, shape_of, values_of
from mxkit.errors import NotInitializedError
from mxkit.nets.architecture.graph_blocks import OptimizedNet
from mxkit.nets.hybridizing import usual_layers
import mxnet as mx
from mxnet import gluon
import numpy as np

# Sizes of the compared batches. A second size reveals a batch size that a conversion fixed by mistake.
SIZES = (1, 4)


class NetGraph(NamedTuple):
    """A traced net.

    Attributes:
        symbol: Its outputs, as one Symbol.
        arrays: Values of its parameters on the CPU, by `arg:` or `aux:` and the variable's name.
        inputs: Names of its inputs, in their order.
        parameters: Parameters by the variable's name.
        numpy: Whether it is a graph of `mx.np`.
    """

    symbol: Any
    arrays: Dict[str, Any]
    inputs: List[str]
    parameters: Dict[str, Any]
    numpy: bool


class Value(NamedTuple):
    """An output of an operator.

    Attributes:
        entry: The operator's number in the graph of all inner outputs, and the number of the output.
        name: The operator's name.
        operator: What it computes.
        array: Its value, as NumPy's.
    """

    entry: Entry
    name: str
    operator: str
    array: Any


def graph_of(net: Any, shapes: Sequence[Tuple[int, ...]] = ()) -> NetGraph:
    """Trace a net with symbols; its caches, hooks and hybridization do not change. An OptimizedNet has its graph.

    Args:
        net: An initialized HybridBlock, or a Sequential of HybridBlocks.
        shapes: Of its inputs; () if they are not known.

    Raises:
        NotInitializedError, ValueError: As for `export`.

    Side effects:
        With `shapes`, parameters that waited for a first batch are initialized, as a batch would do.
    """
    check_net(net)
    numpy = is_numpy_net(net)
    if isinstance(net, OptimizedNet):
        made, names = net.prediction_graph(), [variable.name for variable in traced_graph(net)[0]]
        states = set(made.symbol.list_auxiliary_states())
        arrays = {name: made.arrays[name] for name in made.symbol.list_inputs() if name not in names}
        arrays = {f"{'aux' if name in states else 'arg'}:{name}": array for name, array in arrays.items()}
        return NetGraph(made.symbol, arrays, names, {}, numpy)
    inputs = [mx.sym.var(name) for name in input_names(net, len(shapes))]
    with switches(numpy):
        outputs = _trace(net, of_kind(inputs, numpy))
        names = outputs.list_inputs()
        parameters = {name: parameter for name, parameter in net.collect_params().items() if name in names}
        if shapes:
            _finish_shapes(outputs, {variable.name: shape for variable, shape in zip(inputs, shapes)}, parameters)
        wait_before_reading()
        arrays = _arrays(outputs, parameters, {variable.name for variable in inputs})
    return NetGraph(outputs, arrays, [variable.name for variable in inputs], parameters, numpy)


def computed(graph: NetGraph, inputs: Mapping[str, Any]) -> Iterator[Value]:
    """Compute every output of every operator at inference, in the order of the graph.

    Args:
        graph: Result of `graph_of`.
        inputs: NumPy arrays by name.
    """
    internals = legacy(graph.symbol).get_internals()
    arrays = _run(graph, internals, inputs)[::-1]
    view = Graph.of(internals)
    for entry in view.heads:
        node = view.nodes[entry.node]
        array = arrays.pop()  # its memory is free once the value was used
        if not node.is_variable:
            yield Value(entry, node.name, node.operator, array.asnumpy())


def graph_outputs(graph: NetGraph, inputs: Mapping[str, Any]) -> List[Any]:
    """Compute the outputs of a graph at inference.

    Args:
        graph: Result of `graph_of`.
        inputs: NumPy arrays by name.

    Returns:
        NumPy arrays.
    """
    return [array.asnumpy() for array in _run(graph, legacy(graph.symbol), inputs)]


def _run(graph: NetGraph, symbol: Any, inputs: Mapping[str, Any]) -> List[Any]:
    """Compute the outputs of a symbol with a graph's arrays."""
    return graph_function(symbol, variables_of(graph, inputs), graph.numpy)({})


def variables_of(graph: NetGraph, inputs: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the NDArrays of a graph's variables by name: its parameters, and inputs of NumPy's arrays."""
    values = {name.partition(":")[2]: array for name, array in graph.arrays.items()}
    with switches(graph.numpy):
        values.update({name: mx.nd.array(array, dtype=array.dtype) for name, array in inputs.items()})
    return values


def graph_function(symbol: Any, arrays: Mapping[str, Any], numpy: bool) -> Callable[[Mapping[str, Any]], List[Any]]:
    """Return a function that computes the outputs of a symbol as NDArrays.

    Args:
        symbol: A legacy Symbol.
        arrays: NDArrays by the names of its inputs.
        numpy: Whether it is a graph of `mx.np`.

    Returns:
        A function of other inputs by name, which take the place of those in `arrays`.
    """
    # an Executor would run oneDNN's fused operators, whose parts have no outputs
    # a CachedOp differentiates all outputs, and some operators have no gradient
    with switches(numpy):
        group = mx.sym.Group([mx.sym.BlockGrad(output) for output in symbol])
        operator = mx.nd.CachedOp(group)
    names = group.list_inputs()

    def compute(inputs: Mapping[str, Any]) -> List[Any]:
        values = {**arrays, **inputs}
        with switches(numpy):
            outputs = operator(*(values[name] for name in names))
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    return compute


def input_names(net: Any, count: int) -> List[str]:
    """Names of the inputs of a net: those of its graph for a SymbolBlock, else as Gluon numbers `count` of them.

    Raises:
        ValueError: `count` is neither 0 nor the SymbolBlock's number of inputs.
    """
    if not isinstance(net, gluon.SymbolBlock):
        return ["data"] if count <= 1 else [f"data{number}" for number in range(count)]
    own = [str(variable.name) for variable in traced_graph(net)[0]]
    if count not in (0, len(own)):
        raise ValueError(f"input_shape: the net has {len(own)} inputs ({', '.join(own)}), received {count} shapes")
    return own


def _trace(net: Any, inputs: Sequence[Any]) -> Any:
    """Run the net's forward pass with symbols and return the graph."""
    try:
        with hooks_replaced(net), usual_layers(net):
            outputs = legacy(list(_flat(net(*inputs))))
    except Exception as error:
        raise ValueError(
            f"export: {type(net).__name__} cannot be traced with {len(inputs)} symbols: {type(error).__name__}: "
            f"{str(error)[:500]}. Every block must be a HybridBlock whose hybrid_forward reads neither shapes nor "
            "numbers; for several inputs, give input_shape a list with a shape for each"
        ) from error
    parameters = {name for name in net.collect_params() if name not in {one.name for one in inputs}}
    outputs = with_merged_variables(outputs, parameters)
    return outputs[0] if len(outputs) == 1 else mx.sym.Group(outputs)


def _flat(outputs: Any) -> Iterator[Any]:
    if isinstance(outputs, (list, tuple)):
        for part in outputs:
            yield from _flat(part)
    elif isinstance(outputs, mx.sym.Symbol):
        yield outputs
    else:
        raise TypeError(f"forward returned {type(outputs).__name__}, not a symbol")


def _finish_shapes(outputs: Any, shapes: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Infer the parameters' shapes from the inputs', and initialize the parameters that waited for them."""
    names = outputs.list_inputs()
    known = {name: shape_of(one) for name, one in parameters.items() if values_of(one)}
    known.update({name: shape for name, shape in shapes.items() if name in names})
    try:
        # infer_shape warns of shapes that depend on values
        arguments, _, states = outputs.infer_shape_partial(**known)
    except mx.MXNetError as error:
        single = {name: (1, *shape[1:]) for name, shape in shapes.items()}
        if single != shapes:
            with suppress(ValueError):  # it computes single samples only
                _finish_shapes(outputs, single, parameters)
                return
        raise ValueError(f"input_shape: {shapes} does not fit the net: {str(error)[:500]}") from error
    inferred = dict(zip(outputs.list_arguments(), arguments or ()))
    inferred.update(zip(outputs.list_auxiliary_states(), states or ()))
    for name, parameter in parameters.items():
        if is_deferred(parameter) and all(size > 0 for size in inferred.get(name) or (0,)):
            finish_initialization(parameter, inferred[name])


def _arrays(outputs: Any, parameters: Mapping[str, Any], inputs: Any) -> Dict[str, Any]:
    arrays = {}
    auxiliary = set(outputs.list_auxiliary_states())
    for name in outputs.list_inputs():
        if name in inputs:
            continue
        parameter = parameters.get(name)
        if parameter is None:
            raise ValueError(f"export: the graph uses {name!r}, which is neither an input nor a parameter of the net")
        if values_of(parameter) is None:
            raise NotInitializedError(
                f"export: parameter {name!r} {parameter.shape} has no value. "
                + ("Pass input_shape=(1, ...)" if is_deferred(parameter) else "Call net.initialize() first")
            )
        arrays[f"{'aux' if name in auxiliary else 'arg'}:{name}"] = copy_to_cpu(parameter.list_data()[0])
    return arrays


class GraphInput(NamedTuple):
    """An input of a net.

    Attributes:
        name: In the graph.
        shape: For one batch.
        dtype: NumPy's name.
        axis: The axis of the samples, whose size is free in the exported file.
        fixed: The net does not compute every batch size, and the file that of `shape` only.
    """

    name: str
    shape: Tuple[int, ...]
    dtype: str
    axis: int = 0
    fixed: bool = False

    def __str__(self) -> str:
        free = None if self.fixed else self.axis
        sizes = ["N" if axis == free else str(size) for axis, size in enumerate(self.shape)]
        return f"{self.name} ({', '.join(sizes)}{',' * (len(sizes) == 1)}) {self.dtype}"

    def resized(self, size: int) -> Tuple[int, ...]:
        """The shape for another batch size."""
        return (*self.shape[: self.axis], size, *self.shape[self.axis + 1 :])


def by_name(values: Mapping[str, Any], net: Any) -> List[Any]:
    """Return `inputs=` or `input_shape=` of a dict in the order of the net's inputs.

    Raises:
        ValueError: The net has other inputs.
    """
    names = input_names(net, len(values))
    if set(values) != set(names):
        raise ValueError(f"export: the net's inputs are {', '.join(names)}; received {', '.join(map(str, values))}")
    return [values[name] for name in names]


def split_shapes(input_shape: Any) -> Tuple[List[Tuple[int, ...]], List[int]]:
    """Read `input_shape` of `export`: shapes with numbers only, and the axes of the samples if a None names one.

    >>> split_shapes((2, 3, 8, 8)), split_shapes([(35, None, 10), (2, 5)])
    (([(2, 3, 8, 8)], []), ([(35, 1, 10), (2, 5)], [1, 0]))
    """
    if input_shape is None:
        return [], []
    shape = input_shape if isinstance(input_shape, (list, tuple)) else (-1,)
    many = list(shape) if shape and all(isinstance(part, (list, tuple)) for part in shape) else [shape]
    sizes = [size for one in many for size in one]
    sound = all(size is None or (type(size) is int and size > 0) for size in sizes)
    if not sound or any(list(one).count(None) > 1 for one in many):
        raise ValueError(
            "input_shape: expected a shape like (1, 3, 224, 224), or a list of them; None may stand for the batch "
            f"size, as in (35, None, 100); got {input_shape!r}"
        )
    axes = [list(one).index(None) if None in one else 0 for one in many] if None in sizes else []
    return [tuple(1 if size is None else size for size in one) for one in many], axes


def as_arrays(inputs: Any) -> Tuple[Any, ...]:
    """Return the arrays of `inputs=`: one array, or a tuple of them, as NumPy's."""
    many = inputs if isinstance(inputs, (list, tuple)) else () if inputs is None else (inputs,)
    arrays = (np.asarray(one.asnumpy() if hasattr(one, "asnumpy") else one) for one in many)
    return tuple(array.astype("float32") if array.dtype == np.float64 else array for array in arrays)


def example_batches(
    graph: Any, forms: Sequence[GraphInput], examples: Sequence[Any], sizes: Sequence[Optional[int]] = SIZES
) -> List[Dict[str, Any]]:
    """Return batches of each size: of the examples, repeated if they are too few, or random numbers.

    The size None is that of the examples, or of `forms`.
    """
    found = []
    tables = _tables(graph)
    random = np.random.RandomState(0)
    for size in sizes:
        batch = {}
        for number, form in enumerate(forms):
            if examples:
                own = examples[number]
                batch[form.name] = own if size is None else np.take(own, np.arange(size), form.axis, mode="wrap")
            else:
                shape = form.shape if size is None else form.resized(size)
                batch[form.name] = _drawn(random, shape, form.dtype, tables.get(form.name))
        found.append(batch)
    return found


def _drawn(random: Any, shape: Tuple[int, ...], dtype: str, rows: Optional[int]) -> Any:
    """Numbers between -1 and 1; row numbers of a table; 0 and 1 for other integers."""
    if rows is not None:
        return random.randint(0, rows, shape).astype(dtype)
    if np.dtype(dtype).kind in "iub":
        return random.randint(0, 2, shape).astype(dtype)
    return random.uniform(-1, 1, shape).astype(dtype)


def _tables(graph: Any) -> Dict[str, int]:
    """Number of rows of the table that an input chooses from, by the input's name; 2 for lengths of sequences."""
    view = Graph.of(graph.symbol)
    rows = {}
    for node in view.nodes:
        names = [one.name for one in view.sources(node)]
        if node.operator == "Embedding":
            rows[names[0]] = node.integer("input_dim")
        elif node.operator.startswith("Sequence") and len(names) > 1:
            rows[names[1]] = 2
    return rows
