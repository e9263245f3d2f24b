"""Names and types of arguments and results in the code of a forward pass."""

import inspect
import re
from typing import Any, Dict, List, Optional, Set

from mxkit.core.blocks import own_parameters
from mxkit.core.graphs import traced_graph
from mxkit.exporting.to_torch.identifiers import identifier
from mxkit.exporting.to_torch.net_steps import Entry, flat
from mxnet import gluon


def annotation(value: Any) -> str:
    """Return the type of an argument or a result."""
    if value is None:
        return "None"
    return "list[Tensor]" if type(value) is list else "Tensor"


def pattern(nested: Any, names: Dict[Entry, str], live: Optional[Set[Entry]] = None) -> str:
    """Return the assignment target that unpacks nested results; unused results become "_"."""
    left = set(flat(nested)) if live is None else set(live)

    def part(value: Any) -> str:
        if type(value) is list and left.intersection(flat(value)):
            return f"({', '.join(map(part, value))}{',' * (len(value) == 1)})"
        if type(value) is list or value not in left:
            return "_"
        left.discard(value)
        return names[value]

    if type(nested) is not list:
        return part(nested)
    return ", ".join(map(part, nested)) + "," * (len(nested) == 1)


def argument_names(block: Any, count: int) -> List[str]:
    """Return the names of a block's arguments in its code."""
    found: List[str] = []
    if isinstance(block, gluon.SymbolBlock):
        for variable in traced_graph(block)[0]:
            found.append(identifier(re.sub(r"^data(?=\d*$)", "x", variable.name), set(found)))
        return found
    hybrid = isinstance(block, gluon.HybridBlock) and type(block).forward is gluon.HybridBlock.forward
    method = block.hybrid_forward if hybrid else block.forward
    own = own_parameters(block)
    for name, one in list(inspect.signature(method).parameters.items())[hybrid:]:
        if one.kind is one.VAR_POSITIONAL:
            found += [f"{name.rstrip('s')}{number}" for number in range(count - len(found))]
        elif one.kind is not one.VAR_KEYWORD and name not in own:
            found.append(name)
    found = [identifier(name, set()) for name in found[:count]]
    return found if len(found) == count else [f"x{number}" for number in range(count)]
