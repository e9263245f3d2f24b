"""Converts a Gluon net to one file of PyTorch code and its weights.

Blocks of one type with the same steps share a class; the numbers in which they differ become its arguments.
"""

from ast import literal_eval
from collections import Counter
from dataclasses import dataclass, field
from pprint import pformat
import re
import textwrap
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxkit.core.blocks import join_path
from mxkit.core.replicas import is_trainable, shape_of
from mxkit.exporting.to_torch.expressions import Argument, Call
from mxkit.exporting.to_torch.forward import Forward, Renderer
from mxkit.exporting.to_torch.operators import HELPERS, Problem, helpers_used, refuse
from mxkit.exporting.to_torch.program import Module, Operator, Program, extract, identifier, modules
from mxkit.nets.hybridizing import usual_layers
from mxkit.storage.params_format import dtype_name
from mxkit.version import __version__
import mxnet as mx
from mxnet import gluon
import numpy as np

WIDTH = 88
# The value of an attribute; an object of a class of the file stands for its constructor until the class has a name.
_Expression = Union[str, Call, "Instance"]


class Statement(NamedTuple):
    """A line of a constructor: an attribute and its value; the attribute is '' for a call alone."""

    target: str
    value: Any


@dataclass(eq=False)
class Instance:
    """A block that becomes an object of a class.

    Attributes:
        module: The block.
        base: The class from which its class derives.
        statements: Of its constructor.
        calls: Its method for each call; () for an nn.Sequential.
        owner: Its class.
        given: The arguments with which the class makes it.
    """

    module: Module
    base: str
    statements: List[Statement]
    calls: Sequence[Forward]
    owner: Any = None
    given: Dict[str, str] = field(default_factory=dict)

    @property
    def forward(self) -> Optional[Forward]:
        """Its method, which is the same for all calls."""
        return self.calls[0] if self.calls else None


@dataclass(eq=False)
class Class:
    """A class of the generated file.

    Attributes:
        base: The class that it derives from.
        forward: Its method `forward`, or None.
        instances: Its objects.
        name: Its name.
        arguments: Of its constructor, by name: their values in all objects.
        defaults: Of the arguments that have one.
        statements: Of its constructor, with the arguments' names.
    """

    base: str
    forward: Optional[Forward]
    instances: List[Instance] = field(default_factory=list)
    name: str = ""
    arguments: Dict[str, List[str]] = field(default_factory=dict)
    defaults: Dict[str, str] = field(default_factory=dict)
    statements: List[Statement] = field(default_factory=list)

    def order(self) -> List[str]:
        """Names of the arguments in the constructor's order: those with a default come last."""
        return sorted(self.arguments, key=lambda name: name in self.defaults)

    def signature(self) -> List[str]:
        """The arguments of the constructor."""
        defaults = {name: f" = {value}" for name, value in self.defaults.items()}
        return [f"{name}: {_annotation(self.arguments[name])}{defaults.get(name, '')}" for name in self.order()]

    def finish(self, name: str) -> None:
        """Name the class, and write its constructor with arguments for what differs."""
        self.name = name
        columns = zip(*([line.value for line in one.statements] for one in self.instances))
        targets = [line.target for line in self.instances[0].statements]
        self.statements = [
            Statement(target, self._joined([_named(value) for value in column], target, Argument("", "")))
            for target, column in zip(targets, columns)
        ]
        for number, instance in enumerate(self.instances):
            instance.given = {name: column[number] for name, column in self.arguments.items()}

    def _joined(self, column: Sequence[Any], target: str, argument: Argument) -> Any:
        """Write the value that stands in one place of the constructors of all objects.

        Args:
            column: The value of each object.
            target: The attribute in whose value they stand.
            argument: The argument whose value they are.
        """
        first = column[0]
        if isinstance(first, Call):
            parts = []
            for inner in zip(*(one.arguments for one in column)):
                same = len({one.default for one in inner}) == 1
                part = inner[0] if same else inner[0]._replace(default="")
                parts.append(part._replace(value=self._joined([one.value for one in inner], target, part)))
            return Call(first.function, tuple(parts))
        return first if len(set(column)) == 1 else self._argument(list(column), target, argument)

    def _argument(self, column: List[str], target: str, argument: Argument) -> str:
        """Return the name of the argument with these values, or a new one."""
        for name, other in self.arguments.items():
            if other == column:
                return name
        hint, place = argument.name or "size", target.rpartition(".")[2]
        names = [hint, *(["out_channels"] if hint == "channels" else []), *([f"{place}_{hint}"] if place else [])]
        names += [f"{hint}{number}" for number in range(2, len(self.arguments) + 3)]
        name = next(one for one in names if one not in self.arguments)
        self.arguments[name] = column
        if argument.default:
            common = Counter(column).most_common(1)[0][0]
            self.defaults[name] = argument.default if argument.default in column else common
        return name


def classes_of(instances: Sequence[Instance], root: str) -> List[Class]:
    """Group blocks into classes.

    Args:
        instances: Blocks, inner ones before those that contain them.
        root: Name of the net's class.

    Returns:
        Classes, each after those that it uses.
    """
    groups: Dict[str, Class] = {}
    for one in instances:
        lines = [f"{line.target} = {_skeleton(line.value)}" for line in one.statements]
        name = type(one.module.block).__name__ if one.module.target else ""
        key = "\n".join([name, one.base, *lines, one.forward.text() if one.forward else ""])
        one.owner = groups.setdefault(key, Class(one.base, one.forward))
        one.owner.instances.append(one)
    names = {root}
    for group in groups.values():
        first = group.instances[0].module
        group.finish(_free_name(first.block, names) if first.target else root)
    return list(groups.values())


def _skeleton(value: _Expression) -> str:
    """Write an expression without its literals."""
    if isinstance(value, Call):
        return f"{value.function}({', '.join(f'{one.name}={_skeleton(one.value)}' for one in value.arguments)})"
    if isinstance(value, Instance):
        return f"@{id(value.owner)}"
    return "_" if _is_literal(value) else value


def _named(value: _Expression) -> Any:
    """Write the constructors of objects by the names and arguments of their classes."""
    if isinstance(value, Call):
        return Call(value.function, tuple(part._replace(value=_named(part.value)) for part in value.arguments))
    if isinstance(value, str):
        return value
    owner = value.owner
    given = [Argument(name, value.given[name], owner.defaults.get(name)) for name in owner.order()]
    return Call(owner.name, tuple(given))


def _free_name(block: Any, taken: Set[str]) -> str:
    stem = type(block).__name__.lstrip("_")
    stem = name = stem[:1].upper() + stem[1:]
    number = 2
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    taken.add(name)
    return name


def _is_literal(text: str) -> bool:
    """Whether a text is a number, True, False, None or a tuple of them."""
    try:
        return not isinstance(literal_eval(text), str)
    except (ValueError, SyntaxError):
        return False


def _annotation(texts: Sequence[str]) -> str:
    kinds = set()
    for value in map(literal_eval, texts):
        inner = f"[{', '.join(type(part).__name__ for part in value)}]" if type(value) is tuple else ""
        kinds.add(f"{type(value).__name__}{inner}")
    return " | ".join(sorted(kinds))


def _statements(
    program: Program, module: Module, forward: Optional[Forward], made: Mapping[str, Instance]
) -> Tuple[str, List[Statement]]:
    """Return the base class and the constructor's statements of a block that becomes an object of a class."""
    if forward is None:
        return "nn.Sequential", [Statement("", Call("super().__init__", _entries(program, module, made)))]
    if module.is_numbered and not forward.layers and not forward.parameters:
        inner = Argument("", Call("[", _numbered(program, module, made)))
        return "nn.ModuleList", [Statement("", Call("super().__init__", (inner,)))]
    lines = [Statement("", Call("super().__init__", ()))]
    lines += [_parameter(name, one, is_buffer(program, one)) for name, one in forward.parameters.items()]
    lines += [Statement(f"self.{name}", _constructor(program, child, made)) for name, child in module.children.items()]
    lines += [Statement(f"self.{name}", layer.constructor) for name, (layer, _) in forward.layers.items()]
    return "nn.Module", lines


def _constructor(program: Program, module: Module, made: Mapping[str, Instance]) -> Any:
    """Return the expression that makes a module inside its parent's constructor."""
    if module.part is not None:
        return module.part.layer.constructor
    if module.kind == "sequential":
        return Call("nn.Sequential", _entries(program, module, made))
    if module.kind == "class":
        return made[module.target]
    if module.is_numbered:
        return Call("nn.ModuleList", (Argument("", Call("[", _numbered(program, module, made))),))
    named = {name: _constructor(program, child, made) for name, child in module.children.items()}
    return Call("nn.ModuleDict", (Argument("", _ordered(named)),))


_IDENTITY = Call("nn.Identity", ())


def _ordered(named: Mapping[str, Any]) -> Call:
    pairs = [Call("", (Argument("", f'"{name}"'), Argument("", value))) for name, value in named.items()]
    return Call("OrderedDict", (Argument("", Call("[", tuple(Argument("", pair) for pair in pairs))),))


def _numbered(program: Program, module: Module, made: Mapping[str, Instance]) -> Tuple[Argument, ...]:
    """Return constructors of children by number; a number without a child that is called gets an Identity."""
    children = {int(name): _constructor(program, child, made) for name, child in module.children.items()}
    count = 1 + max(map(int, [*module.children, *module.shared]))
    return tuple(Argument("", children.get(number, _IDENTITY)) for number in range(count))


def _entries(program: Program, module: Module, made: Mapping[str, Instance]) -> Tuple[Argument, ...]:
    """Return the arguments of an nn.Sequential: children by number; by name if there are more layers."""
    named: Dict[str, Any] = {}
    for name in sorted([*module.children, *module.shared], key=int):
        child = module.children.get(name)
        if child is None:
            named[name] = _IDENTITY
            continue
        around: List[Tuple[str, Any]] = []
        for label, operator in beside(child):
            found = program.layer_of(operator)
            around.append((f"{name}_{label}", found.constructor if found else _IDENTITY))
        count = len(child.part.before) if child.part else 0
        named.update([*around[:count], (name, _constructor(program, child, made)), *around[count:]])
    if [*named] == [str(number) for number in range(len(named))]:
        return tuple(Argument("", value) for value in named.values())
    return (Argument("", _ordered(named)),)


def beside(module: Module) -> List[Tuple[str, Operator]]:
    """Return the operators around a layer, with the names that follow the layer's number in an nn.Sequential."""
    found: Dict[str, Operator] = {}
    for operator in [*module.part.before, *module.part.after] if module.part else ():
        label = _LABELS.get(operator.operator, operator.operator.strip("_").lower())
        names = [label, *(f"{label}{number}" for number in range(2, len(found) + 3))]
        found[next(name for name in names if name not in found)] = operator
    return list(found.items())


_LABELS = {"Activation": "act", "LeakyReLU": "act", "Flatten": "flatten"}


def is_buffer(program: Program, parameter: Any) -> bool:
    """Whether PyTorch does not train a parameter: a constant, or running statistics, which Gluon may not mark."""
    states = set(program.internals.list_auxiliary_states())
    names = [program.names[entry] for entry, one in program.parameters.items() if one is parameter]
    return not is_trainable(parameter) or bool(states.intersection(names))


def _parameter(name: str, parameter: Any, buffer: bool) -> Statement:
    shape = [Argument("", str(size)) for size in shape_of(parameter)] or [Argument("", "()")]
    zeros = Call("torch.zeros", (*shape, Argument("dtype", f"torch.{dtype_name(parameter.dtype)}", "torch.float32")))
    if not buffer:
        return Statement(f"self.{name}", Call("nn.Parameter", (Argument("", zeros),)))
    return Statement("", Call("self.register_buffer", (Argument("", f'"{name}"'), Argument("", zeros))))


class Source(NamedTuple):
    """The converted net.

    Attributes:
        program: Its forward pass in MXNet.
        root: Its modules.
        instances: The blocks that are objects of a class of the file, by the path in PyTorch.
        classes: The classes of the file.
        docstring: Of the file.
        constants: Constants of the file by name.
    """

    program: Program
    root: Module
    instances: Dict[str, Instance]
    classes: List[Class]
    docstring: str
    constants: Dict[str, Any]

    def text(self, recorded: bool = False) -> str:
        """The file.

        Args:
            recorded: Whether each step is followed by `record(self, number, arrays)`.
        """
        body = ["\n".join(_class_lines(one, recorded)) for one in self.classes]
        used = helpers_used("\n".join(body))
        frozen = [key for key, (_, trained) in state(self).items() if trained is False]
        parts = [*(HELPERS[name] for name in used), *body, _load(self.classes[-1].name, frozen)]
        rest = "\n\n\n".join(parts)
        texts = {name: pformat(one, 1, WIDTH, compact=True, sort_dicts=False) for name, one in self.constants.items()}
        constants = "\n".join(f"{name} = {text}" for name, text in texts.items())
        head = f'"""{self.docstring}"""\n\n{_imports(rest)}'
        return "\n\n\n".join([f"{head}\n\n{constants}" if constants else head, rest]) + "\n"


def torch_files(
    net: Any,
    inputs: Mapping[str, Any],
    constants: Optional[Mapping[str, Any]] = None,
    unwritten: Optional[List[Problem]] = None,
) -> Tuple[str, Dict[str, Any], Source]:
    """Convert a net to the text of a Python file and the arrays of its weights' file.

    Args:
        net: An initialized block that can be traced with symbols.
        inputs: An example of each argument by name, as NumPy's arrays, in nested lists.
        constants: Constants of the file by name.
        unwritten: Takes the operators without an equivalent, where the code then raises NotImplementedError.

    Returns:
        The text, NumPy arrays by the keys of `state_dict`, and the converted net, which `compare_torch` takes.

    Raises:
        ExportError: Operators have no equivalent; the text lists all of them with their paths.
    """
    problems: List[Problem] = []
    made: Dict[str, Instance] = {}
    with usual_layers(net):
        program = extract(net, list(inputs.values()))
        root = modules(program)
        shared = {id(module.block): module for module in root.walk()}
        for module in _inner_first(root):
            if module.kind == "class" or (module.kind == "sequential" and not module.target):
                made[module.target] = _instance(program, module, shared, problems, made)
    if unwritten is not None:
        unwritten += [one for one in problems if one.marked]
    refuse([one for one in problems if unwritten is None or not one.marked])
    source = Source(program, root, made, [], _docstring(net, inputs), dict(constants or {}))
    made[""].statements.extend(_shared_statements(source))
    source.classes.extend(classes_of(list(made.values()), _root_name(net)))
    return source.text(), {key: value for key, (value, _) in state(source).items()}, source


def _docstring(net: Any, inputs: Mapping[str, Any]) -> str:
    first = f"{type(net).__name__}, converted from Apache MXNet by mxkit."
    given = ", ".join(f"{name} {_shapes(value)}" for name, value in inputs.items())
    second = (
        f"mxkit {__version__}, MXNet {mx.__version__}. Traced with {given}; the batch size is free. Only this size of "
        "images or sequences was compared with MXNet, no other."
    )
    last = 'Load the weights with `net = load("model.safetensors")`.'
    return "\n".join([*textwrap.wrap(first, 84), "", *textwrap.wrap(second, WIDTH), last, ""])


def _shapes(value: Any) -> str:
    return f"[{', '.join(map(_shapes, value))}]" if isinstance(value, (list, tuple)) else str(np.shape(value))


def _root_name(net: Any) -> str:
    name = type(net).__name__.lstrip("_")
    plain = type(net) in (gluon.nn.Sequential, gluon.nn.HybridSequential) or isinstance(net, gluon.SymbolBlock)
    return "Net" if plain else identifier(name[:1].upper() + name[1:], set())


def _inner_first(module: Module) -> Iterator[Module]:
    for child in module.children.values():
        yield from _inner_first(child)
    yield module


def _instance(
    program: Program, module: Module, shared: Dict[int, Module], problems: List[Problem], made: Mapping[str, Instance]
) -> Instance:
    """Return the instance of a block that becomes an object of a class, after those inside it."""
    scopes = module.scopes if module.kind == "class" else ()
    calls = [Renderer(program, module, scope, shared, problems).render() for scope in scopes]
    if len({forward.text() for forward in calls}) > 1:
        reason = "it computes something else in its second call than in its first; give it one kind of arguments"
        problems.append(Problem(module.path, module.block, "several calls", reason))
    return Instance(module, *_statements(program, module, calls[0] if calls else None, made), calls)


def layers_with_state(source: Source) -> Iterator[Tuple[str, Operator]]:
    """Yield the paths of layers with parameters, and their operators."""
    for module in source.root.walk():
        if module.part is not None and module.part.core is not None and module.part.layer.state:
            yield module.target, module.part.core
        instance = source.instances.get(module.target)
        for name, (layer, operator) in instance.forward.layers.items() if instance and instance.forward else ():
            if layer.state:
                yield join_path(module.target, name), operator


def state(source: Source, values: Optional[Dict[int, Any]] = None) -> Dict[str, Any]:
    """Values of parameters and buffers, by the keys of `state_dict`, with whether MXNet trains them; None for buffers.

    Args:
        source: The converted net.
        values: NumPy arrays by the ids of Parameters instead of their values, like their gradients.
    """
    found = _own_state(source, values)
    for module in source.root.walk():
        for name, target in module.shared.items():
            prefix = join_path(module.target, name)
            inner = {key: value for key, value in found.items() if key.startswith(f"{target}.")}
            found.update({f"{prefix}{key[len(target) :]}": value for key, value in inner.items()})
    return found


def _own_state(source: Source, values: Optional[Dict[int, Any]] = None) -> Dict[str, Any]:
    """As `state`, without the second paths of blocks."""
    program, found = source.program, {}
    parameters = program.parameters
    given = {id(one): program.value(entry) for entry, one in parameters.items()} if values is None else values
    fixed = {id(given[id(one)]) for one in parameters.values() if one.grad_req == "null"}
    for target, operator in layers_with_state(source):
        layer: Any = program.layer_of(operator, values=given)
        for name, value in layer.state.items():
            trained = name not in layer.frozen and id(value) not in fixed
            found[f"{target}.{name}"] = value, None if name.startswith("running_") else trained
        if "running_var" in layer.state:
            found[f"{target}.num_batches_tracked"] = np.array(0, np.int64), None
    for target, instance in source.instances.items():
        for name, parameter in instance.forward.parameters.items() if instance.forward else ():
            is_trained = parameter.grad_req != "null"
            found[join_path(target, name)] = given[id(parameter)], None if is_buffer(program, parameter) else is_trained
    return found


def _shared_statements(source: Source) -> List[Statement]:
    """Return the last statements of the net's constructor: blocks and parameters at two paths are one object."""
    found = []
    for module in source.root.walk():
        for name, target in module.shared.items():
            if module.target or name.isdigit():
                arguments = Argument("", f'"{name}"'), Argument("", _access(target))
                found.append(Statement("", Call(f"{_access(module.target)}.register_module", arguments)))
            else:
                found.append(Statement(f"self.{name}", _access(target)))
    first: Dict[int, str] = {}
    for key, (value, _) in _own_state(source).items():
        known = first.setdefault(id(value), key)
        if known != key:
            paths = [one.rpartition(".") for one in (key, known)]
            found.append(Statement(*(f"{_access(prefix)}.{name}" for prefix, _, name in paths)))
    return found


def _access(target: str) -> str:
    """Return an expression for a module inside the net."""
    if not target:
        return "self"
    return f"self.{target}" if target.isidentifier() else f'self.get_submodule("{target}")'


def _class_lines(one: Class, recorded: bool) -> Iterator[str]:
    yield f"class {one.name}({one.base}):"
    calls = (value for _, value in one.statements if isinstance(value, Call))
    buffers = [str(call.arguments[0].value)[1:-1] for call in calls if "register_buffer" in call.function]
    yield from (f"    {name}: Tensor" for name in buffers)
    if buffers:
        yield ""
    if len(one.statements) > 1 or one.base != "nn.Module":
        yield from _signature("__init__", one.signature(), "None")
        for target, value in one.statements:
            yield from laid_out(f"{target} = " if target else "", value, indent=8)
        if one.forward is not None:
            yield ""
    if one.forward is not None:
        yield from _forward(one.forward, recorded)


def _signature(name: str, arguments: Sequence[str], returns: str) -> Iterator[str]:
    call = Call(f"def {name}", tuple(Argument("", one) for one in ("self", *arguments)))
    return laid_out("", call, f" -> {returns}:", indent=4)


def _forward(forward: Forward, recorded: bool) -> Iterator[str]:
    arguments = [f"{name}: {annotation}" for name, annotation in forward.arguments]
    yield from _signature("forward", arguments, forward.returns)
    for number, line in enumerate(forward.lines):
        last = number == len(forward.lines) - 1
        if last and line.target == forward.result and not recorded:
            yield f"        return {line.expression}"
            return
        yield f"        {line.target} = {line.expression}"
        if recorded and line.names:
            yield f"        record(self, {number}, [{', '.join(line.names)}])"
    yield f"        return {forward.result}"


# Patterns in the code that need an import; "" is always there
_IMPORTS = (
    (r"OrderedDict\(", "from collections import OrderedDict"),
    (r"\bSequence\[", "from collections.abc import Sequence"),
    ("", "from pathlib import Path"),
    ("", ""),
    (r"(?<![.\w])torch\.", "import torch"),
    (r"(?<![.\w])F\.", "import torch.nn.functional as F"),
)


def _imports(body: str) -> str:
    lines = [line for pattern, line in _IMPORTS if re.search(pattern, body)]
    names = [name for name in ("Tensor", "nn") if re.search(rf"(?<![.\w]){name}\b", body)]
    return "\n".join([*lines, *([f"from torch import {', '.join(names)}"] if names else [])])


def _load(name: str, frozen: Sequence[str]) -> str:
    lines = [
        f"def load(path: str | Path) -> {name}:",
        '    """Make the net with the weights of a safetensors file, in evaluation mode."""',
        "    from safetensors.torch import load_file",
        "",
        f"    net = {name}()",
        "    net.load_state_dict(load_file(path))",
    ]
    if frozen:
        lines += laid_out("frozen = ", Call("[", tuple(Argument("", f'"{key}"') for key in frozen)), indent=4)
        lines += ["    for key in frozen:", "        net.get_parameter(key).requires_grad_(False)"]
    return "\n".join([*lines, "    return net.eval()"])


def laid_out(before: str, value: Any, after: str = "", indent: int = 0) -> Iterator[str]:
    """Write an expression on one line, or each part of a call on lines of its own if it is longer than WIDTH."""
    space = " " * indent
    parts = value.written() if isinstance(value, Call) else []
    if not parts or len(f"{space}{before}{value}{after}") <= WIDTH:
        yield f"{space}{before}{value}{after}"
        return
    yield f"{space}{before}{'[' if value.function == '[' else f'{value.function}('}"
    for name, part in parts:
        yield from laid_out(name, part, ",", indent + 4)
    yield f"{space}{']' if value.function == '[' else ')'}{after}"
