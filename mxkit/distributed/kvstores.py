"""The ways in which workers add up their gradients, by MXNet's names of kvstores: servers, 2 bits, Horovod's ring."""

from contextlib import contextmanager
import os
import socket
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from mxkit.core.arrays import legacy
from mxkit.distributed.group import Group
from mxkit.errors import DistributedError
import mxnet as mx
import numpy as np

CompressionSpec = Optional[Mapping[str, Any]]  # as in Gluon's Trainer
AddUp = Callable[[str, Sequence[Sequence[Any]]], None]


class Chosen(NamedTuple):
    """The way in which workers add up their gradients.

    Attributes:
        kvstore: "dist_sync" or "horovod".
        threshold: Threshold of the compression, or None.
    """

    kvstore: str = "dist_sync"
    threshold: Optional[float] = None


_chosen = Chosen()
_ring: "Optional[Ring]" = None


def set_kvstore(kvstore: str = "dist_sync", *, compression: CompressionSpec = None) -> None:
    """Choose how workers add up their gradients in all later trainings of `fit`.

    All workers must choose the same, before or after `initialize`; `fit` compares them. A single process adds up
    nothing.

    Args:
        kvstore: "dist_sync" uses MXNet's parameter servers, "horovod" uses Horovod's ring.
        compression: `{"type": "2bit", "threshold": 0.001}` lets each worker send -1, 0 or 1 times the threshold for an
            element of its mean gradient, and add the rest to its next one. The result differs from a training without
            it, and a resumed run has lost the rests. MXNet cannot switch it off: later trainings of the process must
            compress, too.

    Raises:
        ValueError: `kvstore` is unknown or "dist_async", or `compression` has another form or is used with "horovod".

    >>> set_kvstore()
    """
    global _chosen
    if kvstore not in ("dist_sync", "horovod"):
        hint = "; for updates one by one write a loop of your own" if kvstore == "dist_async" else ""
        raise ValueError(f"kvstore: expected 'dist_sync' or 'horovod'; received {kvstore!r:.100}{hint}")
    _chosen = Chosen(kvstore, None if compression is None else _threshold_of(compression, kvstore))


def _threshold_of(compression: CompressionSpec, kvstore: str) -> float:
    threshold: Any = compression.get("threshold") if isinstance(compression, Mapping) else None
    number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool) and 0 < threshold < np.inf
    if not number or compression != {"type": "2bit", "threshold": threshold}:
        form = "None or {'type': '2bit', 'threshold': t} with a number t above 0"
        raise ValueError(f"compression: expected {form}; received {compression!r:.100}")
    if kvstore == "horovod":
        raise ValueError("compression: kvstore='horovod' has none, MXNet's servers have it: leave out one of the two")
    return float(threshold)


def chosen_kvstore() -> Chosen:
    """The choice of `set_kvstore`."""
    return _chosen


@contextmanager
def kvstore_kept() -> Iterator[None]:
    """Restore the choice of `set_kvstore` at the end of `with`."""
    global _chosen
    before = _chosen
    try:
        yield
    finally:
        _chosen = before


class TwoBits:
    """Adds up gradients of which each worker sends 2 bits a number.

    A worker sends -1, 0 or 1 times the threshold, and adds the rest to its gradient in the next update.

    Args:
        group: All workers.
        threshold: Threshold for the gradient of a worker's mean loss; it does not depend on the batch size and the
            number of workers.
    """

    def __init__(self, group: Group, threshold: float) -> None:
        self._group, self._threshold, self._name = group, threshold, ""

    def add_up(self, groups: Sequence[Sequence[Any]], count: float, *, same: bool) -> None:
        """Do what `Group.add_up` does.

        Args:
            groups: Gradients of the sum of this worker's losses.
            count: Divisor of their sum over the workers.
            same: Whether they belong to the same parameters as at the last call; otherwise the rests are dropped.

        Raises:
            DistributedError: A gradient is not float32, the only dtype that MXNet compresses.
        """
        arrays: List[Any] = [one for replicas in groups for one in legacy(list(replicas))]
        for one in arrays:
            if np.dtype(one.dtype) != np.float32:
                text = f"compression: a gradient of shape {one.shape} is of {np.dtype(one.dtype)}"
                raise DistributedError(f"{text}; MXNet compresses float32 only. Leave compression out")
        if not same or not self._name:
            self._name = f"compressed {self._group.compress()}"
        # means, not sums: the rest of a full batch would weigh too much in the shorter last one
        unit = count * self._threshold / self._group.size
        _multiply(arrays, 1 / unit)
        self._group.add_up(self._name, groups, compressed=True)
        _multiply(arrays, unit)


def _multiply(arrays: Sequence[Any], factor: float) -> None:
    for one in arrays:
        flat = one.reshape((-1,))  # a view, which also works for an array without axes
        flat *= factor


def way_of(group: Group, kvstore: str) -> AddUp:
    """The function that adds up gradients, like `Group.add_up`; all workers call `way_of` at the same place.

    Raises:
        DistributedError: Horovod cannot be used.
    """
    global _ring
    if kvstore != "horovod":
        return group.add_up
    if _ring is None:
        _ring = Ring(group)
    return _ring.add_up


_HOW = "kvstore='horovod' needs Horovod with MXNet, for which no wheel exists (docs: several machines)"


class Ring:
    """Horovod between the workers of a group; once in a process, because Horovod can be initialized only once.

    Args:
        group: All workers; all make their `Ring` at the same place.

    Raises:
        DistributedError: Horovod with MXNet is not installed, or has other ranks.

    Side effects:
        Sets the variables `HOROVOD_*`, unless `horovodrun` has, or Horovod was built with MPI alone.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        try:
            import horovod.mxnet as horovod
        except (ImportError, OSError) as error:
            raise DistributedError(f"{_HOW}. Here `import horovod.mxnet` says: {error}") from error
        self._horovod = horovod
        self._flat: Dict[Any, Any] = {}
        if not horovod.is_initialized():
            if horovod.gloo_built() and "HOROVOD_RANK" not in os.environ:
                os.environ.update(_variables(group))
            horovod.init()
        theirs, own = (horovod.rank(), horovod.size()), (group.rank, group.size)
        if theirs != own:
            text = f"this is worker %d of %d for Horovod, and worker %d of %d for mxkit, by {group.place.scheduler}"
            raise DistributedError(f"kvstore='horovod': {text % (theirs + own)}: let one launcher start all workers")

    def add_up(self, name: str, groups: Sequence[Sequence[Any]]) -> None:
        """Do what `Group.add_up` does."""
        sums = []
        for number, replicas in enumerate(groups):
            replicas = legacy(list(replicas))
            if np.dtype(replicas[0].dtype).kind == "f":
                sums.append((number, replicas, self._plain(name, number, replicas)))
            else:  # Horovod's sums of integers may overflow without an error
                self._group.add_up(f"{name} {number}", [replicas])
        for number, replicas, plain in sums:
            self._horovod.allreduce_(plain, name=f"{name} {number}", priority=-number, op=self._horovod.Sum)
            for one in replicas:
                plain.reshape(one.shape).copyto(one)

    def _plain(self, name: str, number: int, replicas: Sequence[Any]) -> Any:
        """The sum of replicas, in a vector that is the same at each call: arrays may be in oneDNN's layout (T230)."""
        first = replicas[0]
        key = (name, number, first.shape, np.dtype(first.dtype).name, first.ctx)
        if key not in self._flat:
            self._flat[key] = mx.nd.empty((first.size,), ctx=first.ctx, dtype=first.dtype)
        return mx.nd.add_n(*[one.as_in_context(first.ctx).reshape((-1,)) for one in replicas], out=self._flat[key])


def _variables(group: Group) -> Dict[str, str]:
    """The variables that `horovodrun` would set for this worker."""
    from horovod.runner.http.http_server import RendezvousServer
    import psutil

    own = os.environ["DMLC_NODE_HOST"]  # the address by which the other workers reach this one
    port = 0
    if group.rank == 0:
        server = RendezvousServer()
        port = server.start()
        server.init([])
    workers = group.gather("the start of Horovod", [socket.gethostname(), own, port])
    hosts = [host for host, _, _ in workers]
    here = hosts[group.rank]
    local_rank = hosts[: group.rank].count(here)
    sharers = [machine for machine in dict.fromkeys(hosts) if hosts.count(machine) > local_rank]
    interfaces = [name for name, addresses in psutil.net_if_addrs().items() for one in addresses if one.address == own]
    values = {"HOSTNAME": here, "RANK": group.rank, "SIZE": group.size, "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
    values.update(LOCAL_RANK=local_rank, LOCAL_SIZE=hosts.count(here))
    values.update(CROSS_RANK=sharers.index(here), CROSS_SIZE=len(sharers), GLOO_IFACE=(interfaces or [""])[0])
    values.update(GLOO_RENDEZVOUS_ADDR=workers[0][1], GLOO_RENDEZVOUS_PORT=workers[0][2])
    return {f"HOROVOD_{name}": str(value) for name, value in values.items()}
