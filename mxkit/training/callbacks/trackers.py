"""Logs of a run for Weights & Biases and for MLflow, which continue under the same id after a resume."""

from contextlib import contextmanager
import os
from pathlib import Path
import time
from typing import Any, Dict, Iterator, List, Literal, Mapping, Optional, Union
import warnings

from mxkit.core.arguments import require
from mxkit.training.callbacks.run_log import Numbers, RunLog, was_stopped
from mxkit.training.state import FitState

# MLflow's limits: metrics and parameters in one call, letters of a value.
_METRICS, _PARAMETERS, _LETTERS = 1000, 100, 500


class _Tracker(RunLog):
    """A log whose run has an id, which is saved in checkpoints.

    Attributes:
        id: Id of the run, once it has begun.
    """

    id: Optional[str] = None
    _resumed: Optional[str] = None

    def on_fit_begin(self, state: FitState) -> None:
        self.id, self._resumed = self._resumed, None  # the next `fit` with this object is another run
        super().on_fit_begin(state)

    def state_dict(self) -> Dict[str, Any]:
        return {"id": self.id}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._resumed = state["id"]


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
            raise ValueError(
                f"WandbLog: the run {wandb.run.id} of W&B is open in this process, and wandb.init would log to it. "
                "Call wandb.finish() before fit"
            )
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
        parameters = [
            require("mlflow.entities", "mlflow").Param(name, str(value)[:_LETTERS]) for name, value in settings.items()
        ]
        for start in range(0, len(parameters), _PARAMETERS):
            client.log_batch(run, params=parameters[start : start + _PARAMETERS])

    def _experiment_id(self) -> str:
        known = self._client.get_experiment_by_name(self.experiment)
        if known is None:
            try:
                return str(self._client.create_experiment(self.experiment))
            except require("mlflow.exceptions", "mlflow").MlflowException:
                known = self._client.get_experiment_by_name(self.experiment)  # another process may have just made it
                if known is None:
                    raise
        return str(known.experiment_id)

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
