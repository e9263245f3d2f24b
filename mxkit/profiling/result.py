"""The result of `profile`: figures, which print as tables, a picture and a dict."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.system import aligned
from mxkit.plots.plotting import new_figure, saved

SHOWN = 12  # number of operators in tables and pictures
_TABLES = ("phases", "operators", "reads", "threads")
_PARTS = ("data", "forward", "backward", "metrics", "update", "other")
_COLOURS = dict(zip(_PARTS, ("#55A868", "#4C72B0", "#DD8452", "#937860", "#C44E52", "#8C8C8C")))


class Phase(NamedTuple):
    """A part of an update.

    Attributes:
        name: data, forward, backward, metrics, update, other (splitting, checks), waiting.
        python_ms: Milliseconds per update of the thread that trains, while the engine computes in the background.
        alone_ms: Median milliseconds per update if the engine ends each phase before the next begins; None for waiting.
        quartiles: First and third quartile of these milliseconds.
    """

    name: str
    python_ms: float
    alone_ms: Optional[float]
    quartiles: Optional[Tuple[float, float]]


class Operator(NamedTuple):
    """An operator of the engine; its backward pass is another one.

    Attributes:
        name: MXNet's name; several, joined by commas, in a net hybridized with static_shape.
        calls: Calls per update.
        ms: Milliseconds per update.
        share: Share of the time of all operators.
        onednn: Whether oneDNN computes it; None if that is not known.
    """

    name: str
    calls: float
    ms: float
    share: float
    onednn: Optional[bool]


class Read(NamedTuple):
    """A place in the code that waited for the engine.

    Attributes:
        place: `file:line`, in mxkit too.
        calls: Calls per update.
        ms: Milliseconds per update.
    """

    place: str
    calls: float
    ms: float


class Threads(NamedTuple):
    """The training with another number of threads.

    Attributes:
        number: Threads of an operator.
        ms: Milliseconds per update.
    """

    number: int
    ms: float


@dataclass(repr=False, eq=False)
class Profile:
    """Where the time of an update goes; prints as tables.

    Attributes:
        updates: Number of timed updates, in each of three passes.
        samples: Mean number of samples per update.
        devices: Devices of the net.
        ms: Milliseconds per update, without added waits and without the profiler.
        busy: Share of the time in which the engine computed, while MXNet's profiler ran.
        floor_ms: Milliseconds per update in which the engine computed: the least time of any training with these
            operators.
        phases, operators, reads: The figures. Operators and reads are sorted by time, the longest first.
        advice: Sentences that follow from the figures.
        rows: For each update, milliseconds by phase, each phase alone.
        trace: The file for chrome://tracing and Perfetto, or None.
        threads: The time of an update with 1, 2, 4 ... threads, if `mxkit profile` measured it.
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
    rows: List[Dict[str, float]]
    trace: Optional[Path]
    threads: List[Threads] = field(default_factory=list)
    advice: List[str] = field(default_factory=list)

    @property
    def samples_per_second(self) -> float:
        """Samples per second of the training as it runs."""
        return self.samples / self.ms * 1e3

    def phase(self, name: str) -> Phase:
        """The figures of a phase; 0 if the training has no phase of that name."""
        return next((phase for phase in self.phases if phase.name == name), Phase(name, 0.0, 0.0, None))

    def to_dict(self) -> Dict[str, Any]:
        """All figures as plain JSON values; times are milliseconds per update."""
        tables = {name: [row._asdict() for row in getattr(self, name)] for name in _TABLES}
        trace = None if self.trace is None else str(self.trace)
        return {**vars(self), **tables, "samples_per_second": self.samples_per_second, "trace": trace}

    def plot(self, path: Union[str, Path, None] = None) -> Any:
        """Draw the phases of each update, each alone, and the slowest operators.

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
        # One slow update must not flatten all others.
        axes.set_ylim(0, 1.6 * max(self.ms, sorted(bottom)[len(bottom) * 9 // 10]))
        axes.set_title("each phase alone")
        axes.set_xlabel("update")
        axes.set_ylabel("ms")
        axes.legend(frameon=False, loc="upper left", ncol=2, fontsize=8)
        _plot_operators(figure.add_subplot(1, 2, 2), self.operators[:SHOWN])
        return saved(figure, path)

    def __str__(self) -> str:
        tables = [_operator_table(self.operators), *_other_tables(self)]
        lines = [line for table in tables if len(table) > 1 for line in ("", *aligned(table))]
        gap = [""] if self.advice else []
        return "\n".join([self._headline(), *_phase_table(self), *lines, *gap, *(f"- {line}" for line in self.advice)])

    __repr__ = __str__

    def _headline(self) -> str:
        return (
            f"{self.updates} updates of {self.samples:g} samples on {', '.join(self.devices)}: {self.ms:.4g} ms per "
            f"update, {self.samples_per_second:,.0f} samples/s\n"
            f"under MXNet's profiler the engine computed {self.floor_ms:.4g} ms per update, {self.busy:.0%} of the time"
        )


def _plot_operators(axes: Any, operators: Sequence[Operator]) -> None:
    slowest_on_top = operators[::-1]
    names = [short_name(operator.name, 28) for operator in slowest_on_top]
    colours = ["#DD8452" if operator.onednn is False else "#4C72B0" for operator in slowest_on_top]
    bars = axes.barh(range(len(names)), [operator.ms for operator in slowest_on_top], color=colours)
    axes.bar_label(bars, [f"{operator.share:.0%}" for operator in slowest_on_top], padding=3, fontsize=7)
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels(names, fontsize=7)
    axes.margins(x=0.12)
    axes.set_title("operators (orange: not by oneDNN)" if "#DD8452" in colours else "operators")
    axes.set_xlabel("ms per update")


def short_name(name: str, width: int) -> str:
    """An operator's name; of several in one, the first and the number of the others.

    >>> short_name("Activation,Pooling,Convolution", 28)
    'Activation + 2 more'
    """
    names = name.split(",")
    return name[:width] if len(names) == 1 else f"{names[0]} + {len(names) - 1} more"


def _phase_table(profile: Profile) -> List[str]:
    total = sum(phase.alone_ms or 0.0 for phase in profile.phases)
    rows = [["phase", "as it runs", "", "alone", "", "quartiles"]]
    for name, python_ms, alone_ms, quartiles in profile.phases:
        alone = ["", "", ""]
        if alone_ms is not None and quartiles is not None:
            alone = [f"{alone_ms:.3f}", f"{alone_ms / total:.0%}", "{:.3f} to {:.3f}".format(*quartiles)]
        rows.append([name, f"{python_ms:.3f}", f"{python_ms / profile.ms:.0%}", *alone])
    rows.append(["all", f"{profile.ms:.3f}", "", f"{total:.3f}", "", ""])
    note = (
        "milliseconds per update. As it runs: time of the training's thread, while the engine computes in the "
        "background.\nAlone: the engine ends each phase before the next begins (median)"
    )
    return ["", *aligned(rows), note]


def _operator_table(operators: Sequence[Operator]) -> List[List[str]]:
    shown, rest = list(operators[:SHOWN]), operators[SHOWN:]
    if rest:
        calls, ms, share = (sum(getattr(operator, field) for operator in rest) for field in ("calls", "ms", "share"))
        shown.append(Operator(f"{len(rest)} others", calls, ms, share, None))
    rows = [["operator", "calls", "ms", "share", "oneDNN"]]
    for name, calls, ms, share, onednn in shown:
        answer = {True: "yes", False: "no", None: ""}[onednn]
        rows.append([short_name(name, 40), f"{calls:.3g}", f"{ms:.3f}", f"{share:.0%}", answer])
    return rows


def _other_tables(profile: Profile) -> List[List[List[str]]]:
    reads = [[read.place, f"{read.calls:.3g}", f"{read.ms:.3f}"] for read in profile.reads[:SHOWN]]
    threads = [[str(number), f"{ms:.3f}"] for number, ms in profile.threads[: 99 * (len(profile.threads) > 1)]]
    return [
        [["waits for the engine", "calls", "ms"], *reads],
        [["threads of an operator", "ms"], *threads],
    ]
