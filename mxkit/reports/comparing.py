"""Compares runs: their recipes, their scores with the best ones marked, and their curves as SVG."""

import io
import math
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from markupsafe import Markup
from mxkit.metrics.named_metrics import better_of
from mxkit.plots.plotting import columns_by_quantity, new_figure, scale_epochs
from mxkit.recipe.folder import is_number
from mxkit.recipe.reading import as_yaml
from mxkit.recipe.schema import flattened
from mxkit.reports.run_files import RunFiles, best_column

# Keys of `data` that do not change the evaluated samples.
_OF_TRAINING = {"batch_size", "eval_batch_size", "workers", "drop_last", "augment"}


class Compared(NamedTuple):
    """One line of a table of runs.

    Attributes:
        name: A key of recipes or a score.
        values: One value per run; None for a run without it.
        best: Indices of the runs with the best value; empty if it is unknown whether high or low is better, if all
            values are equal, or if the runs were measured differently.
    """

    name: str
    values: List[Any]
    best: List[int]


def recipe_differences(runs: Sequence[RunFiles]) -> List[Compared]:
    """Dotted paths of the resolved recipes whose values differ between the runs, with the values as text."""
    flat = [flattened(run.recipe) for run in runs]
    lines = []
    for path in dict.fromkeys(path for one in flat for path in one):
        values = [_as_yaml(one[path]) if path in one else "(not said)" for one in flat]
        if len(set(values)) > 1:
            lines.append(Compared(path, values, []))
    return lines


def _as_yaml(value: Any) -> str:
    """A value as YAML.

    >>> _as_yaml(True), _as_yaml("adam"), _as_yaml([]), _as_yaml(None)
    ('true', 'adam', '[]', 'null')
    """
    return as_yaml(value, default_flow_style=True, width=1000).replace("\n...", "").strip()


def compared_scores(runs: Sequence[RunFiles]) -> List[Compared]:
    """Final scores by part of the data, then losses and metrics of each run's last epoch."""
    named: List[Dict[str, Any]] = []
    for run in runs:
        row = run.rows[-1] if run.rows else {}
        last = {f"last epoch: {name}": one for name, one in row.items() if name.startswith(("train_", "valid_"))}
        named.append({**run.final, **last})
    lines = []
    for name in dict.fromkeys(name for one in named for name in one):
        values = [one.get(name) for one in named]
        if any(is_number(value) for value in values):
            numbers = [value if is_number(value) else None for value in values]
            best = _best(numbers, direction(name, runs)) if _comparable(name, numbers, runs) else []
            lines.append(Compared(name, numbers, best))
    return lines


def direction(metric: str, runs: Sequence[RunFiles] = ()) -> Optional[Callable[[Sequence[float]], float]]:
    """`min` or `max`, whichever is better, for known metrics and for the metric of a recipe's `keep_best`; else None.

    >>> direction("test top_5_accuracy"), direction("last epoch: valid_loss"), direction("my_metric")
    (<built-in function max>, <built-in function min>, None)
    """
    name = re.sub("^(last epoch: )?(train|valid|test)[ _]", "", metric)
    kept = [best_column(run) or ("", "") for run in runs]
    better = better_of(name) or next((mode for column, mode in kept if column.partition("_")[2] == name), None)
    return None if better is None else max if better == "max" else min


def _comparable(name: str, values: Sequence[Any], runs: Sequence[RunFiles]) -> bool:
    """Whether the runs that have a score were measured on the same data and, for a loss, with the same loss."""
    recipes = [run.recipe for run, value in zip(runs, values) if value is not None]
    keys = ["data", "loss"] if name.endswith("loss") else ["data"]
    measured = [{key: flattened(recipe.get(key)) for key in keys} for recipe in recipes]
    for one in measured:
        one["data"] = {path: value for path, value in one["data"].items() if path.split(".")[0] not in _OF_TRAINING}
    return all(one == measured[0] for one in measured)


def _best(values: Sequence[Any], choose: Optional[Callable[[Sequence[float]], float]]) -> List[int]:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if choose is None or len(finite) < 2 or len(set(finite)) == 1:
        return []
    best = choose(finite)
    return [number for number, value in enumerate(values) if value == best]


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
        last: True if the legend has the last value of each line.
    """

    title: str
    lines: List[Line]
    svg: Markup
    lost: int = 0
    last: bool = False


def panels(runs: Sequence[RunFiles]) -> List[Panel]:
    """Draw each loss and metric, the learning rate and the throughput over epochs, the losses first.

    Args:
        runs: One run has one colour for training and one for validation; of several runs each has one colour.
    """
    rows = [row for run in runs for row in run.rows]
    ordered = sorted(columns_by_quantity(rows).items(), key=lambda one: one[0] != "loss")
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

    def finish(axes: Any) -> None:
        values = [value for line in lines for _, value in line.points]
        if quantity in _LABELS:
            axes.set_ylim(0, 1.15 * max(values) or 1)
        scale_epochs(axes, quantity, values)

    return draw_panel(_LABELS.get(quantity, quantity.replace("_", " ")), lines, finish, lost=lost, last=True)


def draw_panel(
    title: str, lines: List[Line], finish: Callable[[Any], None], *, marker: str = "o", **facts: Any
) -> Panel:
    """Draw a panel.

    Args:
        title: As for `Panel`.
        lines: Its lines.
        finish: Sets limits and labels of the axes, if a line has a point.
        marker: matplotlib's marker of each point.
        **facts: As for `Panel`.
    """
    from matplotlib import rc_context

    drawn = [line for line in lines if line.points]
    if not drawn:
        return Panel(title, lines, Markup(), **facts)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9}):
        figure = new_figure()
        figure.set_size_inches(4.4, 2.7)
        axes = figure.add_subplot()
        for line in drawn:
            style = {"color": line.colour, "linestyle": "--" if line.dashed else "-", "marker": marker}
            axes.plot(*zip(*line.points), markersize=3, linewidth=1.6, **style)
        finish(axes)
        axes.tick_params(which="both", colors=_INK)
        axes.grid(alpha=0.25, color=_INK)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(_INK)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_INK)
        return Panel(title, lines, _inline(figure), **facts)


def _inline(figure: Any) -> Markup:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata=dict.fromkeys(["Creator", "Date", "Format", "Type"]))
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    # unused ids like axes_1 would be in the page once per picture
    svg = re.sub(r' id="[^"]*_\d+"', "", svg)
    return Markup(re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2))  # it holds only numbers and our own words
