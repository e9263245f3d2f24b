"""Graphs for prediction, made of a net's float32 graph by MXNet: fused by oneDNN, in bfloat16, or in int8."""

from collections import Counter
from contextlib import contextmanager
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from mxkit.core.graph import Entry, Graph, Node, symbol_of
from mxkit.core.operators import known
from mxkit.runtime.machine import processor_flags, processor_model
import mxnet as mx
import numpy as np

PRECISIONS = ("float32", "bfloat16", "int8")
# Operators of mx.np without a loss of range: they run in float16 if all inputs are float16.
_WIDEST = ("_npi_add", "_npi_subtract", "_npi_multiply", "_npi_concatenate")


class Settings(NamedTuple):
    """How a float32 graph becomes one for prediction.

    Attributes:
        precision: One of `PRECISIONS`.
        float_layers: Names of operators in the float32 graph that stay float32.
        thresholds: For int8: the smallest and the largest number of each array that becomes int8, by its name.
        joined: For float32 and bfloat16: whether oneDNN computes several operators at once.
    """

    precision: str = "float32"
    float_layers: Tuple[str, ...] = ()
    thresholds: Mapping[str, Tuple[float, float]] = {}
    joined: bool = True


class PredictionGraph(NamedTuple):
    """A graph with its arrays, by the names of its inputs.

    Attributes:
        symbol: The graph.
        arrays: Its arrays.
        folded: Names of the BatchNorm that are part of a convolution's weights, by the convolution's name.
    """

    symbol: Any
    arrays: Dict[str, Any]
    folded: Mapping[str, str] = {}


def prediction_graph(symbol: Any, arguments: Dict[str, Any], states: Dict[str, Any], settings: Settings) -> Any:
    """Make the graph.

    Args:
        symbol: A float32 graph, a legacy Symbol.
        arguments: NDArrays on the CPU, by name.
        states: Auxiliary states, likewise.
        settings: How.

    Raises:
        ValueError: An array that becomes int8 has no thresholds.
    """
    check_processor(settings.precision)
    if settings.precision == "float32":
        # the names of backends are not checked by all of MXNet's functions (T197)
        return PredictionGraph(
            symbol.get_backend_symbol("MKLDNN") if settings.joined else symbol, {**arguments, **states}
        )
    if settings.precision == "bfloat16":
        from mxnet.contrib import amp

        # before AMP rounds the weights: oneDNN would multiply BatchNorm into rounded ones (T198)
        graph = with_folded_norms(symbol, {**arguments, **states})
        names = set(graph.symbol.list_auxiliary_states())
        with all_operators_listed(graph.symbol, "bfloat16"):
            symbol, arguments, states = amp.convert_model(
                graph.symbol,
                {name: array for name, array in graph.arrays.items() if name not in names},
                {name: graph.arrays[name] for name in names},
                target_dtype="bfloat16",
                excluded_sym_names=list(settings.float_layers),
                cast_optional_params=True,
            )
        symbol = symbol.get_backend_symbol("MKLDNN") if settings.joined else symbol
        return PredictionGraph(symbol, {**arguments, **states}, graph.folded)
    from mxnet.contrib import quantization

    graph, collector = _quantized(symbol, arguments, states, settings.float_layers)
    missing = set(collector.include_layer).difference(settings.thresholds)
    if missing:
        raise ValueError(f"no thresholds for {', '.join(sorted(missing))!s:.300}")
    collector.min_max_dict = dict(settings.thresholds)
    symbol, arguments, states = quantization.calib_graph(
        graph, arguments, states, collector, calib_mode="naive", quantized_dtype="auto", logger=None
    )
    return PredictionGraph(symbol.get_backend_symbol("MKLDNN_QUANTIZE"), {**arguments, **states})


@contextmanager
def all_operators_listed(graph: Any, dtype: str) -> Iterator[None]:
    """Add the operators of a graph that are in none of MXNet's lists to them inside `with`: those of `mx.np` (T168).

    For bfloat16 also those of interleaved attention, and `batch_dot`, which MXNet lists without a kernel (T297). MXNet
    would compute exponentials and sums in 16 bits, or fail.
    """
    from mxnet.contrib import amp

    lists = amp.lists.symbol_fp16 if dtype == "float16" else amp.lists.symbol_bf16
    listed = {
        one if isinstance(one, str) else one[0] for many in vars(lists).values() if type(many) is list for one in many
    }
    found = {one.operator for one in Graph.of(graph).operators()} - listed
    widest = found.intersection(_WIDEST if dtype == "float16" else ())
    before = lists.FP32_FUNCS, lists.WIDEST_TYPE_CASTS
    moved = {"batch_dot"} if dtype == "bfloat16" else set()
    lists.FP32_FUNCS = [*before[0], *found - widest, *moved]
    lists.WIDEST_TYPE_CASTS = [*(one for one in before[1] if one not in moved), *widest]
    try:
        yield
    finally:
        lists.FP32_FUNCS, lists.WIDEST_TYPE_CASTS = before


def with_folded_norms(symbol: Any, arrays: Mapping[str, Any]) -> PredictionGraph:
    """Multiply each BatchNorm into the weights of the convolution before it, if nothing else reads the convolution.

    Args:
        symbol: A float32 graph.
        arrays: Its arguments and auxiliary states.

    Returns:
        A float32 graph that computes the same, with the arrays that it reads.
    """
    graph, arrays = Graph.of(symbol, casts=True), dict(arrays)
    nodes = [node.content for node in graph.nodes]
    reads = Counter([*graph.heads, *(entry for node in graph.nodes for entry in node.inputs)])
    folded, instead = {}, {}
    for norm in graph.nodes:
        moments_read = any(reads[Entry(norm.index, output)] for output in (1, 2))
        if norm.operator != "BatchNorm" or moments_read:
            continue
        layer, *own = graph.sources(norm)
        if layer.operator != "Convolution" or reads[norm.inputs[0]] > 1 or not _same_axis(layer, norm):
            continue
        values = [arrays[one.name].asnumpy() for one in (*graph.sources(layer)[1:], *own)]
        names = [f"{norm.name}_{norm.index}_folded_{part}" for part in ("weight", "bias")]  # two may have one name
        arrays.update(zip(names, _folded(norm, values)))
        layer.content["inputs"][1:] = [len(nodes), 0, 0], [len(nodes) + 1, 0, 0]
        layer.update(no_bias="False")
        nodes += [{"op": "null", "name": name, "inputs": []} for name in names]
        instead[norm.index], folded[layer.name] = layer.index, norm.name
    heads = [[*head] for head in graph.heads]
    for entry in (*heads, *(entry for node in nodes for entry in node["inputs"])):
        entry[0] = instead.get(entry[0], entry[0])
    made = symbol_of(nodes, heads, graph)
    return PredictionGraph(made, {name: arrays[name] for name in made.list_inputs() if name in arrays}, folded)


def _same_axis(layer: Node, norm: Node) -> bool:
    return norm.integer("axis") == 1 and layer.text("layout") in ("", "NCW", "NCHW", "NCDHW")


def _folded(norm: Node, values: Sequence["np.ndarray"]) -> Tuple[Any, Any]:
    """Weight and bias of the convolution."""
    weight, *bias, gamma, beta, mean, variance = (one.astype(np.float64) for one in values)
    scale = 1 / np.sqrt(variance + norm.real("eps"))
    if not norm.flag("fix_gamma"):
        scale *= gamma
    made = weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), beta + (sum(bias) - mean) * scale
    return tuple(mx.nd.array(one, dtype="float32") for one in made)


def check_processor(precision: str) -> None:
    """Refuse a precision that the processor can only imitate, at a loss of speed, and of digits for int8 (T199).

    Raises:
        ValueError: As said.
    """
    wanted = {"bfloat16": ("avx512_bf16",), "int8": ("avx512_vnni", "avx_vnni")}.get(precision, ())
    if wanted and not processor_flags().intersection(wanted):
        raise ValueError(
            f"{precision} needs a processor with {' or '.join(wanted)}, which {processor_model()} lacks: use "
            "precision='float32'"
        )


def arrays_to_calibrate(
    symbol: Any, arguments: Dict[str, Any], states: Dict[str, Any], float_layers: Collection[str]
) -> Tuple[Any, List[str]]:
    """Return the graph in float32, and the names of the arrays whose ranges must be known to compute it in int8."""
    _, collector = _quantized(symbol, arguments, states, float_layers)
    return symbol.get_backend_symbol("MKLDNN_QUANTIZE"), list(collector.include_layer)


def layers_with_weights(symbol: Any) -> Dict[str, str]:
    """Names of the variables of weights, by the name of the operator that multiplies by them."""
    graph = Graph.of(symbol)
    return {node.name: graph.sources(node)[1].name for node in graph.nodes if "weights" in known(node.operator).facts}


def fused_parts(symbol: Any) -> Dict[str, List[str]]:
    """Names of the operators inside each fused operator, in their order; the last one gives its output."""
    return {
        node.name: [inner.name for inner in part.nodes if not inner.is_variable]
        for node in Graph.of(symbol).nodes
        for part in node.bodies[:1]
    }


def _fails_in_int8(node: Node) -> bool:
    """Whether MXNet's operator in int8 refuses what the one in float32 computes, or ends the process (T298)."""
    over_one_axis = node.operator == "Convolution" and len(node.ints("kernel")) == 1
    pools_sums = node.operator == "Pooling" and node.text("pool_type") in ("sum", "lp")
    return node.operator == "RNN" or over_one_axis or pools_sums


def _quantized(symbol: Any, arguments: Dict[str, Any], states: Dict[str, Any], float_layers: Collection[str]) -> Any:
    from mxnet.contrib import quantization  # it imports scipy.stats

    graph = symbol.get_backend_symbol("MKLDNN_QUANTIZE")
    parts = {name: {name, *inner} for name, inner in fused_parts(graph).items()}
    kept = [name for name, inner in parts.items() if inner.intersection(float_layers)]
    kept += [node.name for node in Graph.of(graph).nodes if _fails_in_int8(node)]
    found, _, _, collector = quantization.quantize_graph(
        graph,
        arguments,
        states,
        excluded_sym_names=kept,
        calib_mode="naive",
        quantized_dtype="auto",
        quantize_mode="smart",
        logger=None,
    )
    return found, collector
