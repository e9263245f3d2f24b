"""Names the block that failed in a forward pass, with what it was built for and what it received.

MXNet's messages name no layer (T38). The traceback of an error contains the calls of blocks with their inputs, so that
a forward pass without an error costs nothing. Two kinds of errors need a second run: an error of a hybridized block
(the block runs without its graph), and an asynchronous error, raised at a wait (the call runs with a wait after each
block, T40). An error for lack of memory is not repeated: it would blame the block that asks for memory next (T135).
"""

from contextlib import contextmanager, suppress
from functools import partial
import re
import traceback
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from mxkit.core.arrays import arrays_in, is_numpy
from mxkit.core.arrays import call as call_of_kind
from mxkit.core.blocks import blocks_by_path, first_paths, layer_settings, operator_name, own_parameters, place_of
from mxkit.core.device import describe_batch, is_gpu
from mxkit.core.graph import Graph
from mxkit.core.graphs import attributes_restored, hooks_replaced, is_hybridized, run_as_code, traced_graph
from mxkit.core.replicas import holds_numpy, is_deferred, values_of
from mxkit.core.statistics import kept_statistics
from mxkit.errors import ForwardError, MxkitError, error_text
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import contrib, nn, rnn
from mxnet.gluon.nn.conv_layers import _Conv
from mxnet.gluon.rnn.rnn_layer import _RNNLayer
import numpy as np

_WAITS = ("asnumpy", "wait_to_read", "waitall")
_OPERATOR = re.compile(r"Error in operator ([^\s:]+):")
_CHECK = re.compile(r"Check failed: .*?(?:\(\S+ vs\. \S+\) )?: |(?=Shape inconsistent)")
# Messages of CUDA and MXNet's pool of GPU memory; of cuDNN and cuBLAS; of the CPU
_MEMORY = re.compile(r"out of memory|CU(DNN|BLAS)_STATUS_ALLOC_FAILED|Failed to allocate CPU Memory|std::bad_alloc")
_DTYPES = re.compile(r"requires uniform type|Incompatible attr in node.*expected \w")


class _Failed(NamedTuple):
    """A call of a block of the net: its path, '' for the net itself, the block, and its inputs."""

    path: str
    block: Any
    inputs: Tuple[Any, ...]

    @property
    def place(self) -> str:
        return place_of(self.path, self.block)

    @property
    def arrays(self) -> List[Any]:
        return arrays_in(self.inputs)


@contextmanager
def explained(
    net: Any, rerun: Optional[Callable[[], Any]] = None, batch: Optional[Callable[[], Any]] = None
) -> Iterator[None]:
    """Name the block of `net` in errors inside a `with`; without an error this costs nothing.

    Args:
        net: Any block; calls of the blocks inside it are recognised too.
        rerun: As for `explain_forward_error`.
        batch: As for `explain_forward_error`.

    Raises:
        ForwardError: A block raised an error, or memory ran out; the error is chained. Errors from elsewhere, mxkit's
            own errors, and interrupts do not change.

    >>> net = gluon.nn.HybridSequential(); net.add(gluon.nn.Conv2D(2, 5, in_channels=1)); net.initialize()
    >>> with explained(net):
    ...     net(mx.nd.ones((4, 5)))
    Traceback (most recent call last):
    mxkit.errors.ForwardError: '0' (Conv2D) reads 4 axes (NCHW) and got shape (4, 5): reshape its input
    """
    try:
        yield
    except MxkitError:
        raise
    except Exception as error:
        explanation = explain_forward_error(net, error, rerun, batch)
        if explanation is None:
            raise
        raise explanation from error


def explain_forward_error(
    net: Any, error: Exception, rerun: Optional[Callable[[], Any]] = None, batch: Optional[Callable[[], Any]] = None
) -> Optional[ForwardError]:
    """Find the block of `net` that raised `error`; say what it was built for and what it received.

    Args:
        net: Any block.
        error: The error with its traceback.
        rerun: Repeats the forward pass, to locate an error that MXNet raised at a wait. None can locate such an
            error only if the net itself waited.
        batch: Returns the current batch, or None before the first; the error for lack of memory describes it.

    Returns:
        The error to raise `from error`, or None if no block of the net raised it. The error for lack of memory names
        no block.

    Side effects:
        Runs a hybridized block that raised, or `rerun`, once more: in the current training mode, without recording,
        without the user's hooks. Attributes of the blocks and parameters with deferred initialization are restored;
        numbers that the run drew from the random generators are lost.
    """
    memory = out_of_memory(net, error, batch)
    if memory:
        return ForwardError(memory, "", net)
    paths = first_paths(dict(blocks_by_path(net)))
    calls = _calls(error, paths)
    graph = next((call for call in calls if is_hybridized(call.block) and call.arrays), None)
    if any(frame.f_code.co_name in _WAITS for frame in _frames(error)):  # MXNet raised an asynchronous error (T40)
        rerun = rerun or (partial(call_of_kind, calls[0].block, calls[0].inputs) if calls else None)
        repeated = None if rerun is None else _error_of(rerun, net)
        error, calls = repeated or error, [] if repeated is None else _calls(repeated, paths)
    elif graph is not None:
        eager = _error_of(partial(call_of_kind, graph.block, graph.inputs), graph.block)
        if eager is None:
            return _only_hybridized(graph, calls[-1], error, paths)
        error, calls = eager, _calls(eager, paths)
    return _error_at(calls[-1], _phrase(calls[-1], error)) if calls else None


def out_of_memory(net: Any, error: Exception, batch: Optional[Callable[[], Any]] = None) -> str:
    """Say where memory ran out and what helps, or return '' for another error.

    Args:
        net: The net; the text names its devices.
        error: Any error.
        batch: As for `explain_forward_error`.

    Side effects:
        Waits for MXNet's queue, because every queued array would raise the same error again.
    """
    of_mxnet = isinstance(error, mx.MXNetError) and _MEMORY.search(str(error))
    if not of_mxnet and not isinstance(error, MemoryError):  # NumPy's, for a copy of an NDArray
        return ""
    with suppress(mx.MXNetError):
        mx.nd.waitall()
    where = "the CPU"
    ways = "a smaller batch (accumulate= keeps the update what it is), smaller images or a hybridized net"
    if re.search("cuda|cudnn|cublas", str(error), re.IGNORECASE):
        devices = {device: None for one in _filled(net.collect_params()) for device in one.list_ctx()}
        where = ", ".join(str(device) for device in devices if is_gpu(device)) or "the GPU"
        ways += ", amp='float16', or end what else nvidia-smi shows there"
    current = None if batch is None else batch()
    described = "" if current is None else f", batch {describe_batch(current)}"
    return f"out of memory on {where}{described} (in this batch or one shortly before): {brief(error)}. Try {ways}"


def _error_at(call: _Failed, phrase: str) -> ForwardError:
    return ForwardError(f"{call.place}{phrase}", call.path, call.block)


def _frames(error: Exception) -> List[Any]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _calls(error: Exception, paths: Dict[int, str]) -> List[_Failed]:
    """Calls of the net's blocks in the traceback of an error, the outermost first."""
    calls = [frame.f_locals for frame in _frames(error) if frame.f_code is gluon.Block.__call__.__code__]
    return [_Failed(paths[id(call["self"])], call["self"], call["args"]) for call in calls if id(call["self"]) in paths]


def _error_of(call: Callable[[], Any], net: Any) -> Optional[Exception]:
    with kept_statistics(net), _block_by_block(net), autograd.pause(train_mode=autograd.is_training()):
        try:
            call()
        except Exception as error:
            return error
    return None


@contextmanager
def _block_by_block(net: Any) -> Iterator[None]:
    """Let a net run block by block: without graphs, without the user's hooks, and with a wait after each block."""
    blocks = [block for _, block in blocks_by_path(net)]
    deferred = [parameter for parameter in net.collect_params().values() if is_deferred(parameter)]
    hooks = hooks_replaced(net, lambda path, block: (None, _wait))
    with attributes_restored([*blocks, *deferred]), run_as_code(blocks), hooks:
        yield


def _wait(block: Any, inputs: Any, outputs: Any) -> None:
    for array in arrays_in(outputs):
        array.wait_to_read()


def _phrase(call: _Failed, error: Exception) -> str:
    frames = _frames(error)
    module = str(frames[-1].f_globals.get("__name__")) if frames else "mxnet"
    if not isinstance(error, mx.MXNetError) and module.split(".")[0] != "mxnet":
        return f": {error_text(error)}"
    if any(isinstance(value, (np.ndarray, np.generic)) for value in call.inputs):
        numpy = any(map(holds_numpy, call.block.collect_params().values()))
        way = "arrays of mx.np: mx.np.array" if numpy else "NDArrays: mx.nd.array"
        return f" got a NumPy array, and blocks take {way}(x, dtype=x.dtype)"
    return (
        _wrong_device(call, error)
        or _wrong_dtype(call, error)
        or layer_fault(call.block, call.inputs)
        or (_operator(call, error) if isinstance(call.block, gluon.SymbolBlock) else "")
        or f" got {_described(call.inputs)}: {brief(error)}"
    )


def _filled(parameters: Any) -> List[Any]:
    return [parameter for parameter in parameters.values() if values_of(parameter)]


def _wrong_device(call: _Failed, error: Exception) -> str:
    if "context" not in str(error):
        return ""
    inputs = sorted({str(array.ctx) for array in call.arrays})
    own = sorted({str(device) for one in _filled(call.block.collect_params()) for device in one.list_ctx()})
    if len(inputs) > 1:
        return f" got arrays on several devices, {', '.join(inputs)}: x.as_in_context(mx.{inputs[0]})"
    if inputs and own and inputs[0] not in own:
        solution = f"x.as_in_context(mx.{own[0]})"
        return f" got its input on {inputs[0]}, and its parameters live on {', '.join(own)}: {solution}"
    return ""


def _wrong_dtype(call: _Failed, error: Exception) -> str:
    if not _DTYPES.search(str(error)):
        return ""
    own = {np.dtype(one.dtype).name for one in _filled(own_parameters(call.block))}
    got = {np.dtype(array.dtype).name for array in call.arrays}
    if len(own) != 1 or got == own:
        return ""
    (dtype,) = own
    return (
        f" computes in {dtype}, as its parameters are, and got {_described(call.inputs)}. Cast the input, "
        f"x.astype('{dtype}'), or the net, net.cast(...)"
    )


def _only_hybridized(graph: _Failed, innermost: _Failed, error: Exception, paths: Dict[int, str]) -> ForwardError:
    """Explain an error that only the graph of a hybridized block raises, and name the block that made the operator."""
    if any(frame.f_code.co_name == "_get_graph" for frame in _frames(error)):
        return _error_at(
            innermost,
            f" cannot be hybridized: {type(error).__name__}: {error}. In a graph hybrid_forward gets Symbols, which "
            "have no shape and no values (T39). Write it with F's operators, or run without a graph: hybridize(False)",
        )
    misplaced = _wrong_device(graph, error)
    if misplaced:
        return _error_at(graph, misplaced)
    operator = _operator(graph, error)
    name = _OPERATOR.search(str(error))
    maker, longest = graph, ""
    for _, block in blocks_by_path(graph.block):
        if name and len(block.prefix) > len(longest) and name[1].startswith(block.prefix):
            maker, longest = _Failed(paths[id(block)], block, ()), block.prefix
    solution = "net.hybridize() again drops an outdated graph (T36), hybridize(False) runs without a graph"
    if "(elemwise_" in operator:
        solution = "In a graph + - * / do not broadcast: use F.broadcast_add and the like"
    got = operator or f"; it got {_described(graph.inputs)}: {brief(error)}"
    return _error_at(maker, f" raises only because it is hybridized{got}. {solution}")


def _operator(call: _Failed, error: Exception) -> str:
    """Describe the operator that MXNet named in an error of a graph."""
    named, graph = _OPERATOR.search(str(error)), traced_graph(call.block)
    if not named or not graph:
        return ""
    kind = {node.name: node.operator for node in Graph.of(graph[1]).nodes}.get(named[1], "an operator")
    return f": operator {named[1]!r} ({kind}) got {_described(call.inputs)}: {brief(error)}"


def _described(inputs: Any) -> str:
    if isinstance(inputs, (list, tuple)):
        return ", ".join(filter(None, map(_described, inputs))) or "nothing"
    if inputs is None:
        return ""
    if isinstance(inputs, mx.nd.NDArray):
        return f"{inputs.shape} {np.dtype(inputs.dtype).name}"
    return type(inputs).__name__


def brief(error: Exception) -> str:
    """MXNet's message without the place in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    checks = [line for line in lines if _CHECK.search(line)] or lines or [type(error).__name__]
    return _CHECK.split(checks[-1], maxsplit=1)[-1]


def layer_fault(block: Any, inputs: Tuple[Any, ...]) -> str:
    """Say how the inputs of a layer differ from those it was built for.

    Args:
        block: Any block.
        inputs: Arguments of its call.

    Returns:
        The rest of a sentence that begins with the layer, with the solution; '' if its inputs fit, or for a block
        of another class.

    >>> layer = nn.Dense(2, in_units=3)
    >>> layer_fault(layer, (mx.nd.ones((4, 5)),))[:67]
    ' is built for 3 inputs per sample and got shape (4, 5), which has 5'
    >>> layer_fault(layer, (mx.nd.ones((4, 3)),))
    ''
    """
    if not inputs or not isinstance(inputs[0], mx.nd.NDArray):
        return ""
    if is_numpy(inputs[0]) and isinstance(block, WITHOUT_NUMPY) and type(block).__module__.startswith("mxnet."):
        return (
            f" has no version for mx.np: MXNet {mx.__version__} wrote it with operators of mx.nd only. Write a block "
            "of your own in its place, with the operators of F.np and F.npx, or use a net of mx.nd"
        )
    layout = getattr(block, "_layout", "") or layer_settings(block).get("layout") or ""
    if layout and len(inputs[0].shape) != len(layout):
        return f" reads {len(layout)} axes ({layout}) and got shape {inputs[0].shape}: reshape its input"
    for kind, fault in _FAULTS:
        if isinstance(block, kind):
            return fault(block, inputs[0])
    return ""


def _wrong_size(x: Any, what: str, argument: str, parameter: Any, got: int) -> str:
    """Say that the last axis of a layer's parameter, if its size is known, has another size than the input."""
    built = max(0, parameter.shape[-1]) if parameter is not None and parameter.shape else 0
    if built in (0, got):
        return ""
    way = f"Give it {argument}={got}, or hand it {built}"
    return f" is built for {built} {what} and got shape {x.shape}, which has {got}. {way}"


def _dense(layer: Any, x: Any) -> str:
    where, got = ("per sample", np.prod(x.shape[1:])) if layer._flatten else ("on the last axis", x.shape[-1])
    return _wrong_size(x, f"inputs {where}", "in_units", layer.weight, int(got))


def _convolution(layer: Any, x: Any) -> str:
    made, got = ("mx.np" if numpy else "mx.nd" for numpy in (layer._op_name.islower(), is_numpy(x)))
    if made != got:
        return (
            f" was made for {made} and got arrays of {got}: a convolution is bound to the switches under which it was "
            "made. Call npx.set_np() (or npx.reset_np()) before the net is made"
        )
    layout, transposed = layer._kwargs["layout"], operator_name(layer) == "Deconvolution"
    axis = layout.find("C")
    built = layer.weight.shape[layout.find("N") if transposed else axis]
    built *= 1 if transposed else layer._kwargs["num_group"]
    if built < 1 or built == x.shape[axis]:
        return ""
    way, axes = f"Give it in_channels={x.shape[axis]}, or hand it {built}", list(range(len(layout)))
    if axis == 1 and x.shape[-1] == built:  # T13
        way = f"The channels seem to be last: x.transpose({(0, axes[-1], *axes[1:-1])})"
    return f" is built for {built} channels ({layout}) and got shape {x.shape}, which has {x.shape[axis]}. {way}"


def _norm(layer: Any, x: Any) -> str:
    if layer._axis >= len(x.shape):
        return ""
    return _wrong_size(x, f"channels on axis {layer._axis}", "in_channels", layer.gamma, x.shape[layer._axis])


def _recurrent(layer: Any, x: Any) -> str:
    where = f"features on the last axis ({layer._layout})"
    return _wrong_size(x, where, "input_size", layer.l0_i2h_weight, x.shape[2])


WITHOUT_NUMPY = (rnn.RecurrentCell, contrib.nn.Concurrent)
_FAULTS: Tuple[Tuple[Any, Callable[[Any, Any], str]], ...] = (
    (nn.Dense, _dense),
    (_Conv, _convolution),
    ((nn.LayerNorm, nn.InstanceNorm), _norm),
    (_RNNLayer, _recurrent),
)
