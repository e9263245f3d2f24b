"""Computes every step of a net with MXNet, in prediction and in training."""

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

from mxkit.core.arrays import legacy, switches
from mxkit.core.replicas import first_value, is_trainable
from mxkit.exporting.summands import Draw, summands
from mxkit.exporting.to_torch.net_steps import Entry, Program, as_lists, flat
import mxnet as mx
import numpy as np

_FLOATS = (np.float32, np.float64)


class Computed(NamedTuple):
    """Result of `computed`.

    Attributes:
        values: Arrays by their entries.
        gradients: Gradients by the Parameters' ids, after a backward pass.
        heads: Gradients of the outputs, from which the backward pass began.
        after: Values of all Parameters after the forward pass, by their ids.
    """

    values: Dict[Entry, Any]
    gradients: Dict[int, Any]
    after: Dict[int, Any]
    heads: List[Any]


def computed(program: Program, inputs: Sequence[Any], train: bool = False, wide: bool = False) -> Computed:
    """Compute every entry in MXNet.

    Args:
        program: The program.
        inputs: Arguments as NumPy's arrays, in nested lists.
        train: Whether to compute in training mode, with a backward pass.
        wide: Whether to compute in double precision.
    """
    own = {program.names[entry]: parameter for entry, parameter in program.parameters.items()}
    with switches(program.numpy):
        arrays = _arrays(program, own, inputs, wide)
        # no variable is an output: beside one, oneDNN's backward pass of Deconvolution fails
        kept = [number for number, entry in enumerate(program.entries) if entry not in program.names]
        symbol = mx.sym.Group([legacy(program.internals)[number] for number in kept])
        if train:
            symbol = _for_training(symbol, wide)
            trained = {name for name, one in own.items() if is_trainable(one) and one.grad_req != "null"}
            indices = _indices(program)
            for name, array in arrays.items():
                # MXNet's BatchNorm updates its statistics in the backward pass, which reaches the first one only if
                # the inputs have gradients
                if name in trained or (name not in indices and name not in own and array.dtype in _FLOATS):
                    array.attach_grad()
        operator = mx.nd.CachedOp(symbol)
        with mx.autograd.record() if train else mx.autograd.pause():
            outputs = operator(*(arrays[name] for name in symbol.list_inputs()))
        outputs = [outputs] if isinstance(outputs, mx.nd.NDArray) else outputs
        by_entry = {program.entries[number]: array for number, array in zip(kept, outputs)}
        by_entry.update({entry: arrays[name] for entry, name in program.names.items()})
        wanted = [by_entry[entry] for entry in flat(program.root.outputs)] if train else []
        heads = _heads([one.shape for one in wanted])
        if train:
            mx.autograd.backward(wanted, [mx.nd.array(head, dtype=one.dtype) for one, head in zip(wanted, heads)])
        del outputs, wanted
        values = {entry: by_entry.pop(entry).asnumpy() for entry in list(by_entry)}
        gradients = {id(parameter): _gradient(arrays[name]) for name, parameter in own.items()}
        after = {id(parameter): arrays[name].asnumpy() for name, parameter in own.items()}
    return Computed(values, gradients, after, heads)


def entry_summands(program: Program, inputs: Sequence[Any], train: bool, wide: bool) -> Draw:
    """Measure how far rounding moves every entry, as `summands` does; arguments as for `computed`."""
    own = {program.names[entry]: parameter for entry, parameter in program.parameters.items()}
    with switches(program.numpy):
        arrays = _arrays(program, own, inputs, wide)
        internals = legacy(program.internals)
        draw = summands(_for_training(internals, wide) if train else internals, arrays, program.numpy, train)
    return lambda: dict(zip(program.entries, draw().values()))


def _arrays(program: Program, own: Mapping[str, Any], inputs: Sequence[Any], wide: bool) -> Dict[str, Any]:
    """Return copies of the parameters, and the inputs, by the names of their variables."""
    arrays = {name: legacy(first_value(parameter)).copyto(mx.cpu()) for name, parameter in own.items()}
    for entry, value in zip(program.inputs, flat(as_lists(inputs))):
        if entry in program.names:
            arrays[program.names[entry]] = mx.nd.array(value, dtype=np.asarray(value).dtype)
    if wide:
        arrays = {name: one.astype(np.float64) if one.dtype == np.float32 else one for name, one in arrays.items()}
    return arrays


def _indices(program: Program) -> Set[str]:
    """Return the names of inputs that are indices; they have no gradients."""
    used = [one.inputs[0] for one in program.root.all_operators() if "mbedding" in one.operator and one.inputs]
    used += [one.inputs[-1] for one in program.root.all_operators() if one.operator in ("take", "pick", "gather_nd")]
    return {program.names[entry] for entry in used if entry in program.names}


def _gradient(array: Any) -> Any:
    return np.zeros(array.shape, array.dtype) if array.grad is None else array.grad.asnumpy()


def _for_training(symbol: Any, wide: bool) -> Any:
    """Return the graph without dropout."""
    content = json.loads(symbol.tojson())
    for node in content["nodes"]:
        attrs = node.get("attrs", {})
        if node["op"] in ("Dropout", "RNN") and "p" in attrs:
            attrs["p"] = "0"
        if wide and node["op"].startswith(("_zeros", "_ones", "_npi_zeros", "_npi_ones")):
            attrs["dtype"] = "float64"
            node["attrs"] = attrs
    return mx.sym.load_json(json.dumps(content))


def _heads(shapes: Sequence[Tuple[int, ...]]) -> List[Any]:
    """Draw random numbers from a fixed seed."""
    random = np.random.RandomState(0)
    return [random.uniform(-1, 1, shape).astype("f") for shape in shapes]
