"""Parameters that are trained later than others."""

from numbers import Real
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from mxkit.core.blocks import match_parameters, never_trained, parameters_by_path
from mxkit.core.lengths import length
from mxkit.core.trainers import refuse_remote, trainer_parameters
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Row
from mxkit.training.state import FitState


class Freeze(Callback):
    """Keep parameters frozen at the beginning of a training, then train them too.

    Parameters that were trained are frozen when `fit` begins; parameters that `finetune` or `freeze` froze before stay
    frozen. From `until` on, all of them are trained. Running statistics and constants never are; a BatchNorm that
    `finetune` froze keeps its running statistics. When `fit` ends earlier, also by an error, the parameters have the
    `grad_req` that they had before. A resumed run continues as one that was never stopped.

    Args:
        patterns: A glob over structural paths, like "features.*", or several. None is all that is frozen when `fit`
            begins. Freeze whole layers: a Dense layer with a frozen weight and a trained bias is refused by training.
        until: How long they stay frozen: "2 epochs", or "500 updates", which ends with the epoch that this update
            belongs to, because gradients may be accumulated inside of an epoch.
        lr: A multiplier of their learning rate from then on, at least 0. None leaves the multipliers as they are: 1,
            but for the head, which `finetune` lets learn faster.

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
            raise ValueError(
                f"Freeze: lr: expected a multiplier of the learning rate, at least 0; received {lr!r:.100}"
            )
        self.lr = lr
        self._matching: Dict[str, Any] = {}
        self._frozen: List[Tuple[Any, str]] = []

    def on_fit_begin(self, state: FitState) -> None:
        if self.lr is not None:
            refuse_remote(state.trainer)
        resumed_later = self._over(state.epoch - 1, state.updates - state.running.updates)
        self._matching = trained_later(state.net, self.patterns, check=not resumed_later)
        known = {id(parameter) for parameter in trainer_parameters(state.trainer)}
        strange = [path for path, one in self._matching.items() if one.grad_req == "null" and id(one) not in known]
        if strange:
            raise ValueError(
                f"Freeze: the Trainer does not know {', '.join(strange[:5])}, and would never train them (T19). "
                "Make it over net.collect_params(), which holds frozen ones too"
            )
        if resumed_later:
            self._train()
            return
        chosen = {id(parameter): parameter for parameter in self._matching.values()}
        self._frozen = [(one, one.grad_req) for one in chosen.values() if one.grad_req != "null"]
        for parameter, _ in self._frozen:
            parameter.grad_req = "null"

    def on_epoch(self, state: FitState, row: Row) -> None:
        # Only between epochs: inside one, the Accumulator holds grad_req at "add".
        if self._matching and self._over(row["epoch"], state.updates):
            self._train()

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        self._matching = {}
        self._restore()

    def _over(self, epochs: int, updates: int) -> bool:
        return (epochs if self.until.unit == "epochs" else updates) >= self.until.number

    def _train(self) -> None:
        self._restore()
        matching, self._matching = self._matching, {}
        for parameter in matching.values():
            if parameter.grad_req == "null":
                parameter.grad_req = "write"
            if self.lr is not None:
                parameter.lr_mult = float(self.lr)

    def _restore(self) -> None:
        frozen, self._frozen = self._frozen, []
        for parameter, request in frozen:
            parameter.grad_req = request


def trained_later(net: Any, patterns: Union[None, str, Sequence[str]], *, check: bool = True) -> Dict[str, Any]:
    """Parameters by path that `Freeze` with these patterns keeps frozen at first.

    Raises:
        ValueError: With `check`: there is none, or no other parameter is trained.
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
