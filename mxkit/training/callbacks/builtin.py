"""Callbacks that steer a run: when to stop, what to freeze, and any function as a hook."""

from numbers import Real
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import parameters_by_path
from mxkit.core.held_weights import HeldWeights
from mxkit.errors import CheckpointError
from mxkit.nets.parameter_table import never_trained
from mxkit.nets.settings import match_parameters, refuse_remote, unfreeze
from mxkit.training.callbacks.callback import Callback, FitState
from mxkit.training.callbacks.monitor import Monitor
from mxkit.training.history import Row
from mxkit.training.record import Update


class EarlyStopping(Callback):
    """Stop when a column of the history has not become better for `patience` epochs.

    Args:
        monitor: The column, like "valid_loss".
        mode: "min" where smaller is better, "max" where larger is.
        patience: Epochs in a row without a better value after which `fit` stops, at least 1. Epochs in which
            the column was not measured do not count.
        min_delta: A value must be better by more than this to count.
        restore_best: When `fit` ends, also by an error or Ctrl-C, give the net the parameters it had after
            the best epoch, BatchNorm's running statistics included, on every device, bit for bit. They are
            kept on the host. The Trainer's state (momenta) stays as it is. Beside `EMA` these are the trained
            weights, not the averaged ones that were evaluated.

    Raises:
        ValueError: `mode`, `patience` or `min_delta` is out of range.
        UnknownNameError: At the begin of `fit`: the history will have no such column.
        TypeError: At the begin of `fit`: the column holds lists, as of a confusion matrix.

    >>> stopper = EarlyStopping("valid_loss", "min", patience=3, restore_best=True)
    """

    def __init__(
        self, monitor: str, mode: str, *, patience: int, min_delta: float = 0.0, restore_best: bool = False
    ) -> None:
        self.monitor = Monitor(monitor, mode, min_delta)
        self.patience = whole_number(patience, "patience")
        self.restore_best = restore_best
        self._kept: Dict[str, List[Any]] = {}
        self._loaded = False

    def on_fit_begin(self, state: FitState) -> None:
        state.check_monitor(self.monitor, self)
        if not self._loaded:
            self.monitor.reset()
            self._kept = {}
        self._loaded = False
        if self.restore_best and self.monitor.best is not None and not self._kept:
            raise CheckpointError(
                f"EarlyStopping: the resumed run was best in epoch {self.monitor.best_epoch}, but its checkpoint holds "
                "no parameters of that epoch. Resume with restore_best=False, or start anew"
            )

    def on_epoch(self, state: FitState, row: Row) -> None:
        monitor = self.monitor
        if monitor.update(row) and self.restore_best:
            self._kept = HeldWeights(parameters_by_path(state.net), on_host=True).arrays
        if monitor.epochs_since >= self.patience and state.stop_reason is None:
            best = "no value was a number" if monitor.best is None else f"best was {monitor.best:.6g}"
            where = "" if monitor.best is None else f" in epoch {monitor.best_epoch}"
            state.stop(
                f"{monitor.column} ({monitor.mode}) has not become better for {monitor.epochs_since} epochs: "
                f"{best}{where}"
            )

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        kept, self._kept = self._kept, {}
        if kept:
            HeldWeights(parameters_by_path(state.net), kept).put_back(state.trainer)

    def state_dict(self) -> Dict[str, Any]:
        return self.monitor.state_dict()

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.monitor.load_state_dict(state)
        self._loaded = True

    def state_arrays(self) -> Dict[str, Any]:
        """Arrays on the CPU that a resumed run must restore, by replica and path (`0/features.0.weight`)."""
        return {f"{i}/{path}": array for path, replicas in self._kept.items() for i, array in enumerate(replicas)}

    def load_state_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Take over what `state_arrays` gave."""
        numbered = sorted((int(name.split("/", 1)[0]), name.split("/", 1)[1], name) for name in arrays)
        self._kept = {}
        for _, path, name in numbered:
            self._kept.setdefault(path, []).append(arrays[name])


class TerminateOnNaN(Callback):
    """End `fit` where a loss or a weight is NaN or infinite, in place of the error that it raises by itself.

    The history then holds the epochs before, and `stopped` tells the update where it began. With
    `check_finite=False` nobody looks, and nothing ends.

    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net)
    >>> data = [(np.full((4, 3), np.nan), np.zeros(4))]
    >>> history = mxkit.fit(
    ...     net, data, loss="softmax_ce", trainer="sgd", epochs=2, callbacks=[TerminateOnNaN()], progress=False
    ... )
    >>> history.stopped[:34]
    'epoch 1, update 1: the loss is nan'
    """

    def on_fit_begin(self, state: FitState) -> None:
        state.stop_at_nonfinite = True


class TimeLimit(Callback):
    """Stop after the update that passes a limit of time; validation and the row of the epoch still follow.

    What counts is the time Python sees since `fit` began, validation included; the device may be up to 96
    updates behind. A resumed run goes on with the seconds used up before.

    Args:
        seconds: Above 0.
        clock: Gives seconds, from any start.

    Raises:
        ValueError: `seconds` is not above 0.

    >>> limit = TimeLimit(8 * 3600)
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not seconds > 0:
            raise ValueError(f"TimeLimit: expected seconds above 0; received {seconds!r:.100}")
        self.seconds = seconds
        self._clock = clock
        self._begun: Optional[float] = None
        self._earlier = 0.0
        self._loaded = False

    @property
    def elapsed(self) -> float:
        """Seconds used up so far."""
        return self._earlier + (0.0 if self._begun is None else self._clock() - self._begun)

    def on_fit_begin(self, state: FitState) -> None:
        if not self._loaded:
            self._earlier = 0.0
        self._loaded = False
        self._begun = self._clock()

    def on_update(self, state: FitState, update: Update) -> None:
        self._look(state)

    def on_epoch(self, state: FitState, row: Row) -> None:
        self._look(state)  # validation may have passed the limit

    def _look(self, state: FitState) -> None:
        elapsed = self.elapsed
        if elapsed >= self.seconds and state.stop_reason is None:
            state.stop(
                f"time limit of {self.seconds:g} s passed after {elapsed:.1f} s, in epoch {state.epoch}, after "
                f"update {state.updates}",
                for_now=True,
            )

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._earlier, self._begun = self.elapsed, None

    def state_dict(self) -> Dict[str, Any]:
        return {"seconds": self.elapsed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._earlier = state["seconds"]
        self._loaded = True


class FreezeUntil(Callback):
    """Keep parameters frozen until an epoch begins, then train them too.

    `grad_req` is "null" meanwhile and then what it was before; it is put back when `fit` ends, also by an
    error. A parameter that is frozen already stays out of it: `UnfreezeAt` trains what `finetune` froze. Freeze whole
    layers: a Dense layer with a frozen weight and a trained bias is refused by training.

    Args:
        epoch: The epoch, from 1, in which they are trained first, at least 2.
        glob: Matches structural paths: "features.*", "*.weight".

    Raises:
        ValueError: `epoch` is below 2; or, when `fit` begins, nothing would be left to train, or all is frozen already.
        UnknownNameError: When `fit` begins: no parameter's path matches.

    >>> warm_up = FreezeUntil(3, "features.*")
    """

    def __init__(self, epoch: int, glob: str) -> None:
        self.epoch, self.glob = _later_epoch(epoch, "FreezeUntil"), glob
        self._frozen: List[Tuple[Any, str]] = []

    def on_fit_begin(self, state: FitState) -> None:
        matching = match_parameters(state.net, self.glob).values()
        if state.epoch >= self.epoch:  # a resumed run
            return
        distinct = {id(parameter): parameter for parameter in matching if parameter.grad_req != "null"}
        if not distinct:
            raise ValueError(
                f"FreezeUntil: all that fits {self.glob!r} is frozen already, as finetune does it, and would stay so. "
                f"Use mxkit.callbacks.UnfreezeAt({self.epoch}, {self.glob!r})"
            )
        others = [one for one in parameters_by_path(state.net).values() if id(one) not in distinct]
        if all(parameter.grad_req == "null" for parameter in others):
            raise ValueError(
                f"FreezeUntil: {self.glob!r} freezes every parameter that is trained, so epoch 1 has nothing to do. "
                "Use a narrower glob"
            )
        self._frozen = [(parameter, parameter.grad_req) for parameter in distinct.values()]
        for parameter, _ in self._frozen:
            parameter.grad_req = "null"

    def on_epoch(self, state: FitState, row: Row) -> None:
        # Only between epochs: inside one, the Accumulator holds grad_req at "add".
        if row["epoch"] + 1 >= self.epoch:
            self._thaw()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._thaw()

    def _thaw(self) -> None:
        frozen, self._frozen = self._frozen, []
        for parameter, request in frozen:
            parameter.grad_req = request


class UnfreezeAt(Callback):
    """Train what is frozen, as by `finetune` or `freeze`, from the beginning of an epoch on.

    Nothing is frozen again when `fit` ends. Running statistics and constants stay out of it, as for `unfreeze`; a
    BatchNorm that `finetune` froze goes on with its running statistics. A resumed run goes on as one that was never
    stopped, before the epoch and after it.

    Args:
        epoch: The epoch, from 1, in which they are trained first, at least 2.
        glob: Matches structural paths, as for `unfreeze`. The default means all that is frozen.
        lr: Their learning rate is multiplied by this, at least 0. None leaves the multipliers as they are: 1, but for
            the head, which `finetune` lets learn faster.

    Raises:
        ValueError: `epoch` is below 2; or, when `fit` begins, nothing that fits is frozen, or the Trainer does not know
            it.
        UnknownNameError: When `fit` begins: no parameter's path matches.

    >>> gently = UnfreezeAt(3, "features.*", lr=0.1)
    """

    def __init__(self, epoch: int, glob: str = "*", *, lr: Optional[float] = None) -> None:
        self.epoch, self.glob, self.lr = _later_epoch(epoch, "UnfreezeAt"), glob, lr
        if lr is not None and not (isinstance(lr, Real) and 0 <= lr < float("inf")):
            raise ValueError(
                f"UnfreezeAt: lr: expected a multiplier of the learning rate, at least 0; received {lr!r:.100}"
            )

    def on_fit_begin(self, state: FitState) -> None:
        if self.lr is not None:
            refuse_remote(state.trainer)
        never, known = never_trained(state.net), {id(parameter) for parameter in state.trainer._params}
        matching = match_parameters(state.net, self.glob).items()
        frozen = {path: one for path, one in matching if one.grad_req == "null" and id(one) not in never}
        strange = [path for path, parameter in frozen.items() if id(parameter) not in known]
        if strange:
            raise ValueError(
                f"UnfreezeAt: the Trainer does not know {', '.join(strange[:5])}, and would never train them (T19). "
                "Make it over net.collect_params(), which holds frozen ones too"
            )
        if state.epoch >= self.epoch:  # a resumed run
            self._thaw(state)
        elif not frozen:
            raise ValueError(
                f"UnfreezeAt: nothing that fits {self.glob!r} is frozen before epoch {self.epoch}. Freeze it first, as "
                "mxkit.finetune and mxkit.freeze do; FreezeUntil freezes by itself"
            )

    def on_epoch(self, state: FitState, row: Row) -> None:
        # Only between epochs: inside one, the Accumulator holds grad_req at "add".
        if row["epoch"] + 1 == self.epoch:
            self._thaw(state)

    def _thaw(self, state: FitState) -> None:
        parameters = parameters_by_path(state.net)
        for path in unfreeze(state.net, self.glob):
            if self.lr is not None:
                parameters[path].lr_mult = float(self.lr)


def _later_epoch(epoch: int, name: str) -> int:
    if whole_number(epoch, f"{name}: epoch") < 2:
        raise ValueError(f"{name}: expected an epoch from 2, because epochs count from 1; received 1")
    return epoch


class LambdaCallback(Callback):
    """Functions as hooks, each with the arguments that `Callback` gives its method.

    Args:
        on_fit_begin: Called as `on_fit_begin(state)`.
        on_update: Called as `on_update(state, update)`.
        on_epoch: Called as `on_epoch(state, row)`.
        on_fit_end: Called as `on_fit_end(state, error)`.

    Raises:
        TypeError: One of them cannot be called.

    >>> shout = LambdaCallback(on_epoch=lambda state, row: print(row["epoch"], row["updates"]))
    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net)
    >>> data = [(np.ones((4, 3)), np.zeros(4))] * 2
    >>> history = mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs=2, callbacks=[shout], progress=False)
    1 2
    2 4
    """

    def __init__(
        self,
        *,
        on_fit_begin: Optional[Callable[[FitState], Any]] = None,
        on_update: Optional[Callable[[FitState, Update], Any]] = None,
        on_epoch: Optional[Callable[[FitState, Row], Any]] = None,
        on_fit_end: Optional[Callable[[FitState, Optional[BaseException]], Any]] = None,
    ) -> None:
        functions: Dict[str, Optional[Callable[..., Any]]] = {
            "on_fit_begin": on_fit_begin,
            "on_update": on_update,
            "on_epoch": on_epoch,
            "on_fit_end": on_fit_end,
        }
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise TypeError(f"LambdaCallback: {name} must be a function or None; received {function!r:.100}")
            if function is not None:
                setattr(self, name, function)
