"""Turns a trained net into a faster one for prediction, and compares the two."""

from collections import Counter
from contextlib import suppress
from fnmatch import fnmatchcase
from statistics import median
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import arrays_in, call, legacy, of_kind, switches
from mxkit.core.blocks import check_net, parameters_by_path, unknown_path
from mxkit.core.device import as_ndarray, batch_size, unpack
from mxkit.core.graph import Graph
from mxkit.data.source import Data, source_of, whole_source
from mxkit.errors import DataError, TrapWarning
from mxkit.exporting.net_graph import NetGraph, computed, graph_function, graph_of
from mxkit.nets.architecture.graph_blocks import INPUT_DTYPES, LayerRow, Measured, OptimizedNet, Report
from mxkit.nets.prediction_graphs import (
    PRECISIONS,
    PredictionGraph,
    Settings,
    arrays_to_calibrate,
    check_processor,
    fused_parts,
    layers_with_weights,
    with_folded_norms,
)
from mxkit.runtime.machine import processor_model
from mxkit.storage.params_format import dtype_name
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
    _check_arguments(precision, calibration, calibration_samples, keep, limit)
    check_processor(precision)
    arrays = _checked(net, sample)
    with autograd.pause(train_mode=False):
        graph = graph_of(net, [array.shape for array in arrays])
        with switches(graph.numpy):
            making = _Making(net, graph, of_kind(arrays, graph.numpy), precision, classes)
            kept = making.matched(keep)
            if precision == "int8":
                making.check_joined()
                making.ranges = ranges_of(graph, calibration, calibration_samples, making.sample)
            return making.optimized(kept, limit)


class _Making:
    """One call of `optimize`."""

    def __init__(self, net: Any, graph: NetGraph, sample: List[Any], precision: str, classes: bool) -> None:
        self._graph, self.sample, self._precision, self._classes = graph, sample, precision, classes
        paths = {parameter.name: path for path, parameter in reversed(list(parameters_by_path(net).items()))}
        found = layers_with_weights(legacy(graph.symbol))
        self._paths = {name: paths.get(weight, weight).rpartition(".")[0] or weight for name, weight in found.items()}
        self.ranges: Dict[str, Tuple[float, float]] = {}
        self._joined = True
        self._base = self._filled(gluon.SymbolBlock(*self._parts()))
        self._base.hybridize(static_alloc=True, static_shape=True)
        self._expected = arrays_in(self._base(*sample))
        if not all(np.isfinite(one.asnumpy()).all() for one in self._expected):
            raise DataError(
                "optimize: the net's output for the sample holds NaN or infinity: look for them in its weights "
                "(mxkit.parameters(net)) and in the sample"
            )

    def optimized(self, kept: List[str], limit: float) -> OptimizedNet:
        """The net with its report; at least the layers `kept` compute in float32."""
        precision = self._precision
        self._joined = precision != "bfloat16" or self._loss_of_joining() <= _EXACT
        net, loss = self._tried(kept)
        text = net.prediction_graph().symbol.tojson(remove_amp_cast=False)
        if {"bfloat16": "amp_cast", "int8": "_contrib_quantize"}.get(precision, "") not in text:
            raise ValueError(f"optimize: MXNet computes no layer of this net in {precision}: use precision='float32'")
        wrong = not self._joined or precision == "float32" and not loss <= _EXACT  # T196
        if precision != "float32" and not loss <= limit:
            net = self._within(kept, limit, loss)
        not_joined = "MXNet joins them wrongly (T196)" if wrong else ""
        if precision == "float32" and wrong:  # the joined operators may fail
            net = self._made(Settings("float32", joined=False))
        times = measured(self._base, net, self.sample, self._classes)
        # convolutions of few channels are slower with a joined ReLU
        if precision == "float32" and not wrong and times.speed < 1:
            not_joined = "that is slower here"
            net = self._made(Settings("float32", joined=False))
            times = measured(self._base, net, self.sample, self._classes)
        rows = layer_rows(self._graph, net, self.sample, self._paths)
        kept_paths = tuple(self._paths[name] for name in net.settings.float_layers)
        net.report = Report(precision, times, rows, kept_paths, limit, not_joined, processor_model())
        return net

    def check_joined(self) -> None:
        """Refuse a net whose operators oneDNN joins wrongly (T196); in int8 this would pass for a loss of digits."""
        loss = self._loss_of_joining("MKLDNN_QUANTIZE")
        if not loss <= _EXACT:
            raise ValueError(
                f"optimize: before int8, oneDNN joins operators of this net wrongly: the outputs differ by {loss:.2g}. "
                "A Dense layer or convolution is probably read by two operators. Use precision='float32' or 'bfloat16'"
            )

    def _loss_of_joining(self, backend: str = "MKLDNN") -> float:
        """The loss in float32 of the graph whose operators are joined for int8 or bfloat16; infinite if it fails."""
        graph = PredictionGraph(legacy(self._graph.symbol), _values_of(self._graph))
        if backend == "MKLDNN":
            graph = with_folded_norms(*graph[:2])
        compute = graph_function(graph.symbol.get_backend_symbol(backend), graph.arrays, self._graph.numpy)
        inputs = dict(zip(self._graph.inputs, legacy(self.sample)))
        return _infinite_if_it_fails(lambda: difference_of(self._expected, compute(inputs)))

    def _made(self, settings: Settings) -> OptimizedNet:
        net: OptimizedNet = self._filled(OptimizedNet(*self._parts(), settings))
        return net

    def _parts(self) -> Tuple[List[Any], List[Any]]:
        numpy = self._graph.numpy
        heads = [of_kind(one, numpy) for one in legacy(self._graph.symbol)]
        return heads, [of_kind(mx.sym.var(name, dtype="float32"), numpy) for name in self._graph.inputs]

    def _filled(self, block: Any) -> Any:
        """Give a block of the graph its values, copies of the net's."""
        for name, array in _values_of(self._graph).items():
            parameter = block.params[name]
            parameter.shape = array.shape
            parameter.grad_req = "null"
            parameter.initialize(ctx=mx.cpu(), init=mx.init.Zero())
            parameter.set_data(of_kind(array, self._graph.numpy))
        return block

    def matched(self, keep: Sequence[str]) -> List[str]:
        """The layers that `keep` matches, by the names of their operators."""
        for glob in keep:
            if not any(fnmatchcase(path, glob) for path in self._paths.values()):
                raise unknown_path(f"optimize: keep {glob!r} matches no layer with weights", glob, self._paths.values())
        kept = [name for name, path in self._paths.items() if any(fnmatchcase(path, glob) for glob in keep)]
        if kept and len(kept) == len(self._paths):
            raise ValueError(f"optimize: keep={list(keep)} matches all layers, so none is left for {self._precision}")
        return kept

    def _tried(self, kept: Sequence[str]) -> Tuple[OptimizedNet, float]:
        """Make the net, and compute its loss."""
        ranges: Mapping[str, Tuple[float, float]] = {}
        if self._precision == "int8":
            symbol, values = legacy(self._graph.symbol), _values_of(self._graph)
            arguments, states = (
                {name: values[name] for name in names if name in values}
                for names in (symbol.list_arguments(), symbol.list_auxiliary_states())
            )
            _, names = arrays_to_calibrate(symbol, arguments, states, kept)
            ranges = {name: self.ranges[name] for name in names}
        net = self._made(Settings(self._precision, tuple(kept), ranges, self._joined))
        return net, self._loss(net)

    def _loss(self, net: OptimizedNet) -> float:
        """The loss of a second call, in which MXNet refuses some arrays in int8 that the first one read (T223)."""
        classes = self._classes and self._precision != "float32"

        def loss() -> float:
            return loss_of(self._expected, arrays_in(net(*self.sample)), classes)

        return _infinite_if_it_fails(lambda: [loss() for _ in range(2)][1])

    def _within(self, kept: List[str], limit: float, loss: float) -> OptimizedNet:
        """Keep one more layer in float32 until the loss is within the limit."""
        first = loss
        free = [name for name in self._paths if name not in kept]
        alone = {name: self._tried([one for one in self._paths if one != name])[1] for name in free}
        for name in sorted(free, key=lambda one: alone[one], reverse=True)[:-1]:
            kept = [*kept, name]
            net, loss = self._tried(kept)
            if loss <= limit:
                return net
        raise ValueError(
            f"optimize: {self._precision} loses {first:.3g} on the sample, expected at most {limit:g}; with "
            f"{len(kept)} of {len(self._paths)} layers in float32 it still loses {loss:.3g} (inf: MXNet fails, T223). "
            "Calibrate with data like the sample's, give a larger sample or limit=, or use precision='float32'"
        )


def _infinite_if_it_fails(loss: Callable[[], float]) -> float:
    """Compute a loss; a graph that MXNet changed and cannot compute loses everything (T196, T223)."""
    try:
        return loss()
    except mx.MXNetError:
        with suppress(mx.MXNetError):
            mx.nd.waitall()  # it may report the error once more
        return float("inf")


def _values_of(graph: NetGraph) -> Dict[str, Any]:
    """Values of a graph's arguments and auxiliary states, by name."""
    return {name.partition(":")[2]: array for name, array in graph.arrays.items()}


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
        dtype = np.dtype(array.dtype)
        if str(dtype) not in INPUT_DTYPES:
            raise DataError(f"optimize: expected a sample of float32, or of int32, scaled alike; received {dtype}")
        if not np.isfinite(array.asnumpy()).all():
            raise DataError("optimize: the sample holds NaN or infinity")
    return [array.as_in_context(mx.cpu()) for array in arrays]


def _check_arguments(precision: str, calibration: Any, samples: int, keep: Sequence[str], limit: float) -> None:
    in_range = 0 <= limit < 1 and samples > 0
    for fits, text in (
        (precision in PRECISIONS, f"precision: expected one of {', '.join(PRECISIONS)}; received {precision!r}"),
        (calibration is not None or precision != "int8", "calibration: int8 needs batches of real inputs"),
        (calibration is None or precision == "int8", f"calibration: {precision} has no ranges to calibrate"),
        (not keep or precision != "float32", "keep: with precision='float32' all layers stay float32"),
        (in_range, f"expected limit in [0, 1) and calibration_samples above 0; received {limit!r} and {samples!r}"),
    ):
        if not fits:
            raise ValueError(text)


def ranges_of(
    graph: NetGraph, data: Optional[Data], samples: int, sample: Sequence[Any]
) -> Dict[str, Tuple[float, float]]:
    """Compute the range of every array that may become int8.

    Args:
        graph: The traced net.
        data: Batches.
        samples: How many are read at most.
        sample: Inputs whose range is compared with that of the data.

    Raises:
        DataError: A batch has another number of inputs than the net, or an array is NaN or infinite.
        mxnet.MXNetError: The net cannot compute the shapes of a batch.

    Warns:
        TrapWarning: The data's inputs have another scale than the sample's.
    """
    internals = legacy(graph.symbol).get_backend_symbol("MKLDNN_QUANTIZE").get_internals()
    own = _values_of(graph)
    # by number: a block that is called twice gives two arrays of one name, whose range is that of both
    wanted = [(number, name) for number, name in enumerate(internals.list_outputs()) if name not in own]
    compute = graph_function(mx.sym.Group([internals[number] for number, _ in wanted]), own, graph.numpy)
    ranges: Dict[str, Tuple[float, float]] = {}
    largest = 0.0
    for inputs in _batches(data, graph, samples):
        largest = max(largest, *map(_magnitude, inputs))
        for (_, name), array in zip(wanted, compute(dict(zip(graph.inputs, inputs)))):
            if array.dtype == np.float32:
                host = array.asnumpy()
                ends = float(host.min()), float(host.max())
                known_ends = ranges.get(name, ends)
                ranges[name] = min(ends[0], known_ends[0]), max(ends[1], known_ends[1])
    wrong = [name for name, ends in ranges.items() if not np.isfinite(ends).all()]
    if wrong:
        raise DataError(f"optimize: the calibration's data gives NaN or infinity first at {wrong[0]}")
    expected = max(_magnitude(legacy(one)) for one in sample)
    if not 0.25 * expected <= largest <= 4 * expected:
        warnings.warn(
            f"optimize: inputs of the calibration reach {largest:.3g} in magnitude, those of the sample "
            f"{expected:.3g}: is one of them not scaled like the training's?",
            TrapWarning,
            stacklevel=5,
        )
    return ranges


def _batches(data: Any, graph: NetGraph, samples: int) -> Any:
    """Yield the inputs of batches until so many samples are read."""
    read = 0
    if hasattr(data, "dtype") and np.dtype(data.dtype) == np.uint8:  # a loader would divide it by 255
        raise DataError("calibration: received uint8: convert it to float32, scaled like the training's inputs")
    source = whole_source(data, "calibration", labels=False) if hasattr(data, "shape") else source_of(data)
    for batch in source.read(name="calibration", keep_count=True):
        inputs: List[Any] = [as_ndarray(one) for one in unpack(batch)[0]]
        if len(inputs) != len(graph.inputs):
            raise DataError(
                f"calibration: the net has {len(graph.inputs)} inputs, a batch has {len(inputs)}. A batch is (x, y), "
                "or ((x1, x2), y) for two inputs"
            )
        yield inputs
        read += batch_size(inputs)
        if read >= samples:
            return


def _magnitude(array: Any) -> float:
    return float(np.abs(array.asnumpy()).max(initial=0))


_ROUNDS = 5
_SECONDS = 0.1  # of one net in one round, at least


def loss_of(expected: Sequence[Any], actual: Sequence[Any], classes: bool) -> float:
    """Share of samples whose class changed; or, for other outputs, the largest mean difference, relative."""
    agreement = _agreement(expected, actual) if classes else None
    return difference_of(expected, actual) if agreement is None else 1 - agreement


def difference_of(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """The largest mean absolute difference of two outputs, divided by the mean magnitude.

    Detections (classes, scores, boxes) change places where scores are near: each column is compared in its own order.
    """
    if len(expected) == 3 and expected[2].shape[2:] == (4,):
        expected, actual = ([np.sort(_host(one), axis=1) for one in many] for many in (expected, actual))
    return max(map(_relative, expected, actual))


def measured(base: Any, net: OptimizedNet, sample: Sequence[Any], classes: bool) -> Measured:
    """Compare the outputs of two nets on a sample, and their times in turn."""
    expected, actual = arrays_in(base(*sample)), arrays_in(net(*sample))
    *_, taken = in_turns({"base": base, "net": net}, sample, _SECONDS, _ROUNDS)
    before, seconds = (median(sum(calls) / len(calls) for calls in taken[name]) for name in ("base", "net"))
    largest = max(float(np.abs(_host(one) - _host(other)).max(initial=0)) for one, other in zip(expected, actual))
    agreement = _agreement(expected, actual) if classes else None
    return Measured(len(sample[0]), agreement, largest, difference_of(expected, actual), seconds, before / seconds)


def in_turns(
    nets: Mapping[str, Any], arrays: Sequence[Any], seconds: float, rounds: int
) -> Iterator[Dict[str, List[List[float]]]]:
    """Let nets take turns; yield, after each round, the seconds of each call for each round of a net.

    Args:
        nets: By name; another one begins in each round.
        arrays: Inputs of a call.
        seconds: How long a net is timed in a round, at least one call.
        rounds: Number of rounds.
    """
    names = list(nets)
    taken: Dict[str, List[List[float]]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            calls = [seconds_of(nets[name], arrays)]
            while sum(calls) < seconds:
                calls.append(seconds_of(nets[name], arrays))
            taken[name].append(calls)
        yield {name: list(each) for name, each in taken.items()}


def seconds_of(net: Any, arrays: Sequence[Any]) -> float:
    """Seconds of a call, with the wait for its results."""
    begun = time.perf_counter()
    for array in arrays_in(call(net, arrays)):
        array.wait_to_read()
    return time.perf_counter() - begun


def layer_rows(graph: NetGraph, net: OptimizedNet, sample: Sequence[Any], paths: Dict[str, str]) -> List[LayerRow]:
    """Compare the outputs of the layers in `paths`, which has them by the names of their operators.

    Layers that are called more than once are left out: their operators have one name.
    """
    inputs = {name: legacy(one).asnumpy() for name, one in zip(graph.inputs, sample)}
    made = net.prediction_graph()
    names = Counter(node.name for node in Graph.of(graph.symbol).nodes)
    nodes = {node.name: node.attrs for node in Graph.of(made.symbol).nodes}
    joined = {**{name: [name] for name in paths if name in nodes}, **fused_parts(made.symbol)}
    # the last operator that is joined with a layer: in which node, and the layer's path
    shown = {
        made.folded.get(inner[-1], inner[-1]): (node, paths[name])
        for node, inner in joined.items()
        for name in inner
        if name in paths and all(names[one] == 1 for one in inner)
    }
    if not shown:
        return []
    values = _values(graph, made, {node: nodes[node] for node, _ in shown.values()}, inputs)
    rows = []
    for value in computed(graph, inputs):
        if value.name in shown and not value.entry.output:
            node, path = shown[value.name]
            array, kind = values[node]
            rows.append(LayerRow(path, kind, _relative(value.array, array)))
    return rows


def _values(
    graph: NetGraph, made: Any, nodes: Mapping[str, Mapping[str, str]], inputs: Mapping[str, Any]
) -> Dict[str, Tuple[Any, str]]:
    """Values of nodes in float32, and in which precision they are computed."""
    internals, described = made.symbol.get_internals(), Graph.of(made.symbol, internals=True, casts=True)
    heads = [(described.nodes[entry.node].name, place) for place, entry in enumerate(described.heads)]
    # an array in int8 has its range as two more outputs
    found = [(name, internals[place]) for name, place in heads if name in nodes]
    compute = graph_function(mx.sym.Group([part for _, part in found]), made.arrays, graph.numpy)
    with switches(graph.numpy):
        given = {name: mx.nd.array(one, dtype=one.dtype) for name, one in inputs.items()}
    by_node: Dict[str, List[Any]] = {}
    for (name, _), array in zip(found, compute(given)):
        by_node.setdefault(name, []).append(array)
    return {name: _in_float(parts, nodes[name]) for name, parts in by_node.items()}


def _in_float(parts: Sequence[Any], attributes: Mapping[str, str]) -> Tuple[Any, str]:
    kind = dtype_name(parts[0].dtype)
    if kind == "bfloat16":
        return mx.nd.amp_cast(parts[0], dtype="float32").asnumpy(), kind
    array, whole = parts[0].asnumpy(), attributes.get("quantized", "").lower() == "true"
    if kind in ("int8", "uint8"):
        end = max(abs(float(part.asnumpy().ravel()[0])) for part in parts[1:])
        array = array.astype(np.float32) * (end / (127 if kind == "int8" else 255))
    return array, "int8" if whole else kind


def _agreement(expected: Sequence[Any], actual: Sequence[Any]) -> Optional[float]:
    first = expected[0]
    if len(expected) != 1 or first.ndim != 2 or first.shape[1] < 2:
        return None
    return float(np.mean(_host(first).argmax(1) == _host(actual[0]).argmax(1)))


def _relative(expected: Any, actual: Any) -> float:
    one, other = _host(expected), _host(actual)
    magnitude = float(np.abs(one).mean()) if one.size else 0.0
    difference = float(np.abs(one - other).mean()) if one.size else 0.0
    return difference / magnitude if magnitude else float("inf") if difference else 0.0


def _host(array: Any) -> Any:
    return (array if isinstance(array, np.ndarray) else array.asnumpy()).astype(np.float64)
