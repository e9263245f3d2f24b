"""Functions with a custom gradient, for arrays and in hybridized nets.

`autograd.Function` works for one call only (T30), gives 0 to inputs after a frozen one (T31) and to a leaf with
`grad_req="add"` (T32), and takes no Symbols. Here arrays use the same C function, with a callback that obeys the
`grad_req` of each input, and Symbols use `mx.operator.CustomOp`.
"""

import atexit
from contextlib import suppress
import ctypes
from functools import lru_cache
import inspect
import itertools
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
import uuid
import warnings

from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
from mxkit.core.blocks import blocks_by_path
from mxkit.errors import TrapWarning
from mxkit.runtime.operators import copy_of_leaf
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.base import _LIB, MXCallbackList, NDArrayHandle, c_handle_array, check_call
import numpy as np

Compute = Callable[..., Any]

# Differs between processes, so that an exported graph cannot call another process's function of the same number.
_TOKEN = uuid.uuid4().hex[:12]
_REQUESTS = ("null", "write", "inplace", "add")  # by MXNet's OpReqType
_numbers = itertools.count()
_failures: List[BaseException] = []


def custom_gradient(forward: Compute, backward: Compute, *, outputs: int = 1) -> Compute:
    """Return a function that computes `forward` and whose gradient is `backward`.

    It may be called often, with several inputs and outputs, frozen inputs and `grad_req="add"`, on any device, with or
    without `autograd.record()`, and with Symbols, so also in HybridBlocks, hybridized or not. In a graph one run of
    `forward` on ones gives the shapes of the outputs, whose dtype must be the first input's.

    Neither function is recorded, so both may use NumPy. They get arrays of the inputs' kind, `mx.nd` or `mx.np`, under
    the switches of that kind, and may return either kind. In a hybridized net, and in every backward pass, they run in
    a thread of MXNet. An error there is printed, and raised as an MXNetError without its text at the next read;
    `callback_error()` returns it. There are no second derivatives. An exported graph runs in this process only.

    Args:
        forward: Called with the inputs; returns an array, or a tuple of them.
        backward: Called with the gradient of the loss for each output, then the inputs, then the outputs; returns
            the gradient for each input, of its shape; None is a gradient of zeros.
        outputs: Number of arrays that `forward` returns.

    Returns:
        A function of one or more NDArrays or Symbols. Create it once and call it often.

    Raises:
        TypeError: An argument is not a function.
        ValueError: In a call, `forward` returns another number of arrays, or no NDArrays.

    Side effects:
        The process waits for MXNet before it ends.

    >>> sigmoid = custom_gradient(mx.nd.sigmoid, lambda dy, x, y: dy * y * (1 - y))
    >>> x = mx.nd.array([0.0]); x.attach_grad()
    >>> with autograd.record():
    ...     y = sigmoid(x)
    >>> y.backward(); float(x.grad.asscalar())
    0.25
    """
    if not all(callable(function) and not inspect.isclass(function) for function in (forward, backward)):
        raise TypeError(f"custom_gradient: expected two functions; received {forward!r:.100}, {backward!r:.100}")
    _wait_at_exit()
    return _CustomGradient(forward, backward, outputs)


class CustomGradient(gluon.HybridBlock):  # type: ignore[misc]
    """A layer that computes `forward` and whose gradient is `backward`; both are called as by `custom_gradient`.

    Args:
        forward: Called with the layer's inputs; returns an array, or a tuple of them.
        backward: Called with the gradient for each output, the inputs and the outputs.
        outputs: Number of arrays that `forward` returns.
        **kwargs: `prefix` and `params`, as for any block.

    Raises:
        TypeError, ValueError: As for `custom_gradient`.

    >>> net = gluon.nn.HybridSequential()
    >>> net.add(CustomGradient(lambda x: x.clip(0, 6), lambda dy, x, y: dy * (x > 0)))
    >>> net.hybridize(); net(mx.nd.array([7.0])).asnumpy().tolist()
    [6.0]
    """

    def __init__(self, forward: Compute, backward: Compute, *, outputs: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._function = custom_gradient(forward, backward, outputs=outputs)

    def hybrid_forward(self, F: Any, x: Any, *more: Any) -> Any:  # noqa: N803
        """Call the function, which takes arrays and Symbols without `F`."""
        return self._function(x, *more)


def check_backward(net: Any) -> None:
    """Warn of blocks with a method `backward`, which Gluon never calls (T33).

    Args:
        net: Any net, or a loss that is a block.
    """
    for path, block in blocks_by_path(net):
        if callable(getattr(block, "backward", None)):
            place = f"{path!r} ({type(block).__name__})" if path else type(block).__name__
            text = f"{place} defines backward, which Gluon never calls (T33). Rename it, or use in its forward"
            warnings.warn(f"{text} mxkit.gradients.custom_gradient(forward, backward)", TrapWarning, stacklevel=2)


def callback_error() -> Optional[BaseException]:
    """Return the last error of a custom function in a thread of MXNet, and forget it; None if there was none."""
    return _failures.pop() if _failures else None


def _tuple(values: Any) -> Tuple[Any, ...]:
    return tuple(values) if isinstance(values, (list, tuple)) else (values,)


class _CustomGradient:
    """The two functions, with the checks for arrays and Symbols."""

    def __init__(self, forward: Compute, backward: Compute, outputs: int) -> None:
        self.forward, self.backward, self.outputs = forward, backward, outputs
        self.name = getattr(forward, "__qualname__", type(forward).__name__)
        self._operators: Dict[Tuple[int, bool], str] = {}

    def __repr__(self) -> str:
        return f"custom_gradient({self.name})"

    def __call__(self, *inputs: Any) -> Any:
        numpy = is_numpy(inputs)
        if inputs and all(isinstance(one, mx.sym.Symbol) for one in inputs):
            # an axis of length 1 tells shape () from an unknown one, and lets it be copied (T138)
            arguments = [mx.sym.expand_dims(one, axis=0) for one in legacy(inputs)] if numpy else inputs
            symbols = list(mx.sym.Custom(*arguments, op_type=self._operator(len(inputs), numpy)))
            if numpy:
                symbols = [mx.sym.np.squeeze(one.as_np_ndarray(), axis=0) for one in symbols]
            return symbols[0] if self.outputs == 1 else tuple(symbols)
        if not inputs or not all(isinstance(one, mx.nd.NDArray) for one in inputs):
            kinds = ", ".join(type(one).__name__ for one in inputs) or "nothing"
            raise TypeError(f"{self!r}: expected NDArrays, or Symbols in a hybridized net; received {kinds}")
        with switches(numpy):
            if autograd.is_recording():
                # the next step writes a parameter, while MXNet's thread waits for that step to read it (T175)
                inputs = tuple(map(copy_of_leaf, inputs))
            outputs = self.run(inputs)
            if autograd.is_recording():
                _record(self, inputs, outputs)
                # copies, so that each gradient has its own memory (T138); an array of shape () has no blocked layout
                views = [mx.nd.repeat(one, repeats=1, axis=0) if one.shape else one for one in legacy(outputs)]
                outputs = of_kind(tuple(views), numpy)
        return outputs[0] if self.outputs == 1 else outputs

    def run(self, inputs: Sequence[Any]) -> Tuple[Any, ...]:
        """Compute the outputs, of the inputs' kind and under its switches, without recording."""
        numpy = is_numpy(inputs)
        with autograd.pause(train_mode=autograd.is_training()), switches(numpy):
            results = of_kind(_tuple(self.forward(*inputs)), numpy)
        if len(results) != self.outputs or not all(isinstance(one, mx.nd.NDArray) for one in results):
            received = [type(one).__name__ for one in results]
            raise ValueError(f"{self!r}: forward must return outputs={self.outputs} NDArrays; it returned {received}")
        # an output that is an input or an earlier output would be its own ancestor in the graph
        ids = [id(one) for one in (*inputs, *results)]
        with autograd.pause(), switches(numpy):
            return tuple(
                one.copy() if id(one) in ids[: len(inputs) + number] else one.detach()
                for number, one in enumerate(results)
            )

    def gradients(self, heads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Tuple[Any, ...]:
        """The gradient for each input, checked; None for zeros."""
        with autograd.pause(train_mode=autograd.is_training()), switches(is_numpy(inputs)):
            results: Tuple[Any, ...] = of_kind(_tuple(self.backward(*heads, *inputs, *outputs)), is_numpy(inputs))
        fits = [
            gradient is None or (isinstance(gradient, mx.nd.NDArray) and gradient.shape == one.shape)
            for gradient, one in zip(results, inputs)
        ]
        if len(results) != len(inputs) or not all(fits):
            received = [None if one is None else (type(one).__name__, getattr(one, "shape", "")) for one in results]
            wanted = f"an NDArray, or None for zeros, for each of the {len(inputs)} inputs"
            raise ValueError(f"{self!r}: backward must return {wanted}, of its shape; it returned {received}")
        return results

    def _operator(self, inputs: int, numpy: bool) -> str:
        if (inputs, numpy) not in self._operators:
            name = f"mxkit_{_TOKEN}_{next(_numbers)}"
            with switches(False):  # MXNet makes arrays of the kind that the switch chose at registration
                mx.operator.register(name)(_property_of(self, inputs, numpy))
            self._operators[inputs, numpy] = name
        return self._operators[inputs, numpy]


@lru_cache(maxsize=None)
def _wait_at_exit() -> None:
    # at exit MXNet stops its threads for Python operators first, and then waits for these operators forever (T113)
    @atexit.register
    def wait() -> None:
        with suppress(mx.MXNetError):
            mx.nd.waitall()


def _write(target: Any, request: str, value: Any) -> None:
    """Write a value, or zeros for None, as requested. `CustomOp.assign` warns if it adds to arrays of `mx.np`."""
    if value is not None:
        value = legacy(value if value.shape == target.shape else value.reshape(target.shape))
    view = legacy(target)
    if request == "add":
        view += 0 if value is None else value
    elif request != "null":
        view[:] = 0 if value is None else value


def _assign_gradients(
    function: _CustomGradient, targets: Sequence[Any], requests: Sequence[str], *arguments: Sequence[Any]
) -> None:
    """Compute the gradients and write them as requested; store an error for `callback_error`."""
    try:
        # MXNet's threads have their own switches, which are off
        with switches(is_numpy(arguments)):
            if all(request == "null" for request in requests):
                return
            for target, request, value in zip(targets, requests, function.gradients(*arguments)):
                _write(target, request, value)
    except BaseException as error:
        _failures[:] = [error]
        raise


def _record(function: _CustomGradient, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Record for autograd that `outputs` come from `inputs`, as Function.__call__ does, without T31 and T32."""
    kind = autograd.Function
    key, numpy = kind._registry.inc(), is_numpy(inputs)
    # detached, because the graph owns these arrays, and they would own the graph
    inputs_kept, outputs_kept = [[one.detach() for one in arrays] for arrays in (inputs, outputs)]

    def backward(heads: int, targets: int, handles: Any, requests: Any, training: int, _: Any) -> bool:
        try:
            pointers = [ctypes.cast(handles[number], NDArrayHandle) for number in range(heads + targets)]
            arrays = of_kind([mx.nd.NDArray(one, number >= heads) for number, one in enumerate(pointers)], numpy)
            wanted = [_REQUESTS[requests[number]] for number in range(targets)]
            _assign_gradients(function, arrays[heads:], wanted, arrays[:heads], inputs_kept, outputs_kept)
        except BaseException:
            traceback.print_exc()
            return False
        return True

    def delete(_: Any) -> bool:
        kind._registry.ref_holder.pop(key, None)
        return True

    plain = ctypes.CFUNCTYPE(ctypes.c_int)
    callbacks = [ctypes.cast(one, plain) for one in (kind._bwd_functype(backward), kind._del_functype(delete))]
    contexts = ctypes.cast((ctypes.c_void_p * 2)(), ctypes.POINTER(ctypes.c_void_p))
    context = MXCallbackList(2, ctypes.cast((plain * 2)(*callbacks), ctypes.POINTER(plain)), contexts)
    kind._registry.ref_holder[key] = context
    check_call(
        _LIB.MXCustomFunctionRecord(
            len(inputs), c_handle_array(inputs), len(outputs), c_handle_array(outputs), ctypes.byref(context)
        )
    )


def _property_of(function: _CustomGradient, inputs: int, numpy: bool) -> Any:
    class Property(mx.operator.CustomOpProp):  # type: ignore[misc]
        # attributes of mx.AttrScope are passed as arguments; an unknown one would end the process (T114)
        def __init__(self, **attributes: Any) -> None:
            super().__init__(need_top_grad=True)

        def list_arguments(self) -> List[str]:
            return [f"data{number}" for number in range(inputs)]

        def list_outputs(self) -> List[str]:
            return [f"output{number}" for number in range(function.outputs)]

        def infer_shape(self, in_shape: Any) -> Any:
            if any(not shape or -1 in shape or (0 in shape and not numpy) for shape in in_shape):
                return in_shape, [[]] * function.outputs, []
            with switches(numpy):
                outputs = function.run(_arguments([mx.nd.ones(shape) for shape in in_shape], numpy))
            return in_shape, [(1, *output.shape) if numpy else output.shape for output in outputs], []

        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
            return _Operator(function, numpy)

    return Property


class _Operator(mx.operator.CustomOp):  # type: ignore[misc]
    """The function as an operator of a graph; MXNet calls it from its own threads."""

    def __init__(self, function: _CustomGradient, numpy: bool) -> None:
        super().__init__()
        self._function, self._numpy = function, numpy

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        try:
            with switches(self._numpy):
                values = self._function.run(_arguments(in_data, self._numpy))
                for number, (target, value) in enumerate(zip(out_data, values)):
                    shape = target.shape[1:] if self._numpy else target.shape
                    if (value.shape, value.dtype) != (shape, target.dtype):
                        wanted = f"shape {shape} and the first input's dtype {np.dtype(target.dtype)}"
                        received = f"forward returned {value.shape}, {np.dtype(value.dtype)}"
                        raise ValueError(f"{self._function!r}: output {number} must have {wanted}; {received}")
                    _write(target, req[number], value)
        except BaseException as error:
            _failures[:] = [error]
            raise

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        with switches(self._numpy):
            arguments = [_arguments(arrays, self._numpy) for arrays in (out_grad, in_data, out_data)]
            _assign_gradients(self._function, in_grad, req, *arguments)


def _arguments(arrays: Sequence[Any], numpy: bool) -> Sequence[Any]:
    """Arrays of an operator as the user's functions get them: those of `mx.np` have an axis more in the graph."""
    return [one[0] for one in of_kind(list(arrays), True)] if numpy else arrays


def sign_ste(x: Any) -> Any:
    """Take the sign; the gradient is that of the identity (straight-through estimator).

    It is MXNet's own `contrib.sign_ste`, and can be exported.

    Args:
        x: An NDArray or a Symbol.

    Returns:
        -1, 0 or 1, of the same kind and shape.

    >>> sign_ste(mx.nd.array([-0.3, 2])).asnumpy().tolist()
    [-1.0, 1.0]
    """
    return _elementwise("sign_ste", x)


def round_ste(x: Any) -> Any:
    """Round to whole numbers; the gradient is that of the identity (straight-through estimator).

    It is MXNet's own `contrib.round_ste`, and can be exported.

    Args:
        x: An NDArray or a Symbol.

    Returns:
        The rounded values, of the same kind and shape; halves are rounded away from 0.
    """
    return _elementwise("round_ste", x)


def gradient_reversal(x: Any, *, scale: float = 1.0) -> Any:
    """Reverse the gradient, for domain-adversarial training (arXiv:1505.07818).

    It is MXNet's own `contrib.gradientmultiplier`, and can be exported.

    Args:
        x: An NDArray or a Symbol.
        scale: The gradient is multiplied by `-scale`.

    Returns:
        The values of `x`.
    """
    return _elementwise("gradientmultiplier", x, scalar=-float(scale))


def _elementwise(name: str, x: Any, **arguments: float) -> Any:
    operators = mx.sym if isinstance(x, mx.sym.Symbol) else mx.nd
    with switches(is_numpy(x)):
        return of_kind(getattr(operators.contrib, name)(legacy(x), **arguments), is_numpy(x))
