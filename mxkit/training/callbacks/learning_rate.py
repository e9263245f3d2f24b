"""The learning rate during training: from a schedule, or from a measured column."""

import math
from typing import Any, Dict, Literal, Mapping, Optional
import warnings
from weakref import WeakKeyDictionary

from mxkit.core.arguments import whole_number
from mxkit.errors import CheckpointWarning, TrapWarning
from mxkit.nets.settings import NEEDS_RATE, refuse_fixed_rate
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Monitor, Row
from mxkit.training.ledger import Update
from mxkit.training.schedules import TAKES, Schedule, get_schedule
from mxkit.training.state import FitState

# Below this share of the schedule's base rate, a Trainer changes next to nothing.
_NEXT_TO_NOTHING = 1e-3

# Base rates of Trainers whose rate a schedule changed in an earlier fit.
_BASES: "WeakKeyDictionary[Any, float]" = WeakKeyDictionary()


class LearningRate(Callback):
    """Set the learning rate of each update by a schedule: one step per update, also with accumulation.

    When `fit` ends, the rate stays; a later fit warns if it begins with next to nothing of it. A schedule without a
    base rate takes the optimizer's rate when the first `fit` of this object begins, also for later ones; a schedule
    without an end takes the length of the fit.

    Args:
        schedule: A `Schedule`, a name, or a name with arguments, like `("cosine", {"warmup": "5 epochs"})`.
        updates_per_epoch: Needed if the schedule counts epochs and the data has no length.

    Raises:
        UnknownNameError: No schedule has this name.
        ValueError: When `fit` begins: the optimizer has a scheduler of its own or ignores rates, the Trainer's rate is
            needed and is 0, or an epoch's length is needed.

    >>> net = mxkit.models.softmax_regression(); mxkit.initialize(net)
    >>> data = [(np.zeros((4, 5)), np.zeros(4))] * 3
    >>> falling = LearningRate(("step", {"base": 0.5, "every": "1 epoch"}))
    >>> history = mxkit.fit(
    ...     net, data, loss="softmax_ce", trainer="sgd", epochs=2, callbacks=[falling], progress=False
    ... )
    >>> [round(row["learning_rate"], 3) for row in history]
    [0.5, 0.05]
    """

    def __init__(self, schedule: Any, *, updates_per_epoch: Optional[int] = None) -> None:
        self.schedule: Schedule = get_schedule(schedule)
        self.updates_per_epoch = (
            None if updates_per_epoch is None else whole_number(updates_per_epoch, "updates_per_epoch")
        )
        self._base = self.schedule.base
        self._running: Optional[Schedule] = None
        self._stopped: Mapping[str, str] = {}  # the schedule of the run that is resumed

    def on_fit_begin(self, state: FitState) -> None:
        """Refuse an optimizer whose rate cannot be set; set the rate of the first update."""
        trainer = state.trainer
        refuse_fixed_rate(trainer)
        if self._base is None:
            warn_of_rate_0(trainer)
            rate = float(trainer.learning_rate)
            if rate <= 0:
                raise ValueError(
                    f"schedule {self.schedule.name!r} has no base rate, and the Trainer's learning rate is {rate:g}. "
                    'Pass LearningRate(("cosine", {"base": 0.1})), or call trainer.set_learning_rate(0.1) before fit'
                )
            self._base = rate
        _BASES.pop(trainer, None)
        self._running = self.schedule.completed(self._base, state.length)
        self._warn_of_another_schedule(state)
        ends_at_0 = "total" in TAKES[self.schedule.name][1] and not self.schedule.final
        if ends_at_0 and isinstance(trainer.optimizer, NEEDS_RATE):
            text = f"ends at a rate of 0, with which {type(trainer.optimizer).__name__} cannot step"
            raise ValueError(f"schedule {self.schedule.name!r} {text}. Pass final=1e-6, or another small number")
        self._set_rate(state)

    def on_update(self, state: FitState, update: Update) -> None:
        """Set the rate of the next update."""
        self._set_rate(state)

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        """Keep the rate."""
        if self._running is not None and self._running.base is not None:
            _BASES[state.trainer] = self._running.base

    def state_dict(self) -> Dict[str, Any]:
        """The base rate, which does not follow from the changed rate of a resumed optimizer; and the schedule."""
        return {"base": self._base, "schedule": {} if self._running is None else self._running.settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the base rate; the rest follows from the number of updates."""
        self._base = state["base"] if self.schedule.base is None else self.schedule.base
        self._stopped = state.get("schedule", {})

    def _warn_of_another_schedule(self, state: FitState) -> None:
        """Warn if a resumed run goes to other rates than the stopped run had before it."""
        before, self._stopped = self._stopped, {}
        now = {} if self._running is None else self._running.settings()
        differ = [
            f"{name} was {value}, is {now[name]}" for name, value in before.items() if now.get(name, value) != value
        ]
        if differ and not state.done:
            text = (
                f"the learning rate's schedule is not the stopped run's: {'; '.join(differ)}. The {state.updates} "
                "updates so far had its rates. For the same rates pass the same schedule, with its total="
            )
            warnings.warn(text, CheckpointWarning, stacklevel=5)

    def _set_rate(self, state: FitState) -> None:
        if self._running is not None:
            per_epoch = self.updates_per_epoch or state.updates_per_epoch
            state.trainer.set_learning_rate(self._running.rate(state.updates, per_epoch))


def warn_of_rate_0(trainer: Any, resumed: bool = False) -> None:
    """Warn if a schedule of an earlier fit left the Trainer at a rate of 0, or near it: it would train nothing.

    Args:
        trainer: The Trainer of a fit that begins. A rate of 0 that the user set gives no warning.
        resumed: True if the rate comes from a checkpoint.
    """
    rate, base = float(trainer.learning_rate), _BASES.get(trainer)
    # MXNet's schedules begin a warm-up with 0
    scheduled = trainer.optimizer.lr_scheduler is not None and trainer.optimizer.num_update > 0
    low = rate == 0 if base is None else rate < _NEXT_TO_NOTHING * base
    if not low or (base is None and not scheduled and not resumed):
        return
    reason = "" if base is None else f", left by the schedule of an earlier fit, which began with {base:g}"
    text = f"the Trainer's learning rate is {rate:g}{reason}: this fit changes next to nothing. Pass another Trainer"
    warnings.warn(f"{text}, or call trainer.set_learning_rate(...) before", TrapWarning, stacklevel=3)


class Plateau(Callback):
    """Multiply the learning rate by `factor` when a column of the history does not improve.

    When `fit` ends, the rate stays. It is refused beside `LearningRate`, which sets the rate of each update.

    Args:
        monitor: A column, like "valid_loss".
        mode: "min" if smaller is better, "max" if larger is. None asks the column's metric, in `fit`; a loss is "min".
            It is never guessed (T23).
        factor: Above 0, below 1.
        patience: Number of epochs in a row without a better value before a reduction, at least 1. The count starts
            again after each reduction.
        min_rate: The lowest rate.
        min_delta: A value must be better by more than this to count.

    Raises:
        ValueError: An argument is out of range; or when `fit` begins, as for `LearningRate`.
        UnknownNameError: When `fit` begins: the history will have no such column.
    """

    def __init__(
        self,
        monitor: str,
        mode: Optional[Literal["min", "max"]] = None,
        *,
        factor: float = 0.1,
        patience: int = 10,
        min_rate: float = 0.0,
        min_delta: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise ValueError(f"factor: expected a number above 0 and below 1; received {factor!r:.100}")
        if not 0 <= min_rate < math.inf:
            raise ValueError(f"min_rate: expected a number, at least 0; received {min_rate!r:.100}")
        self.factor, self.min_rate = factor, min_rate
        self.patience = whole_number(patience, "patience")
        self.waited = 0
        self._monitor = Monitor(monitor, mode, min_delta)

    def on_fit_begin(self, state: FitState) -> None:
        """Refuse an optimizer whose rate cannot be set, a schedule, and a column that the history will not have."""
        refuse_fixed_rate(state.trainer)
        if any(isinstance(one, LearningRate) for one in state.callbacks):
            raise ValueError("Plateau has no effect beside LearningRate, which sets each update's rate: leave one out")
        state.check_monitor(self._monitor, self)

    def on_epoch(self, state: FitState, row: Row) -> None:
        """Reduce the rate if the column has not improved for `patience` epochs."""
        if self._monitor.update(row):
            self.waited = 0
            return
        self.waited += row.get(self._monitor.column) is not None  # None: not measured in this epoch
        if self.waited >= self.patience:
            self.waited = 0
            rate = state.trainer.learning_rate
            if rate > self.min_rate:
                state.trainer.set_learning_rate(max(rate * self.factor, self.min_rate))

    def state_dict(self) -> Dict[str, Any]:
        """The best value and the epochs since; the checkpoint of the optimizer has the rate."""
        return {"monitor": self._monitor.state_dict(), "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._monitor.load_state_dict(state["monitor"])
        self.waited = state["waited"]
