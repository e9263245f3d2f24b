"""Conversions of attention with interleaved queries, keys and values."""

import math
from typing import Any, Tuple

from mxkit.exporting.to_onnx.onnx_writer import Batch, Operator, Size, Tensor, Writer, converts, integers, like


def _part(tensor: Tensor, heads: int, parts: int, number: int, writer: Writer) -> Tuple[str, int]:
    """Write one of `parts` arrays that lie side by side in each head, as (batch * heads, length, width)."""
    length, batch, size = tensor.dims
    width = tensor.size(2) // heads // parts
    made: Any = writer.reshape(tensor, (length, batch, heads, parts, width))
    made = writer.op("Squeeze", writer.slice(made, number, number + 1, 3), integers(3))
    return writer.reshape(writer.transpose(made, 1, 2, 0, 3), (_times(batch, heads), length, width)), width


def _times(batch: Size, count: int) -> Size:
    return Batch(batch.factor * count, batch.offset * count) if isinstance(batch, Batch) else batch * count


def _scores(query: str, width: int, key: str, tensor: Tensor, writer: Writer) -> str:
    scaled = writer.op("Div", query, like(tensor, math.sqrt(width)))
    return writer.op("MatMul", scaled, writer.transpose(key, 0, 2, 1))


@converts("_contrib_interleaved_matmul_selfatt_qk")
def self_attention_scores(operator: Operator, writer: Writer) -> str:
    heads = operator.integer("heads")
    data = operator.inputs[0]
    query, width = _part(data, heads, 3, 0, writer)
    return _scores(query, width, _part(data, heads, 3, 1, writer)[0], data, writer)


@converts("_contrib_interleaved_matmul_encdec_qk")
def attention_scores(operator: Operator, writer: Writer) -> str:
    heads = operator.integer("heads")
    query, width = _part(operator.inputs[0], heads, 1, 0, writer)
    key = _part(operator.inputs[1], heads, 2, 0, writer)[0]
    return _scores(query, width, key, operator.inputs[0], writer)


@converts("_contrib_interleaved_matmul_selfatt_valatt", "_contrib_interleaved_matmul_encdec_valatt")
def attention_values(operator: Operator, writer: Writer) -> str:
    heads = operator.integer("heads")
    parts = 3 if "selfatt" in operator.operator else 2
    data, weights = operator.inputs
    value, width = _part(data, heads, parts, parts - 1, writer)
    length, batch, _ = operator.outputs[0].dims
    made = writer.reshape(writer.op("MatMul", weights, value), (batch, heads, length, width))
    return writer.reshape(writer.transpose(made, 2, 0, 1, 3), operator.outputs[0].dims)


@converts("_contrib_div_sqrt_dim")
def div_sqrt_dim(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    return writer.op("Div", data, like(data, math.sqrt(data.size(len(data.dims) - 1))))
