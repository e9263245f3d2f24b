"""Loaders over arrays in memory or on disk, without a Python call for each sample: samples, pairs and triplets."""

from functools import partial
from typing import Any, Callable, Iterator, Optional, Tuple
import warnings

from mxkit.core.arguments import check_number, whole_number
from mxkit.core.arrays import Packed, holds_pixels, legacy, to_host
from mxkit.data.batching import each, empty_batch, handed_over, narrow, narrow_dtype, to_batch
from mxkit.data.order import EpochOrder, rounds
from mxkit.data.workers import read_ahead
from mxkit.errors import DataError, EmptyDataError, TrapWarning
import mxnet as mx
import numpy as np

# Smaller batches are made faster than a thread hands them over.
PREFETCH_BYTES = 4 * 2**20
PREFETCH = 2

Transform = Callable[[Any, Any, "np.random.Generator"], Tuple[Any, Any]]


class ArrayLoader(EpochOrder):
    """Batches `(x, y)` from arrays: NDArrays, or arrays of `mx.np` while `npx.set_np()` is on in the thread that reads.

    Whole batches are sliced at once: gluon's DataLoader calls Python for every sample, which takes a quarter of an
    epoch of LeNet (T65). The last batch holds the remaining samples. The order of an epoch depends on `(seed, epoch)`
    only.

    Args:
        x: Inputs of shape (N, ...), NumPy, NDArray or `mx.np`, or a tuple of such. uint8 stays uint8 in memory; each
            batch is cast to float32, and images are divided by 255 (`scale`). On a GPU, and if `fit` trains a
            hybridized net, that happens after the copy to the device, with the same bits. float64 becomes float32. A
            file opened by `np.load(path, mmap_mode="r")` stays on disk, and is cast batch by batch.
        y: Labels of shape (N, ...), a tuple of such, or None for batches `(x,)`. int64 becomes int32, float64 becomes
            float32.
        batch_size: Samples per batch, at least 1.
        shuffle: Draw a new order for each epoch.
        seed: Integer that determines the orders. None draws one, which the attribute `seed` holds.
        scale: Factor for each input of uint8, in float32. By default it is 1/255 for images and videos, uint8 of four
            axes or more, which gives numbers from 0 to 1, as gluon's `ToTensor` does, which divides: the last bits may
            differ. Other inputs of uint8 (lengths, masks, tokens, one-hot tables) keep their values. Pass 1/255 for
            flat or grey images of fewer axes, 1.0 to keep the values of images.
        drop_last: Leave out a last batch that is smaller than `batch_size`.
        transform: Called for each batch as `transform(x, y, rng)`, returns `(x, y)`. It receives x and y as the loader
            would yield them, but as NumPy arrays, which it may change; rng is a `numpy.random.Generator` of
            (seed, epoch, batch number).
        prefetch: Batches made ahead in a thread; 0 makes each batch when it is read. None means 2 if a batch has
            4 MiB or is transformed, and else 0, because handing over a small batch costs more than making it.
        balance: The class of each sample, shape (N,), numbers or names: an epoch still has N samples, drawn so that all
            classes, and all samples of a class, occur equally often, to within one. Samples of small classes are
            repeated, and of large ones some wait for a later epoch. It needs `shuffle=True`.

    Attributes:
        x: The inputs, NumPy of shape (N, ...), or a tuple of them.
        y: The labels, NumPy of shape (N, ...), a tuple of them, or None.
        batch_size: Samples per batch.
        epoch: Number of the epoch that the next `iter` reads, from 0; each `iter` increases it by one, and `fit`
            sets it.
        seed: Determines the orders.

    Warns:
        TrapWarning: uint8 with three axes may be grey images, which are not scaled.

    Raises:
        EmptyDataError: There is no sample, or `drop_last` leaves no batch.
        DataError: The arrays have different lengths, or int32 cannot hold one of their integers.
        ValueError: `batch_size` is below 1, or `scale` is not a finite number.

    >>> loader = ArrayLoader(np.zeros((10, 3)), np.arange(10), batch_size=4)
    >>> [(x.shape, y.shape) for x, y in loader]
    [((4, 3), (4,)), ((4, 3), (4,)), ((2, 3), (2,))]
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: Optional[int] = None,
        scale: Optional[float] = None,
        drop_last: bool = False,
        transform: Optional[Transform] = None,
        prefetch: Optional[int] = None,
        balance: Any = None,
    ) -> None:
        self.x = each(partial(_host, name="x"), x)
        self.y = None if y is None else each(partial(_host, name="y"), y)
        size = _size(self.x, self.y)
        super().__init__(size, batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, balance=balance)
        if scale is None:
            _warn_of_grey_images(self.x)
        else:
            check_number("ArrayLoader: scale", scale, least_0=False)
        self.scale = scale
        self.transform = transform
        prefetch = self._default_prefetch() if prefetch is None else prefetch
        self.prefetch = whole_number(prefetch, "ArrayLoader: prefetch", 0)

    def __iter__(self) -> Iterator[Any]:
        return handed_over(self._batches(packed=False))

    def packed(self) -> Iterator[Any]:
        """The same epoch as `iter` gives, for `fit`, which chooses the kind of arrays.

        Inputs of uint8 are `Packed`, and are cast on the device.
        """
        return self._batches(packed=self.transform is None)

    def _batches(self, packed: bool) -> Iterator[Any]:
        epoch, numbers = self._begin()
        order = self.order(epoch)

        def make(number: int, _: Callable[[], bool]) -> Any:
            return self._batch(self._rows(order, number), epoch, number, packed)

        if self.prefetch:
            return read_ahead(make, numbers, threads=1, ahead=self.prefetch)
        cuts = [self._rows(order, number) for number in numbers]  # views, made once per epoch
        return (self._batch(rows, epoch, number, packed) for rows, number in zip(cuts, numbers))

    def _batch(self, rows: "np.ndarray", epoch: int, number: int, packed: bool) -> Any:
        if self.transform is not None:
            return self._transformed(self.transform, rows, epoch, number)
        inputs = each(lambda array: self._input(array, rows, packed), self.x)
        return (inputs,) if self.y is None else (inputs, each(lambda array: self._cut(array, rows), self.y))

    def _input(self, array: "np.ndarray", rows: "np.ndarray", packed: bool) -> Any:
        if packed and array.dtype == np.uint8:
            return Packed(self._cut(array, rows), self._factor(array), (len(rows), *array.shape[1:]))
        return self._cut(array, rows, cast=True)

    def _factor(self, array: "np.ndarray") -> float:
        """Factor for an input of uint8."""
        return self.scale if self.scale is not None else 1 / 255 if holds_pixels(array) else 1.0

    def _cut(self, array: "np.ndarray", rows: "np.ndarray", cast: bool = False, new: Any = empty_batch) -> Any:
        """Rows of an array as a new NDArray, or as what `new` returns with its memory."""
        batch, view = new((len(rows), *array.shape[1:]), _batch_dtype(array, cast))
        if cast and array.dtype == np.uint8:
            np.multiply(array.take(rows, axis=0), np.float32(self._factor(array)), out=view)
        elif array.dtype == view.dtype:
            array.take(rows, axis=0, out=view, mode="clip")  # with "raise", NumPy would buffer `out`
        else:
            view[...] = narrow(array.take(rows, axis=0), "ArrayLoader")
        return batch

    def _transformed(self, transform: Transform, rows: "np.ndarray", epoch: int, number: int) -> Any:
        cut = partial(self._cut, rows=rows, new=lambda *spec: (np.empty(*spec),) * 2)
        inputs = each(partial(cut, cast=True), self.x)
        labels = None if self.y is None else each(cut, self.y)
        x, y = transform(inputs, labels, self._generator(epoch, number, self.share[0]))
        inputs = each(_as_ndarray, x)
        return (inputs,) if y is None else (inputs, each(_as_ndarray, y))

    def _default_prefetch(self) -> int:
        arrays = self.x if isinstance(self.x, tuple) else (self.x,)
        sizes = [array[:1].size * _batch_dtype(array, cast=True).itemsize for array in arrays]
        return PREFETCH if self.transform is not None or self.batch_size * sum(sizes) >= PREFETCH_BYTES else 0

    def __repr__(self) -> str:
        first = self.x[0] if isinstance(self.x, tuple) else self.x
        shapes = [None if part is None else each(lambda array: array.shape, part) for part in (self.x, self.y)]
        arrays = f"x {shapes[0]} {first.dtype}, y {shapes[1]}, batch_size={self.batch_size}, {len(self)} batches"
        return f"ArrayLoader({arrays}, shuffle={self.shuffle}, seed={self.seed})"


def _as_ndarray(array: Any) -> "mx.nd.NDArray":
    if isinstance(array, mx.nd.NDArray):
        return legacy(array)
    return to_batch(narrow(np.asarray(array), "ArrayLoader: the result of transform"))


def _batch_dtype(array: "np.ndarray", cast: bool) -> "np.dtype":
    return np.dtype(np.float32) if cast and array.dtype == np.uint8 else narrow_dtype(array.dtype)


def _host(array: Any, name: str) -> "np.ndarray":
    host = to_host(array)
    return host if _on_disk(array) else narrow(host, f"ArrayLoader: {name}")


def _on_disk(array: Any) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def _warn_of_grey_images(x: Any) -> None:
    for array in x if isinstance(x, tuple) else (x,):
        if array.dtype == np.uint8 and array.ndim == 3 and array[:2].max() > 100:
            way = "x[:, None] or scale=1/255 for grey images, scale=1.0 for numbers"
            text = f"ArrayLoader: uint8 of shape {array.shape} is not divided by 255: pass {way}"
            warnings.warn(text, TrapWarning, stacklevel=3)


def _size(x: Any, y: Any) -> int:
    """Number of samples of all arrays."""
    named = [("x", x), ("y", y)] if y is not None else [("x", x)]
    parts = [(name, array) for name, part in named for array in (part if isinstance(part, tuple) else (part,))]
    if not parts or not parts[0][1].shape:
        raise DataError("ArrayLoader: x: expected an array of shape (N, ...), or a tuple of such")
    (first, reference), size = parts[0], len(parts[0][1])
    if size == 0:
        raise EmptyDataError(f"ArrayLoader: {first} has no sample, its shape is {reference.shape}")
    for name, array in parts[1:]:
        if array.shape[:1] != (size,):
            raise DataError(f"ArrayLoader: {first} has {size} samples, {name} the shape {array.shape}")
    return size


class PairLoader(EpochOrder):
    """Batches of pairs `((a, b), same)`, or of triplets `((anchor, positive, negative),)`, from labelled arrays.

    Each epoch draws new ones, as a function of `(seed, epoch)`. No sample is paired with itself.

    Args:
        x: Inputs, NumPy, NDArray or `mx.np` of shape (N, ...). uint8 stays uint8 in memory; each batch is cast to
            float32, and images are divided by 255, as by `ArrayLoader`.
        y: Class of each sample, shape (N,): numbers, or names.
        batch_size: Pairs or triplets per batch, at least 1.
        kind: "pairs": `same` is float32 of shape (B,), 1 if a and b have the same class, else 0. "triplets": the
            positive has the anchor's class, the negative another one.
        same: Share of pairs with the same class, 0 to 1; exact in each epoch, to the nearest pair.
        balanced: False: each sample is the anchor (a) equally often, to within one, and all samples of other classes
            are equally likely as negatives. True: each class has equally many anchors, and all other classes are
            equally likely as negatives.
        length: Pairs or triplets per epoch. None: the number of samples.
        shuffle: False repeats those of epoch 0 in each epoch: for validation.
        seed: Integer that determines all draws. None draws one, which the attribute `seed` holds.
        scale: Factor for each batch of uint8, as for `ArrayLoader`.
        drop_last: Leave out a last batch that is smaller than `batch_size`.

    Attributes:
        x: The inputs, NumPy of shape (N, ...).
        batch_size: Pairs or triplets per batch.
        epoch: Number of the epoch that the next `iter` reads, from 0; each `iter` increases it by one, and `fit`
            sets it.
        seed: Determines the draws.

    Raises:
        EmptyDataError: There is no sample, or `drop_last` leaves no batch.
        DataError: The arrays have different lengths, no class has two samples, or there is only one class.
        ValueError: An argument is invalid.

    Warns:
        TrapWarning: A class has a single sample, which cannot be an anchor, because it has no positive.

    >>> loader = PairLoader(np.arange(6.0), [0, 0, 0, 1, 1, 1], batch_size=4, same=0.5, seed=1)
    >>> [(a.shape, b.shape, int(same.sum().asscalar())) for (a, b), same in loader]
    [((4,), (4,), 2), ((2,), (2,), 1)]
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        batch_size: int,
        *,
        kind: str = "pairs",
        same: float = 0.5,
        balanced: bool = False,
        length: Optional[int] = None,
        shuffle: bool = True,
        seed: Optional[int] = None,
        scale: Optional[float] = None,
        drop_last: bool = False,
    ) -> None:
        if kind not in ("pairs", "triplets"):
            raise ValueError(f"PairLoader: kind: expected 'pairs' or 'triplets'; received {kind!r}")
        if not 0 <= same <= 1:
            raise ValueError(f"PairLoader: same: expected a share from 0 to 1; received {same!r}")
        if isinstance(x, tuple):
            raise DataError("PairLoader: x: expected one array of shape (N, ...); received a tuple")
        self._array = ArrayLoader(x, None, 1, scale=scale)
        self.x = self._array.x
        self.kind, self.same, self.balanced = kind, float(same), balanced
        labels = to_host(y)
        if labels.shape != self.x.shape[:1]:
            text = f"expected the shape {self.x.shape[:1]}, a class for each; received {labels.shape}"
            raise DataError(f"PairLoader: y: {text}")
        self._classes = Classes(labels)
        size = len(self.x) if length is None else whole_number(length, "PairLoader: length")
        super().__init__(size, batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self._check_classes()

    def order(self, epoch: int) -> "np.ndarray":
        """Sample numbers of each pair or triplet of an epoch, int64 of shape (length, 2 or 3)."""
        rng = self._generator(epoch if self.shuffle else 0)
        if self.kind == "pairs":
            return self._classes.pairs(rng, self._size, self.same, self.balanced)
        anchors = self._classes.anchors(rng, self._size, self.balanced, alone=False)
        others = self._classes.others(rng, anchors, self.balanced)
        return np.stack([anchors, self._classes.partners(rng, anchors), others], axis=1)

    def __iter__(self) -> Iterator[Any]:
        epoch, numbers = self._begin()
        order = self.order(epoch)
        return handed_over(self._batch(self._rows(order, number)) for number in numbers)

    def _batch(self, rows: "np.ndarray") -> Any:
        inputs = tuple(self._array._cut(self.x, column, cast=True) for column in rows.T)
        if self.kind == "triplets":
            return (inputs,)
        codes = self._classes.codes[rows]
        return inputs, to_batch((codes[:, 0] == codes[:, 1]).astype(np.float32))

    @property
    def _needs_partners(self) -> bool:
        return self.kind == "triplets" or self.same > 0

    def _check_classes(self) -> None:
        sizes = self._classes.sizes
        if self._needs_partners and sizes.max() < 2:
            raise DataError(f"PairLoader: each of the {len(sizes)} classes has one sample: no two are alike")
        if len(sizes) < 2 and (self.kind == "triplets" or self.same < 1):
            raise DataError(f"PairLoader: all {sizes[0]} samples are of one class, so that no two are unlike")
        alone = int((sizes == 1).sum())
        if alone and self._needs_partners:
            text = f"PairLoader: {alone} of {len(sizes)} classes have a single sample: it is never an anchor"
            warnings.warn(text, TrapWarning, stacklevel=3)

    def __repr__(self) -> str:
        sizes = self._classes.sizes
        samples = f"{len(self.x)} samples {self.x.shape[1:]} {self.x.dtype} in {len(sizes)} classes"
        batches = f"batch_size={self.batch_size}, {len(self)} batches, seed={self.seed}"
        return f"PairLoader({self._size} {self.kind} an epoch, of {samples}, {batches})"


class Classes:
    """Samples sorted by class, so that partners are drawn for all anchors at once."""

    def __init__(self, labels: "np.ndarray") -> None:
        _, self.codes = np.unique(labels, return_inverse=True)
        self._sorted = self.codes.argsort(kind="stable")
        self.sizes = np.bincount(self.codes)
        self._starts = self.sizes.cumsum() - self.sizes
        self._places = self._sorted.argsort(kind="stable")

    def pairs(self, rng: "np.random.Generator", count: int, same: float, balanced: bool) -> "np.ndarray":
        """Draw `count` pairs, a share `same` of them of one class."""
        anchors = self.anchors(rng, count, balanced, alone=not same)
        alike = rng.random(count).argsort(kind="stable") < round(same * count)
        second = np.empty_like(anchors)
        second[alike] = self.partners(rng, anchors[alike])
        second[~alike] = self.others(rng, anchors[~alike], balanced)
        return np.stack([anchors, second], axis=1)

    def anchors(self, rng: "np.random.Generator", count: int, balanced: bool, alone: bool) -> "np.ndarray":
        """Draw `count` anchors, of classes with one sample only if `alone`; each sample, or class, equally often."""
        usable = np.flatnonzero(self.sizes >= (1 if alone else 2))
        if not balanced:
            return rounds(rng, self._sorted[np.isin(self.codes[self._sorted], usable)], count)
        return self._members(rng, rounds(rng, usable, count))

    def partners(self, rng: "np.random.Generator", anchors: "np.ndarray") -> "np.ndarray":
        """Draw another sample of the same class for each anchor."""
        start, size = self._starts[self.codes[anchors]], self.sizes[self.codes[anchors]]
        place = self._places[anchors] - start + 1 + _below(rng, size - 1)
        return np.asarray(self._sorted[start + place % size])

    def others(self, rng: "np.random.Generator", anchors: "np.ndarray", balanced: bool) -> "np.ndarray":
        """Draw a sample of another class for each anchor."""
        codes = self.codes[anchors]
        if balanced:
            other = (codes + 1 + _below(rng, np.full(len(anchors), len(self.sizes) - 1))) % len(self.sizes)
            return self._members(rng, other)
        place = _below(rng, len(self.codes) - self.sizes[codes])
        return np.asarray(self._sorted[np.where(place < self._starts[codes], place, place + self.sizes[codes])])

    def _members(self, rng: "np.random.Generator", classes: "np.ndarray") -> "np.ndarray":
        return np.asarray(self._sorted[self._starts[classes] + _below(rng, self.sizes[classes])])


def _below(rng: "np.random.Generator", limits: "np.ndarray") -> "np.ndarray":
    """Integers from 0 to below each limit, from `random()`, whose bits are the same in all versions of NumPy."""
    return np.asarray((rng.random(len(limits)) * limits).astype(np.int64))
