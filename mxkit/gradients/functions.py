"""Gradients of functions: `grad`, `value_and_grad`, `jacobian`."""

import re
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet import autograd
import numpy as np

Function = Callable[..., Any]
Which = Union[int, Sequence[int]]
_NO_SECOND = re.compile(r"Operator (?:_backward_)?(\S+) is non-differentiable")
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
        arguments, leaves = leaves_of(args, numbers, fresh=not recorded)
        if recorded:
            value = one_array(f(*arguments))
        else:
            with autograd.record(train_mode=train_mode):
                value = one_array(f(*arguments))
        if recorded:
            _check_second(value)
        found = _differentiate(value, leaves, head, recorded, autograd.is_training() if recorded else train_mode)
        return value, found[0] if isinstance(wrt, int) else tuple(found)

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
        arguments, leaves = leaves_of(args, numbers, fresh=True)
        with autograd.record(train_mode=train_mode):
            value = one_array(f(*arguments))
        rows = []
        for number in range(value.size):
            head = np.zeros(value.size, value.dtype)
            head[number] = 1
            weights = mx.nd.array(head.reshape(value.shape), ctx=value.context, dtype=value.dtype)
            rows.append(_differentiate(value, leaves, weights, False, train_mode, retain=True))
        found = [mx.nd.stack(*parts).reshape(value.shape + leaf.shape) for parts, leaf in zip(zip(*rows), leaves)]
        return found[0] if isinstance(wrt, int) else tuple(found)

    return run


def as_numbers(wrt: Which) -> Tuple[int, ...]:
    """The numbers of the arguments, as a tuple."""
    return (wrt,) if isinstance(wrt, int) else tuple(wrt)


def is_floating(one: Any) -> bool:
    """Whether an object is an NDArray that can have a gradient."""
    return isinstance(one, mx.nd.NDArray) and np.dtype(one.dtype).kind == "f"


def leaves_of(args: Sequence[Any], numbers: Sequence[int], fresh: bool) -> Tuple[List[Any], List[Any]]:
    """The arguments, and those to differentiate by; with `fresh` these are copies with gradients of their own."""
    args = list(args)
    for number in numbers:
        if not (0 <= number < len(args) and is_floating(args[number])):
            found = f"{type(args[number]).__name__}" if 0 <= number < len(args) else f"{len(args)} arguments"
            found += f" of {np.dtype(args[number].dtype)}" if found == "NDArray" else ""
            raise TypeError(f"argument {number} must be an NDArray of floating point to differentiate by; got {found}")
        if fresh:
            args[number] = args[number].detach()
            args[number].attach_grad()
    return args, [args[number] for number in numbers]


def one_array(value: Any) -> Any:
    """Refuse a value that is not an NDArray."""
    if not isinstance(value, mx.nd.NDArray):
        raise TypeError(f"the function must return one NDArray; it returned {type(value).__name__}: {value!r:.100}")
    return value


def _differentiate(
    value: Any, leaves: Sequence[Any], head: Optional[Any], create: bool, train_mode: bool, retain: bool = False
) -> List[Any]:
    if head is not None and head.shape != value.shape:
        raise ValueError(f"head must have the shape of the function's value, {value.shape}; received {head.shape}")
    try:
        return list(
            autograd.grad(
                value, list(leaves), head, retain_graph=create or retain, create_graph=create, train_mode=train_mode
            )
        )
    except mx.MXNetError as error:
        second = _NO_SECOND.search(str(error))
        if second:
            raise _no_second(second.group(1)) from error
        if "does not support higher order gradients" in str(error):
            raise NotImplementedError(
                "MXNet has no second derivatives of a hybridized net: leave it without a graph, net.hybridize(False)"
            ) from error
        if any(text in str(error) for text in UNREACHED):
            raise ValueError(
                f"the function's value does not depend on the argument by recorded operators. {CUTS}; inside "
                "autograd.record() the argument itself must have a gradient: x.attach_grad()"
            ) from error
        raise


def _check_second(value: Any) -> None:
    # for MXNet the gradient of a custom function on a leaf is a constant: its part would be missing (T112)
    if '"_CustomFunction"' in autograd.get_symbol(value).tojson():
        raise _no_second("custom_gradient")


def _no_second(operator: str) -> NotImplementedError:
    return NotImplementedError(
        f"MXNet has no second derivative of the operator {operator!r}. It has those of square, exp, log, sqrt, "
        "sin, cos, sigmoid, tanh, relu and elemwise_add; x * x is broadcast_mul, x ** n power_scalar"
    )
