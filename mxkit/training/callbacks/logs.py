"""Logs of a run: a CSV file, and TensorBoard, W&B and MLflow, which get numbers after `fit` has read them."""

from collections import deque
from contextlib import ExitStack, contextmanager, suppress
import csv
import os
from pathlib import Path
import time
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Literal, Mapping, NamedTuple, Optional, Union
import warnings

from mxkit.core.arguments import require
from mxkit.core.arrays import to_host
from mxkit.core.blocks import parameters_by_path
from mxkit.core.replicas import values_of
from mxkit.errors import DataError
from mxkit.plots.plotting import new_figure
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import History, Row
from mxkit.training.ledger import Update, settle
from mxkit.training.signals import Terminated
from mxkit.training.state import FitState
import mxnet as mx
import numpy as np


class CSVLog(Callback):
    """Write the history to a CSV file after each epoch, atomically: other programs never see half a file.

    Args:
        path: The file. `fit` makes its directory. A column that appears later leaves the rows before it empty.
        append: Keep the rows of an existing file and write below them, like a second run's after a first's. False
            replaces an existing file after the first epoch. A resumed run continues its own rows in both cases.

    Raises:
        DataError: When `fit` begins: with `append`, the file is not a CSV file with a line of names.
        OSError: The file cannot be written.

    >>> log = CSVLog("runs/lenet.csv")
    """

    writes = True

    def __init__(self, path: Union[str, Path], *, append: bool = False) -> None:
        self.path = Path(path)
        self.append = append
        self._earlier: List[Dict[str, str]] = []
        self._earlier_rows = 0

    def on_fit_begin(self, state: FitState) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._earlier = self._read() if self.append and self.path.exists() else []
        if self.resumed:
            del self._earlier[self._earlier_rows :]  # the resumed run's own rows, which its history holds

    def _read(self) -> List[Dict[str, str]]:
        with self.path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows, names = list(reader), list(reader.fieldnames or [])
        # DictReader stores cells without a name under the key None, and None for missing cells
        if any(None in row or None in row.values() for row in rows) or len(set(names)) < len(names):
            wanted = "expected a CSV file with a line of names and as many cells in each row"
            raise DataError(f"CSVLog: nothing can be appended to {self.path}: {wanted}. Write to another path")
        return rows

    def on_epoch(self, state: FitState, row: Row) -> None:
        History([*self._earlier, *state.history]).to_csv(self.path)

    def state_dict(self) -> Dict[str, Any]:
        return {"earlier_rows": len(self._earlier)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._earlier_rows = state["earlier_rows"]


class Numbers(NamedTuple):
    """Numbers by name, at an update or an epoch."""

    step: int
    values: Dict[str, float]


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
        self._pending: Deque[Any] = deque()
        self._open = False
        self._error: Optional[BaseException] = None
        self._reached = (0, 0)

    def begin(self, state: FitState, settings: Mapping[str, Any]) -> None:
        """Begin or continue the run."""

    def write(self, rows: List[Numbers], *, of_updates: bool) -> None:
        """Write numbers of updates or of epochs."""

    def attach(self, file: Path, folder: Path) -> None:
        """Attach a file in the folder of a recipe's run."""

    def end(self, error: Optional[BaseException]) -> None:
        """End the run."""

    def on_fit_begin(self, state: FitState) -> None:
        self._pending.clear()
        self._error, self._reached = None, (state.epoch - 1, state.updates)
        settings = settings_of_fit(state) if self.recipe_run is None else self.recipe_run.settings
        self.begin(state, {name: value for name, value in settings.items() if value is not None})
        self._open = True

    def on_update(self, state: FitState, update: Update) -> None:
        if self.updates:
            self._pending.append(update)
            self._write_settled()

    def _write_settled(self) -> None:
        rows = []
        while self._pending and self._pending[0].settled:
            update = self._pending.popleft()
            row = {"update/loss": update.loss, "update/learning_rate": update.learning_rate}
            if update.grad_norm is not None:
                row["update/grad_norm"] = update.grad_norm
            rows.append(Numbers(update.step, row))
        if rows:
            self.write(rows, of_updates=True)

    def on_epoch(self, state: FitState, row: Row) -> None:
        self._reached = (row["epoch"], row["updates"])
        self._write_settled()
        self._write_row({name: value for name, value in row.items() if name != "epoch"})

    def _write_row(self, row: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, (int, float))}
        self.write([Numbers(self._reached[0], numbers)], of_updates=False)

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        if not self._open:
            return
        self._error = error
        # an update that failed on the device cannot be read, nor can the updates after it
        with suppress(mx.MXNetError, MemoryError):
            for update in self._pending:
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
    error: Optional[BaseException] = None
    try:
        yield logs
    except BaseException as caught:
        error = caught
        raise
    finally:
        with ExitStack() as ends:
            for log in logs:
                ends.callback(log.close, error)


# Files of a run that TensorBoard shows as text, with their languages.
_TEXTS = {"recipe.yaml": "yaml", "environment.json": "json"}


class TensorBoardLog(RunLog):
    """Write a run for TensorBoard: the history over epochs, the updates, settings, figures and histograms.

    It needs the package tensorboardX. The numbers of updates are in the folder `updates` inside `folder`, because they
    have another axis. A confusion matrix among the metrics is drawn after each epoch. A recipe adds its text, its
    environment and the final scores. A resumed run continues in the same folder, and hides the numbers that a killed
    run wrote after its checkpoint.

    Args:
        folder: Folder of one run; `fit` makes it.
        updates: Also write the loss, the learning rate and (with `clip_norm`) the gradient's norm of each update, once
            `fit` has read them.
        histograms: Write the distribution of each parameter after each epoch, for which it is copied to the host.
        figures: Functions of the state of `fit` that return a matplotlib figure, by name; called after each epoch.

    Raises:
        ImportError: When `fit` begins: tensorboardX is not installed.

    >>> log = TensorBoardLog("runs/lenet", figures={"filters": lambda state: mxkit.plots.plot_filters(state.net, "0")})
    """

    def __init__(
        self,
        folder: Union[str, Path],
        *,
        updates: bool = True,
        histograms: bool = False,
        figures: Optional[Mapping[str, Callable[[FitState], Any]]] = None,
    ) -> None:
        super().__init__(updates)
        self.folder, self.histograms, self.figures = Path(folder), histograms, dict(figures or {})
        self._writer: Any = None
        self._of_updates: Any = None
        self._session_end: Any = None

    def begin(self, state: FitState, settings: Mapping[str, Any]) -> None:
        summary = require("tensorboardX.summary", "tensorboard")
        writer = require("tensorboardX", "tensorboard").SummaryWriter
        # a unique name: tensorboardX would overwrite the file of a run that began in the same second
        suffix = f".{state.updates:08}.{time.time_ns() % 10**9:09}"
        epoch = state.epoch if state.epoch > 1 else None
        self._writer = writer(logdir=str(self.folder), purge_step=epoch, filename_suffix=suffix)
        if self.updates:
            step = state.updates + 1 if state.updates else None
            self._of_updates = writer(logdir=str(self.folder / "updates"), purge_step=step, filename_suffix=suffix)
        scalars = {name: 0.0 for name in state.columns if name.startswith(("train_", "valid_"))}
        plain = {name: one if isinstance(one, (bool, int, float)) else str(one) for name, one in settings.items()}
        experiment, session, self._session_end = summary.hparams(plain, scalars)
        for part in (experiment, session):
            self._writer.file_writer.add_summary(part)

    def write(self, rows: List[Numbers], *, of_updates: bool) -> None:
        writer = self._of_updates if of_updates else self._writer
        for step, numbers in rows:
            for name, value in numbers.items():
                writer.add_scalar(name, value, step)

    def on_epoch(self, state: FitState, row: Row) -> None:
        super().on_epoch(state, row)
        epoch = row["epoch"]
        for path, parameter in parameters_by_path(state.net).items() if self.histograms else ():
            for array in (values_of(parameter) or ())[:1]:
                values = np.asarray(to_host(array), dtype="float64")
                if np.isfinite(values).any():
                    self._writer.add_histogram(path.replace(".", "/"), values[np.isfinite(values)], epoch)
        for name, value in row.items():
            if np.ndim(value) == 2:
                self._writer.add_figure(name, _matrix(value), epoch)
        for name, function in self.figures.items():
            self._writer.add_figure(name, function(state), epoch)
        for writer in self._writers():
            writer.flush()

    def _writers(self) -> List[Any]:
        return [one for one in (self._writer, self._of_updates) if one is not None]

    def attach(self, file: Path, folder: Path) -> None:
        if file.name in _TEXTS and file.parent == folder:
            text = file.read_text(encoding="utf-8")
            self._writer.add_text(file.name, f"```{_TEXTS[file.name]}\n{text}\n```", self._reached[0])

    def end(self, error: Optional[BaseException]) -> None:
        if error is None:
            self._writer.file_writer.add_summary(self._session_end)
        for writer in self._writers():
            writer.close()
        self._writer = self._of_updates = None


def _matrix(values: Any) -> Any:
    figure = new_figure()
    axes = figure.subplots()
    shown = axes.imshow(np.asarray(values, dtype="float64"), cmap="Blues")
    axes.set(xlabel="predicted", ylabel="true")
    figure.colorbar(shown)
    return figure


# MLflow's limits: metrics and parameters in one call, letters of a value.
_METRICS, _PARAMETERS, _LETTERS = 1000, 100, 500


class _Tracker(RunLog):
    """A log whose run has an id, which is saved in checkpoints.

    Attributes:
        id: Id of the run, once it has begun.
    """

    id: Optional[str] = None

    def on_fit_begin(self, state: FitState) -> None:
        if not self.resumed:
            self.id = None
        super().on_fit_begin(state)

    def state_dict(self) -> Dict[str, Any]:
        return {"id": self.id}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.id = state["id"]


class WandbLog(_Tracker):
    """Log a run to Weights & Biases: the history, the updates, the settings; the step is the number of the update.

    It needs the package wandb. A recipe attaches its folder's files and the best checkpoint. A run that is resumed from
    a checkpoint keeps its `id`. For other settings use W&B's own variables, like WANDB_ENTITY.

    Args:
        project: Project of the run.
        run_name: Name of the run; None is the folder's name for a recipe, else W&B chooses.
        mode: "online"; "offline" writes files for `wandb sync` and contacts no server; "disabled" does nothing. None is
            WANDB_MODE, or "online".
        folder: Where W&B makes its folder `wandb`. None is the run's folder for a recipe, else the current folder.
        updates: Also log the loss, the learning rate and (with `clip_norm`) the gradient's norm of each update, once
            `fit` has read them.

    Raises:
        ImportError: When `fit` begins: wandb is not installed.
        ValueError: When `fit` begins: another run of W&B is open in this process.
        wandb.Error: When `fit` begins: the server does not accept the run.

    >>> log = WandbLog("digits", mode="offline", folder="runs")
    """

    def __init__(
        self,
        project: str,
        *,
        run_name: Optional[str] = None,
        mode: Optional[Literal["online", "offline", "disabled"]] = None,
        folder: Union[None, str, Path] = None,
        updates: bool = True,
    ) -> None:
        super().__init__(updates)
        self.project, self.run_name, self.mode, self.folder = project, run_name, mode, folder
        self._run: Any = None

    def begin(self, state: FitState, settings: Mapping[str, Any]) -> None:
        if (self.mode or os.environ.get("WANDB_MODE")) == "offline":
            # otherwise wandb contacts a server to report its own use; it reads the variable when it is imported
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = require("wandb", "wandb")
        if wandb.run is not None:
            text = f"the run {wandb.run.id} of W&B is open in this process, and wandb.init would log to it"
            raise ValueError(f"WandbLog: {text}. Call wandb.finish() before fit")
        of_recipe = None if self.recipe_run is None else self.recipe_run.folder
        folder = self.folder or of_recipe
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)  # wandb replaces a missing folder by another one
        self._run = wandb.init(
            project=self.project,
            name=self.run_name or (of_recipe and of_recipe.name),
            mode=self.mode,
            dir=None if folder is None else str(folder),
            config=dict(settings),
            allow_val_change=True,
            id=self.id,
            resume="allow" if self.id else None,
        )
        self.id = self._run.id

    def write(self, rows: List[Numbers], *, of_updates: bool) -> None:
        for step, numbers in rows:
            more = {} if of_updates else {"epoch": step}
            # a resumed run repeats the updates after its checkpoint; W&B ignores steps that it has
            self._run.log({**more, **numbers}, step=step if of_updates else self._reached[1])

    def attach(self, file: Path, folder: Path) -> None:
        self._run.save(str(file.absolute()), base_path=str(folder.absolute()), policy="now")

    def end(self, error: Optional[BaseException]) -> None:
        run, self._run = self._run, None
        run.finish(exit_code=0 if error is None else 130 if was_stopped(error) else 1)


class MLflowLog(_Tracker):
    """Log a run to MLflow: the history over epochs, the updates as `update/loss` and so on, the settings.

    It needs the package mlflow. A recipe attaches its folder's files and the best checkpoint. A run that is resumed
    from a checkpoint keeps its `id`, and no step is written twice. If the store fails during the training, its numbers
    are lost with a warning, and the training continues.

    Args:
        experiment: Name of the experiment, which is made if it does not exist.
        run_name: Name of the run; None is the folder's name for a recipe, else MLflow chooses.
        tracking_uri: The store, like "sqlite:///mlflow.db" or "http://localhost:5000"; None is MLFLOW_TRACKING_URI, or
            MLflow's default.
        updates: Also log the loss, the learning rate and (with `clip_norm`) the gradient's norm of each update, once
            `fit` has read them.

    Raises:
        ImportError: When `fit` begins: mlflow is not installed.
        mlflow.exceptions.MlflowException: When `fit` begins: the store cannot be used.

    >>> log = MLflowLog("digits", tracking_uri="sqlite:///mlflow.db")
    """

    def __init__(
        self,
        experiment: str,
        *,
        run_name: Optional[str] = None,
        tracking_uri: Optional[str] = None,
        updates: bool = True,
    ) -> None:
        super().__init__(updates)
        self.experiment, self.run_name, self.tracking_uri = experiment, run_name, tracking_uri
        self._client: Any = None
        self._written: Dict[bool, int] = {}

    def begin(self, state: FitState, settings: Mapping[str, Any]) -> None:
        client = self._client = require("mlflow", "mlflow").MlflowClient(tracking_uri=self.tracking_uri)
        self._written = {True: -1, False: -1}
        if self.id is not None:
            client.update_run(self.id, status="RUNNING")
            for of_updates, key in ((True, "update/loss"), (False, "train_loss")):
                steps = [one.step for one in client.get_metric_history(self.id, key)]
                self._written[of_updates] = max(steps, default=-1)
            return
        name = self.run_name or (None if self.recipe_run is None else self.recipe_run.folder.name)
        self.id = run = str(client.create_run(self._experiment_id(), run_name=name).info.run_id)
        parameter = require("mlflow.entities", "mlflow").Param
        parameters = [parameter(name, str(value)[:_LETTERS]) for name, value in settings.items()]
        for start in range(0, len(parameters), _PARAMETERS):
            client.log_batch(run, params=parameters[start : start + _PARAMETERS])

    def _experiment_id(self) -> str:
        known = self._client.get_experiment_by_name(self.experiment)
        return str(self._client.create_experiment(self.experiment) if known is None else known.experiment_id)

    def write(self, rows: List[Numbers], *, of_updates: bool) -> None:
        metric, now = require("mlflow.entities", "mlflow").Metric, int(time.time() * 1000)
        metrics = [
            metric(name, value, now, step)
            for step, numbers in rows
            if step > self._written[of_updates]
            for name, value in numbers.items()
        ]
        for start in range(0, len(metrics), _METRICS):
            with self._failures_warn():
                self._client.log_batch(self.id, metrics=metrics[start : start + _METRICS])

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        self._written[False] = -1  # a resumed run has other scores at the same epoch
        super().write_scores(scores)

    def attach(self, file: Path, folder: Path) -> None:
        inside = file.relative_to(folder).parent.as_posix()
        with self._failures_warn():
            self._client.log_artifact(self.id, str(file), None if inside == "." else inside)

    def end(self, error: Optional[BaseException]) -> None:
        status = "FINISHED" if error is None else "KILLED" if was_stopped(error) else "FAILED"
        with self._failures_warn():
            self._client.set_terminated(self.id, status)

    @contextmanager
    def _failures_warn(self) -> Iterator[None]:
        try:
            yield
        except (require("mlflow.exceptions", "mlflow").MlflowException, OSError) as error:
            warnings.warn(
                f"MLflowLog: the training continues, but MLflow refused its numbers or files: {error}", stacklevel=2
            )
