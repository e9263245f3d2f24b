"""What Gluon accepts in silence and gets wrong in a net or its inputs, checked once, on the first batch."""

import os
import re
from typing import Any, Iterator, List, Sequence, Set, Tuple
import warnings

from mxkit.core.blocks import blocks_by_path, layer_settings, parameters_by_path
from mxkit.core.device import Shard, Shards, is_gpu
from mxkit.core.graphs import graph_json
from mxkit.core.replicas import has_sparse_gradient, trainer_of
from mxkit.core.statistics import takes_statistics
from mxkit.core.tracing import infer_shapes, trace
from mxkit.core.trainers import trainer_parameters
from mxkit.data.data_warnings import SINGLE_SAMPLE, cast_hint, channels_last, not_scaled
from mxkit.errors import DataError, ForwardError, TrapWarning
from mxkit.runtime.exact import switches_off
import mxnet as mx
from mxnet import gluon
import numpy as np

# Shapes of inputs that a training has by its nature: whole batches and tails, split unevenly over devices.
MANY_SHAPES = 8


def check_frozen_dense(net: Any, devices: Sequence["mx.Context"]) -> None:
    """Refuse a Dense layer whose bias is trained while its weight is frozen.

    oneDNN's kernel then writes no gradient for the bias, which is trained on what lay in memory (T46).

    Raises:
        ValueError: The net has such a layer, and runs on the CPU with oneDNN.
    """
    if os.environ.get("MXNET_MKLDNN_ENABLED") == "0" or all(device.device_type != "cpu" for device in devices):
        return
    for path, block in _walk(net):
        dense = isinstance(block, gluon.nn.Dense) and block.bias is not None
        if dense and block.weight.grad_req == "null" and block.bias.grad_req != "null":
            raise ValueError(
                f"{path}: the weight of this Dense layer is frozen, its bias is not. On the CPU MXNet "
                "computes no gradient for such a bias and says nothing. Freeze the bias too, or set "
                "MXNET_MKLDNN_ENABLED=0 before the program starts"
            )


def _check_recurrent_dropout(net: Any, shard: Shard) -> None:
    """Warn of dropout inside LSTM, GRU and RNN, which oneDNN's kernel leaves out in silence (T115)."""
    if os.environ.get("MXNET_USE_MKLDNN_RNN") == "0" or shard.inputs[0].context.device_type != "cpu":
        return
    layers = [path for path, block in _walk(net) if getattr(block, "_num_layers", 1) > 1 and _recurrent_dropout(block)]
    if layers:
        _warn(
            f"dropout between the layers of {_some(layers)} does nothing on the CPU, in training neither. Set "
            "MXNET_USE_MKLDNN_RNN=0 before the program starts, or stack layers with nn.Dropout between them (T115)"
        )


def _recurrent_dropout(block: Any) -> bool:
    return isinstance(block, gluon.rnn.rnn_layer._RNNLayer) and block._dropout > 0


def check_trainer(net: Any, trainer: Any, *, warn: bool = True) -> None:
    """Refuse parameters that the Trainer cannot have known: Gluon never trains them, in silence (T19).

    No parameter tells when it was made, but mostly its place does: what comes after something that the Trainer knows
    was added later, what stands before all of it was left out on purpose, as the features are by a Trainer over
    `net.output`. So was, wherever it stands, a weight whose bias the Trainer knows, and what another Trainer has.

    Args:
        net: The net.
        trainer: The Trainer.
        warn: Tell of what stands before all that the Trainer knows: it can be meant, and is better frozen.

    Raises:
        ValueError: A parameter that is not frozen was added to the net after the Trainer was made, or the Trainer was
            made over another net.
    """
    everything = parameters_by_path(net)
    ids = {id(parameter) for parameter in trainer_parameters(trainer)}
    known = [path for path, parameter in everything.items() if id(parameter) in ids]
    layers = {_layer(path) for path in known}
    forgotten = [
        path
        for path, one in everything.items()
        if one.grad_req != "null"
        and id(one) not in ids
        # no layer is known in part, and no parameter another Trainer's, but on purpose
        and not (known and (_layer(path) in layers or trainer_of(one) not in (None, trainer)))
    ]
    places = {path: place for place, path in enumerate(everything)}
    added = [path for path in forgotten if not known or places[path] > places[known[0]]]
    told = "the Trainer does not know {} trainable parameters, which would keep their values: {}"
    if added:
        raise ValueError(
            f"{told.format(len(added), _some(added))}. They were added to the net after it was made, or it was made "
            f"over another net. Make the Trainer last, or pass trainer=({type(trainer.optimizer).__name__.lower()!r}, "
            f"{{...}}), of which one is made here. If they are to keep their values, say so: "
            f"mxkit.freeze(net, {added[0]!r}), or a glob (T19)"
        )
    if forgotten and warn:
        _warn(
            f"{told.format(len(forgotten), _some(forgotten))}. If that is meant, freeze them, which gives the same "
            f"weights sooner: mxkit.freeze(net, {forgotten[0]!r}), or a glob (T19)"
        )


def _layer(path: str) -> str:
    return path.rpartition(".")[0]


def check_accumulation(net: Any) -> None:
    """Warn of layers for which several micro-batches cannot equal one big batch (T48)."""
    norms = batch_norms(net)
    dropouts = [path for path, block in _walk(net) if isinstance(block, gluon.nn.Dropout) and block._rate > 0]
    told = []
    if norms:
        told.append(f"BatchNorm takes its statistics from each micro-batch alone: {_some(norms)}")
    if dropouts:
        told.append(f"dropout draws other masks than for one batch: {_some(dropouts)}")
    if told:
        _warn(f"accumulated micro-batches equal one big batch except for these layers (T48). {'; '.join(told)}")


def batch_norms(net: Any) -> List[str]:
    """Paths of the BatchNorm layers that take statistics from each batch."""
    return [path for path, block in _walk(net) if takes_statistics(block)]


def warn_of_single_samples(norms: Sequence[str]) -> None:
    """Warn of a batch of one sample on a device: without height and width BatchNorm makes zeros of it (T18)."""
    _warn(
        f"a device got {SINGLE_SAMPLE}, without a word: {_some(norms)} (T18). Leave such a batch out, or choose "
        "another batch size"
    )


class ShapeWatch:
    """Warns once when inputs on a GPU have many shapes: for each, cuDNN searches its algorithms again (T136).

    Args:
        net: Looked at for convolutions.
        devices: Where it is trained.

    Attributes:
        watches: Whether batches are to be looked at: not on CPUs, where nothing is searched, nor after the warning.
    """

    def __init__(self, net: Any, devices: Sequence["mx.Context"]) -> None:
        searches = (
            "MXNET_CUDNN_AUTOTUNE_DEFAULT" in switches_off()
            and any(map(is_gpu, devices))
            and any(_convolves(block) for _, block in _walk(net))
        )
        self.watches = searches
        self._seen: Set[Any] = set()

    def look(self, shards: Shards) -> None:
        """Count the shapes of a batch, of the part on each device."""
        self._seen.update(tuple(array.shape for array in shard.inputs) for shard in shards)
        if len(self._seen) > MANY_SHAPES:
            _warn(
                f"convolutions on a GPU got inputs of {len(self._seen)} shapes, and cuDNN searches its fastest "
                "algorithm anew for each, in each layer (T136). Pad to few shapes, use drop_last=True and a batch size "
                "that the number of devices divides, or BucketLoader with few buckets; or set "
                "MXNET_CUDNN_AUTOTUNE_DEFAULT=0 before the program starts, which searches nothing"
            )
            self.watches = False


def _convolves(block: Any) -> bool:
    if isinstance(block, gluon.SymbolBlock):
        return re.search('"op": "(Convolution|Deconvolution)"', graph_json(block)) is not None
    return isinstance(block, gluon.nn.conv_layers._Conv)


def check_sparse(trainer: Any, why: Sequence[str]) -> None:
    """Refuse sparse gradients where something must be done to them before the Trainer's step.

    Args:
        trainer: Its trained parameters are looked at.
        why: What is asked for that MXNet cannot do with them.

    Raises:
        ValueError: A parameter has sparse gradients, and `why` is not empty.
    """
    sparse = [p.name for p in trainer_parameters(trainer) if has_sparse_gradient(p) and p.grad_req != "null"]
    if sparse and why:
        raise ValueError(
            f"parameters {_some(sparse)} have sparse gradients, which MXNet cannot use for {' and '.join(why)}. Make "
            "the layer with sparse_grad=False, or leave that out"
        )


def _walk(net: Any) -> Iterator[Tuple[str, Any]]:
    """Blocks with what messages call them."""
    for path, block in blocks_by_path(net):
        yield path or type(block).__name__, block


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f", and {len(names) - 5} more" if len(names) > 5 else "")


def check_first_inputs(net: Any, shard: Shard) -> None:
    """Look at the dtype, the layout and the range of the first inputs, before the net sees them.

    Raises:
        DataError: float64 or uint8 meets float32 parameters: MXNet's own message names no layer and swaps the two.
        ForwardError: A BatchNorm was built for another number of channels.
    """
    dtypes = {np.dtype(parameter.dtype).name for parameter in parameters_by_path(net).values()}
    for array in shard.inputs:
        dtype, shape = np.dtype(array.dtype).name, tuple(array.shape)
        if dtypes == {"float32"} and (dtype == "float64" or (dtype == "uint8" and len(shape) == 4)):
            raise DataError(
                f"the net's parameters are float32, a batch of shape {shape} is {dtype}: {cast_hint(dtype)}"
            )
        if len(shape) != 4:
            continue
        if _first_layout(net) == "NCHW" and shape[3] in (1, 3) and shape[1] not in (1, 3):
            _warn(
                f"{channels_last(shape)}, but the net's first convolution reads NCHW and takes {shape[1]} as the "
                "number of channels: x.transpose((0, 3, 1, 2)) (T13)"
            )
        values = array[:2].asnumpy()
        if values.dtype.kind == "f" and values.max() > 100 and (values == np.floor(values)).all() and values.min() >= 0:
            _warn(not_scaled(values.max()))
    _check_norm_channels(net, shard)
    _check_recurrent_dropout(net, shard)


def _check_norm_channels(net: Any, shard: Shard) -> None:
    """Refuse a batch whose channels a BatchNorm was not built for: MXNet reads and writes past its arrays (T101).

    What takes no symbols is not looked into.

    Raises:
        ForwardError: One was built for another number of channels.
    """
    norms = {
        f"{path}.gamma".lstrip("."): block
        for path, block in blocks_by_path(net)
        if isinstance(block, gluon.nn.BatchNorm) and block.gamma.shape and block.gamma.shape[0] > 0
    }
    if not norms or not isinstance(net, gluon.HybridBlock):
        return
    try:
        traced = trace(net, shard.inputs)
        _, shapes = infer_shapes(traced, traced.outputs, [array.shape for array in shard.inputs])
    except Exception:  # of any kind: the net's own code met a symbol, or shapes do not fit, which the batch will tell
        return
    for name, block in norms.items():
        built, asked = block.gamma.shape[0], shapes.get(name, block.gamma.shape)[0]
        if asked != built:
            path = name[: -len(".gamma")]
            where = repr(path) if path else "the net"
            raise ForwardError(
                f"{where} ({type(block).__name__}) is built for {built} channels and got {asked}: MXNet would read and "
                f"write past its arrays without a word (T101). Make it with in_channels={asked}, or leave it to the "
                "first batch",
                path,
                block,
            )


def _first_layout(net: Any) -> Any:
    """Layout of the first convolution inside a net, or None."""
    return next(
        (layer_settings(block)["layout"] for _, block in _walk(net) if isinstance(block, gluon.nn.Conv2D)), None
    )


def _warn(text: str) -> None:
    # of the line that called `fit`, as far as one can say: the loop is a generator
    warnings.warn(text, TrapWarning, stacklevel=5)
