"""The ways in which workers add their gradients up, by the words of MXNet."""

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from mxkit.core.array_kind import legacy
from mxkit.distributed.group import Group
from mxkit.errors import DistributedError
import numpy as np

_ASYNC = (
    "kvstore='dist_async': the servers would make an update for each worker alone, with a gradient of older weights; "
    "all workers of fit make the same updates together. Use 'dist_sync', or a loop of your own over MXNet's servers "
    "(docs: several machines, updates one by one)"
)
_TWO_BITS = "None or {'type': '2bit', 'threshold': t} with a number t above 0"
CompressionSpec = Optional[Mapping[str, Any]]  # as in Gluon's Trainer
AddUp = Callable[[str, Sequence[Sequence[Any]]], None]


class Chosen(NamedTuple):
    """How workers add their gradients up.

    Attributes:
        kvstore: "dist_sync" or "horovod".
        threshold: Of the compression, or None.
    """

    kvstore: str = "dist_sync"
    threshold: Optional[float] = None


_chosen = Chosen()
_ring: Any = None


def set_kvstore(kvstore: str = "dist_sync", *, compression: CompressionSpec = None) -> None:
    """Choose how workers add their gradients up in the trainings of `fit` that begin from now on.

    All workers choose alike, before or after `initialize`; `fit` compares them. One process adds nothing up.

    Args:
        kvstore: "dist_sync" through MXNet's parameter servers, or "horovod" by Horovod's ring.
        compression: `{"type": "2bit", "threshold": 0.001}` lets each worker send -1, 0 or 1 times the threshold for an
            element of its mean gradient, and add the rest to its next one. The result is another one, and a resumed
            run has lost the rests. MXNet cannot end it: later trainings of the process must compress, too.

    Raises:
        ValueError: `kvstore` is no such word, or `compression` has another form, or does not go with "horovod".

    >>> set_kvstore()
    """
    global _chosen
    if kvstore == "dist_async":
        raise ValueError(_ASYNC)
    if kvstore not in ("dist_sync", "horovod"):
        raise ValueError(f"kvstore: expected 'dist_sync' or 'horovod'; received {kvstore!r:.100}")
    _chosen = Chosen(kvstore, None if compression is None else _threshold_of(compression, kvstore))


def _threshold_of(compression: CompressionSpec, kvstore: str) -> float:
    given = dict(compression) if isinstance(compression, Mapping) else {}
    threshold: Any = given.get("threshold")
    number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    if set(given) != {"type", "threshold"} or given["type"] != "2bit" or not number or not 0 < threshold < np.inf:
        raise ValueError(f"compression: expected {_TWO_BITS}; received {compression!r:.100}")
    if kvstore == "horovod":
        raise ValueError("compression: MXNet's servers have it, kvstore='horovod' does not: leave one of the two out")
    return float(threshold)


def chosen_kvstore() -> Chosen:
    """What `set_kvstore` has chosen."""
    return _chosen


@contextmanager
def kvstore_kept() -> Iterator[None]:
    """Let what is chosen inside `with` be forgotten at its end."""
    global _chosen
    before = _chosen
    try:
        yield
    finally:
        _chosen = before


class TwoBits:
    """Adds gradients up, of which each worker sends 2 bits a number.

    A worker sends -1, 0 or 1 times the threshold, and adds the rest to what it sends in the next update.

    Args:
        group: All workers.
        threshold: In units of the gradient of a worker's mean loss, whatever its batch and the number of workers.
    """

    def __init__(self, group: Group, threshold: float) -> None:
        self._group, self._threshold, self._name = group, threshold, ""

    def add_up(self, groups: Sequence[Sequence[Any]], count: float, *, same: bool) -> None:
        """Do what `Group.add_up` does.

        Args:
            groups: Gradients of the sum of this worker's losses.
            count: What their sum over the workers will be divided by.
            same: Whether they belong to the same parameters as before; the rest of others is dropped.

        Raises:
            DistributedError: A gradient is not of float32, which is all that MXNet compresses.
        """
        arrays: List[Any] = [one for replicas in groups for one in legacy(list(replicas))]
        for one in arrays:
            if np.dtype(one.dtype) != np.float32:
                text = f"compression: a gradient of shape {one.shape} is of {np.dtype(one.dtype)}"
                raise DistributedError(f"{text}; MXNet compresses float32 only. Leave compression out")
        if not same or not self._name:
            self._name = f"compressed {self._group.compress()}"
        # means, not sums: the rest of a whole batch would weigh too much in the shorter last one
        unit = count * self._threshold / self._group.size
        _multiply(arrays, 1 / unit)
        self._group.add_up(self._name, groups, compressed=True)
        _multiply(arrays, unit)


def _multiply(arrays: Sequence[Any], factor: float) -> None:
    for one in arrays:
        flat = one.reshape((-1,))  # a view, also of an array without axes
        flat *= factor


def way_of(group: Group, kvstore: str) -> AddUp:
    """What a word means: a function like `Group.add_up`. All workers call it at the same place, alike.

    Raises:
        DistributedError: Horovod is not here.
    """
    global _ring
    if kvstore != "horovod":
        return group.add_up
    if _ring is None:
        from mxkit.distributed.ring import Ring

        _ring = Ring(group)
    add_up: AddUp = _ring.add_up
    return add_up
