"""Chooses how many threads an operator takes, by the net's work for one batch."""

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple
from weakref import ReferenceType, WeakKeyDictionary, ref

from mxkit.core.blocks import blocks_by_path, net_devices
from mxkit.nets.layer_table.measures import operator_macs
from mxkit.runtime.threads import choosing, most, reach

# Multiply-adds of an operator that are worth another thread.
MACS_PER_THREAD = 2_000_000

# For each net its blocks, and the numbers by the shapes of inputs: tracing ResNet-18 takes 15 ms.
_Numbers = Dict[Tuple[Any, ...], Optional[int]]
_known: "WeakKeyDictionary[Any, Tuple[List[ReferenceType[Any]], _Numbers]]" = WeakKeyDictionary()


@contextmanager
def threads_for(
    net: Any, *, number: Optional[int] = None, by_net: bool = True
) -> Iterator[Callable[[Sequence[Any]], None]]:
    """Let the first batch choose MXNet's threads on the CPU until the end of `with`.

    Nothing is chosen where the user decides, by a variable or by `mxkit.threads`, in calls inside others that have
    chosen, on a GPU, and for nets without a graph: these take the number of the import, one thread per core.

    Args:
        net: An initialized block.
        number: The number of a resumed run, instead of a choice.
        by_net: False if the net's forward pass is not `net(*inputs)`, so that its work is not known.

    Yields:
        A function of the inputs of the first batch on one device.
    """
    devices = [device.device_id for device in net_devices(net) if device.device_type == "cpu"]
    reach(devices)

    def choose(inputs: Sequence[Any]) -> None:
        if set_number is not None and number is None:
            set_number(_number(net, inputs), devices)

    if not devices or not (by_net or number):
        set_number = None
        yield choose
        return
    with choosing() as set_number:
        if set_number is not None and number is not None:
            set_number(number, devices)
        yield choose


def _number(net: Any, inputs: Sequence[Any]) -> Optional[int]:
    """The number for a net and the shapes of a batch; None, the number of the import, for a net without a graph."""
    blocks = [ref(block) for _, block in blocks_by_path(net)]
    if net not in _known or _known[net][0] != blocks:
        _known[net] = blocks, {}
    numbers, shapes = _known[net][1], tuple(array.shape for array in inputs)
    if shapes not in numbers:
        macs = operator_macs(net, inputs)
        numbers[shapes] = None if macs is None else chosen_number(macs)
    number = numbers[shapes]
    return None if number is None else min(number, most())


def chosen_number(macs: Sequence[int]) -> int:
    """One thread for each MACS_PER_THREAD that an operator with multiply-adds has on average, at least one.

    Args:
        macs: Multiply-adds of each operator for one batch.
    """
    products = [number for number in macs if number]
    return max(1, round(sum(products) / max(1, len(products)) / MACS_PER_THREAD))
