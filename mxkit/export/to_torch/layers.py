"""Stand-in: a few layers of torch.nn; the table of layers replaces it."""

from ast import literal_eval
from typing import Any, Dict, Optional

from mxkit.export.to_torch.node import Layer, Node
import numpy as np


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def layer(node: Node) -> Optional[Layer]:
    """A module of torch.nn for an operator, or None."""
    attrs, kind = node.attrs, node.operator

    def get(name: str, default: Any) -> Any:
        value = attrs.get(name)
        if value in ("True", "False"):
            return value == "True"
        return default if value is None else literal_eval(value)

    state: Dict[str, Any] = {}
    if kind == "Convolution":
        text = [f"{node.shapes[0][1]}", f"{get('num_filter', 0)}", f"kernel_size={_one(get('kernel', ()))}"]
        for name, own, default in (("stride", "stride", 1), ("pad", "padding", 0), ("num_group", "groups", 1)):
            value = _one(get(name, default))
            text += [f"{own}={value}"] * (value != default)
        state["weight"] = node.values[1]
        if get("no_bias", False):
            text.append("bias=False")
        else:
            state["bias"] = node.values[2]
        return Layer(f"nn.Conv2d({', '.join(text)})", state)
    if kind == "FullyConnected" and (len(node.shapes[0]) == 2 or not get("flatten", True)):
        bias = len(node.values) > 2
        state = {"weight": node.values[1], **({"bias": node.values[2]} if bias else {})}
        units, size = node.shapes[1]
        return Layer(f"nn.Linear({size}, {units}{'' if bias else ', bias=False'})", state)
    if kind == "BatchNorm":
        gamma = node.values[1]
        state = dict(zip(("weight", "bias", "running_mean", "running_var"), node.values[1:]))
        if get("fix_gamma", True):
            state["weight"] = np.ones_like(gamma)
        momentum = round(1 - get("momentum", 0.9), 10)
        more = f", momentum={momentum}" if momentum != 0.1 else ""
        return Layer(f"nn.BatchNorm2d({node.shapes[1][0]}, eps={get('eps', 1e-3):g}{more})", state)
    if kind == "Activation":
        return Layer({"relu": "nn.ReLU()", "sigmoid": "nn.Sigmoid()", "tanh": "nn.Tanh()"}[attrs["act_type"]], {})
    if kind == "Flatten":
        return Layer("nn.Flatten()", {})
    if kind == "Dropout":
        return Layer(f"nn.Dropout({get('p', 0.5)})", {})
    if kind == "Pooling":
        if get("global_pool", False):
            return Layer("nn.AdaptiveAvgPool2d(1)", {})
        name = {"max": "MaxPool2d", "avg": "AvgPool2d"}[attrs["pool_type"]]
        pad = _one(get("pad", 0))
        more = f", padding={pad}" if pad else ""
        return Layer(f"nn.{name}({_one(get('kernel', ()))}, stride={_one(get('stride', 1))}{more})", {})
    return None
