"""Gradients as functions, MXNet's two modes, and a check of gradients by central differences in float64."""

from contextlib import contextmanager, suppress
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import arrays_in, is_numpy, legacy, of_kind, switches
from mxkit.core.blocks import distinct, is_numpy_net, net_devices, parameters_by_path, wait_before_reading
from mxkit.core.device import as_ndarray
from mxkit.core.replicas import holds_numpy, is_deferred, lend_values, values_of
from mxkit.gradients.custom import callback_error
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
            wrong = _WRONG_SECOND.search(autograd.get_symbol(value).tojson()) if recorded else None
            if wrong:
                raise _no_second("custom_gradient" if wrong.group(1) == "_CustomFunction" else wrong.group(1))
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
        if not is_floating(args[number]):
            received = f"{type(args[number]).__name__} of {getattr(args[number], 'dtype', 'no dtype')}"
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
            raise NotImplementedError("MXNet has no second derivatives of a hybridized net") from error
        if any(part in text for part in UNREACHED):
            text = f"the function's value does not depend on the argument by recorded operators. {CUTS}"
            inside = "inside autograd.record() the argument itself must have a gradient: x.attach_grad()"
            raise ValueError(f"{text}; {inside}") from error
        raise


def _no_second(operator: str) -> NotImplementedError:
    return NotImplementedError(
        f"MXNet has no second derivative of the operator {operator!r}. It has those of square, exp, log, sqrt, "
        "sin, cos, sigmoid, tanh, relu and elemwise_add; x * x is broadcast_mul, x ** n power_scalar"
    )


@contextmanager
def mode(*, record: Optional[bool] = None, train: Optional[bool] = None) -> Iterator[None]:
    """Set separately whether gradients are recorded, and whether layers behave as in training.

    By default, `autograd.record()` switches both on and `pause()` both off; this function changes only the modes that
    you name. Blocks may be nested: the innermost decides, and each restores the earlier modes.

    Args:
        record: Whether gradients are recorded. None does not change it.
        train: Whether dropout drops and BatchNorm uses the batch's statistics. None does not change it.

    Returns:
        A context manager that restores the earlier modes at its end, also after an error.

    >>> with mode(record=True):  # a gradient through the net as it predicts
    ...     mx.autograd.is_recording(), mx.autograd.is_training()
    (True, False)
    """
    before = autograd.is_recording(), autograd.is_training()
    try:
        if record is not None:
            autograd.set_recording(record)
        if train is not None:
            autograd.set_training(train)
        yield
    finally:
        autograd.set_recording(before[0])
        autograd.set_training(before[1])


_COARSE_STEP = {"eps": 1e-2, "rtol": 1e-2, "atol": 1e-3}
_COARSE = "Keep float64 in it, or pass dtype='float32', eps=1e-2, rtol=1e-2, atol=1e-3"


class GradientCheck(NamedTuple):
    """Result of `check_gradient`.

    Attributes:
        array: Array of the worst element: "input 0", or a parameter's path.
        place: Index of the worst element.
        analytic: Its gradient by autograd.
        numeric: Its gradient by differences.
        excess: Their distance in tolerances; above 1 is wrong.
        compared: Number of elements compared.
        kinks: Number of elements skipped because `f` has a kink there.
    """

    array: str
    place: Tuple[int, ...]
    analytic: float
    numeric: float
    excess: float
    compared: int
    kinks: int


def check_gradient(
    f: Function,
    *inputs: Any,
    wrt: Optional[Which] = None,
    dtype: str = "float64",
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
    skip_kinks: bool = False,
    limit: int = 100,
    train_mode: bool = False,
) -> GradientCheck:
    """Compare autograd's gradient of `f` with central differences, in float64.

    If `f`'s value has several elements, they are summed with fixed random weights, so that errors cannot cancel; the
    reported numbers are slopes of that sum.

    Args:
        f: A function of arrays that returns one NDArray; or a Block, such as a loss, whose trainable parameters are
            checked too. It runs as it is, hybridized or not.
        inputs: NDArrays or NumPy arrays; floating-point arrays are cast to `dtype`.
        wrt: Numbers of the inputs to check, from 0; None checks all of floating point. Exclude class numbers.
        dtype: Dtype of the computation. For layers of MXNet that compute in float32 only (LeakyReLU, PReLU, GELU, RNN),
            use `dtype="float32", eps=1e-2, rtol=1e-2, atol=1e-3`, because differences of float32 are coarse.
        eps: The step, multiplied by the element's absolute value if that is above 1.
        rtol: Tolerance relative to the larger of both numbers.
        atol: Tolerance added to it.
        skip_kinks: Whether to skip elements at which the slopes on both sides differ.
        limit: Number of elements compared in each array, the same ones in each call.
        train_mode: Whether dropout and batch normalization behave as in training.

    Returns:
        The worst element, and counts.

    Raises:
        ArithmeticError: A gradient is wrong or NaN; the text names the worst element.
        ValueError: `f` gives different values in two calls, or NaN, or cannot compute in float64.
        NotInitializedError: A parameter of the Block has no value.

    Side effects:
        A deferred initialization is finished. Parameters, their gradients and running statistics do not change.

    >>> check_gradient(lambda x: x.sin() * x, mx.nd.array([1, 2, 3])).compared
    3
    >>> check_gradient(lambda x: x.detach() * x, mx.nd.array([2]))
    Traceback (most recent call last):
    ArithmeticError: the gradient is wrong at input 0[0]: autograd says 2, a difference says 4; 1 of 1 elements differ
    """
    wait_before_reading()
    numpy = numpy_of(f, inputs)
    with switches(numpy):
        arrays = [_cast(array, dtype) for array in inputs]
        numbers = [i for i, array in enumerate(arrays) if is_floating(array)] if wrt is None else as_numbers(wrt)
        if isinstance(f, gluon.Block):
            net_devices(f)  # raises NotInitializedError
            if any(map(is_deferred, parameters_by_path(f).values())):
                with autograd.pause():
                    f(*[of_kind(as_ndarray(one) if isinstance(one, np.ndarray) else one, numpy) for one in inputs])
        with _parameters_as(dtype, f, arrays) as parameters:
            arrays, leaves = leaves_of(arrays, numbers, numpy, copy=True)
            named = {**{f"input {number}": leaf for number, leaf in zip(numbers, leaves)}, **parameters}

            def judged(eps: float, rtol: float, atol: float) -> GradientCheck:
                function = _WeightedSum(lambda: f(*arrays), train_mode, eps, (rtol, atol))
                slopes = [
                    (name, index, float(gradient[index]), *function.limits(leaf, index, float(gradient[index])))
                    for (name, leaf), gradient in zip(named.items(), function.gradients(list(named.values())))
                    for index in _indices(leaf.shape, limit)
                ]
                return _judge(slopes, rtol, atol, skip_kinks)

            try:
                return judged(eps, rtol, atol)
            except ArithmeticError as error:
                with suppress(ArithmeticError):
                    judged(**_COARSE_STEP)
                    text = "With coarse steps they agree: a layer may compute in float32 only, as LeakyReLU and RNN do"
                    error.args = (f"{error}. {text}. {_COARSE}",)
                raise


def _excess(one: float, other: float, rtol: float, atol: float) -> float:
    """Distance of two gradients, in tolerances."""
    excess = abs(one - other) / (atol + rtol * max(abs(one), abs(other)))
    return excess if np.isfinite(excess) else float("inf")


def _cast(array: Any, dtype: str) -> Any:
    if isinstance(array, np.ndarray):
        array = mx.nd.array(array, dtype="float64") if array.dtype.kind == "f" else as_ndarray(array)
    return array.astype(dtype) if is_floating(array) else array


@contextmanager
def _parameters_as(dtype: str, f: Function, arrays: Sequence[Any]) -> Iterator[Dict[str, Any]]:
    """Lend values of `dtype` to a Block's parameters; yield those of trainable ones, with gradients, by path."""
    parameters = distinct(parameters_by_path(f)) if isinstance(f, gluon.Block) else {}
    originals: Dict[str, Any] = {
        path: values_of(one) for path, one in parameters.items() if np.dtype(one.dtype).kind == "f"
    }
    device = next((array.ctx for array in arrays if isinstance(array, mx.nd.NDArray)), mx.cpu())
    lent: Dict[str, Any] = {}
    try:
        for path, replicas in originals.items():
            leaf = parameters[path].data(device).astype(dtype)
            lend_values(parameters[path], [leaf if value.ctx == leaf.ctx else value for value in replicas])
            if parameters[path].grad_req != "null":
                leaf.attach_grad()
                lent[path] = leaf
        yield lent
    finally:
        for path, replicas in originals.items():
            lend_values(parameters[path], replicas)


def _indices(shape: Tuple[int, ...], limit: int) -> List[Tuple[int, ...]]:
    """Indices of the elements to compare: all, or `limit` random ones that are the same in each call."""
    size = int(np.prod(shape))
    chosen = range(size) if size <= limit else sorted(np.random.RandomState(0).choice(size, limit, replace=False))
    return [tuple(int(axis) for axis in np.unravel_index(number, shape)) for number in chosen]


class _WeightedSum:
    """The sum of a function's elements with fixed random weights, at one point."""

    def __init__(self, call: Callable[[], Any], train_mode: bool, eps: float, tolerances: Tuple[float, float]) -> None:
        self._call, self._train_mode, self._eps, self._tolerances = call, train_mode, eps, tolerances
        self._middle = self._value()
        if not np.isfinite(self._middle).all():
            raise ValueError("check_gradient: the function's value is not finite at this point")
        if not np.array_equal(self._middle, self._value()):
            raise ValueError("check_gradient: the function gives other values when it is called again; is it random?")
        self._weights = np.random.RandomState(1).uniform(0.5, 1.5, self._middle.shape)
        if self._middle.size == 1:
            self._weights[...] = 1

    def _value(self) -> Any:
        with autograd.pause(train_mode=self._train_mode):
            value = one_array(self._call())
        if value.dtype != np.float64 and self._eps < 1e-3:
            text = f"from float64 inputs the function computed {np.dtype(value.dtype)}, too coarse"
            raise ValueError(f"check_gradient: {text} for a step of {self._eps:g}. {_COARSE}")
        return value.asnumpy().astype(np.float64)

    def gradients(self, leaves: Sequence[Any]) -> List[Any]:
        """Autograd's gradients; zeros for arrays that the graph does not contain."""
        with autograd.record(train_mode=self._train_mode):
            value = self._call()
            identities = [mx.nd.identity(leaf) for leaf in legacy(leaves)]  # these bring every array into the graph
        zeros = [mx.nd.zeros_like(leaf) for leaf in legacy(leaves)]
        weights = mx.nd.array(self._weights, ctx=value.ctx, dtype=value.dtype)
        try:
            gradients = autograd.grad(
                [value, *identities], list(leaves), [weights, *zeros], train_mode=self._train_mode
            )
            return [gradient.asnumpy() for gradient in gradients]
        except mx.MXNetError as error:
            if UNREACHED[0] in str(error):
                return [zero.asnumpy() for zero in zeros]
            raise (callback_error() or error) from error

    def limits(self, leaf: Any, index: Tuple[int, ...], analytic: float) -> List[float]:
        """Slopes at one element, with a finer step if they are far from autograd's.

        If the second derivative jumps, as at a margin, the error is proportional to the step; the limit for a step of 0
        is then exact.
        """
        slopes = self.slopes(leaf, index, self._eps)
        if _excess(analytic, slopes[0], *self._tolerances) > 1:
            finer = self.slopes(leaf, index, self._eps / 16)
            limits = [fine + (fine - slope) / 15 for fine, slope in zip(finer, slopes)]
            if _excess(analytic, limits[0], *self._tolerances) <= 1:
                return limits
        return slopes

    def slopes(self, leaf: Any, index: Tuple[int, ...], eps: float) -> List[float]:
        """Slopes at one element: across it, right of it, and left of it."""
        base, view = leaf.asnumpy(), legacy(leaf)  # mx.np refuses [:] for shape ()
        step = eps * max(1.0, abs(float(base[index])))
        ends = []
        try:
            for sign in (1, -1):
                moved = base.copy()
                moved[index] += sign * step
                view[:] = moved
                ends.append(self._value())
        finally:
            view[:] = base
        up, down = ends
        pairs = (up - down) / 2, up - self._middle, self._middle - down
        return [float((self._weights * pair).sum() / step) for pair in pairs]


def _judge(slopes: Sequence[Any], rtol: float, atol: float, skip_kinks: bool) -> GradientCheck:
    """Return the worst of `(array, index, analytic, numeric, right, left)`; raise if its gradient is wrong."""
    judged: List[Tuple[float, float, bool, Any]] = []
    for slope in slopes:
        _, _, analytic, numeric, right, left = slope
        excess = _excess(analytic, numeric, rtol, atol)
        is_kink = excess > 1 and abs(right - left) > 10 * atol + 1e-3 * max(abs(right), abs(left))
        if not (is_kink and skip_kinks and np.isfinite(analytic)):
            judged.append((excess, abs(analytic - numeric), is_kink, slope))
    nothing = (0.0, 0.0, False, ("", (), 0.0, 0.0, 0.0, 0.0))
    excess, _, is_kink, (array, index, analytic, numeric, right, left) = max(
        judged, key=lambda row: row[:2], default=nothing
    )
    wrong = sum(row[0] > 1 for row in judged)
    if not wrong:
        return GradientCheck(array, index, analytic, numeric, excess, len(judged), len(slopes) - len(judged))
    where = f"{array}[{', '.join(map(str, index))}]"
    text = f"autograd says {analytic:.6g}, a difference says {numeric:.6g}; {wrong} of {len(slopes)} elements differ"
    if is_kink:
        text += f". There is a kink or a jump: the slope is {right:.6g} right of it and {left:.6g} left. Move the point"
        text += ", or pass skip_kinks=True"
    raise ArithmeticError(f"the gradient is wrong at {where}: {text}")
