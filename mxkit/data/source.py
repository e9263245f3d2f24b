"""One way to read an epoch from whatever a user calls data."""

from itertools import chain, repeat
import types
from typing import Any, Callable, Iterable, Iterator, List, Optional, Union

from mxkit.core.gluon_data import loader_parts
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.loader import ArrayLoader
from mxkit.data.order import EpochOrder
from mxkit.data.splits import Split, Splits
from mxkit.errors import DataError, EmptyDataError
import mxnet as mx
from mxnet import gluon
import numpy as np

Data = Union[Iterable[Any], Callable[[], Iterable[Any]]]

# Samples of a batch that `whole_part` makes.
BATCH = 256

_END = object()

# What can be read once by construction; other iterators may start anew by themselves.
_ONE_SHOT = (types.GeneratorType, map, filter, zip, enumerate)


def is_one_shot(data: Data) -> bool:
    """Whether a source may be used up by reading from it; a DataIter is reset instead."""
    source: Any = data
    return isinstance(source, _ONE_SHOT) or (
        hasattr(source, "__next__") and hasattr(source, "__iter__") and not isinstance(source, mx.io.DataIter)
    )


def check_rereadable(data: Data, epochs: int, name: str) -> None:
    """Refuse what gives no batches, or is used up after one epoch (T62), before the first one is trained.

    Raises:
        DataError: As for `check_batches`; or `data` is a generator (or a map, zip, ...) and `epochs` is above 1.
    """
    check_batches(data, name)
    if epochs > 1 and isinstance(data, _ONE_SHOT):
        raise DataError(
            f"{name} is a {type(data).__name__}, which can be read only once, but is to be read in {epochs} epochs. "
            f"Pass a function that makes it anew ({name}=lambda: batches()), a list, or a loader"
        )


def check_batches(data: Data, name: str) -> None:
    """Refuse samples that are not cut into batches: reading them would give rows, or single samples, as batches.

    Raises:
        DataError: `data` is an array, a tuple with an array, a `Split`, `Splits`, or a dataset of single samples.
    """
    source: Any = data
    if isinstance(source, Splits):
        raise DataError(f"{name}: received Splits, the three parts of a dataset. Pass one of them, like splits.train")
    if isinstance(source, Split):
        received, way = "a Split", "ArrayLoader(part.x, part.y, batch_size=64, shuffle=True)"
    elif _is_array(source):
        received, way = f"one array of shape {tuple(source.shape)}", "ArrayLoader(x, y, batch_size=64, shuffle=True)"
    elif isinstance(source, tuple) and any(_is_array(part) for part in source):
        received, way = f"a tuple of {len(source)} arrays", "ArrayLoader(x, y, batch_size=64, shuffle=True)"
    elif _is_dataset(source):
        received = f"{type(source).__name__}, a dataset of single samples"
        way = "DatasetLoader(dataset, batch_size=64, shuffle=True)"
    else:
        return
    raise DataError(f"{name}: expected batches (x, y); received {received}. Make batches of it: mxkit.data.{way}")


def whole_part(data: Any, name: str, *, labels: bool = True) -> Data:
    """Return batches that hold each sample once; samples that are not cut into batches are cut into those of 256.

    Args:
        data: Batches, as for `read_epoch`; a `Split` or a dataset of single samples; with `labels` a pair `(x, y)` of
            arrays, without them one array.
        name: What the messages call the data.
        labels: Whether the labels are read too.

    Raises:
        DataError: A pass over `data` leaves samples out or repeats some, or one cannot tell what they are.
    """
    if isinstance(data, Split):
        return ArrayLoader(data.x, data.y, BATCH)
    if _is_dataset(data):
        return DatasetLoader(data, BATCH)
    if labels and isinstance(data, tuple) and len(data) == 2 and any(_is_array(part) for part in data):
        return ArrayLoader(data[0], data[1], BATCH)
    if not labels and _is_array(data):
        return ArrayLoader(data, None, BATCH)
    if not labels and type(data) is tuple and any(_is_array(part) for part in data):
        raise DataError(
            f"{name}: a tuple of arrays can be the inputs of one net, (x, y), or a sequence of batches. Pass "
            "mxkit.data.ArrayLoader((x1, x2), None, batch_size=256) for two inputs, x alone for (x, y), a list for "
            "batches"
        )
    check_batches(data, name)
    missed = _missed(data)
    if missed:
        raise DataError(f"{name}: each sample is to be read once, and {type(data).__name__} {missed}")
    return data  # type: ignore[no-any-return]


def _is_array(data: Any) -> bool:
    return isinstance(data, (np.ndarray, mx.nd.NDArray))


def _is_dataset(data: Any) -> bool:
    """Whether `data` gives single samples; another class with `__getitem__` may give batches."""
    return isinstance(data, gluon.data.Dataset) and not hasattr(data, "__iter__")


def _missed(data: Any) -> str:
    """What a pass over `data` leaves out or repeats, or an empty text."""
    if isinstance(data, mx.io.ResizeIter):
        return "gives a number of batches, whatever the data hold. Pass the iterator inside of it"
    for part in _iterators(data):
        handle, rows = getattr(part, "last_batch_handle", "pad"), getattr(part, "num_data", None)
        if handle != "pad" and (rows is None or rows % part.batch_size):
            return f"has last_batch_handle={handle!r}, which leaves out the last ones. Make it with 'pad'"
    loader = loader_parts(data)
    if loader and loader.last_batch != "keep" and len(loader.sampler) % (loader.batch_size or 1):
        return f"has last_batch={loader.last_batch!r}, which leaves out the last ones. Make it with 'keep'"
    if getattr(data, "drop_last", False) is True:
        left = data.size - len(data) * data.batch_size if isinstance(data, EpochOrder) else None
        if left != 0:
            return f"has drop_last=True, which leaves out {left or 'the last ones'}. Make it without drop_last"
    return ""


def _iterators(data: Any) -> List[Any]:
    """The DataIters that a DataIter reads from, or itself."""
    inner = getattr(data, "iters", None) or [getattr(data, "data_iter", None)]
    if isinstance(data, mx.io.DataIter) and inner != [None]:
        return [one for part in inner for one in _iterators(part)]
    return [data] if isinstance(data, mx.io.DataIter) else []


def shuffles(data: Any) -> bool:
    """Whether the samples come in another order than that of the data, as far as `data` tells."""
    loader = loader_parts(data)
    sampler = loader and loader.sampler
    # gluon.contrib, where IntervalSampler is, would be imported for this alone
    if isinstance(sampler, gluon.data.RandomSampler) or type(sampler).__name__ == "IntervalSampler":
        return True
    return any(getattr(part, "shuffle", False) is True for part in (data, *_iterators(data)))


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
    once: bool = False,
) -> Iterator[Any]:
    """Return the batches of one epoch; the first one is read at once.

    Args:
        data: An iterable of batches, a function that returns one, or an `mx.io.DataIter`, which is reset
            first and whose padding is cut off. Samples that it carries over from one pass to the next are no padding.
        epoch: Number of the epoch from 0; given to loaders that have an attribute `epoch`, so that their
            order depends on it and on nothing else. None leaves it to their own count.
        name: What the messages call the data.
        keep_count: Leave a loader's count of epochs as it was: reading for a look changes no later order.
        skip: Begin after so many batches; only for data that `can_skip`.
        packed: Take images as `Packed`, where a loader of mxkit's own gives them so.
        once: Refuse a last batch that is filled up with samples of the next pass.

    Raises:
        EmptyDataError: There was no batch.
        DataError: `data` gives no batches, or not each sample once where that is asked for.
    """
    check_batches(data, name)
    source: Any = data() if callable(data) and not hasattr(data, "__iter__") else data
    padding = _Padding(source, name, once)
    # One of C++ that nobody has read yet stands at its first row, and may have read ahead to the end: a reset would
    # then begin behind the rows that fill its last batch (T122).
    if isinstance(source, mx.io.DataIter) and getattr(source, "first_batch", None) is None:
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
    first = next(batches, _END)
    if first is _END and not skip:
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
    # never `iter(batches)`, which may begin again; and no generator, which would cost a call a batch
    whole = () if first is _END else chain((first,), map(next, repeat(batches)))
    return map(padding.cut_off, whole) if isinstance(first, mx.io.DataBatch) else iter(whole)


class _Padding:
    """Cuts off what a DataIter repeats to fill its last batch, and nothing else (T122).

    With `roll_over` the `pad` of a batch counts samples that the pass before left over. With `round_batch`, the default
    of MXNet's iterators in C++, it counts samples of the next pass, which then leaves them out.
    """

    def __init__(self, source: Any, name: str, once: bool) -> None:
        parts = _iterators(source)
        for part in parts:
            layout = getattr(part, "layout", None)
            if isinstance(layout, str) and layout.find("N") > 0:
                raise DataError(
                    f"{name}: {type(part).__name__} has the layout {layout!r}, with samples on axis "
                    f"{layout.find('N')}; axis 0 of every array is the sample axis. Transpose the arrays, and leave "
                    "layout out"
                )
        self._name, self._once = name, once
        self._rolls = any(getattr(part, "last_batch_handle", None) == "roll_over" for part in parts)
        self._rounds = any(isinstance(part, mx.io.MXDataIter) for part in parts)
        self._rows: Any = None

    def cut_off(self, batch: "mx.io.DataBatch") -> Any:
        """`(x, y)` of a batch, without its padding."""
        pad = 0 if self._rolls else batch.pad or 0
        if pad and self._rounds and self._belongs_to_the_next_pass(batch.index, pad):
            if self._once:
                raise DataError(
                    f"{self._name}: each sample is to be read once, and the last batch holds {pad} samples of the next "
                    "pass, which will leave them out. Make the iterator with round_batch=False"
                )
            pad = 0
        self._rows = batch.index

        def cut(arrays: Any) -> Any:
            return tuple(array[: array.shape[0] - pad] if pad else array for array in arrays or ())

        return cut(batch.data), cut(batch.label)

    def _belongs_to_the_next_pass(self, rows: Any, pad: int) -> bool:
        # else the places behind the last sample still hold those of the batch before
        return rows is not None and self._rows is not None and list(rows[-pad:]) != list(self._rows[-pad:])
