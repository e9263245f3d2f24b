"""Net, loss and the sums of metrics as one graph: one call per batch instead of three."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.array_kind import legacy, of_kind, switches
from mxkit.core.device import Shard
from mxkit.core.graphs import (
    drop_static_graphs,
    free_static_memory,
    graph_parameters,
    has_one_plain_output,
    hybridize_flags,
    is_hybridized,
    only_its_graph_runs,
    traced_graph,
)
from mxkit.core.packed import Packed
from mxkit.core.replicas import GradientWatch, first_value
from mxkit.losses.batch_loss import BatchLoss
from mxkit.losses.shapes import Steps, apply_steps, label_steps
from mxkit.metrics import Metric
import mxnet as mx
from mxnet import gluon
import numpy as np

# Largest array of scores to postpone; COUNT_EVERY batches are then counted in one operator.
LATER_BYTES = 2**16


class Computed(NamedTuple):
    """Output and losses of a batch on one device.

    Attributes:
        output: The net's output; with the graph it has no gradient, and is None if no metric reads it.
        losses: Recorded, shape (B,).
        totals: With the graph, the metrics' sums over the samples; else None.
        ones: With the graph, an array of ones of the losses' shape: their gradient.
        others: `totals`, each with an array of zeros of its shape, for `Accumulator.backward_of`.
    """

    output: Any
    losses: Any
    totals: Optional[Sequence[Any]] = None
    ones: Any = None
    others: Sequence[Tuple[Any, Any]] = ()


class OneGraph:
    """The graph of a hybridized net, extended by the loss and the sums of metrics.

    Each call of an operator or a graph costs 15 to 80 us, which is most of a small net's update. The graph gives the
    same bits as separate calls of the net, the loss and the metrics. Only a batch with the shapes and types of an
    earlier batch is computed in it: the earlier one was computed by separate calls, with all checks, and the net's own
    graph must be unchanged since then. Net and loss are not changed, and get no parent.

    Args:
        net: The graph is used if the net is hybridized and its call does nothing outside of its graph.
        batch_loss: The same holds for its loss; a loss by name need not be hybridized.
        parameters: The Trainer's parameters.
        metrics: Metrics with a `total_of` are summed in the graph. Those that only count are summed later, many small
            batches at once, if `unshared` is true.
        devices: The graph is used on one CPU: fused kernels of a GPU may round differently in another graph.
        unshared: Whether the arrays of a batch are never written again.

    Attributes:
        devices: The same.
        metrics: The same.
    """

    def __init__(
        self,
        net: Any,
        batch_loss: BatchLoss,
        parameters: Sequence[Any],
        metrics: Sequence[Metric],
        devices: Sequence["mx.Context"],
        unshared: bool = False,
    ) -> None:
        self._net, self._forward, self.metrics = net, batch_loss.forward, metrics
        self._loss: Any = batch_loss.loss
        self._loss_by_name, self._loss_on_views = batch_loss.by_name, batch_loss.on_views
        self._gradients = GradientWatch(parameters)
        # vars: a subclass may count differently
        self._counted: List[Any] = [
            metric
            for metric in metrics
            if "total_of" in vars(type(metric)) and getattr(metric, "ignore_label", None) is None
        ]
        self._others = [metric for metric in metrics if metric not in self._counted]
        self.devices = list(devices)
        graphs = _is_graph(net) and _is_graph(self._loss)
        checked_always = isinstance(self._loss, gluon.loss.CTCLoss)  # the values of its labels, in each batch
        self._possible = [device.device_type for device in devices] == ["cpu"] and graphs and not checked_always
        self._may_postpone = self._possible and unshared and bool(self._counted)
        self._may_postpone = self._may_postpone and all(metric.counts for metric in self._counted)
        self._postpones = False
        self._kinds: Dict[Any, Steps] = {}  # shapes and types of batches so far, with the steps for their labels
        self._steps: Steps = ()  # of the labels in the graph
        self._kind: Any = None  # of the previous batch
        self._new_kind: Any = None  # of a batch that needs separate calls
        self._scales: List[Optional[float]] = []
        self._sources: Any = None
        self._call: Any = None
        self._net_has_memory = False
        self._ones: Any = None
        self._zeros: List[Any] = []
        self._places: List[Tuple[int, Any]] = []
        self._sizes: List[int] = []

    @property
    def likely(self) -> bool:
        """Whether it will compute most batches, as far as this is known before the first one."""
        return bool(self._possible and is_hybridized(self._net) and (self._loss_by_name or is_hybridized(self._loss)))

    def compute(self, shard: Shard) -> Computed:
        """Compute a batch, inside `record`."""
        computed = self._in_graph(shard)
        if computed is None:
            self._net_has_memory = True
            computed = Computed(*self._forward(self._net, shard.unpacked().inputs, shard.labels))
            if self._new_kind is not None:
                self._kinds[self._new_kind] = label_steps(self._loss, computed.output, shard.labels)
            if self._may_postpone:
                self._choose_when_to_count(computed.output)
        return computed

    def _choose_when_to_count(self, output: Any) -> None:
        """Postpone counting if scores are small and there are at most two kinds of batches: full ones and a tail."""
        output = legacy(output)
        small = type(output) is mx.nd.NDArray and output.size * np.dtype(output.dtype).itemsize <= LATER_BYTES
        self._may_postpone = small and len(self._kinds) <= 2
        if self._may_postpone != self._postpones:
            self._postpones, self._call = self._may_postpone, None

    def check_gradients(self) -> None:
        """Discard graphs that write to old gradients: parameters got new ones since the last call (T109).

        A callback froze a layer, for example, or the net was moved between two epochs.
        """
        if self._gradients.moved():
            drop_static_graphs(self._net)
            self._call = None

    def measure(self, shard: Shard, computed: Computed) -> None:
        """Add a batch to the metrics."""
        for metric in self.metrics if computed.totals is None else self._others:
            with switches(shard.numpy):
                metric.update(shard.labels, computed.output)
        if computed.totals is None:
            return
        if not self._sizes:  # unknown for this kind of batch
            self._sizes = [metric.size_of(shard.labels[metric._label]) for metric in self._counted]
        for metric, total, size in zip(self._counted, computed.totals, self._sizes):
            metric.add_total(total, size)
        if self._postpones:
            scores = legacy(computed.output).detach()
            for metric, size in zip(self._counted, self._sizes):
                metric.add_later(legacy(shard.labels[metric._label]), scores, size)

    def _in_graph(self, shard: Shard) -> Optional[Computed]:
        """Compute a batch by the graph; None if it needs separate calls."""
        self._new_kind = None
        if not self._possible:
            return None
        arrays = shard.inputs + shard.labels
        scales = [array.scale if type(array) is Packed else None for array in shard.inputs]
        kind = (*scales, *[(array.shape, array.dtype, type(array)) for array in arrays])
        if not (only_its_graph_runs(self._net) and (self._loss_by_name or only_its_graph_runs(self._loss))):
            self._sources, self._call, self._kinds, self._new_kind = None, None, {}, kind
            return None
        sources = (traced_graph(self._net), traced_graph(self._loss))
        if self._sources is None:
            self._sources = sources
        elif any(source is not before for source, before in zip(sources, self._sources)):
            self._sources, self._call, self._kinds = sources, None, {}
        if kind != self._kind:  # arrays of two kinds cannot be concatenated
            self._kind, self._ones, self._sizes = kind, None, []
            if scales != self._scales:  # the scale of packed images is a constant of the graph
                self._scales, self._call = scales, None
            for metric in self._counted:
                metric.catch_up()
        if kind not in self._kinds:
            self._new_kind = kind
            return None
        if self._kinds[kind] != self._steps:  # the steps for labels are operators of the graph
            self._steps, self._call = self._kinds[kind], None
        if self._call is None:
            self._call = self._build(shard) or False
        if not self._call:
            return None
        if self._net_has_memory:  # the net's own graph holds the memory of a batch too; its next call allocates it
            self._net_has_memory = False
            free_static_memory(self._net)
        values = [array.array if type(array) is Packed else array for array in arrays]
        with switches(shard.numpy):  # shapes () and of size 0 inside the net
            outputs = self._call(
                *[values[number] if parameter is None else first_value(parameter) for number, parameter in self._places]
            )
        losses, *read = outputs if isinstance(outputs, list) else [outputs]
        totals = () if self._postpones else read[: len(self._counted)]
        if self._ones is None:
            self._ones = losses.ones_like()
        if len(self._zeros) < len(totals):
            self._zeros = [total.zeros_like() for total in totals]
        output = None
        if self._others or self._postpones:
            output = of_kind(read[-1], shard.numpy)
        return Computed(output, losses, totals, self._ones, list(zip(totals, self._zeros)))

    def _build(self, shard: Shard) -> Any:
        """Make the graph; None if this is impossible."""
        net = self._net
        data, output = legacy(traced_graph(net))
        if not has_one_plain_output(net):
            return None
        labels = [mx.sym.var(f"mxkit_label{number}") for number in range(len(shard.labels))]
        # a NameManager keeps the process-wide counters of names, which the user's graphs use
        with mx.name.NameManager(), switches(False):
            packed = {variable.name: array for variable, array in zip(data, shard.inputs) if type(array) is Packed}
            if packed:
                output = output(**{name: array.symbol(mx.sym.var(name)) for name, array in packed.items()})
            losses = self._loss_of(output, labels, shard.numpy)
            read = mx.sym.BlockGrad(output)
            counted = [] if self._postpones else self._counted
            totals = [metric.total_of(mx.sym, labels[metric._label], read) for metric in counted]
        graph = mx.sym.Group([losses, *totals, *([read] if self._others or self._postpones else [])])
        places = {variable.name: number for number, variable in enumerate([*data, *labels])}
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

    def _loss_of(self, output: Any, labels: Sequence[Any], numpy: bool) -> Any:
        labels = apply_steps(self._steps, output, labels)
        if self._loss_by_name:
            numpy = numpy and not self._loss_on_views
            with switches(numpy):
                return legacy(self._loss(*of_kind([output, *labels], numpy)))
        data, losses = legacy(traced_graph(self._loss))  # later changes of its attributes do not count (T39)
        return losses(**{variable.name: symbol for variable, symbol in zip(data, [output, *labels])})


def _is_graph(block: Any) -> bool:
    """Whether the graph of a hybridized block holds everything that its call does."""
    kind = type(block)
    return (
        isinstance(block, gluon.HybridBlock)
        and kind.forward is gluon.HybridBlock.forward
        # mxkit's only checks shapes or converts arrays
        and kind.__call__.__module__.startswith(("mxnet.gluon.", "mxkit.models.", "mxkit.losses."))
    )
