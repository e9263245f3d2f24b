"""Chooses the number of threads of an operator in a training, by the net's work for one batch."""

from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from mxkit.core.blocks import net_devices
from mxkit.core.device import unpack
from mxkit.core.gluon_data import held_arrays, loader_parts
from mxkit.data.loader import ArrayLoader
from mxkit.data.order import Epochs
from mxkit.nets.layer_table.measures import operator_macs
from mxkit.runtime.engine_threads import choosing, most, reach
import mxnet as mx
from mxnet import gluon

# Multiply-adds that keep a thread busy for longer than OpenMP takes to start it and to wait for it. Time of an update
# with two threads on two cores, relative to one thread: softmax regression, batch 64 (0.5 million a product) 1.7; LSTM
# of 64 units (0.5) 1.7; MLP 784-256-10 (6.5) 1.1, on an AMD EPYC 0.9; transformer of 64 units (8.4) 1.1; LeNet, batch
# 64 (32) 0.79.
MACS_PER_THREAD = 8_000_000


@contextmanager
def threads_for(
    net: Any, train: Any, valid: Any = None, *, number: Optional[int] = None, by_net: bool = True
) -> Iterator[None]:
    """Choose MXNet's threads on the CPU for a training, until the end of `with`.

    The number of the import, one per core, stays in four cases: the user decides, by a variable or `mxkit.threads`; an
    outer call has chosen; the net has no graph or is on a GPU; the shapes of a batch are unknown.

    Args:
        net: An initialized block.
        train: The training data, which is not read.
        valid: The validation data, or None.
        number: The number of a resumed run, instead of a choice.
        by_net: False if the net's forward pass is not `net(*inputs)`, so that its work is unknown.
    """
    devices = net_devices(net)
    on_cpu = [device.device_id for device in devices if device.device_type == "cpu"]
    reach(on_cpu)
    with choosing() as set_number:
        if set_number is not None and on_cpu:
            if number is None and by_net and reads_quietly(valid):
                number = _number(net, [(max(1, shape[0] // len(devices)), *shape[1:]) for shape in batch_shapes(train)])
            set_number(number, on_cpu)
        yield


def _number(net: Any, shapes: Sequence[Tuple[int, ...]]) -> Optional[int]:
    if most() == 1:
        return 1
    macs = operator_macs(net, shapes) if shapes else None
    return None if macs is None else min(chosen_number(macs), most())


def batch_shapes(data: Any) -> List[Tuple[int, ...]]:
    """Shapes of the inputs of the first batch, if they are known without reading it; else an empty list.

    To read a batch may start threads of the loader. They use MXNet, whose workers `threads_for` restarts.
    """
    loader = loader_parts(data)
    if type(data) is ArrayLoader and data.transform is None:
        arrays = data.x if isinstance(data.x, tuple) else (data.x,)
        return [(min(data.batch_size, data.size), *array.shape[1:]) for array in arrays]
    if isinstance(data, (list, tuple)) and data and isinstance(data[0], (list, tuple)):
        shapes = [getattr(array, "shape", ()) for array in unpack(data[0])[0]]
        return shapes if all(shapes) else []
    if loader is not None and type(loader.dataset) is gluon.data.ArrayDataset and not loader.workers:
        first, size = held_arrays(loader.dataset)[0], loader.batch_size
        return [(min(size, len(first)), *first.shape[1:])] if size and hasattr(first, "shape") else []
    return [tuple(one[1]) for one in data.provide_data] if type(data) is mx.io.NDArrayIter else []


def reads_quietly(data: Any) -> bool:
    """Whether no thread of a loader uses MXNet after its iterator is closed."""
    return data is None or isinstance(data, Epochs) or bool(batch_shapes(data))


def chosen_number(macs: Sequence[int]) -> int:
    """One thread for each MACS_PER_THREAD that a product has on average, rounded, at least one.

    Args:
        macs: Multiply-adds of each operator for one batch; operators without any are not products.
    """
    products = [number for number in macs if number]
    return max(1, round(sum(products) / max(1, len(products)) / MACS_PER_THREAD))
