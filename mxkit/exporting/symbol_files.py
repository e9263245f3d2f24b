"""Writes a net in MXNet's symbol format for other programs, and reads it, without the loss heads of Module."""

import json
from pathlib import Path
import re
import tempfile
from typing import AbstractSet, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import is_numpy, legacy, of_kind, switches, to_host
from mxkit.core.device import DeviceSpec
from mxkit.core.device import devices as resolve_devices
from mxkit.core.graph import Graph, Node, symbol_of
from mxkit.core.operators import PLAIN_HEADS, known
from mxkit.core.replicas import load_values, shape_of
from mxkit.errors import CheckpointError, TrapWarning, unknown_name
from mxkit.exporting.net_graph import NetGraph, computed, graph_of
from mxkit.exporting.proof import Row, compare
from mxkit.storage.parameter_file import parameter_bytes, read_arrays
from mxkit.storage.symbol_file import read_symbol, sealed
import mxnet as mx
from mxnet import gluon

_Path = Union[str, Path]
GraphPath = Union[_Path, Tuple[_Path, _Path]]
# Attribute of the variables of several inputs: their number in a call. MXNet ignores it, and orders by the graph.
_NUMBER = "__mxkit_input__"
_UNKNOWN = 10**9
_LABEL = re.compile(r"(.+_)?labels?\d*")
# Default names of parameters
_PARAMETER_NAME = re.compile(r"(^|_)(weight|bias|gamma|beta|parameters)$")


def symbol_contents(graph: NetGraph, casts: bool = False) -> Tuple[bytes, bytes]:
    """Content of the graph's file and of the parameters' file, as `net.export` writes them: without AMP's casts (T220).

    Args:
        graph: Result of `graph_of`.
        casts: Whether they stay.
    """
    with switches(graph.numpy):
        text = _with_current_attributes(Graph.of(of_kind(graph.symbol, graph.numpy), casts=casts), graph)
    return text.encode("utf-8"), parameter_bytes(graph.arrays, graph.numpy)  # imports reads both under one switch


def compare_symbol(graph: NetGraph, contents: Mapping[str, bytes], batches: Sequence[Mapping[str, Any]]) -> List[Row]:
    """Read the files again, and compare every parameter and, for batches, every output of every operator."""
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        prefix = Path(folder) / "net"
        Path(f"{prefix}-symbol.json").write_bytes(contents["symbol"])
        file = Path(f"{prefix}-0000.params")
        file.write_bytes(contents["parameters"])
        stored = read_arrays(file)
        rows = [
            compare(name.partition(":")[2], "parameter", 0, to_host(array), to_host(stored[name]))
            for name, array in graph.arrays.items()
        ]
        if batches:
            read = graph_of(read_symbol_files(prefix, inputs=graph.inputs))
    for batch in batches:
        size = next(iter(batch.values())).shape[0]
        again = dict(zip(read.inputs, batch.values()))
        written = (one for one in computed(graph, batch) if one.operator not in ("amp_cast", "amp_multicast"))  # T220
        pairs = zip(written, computed(read, again))
        rows += [compare(one.name, one.operator, size, one.array, other.array) for one, other in pairs]
    return rows


def check_same_graph(path: Path, content: bytes) -> None:
    """Refuse to replace the graph of another net, whose parameters would not fit.

    Raises:
        ValueError: `path` holds another graph, or the same with other names of its parameters.
    """
    if path.exists() and not _same_graph(path, content.decode("utf-8")):
        raise ValueError(
            f"export: {path} holds another net (or other names of its parameters), whose parameters would not "
            "fit this one. Choose another path, or overwrite=True (--overwrite)"
        )


def read_symbol_files(
    path: GraphPath,
    *,
    epoch: Optional[int] = None,
    scores: bool = False,
    devices: Optional[DeviceSpec] = None,
    inputs: Union[str, Sequence[str], None] = None,
    outputs: Union[str, Sequence[str], None] = None,
) -> "gluon.SymbolBlock":
    """Read a graph and its parameters; arguments, result and errors are those of `load_exported`."""
    where = resolve_devices("cpu" if devices is None else devices)
    graph_file, file = graph_files(path, epoch)
    stored = read_arrays(file)
    arrays = {re.sub("^(arg|aux):", "", name): array for name, array in stored.items()}
    symbol = read_symbol(graph_file, {name: array.shape for name, array in arrays.items()})
    of_numpy = is_numpy(symbol)
    numpy = of_numpy or mx.util.is_np_array()
    whole = symbol = legacy(symbol)
    if outputs is not None:
        symbol = _cut(whole, [outputs] if isinstance(outputs, str) else outputs)
    unknown = _unknown_names(whole, symbol, stored, file)
    symbol = without_labels(symbol, scores=scores)
    symbol = symbol if of_numpy or not numpy else _with_numpy_shapes(symbol)
    names = _input_names(symbol, set(arrays), [inputs] if isinstance(inputs, str) else inputs, graph_file)
    if unknown and inputs is None and len(names) != 1:
        raise CheckpointError(
            f"{file} does not belong to its graph: {', '.join(unknown[:8])} in the file alone, or name inputs={names}"
        )
    if unknown:
        warnings.warn(
            f"{file}: left out {', '.join(unknown[:8])}, which the graph lacks: it was probably cut from a larger one",
            TrapWarning,
            stacklevel=3,
        )
    with switches(numpy):
        try:
            variables = [mx.sym.var(name, dtype="float32") for name in names]
            block = gluon.SymbolBlock(of_kind(symbol, numpy), of_kind(variables, numpy))
        except (mx.MXNetError, AssertionError, ValueError, TypeError) as error:
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            raise CheckpointError(f"{file} and {graph_file} do not belong together: {reason}") from error
        for name, parameter in block.collect_params().items():
            parameter.cast(arrays[name].dtype)
            load_values(parameter, arrays[name], numpy, where)
    return block


def _cut(symbol: Any, names: Sequence[str]) -> Any:
    """The part of a graph that computes some of its internal outputs."""
    internals = symbol.get_internals()
    known = internals.list_outputs()
    for name in names:
        if not {name, f"{name}_output"}.intersection(known):
            raise unknown_name("output of the graph", name, known)
    return mx.sym.Group([internals[name if name in known else f"{name}_output"] for name in names])


def _input_names(symbol: Any, arrays: Any, given: Optional[Sequence[str]], file: Path) -> List[str]:
    """The graph's inputs in the order of a call: as given, as mxkit or Gluon numbered them, or as the graph has them.

    Raises:
        ValueError: `given` are others; or there is a label, which `given` does not name.

    Warns:
        TrapWarning: Nothing tells the order (T264).
    """
    names = [name for name in symbol.list_inputs() if name not in arrays]
    text = f"{file}: the inputs of the graph are {', '.join(names)}"
    if given is not None:
        if sorted(given) != sorted(names):
            raise ValueError(f"{text}; inputs= named {', '.join(map(str, given))}")
        return list(given)
    labels = [name for name in names if _LABEL.fullmatch(name)]
    if labels and len(names) > 1:
        raise ValueError(
            f"{text}: {', '.join(labels)} is not read by loss heads alone. Leave out what only training needs with "
            f"outputs=; these do not read it: {', '.join(outputs_without(symbol, labels)[:12]) or 'none'}. To pass it, "
            f"name all inputs: inputs={names}, in export as a dict of arrays or shapes"
        )
    attributes = symbol.attr_dict()
    order = {name: _order(name, attributes.get(name, {}).get(_NUMBER, "")) for name in names}
    names = sorted(names, key=order.__getitem__)
    if len(names) > 1 and order[names[-1]] == _UNKNOWN:
        warnings.warn(
            f"{text}, and nothing in it tells the order of a call: it is taken to be {', '.join(names)} (T264). Name "
            f"them in the order of your calls: inputs={names}",
            TrapWarning,
            stacklevel=4,
        )
    return names


def _with_current_attributes(graph: Graph, of: NetGraph) -> str:
    """Update the parameters' attributes in the graph: Gluon writes them once, before shapes are known (T53).

    Of several inputs, the number in a call is written.
    """
    for node in filter(lambda node: node.is_variable, graph.nodes):
        if len(of.inputs) > 1 and node.name in of.inputs:
            node.update(**{_NUMBER: str(of.inputs.index(node.name))})
        parameter = of.parameters.get(node.name)
        if parameter is not None:
            current = {name: getattr(parameter, name) for name in ("dtype", "lr_mult", "wd_mult")}
            node.update(**mx.sym.var("any", shape=shape_of(parameter), **current).list_attr())
    return json.dumps(sealed(graph.content), indent=2)


def _same_graph(path: Path, text: str) -> bool:
    def core(content: str) -> Any:
        graph = Graph(json.loads(content))
        return [(one.name, one.operator, one.arguments, one.inputs) for one in graph.nodes], graph.heads

    try:
        return bool(core(path.read_text(encoding="utf-8")) == core(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def graph_files(path: GraphPath, epoch: Optional[int] = None) -> Tuple[Path, Path]:
    """The files of a graph and of its parameters, of two paths or of the common beginning of both.

    Raises:
        ValueError: There are other than two paths, or an epoch with them.
        FileNotFoundError: As for `parameter_path`.
    """
    if not isinstance(path, (tuple, list)):
        return Path(f"{path}-symbol.json"), parameter_path(path, epoch)
    if len(path) != 2 or epoch is not None:
        raise ValueError(f"expected (graph, parameters), two paths without epoch=; received {path!r:.300}")
    return Path(path[0]), Path(path[1])


def parameter_path(path: Union[str, Path], epoch: Optional[int]) -> Path:
    """The file of a number, or of the highest one.

    Raises:
        FileNotFoundError: There is none; the text names those that are there.
    """
    name = Path(path).name
    pattern = re.compile(re.escape(name) + r"-(\d{4,})\.params")
    matches = [(pattern.fullmatch(file.name), file) for file in Path(path).parent.iterdir()]
    files = {int(match[1]): file for match, file in matches if match}
    if not files:
        whole = re.fullmatch(r"(.+)(-symbol\.json|-\d{4,}\.params)", str(path))
        hint = f". Pass the common beginning of both files: {whole[1]!r}" if whole else ""
        raise FileNotFoundError(f"{path}: there is no file {name}-0000.params, of any number, beside it{hint}")
    if epoch is not None and whole_number(epoch, "epoch", least=0) not in files:
        there = ", ".join(map(str, sorted(files)))
        raise FileNotFoundError(f"{path}: there is no {name}-{epoch:04d}.params; epochs that are there: {there}")
    return files[max(files) if epoch is None else epoch]


def _unknown_names(whole: Any, symbol: Any, stored: Mapping[str, Any], file: Path) -> List[str]:
    """Return the arrays that a whole graph does not read; refuse a file without parameters of a part of it."""
    expected = {f"arg:{name}" for name in whole.list_arguments()}
    expected |= {f"aux:{name}" for name in whole.list_auxiliary_states()}
    unknown = [name for name in stored if name not in expected]
    missing = [f"aux:{name}" for name in symbol.list_auxiliary_states() if f"aux:{name}" not in stored]
    missing += [f"arg:{name}" for name in parameters_without_array(symbol, {name[4:] for name in stored})]
    if missing:
        raise CheckpointError(
            f"{file} does not belong to its graph: {', '.join(unknown[:8]) or 'nothing'} in the file alone, "
            f"{', '.join(sorted(missing)[:8])} in the graph alone"
        )
    return unknown


def _with_numpy_shapes(symbol: Any) -> Any:
    """Write unknown sizes as -1, as graphs of `mx.np` have them: states of recurrent layers have the size 0 (T159)."""
    graph = Graph.of(symbol)
    for node in graph.nodes:
        if node.operator in ("_zeros", "_ones", "_full"):
            node.update(shape=re.sub(r"\b0\b", "-1", node.attrs["shape"]))
    return graph.symbol()


def _order(name: str, number: str) -> int:
    """Sort key: inputs that mxkit or Gluon numbered, then other inputs in the order of the graph."""
    match = re.fullmatch(r"(\d{1,9})|data(\d{0,8})", number or name)
    return int(match[1] or match[2] or 0) if match else _UNKNOWN


def without_labels(symbol: Any, *, scores: bool = False) -> Any:
    """Replace Module's loss heads by plain operators, so that the graph needs no labels (T117).

    A loss head also ignores the gradient of its output: the layers before it would learn the head's loss, not the one
    of the training. A plain operator has its own gradient. A label that another operator reads stays.

    Args:
        symbol: Any Symbol.
        scores: Leave out the softmax or sigmoid of the heads, which mxkit's losses apply themselves.

    Returns:
        A Symbol with the same outputs at inference, with the same names; `symbol` itself if it has no loss head.

    Raises:
        ValueError: `scores` is True, and the graph has no loss head.

    >>> head = mx.sym.SoftmaxOutput(mx.sym.var("data"), mx.sym.var("label"), name="softmax")
    >>> without_labels(head).list_inputs(), without_labels(head).list_outputs()
    (['data'], ['softmax_output'])
    """
    graph = Graph.of(symbol)
    if not any(node.operator in PLAIN_HEADS for node in graph.nodes):
        if scores:
            raise ValueError(
                f"scores=True leaves out the softmax or sigmoid of a loss head: expected one of "
                f"{', '.join(sorted(PLAIN_HEADS))}; the graph has none"
            )
        return symbol
    nodes: List[Dict[str, Any]] = []
    new_numbers: List[int] = []
    for node in graph.nodes:
        inputs = [[new_numbers[one.node], one.output, 0] for one in node.inputs]
        nodes.extend(_plain_head(node, inputs, len(nodes), scores))
        new_numbers.append(len(nodes) - 1)
    return symbol_of(nodes, [[new_numbers[one.node], one.output, 0] for one in graph.heads], graph)


def _plain_head(node: Node, inputs: List[Any], first: int, scores: bool) -> Iterator[Dict[str, Any]]:
    """Yield the nodes that replace a node. The first has the number `first`, the last has the node's name."""
    if node.operator not in PLAIN_HEADS:
        yield {**node.content, "inputs": inputs}
        return
    data, name = inputs[:1], node.name
    plain = {"op": PLAIN_HEADS[node.operator], "name": name, "inputs": data}
    if scores:
        yield {**plain, "op": "_copy"}
    elif node.operator != "SoftmaxOutput":
        yield plain
    elif node.flag("multi_output") or node.flag("preserve_shape"):
        yield {**plain, "attrs": {"axis": "1" if node.flag("multi_output") else "-1"}}
    else:  # over all numbers of a sample
        yield {"op": "Flatten", "name": f"{name}_flat", "inputs": data}
        yield {**plain, "name": f"{name}_plain", "attrs": {"axis": "-1"}, "inputs": [[first, 0, 0]]}
        yield {"op": "reshape_like", "name": name, "inputs": [[first + 1, 0, 0], *data]}


def replaced_heads(text: str) -> List[Tuple[str, str, str]]:
    """Name, operator and plain operator of each loss head in a graph's JSON that was checked before."""
    nodes = json.loads(text)["nodes"]
    return [(node["name"], node["op"], PLAIN_HEADS[node["op"]]) for node in nodes if node["op"] in PLAIN_HEADS]


def outputs_without(symbol: Any, names: Sequence[str]) -> List[str]:
    """Names of a graph's outputs that need none of some variables, then of such inner outputs, the last one first."""
    free = [one for one in symbol.get_internals() if not set(names).intersection(one.list_inputs())]
    found = [one.list_outputs()[0] for one in reversed(free) if one.list_inputs() != one.list_outputs()]
    return sorted(found, key=lambda name: name not in symbol.list_outputs())


def parameters_without_array(symbol: Any, arrays: AbstractSet[str]) -> List[str]:
    """Names of variables that are weights of a layer and have no array, so that they are not inputs of the net."""
    graph = Graph.of(symbol)
    owners = (node for node in graph.nodes if "owns" in known(node.operator).facts)
    names = (one.name for node in owners for one in graph.sources(node)[1:] if one.is_variable)
    return [name for name in names if name not in arrays and _PARAMETER_NAME.search(name)]
