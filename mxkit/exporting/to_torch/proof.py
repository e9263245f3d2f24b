"""Compares a converted net with MXNet: every step of every block, and, if asked, gradients and running statistics."""

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from mxkit.core.arrays import legacy, switches
from mxkit.core.graph import Entry, Graph
from mxkit.core.replicas import first_value, is_trainable
from mxkit.errors import ExportError
from mxkit.exporting.proof import JUMPING, Draw, Row, above, at_places, beside_summands, compare, net_outputs, summands
from mxkit.exporting.to_torch.code import Source, beside, layers_with_state, state
from mxkit.exporting.to_torch.program import Operator, Program, as_lists, flat
import mxnet as mx
import numpy as np

_FLOATS = (np.float32, np.float64)


class Computed(NamedTuple):
    """Result of `computed`.

    Attributes:
        values: Arrays by their entries.
        gradients: Gradients by the Parameters' ids, after a backward pass.
        heads: Gradients of the outputs, from which the backward pass began.
        after: Values of all Parameters after the forward pass, by their ids.
    """

    values: Dict[Entry, Any]
    gradients: Dict[int, Any]
    after: Dict[int, Any]
    heads: List[Any]


def compare_torch(
    source: Source, code: str, weights: Mapping[str, Any], batches: Sequence[Sequence[Any]], train: bool = False
) -> List[Row]:
    """Compare every step of a converted net with MXNet, on the CPU.

    Args:
        source: The converted net, whose steps are compared.
        code: The text of its file, whose outputs are compared.
        weights: What stands in its weights' file, by key.
        batches: For each comparison, the arguments as NumPy's arrays, in nested lists.
        train: Whether to compare the training mode as well: batch statistics, gradients of the sum of the outputs
            times fixed random numbers, running statistics after it. Dropout is off.

    Returns:
        Rows, named by the blocks' paths.
    """
    rows = []
    for inputs in batches:
        rows += _compared(source, weights, inputs, None)
        if not _before_jumps(source.program):
            rows += _file_rows(source, code, weights, inputs)
        if train:
            rows += _trained(source, weights, inputs)
    return rows


def not_compared(source: Source) -> List[str]:
    """List MXNet's operators that are parts of one layer of PyTorch, so that their results cannot be compared."""
    program = source.program
    lines = (line for one in source.instances.values() for call in one.calls for line in call.lines)
    known = {entry for line in lines for entry in line.entries}
    for module in source.root.walk():
        for scope in module.scopes if module.part else ():
            part = program.part_of(scope.all_operators())
            operators = [part.core, *part.before, *part.after] if part and part.core else []
            known.update(entry for one in operators if one for entry in one.outputs)
    return [one.name for one in program.root.all_operators() if not known.intersection(one.outputs)]


def _before_jumps(program: Program) -> Set[Entry]:
    """Return the computed inputs of the operators in JUMPING."""
    operators = program.root.all_operators()
    made = {entry for one in operators for entry in one.outputs}
    return made & {entry for one in operators if one.operator in JUMPING for entry in one.inputs}


def _file_rows(source: Source, code: str, weights: Mapping[str, Any], inputs: Sequence[Any]) -> List[Row]:
    """Compare the outputs of the file itself with the net's own."""
    run = _Run(source, code, weights, False, False)
    rows = [*_output_rows(source, inputs, run(inputs) or [], "the file")]
    return beside_summands(rows, partial(entry_summands, source.program, inputs, False, False))


def _output_rows(
    source: Source, inputs: Sequence[Any], outputs: Sequence[Any], label: str
) -> Iterator[Tuple[Entry, Row]]:
    batch, entries = _batch_size(source.program, inputs), flat(source.program.root.outputs)
    pairs = zip(net_outputs(source.program.net, inputs, source.program.numpy), outputs)
    for number, (expected, output) in enumerate(pairs):
        yield entries[number], compare(f"output {number}", label, batch, expected, output.detach().numpy())


def _trained(source: Source, weights: Mapping[str, Any], inputs: Sequence[Any]) -> List[Row]:
    """Compare the training mode; batch statistics of few numbers need double precision, which some operators lack."""
    try:
        return _compared(source, weights, inputs, True)
    except mx.MXNetError:
        with suppress(mx.MXNetError):  # it raises the same error again at the next wait
            mx.nd.waitall()
        return _compared(source, weights, inputs, False)


def _compared(source: Source, weights: Mapping[str, Any], inputs: Sequence[Any], wide: Optional[bool]) -> List[Row]:
    """Compare one mode: prediction if `wide` is None, else training, in double precision if `wide`."""
    program, train = source.program, wide is not None
    expected = computed(program, inputs, train, bool(wide))
    batch = _batch_size(program, inputs)
    run = _Run(source, source.text(recorded=True), weights, train, bool(wide))
    run.expected, run.batch, run.mode = expected.values, batch, "training, " if train else ""
    run.fed = set() if train else _before_jumps(program)
    outputs = run(inputs)
    if outputs is None:  # torch refuses statistics of one number
        return []
    if run.fed:
        run.rows += _output_rows(source, inputs, outputs, "the file, on MXNet's own numbers where a result jumps")
    rows = beside_summands(run.rows, partial(entry_summands, program, inputs, train, bool(wide)))
    if train:
        run.backward(outputs, expected.heads)
        floor = 1e-6 if wide else 1e-2
        rows += _gradient_rows(source, run.net, expected, batch, floor)
        rows += _statistic_rows(source, run.net, expected, weights, batch, floor)
    return rows


def _batch_size(program: Program, inputs: Sequence[Any]) -> int:
    """The size in which the first input differs from the example with which the net was traced."""
    shape = np.shape(flat(as_lists(inputs))[0])
    return int(next((own for own, traced in zip(shape, program.shapes[program.inputs[0]]) if own != traced), shape[0]))


class _Run:
    """The converted net with a record of its steps."""

    def __init__(self, source: Source, code: str, weights: Mapping[str, Any], train: bool, wide: bool) -> None:
        import torch

        self._torch = torch
        self._source, self._train, self._wide = source, train, wide
        self.rows: List[Tuple[Entry, Row]] = []
        self.expected: Dict[Entry, Any] = {}
        self.fed: Set[Entry] = set()
        self.batch, self.mode = 0, ""
        self._seen: Set[Entry] = set()
        choosing = (one for one in source.program.root.all_operators() if one.operator == "topk")
        self._made = {entry: one for one in choosing for entry in one.outputs}
        self._calls: Counter[Any] = Counter()
        names: Dict[str, Any] = {"__name__": "converted", "record": self._record}
        exec(compile(code, "<converted net>", "exec"), names)  # noqa: S102 - mxkit wrote it
        if train and "F" in names:
            names["F"] = _NoDropout(names["F"])
        self.net = names[source.classes[-1].name]()
        self.net.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in weights.items()})
        self.net.train(train)
        if wide:
            self.net.double()
        self._targets = {id(module): name for name, module in self.net.named_modules()}
        for module in self.net.modules():
            if isinstance(module, torch.nn.Dropout) and train:
                module.p = 0.0
            if isinstance(module, torch.nn.RNNBase) and train:
                module.dropout = 0.0
        self._watch()

    def __call__(self, inputs: Sequence[Any]) -> Optional[List[Any]]:
        torch = self._torch
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64 if self._wide else before)  # of arrays that the net makes
            with torch.enable_grad() if self._train else torch.no_grad():
                outputs = self.net(*map(self._tensor, inputs))
        except (ValueError, RuntimeError, TypeError, IndexError) as error:
            if "more than 1 value per channel" in str(error):
                return None
            path = self.rows[-1][1].name if self.rows else ""
            raise ExportError(
                f"export: the PyTorch code fails after {path or 'the first step'!r}: {type(error).__name__}: "
                f"{str(error)[:300]}. This is an error of mxkit's conversion: please report it with the net"
            ) from error
        finally:
            torch.set_default_dtype(before)
        return flat(as_lists(outputs))

    def backward(self, outputs: Sequence[Any], heads: Sequence[Any]) -> None:
        """Compute the gradients of the sum of the outputs times `heads`."""
        total = sum(
            (output * self._torch.from_numpy(head).to(output.dtype)).sum() for output, head in zip(outputs, heads)
        )
        if total.requires_grad:
            total.backward()

    def _tensor(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._tensor(part) for part in value]
        if value is None:
            return None
        tensor = self._torch.from_numpy(np.array(value))
        return tensor.double() if self._wide and tensor.is_floating_point() else tensor

    def _add(self, path: str, label: str, entries: Sequence[Entry], tensors: Sequence[Any]) -> None:
        for entry, tensor in zip(entries, tensors):
            if entry in self.expected and entry not in self._seen:
                self._seen.add(entry)
                pair = (self._at_places(entry, one) for one in (self.expected[entry], tensor.detach()))
                self.rows.append((entry, compare(path or "the net", self.mode + label, self.batch, *pair)))
            if entry in self.fed and entry in self.expected and tuple(tensor.shape) == self.expected[entry].shape:
                tensor.data = self._torch.from_numpy(np.array(self.expected[entry])).to(tensor.dtype)

    def _at_places(self, entry: Entry, array: Any) -> Any:
        made = self._made.get(entry)
        if made is None:
            return array
        return at_places(made.operator, made.attrs, entry.output, self.expected.get(made.inputs[0]), array)

    def _record(self, module: Any, number: int, tensors: Sequence[Any]) -> None:
        target = self._targets[id(module)]
        instance = self._source.instances[target]
        call = self._calls[target, number]
        self._calls[target, number] += 1
        line = instance.calls[call].lines[number]
        self._add(instance.module.path, line.label, line.entries, tensors)

    def _watch(self) -> None:
        """Record the outputs of layers, and of the operators beside them."""
        found = dict(self.net.named_modules())
        for module in self._source.root.walk():
            own = {"": module.part.core} if module.part and module.scopes else {}
            for name, operator in [*own.items(), *((f"_{name}", one) for name, one in beside(module) if own)]:
                inner = found.get(f"{module.target}{name}")
                if inner is not None and operator is not None:
                    inner.register_forward_hook(self._hook(module.path, operator))

    def _hook(self, path: str, operator: Operator) -> Callable[..., None]:
        return lambda _, __, outputs: self._add(path, operator.operator, operator.outputs[:1], flat(as_lists(outputs)))


class _NoDropout:
    """torch.nn.functional without dropout."""

    def __init__(self, functional: Any) -> None:
        self._functional = functional

    def __getattr__(self, name: str) -> Any:
        return (lambda x, *_, **__: x) if name == "dropout" else getattr(self._functional, name)


def _gradient_rows(source: Source, net: Any, expected: Computed, batch: int, floor: float) -> Iterator[Row]:
    """Compare gradients.

    A gradient below `floor` of the net's largest is compared with that much: a bias before a BatchNorm has none, and
    both programs give their rounding.
    """
    tensors, modules = dict(net.named_parameters(remove_duplicate=False)), dict(net.named_modules())
    found = {key: value for key, (value, trained) in state(source, expected.gradients).items() if trained}
    smallest = floor * max((float(np.abs(value).max(initial=0)) for value in found.values()), default=0.0)
    for key, gradient in found.items():
        tensor = tensors.get(key)
        if tensor is None:
            continue
        actual = np.zeros(tensor.shape, "f") if tensor.grad is None else tensor.grad.numpy()
        groups = getattr(modules.get(key.rpartition(".")[0]), "num_groups", 0)
        if groups:  # MXNet has one number for a group's channels: its gradient is their sum
            actual = np.repeat(actual.reshape(groups, -1).sum(1), len(actual) // groups)
        yield above(smallest, compare(key, "gradient", batch, gradient, actual))


def _statistic_rows(
    source: Source, net: Any, expected: Computed, weights: Mapping[str, Any], batch: int, floor: float
) -> Iterator[Row]:
    """Compare running statistics after one batch. torch's variance is the unbiased one, MXNet's is not."""
    sizes = _sizes(source, expected)
    buffers = dict(net.named_buffers(remove_duplicate=False))
    modules = dict(net.named_modules(remove_duplicate=False))
    for key, (value, _) in state(source, expected.after).items():
        prefix, _, name = key.rpartition(".")
        if name not in ("running_mean", "running_var") or prefix not in sizes:
            continue
        if name == "running_var":
            count, kept = sizes[prefix], (1 - modules[prefix].momentum) * weights[key]
            if count == 1:
                continue
            value = kept + (value - kept) * count / (count - 1)
        # the mean after a convolution of centred numbers is zero up to rounding: compare it with the deviation
        deviation = float(np.sqrt(np.abs(buffers[f"{prefix}.running_var"].numpy()).max(initial=0)))
        yield above(floor * deviation, compare(key, "after a batch", batch, value, buffers[key].numpy()))


def _sizes(source: Source, expected: Computed) -> Dict[str, int]:
    """Number of elements of which each BatchNorm computes a mean."""
    found = {}
    for target, operator in layers_with_state(source):
        if operator.operator.startswith("BatchNorm"):
            shape = expected.values[operator.inputs[0]].shape
            found[target] = int(np.prod(shape)) // shape[1]
    return found


def computed(program: Program, inputs: Sequence[Any], train: bool = False, wide: bool = False) -> Computed:
    """Compute every entry in MXNet.

    Args:
        program: The program.
        inputs: Arguments as NumPy's arrays, in nested lists.
        train: Whether to compute in training mode, with a backward pass.
        wide: Whether to compute in double precision.
    """
    own = {program.names[entry]: parameter for entry, parameter in program.parameters.items()}
    with switches(program.numpy):
        arrays = _arrays(program, own, inputs, wide)
        # no variable is an output: beside one, oneDNN's backward pass of Deconvolution fails
        kept = [number for number, entry in enumerate(program.entries) if entry not in program.names]
        symbol = mx.sym.Group([legacy(program.internals)[number] for number in kept])
        if train:
            symbol = _for_training(symbol, wide)
            trained = {name for name, one in own.items() if is_trainable(one) and one.grad_req != "null"}
            indices = _indices(program)
            for name, array in arrays.items():
                # MXNet's BatchNorm updates its statistics in the backward pass, which reaches the first one only if
                # the inputs have gradients
                if name in trained or (name not in indices and name not in own and array.dtype in _FLOATS):
                    array.attach_grad()
        operator = mx.nd.CachedOp(symbol)
        with mx.autograd.record() if train else mx.autograd.pause():
            outputs = operator(*(arrays[name] for name in symbol.list_inputs()))
        outputs = [outputs] if isinstance(outputs, mx.nd.NDArray) else outputs
        by_entry = {program.entries[number]: array for number, array in zip(kept, outputs)}
        by_entry.update({entry: arrays[name] for entry, name in program.names.items()})
        wanted = [by_entry[entry] for entry in flat(program.root.outputs)] if train else []
        random = np.random.RandomState(0)
        heads = [random.uniform(-1, 1, one.shape).astype("f") for one in wanted]
        if train:
            mx.autograd.backward(wanted, [mx.nd.array(head, dtype=one.dtype) for one, head in zip(wanted, heads)])
        del outputs, wanted
        values = {entry: by_entry.pop(entry).asnumpy() for entry in list(by_entry)}
        gradients = {id(parameter): _gradient(arrays[name]) for name, parameter in own.items()}
        after = {id(parameter): arrays[name].asnumpy() for name, parameter in own.items()}
    return Computed(values, gradients, after, heads)


def entry_summands(program: Program, inputs: Sequence[Any], train: bool, wide: bool) -> Draw:
    """Measure how far rounding moves every entry, as `summands` does; arguments as for `computed`."""
    own = {program.names[entry]: parameter for entry, parameter in program.parameters.items()}
    with switches(program.numpy):
        arrays = _arrays(program, own, inputs, wide)
        internals = legacy(program.internals)
        draw = summands(_for_training(internals, wide) if train else internals, arrays, program.numpy, train)
    return lambda: dict(zip(program.entries, draw().values()))


def _arrays(program: Program, own: Mapping[str, Any], inputs: Sequence[Any], wide: bool) -> Dict[str, Any]:
    """Return copies of the parameters, and the inputs, by the names of their variables."""
    arrays = {name: legacy(first_value(parameter)).copyto(mx.cpu()) for name, parameter in own.items()}
    for entry, value in zip(program.inputs, flat(as_lists(inputs))):
        if entry in program.names:
            arrays[program.names[entry]] = mx.nd.array(value, dtype=np.asarray(value).dtype)
    if wide:
        arrays = {name: one.astype(np.float64) if one.dtype == np.float32 else one for name, one in arrays.items()}
    return arrays


def _indices(program: Program) -> Set[str]:
    """Return the names of inputs that are indices; they have no gradients."""
    used = [one.inputs[0] for one in program.root.all_operators() if "mbedding" in one.operator and one.inputs]
    used += [one.inputs[-1] for one in program.root.all_operators() if one.operator in ("take", "pick", "gather_nd")]
    return {program.names[entry] for entry in used if entry in program.names}


def _gradient(array: Any) -> Any:
    return np.zeros(array.shape, array.dtype) if array.grad is None else array.grad.asnumpy()


def _for_training(symbol: Any, wide: bool) -> Any:
    """Return the graph without dropout."""
    graph = Graph.of(symbol, casts=True)
    for node in graph.nodes:
        if node.operator in ("Dropout", "RNN") and "p" in node.attrs:
            node.update(p="0")
        if wide and node.operator.startswith(("_zeros", "_ones", "_npi_zeros", "_npi_ones")):
            node.update(dtype="float64")
    return legacy(graph.symbol())
