"""Checks of a net, its Trainer and its inputs for what Gluon accepts and computes wrongly."""

from contextlib import contextmanager, suppress
import math
import os
from typing import Any, Dict, Iterable, Iterator, List, Mapping, MutableMapping, Optional, Sequence, Tuple
import warnings
from weakref import WeakKeyDictionary

from mxkit.core.arrays import arrays_in, is_numpy, legacy, switches, to_host
from mxkit.core.blocks import blocks_by_path, join_path, layer_settings, net_devices, parameters_by_path
from mxkit.core.device import Shard, unpack
from mxkit.core.graph import Graph
from mxkit.core.graphs import is_hybridized, traced_graph
from mxkit.core.loss_meanings import some_values
from mxkit.core.operators import draws
from mxkit.core.replicas import has_sparse_gradient, trainer_of
from mxkit.core.statistics import takes_statistics
from mxkit.core.tracing import Trace, graph_in_mode, infer_shapes, structure, trace
from mxkit.core.trainers import DRIFTING, kvstore_settings, shall_step_on_kvstore, trainer_devices, trainer_parameters
from mxkit.data.describing import SINGLE_SAMPLE, cast_hint, channels_last, not_scaled
from mxkit.errors import DataError, ForwardError, TrapWarning
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

# Packages whose blocks compute the same operators in training as in predict mode.
_WITHOUT_BRANCH = ("mxnet.", "mxkit.")
# The graph of each block that `check_modes` has traced again, by whether it was trained: one warning for each.
_checked_graphs: MutableMapping[Any, Dict[bool, Any]] = WeakKeyDictionary()


def check_frozen_dense(net: Any, devices: Sequence["mx.Context"]) -> None:
    """Refuse a Dense layer with a frozen weight and a trained bias.

    oneDNN's kernel writes no gradient for such a bias, which is then trained on arbitrary memory (T46).

    Raises:
        ValueError: The net has such a layer, and runs on the CPU with oneDNN.
    """
    if os.environ.get("MXNET_MKLDNN_ENABLED") == "0" or all(device.device_type != "cpu" for device in devices):
        return
    for path, block in _walk(net):
        dense = isinstance(block, gluon.nn.Dense) and block.bias is not None
        if dense and block.weight.grad_req == "null" and block.bias.grad_req != "null":
            text = f"{path}: the weight of this Dense layer is frozen, its bias is not. On the CPU MXNet computes no"
            raise ValueError(f"{text} gradient for such a bias (T46). Freeze it too, or set MXNET_MKLDNN_ENABLED=0")


def check_recurrent_layers(net: Any, devices: Sequence["mx.Context"]) -> None:
    """Refuse LSTM, GRU and RNN of several layers that oneDNN does not compute on the CPU.

    MXNet's own kernel then gives the lower layers gradients from arbitrary memory (T259).

    Raises:
        ValueError: The net has such a layer, or one with lengths of sequences (T262).
    """
    if all(device.device_type != "cpu" for device in devices):
        return
    check_recurrent_settings(net)
    off = [name for name in ("MXNET_USE_MKLDNN_RNN", "MXNET_MKLDNN_ENABLED") if os.environ.get(name) == "0"]
    for path, block in _stacked(net):
        dtype = np.dtype(block.l0_i2h_weight.dtype).name
        if off or dtype != "float32":
            reason = f"{off[0]}=0" if off else dtype
            text = f"{path}: {type(block).__name__} of {block._num_layers} layers with {reason} on the CPU gets wrong"
            way = "Stack layers of one in an nn.HybridSequential" + ("" if off else ", or use float32")
            raise ValueError(f"{text} gradients of its lower layers from MXNet (T259). {way}")


def check_recurrent_settings(net: Any) -> None:
    """Refuse recurrent layers with lengths of sequences or limits of states, which the CPU's kernels ignore.

    Raises:
        ValueError: The net has a layer with `use_sequence_length` (T262) or `state_clip_min` (T296), and lives on the
            CPU.
    """
    layers = _recurrent(net)
    if not layers or all(device.device_type != "cpu" for device in net_devices(net)):
        return
    places = [path for path, block in layers if block._use_sequence_length]
    if places:
        text = f"use_sequence_length=True of {_some(places)} does nothing on the CPU: padding is read (T262)"
        raise ValueError(f"{text}. Use F.SequenceMask and F.SequenceLast, or a cell with unroll(valid_length=...)")
    limits = "_lstm_state_clip_min", "_lstm_state_clip_max"
    places = [path for path, block in layers if any(getattr(block, one) is not None for one in limits)]
    if places:
        text = f"state_clip_min and state_clip_max of {_some(places)} do nothing on the CPU (T296)"
        raise ValueError(f"{text}. Leave them out; clip_norm of a training limits gradients")


def _recurrent(net: Any) -> List[Tuple[str, Any]]:
    """LSTM, GRU and RNN, with their paths."""
    return [(path, block) for path, block in _walk(net) if isinstance(block, gluon.rnn.rnn_layer._RNNLayer)]


def _stacked(net: Any) -> List[Tuple[str, Any]]:
    """Those that hold several layers."""
    return [(path, block) for path, block in _recurrent(net) if block._num_layers > 1]


def _check_recurrent_dropout(net: Any, shard: Shard) -> None:
    """Warn of dropout inside LSTM, GRU and RNN, which oneDNN's kernel ignores (T115)."""
    if shard.inputs[0].ctx.device_type != "cpu":
        return
    layers = [path for path, block in _stacked(net) if block._dropout > 0]
    if layers:
        text = f"dropout between the layers of {_some(layers)} does nothing on the CPU, not even in training (T115)"
        _warn(f"{text}. Stack layers of one in an nn.HybridSequential, with nn.Dropout between them")


def check_branches(net: Any) -> None:
    """Warn of `F.contrib.cond` in a traced net: MXNet leaves gradients of the branch not taken unset (T194)."""
    graphs = ((path, traced_graph(block)) for path, block in _walk(net))
    places = [path for path, graph in graphs if graph and _has_branch(graph[1])]
    if places:
        text = "an array that only the branch not taken uses gets an arbitrary gradient (T194). Compute both branches"
        _warn(f"F.contrib.cond in {_some(places)}, hybridized: {text} and choose by F.where, or do not hybridize")


def _has_branch(symbol: Any) -> bool:
    return any(one.operator == "_cond" for one in Graph.of(symbol).operators())


def check_modes(net: Any, *, training: bool) -> None:
    """Warn of a traced net whose code has a branch for training: its graph is that of the first call's mode (T39).

    Args:
        net: The net, after a call. Blocks of MXNet and mxkit have no such branch, and are not traced again.
        training: Whether the net is trained; if not, a graph of predict mode is right.
    """
    places = []
    for path, block in _walk(net):
        graph = traced_graph(block)
        checked = _checked_graphs.setdefault(block, {}) if graph else {}
        if not graph or checked.get(training) is graph[1]:
            continue
        checked[training] = graph[1]
        kinds = {type(one) for _, one in blocks_by_path(block)}
        if gluon.nn.HybridLambda not in kinds and all(one.__module__.startswith(_WITHOUT_BRANCH) for one in kinds):
            continue
        with suppress(Exception):  # of any type: the code may refuse another trace
            predicting = graph_in_mode(block, training=False)
            if (training or structure(graph[1]) != predicting) and graph_in_mode(block, training=True) != predicting:
                places.append(path)
    if places:
        text = "the code gives other operators in training than in predict mode, and the graph keeps the first"
        _warn(f"{_some(places)}, hybridized: {text}. Hybridize only blocks without such a branch (T39)")


def check_trainer(net: Any, trainer: Any, *, warn: bool = True) -> None:
    """Refuse parameters that were added after the Trainer was made: Gluon never trains them, without an error (T19).

    A parameter does not record when it was made, but its position shows it. A parameter after one of the Trainer's
    was added later. A parameter before all of the Trainer's was left out on purpose, as by a Trainer over
    `net.output`. Also left out on purpose are weights of a layer whose bias the Trainer has, which cannot be frozen
    (T46), and parameters of another Trainer.

    Args:
        net: The net.
        trainer: The Trainer.
        warn: Warn of parameters before all of the Trainer's, and of biases beside its weights: if they are left out
            on purpose, freezing is better.

    Raises:
        ValueError: A parameter that is not frozen was added to the net after the Trainer was made, or the Trainer was
            made over another net. Or the optimizer GroupAdaGrad has a parameter that it cannot train.
    """
    everything = parameters_by_path(net)
    ids = {id(parameter) for parameter in trainer_parameters(trainer)}
    trained = {path: one.shape for path, one in everything.items() if id(one) in ids and one.grad_req != "null"}
    other = next((path for path, shape in trained.items() if shape is not None and len(shape) != 2), None)
    if isinstance(trainer.optimizer, mx.optimizer.contrib.GroupAdaGrad) and other:
        text = f"optimizer 'groupadagrad' trains parameters of two axes only; {other!r} has shape {trained[other]}"
        raise ValueError(f"{text}. Use 'adagrad', or freeze all others: mxkit.freeze(net, {other!r}), or a glob")
    known = [path for path, parameter in everything.items() if id(parameter) in ids]
    layers = {_layer(path) for path in known}
    missing = [
        path
        for path, parameter in everything.items()
        if parameter.grad_req != "null"
        and id(parameter) not in ids
        and not (known and trainer_of(parameter) not in (None, trainer))
        and (_layer(path) not in layers or f"{_layer(path)}.weight" in known)
    ]
    paths = list(everything)
    added = [path for path in missing if _layer(path) not in layers]
    added = [path for path in added if not known or paths.index(path) > paths.index(known[0])]
    text = "the Trainer does not know {} trainable parameters, which would keep their values: {}"
    if added:
        how = "They were added to the net after the Trainer was made, or it was made over another net"
        way = f"Make it last, or pass trainer=({_name(trainer.optimizer)!r}, {{...}})"
        keep = f"To keep the values: mxkit.freeze(net, {added[0]!r}), or a glob (T19)"
        raise ValueError(f"{text.format(len(added), _some(added))}. {how}. {way}. {keep}")
    if missing and warn:
        way = f"If this is intended, freeze them, which is faster: mxkit.freeze(net, {missing[0]!r}), or a glob (T19)"
        _warn(f"{text.format(len(missing), _some(missing))}. {way}")


def check_replicas(trainer: "gluon.Trainer") -> None:
    """Refuse a Trainer that cannot step, skips steps, or would let replicas drift apart without an error (T24)."""
    if not isinstance(trainer, gluon.Trainer):
        raise TypeError(f"expected gluon.Trainer(net.collect_params(), ...); received {type(trainer).__name__}")
    if getattr(trainer, "_amp_loss_scaler", None) is not None:
        raise ValueError(
            "the Trainer was passed to amp.init_trainer, which scales by itself. Make another, and pass amp='float16'"
        )
    contexts = trainer_devices(trainer)
    if len(contexts) < 2:
        return
    if kvstore_settings(trainer)["kvstore"] is None:
        text = f"the Trainer has kvstore=None on {len(contexts)} devices {contexts}: each would train its own copy"
        raise ValueError(f"{text}. Make it with kvstore='device' (T24)")
    if isinstance(trainer.optimizer, DRIFTING) and not shall_step_on_kvstore(trainer):
        text = f"{type(trainer.optimizer).__name__} with update_on_kvstore=False on {len(contexts)} devices"
        way = "Make the Trainer with update_on_kvstore=True (T24), which takes neither clip_value nor amp='float16'"
        raise ValueError(f"{text} lets replicas drift apart. {way}; or use one device, or another optimizer")


def _name(optimizer: Any) -> str:
    return type(optimizer).__name__.lower()


def _layer(path: str) -> str:
    return path.rpartition(".")[0]


def check_accumulation(net: Any) -> None:
    """Warn of layers for which several micro-batches cannot equal one big batch (T48)."""
    norms = batch_norms(net)
    dropouts = [path for path, block in _walk(net) if isinstance(block, gluon.nn.Dropout) and block._rate > 0]
    texts = []
    if norms:
        texts.append(f"BatchNorm takes its statistics from each micro-batch alone: {_some(norms)}")
    if dropouts:
        texts.append(f"dropout draws other masks than for one batch: {_some(dropouts)}")
    if texts:
        _warn(f"accumulated micro-batches equal one big batch except for these layers (T48). {'; '.join(texts)}")


def batch_norms(net: Any) -> List[str]:
    """Paths of the BatchNorm layers that take statistics from each batch."""
    return [path for path, block in _walk(net) if takes_statistics(block)]


def warn_of_single_samples(net: Any, norms: Sequence[str], shard: Shard) -> None:
    """Warn of a batch of one sample on a device: BatchNorm without height and width gives zeros for it (T18).

    If the net cannot be traced, all of `norms` are named.
    """
    zeros = list(norms)
    with suppress(Exception), mx.name.NameManager():  # of any type: the net's code refuses a symbol
        traced, sizes = trace(net, shard.inputs), [array.shape for array in shard.inputs]
        calls = [call for call in traced.calls if call.path in norms]
        axes = [layer_settings(call.block)["axis"] for call in calls]
        shapes = infer_shapes(traced, [call.inputs[0] for call in calls], sizes)[0]
        zeros = [call.path for call, axis, shape in zip(calls, axes, shapes) if math.prod(shape) == shape[axis]]
    if zeros:
        words = "Leave such a batch out, or choose another batch size"
        named = _some([path or "BatchNorm" for path in zeros])
        _warn(f"a device got {SINGLE_SAMPLE}: {named} (T18). {words}")


def check_sparse(trainer: Any, why: Sequence[str]) -> None:
    """Refuse sparse gradients for accumulation and clipping.

    Args:
        trainer: The Trainer of the parameters.
        why: Names of the operations that MXNet does not have for sparse gradients; () refuses nothing.

    Raises:
        ValueError: A parameter has sparse gradients, and `why` is not empty.
    """
    sparse = [p.name for p in trainer_parameters(trainer) if has_sparse_gradient(p) and p.grad_req != "null"]
    if sparse and why:
        text = f"parameters {_some(sparse)} have sparse gradients, which MXNet cannot use for {' and '.join(why)}"
        raise ValueError(f"{text}. Leave that out, or make the layer with sparse_grad=False")


def check_lazy(net: Any, optimizer: Any) -> None:
    """Warn of an optimizer that leaves out rows without a gradient, whose momentum and decay would move them (T257)."""
    moves = isinstance(optimizer, mx.optimizer.Adam) or getattr(optimizer, "momentum", None) or optimizer.wd
    sparse = [
        path for path, one in parameters_by_path(net).items() if has_sparse_gradient(one) and one.grad_req != "null"
    ]
    if sparse and moves and getattr(optimizer, "lazy_update", False):
        text = "the gradient is sparse, and with lazy_update=True rows that a batch does not use stand still (T257)"
        way = f"Pass ({_name(optimizer)!r}, {{'lazy_update': False}}), or make the layer with sparse_grad=False"
        _warn(f"{_some(sparse)}: {text}, without momentum and decay. {way}")


def _walk(net: Any) -> Iterator[Tuple[str, Any]]:
    """Blocks with their names for messages."""
    for path, block in blocks_by_path(net):
        yield path or type(block).__name__, block


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f", and {len(names) - 5} more" if len(names) > 5 else "")


def check_first_inputs(net: Any, shard: Shard) -> None:
    """Check the dtype, the layout and the range of the first inputs, before the forward pass.

    Raises:
        DataError: Inputs are float64 or uint8 and parameters float32: MXNet's own error names no layer and swaps them.
        ForwardError: A BatchNorm was built for another number of channels.
    """
    dtypes = {np.dtype(parameter.dtype).name for parameter in parameters_by_path(net).values()}
    for array in legacy(shard.inputs):
        dtype, shape = np.dtype(array.dtype).name, tuple(array.shape)
        if dtypes == {"float32"} and (dtype == "float64" or (dtype == "uint8" and len(shape) == 4)):
            raise DataError(
                f"the net's parameters are float32, a batch of shape {shape} is {dtype}: {cast_hint(dtype)}"
            )
        if len(shape) != 4:
            continue
        first = next((block for _, block in _walk(net) if isinstance(block, gluon.nn.Conv2D)), None)
        nchw = first is not None and layer_settings(first)["layout"] == "NCHW"
        if nchw and shape[3] in (1, 3) and shape[1] not in (1, 3):
            text = f"the net's first convolution reads NCHW and takes {shape[1]} as the number of channels"
            _warn(f"{channels_last(shape)}, but {text}: x.transpose((0, 3, 1, 2)) (T13)")
        values = array[:2].asnumpy()
        if values.dtype.kind == "f" and values.max() > 100 and (values == np.floor(values)).all() and values.min() >= 0:
            _warn(not_scaled(values.max()))
    _check_norm_channels(net, shard)
    _check_recurrent_dropout(net, shard)


class TokenWatch:
    """Refuses tokens for which an Embedding has no row: MXNet takes its first or last row, without an error (T263).

    Inputs that an Embedding gets as they are, are checked in every batch; tokens that the net computes, such as
    `x.T`, only in the first one, and in a graph only where no random numbers are drawn for them. Embeddings in the
    graph of a SymbolBlock are not checked.

    Args:
        net: The net.

    Attributes:
        watches: Whether the net has an Embedding.
    """

    def __init__(self, net: Any) -> None:
        self._net = net
        self._holders = {
            path: block
            for path, block in blocks_by_path(net)
            if any(_is_embedding(inner) for _, inner in blocks_by_path(block))
        }
        self.watches = bool(self._holders)
        # The Embeddings that get an input unchanged, by its number; the first batch tells which.
        self._embeddings: Optional[Dict[int, Dict[str, Any]]] = None

    @contextmanager
    def watched(self, shard: Shard, inputs: Sequence[Any]) -> Iterator[None]:
        """Check a batch: the first one after it was computed inside `with`, the others before.

        Args:
            shard: Its part on the first device.
            inputs: The inputs of the whole batch, as they came.

        Raises:
            DataError: A token is outside the rows of its Embedding.
        """
        if self._embeddings is not None:
            for number, embeddings in self._embeddings.items():
                for path, block in embeddings.items():
                    _check_tokens(path, block, inputs[number])
            yield
            return
        calls: List[Tuple[str, Any, Any]] = []
        handles = [
            block.register_forward_pre_hook(_listener(path, calls))
            for path, block in self._holders.items()
            if _is_embedding(block) or is_hybridized(block)  # in a graph, hooks of its blocks do not fire (T35)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.detach()
        self._embeddings = {}
        if not calls and isinstance(self._net, gluon.HybridBlock):  # Features computes by a graph of its own
            calls = [("", self._net, shard.unpacked().inputs)]
        for path, block, array in (found for call in calls for found in _tokens_of(*call)):
            tokens = _check_tokens(path, block, array)
            if tokens.dtype.kind == "f" and (tokens != np.floor(tokens)).any():
                text = f"{path or 'the net'} (Embedding) gets tokens that hold fractions, which it cuts off"
                _warn(f"{text}. Pass int32: scale=1/255 of an ArrayLoader divides tokens of uint8 too (T181)")
            for number, one in enumerate(shard.inputs):
                if one is array:
                    self._embeddings.setdefault(number, {})[path] = block


def _is_embedding(block: Any) -> bool:
    return isinstance(block, (gluon.nn.Embedding, gluon.contrib.nn.SparseEmbedding))


def _listener(path: str, calls: List[Tuple[str, Any, Any]]) -> Any:
    def listen(block: Any, arguments: Any) -> None:
        if arrays_in(list(arguments)):  # not symbols, with which graphs are traced
            calls.append((path, block, arguments))

    listen.stays = True  # type: ignore[attr-defined]  # also where Features replaces hooks
    return listen


def _tokens_of(path: str, block: Any, arguments: Any) -> Iterator[Tuple[str, Any, Any]]:
    """Path, block and tokens of each call of an Embedding inside a call."""
    arrays = arrays_in(list(arguments))
    if _is_embedding(block):
        yield path, block, arrays[0]
        return
    found: List[Tuple[str, Any, Any]] = []
    with suppress(Exception):  # of any type: the net's code may refuse symbols, or another trace
        with autograd.pause(), mx.name.NameManager():  # keeps the counters of names, which the user's graphs use
            traced = trace(block, arguments)
        values = dict(zip((variable.name for variable in traced.inputs), arrays))
        for call in traced.calls:
            tokens = call.inputs[0] if _is_embedding(call.block) else None
            if tokens is not None and tokens.name in values:
                found.append((join_path(path, call.path), call.block, values[tokens.name]))
            elif tokens is not None and not any(map(draws, Graph.of(tokens).operators())):
                found.append((join_path(path, call.path), call.block, _computed(traced, tokens, values)))
    yield from found


def _computed(traced: Trace, symbol: Any, values: Mapping[str, Any]) -> Any:
    device = next(iter(values.values())).ctx
    names, owned = legacy(symbol).list_inputs(), traced.parameters
    given = {name: values[name] if name in values else owned[name].data(device) for name in names}
    with autograd.pause(), switches(is_numpy(symbol)):
        return legacy(symbol).eval(device, **{name: legacy(array) for name, array in given.items()})[0]


def _check_tokens(path: str, block: Any, array: Any) -> "np.ndarray":
    tokens, rows = to_host(array), layer_settings(block)["input_dim"]
    wrong = tokens[~((tokens > -1) & (tokens < rows))]
    if wrong.size:
        text = f"{path or 'the net'} (Embedding) has {rows} rows, for tokens from 0 to {rows - 1}; received"
        text = f"{text} {some_values(wrong)}, for which MXNet would take the first or the last row (T263)"
        raise DataError(f"{text}. Give the Embedding a larger input_dim, and padding a token of its own")
    return tokens


def _check_norm_channels(net: Any, shard: Shard) -> None:
    """Refuse inputs of a BatchNorm with another number of channels: MXNet reads and writes past its arrays (T101).

    A net that cannot be traced is not checked.

    Raises:
        ForwardError: A BatchNorm was built for another number of channels.
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
    except Exception:  # of any type: the net's code refuses a symbol, or shapes do not fit, which the batch will raise
        return
    for name, block in norms.items():
        built, received = block.gamma.shape[0], shapes.get(name, block.gamma.shape)[0]
        if received != built:
            path = name[: -len(".gamma")]
            where = repr(path) if path else "the net"
            text = f"{where} ({type(block).__name__}) is built for {built} channels and got {received}: MXNet would"
            text = f"{text} read and write past its arrays (T101). Make it with in_channels={received}"
            raise ForwardError(text, path, block)


def _warn(text: str) -> None:
    # approximately the line that called `fit`: the loop is a generator
    warnings.warn(text, TrapWarning, stacklevel=5)


def describe_not_finite(batches: Iterable[Any], first: int) -> str:
    """Describe the first row with NaN or infinity, or return '' if there is none.

    Args:
        batches: Batches `(x, y)`, as for `updates`.
        first: Number of the first of them in its epoch, from 1.

    >>> describe_not_finite([(np.ones((2, 3)), np.ones(2)), (np.array([[0.0], [np.inf]]), np.ones(2))], 4)
    'The inputs of batch 5 hold NaN or infinity in row 1 (from 0): repair the data'
    """
    for number, batch in enumerate(batches, first):
        for name, arrays in zip(("inputs", "labels"), unpack(batch)):
            for values in map(to_host, arrays):
                if values.dtype.kind != "f" or not values.ndim:
                    continue
                rows = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
                if rows.size:
                    more = f" and {rows.size - 1} more" if rows.size > 1 else ""
                    where = f"in row {rows[0]} (from 0){more}"
                    return f"The {name} of batch {number} hold NaN or infinity {where}: repair the data"
    return ""
