"""Progress for people: a bar on a terminal, plain lines everywhere else."""

from collections import deque
import sys
import time
from typing import Any, Deque, Optional, TextIO

from mxkit.training.callbacks import Callback, FitState
from mxkit.training.history import Row
from mxkit.training.record import Update, settle
from tqdm import tqdm

REFRESH_SECONDS = 0.25  # reading numbers waits for the device: at most four times a second
LINE_SECONDS = 30.0


class Progress(Callback):
    """Show loss, metrics, samples/s and the time left.

    Args:
        stream: Where to write; standard error by default.
        lines: Plain lines instead of a bar. None looks whether the stream is a terminal.
    """

    def __init__(self, stream: Optional[TextIO] = None, lines: Optional[bool] = None) -> None:
        self._stream = stream or sys.stderr
        self._lines = not self._stream.isatty() if lines is None else lines
        self._bar: Any = None

    def on_fit_begin(self, state: FitState) -> None:
        if state.updates:
            self._print(f"goes on in {state.label(state.epoch)}, after update {state.updates}")
        self._open_epoch()

    def _open_epoch(self) -> None:
        self._unread: Deque[Update] = deque()
        self._loss_sum = 0.0
        self._read_samples = 0.0
        self._samples = 0
        self._updates = 0
        self._begun = self._shown = time.monotonic()

    def on_update(self, state: FitState, update: Update) -> None:
        if self._bar is None and not self._lines:
            # Updates of many samples a second would flood a slow terminal: tqdm's own limit stays below ours.
            self._bar = tqdm(
                total=state.updates_per_epoch,
                desc=state.label(state.epoch),
                unit=" updates",
                file=self._stream,
                mininterval=REFRESH_SECONDS,
                leave=False,
                dynamic_ncols=True,
            )
        self._unread.append(update)
        self._samples += update.samples
        self._updates += 1
        if self._bar is not None:
            self._bar.update()
        now = time.monotonic()
        if now - self._shown >= (LINE_SECONDS if self._lines else REFRESH_SECONDS):
            self._shown = now
            text = self._running(state)
            if self._bar is not None:
                self._bar.set_postfix_str(text, refresh=False)
            else:
                total = f"/{state.updates_per_epoch}" if state.updates_per_epoch else ""
                self._print(f"{state.label(state.epoch)}  update {self._updates}{total}  {text}")

    def _running(self, state: FitState) -> str:
        newest = self._unread.pop()  # the device may still be at it
        settle(list(self._unread))
        for update in self._unread:
            self._loss_sum += update.loss * update.count
            self._read_samples += update.count
        self._unread = deque([newest])
        parts = [f"loss {self._loss_sum / self._read_samples:.4f}"] if self._read_samples else []
        scores = {metric.name: metric.get() for metric in state.metrics}
        parts += [f"{name} {value:.4f}" for name, value in scores.items() if isinstance(value, float)]
        # after the reads: by now the device has done what is counted
        seconds = max(time.monotonic() - self._begun, 1e-9)
        return "  ".join([*parts, f"{self._samples / seconds:,.0f} samples/s"])

    def on_epoch(self, state: FitState, row: Row) -> None:
        self._close()
        self._print(f"{state.label(row['epoch'])}  {describe_row(row)}")
        self._open_epoch()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def describe_row(row: Row) -> str:
    """One epoch in a line: losses and metrics, samples/s and seconds."""
    numbers = [
        f"{name} {value:.4f}"
        for name, value in row.items()
        if name.startswith(("train_", "valid_")) and isinstance(value, float)
    ]
    return "  ".join([*numbers, f"{row['samples_per_second']:,.0f} samples/s", f"{row['seconds']:.1f} s"])
