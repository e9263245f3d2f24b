"""Writes the files of each format of `export`, and compares them with MXNet."""

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from mxkit.core.arguments import require
from mxkit.core.blocks import parameters_by_path
from mxkit.core.graph import Graph
from mxkit.core.operators import draws
from mxkit.errors import ExportError
from mxkit.exporting.array_files import safetensors_bytes
from mxkit.exporting.example_inputs import GraphInput, example_batches
from mxkit.exporting.net_check import compare_net, fixed_gammas
from mxkit.exporting.net_graph import NetGraph
from mxkit.exporting.proof import Row
from mxkit.exporting.safetensors_files import (
    compare_safetensors,
    metadata_of,
    parameter_values,
    safetensors_content,
)
from mxkit.exporting.sources import Source
from mxkit.exporting.symbol_files import compare_symbol, symbol_contents
from mxkit.nets.architecture.graph_blocks import OptimizedNet
from mxkit.version import __version__
import mxnet as mx

# Endings of a format's files by use; the path of `export` may have the first one.
FORMATS: Dict[str, Dict[str, str]] = {
    "symbol": {"symbol": "-symbol.json", "parameters": "-{epoch:04d}.params"},
    "onnx": {"onnx": ".onnx"},
    "torch": {"code": ".py", "weights": ".safetensors"},
    "safetensors": {"weights": ".safetensors"},
}
# The first package writes the format; the comparison needs all.
_PACKAGES = {
    "symbol": (), "safetensors": ("safetensors",), "onnx": ("onnx", "onnxruntime"), "torch": ("safetensors", "torch")
}  # fmt: skip


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


def need_packages(format: str, verify: bool) -> None:
    """Import the packages of a format.

    Raises:
        ImportError: One is missing; the text has the command that installs it.
    """
    for package in _PACKAGES[format] if verify else _PACKAGES[format][:1]:
        require(package, _extra(package))


def versions_of(format: str) -> Dict[str, str]:
    """Versions of the programs that are compared, by name."""
    versions = {"mxkit": __version__, "mxnet": mx.__version__}
    return {**versions, **{package: require(package, _extra(package)).__version__ for package in _PACKAGES[format]}}


def _extra(package: str) -> str:
    return "onnx" if package.startswith("onnx") else package


def write_format(job: Job, format: str, verify: bool) -> Written:
    """Make the contents of a format's files, and compare them.

    Raises:
        ExportError: The graph differs from the net, or the net cannot be converted.
    """
    drawing = _drawing(job.graph) if job.batches else []
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
            f"export: {', '.join(drawing)} draws random numbers in prediction: {format!r} cannot be compared with "
            "MXNet, and was not written. format='symbol' takes every net"
        )
    note = f"outputs were not compared, because these operators draw random numbers: {', '.join(drawing)}"
    notes = (*job.source.notes, *written.notes, *([note] if drawing else []))
    return written._replace(rows=[*rows, *written.rows], notes=notes)


def _drawing(graph: NetGraph) -> List[str]:
    """Operators that draw random numbers, with their names; those inside of loops have the loop's name."""
    view = Graph.of(graph.symbol)
    return [f"{inner.operator} ({node.name})" for node in view.nodes for inner in node.operators() if draws(inner)]


def _symbol(job: Job, verify: bool) -> Written:
    optimized = isinstance(job.source.net, OptimizedNet)  # MXNet alone reads oneDNN's operators
    symbol, parameters = symbol_contents(job.graph, casts=optimized)
    contents = {"symbol": symbol, "parameters": parameters}
    return Written(contents, compare_symbol(job.graph, contents, () if optimized else job.batches) if verify else [])


def _safetensors(job: Job, verify: bool) -> Written:
    net, fixed = job.source.net, fixed_gammas(job.graph)
    values = parameter_values(net, fixed)
    content = safetensors_content(net, values, job.source.facts)
    ones = [path for path, one in parameters_by_path(net).items() if id(one) in fixed and path in values]
    note = f"written as ones, as which MXNet reads them (scale=False, fix_gamma): {', '.join(ones)}"
    rows = compare_safetensors(values, content) if verify else []
    return Written({"weights": content}, rows, notes=(note,) if ones else ())


def _onnx(job: Job, verify: bool) -> Written:
    from mxkit.exporting.to_onnx.onnx_model import onnx_model
    from mxkit.exporting.to_onnx.onnx_proof import compare_onnx

    shapes, dtypes = [one.shape for one in job.forms], [one.dtype for one in job.forms]
    axes = [one.axis for one in job.forms]
    content = onnx_model(job.graph, shapes, dtypes, job.source.facts, axes).SerializeToString()
    return Written({"onnx": content}, *(compare_onnx(job.graph, content, job.batches) if verify else ([],)))


def _torch(job: Job, verify: bool) -> Written:
    from mxkit.exporting.to_torch.code import torch_files
    from mxkit.exporting.to_torch.proof import compare_torch, not_compared

    example = example_batches(job.graph, job.forms, (), [2])[0]
    constants = {name.upper(): _literal(json.loads(text)) for name, text in job.source.facts.items()}
    text, arrays, code = torch_files(job.source.net, example, constants=constants)
    weights = safetensors_bytes(arrays, metadata_of("pt", job.source.facts))
    written = Written({"code": text.encode("utf-8"), "weights": weights}, [])
    if not verify:
        return written
    batches = [list(one.values()) for one in job.batches]
    # the modules' first values are drawn from PyTorch's random numbers
    with require("torch", "torch").random.fork_rng(devices=[]):
        return written._replace(
            rows=compare_torch(code, text, arrays, batches, job.train), not_compared=not_compared(code)
        )


def _literal(value: Any) -> str:
    """Write a value of JSON as Python, with the quotes of `ruff format`.

    >>> print(_literal({"classes": ["it's", None, 1.5]}))
    {"classes": ["it's", None, 1.5]}
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(part)}' for key, part in value.items())}}}"
    return repr(value)


_WRITERS: Mapping[str, Any] = {"symbol": _symbol, "onnx": _onnx, "torch": _torch, "safetensors": _safetensors}
