"""Chooses the module of each block: a layer of torch.nn, an nn.Sequential, or a class of its own."""

from dataclasses import dataclass, field
import keyword
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from mxkit.core.blocks import child_blocks, join_path, own_parameters
from mxkit.core.graph import Entry
from mxkit.errors import ExportError
from mxkit.exporting.to_torch.expressions import Argument, Call, Layer, Node
from mxkit.exporting.to_torch.operators import layer
from mxkit.exporting.to_torch.program import Operator, Program, Scope
from mxnet import gluon

# Attributes of nn.Module and its containers, and names that the generated file uses
_TEXT = (
    "F OrderedDict Path T_destination Tensor add_module append apply bfloat16 buffers call_super_init "
    "children compile cpu cuda double dump_patches eval extend extra_repr float forward get_buffer "
    "get_extra_state get_parameter get_submodule half insert ipu load load_file load_state_dict modules "
    "mtia named_buffers named_children named_modules named_parameters nn parameters pop "
    "register_backward_hook register_buffer register_forward_hook register_forward_pre_hook "
    "register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook "
    "register_state_dict_pre_hook requires_grad_ self set_extra_state set_submodule share_memory "
    "state_dict to to_empty torch train training type xpu zero_grad "
)
_TAKEN = frozenset(_TEXT.split())


def identifier(name: str, taken: Set[str]) -> str:
    """A valid name of an attribute that nn.Module does not have.

    >>> identifier("type", set()), identifier("0", set()), identifier("conv-1", {"conv_1"})
    ('type_', 'layer0', 'conv_1_')
    """
    name = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
    name = f"layer{name}" if not name or name[0].isdigit() else name
    while name in taken or name in _TAKEN or keyword.iskeyword(name):
        name += "_"
    return name


class Part(NamedTuple):
    """A layer of torch.nn for the one operator of a block that has parameters, and the block's other operators.

    Attributes:
        core: The operator; None for a block that returns its input.
        layer: Its layer.
        before, after: Operators without parameters around it.
    """

    core: Optional[Operator]
    layer: Layer
    before: List[Operator]
    after: List[Operator]


@dataclass(eq=False)
class Module:
    """A block, and the module that it becomes in PyTorch.

    Attributes:
        block: The block.
        path: Its path in the Gluon net.
        target: Its path in the PyTorch net.
        kind: "layer", "sequential", "class", or "container" for a block that is never called itself.
        scopes: Its calls.
        children: By their names in PyTorch.
        part: Of a "layer".
        names: Names in `children` by the ids of the blocks.
        shared: For children that are the same block as one before, the target of that one.
    """

    block: Any
    path: str
    target: str
    kind: str
    scopes: List[Scope]
    children: Dict[str, "Module"] = field(default_factory=dict)
    part: Optional[Part] = None
    names: Dict[int, str] = field(default_factory=dict)
    shared: Dict[str, str] = field(default_factory=dict)

    def walk(self) -> Iterator["Module"]:
        """Yield this module and all inside it, each once."""
        yield self
        for child in self.children.values():
            yield from child.walk()


def node_of(program: Program, operator: Operator, inputs: Sequence[str], values: Optional[List[Any]] = None) -> Node:
    """Return an operator as a Node, which the conversions take."""
    if values is None:
        values = [program.value(entry) for entry in operator.inputs]
    return Node(
        operator.operator,
        operator.attrs,
        list(inputs),
        [program.shapes[entry] for entry in operator.inputs],
        [program.shapes[entry] for entry in operator.outputs],
        values,
        [program.dtypes[entry] for entry in operator.inputs],
        operator.name,
    )


def modules(program: Program) -> Module:
    """Build the tree of modules.

    Raises:
        ExportError: A block is called that is not inside the block that calls it.
    """
    return _Builder(program).build()


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.scopes: Dict[int, List[Scope]] = {}
        for scope in program.root.scopes():
            self.scopes.setdefault(id(scope.block), []).append(scope)
        self.made: Dict[int, str] = {}

    def build(self) -> Module:
        return self._module(self.program.net, "", "")

    def _used(self, block: Any) -> bool:
        return id(block) in self.scopes or any(self._used(child) for child in child_blocks(block).values())

    def _module(self, block: Any, path: str, target: str) -> Module:
        self.made[id(block)] = target
        scopes = self.scopes.get(id(block), [])
        module = Module(block, path, target, "class" if scopes else "container", scopes)
        parts = [self._part(scope) for scope in scopes] if target and self._is_leaf(block) else []
        if parts and all(parts) and len({part.layer.constructor for part in parts if part}) == 1:
            module.kind, module.part = "layer", parts[0]
            return module
        self._add_children(module)
        if scopes and self._is_chain(module):
            module.kind = "sequential"
        return module

    def _is_leaf(self, block: Any) -> bool:
        """Whether a block calls no others, apart from a stock layer's own activation."""
        children = [child for child in child_blocks(block).values() if self._used(child)]
        stock = type(block).__module__.startswith("mxnet.gluon.nn")
        return not children or (stock and all(isinstance(child, gluon.nn.Activation) for child in children))

    def _add_children(self, module: Module) -> None:
        used = {name: child for name, child in child_blocks(module.block).items() if self._used(child)}
        plain = isinstance(module.block, (gluon.nn.Sequential, gluon.nn.HybridSequential)) or (
            used and [*used] == [str(number) for number in range(len(used))]
        )
        for name, child in used.items():
            own = name if plain else identifier(name, {*module.children, *module.shared, *own_parameters(module.block)})
            if id(child) in self.made:
                module.shared[own] = self.made[id(child)]
            else:
                path = join_path(module.path, name)
                module.children[own] = self._module(child, path, join_path(module.target, own))
            module.names.setdefault(id(child), own)

    def _is_chain(self, module: Module) -> bool:
        """Whether a sequential block calls its children one after the other, and nothing else."""
        if not isinstance(module.block, (gluon.nn.Sequential, gluon.nn.HybridSequential)):
            return False
        children = [id(child) for child in child_blocks(module.block).values() if self._used(child)]
        for scope in module.scopes:
            previous, called = scope.inputs, []
            for step in scope.steps:
                inner = module.children.get(module.names.get(id(step.block), "")) if isinstance(step, Scope) else None
                if not isinstance(step, Scope) or step.inputs != previous or type(step.outputs) is list:
                    return False
                if inner is not None and inner.kind == "layer" and not self._sequence(inner):
                    return False
                called.append(id(step.block))
                previous = [step.outputs]
            if called != children or len(scope.inputs) != 1 or previous != [scope.outputs]:
                return False
        return True

    def _sequence(self, module: Module) -> bool:
        """Whether a layer's other operators are layers, too, so that it can stand inside an nn.Sequential."""
        part = module.part
        if part is None or part.layer.call is not None:
            return False
        around = part.before + part.after
        return all(len(one.inputs) == 1 and layer_of(self.program, one) is not None for one in around)

    def _part(self, scope: Scope) -> Optional[Part]:
        operators = scope.all_operators()
        if not operators:
            same = len(scope.inputs) == 1 and scope.outputs == scope.inputs[0]
            return Part(None, Layer(Call("nn.Identity", ()), {}), [], []) if same else None
        if type(scope.outputs) is list and operators[-1].operator != "RNN":
            return None
        return part_of(self.program, scope, operators)


def part_of(program: Program, scope: Scope, operators: Sequence[Operator]) -> Optional[Part]:
    """Find the one operator that uses all parameters of a block, if it is a layer of torch.nn."""
    fixed = constants(program, operators)
    cores = [one for one in operators if one.number not in fixed and any(_fixed(program, fixed, one))]
    if len(cores) > 1 or (not cores and len(operators) > 1):
        return None
    core = cores[0] if cores else operators[0]
    found = layer_of(program, core)
    if found is None:
        return None
    if not cores and (len(core.inputs) != 1 or len(core.outputs) != 1):
        return None
    at = operators.index(core)
    before, after = (
        [one for one in side if one.number not in fixed and not is_first_state(program, one)]
        for side in (operators[:at], operators[at + 1 :])
    )
    return _batch_first(Part(core, found, before, after))


def _batch_first(part: Part) -> Part:
    """Replace two exchanges of the first axes around a recurrent layer by batch_first=True."""
    core, after = part.core, part.after
    if core is None or core.operator != "RNN" or len(part.before) != 1 or len(after) != 1:
        return part
    exchanged = _exchanges(part.before[0]) and _exchanges(after[0]) and after[0].inputs == core.outputs[:1]
    if not exchanged or core.inputs[0] != part.before[0].outputs[0]:
        return part
    core = core._replace(
        inputs=[*part.before[0].inputs, *core.inputs[1:]], outputs=[*after[0].outputs, *core.outputs[1:]]
    )
    function, arguments = part.layer.constructor
    constructor = Call(function, (*arguments, Argument("batch_first", "True", "False")))
    return Part(core, part.layer._replace(constructor=constructor), [], [])


def _exchanges(operator: Operator) -> bool:
    axes = (operator.attrs.get("dim1", "0"), operator.attrs.get("dim2", "0"))
    return operator.operator == "SwapAxis" and sorted(axes) == ["0", "1"]


def constants(program: Program, operators: Sequence[Operator]) -> Dict[int, Operator]:
    """Operators that depend on parameters only and feed a recurrent layer, by their numbers."""
    by_output = {entry: one for one in operators for entry in one.outputs}
    found: Dict[int, Operator] = {}
    waiting = [one.inputs[1] for one in operators if one.operator == "RNN"]
    while waiting:
        one = by_output.get(waiting.pop())
        if one is not None:
            found[one.number] = one
            waiting.extend(one.inputs)
    return found


def _fixed(program: Program, fixed: Dict[int, Operator], operator: Operator) -> List[bool]:
    return [entry in program.parameters or entry.node in fixed for entry in operator.inputs]


def is_first_state(program: Program, operator: Operator) -> bool:
    """Whether an operator makes the zeros of a recurrent layer's first state."""
    return operator.operator in ("_zeros", "_npi_zeros") and not operator.inputs


def layer_of(
    program: Program, operator: Operator, inputs: Sequence[str] = (), values: Optional[Dict[int, Any]] = None
) -> Optional[Layer]:
    """The layer of torch.nn for an operator, or None.

    Args:
        program: The program.
        operator: The operator.
        inputs: Python expressions for its inputs.
        values: NumPy arrays by the ids of Parameters, instead of the Parameters' own values.
    """
    inputs = inputs or [f"x{number}" for number in range(len(operator.inputs))]
    given = [program.value(entry, values) for entry in operator.inputs]
    if operator.operator == "RNN":
        given[1] = program.computed(operator.inputs[1], values)
    try:
        return layer(node_of(program, operator, inputs, given))
    except ExportError:
        return None


def data_inputs(program: Program, operator: Operator, fixed: Dict[int, Operator]) -> List[Entry]:
    """Inputs of an operator that are no parameters."""
    return [entry for entry in operator.inputs if entry not in program.parameters and entry.node not in fixed]


def accesses(module: Module) -> Dict[int, Tuple[Module, str]]:
    """Python expressions for the modules inside a class, by the ids of the blocks."""
    found: Dict[int, Tuple[Module, str]] = {}

    def visit(inner: Module, before: str) -> None:
        for name, child in inner.children.items():
            access = f"{before}[{name}]" if name.isdigit() else f"{before}.{name}"
            if inner.kind == "container" and not name.isdigit():
                access = f'{before}["{name}"]'
            found[id(child.block)] = (child, access)
            visit(child, access)

    visit(module, "self")
    return found
