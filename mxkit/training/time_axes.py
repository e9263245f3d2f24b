"""Finds LSTM, GRU and RNN that take the samples of a batch for the steps of a sequence, and mix them (T293)."""

from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Dict, Iterator, Sequence, Set, Tuple
import warnings

from mxkit.core.arrays import arrays_in
from mxkit.core.blocks import blocks_by_path, join_path, loader_parts
from mxkit.core.device import Shard, unpack
from mxkit.core.graphs import is_hybridized
from mxkit.core.tracing import Trace, infer_shapes, trace
from mxkit.data.loader import ArrayLoader
from mxkit.data.order import Epochs
from mxkit.data.source import Source
from mxkit.errors import TrapWarning
from mxkit.training.loss_checks import is_quiet
import mxnet as mx
from mxnet import autograd, gluon

# Shape of what a layer gets, by the layer's path.
Shapes = Dict[str, Tuple[int, ...]]


@contextmanager
def time_axes_checked(net: Any, shard: Shard, batch: Any, source: Source) -> Iterator[None]:
    """Warn of recurrent layers of the default layout TNC that get samples on axis 0; inside `with` the net is called.

    Nothing is computed for it. A net that can be traced tells by shapes alone; in another one the layers tell by hooks.

    Args:
        net: The net.
        shard: The first batch on the first device.
        batch: The batch, as it came.
        source: Its data.
    """
    layers = {path: block for path, block in blocks_by_path(net) if _reads_time_first(block)}
    if not layers or is_quiet() or not _has_samples_first(source, batch):
        yield
        return
    inputs = shard.unpacked().inputs
    sizes = [tuple(array.shape) for array in inputs]
    shapes: Shapes = {}
    try:
        traced = _traced(net, inputs)
    except Exception:  # of any type: the net's code refuses a symbol
        with _observed(net, shapes):
            yield
    else:
        shapes = _shapes_in(traced, sizes)
        doubled = _shapes_in(traced, [(2 * size[0], *size[1:]) for size in sizes])
        # a time that is by chance as long as the batch does not grow with it
        shapes = {path: one for path, one in shapes.items() if doubled.get(path, one)[0] != one[0]}
        yield
    wrong = [path for path, one in shapes.items() if _mixes(one, shard.samples, source.shuffles)]
    if wrong:
        more = f", and {len(wrong) - 1} more," if len(wrong) > 1 else ""
        path, kind = wrong[0], type(layers[wrong[0]]).__name__
        text = f"{path or 'the net'} ({kind}){more} has the default layout 'TNC' and gets {shapes[path]} for a batch of"
        text = f"{text} {shard.samples} samples: it takes the samples for the steps of one sequence, and mixes them"
        way = "Make it with layout='NTC', or swap the axes before and after it: x.swapaxes(0, 1)"
        warnings.warn(f"{text} (T293). {way}", TrapWarning, stacklevel=6)


def _reads_time_first(block: Any) -> bool:
    return isinstance(block, gluon.rnn.rnn_layer._RNNLayer) and block._layout == "TNC"


def _has_samples_first(source: Source, batch: Any) -> bool:
    """Whether axis 0 of a batch are surely samples: a list may hold batches (time, samples), which train rightly."""
    inputs, labels = unpack(batch)
    data, parts = source.data, loader_parts(source.data)
    size = getattr(data, "batch_size", None) if parts is None else parts.batch_size
    joins = data.transform if isinstance(data, ArrayLoader) else getattr(data, "batchify", None)
    stacks = isinstance(data, Epochs) and size is not None and joins is None
    # (time, samples) with as many steps as samples has both axes equal
    return stacks or inputs[0].shape[0] == size or any(len(label.shape) == 1 for label in labels)


def _mixes(shape: Tuple[int, ...], samples: int, shuffled: bool) -> bool:
    """Whether a layer that gets this shape takes samples for steps; in order, they may be those of one sequence."""
    return len(shape) == 3 and shape[0] == samples != shape[1] and (shape[1] > 1 or shuffled)


def _traced(net: Any, inputs: Sequence[Any]) -> Trace:
    if not isinstance(net, gluon.HybridBlock):
        raise TypeError("a plain Block has no graph")
    with autograd.pause(), mx.name.NameManager():  # keeps the counters of names, which the user's graphs use
        return trace(net, inputs)


def _shapes_in(traced: Trace, sizes: Sequence[Tuple[int, ...]]) -> Shapes:
    """What the layers of a graph get in their first call, as far as it can be inferred, for inputs of these shapes."""
    shapes: Shapes = {}
    for call in traced.calls:
        if _reads_time_first(call.block) and not call.number:
            with suppress(Exception):  # of any type: the shapes may not fit, which the batch will raise
                shapes[call.path] = tuple(infer_shapes(traced, call.inputs[:1], sizes)[0][0])
    return shapes


@contextmanager
def _observed(net: Any, shapes: Shapes) -> Iterator[None]:
    """Note what the layers get in their first call inside `with`; in a graph there are no shapes, so it is traced."""

    def note(path: str, block: Any, arguments: Any) -> None:
        arrays = arrays_in(list(arguments))
        if not arrays or path in seen:
            return
        seen.add(path)
        if _reads_time_first(block):
            shapes[path] = tuple(arrays[0].shape)
            return
        with suppress(Exception):  # as above
            found = _shapes_in(_traced(block, arguments), [tuple(array.shape) for array in arrays])
            shapes.update({join_path(path, inner): shape for inner, shape in found.items()})

    seen: Set[str] = set()
    handles = [block.register_forward_pre_hook(partial(note, path)) for path, block in _roots(net).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.detach()


def _roots(net: Any) -> Dict[str, Any]:
    """The layers, or the outermost graphs that hold them."""
    roots: Dict[str, Any] = {}
    for path, block in blocks_by_path(net):
        inside = any(not root or path.startswith(f"{root}.") for root in roots)
        holds = is_hybridized(block) and any(_reads_time_first(inner) for _, inner in blocks_by_path(block))
        if not inside and (_reads_time_first(block) or holds):
            roots[path] = block
    return roots
