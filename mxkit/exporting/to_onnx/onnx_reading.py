"""Checks an ONNX file of unknown origin before onnxruntime reads it."""

import math
from pathlib import Path
from typing import Any, Iterator, Tuple, Union

from mxkit.core.arguments import require
from mxkit.errors import CheckpointError

_LARGEST = 2**31 - 1  # bytes; protobuf's limit
_ELEMENTS = 2**31  # of any tensor whose shape the file states
_COMPUTED = 2**27  # elements that a computed tensor has for each sample
_OPSETS = range(7, 24)
_DEPTH = 8  # of graphs inside nodes


def read_onnx(path: Union[str, Path]) -> bytes:
    """Read a file and check that onnxruntime can load it without harm.

    The file must hold one valid ONNX graph whose operators are ONNX's own, and all its data: onnx's checker accepts
    it, tensors have the size that their shape states, and no shape in it is larger than 2**31 elements.

    Args:
        path: Of the file.

    Returns:
        Its content.

    Raises:
        CheckpointError: The file is damaged, refers to other files, or uses other operators.
        OSError: It does not exist or cannot be read.
    """
    file = Path(path)
    size = file.stat().st_size
    if not 0 < size <= _LARGEST:
        raise CheckpointError(f"{file}: expected an ONNX file of up to 2 GB, received {size} bytes")
    content = file.read_bytes()
    problem = _problem(content)
    if problem:
        raise CheckpointError(
            f"{file} is no ONNX file that mxkit reads: {problem}. If it was copied, copy it again; else export it "
            "again with one file for graph and weights, and with ONNX's own operators"
        )
    return content


def _problem(content: bytes) -> str:
    """Return what is wrong with a file's content, or ''."""
    import onnx
    from onnx import checker

    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own classes among them
        return f"its bytes are no ONNX message ({str(error)[:200]})"
    problem = _version_problem(model) or next(_graph_problems(model.graph, 0), "")
    if problem:
        return problem
    try:
        checker.check_model(model, full_check=True)
    except Exception as error:  # noqa: BLE001 - of several classes, some of them private
        return f"onnx's checker refuses it ({' '.join(str(error).split())[:300]})"
    return _memory_problem(model)


def _memory_problem(model: Any) -> str:
    """Return the tensor that would be too large, or ''; a single number in a file can demand any amount of memory."""
    from onnx import shape_inference

    for value in model.graph.input:  # one sample: a free batch size would hide the shapes computed from it
        for size in value.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                size.dim_value = 1
    del model.graph.value_info[:]
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    for value in [*inferred.value_info, *inferred.output]:
        sizes = [size.dim_value for size in value.type.tensor_type.shape.dim if size.dim_value]
        if math.prod(sizes) > _COMPUTED:
            return f"{value.name[:100]!r} would have {math.prod(sizes)} elements for one sample"
    return ""


def _version_problem(model: Any) -> str:
    import onnx

    domains = {entry.domain: entry.version for entry in model.opset_import}
    if set(domains) - {"", "ai.onnx"} or not domains:
        return f"operators of {sorted(set(domains) - {''}) or 'no set'}; expected ONNX's own"
    if not all(version in _OPSETS for version in domains.values()):
        return f"operator set {sorted(domains.values())}; expected {_OPSETS[0]} to {_OPSETS[-1]}"
    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        return f"version {model.ir_version} of the format; expected 3 to {onnx.IR_VERSION}"
    return "functions or training steps of its own" if model.functions or model.training_info else ""


def _graph_problems(graph: Any, depth: int) -> Iterator[str]:
    """Yield what is wrong with a graph and the graphs inside it."""
    if depth > _DEPTH:
        yield f"more than {_DEPTH} graphs inside each other"
        return
    if graph.sparse_initializer:
        yield "sparse tensors"
    for tensor in graph.initializer:
        yield from _tensor_problems(tensor)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        yield from _value_problems(value)
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            yield f"operator {node.op_type} of {node.domain!r}"
        for attribute in node.attribute:
            for tensor in [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])]:
                yield from _tensor_problems(tensor)
            if attribute.sparse_tensors or attribute.HasField("sparse_tensor"):
                yield "sparse tensors"
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                yield from _graph_problems(inner, depth + 1)


def _tensor_problems(tensor: Any) -> Iterator[str]:
    from onnx import TensorProto, helper

    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        yield f"tensor {tensor.name[:100]!r} stands in another file"
        return
    count, problem = _elements(tensor.dims)
    if problem:
        yield f"tensor {tensor.name[:100]!r} has {problem}"
        return
    if tensor.HasField("raw_data"):
        try:
            wanted = count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        except (KeyError, TypeError, ValueError):
            yield f"tensor {tensor.name[:100]!r} has the unknown type {tensor.data_type}"
            return
        if len(tensor.raw_data) != wanted:
            yield f"tensor {tensor.name[:100]!r} has {len(tensor.raw_data)} bytes; its shape needs {wanted}"


def _value_problems(value: Any) -> Iterator[str]:
    if not value.type.HasField("tensor_type"):
        return
    dims = [size.dim_value for size in value.type.tensor_type.shape.dim if size.HasField("dim_value")]
    problem = _elements(dims)[1]
    if problem:
        yield f"{value.name[:100]!r} has {problem}"


def _elements(dims: Any) -> Tuple[int, str]:
    if len(dims) > 32 or any(size < 0 for size in dims):
        return 0, f"the shape {list(dims)[:32]}"
    count = math.prod(dims)
    return count, f"{count} elements, more than {_ELEMENTS}" if count > _ELEMENTS else ""


def onnx_session(path: Path) -> Any:
    """Open a file in onnxruntime, after `read_onnx` checked it.

    Raises:
        CheckpointError: The file is damaged, or onnxruntime refuses it.
        ImportError: onnx or onnxruntime is missing.
    """
    require("onnx", "onnx")
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    content = read_onnx(path)
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of several classes, all of them private
        raise CheckpointError(f"{path}: onnxruntime refuses it: {str(error)[:300]}") from error
