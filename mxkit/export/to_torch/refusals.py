"""What cannot leave: collected over the whole net, and raised as one error."""

from typing import Any, NamedTuple, Sequence

from mxkit.core.blocks import place_of
from mxkit.errors import ExportError


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
