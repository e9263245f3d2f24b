"""Every block of a net as a row of a table: path, type, output, parameters, multiply-adds, stride."""

from math import prod
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import blocks_by_path, parameters_by_path, unknown_path
from mxkit.core.text import dataframe
from mxkit.errors import nearest
from mxkit.nets.layer_table.costs import Shape
from mxkit.nets.layer_table.graph import Measures, Output
from mxkit.nets.layer_table.inputs import check_count, read_inputs
from mxkit.nets.layer_table.measures import measure
from mxkit.nets.layer_table.printing import arguments_of, html_table, text_table
from mxkit.nets.layer_table.strides import stride_text
from mxkit.storage.parameter_file import dtype_name


class Layer(NamedTuple):
    """One block of a net.

    Attributes:
        path: As `Features` and `net.<path>` know it; '' is the net itself.
        kind: Name of its class.
        arguments: Those that matter in short: "3x3/2" is a kernel and its stride.
        outputs: Shapes of what its first call returned; empty for a block that is not called.
        dtypes: Of the outputs; '' where MXNet cannot tell.
        parameters: Numbers in its parameters and in those of the blocks inside it, each once; None where a
            shape is not known.
        own_parameters: Numbers in parameters that no block inside it and no row above has. They add up to
            `LayerTable.parameters`.
        macs: Multiply-adds of all its calls, those of the blocks inside it included; None without inputs.
        flops: Operations: two a multiply-add, one for any other. None without inputs.
        stride: Positions of the net's input between two neighbours of the output: "8", "2x1" where the axes
            differ, "1/2" after upsampling to more than the input; "-" where there are no positions.
        calls: How often it was called.
        note: What is special about it.
    """

    path: str
    kind: str
    arguments: str
    outputs: Tuple[Shape, ...]
    dtypes: Tuple[str, ...]
    parameters: Optional[int]
    own_parameters: Optional[int]
    macs: Optional[int]
    flops: Optional[int]
    stride: str
    calls: int
    note: str


class LayerTable(Sequence[Layer]):
    """Rows of a net, by number or by path, in the order of its blocks; prints as a table. `layers` makes it.

    Args:
        net: Any block.
        inputs: What it was given, with their shapes and dtypes; may be empty.
        measures: What was measured with them; None where nothing was.
        depth: How deep the rows go; None shows all. Sums are over all in any case.

    Attributes:
        kind: Name of the net's class.
        inputs, input_dtypes: Shapes and dtypes that it holds for; empty where there were none.
        parameters: Numbers in all parameters, a shared one once: what `count` says of the net. Where some
            are not known, of the others.
        trained, not_trained: The same by whether they get a gradient; BatchNorm's statistics get none.
        unknown: How many parameters have no known shape.
        parameter_bytes: Of the values, on one device.
        output_bytes: Of the distinct arrays that blocks return, none of which is freed: about what a
            training keeps of a batch for the backward pass. What operators inside a block make is not in it.
        macs, flops: Of the net; None without inputs.
        not_counted: Operators whose arithmetic is not known, and how many of each: 0 in all sums.
    """

    def __init__(self, net: Any, inputs: Sequence[Output], measures: Optional[Measures], depth: Optional[int]) -> None:
        self.inputs = [one.shape for one in inputs]
        self.input_dtypes = [one.dtype for one in inputs]
        rows = _Rows(net, measures).rows()
        self.kind = rows[0].kind
        self.macs, self.flops = rows[0].macs, rows[0].flops
        self.output_bytes = None if measures is None else measures.bytes
        self.not_counted: Dict[str, int] = {} if measures is None else dict(measures.unknown)
        self.parameters = self.trained = self.parameter_bytes = self.unknown = 0
        for parameter in {id(one): one for one in parameters_by_path(net).values()}.values():
            size = _size(parameter, measures)
            self.unknown += size is None
            self.parameters += size or 0
            self.trained += (size or 0) * (parameter.grad_req != "null")
            self.parameter_bytes += Output((size or 0,), dtype_name(parameter.dtype or "float32"), None).bytes
        self.not_trained = self.parameters - self.trained
        self._paths = [row.path for row in rows]
        self._rows = [row for row in rows if depth is None or _depth(row.path) <= depth]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """The row at a path or a number, or a list of rows for a slice.

        Raises:
            UnknownPathError: There is no such path; it is a KeyError too.
        """
        if not isinstance(key, str):
            return self._rows[key]
        found = next((row for row in self._rows if row.path == key), None)
        if found is not None:
            return found
        told = f"no row for {key!r}: it lies below `depth`" if key in self._paths else f"no block stands at {key!r}"
        raise unknown_path(told, nearest(key, self._paths), [row.path for row in self._rows[1:]])

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame, the path as its index.

        Raises:
            ImportError: pandas is not installed.
        """
        return dataframe("LayerTable", self._rows, "path", Layer._fields)

    def __repr__(self) -> str:
        return text_table(self)

    def _repr_html_(self) -> str:
        return html_table(self)


def layers(net: Any, *inputs: Any, depth: Optional[int] = None) -> LayerTable:
    """What every block of a net gives out, holds and computes; the table prints itself.

    A net of HybridBlocks is measured by its graph: nothing is computed, and it need not be initialized. One
    with plain Blocks, or whose code does not take symbols, is run once to predict; the hybrid parts of it are
    still measured by their graphs, and only what its plain code computes itself is not counted.

    Multiply-adds are those of a forward pass for the whole batch, in products only: convolutions, dense and
    recurrent layers, attention, `dot`. This is the convention of papers, fvcore's `FlopCountAnalysis` for
    these operators, and torchvision's "GFLOPS"; a bias, norms, activations, poolings and sums are no
    multiply-adds. `flops` counts two for each of them and one for every other operation (`operator_cost`).

    Args:
        net: Any block, hybridized or not.
        inputs: Arrays, or shapes as tuples of whole numbers; None and lists of them where the net takes them.
            A shape stands for an array of the dtype of the net's first parameter. Without any input the table has
            neither outputs nor multiply-adds.
        depth: How deep the rows go: 1 is the net and the blocks that it holds itself. A row includes what is
            inside it, so the numbers stay whole. None shows all.

    Returns:
        Its rows (`Layer`) come by number, `table["features.4"]`, iteration, or `to_dataframe()`.

    Raises:
        ForwardError: The inputs do not fit a block; it says which, what it was built for and what it got.
        NotInitializedError: The net must run, and a parameter has no value yet.
        ValueError: `inputs` are no shapes or arrays, or not as many as the net takes.

    Side effects:
        None that stays: no parameter gets a shape or a value, statistics, hooks and hybridization stay. A net
        that must run draws random numbers if it does so in prediction.

    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Conv2D(4, 3, strides=2), mx.gluon.nn.Flatten(), mx.gluon.nn.Dense(2))
    >>> layers(net, (1, 3, 9, 9))
    HybridSequential for (1, 3, 9, 9) float32
    path   type              output        parameters   MACs  stride
    (net)  HybridSequential  (1, 2)               242  1.86k       -
    0      Conv2D 3x3/2      (1, 4, 4, 4)         112  1.73k       2
    1      Flatten           (1, 64)                -      -       -
    2      Dense             (1, 2)               130    128       -
    242 parameters (968 B): all trained
    1.86k multiply-adds, 3.78k FLOPs; outputs of layers: 520 B
    """
    depth = None if depth is None else whole_number(depth, "depth", least=0)
    if not inputs:
        return LayerTable(net, [], None, depth)
    given, arrays = read_inputs(net, inputs)
    check_count(net, inputs)
    return LayerTable(net, arrays, measure(net, given, arrays), depth)


class _Rows:
    """Joins what a forward pass gave with the parameters of each block."""

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
        self._others = self._summed(measures.others if measures else {})
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
        macs, others = self._macs[path], self._others[path]
        own = [one for of, one in self._own[path] if self._first[id(one)] == of]
        return Layer(
            path=path,
            kind=getattr(block, "mxkit_name", "") or type(block).__name__,
            arguments=arguments_of(block),
            outputs=tuple(one.shape for one in outputs),
            dtypes=tuple(one.dtype for one in outputs),
            parameters=self._total(self._within[path].values()),
            own_parameters=self._total(own),
            macs=macs if self._measures else None,
            flops=2 * macs + others if self._measures else None,
            stride=", ".join(dict.fromkeys(stride_text(one.stride) for one in outputs)) or "-",
            calls=len(calls),
            note=self._note(path, first, len(calls)),
        )

    def _total(self, parameters: Any) -> Optional[int]:
        sizes = [_size(one, self._measures) for one in parameters]
        return None if None in sizes else sum(size for size in sizes if size)

    def _note(self, path: str, first: str, calls: int) -> str:
        if first != path:
            return f"the same block as {first}"
        lent = dict.fromkeys(self._first[id(one)] for of, one in self._own[path] if self._first[id(one)] != of)
        notes = [f"shares {', '.join(lent)}"] if lent else []
        notes += [f"called {calls} times"] if calls > 1 else []
        notes += ["not called"] if self._measures and not self._called[path] else []
        return ", ".join(notes)


def _ancestors(paths: Sequence[str]) -> Dict[str, List[str]]:
    """Of each path, itself and the paths it lies in.

    >>> _ancestors(["", "features", "features.0"])["features.0"]
    ['', 'features', 'features.0']
    """
    known: Set[str] = set(paths)
    found = {}
    for path in paths:
        names = path.split(".")
        joined = ["", *(".".join(names[:count]) for count in range(1, len(names) + 1))]
        found[path] = [one for one in dict.fromkeys(joined) if one in known]
    return found


def _home(path: str, blocks: Dict[str, List[str]]) -> str:
    """Path of the innermost block that a parameter's path lies in."""
    while path and path not in blocks:
        path = path.rpartition(".")[0]
    return path


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _size(parameter: Any, measures: Optional[Measures]) -> Optional[int]:
    shape = parameter.shape
    if measures is not None and (shape is None or min(shape, default=1) <= 0):
        shape = measures.shapes.get(id(parameter), shape)
    return None if shape is None or min(shape, default=1) <= 0 else prod(shape)
