"""Checks gradients: compares autograd with central differences in float64."""

from contextlib import contextmanager
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import legacy, of_kind, switches
from mxkit.core.blocks import distinct, net_devices, parameters_by_path, wait_before_reading
from mxkit.core.device import as_ndarray
from mxkit.core.replicas import is_deferred, lend_values, values_of
from mxkit.gradients.custom import callback_error
from mxkit.gradients.functions import (
    UNREACHED,
    Function,
    Which,
    as_numbers,
    is_floating,
    leaves_of,
    numpy_of,
    one_array,
)
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

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
        dtype: Dtype of the computation. For the few layers of MXNet that compute in float32 only, use
            `dtype="float32", eps=1e-2, rtol=1e-2, atol=1e-3`, because differences of float32 are coarse.
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
                    f(*[of_kind(_as_array(array), numpy) for array in inputs])
        with _parameters_as(dtype, f, arrays) as parameters:
            arrays, leaves = leaves_of(arrays, numbers, numpy, copy=True)
            named = {**{f"input {number}": leaf for number, leaf in zip(numbers, leaves)}, **parameters}
            function = _WeightedSum(lambda: f(*arrays), train_mode, eps)
            slopes = [
                _slopes_at(function, name, leaf, index, float(gradient[index]), eps, rtol, atol)
                for (name, leaf), gradient in zip(named.items(), function.gradients(list(named.values())))
                for index in _indices(leaf.shape, limit)
            ]
    return _judge(slopes, rtol, atol, skip_kinks)


def _as_array(array: Any) -> Any:
    return as_ndarray(array) if isinstance(array, np.ndarray) else array


class _Slopes(NamedTuple):
    """Slopes at one element: autograd's, the central difference, and the differences right and left of it."""

    array: str
    place: Tuple[int, ...]
    analytic: float
    numeric: float
    right: float
    left: float


def _slopes_at(
    function: "_WeightedSum",
    name: str,
    leaf: Any,
    index: Tuple[int, ...],
    analytic: float,
    eps: float,
    rtol: float,
    atol: float,
) -> _Slopes:
    numeric, right, left = function.slopes(leaf, index, eps)
    if _excess(analytic, numeric, rtol, atol) > 1:
        # If the second derivative jumps, as at a margin, the error is proportional to the step; the limit for a step of
        # 0 is then exact.
        finer = function.slopes(leaf, index, eps / 16)
        limits = [fine + (fine - slope) / 15 for fine, slope in zip(finer, (numeric, right, left))]
        if _excess(analytic, limits[0], rtol, atol) <= 1:
            numeric, right, left = limits
    return _Slopes(name, index, analytic, numeric, right, left)


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

    def __init__(self, call: Callable[[], Any], train_mode: bool, eps: float) -> None:
        self._call, self._train_mode, self._eps = call, train_mode, eps
        try:
            self._middle = self._value()
        except mx.MXNetError as error:
            if re.search("float64|double", str(error)):
                raise ValueError(f"check_gradient: the function cannot compute in float64. {_COARSE}") from error
            raise
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
            raise ValueError(
                f"check_gradient: from float64 inputs the function computed {np.dtype(value.dtype)}, too coarse for a "
                f"step of {self._eps:g}. {_COARSE}"
            )
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


def _excess(analytic: float, numeric: float, rtol: float, atol: float) -> float:
    """Distance of two gradients, in tolerances."""
    excess = abs(analytic - numeric) / (atol + rtol * max(abs(analytic), abs(numeric)))
    return excess if np.isfinite(excess) else float("inf")


def _judge(slopes: Sequence[_Slopes], rtol: float, atol: float, skip_kinks: bool) -> GradientCheck:
    """Return the worst element; raise if its gradient is wrong."""
    judged: List[Tuple[float, bool, _Slopes]] = []
    for one in slopes:
        excess = _excess(one.analytic, one.numeric, rtol, atol)
        is_kink = excess > 1 and abs(one.right - one.left) > 10 * atol + 1e-3 * max(abs(one.right), abs(one.left))
        if not (is_kink and skip_kinks and np.isfinite(one.analytic)):
            judged.append((excess, is_kink, one))
    nothing = (0.0, False, _Slopes("", (), 0.0, 0.0, 0.0, 0.0))
    excess, is_kink, worst = max(
        judged, key=lambda row: (row[0], abs(row[2].analytic - row[2].numeric)), default=nothing
    )
    wrong = sum(row[0] > 1 for row in judged)
    if not wrong:
        return GradientCheck(*worst[:4], excess, len(judged), len(slopes) - len(judged))
    text = (
        f"the gradient is wrong at {worst.array}[{', '.join(map(str, worst.place))}]: autograd says "
        f"{worst.analytic:.6g}, a difference says {worst.numeric:.6g}; {wrong} of {len(slopes)} elements differ"
    )
    if is_kink:
        text += (
            f". There is a kink or a jump: the slope is {worst.right:.6g} right of it and {worst.left:.6g} left. "
            "Move the point, or pass skip_kinks=True"
        )
    raise ArithmeticError(text)
