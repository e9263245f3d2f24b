"""Learning-rate schedules by MXNet's own schedulers; lengths are in epochs or updates."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import Length, is_finite_number, length, split_spec
from mxkit.errors import unknown_name
from mxnet import lr_scheduler

# Defaults of one_cycle: the warm-up's share of the total, and the peak divided by the first rate.
RISE = 0.3
START_DIVISOR = 25

# Required and optional arguments of each schedule. `total` may follow later from the length of a fit.
TAKES: Dict[str, Tuple[Sequence[str], Sequence[str]]] = {
    "constant": ((), ("base", "warmup")),
    "cosine": ((), ("base", "warmup", "total", "final")),
    "multi_step": (("at",), ("base", "warmup", "factor")),
    "one_cycle": ((), ("base", "warmup", "total", "start", "final")),
    "poly": ((), ("base", "warmup", "total", "power", "final")),
    "step": (("every",), ("base", "warmup", "factor", "final")),
}


def _length(value: Any, name: str) -> Length:
    return length(value, name, ("epochs", "updates"), fractions=("epochs",), zero=True)


def updates_of(moment: Length, updates_per_epoch: Optional[int]) -> int:
    """Number of updates of a length, rounded; at least 1 if the length is not 0.

    Raises:
        ValueError: The length is in epochs, and the number of updates per epoch is not known.
    """
    if moment.number and moment.unit == "epochs" and updates_per_epoch is None:
        text = f"the schedule counts epochs ({str(moment)!r}), and the data has no length"
        raise ValueError(f"{text}. Pass updates_per_epoch=..., or count updates: '500 updates'")
    exact = moment.number * (updates_per_epoch or 1) if moment.unit == "epochs" else moment.number
    return max(1, round(exact)) if exact else 0


@dataclass(frozen=True)
class Schedule:
    """A learning rate as a pure function of the number of updates done; made by `schedule`.

    Attributes:
        name: One of `schedule`'s names.
        base: The highest rate; None for the optimizer's own rate.
        total: End of the schedule; None for the end of the fit.
    """

    name: str
    base: Optional[float] = None
    warmup: Optional[Length] = None
    total: Optional[Length] = None
    every: Optional[Length] = None
    at: Tuple[Length, ...] = ()
    factor: float = 0.1
    power: float = 2
    start: Optional[float] = None
    final: float = 0.0
    # last update asked for, and MXNet's scheduler, by the number of updates per epoch
    _schedulers: Dict[Any, Tuple[int, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def completed(self, base: float, total: Optional[str] = None) -> "Schedule":
        """Return the schedule with defaults for the values that it lacks.

        Args:
            base: Its base rate, if it has none.
            total: Its end, if it has none and needs one.
        """
        needs_total = self.total is None and "total" in TAKES[self.name][1] and total is not None
        return replace(
            self,
            base=_rate(base, "base", above=True) if self.base is None else self.base,
            total=_length(total, "total") if needs_total else self.total,
        )

    def settings(self) -> Dict[str, str]:
        """The settings as text, for checkpoints."""
        known = {part.name: getattr(self, part.name) for part in fields(self) if part.repr}
        return {name: ", ".join(map(str, value)) if name == "at" else str(value) for name, value in known.items()}

    def rate(self, updates: int, updates_per_epoch: Optional[int] = None) -> float:
        """Compute the rate of the next update.

        An optimizer with MXNet's scheduler takes the same: the first update is number 1, so that a warm-up does not
        begin with a rate of 0, and the last update of `total` has the final rate.

        Args:
            updates: Updates done, from 0, in any order of calls.
            updates_per_epoch: Needed if the schedule counts epochs.

        Raises:
            ValueError: The base or the total is not known, an epoch's length is needed, the moments of `at` do not
                increase, or the warm-up is longer than the part before the first reduction or the end.
        """
        number = int(updates) + 1
        # MXNet's schedulers change at each call and only move forward (T21): going back needs a new one
        last, scheduler = self._schedulers.get(updates_per_epoch, (0, None))
        if scheduler is None or number < last:
            scheduler = self._build(updates_per_epoch)
        self._schedulers[updates_per_epoch] = (number, scheduler)
        return float(scheduler(number))

    def rates(self, updates: int, updates_per_epoch: Optional[int] = None) -> List[float]:
        """Rates of the first `updates` updates, for a look or a plot."""
        return [self.rate(done, updates_per_epoch) for done in range(updates)]

    def _build(self, updates_per_epoch: Optional[int]) -> Any:
        if self.base is None:
            raise ValueError(
                f"schedule {self.name!r} has no base rate: pass base=..., or let LearningRate take the optimizer's"
            )
        warm = updates_of(self.warmup, updates_per_epoch) if self.warmup else 0
        common = {"base_lr": self.base, "warmup_steps": warm}
        if self.name == "constant":
            return _Constant(**common)
        if self.name == "step":
            every = updates_of(self.every, updates_per_epoch) if self.every else 1
            self._refuse_warmup(warm, every, "the first reduction")
            return lr_scheduler.FactorScheduler(every, self.factor, self.final, **common)
        if self.name == "multi_step":
            steps = [updates_of(moment, updates_per_epoch) for moment in self.at]
            self._refuse_warmup(warm, steps[0], "the first reduction")
            return lr_scheduler.MultiFactorScheduler(steps, self.factor, **common)
        if self.total is None:
            raise ValueError(
                f"schedule {self.name!r} has no end: pass total='90 epochs', or let LearningRate take the fit's"
            )
        total = updates_of(self.total, updates_per_epoch)
        self._refuse_warmup(warm, total - 1, "the end")
        if self.name == "poly":
            curve = lr_scheduler.PolyScheduler(total, pwr=self.power, final_lr=self.final, **common)
        elif self.name == "cosine":
            curve = lr_scheduler.CosineScheduler(total, final_lr=self.final, **common)
        else:
            start = self.base / START_DIVISOR if self.start is None else self.start
            rise = warm or max(1, round(RISE * total))
            return _OneCycle(self.base, start, self.final, rise, total)
        return _Until(total, curve)

    def _refuse_warmup(self, warm: int, end: int, what: str) -> None:
        if warm > max(end, 0):
            text = f"warmup={str(self.warmup)!r} is {warm} updates and does not end before {what}"
            raise ValueError(f"{text} of schedule {self.name!r}, update {max(end, 0)}")


class _Constant(lr_scheduler.LRScheduler):  # type: ignore[misc]
    def __call__(self, num_update: int) -> float:
        return float(self.get_warmup_lr(num_update) if num_update < self.warmup_steps else self.base_lr)


class _Until:
    """A curve that keeps its last rate; MXNet's return the base rate if their first call is past the end (T21)."""

    def __init__(self, total: int, curve: Any) -> None:
        self._total, self._curve = total, curve

    def __call__(self, number: int) -> float:
        return float(self._curve(min(number, self._total)))


class _OneCycle:
    """Half a cosine up to the peak at `rise`, half a cosine down to `final` at `total`."""

    def __init__(self, peak: float, start: float, final: float, rise: int, total: int) -> None:
        self._rise, self._fall = rise, max(1, total - rise)
        self._up = _Until(rise, lr_scheduler.CosineScheduler(rise, start, peak))
        self._down = _Until(self._fall, lr_scheduler.CosineScheduler(self._fall, peak, final))

    def __call__(self, number: int) -> float:
        return self._up(number) if number <= self._rise else self._down(number - self._rise)


def schedule(
    name: str,
    *,
    base: Optional[float] = None,
    warmup: Union[str, int, Length, None] = None,
    total: Union[str, Length, None] = None,
    every: Union[str, Length, None] = None,
    at: Optional[Sequence[Union[str, Length]]] = None,
    factor: Optional[float] = None,
    power: Optional[float] = None,
    start: Optional[float] = None,
    final: Optional[float] = None,
) -> Schedule:
    """Describe a learning-rate schedule; MXNet's own schedulers compute it.

    ```
    constant      base
    step          base, times `factor` after each `every`, never below `final`
    multi_step    base, times `factor` at each moment of `at`
    poly          final + (base - final) * (1 - t / total) ** power
    cosine        final + (base - final) * (1 + cos(pi * t / total)) / 2
    one_cycle     half a cosine from `start` up to base in `warmup`, half a cosine down to `final` at `total`
    ```

    With `warmup`, poly and cosine fall from its end to `total`: t and total count from there. For them update number t,
    from 1, has the rate of t, so the last one has `final`; step and multi_step count the updates done before.

    Args:
        name: One of the six.
        base: The highest rate. None takes the optimizer's when training begins.
        warmup: Length of the linear rise from 0 to base; it does not shift the other moments. None is no warm-up; for
            one_cycle it is 30% of `total`.
        total: End of the curve; the rate then stays. None takes the length of the fit.
        every: Length between two reductions.
        at: Moments of the reductions, in rising order.
        factor: Above 0, at most 1; default 0.1.
        power: Above 0; default 2.
        start: First rate of one_cycle; default base / 25.
        final: The lowest rate; default 0.

    Returns:
        A `Schedule`. Its `rate(updates_done, updates_per_epoch)` is a pure function.

    Raises:
        UnknownNameError: No schedule has this name.
        TypeError: The schedule does not take an argument, or an argument is missing.
        ValueError: A length has no unit, or a number is out of range.

    >>> warm = schedule("cosine", base=0.4, warmup="2 updates", total="6 updates")
    >>> [round(rate, 3) for rate in warm.rates(7)]
    [0.2, 0.4, 0.341, 0.2, 0.059, 0.0, 0.0]
    """
    if name not in TAKES:
        raise unknown_name("schedule", name, TAKES)
    values: Dict[str, Any] = {
        "base": base, "warmup": warmup, "total": total, "every": every, "at": at,
        "factor": factor, "power": power, "start": start, "final": final,
    }  # fmt: skip
    given = {argument: value for argument, value in values.items() if value is not None}
    required, optional = TAKES[name]
    wrong = [argument for argument in given if argument not in (*required, *optional)]
    missing = [argument for argument in required if argument not in given]
    if wrong or missing:
        problem = f"does not take {', '.join(wrong)}" if wrong else f"needs {', '.join(missing)}"
        raise TypeError(f"schedule {name!r}: {problem}. It takes {', '.join([*required, *optional])}")
    return Schedule(name, **_checked(given))


def _checked(given: Mapping[str, Any]) -> Dict[str, Any]:
    checked: Dict[str, Any] = dict(given)
    for argument in ("warmup", "total", "every"):
        if argument in given:
            checked[argument] = _length(given[argument], argument)
            if argument != "warmup" and not checked[argument].number:
                raise ValueError(f"{argument}: expected a length above 0; received {given[argument]!r:.100}")
    if "at" in given:
        moments = [given["at"]] if isinstance(given["at"], (str, Length)) else list(given["at"])
        checked["at"] = tuple(_length(moment, "at") for moment in moments)
        if not moments or not all(moment.number for moment in checked["at"]):
            raise ValueError(
                f"at: expected moments above 0, like ['30 epochs', '60 epochs']; received {given['at']!r:.100}"
            )
    for argument in ("base", "factor", "power", "start", "final"):
        if argument in given:
            checked[argument] = _rate(given[argument], argument, above=argument not in ("start", "final"))
    return checked


def _rate(value: Any, name: str, above: bool) -> float:
    if not is_finite_number(value) or value < 0 or (above and value == 0):
        least = "above 0" if above else "of at least 0"
        raise ValueError(f"{name}: expected a number {least}; received {value!r:.100}")
    return float(value)


def get_schedule(spec: Any) -> Schedule:
    """Return the schedule that `spec` means: a `Schedule`, a name, or a name with arguments.

    Raises:
        TypeError: `spec` has another form.

    >>> get_schedule(("step", {"every": "3 epochs", "factor": 0.5})).factor
    0.5
    """
    if isinstance(spec, Schedule):
        return spec
    name, arguments = split_spec(spec)
    if isinstance(name, str):
        return schedule(name, **arguments)
    text = f"expected a Schedule, a name like 'cosine' or (name, arguments); received {spec!r:.100}"
    raise TypeError(f"schedule: {text}. A scheduler of MXNet goes to the optimizer: {{'lr_scheduler': ...}}")
