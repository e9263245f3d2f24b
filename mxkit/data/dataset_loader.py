"""Batches from samples that Python reads one by one: in this process, in threads, or in processes."""

import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union
import warnings
import weakref

from mxkit.core.arguments import whole_number
from mxkit.data.batching import handed_over, new_batch
from mxkit.data.order import EpochOrder, occurrences
from mxkit.data.samples import Samples
from mxkit.data.workers import WorkerPool, default_start_method, read_ahead
from mxkit.errors import DataError, EmptyDataError, TrapWarning
import numpy as np

_WORKERS = re.compile(r"(thread|process):([1-9]\d*)")


class DatasetLoader(EpochOrder):
    """Batches `(x, y)` from any dataset with `len()` and `[number]`, or any gluon Dataset.

    The order of an epoch depends on `(seed, epoch)`, and the random numbers of a sample on `(seed, epoch, number)`:
    they are the same with any number and kind of workers, and if an epoch begins at a later batch. For that, the
    generators that the sample may use are seeded before it is read. Code that mxkit does not know may use Python's,
    NumPy's and MXNet's. Seeding MXNet's costs 1.1 ms per sample (T67); the other two belong to the whole process, so
    that threads read one sample at a time. A transform with a parameter `rng` receives a `numpy.random.Generator` of
    its own, and nothing is seeded, which is fast with all workers.

    Batches hold NDArrays, or arrays of `mx.np` while `npx.set_np()` is on in the thread that reads. Threads and
    processes run the dataset and the functions under the switches that this thread had when the epoch began.

    Args:
        dataset: A sample is an array, a number, or a tuple of them; all samples have one shape. Gluon's
            `dataset.transform` and `transform_first` work, also with functions that take `rng`.
        batch_size: Samples per batch, at least 1.
        workers: 0 reads in the calling thread; "thread:4" in four threads, which accept lambdas and open files;
            "process:4" in four processes, which share no lock and no generator.
        shuffle: Draw a new order for each epoch.
        seed: Integer that determines all randomness. None draws one, which the attribute `seed` holds.
        drop_last: Leave out a last batch that is smaller than `batch_size`.
        transform: Called with the first element of each sample, as gluon's `transform_first`, and with `rng` if it
            has a parameter of that name.
        batchify: Called with the list of a batch's samples instead of stacking them, as gluoncv's
            `data.batchify.Tuple(Pad(), Stack())`.
        draws: The generators that reading a sample may use besides `rng`: some of "python", "numpy", "mxnet", or ()
            for none. None looks at the dataset and the transform, and assumes all three for code it does not know.
        start_method: How processes start: "fork" (default), "spawn" or "forkserver". The last two need a dataset that
            can be pickled and a script with a `__main__` guard, and take seconds to start.
        timeout: Seconds to wait for a batch of processes before giving up. None waits for ever.
        prefetch: Batches that each worker reads ahead.
        balance: The class of each sample, shape (N,), numbers or names: an epoch still has N samples, drawn so that all
            classes, and all samples of a class, occur equally often, to within one. Samples of small classes are
            repeated, and of large ones some wait for a later epoch. It needs `shuffle=True`.

    Attributes:
        dataset: The dataset.
        batch_size: Samples per batch.
        epoch: Number of the epoch that the next `iter` reads, from 0; each `iter` increases it by one, and `fit`
            sets it.
        seed: Determines orders and samples.

    Raises:
        EmptyDataError: There is no sample, or `drop_last` leaves no batch.
        DataError: The dataset has no length. While reading: a sample raises, samples have different shapes, or a
            worker dies.
        ValueError: An argument is invalid.

    Side effects:
        float64 becomes float32, int64 becomes int32; uint8 is not converted. Python's and NumPy's generators are
        restored after each batch. MXNet's cannot be: with `workers=0` it stays seeded, if samples may use it.
        Processes stay for the next epoch, with the memory of their batches. They end with `close()`, at the end of
        `with loader:`, with the loader, after an error or a `break`, and with this process, however it ends. They
        hold the dataset as it was when they started; if another one, another transform or seed, or another object as
        an attribute of the dataset is set, new ones start. Call `close()` after a change inside of such an object
        (T188). Threads stay, idle.

    >>> images = mx.gluon.data.SimpleDataset([(np.full((2, 2), i), i % 2) for i in range(5)])
    >>> loader = DatasetLoader(images, batch_size=2, transform=lambda image, rng: image * rng.random())
    >>> [(x.shape, y.asnumpy().tolist()) for x, y in loader]
    [((2, 2, 2), [0, 1]), ((2, 2, 2), [0, 1]), ((1, 2, 2), [0])]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        workers: Union[int, str] = 0,
        shuffle: bool = False,
        seed: Optional[int] = None,
        drop_last: bool = False,
        transform: Optional[Callable[..., Any]] = None,
        batchify: Optional[Callable[[List[Any]], Any]] = None,
        draws: Optional[Iterable[str]] = None,
        start_method: Optional[str] = None,
        timeout: Optional[float] = 120.0,
        prefetch: int = 2,
        balance: Any = None,
    ) -> None:
        super().__init__(_length(dataset), batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, balance=balance)
        self.dataset, self.transform, self.batchify = dataset, transform, batchify
        self.workers = workers
        self._kind, self._count = _parse(workers)
        self._method = start_method or default_start_method()
        self._timeout = timeout
        self._prefetch = whole_number(prefetch, "DatasetLoader: prefetch")
        self._draws = draws if draws is None or isinstance(draws, str) else list(draws)
        self._entered = 0
        self._idle_pool: Optional[WorkerPool] = None
        self._finalizer: Optional[weakref.finalize] = None
        samples = self._samples()
        if self._kind == "thread" and samples.one_at_a_time:
            warnings.warn(_threads_wait(samples), TrapWarning, stacklevel=2)

    def __iter__(self) -> Iterator[Any]:
        return handed_over(self._batches())

    def _batches(self) -> Iterator[Any]:
        epoch, numbers = self._begin()
        order, samples = self.order(epoch), self._samples()
        if self.balance is not None:  # a repeated sample draws other random numbers
            order = order + self._size * occurrences(order)

        def make(number: int, unwanted: Callable[[], bool]) -> Any:
            rows = self._rows(order, number)
            with samples.in_process():
                return new_batch(lambda allocate: samples.batch(epoch, rows, allocate, unwanted))

        if self._kind == "process":
            return self._from_processes(epoch, numbers, order)
        if self._kind == "thread":
            ahead = self._count * self._prefetch
            return read_ahead(make, numbers, threads=self._count, ahead=ahead)
        return (make(number, lambda: False) for number in numbers)

    def close(self) -> None:
        """End the processes that wait for the next epoch, which will start new ones."""
        pool = self._take_pool()
        if pool is not None:
            pool.close()

    def __enter__(self) -> "DatasetLoader":
        self._entered += 1
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered -= 1
        if not self._entered:
            self.close()

    def _samples(self) -> Samples:
        return Samples(self.dataset, self.transform, self.batchify, self.seed, self._draws)

    def _from_processes(self, epoch: int, numbers: range, order: "np.ndarray") -> Iterator[Any]:
        samples, pool, finished = self._samples(), self._take_pool(), False
        if pool is not None and not pool.can_read(samples):
            pool.close()
            pool = None
        try:
            if pool is None:
                count = min(self._count, len(self))
                pool = WorkerPool(samples, count, self._method, self._prefetch, self._timeout)
            yield from pool.batches(epoch, numbers, lambda number: self._rows(order, number))
            finished = True
        finally:
            if finished and pool is not None and self._idle_pool is None:
                self._idle_pool = pool
                self._finalizer = weakref.finalize(self, pool.close)
            elif pool is not None:
                pool.close(at_once=not finished)

    def _take_pool(self) -> Optional[WorkerPool]:
        """The processes that wait for the next epoch, which the caller then has alone."""
        pool, self._idle_pool = self._idle_pool, None
        if self._finalizer is not None:
            self._finalizer.detach()
        return pool

    def __getstate__(self) -> Dict[str, Any]:
        """Everything but the processes, which a copy would share."""
        return {**vars(self), "_idle_pool": None, "_finalizer": None, "_entered": 0}

    def __repr__(self) -> str:
        data = f"{type(self.dataset).__name__} of {self._size}, batch_size={self.batch_size}, {len(self)} batches"
        return f"DatasetLoader({data}, workers={self.workers!r}, shuffle={self.shuffle}, seed={self.seed})"


def _length(dataset: Any) -> int:
    try:
        size = len(dataset)
    except TypeError:
        kind = f"the dataset, a {type(dataset).__name__}, has no len()"
        raise DataError(f"DatasetLoader: {kind}: use mxkit.data.StreamLoader for what has no number") from None
    if not size:
        raise EmptyDataError(f"DatasetLoader: the dataset, a {type(dataset).__name__}, has no sample")
    return size


def _parse(workers: Any) -> Tuple[str, int]:
    match = _WORKERS.fullmatch(workers) if isinstance(workers, str) else None
    if match:
        return match[1], int(match[2])
    if workers == 0 and not isinstance(workers, (str, bool)):
        return "none", 0
    hint = f": for gluon's num_workers={workers} say 'process:{workers}'" if isinstance(workers, int) else ""
    raise ValueError(f"DatasetLoader: workers: expected 0, 'thread:4' or 'process:4'; received {workers!r}{hint}")


def _threads_wait(samples: Samples) -> str:
    name, drawn = type(samples.dataset).__name__, ", ".join(sorted(samples.draws))
    way = "let the transform take a parameter `rng`, pass draws=() if nothing is drawn, or workers='process:2'"
    return f"DatasetLoader: threads read the samples of {name} one at a time: all share {drawn}; {way}"
