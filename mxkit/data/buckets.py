"""Batches of sequences of similar length, which need little padding."""

from typing import Any, Iterator, List, Optional, Sequence, Union

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.core.seeding import permutation
from mxkit.data.batching import empty_batch, handed_over, narrow, narrow_dtype, to_batch
from mxkit.data.order import EpochOrder
from mxkit.errors import DataError, EmptyDataError
import mxnet as mx
import numpy as np


class BucketLoader(EpochOrder):
    """Batches `((x, lengths), y)` of sequences of similar length; each epoch reads every sequence once.

    Sequences are sorted into buckets by length, and each batch is drawn from one bucket. The order depends on
    `(seed, epoch)` only. The last batch of each bucket may be smaller.

    Args:
        sequences: A list of N arrays of shape (T, ...); only T may differ, from 1. uint8 is not converted, float64
            becomes float32, int64 becomes int32.
        labels: One label for each sequence: shape (N, ...), a list of arrays of one shape, or None for batches
            `((x, lengths),)`.
        batch_size: Sequences per batch, at least 1.
        buckets: The number of buckets, which then hold about equally many sequences; or the limits in increasing
            order: a sequence belongs to the first bucket whose limit is at least its length.
        pad: Value that fills x after the end of a sequence.
        pad_to: "bucket": x is as long as the bucket's limit, so that a hybridized net sees as many shapes as there
            are buckets, or twice as many with smaller last batches. On a GPU, cuDNN searches the algorithms of
            convolutions for each shape. "longest": x is as long as the batch's longest sequence, which needs less
            padding.
        shuffle: Draw a new order for each epoch: of the sequences in their bucket, and of the batches of all buckets.
            False: the buckets from short to long, and in each bucket the order of `sequences`.
        seed: Integer that determines the orders. None draws one, which the attribute `seed` holds.
        drop_last: Leave out a last batch of a bucket that is smaller than `batch_size`.

    Attributes:
        sequences: The sequences, NumPy.
        labels: The labels, NumPy of shape (N, ...), or None.
        limits: Length of the longest sequence that each bucket takes, increasing; empty buckets are left out.
        batch_size: Sequences per batch.
        epoch: Number of the epoch that the next `iter` reads, from 0; each `iter` increases it by one, and `fit`
            sets it.
        seed: Determines the orders.

    Raises:
        EmptyDataError: There is no sequence, or `drop_last` leaves no batch.
        DataError: A sequence is empty, is longer than the last limit, or has another shape than the others; the text
            names it. The labels do not fit.
        ValueError: An argument is invalid.

    `lengths` is float32 of shape (B,), as needed by `SequenceMask(x, lengths, use_sequence_length=True, axis=1)`,
    CTC and divisions. Recurrent layers ignore it on the CPU (T262).

    >>> loader = BucketLoader([[5, 6], [7], [1, 2, 3, 4]], [0, 1, 0], batch_size=2, buckets=[2, 4])
    >>> [(x.asnumpy().tolist(), lengths.asnumpy().tolist()) for (x, lengths), y in loader]
    [([[5, 6], [7, 0]], [2.0, 1.0]), ([[1, 2, 3, 4]], [4.0])]
    >>> loader.order(epoch=0).tolist(), loader  # doctest: +ELLIPSIS
    ([0, 1, 2], BucketLoader(3 sequences of 1 to 4 in buckets up to [2, 4], batch_size=2, 2 batches, shuffle=False,
    seed=...))
    """

    def __init__(
        self,
        sequences: Sequence[Any],
        labels: Any,
        batch_size: int,
        *,
        buckets: Union[int, Sequence[int]] = 8,
        pad: float = 0,
        pad_to: str = "bucket",
        shuffle: bool = False,
        seed: Optional[int] = None,
        drop_last: bool = False,
    ) -> None:
        if pad_to not in ("bucket", "longest"):
            raise ValueError(f"BucketLoader: pad_to: expected 'bucket' or 'longest'; received {pad_to!r}")
        self.sequences = _sequences(sequences)
        self.labels = None if labels is None else _labels(labels, len(self.sequences))
        self.pad, self.pad_to = pad, pad_to
        self._dtype = narrow_dtype(np.result_type(*{array.dtype for array in self.sequences}))
        _check_pad(pad, self._dtype)
        self._lengths = np.array([len(array) for array in self.sequences])
        limits = _limits(self._lengths, buckets)
        self.limits: List[int] = limits[np.unique(np.searchsorted(limits, self._lengths))].tolist()
        self._bucket = np.searchsorted(self.limits, self._lengths)
        self._cuts = _cuts(np.bincount(self._bucket), whole_number(batch_size, "BucketLoader: batch_size"), drop_last)
        if not self._cuts:
            raise EmptyDataError(f"BucketLoader: drop_last leaves no batch: no bucket has {batch_size} sequences")
        super().__init__(len(self.sequences), batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)

    def __len__(self) -> int:
        """Number of batches; smaller ones count unless `drop_last` leaves them out."""
        return len(self._cuts)

    def order(self, epoch: int) -> "np.ndarray":
        """Sequence numbers in the order of this epoch, int64 of shape (N,) without those that `drop_last` leaves out.

        A net's outputs over `list(loader)` have this order: `outputs[loader.order(0).argsort()]` has the order of the
        sequences.
        """
        return np.concatenate(self._plan(epoch))

    def __iter__(self) -> Iterator[Any]:
        epoch, numbers = self._begin()
        plan = self._plan(epoch)
        return handed_over(self._batch(plan[number]) for number in numbers)

    def _plan(self, epoch: int) -> List["np.ndarray"]:
        """Sequence numbers of each batch."""
        order = super().order(epoch)
        order = order[self._bucket[order].argsort(kind="stable")]
        batches = [order[cut] for cut in self._cuts]
        if not self.shuffle:
            return batches
        return [batches[number] for number in permutation(len(batches), (self.seed % 2**32, epoch, 0, 1))]

    def _width(self, rows: "np.ndarray") -> int:
        return self.limits[self._bucket[rows[0]]] if self.pad_to == "bucket" else int(self._lengths[rows].max())

    def _batch(self, rows: "np.ndarray") -> Any:
        shape = (len(rows), self._width(rows), *self.sequences[0].shape[1:])
        x, view = empty_batch(shape, self._dtype)
        for padded, row in zip(view, rows):
            length = self._lengths[row]
            padded[:length] = self.sequences[row]
            padded[length:] = self.pad
        inputs = (x, to_batch(self._lengths[rows].astype(np.float32)))
        return (inputs,) if self.labels is None else (inputs, to_batch(self.labels[rows]))

    def __repr__(self) -> str:
        lengths = f"{self._size} sequences of {self._lengths.min()} to {self._lengths.max()}"
        text = f"{lengths} in buckets up to {self.limits}, batch_size={self.batch_size}, {len(self)} batches"
        return f"BucketLoader({text}, shuffle={self.shuffle}, seed={self.seed})"


def _sequences(sequences: Sequence[Any]) -> List["np.ndarray"]:
    arrays: List[np.ndarray] = []
    for number, sequence in enumerate(sequences):
        where = f"BucketLoader: sequence {number}"
        array = to_host(sequence)
        if not array.shape or 0 in array.shape:
            raise DataError(f"{where} has the shape {array.shape}: expected (T, ...) with T at least 1; leave it out")
        arrays.append(narrow(array, where))
        if array.shape[1:] != arrays[0].shape[1:]:
            shapes = f"{arrays[0].shape} and {array.shape}: only the length may differ"
            raise DataError(f"BucketLoader: sequences 0 and {number} have the shapes {shapes}")
    if not arrays:
        raise EmptyDataError("BucketLoader: there is no sequence")
    return arrays


def _labels(labels: Any, size: int) -> "np.ndarray":
    if not isinstance(labels, (mx.nd.NDArray, np.ndarray)):
        labels = np.stack([np.asarray(label) for label in labels])
    array = narrow(to_host(labels), "BucketLoader: labels")
    if array.shape[:1] != (size,):
        raise DataError(f"BucketLoader: there are {size} sequences, and labels of shape {array.shape}")
    return array


def _check_pad(pad: float, dtype: "np.dtype") -> None:
    if dtype.kind in "iu" and not (float(pad).is_integer() and np.iinfo(dtype).min <= pad <= np.iinfo(dtype).max):
        raise ValueError(f"BucketLoader: pad: the sequences are {dtype}, which cannot hold {pad!r}")


def _limits(lengths: "np.ndarray", buckets: Union[int, Sequence[int]]) -> "np.ndarray":
    if np.ndim(buckets) == 0:
        count = whole_number(buckets, "BucketLoader: buckets")
        ends = -(-len(lengths) * np.arange(1, count + 1) // count)
        return np.asarray(np.unique(np.sort(lengths)[ends - 1]))
    limits = np.array([whole_number(limit, "BucketLoader: buckets") for limit in np.asarray(buckets)], dtype=np.int64)
    if not len(limits) or (np.diff(limits) <= 0).any():
        raise ValueError(f"BucketLoader: buckets: expected increasing limits; received {limits.tolist()}")
    if lengths.max() > limits[-1]:
        over = np.flatnonzero(lengths > limits[-1])
        text = f"{len(over)} of {len(lengths)} sequences are longer than the last limit {limits[-1]}"
        raise DataError(f"BucketLoader: {text}, the first is {over[0]}: add a limit of {lengths.max()}")
    return limits


def _cuts(sizes: "np.ndarray", batch_size: int, drop_last: bool) -> List[slice]:
    """The slice of each batch in the order sorted by bucket."""
    ends = sizes.cumsum()
    cuts = [
        slice(start, min(start + batch_size, int(end)))
        for size, end in zip(sizes, ends)
        for start in range(int(end - size), int(end), batch_size)
    ]
    return [cut for cut in cuts if cut.stop - cut.start == batch_size] if drop_last else cuts
