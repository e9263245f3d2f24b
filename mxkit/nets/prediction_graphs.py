"""Graphs for prediction, made of a net's float32 graph by MXNet: fused by oneDNN, in bfloat16, or in int8."""

import json
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Tuple

from mxkit.runtime.machine import processor_flags, processor_model

PRECISIONS = ("float32", "bfloat16", "int8")
_WITH_WEIGHTS = ("Convolution", "FullyConnected", "Deconvolution")  # layers of mx.np have the same operators


class Settings(NamedTuple):
    """How a float32 graph becomes one for prediction.

    Attributes:
        precision: One of `PRECISIONS`.
        float_layers: Names of operators in the float32 graph that stay float32.
        thresholds: For int8: the smallest and the largest number of each array that becomes int8, by its name.
        joined: For float32: whether oneDNN computes several operators at once.
    """

    precision: str = "float32"
    float_layers: Tuple[str, ...] = ()
    thresholds: Mapping[str, Tuple[float, float]] = {}
    joined: bool = True


class PredictionGraph(NamedTuple):
    """A graph with its arrays, by the names of its inputs."""

    symbol: Any
    arrays: Dict[str, Any]


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

        # not fused: oneDNN rounds the weights once more when it multiplies BatchNorm into them (T198)
        symbol, arguments, states = amp.convert_model(
            symbol,
            dict(arguments),  # it writes into these
            dict(states),
            target_dtype="bfloat16",
            excluded_sym_names=list(settings.float_layers),
            cast_optional_params=True,
        )
        return PredictionGraph(symbol, {**arguments, **states})
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
    """Return a graph in float32, and the names of its arrays whose ranges a graph in int8 needs."""
    _, collector = _quantized(symbol, arguments, states, float_layers)
    return symbol.get_backend_symbol("MKLDNN_QUANTIZE"), list(collector.include_layer)


def layers_with_weights(symbol: Any) -> Dict[str, str]:
    """Names of the variables of weights, by the name of the operator that multiplies by them."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return {node["name"]: nodes[node["inputs"][1][0]]["name"] for node in nodes if node["op"] in _WITH_WEIGHTS}


def fused_parts(symbol: Any) -> Dict[str, List[str]]:
    """Names of the operators inside each fused operator, in their order; the last one gives its output."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return {
        node["name"]: [inner["name"] for inner in part["nodes"] if inner["op"] != "null"]
        for node in nodes
        for part in node.get("subgraphs", ())[:1]
    }


def _quantized(symbol: Any, arguments: Dict[str, Any], states: Dict[str, Any], float_layers: Collection[str]) -> Any:
    from mxnet.contrib import quantization  # it imports scipy.stats

    graph = symbol.get_backend_symbol("MKLDNN_QUANTIZE")
    parts = {name: {name, *inner} for name, inner in fused_parts(graph).items()}
    kept = [name for name, inner in parts.items() if inner.intersection(float_layers)]
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
