"""Operators that reduce, sort or multiply matrices."""

from typing import Dict, Optional, Tuple

from mxkit.exporting.to_torch.expression_parts import as_first_input, atom, axes_text, binary, cast, keepdim, literal
from mxkit.exporting.to_torch.functional_arithmetic import template
from mxkit.exporting.to_torch.node import Conversion, Node


def reduced_axes(node: Node) -> Optional[Tuple[int, ...]]:
    """Return the axes that a reduction removes; None for all."""
    axes, rank = node.optional_ints("axis"), node.rank
    if axes is None or axes == ():
        return None
    counted = tuple(sorted((axis or 0) % rank for axis in axes))
    if node.flag("exclude"):
        counted = tuple(axis for axis in range(rank) if axis not in counted)
    return None if len(counted) == rank else counted


def along(node: Node, method: str, all_at_once: bool = True, extra: str = "") -> str:
    """Write a reduction as a method, with its axes and other arguments: `x.mean(dim=(2, 3), keepdim=True)`."""
    x, axes, kept = atom(node.inputs[0]), reduced_axes(node), keepdim(node)
    if axes is None and not kept:
        return one_number(node, f"{x}.{method}({extra})")
    axes = tuple(range(node.rank)) if axes is None else axes
    if all_at_once:
        return f"{x}.{method}(dim={axes_text(axes)}{kept}{', ' if extra else ''}{extra})"
    for axis in reversed(axes):
        x = f"{x}.{method}(dim={axis}{kept})"
    return x


def one_number(node: Node, result: str) -> str:
    """Give the result over all axes the shape (1,), as `mx.nd` has it; in `mx.np` it has no axes."""
    return f"{result}.reshape(1)" if len(node.outputs[0]) == 1 else result


def reduction(method: str, all_at_once: bool = True) -> Conversion:
    return lambda node: along(node, method, all_at_once)


def _mean(node: Node) -> str:
    if "int" in node.dtypes[0]:
        raise node.refused(f"the mean of {node.dtypes[0]}; cast it to float32 before")
    return along(node, "mean")


def _nan_product(node: Node) -> str:
    x = atom(node.inputs[0])
    return along(node._replace(inputs=[f"{x}.where(~{x}.isnan(), 1)"]), "prod", all_at_once=False)


def norm(node: Node) -> str:
    """Write the norm of vectors."""
    axes, kept = reduced_axes(node), keepdim(node)
    dims = "" if axes is None else f", dim={axes_text(axes)}"
    if "int" in node.dtypes[0]:
        raise node.refused(f"the norm of {node.dtypes[0]}; cast it to float32 before")
    if node.text("out_dtype", node.dtypes[0]) != node.dtypes[0]:
        raise node.refused("out_dtype, which MXNet's CPU does not compute")
    result = f"torch.linalg.vector_norm({node.inputs[0]}, {literal(node.number('ord', 2))}{dims}{kept})"
    return one_number(node, result) if axes is None and not kept else result


def _moments(node: Node) -> str:
    x, axes = atom(node.inputs[0]), node.optional_ints("axes") or tuple(range(node.rank))
    kept = keepdim(node)
    return f"({x}.mean(dim={literal(axes)}{kept}), {x}.var(dim={literal(axes)}, correction=0{kept}))"


def extreme(method: str) -> Conversion:
    """Return a conversion of argmax or argmin."""

    def convert(node: Node) -> str:
        x, axis, kept = atom(node.inputs[0]), node.integer("axis"), keepdim(node)
        if axis is not None:
            return f"{x}.{method}(dim={axis}{kept})"
        found = f"{x}.{method}()"
        return f"{found}.reshape({literal((1,) * node.rank)})" if kept else one_number(node, found)

    return convert


def _of_floats(conversion: Conversion) -> Conversion:
    """Return a conversion whose indices are floats, as in `mx.nd`."""
    return lambda node: as_first_input(node, conversion(node))


def _flat_axis(node: Node) -> Tuple[str, int]:
    """Return the input and the axis to sort along; axis=None sorts the flattened input."""
    x = atom(node.inputs[0])
    axis = node.get("axis", -1)
    return (f"{x}.flatten()", 0) if axis is None else (x, axis)


def _sorted(node: Node, method: str, ascending: bool) -> str:
    """Write a sort that keeps the order of equal numbers, as MXNet does in rows of up to 16; torch's topk does not."""
    x, axis = _flat_axis(node)
    descending = "" if ascending else ", descending=True"
    return f"{x}.{method}(dim={axis}{descending}, stable=True)"


def _topk(node: Node) -> str:
    (x, axis), count = _flat_axis(node), node.integer("k", 1)
    cut = f".narrow({axis}, 0, {count})" if count > 0 else ""
    order = _sorted(node, "argsort", node.flag("is_ascend")) + cut
    values = _sorted(node, "sort", node.flag("is_ascend")) + ".values" + cut
    kind, dtype = node.text("ret_typ", "indices"), node.text("dtype", "float32")
    if kind == "value":
        return values
    if kind == "mask":
        return f"torch.zeros_like({x}).scatter({axis}, {order}, 1)"
    return f"({values}, {cast(order, dtype)})" if kind == "both" else cast(order, dtype)


def _sort(node: Node) -> str:
    if node.operator == "sort":
        return _sorted(node, "sort", node.flag("is_ascend", True)) + ".values"
    return cast(_sorted(node, "argsort", node.flag("is_ascend", True)), node.text("dtype", "float32"))


def _cumsum(node: Node) -> str:
    x, axis = atom(node.inputs[0]), node.integer("axis")
    return f"{x}.flatten().cumsum(0)" if axis is None else f"{x}.cumsum({axis})"


def turned(value: str, is_turned: bool) -> str:
    """Write the transpose of matrices if asked."""
    return f"{atom(value)}.mT" if is_turned else value


def _dot(node: Node) -> str:
    left, right = node.inputs
    first, second = node.flag("transpose_a"), node.flag("transpose_b")
    ranks = [len(shape) for shape in node.shapes]
    if ranks == [1, 1]:
        return one_number(node, f"torch.dot({left}, {right})")
    if max(ranks) > 2:
        if first or second:
            raise node.refused(f"a transposed array of {max(ranks)} dimensions")
        return f"torch.tensordot({left}, {right}, dims=1)"
    return binary(turned(left, first and ranks[0] == 2), "@", turned(right, second and ranks[1] == 2))


def _batch_dot(node: Node) -> str:
    left, right = node.inputs
    return binary(turned(left, node.flag("transpose_a")), "@", turned(right, node.flag("transpose_b")))


def _gemm(node: Node) -> str:
    if node.integer("axis", -2) != -2:
        raise node.refused(f"axis={node.text('axis')}; expected -2")
    product, alpha = _batch_dot(node._replace(inputs=node.inputs[:2])), node.number("alpha", 1)
    scaled = product if alpha == 1 else binary(literal(alpha), "*", product)
    if len(node.inputs) == 2:
        return scaled
    beta = node.number("beta", 1)
    return binary(scaled, "+", node.inputs[2] if beta == 1 else binary(literal(beta), "*", node.inputs[2]))


def _syrk(node: Node) -> str:
    x, transposed, alpha = node.inputs[0], node.flag("transpose"), node.number("alpha", 1)
    product = binary(turned(x, transposed), "@", turned(x, not transposed))
    return product if alpha == 1 else binary(literal(alpha), "*", product)


REDUCTIONS: Dict[str, Conversion] = {
    "sum": reduction("sum"),
    "mean": _mean,
    "prod": reduction("prod", all_at_once=False),
    "nansum": reduction("nansum"),
    "nanprod": _nan_product,
    "max": reduction("amax"),
    "min": reduction("amin"),
    "norm": norm,
    "moments": _moments,
    "argmax": _of_floats(extreme("argmax")),
    "argmin": _of_floats(extreme("argmin")),
    "argmax_channel": _of_floats(template("{a}.argmax(dim=1)")),
    "topk": _topk,
    "sort": _sort,
    "argsort": _sort,
    "_np_cumsum": _cumsum,
    "dot": _dot,
    "batch_dot": _batch_dot,
    "_linalg_gemm": _gemm,
    "_linalg_gemm2": _gemm,
    "_linalg_syrk": _syrk,
    "_linalg_potrf": template("torch.linalg.cholesky({x})"),
    "_linalg_inverse": template("torch.linalg.inv({x})"),
    "_linalg_det": template("torch.linalg.det({x})"),
}
