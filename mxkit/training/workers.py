"""The workers of a training: this process alone, or several that make the same updates together."""

import base64
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from operator import is_
import socket
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
import weakref
import zlib

from mxkit.core.arrays import copy_into, legacy, sum_of_squares, to_host
from mxkit.core.device import unpack
from mxkit.core.replicas import gradients_of, kept_gradients, values_of
from mxkit.core.statistics import statistics_of
from mxkit.core.trainers import compression_of, kvstore_settings, shall_step_on_kvstore, trainer_devices
from mxkit.data.source import Source, source_of
from mxkit.distributed.group import Group, broadcast_parameters, current, refuse_differences
from mxkit.distributed.kvstores import Chosen, TwoBits, chosen_kvstore, way_of
from mxkit.errors import DistributedError
from mxkit.metrics import Metric
from mxkit.storage.optimizer_state import optimizer_numbers
import mxnet as mx
import numpy as np

# The object that was the last to send gradients.
_latest: "Optional[weakref.ref[Workers]]" = None
_alone = False
# End of the names of facts about data, for messages.
_SAME_DATA = (
    " (all workers must get the same data in the same order, whole and not cut up by rank: fit gives each its part)"
)


class Workers:
    """The workers of a training: this process alone, or several.

    Several make the same updates, also one whose data ends before that of the others. Alone, most methods do nothing.

    Args:
        group: All workers; None for this process alone.

    Attributes:
        rank: Number of this worker, from 0.
        size: Number of workers.
        first: Whether this worker writes files for all.
        chosen: How gradients are added up.
        wishes: Requests of this worker by name: a value, or a function that returns one; None is none.
        shares: Each worker's share of the last epoch, by rank: its `host`, its `samples`, the seconds that it
            `waited` for the others, and the seconds that the sums of one update took (`sums`, measured once an epoch);
            empty for a process alone.
    """

    def __init__(self, group: Optional[Group] = None) -> None:
        self._group = group
        self.rank, self.size = (0, 1) if group is None else (group.rank, group.size)
        self.first = self.rank == 0
        self.chosen = Chosen()
        self.wishes: Dict[str, Any] = {}
        self.shares: Sequence[Dict[str, Any]] = ()
        self._add_up: Optional[Callable[..., None]] = None if group is None else group.add_up
        self._two_bits: Optional[TwoBits] = None
        self._whole: Any = None  # always the same array, as `Group.add_up` needs
        self._sent: List[Any] = []
        self._count = 0.0  # of the update
        self._statistics: Sequence[Any] = ()
        self._agreed: Dict[str, Any] = {}
        self._begin_share()

    def _begin_share(self) -> None:
        self._updates = 0  # of the epoch
        self._share: Dict[str, Any] = {"host": socket.gethostname(), "samples": 0, "waited": 0.0, "sums": None}

    def asked(self, name: str) -> Any:
        """The request of this name, since the last update: that of the first worker that has one; None for none."""
        return _now(self.wishes.get(name)) if self._group is None else self._agreed.get(name)

    def check(self, trainer: Any) -> None:
        """Check that a Trainer can train with all workers.

        Raises:
            ValueError: There are several, and it has a distributed kvstore of MXNet, compresses gradients (T231), steps
                inside a kvstore, or draws random numbers.
        """
        if self._group is None:
            return
        kvstore, compression = kvstore_settings(trainer)["kvstore"], compression_of(trainer)
        kind = str(getattr(kvstore, "type", kvstore))
        inside = len(trainer_devices(trainer)) > 1 and shall_step_on_kvstore(trainer)
        again = "would add up the gradients a second time: make it without (dist_async: docs, updates one by one)"
        refusals = {
            f"the Trainer has kvstore={kind!r}, with which MXNet {again}": "dist" in kind,
            f"the Trainer has compression_params={compression}, which sums over workers do not use. Make it without, "
            "and pass compression to mxkit.distributed.set_kvstore": compression,
            "the Trainer steps inside its kvstore, which does not get the gradients of the other workers: make it with "
            "update_on_kvstore=False (Nadam, LARS and LBSGD need one device a worker)": inside,
            "the optimizer SGLD draws other noise on each worker, so their nets would become different": isinstance(
                trainer.optimizer, mx.optimizer.SGLD
            ),
        }
        for text, wrong in refusals.items():
            if wrong:
                raise ValueError(text)

    def begin(
        self,
        settings: Mapping[str, Any],
        trainer: Any,
        train: Source,
        valid: Optional[Source],
        metrics: Sequence[Metric],
    ) -> None:
        """Check that all workers train in the same way, and give all the seeds of worker 0.

        Args:
            settings: Values that must be the same on all workers, by name; JSON can hold them.
            trainer: A `gluon.Trainer`.
            train: The training data.
            valid: The validation data, or None.
            metrics: The metrics.

        Raises:
            DistributedError: A setting differs; the text names both values. Or Horovod cannot be used, or an earlier
                training of this process compressed its gradients and this one does not.
            ValueError: Gradients of float16 would be compressed.
            DataError: A metric cannot be added up over workers.
        """
        kvstore, threshold = chosen_kvstore()
        if self._group is None:
            return
        self.chosen, held_out = chosen_kvstore(), source_of(valid)
        if threshold is not None and settings["amp"] == "float16":
            raise ValueError("compression: MXNet would never lose an overflow of amp='float16': leave one of them out")
        facts = {**settings, **_facts_of_optimizer(trainer.optimizer), "kvstore": kvstore}
        facts["threshold of compression"] = threshold
        facts["metrics"] = [[type(metric).__name__, metric.name] for metric in metrics]
        facts.update({**_facts_of_data("train", train), **_facts_of_data("valid", held_out)})
        self._group.compare("the arguments of fit", facts)
        self._add_up = way_of(self._group, kvstore)
        self._two_bits = None if threshold is None else TwoBits(self._group, threshold)
        if threshold is None and self._group.compressions and kvstore != "horovod":
            text = "an earlier training of this process had compression, which MXNet cannot switch off"
            raise DistributedError(f"fit: {text}: choose it again by set_kvstore, or train in another process")
        for metric in metrics:
            metric.part()
        self.share_order(train, "train", count=False)
        self.share_order(held_out, "valid", count=True)

    def gather(self, key: str, value: Any) -> List[Any]:
        """The values of all workers at the place `key`, by rank."""
        return [value] if self._group is None else self._group.gather(key, value)

    def take_parameters(self, net: Any) -> None:
        """Give all workers the parameters of worker 0."""
        if self._group is not None:
            broadcast_parameters(net)

    def turns(self, data: Source) -> int:
        """Number of batches of which this worker takes one; a loader reads its share of each batch instead."""
        return 1 if data.has_shares else self.size

    def shared(self, data: Source) -> ContextManager[None]:
        """Let loaders read this worker's share of each batch inside `with`; workers take batches of other data in turn.

        Raises:
            DataError: A loader with `drop_last` has too few samples for a batch of all workers.
        """
        return nullcontext() if self._group is None else data.shared(self.rank, self.size)

    def share_order(self, data: Source, where: str, *, count: bool) -> None:
        """Give the loaders of all workers the seed of worker 0, because each worker draws one if the user passes none.

        Args:
            data: A loader, or other data, which has no seed.
            where: The place in the program, for messages.
            count: Give them worker 0's count of epochs, too.
        """
        if self._group is not None and data.order is not None:
            own = data.order
            seed, epoch = self._group.gather(f"the order of {where}", own)[0]
            data.set_order(seed, epoch if count else own[1])

    def compared(self, batches: Iterator[Any], data: Source, where: str) -> Iterator[Any]:
        """Check that all workers read the same batches, if each then takes its own of them; return the batches.

        Raises:
            DistributedError: The first batches, one for each worker, are not the same on all workers.
        """
        if self._group is None or self.turns(data) == 1:
            return batches
        first = list(map(copied_batch, islice(batches, self.size)))
        arrays = [to_host(array) for batch in first for part in unpack(batch) for array in part]
        shapes = [[list(array.shape), array.dtype.name] for array in arrays]
        sums = [zlib.crc32(np.ascontiguousarray(array).data) if array.dtype.kind in "biuf" else 0 for array in arrays]
        facts = {f"shapes and dtypes{_SAME_DATA}": shapes, f"checksums of the arrays{_SAME_DATA}": sums}
        self._group.compare(f"the first batches of {where}", facts)
        return chain(first, batches)

    def in_turn(self, batches: Iterator[Any], data: Source, where: str) -> Iterator[Any]:
        """This worker's batches of data that every worker reads; raises as `compared`."""
        return islice(self.compared(batches, data, where), self.rank % self.turns(data), None, self.turns(data))

    def watch(self, net: Any) -> None:
        """From now on give all workers, in each update, the mean of the net's statistics, like those of BatchNorm."""
        if self._group is not None:
            self._statistics = statistics_of(net)

    def same_parameters(self, parameters: Sequence[Any], where: str) -> None:
        """Check that the nets of all workers have the same parameters.

        Args:
            parameters: The parameters to compare; running statistics are the same only after an update.
            where: The place in the program, for messages.

        Raises:
            DistributedError: The values differ.
        """
        if self._group is None:
            return
        total, shapes = 0, []
        for value in [values[0] for values in map(values_of, parameters) if values]:
            total = zlib.crc32(np.ascontiguousarray(to_host(value)).data, total)
            shapes.append([list(value.shape), np.dtype(value.dtype).name])
        hint = (
            " (all must begin with the same: call mxkit.distributed.broadcast_parameters(net) before a loop of your "
            "own; and callbacks must change parameters on all workers)"
        )
        facts = {f"shapes{hint}": shapes, f"checksum of the values{hint}": total}
        self._group.compare(f"the parameters {where}", facts)

    def commit(
        self, step: int, samples: int, count: Optional[float], trainer: Any, trained: Sequence[Any]
    ) -> Optional[Tuple[int, float]]:
        """Add up the samples and the counts of all workers for an update.

        Args:
            step: Number of the update.
            samples: Samples of this worker.
            count: Count of this worker; None if its data has ended.
            trainer: The Trainer.
            trained: Its parameters that are not frozen.

        Returns:
            Samples and count of all workers; None if the data of all has ended.

        Raises:
            DistributedError: A worker is lost, or is at another place, or has another rate or other frozen layers.
        """
        if self._group is None:
            return None if count is None else (samples, count)
        rate = trainer.learning_rate
        same = {"number of trained parameters": len(trained), "learning rate": None if rate is None else float(rate)}
        self._share["samples"] += samples
        self._updates += 1
        values = self._gathered(f"update {step}", [samples, count, same])
        refuse_differences(f"at update {step}", [value[2] for value in values])
        counts = [value for value in values if value[1] is not None]
        self._count = sum(value[1] for value in counts)
        return (sum(value[0] for value in counts), self._count) if counts else None

    def add_up(self, trainer: Any, trained: Sequence[Any], losses: List[Any]) -> List[Any]:
        """Add up gradients over all replicas and workers, and give all workers the mean of the statistics.

        Returns:
            The losses, or the sum of all workers' losses, float32 of shape (1,).
        """
        if self._add_up is None:
            trainer.allreduce_grads()
            return losses
        measured = self._updates == 2  # the first update makes the keys
        same = self._wait_for_others([array for parameter in trained for array in kept_gradients(parameter)])
        if measured:
            mx.nd.waitall()
        begun = time.perf_counter()
        gradients = [gradients_of(parameter) or [] for parameter in trained]
        if self._two_bits is None:
            self._add_up("gradient", gradients)
        else:
            # MXNet would send 0 for NaN and 1 for infinity from now on: the loss carries the NaN to the others
            losses = [*losses, 0 * sum_of_squares([one for replicas in gradients for one in replicas])]
            self._two_bits.add_up(gradients, self._count, same=same)
        if measured:
            mx.nd.waitall()
            self._share["sums"] = time.perf_counter() - begun
        sums = [_float64(one).sum().reshape((1,)) for one in legacy(losses)]
        loss = (mx.nd.add_n(*sums) if sums else mx.nd.zeros((1,))).astype("float32")
        states = [value for parameter in self._statistics for value in legacy(list(values_of(parameter) or ()))]
        parts = [_two_parts(_float64(value).reshape((-1,))) for value in states]
        whole = self._whole = mx.nd.concat(loss, *parts, dim=0, out=self._whole)
        self._add_up("sums", [[whole]])
        place = 1
        for value in states:
            mean = whole[place : place + 2 * value.size].astype("float64").reshape((2, -1)).sum(axis=0) / self.size
            copy_into(mean.reshape(value.shape).astype(value.dtype).as_in_context(value.ctx), value)
            place += 2 * value.size
        return [whole[0:1].copy()]

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

    def agree(self, where: str) -> None:
        """Exchange the requests of all workers."""
        self._gathered(where, None)

    def end_epoch(self, epoch: int) -> None:
        """Do what `agree` does, and set `shares`."""
        if self._group is not None:
            self.shares = self._gathered(f"the end of epoch {epoch}", self._share)
            self._begin_share()

    def _gathered(self, key: str, value: Any) -> List[Any]:
        if self._group is None:
            return [value]
        own = {name: _now(wish) for name, wish in self.wishes.items()}
        begun = time.perf_counter()
        gathered = self._group.gather(key, [value, own])
        self._share["waited"] += time.perf_counter() - begun
        self._agreed = {}
        for _, wishes in reversed(gathered):
            self._agreed.update({name: wish for name, wish in wishes.items() if wish is not None})
        return [value for value, _ in gathered]

    def states_of_metrics(self, metrics: Sequence[Metric], where: str) -> List[Any]:
        """`Metric.state` of each metric on each of the other workers, by rank; nothing is added up or rounded."""
        if self._group is None:
            return []
        states = []
        for numbers, arrays in (metric.state() for metric in metrics):
            states.append([numbers, {name: _text_of(array.asnumpy()) for name, array in arrays.items()}])
        gathered = self.gather(f"metrics {where}", states) if metrics else [[]] * self.size
        return [
            [(numbers, {name: _array_of(text) for name, text in arrays.items()}) for numbers, arrays in worker]
            for worker in gathered[1:]
        ]

    def join_metrics(self, metrics: Sequence[Metric], where: str) -> None:
        """Give all workers the sums over all of them."""
        if self._group is not None:
            gathered = self._group.gather(f"metrics {where}", [metric.part() for metric in metrics])
            for number, metric in enumerate(metrics):
                metric.take([worker[number] for worker in gathered])


def _now(wish: Any) -> Any:
    return wish() if callable(wish) else wish


def _float64(array: Any) -> Any:
    return array.as_in_context(mx.cpu()).astype("float64")


def copied_batch(batch: Any) -> Any:
    """Copy a batch, because an iterator in C++ may fill its memory with a later batch."""
    if isinstance(batch, (tuple, list)):
        return tuple(map(copied_batch, batch))
    return batch.copy() if isinstance(batch, mx.nd.NDArray) else batch


def get_workers() -> Workers:
    """The workers of a new training."""
    return Workers(None if _alone else current())


@contextmanager
def alone() -> Iterator[None]:
    """Let this worker alone run the trainings that begin inside `with`."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


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


def _facts_of_optimizer(optimizer: Any) -> Dict[str, Any]:
    """Class and settings of an optimizer."""
    numbers = {f"{name} of the optimizer": value for name, value in optimizer_numbers(optimizer).items()}
    scheduler = optimizer.lr_scheduler
    return {
        "the optimizer": type(optimizer).__name__,
        **{name: value for name, value in numbers.items() if name[0] != "_"},
        "lr_scheduler of the optimizer": None if scheduler is None else type(scheduler).__name__,
    }


def _facts_of_data(name: str, source: Source) -> Dict[str, Any]:
    """Facts that decide the batches, as far as they are known without reading all batches."""
    facts = {"class": source.name, **source.settings, "number of batches": source.batches}
    plain = (type(None), bool, int, float, str)
    return {f"{key} of {name}{_SAME_DATA}": value for key, value in facts.items() if isinstance(value, plain)}
