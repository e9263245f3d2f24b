"""Computes batches of a few fixed sizes with a net, each size with a static graph of its own.

A graph with `static_alloc` and `static_shape` plans its memory at the first batch of a shape, and again for the next
shape (T201), so sizes that take turns in one graph are slow. These graphs read the net's own parameters at every call.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from mxkit.core.arrays import call, is_numpy, of_kind, outputs_of, switches
from mxkit.core.blocks import blocks_by_path, is_numpy_net, net_devices
from mxkit.core.device import empty_batch
from mxkit.core.forward_errors import explained
from mxkit.core.graphs import argument_order, cached_operator
from mxkit.core.tracing import trace
from mxkit.errors import DataError
import mxnet as mx
from mxnet import autograd
import numpy as np

# The inputs of a net for one sample, without the axis of the batch.
Sample = Tuple["np.ndarray", ...]
_DTYPES = ("float16", "float32", "bool", "uint8", "int8", "int32", "int64")


class SampleForm(NamedTuple):
    """Shape of an input for one sample, without the axis of the batch, and its dtype."""

    shape: Tuple[int, ...]
    dtype: "np.dtype"

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


def form_of(sample: "np.ndarray") -> SampleForm:
    """The form of an array without the axis of the batch.

    Raises:
        DataError: MXNet has no arrays of its dtype.
    """
    dtype = sample.dtype.newbyteorder("=")
    if dtype.name not in _DTYPES:
        raise DataError(f"Predictor: MXNet has no arrays of {dtype.name}: expected one of {', '.join(_DTYPES)}")
    return SampleForm(sample.shape, dtype)


def sizes_up_to(most: int) -> List[int]:
    """The sizes of batches: powers of 2, and `most`.

    >>> sizes_up_to(24), sizes_up_to(1)
    ([1, 2, 4, 8, 16, 24], [1])
    """
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


class BatchGraphs:
    """A net that computes batches of samples, padded to a few sizes.

    All calls must come from one thread: MXNet traces and calls a block in one thread at a time (T200).

    Args:
        net: An initialized block.
        forms: Of its inputs.
        sample: A sample to begin with.
        most: Largest number of samples of a batch.

    Attributes:
        forms: Of the inputs.
        reason: Why the net is called as it is; '' if graphs of it compute.

    Raises:
        DataError: An output has not one row per sample, or depends on the other samples of the batch.
        ForwardError: The net does not compute the sample.
    """

    def __init__(self, net: Any, forms: Tuple[SampleForm, ...], sample: Sample, most: int) -> None:
        self._net, self._device, self._numpy = net, net_devices(net)[0], is_numpy_net(net)
        self.forms, self.sizes = forms, sizes_up_to(most)
        self.several = False  # whether the net returns a tuple; its first call says so
        with autograd.pause(train_mode=False):
            expected = self._begin(self._as_it_is, [sample], 1)()  # also finishes a deferred initialization
            self._graphs, self.reason = self._made(sample, expected)
            self._refuse_mixing(sample)
            for size in self.sizes * 2:  # MXNet makes a static graph at the first call, and its operators at the second
                self.begin([sample] * size)()

    def begin(self, samples: Sequence[Sample]) -> Callable[[], List["np.ndarray"]]:
        """Start to compute at most `most` samples, without a wait if `reason` is ''; the last one fills the batch up.

        Returns:
            A function that waits for the net's outputs, NumPy arrays with a row for each sample. They are copies: call
            it before the next `begin`, which computes in the same memory.
        """
        size = next(one for one in self.sizes if one >= len(samples))
        return self._begin(self._graphs.get(size, self._as_it_is), samples, size)

    def _begin(
        self, function: Callable[..., Any], samples: Sequence[Sample], size: int
    ) -> Callable[[], List["np.ndarray"]]:
        with autograd.pause(train_mode=False), switches(self._numpy):
            arrays = [of_kind(self._batch(column, size), self._numpy) for column in zip(*samples)]
            with self._explained(arrays, size):
                output = function(*arrays)
        return partial(self._end, output, arrays, size, len(samples))

    def _batch(self, column: Sequence["np.ndarray"], size: int) -> Any:
        array, memory = empty_batch((size, *column[0].shape), column[0].dtype)
        for number, one in enumerate(column):
            memory[number] = one
        memory[len(column) :] = column[-1]
        return array.as_in_context(self._device)

    def _explained(self, arrays: Any, size: int) -> Any:
        """Name the block that fails; a larger batch that fails is computed again, sample by sample."""
        return explained(self._net, lambda: call(self._net, arrays)) if size == 1 else nullcontext()

    def _end(self, output: Any, arrays: Any, size: int, count: int) -> List["np.ndarray"]:
        with autograd.pause(train_mode=False), switches(self._numpy), self._explained(arrays, size):
            found = _host(output)
        wrong = [one.shape for one in found if one.shape[:1] != (size,)]
        if wrong:
            raise DataError(
                f"Predictor: a batch of {size} gives an output of shape {wrong[0]}: expected one row per sample in the "
                "first axis. Wrap the net in a Block that returns only such outputs"
            )
        return [one[:count] for one in found]

    def _as_it_is(self, *arrays: Any) -> Any:
        output = call(self._net, arrays)
        self.several = isinstance(output, (list, tuple))
        return output

    def _made(self, sample: Sample, expected: List["np.ndarray"]) -> Tuple[Dict[int, Callable[..., Any]], str]:
        """A graph for each size; none, and why, if the net's code computes something else than its graph."""
        own = [path for path, block in blocks_by_path(self._net) if not _is_mxnets(type(block).forward)]
        if own:  # Gluon does not trace it either, and what it does with symbols may be something else
            return {}, f"{own[0] or 'the net'} has a forward of its own, which runs as Python code"
        try:
            graphs = {size: _graph(self._net, sample, self._device, self._numpy) for size in self.sizes}
            found = self._begin(graphs[1], [sample], 1)()
            self._begin(graphs[self.sizes[-1]], [sample], self.sizes[-1])()  # a graph may compute one sample only
        except Exception as error:  # of any kind: the net's code got symbols. With arrays it runs
            return {}, f"it cannot be traced: {type(error).__name__}: {str(error)[:300]}"
        same = len(found) == len(expected) and all(map(_close, found, expected))
        return (graphs, "") if same else ({}, "its graph computes something else than its code (T39)")

    def _refuse_mixing(self, sample: Sample) -> None:
        """Refuse a net whose answer to a sample depends on its neighbour in the batch."""
        if self.sizes == [1]:
            return
        other = tuple(map(_another, sample))
        pairs = [sample, sample], [sample, other], [other, sample], [sample, sample]
        # a recurrent net looks at earlier rows only
        for twice, before, after, again in zip(*(self.begin(pair)() for pair in pairs)):
            random = not np.array_equal(twice, again)
            if not random and not (_close(twice[0], before[0]) and _close(twice[1], after[1])):
                raise DataError(
                    "Predictor: the net's answer to a sample depends on the other samples of its batch, and these "
                    "are other people's. Is the batch the first axis of every input (layout='NTC', not 'TNC')?"
                )


def _another(one: "np.ndarray") -> "np.ndarray":
    """Another value of an input; lengths and indices stay from 1 to theirs: at others, MXNet damages memory (T295)."""
    is_count = bool((one >= 0).all() and (one == np.floor(one)).all())
    if is_count and (one > 1).any():
        return np.ceil(one / 2).astype(one.dtype)
    if is_count and not one.ndim:
        return one
    return 1 - one if one.dtype.kind == "f" else np.zeros_like(one)


def _host(output: Any) -> List["np.ndarray"]:
    return [one.asnumpy() for one in outputs_of(output, "Predictor")]


def _close(one: "np.ndarray", other: "np.ndarray") -> bool:
    scale = float(np.abs(np.nan_to_num(other)).max()) if other.size else 0.0
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _is_mxnets(function: Any) -> bool:
    return str(function.__module__).startswith("mxnet.")


def _graph(net: Any, sample: Sample, device: Any, numpy: bool) -> Callable[..., Any]:
    arrays = [of_kind(mx.nd.zeros((1, *one.shape), ctx=device, dtype=one.dtype), numpy) for one in sample]
    traced = trace(net, arrays)
    kind = mx.sym.np._Symbol if is_numpy(traced.outputs) else mx.sym.Symbol
    symbol = mx.sym.Group(traced.outputs, kind)
    order = argument_order(symbol, traced.inputs, traced.parameters)
    operator = cached_operator(symbol, order, static_alloc=True, static_shape=True)

    def compute(*given: Any) -> Any:
        return operator(*(given[one] if isinstance(one, int) else one.data(device) for one in order))

    return compute
