"""Repairs of operators: Dropout that follows the seed on a GPU, gradients that are wrong without an error, indices
outside of arrays, Custom operators with memory of their own. `mxkit.runtime.repairs` lists them."""

import functools
from itertools import accumulate
from math import gcd, prod
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Sequence, Set, Tuple
import warnings

from mxkit.errors import TrapWarning
import numpy

Function = Callable[..., Any]
Wrapper = Callable[[Function], Function]

# Klambauer et al. 2017, arXiv:1706.02515
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
_CUDNN_OFF = 4  # its position among Dropout's arguments

#: Classes of Custom operators by name, as they were registered.
PROPERTIES: Dict[str, Any] = {}


def mxnet_module(name: str) -> Any:
    """A module of MXNet that is imported: an import statement would take a third of a wrapper's time."""
    return sys.modules["mxnet." + name]


def is_recording() -> bool:
    """Whether gradients are recorded."""
    return bool(mxnet_module("autograd").is_recording())


def replace(owner: Any, **wrappers: Callable[[Any], Any]) -> None:
    """Wrap attributes of a module or class, and all references to them in MXNet's modules; a second call does nothing.

    Args:
        owner: The module or class.
        wrappers: For the name of each function or class, a function that takes it and returns its replacement.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "mxnet"]
    for name, wrapper in wrappers.items():
        upstream = vars(owner).get(name)
        if upstream is None or hasattr(upstream, "__wrapped__"):
            continue
        replacement = wrapper(upstream)
        if not isinstance(upstream, type):
            functools.update_wrapper(replacement, upstream)
        for holder in [owner, *modules]:
            if getattr(holder, "__dict__", {}).get(name) is upstream:
                setattr(holder, name, replacement)


def around(function: Function, *options: Any) -> Wrapper:
    """A wrapper of operators: a call of the operator becomes one of `function(*options, operator, ...)`."""

    def wrapper(operator: Function) -> Function:
        return lambda *args, **kwargs: function(*options, operator, *args, **kwargs)

    return wrapper


def seeded(dropout: Function, *args: Any, **kwargs: Any) -> Any:
    """Dropout that draws from MXNet's own generator, unless the caller sets `cudnn_off` (T125).

    cuDNN's generator starts from C's `rand()` (`src/operator/nn/dropout-inl.h` line 494), and `mx.random.seed` never
    reaches it (`src/resource.cc` lines 173 to 185; apache/mxnet#15662). The CPU ignores the argument.
    """
    if len(args) <= _CUDNN_OFF:
        kwargs.setdefault("cudnn_off", True)
    return dropout(*args, **kwargs)


def predicting(arguments: Dict[str, Tuple[int, Any]], operator: Function, *args: Any, **kwargs: Any) -> Any:
    """An operator that, recorded in predict mode, runs in training mode with arguments that make it predict.

    Only training mode keeps what the gradient reads, and makes it the gradient of the outputs. BatchNorm's gradient
    depends on the mode of `backward`, by default training, and uses the batch's statistics then; cuDNN's uses them in
    either mode (T130; `cudnn_batch_norm-inl.h` line 196; apache/mxnet#18209). oneDNN's max pooling stores the
    positions of the largest elements in training mode only, and its gradient reads them in either mode (T137;
    `mkldnn_pooling.cc` line 58); BatchNorm with ReLU, and recurrent layers on a GPU (`rnn-inl.h`), do the same.

    Args:
        arguments: Position and value by name.
    """
    if not records_prediction():
        return operator(*args, **kwargs)
    for name, (position, value) in arguments.items():
        if len(args) > position:
            args = (*args[:position], value, *args[position + 1 :])
        else:
            kwargs[name] = value
    with mxnet_module("autograd").train_mode():
        return operator(*args, **kwargs)


def differentiable_selu(leaky_relu: Function, *args: Any, **kwargs: Any) -> Any:
    """LeakyReLU whose SELU has a gradient (T139): MXNet's is off by a third below 0. The outputs have MXNet's bits."""
    if kwargs.get("act_type") != "selu" or not is_recording():
        return leaky_relu(*args, **kwargs)
    ndarray, data = mxnet_module("ndarray"), args[0] if args else kwargs["data"]
    x = data.as_nd_ndarray()
    found = ndarray.where(x > 0, x, ndarray.expm1(ndarray.minimum(x, 0)) * SELU_ALPHA) * SELU_SCALE
    return found if type(data) is ndarray.NDArray else found.as_np_ndarray()


def checked_reshape(reshape: Function, data: Any, shape: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`mx.nd.reshape` that refuses another number of elements (T252): MXNet's writes outside the array.

    Raises:
        ValueError: The shape does not hold the elements.
    """
    if shape is not None and not args:
        wanted = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        before = data.shape
        found = _reshaped(before, wanted, bool(kwargs.get("reverse", False)))
        if found is not None and prod(found) != prod(before):
            raise ValueError(
                f"reshape: an array of shape {before} has {prod(before)} elements; shape={wanted} would have "
                f"{prod(found)}, {found}"
            )
    return reshape(data, *([] if shape is None else [shape]), *args, **kwargs)


@functools.lru_cache(maxsize=4096)
def _reshaped(before: Tuple[int, ...], shape: Tuple[int, ...], reverse: bool) -> Optional[Tuple[int, ...]]:
    """The shape that MXNet infers; None if it refuses, with its own error, or does not know it."""
    if 0 in before:
        return None
    symbol = mxnet_module("symbol")
    try:
        inferred = symbol.reshape(symbol.var("x"), shape=shape, reverse=reverse).infer_shape(x=before)
        return tuple(inferred[1][0])
    except mxnet_module("base").MXNetError:
        return None


def copying_custom(custom: Function, *args: Any, **kwargs: Any) -> Any:
    """A Custom operator whose inputs, outputs and gradients are copies (T138).

    It runs in a Python thread, and other operators start before it ends. Memory of an array in oneDNN's blocked
    layout is reused by then: from 8 channels on, the operator sometimes reads and writes wrong numbers. `repeat`
    copies, shares no memory and has no blocked layout.
    """
    property_class = PROPERTIES.get(str(kwargs.get("op_type")))
    base = mxnet_module("operator").CustomOpProp.list_auxiliary_states
    # The operator writes its auxiliary states, so they cannot be copies.
    stateless = property_class is not None and property_class.list_auxiliary_states is base
    outputs = custom(
        *[_copy(value, stateless) for value in args],
        **{name: _copy(value, stateless) for name, value in kwargs.items()},
    )
    symbol = mxnet_module("symbol")
    if isinstance(outputs, symbol.Symbol):
        copies = [_copy(output, True) for output in outputs]
        return copies[0] if len(copies) == 1 else symbol.Group(copies)
    if not is_recording() or kwargs.get("out") is not None:
        return outputs
    return [_copy(output, True) for output in outputs] if isinstance(outputs, list) else _copy(outputs, True)


def _copy(value: Any, stateless: bool) -> Any:
    symbol, ndarray = mxnet_module("symbol"), mxnet_module("ndarray")
    if type(value) is symbol.Symbol and (stateless or value.get_children() is not None):
        if not mxnet_module("util").is_np_shape():
            return symbol.repeat(value, repeats=1, axis=0)
        # shape () has no axis to repeat
        copied = symbol.repeat(symbol.expand_dims(value, axis=0), repeats=1, axis=0)
        return symbol.numpy.squeeze(copied.as_np_ndarray(), axis=0).as_nd_ndarray()
    if type(value) is ndarray.NDArray and stateless and value.shape:
        return ndarray.repeat(value, repeats=1, axis=0)
    return value


def records_prediction() -> bool:
    """Whether gradients are recorded in predict mode, as in `autograd.record(train_mode=False)`."""
    autograd = mxnet_module("autograd")
    return bool(autograd.is_recording() and not autograd.is_training())


#: Operators whose gradient does not add under `grad_req='add'`: it overwrites, divides the sum, or reads free memory.
#: Of `mx.nd` and `mx.sym`, and of `mx.np` and its symbols.
NEVER_ADD = "mean clip flip reverse cumsum moments Crop"
NEVER_ADD_IN_LINALG = "gemm gemm2 inverse slogdet trmm trsm"
NEVER_ADD_IN_NUMPY = "cumsum moveaxis trace"
NEVER_ADD_INSIDE_NUMPY = (
    "boolean_mask clip copyto diff dsplit flip hsplit inv mean norm rot90 slogdet solve split tensordot"
    " tensordot_int_axes tensorinv where"
)


def _with_copies(
    copy: Callable[[Any], Any], needed: Callable[[], bool], operator: Function, *args: Any, **kwargs: Any
) -> Any:
    if not needed():
        return operator(*args, **kwargs)
    named = {name: value if name == "out" else copy(value) for name, value in kwargs.items()}
    return operator(*[copy(value) for value in args], **named)


def adding(operator: Function) -> Function:
    """Wrap an operator so that it adds its gradients to those that parameters and other leaves hold (T143).

    It reads copies of the leaves, and the gradient of a copy adds. Intermediate results need no copy: MXNet adds their
    gradients with an operator.
    """
    return around(_with_copies, copy_of_leaf, is_recording)(operator)


def adding_in_graphs(operator: Function) -> Function:
    """As `adding`, for symbols: parameters are copied."""
    return around(_with_copies, _copy_of_parameter, lambda: True)(operator)


def adding_products(dot: Function, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    """As `adding`, for products of arrays of more than two axes; the gradient of other products adds."""
    return (adding(dot) if max(a.ndim, b.ndim) > 2 else dot)(a, b, *args, **kwargs)


def adding_optimized(
    add: Wrapper, einsum: Function, *args: Any, subscripts: str, optimize: int = 0, **kwargs: Any
) -> Any:
    """As `adding` or `adding_in_graphs`, for `np.einsum(optimize=True)`; the gradient without it adds.

    An operand with the same index twice, as in "ii->i", is not optimized: the gradient would write only the diagonal.
    """
    terms = subscripts.replace(".", "").partition("->")[0].split(",")
    optimize = 0 if any(len(set(term)) < len(term) for term in terms) else optimize
    return (add(einsum) if optimize else einsum)(*args, subscripts=subscripts, optimize=optimize, **kwargs)


def copy_of_leaf(value: Any) -> Any:
    """Copy an array that has its own gradient, like a parameter, with a recorded copy; other values stay."""
    ndarray, numpy = mxnet_module("ndarray"), mxnet_module("numpy")
    if type(value) is ndarray.NDArray and value.grad is not None:
        return ndarray.identity(value)
    if type(value) is numpy.ndarray and value.grad is not None:
        return mxnet_module("ndarray.numpy._op").copy(value)
    return value


def _copy_of_parameter(value: Any) -> Any:
    symbol = mxnet_module("symbol")
    # `Parameter.var` sets this attribute
    if isinstance(value, symbol.Symbol) and value.get_children() is None and value.attr("__lr_mult__") is not None:
        numpy = isinstance(value, symbol.numpy._Symbol)
        return mxnet_module("symbol.numpy._op").copy(value) if numpy else symbol.identity(value)
    return value


# T250, T251: oneDNN keeps the output and the gradient of a convolution in blocks of 16 channels, or of 8. The gradient
# of Concat and the operator `slice` take parts of such an array without a copy (`mkldnn_concat.cc`, `mkldnn_slice.cc`),
# which fails where a part begins or ends inside a block: the process ends with a floating point exception, or an
# MXNetError says "could not construct a sub-memory". `slice_axis` and the Concat of `mx.np` read the usual layout, and
# compute the same.
CHANNEL_AXES = (1, -3)  # of batches of images
_LARGEST_BLOCK = 16


def cuts_a_block(channels: Optional[int], points: Sequence[int]) -> bool:
    """Whether a part of an array begins or ends inside a block of oneDNN's.

    Args:
        channels: Of the whole array; None if they are unknown.
        points: Where parts begin and end, in channels, without 0 and the end.

    >>> [cuts_a_block(16, [8]), cuts_a_block(24, [8]), cuts_a_block(20, [10]), cuts_a_block(None, [16, 32])]
    [True, False, False, False]
    """
    if channels is not None and channels % 8:
        return False  # it has no blocks
    block = _LARGEST_BLOCK if channels is None or channels % _LARGEST_BLOCK == 0 else 8
    return any(point % block for point in points)


def joining(concat: Function, *arrays: Any, dim: int = 1, **options: Any) -> Any:
    """Concat whose gradient is not computed from a blocked layout (T250)."""
    if is_recording() and dim in CHANNEL_AXES and arrays[0].ndim == 4 and options.get("out") is None:
        *points, channels = accumulate(array.shape[1] for array in arrays)
        if cuts_a_block(channels, points):
            internal = mxnet_module("ndarray.numpy._internal")
            return internal.concatenate(*(array.as_np_ndarray() for array in arrays), axis=1).as_nd_ndarray()
    return concat(*arrays, dim=dim, **options)


def slicing(kind: str, operator: Function, *arguments: Any, **named: Any) -> Any:
    """`slice` that takes channels by `slice_axis` where it would cut a block (T251).

    Args:
        kind: "nd" or "np".
    """
    data, begin, end, step = _of_slice(*arguments, **named)
    if named.get("out") is not None or data.ndim != 4 or not _cuts_channels(begin, end, step):
        return operator(*arguments, **named)
    channels = data.shape[1]
    first, last = bounds(begin[1], end[1], channels)
    if first >= last or not cuts_a_block(channels, [first, *([] if last == channels else [last])]):
        return operator(*arguments, **named)
    part = mxnet_module("ndarray").slice_axis(data.as_nd_ndarray(), axis=1, begin=first, end=last)
    part = part.as_np_ndarray() if kind == "np" else part
    return operator(part, (begin[0], None, *begin[2:]), (end[0], None, *end[2:]))


def _of_slice(data: Any, begin: Any = None, end: Any = None, step: Any = None, **_: Any) -> Tuple[Any, Any, Any, Any]:
    return data, begin, end, step


def _cuts_channels(begin: Any, end: Any, step: Any) -> bool:
    if not all(isinstance(one, (tuple, list)) and len(one) > 1 for one in (begin, end)):
        return False  # one number is the first axis
    return all(one in (None, 1) for one in (step if isinstance(step, (tuple, list)) else [step]))


def bounds(begin: Optional[int], end: Optional[int], size: int) -> Tuple[int, int]:
    """Begin and end of a slice as numbers from 0 to `size`."""
    first, last, _ = slice(begin, end).indices(size)
    return first, last


def without_gradient(name: str, function: Function, *args: Any, **kwargs: Any) -> Any:
    """A function whose gradient is 0 in MXNet; the first call that would need it warns (T142).

    Args:
        name: The function, as users call it.
    """
    if name not in _REPORTED and is_recording() and args and _in_graph(args[0]):
        _REPORTED.add(name)
        message = (
            f"{name} has no gradient in MXNet: parameters before it get the gradient 0 through it, without an "
            "error. Call it outside autograd.record(), or on x.detach() if the 0 is meant (docs/traps.md)"
        )
        warnings.warn(message, TrapWarning, stacklevel=5)
    return function(*args, **kwargs)


_REPORTED: Set[str] = set()


def _in_graph(array: Any) -> bool:
    if not isinstance(array, mxnet_module("ndarray").NDArray):
        return False
    try:
        mxnet_module("autograd").get_symbol(array)
    except mxnet_module("base").MXNetError:  # "NDArray is not part of a computation graph"
        return False
    return True


#: Operators on an array and a number, which MXNet cuts beside integers; then those whose results are no integers.
WITH_NUMBERS = (
    *("add", "subtract", "rsubtract", "multiply", "mod", "rmod", "power", "rpower", "maximum", "minimum"),
    *("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
)
NEVER_WHOLE = ("arctan2", "copysign", "rcopysign", "hypot", "ldexp", "rldexp")


def with_fractions(always: bool, operator: Function, array: Any, scalar: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator on an array of integers and a number with a fraction, which MXNet cuts (T240): 3 * 0.5 is 0.

    The result is float64, as in a graph of MXNet. The caller's `out` stays as it is.

    Args:
        always: Also for whole numbers: the hypotenuse of 2 and 3 is no integer.
    """
    cut = always or (type(scalar) is float and not scalar.is_integer())
    if cut and kwargs.get("out") is None and is_whole(array):
        kwargs["is_int"] = False
    return operator(array, scalar, *args, **kwargs)


def is_whole(array: Any) -> bool:
    """Whether an array holds integers or booleans; a symbol may."""
    return isinstance(array, mxnet_module("symbol").Symbol) or numpy.dtype(array.dtype).kind in "iub"


def at_least(axes: int, function: Function, *arrays: Any) -> Any:
    """`np.atleast_1d`, `_2d` or `_3d` by a reshape, which has a gradient (T142)."""

    def reshaped(array: Any) -> Any:
        shape = array.shape
        if len(shape) < axes:
            shape = (1,) * (min(axes, 2) - len(shape)) + shape
            shape += (1,) * (axes - len(shape))
        return mxnet_module("ndarray.numpy._op").reshape(array, shape)

    if not is_recording():
        return function(*arrays)
    return reshaped(arrays[0]) if len(arrays) == 1 else [reshaped(array) for array in arrays]


def differentiable_polynomial(polyval: Function, p: Any, x: Any) -> Any:
    """`np.polyval` from products and sums, whose gradients are right (T142): MXNet writes none for `x`."""
    if not (is_recording() and hasattr(x, "shape")):
        return polyval(p, x)
    value = mxnet_module("ndarray.numpy._op").broadcast_to(p[0], x.shape)
    for coefficient in p[1:]:
        value = value * x + coefficient
    return value


def moments_in_graphs(moments: Function, *args: Any, **kwargs: Any) -> Any:
    """`moments` whose variance needs its mean (T239): where a graph leaves the mean out, the operator takes 0 for it.

    The variance goes through an operator that reads both; ones that read shapes alone do not count.
    """
    mean, variance = moments(*args, **kwargs)
    symbol = mxnet_module("symbol")
    both = symbol.stack(variance, mean, axis=0)
    return symbol.Group([mean, symbol.squeeze(symbol.slice_axis(both, axis=0, begin=0, end=1), axis=0)])


def with_filled_array(
    name: str, number_first: bool, kind: str, operator: Function, *args: Any, out: Any = None, **options: Any
) -> Any:
    """An operator on an array and a number, computed by the operator on two arrays where gradients are needed (T140).

    The gradient of `np.where` with a number goes to the elements that the number replaced; that of
    `np.arctan2(number, x)` is of another function.

    Args:
        name: The operator on two arrays.
        number_first: Whether the number comes before the array.
        kind: "ndarray" or "symbol".
    """
    if kind == "ndarray" and not is_recording():
        return operator(*args, out=out, **options)
    *before, array, number = (*args, options["scalar"]) if "scalar" in options else args
    internal = mxnet_module(kind + ".numpy._internal")
    filled = internal.full_like(array, fill_value=number)
    return getattr(internal, name)(*before, *((filled, array) if number_first else (array, filled)), out=out)


def with_positive_indices(gather: Function, data: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    """Indexing by arrays whose gradient finds negative indices (T141): MXNet's writes before the array's memory."""
    return gather(data, _positive(indices, data.shape) if is_recording() else indices, *args, **kwargs)


def with_checked_indices(
    scatter: Function, lhs: Any, rhs: Any, indices: Any, shape: Tuple[int, ...], **kwargs: Any
) -> Any:
    """Assignment by arrays of indices (T141): MXNet's writes outside the array for negative and too large indices."""
    return scatter(lhs=lhs, rhs=rhs, indices=_in_bounds(indices, shape), shape=shape, **kwargs)


def with_checked_places(scatter_nd: Function, data: Any, indices: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """`scatter_nd` by indices of elements of the new array, as `with_checked_indices` (T281)."""
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return scatter_nd(data, _in_bounds(indices, sizes), shape, *args, **kwargs)


def with_checked_rows(index_copy: Function, old_tensor: Any, index_vector: Any, *args: Any, **kwargs: Any) -> Any:
    """`index_copy` by indices of rows, as `with_checked_indices` (T281)."""
    rows = _in_bounds(index_vector.reshape((1, -1)), old_tensor.shape[:1])
    return index_copy(old_tensor, rows.reshape((-1,)), *args, **kwargs)


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


def differentiable_variance(
    root: bool,
    kind: str,
    operator: Function,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    out: Any = None,
) -> Any:
    """Variance or standard deviation with a gradient (T142), which is 0 in MXNet; the values have MXNet's bits.

    Args:
        root: Whether it is the standard deviation.
        kind: "ndarray" or "symbol".
    """
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


def _is_float(array: Any) -> bool:
    return bool(numpy.issubdtype(numpy.dtype(array.dtype), numpy.floating))


def with_whole_batches(matmul: Function, a: Any, b: Any, out: Any = None) -> Any:
    """A product of stacks of matrices that broadcasts them first (T144).

    MXNet's gradient is wrong where an axis of length 1 follows a longer one: shapes (5, 1, 2, 3) and (5, 4, 3, 2).
    """
    if is_recording() and min(a.ndim, b.ndim) > 2 and a.shape[:-2] != b.shape[:-2]:
        batch = numpy.broadcast(numpy.empty(a.shape[:-2]), numpy.empty(b.shape[:-2])).shape
        a, b = _spread(a, batch), _spread(b, batch)
    return matmul(a, b, out=out)


def _spread(array: Any, batch: Tuple[int, ...]) -> Any:
    lengths = array.shape[:-2]
    while lengths and lengths[0] == 1:  # leading axes are right
        lengths = lengths[1:]
    if lengths == batch[len(batch) - len(lengths) :]:
        return array
    return mxnet_module("ndarray.numpy._internal").broadcast_to(array, shape=(*batch, *array.shape[-2:]))


def matrix_norm(norm: Function, x: Any, ord: Any = 2, axis: Any = None, **kwargs: Any) -> Any:  # noqa: A002
    """Norms of matrices by other operators (T144): MXNet multiplies their gradient by that of the result twice.

    Right are the Frobenius and the nuclear norm, and norms of vectors.
    """
    wrong = abs(ord) in (1, 2, float("inf")) and kwargs.get("flag") not in (1, 2, -2)
    axes = axis if axis is not None else tuple(range(x.ndim))
    if not (is_recording() and wrong and isinstance(axes, tuple) and len(axes) == 2):
        return norm(x, ord=ord, axis=axis, **kwargs)
    np = mxnet_module("ndarray.numpy._op")
    matrices = np.moveaxis(x, axes, (-2, -1))
    if abs(ord) == 2:
        value = _spectral_norm(matrices, ord)
    else:
        sums = np.sum(np.abs(matrices), axis=-2 if abs(ord) == 1 else -1)
        value = (np.max if ord > 0 else np.min)(sums, axis=-1)
    kept = [1 if axis in (axes[0] % x.ndim, axes[1] % x.ndim) else size for axis, size in enumerate(x.shape)]
    return np.reshape(value, tuple(kept)) if kwargs.get("keepdims") else value


def _spectral_norm(matrices: Any, ord: int) -> Any:  # noqa: A002
    """The largest (`ord` 2) or smallest (-2) singular value, from its singular vectors."""
    np = mxnet_module("ndarray.numpy._op")
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else np.swapaxes(matrices, -1, -2)
    with mxnet_module("autograd").pause():
        left, _, right = mxnet_module("ndarray.numpy.linalg").svd(wide)
        place = 0 if ord > 0 else left.shape[-1] - 1
        vectors = np.expand_dims(left[..., :, place], -1) * np.expand_dims(right[..., place, :], -2)
    return np.sum(wide * vectors, axis=(-2, -1))


def mean_of_nothing(
    mean: Function, a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, out: Any = None
) -> Any:
    """A mean that gives an array of size 0 itself (T145): MXNet raises at a later read, or divides by 0."""
    if a.size == 0 and axis is not None and out is None:
        axes = {number % a.ndim for number in (axis if isinstance(axis, tuple) else (axis,))}
        shape = [1 if number in axes else size for number, size in enumerate(a.shape)]
        if 0 in shape:
            kept = shape if keepdims else [size for number, size in enumerate(shape) if number not in axes]
            return mxnet_module("numpy").zeros(kept, dtype=dtype or a.dtype, ctx=a.ctx)
    return mean(a, axis=axis, dtype=dtype, keepdims=keepdims, out=out)


def joined_as_rows(join: Function, *vectors: Any, dim: int = 0) -> Any:
    """The parameters of a recurrent layer, joined as rows that are copied at once (T290): the same bits."""
    columns = functools.reduce(gcd, (one.size for one in vectors))
    if columns == 1:
        return join(*vectors, dim=dim)
    rows = (one.as_nd_ndarray().reshape((-1, columns)) for one in vectors)
    joined = mxnet_module("ndarray").concat(*rows, dim=0).reshape((-1,))
    return joined if type(vectors[0]) is mxnet_module("ndarray").NDArray else joined.as_np_ndarray()


def with_lengths_inside(
    least: int,
    place: int,
    operator: Function,
    data: Any = None,
    sequence_length: Any = None,
    *args: Any,
    **options: Any,
) -> Any:
    """Operators of sequences by lengths that exist (T295): at others, MXNet's read and write outside of the arrays.

    `place` is that of `axis` in `args`.
    """
    if sequence_length is not None and data is not None:
        axis = args[place] if len(args) > place else options.get("axis", 0)
        sequence_length = _inside(sequence_length, least, data.shape[axis])
    return operator(data, sequence_length, *args, **options)


def _inside(lengths: Any, least: int, most: int) -> Any:
    """The nearest lengths that exist; NaN, as a whole number the least of all, becomes the shortest."""
    if not hasattr(lengths, "astype"):
        return lengths  # MXNet's error names the argument
    return lengths.astype("float32").clip(-1, 1e9).astype("int32").clip(least, most)


def softmax_inside(
    softmax: Function, data: Any = None, length: Any = None, axis: int = -1, *args: Any, **options: Any
) -> Any:
    """A softmax over lengths that exist (T295)."""
    if length is not None and data is not None:
        length = _inside(length, 0, data.shape[axis])
    return softmax(data, length, axis, *args, **options)


def last_step(
    sequence_last: Function,
    data: Any = None,
    sequence_length: Any = None,
    use_sequence_length: bool = False,
    axis: int = 0,
    **options: Any,
) -> Any:
    """SequenceLast without lengths as a slice (T294): its gradient reads an array that is not there."""
    if use_sequence_length or sequence_length is not None or options or data is None:  # MXNet refuses lengths alone
        return with_lengths_inside(1, 1, sequence_last, data, sequence_length, use_sequence_length, axis, **options)
    operators = mxnet_module("ndarray")
    return operators.squeeze(operators.slice_axis(data, axis=axis, begin=-1, end=None), axis=axis)


def _named(names: str, wrapper: Wrapper) -> Dict[str, Wrapper]:
    return dict.fromkeys(names.split(), wrapper)


def _numpy_operators(kind: str, add: Wrapper) -> Dict[str, Dict[str, Wrapper]]:
    """T140, T142, T143 and T240 for operators of `mx.np` ("ndarray") or its symbols ("symbol")."""
    never_whole = around(with_fractions, True)
    return {
        f"{kind}.numpy._internal": {
            **_named(NEVER_ADD_INSIDE_NUMPY, add),
            **{name + "_scalar": never_whole for name in NEVER_WHOLE},
            "var": around(differentiable_variance, False, kind),
            "std": around(differentiable_variance, True, kind),
            "where_lscalar": around(with_filled_array, "where", True, kind),
            "where_rscalar": around(with_filled_array, "where", False, kind),
            "rarctan2_scalar": lambda arctan2: around(with_filled_array, "arctan2", True, kind)(never_whole(arctan2)),
            "einsum": around(adding_optimized, add),
        },
        f"{kind}.numpy._op": {**_named(NEVER_ADD_IN_NUMPY, add), "dot": add},  # of more than two axes
    }


def _eager_numpy_operators() -> Dict[str, Dict[str, Wrapper]]:
    """Those of `mx.np`: some need shapes, or an array that may be recorded; symbols have neither."""
    wrappers = _numpy_operators("ndarray", adding)
    wrappers["ndarray.numpy._internal"].update(
        **{name + "_scalar": around(with_fractions, False) for name in WITH_NUMBERS},
        matmul=around(with_whole_batches),
        gather_nd=around(with_positive_indices),
        slice=around(slicing, "np"),
        scatter_set_nd=around(with_checked_indices),
        rnn_param_concat=around(joined_as_rows),
        mean=lambda mean: around(mean_of_nothing)(adding(mean)),
        norm=lambda norm: around(matrix_norm)(adding(norm)),
    )
    wrappers["ndarray.numpy._op"].update(
        **{name: around(without_gradient, "np." + name) for name in ("percentile", "quantile", "unique")},
        polyval=around(differentiable_polynomial),
        dot=around(adding_products),
        tensordot=adding,
    )
    names = ("eig", "eigh", "eigvals", "eigvalsh", "pinv")
    return {**wrappers, "ndarray.numpy.linalg": {name: around(without_gradient, "np.linalg." + name) for name in names}}


# Positions of the arguments that a caller may pass without their names.
_BATCH_NORM = around(predicting, {"use_global_stats": (8, True)})
_RNN = around(predicting, {"p": (9, 0)})
_POOLING = around(predicting, {})
_EXTENSION = {
    "dropout": around(seeded),
    "leaky_relu": around(differentiable_selu),
    "batch_norm": _BATCH_NORM,
    "pooling": _POOLING,
    "rnn": _RNN,
    "gather_nd": around(with_positive_indices),
    "sequence_mask": around(with_lengths_inside, 0, 2),
    "softmax": around(softmax_inside),
}

#: By the module that fills others with operators when it is imported: for each module that it fills, the operators that
#: mxkit wraps. Upstream: `ndarray/register.py` line 277, `symbol/register.py` line 281, the others' `_register.py`.
WRAPPERS: Dict[str, Dict[str, Dict[str, Wrapper]]] = {
    "mxnet.ndarray.register": {
        "ndarray.op": {
            **_named(NEVER_ADD, adding),
            "BatchNorm": _BATCH_NORM,
            "Pooling": _POOLING,
            "RNN": _RNN,
            "Dropout": around(seeded),
            "Custom": around(copying_custom),
            "LeakyReLU": around(differentiable_selu),
            "reshape": around(checked_reshape),
            "Reshape": around(checked_reshape),
            "Concat": around(joining),
            "concat": around(joining),
            "slice": around(slicing, "nd"),
            "SequenceLast": around(last_step),
            "SequenceMask": around(with_lengths_inside, 0, 2),
            "SequenceReverse": around(with_lengths_inside, 0, 1),
            "softmax": around(softmax_inside),
            "gather_nd": around(with_positive_indices),
            "scatter_nd": around(with_checked_places),
        },
        "ndarray.contrib": {
            "boolean_mask": adding,
            "index_copy": around(with_checked_rows),
            "SyncBatchNorm": _BATCH_NORM,
            "BatchNormWithReLU": _BATCH_NORM,
        },
        "ndarray.linalg": _named(NEVER_ADD_IN_LINALG, adding),
        "ndarray._internal": {
            "_copyto": adding,
            "_split_v2": adding,
            "_scatter_set_nd": around(with_checked_indices),
            "_rnn_param_concat": around(joined_as_rows),
        },
    },
    "mxnet.symbol.register": {
        "symbol.op": {
            **_named(NEVER_ADD, adding_in_graphs),
            "moments": lambda moments: adding_in_graphs(around(moments_in_graphs)(moments)),
            "Dropout": around(seeded),
            "Custom": around(copying_custom),
        },
        "symbol.contrib": {"boolean_mask": adding_in_graphs},
        "symbol.linalg": _named(NEVER_ADD_IN_LINALG, adding_in_graphs),
    },
    "mxnet.ndarray.numpy._register": _eager_numpy_operators(),
    "mxnet.symbol.numpy._register": _numpy_operators("symbol", adding_in_graphs),
    "mxnet.numpy._register": {  # functions that MXNet builds a second time, for methods
        "numpy._op": {
            **_named(NEVER_ADD_IN_NUMPY, adding),
            "dot": around(adding_products),
            **{f"atleast_{axes}d": around(at_least, axes) for axes in (1, 2, 3)},
        }
    },
    "mxnet.ndarray.numpy_extension._register": {"ndarray.numpy_extension._op": _EXTENSION},
    "mxnet.numpy_extension._register": {"numpy_extension._op": _EXTENSION},
    "mxnet.symbol.numpy_extension._register": {"symbol.numpy_extension._op": {"dropout": around(seeded)}},
}


def wrap_operators(module: ModuleType) -> None:
    """T125, T130, T137 to T145, T239 to T241, T250 to T252, T281, T290, T294, T295: a module's row in `WRAPPERS`."""
    for name, wrappers in WRAPPERS[module.__name__].items():
        replace(mxnet_module(name), **wrappers)


def degrees_and_radians(module: ModuleType) -> None:
    """`np.deg2rad` and `np.rad2deg` read operators that MXNet has under other names. Upstream: `_op.py` line 2914."""
    internal = mxnet_module(module.__name__.partition(".")[2].replace("._register", "._internal"))
    internal.deg2rad, internal.rad2deg = internal.radians, internal.degrees
