"""What a loop asks about its data: one object for every kind that users pass."""

from contextlib import AbstractContextManager, contextmanager, nullcontext
import hashlib
from itertools import chain, count, repeat
import types
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.blocks import held_arrays, loader_parts, transformed
from mxkit.data.batching import narrow_dtype
from mxkit.data.buckets import BucketLoader
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.loader import ArrayLoader
from mxkit.data.order import EpochOrder, Epochs
from mxkit.data.samples import resized_tensor
from mxkit.data.splits import Split, Splits
from mxkit.errors import DataError, EmptyDataError, TrapWarning
import mxnet as mx
from mxnet import gluon
import numpy as np

Data = Union[Iterable[Any], Callable[[], Iterable[Any]]]

# Batch size of the loaders that `whole_source` makes.
BATCH = 256

# Number of samples of an array that a digest reads, and of values of each sample.
_DIGEST_SAMPLES = 64
_DIGEST_VALUES = 1024

_END = object()

# Iterators that can be read only once; others may start again by themselves.
_ONE_SHOT = (types.GeneratorType, map, filter, zip, enumerate)


class Source:
    """The data of a loop, of any kind: a list, an iterable, or a function that returns one.

    Subclasses know MXNet's iterators and the loaders of Gluon and of mxkit; `source_of` chooses. A user's class may
    have the attributes of mxkit's loaders (`epoch`, `skip`, `state_dict`), which are used then.

    Attributes:
        data: The object that the user passed.
        name: Its class, for messages.
        is_one_shot: Whether the data may be empty after one pass.
        deterministic: Whether reading is known to draw no random numbers.
        dataset: The dataset that a loader reads, or None.
        shuffles: Whether the data is known to shuffle its samples.
        drops_last: Whether a last batch that is too small is left out.
        reseeds: Whether reading a sample seeds MXNet's generator.
        resets: Whether this is a DataIter, which `read` resets, and which may fill a batch's memory with a later one.
        reads_ahead: Whether a pass that ends early changes the next one.
        inputs_checked: Whether a training has checked the first batch, because it initialized deferred parameters.
        keeps_its_own_order: Whether the order of an epoch depends on earlier epochs, so that another process cannot
            repeat it (T99).
        has_shares: Whether a loader reads this worker's share of each batch; workers take batches of other data in
            turn.
        scale: Factor for inputs of uint8, as for `ArrayLoader`, or None.
    """

    reseeds = resets = reads_ahead = inputs_checked = False

    def __init__(self, data: Any) -> None:
        self.data = data
        self.name = type(data).__name__
        self.has_shares, self.keeps_its_own_order = False, False
        self.scale: Optional[float] = None
        self.is_one_shot = isinstance(data, _ONE_SHOT) or (hasattr(data, "__next__") and hasattr(data, "__iter__"))
        self.deterministic = isinstance(data, (list, tuple))
        self.dataset: Any = getattr(data, "dataset", None)
        self.shuffles = getattr(data, "shuffle", False) is True
        self.drops_last = getattr(data, "drop_last", False) is True

    @property
    def batches(self) -> Optional[int]:
        """Number of batches of an epoch; None if it is unknown."""
        return len(self.data) if hasattr(self.data, "__len__") else None

    @property
    def sorts(self) -> bool:
        """Whether samples come in another order than that of the data, without a shuffle."""
        return False

    @property
    def missed(self) -> str:
        """Why a pass leaves samples out or repeats some; empty if it does not."""
        if getattr(self.data, "balance", None) is not None:
            return "has balance, which repeats samples. Make it without"
        return "has drop_last=True, which leaves out the last ones. Make it without drop_last" * self.drops_last

    @property
    def can_skip(self) -> bool:
        """Whether the data leaves out the first batches of an epoch unread, as mxkit's loaders do."""
        data = self.data
        return all(callable(getattr(data, name, None)) for name in ("skip", "state_dict")) and hasattr(data, "epoch")

    @property
    def origin(self) -> Any:
        """The object that holds the samples: two loaders over the same one have the same data."""
        held = self.data if self.dataset is None else self.dataset
        inputs = getattr(held, "x", None)
        return held if inputs is None else inputs

    @property
    def settings(self) -> Dict[str, Any]:
        """What decides the samples of each batch, as far as it is known without reading all; None for what is not."""
        values = {name: getattr(self.data, name, None) for name in ("batch_size", "shuffle", "drop_last", "balance")}
        return {**values, "number of samples": self._samples, "digest of the arrays": self.digest}

    @property
    def _samples(self) -> Optional[int]:
        return getattr(self.data, "num_data", None)

    @property
    def digest(self) -> Optional[str]:
        """Digest of arrays: of their lengths, and of shapes, dtypes and some values of samples spread over them.

        At most 64 samples of an array are read, which is fast for files on disk too. The first and the last sample are
        not enough: the folds of a cross-validation share them. It has 16 hexadecimal digits, the same in every process;
        it is None if the samples are not in arrays.

        >>> x, y = np.arange(12.0), np.arange(12)
        >>> digests = [source_of(mxkit.data.ArrayLoader(*data, 4)).digest for data in ((x, y), (x[::-1], y))]
        >>> digests[0] == digests[1], digests[0] == source_of(Split(x, y)).digest
        (False, True)
        """
        arrays = self._arrays()
        if not arrays:
            return None
        digest = hashlib.sha256()
        for array in arrays:
            size = len(array)
            digest.update(f"{size};".encode())
            for row in np.unique(np.linspace(0, size - 1, min(size, _DIGEST_SAMPLES)).astype(np.int64)):
                sample = array[int(row)]
                host = np.asarray(sample.asnumpy() if hasattr(sample, "asnumpy") else sample)
                if host.dtype.kind not in "biuf":  # the bytes of Python objects differ from process to process
                    return None
                start = max(0, (host.size - _DIGEST_VALUES) // 2)  # the middle, where pictures differ
                values = host.reshape(-1)[start : start + _DIGEST_VALUES]
                dtype = narrow_dtype(host.dtype)  # so that a float64 file has the digest of its float32 copy in memory
                digest.update(f"{host.shape}{dtype.str};".encode() + values.astype(dtype).tobytes())
        return digest.hexdigest()[:16]

    def _arrays(self) -> List[Any]:
        """Arrays that hold all samples; none if they are elsewhere."""
        dataset = self.dataset
        lazy = transformed(dataset)
        while lazy:
            dataset = lazy[0]
            lazy = transformed(dataset)
        if isinstance(dataset, gluon.data.ArrayDataset):
            return held_arrays(dataset)
        if not isinstance(self.data, (EpochOrder, Split)):
            return []
        parts = [getattr(self.data, name, None) for name in ("x", "y", "sequences", "labels")]
        return [array for part in parts if part is not None for array in (part if isinstance(part, tuple) else (part,))]

    def all_labels(self) -> Sequence["np.ndarray"]:
        """The label arrays of all samples, if batches hold them unchanged; empty if not."""
        return ()

    def readable_again(self, epoch: Optional[int]) -> bool:
        """Whether the batches of this epoch can be read a second time, at no great cost."""
        return isinstance(self.data, (list, tuple))

    @property
    def batch_samples(self) -> Optional[int]:
        """Samples in each batch but the last; None if they may differ."""
        return None

    def check_batches(self, name: str) -> None:
        """Refuse samples that are not in batches: their rows, or single samples, would be taken for batches.

        Raises:
            DataError: The data is an array, a tuple with an array, a `Split`, `Splits`, or a dataset of single samples.
        """
        data = self.data
        of_arrays = isinstance(data, tuple) and any(map(_is_array, data))
        arrays = _is_array(data) or isinstance(data, (Split, Splits)) or of_arrays
        if arrays or _is_dataset(data):
            received = f"an array of shape {tuple(data.shape)}" if _is_array(data) else self.name
            way = "ArrayLoader(x, y" if arrays else "DatasetLoader(dataset"
            raise DataError(
                f"{name}: expected batches (x, y); received {received}. Make batches of its samples (of Splits, of one "
                f"part, like splits.train): mxkit.data.{way}, batch_size=64, shuffle=True)"
            )

    def check_rereadable(self, epochs: int, name: str) -> None:
        """Refuse data without batches, and data that is empty after one epoch (T62), before anything is trained.

        Raises:
            DataError: As for `check_batches`; or the data is a generator (or a map, zip, ...) and `epochs` is above 1.
        """
        self.check_batches(name)
        if epochs > 1 and isinstance(self.data, _ONE_SHOT):
            way = f"pass a function that returns a new one ({name}=lambda: batches()), a list, or a loader"
            raise DataError(f"{name} is a {self.name}, which can be read only once, not in {epochs} epochs: {way}")

    def read(
        self,
        epoch: Optional[int] = None,
        name: str = "data",
        *,
        keep_count: bool = False,
        skip: int = 0,
        packed: bool = False,
        once: bool = False,
    ) -> Iterator[Any]:
        """Return an iterator over the batches of one epoch; the first batch is read at once.

        A DataIter is reset first, and its padding is cut off. A user's code runs under the user's switches of MXNet
        (`npx.set_np()`), whatever the net holds. Samples that a DataIter carries over to its next pass are no padding.

        Args:
            epoch: Number of the epoch from 0; set on loaders that have an attribute `epoch`, so that their order
                depends on it only. None leaves the loader's own count.
            name: Name of the data for error messages.
            keep_count: Restore the loader's count of epochs, so that this reading changes no later order.
            skip: Number of batches to leave out first; only for data that `can_skip`.
            packed: Read images as `Packed` if the loader can give them so.
            once: Refuse a last batch that is filled up with samples of the next pass.

        Raises:
            EmptyDataError: There was no batch.
            DataError: The data is no iterable of batches, or does not give each sample once and `once` is set.
        """
        self.check_batches(name)
        data = self.data
        if callable(data) and not hasattr(data, "__iter__"):
            data = data()
        padding = _Padding(data, name, once)
        # A C++ iterator that was never read is at its first row, and may have read ahead to the end: a reset would then
        # begin after the rows that fill its last batch (T122).
        if isinstance(data, mx.io.DataIter) and getattr(data, "first_batch", None) is None:
            data.reset()
        own_epoch = getattr(data, "epoch", None)
        if own_epoch is not None and epoch is not None:
            data.epoch = epoch
        if skip:
            data.skip(skip)
        _warn_of_resized_tensors(data, name)
        try:
            # a subclass may give other batches in `__iter__`, so it needs its own `packed`
            batches = data.packed() if packed and "packed" in vars(type(data)) else iter(data)
        except TypeError:
            expected = "an iterable of batches (x, y), or a function that returns one"
            raise DataError(f"{name}: expected {expected}; received {type(data).__name__}") from None
        if own_epoch is not None and keep_count:
            data.epoch = own_epoch
        first = next(batches, _END)
        of_others = getattr(data, "share", (0, 1))[1] > 1  # fewer samples than workers
        if first is _END and not skip and not of_others:
            way = f"pass a function that returns a new one ({name}=lambda: batches()), a list, or a loader"
            raise EmptyDataError(f"{name} gave no batch in epoch {(epoch or 0) + 1}: it is empty or used up; {way}")
        # not `iter(batches)`, which may begin again; and not a generator, which would cost a call per batch
        whole = () if first is _END else chain((first,), map(next, repeat(batches)))
        return map(padding.cut_off, whole) if isinstance(first, mx.io.DataBatch) else iter(whole)

    def endless(self) -> Generator[Any, None, None]:
        """Yield batches from the beginning again and again, unless the data can be read only once."""
        for epoch in count():
            yield from self.read(epoch)
            if not callable(self.data) and not self.resets and iter(self.data) is self.data:
                return

    def first(self) -> Tuple[Any, "Source"]:
        """The first batch, and the data from its beginning; None for the batch of an iterator that is used up.

        Of a DataIter the batch has only the shapes. A loader's count of epochs does not change. An iterator that can be
        read only once is replaced.
        """
        if not self.is_one_shot:
            return next(self.read(name="train", keep_count=True)), self
        iterator: Iterator[Any] = iter(self.data)
        batch = next(iterator, None)
        return batch, self if batch is None else Source(_Begun(self.data, batch, iterator))

    def reset(self) -> None:
        """Let a DataIter begin again after a pass; other data does so by itself."""

    def open(self) -> "AbstractContextManager[Any]":
        """Keep what reading needs, like a loader's processes, from one epoch to the next inside `with`."""
        return nullcontext()

    @contextmanager
    def count_kept(self) -> Iterator[None]:
        """Restore a loader's count of epochs at the end of `with`."""
        own_epoch = getattr(self.data, "epoch", None)
        try:
            yield
        finally:
            if own_epoch is not None:
                self.data.epoch = own_epoch

    def shared(self, rank: int, size: int) -> "AbstractContextManager[None]":
        """Let a loader read its share for one of several workers inside `with`."""
        return nullcontext()

    @property
    def order(self) -> Optional[List[int]]:
        """`[seed, epoch]` of a loader, which determine its order; None for other data."""
        return None

    def set_order(self, seed: int, epoch: int) -> None:
        """Set what `order` tells."""
        self.data.seed, self.data.epoch = seed, epoch

    def state_dict(self) -> Any:
        """State of a loader, as plain JSON values; None for data without."""
        return self.data.state_dict() if hasattr(self.data, "state_dict") else None

    def load_state_dict(self, state: Any) -> None:
        """Restore what `state_dict` returned."""
        if state is not None and hasattr(self.data, "load_state_dict"):
            self.data.load_state_dict(state)


class _Loader(Source):
    """A loader of mxkit."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.reseeds = isinstance(data, DatasetLoader)  # for each sample
        self.has_shares = isinstance(data, EpochOrder) and type(data).__len__ is EpochOrder.__len__
        self.scale = data.scale if isinstance(data, ArrayLoader) else None
        runs_own_code = self.reseeds or getattr(data, "transform", None) is not None
        self.deterministic = isinstance(data, EpochOrder) and not runs_own_code

    @property
    def sorts(self) -> bool:
        return isinstance(self.data, BucketLoader) and bool((np.diff(self.data.order(self.data.epoch)) < 0).any())

    @property
    def missed(self) -> str:
        if isinstance(self.data, EpochOrder) and self.drops_last and self.data.balance is None:
            left = self.data.size - len(self.data) * self.data.batch_size
            return f"has drop_last=True, which leaves out {left}. Make it without drop_last" if left else ""
        return super().missed

    @property
    def _samples(self) -> Optional[int]:
        return self.data.size if isinstance(self.data, EpochOrder) else None

    def all_labels(self) -> Sequence["np.ndarray"]:
        if type(self.data) is not ArrayLoader or self.data.transform is not None or self.data.y is None:
            return ()
        return self.data.y if isinstance(self.data.y, tuple) else (self.data.y,)

    def readable_again(self, epoch: Optional[int]) -> bool:
        return isinstance(self.data, ArrayLoader) and epoch is not None

    @property
    def batch_samples(self) -> Optional[int]:
        joins = getattr(self.data, "batchify", None) is not None
        return None if joins or not self.has_shares else self.data.batch_size

    def open(self) -> "AbstractContextManager[Any]":
        return self.data if isinstance(self.data, DatasetLoader) else nullcontext()

    @contextmanager
    def shared(self, rank: int, size: int) -> Iterator[None]:
        data = self.data
        before = getattr(data, "share", None)
        try:
            if self.has_shares:
                data.share = (rank, size)
                if not len(data):
                    text = f"{data.size} samples do not fill one batch of {data.batch_size} for each of {size} workers"
                    raise DataError(f"{self.name}: {text}, and drop_last leaves out a smaller one")
            yield
        finally:
            if self.has_shares:
                data.share = before

    @property
    def order(self) -> Optional[List[int]]:
        return [self.data.seed, self.data.epoch]


class _GluonLoader(Source):
    """A DataLoader of Gluon."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        parts: Any = loader_parts(data)
        self._parts, self.dataset, self._sampler = parts, parts.dataset, type(parts.sampler).__name__
        # by name: the class IntervalSampler is in gluon.contrib, which nothing else here imports
        random = isinstance(parts.sampler, gluon.data.RandomSampler)
        self.shuffles = random or self._sampler == "IntervalSampler" or self.shuffles
        self.drops_last = parts.last_batch == "discard"

    @property
    def missed(self) -> str:
        last, sampler = self._parts.last_batch, self._parts.sampler
        if last != "keep" and len(sampler) % (self._parts.batch_size or 1):
            return f"has last_batch={last!r}, which leaves out the last ones. Make it with 'keep'"
        return ""

    @property
    def settings(self) -> Dict[str, Any]:
        return {
            "batch_size": self._parts.batch_size,
            "number of samples": len(self._parts.dataset),
            "shuffle": self._sampler == "RandomSampler",
            "sampler": self._sampler,
            "digest of the arrays": self.digest,
        }


class _DataIter(Source):
    """A DataIter of MXNet."""

    resets = True

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.is_one_shot = False
        self.deterministic = isinstance(data, mx.io.NDArrayIter)
        self.reads_ahead = isinstance(data, mx.io.MXDataIter)
        self.shuffles = any(getattr(part, "shuffle", False) is True for part in (data, *_iterators(data)))
        # MXNet's iterators shuffle the order of the epoch before, and those in C++ have their own generators
        self.keeps_its_own_order = not isinstance(data, mx.io.NDArrayIter) or bool(data.shuffle)

    @property
    def missed(self) -> str:
        if isinstance(self.data, mx.io.ResizeIter):
            return "gives a number of batches, whatever the data hold. Pass the iterator inside it"
        for part in _iterators(self.data):
            handle, rows = getattr(part, "last_batch_handle", "pad"), getattr(part, "num_data", None)
            if handle != "pad" and (rows is None or rows % part.batch_size):
                return f"has last_batch_handle={handle!r}, which leaves out the last ones. Make it with 'pad'"
        return super().missed

    def first(self) -> Tuple[Any, Source]:
        groups = (getattr(self.data, "provide_data", None), getattr(self.data, "provide_label", None))
        if not groups[0]:
            return super().first()
        zeros = [
            tuple(mx.nd.zeros(array[1], dtype=getattr(array, "dtype", "float32")) for array in group)
            for group in groups
            if group
        ]
        return tuple(zeros), self

    def reset(self) -> None:
        self.data.reset()


def source_of(data: Any) -> Source:
    """Adapt data that a user passed; a `Source` is returned as it is."""
    if isinstance(data, Source):
        return data
    if isinstance(data, Epochs):
        return _Loader(data)
    if isinstance(data, mx.io.DataIter):
        return _DataIter(data)
    return Source(data) if loader_parts(data) is None else _GluonLoader(data)


def whole_source(data: Any, name: str, *, labels: bool = True, scale: Optional[float] = None) -> Source:
    """Batches that hold each sample once; other samples are put into batches of 256.

    Args:
        data: Batches; a `Split` or a dataset of single samples; with `labels` a pair `(x, y)` of arrays, without them
            one array.
        name: Name of the data for error messages.
        labels: Whether the labels are read too.
        scale: Factor for inputs of uint8 that are arrays, as for `ArrayLoader`.

    Raises:
        DataError: A pass over `data` leaves samples out or repeats some, or `data` is ambiguous.
    """
    if isinstance(data, Split) or (labels and isinstance(data, tuple) and len(data) == 2 and any(map(_is_array, data))):
        return _Loader(ArrayLoader(data[0], data[1], BATCH, scale=scale))
    if _is_dataset(data):
        return _Loader(DatasetLoader(data, BATCH))
    if not labels and _is_array(data):
        return _Loader(ArrayLoader(data, None, BATCH, scale=scale))
    if not labels and type(data) is tuple and any(_is_array(part) for part in data):
        way = "ArrayLoader((x1, x2), None, batch_size=256) for two inputs, x alone for (x, y), a list for batches"
        raise DataError(f"{name}: a tuple of arrays can be inputs, (x, y) or batches. Pass mxkit.data.{way}")
    source = source_of(data)
    source.check_batches(name)
    if source.missed:
        raise DataError(f"{name}: each sample must be read once, but {source.name} {source.missed}")
    return source


class _Begun:
    """An iterator with one batch read: the first pass begins with this batch, the next ones call `iter` again."""

    def __init__(self, source: Any, batch: Any, rest: Iterator[Any]) -> None:
        self._source, self._batch, self._rest = source, batch, rest

    def __iter__(self) -> Iterator[Any]:
        if self._batch is None:
            yield from self._source
            return
        batch, self._batch = self._batch, None
        while batch is not None:  # without `iter(rest)`, which may begin again
            yield batch
            batch = next(self._rest, None)


def _is_array(data: Any) -> bool:
    """Whether `data` is an array, or can be converted to one, as a DataFrame can."""
    return hasattr(data, "__array__") and hasattr(data, "shape")


def _is_dataset(data: Any) -> bool:
    """Whether `data` is a dataset of single samples; other classes with `__getitem__` may give batches."""
    return isinstance(data, gluon.data.Dataset) and not hasattr(data, "__iter__")


def _iterators(data: Any) -> List[Any]:
    """The DataIters that a DataIter reads from, or itself; none for other data."""
    inner = getattr(data, "iters", None) or [getattr(data, "data_iter", None)]
    if isinstance(data, mx.io.DataIter) and inner != [None]:
        return [iterator for part in inner for iterator in _iterators(part)]
    return [data] if isinstance(data, mx.io.DataIter) else []


def _warn_of_resized_tensors(data: Any, name: str) -> None:
    step = resized_tensor(source_of(data).dataset, getattr(data, "transform", None))
    if step:
        text = f"{step} comes after ToTensor in the transform, and changes the number of channels: put ToTensor last"
        warnings.warn(f"{name}: {text} (T261)", TrapWarning, stacklevel=3)


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
                text = f"{type(part).__name__} has the layout {layout!r}, with samples on axis {layout.find('N')}"
                raise DataError(f"{name}: {text}: transpose the arrays to axis 0, and leave layout out")
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
            which = "unwritten memory" if self._unsure else "of the next pass"
            loader = "mxkit.data.DatasetLoader(mxkit.data.image_records(path, valid=0, test=0).train, batch_size=64)"
            text = f"ImageRecordIter does not say which samples of its last batch are {which}"
            other = "" if self._once else ", or make the iterator with round_batch=True"
            raise DataError(f"{self._name}: {text}. Read the file with {loader}{other}")
        pad = 0 if unnumbered else pad
        if pad and self._rounds and self._belongs_to_the_next_pass(batch.index, pad):
            if self._once:
                text = f"each sample must be read once, but the last batch holds {pad} samples of the next pass"
                raise DataError(f"{self._name}: {text}: make the iterator with round_batch=False")
            pad = 0
        self._rows = batch.index

        def cut(arrays: Any) -> Any:
            return tuple(array[: array.shape[0] - pad] if pad else array for array in arrays or ())

        return cut(batch.data), cut(batch.label)

    def _belongs_to_the_next_pass(self, rows: Any, pad: int) -> bool:
        # otherwise the places after the last sample still hold the rows of the batch before
        return rows is not None and self._rows is not None and list(rows[-pad:]) != list(self._rows[-pad:])
