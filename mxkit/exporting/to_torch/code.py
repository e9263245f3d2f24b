"""Converts a Gluon net to one file of PyTorch code and its weights."""

import re
import textwrap
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.exporting.to_torch.classes import Class, Classes
from mxkit.exporting.to_torch.constructor_arguments import Argument
from mxkit.exporting.to_torch.forward import Forward, Renderer
from mxkit.exporting.to_torch.functional import HELPERS, helpers_used
from mxkit.exporting.to_torch.identifiers import identifier
from mxkit.exporting.to_torch.layout import Call, laid_out, parse
from mxkit.exporting.to_torch.modules import Module, layer_of, modules
from mxkit.exporting.to_torch.net_steps import Program
from mxkit.exporting.to_torch.program import extract
from mxkit.exporting.to_torch.refusals import Problem, refuse
from mxkit.exporting.to_torch.shared import operators_of, shared_statements
from mxkit.exporting.to_torch.trees import Instance, is_buffer, statements
from mxkit.version import __version__
import mxnet as mx
from mxnet import gluon
import numpy as np


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
        body = "\n\n\n".join("\n".join(_class_lines(one, recorded)) for one in self.classes)
        used = [
            name
            for one in self.classes
            if one.forward
            for line in one.forward.lines
            for name in helpers_used(line.expression)
        ]
        helpers = [HELPERS[name].rstrip() for name in dict.fromkeys(used)]
        constants = "\n".join(
            line for name, value in self.constants.items() for line in laid_out(f"{name} = ", parse(value))
        )
        rest = "\n\n\n".join([*helpers, body, _load(self.classes[-1].name, frozen_parameters(self))])
        head = f'"""{self.docstring}"""\n\n{_imports(rest)}'
        return f"{head}\n\n{constants}\n\n\n{rest}\n" if constants else f"{head}\n\n\n{rest}\n"


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
    instances[-1].statements.extend(shared_statements(program, root, instances))
    classes = Classes(instances, _root_name(net)).all()
    by_target = {one.module.target: one for one in instances}
    source = Source(program, root, by_target, classes, _docstring(net, inputs), dict(constants or {}))
    return source.text(), weights(source), source


def _docstring(net: Any, inputs: Mapping[str, Any]) -> str:
    def shapes(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(shapes, value))}]"
        return "None" if value is None else str(np.shape(value))

    first = f"{type(net).__name__}, converted from Apache MXNet by mxkit."
    given = ", ".join(f"{name} {shapes(value)}" for name, value in inputs.items())
    lines = [
        *textwrap.wrap(
            f"mxkit {__version__}, MXNet {mx.__version__}. Traced with {given}; the batch size is free. Only this size "
            "of images or sequences was compared with MXNet, no other.",
            88,
        ),
        'Load the weights with `net = load("model.safetensors")`.',
    ]
    return "\n".join([*textwrap.wrap(first, 84), "", *lines, ""])


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
        base, lines = statements(program, module, None)
        yield Instance(module, base, lines, None, {}, [])
    if module.kind != "class":
        return
    forwards = [Renderer(program, module, scope, shared, problems).render() for scope in module.scopes]
    if len({forward.text() for forward in forwards}) > 1:
        problems.append(
            Problem(
                *(module.path, module.block, "several calls"),
                "it computes something else in its second call than in its first; give it one kind of arguments",
            )
        )
    base, lines = statements(program, module, forwards[0])
    elided = {}
    for name, child in module.children.items():
        steps = [scope for scope in child.scopes if len(scope.inputs) == 1 and type(scope.outputs) is not list]
        if len(steps) == 1 == len(child.scopes) and child.kind != "layer" and base == "nn.Module":
            elided[name] = Renderer(program, module, module.scopes[0], shared, [], (name,)).render()
    yield Instance(module, base, lines, forwards[0], elided, forwards)


def _class_lines(one: Class, recorded: bool) -> Iterator[str]:
    yield f"class {one.name}({one.base}):"
    buffers = [name for line in one.statements for name in _buffer(line.value)]
    yield from (f"    {name}: Tensor" for name in buffers)
    if buffers:
        yield ""
    if len(one.statements) > 1 or one.base != "nn.Module":
        yield from _signature("__init__", [_argument(argument) for argument in one.arguments], "None")
        yield from _constructor(one)
        if one.forward is not None:
            yield ""
    if one.forward is not None:
        yield from _forward(one.forward, recorded)


def _buffer(value: Any) -> List[str]:
    if getattr(value, "function", "") == "self.register_buffer":
        return [str(value.arguments[0][1]).strip('"')]
    return []


def _argument(argument: Argument) -> str:
    return f"{argument.name}: {argument.annotation}" + (f" = {argument.default}" if argument.default else "")


def _signature(name: str, arguments: Sequence[str], returns: str) -> List[str]:
    line = f"    def {name}({', '.join(['self', *arguments])}) -> {returns}:"
    if len(line) <= 88:
        return [line]
    inner = f"        {', '.join(['self', *arguments])}"
    if len(inner) <= 88:
        return [f"    def {name}(", inner, f"    ) -> {returns}:"]
    return [f"    def {name}(", *(f"        {part}," for part in ["self", *arguments]), f"    ) -> {returns}:"]


def _constructor(one: Class) -> Iterator[str]:
    for line in one.statements:
        child = line.target.partition(".")[2]
        if child in one.optional:
            yield f"        {line.target}: nn.Module = nn.Identity()"
            yield f"        if {child}:"
            yield from laid_out(f"{line.target} = ", line.value, indent=12)
        else:
            yield from laid_out(f"{line.target} = " if line.target else "", line.value, indent=8)


def _forward(forward: Forward, recorded: bool) -> Iterator[str]:
    arguments = [f"{name}: {annotation}" for name, annotation in forward.arguments]
    yield from _signature("forward", arguments, forward.returns)
    for number, line in enumerate(forward.lines):
        last = number == len(forward.lines) - 1
        if last and line.target == forward.result and not recorded:
            yield from laid_out("return ", parse(line.expression), indent=8)
            return
        yield from laid_out(f"{line.target} = ", parse(line.expression), indent=8)
        if recorded and line.names:
            yield f"        record(self, {number}, [{', '.join(line.names)}])"
    yield from laid_out("return ", forward.result, indent=8)


# Patterns in the code that need an import; "" is always there
_IMPORTS = (
    (r"OrderedDict\(", "from collections import OrderedDict"),
    (r"\bSequence\[", "from collections.abc import Sequence"),
    ("", "from pathlib import Path"),
    (r"\bOptional\[", "from typing import Optional"),
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
        keys = Call("[", [("", f'"{key}"') for key in frozen])
        lines += laid_out("frozen = ", keys, indent=4)
        lines += ["    for key in frozen:", "        net.get_parameter(key).requires_grad_(False)"]
    return "\n".join([*lines, "    return net.eval()"])


def frozen_parameters(source: Source) -> List[str]:
    """Keys of layers' parameters that MXNet does not train, like a BatchNorm's weight with `scale=False`."""
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    constant = {
        f"{target}.{name}" if target else name
        for target, one in source.instances.items()
        if one.forward
        for name, parameter in one.forward.parameters.items()
        if is_buffer(source.program, parameter)
    }
    frozen = [key for key, (_, trained) in state(source).items() if not trained and not key.endswith(buffers)]
    return [key for key in frozen if key not in constant]


def weights(source: Source) -> Dict[str, Any]:
    """Values of the net's parameters and buffers as NumPy's arrays, by the keys of PyTorch's `state_dict`."""
    return {key: value for key, (value, _) in state(source).items()}


def state(source: Source, values: Optional[Dict[int, Any]] = None) -> Dict[str, Any]:
    """Values of parameters and buffers, with whether MXNet trains them, by the keys of `state_dict`.

    Args:
        source: The converted net.
        values: NumPy arrays by the ids of Parameters instead of their values, like their gradients.
    """
    found: Dict[str, Any] = {}

    program = source.program
    parameters = program.parameters
    given = {id(one): program.value(entry) for entry, one in parameters.items()} if values is None else values
    fixed = {id(given[id(one)]) for one in parameters.values() if one.grad_req == "null"}
    for target, operator in operators_of(source.root, [*source.instances.values()]):
        layer: Any = layer_of(program, operator, values=given)
        for name, value in layer.state.items():
            found[f"{target}.{name}"] = value, name not in layer.frozen and id(value) not in fixed
        if "running_var" in layer.state:
            found[f"{target}.num_batches_tracked"] = np.array(0, np.int64), False
    for target, instance in source.instances.items():
        for name, parameter in instance.forward.parameters.items() if instance.forward else ():
            found[f"{target}.{name}" if target else name] = given[id(parameter)], parameter.grad_req != "null"
    for module in source.root.walk():
        for name, target in module.shared.items():
            prefix = f"{module.target}.{name}" if module.target else name
            inner = {key: value for key, value in found.items() if key.startswith(f"{target}.")}
            found.update({f"{prefix}{key[len(target) :]}": value for key, value in inner.items()})
    return found
