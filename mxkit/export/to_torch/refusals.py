"""What cannot leave: collected over the whole net, and raised as one error."""

from typing import Any, NamedTuple, Sequence

from mxkit.core.blocks import place_of
from mxkit.errors import ExportError

# Operators over graphs of their own, of which MXNet may not even tell the shapes
SUBGRAPHS = {
    "_foreach": "a loop over a subgraph; write it as a loop in forward",
    "_while_loop": "a loop over a subgraph; write it as a loop in forward",
    "_cond": "a condition over subgraphs; write it as an if in forward",
}


class Problem(NamedTuple):
    """What cannot leave, and where."""

    path: str
    block: Any
    operator: str
    reason: str


def refuse(problems: Sequence[Problem]) -> None:
    """Raise one ExportError for all problems."""
    if not problems:
        return
    lines = "\n".join(f"  {place_of(one.path, one.block)}: {one.operator}: {one.reason}" for one in problems)
    raise ExportError(
        f"export: the net has {len(problems)} operators without an equivalent in PyTorch; nothing was written:\n{lines}"
    )
