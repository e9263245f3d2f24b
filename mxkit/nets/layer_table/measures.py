"""Measures the outputs and the arithmetic of a net's layers, by its graph or by running it."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
from mxkit.core.blocks import blocks_by_path, distinct, is_numpy_net, net_devices, parameters_by_path, place_of
from mxkit.core.forward_errors import explained
from mxkit.core.graphs import attributes_restored, run_as_code
from mxkit.core.replicas import is_initialized
from mxkit.core.tracing import BlockCall, recorded_calls, trace
from mxkit.errors import ForwardError, NotInitializedError
from mxkit.nets.layer_table.costs import Shape, Stride, first_stride
from mxkit.nets.layer_table.traced_layers import Measures, Output, find_fault, measure_graph
from mxkit.storage.params_format import dtype_name
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _flatten


def measure(net: Any, inputs: Sequence[Any], shapes: Sequence[Output]) -> Measures:
    """Measure a net; a net that has a graph computes nothing.

    Args:
        net: Any block.
        inputs: The inputs of its forward pass; an `Output` stands for an array of its shape. Arrays are converted to
            the kind of the net.
        shapes: Shapes and dtypes of the inputs, flat.

    Raises:
        ForwardError: Shapes do not fit a block.
        NotInitializedError: The net must run to be measured, and has parameters without values.

    Side effects:
        The net is left as it was. A net that must run draws from MXNet's random generator if it does so in predict
        mode, or if the initialization of parameters is deferred.
    """
    numpy = is_numpy_net(net)
    with switches(numpy):
        return _measure(net, of_kind(inputs, numpy), shapes)


def _measure(net: Any, inputs: Sequence[Any], shapes: Sequence[Output]) -> Measures:
    reason: Optional[Exception] = None
    if _takes_symbols(net):
        try:
            traced = trace(net, _each(inputs, lambda one: _zeros((1,)) if isinstance(one, Output) else one))
        except Exception as error:  # of any kind: the net's own code got a symbol
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

    def array(one: Any) -> Any:
        if isinstance(one, Output):
            return _zeros(one.shape, device, one.dtype)
        return of_kind(legacy(one).as_in_context(device), is_numpy(one))

    return _measure_run(net, _each(inputs, array))


def _takes_symbols(net: Any) -> bool:
    """Return True if all code of a net is written for symbols; other code may accept a symbol and compute nonsense."""
    return not any(map(_is_plain, dict(blocks_by_path(net)).values()))


def _is_plain(block: Any) -> bool:
    return not isinstance(block, gluon.HybridBlock) and type(block).forward is not gluon.nn.Sequential.forward


def _must_run(net: Any, missing: str, reason: Optional[Exception]) -> str:
    if reason is None:
        plain = next(place_of(path, block) for path, block in blocks_by_path(net) if _is_plain(block))
        why = f"{plain} is a plain Block, which can only be measured by running the net"
    else:
        line = (str(reason).splitlines() or [""])[0]
        why = f"the net has no graph ({type(reason).__name__}: {line}), so it can only be measured by running it"
    return (
        f"layers: {why}, and parameter {missing!r} is not initialized. Call mxkit.initialize(net, 'xavier') first, "
        "or ask for the table without shapes: mxkit.layers(net)"
    )


def _measure_run(net: Any, inputs: Sequence[Any]) -> Measures:
    measures, index = Measures(), 0
    calls = _run(net, inputs, measures.shapes)
    strides = {id(array): first_stride(array.shape) for array in _arrays(inputs)}
    counted = set(strides)
    plain: List[BlockCall] = []
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
        measures.add(inner, call.path)
        strides.update((id(array), one.stride) for array, one in zip(outputs, inner.outputs[""][-1]))
        counted.update(map(id, outputs))
        index = end
    for call in plain:
        measures.outputs[call.path].append([_output(array, strides) for array in _arrays(call.outputs)])
        new = {id(array): array for array in _arrays(call.outputs) if id(array) not in counted}
        measures.bytes += sum(_output(array, strides).bytes for array in new.values())
        counted.update(new)
    return measures


def _run(net: Any, inputs: Sequence[Any], shapes: Dict[int, Shape]) -> List[Tuple[BlockCall, Tuple[Any, ...], int]]:
    """Run a net without graphs; return each call with its arguments and the number of the first call after it.

    The shapes of parameters are written to `shapes`, because a deferred parameter does not keep the shape of this run.
    """
    arguments: List[Tuple[Any, ...]] = []
    ends: Dict[int, int] = {}
    open_: List[int] = []

    def begin(block: Any, values: Tuple[Any, ...]) -> None:
        if len(calls) > len(arguments):  # deferred initialization calls blocks too, which is not recorded
            open_.append(len(arguments))
            arguments.append(values)

    def end(call: BlockCall) -> None:
        # an exception that the net caught leaves calls open
        while calls[open_[-1]] is not call:
            open_.pop()
        ends[open_.pop()] = len(arguments)

    blocks = list(distinct(dict(blocks_by_path(net))).values())
    # deferred parameters lose the shapes and values that they get here
    restored = attributes_restored([*blocks, *parameters_by_path(net).values()])
    with restored, recorded_calls(net, end) as calls, run_as_code(blocks), autograd.pause(train_mode=False):
        for block in blocks:
            block.register_forward_pre_hook(begin)  # `recorded_calls` removes it with its own hooks
        with explained(net):
            net(*inputs)
        shapes.update((id(one), tuple(one.shape)) for one in parameters_by_path(net).values() if one.shape)
    return [(call, arguments[index], ends.get(index, index + 1)) for index, call in enumerate(calls)]


def _measure_inside(
    call: BlockCall, arguments: Tuple[Any, ...], strides: Dict[int, Optional[Stride]]
) -> Optional[Measures]:
    """Measure a call by its graph; return None if it has none."""
    if not _takes_symbols(call.block) or not call.outputs:
        return None
    try:
        traced = trace(call.block, arguments)
    except Exception:  # of any kind: its own code got a symbol. The blocks inside it are then measured one by one
        return None
    try:
        return measure_graph(traced, [_output(one, strides) for one in _arrays(arguments)])
    except (mx.MXNetError, ValueError):
        return None


def _output(array: Any, strides: Dict[int, Optional[Stride]]) -> Output:
    return Output(tuple(array.shape), dtype_name(array.dtype), strides.get(id(array)))


def _each(inputs: Any, function: Any) -> Any:
    """Apply `function` to each array and `Output` of nested lists; None stays."""
    if isinstance(inputs, (list, tuple)) and not isinstance(inputs, Output):
        return [_each(one, function) for one in inputs]
    return None if inputs is None else function(inputs)


def _zeros(shape: Shape, device: Any = None, dtype: str = "float32") -> Any:
    return (mx.np if mx.util.is_np_array() else mx.nd).zeros(shape, ctx=device, dtype=dtype)


def _arrays(values: Any) -> List[Any]:
    return [one for one in _flatten(list(values), "input")[0] if one is not None]
