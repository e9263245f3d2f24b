"""Writes blocks and parameters that a net has at two paths: both attributes refer to one module or tensor."""

from typing import Any, Dict, Iterator, List, Sequence, Tuple

from mxkit.exporting.to_torch.layout import Call
from mxkit.exporting.to_torch.modules import Module, layer_of
from mxkit.exporting.to_torch.net_steps import Operator, Program
from mxkit.exporting.to_torch.trees import Instance, Statement


def shared_statements(program: Program, root: Module, instances: Sequence[Instance]) -> List[Statement]:
    """Return the last statements of the net's constructor."""
    found = []
    for module in root.walk():
        for name, target in module.shared.items():
            found.append(_shared_block(module.target, name, target))
    first: Dict[int, str] = {}
    for key, parameter in _keys(program, root, instances):
        if id(parameter) in first:
            prefix, _, name = key.rpartition(".")
            before, _, own = first[id(parameter)].rpartition(".")
            found.append(Statement(f"{_access(prefix)}.{name}", f"{_access(before)}.{own}"))
        first.setdefault(id(parameter), key)
    return found


def _shared_block(parent: str, name: str, target: str) -> Statement:
    if not parent and not name.isdigit():
        return Statement(f"self.{name}", _access(target))
    return Statement("", Call(f"{_access(parent)}.register_module", [("", f'"{name}"'), ("", _access(target))]))


def _access(target: str) -> str:
    """Return an expression for a module inside the net."""
    if not target:
        return "self"
    return f"self.{target}" if target.isidentifier() else f'self.get_submodule("{target}")'


def operators_of(root: Module, instances: Sequence[Instance]) -> Iterator[Tuple[str, Operator]]:
    """Yield the paths of layers with parameters, and their operators."""
    forwards: Dict[str, Any] = {one.module.target: one.forward for one in instances}
    for module in root.walk():
        if module.part is not None and module.part.core is not None and module.part.layer.state:
            yield module.target, module.part.core
        forward: Any = forwards.get(module.target)
        for name, operator in forward.operators.items() if forward else ():
            if forward.layers[name].state:
                yield (f"{module.target}.{name}" if module.target else name), operator


def _keys(program: Program, root: Module, instances: Sequence[Instance]) -> Iterator[Tuple[str, Any]]:
    """Yield the keys of `state_dict` whose value is that of a Parameter, and the Parameter."""
    values = {id(one): program.value(entry) for entry, one in program.parameters.items()}
    owners = {id(values[id(one)]): one for one in program.parameters.values()}
    for target, operator in operators_of(root, instances):
        layer = layer_of(program, operator, values=values)
        for name, value in layer.state.items() if layer else ():
            if id(value) in owners:
                yield f"{target}.{name}", owners[id(value)]
    for one in instances:
        for name, parameter in one.forward.parameters.items() if one.forward else ():
            yield (f"{one.module.target}.{name}" if one.module.target else name), parameter
