"""What the layers of a net give out and compute for inputs of some shapes, with its graph or by running it."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxkit.core.blocks import blocks_by_path, distinct, net_devices, parameters_by_path, place_of
from mxkit.core.forward_errors import explained
from mxkit.core.graphs import attributes_restored, run_as_code
from mxkit.core.replicas import is_initialized
from mxkit.core.tracing import Call, recorded_calls, trace
from mxkit.errors import ForwardError, NotInitializedError
from mxkit.nets.layer_table.costs import Shape
from mxkit.nets.layer_table.graph import Measures, Output, find_fault, measure_graph
from mxkit.nets.layer_table.strides import Stride, first_stride
from mxkit.storage.parameter_file import dtype_name
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _flatten


def measure(net: Any, inputs: Sequence[Any], shapes: Sequence[Output]) -> Measures:
    """Measure a net, without computing anything where its graph can be had.

    Args:
        net: Any block.
        inputs: What its forward pass takes; `Output`s stand for arrays that are not there.
        shapes: The arrays among them, flat.

    Raises:
        ForwardError: Shapes do not fit a block.
        NotInitializedError: The net must run to be measured, and cannot yet.

    Side effects:
        None that stays. A net that must run draws from MXNet's random generator if it does so when it predicts,
        or if the initialization of parameters is deferred.
    """
    reason: Optional[Exception] = None
    if _takes_symbols(net):
        try:
            traced = trace(net, _filled(inputs, lambda one: _placeholder()))
        except Exception as error:  # whatever its own code raises when it gets symbols
            reason = error
        else:
            try:
                return measure_graph(traced, shapes)
            except mx.MXNetError as error:
                reason = find_fault(traced, shapes) or error
            except ValueError as error:
                reason = error
    missing = next((path for path, one in parameters_by_path(net).items() if not is_initialized(one)), None)
    if missing is not None and isinstance(reason, ForwardError):
        raise reason
    if missing is not None:
        raise NotInitializedError(_must_run(net, missing, reason)) from reason
    device = net_devices(net)[0]
    arrays = _filled(inputs, lambda one: _zeros(one, device))
    return _measure_run(net, [_on(one, device) for one in arrays])


def _takes_symbols(net: Any) -> bool:
    """Whether all code of a net is meant for symbols; other code may take one and give something else."""
    return all(
        isinstance(block, gluon.HybridBlock) or type(block).forward is gluon.nn.Sequential.forward
        for _, block in blocks_by_path(net)
    )


def _must_run(net: Any, missing: str, reason: Optional[Exception]) -> str:
    if reason is None:
        plain = next(
            place_of(path, block)
            for path, block in blocks_by_path(net)
            if not isinstance(block, gluon.HybridBlock) and type(block).forward is not gluon.nn.Sequential.forward
        )
        why = f"{plain} is a plain Block, which can only be measured by running the net"
    else:
        told = (str(reason).splitlines() or [""])[0]
        why = f"the net has no graph ({type(reason).__name__}: {told}), so it can only be measured by running it"
    return (
        f"layers: {why}, and parameter {missing!r} is not initialized. Call mxkit.initialize(net, 'xavier') first, "
        "or ask for the table without shapes: mxkit.layers(net)"
    )


# by running it


def _measure_run(net: Any, inputs: Sequence[Any]) -> Measures:
    found, index = Measures(), 0
    calls = _run(net, inputs, found.shapes)
    given = _arrays(inputs)
    strides = {id(array): first_stride(array.shape) for array in given}
    counted = {id(array) for array in given}
    plain: List[Call] = []
    while index < len(calls):
        call, arguments, end = calls[index]
        inner = _measure_inside(call, arguments, strides)
        if inner is None:
            plain.append(call)
            index += 1
            continue
        outputs = _arrays(call.outputs)
        # a recurrent layer that makes its own states is traced with them as inputs, and then returns states too
        inner.bytes -= sum(one.bytes for one in inner.outputs[""][-1][len(outputs) :])
        del inner.outputs[""][-1][len(outputs) :]
        found.add(inner, call.path)
        strides.update((id(array), one.stride) for array, one in zip(outputs, inner.outputs[""][-1]))
        counted.update(map(id, outputs))
        index = end
    for call in plain:
        found.outputs[call.path].append([_output(array, strides) for array in _arrays(call.outputs)])
        new = {id(array): array for array in _arrays(call.outputs) if id(array) not in counted}
        found.bytes += sum(_output(array, strides).bytes for array in new.values())
        counted.update(new)
    return found


def _run(net: Any, inputs: Sequence[Any], shapes: Dict[int, Shape]) -> List[Tuple[Call, Tuple[Any, ...], int]]:
    """Run a net without graphs; each call with its arguments and the number of the first call after it.

    Shapes of parameters are written to `shapes`, by their ids: those whose initialization was deferred forget them.
    """
    arguments: List[Tuple[Any, ...]] = []
    ends: Dict[int, int] = {}
    open_: List[int] = []

    def begin(block: Any, values: Tuple[Any, ...]) -> None:
        if len(calls) > len(arguments):  # those of deferred initialization are no calls
            open_.append(len(arguments))
            arguments.append(values)

    def end(call: Call) -> None:
        # calls that an exception ended are still open
        while calls[open_[-1]] is not call:
            open_.pop()
        ends[open_.pop()] = len(arguments)

    blocks = list(distinct(dict(blocks_by_path(net))).values())
    # shapes and values of parameters whose initialization was deferred are put back too
    left_as_is = attributes_restored([*blocks, *parameters_by_path(net).values()])
    with left_as_is, recorded_calls(net, end) as calls, run_as_code(blocks), autograd.pause(train_mode=False):
        for block in blocks:
            block.register_forward_pre_hook(begin)  # goes with the others that `recorded_calls` takes away
        with explained(net):
            net(*inputs)
        shapes.update((id(one), tuple(one.shape)) for one in parameters_by_path(net).values() if one.shape)
    return [(call, arguments[index], ends.get(index, index + 1)) for index, call in enumerate(calls)]


def _measure_inside(call: Call, arguments: Tuple[Any, ...], strides: Dict[int, Optional[Stride]]) -> Optional[Measures]:
    """Measure a call by its graph, or return None where there is none."""
    if not _takes_symbols(call.block) or not call.outputs:
        return None
    try:
        traced = trace(call.block, arguments)
    except Exception:  # its own code may raise anything at symbols; its blocks are then looked at one by one
        return None
    try:
        return measure_graph(traced, [_output(one, strides) for one in _arrays(arguments)])
    except (mx.MXNetError, ValueError):
        return None


def _output(array: Any, strides: Dict[int, Optional[Stride]]) -> Output:
    return Output(tuple(array.shape), dtype_name(array.dtype), strides.get(id(array)))


# inputs


def _filled(inputs: Any, make: Any) -> Any:
    """`inputs` with an array or symbol in place of each `Output`."""
    if isinstance(inputs, Output):
        return make(inputs)
    return [_filled(one, make) for one in inputs] if isinstance(inputs, (list, tuple)) else inputs


def _placeholder() -> Any:
    return mx.np.empty((1,)) if mx.util.is_np_array() else mx.nd.empty((1,))


def _zeros(one: Output, device: Any) -> Any:
    return (mx.np if mx.util.is_np_array() else mx.nd).zeros(one.shape, ctx=device, dtype=one.dtype)


def _on(value: Any, device: Any) -> Any:
    if isinstance(value, list):
        return [_on(one, device) for one in value]
    return value if value is None else value.as_in_context(device)


def _arrays(values: Any) -> List[Any]:
    return [one for one in _flatten(list(values), "input")[0] if one is not None]
