"""One way to read an epoch from whatever a user calls data."""

import types
from typing import Any, Callable, Iterable, Iterator, Optional, Union

from mxkit.errors import DataError, EmptyDataError
import mxnet as mx

Data = Union[Iterable[Any], Callable[[], Iterable[Any]]]

# What can be read once by construction; other iterators may start anew by themselves.
_ONE_SHOT = (types.GeneratorType, map, filter, zip, enumerate)


def is_one_shot(data: Data) -> bool:
    """Whether a source may be used up by reading from it; a DataIter is reset instead."""
    source: Any = data
    return isinstance(source, _ONE_SHOT) or (
        hasattr(source, "__next__") and hasattr(source, "__iter__") and not isinstance(source, mx.io.DataIter)
    )


def check_rereadable(data: Data, epochs: int, name: str) -> None:
    """Refuse a source that is used up after one epoch, before the first one is trained (T62).

    Raises:
        DataError: `data` is a generator (or a map, zip, ...) and `epochs` is above 1.
    """
    if epochs > 1 and isinstance(data, _ONE_SHOT):
        raise DataError(
            f"{name} is a {type(data).__name__}, which can be read only once, but is to be read in {epochs} epochs. "
            f"Pass a function that makes it anew ({name}=lambda: batches()), a list, or a loader"
        )


def keeps_its_own_order(data: Data) -> bool:
    """Whether the order of an epoch follows from the epochs before it, which no other process can know (T99).

    MXNet's iterators shuffle what they shuffled before, and those in C++ have generators of their own.
    """
    source: Any = data
    return isinstance(source, mx.io.DataIter) and (not isinstance(source, mx.io.NDArrayIter) or bool(source.shuffle))


def can_skip(data: Data) -> bool:
    """Whether `data` is a loader of mxkit's kind, which begins an epoch in its middle without reading up to there."""
    return all(callable(getattr(data, name, None)) for name in ("skip", "state_dict")) and hasattr(data, "epoch")


def read_epoch(
    data: Data,
    epoch: Optional[int] = None,
    name: str = "data",
    keep_count: bool = False,
    skip: int = 0,
    packed: bool = False,
) -> Iterator[Any]:
    """Yield the batches of one epoch.

    Args:
        data: An iterable of batches, a function that returns one, or an `mx.io.DataIter`, which is reset
            first and whose padding is cut off.
        epoch: Number of the epoch from 0; given to loaders that have an attribute `epoch`, so that their
            order depends on it and on nothing else. None leaves it to their own count.
        name: What the messages call the data.
        keep_count: Leave a loader's count of epochs as it was: reading for a look changes no later order.
        skip: Begin after so many batches; only for data that `can_skip`.
        packed: Take images as `Packed`, where a loader of mxkit's own gives them so.

    Raises:
        EmptyDataError: There was no batch.
        DataError: `data` is not iterable.
    """
    source: Any = data() if callable(data) and not hasattr(data, "__iter__") else data
    if isinstance(source, mx.io.DataIter):
        source.reset()
    own_epoch = getattr(source, "epoch", None)
    if own_epoch is not None and epoch is not None:
        source.epoch = epoch
    if skip:
        source.skip(skip)
    try:
        # not of a subclass, which may give other batches
        batches = source.packed() if packed and "packed" in vars(type(source)) else iter(source)
    except TypeError:
        raise DataError(
            f"{name}: expected an iterable of batches (x, y), or a function that returns one; "
            f"received {type(source).__name__}"
        ) from None
    if own_epoch is not None and keep_count:
        source.epoch = own_epoch
    count = skip
    for batch in batches:
        count += 1
        yield _without_padding(batch) if isinstance(batch, mx.io.DataBatch) else batch
    if not count:
        used_up = iter(source) is source and bool(epoch)
        raise EmptyDataError(
            f"{name} gave no batch in epoch {(epoch or 0) + 1}"
            + (
                ": it is an iterator that earlier epochs used up. "
                f"Pass a function that makes it anew ({name}=lambda: batches()), a list, or a loader"
                if used_up
                else f": an epoch needs at least one. Received {type(source).__name__}, which is empty"
            )
        )


def _without_padding(batch: "mx.io.DataBatch") -> Any:
    """`(x, y)` of a DataBatch, without the samples that DataIter repeats to fill the last one."""

    def cut(arrays: Any) -> Any:
        return tuple(array[: array.shape[0] - batch.pad] if batch.pad else array for array in arrays or ())

    return cut(batch.data), cut(batch.label)
