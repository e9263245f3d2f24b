"""Conversions of operators that compute each element by itself."""

import math
from typing import Any

from mxkit.core.operators import known, operators_that
from mxkit.exporting.to_onnx.onnx_writer import Operator, Tensor, Unsupported, Writer, converts, like
import numpy as np


@converts(*operators_that("unary"))
def unary(operator: Operator, writer: Writer) -> str:
    return writer.op(known(operator.operator).onnx, _cast(operator.inputs[0], operator, writer))


@converts(*operators_that("binary", "swapped"))
def binary(operator: Operator, writer: Writer) -> str:
    row = known(operator.operator)
    first, second = _operands(operator, writer)
    if "swapped" in row.facts:  # "rminus"
        first, second = second, first
    return _remainder(first, second, operator, writer) if row.onnx == "Mod" else writer.op(row.onnx, first, second)


@converts("_hypot", "broadcast_hypot", "_npi_hypot", "_hypot_scalar")
def hypot(operator: Operator, writer: Writer) -> str:
    first, second = _operands(operator, writer)
    return writer.op("Sqrt", writer.op("Add", writer.op("Mul", first, first), writer.op("Mul", second, second)))


def _operands(operator: Operator, writer: Writer) -> Any:
    """Return both operands in the dtype of the output; the second one may be a number."""
    first, *others = (_cast(tensor, operator, writer) for tensor in operator.inputs)
    return first, others[0] if others else like(operator.outputs[0], operator.real("scalar"))


def _remainder(first: Any, second: Any, operator: Operator, writer: Writer) -> str:
    out = operator.outputs[0]
    if not np.issubdtype(out.dtype, np.floating):
        return writer.op("Mod", first, second)
    # MXNet's remainder has the sign of the divisor, and is 0 for a divisor of 0; fmod has the sign of the dividend
    zero = like(out, 0)
    by_zero = writer.op("Equal", second, zero)
    rest = writer.op("Mod", first, writer.op("Where", by_zero, like(out, 1), second), fmod=1)
    other = writer.op("Xor", writer.op("Less", rest, zero), writer.op("Less", second, zero))
    nonzero = writer.op("Not", writer.op("Equal", rest, zero))
    rest = writer.op("Where", writer.op("And", other, nonzero), writer.op("Add", rest, second), rest)
    return writer.op("Where", by_zero, zero, rest)


@converts(*operators_that("compared"))
def comparison(operator: Operator, writer: Writer) -> str:
    first: Any = operator.inputs[0]
    if len(operator.inputs) == 1:
        number = operator.real("scalar", 0)
        if np.issubdtype(first.dtype, np.floating):
            second: Any = like(first, number)
        else:  # a whole number is compared with 2.5, not with 2
            first, second = writer.cast(first, np.float64), np.float64(number)
    else:
        second = operator.inputs[1]
        if second.dtype != first.dtype:
            first, second = writer.cast(first, np.float64), writer.cast(second, np.float64)
    negated, _, word = known(operator.operator).onnx.rpartition(" ")  # "not Equal"
    made = writer.op(word, first, second)
    return writer.cast(writer.op("Not", made) if negated else made, operator.outputs[0].dtype)


@converts(*operators_that("logical"))
def logical(operator: Operator, writer: Writer) -> str:
    first, *others = (writer.cast(tensor, np.bool_) for tensor in operator.inputs)
    second = others[0] if others else np.bool_(operator.real("scalar"))
    return writer.cast(writer.op(known(operator.operator).onnx, first, second), operator.outputs[0].dtype)


@converts("logical_not", "_npi_logical_not")
def logical_not(operator: Operator, writer: Writer) -> str:
    return writer.cast(writer.op("Not", writer.cast(operator.inputs[0], np.bool_)), operator.outputs[0].dtype)


@converts("square", "_npi_square")
def square(operator: Operator, writer: Writer) -> str:
    return writer.op("Mul", operator.inputs[0], operator.inputs[0])


@converts("rsqrt", "cbrt", "rcbrt", "_npi_cbrt")
def root(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    if operator.operator == "rsqrt":
        return writer.op("Reciprocal", writer.op("Sqrt", data))
    made = cube_root(data, data, writer)
    return writer.op("Reciprocal", made) if operator.operator == "rcbrt" else made


def cube_root(data: Any, tensor: Tensor, writer: Writer) -> str:
    """Write the real cube root, which Pow does not give for negative numbers."""
    return writer.op("Mul", writer.op("Sign", data), writer.op("Pow", writer.op("Abs", data), like(tensor, 1 / 3)))


@converts(
    "log10", "log2", "log1p", "expm1", "_npi_log10", "_npi_log2", "_npi_log1p", "_npi_expm1", "degrees", "radians"
)
def logarithm(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    kind = known(operator.operator).kind
    if kind == "log1p":
        return writer.op("Log", writer.op("Add", data, like(data, 1)))
    if kind == "expm1":
        return writer.op("Sub", writer.op("Exp", data), like(data, 1))
    if kind in ("degrees", "radians"):
        return writer.op("Mul", data, like(data, 180 / math.pi if kind == "degrees" else math.pi / 180))
    return writer.op("Div", writer.op("Log", data), like(data, math.log(10 if kind == "log10" else 2)))


@converts("rint", "round", "trunc", "fix", "_npi_trunc", "_npi_fix", "_npi_rint")
def rounding(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    half = like(data, 0.5)
    kind = known(operator.operator).kind
    if kind == "rint":  # MXNet rounds a half down
        return writer.op("Ceil", writer.op("Sub", data, half))
    size = writer.op("Abs", data)
    size = writer.op("Add", size, half) if kind == "round" else size  # MXNet rounds a half away from zero
    return writer.op("Mul", writer.op("Sign", data), writer.op("Floor", size))


@converts("Activation")
def activation(operator: Operator, writer: Writer) -> str:
    kind = operator.get("act_type")
    data = operator.inputs[0]
    plain = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softsign": "Softsign", "softrelu": "Softplus"}
    if kind in plain:
        return writer.op(plain[kind], data)
    raise Unsupported(f"act_type {kind!r}")


@converts("LeakyReLU")
def leaky_relu(operator: Operator, writer: Writer) -> str:
    kind, data = operator.text("act_type", "leaky"), operator.inputs[0]
    if kind in ("leaky", "elu"):
        return writer.op("LeakyRelu" if kind == "leaky" else "Elu", data, alpha=operator.real("slope", 0.25))
    if kind == "selu":
        return writer.op("Selu", data, alpha=1.6732632423543772, gamma=1.0507009873554805)
    if kind == "gelu":
        part = writer.op("Erf", writer.op("Mul", data, like(data, math.sqrt(0.5))))
        return writer.op("Mul", writer.op("Mul", data, like(data, 0.5)), writer.op("Add", part, like(data, 1)))
    if kind == "prelu":
        return writer.op("PRelu", data, _slope(operator, writer))
    raise Unsupported("act_type='rrelu' draws its slopes" if kind == "rrelu" else f"act_type {kind!r}")


def _slope(operator: Operator, writer: Writer) -> str:
    """Lay PReLU's slopes along axis 1, where MXNet applies them; ONNX broadcasts from the last axis."""
    data, slope = operator.inputs
    if len(slope.dims) == 1 and slope.size(0) != 1 and len(data.dims) > 2:
        return writer.reshape(slope, (slope.size(0), *[1] * (len(data.dims) - 2)))
    return slope.name


@converts("clip")
def clip(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    made: Any = writer.named(data)
    for kind, name in (("Max", "a_min"), ("Min", "a_max")):
        if operator.text(name):
            made = writer.op(kind, made, like(data, operator.real(name)))
    return str(made)


@converts("Cast", "amp_cast")
def cast(operator: Operator, writer: Writer) -> str:
    return writer.cast(operator.inputs[0], operator.outputs[0].dtype)


@converts("amp_multicast")
def multicast(operator: Operator, writer: Writer) -> Any:
    return [writer.cast(tensor, output.dtype) for tensor, output in zip(operator.inputs, operator.outputs)]


@converts("smooth_l1")
def smooth_l1(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    squared = operator.real("scalar", 1) ** 2
    size = writer.op("Abs", data)
    curved = writer.op("Mul", writer.op("Mul", data, data), like(data, 0.5 * squared))
    straight = writer.op("Sub", size, like(data, 0.5 / squared))
    return writer.op("Where", writer.op("Less", size, like(data, 1 / squared)), curved, straight)


@converts("where", "_npi_where")
def where(operator: Operator, writer: Writer) -> str:
    condition, first, second = operator.inputs
    made = writer.cast(condition, np.bool_)
    if operator.operator == "where" and len(condition.dims) == 1 and len(first.dims) > 1:  # it chooses rows
        made = writer.reshape(made, (condition.dims[0], *[1] * (len(first.dims) - 1)))
    return writer.op("Where", made, first, second)


def _cast(tensor: Tensor, operator: Operator, writer: Writer) -> Any:
    dtype = operator.outputs[0].dtype
    return tensor if tensor.dtype == dtype else writer.cast(tensor, dtype)
