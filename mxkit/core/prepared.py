"""Operators, graphs and a Trainer's update for repeated calls on the same arrays: each call is one call of C."""

import ctypes
from itertools import chain
import math
from operator import is_
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arrays import legacy, switches
from mxkit.core.replicas import first_value, gradients_of, set_fresh, values_of
from mxkit.runtime.engine_settings import environment
import mxnet as mx
from mxnet import gluon
from mxnet.base import _LIB, NDArrayHandle, c_handle_array, c_str_array, check_call
import numpy as np

# VERBOSE=0 stops a line that each `bind` prints about MXNet's fused operators, which are for predictions only. A user's
# choice of a backend must not change the training's bits (T192).
_NO_FUSION = {"MXNET_SUBGRAPH_VERBOSE": "0", "MXNET_SUBGRAPH_BACKEND": None}
_TRAINING = ctypes.c_int(1)
_NO_GRADIENTS = ctypes.c_uint(0)

# Smallest number of weights for which a call of `sgd_mom_update` takes less time than a part of a call of
# `multi_sgd_mom_update`: 10,000 on one thread, 25,000 on two (`python -m benchmarks optimizers`).
LARGE = 2**15
# Parameters in a call of a multi operator, as in MXNet's SGD; of fewer weights than SMALL, as in MXNet's LAMB. A call
# reads one weight of each parameter in turn: 45 parameters of 10,000 to 100,000 weights in one call took 1.5 to 1.7
# times as long as 4 a call on one thread, those of 100 weights half as long (AMD EPYC).
SMALL = 1000
GROUP, GROUP_OF_SMALL = 4, 45

_UpdateOperator = Tuple[str, int, Tuple[str, ...]]  # name, arrays of state, settings of the optimizer that it reads


class PreparedCall:
    """An operator with its arrays and its attributes.

    A call of `mx.nd.sgd_mom_update` takes 20 us of Python, a prepared call 4 us. The bits are the same. Call it outside
    `autograd.record`.

    Args:
        operator: Name in MXNet's registry, like "sgd_mom_update".
        inputs: NDArrays that the operator reads.
        outputs: NDArrays that it writes.
        attributes: Attributes of the operator; `str` turns their values into text, as MXNet does.

    Raises:
        mxnet.MXNetError: The operator is unknown; or, when it is called, it refuses the arrays or an attribute.

    >>> total = mx.nd.zeros(2)
    >>> add = PreparedCall("_plus_scalar", [total], [total], {"scalar": 1.5})
    >>> add(); add(); total.asnumpy().tolist()
    [3.0, 3.0]
    """

    def __init__(
        self, operator: str, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> None:
        handle = ctypes.c_void_p()
        check_call(_LIB.NNGetOpHandle(operator.encode(), ctypes.byref(handle)))
        self._arrays = [*inputs, *outputs]  # MXNet gets their addresses only
        written = ctypes.cast(c_handle_array(outputs), ctypes.POINTER(NDArrayHandle))
        self._read = c_handle_array(inputs)
        self._call = (handle, len(inputs), self._read, ctypes.byref(ctypes.c_int(len(outputs))), ctypes.byref(written))
        self.set(attributes)

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Replace all attributes."""
        self._names = list(attributes)
        names, self._values = c_str_array(self._names), c_str_array([str(value) for value in attributes.values()])
        self._attributes = len(attributes), names, self._values, ctypes.byref(ctypes.POINTER(ctypes.c_int)())

    def change(self, attributes: Mapping[str, Any]) -> None:
        """Replace the values of some attributes; to replace all takes 6 us."""
        for name, value in attributes.items():
            self._values[self._names.index(name)] = str(value).encode()

    def read(self, number: int, array: Any) -> None:
        """Replace an input, by its number from 0."""
        self._arrays[number] = array
        self._read[number] = array.handle

    def __call__(self) -> None:
        check_call(_LIB.MXImperativeInvokeEx(*self._call, *self._attributes))

    def result(self) -> Any:
        """Call an operator with one output, which is a new NDArray; `outputs` must be empty."""
        count, handles = ctypes.c_int(0), ctypes.POINTER(NDArrayHandle)()
        check_call(
            _LIB.MXImperativeInvokeEx(*self._call[:3], ctypes.byref(count), ctypes.byref(handles), *self._attributes)
        )
        return mx.nd.NDArray(ctypes.cast(handles[0], NDArrayHandle))


class BoundGraph:
    """A graph whose first output is a loss, bound to a net's parameters and to its own copies of the other inputs.

    A call of the smallest net and of `backward` takes 300 us of Python and of autograd's bookkeeping, a bound graph
    10 us. Operators, their order and their bits are the same. The graph writes to the gradients that the parameters had
    when it was made: check `is_current` before each batch (T192).

    Args:
        graph: Symbol with several outputs; `make_loss` or `BlockGrad` is the last operator of each.
        inputs: Arrays on the CPU by name, with the shapes and types of each batch.
        parameters: The other inputs by name.
        numpy: Whether shapes inside the graph follow the rules of `mx.np`.
        shared: Another bound graph, with which this one shares memory.

    Attributes:
        size: Elements of the inputs.

    Raises:
        mxnet.MXNetError: MXNet cannot infer a shape, or refuses the graph.
    """

    def __init__(
        self,
        graph: "mx.sym.Symbol",
        inputs: Mapping[str, Any],
        parameters: Mapping[str, Any],
        numpy: bool,
        shared: Optional["BoundGraph"] = None,
    ) -> None:
        first = next(iter(inputs.values()))
        own = {name: mx.nd.empty(array.shape, array.ctx, array.dtype) for name, array in inputs.items()}
        self.size = sum(array.size for array in own.values())
        self._copies = [PreparedCall("_copyto", [array], [array], {}) for array in own.values()]
        names, states = graph.list_arguments(), graph.list_auxiliary_states()
        gradients = {name: gradients_of(parameters[name]) for name in names if name in parameters}
        trained = {name: replicas for name, replicas in gradients.items() if replicas}
        written = [first_value(parameters[name]) for name in states]
        values = [own[name] if name in own else first_value(parameters[name]) for name in names]
        firsts = {name: replicas[0] for name, replicas in trained.items()}
        requests = {name: parameters[name].grad_req if name in trained else "null" for name in names}
        other = None if shared is None else shared.executor
        with environment(_NO_FUSION), switches(numpy):
            self.executor: Any = graph.bind(first.ctx, values, firsts, requests, written, shared_exec=other)
        # The executor's operators write auxiliary states, like running statistics, but declare to the engine that they
        # only read them, so later readers do not wait (T193). This operator copies the states to themselves: it waits
        # for the executor, and readers wait for it.
        copies = {"num_outputs": len(written)}
        self._announce = PreparedCall("amp_multicast", written, written, copies) if written else None
        self._outputs = [PreparedCall("_copy", [output], [], {}) for output in self.executor.outputs[1:]]
        self._parameters = [parameters[name] for name in [*names, *states] if name in parameters]
        self._held = _arrays_of(self._parameters)
        # not views: `mark_variables` gives an array of mx.np a new record of its gradient, which earlier views lack
        self._trained = [parameters[name]._data[0] for name in trained]

    def is_current(self) -> bool:
        """Whether the parameters have the same arrays and `grad_req` as when the graph was bound."""
        return all(now is before for now, before in zip(_arrays_of(self._parameters), self._held))

    def forward(self, inputs: Sequence[Any]) -> List[Any]:
        """Compute a batch in training mode.

        Args:
            inputs: Arrays in the order and with the shapes and types of the argument `inputs` of the class.

        Returns:
            Copies of the outputs after the first.
        """
        for copy, array in zip(self._copies, inputs):
            copy.read(0, array)
            copy()
        check_call(_LIB.MXExecutorForward(self.executor.handle, _TRAINING))
        return [output.result() for output in self._outputs]  # the next batch overwrites the executor's own

    def backward(self) -> None:
        """Compute the gradients of the loss of the last batch, by each parameter's `grad_req`."""
        check_call(_LIB.MXExecutorBackwardEx(self.executor.handle, _NO_GRADIENTS, None, _TRAINING))
        if self._announce is not None:
            self._announce()
        set_fresh(self._trained, True)


def output_kinds(
    graph: "mx.sym.Symbol", inputs: Mapping[str, Any], parameters: Mapping[str, Any], numpy: bool
) -> Tuple[List[Tuple[int, ...]], List[Any]]:
    """Shapes and dtypes of a graph's outputs, for the arguments of a `BoundGraph`; none if a shape depends on values.

    The shapes inside `F.contrib.cond`, for example, are known only when it runs.
    """
    arrays = {**inputs, **{name: first_value(parameter) for name, parameter in parameters.items()}}
    arrays = {name: arrays[name] for name in graph.list_inputs()}
    known = {name: array.shape for name, array in arrays.items()}
    with switches(numpy):
        inner = graph.get_internals().infer_shape_partial(**known)[1]
        least = 0 if numpy else 1  # an unknown length is -1 under the shapes of mx.np, where () is a number; else 0
        if any(shape is None or not (shape or numpy) or min(shape, default=least) < least for shape in inner):
            return [], []
        dtypes = graph.infer_type(**{name: array.dtype for name, array in arrays.items()})[1]
        return graph.infer_shape(**known)[1], dtypes


def parts_of(array: Any, sizes: Sequence[int]) -> List[Any]:
    """Consecutive parts of an array of shape (n,), as views; the sizes add up to n at most."""
    parts, end = [], 0
    for size in sizes:
        begin, end = end, end + size
        handle = NDArrayHandle()  # `array[begin:end]` asks for the shape, which takes as long
        check_call(_LIB.MXNDArraySlice(array.handle, begin, end, ctypes.byref(handle)))
        parts.append(mx.nd.NDArray(handle))
    return parts


def _arrays_of(parameters: Sequence[Any]) -> List[Any]:
    """The objects on which a bound graph depends: values, gradients and requests."""
    held = [parameter._data and parameter._data[0] for parameter in parameters]
    held += [parameter._grad and parameter._grad[0] for parameter in parameters]
    return held + [parameter._grad_req for parameter in parameters]


class OptimizerStep:
    """Updates weights, states and optimizer as `trainer.update(divisor)` does, in less time.

    MXNet's SGD sends every parameter through `multi_sgd_mom_update`, four per call. `sgd_mom_update` takes half the
    time for a large parameter and computes the same bits; up to 45 small ones go into a call. The operators of SGD,
    Adam, NAG and RMSProp are called without MXNet's Python around them. The optimizer itself counts updates and calls
    its schedule. `trainer.update` does the rest: other optimizers, subclasses, sparse arrays, other dtypes than
    float32, and updates that have to create states.

    Args:
        trainer: A Trainer that steps on the devices.
    """

    def __init__(self, trainer: "gluon.Trainer") -> None:
        self._trainer = trainer
        self._update = trainer.update
        self._seen: List[Any] = []
        self._plans: List[_DevicePlan] = []

    def __call__(self, divisor: float) -> None:
        """Update the weights; every gradient was computed since the last update.

        Args:
            divisor: As for `trainer.update`: the gradients are divided by it.
        """
        trainer = self._trainer
        operator = _operator_of(trainer) if getattr(self._update, "__func__", None) is gluon.Trainer.update else None
        seen = [operator, *_objects_of(trainer)] if operator else []
        if len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            self._plans = _plans_of(trainer, operator) if operator else []
            self._seen = seen
        if not self._plans:
            self._update(divisor)
            self._seen = []  # the states may be complete now
            return
        trainer._check_and_rescale_grad(trainer._scale / divisor)
        for plan in self._plans:
            set_fresh(plan.flagged, False)
        for plan in self._plans:
            plan.run(trainer._optimizer)


class _DevicePlan:
    """The calls that update the parameters of one device.

    Args:
        updater: Holder of the device's states.
        operator: Operator of the optimizer's update.
        indices: Numbers of the parameters in the Trainer.
        arrays: For each parameter its weight, gradient and states.
        flagged: For each parameter the array that knows whether the gradient is fresh: the weight itself, since
            `mark_variables` gives an array of `mx.np` a new record of its gradient, which earlier views lack.
    """

    def __init__(
        self,
        updater: Any,
        operator: _UpdateOperator,
        indices: Sequence[int],
        arrays: Sequence[Sequence[Any]],
        flagged: Sequence[Any],
    ) -> None:
        self.flagged, weights = flagged, [weight for weight, *_ in arrays]
        self._updater, self._operator, self._indices = updater, operator, tuple(indices)
        self._device = weights[0].ctx.device_id
        name, sizes = operator[0], [weight.size for weight in weights]
        single = set(range(len(arrays)))
        if name.startswith("multi"):
            large = LARGE if name == "multi_sgd_mom_update" and weights[0].ctx.device_type == "cpu" else math.inf
            single = {position for position in single if sizes[position] >= large}
        # by size: the largest parameter of a call decides the length of the loop over all of them
        others = sorted(set(range(len(arrays))) - single, key=sizes.__getitem__, reverse=True)
        groups = []
        while others:
            count = GROUP_OF_SMALL if sizes[others[0]] < SMALL else GROUP
            groups.append(others[:count])
            del others[:count]
        self._calls = [_OperatorCall(name, group, [arrays[position] for position in group]) for group in groups]
        name = "sgd_mom_update" if name == "multi_sgd_mom_update" else name
        self._calls += [_OperatorCall(name, [position], [arrays[position]]) for position in sorted(single)]
        self._rates: Any = None
        self._settings: Any = None

    def run(self, optimizer: Any) -> None:
        """Count the update, get all rates from the optimizer as MXNet does, and update the weights."""
        optimizer._set_current_context(self._device)
        indices, lrs, wds = self._indices, [], []
        size = optimizer.aggregate_num if self._updater.aggregate_updates else 1
        if optimizer.lr_scheduler is None:
            size = len(indices)
        for start in range(0, len(indices), size):  # a schedule is called as often as by MXNet
            together = indices[start : start + size]
            optimizer._update_count(together)
            lrs += optimizer._get_lrs(together)
            wds += optimizer._get_wds(together)
        name, _, names = self._operator
        if name == "adam_update":
            lrs = _bias_corrected(optimizer, indices, lrs)
        settings = {setting: getattr(optimizer, setting) for setting in ("rescale_grad", *names)}
        if optimizer.clip_gradient:
            settings["clip_gradient"] = optimizer.clip_gradient
        if (lrs, wds) != self._rates or settings != self._settings:
            for call in self._calls:
                call.set(lrs, wds, settings, change=settings == self._settings)
            self._rates, self._settings = (lrs, wds), settings
        for call in self._calls:
            call.run()


class _OperatorCall:
    """An operator's call for one parameter or a group.

    Args:
        name: Name of the operator.
        positions: Positions of the parameters in the plan.
        arrays: As for the plan.
    """

    def __init__(self, name: str, positions: Sequence[int], arrays: Sequence[Sequence[Any]]) -> None:
        self._name, self._positions, self._arrays = name, positions, arrays
        self._prepared = ""

    def set(self, lrs: Sequence[float], wds: Sequence[float], settings: Mapping[str, Any], change: bool) -> None:
        """Set the rates, and unless `change` the other attributes too."""
        name, rates = _rates(self._name, [[each[position] for position in self._positions] for each in (lrs, wds)])
        if name != self._prepared:
            inputs = list(chain.from_iterable(self._arrays))
            self.run = PreparedCall(name, inputs, [weight for weight, *_ in self._arrays], {**settings, **rates})
            self._prepared = name
        elif change:
            self.run.change(rates)
        else:
            self.run.set({**settings, **rates})


def _rates(name: str, rates: Sequence[Sequence[float]]) -> Tuple[str, Dict[str, Any]]:
    """The operator for these learning rates and weight decays, and its attributes for them."""
    if name == "sgd_mom_update":
        texts = [same_rate(each[0]) for each in rates]
        if None not in texts:
            return name, dict(zip(("lr", "wd"), texts))
        name = "multi_sgd_mom_update"
    if name.startswith("multi"):
        lists = ["[" + ", ".join(map(str, each)) + "]" for each in rates]  # `str` of a list fails with NumPy 2 (T86)
        return name, {"num_weights": len(rates[0]), "lrs": lists[0], "wds": lists[1]}
    return name, {"lr": rates[0][0], "wd": rates[1][0]}


def same_rate(rate: Any) -> Optional[str]:
    """Text that `sgd_mom_update` reads as the float32 that `multi_sgd_mom_update` reads from `str(rate)` (T182).

    The parser of single numbers (dmlc's ParseFloat) is wrong in the last bit for one text in ten, like "1.41e-05"; the
    parser of lists (C++'s streams) is always right. Both are right for the digits of a float32 without an exponent.

    Returns:
        The text; None for a rate that is too small, too large, negative, not a number, or halfway between two float32.

    >>> same_rate(0.1), same_rate(1e-12)
    ('0.1000000014901161194', None)
    """
    if not isinstance(rate, (float, int)) or not (rate == 0 or 1e-9 <= rate < 2**24):
        return None
    bits = struct.pack(">d", rate)
    if int.from_bytes(bits[4:], "big") & 0x1FFFFFFF == 0x10000000 or bits[0] & 0x80:
        return None
    (nearest,) = struct.unpack(">f", struct.pack(">f", rate))
    return f"{nearest:.19f}"


def _bias_corrected(optimizer: Any, indices: Sequence[int], lrs: Sequence[float]) -> List[float]:
    """Learning rates of Adam, by MXNet's own expression: another order of the factors would round differently."""
    factors: Dict[int, float] = {}
    rates = []
    for index, lr in zip(indices, lrs):
        count = optimizer._index_update_count[index]
        if count not in factors:
            factors[count] = math.sqrt(1.0 - optimizer.beta2**count) / (1.0 - optimizer.beta1**count)
        rates.append(lr * factors[count])
    return rates


def _operator_of(trainer: Any) -> Optional[_UpdateOperator]:
    """The operator of the optimizer's update; None if it has none, or if a part of the update is not MXNet's own."""
    optimizer = trainer._optimizer
    if (
        trainer._params_to_init
        or type(trainer)._update is not gluon.Trainer._update
        or not {"_update", "_amp_loss_scaler"}.isdisjoint(vars(trainer))
        or any(type(one) is not mx.optimizer.Updater or one.optimizer is not optimizer for one in trainer._updaters)
    ):
        return None
    kind = type(optimizer)
    if kind is mx.optimizer.SGD:
        return ("multi_sgd_mom_update", 1, ("momentum",)) if optimizer.momentum > 0 else ("multi_sgd_update", 0, ())
    if kind is mx.optimizer.Adam:
        return "adam_update", 2, ("beta1", "beta2", "epsilon", "lazy_update")
    if kind is mx.optimizer.NAG and optimizer.momentum > 0:
        return "nag_mom_update", 1, ("momentum",)
    if kind is mx.optimizer.RMSProp and not optimizer.centered and not optimizer.clip_weights:
        return "rmsprop_update", 1, ("gamma1", "epsilon")
    return None


def _objects_of(trainer: Any) -> List[Any]:
    """The objects on which the plans depend: Gluon and mxkit replace them when an array changes."""
    parameters = chain.from_iterable((one._data, one._grad, one._grad_req) for one in trainer._params)
    updaters = chain.from_iterable((one.states, one.states_synced, *one.states.values()) for one in trainer._updaters)
    return [*parameters, *updaters]


def _plans_of(trainer: Any, operator: _UpdateOperator) -> List[_DevicePlan]:
    """A plan for each device; none if an array is sparse or not float32, or if `trainer.update` has to make a state."""
    indices = [index for index, parameter in enumerate(trainer._params) if parameter.grad_req != "null"]
    plans = []
    for device, updater in enumerate(trainer._updaters):
        arrays = []
        for index in indices:
            parameter, state = trainer._params[index], updater.states.get(index)
            if not updater.states_synced.get(index) or not parameter._data:
                return []
            states = legacy(list(state) if isinstance(state, tuple) else [state])[: operator[1]]
            arrays.append([values_of(parameter)[device], gradients_of(parameter)[device], *states])  # type: ignore[index]
            if any(type(each) is not mx.nd.NDArray or each.dtype is not np.float32 for each in arrays[-1]):
                return []
        flagged = [trainer._params[index]._data[device] for index in indices]
        plans.append(_DevicePlan(updater, operator, indices, arrays, flagged))
    return plans if indices else []
