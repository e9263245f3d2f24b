"""Progress for people: a bar on a terminal or in a notebook, plain lines everywhere else."""

from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
import os
from pathlib import Path
import sys
import time
from typing import Any, ContextManager, Iterator, List, Optional, Sequence, Sized, TextIO, Union
import warnings

from mxkit.core.blocks import net_devices
from mxkit.nets.parameter_table import parameters
from mxkit.storage.directory import checkpoint_paths
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Row, fixed
from mxkit.training.ledger import Ledger, Update
from mxkit.training.state import FitState
from tqdm import tqdm
from tqdm.utils import ObjectWrapper

REFRESH_SECONDS = 0.25  # reading numbers waits for the device: at most four times a second
LINE_SECONDS = 60.0
LONG_SECONDS = 1.0
LEAST_BAR = 3

_BAR = "{desc} {bar} {n_fmt}/{total_fmt}, {remaining} left{postfix}"
_ENDLESS = "{desc} {n_fmt} {unit}, {elapsed}{postfix}"


class Progress(Callback):
    """Show loss, metrics, samples/s and the time left; `fit` uses it unless `progress=False`.

    On a terminal an epoch is a bar, which its line of numbers replaces at the end. In a notebook it is the notebook's
    bar, or a text one where ipywidgets is missing. Anywhere else, also for TERM=dumb, there is the line an epoch, and
    in a long one a line a minute. An error leaves the bar as it stood.

    The loss is the mean over the epoch's samples so far, as `train_loss` will be; so are the metrics and samples/s.
    The learning rate is shown where it changes. On a narrow terminal the last numbers are left out first.

    Args:
        stream: Where to write. None is standard error; in a notebook standard output, for the other is red there.
        lines: Plain lines instead of a bar. None looks at the stream.
        verbose: Begin with devices, parameters and data.

    Side effects:
        While a text bar is there, what is printed or warned of appears above it: `sys.stdout` and
        `warnings.showwarning` are replaced until the end of `fit`.
    """

    def __init__(self, stream: Optional[TextIO] = None, lines: Optional[bool] = None, *, verbose: bool = False) -> None:
        self._stream = stream or _usual_stream()
        self._lines = not _takes_a_bar(self._stream) if lines is None else lines
        self._verbose = verbose
        self._first_rate: Optional[float] = None
        self._bar: Any = None
        self._held = ExitStack()

    def on_fit_begin(self, state: FitState) -> None:
        self._first_rate = None if _is_scheduled(state) else state.trainer.learning_rate
        if self._verbose:
            self._tell_what(state)
        if state.updates:
            self._print(
                f"nothing left to train: the run has done {state.updates} updates, and {state.length} are asked for"
                if state.done and not state.running.updates
                else f"goes on in {state.label(state.epoch)}, after update {state.updates}"
            )
        if not state.done or state.running.updates:
            self._open_epoch(state, state.epoch, state.running)
        if self._bar is not None and type(self._bar) is tqdm:
            self._held.enter_context(_prints_above(self._stream))

    def _open_epoch(self, state: FitState, epoch: int, before: Ledger) -> None:
        self._shown = time.monotonic()
        left = None if state.max_updates is None else state.max_updates - state.updates + before.updates
        known = [number for number in (state.updates_per_epoch, left) if number is not None]
        self._total = min(known) if known else None
        if not self._lines:
            self._bar = open_bar(
                self._stream, desc=state.label(epoch), total=self._total, unit="updates", initial=before.updates
            )

    def on_update(self, state: FitState, update: Update) -> None:
        if time.monotonic() - self._shown >= (LINE_SECONDS if self._lines else REFRESH_SECONDS):
            self._show(state)

    def _show(self, state: FitState) -> None:
        self._shown = time.monotonic()
        numbers = self._numbers(state)
        running = state.running
        if self._bar is not None:
            self._bar.set_postfix_str(_fitting(self._bar, numbers), refresh=False)
            self._bar.update(running.updates - self._bar.n)
        elif self._lines:
            total, left = "", []
            if self._total:
                total = f"/{self._total}"
                left = [tqdm.format_interval(running.seconds / running.updates * (self._total - running.updates))]
            told = [f"{state.label(state.epoch)}  update {running.updates}{total}", *(f"{one} left" for one in left)]
            self._print("  ".join([*told, *numbers]))

    def _numbers(self, state: FitState) -> List[str]:
        """What is shown, the most important first. Waits for all updates but the newest, and for the metrics."""
        running = state.running
        running.settle(but=1)  # the device may still be at the newest
        parts = [f"loss {_number(running.loss_sum / running.read_count)}"] if running.read_count else []
        scores = {metric.name: metric.get() for metric in state.metrics}
        parts += [f"{name} {_number(value)}" for name, value in scores.items() if isinstance(value, float)]
        # after the reads: by now the device has done what is counted
        parts.append(f"{running.samples / max(running.seconds, 1e-9):,.0f} samples/s")
        return parts + self._rate(state)

    def _rate(self, state: FitState) -> List[str]:
        rate = state.trainer.learning_rate
        return [] if rate == self._first_rate else [f"lr {rate:.3g}"]

    def around_validation(self, state: FitState) -> ContextManager[Any]:
        if self._bar is not None:
            self._show(state)  # all of it is read by now
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
            self._held.close()
        if state.stop_reason is not None:
            self._print(f"stopped: {state.stop_reason}")

    def _close(self, failed_at: Optional[int] = None) -> None:
        if self._bar is None:
            return
        bar, self._bar = self._bar, None
        bar.leave = failed_at is not None
        bar.n = bar.n if failed_at is None else failed_at
        if failed_at is None:
            bar.total = bar.n  # the notebook's bar turns red where it is closed early
        bar.close()

    def _tell_what(self, state: FitState) -> None:
        data: Any = state.data
        # the repr of a list of batches would be all its numbers
        told = repr(data) if type(data).__module__.startswith("mxkit.") else type(data).__name__
        length = "an unknown number of" if state.updates_per_epoch is None else f"{state.updates_per_epoch:,}"
        self._print(f"devices      {', '.join(map(str, net_devices(state.net)))}")
        self._print(f"parameters   {repr(parameters(state.net)).splitlines()[-1]}")
        self._print(f"data         {told}")
        self._print(f"training     {state.length}, {length} updates an epoch")

    def _print(self, text: str) -> None:
        if self._lines:
            print(text, file=self._stream, flush=True)
        else:
            tqdm.write(text, file=self._stream)
            self._stream.flush()


class CheckpointNews(Callback):
    """Tell each checkpoint that is new in a directory, on the stream of `Progress`; stands behind what writes them."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._stream = directory, _usual_stream()
        self._known = set(checkpoint_paths(directory))
        self._looked = time.monotonic()

    def on_fit_begin(self, state: FitState) -> None:
        tqdm.write(f"checkpoints  {self._directory}", file=self._stream)

    def on_update(self, state: FitState, update: Update) -> None:
        if time.monotonic() - self._looked >= LONG_SECONDS:
            self._look()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._look()

    def _look(self) -> None:
        self._looked = time.monotonic()
        for path in reversed(checkpoint_paths(self._directory)):
            if path not in self._known:
                self._known.add(path)
                tqdm.write(f"checkpoint {path.name} is written", file=self._stream)


def get_progress(spec: Union[bool, str]) -> List[Progress]:
    """What `fit`'s argument `progress` means: True, False or "verbose".

    Raises:
        ValueError: It is something else.
    """
    if spec is not True and spec is not False and spec != "verbose":
        raise ValueError(f"fit: progress is True, False or 'verbose'; received {spec!r:.100}")
    return [Progress(verbose=spec == "verbose")] if spec else []


def batches_bar(what: str, data: Any, limit: Optional[int], progress: bool) -> Any:
    """A bar over batches, below one that is there already; shown when it has taken a second, and gone at the end.

    Args:
        what: Its name.
        data: What is read; the number of batches is known if it has a length.
        limit: Most batches that are read.
        progress: False, and where there is no terminal or notebook, shows nothing.

    Returns:
        A context with `update()`, to be called after each batch.
    """
    stream = _usual_stream()
    # text in a notebook cannot be moved up again to the bar above
    crowded = _is_notebook(stream) and _notebook_bar() is tqdm and len(getattr(tqdm, "_instances", ())) > 0
    known = [number for number in (len(data) if isinstance(data, Sized) else None, limit) if number is not None]
    return open_bar(
        stream,
        desc=what,
        total=min(known) if known else None,
        unit="batches",
        delay=LONG_SECONDS,
        mininterval=REFRESH_SECONDS,
        disable=not progress or crowded or not _takes_a_bar(stream),
    )


def open_bar(stream: TextIO, *, total: Optional[int], mininterval: float = 0.0, **options: Any) -> Any:
    """The bar that fits a stream: tqdm's for notebooks, or for terminals."""
    kind = _notebook_bar() if _is_notebook(stream) else tqdm
    layout = _ENDLESS if total is None else _BAR
    # miniters=0: tqdm learns from the first updates how many to let pass, and is late where they become slow
    return kind(
        total=total,
        file=stream,
        bar_format=layout,
        mininterval=mininterval,
        miniters=0,
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


def _fitting(bar: Any, numbers: Sequence[str]) -> str:
    """As many numbers as the terminal is wide for, of which at least one is shown."""
    told = bar.format_dict
    for last in range(len(numbers), 1, -1):
        text = ", ".join(numbers[:last])
        # with an unknown width the bar takes ten places
        length = len(bar.format_meter(**{**told, "ncols": None, "postfix": text})) - 10 + LEAST_BAR
        if not told["ncols"] or not isinstance(told["ncols"], int) or length <= told["ncols"]:
            return text
    return ", ".join(numbers[:1])


def _is_scheduled(state: FitState) -> bool:
    return state.trainer.optimizer.lr_scheduler is not None


def _is_notebook(stream: Any) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


def _usual_stream() -> TextIO:
    return sys.stdout if _is_notebook(sys.stdout) else sys.stderr


def _takes_a_bar(stream: TextIO) -> bool:
    return _is_notebook(stream) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def _notebook_bar() -> Any:
    """tqdm's choice between widget and text, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tqdm.autonotebook import tqdm as chosen
    return chosen


@contextmanager
def _prints_above(stream: TextIO) -> Iterator[None]:
    """Let what is printed, and warnings, appear above the bar on `stream`."""
    above, show = _Above(sys.stdout), warnings.showwarning

    def show_above(*args: Any, **kwargs: Any) -> None:
        with tqdm.external_write_mode(file=stream):
            show(*args, **kwargs)

    warnings.showwarning = show_above
    try:
        with redirect_stdout(above):
            yield
    finally:
        if warnings.showwarning is show_above:
            warnings.showwarning = show
        above.finish()


class _Above(ObjectWrapper):
    """Standard output while a bar is there: whole lines appear above it.

    tqdm has such a class, but importing it imports asyncio and warns in notebooks.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        object.__setattr__(self, "_begun", "")

    def write(self, text: str) -> int:
        lines, newline, rest = (self._begun + text).rpartition("\n")
        object.__setattr__(self, "_begun", rest)
        if newline:
            tqdm.write(lines, file=self._wrapped)
        return len(text)

    def finish(self) -> None:
        self._wrapped.write(self._begun)

    # tqdm clears bars on one of the two standard streams for text on the other, which it tells by comparing
    def __eq__(self, other: object) -> bool:
        return bool(self._wrapped == getattr(other, "_wrapped", other))

    def __hash__(self) -> int:
        return hash(self._wrapped)
