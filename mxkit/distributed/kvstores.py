"""The ways in which workers add their gradients up, by the words of MXNet."""

from typing import Any, Callable, Mapping, NamedTuple, Sequence, Tuple, Union

from mxkit.distributed.group import Group

_ASYNC = (
    "kvstore='dist_async': the servers would make an update for each worker alone, with a gradient of older weights; "
    "all workers of fit make the same updates together. Use kvstore=None, or a loop of your own over MXNet's servers "
    "(docs: several machines, updates one by one)"
)
# A name, or a name and its arguments; None is "dist_sync".
KVStoreSpec = Union[None, str, Tuple[str, Mapping[str, Any]]]
AddUp = Callable[[str, Sequence[Sequence[Any]]], None]
_ring: Any = None


class Sums(NamedTuple):
    """Replace arrays by their sums over all workers, like `Group.add_up`.

    Attributes:
        gradients: For gradients.
        exact: For what must not be rounded.
    """

    gradients: AddUp
    exact: AddUp


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


def sums_of(group: Group, kvstore: KVStoreSpec = None) -> Sums:
    """The way to add up that a word means; all workers call it at the same place, with the same word.

    Raises:
        DistributedError: Horovod is not here.
    """
    global _ring
    if kvstore != "horovod":
        return Sums(group.add_up, group.add_up)
    if _ring is None:
        from mxkit.distributed.ring import Ring

        _ring = Ring(group)
    return Sums(_ring.add_up, _ring.add_up)
