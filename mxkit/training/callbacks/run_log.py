"""The base of logs for other programs: it writes numbers when `fit` has read them, and attaches a recipe's files."""

from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Row
from mxkit.training.ledger import Update, settle
from mxkit.training.signals import Terminated
from mxkit.training.state import FitState
import mxnet as mx

# Numbers by name, at an update or an epoch.
Numbers = Tuple[int, Dict[str, float]]


class RecipeRun(NamedTuple):
    """A recipe's run, for logs.

    Attributes:
        folder: Folder of the run.
        settings: The recipe's values, by dotted path.
        files: Returns the files in the folder that are attached when the run ends.
    """

    folder: Path
    settings: Mapping[str, Any]
    files: Callable[[], Iterable[Path]]


class RunLog(Callback):
    """Base class of logs that pass a run to another program.

    The numbers of an update are written after `fit` has read them: nothing waits for the device before `fit` ends.

    Args:
        updates: Also write the loss, the learning rate and (with `clip_norm`) the gradient's norm of each update.

    Attributes:
        recipe_run: Set by a recipe. The log then stays open after `fit`, for the final scores, until `close`.
    """

    writes = True

    def __init__(self, updates: bool) -> None:
        self.updates = updates
        self.recipe_run: Optional[RecipeRun] = None
        self._pending: Deque[Tuple[Update, float]] = deque()
        self._open = False
        self._error: Optional[BaseException] = None
        self._reached = (0, 0)

    def begin(self, state: FitState, settings: Mapping[str, Any]) -> None:
        """Begin or continue the run."""
        raise NotImplementedError

    def write(self, rows: List[Numbers], *, of_updates: bool) -> None:
        """Write numbers of updates or of epochs."""
        raise NotImplementedError

    def attach(self, file: Path, folder: Path) -> None:
        """Attach a file in the folder of a recipe's run."""
        raise NotImplementedError

    def end(self, error: Optional[BaseException]) -> None:
        """End the run."""
        raise NotImplementedError

    def on_fit_begin(self, state: FitState) -> None:
        self._pending.clear()
        self._error, self._reached = None, (state.epoch - 1, state.updates)
        settings = settings_of_fit(state) if self.recipe_run is None else self.recipe_run.settings
        self.begin(state, {name: value for name, value in settings.items() if value is not None})
        self._open = True

    def on_update(self, state: FitState, update: Update) -> None:
        if self.updates:
            self._pending.append((update, float(state.trainer.learning_rate)))
            self._write_settled()

    def _write_settled(self) -> None:
        rows = []
        while self._pending and self._pending[0][0].settled:
            update, rate = self._pending.popleft()
            row = {"update/loss": update.loss, "update/learning_rate": rate}
            if update.grad_norm is not None:
                row["update/grad_norm"] = update.grad_norm
            rows.append((update.step, row))
        if rows:
            self.write(rows, of_updates=True)

    def on_epoch(self, state: FitState, row: Row) -> None:
        self._reached = (row["epoch"], row["updates"])
        self._write_settled()
        self._write_row({name: value for name, value in row.items() if name != "epoch"})

    def _write_row(self, row: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, (int, float))}
        self.write([(self._reached[0], numbers)], of_updates=False)

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        if not self._open:
            return
        self._error = error
        # an update that failed on the device cannot be read, nor can the updates after it
        with suppress(mx.MXNetError, MemoryError):
            for update, _ in self._pending:
                settle([update])
        self._write_settled()
        # a recipe then writes its scores; after SIGTERM the process ends with `fit`
        if self.recipe_run is None or not (error is None or isinstance(error, KeyboardInterrupt)):
            self.close()

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        """Write the final scores of a recipe's run, by name."""
        if self._open:
            self._write_row(scores)

    def close(self, error: Optional[BaseException] = None) -> None:
        """Attach the files of a recipe's run, and end the run; a second call does nothing.

        Args:
            error: The exception that ended the run after `fit`, or None.
        """
        if not self._open:
            return
        self._open = False
        try:
            for file in () if self.recipe_run is None else self.recipe_run.files():
                self.attach(file, self.recipe_run.folder)  # type: ignore[union-attr]
        finally:
            self.end(self._error or error)


def was_stopped(error: Optional[BaseException]) -> bool:
    """Whether a signal stopped the training, so that it can be resumed."""
    return isinstance(error, (KeyboardInterrupt, Terminated))


def settings_of_fit(state: FitState) -> Dict[str, Any]:
    """The settings of `fit`, for a log without a recipe."""
    return {
        "net": type(state.net).__name__,
        "optimizer": type(state.trainer.optimizer).__name__.lower(),
        **{"learning_rate" if name == "lr" else name: value for name, value in (state.made_with or {}).items()},
        "length": state.length,
        "batch_size": getattr(state.data, "batch_size", None),
        **state.options.settings(),
    }


@contextmanager
def closed_logs() -> Iterator[List[RunLog]]:
    """Yield an empty list; at the end, close the logs that it contains, also after an error."""
    logs: List[RunLog] = []
    with ExitStack() as ends:
        try:
            yield logs
        except BaseException as error:
            for log in logs:
                ends.callback(log.close, error)
            raise
        for log in logs:
            ends.callback(log.close)
