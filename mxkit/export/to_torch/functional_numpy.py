"""Operators of `mx.np` and `mx.npx`, where they differ from the older ones."""

from typing import Dict, Sequence

from mxkit.export.to_torch.attributes import (
    TYPES,
    atom,
    binary,
    cast,
    dtype_of,
    flag,
    integer,
    ints,
    listed,
    literal,
    number,
    optional_ints,
    refused,
    text,
)
from mxkit.export.to_torch.functional_arithmetic import Conversion, template
from mxkit.export.to_torch.functional_shapes import arange
from mxkit.export.to_torch.node import Node

_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "true_divide": "/", "mod": "%", "power": "**"}
_COMPARISONS = {
    "equal": "==",
    "not_equal": "!=",
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
}
_FUNCTIONS = (
    "exp expm1 log log1p log2 log10 sqrt square reciprocal sign floor ceil trunc sin cos tan arcsin arccos arctan "
    "sinh cosh tanh arcsinh arccosh arctanh isnan isinf isfinite isposinf isneginf"
)


def _scalar(node: Node) -> str:
    value = number(node, "scalar")
    is_int = flag(node, "is_int", isinstance(value, int))
    return literal(value if is_int or node.dtypes[0].startswith("float") else float(value))


def _with_scalar(sign: str, reverse: bool = False) -> Conversion:
    def convert(node: Node) -> str:
        x, scalar = node.inputs[0], _scalar(node)
        return binary(scalar, sign, x) if reverse else binary(x, sign, scalar)

    return convert


def _between(sign: str) -> Conversion:
    return lambda node: binary(node.inputs[0], sign, node.inputs[1])


def _dims(node: Node, name: str = "axis") -> str:
    """Write the axes of a reduction; nothing for all of them."""
    axes = optional_ints(node, name)
    kept = flag(node, "keepdims")
    if axes is None and not kept:
        return ""
    axes = tuple(range(len(node.shapes[0]))) if axes is None else axes
    return f"dim={literal(axes[0] if len(axes) == 1 else axes)}" + (", keepdim=True" if kept else "")


def _typed(node: Node, code: str) -> str:
    """Cast a result if the operator states a type."""
    if text(node, "initial"):
        raise refused(node, "initial")
    dtype = text(node, "dtype")
    return cast(code, dtype) if dtype in TYPES and dtype != node.dtypes[0] else code


def _reduction(method: str) -> Conversion:
    return lambda node: _typed(node, f"{atom(node.inputs[0])}.{method}({_dims(node)})")


def _product(node: Node) -> str:
    x, axes = atom(node.inputs[0]), optional_ints(node, "axis")
    kept = ", keepdim=True" if flag(node, "keepdims") else ""
    if axes is None and not kept:
        return _typed(node, f"{x}.prod()")
    for axis in sorted((axis or 0) % len(node.shapes[0]) for axis in axes or range(len(node.shapes[0])))[::-1]:
        x = f"{x}.prod(dim={axis}{kept})"
    return _typed(node, x)


def _spread(method: str) -> Conversion:
    def convert(node: Node) -> str:
        dims, ddof = _dims(node), number(node, "ddof", 0)
        return _typed(node, f"{atom(node.inputs[0])}.{method}({dims + ', ' if dims else ''}correction={ddof})")

    return convert


def _extreme(method: str) -> Conversion:
    def convert(node: Node) -> str:
        x, axis = atom(node.inputs[0]), integer(node, "axis")
        kept = flag(node, "keepdims")
        if axis is None and kept:
            return f"{x}.{method}().reshape({literal((1,) * len(node.shapes[0]))})"
        return f"{x}.{method}({'' if axis is None else f'dim={axis}'}{', keepdim=True' if kept else ''})"

    return convert


def _reshape(node: Node) -> str:
    if text(node, "order", "C") != "C":
        raise refused(node, f"order={text(node, 'order')}; expected C")
    return f"{atom(node.inputs[0])}.reshape({literal(ints(node, 'newshape'))})"


def _npx_reshape(node: Node) -> str:
    """Write npx.reshape: -2 copies a dimension, -3 drops one of 1, -4 copies the rest, -5 merges, -6 splits."""
    x, rank, reverse = atom(node.inputs[0]), len(node.shapes[0]), flag(node, "reverse")
    codes = list(ints(node, "newshape"))
    at, dims, rest = 0, [], codes[::-1] if reverse else codes

    def have(number: int) -> str:
        return f"{x}.shape[{rank - 1 - number if reverse else number}]"

    while rest:
        code = rest.pop(0)
        if code == -2:
            dims.append(have(at))
        elif code == -4:
            dims += [have(number) for number in range(at, rank)]
            at = rank
        elif code == -5:
            dims.append(f"{have(at)} * {have(at + 1)}")
            at += 1
        elif code == -6:
            parts = [rest.pop(0), rest.pop(0)]
            dims += [str(p) if p != -1 else f"{have(at)} // {parts[1 - i]}" for i, p in enumerate(parts)]
        elif code != -3:
            dims.append(str(code))
        at += 1
    return f"{x}.reshape({listed(dims[::-1] if reverse else dims)})"


def _transpose(node: Node) -> str:
    axes = ints(node, "axes") or tuple(range(len(node.shapes[0])))[::-1]
    return f"{atom(node.inputs[0])}.permute({listed(map(str, axes))})"


def _squeeze(node: Node) -> str:
    axes = optional_ints(node, "axis")
    return f"{atom(node.inputs[0])}.squeeze({'' if axes is None else literal(axes[0] if len(axes) == 1 else axes)})"


def _join(function: str, default: int) -> Conversion:
    def convert(node: Node) -> str:
        inputs: Sequence[str] = node.inputs
        axis = integer(node, "axis", default)
        if node.attrs.get("axis") == "None":
            inputs, axis = [f"{atom(x)}.flatten()" for x in inputs], 0
        return f"torch.{function}([{listed(inputs)}], dim={axis})"

    return convert


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
        return f"torch.tensordot({node.inputs[0]}, {node.inputs[1]}, dims={integer(node, 'axes')})"
    first, second = (list(ints(node, f"{side}_axes_summed")) for side in "ab")
    return f"torch.tensordot({node.inputs[0]}, {node.inputs[1]}, dims=({first}, {second}))"


def _einsum(node: Node) -> str:
    return f'torch.einsum("{text(node, "subscripts")}", {listed(node.inputs)})'


def _where(node: Node) -> str:
    condition, *values = node.inputs
    if node.dtypes[0] != "bool":
        condition = binary(condition, "!=", "0")
    if node.operator == "_npi_where_scalar2":
        values = [literal(float(number(node, name))) for name in "xy"]  # ints would make an array of ints
    elif node.operator == "_npi_where_lscalar":
        values = [literal(number(node, "scalar")), *values]
    elif node.operator == "_npi_where_rscalar":
        values = [*values, literal(number(node, "scalar"))]
    return f"torch.where({condition}, {listed(values)})"


def _broadcast_to(node: Node) -> str:
    shape = ints(node, "shape")
    given = (None,) * (len(shape) - len(node.shapes[0])) + node.shapes[0]
    sizes = [-1 if wanted in (-2, have) else wanted for wanted, have in zip(shape, given)]
    return f"{atom(node.inputs[0])}.expand({listed(map(str, sizes))})"


def _flip(node: Node) -> str:
    axes = optional_ints(node, "axis") or tuple(range(len(node.shapes[0])))
    return f"{atom(node.inputs[0])}.flip({literal(axes)})"


def _roll(node: Node) -> str:
    shift, axes = ints(node, "shift"), optional_ints(node, "axis")
    return f"{atom(node.inputs[0])}.roll({literal(shift)}{'' if axes is None else f', {literal(axes)}'})"


def _moveaxis(node: Node) -> str:
    source, destination = (literal(ints(node, name)) for name in ("source", "destination"))
    return f"{atom(node.inputs[0])}.movedim({source}, {destination})"


def _filled(function: str) -> Conversion:
    def convert(node: Node) -> str:
        sizes = ["batch_size" if part < 0 else str(part) for part in ints(node, "shape")]
        extra = "" if dtype_of(node) == "torch.float32" else f", dtype={dtype_of(node)}"
        return f"torch.{function}(({''.join(part + ', ' for part in sizes).strip()}){extra}, device=device)"

    return convert


def _arange(node: Node) -> str:
    start, stop, step = number(node, "start", 0), number(node, "stop", 0), number(node, "step", 1)
    if not text(node, "stop"):
        start, stop = 0, start
    return arange(node, start, stop, step)


def _full_like(node: Node) -> str:
    return f"torch.full_like({node.inputs[0]}, {literal(number(node, 'fill_value'))})"


def _around(node: Node) -> str:
    decimals = integer(node, "decimals", 0)
    return f"{atom(node.inputs[0])}.round({f'decimals={decimals}' if decimals else ''})"


def _norm(node: Node) -> str:
    axes, order = optional_ints(node, "axis"), number(node, "ord", 2)
    if axes is not None and len(axes) > 1 and integer(node, "flag") != 1:  # 1 is Frobenius', 0 spectral, 2 nuclear
        raise refused(node, "the spectral or nuclear norm of matrices; torch.linalg.matrix_norm computes them")
    dims = "" if axes is None else f", dim={literal(axes[0] if len(axes) == 1 else axes)}"
    kept = ", keepdim=True" if flag(node, "keepdims") else ""
    return f"torch.linalg.vector_norm({node.inputs[0]}, {literal(order)}{dims}{kept})"


def _two(function: str) -> Conversion:
    return lambda node: f"torch.{function}({node.inputs[0]}, {node.inputs[1]})"


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
    for name in _FUNCTIONS.split():
        table[f"_npi_{name}"] = template("{a}." + name + "()")
    return table


NUMPY: Dict[str, Conversion] = {
    **_arithmetic_table(),
    "_npi_absolute": template("{a}.abs()"),
    "_npi_negative": template("-{a}"),
    "_npi_fix": template("{a}.trunc()"),
    "_npi_cbrt": template("{a}.sign() * {a}.abs().pow(1 / 3)"),
    "_npi_rint": template("({a} - 0.5).ceil()"),
    "_npi_around": _around,
    "_npi_degrees": template("torch.rad2deg({x})"),
    "_npi_radians": template("torch.deg2rad({x})"),
    "_npi_logical_not": template("torch.logical_not({x})"),
    "_npi_hypot": _two("hypot"),
    "_npi_arctan2": _two("atan2"),
    "_npi_matmul": _between("@"),
    "_npx_relu": template("F.relu({x})"),
    "_npx_sigmoid": template("{a}.sigmoid()"),
    "_np_copy": template("{x}"),
    "_np_sum": _reduction("sum"),
    "_npi_mean": _reduction("mean"),
    "_np_max": _reduction("amax"),
    "_np_min": _reduction("amin"),
    "_np_prod": _product,
    "_np_any": _reduction("any"),
    "_np_all": _reduction("all"),
    "_npi_std": _spread("std"),
    "_npi_var": _spread("var"),
    "_npi_argmax": _extreme("argmax"),
    "_npi_argmin": _extreme("argmin"),
    "_npi_norm": _norm,
    "_np_reshape": _reshape,
    "_npx_reshape": _npx_reshape,
    "_np_transpose": _transpose,
    "_np_squeeze": _squeeze,
    "_np_moveaxis": _moveaxis,
    "_np_roll": _roll,
    "_npi_flip": _flip,
    "_npi_concatenate": _join("cat", 0),
    "_npi_stack": _join("stack", 0),
    "_npi_vstack": lambda node: f"torch.vstack([{listed(node.inputs)}])",
    "_np_dot": _dot,
    "_npi_tensordot": _tensordot,
    "_npi_tensordot_int_axes": _tensordot,
    "_npi_einsum": _einsum,
    "_npi_where": _where,
    "_npi_where_lscalar": _where,
    "_npi_where_rscalar": _where,
    "_npi_where_scalar2": _where,
    "_npi_broadcast_to": _broadcast_to,
    "_npi_tril": lambda node: f"{atom(node.inputs[0])}.tril({integer(node, 'k', 0)})",
    "_npi_zeros": _filled("zeros"),
    "_npi_ones": _filled("ones"),
    "_npi_full_like": _full_like,
    "_npi_arange": _arange,
}
