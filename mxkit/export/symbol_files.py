"""Writes a net in MXNet's symbol format for other programs, and reads it."""

import json
from pathlib import Path
import re
import tempfile
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.array_kind import is_numpy, legacy, of_kind, switches
from mxkit.core.arrays import to_host
from mxkit.core.device import DeviceSpec
from mxkit.core.device import devices as resolve_devices
from mxkit.core.replicas import load_values
from mxkit.errors import CheckpointError
from mxkit.export.loss_heads import parameters_without_array, without_labels
from mxkit.export.net_graph import Graph, computed, graph_of
from mxkit.export.proof import Row, compare
from mxkit.storage.parameter_file import parameter_bytes, read_arrays
from mxkit.storage.symbol_file import read_symbol, sealed
import mxnet as mx
from mxnet import gluon


def symbol_contents(graph: Graph, casts: bool = False) -> Tuple[bytes, bytes]:
    """Content of the graph's file and of the parameters' file, as `net.export` writes them: without AMP's casts (T220).

    Args:
        graph: Result of `graph_of`.
        casts: Whether they stay.
    """
    with switches(graph.numpy):
        text = _with_current_attributes(graph.symbol.tojson(remove_amp_cast=not casts), graph.parameters)
    return text.encode("utf-8"), parameter_bytes(graph.arrays, graph.numpy)  # imports reads both under one switch


def compare_symbol(graph: Graph, contents: Mapping[str, bytes], batches: Sequence[Mapping[str, Any]]) -> List[Row]:
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
            read = graph_of(read_symbol_files(prefix))
    for batch in batches:
        size = next(iter(batch.values())).shape[0]
        again = dict(zip(read.inputs, batch.values()))
        pairs = zip(computed(graph, batch), computed(read, again))
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
            "fit this one. Choose another path, or overwrite=True"
        )


def read_symbol_files(
    path: Union[str, Path],
    *,
    epoch: Optional[int] = None,
    scores: bool = False,
    devices: Optional[DeviceSpec] = None,
) -> "gluon.SymbolBlock":
    """Read a graph and its parameters; arguments, result and errors are those of `load_exported`."""
    where = resolve_devices("cpu" if devices is None else devices)
    file = parameter_path(path, epoch)
    stored = read_arrays(file)
    arrays = {re.sub("^(arg|aux):", "", name): array for name, array in stored.items()}
    symbol = read_symbol(Path(f"{path}-symbol.json"), {name: array.shape for name, array in arrays.items()})
    _check_names(symbol, stored, file)
    of_numpy = is_numpy(symbol)
    numpy = of_numpy or mx.util.is_np_array()
    symbol = without_labels(legacy(symbol), scores=scores)
    symbol = symbol if of_numpy or not numpy else _with_numpy_shapes(symbol)
    names = sorted((name for name in symbol.list_inputs() if name not in arrays), key=_order)
    with switches(numpy):
        try:
            inputs = [mx.sym.var(name, dtype="float32") for name in names]
            block = gluon.SymbolBlock(of_kind(symbol, numpy), of_kind(inputs, numpy))
        except (mx.MXNetError, AssertionError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            raise CheckpointError(f"{file} and {path}-symbol.json do not belong together: {reason}") from error
        for name, parameter in block.collect_params().items():
            parameter.cast(arrays[name].dtype)
            load_values(parameter, arrays[name], numpy, where)
    return block


def _with_current_attributes(text: str, parameters: Mapping[str, Any]) -> str:
    """Update the parameters' attributes in the graph: Gluon writes them once, before shapes are known (T53)."""
    graph = json.loads(text)
    for node in graph["nodes"]:
        parameter = parameters.get(node["name"]) if node["op"] == "null" else None
        if parameter is not None:
            current = {name: getattr(parameter, name) for name in ("shape", "dtype", "lr_mult", "wd_mult")}
            node["attrs"] = {**node.get("attrs", {}), **mx.sym.var("any", **current).list_attr()}
    return json.dumps(sealed(graph), indent=2)


def _same_graph(path: Path, text: str) -> bool:
    def core(content: str) -> Any:
        graph = json.loads(content)
        for node in graph["nodes"]:
            attrs = node.get("attrs", {})
            node["attrs"] = {key: value for key, value in attrs.items() if not key.startswith("__")}
            # the third number of an entry counts the traces of a variable
            node["inputs"] = [entry[:2] for entry in node["inputs"]]
        return graph["nodes"], graph["heads"]

    try:
        return bool(core(path.read_text(encoding="utf-8")) == core(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


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
        others = [f"{path}{ending}" for ending in (".onnx", ".py", ".safetensors") if Path(f"{path}{ending}").exists()]
        hint = f". Pass the common beginning of both files: {whole[1]!r}" if whole else ""
        hint += f". Pass {' or '.join(others)} with its ending" if others else ""
        if name.endswith((".tar.gz", ".tgz")):
            hint += f". An archive like SageMaker's is read by mxkit.export({str(path)!r}, 'NAME'); load NAME then"
        raise FileNotFoundError(f"{path}: there is no file {name}-0000.params, of any number, beside it{hint}")
    if epoch is not None and whole_number(epoch, "epoch", least=0) not in files:
        there = ", ".join(map(str, sorted(files)))
        raise FileNotFoundError(f"{path}: there is no {name}-{epoch:04d}.params; epochs that are there: {there}")
    return files[max(files) if epoch is None else epoch]


def _check_names(symbol: Any, stored: Mapping[str, Any], file: Path) -> None:
    expected = {f"arg:{name}" for name in symbol.list_arguments()}
    expected |= {f"aux:{name}" for name in symbol.list_auxiliary_states()}
    unknown = [name for name in stored if name not in expected]
    missing = [name for name in expected if name.startswith("aux:") and name not in stored]
    missing += [f"arg:{name}" for name in parameters_without_array(symbol, {name[4:] for name in stored})]
    if unknown or missing:
        raise CheckpointError(
            f"{file} does not belong to its graph: {', '.join(unknown[:8]) or 'nothing'} in the file alone, "
            f"{', '.join(sorted(missing)[:8]) or 'nothing'} in the graph alone"
        )


def _with_numpy_shapes(symbol: Any) -> Any:
    """Write unknown sizes as -1, as graphs of `mx.np` have them: states of recurrent layers have the size 0 (T159)."""
    graph = json.loads(symbol.tojson())
    for node in graph["nodes"]:
        if node["op"] in ("_zeros", "_ones", "_full"):
            node["attrs"]["shape"] = re.sub(r"\b0\b", "-1", node["attrs"]["shape"])
    return mx.sym.load_json(json.dumps(graph))


def _order(name: str) -> Tuple[int, int]:
    """Sort key: Gluon's inputs by their number, other inputs in the order of the graph."""
    match = re.fullmatch(r"data(\d+)", name)
    return (0, int(match[1])) if match else (1 if name != "data" else 0, 0)
