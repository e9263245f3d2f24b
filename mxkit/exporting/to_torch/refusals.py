"""Raises one error for all operators of a net that cannot be converted."""

from typing import Any, NamedTuple, Sequence

from mxkit.core.blocks import place_of
from mxkit.errors import ExportError

# Operators over subgraphs; MXNet may be unable to infer their shapes
SUBGRAPHS = {
    "_foreach": "a loop over a subgraph; write it as a loop in forward",
    "_while_loop": "a loop over a subgraph; write it as a loop in forward",
    "_cond": "a condition over subgraphs; write it as an if in forward",
}


class Problem(NamedTuple):
    """An operator that cannot be converted, the path and block that use it, and the reason."""

    path: str
    block: Any
    operator: str
    reason: str


def refuse(problems: Sequence[Problem]) -> None:
    """Raise one ExportError for all problems, each once."""
    problems = list({(one.path, one.operator, one.reason): one for one in problems}.values())
    if not problems:
        return
    lines = "\n".join(f"  {place_of(one.path, one.block)}: {one.operator}: {one.reason}" for one in problems)
    raise ExportError(
        f"export: the net has {len(problems)} operators without an equivalent in PyTorch; nothing was written:\n{lines}"
    )
