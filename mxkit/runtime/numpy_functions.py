"""Functions of `mx.np` that have no gradient, or are left to NumPy (T142, T146), and normal vectors (T155).

`mxkit.runtime.numpy_operators` and `mxkit.runtime.repairs` apply their repairs.
"""

from types import ModuleType
from typing import Any, Callable, Set
import warnings

from mxkit.errors import TrapWarning
from mxkit.runtime.operators import Operator, is_recording, mxnet_module, replace


def without_gradient(name: str) -> Callable[[Operator], Operator]:
    """A function whose gradient is 0 in MXNet; the first call that would need it warns (T142).

    Args:
        name: The function, as users call it.
    """

    def wrapper(function: Operator) -> Operator:
        def run(*args: Any, **kwargs: Any) -> Any:
            if name not in _REPORTED and is_recording() and args and _in_graph(args[0]):
                _REPORTED.add(name)
                message = (
                    f"{name} has no gradient in MXNet: parameters before it get the gradient 0 through it, without an "
                    "error. Call it outside autograd.record(), or on x.detach() if the 0 is meant (docs/traps.md)"
                )
                warnings.warn(message, TrapWarning, stacklevel=4)
            return function(*args, **kwargs)

        return run

    return wrapper


_REPORTED: Set[str] = set()


def _in_graph(array: Any) -> bool:
    from mxnet.base import MXNetError

    if not isinstance(array, mxnet_module("ndarray").NDArray):
        return False
    try:
        mxnet_module("autograd").get_symbol(array)
    except MXNetError:  # "NDArray is not part of a computation graph"
        return False
    return True


#: Operators on an array and a number, which MXNet cuts beside integers; then those whose results are no integers.
WITH_NUMBERS = (
    *("add", "subtract", "rsubtract", "multiply", "mod", "rmod", "power", "rpower", "maximum", "minimum"),
    *("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
)
NEVER_WHOLE = ("arctan2", "copysign", "rcopysign", "hypot", "ldexp", "rldexp")


def with_fractions(always: bool = False) -> Callable[[Operator], Operator]:
    """An operator on an array of integers and a number with a fraction, which MXNet cuts (T240): 3 * 0.5 is 0.

    The result is float64, as in a graph of MXNet. The caller's `out` stays as it is.

    Args:
        always: Also for whole numbers: the hypotenuse of 2 and 3 is no integer.
    """

    def wrapper(operator: Operator) -> Operator:
        def run(array: Any, scalar: Any, *args: Any, **kwargs: Any) -> Any:
            cut = always or (type(scalar) is float and not scalar.is_integer())
            if cut and kwargs.get("out") is None and is_whole(array):
                kwargs["is_int"] = False
            return operator(array, scalar, *args, **kwargs)

        return run

    return wrapper


def is_whole(array: Any) -> bool:
    """Whether an array holds integers or booleans; a symbol may."""
    import numpy

    return isinstance(array, mxnet_module("symbol").Symbol) or numpy.dtype(array.dtype).kind in "iub"


def at_least(axes: int) -> Callable[[Operator], Operator]:
    """`np.atleast_1d`, `_2d` or `_3d` by a reshape, which has a gradient (T142)."""

    def wrapper(function: Operator) -> Operator:
        def reshaped(array: Any) -> Any:
            shape = array.shape
            if len(shape) < axes:
                shape = (1,) * (min(axes, 2) - len(shape)) + shape
                shape += (1,) * (axes - len(shape))
            return mxnet_module("ndarray.numpy._op").reshape(array, shape)

        def run(*arrays: Any) -> Any:
            if not is_recording():
                return function(*arrays)
            return reshaped(arrays[0]) if len(arrays) == 1 else [reshaped(array) for array in arrays]

        return run

    return wrapper


def differentiable_polynomial(polyval: Operator) -> Operator:
    """`np.polyval` from products and sums, whose gradients are right (T142): MXNet writes none for `x`."""

    def run(p: Any, x: Any) -> Any:
        if not (is_recording() and hasattr(x, "shape")):
            return polyval(p, x)
        value = mxnet_module("ndarray.numpy._op").broadcast_to(p[0], x.shape)
        for coefficient in p[1:]:
            value = value * x + coefficient
        return value

    return run


def dispatched_operators(module: ModuleType) -> None:
    """T146: functions that MXNet leaves to NumPy, called while gradients are recorded.

    The ValueError of MXNet calls `format` on itself, an AttributeError; since NumPy 1.22 the ufunc `true_divide` is
    called "divide", so that `numpy.float64(2) / x` was one of them. Upstream: `numpy/multiarray.py` lines 251 and 274.

    T279: arguments that MXNet's functions refuse, like numbers, lists and arrays of NumPy. NumPy's function computes
    them, outside `record`, and returns NumPy's arrays. Matplotlib makes such calls.
    """
    multiarray = mxnet_module("numpy.multiarray")
    multiarray._NUMPY_ARRAY_UFUNC_DICT.setdefault("divide", multiarray._NUMPY_ARRAY_UFUNC_DICT["true_divide"])

    def call(name: str, by_numpy: Any, by_mxnet: Any, args: Any, kwargs: Any) -> Any:
        out = kwargs.get("out")
        if by_mxnet is not None:
            try:
                return by_mxnet(*args, **kwargs)
            except (AssertionError, AttributeError, NotImplementedError, TypeError):
                if is_recording() or isinstance(out, multiarray.ndarray):
                    raise
        elif is_recording():
            raise ValueError(
                f"MXNet leaves {name} to NumPy, which records no gradients: call it outside autograd.record(), on "
                "x.detach(), or compute it from operators of mx.np and npx (docs/traps.md)"
            )
        (arrays, *options), context = multiarray._as_onp_array((args, *kwargs.values()))
        result = by_numpy(*arrays, **dict(zip(kwargs, options)))
        if isinstance(args[0] if result is None else out, multiarray.ndarray):
            raise TypeError(f"{name} writes into MXNet's array, of which NumPy has a copy: assign with x[...] = values")
        if by_mxnet is not None or out is not None:
            return result
        try:
            return multiarray._as_mx_np_array(result, ctx=context)
        except (TypeError, ValueError):  # MXNet has no arrays of complex numbers or texts
            return result

    def array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        known = multiarray._NUMPY_ARRAY_UFUNC_DICT.get(ufunc.__name__) if method == "__call__" else None
        return call("numpy." + ufunc.__name__, getattr(ufunc, method), known, inputs, kwargs)

    def array_function(self: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            raise TypeError(f"{name} got arrays of NumPy and of MXNet: convert one kind to the other")

        name = f"{function.__module__}.{function.__name__}"
        known = multiarray._NUMPY_ARRAY_FUNCTION_DICT.get(function)
        if known is not None and not all(issubclass(kind, multiarray.ndarray) for kind in types):
            known = refuse
        return call(name, function, known, args, kwargs)

    multiarray.ndarray.__array_ufunc__ = staticmethod(array_ufunc)
    multiarray.ndarray.__array_function__ = staticmethod(array_function)


def normal_vectors(module: ModuleType) -> None:
    """T155: `np.random.multivariate_normal` multiplies by the transposed Cholesky factor, so its covariance is another.

    It draws in a Python operator, in another thread. Upstream: `numpy_op_fallback.py` line 185.
    """

    def with_covariance(upstream: Any) -> Any:
        def multivariate_normal(mean: Any, cov: Any, size: Any = None, check_valid: Any = None, tol: Any = None) -> Any:
            if check_valid is not None or tol is not None:
                return upstream(mean, cov, size, check_valid, tol)
            import numpy

            np = mxnet_module("numpy")
            size = () if size is None else tuple(numpy.atleast_1d(numpy.array(size, dtype=int)).tolist())
            shape = numpy.broadcast(numpy.empty(mean.shape), numpy.empty(cov.shape[:-1])).shape
            noise = np.random.normal(size=size + shape, dtype=str(numpy.dtype(mean.dtype)), ctx=mean.ctx)
            return mean + (np.linalg.cholesky(cov) * np.expand_dims(noise, -2)).sum(axis=-1)

        return multivariate_normal

    replace(module, multivariate_normal=with_covariance)
