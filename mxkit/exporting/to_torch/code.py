"""Converts a Gluon net to one file of PyTorch code and its weights."""

import ast
import re
import textwrap
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.exporting.to_torch.classes import Class, Instance, Statement, classes_of, is_buffer, statements
from mxkit.exporting.to_torch.expressions import Argument, Call
from mxkit.exporting.to_torch.forward import Forward, Renderer
from mxkit.exporting.to_torch.modules import Module, identifier, layer_of, modules
from mxkit.exporting.to_torch.operators import HELPERS, Problem, helpers_used, refuse
from mxkit.exporting.to_torch.program import Operator, Program, extract
from mxkit.version import __version__
import mxnet as mx
from mxnet import gluon
import numpy as np

WIDTH = 88
# Their parts stand on lines of their own if they do not fit on one with the brackets
_ONE_A_LINE = ("nn.Sequential", "nn.ModuleList", "[", "super().__init__")


class Source(NamedTuple):
    """The converted net.

    Attributes:
        program: Its forward pass in MXNet.
        root: Its modules.
        instances: The blocks that are objects of a class of the file, by the path in PyTorch.
        classes: The classes of the file.
        docstring: Of the file.
        constants: Constants of the file by name, as Python expressions.
    """

    program: Program
    root: Module
    instances: Dict[str, Instance]
    classes: List[Class]
    docstring: str
    constants: Dict[str, str]

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
        constants = "\n".join(line for name, value in self.constants.items() for line in laid_out(f"{name} = ", value))
        head = f'"""{self.docstring}"""\n\n{_imports(rest)}'
        return "\n\n\n".join([f"{head}\n\n{constants}" if constants else head, rest]) + "\n"


def torch_files(
    net: Any, inputs: Mapping[str, Any], constants: Optional[Mapping[str, str]] = None
) -> Tuple[str, Dict[str, Any], Source]:
    """Convert a net to the text of a Python file and the arrays of its weights' file.

    Args:
        net: An initialized block that can be traced with symbols.
        inputs: An example of each argument by name, as NumPy's arrays, in nested lists.
        constants: Constants of the file by name, as Python expressions.

    Returns:
        The text, NumPy arrays by the keys of `state_dict`, and the converted net, which `compare_torch` takes.

    Raises:
        ExportError: Operators have no equivalent; the text lists all of them with their paths.
    """
    program = extract(net, list(inputs.values()))
    root = modules(program)
    shared = {id(module.block): module for module in root.walk()}
    problems: List[Problem] = []
    instances = [one for module in _inner_first(root) for one in _instance(program, module, shared, problems)]
    refuse(problems)
    by_target = {one.module.target: one for one in instances}
    source = Source(program, root, by_target, [], _docstring(net, inputs), dict(constants or {}))
    instances[-1].statements.extend(_shared_statements(source))
    source.classes.extend(classes_of(instances, _root_name(net)))
    return source.text(), {key: value for key, (value, _) in state(source).items()}, source


def _docstring(net: Any, inputs: Mapping[str, Any]) -> str:
    def shapes(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(shapes, value))}]"
        return "None" if value is None else str(np.shape(value))

    first = f"{type(net).__name__}, converted from Apache MXNet by mxkit."
    given = ", ".join(f"{name} {shapes(value)}" for name, value in inputs.items())
    second = (
        f"mxkit {__version__}, MXNet {mx.__version__}. Traced with {given}; the batch size is free. Only this size of "
        "images or sequences was compared with MXNet, no other."
    )
    last = 'Load the weights with `net = load("model.safetensors")`.'
    return "\n".join([*textwrap.wrap(first, 84), "", *textwrap.wrap(second, WIDTH), last, ""])


def _root_name(net: Any) -> str:
    name = type(net).__name__.lstrip("_")
    plain = type(net) in (gluon.nn.Sequential, gluon.nn.HybridSequential) or isinstance(net, gluon.SymbolBlock)
    return "Net" if plain else identifier(name[:1].upper() + name[1:], set())


def _inner_first(module: Module) -> Iterator[Module]:
    for child in module.children.values():
        yield from _inner_first(child)
    yield module


def _instance(
    program: Program, module: Module, shared: Dict[int, Module], problems: List[Problem]
) -> Iterator[Instance]:
    """Yield the instance of a block that becomes an object of a class."""
    if module.kind == "sequential" and not module.target:
        yield Instance(module, *statements(program, module, None), None, [])
    if module.kind != "class":
        return
    forwards = [Renderer(program, module, scope, shared, problems).render() for scope in module.scopes]
    if len({forward.text() for forward in forwards}) > 1:
        reason = "it computes something else in its second call than in its first; give it one kind of arguments"
        problems.append(Problem(module.path, module.block, "several calls", reason))
    yield Instance(module, *statements(program, module, forwards[0]), forwards[0], forwards)


def layers_with_state(source: Source) -> Iterator[Tuple[str, Operator]]:
    """Yield the paths of layers with parameters, and their operators."""
    for module in source.root.walk():
        if module.part is not None and module.part.core is not None and module.part.layer.state:
            yield module.target, module.part.core
        instance = source.instances.get(module.target)
        for name, (layer, operator) in instance.forward.layers.items() if instance and instance.forward else ():
            if layer.state:
                yield _join(module.target, name), operator


def _join(target: str, name: str) -> str:
    return f"{target}.{name}" if target else name


def state(source: Source, values: Optional[Dict[int, Any]] = None) -> Dict[str, Any]:
    """Values of parameters and buffers, by the keys of `state_dict`, with whether MXNet trains them; None for buffers.

    Args:
        source: The converted net.
        values: NumPy arrays by the ids of Parameters instead of their values, like their gradients.
    """
    found = _own_state(source, values)
    for module in source.root.walk():
        for name, target in module.shared.items():
            prefix = _join(module.target, name)
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
        layer: Any = layer_of(program, operator, values=given)
        for name, value in layer.state.items():
            trained = name not in layer.frozen and id(value) not in fixed
            found[f"{target}.{name}"] = value, None if name.startswith("running_") else trained
        if "running_var" in layer.state:
            found[f"{target}.num_batches_tracked"] = np.array(0, np.int64), None
    for target, instance in source.instances.items():
        for name, parameter in instance.forward.parameters.items() if instance.forward else ():
            is_trained = parameter.grad_req != "null"
            found[_join(target, name)] = given[id(parameter)], None if is_buffer(program, parameter) else is_trained
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
    registered = [
        value for _, value in one.statements if isinstance(value, Call) and "register_buffer" in value.function
    ]
    yield from (f"    {str(value.arguments[0].value)[1:-1]}: Tensor" for value in registered)
    if registered:
        yield ""
    if len(one.statements) > 1 or one.base != "nn.Module":
        yield from _signature("__init__", one.signature(), "None")
        yield from _constructor(one)
        if one.forward is not None:
            yield ""
    if one.forward is not None:
        yield from _forward(one.forward, recorded)


def _signature(name: str, arguments: Sequence[str], returns: str) -> List[str]:
    line = f"    def {name}({', '.join(['self', *arguments])}) -> {returns}:"
    if len(line) <= WIDTH:
        return [line]
    inner = f"        {', '.join(['self', *arguments])}"
    parts = [inner] if len(inner) <= WIDTH else [f"        {part}," for part in ["self", *arguments]]
    return [f"    def {name}(", *parts, f"    ) -> {returns}:"]


def _constructor(one: Class) -> Iterator[str]:
    for target, value in one.statements:
        child, before = target.partition(".")[2], f"{target} = " if target else ""
        if child in one.optional:
            yield f"        {target}: nn.Module = nn.Identity()"
            yield f"        if {child}:"
        yield from laid_out(before, str(value), indent=12 if child in one.optional else 8)


def _forward(forward: Forward, recorded: bool) -> Iterator[str]:
    arguments = [f"{name}: {annotation}" for name, annotation in forward.arguments]
    yield from _signature("forward", arguments, forward.returns)
    for number, line in enumerate(forward.lines):
        last = number == len(forward.lines) - 1
        if last and line.target == forward.result and not recorded:
            yield from laid_out("return ", line.expression, indent=8)
            return
        yield from laid_out(f"{line.target} = ", line.expression, indent=8)
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
        keys = ", ".join(f'"{key}"' for key in frozen)
        lines += laid_out("frozen = ", f"[{keys}]", indent=4)
        lines += ["    for key in frozen:", "        net.get_parameter(key).requires_grad_(False)"]
    return "\n".join([*lines, "    return net.eval()"])


def laid_out(before: str, text: str, after: str = "", indent: int = 0) -> Iterator[str]:
    """Write an expression on lines of at most 88 characters, as `ruff format` writes them."""
    space = " " * indent
    node = ast.parse(text, mode="eval").body
    brackets = None if len(f"{space}{before}{text}{after}") <= WIDTH else _bracketed(node, text)
    if brackets is None:
        yield f"{space}{before}{text}{after}"
        return
    begin, parts, end = brackets
    inner = f"{space}    {', '.join(f'{name}{value}' for name, value in parts)}"
    is_alone = len(parts) == 1 and parts[0][1].startswith(("[", "OrderedDict("))
    if isinstance(node, ast.BinOp):
        # a sum inside brackets needs no parentheses of its own
        inner = f"{space}    {text}"
        lines = [inner] if len(inner) <= WIDTH else [f"{space}    {part}" for _, part in parts]
        if after == ",":
            lines = [f"{space}{before}{parts[0][1]}", *(f"{space}{part}" for _, part in parts[1:])]
            lines[-1] += after
            yield from lines
            return
        yield from [f"{space}{before}(", *lines]
    elif len(inner) <= WIDTH and (is_alone or begin.rstrip("(") not in (*_ONE_A_LINE, "{")):
        yield from [f"{space}{before}{begin}", inner]
    else:
        yield f"{space}{before}{begin}"
        for name, value in parts:
            yield from laid_out(name, value, "" if is_alone else ",", indent + 4)
    yield f"{space}{end}{after}"


def _bracketed(node: ast.AST, text: str) -> Optional[Tuple[str, List[Tuple[str, str]], str]]:
    """Divide an expression into an opening bracket, its parts with what stands before them, and a closing one."""

    def source(part: ast.AST) -> str:
        return ast.get_source_segment(text, part) or ""

    if isinstance(node, ast.Call) and (node.args or node.keywords):
        parts = [("", source(one)) for one in node.args]
        parts += [(f"{one.arg}=", source(one.value)) for one in node.keywords]
        return f"{source(node.func)}(", parts, ")"
    if isinstance(node, ast.List) or (isinstance(node, ast.Tuple) and text.startswith("(")):
        return text[0], [("", source(one)) for one in node.elts], text[-1]
    if isinstance(node, ast.Dict):
        keys = [f"{source(key)}: " for key in node.keys if key is not None]
        return "{", list(zip(keys, map(source, node.values))), "}"
    operands = _operands(node, text)
    return ("(", [("", one) for one in operands], ")") if operands else None


def _operands(node: ast.AST, text: str) -> List[str]:
    """Operands of a sum or product with the operators before them; none of another expression."""
    if not isinstance(node, ast.BinOp):
        return []
    is_sum = isinstance(node.op, (ast.Add, ast.Sub))
    kinds = (ast.Add, ast.Sub) if is_sum else (type(node.op),)
    parts: List[str] = []
    left: ast.AST = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, kinds) and isinstance(left.op, _OPERATORS):
        begin, end = left.left.end_col_offset or 0, left.right.end_col_offset or 0
        if text[:begin].count("(") != text[:begin].count(")"):
            break
        parts.insert(0, text[begin:end].strip())
        left = left.left
    return [ast.get_source_segment(text, left) or "", *parts] if parts else []


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)
