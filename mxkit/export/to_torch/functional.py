"""Stand-in: a few operators as expressions; the table of operators replaces it."""

from ast import literal_eval
from typing import Any

from mxkit.errors import ExportError
from mxkit.export.to_torch.node import Node


def expression(node: Node) -> str:
    """A Python expression for an operator."""
    first = node.inputs[0] if node.inputs else ""
    attrs = node.attrs

    def get(name: str, default: Any) -> Any:
        return literal_eval(attrs[name]) if name in attrs else default

    kind = node.operator
    if kind == "Activation":
        return f"{ {'relu': 'F.relu', 'sigmoid': 'torch.sigmoid', 'tanh': 'torch.tanh'}[attrs['act_type']]}({first})"
    if kind in ("elemwise_add", "broadcast_add", "_npi_add"):
        return f"{first} + {node.inputs[1]}"
    if kind in ("elemwise_mul", "broadcast_mul"):
        return f"{first} * {node.inputs[1]}"
    if kind == "_mul_scalar":
        return f"{first} * {get('scalar', 1.0):g}"
    if kind == "Flatten":
        return f"{first}.flatten(1)"
    if kind == "Dropout":
        return f"F.dropout({first}, {get('p', 0.5)}, self.training)"
    if kind == "SliceChannel":
        return f"torch.chunk({first}, {get('num_outputs', 1)}, {get('axis', 1)})"
    if kind == "Concat":
        return f"torch.cat([{', '.join(node.inputs)}], {get('dim', 1)})"
    if kind == "FullyConnected":
        x = f"{first}.flatten(1)" if get("flatten", True) and len(node.shapes[0]) > 2 else first
        return f"F.linear({', '.join([x, *node.inputs[1:]])})"
    raise ExportError(f"{node.operator} has no equivalent in PyTorch")


from typing import Dict, List
HELPERS: Dict[str, str] = {}
def helpers_used(code: str) -> List[str]: return []
def names_used(code: str) -> List[str]: return []
