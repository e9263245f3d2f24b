"""Freezes parameters for the first part of a training."""

from numbers import Real
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import length
from mxkit.core.blocks import distinct, match_parameters, never_trained, parameters_by_path
from mxkit.core.replicas import set_grad_req
from mxkit.core.trainers import refuse_remote, trainer_parameters
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Row
from mxkit.training.state import FitState


class Freeze(Callback):
    """Keep parameters frozen at the beginning of a training, then train them too.

    When `fit` begins, this freezes the parameters that match; those that `finetune` or `freeze` froze before stay
    frozen. From `until` on, all of them are trained. Running statistics and constants never are; a BatchNorm that
    `finetune` froze keeps its running statistics. If `fit` ends earlier, also by an error, each parameter gets its
    `grad_req` back. A resumed run continues like one that was never stopped.

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
            raise ValueError(
                f"Freeze: the Trainer does not know {', '.join(unknown[:5])}, and would never train them (T19). "
                "Make it over net.collect_params(), which holds frozen parameters too"
            )
        if is_over:
            self._train()
            return
        trained = [one for one in distinct(self._matching).values() if one.grad_req != "null"]
        self._requests = [(parameter, parameter.grad_req) for parameter in trained]
        for parameter in trained:
            set_grad_req(parameter, "null")

    def on_epoch(self, state: FitState, row: Row) -> None:
        # only between epochs: inside an epoch, the Accumulator sets grad_req to "add"
        if self._matching and self._is_over(row["epoch"], state.updates):
            self._train()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._matching = {}
        self._restore()

    def _is_over(self, epochs: int, updates: int) -> bool:
        return (epochs if self.until.unit == "epochs" else updates) >= self.until.number

    def _train(self) -> None:
        self._restore()
        matching, self._matching = self._matching, {}
        for parameter in matching.values():
            if parameter.grad_req == "null":
                set_grad_req(parameter, "write")
            if self.lr is not None:
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
        raise ValueError(
            "Freeze: no parameter that can be trained is frozen. Freeze some first, as mxkit.finetune and mxkit.freeze "
            "do, or name them: Freeze('features.*', until=...)"
        )
    chosen = set(map(id, matching.values()))
    others = [parameter for parameter in parameters_by_path(net).values() if id(parameter) not in chosen]
    if check and all(parameter.grad_req == "null" for parameter in others):
        raise ValueError(
            f"Freeze: {', '.join(globs)} freezes every parameter that is trained, so that epoch 1 has nothing to do. "
            "Use a narrower pattern"
        )
    return matching
