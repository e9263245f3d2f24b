"""A net's forward pass as steps: the operators of its graph, divided among the calls of its blocks; and the modules.

The module of a block is a layer of torch.nn, an nn.Sequential, or a class of its own.
"""

from contextlib import redirect_stdout
from dataclasses import dataclass, field
import io
import keyword
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union
import warnings

from mxkit.core.arrays import legacy, switches
from mxkit.core.blocks import check_net, child_blocks, is_numpy_net, join_path, own_parameters, place_of
from mxkit.core.graph import Entry, Graph
from mxkit.core.graph import Node as GraphNode
from mxkit.core.graphs import graphs_left_aside, hooks_replaced
from mxkit.core.replicas import first_value
from mxkit.core.tracing import CALL, Trace, infer_shapes, regroup, regroup_inputs, trace
from mxkit.errors import ExportError
from mxkit.exporting.proof import net_inputs
from mxkit.exporting.to_torch.expressions import Call, Layer, Node
from mxkit.exporting.to_torch.operators import SUBGRAPHS, Problem, layer, refuse
import mxnet as mx
from mxnet import gluon
import numpy as np

# Numbers below are those of operators that MXNet's graph does not have
_FLATTENED = -1000000
# Attributes of nn.Module and its containers, and names that the generated file uses
_TEXT = (
    "F OrderedDict Path T_destination Tensor append apply bfloat16 buffers call_super_init children compile cpu cuda "
    "double dump_patches eval extend extra_repr float forward half insert ipu modules mtia nn parameters pop self "
    "share_memory state_dict to to_empty torch train training type xpu zero_grad"
)
_VERBS = ("add_module", "get_", "load", "named_", "register_", "requires_grad_", "set_")
_TAKEN = frozenset(_TEXT.split())


class Operator(NamedTuple):
    """A step that computes."""

    number: int
    name: str
    operator: str
    attrs: Dict[str, str]
    inputs: List[Entry]
    outputs: List[Entry]

    @property
    def is_first_state(self) -> bool:
        """Whether it makes the zeros of a recurrent layer's first state."""
        return self.operator in ("_zeros", "_npi_zeros") and not self.inputs


class Scope(NamedTuple):
    """One call of a block.

    Attributes:
        number: Of the call, in the order of the calls' start.
        path: First path of the block.
        block: The block.
        inputs: Entries, nested as the arguments, with None.
        outputs: Entries, nested as the result.
        steps: What it computes and calls, in an order in which it can be computed.
    """

    number: int
    path: str
    block: Any
    inputs: List[Any]
    outputs: Any
    steps: List[Union[Operator, "Scope"]]

    def scopes(self) -> Iterator["Scope"]:
        """Yield this call and all calls inside it."""
        yield self
        for step in self.steps:
            if isinstance(step, Scope):
                yield from step.scopes()

    def operators(self) -> List[Operator]:
        """Operators of the block itself."""
        return [step for step in self.steps if isinstance(step, Operator)]

    def all_operators(self) -> List[Operator]:
        """Operators of the block and of all blocks that it calls, in their order."""
        found: List[Operator] = []
        for step in self.steps:
            found += step.all_operators() if isinstance(step, Scope) else [step]
        return found


class Program:
    """A net's forward pass, divided among the calls of its blocks.

    Args:
        net: The net.
        traced: Its trace.
        arrays: An example of each argument, flattened.
        numpy: Whether it is a net of `mx.np`.

    Attributes:
        net, numpy: The arguments.
        root: The call of the net.
        inputs: Entries of the inputs, in the order of the arguments.
        shapes, dtypes: Of every entry.
        parameters: Parameters by their entries.
        internals: The graph with every entry as an output, as `entries` lists them.
        entries: Entries of the outputs of `internals`.
        names: Names of the inputs' variables, then those of the parameters by their entries.
    """

    def __init__(self, net: Any, traced: Trace, arrays: Sequence[Any], numpy: bool) -> None:
        self.net, self.numpy, self._calls = net, numpy, traced.calls
        self._children: Dict[int, List[int]] = {}
        for index, call in enumerate(traced.calls):
            self._children.setdefault(call.parent, []).append(index)
        # in the order of the computation, which the numbers of the nodes follow
        events = list(self._events(0))
        with switches(numpy):
            symbols = [one for index, side in events for one in _side(self._calls[index], side)]
            heads = legacy([one for one in symbols if one is not None])
            self.internals = mx.sym.Group(heads).get_internals()
            graph = Graph.of(mx.sym.Group([self.internals, *heads]))
            count = len(self.internals.list_outputs())
            self._nodes, self.entries = graph.nodes, graph.heads[:count]
            rest = iter(graph.heads[count:])
            self._sides = {event: self._nest(*event, rest) for event in events}
            with redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.shapes = dict(zip(self.entries, self._infer_shapes(traced, arrays)))
                self.dtypes = dict(zip(self.entries, self._infer_dtypes(traced, arrays)))
        variables = {name: Entry(node.index) for name, node in graph.variables.items()}
        self.inputs = [variables.get(one.name, Entry(-1 - number, 0)) for number, one in enumerate(traced.inputs)]
        # a recurrent layer's first states of zeros reach its own forward pass, but are no arguments of the net
        given = self._sides[0, regroup_inputs]
        given[:] = [one for one in given if not flat(one) or set(flat(one)) & set(self.inputs)]
        self.parameters = {variables[name]: one for name, one in traced.parameters.items() if name in variables}
        self.names = {entry: name for name, entry in variables.items()}
        self._outputs: Dict[int, List[Entry]] = {}
        for entry in self.entries:
            self._outputs.setdefault(entry.node, []).append(entry)
        self._owners = self._untagged()
        self.root = self._scope(0)

    def value(self, entry: Entry, values: Optional[Dict[int, Any]] = None) -> Any:
        """Value of a parameter as NumPy's array, or None; `values` as for `computed`."""
        parameter = self.parameters.get(entry)
        if parameter is None:
            return None
        return first_value(parameter).asnumpy() if values is None else values[id(parameter)]

    def computed(self, entry: Entry, values: Optional[Dict[int, Any]] = None) -> Any:
        """Compute an array that depends on parameters only, as NumPy's.

        Args:
            entry: In `entries`.
            values: NumPy arrays by the parameters' ids, instead of the parameters' own.
        """
        symbol = self.internals[self.entries.index(entry)]
        by_name = {self.names[one]: parameter for one, parameter in self.parameters.items()}
        with switches(self.numpy):
            arrays = [
                legacy(first_value(by_name[name])) if values is None else mx.nd.array(values[id(by_name[name])])
                for name in symbol.list_inputs()
            ]
            result = mx.nd.CachedOp(legacy(symbol))(*arrays)
        return result.asnumpy()

    def node_of(self, operator: Operator, inputs: Sequence[str], values: Optional[List[Any]] = None) -> Node:
        """Return an operator as a Node, which the conversions take."""
        if values is None:
            values = [self.value(entry) for entry in operator.inputs]
        own, made = ([self.shapes[entry] for entry in side] for side in (operator.inputs, operator.outputs))
        dtypes = [self.dtypes[entry] for entry in operator.inputs]
        return Node(operator.operator, operator.attrs, list(inputs), own, made, values, dtypes, operator.name)

    def part_of(self, operators: Sequence[Operator]) -> Optional["Part"]:
        """Find the one operator that uses all parameters of a block, if it is a layer of torch.nn."""
        fixed = self.constants(operators)
        known = {*self.parameters, *(entry for one in fixed.values() for entry in one.outputs)}
        cores = [one for one in operators if one.number not in fixed and known.intersection(one.inputs)]
        if len(cores) > 1 or (not cores and len(operators) > 1):
            return None
        core = cores[0] if cores else operators[0]
        found = self.layer_of(core)
        if found is None:
            return None
        if not cores and (len(core.inputs) != 1 or len(core.outputs) != 1):
            return None
        at = operators.index(core)
        sides = operators[:at], operators[at + 1 :]
        around = ([one for one in side if one.number not in fixed and not one.is_first_state] for side in sides)
        return Part(core, found, *around)

    def constants(self, operators: Sequence[Operator]) -> Dict[int, Operator]:
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

    def layer_of(
        self, operator: Operator, inputs: Sequence[str] = (), values: Optional[Dict[int, Any]] = None
    ) -> Optional[Layer]:
        """The layer of torch.nn for an operator, or None.

        Args:
            operator: The operator.
            inputs: Python expressions for its inputs.
            values: NumPy arrays by the ids of Parameters, instead of the Parameters' own values.
        """
        inputs = inputs or [f"x{number}" for number in range(len(operator.inputs))]
        given = [self.value(entry, values) for entry in operator.inputs]
        if operator.operator == "RNN":
            given[1] = self.computed(operator.inputs[1], values)
        try:
            return layer(self.node_of(operator, inputs, given))
        except ExportError:
            return None

    def data_inputs(self, operator: Operator, fixed: Dict[int, Operator]) -> List[Entry]:
        """Inputs of an operator that are no parameters."""
        return [entry for entry in operator.inputs if entry not in self.parameters and entry.node not in fixed]

    def _events(self, index: int) -> Iterator[Tuple[int, Any]]:
        """Yield the begin and the end of a call, and those of all calls inside it, in their order in time."""
        yield index, regroup_inputs
        for child in self._children.get(index, ()):
            yield from self._events(child)
        yield index, regroup

    def _nest(self, index: int, group: Any, heads: Iterator[Entry]) -> Any:
        """Nest the next entries like a call's inputs or outputs."""
        call = self._calls[index]
        entries: List[Any] = []
        for one in _side(call, group):
            entries += [None] if one is None else [next(heads) for _ in legacy(one).list_outputs()]
        structure = call.nesting if group is regroup_inputs else call.structure
        nested = entries if structure is None else group(call, entries)
        return list(nested) if group is regroup_inputs else nested

    def _infer_shapes(self, traced: Trace, arrays: Sequence[Any]) -> List[Tuple[int, ...]]:
        operators = [node for node in self._nodes if not node.is_variable]
        if not operators:
            raise ExportError("export: the net returns its inputs and computes nothing, so there is nothing to convert")
        try:
            return infer_shapes(traced, [self.internals], [array.shape for array in arrays])[0]
        except ValueError:
            inside = [(self._calls[int(node.attrs.get(CALL, 0))], node.operator) for node in operators]
            refuse([Problem(call.path, call.block, one, SUBGRAPHS[one]) for call, one in inside if one in SUBGRAPHS])
            raise

    def _infer_dtypes(self, traced: Trace, arrays: Sequence[Any]) -> List[str]:
        names = set(self.internals.list_inputs())
        known = {one.name: array.dtype for one, array in zip(traced.inputs, arrays)}
        known.update({name: one.dtype for name, one in traced.parameters.items()})
        given = {name: np.dtype(dtype).type for name, dtype in known.items() if name in names and dtype is not None}
        types = self.internals.infer_type(**given)[1] or [None] * len(self.entries)
        return [np.dtype(one or np.float32).name for one in types]

    def _untagged(self) -> Dict[int, int]:
        """Calls of the operators that a SymbolBlock's graph had before the trace."""
        owners: Dict[int, int] = {}
        for index in reversed(range(len(self._calls))):
            if not isinstance(self._calls[index].block, gluon.SymbolBlock):
                continue
            inputs = set(flat(self._sides[index, regroup_inputs]))
            below = [entry for entry in flat(self._sides[index, regroup]) if entry not in inputs]
            while below:
                node = self._nodes[below.pop().node]
                if not node.is_variable and node.index not in owners:
                    owners[node.index] = index
                    below.extend(entry for entry in node.inputs if entry not in inputs)
        return owners

    def _scope(self, index: int) -> Scope:
        """Build a call with the steps that its outputs need."""
        call, inputs, outputs = self._calls[index], self._sides[index, regroup_inputs], self._sides[index, regroup]
        inner = [self._scope(child) for child in self._children.get(index, ())]
        makers = {entry: scope for scope in reversed(inner) for entry in flat(scope.outputs)}
        known, waiting, own, called = set(flat(inputs)), flat(outputs), {}, set()
        while waiting:
            entry = waiting.pop()
            if entry in known or self._nodes[entry.node].is_variable:
                continue
            if entry in makers:
                called.add(makers[entry].number)
                step: Any = makers[entry]
            else:
                step = own[entry.node] = self._operator(index, self._nodes[entry.node])
            known.update(flat(step.outputs))
            waiting.extend(flat(step.inputs))
        steps: List[Tuple[int, Any]] = sorted(own.items())
        place = -1
        for scope in inner:
            if scope.number in called:
                place = max([place, *(entry.node for entry in flat([scope.inputs, scope.outputs]))])
                at = next((at for at, (number, _) in enumerate(steps) if number > place), len(steps))
                steps.insert(at, (place, scope))
        parts = [part for _, step in steps for part in self._flattened(step)]
        return Scope(index, call.path, call.block, inputs, outputs, parts)

    def _operator(self, index: int, node: GraphNode) -> Operator:
        """Return a call's own operator."""
        owner = self._owners.get(node.index, int(node.attrs.get(CALL, 0)))
        # an operator without inputs, like the zeros of a first state, is computed where it is used
        if owner != index and node.inputs:
            here, other = self._calls[index], self._calls[owner]
            raise ExportError(
                f"export: {place_of(here.path, here.block)} uses {node.operator} {node.name!r}, which "
                f"{place_of(other.path, other.block)} computed and did not return. Return it, or pass it as an argument"
            )
        inputs, outputs = list(node.inputs), self._outputs[node.index]
        return Operator(node.index, node.name, node.operator, node.arguments, inputs, outputs)

    def _flattened(self, step: Any) -> List[Union[Operator, Scope]]:
        """Give a dense layer's flattening an operator of its own: nn.Linear does not flatten."""
        is_dense = isinstance(step, Operator) and step.operator == "FullyConnected"
        shape = self.shapes[step.inputs[0]] if is_dense else ()
        if not is_dense or len(shape) == 2 or not self._nodes[step.number].flag("flatten"):
            return [step]
        flattened = Entry(_FLATTENED - step.number, 0)
        self.shapes[flattened] = shape[0], int(np.prod(shape[1:]))
        self.dtypes[flattened] = self.dtypes[step.inputs[0]]
        before = Operator(flattened.node, f"{step.name}_flatten", "Flatten", {}, step.inputs[:1], [flattened])
        return [before, step._replace(inputs=[flattened, *step.inputs[1:]])]


def _side(call: Any, group: Any) -> List[Any]:
    """Return a call's inputs or outputs as symbols."""
    return list(call.inputs if group is regroup_inputs else call.outputs)


def flat(nested: Any) -> List[Any]:
    """Entries in nested lists, without None."""
    if nested is None:
        return []
    return [entry for part in nested for entry in flat(part)] if type(nested) is list else [nested]


def as_lists(value: Any) -> Any:
    """Replace tuples by lists, at every depth."""
    return list(map(as_lists, value)) if isinstance(value, (list, tuple)) else value


def extract(net: Any, inputs: Sequence[Any]) -> Program:
    """Trace a net and divide its graph among its blocks.

    Args:
        net: An initialized block that can be traced with symbols.
        inputs: An example of each argument, as NumPy's arrays, in nested lists.

    Raises:
        ExportError: The net cannot be traced.

    Side effects:
        Parameters that waited for a first batch are initialized, as this batch would do.
    """
    check_net(net)
    numpy = is_numpy_net(net)
    arrays = net_inputs(net, inputs, numpy)
    with switches(numpy), mx.autograd.pause(mx.autograd.is_training()), graphs_left_aside(net), hooks_replaced(net):
        try:
            net(*arrays)
            traced = trace(net, arrays)
        except (mx.MXNetError, ValueError, TypeError, AttributeError, AssertionError, NotImplementedError) as error:
            raise ExportError(
                f"export: {type(net).__name__} cannot be traced with symbols: {type(error).__name__}: "
                f"{str(error)[:500]}. Every block must be a HybridBlock, or a Block whose forward reads neither shapes "
                "nor numbers"
            ) from error
    return Program(net, traced, flat(as_lists(arrays)), numpy)


def identifier(name: str, taken: Set[str]) -> str:
    """A valid name of an attribute that nn.Module does not have.

    >>> identifier("type", set()), identifier("0", set()), identifier("conv-1", {"conv_1"})
    ('type_', 'layer0', 'conv_1_')
    """
    name = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
    name = f"layer{name}" if not name or name[0].isdigit() else name
    name = f"{name}_" if name.startswith(_VERBS) else name
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

    @property
    def is_numbered(self) -> bool:
        """Whether all its children have numbers as names."""
        names = [*self.children, *self.shared]
        return bool(names) and all(name.isdigit() for name in names)

    def walk(self) -> Iterator["Module"]:
        """Yield this module and all inside it, each once."""
        yield self
        for child in self.children.values():
            yield from child.walk()


def modules(program: Program) -> Module:
    """Build the tree of modules.

    Raises:
        ExportError: A block is called that is not inside the block that calls it.
    """
    return _Builder(program).module(program.net, "", "")


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.scopes: Dict[int, List[Scope]] = {}
        for scope in program.root.scopes():
            self.scopes.setdefault(id(scope.block), []).append(scope)
        self.made: Dict[int, str] = {}

    def _used(self, block: Any) -> bool:
        return id(block) in self.scopes or any(self._used(child) for child in child_blocks(block).values())

    def module(self, block: Any, path: str, target: str) -> Module:
        """Build the module of a block and those inside it."""
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
                module.children[own] = self.module(child, join_path(module.path, name), join_path(module.target, own))
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
        return all(len(one.inputs) == 1 and self.program.layer_of(one) is not None for one in around)

    def _part(self, scope: Scope) -> Optional["Part"]:
        operators = scope.all_operators()
        if not operators:
            same = len(scope.inputs) == 1 and scope.outputs == scope.inputs[0]
            return Part(None, Layer(Call("nn.Identity", ()), {}), [], []) if same else None
        if type(scope.outputs) is list and operators[-1].operator != "RNN":
            return None
        return self.program.part_of(operators)


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
