"""What `profile` returns: figures, as text, as a picture and as a dict."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.text import aligned
from mxkit.plots.plotting import new_figure
from mxkit.profiling.channels import Padding

SHOWN = 12  # operators
_TABLES = ("phases", "operators", "reads", "paddings")
_COLOURS = {
    "data": "#55A868",
    "forward": "#4C72B0",
    "backward": "#DD8452",
    "metrics": "#937860",
    "update": "#C44E52",
    "other": "#8C8C8C",
}


class Phase(NamedTuple):
    """A part of an update.

    Attributes:
        name: data, forward, backward, metrics, update, other (splitting, checks), waiting.
        python_ms: Milliseconds an update of the thread that trains, while the engine computes behind it.
        alone_ms: Median milliseconds an update where the engine ends each phase before the next begins; None for
            waiting.
        quartiles: A quarter of the updates was faster than the first, a quarter slower than the second.
    """

    name: str
    python_ms: float
    alone_ms: Optional[float]
    quartiles: Optional[Tuple[float, float]]


class Operator(NamedTuple):
    """An operator of the engine; its backward pass is another.

    Attributes:
        name: MXNet's; several in one, joined by commas, where a net is hybridized with static_shape.
        calls: An update.
        ms: An update.
        share: Of the time of all operators.
        onednn: Whether oneDNN computes it; None where that is not known.
    """

    name: str
    calls: float
    ms: float
    share: float
    onednn: Optional[bool]


class Read(NamedTuple):
    """A place in the code that waited for the engine.

    Attributes:
        place: `file:line`, also of mxkit's own.
        calls: An update.
        ms: An update.
    """

    place: str
    calls: float
    ms: float


@dataclass(repr=False, eq=False)
class Profile:
    """Where the time of an update goes; prints as tables.

    Attributes:
        updates: How many were timed, in each of three passes.
        samples: An update, on average.
        devices: Where the net lives.
        ms: Milliseconds an update as it runs: nothing waits, no profiler.
        busy: Share of the time in which the engine computed, while MXNet's profiler ran.
        floor_ms: Milliseconds an update in which it computed: with these operators no training takes less.
        phases, operators, reads, paddings: The figures. Operators and reads come by time, the longest first.
        advice: Sentences that follow from the figures.
        rows: Milliseconds by phase of each update, each phase alone.
        trace: The file for chrome://tracing and Perfetto, or None.
    """

    updates: int
    samples: float
    devices: List[str]
    ms: float
    busy: float
    floor_ms: float
    phases: List[Phase]
    operators: List[Operator]
    reads: List[Read]
    paddings: List[Padding]
    rows: List[Dict[str, float]]
    trace: Optional[Path]
    advice: List[str] = field(default_factory=list)

    @property
    def samples_per_second(self) -> float:
        """Of the training as it runs."""
        return self.samples / self.ms * 1e3

    def phase(self, name: str) -> Phase:
        """The figures of a phase, 0 where the training has none of that name."""
        return next((one for one in self.phases if one.name == name), Phase(name, 0.0, 0.0, None))

    def to_dict(self) -> Dict[str, Any]:
        """All figures as plain JSON values; times in milliseconds an update."""
        tables = {name: [one._asdict() for one in getattr(self, name)] for name in _TABLES}
        trace = None if self.trace is None else str(self.trace)
        return {**vars(self), **tables, "samples_per_second": self.samples_per_second, "trace": trace}

    def plot(self, path: Union[str, Path, None] = None) -> Any:
        """Draw the phases of each update, each alone, and the operators that take longest.

        Args:
            path: Where to save the picture (its suffix decides the format), or None.

        Returns:
            The matplotlib Figure.
        """
        figure = new_figure(2)
        axes = figure.add_subplot(1, 2, 1)
        bottom = [0.0] * len(self.rows)
        for name, colour in _COLOURS.items():
            heights = [row.get(name, 0.0) for row in self.rows]
            if any(heights):
                label = f"{name} {self.phase(name).alone_ms:.3g} ms"
                axes.bar(range(1, len(heights) + 1), heights, 1.0, bottom=bottom, color=colour, label=label)
                bottom = [low + height for low, height in zip(bottom, heights)]
        axes.axhline(self.ms, color="black", linewidth=1, linestyle="--", label=f"as it runs {self.ms:.3g} ms")
        # one update that was held up shall not make all others flat
        axes.set_ylim(0, 1.6 * max(self.ms, sorted(bottom)[len(bottom) * 9 // 10]))
        axes.set_title("each phase alone")
        axes.set_xlabel("update")
        axes.set_ylabel("ms")
        axes.legend(frameon=False, loc="upper left", ncol=2, fontsize=8)
        _plot_operators(figure.add_subplot(1, 2, 2), self.operators[:SHOWN])
        if path is not None:
            figure.savefig(str(path))
        return figure

    def __str__(self) -> str:
        parts = [self._headline(), *_phase_table(self), *_operator_table(self.operators), *_other_tables(self)]
        return "\n".join([*parts, *(f"- {line}" for line in self.advice)])

    __repr__ = __str__

    def _headline(self) -> str:
        return (
            f"{self.updates} updates of {self.samples:g} samples on {', '.join(self.devices)}: {self.ms:.4g} ms an "
            f"update, {self.samples_per_second:,.0f} samples/s\n"
            f"under MXNet's profiler the engine computed {self.floor_ms:.4g} ms an update, {self.busy:.0%} of the time"
        )


def _plot_operators(axes: Any, operators: Sequence[Operator]) -> None:
    names = [short_name(one.name, 28) for one in operators][::-1]
    colours = ["#DD8452" if one.onednn is False else "#4C72B0" for one in operators][::-1]
    bars = axes.barh(range(len(names)), [one.ms for one in operators][::-1], color=colours)
    axes.bar_label(bars, [f"{one.share:.0%}" for one in operators][::-1], padding=3, fontsize=7)
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels(names, fontsize=7)
    axes.margins(x=0.12)
    axes.set_title("operators (orange: not by oneDNN)" if "#DD8452" in colours else "operators")
    axes.set_xlabel("ms an update")


def short_name(name: str, width: int) -> str:
    """An operator's name; of several in one the first and how many.

    >>> short_name("Activation,Pooling,Convolution", 28)
    'Activation + 2 more'
    """
    names = name.split(",")
    return name[:width] if len(names) == 1 else f"{names[0]} + {len(names) - 1} more"


def _phase_table(profile: Profile) -> List[str]:
    whole = sum(one.alone_ms or 0.0 for one in profile.phases)
    rows = [["phase", "as it runs", "", "alone", "", "quartiles"]]
    for one in profile.phases:
        row = [one.name, f"{one.python_ms:.3f}", f"{one.python_ms / profile.ms:.0%}", "", "", ""]
        if one.alone_ms is not None and one.quartiles is not None:
            row[3:] = [f"{one.alone_ms:.3f}", f"{one.alone_ms / whole:.0%}", "{:.3f} to {:.3f}".format(*one.quartiles)]
        rows.append(row)
    rows.append(["all", f"{profile.ms:.3f}", "", f"{whole:.3f}", "", ""])
    told = (
        "milliseconds an update. As it runs: of the thread that trains, while the engine computes behind it. Alone: "
        "until\nthe engine has ended the phase too, before the next begins (median)"
    )
    return ["", *aligned(rows), told]


def _operator_table(operators: Sequence[Operator]) -> List[str]:
    said = {True: "yes", False: "no", None: ""}
    rows = [["operator", "calls", "ms", "share", "oneDNN"]]
    for one in operators[:SHOWN]:
        cells = [f"{one.calls:.3g}", f"{one.ms:.3f}", f"{one.share:.0%}", said[one.onednn]]
        rows.append([short_name(one.name, 40), *cells])
    rest = operators[SHOWN:]
    if rest:
        calls, ms, share = (sum(getattr(one, field) for one in rest) for field in ("calls", "ms", "share"))
        rows.append([f"{len(rest)} others", f"{calls:.3g}", f"{ms:.3f}", f"{share:.0%}", ""])
    return ["", *aligned(rows)]


def _other_tables(profile: Profile) -> List[str]:
    lines = []
    if profile.reads:
        rows = [["waits for the engine", "calls", "ms"]]
        rows += [[one.place, f"{one.calls:.3g}", f"{one.ms:.3f}"] for one in profile.reads[:SHOWN]]
        lines += ["", *aligned(rows)]
    if profile.paddings:
        width = profile.paddings[0].width
        rows = [[f"convolution, channels no multiple of {width}", "as it is", "", "padded", ""]]
        for one in profile.paddings:
            texts = ["{} to {}".format(*channels) for channels in (one.channels, one.padded)]
            rows.append([one.path, texts[0], f"{one.ms:.2f} ms", texts[1], f"{one.padded_ms:.2f} ms"])
        lines += ["", *aligned(rows)]
    return [*lines, *([""] if profile.advice else [])]
