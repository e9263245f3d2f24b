"""Writes a net in MXNet's symbol format for other programs, and reads it."""

import json
from pathlib import Path
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.array_kind import copy_to_cpu, is_numpy, legacy, of_kind, switches
from mxkit.core.blocks import check_net, is_numpy_net, wait_before_reading
from mxkit.core.device import DeviceSpec
from mxkit.core.device import devices as resolve_devices
from mxkit.core.files import write_atomically
from mxkit.core.graphs import hooks_replaced, traced_graph
from mxkit.core.replicas import finish_initialization, is_deferred, load_values, values_of
from mxkit.errors import CheckpointError, NotInitializedError, unknown_name
from mxkit.storage.loss_heads import parameters_without_array, without_labels
from mxkit.storage.parameter_file import parameter_bytes, read_arrays
from mxkit.storage.symbol_file import read_symbol, sealed
import mxnet as mx
from mxnet import gluon

FORMATS = ("symbol",)
Shape = Sequence[int]


class Exported(NamedTuple):
    """Paths of an exported net.

    Attributes:
        symbol: File of the graph, `path-symbol.json`.
        parameters: File of the parameters, `path-0000.params`.
    """

    symbol: Path
    parameters: Path


def export(
    net: Any,
    path: Union[str, Path],
    *,
    format: str = "symbol",
    input_shape: Union[Shape, Sequence[Shape], None] = None,
    epoch: int = 0,
    overwrite: bool = False,
) -> Exported:
    """Write a net as a graph and its parameters. Unlike `net.export`, it needs neither hybridization nor a batch.

    `gluon.SymbolBlock.imports`, `mx.mod.Module.load`, `mx.model.load_checkpoint`, other languages and `load_exported`
    read the files; those of a net of `mx.np`, `imports` reads under `npx.set_np()`. The forward pass is traced with
    symbols; the net's caches, hooks and hybridization do not change.

    Args:
        net: An initialized HybridBlock, or a Sequential of HybridBlocks. On several devices, the values of the
            first one are written (T59).
        path: Common beginning of both files: `"models/net"` becomes `models/net-symbol.json` and
            `models/net-0000.params`. Missing folders are made.
        format: "symbol", the only format so far.
        input_shape: Shape of the input, with any batch size, or a list of shapes for several inputs. Required for
            parameters whose shape depends on the first batch, and for several inputs. The inputs' names are
            `data`, or `data0`, `data1` and so on.
        epoch: Number in the parameters' file name, from 0. All epochs of a net share one graph.
        overwrite: Replace the graph of another net at this path. The other net's parameters do not fit the new graph.

    Returns:
        Both paths.

    Raises:
        NotInitializedError: A parameter has no value, and `input_shape` does not determine its shape.
        ValueError: `format` is unknown, `input_shape` does not fit, the forward pass cannot be traced, or another
            net is stored at `path`.
        OSError: A file cannot be written; each file is complete or unchanged.

    Side effects:
        With `input_shape`, parameters that waited for a first batch are initialized, as a batch would do.

    >>> net = mxkit.models.mlp(3, hidden=[4]); mxkit.initialize(net)
    >>> paths = export(net, getfixture("tmp_path") / "mlp", input_shape=(1, 5))
    >>> paths.symbol.name, paths.parameters.name
    ('mlp-symbol.json', 'mlp-0000.params')
    >>> load_exported(getfixture("tmp_path") / "mlp")(mx.nd.ones((2, 5))).shape
    (2, 3)
    """
    check_net(net)
    if format not in FORMATS:
        raise unknown_name("format of export", format, FORMATS)
    epoch = whole_number(epoch, "epoch", least=0)
    shapes = _shapes(input_shape)
    inputs = _inputs(net, shapes)
    numpy = is_numpy_net(net)
    with switches(numpy):
        outputs = _trace(net, of_kind(inputs, numpy))
        names = outputs.list_inputs()
        parameters = {name: parameter for name, parameter in net.collect_params().items() if name in names}
        if shapes:
            _finish_shapes(outputs, {variable.name: shape for variable, shape in zip(inputs, shapes)}, parameters)
        wait_before_reading()
        arrays = _arrays(outputs, parameters, {variable.name for variable in inputs})
        text = _with_current_attributes(outputs.tojson(), parameters)
    files = Exported(Path(f"{path}-symbol.json"), Path(f"{path}-{epoch:04d}.params"))
    if files.symbol.exists() and not overwrite and not _same_graph(files.symbol, text):
        raise ValueError(
            f"export: {files.symbol} holds another net (or other names of its parameters), whose parameters would not "
            "fit this one. Choose another path, or overwrite=True"
        )
    files.symbol.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(files.parameters, parameter_bytes(arrays, numpy))  # imports reads both under one switch
    write_atomically(files.symbol, text.encode("utf-8"))
    return files


def load_exported(
    path: Union[str, Path],
    *,
    epoch: Optional[int] = None,
    scores: bool = False,
    devices: Optional[DeviceSpec] = None,
) -> "gluon.SymbolBlock":
    """Read the files of `export`, `net.export` or Module, safely: both are checked before MXNet reads them.

    Module's loss heads (SoftmaxOutput, LinearRegressionOutput, LogisticRegressionOutput, MAERegressionOutput,
    SVMOutput) become the plain operators that they are at inference (T117). The block returns what `Module.predict`
    returns, up to the last bits of a softmax, and needs no label.

    Args:
        path: As for `export` and for `Module.save_checkpoint`: without `-symbol.json`.
        epoch: Number in the parameters' file name; None is the highest.
        scores: Leave out the softmax or sigmoid of the loss head, for further training: "softmax_ce" and
            "sigmoid_bce" apply their own.
        devices: Devices for the parameters; None is the CPU.

    Returns:
        A block with the file's dtypes. Its inputs are the variables without parameters, `data0` before `data1`. A
        label that only a loss head reads is not an input. The block is a net of `mx.np` if the exported net was one,
        or under `npx.set_np()`.

    Raises:
        CheckpointError: A file is damaged, could harm the process, or does not fit the other file: the weights of a
            layer are missing, or an array belongs to no variable.
        OSError: A file does not exist or cannot be read.
        ValueError: `scores` is True, and the graph has no loss head.

    >>> net = mxkit.models.mlp(3, hidden=[4]); mxkit.initialize(net); x = mx.nd.ones((2, 5)); y = net(x)
    >>> _ = export(net, getfixture("tmp_path") / "mlp", epoch=7)
    >>> bool((load_exported(getfixture("tmp_path") / "mlp")(x) == y).asnumpy().all())
    True
    """
    where = resolve_devices("cpu" if devices is None else devices)
    file = _parameter_path(path, epoch)
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


def _shapes(input_shape: Any) -> List[Tuple[int, ...]]:
    """List the shapes of all inputs."""
    if input_shape is None:
        return []
    shape = input_shape if isinstance(input_shape, (list, tuple)) else (None,)
    many = list(shape) if shape and all(isinstance(part, (list, tuple)) for part in shape) else [shape]
    if not all(type(size) is int and size > 0 for shape in many for size in shape):
        raise ValueError(f"input_shape: expected a shape like (1, 3, 224, 224), or a list of them; got {input_shape!r}")
    return [tuple(shape) for shape in many]


def _inputs(net: Any, shapes: Sequence[Any]) -> List[Any]:
    count = len(shapes)
    if isinstance(net, gluon.SymbolBlock):
        own = len(traced_graph(net)[0])
        if count not in (0, own):
            raise ValueError(f"input_shape: the net has {own} inputs, received {count} shapes")
        count = own
    names = ["data"] if count <= 1 else [f"data{number}" for number in range(count)]
    return [mx.sym.var(name) for name in names]


def _trace(net: Any, inputs: Sequence[Any]) -> Any:
    """Run the net's forward pass with symbols and return the graph."""
    try:
        with hooks_replaced(net):
            outputs = legacy(list(_flat(net(*inputs))))
    except Exception as error:
        raise ValueError(
            f"export: {type(net).__name__} cannot be traced with {len(inputs)} symbols: {type(error).__name__}: "
            f"{str(error)[:500]}. Every block must be a HybridBlock whose hybrid_forward reads neither shapes nor "
            "numbers; for several inputs, give input_shape a list with a shape for each"
        ) from error
    return outputs[0] if len(outputs) == 1 else mx.sym.Group(outputs)


def _flat(outputs: Any) -> Iterator[Any]:
    if isinstance(outputs, (list, tuple)):
        for part in outputs:
            yield from _flat(part)
    elif isinstance(outputs, mx.sym.Symbol):
        yield outputs
    else:
        raise TypeError(f"forward returned {type(outputs).__name__}, not a symbol")


def _finish_shapes(outputs: Any, shapes: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Infer the parameters' shapes from the inputs', and initialize the parameters that waited for them."""
    names = outputs.list_inputs()
    try:
        arguments, _, states = outputs.infer_shape(**{name: shape for name, shape in shapes.items() if name in names})
    except mx.MXNetError as error:
        raise ValueError(f"input_shape: {shapes} does not fit the net: {error}") from error
    inferred = dict(zip(outputs.list_arguments(), arguments or ()))
    inferred.update(zip(outputs.list_auxiliary_states(), states or ()))
    for name, parameter in parameters.items():
        if is_deferred(parameter) and name in inferred:
            finish_initialization(parameter, inferred[name])


def _arrays(outputs: Any, parameters: Mapping[str, Any], inputs: Any) -> Dict[str, Any]:
    arrays = {}
    auxiliary = set(outputs.list_auxiliary_states())
    for name in outputs.list_inputs():
        if name in inputs:
            continue
        parameter = parameters.get(name)
        if parameter is None:
            raise ValueError(f"export: the graph uses {name!r}, which is neither an input nor a parameter of the net")
        if values_of(parameter) is None:
            raise NotInitializedError(
                f"export: parameter {name!r} {parameter.shape} has no value. "
                + ("Pass input_shape=(1, ...)" if is_deferred(parameter) else "Call net.initialize() first")
            )
        arrays[f"{'aux' if name in auxiliary else 'arg'}:{name}"] = copy_to_cpu(parameter.list_data()[0])
    return arrays


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


def _parameter_path(path: Union[str, Path], epoch: Optional[int]) -> Path:
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
