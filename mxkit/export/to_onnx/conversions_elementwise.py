"""Conversions of operators that compute each element by itself."""

import math
from typing import Any

from mxkit.export.to_onnx.onnx_writer import Operator, Tensor, Unsupported, Writer, converts, like
import numpy as np

_UNARY = {
    "negative": "Neg",
    "abs": "Abs",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "floor": "Floor",
    "ceil": "Ceil",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "arcsin": "Asin",
    "arccos": "Acos",
    "arctan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tanh": "Tanh",
    "arcsinh": "Asinh",
    "arccosh": "Acosh",
    "arctanh": "Atanh",
    "erf": "Erf",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "sign": "Sign",
    "reciprocal": "Reciprocal",
    "softsign": "Softsign",
    "absolute": "Abs",
    "_copy": "Identity",
    "BlockGrad": "Identity",
    "MakeLoss": "Identity",
    "copy": "Identity",
    "stop_gradient": "Identity",
    "make_loss": "Identity",
    "identity": "Identity",
}
_BINARY = {
    "add": "Add",
    "plus": "Add",
    "sub": "Sub",
    "minus": "Sub",
    "subtract": "Sub",
    "mul": "Mul",
    "multiply": "Mul",
    "div": "Div",
    "true_divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "power": "Pow",
}
_COMPARED = {
    "equal": "Equal",
    "not_equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_equal": "LessOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
}
_LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}


@converts(*_UNARY, *(f"_npi_{kind}" for kind in _UNARY), "_npx_relu", "_npx_sigmoid", "_np_copy")
def unary(operator: Operator, writer: Writer) -> str:
    name = operator.kind.replace("_npi_", "").replace("_npx_", "").replace("_np_copy", "copy")
    return writer.op(_UNARY[name], _cast(operator.inputs[0], operator, writer))


def _both(kinds: Any) -> Any:
    """List MXNet's names of binary operators: by element, with broadcasting, and of mx.np."""
    for kind in kinds:
        yield from (f"elemwise_{kind}", f"broadcast_{kind}", f"_npi_{kind}", f"_{kind}")


def _scalars(kinds: Any) -> Any:
    for kind in kinds:
        yield from (f"_{kind}_scalar", f"_npi_{kind}_scalar", f"_r{kind}_scalar", f"_npi_r{kind}_scalar")


@converts(*_both([*_BINARY, "mod", "hypot"]), "_grad_add")
def binary(operator: Operator, writer: Writer) -> str:
    first, second = (_cast(tensor, operator, writer) for tensor in operator.inputs)
    return _arithmetic(_base(operator.kind), first, second, operator, writer)


@converts(*_scalars([*_BINARY, "mod", "hypot"]))
def binary_scalar(operator: Operator, writer: Writer) -> str:
    kind = operator.kind.replace("_npi_", "_")[1 : -len("_scalar")]
    reverse = kind not in (*_BINARY, "mod", "hypot")
    first: Any = _cast(operator.inputs[0], operator, writer)
    second: Any = like(operator.outputs[0], operator.number_of("scalar", 1))
    if reverse:
        kind, first, second = kind[1:], second, first
    return _arithmetic(kind, first, second, operator, writer)


def _arithmetic(kind: str, first: Any, second: Any, operator: Operator, writer: Writer) -> str:
    if kind == "hypot":
        return writer.op("Sqrt", writer.op("Add", writer.op("Mul", first, first), writer.op("Mul", second, second)))
    if kind != "mod":
        return writer.op(_BINARY[kind], first, second)
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


@converts(*_both(_COMPARED), *(f"_{kind}_scalar" for kind in _COMPARED), *(f"_npi_{kind}_scalar" for kind in _COMPARED))
def comparison(operator: Operator, writer: Writer) -> str:
    kind = _base(operator.kind.replace("_scalar", ""))
    first: Any = operator.inputs[0]
    if operator.kind.endswith("_scalar"):
        number = operator.number_of("scalar", 0)
        if np.issubdtype(first.dtype, np.floating):
            second: Any = like(first, number)
        else:  # a whole number is compared with 2.5, not with 2
            first, second = writer.cast(first, np.float64), np.float64(number)
    else:
        second = operator.inputs[1]
        if second.dtype != first.dtype:
            first, second = writer.cast(first, np.float64), writer.cast(second, np.float64)
    made = writer.op(_COMPARED[kind], first, second)
    return writer.cast(writer.op("Not", made) if kind == "not_equal" else made, operator.outputs[0].dtype)


@converts(*_both(_LOGICAL), *(f"_{kind}_scalar" for kind in _LOGICAL), *(f"_npi_{kind}_scalar" for kind in _LOGICAL))
def logical(operator: Operator, writer: Writer) -> str:
    kind = _base(operator.kind.replace("_scalar", ""))
    first = writer.cast(operator.inputs[0], np.bool_)
    scalar = operator.kind.endswith("_scalar")
    second = np.bool_(operator.number_of("scalar", 0)) if scalar else writer.cast(operator.inputs[1], np.bool_)
    return writer.cast(writer.op(_LOGICAL[kind], first, second), operator.outputs[0].dtype)


@converts("logical_not", "_npi_logical_not")
def logical_not(operator: Operator, writer: Writer) -> str:
    return writer.cast(writer.op("Not", writer.cast(operator.inputs[0], np.bool_)), operator.outputs[0].dtype)


@converts("add_n", "ElementWiseSum")
def add_n(operator: Operator, writer: Writer) -> str:
    return writer.op("Sum", *operator.inputs)


@converts("square", "_npi_square")
def square(operator: Operator, writer: Writer) -> str:
    return writer.op("Mul", operator.inputs[0], operator.inputs[0])


@converts("rsqrt", "cbrt", "rcbrt", "_npi_cbrt")
def root(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    if operator.kind == "rsqrt":
        return writer.op("Reciprocal", writer.op("Sqrt", data))
    made = cube_root(data, data, writer)
    return writer.op("Reciprocal", made) if operator.kind == "rcbrt" else made


def cube_root(data: Any, tensor: Tensor, writer: Writer) -> str:
    """Write the real cube root, which Pow does not give for negative numbers."""
    return writer.op("Mul", writer.op("Sign", data), writer.op("Pow", writer.op("Abs", data), like(tensor, 1 / 3)))


@converts(
    *(["log10", "log2", "log1p", "expm1", "degrees", "radians"]),
    *(["_npi_log10", "_npi_log2", "_npi_log1p", "_npi_expm1"]),
)
def logarithm(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    kind = operator.kind.replace("_npi_", "")
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
    kind = operator.kind.replace("_npi_", "")
    if kind == "rint":  # MXNet rounds a half down
        return writer.op("Ceil", writer.op("Sub", data, half))
    size = writer.op("Abs", data)
    size = writer.op("Add", size, half) if kind == "round" else size  # MXNet rounds a half away from zero
    return writer.op("Mul", writer.op("Sign", data), writer.op("Floor", size))


@converts("Activation", "_npx_activation")
def activation(operator: Operator, writer: Writer) -> str:
    kind = operator.get("act_type")
    data = operator.inputs[0]
    plain = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softsign": "Softsign", "softrelu": "Softplus"}
    if kind in plain:
        return writer.op(plain[kind], data)
    raise Unsupported(f"act_type {kind!r}")


@converts("hard_sigmoid")
def hard_sigmoid(operator: Operator, writer: Writer) -> str:
    alpha, beta = operator.number_of("alpha", 0.2), operator.number_of("beta", 0.5)
    return writer.op("HardSigmoid", operator.inputs[0], alpha=alpha, beta=beta)


@converts("LeakyReLU", "_npx_leaky_relu", "_npx_gelu")
def leaky_relu(operator: Operator, writer: Writer) -> str:
    kind = "gelu" if operator.kind == "_npx_gelu" else operator.get("act_type", "leaky")
    data = operator.inputs[0]
    slope = operator.number_of("slope", 0.25)
    if kind == "leaky":
        return writer.op("LeakyRelu", data, alpha=slope)
    if kind == "elu":
        return writer.op("Elu", data, alpha=slope)
    if kind == "rrelu":
        raise Unsupported("act_type='rrelu' draws its slopes")
    if kind == "selu":
        return writer.op("Selu", data, alpha=1.6732632423543772, gamma=1.0507009873554805)
    if kind == "gelu":
        part = writer.op("Erf", writer.op("Mul", data, like(data, math.sqrt(0.5))))
        return writer.op("Mul", writer.op("Mul", data, like(data, 0.5)), writer.op("Add", part, like(data, 1)))
    if kind == "prelu":
        return writer.op("PRelu", data, _slope(operator, writer))
    raise Unsupported(f"act_type {kind!r}")


def _slope(operator: Operator, writer: Writer) -> str:
    """Lay PReLU's slopes along axis 1, where MXNet applies them; ONNX broadcasts from the last axis."""
    data, slope = operator.inputs
    if len(slope.dims) == 1 and slope.size(0) != 1 and len(data.dims) > 2:
        return writer.reshape(slope, (slope.size(0), *[1] * (len(data.dims) - 2)))
    return slope.name


@converts("clip", "_npi_clip")
def clip(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    low, high = operator.get("a_min"), operator.get("a_max")
    made: Any = data
    made = made if low is None else writer.op("Max", made, like(data, float(low)))
    return writer.op("Identity" if high is None else "Min", made, *([] if high is None else [like(data, float(high))]))


@converts("Cast", "amp_cast", "_npi_cast", "cast")
def cast(operator: Operator, writer: Writer) -> str:
    return writer.cast(operator.inputs[0], operator.outputs[0].dtype)


@converts("amp_multicast")
def multicast(operator: Operator, writer: Writer) -> Any:
    return [writer.cast(tensor, output.dtype) for tensor, output in zip(operator.inputs, operator.outputs)]


@converts("smooth_l1")
def smooth_l1(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    squared = operator.number_of("scalar", 1) ** 2
    size = writer.op("Abs", data)
    curved = writer.op("Mul", writer.op("Mul", data, data), like(data, 0.5 * squared))
    straight = writer.op("Sub", size, like(data, 0.5 / squared))
    return writer.op("Where", writer.op("Less", size, like(data, 1 / squared)), curved, straight)


@converts("where", "_npi_where")
def where(operator: Operator, writer: Writer) -> str:
    condition, first, second = operator.inputs
    made = writer.cast(condition, np.bool_)
    if operator.kind == "where" and len(condition.dims) == 1 and len(first.dims) > 1:  # it chooses rows
        made = writer.reshape(made, (condition.dims[0], *[1] * (len(first.dims) - 1)))
    return writer.op("Where", made, first, second)


def _base(kind: str) -> str:
    for prefix in ("elemwise_", "broadcast_", "_npi_", "_grad_", "_"):
        if kind.startswith(prefix):
            return kind[len(prefix) :]
    return kind


def _cast(tensor: Tensor, operator: Operator, writer: Writer) -> Any:
    dtype = operator.outputs[0].dtype
    return tensor if tensor.dtype == dtype else writer.cast(tensor, dtype)
