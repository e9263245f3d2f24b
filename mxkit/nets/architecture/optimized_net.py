"""A net for prediction: its float32 graph, and how MXNet computes it fused, in bfloat16 or in int8."""

from collections import OrderedDict
from typing import Any, Dict, List, Optional

from mxkit.core.arrays import arrays_in, is_numpy, legacy, of_kind, switches
from mxkit.core.graphs import argument_order, cached_operator, nesting, traced_graph
from mxkit.nets.architecture.symbol_blocks import symbol_block
from mxkit.nets.prediction_graphs import Settings, prediction_graph
from mxkit.nets.prediction_report import Report, report_of, report_text
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
        report: What `optimize` measured, on the processor that it names; None in files of earlier versions.
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

    def cast(self, dtype: Any) -> None:
        """Refuse.

        Raises:
            ValueError: Always.
        """
        raise ValueError(_FROZEN)

    def load_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Refuse.

        Raises:
            ValueError: Always.
        """
        raise ValueError(_FROZEN)

    def __repr__(self) -> str:
        return f"OptimizedNet({self.settings.precision}, {len(self.settings.float_layers)} layers kept in float32)"


def precision(net: OptimizedNet) -> str:
    """For `describe`: one of `PRECISIONS`."""
    return net.settings.precision


def float_layers(net: OptimizedNet) -> List[str]:
    """For `describe`: names of operators that stay float32."""
    return list(net.settings.float_layers)


def thresholds(net: OptimizedNet) -> Dict[str, List[float]]:
    """For `describe`: ranges of arrays that become int8."""
    return {name: [float(least), float(most)] for name, (least, most) in net.settings.thresholds.items()}


def joined(net: OptimizedNet) -> bool:
    """For `describe`: whether operators are joined."""
    return net.settings.joined


def report(net: OptimizedNet) -> Optional[str]:
    """For `describe`: what `optimize` measured."""
    return report_text(net.report)


def optimized_net(
    precision: str = "float32",
    float_layers: Any = (),
    thresholds: Any = None,
    joined: bool = True,
    report: Optional[str] = None,
    **graph: Any,
) -> OptimizedNet:
    """Make the block from its description.

    Raises:
        ValueError: The graph is damaged.
    """
    inputs, output = traced_graph(symbol_block(**graph))
    heads = of_kind(list(legacy(output)), is_numpy(output))
    ranges = {name: (least, most) for name, (least, most) in (thresholds or {}).items()}
    net = OptimizedNet(heads, list(inputs), Settings(precision, tuple(float_layers), ranges, joined))
    net.report = report_of(report)
    return net
