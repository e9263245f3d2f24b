"""The two kinds of MXNet's arrays, `mx.nd` and `mx.np`, and the switches that choose between them.

A net is of the kind of its parameters. mxkit computes on legacy views, which share memory and gradients with the arrays
of `mx.np`. Nets and users' functions run with arrays and switches of the net's kind.
"""

from typing import Any, Iterator, Optional, Tuple

import mxnet as mx
from mxnet.util import is_np_array, is_np_shape, np_array, np_shape

_NUMPY = (mx.np.ndarray, mx.sym.np._Symbol)


def is_numpy(values: Any) -> bool:
    """Whether the first array or symbol inside nested lists and tuples is one of `mx.np`."""
    while isinstance(values, (list, tuple)) and values:
        values = values[0]
    return isinstance(values, _NUMPY)


def legacy(values: Any) -> Any:
    """Replace arrays of `mx.np` inside nested lists and tuples by views as NDArray; other values stay.

    A view shares the memory and the gradient of its array, and what is computed from it is recorded.

    >>> x = mx.np.ones(2)
    >>> view = legacy((x, None))[0]
    >>> view[:] = 3
    >>> type(view).__name__, x.asnumpy().tolist()
    ('NDArray', [3.0, 3.0])
    """
    if isinstance(values, _NUMPY):
        return values.as_nd_ndarray()
    return _each(legacy, values) if isinstance(values, (list, tuple)) else values


def of_kind(values: Any, numpy: bool) -> Any:
    """Replace the arrays inside nested lists and tuples by views as `mx.np.ndarray` or as NDArray.

    Args:
        values: Arrays, in nested lists and tuples; other values stay. Sparse arrays have no view in `mx.np` and stay.
        numpy: Whether the arrays become `mx.np.ndarray`.
    """
    if not numpy:
        return legacy(values)
    if type(values) in (mx.nd.NDArray, mx.sym.Symbol):
        return values.as_np_ndarray()
    return _each(lambda value: of_kind(value, True), values) if isinstance(values, (list, tuple)) else values


def copied(array: Any, device: Optional["mx.Context"] = None) -> Any:
    """Copy an array of either kind as an NDArray, without a wait; `as_in_context` may return the array itself.

    Args:
        array: Any array of MXNet.
        device: Device of the copy; None is that of the array.
    """
    with np_shape(True):  # else MXNet takes arrays of mx.np without axes or elements for arrays of unknown shape
        return legacy(array).copyto(array.ctx if device is None else device)


def copy_to_cpu(array: Any) -> Any:
    """Copy an array of either kind to the CPU, as NDArray, without a wait."""
    return copied(array, mx.cpu())


def copy_into(array: Any, target: Any) -> None:
    """Copy the numbers of an array into another one, of either kind and on any device, without a wait."""
    with np_shape(True):
        legacy(array).copyto(legacy(target))


def handed_over(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches of NDArrays; they are views as `mx.np` arrays while the calling thread is under `npx.set_np()`."""
    for batch in batches:
        yield of_kind(batch, True) if is_np_array() else batch


def switches_here() -> Tuple[bool, bool]:
    """The switches of MXNet in this thread: `set_np(*switches_here())` sets them in another thread.

    `np_array(True)` alone counts as both switches, because `set_np` refuses it.
    """
    return is_np_shape() or is_np_array(), is_np_array()


def call(function: Any, arrays: Any) -> Any:
    """Call a net or a user's function with arrays of one kind, under the switches of this kind."""
    with switches(is_numpy(arrays)):
        return function(*arrays)


def _each(function: Any, values: Any) -> Any:
    changed = [function(value) for value in values]
    return type(values)(*changed) if hasattr(values, "_fields") else type(values)(changed)


class switches:  # noqa: N801 - a context manager that reads as a verb, like MXNet's np_shape
    """Set both switches of MXNet for one kind of arrays inside `with`, in this thread.

    Layers choose their operators by the switches at each call, and Parameters the kind of new arrays.

    Args:
        numpy: Whether they are set as by `npx.set_np()`, or as by `npx.reset_np()`.

    >>> with switches(True):
    ...     mx.util.is_np_array(), mx.util.is_np_shape()
    (True, True)
    >>> mx.util.is_np_array()
    False
    """

    __slots__ = ("_numpy", "_scopes")

    def __init__(self, numpy: bool) -> None:
        self._numpy = numpy
        self._scopes: Any = ()

    def __enter__(self) -> None:
        numpy = self._numpy
        if is_np_array() is numpy and (not numpy or is_np_shape()):  # mx.nd alone works with either shape switch
            return
        # MXNet refuses the array switch without the shape switch
        scopes = (np_shape(True), np_array(True)) if numpy else (np_array(False), np_shape(False))
        for scope in scopes:
            scope.__enter__()
        self._scopes = scopes

    def __exit__(self, *error: Any) -> None:
        for scope in reversed(self._scopes):
            scope.__exit__(*error)
        self._scopes = ()
