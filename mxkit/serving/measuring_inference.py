"""Measures a run's net in every precision: latency, samples a second, memory, and agreement with the net as trained."""

import ctypes
from dataclasses import dataclass
import gc
import os
from pathlib import Path
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import check_number, whole_number
from mxkit.core.arrays import of_kind, to_host
from mxkit.core.blocks import is_numpy_net
from mxkit.core.device import QUEUED_BYTES, as_ndarray, bytes_of, unpack
from mxkit.core.forward_errors import brief
from mxkit.core.system import aligned
from mxkit.data.source import source_of
from mxkit.errors import DataError, MxkitError
from mxkit.nets.initializers import to
from mxkit.nets.prediction_graphs import PRECISIONS
from mxkit.nets.saving import load_net, save_net
from mxkit.plots.plotting import new_figure, saved
from mxkit.recipe.building import batches
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.net_facts import InputForm, read_facts
from mxkit.recipe.predictions import predictions
from mxkit.recipe.run import load_run
from mxkit.recipe.schema import Recipe
from mxkit.runtime.engine_settings import in_force
from mxkit.runtime.machine import processor_model
from mxkit.serving.optimizing import in_turns, optimize, seconds_of
from mxkit.training.callbacks.progress import batches_bar
from mxkit.training.evaluation import predict
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

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


# Samples of the evaluated part whose answers are compared
_COMPARED = 1000
# Samples of them that `optimize` compares
_SAMPLE = 64
_ROUNDS = 5


class _Form(NamedTuple):
    net: Any
    growth: Dict[int, float]


def measure_inference(
    run: Union[str, Path],
    *,
    precisions: Sequence[str] = PRECISIONS,
    batch_sizes: Sequence[int] = (1, 8, 32),
    which: Optional[str] = None,
    seconds: float = 2.0,
    progress: bool = False,
) -> InferenceFigures:
    """Measure how fast a run's net predicts on the CPU, as trained and in other precisions.

    The net as trained is hybridized with static memory, in float32. The forms take turns in five rounds, so that what
    else the machine does meets all alike. Inputs are those of the run's evaluated part, from the first sample on; int8
    is calibrated on the training part. The threads are those that `mxkit.predict` takes: `mxkit.threads` sets them.

    Args:
        run: Folder of the run.
        precisions: As for `mxkit.optimize`. One that the processor or the net refuses is named in the result.
        batch_sizes: Samples per call.
        which: "last" or "best" checkpoint; None takes that of the run's final scores.
        seconds: How long each form is timed with each batch size, at least five calls.
        progress: Show a bar on a terminal.

    Returns:
        The figures. Without the run's data, inputs are random numbers, and neither agreement nor int8 is measured.

    Raises:
        ValueError: An argument is wrong.
        RecipeError, CheckpointError: As for `load_run`.
        InterruptedMeasurement: Ctrl-C came after the first round; a KeyboardInterrupt with the figures so far.
    """
    unknown = [one for one in precisions if one not in PRECISIONS]
    if unknown:
        raise ValueError(f"precision: expected {', '.join(PRECISIONS)}; received {unknown[0]!r}")
    sizes = list(dict.fromkeys(whole_number(size, "batch") for size in batch_sizes))
    check_number("seconds", seconds)
    before = _resident()
    recipe, net = load_run(run, which)
    to(net, "cpu")
    loaded = _resident() - before
    if isinstance(net, gluon.HybridBlock):
        net.hybridize(static_alloc=True, static_shape=True)
    facts = read_facts(run)
    read, calibration, notes = _read_data(recipe)
    inputs = _inputs(read, facts.known_inputs(), sizes, is_numpy_net(net))
    forms = {BASE: _Form(net, _growth(net, inputs, _resident() - loaded))}
    # of few samples one other answer would be more than `optimize` accepts
    sample = [one[:_SAMPLE] for one in read[0]] if read else inputs[max(sizes)]
    refused: Dict[str, str] = {}
    base = _answers(recipe, facts.classes, net, read)
    in_classes = not base or "class" in base[0]
    for precision in dict.fromkeys(precisions):
        try:
            forms[precision] = _optimized(net, sample, precision, calibration, inputs, in_classes)
        except (ValueError, MxkitError, mx.MXNetError) as error:
            refused[precision] = brief(error)
    agreement = _agreement(recipe, facts.classes, forms, read, base)
    timed: Dict[int, Dict[str, List[List[float]]]] = {}
    nets = {name: form.net for name, form in forms.items()}

    def figures() -> InferenceFigures:
        rows = [
            _row(name, size, timed[size], form.growth[size], agreement.get(name))
            for name, form in forms.items()
            for size in timed
        ]
        return InferenceFigures(rows, refused, processor_model(), in_force(), _samples(read) if agreement else 0, notes)

    try:
        with batches_bar("benchmark", len(sizes) * _ROUNDS, None, progress) as bar, autograd.pause(train_mode=False):
            for size in sizes:
                for rounds in in_turns(nets, inputs[size], seconds / _ROUNDS, _ROUNDS):
                    timed[size] = rounds
                    bar.update()
    except KeyboardInterrupt as error:
        if not timed:
            raise
        last = list(timed)[-1]
        notes.append(f"interrupted after {len(timed[last][BASE])} of {_ROUNDS} rounds of batch {last}")
        raise InterruptedMeasurement(figures()) from error
    return figures()


def _read_data(recipe: Recipe) -> Tuple[List[Tuple[Any, ...]], Any, List[str]]:
    """The inputs of the first batches of the evaluated part; batches of the training part; and what is missing."""
    read: List[Tuple[Any, ...]] = []
    try:
        data = load_data(recipe)
        with recipe.switches():
            for batch in source_of(batches(recipe, data, recipe.evaluate.split)).read(keep_count=True):
                read.append(unpack(batch)[0])
                if _samples(read) >= _COMPARED or sum(map(bytes_of, read)) >= QUEUED_BYTES:
                    break
        return read, batches(recipe, data, "train", training=True), []
    except (MxkitError, OSError) as error:
        text = "the run's data cannot be read, so inputs are random, and neither agreement nor int8 is measured"
        return [], None, [f"{text}: {error}"]


def _samples(read: Sequence[Tuple[Any, ...]]) -> int:
    return sum(int(one[0].shape[0]) for one in read)


def _inputs(
    read: Sequence[Tuple[Any, ...]], shapes: Sequence[InputForm], sizes: Sequence[int], numpy: bool
) -> Dict[int, Any]:
    """For each batch size the first samples that were read, again from the first one if there are fewer."""
    hosts = [np.concatenate([to_host(one) for one in column]) for column in zip(*read)]
    if not hosts:
        random = np.random.RandomState(0)
        hosts = [random.uniform(size=(max(sizes), *one.shape[1:])).astype(one.dtype) for one in shapes]
    taken = {size: [np.take(host, np.arange(size), axis=0, mode="wrap") for host in hosts] for size in sizes}
    return {size: of_kind(tuple(map(as_ndarray, arrays)), numpy) for size, arrays in taken.items()}


def _optimized(
    net: Any, sample: Any, precision: str, calibration: Any, inputs: Mapping[int, Any], in_classes: bool
) -> _Form:
    """The optimized net as a server loads it: the one that was made has the memory of its measurements, too."""
    calibration = calibration if precision == "int8" else None
    made = optimize(net, sample, precision=precision, calibration=calibration, classes=in_classes)
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        save_net(f"{folder}/net", made)
        del made
        gc.collect()  # it is in cycles
        before = _resident()
        loaded = load_net(f"{folder}/net")
    return _Form(loaded, _growth(loaded, inputs, before))


def _resident() -> float:
    """Resident memory of this process in MB, after what is free has gone back to the system."""
    mx.nd.waitall()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's
        trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _growth(net: Any, inputs: Mapping[int, Any], before: float) -> Dict[int, float]:
    """MB by which the process has grown since `before` after each batch size."""
    grown = {}
    with autograd.pause(train_mode=False):
        for size, arrays in inputs.items():
            for _ in range(2):  # the second call may allocate, too
                seconds_of(net, arrays)
            grown[size] = _resident() - before
    return grown


def _row(
    name: str, size: int, timed: Mapping[str, List[List[float]]], growth: float, agreement: Optional[float]
) -> InferenceRow:
    calls = 1e3 * np.concatenate(timed[name])
    rates, base = ([size * len(one) / sum(one) for one in timed[form]] for form in (name, BASE))
    speed = float(np.median(np.divide(rates, base)))
    p50, p99 = (float(np.percentile(calls, share)) for share in (50, 99))
    return InferenceRow(name, size, p50, p99, float(np.median(rates)), speed, growth, agreement, len(calls))


def _answers(
    recipe: Recipe, classes: Sequence[str], net: Any, read: Sequence[Tuple[Any, ...]]
) -> List[Mapping[str, Any]]:
    """A net's answers to the samples; none if there is no data, or they are none for single samples."""
    try:
        return list(predictions(recipe, classes, predict(net, [(inputs,) for inputs in read]))) if read else []
    except DataError:  # the net compares samples, or has several outputs
        return []


def _agreement(
    recipe: Recipe,
    classes: Sequence[str],
    forms: Mapping[str, _Form],
    read: Sequence[Tuple[Any, ...]],
    base: Sequence[Mapping[str, Any]],
) -> Dict[str, float]:
    """Share of samples of which each form says what the net as trained says; empty if there is nothing to compare."""
    if not base or "values" in base[0]:
        return {}
    expected = [_decision(one) for one in base]
    found = {BASE: 1.0}
    for name, form in forms.items():
        if name != BASE:
            said = map(_decision, _answers(recipe, classes, form.net, read))
            found[name] = float(np.mean([one == other for one, other in zip(said, expected)]))
    return found


def _decision(answer: Mapping[str, Any]) -> Any:
    """The class of a sample; for several labels which of them it has."""
    if "class" in answer:
        return answer["class"]
    ((kind, values),) = answer.items()
    return [value > (0.5 if kind == "probabilities" else 0) for value in values.values()]
