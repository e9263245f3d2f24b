"""Compares a net's exported files with MXNet, and writes them."""

import os
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.system import write_atomically
from mxkit.errors import ExportError, unknown_name
from mxkit.exporting.example_inputs import (
    SIZES,
    as_arrays,
    by_name,
    check_examples,
    example_batches,
    forms_of,
    split_shapes,
)
from mxkit.exporting.format_writers import FORMATS, Job, need_packages, versions_of, write_format
from mxkit.exporting.net_graph import check_graph, graph_of, input_names
from mxkit.exporting.proof import Proof
from mxkit.exporting.sources import Source, base_path, find_source
from mxkit.exporting.symbol_files import check_same_graph
from mxkit.exporting.to_onnx.operators_of_graph import operators_of
from mxkit.nets.architecture.graph_blocks import OptimizedNet
import mxnet as mx
from mxnet import autograd

Shape = Sequence[Optional[int]]


class Exported(NamedTuple):
    """What `export` wrote.

    Attributes:
        files: Paths by their use: "symbol" and "parameters", "onnx", "code" and "weights", or "weights"; and "proof",
            the comparison as JSON.
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
    which: str = "last",
    verify: bool = True,
    tolerance: float = 1e-4,
    train: bool = False,
    epoch: Optional[int] = None,
    overwrite: bool = False,
) -> Exported:
    """Write a net for other programs, and prove that they compute what MXNet computes.

    The net itself does not change: its forward pass is traced with symbols. The same inputs go through MXNet and
    through the exported file, at batch sizes 1 and 4 ("symbol": the given one), and the outputs are compared operator
    by operator. Above `tolerance`, no file gets its name.

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
        which: "last" or "best" checkpoint of a run.
        verify: Compare with MXNet. "torch" needs torch for it, and "onnx" onnxruntime.
        tolerance: Largest relative difference: the largest absolute difference of an array divided by the largest
            magnitude in it.
        train: Compare the gradients of a training step, too; for "torch".
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
    format = _chosen(format, path)
    _check_arguments(path, format, verify, tolerance, train)
    endings = FORMATS[format]
    base = base_path(path, next(iter(endings.values())))
    need_packages(format, verify)
    named = next((list(one) for one in (inputs, input_shape) if isinstance(one, Mapping)), None)
    found = find_source(source, which, epoch, inputs=named, outputs=outputs)
    if outputs is not None and found.epoch is None:
        raise ValueError("export: outputs= cuts a graph that is read from files; this source is none")
    if epoch is not None and found.epoch is None and format != "symbol":
        raise ValueError(f"epoch: is the number of a graph's parameters; {format!r} of this source has none")
    number = whole_number(epoch if epoch is not None else found.epoch or 0, "epoch", least=0)
    files = {use: Path(f"{base}{ending.format(epoch=number)}") for use, ending in endings.items()}
    if format != "symbol" and not overwrite:
        _refuse_existing(files.values())
    job = _prepared(found, input_shape, inputs, format, verify, train)
    contents, rows, not_compared, notes = write_format(job, format, verify)
    if format == "symbol" and not overwrite:
        check_same_graph(files["symbol"], contents["symbol"])
    proof, proof_file = None, Path(f"{base}.{format}.json")
    if verify:
        notes = (*notes, *found.compared)
        proof = Proof(rows, tolerance, versions_of(format), "; ".join([*map(str, job.forms), *notes]), not_compared)
        proof.check(f"the {format} file")
    base.parent.mkdir(parents=True, exist_ok=True)
    for use in reversed(list(contents)):  # the graph and the code last: they name files that are complete then
        write_atomically(files[use], contents[use])
    if proof is not None:
        files["proof"] = proof.write(proof_file)
    elif proof_file.exists():  # of another net
        proof_file.unlink()
    return Exported(files, tuple(map(str, job.forms)), proof, notes)


def _chosen(format: Optional[str], path: Union[str, Path]) -> str:
    """Return the format; None is that of the path's ending."""
    if format is None:
        return {".onnx": "onnx", ".py": "torch", ".safetensors": "safetensors"}.get(Path(path).suffix, "symbol")
    if format not in FORMATS:
        raise unknown_name("format of export", format, tuple(FORMATS))
    return format


def _check_arguments(path: Union[str, Path], format: str, verify: bool, tolerance: float, train: bool) -> None:
    if str(path).endswith(("/", os.sep)) or Path(path).is_dir():
        raise ValueError(f"export: path: expected the common beginning of files, like models/net; received {path}")
    if train and not (format == "torch" and verify):
        raise ValueError("export: train=True compares gradients: it needs format='torch' and verify=True")
    if not (isinstance(tolerance, (int, float)) and tolerance >= 0):
        raise ValueError(f"tolerance: expected a number from 0, like 1e-4; received {tolerance!r:.100}")
    if autograd.is_recording():
        raise ValueError("export: it runs the net, and cannot be called inside autograd.record()")


def _refuse_existing(files: Any) -> None:
    there = [str(path) for path in files if path.exists()]
    if there:
        raise ValueError(f"export: {', '.join(there)} exists. Choose another path, or overwrite=True (--overwrite)")


def _prepared(found: Source, input_shape: Any, inputs: Any, format: str, verify: bool, train: bool) -> Job:
    input_shape, inputs = (
        by_name(one, input_names(found.net, len(one))) if isinstance(one, Mapping) else one
        for one in (input_shape, inputs)
    )
    shapes, axes = split_shapes(input_shape)
    examples = as_arrays(inputs) or (() if shapes else found.examples)
    shapes = shapes or [tuple(one.shape) for one in examples] or list(found.shapes)
    check_examples(examples, shapes, axes)
    if isinstance(found.net, OptimizedNet) and format != "symbol":
        raise ValueError(
            f"export: format={format!r} takes the float32 net: an optimized net holds operators of oneDNN only. Export "
            "the net from which it was made; other programs optimize it themselves"
        )
    graph = graph_of(found.net, shapes)
    check_graph(graph, format)
    if not shapes and format in ("onnx", "torch"):
        raise ValueError(
            f"export: format={format!r} needs the shape of the net's {len(graph.inputs)} input(s), which the net does "
            "not say: pass input_shape=(1, 3, 224, 224) (--shape 1,3,224,224) or the like, or inputs=an array"
        )
    dtypes = [str(one.dtype) for one in examples] or ["float32"] * len(shapes)
    other = format in ("onnx", "torch")
    sizes: Sequence[Optional[int]] = SIZES if other else [None]  # the graph fits any size that the net fits
    if shapes and not axes:
        try:
            axes = operators_of(graph, shapes, dtypes).batch_axes
        except (ExportError, mx.MXNetError):
            if other:
                raise
    forms = forms_of(graph.inputs, shapes, axes, dtypes)
    drawn = example_batches(graph, forms, examples, sizes) if forms and verify else []
    more = example_batches(graph, forms, examples, [7]) if drawn and sizes is SIZES else []
    return Job(found, graph, forms, drawn, more, train)
