"""Pooling as functions of torch, with MXNet's two ways of rounding the output's size."""

from typing import Dict, NamedTuple, Tuple

from mxkit.exporting.to_torch.expression_parts import atom, literal, options, size, unless
from mxkit.exporting.to_torch.node import Conversion, Node


class Window(NamedTuple):
    """What a Pooling operator computes, in torch's terms.

    Attributes:
        kind: "max", "avg", "sum" or "lp".
        kernel, stride, padding: For each spatial dimension.
        ceil: Whether the last window may reach beyond the padding.
        count_padding: Whether an average counts the padding.
        whole: Whether the window is the whole input.
    """

    kind: str
    kernel: Tuple[int, ...]
    stride: Tuple[int, ...]
    padding: Tuple[int, ...]
    ceil: bool
    count_padding: bool
    whole: bool

    @property
    def rank(self) -> int:
        """Number of spatial dimensions."""
        return len(self.kernel)


def window_of(node: Node) -> Window:
    """Read a Pooling operator; what torch has no window for is refused."""
    rank = node.rank - 2
    kind, convention = node.text("pool_type", "max"), node.text("pooling_convention", "valid")
    whole = node.flag("global_pool")
    kernel = node.ints("kernel") if not whole else tuple(node.shapes[0][2:])
    stride, padding = node.ints("stride") or (1,) * rank, node.ints("pad") or (0,) * rank
    if convention == "same":
        raise node.refused("pooling_convention=same; torch pads on both sides alike")
    # "full" asks for more windows only where some do not divide the input
    ceil = not whole and convention == "full" and max(stride) > 1
    return Window(kind, kernel, stride, padding, ceil, node.flag("count_include_pad", True), whole)


def is_torch_ceil(window: Window) -> bool:
    """Tell whether torch has MXNet's windows at every size: it drops those that start in the right padding."""
    reaches = zip(window.stride, window.padding, window.kernel)
    return window.kind in ("avg", "max") and all(stride + padding <= kernel for stride, padding, kernel in reaches)


def pooling_options(window: Window) -> Dict[str, object]:
    """Return the arguments of a pooling that differ from torch's defaults."""
    return {
        "stride": unless(window.stride, window.kernel),
        "padding": unless(window.padding, (0,) * window.rank),
        "ceil_mode": "True" if window.ceil else None,
        "count_include_pad": "False"
        if window.kind == "avg" and any(window.padding) and not window.count_padding
        else None,
    }


def is_last(node: Node) -> bool:
    """Tell whether the channels are the last dimension."""
    return node.text("layout", "NC").endswith("C") and not node.text("layout", "NC").startswith("NC")


def _pooling(node: Node) -> str:
    if is_last(node):
        (batch, *sizes, channels), data = node.shapes[0], f"{atom(node.inputs[0])}.movedim(-1, 1)"
        attrs = {name: value for name, value in node.attrs.items() if name != "layout"}
        first = node._replace(attrs=attrs, inputs=[data], shapes=[(batch, channels, *sizes)])
        return f"{_pooling(first)}.movedim(1, -1)"
    window = window_of(node)
    data, rank = node.inputs[0], window.rank
    if window.whole:
        return _whole(node, window)
    if window.kind == "lp":
        return _lp(node, window)
    if window.ceil and not is_torch_ceil(window):
        return _full(node, window)
    if window.kind == "avg" and not window.count_padding and _is_wide(window):
        raise node.refused("count_include_pad=False with a padding above half of the kernel")
    data, window = _padded(data, window)
    extra = pooling_options(window)
    if window.kind == "sum":
        if rank == 1:
            raise node.refused("pool_type=sum in one dimension")
        extra["divisor_override"] = 1
    name = "max" if window.kind == "max" else "avg"
    return f"F.{name}_pool{rank}d({data}, {size(window.kernel)}{options(**extra)})"


def _full(node: Node, window: Window) -> str:
    """Write a pooling whose last windows torch would drop."""
    if window.kind == "sum":
        raise node.refused("pool_type=sum with pooling_convention=full")
    sizes = ", ".join(literal(sizes) for sizes in (window.kernel, window.stride, window.padding))
    if window.kind == "max":
        return f"full_max_pool({node.inputs[0]}, {sizes})"
    extra = options(count_padding=None if window.count_padding or not any(window.padding) else "False")
    return f"full_avg_pool({node.inputs[0]}, {sizes}{extra})"


def _is_wide(window: Window) -> bool:
    return any(2 * padding > kernel for padding, kernel in zip(window.padding, window.kernel))


def _padded(data: str, window: Window) -> Tuple[str, Window]:
    """Pad before the pooling where torch would refuse a padding above half of the kernel."""
    if not _is_wide(window):
        return data, window
    value = ', value=float("-inf")' if window.kind == "max" else ""
    return f"F.pad({data}, {_widths(window)}{value})", window._replace(padding=(0,) * window.rank)


def _widths(window: Window) -> str:
    """Write the padding as F.pad takes it: the last dimension first."""
    return literal(tuple(width for padding in reversed(window.padding) for width in (padding, padding)))


def _whole(node: Node, window: Window) -> str:
    data, rank = node.inputs[0], window.rank
    dims = literal(tuple(range(2, rank + 2)))
    if window.kind in ("avg", "max"):
        return f"F.adaptive_{window.kind}_pool{rank}d({data}, 1)"
    if window.kind == "sum":
        return f"{atom(data)}.sum(dim={dims}, keepdim=True)"
    _check_power(node)
    return f"torch.linalg.vector_norm({data}, dim={dims}, keepdim=True)"


def _lp(node: Node, window: Window) -> str:
    _check_power(node)
    if window.ceil or window.rank > 2:
        raise node.refused("pool_type=lp with pooling_convention=full or in three dimensions")
    data = f"F.pad({node.inputs[0]}, {_widths(window)})" if any(window.padding) else node.inputs[0]
    extra = options(stride=unless(window.stride, window.kernel))
    return f"F.lp_pool{window.rank}d({data}, 2, {size(window.kernel)}{extra})"


def _check_power(node: Node) -> None:
    power = node.integer("p_value", 2)
    if power != 2:
        raise node.refused(f"p_value={power}, for which MXNet does not take magnitudes; expected 2")


def _adaptive(node: Node) -> str:
    sizes = node.ints("output_size") or (1,)
    target = size(sizes if len(sizes) == 2 else sizes * 2)
    return f"F.adaptive_avg_pool2d({node.inputs[0]}, {target})"


POOLING: Dict[str, Conversion] = {
    "Pooling": _pooling,
    "Pooling_v1": _pooling,
    "_contrib_AdaptiveAvgPooling2D": _adaptive,
}
