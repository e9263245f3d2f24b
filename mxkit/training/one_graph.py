"""Net, loss and the sums of metrics as one graph: one call a batch in place of three."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.device import Shard
from mxkit.core.graphs import (
    free_static_memory,
    graph_parameters,
    has_one_plain_output,
    hybridize_flags,
    is_hybridized,
    only_its_graph_runs,
    traced_graph,
)
from mxkit.core.packed import Packed
from mxkit.core.replicas import first_value
from mxkit.losses.by_name import Forward
from mxkit.losses.shapes import Steps, apply_steps, label_steps
from mxkit.metrics import Metric
import mxnet as mx
from mxnet import gluon
import numpy as np

# Scores of a batch that may wait for others, with COUNT_EVERY of which they are counted.
LATER_BYTES = 2**16


class Computed(NamedTuple):
    """What the net made of a batch on one device.

    Attributes:
        output: What the net returned; from a graph without its gradient, and None where no metric reads it.
        losses: Recorded, shape (B,).
        totals: From a graph, the sums over the samples of the metrics that it holds, if any; else None.
        ones: From a graph, ones of the shape of the losses: their gradient.
        silent: `totals`, each with zeros of its shape: both as `Accumulator.backward` takes them.
    """

    output: Any
    losses: Any
    totals: Optional[Sequence[Any]] = None
    ones: Any = None
    silent: Sequence[Tuple[Any, Any]] = ()


class OneGraph:
    """The graph that MXNet made of a hybridized net, with the loss and the sums of metrics behind it.

    Each call of an operator or a graph costs 15 to 80 us, which is most of a small net's update. It computes the same
    bits as the net, the loss and the metrics one after the other, and takes a batch only where nobody can tell the
    difference: one of the shapes and types of a batch that went the ordinary way before, with all its checks,
    through a net whose own graph is still the same. Net and loss are not changed, and get no parent.

    Args:
        net: Taken where it is hybridized and its call does nothing that is not in its graph.
        loss: The same; one that was made from a name need not be hybridized.
        named: Whether it was.
        forward: The ordinary way, as `forward_function` gives it.
        metrics: Those that have a `total_of` are summed in the graph, or, where they only count and `fresh` holds,
            later, for many small batches at once.
        devices: Taken where it is one CPU: kernels fused on a GPU may round otherwise in another graph.
        fresh: Whether nobody writes into the arrays of a batch after it was given.

    Attributes:
        devices: The same.
        metrics: The same.
    """

    def __init__(
        self,
        net: Any,
        loss: Any,
        named: bool,
        forward: Forward,
        metrics: Sequence[Metric],
        devices: Sequence["mx.Context"],
        fresh: bool = False,
    ) -> None:
        self._net, self._loss, self._named, self._forward, self.metrics = net, loss, named, forward, metrics
        # not of a subclass that may count in another way
        self._counted: List[Any] = [
            metric
            for metric in metrics
            if "total_of" in vars(type(metric)) and getattr(metric, "ignore_label", None) is None
        ]
        self._others = [metric for metric in metrics if metric not in self._counted]
        self.devices = list(devices)
        graphs = _is_graph(net) and _is_graph(loss) and not isinstance(loss, gluon.loss.CTCLoss)  # looked at each time
        self._possible = [one.device_type for one in devices] == ["cpu"] and graphs
        self._may_wait = self._possible and fresh and bool(self._counted) and all(one.counts for one in self._counted)
        self._waits = False
        # of the batches that went the ordinary way, with what was done to their labels
        self._kinds: Dict[Any, Steps] = {}
        self._steps: Steps = ()  # those of the graph
        self._kind: Any = None  # of the batch before
        self._new: Any = None  # of a batch that goes the ordinary way for the first time
        self._scales: List[Optional[float]] = []
        self._sources: Any = None
        self._call: Any = None
        self._held_twice = False
        self._ones: Any = None
        self._zeros: List[Any] = []
        self._places: List[Tuple[int, Any]] = []

    @property
    def likely(self) -> bool:
        """Whether it will take most batches, as far as can be told before the first."""
        return bool(self._possible and is_hybridized(self._net) and (self._named or is_hybridized(self._loss)))

    def compute(self, shard: Shard) -> Computed:
        """Compute a batch, inside `record`."""
        found = self._in_one(shard)
        if found is None:
            self._held_twice = True
            found = Computed(*self._forward(self._net, shard.unpacked().inputs, shard.labels))
            if self._new is not None:
                self._kinds[self._new] = label_steps(self._loss, found.output, shard.labels)
            if self._may_wait:
                self._let_wait(found.output)
        return found

    def _let_wait(self, output: Any) -> None:
        """Choose when to count, now that a batch of a new kind was seen: two, a whole one and a tail, are usual."""
        small = type(output) is mx.nd.NDArray and output.size * np.dtype(output.dtype).itemsize <= LATER_BYTES
        self._may_wait = small and len(self._kinds) <= 2
        if self._may_wait != self._waits:
            self._waits, self._call = self._may_wait, None

    def forget(self) -> None:
        """Make the graph anew at the next batch."""
        self._call = None

    def measure(self, shard: Shard, computed: Computed) -> None:
        """Add a batch to the metrics."""
        for metric in self.metrics if computed.totals is None else self._others:
            metric.update(shard.labels, computed.output)
        if computed.totals is None:
            return
        for metric, total in zip(self._counted, computed.totals):
            metric.add_total(total, metric.size_of(shard.labels[metric._label]))
        if self._waits:
            scores = computed.output.detach()
            for metric in self._counted:
                label = shard.labels[metric._label]
                metric.add_later(label, scores, metric.size_of(label))

    def _in_one(self, shard: Shard) -> Optional[Computed]:
        """Compute a batch by the graph; None where it must go the ordinary way."""
        self._new = None
        if not self._possible:
            return None
        arrays = shard.inputs + shard.labels
        scales = [array.scale if type(array) is Packed else None for array in shard.inputs]
        kind = (*scales, *[(array.shape, array.dtype, type(array)) for array in arrays])
        if not (only_its_graph_runs(self._net) and (self._named or only_its_graph_runs(self._loss))):
            self._sources, self._call, self._kinds, self._new = None, None, {}, kind
            return None
        sources = (traced_graph(self._net), traced_graph(self._loss))
        if self._sources is None:
            self._sources = sources
        elif any(one is not seen for one, seen in zip(sources, self._sources)):
            self._sources, self._call, self._kinds = sources, None, {}
        if kind != self._kind:  # arrays of two kinds may not fit together
            self._kind, self._ones = kind, None
            if scales != self._scales:  # a graph holds one way to unpack
                self._scales, self._call = scales, None
            for metric in self._counted:
                metric.catch_up()
        if kind not in self._kinds:
            self._new = kind
            return None
        if self._kinds[kind] != self._steps:  # a graph holds one way to fit labels to the loss
            self._steps, self._call = self._kinds[kind], None
        if self._call is None:
            self._call = self._build(shard) or False
        if not self._call:
            return None
        if self._held_twice:
            self._release()
        given = [array.array if type(array) is Packed else array for array in arrays]
        found = self._call(*[given[number] if own is None else first_value(own) for number, own in self._places])
        losses, *read = found if isinstance(found, list) else [found]
        totals = () if self._waits else read[: len(self._counted)]
        if self._ones is None:
            self._ones = losses.ones_like()
        if len(self._zeros) < len(totals):
            self._zeros = [total.zeros_like() for total in totals]
        output = read[-1] if self._others or self._waits else None
        return Computed(output, losses, totals, self._ones, list(zip(totals, self._zeros)))

    def _build(self, shard: Shard) -> Any:
        """Make the graph; None where it cannot be made."""
        net = self._net
        data, output = traced_graph(net)
        if not has_one_plain_output(net):
            return None
        given = [mx.sym.var(f"mxkit_label{number}") for number in range(len(shard.labels))]
        with mx.name.NameManager():  # so that names of the user's own graphs do not depend on this one
            packed = {one.name: array for one, array in zip(data, shard.inputs) if type(array) is Packed}
            if packed:
                output = output(**{name: array.symbol(mx.sym.var(name)) for name, array in packed.items()})
            losses = self._loss_of(output, given)
            read = mx.sym.BlockGrad(output)
            counted = [] if self._waits else self._counted
            totals = [metric.total_of(mx.sym, given[metric._label], read) for metric in counted]
        graph = mx.sym.Group([losses, *totals, *([read] if self._others or self._waits else [])])
        places = {variable.name: number for number, variable in enumerate([*data, *given])}
        owned = graph_parameters(net)
        names = graph.list_inputs()
        if len(data) != len(shard.inputs) or not places.keys() <= set(names) <= places.keys() | owned.keys():
            return None
        self._ones, self._zeros = None, []
        self._places = [(places.get(name, 0), None if name in places else owned[name]) for name in names]
        flags = {
            "data_indices": [i for i, name in enumerate(names) if name in places],
            "param_indices": [i for i, name in enumerate(names) if name not in places],
        }
        return mx.nd.CachedOp(graph, [*flags.items(), *hybridize_flags(net).items()])

    def _release(self) -> None:
        """Let the net's own operator go, with the memory of a batch; a call of the net makes it anew from its graph."""
        self._held_twice = False
        free_static_memory(self._net)

    def _loss_of(self, output: Any, labels: Sequence[Any]) -> Any:
        labels = apply_steps(self._steps, output, labels)
        if self._named:
            return self._loss(output, *labels)
        data, losses = traced_graph(self._loss)  # as it was traced, whatever became of its attributes since (T39)
        return losses(**{variable.name: one for variable, one in zip(data, [output, *labels])})


def _is_graph(block: Any) -> bool:
    """Whether all that a block's call does is in its graph, once it is hybridized."""
    kind = type(block)
    return (
        isinstance(block, gluon.HybridBlock)
        and kind.forward is gluon.HybridBlock.forward
        and kind.__call__.__module__.startswith(("mxnet.gluon.", "mxkit.models."))  # mxkit's looks at shapes
    )
