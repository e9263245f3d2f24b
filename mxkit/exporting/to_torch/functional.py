"""The table of operators: each of MXNet's as a readable expression of torch."""

import ast
from typing import Dict, List

from mxkit.exporting.to_torch.emitted_helpers import HELPERS
from mxkit.exporting.to_torch.functional_arithmetic import ARITHMETIC
from mxkit.exporting.to_torch.functional_indexing import INDEXING
from mxkit.exporting.to_torch.functional_layers import LAYERS
from mxkit.exporting.to_torch.functional_numpy import NUMPY
from mxkit.exporting.to_torch.functional_pooling import POOLING
from mxkit.exporting.to_torch.functional_reductions import REDUCTIONS
from mxkit.exporting.to_torch.functional_resizing import RESIZING
from mxkit.exporting.to_torch.functional_sequences import SEQUENCES
from mxkit.exporting.to_torch.functional_shapes import SHAPES
from mxkit.exporting.to_torch.node import Conversion, Node
from mxkit.exporting.to_torch.recurrent import check_recurrent
from mxkit.exporting.to_torch.refusals import SUBGRAPHS
from mxkit.runtime.graphs import draws_numbers

EXPRESSIONS: Dict[str, Conversion] = {
    **ARITHMETIC,
    **INDEXING,
    **LAYERS,
    **NUMPY,
    **POOLING,
    **REDUCTIONS,
    **RESIZING,
    **SEQUENCES,
    **SHAPES,
}

# Names that an expression may use and `forward` must then define: `batch_size = x.shape[0]`, `device = x.device`.
FREE_NAMES = ("batch_size", "device")

_REASONS = {
    "Custom": "a custom operator is Python code of its author; write it as a function of torch",
    "RNN": "its parameters must be the net's own; nn.LSTM, nn.GRU and nn.RNN hold them",
    "_contrib_DeformableConvolution": "torch has no such function; torchvision.ops.deform_conv2d has",
    "_contrib_ModulatedDeformableConvolution": "torch has no such function; torchvision.ops.deform_conv2d has",
    "ROIPooling": "torch has no such function; torchvision.ops.roi_pool has",
    **SUBGRAPHS,
}


def expression(node: Node) -> str:
    """Write an operator as an expression of torch over its inputs.

    Args:
        node: The operator.

    Returns:
        The expression; a tuple for several outputs. It uses `torch`, `F` (torch.nn.functional), `self.training`, the
        functions of `helpers_used` and the names of `names_used`. It may name an input twice.

    Raises:
        ExportError: There is no equivalent; the text names the operator and the reason.
    """
    convert = EXPRESSIONS.get(node.operator)
    if convert is not None:
        return convert(node)
    if node.operator == "RNN":
        check_recurrent(node)
    if draws_numbers(node.operator, node.attrs):
        raise node.refused("it draws random numbers, which no other library draws alike")
    raise node.refused(_REASONS.get(node.operator, "mxkit knows no equivalent"))


def helpers_used(code: str) -> List[str]:
    """List the helpers that an expression needs, by their name in HELPERS; one that calls another stands after it."""
    calls = (node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    needed = {name for name in HELPERS if name in names and f"def {name}(" not in code}
    for name in list(needed):
        needed.update(helpers_used(HELPERS[name]))
    return [name for name in HELPERS if name in needed]


def names_used(code: str) -> List[str]:
    """List which of FREE_NAMES an expression reads."""
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return [name for name in FREE_NAMES if name in names]


__all__ = ["EXPRESSIONS", "FREE_NAMES", "HELPERS", "expression", "helpers_used", "names_used"]
