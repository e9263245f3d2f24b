"""Conversion of the fused recurrent operator, whose weights are one flat vector."""

from typing import Any, Dict, List, NamedTuple

from mxkit.exporting.to_onnx.onnx_writer import Operator, Writer, converts, integers
import numpy as np

# Order of MXNet's gates by ONNX's: i, o, f, c of MXNet's i, f, c, o; z, r, n of r, z, n
_GATES = {"lstm": [0, 3, 1, 2], "gru": [1, 0, 2], "rnn_tanh": [0], "rnn_relu": [0]}
_KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


class _Sizes(NamedTuple):
    mode: str
    width: int
    layers: int
    directions: int
    channels: int


@converts("RNN")
def recurrent(operator: Operator, writer: Writer) -> List[str]:
    operator.refuse(
        (operator.get("projection_size"), "projection_size"),
        (operator.get("lstm_state_clip_min") is not None, "lstm_state_clip_min"),
        (operator.get("lstm_state_clip_max") is not None, "lstm_state_clip_max"),
    )
    data, flat, *more = operator.inputs
    directions = 2 if operator.flag("bidirectional") else 1
    layers = operator.integer("num_layers")
    sizes = _Sizes(operator.get("mode"), operator.integer("state_size"), layers, directions, data.size(2))
    states, more = (more[:2], more[2:]) if sizes.mode == "lstm" else (more[:1], more[1:])
    lengths: Any = ""
    if operator.flag("use_sequence_length"):
        lengths = writer.cast(more[0], np.int32)
    made: Any = data
    last: List[List[str]] = []
    time, batch = data.dims[:2]
    for layer in range(layers):
        weights = _weights(flat, layer, sizes, writer)
        begin, end = layer * directions, (layer + 1) * directions
        initial = [writer.slice(state, begin, end, 0) for state in states]
        computed = _layer(made, weights, lengths, initial, sizes, writer)
        made = writer.reshape(writer.transpose(computed[0], 0, 2, 1, 3), (time, batch, directions * sizes.width))
        last.append(computed[1:])
    joined = [writer.op("Concat", *parts, axis=0) for parts in zip(*last)]
    return [made, *joined][: len(operator.outputs)]


def _layer(data: Any, weights: List[str], lengths: Any, initial: List[str], sizes: _Sizes, writer: Writer) -> List[str]:
    attributes: Dict[str, Any] = {
        "hidden_size": sizes.width,
        "direction": "bidirectional" if sizes.directions == 2 else "forward",
    }
    if sizes.mode == "gru":
        attributes["linear_before_reset"] = 1  # MXNet applies the reset after the product
    if sizes.mode == "rnn_relu":
        attributes["activations"] = ["Relu"] * sizes.directions
    return writer.ops(_KINDS[sizes.mode], 1 + len(initial), data, *weights, lengths, *initial, **attributes)


def _weights(flat: Any, layer: int, sizes: _Sizes, writer: Writer) -> List[str]:
    """Write W, R and B of a layer, cut out of the vector: weights of all layers first, then all biases."""
    rows = len(_GATES[sizes.mode]) * sizes.width
    above = sizes.width * sizes.directions
    inputs = [sizes.channels if number == 0 else above for number in range(sizes.layers)]
    start = sum(rows * (size + sizes.width) * sizes.directions for size in inputs[:layer])
    biases = sum(rows * (size + sizes.width) * sizes.directions for size in inputs)
    biases += 2 * rows * sizes.directions * layer
    parts: List[List[str]] = [[], [], []]
    for _ in range(sizes.directions):
        for kind, columns in enumerate((inputs[layer], sizes.width)):
            parts[kind].append(_matrix(flat, start, columns, sizes, writer))
            start += rows * columns
        bias = [_matrix(flat, biases + offset, 1, sizes, writer) for offset in (0, rows)]
        parts[2].append(writer.op("Reshape", writer.op("Concat", *bias, axis=1), integers(1, -1)))
        biases += 2 * rows
    return [writer.op("Concat", *part, axis=0) if len(part) > 1 else part[0] for part in parts]


def _matrix(flat: Any, start: int, columns: int, sizes: _Sizes, writer: Writer) -> str:
    gates = _GATES[sizes.mode]
    cut = writer.slice(flat, start, start + len(gates) * sizes.width * columns, 0)
    made = writer.reshape(cut, (len(gates), sizes.width, columns))
    made = writer.op("Gather", made, integers(*gates), axis=0) if len(gates) > 1 else made
    return writer.reshape(made, (1, len(gates) * sizes.width, columns))
