"""Net, loss and the sums of metrics as one graph, bound to the parameters: a batch takes two calls of MXNet."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import Packed, legacy, of_kind, switches
from mxkit.core.device import Shard, Shards
from mxkit.core.graphs import (
    drop_static_graphs,
    free_static_memory,
    graph_parameters,
    has_one_plain_output,
    is_hybridized,
    only_its_graph_runs,
    traced_graph,
)
from mxkit.core.loss_meanings import meaning_of
from mxkit.core.prepared import BoundGraph, output_kinds, parts_of
from mxkit.core.replicas import GradientWatch
from mxkit.losses.named_losses import BatchLoss
from mxkit.losses.per_sample import Steps, apply_steps, label_steps
from mxkit.metrics import Metric
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

# Bound graphs to keep, one for each kind of batch: each holds memory for its inputs and outputs.
_MOST_KINDS = 8


class Computed(NamedTuple):
    """Output and losses of a batch on one device.

    Attributes:
        output: The net's output; with the graph it has no gradient, and is None if no metric reads it.
        losses: Shape (B,); recorded, unless the graph computed them.
        totals: With the graph, the metrics' sums over the samples, and the numbers of values in them; else None.
        backward: With the graph, computes the gradients; else None.
    """

    output: Any
    losses: Any
    totals: Optional[Sequence[Tuple[Any, int]]] = None
    backward: Optional[Callable[[], None]] = None


class _Kind(NamedTuple):
    """Batches of one kind.

    Attributes:
        bound: Their graph; None if there is none.
        sizes: Sizes of the losses and of each metric's sums, which are the second output of the graph.
        counts: Number of values in the sums of each metric.
    """

    bound: Optional[BoundGraph]
    sizes: Sequence[int] = ()
    counts: Sequence[int] = ()


class OneGraph:
    """The graph of a hybridized net, extended by the loss and the sums of metrics, and bound to the parameters.

    Each call of an operator or a graph, and autograd's work, costs 15 to 300 us, which is most of a small net's update.
    The graph gives the same bits as separate calls of the net, the loss and the metrics. It computes only batches with
    the shapes and types of an earlier batch: separate calls computed that one, with all checks, and the net's own graph
    must be unchanged since then. Net and loss do not change, and get no parent.

    Args:
        net: The graph is used if the net is hybridized and its call does nothing outside its graph.
        batch_loss: The same holds for its loss; a loss by name need not be hybridized.
        parameters: The Trainer's parameters.
        metrics: The graph sums metrics with a `total_of`.
        devices: The graph is used on one CPU: fused kernels of a GPU may round differently in another graph.

    Attributes:
        devices: As the argument.
        metrics: As the argument.
    """

    def __init__(
        self,
        net: Any,
        batch_loss: BatchLoss,
        parameters: Sequence[Any],
        metrics: Sequence[Metric],
        devices: Sequence["mx.Context"],
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
        checked_always = meaning_of(self._loss).checks_values
        self._possible = [device.device_type for device in devices] == ["cpu"] and graphs and not checked_always
        self._steps: Dict[Any, Steps] = {}  # by kind of batch: the steps for the labels
        self._kinds: Dict[Any, _Kind] = {}
        self._sources: Tuple[Any, ...] = ()

    @property
    def likely(self) -> bool:
        """Whether the graph will compute most batches, as far as this is known before the first batch."""
        return bool(self._possible and is_hybridized(self._net) and (self._loss_by_name or is_hybridized(self._loss)))

    def compute(self, shards: Shards) -> List[Computed]:
        """Compute a batch; its gradients follow from `Computed.backward`, or from autograd's."""
        self._check_gradients()
        kind = _shard_kind(shards[0]) if self._possible else None
        if kind is not None:
            in_graph = self._in_graph(shards[0], kind)
            if in_graph is not None:
                return [in_graph]
        with autograd.record():
            computed = [Computed(*self._forward(self._net, one.unpacked().inputs, one.labels)) for one in shards]
        if kind is not None:
            self._steps[kind] = label_steps(self._loss, computed[0].output, shards[0].labels)
        return computed

    def _check_gradients(self) -> None:
        """Drop graphs of the net that write to old gradients, if parameters have new ones since the last call (T109).

        For example, a callback froze a layer, or the net was moved between two epochs.
        """
        if self._gradients.moved():
            drop_static_graphs(self._net)

    def measure(self, shard: Shard, computed: Computed) -> None:
        """Add a batch to the metrics."""
        for metric in self.metrics if computed.totals is None else self._others:
            metric.input_shape = shard.inputs[0].shape
            with switches(shard.numpy):
                metric.update(shard.labels, computed.output)
        for metric, (total, count) in zip(self._counted, computed.totals or ()):
            metric.add_total(total, count)

    def _in_graph(self, shard: Shard, kind: Any) -> Optional[Computed]:
        """Compute a batch by the graph; None if it needs separate calls."""
        if not (only_its_graph_runs(self._net) and (self._loss_by_name or only_its_graph_runs(self._loss))):
            self._sources, self._kinds, self._steps = (), {}, {}
            return None
        sources = (traced_graph(self._net), traced_graph(self._loss))
        if any(source is not before for source, before in zip(sources, self._sources)):
            self._kinds, self._steps = {}, {}
        self._sources = sources
        if kind not in self._steps:
            return None
        known = self._kinds.get(kind)
        if known is not None and known.bound is not None and not known.bound.is_current():
            self._kinds, known = {}, None
        if known is None:
            known = self._kinds[kind] = self._bind(shard, kind)
        if known.bound is None:
            return None
        numbers, *read = known.bound.forward(_arrays(shard))
        losses, *totals = parts_of(numbers, known.sizes)
        output = of_kind(read[0], shard.numpy) if read else None
        return Computed(output, losses, list(zip(totals, known.counts)), known.bound.backward)

    def _bind(self, shard: Shard, kind: Any) -> _Kind:
        """Make the graph for batches like this one, if this is possible."""
        net = self._net
        data, output = legacy(traced_graph(net))
        owned = graph_parameters(net)
        if (
            not has_one_plain_output(net)
            or len(data) != len(shard.inputs)
            or sum(one.bound is not None for one in self._kinds.values()) == _MOST_KINDS
        ):
            return _Kind(None)
        labels = [mx.sym.var(f"mxkit_label{number}") for number in range(len(shard.labels))]
        # a NameManager keeps the process-wide counters of names, which the user's graphs use
        with mx.name.NameManager(), switches(False):
            packed = {variable.name: array for variable, array in zip(data, shard.inputs) if type(array) is Packed}
            if packed:
                output = output(**{name: array.symbol(mx.sym.var(name)) for name, array in packed.items()})
            losses = self._loss_of(output, apply_steps(self._steps[kind], output, labels), shard.numpy)
            read = mx.sym.BlockGrad(output)
            totals = [metric.total_of(mx.sym, labels[metric._label], read) for metric in self._counted]
            numbers = mx.sym.Group([mx.sym.BlockGrad(losses.reshape((-1,))), *totals])
            heads = [mx.sym.make_loss(losses), mx.sym.concat(*numbers, dim=0), *([read] if self._others else [])]
        graph = mx.sym.Group(heads)
        inputs = {variable.name: array for variable, array in zip([*data, *labels], _arrays(shard))}
        parameters = {name: one for name, one in owned.items() if name not in inputs}
        if not inputs.keys() <= set(graph.list_inputs()) <= inputs.keys() | parameters.keys():
            return _Kind(None)
        shapes, dtypes = output_kinds(numbers, inputs, parameters, shard.numpy)
        if set(dtypes) != {np.float32}:
            return _Kind(None)
        free_static_memory(net)  # the net's own graph holds the memory of a batch too; its next call allocates it
        largest = max((one.bound for one in self._kinds.values() if one.bound), key=lambda one: one.size, default=None)
        counts = [metric.size_of(shard.labels[metric._label]) for metric in self._counted]
        bound = BoundGraph(graph, inputs, parameters, shard.numpy, shared=largest)
        return _Kind(bound, [shape[0] for shape in shapes], counts)

    def _loss_of(self, output: Any, labels: Sequence[Any], numpy: bool) -> Any:
        if self._loss_by_name:
            numpy = numpy and not self._loss_on_views
            with switches(numpy):
                return legacy(self._loss(*of_kind([output, *labels], numpy)))
        data, losses = legacy(traced_graph(self._loss))  # later changes of its attributes do not count (T39)
        return losses(**{variable.name: symbol for variable, symbol in zip(data, [output, *labels])})


def _shard_kind(shard: Shard) -> Any:
    """Facts that decide a batch's graph: shapes, types, and the scales of packed images, which are its constants."""
    return tuple(
        [(array.shape, array.dtype, array.scale if type(array) is Packed else type(array)) for array in shard.inputs]
        + [(array.shape, array.dtype, type(array)) for array in shard.labels]
    )


def _arrays(shard: Shard) -> List[Any]:
    return [array.array if type(array) is Packed else array for array in shard.inputs + shard.labels]


def _is_graph(block: Any) -> bool:
    """Whether the graph of a hybridized block holds everything that its call does."""
    kind = type(block)
    return (
        isinstance(block, gluon.HybridBlock)
        and kind.forward is gluon.HybridBlock.forward
        # mxkit's only checks shapes or converts arrays
        and kind.__call__.__module__.startswith(("mxnet.gluon.", "mxkit.models.", "mxkit.losses."))
    )
