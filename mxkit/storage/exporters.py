"""A net for other programs: MXNet's symbol format, written in one call and read back in one."""

import json
from pathlib import Path
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import check_net, wait_before_reading
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
_LATER = ("onnx", "safetensors")
Shape = Sequence[int]


class Exported(NamedTuple):
    """Where an exported net lies.

    Attributes:
        symbol: The graph, `path-symbol.json`.
        parameters: The numbers, `path-0000.params`.
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
    """Write a net as a graph and its parameters, as `net.export` does, without hybridizing or running it before.

    `gluon.SymbolBlock.imports`, `mx.mod.Module.load`, `mx.model.load_checkpoint`, other languages and `load_exported`
    read it. The forward pass is traced with symbols; the net's own caches, hooks and hybridization stay as they are.

    Args:
        net: An initialized HybridBlock, or a Sequential of such. Of several devices the first one's values are
            written (T59).
        path: Where: `"models/net"` becomes `models/net-symbol.json` and `models/net-0000.params`; folders are made.
        format: "symbol". "onnx" and "safetensors" are not there yet.
        input_shape: Shape of the input, with any batch size, or a list of shapes for several inputs. It is
            needed for parameters whose shape waits for a first batch, and for several inputs. They are called
            `data`, or `data0`, `data1` and so on.
        epoch: Number in the parameters' file name, from 0. Epochs of one net share one graph.
        overwrite: Replace the graph of another net under this path, whose parameters do not fit the new one.

    Returns:
        Both paths.

    Raises:
        NotInitializedError: A parameter has no value, and `input_shape` does not tell its shape.
        ValueError: `format` is not there, `input_shape` does not fit, the forward pass cannot be traced, or another
            net lies under `path`.
        OSError: A file cannot be written; each is whole or as it was.

    Side effects:
        With `input_shape`, parameters that waited for a first batch are initialized, as one would do.

    >>> net = mxkit.models.mlp(3, hidden=[4]); mxkit.initialize(net)
    >>> paths = export(net, getfixture("tmp_path") / "mlp", input_shape=(1, 5))
    >>> paths.symbol.name, paths.parameters.name
    ('mlp-symbol.json', 'mlp-0000.params')
    >>> load_exported(getfixture("tmp_path") / "mlp")(mx.nd.ones((2, 5))).shape
    (2, 3)
    """
    check_net(net)
    _check_format(format)
    epoch = whole_number(epoch, "epoch", least=0)
    shapes = _shapes(input_shape)
    inputs = _inputs(net, shapes)
    outputs = _trace(net, inputs)
    parameters = {name: parameter for name, parameter in net.collect_params().items() if name in outputs.list_inputs()}
    if shapes:
        _finish_shapes(outputs, dict(zip((one.name for one in inputs), shapes)), parameters)
    wait_before_reading()
    arrays = _arrays(outputs, parameters, {one.name for one in inputs})
    files = Exported(Path(f"{path}-symbol.json"), Path(f"{path}-{epoch:04d}.params"))
    text = _put_right(outputs.tojson(), parameters)
    if files.symbol.exists() and not overwrite and not _same_graph(files.symbol, text):
        raise ValueError(
            f"export: {files.symbol} holds another net (or other names of its parameters), whose parameters would not "
            "fit this one. Choose another path, or overwrite=True"
        )
    files.symbol.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(files.parameters, parameter_bytes(arrays))
    write_atomically(files.symbol, text.encode("utf-8"))
    return files


def load_exported(
    path: Union[str, Path],
    *,
    epoch: Optional[int] = None,
    scores: bool = False,
    devices: Optional[DeviceSpec] = None,
) -> "gluon.SymbolBlock":
    """Read what `export`, `net.export` or Module wrote, safely: both files are checked before MXNet sees them.

    Of a Module with a loss head (SoftmaxOutput, LinearRegressionOutput, LogisticRegressionOutput,
    MAERegressionOutput, SVMOutput) the block gives what `Module.predict` gives, up to the last bits of a softmax, and
    needs no label: each head becomes the plain operator that it is at inference (T117).

    Args:
        path: As for `export` and for `Module.save_checkpoint`: without `-symbol.json`.
        epoch: Number in the parameters' file name; None is the newest, which is the highest.
        scores: Leave out the softmax or sigmoid of the loss head. To train on: "softmax_ce" and "sigmoid_bce" apply
            their own.
        devices: Where the parameters go; None is the CPU.

    Returns:
        A block with the file's dtypes. Inputs are the variables without parameters, `data0` before `data1`; a label
        that only a loss head reads is none.

    Raises:
        CheckpointError: A file is damaged, holds what could harm the process, or both do not belong together: the
            weights of a layer are missing, or an array belongs to none.
        OSError: A file is not there, or cannot be read.
        ValueError: `scores` is asked for, and the graph has no loss head.

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
    symbol = without_labels(symbol, scores=scores)
    names = sorted((name for name in symbol.list_inputs() if name not in arrays), key=_order)
    try:
        block = gluon.SymbolBlock(symbol, [mx.sym.var(name, dtype="float32") for name in names])
    except (mx.MXNetError, AssertionError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[-1][:300]
        raise CheckpointError(f"{file} and {path}-symbol.json do not belong together: {reason}") from error
    for name, parameter in block.collect_params().items():
        parameter.cast(arrays[name].dtype)
        load_values(parameter, arrays[name], where)
    return block


def _check_format(format: str) -> None:
    if format in _LATER:
        raise ValueError(f"export: the format {format!r} is not there yet; there is {', '.join(map(repr, FORMATS))}")
    if format not in FORMATS:
        raise unknown_name("format of export", format, FORMATS)


def _shapes(input_shape: Any) -> List[Tuple[int, ...]]:
    """The shapes of all inputs; none where none were given."""
    if input_shape is None:
        return []
    given = input_shape if isinstance(input_shape, (list, tuple)) else (None,)
    many = list(given) if given and all(isinstance(one, (list, tuple)) for one in given) else [given]
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
    """The net's graph: its forward pass run with symbols."""
    try:
        with hooks_replaced(net):
            outputs = list(_flat(net(*inputs)))
    except Exception as error:
        raise ValueError(
            f"export: {type(net).__name__} cannot be traced with {len(inputs)} symbols: {type(error).__name__}: "
            f"{str(error)[:500]}. Every block must be a HybridBlock whose hybrid_forward reads neither shapes nor "
            "numbers; for several inputs, give input_shape a list with a shape for each"
        ) from error
    return outputs[0] if len(outputs) == 1 else mx.sym.Group(outputs)


def _flat(outputs: Any) -> Iterator[Any]:
    if isinstance(outputs, (list, tuple)):
        for one in outputs:
            yield from _flat(one)
    elif isinstance(outputs, mx.sym.Symbol):
        yield outputs
    else:
        raise TypeError(f"forward returned {type(outputs).__name__}, not a symbol")


def _finish_shapes(outputs: Any, shapes: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Tell parameters the shapes that follow from the inputs', and let those that waited for them begin."""
    unused = [name for name in shapes if name not in outputs.list_inputs()]
    try:
        told, _, auxiliary = outputs.infer_shape(**{name: shapes[name] for name in shapes if name not in unused})
    except mx.MXNetError as error:
        raise ValueError(f"input_shape: {shapes} does not fit the net: {error}") from error
    found = dict(zip(outputs.list_arguments(), told or ()))
    found.update(zip(outputs.list_auxiliary_states(), auxiliary or ()))
    for name, parameter in parameters.items():
        if is_deferred(parameter) and name in found:
            finish_initialization(parameter, found[name])


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
                + ("Tell its shape: input_shape=(1, ...)" if is_deferred(parameter) else "Call net.initialize() first")
            )
        arrays[f"{'aux' if name in auxiliary else 'arg'}:{name}"] = parameter.list_data()[0].copyto(mx.cpu())
    return arrays


def _put_right(text: str, parameters: Mapping[str, Any]) -> str:
    """What the graph says of parameters, as it is now: Gluon writes it down once, before shapes are known (T53)."""
    graph = json.loads(text)
    for node in graph["nodes"]:
        parameter = parameters.get(node["name"]) if node["op"] == "null" else None
        if parameter is not None:
            told = mx.sym.var(
                "told",
                shape=parameter.shape,
                dtype=parameter.dtype,
                lr_mult=parameter.lr_mult,
                wd_mult=parameter.wd_mult,
            ).list_attr()
            node["attrs"] = {**node.get("attrs", {}), **told}
    return json.dumps(sealed(graph), indent=2)


def _same_graph(path: Path, text: str) -> bool:
    def core(content: str) -> Any:
        graph = json.loads(content)
        for node in graph["nodes"]:
            attrs = node.get("attrs", {})
            node["attrs"] = {key: value for key, value in attrs.items() if not key.startswith("__")}
            # an entry's third number counts how often a variable was traced
            node["inputs"] = [entry[:2] for entry in node["inputs"]]
        return graph["nodes"], graph["heads"]

    try:
        return bool(core(path.read_text(encoding="utf-8")) == core(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _parameter_path(path: Union[str, Path], epoch: Optional[int]) -> Path:
    name = re.compile(re.escape(Path(path).name) + r"-(\d{4,})\.params")
    folder = Path(path).parent
    matches = [(name.fullmatch(file.name), file) for file in folder.iterdir()]
    found = {int(match[1]): file for match, file in matches if match}
    if not found:
        raise FileNotFoundError(
            f"{path}: there is no file {Path(path).name}-0000.params, of whatever number, beside it{_prefix_hint(path)}"
        )
    if epoch is not None and whole_number(epoch, "epoch", least=0) not in found:
        there = ", ".join(map(str, sorted(found)))
        raise FileNotFoundError(
            f"{path}: there is no {Path(path).name}-{epoch:04d}.params; epochs that are there: {there}"
        )
    return found[max(found) if epoch is None else epoch]


def _prefix_hint(path: Union[str, Path]) -> str:
    whole = re.fullmatch(r"(.+)(-symbol\.json|-\d{4,}\.params)", str(path))
    return f". Pass what both files begin with: {whole[1]!r}" if whole else ""


def _check_names(symbol: Any, stored: Mapping[str, Any], file: Path) -> None:
    expected = {f"arg:{name}" for name in symbol.list_arguments()}
    expected |= {f"aux:{name}" for name in symbol.list_auxiliary_states()}
    unknown = [name for name in stored if name not in expected]
    missing = [name for name in expected if name.startswith("aux:") and name not in stored]
    known = {name[4:] for name in stored}
    missing += [f"arg:{name}" for name in parameters_without_array(symbol, known)]
    if unknown or missing:
        raise CheckpointError(
            f"{file} does not belong to its graph: {', '.join(unknown[:8]) or 'nothing'} in the file alone, "
            f"{', '.join(sorted(missing)[:8]) or 'nothing'} in the graph alone"
        )


def _order(name: str) -> Tuple[int, int]:
    """Gluon's inputs in their order; others stay in the order of the graph."""
    match = re.fullmatch(r"data(\d+)", name)
    return (0, int(match[1])) if match else (1 if name != "data" else 0, 0)
