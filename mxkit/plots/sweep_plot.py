"""The picture of a sweep."""

from typing import Any, Collection, Optional, Sequence

from mxkit.plots.plotting import BLUE, GREY, ORANGE, PathLike, new_figure, saved


def plot_sweep(
    trials: Sequence[Any],
    *,
    column: str,
    mode: str,
    logarithmic: Collection[str] = (),
    path: Optional[PathLike] = None,
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
            style = (
                {"color": ORANGE, "s": 60, "zorder": 3} if trial is best else {"color": colour, "s": 25, "zorder": 2}
            )
            axes.scatter([trial.chosen[key]], [trial.value], marker=marker, **style)
        if key in logarithmic:
            axes.set_xscale("log")
        axes.set_xlabel(key)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(column)
    if best is not None:
        figure.suptitle(f"best: {best.name}, {column} {best.value:.5g} ({mode})", fontsize=10)
    return saved(figure, path)
