"""Classes of the file: blocks of one type with one forward pass share a class; what differs becomes an argument."""

from ast import literal_eval
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxkit.core.replicas import is_trainable, shape_of
from mxkit.exporting.to_torch.expressions import Argument, Call
from mxkit.exporting.to_torch.forward import Forward, Line
from mxkit.exporting.to_torch.modules import Module, layer_of
from mxkit.exporting.to_torch.program import Operator, Program
from mxkit.storage.params_format import dtype_name

_Expression = Union[str, Call]


class Statement(NamedTuple):
    """A line of a constructor: an attribute and its value; the attribute is '' for a call alone."""

    target: str
    value: _Expression


@dataclass(eq=False)
class Instance:
    """A block that becomes an object of a class.

    Attributes:
        module: The block.
        base: The class from which its class derives.
        statements: Of its constructor.
        forward: Its method; None for an nn.Sequential.
        calls: Its method for each call.
        owner: Its class.
        given: The arguments with which the class makes it.
    """

    module: Module
    base: str
    statements: List[Statement]
    forward: Optional[Forward]
    calls: List[Forward]
    owner: Any = None
    given: Dict[str, str] = field(default_factory=dict)

    def lacks(self, line: Line) -> bool:
        """Whether a line of the class's method calls a child that this object does not have."""
        missing = [child for child in self.owner.optional if child not in self.module.children]
        return any(_calls_only(line, child) for child in missing)

    def lines(self, call: int) -> List[Optional[Line]]:
        """Lines of the class's method with the entries of one call; None where this object has no such child."""
        own = iter(self.calls[call].lines)
        return [None if self.lacks(line) else next(own) for line in self.owner.forward.lines]


@dataclass(eq=False)
class Class:
    """A class of the generated file.

    Attributes:
        base: The class that it derives from.
        forward: Its method `forward`, or None.
        instances: Its objects.
        optional: Children that only some of its objects have.
        name: Its name.
        arguments: Of its constructor, by name: their values in all objects, None where an object needs none.
        defaults: Of the arguments that have one.
        statements: Of its constructor, with the arguments' names.
    """

    base: str
    forward: Optional[Forward]
    instances: List[Instance] = field(default_factory=list)
    optional: List[str] = field(default_factory=list)
    name: str = ""
    arguments: Dict[str, List[Optional[str]]] = field(default_factory=dict)
    defaults: Dict[str, str] = field(default_factory=dict)
    statements: List[Statement] = field(default_factory=list)

    def signature(self) -> List[str]:
        """The arguments of the constructor: those with a default come last."""
        return [
            f"{name}: {_annotation(self.arguments[name])}"
            + (f" = {self.defaults[name]}" if name in self.defaults else "")
            for name in self.order()
        ]

    def order(self) -> List[str]:
        """Names of the arguments in the constructor's order."""
        return sorted(self.arguments, key=lambda name: (name in self.defaults, name in self.optional))


def classes_of(instances: Sequence[Instance], root: str) -> List[Class]:
    """Group blocks into classes.

    Args:
        instances: Blocks, inner ones before those that contain them.
        root: Name of the net's class.

    Returns:
        Classes, each after those that it uses.
    """
    return _Grouping(instances).classes(root)


class _Grouping:
    def __init__(self, instances: Sequence[Instance]) -> None:
        self._by_target = {one.module.target: one for one in instances}
        self._by_key: Dict[str, Class] = {}
        self._done: List[Class] = []
        self._names: Set[str] = set()
        for instance in instances:
            key = self._key(instance, instance.forward.text() if instance.forward else "", instance.statements)
            instance.owner = self._by_key.setdefault(key, Class(instance.base, instance.forward))
            instance.owner.instances.append(instance)
        for whole in list(self._by_key.values()):
            for child in sorted(whole.instances[0].module.children) if whole.base == "nn.Module" else ():
                self._merge(whole, child)

    def classes(self, root: str) -> List[Class]:
        net = self._by_target[""].owner
        net.name = root
        self._names.add(root)
        self._finish(net)
        return self._done

    def _key(self, instance: Instance, forward: str, statements: Sequence[Statement]) -> str:
        """Return a text that is equal for blocks that can share a class."""
        name = type(instance.module.block).__name__ if instance.module.target else ""
        lines = [f"{line.target} = {self._skeleton(line.value)}" for line in statements]
        return "\n".join([name, instance.base, *lines, forward])

    def _skeleton(self, value: _Expression) -> str:
        """Write an expression without its literals."""
        if isinstance(value, str):
            return "_" if _is_literal(value) else value
        if value.function == "@":
            return f"@{id(self._object(value).owner)}"
        return f"{value.function}({', '.join(f'{one.name}={self._skeleton(one.value)}' for one in value.arguments)})"

    def _object(self, value: Call) -> Instance:
        return self._by_target[str(value.arguments[0].value)]

    def _merge(self, whole: Class, child: str) -> None:
        """Let blocks without a child, like a residual block's `downsample`, use the class of those that have it."""
        first, forward = whole.instances[0], whole.instances[0].calls[0]
        lines = [line for line in forward.lines if not _calls_only(line, child)]
        rest = [line for line in first.statements if line.target != f"self.{child}"]
        key = self._key(first, forward._replace(lines=lines).text(), rest)
        other = self._by_key.get(key)
        if len(lines) == len(forward.lines) or other is None or other.optional or whole.optional:
            return
        whole.optional.append(child)
        whole.instances = sorted(whole.instances + other.instances, key=lambda one: one.module.scopes[0].number)
        for instance in other.instances:
            instance.owner = self._by_key[key] = whole

    def _finish(self, one: Class) -> None:
        """Name a class, find its arguments and write its constructor with them, after those of the classes it uses."""
        rows = list(self._rows(one))
        one.name = one.name or self._free_name(one.instances[0].module.block)
        for child in one.optional:
            one.arguments[child] = [str(child in instance.module.children) for instance in one.instances]
            one.defaults[child] = "False"
        unify = _Arguments(one)
        one.statements = [Statement(target, unify.value(column, target, Argument("", ""))) for target, column in rows]
        for number, instance in enumerate(one.instances):
            instance.given = {
                name: column[number] or one.defaults.get(name) or next(filter(None, column))
                for name, column in one.arguments.items()
            }
        self._done.append(one)

    def _rows(self, one: Class) -> Iterator[Tuple[str, List[Optional[_Expression]]]]:
        """Yield the target of each statement, and its value in each object; None where an object has no such child."""
        own = [iter(instance.statements) for instance in one.instances]
        whole = max((instance.statements for instance in one.instances), key=len)
        for target, _ in whole:
            child = target.partition(".")[2]
            yield (
                target,
                [
                    self._resolved(next(rest).value)
                    if child not in one.optional or child in instance.module.children
                    else None
                    for rest, instance in zip(own, one.instances)
                ],
            )

    def _resolved(self, value: _Expression) -> _Expression:
        """Write the constructors of objects by the names and arguments of their classes."""
        if isinstance(value, str):
            return value
        if value.function != "@":
            parts = [part._replace(value=self._resolved(part.value)) for part in value.arguments]
            return Call(value.function, tuple(parts))
        instance = self._object(value)
        owner = instance.owner
        if owner not in self._done:
            self._finish(owner)
        given = [Argument(name, instance.given[name], owner.defaults.get(name)) for name in owner.order()]
        return Call(owner.name, tuple(given))

    def _free_name(self, block: Any) -> str:
        stem = type(block).__name__.lstrip("_")
        stem = name = stem[:1].upper() + stem[1:]
        number = 2
        while name in self._names:
            name, number = f"{stem}{number}", number + 1
        self._names.add(name)
        return name


class _Arguments:
    """Replaces the literals in which the objects of a class differ by arguments of the class."""

    def __init__(self, owner: Class) -> None:
        self._owner = owner

    def value(self, column: List[Optional[_Expression]], target: str, argument: Argument) -> _Expression:
        """Write the value that stands in one place of the constructors of all objects.

        Args:
            column: The value of each object.
            target: The attribute in whose value they stand.
            argument: The argument whose value they are.
        """
        present = [value for value in column if value is not None]
        first = present[0]
        if isinstance(first, Call):
            parts = []
            for number, part in enumerate(first.arguments):
                inner = [one.arguments[number] if isinstance(one, Call) else None for one in column]
                defaults = {one.default for one in inner if one is not None}
                part = part if len(defaults) == 1 else part._replace(default="")
                values = [None if one is None else one.value for one in inner]
                parts.append(part._replace(value=self.value(values, target, part)))
            return Call(first.function, tuple(parts))
        texts = [None if value is None else str(value) for value in column]
        known = self._owner.arguments.get(argument.name, [])
        is_known = None in texts and bool(known) and all(text in (None, own) for text, own in zip(texts, known))
        if not _is_literal(first) or (len(set(present)) == 1 and not is_known):
            return first
        return self._name(texts, target, argument)

    def _name(self, column: List[Optional[str]], target: str, argument: Argument) -> str:
        owner, hint = self._owner, argument.name or "size"
        for name, other in owner.arguments.items():
            pairs = [(one, two) for one, two in zip(column, other) if one is not None and two is not None]
            if pairs and all(one == two for one, two in pairs):
                owner.arguments[name] = [two if one is None else one for one, two in zip(column, other)]
                return name
        place = target.rpartition(".")[2]
        names = [hint, *(["out_channels"] if hint == "channels" else []), *([f"{place}_{hint}"] if place else [])]
        names += [f"{hint}{number}" for number in range(2, len(owner.arguments) + 3)]
        name = next(one for one in names if one not in owner.arguments)
        owner.arguments[name] = column
        if argument.default:
            texts = [text for text in column if text is not None]
            default = argument.default
            owner.defaults[name] = default if default in texts else Counter(texts).most_common(1)[0][0]
        return name


def _calls_only(line: Line, child: str) -> bool:
    """Whether a line is `x = self.child(x)`, so that it can be left out."""
    return line.expression == f"self.{child}({line.target})"


def _is_literal(text: str) -> bool:
    """Whether a text is a number, True, False, None or a tuple of them."""
    try:
        return not isinstance(literal_eval(text), str)
    except (ValueError, SyntaxError):
        return False


def _annotation(texts: Sequence[Optional[str]]) -> str:
    kinds = set()
    for value in (literal_eval(text) for text in texts if text is not None):
        inner = f"[{', '.join(type(part).__name__ for part in value)}]" if type(value) is tuple else ""
        kinds.add(f"{type(value).__name__}{inner}")
    return " | ".join(sorted(kinds))


def statements(program: Program, module: Module, forward: Optional[Forward]) -> Tuple[str, List[Statement]]:
    """Return the base class and the constructor's statements of a block that becomes an object of a class."""
    if forward is None:
        return "nn.Sequential", [Statement("", Call("super().__init__", _entries(program, module)))]
    if _is_numbered(module) and not forward.layers and not forward.parameters:
        inner = Argument("", Call("[", _numbered(program, module)))
        return "nn.ModuleList", [Statement("", Call("super().__init__", (inner,)))]
    lines = [Statement("", Call("super().__init__", ()))]
    lines += [_parameter(name, one, is_buffer(program, one)) for name, one in forward.parameters.items()]
    lines += [Statement(f"self.{name}", _constructor(program, child)) for name, child in module.children.items()]
    lines += [Statement(f"self.{name}", layer.constructor) for name, (layer, _) in forward.layers.items()]
    return "nn.Module", lines


def _is_numbered(module: Module) -> bool:
    names = [*module.children, *module.shared]
    return bool(names) and all(name.isdigit() for name in names)


def _constructor(program: Program, module: Module) -> Call:
    """Return the expression that makes a module inside its parent's constructor."""
    if module.kind == "layer" and module.part is not None:
        return module.part.layer.constructor
    if module.kind == "sequential":
        return Call("nn.Sequential", _entries(program, module))
    if module.kind == "class":
        return Call("@", (Argument("", module.target),))
    if _is_numbered(module):
        return Call("nn.ModuleList", (Argument("", Call("[", _numbered(program, module))),))
    named = {name: _constructor(program, child) for name, child in module.children.items()}
    return Call("nn.ModuleDict", (Argument("", _ordered(named)),))


def _ordered(named: Dict[str, Call]) -> Call:
    pairs = [Call("", (Argument("", f'"{name}"'), Argument("", value))) for name, value in named.items()]
    return Call("OrderedDict", (Argument("", Call("[", tuple(Argument("", pair) for pair in pairs))),))


def _numbered(program: Program, module: Module) -> Tuple[Argument, ...]:
    """Return constructors of children by number; a number without a child that is called gets an Identity."""
    children = {int(name): _constructor(program, child) for name, child in module.children.items()}
    count = 1 + max(map(int, [*module.children, *module.shared]))
    return tuple(Argument("", children.get(number, Call("nn.Identity", ()))) for number in range(count))


def _entries(program: Program, module: Module) -> Tuple[Argument, ...]:
    """Return the arguments of an nn.Sequential: children by number; by name if there are more layers."""
    named: Dict[str, Call] = {}
    for name in sorted([*module.children, *module.shared], key=int):
        child = module.children.get(name)
        if child is None:
            named[name] = Call("nn.Identity", ())
            continue
        around = [(f"{name}_{label}", operator) for label, operator in beside(child)]
        count = len(child.part.before) if child.part else 0
        named.update((label, _beside(program, operator)) for label, operator in around[:count])
        named[name] = _constructor(program, child)
        named.update((label, _beside(program, operator)) for label, operator in around[count:])
    if [*named] == [str(number) for number in range(len(named))]:
        return tuple(Argument("", value) for value in named.values())
    return (Argument("", _ordered(named)),)


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


def _beside(program: Program, operator: Operator) -> Call:
    found = layer_of(program, operator)
    return found.constructor if found else Call("nn.Identity", ())


def is_buffer(program: Program, parameter: Any) -> bool:
    """Whether PyTorch does not train a parameter: a constant, or running statistics, which Gluon may not mark."""
    states = set(program.internals.list_auxiliary_states())
    names = [program.names[entry] for entry, one in program.parameters.items() if one is parameter]
    return not is_trainable(parameter) or bool(states.intersection(names))


def _parameter(name: str, parameter: Any, buffer: bool) -> Statement:
    shape = [Argument("", str(size)) for size in shape_of(parameter)] or [Argument("", "()")]
    dtype = dtype_name(parameter.dtype)
    zeros = Call("torch.zeros", (*shape, Argument("dtype", f"torch.{dtype}", "torch.float32")))
    if not buffer:
        return Statement(f"self.{name}", Call("nn.Parameter", (Argument("", zeros),)))
    return Statement("", Call("self.register_buffer", (Argument("", f'"{name}"'), Argument("", zeros))))
