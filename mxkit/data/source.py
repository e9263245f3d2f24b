"""Reads an epoch from any kind of data that users pass: iterables, functions, loaders, DataIters."""

from itertools import chain, repeat
import types
from typing import Any, Callable, Iterable, Iterator, List, Optional, Union
import warnings

from mxkit.core.arrays import is_numpy
from mxkit.core.blocks import loader_parts
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.loader import ArrayLoader
from mxkit.data.order import EpochOrder
from mxkit.data.samples import resized_tensor
from mxkit.data.splits import Split, Splits
from mxkit.errors import DataError, EmptyDataError, TrapWarning
import mxnet as mx
from mxnet import gluon
import numpy as np

Data = Union[Iterable[Any], Callable[[], Iterable[Any]]]

# Batch size of the loaders that `whole_part` makes.
BATCH = 256

_END = object()

# Iterators that can be read only once; others may start again by themselves.
_ONE_SHOT = (types.GeneratorType, map, filter, zip, enumerate)


def is_one_shot(data: Data) -> bool:
    """Whether `data` may be empty after one reading; a DataIter is not, because it is reset."""
    source: Any = data
    return isinstance(source, _ONE_SHOT) or (
        hasattr(source, "__next__") and hasattr(source, "__iter__") and not isinstance(source, mx.io.DataIter)
    )


def check_rereadable(data: Data, epochs: int, name: str) -> None:
    """Refuse data without batches, and data that is empty after one epoch (T62), before anything is trained.

    Raises:
        DataError: As for `check_batches`; or `data` is a generator (or a map, zip, ...) and `epochs` is above 1.
    """
    check_batches(data, name)
    if epochs > 1 and isinstance(data, _ONE_SHOT):
        raise DataError(
            f"{name} is a {type(data).__name__}, which can be read only once, but is to be read in {epochs} epochs. "
            f"Pass a function that returns a new one ({name}=lambda: batches()), a list, or a loader"
        )


def check_batches(data: Data, name: str) -> None:
    """Refuse samples that are not in batches: their rows, or single samples, would be taken for batches.

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


def whole_part(data: Any, name: str, *, labels: bool = True, scale: Optional[float] = None) -> Data:
    """Return batches that hold each sample once; other samples are put into batches of 256.

    Args:
        data: Batches, as for `read_epoch`; a `Split` or a dataset of single samples; with `labels` a pair `(x, y)` of
            arrays, without them one array.
        name: Name of the data for error messages.
        labels: Whether the labels are read too.
        scale: Factor for inputs of uint8 that are arrays, as for `ArrayLoader`.

    Raises:
        DataError: A pass over `data` leaves samples out or repeats some, or `data` is ambiguous.
    """
    if isinstance(data, Split):
        return ArrayLoader(data.x, data.y, BATCH, scale=scale)
    if _is_dataset(data):
        return DatasetLoader(data, BATCH)
    if labels and isinstance(data, tuple) and len(data) == 2 and any(_is_array(part) for part in data):
        return ArrayLoader(data[0], data[1], BATCH, scale=scale)
    if not labels and _is_array(data):
        return ArrayLoader(data, None, BATCH, scale=scale)
    if not labels and type(data) is tuple and any(_is_array(part) for part in data):
        raise DataError(
            f"{name}: a tuple of arrays can be the inputs of one net, (x, y), or a sequence of batches. Pass "
            "mxkit.data.ArrayLoader((x1, x2), None, batch_size=256) for two inputs, x alone for (x, y), a list for "
            "batches"
        )
    check_batches(data, name)
    missed = _missed(data)
    if missed:
        raise DataError(f"{name}: each sample must be read once, but {type(data).__name__} {missed}")
    return data  # type: ignore[no-any-return]


def _is_array(data: Any) -> bool:
    """Whether `data` is an array, or like a DataFrame becomes one."""
    return hasattr(data, "__array__") and hasattr(data, "shape")


def _is_dataset(data: Any) -> bool:
    """Whether `data` is a dataset of single samples; other classes with `__getitem__` may give batches."""
    return isinstance(data, gluon.data.Dataset) and not hasattr(data, "__iter__")


def _missed(data: Any) -> str:
    """Why a pass over `data` leaves samples out or repeats some; empty if it does not."""
    if isinstance(data, mx.io.ResizeIter):
        return "gives a number of batches, whatever the data hold. Pass the iterator inside it"
    for part in _iterators(data):
        handle, rows = getattr(part, "last_batch_handle", "pad"), getattr(part, "num_data", None)
        if handle != "pad" and (rows is None or rows % part.batch_size):
            return f"has last_batch_handle={handle!r}, which leaves out the last ones. Make it with 'pad'"
    loader = loader_parts(data)
    if loader and loader.last_batch != "keep" and len(loader.sampler) % (loader.batch_size or 1):
        return f"has last_batch={loader.last_batch!r}, which leaves out the last ones. Make it with 'keep'"
    if getattr(data, "balance", None) is not None:
        return "has balance, which repeats samples. Make it without"
    if getattr(data, "drop_last", False) is True:
        left = data.size - len(data) * data.batch_size if isinstance(data, EpochOrder) else None
        if left != 0:
            return f"has drop_last=True, which leaves out {left or 'the last ones'}. Make it without drop_last"
    return ""


def _iterators(data: Any) -> List[Any]:
    """The DataIters that a DataIter reads from, or itself; none for other data."""
    inner = getattr(data, "iters", None) or [getattr(data, "data_iter", None)]
    if isinstance(data, mx.io.DataIter) and inner != [None]:
        return [iterator for part in inner for iterator in _iterators(part)]
    return [data] if isinstance(data, mx.io.DataIter) else []


def shuffles(data: Any) -> bool:
    """Whether `data` is known to shuffle its samples."""
    loader = loader_parts(data)
    sampler = loader and loader.sampler
    # by name: the class is in gluon.contrib, which nothing else here imports
    if isinstance(sampler, gluon.data.RandomSampler) or type(sampler).__name__ == "IntervalSampler":
        return True
    return any(getattr(part, "shuffle", False) is True for part in (data, *_iterators(data)))


def keeps_its_own_order(data: Data) -> bool:
    """Whether the order of an epoch depends on earlier epochs, so that another process cannot repeat it (T99).

    MXNet's iterators shuffle the order of the epoch before, and those in C++ have their own generators.
    """
    source: Any = data
    return isinstance(source, mx.io.DataIter) and (not isinstance(source, mx.io.NDArrayIter) or bool(source.shuffle))


def can_skip(data: Data) -> bool:
    """Whether `data` has the methods of mxkit's loaders, which leave out the first batches of an epoch unread."""
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
    """Return an iterator over the batches of one epoch; the first batch is read at once.

    Args:
        data: An iterable of batches, a function that returns one, or an `mx.io.DataIter`, which is reset
            first and whose padding is cut off. A user's code runs under the user's switches of MXNet (`npx.set_np()`),
            whatever the net holds. Samples that it carries over from one pass to the next are not padding.
        epoch: Number of the epoch from 0; set on loaders that have an attribute `epoch`, so that their order depends on
            it only. None leaves the loader's own count.
        name: Name of the data for error messages.
        keep_count: Restore the loader's count of epochs, so that this reading changes no later order.
        skip: Number of batches to leave out first; only for data that `can_skip`.
        packed: Read images as `Packed` if the loader can give them so.
        once: Refuse a last batch that is filled up with samples of the next pass.

    Raises:
        EmptyDataError: There was no batch.
        DataError: `data` is no iterable of batches, or does not give each sample once and `once` is set.
    """
    check_batches(data, name)
    source: Any = data() if callable(data) and not hasattr(data, "__iter__") else data
    padding = _Padding(source, name, once)
    # A C++ iterator that was never read is at its first row, and may have read ahead to the end: a reset would then
    # begin after the rows that fill its last batch (T122).
    if isinstance(source, mx.io.DataIter) and getattr(source, "first_batch", None) is None:
        source.reset()
    own_epoch = getattr(source, "epoch", None)
    if own_epoch is not None and epoch is not None:
        source.epoch = epoch
    if skip:
        source.skip(skip)
    _warn_of_resized_tensors(source, name)
    try:
        # a subclass may give other batches in `__iter__`, so it needs its own `packed`
        batches = source.packed() if packed and "packed" in vars(type(source)) else iter(source)
    except TypeError:
        raise DataError(
            f"{name}: expected an iterable of batches (x, y), or a function that returns one; "
            f"received {type(source).__name__}"
        ) from None
    if own_epoch is not None and keep_count:
        source.epoch = own_epoch
    first = next(batches, _END)
    of_others = getattr(source, "share", (0, 1))[1] > 1  # fewer samples than workers
    if first is _END and not skip and not of_others:
        used_up = iter(source) is source and bool(epoch)
        raise EmptyDataError(
            f"{name} gave no batch in epoch {(epoch or 0) + 1}"
            + (
                ": it is an iterator that earlier epochs used up. "
                f"Pass a function that returns a new one ({name}=lambda: batches()), a list, or a loader"
                if used_up
                else f": an epoch needs at least one. Received {type(source).__name__}, which is empty"
            )
        )
    # not `iter(batches)`, which may begin again; and not a generator, which would cost a call per batch
    whole = () if first is _END else chain((first,), map(next, repeat(batches)))
    return map(padding.cut_off, whole) if isinstance(first, mx.io.DataBatch) else iter(whole)


def _warn_of_resized_tensors(source: Any, name: str) -> None:
    loader = loader_parts(source)
    dataset = loader.dataset if loader else getattr(source, "dataset", None)
    step = resized_tensor(dataset, getattr(source, "transform", None))
    if step:
        warnings.warn(
            f"{name}: {step} comes after ToTensor in the transform, and takes (channels, height, width) for (height, "
            "width, channels): it changes the number of channels. Put ToTensor, and Normalize, last (T261)",
            TrapWarning,
            stacklevel=3,
        )


class _Padding:
    """Cuts off the samples that a DataIter repeats to fill its last batch (T122).

    With `roll_over`, `pad` counts samples left over from the pass before, which are not repeated. With `round_batch`,
    the default of MXNet's iterators in C++, it counts samples of the next pass, which then leaves them out. Without,
    `ImageRecordIter` fills its last batch up with what the memory held, labels too, and says that nothing is padding;
    it numbers no rows (T190).
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
            if isinstance(part, mx.io.NDArrayIter) and any(is_numpy(array) for _, array in part.data + part.label):
                raise DataError(
                    f"{name}: {type(part).__name__} cannot cut batches out of arrays of mx.np. Make it with "
                    "x.as_nd_ndarray() and y.as_nd_ndarray(), or pass mxkit.data.ArrayLoader(x, y, batch_size=64)"
                )
        self._name, self._once = name, once
        self._rolls = any(getattr(part, "last_batch_handle", None) == "roll_over" for part in parts)
        self._rounds = any(isinstance(part, mx.io.MXDataIter) for part in parts)
        options = [getattr(part, "options", {}) for part in parts]
        self._unsure = any(str(each.get("round_batch")) in ("False", "0") for each in options if "path_imgrec" in each)
        self._rows: Any = None

    def cut_off(self, batch: "mx.io.DataBatch") -> Any:
        """`(x, y)` of a batch, without its padding."""
        pad = 0 if self._rolls else batch.pad or 0
        unnumbered = self._rounds and batch.index is not None and len(batch.index) > 1 and not np.any(batch.index)
        if unnumbered and (self._unsure or (self._once and pad)):
            raise DataError(
                f"{self._name}: ImageRecordIter does not say which samples of its last batch are "
                f"{'unwritten memory' if self._unsure else 'of the next pass'}. Read the file with "
                "mxkit.data.DatasetLoader(mxkit.data.image_records(path, valid=0, test=0).train, batch_size=64)"
                + (", or make the iterator with round_batch=True" if not self._once else "")
            )
        pad = 0 if unnumbered else pad
        if pad and self._rounds and self._belongs_to_the_next_pass(batch.index, pad):
            if self._once:
                raise DataError(
                    f"{self._name}: each sample must be read once, but the last batch holds {pad} samples of the next "
                    "pass, which will leave them out. Make the iterator with round_batch=False"
                )
            pad = 0
        self._rows = batch.index

        def cut(arrays: Any) -> Any:
            return tuple(array[: array.shape[0] - pad] if pad else array for array in arrays or ())

        return cut(batch.data), cut(batch.label)

    def _belongs_to_the_next_pass(self, rows: Any, pad: int) -> bool:
        # otherwise the places after the last sample still hold the rows of the batch before
        return rows is not None and self._rows is not None and list(rows[-pad:]) != list(self._rows[-pad:])
