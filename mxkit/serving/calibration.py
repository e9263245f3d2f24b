"""Ranges of a net's arrays on real data, from which int8 gets its scales."""

from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import legacy
from mxkit.core.device import as_ndarray, batch_size, describe_batch, unpack
from mxkit.data.source import Data, source_of, whole_source
from mxkit.errors import DataError, TrapWarning
from mxkit.exporting.net_graph import NetGraph, graph_function
import mxnet as mx
import numpy as np

_BINS = 8001  # MXNet's number


def ranges_of(
    graph: NetGraph, data: Optional[Data], mode: str, samples: int, sample: Sequence[Any]
) -> Dict[str, Tuple[float, float]]:
    """Compute the range of every array that may become int8.

    Args:
        graph: The traced net.
        data: Batches.
        mode: "naive" or "entropy".
        samples: How many are read at most.
        sample: Inputs whose range is compared with that of the data.

    Raises:
        DataError: A batch has another number of inputs than the net, or other shapes than it computes, or an array is
            NaN or infinite.

    Warns:
        TrapWarning: The data's inputs have another scale than the sample's.
    """
    fused = legacy(graph.symbol).get_backend_symbol("MKLDNN_QUANTIZE")
    internals = fused.get_internals()
    own = {name.partition(":")[2] for name in graph.arrays}
    # by number: a block that is called twice gives two arrays of one name, whose range is that of both
    wanted = [(number, name) for number, name in enumerate(internals.list_outputs()) if name not in own]
    names = [name for _, name in wanted]
    known = {name.partition(":")[2]: array for name, array in graph.arrays.items()}
    compute = graph_function(mx.sym.Group([internals[number] for number, _ in wanted]), known, graph.numpy)
    ranges: Dict[str, Tuple[float, float]] = {}
    histograms: Dict[str, Any] = {}
    largest = 0.0
    for number, inputs in enumerate(_batches(data, graph, samples), 1):
        largest = max(largest, *(_magnitude(one) for one in inputs))
        with _described(number, inputs, sample):
            for name, array in zip(names, compute(dict(zip(graph.inputs, inputs)))):
                if array.dtype == np.float32:
                    host = array.asnumpy()
                    ends = float(host.min()), float(host.max())
                    known_ends = ranges.get(name, ends)
                    ranges[name] = min(ends[0], known_ends[0]), max(ends[1], known_ends[1])
                    if mode == "entropy" and np.isfinite(ends).all():
                        histograms[name] = _histogram(histograms.get(name), host, ends)
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
    if mode == "entropy":
        from mxnet.contrib import quantization  # it imports scipy.stats

        ranges = quantization._get_optimal_thresholds(histograms, "auto")
    return {name: (float(least), float(most)) for name, (least, most) in ranges.items()}


@contextmanager
def _described(number: int, inputs: Sequence[Any], sample: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    except mx.MXNetError as error:
        with suppress(mx.MXNetError):
            mx.nd.waitall()  # it may report the error once more
        expected, received = (describe_batch((tuple(arrays),)) for arrays in (sample, inputs))
        raise DataError(
            f"calibration: the net cannot compute batch {number}: expected any number of samples like those of the "
            f"sample ({expected}); received {received}. {str(error).strip().splitlines()[-1]}"
        ) from error


def _histogram(before: Any, array: Any, ends: Tuple[float, float]) -> Any:
    """Add an array to a histogram in the form of MXNet, whose own collectors take callbacks of an Executor only."""
    from mxnet.contrib import quantization

    most = max(map(abs, ends))
    if before is not None:
        return quantization.combine_histogram(before, array, *ends, most)
    return (*np.histogram(array, bins=_BINS, range=(-most, most)), *ends, most)


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
