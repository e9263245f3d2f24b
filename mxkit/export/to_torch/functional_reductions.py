"""Operators that reduce, sort or multiply matrices."""

from typing import Dict, Optional, Tuple

from mxkit.export.to_torch.attributes import (
    atom,
    binary,
    cast,
    flag,
    integer,
    literal,
    number,
    optional_ints,
    refused,
    text,
)
from mxkit.export.to_torch.functional_arithmetic import Conversion
from mxkit.export.to_torch.node import Node


def reduced_axes(node: Node) -> Optional[Tuple[int, ...]]:
    """Return the axes that a reduction removes; None for all."""
    axes, rank = optional_ints(node, "axis"), len(node.shapes[0])
    if axes is None or axes == ():
        return None
    counted = tuple(sorted((axis or 0) % rank for axis in axes))
    if flag(node, "exclude"):
        counted = tuple(axis for axis in range(rank) if axis not in counted)
    return None if len(counted) == rank else counted


def along(node: Node, method: str, all_at_once: bool = True) -> str:
    """Write a reduction as a method, with its axes: `x.mean(dim=(2, 3), keepdim=True)`."""
    x, axes, keep = atom(node.inputs[0]), reduced_axes(node), flag(node, "keepdims")
    if axes is None and not keep:
        return f"{x}.{method}().reshape(1)" if len(node.outputs[0]) == 1 else f"{x}.{method}()"
    axes = tuple(range(len(node.shapes[0]))) if axes is None else axes
    kept = ", keepdim=True" if keep else ""
    if not all_at_once:
        for axis in reversed(axes):
            x = f"{x}.{method}(dim={axis}{kept})"
        return x
    return f"{x}.{method}(dim={literal(axes[0] if len(axes) == 1 else axes)}{kept})"


def _reduction(method: str, all_at_once: bool = True) -> Conversion:
    return lambda node: along(node, method, all_at_once)


def _mean(node: Node) -> str:
    if "int" in node.dtypes[0]:
        raise refused(node, f"the mean of {node.dtypes[0]}; cast it to float32 before")
    return along(node, "mean")


def _nan_product(node: Node) -> str:
    x = atom(node.inputs[0])
    return along(node._replace(inputs=[f"{x}.where(~{x}.isnan(), 1)"]), "prod", all_at_once=False)


def _norm(node: Node) -> str:
    x, axes, order = node.inputs[0], reduced_axes(node), integer(node, "ord", 2)
    dims = "" if axes is None else f", dim={literal(axes[0] if len(axes) == 1 else axes)}"
    kept = ", keepdim=True" if flag(node, "keepdims") else ""
    if "int" in node.dtypes[0]:
        raise refused(node, f"the norm of {node.dtypes[0]}; cast it to float32 before")
    if text(node, "out_dtype", node.dtypes[0]) != node.dtypes[0]:
        raise refused(node, "out_dtype, which MXNet's CPU does not compute")
    result = f"torch.linalg.vector_norm({x}, {order}{dims}{kept})"
    return f"{result}.reshape(1)" if axes is None and not kept and len(node.outputs[0]) == 1 else result


def _moments(node: Node) -> str:
    x, axes = atom(node.inputs[0]), optional_ints(node, "axes") or tuple(range(len(node.shapes[0])))
    kept = ", keepdim=True" if flag(node, "keepdims") else ""
    return f"({x}.mean(dim={literal(axes)}{kept}), {x}.var(dim={literal(axes)}, correction=0{kept}))"


def _extreme(method: str) -> Conversion:
    """Return a conversion of argmax or argmin, whose indices are floats in MXNet."""

    def convert(node: Node) -> str:
        x, axis = atom(node.inputs[0]), integer(node, "axis")
        kept = ", keepdim=True" if flag(node, "keepdims") else ""
        found = f"{x}.{method}()" if axis is None else f"{x}.{method}(dim={axis}{kept})"
        if axis is None and kept:
            found = f"{x}.{method}().reshape({literal((1,) * len(node.shapes[0]))})"
        elif axis is None and len(node.outputs[0]) == 1:
            found += ".reshape(1)"
        return cast(found, node.dtypes[0] if node.dtypes else "float32")

    return convert


def _flat_axis(node: Node) -> Tuple[str, int]:
    """Return the input and the axis to sort along; axis=None sorts the flattened input."""
    x = atom(node.inputs[0])
    if node.attrs.get("axis") == "None":
        return f"{x}.flatten()", 0
    return x, integer(node, "axis", -1) or 0


def _sorted(node: Node, method: str, ascending: bool) -> str:
    """Write a sort that keeps the order of equal numbers, as MXNet does in rows of up to 16; torch's topk does not."""
    x, axis = _flat_axis(node)
    descending = "" if ascending else ", descending=True"
    return f"{x}.{method}(dim={axis}{descending}, stable=True)"


def _topk(node: Node) -> str:
    (x, axis), count = _flat_axis(node), integer(node, "k", 1) or 0
    cut = f".narrow({axis}, 0, {count})" if count > 0 else ""
    order = _sorted(node, "argsort", flag(node, "is_ascend")) + cut
    values = _sorted(node, "sort", flag(node, "is_ascend")) + ".values" + cut
    kind, dtype = text(node, "ret_typ", "indices"), text(node, "dtype", "float32")
    if kind == "value":
        return values
    if kind == "mask":
        return f"torch.zeros_like({x}).scatter({axis}, {order}, 1)"
    return f"({values}, {cast(order, dtype)})" if kind == "both" else cast(order, dtype)


def _sort(node: Node) -> str:
    if node.operator == "sort":
        return _sorted(node, "sort", flag(node, "is_ascend", True)) + ".values"
    return cast(_sorted(node, "argsort", flag(node, "is_ascend", True)), text(node, "dtype", "float32"))


def _cumsum(node: Node) -> str:
    x, axis = atom(node.inputs[0]), integer(node, "axis")
    return f"{x}.flatten().cumsum(0)" if axis is None else f"{x}.cumsum({axis})"


def turned(value: str, is_turned: bool) -> str:
    """Write the transpose of matrices if asked."""
    return f"{atom(value)}.mT" if is_turned else value


def _dot(node: Node) -> str:
    left, right = node.inputs
    first, second = flag(node, "transpose_a"), flag(node, "transpose_b")
    ranks = [len(shape) for shape in node.shapes]
    if ranks == [1, 1]:
        return f"torch.dot({left}, {right})" + (".reshape(1)" if len(node.outputs[0]) == 1 else "")
    if max(ranks) > 2:
        if first or second:
            raise refused(node, f"a transposed array of {max(ranks)} dimensions")
        return f"torch.tensordot({left}, {right}, dims=1)"
    return binary(turned(left, first and ranks[0] == 2), "@", turned(right, second and ranks[1] == 2))


def _batch_dot(node: Node) -> str:
    left, right = node.inputs
    return binary(turned(left, flag(node, "transpose_a")), "@", turned(right, flag(node, "transpose_b")))


def _gemm(node: Node) -> str:
    if integer(node, "axis", -2) != -2:
        raise refused(node, f"axis={text(node, 'axis')}; expected -2")
    product, alpha = _batch_dot(node._replace(inputs=node.inputs[:2])), number(node, "alpha", 1)
    scaled = product if alpha == 1 else binary(literal(alpha), "*", product)
    if len(node.inputs) == 2:
        return scaled
    beta = number(node, "beta", 1)
    return binary(scaled, "+", node.inputs[2] if beta == 1 else binary(literal(beta), "*", node.inputs[2]))


def _syrk(node: Node) -> str:
    x, transposed, alpha = node.inputs[0], flag(node, "transpose"), number(node, "alpha", 1)
    product = binary(turned(x, transposed), "@", turned(x, not transposed))
    return product if alpha == 1 else binary(literal(alpha), "*", product)


REDUCTIONS: Dict[str, Conversion] = {
    "sum": _reduction("sum"),
    "mean": _mean,
    "prod": _reduction("prod", all_at_once=False),
    "nansum": _reduction("nansum"),
    "nanprod": _nan_product,
    "max": _reduction("amax"),
    "min": _reduction("amin"),
    "norm": _norm,
    "moments": _moments,
    "argmax": _extreme("argmax"),
    "argmin": _extreme("argmin"),
    "argmax_channel": lambda node: cast(f"{atom(node.inputs[0])}.argmax(dim=1)", node.dtypes[0]),
    "topk": _topk,
    "sort": _sort,
    "argsort": _sort,
    "_np_cumsum": _cumsum,
    "dot": _dot,
    "batch_dot": _batch_dot,
    "_linalg_gemm": _gemm,
    "_linalg_gemm2": _gemm,
    "_linalg_syrk": _syrk,
    "_linalg_potrf": lambda node: f"torch.linalg.cholesky({node.inputs[0]})",
    "_linalg_inverse": lambda node: f"torch.linalg.inv({node.inputs[0]})",
    "_linalg_det": lambda node: f"torch.linalg.det({node.inputs[0]})",
}
