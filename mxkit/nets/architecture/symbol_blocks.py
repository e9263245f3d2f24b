"""A SymbolBlock's graph as plain JSON, and the block made of it: checked before MXNet parses it (T58)."""

import json
from pathlib import Path
import tempfile
from typing import Any, Dict, Iterator, List

from mxkit.core.graphs import nesting, traced_graph
from mxkit.errors import CheckpointError
from mxkit.storage.symbol_file import read_symbol
import mxnet as mx
from mxnet import gluon


def inputs(block: Any) -> List[Any]:
    """Names of a SymbolBlock's inputs, nested as its call takes them."""
    names = iter([str(symbol.name) for symbol in traced_graph(block)[0]])
    nested: List[Any] = _nested(names, nesting(block)[0])
    return nested


def outputs(block: Any) -> Any:
    """How a SymbolBlock's outputs are nested: 0 is one, a number above it a symbol with that many."""
    return nesting(block)[1]


def graph(block: Any) -> Dict[str, Any]:
    """What a SymbolBlock computes, as MXNet writes it."""
    if type(traced_graph(block)[1]) is not mx.sym.Symbol:
        raise TypeError("it is a graph of mx.np, which is not kept")
    told: Dict[str, Any] = json.loads(traced_graph(block)[1].tojson())
    return told


def symbol_block(inputs: Any = None, outputs: Any = None, graph: Any = None) -> "gluon.SymbolBlock":
    """Make the block that `inputs`, `outputs` and `graph` told.

    Raises:
        ValueError: The graph is damaged or could harm the process, or the outputs are not its.
    """
    if inputs is None or outputs is None or graph is None:
        raise ValueError("it needs inputs, outputs and graph")
    symbol = _checked(graph)
    heads = iter(list(symbol))
    nested = _nested(heads, outputs)
    if next(heads, None) is not None:
        raise ValueError(f"outputs {outputs!r:.200} are fewer than the graph's {len(symbol.list_outputs())}")
    return gluon.SymbolBlock(nested, _variables(inputs))


def _checked(graph: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        file = Path(folder) / "graph"
        try:
            file.write_text(json.dumps(graph), encoding="utf-8")
            return read_symbol(file)
        except CheckpointError as error:
            raise ValueError(str(error).replace(str(file), "its graph")) from error


def _nested(flat: Iterator[Any], form: Any) -> Any:
    """Values in the form that Gluon notes: 0 for one, n for a symbol with n outputs, a list for a list."""
    if isinstance(form, (list, tuple)):
        return [_nested(flat, one) for one in form]
    found = [one for _, one in zip(range(max(1, form)), flat)]
    if len(found) != max(1, form):
        raise ValueError("outputs are more than the graph's")
    return found[0] if form == 0 else mx.sym.Group(found)


def _variables(names: Any) -> Any:
    if isinstance(names, str):
        # without a dtype, MXNet warns that it cannot infer those of the parameters
        return mx.sym.var(names, dtype="float32")
    return [_variables(name) for name in names]
