"""Repairs of arrays and numbers: what NumPy and MXNet convert into each other, arguments as text, sums of metrics.

`mxkit.runtime.repairs` lists them.
"""

import functools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Iterator, Optional

from mxkit.runtime.old_names import Overlay
from mxkit.runtime.operators import around, is_recording, mxnet_module, replace
from mxkit.runtime.wheels import release
import numpy

NUMPY = release(numpy.__version__)


def operator_arguments(module: ModuleType) -> None:
    """T86, NumPy 2: `str((np.int64(2), 3))` became "(np.int64(2), 3)", which MXNet's C++ parser rejects.

    The modules get a global `str`, which their functions find before the builtin one; `symbol/symbol.py` also evaluates
    `isinstance(backend, str)` (line 1497). Upstream: `_ctypes/ndarray.py` lines 90 and 119, `_ctypes/symbol.py` lines
    100 and 131, `io/io.py` line 969, `symbol/symbol.py` lines 1589, 2957 and 2976.
    """
    if NUMPY >= (2,):
        text = OperatorText if module.__name__ == "mxnet.symbol.symbol" else operator_text
        module.str = text  # type: ignore[attr-defined]


# Types whose `repr` is the same in every NumPy.
_PLAIN = (int, float, str, bool, type(None))


def operator_text(value: Any = "") -> str:
    """Return `str(value)`, with NumPy scalars inside tuples and lists written as NumPy 1 did.

    MXNet passes the arguments of an operator to C++ as text. NumPy 2 writes a scalar inside a tuple as "np.int64(2)",
    which the C++ parser rejects (T86).

    >>> operator_text((np.int64(2), [np.float32(0.1)])), operator_text((2, None, "x")), operator_text(2.5)
    ('(2, [0.1])', "(2, None, 'x')", '2.5')
    """
    kind = type(value)
    if kind is tuple or kind is list:
        for item in value:
            if type(item) not in _PLAIN and NUMPY >= (2,):
                with numpy.printoptions(legacy="1.25"):
                    return str(value)
    return str(value)


class _OperatorTextType(type):
    """Makes `OperatorText(x)` return text and `isinstance(x, OperatorText)` test for `str`."""

    __call__: Any = staticmethod(operator_text)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, str)


class OperatorText(metaclass=_OperatorTextType):
    """Replaces `str` in modules that call it and also evaluate `isinstance(x, str)`."""


def random_sizes(module: ModuleType) -> None:
    """`size=np.int64(2)`: `size == ()` is an empty array, whose truth value warns, and is an error since NumPy 2.2.

    Upstream: `ndarray/numpy/random.py` line 130 and twelve more, the same in `symbol/numpy/random.py`, and
    `numpy_extension/random.py` of both, lines 86, 166 and 253.
    """
    for name in {*vars(module)["__all__"], "choice"} & {*vars(module)}:  # the list of the symbols lacks `choice`
        function = getattr(module, name)
        if not hasattr(function, "__wrapped__"):
            setattr(module, name, functools.wraps(function)(around(_with_python_integers)(function)))


def rayleigh_scale(module: ModuleType) -> None:
    """T242: `np.random.rayleigh` has the scale 0 in graphs by default. Upstream: `symbol/numpy/random.py` line 478."""
    if not hasattr(module.rayleigh, "__wrapped__"):
        _, *others = module.rayleigh.__defaults__
        module.rayleigh.__defaults__ = (1.0, *others)


def _with_python_integers(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    def python_integer(value: Any) -> Any:
        return int(value) if isinstance(value, numpy.integer) else value

    return function(*map(python_integer, args), **{name: python_integer(value) for name, value in kwargs.items()})


def normal_vectors(module: ModuleType) -> None:
    """T155: `np.random.multivariate_normal` multiplies by the transposed Cholesky factor, so its covariance is another.

    It draws in a Python operator, in another thread. Upstream: `numpy_op_fallback.py` line 185.
    """

    def with_covariance(
        upstream: Any, mean: Any, cov: Any, size: Any = None, check_valid: Any = None, tol: Any = None
    ) -> Any:
        if check_valid is not None or tol is not None:
            return upstream(mean, cov, size, check_valid, tol)
        np = mxnet_module("numpy")
        size = () if size is None else tuple(numpy.atleast_1d(numpy.array(size, dtype=int)).tolist())
        shape = numpy.broadcast(numpy.empty(mean.shape), numpy.empty(cov.shape[:-1])).shape
        noise = np.random.normal(size=size + shape, dtype=str(numpy.dtype(mean.dtype)), ctx=mean.ctx)
        return mean + (np.linalg.cholesky(cov) * np.expand_dims(noise, -2)).sum(axis=-1)

    replace(module, multivariate_normal=around(with_covariance))


def array_methods(module: ModuleType) -> None:
    """NumPy 1.25: functions of `numpy.linalg` return named tuples, which cannot be built from a list.

    Upstream: `numpy/multiarray.py` line 149, for functions that MXNet leaves to NumPy, like `mx.np.linalg.qr`.
    Every NumPy: line 1626 raises the sorted array, so that `x.sort()` ends in a TypeError; matplotlib calls
    `x.ravel()`, which the class lacks (T279). T282: Python's protocol of sequences iterates over an array of no axes.
    """

    def returned_sort(upstream: Any, self: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
        return vars(module)["sort"](self, axis=axis, kind=kind, order=order)

    def rows(self: Any) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return map(self.__getitem__, range(len(self)))

    def with_named_tuples(upstream: Any, object: Any, ctx: Any = None) -> Any:
        if hasattr(object, "_make"):
            return object._make(with_named_tuples(upstream, value, ctx) for value in object)
        return upstream(object, ctx)

    if NUMPY >= (1, 25):
        replace(module, _as_mx_np_array=around(with_named_tuples))
    replace(module.ndarray, sort=around(returned_sort))
    module.ndarray.ravel, module.ndarray.__iter__ = module.ndarray.flatten, rows


def fix_function(module: ModuleType) -> None:
    """NumPy 2.5: `numpy.fix` warns, so the view has its own; `numpy.fix` itself must stay in MXNet's table.

    Upstream: `numpy_dispatch_protocol.py` line 101.
    """
    if NUMPY >= (2, 5):
        protocol: Any = module
        protocol._NUMPY_ARRAY_FUNCTION_DICT[numpy.fix] = protocol.mx_np.fix


def dispatched_functions(module: ModuleType) -> None:
    """T146: functions that MXNet leaves to NumPy, called while gradients are recorded.

    The ValueError of MXNet calls `format` on itself, an AttributeError; since NumPy 1.22 the ufunc `true_divide` is
    called "divide", so that `numpy.float64(2) / x` was one of them. Upstream: `numpy/multiarray.py` lines 251 and 274.

    T279: arguments that MXNet's functions refuse: numbers, lists and NumPy arrays. NumPy's function computes
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


def array_conversion(module: ModuleType) -> None:
    """T253: weights are read in their turn. T88: `np.asarray(NDArray)` gave objects, or ValueError since NumPy 1.24.

    A prediction that waits in the engine reorders the weights of convolutions and dense layers for oneDNN, in their
    memory; `asnumpy` did not wait for it, and read both orders. Upstream: `ndarray/ndarray.py` line 2550.
    T255: after a prediction, weights of Conv1D and Conv3D cannot be copied into (`ndarray.cc` line 1146).
    T276, T277: what `asnumpy` and `asscalar` return (line 2590) is a number as in NumPy 1. T278: an array as a dtype.

    Upstream: `ndarray/ndarray.py` line 220, whose class has no `__array__`; `mx.np.ndarray` and the sparse arrays
    derive from it. Matplotlib, scikit-learn and pandas call `__array__` too.
    """
    nd: Any = module

    def to_numpy(self: Any, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """Copy the values to NumPy; NumPy calls this."""
        if copy is False:
            raise ValueError(f"a {type(self).__name__} cannot be read by NumPy without a copy: leave out copy=False")
        values = self.asnumpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def in_turn(asnumpy: Callable[[Any], Any], self: Any) -> Any:
        # only parameters have gradients; a copy waits for what the engine does with them
        values = asnumpy(_copy_of_weight(self) if self.ndim > 1 and self.grad is not None else self)
        return number_like(values)

    def into_weights(copyto: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
        if isinstance(other, nd.NDArray) and other.ndim in (3, 5) and other.grad is not None:
            other[:] = 0  # in the usual layout
        return copyto(self, other)

    if "__array__" not in vars(nd.NDArray):
        nd.NDArray.__array__ = to_numpy
        nd.NDArray.__numpy_dtype__ = property(lambda self: numpy.dtype(self.dtype))
        if NUMPY >= (2,):
            replace(nd.NDArray, asscalar=around(lambda asscalar, self: number(asscalar(self))))
        replace(nd.NDArray, asnumpy=around(in_turn), copyto=around(into_weights))


def _copy_of_weight(array: Any) -> Any:
    if array.stype != "default":
        return array
    with mxnet_module("autograd").pause():
        return array.copy()


# What `asnumpy` and `asscalar` return, as numbers of NumPy 1: Gluon code prints, adds up and assigns such losses.
def _converted(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: convert(numpy.asarray(self).reshape(() if self.size == 1 else self.shape))


def number_like(values: Any) -> Any:
    """An array of NumPy; one that has one element and an axis becomes a number where Python asks for one (T276)."""
    needs_it = type(values) is numpy.ndarray and values.size == 1 and values.ndim and NUMPY >= (1, 25)
    return values.view(ndarray) if needs_it else values


class ndarray(numpy.ndarray):  # noqa: N801
    """An array of one element that Python converts to a number, whatever its number of axes (T276).

    Results of NumPy's operators that have one element are such arrays too; others are plain ones. It has the name of
    its base class, and is pickled as that.
    """

    __module__ = "numpy"
    __float__, __int__, __complex__ = _converted(float), _converted(int), _converted(complex)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if not array.ndim:
            return array[()]
        return array.view(ndarray if array.size == 1 else numpy.ndarray)

    def __reduce__(self) -> Any:
        return self.view(numpy.ndarray).__reduce__()

    def __repr__(self) -> str:
        return repr(self.view(numpy.ndarray))


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift")


_OPERATORS = (
    *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r")),
    *(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs")),
)


def _scalar_type(kind: Any, wide: Any) -> Any:
    """A subclass of a type of scalars that computes with Python's numbers in a wider type (T277), as NumPy 1 did."""

    def operator(name: str) -> Callable[..., Any]:
        compute, compute_widely = getattr(kind, name), getattr(wide, name)

        def run(self: Any, *other: Any) -> Any:
            if other and type(other[0]) in (int, float, complex):
                return compute_widely(wide(self), *other)
            return number(compute(self, *other))

        return run

    operators = {name: operator(name) for name in _OPERATORS if hasattr(wide, name)}
    # printed in a list, the scalar is "0.1" and not "numpy.float32(0.1)"
    same = {"__slots__": (), "__module__": "numpy", "__hash__": kind.__hash__, "__repr__": kind.__str__}
    return type(kind.__name__, (kind,), {**operators, **same})


_SCALARS: Dict[type, Any] = {
    **{kind: _scalar_type(kind, numpy.float64) for kind in (numpy.float16, numpy.float32)},
    **{kind: _scalar_type(kind, numpy.int64) for kind in (numpy.int8, numpy.uint8, numpy.int32)},
}


def number(value: Any) -> Any:
    """A scalar of NumPy that adds to Python's numbers in double precision; other values as they are."""
    kind = _SCALARS.get(type(value))
    return value if kind is None else kind(value)


def metric_sums(module: ModuleType) -> None:
    """NumPy 2 (T107): `0.0 + np.float32(x)` is float32, so a metric rounds its sum to 7 digits at each batch, silently.

    4,000 batches of a loss of 0.1 gave a sum of 400.015. Upstream: `metric.py` lines 1040, 1135, 1199, 1263, 1336, 1408
    and 1687, where `reset` (lines 149 to 157) left 0.0; `Perplexity` counts its words so too (line 1036).
    """
    if NUMPY >= (2,):
        for name in ("sum_metric", "global_sum_metric", "num_inst", "global_num_inst"):
            setattr(module.EvalMetric, name, _DoubleSum(name))


class _DoubleSum:
    """An attribute of metrics that reads floats in double precision, as NumPy 1 added; other types pass unchanged."""

    def __init__(self, name: str) -> None:
        self._name, self._double, self._floats = name, numpy.float64, (float, numpy.float32, numpy.float16)

    def __get__(self, metric: Any, owner: Optional[type] = None) -> Any:
        if metric is None:
            return self
        try:
            value = vars(metric)[self._name]
        except KeyError:
            raise AttributeError(f"{type(metric).__name__!r} object has no attribute {self._name!r}") from None
        return self._double(value) if type(value) in self._floats else value

    def __set__(self, metric: Any, value: Any) -> None:
        # Stored under its own name, so that copies, pickles and `vars` find it.
        vars(metric)[self._name] = value


def sparse_matrices(module: ModuleType) -> None:
    """SciPy 1.8: `scipy.sparse.csr` became private, warns at each access, and will be gone in SciPy 2.

    Upstream: `ndarray/utils.py` line 141, which each call of `mx.nd.array` runs, and `ndarray/sparse.py` lines 827,
    975 and 1641. `spsp` is None without SciPy.
    """
    sparse: Any = vars(module).get("spsp")
    if sparse is None or isinstance(sparse, Overlay) or release(sys.modules["scipy"].__version__) < (1, 8):
        return
    csr = SimpleNamespace(csr_matrix=sparse.csr_matrix)
    module.spsp = Overlay("scipy.sparse", csr=csr)  # type: ignore[attr-defined]
