"""Makes batches of samples: stacks NumPy arrays with one copy into the memory of the batch."""

from typing import Any, Callable, Iterator, List, Sequence, Tuple

from mxkit.core.arrays import handed_over as handed_over
from mxkit.core.arrays import is_numpy, of_kind
from mxkit.core.device import Shards as Shards
from mxkit.core.device import each as each
from mxkit.core.device import empty_batch as empty_batch
from mxkit.core.device import memory_of
from mxkit.core.device import narrow as narrow
from mxkit.core.device import narrow_dtype as narrow_dtype
from mxkit.core.device import split_batch as split_batch
from mxkit.errors import DataError
import mxnet as mx
import numpy as np


def host_view(array: "mx.nd.NDArray") -> "np.ndarray":
    """Wait for an NDArray and return it as NumPy, without a copy if it is on the CPU.

    Returns:
        An array that must not be written, nor used after the NDArray is freed.
    """
    if array.stype != "default" or not array.size or array.ctx.device_type != "cpu":
        host: np.ndarray = array.asnumpy()
        return host
    array.wait_to_read()
    return memory_of(array)


def to_batch(host: "np.ndarray") -> "mx.nd.NDArray":
    """Copy an array of a dtype that MXNet has into a new NDArray on the CPU."""
    if not host.size or not host.shape:
        return mx.nd.array(host, mx.cpu(), host.dtype)
    array, view = empty_batch(host.shape, host.dtype)
    view[...] = host
    return array


def like(array: Any, host: "np.ndarray") -> Any:
    """Convert a NumPy array to the kind of `array`: NDArray, `mx.np.ndarray` or NumPy."""
    return of_kind(to_batch(host), is_numpy(array)) if isinstance(array, mx.nd.NDArray) else host


Spec = Tuple[Tuple[int, ...], "np.dtype"]
# Returns one array of each shape and dtype to be filled.
Allocate = Callable[[Sequence[Spec]], Sequence["np.ndarray"]]
# Nested tuples, with None in place of each array.
Structure = Any

_PAD = "Bring them to one shape in a transform, or pad them: batchify=gluoncv.data.batchify.Pad()"


def stack(samples: Sequence[Any], rows: Sequence[int], allocate: Allocate) -> Structure:
    """Stack each part of the samples.

    Args:
        samples: Arrays, numbers, or tuples of them, nested as they like; at least one.
        rows: Their numbers, for messages.
        allocate: Called once, with the shapes and dtypes of the arrays to be filled.

    Returns:
        The structure of the samples, `(None,)` if they are not tuples.

    Raises:
        DataError: Two samples have different shapes or structures, or an element is not a number.
    """
    structure = _structure(samples[0])
    for sample, row in zip(samples, rows):
        if _structure(sample) != structure:
            raise DataError(f"samples {rows[0]} and {row} have different parts: {samples[0]!r:.60}, {sample!r:.60}")
    columns = list(zip(*(list(map(_host, _leaves(sample))) for sample in samples)))
    plans = [_plan(column, rows) for column in columns]
    for (_, arrays), out in zip(plans, allocate([spec for spec, _ in plans])):
        for row, array in enumerate(arrays):
            out[row] = array
    return structure if isinstance(samples[0], tuple) else (None,)


def place(batch: Any, allocate: Allocate) -> Structure:
    """Copy the result of a user's batchify function into the arrays of `allocate`; return its structure."""
    batch = _tuples(batch)
    batch = batch if isinstance(batch, tuple) else (batch,)
    arrays = [narrow(_host(leaf), "the result of batchify") for leaf in _leaves(batch)]
    for array, out in zip(arrays, allocate([(array.shape, array.dtype) for array in arrays])):
        out[...] = array
    return _structure(batch)


def new_batch(fill: Callable[[Allocate], Structure]) -> Any:
    """Make a batch of new NDArrays, which `fill` allocates and writes; `fill` returns the structure."""
    arrays: List[mx.nd.NDArray] = []

    def allocate(specs: Sequence[Spec]) -> List["np.ndarray"]:
        pairs = [empty_batch(shape, dtype) for shape, dtype in specs]
        arrays.extend(array for array, _ in pairs)
        return [view for _, view in pairs]

    return build(fill(allocate), iter(arrays))


def build(structure: Structure, arrays: Iterator[Any]) -> Any:
    """Replace each None of a structure by the next array.

    >>> build(((None, None), None), iter("abc"))
    (('a', 'b'), 'c')
    """
    return next(arrays) if structure is None else tuple(build(part, arrays) for part in structure)


def _plan(column: Sequence["np.ndarray"], rows: Sequence[int]) -> Tuple[Spec, Any]:
    """Shape and dtype of a part of the batch, and the arrays that fill it."""
    first = column[0]
    for array, row in zip(column, rows):
        if array.shape != first.shape:
            raise DataError(f"samples {rows[0]} and {row} differ in shape: {first.shape} and {array.shape}. {_PAD}")
        if array.dtype.kind not in "fiub":
            value = array.ravel()[:1].tolist()
            raise DataError(f"sample {row} holds {value[0] if value else array!r}, which is no number: {array.dtype}")
    dtype = np.result_type(*{array.dtype for array in column})
    target = narrow_dtype(dtype)
    if not first.shape or target == np.int32 != dtype:  # `narrow` checks int64 against the range of int32
        stacked = narrow(np.asarray(column, dtype), f"samples {rows[0]} to {rows[-1]}")
        return (stacked.shape, stacked.dtype), stacked
    return ((len(column), *first.shape), target), column


def _host(leaf: Any) -> Any:
    if isinstance(leaf, mx.nd.NDArray):
        return host_view(leaf)
    try:
        return np.asarray(leaf)
    except (ValueError, Warning) as error:  # a list of unequal lists; NumPy 1.19 to 1.23 warn, which may be an error
        raise DataError(f"a sample holds a {type(leaf).__name__} that is not an array: {error}. {_PAD}") from error


def _structure(sample: Any) -> Structure:
    return tuple(map(_structure, sample)) if isinstance(sample, tuple) else None


def _leaves(sample: Any) -> List[Any]:
    return [leaf for part in sample for leaf in _leaves(part)] if isinstance(sample, tuple) else [sample]


def _tuples(batch: Any) -> Any:
    return tuple(map(_tuples, batch)) if isinstance(batch, (tuple, list)) else batch
