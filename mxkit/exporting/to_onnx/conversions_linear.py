"""Conversions of matrix products."""

import math
from typing import Any

from mxkit.exporting.to_onnx.onnx_writer import Operator, Tensor, Unsupported, Writer, converts, like


def _turned(tensor: Tensor, turn: bool, writer: Writer) -> Any:
    """Write a tensor with its last two axes swapped."""
    ndim = len(tensor.dims)
    return writer.transpose(tensor, *range(ndim - 2), ndim - 1, ndim - 2) if turn else tensor


@converts("dot", "_np_dot")
def dot(operator: Operator, writer: Writer) -> str:
    first, second = operator.inputs
    turns = operator.flag("transpose_a"), operator.flag("transpose_b")
    if len(first.dims) > 2 or len(second.dims) > 2 or 0 in (len(first.dims), len(second.dims)):
        operator.refuse((any(turns), "a transposed array of more than two axes"))
        return _of_more_axes(operator, writer)
    turned = [_turned(tensor, turn and len(tensor.dims) == 2, writer) for tensor, turn in zip(operator.inputs, turns)]
    made = writer.op("MatMul", *turned)
    return writer.reshape(made, operator.outputs[0].dims) if len(first.dims) == len(second.dims) == 1 else made


def _of_more_axes(operator: Operator, writer: Writer) -> str:
    """Write the product over the last axis of the first array and an axis of the second one."""
    first, second = operator.inputs
    if not first.dims or not second.dims:
        return writer.op("Mul", first, second)
    if operator.operator == "dot":  # mx.nd sums over the first axis of the second array, mx.np over the last but one
        if not all(isinstance(size, int) for size in second.dims[1:]):
            raise Unsupported("the second array has the batch behind its first axis")
        flat: Any = writer.reshape(second, (second.dims[0], math.prod(int(str(size)) for size in second.dims[1:])))
    else:
        operator.refuse((len(second.dims) > 2, "a second array of more than two axes"))
        flat = second
    return writer.reshape(writer.op("MatMul", first, flat), operator.outputs[0].dims)


@converts("batch_dot", "_linalg_gemm2", "_linalg_gemm", "_npi_matmul")
def batch_dot(operator: Operator, writer: Writer) -> str:
    first, second, *added = operator.inputs
    operator.refuse((operator.integer("axis", -2) != -2, "an axis other than -2"))
    turned = _turned(first, operator.flag("transpose_a"), writer), _turned(second, operator.flag("transpose_b"), writer)
    made = writer.op("MatMul", *turned)
    alpha, beta = operator.real("alpha", 1), operator.real("beta", 1)
    made = writer.op("Mul", made, like(first, alpha)) if alpha != 1 else made
    if added:
        made = writer.op("Add", made, writer.op("Mul", added[0], like(first, beta)))
    return made
