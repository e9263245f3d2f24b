"""The picture of a sweep."""

from typing import Any, Collection, Dict, Optional, Sequence, Tuple

from mxkit.plots.plotting import BLUE, GREY, ORANGE, PathLike, new_figure, saved

# Name of the trial, its state, its value, and the chosen value of each key.
Point = Tuple[str, str, Optional[float], Dict[str, Any]]


def plot_sweep(
    trials: Sequence[Point],
    *,
    column: str,
    mode: str,
    logarithmic: Collection[str] = (),
    path: Optional[PathLike] = None,
) -> Any:
    """Draw the value of each trial over each key that the sweep varied: a panel for each key.

    Finished trials are blue, the best trial is orange. Pruned trials are grey, at their last value.

    Args:
        trials: The trials; those without a value are left out.
        column: Name of the value.
        mode: "min" if lower is better, or "max".
        logarithmic: Keys with a logarithmic axis.
        path: Where to save the picture (its suffix decides the format), or None.

    Returns:
        The matplotlib Figure.

    Raises:
        ValueError: No trial has a value.
    """
    drawn = [one for one in trials if one[2] is not None]
    if not drawn:
        raise ValueError("plot_sweep: no trial has a value yet")
    finished = [one for one in drawn if one[1] == "finished"]
    sign = -1 if mode == "max" else 1
    best = min(finished, key=lambda one: sign * (one[2] or 0), default=None)
    keys = list(drawn[0][3])
    figure = new_figure(len(keys))
    for number, key in enumerate(keys):
        axes = figure.add_subplot(1, len(keys), number + 1)
        for name, state, value, chosen in drawn:
            is_best = best is not None and name == best[0]
            colour = ORANGE if is_best else BLUE if state == "finished" else GREY
            marker = "o" if state == "finished" else "x"
            axes.scatter(
                [chosen[key]], [value], color=colour, marker=marker, s=60 if is_best else 25, zorder=2 + is_best
            )
        if key in logarithmic:
            axes.set_xscale("log")
        axes.set_xlabel(key)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(column)
    if best is not None:
        figure.suptitle(f"best: {best[0]}, {column} {best[2]:.5g} ({mode})", fontsize=10)
    return saved(figure, path)
