"""Gradients against weights, per parameter."""

from collections import Counter
from typing import Any, Dict, List, Optional, Sequence

from mxkit.core.blocks import distinct, net_devices, parameters_by_path
from mxkit.core.replicas import gradients_of, is_differentiable, is_fresh, values_of
from mxkit.nets.parameter_table import as_float64, square
from mxkit.plots.plotting import BLUE, ORANGE, PathLike, new_figure, saved, shorten
import mxnet as mx
import numpy as np


def plot_gradients(net: Any, *, path: Optional[PathLike] = None) -> Any:
    """Draw the norms of the last gradients and of the weights, a row for each parameter, in the order of the net.

    Bars are L2 norms on a logarithmic axis, with the ratio of gradient to weight beside them. Frozen parameters
    (`grad_req` "null") and gradients of 0 are marked; running statistics are omitted. The gradients are those that the
    net holds, which are sums over samples after Gluon's `backward`. With several devices the bar is the first device's
    gradient, and dots are the others'.

    Args:
        net: Any block, after a backward pass.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure; its height depends on the number of rows.

    Raises:
        NotInitializedError: A parameter has no value; a RuntimeError of MXNet's if its shape is not known yet.
        ValueError: All parameters are frozen, or all gradients are 0: no backward pass yet, or they were zeroed.

    Side effects:
        Computes norms on the devices, with one copy to the host for each device.
    """
    devices = net_devices(net)
    # without running statistics; a shared parameter has its first path
    parameters = {path: one for path, one in distinct(parameters_by_path(net)).items() if is_differentiable(one)}
    norms = _norms(parameters, devices)
    values = [data for p in parameters.values() if gradients_of(p) for data in values_of(p) or ()]
    if not norms[1:].any() and not any(map(is_fresh, values)):
        raise ValueError(
            "plot_gradients: every gradient of the net is 0 and no backward pass wrote it: call it after "
            "loss.backward(), before the gradients are zeroed (an Accumulator and fit(accumulate=...) zero them "
            "after each update). mxkit.unfreeze(net, '*') trains frozen parameters again"
        )
    frozen = np.array([p.grad_req == "null" for p in parameters.values()])
    title = f"{type(net).__name__}: gradients of {len(parameters)} parameters"
    return saved(_draw_gradients(title, list(parameters), norms, frozen, devices), path)


def _norms(parameters: Dict[str, Any], devices: Sequence[Any]) -> Any:
    """L2 norms of the weights on the first device, then of the gradients on each: (1 + devices, parameters)."""
    columns = []
    for position, device in enumerate(devices):
        arrays = [(values_of(p) or p.list_data())[position] for p in parameters.values()] if not position else []
        zeros = [mx.nd.zeros((1,), ctx=device)] * len(devices)
        arrays += [(gradients_of(p) or zeros)[position] for p in parameters.values()]
        columns.append(mx.nd.concat(*[square(as_float64(a)).sqrt() for a in arrays], dim=0).asnumpy())
    return np.concatenate(columns).reshape(1 + len(devices), len(parameters))


def _draw_gradients(title: str, names: List[str], norms: Any, frozen: Any, devices: Sequence[Any]) -> Any:
    rows, weight, gradient = np.arange(len(names)), norms[0], norms[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = gradient / weight
    figure = new_figure()
    figure.set_size_inches(9.5, 0.17 * len(names) + 1.9)
    left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [3, 2]})
    _log_bars(left, rows, gradient, f"gradient on {devices[0]}", "L2 norm", norms)
    _log_bars(right, rows, ratio, "gradient / weight", "gradient / weight", ratio)
    for number, (device, other) in enumerate(zip(devices[1:], norms[2:])):
        label = f"gradient on {device}"
        left.plot(other[other > 0], rows[other > 0], "o", color=f"C{number + 2}", markersize=2.5, label=label)
    left.plot(weight[weight > 0], rows[weight > 0], "D", markersize=3, color=ORANGE, label="weight")
    left.set_yticks(rows)
    left.set_yticklabels([shorten(name, 2.6, 7) for name in names], fontsize=7)
    left.set_ylim(len(names) - 0.4, -0.6)
    handles, labels = left.get_legend_handles_labels()
    handles, labels = handles[-1:] + handles[:-1], labels[-1:] + labels[:-1]  # matplotlib lists bars last
    left.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncol=4, fontsize=7.5, frameon=False)
    rules = {"frozen": frozen, "not finite": ~np.isfinite(norms).all(axis=0), "gradient 0": ~norms[1:].any(axis=0)}
    rules["weight 0"] = weight == 0
    marks = [next((mark for mark, rows in rules.items() if rows[row]), "") for row in rows]
    for row, mark in enumerate(marks):
        right.text(0.01, row, mark, transform=right.get_yaxis_transform(), va="center", fontsize=6.5, color="0.35")
    counts = ", ".join(f"{mark}: {count}" for mark, count in Counter(marks).items() if mark)
    figure.suptitle(f"{title}\n{counts}".strip(), fontsize=10)
    return figure


def _drawable(values: Any) -> Any:
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns of comparing NaN
        return np.isfinite(values) & (values > 0)


def _log_bars(axes: Any, rows: Any, values: Any, label: str, xlabel: str, all_values: Any) -> None:
    """Draw horizontal bars of the values above 0, on an axis of whole decades."""
    drawn = _drawable(values)
    axes.barh(rows[drawn], values[drawn], height=0.7, color=BLUE, label=label)
    within = all_values[_drawable(all_values)]
    decades = np.log10(within) if within.size else np.zeros(1)
    axes.set_xscale("log")
    axes.set_xlim(10 ** (np.floor(decades.min()) - 0.3), 10 ** (np.ceil(decades.max()) + 0.3))
    axes.set_xlabel(xlabel, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
