"""Histograms of the outputs of layers."""

from math import ceil
from typing import Any, List, Mapping, Optional, Tuple

from mxkit.core.arguments import whole_number
from mxkit.plots.grids import arrays_of, shorten, unit_axis
from mxkit.plots.plotting import BLUE, PathLike, new_figure, saved
import numpy as np


def plot_activations(features: Mapping[str, Any], *, bins: int = 60, path: Optional[PathLike] = None) -> Any:
    """Draw a histogram of each feature over the whole batch: a panel for each layer, in one figure.

    The title of a panel has mean and standard deviation, the share of exact zeros, the number of dead units (constant
    over all samples and positions), and the number of values that are not finite, which are left out of the rest.
    If one panel needs a logarithmic axis for counts, all have one. Units are on axis 1, for (N, T, C) on axis 2.

    Args:
        features: Arrays by path, as from `Features(net, names)(x)`, or lists of arrays.
        bins: Number of bars of a histogram, at least 1.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure; its height depends on the number of layers.

    Raises:
        ValueError: There is no feature, one is not an array or is empty, or `bins` is below 1.

    Side effects:
        Copies each feature to the host, one at a time.
    """
    arrays = arrays_of("plot_activations", features)
    whole_number(bins, "plot_activations: bins")
    columns = min(len(arrays), 4)
    rows = ceil(len(arrays) / columns)
    figure = new_figure()
    figure.set_size_inches(max(3.1 * columns, 4), 2.5 * rows + 0.4)
    panels = []
    for position, (name, array) in enumerate(arrays.items()):
        axes = figure.add_subplot(rows, columns, position + 1)
        lines, counts, edges = _distribution(array.asnumpy(), bins)
        axes.set_title("\n".join([shorten(name, 3.0, 7.5), str(array.shape), *lines]), fontsize=7.5, loc="left")
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="x", nbins=5)
        panels.append((axes, counts, edges))
    needs_log = any(counts.max() > 50 * np.median(counts[counts > 0]) for _, counts, _ in panels if counts.any())
    for axes, counts, edges in panels:
        # a logarithmic axis begins at 0.5, so that a bin with one value is visible
        axes.stairs(counts, edges, fill=True, color=BLUE, baseline=0.5 if needs_log else 0)
        if not counts.any():
            axes.set(xticks=[], yticks=[])
        elif needs_log:
            axes.set_yscale("log")
            axes.set_ylim(0.5, 2 * counts.max())
    figure.supxlabel("value", fontsize=9)
    figure.supylabel(f"values in a bin{' (log)' if needs_log else ''}", fontsize=9)
    return saved(figure, path)


def _distribution(values: Any, bins: int) -> Tuple[List[str], Any, Any]:
    """Lines of a panel's title, and the counts and edges of its histogram."""
    values = values.reshape(-1, 1) if values.ndim < 2 else values
    units = np.moveaxis(values, unit_axis(values.ndim), 0).reshape(values.shape[unit_axis(values.ndim)], -1)
    # with a single value per unit only 0 counts as dead
    dead = (units == (units[:, :1] if units.shape[1] > 1 else 0)).all(axis=1)
    finite = values[np.isfinite(values)].astype("float64")
    broken = values.size - finite.size
    last = f"{dead.sum()} of {len(units)} units dead" + (f", {broken} not finite" if broken else "")
    if not finite.size:
        return ["no finite value", last], np.zeros(1), np.array([0.0, 1.0])
    low, high = finite.min(), finite.max()
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # too narrow for bins
        low, high = low - (abs(low) / 100 or 1), high + (abs(high) / 100 or 1)
    counts, edges = np.histogram(finite, bins=bins, range=(low, high))
    zeros = np.count_nonzero(finite == 0) / finite.size
    return [f"mean {finite.mean():.3g}, std {finite.std():.3g}, zeros {zeros:.1%}", last], counts, edges
