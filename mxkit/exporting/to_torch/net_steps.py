"""A net's forward pass as steps: calls of blocks, operators, and the graph that contains them."""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from mxkit.core.arrays import legacy, switches
from mxkit.core.replicas import first_value
import mxnet as mx


class Entry(NamedTuple):
    """An array in the graph: the number of its operator, and which of the operator's outputs."""

    node: int
    output: int


class Operator(NamedTuple):
    """A step that computes."""

    number: int
    name: str
    operator: str
    attrs: Dict[str, str]
    inputs: List[Entry]
    outputs: List[Entry]


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


class Program(NamedTuple):
    """A net's forward pass.

    Attributes:
        net: The net.
        root: The call of the net.
        inputs: Entries of the inputs, in the order of the arguments.
        shapes, dtypes: Of every entry.
        parameters: Parameters by their entries.
        internals: The graph with every entry as an output, as `entries` lists them.
        entries: Entries of the outputs of `internals`.
        names: Names of the inputs' variables, then those of the parameters by their entries.
        numpy: Whether it is a net of `mx.np`.
    """

    net: Any
    root: Scope
    inputs: List[Entry]
    shapes: Dict[Entry, Tuple[int, ...]]
    dtypes: Dict[Entry, str]
    parameters: Dict[Entry, Any]
    internals: Any
    entries: List[Entry]
    names: Dict[Entry, str]
    numpy: bool

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


def flat(nested: Any) -> List[Any]:
    """Entries in nested lists, without None."""
    if nested is None:
        return []
    return [entry for part in nested for entry in flat(part)] if type(nested) is list else [nested]


def as_lists(value: Any) -> Any:
    """Replace tuples by lists, at every depth."""
    return list(map(as_lists, value)) if isinstance(value, (list, tuple)) else value
