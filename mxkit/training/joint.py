"""What the workers of a job do together in a training: counts and sums of an update, scores, and when to stop."""

from contextlib import contextmanager
import socket
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from mxkit.core.array_kind import copy_into, legacy
from mxkit.core.replicas import gradients_of, values_of
from mxkit.core.seeding import seed_of_generators
from mxkit.data.fingerprint import fingerprint
from mxkit.data.order import EpochOrder
from mxkit.distributed.group import Group, current
from mxkit.errors import DataError
from mxkit.metrics import Metric
from mxkit.storage.optimizer_state import optimizer_numbers
from mxkit.training.options import Options
import mxnet as mx

# What a worker asks of all, by name; None for nothing.
Wishes = Dict[str, Any]


class Share:
    """What this worker did in an epoch so far."""

    def __init__(self) -> None:
        self.samples = self.updates = 0
        self.waited = 0.0
        self.sums: Optional[float] = None


class Together:
    """The part of an Accumulator and of `fit` that needs the other workers.

    All workers make the same updates. A worker whose data ends before the others' goes on without samples.

    Args:
        group: All workers.

    Attributes:
        statistics: Parameters that a forward pass changes, like those of BatchNorm; each update gives all workers the
            mean of them.
        wishes: Returns what this worker asks of all; sent with each update.
        shares: What each worker did in the epoch before, by rank: its `host`, its `samples`, the seconds that it
            `waited` for the others, and those that the sums of one update took (`sums`, measured once an epoch).
        agreed: What the workers ask for since the last update: of each name the first worker's that asks.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.statistics: Sequence[Any] = ()
        self.wishes: Callable[[], Wishes] = dict
        self.agreed: Wishes = {}
        self.shares: List[Dict[str, Any]] = []
        self._share = Share()
        self._sums: Any = None  # always the same array, as `Group.add_up` needs

    def begin(self, options: Options, trainer: Any, data: Any, checkpoint: Optional[str]) -> None:
        """Refuse workers that would train in different ways; all take the seed of the first one.

        Raises:
            DistributedError: They differ in a setting; the text names both values.
        """
        if options.seed is None and checkpoint is None:
            options.seed = self.group.gather("the seed of fit", seed_of_generators())[0]
        self.group.agree("the arguments of fit", options.settings())
        optimizer = trainer.optimizer
        numbers = {name: value for name, value in optimizer_numbers(optimizer).items() if name[0] != "_"}
        self.group.agree("the optimizer", [type(optimizer).__name__, numbers])
        self.group.agree("the data", [type(data).__name__, getattr(data, "batch_size", None), fingerprint(data)])
        if can_share(data):  # drawn by each worker if the user gave none
            data.seed = self.group.gather("the seed of the loader", data.seed)[0]
        self.group.agree("the checkpoint to resume from (is its folder on a disk that all workers share?)", checkpoint)

    def commit(self, step: int, samples: int, count: Optional[float]) -> Optional[Tuple[int, float]]:
        """Add up the samples and the counts of all workers for an update.

        Args:
            step: Number of the update.
            samples: Of this worker.
            count: Of this worker; None if its data has ended.

        Returns:
            Samples and count of all; None if the data of all has ended.

        Raises:
            DistributedError: A worker is lost, or is at another place.
        """
        self._share.samples += samples
        self._share.updates += 1
        values = self._gathered(f"update {step}", [samples, count])
        counts = [value for value in values if value[1] is not None]
        if not counts:
            return None
        return sum(value[0] for value in counts), sum(value[1] for value in counts)

    def agree(self, where: str) -> None:
        """Let all workers know what one of them asks for."""
        self._gathered(where, None)

    def end_epoch(self, epoch: int) -> None:
        """Do what `agree` does, and set `shares`."""
        own, self._share = self._share, Share()
        told = {"host": socket.gethostname(), "samples": own.samples, "waited": own.waited, "sums": own.sums}
        self.shares = self._gathered(f"the end of epoch {epoch}", told)

    def _gathered(self, key: str, value: Any) -> List[Any]:
        begun = time.perf_counter()
        gathered = self.group.gather(key, [value, self.wishes()])
        self._share.waited += time.perf_counter() - begun
        self.agreed = {}
        for _, wishes in gathered:
            for name, wish in wishes.items():
                if wish is not None:
                    self.agreed.setdefault(name, wish)
        return [value for value, _ in gathered]

    def add_up(self, trained: Sequence[Any], losses: Sequence[Any]) -> Any:
        """Add up gradients over all workers, and give all the mean of the statistics.

        Returns:
            The sum of all workers' losses, float32 of shape (1,).
        """
        measured = self._share.updates == 2  # the first one makes the keys
        if measured:
            mx.nd.waitall()
        begun = time.perf_counter()
        self.group.add_up("gradient", [gradients_of(parameter) or [] for parameter in trained])
        if measured:
            mx.nd.waitall()
            self._share.sums = time.perf_counter() - begun
        cpu = mx.cpu()
        sums = [legacy(one).as_in_context(cpu).astype("float64").sum().reshape((1,)) for one in losses]
        loss = mx.nd.add_n(*sums) if sums else mx.nd.zeros((1,), dtype="float64")
        # the servers add in float32, whatever the dtype (T225): the rest that float32 leaves goes beside it
        rounded = loss.astype("float32")
        rest = (loss - rounded.astype("float64")).astype("float32")
        states = [value for parameter in self.statistics for value in legacy(list(values_of(parameter) or ()))]
        flat = [value.as_in_context(cpu).astype("float32").reshape((-1,)) for value in states]
        whole = self._sums = mx.nd.concat(rounded, rest, *flat, dim=0, out=self._sums)
        self.group.add_up("sums", [[whole]])
        place = 2
        for value in states:
            mean = whole[place : place + value.size] / self.group.size
            copy_into(mean.reshape(value.shape).astype(value.dtype).as_in_context(value.ctx), value)
            place += value.size
        return whole[0:1] + whole[1:2]

    def share_metrics(self, metrics: Sequence[Metric], where: str) -> None:
        """Add up the sums of all workers; the first worker then has them, and the others none.

        Args:
            metrics: The same on all workers.
            where: The place in the program, for messages.
        """
        gathered = self.group.gather(f"metrics {where}", [metric.part() for metric in metrics])
        for number, metric in enumerate(metrics):
            parts = [worker[number] for worker in gathered]
            metric.take(parts if self.group.rank == 0 else [])

    def join_metrics(self, metrics: Sequence[Metric], where: str) -> None:
        """Add up the sums of all workers, which all then have."""
        gathered = self.group.gather(f"metrics {where}", [metric.part() for metric in metrics])
        for number, metric in enumerate(metrics):
            metric.take([worker[number] for worker in gathered])


def together() -> Optional[Together]:
    """A new `Together`, or None if this process works alone."""
    group = current()
    return None if group is None else Together(group)


def can_share(data: Any) -> bool:
    """Whether a loader reads its own share of each batch; of other data each worker takes whole batches in turn."""
    return isinstance(data, EpochOrder) and type(data).__len__ is EpochOrder.__len__


@contextmanager
def shared(group: Optional[Group], *data: Any) -> Iterator[None]:
    """Let loaders read this worker's share inside `with`."""
    loaders = [one for one in data if group is not None and can_share(one)]
    before = [one.share for one in loaders]
    try:
        for one in loaders:
            one.share = (group.rank, group.size)  # type: ignore[union-attr]
            if not len(one):
                raise DataError(
                    f"{type(one).__name__}: {one.size} samples do not fill one batch of {one.whole_batch}, which is "
                    f"{one.batch_size} for each of {one.share[1]} workers, and drop_last leaves a smaller one out"
                )
        yield
    finally:
        for one, share in zip(loaders, before):
            one.share = share
