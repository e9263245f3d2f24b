"""Operators of `mx.np` and `mx.npx`, where they differ from the older ones."""

from typing import Dict

from mxkit.exporting.to_torch.expression_parts import TYPES, atom, binary, cast, listed, literal
from mxkit.exporting.to_torch.functional_arithmetic import ARITHMETIC, COMPARISONS, template
from mxkit.exporting.to_torch.functional_indexing import flip
from mxkit.exporting.to_torch.functional_reductions import along, extreme, norm
from mxkit.exporting.to_torch.functional_shapes import (
    arange,
    broadcast_to,
    filled,
    join,
    resized,
    squeeze,
    transpose,
)
from mxkit.exporting.to_torch.node import Conversion, Node

_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "true_divide": "/", "mod": "%", "power": "**"}
_COMPARISONS = {name.replace("lesser", "less"): sign for name, sign in COMPARISONS.items()}
# Functions that are written as those of `mx.nd`
_OLDER = (
    "exp expm1 log log1p log2 log10 sqrt square reciprocal sign floor ceil trunc sin cos tan arcsin arccos arctan "
    "sinh cosh tanh arcsinh arccosh arctanh negative fix cbrt rint degrees radians"
)


def _scalar(node: Node) -> str:
    value = node.number("scalar")
    is_int = node.flag("is_int", isinstance(value, int))
    return literal(value if is_int or node.dtypes[0].startswith("float") else float(value))


def _with_scalar(sign: str, reverse: bool = False) -> Conversion:
    def convert(node: Node) -> str:
        x, scalar = node.inputs[0], _scalar(node)
        return binary(scalar, sign, x) if reverse else binary(x, sign, scalar)

    return convert


def _between(sign: str) -> Conversion:
    return lambda node: binary(node.inputs[0], sign, node.inputs[1])


def _typed(node: Node, code: str) -> str:
    """Cast a result if the operator states a type."""
    if node.text("initial"):
        raise node.refused("initial")
    dtype = node.text("dtype")
    return cast(code, dtype) if dtype in TYPES and dtype != node.dtypes[0] else code


def _reduction(method: str, all_at_once: bool = True) -> Conversion:
    return lambda node: _typed(node, along(node, method, all_at_once))


def _spread(method: str) -> Conversion:
    return lambda node: _typed(node, along(node, method, extra=f"correction={node.number('ddof', 0)}"))


def _reshape(node: Node) -> str:
    if node.text("order", "C") != "C":
        raise node.refused(f"order={node.text('order')}; expected C")
    return f"{atom(node.inputs[0])}.reshape({literal(node.ints('newshape'))})"


def _dot(node: Node) -> str:
    left, right = node.inputs
    ranks = [len(shape) for shape in node.shapes]
    if 0 in ranks:
        return binary(left, "*", right)
    if ranks[0] <= 2 and ranks[1] <= 2 or ranks[1] == 1:
        return binary(left, "@", right)
    axis = ranks[1] - 2
    return f"torch.tensordot({left}, {right}, dims=([-1], [{axis}]))"


def _tensordot(node: Node) -> str:
    if node.operator.endswith("int_axes"):
        return f"torch.tensordot({node.inputs[0]}, {node.inputs[1]}, dims={node.integer('axes')})"
    first, second = (list(node.ints(f"{side}_axes_summed")) for side in "ab")
    return f"torch.tensordot({node.inputs[0]}, {node.inputs[1]}, dims=({first}, {second}))"


def _einsum(node: Node) -> str:
    return f'torch.einsum("{node.text("subscripts")}", {listed(node.inputs)})'


def _where(node: Node) -> str:
    condition, *values = node.inputs
    if node.dtypes[0] != "bool":
        condition = binary(condition, "!=", "0")
    if node.operator == "_npi_where_scalar2":
        values = [literal(float(node.number(name))) for name in "xy"]  # ints would make an array of ints
    elif node.operator == "_npi_where_lscalar":
        values = [literal(node.number("scalar")), *values]
    elif node.operator == "_npi_where_rscalar":
        values = [*values, literal(node.number("scalar"))]
    return f"torch.where({condition}, {listed(values)})"


def _roll(node: Node) -> str:
    shift, axes = node.ints("shift"), node.optional_ints("axis")
    return f"{atom(node.inputs[0])}.roll({literal(shift)}{'' if axes is None else f', {literal(axes)}'})"


def _moveaxis(node: Node) -> str:
    source, destination = (literal(node.ints(name)) for name in ("source", "destination"))
    return f"{atom(node.inputs[0])}.movedim({source}, {destination})"


def _arange(node: Node) -> str:
    start, stop, step = node.number("start", 0), node.number("stop", 0), node.number("step", 1)
    if not node.text("stop"):
        start, stop = 0, start
    return arange(node, start, stop, step)


def _around(node: Node) -> str:
    decimals = node.integer("decimals", 0)
    return f"{atom(node.inputs[0])}.round({f'decimals={decimals}' if decimals else ''})"


def _norm(node: Node) -> str:
    # the flag is 1 for Frobenius' norm, 0 for the spectral and 2 for the nuclear one
    if len(node.ints("axis")) > 1 and node.integer("flag") != 1:
        raise node.refused("the spectral or nuclear norm of matrices; torch.linalg.matrix_norm computes them")
    return norm(node)


def _arithmetic_table() -> Dict[str, Conversion]:
    table: Dict[str, Conversion] = {}
    for name, sign in _SIGNS.items():
        table[f"_npi_{name}"] = _between(sign)
        table[f"_npi_{name}_scalar"] = _with_scalar(sign)
        if sign not in ("+", "*"):
            table[f"_npi_r{name}_scalar"] = _with_scalar(sign, reverse=True)
    for name, sign in _COMPARISONS.items():
        table[f"_npi_{name}"] = _between(sign)
        table[f"_npi_{name}_scalar"] = _with_scalar(sign)
    for name in _OLDER.split():
        table[f"_npi_{name}"] = ARITHMETIC[name]
    for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf"):
        table[f"_npi_{name}"] = template(f"{{a}}.{name}()")
    return table


NUMPY: Dict[str, Conversion] = {
    **_arithmetic_table(),
    "_npi_absolute": ARITHMETIC["abs"],
    "_npi_around": _around,
    "_npi_logical_not": template("torch.logical_not({x})"),
    "_npi_hypot": template("torch.hypot({x}, {y})"),
    "_npi_arctan2": template("torch.atan2({x}, {y})"),
    "_npi_matmul": _between("@"),
    "_npx_relu": template("F.relu({x})"),
    "_npx_sigmoid": template("{a}.sigmoid()"),
    "_np_copy": template("{x}"),
    "_np_sum": _reduction("sum"),
    "_npi_mean": _reduction("mean"),
    "_np_max": _reduction("amax"),
    "_np_min": _reduction("amin"),
    "_np_prod": _reduction("prod", all_at_once=False),
    "_np_any": _reduction("any"),
    "_np_all": _reduction("all"),
    "_npi_std": _spread("std"),
    "_npi_var": _spread("var"),
    "_npi_argmax": extreme("argmax"),
    "_npi_argmin": extreme("argmin"),
    "_npi_norm": _norm,
    "_np_reshape": _reshape,
    "_npx_reshape": lambda node: resized(node, node.ints("newshape")),
    "_np_transpose": transpose,
    "_np_squeeze": squeeze,
    "_np_moveaxis": _moveaxis,
    "_np_roll": _roll,
    "_npi_flip": flip,
    "_npi_concatenate": join("cat"),
    "_npi_stack": join("stack"),
    "_npi_vstack": lambda node: f"torch.vstack([{listed(node.inputs)}])",
    "_np_dot": _dot,
    "_npi_tensordot": _tensordot,
    "_npi_tensordot_int_axes": _tensordot,
    "_npi_einsum": _einsum,
    "_npi_where": _where,
    "_npi_where_lscalar": _where,
    "_npi_where_rscalar": _where,
    "_npi_where_scalar2": _where,
    "_npi_broadcast_to": broadcast_to(-2),
    "_npi_tril": template("{a}.tril({k})", k=0),
    "_npi_zeros": filled("zeros", -1),
    "_npi_ones": filled("ones", -1),
    "_npi_full_like": template("torch.full_like({x}, {fill_value})", fill_value=0),
    "_npi_arange": _arange,
}
