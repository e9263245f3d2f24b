"""Turns a trained net into a faster one for prediction, and compares the two."""

from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arrays import arrays_in, legacy, of_kind, switches
from mxkit.core.blocks import check_net, parameters_by_path, unknown_path
from mxkit.core.device import as_ndarray
from mxkit.data.source import Data
from mxkit.errors import DataError
from mxkit.exporting.net_graph import NetGraph, graph_function, graph_of
from mxkit.nets.architecture.graph_blocks import INPUT_DTYPES, OptimizedNet
from mxkit.nets.prediction_graphs import (
    PRECISIONS,
    PredictionGraph,
    Settings,
    arrays_to_calibrate,
    check_processor,
    layers_with_weights,
    with_folded_norms,
)
from mxkit.nets.prediction_report import Report
from mxkit.runtime.machine import processor_model
from mxkit.serving.calibration import ranges_of
from mxkit.serving.optimization_report import difference_of, layer_rows, loss_of, measured
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

_EXACT = 1e-4  # largest relative difference of a fused graph, whose sums have another order


def optimize(
    net: Any,
    sample: Any,
    *,
    precision: str = "float32",
    calibration: Optional[Data] = None,
    calibration_mode: str = "naive",
    calibration_samples: int = 512,
    keep: Sequence[str] = (),
    limit: float = 0.02,
    classes: bool = True,
) -> OptimizedNet:
    """Make a net for fast prediction on the CPU, and compare it with the float32 net on a sample.

    Args:
        net: A trained HybridBlock, or a Sequential of them; it does not change. Its weights are copied.
        sample: A batch of inputs, or a tuple of them: real ones that were not trained on, because all measurements
            are of it. Its shape is only the first one: later, any shape works that the net itself takes.
        precision: "float32" joins operators: a convolution with its BatchNorm, sum and ReLU. "bfloat16" does so, too,
            and halves the digits of the layers that MXNet's AMP lists; for processors with AVX512_BF16. "int8" computes
            convolutions and Dense layers in whole numbers; for processors with AVX512_VNNI or AVX_VNNI. The report
            tells what it is worth on this processor.
        calibration: For "int8": batches of real inputs, `(x, y)` or for several inputs `((x1, x2), y)`, whose labels
            are ignored; or one array of them.
        calibration_mode: "naive" takes the smallest and the largest number of each array; "entropy" cuts rare large
            ones off, takes longer, and needs scipy.
        calibration_samples: How many samples are read at most. MXNet's examples take about 500.
        keep: Paths of layers that stay float32, or globs like "features.0*".
        limit: The largest accepted loss: the share of samples whose class changes if the output is (samples, classes);
            else the mean absolute difference, divided by the output's mean magnitude. As long as the loss is
            larger, the layer that causes most of it alone stays float32, too.
        classes: Whether an output of (samples, n) holds scores of classes, of which the largest counts. False for
            several labels and for quantities.

    Returns:
        A block that is called like the net, with outputs in a flat list. `save_net` writes it with its calibration
        and its `report`, which prints the comparison.

    Raises:
        ValueError: The processor, the net or an argument does not fit; or the loss stays above the limit.
        NotInitializedError: A parameter has no value.
        UnknownPathError: `keep` matches no layer.

    >>> net = mxkit.models.mlp(10, hidden=[32]); mxkit.initialize(net)
    >>> x = mx.nd.random.uniform(shape=(16, 8)); y = net(x)
    >>> fast = mxkit.optimize(net, x)
    >>> fast(x).shape, fast.report.agreement
    ((16, 10), 1.0)
    """
    _check_arguments(precision, calibration, calibration_mode, calibration_samples, keep, limit)
    check_processor(precision)
    arrays = _checked(net, sample)
    with autograd.pause(train_mode=False):
        graph = graph_of(net, [array.shape for array in arrays])
        with switches(graph.numpy):
            return _Making(net, graph, of_kind(arrays, graph.numpy), classes).run(
                precision, calibration, calibration_mode, calibration_samples, keep, limit
            )


class _Making:
    """One call of `optimize`."""

    def __init__(self, net: Any, graph: NetGraph, sample: List[Any], classes: bool) -> None:
        self._graph, self._sample, self._classes = graph, sample, classes
        paths = {parameter.name: path for path, parameter in reversed(list(parameters_by_path(net).items()))}
        found = layers_with_weights(legacy(graph.symbol))
        self._paths = {name: paths.get(weight, weight).rpartition(".")[0] or weight for name, weight in found.items()}
        self._ranges: Dict[str, Tuple[float, float]] = {}
        self._joined = True
        self._base = gluon.SymbolBlock(*self._parts())
        _fill(self._base, graph)
        self._base.hybridize(static_alloc=True, static_shape=True)
        self._expected = arrays_in(self._base(*sample))
        if not all(np.isfinite(one.asnumpy()).all() for one in self._expected):
            raise DataError(
                "optimize: the net's output for the sample holds NaN or infinity: look for them in its weights "
                "(mxkit.parameters(net)) and in the sample"
            )

    def run(
        self,
        precision: str,
        calibration: Optional[Data],
        mode: str,
        samples: int,
        keep: Sequence[str],
        limit: float,
    ) -> OptimizedNet:
        kept = self._matched(keep)
        if kept and len(kept) == len(self._paths):
            raise ValueError(
                f"optimize: keep={list(keep)} matches all layers with weights, so none is left for {precision}"
            )
        if precision == "int8":
            self._check_joined()
            self._ranges = ranges_of(self._graph, calibration, mode, samples, self._sample)
        self._joined = precision != "bfloat16" or self._loss_of_joining() <= _EXACT
        net, loss = self._tried(precision, kept)
        text = net.prediction_graph().symbol.tojson(remove_amp_cast=False)
        if {"bfloat16": "amp_cast", "int8": "_contrib_quantize"}.get(precision, "") not in text:
            raise ValueError(f"optimize: MXNet computes no layer of this net in {precision}: use precision='float32'")
        wrong = not self._joined or precision == "float32" and not loss <= _EXACT  # T196
        if precision != "float32" and not loss <= limit:
            net = self._within(precision, kept, limit, loss)
        times = measured(self._base, net, self._sample, self._classes)
        not_joined = "MXNet joins them wrongly (T196)" if wrong else ""
        if precision == "float32" and times.speed < 1:  # convolutions of few channels are slower with a joined ReLU
            not_joined = not_joined or "that is slower here"
        if precision == "float32" and not_joined:
            net = self._made(Settings("float32", joined=False))
            times = measured(self._base, net, self._sample, self._classes)
        net.report = Report(
            precision,
            times,
            layer_rows(self._graph, net, self._sample, self._paths),
            tuple(self._paths[name] for name in net.settings.float_layers),
            limit,
            not_joined,
            processor_model(),
        )
        return net

    def _check_joined(self) -> None:
        """Refuse a net whose operators oneDNN joins wrongly (T196); in int8 this would pass for a loss of digits."""
        loss = self._loss_of_joining("MKLDNN_QUANTIZE")
        if not loss <= _EXACT:
            raise ValueError(
                f"optimize: before int8, oneDNN joins operators of this net wrongly: the outputs differ by {loss:.2g}. "
                "A Dense layer or convolution is probably read by two operators. Use precision='float32' or 'bfloat16'"
            )

    def _loss_of_joining(self, backend: str = "MKLDNN") -> float:
        """The loss in float32 of the graph whose operators are joined for int8, or for bfloat16."""
        arguments, states = split(self._graph)
        graph = PredictionGraph(legacy(self._graph.symbol), {**arguments, **states})
        if backend == "MKLDNN":
            graph = with_folded_norms(*graph[:2])
        compute = graph_function(graph.symbol.get_backend_symbol(backend), graph.arrays, self._graph.numpy)
        return difference_of(self._expected, compute(dict(zip(self._graph.inputs, legacy(self._sample)))))

    def _made(self, settings: Settings) -> OptimizedNet:
        net = OptimizedNet(*self._parts(), settings)
        _fill(net, self._graph)
        return net

    def _parts(self) -> Tuple[List[Any], List[Any]]:
        numpy = self._graph.numpy
        heads = [of_kind(one, numpy) for one in legacy(self._graph.symbol)]
        return heads, [of_kind(mx.sym.var(name, dtype="float32"), numpy) for name in self._graph.inputs]

    def _matched(self, keep: Sequence[str]) -> List[str]:
        for glob in keep:
            if not any(fnmatchcase(path, glob) for path in self._paths.values()):
                raise unknown_path(f"optimize: keep {glob!r} matches no layer with weights", glob, self._paths.values())
        return [name for name, path in self._paths.items() if any(fnmatchcase(path, glob) for glob in keep)]

    def _tried(self, precision: str, kept: Sequence[str]) -> Tuple[OptimizedNet, float]:
        """Make the net, and compute its loss."""
        ranges: Mapping[str, Tuple[float, float]] = {}
        if precision == "int8":
            arguments, states = split(self._graph)
            _, names = arrays_to_calibrate(legacy(self._graph.symbol), arguments, states, kept)
            ranges = {name: self._ranges[name] for name in names}
        net = self._made(Settings(precision, tuple(kept), ranges, self._joined))
        return net, self._loss(net)

    def _loss(self, net: OptimizedNet) -> float:
        """The loss of a second call, in which MXNet refuses some arrays in int8 that the first one read (T223)."""
        exact = net.settings.precision == "float32"
        try:
            for _ in range(2):
                outputs = arrays_in(net(*self._sample))
                if exact:
                    found = difference_of(self._expected, outputs)
                else:
                    found = loss_of(self._expected, outputs, self._classes)
        except mx.MXNetError:
            with suppress(mx.MXNetError):
                mx.nd.waitall()  # it may report the error once more
            return float("inf")
        return found

    def _within(self, precision: str, kept: List[str], limit: float, loss: float) -> OptimizedNet:
        """Keep one more layer in float32 until the loss is within the limit."""
        first = loss
        free = [name for name in self._paths if name not in kept]
        alone = {name: self._tried(precision, [one for one in self._paths if one != name])[1] for name in free}
        for name in sorted(free, key=lambda one: alone[one], reverse=True)[:-1]:
            kept = [*kept, name]
            net, loss = self._tried(precision, kept)
            if loss <= limit:
                return net
        if loss == float("inf"):
            raise ValueError(
                f"optimize: MXNet fails to compute this net in {precision} for the sample's shape, however many layers "
                "stay in float32 (T223): use precision='float32', or larger images"
            )
        raise ValueError(
            f"optimize: {precision} loses {first:.3g} on the sample, expected at most {limit:g}; with {len(kept)} of "
            f"{len(self._paths)} layers in float32 it still loses {loss:.3g}. Calibrate with data like the sample's, "
            "give a larger sample or a larger limit=, or use precision='float32'"
        )


def split(graph: NetGraph) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Arguments and auxiliary states of a graph, by name."""
    named = [(name.partition(":"), array) for name, array in graph.arrays.items()]
    return (
        {name: array for (kind, _, name), array in named if kind == "arg"},
        {name: array for (kind, _, name), array in named if kind == "aux"},
    )


def _checked(net: Any, sample: Any) -> List[Any]:
    """The sample as NDArrays on the CPU.

    Raises:
        ValueError: The net is optimized already or not float32, or the sample does not fit or holds NaN.
    """
    if isinstance(net, OptimizedNet):
        raise ValueError("optimize: the net is optimized already: pass the float32 net from which it was made")
    check_net(net)
    other = [path for path, one in parameters_by_path(net).items() if np.dtype(one.dtype) != np.float32]
    if other:
        raise ValueError(f"optimize: expected a float32 net, received {other[0]} in another type: net.cast('float32')")
    arrays = [as_ndarray(one) for one in (sample if isinstance(sample, (list, tuple)) else (sample,))]
    for array in arrays:
        if not array.size or array.ndim < 1:
            raise DataError(f"optimize: expected a sample with the axis of the batch, received shape {array.shape}")
        if str(np.dtype(array.dtype)) not in INPUT_DTYPES:
            raise DataError(
                f"optimize: expected a sample of float32 (or of whole numbers, int32), received "
                f"{np.dtype(array.dtype)}: convert it, scaled like the training's inputs"
            )
        if not np.isfinite(array.asnumpy()).all():
            raise DataError("optimize: the sample holds NaN or infinity")
    return [array.as_in_context(mx.cpu()) for array in arrays]


def _fill(block: Any, graph: NetGraph) -> None:
    """Give a block of the graph its values, copies of the net's."""
    arguments, states = split(graph)
    for name, array in {**arguments, **states}.items():
        parameter = block.params[name]
        parameter.shape = array.shape
        parameter.grad_req = "null"
        parameter.initialize(ctx=mx.cpu(), init=mx.init.Zero())
        parameter.set_data(of_kind(array, graph.numpy))


def _check_arguments(
    precision: str, calibration: Any, mode: str, samples: int, keep: Sequence[str], limit: float
) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}; received {precision!r}")
    if (calibration is not None) != (precision == "int8"):
        raise ValueError(
            "calibration: int8 needs batches of real inputs, like calibration=validation_loader"
            if calibration is None
            else f"calibration: {precision} has no ranges to calibrate, only int8 has"
        )
    if mode not in ("naive", "entropy"):
        raise ValueError(f"calibration_mode: expected 'naive' or 'entropy', received {mode!r}")
    if isinstance(keep, str):
        raise ValueError(f"keep: expected a list of paths, received {keep!r}: write keep=[{keep!r}]")
    if keep and precision == "float32":
        raise ValueError("keep: with precision='float32' all layers stay float32")
    if not 0 <= limit < 1 or not samples > 0:
        raise ValueError(
            f"expected limit from 0 to below 1 and calibration_samples above 0; received {limit!r} and {samples!r}"
        )
