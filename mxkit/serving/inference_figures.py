"""The figures of `measure_inference`: a table and a picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Union

from mxkit.core.system import aligned
from mxkit.plots.plotting import new_figure, saved

BASE = "as trained"
_COLOURS = ("0.55", "#4C72B0", "#55A868", "#DD8452")


class InferenceRow(NamedTuple):
    """One form of the net with one batch size.

    Attributes:
        form: "as trained", or the precision.
        batch: Samples per call.
        p50_ms: Median time of a call, with the wait for its result, in milliseconds.
        p99_ms: 99 of 100 calls took at most this long; of fewer calls it is the longest, nearly.
        samples_per_second: Median over the rounds.
        speed: Samples a second relative to the net as trained, median over the rounds.
        memory_mb: What the process grew by from before this form was loaded until it had run this batch size and
            those before it; too little where it used memory again that others had freed.
        agreement: Share of samples with the same answer as the net as trained; None for quantities, and without data.
        calls: Number of timed calls.
    """

    form: str
    batch: int
    p50_ms: float
    p99_ms: float
    samples_per_second: float
    speed: float
    memory_mb: float
    agreement: Optional[float]
    calls: int


@dataclass(repr=False, eq=False)
class InferenceFigures:
    """What `measure_inference` measured; prints as a table.

    Attributes:
        rows: A row for each form and batch size.
        refused: Why a precision was not measured.
        processor: The processor's name.
        threads: Threads of an operator.
        compared: Number of samples that agreement was counted over; 0 without it.
        notes: What was missing, a sentence each.
    """

    rows: List[InferenceRow]
    refused: Dict[str, str]
    processor: str
    threads: Optional[int]
    compared: int
    notes: List[str]

    def to_dict(self) -> Dict[str, Any]:
        """All figures as plain JSON values."""
        return {**vars(self), "rows": [row._asdict() for row in self.rows]}

    def __str__(self) -> str:
        table = [["form", "batch", "p50 ms", "p99 ms", "samples/s", f"x {BASE}", "MB", "agreement"]]
        for row in self.rows:
            agreement = "" if row.agreement is None else f"{row.agreement:.2%}"
            times = [*map(_short, (row.p50_ms, row.p99_ms, row.samples_per_second)), f"{row.speed:.2f}"]
            table.append([row.form, str(row.batch), *times, f"{row.memory_mb:,.0f}", agreement])
        table += [[form, *["-"] * 7] for form in self.refused]
        head = f"{self.processor}, {self.threads} threads"
        head += f"; agreement over {self.compared} samples" if self.compared else ""
        reasons = [f"{form} was not measured: {reason}" for form, reason in self.refused.items()]
        return "\n".join([head, *aligned(table), *reasons, *self.notes])

    __repr__ = __str__

    def plot(self, path: Union[str, Path, None] = None) -> Any:
        """Draw samples a second and latencies by batch size.

        Args:
            path: Where to save the picture (its suffix decides the format), or None.

        Returns:
            The matplotlib Figure.
        """
        figure = new_figure(2)
        rate, latency = figure.subplots(1, 2)
        sizes = list(dict.fromkeys(row.batch for row in self.rows))
        forms = list(dict.fromkeys(row.form for row in self.rows))
        for number, form in enumerate(forms):
            rows = [row for row in self.rows if row.form == form]
            places = [place + (number - (len(forms) - 1) / 2) * 0.8 / len(forms) for place in range(len(sizes))]
            colour = _COLOURS[number % len(_COLOURS)]
            rate.bar(places, [row.samples_per_second for row in rows], 0.8 / len(forms), color=colour, label=form)
            tops = [[0.0] * len(rows), [row.p99_ms - row.p50_ms for row in rows]]
            latency.errorbar(places, [row.p50_ms for row in rows], tops, fmt="o", color=colour, capsize=3, label=form)
        latency.set_yscale("log")
        for axes, title in ((rate, "samples a second"), (latency, "ms per call: median, up to 99 %")):
            axes.set_title(title)
            axes.set_xlabel("batch")
            axes.set_xticks(range(len(sizes)))
            axes.set_xticklabels([str(size) for size in sizes])
            axes.grid(axis="y", alpha=0.3)
        rate.legend(frameon=False)
        return saved(figure, path)


def _short(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


class InterruptedMeasurement(KeyboardInterrupt):
    """Ctrl-C while `measure_inference` took times.

    Attributes:
        figures: What it has, of the rounds that were completed.
    """

    def __init__(self, figures: InferenceFigures) -> None:
        super().__init__("measure_inference was interrupted")
        self.figures = figures
