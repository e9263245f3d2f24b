"""Operators and graphs for repeated calls on the same arrays: prepared once, then each call is one call of C."""

import ctypes
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arrays import switches
from mxkit.core.replicas import first_value, gradients_of, set_fresh
from mxkit.core.system import environment
import mxnet as mx
from mxnet.base import _LIB, NDArrayHandle, c_handle_array, c_str_array, check_call

# VERBOSE=0 stops a line that each `bind` prints about MXNet's fused operators, which are for predictions only. A user's
# choice of a backend must not change the training's bits (T192).
_NO_FUSION = {"MXNET_SUBGRAPH_VERBOSE": "0", "MXNET_SUBGRAPH_BACKEND": None}
_TRAINING = ctypes.c_int(1)
_NO_GRADIENTS = ctypes.c_uint(0)


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
        self._call = (
            handle,
            len(inputs),
            self._read,
            ctypes.byref(ctypes.c_int(len(outputs))),
            ctypes.byref(written),
        )
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
        with environment(_NO_FUSION), switches(numpy):
            self.executor: Any = graph.bind(
                first.ctx,
                [own[name] if name in own else first_value(parameters[name]) for name in names],
                {name: replicas[0] for name, replicas in trained.items()},
                {name: parameters[name].grad_req if name in trained else "null" for name in names},
                written,
                shared_exec=None if shared is None else shared.executor,
            )
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
