"""Curves of a run and pictures of a sweep, and helpers for all pictures; none of them changes pyplot's state."""

import io
from pathlib import Path
from typing import Any, Collection, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

PathLike = Union[str, Path]

BLUE, ORANGE, GREY = "#4C72B0", "#DD8452", "0.55"
# Inches of a character at a font size of one point, in matplotlib's own font DejaVu Sans; enough for most names.
CHARACTER = 0.0092
_COLOURS = {"train": BLUE, "valid": ORANGE}


def plot_history(rows: Sequence[Mapping[str, Any]], path: Optional[PathLike] = None) -> Any:
    """Draw each loss and metric over epochs, training and validation in one panel.

    Args:
        rows: Rows of a `History`; columns `train_NAME` and `valid_NAME` share the panel NAME.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure with a panel for each quantity, the loss first.

    Raises:
        ValueError: There is no row.
    """
    if not rows:
        raise ValueError("plot: the history has no epoch yet")
    quantities = columns_by_quantity(rows)
    figure = new_figure(len(quantities))
    for position, (quantity, columns) in enumerate(quantities.items()):
        axes = figure.add_subplot(1, len(quantities), position + 1)
        all_values: List[float] = []
        for column in columns:
            # None if an epoch was not evaluated
            epochs, values = zip(*[(row["epoch"], row[column]) for row in rows if row.get(column) is not None])
            all_values += values
            part = column.partition("_")[0]
            axes.plot(epochs, values, color=_COLOURS[part], marker="o", markersize=3, label=f"{part} {values[-1]:.4g}")
        scale_epochs(axes, quantity, all_values)
        axes.set_title(quantity.replace("_", " "))
        axes.grid(alpha=0.3)
        # the corner opposite to the curve's end, because matplotlib's search for the best one is slow
        axes.legend(title="last epoch", frameon=False, loc="upper right" if values[-1] < values[0] else "lower right")
    return saved(figure, path)


def columns_by_quantity(rows: Sequence[Mapping[str, Any]]) -> Dict[str, List[str]]:
    """Columns `train_NAME` and `valid_NAME` of a history by NAME, without columns of other values than numbers."""
    quantities: Dict[str, List[str]] = {}
    # a confusion matrix is a column too, but not a curve
    numbers = (name for row in rows for name, value in row.items() if isinstance(value, (int, float)))
    for column in dict.fromkeys(numbers):
        part, _, quantity = column.partition("_")
        if part in _COLOURS:
            quantities.setdefault(quantity, []).append(column)
    return quantities


def scale_epochs(axes: Any, quantity: str, values: Sequence[float], **label: Any) -> None:
    """Label the horizontal axis with whole epochs, and draw a loss that fell far on a logarithmic scale.

    Args:
        axes: The matplotlib Axes.
        quantity: Name of what is drawn.
        values: All values that are drawn.
        **label: Properties of the label's text.
    """
    from matplotlib.ticker import MaxNLocator

    # on a linear axis a loss that fell a hundredfold would be a flat line after its first epochs
    if quantity == "loss" and min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
    axes.set_xlabel("epoch", **label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def finite_range(values: Any) -> Tuple[float, float]:
    """Smallest and largest finite value of an array; 0 and 1 if no value is finite."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def shorten(text: str, inches: float, points: float) -> str:
    """Cut the middle out of a text that is wider than `inches` at a font size of `points`."""
    limit = max(int(inches / (points * CHARACTER)), 8)
    if len(text) > limit:
        text = f"{text[: limit // 2 - 1]}\u2026{text[-((limit + 1) // 2) :]}"
    return text.replace("$", r"\$")  # matplotlib reads text between dollars as mathematics


def saved(figure: Any, path: Optional[PathLike]) -> Any:
    """Save a figure if there is a path, whose suffix decides the format, and return it."""
    if path is not None:
        figure.savefig(str(path))
    return figure


def new_figure(panels: int = 1, *, layout: Optional[Literal["constrained"]] = "constrained") -> Any:
    """Create a matplotlib Figure for panels side by side; notebooks show it, and pyplot does not manage it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(5.2 * panels, 3.8), dpi=120, layout=layout)
    FigureCanvasAgg(figure)
    # IPython calls this; without it a notebook would show text for a Figure that pyplot does not manage
    figure._repr_png_ = lambda: _png(figure)
    return figure


def _png(figure: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def plot_sweep(
    trials: Sequence[Any], *, column: str, mode: str, logarithmic: Collection[str] = (), path: Optional[PathLike] = None
) -> Any:
    """Draw the value of each trial over each key that the sweep varied: a panel for each key.

    Finished trials are blue, the best trial is orange. Pruned trials are grey, at their last value.

    Args:
        trials: `Sweep.trials`, with the finished ones first and the best one at the beginning; those without a value
            are left out.
        column: Name of the value.
        mode: "min" if lower is better, or "max".
        logarithmic: Keys with a logarithmic axis.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure.

    Raises:
        ValueError: No trial has a value.
    """
    drawn = [trial for trial in trials if trial.value is not None]
    if not drawn:
        raise ValueError("plot_sweep: no trial has a value yet")
    best = drawn[0] if drawn[0].state == "finished" else None
    keys = list(drawn[0].chosen)
    figure = new_figure(len(keys))
    for number, key in enumerate(keys):
        axes = figure.add_subplot(1, len(keys), number + 1)
        for trial in drawn:
            colour, marker = (BLUE, "o") if trial.state == "finished" else (GREY, "x")
            colour, size, level = (ORANGE, 60, 3) if trial is best else (colour, 25, 2)
            axes.scatter([trial.chosen[key]], [trial.value], marker=marker, color=colour, s=size, zorder=level)
        if key in logarithmic:
            axes.set_xscale("log")
        axes.set_xlabel(key)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(column)
    if best is not None:
        figure.suptitle(f"best: {best.name}, {column} {best.value:.5g} ({mode})", fontsize=10)
    return saved(figure, path)
