"""Compares the traced graph of a net with the net itself, whose code may compute something else with arrays."""

from typing import Any, List, Mapping, Sequence, Set

from mxkit.core.arrays import of_kind, outputs_of, switches, to_host
from mxkit.core.blocks import net_devices
from mxkit.core.graph import Graph
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import NetGraph, graph_outputs
from mxkit.exporting.proof import Row, compare
import mxnet as mx
from mxnet import autograd
import numpy as np


def compare_net(net: Any, graph: NetGraph, batches: Sequence[Mapping[str, Any]], axis: int, numbers: bool) -> List[Row]:
    """Compare the outputs of the graph with those of a call of the net, in predict mode.

    Args:
        net: The net.
        graph: Its graph.
        batches: NumPy arrays by the inputs' names.
        axis: The axis of the samples in the first input.
        numbers: Refuse an output without a finite number. Where the file's parameters are compared, too, it may be.

    Raises:
        ExportError: The net's code computes something else with symbols, or an output holds no finite number.
    """
    rows = []
    for batch in batches:
        size = next(iter(batch.values())).shape[axis]
        outputs = net_outputs(net, list(batch.values()), graph.numpy)
        for number, (expected, traced) in enumerate(zip(outputs, graph_outputs(graph, batch))):
            if numbers and expected.size and not np.isfinite(expected).any():
                raise ExportError(
                    f"export: output {number} of the net holds NaN or infinity only, for a batch of {size}: nothing "
                    "can be compared. Look for NaN in the weights (mxkit.parameters(net)), or pass other inputs="
                )
            rows.append(compare(f"output {number}", "the net itself", size, expected, traced))
    wrong = [row for row in rows if not row.relative <= 1e-5]
    if wrong:
        row = wrong[0]
        raise ExportError(
            f"export: {row.name} of the traced graph differs from the net's own, for a batch of {row.batch}: relative "
            f"difference {row.relative:.2g}. The net's code computes something else with symbols than with arrays, or "
            "an attribute of it changed after hybridize: write its forward without conditions on the type or shape of "
            "its inputs, and call net.hybridize() again"
        )
    return rows


def net_outputs(net: Any, inputs: Sequence[Any], numpy: bool) -> List[Any]:
    """Call a net in predict mode, on its first device.

    Args:
        net: The net.
        inputs: NumPy arrays, None, or nested lists of them.
        numpy: Whether it is a net of `mx.np`.

    Returns:
        NumPy arrays: the outputs, flattened, without None.
    """
    with autograd.pause(train_mode=False), switches(numpy):
        return _flat(net(*net_inputs(net, inputs, numpy)))


def net_inputs(net: Any, inputs: Any, numpy: bool) -> Any:
    """Copy NumPy arrays, None, and nested lists of them to a net's first device, as arrays of its kind."""
    device = net_devices(net)[0]

    def array(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [array(part) for part in value]
        return None if value is None else mx.nd.array(value, ctx=device, dtype=np.asarray(value).dtype)

    return of_kind(array(inputs), numpy)


def _flat(outputs: Any) -> List[Any]:
    if isinstance(outputs, (list, tuple)):
        return [array for part in outputs for array in _flat(part)]
    return [] if outputs is None else [to_host(array) for array in outputs_of(outputs, "export")]


def fixed_gammas(graph: NetGraph) -> Set[int]:
    """Ids of the parameters that MXNet reads as ones: gammas of BatchNorms with `fix_gamma`, Gluon's `scale=False`."""
    view = Graph.of(graph.symbol)
    norms = (node for node in view.nodes if "BatchNorm" in node.operator and node.flag("fix_gamma"))
    names = [view.sources(node)[1].name for node in norms]
    return {id(graph.parameters[name]) for name in names if name in graph.parameters}
