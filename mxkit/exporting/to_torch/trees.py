"""The statements of a class's constructor, for one block, as trees of expressions."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from mxkit.core.replicas import is_trainable, shape_of
from mxkit.exporting.to_torch.forward import Forward, Line
from mxkit.exporting.to_torch.layout import Call, Expression, parse
from mxkit.exporting.to_torch.modules import Module, layer_of
from mxkit.exporting.to_torch.net_steps import Operator, Program
from mxkit.storage.params_format import dtype_name


class Statement(NamedTuple):
    """A line of a constructor.

    Attributes:
        target: The attribute; '' for a call alone.
        value: The expression. The constructor of another class is `Call("@", ...)` with the block's id.
    """

    target: str
    value: Expression


@dataclass(eq=False)
class Instance:
    """A block that becomes an object of a class.

    Attributes:
        module: The block.
        base: The class from which its class derives.
        statements: Of its constructor.
        forward: Its method; None for an nn.Sequential.
        calls: Its method for each call.
        whole: The method of its class, if other objects of the class have more children.
        absent: Expressions in `whole` that call a child that this object does not have.
        elided: Its method if children that other blocks of its class do not have return their argument.
    """

    module: Module
    base: str
    statements: List[Statement]
    forward: Any
    elided: Dict[str, Forward]
    calls: List[Forward]
    whole: Any = None
    absent: Set[str] = field(default_factory=set)

    def lines(self, call: int) -> List[Optional[Line]]:
        """Lines of the class's method with the entries of one call; None where this object has no such child."""
        own = iter(self.calls[call].lines)
        if self.whole is None:
            return list(own)
        return [None if line.expression in self.absent else next(own) for line in self.whole.lines]


def is_numbered(module: Module) -> bool:
    """Whether the children have numbers as names."""
    names = [*module.children, *module.shared]
    return bool(names) and all(name.isdigit() for name in names)


def constructor(program: Program, module: Module) -> Expression:
    """The expression that makes a module inside its parent's constructor."""
    if module.kind == "layer" and module.part is not None:
        return parse(module.part.layer.constructor)
    if module.kind == "sequential":
        return Call("nn.Sequential", entries(program, module))
    if module.kind == "container":
        if is_numbered(module):
            return Call("nn.ModuleList", [("", Call("[", numbered(program, module)))])
        pairs: List[Tuple[str, Expression]] = [
            ("", _pair(name, constructor(program, child))) for name, child in module.children.items()
        ]
        return Call("nn.ModuleDict", [("", Call("OrderedDict", [("", Call("[", pairs))]))])
    return Call("@", [("", str(id(module.block)))])


def _pair(name: str, value: Expression) -> Call:
    return Call("(", [("", f'"{name}"'), ("", value)])


def numbered(program: Program, module: Module) -> List[Tuple[str, Expression]]:
    """Constructors of children by number; a number without a child that is called gets an Identity."""
    count = 1 + max(map(int, [*module.children, *module.shared]))
    return [
        ("", constructor(program, module.children[str(number)]) if str(number) in module.children else "nn.Identity()")
        for number in range(count)
    ]


def entries(program: Program, module: Module) -> List[Tuple[str, Expression]]:
    """Return the arguments of an nn.Sequential: children by number; by name if there are more layers."""
    named: Dict[str, Expression] = {}
    for name in sorted([*module.children, *module.shared], key=int):
        if name in module.shared:
            named[name] = Call("nn.Identity", [])
            continue
        child = module.children[name]
        part = child.part
        for label, operator in beside(child):
            if part and operator in part.before:
                named[f"{name}_{label}"] = _beside(program, operator)
        named[name] = constructor(program, child)
        for label, operator in beside(child):
            if part and operator in part.after:
                named[f"{name}_{label}"] = _beside(program, operator)
    if [*named] == [str(number) for number in range(len(named))]:
        return [("", value) for value in named.values()]
    pairs: List[Tuple[str, Expression]] = [("", _pair(name, value)) for name, value in named.items()]
    return [("", Call("OrderedDict", [("", Call("[", list(pairs)))]))]


def beside(module: Module) -> List[Tuple[str, Operator]]:
    """Return the operators around a layer, with the names that follow the layer's number in an nn.Sequential."""
    found: Dict[str, Operator] = {}
    for operator in [*module.part.before, *module.part.after] if module.part else ():
        label = _LABELS.get(operator.operator, operator.operator.strip("_").lower())
        name, number = label, 2
        while name in found:
            name, number = f"{label}{number}", number + 1
        found[name] = operator
    return list(found.items())


_LABELS = {"Activation": "act", "LeakyReLU": "act", "Flatten": "flatten"}


def _beside(program: Program, operator: Operator) -> Expression:
    found = layer_of(program, operator)
    return parse(found.constructor if found else "nn.Identity()")


def statements(program: Program, module: Module, forward: Any) -> Tuple[str, List[Statement]]:
    """The base class and the constructor's statements of a block that becomes an object of a class."""
    if forward is None:
        return "nn.Sequential", [Statement("", Call("super().__init__", entries(program, module)))]
    own = bool(forward.layers or forward.parameters)
    if is_numbered(module) and not own:
        inner = Call("[", numbered(program, module))
        return "nn.ModuleList", [Statement("", Call("super().__init__", [("", inner)]))]
    lines = [Statement("", Call("super().__init__", []))]
    lines += [_parameter(name, one, is_buffer(program, one)) for name, one in forward.parameters.items()]
    for name, child in module.children.items():
        lines.append(Statement(f"self.{name}", constructor(program, child)))
    lines += [Statement(f"self.{name}", parse(layer.constructor)) for name, layer in forward.layers.items()]
    return "nn.Module", lines


def is_buffer(program: Program, parameter: Any) -> bool:
    """Whether PyTorch does not train a parameter: a constant, or running statistics, which Gluon may not mark."""
    states = set(program.internals.list_auxiliary_states())
    names = [program.names[entry] for entry, one in program.parameters.items() if one is parameter]
    return not is_trainable(parameter) or bool(states.intersection(names))


def _parameter(name: str, parameter: Any, buffer: bool) -> Statement:
    shape: List[Tuple[str, Expression]] = [("", str(size)) for size in shape_of(parameter)] or [("", "()")]
    dtype = dtype_name(parameter.dtype)
    if dtype != "float32":
        shape.append(("dtype", f"torch.{dtype}"))
    zeros = Call("torch.zeros", shape)
    if not buffer:
        return Statement(f"self.{name}", Call("nn.Parameter", [("", zeros)]))
    return Statement("", Call("self.register_buffer", [("", f'"{name}"'), ("", zeros)]))
