"""Adds up arrays by Horovod, whose workers send parts of them around a ring instead of to servers."""

import os
import socket
from typing import Any, Dict, Sequence

from mxkit.core.arrays import legacy
from mxkit.distributed.group import Group
from mxkit.errors import DistributedError
import mxnet as mx
import numpy as np

_HOW = (
    "kvstore='horovod' needs Horovod with MXNet, for which no wheel exists: build it by HOROVOD_WITH_MXNET=1 "
    "HOROVOD_WITH_GLOO=1 pip install --no-build-isolation horovod==0.28.1"
)


class Ring:
    """Horovod between the workers of a group; once in a process, because Horovod can be initialized only once.

    Args:
        group: All workers; all make their `Ring` at the same place.

    Raises:
        DistributedError: Horovod with MXNet is not installed, cannot be initialized, or has other ranks.

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
            try:
                horovod.init()
            except (RuntimeError, ValueError) as error:
                raise DistributedError(f"kvstore='horovod': Horovod cannot be initialized: {error}") from error
        if (horovod.rank(), horovod.size()) != (group.rank, group.size):
            raise DistributedError(
                f"kvstore='horovod': this is worker {horovod.rank()} of {horovod.size()} for Horovod, and worker "
                f"{group.rank} of {group.size} for mxkit, by {group.place.scheduler}: let one launcher start all "
                "workers"
            )

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
        parts = [one.as_in_context(first.ctx).reshape((-1,)) for one in replicas]
        return mx.nd.add_n(*parts, out=self._flat[key])


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
    return {
        "HOROVOD_HOSTNAME": here,
        "HOROVOD_RANK": str(group.rank),
        "HOROVOD_SIZE": str(group.size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(hosts.count(here)),
        "HOROVOD_CROSS_RANK": str(sharers.index(here)),
        "HOROVOD_CROSS_SIZE": str(len(sharers)),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": str(workers[0][1]),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(workers[0][2]),
        "HOROVOD_GLOO_IFACE": (interfaces or [""])[0],
    }
