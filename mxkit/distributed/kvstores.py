"""The ways in which workers add their gradients up, by the words of MXNet."""

from typing import Any, Callable, Optional, Sequence

from mxkit.distributed.group import Group

_ASYNC = (
    "kvstore='dist_async': the servers would make an update for each worker alone, with a gradient of older weights; "
    "all workers of fit make the same updates together. Use kvstore=None, or a loop of your own over MXNet's servers "
    "(docs: several machines, updates one by one)"
)
KVStoreSpec = Optional[str]  # None is "dist_sync"
AddUp = Callable[[str, Sequence[Sequence[Any]]], None]
_ring: Any = None


def check_kvstore(kvstore: KVStoreSpec) -> None:
    """Refuse what is no way to add up.

    Raises:
        ValueError: It is no such word.
    """
    if kvstore in (None, "dist_sync", "horovod"):
        return
    if kvstore == "dist_async":
        raise ValueError(_ASYNC)
    raise ValueError(f"kvstore: expected None, 'dist_sync' or 'horovod'; received {kvstore!r:.100}")


def way_of(group: Group, kvstore: KVStoreSpec) -> AddUp:
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
