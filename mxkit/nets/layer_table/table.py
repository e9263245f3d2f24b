"""A table of a net's blocks: path, type, output, parameters, multiply-adds."""

from math import prod
from numbers import Integral
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import blocks_by_path, depth_of, parameters_by_path, unknown_path
from mxkit.errors import nearest
from mxkit.nets.layer_table.costs import Shape
from mxkit.nets.layer_table.measures import Measures, Output, measure
from mxkit.nets.layer_table.printing import arguments_of, text_table
from mxkit.storage.params_format import dtype_name
import mxnet as mx


def read_inputs(net: Any, inputs: Sequence[Any]) -> Tuple[List[Any], List[Output]]:
    """Replace every shape by an `Output`.

    Args:
        net: Any block. A shape gets the dtype of the net's first parameter.
        inputs: Shapes, NDArrays, None, lists of them.

    Returns:
        The inputs with their shapes replaced, and a flat list of Outputs, one for each shape and array.

    Raises:
        ValueError: An input is something else.

    >>> read_inputs(mx.gluon.nn.Dense(2), [(1, 3)])[1]
    [Output(shape=(1, 3), dtype='float32')]
    """
    dtype = next((dtype_name(one.dtype) for one in parameters_by_path(net).values() if one.dtype), "float32")
    outputs: List[Output] = []

    def read(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, mx.nd.NDArray):
            outputs.append(Output(tuple(value.shape), dtype_name(value.dtype)))
            return value
        if isinstance(value, tuple) and value and all(isinstance(size, Integral) and int(size) > 0 for size in value):
            shape = tuple(int(size) for size in value)
            outputs.append(Output(shape, dtype))
            return outputs[-1]
        if isinstance(value, (list, tuple)) and value and not any(isinstance(one, Integral) for one in value):
            return [read(one) for one in value]
        raise ValueError(
            "layers: expected for each input of the net an NDArray or its shape, a tuple of sizes of at least 1 like "
            f"(1, 3, 224, 224), or a list of those; received {value!r} ({type(value).__name__})"
        )

    return [read(value) for value in inputs], outputs


class Layer(NamedTuple):
    """One block of a net.

    Attributes:
        path: As for `Features` and `net.<path>`; '' is the net itself.
        kind: Name of its class.
        arguments: Its main arguments as short text: "3x3/2" is a kernel and its stride.
        outputs: Shapes of the outputs of its first call; empty if the block is not called.
        dtypes: Dtypes of the outputs; '' if MXNet cannot infer one.
        parameters: Numbers in its parameters and in those of the blocks inside it, each counted once; None if a
            shape is not known.
        own_parameters: Numbers in parameters that belong to no block inside it and to no earlier row. Their sum over
            all rows is `LayerTable.parameters`.
        macs: Multiply-adds of all its calls, with the blocks inside it; None without inputs.
        calls: Number of its calls.
        note: "called 2 times", "not called", "the same block as PATH" or "shares PATH".
    """

    path: str
    kind: str
    arguments: str
    outputs: Tuple[Shape, ...]
    dtypes: Tuple[str, ...]
    parameters: Optional[int]
    own_parameters: Optional[int]
    macs: Optional[int]
    calls: int
    note: str


class LayerTable(Sequence[Layer]):
    """Rows of a net, by number or by path, in the order of its blocks; prints as a table. `layers` returns it.

    Args:
        net: Any block.
        inputs: Shapes and dtypes of its inputs; may be empty.
        measures: Measurements with these inputs; None without inputs.
        depth: Depth of the deepest rows; None shows all. Sums include the rows that are not shown.

    Attributes:
        kind: Name of the net's class.
        inputs: Shapes of the inputs; empty without inputs.
        input_dtypes: Dtypes of the inputs.
        parameters: Numbers in all parameters of known shape, a shared parameter once, as `mxkit.nets.count` counts.
        trained: Numbers in parameters with a gradient.
        not_trained: Numbers in the others, such as BatchNorm's statistics.
        unknown: Number of parameters without a known shape.
        parameter_bytes: Size of the values on one device.
        output_bytes: Size of the distinct arrays that blocks return: about what training keeps of a batch for the
            backward pass. Arrays between operators inside a block are not counted.
        macs: Multiply-adds of the net; None without inputs.
        not_counted: Operators whose arithmetic is not known, with their number; they add 0 to all sums.
    """

    def __init__(self, net: Any, inputs: Sequence[Output], measures: Optional[Measures], depth: Optional[int]) -> None:
        self.inputs = [one.shape for one in inputs]
        self.input_dtypes = [one.dtype for one in inputs]
        rows = _Rows(net, measures).rows()
        self.kind = rows[0].kind
        self.macs = rows[0].macs
        self.output_bytes = None if measures is None else measures.bytes
        self.not_counted: Dict[str, int] = {} if measures is None else dict(measures.unknown)
        self.parameters = self.trained = self.parameter_bytes = self.unknown = 0
        for parameter in {id(one): one for one in parameters_by_path(net).values()}.values():
            size = _size(parameter, measures)
            self.unknown += size is None
            self.parameters += size or 0
            self.trained += (size or 0) * (parameter.grad_req != "null")
            self.parameter_bytes += Output((size or 0,), dtype_name(parameter.dtype or "float32")).bytes
        self.not_trained = self.parameters - self.trained
        self._paths = [row.path for row in rows]
        self._rows = [row for row in rows if depth is None or depth_of(row.path) <= depth]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """Return the row at a path or a number, or a list of rows for a slice.

        Raises:
            UnknownPathError: There is no such path; it is a KeyError too.
        """
        if not isinstance(key, str):
            return self._rows[key]
        for row in self._rows:
            if row.path == key:
                return row
        text = f"no row for {key!r}: it lies below `depth`" if key in self._paths else f"no block stands at {key!r}"
        raise unknown_path(text, nearest(key, self._paths), [row.path for row in self._rows[1:]])

    def __repr__(self) -> str:
        return text_table(self)


def layers(net: Any, *inputs: Any, depth: Optional[int] = None) -> LayerTable:
    """List every block of a net with its outputs, parameters and multiply-adds; the result prints as a table.

    A net of HybridBlocks is measured by its graph: nothing is computed, and the net need not be initialized. A net
    with plain Blocks, or whose code does not take symbols, runs once in predict mode. Its hybrid parts are measured by
    their graphs; operations of its plain code are not counted.

    Multiply-adds are those of a forward pass for the whole batch, in products only: convolutions, dense and
    recurrent layers, attention, `dot`. Papers, fvcore's `FlopCountAnalysis` for these operators, and torchvision's
    "GFLOPS" count the same; biases, norms, activations, poolings and sums are not multiply-adds.

    Args:
        net: Any block, hybridized or not.
        inputs: Arrays, or shapes as tuples of whole numbers; None and lists of them where the net takes them.
            A shape stands for an array with the dtype of the net's first parameter. Without inputs the table has
            neither outputs nor multiply-adds.
        depth: Depth of the deepest rows: 1 shows the net and its children. A row includes the blocks inside it, so
            the numbers do not change. None shows all rows.

    Returns:
        The table: `table["features.4"]`, `table[0]` and iteration give rows (`Layer`).

    Raises:
        ForwardError: The inputs do not fit a block; the text names the block and the shapes.
        NotInitializedError: The net must run, and a parameter has no value yet.
        ValueError: `inputs` are not shapes or arrays, or their number is wrong.

    Side effects:
        The net is left as it was: shapes, values, statistics, hooks and hybridization. A net that must run draws
        random numbers if it does so in predict mode.

    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Conv2D(4, 3, strides=2), mx.gluon.nn.Flatten(), mx.gluon.nn.Dense(2))
    >>> layers(net, (1, 3, 9, 9))
    HybridSequential for (1, 3, 9, 9) float32
    path   type              output        parameters   MACs
    (net)  HybridSequential  (1, 2)               242  1.86k
    0      Conv2D 3x3/2      (1, 4, 4, 4)         112  1.73k
    1      Flatten           (1, 64)                -      -
    2      Dense             (1, 2)               130    128
    242 parameters (968 B): all trained
    1.86k multiply-adds; outputs of layers: 520 B
    """
    depth = None if depth is None else whole_number(depth, "depth", least=0)
    if not inputs:
        return LayerTable(net, [], None, depth)
    arguments, shapes = read_inputs(net, inputs)
    return LayerTable(net, shapes, measure(net, arguments, shapes), depth)


class _Rows:
    """Joins the measurements of a forward pass with the parameters of each block."""

    def __init__(self, net: Any, measures: Optional[Measures]) -> None:
        self._blocks = list(blocks_by_path(net))
        self._measures = measures
        self._above = _ancestors([path for path, _ in self._blocks])
        self._own: Dict[str, List[Tuple[str, Any]]] = {path: [] for path in self._above}
        self._within: Dict[str, Dict[int, Any]] = {path: {} for path in self._above}
        self._first: Dict[int, str] = {}
        for path, parameter in parameters_by_path(net).items():
            home = _home(path, self._above)
            self._own[home].append((path, parameter))
            for above in self._above[home]:
                self._within[above][id(parameter)] = parameter
            self._first.setdefault(id(parameter), path)
        self._macs = self._summed(measures.macs if measures else {})
        self._called = self._summed({path: len(calls) for path, calls in measures.outputs.items()} if measures else {})

    def _summed(self, numbers: Any) -> Dict[str, int]:
        sums = dict.fromkeys(self._above, 0)
        for path, number in numbers.items():
            for above in self._above[path]:
                sums[above] += number
        return sums

    def rows(self) -> List[Layer]:
        seen: Dict[int, str] = {}
        return [self._row(path, block, seen.setdefault(id(block), path)) for path, block in self._blocks]

    def _row(self, path: str, block: Any, first: str) -> Layer:
        calls = self._measures.outputs.get(path, []) if self._measures else []
        outputs = calls[0] if calls else []
        own = [parameter for name, parameter in self._own[path] if self._first[id(parameter)] == name]
        return Layer(
            path=path,
            kind=getattr(block, "mxkit_name", "") or type(block).__name__,
            arguments=arguments_of(block),
            outputs=tuple(one.shape for one in outputs),
            dtypes=tuple(one.dtype for one in outputs),
            parameters=self._total(self._within[path].values()),
            own_parameters=self._total(own),
            macs=self._macs[path] if self._measures else None,
            calls=len(calls),
            note=self._note(path, first, len(calls)),
        )

    def _total(self, parameters: Any) -> Optional[int]:
        sizes = [_size(one, self._measures) for one in parameters]
        return None if None in sizes else sum(size for size in sizes if size)

    def _note(self, path: str, first: str, calls: int) -> str:
        if first != path:
            return f"the same block as {first}"
        firsts = [(name, self._first[id(parameter)]) for name, parameter in self._own[path]]
        shared = dict.fromkeys(first for name, first in firsts if first != name)
        notes = [f"shares {', '.join(shared)}"] if shared else []
        notes += [f"called {calls} times"] if calls > 1 else []
        notes += ["not called"] if self._measures and not self._called[path] else []
        return ", ".join(notes)


def _ancestors(paths: Sequence[str]) -> Dict[str, List[str]]:
    """Return each path with the list of the paths above it and itself.

    >>> _ancestors(["", "features", "features.0"])["features.0"]
    ['', 'features', 'features.0']
    """
    ancestors = {"": [""]}
    for path in filter(None, paths):
        ancestors[path] = [*ancestors[_home(path.rpartition(".")[0], ancestors)], path]
    return ancestors


def _home(path: str, blocks: Dict[str, List[str]]) -> str:
    """Return the path of the innermost block that contains a path."""
    while path and path not in blocks:
        path = path.rpartition(".")[0]
    return path


def _size(parameter: Any, measures: Optional[Measures]) -> Optional[int]:
    shape = parameter.shape
    if measures is not None and (shape is None or min(shape, default=1) <= 0):
        shape = measures.shapes.get(id(parameter), shape)
    return None if shape is None or min(shape, default=1) <= 0 else prod(shape)
