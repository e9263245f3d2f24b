"""Elementwise operators: arithmetic, comparisons, functions of one variable, casts."""

from typing import Dict

from mxkit.core.graph import Number
from mxkit.exporting.to_torch.expression_parts import as_first_input, atom, binary, cast, dtype_of, literal, sum_of
from mxkit.exporting.to_torch.node import Conversion, Node

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "power": "**"}
COMPARISONS = {
    "equal": "==",
    "not_equal": "!=",
    "greater": ">",
    "greater_equal": ">=",
    "lesser": "<",
    "lesser_equal": "<=",
}


def _is_whole(node: Node) -> bool:
    return bool(node.dtypes) and "int" in node.dtypes[0]


def _arithmetic(sign: str) -> Conversion:
    def convert(node: Node) -> str:
        left, right = node.inputs
        if sign == "/" and _is_whole(node):
            return f'torch.div({left}, {right}, rounding_mode="trunc")'
        return binary(left, sign, right)

    return convert


def _scalar(sign: str, reverse: bool = False) -> Conversion:
    def convert(node: Node) -> str:
        value = node.number("scalar")
        if _is_whole(node) and (isinstance(value, float) or sign == "/"):
            if sign != "/":
                value = int(value)  # MXNet computes in the array's type
            elif not reverse:
                return f'torch.div({node.inputs[0]}, {literal(int(value))}, rounding_mode="trunc")'
            else:
                raise node.refused(f"a division of {value} by an array of {node.dtypes[0]}")
        scalar = literal(value)
        left, right = (scalar, node.inputs[0]) if reverse else (node.inputs[0], scalar)
        if value < 0 and sign == "+":
            return binary(node.inputs[0], "-", literal(-value))
        if value == -1 and sign == "*":
            return f"-{atom(node.inputs[0])}"
        return binary(left, sign, right)

    return convert


def _compare(sign: str, scalar: bool) -> Conversion:
    def convert(node: Node) -> str:
        right = literal(node.number("scalar")) if scalar else node.inputs[1]
        return as_first_input(node, binary(node.inputs[0], sign, right))

    return convert


def _logical(name: str) -> Conversion:
    return lambda node: as_first_input(node, f"torch.logical_{name}({node.inputs[0]}, {node.inputs[1]})")


def _logical_scalar(name: str) -> Conversion:
    def convert(node: Node) -> str:
        x = node.inputs[0]
        if name == "xor":
            return as_first_input(node, binary(x, "==" if node.number("scalar") else "!=", "0"))
        value = node.number("scalar") != 0
        if name == "and":
            return as_first_input(node, binary(x, "!=", "0")) if value else f"torch.zeros_like({x})"
        return f"torch.ones_like({x})" if value else as_first_input(node, binary(x, "!=", "0"))

    return convert


def template(pattern: str, **defaults: Number) -> Conversion:
    """Return a conversion by a pattern.

    Args:
        pattern: `{x}` is the input, `{a}` the same before a method, `{y}` the last input; other names are attributes.
        defaults: Of the attributes, which are numbers.
    """

    def convert(node: Node) -> str:
        values = {name: literal(node.number(name, default)) for name, default in defaults.items()}
        return pattern.format(x=node.inputs[0], a=atom(node.inputs[0]), y=node.inputs[-1], **values)

    return convert


# Functions that torch names as MXNet does
_SAME = (
    "abs sign floor ceil trunc exp expm1 log log2 log10 log1p sqrt rsqrt square sin cos tan arcsin arccos "
    "arctan sinh cosh arcsinh arccosh arctanh reciprocal erf erfinv sigmoid tanh"
)

_FUNCTIONS = {
    **{name: "{a}." + name + "()" for name in _SAME.split()},
    "fix": "{a}.trunc()",
    "negative": "-{a}",
    "relu": "F.relu({x})",
    "softsign": "F.softsign({x})",
    "cbrt": "{a}.sign() * {a}.abs().pow(1 / 3)",
    "rcbrt": "{a}.sign() * {a}.abs().pow(-1 / 3)",
    # torch.round takes halves to the even neighbour, MXNet's round away from 0, its rint down
    "round": "{a}.sign() * ({a}.abs() + 0.5).floor()",
    "rint": "({a} - 0.5).ceil()",
    "degrees": "torch.rad2deg({x})",
    "radians": "torch.deg2rad({x})",
    "gammaln": "torch.lgamma({x})",
    "gamma": "gamma_function({x})",
    "_copy": "{x}",
    "make_loss": "{x}",
    "MakeLoss": "{x}",
    "LinearRegressionOutput": "{x}",
    "MAERegressionOutput": "{x}",
    "SVMOutput": "{x}",
    "LogisticRegressionOutput": "{a}.sigmoid()",
    "BlockGrad": "{a}.detach()",
    "zeros_like": "torch.zeros_like({x})",
    "ones_like": "torch.ones_like({x})",
    "_contrib_div_sqrt_dim": "{a} / {a}.shape[-1] ** 0.5",
}


def _logical_not(node: Node) -> str:
    return as_first_input(node, binary(node.inputs[0], "==", "0"))


def _cast(node: Node) -> str:
    dtype_of(node)
    return cast(node.inputs[0], node.text("dtype", "float32"))


def _clip(node: Node) -> str:
    low, high = node.number("a_min"), node.number("a_max")
    if (low, high) == (0, 6):
        return f"F.relu6({node.inputs[0]})"
    return f"{atom(node.inputs[0])}.clamp({literal(low)}, {literal(high)})"


def _smooth_l1(node: Node) -> str:
    x, beta = node.inputs[0], 1 / float(node.number("scalar", 1)) ** 2
    return f'F.smooth_l1_loss({x}, torch.zeros_like({x}), reduction="none", beta={beta!r})'


def _quadratic(node: Node) -> str:
    a, b, c = (literal(node.number(name)) for name in "abc")
    return f"{a} * {atom(node.inputs[0])} ** 2 + {b} * {atom(node.inputs[0])} + {c}"


def _binary_table() -> Dict[str, Conversion]:
    table: Dict[str, Conversion] = {}
    for name, sign in _SIGNS.items():
        elementwise = f"_{name}" if name in ("mod", "power") else f"elemwise_{name}"
        table[elementwise] = table[f"broadcast_{name}"] = _arithmetic(sign)
    for name, sign in {"plus": "+", "minus": "-", "mul": "*", "div": "/", "mod": "%", "power": "**"}.items():
        table[f"_{name}_scalar"] = _scalar(sign)
        if sign not in ("+", "*"):
            table[f"_r{name}_scalar"] = _scalar(sign, reverse=True)
    for name, sign in COMPARISONS.items():
        table[f"_{name}"] = table[f"broadcast_{name}"] = _compare(sign, scalar=False)
        table[f"_{name}_scalar"] = _compare(sign, scalar=True)
    for name in ("maximum", "minimum", "hypot"):
        table[f"_{name}"] = table[f"broadcast_{name}"] = template(f"torch.{name}({{x}}, {{y}})")
    for name in ("and", "or", "xor"):
        table[f"_logical_{name}"] = table[f"broadcast_logical_{name}"] = _logical(name)
        table[f"_logical_{name}_scalar"] = _logical_scalar(name)
    return table


ARITHMETIC: Dict[str, Conversion] = {
    **_binary_table(),
    **{name: template(pattern) for name, pattern in _FUNCTIONS.items()},
    "_maximum_scalar": template("{a}.clamp(min={scalar})", scalar=0),
    "_minimum_scalar": template("{a}.clamp(max={scalar})", scalar=0),
    "_hypot_scalar": template("torch.hypot({x}, torch.full_like({x}, {scalar}))", scalar=0),
    "add_n": lambda node: sum_of(node.inputs),
    "logical_not": _logical_not,
    "Cast": _cast,
    "amp_cast": _cast,
    "clip": _clip,
    "hard_sigmoid": template("({alpha} * {a} + {beta}).clamp(0, 1)", alpha=0.2, beta=0.5),
    "smooth_l1": _smooth_l1,
    "_contrib_quadratic": _quadratic,
}
