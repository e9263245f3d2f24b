"""Blocks that are graphs: a SymbolBlock as plain JSON, and a net for prediction, in bfloat16 or in int8.

The graph of a description is checked before MXNet parses it (T58).
"""

from collections import OrderedDict
from itertools import islice
import json
import os
from pathlib import Path
import tempfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from mxkit.core.arrays import arrays_in, is_numpy, legacy, of_kind, switches
from mxkit.core.graph import Graph
from mxkit.core.graphs import argument_order, cached_operator, nesting, traced_graph
from mxkit.core.system import aligned
from mxkit.errors import CheckpointError
from mxkit.nets.prediction_graphs import PRECISIONS, Settings, prediction_graph
from mxkit.runtime.engine_settings import MAX_ISA, WITH_TILES, has_tiles
from mxkit.storage.symbol_file import read_symbol
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

# Shapes of inputs whose graphs are kept; each holds its copy of the weights in oneDNN's order.
_SHAPES = 16
# int8 would take uint8 for numbers that are quantized already
INPUT_DTYPES = ("float32", "int32", "int64")
_FROZEN = (
    "an optimized net computes with copies of its weights and cannot follow a change: change the float32 net, and call "
    "mxkit.optimize again"
)


class _Weight(mx.nd.NDArray):  # type: ignore[misc]
    """An array that cannot be written to from Python, except by `out=` and `copyto`."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> Any:
        raise ValueError(_FROZEN)

    __setitem__ = __iadd__ = __isub__ = __imul__ = __itruediv__ = __imod__ = _sync_copyfrom = _refuse


class _NumpyWeight(mx.np.ndarray):  # type: ignore[misc]
    """The same for arrays of `mx.np`."""

    __slots__ = ()
    __setitem__ = __iadd__ = __isub__ = __imul__ = __itruediv__ = __imod__ = _sync_copyfrom = _Weight._refuse


class OptimizedNet(gluon.SymbolBlock):  # type: ignore[misc]
    """What `mxkit.optimize` and `mxkit.load_net` return. It is called like any net, and predicts on the CPU.

    Each shape of the inputs gets a graph of its own at its first call; the last 16 are kept. The weights cannot change.

    Attributes:
        settings: How its graph is made.
        report: What `optimize` measured, on the processor that it names; None in a net that was read from a file.
    """

    def __init__(self, outputs: Any, inputs: Any, settings: Settings) -> None:
        super().__init__(outputs, inputs)
        self.settings = settings
        self.report: Optional[Report] = None
        self._graphs: Any = OrderedDict()
        self._graph: Any = None
        self._held: List[Any] = []

    def forward(self, x: Any, *args: Any) -> Any:
        """Compute a batch.

        Raises:
            TypeError: An argument is no NDArray.
            ValueError: A weight was replaced, a batch does not fit, the call is recorded, or it is part of a graph.
        """
        if isinstance(x, mx.sym.Symbol):
            raise ValueError(
                "an optimized net is a graph already and cannot be a part of another: do not hybridize the block around"
                " it, or call mxkit.optimize on the whole net"
            )
        arrays = arrays_in((x, *args))
        if autograd.is_recording():
            raise ValueError("an optimized net has no gradients: train the float32 net, and call mxkit.optimize again")
        numpy = is_numpy(traced_graph(self)[1])
        self._check(arrays)
        with switches(numpy), autograd.predict_mode():
            outputs = self._operator(arrays)(legacy(arrays))
        return of_kind(outputs[0] if nesting(self)[1] == 0 else outputs, numpy)

    def prediction_graph(self) -> Any:
        """Return the graph that computes, with its arrays."""
        if self._graph is None:
            self._held = [parameter.list_data()[0] for parameter in self.params.values()]
            for array in self._held:
                array.__class__ = _NumpyWeight if is_numpy(array) else _Weight
            output = traced_graph(self)[1]
            states = set(output.list_auxiliary_states())
            values = dict(zip(self.params, legacy(self._held)))
            arguments = {name: array for name, array in values.items() if name not in states}
            with switches(is_numpy(output)):
                self._graph = prediction_graph(
                    legacy(output), arguments, {name: values[name] for name in states}, self.settings
                )
        return self._graph

    def _operator(self, arrays: List[Any]) -> Any:
        key = tuple((array.shape, array.dtype) for array in arrays)
        if key not in self._graphs:
            graph = self.prediction_graph()
            order = argument_order(graph.symbol, traced_graph(self)[0], graph.arrays)
            # without `static_alloc`, oneDNN's operators convert their weights in each call
            operator = cached_operator(graph.symbol, order, static_alloc=True, static_shape=True)

            def compute(given: List[Any]) -> List[Any]:
                found = operator(*(given[one] if isinstance(one, int) else one for one in order))
                return list(found) if isinstance(found, (list, tuple)) else [found]

            self._graphs[key] = compute
            while len(self._graphs) > _SHAPES:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _check(self, arrays: List[Any]) -> None:
        now = [parameter.list_data()[0] for parameter in self.params.values()]
        if self._held and any(one is not held for one, held in zip(now, self._held)):
            raise ValueError(f"a weight was replaced: {_FROZEN}")
        names = [variable.name for variable in traced_graph(self)[0]]
        if len(arrays) != len(names):
            raise TypeError(
                f"an optimized net of {len(names)} inputs ({', '.join(names)}) was called with {len(arrays)} NDArrays. "
                "mxkit.predict takes arrays of NumPy"
            )
        device = now[0].ctx if now else mx.cpu()
        for array in arrays:
            if str(np.dtype(array.dtype)) not in INPUT_DTYPES:
                raise ValueError(
                    f"an optimized net expects {' or '.join(INPUT_DTYPES)}, received {np.dtype(array.dtype)}: convert "
                    "it, scaled like the training's inputs"
                )
            if not array.size:
                raise ValueError(f"an optimized net expects at least one sample, received shape {array.shape}")
            if array.ctx != device:
                raise ValueError(f"an optimized net expects batches on {device}, received one on {array.ctx}")

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Nothing: the net is a graph already."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        """Refuse a change.

        Raises:
            ValueError: Always.
        """
        raise ValueError(_FROZEN)

    cast = load_parameters = _refuse

    def __repr__(self) -> str:
        return f"OptimizedNet({self.settings.precision}, {len(self.settings.float_layers)} layers kept in float32)"


# For `describe`: arguments of `optimized_net` beside the graph's, and where an OptimizedNet has them.
SETTINGS: Dict[str, Callable[[Any], Any]] = {
    "precision": lambda net: net.settings.precision,
    "float_layers": lambda net: list(net.settings.float_layers),
    "thresholds": lambda net: {
        name: [float(least), float(most)] for name, (least, most) in net.settings.thresholds.items()
    },
    "joined": lambda net: net.settings.joined,
}


def optimized_net(
    precision: str = "float32", float_layers: Any = (), thresholds: Any = None, joined: bool = True, **graph: Any
) -> OptimizedNet:
    """Make the block from its description.

    Raises:
        ValueError: The graph is damaged, or the precision is unknown.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}; received {precision!r:.100}")
    inputs, output = traced_graph(symbol_block(**graph))
    heads = of_kind(list(legacy(output)), is_numpy(output))
    ranges = {name: (least, most) for name, (least, most) in (thresholds or {}).items()}
    return OptimizedNet(heads, list(inputs), Settings(precision, tuple(float_layers), ranges, joined))


def _inputs(block: Any) -> List[Any]:
    """Return the names of a SymbolBlock's inputs, nested as in its call."""
    names = iter([str(symbol.name) for symbol in traced_graph(block)[0]])
    nested: List[Any] = _nested(names, nesting(block)[0])
    return nested


def _graph(block: Any) -> Dict[str, Any]:
    """Return the graph of a SymbolBlock, in MXNet's JSON; `is_np_shape` in its attributes marks a graph of `mx.np`."""
    output = traced_graph(block)[1]
    content = Graph.of(output).content
    content["attrs"].pop("is_np_shape", None)  # MXNet writes the switch of the thread there
    if is_numpy(output):
        content["attrs"]["is_np_shape"] = ["int", 1]
    return content


# For `describe`: arguments of `symbol_block`, and where a SymbolBlock has them.
GRAPH: Dict[str, Callable[[Any], Any]] = {
    "inputs": _inputs,
    "outputs": lambda block: nesting(block)[1],  # 0 is one output, another number a symbol with so many outputs
    "graph": _graph,
}


def symbol_block(inputs: Any = None, outputs: Any = None, graph: Any = None) -> "gluon.SymbolBlock":
    """Make the block from what `GRAPH` reads.

    Raises:
        ValueError: The graph is damaged or could harm the process, or it has another number of outputs.
    """
    if inputs is None or outputs is None or graph is None:
        raise ValueError("it needs inputs, outputs and graph")
    symbol = _checked(graph)
    numpy = is_numpy(symbol)
    heads = iter(of_kind(list(legacy(symbol)), numpy))  # one symbol of mx.np is no list
    nested = _nested(heads, outputs)
    if next(heads, None) is not None:
        raise ValueError(f"expected {len(symbol.list_outputs())} outputs, as the graph has; received {outputs!r:.200}")
    return gluon.SymbolBlock(nested, of_kind(_variables(inputs), numpy))


def _checked(graph: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        file = Path(folder) / "graph"
        try:
            file.write_text(json.dumps(graph), encoding="utf-8")
            return read_symbol(file)
        except CheckpointError as error:
            raise ValueError(str(error).replace(str(file), "its graph")) from error


def _nested(flat: Iterator[Any], form: Any) -> Any:
    """Nest values as Gluon describes it: 0 is one value, n a symbol with n outputs, a list is a list."""
    if isinstance(form, (list, tuple)):
        return [_nested(flat, one) for one in form]
    values = list(islice(flat, max(1, form)))
    if len(values) != max(1, form):
        raise ValueError("outputs are more than the graph's")
    return values[0] if form == 0 else mx.sym.Group(values, type(values[0]))


def _variables(names: Any) -> Any:
    if isinstance(names, str):
        # without a dtype MXNet warns that it cannot infer the dtypes of the parameters
        return mx.sym.var(names, dtype="float32")
    return [_variables(name) for name in names]


class LayerRow(NamedTuple):
    """One layer of an optimized net.

    Attributes:
        path: Of the layer.
        computes: In which precision.
        difference: Mean absolute difference of its output from the float32 net's, divided by its mean magnitude; what
            the layers before it lost is a part of it. For a layer that is joined with the operators after it, the
            output of the last one.
    """

    path: str
    computes: str
    difference: float


class Measured(NamedTuple):
    """Outputs and time on the sample.

    Attributes:
        samples: Size of the sample.
        agreement: Share of samples with the same class; None if the output is not (samples, classes).
        largest: Largest absolute difference of the outputs.
        relative: Mean absolute difference divided by the mean magnitude.
        seconds: Of a call with the sample, the median of 5 rounds.
        speed: The float32 net's time, hybridized with static memory, divided by `seconds`.
    """

    samples: int
    agreement: Optional[float]
    largest: float
    relative: float
    seconds: float
    speed: float


class Report(NamedTuple):
    """What `optimize` measured; prints as text.

    Attributes:
        precision: As asked for.
        measured: Outputs and time.
        layers: Layers with weights, in the order of the computation, without those that are called more than once.
        kept: Paths of layers that stayed float32.
        limit: The largest accepted loss.
        not_joined: Why oneDNN does not compute several operators at once, for float32 and bfloat16; else empty.
        processor: Name of the processor that computed it.
    """

    precision: str
    measured: Measured
    layers: List[LayerRow]
    kept: Tuple[str, ...]
    limit: float
    not_joined: str
    processor: str = ""

    @property
    def agreement(self) -> Optional[float]:
        """Share of samples with the same class; None if the output is not (samples, classes)."""
        return self.measured.agreement

    def __str__(self) -> str:
        one = self.measured
        rows = [["layer", "computes in", "difference"]]
        rows += [[row.path, row.computes, f"{row.difference:.2g}"] for row in self.layers]
        same = "" if one.agreement is None else f"the same class for {one.agreement:.2%} of {one.samples} samples; "
        words = [
            f"{same}largest difference {one.largest:.3g}, mean {one.relative:.2g} of the outputs' magnitude",
            f"{1000 * one.seconds:.3g} ms a batch of {one.samples}: {one.speed:.2f} x the speed of static float32"
            f"{f', on {self.processor}' if self.processor else ''}",
        ]
        if self.precision != "float32" and one.speed < 1:
            words.append(f"{self.precision} is slower than float32 on this processor")
        if self.not_joined:
            words.append(f"operators are not joined: {self.not_joined}")
        if self.precision != "float32" and has_tiles() and os.environ.get(MAX_ISA, "").upper() != WITH_TILES:
            words.append(f"this processor has AMX: start the process with {MAX_ISA}={WITH_TILES} to use it")
        if self.kept:
            words.append(f"in float32, by keep= or for a loss of at most {self.limit:g}: {', '.join(self.kept)}")
        return "\n".join([*aligned(rows, left=(0, 1)), *words])
