"""The forward pass of one block as lines of Python."""

import inspect
import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple, Union

from mxkit.core.blocks import own_parameters
from mxkit.core.graph import Entry
from mxkit.core.graphs import traced_graph
from mxkit.errors import ExportError
from mxkit.exporting.to_torch.expressions import Layer
from mxkit.exporting.to_torch.operators import Problem, expression, names_used
from mxkit.exporting.to_torch.program import Module, Operator, Program, Scope, accesses, flat, identifier
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


class Line(NamedTuple):
    """One assignment.

    Attributes:
        target: What stands before "=".
        expression: What stands after it.
        names: Variables that it assigns.
        entries: The entry of each of them.
        label: The operator that computes it; '' for a call of a child.
    """

    target: str
    expression: str
    names: List[str]
    entries: List[Entry]
    label: str


class Forward(NamedTuple):
    """A method `forward`.

    Attributes:
        arguments: Names and annotations.
        lines: Its assignments.
        result: What it returns.
        returns: Its annotation.
        layers: Layers for operators of the block itself, by their attribute, and the operators.
        parameters: The block's own Parameters that it reads, by their attribute.
    """

    arguments: List[Tuple[str, str]]
    lines: List[Line]
    result: str
    returns: str
    layers: Dict[str, Tuple[Layer, Operator]]
    parameters: Dict[str, Any]

    def text(self) -> str:
        """Return the text that is equal for all calls of one class."""
        lines = "".join(f"{line.target} = {line.expression}\n" for line in self.lines)
        return f"{self.arguments}\n{lines}{self.result}"


class _Action(NamedTuple):
    """A step of the method; the operators around a child's layer are steps of their own."""

    access: str
    step: Union[Operator, Scope]
    inputs: Any
    outputs: List[Entry]


def _plain(operator: Operator) -> _Action:
    return _Action("", operator, operator.inputs, operator.outputs)


class Renderer:
    """Writes the forward pass of a call of a class.

    Args:
        program: The program.
        module: The class.
        scope: The call.
        shared: Modules by the ids of their blocks, for blocks with two paths.
        problems: Operators without an equivalent are added to it.
    """

    def __init__(
        self, program: Program, module: Module, scope: Scope, shared: Dict[int, Module], problems: List[Problem]
    ) -> None:
        self.program, self.module, self.scope, self.problems = program, module, scope, problems
        self.found = accesses(module)
        for name in module.shared:
            for key, own in module.names.items():
                if own == name and key in shared:
                    self.found[key] = (shared[key], f"self[{name}]" if name.isdigit() else f"self.{name}")
        self.names: Dict[Entry, str] = {}
        self.lines: List[Line] = []
        self.layers: Dict[str, Tuple[Layer, Operator]] = {}
        self.parameters: Dict[str, Any] = {}
        self.zeros: Dict[Entry, Operator] = {}
        self.fixed = program.constants(scope.operators())

    def render(self) -> Forward:
        """Write it."""
        actions = [action for step in self.scope.steps for action in self._actions(step)]
        self.last: Dict[Entry, int] = {}
        for index, action in enumerate(actions):
            self.last.update(dict.fromkeys(flat(action.inputs), index))
        self.last.update(dict.fromkeys(flat(self.scope.outputs), len(actions)))
        arguments = self._arguments()
        self.first_names = dict(self.names)
        for index, action in enumerate(actions):
            self._line(index, action)
        unpacked = sum(type(value) is list for value in self.scope.inputs)
        self.lines[unpacked:unpacked] = self._sizes()
        result, returns = self._nested(self.scope.outputs), annotation(self.scope.outputs)
        if type(self.scope.outputs) is list and len(self.scope.outputs) > 1:
            result = result[1:-1]
            returns = f"tuple[{', '.join(map(annotation, self.scope.outputs))}]"
        return Forward(arguments, self.lines, result, returns, self.layers, self.parameters)

    def _actions(self, step: Union[Operator, Scope]) -> List[_Action]:
        """Return the steps of a call: a child's layer and the operators around it."""
        if isinstance(step, Operator):
            if step.is_first_state:
                self.zeros[step.outputs[0]] = step
                return []
            return [] if step.number in self.fixed else [self._own(step)]
        if id(step.block) not in self.found:
            raise ExportError(
                f"export: {self.module.path or 'the net'!r} ({type(self.module.block).__name__}) calls {step.path!r}, "
                "which is not inside it. Make it an attribute of the block that calls it"
            )
        child, access = self.found[id(step.block)]
        if child.kind != "layer":
            return [_Action(access, step, step.inputs, flat(step.outputs))]
        operators = step.all_operators()
        part = self.program.part_of(operators)
        if part is None or part.core is None:  # an Identity
            return [_Action(access, step, step.inputs, flat(step.outputs))]
        self.zeros.update({one.outputs[0]: one for one in operators if one.is_first_state})
        fixed = self.program.constants(operators)
        core = _Action(access, part.core, self.program.data_inputs(part.core, fixed), part.core.outputs)
        return [*map(_plain, part.before), core, *map(_plain, part.after)]

    def _own(self, operator: Operator) -> _Action:
        """Return the step of the block's own operator: a layer if nothing else reads its parameters."""
        used = [entry for entry in operator.inputs if entry in self.program.parameters]
        used += [entry for entry in operator.inputs if entry.node in self.fixed]
        others = [other for other in self.scope.operators() if other is not operator]
        alone = not any(entry in other.inputs for entry in used for other in others)
        of_symbol = used and isinstance(self.module.block, gluon.SymbolBlock)
        alone = alone and bool(self.program.data_inputs(operator, self.fixed))
        if alone and (of_symbol or operator.operator == "RNN"):
            layer = self.program.layer_of(operator)
            if layer is not None:
                return self._as_layer(operator, layer, self._common_name(operator, used))
        return _plain(operator)

    def _as_layer(self, operator: Operator, layer: Layer, name: str) -> _Action:
        taken: Set[str] = {*self.layers, *self.module.children, *self.module.shared}
        name = identifier(name, set())
        number = 2
        while name in taken:
            name, number = f"{name.rstrip('0123456789') if number > 2 else name}{number}", number + 1
        self.layers[name] = layer, operator
        return _Action(f"self.{name}", operator, self.program.data_inputs(operator, self.fixed), operator.outputs)

    def _common_name(self, operator: Operator, used: List[Entry]) -> str:
        names = [self.program.names[entry].rpartition(".")[2] for entry in used if entry in self.program.parameters]
        common = names[0].rpartition("_")[0] if len(names) == 1 else os.path.commonprefix(names) if names else ""
        return common.rstrip("_") or operator.operator.lower()

    def _arguments(self) -> List[Tuple[str, str]]:
        names, arguments = argument_names(self.module.block, len(self.scope.inputs)), []
        for name, value in zip(names, self.scope.inputs):
            arguments.append((name, annotation(value)))
            if type(value) is list:
                parts = [f"{name.rstrip('s')}{number}" for number in range(len(flat(value)))]
                self.names.update(zip(flat(value), parts))
                self.lines.append(Line(pattern(value, self.names), name, parts, flat(value), ""))
            elif value is not None:
                self.names[value] = name
        return arguments

    def _line(self, index: int, action: _Action) -> None:
        step = action.step
        if isinstance(step, Scope):
            text = f"{action.access}({', '.join(map(self._nested, step.inputs))})"
            nested: Any = step.outputs
        elif action.access:
            text, nested = self._layer_call(action, step)
        else:
            text, nested = self._expression(step), list(step.outputs) if len(step.outputs) > 1 else step.outputs[0]
        live = [entry for entry in flat(nested) if entry in self.last]
        self._name(index, action, live)
        target = pattern(nested, self.names, set(live))
        label = "" if isinstance(step, Scope) else step.operator
        self.lines.append(Line(target, text, [self.names[entry] for entry in live], live, label))

    def _layer_call(self, action: _Action, operator: Operator) -> Tuple[str, Any]:
        known = [entry in action.inputs and entry not in self.zeros for entry in operator.inputs]
        inputs = [self._operand(entry) if one else "" for entry, one in zip(operator.inputs, known)]
        y, *rest = operator.outputs
        if operator.operator == "RNN":
            states = [text for text in inputs[2:] if text]  # zeros are torch's default
            given = f", ({', '.join(states)})" if len(states) == 2 else "".join(f", {state}" for state in states)
            return f"{action.access}({inputs[0]}{given})", [y, rest if len(rest) == 2 else rest[0] if rest else None]
        layer = self.program.layer_of(operator, inputs=inputs)
        text = layer.call if layer and layer.call else "{layer}({0})"
        return text.format(*inputs, layer=action.access), [y, *rest] if rest else y

    def _expression(self, operator: Operator) -> str:
        # a recurrent layer that is no module is refused; its weights have no names
        known = operator.operator != "RNN"
        inputs = [self._operand(entry) if known else "None" for entry in operator.inputs]
        try:
            return expression(self.program.node_of(operator, inputs))
        except ExportError as error:
            reason = str(error).rpartition("cannot be converted to PyTorch: ")[2]
            self.problems.append(Problem(self.scope.path, self.scope.block, operator.operator, reason, marked=True))
            name = operator.attrs.get("op_type", operator.operator)  # of a custom operator
            return f"not_written({', '.join([json.dumps(name), *inputs])})"

    def _operand(self, entry: Entry) -> str:
        if entry in self.program.parameters:
            return self._parameter(entry)
        if entry in self.zeros and entry not in self.names:
            self._zeros(entry)
        return self.names[entry]

    def _parameter(self, entry: Entry) -> str:
        parameter = self.program.parameters[entry]
        for name, own in own_parameters(self.module.block).items():
            if own is parameter:
                attribute = identifier(name, {*self.module.children, *self.module.shared})
                self.parameters[attribute] = parameter
                return f"self.{attribute}"
        name = f"parameter {self.program.names[entry]!r}"
        reason = "it is read by a block to which it does not belong; read it in its own block, or share it with params="
        self.problems.append(Problem(self.scope.path, self.scope.block, name, reason))
        return "None"

    def _zeros(self, entry: Entry) -> None:
        """Write the zeros of a first state before the line that reads them."""
        text = self._expression(self.zeros[entry])
        self.names[entry] = name = self._free("state")
        self.lines.append(Line(name, text, [name], [entry], "_zeros"))

    def _sizes(self) -> List[Line]:
        """Return assignments of `batch_size` and `device` where expressions read them."""
        used = {name for line in self.lines for name in names_used(line.expression)}
        given = flat(self.scope.inputs)[0]
        source, sizes = self.first_names[given], self.program.shapes[given]
        batch = self.program.shapes[self.program.inputs[0]][0]
        axis = sizes.index(batch) if batch in sizes else 0
        texts = {"batch_size": f"{source}.shape[{axis}]", "device": f"{source}.device"}
        return [Line(name, texts[name], [], [], "") for name in sorted(used)]

    def _nested(self, value: Any) -> str:
        if value is None:
            return "None"
        if type(value) is not list:
            return self._operand(value)
        return f"[{', '.join(map(self._nested, value))}]"

    def _name(self, index: int, action: _Action, live: List[Entry]) -> None:
        """Name the results: reuse the name of an argument that no later line reads, or make a new one."""
        keep = {name for entry, name in self.names.items() if self.last.get(entry, -1) > index}
        read = dict.fromkeys(self.names[entry] for entry in flat(action.inputs) if entry in self.names)
        free = [name for name in read if name not in keep]
        for entry in live:
            name = free.pop(0) if free else self._free("branch", index)
            self.names[entry] = name

    def _free(self, hint: str, index: int = -1) -> str:
        used = {name for entry, name in self.names.items() if self.last.get(entry, -1) > index}
        names = argument_names(self.module.block, len(self.scope.inputs))
        used.update(name for name, value in zip(names, self.scope.inputs) if type(value) is list)
        free = ["x", "y", "z", hint, *(f"{hint}{number}" for number in range(1, len(used) + 2))]
        return next(name for name in free if name not in used)
