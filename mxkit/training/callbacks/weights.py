"""Callbacks that average the weights, or freeze parameters for the first part of a training."""

from contextlib import contextmanager, nullcontext
from numbers import Real
from typing import Any, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import length
from mxkit.core.arrays import copied, copy_to_cpu, legacy
from mxkit.core.blocks import distinct, match_parameters, never_trained, parameters_by_path
from mxkit.core.replicas import is_differentiable, set_grad_req, values_of
from mxkit.core.trainers import HeldWeights, refuse_remote, trainer_parameters
from mxkit.errors import CheckpointError
from mxkit.nets.settings import freeze_all, unfreeze_all
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Row
from mxkit.training.ledger import Update
from mxkit.training.state import FitState
import mxnet as mx

# MXNet's multi-tensor operators abort the process for too many arrays; MXNet's own optimizers take at most 45.
AT_ONCE = 40


class EMA(Callback):
    """Keep an exponential moving average of the trained parameters, on their device, for every replica.

    ```
    after each update:  average = d * average + (1 - d) * weight
    ```

    A parameter's average starts as its weights after the first update that trains it. Validation inside `fit` uses the
    averages; training continues with the trained weights, bit for bit. When `fit` ends, the net holds the trained
    weights: use `with ema.applied(net):` to evaluate, predict or save with the averages. BatchNorm's running statistics
    are not averaged; they stay those of the trained weights. Averages of float16 weights are stored in float32. The
    next `fit` starts a new average.

    Args:
        decay: d, from 0 to below 1.
        warmup: In the update after n others d is at most (1 + n) / (10 + n), so that a short run forgets its start.

    Attributes:
        updates: Number of updates averaged.

    Raises:
        ValueError: `decay` is not in 0 to 1 (1 excluded).

    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net)
    >>> ema, data = EMA(0.99), [(np.ones((4, 3)), np.zeros(4))] * 3
    >>> history = mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs=2, callbacks=[ema], progress=False)
    >>> with ema.applied(net):
    ...     scores = mxkit.evaluate(net, data, loss="softmax_ce")
    >>> scores["loss"] > mxkit.evaluate(net, data, loss="softmax_ce")["loss"]  # the average lags behind
    True
    """

    def __init__(self, decay: float = 0.999, warmup: bool = True) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"EMA: decay must be at least 0 and below 1; received {decay!r:.100}")
        self.decay = decay
        self.warmup = warmup
        self.updates = 0
        self._parameters: Dict[str, Any] = {}
        self._averages: Dict[str, List[Any]] = {}

    def on_fit_begin(self, state: FitState) -> None:
        if not self.resumed:
            self.updates, self._averages = 0, {}
        trained = {id(parameter) for parameter in trainer_parameters(state.trainer) if is_differentiable(parameter)}
        # Frozen parameters are included, because a callback may train them later.
        parameters = distinct(parameters_by_path(state.net))
        self._parameters = {path: parameter for path, parameter in parameters.items() if id(parameter) in trained}
        self._copy_to_devices()

    def _copy_to_devices(self) -> None:
        """Copy the averages of a checkpoint from the host to the devices."""
        for path, averages in self._averages.items():
            parameter = self._parameters.get(path)
            if parameter is None or parameter.shape != averages[0].shape:
                raise CheckpointError(
                    f"EMA: the net trains no {path!r} of shape {averages[0].shape}, as averaged before"
                )
            self._averages[path] = [copied(averages[0], device) for device in parameter.list_ctx()]

    def on_update(self, state: FitState, update: Update) -> None:
        with mx.util.np_shape(True):  # for weights without axes, which mx.np has
            self._add_weights()

    def _add_weights(self) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        by_kind: Dict[Tuple[Any, Any], List[Tuple[Any, Any]]] = {}
        for path, parameter in self._parameters.items():
            averages = self._averages.get(path)
            if averages is None:
                if parameter.grad_req != "null":
                    self._averages[path] = [_at_least_32_bits(weight).copy() for weight in values_of(parameter) or ()]
                continue
            for average, weight in zip(averages, values_of(parameter) or ()):
                by_kind.setdefault((weight.ctx, average.dtype), []).append((average, _at_least_32_bits(weight)))
        for pairs in by_kind.values():
            for start in range(0, len(pairs), AT_ONCE):
                _move_averages(pairs[start : start + AT_ONCE], 1 - decay)
        self.updates += 1

    @contextmanager
    def applied(self, net: Any) -> Iterator[None]:
        """Let `net` have the averages inside `with`, and its own weights after it, also after an error.

        Args:
            net: The trained net, or another net with the same paths, on any devices.

        Raises:
            ValueError: There is no average yet.
            KeyError: `net` lacks a parameter that was averaged.
        """
        if not self._averages:
            raise ValueError("EMA.applied: there is no average yet. Pass the callback to fit first")
        parameters = parameters_by_path(net)
        with HeldWeights({path: parameters[path] for path in self._averages}):
            with mx.util.np_shape(True):
                for path, averages in self._averages.items():
                    by_device = {average.ctx: average for average in averages}
                    for weight in values_of(parameters[path]) or ():
                        average = by_device.get(weight.ctx, averages[0])
                        average.astype(weight.dtype, copy=False).copyto(weight)
            yield

    def around_validation(self, state: FitState) -> ContextManager[Any]:
        """Validate with the averages, once there are any."""
        return self.applied(state.net) if self._averages else nullcontext()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._parameters = {}

    def state_dict(self) -> Dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.updates = state["updates"]

    def state_arrays(self) -> Dict[str, Any]:
        """Arrays on the CPU that a resumed run must restore, by path; replicas are equal."""
        return {path: copy_to_cpu(averages[0]) for path, averages in self._averages.items()}

    def load_state_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Restore the result of `state_arrays`; `on_fit_begin` copies the arrays to the net's devices."""
        self._averages = {path: [legacy(array)] for path, array in arrays.items()}


def _at_least_32_bits(weight: Any) -> Any:
    # in float16, small steps of the average round to 0
    return weight.astype("float32") if weight.dtype.__name__ == "float16" else weight


def _move_averages(pairs: List[Tuple[Any, Any]], share: float) -> None:
    """Compute `average += share * (weight - average)` for many pairs in one operator.

    The operator is SGD with the weight as its "gradient", a learning rate of -share and a weight decay of -1. It does
    not change an average that equals its weight, bit for bit.
    """
    count = len(pairs)
    mx.nd.multi_sgd_update(
        *[array for pair in pairs for array in pair],
        lrs=(-share,) * count,
        wds=(-1.0,) * count,
        num_weights=count,
        out=[average for average, _ in pairs],
    )


class Freeze(Callback):
    """Keep parameters frozen at the beginning of a training, then train them too.

    When `fit` begins, this freezes the parameters that match, as `mxkit.freeze` does; those that `finetune` or `freeze`
    froze before stay frozen. From `until` on, all of them are trained, as after `mxkit.unfreeze`. Running statistics
    and constants never are: a BatchNorm that was frozen uses its running statistics in training too, and keeps them
    (T265). If `fit` ends earlier, also by an error, each parameter gets its `grad_req` back. A resumed run continues
    like one that was never stopped.

    Args:
        patterns: A glob over structural paths, like "features.*", or several. None takes all parameters that are
            frozen when `fit` begins. Freeze whole layers: training refuses a Dense layer with a frozen weight and a
            trained bias.
        until: Length of the frozen part: "2 epochs", or "500 updates", which ends with the epoch of this update,
            because gradients may be accumulated inside an epoch.
        lr: Multiplier of their learning rate afterwards, at least 0. None does not change the multipliers; `finetune`
            sets a larger one for the head.

    Raises:
        ValueError: `until` or `lr` has another form; or, when `fit` begins, no parameter is frozen, none would be
            trained, or the Trainer does not know one.
        UnknownNameError: When `fit` begins: no parameter's path matches.

    >>> warm_up, gently = Freeze("features.*", until="2 epochs"), Freeze(until="1 epoch", lr=0.1)
    """

    def __init__(
        self, patterns: Union[None, str, Sequence[str]] = None, *, until: str, lr: Optional[float] = None
    ) -> None:
        self.patterns = patterns
        self.until = length(until, "Freeze: until", ("epochs", "updates"))
        if lr is not None and not (isinstance(lr, Real) and 0 <= lr < float("inf")):
            raise ValueError(f"Freeze: lr: expected a multiplier of the rate, at least 0; received {lr!r:.100}")
        self.lr = lr
        self._matching: Dict[str, Any] = {}
        self._requests: List[Tuple[Any, str]] = []

    def on_fit_begin(self, state: FitState) -> None:
        if self.lr is not None:
            refuse_remote(state.trainer)
        is_over = self._is_over(state.epoch - 1, state.updates - state.running.updates)
        self._matching = trained_later(state.net, self.patterns, check=not is_over)
        known = {id(parameter) for parameter in trainer_parameters(state.trainer)}
        frozen = [path for path, parameter in self._matching.items() if parameter.grad_req == "null"]
        unknown = [path for path in frozen if id(self._matching[path]) not in known]
        if unknown:
            names = ", ".join(unknown[:5])
            raise ValueError(f"Freeze: the Trainer does not know {names} (T19). Make it over net.collect_params()")
        trained = [one for one in distinct(self._matching).values() if one.grad_req != "null"]
        self._requests = [(parameter, parameter.grad_req) for parameter in trained]
        freeze_all(state.net, self._matching)  # also if the frozen part is over: it fixes statistics of BatchNorm
        if is_over:
            self._train(state.net)

    def on_epoch(self, state: FitState, row: Row) -> None:
        # only between epochs: inside an epoch, the Accumulator sets grad_req to "add"
        if self._matching and self._is_over(row["epoch"], state.updates):
            self._train(state.net)

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._matching = {}
        self._restore()

    def _is_over(self, epochs: int, updates: int) -> bool:
        return (epochs if self.until.unit == "epochs" else updates) >= self.until.number

    def _train(self, net: Any) -> None:
        self._restore()
        matching, self._matching = self._matching, {}
        unfreeze_all(net, matching)
        if self.lr is not None:
            for parameter in matching.values():
                parameter.lr_mult = float(self.lr)

    def _restore(self) -> None:
        requests, self._requests = self._requests, []
        for parameter, request in requests:
            set_grad_req(parameter, request)


def trained_later(net: Any, patterns: Union[None, str, Sequence[str]], *, check: bool = True) -> Dict[str, Any]:
    """Parameters by path that `Freeze` with these patterns freezes first.

    Raises:
        ValueError: With `check`: there are none, or no other parameter is trained.
        UnknownNameError: No parameter's path matches.
    """
    never = never_trained(net)
    globs = [patterns] if isinstance(patterns, str) else ["*"] if patterns is None else patterns
    matching = {
        path: parameter
        for glob in globs
        for path, parameter in match_parameters(net, glob).items()
        if id(parameter) not in never and (patterns is not None or parameter.grad_req == "null")
    }
    if check and not matching:
        raise ValueError("Freeze: no parameter that can be trained is frozen. Name some: Freeze('features.*', ...)")
    chosen = set(map(id, matching.values()))
    others = [parameter for parameter in parameters_by_path(net).values() if id(parameter) not in chosen]
    if check and all(parameter.grad_req == "null" for parameter in others):
        raise ValueError(f"Freeze: {', '.join(globs)} freezes every parameter that is trained. Use a narrower pattern")
    return matching
