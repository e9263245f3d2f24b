"""Converts a graph to an ONNX model, with any batch size where the graph fits it."""

from typing import Any, List, Mapping, Sequence, Tuple

from mxkit.core.operators import draws
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import NetGraph
from mxkit.exporting.to_onnx import arrays as _arrays  # noqa: F401 - it registers its conversions
from mxkit.exporting.to_onnx import layers as _layers  # noqa: F401 - likewise
from mxkit.exporting.to_onnx.onnx_writer import CONVERTERS, Batch, Operator, Tensor, Unsupported, Writer, operators_of
from mxkit.version import __version__
import mxnet as mx
import numpy as np

OPSET = 17  # the first with LayerNormalization; onnxruntime 1.12 of 2022 reads it
_IR = 8  # onnx 1.12 of 2022 and later read it


def onnx_model(
    graph: NetGraph,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    metadata: Mapping[str, str],
    axes: Sequence[int] = (),
) -> Any:
    """Convert a graph to ONNX.

    The inputs have the graph's names. The output is `output`, several are `output0`, `output1` and so on; MXNet's
    names of them stand in the metadata as `mxnet.outputs`. The tensors in between have the names of MXNet's operators.
    The size of the batch is `N` in inputs and outputs, if any fits: axis 0, or axis 1 of inputs that a fused RNN reads
    with time first.

    Args:
        graph: Result of `graph_of`.
        shapes: Of the inputs, in their order, with any batch size.
        dtypes: Of the inputs.
        metadata: Texts by name that the file carries.
        axes: The axes of the samples in the inputs; () finds them.

    Returns:
        A `ModelProto` that onnx's checker accepts.

    Raises:
        ExportError: An operator has no exact conversion (the text lists all such operators), or the graph fits no
            batch size, or only one and reads time first.
    """
    from onnx import checker, helper

    parts = operators_of(graph, shapes, dtypes, axes)
    writer = _converted(parts)
    for tensor, name in zip(parts.outputs, parts.output_names):
        if tensor.name != name:  # an input or a parameter, or a tensor that is the output twice
            writer.nodes.append(helper.make_node("Identity", [tensor.name], [name], name=name))
    # onnxruntime warns of an initializer that no node reads, like gamma of a BatchNorm with scale=False
    read = {name for node in writer.nodes for name in node.input}
    variables = {name: one for name, one in parts.variables.items() if one.name in read}
    parameters = {full: variables.get(full.partition(":")[2]) for full in graph.arrays}
    # parameters are inputs until the check, which would copy their data several times
    inputs = [_declared(tensor, tensor.name) for tensor in [*parts.inputs, *parameters.values()] if tensor]
    outputs = [_declared(tensor, name) for tensor, name in zip(parts.outputs, parts.output_names)]
    constants = [one for one in writer.initializers if one.name in read]
    described = helper.make_graph(writer.nodes, "mxnet", inputs, outputs, constants)
    made_by = {"ir_version": _IR, "producer_name": "mxkit", "producer_version": __version__}
    model = helper.make_model(described, opset_imports=[helper.make_opsetid("", OPSET)], **made_by)
    added = {"mxnet": mx.__version__, "mxnet.outputs": ", ".join(graph.symbol.list_outputs())}
    helper.set_model_props(model, {**added, **metadata})
    checker.check_model(model, full_check=True)
    del model.graph.input[len(parts.inputs) :]
    for full, variable in parameters.items():
        if variable:
            stored = model.graph.initializer.add(name=variable.name, dims=variable.dims)
            stored.data_type = helper.np_dtype_to_tensor_dtype(np.dtype(variable.dtype))
            stored.raw_data = graph.arrays[full].asnumpy().astype(variable.dtype).tobytes()
    return model


def _converted(parts: Any) -> Writer:
    """Convert all operators, or raise with all that cannot be converted."""
    writer = Writer((parts.inputs[0].name, parts.batch_axes[0]))
    refused: List[Tuple[Operator, str]] = []
    for operator in parts.operators:
        try:
            _convert(operator, writer)
        except Unsupported as reason:
            refused.append((operator, str(reason)))
    if refused:
        raise ExportError(_refusal(refused))
    return writer


def _convert(operator: Operator, writer: Writer) -> None:
    """Write the nodes of an operator, and give its outputs their names."""
    convert = CONVERTERS.get(operator.operator)
    if convert is None:
        reason = "it draws random numbers, which no other library draws alike"
        raise Unsupported(reason if draws(operator) else "mxkit has no conversion of this operator")
    if any(-1 in tensor.dims for tensor in [*operator.inputs, *operator.outputs]):
        raise Unsupported("the shape of its inputs or outputs depends on values, or not linearly on the batch size")
    writer.prefix = operator.outputs[0].name
    begin = len(writer.nodes)
    made = convert(operator, writer)
    renamed = {}
    own = {name for node in writer.nodes[begin:] for name in node.output}
    for name, tensor in zip([made] if isinstance(made, str) else made, operator.outputs):
        if name in own and name not in renamed:
            renamed[name] = tensor.name
        else:  # the conversion returned an input, a constant, or one tensor twice
            again = writer.op("Identity", renamed.get(name, name))
            renamed[again] = tensor.name
    for node in writer.nodes[begin:]:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]


def _declared(tensor: Tensor, name: str) -> Any:
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(name, kind, [_size(size) for size in tensor.dims])


def _size(size: Any) -> Any:
    if not isinstance(size, Batch):
        return size
    factor = "N" if size.factor == 1 else f"{size.factor}*N"
    return f"{factor}{size.offset:+d}" if size.offset else factor


def _refusal(refused: Sequence[Tuple[Operator, str]]) -> str:
    lines = "\n".join(f"  {operator.operator} ({operator.name}): {reason}" for operator, reason in refused)
    return (
        f"export: {len(refused)} operators cannot be converted to ONNX; nothing was written:\n{lines}\nReplace them in "
        'the net, or export the part of the net before them; docs page "What cannot leave" has the way round for each. '
        "format='symbol' takes every net"
    )
