"""The joint work of several workers in a training: counts and sums of each update, scores, and the decision to stop."""

import base64
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from operator import is_
import socket
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
import weakref
import zlib

from mxkit.core.arrays import copy_into, legacy, to_host
from mxkit.core.device import unpack
from mxkit.core.replicas import gradients_of, kept_gradients, values_of
from mxkit.core.trainers import compression_of, kvstore_settings, shall_step_on_kvstore, trainer_devices
from mxkit.data.source import source_of
from mxkit.distributed.group import Group, current, refuse_differences
from mxkit.distributed.kvstores import AddUp, Chosen, TwoBits, chosen_kvstore, way_of
from mxkit.errors import DistributedError
from mxkit.metrics import Metric
from mxkit.training.norms import sum_of_squares
from mxkit.training.options import Options
from mxkit.training.same_settings import SAME_DATA, facts_of_data, facts_of_optimizer
import mxnet as mx
import numpy as np

# A worker's requests to all workers, by name; None means no request.
Wishes = Dict[str, Any]

# The object that was the last to send gradients.
_latest: "Optional[weakref.ref[Together]]" = None
_alone = False


class Share:
    """This worker's share of the present epoch."""

    def __init__(self) -> None:
        self.samples = self.updates = 0
        self.waited = 0.0
        self.sums: Optional[float] = None


class Together:
    """The part of an Accumulator and of `fit` that needs the other workers.

    All workers make the same updates. A worker whose data ends before that of the others continues without samples.

    Args:
        group: All workers.

    Attributes:
        statistics: Parameters that a forward pass changes, like those of BatchNorm; each update gives all workers their
            mean.
        wishes: Returns this worker's requests, which are sent with each update.
        shares: Each worker's share of the last epoch, by rank: its `host`, its `samples`, the seconds that it
            `waited` for the others, and the seconds that the sums of one update took (`sums`, measured once an epoch).
        agreed: The requests since the last update; for each name, that of the first worker that has one.
        broken: Whether this worker read a number that is not finite.
        draws: Whether the training draws random numbers; None for a worker that has had no batch yet.
        chosen: How gradients are added up.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._add_up: AddUp = group.add_up
        self._two_bits: Optional[TwoBits] = None
        self._count = 0.0  # of the update
        self.statistics: Sequence[Any] = ()
        self.wishes: Callable[[], Wishes] = dict
        self.agreed: Wishes = {}
        self.shares: List[Dict[str, Any]] = []
        self._share = Share()
        self.broken = False
        self.draws: Optional[bool] = None
        self.chosen = Chosen()
        self._sums: Any = None  # always the same array, as `Group.add_up` needs
        self._sent: List[Any] = []

    def begin(
        self,
        options: Options,
        trainer: Any,
        train: Any,
        valid: Any,
        metrics: Sequence[Metric],
        others: Mapping[str, Any],
    ) -> None:
        """Check that all workers train in the same way, and give all the seeds of worker 0.

        Args:
            options: The arguments of `updates`.
            trainer: A `gluon.Trainer`.
            train: The training data.
            valid: The validation data, or None.
            metrics: The metrics.
            others: Other values that must be the same on all workers, by name; JSON can hold them.

        Raises:
            DistributedError: A setting differs; the text names both values. Or Horovod cannot be used, or an earlier
                training of this process compressed its gradients and this one does not.
            ValueError: Gradients of float16 would be compressed.
            DataError: A metric cannot be added up over workers.
        """
        self.chosen = kvstore, threshold = chosen_kvstore()
        if threshold is not None and options.precision is not None and options.precision.dtype == "float16":
            raise ValueError("compression: MXNet would never lose an overflow of amp='float16': leave one of them out")
        facts = {**options.settings(), **facts_of_optimizer(trainer.optimizer), **others, "kvstore": kvstore}
        facts["threshold of compression"] = threshold
        facts["metrics"] = [[type(metric).__name__, metric.name] for metric in metrics]
        facts.update({**facts_of_data("train", train), **facts_of_data("valid", valid)})
        self.group.compare("the arguments of fit", facts)
        self._add_up = way_of(self.group, kvstore)
        if threshold is not None:
            self._two_bits = TwoBits(self.group, threshold)
        elif self.group.compressions and kvstore != "horovod":
            raise DistributedError(
                "fit: an earlier training of this process had compression, which MXNet cannot switch off: choose "
                "it again by set_kvstore, or train in another process"
            )
        for metric in metrics:
            metric.part()
        self.share_order(train, "train", count=False)
        self.share_order(valid, "valid", count=True)

    def share_order(self, data: Any, where: str, *, count: bool) -> None:
        """Give the loaders of all workers the seed of worker 0, because each worker draws one if the user passes none.

        Args:
            data: A loader, or other data, which has no seed.
            where: The place in the program, for messages.
            count: Give them worker 0's count of epochs, too.
        """
        source = source_of(data)
        if source.order is not None:
            own = source.order
            seed, epoch = self.group.gather(f"the order of {where}", own)[0]
            source.set_order(seed, epoch if count else own[1])

    def in_turn(self, batches: Iterator[Any], where: str) -> Iterator[Any]:
        """This worker's batches of data that every worker reads: with N workers, every N-th batch.

        Raises:
            DistributedError: The first batches are not the same on all workers.
        """
        return islice(self.compared(batches, where), self.group.rank, None, self.group.size)

    def compared(self, batches: Iterator[Any], where: str) -> Iterator[Any]:
        """Check that all workers read the same batches, of which each then takes its own.

        Returns:
            The batches.

        Raises:
            DistributedError: The first batches, one for each worker, are not the same on all workers.
        """
        first = list(map(copied_batch, islice(batches, self.group.size)))
        arrays = [to_host(array) for batch in first for part in unpack(batch) for array in part]
        shapes = [[list(array.shape), array.dtype.name] for array in arrays]
        sums = [zlib.crc32(np.ascontiguousarray(array).data) if array.dtype.kind in "biuf" else 0 for array in arrays]
        facts = {f"shapes and dtypes{SAME_DATA}": shapes, f"checksums of the arrays{SAME_DATA}": sums}
        self.group.compare(f"the first batches of {where}", facts)
        return chain(first, batches)

    def same_parameters(self, parameters: Sequence[Any], where: str) -> None:
        """Check that the nets of all workers have the same parameters.

        Args:
            parameters: The parameters to compare; running statistics are the same only after an update.
            where: The place in the program, for messages.

        Raises:
            DistributedError: The values differ.
        """
        values = [values[0] for values in map(values_of, parameters) if values]
        total = 0
        for value in values:
            total = zlib.crc32(np.ascontiguousarray(to_host(value)).data, total)
        hint = (
            " (all must begin with the same: call mxkit.distributed.broadcast_parameters(net) before a loop of your "
            "own; and callbacks must change parameters on all workers)"
        )
        shapes = [[list(value.shape), np.dtype(value.dtype).name] for value in values]
        self.group.compare(f"the parameters {where}", {f"shapes{hint}": shapes, f"checksum of the values{hint}": total})

    def commit(
        self, step: int, samples: int, count: Optional[float], same: Mapping[str, Any]
    ) -> Optional[Tuple[int, float]]:
        """Add up the samples and the counts of all workers for an update.

        Args:
            step: Number of the update.
            samples: Samples of this worker.
            count: Count of this worker; None if its data has ended.
            same: Values that must be the same on all workers, by name.

        Returns:
            Samples and count of all workers; None if the data of all has ended.

        Raises:
            DistributedError: A worker is lost, is at another place, or has other values.
        """
        self._share.samples += samples
        self._share.updates += 1
        values = self._gathered(f"update {step}", [samples, count, same])
        refuse_differences(f"at update {step}", [value[2] for value in values])
        counts = [value for value in values if value[1] is not None]
        if not counts:
            return None
        self._count = sum(value[1] for value in counts)
        return sum(value[0] for value in counts), self._count

    def agree(self, where: str) -> None:
        """Exchange the requests of all workers."""
        self._gathered(where, None)

    def end_epoch(self, epoch: int) -> None:
        """Do what `agree` does, and set `shares`."""
        own, self._share = self._share, Share()
        share = {"host": socket.gethostname(), "samples": own.samples, "waited": own.waited, "sums": own.sums}
        self.shares = self._gathered(f"the end of epoch {epoch}", share)

    def _gathered(self, key: str, value: Any) -> List[Any]:
        own = {**self.wishes(), "broken": self.broken or None, "draws": self.draws}
        begun = time.perf_counter()
        gathered = self.group.gather(key, [value, own])
        self._share.waited += time.perf_counter() - begun
        self.agreed = {}
        for _, wishes in gathered:
            for name, wish in wishes.items():
                if wish is not None:
                    self.agreed.setdefault(name, wish)
        return [value for value, _ in gathered]

    def add_up(self, trained: Sequence[Any], losses: Sequence[Any]) -> Any:
        """Add up gradients over all workers, and give all workers the mean of the statistics.

        Returns:
            The sum of all workers' losses, float32 of shape (1,).
        """
        same = self._wait_for_others([array for parameter in trained for array in kept_gradients(parameter)])
        measured = self._share.updates == 2  # the first update makes the keys
        if measured:
            mx.nd.waitall()
        begun = time.perf_counter()
        gradients, cpu = [gradients_of(parameter) or [] for parameter in trained], mx.cpu()
        if self._two_bits is None:
            self._add_up("gradient", gradients)
        else:
            # MXNet would send 0 for NaN and 1 for infinity from now on: the loss carries the NaN to the others
            losses = [*losses, 0 * sum_of_squares([one for replicas in gradients for one in replicas])]
            self._two_bits.add_up(gradients, self._count, same=same)
        if measured:
            mx.nd.waitall()
            self._share.sums = time.perf_counter() - begun
        sums = [legacy(one).as_in_context(cpu).astype("float64").sum().reshape((1,)) for one in losses]
        loss = (mx.nd.add_n(*sums) if sums else mx.nd.zeros((1,))).astype("float32")
        states = [value for parameter in self.statistics for value in legacy(list(values_of(parameter) or ()))]
        flat = [value.as_in_context(cpu).astype("float64").reshape((-1,)) for value in states]
        whole = self._sums = mx.nd.concat(loss, *map(_two_parts, flat), dim=0, out=self._sums)
        self._add_up("sums", [[whole]])
        place = 1
        for value in states:
            parts = whole[place : place + 2 * value.size].astype("float64").reshape((2, -1))
            mean = parts.sum(axis=0) / self.group.size
            copy_into(mean.reshape(value.shape).astype(value.dtype).as_in_context(value.ctx), value)
            place += 2 * value.size
        return whole[0:1].copy()

    def _wait_for_others(self, gradients: List[Any]) -> bool:
        """Wait if the last arrays that were sent are others, of another Accumulator or of layers that are now frozen.

        See `Group.add_up`.

        Returns:
            Whether the last arrays of this object were the same.
        """
        global _latest
        same = len(self._sent) == len(gradients) and all(map(is_, self._sent, gradients))
        if not same or _latest is None or _latest() is not self:
            mx.nd.waitall()
            _latest, self._sent = weakref.ref(self), gradients
        return same

    def states_of_metrics(self, metrics: Sequence[Metric], where: str) -> List[Any]:
        """`Metric.state` of each metric on each worker, by rank; nothing is added up or rounded."""
        states = []
        for numbers, arrays in (metric.state() for metric in metrics):
            states.append([numbers, {name: _text_of(array.asnumpy()) for name, array in arrays.items()}])
        gathered = self.group.gather(f"metrics {where}", states) if metrics else [[]] * self.group.size
        return [
            [(numbers, {name: _array_of(text) for name, text in arrays.items()}) for numbers, arrays in worker]
            for worker in gathered
        ]

    def join_metrics(self, metrics: Sequence[Metric], where: str) -> None:
        """Give all workers the sums over all of them."""
        gathered = self.group.gather(f"metrics {where}", [metric.part() for metric in metrics])
        for number, metric in enumerate(metrics):
            metric.take([worker[number] for worker in gathered])


def copied_batch(batch: Any) -> Any:
    """Copy a batch, because an iterator in C++ may fill its memory with a later batch."""
    if isinstance(batch, (tuple, list)):
        return tuple(map(copied_batch, batch))
    return batch.copy() if isinstance(batch, mx.nd.NDArray) else batch


def together() -> Optional[Together]:
    """A new `Together`, or None if this process works alone."""
    group = current()
    return None if group is None or _alone else Together(group)


@contextmanager
def alone() -> Iterator[None]:
    """Let this worker alone run the trainings that begin inside `with`."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def check_joint(trainer: Any) -> None:
    """Check that a Trainer can train with other workers.

    Raises:
        ValueError: It has a distributed kvstore of MXNet, compresses gradients, steps inside a kvstore, or draws
            random numbers.
    """
    kvstore = kvstore_settings(trainer)["kvstore"]
    kind = str(getattr(kvstore, "type", kvstore))
    if "dist" in kind:
        raise ValueError(
            f"the Trainer has kvstore={kind!r}, with which MXNet would add up the gradients a second time: make it "
            "without, because mxkit adds them up over the workers (dist_async: docs, several machines, updates one by "
            "one)"
        )
    if compression_of(trainer):  # T231
        raise ValueError(
            f"the Trainer has compression_params={compression_of(trainer)}, which sums over workers do not use: "
            "MXNet compresses all of a kvstore or nothing, and all trainings share one. Make it without, and pass "
            "compression to mxkit.distributed.set_kvstore"
        )
    if len(trainer_devices(trainer)) > 1 and shall_step_on_kvstore(trainer):
        raise ValueError(
            "the Trainer steps inside its kvstore, which does not get the gradients of the other workers: make it "
            "with update_on_kvstore=False, or pass fit the name of the optimizer (Nadam, LARS and LBSGD need one "
            "device a worker)"
        )
    if isinstance(trainer.optimizer, mx.optimizer.SGLD):
        raise ValueError("the optimizer SGLD draws other noise on each worker, so their nets would become different")


def shared(group: Optional[Group], data: Any) -> ContextManager[None]:
    """Let a loader read this worker's share of each batch inside `with`; workers take batches of other data in turn."""
    return nullcontext() if group is None else source_of(data).shared(group.rank, group.size)


def _two_parts(values: Any) -> Any:
    """Split float64 values into float32 of twice the length: their first 12 bits, and the rest.

    The servers add in float32, whatever the dtype (T225). Sums of equal numbers of 12 bits are exact, so that the mean
    of equal statistics is the same number.
    """
    scaled = values * (2.0**41 + 1)
    first = scaled - (scaled - values)
    return mx.nd.concat(first, values - first, dim=0).astype("float32")


def _text_of(array: "np.ndarray") -> List[str]:
    """Encode the dtype and the bytes of an array in a form that JSON can hold."""
    return [array.dtype.name, base64.b64encode(zlib.compress(np.ascontiguousarray(array).data, 1)).decode()]


def _array_of(text: Sequence[str]) -> Any:
    """Decode an array of `_text_of`, with one axis."""
    values = np.frombuffer(zlib.decompress(base64.b64decode(text[1])), text[0])
    return mx.nd.array(values, dtype=values.dtype)
