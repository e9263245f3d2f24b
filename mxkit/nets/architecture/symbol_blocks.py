"""A SymbolBlock's graph as plain JSON, and the block made of it; the graph is checked before MXNet parses it (T58)."""

from itertools import islice
import json
from pathlib import Path
import tempfile
from typing import Any, Dict, Iterator, List

from mxkit.core.arrays import is_numpy, legacy, of_kind
from mxkit.core.graphs import nesting, traced_graph
from mxkit.errors import CheckpointError
from mxkit.storage.symbol_file import read_symbol
import mxnet as mx
from mxnet import gluon


def inputs(block: Any) -> List[Any]:
    """Return the names of a SymbolBlock's inputs, nested as in its call."""
    names = iter([str(symbol.name) for symbol in traced_graph(block)[0]])
    nested: List[Any] = _nested(names, nesting(block)[0])
    return nested


def outputs(block: Any) -> Any:
    """Return the nesting of a SymbolBlock's outputs: 0 is one output, another number a symbol with so many outputs."""
    return nesting(block)[1]


def graph(block: Any) -> Dict[str, Any]:
    """Return the graph of a SymbolBlock, in MXNet's JSON; `is_np_shape` in its attributes marks a graph of `mx.np`."""
    output = traced_graph(block)[1]
    content: Dict[str, Any] = json.loads(output.tojson())
    content["attrs"].pop("is_np_shape", None)  # MXNet writes the switch of the thread there
    if is_numpy(output):
        content["attrs"]["is_np_shape"] = ["int", 1]
    return content


def symbol_block(inputs: Any = None, outputs: Any = None, graph: Any = None) -> "gluon.SymbolBlock":
    """Make the block from the results of `inputs`, `outputs` and `graph`.

    Raises:
        ValueError: The graph is damaged or could harm the process, or it has another number of outputs.
    """
    if inputs is None or outputs is None or graph is None:
        raise ValueError("it needs inputs, outputs and graph")
    symbol = _checked(graph)
    numpy = is_numpy(symbol)
    heads = iter(of_kind(list(legacy(symbol)), numpy))  # one symbol of mx.np is no list
    nested = _nested(heads, outputs)
    if next(heads, None) is not None:
        raise ValueError(f"expected {len(symbol.list_outputs())} outputs, as the graph has; received {outputs!r:.200}")
    return gluon.SymbolBlock(nested, of_kind(_variables(inputs), numpy))


def _checked(graph: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        file = Path(folder) / "graph"
        try:
            file.write_text(json.dumps(graph), encoding="utf-8")
            return read_symbol(file)
        except CheckpointError as error:
            raise ValueError(str(error).replace(str(file), "its graph")) from error


def _nested(flat: Iterator[Any], form: Any) -> Any:
    """Nest values as Gluon describes it: 0 is one value, n a symbol with n outputs, a list is a list."""
    if isinstance(form, (list, tuple)):
        return [_nested(flat, one) for one in form]
    values = list(islice(flat, max(1, form)))
    if len(values) != max(1, form):
        raise ValueError("outputs are more than the graph's")
    return values[0] if form == 0 else mx.sym.Group(values, type(values[0]))


def _variables(names: Any) -> Any:
    if isinstance(names, str):
        # without a dtype MXNet warns that it cannot infer the dtypes of the parameters
        return mx.sym.var(names, dtype="float32")
    return [_variables(name) for name in names]
