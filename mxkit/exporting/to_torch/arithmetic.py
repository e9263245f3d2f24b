"""Operators that compute with numbers: elementwise ones, reductions, orders, products of matrices.

A row an operator: a pattern as `Node.filled` takes it, or a function.
"""

from functools import reduce
from typing import Any, Dict, Optional, Tuple, Union

from mxkit.exporting.to_torch.expressions import TYPES, Conversion, Node, atom, axes_text, binary, cast, listed, literal

_BETWEEN = {
    "+": "elemwise_add broadcast_add _plus_scalar _npi_add _npi_add_scalar",
    "-": "elemwise_sub broadcast_sub _minus_scalar _npi_subtract _npi_subtract_scalar",
    "*": "elemwise_mul broadcast_mul _mul_scalar _npi_multiply _npi_multiply_scalar",
    "/": "elemwise_div broadcast_div _div_scalar _npi_true_divide _npi_true_divide_scalar",
    "%": "_mod broadcast_mod _mod_scalar _npi_mod _npi_mod_scalar",
    "**": "_power broadcast_power _power_scalar _npi_power _npi_power_scalar",
    "@": "_npi_matmul",
}
_REVERSED = {
    "-": "_rminus_scalar _npi_rsubtract_scalar",
    "/": "_rdiv_scalar _npi_rtrue_divide_scalar",
    "%": "_rmod_scalar _npi_rmod_scalar",
    "**": "_rpower_scalar _npi_rpower_scalar",
}
_COMPARED = {
    "==": "_equal broadcast_equal _equal_scalar _npi_equal _npi_equal_scalar",
    "!=": "_not_equal broadcast_not_equal _not_equal_scalar _npi_not_equal _npi_not_equal_scalar",
    ">": "_greater broadcast_greater _greater_scalar _npi_greater _npi_greater_scalar",
    ">=": "_greater_equal broadcast_greater_equal _greater_equal_scalar _npi_greater_equal _npi_greater_equal_scalar",
    "<": "_lesser broadcast_lesser _lesser_scalar _npi_less _npi_less_scalar",
    "<=": "_lesser_equal broadcast_lesser_equal _lesser_equal_scalar _npi_less_equal _npi_less_equal_scalar",
}
_ROOMS = ("_", "broadcast_")
# Functions that torch has as methods of this name, in `mx.nd` and in `mx.np`
_METHODS = (
    "exp expm1 log log1p log2 log10 sqrt square reciprocal sign floor ceil trunc sin cos tan arcsin arccos arctan "
    "sinh cosh tanh arcsinh arccosh arctanh"
)
_PATTERNS = {
    "negative": "-{a}",
    "fix": "{a}.trunc()",
    "cbrt": "{a}.sign() * {a}.abs().pow(1 / 3)",
    # torch.round takes halves to the even neighbour, MXNet's round away from 0, its rint down
    "rint": "({a} - 0.5).ceil()",
    "degrees": "torch.rad2deg({x})",
    "radians": "torch.deg2rad({x})",
}


def _between(sign: str, reverse: bool = False) -> Conversion:
    def convert(node: Node) -> str:
        if len(node.inputs) == 1:
            return _with_scalar(node, sign, reverse)
        if sign == "/" and node.is_whole and not node.is_numpy:
            return f'torch.div({node.x}, {node.y}, rounding_mode="trunc")'
        return binary(node.x, sign, node.y)

    return convert


def _with_scalar(node: Node, sign: str, reverse: bool) -> str:
    value = _scalar(node)
    if node.is_whole and not node.is_numpy:
        if sign == "/" and reverse:
            raise node.refused(f"a division of {value} by an array of {node.dtypes[0]}")
        value = int(value)  # MXNet computes in the array's type
        if sign == "/":
            return f'torch.div({node.x}, {value}, rounding_mode="trunc")'
    if value < 0 and sign == "+":
        return binary(node.x, "-", literal(-value))
    if value == -1 and sign == "*" and isinstance(value, int):
        return f"-{node.a}"
    return binary(literal(value), sign, node.x) if reverse else binary(node.x, sign, literal(value))


def _scalar(node: Node) -> Any:
    """Return the attribute `scalar`; a float without decimals makes an array of floats in `mx.np`."""
    value = node.number("scalar")
    is_int = node.flag("is_int", isinstance(value, int)) or node.dtypes[0].startswith("float")
    return value if is_int or not node.is_numpy else float(value)


def _compared(sign: str) -> Conversion:
    def convert(node: Node) -> str:
        right = literal(_scalar(node)) if len(node.inputs) == 1 else node.y
        return node.as_first(binary(node.x, sign, right))

    return convert


def _logical(name: str) -> Conversion:
    return lambda node: node.as_first(f"torch.logical_{name}({node.x}, {node.y})")


def _logical_scalar(name: str) -> Conversion:
    def convert(node: Node) -> str:
        value, is_true = node.number("scalar") != 0, node.as_first(binary(node.x, "!=", "0"))
        if name == "xor":
            return node.as_first(binary(node.x, "==", "0")) if value else is_true
        fixed = f"torch.{'zeros' if name == 'and' else 'ones'}_like({node.x})"
        return is_true if value == (name == "and") else fixed

    return convert


def _cast(node: Node) -> str:
    return cast(node.x, node.dtype.partition(".")[2])


def _clip(node: Node) -> str:
    low, high = node.number("a_min"), node.number("a_max")
    return f"F.relu6({node.x})" if (low, high) == (0, 6) else f"{node.a}.clamp({literal(low)}, {literal(high)})"


def _smooth_l1(node: Node) -> str:
    beta = 1 / float(node.number("scalar", 1)) ** 2
    return f'F.smooth_l1_loss({node.x}, torch.zeros_like({node.x}), reduction="none", beta={beta!r})'


def _quadratic(node: Node) -> str:
    a, b, c = (literal(node.number(name)) for name in "abc")
    return f"{a} * {node.a} ** 2 + {b} * {node.a} + {c}"


def _around(node: Node) -> str:
    decimals = node.integer("decimals")
    return f"{node.a}.round({f'decimals={decimals}' if decimals else ''})"


def reduced_axes(node: Node) -> Optional[Tuple[int, ...]]:
    """Return the axes that a reduction removes; None for all."""
    axes, rank = node.optional_ints("axis"), node.rank
    if axes is None or axes == ():
        return None
    counted = tuple(sorted((axis or 0) % rank for axis in axes))
    if node.flag("exclude"):
        counted = tuple(axis for axis in range(rank) if axis not in counted)
    return None if len(counted) == rank else counted


def _reduction(method: str, extra: str = "", all_at_once: bool = True) -> Conversion:
    """Return the conversion of a reduction to a method, with its axes: `x.mean(dim=(2, 3), keepdim=True)`."""

    def convert(node: Node) -> str:
        if node.text("initial"):
            raise node.refused("initial")
        if method == "mean" and node.is_whole:
            raise node.refused(f"the mean of {node.dtypes[0]}; cast it to float32 before")
        x, axes, more = node.a, reduced_axes(node), node.filled(extra)
        if axes is None and not node.keepdim:
            x = _one_number(node, f"{x}.{method}({more})")
        else:
            axes = tuple(range(node.rank)) if axes is None else axes
            for part in [axes_text(axes)] if all_at_once else reversed(axes):
                x = f"{x}.{method}(dim={part}{node.keepdim}{', ' if more else ''}{more})"
        dtype = node.text("dtype")
        return cast(x, dtype) if dtype in TYPES and dtype != node.dtypes[0] else x

    return convert


def _one_number(node: Node, result: str) -> str:
    """Give the result over all axes the shape (1,), as `mx.nd` has it; in `mx.np` it has no axes."""
    return f"{result}.reshape(1)" if len(node.outputs[0]) == 1 else result


def _nan_product(node: Node) -> str:
    numbers = node._replace(inputs=[f"{node.a}.where(~{node.a}.isnan(), 1)"])
    return _reduction("prod", all_at_once=False)(numbers)


def _norm(node: Node) -> str:
    axes = reduced_axes(node)
    # the flag is 1 for Frobenius' norm, 0 for the spectral and 2 for the nuclear one
    if node.is_numpy and len(node.ints("axis")) > 1 and node.integer("flag") != 1:
        raise node.refused("the spectral or nuclear norm of matrices; torch.linalg.matrix_norm computes them")
    if node.is_whole:
        raise node.refused(f"the norm of {node.dtypes[0]}; cast it to float32 before")
    if node.text("out_dtype", node.dtypes[0]) != node.dtypes[0]:
        raise node.refused("out_dtype, which MXNet's CPU does not compute")
    dims = "" if axes is None else f", dim={axes_text(axes)}"
    result = f"torch.linalg.vector_norm({node.x}, {literal(node.number('ord', 2))}{dims}{node.keepdim})"
    return _one_number(node, result) if axes is None and not node.keepdim else result


def _moments(node: Node) -> str:
    axes = literal(node.optional_ints("axes") or tuple(range(node.rank)))
    return f"({node.a}.mean(dim={axes}{node.keepdim}), {node.a}.var(dim={axes}, correction=0{node.keepdim}))"


def _extreme(method: str) -> Conversion:
    """Return the conversion of argmax or argmin; its indices are floats in `mx.nd`."""

    def convert(node: Node) -> str:
        axis = node.integer("axis")
        if axis is not None:
            return node.as_first(f"{node.a}.{method}(dim={axis}{node.keepdim})")
        found = f"{node.a}.{method}()"
        shaped = f"{found}.reshape({literal((1,) * node.rank)})" if node.keepdim else _one_number(node, found)
        return node.as_first(shaped)

    return convert


def _in_order(node: Node) -> str:
    """Write topk, sort and argsort, which keep the order of equals in rows of up to 16; torch's topk does not."""
    x, axis, dtype = node.a, node.get("axis"), node.text("dtype")
    if axis is None:
        x, axis = f"{x}.flatten()", 0
    ascending = node.flag("is_ascend", node.operator != "topk")
    arguments = f"(dim={axis}{'' if ascending else ', descending=True'}, stable=True)"
    count, kind = node.integer("k"), node.text("ret_typ") if node.operator == "topk" else node.operator
    cut = f".narrow({axis}, 0, {count})" if node.operator == "topk" and count > 0 else ""
    order, values = f"{x}.argsort{arguments}{cut}", f"{x}.sort{arguments}.values{cut}"
    if kind == "mask":
        return f"torch.zeros_like({x}).scatter({axis}, {order}, 1)"
    if kind == "both":
        return f"({values}, {cast(order, dtype)})"
    return values if kind in ("value", "sort") else cast(order, dtype)


def _cumsum(node: Node) -> str:
    axis = node.integer("axis")
    return f"{node.a}.flatten().cumsum(0)" if axis is None else f"{node.a}.cumsum({axis})"


def _turned(value: str, is_turned: bool) -> str:
    return f"{atom(value)}.mT" if is_turned else value


def _dot(node: Node) -> str:
    (left, right), ranks = node.inputs, [len(shape) for shape in node.shapes]
    first, second = node.flag("transpose_a"), node.flag("transpose_b")
    if node.is_numpy:
        if 0 in ranks:
            return binary(left, "*", right)
        if max(ranks) <= 2 or ranks[1] == 1:
            return binary(left, "@", right)
        return f"torch.tensordot({left}, {right}, dims=([-1], [{ranks[1] - 2}]))"
    if ranks == [1, 1]:
        return _one_number(node, f"torch.dot({left}, {right})")
    if max(ranks) > 2:
        if first or second:
            raise node.refused(f"a transposed array of {max(ranks)} dimensions")
        return f"torch.tensordot({left}, {right}, dims=1)"
    return binary(_turned(left, first and ranks[0] == 2), "@", _turned(right, second and ranks[1] == 2))


def _batch_dot(node: Node) -> str:
    left, right = node.inputs[:2]
    return binary(_turned(left, node.flag("transpose_a")), "@", _turned(right, node.flag("transpose_b")))


def _times(factor: Any, value: str) -> str:
    return value if factor == 1 else binary(literal(factor), "*", value)


def _gemm(node: Node) -> str:
    if node.integer("axis") != -2:
        raise node.refused(f"axis={node.text('axis')}; expected -2")
    product = _times(node.number("alpha"), _batch_dot(node))
    return product if len(node.inputs) == 2 else binary(product, "+", _times(node.number("beta"), node.y))


def _syrk(node: Node) -> str:
    transposed = node.flag("transpose")
    product = binary(_turned(node.x, transposed), "@", _turned(node.x, not transposed))
    return _times(node.number("alpha"), product)


def _tensordot(node: Node) -> str:
    sides = tuple(list(node.ints(f"{side}_axes_summed")) for side in "ab")
    dims = node.integer("axes") if node.operator.endswith("int_axes") else sides
    return f"torch.tensordot({node.x}, {node.y}, dims={dims})"


ARITHMETIC: Dict[str, Union[str, Conversion]] = {
    **{name: _between(sign) for sign, names in _BETWEEN.items() for name in names.split()},
    **{name: _between(sign, reverse=True) for sign, names in _REVERSED.items() for name in names.split()},
    **{name: _compared(sign) for sign, names in _COMPARED.items() for name in names.split()},
    **{f"{room}{name}": f"{{a}}.{name}()" for name in _METHODS.split() for room in ("", "_npi_")},
    **{f"{room}{name}": pattern for name, pattern in _PATTERNS.items() for room in ("", "_npi_")},
    **{f"_npi_{name}": f"{{a}}.{name}()" for name in ["isnan", "isinf", "isfinite", "isposinf", "isneginf"]},
    **{name: f"{{a}}.{name}()" for name in ["abs", "rsqrt", "erf", "erfinv", "sigmoid"]},
    **{f"{room}{name}": f"torch.{name}({{x}}, {{y}})" for name in ("maximum", "minimum", "hypot") for room in _ROOMS},
    **{f"{room}logical_{name}": _logical(name) for name in ("and", "or", "xor") for room in _ROOMS},
    **{f"_logical_{name}_scalar": _logical_scalar(name) for name in ("and", "or", "xor")},
    "logical_not": lambda node: node.as_first(binary(node.x, "==", "0")),
    "_npi_logical_not": "torch.logical_not({x})",
    "_maximum_scalar": "{a}.clamp(min={scalar})",
    "_minimum_scalar": "{a}.clamp(max={scalar})",
    "_hypot_scalar": "torch.hypot({x}, torch.full_like({x}, {scalar}))",
    "_npi_hypot": "torch.hypot({x}, {y})",
    "_npi_arctan2": "torch.atan2({x}, {y})",
    "_npi_absolute": "{a}.abs()",
    "_npi_around": _around,
    "_npx_sigmoid": "{a}.sigmoid()",
    "add_n": lambda node: reduce(lambda total, part: binary(total, "+", part), node.inputs),
    "relu": "F.relu({x})",
    "_npx_relu": "F.relu({x})",
    "softsign": "F.softsign({x})",
    "rcbrt": "{a}.sign() * {a}.abs().pow(-1 / 3)",
    "round": "{a}.sign() * ({a}.abs() + 0.5).floor()",
    "gammaln": "torch.lgamma({x})",
    "gamma": "gamma_function({x})",
    "Cast": _cast,
    "amp_cast": _cast,
    "clip": _clip,
    "hard_sigmoid": "({alpha} * {a} + {beta}).clamp(0, 1)",
    "smooth_l1": _smooth_l1,
    "_contrib_quadratic": _quadratic,
    "_contrib_div_sqrt_dim": "{a} / {a}.shape[-1] ** 0.5",
    "sum": _reduction("sum"),
    "_np_sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "_npi_mean": _reduction("mean"),
    "prod": _reduction("prod", all_at_once=False),
    "_np_prod": _reduction("prod", all_at_once=False),
    "nansum": _reduction("nansum"),
    "nanprod": _nan_product,
    "max": _reduction("amax"),
    "_np_max": _reduction("amax"),
    "min": _reduction("amin"),
    "_np_min": _reduction("amin"),
    "_np_any": _reduction("any"),
    "_np_all": _reduction("all"),
    "_npi_std": _reduction("std", "correction={ddof}"),
    "_npi_var": _reduction("var", "correction={ddof}"),
    "norm": _norm,
    "_npi_norm": _norm,
    "moments": _moments,
    "argmax": _extreme("argmax"),
    "argmin": _extreme("argmin"),
    "_npi_argmax": _extreme("argmax"),
    "_npi_argmin": _extreme("argmin"),
    "argmax_channel": lambda node: node.as_first(f"{node.a}.argmax(dim=1)"),
    "topk": _in_order,
    "sort": _in_order,
    "argsort": _in_order,
    "_np_cumsum": _cumsum,
    "dot": _dot,
    "_np_dot": _dot,
    "batch_dot": _batch_dot,
    "_linalg_gemm": _gemm,
    "_linalg_gemm2": _gemm,
    "_linalg_syrk": _syrk,
    "_linalg_potrf": "torch.linalg.cholesky({x})",
    "_linalg_inverse": "torch.linalg.inv({x})",
    "_linalg_det": "torch.linalg.det({x})",
    "_npi_tensordot": _tensordot,
    "_npi_tensordot_int_axes": _tensordot,
    "_npi_einsum": lambda node: f'torch.einsum("{node.text("subscripts")}", {listed(node.inputs)})',
}
