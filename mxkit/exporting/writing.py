"""Writes a net in each format of `export`, after the files were compared with MXNet."""

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import require, whole_number
from mxkit.core.blocks import parameters_by_path
from mxkit.core.graph import Graph
from mxkit.core.operators import draws
from mxkit.core.system import write_atomically
from mxkit.errors import ArchitectureError, ExportError, unknown_name
from mxkit.exporting.net_graph import GraphInput, NetGraph, as_arrays, by_name, example_batches, graph_of, split_shapes
from mxkit.exporting.params import safetensors_bytes
from mxkit.exporting.proof import Proof, Row, compare, compare_net, fixed_gammas
from mxkit.exporting.sources import Source, find_source, normalized
from mxkit.exporting.symbol_files import check_same_graph, compare_symbol, symbol_contents
from mxkit.exporting.to_onnx.onnx_writer import operators_of
from mxkit.nets.architecture import describe
from mxkit.nets.architecture.graph_blocks import OptimizedNet
from mxkit.nets.saving import values_by_path
from mxkit.storage.params_format import dtype_name
from mxkit.version import __version__
import mxnet as mx
import numpy as np

Shape = Sequence[Optional[int]]
# Endings of a format's files by use; the path of `export` may have the first one.
_FORMATS: Dict[str, Dict[str, str]] = {
    "symbol": {"symbol": "-symbol.json", "parameters": "-{epoch:04d}.params"},
    "onnx": {"onnx": ".onnx"},
    "torch": {"code": ".py", "weights": ".safetensors"},
    "safetensors": {"weights": ".safetensors"},
}
# Packages with the extra that installs them. The first one writes the format; the comparison needs all.
_PACKAGES = {
    "symbol": {},
    "safetensors": {"safetensors": "safetensors"},
    "onnx": {"onnx": "onnx", "onnxruntime": "onnx"},
    "torch": {"safetensors": "safetensors", "torch": "torch"},
}


class Job(NamedTuple):
    """Input of a format's writer.

    Attributes:
        source: The net, and what is known about it.
        graph: Its graph.
        forms: Its inputs.
        batches: Inputs of the comparison; empty without one.
        more_batches: Inputs for the comparison of the graph with the net only.
        train: Whether a training step is compared.
    """

    source: Source
    graph: NetGraph
    forms: List[GraphInput]
    batches: List[Dict[str, Any]]
    more_batches: List[Dict[str, Any]]
    train: bool


class Written(NamedTuple):
    """Output of a format's writer.

    Attributes:
        contents: Of the files, by their use.
        rows: Of the comparison.
        not_compared: Operators that the file computes as a part of others.
        notes: Changes that the writer made, a sentence each.
    """

    contents: Dict[str, bytes]
    rows: List[Row]
    not_compared: Sequence[str] = ()
    notes: Tuple[str, ...] = ()


class Exported(NamedTuple):
    """What `export` wrote.

    Attributes:
        files: Paths by their use: "symbol" and "parameters", "onnx", "code" and "weights", or "weights"; of a
            training "training", "code", "data" and "readme"; and "proof", the comparison as JSON.
        inputs: Name, shape and dtype of each input, like "data (N, 3, 224, 224) float32"; empty if not known.
        proof: The comparison with MXNet; None without one. `print(proof)` shows a row for each layer or operator.
        notes: Changes that the export made, a sentence each.
    """

    files: Dict[str, Path]
    inputs: Tuple[str, ...]
    proof: Optional[Proof]
    notes: Tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{use} {path}" for use, path in self.files.items()]
        lines += [f"input {one}" for one in self.inputs]
        return "\n".join([*lines, *self.notes, *([self.proof.summary()] if self.proof else [])])


def export(
    source: Any,
    path: Union[str, Path],
    *,
    format: Optional[str] = None,
    input_shape: Union[Shape, Sequence[Shape], Mapping[str, Shape], None] = None,
    inputs: Any = None,
    outputs: Union[str, Sequence[str], None] = None,
    boxes: str = "pixels",
    which: Optional[str] = None,
    verify: bool = True,
    tolerance: float = 1e-4,
    train: bool = False,
    training: Union[bool, Mapping[str, Any]] = False,
    partial: bool = False,
    epoch: Optional[int] = None,
    overwrite: bool = False,
) -> Exported:
    """Write a net for other programs, and prove that they compute what MXNet computes.

    The net itself does not change: its forward pass is traced with symbols. The same inputs go through MXNet and
    through the exported file, at batch sizes 1 and 4 ("symbol": the given one), and the outputs are compared operator
    by operator. Above `tolerance`, no file gets its name. A net that does not take every batch size, such as gluoncv's
    Faster R-CNN, is written for that of `input_shape`, or for 1.

    Args:
        source: An initialized HybridBlock (or Sequential of them); the folder of a run; a file of `save_net`; the
            common beginning of `NAME-symbol.json` and `NAME-0000.params` (of Gluon or Module, whose loss head becomes
            its plain operator), or a tuple of both paths; a `model.tar.gz` with such files, as of SageMaker; or a
            zoo's net with its published weights, like "zoo:resnet18_v2". On several devices, the values of the first
            one are written (T59).
        path: Common beginning of the files, with or without the format's ending. Missing folders are made.
        format: "symbol" (MXNet's graph and parameters: `path-symbol.json`, `path-0000.params`, for `load_exported`,
            `gluon.SymbolBlock.imports`, `mx.mod.Module.load` and other languages), "onnx" (`path.onnx`), "torch"
            (PyTorch code and its weights: `path.py`, `path.safetensors`), or "safetensors" (the parameters by
            structural path: `path.safetensors`). None is the format of the path's ending, else "symbol".
        input_shape: Shape of the input, with any batch size, or a list of shapes for several inputs. None stands for
            the batch size if its axis is not the first, as in (35, None, 100). Not needed for a run, with `inputs`, and
            for "symbol" and "safetensors" if all parameters have values. A graph's inputs keep their names; those of
            other nets are called `data`, or `data0`, `data1`... A dict gives shapes by name. For a graph's files it
            also sets the order of the inputs, and may name a label that stays one.
        inputs: An array, or a tuple with one for each input, or a dict by name, to compare with instead of random
            numbers, as masks need it; they also give shapes and dtypes (float64 is cast to float32). A run's own test
            data is taken without being asked.
        outputs: Names of a graph's internal outputs, up to which it is written; as for `load_exported`.
        boxes: A detector's boxes in "pixels" of the net's input, or "normalized", as shares of its width and height.
            The metadata `marks` say which.
        which: "last" or "best" checkpoint of a run; None takes that of its final scores.
        verify: Compare with MXNet. "torch" needs torch for it, and "onnx" onnxruntime.
        tolerance: Largest relative difference: the largest absolute difference of an array divided by the largest
            magnitude in it.
        train: Compare the gradients of a training step, too; for "torch".
        training: Write the training of a run instead, for "torch": `path` becomes a folder with `train.py`, which goes
            on from the run's newest checkpoint with torch alone, and the data, the weights and the optimizer's state.
            The proof compares 20 updates from the run's start, and 20 from the checkpoint, fewer of a large net;
            `tolerance` is at most 5e-5. Or the arguments of a `fit` of the net `source`, by name, such as
            `{"train": train, "loss": "l2", "trainer": "adam", "epochs": 9, "checkpoint": "checkpoints"}`: the training
            goes on from the newest checkpoint, or begins with the net, if there is none; updates are compared there.
        partial: Write a training of which a part has no PyTorch code, such as a loss in Python: `train.py` raises
            NotImplementedError there, with MXNet's code as a comment, and the proof compares the rest.
        epoch: Number in the name of a graph's parameters: of those that are read, by default the highest, and of those
            that "symbol" writes, by default the same or 0. All epochs of a net share one graph.
        overwrite: Replace existing files. The graph of "symbol" is also replaced without it by the same net's graph.

    Returns:
        The files, the comparison, and notes. The comparison is also written as `path.FORMAT.json`.

    Raises:
        NotInitializedError: A parameter has no value, and the shapes do not determine its shape.
        ExportError: Operators have no equivalent in the format (all are named), or the difference is too large.
        ValueError: An argument is wrong, the forward pass cannot be traced, or a file exists.
        ImportError: A package of the format is missing; the text has the command that installs it.
        CheckpointError, FileNotFoundError: A file of `source` is damaged, or does not exist.
        OSError: A file cannot be written; each file is complete or unchanged.

    Side effects:
        With shapes, parameters that waited for a first batch are initialized, as a batch would do.

    >>> net = mxkit.models.mlp(3, hidden=[4]); mxkit.initialize(net)
    >>> exported = export(net, getfixture("tmp_path") / "mlp", input_shape=(1, 5))
    >>> [path.name for path in exported.files.values()]
    ['mlp-symbol.json', 'mlp-0000.params', 'mlp.symbol.json']
    >>> mxkit.load_exported(getfixture("tmp_path") / "mlp")(mx.nd.ones((2, 5))).shape
    (2, 3)
    """
    if training or partial:
        others = {"input_shape": input_shape, "inputs": inputs, "outputs": outputs, "which": which, "epoch": epoch}
        others.update(train=train or None, overwrite=overwrite or None, verify=None if verify else False)
        return _training(source, path, format, tolerance, training, partial, others)
    format = _chosen(format, path)
    if boxes not in ("pixels", "normalized") or (format == "safetensors" and boxes != "pixels"):
        raise ValueError(f"export: boxes={boxes!r}: expected 'pixels' or, of a file that computes, 'normalized'")
    if train and not (format == "torch" and verify):
        raise ValueError("export: train=True compares gradients: it needs format='torch' and verify=True")
    packages = list(_PACKAGES[format].items())[: None if verify else 1]
    versions = {name: require(name, extra).__version__ for name, extra in packages}
    named = next((list(one) for one in (inputs, input_shape) if isinstance(one, Mapping)), None)
    found = find_source(source, which, epoch, inputs=named, outputs=outputs)
    if found.epoch is None and (outputs is not None or (epoch is not None and format != "symbol")):
        raise ValueError("export: outputs= and epoch= are for graphs that are read from files; this source is none")
    endings = _FORMATS[format]
    base = base_path(path, next(iter(endings.values())))
    number = whole_number(epoch if epoch is not None else found.epoch or 0, "epoch", least=0)
    files = {use: Path(f"{base}{ending.format(epoch=number)}") for use, ending in endings.items()}
    there = [str(file) for file in files.values() if file.exists()]
    if there and format != "symbol" and not overwrite:
        raise ValueError(f"export: {', '.join(there)} exists. Choose another path, or overwrite=True (--overwrite)")
    job = _prepared(found, input_shape, inputs, format, boxes, verify, train)
    contents, rows, not_compared, notes = _written(job, format, verify)
    if format == "symbol" and not overwrite:
        check_same_graph(files["symbol"], contents["symbol"])
    proof, proof_file = None, Path(f"{base}.{format}.json")
    if verify:
        notes = (*notes, *found.compared)
        versions = {"mxkit": __version__, "mxnet": mx.__version__, **versions}
        proof = Proof(rows, tolerance, versions, "; ".join([*map(str, job.forms), *notes]), not_compared)
        proof.check(f"the {format} file")
    base.parent.mkdir(parents=True, exist_ok=True)
    for use in reversed(list(contents)):  # the graph and the code last: they name files that are complete then
        write_atomically(files[use], contents[use])
    if proof is not None:
        files["proof"] = proof.write(proof_file)
    elif proof_file.exists():  # of another net
        proof_file.unlink()
    return Exported(files, tuple(map(str, job.forms)), proof, notes)


def _training(
    source: Any,
    folder: Union[str, Path],
    format: Optional[str],
    tolerance: float,
    training: Union[bool, Mapping[str, Any]],
    partial: bool,
    others: Mapping[str, Any],
) -> Exported:
    from mxkit.exporting.trainings.leaving import TOLERANCE, UPDATES, write_training

    fit = training if isinstance(training, Mapping) else None
    wrong = [name for name, one in others.items() if one is not None]
    if not training:
        raise ValueError("export: partial=True writes a training: it needs training=True")
    if format not in (None, "torch") or isinstance(source, (str, Path)) == (fit is not None):
        run, net = "True takes the folder of a run", "{...} takes a net and the arguments of its fit"
        raise ValueError(f"export: training={run if fit is None else net}, and format='torch'")
    if wrong:
        raise ValueError(
            f"export: training=True takes no {', '.join(wrong)}: it writes the newest checkpoint, compared"
        )
    proof = write_training(source, folder, UPDATES, min(tolerance, TOLERANCE), partial, fit)
    names = {"training": "train.py", "code": "net.py", "data": "data.py", "readme": "README.md", "proof": "proof.json"}
    files = {use: Path(folder).expanduser() / name for use, name in names.items()}
    notes = (proof.inputs, *(f"not written: {one}" for one in proof.not_compared))
    return Exported(files, (), proof, notes)


def base_path(path: Union[str, Path], ending: str) -> Path:
    """The common beginning of the exported files: `path` without the ending of its format.

    >>> base_path("models/net.onnx", ".onnx").as_posix(), base_path("models/net-1.5", ".onnx").as_posix()
    ('models/net', 'models/net-1.5')
    """
    text = str(path)
    return Path(text[: -len(ending)] if text.endswith(ending) and Path(text).name != ending else text)


def _chosen(format: Optional[str], path: Union[str, Path]) -> str:
    """Return the format; None is that of the path's ending."""
    if str(path).endswith(("/", os.sep)) or Path(path).is_dir():
        raise ValueError(f"export: path: expected the common beginning of files, like models/net; received {path}")
    if format is None:
        return {".onnx": "onnx", ".py": "torch", ".safetensors": "safetensors"}.get(Path(path).suffix, "symbol")
    if format not in _FORMATS:
        raise unknown_name("format of export", format, tuple(_FORMATS))
    return format


def _prepared(found: Source, input_shape: Any, inputs: Any, format: str, boxes: str, verify: bool, train: bool) -> Job:
    input_shape, inputs = (
        by_name(one, found.net) if isinstance(one, Mapping) else one for one in (input_shape, inputs)
    )
    stated, axes = split_shapes(input_shape)
    examples = as_arrays(inputs) or (() if stated else found.examples)
    shapes = [tuple(one.shape) for one in examples] or stated or list(found.shapes)
    for shape, own, axis in zip(stated or shapes, shapes, axes or [0] * len(shapes)):
        if not all(own) or (*shape[:axis], *shape[axis + 1 :]) != (*own[:axis], *own[axis + 1 :]):
            raise ValueError(f"inputs: expected an array of shape {shape} with samples; received {own}")
    found = normalized(found, shapes[0] if shapes else None) if boxes == "normalized" else found
    graph = graph_of(found.net, shapes)
    _check_graph(found.net, graph, format)
    dtypes = [str(one.dtype) for one in examples] or ["float32"] * len(shapes)
    other = format in ("onnx", "torch")
    if other and not shapes:
        raise ValueError(
            f"export: format={format!r} needs the shape of the net's {len(graph.inputs)} input(s), which the net does "
            "not say: pass input_shape=(1, 3, 224, 224) (--shape 1,3,224,224) or the like, or inputs=an array"
        )
    sizes: Tuple[Any, ...] = () if other else ([None],)  # the graph fits any size that the net fits
    fixed = False
    if shapes:
        try:
            parts = operators_of(graph, shapes, dtypes, axes)
            axes, fixed = parts.batch_axes, parts.fixed
        except (ExportError, mx.MXNetError):
            if other:
                raise
    if fixed:
        given, shapes = list(map(tuple, shapes)), [one.dims for one in parts.inputs]
        sizes = ([None if shapes == given else 1],)
    axes = axes or [0] * len(shapes)
    forms = [GraphInput(*one, fixed) for one in zip(graph.inputs, shapes, dtypes, axes)]
    drawn = example_batches(graph, forms, examples, *sizes) if forms and verify else []
    if drawn and sizes == ([1],):  # a net of one image, compared with further ones
        count = min(examples[0].shape[axes[0]] if examples else 1, 4)
        turned = [[np.roll(one, -number, axis) for one, axis in zip(examples, axes)] for number in range(1, count)]
        drawn += [batch for own in turned for batch in example_batches(graph, forms, own, [1])]
    more = example_batches(graph, forms, examples, [7]) if drawn and other and not fixed else []
    return Job(found, graph, forms, drawn, more, train)


def _check_graph(net: Any, graph: NetGraph, format: str) -> None:
    """Refuse inputs that the net does not read and, for other programs, parameters that are not float32."""
    used = set(graph.symbol.list_inputs())
    unused = [name for name in graph.inputs if name not in used]
    if unused:
        raise ValueError(
            f"export: the net does not read {', '.join(unused)} of its inputs {', '.join(graph.inputs)}: export a "
            "block without it"
        )
    if isinstance(net, OptimizedNet) and format != "symbol":
        raise ValueError(
            f"export: format={format!r} takes the float32 net: an optimized net holds operators of oneDNN only. Export "
            "the net from which it was made; other programs optimize it themselves"
        )
    others = {name: str(dtype_name(array.dtype)) for name, array in graph.arrays.items()}
    wrong = [name for name, dtype in others.items() if dtype in ("float16", "bfloat16", "float64")]
    if wrong and format in ("onnx", "torch"):
        raise ValueError(
            f"export: {format!r} takes parameters of float32; received {others[wrong[0]]}: {', '.join(wrong[:5])}. "
            "Load them into a net that is cast: net.cast('float32')"
        )


def _written(job: Job, format: str, verify: bool) -> Written:
    """Make the contents of a format's files, and compare them."""
    view = Graph.of(job.graph.symbol)
    # those inside of loops have the loop's name
    inside = ((inner, node.name) for node in view.nodes for inner in node.operators()) if job.batches else ()
    drawing = ", ".join(f"{inner.operator} ({name})" for inner, name in inside if draws(inner))
    if drawing:  # two runs differ
        job = job._replace(batches=[], more_batches=[])
    batches = [*job.batches, *job.more_batches]
    numbers = format in ("onnx", "torch")
    rows = compare_net(job.source.net, job.graph, batches, job.forms[0].axis, numbers) if batches else []
    try:
        written: Written = _WRITERS[format](job, verify)
    except (KeyError, IndexError, AttributeError, TypeError, mx.MXNetError) as error:
        raise ExportError(
            f"export: mxkit's conversion of this net to {format!r} failed, and nothing was written: "
            f"{type(error).__name__}: {str(error)[:500]}. format='symbol' takes every net"
        ) from error
    if drawing and numbers:  # PyTorch has a Dropout with mode="always"
        raise ExportError(
            f"export: {drawing} draws random numbers in prediction: {format!r} cannot be compared with MXNet, and was "
            "not written. format='symbol' takes every net"
        )
    note = f"outputs were not compared, because these operators draw random numbers: {drawing}"
    text = "the net does not take every batch size: the file takes {} only"
    fixed = [text.format(one.shape[one.axis]) for one in job.forms[:1] if one.fixed]
    notes = (*job.source.notes, *written.notes, *fixed, *([note] if drawing else []))
    return written._replace(rows=[*rows, *written.rows], notes=notes)


def _symbol(job: Job, verify: bool) -> Written:
    optimized = isinstance(job.source.net, OptimizedNet)  # MXNet alone reads oneDNN's operators
    symbol, parameters = symbol_contents(job.graph, casts=optimized)
    contents = {"symbol": symbol, "parameters": parameters}
    return Written(contents, compare_symbol(job.graph, contents, () if optimized else job.batches) if verify else [])


def _safetensors(job: Job, verify: bool) -> Written:
    """Write the parameters by structural path, a shared one under its first path, with the net's description."""
    net, fixed = job.source.net, fixed_gammas(job.graph)
    values = {path: array.asnumpy() for path, array in values_by_path(net, "export").items()}
    ones = [path for path, one in parameters_by_path(net).items() if id(one) in fixed and path in values]
    values.update({path: np.ones_like(values[path]) for path in ones})
    metadata = _metadata("np", job)
    try:
        metadata["description"] = json.dumps(describe(net))
    except ArchitectureError:  # a net of the user's own classes; the arrays are complete without it
        metadata["class"] = type(net).__name__
    content = safetensors_bytes(values, metadata)
    note = f"written as ones, as which MXNet reads them (scale=False, fix_gamma): {', '.join(ones)}"
    stored = require("safetensors.numpy", "safetensors").load(content) if verify else {}
    rows = [compare(path, "parameter", 0, values[path], stored[path]) for path in (values if verify else ())]
    return Written({"weights": content}, rows, notes=(note,) if ones else ())


def _metadata(layout: str, job: Job) -> Dict[str, str]:
    """Entries of a file's header: who reads the layout, the versions, and facts about the net."""
    return {"format": layout, "mxkit": __version__, "mxnet": mx.__version__, **job.source.facts}


def _onnx(job: Job, verify: bool) -> Written:
    from mxkit.exporting.to_onnx.onnx_model import onnx_model
    from mxkit.exporting.to_onnx.onnx_proof import compare_onnx

    _, shapes, dtypes, axes, _ = zip(*job.forms)
    content = onnx_model(job.graph, shapes, dtypes, job.source.facts, axes).SerializeToString()
    return Written({"onnx": content}, *(compare_onnx(job.graph, content, job.batches) if verify else ([],)))


def _torch(job: Job, verify: bool) -> Written:
    from mxkit.exporting.to_torch.code import torch_files
    from mxkit.exporting.to_torch.proof import compare_torch, not_compared

    example = example_batches(job.graph, job.forms, (), [None if job.forms[0].fixed else 2])[0]
    constants = {name.upper(): json.loads(text) for name, text in job.source.facts.items()}
    text, arrays, code = torch_files(job.source.net, example, constants=constants)
    contents = {"code": text.encode("utf-8"), "weights": safetensors_bytes(arrays, _metadata("pt", job))}
    if not verify:
        return Written(contents, [])
    batches = [list(one.values()) for one in job.batches]
    # the modules' first values are drawn from PyTorch's random numbers
    with require("torch", "torch").random.fork_rng(devices=[]):
        return Written(contents, compare_torch(code, text, arrays, batches, job.train), not_compared(code))


_WRITERS: Mapping[str, Any] = {"symbol": _symbol, "onnx": _onnx, "torch": _torch, "safetensors": _safetensors}
