"""What a net raised in its forward pass, told with the block, what that was built for and what it got.

MXNet's messages name no layer (T38). The traceback of an error holds the calls of blocks that it came through, with
their inputs: nothing is watched or waited for while all goes well. Two kinds of errors hide it, and only they have
something run again: what a hybridized block raised is sought by running that block without its graph, and what
was raised where somebody waited (T40) by running the call with a wait after each block. When memory runs out,
nothing is run again: whichever block asks for it next would be blamed (T135).
"""

from contextlib import contextmanager, suppress
from functools import partial
import json
import re
import traceback
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import arrays_in
from mxkit.core.blocks import blocks_by_path, own_parameters, place_of, unfit_inputs
from mxkit.core.device import describe_batch, is_gpu
from mxkit.core.graphs import attributes_restored, hooks_replaced, is_hybridized, run_as_code, traced_graph
from mxkit.core.layer_faults import layer_fault
from mxkit.core.replicas import is_deferred, values_of
from mxkit.core.statistics import kept_statistics
from mxkit.errors import ForwardError, MxkitError
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

_WAITS = ("asnumpy", "wait_to_read", "waitall")
_OPERATOR = re.compile(r"Error in operator ([^\s:]+):")
_CHECK = re.compile(r"Check failed: .*?(?:\(\S+ vs\. \S+\) )?: |(?=Shape inconsistent)")
# of CUDA and the pool of a GPU's memory; of cuDNN and cuBLAS; of the CPU's
_MEMORY = re.compile(r"out of memory|CU(DNN|BLAS)_STATUS_ALLOC_FAILED|Failed to allocate CPU Memory|std::bad_alloc")
_DTYPES = re.compile(r"requires uniform type|Incompatible attr in node.*expected \w")


class _Call(NamedTuple):
    """A call of a block of the net: its path, '' for the net itself, and what it was called with."""

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
    net: Any, again: Optional[Callable[[], Any]] = None, batch: Optional[Callable[[], Any]] = None
) -> Iterator[None]:
    """Let what a block of `net` raises inside a `with` name the block, at no cost while all goes well.

    Args:
        net: Any block. Its own calls and those of the blocks inside it are known.
        again: As for `explain_forward_error`.
        batch: As for `explain_forward_error`.

    Raises:
        ForwardError: A block raised, or memory ran out; the error is chained. What was raised elsewhere, mxkit's own
            errors, and what is no `Exception` (an interrupt) pass as they are.

    >>> net = gluon.nn.HybridSequential(); net.add(gluon.nn.Conv2D(2, 5, in_channels=1)); net.initialize()
    >>> with explained(net):
    ...     net(mx.nd.ones((4, 5)))
    Traceback (most recent call last):
    mxkit.errors.ForwardError: '0' (Conv2D) reads 4 axes (NCHW) and got shape (4, 5): reshape what comes before it
    """
    try:
        yield
    except MxkitError:
        raise
    except Exception as error:
        found = explain_forward_error(net, error, again, batch)
        if found is None:
            raise
        raise found from error


def explain_forward_error(
    net: Any,
    error: Exception,
    again: Optional[Callable[[], Any]] = None,
    batch: Optional[Callable[[], Any]] = None,
) -> Optional[ForwardError]:
    """Find the block of `net` that raised `error`, and say what it was built for and what it got.

    Args:
        net: Any block.
        error: What was raised, with its traceback.
        again: Runs what raised once more. It is called where MXNet raised at a wait, which tells no place.
            None can place such an error only if the wait stands in the net itself.
        batch: Returns the batch in hand, or None before the first; the error for lack of memory names it.

    Returns:
        The error to raise `from error`, or None: no block of the net raised it. For lack of memory no block is named.

    Side effects:
        A hybridized block that raised, or `again`, is run once more, in the training mode that is set, outside of
        any recording, without the user's hooks. Attributes of the blocks and parameters whose initialization is
        deferred are put back; numbers that it drew from the random generators are gone.
    """
    memory = out_of_memory(net, error, batch)
    if memory:
        return ForwardError(memory, "", net)
    paths: Dict[int, str] = {}
    for path, block in blocks_by_path(net):
        paths.setdefault(id(block), path)
    calls = _calls(error, paths)
    graph = next((call for call in calls if _is_graph(call)), None)
    if _came_late(error):
        again = again or (partial(calls[0].block, *calls[0].inputs) if calls else None)
        late = None if again is None else _error_of(again, net)
        error, calls = late or error, [] if late is None else _calls(late, paths)
    elif graph is not None:
        eager = _error_of(partial(graph.block, *graph.inputs), graph.block)
        if eager is None:
            return _only_hybridized(graph, calls[-1], error, paths)
        error, calls = eager, _calls(eager, paths)
    return _told(calls[-1], _phrase(calls[-1], error)) if calls else None


def out_of_memory(net: Any, error: Exception, batch: Optional[Callable[[], Any]] = None) -> str:
    """Say where memory ran out and what helps, if that is what `error` tells of; else ''.

    Args:
        net: Whose devices are named.
        error: Of any kind.
        batch: As for `explain_forward_error`.

    Side effects:
        MXNet's queue is run to its end, where each array would raise the same error once more.
    """
    of_mxnet = isinstance(error, mx.MXNetError) and _MEMORY.search(str(error))
    if not of_mxnet and not isinstance(error, MemoryError):  # NumPy's, of what is read from MXNet
        return ""
    with suppress(mx.MXNetError):
        mx.nd.waitall()
    where = "the CPU"
    ways = "a smaller batch (accumulate= keeps the update what it is), smaller images or a hybridized net"
    if re.search("cuda|cudnn|cublas", str(error), re.IGNORECASE):
        devices = {device: None for one in _filled(net.collect_params()) for device in one.list_ctx()}
        where = ", ".join(str(device) for device in devices if is_gpu(device)) or "the GPU"
        ways += ", amp='float16', or end what else nvidia-smi shows there"
    held = None if batch is None else batch()
    told = "" if held is None else f", batch {describe_batch(held)}"
    return f"out of memory on {where}{told} (in this batch or one shortly before): {_brief(error)}. Try {ways}"


def _told(call: _Call, phrase: str) -> ForwardError:
    return ForwardError(f"{call.place}{phrase}", call.path, call.block)


# finding the block


def _frames(error: Exception) -> List[Any]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _calls(error: Exception, paths: Dict[int, str]) -> List[_Call]:
    """Calls of the net's blocks that an error came through, the outermost first."""
    inside = [frame.f_locals for frame in _frames(error) if frame.f_code is gluon.Block.__call__.__code__]
    return [_Call(paths[id(it["self"])], it["self"], it["args"]) for it in inside if id(it["self"]) in paths]


def _came_late(error: Exception) -> bool:
    """Whether this was raised at a wait, which may stand far from the operator that failed (T40)."""
    return any(frame.f_code.co_name in _WAITS for frame in _frames(error))


def _of_mxnet(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).split(".")[0] == "mxnet"


def _is_graph(call: _Call) -> bool:
    return is_hybridized(call.block) and bool(call.arrays)


def _error_of(call: Callable[[], Any], net: Any) -> Optional[Exception]:
    with kept_statistics(net), _block_by_block(net), autograd.pause(train_mode=autograd.is_training()):
        try:
            call()
        except Exception as error:
            return error
    return None


@contextmanager
def _block_by_block(net: Any) -> Iterator[None]:
    """Have a net run block by block: no graphs, none of the user's hooks, and a wait after each block."""
    blocks = [block for _, block in blocks_by_path(net)]
    deferred = [parameter for parameter in net.collect_params().values() if is_deferred(parameter)]
    no_hooks_but_wait = hooks_replaced(net, lambda path, block: (None, _wait))
    with attributes_restored([*blocks, *deferred]), run_as_code(blocks), no_hooks_but_wait:
        yield


def _wait(block: Any, inputs: Any, outputs: Any) -> None:
    for array in arrays_in(outputs):
        array.wait_to_read()


# saying what is wrong


def _phrase(call: _Call, error: Exception) -> str:
    frames = _frames(error)
    if not isinstance(error, mx.MXNetError) and frames and not _of_mxnet(frames[-1]):
        return f": {type(error).__name__}: {error}"
    if isinstance(error, TypeError) and frames and frames[-1].f_globals.get("__name__") == "mxnet.gluon.block":
        wrong = _wrong_count(call)
        if wrong:
            return wrong
    return (
        _wrong_kind(call)
        or _wrong_device(call, error)
        or _wrong_dtype(call, error)
        or layer_fault(call.block, call.inputs)
        or (_operator(call, error) if isinstance(call.block, gluon.SymbolBlock) else "")
        or f" got {_described(call.inputs)}: {_brief(error)}"
    )


def _wrong_count(call: _Call) -> str:
    taken = unfit_inputs(call.block, call.inputs)
    if taken is None:
        return ""
    way = "" if call.path else ". A batch of two inputs is ((x1, x2), y)"
    names = ", ".join(one.name for one in taken)
    return f" was called with {_count(call.inputs)}, and takes {_count(taken)}: {names}{way}"


def _count(inputs: Sequence[Any]) -> str:
    return f"{len(inputs)} input{'s' if len(inputs) > 1 else ''}"


def _wrong_kind(call: _Call) -> str:
    if any(isinstance(value, (np.ndarray, np.generic)) for value in call.inputs):
        return " got a NumPy array, and blocks take NDArrays: mx.nd.array(x, dtype=x.dtype)"
    return ""


def _filled(parameters: Any) -> List[Any]:
    return [one for one in parameters.values() if values_of(one)]


def _wrong_device(call: _Call, error: Exception) -> str:
    if "context" not in str(error):
        return ""
    found = sorted({str(array.context) for array in call.arrays})
    lives = sorted({str(device) for one in _filled(call.block.collect_params()) for device in one.list_ctx()})
    if len(found) > 1:
        return f" got arrays on several devices, {', '.join(found)}: x.as_in_context(mx.{found[0]})"
    if found and lives and found[0] not in lives:
        way = f"x.as_in_context(mx.{lives[0]})"
        return f" got its input on {found[0]}, and its parameters live on {', '.join(lives)}: {way}"
    return ""


def _wrong_dtype(call: _Call, error: Exception) -> str:
    if not _DTYPES.search(str(error)):
        return ""
    own = {np.dtype(one.dtype).name for one in _filled(own_parameters(call.block))}
    got = {np.dtype(array.dtype).name for array in call.arrays}
    if len(own) != 1 or got == own:
        return ""
    kept = own.pop()
    return (
        f" computes in {kept}, as its parameters are, and got {_described(call.inputs)}. Cast the input, "
        f"x.astype('{kept}'), or the net, net.cast(...)"
    )


def _only_hybridized(graph: _Call, innermost: _Call, error: Exception, paths: Dict[int, str]) -> ForwardError:
    """Tell of what is raised with a graph and not without it, and of the block that it stems from."""
    if any(frame.f_code is gluon.HybridBlock._get_graph.__code__ for frame in _frames(error)):
        return _told(
            innermost,
            f" cannot be hybridized: {type(error).__name__}: {error}. In a graph hybrid_forward gets Symbols, which "
            "have no shape and no values (T39). Write it with F's operators, or go without a graph: hybridize(False)",
        )
    misplaced = _wrong_device(graph, error)
    if misplaced:
        return _told(graph, misplaced)
    operator = _operator(graph, error)
    name = _OPERATOR.search(str(error))
    maker, longest = graph, ""
    for _, block in blocks_by_path(graph.block):
        if name and len(block.prefix) > len(longest) and name[1].startswith(block.prefix):
            maker, longest = _Call(paths[id(block)], block, ()), block.prefix
    way = "net.hybridize() anew drops a graph that is out of date (T36), hybridize(False) goes without"
    if "(elemwise_" in operator:
        way = "In a graph + - * / do not broadcast: use F.broadcast_add and its like"
    got = operator or f"; it got {_described(graph.inputs)}: {_brief(error)}"
    return _told(maker, f" raises only because it is hybridized{got}. {way}")


def _operator(call: _Call, error: Exception) -> str:
    """Tell of the operator of a graph that raised, and of the shapes it got, where MXNet named it."""
    named = _OPERATOR.search(str(error))
    graph = traced_graph(call.block)
    if not named or not graph:
        return ""
    internals = graph[1].get_internals()
    output = next((one for one in internals.list_outputs() if one.startswith(f"{named[1]}_output")), None)
    if output is None:
        return f": operator {named[1]!r} got {_described(call.inputs)}: {_brief(error)}"
    kind = json.loads(internals[output].tojson())["nodes"][-1]["op"]
    sources = internals[output].get_children()
    shapes = {symbol.name: array.shape for symbol, array in zip(graph[0], call.arrays)}
    shapes.update({one.name: one.shape for one in _filled(call.block.collect_params())})
    known = {name: shape for name, shape in shapes.items() if name in sources.list_inputs()}
    try:
        found = sources.infer_shape_partial(**known)[1]
    except mx.MXNetError:
        found = None
    got = ", ".join(f"{name} {shape}" for name, shape in zip(sources.list_outputs(), found or []))
    return f": operator {named[1]!r} ({kind}) got {got or _described(call.inputs)}: {_brief(error)}"


def _described(inputs: Any) -> str:
    if isinstance(inputs, (list, tuple)):
        return ", ".join(filter(None, map(_described, inputs))) or "nothing"
    if inputs is None:
        return ""
    if isinstance(inputs, mx.nd.NDArray):
        return f"{inputs.shape} {np.dtype(inputs.dtype).name}"
    return type(inputs).__name__


def _brief(error: Exception) -> str:
    """What MXNet says, without the place in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if _CHECK.search(line)] or lines or [type(error).__name__]
    return _CHECK.split(telling[-1], maxsplit=1)[-1]
