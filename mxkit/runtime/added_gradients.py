"""Operators whose gradients do not add under `grad_req='add'` (T143), in `mx.nd`, `mx.np` and their symbols.

`mxkit.runtime.numpy_operators` applies them.
"""

from typing import Any, Callable, Tuple

from mxkit.runtime.operators import Operator, is_recording, mxnet_module, replace

#: Operators whose gradient does not add under `grad_req='add'`: it overwrites, divides the sum, or reads free memory.
#: By module of `mx.nd` and `mx.sym`.
_NEVER_ADD = {
    "op": ("mean", "clip", "flip", "reverse", "cumsum", "moments", "Crop"),
    "contrib": ("boolean_mask",),
    "linalg": ("gemm", "gemm2", "inverse", "slogdet", "trmm", "trsm"),
}
_NEVER_ADD_IN_ARRAYS = ("_copyto", "_split_v2")
_NEVER_ADD_IN_NUMPY = ("cumsum", "moveaxis", "trace")
_NEVER_ADD_INSIDE_NUMPY = (
    *("boolean_mask", "clip", "copyto", "diff", "dsplit", "flip", "hsplit", "inv", "mean", "norm", "rot90", "slogdet"),
    *("solve", "split", "tensordot", "tensordot_int_axes", "tensorinv", "where"),
)


def adding(operator: Operator) -> Operator:
    """Wrap an operator so that its gradients add to those of parameters and other leaves (T143).

    It reads copies of the leaves, and the gradient of a copy adds. Intermediate results need no copy: MXNet adds their
    gradients with an operator.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_recording():
            return operator(*args, **kwargs)
        return operator(
            *[copy_of_leaf(value) for value in args],
            **{name: value if name == "out" else copy_of_leaf(value) for name, value in kwargs.items()},
        )

    return run


def adding_products(dot: Operator) -> Operator:
    """As `adding`, for products of arrays of more than two axes; the gradient of other products adds."""

    def run(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        return (added if max(a.ndim, b.ndim) > 2 else dot)(a, b, *args, **kwargs)

    added = adding(dot)
    return run


def adding_optimized(add: Callable[[Operator], Operator]) -> Callable[[Operator], Operator]:
    """As `adding` or `adding_in_graphs`, for `np.einsum(optimize=True)`; the gradient without it adds.

    An operand with the same index twice, as in "ii->i", is not optimized: the gradient would write only the diagonal.
    """

    def wrapper(einsum: Operator) -> Operator:
        def run(*args: Any, subscripts: str, optimize: int = 0, **kwargs: Any) -> Any:
            terms = subscripts.replace(".", "").partition("->")[0].split(",")
            optimize = 0 if any(len(set(term)) < len(term) for term in terms) else optimize
            return (added if optimize else einsum)(*args, subscripts=subscripts, optimize=optimize, **kwargs)

        added = add(einsum)
        return run

    return wrapper


def adding_in_graphs(operator: Operator) -> Operator:
    """As `adding`, for symbols: parameters are copied."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return operator(
            *[_copy_of_parameter(value) for value in args],
            **{name: _copy_of_parameter(value) for name, value in kwargs.items()},
        )

    return run


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


def add_in_legacy(kind: str) -> None:
    """Apply T143 to `mx.nd` or `mx.sym`.

    Args:
        kind: "ndarray" or "symbol".
    """
    for module, names in _NEVER_ADD.items():
        _wrap(f"{kind}.{module}", names)
    if kind == "ndarray":
        _wrap("ndarray._internal", _NEVER_ADD_IN_ARRAYS)


def add_in_numpy(kind: str) -> None:
    """Apply T143 to `mx.np` or its symbols."""
    _wrap(kind + ".numpy._internal", _NEVER_ADD_INSIDE_NUMPY)
    _wrap(kind + ".numpy._op", _NEVER_ADD_IN_NUMPY)
    if kind == "ndarray":
        replace(mxnet_module("ndarray.numpy._op"), dot=adding_products, tensordot=adding)


def add_in_methods() -> None:
    """Apply T143 to the methods of `mx.np.ndarray`."""
    _wrap("numpy._op", _NEVER_ADD_IN_NUMPY)
    replace(mxnet_module("numpy._op"), dot=adding_products)


def _wrap(module: str, names: Tuple[str, ...]) -> None:
    wrapper = adding_in_graphs if module.startswith("symbol") else adding
    replace(mxnet_module(module), **dict.fromkeys(names, wrapper))
