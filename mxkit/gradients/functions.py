"""Gradients of functions: `grad`, `value_and_grad`, `jacobian`."""

import re
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import arrays_in, is_numpy, legacy, of_kind, switches
from mxkit.core.blocks import is_numpy_net, parameters_by_path
from mxkit.core.replicas import holds_numpy
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

Function = Callable[..., Any]
Which = Union[int, Sequence[int]]
_NO_SECOND = re.compile(r"Operator (?:_backward_)?(\S+) is non-differentiable")
# MXNet treats the gradient of a custom function of a leaf as a constant, so its part would be missing (T112). Second
# derivatives of arcsinh and arccosh have the wrong sign (T172).
_WRONG_SECOND = re.compile(r'"op": "(?:_npi_)?(_CustomFunction|arcsinh|arccosh)"')
CUTS = "NumPy, asnumpy(), asscalar(), detach(), BlockGrad and autograd.pause() cut the graph"
UNREACHED = ("not in a computational graph", "unreachable from the outputs", "does not require gradient")


def value_and_grad(f: Function, *, wrt: Which = 0, head: Optional[Any] = None, train_mode: bool = False) -> Function:
    """Return a function that computes `f`'s value and its gradient.

    The `grad` of the arguments and of a net's parameters does not change. While autograd records, as in
    `grad(grad(f))`, the gradient is recorded too, if MXNet has the second derivatives: it has those of `square`,
    `exp`, `log`, `sqrt`, `sin`, `cos`, `sigmoid`, `tanh`, `relu` and `elemwise_add`, but not of `x * x` or `x ** 3`.

    Args:
        f: Any function of arrays that returns one NDArray of any shape; also a Block.
        wrt: Number of the argument to differentiate by, from 0, or a sequence of them. Others may be of any type.
        head: Weights of `f`'s elements, with the shape of its value. None is ones: the gradient is that of the *sum*
            of the elements, as for `backward()`.
        train_mode: Whether dropout and batch normalization behave as in training.

    Returns:
        A function that returns `(value, gradient)`, with a tuple of gradients if `wrt` is a sequence.

    Raises:
        TypeError: `f` returned no NDArray, or an argument to differentiate by is no array of floating point.
        ValueError: `f`'s value does not depend on the argument through recorded operators; `head` has another shape
            than the value, which MXNet accepts silently.
        NotImplementedError: MXNet has no second derivative of an operator.

    >>> value, gradient = value_and_grad(lambda x: x * x)(mx.nd.array([3.0]))
    >>> value.asnumpy().tolist(), gradient.asnumpy().tolist()
    ([9.0], [6.0])
    """
    numbers = as_numbers(wrt)

    def run(*args: Any) -> Tuple[Any, Any]:
        recorded = autograd.is_recording()
        mode = autograd.is_training() if recorded else train_mode
        numpy = numpy_of(f, args)
        with switches(numpy):
            arguments, leaves = leaves_of(args, numbers, numpy, copy=not recorded)
            with autograd.record(train_mode=mode):
                value = one_array(f(*arguments))
            if recorded:
                _check_second(value)
            gradients = _differentiate(value, leaves, head, mode, create_graph=recorded, retain_graph=recorded)
        return value, gradients[0] if isinstance(wrt, int) else tuple(gradients)

    return run


def grad(f: Function, *, wrt: Which = 0, head: Optional[Any] = None, train_mode: bool = False) -> Function:
    """Return a function that computes the gradient of `f`; `value_and_grad` lists the errors.

    Args:
        f: A function of arrays that returns one NDArray of any shape; also a Block.
        wrt: Number of the argument to differentiate by, from 0, or a sequence of them.
        head: Weights of `f`'s elements; None is ones.
        train_mode: Whether dropout and batch normalization behave as in training.

    Returns:
        A function that returns an NDArray of the argument's shape, or a tuple of them if `wrt` is a sequence.

    >>> grad(lambda x: x.mean() + 2 * x)(mx.nd.array([1, 2, 3, 4])).asnumpy().tolist()
    [3.0, 3.0, 3.0, 3.0]
    >>> grad(grad(mx.nd.square))(mx.nd.array([3.0])).asnumpy().tolist()
    [2.0]
    """
    both = value_and_grad(f, wrt=wrt, head=head, train_mode=train_mode)
    return lambda *args: both(*args)[1]


def jacobian(f: Function, *, wrt: Which = 0, train_mode: bool = False) -> Function:
    """Return a function that computes the derivative of each element of `f` by each element of its argument.

    It costs a backward pass for each element of the value; `value_and_grad` lists the errors.

    Args:
        f: A function of arrays that returns one NDArray of any shape; also a Block.
        wrt: Number of the argument to differentiate by, from 0, or a sequence of them.
        train_mode: Whether dropout and batch normalization behave as in training.

    Returns:
        A function that returns an NDArray of shape `value.shape + argument.shape`, or a tuple of them if `wrt` is a
        sequence.

    >>> jacobian(lambda x: x.mean() + 2 * x)(mx.nd.array([1, 2])).asnumpy().tolist()
    [[2.5, 0.5], [0.5, 2.5]]
    """
    numbers = as_numbers(wrt)

    def run(*args: Any) -> Any:
        numpy = numpy_of(f, args)
        with switches(numpy):
            arguments, leaves = leaves_of(args, numbers, numpy, copy=True)
            with autograd.record(train_mode=train_mode):
                value = one_array(f(*arguments))
            rows = []
            for number in range(value.size):
                one_hot = np.zeros(value.size, value.dtype)
                one_hot[number] = 1
                head = mx.nd.array(one_hot.reshape(value.shape), ctx=value.ctx, dtype=value.dtype)
                rows.append(_differentiate(value, leaves, head, train_mode, retain_graph=True))
            jacobians = [
                of_kind(mx.nd.stack(*legacy(parts)).reshape(value.shape + leaf.shape), numpy)
                for parts, leaf in zip(zip(*rows), leaves)
            ]
        return jacobians[0] if isinstance(wrt, int) else tuple(jacobians)

    return run


def as_numbers(wrt: Which) -> Tuple[int, ...]:
    """The numbers of the arguments, as a tuple."""
    return (wrt,) if isinstance(wrt, int) else tuple(wrt)


def numpy_of(f: Function, args: Sequence[Any]) -> bool:
    """Whether `f` computes with arrays of `mx.np`: a net's parameters decide it, else the first array of `args`."""
    if isinstance(f, gluon.Block) and any(holds_numpy(one) is not None for one in parameters_by_path(f).values()):
        return is_numpy_net(f)
    arrays = arrays_in(list(args))
    return is_numpy(arrays) if arrays else mx.util.is_np_array()


def is_floating(array: Any) -> bool:
    """Whether an object is an NDArray of floating point, which can have a gradient."""
    return isinstance(array, mx.nd.NDArray) and np.dtype(array.dtype).kind == "f"


def leaves_of(args: Sequence[Any], numbers: Sequence[int], numpy: bool, copy: bool) -> Tuple[List[Any], List[Any]]:
    """All arguments, and those to differentiate by, with arrays of one kind.

    With `copy` the latter are copies with their own gradients.
    """
    args = [of_kind(one, numpy) if isinstance(one, mx.nd.NDArray) else one for one in args]
    for number in numbers:
        exists = 0 <= number < len(args)
        if not (exists and is_floating(args[number])):
            received = type(args[number]).__name__ if exists else f"{len(args)} arguments"
            if exists and isinstance(args[number], mx.nd.NDArray):
                received += f" of {np.dtype(args[number].dtype)}"
            raise TypeError(
                f"argument {number} must be an NDArray of floating point to differentiate by; got {received}"
            )
        if copy:
            args[number] = args[number].detach()
            args[number].attach_grad()
    return args, [args[number] for number in numbers]


def one_array(value: Any) -> Any:
    """Return a value; raise TypeError if it is not an NDArray."""
    if not isinstance(value, mx.nd.NDArray):
        raise TypeError(f"the function must return one NDArray; it returned {type(value).__name__}: {value!r:.100}")
    return value


def _differentiate(
    value: Any, leaves: Sequence[Any], head: Optional[Any], train_mode: bool, **graph: bool
) -> List[Any]:
    if head is not None and head.shape != value.shape:
        raise ValueError(f"head must have the shape of the function's value, {value.shape}; received {head.shape}")
    try:
        gradients = autograd.grad(value, list(leaves), head, train_mode=train_mode, **graph)
        return [of_kind(gradient, is_numpy(leaf)) for gradient, leaf in zip(gradients, leaves)]
    except mx.MXNetError as error:
        text = str(error)
        second = _NO_SECOND.search(text)
        if second:
            raise _no_second(second.group(1)) from error
        if "does not support higher order gradients" in text:
            raise NotImplementedError(
                "MXNet has no second derivatives of a hybridized net: call net.hybridize(False) first"
            ) from error
        if any(part in text for part in UNREACHED):
            raise ValueError(
                f"the function's value does not depend on the argument by recorded operators. {CUTS}; inside "
                "autograd.record() the argument itself must have a gradient: x.attach_grad()"
            ) from error
        raise


def _check_second(value: Any) -> None:
    wrong = _WRONG_SECOND.search(autograd.get_symbol(value).tojson())
    if wrong:
        raise _no_second("custom_gradient" if wrong.group(1) == "_CustomFunction" else wrong.group(1))


def _no_second(operator: str) -> NotImplementedError:
    return NotImplementedError(
        f"MXNet has no second derivative of the operator {operator!r}. It has those of square, exp, log, sqrt, "
        "sin, cos, sigmoid, tanh, relu and elemwise_add; x * x is broadcast_mul, x ** n power_scalar"
    )
