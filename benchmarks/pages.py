"""Rows as a table on the terminal, as docs/benchmarks.md and as docs/benchmarks.png."""

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from mxkit.plots.plotting import new_figure
from rich.console import Console
from rich.table import Table

from benchmarks.harness import ROOT, Row

COLUMNS = ("case", "way", "median", "spread", "ratio", "spread of it", "bar")
PAGE, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.png"
TICKS = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]
INTRODUCTION = """# Benchmarks

Written by `python -m benchmarks`; do not edit. Ways of one case took turns in one run; medians, the spread from the
best round to the worst, and ratios of the rounds. Below 1 is faster than what is compared with (above 1 for what
counts samples a second). Of long tables the page shows some rows; `benchmarks/results.json` has all.

![Ratios that have a bar, with their spread](benchmarks.png)
"""

# Rows of "case: way" that the page shows, where a question has more than a reader wants.
SHOWN = {
    "inference": r"224 px, batch 1: (?!beside)|: optimize, int8$",
    "loaders": r"JPEGs|arrays",
    "optimizers": r" (1,000|100,000|10,000,000) weights, 2 threads: mxkit$",
    "processes": r"batch \d+: ",
}


def print_table(rows: Sequence[Row]) -> None:
    """Print rows; those that miss their bar are red."""
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*_cells(row), style="red" if _misses(row) else None)
    Console(width=150).print(table)


def write_pages(questions: Mapping[str, Tuple[Dict[str, Any], List[Row]]]) -> None:
    """Write the page and the picture of all questions; each with what `results.json` says of it, and its rows."""
    parts = [INTRODUCTION]
    for name, (about, rows) in questions.items():
        machine = about["machine"]
        lines = [f"## {about['title']}", about["text"]]
        shown = re.compile(SHOWN.get(name, ""))
        lines.append("\n".join(_table([row for row in rows if shown.search(f"{row.case}: {row.way}")])))
        lines.append(
            f"`python -m benchmarks {name}`, {about['date']}, commit {about['commit']}, {about['seconds']} s, on "
            f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads, MXNet "
            f"{machine['mxnet']}, NumPy {machine['numpy']}, Python {machine['python']}"
        )
        parts.append("\n\n".join(lines) + "\n")
    PAGE.write_text("\n".join([*parts, on_paper({name: rows for name, (_, rows) in questions.items()})]))
    draw({about["title"]: rows for about, rows in questions.values()}).savefig(str(PICTURE), dpi=80)


ON_PAPER = """## Threads on paper

An update with more threads than the machine has cores, by Amdahl's law from the medians above with one and two:
`T(n) = serial + (T(1) - serial) / n`. Nobody measured the columns from 4 on; memory that all cores share makes them
optimistic. They are empty where two threads lose. mxkit's commands load MXNet with one thread a core, or as many as
`threads` says.

| training | serial part | 1 thread | 2 | 4 | 8 |
|---|---:|---:|---:|---:|---:|
"""


def on_paper(questions: Mapping[str, Sequence[Row]]) -> str:
    """The section on what 4 and 8 threads would give, from rows of mxkit with one and two threads."""
    pairs: Dict[str, Dict[int, Row]] = {}
    for name in ("threads", "attention", "amp"):
        for row in questions.get(name, ()):
            found = re.search(r"\b([12]) threads?\b", row.way)
            if found and not row.way.startswith("PyTorch"):
                way = re.sub(r"(, )?[12] threads?|, MXNet's own|mxkit.fit", "", row.way).strip(", ")
                case = re.sub(r", [12] threads?$", "", row.case)
                pairs.setdefault(", ".join(filter(None, (case, way))), {})[int(found[1])] = row
    lines = []
    for training, by_threads in pairs.items():
        if len(by_threads) == 2:
            one, two = by_threads[1].value, by_threads[2].value
            serial = max(2 * two - one, 0.0)
            times = [one, two, *(serial + (one - serial) / count for count in (4, 8) if two < one)]
            cells = " | ".join([*(f"{_short(time)} ms" for time in times), "", ""][:4])
            serial = min(serial, one)
            lines.append(f"| {training} | {serial / one:.0%} | {cells} |\n")
    return ON_PAPER + "".join(lines) if lines else ""


def draw(questions: Mapping[str, Sequence[Row]]) -> Any:
    """One panel a question: a dot a ratio that has a bar, on a logarithmic axis, and a line of its spread."""
    judged = {title: [row for row in rows if row.bar is not None] for title, rows in questions.items()}
    shown = {title: list(filter(_is_comparison, rows)) for title, rows in judged.items()}
    shown = {title: rows for title, rows in shown.items() if rows}
    heights = [len(rows) + 2 for rows in shown.values()]
    figure = new_figure(1)
    figure.set_size_inches(9, 0.22 * sum(heights) + 1)
    axes = figure.subplots(len(shown), 1, gridspec_kw={"height_ratios": heights}, squeeze=False)[:, 0]
    for panel, (title, rows) in zip(axes, shown.items()):
        for position, row in enumerate(rows):
            colour = "#C44E52" if _misses(row) else "#4C72B0"
            panel.plot([row.ratio_low, row.ratio_high], [position] * 2, color=colour, linewidth=1.5)
            panel.plot([row.ratio], [position], "o", color=colour, markersize=4)
            panel.text(1.01, position, f"{row.ratio:.2f}", transform=panel.get_yaxis_transform(), va="center", size=7)
        panel.axvline(1, color="grey", linewidth=0.8)
        panel.set_xscale("log")
        panel.minorticks_off()
        left = min([0.5, *(0.9 * row.ratio_low for row in rows)])
        right = max([2, *(1.1 * row.ratio_high for row in rows)])
        ticks = [one for one in TICKS if left <= one <= right]
        panel.set_xticks(ticks)
        panel.set_xticklabels([f"{one:g}" for one in ticks])
        panel.set_xlim(left, right)
        panel.set_yticks(range(len(rows)))
        panel.set_yticklabels([f"{row.case}: {row.way} / {row.against}" for row in rows], size=7)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.set_title(title, size=9, loc="left")
        panel.tick_params(axis="x", labelsize=7)
        panel.grid(axis="x", alpha=0.3, which="both")
    return figure


def _is_comparison(row: Row) -> bool:
    return row.ratio is not None and row.way != row.against


def _misses(row: Row) -> bool:
    if row.bar is None:
        return False
    return row.value < row.bar if row.ratio is None else row.ratio > row.bar


def _table(rows: Sequence[Row]) -> List[str]:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * 2 + "|---:" * (len(COLUMNS) - 2) + "|"]
    return [*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)]


def _cells(row: Row) -> List[str]:
    ratio = f"{row.ratio:.3f} x {row.against}" if _is_comparison(row) else ""
    return [
        row.case,
        row.way,
        f"{_short(row.value)} {row.unit}",
        _spread(row.low, row.high),
        ratio,
        _spread(row.ratio_low, row.ratio_high) if ratio else "",
        "" if row.bar is None else f"{row.bar:g}",
    ]


def _spread(low: Optional[float], high: Optional[float]) -> str:
    return "" if low is None or high is None else f"{_short(low)} to {_short(high)}"


def _short(value: float) -> str:
    """Three digits, without an exponent.

    >>> [_short(one) for one in (0.01234, 1.5, 21_334.2)]
    ['0.0123', '1.50', '21,334']
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"
