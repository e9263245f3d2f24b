"""Sweeps: runs of one recipe with values that Optuna chooses from ranges, in any number of processes."""

from contextlib import ExitStack, contextmanager, suppress
import fcntl
from itertools import accumulate
import math
import os
from pathlib import Path
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import require
from mxkit.errors import MxkitError, NonFiniteError, RecipeError
from mxkit.recipe.building import has_samples
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.folder import SWEEP, best_row
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import new_run, pin_weights, stopped_run, train_run
from mxkit.recipe.schema import Name, Recipe, changes, differences
from mxkit.storage.hub import is_hub_address
from mxkit.training.callbacks.stopping import OptunaPruning
from mxkit.training.state import FitState
import numpy as np

FORMS = (
    "0.1..0.5 (a number between), log:1e-4..1e-1 (above 0, evenly over orders of magnitude), 16..256 (a "
    "whole number; log:16..256), sgd,adam (one of these). Quote a value that contains a comma: 'devices=\"gpu:0,2\"'"
)
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")


class Range(NamedTuple):
    """The values that a sweep tries for one key.

    Attributes:
        key: Dotted path in the recipe.
        text: The range as the user wrote it.
        low: Lowest number; None for choices.
        high: Highest number; None for choices.
        log: Whether numbers are drawn evenly over orders of magnitude.
        choices: Values as YAML; empty for numbers.
    """

    key: str
    text: str
    low: Any = None
    high: Any = None
    log: bool = False
    choices: Tuple[str, ...] = ()

    @property
    def tried(self) -> Tuple[str, ...]:
        """Both ends, or all choices, as YAML."""
        return self.choices or (repr(self.low), repr(self.high))

    def suggest(self, trial: Any) -> str:
        """The value of an Optuna trial as YAML; Optuna chooses it unless the trial has one."""
        if self.choices:
            return str(trial.suggest_categorical(self.key, self.choices))
        suggest = trial.suggest_int if isinstance(self.low, int) else trial.suggest_float
        return repr(suggest(self.key, self.low, self.high, log=self.log))


def read_ranges(settings: Sequence[str]) -> Tuple[List[str], List[Range]]:
    """Split the settings of a sweep into those with one value and those with a range.

    Raises:
        RecipeError: A range has a wrong form, a key has two ranges, or there is no range.

    >>> read_ranges(["epochs=2", "optimizer.name=sgd,adam", "optimizer.learning_rate=log:1e-4..1e-1"])[1][0].choices
    ('sgd', 'adam')
    >>> one = ["model.hidden=[16, 8]", "data.root=../photos", "devices='gpu:0,2'", "model={name: mlp, hidden: [1]}"]
    >>> fixed, ranges = read_ranges([*one, "model.hidden=[16, 8],[32]"])
    >>> fixed == one, ranges[0].choices
    (True, ('[16, 8]', '[32]'))
    """
    fixed: List[str] = []
    ranges: Dict[str, Range] = {}
    for setting in settings:
        given = _read(setting)
        if given is None:
            fixed.append(setting)
        elif ranges.setdefault(given.key, given) is not given:
            raise RecipeError(f"--set {setting!r}: {given.key} has a range already; give it once")
    if not ranges:
        raise RecipeError(f"nothing to try: no --set has a range; received {list(settings)}; expected KEY={FORMS}")
    return fixed, list(ranges.values())


def _read(setting: str) -> Optional[Range]:
    key, text = (part.strip() for part in setting.partition("=")[::2])
    match, choices = _RANGE.fullmatch(text), tuple(_split(text))
    if match:
        log, ends = bool(match[1]), match.group(2, 3)
        whole = all(re.fullmatch(r"[-+]?\d+", end) for end in ends)
        low, high = (int(end) if whole else float(end) for end in ends)
        given, is_right = Range(key, text, low, high, log), low < high and (low > 0 or not log)
    elif len(choices) < 2:
        return None
    else:
        given, is_right = Range(key, text, choices=choices), "" not in choices and len(set(choices)) == len(choices)
    if not is_right:
        raise RecipeError(f"--set {setting!r}: {key}: this is no range; received {text!r}; expected {FORMS}")
    return given


def _split(text: str) -> List[str]:
    """Split at commas outside brackets and quotes.

    >>> _split("[16, 8],[32]"), _split("'a,b'"), _split("don't, do")
    (['[16, 8]', '[32]'], ["'a,b'"], ["don't", 'do'])
    """
    # a quote opens a text only where a value begins
    parts = re.findall(r"""(?<![\w.])"[^"]*"|(?<![\w.])'[^']*'|.""", text, re.DOTALL)
    depths = accumulate((one in "[{") - (one in "]}") if len(one) == 1 else 0 for one in parts)
    split = "".join("\0" if one == "," and not depth else one for one, depth in zip(parts, depths))
    return [one.strip() for one in split.split("\0")]


def check_ranges(recipe: str, fixed: Sequence[str], ranges: Sequence[Range]) -> Recipe:
    """Load the recipe with each end of each range.

    Args:
        recipe: As for `load_recipe`.
        fixed: Settings with one value.
        ranges: The ranges.

    Returns:
        The recipe with the first value of each range.

    Raises:
        RecipeError: The recipe refuses a key or an end of a range.
    """
    first = [f"{one.key}={one.tried[0]}" for one in ranges]
    loaded = []
    for number, one in enumerate(ranges):
        for value in one.tried[1:] if number else one.tried:
            chosen = [*first[:number], f"{one.key}={value}", *first[number + 1 :]]
            try:
                loaded.append(load_recipe(recipe, [*fixed, *chosen]))
            except RecipeError as error:
                raise RecipeError(
                    f"{error}\n  tried for --set {f'{one.key}={one.text}'!r}; a range is {FORMS}"
                ) from error
    return loaded[0]


# Seconds for which a process waits while another process writes.
_WAIT = 120
_STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running?"}


class SweepTrial(NamedTuple):
    """One run of a sweep.

    Attributes:
        name: Name of its folder.
        state: "finished"; "pruned"; "failed"; "diverged" if the loss or a weight was not finite, or the column never
            was; or "running?" for a trial that is training or was killed.
        value: Best value of the sweep's column; the last value if the trial ended early; None without a value.
        epoch: The epoch of the best value, or None.
        chosen: The values of the keys: numbers, or choices as YAML.
        reason: The reason why the trial did not finish, or an empty string.
    """

    name: str
    state: str
    value: Optional[float]
    epoch: Optional[int]
    chosen: Dict[str, Any]
    reason: str


class Sweep:
    """A sweep in its folder, open in `with`: `sweep.db` for Optuna, `sweep.lock`, a run's folder for each trial.

    A process locks byte 0 while it chooses a trial, and byte N+1 while it trains trial N; the system releases the locks
    of a process that dies. If Optuna calls a trial running and its lock is free, the trial was killed: the next process
    resumes it.

    Args:
        recipe: A YAML file, or the name of a shipped recipe.
        settings: `KEY=VALUE`, and `KEY=RANGE` at least once.
        output: The folder in which the sweep's folder is made.
        name: Name of the sweep's folder; None means `sweep-<recipe>`. The process joins an existing sweep.
        seed: Seed of the choices; each training has the recipe's seed.
        prune: Whether trials end early if they are worse than the median of earlier trials.

    Attributes:
        folder: The folder.
        column: The column of the history by which trials are compared: the recipe's `keep_best`, else valid_loss.
        mode: "min" or "max".

    Raises:
        RecipeError: The recipe or a range has a mistake, the data has no validation part, or the sweep of this name has
            another recipe or other ranges.
        ImportError: Optuna is not installed.
    """

    def __init__(
        self,
        recipe: str,
        settings: Sequence[str],
        *,
        output: Union[str, Path] = "runs",
        name: Optional[str] = None,
        seed: int = 0,
        prune: bool = False,
    ) -> None:
        self._optuna = require("optuna", "sweep")
        self._recipe, self._seed = recipe, seed
        self._fixed, self._ranges = read_ranges(settings)
        base = check_ranges(recipe, self._fixed, self._ranges)
        self._pinned: List[str] = []
        if is_hub_address(base.model.weights) and not any(one.key.startswith("model.weights") for one in self._ranges):
            base = pin_weights(base)  # all trials begin with the same weights
            self._pinned = [f"model.weights={base.model.weights}"]
        self.column, self.mode = base.checkpoints.keep_best or ("valid_loss", "min")
        if self.column.startswith("valid_") and not has_samples(load_data(base).valid):
            raise RecipeError(
                f"recipe {base.name}: trials are compared by {self.column}, and the data has no validation part; "
                "add one, or set checkpoints.keep_best=[train_loss,min]"
            )
        name = f"sweep-{base.name}" if name is None else name
        if not re.match(Name, name):
            raise RecipeError(f"name of the sweep: expected letters, digits and -_. only; received {name!r}")
        self.folder = Path(output) / name
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            self._locks = opened.enter_context((self.folder / "sweep.lock").open("a+b"))
            with self._choosing():
                self._study = self._open(prune, opened)
                self._join(base)
            self._opened = opened.pop_all()

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *_: Any) -> None:
        self._opened.close()

    def _open(self, prune: bool, opened: ExitStack) -> Any:
        optuna = self._optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        file, waits = (self.folder / SWEEP).absolute(), {"connect_args": {"timeout": _WAIT}}
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}", engine_kwargs=waits)
        opened.callback(storage.engine.dispose)
        opened.callback(storage.remove_session)
        return optuna.create_study(
            storage=storage,
            study_name="sweep",
            direction={"min": "minimize", "max": "maximize"}[self.mode],
            pruner=optuna.pruners.MedianPruner() if prune else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )

    def _join(self, base: Recipe) -> None:
        """Refuse to add trials that cannot be compared with the trials of the sweep."""
        ranges = {one.key: one.text for one in self._ranges}
        known = self._study.user_attrs.get("sweep")
        if known is None:
            self._study.set_user_attr("sweep", {"recipe": base.model_dump(mode="json"), "ranges": ranges})
            return
        changed = changes(known["ranges"], ranges, "no range")
        changed = changed or differences(load_recipe(known["recipe"]), load_recipe(base.model_dump(mode="json")))
        if changed:
            raise RecipeError(
                f"{self.folder} is a sweep with other settings: {'; '.join(changed)}. Repeat its own settings to "
                "continue it, or name the new sweep: --name NAME"
            )

    @contextmanager
    def _choosing(self) -> Iterator[None]:
        fcntl.lockf(self._locks, fcntl.LOCK_EX, 1, 0, os.SEEK_SET)
        try:
            yield
        finally:
            self._release(-1)

    def _take(self, number: int) -> bool:
        with suppress(BlockingIOError, PermissionError):  # POSIX allows both for a lock that is not free
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number + 1, os.SEEK_SET)
            return True
        return False

    def _release(self, number: int) -> None:
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, number + 1, os.SEEK_SET)

    def run(self, trials: int, *, progress: Union[bool, str] = True, notify: Callable[[str], None] = print) -> None:
        """Train until the sweep has enough trials, including pruned and failed trials and those of other processes.

        Args:
            trials: Number of trials.
            progress: As for `fit`.
            notify: Receives a line before each trial, and after each trial that failed.

        Raises:
            KeyboardInterrupt: Ctrl-C; the next `run` resumes the trial.
        """
        for trial in iter(lambda: self._next(trials), None):
            # values that an earlier process chose stay; it may have been killed between two of them
            chosen = [f"{one.key}={one.suggest(trial)}" for one in self._ranges]
            notify(f"trial {trial.number + 1} of {trials}: {', '.join(chosen)}")
            try:
                self._train(trial, chosen, progress, notify)
            finally:
                self._release(trial.number)

    def _next(self, trials: int) -> Any:
        """The trial of a killed process, or a new trial; None if there are enough."""
        with self._choosing():
            known = self._study.get_trials(deepcopy=False)
            for one in known:
                if one.state.name == "RUNNING" and self._take(one.number):
                    # it may have ended in the meantime
                    if self._study.get_trials(deepcopy=False)[one.number].state.name == "RUNNING":
                        self._sample_for(one.number)
                        return self._optuna.trial.Trial(self._study, one._trial_id)
                    self._release(one.number)
            if len(known) >= trials:
                return None
            self._sample_for(len(known))
            trial = self._study.ask()
            self._take(trial.number)
            return trial

    def _sample_for(self, number: int) -> None:
        # each trial has its own seed: processes with the same seed would choose the same values
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)

    def _train(self, trial: Any, chosen: List[str], progress: Union[bool, str], notify: Callable[[str], None]) -> None:
        path, report = self.folder / f"trial-{trial.number:04}", _Report(trial, self.column)
        try:
            if (path / "recipe.yaml").is_file():
                prepared = stopped_run(path)
            else:
                prepared = new_run(
                    self._recipe, overrides=[*self._fixed, *self._pinned, *chosen], output=self.folder, name=path.name
                )
            history = train_run(prepared, progress=progress, callbacks=[report]).history
        except MxkitError as error:  # values that cannot be trained must not end the sweep
            state = "diverged" if isinstance(error, NonFiniteError) else "failed"
            self._end(trial, state, str(error))
            notify(f"trial {trial.number + 1} {state}: {error}")
            return
        stopped, row = history.stopped or "", best_row(history, self.column, self.mode)
        if stopped.startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt
        if report.pruned:
            self._end(trial, "pruned", report.pruned)
        elif row is None:
            self._end(trial, "diverged", stopped or f"{self.column} was never a finite number")
        else:
            trial.set_user_attr("epoch", row["epoch"])
            self._study.tell(trial, row[self.column])

    def _end(self, trial: Any, state: str, reason: str) -> None:
        trial.set_user_attr("reason", reason)
        trial.set_user_attr("state", state)
        # Optuna has no other states: it counts a pruned trial as worse than a finished one, and ignores a failed one
        self._study.tell(trial, state=self._optuna.trial.TrialState["FAIL" if state == "failed" else "PRUNED"])

    @property
    def trials(self) -> List[SweepTrial]:
        """The trials: first the finished ones, from the best to the worst."""
        listed = [self._listed(trial) for trial in self._study.get_trials(deepcopy=False)]
        sign, worst = -1 if self.mode == "max" else 1, math.inf
        ranks = {one.name: worst if one.value is None else sign * one.value for one in listed}
        return sorted(listed, key=lambda one: (one.state != "finished", ranks[one.name]))

    def _listed(self, trial: Any) -> SweepTrial:
        return SweepTrial(
            f"trial-{trial.number:04}",
            trial.user_attrs.get("state", _STATES.get(trial.state.name, trial.state.name)),
            trial.value if trial.value is not None and math.isfinite(trial.value) else None,
            trial.user_attrs.get("epoch"),
            {one.key: trial.params.get(one.key) for one in self._ranges},
            trial.user_attrs.get("reason", ""),
        )

    def plot(self) -> Path:
        """Draw the trials into `sweep.png` in the folder."""
        from mxkit.plots.plotting import plot_sweep

        path = self.folder / "sweep.png"
        logarithmic = [one.key for one in self._ranges if one.log]
        plot_sweep(self.trials, column=self.column, mode=self.mode, logarithmic=logarithmic, path=path)
        return path


class _Report(OptunaPruning):
    """Ends a trial like a run that a callback stopped, so that its folder records the reason."""

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        """Nothing is raised."""
