"""Shows progress: a bar on a terminal or in a notebook, plain lines elsewhere."""

from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
import os
import sys
import time
from typing import Any, ContextManager, Iterator, List, Optional, TextIO, Union
import warnings

from mxkit.core.blocks import net_devices
from mxkit.nets.parameter_table import parameters
from mxkit.runtime.engine_settings import in_force
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Row, fixed
from mxkit.training.ledger import Ledger, Update
from mxkit.training.state import FitState
from tqdm import tqdm
from tqdm.utils import ObjectWrapper

# Reading numbers waits for the device: do it at most four times a second.
REFRESH_SECONDS = 0.25
LINE_SECONDS = 60.0
# A bar over batches appears after this time.
LONG_SECONDS = 1.0
# After `state.stop`, like that of EarlyStopping, a run does not continue.
_WAY = "A stopped run does not continue: load_checkpoint its weights, and fit with another directory of checkpoints"

_BAR = "{desc} {bar} {n_fmt}/{total_fmt}, {remaining} left{postfix}"
_ENDLESS = "{desc} {n_fmt} {unit}, {elapsed}{postfix}"


class Progress(Callback):
    """Show loss, metrics, samples/s and the time left; `fit` uses it unless `progress=False`.

    On a terminal each epoch has a bar; a line of numbers replaces it at the end of the epoch. In a notebook the bar is
    a widget, or text if ipywidgets is missing. Elsewhere, and for TERM=dumb, there is a line per epoch, and a line per
    minute in a long epoch. After an error the bar stays as it was.

    The loss is the mean over the epoch's samples so far, as `train_loss` will be; so are the metrics and samples/s.
    The learning rate is shown if it changes. A narrow terminal cuts the last numbers.

    Args:
        stream: Where to write. None is standard error; in a notebook standard output, because notebooks show the
            other in red.
        verbose: Begin with devices, parameters and data.

    Side effects:
        While a text bar is shown, printed text and warnings appear above it: `sys.stdout` and
        `warnings.showwarning` are replaced until the end of `fit`.
    """

    writes = True

    def __init__(self, stream: Optional[TextIO] = None, *, verbose: bool = False) -> None:
        self._stream = stream or _default_stream()
        self._lines = not _shows_bars(self._stream)
        self._verbose = verbose
        self._first_rate: Optional[float] = None
        self._bar: Any = None
        self._redirected = ExitStack()

    def on_fit_begin(self, state: FitState) -> None:
        self._first_rate = None if state.trainer.optimizer.lr_scheduler is not None else state.trainer.learning_rate
        if self._verbose:
            self._print_setup(state)
        if state.updates:
            text = f"resumes in {state.label(state.epoch)}, after update {state.updates}"
            if state.done and not state.running.updates:
                done = f"nothing left to train: the run has done {state.updates} updates; "
                text = done + (f"{state.stop_reason}. {_WAY}" if state.stop_reason else f"requested: {state.length}")
            self._print(text)
        if not state.done or state.running.updates:
            self._open_epoch(state, state.epoch, state.running)
        if type(self._bar) is tqdm:
            self._redirected.enter_context(_print_above_bars(self._stream))

    def _open_epoch(self, state: FitState, epoch: int, done: Ledger) -> None:
        self._shown_at = time.monotonic()
        left = None if state.max_updates is None else state.max_updates - state.updates + done.updates
        self._total = _least(state.updates_per_epoch, left)
        if not self._lines:
            self._bar = open_bar(
                self._stream, desc=state.label(epoch), total=self._total, unit="updates", initial=done.updates
            )

    def on_update(self, state: FitState, update: Update) -> None:
        if time.monotonic() - self._shown_at >= (LINE_SECONDS if self._lines else REFRESH_SECONDS):
            self._show(state)

    def _show(self, state: FitState) -> None:
        self._shown_at = time.monotonic()
        numbers = self._numbers(state)
        running = state.running
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(numbers), refresh=False)
            self._bar.update(running.updates - self._bar.n)
        elif self._lines:
            place = f"{state.label(state.epoch)}  update {running.updates}"
            if self._total:
                left = running.seconds / running.updates * (self._total - running.updates)
                place += f"/{self._total}  {tqdm.format_interval(left)} left"
            self._print("  ".join([place, *numbers]))

    def _numbers(self, state: FitState) -> List[str]:
        """The numbers, the most important first. Waits for all updates but the newest, and for the metrics."""
        running = state.running
        running.settle(but=1)  # the device may still compute the newest
        parts = [f"loss {_number(running.loss_sum / running.read_count)}"] if running.read_count else []
        scores = {metric.name: metric.get() for metric in state.metrics}
        parts += [f"{name} {_number(value)}" for name, value in scores.items() if isinstance(value, float)]
        # after the reads, when the device has done the updates that are counted
        parts.append(f"{running.samples / max(running.seconds, 1e-9):,.0f} samples/s")
        return parts + self._rate(state)

    def _rate(self, state: FitState) -> List[str]:
        rate = state.trainer.learning_rate
        return [] if rate == self._first_rate else [f"lr {rate:.3g}"]

    def around_validation(self, state: FitState) -> ContextManager[Any]:
        if self._bar is not None:
            self._show(state)  # costs no wait: the epoch's numbers are read by now
        return nullcontext()

    def on_epoch(self, state: FitState, row: Row) -> None:
        self._close()
        self._print("  ".join([f"{state.label(row['epoch'])}  {describe_row(row)}", *self._rate(state)]))
        if not state.last_epoch:
            self._open_epoch(state, state.epoch + 1, Ledger())

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        try:
            self._close(failed_at=None if error is None else state.running.updates)
        finally:
            self._redirected.close()
        if state.stop_reason is not None:
            self._print(f"stopped: {state.stop_reason}")

    def _close(self, failed_at: Optional[int] = None) -> None:
        if self._bar is None:
            return
        bar, self._bar = self._bar, None
        bar.leave = failed_at is not None
        if failed_at is None:
            bar.total = bar.n  # the notebook's bar turns red if it is closed early
        else:
            bar.n = failed_at
        bar.close()

    def _print_setup(self, state: FitState) -> None:
        data: Any = state.data
        # the repr of a list of batches would hold all its numbers
        shown = repr(data) if type(data).__module__.startswith("mxkit.") else type(data).__name__
        length = "an unknown number of" if state.updates_per_epoch is None else f"{state.updates_per_epoch:,}"
        self._print(f"devices      {', '.join(map(str, net_devices(state.net)))}")
        self._print(f"threads      {in_force()} for an operator on the CPU")
        self._print(f"parameters   {repr(parameters(state.net)).splitlines()[-1]}")
        self._print(f"data         {shown}")
        self._print(f"training     {state.length}, {length} updates an epoch")

    def _print(self, text: str) -> None:
        with suppress(OSError):  # a closed pipe or terminal must not end the training
            if self._lines:
                print(text, file=self._stream, flush=True)
            else:
                tqdm.write(text, file=self._stream)
                self._stream.flush()


def get_progress(spec: Union[bool, str]) -> List[Progress]:
    """Return the callbacks for `fit`'s argument `progress`: True, False or "verbose".

    Raises:
        ValueError: It has another value.
    """
    if spec is not True and spec is not False and spec != "verbose":
        raise ValueError(f"fit: progress is True, False or 'verbose'; received {spec!r:.100}")
    return [Progress(verbose=spec == "verbose")] if spec else []


def batches_bar(what: str, batches: Optional[int], limit: Optional[int], progress: bool) -> Any:
    """A bar over batches, below the bar of an epoch. It appears after one second and disappears at the end.

    Args:
        what: Its title.
        batches: Number of batches; None if it is unknown.
        limit: Most batches to read.
        progress: False shows nothing; nor is anything shown without a terminal or notebook.

    Returns:
        A context with `update()`, to be called after each batch.
    """
    stream = _default_stream()
    # in a notebook, text cannot be moved up again to the bar above
    crowded = _is_notebook(stream) and _notebook_bar() is tqdm and len(getattr(tqdm, "_instances", ())) > 0
    return open_bar(
        stream,
        desc=what,
        total=_least(batches, limit),
        unit="batches",
        delay=LONG_SECONDS,
        mininterval=REFRESH_SECONDS,
        disable=not progress or crowded or not _shows_bars(stream),
    )


def _least(*numbers: Optional[int]) -> Optional[int]:
    return min((number for number in numbers if number is not None), default=None)


def open_bar(stream: TextIO, *, total: Optional[int], mininterval: float = 0.0, **options: Any) -> Any:
    """The bar for a stream: tqdm's for notebooks, or for terminals."""
    kind = _notebook_bar() if _is_notebook(stream) else tqdm
    return kind(
        total=total,
        file=stream,
        bar_format=_ENDLESS if total is None else _BAR,
        mininterval=mininterval,
        miniters=0,  # else tqdm learns from the first updates how many to skip, and is late if they become slow
        leave=False,
        dynamic_ncols=True,
        **options,
    )


def describe_row(row: Row) -> str:
    """One epoch in a line: losses and metrics, samples/s and seconds."""
    numbers = [
        f"{name} {_number(value)}"
        for name, value in row.items()
        if name.startswith(("train_", "valid_")) and isinstance(value, float)
    ]
    return "  ".join([*numbers, f"{row['samples_per_second']:,.0f} samples/s", f"{row['seconds']:.1f} s"])


def _number(value: float) -> str:
    return fixed(value) if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


def _is_notebook(stream: Any) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


def _default_stream() -> TextIO:
    return sys.stdout if _is_notebook(sys.stdout) else sys.stderr


def _shows_bars(stream: TextIO) -> bool:
    return _is_notebook(stream) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def _notebook_bar() -> Any:
    """tqdm's choice between widget and text, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tqdm.autonotebook import tqdm as chosen
    return chosen


@contextmanager
def _print_above_bars(stream: TextIO) -> Iterator[None]:
    """Let printed text and warnings appear above the bar on `stream`."""
    stdout, show = _StdoutAboveBars(sys.stdout, stream), warnings.showwarning

    def show_above(*args: Any, **kwargs: Any) -> None:
        with tqdm.external_write_mode(file=stream):
            show(*args, **kwargs)

    warnings.showwarning = show_above
    try:
        with redirect_stdout(stdout):
            yield
    finally:
        if warnings.showwarning is show_above:
            warnings.showwarning = show
        stdout.finish()


class _StdoutAboveBars(ObjectWrapper):
    """Standard output while a bar is shown: whole lines appear above it.

    tqdm has such a class, but importing it imports asyncio and warns in notebooks.
    """

    def __init__(self, stdout: Any, bars: TextIO) -> None:
        super().__init__(stdout)
        object.__setattr__(self, "_bars", bars)
        object.__setattr__(self, "_line", "")

    def write(self, text: str) -> int:
        lines, newline, rest = (self._line + text).rpartition("\n")
        object.__setattr__(self, "_line", rest)
        if newline:
            with tqdm.external_write_mode(file=self._bars):
                self._wrapped.write(lines + newline)
        return len(text)

    def finish(self) -> None:
        self._wrapped.write(self._line)
