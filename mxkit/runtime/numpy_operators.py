"""Repairs of operators of `mx.np`, above all of gradients that are wrong without an error (T140 to T145).

`mxkit.runtime.repairs` applies them.
"""

from types import ModuleType
from typing import Any, Callable, Tuple

from mxkit.runtime import operators
from mxkit.runtime.added_gradients import (
    add_in_legacy,
    add_in_methods,
    add_in_numpy,
    adding,
    adding_in_graphs,
    adding_optimized,
)
from mxkit.runtime.blocked_layouts import joining, slicing
from mxkit.runtime.numpy_functions import (
    NEVER_WHOLE,
    WITH_NUMBERS,
    at_least,
    differentiable_polynomial,
    is_whole,
    with_fractions,
    without_gradient,
)
from mxkit.runtime.numpy_symbols import moments_in_graphs
from mxkit.runtime.operators import Operator, is_recording, mxnet_module, replace


def with_filled_array(name: str, number_first: bool, kind: str) -> Callable[[Operator], Operator]:
    """An operator on an array and a number, computed by the operator on two arrays where gradients are needed (T140).

    The gradient of `np.where` with a number goes to the elements that the number replaced; that of
    `np.arctan2(number, x)` is of another function.

    Args:
        name: The operator on two arrays.
        number_first: Whether the number comes before the array.
        kind: "ndarray" or "symbol".
    """

    def wrapper(operator: Operator) -> Operator:
        def run(*args: Any, out: Any = None, **options: Any) -> Any:
            if kind == "ndarray" and not is_recording():
                return operator(*args, out=out, **options)
            *before, array, number = (*args, options["scalar"]) if "scalar" in options else args
            internal = mxnet_module(kind + ".numpy._internal")
            filled = internal.full_like(array, fill_value=number)
            return getattr(internal, name)(*before, *((filled, array) if number_first else (array, filled)), out=out)

        return run

    return wrapper


def with_positive_indices(gather: Operator) -> Operator:
    """Indexing by arrays whose gradient finds negative indices (T141): MXNet's writes before the array's memory."""

    def run(data: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        return gather(data, _positive(indices, data.shape) if is_recording() else indices, *args, **kwargs)

    return run


def with_checked_indices(scatter: Operator) -> Operator:
    """Assignment by arrays of indices (T141): MXNet's writes outside the array for negative and too large indices."""

    def run(lhs: Any, rhs: Any, indices: Any, shape: Tuple[int, ...], **kwargs: Any) -> Any:
        return scatter(lhs=lhs, rhs=rhs, indices=_in_bounds(indices, shape), shape=shape, **kwargs)

    return run


def with_checked_places(scatter_nd: Operator) -> Operator:
    """`scatter_nd` by indices of elements of the new array, as `with_checked_indices` (T281)."""

    def run(data: Any, indices: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        return scatter_nd(data, _in_bounds(indices, sizes), shape, *args, **kwargs)

    return run


def with_checked_rows(index_copy: Operator) -> Operator:
    """`index_copy` by indices of rows, as `with_checked_indices` (T281)."""

    def run(old_tensor: Any, index_vector: Any, *args: Any, **kwargs: Any) -> Any:
        rows = _in_bounds(index_vector.reshape((1, -1)), old_tensor.shape[:1])
        return index_copy(old_tensor, rows.reshape((-1,)), *args, **kwargs)

    return run


def _in_bounds(indices: Any, shape: Tuple[int, ...]) -> Any:
    """Refuse indices outside the array; make negative ones positive. Axis 0 of `indices` counts the axes of `shape`."""
    values = indices.asnumpy().astype("int64")
    for axis, (size, positions) in enumerate(zip(shape, values)):
        wrong = positions[(positions < -size) | (positions >= size)]
        if wrong.size:
            raise IndexError(f"index {wrong[0]} is out of bounds for axis {axis} with size {size}")
    return _positive(indices, shape) if (values < 0).any() else indices


def _positive(indices: Any, shape: Tuple[int, ...]) -> Any:
    """Add the length of its axis to each negative index; axis 0 of `indices` counts the axes of `shape`."""
    if indices.size == 0:
        return indices
    ndarray = mxnet_module("ndarray")
    numpy = type(indices) is mxnet_module("numpy").ndarray
    with mxnet_module("autograd").pause():
        positions = ndarray.cast(indices.as_nd_ndarray(), "int64")
        sizes = ndarray.array(shape[: len(positions)], ctx=positions.context, dtype="int64")
        sizes = sizes.reshape((-1,) + (1,) * (positions.ndim - 1))
        positions = positions + ndarray.broadcast_mul(positions < 0, sizes)
    return positions.as_np_ndarray() if numpy else positions


def differentiable_variance(root: bool, kind: str) -> Callable[[Operator], Operator]:
    """Variance or standard deviation with a gradient (T142), which is 0 in MXNet; the values have MXNet's bits.

    Args:
        root: Whether it is the standard deviation.
        kind: "ndarray" or "symbol".
    """

    def wrapper(operator: Operator) -> Operator:
        def run(
            a: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0, keepdims: bool = False, out: Any = None
        ) -> Any:
            if kind == "ndarray" and dtype is None and out is None and is_whole(a):
                a = a.astype("float32")  # the type of `np.mean`; MXNet gives whole numbers (T241)
            if kind == "symbol" and dtype is None:
                a = mxnet_module("symbol.numpy._internal").true_divide_scalar(a, scalar=1.0)  # T241; floats stay
            options = {"axis": axis, "dtype": dtype, "keepdims": keepdims}
            if out is not None or (kind == "ndarray" and not (is_recording() and _is_float(a))):
                return operator(a, ddof=ddof, out=out, **options)
            internal, total = mxnet_module(kind + ".numpy._internal"), mxnet_module(kind + ".numpy._op").sum
            squares = internal.square(a - internal.mean(a, axis=axis, keepdims=True))
            if ddof:
                count = total(internal.full_like(a, fill_value=1), **options)
                variance = total(squares, **options) / (count - ddof)
            else:
                variance = internal.mean(squares, **options)
            found = internal.sqrt(variance) if root else variance
            stop = mxnet_module(kind).BlockGrad
            values, same = operator(a, ddof=ddof, **options), stop(found.as_nd_ndarray()).as_np_ndarray()
            return stop(values.as_nd_ndarray()).as_np_ndarray() + (found - same)

        return run

    return wrapper


def _is_float(array: Any) -> bool:
    import numpy

    return bool(numpy.issubdtype(numpy.dtype(array.dtype), numpy.floating))


def with_whole_batches(matmul: Operator) -> Operator:
    """A product of stacks of matrices that broadcasts them first (T144).

    MXNet's gradient is wrong where an axis of length 1 follows a longer one: shapes (5, 1, 2, 3) and (5, 4, 3, 2).
    """

    def run(a: Any, b: Any, out: Any = None) -> Any:
        if is_recording() and min(a.ndim, b.ndim) > 2 and a.shape[:-2] != b.shape[:-2]:
            import numpy

            batch = numpy.broadcast(numpy.empty(a.shape[:-2]), numpy.empty(b.shape[:-2])).shape
            a, b = _spread(a, batch), _spread(b, batch)
        return matmul(a, b, out=out)

    return run


def _spread(array: Any, batch: Tuple[int, ...]) -> Any:
    lengths = array.shape[:-2]
    while lengths and lengths[0] == 1:  # leading axes are right
        lengths = lengths[1:]
    if lengths == batch[len(batch) - len(lengths) :]:
        return array
    return mxnet_module("ndarray.numpy._internal").broadcast_to(array, shape=(*batch, *array.shape[-2:]))


def matrix_norm(norm: Operator) -> Operator:
    """Norms of matrices by other operators (T144): MXNet multiplies their gradient by that of the result twice.

    Right are the Frobenius and the nuclear norm, and norms of vectors.
    """

    def run(x: Any, ord: Any = 2, axis: Any = None, **kwargs: Any) -> Any:  # noqa: A002
        wrong = abs(ord) in (1, 2, float("inf")) and kwargs.get("flag") not in (1, 2, -2)
        axes = axis if axis is not None else tuple(range(x.ndim))
        if not (is_recording() and wrong and isinstance(axes, tuple) and len(axes) == 2):
            return norm(x, ord=ord, axis=axis, **kwargs)
        np = mxnet_module("ndarray.numpy._op")
        rows, columns = axes if abs(ord) != float("inf") else axes[::-1]
        if abs(ord) == 2:
            value = _spectral_norm(np.moveaxis(x, axes, (-2, -1)), ord)
        else:
            sums = np.sum(np.abs(x), axis=rows, keepdims=True)
            value = (np.max if ord > 0 else np.min)(sums, axis=columns, keepdims=True)
        kept = tuple(1 if axis in (axes[0] % x.ndim, axes[1] % x.ndim) else size for axis, size in enumerate(x.shape))
        value = np.reshape(value, kept)
        return value if kwargs.get("keepdims") else np.squeeze(value, axis=axes)

    return run


def _spectral_norm(matrices: Any, ord: int) -> Any:  # noqa: A002
    """The largest (`ord` 2) or smallest (-2) singular value, from its singular vectors."""
    np = mxnet_module("ndarray.numpy._op")
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else np.swapaxes(matrices, -1, -2)
    with mxnet_module("autograd").pause():
        left, _, right = mxnet_module("ndarray.numpy.linalg").svd(wide)
        place = 0 if ord > 0 else left.shape[-1] - 1
        vectors = np.expand_dims(left[..., :, place], -1) * np.expand_dims(right[..., place, :], -2)
    return np.sum(wide * vectors, axis=(-2, -1))


def mean_of_nothing(mean: Operator) -> Operator:
    """A mean that gives an array of size 0 itself (T145): MXNet raises at a later read, or divides by 0."""

    def run(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, out: Any = None) -> Any:
        if a.size == 0 and axis is not None and out is None:
            axes = {number % a.ndim for number in (axis if isinstance(axis, tuple) else (axis,))}
            shape = [1 if number in axes else size for number, size in enumerate(a.shape)]
            if 0 in shape:
                kept = shape if keepdims else [size for number, size in enumerate(shape) if number not in axes]
                return mxnet_module("numpy").zeros(kept, dtype=dtype or a.dtype, ctx=a.ctx)
        return mean(a, axis=axis, dtype=dtype, keepdims=keepdims, out=out)

    return run


def eager_operators(module: ModuleType) -> None:
    """Operators of `mx.nd`. Upstream: `ndarray/register.py`."""
    operators.eager_operators(module)
    legacy_operators(module)


def symbolic_operators(module: ModuleType) -> None:
    """Operators of `mx.sym`. Upstream: `symbol/register.py`."""
    operators.symbolic_operators(module)
    legacy_operators(module)


def extension_operators(module: ModuleType) -> None:
    """Operators of `mx.npx`. Upstream: `numpy_extension/_register.py`, also of `mxnet.ndarray` and `mxnet.symbol`."""
    operators.extension_operators(module)
    if "symbol" not in module.__name__:
        name = module.__name__.partition(".")[2].replace("._register", "._op")
        replace(mxnet_module(name), gather_nd=with_positive_indices)


def legacy_operators(module: ModuleType) -> None:
    """T141, T143, T250, T251 and T281 in `mx.nd` or `mx.sym`."""
    kind = module.__name__.split(".")[1]
    if kind == "symbol":
        replace(mxnet_module("symbol.op"), moments=lambda moments: adding_in_graphs(moments_in_graphs(moments)))
    add_in_legacy(kind)
    if kind == "ndarray":
        replace(mxnet_module("ndarray.op"), gather_nd=with_positive_indices)
        replace(mxnet_module("ndarray.op"), Concat=joining, concat=joining, slice=slicing("nd"))
        replace(mxnet_module("ndarray.op"), scatter_nd=with_checked_places)
        replace(mxnet_module("ndarray.contrib"), index_copy=with_checked_rows)
        replace(mxnet_module("ndarray._internal"), _scatter_set_nd=with_checked_indices)


def numpy_operators(module: ModuleType) -> None:
    """T140 to T145 in `mx.np` and its symbols. Upstream: `ndarray/numpy/_register.py`, `symbol/numpy/_register.py`."""
    kind = module.__name__.split(".")[1]
    if kind == "ndarray":
        _repair_arrays()
    never = {name + "_scalar": with_fractions(always=True) for name in NEVER_WHOLE}
    replace(mxnet_module(kind + ".numpy._internal"), **never)
    replace(
        mxnet_module(kind + ".numpy._internal"),
        var=differentiable_variance(False, kind),
        std=differentiable_variance(True, kind),
        where_lscalar=with_filled_array("where", True, kind),
        where_rscalar=with_filled_array("where", False, kind),
        rarctan2_scalar=lambda arctan2: with_filled_array("arctan2", True, kind)(with_fractions(always=True)(arctan2)),
        einsum=adding_optimized(adding if kind == "ndarray" else adding_in_graphs),
    )
    add_in_numpy(kind)
    # `np.deg2rad` and `np.rad2deg` read operators that MXNet has under these names alone. Upstream: `_op.py` line 2914.
    internal = mxnet_module(kind + ".numpy._internal")
    internal.deg2rad, internal.rad2deg = internal.radians, internal.degrees


def _repair_arrays() -> None:
    """Repairs that need shapes, or an array that may be recorded: symbols have neither."""
    internal = mxnet_module("ndarray.numpy._internal")
    replace(internal, **{name + "_scalar": with_fractions() for name in WITH_NUMBERS})
    replace(
        internal,
        matmul=with_whole_batches,
        gather_nd=with_positive_indices,
        slice=slicing("np"),
        scatter_set_nd=with_checked_indices,
        mean=lambda mean: mean_of_nothing(adding(mean)),
        norm=lambda norm: matrix_norm(adding(norm)),
    )
    functions = mxnet_module("ndarray.numpy._op")
    replace(functions, **{name: without_gradient("np." + name) for name in ("percentile", "quantile", "unique")})
    replace(functions, polyval=differentiable_polynomial)
    names = ("eig", "eigh", "eigvals", "eigvalsh", "pinv")
    replace(mxnet_module("ndarray.numpy.linalg"), **{name: without_gradient("np.linalg." + name) for name in names})


def numpy_methods(module: ModuleType) -> None:
    """T142 and T143 in functions of `mx.np` that MXNet builds a second time. Upstream: `numpy/_register.py`."""
    replace(mxnet_module("numpy._op"), **{f"atleast_{axes}d": at_least(axes) for axes in (1, 2, 3)})
    add_in_methods()
