"""MXNet's fused RNN as nn.LSTM, nn.GRU or nn.RNN."""

from typing import Any, Dict, List, Optional

from mxkit.exporting.to_torch.expression_parts import options
from mxkit.exporting.to_torch.node import Layer, Node
import numpy as np

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def recurrent(node: Node) -> Optional[Layer]:
    """Write a fused RNN, whose parameters are one flat vector, as a module.

    Time is the first dimension, as in MXNet. torch returns `y, (h, c)` of an LSTM and `y, h` of the others, and takes
    `(h, c)` or `h` as the second argument; without it, the first states are zeros.
    """
    mode = node.text("mode")
    check_recurrent(node)
    if node.values[1] is None:
        return None
    width, layers = node.integer("state_size") or 0, node.integer("num_layers") or 0
    both = node.flag("bidirectional")
    rate = node.number("p", 0)
    extra = options(
        num_layers=layers if layers > 1 else None,
        nonlinearity='"relu"' if mode == "rnn_relu" else None,
        dropout=rate if rate and layers > 1 else None,
        bidirectional="True" if both else None,
    )
    name = {"lstm": "LSTM", "gru": "GRU"}.get(mode, "RNN")
    columns = node.shapes[0][2]
    state = unpacked(np.asarray(node.values[1]).reshape(-1), _GATES[mode], columns, width, layers, 2 if both else 1)
    return Layer(f"nn.{name}({columns}, {width}{extra})", state)


def check_recurrent(node: Node) -> None:
    """Refuse what torch's modules do not compute."""
    mode = node.text("mode")
    if mode not in _GATES:
        raise node.refused(f"mode={mode} is unknown; expected one of {', '.join(_GATES)}")
    if node.integer("projection_size"):
        raise node.refused("projection_size; MXNet computes it on a GPU alone")
    if node.flag("use_sequence_length"):
        raise node.refused("use_sequence_length=True; pack the sequences with torch.nn.utils.rnn")
    if any(node.text(f"lstm_state_clip_{end}") for end in ("min", "max")):
        raise node.refused("lstm_state_clip_min and lstm_state_clip_max; torch does not clip states")


def unpacked(flat: Any, gates: int, columns: int, width: int, layers: int, directions: int) -> Dict[str, Any]:
    """Cut the flat vector of a fused RNN into torch's parameters.

    Weights of all layers stand first, then the biases; in each layer the forward direction before the backward one,
    and the input's part before the state's. The gates' order is torch's.
    """
    state: Dict[str, Any] = {}
    at = 0

    def cut(*shape: int) -> Any:
        nonlocal at
        at += int(np.prod(shape))
        return flat[at - int(np.prod(shape)) : at].reshape(shape)

    endings: List[str] = [f"l{level}{end}" for level in range(layers) for end in ("", "_reverse")[:directions]]
    for ending in endings:
        inside = columns if ending.startswith("l0") else width * directions
        state[f"weight_ih_{ending}"] = cut(gates * width, inside)
        state[f"weight_hh_{ending}"] = cut(gates * width, width)
    for ending in endings:
        state[f"bias_ih_{ending}"] = cut(gates * width)
        state[f"bias_hh_{ending}"] = cut(gates * width)
    if at != len(flat):
        raise ValueError(f"a fused RNN of {at} parameters, received {len(flat)}")
    return state
