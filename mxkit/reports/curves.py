"""Curves of one run or several as SVG for a page, with axes in the page's text colour."""

import io
import math
import re
from typing import Any, List, NamedTuple, Sequence, Tuple

from markupsafe import Markup
from mxkit.plots.plotting import columns_by_quantity, new_figure, scale_epochs
from mxkit.recipe.scores import is_number
from mxkit.reports.run_files import RunFiles

# They differ enough on white and on black.
COLOURS = ("#4287d6", "#e07b39", "#3fa66a", "#b565c9", "#c9a227", "#d64f6a", "#2aa5a5", "#8c7b6b")
# matplotlib does not know `currentColor`, the colour of the page's text, which replaces this colour.
_INK = "#010203"
_LABELS = {"learning_rate": "learning rate, after the epoch", "samples_per_second": "samples per second, in training"}


class Line(NamedTuple):
    """One line of a panel.

    Attributes:
        label: Text in the legend.
        colour: One of `COLOURS`.
        dashed: True for training, if several runs are drawn.
        points: Epochs and finite values.
    """

    label: str
    colour: str
    dashed: bool
    points: List[Tuple[float, float]]


class Panel(NamedTuple):
    """The picture of one quantity.

    Attributes:
        title: Name of the quantity.
        lines: Its lines.
        svg: The picture; empty if no value is finite.
        lost: Number of values that are NaN or infinite.
    """

    title: str
    lines: List[Line]
    svg: Markup
    lost: int


def panels(runs: Sequence[RunFiles]) -> List[Panel]:
    """Draw each loss and metric, the learning rate and the throughput over epochs, the losses first.

    Args:
        runs: One run has one colour for training and one for validation; of several runs each has one colour.
    """
    rows = [row for run in runs for row in run.rows]
    quantities = columns_by_quantity(rows)
    ordered = sorted(quantities.items(), key=lambda one: one[0] != "loss")
    ordered += [(name, [name]) for name in _LABELS if any(is_number(row.get(name)) for row in rows)]
    return [_panel(quantity, columns, runs) for quantity, columns in ordered]


def _panel(quantity: str, columns: Sequence[str], runs: Sequence[RunFiles]) -> Panel:
    lines, lost, several = [], 0, len(runs) > 1
    for number, run in enumerate(runs):
        for column in sorted(columns):
            part = column.partition("_")[0] if quantity not in _LABELS else ""
            values = [(row["epoch"], row[column]) for row in run.rows if is_number(row.get(column))]
            if not values:
                continue
            points = [one for one in values if math.isfinite(one[1])]
            lost += len(values) - len(points)
            colour = COLOURS[(number if several else part == "valid") % len(COLOURS)]
            label = f"{run.name} {part}".strip() if several else part
            lines.append(Line(label, colour, several and part == "train", points))
    title = _LABELS.get(quantity, quantity.replace("_", " "))
    drawn = [line for line in lines if line.points]
    return Panel(title, lines, _svg(title, drawn, quantity) if drawn else Markup(), lost)


def _svg(title: str, lines: Sequence[Line], quantity: str) -> Markup:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9}):
        figure = new_figure()
        figure.set_size_inches(4.4, 2.7)
        axes = figure.add_subplot()
        for line in lines:
            style = "--" if line.dashed else "-"
            axes.plot(*zip(*line.points), color=line.colour, linestyle=style, marker="o", markersize=3, linewidth=1.6)
        values = [value for line in lines for _, value in line.points]
        if quantity in _LABELS:
            axes.set_ylim(0, 1.15 * max(values) or 1)
        scale_epochs(axes, quantity, values, color=_INK)
        axes.tick_params(which="both", colors=_INK)
        axes.grid(alpha=0.25, color=_INK)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_INK)
        return _inline(figure)


def _inline(figure: Any) -> Markup:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata=dict.fromkeys(["Creator", "Date", "Format", "Type"]))
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    # unused ids like axes_1 would be in the page once per picture
    svg = re.sub(r' id="[^"]*_\d+"', "", svg)
    return Markup(re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2))  # it holds only numbers and our own words
